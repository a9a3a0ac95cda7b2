//! Pulses: load alerts that last until those clients have left who are to, and no longer.
//!
//! A CORBA load alert knows on and off only. While it is on, *every* client of the
//! location goes back to the manager with its next request. Left on until the load report
//! shows relief, it empties the location, and the load swings from one location to the
//! next: the oscillation that Othman, O'Ryan and Schmidt describe in "The Design and
//! Performance of an Adaptive CORBA Load Balancing Service" (2001). In a pulse the manager
//! says of each client that comes whether it leaves, and for where, or goes back to where it
//! was; and the alert is lifted as soon as those have left who are to. Then nothing is done
//! until reports show what came of it.
//!
//! Clients whose requests we carry need no alert: each is looked at with its next request,
//! and goes on to where it belongs ([`evenkeel_core::binding`]). All else is the same. That takes three
//! steps.
//!
//! - **Who brings how much?** The load of a location is the sum of what its clients
//!   bring, so what is left over or missing is spread over them. With each move the sums are of
//!   others, and the estimates get better: this is Kaczmarz' method ("Angenäherte Auflösung
//!   von Systemen linearer Gleichungen", 1937) for the linear equations that reports are.
//! - **When?** A location's load exceeds the threshold, and not by chance: the excess is
//!   above what reports differ by while nothing happens. The more reports, the less.
//! - **Who goes where?** From the most loaded location, one client is moved, or two change
//!   places, such that the sum of the squared differences from the mean becomes as small as it can;
//!   and so on. Two large clients at one place and two small ones at another are helped
//!   by an exchange, but by no single move. If nothing helps, nothing is done: one client that
//!   is larger than all the others together cannot be divided.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::alert::Threshold;
use evenkeel_core::effective::Shaping;
use evenkeel_core::group::Group;
use evenkeel_core::load::Location;
use evenkeel_core::member::{Member, MemberId};
use evenkeel_core::relocation::{Client, Relocation};
use evenkeel_core::time::{Instant, millis, millis_since};

use crate::analyzer::{Site, alert_level};
use crate::place::{GroupLocations, Place};

mod departures;
mod plan;

use departures::{Departures, Plan};

/// Least excess that counts, in standard deviations of the reports.
const SIGNIFICANCE: f32 = 2.5;

/// Share of the mean load by which a location may be above it, whatever the threshold.
const CLOSE: f32 = 0.05;

/// Distance of a report from the mean, in standard deviations, from which the report is the first
/// of another load.
const CHANGE: f32 = 6.0;

/// Reports that a mean goes back over at most.
const MEMORY: f32 = 16.0;

/// Time that the effects of a move take to get to where loads are counted: two messages.
const GRACE_MS: u32 = 6;

/// The longest that a pulse lasts: clients that are silent cannot be moved.
const LONGEST: Duration = Duration::from_secs(5);

/// Rounds in a row that may be in vain. Some are: what clients bring must be learned.
const TRIES: u32 = 12;

/// The first pause after a round in which nobody left, or after too many in vain, and the
/// longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// If no client of a location has been told of its pulse for so long, none is there to be told.
const DEAF: Duration = Duration::from_millis(100);

/// The share of a location's load above which strangers are called, and how often at most.
const STRANGE: f32 = 0.2;
const CALL_INTERVAL: Duration = Duration::from_secs(60);

/// State that is remembered of a location.
#[derive(Clone, Debug, Default)]
struct Track {
    /// The last report that was seen; 0 is none.
    at: u32,
    /// Time at which clients were last moved to the location or away, if no report is only from
    /// later.
    moved: Option<u32>,
    /// Mean of the reports since then, and how many these are.
    mean: f32,
    reports: f32,
    /// [`Location::came`] when the round began.
    bound: u32,
    /// Load of clients that nobody knows: they were there before the manager was, or their
    /// connection to it is closed.
    strangers: f32,
    /// Clients that should be known to be there, and [`Location::came`] at that time.
    known: i64,
    counted: u32,
    /// Time at which the location's clients were last called.
    called: Option<Instant>,
}

