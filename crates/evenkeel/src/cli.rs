//! The command line, as data.

mod api;
pub(crate) mod config;
#[cfg(feature = "corba")]
pub(crate) mod corba;
mod ctl;
pub(crate) mod kernel;
mod log;
#[cfg(feature = "fleet")]
mod store;

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use evenkeel_command::AccessFormat;
use evenkeel_command::pages::Shell;

pub(crate) use api::Api;
pub(crate) use ctl::{
    AgentArgs, AgentsCommand, Ctl, CtlCommand, LoadsCommand, MemberArgs, SimulateArgs,
};
pub(crate) use kernel::Kernel;
pub(crate) use log::{Log, LogFormat};
#[cfg(feature = "fleet")]
pub(crate) use store::{Store, StoreBase, StoreCommand};

/// Text of `--version`: the version, and the features of this build beyond the least.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let features = [
        (cfg!(feature = "corba"), "corba"),
        (cfg!(feature = "fleet"), "fleet"),
        (cfg!(feature = "kubernetes"), "kubernetes"),
        (cfg!(feature = "bpf"), "bpf"),
        (cfg!(feature = "rdma"), "rdma"),
    ];
    let built = features.iter().filter(|(built, _)| *built);
    let names: Vec<_> = built.map(|(_, name)| *name).collect();
    let version = env!("CARGO_PKG_VERSION");
    format!("{version}\nfeatures: {}", names.join(" "))
});

/// An adaptive TCP and HTTP load balancer.
#[derive(Debug, Parser)]
#[command(name = "evenkeel", version, long_version = VERSION.as_str(), arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 success; 1 failure, described on stderr; \
2 wrong command line; 3 the admin API, or the store, cannot be reached.")]
pub(crate) struct Cli {
    /// Command of the program.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands of `evenkeel`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the balancer in the foreground
    ///
    /// SIGHUP, and a change of FILE, reload the configuration. After SIGTERM or SIGINT open
    /// connections may finish, for at most `shutdown_grace`; a second signal closes them. SIGUSR2 does the same as
    /// `evenkeel upgrade`. The balancer listens at sockets that a service manager passes (LISTEN_FDS).
    Run(RunBalancer),
    /// Run the client engine in the foreground
    ///
    /// The engine accepts the clients of a site, negotiates a server with a broker, and
    /// redirects the clients to that server. FILE is usually engine.toml. Changes of FILE need a restart.
    Engine(Run),
    /// Measure the load of this machine and its servers, and report it to brokers
    ///
    /// FILE is usually agent.toml. SIGHUP, and a change of FILE, reload the configuration.
    /// At SIGTERM and SIGINT the agent signs off at its brokers, and ends.
    Agent(Agent),
    /// Check a configuration and report all its errors
    Check {
        /// Configuration, usually evenkeel.toml
        file: PathBuf,
    },
    /// Translate a configuration of HAProxy or nginx
    ///
    /// Prints a configuration for `evenkeel run`, with comments that name each line which was not translated, and why; the
    /// same list goes to standard error. docs/coming-from.md has the manual.
    Convert(Convert),
    /// Inspect or control a running balancer through its admin API
    Ctl(Ctl),
    /// Show the other balancers, HAProxy and nginx, that get the weights of groups (`[steer.NAME]`)
    ///
    /// Shows the members of each, the weights that they should have, and the weights that they have. docs/steer.md
    /// has the manual.
    Steer(Steer),
    /// Replace the process of a running balancer by the program that is now in its file, and drop no client
    ///
    /// The balancer starts the program with its own arguments, and passes on its sockets and what it has
    /// learnt (SIGUSR2 does the same). If the new process does not get ready, or ends within 5 s, the old
    /// process keeps serving, and the exit code is 1. docs/upgrade.md has the manual.
    Upgrade(Upgrade),
    /// Watch a running balancer: groups, members, loads, and why a member was chosen
    Top(Top),
    /// Read the load of back-ends from their kernels, and let kernels answer load queries
    Kernel(Kernel),
    /// Play a scenario around a configuration in virtual time
    ///
    /// The scenario says how members work, which requests come, and which events happen; the strategy,
    /// thresholds, groups and members are those of the configuration that the scenario names.
    Sim(Sim),
    /// List the strategies and their parameters
    Strategies,
    /// Read and change the configuration that several balancers share in a store (`[store]`)
    ///
    /// Balancers that follow the store put a change into effect within a second, or step by step with
    /// `rollout`. docs/store.md has the manual.
    #[cfg(feature = "fleet")]
    Store(Store),
    /// Change the file with the users of the admin API and the console (`users_file` in [admin])
    ///
    /// A running balancer takes the change within five seconds.
    Users(Users),
    /// Print completions for a shell: the words that the shell offers after `evenkeel` and Tab
    Completions {
        /// Name of the shell
        shell: Shell,
    },
    /// Write a manual page for each command into a folder
    #[command(hide = true)]
    Man {
        /// Folder; created if missing
        folder: PathBuf,
    },
}

