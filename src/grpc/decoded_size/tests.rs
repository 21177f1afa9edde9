use prost::Message as _;
use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::canonical_json;
use crate::domain::limit;
use crate::pb;

use super::*;

/// Encodes a message behind a prefix.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0][..], &length.to_be_bytes(), message].concat()
}

fn size(name: &str, message: &[u8]) -> Result<usize, RpcError> {
    DecodedSize::of_message(name).unwrap().read(&framed(message))
}

/// Encodes a field of this number with these bytes.
fn field(number: u32, bytes: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::new();
    prost::encoding::encode_key(number, prost::encoding::WireType::LengthDelimited, &mut encoded);
    prost::encoding::encode_varint(bytes.len() as u64, &mut encoded);
    encoded.extend_from_slice(bytes);
    encoded
}

/// Returns the lists and maps within a message, each with the fields that lead to it.
fn lists(message: &MessageDescriptor, path: &[FieldDescriptor]) -> Vec<Vec<FieldDescriptor>> {
    let mut found = Vec::new();
    for field in message.fields() {
        let path = [path, std::slice::from_ref(&field)].concat();
        if field.is_list() || field.is_map() {
            found.push(path.clone());
        }
        if let Kind::Message(inner) = field.kind() {
            found.extend(lists(&inner, &path));
        }
    }
    found
}

fn pools() -> [DescriptorPool; 2] {
    let scaler = DescriptorPool::decode(crate::keda::FILE_DESCRIPTOR_SET).unwrap();
    [canonical_json::contract().unwrap().clone(), scaler]
}

/// Each list of each request, as many shortest entries as fit into a message, is refused or small.
#[test]
fn no_list_of_any_request_takes_much_memory() {
    let mut refused = 0;
    for rpc in pools()
        .iter()
        .flat_map(|pool| pool.services().collect::<Vec<_>>())
        .flat_map(|s| s.methods().collect::<Vec<_>>())
    {
        for path in lists(&rpc.input(), &[]) {
            let [outer @ .., list] = &path[..] else { unreachable!() };
            let entry = field(list.number(), b"");
            let filled = entry.repeat((limit::REQUEST_BYTES_MAX - 64) / entry.len());
            let message =
                outer.iter().rev().fold(filled, |inner, outer| field(outer.number(), &inner));
            assert!(message.len() <= limit::REQUEST_BYTES_MAX);
            match size(rpc.input().full_name(), &message) {
                Err(error) => {
                    let status = tonic::Status::from(error);
                    assert_eq!(status.code(), tonic::Code::InvalidArgument);
                    refused += 1;
                }
                Ok(size) => panic!("{path:?} passes with {size}"),
            }
        }
    }
    assert!(refused > 20, "{refused}");
}

/// An entry of a list without a size of its own would be estimated wrongly.
#[test]
fn every_message_in_a_list_has_its_size() {
    for pool in pools() {
        for rpc in pool.services().flat_map(|service| service.methods().collect::<Vec<_>>()) {
            let is_served = crate::grpc::layers::is_served(&format!(
                "/{}/{}",
                rpc.parent_service().full_name(),
                rpc.name()
            ));
            for path in lists(&rpc.input(), &[]).iter().filter(|_| is_served) {
                let Some(list) = path.last().filter(|list| list.is_list()) else { continue };
                if let Kind::Message(entry) = list.kind() {
                    assert_ne!(
                        shape::message_bytes(entry.full_name()),
                        shape::UNKNOWN_ENTRY_BYTES,
                        "{entry:?}"
                    );
                }
            }
        }
    }
}

fn data(bytes: Vec<u8>) -> pb::Payload {
    let kind = Some(pb::payload::Kind::Data(bytes.into()));
    pb::Payload { kind, ..Default::default() }
}

fn largest_ack() -> pb::AckRequest {
    let span = Some(prost_types::Duration { seconds: 7, nanos: 0 });
    let follow_up = pb::JobSpec {
        topic: "steps".into(),
        id: "0195e0a1-0000-7000-8000".into(),
        payload: Some(data(vec![7; 64])),
        headers: [("traceparent".to_owned(), "00-1".to_owned())].into(),
        priority: Some(3),
        lease_duration: span,
        retention: span,
        ..Default::default()
    };
    let receipt = "r".repeat(120);
    let item = pb::AckItem {
        receipt,
        enqueue: vec![follow_up; limit::FOLLOW_UPS_MAX],
        ..Default::default()
    };
    pb::AckRequest { items: vec![item; limit::SETTLE_ITEMS_MAX] }
}

