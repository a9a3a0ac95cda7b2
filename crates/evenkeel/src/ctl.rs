//! `evenkeel ctl`: questions and commands to the admin API, and its answers as text.

#[cfg(feature = "corba")]
pub mod corba;

use std::path::Path;

use evenkeel_admin::client::{Client, ClientError, DEFAULT_ADDRESS};
use evenkeel_admin::command::{Command, Member};
use evenkeel_admin::text::{self, Head};
use evenkeel_admin::view::{self, GroupView};
use evenkeel_admin::wire::{Done, Explain, Reloaded, Report, SetEnabled, SetStrategy};
use evenkeel_broker::status::{AgentStatus, ServerStatus};
use evenkeel_manager::AdminState;
use evenkeel_manager::status::{
    ClassStatus, ClusterStatus, GroupStatus, LocationStatus, RuleStatus, Status,
};
use evenkeel_monitor::LocationMonitor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Failure;
use crate::cli::{AgentArgs, AgentsCommand, Api, Ctl, CtlCommand, LoadsCommand, MemberArgs};

/// A client for the API that the command line and the environment name.
pub fn client(api: &Api) -> Result<Client, Failure> {
    let from_environment = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let address = api
        .admin
        .clone()
        .or_else(|| from_environment("EVENKEEL_ADMIN"));
    let token = match (&api.token, &api.token_file) {
        (Some(token), _) => Some(token.clone()),
        (None, Some(file)) => Some(read_token(file)?),
        (None, None) => from_environment("EVENKEEL_TOKEN"),
    };
    let address = address.as_deref().unwrap_or(DEFAULT_ADDRESS);
    Ok(Client::new(address, token.as_deref())?)
}

fn read_token(file: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::new(format!(
            "cannot read the token in {}: {error}",
            file.display()
        ))
    })?;
    match text.lines().next().map(str::trim) {
        Some(token) if !token.is_empty() => Ok(token.into()),
        _ => Err(Failure::new(format!(
            "the first line of {} is empty; it should be the token",
            file.display()
        ))),
    }
}

