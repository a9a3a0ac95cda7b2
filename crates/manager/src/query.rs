//! Answers about everything as it is now: for administrators, as plain data.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use evenkeel_control::alerts::{AlertedLocations, collect_alerted};
use evenkeel_control::opinion::SourceReports;
use evenkeel_control::outlier::{Cause, MemberTraffic};
use evenkeel_core::address::Address;
use evenkeel_core::group::{Decision, Granularity, Group, GroupSettings, Request};
use evenkeel_core::load::LoadId;
use evenkeel_core::member::{Member, Reason, Slot};
use evenkeel_core::time::Instant;

use crate::admission::RefusedAddress;
use crate::chooser::Chooser;
use crate::config::{Forward, Protocol};
use crate::engine_status;
use crate::history::TrafficSince;
use crate::inputs::AlertSetting;
use crate::lists::ListProblem;
use crate::manager::{LockedState, ManageError, Manager, find_entry};
use crate::snapshot::{GroupHandle, RuleSnapshot};
use crate::state::{Endpoint, GroupEntry, State};
use crate::status::{
    AlertStatus, CandidateStatus, CheckStatus, EjectionStatus, Explained, GroupStatus, ListStatus,
    LoadStatus, LocationStatus, MemberStatus, OpinionStatus, ParamStatus, Recent, RefusedStatus,
    Reload, RuleStatus, Status, TotalsStatus, TrialStatus, Word, ZoneStatus,
};

/// Most names of models that an explanation shows.
const MAX_SHOWN_MODELS: usize = 10;

/// Names in order, each once.
fn once<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut names: Vec<String> = names.cloned().collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn rule_status(snapshot: &RuleSnapshot) -> RuleStatus {
    let rule = &snapshot.rule;
    RuleStatus {
        name: rule.name.clone(),
        enabled: rule.enabled,
        maintenance: rule.responses.is_in_maintenance(),
        protocol: match rule.protocol {
            Protocol::Tcp => "tcp".into(),
            Protocol::Http => "http".into(),
            Protocol::Ftp => "ftp".into(),
            Protocol::Udp => "udp".into(),
        },
        listen: rule.listen.iter().map(Address::to_string).collect(),
        group: rule.group.clone(),
        sni: rule.sni.clone(),
        limits: Vec::new(),
        routed: once(rule.routed_groups()),
        mirrors: once(rule.mirror_groups()),
        asks: once(rule.asked_groups()),
        forward: None,
    }
}

/// Returns the status of all locations, by name.
fn location_statuses(
    state: &State,
    alerted: &AlertedLocations,
    now: Instant,
) -> Vec<LocationStatus> {
    // A load is unknown where no group that has members there takes one of its age.
    let mut max_ages: HashMap<&Arc<str>, Duration> = HashMap::new();
    for entry in &state.groups {
        let max_age = entry.group.settings().load_max_age;
        for member in entry.group.members() {
            let known = max_ages.entry(member.location.name()).or_default();
            *known = max_age.max(*known);
        }
    }
    let is_old =
        |name: &Arc<str>, age: Duration| max_ages.get(name).is_some_and(|max_age| age > *max_age);
    let mut locations: Vec<_> = state
        .locations
        .values()
        .map(|location| LocationStatus {
            name: location.name().to_string(),
            alert: alerted.contains_key(location.name()),
            alert_setting: match state.inputs.live.alerts.get(&**location.name()) {
                Some(true) => AlertSetting::On,
                Some(false) => AlertSetting::Off,
                None => AlertSetting::Auto,
            },
            alerts: alerts_at(state, location.name(), now),
            loads: location
                .list_loads(now)
                .map(|load| LoadStatus {
                    id: load.id.to_string(),
                    value: load.value.get(),
                    age_seconds: now.since(load.at).as_secs_f64(),
                    expired: load.expired || is_old(location.name(), now.since(load.at)),
                    first: load.id == location.first_load().unwrap_or(LoadId::CPU),
                })
                .collect(),
        })
        .collect();
    locations.sort_by(|a, b| a.name.cmp(&b.name));
    locations
}

impl Manager {
    /// Returns the status of everything, as it is now; subsystems fill in their parts.
    pub fn status(&self) -> Status {
        let now = self.clock().now();
        let owned = self.lock();
        let state = &owned.state;
        let alerted = self.alerted_locations(state);
        let rules = state.snapshot.rules.iter().map(|rule| rule_status(rule));
        let mut status = Status {
            generation: state.snapshot.generation,
            last_reload: last_reload(&owned),
            needs_restart: self.needs_restart(&owned),
            rules: rules.collect(),
            groups: state
                .groups
                .iter()
                .map(|entry| GroupStatus {
                    lists: lists_of(&owned, entry),
                    maintenance: state.inputs.is_in_maintenance(&entry.config),
                    ..group_status(entry, &alerted, now)
                })
                .collect(),
            locations: location_statuses(state, &alerted, now),
            ..Status::default()
        };
        drop(owned);
        self.subsystems().status(&mut status);
        status
    }

