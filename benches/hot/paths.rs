//! The pure functions in the path of every job, each with a constant input.
//!
//! The benches `hot` and `regress` share this file.

use std::hint::black_box;
use std::sync::LazyLock;
use std::time::Duration;

use ringq::domain::credit::{Credit, CreditAmount, CreditedLease};
use ringq::domain::lifecycle::{AttemptContext, LeaseEndCause, lease_end};
use ringq::domain::{
    JobId, JobKey, Payload, Receipt, ReceiptKey, RetryOverrides, RetryPolicy, Ring, ShardName,
    Spec, Time, Token, TopicName,
};
use ringq::store::codec;

/// A function and its call.
pub(crate) struct HotPath {
    /// Name, unique; also used in the baseline.
    pub(crate) name: &'static str,
    /// Calls it once.
    pub(crate) step: Box<dyn FnMut()>,
}

/// Credit of a stream in these paths, and the number of jobs that it holds.
const STREAM_CREDIT: u32 = 128;
/// Shards of the ring.
const SHARDS: u32 = 16;
/// Key of the receipts.
const KEY: ReceiptKey = ReceiptKey::new(UUID);
const UUID: u128 = 0x0198_0000_0000_7000_8000_0123_4567_89ab;

/// Returns all of them.
pub(crate) fn all() -> Vec<HotPath> {
    vec![
        path("ring_owner", ring_owner()),
        path("id_server_made", id_server_made()),
        path("names_check", names_check()),
        path("receipt_encode", receipt_encode()),
        path("receipt_decode", receipt_decode()),
        path("credit_grant_release", credit_grant_release()),
        path("lifecycle_lease_end", lifecycle_lease_end()),
        path("retry_merge_delay", retry_merge_delay()),
        path("codec_payload_encode", codec_payload_encode()),
        path("codec_payload_decode", codec_payload_decode()),
        path("codec_terms_encode", codec_terms_encode()),
        path("codec_terms_decode", codec_terms_decode()),
    ]
}

fn path(name: &'static str, step: impl FnMut() + 'static) -> HotPath {
    HotPath { name, step: Box::new(step) }
}

/// Finds the owner of an id among many shards.
fn ring_owner() -> impl FnMut() {
    /// Built once: that takes longer than everything else here.
    static RING: LazyLock<Ring> =
        LazyLock::new(|| Ring::new((0..SHARDS).map(|n| (shard(&format!("s{n}")), 1)).collect()));
    let key = key();
    move || {
        black_box(RING.owner(black_box(&key)));
    }
}

/// Makes a server-made id.
fn id_server_made() -> impl FnMut() {
    let shard = shard("s0");
    move || {
        black_box(JobId::from_uuid(black_box(&shard), black_box(UUID)));
    }
}

/// Checks client-chosen names: a topic and an id.
fn names_check() -> impl FnMut() {
    || {
        let _ = black_box(TopicName::try_new(black_box("billing.invoices")));
        let _ = black_box(JobId::try_new(black_box("order-2026-000123:reminder")));
    }
}

/// Encodes the receipt of a delivery.
fn receipt_encode() -> impl FnMut() {
    let receipt = receipt();
    move || {
        black_box(black_box(&receipt).encode(Some(KEY)));
    }
}

/// Decodes the receipt of a settle.
fn receipt_decode() -> impl FnMut() {
    let text = receipt().encode(Some(KEY));
    move || {
        black_box(Receipt::decode(black_box(&text), |_| Some(KEY)));
    }
}

/// Takes a job into the credit of a busy stream, and releases it.
fn credit_grant_release() -> impl FnMut() {
    let mut credit =
        Credit::new(CreditAmount { jobs: 2 * STREAM_CREDIT, bytes: 64 << 20 }, u64::MAX);
    let cost = CreditAmount::of_job(100);
    (0..STREAM_CREDIT)
        .for_each(|n| credit.hold(Token(1 << 32 | u64::from(n)), CreditedLease::unsent(cost, ())));
    let mut next = 0;
    move || {
        // Another token each time: hash tables have random seeds, so that no token costs the same twice.
        next += 1;
        let token = Token(2 << 32 | next);
        credit.hold(black_box(token), CreditedLease::unsent(cost, ()));
        black_box(credit.free());
        black_box(credit.release(black_box(token)));
    }
}

/// Computes the result of a failed attempt.
fn lifecycle_lease_end() -> impl FnMut() {
    let standing = AttemptContext {
        failures: 3,
        deliveries: 4,
        crashes: 0,
        is_replaced: false,
        first_start: Time(1_800_000_000_000_000),
        retry: None,
    };
    let (policy, now) = (RetryPolicy::default(), Time(1_800_000_060_000_000));
    move || {
        let cause = LeaseEndCause::Failed { delay: None, error: "it did not answer".to_owned() };
        black_box(lease_end(cause, black_box(&standing), black_box(&policy), now, 0.5));
    }
}

/// Merges the policy of a job with the defaults, and computes its next wait.
fn retry_merge_delay() -> impl FnMut() {
    let over = overrides();
    move || {
        let policy = RetryPolicy::default().merge(Some(black_box(&over)));
        black_box(policy.delay(black_box(2), 0.5));
    }
}

/// Encodes a payload for a store.
fn codec_payload_encode() -> impl FnMut() {
    let payload = payload();
    move || {
        black_box(codec::encode_payload(black_box(&payload)));
    }
}

/// Decodes a payload for a worker.
fn codec_payload_decode() -> impl FnMut() {
    let blob = bytes::Bytes::from(codec::encode_payload(&payload()));
    move || {
        let _ = black_box(codec::decode_payload(black_box(&blob).clone()));
    }
}

/// Encodes headers and retry policy for a store.
fn codec_terms_encode() -> impl FnMut() {
    let spec = spec();
    move || {
        black_box(codec::encode_spec(black_box(&spec)));
    }
}

/// Decodes headers and retry policy for a worker.
fn codec_terms_decode() -> impl FnMut() {
    let blob = codec::encode_spec(&spec());
    move || {
        let _ = black_box(codec::decode_spec(black_box(blob.as_deref())));
    }
}

fn shard(name: &str) -> ShardName {
    ShardName::try_new(name).expect("a shard's name")
}

fn key() -> JobKey {
    JobKey {
        topic: TopicName::stored("billing.invoices"),
        id: JobId::stored("order-2026-000123:reminder"),
    }
}

fn receipt() -> Receipt {
    let shard = shard("s0");
    let key = JobKey { id: JobId::from_uuid(&shard, UUID), ..key() };
    Receipt { shard, owner: 0xfeed_f00d, stream: 7, token: Token(0xdead_beef_0000_002a), key }
}

fn payload() -> Payload {
    let (body, content_type) = (vec![b'x'; 100].into(), "application/json".to_owned());
    Payload { text: true, body, content_type }
}

fn overrides() -> RetryOverrides {
    let delays = [1, 3, 5, 7].map(|minutes| Duration::from_secs(60 * minutes)).to_vec();
    RetryOverrides { max_attempts: Some(5), delays, ..RetryOverrides::default() }
}

fn spec() -> Spec {
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let headers = vec![
        header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        header("tenant", "acme"),
    ];
    Spec { headers, retry: overrides().boxed(), ..Spec::default() }
}
