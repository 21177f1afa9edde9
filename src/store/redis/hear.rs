//! Hearing what other replicas do, and what sentinels say.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::aio::PubSub;
use deadpool_redis::redis::{self, Client, Msg, RedisError};
use futures::StreamExt as _;
use tokio_util::task::AbortOnDropHandle;

use crate::domain::{Time, Token, TopicName};
use crate::pauses::Pauses;
use crate::store::{Error, Hint, Revoked};

use super::hints::Hints;
use super::link::Lane;
use super::shard::Shard;
use super::url::Host;
use super::{fault, keys};

/// How often a silent subscription is asked whether it is there.
const PING_EVERY: Duration = Duration::from_secs(5);
/// How long subscribing may take, or the answer to such a question.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Pauses between attempts to subscribe: the first and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Why there is no subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// Nobody has tried yet.
    New,
    /// It was lost.
    Lost,
    /// It was given up, because nobody answered.
    Silent,
    /// It was given up, because it led to a Redis that is the primary no more; that has been said.
    Left,
}

/// Why none was made.
enum Deaf {
    /// No call reaches the Redis either, which is the business of those who call it.
    Away(Error),
    /// It answers everything else.
    Mute(String),
}

/// What is known of the want of a subscription, and what the log was told of it.
struct Silence {
    loss: Loss,
    /// The Redis did not answer meanwhile.
    was_away: bool,
    /// Why it could not be made, as told last.
    told: Option<String>,
}

/// Subscribes to the shard's wake-ups and to what becomes of this replica's leases, and again whenever the
/// subscription is lost or leads to a Redis that is the primary no more. A shard that is reached already is subscribed
/// to when this returns.
pub(super) async fn listen(shard: Arc<Shard>, hints: Arc<Hints>) -> AbortOnDropHandle<()> {
    let mut left = shard.link.left();
    let mut silence = Silence::begins(Loss::New);
    let mut subscription = match shard.condition.is_known() {
        true => silence.ended(&shard, join(&shard).await),
        false => None,
    };
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut pauses = Pauses::new(PAUSES.0, PAUSES.1);
        loop {
            if let Some(subscription) = subscription.take() {
                pauses.reset();
                let loss = tokio::select! {
                    loss = hear(subscription, &hints) => loss,
                    _ = left.changed() => Loss::Left,
                };
                tracing::debug!(shard = %shard.name, ?loss, "the subscription to wake-ups is lost");
                silence = Silence::begins(loss);
                if loss != Loss::Left {
                    hints.lost();
                }
            }
            tokio::time::sleep(pauses.pause()).await;
            left.mark_unchanged();
            subscription = silence.ended(&shard, join(&shard).await);
            if subscription.is_some() {
                hints.missed();
            }
        }
    }))
}

// === impl Silence ===

impl Silence {
    fn begins(loss: Loss) -> Silence {
        Silence { loss, was_away: loss == Loss::Silent, told: None }
    }

    /// The subscription, if there is one. That there is none is said where it is all that is wrong: once, and again
    /// when it is for another reason.
    fn ended(&mut self, shard: &Shard, joined: Result<PubSub, Deaf>) -> Option<PubSub> {
        let shard = &shard.name;
        match joined {
            Ok(subscription) => {
                if self.told.take().is_some() {
                    tracing::info!(%shard, "wake-ups are heard");
                } else if self.loss == Loss::Lost && !self.was_away {
                    tracing::warn!(
                        %shard,
                        "the subscription to wake-ups was lost; redis answers and they are heard again, but jobs may \
                         have come a second later"
                    );
                } else {
                    tracing::debug!(%shard, "wake-ups are heard");
                }
                return Some(subscription);
            }
            Err(Deaf::Away(error)) => {
                self.was_away = true;
                tracing::debug!(%shard, %error, "wake-ups are not heard");
            }
            Err(Deaf::Mute(error)) if self.told.as_ref() != Some(&error) => {
                tracing::warn!(
                    %shard, error,
                    "wake-ups are not heard though redis answers: jobs may come a second later"
                );
                self.told = Some(error);
            }
            Err(Deaf::Mute(_)) => {}
        }
        None
    }
}

