//! From an address to the connections that may lead there. Behind Sentinel that is asked anew for every
//! connection: whoever was the primary a moment ago may be none any more.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_redis::redis::aio::PubSub;
use deadpool_redis::redis::io::tcp::TcpSettings;
use deadpool_redis::redis::{
    self, AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo,
    IntoConnectionInfo as _, RedisConnectionInfo, RedisError, TlsCertificates,
};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;

use super::address::{Address, Host, Place, Tls};
use super::{OpenError, fault};

/// How long a sentinel may take to answer, and to connect before that.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// How often a silent sentinel is asked whether it is there.
const PING_EVERY: Duration = Duration::from_secs(5);
/// Data that is not acknowledged for so long breaks the connection.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How long the news of a failover may take to all sentinels: they tell one another every 2 s. Until then the
/// old primary may not know either.
const NEWS_SPREAD: Duration = Duration::from_secs(4);
/// What a sentinel says when another Redis became a primary.
const SWITCH: &str = "+switch-master";

/// How to reach one Redis.
pub(super) struct Route {
    address: Address,
    /// With TLS: what connections are like, but for the host.
    sample: Option<ConnectionAddr>,
    /// Who was the primary until a sentinel said otherwise, and when.
    demoted: Mutex<Option<(Host, Instant)>>,
}

// === impl Route ===

impl Route {
    /// A route to an address; its certificates are read.
    ///
    /// # Errors
    /// [`OpenError::Tls`].
    pub(super) fn try_new(address: Address) -> Result<Route, OpenError> {
        let sample = address.secure.then(|| with_certificates(&address.tls)).transpose()?;
        Ok(Route { address, sample, demoted: Mutex::default() })
    }

    /// Whether sentinels know the way.
    pub(super) fn asks_sentinels(&self) -> bool {
        matches!(self.address.place, Place::Sentinel { .. })
    }

    /// Where the Redis may be, the likeliest first.
    ///
    /// # Errors
    /// [`OpenError::Unreachable`], when no sentinel knows.
    pub(super) async fn ways(&self) -> Result<Vec<ConnectionInfo>, OpenError> {
        let places = match &self.address.place {
            Place::Host(host) => vec![self.to_host(host)],
            Place::Socket(path) => vec![ConnectionAddr::Unix(path.clone())],
            Place::Sentinel { sentinels, primary, login } => {
                let hosts = self.ask(sentinels, primary, login).await?;
                hosts.iter().map(|host| self.to_host(host)).collect()
            }
        };
        let ways = places.into_iter().map(|place| self.way(place, &self.address.login));
        ways.collect::<Result<_, _>>().map_err(unreachable)
    }

    /// Listens to a sentinel until it says that another Redis has become the primary. `None`: it is gone,
    /// or none could be listened to.
    pub(super) async fn switched(&self) -> Option<()> {
        let Place::Sentinel { sentinels, primary, login } = &self.address.place else {
            return None;
        };
        for sentinel in sentinels {
            let Ok(subscription) = self.listen(sentinel, login).await else { continue };
            let (mut sink, mut messages) = subscription.split();
            loop {
                match tokio::time::timeout(PING_EVERY, messages.next()).await {
                    Ok(Some(message)) => {
                        if let Some(old) = demoted(message.get_payload_bytes(), primary) {
                            *self.demoted() = Some((old, Instant::now()));
                            return Some(());
                        }
                    }
                    Ok(None) => return None,
                    Err(_silence) => {
                        let pong = sink.ping::<redis::Value>();
                        let pong = tokio::time::timeout(ANSWER_MAX, pong).await;
                        if !matches!(pong, Ok(Ok(_))) {
                            return None;
                        }
                    }
                }
            }
        }
        None
    }

    async fn listen(
        &self,
        sentinel: &Host,
        login: &RedisConnectionInfo,
    ) -> Result<PubSub, OpenError> {
        let subscribe = async {
            let client = Client::open(self.way(self.to_host(sentinel), login)?)?;
            let mut subscription = client.get_async_pubsub().await?;
            subscription.subscribe(SWITCH).await?;
            Ok(subscription)
        };
        match tokio::time::timeout(2 * ANSWER_MAX, subscribe).await {
            Ok(subscribed) => subscribed.map_err(unreachable),
            Err(_) => Err(OpenError::Unreachable(format!("sentinel {sentinel} does not answer"))),
        }
    }

