//! The command line, as data.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use evenkeel_command::AccessFormat;
use evenkeel_command::pages::Shell;
use evenkeel_manager::AlertSetting;

use crate::kernel::Kernel;

/// Text of `--version`: the version, and the features of this build beyond the least.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let features = [
        (cfg!(feature = "corba"), "corba"),
        (cfg!(feature = "fleet"), "fleet"),
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

/// `evenkeel store`.
#[cfg(feature = "fleet")]
#[derive(Debug, Args)]
pub(crate) struct Store {
    /// File of a balancer, whose `[store]` says where the store is
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/evenkeel/evenkeel.toml"
    )]
    pub config: PathBuf,
    #[command(subcommand)]
    pub command: StoreCommand,
}

/// Commands for the store.
#[cfg(feature = "fleet")]
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Check a configuration, and write it to the store
    Push {
        /// The configuration that balancers share
        file: PathBuf,
        /// Number of the revision that the push changes, as `pull` and `history` show it; or `latest`
        #[arg(long, value_name = "NUMBER", value_parser = base)]
        of: Option<StoreBase>,
        /// Reason for the push
        #[arg(long, short = 'm', default_value = "")]
        message: String,
        /// Push to all balancers at once, also with `rollout`; a roll-out in progress is ended
        #[arg(long)]
        at_once: bool,
        /// Push even a configuration without rules, with which all balancers close all their listeners
        #[arg(long)]
        force: bool,
    },
    /// Print the configuration that balancers share, or an earlier revision of it
    Pull {
        /// Number of the revision; by default the one that all balancers have
        revision: Option<u64>,
        /// Write the configuration to this file
        #[arg(long, short = 'o', value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Compare the configuration that balancers have, or a revision, with a file or another revision
    Diff {
        /// Number of a revision, or a file
        other: String,
        /// Number of the revision to compare; by default the one that all balancers have
        #[arg(long, value_name = "NUMBER")]
        from: Option<u64>,
    },
    /// List the last revisions, and what balancers run
    History {
        /// Maximum number of revisions
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(i64).range(1..=1000))]
        limit: i64,
    },
    /// End a roll-out, or go back to the previous configuration, at all balancers at once
    Rollback {
        /// Number of the revision to go back to
        revision: Option<u64>,
        /// Reason for going back
        #[arg(long, short = 'm', default_value = "")]
        message: String,
    },
    /// Confirm that the store's configuration is right, though the store went back in time (as after a restore)
    Confirm,
}

/// Revision that a push is a change of.
#[cfg(feature = "fleet")]
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoreBase {
    /// Whatever is there.
    Latest,
    /// The revision of that number.
    Number(u64),
}

#[cfg(feature = "fleet")]
fn base(text: &str) -> Result<StoreBase, String> {
    match text {
        "latest" => Ok(StoreBase::Latest),
        _ => text
            .parse()
            .map(StoreBase::Number)
            .map_err(|_| "expected the number of a revision, or `latest`".into()),
    }
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

/// Options of the log: what is logged, and how.
#[derive(Debug, Args)]
pub(crate) struct Log {
    /// Level of the log on stderr: error, warn, info, debug, trace, or directives such as info,evenkeel_proxy=debug
    /// [default: $RUST_LOG, or info]
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
    /// Format of log lines
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
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

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines of text
    Text,
    /// Lines with one JSON object each
    Json,
}

/// Options of the admin API: where it is, and how to be let in.
#[derive(Clone, Debug, Args)]
pub(crate) struct Api {
    /// Address of the admin API [default: $EVENKEEL_ADMIN, or 127.0.0.1:9900]
    ///
    /// With TLS: https://HOST:PORT.
    #[arg(long, value_name = "HOST:PORT", global = true)]
    pub admin: Option<String>,
    /// Certificates of authorities that the admin API's certificate may come from (PEM), instead of
    /// those that the system trusts [default: $EVENKEEL_CA_FILE]
    #[arg(long, value_name = "FILE", global = true)]
    pub ca_file: Option<PathBuf>,
    /// Certificate to show to an admin API that asks for one (PEM) [default: $EVENKEEL_CERT]
    #[arg(long, value_name = "FILE", global = true)]
    pub cert: Option<PathBuf>,
    /// Private key of --cert (PEM), if it is not in the same file [default: $EVENKEEL_KEY]
    #[arg(long, value_name = "FILE", global = true)]
    pub key: Option<PathBuf>,
    /// Bearer token; others on the machine may see it in the list of processes, so prefer
    /// --token-file or $EVENKEEL_TOKEN
    #[arg(
        long,
        value_name = "TOKEN",
        global = true,
        conflicts_with = "token_file"
    )]
    pub token: Option<String>,
    /// File whose first line is the bearer token
    #[arg(long, value_name = "FILE", global = true)]
    pub token_file: Option<PathBuf>,
    /// User to log in as; the password is asked for, if there is neither --password-file nor
    /// $EVENKEEL_PASSWORD [default: $EVENKEEL_USER]
    #[arg(
        long,
        value_name = "NAME",
        global = true,
        conflicts_with_all = ["token", "token_file"]
    )]
    pub user: Option<String>,
    /// File whose first line is the user's password
    #[arg(long, value_name = "FILE", global = true)]
    pub password_file: Option<PathBuf>,
}

