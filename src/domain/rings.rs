//! The rings that are open: the newest one, which this replica serves, and those under which jobs may
//! still lie whose newest owner is another shard. A job whose id its client chose is looked for under all
//! of them and written under the newest one only, so a ring can change while jobs lie on it.
//!
//! Every ring that a replica serves is recorded on every shard. A record has a version: of two records of
//! one ring the higher version tells what became of it, wherever and whenever they are compared, so that
//! replicas and shards which were away catch up in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::ring::{WEIGHT_MAX, fingerprint};
use super::{JobKey, Ring, ShardName};

/// The members of a ring as text, which names it: `a:1,b:2`, by name, without those that own nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Members(String);

/// What is known of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// Counts its changes, from 1 on.
    pub version: u64,
    /// Whether jobs may lie where it says. Of two replicas that say different things of one version the
    /// one that says so is right.
    pub open: bool,
}

/// Everything known of rings: what one shard has, or all shards together.
pub type Records = BTreeMap<Members, Mark>;

/// See the module.
#[derive(Clone, Debug)]
pub struct Rings {
    newest: Ring,
    older: Vec<Ring>,
    elsewhere: Vec<Ring>,
}

// === impl Members ===

impl Members {
    /// Those of a ring of these shards.
    #[must_use]
    pub fn new(members: &[(ShardName, u32)]) -> Members {
        let mut members: Vec<_> = members.iter().filter(|(_, weight)| *weight > 0).collect();
        members.sort();
        let texts: Vec<_> =
            members.into_iter().map(|(name, weight)| format!("{name}:{weight}")).collect();
        Members(texts.join(","))
    }

    /// As a shard has stored them; `None` if that makes no sense.
    #[must_use]
    pub fn stored(text: &str) -> Option<Members> {
        let members = Members(text.to_owned());
        let read = members.read()?;
        (Members::new(&read) == members).then_some(members)
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the shard is one of them.
    #[must_use]
    pub fn contains(&self, shard: &ShardName) -> bool {
        self.names().contains(shard)
    }

    /// Their names.
    #[must_use]
    pub fn names(&self) -> Vec<ShardName> {
        self.read().unwrap_or_default().into_iter().map(|(name, _)| name).collect()
    }

    /// That of their ring.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        fingerprint(&self.read().unwrap_or_default())
    }

    /// The others, when this shard leaves them.
    #[must_use]
    pub fn without(&self, shard: &ShardName) -> Members {
        let mut rest = self.read().unwrap_or_default();
        rest.retain(|(name, _)| name != shard);
        Members::new(&rest)
    }

    /// The ring.
    #[must_use]
    pub fn ring(&self) -> Ring {
        Ring::new(self.read().unwrap_or_default())
    }

    /// Each with its weight.
    #[must_use]
    pub fn read(&self) -> Option<Vec<(ShardName, u32)>> {
        if self.0.is_empty() {
            return Some(Vec::new());
        }
        let member = |text: &str| {
            let (name, weight) = text.split_once(':')?;
            let weight = weight.parse().ok().filter(|weight| (1..=WEIGHT_MAX).contains(weight))?;
            Some((ShardName::try_new(name).ok()?, weight))
        };
        self.0.split(',').map(member).collect()
    }
}

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Adds to what is known in `records` what `others` say; whether that was news.
pub fn merge(records: &mut Records, others: &Records) -> bool {
    let mut news = false;
    for (members, mark) in others {
        let known = records.get(members);
        if known.is_none_or(|known| known < mark) {
            records.insert(members.clone(), *mark);
            news = true;
        }
    }
    news
}

/// The records that whoever has `theirs` lacks.
#[must_use]
pub fn news_for(theirs: &Records, records: &Records) -> Records {
    let lacks =
        |(members, mark): &(&Members, &Mark)| theirs.get(*members).is_none_or(|m| m < *mark);
    let lacking = records.iter().filter(lacks);
    lacking.map(|(members, mark)| (members.clone(), *mark)).collect()
}

/// A replica serves this ring: it is open from now on. Whether that was news.
pub fn open(records: &mut Records, members: &Members) -> bool {
    set(records, members, true)
}

