//! Learnt state of groups and locations, for the process that takes the place of this one.
//!
//! Decisions learn from every answer. The process that takes over goes on with that state, instead of sending
//! a slow member its share of the traffic once more to find out. Members are known by group, host, port and
//! address, as over a reload; state of members that are not in the new configuration is forgotten.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::alerts::{Alert, Locations};
use evenkeel_control::opinion::{CountedReport, Source, SourceReport};
use evenkeel_control::outlier::{Ejection, FailureCause, MemberTraffic};
use evenkeel_core::address::Address;
use evenkeel_core::learnt::LearntValues;
use evenkeel_core::load::LoadId;
use evenkeel_core::member::{Reason, Weight};
use evenkeel_core::time::Instant;
use serde::{Deserialize, Serialize};
use tracing::info;

use super::entry::GroupEntry;

/// Learnt state of groups and locations.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct All {
    groups: BTreeMap<String, OfGroup>,
    locations: BTreeMap<String, OfLocation>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct OfGroup {
    own: LearntValues,
    members: Vec<OfMember>,
    /// Location, since when, its load then, and the level that this exceeded.
    alerts: Vec<(String, u64, f32, f32)>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct OfMember {
    host: String,
    port: u16,
    address: String,
    slot: LearntValues,
    /// True if the member sends clients away because of a load alert.
    sheds: bool,
    /// Health that checks have found (true for up), and the number of checks that contradict it.
    health: Option<(bool, u32)>,
    /// Time until which the member is ejected, and duration of the ejection, in nanoseconds.
    ejected: Option<(u64, u64)>,
    /// Number of requests that the member was judged by, and number of those that failed.
    seen: (u32, u32),
    /// Number of failures in a row for which the member was ejected; 0 if it was ejected for something else.
    in_a_row: u32,
    /// Share of the member's requests that failed, and that of the other members, for which it was ejected.
    shares: Option<(f64, f64)>,
    opinions: Vec<OfSource>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct OfSource {
    source: String,
    at: u64,
    down: bool,
    dead: bool,
    drain: bool,
    maintenance: bool,
    weight: Option<f64>,
    max_connections: Option<NonZeroU32>,
    note: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct OfLocation {
    own: LearntValues,
    loads: Vec<(u32, LearntValues)>,
}

impl All {
    pub(crate) fn collect_from(groups: &[GroupEntry], locations: &Locations) -> Self {
        let (groups, locations) = (groups.iter(), locations.iter());
        All {
            groups: groups
                .map(|entry| (entry.config.name.clone(), OfGroup::of(entry)))
                .collect(),
            locations: locations
                .map(|(name, location)| {
                    let (own, loads) = location.export_learnt();
                    let loads = loads.into_iter().map(|(id, learnt)| (id.0, learnt));
                    let loads = loads.collect();
                    (name.to_string(), OfLocation { own, loads })
                })
                .collect(),
        }
    }

    /// Has groups of which nobody has heard yet go on with it, each once.
    pub(crate) fn restore_groups(&mut self, groups: &mut [GroupEntry], now: Instant) {
        let mut members = 0;
        for entry in groups {
            if let Some(known) = self.groups.remove(&entry.config.name) {
                members += known.restore(entry, now);
            }
        }
        if members > 0 {
            info!(
                members,
                "upgrade: members have the state that the old process has learnt"
            );
        }
    }

    /// Has locations of which nobody has heard yet go on with their learnt state, each once.
    pub(crate) fn restore_locations(&mut self, locations: &Locations, now: Instant) {
        if self.locations.is_empty() {
            return;
        }
        for (name, location) in locations {
            if let Some(known) = self.locations.remove(&**name) {
                let loads = known.loads.into_iter();
                let loads: Vec<_> = loads.map(|(id, learnt)| (LoadId(id), learnt)).collect();
                location.import_learnt(&known.own, &loads, now);
            }
        }
    }
}

/// Identity of an endpoint of a group, which makes it the same one in another process.
type Key<'a> = (&'a str, u16, String);

impl OfGroup {
    fn of(entry: &GroupEntry) -> Self {
        let ejected: HashMap<_, _> = entry.control.outliers.ejections().collect();
        let members = entry.endpoints.iter().filter(|endpoint| endpoint.resolved);
        let members = members.map(|endpoint| {
            let opinions = endpoint
                .source_reports
                .iter()
                .filter(|held| is_kept(held.source));
            let ejection = ejected.get(&endpoint.member.id);
            let (in_a_row, shares) = match ejection.and_then(|last| last.failures) {
                Some(FailureCause::InARow(failures)) => (failures, None),
                Some(FailureCause::Share(own, others)) => (0, Some((own, others))),
                None => (0, None),
            };
            OfMember {
                host: endpoint.host.clone(),
                port: endpoint.port,
                address: endpoint.member.address.to_string(),
                slot: endpoint.member.slot.export_learnt(),
                sheds: endpoint.member.slot.has_reason(Reason::Shedding),
                health: endpoint.health.known_state(),
                ejected: ejection.map(|last| (last.until.as_nanos(), nanos(last.time))),
                seen: ejection.map_or((0, 0), |last| {
                    (last.traffic.requests, last.traffic.failures)
                }),
                in_a_row,
                shares,
                opinions: opinions.map(OfSource::of).collect(),
            }
        });
        let raised = entry.control.alerts.raised().iter();
        OfGroup {
            own: entry.group.state().export_learnt(),
            members: members.collect(),
            alerts: raised
                .map(|(location, alert)| {
                    let Alert { since, load, level } = alert;
                    (location.to_string(), since.as_nanos(), *load, *level)
                })
                .collect(),
        }
    }

    /// Answers for how many members something was known.
    fn restore(&self, entry: &mut GroupEntry, now: Instant) -> usize {
        entry.group.state().import_learnt(&self.own);
        let by_key: HashMap<Key<'_>, &OfMember> = self
            .members
            .iter()
            .map(|member| ((&*member.host, member.port, member.address.clone()), member))
            .collect();
        let mut members = 0;
        for endpoint in &mut entry.endpoints {
            let address: &Address = &endpoint.member.address;
            let key = (&*endpoint.host, endpoint.port, address.to_string());
            let Some(known) = by_key.get(&key) else {
                continue;
            };
            members += 1;
            let slot = &endpoint.member.slot;
            slot.import_learnt(&known.slot);
            // Until the first round has looked at the alerts itself.
            slot.set(Reason::Shedding, known.sheds);
            if let Some(found) = known.health {
                endpoint.health.go_on(found, slot);
            }
            if let Some((until, time)) = known.ejected {
                let (requests, failures) = known.seen;
                let cause = match (known.in_a_row, known.shares) {
                    (0, shares) => shares.map(|(own, others)| FailureCause::Share(own, others)),
                    (in_a_row, _) => Some(FailureCause::InARow(in_a_row)),
                };
                let ejection = Ejection {
                    until: Instant::from_nanos(until),
                    time: Duration::from_nanos(time),
                    traffic: MemberTraffic { requests, failures },
                    failures: cause,
                };
                let outliers = &mut entry.control.outliers;
                outliers.go_on(&endpoint.member, ejection, now);
            }
            for held in known.opinions.iter().filter_map(OfSource::held) {
                endpoint.source_reports.go_on(held);
            }
        }
        for (location, since, load, level) in &self.alerts {
            let since = Instant::from_nanos(*since);
            let (load, level) = (*load, *level);
            let alert = Alert { since, load, level };
            entry.control.alerts.go_on(location.as_str().into(), alert);
        }
        members
    }
}

/// True if the source repeats a report only when it has something new. Reports of agents, and of CORBA, come
/// with what those subsystems hand over themselves.
fn is_kept(source: Source) -> bool {
    matches!(source, Source::AgentCheck | Source::HealthCheck)
}

impl OfSource {
    fn of(held: &CountedReport) -> Self {
        let opinion = &held.report;
        OfSource {
            source: held.source.name().into(),
            at: held.at.as_nanos(),
            down: opinion.down,
            dead: opinion.dead,
            drain: opinion.drain,
            maintenance: opinion.maintenance,
            weight: opinion.weight.map(|weight| f64::from(weight.get())),
            max_connections: opinion.max_connections,
            note: opinion.note.as_deref().map(str::to_owned),
        }
    }

    fn held(&self) -> Option<CountedReport> {
        let sources = [Source::AgentCheck, Source::HealthCheck];
        let source = sources.into_iter().find(|of| of.name() == self.source)?;
        let opinion = SourceReport {
            down: self.down,
            dead: self.dead,
            drain: self.drain,
            maintenance: self.maintenance,
            weight: self.weight.and_then(|weight| Weight::new(weight).ok()),
            max_connections: self.max_connections,
            note: self.note.as_deref().map(Arc::from),
        };
        let at = Instant::from_nanos(self.at);
        Some(CountedReport {
            source,
            report: opinion,
            at,
        })
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
