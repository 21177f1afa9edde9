//! The engine beside a store: it gets each command of a run, too, and every record of the store must read like the
//! one of the engine. This proves that the fast paths of stores, which bypass the engine, do what it does. The run
//! counts how often each fast path, and each exit from it, was taken.

use std::collections::BTreeMap;

use crate::store_calls::{LeaseExtension, LeaseSettlement, RedriveBatch, TestJob, Unclaim};
use ringq::domain::engine::{
    self, Command, CommandReply, Decision, IdHistory, IdLookup, JobHistory, JobParts, Lease,
    LeaseChange, NewJob, PartChange, PayloadChange, Phase, Record, RecordChange,
};
use ringq::domain::{
    Job, JobId, JobKey, Payload, RetentionRule, ShardName, State, Time, TopicName, limit,
};
use ringq::store::{
    Claim, ClaimResult, JobRequest, LeasedJob, SettleAction, StreamDemand, TopicDemand, TopicLeases,
};

/// Counts of the ways of a store: fast paths, and exits from them.
pub(super) type Ways = BTreeMap<&'static str, u64>;

/// The ways that a long run must have taken often.
pub(super) const WAYS: [&str; 19] = [
    "enqueue: free id",
    "enqueue: taken id",
    "enqueue: expired when it came",
    "ack: nothing stays",
    "ack: a tombstone stays",
    "ack: a record stays",
    "ack: with a result or follow-ups",
    "ack: of a job with a past",
    "ack: a generation waits",
    "ack: no lease of a job",
    "claim: nothing is ready",
    "claim: one plain job alone",
    "claim: plain jobs only",
    "claim: among plain ones a job with a priority",
    "claim: among plain ones a job that has run before",
    "claim: among plain ones a job that expires or has a lease of its own",
    "claim: past a job that has expired",
    "claim: for several takers",
    "claim: of several topics",
];

/// The engine's records after the commands of a run.
#[derive(Clone)]
pub(super) struct Mirror {
    shard: ShardName,
    jobs: BTreeMap<JobKey, Held>,
    pub(super) ways: Ways,
}

/// A record with its parts.
#[derive(Clone)]
struct Held {
    record: Record,
    bodies: JobParts,
    next_payload: Option<Payload>,
}

// === impl Mirror ===

impl Mirror {
    pub(super) fn new(shard: ShardName) -> Mirror {
        Mirror { shard, jobs: BTreeMap::new(), ways: Ways::new() }
    }

    /// Returns the job as the engine has it.
    pub(super) fn get(&self, key: &JobKey, now: Time) -> Option<Job> {
        let held = self.jobs.get(key)?.clone();
        held.record.job(key.clone(), self.shard.clone(), now, held.bodies)
    }

    pub(super) fn enqueue(&mut self, job: &TestJob, now: Time) {
        let found = self.jobs.get(&job.key).and_then(|held| held.record.state(now));
        let is_late = job.expire.is_some_and(|expire| expire.at(now) <= now);
        self.count(match found {
            Some(_) => "enqueue: taken id",
            None if is_late => "enqueue: expired when it came",
            None => "enqueue: free id",
        });
        let NewJob { key, enqueue } = job.clone().new_job();
        self.apply(&key, &Command::Enqueue(enqueue), now);
    }

    pub(super) fn settle(&mut self, settle: &LeaseSettlement, now: Time) {
        let JobRequest { key, command, .. } = settle.clone().into();
        let Command::Settle(settle) = command else { unreachable!("it asks for a settle") };
        if let SettleAction::Ack { result, follow_ups } = &settle.action {
            let held = self.jobs.get(&key);
            let leased = held.filter(|held| held.record.lease_of(settle.token).is_some());
            let brings = result.is_some() || !follow_ups.is_empty();
            self.count(match leased {
                None => "ack: no lease of a job",
                Some(_) if brings => "ack: with a result or follow-ups",
                Some(Held { record, .. }) if record.next.is_some() => "ack: a generation waits",
                Some(Held { record, .. }) if record.history != engine::JobHistory::new(1) => {
                    "ack: of a job with a past"
                }
                Some(Held { record, .. }) => match record.retention {
                    RetentionRule::Nothing => "ack: nothing stays",
                    RetentionRule::Tombstone(_) => "ack: a tombstone stays",
                    RetentionRule::Record(_) => "ack: a record stays",
                },
            });
        }
        self.apply(&key, &Command::Settle(settle), now);
    }

    pub(super) fn extend(&mut self, extend: &LeaseExtension, now: Time) {
        let JobRequest { key, command, .. } = extend.clone().into();
        self.apply(&key, &command, now);
    }

    pub(super) fn redrive(&mut self, redrive: &RedriveBatch, now: Time) {
        let mut done = 0;
        for JobRequest { key, command, .. } in redrive.requests() {
            let Command::Redrive(redrive) = command else { continue };
            let command = redrive.after(done);
            let target = command.target.clone();
            let is_taken = target.is_some_and(|topic| self.get(&at(topic, &key.id), now).is_some());
            if !is_taken {
                let answer = self.apply(&key, &Command::Redrive(command), now);
                done += u32::from(answer.is_applied());
            }
        }
    }

    pub(super) fn unclaim(&mut self, what: &Unclaim, now: Time) {
        let undone: Vec<_> = match what {
            Unclaim::Leases(refs) => refs.iter().map(|l| (l.key.clone(), l.token)).collect(),
            Unclaim::Claim(lost) => {
                let leases = self.jobs.iter().filter_map(|(key, held)| match &held.record.phase {
                    Phase::Running(lease) => Some((key.clone(), lease.token)),
                    _ => None,
                });
                leases.filter(|(_, token)| token.nonce() == lost.nonce).collect()
            }
        };
        for (key, token) in undone {
            self.apply(&key, &Command::Unclaim(token), now);
        }
    }

