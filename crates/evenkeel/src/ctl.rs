//! `evenkeel ctl`: which question each command asks the admin API.

mod config;
#[cfg(feature = "corba")]
mod corba;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use evenkeel_admin::client::{Client, ClientError, DEFAULT_ADDRESS};
use evenkeel_admin::command::{Command, Member};
use evenkeel_admin::ctl;
use evenkeel_admin::live::wire::Simulate;
use evenkeel_admin::wire::{Report, SetEnabled, SetMaintenance, SetStrategy};
use evenkeel_config::{ClientTls, FileName};
use evenkeel_manager::AdminState;

use crate::cli::{
    AgentArgs, AgentsCommand, Api, Ctl, CtlCommand, LoadsCommand, MemberArgs, SimulateArgs,
};
use crate::failure::Failure;
use crate::password;

/// A client for the API that the command line and the environment name.
pub(crate) fn make_client(api: &Api) -> Result<Client, Failure> {
    let from_environment = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let address = api
        .admin
        .clone()
        .or_else(|| from_environment("EVENKEEL_ADMIN"));
    // Options go before the environment, and a token there before a user.
    let user = || {
        api.user
            .clone()
            .or_else(|| from_environment("EVENKEEL_USER"))
    };
    let token = match (&api.token, &api.token_file, &api.user) {
        (Some(token), ..) => Some(token.clone()),
        (None, Some(file), _) => Some(read_token(file)?),
        (None, None, Some(_)) => None,
        (None, None, None) => from_environment("EVENKEEL_TOKEN"),
    };
    let user = token.is_none().then(user).flatten();
    if let (Some(_), None) = (&api.password_file, &user) {
        return Err(Failure::new("--password-file needs --user NAME"));
    }
    let address = address.as_deref().unwrap_or(DEFAULT_ADDRESS);
    let is_secure = address.starts_with("https://");
    let file = |given: &Option<PathBuf>, name| {
        // What the environment says is not for this address alone.
        let other = is_secure.then(|| from_environment(name)).flatten();
        let file = given.clone().or(other.map(PathBuf::from));
        file.map(FileName::from)
    };
    let tls = ClientTls {
        ca_file: file(&api.ca_file, "EVENKEEL_CA_FILE"),
        certificate: file(&api.cert, "EVENKEEL_CERT"),
        key: file(&api.key, "EVENKEEL_KEY"),
        ..ClientTls::default()
    };
    let client = Client::new(address, token.as_deref(), &tls)?;
    let Some(user) = user else {
        return Ok(client);
    };
    // The command line does not take a password: others on the machine would see it.
    let password = match &api.password_file {
        Some(file) => read_first_line(file, "password")?,
        None => match from_environment("EVENKEEL_PASSWORD") {
            Some(password) => password,
            None => password::read(&user)?,
        },
    };
    if password.is_empty() {
        return Err(Failure::new(format!(
            "no password of {user}: type it, or give it with --password-file FILE, in $EVENKEEL_PASSWORD, or as a line of \
             standard input"
        )));
    }
    Ok(client.with_login(&user, &password))
}

fn read_token(file: &Path) -> Result<String, Failure> {
    read_first_line(file, "token").map(|line| line.trim().into())
}

/// Reads a secret from the first line of a file.
fn read_first_line(file: &Path, noun: &str) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        let file = file.display();
        Failure::new(format!("cannot read the {noun} in {file}: {error}"))
    })?;
    match text.lines().next() {
        Some(line) if !line.trim().is_empty() => Ok(line.into()),
        _ => Err(Failure::new(format!(
            "the first line of {} is empty; it should be the {noun}",
            file.display()
        ))),
    }
}

