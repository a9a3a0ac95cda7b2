//! The `evenkeel` binary: the command line, and the wiring of everything else.

mod access_log;
mod agent;
mod check;
mod cli;
mod convert;
mod ctl;
mod engine;
mod failure;
mod kernel;
mod moved;
mod output;
mod pages;
mod password;
mod plural;
mod privileges;
mod process;
mod run;
mod shared;
mod sim;
mod steer;
#[cfg(feature = "fleet")]
mod store;
mod strategies;
mod traces;
mod upgrade;
mod users;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use cli::{Cli, Command};
use failure::Failure;
use output::print;

fn main() -> ExitCode {
    let result = moved::refuse_moved(std::env::args_os()).and_then(|()| run_command());
    process::flush_log();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("evenkeel: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}

fn run_command() -> Result<(), Failure> {
    match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Engine(args) => engine::run(&args),
        Command::Agent(args) => agent::run_agent(&args),
        Command::Check { file } => check::check_file(&file).and_then(print),
        Command::Convert(args) => convert::run(&args),
        Command::Ctl(args) => ctl::run(&args).and_then(print),
        Command::Steer(args) => steer::run(&args).and_then(print),
        Command::Upgrade(args) => upgrade::run(&args).and_then(print),
        Command::Top(args) => top(&args),
        Command::Kernel(args) => kernel::run(&args),
        Command::Sim(args) => sim::run(&args),
        #[cfg(feature = "fleet")]
        Command::Store(args) => store::run(&args).and_then(print),
        Command::Users(args) => users::run(&args).and_then(print),
        Command::Completions { shell } => print(pages::shell_completions(shell)),
        Command::Man { folder } => pages::write_manual(&folder),
        Command::Strategies => print(strategies::list_strategies(
            evenkeel_core::strategy::REGISTRY,
        )),
    }
}

fn top(args: &cli::Top) -> Result<(), Failure> {
    let client = ctl::make_client(&args.api)?;
    if args.once {
        return print(evenkeel_admin::top::show_once(&client)?);
    }
    // A wrong password is told here, and not on the screen.
    client.log_in()?;
    evenkeel_admin::top::run(client, Duration::from_secs_f64(args.interval)).map_err(|error| {
        Failure::new(format!(
            "no terminal to draw on: {error}; --once prints plain text"
        ))
    })
}
