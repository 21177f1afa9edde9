//! What goes on beside the calls: hearing what other replicas do, and observing what the shard can promise.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::aio::PubSub;
use deadpool_redis::redis::{self, Client, Msg, RedisError};
use futures::StreamExt as _;
use tokio_util::task::AbortOnDropHandle;

use crate::backoff::Backoff;
use crate::domain::{ShardName, Time, Token, TopicName};
use crate::store::{Hint, Revoked};

use super::hints::Hints;
use super::link::{Lane, tcp_settings};
use super::shard::Shard;
use super::start::{Reach, durability, field};
use super::{Address, OpenError, keys};

/// How often the shard is asked what it can promise.
const OBSERVE_EVERY: Duration = Duration::from_secs(10);
/// How often a silent subscription is asked whether it is there.
const PING_EVERY: Duration = Duration::from_secs(5);
/// How long subscribing may take, or the answer to such a question.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Pauses between attempts to subscribe: the first and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Subscribes to the shard's wake-ups and to what becomes of the leases of `owner`, and again whenever the subscription is lost.
pub(super) async fn listen(
    address: &Address,
    shard: &ShardName,
    owner: u32,
    hints: Arc<Hints>,
) -> std::result::Result<AbortOnDropHandle<()>, OpenError> {
    let unreachable = |error: RedisError| OpenError::Unreachable(error.to_string());
    let info = address.info();
    let tcp = tcp_settings(&info);
    let client = Client::open(info.set_tcp_settings(tcp)).map_err(unreachable)?;
    let channels = [keys::wake_channel(shard), keys::lease_channel(shard, owner)];
    let mut subscription = Some(subscribe(&client, &channels).await.map_err(unreachable)?);
    let shard = shard.clone();
    Ok(AbortOnDropHandle::new(tokio::spawn(async move {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        loop {
            if let Some(subscription) = subscription.take() {
                backoff.reset();
                hear(subscription, &hints).await;
                tracing::warn!(%shard, "the subscription to wake-ups is lost");
            }
            tokio::time::sleep(backoff.pause()).await;
            subscription = subscribe(&client, &channels).await.ok();
            if subscription.is_some() {
                tracing::info!(%shard, "wake-ups are heard again");
                hints.missed();
            }
        }
    })))
}

async fn subscribe(client: &Client, channels: &[String; 2]) -> Result<PubSub, RedisError> {
    let subscribe = async {
        let mut subscription = client.get_async_pubsub().await?;
        subscription.subscribe(channels).await?;
        Ok(subscription)
    };
    let in_time = tokio::time::timeout(ANSWER_MAX, subscribe).await;
    in_time.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
}

/// Passes on what is heard until the subscription is lost.
async fn hear(subscription: PubSub, hints: &Hints) {
    let (mut sink, mut messages) = subscription.split();
    loop {
        match tokio::time::timeout(PING_EVERY, messages.next()).await {
            Ok(Some(message)) => {
                pass_on(&message, hints);
            }
            Ok(None) => return,
            Err(_silence) => {
                let answer = tokio::time::timeout(ANSWER_MAX, sink.ping::<redis::Value>()).await;
                if !matches!(answer, Ok(Ok(_))) {
                    return;
                }
            }
        }
    }
}

fn pass_on(message: &Msg, hints: &Hints) {
    let said = message.get_payload_bytes();
    if !message.get_channel_name().ends_with(":w") {
        leases(said).for_each(|hint| hints.lease(hint));
    } else if let Some((topic, at)) = wake_up(said) {
        hints.claimable(topic, at);
    }
}

