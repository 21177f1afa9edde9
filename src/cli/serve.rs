//! `ringq serve`: settings, log, runtime, application.

use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};

use super::exit::CommandFailure;
use super::serve_args::ServeArgs;
use crate::app::App;
use crate::config::Config;
use crate::{shutdown, telemetry};

/// How long blocking calls may hold up the exit: everything that must be finished is by then.
const LINGER: Duration = Duration::from_secs(2);

pub(super) fn run(flags: ServeArgs) -> Result<(), CommandFailure> {
    let config = Config::load(&flags.into())?;
    telemetry::init(config.log_format, &config.log_filter)?;
    let runtime = runtime(config.threads).context("cannot start the runtime")?;
    let result = runtime.block_on(serve(config));
    runtime.shutdown_timeout(LINGER);
    Ok(result?)
}

async fn serve(config: Config) -> anyhow::Result<()> {
    // Before anything else: a signal during a slow start must not be lost.
    let shutdown = shutdown::signal().context("cannot listen to signals")?;
    let app = App::build(config).await?;
    app.run(shutdown).await?;
    Ok(())
}

/// One thread has a runtime of its own kind, in which a task wakes another without waking a thread: that is
/// most of what a small call costs.
fn runtime(threads: usize) -> std::io::Result<Runtime> {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(threads).thread_name("ringq-worker").enable_all().build()
}
