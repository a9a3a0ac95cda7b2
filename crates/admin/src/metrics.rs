//! What `/metrics` says.
//!
//! Names and labels are an interface: dashboards depend on them. They are listed in
//! `docs/admin-api.md`.

mod corba;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_broker::status::BrokerStatus;
use evenkeel_core::group::Group;
use evenkeel_core::member::Reason;
use evenkeel_limits::Shortage;
use evenkeel_manager::counts::{Fate, Origin};
use evenkeel_manager::snapshot::{GroupHandle, Snapshot};
use evenkeel_manager::status::{
    GroupStatus, LimitsStatus, LocationStatus, MemberStatus, OpinionStatus, Status,
};
use evenkeel_monitor::{LocationMonitor, MonitorStatus};
use evenkeel_proxy::metrics::RuleTotals;

use crate::Sources;
use crate::exposition::{Exposition, Type};

/// Limits of the latency histogram: from what a local service takes to the longest that
/// people wait, at most a factor of three apart.
const LATENCY_LIMITS: [Duration; 16] = [
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
];

/// A family of counters of a rule.
struct RuleFamily {
    name: &'static str,
    help: &'static str,
    /// Label beside `rule`; empty if there is none.
    label: &'static str,
    /// Its value there, and where the count comes from.
    samples: &'static [(&'static str, Read)],
}

type Read = fn(&RuleTotals) -> u64;

