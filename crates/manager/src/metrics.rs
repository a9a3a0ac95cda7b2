//! Metrics in `/metrics` about rules, groups, members and locations.
//!
//! Names and labels are an interface: dashboards depend on them. Names and labels are listed in
//! `docs/admin-api.md`.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_core::group::Group;
use evenkeel_core::observe::StreamTotals;

use crate::Manager;
use crate::chooser;
use crate::counts::ReportOutcome;
use crate::engine_metrics;
use crate::exposition::{Exposition, TIME_LIMITS, Type, flag_value};
use crate::snapshot::{GroupHandle, Snapshot};
use crate::status::{
    GroupStatus, ListStatus, LocationStatus, MemberStatus, OpinionStatus, Status, ZoneStatus,
};

impl Manager {
    /// Writes all metrics of the manager, whose status is `status`, and of subsystems.
    pub fn metrics(&self, status: &Status, out: &mut Exposition) {
        rules(out, status);
        groups(out, &status.groups);
        zones(out, &status.groups);
        member_names(out, &status.groups);
        lists(out, &status.groups);
        queues(out, &self.snapshots().borrow());
        members(out, &status.groups);
        let handles = self.handles();
        handshakes(out, &handles);
        engine_metrics::write_families(out, &handles);
        reports(out, &handles);
        latencies(out, &self.list_groups());
        streams(out, &self.list_groups());
        locations(out, &status.locations);
        chooser::write_families(out, &self.choosers());
        self.certificate_families(out);
        self.file_families(out);
        self.subsystems().metrics(out);
    }
}

fn rules(out: &mut Exposition, status: &Status) {
    out.begin_family(
        "evenkeel_rule_enabled",
        Type::Gauge,
        "1 if the rule accepts clients.",
    );
    for rule in &status.rules {
        out.add_sample(&[("rule", &rule.name)], flag_value(rule.enabled));
    }
    out.begin_family(
        "evenkeel_rule_maintenance",
        Type::Gauge,
        "1 if the rule is in maintenance.",
    );
    for rule in &status.rules {
        out.add_sample(&[("rule", &rule.name)], flag_value(rule.maintenance));
    }
}

fn groups(out: &mut Exposition, groups: &[GroupStatus]) {
    out.begin_family(
        "evenkeel_group_strategy_info",
        Type::Gauge,
        "Always 1; the strategy of the group is in the label.",
    );
    for group in groups {
        let labels = [("group", &*group.name), ("strategy", &*group.strategy)];
        match &group.owner {
            Some(owner) => out.add_sample(&[labels[0], labels[1], ("owner", owner)], 1.0),
            None => out.add_sample(&labels, 1.0),
        }
    }
    out.begin_family(
        "evenkeel_group_panic",
        Type::Gauge,
        "1 while so many members are down or ejected that health is ignored.",
    );
    for group in groups {
        out.add_sample(&[("group", &group.name)], flag_value(group.panic));
    }
    out.begin_family(
        "evenkeel_group_maintenance",
        Type::Gauge,
        "1 if the group is in maintenance: clients of rules get its page.",
    );
    for group in groups {
        out.add_sample(&[("group", &group.name)], flag_value(group.maintenance));
    }
    out.begin_family(
        "evenkeel_group_ejected",
        Type::Gauge,
        "Ejected members: for their requests at this balancer (own), or for what another balancer has seen (others).",
    );
    for group in groups {
        let ejections = group
            .members
            .iter()
            .filter_map(|member| member.ejection.as_ref());
        let (others, own): (Vec<_>, Vec<_>) = ejections.partition(|ejection| ejection.by.is_some());
        for (by, all) in [("own", own), ("others", others)] {
            out.add_sample(&[("group", &group.name), ("by", by)], all.len() as f64);
        }
    }
    out.begin_family(
        "evenkeel_group_alerts",
        Type::Gauge,
        "Locations under a load alert of the group.",
    );
    for group in groups {
        out.add_sample(&[("group", &group.name)], group.alerts as f64);
    }
    out.begin_family(
        "evenkeel_group_alerts_raised_total",
        Type::Counter,
        "Load alerts that the group has raised.",
    );
    for group in groups {
        out.add_sample(&[("group", &group.name)], group.alerts_raised as f64);
    }
}