    /// Applies the leases that the store made: a claim is not a command.
    pub(super) fn claim(&mut self, claim: &Claim, got: &ClaimResult) {
        for (ask, claimed) in claim.topics.iter().zip(&got.topics) {
            self.count_claim(claim, ask, claimed, got.now);
            for (taker, leased) in ask.streams.iter().zip(&claimed.by_stream) {
                leased.iter().for_each(|leased| self.lease(claim.owner, taker, leased));
            }
        }
    }

    /// Counts the ways of a claim of this topic, by what it finds.
    fn count_claim(&mut self, claim: &Claim, ask: &TopicDemand, claimed: &TopicLeases, now: Time) {
        let keys: Vec<&JobKey> =
            claimed.by_stream.iter().flatten().map(|leased| &leased.key).collect();
        let records = keys.iter().map(|key| &self.jobs[*key].record);
        let records: Vec<&Record> = records.collect();
        let any = |is: fn(&Record) -> bool| records.iter().any(|record| is(record));
        let (ranked, run) =
            (any(|job| job.priority > 0), any(|job| job.history != JobHistory::new(1)));
        let bound = any(|job| job.expire.is_some() || job.spec.lease.is_some());
        let is_plain = !ranked && !run && !bound;
        let has_expired = self.jobs.iter().any(|(key, held)| {
            key.topic == ask.topic
                && held.record.phase == Phase::Waiting
                && held.record.state(now) == Some(State::Expired)
        });
        let (takers, topics) = (ask.streams.len(), claim.topics.len());
        let ways = [
            keys.is_empty(),
            keys.len() == 1 && is_plain && takers == 1 && topics == 1,
            keys.len() > 1 && is_plain,
            ranked,
            run,
            bound,
            has_expired && !keys.is_empty(),
            takers > 1 && !keys.is_empty(),
            topics > 1 && !keys.is_empty(),
        ];
        for (_, way) in ways.into_iter().zip(&WAYS[10..]).filter(|(taken, _)| *taken) {
            self.count(way);
        }
    }

    fn lease(&mut self, owner: u32, taker: &StreamDemand, leased: &LeasedJob) {
        let held = self.jobs.get_mut(&leased.key).expect("a job that is leased is there");
        assert_eq!(leased.checkpoint, held.bodies.checkpoint, "{}", leased.key);
        held.record.phase = Phase::Running(Lease {
            token: leased.token,
            started: leased.fence,
            deadline: leased.deadline.into(),
            extended: None,
            owner,
            stream: taker.stream,
            grace: taker.grace,
            duration: held.record.spec.lease.unwrap_or(taker.lease),
            worker: taker.worker_id.to_string(),
        });
    }

    /// Applies a command, with all its consequences.
    pub(super) fn apply(&mut self, key: &JobKey, command: &Command, now: Time) -> CommandReply {
        let Decision { change, parts, effects, reply: answer, window } =
            self.decide(key, command, now);
        assert!(window.contains(now), "{command:?}");
        assert!(
            !matches!(effects.lease, Some((_, LeaseChange::Extended)))
                || matches!(command, Command::Extend(_))
        );
        let before = match change {
            RecordChange::Keep => None,
            _ => self.jobs.remove(key),
        };
        if let RecordChange::Write(record) | RecordChange::Insert(record) = change {
            let held = before.unwrap_or_else(|| Held {
                record: (*record).clone(),
                bodies: JobParts::default(),
                next_payload: None,
            });
            let target = effects.moved_to.map_or(key.clone(), |topic| at(topic, &key.id));
            self.jobs.insert(target, held.changed(*record, parts));
        }
        for NewJob { key, enqueue } in effects.follow_ups {
            self.apply(&key, &Command::Enqueue(enqueue), now);
        }
        answer
    }

    fn decide(&self, key: &JobKey, command: &Command, now: Time) -> Decision {
        let found = match self.jobs.get(key) {
            Some(held) => IdLookup::Record(Box::new(held.record.clone())),
            None => IdLookup::Absent(IdHistory::Free),
        };
        engine::apply(found, command, now)
    }

    fn count(&mut self, way: &'static str) {
        *self.ways.entry(way).or_default() += 1;
    }
}

fn at(topic: TopicName, id: &JobId) -> JobKey {
    JobKey { topic, id: id.clone() }
}

// === impl Held ===

impl Held {
    fn changed(mut self, record: Record, parts: engine::PartChanges) -> Held {
        let engine::PartChanges { payload, next_payload, result, attempts, checkpoint } = parts;
        match payload {
            PayloadChange::Keep => {}
            PayloadChange::Set(payload) => self.bodies.payload = Some(payload),
            PayloadChange::Drop => self.bodies.payload = None,
            PayloadChange::Promote => self.bodies.payload = self.next_payload.take(),
        }
        change(&mut self.next_payload, next_payload);
        change(&mut self.bodies.result, result);
        change(&mut self.bodies.checkpoint, checkpoint);
        if attempts.cleared {
            self.bodies.attempts.clear();
        }
        self.bodies.attempts.splice(..0, attempts.added);
        self.bodies.attempts.truncate(limit::ATTEMPTS_KEPT);
        self.record = record;
        self
    }
}

fn change(part: &mut Option<Payload>, change: PartChange<Payload>) {
    match change {
        PartChange::Keep => {}
        PartChange::Set(payload) => *part = Some(payload),
        PartChange::Drop => *part = None,
    }
}
