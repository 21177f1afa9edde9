//! Outcome of a run as one JSON object.

use serde_json::{Value, json};

use super::audit_report::AuditReport;
use super::figures::{Figures, RoundSpread};
use super::histogram::Latency;
use super::plan::{JobAmount, Plan};
use super::preset::name;
use super::report::{cores, level};
use super::session::{BenchOutcome, BenchSession};

/// Set if this program was built without optimization.
const DEBUG_BUILD: bool = cfg!(debug_assertions);

/// Returns all measurements, and the values that they depend on.
pub(super) fn value(session: &BenchSession, outcome: &BenchOutcome) -> Value {
    let info = &outcome.server.info;
    let rounds = &outcome.rounds;
    let last = rounds.last();
    let grant = last.and_then(|round| round.grant);
    json!({
        "bench": session.preset.name(),
        "topic": session.topic,
        "complete": outcome.error.is_none(),
        // Proven only for a run that was not cut short.
        "sound": outcome.warm_up.is_none() && rounds.iter().all(Figures::is_sound),
        "setting": setting(&session.plan),
        "server": {
            "url": outcome.server.url,
            "version": info.version,
            "replica": info.replica,
            "store": info.store,
            "durability": level(info.durability()),
            "durability_reached": last.map(|round| level(round.durability)),
            "credit": grant.map(|grant| grant.credit),
            "jobs_per_message": grant.map(|grant| grant.message_jobs),
            "clock_offset_us": outcome.server.clock.offset_us,
            "clock_uncertainty_us": outcome.server.clock.uncertainty_us,
        },
        "client": {
            "version": env!("CARGO_PKG_VERSION"),
            "debug_build": DEBUG_BUILD,
            "threads": session.plan.threads,
            "connections": session.plan.connections,
            "cores": cores(),
        },
        "results": results(rounds),
        "rounds": rounds.iter().map(round).collect::<Vec<_>>(),
        "warm_up_books": outcome.warm_up.as_ref().map(|warm_up| balance(&warm_up.audit)),
    })
}

fn setting(plan: &Plan) -> Value {
    let (jobs, duration) = match plan.amount {
        JobAmount::Jobs(jobs) => (Some(jobs), None),
        JobAmount::Time(duration) => (None, Some(duration)),
    };
    let warm_up = match plan.warm_up().map(|plan| plan.amount) {
        Some(JobAmount::Jobs(jobs)) => jobs,
        _ => 0,
    };
    json!({
        "phases": name(plan.phases),
        "jobs": jobs,
        "duration_ms": duration.map(|duration| duration.as_millis()),
        "producers": plan.producers,
        "in_flight": plan.in_flight,
        "batch": plan.batch,
        "rate": plan.rate,
        "body_bytes": plan.body_bytes,
        "durability": plan.durability.map(name),
        "lead_ms": plan.is_delayed().then(|| plan.lead().as_millis()),
        "spread_ms": plan.is_delayed().then(|| plan.spread.unwrap_or_default().as_millis()),
        "workers": plan.workers,
        "credit": plan.credit,
        "ack_batch": plan.ack_batch,
        "warm_up": warm_up,
        "rounds": plan.rounds,
    })
}

/// Returns the figures over all rounds.
fn results(rounds: &[Figures]) -> Value {
    let over = |figure: fn(&Figures) -> Option<f64>| spread(RoundSpread::across(rounds, figure));
    let latency = |latency: fn(&Figures) -> Option<Latency>| {
        let part = |part: fn(Latency) -> u64| {
            let figure = |round: &Figures| latency(round).map(|latency| part(latency) as f64);
            spread(RoundSpread::across(rounds, figure))
        };
        json!({
            "min": part(|latency| latency.min),
            "p50": part(|latency| latency.p50), "p90": part(|latency| latency.p90),
            "p99": part(|latency| latency.p99), "max": part(|latency| latency.max),
        })
    };
    json!({
        "rate": over(|round| round.rate),
        "enqueue_rate": over(|round| round.enqueue_rate),
        "consume_rate": over(|round| round.consume_rate),
        "client_cpu_us": over(|round| Some(round.client_cpu_us)),
        "enqueue_us": latency(|round| round.enqueue),
        "dispatch_us": latency(|round| round.dispatch),
        "lateness_us": latency(|round| round.lateness),
        "ack_us": latency(|round| round.ack),
    })
}

fn spread(spread: Option<RoundSpread>) -> Value {
    spread.map_or(
        Value::Null,
        |RoundSpread { median, min, max }| json!({"median": median, "min": min, "max": max}),
    )
}

fn round(figures: &Figures) -> Value {
    let latency = |latency: Option<Latency>| {
        latency.map(|Latency { count, min, p50, p90, p99, max }| {
            json!({"count": count, "min": min, "p50": p50, "p90": p90, "p99": p99, "max": max})
        })
    };
    json!({
        "jobs": figures.jobs,
        "seconds": figures.seconds,
        "rate": figures.rate,
        "enqueue_rate": figures.enqueue_rate,
        "consume_rate": figures.consume_rate,
        "client_cpu_us": figures.client_cpu_us,
        "enqueue_us": latency(figures.enqueue),
        "dispatch_us": latency(figures.dispatch),
        "lateness_us": latency(figures.lateness),
        "ack_us": latency(figures.ack),
        "overdue": figures.overdue,
        "books": balance(&figures.audit),
    })
}

fn balance(balance: &AuditReport) -> Value {
    json!({
        "enqueued": balance.enqueued,
        "delivered": balance.delivered,
        "acked": balance.acked,
        "doubled": balance.doubled,
        "early": balance.early,
        "foreign": balance.foreign,
        "damaged": balance.damaged,
        "faults": balance.faults,
    })
}