    /// The locations that are under alert.
    pub(crate) fn alerted_locations(&self, state: &State) -> AlertedLocations {
        let groups = state.groups.iter();
        let raised = groups.flat_map(|entry| entry.control.alerts.raised().keys());
        collect_alerted(raised.cloned(), &state.locations, &state.inputs.live.alerts)
    }

    /// Returns all groups as the data plane has them, in the order of the file.
    pub fn list_groups(&self) -> Vec<Arc<Group>> {
        let owned = self.lock();
        let groups = owned.state.groups.iter();
        groups.map(|entry| Arc::clone(&entry.group)).collect()
    }

    /// The handles of all groups, in the order of the file.
    pub fn handles(&self) -> Vec<Arc<GroupHandle>> {
        let owned = self.lock();
        let groups = owned.state.groups.iter();
        groups.map(|entry| Arc::clone(&entry.handle)).collect()
    }

    /// The choosers of all groups that have one, in the order of the file.
    pub fn choosers(&self) -> Vec<Arc<Chooser>> {
        let owned = self.lock();
        let groups = owned.state.groups.iter();
        groups.filter_map(|entry| entry.chooser.clone()).collect()
    }

    /// The last decision of the group that was traced: one per second is. `None` if
    /// there was none yet.
    pub fn explain_last(&self, group: &str) -> Result<Option<Explained>, ManageError> {
        let owned = self.lock();
        let entry = find_entry(&owned.state, group)?;
        let last = entry.group.state().last_decision();
        Ok(last.map(|decision| self.explained(entry, &decision)))
    }

    /// Returns the decision that the group would take now for a request of `client`. Binds nothing.
    pub fn explain_next(
        &self,
        group: &str,
        client: Option<IpAddr>,
    ) -> Result<Explained, ManageError> {
        let owned = self.lock();
        let entry = find_entry(&owned.state, group)?;
        let request = Request {
            client,
            ahead: Some(u32::try_from(entry.handle.queue.waiting()).unwrap_or(u32::MAX)),
            ..Request::at_time(self.clock().now())
        };
        let rng = &mut fastrand::Rng::new();
        let decision = entry.group.explain_next(&request, rng);
        let mut explained = self.explained(entry, &decision);
        let chooser = entry.chooser.as_ref();
        explained
            .notes
            .extend(chooser.map(|chooser| chooser.status_line()));
        for rule in &owned.state.snapshot.rules {
            let is_served = rule.rule.is_served_by(group);
            if let Some(hedge) = rule.rule.http.hedge.as_ref().filter(|_| is_served)
                && let Some(after) = hedge.after
            {
                explained.notes.push(format!(
                    "requests of rule {:?} are sent to a second member after {after:?} without a \
                     response ({} % at most)",
                    rule.rule.name, hedge.percent
                ));
            }
            let mut models: Vec<&str> = rule.rule.models_of_group(group).collect();
            models.sort_unstable();
            models.dedup();
            if !models.is_empty() {
                let shown = models.get(..MAX_SHOWN_MODELS).unwrap_or(&models).join(", ");
                let rest = models.len().saturating_sub(MAX_SHOWN_MODELS);
                let rest = if rest > 0 {
                    format!(" and {rest} more")
                } else {
                    String::new()
                };
                explained.notes.push(format!(
                    "the group gets requests of rule {:?} for the models {shown}{rest}",
                    rule.rule.name
                ));
            }
            if is_served && rule.rule.forward == Forward::Kernel {
                explained.notes.push(format!(
                    "while the kernel forwards connections of rule {:?}, the kernel decides, by the terms of the strategy: \
                     see the last decision",
                    rule.rule.name
                ));
            }
            if rule.rule.mirror_groups().any(|name| name == group) {
                let note = format!(
                    "the group gets copies of requests of rule {:?} (mirror)",
                    rule.rule.name
                );
                explained.notes.push(note);
            }
            if rule.rule.asked_groups().any(|name| name == group) {
                let name = &rule.rule.name;
                let note =
                    format!("the group is asked whether requests of rule {name:?} may pass (auth)");
                explained.notes.push(note);
            }
        }
        Ok(explained)
    }

