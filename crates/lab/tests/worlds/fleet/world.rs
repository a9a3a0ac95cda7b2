//! A fleet of balancers in virtual time: the state machines of [`evenkeel_gossip`] as they are, on a
//! network that delays and loses datagrams, with balancers that are killed, restart and are cut off.
//!
//! Members are there as loads, which all balancers can read; the owner of a group decides with the product's analyzer,
//! ten times a second. Clients are not played: the test measures how soon all know of an alert, how soon another
//! balancer takes over, whether there are ever too many alerts at the same time, and the traffic on the network.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use evenkeel_control::analyzer::{self, Site};
use evenkeel_core::alert::{AlertSettings, Threshold};
use evenkeel_core::time::Instant;
use evenkeel_gossip::{Fleet, Id, Role, Settings, name_key};
use evenkeel_wire::reporting::keys::{Key, Keys, KeysError};

use evenkeel_sim::engine::{Engine, World, draw_exponential, duration_nanos, run};

/// Parameters of the world.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Number of balancers.
    pub balancers: usize,
    /// Number of groups.
    pub groups: usize,
    /// Number of locations of each group.
    pub locations: usize,
    /// Settings of when an alert is raised and how many there may be.
    pub alerts: AlertSettings,
    /// Mean time after which the load of each location becomes another one, at random.
    pub restless: Duration,
    /// Time before the end in which loads stay as they are: while loads change, balancers do not all have the same
    /// alerts.
    pub calm: Duration,
    /// Mean time that a datagram takes.
    pub delay: Duration,
    /// The share of datagrams that are lost.
    pub loss: f64,
    /// Duration of the run.
    pub time: Duration,
    /// Faults, and when they happen.
    pub faults: Vec<(Duration, Fault)>,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A balancer is killed.
    Kill(usize),
    /// The one that decides upon this group is killed.
    KillHolder(usize),
    /// All that were killed start again; their clocks show anything.
    Restart,
    /// Number of balancers, from the first one on, that are cut off from the others.
    Part(usize),
    /// The parts are no longer cut off.
    Heal,
    /// The clock of a balancer jumps forward, as after its machine has stood still.
    Step(usize, Duration),
    /// The measurement of the traffic begins anew.
    Measure,
    /// The least loaded location of this group gets a load that is too high.
    Rise(usize),
}

/// Results of the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// Time at which every group first had an owner.
    pub agreed: Option<Duration>,
    /// For each [`Fault::Rise`]: how long it took until the last balancer knew of the alert.
    pub rises: Vec<Duration>,
    /// For each [`Fault::KillHolder`]: how long it took until another one decided.
    pub takeovers: Vec<Duration>,
    /// Number of times that a group had more of its locations under alert anywhere than it may,
    /// while no part of the fleet was cut off.
    pub too_many: u64,
    /// Time at which a group first had too many.
    pub too_many_at: Option<Duration>,
    /// Alerts that were raised.
    pub raised: u64,
    /// For each balancer, bytes that it sent in a second since the last [`Fault::Measure`], with
    /// the headers of IP and UDP.
    pub sent: Vec<f64>,
    /// For each balancer, bytes that it received in a second since the last [`Fault::Measure`],
    /// with the headers of IP and UDP.
    pub received: Vec<f64>,
    /// True if, at the end, all balancers that are up have the same alerts, and each group has one owner.
    pub agrees: bool,
}

/// Time after a cut has healed in which there may be too many alerts: the alerts of both sides, until all know the
/// owner.
const HEALING: Duration = Duration::from_secs(5);

/// A round of control.
const ROUND: Duration = Duration::from_millis(100);

/// Interval at which the fleet is looked at from above.
const LOOK: Duration = Duration::from_millis(10);

enum Event {
    Poll(usize, u64),
    Round(usize, u64),
    Arrive(usize, Vec<u8>),
    Restless,
    Fault(usize),
    Look,
    End,
}

/// A balancer on its machine. Its clock began at a moment of its own.
struct Balancer {
    fleet: Option<Fleet>,
    ahead: Duration,
    /// Number of times that the balancer has been started: events of an earlier life are none of
    /// this one.
    life: u64,
    /// Locations that the balancer was last seen to have under alert, by group.
    seen: HashMap<usize, BTreeSet<u64>>,
    version: u64,
    sent: u64,
    received: u64,
}