/// What a message of the channel of leases says, as `lib/tell.lua` writes it: words of the form
/// `<what>:<stream>:<token>[,<token>...]`.
fn leases(message: &[u8]) -> impl Iterator<Item = Hint> {
    let text = std::str::from_utf8(message).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|word| {
        let mut parts = word.splitn(3, ':');
        let (what, stream) = (parts.next()?, parts.next()?.parse().ok()?);
        let token = |token| u64::from_str_radix(token, 16).map(Token).ok();
        let tokens = parts.next()?.split(',').filter_map(token).collect();
        let revoked = |reason| Hint::Revoked { stream, tokens: Vec::clone(&tokens), reason };
        Some(match (what, what.strip_prefix("extended@")) {
            (_, Some(deadline)) => {
                Hint::Extended { stream, deadline: Time(deadline.parse().ok()?), tokens }
            }
            ("settled", _) => Hint::Settled { stream, tokens },
            ("expired", _) => revoked(Revoked::LeaseExpired),
            ("deleted", _) => revoked(Revoked::Deleted),
            _ => return None,
        })
    })
}

/// What a message of the channel of wake-ups says: `<due time> <topic>`.
fn wake_up(message: &[u8]) -> Option<(TopicName, Time)> {
    let (due, topic) = std::str::from_utf8(message).ok()?.split_once(' ')?;
    Some((TopicName::stored(topic), Time(due.parse().ok()?)))
}

/// Reads every now and then what a write reaches, and whether the shard can still be written to.
pub(super) fn observe(
    shard: Arc<Shard>,
    hints: Arc<Hints>,
    reach: Arc<Reach>,
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            tokio::time::sleep(OBSERVE_EVERY).await;
            look(&shard, &reach).await;
            // Leases of a replica that is no more are nobody's alarm: whoever lives looks for them.
            hints.upkeep(Some(Time(0)));
        }
    }))
}

async fn look(shard: &Shard, reach: &Reach) {
    // Notes the time, too, so that a clock that goes back is seen.
    if let Err(error) = shard.identify().await {
        tracing::debug!(shard = %shard.name, %error, "the shard does not answer");
        return;
    }
    let Ok(mut connection) = shard.connection(Lane::Read).await else { return };
    let name = &shard.name;
    let info: String = match redis::cmd("INFO").query_async(&mut connection).await {
        Ok(info) => info,
        Err(error) => {
            shard.link.failed(Lane::Read, &error);
            return;
        }
    };
    let observed = durability(&mut connection, &info).await;
    if observed != reach.now() {
        tracing::warn!(shard = %name, before = ?reach.now(), now = ?observed, "what a write reaches has changed");
        reach.set(observed);
    }
    if let Some(policy) = field(&info, "maxmemory_policy").filter(|&policy| policy != "noeviction")
    {
        tracing::error!(shard = %name, policy, "redis drops jobs when it is full; set maxmemory-policy to noeviction");
    }
    if field(&info, "role") == Some("slave") {
        tracing::error!(shard = %name, "redis has become a read-only replica; give the address of its primary");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_topic_and_time_and_others_are_ignored() {
        let read =
            |text: &str| wake_up(text.as_bytes()).map(|(topic, at)| (topic.to_string(), at.0));
        assert_eq!(
            read("1800000000123457 billing.eu:v2"),
            Some(("billing.eu:v2".into(), 1_800_000_000_123_457))
        );
        assert_eq!(read("soon emails"), None);
        assert_eq!(read(""), None);
    }

    #[test]
    fn a_message_about_leases_names_them_and_what_is_not_known_is_ignored() {
        let message = "settled:7:00000000000000ff,8000000000000000 extended@1800000000123457:7:1 \
                       later:7:1 settled:x:1 deleted:4294967295:2 expired:8:3 settled";
        let said: Vec<_> = leases(message.as_bytes()).collect();
        let tokens = |tokens: &[u64]| tokens.iter().map(|&token| Token(token)).collect();
        let revoked =
            |stream, token, reason| Hint::Revoked { stream, tokens: tokens(&[token]), reason };
        let want = [
            Hint::Settled { stream: 7, tokens: tokens(&[0xff, 1 << 63]) },
            Hint::Extended {
                stream: 7,
                tokens: tokens(&[1]),
                deadline: Time(1_800_000_000_123_457),
            },
            revoked(u32::MAX, 2, Revoked::Deleted),
            revoked(8, 3, Revoked::LeaseExpired),
        ];
        assert_eq!(said, want);
    }
}
