//! What sentinels know: who the primary is, and that another one becomes it. The rest of the way is the
//! business of [`super::route`].

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_redis::redis::aio::PubSub;
use deadpool_redis::redis::{
    self, AsyncConnectionConfig, Client, Cmd, ConnectionInfo, FromRedisValue, RedisConnectionInfo,
    RedisError,
};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;

use super::route::{Route, answers_plainly};
use super::url::{Endpoint, Host};
use super::{OpenError, check, fault};

/// How long a sentinel may take to answer, and to connect before that.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// How often a silent sentinel is asked whether it is there.
const PING_EVERY: Duration = Duration::from_secs(5);
/// How long the old primary is avoided: a failover takes seconds, its news as many to all sentinels, and the
/// old primary, if it lives, is told 8 s later.
const NEWS_SPREAD: Duration = Duration::from_secs(10);
/// Where a sentinel says that another Redis became a primary.
const SWITCHED: &str = "+switch-master";
/// Where the one that leads a failover says that it chooses the next primary.
const BEGINS: &str = "+failover-state-select-slave";
/// Where it says that the old one stays.
const ABORTED: &str = "-failover-abort-*";

/// What a sentinel said.
#[derive(Debug, PartialEq, Eq)]
enum News {
    /// That one is about to be the primary no more: this sentinel leads a failover.
    Begins(Host),
    /// That one is the primary no more.
    Switched(Host),
    /// A failover that this sentinel led, or wished to lead, is given up.
    Aborted,
}

// === impl Route: questions ===

impl Route {
    /// Asks all sentinels for the primary. What more than half of them say is taken at once; else what
    /// was said comes by how many said it: one that was cut off may still name the old primary.
    pub(super) async fn ask(
        &self,
        sentinels: &[Host],
        primary: &str,
        login: &RedisConnectionInfo,
    ) -> Result<Vec<Host>, OpenError> {
        let mut answers = FuturesUnordered::new();
        for sentinel in sentinels {
            answers.push(self.ask_one(sentinel, primary, login));
        }
        let (mut said, mut failure): (Vec<(Host, usize)>, _) = (Vec::new(), None);
        while let Some(answer) = answers.next().await {
            let host = match answer {
                Ok(host) if self.is_old_news(&host) => {
                    let text =
                        format!("{host} is the primary no more, the next one is not known yet");
                    failure = Some(OpenError::Unreachable(text));
                    continue;
                }
                Ok(host) => host,
                Err(error) => {
                    failure = Some(OpenError::likelier(failure, error));
                    continue;
                }
            };
            let at = said.iter().position(|(known, _)| *known == host);
            let at = at.unwrap_or_else(|| {
                said.push((host, 0));
                said.len() - 1
            });
            said[at].1 += 1;
            if said[at].1 * 2 > sentinels.len() {
                return Ok(vec![said.swap_remove(at).0]);
            }
        }
        said.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
        match failure.filter(|_| said.is_empty()) {
            Some(failure) => Err(failure),
            None => Ok(said.into_iter().map(|(host, _)| host).collect()),
        }
    }

    /// Whether that was the primary until a moment ago: the other sentinels may not have heard.
    fn is_old_news(&self, host: &Host) -> bool {
        let demoted = self.demoted();
        demoted.as_ref().is_some_and(|(old, at)| old == host && at.elapsed() < NEWS_SPREAD)
    }

    fn demoted(&self) -> MutexGuard<'_, Option<(Host, Instant)>> {
        self.demoted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask_one(
        &self,
        sentinel: &Host,
        primary: &str,
        login: &RedisConnectionInfo,
    ) -> Result<Host, OpenError> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(primary);
        let asked = async {
            let way = self.way(self.to_host(sentinel), login)?;
            ask_once::<Option<(String, u16)>>(way, &question).await
        };
        match asked.await {
            Ok(Some((name, port))) => Ok(Host { name: fault::plain(&name), port }),
            Ok(None) => {
                let text = format!(
                    "sentinel {sentinel} watches no primary called {primary}; check that name in the url"
                );
                Err(OpenError::Unreachable(text))
            }
            Err(error) => Err(self.of_asking(sentinel, &error).await),
        }
    }

    /// Why a sentinel does not say who the primary is.
    async fn of_asking(&self, sentinel: &Host, error: &RedisError) -> OpenError {
        if error.to_string().contains("unknown command") {
            return OpenError::NoSentinel(sentinel.to_string());
        }
        let is_silent = error.is_timeout();
        if fault::is_plain(error) || is_silent && answers_plainly(&self.to_host(sentinel)).await {
            return OpenError::NoTls;
        }
        let login = match fault::is_of_login(error) {
            true => "; check sentinel_user and sentinel_password",
            false => "",
        };
        let text = fault::text(error);
        OpenError::Unreachable(format!("sentinel {sentinel} does not help: {text}{login}"))
    }
}

