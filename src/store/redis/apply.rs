//! Runs the engine on the records of a shard: load them, decide, and commit what was decided, if they are still what
//! they were. Where another server was faster it is decided again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foldhash::{HashMap, HashMapExt as _, HashSet};
use rand::Rng as _;
use tokio::time::Instant;

use crate::domain::engine::{
    self, Answer, Change, Command, Decision, Enqueue, Found, Memory, Moment, Prior, Record,
    Unwritten, Window,
};
use crate::domain::{JobKey, Time, limit};
use crate::store::{Error, Result};

use super::commit::{Fate, Item, Slot};
use super::entry::{Entry, finished_in};
use super::reply::unexpected;
use super::script::Verb;
use super::{Lane, RedisStore};

/// How often a command is decided. Commands of one server on one job wait for each other, so each further time means
/// that another server was faster.
const ROUNDS_MAX: usize = 8;
/// How much longer each further round is put off at most.
const PAUSE: Duration = Duration::from_millis(1);
/// Jobs of one call that may have been written before: each is looked for in what was done in its second.
const AGAIN_MAX: usize = 64;

/// A command on one job.
pub(super) struct Request {
    pub(super) key: JobKey,
    pub(super) command: Command,
    /// Until when its caller waits: from then on it is not done any more.
    pub(super) until: Option<Instant>,
}

/// What became of a command.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) answer: Answer,
    /// The job behind it, if it was written.
    pub(super) record: Option<Record>,
    /// Whether something was written for it.
    pub(super) is_written: bool,
    decided: Time,
    committed: Time,
}

/// Jobs as they were loaded, and what is to become of them.
struct Book {
    slots: HashMap<JobKey, (Slot, Memory)>,
    now: Time,
    items: Vec<(Item, Vec<Waiting>)>,
    /// Jobs that were put back so far.
    redriven: u32,
    /// The earliest time at which something happens by itself because of what was written.
    upkeep: Option<Time>,
    /// Jobs that cannot be read.
    damaged: HashMap<JobKey, Error>,
    /// Jobs of commands that are decided later, and so is whatever is asked of them behind these.
    later: HashSet<JobKey>,
}

/// A command that is done once its item is.
struct Waiting {
    index: usize,
    answer: Answer,
    record: Option<Record>,
    is_written: bool,
}

/// What a commit answers.
struct Committed {
    /// The store's time of it.
    at: Time,
    /// The earliest time at which something happens by itself because of it.
    upkeep: Option<Time>,
    /// Of each item whether it was written.
    written: Vec<bool>,
}

/// What a decision about a command comes to.
enum Step {
    /// Nothing is to be written.
    Done(Answer),
    /// A job that it is about cannot be read.
    Damaged(Error),
    /// It is part of an item.
    Joined,
    /// It is about jobs of several items: it is decided once these are written.
    Later,
}

// === impl Outcome ===

impl Outcome {
    /// The time that a moment of the answer has become.
    pub(super) fn time(&self, moment: Moment) -> Time {
        moment.committed(self.decided, self.committed)
    }

    /// The store's time of the write.
    pub(super) fn now(&self) -> Time {
        self.committed
    }

    /// The record that was written, as it lies there.
    pub(super) fn record_now(&self) -> Option<Record> {
        self.record.clone().map(|record| record.committed(self.decided, self.committed))
    }
}

// === impl RedisStore ===

