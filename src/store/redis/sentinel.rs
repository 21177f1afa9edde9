//! Queries sentinels: the primary's address, and events of a failover.
//!
//! redis-rs's `SentinelClient` takes the primary that the first sentinel names, though a sentinel that was cut off
//! names the old one, and it follows no events, though the old primary takes writes for seconds after its replica was
//! promoted. deadpool-redis's manager for it takes neither a response timeout nor a push handler. So here a majority
//! decides, and events are followed.

use std::cmp::Reverse;
use std::time::Duration;

use deadpool_redis::redis::{self, RedisError};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;

use super::route::{self, RedisRoute};
use super::subscription::RedisSubscription;
use super::url::{RedisEndpoint, RedisHost};
use super::{RedisOpenError, error_mapping};

/// Time for which the old primary is avoided: a failover takes seconds, its events as many to reach all sentinels,
/// and they reconfigure the old primary, if it is running, 8 s later.
const DEMOTED_FOR: Duration = Duration::from_secs(10);
/// Channel on which a sentinel reports that another Redis has become a primary.
const SWITCHED: &str = "+switch-master";
/// Channel on which the leader of a failover reports that it is about to choose the next primary.
const FAILOVER_STARTED: &str = "+failover-state-select-slave";
/// Channels that report that the old primary stays.
const ABORTED: &str = "-failover-abort-*";

/// Hosts that sentinels name as the primary.
pub(super) struct PrimaryVotes {
    /// Hosts by the number of votes, most first; at least one.
    pub(super) hosts: Vec<RedisHost>,
    /// More than half of all sentinels named the only host.
    pub(super) is_majority: bool,
}

// === impl RedisRoute: queries ===

impl RedisRoute {
    /// Queries all sentinels for the primary. An answer of more than half of them is used at once; otherwise all
    /// answers are tried by the number of votes. A former primary gets no votes.
    pub(super) async fn find_primary(
        &self,
        sentinels: &[RedisHost],
        primary: &str,
    ) -> Result<PrimaryVotes, RedisOpenError> {
        let answers = sentinels.iter().map(|sentinel| self.query_sentinel(sentinel, primary));
        let mut answers: FuturesUnordered<_> = answers.collect();
        let (mut votes, mut failure): (Vec<(RedisHost, usize)>, _) = (Vec::new(), None);
        while let Some(answer) = answers.next().await {
            let host = match answer {
                Ok(host) => host,
                Err(error) => {
                    failure = Some(RedisOpenError::prefer_transient(failure, error));
                    continue;
                }
            };
            let at = votes.iter().position(|(known, _)| *known == host).unwrap_or(votes.len());
            if at == votes.len() {
                votes.push((host, 0));
            }
            votes[at].1 += 1;
            if votes[at].1 * 2 > sentinels.len() {
                let hosts = vec![votes.swap_remove(at).0];
                return Ok(PrimaryVotes { hosts, is_majority: true });
            }
        }
        votes.sort_by_key(|(_, count)| Reverse(*count));
        match failure.filter(|_| votes.is_empty()) {
            Some(failure) => Err(failure),
            None => {
                let hosts = votes.into_iter().map(|(host, _)| host).collect();
                Ok(PrimaryVotes { hosts, is_majority: false })
            }
        }
    }