/// Whether it is a sentinel that has `refused` a connection by this way: one has no databases, and users of its own.
pub(super) async fn is_sentinel(way: &ConnectionInfo, refused: &OpenError) -> bool {
    let login = match refused {
        OpenError::Database { .. } => way.redis_settings().clone().set_db(0),
        OpenError::Login => RedisConnectionInfo::default(),
        _ => return false,
    };
    let way = way.clone().set_redis_settings(login);
    let info = ask_once::<String>(way, redis::cmd("INFO").arg("server")).await;
    info.is_ok_and(|info| check::is_sentinel(&info))
}

/// Asks on a connection that is made for that.
async fn ask_once<T: FromRedisValue>(way: ConnectionInfo, question: &Cmd) -> Result<T, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(ANSWER_MAX))
        .set_response_timeout(Some(ANSWER_MAX));
    let client = Client::open(way)?;
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    question.query_async(&mut connection).await
}

// === impl Route: news ===

impl Route {
    /// Listens to one of the sentinels for as long as it can be heard; whether it could be at all. `leave` is
    /// told who is the primary no more, or is about to be none: it takes writes for seconds after its replica
    /// was promoted, and they are lost.
    ///
    /// One subscription hears both that a failover begins and that it is given up: without another Redis to
    /// take over the one follows the other within a tenth of a second, and who misses the second avoids for
    /// [`NEWS_SPREAD`] a primary that stays.
    pub(super) async fn news(&self, nth: usize, leave: impl Fn(&Host)) -> bool {
        let Endpoint::Sentinel { sentinels, primary, login } = &self.address.endpoint else {
            return false;
        };
        let Ok(subscription) = self.listen(&sentinels[nth], login).await else { return false };
        let (mut sink, mut messages) = subscription.split();
        let mut leads = false;
        loop {
            match tokio::time::timeout(PING_EVERY, messages.next()).await {
                Ok(Some(message)) => {
                    let (channel, text) = (message.get_channel_name(), message.get_payload_bytes());
                    let Some(news) = news(channel, text, primary) else { continue };
                    let led = std::mem::replace(&mut leads, matches!(news, News::Begins(_)));
                    match news {
                        News::Begins(old) | News::Switched(old) => {
                            *self.demoted() = Some((old.clone(), Instant::now()));
                            leave(&old);
                        }
                        // Who was not elected gives up, too, while another one goes on.
                        News::Aborted if led => *self.demoted() = None,
                        News::Aborted => {}
                    }
                }
                Ok(None) => return true,
                Err(_silence) => {
                    let pong = tokio::time::timeout(ANSWER_MAX, sink.ping::<redis::Value>()).await;
                    if !matches!(pong, Ok(Ok(_))) {
                        return true;
                    }
                }
            }
        }
    }

    async fn listen(
        &self,
        sentinel: &Host,
        login: &RedisConnectionInfo,
    ) -> Result<PubSub, RedisError> {
        let subscribe = async {
            let client = Client::open(self.way(self.to_host(sentinel), login)?)?;
            let mut subscription = client.get_async_pubsub().await?;
            subscription.subscribe(&[SWITCHED, BEGINS][..]).await?;
            subscription.psubscribe(ABORTED).await?;
            Ok(subscription)
        };
        let in_time = tokio::time::timeout(2 * ANSWER_MAX, subscribe).await;
        in_time.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
    }
}