struct Playing {
    plan: Plan,
    engine: Engine<Event>,
    rng: fastrand::Rng,
    keys: Keys,
    names: Vec<String>,
    /// Numbers of locations, by group.
    locations: Vec<Vec<u64>>,
    loads: Vec<Vec<f32>>,
    balancers: Vec<Balancer>,
    places: HashMap<SocketAddr, usize>,
    cut: Option<usize>,
    calm_from: u64,
    /// Number of balancers that have each location under alert.
    under: Vec<HashMap<u64, u32>>,
    rising: Vec<(usize, u64, u64)>,
    killed: Vec<(usize, u64)>,
    measured_from: u64,
    report: Report,
}

/// Plays it.
///
/// # Errors
///
/// None: the key of the fleet is a good one.
pub(crate) fn play_plan(plan: Plan) -> Result<Report, KeysError> {
    let keys = Keys::new(vec![Key::new(1, &[7; 32])?])?;
    let mut rng = fastrand::Rng::with_seed(plan.seed);
    let names: Vec<String> = (0..plan.groups).map(|n| format!("group-{n}")).collect();
    let location = |group: &String, n| name_key(&format!("{group}/{n}"));
    let locations: Vec<Vec<u64>> = names
        .iter()
        .map(|group| (0..plan.locations).map(|n| location(group, n)).collect())
        .collect();
    let loads: Vec<Vec<f32>> = (0..plan.groups)
        .map(|_| (0..plan.locations).map(|_| rng.f32() * 0.5).collect())
        .collect();
    let balancers: Vec<Balancer> = (0..plan.balancers)
        .map(|_| Balancer {
            fleet: None,
            ahead: Duration::from_secs(rng.u64(0..1_000_000)),
            life: 0,
            seen: HashMap::new(),
            version: 0,
            sent: 0,
            received: 0,
        })
        .collect();
    let mut world = Playing {
        engine: Engine::new(duration_nanos(ROUND)),
        keys,
        locations,
        loads,
        balancers,
        places: (0..plan.balancers).map(|n| (address(n), n)).collect(),
        cut: None,
        calm_from: 0,
        under: vec![HashMap::new(); plan.groups],
        rising: Vec::new(),
        killed: Vec::new(),
        measured_from: 0,
        report: Report::default(),
        names,
        rng,
        plan,
    };
    for number in 0..world.plan.balancers {
        world.start(number);
    }
    for (fault, (at, _)) in world.plan.faults.iter().enumerate() {
        world
            .engine
            .schedule_after(duration_nanos(*at), Event::Fault(fault));
    }
    world.stir_later();
    world
        .engine
        .schedule_after(duration_nanos(LOOK), Event::Look);
    world
        .engine
        .schedule_after(duration_nanos(world.plan.time), Event::End);
    run(&mut world);
    Ok(world.report)
}

fn address(number: usize) -> SocketAddr {
    let host = u32::try_from(number).unwrap_or(u32::MAX).saturating_add(1);
    (Ipv4Addr::from_bits(0x0A00_0000 | host), 7400).into()
}

impl World for Playing {
    type Event = Event;

    fn engine(&mut self) -> &mut Engine<Event> {
        &mut self.engine
    }

    fn happen(&mut self, event: Event) -> bool {
        match event {
            Event::Poll(number, life) => {
                if self.balancers[number].life == life {
                    self.poll(number);
                }
            }
            Event::Round(number, life) => {
                if self.balancers[number].life == life {
                    self.round(number);
                    self.engine
                        .schedule_after(duration_nanos(ROUND), Event::Round(number, life));
                }
            }
            Event::Arrive(number, datagram) => {
                let now = self.clock(number);
                let balancer = &mut self.balancers[number];
                if let Some(fleet) = &mut balancer.fleet {
                    fleet.receive_datagram(&datagram, now);
                    self.send(number);
                }
            }
            Event::Restless => {
                if self.engine.elapsed_nanos() as f64
                    > duration_nanos(self.plan.time.saturating_sub(self.plan.calm))
                {
                    return true;
                }
                let group = self.rng.usize(..self.plan.groups);
                let location = self.rng.usize(..self.plan.locations);
                self.loads[group][location] = self.rng.f32();
                self.stir_later();
            }
            Event::Fault(fault) => self.fault(self.plan.faults[fault].1),
            Event::Look => {
                self.look();
                self.engine
                    .schedule_after(duration_nanos(LOOK), Event::Look);
            }
            Event::End => {
                self.measure();
                self.report.agrees = self.agrees();
                return false;
            }
        }
        true
    }
}

impl Playing {
    fn clock(&self, number: usize) -> Instant {
        self.engine
            .current_time()
            .after(self.balancers[number].ahead)
    }

    /// Changes the load of one location a little later: on average each location changes once in
    /// that time.
    fn stir_later(&mut self) {
        let all = self.plan.groups * self.plan.locations;
        let mean = duration_nanos(self.plan.restless) / all.max(1) as f64;
        let after = draw_exponential(mean, &mut self.rng);
        self.engine.schedule_after(after, Event::Restless);
    }