    async fn query_sentinel(
        &self,
        sentinel: &RedisHost,
        primary: &str,
    ) -> Result<RedisHost, RedisOpenError> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(primary);
        let asked = async {
            route::query_once::<Option<(String, u16)>>(self.sentinel(sentinel)?, &question).await
        };
        let text = match asked.await {
            Ok(Some((name, port))) => {
                let host = RedisHost { name: error_mapping::one_line(&name), port };
                if !self.is_demoted(&host) {
                    return Ok(host);
                }
                format!("{host} is no longer the primary, the next one is not known yet")
            }
            Ok(None) => format!(
                "sentinel {sentinel} watches no primary called {primary}; check that name in the url"
            ),
            Err(error) if error.to_string().contains("unknown command") => {
                return Err(RedisOpenError::NotSentinel(sentinel.to_string()));
            }
            Err(error) if route::has_no_tls(&error, &self.addr(sentinel)).await => {
                return Err(RedisOpenError::NoTls);
            }
            Err(error) => {
                let is_login = error_mapping::is_login_error(&error);
                let hint =
                    if is_login { "; check sentinel_user and sentinel_password" } else { "" };
                format!(
                    "sentinel {sentinel} does not answer the query: {}{hint}",
                    error_mapping::text(&error)
                )
            }
        };
        Err(RedisOpenError::Unreachable(text))
    }

    /// Returns whether the host was the primary until a moment ago: other sentinels may still name it.
    fn is_demoted(&self, host: &RedisHost) -> bool {
        let demoted = self.demoted.lock();
        demoted.as_ref().is_some_and(|(old, at)| old == host && at.elapsed() < DEMOTED_FOR)
    }
}

// === impl RedisRoute: events ===

impl RedisRoute {
    /// Follows the events of one sentinel until the subscription ends; returns whether there was one. `demote` is
    /// called with a primary that is replaced or about to be: it takes writes for seconds after its replica was
    /// promoted, and they are lost.
    ///
    /// A single subscription has both the beginning and the end of a failover: without another Redis to take over they
    /// follow each other within a tenth of a second, and without the end a primary that stays is avoided for
    /// [`DEMOTED_FOR`].
    pub(super) async fn follow_events(&self, nth: usize, demote: impl Fn(&RedisHost)) -> bool {
        let RedisEndpoint::Sentinel { sentinels, primary } = &self.address.endpoint else {
            return false;
        };
        let Ok(mut events) = self.subscribe(&sentinels[nth]).await else { return false };
        let mut leads = false;
        while let Ok(message) = events.next().await {
            let channel = message.get_channel_name();
            let Some(old) = old_primary(channel, message.get_payload_bytes(), primary) else {
                continue;
            };
            let led = std::mem::replace(&mut leads, channel == FAILOVER_STARTED);
            if [FAILOVER_STARTED, SWITCHED].contains(&channel) {
                *self.demoted.lock() = Some((old.clone(), Instant::now()));
                demote(&old);
            } else if led {
                // A sentinel that was not elected aborts, too, while another one continues.
                *self.demoted.lock() = None;
            }
        }
        true
    }

    async fn subscribe(&self, sentinel: &RedisHost) -> Result<RedisSubscription, RedisError> {
        RedisSubscription::begin(
            self.sentinel(sentinel)?,
            &[SWITCHED, FAILOVER_STARTED],
            &[ABORTED],
        )
        .await
    }
}

