//! The jobs of a call as they were loaded, what is decided about each in the order of the commands, and what of that is
//! written together.

use bytes::Bytes;
use foldhash::{HashMap, HashMapExt as _, HashSet};

use crate::domain::engine::{
    self, Answer, Change, Command, Decision, Enqueue, Found, Memory, Record, Unwritten, Window,
};
use crate::domain::{JobKey, Time, limit};
use crate::store::{Error, Request, Result};

use super::commit::{Fate, Item, Slot};
use super::entry::{Entry, finished_in};
use super::reply::unexpected;

/// Jobs as they were loaded, and what is to become of them.
pub(super) struct Book {
    pub(super) slots: HashMap<JobKey, (Slot, Memory)>,
    /// The store's time of the look.
    pub(super) now: Time,
    pub(super) items: Vec<(Item, Vec<Waiting>)>,
    /// Jobs that were put back so far.
    pub(super) redriven: u32,
    /// The earliest time at which something happens by itself because of what was written.
    pub(super) upkeep: Option<Time>,
    /// Jobs that cannot be read.
    damaged: HashMap<JobKey, Error>,
    /// Jobs of commands that are decided later, and so is whatever is asked of them behind these.
    later: HashSet<JobKey>,
}

/// A command that is done once its item is.
pub(super) struct Waiting {
    /// Its place in the call.
    pub(super) index: usize,
    pub(super) done: Done,
    /// It needs room.
    pub(super) grows: bool,
}

/// What a command comes to if it is written as decided.
pub(super) struct Done {
    pub(super) answer: Answer,
    /// The job behind it, if it is written.
    pub(super) record: Option<Record>,
}

/// Jobs of one call that may have been written before: each is looked for in what was done in its second.
pub(super) const AGAIN_MAX: usize = 64;

/// What a decision about a command comes to.
pub(super) enum Step {
    /// Nothing is to be written.
    Done(Answer),
    /// A job that it is about cannot be read.
    Damaged(Error),
    /// It is part of an item.
    Joined,
    /// It is about jobs of several items: it is decided once these are written.
    Later,
}

/// Keys of a command beside its own, whose jobs it may write.
pub(super) fn further_keys(request: &Request) -> impl Iterator<Item = JobKey> + '_ {
    let target = match &request.command {
        Command::Redrive(redrive) => redrive.target.as_ref(),
        _ => None,
    };
    let follow_ups = match &request.command {
        Command::Settle(engine::Settle { end: engine::End::Ack { follow_ups, .. }, .. }) => {
            follow_ups.as_slice()
        }
        _ => &[],
    };
    let id = &request.key.id;
    let target = target.map(|topic| JobKey { topic: topic.clone(), id: id.clone() });
    follow_ups.iter().map(|(key, _)| key.clone()).chain(target)
}

fn found(found: Option<Bytes>) -> Result<(Option<Entry>, Memory)> {
    let Some(found) = found else { return Ok((None, Memory::Free)) };
    let memory = match found[..] {
        [b'O'] => Memory::Refuses(Unwritten::TooOld),
        [b'A'] => Memory::Refuses(Unwritten::Ahead),
        [b'F'] => Memory::Refuses(Unwritten::Forgotten),
        [b'X'] => Memory::Refuses(Unwritten::Draining),
        [phase] if phase.is_ascii_digit() => Memory::Ended(finished_in(phase - b'0')),
        [_] | [] => return Err(unexpected("what is known of an id")),
        _ => return Ok((Some(Entry::read(found)?), Memory::Free)),
    };
    Ok((None, memory))
}

// === impl Book ===

impl Book {
    /// Jobs as they were read at `now`.
    pub(super) fn of(now: Time, found: Vec<(JobKey, Entry)>) -> Book {
        let slot = |(key, entry)| (key, (Slot::new(Some(entry)), Memory::Free));
        Book {
            slots: found.into_iter().map(slot).collect(),
            now,
            items: Vec::new(),
            redriven: 0,
            upkeep: None,
            damaged: HashMap::new(),
            later: HashSet::default(),
        }
    }

    /// Takes in what was found under a key. `again`: it may have been written before.
    pub(super) fn insert(&mut self, key: &JobKey, again: bool, bytes: Option<Bytes>) {
        match found(bytes) {
            Ok((entry, memory)) => {
                let slot = Slot { is_unknown: again, ..Slot::new(entry) };
                self.slots.insert(key.clone(), (slot, memory));
            }
            Err(error) => {
                tracing::error!(job = %key, %error, "a job is damaged");
                self.damaged.insert(key.clone(), error);
            }
        }
    }