/// Runs a command; answers what to print.
pub fn run(ctl: &Ctl) -> Result<String, Failure> {
    let api = Asker {
        client: client(&ctl.api)?,
        json: ctl.json,
    };
    Ok(match &ctl.command {
        CtlCommand::Status => api.show(&["v1", "status"], status)?,
        CtlCommand::Groups => api.show(&["v1", "groups"], |groups: &Vec<GroupStatus>| {
            group_table(groups)
        })?,
        CtlCommand::Members { group: Some(group) } => {
            // The loads come from the status; a group alone does not have them.
            let whole: Status = api.client.get(&["v1", "status"], &[])?;
            api.show(&["v1", "groups", group], |group: &GroupStatus| {
                GroupView::of(group, &whole.locations).plain()
            })?
        }
        CtlCommand::Members { group: None } => api.show(&["v1", "status"], member_tables)?,
        CtlCommand::Explain { group, client } => {
            let client = client.map(|client| client.to_string());
            let query: Vec<_> = client
                .iter()
                .map(|client| ("client", client.as_str()))
                .collect();
            let answer = api
                .client
                .get(&["v1", "groups", group, "explain"], &query)?;
            api.print(&answer, |explain: &Explain| view::explain(explain))?
        }
        CtlCommand::Drain(member) => {
            api.change(&Command::State(named(member), AdminState::Drain))?
        }
        CtlCommand::Ready(member) => {
            api.change(&Command::State(named(member), AdminState::Ready))?
        }
        CtlCommand::Maintenance(member) => {
            api.change(&Command::State(named(member), AdminState::Maintenance))?
        }
        CtlCommand::Weight { member, weight } => {
            api.change(&Command::Weight(named(member), *weight))?
        }
        CtlCommand::Enable { rule } => api.set_enabled(rule, true)?,
        CtlCommand::Disable { rule } => api.set_enabled(rule, false)?,
        CtlCommand::Strategy {
            group,
            strategy,
            params,
        } => {
            let body = SetStrategy {
                name: strategy.clone(),
                params: unique(params)?,
            };
            let done = api
                .client
                .put(&["v1", "groups", group, "strategy"], &body)?;
            api.done(&done, || format!("{group} uses {strategy}"))?
        }
        CtlCommand::Monitor => api.show(
            &["v1", "monitor", "locations"],
            |locations: &Vec<LocationMonitor>| monitor_table(locations),
        )?,
        CtlCommand::Loads {
            command: None | Some(LoadsCommand::List),
        } => api.show(&["v1", "locations"], |locations: &Vec<LocationStatus>| {
            location_table(locations)
        })?,
        CtlCommand::Loads {
            command: Some(LoadsCommand::Push { location, loads }),
        } => {
            let body = Report {
                loads: unique(loads)?,
            };
            let done = api
                .client
                .post(&["v1", "locations", location, "loads"], &body)?;
            api.done(&done, || {
                format!("{location} reported {} loads", loads.len())
            })?
        }
        CtlCommand::Agents {
            command: None | Some(AgentsCommand::List),
        } => api.show(&["v1", "agents"], |agents: &Vec<AgentStatus>| {
            agent_table(agents)
        })?,
        CtlCommand::Agents {
            command: Some(AgentsCommand::Query(AgentArgs { location, agent })),
        } => {
            let path = ["v1", "locations", location, "agents", agent, "query"];
            let done = api.client.post(&path, &serde_json::json!({}))?;
            api.done(&done, || format!("{agent} at {location} is asked"))?
        }
        CtlCommand::Agents {
            command: Some(AgentsCommand::Forget(AgentArgs { location, agent })),
        } => {
            let path = ["v1", "locations", location, "agents", agent, "forget"];
            let done = api.client.post(&path, &serde_json::json!({}))?;
            api.done(&done, || format!("{agent} at {location} is removed"))?
        }
        #[cfg(feature = "corba")]
        CtlCommand::Corba { command } => corba::run(&api, command.as_ref())?,
        CtlCommand::Alert { location, setting } => {
            api.change(&Command::Alert(location.clone(), setting.setting()))?
        }
        CtlCommand::Reload => {
            let answer = api.client.post(&["v1", "reload"], &serde_json::json!({}))?;
            api.print(&answer, |reloaded: &Reloaded| {
                let mut text = format!("configuration {} is in effect\n", reloaded.generation);
                for note in &reloaded.notes {
                    text.push_str(&format!("note: {note}\n"));
                }
                text
            })?
        }
    })
}

struct Asker {
    client: Client,
    json: bool,
}

impl Asker {
    /// Asks for what is at `path`, and shows it.
    fn show<T: Serialize + DeserializeOwned>(
        &self,
        path: &[&str],
        as_text: impl FnOnce(&T) -> String,
    ) -> Result<String, Failure> {
        self.print(&self.client.get(path, &[])?, as_text)
    }

    fn print<T: Serialize>(
        &self,
        answer: &T,
        as_text: impl FnOnce(&T) -> String,
    ) -> Result<String, Failure> {
        if self.json {
            let json = serde_json::to_string_pretty(answer);
            return json
                .map(|json| json + "\n")
                .map_err(|error| Failure::new(error.to_string()));
        }
        Ok(as_text(answer))
    }

    fn done(&self, done: &Done, as_text: impl FnOnce() -> String) -> Result<String, Failure> {
        self.print(done, |_| as_text() + "\n")
    }

    fn change(&self, command: &Command) -> Result<String, Failure> {
        self.done(&command.send(&self.client)?, || command.effect())
    }

    fn set_enabled(&self, rule: &str, enabled: bool) -> Result<String, Failure> {
        let body = SetEnabled { enabled };
        let done = self.client.put(&["v1", "rules", rule, "enabled"], &body)?;
        let now = if enabled { "enabled" } else { "disabled" };
        self.done(&done, || format!("{rule} is {now}"))
    }
}

fn named(member: &MemberArgs) -> Member {
    Member::new(&member.group, &member.member)
}