/// Returns the old primary of a failover event, if the event is about the primary of that name.
fn old_primary(channel: &str, text: &[u8], primary: &str) -> Option<RedisHost> {
    let mut words = std::str::from_utf8(text).ok()?.split(' ');
    // `<name> <old ip> <old port> <new ip> <new port>`, or `master <name> <ip> <port>`.
    if channel != SWITCHED && words.next()? != "master" {
        return None;
    }
    let (name, host, port) = (words.next()?, words.next()?, words.next()?);
    let host = RedisHost { name: error_mapping::one_line(host), port: port.parse().ok()? };
    (name == primary).then_some(host)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::store::redis::address::RedisAddress;

    #[test]
    fn events_of_a_failover_are_parsed() {
        let old = Some(RedisHost { name: "10.0.0.1".into(), port: 6379 });
        for (channel, text, want) in [
            (SWITCHED, "main 10.0.0.1 6379 10.0.0.2 6380", &old),
            (FAILOVER_STARTED, "master main 10.0.0.1 6379", &old),
            ("-failover-abort-no-good-slave", "master main 10.0.0.1 6379", &old),
            (SWITCHED, "other 10.0.0.1 6379 10.0.0.2 6380", &None),
            (FAILOVER_STARTED, "main", &None),
        ] {
            assert_eq!(old_primary(channel, text.as_bytes(), "main"), *want, "{channel} {text}");
        }
    }

    /// Replies to a subscriber as a sentinel does, then sends all events at once and closes the connection.
    async fn a_sentinel(listener: TcpListener, events: &str) {
        let (mut socket, _) = listener.accept().await.unwrap();
        let (mut request, mut answered) = (String::new(), 0);
        while !request.contains("PSUBSCRIBE") {
            let mut bytes = [0; 1024];
            let length = socket.read(&mut bytes).await.unwrap();
            assert!(length > 0, "it closed after {request}");
            request.push_str(std::str::from_utf8(&bytes[..length]).unwrap());
            for line in request[std::mem::replace(&mut answered, request.len())..].lines() {
                let answer = match line {
                    "CLIENT" => "+OK\r\n".to_owned(),
                    SWITCHED | FAILOVER_STARTED => {
                        format!("*3\r\n$9\r\nsubscribe\r\n{}:1\r\n", bulk(line))
                    }
                    ABORTED => format!("*3\r\n$10\r\npsubscribe\r\n{}:3\r\n", bulk(line)),
                    _ => continue,
                };
                socket.write_all(answer.as_bytes()).await.unwrap();
            }
        }
        socket.write_all(events.as_bytes()).await.unwrap();
    }

    fn bulk(text: &str) -> String {
        format!("${}\r\n{text}\r\n", text.len())
    }

    /// Returns whether the primary is avoided after these events, and how often it was reported as demoted.
    async fn after(events: &[&str], avoided: bool) -> (bool, u32) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis+sentinel://{}/main", listener.local_addr().unwrap());
        let route = RedisRoute::try_new(RedisAddress::try_new(&url).unwrap()).unwrap();
        let primary = RedisHost { name: "h".to_owned(), port: 6379 };
        *route.demoted.lock() = avoided.then(|| (primary.clone(), Instant::now()));
        let demoted = Cell::new(0);
        let demote = |_: &RedisHost| demoted.set(demoted.get() + 1);
        let events = events.concat();
        let followed = route.follow_events(0, demote);
        let (was_subscribed, ()) = tokio::join!(followed, a_sentinel(listener, &events));
        assert!(was_subscribed);
        (route.is_demoted(&primary), demoted.get())
    }

    #[tokio::test]
    async fn an_event_right_after_the_beginning_of_a_failover_is_handled() {
        let subject = bulk("master main h 6379");
        let begins = &format!("*3\r\n{}{}{subject}", bulk("message"), bulk(FAILOVER_STARTED));
        let switched = bulk("main h 6379 i 6379");
        let switched = &format!("*3\r\n{}{}{switched}", bulk("message"), bulk(SWITCHED));
        let aborted = |why| {
            let channel = bulk(&format!("-failover-abort-{why}"));
            format!("*4\r\n{}{}{channel}{subject}", bulk("pmessage"), bulk(ABORTED))
        };
        let no_replica = &aborted("no-good-slave");
        assert_eq!(after(&[begins], false).await, (true, 1));
        assert_eq!(after(&[begins, switched], false).await, (true, 2));
        assert_eq!(after(&[switched, no_replica], false).await, (true, 1));
        assert_eq!(after(&[begins, no_replica], false).await, (false, 1));
        assert_eq!(after(&[begins, no_replica, begins], false).await, (true, 2));
        let others = after(&[&aborted("not-elected")], true).await;
        assert_eq!(
            others,
            (true, 0),
            "a sentinel that was not elected ends no failover of another"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_former_primary_is_avoided_until_all_sentinels_know() {
        let url = "redis+sentinel://h/main";
        let route = RedisRoute::try_new(RedisAddress::try_new(url).unwrap()).unwrap();
        let host = |name: &str| RedisHost { name: name.to_owned(), port: 6379 };
        assert!(!route.is_demoted(&host("a")));
        *route.demoted.lock() = Some((host("a"), Instant::now()));
        assert!(route.is_demoted(&host("a")) && !route.is_demoted(&host("b")));
        tokio::time::advance(DEMOTED_FOR).await;
        assert!(!route.is_demoted(&host("a")));
    }
}
