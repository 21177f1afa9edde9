//! Jobs that were loaded for a call, the decisions about them in the order of the commands, and the writes that
//! belong together.

use bytes::Bytes;
use foldhash::{HashMap, HashMapExt as _, HashSet};

use crate::domain::engine::{
    self, Command, CommandReply, Decision, IdHistory, IdLookup, NewJob, NotWrittenReason, Record,
    RecordChange, ValidityWindow,
};
use crate::domain::{JobKey, Time, limit};
use crate::store::{Error, JobRequest, Result};

use super::commit::{CommitItem, RecordSlot, RecordWrite, TopicLimit};
use super::entry::{JobEntry, finished_in};
use super::reply::unexpected;

/// Loaded jobs, and the decisions about them.
pub(super) struct LoadedJobs {
    pub(super) slots: HashMap<JobKey, (RecordSlot, IdHistory)>,
    /// Time of the store when the jobs were read.
    pub(super) now: Time,
    pub(super) items: Vec<(CommitItem, Vec<WaitingCommand>)>,
    /// Number of jobs that were redriven so far.
    pub(super) redriven: u32,
    /// Earliest time at which upkeep is due because of these writes.
    pub(super) upkeep: Option<Time>,
    /// Jobs that cannot be read, with their errors.
    damaged: HashMap<JobKey, Error>,
    /// Jobs of deferred commands; later commands about these jobs are deferred, too.
    deferred: HashSet<JobKey>,
    /// True if all later commands are deferred: one of them depends on whether a topic has room for the job of another
    /// one, and those behind it must not take that room.
    waits_for_room: bool,
}

/// A command that is done once its item is written.
pub(super) struct WaitingCommand {
    /// Index in the call.
    pub(super) index: usize,
    pub(super) outcome: DecidedCommand,
    /// The command needs memory.
    pub(super) needs_memory: bool,
}

/// Result of a command if it is written as decided.
pub(super) struct DecidedCommand {
    pub(super) answer: CommandReply,
    /// Record of the job after the command, if it is written.
    pub(super) record: Option<Record>,
}

/// Maximum number of jobs in a call that may have been written before: each is looked up among the ended jobs of its
/// second.
pub(super) const REPEATS_MAX: usize = 64;

/// Result of a decision about a command.
pub(super) enum DecideOutcome {
    /// Nothing has to be written.
    Done(CommandReply),
    /// A job of the command cannot be read.
    Damaged(Error),
    /// The command is part of an item.
    Queued,
    /// The command is about jobs of several items: it is decided after these are written.
    Deferred,
}

/// Returns the keys of a command beside its own, whose jobs it may write.
pub(super) fn further_keys(request: &JobRequest) -> impl Iterator<Item = JobKey> + '_ {
    let target = match &request.command {
        Command::Redrive(redrive) => redrive.target.as_ref(),
        _ => None,
    };
    let follow_ups = match &request.command {
        Command::Settle(engine::Settle {
            action: engine::SettleAction::Ack { follow_ups, .. },
            ..
        }) => follow_ups.as_slice(),
        _ => &[],
    };
    let id = &request.key.id;
    let target = target.map(|topic| JobKey { topic: topic.clone(), id: id.clone() });
    follow_ups.iter().map(|job| job.key.clone()).chain(target)
}

fn decode_entry(found: Option<Bytes>) -> Result<(Option<JobEntry>, IdHistory)> {
    let Some(found) = found else { return Ok((None, IdHistory::Free)) };
    let memory = match found[..] {
        [b'O'] => IdHistory::Rejected(NotWrittenReason::TooOld),
        [b'A'] => IdHistory::Rejected(NotWrittenReason::FromFuture),
        [b'F'] => IdHistory::Rejected(NotWrittenReason::HistoryLost),
        [b'X'] => IdHistory::Rejected(NotWrittenReason::Draining),
        [phase] if phase.is_ascii_digit() => IdHistory::Ended(finished_in(phase - b'0')),
        [_] | [] => return Err(unexpected("the history of an id")),
        _ => return Ok((Some(JobEntry::read(found)?), IdHistory::Free)),
    };
    Ok((None, memory))
}

// === impl LoadedJobs ===

impl LoadedJobs {
    /// Returns the jobs that were read at `now`.
    pub(super) fn from_entries(now: Time, found: Vec<(JobKey, JobEntry)>) -> LoadedJobs {
        let slot = |(key, entry)| (key, (RecordSlot::new(Some(entry)), IdHistory::Free));
        LoadedJobs {
            slots: found.into_iter().map(slot).collect(),
            now,
            items: Vec::new(),
            redriven: 0,
            upkeep: None,
            damaged: HashMap::new(),
            deferred: HashSet::default(),
            waits_for_room: false,
        }
    }