/// State that a group that pulses keeps from one step to the next.
#[derive(Clone, Debug, Default)]
pub struct Pulses {
    tracks: HashMap<Arc<str>, Track>,
    state: State,
    /// Variance of a report per load, when nothing happens.
    noise: f32,
    rounds: u32,
    /// The last pause, and when it ends.
    pause: Duration,
    until: Option<Instant>,
    /// The smallest excess of late, and how many rounds have not made it smaller.
    best: f32,
    vain: u32,
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Watching,
    Pulsing {
        since: Instant,
        plan: Arc<Plan>,
        level: f32,
    },
    Settling {
        since: Instant,
    },
}

/// A location that has its alert on.
#[derive(Clone, Debug)]
pub struct Raised {
    /// The location.
    pub location: Arc<Location>,
    /// Load of the location when the pulse began.
    pub load: f32,
    /// The level that loads exceeded.
    pub level: f32,
}

impl Pulses {
    /// Takes the next step, some ten times a second or oftener; answers which locations have
    /// their alert on now. For groups with
    /// [`AlertSettings::pulses`](evenkeel_core::alert::AlertSettings::pulses).
    pub fn step(
        &mut self,
        group: &Group,
        shaping: &Shaping,
        threshold: Threshold,
        now: Instant,
    ) -> Vec<Raised> {
        let places = GroupLocations::of_group(group, shaping, now);
        self.read(&places.all);
        if let State::Pulsing { .. } = self.state {
            self.lift(&places.all, now);
        }
        if let State::Settling { since } = self.state {
            let unclear = |place: &Place<'_>| {
                let track = self.tracks.get(place.location.name());
                place.takes_traffic
                    && place.reading.is_some()
                    && track.is_some_and(|track| track.moved.is_some())
            };
            if !places.all.iter().any(unclear) || now.since(since) > group.settings().load_max_age {
                self.state = State::Watching;
                group.state().relocate(None);
                self.judge(group, threshold, &places, true, now);
            }
        } else if let State::Watching = self.state {
            self.judge(group, threshold, &places, false, now);
        }
        self.raised()
    }

    /// Takes the next step for groups that [rebind](evenkeel_core::group::GroupSettings::rebinds)
    /// without looking at loads. The locations take turns. Once in
    /// [`rebind_interval`](evenkeel_core::group::GroupSettings::rebind_interval), each location has
    /// a pulse in which half of the clients that are known to be there are bound anew, and
    /// elsewhere. If all were, one location would always be empty, and clients that come to a
    /// location just before its turn would leave at once; with half, each client is rebound about
    /// once in an interval.
    pub fn take_turn(&mut self, group: &Group, shaping: &Shaping, now: Instant) -> Vec<Raised> {
        let places = GroupLocations::of_group(group, shaping, now);
        self.read(&places.all);
        let taking = places
            .all
            .iter()
            .filter(|place| place.takes_traffic)
            .count() as u32;
        let between = group.settings().rebind_interval / taking.max(1);
        if let State::Pulsing { since, plan, .. } = &self.state {
            let took = now.since(*since);
            for place in &places.all {
                let others = taking - u32::from(place.takes_traffic);
                let deaf = took >= DEAF && !place.location.is_shut();
                if (others == 0 || deaf || took >= between.min(LONGEST))
                    && let Some(departures) = plan.departures_at(place.location)
                {
                    departures.end_pulse(now);
                }
            }
            if plan.active_pulses().next().is_none() {
                self.state = State::Settling { since: now };
            }
        }
        if let State::Settling { since } = self.state
            && now.since(since) > 2 * DEAF
            && !places.all.iter().any(|place| place.location.is_shut())
        {
            // Nobody comes any more who was sent away before.
            self.state = State::Watching;
            group.state().relocate(None);
        }
        let until = *self.until.get_or_insert(now.after(between));
        let until = until.min(now.after(between));
        self.until = Some(until);
        if now >= until && !matches!(self.state, State::Pulsing { .. }) {
            self.until = Some(until.after(between).max(now));
            if let Some(plan) = self.next(group, &places, now) {
                self.begin(group, &places.all, plan, 0.0, now);
            }
        }
        self.raised()
    }

    /// Ends what was begun, if anything.
    pub fn end_pulses(&mut self, group: &Group) {
        if group.state().is_relocating() {
            group.state().relocate(None);
            *self = Pulses::default();
        }
    }

    /// Rounds of pulses so far.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Rebinds clients of the location whose turn was longest ago.
    fn next(&mut self, group: &Group, places: &GroupLocations<'_>, now: Instant) -> Option<Plan> {
        let GroupLocations { all, of_member } = places;
        let free = |place: &Place<'_>| {
            place.takes_traffic && !place.location.is_shut() && !place.location.has_pulse()
        };
        let free = (0..all.len()).filter(|&index| free(&all[index]));
        let free: Vec<usize> = free.collect();
        if free.len() < 2 {
            return None;
        }
        let called = |&index: &usize| {
            let track = self.tracks.get(all[index].location.name());
            track.and_then(|track| track.called)
        };
        let next = free.iter().copied().min_by_key(called)?;
        let location = all[next].location;
        self.tracks.get_mut(location.name())?.called = Some(now);
        let there = group.members().iter().zip(of_member);
        let ids = there.filter(|&(_, &place)| place == next);
        let ids: Vec<MemberId> = ids.map(|(member, _)| member.id).collect();
        let clients = group.state().list_clients();
        let bound = clients.iter().filter_map(|client| client.member());
        let bound = bound.filter(|id| ids.contains(id)).count();
        let wanted = bound.div_ceil(2);
        Some(Plan::rebinding(location, wanted as u32, *ids.first()?))
    }

    fn raised(&self) -> Vec<Raised> {
        match &self.state {
            State::Pulsing { plan, level, .. } => plan
                .active_pulses()
                .map(|(location, load)| Raised {
                    location: Arc::clone(location),
                    load,
                    level: *level,
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Digests new reports.
    fn read(&mut self, places: &[Place<'_>]) {
        let known = |name: &Arc<str>| places.iter().any(|p| p.location.name() == name);
        if self.tracks.len() > places.len() {
            self.tracks.retain(|name, _| known(name));
        }
        for place in places {
            let name = place.location.name();
            if !self.tracks.contains_key(name) {
                self.tracks.insert(Arc::clone(name), Track::default());
            }
            let (Some(track), Some((load, at))) = (self.tracks.get_mut(name), place.reading) else {
                continue;
            };
            let before = std::mem::replace(&mut track.at, at);
            // It is not known since when the first report counts.
            if before != at && before != 0 {
                track.report(load, before, &mut self.noise);
            }
        }
    }

    /// Begins a round, if one is needed and helps.
    fn judge(
        &mut self,
        group: &Group,
        threshold: Threshold,
        places: &GroupLocations<'_>,
        learn: bool,
        now: Instant,
    ) {
        let all = &places.all;
        let sites: Vec<Site> = all.iter().map(|place| self.site(place)).collect();
        let loads = sites.iter().filter(|site| site.takes_traffic);
        let loads: Vec<f32> = loads.filter_map(|site| site.load).collect();
        if loads.len() < 2 {
            return;
        }
        // A location near the mean has nowhere to send clients: all others are about as loaded.
        let mean = loads.iter().sum::<f32>() / loads.len() as f32;
        let mut level = alert_level(threshold, &sites).max(mean * (1.0 + CLOSE));
        // The load of each that takes traffic, and how far it may be off by chance.
        let known = |(site, place): (&Site, &Place<'_>)| {
            let track = self.tracks.get(place.location.name())?;
            let load = site.load.filter(|_| site.takes_traffic)?;
            let variance = self.noise * load / track.reports.max(1.0);
            Some((load, SIGNIFICANCE * variance.sqrt()))
        };
        let known: Vec<_> = sites.iter().zip(all).map(known).collect();
        let above =
            |known: &Option<(f32, f32)>| known.is_some_and(|(load, off)| load > level + off);
        let mut critical: Vec<bool> = known.iter().map(above).collect();
        let low = 2.0 * mean - level;
        let below = known.iter().flatten().any(|(load, off)| load + off < low);
        if matches!(threshold, Threshold::AboveAverage(_)) && below {
            // One with too little is a difference, too, and all above the mean can help.
            level = mean;
            critical = known
                .iter()
                .map(|k| k.is_some_and(|(load, _)| load > mean))
                .collect();
        }
        if !critical.contains(&true) {
            (self.vain, self.pause) = (0, Duration::ZERO);
            if !learn {
                return;
            }
        }
        let clients = group.state().list_clients();
        let at = self.learn(group, &clients, &sites, places);
        let early = self.until.is_some_and(|until| now < until);
        if !critical.contains(&true) || early {
            return;
        }
        if let Some(plan) = self.roll_call(group, places, now) {
            return self.begin(group, all, plan, level, now);
        }
        let strangers = |place: &Place<'_>| {
            let track = self.tracks.get(place.location.name());
            track.map_or(0.0, |track| track.strangers)
        };
        let strangers: Vec<f32> = all.iter().map(strangers).collect();
        let Some(plan) = plan::make_plan(group, places, &sites, &critical, level, &at, &strangers)
        else {
            return;
        };
        let excess = sites
            .iter()
            .filter_map(|site| site.load)
            .fold(0.0, f32::max)
            - mean;
        if self.vain == 0 || excess < 0.8 * self.best {
            (self.best, self.vain) = (excess, 0);
        }
        self.vain += 1;
        if self.vain > TRIES {
            self.wait(now);
        }
        self.begin(group, all, plan, level, now);
    }

    /// Puts off the next round.
    fn wait(&mut self, now: Instant) {
        self.pause = (2 * self.pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.until = Some(now.after(self.pause));
    }

    fn begin(&mut self, group: &Group, places: &[Place<'_>], plan: Plan, level: f32, now: Instant) {
        let plan = Arc::new(plan);
        for place in places {
            if let Some(track) = self.tracks.get_mut(place.location.name()) {
                track.bound = place.location.came();
            }
        }
        self.rounds = self.rounds.wrapping_add(1);
        plan.begin_pulses();
        group
            .state()
            .relocate(Some(Arc::clone(&plan) as Arc<dyn Relocation>));
        self.state = State::Pulsing {
            since: now,
            plan,
            level,
        };
    }

    /// Calls the clients of a location where many are strangers.
    fn roll_call(
        &mut self,
        group: &Group,
        places: &GroupLocations<'_>,
        now: Instant,
    ) -> Option<Plan> {
        for (index, place) in places.all.iter().enumerate() {
            let track = self.tracks.get_mut(place.location.name())?;
            let lately = track.called.is_some_and(|at| now.since(at) < CALL_INTERVAL);
            let strange = track.strangers > STRANGE * track.mean;
            let takes = place.takes_traffic && place.reading.is_some();
            if !takes || lately || !strange || place.location.is_shut() {
                continue;
            }
            let member = places.member_at(group, index)?;
            track.called = Some(now);
            // Those who do not come bring little, or are found next time.
            track.strangers = 0.0;
            return Some(Plan::calling(place.location, track.mean, member));
        }
        None
    }

    /// Spreads what is left over or missing of each location's load over its clients;
    /// answers who is where.
    fn learn(
        &mut self,
        group: &Group,
        clients: &[Arc<Client>],
        sites: &[Site],
        places: &GroupLocations<'_>,
    ) -> Vec<Vec<Arc<Client>>> {
        let ids: HashMap<MemberId, usize> = group
            .members()
            .iter()
            .zip(&places.of_member)
            .map(|(member, &place)| (member.id, place))
            .collect();
        let mut at = vec![Vec::new(); sites.len()];
        for client in clients {
            if let Some(&place) = client.member().and_then(|id| ids.get(&id)) {
                at[place].push(Arc::clone(client));
            }
        }
        let (mut sum, mut count) = (0.0, 0usize);
        for ((site, place), there) in sites.iter().zip(&places.all).zip(&at) {
            let (Some(load), Some(track)) = (site.load, self.tracks.get_mut(place.location.name()))
            else {
                continue;
            };
            let came = place.location.came().wrapping_sub(track.counted);
            track.counted = place.location.came();
            track.known += i64::from(came);
            track.learn(load, there);
            sum += load - track.strangers;
            count += there.len();
        }
        // What clients bring that we carry ourselves is counted by request.
        let forwards = |member: &Member| member.slot.record().assigned() > 0;
        if group.members().iter().any(forwards) {
            group.state().set_client_load(sum / count.max(1) as f32);
        }
        at
    }

    fn site(&self, place: &Place<'_>) -> Site {
        let track = self.tracks.get(place.location.name());
        let load = track.filter(|track| track.reports > 0.0 && place.reading.is_some());
        Site {
            load: load.map(|track| track.mean),
            takes_traffic: place.takes_traffic,
            alerted: false,
        }
    }

    /// Ends pulses that have done their work, or cannot.
    fn lift(&mut self, places: &[Place<'_>], now: Instant) {
        let State::Pulsing { since, plan, level } = &self.state else {
            return;
        };
        for place in places {
            let late = now.since(*since) >= LONGEST;
            let fallen = place.reading.is_none_or(|(load, at)| {
                u128::from(millis_since(at, now)) < now.since(*since).as_millis() && load <= *level
            });
            if (late || fallen || !place.takes_traffic)
                && let Some(departures) = plan.departures_at(place.location)
            {
                departures.end_pulse(now);
            }
        }
        if plan.active_pulses().next().is_some() {
            return;
        }
        let mut all = 0;
        let ended = plan.moved_at().unwrap_or(millis(now));
        for place in places {
            if let Some(track) = self.tracks.get_mut(place.location.name()) {
                let came = place.location.came() != track.bound;
                let left = plan
                    .departures_at(place.location)
                    .map_or(0, Departures::count_left);
                if came || left > 0 {
                    track.moved = Some(ended);
                }
                track.known -= i64::from(left);
                all += left;
            }
        }
        if let Some(location) = plan.roll_call_location() {
            // Clients waited, and so their requests are fewer than usual.
            if let Some(track) = self.tracks.get_mut(location.name()) {
                track.moved = Some(millis(now));
            }
        } else if all == 0 {
            self.wait(now);
        } else if self.vain <= TRIES {
            self.pause = Duration::ZERO;
        }
        self.state = State::Settling { since: now };
    }
}

impl Track {
    /// Spreads what is left over or missing of `load` over the clients `there`.
    fn learn(&mut self, load: f32, there: &[Arc<Client>]) {
        let known: f32 = there
            .iter()
            .filter_map(|client| client.estimated_load())
            .sum();
        let error = load - known - self.strangers;
        let new = there
            .iter()
            .filter(|client| client.estimated_load().is_none());
        let (new, old) = (new.count(), there.len());
        let gone = self.known > old as i64;
        self.known = old as i64;
        if new > 0 {
            // What is not explained by others is taken to be theirs.
            for client in there
                .iter()
                .filter(|client| client.estimated_load().is_none())
            {
                client.set_load((error / new as f32).max(0.0));
            }
        } else if there.is_empty() || gone && error > 0.0 {
            self.strangers = (self.strangers + error).max(0.0);
        } else {
            let all = old + usize::from(self.strangers > 0.0);
            let share = error / all as f32;
            for client in there {
                client.set_load((client.estimated_load().unwrap_or(0.0) + share).max(0.0));
            }
            if self.strangers > 0.0 {
                self.strangers = (self.strangers + share).max(0.0);
            }
        }
    }

    fn report(&mut self, load: f32, before: u32, noise: &mut f32) {
        if let Some(moved) = self.moved {
            // A report counts what there was since the one before.
            let begun = before.wrapping_sub(moved.wrapping_add(GRACE_MS));
            if begun > u32::MAX / 2 {
                return;
            }
            self.moved = None;
            self.reports = 0.0;
        }
        let error = load - self.mean;
        let deviation = (*noise * self.mean).sqrt().max(0.02 * self.mean);
        // Far from the mean: the load is another one.
        let changed = self.reports >= 4.0 && error.abs() > CHANGE * deviation;
        if self.reports == 0.0 || changed {
            (self.mean, self.reports) = (load, 1.0);
            return;
        }
        let base = self.mean.max(load);
        if base > 0.0 {
            let sample = error * error * self.reports / (self.reports + 1.0) / base;
            *noise += (sample - *noise) * 0.05;
        }
        self.reports = (self.reports + 1.0).min(MEMORY);
        self.mean += error / self.reports;
    }
}