/// Nothing lies where only this ring says it does. Whether that was news.
pub fn close(records: &mut Records, members: &Members) -> bool {
    set(records, members, false)
}

/// Nothing lies on this shard. Without it a ring finds all others where it did before, so in place of each open ring
/// with it that of the other members is open. Those that are closed.
pub fn leave(records: &mut Records, shard: &ShardName) -> Vec<Members> {
    let left = records.iter().filter(|(members, mark)| mark.open && members.contains(shard));
    let left: Vec<Members> = left.map(|(members, _)| members.clone()).collect();
    for ring in &left {
        let rest = ring.without(shard);
        if rest != Members::new(&[]) {
            open(records, &rest);
        }
        close(records, ring);
    }
    left
}

fn set(records: &mut Records, members: &Members, open: bool) -> bool {
    let version = match records.get(members) {
        Some(mark) if mark.open == open => return false,
        None if !open => return false,
        mark => mark.map_or(0, |mark| mark.version) + 1,
    };
    records.insert(members.clone(), Mark { version, open });
    true
}

// === impl Rings ===

impl Rings {
    /// The newest ring is this one, and of `records` all others that are open are older. Those that other replicas
    /// serve and that have shards which this one does not know are `elsewhere`.
    #[must_use]
    pub fn new(newest: &Members, records: &Records, elsewhere: &BTreeSet<Members>) -> Rings {
        let older = records.iter().filter(|(members, mark)| mark.open && *members != newest);
        let older = older.map(|(members, _)| members.ring()).collect();
        let elsewhere = elsewhere.iter().map(Members::ring).collect();
        Rings { newest: newest.ring(), older, elsewhere }
    }

    /// The newest one.
    #[must_use]
    pub fn newest(&self) -> &Ring {
        &self.newest
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.older.len() + 1
    }

    /// Whether a job can lie elsewhere than on its newest owner.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        !self.older.is_empty()
    }

    /// The owners of a job under the rings that other replicas serve; for an id that a server made its shard, if it is
    /// on one of those.
    pub fn owners_elsewhere(&self, key: &JobKey) -> impl Iterator<Item = ShardName> {
        let made = key.id.shard();
        self.elsewhere.iter().filter_map(move |ring| match &made {
            Some(name) => ring.contains(name).then(|| name.clone()),
            None => ring.owner(key).cloned(),
        })
    }

    /// The shards of the rings that other replicas serve.
    pub fn members_elsewhere(&self) -> impl Iterator<Item = &ShardName> {
        self.elsewhere.iter().flat_map(Ring::names)
    }

    /// The owners of a job under the older rings that are not its newest one, each once.
    #[must_use]
    pub fn former_owners(&self, key: &JobKey) -> Vec<&ShardName> {
        let newest = self.newest.owner(key);
        let mut owners: Vec<_> = self.older.iter().filter_map(|ring| ring.owner(key)).collect();
        owners.sort_unstable();
        owners.dedup();
        owners.retain(|owner| Some(*owner) != newest);
        owners
    }
}

#[cfg(test)]
mod tests {
    use super::super::{JobId, TopicName};
    use super::*;

    fn members(text: &str) -> Members {
        Members::stored(text).unwrap()
    }

    fn mark(version: u64, open: bool) -> Mark {
        Mark { version, open }
    }

    #[test]
    fn members_have_one_spelling() {
        let name = |name: &str| ShardName::try_new(name).unwrap();
        let made = Members::new(&[(name("b"), 2), (name("a"), 1), (name("c"), 0)]);
        assert_eq!(made.as_str(), "a:1,b:2");
        assert_eq!(Members::stored("a:1,b:2"), Some(made.clone()));
        assert!(made.contains(&name("b")) && !made.contains(&name("c")));
        assert_eq!(Members::new(&[]), members(""));
        for odd in ["b:1,a:1", "a", "a:0", "a:101", "a:01", "A:1", "a:1,"] {
            assert_eq!(Members::stored(odd), None, "{odd}");
        }
    }