/// Runs a command; answers what to print.
pub(crate) fn run(args: &Ctl) -> Result<String, Failure> {
    let ctl = &ctl::Ctl {
        client: make_client(&args.api)?,
        json: args.json,
    };
    let printed = match &args.command {
        CtlCommand::Status => ctl.status(),
        CtlCommand::Groups => ctl.list_groups(),
        CtlCommand::Members { group } => ctl.list_members(group.as_deref()),
        CtlCommand::Explain { group, client } => {
            let client = client.map(|client| client.to_string());
            ctl.explain_decision(group, client.as_deref())
        }
        CtlCommand::Check(MemberArgs { group, member }) => ctl.check_member(group, member),
        CtlCommand::Counters => ctl.list_counters(),
        CtlCommand::Process => ctl.show_process(),
        CtlCommand::History { group } => ctl.show_history(group.as_deref()),
        CtlCommand::Watch { group, count } => watch_events(ctl, group.as_deref(), *count),
        CtlCommand::Drain(member) => set_state(ctl, member, AdminState::Drain),
        CtlCommand::Ready(member) => set_state(ctl, member, AdminState::Ready),
        CtlCommand::Maintenance(member) => set_state(ctl, member, AdminState::Maintenance),
        CtlCommand::Uneject(member) => ctl.send_command(&Command::EndEjection(member_of(member))),
        CtlCommand::Weight { member, weight } => {
            ctl.send_command(&Command::Weight(member_of(member), *weight))
        }
        CtlCommand::Backup { member, backup } => {
            ctl.send_command(&Command::Backup(member_of(member), backup == "on"))
        }
        CtlCommand::Maintain {
            name,
            group,
            maintenance,
        } => set_maintenance(ctl, name, *group, maintenance == "on"),
        CtlCommand::Enable { rule } => set_enabled(ctl, rule, true),
        CtlCommand::Disable { rule } => set_enabled(ctl, rule, false),
        CtlCommand::Strategy {
            group,
            strategy,
            params,
        } => return set_strategy(ctl, group, strategy, params),
        CtlCommand::Simulate(simulation) => simulate_strategies(ctl, simulation),
        CtlCommand::Certs => show_certificates(ctl),
        CtlCommand::Monitor => ctl
            .show_path(&["v1", "monitor", "locations"], |locations: &Vec<_>| {
                evenkeel_monitor::format_table(locations)
            }),
        #[cfg(feature = "kubernetes")]
        CtlCommand::Kubernetes => ctl.show_path(&["v1", "kubernetes"], |services: &Vec<_>| {
            evenkeel_kubernetes::status::format_table(services)
        }),
        #[cfg(feature = "fleet")]
        CtlCommand::Fleet => ctl.show_path(&["v1", "fleet"], evenkeel_fleet::status::format_table),
        #[cfg(feature = "fleet")]
        CtlCommand::Xds => show_xds(ctl),
        CtlCommand::Loads { command } => return run_loads(ctl, command.as_ref()),
        CtlCommand::Agents { command } => run_agents(ctl, command.as_ref()),
        #[cfg(feature = "corba")]
        CtlCommand::Corba { command } => corba::run(ctl, command.as_ref()),
        CtlCommand::Alert { location, setting } => {
            ctl.send_command(&Command::Alert(location.clone(), setting.setting()))
        }
        CtlCommand::Reload { force } => ctl.reload_config(*force),
        CtlCommand::Config { command } => return config::run(ctl, command),
    };
    Ok(printed?)
}

/// Text of a command, or an error of the API.
type Printed = Result<String, ClientError>;

fn member_of(MemberArgs { group, member }: &MemberArgs) -> Member {
    Member::new(group, member)
}

fn set_state(ctl: &ctl::Ctl, member: &MemberArgs, state: AdminState) -> Printed {
    ctl.send_command(&Command::State(member_of(member), state))
}

fn watch_events(ctl: &ctl::Ctl, group: Option<&str>, count: Option<u64>) -> Printed {
    let print = |text: &str| {
        let mut out = std::io::stdout().lock();
        // Whoever reads may have seen enough.
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .is_ok()
    };
    ctl.watch_events(group, count, print)?;
    Ok(String::new())
}

fn set_enabled(ctl: &ctl::Ctl, rule: &str, enabled: bool) -> Printed {
    let path = ["v1", "rules", rule, "enabled"];
    let done = ctl.client.put_resource(&path, &SetEnabled { enabled });
    let now = if enabled { "enabled" } else { "disabled" };
    ctl.print_done(done, || format!("{rule} is {now}"))
}

/// Starts or ends the maintenance of a rule, or of a group if no rule has the name.
fn set_maintenance(ctl: &ctl::Ctl, name: &str, is_group: bool, on: bool) -> Printed {
    let put = |kind| {
        let path = ["v1", kind, name, "maintenance"];
        ctl.client.put_resource(&path, &SetMaintenance { on })
    };
    let is_unknown =
        |error: &ClientError| matches!(error, ClientError::Refused { status: 404, .. });
    let (kind, done) = match is_group {
        true => ("group ", put("groups")),
        false => match put("rules") {
            // Mostly a group has a name of its own; the first refusal says which rules there are.
            Err(no_rule) if is_unknown(&no_rule) => match put("groups") {
                Err(no_group) if is_unknown(&no_group) => ("", Err(no_rule)),
                done => ("group ", done),
            },
            done => ("", done),
        },
    };
    let now = if on { "is" } else { "is not" };
    ctl.print_done(done, || format!("{kind}{name} {now} in maintenance"))
}

