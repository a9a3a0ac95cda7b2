//! `evenkeel kernel`: what a back-end's kernel tells of its load, and how to read it.

mod attach;

use clap::{Args, Subcommand};

use crate::Failure;

/// `evenkeel kernel`.
#[derive(Debug, Args)]
pub struct Kernel {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Let the kernel of this machine answer load queries on an interface
    ///
    /// Loads a BPF program and goes: no process stays. A second `attach` to the same
    /// interface changes keys, sources, targets and so on without a gap.
    /// Needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON.
    Attach(attach::Attach),
    /// Take the responder off an interface; nothing of it stays
    Detach(attach::Detach),
    /// Say what answers on an interface, and what it has counted
    Status(attach::Status),
}

/// Runs the command.
pub fn run(args: &Kernel) -> Result<(), Failure> {
    match &args.command {
        Command::Attach(args) => attach::attach(args),
        Command::Detach(args) => attach::detach(args),
        Command::Status(args) => attach::status(args),
    }
}
