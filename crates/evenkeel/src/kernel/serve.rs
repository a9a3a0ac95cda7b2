//! `evenkeel kernel serve`: load records at an interval, by a process.

use evenkeel_kernel::keys;
use evenkeel_kernel::priority::{self, PrivateCgroup};
use evenkeel_kernel::serve::{Options, ServeError, Server};
use evenkeel_net::key_file;

use crate::cli::kernel::{From, Serve};
use crate::failure::Failure;
use crate::process;

/// Serves until it is told to end.
pub(super) fn serve(args: &Serve) -> Result<(), Failure> {
    let mut options = Options {
        from_kernel: args.source == From::Kernel,
        interval: args.interval,
        shared: args.shared.clone(),
        rdma: args.rdma,
        respond: args.respond,
        cached: args.cached,
        keys: Vec::new(),
        allow: args.allow.clone(),
        hosts: args.hosts.clone(),
        rate: args.rate,
        ports: args.listen_ports.clone(),
        cgroups: args.cgroups.clone(),
    };
    options.check().map_err(failure)?;
    process::start_log_of(&args.log)?;
    // Before anything else begins, so that all of it has it.
    let _own = if args.own_cgroup {
        Some(PrivateCgroup::enter(args.fifo.is_some()).map_err(Failure::of)?)
    } else {
        None
    };
    if let Some(value) = args.nice {
        priority::set_nice_value(value).map_err(Failure::of)?;
    }
    if let Some(priority) = args.fifo {
        priority::set_fifo_class(priority).map_err(Failure::of)?;
    }
    if let Some(path) = &args.key_file {
        options.keys = key_file::load_parsed(path, keys::parse).map_err(Failure::of)?;
    }
    let server = Server::start(options).map_err(failure)?;
    let runtime = process::build_runtime()?;
    runtime.block_on(async {
        let stop = process::end_signal("ending")?;
        server
            .run(stop, process::announce_ready)
            .await
            .map_err(failure)
    })
}

fn failure(error: ServeError) -> Failure {
    Failure {
        code: if error.is_usage() { 2 } else { 1 },
        message: error.to_string(),
    }
}
