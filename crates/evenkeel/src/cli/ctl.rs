//! Arguments of `evenkeel ctl`.

use std::net::IpAddr;

use clap::{Args, Subcommand, ValueEnum};
use evenkeel_manager::AlertSetting;

use super::api::Api;
use super::config::ConfigCommand;
#[cfg(feature = "corba")]
use super::corba::CorbaCommand;

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

/// A simulation of other strategies.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// Name of the group
    pub group: String,
    /// Names of the strategies, with their default parameters
    #[arg(required = true, num_args = 1..=4)]
    pub strategies: Vec<String>,
    /// Number of requests to simulate
    #[arg(long, value_name = "NUMBER")]
    pub requests: Option<u32>,
    /// Requests per second, instead of the measured rate
    #[arg(long, value_name = "RATE")]
    pub rate: Option<f64>,
    /// Further members, as fast as the others are on average
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub more_members: u32,
    /// Seed of the random numbers
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
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
    /// End the ejection of a member, and forget its failures
    Uneject(MemberArgs),
    /// Change a member's weight until the next start
    Weight {
        /// Group and member.
        #[command(flatten)]
        member: MemberArgs,
        /// 0 (no new traffic) to 1000
        weight: f64,
    },
    /// Make a member a backup until the next start, or no longer one
    Backup {
        /// Group and member.
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
    Simulate(SimulateArgs),
    /// Show or report the loads of locations
    Loads {
        /// Command for loads.
        #[command(subcommand)]
        command: Option<LoadsCommand>,
    },
    /// Show the agents that report, ask one for a report, or remove one
    Agents {
        /// Command for agents.
        #[command(subcommand)]
        command: Option<AgentsCommand>,
    },
    /// Show the certificates that clients are shown, when they expire, and names that wait for a certificate
    Certs,
    /// Show the locations whose load is read from their kernels, and the state of each
    Monitor,
    /// Show the services of Kubernetes whose endpoints are members, and when the API server was heard last
    #[cfg(feature = "kubernetes")]
    Kubernetes,
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
        /// Command for CORBA.
        #[command(subcommand)]
        command: Option<CorbaCommand>,
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
        /// Command for the configuration.
        #[command(subcommand)]
        command: ConfigCommand,
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

fn assignment(text: &str) -> Result<(String, f64), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or("expected NAME=VALUE, such as choices=3")?;
    let value: f64 = value
        .parse()
        .map_err(|_| format!("expected a number after {name}=, found {value:?}"))?;
    Ok((name.to_owned(), value))
}