#[test]
fn the_largest_sensible_requests_pass() {
    let ack = largest_ack().encode_to_vec();
    assert!(ack.len() < limit::REQUEST_BYTES_MAX, "{}", ack.len());
    let size_of_ack = size("ringq.v1.AckRequest", &ack).unwrap();
    assert!(size_of_ack < DECODED_BYTES_MAX * 3 / 4, "{size_of_ack}");
    let payload = data(vec![0x0a; 4 << 10]);
    let job = pb::JobSpec { topic: "a".into(), payload: Some(payload), ..Default::default() };
    let batch =
        pb::BatchEnqueueRequest { jobs: vec![job; limit::BATCH_JOBS_MAX], ..Default::default() };
    let batch = size("ringq.v1.BatchEnqueueRequest", &batch.encode_to_vec()).unwrap();
    assert!(batch < 1 << 20, "bytes of payloads are no fields: {batch}");
}

#[test]
fn the_size_does_not_depend_on_the_pieces() {
    let ack = pb::AckRequest { items: largest_ack().items[..20].to_vec() };
    let bytes = [framed(&ack.encode_to_vec()), framed(&[]), framed(&ack.encode_to_vec())].concat();
    let whole = DecodedSize::of_rpc("ringq.v1.QueueService/Ack").unwrap().read(&bytes).unwrap();
    let entries = 20 * (size_of::<pb::AckItem>() + 16 * (size_of::<pb::JobSpec>() + 128));
    assert!((2 * entries..4 * entries).contains(&whole), "{whole} of {entries}");
    let mut random = StdRng::seed_from_u64(7);
    for _ in 0..50 {
        let (mut rest, mut sum) = (&bytes[..], 0);
        let mut size = DecodedSize::of_rpc("ringq.v1.QueueService/Ack").unwrap();
        while !rest.is_empty() {
            let (piece, more) = rest.split_at(random.random_range(0..=rest.len().min(40)));
            sum += size.read(piece).unwrap();
            rest = more;
        }
        assert_eq!(sum, whole);
    }
}

/// A part that is longer than the message around it is decoded before that is noticed.
#[test]
fn a_part_beyond_its_message_is_counted() {
    let spans = field(2, b"").repeat(1_000_000);
    // Items of an Ack of five bytes, of which follow-up jobs begin with a retry policy that goes on behind them.
    let retry = field(8, &spans);
    let job = [&[10, 5, 0x1a, 4][..], &retry[..]].concat();
    assert!(pb::AckRequest::decode(&job[..]).is_err());
    let size = size("ringq.v1.AckRequest", &job).map(|size| size / 1_000_000);
    assert!(matches!(size, Ok(30..)) || size.is_err(), "{size:?}");
}

/// Bytes that are no message cost no panic, and a message that is one is never cut short: what the decoder finds in it
/// is in the estimate.
#[test]
fn any_bytes_are_counted_as_the_decoder_reads_them() {
    let mut random = StdRng::seed_from_u64(11);
    let mut decoded = 0;
    for _ in 0..60_000 {
        let mut bytes: Vec<u8> = (0..random.random_range(0..40_usize))
            .map(|_| {
                [0x0a, 0x12, 0x1a, 0x22, 0x0b, 0x0c, 0, 1, 2, 3, 5, 8, 0x80, random.random()]
                    [random.random_range(0..14_usize)]
            })
            .collect();
        if random.random_bool(0.5) {
            bytes = field(1, &bytes);
        }
        let size = size("ringq.v1.AckRequest", &bytes).unwrap();
        let Ok(ack) = pb::AckRequest::decode(&bytes[..]) else { continue };
        let of_item = |item: &pb::AckItem| {
            size_of::<pb::AckItem>() + item.enqueue.len() * size_of::<pb::JobSpec>()
        };
        let entries: usize = ack.items.iter().map(of_item).sum();
        assert!(size >= entries, "{bytes:?}: {size} < {entries}");
        decoded += usize::from(entries > 0);
    }
    assert!(decoded > 500, "{decoded}");
}

#[test]
fn small_messages_are_whole_and_short() {
    assert!(DecodedSize::is_small(&framed(&[7; SMALL_BYTES_MAX - PREFIX_BYTES])));
    assert!(!DecodedSize::is_small(&framed(&[7; SMALL_BYTES_MAX])));
    assert!(!DecodedSize::is_small(&framed(&[7; 9])[..13]));
    assert!(!DecodedSize::is_small(&[0; 4]));
    assert!(!DecodedSize::is_small(&[framed(&[]), framed(&[])].concat()));
}