    fn start(&mut self, number: usize) {
        let settings = Settings {
            id: Id {
                address: address(number),
                name: format!("lb-{number}").into(),
                life: self.rng.u64(1..1_000_000),
            },
            session: self.rng.u64(1..),
            keys: self.keys.clone(),
            seeds: (0..3).map(address).collect(),
        };
        let (now, rng) = (self.clock(number), self.rng.fork());
        let mut fleet = Fleet::new(settings, rng, now);
        fleet.set_groups(self.names.iter().map(String::as_str), now);
        let balancer = &mut self.balancers[number];
        balancer.fleet = Some(fleet);
        balancer.life += 1;
        let life = balancer.life;
        for event in [Event::Poll(number, life), Event::Round(number, life)] {
            let after = self.rng.f64() * duration_nanos(ROUND);
            self.engine.schedule_after(after, event);
        }
    }

    fn kill(&mut self, number: usize) {
        let balancer = &mut self.balancers[number];
        balancer.life += 1;
        balancer.fleet = None;
        self.see(number);
    }

    fn poll(&mut self, number: usize) {
        let now = self.clock(number);
        let balancer = &mut self.balancers[number];
        let Some(fleet) = &mut balancer.fleet else {
            return;
        };
        let next = fleet.poll(now).since(now).max(Duration::from_millis(1));
        let event = Event::Poll(number, balancer.life);
        self.engine.schedule_after(duration_nanos(next), event);
        self.send(number);
    }

    /// Decides upon all groups that this balancer decides upon.
    fn round(&mut self, number: usize) {
        let now = self.clock(number);
        let Some(fleet) = &mut self.balancers[number].fleet else {
            return;
        };
        let alerts = &self.plan.alerts;
        let threshold = alerts.threshold.unwrap_or(Threshold::Critical(0.8));
        for (group, name) in self.names.iter().enumerate() {
            if !matches!(fleet.role_in(name, now), Role::Holder | Role::Settling) {
                continue;
            }
            let raised: HashSet<u64> = fleet
                .raised_alerts(name)
                .map(|(location, _)| location)
                .collect();
            let locations = &self.locations[group];
            let loads = locations.iter().zip(&self.loads[group]);
            let sites: Vec<Site> = loads
                .map(|(location, &load)| Site {
                    load: Some(load),
                    takes_traffic: true,
                    alerted: raised.contains(location),
                })
                .collect();
            let wanted = analyzer::choose_alerted(threshold, alerts, &sites);
            let wanted = wanted.iter().zip(&sites).zip(locations);
            let wanted = wanted.filter(|((wanted, _), _)| **wanted);
            let mut wanted: Vec<(f32, u64)> = wanted
                .map(|((_, site), location)| (site.load.unwrap_or(0.0), *location))
                .collect();
            wanted.sort_by(|a, b| b.0.total_cmp(&a.0));
            let wanted: Vec<u64> = wanted.iter().map(|(_, location)| *location).collect();
            fleet.decide_alerts(name, &wanted, analyzer::count_allowed(alerts, &sites), now);
        }
        self.send(number);
    }

    /// Sends what a balancer has to say, after something has happened to it.
    fn send(&mut self, number: usize) {
        let Some(fleet) = &mut self.balancers[number].fleet else {
            return;
        };
        for (to, datagram) in fleet.take_out() {
            let Some(&to) = self.places.get(&to) else {
                continue;
            };
            let is_cut = self.cut.is_some_and(|cut| (number < cut) != (to < cut));
            if is_cut || self.rng.f64() < self.plan.loss {
                continue;
            }
            let after = draw_exponential(duration_nanos(self.plan.delay), &mut self.rng);
            self.engine
                .schedule_after(after, Event::Arrive(to, datagram));
        }
        self.see(number);
    }

    /// Counts what a balancer has under alert.
    fn see(&mut self, number: usize) {
        let balancer = &mut self.balancers[number];
        let version = balancer.fleet.as_ref().map_or(u64::MAX, Fleet::version);
        if std::mem::replace(&mut balancer.version, version) == version {
            return;
        }
        let is_calm = self.cut.is_none() && self.engine.elapsed_nanos() >= self.calm_from;
        let sites = self.plan.locations;
        let allowed = (self.plan.alerts.max_share * sites as f32) as usize;
        for (group, name) in self.names.iter().enumerate() {
            let fleet = balancer.fleet.iter();
            let raised: BTreeSet<u64> = fleet
                .flat_map(|fleet| fleet.raised_alerts(name))
                .map(|(location, _)| location)
                .collect();
            let seen = balancer.seen.entry(group).or_default();
            let under = &mut self.under[group];
            for gone in seen.difference(&raised) {
                if let Some(count) = under.get_mut(gone) {
                    *count -= 1;
                    if *count == 0 {
                        under.remove(gone);
                    }
                }
            }
            for new in raised.difference(seen) {
                let count = under.entry(*new).or_insert(0);
                self.report.raised += u64::from(*count == 0);
                *count += 1;
            }
            *seen = raised;
            if is_calm && under.len() > allowed {
                self.report.too_many += 1;
                let at = Duration::from_nanos(self.engine.elapsed_nanos());
                self.report.too_many_at.get_or_insert(at);
            }
        }
    }

    fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(number) => self.kill(number),
            Fault::KillHolder(group) => {
                if let Some(&holder) = self.holders(group).first() {
                    self.kill(holder);
                    self.killed.push((group, self.engine.elapsed_nanos()));
                }
            }
            Fault::Restart => {
                for number in 0..self.balancers.len() {
                    if self.balancers[number].fleet.is_none() {
                        self.start(number);
                    }
                }
            }
            Fault::Part(first) => self.cut = Some(first),
            Fault::Heal => {
                self.cut = None;
                self.calm_from = self.engine.elapsed_nanos() + duration_nanos(HEALING) as u64;
            }
            Fault::Step(number, by) => self.balancers[number].ahead += by,
            Fault::Measure => self.measure(),
            Fault::Rise(group) => {
                let loads = self.loads[group].iter().enumerate();
                let Some((least, _)) = loads.min_by(|a, b| a.1.total_cmp(b.1)) else {
                    return;
                };
                // Above all others, and so it is one of those that get an alert.
                self.loads[group][least] = 2.0;
                let location = self.locations[group][least];
                self.rising
                    .push((group, location, self.engine.elapsed_nanos()));
            }
        }
    }

    /// Returns the balancers that decide upon a group.
    fn holders(&self, group: usize) -> Vec<usize> {
        let name = &self.names[group];
        let is_it = |&number: &usize| {
            let fleet = self.balancers[number].fleet.as_ref();
            fleet.is_some_and(|fleet| fleet.role_in(name, self.clock(number)) == Role::Holder)
        };
        (0..self.balancers.len()).filter(is_it).collect()
    }

    fn look(&mut self) {
        let now = self.engine.elapsed_nanos();
        if self.report.agreed.is_none()
            && (0..self.plan.groups).all(|group| !self.holders(group).is_empty())
        {
            self.report.agreed = Some(Duration::from_nanos(now));
        }
        let up = self
            .balancers
            .iter()
            .filter(|balancer| balancer.fleet.is_some())
            .count();
        let under = &self.under;
        let mut over = Vec::new();
        self.rising.retain(|(group, location, since)| {
            let known = under[*group].get(location).copied().unwrap_or(0) as usize;
            if known >= up {
                over.push(Duration::from_nanos(now - since));
            }
            known < up
        });
        self.report.rises.append(&mut over);
        let mut left = std::mem::take(&mut self.killed);
        left.retain(|(group, since)| {
            let is_over = !self.holders(*group).is_empty();
            if is_over {
                over.push(Duration::from_nanos(now - since));
            }
            !is_over
        });
        self.killed = left;
        self.report.takeovers.append(&mut over);
    }

    fn measure(&mut self) {
        let seconds = (self.engine.elapsed_nanos() - self.measured_from) as f64 / 1e9;
        self.measured_from = self.engine.elapsed_nanos();
        let mut totals = [Vec::new(), Vec::new()];
        for balancer in &mut self.balancers {
            let (sent, received) = balancer.fleet.as_ref().map_or((0, 0), |fleet| {
                let counters = fleet.counters();
                (counters.sent_bytes, counters.received_bytes)
            });
            for (total, (now, before)) in totals.iter_mut().zip([
                (sent, std::mem::replace(&mut balancer.sent, sent)),
                (
                    received,
                    std::mem::replace(&mut balancer.received, received),
                ),
            ]) {
                total.push(now.saturating_sub(before) as f64 / seconds.max(1e-9));
            }
        }
        [self.report.sent, self.report.received] = totals;
    }

    fn agrees(&self) -> bool {
        (0..self.plan.groups).all(|group| {
            let up = self
                .balancers
                .iter()
                .filter(|balancer| balancer.fleet.is_some());
            let seen: HashSet<Option<&BTreeSet<u64>>> =
                up.map(|balancer| balancer.seen.get(&group)).collect();
            seen.len() == 1 && self.holders(group).len() == 1
        })
    }
}
