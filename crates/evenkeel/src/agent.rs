//! `evenkeel agent`.

use evenkeel_manager::config::watch::Reloads;

use crate::cli;
use crate::failure::Failure;
use crate::output::print;
use crate::process::{self, Signals};

/// Runs the agent until it is told to end, or prints its report once.
pub(crate) fn run_agent(args: &cli::Agent) -> Result<(), Failure> {
    // The report that is printed says everything that the log would.
    if !args.once || args.run.log.log.is_some() {
        process::start_log_of(&args.run.log)?;
    }
    let file = &args.run.file;
    let runtime = process::build_runtime()?;
    let result = runtime.block_on(async {
        if args.once {
            return print(
                evenkeel_agent::measure_once(file)
                    .await
                    .map_err(Failure::of)?,
            );
        }
        let stop = process::end_signal("signing off")?;
        let reloads = Reloads::new(file).map_err(Signals::failed)?;
        let ready = |listening: String| process::announce_ready(&listening);
        let ran = evenkeel_agent::run(file, reloads, stop, ready).await;
        ran.map_err(Failure::of)
    });
    // A lookup of a name that still runs in its thread must not delay the end.
    runtime.shutdown_background();
    result
}
