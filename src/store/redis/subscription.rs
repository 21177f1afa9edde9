//! Subscription to channels of a Redis or a sentinel. redis-rs's `PubSub` has no time limits and does not notice a
//! silent peer: both are added here. A subscription is not renewed, because the Redis behind the endpoint may be
//! another one by then.

use std::time::Duration;

use deadpool_redis::redis::aio::PubSub;
use deadpool_redis::redis::{Client, ConnectionInfo, Msg, RedisError, Value};
use futures::StreamExt as _;
use tokio::time::timeout;

/// Interval of pings on a silent subscription.
const PING_EVERY: Duration = Duration::from_secs(5);
/// Time limit of subscribing, and of the answer to a ping.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct RedisSubscription(PubSub);

/// Reason why a subscription ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubscriptionEnd {
    Closed,
    /// A ping was not answered.
    PingTimeout,
}

impl RedisSubscription {
    /// Subscribes to channels, and to patterns of channels where there are any.
    pub(super) async fn begin(
        endpoint: ConnectionInfo,
        channels: &[&str],
        patterns: &[&str],
    ) -> Result<RedisSubscription, RedisError> {
        let client = Client::open(endpoint)?;
        let subscribe = async {
            let mut subscription = client.get_async_pubsub().await?;
            subscription.subscribe(channels).await?;
            if !patterns.is_empty() {
                subscription.psubscribe(patterns).await?;
            }
            Ok(RedisSubscription(subscription))
        };
        let in_time = timeout(REPLY_TIMEOUT, subscribe).await;
        in_time.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
    }

    /// Returns the next message.
    pub(super) async fn next(&mut self) -> Result<Msg, SubscriptionEnd> {
        loop {
            if let Ok(message) = timeout(PING_EVERY, self.0.on_message().next()).await {
                return message.ok_or(SubscriptionEnd::Closed);
            }
            match timeout(REPLY_TIMEOUT, self.0.ping::<Value>()).await {
                Ok(Ok(_)) => {}
                Ok(Err(_)) => return Err(SubscriptionEnd::Closed),
                Err(_) => return Err(SubscriptionEnd::PingTimeout),
            }
        }
    }
}
