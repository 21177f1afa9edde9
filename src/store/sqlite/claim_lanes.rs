//! Claim from a topic with groups: turn by turn, each the lane with the lowest score. A lane is read up to the job that is
//! taken, and lanes of paused groups are not read.

use rusqlite::{OptionalExtension as _, params};

use crate::domain::engine::Command;
use crate::domain::{GroupName, PriorityAgeing, Time, limit, turns};
use crate::store::{LeasedJob, TopicRemainder};

use super::claim_order::take_jobs;
use super::claim_session::{ClaimBudget, ClaimSession, StreamRotation, TakenJob, read_unexpired};
use super::error_mapping::SqliteResult;
use super::job_row::{BY_KEY, JobRow};
use super::lanes::{self, LaneHead, LanePosition, TopicRef, drop_job, head, next_job, totals};
use super::run_engine::apply_to;
use super::statement::statement;

const FILE: &str = include_str!("lanes.sql");
const READY: &str = statement(FILE, "ready");
const WOKEN: &str = statement(FILE, "woken");
const LATER: &str = statement(FILE, "later");
/// Read once for each topic that has ready jobs with and without a group: kept in memory from then on.
const RUNNING: &str = statement(include_str!("topics.sql"), "running");

/// Lane that has the next turn.
enum Turn {
    /// The jobs without a group; `alone` if no group has a job that is due.
    Ungrouped {
        alone: bool,
    },
    Group(GroupName),
    /// No lane has a job that is due.
    None,
}

/// A claim from the lanes of one topic.
struct LaneClaim<'a, 's, 'c> {
    claim: &'a mut ClaimSession<'s, 'c>,
    topic: TopicRef<'a>,
    ageing: Option<PriorityAgeing>,
    round: StreamRotation<'a>,
    leased: &'a mut [Vec<LeasedJob>],
    /// Remainder of the jobs without a group, as the last read found.
    ungrouped_rest: TopicRemainder,
    ungrouped_weight: u8,
}

/// Leases jobs of a topic that has lanes; returns what is left.
pub(super) fn claim_from_lanes<'a>(
    claim: &'a mut ClaimSession<'_, '_>,
    topic: TopicRef<'a>,
    ageing: Option<PriorityAgeing>,
    round: StreamRotation<'a>,
    leased: &'a mut [Vec<LeasedJob>],
) -> SqliteResult<TopicRemainder> {
    let setting = claim.session.lanes(topic.name).map(|lanes| lanes.ungrouped);
    let mut lanes = LaneClaim {
        claim,
        topic,
        ageing,
        round,
        leased,
        ungrouped_rest: TopicRemainder::Empty,
        ungrouped_weight: setting.map_or(1, |setting| setting.weight),
    };
    lanes.wake()?;
    // A read that takes no job shows whether one is ready.
    if !setting.is_some_and(|setting| setting.paused) {
        lanes.take_ungrouped(0)?;
    }
    lanes.take_turns()
}

// === impl LaneClaim ===