/// What a message of a sentinel means for the primary of that name.
fn news(channel: &str, text: &[u8], primary: &str) -> Option<News> {
    let mut words = std::str::from_utf8(text).ok()?.split(' ');
    // `<name> <old ip> <old port> <new ip> <new port>`, or `master <name> <ip> <port>`.
    if channel != SWITCHED && words.next()? != "master" {
        return None;
    }
    let (name, host, port) = (words.next()?, words.next()?, words.next()?);
    let host = Host { name: fault::plain(host), port: port.parse().ok()? };
    (name == primary).then_some(match channel {
        SWITCHED => News::Switched(host),
        BEGINS => News::Begins(host),
        _ => News::Aborted,
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::store::redis::address::Address;

    #[test]
    fn the_news_of_a_failover_is_understood() {
        let told = |channel: &str, text: &str| news(channel, text.as_bytes(), "main");
        let old = || Host { name: "10.0.0.1".into(), port: 6379 };
        let switched = told(SWITCHED, "main 10.0.0.1 6379 10.0.0.2 6380");
        assert_eq!(switched, Some(News::Switched(old())));
        assert_eq!(told(BEGINS, "master main 10.0.0.1 6379"), Some(News::Begins(old())));
        let aborted = told("-failover-abort-no-good-slave", "master main 10.0.0.1 6379");
        assert_eq!(aborted, Some(News::Aborted));
        assert_eq!(told(SWITCHED, "other 10.0.0.1 6379 10.0.0.2 6380"), None);
        assert_eq!(told(BEGINS, "main"), None);
    }

    /// Answers a subscriber as a sentinel does, then says all of `news` in one breath and hangs up.
    async fn a_sentinel(listener: TcpListener, news: &str) {
        let (mut socket, _) = listener.accept().await.unwrap();
        let (mut heard, mut answered) = (String::new(), 0);
        while !heard.contains("PSUBSCRIBE") {
            let mut bytes = [0; 1024];
            let length = socket.read(&mut bytes).await.unwrap();
            assert!(length > 0, "it went away after {heard}");
            heard.push_str(std::str::from_utf8(&bytes[..length]).unwrap());
            for line in heard[std::mem::replace(&mut answered, heard.len())..].lines() {
                let answer = match line {
                    "CLIENT" => "+OK\r\n".to_owned(),
                    SWITCHED | BEGINS => format!("*3\r\n$9\r\nsubscribe\r\n{}:1\r\n", bulk(line)),
                    ABORTED => format!("*3\r\n$10\r\npsubscribe\r\n{}:3\r\n", bulk(line)),
                    _ => continue,
                };
                socket.write_all(answer.as_bytes()).await.unwrap();
            }
        }
        socket.write_all(news.as_bytes()).await.unwrap();
    }

    fn bulk(text: &str) -> String {
        format!("${}\r\n{text}\r\n", text.len())
    }

    /// Whether the primary is avoided after all of `news`, and how often it was left.
    async fn after(news: &[&str], avoided: bool) -> (bool, u32) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis+sentinel://{}/main", listener.local_addr().unwrap());
        let route = Route::try_new(Address::try_new(&url).unwrap()).unwrap();
        let primary = Host { name: "h".to_owned(), port: 6379 };
        *route.demoted() = avoided.then(|| (primary.clone(), Instant::now()));
        let left = Cell::new(0);
        let leave = |_: &Host| left.set(left.get() + 1);
        let news = news.concat();
        let (heard, ()) = tokio::join!(route.news(0, leave), a_sentinel(listener, &news));
        assert!(heard);
        (route.is_old_news(&primary), left.get())
    }

    #[tokio::test]
    async fn what_is_said_right_after_the_beginning_of_a_failover_is_heard() {
        let subject = bulk("master main h 6379");
        let begins = &format!("*3\r\n{}{}{subject}", bulk("message"), bulk(BEGINS));
        let aborted = |why| {
            let channel = bulk(&format!("-failover-abort-{why}"));
            format!("*4\r\n{}{}{channel}{subject}", bulk("pmessage"), bulk(ABORTED))
        };
        let nobody = &aborted("no-good-slave");
        assert_eq!(after(&[begins], false).await, (true, 1));
        assert_eq!(after(&[begins, nobody], false).await, (false, 1));
        assert_eq!(after(&[begins, nobody, begins], false).await, (true, 2));
        let others = after(&[&aborted("not-elected")], true).await;
        assert_eq!(others, (true, 0), "who was not elected does not speak for who was");
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_primary_is_not_believed_in_until_the_news_has_spread() {
        let url = "redis+sentinel://h/main";
        let route = Route::try_new(Address::try_new(url).unwrap()).unwrap();
        let host = |name: &str| Host { name: name.to_owned(), port: 6379 };
        assert!(!route.is_old_news(&host("a")));
        *route.demoted() = Some((host("a"), Instant::now()));
        assert!(route.is_old_news(&host("a")) && !route.is_old_news(&host("b")));
        tokio::time::advance(NEWS_SPREAD).await;
        assert!(!route.is_old_news(&host("a")));
    }
}