/// Names with their values, each at most once.
fn unique(pairs: &[(String, f64)]) -> Result<std::collections::BTreeMap<String, f64>, Failure> {
    let mut map = std::collections::BTreeMap::new();
    for (name, value) in pairs {
        if !value.is_finite() {
            return Err(Failure::new(format!(
                "{name}: expected a finite number, found {value}"
            )));
        }
        if map.insert(name.clone(), *value).is_some() {
            return Err(Failure::new(format!("{name} comes twice")));
        }
    }
    Ok(map)
}

fn status(status: &Status) -> String {
    let reload = match &status.last_reload {
        Some(reload) => match &reload.error {
            Some(error) => format!("; the last reload was refused:\n{error}"),
            None => String::new(),
        },
        None => String::new(),
    };
    let clusters = match status.clusters.is_empty() {
        true => String::new(),
        false => cluster_table(&status.clusters) + "\n",
    };
    let restart: String = status
        .needs_restart
        .iter()
        .map(|what| format!("\n{what}"))
        .collect();
    format!(
        "configuration {}{reload}{restart}\n\n{}\n{clusters}{}{}",
        status.generation,
        rule_table(&status.rules),
        member_tables(status),
        refused(&status.groups)
    )
}

/// Addresses that are no members though somebody named them, a line each.
fn refused(groups: &[GroupStatus]) -> String {
    let lines = groups.iter().flat_map(|group| {
        let lines = group.refused.iter();
        lines.map(|refused| {
            format!(
                "\nrefused: {} in {}: {} is not a member, because {}",
                refused.member, group.name, refused.address, refused.why
            )
        })
    });
    let lines: String = lines.collect();
    match lines.is_empty() {
        true => lines,
        false => lines + "\n",
    }
}

fn cluster_table(clusters: &[ClusterStatus]) -> String {
    let heads = [
        Head::words("CLUSTER"),
        Head::words("CLASS"),
        Head::words("GROUP"),
        Head::words("HOSTS"),
        Head::numbers("BOUND"),
        Head::numbers("REFUSED"),
    ];
    let row = |cluster: &ClusterStatus, class: &ClassStatus| {
        let is_bound = |name: &str| matches!(name, "redirected" | "answered");
        let count = |bound: bool| {
            let counts = class.negotiations.iter();
            let counts = counts.filter(|(name, _)| is_bound(name) == bound);
            counts.map(|(_, count)| count).sum::<u64>().to_string()
        };
        vec![
            cluster.name.clone(),
            class.name.clone(),
            cluster.group.clone(),
            cluster.hosts.join(" "),
            count(true),
            count(false),
        ]
    };
    let rows = clusters.iter().flat_map(|cluster| {
        let classes = cluster.classes.iter();
        classes.map(move |class| row(cluster, class))
    });
    text::table(&heads, &rows.collect::<Vec<_>>())
}

fn member_tables(status: &Status) -> String {
    let tables: Vec<_> = GroupView::all(status)
        .iter()
        .map(GroupView::plain)
        .collect();
    tables.join("\n")
}

fn rule_table(rules: &[RuleStatus]) -> String {
    let heads = ["RULE", "STATE", "PROTOCOL", "LISTEN", "GROUP"].map(Head::words);
    let row = |rule: &RuleStatus| {
        let listen: Vec<_> = rule.listen.iter().map(ToString::to_string).collect();
        vec![
            rule.name.clone(),
            if rule.enabled { "enabled" } else { "disabled" }.into(),
            rule.protocol.to_string(),
            listen.join(" "),
            rule.group.clone(),
        ]
    };
    text::table(&heads, &rules.iter().map(row).collect::<Vec<_>>())
}

fn group_table(groups: &[GroupStatus]) -> String {
    let heads = [
        Head::words("GROUP"),
        Head::words("STRATEGY"),
        Head::words("GRANULARITY"),
        Head::words("ADAPTIVE"),
        Head::words("PANIC"),
        Head::numbers("USABLE"),
        Head::numbers("REQ/S"),
        Head::words("OWNER"),
    ];
    let row = |group: &GroupStatus| {
        let view = GroupView::of(group, &[]);
        vec![
            group.name.clone(),
            view.strategy,
            group.granularity.to_string(),
            if group.adaptive { "yes" } else { "no" }.into(),
            if group.panic { "PANIC" } else { "" }.into(),
            format!("{} of {}", view.usable, group.members.len()),
            text::digits(view.rate),
            view.owner,
        ]
    };
    text::table(&heads, &groups.iter().map(row).collect::<Vec<_>>())
}