fn zones(out: &mut Exposition, groups: &[GroupStatus]) {
    let mut family = |name, kind, help, read: fn(&ZoneStatus) -> Option<f64>| {
        out.begin_family(name, kind, help);
        for group in groups {
            for zone in &group.zones {
                if let Some(value) = read(zone) {
                    let name = zone.name.as_deref().unwrap_or_default();
                    out.add_sample(&[("group", &group.name), ("zone", name)], value);
                }
            }
        }
    };
    family(
        "evenkeel_zone_share",
        Type::Gauge,
        "Share of the group's requests that the zone gets, with others that are equally far away; groups that do not go by zones are left out.",
        |zone| Some(zone.share),
    );
    family(
        "evenkeel_zone_usable",
        Type::Gauge,
        "Share of the zone's members, by weight, that can serve.",
        |zone| Some(f64::from(zone.usable)),
    );
    family(
        "evenkeel_zone_load",
        Type::Gauge,
        "Mean load of the zone's members that can serve; left out where the load is not known.",
        |zone| zone.load.map(f64::from),
    );
    out.begin_family(
        "evenkeel_member_zone_info",
        Type::Gauge,
        "Always 1; the zone of the member is in the label. Members without a zone are left out.",
    );
    for (group, member) in each(groups) {
        if let Some(zone) = &member.zone {
            let [group, name] = labels(group, member);
            out.add_sample(&[group, name, ("zone", zone)], 1.0);
        }
    }
}

/// Adds a family with the names of members. The names are no label of other families: the other families keep
/// their labels when a member is given a name, and so do the rules and dashboards that use them.
fn member_names(out: &mut Exposition, groups: &[GroupStatus]) {
    out.begin_family(
        "evenkeel_member_name_info",
        Type::Gauge,
        "Always 1; the name that the configuration gives the member is in the label. Members without a name are left out.",
    );
    for (group, member) in each(groups).filter(|(_, member)| member.name != member.member) {
        let [group, identity] = labels(group, member);
        out.add_sample(&[group, identity, ("name", &member.name)], 1.0);
    }
}

fn lists(out: &mut Exposition, groups: &[GroupStatus]) {
    let mut family = |name, kind, help, read: fn(&ListStatus) -> f64| {
        out.begin_family(name, kind, help);
        for group in groups {
            for list in &group.lists {
                out.add_sample(&[("group", &group.name), ("list", &list.name)], read(list));
            }
        }
    };
    family(
        "evenkeel_members_list_up",
        Type::Gauge,
        "1 if the list of members had no error when it was last read.",
        |list| flag_value(list.error.is_none()),
    );
    family(
        "evenkeel_members_list_members",
        Type::Gauge,
        "Members in the list of members.",
        |list| list.members as f64,
    );
    family(
        "evenkeel_members_list_failures_total",
        Type::Counter,
        "Number of times that the list of members got an error, so that its members stayed as they were.",
        |list| list.failures as f64,
    );
}

fn queues(out: &mut Exposition, snapshot: &Snapshot) {
    out.begin_family(
        "evenkeel_group_queue",
        Type::Gauge,
        "Requests that wait for a member.",
    );
    // Several rules may share a group.
    let handles: BTreeMap<Arc<str>, &GroupHandle> = snapshot
        .rules
        .iter()
        .flat_map(|rule| rule.targets().map(|target| &target.group))
        .map(|group| (Arc::clone(group.current.load().name()), &**group))
        .collect();
    for (group, handle) in &handles {
        out.add_sample(&[("group", group)], handle.queue.waiting() as f64);
    }
    out.begin_family(
        "evenkeel_group_queue_overloaded",
        Type::Gauge,
        "1 while requests of the group have waited for longer than queue_target for a while.",
    );
    for (group, handle) in &handles {
        out.add_sample(
            &[("group", group)],
            flag_value(handle.queue.is_overloaded()),
        );
    }
    out.begin_family(
        "evenkeel_group_queue_refused_total",
        Type::Counter,
        "Requests that left the queue refused: in an overload, or for one of a higher priority.",
    );
    for (group, handle) in &handles {
        out.add_sample(&[("group", group)], handle.queue.refusals() as f64);
    }
}

/// A gauge of members: name, help, and the value for a member.
type MemberGauge = (&'static str, &'static str, fn(&MemberStatus) -> f64);

const MEMBER_GAUGES: [MemberGauge; 5] = [
    (
        "evenkeel_member_up",
        "1 if the member gets new traffic, 0 while there is a reason against it (evenkeel_member_out).",
        |member| flag_value(member.reasons.is_empty()),
    ),
    (
        "evenkeel_member_in_flight",
        "Requests (HTTP) or connections (TCP) that this process has at the member.",
        |member| f64::from(member.in_flight),
    ),
    (
        "evenkeel_member_cost_in_flight",
        "What the requests or connections at the member cost together, as strategies count them.",
        |member| f64::from(member.cost_in_flight),
    ),
    (
        "evenkeel_member_weight",
        "Weight as configured or changed live.",
        |member| f64::from(member.weight),
    ),
    (
        "evenkeel_member_effective_weight",
        "Weight with reports and slow start applied; 0 if the member gets no new traffic.",
        |member| f64::from(member.effective_weight),
    ),
];

