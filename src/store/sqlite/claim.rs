//! Claim: leases ready jobs to the streams, in the order of each topic, within their credit and the limits of one
//! call.

use crate::domain::Time;
use crate::store::{
    Claim, ClaimResult, LeasedJob, TopicDemand, TopicLeases, TopicRemainder, codec,
};

use super::claim_lanes::claim_from_lanes;
use super::claim_order::take_jobs;
use super::claim_session::{ClaimSession, StreamRotation};
use super::error_mapping::SqliteResult;
use super::lanes::TopicRef;
use super::transaction::{TopicLanes, WriteTransaction};

/// [`Store::claim`](crate::store::Store::claim).
pub(super) fn claim(
    session: &mut WriteTransaction<'_>,
    claim: &Claim,
) -> SqliteResult<ClaimResult> {
    let now = session.now;
    let mut call = ClaimSession::new(session, claim);
    let topics = claim.topics.iter().map(|ask| claim_topic(&mut call, ask));
    Ok(ClaimResult { topics: topics.collect::<SqliteResult<_>>()?, now })
}

fn claim_topic(call: &mut ClaimSession<'_, '_>, ask: &TopicDemand) -> SqliteResult<TopicLeases> {
    let mut leased: Vec<Vec<LeasedJob>> = ask.streams.iter().map(|_| Vec::new()).collect();
    let Some(topic) = call.session.topic(&ask.topic)? else {
        return Ok(TopicLeases { by_stream: leased, remainder: TopicRemainder::Empty });
    };
    if let Some(until) = call.session.closed_until(&ask.topic) {
        let remainder = match until {
            Time::MAX => TopicRemainder::Empty,
            until => TopicRemainder::ReadyAt(until),
        };
        return Ok(TopicLeases { by_stream: leased, remainder });
    }
    let mut round = StreamRotation::new(&ask.streams);
    let topic = TopicRef { key: topic, name: &ask.topic };
    let has_lanes = call.session.lanes(&ask.topic).is_some_and(TopicLanes::matter);
    let rest = if has_lanes {
        claim_from_lanes(call, topic, ask.ageing, round, &mut leased)?
    } else {
        let ClaimSession { session, budget, .. } = call;
        let mut taken = Vec::new();
        let rest = take_jobs(session, topic, ask.ageing, &mut round, budget, &mut taken)?;
        call.lease(taken, &ask.streams, &mut leased)?;
        rest
    };
    Ok(TopicLeases { by_stream: leased, remainder: rest })
}

/// Decodes the payloads that [`claim`] left encoded. A job whose payload or checkpoint is damaged is dropped from the
/// result: its leases expire until it becomes a dead letter. The other jobs of the claim go on.
pub(super) fn decode_payloads(mut claims: ClaimResult) -> ClaimResult {
    for leased in claims.topics.iter_mut().flat_map(|topic| &mut topic.by_stream) {
        leased.retain_mut(|job| {
            for part in [&mut job.spec.payload, &mut job.checkpoint] {
                let Some(encoded) = part.take() else { continue };
                match codec::decode_payload(encoded.body) {
                    Ok(decoded) => *part = Some(decoded),
                    Err(error) => {
                        tracing::error!(job = %job.key, %error, "job is damaged and not delivered");
                        return false;
                    }
                }
            }
            true
        });
    }
    claims
}
