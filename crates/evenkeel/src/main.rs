//! The `evenkeel` binary: the command line, and the wiring of everything else.

mod agent;
mod bar;
mod check;
mod cli;
mod ctl;
mod engine;
mod kernel;
mod lab;
mod load;
mod pages;
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

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Engine(args) => engine::run(&args),
        Command::Agent(args) => agent::agent(&args),
        Command::Check { file } => check::check(&file).and_then(print),
        Command::Ctl(args) => ctl::run(&args).and_then(print),
        Command::Steer(args) => steer::run(&args).and_then(print),
        Command::Upgrade(args) => upgrade::run(&args).and_then(print),
        Command::Top(args) => top(&args),
        Command::Kernel(args) => kernel::run(&args),
        Command::Demo { seconds } => demo(seconds),
        Command::Load(args) => load::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Lab(args) => lab::run(&args),
        #[cfg(feature = "fleet")]
        Command::Store(args) => store::run(&args).and_then(print),
        Command::Users(args) => users::run(&args).and_then(print),
        Command::Completions { shell } => print(pages::completions(shell)),
        Command::Man { folder } => pages::manual(&folder),
        Command::Strategies => print(strategies::list(evenkeel_core::strategy::REGISTRY)),
    };
    process::flush_log();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("evenkeel: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// Why a command failed: what its user reads, and what their script sees.
#[derive(Debug)]
struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    fn new(message: impl Into<String>) -> Self {
        Failure {
            code: 1,
            message: message.into(),
        }
    }

    fn of(error: impl std::fmt::Display) -> Self {
        Failure::new(error.to_string())
    }
}

fn top(args: &cli::Top) -> Result<(), Failure> {
    let client = ctl::client(&args.api)?;
    if args.once {
        return print(evenkeel_admin::top::once(&client)?);
    }
    evenkeel_admin::top::run(client, Duration::from_secs_f64(args.interval)).map_err(|error| {
        Failure::new(format!(
            "no terminal to draw on: {error}; --once prints plain text"
        ))
    })
}

fn demo(seconds: u64) -> Result<(), Failure> {
    let evenkeel = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find this program's own file: {error}")))?;
    evenkeel_demo::run(&evenkeel, seconds).map_err(|error| Failure::new(error.to_string()))
}

/// Prints a result. Whoever reads it may have had enough before its end.
fn print(text: String) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(format!(
            "cannot write to standard output: {error}"
        ))),
        _ => Ok(()),
    }
}
