//! State of the balancer at one moment, in few numbers: for pictures that are drawn every second.
//!
//! [`Manager::status`] says everything about everybody, which costs too much every second. Here the lock is
//! held only while pointers are copied, and members are looked at one by one only in groups where that is
//! asked for.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_control::alerts::AlertedLocations;
use evenkeel_core::alert::Threshold;
use evenkeel_core::group::{Group, Request};
use evenkeel_core::time::Instant;

use crate::config::Protocol;
use crate::history::{Moment, TrafficSince};
use crate::inputs::AdminState;
use crate::manager::Manager;
use crate::query::{load_of, state_word};
use crate::snapshot::GroupHandle;
use crate::state::GroupEntry;
use crate::status::Word;
use crate::subsystem::RuleTraffic;

/// State of the balancer at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Number of this process's configuration that is running, from 1.
    pub generation: u64,
    /// Rules in the order of the file.
    pub rules: Vec<RuleSample>,
    /// Groups in the order of the file, and then groups that do not stand there.
    pub groups: Vec<GroupSample>,
    /// Sum of all these groups, without name.
    pub all: GroupSample,
    /// Groups that were left out, as there are so many.
    pub left_out: usize,
}

/// A rule at one moment.
#[derive(Clone, Debug)]
pub struct RuleSample {
    /// Name of the rule.
    pub name: String,
    /// True if the rule accepts clients.
    pub enabled: bool,
    /// True if the rule is in maintenance.
    pub maintenance: bool,
    /// Name of its group; empty if it has groups by name only.
    pub group: String,
    /// Requests (HTTP) or connections (TCP, FTP) so far.
    pub request_count: u64,
    /// Number of requests or connections that ended in a known way.
    pub ended_count: u64,
    /// Number of ended requests or connections that failed: answered with 500 or above, or refused, or cut.
    pub failed: u64,
}

/// A group at one moment; rates and latencies are those of the last 10 seconds.
#[derive(Clone, Debug)]
pub struct GroupSample {
    /// Name of the group.
    pub name: Arc<str>,
    /// Requests, connections or negotiations per second.
    pub rate: f64,
    /// Share of those that ended which failed, 0 to 1; unknown if none ended.
    pub failures: Option<f64>,
    /// Median latency.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the latency.
    pub p99_ms: Option<f64>,
    /// Requests or connections at its members.
    pub in_flight: u64,
    /// Requests that wait for a member.
    pub queue: usize,
    /// Members that get new traffic.
    pub up: usize,
    /// Number of all members.
    pub members: usize,
    /// True if too many members are down or ejected, so that all are routed to.
    pub panic: bool,
    /// Locations that the group has under a load alert.
    pub alerts: usize,
    /// Standard deviation of the loads of its members, where they are known.
    pub spread: Option<f64>,
    /// The effective load from which members get nothing new while others do.
    pub reject: Option<f64>,
    /// The effective load above which a location gets a load alert.
    pub critical: Option<f64>,
    /// Members of the group, if they were asked for.
    pub rows: Vec<MemberSample>,
}

/// A member at one moment.
#[derive(Clone, Debug)]
pub struct MemberSample {
    /// Name that people see.
    pub name: Arc<str>,
    /// Address in the configuration.
    pub member: Arc<str>,
    /// `up`, `standby`, `warming`, or the first reason why it gets no new traffic.
    pub state: &'static str,
    /// Setting of the administrator.
    pub admin: AdminState,
    /// Weight as configured or changed live.
    pub weight: f32,
    /// Weight with reports and slow start applied; 0 if the member gets no new traffic.
    pub effective_weight: f32,
    /// Share of all picks of the group, 0 to 1.
    pub share: f64,
    /// Requests, connections or negotiations per second.
    pub rate: f64,
    /// Share of those that ended which failed, 0 to 1; unknown if none ended.
    pub failures: Option<f64>,
    /// Requests or connections at the member.
    pub in_flight: u32,
    /// Median latency, where latencies were asked for.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the latency, where latencies were asked for.
    pub p99_ms: Option<f64>,
    /// The load that the group looks at, while it is not too old.
    pub load: Option<f32>,
    /// The location should shed load.
    pub alert: bool,
}

/// Level of detail in a sample of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// The group as a whole.
    Group,
    /// The group and its members, without the members' latencies.
    Members,
    /// Everything, with the members' latencies.
    Latencies,
}

