//! Data about the server: its build, its clock, its own numbers.

use tonic::Code;

use super::clocks;
use crate::cli::connect::ServerConnection;
use crate::cli::exit::CommandFailure;
use crate::client::{Client, Error};
use crate::pb;

/// Round trips to compare the clocks; the fastest one is used.
const PROBES: usize = 8;

/// Server under test, at the start of the run.
#[derive(Clone, Debug)]
pub(super) struct BenchServer {
    pub(super) url: String,
    pub(super) info: pb::GetServerInfoResponse,
    pub(super) clock: ServerClock,
}

/// Difference of the server's wall clock to this machine's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerClock {
    /// Time of the server less that of this machine, in microseconds.
    pub(super) offset_us: i64,
    /// Largest error of the offset. 0 if both read the same clock.
    pub(super) uncertainty_us: i64,
}

/// Numbers of the server about the topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BenchTopicStats {
    /// Jobs enqueued since the topic was created.
    pub(super) enqueued: i64,
    /// Jobs that succeeded since then.
    pub(super) succeeded: i64,
    /// Jobs that exist and are not finished.
    pub(super) unfinished: i64,
}

// === impl BenchServer ===

impl BenchServer {
    /// Reads the server's data; makes every connection before anything is timed.
    pub(super) async fn fetch(
        clients: &[Client],
        connection: &ServerConnection,
    ) -> Result<BenchServer, CommandFailure> {
        let mut probes = Vec::with_capacity(PROBES);
        for client in clients.iter().cycle().take(PROBES.max(clients.len())) {
            probes.push(probe_clock(client, connection).await?);
        }
        let clock = probes.iter().map(|(clock, _)| *clock).min_by_key(|clock| clock.uncertainty_us);
        let url = connection.client().url().to_owned();
        let clock = clock.unwrap_or_default().trust_loopback(is_loopback(&url));
        let info = probes.pop().map(|(_, info)| info).unwrap_or_default();
        Ok(BenchServer { url, info, clock })
    }
}

async fn probe_clock(
    client: &Client,
    connection: &ServerConnection,
) -> Result<(ServerClock, pb::GetServerInfoResponse), CommandFailure> {
    let request = connection.request(pb::GetServerInfoRequest {});
    let (start, start_us) = (clocks::now(), clocks::wall_us());
    let info = connection.call("cannot measure", client.admin().get_server_info(request)).await?;
    let trip_us = i64::try_from(clocks::micros(start.elapsed())).unwrap_or(i64::MAX);
    let theirs_us = info
        .server_time
        .map_or(start_us, |time| time.seconds * 1_000_000 + i64::from(time.nanos) / 1000);
    let offset_us = theirs_us - start_us - trip_us / 2;
    Ok((ServerClock { offset_us, uncertainty_us: trip_us / 2 + 1 }, info))
}

// === impl ServerClock ===

impl ServerClock {
    /// Returns an exact offset of 0 for a server on this machine: both read the same clock, and one microsecond early
    /// is early. A loopback address can also be a tunnel, so the measured offset must agree.
    fn trust_loopback(self, loopback: bool) -> ServerClock {
        let agree = self.offset_us.abs() <= self.uncertainty_us;
        if loopback && agree { ServerClock::default() } else { self }
    }

    /// Returns whether both sides read the same clock.
    pub(super) fn is_shared(&self) -> bool {
        *self == ServerClock::default()
    }

    /// Returns the time of the server, in microseconds.
    pub(super) fn now_us(&self) -> i64 {
        clocks::wall_us() + self.offset_us
    }

    /// Returns whether a delivery with this lateness was certainly early.
    pub(super) fn is_early(&self, late_us: i64) -> bool {
        late_us < -self.uncertainty_us
    }
}

/// Returns whether the server, or each of several separated by commas, is on this machine.
fn is_loopback(urls: &str) -> bool {
    urls.split(", ").all(|url| {
        let host = url.split_once("://").map_or(url, |(_, rest)| rest);
        ["127.", "localhost", "[::1]"].iter().any(|name| host.starts_with(name))
    })
}

// === impl BenchTopicStats ===

impl BenchTopicStats {
    /// Reads the numbers of a topic; all are 0 if it does not exist yet.
    pub(super) async fn fetch(
        connection: &ServerConnection,
        topic: &str,
    ) -> Result<BenchTopicStats, Error> {
        let mut topics = connection.client().topics();
        let request = connection.request(pb::GetTopicStatsRequest { name: topic.to_owned() });
        let stats = match connection.try_call(topics.get_topic_stats(request)).await {
            Ok(answer) => answer.stats.unwrap_or_default(),
            Err(error) if error.code() == Code::NotFound => return Ok(BenchTopicStats::default()),
            Err(error) => return Err(error),
        };
        Ok(BenchTopicStats {
            enqueued: stats.enqueued_total,
            succeeded: stats.succeeded_total,
            unfinished: stats.scheduled + stats.ready + stats.running + stats.backoff + stats.dead,
        })
    }

    /// Returns the change since `before`.
    pub(super) fn since(self, before: BenchTopicStats) -> BenchTopicStats {
        BenchTopicStats {
            enqueued: self.enqueued - before.enqueued,
            succeeded: self.succeeded - before.succeeded,
            unfinished: self.unfinished - before.unfinished,
        }
    }
}

/// Converts microseconds to a timestamp of the API.
pub(super) fn timestamp(us: i64) -> prost_types::Timestamp {
    let nanos = i32::try_from(us.rem_euclid(1_000_000) * 1000).unwrap_or_default();
    prost_types::Timestamp { seconds: us.div_euclid(1_000_000), nanos }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_of_one_machine_are_one() {
        let near = ServerClock { offset_us: -90, uncertainty_us: 100 };
        assert!(near.trust_loopback(true).is_shared());
        assert_eq!(near.trust_loopback(false), near);
        let far = ServerClock { offset_us: 5000, uncertainty_us: 100 };
        assert_eq!(far.trust_loopback(true), far, "a tunnel");
        for url in ["http://127.0.0.1:7700, http://[::1]:1", "https://localhost:1"] {
            assert!(is_loopback(url), "{url}");
        }
        assert!(!is_loopback("http://10.127.0.1:7700"));
        assert!(!is_loopback("http://127.0.0.1:7700, http://10.0.0.1:7700"));
    }

    #[test]
    fn a_delivery_within_clock_uncertainty_is_not_early() {
        assert!(ServerClock::default().is_early(-1) && !ServerClock::default().is_early(0));
        let apart = ServerClock { offset_us: 5000, uncertainty_us: 100 };
        assert!(apart.is_early(-101) && !apart.is_early(-100));
    }

    #[test]
    fn times_keep_their_microseconds() {
        let time = timestamp(1_234_567);
        assert_eq!((time.seconds, time.nanos), (1, 234_567_000));
    }
}
