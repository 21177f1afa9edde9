//! Messages that are large, or newer than the worker.

use prost::encoding::{WireType, encode_key, encode_varint};
use ringq::pb::SettleError;

use super::super::answers::Answer;
use super::super::call::Method;
use super::super::handle::{Gym, secs};
use super::super::jobs::{job, unix_seconds};
use super::super::record::{Check, Log};
use super::super::scenario::{Kind, Scenario};

/// Number of a field that no contract has.
const UNKNOWN_FIELD: u32 = 1_999;
/// Value that no enumeration has.
const UNKNOWN_VALUE: i32 = 77;
/// Size of a payload.
const MEBIBYTE: usize = 1 << 20;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "large_payloads",
        is_essential: false,
        text: [
            "A payload of 1 MiB comes alone, then eight of them in one message of 8 MiB.",
            "The worker takes messages above the 4 MiB that libraries allow by default, and acks all.",
        ],
        kind: Kind::Worker(&[("RINGQ_LEASE", "10")]),
        play: |gym| Box::pin(large_payloads(gym)),
    },
    Scenario {
        name: "unknown_fields",
        is_essential: false,
        text: [
            "Messages have fields, reasons of revocations and errors of settles that the worker does not know.",
            "An unknown error is final, the rest is ignored; a revocation of an unknown receipt stops nothing.",
        ],
        kind: Kind::Worker(&[]),
        play: |gym| Box::pin(unknown_fields(gym)),
    },
];

async fn large_payloads(gym: Gym) -> Check<()> {
    let stream = gym.source().await?;
    stream.info()?;
    let start = r#"{"steps":1,"step_ms":1,"pad":""#;
    let pad = "x".repeat(MEBIBYTE - start.len() - 2);
    let large = |id: &str| job(id).text(format!(r#"{start}{pad}"}}"#));
    stream.deliver([large("one")])?;
    gym.expect_acked(10.0, &["one"]).await?;
    let ids = ["a", "b", "c", "d", "e", "f", "g", "h"];
    stream.deliver(ids.map(large))?;
    gym.expect_acked(12.0, &ids).await?;
    gym.check("the stream has not ended", stream.ended_at().is_none())?;
    gym.check("each job runs once", gym.ledger().len() == 9)
}

/// Encodes unknown fields: a text and a number.
fn unknown() -> Vec<u8> {
    let mut fields = Vec::new();
    encode_key(UNKNOWN_FIELD, WireType::LengthDelimited, &mut fields);
    encode_varint(5, &mut fields);
    fields.extend_from_slice(b"later");
    encode_key(UNKNOWN_FIELD + 1, WireType::Varint, &mut fields);
    encode_varint(7, &mut fields);
    fields
}

async fn unknown_fields(gym: Gym) -> Check<()> {
    // The error exists; the contract of an older worker may lack it.
    gym.answer(Method::Ack, |call| match call.item("b") {
        Some(_) => Answer::Items(vec![("b", SettleError::Unspecified)]),
        None => Answer::Normal,
    });
    let stream = gym.source().await?;
    stream.info_at(unix_seconds(), &unknown())?;
    stream.raw(unknown())?;
    stream.deliver([job("a").steps(2, 300).unknown(unknown())])?;
    let receipt = gym.read(|log| log.delivered.get("a").map(|(_, it)| it.receipt.clone()));
    gym.check("the gym has delivered a", receipt.is_some())?;
    stream.revoke_receipt("of-another-worker", UNKNOWN_VALUE)?;
    gym.expect_acked(5.0, &["a"]).await?;
    stream.deliver([job("b")])?;
    let tried = |log: &Log| !log.items(Method::Ack, "b").is_empty();
    gym.expect(5.0, "b is acked", tried).await?;
    gym.lose("b");
    stream.deliver([job("c")])?;
    gym.expect_acked(5.0, &["c"]).await?;
    let few = |log: &Log| log.settles("b") <= 2;
    let until = gym.now() + secs(1.5);
    gym.holds(until, "an unknown error of an Ack is not repeated in a storm", few).await?;
    let streams = gym.read(|log| log.calls(Method::Stream).len());
    gym.check("the stream has not ended", streams == 1)
}