    /// Adds the entry that was found under a key. `again`: the job may have been written before.
    pub(super) fn insert(&mut self, key: &JobKey, again: bool, bytes: Option<Bytes>) {
        match decode_entry(bytes) {
            Ok((entry, memory)) => {
                let slot = RecordSlot { is_unknown: again, ..RecordSlot::new(entry) };
                self.slots.insert(key.clone(), (slot, memory));
            }
            Err(error) => {
                tracing::error!(job = %key, %error, "a stored job cannot be read; commands for it fail");
                self.damaged.insert(key.clone(), error);
            }
        }
    }

    /// Decides about a command, after all earlier commands.
    pub(super) fn decide(&mut self, index: usize, request: &JobRequest) -> DecideOutcome {
        let JobRequest { key, command, .. } = request;
        let keys = [key.clone()].into_iter().chain(further_keys(request));
        if let Some(error) = keys.filter_map(|key| self.damaged.get(&key)).next() {
            return DecideOutcome::Damaged(error.clone());
        }
        let mut keys = [key.clone()].into_iter().chain(further_keys(request));
        let is_limited = |item: usize| self.items[item].0.limit.is_some();
        let items = match self.items_of(request) {
            Some(Some(item)) if is_limited(item) => return self.wait_for_room(),
            Some(items)
                if !self.waits_for_room && !keys.any(|key| self.deferred.contains(&key)) =>
            {
                items
            }
            _ => {
                self.deferred.extend([key.clone()].into_iter().chain(further_keys(request)));
                return DecideOutcome::Deferred;
            }
        };
        let spaced = match command {
            Command::Redrive(redrive) => Some(Command::Redrive(redrive.after(self.redriven))),
            _ => None,
        };
        let command = spaced.as_ref().unwrap_or(command);
        let decision = match command {
            Command::Redrive(redrive) if let Some(topic) = &redrive.target => {
                let target = JobKey { topic: topic.clone(), id: key.id.clone() };
                engine::redrive_to(self.find(key), self.find(&target), redrive, self.now).0
            }
            _ => engine::apply(self.find(key), command, self.now),
        };
        // One that is only asked for counts, too: the due times of the others depend on it.
        let is_redriven = matches!(command, Command::Redrive(_)) && decision.reply.is_applied();
        self.redriven += u32::from(is_redriven);
        if decision.change == RecordChange::Keep {
            return match items {
                // The decision holds only if earlier decisions are written.
                Some(item) => self.add_waiting(item, index, false, (decision.reply, None)),
                None => DecideOutcome::Done(decision.reply),
            };
        }
        let limit = self.limit_of(key, command, &decision);
        if limit.is_some() && items.is_some() {
            return self.wait_for_room();
        }
        let item = items.unwrap_or_else(|| self.new_item());
        self.narrow_window(item, decision.window);
        self.items[item].0.limit = limit;
        let answer = decision.reply.clone();
        // Cleared first, to see whether this command needs memory itself.
        let did_grow = std::mem::take(&mut self.items[item].0.needs_memory);
        let written = self.apply_decision(item, key, command, decision);
        let grows = self.items[item].0.needs_memory;
        self.items[item].0.needs_memory |= did_grow;
        let record = self.slots.get(&written).and_then(|(slot, _)| slot.record.clone());
        self.add_waiting(item, index, grows, (answer, record))
    }

    /// Returns the limits of the topic to which a decision about a new job adds, if it has any. The decision is an item of
    /// its own, as it may be refused.
    fn limit_of(&self, key: &JobKey, command: &Command, decision: &Decision) -> Option<TopicLimit> {
        let Command::Enqueue(new) = command else { return None };
        let before = self.slots.get(key).and_then(|(slot, _)| slot.record.as_ref());
        let max_waiting = new.max_waiting.filter(|_| decision.adds_waiting(before, self.now));
        let added_bytes = decision.added_bytes(before.map_or(0, Record::counted_bytes));
        let max_bytes = new.max_bytes.filter(|&max| max < u64::MAX && added_bytes > 0);
        let is_limited = max_waiting.is_some() || max_bytes.is_some();
        let topic = key.topic.clone();
        is_limited.then_some(TopicLimit { topic, max_waiting, max_bytes, added_bytes })
    }

