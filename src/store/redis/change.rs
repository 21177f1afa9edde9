//! What people do to single jobs: delete, reschedule, redrive.

use std::collections::HashSet;

use crate::domain::JobKey;
use crate::domain::engine::{Answer, Command};
use crate::store::{Delete, Deleted, Redrive, Redriven, Reschedule, Rescheduled, Result};

use super::RedisStore;
use super::apply::{Outcome, Request};
use super::reply::unexpected;

impl RedisStore {
    /// [`Store::delete`](crate::store::Store::delete).
    pub(super) async fn delete(&self, items: Vec<Delete>) -> Result<Vec<Option<Deleted>>> {
        let request = |Delete { key, finished, until }| Request {
            key,
            command: Command::Delete { finished },
            until,
        };
        let requests: Vec<_> = items.into_iter().map(request).collect();
        let deleted =
            self.apply_all(&requests).await?.into_iter().map(|outcome| match outcome.answer {
                Answer::Deleted(deleted) => Ok(deleted),
                _ => Err(unexpected("a delete")),
            });
        deleted.collect()
    }

    /// [`Store::reschedule`](crate::store::Store::reschedule).
    pub(super) async fn reschedule(&self, items: Vec<Reschedule>) -> Result<Vec<Rescheduled>> {
        let request = |Reschedule { key, due, priority, until }| Request {
            key,
            command: Command::Reschedule { due, priority },
            until,
        };
        let requests: Vec<_> = items.into_iter().map(request).collect();
        let outcomes = self.apply_all(&requests).await?;
        requests
            .into_iter()
            .zip(outcomes)
            .map(|(request, outcome)| self.moved(request.key, outcome))
            .collect()
    }

    fn moved(&self, key: JobKey, outcome: Outcome) -> Result<Rescheduled> {
        match outcome.answer {
            Answer::Rescheduled(Err(state)) => Ok(Err(state)),
            Answer::Rescheduled(Ok(_)) => {
                let (record, now) = (outcome.record_now(), outcome.now());
                let job = |record: crate::domain::engine::Record| {
                    record.job(key, self.name.clone(), now, Default::default())
                };
                Ok(Ok(record.and_then(job)))
            }
            _ => Err(unexpected("a reschedule")),
        }
    }

    /// [`Store::redrive`](crate::store::Store::redrive).
    pub(super) async fn redrive(&self, redrive: Redrive) -> Result<Redriven> {
        let (mut done, mut met) = (Redriven::default(), HashSet::new());
        let (command, until) = (Command::Redrive(redrive.command()), redrive.until);
        // A job that is named again is left.
        let ids = redrive.ids.iter().filter(|id| met.insert(*id));
        let key =
            |id: &crate::domain::JobId| JobKey { topic: redrive.topic.clone(), id: id.clone() };
        let requests: Vec<_> =
            ids.map(|id| Request { key: key(id), command: command.clone(), until }).collect();
        let answers = if redrive.dry_run {
            self.foresee(&requests).await?
        } else {
            self.apply_all(&requests).await?.into_iter().map(|outcome| outcome.answer).collect()
        };
        let redriven = answers.into_iter().filter(|answer| *answer == Answer::Done(true)).count();
        done.redriven = redriven as u64;
        done.skipped = redrive.ids.len() as u64 - done.redriven;
        Ok(done)
    }
}
