//! Clients that stay with a member until they are told to leave it, in virtual time.
//!
//! Clients that are *forwarded* do as CORBA clients do: the first request goes to the manager,
//! which forwards it; all others go to the member itself. While the load alert of its location is
//! on, a member sends each request back to the manager. Messages take time, both those of clients
//! and those of alerts and reports. The requests of clients that are *carried* all go through the
//! balancer, which looks at their binding with each.
//!
//! A member works on one request after the other, in the order in which they come.
//!
//! Groups, strategies, control, bindings and forwarding are the real ones.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::event::Event;
use evenkeel_control::forward::{Advice, Trail};
use evenkeel_core::alert::AlertSettings;
use evenkeel_core::binding::{Binding, Verdict};
use evenkeel_core::group::{Granularity, Group, GroupSettings, Outcome, Request};
use evenkeel_core::load::{LoadId, LoadValue};
use evenkeel_core::member::Reason;
use evenkeel_core::strategy::Values;
use evenkeel_core::time::Instant;
use evenkeel_manager::config::Reach;
use evenkeel_manager::groups::Groups;

use evenkeel_sim::config::{equal_members, find_group, make_groups};
use evenkeel_sim::engine::{self, Engine, World, draw_exponential, duration_nanos};

/// Time for which a client is expected to stay: until it is told to leave.
const STAY: Duration = Duration::from_secs(3600);

/// A client.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// Requests per second; [`f64::INFINITY`] is a client that waits for each answer and then sends
    /// the next request at once.
    pub rate: f64,
    /// Time at which the client begins.
    pub begins: Duration,
    /// Number of requests that the client sends; `None` is until the end.
    pub iterations: Option<u64>,
    /// Member that the client is bound to at first; `None` asks the manager.
    pub start: Option<usize>,
}

impl Client {
    /// A client that sends this many requests per second from the beginning to the end.
    pub fn at_rate(rate: f64, start: Option<usize>) -> Self {
        Client {
            rate,
            begins: Duration::ZERO,
            iterations: None,
            start,
        }
    }
}

/// Parameters of the world.
#[derive(Clone, Debug)]
pub struct Sessions {
    /// Number of members.
    pub members: usize,
    /// Clients that send requests.
    pub clients: Vec<Client>,
    /// True if requests come at random (Poisson), false if at fixed intervals.
    pub poisson: bool,
    /// Time between two load reports of a member.
    pub report_interval: Duration,
    /// True if members report all at once, after each interval, and not each at times of its own.
    pub in_step: bool,
    /// The longest time of a message; each message takes a random part of it, half at least.
    pub message: Duration,
    /// Time between two rounds of the control loop.
    pub round: Duration,
    /// True if the manager knows at first where clients are; otherwise it was restarted, say.
    pub known: bool,
    /// True if clients come back over another connection each time, so that they are never recognised.
    pub strangers: bool,
    /// The strategy.
    pub strategy: Values,
    /// Settings of how alerts are raised.
    pub alert: AlertSettings,
    /// A member that sends no reports and no answers from this time on; its clients go back to the manager, which
    /// knows.
    pub dies: Option<(Duration, usize)>,
    /// Clients are rebound so often, whatever the load.
    pub rebind_interval: Option<Duration>,
    /// Way in which clients reach members: carried or forwarded.
    pub reach: Reach,
    /// Granularity: when the strategy is asked.
    pub granularity: Granularity,
    /// Reported load: requests per second, or the share of its CPU that a member uses, of which a request takes 2 ms.
    pub load_id: LoadId,
    /// Time that a member works on a request.
    pub service: Duration,
    /// Time that a member works on a load report.
    pub report_work: Duration,
    /// Duration of the run, if not all clients have sent all their requests before.
    pub length: Duration,
}

impl Sessions {
    /// Draws the time that a message takes, in nanoseconds.
    fn way(&self, rng: &mut fastrand::Rng) -> f64 {
        (0.5 + 0.5 * rng.f64()) * duration_nanos(self.message)
    }
}

/// Results of the run.
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
    /// Number of pulses.
    pub rounds: u32,
    /// Number of times that each client went from one member to another.
    pub rebound: Vec<u32>,
    /// Answers that each client got.
    pub answered: Vec<Answered>,
    /// Load alerts that were raised.
    pub alerts: u32,
}

/// Answers that a client got.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answered {
    /// Number of answers.
    pub requests: u64,
    /// Seconds from when it began to its last answer.
    pub seconds: f64,
    /// Sum of its response times in seconds, and of their squares.
    sums: (f64, f64),
}

impl Answered {
    /// Answers per second.
    pub fn throughput(&self) -> f64 {
        self.requests as f64 / self.seconds
    }