    fn explained(&self, entry: &GroupEntry, decision: &Decision) -> Explained {
        let name = |index: usize| decision.members.get(index).map(ToString::to_string);
        let named = entry.endpoints.iter().filter_map(|endpoint| {
            let given_name = endpoint.member.given_name.as_deref()?;
            Some((&*endpoint.member.name, given_name))
        });
        let given_names: HashMap<&str, &str> = named.collect();
        let shown = |name: &str| given_names.get(name).copied().unwrap_or(name).to_owned();
        let explanation = &decision.explanation;
        let opinions: HashMap<&str, &SourceReports> = entry
            .endpoints
            .iter()
            .map(|endpoint| (&*endpoint.member.name, &endpoint.source_reports))
            .collect();
        let now = self.clock().now();
        let failure = |endpoint: &Endpoint| {
            let CheckStatus { age_seconds, error } = tls_failure(entry, endpoint, now)?;
            Some(format!("{} ({age_seconds:.0} s ago)", error?))
        };
        let failures = entry
            .endpoints
            .iter()
            .filter_map(|endpoint| Some((&*endpoint.member.name, failure(endpoint)?)));
        let failures: HashMap<&str, String> = failures.collect();
        let ejections = entry.endpoints.iter().filter_map(|endpoint| {
            let ejection = ejection_status(entry, &endpoint.member, now)?;
            Some((&*endpoint.member.name, ejection))
        });
        let ejections: HashMap<&str, EjectionStatus> = ejections.collect();
        Explained {
            group: entry.config.name.clone(),
            in_kernel: decision.in_kernel,
            strategy: decision.strategy.into(),
            age_seconds: self.clock().now().since(decision.at).as_secs_f64(),
            chosen: decision.chosen.as_ref().ok().map(|name| shown(name)),
            error: decision.chosen.as_ref().err().map(ToString::to_string),
            notes: explanation.notes.clone(),
            candidates: explanation
                .candidates
                .iter()
                .map(|candidate| {
                    let member = name(candidate.index).unwrap_or_default();
                    let mut verdict = candidate.verdict.clone();
                    if let Some(ejection) = ejections.get(&*member) {
                        let EjectionStatus {
                            seconds_left,
                            why,
                            trials,
                            ..
                        } = ejection;
                        verdict.push_str(&format!("; ejected for {seconds_left:.0} s more: {why}"));
                        if let Some(trials) = trials {
                            verdict.push_str(&format!("; {trials}"));
                        }
                    }
                    if let Some(tls) = failures.get(&*member) {
                        verdict.push_str(&format!("; {tls}"));
                    }
                    for held in opinions.get(&*member).into_iter().flat_map(|o| o.iter()) {
                        let (source, opinion) = (held.source.name(), &held.report);
                        verdict.push_str(&format!("; {source} says {opinion}"));
                    }
                    CandidateStatus {
                        member: shown(&member),
                        score: candidate.score,
                        verdict,
                    }
                })
                .collect(),
        }
    }
}

/// Returns the failure of the last TLS handshake with a member, if there was no handshake since.
fn tls_failure(entry: &GroupEntry, endpoint: &Endpoint, now: Instant) -> Option<CheckStatus> {
    let known = entry.handle.known_handshakes()?;
    let (at, error) = known.last_failure(endpoint.member.id)?;
    Some(CheckStatus {
        age_seconds: now.since(at).as_secs_f64(),
        error: Some(error.to_string()),
    })
}

fn last_reload(owned: &LockedState) -> Option<Reload> {
    let last = owned.last_reload.as_ref()?;
    let since_1970 = last.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(Reload {
        unix_seconds: since_1970.as_secs(),
        error: last.error.clone(),
    })
}

/// The alerts that groups have raised for a location.
fn alerts_at(state: &State, location: &str, now: Instant) -> Vec<AlertStatus> {
    let by_group = |entry: &GroupEntry| {
        let alert = entry.control.alerts.raised().get(location)?;
        Some(AlertStatus {
            group: entry.config.name.clone(),
            age_seconds: now.since(alert.since).as_secs_f64(),
            load: alert.load,
            threshold: alert.level,
        })
    };
    state.groups.iter().filter_map(by_group).collect()
}

