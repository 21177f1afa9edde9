//! The sentence and the remedy of each reason.

use crate::domain::turns::TURNS_PER_RUNNING_JOB;
use crate::domain::{Job, JobKey, ShardName, State};

use super::text::{arg, at, count, job_args, left, length, quoted};
use super::{
    ExplainCode, ExplainFacts, ExplainReason, GroupPause, GroupTurn, HeldJobs, HolderFacts, Pause,
    ReadyBefore, ShardSilence, StreamFacts,
};

/// Next step for a shard that does not answer.
const RESTORE_SHARD: &str = "Restore the shard; `ringq shard list` prints its last error. Its jobs go on by themselves \
     once it answers.";
/// Next step for a shard of other servers.
const ASK_OTHERS: &str = "Call a server that has this shard, with --server, or add the shard to the configuration of \
     this one.";

/// Returns the reason for a job whose shard gives no information.
#[must_use]
pub fn unreachable_shard(key: &JobKey, shard: &ShardName, silence: ShardSilence) -> ExplainReason {
    let (what, remedy) = match silence {
        ShardSilence::Unavailable => ("is unavailable", RESTORE_SHARD),
        ShardSilence::TimedOut => ("did not answer in time", RESTORE_SHARD),
        ShardSilence::Elsewhere => {
            ("is configured at other servers and not at this one", ASK_OTHERS)
        }
    };
    ExplainReason {
        code: ExplainCode::ShardUnreachable,
        message: format!(
            "Shard {shard}, which may have {key}, {what}: whether the job exists is not known, and jobs of this shard \
             are not delivered by this server meanwhile."
        ),
        until: None,
        remedy: remedy.to_owned(),
    }
}

// === impl ExplainFacts ===

impl ExplainFacts {
    pub(super) fn not_due(&self) -> ExplainReason {
        let Job { due_time: due, expire_time, failures, last_error, .. } = &self.job;
        let wait = left(*due, self.now);
        let mut message = if self.job.state == State::Backoff {
            let failed = match self.attempts_max {
                Some(max) => {
                    format!("{failures} of at most {} failed", count(max.into(), "attempt"))
                }
                None => format!("{} failed", count((*failures).into(), "attempt")),
            };
            let error = quoted(last_error);
            let error = if error.is_empty() { error } else { format!(", the last with {error}") };
            let next = u64::from(*failures) + 1;
            format!("{failed}{error}; attempt {next} is due at {}, in {wait}", at(*due))
        } else {
            format!("The job is due at {}, in {wait}", at(*due))
        };
        if let Some(expire) = expire_time.filter(|expire| expire <= due) {
            message += &format!("; it expires before that, at {}", at(expire));
        }
        ExplainReason {
            code: ExplainCode::NotDue,
            message: message + ".",
            until: Some(*due),
            remedy: format!(
                "Wait, or make it due now: `ringq job reschedule --now {}`.",
                job_args(&self.job.key)
            ),
        }
    }

    pub(super) fn paused_topic(&self, pause: &Pause) -> ExplainReason {
        let topic = &self.job.key.topic;
        ExplainReason {
            code: ExplainCode::TopicPaused,
            message: format!("Topic {topic} is paused{}.", pause.describe()),
            until: pause.until,
            remedy: format!("Resume the topic: `ringq topic resume {topic}`."),
        }
    }

    pub(super) fn paused_group(&self, paused: &GroupPause) -> ExplainReason {
        let (topic, GroupPause { group, pause }) = (&self.job.key.topic, paused);
        let args = format!("{topic} {}", arg(group));
        ExplainReason {
            code: ExplainCode::GroupPaused,
            message: format!("Group {group} of topic {topic} is paused{}.", pause.describe()),
            until: pause.until,
            remedy: format!("Resume the group: `ringq group resume {args}`."),
        }
    }

    pub(super) fn no_stream(&self) -> ExplainReason {
        let topic = &self.job.key.topic;
        let ends = if self.streams.draining { ", which is shutting down," } else { "" };
        let start = format!("start a worker, for example `ringq work {topic} --exec COMMAND`");
        let remedy = match self.other_servers {
            0 => format!("To have it run, {start}."),
            _ => format!(
                "Ask each server for its workers with `ringq worker list {topic} --server URL`; where there are none, \
                 {start}."
            ),
        };
        ExplainReason {
            code: ExplainCode::NoStream,
            message: format!(
                "No stream or waiting Pull on this server{ends} asks for topic {topic}{}.",
                self.other_streams()
            ),
            until: None,
            remedy,
        }
    }