    /// Asks all sentinels for the primary. What more than half of them say is taken at once; else what
    /// was said comes by how many said it: one that was cut off may still name the old primary.
    async fn ask(
        &self,
        sentinels: &[Host],
        primary: &str,
        login: &RedisConnectionInfo,
    ) -> Result<Vec<Host>, OpenError> {
        let mut answers = FuturesUnordered::new();
        for sentinel in sentinels {
            answers.push(self.ask_one(sentinel, primary, login));
        }
        let (mut said, mut failure): (Vec<(Host, usize)>, _) = (Vec::new(), String::new());
        while let Some(answer) = answers.next().await {
            let host = match answer {
                Ok(host) if self.is_old_news(&host) => {
                    failure =
                        format!("{host} is the primary no more, the next one is not known yet");
                    continue;
                }
                Ok(host) => host,
                Err(error) => {
                    failure = error;
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
        match said.is_empty() {
            true => Err(OpenError::Unreachable(failure)),
            false => Ok(said.into_iter().map(|(host, _)| host).collect()),
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
    ) -> Result<Host, String> {
        let asked = async {
            let client = Client::open(self.way(self.to_host(sentinel), login)?)?;
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(ANSWER_MAX))
                .set_response_timeout(Some(ANSWER_MAX));
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&config).await?;
            let mut question = redis::cmd("SENTINEL");
            question.arg("GET-MASTER-ADDR-BY-NAME").arg(primary);
            question.query_async::<Option<(String, u16)>>(&mut connection).await
        };
        match asked.await {
            Ok(Some((name, port))) => Ok(Host { name, port }),
            Ok(None) => Err(format!("sentinel {sentinel} watches no primary called {primary}")),
            Err(error) => Err(format!("sentinel {sentinel} does not help: {error}")),
        }
    }

    /// That host, reached as all of this address are.
    fn to_host(&self, host: &Host) -> ConnectionAddr {
        let Host { name, port } = host.clone();
        match &self.sample {
            Some(ConnectionAddr::TcpTls { tls_params, .. }) => ConnectionAddr::TcpTls {
                host: name,
                port,
                insecure: false,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(name, port),
        }
    }

    fn way(
        &self,
        addr: ConnectionAddr,
        login: &RedisConnectionInfo,
    ) -> Result<ConnectionInfo, RedisError> {
        let info = addr.into_connection_info()?;
        Ok(info.set_redis_settings(login.clone()).set_tcp_settings(tcp_settings()))
    }
}

/// Who was the primary of that name: `<name> <old ip> <old port> <new ip> <new port>`.
fn demoted(news: &[u8], primary: &str) -> Option<Host> {
    let mut words = std::str::from_utf8(news).ok()?.split(' ');
    let (name, host, port) = (words.next()?, words.next()?, words.next()?);
    (name == primary).then_some(Host { name: host.to_owned(), port: port.parse().ok()? })
}

/// Small writes go out at once; a peer that has gone silent is noticed.
fn tcp_settings() -> TcpSettings {
    let settings = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(SILENCE_MAX);
    settings
}

/// A way to nowhere with the certificates of this address: redis takes them in no other form.
fn with_certificates(tls: &Tls) -> Result<ConnectionAddr, OpenError> {
    let client_tls = match &tls.client {
        Some((cert, key)) => {
            Some(ClientTlsConfig { client_cert: pem(cert)?, client_key: pem(key)? })
        }
        None => None,
    };
    let root_cert = tls.ca.as_deref().map(pem).transpose()?;
    let nowhere =
        ConnectionAddr::TcpTls { host: String::new(), port: 0, insecure: false, tls_params: None };
    let built = Client::build_with_tls(nowhere, TlsCertificates { client_tls, root_cert });
    match built {
        Ok(client) => Ok(client.get_connection_info().addr().clone()),
        Err(error) => Err(OpenError::Tls(error.to_string())),
    }
}

/// A file that holds something in PEM: without, nobody would be trusted and nothing say why.
fn pem(path: &Path) -> Result<Vec<u8>, OpenError> {
    let wrong = |why: String| OpenError::Tls(format!("{}: {why}", path.display()));
    let bytes =
        fs::read(path).map_err(|error| wrong(format!("it cannot be read: {}", error.kind())))?;
    match bytes.windows(10).any(|window| window == b"-----BEGIN") {
        true => Ok(bytes),
        false => Err(wrong("it holds nothing in PEM".to_owned())),
    }
}

fn unreachable(error: RedisError) -> OpenError {
    OpenError::Unreachable(fault::in_words(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_news_of_a_failover_names_who_was_the_primary() {
        let told = |news: &str| demoted(news.as_bytes(), "main").map(|host| host.to_string());
        assert_eq!(told("main 10.0.0.1 6379 10.0.0.2 6380").as_deref(), Some("10.0.0.1:6379"));
        assert_eq!(told("other 10.0.0.1 6379 10.0.0.2 6380"), None);
        assert_eq!(told("main"), None);
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