fn group_status(entry: &GroupEntry, alerted: &AlertedLocations, now: Instant) -> GroupStatus {
    let settings = &entry.config.settings;
    let values = &entry.config.strategy;
    let endpoints = entry.endpoints.iter().enumerate();
    let windows: Vec<TrafficSince> = endpoints
        .map(|(index, e)| {
            let engine = entry.group.engine_traffic(index);
            e.history.recent_traffic(&e.member.slot, engine, now)
        })
        .collect();
    let mut all = TrafficSince::default();
    for window in &windows {
        all.merge(window);
    }
    GroupStatus {
        name: entry.config.name.clone(),
        owner: entry.owner.map(Word::from),
        strategy: entry.group.strategy().name.into(),
        params: values
            .kind()
            .params
            .iter()
            .map(|param| ParamStatus {
                name: param.name.into(),
                value: values.get(param.name),
                unit: param.unit.into(),
            })
            .collect(),
        granularity: match settings.granularity {
            Granularity::PerSession => "per_session".into(),
            Granularity::PerRequest => "per_request".into(),
            Granularity::OnDemand => "on_demand".into(),
        },
        adaptive: settings.adaptive,
        load: settings.load_id.to_string(),
        panic: entry.group.state().is_panicking(),
        maintenance: false,
        alerts: entry.control.alerts.raised().len(),
        alerts_raised: entry.control.alerts.count(),
        recent: recent(&all),
        engines: engine_status::of_group(&entry.group, &all, now),
        members: entry
            .endpoints
            .iter()
            .zip(&windows)
            .enumerate()
            .map(|(index, (endpoint, past))| {
                let mut status = member_status(entry, index, endpoint, past, all.picks, now);
                status.alert = alerted.contains_key(endpoint.member.location.name());
                status
            })
            .collect(),
        chooser: entry.chooser.as_ref().map(|chooser| chooser.status(now)),
        zones: zones_of(entry),
        refused: entry.refused.iter().map(refused_status).collect(),
        lists: Vec::new(),
    }
}

/// The zones of a group, if it goes by them.
fn zones_of(entry: &GroupEntry) -> Vec<ZoneStatus> {
    let Some(ranks) = entry.group.ranks() else {
        return Vec::new();
    };
    let readings = entry.group.state().zones();
    let shares = readings.rank_shares(ranks.count());
    let settings = entry.group.settings().zones.as_ref();
    let own = settings.and_then(|zones| zones.balancer_zone.as_deref());
    let mut zones: Vec<ZoneStatus> = Vec::new();
    let mut places: HashMap<(usize, Option<&str>), usize> = HashMap::new();
    for (index, member) in entry.group.members().iter().enumerate() {
        let (rank, name) = (ranks.rank_at(index), member.zone.as_deref());
        let place = *places.entry((rank, name)).or_insert_with(|| {
            let reading = readings.get(rank);
            zones.push(ZoneStatus {
                name: name.map(str::to_owned),
                rank,
                own: name.is_some() && name == own,
                share: shares.get(rank).copied().unwrap_or(0.0),
                load: reading.load,
                usable: reading.usable,
                members: 0,
                requests: 0,
            });
            zones.len() - 1
        });
        if let Some(zone) = zones.get_mut(place) {
            let record = member.slot.record();
            zone.members += 1;
            zone.requests += record.request_totals().total() + record.assigned();
        }
    }
    zones.sort_by(|a, b| (a.rank, &a.name).cmp(&(b.rank, &b.name)));
    zones
}

/// The lists of members of a group.
fn lists_of(owned: &LockedState, entry: &GroupEntry) -> Vec<ListStatus> {
    let counts = owned.state.inputs.lists.count_members(&entry.config);
    let status = |(name, members): (String, usize)| {
        let ListProblem { error, failures } = owned.troubles.trouble_of(&name);
        ListStatus {
            name,
            members,
            error,
            failures,
        }
    };
    counts.into_iter().map(status).collect()
}

fn refused_status(refused: &RefusedAddress) -> RefusedStatus {
    RefusedStatus {
        member: refused.name.clone(),
        address: refused.address,
        why: refused.reason.to_string(),
    }
}