fn location_table(locations: &[LocationStatus]) -> String {
    let heads = ["LOCATION", "ALERT", "LOADS"].map(Head::words);
    let row = |location: &LocationStatus| {
        vec![
            location.name.clone(),
            view::alert_line(location),
            view::loads_line(location),
        ]
    };
    text::table(&heads, &locations.iter().map(row).collect::<Vec<_>>())
}

fn monitor_table(locations: &[LocationMonitor]) -> String {
    let heads = [
        Head::words("LOCATION"),
        Head::words("TYPE"),
        Head::words("ADDRESS"),
        Head::numbers("INTERVAL"),
        Head::words("STATE"),
        Head::words("SOURCE"),
        Head::numbers("AGE"),
        Head::numbers("ROUND TRIP"),
        Head::numbers("ASKED"),
        Head::numbers("ANSWERED"),
        Head::numbers("MISSED"),
        Head::numbers("REFUSED"),
        Head::words("TROUBLE"),
    ];
    let row = |location: &LocationMonitor| {
        let target = match location.target {
            0 => String::new(),
            target => format!("/{target}"),
        };
        let age = location.age_seconds.map(|age| format!("{age:.3}s"));
        let round_trip = location.round_trip_ms.map(|ms| format!("{ms:.3}ms"));
        vec![
            location.location.clone(),
            location.kind.to_string(),
            format!("{}{target}", location.address),
            format!("{}ms", location.interval_ms),
            location.state.to_string(),
            location.source.clone().unwrap_or_default().to_string(),
            age.unwrap_or_default(),
            round_trip.unwrap_or_default(),
            location.asked.to_string(),
            location.answered.to_string(),
            location.missed.to_string(),
            location.refused.to_string(),
            location.trouble.clone().unwrap_or_default(),
        ]
    };
    text::table(&heads, &locations.iter().map(row).collect::<Vec<_>>())
}

fn agent_table(agents: &[AgentStatus]) -> String {
    let heads = [
        Head::words("LOCATION"),
        Head::words("AGENT"),
        Head::words("ADDRESS"),
        Head::words("STATE"),
        Head::numbers("AGE"),
        Head::numbers("SEQUENCE"),
        Head::numbers("LOST"),
        Head::words("SERVERS"),
    ];
    let row = |agent: &AgentStatus| {
        let location = match agent.location_known {
            true => agent.location.clone(),
            false => format!("{} (no member)", agent.location),
        };
        let state = match agent.confirmed {
            true => agent.state.clone(),
            false => format!("{} (unconfirmed)", agent.state),
        };
        let servers: Vec<_> = agent.servers.iter().map(server_words).collect();
        vec![
            location,
            agent.name.clone(),
            agent.address.to_string(),
            state,
            format!("{:.1}s", agent.heard_seconds),
            agent.sequence.to_string(),
            agent.lost.to_string(),
            servers.join(", "),
        ]
    };
    text::table(&heads, &agents.iter().map(row).collect::<Vec<_>>())
}

/// `group address`, and what is special about it.
fn server_words(server: &ServerStatus) -> String {
    let mut words = format!("{} {}", server.group, server.address);
    let special = [
        (server.members.is_empty(), "no member"),
        (server.state != "up", &server.state),
        (server.alert, "ALERT"),
    ];
    for (_, word) in special.into_iter().filter(|(is, _)| *is) {
        words.push_str(&format!(" ({word})"));
    }
    words
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::Refused { .. } => 1,
            ClientError::Address(_) | ClientError::Token => 2,
            ClientError::Unreachable { .. } | ClientError::NotTheApi { .. } => 3,
        };
        Failure {
            code,
            message: error.to_string(),
        }
    }
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
