//! Load alerts: raised by groups or by an administrator, and what they mean for each
//! member of each group.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::analyzer::{self, Caller, Site, Threshold};
use evenkeel_core::effective::{Shaping, effective};
use evenkeel_core::group::{Granularity, GroupSettings, Request};
use evenkeel_core::load::Tell;
use evenkeel_core::member::{Member, Reason};
use evenkeel_core::time::Instant;
use serde::{Deserialize, Serialize};
use tracing::{debug, info};

use crate::state::{GroupEntry, State};

/// What an administrator says about the load alert of a location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AlertSetting {
    /// Groups raise and lift it by the load.
    #[default]
    Auto,
    /// It has one, whatever the load: its clients leave it bit by bit.
    On,
    /// It has none, whatever the load.
    Off,
}

/// An alert that a group has raised for a location.
#[derive(Clone, Debug)]
pub(crate) struct Alert {
    pub since: Instant,
    /// The effective load at that time, and the level that it had exceeded.
    pub load: f32,
    pub level: f32,
}

/// Locations under alert, with who says so.
pub(crate) type Alerted = HashMap<Arc<str>, Caller>;

/// Brings the load alerts that a group raises up to date.
pub(crate) fn raise(entry: &mut GroupEntry, now: Instant) {
    let settings = entry.group.settings();
    if settings.rebinds() {
        return pulse(entry, None, now);
    }
    let own = entry.group.strategy().alert_threshold();
    let threshold = settings.alert.threshold.or(own);
    let Some(threshold) = threshold.filter(|_| settings.adaptive) else {
        entry.alerts.clear();
        entry.group.end_pulses();
        return;
    };
    if settings.alert.pulses && moves(settings) {
        return pulse(entry, Some(threshold), now);
    }
    entry.group.end_pulses();
    if settings.alert.pulses {
        entry.alerts.clear();
        return;
    }
    let Places { names, sites, .. } = places(entry, now, |member| {
        entry.alerts.contains_key(member.location.name())
    });
    let wanted = match analyzer::is_negligible(threshold, settings.load_id, &sites) {
        true => vec![false; sites.len()],
        false => analyzer::analyze(threshold, &settings.alert, &sites),
    };
    let level = threshold.level(&sites);
    let group = entry.group.name();
    let mut alerts = HashMap::new();
    let mut raised = 0;
    for ((name, site), wanted) in names.iter().zip(&sites).zip(wanted) {
        let location: &str = name;
        let before = entry.alerts.get(location);
        match (before, wanted) {
            (None, true) => {
                let load = site.load.unwrap_or(0.0);
                info!(%group, location, load, threshold = level, "load alert raised");
                let since = now;
                alerts.insert(Arc::clone(name), Alert { since, load, level });
                raised += 1;
            }
            (Some(alert), true) => {
                alerts.insert(Arc::clone(name), alert.clone());
            }
            (Some(alert), false) => {
                let (load, after) = (site.load, now.since(alert.since));
                info!(%group, location, load, threshold = level, ?after, "load alert lifted");
            }
            (None, false) => {}
        }
    }
    entry.alerts = alerts;
    entry.alerts_raised += raised;
}

/// Whether alerts move clients of the group that are bound already.
fn moves(settings: &GroupSettings) -> bool {
    let bound = settings.granularity != Granularity::PerRequest;
    let on_demand = settings.granularity == Granularity::OnDemand;
    settings.adaptive && bound && (on_demand || settings.alert.move_sessions)
}

