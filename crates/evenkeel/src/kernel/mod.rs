//! `evenkeel kernel`: what a back-end's kernel tells of its load, and how to read it.

mod attach;
mod query;
mod serve;

use clap::{Args, Subcommand};

use crate::Failure;

/// `evenkeel kernel`.
#[derive(Debug, Args)]
pub(crate) struct Kernel {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Let the kernel of this machine answer load queries on an interface
    ///
    /// Loads a BPF program and ends: no process stays. A second `attach` to the same
    /// interface changes keys, sources, targets and so on without interruption.
    /// Needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON.
    Attach(attach::Attach),
    /// Remove the responder from an interface completely
    Detach(attach::Detach),
    /// Show the responder of an interface, and its counters
    Status(attach::Status),
    /// Provide load records from a process
    ///
    /// For kernels that allow no BPF program (--respond), for a balancer on the same machine
    /// (--shared), and for networks with RDMA (--rdma). SIGTERM and SIGINT end it.
    Serve(Box<serve::Serve>),
    /// Query a back-end for its load as a balancer does, and show the answer
    Query(query::Query),
}

/// Runs the command.
pub(crate) fn run(args: &Kernel) -> Result<(), Failure> {
    match &args.command {
        Command::Attach(args) => attach::attach(args),
        Command::Detach(args) => attach::detach(args),
        Command::Status(args) => attach::status(args),
        Command::Serve(args) => serve::serve(args),
        Command::Query(args) => query::query(args),
    }
}
