//! `evenkeel engine`.

use evenkeel_config::{engine, one_line};
use evenkeel_engine::Engine;
use evenkeel_net::Clock;
use evenkeel_net::http::Phase;
use tokio::sync::watch;
use tokio::task::LocalSet;
use tracing::warn;

use crate::failure::Failure;
use crate::{cli, process};

/// Runs the client engine until it is told to end.
pub(crate) fn run(args: &cli::Run) -> Result<(), Failure> {
    process::start_log_of(&args.log)?;
    process::raise_file_limit();
    let runtime = process::build_runtime()?;
    let result = LocalSet::new().block_on(&runtime, live(args));
    // A lookup of a name that still runs in its thread must not delay the end.
    runtime.shutdown_background();
    result
}

async fn live(args: &cli::Run) -> Result<(), Failure> {
    let stop = process::end_signal("shutting down")?;
    let config = engine::load_engine_config(&args.file)
        .map_err(|errors| Failure::new(format!("the configuration has errors\n{errors}")))?;
    for warning in &config.warnings {
        warn!("{warning}");
    }
    let problems = evenkeel_engine::check_files(&config);
    if !problems.is_empty() {
        let problems = one_line(&problems);
        return Err(Failure::new(format!("cannot start: {problems}")));
    }
    let engine = Engine::listen(config).await;
    let engine = engine.map_err(Failure::of)?;
    let mut text = String::new();
    for (cluster, address) in engine.addresses() {
        text.push_str(&format!("listening: cluster {cluster} on {address}\n"));
    }
    text.push_str("ready\n");
    let (phase, phases) = watch::channel(Phase::Serve);
    let serving = tokio::task::spawn_local(engine.run(Clock::start(), phases));
    process::announce_ready(&text);
    stop.await;
    phase.send_replace(Phase::Stop);
    // A panic there has been told already.
    let _ = serving.await;
    Ok(())
}
