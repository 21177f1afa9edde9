//! Servers that are away, or refuse streams.

use std::time::Duration;

use tonic::Code;

use super::super::answers::error;
use super::super::call::Method;
use super::super::handle::{Gym, secs};
use super::super::jobs::job;
use super::super::record::{Check, Log};
use super::super::scenario::{Kind, Scenario};
use super::super::server::PortMode;
use super::super::source::pause;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "server_away",
        is_essential: false,
        text: [
            "The port is closed for 4 s, then accepts and drops connections for 6 s, then serves again.",
            "Attempts come at least every 5 s and fewer than 40 times in 5 s; a stream is there within 6 s.",
        ],
        kind: Kind::Worker(&[("RINGQ_LEASE", "30")]),
        play: |gym| Box::pin(server_away(gym)),
    },
    Scenario {
        name: "stream_refused",
        is_essential: false,
        text: [
            "Two streams are refused, with DRAINING and TOO_MANY_STREAMS and a RetryInfo of 0.6 s each.",
            "The worker waits at least that long each time, and extends nothing: it holds no jobs.",
        ],
        kind: Kind::Worker(&[]),
        play: |gym| Box::pin(stream_refused(gym)),
    },
    Scenario {
        name: "rights_come_back",
        is_essential: false,
        text: [
            "Streams are refused with UNAUTHENTICATED and PERMISSION_DENIED until an operator mends the rights.",
            "The worker is still there, has logged the reason, and has not called in a storm.",
        ],
        kind: Kind::Worker(&[]),
        play: |gym| Box::pin(rights_come_back(gym)),
    },
];

async fn server_away(gym: Gym) -> Check<()> {
    let stream = gym.source().await?;
    stream.info()?;
    stream.deliver([job("a").steps(1, 1_000)])?;
    pause(0.3).await;
    gym.close_port().await;
    pause(4.0).await;
    gym.open_port(PortMode::Drop).await?;
    let from = gym.now();
    pause(6.0).await;
    let (mut attempts, to) = (gym.read(|log| log.connects.clone()), gym.now());
    attempts.retain(|at| *at >= from && *at <= to);
    let most = attempts.iter().map(|at| {
        attempts.iter().filter(|other| **other >= *at && **other < *at + secs(5.0)).count()
    });
    let most = most.max().unwrap_or_default();
    gym.check(format!("fewer than 40 attempts come in 5 s, not {most}"), most < 40)?;
    let ends = attempts.iter().copied().chain([to]);
    let gaps = [from].into_iter().chain(attempts.iter().copied()).zip(ends);
    let longest = gaps.map(|(from, to)| to.saturating_sub(from)).max().unwrap_or_default();
    let sentence = format!("attempts come at least every 5 s, not after {longest:?}");
    gym.check(sentence, longest <= secs(5.8))?;
    gym.open_port(PortMode::Serve).await?;
    let next = gym.stream(6.0).await?;
    next.info()?;
    next.deliver([job("b")])?;
    gym.expect_acked(12.0, &["a", "b"]).await?;
    gym.check("each job runs once", gym.done("a") == 1 && gym.done("b") == 1)
}

async fn stream_refused(gym: Gym) -> Check<()> {
    gym.refuse(|number| match number {
        1 => Some(error(Code::Unavailable, "DRAINING", Some(0.6))),
        2 => Some(error(Code::ResourceExhausted, "TOO_MANY_STREAMS", Some(0.6))),
        _ => None,
    });
    let stream = gym.source().await?;
    let times: Vec<Duration> =
        gym.read(|log| log.calls(Method::Stream).iter().map(|call| call.at).collect());
    let pauses: Vec<_> = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    let sentence = format!("each pause is at least the RetryInfo of 0.6 s: {pauses:?}");
    gym.check(sentence, pauses.iter().all(|pause| *pause >= secs(0.58)))?;
    let sentence = format!("each pause is at most 4 s: {pauses:?}");
    gym.check(sentence, pauses.iter().all(|pause| *pause <= secs(4.0)))?;
    let extends = gym.read(|log| log.calls(Method::Extend).len());
    gym.check("nothing is extended without a job", extends == 0)?;
    stream.info()?;
    stream.deliver([job("a")])?;
    gym.expect_acked(5.0, &["a"]).await
}

async fn rights_come_back(gym: Gym) -> Check<()> {
    gym.refuse(|number| match number {
        1 => Some(error(Code::Unauthenticated, "UNAUTHENTICATED", None)),
        2 => Some(error(Code::PermissionDenied, "PERMISSION_DENIED", None)),
        _ => None,
    });
    let refused = |log: &Log| !log.calls(Method::Stream).is_empty();
    gym.expect(30.0, "the worker asks for jobs", refused).await?;
    // Two pauses of up to 5 s.
    let stream = gym.stream(15.0).await?;
    let logged = |log: &Log| {
        let reasons = ["UNAUTHENTICATED", "PERMISSION_DENIED"];
        let has = |reason: &str| {
            let plain = reason.to_lowercase().replace('_', "");
            let in_line =
                |line: &String| line.to_lowercase().replace(['_', ' '], "").contains(&plain);
            log.stderr.iter().any(in_line)
        };
        reasons.iter().all(|reason| has(reason))
    };
    gym.expect(2.0, "the log names UNAUTHENTICATED and PERMISSION_DENIED", logged).await?;
    stream.info()?;
    stream.deliver([job("a")])?;
    gym.expect_acked(5.0, &["a"]).await?;
    let times: Vec<Duration> =
        gym.read(|log| log.calls(Method::Stream).iter().map(|call| call.at).collect());
    let whole = times[2].saturating_sub(times[0]);
    let sentence = format!("two refusals take more than 0.3 s, not {whole:?}");
    gym.check(sentence, whole > secs(0.3))
}
