//! `evenkeel agent`.

use std::io::Write;

use evenkeel_agent::Error;
use evenkeel_manager::config::watch::Reloads;
use tracing::info;

use crate::cli;
use crate::process::{self, Signals};
use crate::{Failure, print};

/// Runs the agent until it is told to end, or says once what it would report.
pub(crate) fn agent(args: &cli::Agent) -> Result<(), Failure> {
    // What it prints once says everything that the log would.
    if !args.once || args.run.log.is_some() {
        process::start_log_of(&args.run)?;
    }
    let file = &args.run.file;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start: {error}")))?;
    let result = runtime.block_on(async {
        if args.once {
            return print(evenkeel_agent::once(file).await.map_err(failure)?);
        }
        let cannot_listen = |error| Failure::new(format!("cannot listen to signals: {error}"));
        let mut signals = Signals::listen().map_err(cannot_listen)?;
        let reloads = Reloads::new(file).map_err(cannot_listen)?;
        let stop = async {
            let name = signals.end().await;
            info!("{name}: signing off");
            process::notify("STOPPING=1");
        };
        let ready = |listening: String| {
            // Nobody has to read it.
            let _ = std::io::stdout().lock().write_all(listening.as_bytes());
            let _ = std::io::stdout().lock().flush();
            process::notify("READY=1");
        };
        let ran = evenkeel_agent::run(file, reloads, stop, ready).await;
        ran.map_err(failure)
    });
    // A lookup of a name that still runs in its thread must not delay the end.
    runtime.shutdown_background();
    result
}

fn failure(error: Error) -> Failure {
    Failure::new(error.to_string())
}