impl RedisStore {
    /// Applies commands in their order, each with all that follows from it or not at all.
    pub(super) async fn apply(&self, requests: &[Request]) -> Vec<Result<Outcome>> {
        let _turns = self.turns.take(requests.iter().map(|request| &request.key)).await;
        let mut outcomes: Vec<Option<Result<Outcome>>> = requests.iter().map(|_| None).collect();
        let mut redriven = 0;
        for round in 0..ROUNDS_MAX {
            let left: Vec<usize> = (0..requests.len()).filter(|&i| outcomes[i].is_none()).collect();
            if left.is_empty() {
                break;
            }
            pause(round).await;
            redriven = self.round(requests, &left, redriven, &mut outcomes).await;
        }
        let contended = || {
            let text = "other servers changed the job again and again, nothing was written";
            Err(Error::Contention(text.to_owned()))
        };
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(contended)).collect()
    }

    /// As [`RedisStore::apply`], in as many calls as it takes; of all commands together the first failure, which knows
    /// whether any of them was written.
    pub(super) async fn apply_all(&self, requests: &[Request]) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::with_capacity(requests.len());
        for part in requests.chunks(limit::CALL_JOBS_MAX) {
            outcomes.extend(self.apply(part).await);
            if outcomes.iter().any(Result::is_err) {
                break;
            }
        }
        let is_written = any_written(&outcomes);
        let outcomes = outcomes.into_iter();
        outcomes.map(|outcome| outcome.map_err(|error| super::after(error, is_written))).collect()
    }

    async fn round(
        &self,
        requests: &[Request],
        left: &[usize],
        redriven: u32,
        outcomes: &mut [Option<Result<Outcome>>],
    ) -> u32 {
        let mut book = match self.load(requests, left).await {
            Ok(book) => Book { redriven, ..book },
            Err(error) => {
                left.iter().for_each(|&index| outcomes[index] = Some(Err(error.clone())));
                return redriven;
            }
        };
        for &index in left {
            let (decided, committed) = (book.now, book.now);
            outcomes[index] = match book.decide(index, &requests[index]) {
                Step::Done(answer) => {
                    let (record, is_written) = (None, false);
                    Some(Ok(Outcome { answer, record, is_written, decided, committed }))
                }
                Step::Damaged(error) => Some(Err(error)),
                Step::Joined | Step::Later => None,
            };
        }
        for call in book.calls() {
            self.commit(requests, &mut book, call, outcomes).await;
        }
        book.redriven
    }

    /// What these commands would do, each of them alone.
    pub(super) async fn foresee(&self, requests: &[Request]) -> Result<Vec<Answer>> {
        let all: Vec<usize> = (0..requests.len()).collect();
        let mut answers = Vec::with_capacity(requests.len());
        for part in all.chunks(limit::CALL_JOBS_MAX) {
            let mut book = self.load(requests, part).await?;
            for &index in part {
                answers.push(match book.decide(index, &requests[index]) {
                    Step::Done(answer) => answer,
                    Step::Damaged(error) => return Err(error),
                    Step::Joined | Step::Later => Answer::Done(true),
                });
            }
        }
        Ok(answers)
    }

    /// Writes what the clock has made of these jobs, as they were read at `now`; when something is to be done again about
    /// one of them. Where another server was faster nothing is left to do.
    pub(super) async fn prune_found(
        &self,
        now: Time,
        found: Vec<(JobKey, Entry)>,
    ) -> Result<Option<Time>> {
        let request =
            |key: &JobKey| Request { key: key.clone(), command: Command::Prune, until: None };
        let requests: Vec<Request> = found.iter().map(|(key, _)| request(key)).collect();
        let slots =
            found.into_iter().map(|(key, entry)| (key, (Slot::new(Some(entry)), Memory::Free)));
        let (slots, items) = (slots.collect(), Vec::new());
        let mut book = Book {
            slots,
            now,
            items,
            redriven: 0,
            upkeep: None,
            damaged: HashMap::new(),
            later: HashSet::default(),
        };
        for (index, request) in requests.iter().enumerate() {
            book.decide(index, request);
        }
        let mut outcomes: Vec<_> = requests.iter().map(|_| None).collect();
        for call in book.calls() {
            self.commit(&requests, &mut book, call, &mut outcomes).await;
        }
        let failed = outcomes.into_iter().flatten().find_map(Result::err);
        failed.map_or(Ok(book.upkeep), Err)
    }

    /// Reads the jobs that these commands are about.
    async fn load(&self, requests: &[Request], left: &[usize]) -> Result<Book> {
        let mut keys: Vec<(JobKey, bool)> = Vec::with_capacity(left.len());
        let mut known = HashSet::default();
        for &index in left {
            let request = &requests[index];
            let again =
                matches!(&request.command, Command::Enqueue(new) if new.prior == Prior::Itself);
            let further = further_keys(request);
            for (key, again) in
                [(request.key.clone(), again)].into_iter().chain(further.map(|key| (key, false)))
            {
                if known.insert(key.clone()) {
                    keys.push((key, again));
                }
            }
        }
        let most =
            if keys.iter().any(|(_, again)| *again) { AGAIN_MAX } else { limit::CALL_JOBS_MAX };
        let (slots, items) = (HashMap::with_capacity(keys.len()), Vec::new());
        let mut book = Book {
            slots,
            now: Time(0),
            items,
            redriven: 0,
            upkeep: None,
            damaged: HashMap::new(),
            later: HashSet::default(),
        };
        let mut rest = &keys[..];
        while !rest.is_empty() {
            let mut call = self.call(Verb::Load);
            for (key, again) in rest.iter().take(most) {
                call.arg(key.topic.as_str()).arg(key.id.as_str()).arg(u8::from(*again));
            }
            // Of the lane of the write that follows.
            let mut reply = self.run(Lane::Write, &call).await?;
            book.now = reply.time()?;
            // It answers at least one, and fewer than asked for once the answer has become large.
            while !reply.is_empty() {
                let Some(((key, again), behind)) = rest.split_first() else {
                    return Err(unexpected("fewer jobs"));
                };
                rest = behind;
                book.insert(key, *again, reply.maybe_bytes()?);
            }
        }
        Ok(book)
    }

    /// Writes some items, and answers the commands of those that were written.
    async fn commit(
        &self,
        requests: &[Request],
        book: &mut Book,
        items: Vec<usize>,
        outcomes: &mut [Option<Result<Outcome>>],
    ) {
        let waiting = |book: &Book| -> Vec<usize> {
            let waiting = items.iter().flat_map(|&item| &book.items[item].1);
            waiting.map(|waiting| waiting.index).collect()
        };
        match self.try_commit(requests, book, &items, &waiting(book)).await {
            Ok(Committed { at: committed, upkeep, written }) => {
                book.upkeep = book.upkeep.into_iter().chain(upkeep).min();
                for (item, _) in items.into_iter().zip(written).filter(|(_, written)| *written) {
                    for Waiting { index, answer, record, is_written } in
                        std::mem::take(&mut book.items[item].1)
                    {
                        let decided = book.now;
                        let outcome = Outcome { answer, record, is_written, decided, committed };
                        outcomes[index] = Some(Ok(outcome));
                    }
                }
            }
            Err(error) => {
                let now = Instant::now();
                let is_late =
                    |index: &usize| requests[*index].until.is_some_and(|until| until <= now);
                let all = waiting(book);
                let late: Vec<usize> = all.iter().copied().filter(is_late).collect();
                // The caller that waited least decided until when it could be executed; the others go without it.
                let is_for_others = matches!(error, Error::Unavailable(_)) && !late.is_empty();
                for index in if is_for_others { late } else { all } {
                    outcomes[index] = Some(Err(error.clone()));
                }
            }
        }
    }

    async fn try_commit(
        &self,
        requests: &[Request],
        book: &Book,
        items: &[usize],
        waiting: &[usize],
    ) -> Result<Committed> {
        let grows = items.iter().any(|&item| book.items[item].0.grows);
        let verb = if grows { Verb::Put } else { Verb::Commit };
        let is_guarded = |index: &usize| {
            let command = &requests[*index].command;
            matches!(command, Command::Settle(_) | Command::Unclaim(_) | Command::Prune)
        };
        let until = waiting.iter().filter_map(|&index| requests[index].until).min();
        let (args, bytes) = book.room(items);
        let mut call = if waiting.iter().all(is_guarded) {
            self.shard.large_call(verb, args, bytes)
        } else {
            self.shard.large_write_call(verb, until, args, bytes).await?
        };
        for &item in items {
            let item = &book.items[item].0;
            let slots = item.keys.iter().filter_map(|key| Some((key, &book.slots.get(key)?.0)));
            item.add(&mut call, book.now, slots);
        }
        let mut reply = self.run(Lane::Write, &call).await?;
        let (at, upkeep) = (reply.time()?, reply.maybe_time()?);
        self.hints.prune_at(upkeep);
        let written = items.iter().map(|_| Ok(reply.number()? == 1)).collect::<Result<_>>()?;
        Ok(Committed { at, upkeep, written })
    }
}