fn members(out: &mut Exposition, groups: &[GroupStatus]) {
    for (name, help, read) in MEMBER_GAUGES {
        out.begin_family(name, Type::Gauge, help);
        for (group, member) in each(groups) {
            out.add_sample(&labels(group, member), read(member));
        }
    }
    out.begin_family(
        "evenkeel_member_out",
        Type::Gauge,
        "1 for each reason why the member gets no new traffic; others are left out.",
    );
    for (group, member) in each(groups) {
        for reason in &member.reasons {
            let [group, name] = labels(group, member);
            out.add_sample(&[group, name, ("reason", reason)], 1.0);
        }
    }
    out.begin_family(
        "evenkeel_member_ejection_seconds",
        Type::Gauge,
        "Time until the ejection of the member ends, by its cause; members that are not ejected are left out.",
    );
    for (group, member) in each(groups) {
        if let Some(ejection) = &member.ejection {
            let [group, name] = labels(group, member);
            let labels = [group, name, ("cause", &*ejection.cause)];
            out.add_sample(&labels, ejection.seconds_left);
        }
    }
    out.begin_family(
        "evenkeel_member_cap",
        Type::Gauge,
        "Requests that the member works on at once, as learnt; left out where that is not known, or many.",
    );
    for (group, member) in each(groups) {
        if let Some(cap) = member.cap {
            out.add_sample(&labels(group, member), f64::from(cap));
        }
    }
    opinions(out, groups);
    outcomes(out, groups);
}

fn outcomes(out: &mut Exposition, groups: &[GroupStatus]) {
    out.begin_family(
        "evenkeel_member_requests_total",
        Type::Counter,
        "Finished requests (HTTP) or connections (TCP), by outcome.",
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
            out.add_sample(&[group, name, ("outcome", outcome)], count as f64);
        }
    }
    out.begin_family(
        "evenkeel_member_trials_total",
        Type::Counter,
        "Requests that have tried the member while it was ejected, by result; members without any are left out.",
    );
    for (group, member) in each(groups) {
        let totals = &member.totals;
        let (succeeded, failed) = (totals.trials_succeeded, totals.trials_failed);
        let others = totals
            .trials
            .saturating_sub(succeeded.saturating_add(failed));
        for (result, count) in [
            ("succeeded", succeeded),
            ("failed", failed),
            ("undecided", others),
        ] {
            if totals.trials > 0 {
                let [group, name] = labels(group, member);
                out.add_sample(&[group, name, ("result", result)], count as f64);
            }
        }
    }
}

fn opinions(out: &mut Exposition, groups: &[GroupStatus]) {
    let mut family = |name, help, samples: fn(&OpinionStatus) -> Vec<(&'static str, f64)>| {
        out.begin_family(name, Type::Gauge, help);
        for (group, member) in each(groups) {
            let [group, name] = labels(group, member);
            for opinion in &member.opinions {
                for (says, value) in samples(opinion) {
                    let labels = [group, name, ("source", &*opinion.source), ("says", says)];
                    let labels = &labels[..if says.is_empty() { 3 } else { 4 }];
                    out.add_sample(labels, value);
                }
            }
        }
    };
    family(
        "evenkeel_member_opinion",
        "1 for each negative finding of a source of reports about the member; others are left out.",
        |opinion| {
            let findings = [
                ("down", opinion.down),
                ("dead", opinion.dead),
                ("drain", opinion.drain),
                ("maintenance", opinion.maintenance),
            ];
            let held = findings.into_iter().filter(|(_, holds)| *holds);
            held.map(|(says, _)| (says, 1.0)).collect()
        },
    );
    family(
        "evenkeel_member_reported_weight",
        "The reported share of the member's weight, 0 to 1 or more.",
        |opinion| {
            let weight = opinion.weight.iter();
            weight.map(|weight| ("", f64::from(*weight))).collect()
        },
    );
    family(
        "evenkeel_member_reported_max_connections",
        "The reported maximum number of requests or connections at once.",
        |opinion| {
            let most = opinion.max_connections.iter();
            most.map(|most| ("", f64::from(*most))).collect()
        },
    );
}