    /// Mean response time in seconds.
    pub fn mean(&self) -> f64 {
        self.sums.0 / self.requests as f64
    }

    /// Standard deviation of response times in seconds.
    pub fn jitter(&self) -> f64 {
        let mean = self.mean();
        (self.sums.1 / self.requests as f64 - mean * mean)
            .max(0.0)
            .sqrt()
    }
}

impl Played {
    /// The largest share by which a member's rate differs from the mean, in second `at`.
    pub fn dispersion_at(&self, at: usize) -> f64 {
        dispersion_of(&self.served[at])
    }
}

/// The largest share by which a member's number of requests differs from the mean.
pub fn dispersion_of(served: &[u32]) -> f64 {
    let mean = f64::from(served.iter().sum::<u32>()) / served.len() as f64;
    let off = |&count: &u32| (f64::from(count) - mean).abs() / mean;
    served.iter().map(off).fold(0.0, f64::max)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// The client sends its next request.
    Send(usize),
    /// The client's request is at a member.
    AtMember {
        client: usize,
        member: usize,
    },
    /// The client's request is at the manager.
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
    /// A load report arrives; `load` has the bits of the load.
    ReportArrival {
        member: usize,
        load: u64,
    },
    Round,
    Death(usize),
}

/// CPU time of a request, in seconds.
const WORK: f64 = 0.002;

struct Running<'a> {
    play: &'a Sessions,
    groups: Groups,
    group: Arc<Group>,
    engine: Engine<Happening>,
    rng: fastrand::Rng,
    /// Random numbers for answers, which change nothing of what else is drawn.
    answers: fastrand::Rng,
    clients: Vec<State>,
    valves: Vec<bool>,
    /// For each valve, the state that the manager knows, and below it whether a call of the manager
    /// is under way.
    told: Vec<bool>,
    calling: Vec<bool>,
    counts: Vec<u32>,
    dead: Vec<bool>,
    /// Time at which each member has done what it has to do, in nanoseconds.
    busy: Vec<f64>,
    /// Clients that have not sent and got everything.
    left: usize,
    played: Played,
}

struct State {
    member: Option<usize>,
    trail: Trail,
    binding: Option<Binding>,
    /// Time at which the client sent its request, in nanoseconds.
    sent: f64,
    sent_back: u32,
    /// Requests that it is still to send.
    left: u64,
}

/// Plays with `seed`. `None` if there is no member.
pub fn play_sessions(play: &Sessions, seed: u64) -> Option<Played> {
    let mut running = Running::new(play, seed)?;
    engine::run(&mut running);
    Some(running.played)
}

impl World for Running<'_> {
    type Event = Happening;

    fn engine(&mut self) -> &mut Engine<Happening> {
        &mut self.engine
    }

    fn happen(&mut self, event: Happening) -> bool {
        let goes_on =
            self.left > 0 && self.engine.elapsed_nanos() as f64 <= duration_nanos(self.play.length);
        if goes_on {
            self.handle(event);
        }
        goes_on
    }
}

impl<'a> Running<'a> {
    fn new(play: &'a Sessions, seed: u64) -> Option<Self> {
        let defaults = GroupSettings::default();
        let settings = GroupSettings {
            adaptive: play.rebind_interval.is_none(),
            rebind_interval: play.rebind_interval.unwrap_or(defaults.rebind_interval),
            granularity: play.granularity,
            load_id: play.load_id,
            load_max_age: play.report_interval * 3,
            alert: play.alert.clone(),
            ..defaults
        };
        let config = equal_members("app", play.members, settings, play.strategy.clone());
        let engine = Engine::new(0.0);
        let groups = make_groups(config, engine.current_time());
        let mut running = Running {
            play,
            group: find_group(&groups, "app")?,
            groups,
            engine,
            rng: fastrand::Rng::with_seed(seed),
            answers: fastrand::Rng::with_seed(!seed),
            clients: Vec::new(),
            valves: vec![false; play.members],
            told: vec![false; play.members],
            calling: vec![false; play.members],
            counts: vec![0; play.members],
            dead: vec![false; play.members],
            busy: vec![0.0; play.members],
            left: play.clients.len(),
            played: Played {
                rebound: vec![0; play.clients.len()],
                answered: vec![Answered::default(); play.clients.len()],
                ..Played::default()
            },
        };
        running.begin();
        Some(running)
    }