/// Whether any of these commands was written.
pub(super) fn any_written(outcomes: &[Result<Outcome>]) -> bool {
    outcomes.iter().flatten().any(|outcome| outcome.is_written)
}

/// Lets another server that was faster be done first: in step with it this one would lose again.
async fn pause(round: usize) {
    if round > 0 {
        let share: f64 = rand::rng().random();
        tokio::time::sleep((PAUSE * u32::try_from(round).unwrap_or(1)).mul_f64(share)).await;
    }
}

/// The keys that come more than once. What is asked of their jobs is left to the engine as a whole, so that it is done in
/// its order.
pub(super) fn repeated<'a>(keys: impl ExactSizeIterator<Item = &'a JobKey>) -> HashSet<&'a JobKey> {
    if keys.len() < 2 {
        return HashSet::default();
    }
    let mut known = HashSet::default();
    keys.filter(|key| !known.insert(*key)).collect()
}

/// Keys of a command beside its own, whose jobs it may write.
fn further_keys(request: &Request) -> impl Iterator<Item = JobKey> + '_ {
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
    /// Takes in what was found under a key. `again`: it may have been written before.
    fn insert(&mut self, key: &JobKey, again: bool, bytes: Option<Bytes>) {
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
    fn decide(&mut self, index: usize, request: &Request) -> Step {
        let Request { key, command, until: _ } = request;
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
                Some(item) => self.wait(item, index, decision.answer, None, false),
                None => Step::Done(decision.answer),
            };
        }
        self.redriven += u32::from(matches!(command, Command::Redrive(_)));
        let item = items.unwrap_or_else(|| self.new_item());
        self.narrow(item, window.and(decision.window));
        // An ack goes through on a full store with its follow-ups, as it frees what it ends.
        let brings = decision.effects.counts.enqueued > 0;
        self.items[item].0.grows |= brings && matches!(command, Command::Enqueue(_));
        let answer = decision.answer.clone();
        match decision.effects.moved_to.clone() {
            Some(topic) => {
                let target = JobKey { topic, id: key.id.clone() };
                self.items[item].0.moves = true;
                self.take_move(item, key, &target, decision);
            }
            None => {
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
            }
        }
        let record = self.slots.get(key).and_then(|(slot, _)| slot.record.clone());
        self.wait(item, index, answer, record, true)
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
        answer: Answer,
        record: Option<Record>,
        is_written: bool,
    ) -> Step {
        self.items[item].1.push(Waiting { index, answer, record, is_written });
        Step::Joined
    }

    /// A job that is written together with the one before it, unless there is one under its id.
    fn follow(&mut self, item: usize, key: &JobKey, job: Enqueue) {
        let decision = self.apply_to(key, &Command::Enqueue(Box::new(job)));
        if decision.change != Change::Keep {
            self.narrow(item, decision.window);
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

    /// The items by calls, each within the bounds of one, and by whether they need memory.
    fn calls(&self) -> Vec<Vec<usize>> {
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
    fn room(&self, items: &[usize]) -> (usize, usize) {
        let items = items.iter().map(|&item| &self.items[item].0);
        items.fold((0, 0), |(args, bytes), item| {
            let jobs = item.keys.len();
            (args + 1 + 8 * jobs, bytes + self.bytes(item) + 256 * jobs)
        })
    }
}

/// Lets commands on one job wait for each other: they are decided one after the other, so that two of them on one server
/// are never faster than each other. Jobs share turns by their names.
pub(super) struct Turns(Box<[Arc<tokio::sync::Mutex<()>>]>);

/// How many turns there are: enough that commands on different jobs seldom wait for each other.
const TURNS: usize = 256;

impl Turns {
    pub(super) fn new() -> Turns {
        Turns((0..TURNS).map(|_| Arc::default()).collect())
    }

    /// Waits until it is the turn of all these jobs. Turns are taken in their order, so that no two calls wait for each
    /// other.
    async fn take<'a>(
        &self,
        keys: impl Iterator<Item = &'a JobKey>,
    ) -> Vec<tokio::sync::OwnedMutexGuard<()>> {
        let place = |key: &JobKey| {
            let hash = xxhash_rust::xxh3::xxh3_64(key.id.as_str().as_bytes());
            usize::try_from(hash % TURNS as u64).unwrap_or(0)
        };
        let mut places: Vec<usize> = keys.map(place).collect();
        places.sort_unstable();
        places.dedup();
        let mut turns = Vec::with_capacity(places.len());
        for place in places {
            turns.push(Arc::clone(&self.0[place]).lock_owned().await);
        }
        turns
    }
}
