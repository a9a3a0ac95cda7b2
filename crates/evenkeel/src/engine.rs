//! `evenkeel engine`.

use std::io::{self, Write};

use evenkeel_config::engine;
use evenkeel_engine::Engine;
use evenkeel_net::Clock;
use evenkeel_net::http::Phase;
use tokio::sync::watch;
use tokio::task::LocalSet;
use tracing::{info, warn};

use crate::{Failure, cli, process};

/// Runs the client engine until it is told to end.
pub(crate) fn run(args: &cli::Run) -> Result<(), Failure> {
    process::start_log_of(args)?;
    process::raise_file_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start: {error}")))?;
    let result = LocalSet::new().block_on(&runtime, live(args));
    // A lookup of a name that still runs in its thread must not delay the end.
    runtime.shutdown_background();
    result
}

async fn live(args: &cli::Run) -> Result<(), Failure> {
    let mut signals = process::Signals::listen()
        .map_err(|error| Failure::new(format!("cannot listen to signals: {error}")))?;
    let config = engine::load(&args.file)
        .map_err(|errors| Failure::new(format!("the configuration has errors\n{errors}")))?;
    for warning in &config.warnings {
        warn!("{warning}");
    }
    let engine = Engine::listen(config).await;
    let engine = engine.map_err(|error| Failure::new(error.to_string()))?;
    let mut text = String::new();
    for (cluster, address) in engine.addresses() {
        text.push_str(&format!("listening: cluster {cluster} on {address}\n"));
    }
    text.push_str("ready\n");
    // If nobody reads it, the engine works all the same.
    let _ = io::stdout().lock().write_all(text.as_bytes());
    let (phase, phases) = watch::channel(Phase::Serve);
    let serving = tokio::task::spawn_local(engine.run(Clock::start(), phases));
    process::notify("READY=1");
    let name = signals.end().await;
    info!("{name}: shutting down");
    process::notify("STOPPING=1");
    phase.send_replace(Phase::Stop);
    // A panic there has been told already.
    let _ = serving.await;
    Ok(())
}
