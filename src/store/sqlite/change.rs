//! Delete, reschedule and redrive: what people do to single jobs.

use std::collections::HashSet;

use crate::domain::engine::{self, Answer, Command};
use crate::domain::{Job, JobKey};
use crate::store::{Delete, Deleted, Redrive, Redriven, Reschedule, Rescheduled};

use super::apply::{apply, apply_to, decide, find};
use super::fault::Done;
use super::session::Session;

/// [`Store::delete`](crate::store::Store::delete).
pub(super) fn delete(session: &mut Session<'_>, items: &Vec<Delete>) -> Done<Vec<Option<Deleted>>> {
    let delete = |item: &Delete| {
        let command = Command::Delete { finished: item.finished };
        match apply(session, &item.key, &command)? {
            Answer::Deleted(answer) => Ok(answer),
            _ => unreachable!("a delete is answered as one"),
        }
    };
    items.iter().map(delete).collect()
}

/// [`Store::reschedule`](crate::store::Store::reschedule).
pub(super) fn reschedule(
    session: &mut Session<'_>,
    items: &Vec<Reschedule>,
) -> Done<Vec<Rescheduled>> {
    let reschedule = |item: &Reschedule| {
        let command = Command::Reschedule { due: item.due, priority: item.priority };
        match apply(session, &item.key, &command)? {
            Answer::Rescheduled(Ok(true)) => Ok(Ok(read_back(session, &item.key)?)),
            Answer::Rescheduled(Ok(false)) => Ok(Ok(None)),
            Answer::Rescheduled(Err(state)) => Ok(Err(state)),
            _ => unreachable!("a reschedule is answered as one"),
        }
    };
    items.iter().map(reschedule).collect()
}

/// The job as it is now, without its parts.
fn read_back(session: &mut Session<'_>, key: &JobKey) -> Done<Option<Job>> {
    let (row, shard, now) = (find(session, key)?, session.shard().clone(), session.now);
    Ok(row.and_then(|row| row.job(Default::default(), &key.topic, &shard, now)))
}

/// [`Store::redrive`](crate::store::Store::redrive).
pub(super) fn redrive(session: &mut Session<'_>, redrive: &Redrive) -> Done<Redriven> {
    let (mut done, mut met) = (Redriven::default(), HashSet::new());
    let command = redrive.command();
    for id in &redrive.ids {
        let key = JobKey { topic: redrive.topic.clone(), id: id.clone() };
        let command = command.after(u32::try_from(done.redriven).unwrap_or(u32::MAX));
        // A job that is named again is left.
        if met.insert(id) && redrive_one(session, &key, &command, redrive.dry_run)? {
            done.redriven += 1;
        } else {
            done.skipped += 1;
        }
    }
    Ok(done)
}

fn redrive_one(
    session: &mut Session<'_>,
    key: &JobKey,
    command: &engine::Redrive,
    dry_run: bool,
) -> Done<bool> {
    if let Some(topic) = &command.target
        && is_taken(session, &JobKey { topic: topic.clone(), id: key.id.clone() })?
    {
        return Ok(false);
    }
    let (row, command) = (find(session, key)?, Command::Redrive(command.clone()));
    let answer = if dry_run {
        decide(session, key, row.as_ref(), &command)?.answer
    } else {
        apply_to(session, key, row.as_ref(), &command)?
    };
    Ok(answer == Answer::Done(true))
}

/// Whether there is a job of this key, after all that its clock has brought about.
fn is_taken(session: &mut Session<'_>, key: &JobKey) -> Done<bool> {
    apply(session, key, &Command::Prune)?;
    Ok(find(session, key)?.is_some())
}