fn member_status(
    entry: &GroupEntry,
    index: usize,
    endpoint: &Endpoint,
    past: &TrafficSince,
    all_picks: u64,
    now: Instant,
) -> MemberStatus {
    let member = &endpoint.member;
    let (slot, settings) = (&member.slot, &entry.config.settings);
    let request = Request::at_time(now);
    let view = entry.group.view_for(&request).or_backups();
    // That a member is a backup does not speak against it.
    let serves = view.is_eligible_unless_full(index);
    let reasons: Vec<Word> = Reason::ALL
        .into_iter()
        .filter(|&reason| slot.has_reason(reason) && reason != Reason::Standby)
        .map(|reason| reason.name().into())
        .collect();
    let totals = slot.record().request_totals();
    let trials = slot.record().trial_totals();
    MemberStatus {
        name: member.shown_name().to_string(),
        member: member.name.to_string(),
        address: match &member.address {
            Address::Ip(none) if none.port() == 0 => None,
            address => Some(address.to_string()),
        },
        joined: endpoint.joined,
        location: member.location.name().to_string(),
        zone: member.zone.as_deref().map(str::to_owned),
        state: state_word(slot, endpoint.backup, serves).into(),
        reasons,
        ejection: ejection_status(entry, member, now),
        admin: endpoint.admin,
        weight: endpoint.weight.get(),
        backup: endpoint.backup,
        effective_weight: match serves {
            true => view.member_weight(index),
            false => 0.0,
        },
        max_connections: match slot.reported_limit() {
            u32::MAX => member.max_connections,
            limit => Some(member.max_connections.map_or(limit, |most| most.min(limit))),
        },
        in_flight: slot.in_flight(),
        cost_in_flight: slot.cost_in_flight(),
        cap: slot.learnt_cap(),
        latency_ms: slot
            .latency(now, settings.latency_decay)
            .map(|seconds| f64::from(seconds) * 1e3),
        recent: recent(past),
        engine: engine_status::of_member(&entry.group, index, past, now),
        share: match all_picks {
            0 => 0.0,
            all => past.picks as f64 / all as f64,
        },
        totals: TotalsStatus {
            requests: totals.total(),
            failures: totals.failures,
            overloads: totals.overloads,
            cancelled: totals.cancelled,
            assigned: slot.record().assigned(),
            trials: trials.sent,
            trials_succeeded: trials.succeeded,
            trials_failed: trials.failed,
        },
        tls: tls_failure(entry, endpoint, now),
        check: endpoint.checked.as_ref().map(|checked| CheckStatus {
            age_seconds: now.since(checked.at).as_secs_f64(),
            error: checked.error.as_deref().map(str::to_owned),
        }),
        opinions: endpoint
            .source_reports
            .iter()
            .map(|held| OpinionStatus::of_held(held, now))
            .collect(),
        load: load_of(member, settings, now),
        alert: false,
    }
}

fn ejection_status(entry: &GroupEntry, member: &Member, now: Instant) -> Option<EjectionStatus> {
    let outliers = &entry.control.outliers;
    let (by, until, seen, cause) = match outliers.ejection(member, now) {
        Some(own) => {
            let cause = own.failures.map(Cause::Failures);
            (None, own.until, own.traffic, cause)
        }
        None => {
            let word = outliers.peer_ejection(member.id)?;
            let by = Some(word.of.to_string());
            (by, word.until, word.traffic, Some(word.to_cause()))
        }
    };
    let trials = outliers
        .trial_progress(member.id)
        .map(|progress| TrialStatus {
            ended: progress.ended,
            failed: progress.failed,
            in_a_row: progress.in_a_row,
            enough: progress.enough,
        });
    let MemberTraffic { requests, failures } = seen;
    let unknown = || format!("{failures} of its {requests} requests failed");
    Some(EjectionStatus {
        seconds_left: until.since(now).as_secs_f64(),
        cause: cause.as_ref().map_or("unknown", Cause::kind_name).into(),
        why: cause.map_or_else(unknown, |cause| cause.to_string()),
        by,
        requests,
        failures,
        trials,
    })
}

/// Returns the state of a member in a word; `serves` is whether the group would pick it now.
pub(crate) fn state_word(slot: &Slot, is_backup: bool, serves: bool) -> &'static str {
    let mut reasons = Reason::ALL.into_iter();
    match reasons.find(|&reason| slot.has_reason(reason) && reason != Reason::Standby) {
        Some(reason) => reason.name(),
        None if is_backup && !serves => Reason::Standby.name(),
        None if slot.ramp_from().is_some() => "warming",
        None => "up",
    }
}

/// The load that counts in the group, as it was reported.
pub(crate) fn load_of(member: &Member, settings: &GroupSettings, now: Instant) -> Option<f32> {
    let fresh = |id| member.location.fresh_load(id, now, settings.load_max_age);
    fresh(settings.load_id).or_else(|| match settings.load_id {
        LoadId::UTILIZATION => fresh(LoadId::CPU),
        _ => None,
    })
}

/// Returns the traffic of the recent past.
fn recent(past: &TrafficSince) -> Recent {
    Recent {
        seconds: past.span.as_secs_f64(),
        picks: past.picks,
        failures: past.failures,
        p50_ms: past.ms(0.5),
        p99_ms: past.ms(0.99),
        first_byte_ms: (past.streams.mean_first_byte()).map(|mean| mean.as_secs_f64() * 1e3),
        stream_bytes_per_second: past.streams.pace(),
    }
}
