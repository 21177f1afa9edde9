//! Receives messages of the shard's channels, and of the sentinels behind it.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::Msg;
use tokio_util::task::AbortOnDropHandle;

use crate::backoff::{Backoff, BackoffRange};
use crate::domain::{Time, Token, TopicName};
use crate::store::{LeaseEvent, RevokeReason};

use super::connections::ConnectionLane;
use super::event_sender::RedisEventSender;
use super::shard::RedisShard;
use super::subscription::{RedisSubscription, SubscriptionEnd};
use super::url::RedisHost;
use super::{error_mapping, keys};

/// First and longest pause between attempts to subscribe.
const PAUSES: BackoffRange =
    BackoffRange { min: Duration::from_millis(50), max: Duration::from_secs(2) };

/// State of a gap without a subscription.
#[derive(Default)]
struct SubscriptionGap {
    /// The subscription was closed, and every call since has been answered.
    no_call_failed: bool,
    /// A rejection was logged.
    is_logged: bool,
}

/// Subscribes to the shard's wake-ups and to the events of this replica's leases, and again whenever the subscription
/// ends or another Redis becomes the primary. If the shard is reachable, the subscription exists when this returns.
pub(super) async fn keep_subscribed(
    shard: Arc<RedisShard>,
    hints: Arc<RedisEventSender>,
) -> AbortOnDropHandle<()> {
    let mut redirects = shard.connections.redirects();
    let (mut gap, mut subscription) = (SubscriptionGap::default(), None);
    if shard.status.is_known() {
        subscription = gap.subscribe(&shard).await;
    }
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut pauses = Backoff::new(PAUSES);
        loop {
            if let Some(subscription) = subscription.take() {
                pauses.reset();
                let end = tokio::select! {
                    end = forward_messages(subscription, &hints) => Some(end),
                    _ = redirects.changed() => None,
                };
                tracing::debug!(shard = %shard.name, ?end, "the subscription to wake-ups is lost");
                gap = SubscriptionGap {
                    no_call_failed: end == Some(SubscriptionEnd::Closed),
                    is_logged: false,
                };
                if end.is_some() {
                    hints.send_disconnected();
                }
            }
            tokio::time::sleep(pauses.next_delay()).await;
            redirects.mark_unchanged();
            subscription = gap.subscribe(&shard).await;
            if subscription.is_some() {
                hints.send_missed();
            }
        }
    }))
}

impl SubscriptionGap {
    /// Subscribes on the Redis of the calls, which was checked when they connected. The shard's circuit breaker logs
    /// an unreachable Redis; this logs only failures while calls are answered.
    async fn subscribe(&mut self, shard: &RedisShard) -> Option<RedisSubscription> {
        let (connected, name) = (shard.connection(ConnectionLane::Read).await, &shard.name);
        let Some(endpoint) = shard.connections.endpoint().filter(|_| connected.is_ok()) else {
            self.no_call_failed = false;
            return None;
        };
        let channels = [keys::wake_channel(name), keys::lease_channel(name, shard.owner)];
        let channels = channels.each_ref().map(String::as_str);
        match RedisSubscription::begin(endpoint, &channels, &[]).await {
            Ok(subscription) => {
                if self.is_logged {
                    tracing::info!(shard = %name, "subscribed to wake-ups");
                } else if self.no_call_failed {
                    tracing::warn!(
                        shard = %name,
                        "resubscribed to wake-ups after a loss; jobs may have been delivered up to 1 s late"
                    );
                }
                return Some(subscription);
            }
            Err(error) if error.is_io_error() => self.no_call_failed = false,
            Err(error) if !self.is_logged => {
                self.is_logged = true;
                tracing::warn!(
                    shard = %name, error = error_mapping::text(&error),
                    "cannot subscribe to wake-ups though redis answers: jobs may be delivered up to 1 s late"
                );
            }
            Err(_logged) => {}
        }
        None
    }
}

