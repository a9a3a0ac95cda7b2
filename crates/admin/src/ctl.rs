//! Answers of the admin API as people and scripts read them: tables, or JSON.

pub mod config;

use evenkeel_manager::status::{
    ClassStatus, ClusterStatus, EntryErrorStatus, GroupStatus, InterfaceStatus, LocationStatus,
    RuleLimitStatus, RuleStatus, Status, ZoneStatus,
};
use evenkeel_manager::text;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::{Client, ClientError};
use crate::command::Command;
use crate::view::{self, GroupView};
use crate::wire::{Done, Explain, Reloaded, Upgraded};

/// Asks the API, and puts its answers into words or JSON.
#[derive(Debug)]
pub struct Ctl {
    /// Client that asks the API.
    pub client: Client,
    /// True if answers are shown as they come.
    pub json: bool,
}

impl Ctl {
    /// Asks for what is at `path`, and shows it.
    pub fn show_path<T: Serialize + DeserializeOwned>(
        &self,
        path: &[&str],
        as_text: impl FnOnce(&T) -> String,
    ) -> Result<String, ClientError> {
        self.print_answer(&self.client.get(path, &[])?, as_text)
    }

    /// Returns an answer in words, or as it came.
    pub fn print_answer<T: Serialize>(
        &self,
        answer: &T,
        as_text: impl FnOnce(&T) -> String,
    ) -> Result<String, ClientError> {
        if !self.json {
            return Ok(as_text(answer));
        }
        let json = serde_json::to_string_pretty(answer);
        json.map(|json| json + "\n")
            .map_err(|error| self.client.not_the_api(error.to_string()))
    }

    /// Shows that something is done.
    pub fn print_done(
        &self,
        done: Result<Done, ClientError>,
        effect: impl FnOnce() -> String,
    ) -> Result<String, ClientError> {
        self.print_answer(&done?, |_| effect() + "\n")
    }

    /// Has the API do what the path says.
    pub fn post_path(
        &self,
        path: &[&str],
        effect: impl FnOnce() -> String,
    ) -> Result<String, ClientError> {
        self.print_done(
            self.client.post_resource(path, &serde_json::json!({})),
            effect,
        )
    }

    /// Changes what runs.
    pub fn send_command(&self, command: &Command) -> Result<String, ClientError> {
        self.print_done(command.send_to(&self.client), || {
            command.effect() + &command.remaining_reasons(&self.client)
        })
    }

    /// Rules, clusters, groups and members.
    pub fn status(&self) -> Result<String, ClientError> {
        self.show_path(&["v1", "status"], status)
    }

    /// Returns the groups.
    pub fn list_groups(&self) -> Result<String, ClientError> {
        self.show_path(&["v1", "groups"], |groups: &Vec<_>| group_table(groups))
    }

    /// Returns the members of a group, or of all.
    pub fn list_members(&self, group: Option<&str>) -> Result<String, ClientError> {
        let Some(group) = group else {
            return self.show_path(&["v1", "status"], member_tables);
        };
        // The loads come from the status; a group alone does not have them.
        let whole: Status = self.client.get(&["v1", "status"], &[])?;
        self.show_path(&["v1", "groups", group], |group: &GroupStatus| {
            GroupView::of_group(group, &whole.locations).plain_text()
        })
    }

    /// Returns the locations with their loads.
    pub fn list_locations(&self) -> Result<String, ClientError> {
        self.show_path(&["v1", "locations"], |all: &Vec<_>| location_table(all))
    }

    /// Returns the next and the last decision of a group, for a client of this address.
    pub fn explain_decision(
        &self,
        group: &str,
        client: Option<&str>,
    ) -> Result<String, ClientError> {
        let query: Vec<_> = client.iter().map(|client| ("client", *client)).collect();
        let path = ["v1", "groups", group, "explain"];
        let answer: Explain = self.client.get(&path, &query)?;
        self.print_answer(&answer, view::format_explanation)
    }

