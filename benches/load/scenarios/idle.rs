//! Latency without load: one job at a time to a worker that waits.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::{BODY_BYTES, Bench, Setting};
use crate::client::body;
use crate::ledger::wall_us;
use crate::report::{Figure, Target, percentile};
use crate::{consumer, producer};

const JOBS: u32 = 1000;
/// Between two jobs, so that both sides go to sleep.
const PAUSE: Duration = Duration::from_millis(3);

pub(super) async fn idle(setting: &Setting) -> Result<Vec<Figure>> {
    let bench = setting.bench(setting.jobs(JOBS), BODY_BYTES).await?;
    let mut times = dispatch_times(&bench).await?;
    bench.client.balance(&bench.ledger).await?;
    Ok(vec![
        Figure::new("p50", "ms", percentile(&mut times, 0.5)).against(Target::AtMost(1.0)),
        Figure::new("p99", "ms", percentile(&mut times, 0.99)).against(Target::AtMost(5.0)),
    ])
}

/// Milliseconds from the start of each enqueue call to the delivery; the call's own answer may come
/// later than that.
async fn dispatch_times(bench: &Bench) -> Result<Vec<f64>> {
    let mut worker = bench.client.queue(0);
    let mut stream = worker.stream(consumer::request(16)).await?.into_inner();
    stream.message().await?.context("no first message")?;
    let mut times = Vec::new();
    for number in 0..bench.ledger.jobs() {
        let mut queue = bench.client.queue(1);
        let start = Instant::now();
        let delivery = async {
            loop {
                let message = stream.message().await?.context("the server ended the stream")?;
                if let Some(delivery) = message.deliveries.into_iter().next() {
                    return anyhow::Ok((start.elapsed(), delivery));
                }
            }
        };
        let enqueue = producer::one(&mut queue, &bench.ledger, number);
        let ((), (time, delivery)) = tokio::try_join!(enqueue, delivery)?;
        times.push(time.as_secs_f64() * 1e3);
        let entry = bench.ledger.delivered(body(&delivery), wall_us()).context("a strange body")?;
        consumer::ack(worker.clone(), vec![(entry.number, delivery.receipt)]).await?;
        bench.ledger.acked(entry.number);
        tokio::time::sleep(PAUSE).await;
    }
    Ok(times)
}
