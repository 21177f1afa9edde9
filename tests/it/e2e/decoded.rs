//! Requests that are short on the wire and large in memory: each is refused before it is decoded.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};
use ringq::pb::FILE_DESCRIPTOR_SET;

use crate::harness::{Client, RawCalls, Server, job, within};

/// Size in bytes of a request: as large as a server takes.
const REQUEST_BYTES: usize = 4 << 20;
/// Bound on the growth of the server's memory. Without the check a list of jobs takes 2 GB.
const GROWTH_BYTES: u64 = 96 << 20;

/// Encodes a field of this number with these bytes.
fn field(number: u32, bytes: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(bytes.len() + 10);
    encode_key(number, WireType::LengthDelimited, &mut encoded);
    encode_varint(bytes.len() as u64, &mut encoded);
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

/// Returns a request whose list at the end of `path` has as many of the shortest entries as it has room for.
fn filled(path: &[FieldDescriptor]) -> Bytes {
    let (list, outer) = path.split_last().unwrap();
    let entry = field(list.number(), b"");
    let entries = entry.repeat((REQUEST_BYTES - 64) / entry.len());
    let message = outer.iter().rev().fold(entries, |inner, outer| field(outer.number(), &inner));
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], &message].concat().into()
}

/// Each list of each request of each RPC.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_takes_much_more_memory_than_it_is_long() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail")).await;
    let before = server.peak_bytes();
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
    let services = ["QueueService", "TopicService", "AdminService"];
    let services =
        services.map(|name| pool.get_service_by_name(&format!("ringq.v1.{name}")).unwrap());
    let mut calls = RawCalls::connect(server.grpc, 65_535).await;
    let mut refused = 0;
    for rpc in services.iter().flat_map(|service| service.methods()) {
        for path in lists(&rpc.input(), &[]) {
            let method = format!("{}/{}", rpc.parent_service().name(), rpc.name());
            let answer =
                within("an answer", calls.begin(&method, filled(&path), true)).await.unwrap();
            let status = answer.headers().get("grpc-status").map(|code| code.to_str().unwrap());
            let message = answer.headers().get("grpc-message");
            let message = message.map_or("", |message| message.to_str().unwrap()).to_owned();
            assert_eq!(status, Some("3"), "{method} {path:?}: {message}");
            assert!(message.contains("send%20less%20at%20once"), "{method}: {message}");
            let _ = answer.into_body().collect().await;
            refused += 1;
        }
    }
    assert!(refused >= 15, "{refused}");
    let grown = server.peak_bytes().saturating_sub(before);
    println!("{refused} requests: {} KiB", grown >> 10);
    assert!(grown < GROWTH_BYTES, "{} MiB for {refused} requests", grown >> 20);
    works(&client).await;
}

async fn works(client: &Client) {
    let held = client.pull_one("mail").await;
    client.ack(&held.receipt).await;
}
