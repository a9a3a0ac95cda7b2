//! Load alerts: raised by groups or by an administrator, and what they mean for each
//! member of each group.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::alert::Threshold;
use evenkeel_core::effective::Shaping;
use evenkeel_core::group::{Granularity, Group, GroupSettings};
use evenkeel_core::load::{Location, SheddingOrder};
use evenkeel_core::member::{Member, Reason};
use evenkeel_core::time::Instant;

use crate::analyzer::{self, Caller, Site};
use crate::event::Event;
use crate::outlier::{AnnouncedEjections, PeerEjection};
use crate::place::GroupLocations;
use crate::pulse::Pulses;

/// An alert that a group has raised for a location.
#[derive(Clone, Debug)]
pub struct Alert {
    /// Time at which the alert was raised.
    pub since: Instant,
    /// The effective load at that time.
    pub load: f32,
    /// The level that it had exceeded.
    pub level: f32,
}

/// Locations under alert, with who says so.
pub type AlertedLocations = HashMap<Arc<str>, Caller>;

/// Council of the other balancers that have the same groups. For each group one balancer decides
/// upon alerts, and the others heed it. Upon ejections each balancer decides by itself, and hears
/// what the others have seen. What a balancer has learnt of members is a first guess for balancers
/// that know nothing.
///
/// An alert that is a pulse is each balancer's own: it ends when so many of its clients have left as it
/// has planned.
pub trait FleetExchange: Send + Sync {
    /// Returns for each location of a group, true if it is under alert. `None` if this balancer
    /// decides by itself.
    fn settle(&self, proposal: &Proposal<'_>) -> Option<Vec<bool>>;

    /// Tells the others which members this balancer has ejected, and answers which they have, with the
    /// members' places.
    fn tell(&self, told: &AnnouncedEjections<'_>) -> Vec<(usize, PeerEjection)>;

    /// Tells the others how long requests take at the members of a group, and has members of which nothing is
    /// known here begin with what others say.
    fn learn(&self, group: &Group, now: Instant);

    /// Tells the others the loads that this balancer reads for all, and takes over those that another one does.
    fn share_loads(&self, group: &Group, now: Instant);
}

/// Alerts that this balancer proposes for a group.
#[derive(Debug)]
pub struct Proposal<'a> {
    /// The group's name.
    pub group: &'a str,
    /// Locations of the group.
    pub locations: &'a [Arc<str>],
    /// Locations that should be under alert, as indices into `locations`, the most loaded first.
    pub alert_candidates: &'a [usize],
    /// For each location, true if it is under alert now.
    pub raised: &'a [bool],
    /// Number of locations that may be under alert.
    pub allowed: usize,
    /// Time of the proposal.
    pub now: Instant,
}

/// Locations by name.
pub type Locations = HashMap<Arc<str>, Arc<Location>>;

/// Alerts that an administrator has forced (`true`) or suppressed (`false`), by location.
pub type Forced = HashMap<String, bool>;

/// The load alerts of a group.
#[derive(Clone, Debug, Default)]
pub struct Alerts {
    raised: HashMap<Arc<str>, Alert>,
    count: u64,
    pulses: Pulses,
    /// Time at which a member that had sent clients away last took clients again.
    opened: Option<Instant>,
    /// For each member of the group, true if it is to send its clients away. The member's slot may
    /// still say so when this is false: as long as its server does not know.
    sheds: Vec<bool>,
}

impl Alerts {
    /// The locations that the group has under alert.
    pub fn raised(&self) -> &HashMap<Arc<str>, Alert> {
        &self.raised
    }

    /// Returns the number of alerts that the group has ever raised.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Goes on with an alert that another process has raised.
    pub fn go_on(&mut self, location: Arc<str>, alert: Alert) {
        self.raised.insert(location, alert);
        self.count += 1;
    }

