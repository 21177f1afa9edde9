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
pub struct RingMembers(String);

/// What is known of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RingRecord {
    /// Counts its changes, from 1 on.
    pub version: u64,
    /// Whether jobs may lie where it says. Of two replicas that say different things of one version the
    /// one that says so is right.
    pub open: bool,
}

/// Everything known of rings: what one shard has, or all shards together.
pub type RingRecords = BTreeMap<RingMembers, RingRecord>;

/// See the module.
#[derive(Clone, Debug)]
pub struct OpenRings {
    newest: Ring,
    older: Vec<Ring>,
    peer_rings: Vec<Ring>,
}

// === impl Members ===

impl RingMembers {
    /// Those of a ring of these shards.
    #[must_use]
    pub fn new(members: &[(ShardName, u32)]) -> RingMembers {
        let mut members: Vec<_> = members.iter().filter(|(_, weight)| *weight > 0).collect();
        members.sort();
        let texts: Vec<_> =
            members.into_iter().map(|(name, weight)| format!("{name}:{weight}")).collect();
        RingMembers(texts.join(","))
    }

    /// As a shard has stored them; `None` if that makes no sense.
    #[must_use]
    pub fn stored(text: &str) -> Option<RingMembers> {
        let members = RingMembers(text.to_owned());
        let read = members.parse()?;
        (RingMembers::new(&read) == members).then_some(members)
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
        self.parse().unwrap_or_default().into_iter().map(|(name, _)| name).collect()
    }