    /// Decides about a command, after all that were decided before it.
    pub(super) fn decide(&mut self, index: usize, request: &Request) -> Step {
        let Request { key, command, .. } = request;
        let keys = [key.clone()].into_iter().chain(further_keys(request));
        if let Some(error) = keys.filter_map(|key| self.damaged.get(&key)).next() {
            return Step::Damaged(error.clone());
        }
        let mut keys = [key.clone()].into_iter().chain(further_keys(request));
        let items = match self.items_of(request) {
            Some(items) if !keys.any(|key| self.later.contains(&key)) => items,
            _ => {
                self.later.extend([key.clone()].into_iter().chain(further_keys(request)));
                return Step::Later;
            }
        };
        let mut window = Window::ALWAYS;
        let spaced = match command {
            Command::Redrive(redrive) => Some(Command::Redrive(redrive.after(self.redriven))),
            _ => None,
        };
        let command = spaced.as_ref().unwrap_or(command);
        if let Command::Redrive(engine::Redrive { target: Some(topic), .. }) = command {
            let target = JobKey { topic: topic.clone(), id: key.id.clone() };
            let elapsed = self.apply_to(&target, &Command::Prune);
            window = elapsed.window;
            let is_free = match elapsed.change {
                Change::Remove => true,
                Change::Keep => !self.has(&target),
                Change::Write(_) | Change::Arrive(_) => false,
            };
            if !is_free {
                return Step::Done(Answer::Done(false));
            }
        }
        let decision = self.apply_to(key, command);
        if decision.change == Change::Keep {
            return match items {
                // It holds only if what was decided before it is written.
                Some(item) => self.wait(item, index, false, (decision.answer, None)),
                None => Step::Done(decision.answer),
            };
        }
        self.redriven += u32::from(matches!(command, Command::Redrive(_)));
        let item = items.unwrap_or_else(|| self.new_item());
        self.narrow(item, window.and(decision.window));
        let answer = decision.answer.clone();
        // Until it is known whether this command does.
        let did_grow = std::mem::take(&mut self.items[item].0.grows);
        let written = self.take_all(item, key, command, decision);
        let grows = self.items[item].0.grows;
        self.items[item].0.grows |= did_grow;
        let record = self.slots.get(&written).and_then(|(slot, _)| slot.record.clone());
        self.wait(item, index, grows, (answer, record))
    }

    /// Takes a decision into an item, with all that follows from it; the key under which the job lies then.
    fn take_all(
        &mut self,
        item: usize,
        key: &JobKey,
        command: &Command,
        decision: Decision,
    ) -> JobKey {
        self.items[item].0.grows |= decision.effects.counts.enqueued > 0;
        if let Some(topic) = decision.effects.moved_to.clone() {
            let target = JobKey { topic, id: key.id.clone() };
            self.items[item].0.moves = true;
            self.take_move(item, key, &target, decision);
            return target;
        }
        let follow_ups = decision.effects.follow_ups.clone();
        self.take(item, key, decision);
        if let Some((slot, _)) = self.slots.get_mut(key)
            && let Command::Settle(settle) = command
        {
            slot.deadline = settle.deadline.or(slot.deadline);
        }
        for (key, job) in follow_ups {
            self.follow(item, &key, job);
        }
        key.clone()
    }

    /// The item of all jobs that a command is about, if they are of one at most; `None`: they are of several.
    fn items_of(&self, request: &Request) -> Option<Option<usize>> {
        let keys = [request.key.clone()].into_iter().chain(further_keys(request));
        let items = keys.filter_map(|key| self.slots.get(&key).and_then(|(slot, _)| slot.item));
        let items: HashSet<usize> = items.collect();
        let mut items = items.into_iter();
        let (first, second) = (items.next(), items.next());
        let moves =
            matches!(&request.command, Command::Redrive(redrive) if redrive.target.is_some());
        // What moves a job is an item of its own.
        let is_alone = first.is_some_and(|item| moves || self.items[item].0.moves);
        (second.is_none() && !is_alone).then_some(first)
    }

    fn has(&self, key: &JobKey) -> bool {
        self.slots.get(key).is_some_and(|(slot, _)| slot.record.is_some())
    }

    fn apply_to(&self, key: &JobKey, command: &Command) -> Decision {
        let slot = self.slots.get(key);
        let found = match slot.map(|(slot, memory)| (&slot.record, *memory)) {
            Some((Some(record), _)) => Found::Record(Box::new(record.clone())),
            Some((None, memory)) => Found::Nothing(memory),
            None => Found::Nothing(Memory::Free),
        };
        engine::apply(found, command, self.now)
    }

    fn new_item(&mut self) -> usize {
        let (keys, window) = (Vec::new(), Window::ALWAYS);
        self.items.push((Item { keys, window, grows: false, moves: false }, Vec::new()));
        self.items.len() - 1
    }

    fn narrow(&mut self, item: usize, window: Window) {
        let item = &mut self.items[item].0;
        item.window = item.window.and(window);
    }

    fn wait(
        &mut self,
        item: usize,
        index: usize,
        grows: bool,
        (answer, record): (Answer, Option<Record>),
    ) -> Step {
        self.items[item].1.push(Waiting { index, done: Done { answer, record }, grows });
        Step::Joined
    }

