//! Clients that stay with a member until they are told to leave it, as CORBA clients do:
//! the first request goes to the manager, which forwards it; all others go to the member
//! itself. While the load alert of its location is on, a member sends each request back
//! to the manager.
//!
//! Groups, strategies, pulses and forwarding are the real ones. Messages take time, both
//! those of clients and those of alerts and reports, and the control loop has its rounds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::forward::{Advice, Trail};
use evenkeel_control::pulse::Pulses;
use evenkeel_core::alert::AlertSettings;
use evenkeel_core::effective::Shaping;
use evenkeel_core::group::{Granularity, Group, GroupSettings, Request};
use evenkeel_core::load::{LoadId, LoadValue, Location};
use evenkeel_core::member::{Member, MemberId, Reason, Slot, Weight};
use evenkeel_core::strategy::Values;
use evenkeel_core::time::Instant;

/// For how long a client is taken to stay: until it is told to leave.
const STAY: Duration = Duration::from_secs(3600);

/// A client.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// Requests per second.
    pub rate: f64,
    /// The member that it is bound to at first; `None` asks the manager.
    pub start: Option<usize>,
}

/// What is played.
#[derive(Clone, Debug)]
pub struct Sticky {
    /// Members.
    pub members: usize,
    /// Clients.
    pub clients: Vec<Client>,
    /// Whether requests come at random (Poisson) or at fixed intervals.
    pub poisson: bool,
    /// Time between two load reports of a member.
    pub report_interval: Duration,
    /// The longest that a message takes; each takes a random part of it, half at least.
    pub message: Duration,
    /// Time between two rounds of the control loop.
    pub round: Duration,
    /// Whether the manager knows at first where clients are; otherwise it was restarted, say.
    pub known: bool,
    /// Whether clients come back over another connection each time, so that nobody ever
    /// knows them.
    pub strangers: bool,
    /// The strategy.
    pub strategy: Values,
    /// How alerts are raised.
    pub alert: AlertSettings,
    /// A member that reports nothing more from this time on and answers nobody; its
    /// clients go back to the manager, which knows.
    pub dies: Option<(Duration, usize)>,
    /// Clients are rebound so often, whatever the load.
    pub rebind_interval: Option<Duration>,
    /// How long it takes.
    pub length: Duration,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Played {
    /// Requests that each member served in each second.
    pub served: Vec<Vec<u32>>,
    /// Requests that were sent back by a member, in each second.
    pub sent_back: Vec<u32>,
    /// The longest time that it took a client to get a request served, with all its ways.
    pub longest: Duration,
    /// The largest number of times that one request was sent back.
    pub most_sent_back: u32,
    /// Pulses.
    pub rounds: u32,
    /// How often each client went from one member to another.
    pub rebound: Vec<u32>,
}

impl Played {
    /// The largest share by which a member's rate differs from the mean, in second `at`.
    pub fn dispersion(&self, at: usize) -> f64 {
        let served = &self.served[at];
        let mean = f64::from(served.iter().sum::<u32>()) / served.len() as f64;
        let off = |&count: &u32| (f64::from(count) - mean).abs() / mean;
        served.iter().map(off).fold(0.0, f64::max)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The client sends its next request.
    Send(usize),
    /// It is at a member.
    AtMember {
        client: usize,
        member: usize,
    },
    /// It is at the manager.
    AtManager(usize),
    /// A member's valve is told to shut or open.
    Valve {
        member: usize,
        shut: bool,
    },
    /// The manager hears that it has.
    Acknowledged {
        member: usize,
        shut: bool,
    },
    Report(usize),
    ReportArrival {
        member: usize,
        load: u64,
    },
    Round,
    Death(usize),
}

struct Running<'a> {
    play: &'a Sticky,
    group: Group,
    pulses: Pulses,
    shaping: Shaping,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    rng: fastrand::Rng,
    clients: Vec<State>,
    valves: Vec<bool>,
    /// What the manager knows of them, and whether a call of its own is under way.
    told: Vec<bool>,
    calling: Vec<bool>,
    counts: Vec<u32>,
    dead: Vec<bool>,
    played: Played,
}

struct State {
    member: Option<usize>,
    trail: Trail,
    sent: u64,
    sent_back: u32,
}

/// Plays with `seed`.
pub fn play(play: &Sticky, seed: u64) -> Played {
    let mut running = Running::new(play, seed);
    while let Some(Reverse((at, _, event))) = running.events.pop() {
        if at > play.length.as_nanos() as u64 {
            break;
        }
        running.now = at;
        running.handle(event);
    }
    running.played.rounds = running.pulses.rounds();
    running.played
}

impl<'a> Running<'a> {
    fn new(play: &'a Sticky, seed: u64) -> Self {
        let member = |index: usize| {
            let name: Arc<str> = format!("m{index}").into();
            Member {
                id: MemberId(index as u64),
                name: Arc::clone(&name),
                address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
                max_connections: None,
                location: Arc::new(Location::new(name)),
                slot: Arc::new(Slot::new(Weight::ONE)),
            }
        };
        let members: Vec<Member> = (0..play.members).map(member).collect();
        let defaults = GroupSettings::default();
        let settings = GroupSettings {
            adaptive: play.rebind_interval.is_none(),
            rebind_interval: play.rebind_interval.unwrap_or(defaults.rebind_interval),
            granularity: Granularity::OnDemand,
            load_id: LoadId::REQUESTS_PER_SECOND,
            load_max_age: play.report_interval * 3,
            alert: play.alert.clone(),
            ..defaults
        };
        let strategy = (play.strategy.kind().build)(&play.strategy, &members);
        let mut running = Running {
            play,
            group: Group::new("harness", settings, strategy, members, Arc::default()),
            pulses: Pulses::default(),
            shaping: Shaping::of(&play.strategy),
            now: 1,
            events: BinaryHeap::new(),
            scheduled: 0,
            rng: fastrand::Rng::with_seed(seed),
            clients: Vec::new(),
            valves: vec![false; play.members],
            told: vec![false; play.members],
            calling: vec![false; play.members],
            counts: vec![0; play.members],
            dead: vec![false; play.members],
            played: Played {
                rebound: vec![0; play.clients.len()],
                ..Played::default()
            },
        };
        for (index, client) in play.clients.iter().enumerate() {
            let mut trail = Trail::default();
            if let Some(member) = client.start.filter(|_| play.known) {
                trail.leads_to(&running.group, member);
            }
            running.clients.push(State {
                member: client.start,
                trail,
                sent: 0,
                sent_back: 0,
            });
            let first = running.rng.f64() * 1e9 / client.rate;
            running.after(first, Event::Send(index));
        }
        for member in 0..play.members {
            let first = running.rng.f64() * play.report_interval.as_nanos() as f64;
            running.after(first, Event::Report(member));
        }
        let first = running.rng.f64() * play.round.as_nanos() as f64;
        running.after(first, Event::Round);
        if let Some((at, member)) = play.dies {
            running.after(at.as_nanos() as f64, Event::Death(member));
        }
        running
    }