    pub(super) fn no_credit(&self) -> ExplainReason {
        let StreamFacts { unread, held, .. } = self.streams;
        let mut message = format!(
            "{} on this server {} for topic {}, and none has credit for this job",
            self.streams.describe(),
            if self.streams.total() == 1 { "asks" } else { "ask" },
            self.job.key.topic
        );
        if let Some(HeldJobs { in_flight, max_in_flight, other_topics }) = held {
            message +=
                &format!(": {in_flight} of at most {} in flight", count(max_in_flight, "job"));
            if other_topics > 0 {
                message += &format!(", {other_topics} of them of other topics");
            }
            if in_flight < max_in_flight && unread == 0 {
                message += ", and their bytes leave no room for it";
            }
        }
        if unread > 0 {
            message += &format!("; {} unread", count(unread as u64, "stream"));
        }
        ExplainReason {
            code: ExplainCode::NoCredit,
            message: message + &self.other_streams() + ".",
            until: None,
            remedy: format!(
                "Let the workers settle what they hold, raise their max_in_flight, or start more; `ringq worker list \
                 {}` prints the credit of each.",
                self.job.key.topic
            ),
        }
    }

    pub(super) fn group_turn(&self, turn: GroupTurn) -> ExplainReason {
        let Job { key, shard, spec, .. } = &self.job;
        let own = match &spec.group {
            Some(group) => format!("group {group}"),
            None => "the jobs without a group".to_owned(),
        };
        let least = if turn.has_more { "at least " } else { "" };
        ExplainReason {
            code: ExplainCode::GroupTurn,
            message: format!(
                "The next turns of topic {} on shard {shard} are those of {least}{}: {own} {} {} there, and each by its \
                 weight delays the next turn by {TURNS_PER_RUNNING_JOB} turns.",
                key.topic,
                count(turn.groups_before, "other group"),
                if spec.group.is_some() { "has" } else { "have" },
                count(turn.running, "running job"),
            ),
            until: None,
            remedy: format!(
                "Wait, start more workers, or look at what runs: `ringq job list {} --state running`.",
                key.topic
            ),
        }
    }

    pub(super) fn behind_others(&self, before: ReadyBefore) -> ExplainReason {
        let Job { key, shard, spec, .. } = &self.job;
        let jobs = match before {
            ReadyBefore { jobs: 0, .. } => "An unknown number of ready jobs".to_owned(),
            ReadyBefore { jobs, has_more: true } => {
                format!("At least {}", count(jobs, "ready job"))
            }
            ReadyBefore { jobs, .. } => count(jobs, "ready job"),
        };
        let come = if before.jobs == 1 { "comes" } else { "come" };
        let order = match self.ageing {
            None => "by priority, due time and arrival".to_owned(),
            Some(ageing) => format!(
                "by due time, where a level of priority is worth {} of waiting",
                length(ageing.duration())
            ),
        };
        ExplainReason {
            code: ExplainCode::BehindOthers,
            message: format!(
                "{jobs} of {}topic {} {come} before it on shard {shard}, {order}.",
                spec.group.as_ref().map_or(String::new(), |group| format!("group {group} of ")),
                key.topic
            ),
            until: None,
            remedy: format!(
                "Wait, start more workers, or let it go first: `ringq job reschedule --priority 9 {}`.",
                job_args(key)
            ),
        }
    }

    pub(super) fn delivering(&self) -> ExplainReason {
        ExplainReason {
            code: ExplainCode::Delivering,
            message: format!(
                "Nothing holds the job back: it comes next in topic {} on shard {}, and {} of {} on this server {} \
                 credit for it.",
                self.job.key.topic,
                self.job.shard,
                self.streams.with_credit,
                self.streams.describe(),
                if self.streams.with_credit == 1 { "has" } else { "have" },
            ),
            until: None,
            remedy: "Ask again in a second; if this stays, the server's log has the errors of its claims.".into(),
        }
    }