    /// That of their ring.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        fingerprint(&self.parse().unwrap_or_default())
    }

    /// The others, when this shard leaves them.
    #[must_use]
    pub fn without(&self, shard: &ShardName) -> RingMembers {
        let mut rest = self.parse().unwrap_or_default();
        rest.retain(|(name, _)| name != shard);
        RingMembers::new(&rest)
    }

    /// The ring.
    #[must_use]
    pub fn to_ring(&self) -> Ring {
        Ring::new(self.parse().unwrap_or_default())
    }

    /// Each with its weight.
    #[must_use]
    pub fn parse(&self) -> Option<Vec<(ShardName, u32)>> {
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

impl fmt::Display for RingMembers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Adds to what is known in `records` what `others` say; whether that was news.
pub fn merge_records(records: &mut RingRecords, others: &RingRecords) -> bool {
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
pub fn missing_records(theirs: &RingRecords, records: &RingRecords) -> RingRecords {
    let lacks = |(members, mark): &(&RingMembers, &RingRecord)| {
        theirs.get(*members).is_none_or(|m| m < *mark)
    };
    let lacking = records.iter().filter(lacks);
    lacking.map(|(members, mark)| (members.clone(), *mark)).collect()
}

/// A replica serves this ring: it is open from now on. Whether that was news.
pub fn open_ring(records: &mut RingRecords, members: &RingMembers) -> bool {
    set_open(records, members, true)
}

/// Nothing lies where only this ring says it does. Whether that was news.
pub fn close_ring(records: &mut RingRecords, members: &RingMembers) -> bool {
    set_open(records, members, false)
}

/// Nothing lies on this shard. Without it a ring finds all others where it did before, so in place of each open ring
/// with it that of the other members is open. Those that are closed.
pub fn remove_shard(records: &mut RingRecords, shard: &ShardName) -> Vec<RingMembers> {
    let left = records.iter().filter(|(members, mark)| mark.open && members.contains(shard));
    let left: Vec<RingMembers> = left.map(|(members, _)| members.clone()).collect();
    for ring in &left {
        let rest = ring.without(shard);
        if rest != RingMembers::new(&[]) {
            open_ring(records, &rest);
        }
        close_ring(records, ring);
    }
    left
}

fn set_open(records: &mut RingRecords, members: &RingMembers, open: bool) -> bool {
    let version = match records.get(members) {
        Some(mark) if mark.open == open => return false,
        None if !open => return false,
        mark => mark.map_or(0, |mark| mark.version) + 1,
    };
    records.insert(members.clone(), RingRecord { version, open });
    true
}

// === impl Rings ===

impl OpenRings {
    /// The newest ring is this one, and of `records` all others that are open are older. Those that other replicas
    /// serve and that have shards which this one does not know are `elsewhere`.
    #[must_use]
    pub fn new(
        newest: &RingMembers,
        records: &RingRecords,
        elsewhere: &BTreeSet<RingMembers>,
    ) -> OpenRings {
        let older = records.iter().filter(|(members, mark)| mark.open && *members != newest);
        let older = older.map(|(members, _)| members.to_ring()).collect();
        let elsewhere = elsewhere.iter().map(RingMembers::to_ring).collect();
        OpenRings { newest: newest.to_ring(), older, peer_rings: elsewhere }
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
    pub fn owners_on_peer_rings(&self, key: &JobKey) -> impl Iterator<Item = ShardName> {
        let made = key.id.shard();
        self.peer_rings.iter().filter_map(move |ring| match &made {
            Some(name) => ring.contains(name).then(|| name.clone()),
            None => ring.owner(key).cloned(),
        })
    }

    /// The shards of the rings that other replicas serve.
    pub fn peer_ring_shards(&self) -> impl Iterator<Item = &ShardName> {
        self.peer_rings.iter().flat_map(Ring::names)
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

    fn members(text: &str) -> RingMembers {
        RingMembers::stored(text).unwrap()
    }

    fn mark(version: u64, open: bool) -> RingRecord {
        RingRecord { version, open }
    }

    #[test]
    fn members_have_one_spelling() {
        let name = |name: &str| ShardName::try_new(name).unwrap();
        let made = RingMembers::new(&[(name("b"), 2), (name("a"), 1), (name("c"), 0)]);
        assert_eq!(made.as_str(), "a:1,b:2");
        assert_eq!(RingMembers::stored("a:1,b:2"), Some(made.clone()));
        assert!(made.contains(&name("b")) && !made.contains(&name("c")));
        assert_eq!(RingMembers::new(&[]), members(""));
        for odd in ["b:1,a:1", "a", "a:0", "a:101", "a:01", "A:1", "a:1,"] {
            assert_eq!(RingMembers::stored(odd), None, "{odd}");
        }
    }

    #[test]
    fn replicas_and_shards_catch_up_in_any_order() {
        let (one, two) = (members("a:1"), members("a:1,b:1"));
        let mut records = RingRecords::new();
        assert!(open_ring(&mut records, &one) && !open_ring(&mut records, &one));
        assert!(open_ring(&mut records, &two) && close_ring(&mut records, &one));
        assert!(!close_ring(&mut records, &members("z:1")), "what nobody served is not closed");
        let mut late = RingRecords::from([(one.clone(), mark(1, true))]);
        assert_eq!(missing_records(&late, &records).len(), 2);
        assert!(merge_records(&mut late, &records) && !merge_records(&mut late, &records));
        assert_eq!(late, records);
        assert!(
            !merge_records(&mut records, &RingRecords::from([(one.clone(), mark(1, true))])),
            "old news"
        );
        assert!(open_ring(&mut records, &one));
        assert_eq!(records[&one], mark(3, true));
        // Two closed and reopened it at once, each not knowing of the other: it stays open.
        assert!(merge_records(&mut late, &RingRecords::from([(one.clone(), mark(2, true))])));
        assert!(late[&one].open);
    }

    #[test]
    fn owners_on_rings_of_other_replicas_are_found() {
        let (here, there) = (members("a:1,b:1"), members("a:1,b:1,c:1"));
        let (ring, elsewhere) = (there.to_ring(), BTreeSet::from([there.clone()]));
        assert_eq!(there.fingerprint(), ring.fingerprint());
        let rings = OpenRings::new(&here, &RingRecords::new(), &elsewhere);
        let owners = |id: &str| {
            let key = JobKey { topic: TopicName::stored("t"), id: JobId::stored(id) };
            (rings.owners_on_peer_rings(&key).collect::<Vec<_>>(), ring.owner(&key).cloned())
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
        let mut records = RingRecords::new();
        for ring in [&former, &newest, &alone] {
            open_ring(&mut records, ring);
        }
        let old = OpenRings::new(&newest, &records, &BTreeSet::new());
        let c = ShardName::try_new("c").unwrap();
        assert_eq!(remove_shard(&mut records, &c), [former.clone(), alone]);
        assert!(remove_shard(&mut records, &c).is_empty() && !records[&former].open);
        let new = OpenRings::new(&newest, &records, &BTreeSet::new());
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
        let records = RingRecords::from([
            (old.clone(), mark(1, true)),
            (new.clone(), mark(1, true)),
            (closed, mark(2, false)),
        ]);
        let (rings, before, after) =
            (OpenRings::new(&new, &records, &BTreeSet::new()), old.to_ring(), new.to_ring());
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
        let rings = OpenRings::new(
            &new,
            &RingRecords::from([(new.clone(), mark(1, true))]),
            &BTreeSet::new(),
        );
        assert!(!rings.is_changing());
    }
}