/// The same for a group whose alerts are pulses; without a threshold they come at a fixed
/// interval.
fn pulse(entry: &mut GroupEntry, threshold: Option<Threshold>, now: Instant) {
    let shaping = Shaping::of(&entry.config.strategy);
    let rounds = entry.group.pulses();
    let raised = match threshold {
        Some(threshold) => entry.group.pulse(&shaping, threshold, now),
        None => entry.group.rebind(&shaping, now),
    };
    let new = entry.group.pulses() != rounds;
    let group = entry.group.name();
    let before = std::mem::take(&mut entry.alerts);
    for raised in raised {
        let name = raised.location.name();
        let (load, level) = (raised.load, raised.level);
        let since = match before.get(name) {
            Some(alert) if !new => alert.since,
            _ => {
                let location: &str = name;
                debug!(%group, location, load, threshold = level, "pulse");
                entry.alerts_raised += 1;
                now
            }
        };
        let alert = Alert { since, load, level };
        entry.alerts.insert(Arc::clone(name), alert);
    }
}

/// The locations that are under alert, with who says so, given those that groups have
/// `raised`.
pub(crate) fn alerted(state: &State, raised: impl Iterator<Item = Arc<str>>) -> Alerted {
    let mut alerted: HashMap<_, _> = raised.map(|name| (name, Caller::Group)).collect();
    for (name, on) in &state.inputs.live.alerts {
        match state.locations.get_key_value(name.as_str()) {
            Some((name, _)) if *on => {
                alerted.insert(Arc::clone(name), Caller::Administrator);
            }
            _ => {
                alerted.remove(name.as_str());
            }
        }
    }
    alerted
}

/// Says of each member of a group whether it is to send its clients away, given the
/// locations that are under alert.
///
/// Nobody is bound to a member of a group with granularity per request: its strategy
/// sees the load with every request, and half of the members all at once without any
/// would be worse than the load. Where load does not count, alerts of others do not either.
pub(crate) fn shed(entry: &mut GroupEntry, alerted: &Alerted, now: Instant) {
    let group = Arc::clone(&entry.group);
    let (settings, members) = (group.settings(), group.members());
    let follows =
        settings.rebinds() || settings.adaptive && settings.granularity != Granularity::PerRequest;
    let concerned = follows && !alerted.is_empty();
    let at_one = |member: &Member| alerted.contains_key(member.location.name());
    entry.sheds.clear();
    if !(concerned && members.iter().any(at_one)) {
        for member in members {
            if member.slot.has(Reason::Shedding) && !(follows && member.location.is_shut()) {
                member.slot.set(Reason::Shedding, false);
                entry.opened = Some(now);
            }
        }
        return;
    }
    let pulses = settings.alert.pulses;
    let places = places(entry, now, |member| member.slot.has(Reason::Shedding));
    let caller = |name: &&Arc<str>| alerted.get(*name).copied();
    let callers: Vec<_> = places.names.iter().map(caller).collect();
    let sheds = match settings.rebinds() {
        true => {
            let own = |name: &&Arc<str>| entry.alerts.contains_key(*name);
            places.names.iter().map(own).collect()
        }
        false => analyzer::shed(&settings.alert, &places.sites, &callers),
    };
    let of_member = places.of_member;
    entry.sheds = of_member.iter().map(|&place| sheds[place]).collect();
    for (member, &place) in members.iter().zip(&of_member) {
        // One that was told to shed takes clients again when it has heard otherwise.
        let opens = !sheds[place] && !member.location.is_shut();
        if opens && member.slot.set(Reason::Shedding, false) {
            entry.opened = Some(now);
        }
    }
    // Who binds by pulses waits until the servers have acknowledged.
    if !pulses && entry.opened.is_some_and(|at| now.since(at) < HANDOVER) {
        return;
    }
    for (member, place) in members.iter().zip(of_member) {
        if sheds[place] {
            member.slot.set(Reason::Shedding, true);
        }
    }
}

/// The members at the locations that are under alert.
#[derive(Default)]
pub(crate) struct AllThere(HashMap<Arc<str>, There>);