    /// Returns the state that is kept when the group has other members.
    pub(crate) fn next(&self) -> Self {
        Alerts {
            sheds: Vec::new(),
            ..self.clone()
        }
    }

    /// Brings the alerts that the group raises up to date.
    pub(crate) fn update_raised(
        &mut self,
        group: &Group,
        shaping: &Shaping,
        council: Option<&dyn FleetExchange>,
        now: Instant,
        act: &mut impl FnMut(Event),
    ) {
        let settings = group.settings();
        if settings.rebinds() {
            return self.pulse(group, shaping, None, now, act);
        }
        let own = group.alert_threshold();
        let threshold = settings.alert.threshold.or(own);
        let Some(threshold) = threshold.filter(|_| settings.adaptive) else {
            self.raise_none(group, council, now);
            self.pulses.end_pulses(group);
            return;
        };
        if settings.alert.pulses && moves(settings) {
            return self.pulse(group, shaping, Some(threshold), now, act);
        }
        self.pulses.end_pulses(group);
        if settings.alert.pulses {
            self.raise_none(group, council, now);
            return;
        }
        let places = GroupLocations::of_group(group, shaping, now);
        let sites = places.sites(|place| self.raised.contains_key(place.location.name()));
        let wanted = if analyzer::is_negligible(threshold, settings.load_id, &sites) {
            vec![false; sites.len()]
        } else {
            analyzer::choose_alerted(threshold, &settings.alert, &sites)
        };
        let wanted = settle(group, council, &places, &sites, wanted, now);
        let level = analyzer::alert_level(threshold, &sites);
        let mut before = std::mem::take(&mut self.raised);
        for ((place, site), wanted) in places.all.iter().zip(&sites).zip(wanted) {
            let location = Arc::clone(place.location.name());
            match (before.remove(&location), wanted) {
                (None, true) => {
                    let load = site.load.unwrap_or(0.0);
                    act(Event::AlertRaised {
                        location: Arc::clone(&location),
                        load,
                        level,
                        is_pulse: false,
                    });
                    let since = now;
                    self.raised.insert(location, Alert { since, load, level });
                    self.count += 1;
                }
                (Some(alert), true) => {
                    self.raised.insert(location, alert);
                }
                (Some(alert), false) => act(Event::AlertLifted {
                    location,
                    load: site.load,
                    level,
                    after: now.since(alert.since),
                }),
                (None, false) => {}
            }
        }
    }

    /// Does the same for a group that raises no alerts. If this balancer decides, others are told
    /// that there are none.
    fn raise_none(&mut self, group: &Group, council: Option<&dyn FleetExchange>, now: Instant) {
        self.raised.clear();
        if let Some(council) = council {
            council.settle(&Proposal {
                group: group.name(),
                locations: &[],
                alert_candidates: &[],
                raised: &[],
                allowed: 0,
                now,
            });
        }
    }

    /// Does the same for a group whose alerts are pulses. Without a threshold the pulses come at a
    /// fixed interval.
    fn pulse(
        &mut self,
        group: &Group,
        shaping: &Shaping,
        threshold: Option<Threshold>,
        now: Instant,
        act: &mut impl FnMut(Event),
    ) {
        let rounds = self.pulses.rounds();
        let raised = match threshold {
            Some(threshold) => self.pulses.step(group, shaping, threshold, now),
            None => self.pulses.take_turn(group, shaping, now),
        };
        let new = self.pulses.rounds() != rounds;
        let before = std::mem::take(&mut self.raised);
        for raised in raised {
            let name = raised.location.name();
            let (load, level) = (raised.load, raised.level);
            let since = match before.get(name) {
                Some(alert) if !new => alert.since,
                _ => {
                    act(Event::AlertRaised {
                        location: Arc::clone(name),
                        load,
                        level,
                        is_pulse: true,
                    });
                    self.count += 1;
                    now
                }
            };
            let alert = Alert { since, load, level };
            self.raised.insert(Arc::clone(name), alert);
        }
    }

