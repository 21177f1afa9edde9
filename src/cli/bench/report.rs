//! Outcome of a run as text for people.

use super::audit_report::AuditReport;
use super::figures::{Figures, RoundSpread};
use super::histogram::Latency;
use super::plan::{JobAmount, Phases, Plan};
use super::preset::name;
use super::server::ServerClock;
use super::session::{BenchOutcome, BenchSession};
use crate::cli::exit::CommandFailure;
use crate::cli::output::{Block, StdoutWriter, Table};
use crate::contract::duration_text::show_duration;
use crate::pb;

/// Prints the measurements, and the values that they depend on.
pub(super) fn print(
    session: &BenchSession,
    outcome: &BenchOutcome,
    out: &mut StdoutWriter,
) -> Result<(), CommandFailure> {
    settings_block(session, outcome).print(out)?;
    if let Some(table) = rates(&session.plan, &outcome.rounds) {
        out.write_line("")?;
        table.print(out)?;
    }
    if let Some(table) = latencies(&outcome.rounds) {
        out.write_line("")?;
        table.print(out)?;
    }
    if let Some(last) = outcome.rounds.last().or(outcome.warm_up.as_ref()) {
        out.write_line("")?;
        audit_block(session, outcome, last).print(out)?;
    }
    Ok(())
}

fn settings_block(session: &BenchSession, outcome: &BenchOutcome) -> Block {
    let (plan, info) = (&session.plan, &outcome.server.info);
    let last = outcome.rounds.last();
    let mut block = Block::default();
    block.line("bench", format!("{} {}", session.preset.name(), amount(plan)));
    block.line("topic", &session.topic);
    let (url, version, store) = (&outcome.server.url, &info.version, &info.store);
    let reached = last.map(|round| round.durability);
    let durability = reached.filter(|level| *level != pb::Durability::Unspecified);
    let durability = durability.unwrap_or_else(|| info.durability());
    block.line("server", format!("{url}, ringq {version}, {store}, {}", level(durability)));
    block.line("clock", clock(outcome.server.clock));
    block.line("producers", producers(plan));
    if plan.phases != Phases::Fill {
        block.line("workers", workers(plan, last));
    }
    block.line("client", client(plan, &outcome.rounds));
    block
}

fn amount(plan: &Plan) -> String {
    let bytes = plan.body_bytes;
    let amount = match plan.amount {
        JobAmount::Jobs(jobs) => format!("{jobs} jobs of {bytes} bytes"),
        JobAmount::Time(duration) => {
            format!("{} of jobs of {bytes} bytes", show_duration(duration))
        }
    };
    let rounds = match plan.rounds {
        1 => "1 round".to_owned(),
        rounds => format!("{rounds} rounds"),
    };
    let warm_up = match plan.warm_up().map(|plan| plan.amount) {
        Some(JobAmount::Jobs(jobs)) => format!(" after {jobs} jobs of warm-up"),
        _ => String::new(),
    };
    let (phases, delay) = (name(plan.phases), delay(plan));
    format!("({phases}), {amount}{delay}, {rounds}{warm_up}")
}

fn delay(plan: &Plan) -> String {
    let lead = show_duration(plan.lead());
    match (plan.is_delayed(), plan.spread) {
        (false, _) => String::new(),
        (true, None) => format!(", all due after {lead}"),
        (true, Some(spread)) => {
            format!(", due after {lead} and spread over {}", show_duration(spread))
        }
    }
}

fn producers(plan: &Plan) -> String {
    let rate = plan.rate.map_or_else(String::new, |rate| format!(", {rate} jobs/s in all"));
    let (producers, calls, batch) = (plan.producers, plan.in_flight, plan.batch);
    format!("{producers}, calls in flight {calls} each, jobs per call {batch}{rate}")
}

fn workers(plan: &Plan, last: Option<&Figures>) -> String {
    let (workers, credit, ack) = (plan.workers, plan.credit, plan.ack_batch);
    let granted = match last.and_then(|round| round.grant) {
        Some(grant) if u32::try_from(grant.credit) == Ok(credit) => {
            format!("{credit}, jobs per message {}", grant.message_jobs)
        }
        Some(grant) => {
            format!("{} of {credit}, jobs per message {}", grant.credit, grant.message_jobs)
        }
        None => credit.to_string(),
    };
    format!("{workers}, credit {granted}, jobs per ack {ack}")
}