/// `evenkeel ctl`.
#[derive(Debug, Args)]
pub(crate) struct Ctl {
    /// The API.
    #[command(flatten)]
    pub api: Api,
    /// Print the API's JSON answer instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// Question or command for the balancer.
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// Questions and commands of `evenkeel ctl`.
#[derive(Debug, Subcommand)]
pub(crate) enum CtlCommand {
    /// Show rules, groups and members
    Status,
    /// Show the groups
    Groups,
    /// Show the members of a group, or of all groups
    Members {
        /// Name of the group
        group: Option<String>,
    },
    /// Explain where a group's next request would go, and a recent decision (one a second is kept)
    Explain {
        /// Name of the group
        group: String,
        /// Explain it for a client with this address
        #[arg(long, value_name = "IP")]
        client: Option<IpAddr>,
    },
    /// Check a member once, now
    Check(MemberArgs),
    /// Show all counters, as in /metrics
    Counters,
    /// Show what the balancer's process uses: CPU time, memory, files
    Process,
    /// Print what goes on, once a second, with changes and load alerts as they come
    Watch {
        /// Name of the group whose members are watched, too
        group: Option<String>,
        /// Number of events after which the command ends
        #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
    },
    /// Show the last hour of a group, or of all groups together
    History {
        /// Name of the group
        group: Option<String>,
    },
    /// Give a member no new traffic; existing traffic may finish
    Drain(MemberArgs),
    /// End drain or maintenance of a member
    Ready(MemberArgs),
    /// Take a member out; existing traffic is moved
    Maintenance(MemberArgs),
    /// Change a member's weight until the next start
    Weight {
        /// Which member.
        #[command(flatten)]
        member: MemberArgs,
        /// 0 (no new traffic) to 1000
        weight: f64,
    },
    /// Make a member a backup until the next start, or no longer one
    Backup {
        /// Which member.
        #[command(flatten)]
        member: MemberArgs,
        /// `on`: it serves while no other member may; or `off`
        #[arg(value_parser = ["on", "off"])]
        backup: String,
    },
    /// Put a rule or a group into maintenance, in which clients get its page, or end that
    Maintain {
        /// Name of the rule; or of a group, if there is no such rule
        name: String,
        /// Take NAME for a group, even if a rule has the same name
        #[arg(long)]
        group: bool,
        /// `on` or `off`
        #[arg(value_parser = ["on", "off"])]
        maintenance: String,
    },
    /// Let a rule accept clients
    Enable {
        /// Name of the rule
        rule: String,
    },
    /// Stop a rule from accepting clients
    Disable {
        /// Name of the rule
        rule: String,
    },
    /// Change a group's strategy without a restart
    Strategy {
        /// Name of the group
        group: String,
        /// Name of the strategy (see `evenkeel strategies`)
        strategy: String,
        /// Parameters of the strategy
        #[arg(value_name = "NAME=VALUE", value_parser = assignment)]
        params: Vec<(String, f64)>,
    },
    /// Simulate a group as it is with other strategies; changes nothing
    Simulate {
        /// Name of the group
        group: String,
        /// Names of the strategies, with their default parameters
        #[arg(required = true, num_args = 1..=4)]
        strategies: Vec<String>,
        /// Number of requests to simulate
        #[arg(long, value_name = "NUMBER")]
        requests: Option<u32>,
        /// Requests per second, instead of the measured rate
        #[arg(long, value_name = "RATE")]
        rate: Option<f64>,
        /// Further members, as fast as the others are on average
        #[arg(
            long,
            value_name = "NUMBER",
            default_value_t = 0,
            hide_default_value = true
        )]
        more_members: u32,
        /// Seed of the random numbers
        #[arg(long, value_name = "NUMBER")]
        seed: Option<u64>,
    },
    /// Show or report the loads of locations
    Loads {
        /// Which of the two.
        #[command(subcommand)]
        command: Option<LoadsCommand>,
    },
    /// Show the agents that report, ask one for a report, or remove one
    Agents {
        /// Which of these.
        #[command(subcommand)]
        command: Option<AgentsCommand>,
    },
    /// Show the certificates that clients are shown, when they expire, and names that wait for a certificate
    Certs,
    /// Show the locations whose load is read from their kernels, and the state of each
    Monitor,
    /// Show the other balancers of the fleet, and how many groups each decides upon
    #[cfg(feature = "fleet")]
    Fleet,
    /// Show the clients of xDS: what each wants, has accepted, and has refused and why
    #[cfg(feature = "fleet")]
    Xds,
    /// Show the CORBA service: object groups, their references and members, monitors, alerts;
    /// or remove one of these
    #[cfg(feature = "corba")]
    Corba {
        /// Which of these.
        #[command(subcommand)]
        command: Option<crate::ctl::corba::Command>,
    },
    /// Force or suppress the load alert of a location, until changed again
    Alert {
        /// Name of the location
        location: String,
        /// on: its clients leave gradually; off: they stay; auto: the load decides
        setting: AlertWord,
    },
    /// Read the configuration file and apply it; a file with errors changes nothing
    Reload {
        /// Apply even a file without rules: all listeners of rules close
        #[arg(long)]
        force: bool,
    },
    /// Show the configuration in force, change it and its file, or take a change back
    Config {
        /// Which of these.
        #[command(subcommand)]
        command: crate::ctl::config::Command,
    },
}

