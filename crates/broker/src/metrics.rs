//! Metrics in `/metrics` about agents.

use evenkeel_manager::exposition::{Exposition, Type};

use crate::status::BrokerStatus;

/// Writes the metrics of the broker; `None` is one that does not listen.
pub(crate) fn write_families(out: &mut Exposition, broker: Option<&BrokerStatus>) {
    out.begin_family(
        "evenkeel_broker_agents",
        Type::Gauge,
        "Agents that report, and agents that have signed off but are not removed yet.",
    );
    if let Some(broker) = broker {
        out.add_sample(&[("state", "registered")], broker.agents as f64);
        out.add_sample(&[("state", "stopped")], broker.stopped as f64);
    }
    out.begin_family(
        "evenkeel_broker_datagrams_total",
        Type::Counter,
        "Datagrams from agents, by result.",
    );
    for datagrams in broker.iter().flat_map(|broker| &broker.datagrams) {
        out.add_sample(&[("result", &datagrams.result)], datagrams.count as f64);
    }
    let mut counter = |name, help, read: fn(&BrokerStatus) -> u64| {
        out.begin_family(name, Type::Counter, help);
        if let Some(broker) = broker {
            out.add_sample(&[], read(broker) as f64);
        }
    };
    counter(
        "evenkeel_broker_sent_total",
        "Messages sent to agents.",
        |broker| broker.sent,
    );
    counter(
        "evenkeel_broker_unsent_total",
        "Messages to agents that could not be sent.",
        |broker| broker.unsent,
    );
    counter(
        "evenkeel_broker_lost_total",
        "Messages of agents that never arrived, counted by gaps in their sequence numbers.",
        |broker| broker.lost,
    );
    counter(
        "evenkeel_broker_displaced_total",
        "Registrations that replaced a live agent of the same name at another address.",
        |broker| broker.displaced,
    );
    counter(
        "evenkeel_broker_forgotten_total",
        "Agents that were removed because they were silent.",
        |broker| broker.forgotten,
    );
}
