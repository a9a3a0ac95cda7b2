//! Metrics of a fleet for `/metrics`.

use evenkeel_manager::exposition::{Exposition, Type};

use crate::status::FleetStatus;

/// Writes the metrics of a fleet; `None` is a balancer without others.
pub(crate) fn write_families(out: &mut Exposition, fleet: Option<&FleetStatus>) {
    let count = |fleet: &FleetStatus, state: &str| {
        let all = fleet.balancers.iter();
        all.filter(|balancer| balancer.state == state).count() as f64
    };
    out.begin_family(
        "evenkeel_fleet_balancers",
        Type::Gauge,
        "Other balancers, by whether they are up or gone.",
    );
    if let Some(fleet) = fleet {
        for state in ["up", "gone"] {
            out.add_sample(&[("state", state)], count(fleet, state));
        }
    }
    out.begin_family(
        "evenkeel_fleet_groups",
        Type::Gauge,
        "Groups upon whose load alerts this balancer decides.",
    );
    if let Some(fleet) = fleet {
        let own = fleet.groups.iter();
        let own = own.filter(|group| group.decides.as_ref() == Some(&fleet.name));
        out.add_sample(&[], own.count() as f64);
    }
    out.begin_family(
        "evenkeel_fleet_ejections",
        Type::Gauge,
        "Members that other balancers have ejected, each counted for each of them.",
    );
    if let Some(fleet) = fleet {
        let ejections = fleet.balancers.iter().map(|balancer| balancer.ejections);
        out.add_sample(&[], ejections.sum::<usize>() as f64);
    }
    out.begin_family(
        "evenkeel_fleet_locations_read",
        Type::Gauge,
        "Locations whose loads are read for all balancers, by who reads them.",
    );
    if let Some(fleet) = fleet {
        let others = fleet.balancers.iter().map(|one| one.locations_read);
        let others = others.sum::<usize>() as f64;
        out.add_sample(&[("by", "this")], fleet.locations_read as f64);
        out.add_sample(&[("by", "others")], others);
    }
    out.begin_family(
        "evenkeel_fleet_datagrams_total",
        Type::Counter,
        "Datagrams from other balancers, by result.",
    );
    for datagrams in fleet.iter().flat_map(|fleet| &fleet.datagrams) {
        out.add_sample(&[("result", &datagrams.result)], datagrams.count as f64);
    }
    for (name, help, read) in COUNTERS {
        out.begin_family(name, Type::Counter, help);
        if let Some(fleet) = fleet {
            out.add_sample(&[], read(fleet) as f64);
        }
    }
}

/// A counter of the fleet: name, help, and its value.
type FleetCounter = (&'static str, &'static str, fn(&FleetStatus) -> u64);

const COUNTERS: [FleetCounter; 8] = [
    (
        "evenkeel_fleet_sent_total",
        "Datagrams sent to other balancers.",
        |fleet| fleet.sent,
    ),
    (
        "evenkeel_fleet_unsent_total",
        "Datagrams to other balancers that could not be sent.",
        |fleet| fleet.unsent,
    ),
    (
        "evenkeel_fleet_sent_bytes_total",
        "Bytes sent to other balancers, with the headers of IP and UDP.",
        |fleet| fleet.sent_bytes,
    ),
    (
        "evenkeel_fleet_received_bytes_total",
        "Bytes received from other balancers, with the headers of IP and UDP.",
        |fleet| fleet.received_bytes,
    ),
    (
        "evenkeel_fleet_takeovers_total",
        "How often this balancer began to decide upon the load alerts of a group.",
        |fleet| fleet.takeovers,
    ),
    (
        "evenkeel_fleet_missed_total",
        "How often this balancer found that another one is gone.",
        |fleet| fleet.missed,
    ),
    (
        "evenkeel_fleet_prompts_told_total",
        "Prompts at engines for language models that this balancer has told the others.",
        |fleet| fleet.prompts_told,
    ),
    (
        "evenkeel_fleet_prompts_heard_total",
        "Prompts at engines for language models, or parts of long ones, that others have told.",
        |fleet| fleet.prompts_heard,
    ),
];