    /// Has the program that is now in the balancer's file take over.
    pub fn upgrade_process(&self) -> Result<String, ClientError> {
        let answer = self
            .client
            .post_resource(&["v1", "upgrade"], &serde_json::json!({}))?;
        self.print_answer(&answer, |Upgraded { pid, version }: &Upgraded| {
            format!("process {pid}, version {version}, has taken over\n")
        })
    }

    /// Has the configuration read again; with `force` even if that takes all rules away.
    pub fn reload_config(&self, force: bool) -> Result<String, ClientError> {
        let query: &[_] = if force { &[("force", "true")] } else { &[] };
        let answer = self
            .client
            .post_with(&["v1", "reload"], query, &serde_json::json!({}))
            .map_err(add_what_stays)?;
        self.print_answer(&answer, |reloaded: &Reloaded| {
            let notes = reloaded.notes.iter();
            let notes: String = notes.map(|note| format!("note: {note}\n")).collect();
            let generation = reloaded.generation;
            format!("configuration {generation} is in effect\n{notes}")
        })
    }
}

/// Adds to the error of a reload that the old configuration stays, if the new one was refused.
fn add_what_stays(error: ClientError) -> ClientError {
    match error {
        ClientError::Refused { status, mut body }
            if matches!(
                &*body.error,
                "bad_configuration" | "not_applied" | "no_rules"
            ) =>
        {
            let stays = "\nthe configuration in force stays as it was";
            body.detail.push_str(stays);
            ClientError::Refused { status, body }
        }
        other => other,
    }
}

fn status(status: &Status) -> String {
    let reload = status.last_reload.as_ref();
    let reload = reload.and_then(|reload| reload.error.as_ref());
    let reload = reload.map_or(String::new(), |error| {
        format!("; the last reload was refused:\n{error}")
    });
    let clusters = if status.clusters.is_empty() {
        String::new()
    } else {
        cluster_table(&status.clusters) + "\n"
    };
    let restart = status.needs_restart.iter();
    let restart: String = restart.map(|what| format!("\n{what}")).collect();
    format!(
        "configuration {}{reload}{restart}\n\n{}\n{}{}{}{}{clusters}{}{}",
        status.generation,
        rule_table(&status.rules),
        interface_table(&[&status.xdp_interfaces[..], &status.tc_interfaces].concat()),
        format_forward_errors(status.forward_errors.as_ref()),
        limit_table(&status.rules),
        zone_table(&status.groups),
        member_tables(status),
        format_refused(&status.groups)
    )
}

/// Returns the interfaces for native XDP, if the configuration names any, and those with a filter of tc.
fn interface_table(interfaces: &[InterfaceStatus]) -> String {
    if interfaces.is_empty() {
        return String::new();
    }
    let row = |interface: &InterfaceStatus| {
        vec![
            interface.name.clone(),
            interface.program.clone(),
            interface.reason.clone().unwrap_or_default(),
        ]
    };
    let names = ["INTERFACE", "FORWARDS", "REASON"];
    text::format_table(&names, interfaces.iter().map(row)) + "\n"
}

/// Returns a paragraph about errors of the kernel for single entries of forwarding, if there were some.
fn format_forward_errors(errors: Option<&EntryErrorStatus>) -> String {
    let Some(errors) = errors else {
        return String::new();
    };
    let counts = errors.counts.iter().filter(|(_, count)| **count > 0);
    let counts = counts.map(|(entry, count)| format!("{entry} {count}"));
    let last = errors.last.as_deref().unwrap_or_default();
    format!(
        "errors of the kernel for single entries of forwarding: {}\nthe last of them: {last}\n\n",
        counts.collect::<Vec<_>>().join(", ")
    )
}

/// Addresses that are no members though somebody named them, a line each.
fn format_refused(groups: &[GroupStatus]) -> String {
    let lines = groups.iter().flat_map(|group| {
        let lines = group.refused.iter();
        lines.map(|refused| {
            format!(
                "\nrefused: {} in {}: {} is not a member, because {}",
                refused.member, group.name, refused.address, refused.why
            )
        })
    });
    let mut lines: String = lines.collect();
    if !lines.is_empty() {
        lines.push('\n');
    }
    lines
}

