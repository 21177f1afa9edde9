//! Messages of the shard's channels, and of the sentinels behind it.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::Msg;
use tokio_util::task::AbortOnDropHandle;

use crate::domain::{Time, Token, TopicName};
use crate::pauses::Pauses;
use crate::store::{Hint, Revoked};

use super::hints::Hints;
use super::link::Lane;
use super::shard::Shard;
use super::subscription::{End, Subscription};
use super::url::Host;
use super::{fault, keys};

/// Pauses between attempts to subscribe: the first and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The time without a subscription.
#[derive(Default)]
struct Gap {
    /// The subscription was closed, and every call since has been answered.
    is_alone: bool,
    /// A refusal was logged.
    is_logged: bool,
}

/// Subscribes to the shard's wake-ups and to the events of this replica's leases, and again whenever the
/// subscription ends or another Redis becomes the primary. A shard that is reached already is subscribed
/// to when this returns.
pub(super) async fn listen(shard: Arc<Shard>, hints: Arc<Hints>) -> AbortOnDropHandle<()> {
    let mut redirects = shard.link.redirects();
    let (mut gap, mut subscription) = (Gap::default(), None);
    if shard.condition.is_known() {
        subscription = gap.subscribe(&shard).await;
    }
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut pauses = Pauses::new(PAUSE_MIN, PAUSE_MAX);
        loop {
            if let Some(subscription) = subscription.take() {
                pauses.reset();
                let end = tokio::select! {
                    end = receive(subscription, &hints) => Some(end),
                    _ = redirects.changed() => None,
                };
                tracing::debug!(shard = %shard.name, ?end, "the subscription to wake-ups is lost");
                gap = Gap { is_alone: end == Some(End::Closed), is_logged: false };
                if end.is_some() {
                    hints.lost();
                }
            }
            tokio::time::sleep(pauses.pause()).await;
            redirects.mark_unchanged();
            subscription = gap.subscribe(&shard).await;
            if subscription.is_some() {
                hints.missed();
            }
        }
    }))
}

impl Gap {
    /// Subscribes on the Redis of the calls, which was checked when they connected. That Redis is not reached is
    /// logged by the shard's circuit breaker; here only what happens while calls are answered.
    async fn subscribe(&mut self, shard: &Shard) -> Option<Subscription> {
        let (connected, name) = (shard.connection(Lane::Read).await, &shard.name);
        let Some(endpoint) = shard.link.endpoint().filter(|_| connected.is_ok()) else {
            self.is_alone = false;
            return None;
        };
        let channels = [keys::wake_channel(name), keys::lease_channel(name, shard.owner)];
        let channels = channels.each_ref().map(String::as_str);
        match Subscription::begin(endpoint, &channels, &[]).await {
            Ok(subscription) => {
                if self.is_logged {
                    tracing::info!(shard = %name, "subscribed to wake-ups");
                } else if self.is_alone {
                    tracing::warn!(
                        shard = %name,
                        "the subscription to wake-ups was lost; redis answers and the shard is subscribed to again, but \
                         jobs may have come a second later"
                    );
                }
                return Some(subscription);
            }
            Err(error) if error.is_io_error() => self.is_alone = false,
            Err(error) if !self.is_logged => {
                self.is_logged = true;
                tracing::warn!(
                    shard = %name, error = fault::text(&error),
                    "cannot subscribe to wake-ups though redis answers: jobs may come a second later"
                );
            }
            Err(_logged) => {}
        }
        None
    }
}

/// Follows one of the sentinels, and disconnects as soon as the Redis of the calls is replaced as the primary: that
/// one may not know it yet, and writes to it are lost.
pub(super) fn follow(shard: Arc<Shard>, sentinel: usize) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let (mut pauses, link) = (Pauses::new(PAUSE_MIN, PAUSE_MAX), &shard.link);
        loop {
            let demote = |old: &Host| {
                if link.endpoint().is_some_and(|used| *used.addr() == link.route().addr(old)) {
                    tracing::info!(shard = %shard.name, %old, "sentinel makes another redis the primary");
                    link.disconnect();
                }
            };
            if link.route().follow(sentinel, demote).await {
                pauses.reset();
            }
            tokio::time::sleep(pauses.pause()).await;
        }
    }))
}

/// Passes on messages until the subscription ends.
async fn receive(mut subscription: Subscription, hints: &Hints) -> End {
    loop {
        match subscription.next().await {
            Ok(message) => pass_on(&message, hints),
            Err(end) => return end,
        }
    }
}

fn pass_on(message: &Msg, hints: &Hints) {
    let text = message.get_payload_bytes();
    if !message.get_channel_name().ends_with(":w") {
        leases(text).for_each(|hint| hints.lease(hint));
    } else if text == b"configured" {
        hints.configured();
    } else if let Some(topic) = forgotten(text) {
        hints.forgotten(topic);
    } else if let Some((topic, at)) = wake_up(text) {
        hints.claimable(topic, at);
    }
}

/// The events in a message of the channel of leases, as `lib/tell.lua` writes it: words of the form
/// `<event>:<stream>:<token>[,<token>...]`.
fn leases(message: &[u8]) -> impl Iterator<Item = Hint> {
    let text = std::str::from_utf8(message).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|word| {
        let mut parts = word.splitn(3, ':');
        let (event, stream) = (parts.next()?, parts.next()?.parse().ok()?);
        let token = |token| u64::from_str_radix(token, 16).map(Token).ok();
        let tokens = parts.next()?.split(',').filter_map(token).collect();
        let revoked = |reason| Hint::Revoked { stream, tokens: Vec::clone(&tokens), reason };
        Some(match (event, event.strip_prefix("extended@")) {
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

/// A message of the channel of wake-ups: `<due time> <topic>`.
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
    fn a_message_about_leases_names_them_and_unknown_events_are_ignored() {
        let message = "settled:7:00000000000000ff,8000000000000000 extended@1800000000123457:7:1 \
                       later:7:1 settled:x:1 deleted:4294967295:2 expired:8:3 adopted:9:4 settled";
        let found: Vec<_> = leases(message.as_bytes()).collect();
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
        assert_eq!(found, want);
    }
}