    pub(super) fn leased(&self) -> ExplainReason {
        let Job { worker_id, deliveries, lease_expire_time, .. } = &self.job;
        let worker = match worker_id.as_str() {
            "" => "A worker without a name".to_owned(),
            worker => format!("Worker {worker}"),
        };
        let deadline = self.lease.map(|lease| lease.deadline).or(*lease_expire_time);
        let has = match self.holder {
            Some(HolderFacts { is_sent: false, .. }) => "has not read",
            _ => "has",
        };
        let mut message = format!("{worker} {has} the job, its delivery {deliveries}");
        if let Some(lease) = self.lease {
            let is_here = lease.stream.owner == self.server;
            let place = if is_here { "this server" } else { "another server" };
            message +=
                &format!(", since {} by stream {} of {place}", at(lease.start), lease.stream);
        }
        message += &self.signs();
        match deadline {
            Some(deadline) if deadline <= self.now => {
                message +=
                    &format!("; its lease ended at {} and is about to be taken back", at(deadline));
            }
            Some(deadline) => {
                message += &format!(
                    "; its lease ends at {}, in {}",
                    at(deadline),
                    left(deadline, self.now)
                );
            }
            None => {}
        }
        if self.lease.is_some_and(|lease| lease.outlives_stream) {
            message += ", and lasts without the stream";
        }
        if self.lease.is_some_and(|lease| lease.next_waits) {
            message += "; a newer generation of the job waits for that end";
        }
        ExplainReason {
            code: ExplainCode::Leased,
            message: message + ".",
            until: deadline,
            remedy: format!(
                "Wait for its Ack or the end of the lease, or take the job away from the worker: `ringq job delete \
                 {}` cancels it.",
                job_args(&self.job.key)
            ),
        }
    }

    /// Returns the part of a sentence about the last signs of the worker that has the job.
    fn signs(&self) -> String {
        let Some(lease) = self.lease else { return String::new() };
        let mut text = match lease.extended {
            Some(extended) => format!("; extended {} ago", left(self.now, extended)),
            None => "; not extended".to_owned(),
        };
        match self.holder {
            Some(HolderFacts { is_sent: true, silent_for }) => {
                // A stream without jobs has no reason to send anything.
                let silent = silent_for.min(self.now.since(lease.start));
                text +=
                    &format!(", and no Ack, Nack or Extend of that stream for {}", length(silent));
            }
            None if lease.stream.owner != self.server => {
                text += ", and whether its stream is silent is known at that server";
            }
            _ => {}
        }
        text
    }

    pub(super) fn finished(&self) -> ExplainReason {
        let Job { state, finish_time, last_error, key, .. } = &self.job;
        let mut message = format!("The job is {}", state.name().to_uppercase());
        if let Some(finish) = finish_time {
            message += &format!(" since {}", at(*finish));
        }
        let error = quoted(last_error);
        if !error.is_empty() {
            message += &format!(", its last error {error}");
        }
        if let Some(kept) = self.kept {
            let what = if kept.is_tombstone { "state and id are" } else { "its record is" };
            message += &format!("; {what} kept until {}", at(kept.until));
        }
        let redrive = |state| format!("`ringq job redrive {state}{}` runs it again", job_args(key));
        let remedy = match (*state, self.kept.is_none_or(|kept| kept.is_tombstone)) {
            (State::Dead, _) => {
                format!("Correct the cause; then {} with fresh counters.", redrive(""))
            }
            (_, true) => "To run it again, enqueue it again.".to_owned(),
            (State::Expired, false) => {
                format!("To run it late, {}.", redrive("--state expired --ttl 1h "))
            }
            (state, false) => {
                format!(
                    "Nothing is to be done; {}.",
                    redrive(&format!("--state {} ", state.name()))
                )
            }
        };
        let until = self.kept.map(|kept| kept.until);
        ExplainReason { code: ExplainCode::Finished, message: message + ".", until, remedy }
    }

    /// Returns the part of a sentence about the streams of other servers.
    fn other_streams(&self) -> String {
        match self.other_servers {
            0 => String::new(),
            1 => format!(
                "; streams of the other server of shard {} are not known here",
                self.job.shard
            ),
            n => format!(
                "; streams of the {n} other servers of shard {} are not known here",
                self.job.shard
            ),
        }
    }
}

// === impl StreamFacts ===

impl StreamFacts {
    /// Returns `2 streams and 1 Pull`.
    fn describe(&self) -> String {
        let streams = count(self.streams as u64, "stream");
        let pulls = count(self.pulls as u64, "Pull");
        match (self.streams, self.pulls) {
            (_, 0) => streams,
            (0, _) => pulls,
            _ => format!("{streams} and {pulls}"),
        }
    }
}

// === impl Pause ===

impl Pause {
    fn describe(&self) -> String {
        let until = self.until.map_or(String::new(), |until| format!(" until {}", at(until)));
        let note = quoted(&self.note);
        if note.is_empty() { until } else { format!("{until}, with the note {note}") }
    }
}