    fn after(&mut self, nanos: f64, event: Event) {
        self.scheduled += 1;
        let at = self.now + nanos as u64;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    fn message(&mut self, event: Event) {
        let share = 0.5 + 0.5 * self.rng.f64();
        self.after(share * self.play.message.as_nanos() as f64, event);
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    fn second(&mut self) -> usize {
        let second = (self.now / 1_000_000_000) as usize;
        while self.played.served.len() <= second {
            self.played.served.push(vec![0; self.play.members]);
            self.played.sent_back.push(0);
        }
        second
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Send(client) => {
                self.clients[client].sent = self.now;
                self.clients[client].sent_back = 0;
                match self.clients[client].member {
                    Some(member) => self.message(Event::AtMember { client, member }),
                    None => self.message(Event::AtManager(client)),
                }
                let gap = 1e9 / self.play.clients[client].rate;
                let gap = match self.play.poisson {
                    true => -(1.0 - self.rng.f64()).ln() * gap,
                    false => gap,
                };
                self.after(gap, Event::Send(client));
            }
            Event::AtMember { client, member } => self.at_member(client, member),
            Event::AtManager(client) => self.at_manager(client),
            Event::Valve { member, shut } => {
                self.valves[member] = shut;
                self.message(Event::Acknowledged { member, shut });
            }
            Event::Acknowledged { member, shut } => {
                self.told[member] = shut;
                self.calling[member] = false;
                self.group.members()[member].location.set_shut(shut);
                self.tell();
            }
            Event::Report(member) => {
                let interval = self.play.report_interval.as_nanos() as f64;
                if self.dead[member] {
                    return;
                }
                self.after(interval, Event::Report(member));
                let count = std::mem::take(&mut self.counts[member]);
                let load = (f64::from(count) * 1e12 / interval) as u64;
                self.message(Event::ReportArrival { member, load });
            }
            Event::ReportArrival { member, load } => {
                let now = self.now();
                let location = &self.group.members()[member].location;
                if let Ok(value) = LoadValue::new(load as f64 / 1e3) {
                    let _ = location.report(LoadId::REQUESTS_PER_SECOND, value, now);
                }
            }
            Event::Round => {
                self.after(self.play.round.as_nanos() as f64, Event::Round);
                self.round();
            }
            Event::Death(member) => {
                self.dead[member] = true;
                self.group.members()[member].slot.set(Reason::Down, true);
            }
        }
    }

    fn at_member(&mut self, client: usize, member: usize) {
        let second = self.second();
        if self.dead[member] || self.valves[member] {
            self.played.sent_back[second] += 1;
            self.clients[client].sent_back += 1;
            let times = self.clients[client].sent_back;
            self.played.most_sent_back = self.played.most_sent_back.max(times);
            return self.after(
                1.5 * self.play.message.as_nanos() as f64,
                Event::AtManager(client),
            );
        }
        self.counts[member] += 1;
        self.played.served[second][member] += 1;
        let took = Duration::from_nanos(self.now - self.clients[client].sent);
        self.played.longest = self.played.longest.max(took);
    }

    fn at_manager(&mut self, client: usize) {
        let now = self.now();
        if self.play.strangers {
            self.clients[client].trail = Trail::default(); // nobody knows it
        }
        let trail = &mut self.clients[client].trail;
        let to = match trail.advise(&self.group, now) {
            Advice::Wait => None,
            Advice::Back(member) => Some((member, false)),
            Advice::To(member) => Some((member, true)),
            Advice::Free => {
                let Ok(member) = self.group.choose(&Request::at(now), &mut self.rng) else {
                    return;
                };
                let location = &self.group.members()[member].location;
                (!trail.knocks(location, now)).then_some((member, true))
            }
        };
        let Some((member, is_new)) = to else {
            self.tell();
            let pause = Advice::PAUSE.as_nanos() as f64;
            return self.after(pause, Event::AtManager(client));
        };
        if is_new {
            self.group.assign(member, STAY);
            trail.leads_to(&self.group, member);
        }
        self.tell();
        let before = self.clients[client].member.replace(member);
        if before.is_some_and(|before| before != member) {
            self.played.rebound[client] += 1;
        }
        self.message(Event::AtMember { client, member });
    }

    /// What the manager's control loop does in a round.
    fn round(&mut self) {
        let now = self.now();
        let settings = self.group.settings();
        let threshold = settings.alert.threshold;
        let threshold = threshold.or(self.group.strategy().alert_threshold());
        let raised = match threshold {
            _ if settings.rebinds() => self.pulses.turn(&self.group, &self.shaping, now),
            Some(threshold) => self.pulses.step(&self.group, &self.shaping, threshold, now),
            None => return,
        };
        for member in self.group.members() {
            let on = raised
                .iter()
                .any(|raised| Arc::ptr_eq(&raised.location, &member.location));
            member
                .slot
                .set(Reason::Shedding, on || member.location.is_shut());
        }
        self.tell();
    }

    /// Tells members what their valves should do, one message at a time.
    fn tell(&mut self) {
        for index in 0..self.play.members {
            let member = &self.group.members()[index];
            let wanted = member.slot.has(Reason::Shedding) && member.location.has_pulse();
            if wanted != self.told[index] && !self.calling[index] && !self.dead[index] {
                if wanted {
                    member.location.set_shut(true);
                }
                self.calling[index] = true;
                let shut = wanted;
                let member = index;
                self.message(Event::Valve { member, shut });
            }
        }
    }
}