/// Subscribes on the Redis that calls go to, which is thereby known to be the right one.
async fn join(shard: &Shard) -> Result<PubSub, Deaf> {
    shard.connection(Lane::Read).await.map_err(Deaf::Away)?;
    let Some(way) = shard.link.way() else {
        let text = "another redis becomes the primary".to_owned();
        return Err(Deaf::Away(Error::Unavailable(text)));
    };
    let channels = [keys::wake_channel(&shard.name), keys::lease_channel(&shard.name, shard.owner)];
    let subscribed = match Client::open(way) {
        Ok(client) => subscribe(&client, &channels).await,
        Err(error) => Err(error),
    };
    match subscribed {
        Ok(subscription) => Ok(subscription),
        // The connection that is held may lead to a Redis that stands still or has just gone.
        Err(error) => match shard.ask::<redis::Value>(Lane::Read, &redis::cmd("PING")).await {
            Ok(_) => Err(Deaf::Mute(fault::text(&error))),
            Err(error) => Err(Deaf::Away(error)),
        },
    }
}

/// Listens to one of the sentinels, and lets go of the connections as soon as their Redis is the primary no
/// more: that one may not know it yet, and what is written to it is lost.
pub(super) fn follow(shard: Arc<Shard>, sentinel: usize) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let (mut pauses, link) = (Pauses::new(PAUSES.0, PAUSES.1), &shard.link);
        loop {
            let leave = |old: &Host| {
                if link.way().is_some_and(|way| link.route().is_at(&way, old)) {
                    tracing::info!(shard = %shard.name, %old, "sentinel makes another redis the primary");
                    link.leave();
                }
            };
            if link.route().news(sentinel, leave).await {
                pauses.reset();
            }
            tokio::time::sleep(pauses.pause()).await;
        }
    }))
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

/// Passes on what is heard until there is no subscription any more; why there is none.
async fn hear(subscription: PubSub, hints: &Hints) -> Loss {
    let (mut sink, mut messages) = subscription.split();
    loop {
        match tokio::time::timeout(PING_EVERY, messages.next()).await {
            Ok(Some(message)) => {
                pass_on(&message, hints);
            }
            Ok(None) => return Loss::Lost,
            Err(_silence) => {
                match tokio::time::timeout(ANSWER_MAX, sink.ping::<redis::Value>()).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(_)) => return Loss::Lost,
                    Err(_) => return Loss::Silent,
                }
            }
        }
    }
}

fn pass_on(message: &Msg, hints: &Hints) {
    let said = message.get_payload_bytes();
    if !message.get_channel_name().ends_with(":w") {
        leases(said).for_each(|hint| hints.lease(hint));
    } else if said == b"configured" {
        hints.configured();
    } else if let Some(topic) = forgotten(said) {
        hints.forgotten(topic);
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
            ("adopted", _) => Hint::Adopted { stream, tokens },
            ("settled", _) => Hint::Settled { stream, tokens },
            ("expired", _) => revoked(Revoked::LeaseExpired),
            ("deleted", _) => revoked(Revoked::Deleted),
            _ => return None,
        })
    })
}

/// The topic of `forgotten <topic>`.
fn forgotten(message: &[u8]) -> Option<TopicName> {
    let topic = std::str::from_utf8(message).ok()?.strip_prefix("forgotten ")?;
    Some(TopicName::stored(topic))
}

/// What a message of the channel of wake-ups says: `<due time> <topic>`.
fn wake_up(message: &[u8]) -> Option<(TopicName, Time)> {
    let (due, topic) = std::str::from_utf8(message).ok()?.split_once(' ')?;
    Some((TopicName::stored(topic), Time(due.parse().ok()?)))
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
                       later:7:1 settled:x:1 deleted:4294967295:2 expired:8:3 adopted:9:4 settled";
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
            Hint::Adopted { stream: 9, tokens: tokens(&[4]) },
        ];
        assert_eq!(said, want);
    }
}
