//! `evenkeel kernel`: what a back-end's kernel tells of its load, and how to read it.

mod attach;
#[cfg(feature = "bpf")]
mod forwarding;
mod query;
mod receive;
mod serve;
#[cfg(feature = "bpf")]
mod trace;
#[cfg(not(feature = "bpf"))]
#[path = "no_trace.rs"]
mod trace;

use crate::cli::kernel::{Kernel, KernelCommand};
use crate::failure::Failure;

/// Runs the command.
pub(crate) fn run(args: &Kernel) -> Result<(), Failure> {
    match &args.command {
        KernelCommand::Attach(args) if !args.receive.is_empty() => {
            receive::attach(&args.receive, &args.balancers)
        }
        KernelCommand::Attach(args) => attach::attach(args),
        KernelCommand::Detach(args) => match &args.receive {
            Some(addresses) => receive::detach(addresses),
            None => attach::detach(args),
        },
        KernelCommand::Status(args) if args.receive => receive::show(args.json),
        KernelCommand::Status(args) => attach::status(args),
        KernelCommand::Serve(args) => serve::serve(args),
        KernelCommand::Query(args) => query::query(args),
        KernelCommand::Trace(args) => trace::trace(args),
    }
}