impl LaneClaim<'_, '_, '_> {
    /// Puts lanes whose first job has become due among the ready ones.
    fn wake(&mut self) -> SqliteResult<()> {
        let session = &*self.claim.session;
        let mut woken = session.prepare(WOKEN)?;
        let places = params![self.topic.key, session.now.0, limit::CALL_JOBS_MAX];
        let names = woken.query_map(places, |row| row.get::<_, String>(0))?;
        let names: Vec<String> = names.collect::<rusqlite::Result<_>>()?;
        for group in names.iter().filter_map(|name| GroupName::stored(name)) {
            self.stand(&group)?;
        }
        Ok(())
    }

    /// Puts a lane where its first job belongs.
    fn stand(&mut self, group: &GroupName) -> SqliteResult<()> {
        let session = &mut *self.claim.session;
        let Some(mut lane) = lanes::find(session, self.topic, group)? else { return Ok(()) };
        let head = head(session, self.topic, group)?;
        lane.stand(&head);
        lane.write_or_delete(session, self.topic, group, &head)
    }

    fn take_turns(&mut self) -> SqliteResult<TopicRemainder> {
        loop {
            let stopped = match self.next_turn()? {
                Turn::None => return self.rest(),
                Turn::Ungrouped { alone } => self.serve_ungrouped(alone)?,
                Turn::Group(group) => self.serve_group(&group)?,
            };
            if let Some(rest) = stopped {
                return Ok(rest);
            }
        }
    }

    /// Returns the lane with the lowest score.
    fn next_turn(&mut self) -> SqliteResult<Turn> {
        let mut ready = self.claim.session.prepare(READY)?;
        let ready = ready.query_row([self.topic.key], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?))
        });
        let ready = ready.optional()?;
        let is_ungrouped_ready = self.ungrouped_rest == TopicRemainder::Ready;
        let Some((name, score)) = ready else {
            let alone = Turn::Ungrouped { alone: true };
            return Ok(if is_ungrouped_ready { alone } else { Turn::None });
        };
        if is_ungrouped_ready && self.ungrouped_score()? < score {
            return Ok(Turn::Ungrouped { alone: false });
        }
        Ok(GroupName::stored(&name).map_or(Turn::None, Turn::Group))
    }

    /// Returns the score of the jobs without a group.
    fn ungrouped_score(&mut self) -> SqliteResult<i64> {
        let (session, topic) = (&mut *self.claim.session, self.topic);
        let running = match session.topic_counts().running.get(topic.name) {
            Some(running) => running,
            None => {
                let all = session.prepare(RUNNING)?.query_one([topic.key], |row| row.get(0))?;
                session.topic_counts().running.keep(topic.name, all);
                all
            }
        };
        let totals = totals(session, topic)?;
        Ok(turns::score(totals.served, running - totals.running, self.ungrouped_weight))
    }

    /// Leases jobs without a group, at most this number; returns how many.
    fn take_ungrouped(&mut self, most: usize) -> SqliteResult<usize> {
        let ClaimSession { session, budget, .. } = &mut *self.claim;
        let mut taken = Vec::new();
        let jobs = most.min(budget.jobs);
        let mut part = ClaimBudget { jobs, ..*budget };
        let (topic, ageing) = (self.topic, self.ageing);
        self.ungrouped_rest =
            take_jobs(session, topic, ageing, &mut self.round, &mut part, &mut taken)?;
        *budget = ClaimBudget { jobs: budget.jobs - taken.len(), ..part };
        let count = taken.len();
        self.claim.lease(taken, self.round.streams, self.leased)?;
        Ok(count)
    }

    /// Gives the jobs without a group a turn, or all of them if they are alone.
    fn serve_ungrouped(&mut self, alone: bool) -> SqliteResult<Option<TopicRemainder>> {
        let taken = self.take_ungrouped(if alone { limit::CALL_JOBS_MAX } else { 1 })?;
        if taken > 0 && self.claim.session.lanes(self.topic.name).is_some_and(|lanes| lanes.any) {
            let mut totals = totals(self.claim.session, self.topic)?;
            totals.served = totals.pick();
            totals.write(self.claim.session, self.topic)?;
        }
        Ok(match self.ungrouped_rest {
            // No stream can take the job, or the call is full.
            TopicRemainder::Ready if taken == 0 || alone => Some(TopicRemainder::Ready),
            TopicRemainder::Unknown => Some(TopicRemainder::Unknown),
            _ => None,
        })
    }

    /// Gives a lane a turn; returns the remainder if the claim ends there.
    fn serve_group(&mut self, group: &GroupName) -> SqliteResult<Option<TopicRemainder>> {
        let next = next_job(self.claim.session, self.topic, group, self.ageing)?;
        let LaneHead::Due(at) = next else {
            // Its first job is no longer due, or has left.
            self.stand(group)?;
            return Ok(None);
        };
        let name = self.topic.name;
        let found = read_unexpired(self.claim.session, name, at.key, at.rank)?;
        let Some((job, bytes)) = found else {
            // The job was removed by hand, or it has expired.
            self.drop_job(group, at)?;
            let is_used_up = self.claim.budget.expiries == 0;
            return Ok(is_used_up.then_some(TopicRemainder::Unknown));
        };
        let ClaimSession { session, budget, .. } = &mut *self.claim;
        let Some(stream) = self.round.next_stream(bytes).filter(|_| budget.fits(bytes)) else {
            return Ok(Some(TopicRemainder::Ready));
        };
        self.round.charge(stream, bytes);
        budget.take(bytes);
        drop_job(session, self.topic, group, at)?;
        let mut totals = totals(session, self.topic)?;
        let served = totals.pick();
        totals.running += 1;
        totals.write(session, self.topic)?;
        if let Some(mut lane) = lanes::find(session, self.topic, group)? {
            lane.serve(served);
            lane.stand(&head(session, self.topic, group)?);
            lane.write(session, self.topic, group)?;
        }
        self.claim.lease(vec![TakenJob { stream, ..job }], self.round.streams, self.leased)?;
        Ok(None)
    }

    /// Removes a position that has no job to deliver. A job that has expired leaves its lane as the engine ends it.
    fn drop_job(&mut self, group: &GroupName, at: LanePosition) -> SqliteResult<()> {
        let ClaimSession { session, budget, .. } = &mut *self.claim;
        budget.expiries = budget.expiries.saturating_sub(1);
        let row = JobRow::find(&mut session.prepare(BY_KEY)?, params![at.key])?;
        if let Some(row) = row {
            let key = row.job_key(self.topic.name.clone());
            apply_to(session, &key, Some(&row), &Command::Prune)?;
        }
        drop_job(session, self.topic, group, at)?;
        self.stand(group)
    }

    /// Returns the remainder when no lane has a job that is due.
    fn rest(&mut self) -> SqliteResult<TopicRemainder> {
        let ungrouped = match self.ungrouped_rest {
            TopicRemainder::ReadyAt(due) => Some(due),
            _ => None,
        };
        let next = self.next_due()?;
        let due = ungrouped.into_iter().chain(next).min();
        Ok(match due {
            Some(due) if due <= self.claim.session.now => TopicRemainder::Unknown,
            Some(due) => TopicRemainder::ReadyAt(due),
            None => TopicRemainder::Empty,
        })
    }

    /// Returns when the next job of a lane is due. A lane may stand for a job that has left or expired since.
    fn next_due(&mut self) -> SqliteResult<Option<Time>> {
        loop {
            let mut later = self.claim.session.prepare(LATER)?;
            let found = later.query_row([self.topic.key], |row| {
                Ok((row.get::<_, String>(0)?, Time(row.get(1)?)))
            });
            drop(later);
            let Some((name, due)) = found.optional()? else { return Ok(None) };
            let Some(group) = GroupName::stored(&name) else { return Ok(None) };
            match head(self.claim.session, self.topic, &group)? {
                LaneHead::Later(first) if first == due => return Ok(Some(due)),
                LaneHead::Due(at) => return Ok(Some(at.due)),
                _ => self.stand(&group)?,
            }
        }
    }
}