fn client(plan: &Plan, rounds: &[Figures]) -> String {
    let cpu = RoundSpread::across(rounds, |round| Some(round.client_cpu_us));
    let cpu =
        cpu.map_or_else(String::new, |cpu| format!(", CPU per job {} us", digits(cpu.median)));
    let (threads, cores) = (plan.threads, cores());
    let version = env!("CARGO_PKG_VERSION");
    let connections = plan.connections;
    format!("ringq {version}, threads {threads} of {cores} cores, connections {connections}{cpu}")
}

fn clock(clock: ServerClock) -> String {
    if clock.is_shared() {
        return "the server's is this machine's".to_owned();
    }
    let (offset, uncertainty) = (clock.offset_us, clock.uncertainty_us);
    format!("the server is {offset} us ahead, give or take {uncertainty} us")
}

fn rates(plan: &Plan, rounds: &[Figures]) -> Option<Table> {
    let mut table = Table::new(["RATE", "JOBS/S", "ROUNDS"]);
    let mut any = false;
    let mut row = |name: &str, spread: Option<RoundSpread>| {
        let Some(RoundSpread { median, min, max }) = spread else { return };
        any = true;
        let range = format!("{} to {}", digits(min), digits(max));
        let range = if rounds.len() > 1 { range } else { String::new() };
        table.row([name.to_owned(), digits(median), range]);
    };
    let both = matches!(plan.phases, Phases::Sequence | Phases::Together);
    if both {
        row("whole lives", RoundSpread::across(rounds, |round| round.rate));
    }
    row("enqueue", RoundSpread::across(rounds, |round| round.enqueue_rate));
    row("take and ack", RoundSpread::across(rounds, |round| round.consume_rate));
    any.then_some(table)
}

/// Returns the table of latencies: the median round of each value; the largest is that of all rounds.
fn latencies(rounds: &[Figures]) -> Option<Table> {
    let mut table = Table::new(["LATENCY MS", "COUNT", "P50", "P90", "P99", "MAX"]);
    let mut any = false;
    let mut row = |name: &str, latency: fn(&Figures) -> Option<Latency>| {
        let over = |part: fn(Latency) -> u64| {
            RoundSpread::across(rounds, |round| latency(round).map(|latency| part(latency) as f64))
        };
        let Some(max) = over(|latency| latency.max) else { return };
        any = true;
        let median = |part| over(part).map_or(0.0, |spread| spread.median);
        let ms = |us: f64| digits(us / 1e3);
        table.row([
            name.to_owned(),
            format!("{:.0}", median(|latency| latency.count)),
            ms(median(|latency| latency.p50)),
            ms(median(|latency| latency.p90)),
            ms(median(|latency| latency.p99)),
            ms(max.max),
        ]);
    };
    row("enqueue call", |round| round.enqueue);
    row("dispatch", |round| round.dispatch);
    row("lateness", |round| round.lateness);
    row("ack call", |round| round.ack);
    any.then_some(table)
}

fn audit_block(session: &BenchSession, outcome: &BenchOutcome, last: &Figures) -> Block {
    let balance = &last.audit;
    let mut block = Block::default();
    let AuditReport { enqueued, delivered, acked, doubled, early, .. } = balance;
    let verdict = if last.is_sound() && session.plan.phases == Phases::Fill {
        format!("{enqueued} enqueued and left there")
    } else {
        format!(
            "{enqueued} enqueued, {delivered} delivered, {acked} acked, {doubled} doubled, {early} early"
        )
    };
    let verdict = match (outcome.error.is_some(), last.is_sound()) {
        (true, _) => format!("cut short: {verdict}"),
        (false, true) => format!("{verdict}; the server counts the same"),
        (false, false) => verdict,
    };
    block.line("books", verdict);
    block
}

/// Returns the number of processors that this program may use.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}

/// Returns a durability like `FSYNCED`.
pub(super) fn level(durability: pb::Durability) -> &'static str {
    let name = durability.as_str_name();
    name.strip_prefix("DURABILITY_").unwrap_or(name)
}

fn digits(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        medium if medium >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