fn handshakes(out: &mut Exposition, handles: &[Arc<GroupHandle>]) {
    let known = || {
        let all = handles.iter();
        all.filter_map(|handle| Some((handle.current.load(), handle.known_handshakes()?)))
    };
    out.begin_family(
        "evenkeel_group_tls_handshakes_total",
        Type::Counter,
        "TLS handshakes with members of the group, full or resumed; groups without any are left out.",
    );
    for (group, handshakes) in known() {
        for (kind, count) in ["full", "resumed"]
            .into_iter()
            .zip(handshakes.success_counts())
        {
            let labels = [("group", &**group.name()), ("kind", kind)];
            out.add_sample(&labels, count as f64);
        }
    }
    out.begin_family(
        "evenkeel_group_tls_failures_total",
        Type::Counter,
        "TLS handshakes with members of the group that failed, by cause; groups without any handshake are left out.",
    );
    for (group, handshakes) in known() {
        for (cause, count) in handshakes.failures() {
            let labels = [("group", &**group.name()), ("cause", cause.name())];
            out.add_sample(&labels, count as f64);
        }
    }
}

fn reports(out: &mut Exposition, handles: &[Arc<GroupHandle>]) {
    out.begin_family(
        "evenkeel_reports_total",
        Type::Counter,
        "Load reports of the group's members, by result; sources without any report are left out.",
    );
    for handle in handles {
        let group = handle.current.load();
        for origin in handle.reports.origins() {
            for fate in ReportOutcome::ALL {
                let count = handle.reports.count_of(origin, fate);
                let labels = [
                    ("group", &**group.name()),
                    ("source", origin.name()),
                    ("result", fate.name()),
                ];
                out.add_sample(&labels, count as f64);
            }
        }
    }
}

fn latencies(out: &mut Exposition, groups: &[Arc<Group>]) {
    out.begin_family(
        "evenkeel_member_latency_seconds",
        Type::Histogram,
        "Time from binding a request to the member until its latency ended, as `latency` of the group says.",
    );
    for group in groups {
        for member in group.members() {
            let latencies = member.slot.record().latencies();
            let labels = [("group", &**group.name()), ("member", &*member.name)];
            // Half of them: there are many members.
            let limits = TIME_LIMITS.iter().copied().skip(1).step_by(2);
            out.add_times(&labels, &latencies, limits);
        }
    }
}

fn streams(out: &mut Exposition, groups: &[Arc<Group>]) {
    let mut family = |name, help, value: fn(&StreamTotals) -> f64| {
        out.begin_family(name, Type::Counter, help);
        for group in groups {
            for member in group.members() {
                let streams = member.slot.record().streams();
                if streams.ended_streams > 0 {
                    let labels = [("group", &**group.name()), ("member", &*member.name)];
                    out.add_sample(&labels, value(&streams));
                }
            }
        }
    };
    family(
        "evenkeel_member_streams_total",
        "HTTP responses of the member whose first byte came after the head; members without any are left out.",
        |streams| streams.ended_streams as f64,
    );
    family(
        "evenkeel_member_stream_first_byte_seconds_total",
        "Times to the first bytes of these responses (evenkeel_member_streams_total), without times in which clients did not read.",
        |streams| streams.first_byte.as_secs_f64(),
    );
    family(
        "evenkeel_member_stream_rest_seconds_total",
        "Times from the first bytes of these responses (evenkeel_member_streams_total) to their ends, without times in which clients did not read.",
        |streams| streams.remaining_time.as_secs_f64(),
    );
    family(
        "evenkeel_member_stream_bytes_total",
        "Bytes of the bodies of these responses (evenkeel_member_streams_total) that clients got.",
        |streams| streams.bytes as f64,
    );
}

fn locations(out: &mut Exposition, locations: &[LocationStatus]) {
    out.begin_family(
        "evenkeel_location_alert",
        Type::Gauge,
        "1 while the location is under a load alert, raised by a group or forced.",
    );
    for location in locations {
        out.add_sample(&[("location", &location.name)], flag_value(location.alert));
    }
    let loads = || {
        locations
            .iter()
            .flat_map(|location| location.loads.iter().map(move |load| (location, load)))
    };
    out.begin_family(
        "evenkeel_location_load",
        Type::Gauge,
        "The last reported value of a load.",
    );
    for (location, load) in loads() {
        let labels = [("location", &*location.name), ("load", &*load.id)];
        out.add_sample(&labels, f64::from(load.value));
    }
    out.begin_family(
        "evenkeel_location_load_age_seconds",
        Type::Gauge,
        "Age of the last report of a load.",
    );
    for (location, load) in loads() {
        let labels = [("location", &*location.name), ("load", &*load.id)];
        out.add_sample(&labels, load.age_seconds);
    }
}

fn each(groups: &[GroupStatus]) -> impl Iterator<Item = (&GroupStatus, &MemberStatus)> {
    groups
        .iter()
        .flat_map(|group| group.members.iter().map(move |member| (group, member)))
}

fn labels<'a>(group: &'a GroupStatus, member: &'a MemberStatus) -> [(&'static str, &'a str); 2] {
    [("group", &group.name), ("member", &member.member)]
}