const RULE_FAMILIES: &[RuleFamily] = &[
    RuleFamily {
        name: "evenkeel_rule_connections_total",
        help: "Client connections accepted.",
        label: "",
        samples: &[("", |totals| totals.connections)],
    },
    RuleFamily {
        name: "evenkeel_rule_connections_closed_total",
        help: "Client connections ended.",
        label: "",
        samples: &[("", |totals| totals.connections_closed)],
    },
    RuleFamily {
        name: "evenkeel_rule_requests_total",
        help: "HTTP requests whose head was read and understood.",
        label: "",
        samples: &[("", |totals| totals.requests)],
    },
    RuleFamily {
        name: "evenkeel_rule_responses_total",
        help: "Final HTTP responses sent to clients, by class of their status (101 counts as 2xx).",
        label: "class",
        samples: &[
            ("2xx", |totals| totals.responses_2xx),
            ("3xx", |totals| totals.responses_3xx),
            ("4xx", |totals| totals.responses_4xx),
            ("5xx", |totals| totals.responses_5xx),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_bytes_total",
        help: "Bytes received from clients (in) and sent to them (out).",
        label: "direction",
        samples: &[
            ("in", |totals| totals.bytes_from_clients),
            ("out", |totals| totals.bytes_to_clients),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_member_connections_total",
        help: "Connections to members: opened, failed to open, or reused from the pool.",
        label: "result",
        samples: &[
            ("opened", |totals| totals.member_connects),
            ("failed", |totals| totals.member_connect_failures),
            ("reused", |totals| totals.member_connections_reused),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_retries_total",
        help: "Further tries for the same request or connection, and those that the retry budget forbade.",
        label: "result",
        samples: &[
            ("tried", |totals| totals.retries),
            ("over_budget", |totals| totals.retries_over_budget),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_timeouts_total",
        help: "Requests or connections ended because one side was silent for too long.",
        label: "side",
        samples: &[
            ("client", |totals| totals.client_timeouts),
            ("member", |totals| totals.member_timeouts),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_refused_total",
        help: "Requests or connections that were refused.",
        label: "reason",
        samples: &[
            ("malformed", |totals| totals.refused_malformed),
            ("no_member", |totals| totals.refused_no_member),
            ("queue_full", |totals| totals.refused_queue_full),
            ("queue_timeout", |totals| totals.refused_queue_timeout),
            ("exhausted", |totals| totals.refused_exhausted),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_cut_total",
        help: "Requests or connections that broke off: by a failing member, a client that went away, or the end of the rule or the process.",
        label: "by",
        samples: &[
            ("member", |totals| totals.member_failures),
            ("client", |totals| totals.client_aborts),
            ("evenkeel", |totals| totals.terminated),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_moved_total",
        help: "Clients that were bound to a member and then to another one, by why.",
        label: "reason",
        samples: &[
            ("alert", |totals| totals.moved_alert),
            ("interval", |totals| totals.moved_interval),
            ("unusable", |totals| totals.moved_unusable),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_closed_by_alert_total",
        help: "Idle connections that were closed because of a load alert.",
        label: "",
        samples: &[("", |totals| totals.closed_by_alert)],
    },
    RuleFamily {
        name: "evenkeel_rule_access_log_dropped_total",
        help: "Access log records dropped because the writer was behind.",
        label: "",
        samples: &[("", |totals| totals.access_log_dropped)],
    },
];

/// All metrics as text.
pub(crate) fn render(sources: &Sources) -> String {
    let status = sources.manager.status();
    let mut out = Exposition::default();
    process(&mut out, sources, &status);
    rules(&mut out, sources, &status);
    negotiations(&mut out, sources);
    corba::corba(&mut out, &sources.corba);
    groups(&mut out, &status.groups);
    queues(&mut out, &sources.manager.snapshots().borrow());
    members(&mut out, &status.groups);
    reports(&mut out, &sources.manager.handles());
    latencies(&mut out, &sources.manager.groups());
    locations(&mut out, &status.locations);
    monitor(
        &mut out,
        sources.monitor.status(),
        &sources.monitor.locations(),
    );
    agents(&mut out, sources.desk.status().as_ref());
    out.finish()
}

fn process(out: &mut Exposition, sources: &Sources, status: &Status) {
    out.family(
        "evenkeel_build_info",
        Type::Gauge,
        "Always 1; the version is in the label.",
    );
    out.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    out.family(
        "evenkeel_config_generation",
        Type::Gauge,
        "Counts the configurations of this process, from 1.",
    );
    out.sample(&[], status.generation as f64);
    if let Some(reload) = &status.last_reload {
        out.family(
            "evenkeel_config_last_reload_success",
            Type::Gauge,
            "1 if the last start or reload of the configuration was applied, 0 if it was refused.",
        );
        out.sample(&[], flag(reload.error.is_none()));
        out.family(
            "evenkeel_config_last_reload_timestamp_seconds",
            Type::Gauge,
            "When that was, in seconds since 1970.",
        );
        out.sample(&[], reload.unix_seconds as f64);
    }
    out.family(
        "evenkeel_draining",
        Type::Gauge,
        "1 while the process shuts down.",
    );
    out.sample(&[], flag(sources.is_draining()));
    out.family(
        "evenkeel_access_log_records_total",
        Type::Counter,
        "Access log records that were written, or lost because writing failed.",
    );
    let log = &sources.access_log;
    out.sample(&[("result", "written")], log.written() as f64);
    out.sample(&[("result", "lost")], log.lost() as f64);
    out.family(
        "evenkeel_log_lines_lost_total",
        Type::Counter,
        "Lines of the process's own log that were lost because nobody read them in time.",
    );
    out.sample(&[], evenkeel_limits::log::lost() as f64);
    limits(out, status);
}

fn limits(out: &mut Exposition, status: &Status) {
    let of = |read: fn(&LimitsStatus) -> u64| status.limits.as_ref().map(read);
    let gauges = [
        (
            "evenkeel_files_limit",
            "Files that the process may open.",
            of(|limits| limits.files as u64),
        ),
        (
            "evenkeel_files_reserved",
            "Files kept back from clients: for health checks, reports, the admin API, reloads.",
            of(|limits| limits.files_reserved as u64),
        ),
        (
            "evenkeel_memory_limit_bytes",
            "Memory that this process may have.",
            of(|limits| limits.memory),
        ),
        (
            "evenkeel_memory_reserved_bytes",
            "Memory kept back from clients: for health checks, reports, the admin API, reloads.",
            of(|limits| limits.memory_reserved),
        ),
        (
            "evenkeel_clients_limit",
            "Most clients of all rules at a time: what the limits on open files and memory allow.",
            of(|limits| limits.clients as u64),
        ),
        (
            "evenkeel_clients_open",
            "Clients of all rules now.",
            of(|limits| limits.clients_open as u64),
        ),
    ];
    for (name, help, value) in gauges {
        out.family(name, Type::Gauge, help);
        if let Some(value) = value {
            out.sample(&[], value as f64);
        }
    }
    out.family(
        "evenkeel_shortages_total",
        Type::Counter,
        "How often something could not be done because this process, or machine, had run out of what it takes.",
    );
    for shortage in Shortage::ALL {
        out.sample(&[("resource", shortage.name())], shortage.count() as f64);
    }
}

fn rules(out: &mut Exposition, sources: &Sources, status: &Status) {
    out.family(
        "evenkeel_rule_enabled",
        Type::Gauge,
        "1 if the rule accepts clients.",
    );
    for rule in &status.rules {
        out.sample(&[("rule", &rule.name)], flag(rule.enabled));
    }
    let totals = sources.proxy.metrics().totals();
    out.family(
        "evenkeel_rule_connections_open",
        Type::Gauge,
        "Client connections that are open.",
    );
    for (rule, totals) in &totals {
        // The two are not read at the same instant.
        let open = totals.connections.saturating_sub(totals.connections_closed);
        out.sample(&[("rule", rule)], open as f64);
    }
    for family in RULE_FAMILIES {
        out.family(family.name, Type::Counter, family.help);
        for (rule, totals) in &totals {
            for (value, read) in family.samples {
                let labels = [("rule", &**rule), (family.label, value)];
                let labels = if family.label.is_empty() {
                    &labels[..1]
                } else {
                    &labels
                };
                out.sample(labels, read(totals) as f64);
            }
        }
    }
}

fn groups(out: &mut Exposition, groups: &[GroupStatus]) {
    out.family(
        "evenkeel_group_strategy_info",
        Type::Gauge,
        "Always 1; the strategy of the group is in the label.",
    );
    for group in groups {
        let labels = [("group", &*group.name), ("strategy", &*group.strategy)];
        match &group.owner {
            Some(owner) => out.sample(&[labels[0], labels[1], ("owner", owner)], 1.0),
            None => out.sample(&labels, 1.0),
        }
    }
    out.family(
        "evenkeel_group_panic",
        Type::Gauge,
        "1 while so many members are down or ejected that health is ignored.",
    );
    for group in groups {
        out.sample(&[("group", &group.name)], flag(group.panic));
    }
    out.family(
        "evenkeel_group_alerts",
        Type::Gauge,
        "Locations that the group has under a load alert.",
    );
    for group in groups {
        out.sample(&[("group", &group.name)], group.alerts as f64);
    }
    out.family(
        "evenkeel_group_alerts_raised_total",
        Type::Counter,
        "Load alerts that the group has raised.",
    );
    for group in groups {
        out.sample(&[("group", &group.name)], group.alerts_raised as f64);
    }
}

fn queues(out: &mut Exposition, snapshot: &Snapshot) {
    out.family(
        "evenkeel_group_queue",
        Type::Gauge,
        "Requests that wait for a member below its connection limit.",
    );
    // Several rules may share a group.
    let handles: BTreeMap<&str, &GroupHandle> = snapshot
        .rules
        .iter()
        .map(|rule| (rule.rule.group.as_str(), &*rule.group))
        .collect();
    for (group, handle) in handles {
        out.sample(&[("group", group)], handle.queue.waiting() as f64);
    }
}

fn members(out: &mut Exposition, groups: &[GroupStatus]) {
    let mut gauge = |name, help, read: fn(&MemberStatus) -> f64| {
        out.family(name, Type::Gauge, help);
        for (group, member) in each(groups) {
            out.sample(&labels(group, member), read(member));
        }
    };
    gauge(
        "evenkeel_member_in_flight",
        "Requests (HTTP) or connections (TCP) that this process has at the member.",
        |member| f64::from(member.in_flight),
    );
    gauge(
        "evenkeel_member_weight",
        "Weight as configured or changed live.",
        |member| f64::from(member.weight),
    );
    gauge(
        "evenkeel_member_effective_weight",
        "Weight with reports and slow start applied; 0 if the member gets no new traffic.",
        |member| f64::from(member.effective_weight),
    );
    out.family(
        "evenkeel_member_out",
        Type::Gauge,
        "1 for each reason why the member gets no new traffic, else 0.",
    );
    for (group, member) in each(groups) {
        for reason in Reason::ALL.map(Reason::name) {
            let [group, name] = labels(group, member);
            let holds = member.reasons.iter().any(|held| *held == reason);
            out.sample(&[group, name, ("reason", reason)], flag(holds));
        }
    }
    opinions(out, groups);
    out.family(
        "evenkeel_member_requests_total",
        Type::Counter,
        "Requests (HTTP) or connections (TCP) that are over, by how they ended for the member.",
    );
    for (group, member) in each(groups) {
        let totals = &member.totals;
        let (failures, overloads, cancelled) =
            (totals.failures, totals.overloads, totals.cancelled);
        let others = failures + overloads + cancelled;
        for (outcome, count) in [
            ("success", totals.requests.saturating_sub(others)),
            ("failure", failures),
            ("overload", overloads),
            ("cancelled", cancelled),
        ] {
            let [group, name] = labels(group, member);
            out.sample(&[group, name, ("outcome", outcome)], count as f64);
        }
    }
}

fn opinions(out: &mut Exposition, groups: &[GroupStatus]) {
    let mut family = |name, help, samples: fn(&OpinionStatus) -> Vec<(&'static str, f64)>| {
        out.family(name, Type::Gauge, help);
        for (group, member) in each(groups) {
            let [group, name] = labels(group, member);
            for opinion in &member.opinions {
                for (says, value) in samples(opinion) {
                    let labels = [group, name, ("source", &*opinion.source), ("says", says)];
                    let labels = &labels[..if says.is_empty() { 3 } else { 4 }];
                    out.sample(labels, value);
                }
            }
        }
    };
    family(
        "evenkeel_member_opinion",
        "1 for each thing that a source of reports says against the member, else 0.",
        |opinion| {
            vec![
                ("down", flag(opinion.down)),
                ("dead", flag(opinion.dead)),
                ("drain", flag(opinion.drain)),
                ("maintenance", flag(opinion.maintenance)),
            ]
        },
    );
    family(
        "evenkeel_member_reported_weight",
        "The part of its weight, 0 to 1 or more, that a source of reports wants for the member.",
        |opinion| {
            let weight = opinion.weight.iter();
            weight.map(|weight| ("", f64::from(*weight))).collect()
        },
    );
    family(
        "evenkeel_member_reported_max_connections",
        "The most requests or connections at once that a source of reports wants for the member.",
        |opinion| {
            let most = opinion.max_connections.iter();
            most.map(|most| ("", f64::from(*most))).collect()
        },
    );
}

fn reports(out: &mut Exposition, handles: &[Arc<GroupHandle>]) {
    out.family(
        "evenkeel_reports_total",
        Type::Counter,
        "Load reports of the group's members, and what became of them; sources that never had any are left out.",
    );
    for handle in handles {
        let group = handle.current.load();
        for origin in Origin::ALL {
            let counts = Fate::ALL.map(|fate| (fate, handle.reports.get(origin, fate)));
            if counts.iter().all(|(_, count)| *count == 0) {
                continue;
            }
            for (fate, count) in counts {
                let labels = [
                    ("group", &**group.name()),
                    ("source", origin.name()),
                    ("result", fate.name()),
                ];
                out.sample(&labels, count as f64);
            }
        }
    }
}

fn latencies(out: &mut Exposition, groups: &[Arc<Group>]) {
    out.family(
        "evenkeel_member_latency_seconds",
        Type::Histogram,
        "Time from binding a request to the member until it began to answer.",
    );
    for group in groups {
        for member in group.members() {
            let latencies = member.slot.record().latencies();
            let labels = [("group", &**group.name()), ("member", &*member.name)];
            for limit in LATENCY_LIMITS {
                let text = limit.as_secs_f64().to_string();
                let labels = [labels[0], labels[1], ("le", &text)];
                out.sample_of("_bucket", &labels, latencies.at_most(limit) as f64);
            }
            let count = latencies.count() as f64;
            out.sample_of("_bucket", &[labels[0], labels[1], ("le", "+Inf")], count);
            out.sample_of("_sum", &labels, latencies.sum().as_secs_f64());
            out.sample_of("_count", &labels, count);
        }
    }
}

fn locations(out: &mut Exposition, locations: &[LocationStatus]) {
    out.family(
        "evenkeel_location_alert",
        Type::Gauge,
        "1 while the location is under a load alert, raised by a group or forced.",
    );
    for location in locations {
        out.sample(&[("location", &location.name)], flag(location.alert));
    }
    let loads = || {
        locations
            .iter()
            .flat_map(|location| location.loads.iter().map(move |load| (location, load)))
    };
    out.family(
        "evenkeel_location_load",
        Type::Gauge,
        "A load as it was last reported.",
    );
    for (location, load) in loads() {
        let labels = [("location", &*location.name), ("load", &*load.id)];
        out.sample(&labels, f64::from(load.value));
    }
    out.family(
        "evenkeel_location_load_age_seconds",
        Type::Gauge,
        "How long ago that was.",
    );
    for (location, load) in loads() {
        let labels = [("location", &*location.name), ("load", &*load.id)];
        out.sample(&labels, load.age_seconds);
    }
}

fn negotiations(out: &mut Exposition, sources: &Sources) {
    let metrics = sources.negotiator.metrics();
    out.family(
        "evenkeel_negotiations_total",
        Type::Counter,
        "Clients that negotiated, by how that ended; class is empty for those who name none.",
    );
    for totals in metrics.classes() {
        for (ending, count) in totals.endings {
            let labels = [
                ("cluster", totals.cluster.as_str()),
                ("class", &totals.class),
                ("result", ending.name()),
            ];
            out.sample(&labels, count as f64);
        }
    }
    out.family(
        "evenkeel_negotiator_unheard_total",
        Type::Counter,
        "Requests to the negotiator that were no negotiation, by why.",
    );
    for (why, count) in metrics.unheard() {
        out.sample(&[("reason", why.name())], count as f64);
    }
}

fn agents(out: &mut Exposition, broker: Option<&BrokerStatus>) {
    out.family(
        "evenkeel_broker_agents",
        Type::Gauge,
        "Agents that report, and those that have signed off and are remembered.",
    );
    if let Some(broker) = broker {
        out.sample(&[("state", "registered")], broker.agents as f64);
        out.sample(&[("state", "stopped")], broker.stopped as f64);
    }
    out.family(
        "evenkeel_broker_datagrams_total",
        Type::Counter,
        "Datagrams that came from agents, by what became of them.",
    );
    for datagrams in broker.iter().flat_map(|broker| &broker.datagrams) {
        out.sample(&[("result", &datagrams.result)], datagrams.count as f64);
    }
    let mut counter = |name, help, read: fn(&BrokerStatus) -> u64| {
        out.family(name, Type::Counter, help);
        if let Some(broker) = broker {
            out.sample(&[], read(broker) as f64);
        }
    };
    counter(
        "evenkeel_broker_sent_total",
        "Messages sent to agents.",
        |broker| broker.sent,
    );
    counter(
        "evenkeel_broker_unsent_total",
        "Of these, those that the system did not take.",
        |broker| broker.unsent,
    );
    counter(
        "evenkeel_broker_lost_total",
        "Messages of agents that never came, by gaps in their sequence numbers.",
        |broker| broker.lost,
    );
    counter(
        "evenkeel_broker_displaced_total",
        "Registrations that took the place of a live agent of the same name elsewhere.",
        |broker| broker.displaced,
    );
    counter(
        "evenkeel_broker_forgotten_total",
        "Agents that were forgotten because they were silent.",
        |broker| broker.forgotten,
    );
}

fn monitor(out: &mut Exposition, status: Option<MonitorStatus>, locations: &[LocationMonitor]) {
    out.family(
        "evenkeel_monitor_asked_total",
        Type::Counter,
        "How often back-ends were asked for the loads of their kernels, over all locations.",
    );
    if let Some(status) = &status {
        out.sample(&[], status.asked as f64);
    }
    out.family(
        "evenkeel_monitor_answers_total",
        Type::Counter,
        "Answers of back-ends, and readings of pages, by what became of them.",
    );
    for answers in status.iter().flat_map(|status| &status.answers) {
        out.sample(&[("result", &answers.result)], answers.count as f64);
    }
    out.family(
        "evenkeel_monitor_delay_seconds",
        Type::Histogram,
        "How much later than planned back-ends were asked: the monitor's thread gets too little of a CPU if it is much.",
    );
    if let Some(status) = &status {
        let mut sum = 0;
        for (limit, count) in &status.delays {
            sum += count;
            let limit = limit.map_or("+Inf".into(), |limit| limit.to_string());
            out.sample_of("_bucket", &[("le", &limit)], sum as f64);
        }
        out.sample_of("_sum", &[], status.delay_seconds);
        out.sample_of("_count", &[], sum as f64);
    }
    let mut family = |name, kind, help, read: fn(&LocationMonitor) -> Option<f64>| {
        out.family(name, kind, help);
        for location in locations {
            if let Some(value) = read(location) {
                let labels = [("location", &*location.location), ("type", &location.kind)];
                out.sample(&labels, value);
            }
        }
    };
    family(
        "evenkeel_location_monitor_fresh",
        Type::Gauge,
        "1 while the loads that the monitor reads at the location are known.",
        |location| Some(flag(location.state == "fresh")),
    );
    family(
        "evenkeel_location_monitor_age_seconds",
        Type::Gauge,
        "How long ago the last news of the location came.",
        |location| location.age_seconds,
    );
    family(
        "evenkeel_location_monitor_round_trip_seconds",
        Type::Gauge,
        "Time from the last question that had an answer to that answer.",
        |location| location.round_trip_ms.map(|ms| ms / 1e3),
    );
    family(
        "evenkeel_location_monitor_asked_total",
        Type::Counter,
        "How often the location was asked.",
        |location| Some(location.asked as f64),
    );
    family(
        "evenkeel_location_monitor_answered_total",
        Type::Counter,
        "How often that brought news.",
        |location| Some(location.answered as f64),
    );
    family(
        "evenkeel_location_monitor_missed_total",
        Type::Counter,
        "How often there was no news when it was time to ask again.",
        |location| Some(location.missed as f64),
    );
    family(
        "evenkeel_location_monitor_refused_total",
        Type::Counter,
        "Answers in the name of the location that were not authentic or not right.",
        |location| Some(location.refused as f64),
    );
    family(
        "evenkeel_location_monitor_failed_total",
        Type::Counter,
        "Questions that the system did not send, and pages that could not be read.",
        |location| Some(location.failed as f64),
    );
    family(
        "evenkeel_location_monitor_expired_total",
        Type::Counter,
        "How often the loads of the location became unknown for lack of news.",
        |location| Some(location.expired as f64),
    );
}

fn each(groups: &[GroupStatus]) -> impl Iterator<Item = (&GroupStatus, &MemberStatus)> {
    groups
        .iter()
        .flat_map(|group| group.members.iter().map(move |member| (group, member)))
}

fn labels<'a>(group: &'a GroupStatus, member: &'a MemberStatus) -> [(&'static str, &'a str); 2] {
    [("group", &group.name), ("member", &member.name)]
}

fn flag(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_of_the_data_plane_is_shown() {
        let shown: usize = RULE_FAMILIES
            .iter()
            .map(|family| family.samples.len())
            .sum();
        assert_eq!(shown, RuleTotals::default().iter().count());
    }
}