/// Follows the events of one sentinel, and disconnects as soon as the Redis of the calls is replaced as the primary:
/// that Redis may not have been notified yet, and writes to it are lost.
pub(super) fn follow_sentinel(shard: Arc<RedisShard>, sentinel: usize) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let (mut pauses, link) = (Backoff::new(PAUSES), &shard.connections);
        loop {
            let demote = |old: &RedisHost| {
                if link.endpoint().is_some_and(|used| *used.addr() == link.route().addr(old)) {
                    tracing::info!(shard = %shard.name, %old, "sentinel makes another redis the primary");
                    link.disconnect();
                }
            };
            if link.route().follow_events(sentinel, demote).await {
                pauses.reset();
            }
            tokio::time::sleep(pauses.next_delay()).await;
        }
    }))
}

/// Forwards messages until the subscription ends.
async fn forward_messages(
    mut subscription: RedisSubscription,
    hints: &RedisEventSender,
) -> SubscriptionEnd {
    loop {
        match subscription.next().await {
            Ok(message) => forward_message(&message, hints),
            Err(end) => return end,
        }
    }
}

fn forward_message(message: &Msg, hints: &RedisEventSender) {
    let text = message.get_payload_bytes();
    if !message.get_channel_name().ends_with(":w") {
        parse_lease_events(text).for_each(|hint| hints.send_lease_event(hint));
    } else if text == b"configured" {
        hints.send_state_set();
    } else if text == b"documents" {
        hints.send_documents_changed();
    } else if let Some(topic) = parse_topic_forgotten(text) {
        hints.send_topic_forgotten(topic);
    } else if let Some((topic, at)) = parse_wake_up(text) {
        hints.send_claimable(topic, at);
    }
}

/// Parses the events in a message of the channel of leases, in the form of `lib/lease_events.lua`: words of the form
/// `<event>:<stream>:<token>[,<token>...]`.
fn parse_lease_events(message: &[u8]) -> impl Iterator<Item = LeaseEvent> {
    let text = std::str::from_utf8(message).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|word| {
        let mut parts = word.splitn(3, ':');
        let (event, stream) = (parts.next()?, parts.next()?.parse().ok()?);
        let token = |token| u64::from_str_radix(token, 16).map(Token).ok();
        let tokens = parts.next()?.split(',').filter_map(token).collect();
        let revoked = |reason| LeaseEvent::Revoked { stream, tokens: Vec::clone(&tokens), reason };
        Some(match (event, event.strip_prefix("extended@")) {
            (_, Some(deadline)) => {
                LeaseEvent::Extended { stream, deadline: Time(deadline.parse().ok()?), tokens }
            }
            ("adopted", _) => LeaseEvent::Adopted { stream, tokens },
            ("settled", _) => LeaseEvent::Settled { stream, tokens },
            ("expired", _) => revoked(RevokeReason::LeaseExpired),
            ("deleted", _) => revoked(RevokeReason::Deleted),
            _ => return None,
        })
    })
}

/// Parses the topic of `forgotten <topic>`.
fn parse_topic_forgotten(message: &[u8]) -> Option<TopicName> {
    let topic = std::str::from_utf8(message).ok()?.strip_prefix("forgotten ")?;
    Some(TopicName::stored(topic))
}

/// Parses a message of the channel of wake-ups: `<due time> <topic>`.
fn parse_wake_up(message: &[u8]) -> Option<(TopicName, Time)> {
    let (due, topic) = std::str::from_utf8(message).ok()?.split_once(' ')?;
    Some((TopicName::stored(topic), Time(due.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_topic_and_time_and_others_are_ignored() {
        let read = |text: &str| {
            parse_wake_up(text.as_bytes()).map(|(topic, at)| (topic.to_string(), at.0))
        };
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
        let found: Vec<_> = parse_lease_events(message.as_bytes()).collect();
        let tokens = |tokens: &[u64]| tokens.iter().map(|&token| Token(token)).collect();
        let revoked = |stream, token, reason| LeaseEvent::Revoked {
            stream,
            tokens: tokens(&[token]),
            reason,
        };
        let want = [
            LeaseEvent::Settled { stream: 7, tokens: tokens(&[0xff, 1 << 63]) },
            LeaseEvent::Extended {
                stream: 7,
                tokens: tokens(&[1]),
                deadline: Time(1_800_000_000_123_457),
            },
            revoked(u32::MAX, 2, RevokeReason::Deleted),
            revoked(8, 3, RevokeReason::LeaseExpired),
            LeaseEvent::Adopted { stream: 9, tokens: tokens(&[4]) },
        ];
        assert_eq!(found, want);
    }
}
