//! `evenkeel steer`: the other balancers that get weights, as the running balancer sees them, or as they are without one.

use std::path::Path;

use evenkeel_admin::ctl::Ctl;
use evenkeel_steer::{SteerStatus, format_tables, rehearsal};

use crate::cli::Steer;
use crate::ctl;
use crate::failure::Failure;
use crate::output::print;

/// Answers what to print.
pub(crate) fn run(args: &Steer) -> Result<String, Failure> {
    if let Some(file) = &args.dry_run {
        return rehearse(file);
    }
    let ctl = Ctl {
        client: ctl::make_client(&args.api)?,
        json: args.json,
    };
    let shown = ctl.show_path(&["v1", "steer"], |all: &Vec<SteerStatus>| {
        format_tables(all)
    })?;
    Ok(shown)
}

fn rehearse(file: &Path) -> Result<String, Failure> {
    let config = evenkeel_config::load_config(file)
        .map_err(|errors| Failure::new(format!("the configuration has errors\n{errors}")))?;
    let runtime = evenkeel_net::new_runtime().map_err(Failure::of)?;
    let all = runtime.block_on(rehearsal::rehearse_orders(&config));
    let shown = format_tables(&all);
    if all.iter().all(|one| one.error.is_none()) {
        return Ok(shown);
    }
    // What is wrong with one stands at its place, and says nothing of the others.
    print(shown)?;
    Err(Failure::new(
        "some of [steer.NAME] could not be checked: see `failed` above",
    ))
}