    /// A job that is written together with the one before it, unless there is one under its id.
    fn follow(&mut self, item: usize, key: &JobKey, job: Enqueue) {
        let decision = self.apply_to(key, &Command::Enqueue(Box::new(job)));
        if decision.change != Change::Keep {
            self.narrow(item, decision.window);
            // Without it there is no ack, either.
            self.items[item].0.grows = true;
            self.take(item, key, decision);
        }
    }

    /// Takes a decision about a job into an item.
    fn take(&mut self, item: usize, key: &JobKey, decision: Decision) {
        if decision.change == Change::Keep {
            return;
        }
        let Some((slot, memory)) = self.slots.get_mut(key) else { return };
        let item_ = &mut self.items[item].0;
        if slot.item.is_none() {
            slot.item = Some(item);
            item_.keys.push(key.clone());
        }
        let effects = decision.effects;
        item_.grows |= decision.parts.grows();
        let fate = match decision.change {
            Change::Keep => return,
            Change::Remove => Fate::Remove,
            Change::Write(_) if slot.fate == Fate::Arrive => Fate::Arrive,
            Change::Write(_) => Fate::Write,
            Change::Arrive(_) => Fate::Arrive,
        };
        slot.fate = fate;
        slot.record = match decision.change {
            Change::Write(record) | Change::Arrive(record) => Some(*record),
            Change::Keep | Change::Remove => None,
        };
        slot.parts = std::mem::take(&mut slot.parts).then(decision.parts);
        slot.counts.enqueued += effects.counts.enqueued;
        slot.counts.succeeded += effects.counts.succeeded;
        slot.counts.dead += effects.counts.dead;
        if let Some(ended) = effects.ended {
            slot.ended = Some(ended);
            *memory = Memory::Ended(ended);
        }
        slot.news = effects.lease.map(|(_, news)| news).or(slot.news);
    }

    /// Takes a job from one topic to another: its record goes, and arrives there.
    fn take_move(&mut self, item: usize, key: &JobKey, target: &JobKey, decision: Decision) {
        let Change::Arrive(record) = &decision.change else { return };
        let ended = decision.effects.ended;
        let parts = decision.parts.clone();
        let entry = self.slots.get(key).and_then(|(slot, _)| slot.entry.clone());
        if let Some((slot, _)) = self.slots.get_mut(key) {
            (slot.fate, slot.ended, slot.item) = (Fate::Remove, ended, Some(item));
        }
        if let Some((slot, _)) = self.slots.get_mut(target) {
            (slot.fate, slot.item, slot.parts) = (Fate::Arrive, Some(item), parts);
            slot.record = Some((**record).clone());
            slot.moved = entry;
        }
        let item = &mut self.items[item].0;
        item.grows = true;
        item.keys = vec![key.clone(), target.clone()];
    }

    /// The commands that are done once these items are.
    pub(super) fn waiting(&self, items: &[usize]) -> impl Iterator<Item = &Waiting> {
        items.iter().flat_map(|&item| &self.items[item].1)
    }

    /// The same of one item, which was written.
    pub(super) fn done(&mut self, item: usize) -> Vec<Waiting> {
        std::mem::take(&mut self.items[item].1)
    }

    /// The items by calls, each within the bounds of one, and by whether they need memory.
    pub(super) fn calls(&self) -> Vec<Vec<usize>> {
        let mut calls = Vec::new();
        for grows in [false, true] {
            let (mut call, mut jobs, mut bytes, mut unknown) = (Vec::new(), 0, 0, 0);
            for (item, (found, _)) in self.items.iter().enumerate() {
                if found.grows != grows || found.keys.is_empty() {
                    continue;
                }
                let (more, size) = (found.keys.len(), self.bytes(found));
                // Of each the script looks whether it is recalled.
                let searched = self.unknown(found);
                let is_full = jobs + more > limit::CALL_JOBS_MAX
                    || bytes + size > limit::CALL_BYTES_MAX
                    || unknown + searched > AGAIN_MAX;
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

    /// How many jobs of an item must not be known.
    fn unknown(&self, item: &Item) -> usize {
        let slots = item.keys.iter().filter_map(|key| self.slots.get(key));
        slots.filter(|(slot, _)| slot.is_unknown && slot.entry.is_none()).count()
    }

    fn bytes(&self, item: &Item) -> usize {
        let slots = item.keys.iter().filter_map(|key| self.slots.get(key));
        slots.map(|(slot, _)| slot.bytes()).sum()
    }

    /// How many arguments a call of these items has, and of how many bytes, about.
    pub(super) fn room(&self, items: &[usize]) -> (usize, usize) {
        let items = items.iter().map(|&item| &self.items[item].0);
        items.fold((0, 0), |(args, bytes), item| {
            let jobs = item.keys.len();
            (args + 1 + 8 * jobs, bytes + self.bytes(item) + 256 * jobs)
        })
    }
}
