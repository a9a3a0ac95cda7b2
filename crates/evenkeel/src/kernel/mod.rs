//! `evenkeel kernel`: what a back-end's kernel tells of its load, and how to read it.

mod attach;
#[cfg(feature = "bpf")]
mod forwarding;
mod query;
mod serve;

use crate::cli::kernel::{Kernel, KernelCommand};
use crate::failure::Failure;

/// Runs the command.
pub(crate) fn run(args: &Kernel) -> Result<(), Failure> {
    match &args.command {
        KernelCommand::Attach(args) => attach::attach(args),
        KernelCommand::Detach(args) => attach::detach(args),
        KernelCommand::Status(args) => attach::status(args),
        KernelCommand::Serve(args) => serve::serve(args),
        KernelCommand::Query(args) => query::query(args),
    }
}
