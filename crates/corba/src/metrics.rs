//! Metrics of the CORBA service.

use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_manager::exposition::{Exposition, Type};

use crate::subsystem::Corba;

/// Writes the metrics of the CORBA service about clients and strategies.
pub(crate) fn write_families(out: &mut Exposition, corba: &Corba) {
    write_owner(out, corba);
    write_groups(out, corba);
    write_calls(out, corba);
    write_relay(out, corba);
}

fn read(counter: &AtomicU64) -> f64 {
    counter.load(Ordering::Relaxed) as f64
}

/// Writes which of several balancers is the load manager.
fn write_owner(out: &mut Exposition, corba: &Corba) {
    if let Some(standby) = corba.standby_status() {
        out.begin_family(
            "evenkeel_corba_owner",
            Type::Gauge,
            "1 while this balancer is the load manager, 0 while it stands by.",
        );
        out.add_sample(&[], f64::from(u8::from(standby.is_owner)));
        out.begin_family(
            "evenkeel_corba_takeovers_total",
            Type::Counter,
            "How often this balancer has become the load manager.",
        );
        out.add_sample(&[], standby.takeovers as f64);
    }
}

/// Writes the requests to object groups, and what their custom strategies do.
fn write_groups(out: &mut Exposition, corba: &Corba) {
    let groups = corba.load_manager().map(|service| {
        let snapshot = service.directory().load_snapshot();
        let mut groups: Vec<_> = snapshot.groups().cloned().collect();
        groups.sort_by_key(|entry| entry.id);
        groups
    });
    let groups = groups.unwrap_or_default();
    out.begin_family(
        "evenkeel_corba_bindings_total",
        Type::Counter,
        "Requests to object groups whose clients are forwarded, by result.",
    );
    for entry in &groups {
        let name = entry.name();
        for (answer, count) in entry.counters.answer_totals() {
            let labels = [("group", &*name), ("result", answer.name())];
            out.add_sample(&labels, count as f64);
        }
    }
    out.begin_family(
        "evenkeel_corba_custom_strategy_up",
        Type::Gauge,
        "1 if a group's custom strategy answers, 0 if the group's own strategy decides instead.",
    );
    for entry in &groups {
        if let Some(custom) = &entry.custom {
            let up = f64::from(u8::from(custom.is_answering()));
            out.add_sample(&[("group", &*entry.name())], up);
        }
    }
    out.begin_family(
        "evenkeel_corba_custom_strategy_failures_total",
        Type::Counter,
        "How often a group's custom strategy stopped answering, and its unusable answers.",
    );
    for entry in &groups {
        if let Some(custom) = &entry.custom {
            let (name, (silent, unusable)) = (entry.name(), custom.failures());
            for (reason, count) in [("silent", silent), ("unusable", unusable)] {
                out.add_sample(&[("group", &*name), ("reason", reason)], count as f64);
            }
        }
    }
}

/// Writes the requests that are for no group.
fn write_calls(out: &mut Exposition, corba: &Corba) {
    out.begin_family(
        "evenkeel_corba_calls_total",
        Type::Counter,
        "Requests that were not for a group, by target.",
    );
    let counters = corba.counters();
    for (target, counter) in [
        ("manager", &counters.manager),
        ("strategy", &counters.strategies),
        ("unknown", &counters.unknown),
    ] {
        out.add_sample(&[("target", target)], read(counter));
    }
    out.begin_family(
        "evenkeel_corba_refused_total",
        Type::Counter,
        "Requests to the load manager and to strategies that were refused unread, by reason.",
    );
    out.add_sample(&[("reason", "costly")], read(&counters.costly));
}

/// Writes the requests that are relayed, and the connections of clients and of the relay.
fn write_relay(out: &mut Exposition, corba: &Corba) {
    out.begin_family(
        "evenkeel_corba_relayed_total",
        Type::Counter,
        "Requests of the relay: passed on, sent again, refused, not answered in time.",
    );
    let relayed = corba.relay_counters();
    for (event, counter) in [
        ("request", &relayed.requests),
        ("again", &relayed.again),
        ("failed", &relayed.failed),
        ("timeout", &relayed.timeouts),
    ] {
        out.add_sample(&[("event", event)], read(counter));
    }
    out.begin_family(
        "evenkeel_corba_connections",
        Type::Gauge,
        "Open connections: of clients, and of the relay to members.",
    );
    let clients = corba
        .server()
        .map_or(0, |server| server.counters().open.load(Ordering::Relaxed));
    let members = relayed.open.load(Ordering::Relaxed);
    for (side, open) in [("clients", clients), ("members", members)] {
        out.add_sample(&[("side", side)], open as f64);
    }
}
