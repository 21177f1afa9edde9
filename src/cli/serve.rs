//! `ringq serve`: reads the settings, starts log and runtime, runs the application.

use std::time::Duration;

use anyhow::Context as _;
use rustix::fs::Mode;
use rustix::process::umask;
use tokio::runtime::{Builder, Runtime};

use super::exit::CommandFailure;
use super::serve_args::ServeArgs;
use crate::app::App;
use crate::config::Config;
use crate::shutdown;
use crate::telemetry::Telemetry;

/// Time for which blocking calls may delay the exit: all necessary work is finished by then.
const LINGER: Duration = Duration::from_secs(2);

pub(super) fn run(flags: ServeArgs) -> Result<(), CommandFailure> {
    // What a server stores is for its user alone: payloads, the audit log. What exists already keeps its mode.
    let others = Mode::RWXG | Mode::RWXO;
    umask(umask(others) | others);
    let config = Config::load(&flags.into())?;
    let runtime = runtime(config.threads).context("cannot start the runtime")?;
    let result = runtime.block_on(serve(config));
    runtime.shutdown_timeout(LINGER);
    Ok(result?)
}

async fn serve(config: Config) -> anyhow::Result<()> {
    let telemetry =
        Telemetry::start(config.log_format, &config.log_filter, &config.otlp, &config.replica)?;
    let result = run_app(config, telemetry.clone()).await;
    telemetry.shut_down().await;
    result
}

async fn run_app(config: Config, telemetry: Telemetry) -> anyhow::Result<()> {
    // First of all: a signal during a slow start must not be lost.
    let shutdown = shutdown::signal().context("cannot listen to signals")?;
    let app = App::build(config, telemetry).await?;
    app.run(shutdown).await?;
    Ok(())
}

/// Builds the runtime. With one thread it is a current-thread runtime, where a task wakes another without waking a
/// thread: that is most of the cost of a small call.
fn runtime(threads: usize) -> std::io::Result<Runtime> {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(threads).thread_name("ringq-worker").enable_all().build()
}