    fn begin(&mut self) {
        let play = self.play;
        for (index, client) in play.clients.iter().enumerate() {
            let (mut trail, mut binding) = (Trail::default(), None);
            if let Some(member) = client.start.filter(|_| play.known) {
                if play.reach == Reach::Carried {
                    let now = Instant::from_nanos(1);
                    binding = Binding::new(&self.group, member, now, &mut self.rng);
                } else {
                    trail.leads_to(&self.group, member);
                }
            }
            self.clients.push(State {
                member: client.start,
                trail,
                binding,
                sent: 0.0,
                sent_back: 0,
                left: client.iterations.unwrap_or(u64::MAX),
            });
            let first = 1.0 + duration_nanos(client.begins) + self.rng.f64() * 1e9 / client.rate;
            self.engine.schedule_after(first, Happening::Send(index));
        }
        for member in 0..play.members {
            let phase = if play.in_step { 1.0 } else { self.rng.f64() };
            let first = phase * duration_nanos(play.report_interval);
            self.engine.schedule_after(first, Happening::Report(member));
        }
        let first = self.rng.f64() * duration_nanos(play.round);
        self.engine.schedule_after(first, Happening::Round);
        if let Some((at, member)) = play.dies {
            self.engine
                .schedule_after(duration_nanos(at), Happening::Death(member));
        }
    }

    fn message(&mut self, event: Happening) {
        let way = self.play.way(&mut self.rng);
        self.engine.schedule_after(way, event);
    }

    /// Lets a client send its next request in `after` nanoseconds, if it has one to send.
    fn send(&mut self, client: usize, after: f64) {
        let way = self.play.way(&mut self.rng);
        let state = &mut self.clients[client];
        let Some(left) = state.left.checked_sub(1) else {
            return;
        };
        state.left = left;
        (state.sent, state.sent_back) = (self.engine.elapsed_nanos() as f64 + after, 0);
        let to = match state.member {
            Some(member) if self.play.reach != Reach::Carried => {
                Happening::AtMember { client, member }
            }
            _ => Happening::AtManager(client),
        };
        self.engine.schedule_after(after + way, to);
    }

    fn second(&mut self) -> usize {
        let second = (self.engine.elapsed_nanos() / 1_000_000_000) as usize;
        while self.played.served.len() <= second {
            self.played.served.push(vec![0; self.play.members]);
            self.played.sent_back.push(0);
        }
        second
    }

    fn handle(&mut self, event: Happening) {
        match event {
            Happening::Send(client) => {
                self.send(client, 0.0);
                let gap = 1e9 / self.play.clients[client].rate;
                let is_last = self.clients[client].left == 0;
                // Otherwise the answer is what the next one waits for.
                if gap > 0.0 && !is_last {
                    let gap = if self.play.poisson {
                        draw_exponential(gap, &mut self.rng)
                    } else {
                        gap
                    };
                    self.engine.schedule_after(gap, Happening::Send(client));
                }
            }
            Happening::AtMember { client, member } => self.at_member(client, member),
            Happening::AtManager(client) if self.play.reach == Reach::Carried => {
                self.carried(client);
            }
            Happening::AtManager(client) => self.at_manager(client),
            Happening::Valve { member, shut } => {
                self.valves[member] = shut;
                self.message(Happening::Acknowledged { member, shut });
            }
            Happening::Acknowledged { member, shut } => {
                self.told[member] = shut;
                self.calling[member] = false;
                self.group.members()[member].location.set_shut(shut);
                self.tell();
            }
            Happening::Report(member) => {
                if self.dead[member] {
                    return;
                }
                let interval = self.play.report_interval;
                self.engine
                    .schedule_after(duration_nanos(interval), Happening::Report(member));
                self.work(member, self.play.report_work);
                let count = std::mem::take(&mut self.counts[member]);
                let rate = f64::from(count) / interval.as_secs_f64();
                let load = match self.play.load_id {
                    LoadId::CPU => (rate * WORK).min(1.0),
                    _ => rate,
                };
                let load = load.to_bits();
                self.message(Happening::ReportArrival { member, load });
            }
            Happening::ReportArrival { member, load } => {
                let location = &self.group.members()[member].location;
                if let Ok(value) = LoadValue::new(f64::from_bits(load)) {
                    // Only one id is ever reported here, so there is room for it.
                    let _ =
                        location.report_load(self.play.load_id, value, self.engine.current_time());
                }
            }
            Happening::Round => {
                self.engine
                    .schedule_after(duration_nanos(self.play.round), Happening::Round);
                let events = self.groups.run_round(self.engine.current_time());
                let is_pulse =
                    |event: &Event| matches!(event, Event::AlertRaised { is_pulse: true, .. });
                let raised = |event: &&(_, Event)| matches!(event.1, Event::AlertRaised { .. });
                self.played.alerts += events.iter().filter(raised).count() as u32;
                let pulses = events.iter().any(|(_, event)| is_pulse(event));
                self.played.rounds += u32::from(pulses);
                self.tell();
            }
            Happening::Death(member) => {
                self.dead[member] = true;
                let slot = &self.group.members()[member].slot;
                slot.set(Reason::Down, true);
            }
        }
    }

