//! The `evenkeel-lab` binary, the workbench beside the product: experiments, load and a demonstration.

mod cli;
mod experiments;
mod load;
mod regret;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use evenkeel_command::{pages, print_result};
use evenkeel_lab::product;

use cli::{Cli, Command};

fn main() -> ExitCode {
    match run_command() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("evenkeel-lab: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run_command() -> Result<(), String> {
    match Cli::parse().command {
        Command::List => print_result(experiments::list()),
        Command::Run(args) => experiments::run(&args),
        Command::Judge { out } => experiments::judge(&out),
        Command::Regret(args) => regret::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Demo { seconds } => {
            let evenkeel = product::find()?;
            evenkeel_demo::run(&evenkeel, seconds).map_err(|error| error.to_string())
        }
        Command::Completions { shell } => print_result(pages::completions(Cli::command(), shell)),
        Command::Man { folder } => {
            pages::write_manual(Cli::command(), env!("CARGO_PKG_VERSION"), &folder)
        }
    }
}