fn set_strategy(
    ctl: &ctl::Ctl,
    group: &str,
    strategy: &str,
    params: &[(String, f64)],
) -> Result<String, Failure> {
    let (name, params) = (strategy.to_owned(), unique(params)?);
    let path = ["v1", "groups", group, "strategy"];
    let done = ctl
        .client
        .put_resource(&path, &SetStrategy { name, params });
    Ok(ctl.print_done(done, || format!("{group} uses {strategy}"))?)
}

fn simulate_strategies(ctl: &ctl::Ctl, args: &SimulateArgs) -> Printed {
    let defaults = |name: &String| SetStrategy {
        name: name.clone(),
        params: BTreeMap::new(),
    };
    let body = Simulate {
        strategies: args.strategies.iter().map(defaults).collect(),
        requests: args.requests,
        seed: args.seed,
        rate: args.rate,
        members: None,
        more_members: args.more_members,
    };
    ctl.simulate_strategies(&args.group, &body)
}

fn show_certificates(ctl: &ctl::Ctl) -> Printed {
    let mut printed = ctl.show_path(&["v1", "certificates"], |certificates: &Vec<_>| {
        evenkeel_manager::certificates::format_table(certificates)
    })?;
    if !ctl.json {
        let names: Vec<_> = ctl.client.get(&["v1", "acme"], &[])?;
        printed += &evenkeel_acme::subsystem::describe_waiting(&names);
    }
    Ok(printed)
}

#[cfg(feature = "fleet")]
fn show_xds(ctl: &ctl::Ctl) -> Printed {
    ctl.show_path(&["v1", "xds"], |xds: &Option<evenkeel_xds::XdsStatus>| {
        xds.as_ref().map_or_else(
            || "there is no [xds] in the configuration\n".into(),
            evenkeel_xds::format_tables,
        )
    })
}

fn run_loads(ctl: &ctl::Ctl, command: Option<&LoadsCommand>) -> Result<String, Failure> {
    let printed = match command {
        None | Some(LoadsCommand::List) => ctl.list_locations(),
        Some(LoadsCommand::Push { location, loads }) => {
            let path = ["v1", "locations", location, "loads"];
            let loads = unique(loads)?;
            let count = loads.len();
            let done = ctl.client.post_resource(&path, &Report { loads });
            ctl.print_done(done, || format!("{location} reported {count} loads"))
        }
    };
    Ok(printed?)
}

fn run_agents(ctl: &ctl::Ctl, command: Option<&AgentsCommand>) -> Printed {
    let (AgentArgs { location, agent }, act, effect) = match command {
        None | Some(AgentsCommand::List) => {
            let table = |agents: &Vec<_>| evenkeel_broker::status::format_table(agents);
            return ctl.show_path(&["v1", "agents"], table);
        }
        Some(AgentsCommand::Query(args)) => (args, "query", "asked"),
        Some(AgentsCommand::Forget(args)) => (args, "forget", "removed"),
    };
    let path = ["v1", "locations", location, "agents", agent, act];
    ctl.post_path(&path, || format!("{agent} at {location} is {effect}"))
}

/// Names with their values, each at most once.
fn unique(pairs: &[(String, f64)]) -> Result<BTreeMap<String, f64>, Failure> {
    let mut map = BTreeMap::new();
    for (name, value) in pairs {
        if !value.is_finite() {
            return Err(Failure::new(format!(
                "{name}: expected a finite number, found {value}"
            )));
        }
        if map.insert(name.clone(), *value).is_some() {
            return Err(Failure::new(format!("{name} is given twice")));
        }
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_twice_or_is_no_number_is_refused() {
        let pairs = |pairs: &[(&str, f64)]| {
            let pairs: Vec<_> = pairs
                .iter()
                .map(|(name, value)| (name.to_string(), *value))
                .collect();
            unique(&pairs)
        };
        assert_eq!(pairs(&[("a", 1.0), ("b", 2.0)]).unwrap().len(), 2);
        assert!(
            pairs(&[("a", 1.0), ("a", 2.0)])
                .unwrap_err()
                .message
                .contains("twice")
        );
        assert!(
            pairs(&[("a", f64::NAN)])
                .unwrap_err()
                .message
                .contains("finite")
        );
    }

    #[test]
    fn a_token_is_the_first_line_of_its_file() {
        let file = std::env::temp_dir().join(format!("evenkeel-token-{}", std::process::id()));
        std::fs::write(&file, " s3cret \nsecond\n").unwrap();
        assert_eq!(read_token(&file).unwrap(), "s3cret");
        std::fs::write(&file, "\n").unwrap();
        assert!(read_token(&file).unwrap_err().message.contains("is empty"));
        std::fs::remove_file(&file).unwrap();
        assert!(
            read_token(&file)
                .unwrap_err()
                .message
                .contains("cannot read")
        );
    }
}