    /// The balancer carries a request of the client.
    fn carried(&mut self, client: usize) {
        let (now, group) = (self.engine.current_time(), &self.group);
        let binding = &mut self.clients[client].binding;
        let kept = binding
            .as_mut()
            .and_then(|binding| match binding.check_request(group, now) {
                Verdict::Keep(index) => Some(index),
                Verdict::Move(index) => {
                    binding.move_to(group, index, now);
                    Some(index)
                }
                Verdict::Rebind(_) => None,
            });
        let ticket = match kept {
            Some(index) => group.bind(index, now),
            None => {
                let ticket = group.pick(&Request::at_time(now), &mut self.rng).ok();
                let index = ticket.as_ref().map(|ticket| ticket.member_index());
                *binding = index.and_then(|at| Binding::new(group, at, now, &mut self.rng));
                ticket
            }
        };
        if let Some(ticket) = ticket {
            let member = ticket.member_index();
            ticket.finish(Outcome::Success, now);
            self.message(Happening::AtMember { client, member });
        }
    }

    fn at_member(&mut self, client: usize, member: usize) {
        let second = self.second();
        if self.dead[member] || self.valves[member] {
            self.played.sent_back[second] += 1;
            self.clients[client].sent_back += 1;
            let times = self.clients[client].sent_back;
            self.played.most_sent_back = self.played.most_sent_back.max(times);
            let back = 1.5 * duration_nanos(self.play.message);
            return self
                .engine
                .schedule_after(back, Happening::AtManager(client));
        }
        self.counts[member] += 1;
        self.played.served[second][member] += 1;
        let done = self.work(member, self.play.service);
        // The answer goes back the way that the request came.
        let mut answer = done + self.play.way(&mut self.answers);
        if self.play.reach == Reach::Carried {
            answer += self.play.way(&mut self.answers);
        }
        let answer_in = answer - self.engine.elapsed_nanos() as f64;
        self.answered(client, answer);
        if self.play.clients[client].rate.is_infinite() {
            self.send(client, answer_in);
        }
    }

    /// Has a member do something when it has done all that came before; answers when it is done.
    fn work(&mut self, member: usize, time: Duration) -> f64 {
        let begins = self.busy[member].max(self.engine.elapsed_nanos() as f64);
        self.busy[member] = begins + duration_nanos(time);
        self.busy[member]
    }

    /// The client gets an answer at this moment.
    fn answered(&mut self, client: usize, at: f64) {
        let took = (at - self.clients[client].sent) / 1e9;
        let plan = &self.play.clients[client];
        let answered = &mut self.played.answered[client];
        answered.requests += 1;
        answered.seconds = at / 1e9 - plan.begins.as_secs_f64();
        answered.sums.0 += took;
        answered.sums.1 += took * took;
        if plan.iterations == Some(answered.requests) {
            self.left -= 1;
        }
        let took = Duration::from_secs_f64(took.max(0.0));
        self.played.longest = self.played.longest.max(took);
    }

    fn at_manager(&mut self, client: usize) {
        let now = self.engine.current_time();
        if self.play.strangers {
            self.clients[client].trail = Trail::default(); // nobody knows it
        }
        let trail = &mut self.clients[client].trail;
        let to = match trail.advise_client(&self.group, now) {
            Advice::Wait => None,
            Advice::Back(member) => Some((member, false)),
            Advice::To(member) => Some((member, true)),
            Advice::Free => {
                let Ok(member) = self
                    .group
                    .choose_member(&Request::at_time(now), &mut self.rng)
                else {
                    return;
                };
                let location = &self.group.members()[member].location;
                (!trail.must_ask_later(location, now)).then_some((member, true))
            }
        };
        let Some((member, is_new)) = to else {
            self.tell();
            let pause = Advice::PAUSE.as_nanos() as f64;
            return self
                .engine
                .schedule_after(pause, Happening::AtManager(client));
        };
        if is_new {
            self.group
                .assign_client(member, STAY, self.engine.current_time());
            trail.leads_to(&self.group, member);
        }
        self.tell();
        let before = self.clients[client].member.replace(member);
        if before.is_some_and(|before| before != member) {
            self.played.rebound[client] += 1;
        }
        self.message(Happening::AtMember { client, member });
    }

    /// Tells members what their valves should do, one message at a time.
    fn tell(&mut self) {
        for index in 0..self.play.members {
            let member = &self.group.members()[index];
            let wanted = self.play.reach != Reach::Carried && member.location.is_alerted();
            if wanted != self.told[index] && !self.calling[index] && !self.dead[index] {
                if wanted {
                    member.location.set_shut(true);
                }
                self.calling[index] = true;
                let shut = wanted;
                let member = index;
                self.message(Happening::Valve { member, shut });
            }
        }
    }
}