/// Data of a group that is copied while the lock is held.
struct GroupCopy {
    group: Arc<Group>,
    handle: Arc<GroupHandle>,
    detail: Detail,
    alerts: usize,
    reject: Option<f64>,
    moments: Vec<Option<Moment>>,
    /// Weight, what the administrator says, whether it is a backup, and whether it is under alert: of
    /// each member, if members are asked for.
    members: Vec<(f32, AdminState, bool, bool)>,
}

impl Manager {
    /// Samples the rules, and the first `most` groups of those whose names begin with `prefix`; `detail` returns the
    /// level of detail for a group, given its name and number of members.
    pub fn sample(
        &self,
        prefix: &str,
        most: usize,
        mut detail: impl FnMut(&str, usize) -> Detail,
    ) -> Sample {
        let now = self.clock().now();
        let owned = self.lock();
        let state = &owned.state;
        let alerted = self.alerted_locations(state);
        let chosen = { state.groups.iter() }.filter(|entry| entry.config.name.starts_with(prefix));
        let count = chosen.clone().count();
        let taken = chosen.take(most).map(|entry| {
            let detail = detail(&entry.config.name, entry.endpoints.len());
            GroupCopy::of(entry, detail, &alerted)
        });
        let taken: Vec<GroupCopy> = taken.collect();
        let left_out = count - taken.len();
        let snapshot = Arc::clone(&state.snapshot);
        drop(owned);
        let traffic = self.subsystems().traffic();
        let traffic: HashMap<&str, &RuleTraffic> =
            traffic.iter().map(|of| (&*of.rule, of)).collect();
        let rules = snapshot.rules.iter().map(|rule| {
            let rule = &rule.rule;
            let traffic = traffic.get(&*rule.name);
            let counts = traffic.map(|of| match rule.protocol {
                Protocol::Http => of.requests,
                Protocol::Tcp | Protocol::Ftp | Protocol::Udp => of.connections,
            });
            let [asked, ended, failed] = counts.unwrap_or_default();
            RuleSample {
                name: rule.name.clone(),
                enabled: rule.enabled,
                maintenance: rule.responses.is_in_maintenance(),
                group: rule.group.clone(),
                request_count: asked,
                ended_count: ended,
                failed,
            }
        });
        let mut past = TrafficSince::default();
        let groups = taken.iter().map(|of| look(of, now, &mut past));
        let groups: Vec<GroupSample> = groups.collect();
        Sample {
            generation: snapshot.generation,
            rules: rules.collect(),
            all: together(&groups, &past),
            groups,
            left_out,
        }
    }

    /// Samples a group, with everything about its members; `None` if there is no such group.
    pub fn sample_group(&self, group: &str) -> Option<GroupSample> {
        let now = self.clock().now();
        let taken = {
            let owned = self.lock();
            let entry = owned.state.find_group(group)?;
            GroupCopy::of(
                entry,
                Detail::Latencies,
                &self.alerted_locations(&owned.state),
            )
        };
        Some(look(&taken, now, &mut TrafficSince::default()))
    }
}

impl GroupCopy {
    fn of(entry: &GroupEntry, detail: Detail, alerted: &AlertedLocations) -> Self {
        let endpoints = entry.endpoints.iter();
        let reject = entry.config.strategy.try_get("reject_threshold");
        GroupCopy {
            group: Arc::clone(&entry.group),
            handle: Arc::clone(&entry.handle),
            detail,
            alerts: entry.control.alerts.raised().len(),
            reject: reject.filter(|reject| *reject > 0.0),
            moments: endpoints.clone().map(|e| e.history.oldest()).collect(),
            members: match detail {
                Detail::Group => Vec::new(),
                _ => endpoints
                    .map(|e| {
                        let alert = alerted.contains_key(e.member.location.name());
                        (e.weight.get(), e.admin, e.backup, alert)
                    })
                    .collect(),
            },
        }
    }
}

/// Groups as one; `past` is what has happened in all of them.
fn together(groups: &[GroupSample], past: &TrafficSince) -> GroupSample {
    let sum = |of: fn(&GroupSample) -> usize| groups.iter().map(of).sum();
    GroupSample {
        name: "".into(),
        rate: groups.iter().map(|group| group.rate).sum(),
        failures: share(past.failures, past.judged_requests),
        p50_ms: past.ms(0.5),
        p99_ms: past.ms(0.99),
        in_flight: groups.iter().map(|group| group.in_flight).sum(),
        queue: sum(|group| group.queue),
        up: sum(|group| group.up),
        members: sum(|group| group.members),
        panic: groups.iter().any(|group| group.panic),
        alerts: sum(|group| group.alerts),
        // Groups look at different loads.
        spread: None,
        reject: None,
        critical: None,
        rows: Vec::new(),
    }
}