    fn wait_for_room(&mut self) -> DecideOutcome {
        self.waits_for_room = true;
        DecideOutcome::Deferred
    }

    /// Adds a decision to an item, with its consequences; returns the key of the job afterwards.
    fn apply_decision(
        &mut self,
        item: usize,
        key: &JobKey,
        command: &Command,
        decision: Decision,
    ) -> JobKey {
        // All items with a limit are in the calls of those that need memory, which keep their order.
        self.items[item].0.needs_memory |=
            decision.effects.counters.enqueued > 0 || self.items[item].0.limit.is_some();
        if let Some(topic) = decision.effects.moved_to.clone() {
            let target = JobKey { topic, id: key.id.clone() };
            self.items[item].0.moves = true;
            self.add_move(item, key, &target, decision);
            return target;
        }
        let follow_ups = decision.effects.follow_ups.clone();
        self.add_decision(item, key, decision);
        if let Some((slot, _)) = self.slots.get_mut(key) {
            match command {
                Command::Settle(settle) => slot.deadline = settle.deadline.or(slot.deadline),
                Command::Enqueue(new) => slot.is_counted |= new.max_bytes.is_some(),
                _ => {}
            }
        }
        for job in follow_ups {
            self.add_follow_up_job(item, job);
        }
        key.clone()
    }

    /// Returns the item of all jobs of a command, if they are in at most one; `None`: they are in several.
    fn items_of(&self, request: &JobRequest) -> Option<Option<usize>> {
        let keys = [request.key.clone()].into_iter().chain(further_keys(request));
        let items = keys.filter_map(|key| self.slots.get(&key).and_then(|(slot, _)| slot.item));
        let items: HashSet<usize> = items.collect();
        let mut items = items.into_iter();
        let (first, second) = (items.next(), items.next());
        let moves =
            matches!(&request.command, Command::Redrive(redrive) if redrive.target.is_some());
        // A command that moves a job is an item of its own.
        let is_alone = first.is_some_and(|item| moves || self.items[item].0.moves);
        (second.is_none() && !is_alone).then_some(first)
    }

    fn find(&self, key: &JobKey) -> IdLookup {
        match self.slots.get(key).map(|(slot, memory)| (&slot.record, *memory)) {
            Some((Some(record), _)) => IdLookup::Record(Box::new(record.clone())),
            Some((None, memory)) => IdLookup::Absent(memory),
            None => IdLookup::Absent(IdHistory::Free),
        }
    }

    fn new_item(&mut self) -> usize {
        let (keys, window) = (Vec::new(), ValidityWindow::ALWAYS);
        let item = CommitItem { keys, window, needs_memory: false, moves: false, limit: None };
        self.items.push((item, Vec::new()));
        self.items.len() - 1
    }

    fn narrow_window(&mut self, item: usize, window: ValidityWindow) {
        let item = &mut self.items[item].0;
        item.window = item.window.intersect(window);
    }

    fn add_waiting(
        &mut self,
        item: usize,
        index: usize,
        grows: bool,
        (answer, record): (CommandReply, Option<Record>),
    ) -> DecideOutcome {
        self.items[item].1.push(WaitingCommand {
            index,
            outcome: DecidedCommand { answer, record },
            needs_memory: grows,
        });
        DecideOutcome::Queued
    }

    /// Adds a job that is written together with the one before it, unless its id is in use.
    fn add_follow_up_job(&mut self, item: usize, NewJob { key, enqueue }: NewJob) {
        let is_counted = enqueue.max_bytes.is_some();
        let decision = engine::apply(self.find(&key), &Command::Enqueue(enqueue), self.now);
        if decision.change != RecordChange::Keep {
            if let Some((slot, _)) = self.slots.get_mut(&key) {
                slot.is_counted |= is_counted;
            }
            self.narrow_window(item, decision.window);
            // Without the follow-up job there is no ack, either.
            self.items[item].0.needs_memory = true;
            self.add_decision(item, &key, decision);
        }
    }