    /// Says of each member of the group whether it is to send its clients away, given the
    /// locations that are under alert.
    ///
    /// Nobody is bound to a member of a group with granularity per request: its strategy
    /// sees the load with every request, and half of the members all at once without any
    /// would be worse than the load. Where load does not count, alerts of others do not either.
    pub(crate) fn mark_shedding(
        &mut self,
        group: &Group,
        shaping: &Shaping,
        alerted: &AlertedLocations,
        now: Instant,
    ) {
        let (settings, members) = (group.settings(), group.members());
        let follows = settings.rebinds()
            || settings.adaptive && settings.granularity != Granularity::PerRequest;
        let concerned = follows && !alerted.is_empty();
        let at_one = |member: &Member| alerted.contains_key(member.location.name());
        self.sheds.clear();
        if !(concerned && members.iter().any(at_one)) {
            for member in members {
                if member.slot.has_reason(Reason::Shedding)
                    && !(follows && member.location.is_shut())
                {
                    member.slot.set(Reason::Shedding, false);
                    self.opened = Some(now);
                }
            }
            return;
        }
        let pulses = settings.alert.pulses;
        let places = GroupLocations::of_group(group, shaping, now);
        let sheds: Vec<bool> = if settings.rebinds() {
            let names = places.all.iter().map(|place| place.location.name());
            names.map(|name| self.raised.contains_key(name)).collect()
        } else {
            let sites = places.sites(|place| place.first.slot.has_reason(Reason::Shedding));
            let names = places.all.iter().map(|place| place.location.name());
            let callers: Vec<_> = names.map(|name| alerted.get(name).copied()).collect();
            analyzer::choose_shedding(&settings.alert, &sites, &callers)
        };
        self.sheds
            .extend(places.of_member.iter().map(|&place| sheds[place]));
        for (member, &sheds) in members.iter().zip(&self.sheds) {
            // One that was told to shed takes clients again when it has heard otherwise.
            let opens = !sheds && !member.location.is_shut();
            if opens && member.slot.set(Reason::Shedding, false) {
                self.opened = Some(now);
            }
        }
        // Who binds by pulses waits until the servers have acknowledged.
        if !pulses && self.opened.is_some_and(|at| now.since(at) < HANDOVER) {
            return;
        }
        for (member, _) in members.iter().zip(&self.sheds).filter(|(_, sheds)| **sheds) {
            member.slot.set(Reason::Shedding, true);
        }
    }
}

/// Decides which of a group's sites are to be under alert, where this balancer would have it as
/// `wanted`.
fn settle(
    group: &Group,
    council: Option<&dyn FleetExchange>,
    places: &GroupLocations<'_>,
    sites: &[Site],
    wanted: Vec<bool>,
    now: Instant,
) -> Vec<bool> {
    let Some(council) = council else {
        return wanted;
    };
    let names = places
        .all
        .iter()
        .map(|place| Arc::clone(place.location.name()));
    let locations: Vec<Arc<str>> = names.collect();
    let marked = wanted.iter().enumerate().filter(|(_, wanted)| **wanted);
    let mut places: Vec<usize> = marked.map(|(place, _)| place).collect();
    let load = |place: usize| sites.get(place).and_then(|site| site.load).unwrap_or(0.0);
    places.sort_by(|&a, &b| load(b).total_cmp(&load(a)));
    let raised: Vec<bool> = sites.iter().map(|site| site.alerted).collect();
    let proposal = Proposal {
        group: group.name(),
        locations: &locations,
        alert_candidates: &places,
        raised: &raised,
        allowed: analyzer::count_allowed(&group.settings().alert, sites),
        now,
    };
    council.settle(&proposal).unwrap_or(wanted)
}

/// Returns true if alerts move clients of the group that are already bound.
fn moves(settings: &GroupSettings) -> bool {
    let bound = settings.granularity != Granularity::PerRequest;
    let on_demand = settings.granularity == Granularity::OnDemand;
    settings.adaptive && bound && (on_demand || settings.alert.move_sessions)
}

/// The locations that are under alert, with who says so, given those that groups have
/// `raised`.
pub fn collect_alerted(
    raised: impl Iterator<Item = Arc<str>>,
    locations: &Locations,
    forced: &Forced,
) -> AlertedLocations {
    let mut alerted: AlertedLocations = raised.map(|name| (name, Caller::Group)).collect();
    for (name, on) in forced {
        match locations.get_key_value(name.as_str()) {
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

/// The members at the locations that are under alert.
#[derive(Debug, Default)]
pub(crate) struct AllAlertedMembers(HashMap<Arc<str>, AlertedMembers>);

impl AllAlertedMembers {
    /// Looks at those of a group.
    pub(crate) fn look(
        &mut self,
        group: &Group,
        alerts: &Alerts,
        is_owned: bool,
        alerted: &AlertedLocations,
    ) {
        if alerted.is_empty() {
            return;
        }
        let settings = group.settings();
        let bound = settings.granularity != Granularity::PerRequest;
        let moves = moves(settings);
        for (index, member) in group.members().iter().enumerate() {
            let name = member.location.name();
            if !alerted.contains_key(name) {
                continue;
            }
            let there = self.0.entry(Arc::clone(name)).or_default();
            // Not what its slot says: that waits for the server to be told.
            let is_to = alerts.sheds.get(index) == Some(&true);
            let sheds = is_to && member.slot.has_reason(Reason::Shedding);
            let pulses = settings.alert.pulses && alerts.raised.contains_key(name);
            there.sheds |= sheds && moves && !pulses;
            there.pulses |= pulses;
            there.serves |= !sheds && bound && is_owned;
        }
    }
}

/// Says of each location what servers there are to be told that clients reach directly.
///
/// A server that sends clients away does so for all its groups. It is told to if members of
/// a group shed there whose clients may be moved, but not while another group has nobody
/// else: its clients would come and go between that server and us.
pub(crate) fn tell_locations(
    there: &AllAlertedMembers,
    alerted: &AlertedLocations,
    locations: &Locations,
    forced: &Forced,
    told: &mut HashSet<Arc<str>>,
) {
    // All others are told what pulses say.
    let mut names: HashSet<Arc<str>> = std::mem::take(told);
    names.extend(there.0.keys().cloned());
    names.extend(alerted.keys().cloned());
    names.extend(forced.keys().map(|name| name.as_str().into()));
    for name in names {
        let Some(location) = locations.get(&name) else {
            continue;
        };
        let is_forced = alerted.get(&name) == Some(&Caller::Administrator);
        let tell = match (forced.get(&*name), there.0.get(&name)) {
            (Some(false), _) => SheddingOrder::Off,
            (_, Some(there)) if there.serves && !there.pulses => SheddingOrder::Off,
            (_, Some(there)) if there.sheds && (is_forced || !there.pulses) => SheddingOrder::On,
            // Nobody is there yet, or any more.
            (_, None) if is_forced => SheddingOrder::On,
            _ => SheddingOrder::Pulses,
        };
        location.set_tell(tell);
        if tell != SheddingOrder::Pulses {
            told.insert(name);
        }
    }
}

/// The members at a location that is under alert.
#[derive(Debug, Default)]
struct AlertedMembers {
    /// True if a group that moves bound clients sends its clients away from the location.
    sheds: bool,
    /// True if a group is to send its clients away for a moment.
    pulses: bool,
    /// True if a group does not send its clients away, although clients are bound to the location.
    serves: bool,
}

/// Time for which members that are to send their clients away go on taking them, after another
/// member takes clients again. Servers that send clients back hear of the end of an alert over the
/// network. Until then the old way must be open. Otherwise clients would be sent around between a
/// server that does not take them yet and the server that sends them there.
pub const HANDOVER: Duration = Duration::from_secs(1);