/// Looks at a group, and adds what has happened there to `everywhere`.
fn look(taken: &GroupCopy, now: Instant, everywhere: &mut TrafficSince) -> GroupSample {
    let group = &taken.group;
    let settings = group.settings();
    let request = Request::at_time(now);
    let view = group.view_for(&request).or_backups();
    let mut all = TrafficSince::default();
    let mut rows = Vec::with_capacity(taken.members.len());
    let mut loads = Loads::default();
    let (mut in_flight, mut up) = (0, 0);
    for (index, (member, moment)) in group.members().iter().zip(&taken.moments).enumerate() {
        let slot = &member.slot;
        in_flight += u64::from(slot.in_flight());
        let serves = view.is_eligible_unless_full(index);
        let load = load_of(member, settings, now);
        loads.add(load);
        let member_of = taken.members.get(index);
        let state = state_word(slot, member_of.is_some_and(|of| of.2), serves);
        up += usize::from(matches!(state, "up" | "warming" | "standby"));
        let before = (all.picks, all.judged_requests, all.failures);
        let mut own = None;
        match (moment, taken.detail) {
            (None, _) => {}
            (Some(moment), Detail::Latencies) => {
                let mut past = TrafficSince::default();
                moment.add_to(slot, now, &mut past);
                all.merge(&past);
                own = Some(past);
            }
            (Some(moment), _) => moment.add_to(slot, now, &mut all),
        }
        let Some(&(weight, admin, _, alert)) = member_of else {
            continue;
        };
        let picks = all.picks - before.0;
        let ended = all.judged_requests - before.1;
        rows.push(MemberSample {
            name: Arc::clone(member.shown_name()),
            member: Arc::clone(&member.name),
            state,
            admin,
            weight,
            effective_weight: match serves {
                true => view.member_weight(index),
                false => 0.0,
            },
            // Of all, which are known below.
            share: picks as f64,
            rate: picks as f64,
            failures: share(all.failures - before.2, ended),
            in_flight: slot.in_flight(),
            p50_ms: own.as_ref().and_then(|own| own.ms(0.5)),
            p99_ms: own.as_ref().and_then(|own| own.ms(0.99)),
            load,
            alert,
        });
    }
    everywhere.merge(&all);
    let seconds = all.span.as_secs_f64();
    let per_second = |picks: f64| if seconds > 0.0 { picks / seconds } else { 0.0 };
    for row in &mut rows {
        row.share /= all.picks.max(1) as f64;
        row.rate = per_second(row.rate);
    }
    let threshold = settings.alert.threshold.or(group.alert_threshold());
    GroupSample {
        name: Arc::clone(group.name()),
        rate: per_second(all.picks as f64),
        failures: share(all.failures, all.judged_requests),
        p50_ms: all.ms(0.5),
        p99_ms: all.ms(0.99),
        in_flight,
        queue: taken.handle.queue.waiting(),
        up,
        members: group.members().len(),
        panic: group.state().is_panicking(),
        alerts: taken.alerts,
        spread: loads.deviation(),
        reject: taken.reject,
        critical: match threshold {
            Some(Threshold::Critical(level)) if settings.adaptive => Some(f64::from(level)),
            _ => None,
        },
        rows,
    }
}

/// A share of things, if there are any.
fn share(part: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| (part as f64 / all as f64).min(1.0))
}

/// Loads, for their standard deviation (Welford's method: sums of squares lose digits).
#[derive(Default)]
struct Loads {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Loads {
    fn add(&mut self, load: Option<f32>) {
        let Some(load) = load.map(f64::from) else {
            return;
        };
        self.count += 1.0;
        let off = load - self.mean;
        self.mean += off / self.count;
        self.squares += off * (load - self.mean);
    }

    fn deviation(&self) -> Option<f64> {
        (self.count > 0.0).then(|| (self.squares / self.count).max(0.0).sqrt())
    }
}

/// A check of a member that was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedNow {
    /// Reason why the check failed, if it did.
    pub error: Option<String>,
    /// Time that the check took.
    pub took: std::time::Duration,
    /// Name of what was checked, in words.
    pub check_name: Word,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_the_standard_deviation_of_known_loads() {
        let spread = |loads: &[Option<f32>]| {
            let mut all = Loads::default();
            loads.iter().for_each(|load| all.add(*load));
            all.deviation()
        };
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[None]), None);
        assert_eq!(spread(&[Some(0.5), None]), Some(0.0));
        let four = spread(&[Some(2.0), Some(4.0), Some(4.0), Some(6.0)]).unwrap();
        assert!((four - 2.0_f64.sqrt()).abs() < 1e-9, "{four}");
    }
}