    #[test]
    fn replicas_and_shards_catch_up_in_any_order() {
        let (one, two) = (members("a:1"), members("a:1,b:1"));
        let mut records = Records::new();
        assert!(open(&mut records, &one) && !open(&mut records, &one));
        assert!(open(&mut records, &two) && close(&mut records, &one));
        assert!(!close(&mut records, &members("z:1")), "what nobody served is not closed");
        let mut late = Records::from([(one.clone(), mark(1, true))]);
        assert_eq!(news_for(&late, &records).len(), 2);
        assert!(merge(&mut late, &records) && !merge(&mut late, &records));
        assert_eq!(late, records);
        assert!(!merge(&mut records, &Records::from([(one.clone(), mark(1, true))])), "old news");
        assert!(open(&mut records, &one));
        assert_eq!(records[&one], mark(3, true));
        // Two closed and reopened it at once, each not knowing of the other: it stays open.
        assert!(merge(&mut late, &Records::from([(one.clone(), mark(2, true))])));
        assert!(late[&one].open);
    }

    #[test]
    fn a_ring_that_others_serve_tells_who_may_have_a_job() {
        let (here, there) = (members("a:1,b:1"), members("a:1,b:1,c:1"));
        let (ring, elsewhere) = (there.ring(), BTreeSet::from([there.clone()]));
        assert_eq!(there.fingerprint(), ring.fingerprint());
        let rings = Rings::new(&here, &Records::new(), &elsewhere);
        let owners = |id: &str| {
            let key = JobKey { topic: TopicName::stored("t"), id: JobId::stored(id) };
            (rings.owners_elsewhere(&key).collect::<Vec<_>>(), ring.owner(&key).cloned())
        };
        for n in 0..100 {
            let (owners, owner) = owners(&format!("order-{n}"));
            assert_eq!(owners, Vec::from_iter(owner));
        }
        let c = ShardName::try_new("c").unwrap();
        assert_eq!(owners("c~0000000000000000000000").0, [c]);
        assert_eq!(owners("d~0000000000000000000000").0, []);
    }

    #[test]
    fn an_empty_shard_leaves_every_ring_and_all_other_jobs_are_found() {
        let (former, newest) = (members("a:1,b:1,c:2"), members("a:1,b:1,d:1"));
        let alone = members("c:2");
        let mut records = Records::new();
        for ring in [&former, &newest, &alone] {
            open(&mut records, ring);
        }
        let old = Rings::new(&newest, &records, &BTreeSet::new());
        let c = ShardName::try_new("c").unwrap();
        assert_eq!(leave(&mut records, &c), [former.clone(), alone]);
        assert!(leave(&mut records, &c).is_empty() && !records[&former].open);
        let new = Rings::new(&newest, &records, &BTreeSet::new());
        assert_eq!(new.count(), 2, "a:1,b:1 has taken its place");
        for n in 0..300 {
            let id = JobId::stored(&format!("order-{n}"));
            let key = JobKey { topic: TopicName::stored("t"), id };
            let mut owners = old.former_owners(&key);
            owners.retain(|owner| **owner != c);
            assert!(owners.iter().all(|owner| new.former_owners(&key).contains(owner)));
            assert!(!new.former_owners(&key).contains(&&c));
        }
    }

    #[test]
    fn a_job_is_looked_for_under_every_open_ring() {
        let (old, new) = (members("a:1,b:1"), members("a:1,b:1,c:1"));
        let closed = members("d:1");
        let records = Records::from([
            (old.clone(), mark(1, true)),
            (new.clone(), mark(1, true)),
            (closed, mark(2, false)),
        ]);
        let (rings, before, after) =
            (Rings::new(&new, &records, &BTreeSet::new()), old.ring(), new.ring());
        assert!(rings.is_changing());
        let mut moved = 0;
        for n in 0..300 {
            let id = JobId::stored(&format!("order-{n}"));
            let key = JobKey { topic: TopicName::stored("t"), id };
            let (from, to) = (before.owner(&key).unwrap(), after.owner(&key).unwrap());
            let expected: Vec<_> = Some(from).filter(|&from| from != to).into_iter().collect();
            assert_eq!(rings.former_owners(&key), expected);
            moved += expected.len();
        }
        assert!((60..140).contains(&moved), "a third of them: {moved}");
        let rings =
            Rings::new(&new, &Records::from([(new.clone(), mark(1, true))]), &BTreeSet::new());
        assert!(!rings.is_changing());
    }
}