    /// Adds a decision about a job to an item.
    fn add_decision(&mut self, item: usize, key: &JobKey, decision: Decision) {
        if decision.change == RecordChange::Keep {
            return;
        }
        let Some((slot, memory)) = self.slots.get_mut(key) else { return };
        let item_ = &mut self.items[item].0;
        if slot.item.is_none() {
            slot.item = Some(item);
            item_.keys.push(key.clone());
        }
        let effects = decision.effects;
        item_.needs_memory |= decision.parts.grows();
        let write = match decision.change {
            RecordChange::Keep => return,
            RecordChange::Remove => RecordWrite::Remove,
            RecordChange::Write(_) if slot.write == RecordWrite::Insert => RecordWrite::Insert,
            RecordChange::Write(_) => RecordWrite::Write,
            RecordChange::Insert(_) => RecordWrite::Insert,
        };
        slot.write = write;
        slot.record = match decision.change {
            RecordChange::Write(record) | RecordChange::Insert(record) => Some(*record),
            RecordChange::Keep | RecordChange::Remove => None,
        };
        slot.parts = std::mem::take(&mut slot.parts).then(decision.parts);
        slot.counters.enqueued += effects.counters.enqueued;
        slot.counters.succeeded += effects.counters.succeeded;
        slot.counters.dead += effects.counters.dead;
        if let Some(ended) = effects.final_state {
            slot.final_state = Some(ended);
            *memory = IdHistory::Ended(ended);
        }
        slot.lease_change = effects.lease.map(|(_, news)| news).or(slot.lease_change);
    }

    /// Moves a job from one topic to another: its record is removed, and arrives in the target.
    fn add_move(&mut self, item: usize, key: &JobKey, target: &JobKey, decision: Decision) {
        let RecordChange::Insert(record) = &decision.change else { return };
        let ended = decision.effects.final_state;
        let parts = decision.parts.clone();
        let entry = self.slots.get(key).and_then(|(slot, _)| slot.entry.clone());
        if let Some((slot, _)) = self.slots.get_mut(key) {
            (slot.write, slot.final_state, slot.item) = (RecordWrite::Remove, ended, Some(item));
        }
        if let Some((slot, _)) = self.slots.get_mut(target) {
            (slot.write, slot.item, slot.parts) = (RecordWrite::Insert, Some(item), parts);
            slot.record = Some((**record).clone());
            slot.moved_from = entry;
        }
        let item = &mut self.items[item].0;
        item.needs_memory = true;
        item.keys = vec![key.clone(), target.clone()];
    }

    /// Returns the commands that are done once these items are written.
    pub(super) fn waiting_commands(
        &self,
        items: &[usize],
    ) -> impl Iterator<Item = &WaitingCommand> {
        items.iter().flat_map(|&item| &self.items[item].1)
    }

    /// Takes the commands of one item that was written.
    pub(super) fn take_commands(&mut self, item: usize) -> Vec<WaitingCommand> {
        std::mem::take(&mut self.items[item].1)
    }

    /// Splits the items into calls, each within the limits of a call, and by whether they need memory.
    pub(super) fn split_into_calls(&self) -> Vec<Vec<usize>> {
        let mut calls = Vec::new();
        for grows in [false, true] {
            let (mut call, mut jobs, mut bytes, mut unknown) = (Vec::new(), 0, 0, 0);
            for (item, (found, _)) in self.items.iter().enumerate() {
                if found.needs_memory != grows || found.keys.is_empty() {
                    continue;
                }
                let (more, size) = (found.keys.len(), self.item_bytes(found));
                // The script looks up each of these jobs among the ended ones.
                let searched = self.absent_count(found);
                let is_full = jobs + more > limit::CALL_JOBS_MAX
                    || bytes + size > limit::CALL_BYTES_MAX
                    || unknown + searched > REPEATS_MAX;
                if is_full && !call.is_empty() {
                    calls.push(std::mem::take(&mut call));
                    (jobs, bytes, unknown) = (0, 0, 0);
                }
                (jobs, bytes, unknown) = (jobs + more, bytes + size, unknown + searched);
                call.push(item);
            }
            if !call.is_empty() {
                calls.push(call);
            }
        }
        calls
    }

    /// Number of jobs of an item whose ids must not be known.
    fn absent_count(&self, item: &CommitItem) -> usize {
        let slots = item.keys.iter().filter_map(|key| self.slots.get(key));
        slots.filter(|(slot, _)| slot.is_unknown && slot.entry.is_none()).count()
    }

    fn item_bytes(&self, item: &CommitItem) -> usize {
        let slots = item.keys.iter().filter_map(|key| self.slots.get(key));
        slots.map(|(slot, _)| slot.bytes()).sum()
    }

    /// Approximate number of arguments of a call with these items, and of their bytes.
    pub(super) fn call_size(&self, items: &[usize]) -> (usize, usize) {
        let items = items.iter().map(|&item| &self.items[item].0);
        items.fold((0, 0), |(args, bytes), item| {
            let jobs = item.keys.len();
            (args + 1 + 8 * jobs, bytes + self.item_bytes(item) + 256 * jobs)
        })
    }
}