/// `evenkeel convert`.
#[derive(Debug, Args)]
pub(crate) struct Convert {
    /// Configuration of HAProxy or nginx
    pub file: PathBuf,
    /// Write the translation to this file, which must not be there yet
    #[arg(long, short = 'o', value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `evenkeel users`.
#[derive(Debug, Args)]
pub(crate) struct Users {
    /// File with users; made if it is not there
    pub file: PathBuf,
    #[command(subcommand)]
    pub command: UsersCommand,
}

/// Commands for users.
#[derive(Debug, Subcommand)]
pub(crate) enum UsersCommand {
    /// List the users with their roles
    List,
    /// Give a user a role and a password, asked for here or read from standard input
    Add {
        /// Name of the user
        name: String,
        /// Role of the user
        #[arg(long, value_enum, default_value = "view")]
        role: RoleName,
    },
    /// Give a program a role and a new token, which is printed and stored nowhere else
    Token {
        /// Name of the program
        name: String,
        /// Role of the program
        #[arg(long, value_enum, default_value = "view")]
        role: RoleName,
    },
    /// Remove a user
    Remove {
        /// Name of the user
        name: String,
    },
}

/// A role.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum RoleName {
    /// Sees everything but secrets
    View,
    /// Changes states, weights, strategies and alerts, too
    Operate,
    /// Changes the configuration, too
    Administer,
}

/// `evenkeel sim`.
#[derive(Debug, Args)]
pub(crate) struct Sim {
    /// Scenario, a TOML file; with --from-log a configuration
    pub file: PathBuf,
    /// Give advice on a configuration from this access log: play the requests of the log with other strategies
    /// and numbers of members
    #[arg(long, value_name = "FILE")]
    pub from_log: Option<PathBuf>,
    /// Format of the log, if it is not recognised
    #[arg(long, value_enum, requires = "from_log")]
    pub log_format: Option<AccessFormat>,
    /// Group that the log is about, if the configuration has several
    #[arg(long, value_name = "NAME", requires = "from_log")]
    pub group: Option<String>,
    /// Mean service time, as in 20ms, if the log has none
    #[arg(long, value_name = "TIME", requires = "from_log", value_parser = service_time)]
    pub service_time: Option<std::time::Duration>,
    /// The first seed, instead of the scenario's
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u32>,
    /// Number of seeds to run, instead of the scenario's
    #[arg(long, value_name = "NUMBER", value_parser = seeds)]
    pub seeds: Option<usize>,
    /// Play an ideal for comparison, too: one queue in front of all members, which knows everything
    #[arg(long, conflicts_with = "from_log")]
    pub ideal: bool,
    /// Write a report with plots, a single page without scripts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the figures of every run as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write all results as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Show no progress bar on a terminal
    #[arg(long)]
    pub quiet: bool,
}

/// A time that a request may take.
fn service_time(text: &str) -> Result<std::time::Duration, String> {
    let time = evenkeel_config::parse_duration(text)
        .filter(|time| !time.is_zero() && time.as_secs() <= 3600);
    time.ok_or_else(|| r#"a time with a unit is needed, from 1us to 1h, as in "20ms""#.into())
}

/// `evenkeel run`, and what runs like it.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Configuration, usually evenkeel.toml
    pub file: PathBuf,
    /// The log.
    #[command(flatten)]
    pub log: Log,
}

/// `evenkeel run`.
#[derive(Debug, Args)]
pub(crate) struct RunBalancer {
    /// Options common to all commands that run a program.
    #[command(flatten)]
    pub run: Run,
    /// Time in which a process that takes over (`evenkeel upgrade`) must be ready
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=75))]
    pub upgrade_timeout: u64,
    /// Run as root although others than root may write the configuration, and so decide what is done as root
    #[arg(long)]
    pub allow_root: bool,
}