/// Settings of `evenkeel ctl alert`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AlertWord {
    /// The alert is forced.
    On,
    /// The alert is suppressed.
    Off,
    /// The load decides.
    Auto,
}

impl AlertWord {
    /// Returns the setting as the API calls it.
    pub(crate) fn setting(self) -> AlertSetting {
        match self {
            AlertWord::On => AlertSetting::On,
            AlertWord::Off => AlertSetting::Off,
            AlertWord::Auto => AlertSetting::Auto,
        }
    }
}

/// Names a member.
#[derive(Clone, Debug, Args)]
pub(crate) struct MemberArgs {
    /// Name of the group
    pub group: String,
    /// Name or address of the member
    pub member: String,
}

/// `evenkeel ctl loads`.
#[derive(Debug, Subcommand)]
pub(crate) enum LoadsCommand {
    /// Show all locations with their reported loads (the default)
    List,
    /// Report loads of a location
    Push {
        /// Name of the location
        location: String,
        /// Names and values of the loads: cpu=0.4 in_flight=12
        #[arg(value_name = "ID=VALUE", required = true, value_parser = assignment)]
        loads: Vec<(String, f64)>,
    },
}

/// `evenkeel ctl agents`.
#[derive(Debug, Subcommand)]
pub(crate) enum AgentsCommand {
    /// Show all agents (the default)
    List,
    /// Ask an agent for a report at once
    Query(AgentArgs),
    /// Remove an agent and its findings about its servers; one that still runs registers again
    Forget(AgentArgs),
}

/// Names an agent.
#[derive(Clone, Debug, Args)]
pub(crate) struct AgentArgs {
    /// Name of its location
    pub location: String,
    /// Name of the agent
    pub agent: String,
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

fn assignment(text: &str) -> Result<(String, f64), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or("expected NAME=VALUE, such as choices=3")?;
    let value: f64 = value
        .parse()
        .map_err(|_| format!("expected a number after {name}=, found {value:?}"))?;
    Ok((name.to_owned(), value))
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
