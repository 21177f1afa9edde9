//! Statistics of the groups of a topic.

use crate::domain::{GroupName, Time};
use crate::store::{GroupsQuery, Result, ShardGroupStats};

use super::RedisStore;
use super::reply::ScriptReply;
use super::script::{ScriptCall, Verb};

impl RedisStore {
    /// Implements [`Store::groups`](crate::store::Store::groups).
    pub(super) async fn groups(&self, query: GroupsQuery) -> Result<Vec<ShardGroupStats>> {
        let GroupsQuery { topic, mut after, limit } = query;
        let mut groups = Vec::new();
        loop {
            let add = |call: &mut ScriptCall| {
                // After the jobs without a group come all groups.
                let place = match after.as_deref() {
                    None => "-".to_owned(),
                    Some("") => "(\0".to_owned(),
                    Some(after) => format!("({after}"),
                };
                call.arg(topic.as_str()).arg(place).arg(limit - groups.len());
            };
            let mut reply = self.run_pruned(Verb::Groups, add).await?;
            let (now, more) = (reply.time()?, reply.count()? > 0);
            let before = groups.len();
            while !reply.is_empty() {
                groups.push(read_group(&mut reply, now)?);
            }
            after = groups
                .last()
                .map(|last: &ShardGroupStats| GroupName::text(last.group.as_ref()).to_owned());
            if !more || groups.len() == before {
                return Ok(groups);
            }
        }
    }
}

fn read_group(reply: &mut ScriptReply, now: Time) -> Result<ShardGroupStats> {
    Ok(ShardGroupStats {
        group: GroupName::stored(&reply.text()?),
        ready: reply.count()?,
        scheduled: reply.count()?,
        running: reply.count()?,
        oldest_ready: reply.maybe_time()?.map(|due| now.since(due)),
        weight: u8::try_from(reply.count()?).unwrap_or(1),
        paused: reply.count()? > 0,
    })
}