fn cluster_table(clusters: &[ClusterStatus]) -> String {
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
    let names = ["CLUSTER", "CLASS", "GROUP", "HOSTS", ">BOUND", ">REFUSED"];
    text::format_table(&names, rows)
}

/// Returns the members of all groups, a table each.
pub(crate) fn member_tables(status: &Status) -> String {
    let groups = GroupView::all_groups(status);
    let tables: Vec<_> = groups.iter().map(GroupView::plain_text).collect();
    tables.join("\n")
}

fn rule_table(rules: &[RuleStatus]) -> String {
    let row = |rule: &RuleStatus| {
        vec![
            rule.name.clone(),
            match (rule.enabled, rule.maintenance) {
                (false, _) => "disabled".into(),
                (true, true) => "maintenance".into(),
                (true, false) => "enabled".into(),
            },
            match rule.forward.as_deref() {
                Some("kernel") => format!("{}, kernel", rule.protocol),
                Some(_) => format!("{}, proxy", rule.protocol),
                None => rule.protocol.to_string(),
            },
            rule.listen.join(" "),
            rule.group_names().join(" "),
        ]
    };
    let names = ["RULE", "STATE", "PROTOCOL", "LISTEN", "GROUP"];
    text::format_table(&names, rules.iter().map(row))
}

/// Returns the limits of rules, if any has one.
fn limit_table(rules: &[RuleStatus]) -> String {
    let rows = rules.iter().flat_map(|rule| {
        let row = |limit: &RuleLimitStatus| {
            vec![
                rule.name.clone(),
                limit.limit.to_string(),
                limit.rate.clone().unwrap_or_default(),
                limit.key.clone().unwrap_or_default(),
                limit.clients.to_string(),
                limit.refused.to_string(),
                limit.lifted.to_string(),
            ]
        };
        rule.limits.iter().map(row)
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let names = [
        "RULE", "LIMIT", "RATE", "KEY", ">CLIENTS", ">REFUSED", ">LIFTED",
    ];
    text::format_table(&names, rows) + "\n"
}

/// Returns the zones of groups, if any goes by them.
fn zone_table(groups: &[GroupStatus]) -> String {
    let rows = groups.iter().flat_map(|group| {
        let row = |zone: &ZoneStatus| {
            let name = zone.name.as_deref().unwrap_or("(none)");
            vec![
                group.name.clone(),
                format!("{name}{}", if zone.own { " (own)" } else { "" }),
                text::format_percent(zone.share),
                zone.load.map_or(String::new(), |load| format!("{load:.2}")),
                text::format_percent(zone.usable.into()),
                zone.members.to_string(),
                zone.requests.to_string(),
            ]
        };
        group.zones.iter().map(row)
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let names = [
        "GROUP",
        "ZONE",
        ">SHARE",
        ">LOAD",
        ">USABLE",
        ">MEMBERS",
        ">REQUESTS",
    ];
    text::format_table(&names, rows) + "\n"
}

fn group_table(groups: &[GroupStatus]) -> String {
    let row = |group: &GroupStatus| {
        let view = GroupView::of_group(group, &[]);
        vec![
            group.name.clone(),
            view.strategy,
            group.granularity.to_string(),
            if group.adaptive { "yes" } else { "no" }.into(),
            match (group.maintenance, group.panic) {
                (true, _) => "maintenance".into(),
                (false, true) => "PANIC".into(),
                (false, false) => String::new(),
            },
            format!("{} of {}", view.usable, group.members.len()),
            text::format_number(view.rate),
            view.owner,
        ]
    };
    let names = [
        "GROUP",
        "STRATEGY",
        "GRANULARITY",
        "ADAPTIVE",
        "STATE",
        ">USABLE",
        ">REQ/S",
        "OWNER",
    ];
    text::format_table(&names, groups.iter().map(row))
}

fn location_table(locations: &[LocationStatus]) -> String {
    let row = |location: &LocationStatus| {
        vec![
            location.name.clone(),
            view::alert_line(location),
            view::loads_line(location),
        ]
    };
    text::format_table(&["LOCATION", "ALERT", "LOADS"], locations.iter().map(row))
}