impl AllThere {
    /// Looks at those of a group.
    pub fn look(&mut self, entry: &GroupEntry, alerted: &Alerted) {
        if alerted.is_empty() {
            return;
        }
        let settings = entry.group.settings();
        let bound = settings.granularity != Granularity::PerRequest;
        let moves = moves(settings);
        for (index, member) in entry.group.members().iter().enumerate() {
            let name = member.location.name();
            if !alerted.contains_key(name) {
                continue;
            }
            let there = self.0.entry(Arc::clone(name)).or_default();
            // Not what its slot says: that waits for the server to be told.
            let is_to = entry.sheds.get(index) == Some(&true);
            let sheds = is_to && member.slot.has(Reason::Shedding);
            let pulses = settings.alert.pulses && entry.alerts.contains_key(name);
            there.sheds |= sheds && moves && !pulses;
            there.pulses |= pulses;
            there.serves |= !sheds && bound && entry.owner.is_some();
        }
    }
}

/// Says of each location what servers there are to be told that clients reach directly.
///
/// A server that sends clients away does so for all its groups. It is told to if members of
/// a group shed there whose clients may be moved, but not while another group has nobody
/// else: its clients would come and go between that server and us.
pub(crate) fn tell(state: &mut State, there: &AllThere, alerted: &Alerted) {
    // All others are told what pulses say.
    let mut names: HashSet<Arc<str>> = std::mem::take(&mut state.told);
    names.extend(there.0.keys().cloned());
    names.extend(alerted.keys().cloned());
    let live = &state.inputs.live.alerts;
    names.extend(live.keys().map(|name| name.as_str().into()));
    for name in names {
        let Some(location) = state.locations.get(&name) else {
            continue;
        };
        let forced = alerted.get(&name) == Some(&Caller::Administrator);
        let tell = match (live.get(&*name), there.0.get(&name)) {
            (Some(false), _) => Tell::Off,
            (_, Some(there)) if there.serves && !there.pulses => Tell::Off,
            (_, Some(there)) if there.sheds && (forced || !there.pulses) => Tell::On,
            // Nobody is there yet, or any more.
            (_, None) if forced => Tell::On,
            _ => Tell::Pulses,
        };
        location.set_tell(tell);
        if tell != Tell::Pulses {
            state.told.insert(name);
        }
    }
}

/// The members at a location that is under alert.
#[derive(Default)]
struct There {
    /// One of a group that moves what is bound sends its clients away.
    sheds: bool,
    /// One is to do so for a moment.
    pulses: bool,
    /// One does not, although clients are bound to it.
    serves: bool,
}

/// How long after one member takes clients again others that are to send theirs away
/// go on taking them. Servers that send clients back hear of the end of an alert over the
/// network. Until then the old way must be open, or clients would be sent around between
/// a server that does not take them yet and the one who sends them there.
pub(crate) const HANDOVER: Duration = Duration::from_secs(1);

/// The locations of a group.
struct Places<'a> {
    names: Vec<&'a Arc<str>>,
    sites: Vec<Site>,
    /// For each member, where in the two others its location is.
    of_member: Vec<usize>,
}

fn places(entry: &GroupEntry, now: Instant, alerted: impl Fn(&Member) -> bool) -> Places<'_> {
    let shaping = Shaping::of(&entry.config.strategy);
    let settings = entry.group.settings();
    let request = Request::at(now);
    let view = entry.group.view(&request).despite_alerts();
    let mut known: HashMap<&Arc<str>, usize> = HashMap::new();
    let mut places = Places {
        names: Vec::new(),
        sites: Vec::new(),
        of_member: Vec::new(),
    };
    for (index, member) in entry.group.members().iter().enumerate() {
        let name = member.location.name();
        let place = *known.entry(name).or_insert_with(|| {
            let load = effective(&member.slot, &member.location, &shaping, settings, now);
            places.names.push(name);
            places.sites.push(Site {
                load: load.map(|effective| effective.load),
                takes_traffic: false,
                alerted: alerted(member),
            });
            places.sites.len() - 1
        });
        places.sites[place].takes_traffic |= view.is_eligible_unless_full(index);
        places.of_member.push(place);
    }
    places
}
