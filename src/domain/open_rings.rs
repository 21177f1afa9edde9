//! The open rings: the newest one, which this replica serves, and older ones under which jobs may still be stored whose
//! newest owner is another shard. A job with a client-chosen id is looked up under all of them and written under the
//! newest one only, so a ring can change while jobs are stored on it.
//!
//! Every ring that a replica serves is recorded on every shard. A record has a version: of two records of one ring the
//! one with the higher version is valid, so replicas and shards that were unreachable catch up in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::ring::{WEIGHT_MAX, fingerprint};
use super::{JobKey, Ring, ShardName};

/// Members of a ring as text, which identifies the ring: `a:1,b:2`, sorted by name, without members of weight 0.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingMembers(String);

/// Record of a ring: version and state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RingRecord {
    /// Number of changes of the record; 1 at first.
    pub version: u64,
    /// True if jobs may still be stored where the ring puts them. Of two records of one version the open one is valid.
    pub open: bool,
}

/// Records of all rings, of one shard or of all shards together.
pub type RingRecords = BTreeMap<RingMembers, RingRecord>;

/// The open rings as this replica routes by them: the newest, the older ones, and rings of other replicas.
#[derive(Clone, Debug)]
pub struct OpenRings {
    newest: Ring,
    older: Vec<Ring>,
    peer_rings: Vec<Ring>,
}

// === impl RingMembers ===

impl RingMembers {
    /// Returns the members of a ring of these shards with their weights.
    #[must_use]
    pub fn new(members: &[(ShardName, u32)]) -> RingMembers {
        let mut members: Vec<_> = members.iter().filter(|(_, weight)| *weight > 0).collect();
        members.sort();
        let texts: Vec<_> =
            members.into_iter().map(|(name, weight)| format!("{name}:{weight}")).collect();
        RingMembers(texts.join(","))
    }

    /// Parses members as a shard has stored them; `None` if the text is malformed.
    #[must_use]
    pub fn stored(text: &str) -> Option<RingMembers> {
        let members = RingMembers(text.to_owned());
        let read = members.parse()?;
        (RingMembers::new(&read) == members).then_some(members)
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the shard is a member.
    #[must_use]
    pub fn contains(&self, shard: &ShardName) -> bool {
        self.names().contains(shard)
    }

    /// Returns the names of the members.
    #[must_use]
    pub fn names(&self) -> Vec<ShardName> {
        self.parse().unwrap_or_default().into_iter().map(|(name, _)| name).collect()
    }

    /// Returns the fingerprint of the ring.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        fingerprint(&self.parse().unwrap_or_default())
    }

    /// Returns the members without this shard.
    #[must_use]
    pub fn without(&self, shard: &ShardName) -> RingMembers {
        let mut rest = self.parse().unwrap_or_default();
        rest.retain(|(name, _)| name != shard);
        RingMembers::new(&rest)
    }

    /// Builds the ring of these members.
    #[must_use]
    pub fn to_ring(&self) -> Ring {
        Ring::new(self.parse().unwrap_or_default())
    }

    /// Returns each member with its weight; `None` if the text is malformed.
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

/// Merges `others` into `records`: for each ring the higher version stays. Returns whether `records` changed.
pub fn merge_records(records: &mut RingRecords, others: &RingRecords) -> bool {
    let mut changed = false;
    for (members, mark) in others {
        let known = records.get(members);
        if known.is_none_or(|known| known < mark) {
            records.insert(members.clone(), *mark);
            changed = true;
        }
    }
    changed
}

/// Returns the records that `theirs` lacks or has in an older version.
#[must_use]
pub fn missing_records(theirs: &RingRecords, records: &RingRecords) -> RingRecords {
    let lacks = |(members, mark): &(&RingMembers, &RingRecord)| {
        theirs.get(*members).is_none_or(|m| m < *mark)
    };
    let lacking = records.iter().filter(lacks);
    lacking.map(|(members, mark)| (members.clone(), *mark)).collect()
}

/// Opens a ring, because a replica serves it. Returns whether `records` changed.
pub fn open_ring(records: &mut RingRecords, members: &RingMembers) -> bool {
    set_open(records, members, true)
}

/// Closes a ring: no job is stored where only this ring puts it. Returns whether `records` changed.
pub fn close_ring(records: &mut RingRecords, members: &RingMembers) -> bool {
    set_open(records, members, false)
}

/// Removes an empty shard from all open rings: each ring with it is closed, and the ring of its other members is
/// opened. Without the shard a ring finds all other jobs where it did before. Returns the rings that were closed.
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

// === impl OpenRings ===

impl OpenRings {
    /// Builds the open rings: `newest`, and all other open rings of `records` as older ones. `elsewhere`: rings that
    /// other replicas serve and that have shards which are not configured here.
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

    /// Returns the newest ring.
    #[must_use]
    pub fn newest(&self) -> &Ring {
        &self.newest
    }

    /// Returns the number of open rings.
    #[must_use]
    pub fn count(&self) -> usize {
        self.older.len() + 1
    }

    /// Returns whether a job can be stored elsewhere than on its newest owner.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        !self.older.is_empty()
    }

    /// Returns the owners of a job under the rings that other replicas serve. For a server-made id that is its shard,
    /// if the shard is on one of those rings.
    pub fn owners_on_peer_rings(&self, key: &JobKey) -> impl Iterator<Item = ShardName> {
        let made = key.id.shard();
        self.peer_rings.iter().filter_map(move |ring| match &made {
            Some(name) => ring.contains(name).then(|| name.clone()),
            None => ring.owner(key).cloned(),
        })
    }

    /// Returns the shards of the rings that other replicas serve.
    pub fn peer_ring_shards(&self) -> impl Iterator<Item = &ShardName> {
        self.peer_rings.iter().flat_map(Ring::names)
    }

    /// Returns the owners of a job under the older rings, each once, without its owner under the newest ring.
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
        assert!(!close_ring(&mut records, &members("z:1")), "an unknown ring is not closed");
        let mut late = RingRecords::from([(one.clone(), mark(1, true))]);
        assert_eq!(missing_records(&late, &records).len(), 2);
        assert!(merge_records(&mut late, &records) && !merge_records(&mut late, &records));
        assert_eq!(late, records);
        assert!(
            !merge_records(&mut records, &RingRecords::from([(one.clone(), mark(1, true))])),
            "an older version"
        );
        assert!(open_ring(&mut records, &one));
        assert_eq!(records[&one], mark(3, true));
        // Two replicas close and reopen the ring independently: it stays open.
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
