//! The pure functions that every job passes, each on an input that never changes.
//!
//! The benches `hot` and `regress` share this file.

use std::hint::black_box;
use std::sync::LazyLock;
use std::time::Duration;

use ringq::domain::credit::{Credit, CreditAmount, CreditedLease};
use ringq::domain::lifecycle::{AttemptContext, Cause, lease_end};
use ringq::domain::{
    JobId, JobKey, Payload, Receipt, RetryOverrides, RetryPolicy, Ring, ShardName, Spec, Time,
    Token, TopicName,
};
use ringq::store::codec;

/// One function, and how it is called.
pub(crate) struct HotPath {
    /// Unique; the baseline has it.
    pub(crate) name: &'static str,
    /// Calls it once.
    pub(crate) step: Box<dyn FnMut()>,
}

/// What a stream may hold in these paths, and holds already.
const STREAM_CREDIT: u32 = 128;
/// Shards of the ring.
const SHARDS: u32 = 16;
const UUID: u128 = 0x0198_0000_0000_7000_8000_0123_4567_89ab;

/// All of them.
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

/// The owner of an id among many shards.
fn ring_owner() -> impl FnMut() {
    /// Made once: that takes longer than all else here.
    static RING: LazyLock<Ring> =
        LazyLock::new(|| Ring::new((0..SHARDS).map(|n| (shard(&format!("s{n}")), 1)).collect()));
    let key = key();
    move || {
        black_box(RING.owner(black_box(&key)));
    }
}

/// An id as a server makes it.
fn id_server_made() -> impl FnMut() {
    let shard = shard("s0");
    move || {
        black_box(JobId::from_uuid(black_box(&shard), black_box(UUID)));
    }
}

/// What a client names: its topic and its id.
fn names_check() -> impl FnMut() {
    || {
        let _ = black_box(TopicName::try_new(black_box("billing.invoices")));
        let _ = black_box(JobId::try_new(black_box("order-2026-000123:reminder")));
    }
}

/// The receipt of a delivery.
fn receipt_encode() -> impl FnMut() {
    let receipt = receipt();
    move || {
        black_box(black_box(&receipt).encode());
    }
}

/// The receipt of a settle.
fn receipt_decode() -> impl FnMut() {
    let text = receipt().encode();
    move || {
        black_box(Receipt::decode(black_box(&text)));
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
        // Another one each time: hash tables have random seeds, so that no token costs the same twice.
        next += 1;
        let token = Token(2 << 32 | next);
        credit.hold(black_box(token), CreditedLease::unsent(cost, ()));
        black_box(credit.free());
        black_box(credit.release(black_box(token)));
    }
}

/// What follows when an attempt has failed.
fn lifecycle_lease_end() -> impl FnMut() {
    let standing = AttemptContext {
        failures: 3,
        deliveries: 4,
        first_start: Time(1_800_000_000_000_000),
        retry: RetryOverrides::default(),
    };
    let (policy, now) = (RetryPolicy::default(), Time(1_800_000_060_000_000));
    move || {
        let cause = Cause::Failed { delay: None, error: "it did not answer".to_owned() };
        black_box(lease_end(cause, black_box(&standing), black_box(&policy), now, 0.5));
    }
}

/// The policy of a job that says something itself, and its next wait.
fn retry_merge_delay() -> impl FnMut() {
    let over = overrides();
    move || {
        let policy = RetryPolicy::default().merge(black_box(&over));
        black_box(policy.delay(black_box(2), 0.5));
    }
}

/// A body on its way to a store.
fn codec_payload_encode() -> impl FnMut() {
    let payload = payload();
    move || {
        black_box(codec::encode_payload(black_box(&payload)));
    }
}

/// A body on its way to a worker.
fn codec_payload_decode() -> impl FnMut() {
    let blob = bytes::Bytes::from(codec::encode_payload(&payload()));
    move || {
        let _ = black_box(codec::decode_payload(black_box(&blob).clone()));
    }
}

/// Headers and retry policy on their way to a store.
fn codec_terms_encode() -> impl FnMut() {
    let spec = spec();
    move || {
        black_box(codec::encode_spec(black_box(&spec)));
    }
}

/// Headers and retry policy on their way to a worker.
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
    Spec { headers, retry: overrides(), ..Spec::default() }
}