/// Time for which `evenkeel upgrade` waits for its answer: longer than a balancer waits for the
/// other process.
pub(crate) const LONGEST_UPGRADE: Duration = Duration::from_secs(90);

/// `evenkeel upgrade`.
#[derive(Debug, Args)]
pub(crate) struct Upgrade {
    /// The API.
    #[command(flatten)]
    pub api: Api,
    /// Print the API's JSON answer instead of text
    #[arg(long)]
    pub json: bool,
}

/// `evenkeel steer`.
#[derive(Debug, Args)]
pub(crate) struct Steer {
    /// The API.
    #[command(flatten)]
    pub api: Api,
    /// Print the API's JSON answer instead of text
    #[arg(long, conflicts_with = "dry_run")]
    pub json: bool,
    /// Show what a balancer with this configuration would send when it starts: ask HAProxy itself, and no balancer.
    /// Changes nothing
    #[arg(long, value_name = "FILE")]
    pub dry_run: Option<PathBuf>,
}

/// `evenkeel agent`.
#[derive(Debug, Args)]
pub(crate) struct Agent {
    /// The rest.
    #[command(flatten)]
    pub run: Run,
    /// Measure one interval, print what would be reported, and end; nothing is sent
    #[arg(long)]
    pub once: bool,
}

/// `evenkeel top`.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// The API.
    #[command(flatten)]
    pub api: Api,
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    pub interval: f64,
    /// Print all groups once as plain text, and end
    #[arg(long)]
    pub once: bool,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().unwrap_or(f64::NAN);
    if (0.1..=60.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("expected a number of seconds from 0.1 to 60".into())
    }
}

fn seeds(text: &str) -> Result<usize, String> {
    let seeds = text.parse().unwrap_or(0);
    match seeds {
        1..=1000 => Ok(seeds),
        _ => Err("expected a number of seeds from 1 to 1000".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::ctl::AlertWord;
    use super::*;

    fn ctl(words: &str) -> Ctl {
        let words = "evenkeel ctl ".to_owned() + words;
        match Cli::try_parse_from(words.split(' ')).map(|cli| cli.command) {
            Ok(Command::Ctl(ctl)) => ctl,
            other => panic!("{other:?}"),
        }
    }

    fn refused(words: &str) -> String {
        Cli::try_parse_from(words.split(' '))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_of_the_api_may_stand_before_and_after_the_command() {
        for words in [
            "--admin 10.0.0.1:1 --token t status",
            "status --token t --admin 10.0.0.1:1",
        ] {
            let ctl = ctl(words);
            assert_eq!(ctl.api.admin.as_deref(), Some("10.0.0.1:1"));
            assert_eq!(ctl.api.token.as_deref(), Some("t"));
        }
        refused("evenkeel ctl --token t --token-file f status");
    }

    #[test]
    fn parameters_are_numbers_with_names() {
        let CtlCommand::Strategy { params, .. } =
            ctl("strategy web least_request choices=3 x=0.5").command
        else {
            panic!("not a strategy");
        };
        assert_eq!(params, [("choices".into(), 3.0), ("x".into(), 0.5)]);
        assert!(refused("evenkeel ctl strategy web a b").contains("NAME=VALUE"));
        assert!(refused("evenkeel ctl strategy web a b=c").contains("a number after b="));
    }

    #[test]
    fn loads_need_values_to_push() {
        let CtlCommand::Loads { command: None } = ctl("loads").command else {
            panic!("not a list");
        };
        let CtlCommand::Loads {
            command: Some(LoadsCommand::Push { location, loads }),
        } = ctl("loads push node-1 cpu=0.4").command
        else {
            panic!("not a push");
        };
        assert_eq!(
            (location.as_str(), loads),
            ("node-1", vec![("cpu".into(), 0.4)])
        );
        refused("evenkeel ctl loads push node-1");
    }

    #[test]
    fn an_alert_is_on_off_or_auto() {
        let CtlCommand::Alert { location, setting } = ctl("alert node-1 off").command else {
            panic!("not an alert");
        };
        assert_eq!((location.as_str(), setting), ("node-1", AlertWord::Off));
        assert!(refused("evenkeel ctl alert node-1 maybe").contains("auto"));
    }

    #[test]
    fn an_interval_that_makes_no_sense_is_refused() {
        for bad in ["0", "-1", "nan", "x", "1e9"] {
            refused(&format!("evenkeel top --interval={bad}"));
        }
    }
}
