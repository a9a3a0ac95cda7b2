//! `evenkeel steer`: the other balancers that get weights, as the running balancer sees them, or as they are without one.

use std::path::Path;

use evenkeel_admin::ctl::Ctl;
use evenkeel_steer::{SteerStatus, rehearsal, table};

use crate::cli::Steer;
use crate::{Failure, ctl, print};

/// Answers what to print.
pub(crate) fn run(args: &Steer) -> Result<String, Failure> {
    if let Some(file) = &args.dry_run {
        return rehearse(file);
    }
    let ctl = Ctl {
        client: ctl::client(&args.api)?,
        json: args.json,
    };
    let shown = ctl.show(&["v1", "steer"], |all: &Vec<SteerStatus>| table(all))?;
    Ok(shown)
}

fn rehearse(file: &Path) -> Result<String, Failure> {
    let config = evenkeel_config::load(file)
        .map_err(|errors| Failure::new(format!("the configuration has errors\n{errors}")))?;
    let runtime = evenkeel_net::runtime().map_err(Failure::of)?;
    let all = runtime.block_on(rehearsal::rehearse(&config));
    let shown = table(&all);
    if all.iter().all(|one| one.error.is_none()) {
        return Ok(shown);
    }
    // What is wrong with one stands at its place, and says nothing of the others.
    print(shown)?;
    Err(Failure::new(
        "not everything could be found out: see `failed` above",
    ))
}
