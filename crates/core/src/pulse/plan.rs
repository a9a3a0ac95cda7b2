//! Who goes where in a round of pulses.

use super::*;
use crate::analyzer::AlertSettings;

/// Kinds of clients of one location that are told apart: by the load that they bring.
const KINDS: usize = 8;

/// Up to how many locations two moves are looked for that help only together.
const FEW: usize = 12;

/// Most single steps of a plan.
const STEPS: usize = 256;

/// For how long after its end a pulse still sends clients here.
const ECHO_MS: u32 = 100;

/// A plan that is not followed any more leaves no alert behind.
impl Drop for Plan {
    fn drop(&mut self) {
        self.departures.iter().for_each(|d| d.location.end_pulse());
    }
}

/// Who leaves which location in a round, and for where.
#[derive(Debug)]
pub(crate) struct Plan {
    departures: Vec<Departures>,
}

/// Who leaves a location.
#[derive(Debug)]
pub(crate) struct Departures {
    location: Arc<Location>,
    load: f32,
    orders: Vec<Order>,
    wanted: u32,
    left: AtomicU32,
    moved_at: AtomicU32,
    ended: AtomicU32,
    /// Nobody leaves: strangers are found to be clients of this member.
    roll_call: Option<MemberId>,
    /// Whoever leaves goes where the strategy says.
    rebinds: bool,
}

/// Clients that bring a load of `from` to `to` go to member `target`.
#[derive(Debug)]
struct Order {
    from: f32,
    to: f32,
    target: MemberId,
    wanted: u32,
    left: AtomicU32,
}

impl Plan {
    pub(crate) fn at(&self, location: &Arc<Location>) -> Option<&Departures> {
        let mut all = self.departures.iter();
        all.find(|departures| Arc::ptr_eq(&departures.location, location))
    }

    /// A roll call: no client of `location` leaves, but those that nobody knows are found to
    /// be clients of `member`.
    pub(super) fn calling(location: &Arc<Location>, load: f32, member: MemberId) -> Plan {
        Plan {
            departures: vec![Departures {
                location: Arc::clone(location),
                load,
                orders: Vec::new(),
                wanted: 0,
                left: AtomicU32::new(0),
                moved_at: AtomicU32::new(0),
                ended: AtomicU32::new(0),
                roll_call: Some(member),
                rebinds: false,
            }],
        }
    }

    /// So many of the clients of `location`, where `member` is, are bound anew. Nobody
    /// knows how many strangers there are: for them it has no end.
    pub(super) fn rebinding(location: &Arc<Location>, wanted: u32, member: MemberId) -> Plan {
        let order = Order {
            from: 0.0,
            to: f32::INFINITY,
            target: member,
            wanted,
            left: AtomicU32::new(0),
        };
        Plan {
            departures: vec![Departures {
                location: Arc::clone(location),
                load: 0.0,
                orders: vec![order],
                wanted,
                left: AtomicU32::new(0),
                moved_at: AtomicU32::new(0),
                ended: AtomicU32::new(0),
                roll_call: None,
                rebinds: true,
            }],
        }
    }

    /// The location of a roll call.
    pub(super) fn called(&self) -> Option<&Arc<Location>> {
        let mut all = self.departures.iter();
        all.find(|d| d.roll_call.is_some()).map(|d| &d.location)
    }

    /// Whose client a stranger is who comes now, if there is a roll call.
    pub(crate) fn roll_call(&self) -> Option<MemberId> {
        let mut on = self.departures.iter().filter(|d| d.location.has_pulse());
        on.find_map(|departures| departures.roll_call)
    }

    /// A stranger leaves whoever is to give somebody away.
    pub(crate) fn stranger(&self, now: Instant) -> Option<MemberId> {
        let mut on = self.departures.iter().filter(|d| d.location.has_pulse());
        let leave = |d: &Departures| (!d.rebinds).then(|| d.leave_any(now)).flatten();
        on.find_map(leave)
    }

    pub(super) fn begin(&self) {
        self.departures
            .iter()
            .for_each(|d| d.location.begin_pulse());
    }

    /// Locations whose pulse is on, and their load when it began.
    pub(super) fn on(&self) -> impl Iterator<Item = (&Arc<Location>, f32)> {
        let on = self.departures.iter().filter(|d| d.location.has_pulse());
        on.map(|departures| (&departures.location, departures.load))
    }

    /// When the last client left.
    pub(super) fn moved_at(&self) -> Option<u32> {
        let times = self.departures.iter();
        let times = times.map(|d| d.moved_at.load(Ordering::Relaxed));
        times.filter(|&at| at != 0).reduce(|a, b| {
            if a.wrapping_sub(b) < u32::MAX / 2 {
                a
            } else {
                b
            }
        })
    }
}

impl Departures {
    /// Where a client goes that brings `load`, if it is one of those who leave.
    pub(crate) fn leave(&self, load: Option<f32>, now: Instant) -> Option<MemberId> {
        let Some(load) = load else {
            return self.leave_any(now);
        };
        let mut fitting = self
            .orders
            .iter()
            .filter(|o| (o.from..=o.to).contains(&load));
        fitting.find_map(|order| self.take(order, now))
    }

    fn leave_any(&self, now: Instant) -> Option<MemberId> {
        // Those who are for strangers come first.
        self.orders
            .iter()
            .rev()
            .find_map(|order| self.take(order, now))
    }

    fn take(&self, order: &Order, now: Instant) -> Option<MemberId> {
        let one_more = |left: u32| (left < order.wanted).then_some(left + 1);
        order
            .left
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more)
            .ok()?;
        self.moved_at.store(millis(now), Ordering::Relaxed);
        if self.left.fetch_add(1, Ordering::AcqRel) + 1 >= self.wanted {
            self.end(now);
        }
        Some(order.target)
    }

    /// Whether whoever leaves goes where the strategy says.
    pub(crate) fn rebinds(&self) -> bool {
        self.rebinds
    }

    /// No more clients are to leave.
    pub(crate) fn end(&self, now: Instant) {
        if self.location.has_pulse() {
            self.ended.store(millis(now), Ordering::Relaxed);
            self.location.end_pulse();
        }
    }

    /// Whether clients may come now that were sent away before the server heard of the end.
    pub(crate) fn echoes(&self, now: Instant) -> bool {
        let ended = self.ended.load(Ordering::Relaxed);
        self.location.is_shut() || ended != 0 && millis_since(ended, now) < ECHO_MS
    }

    pub(super) fn left(&self) -> u32 {
        self.left.load(Ordering::Relaxed)
    }
}

/// Clients of a location that bring about the same load.
#[derive(Clone, Copy, Debug)]
struct Kind {
    from: f32,
    to: f32,
    load: f32,
    count: u32,
}

/// Clients that change places: one, or several, from `from` to `to`, and perhaps one back.
#[derive(Clone, Copy, Debug)]
struct Step {
    from: usize,
    kind: usize,
    count: u32,
    to: usize,
    back: Option<usize>,
    gain: f32,
}

/// Loads and clients as they will be.
#[derive(Clone)]
struct Model {
    loads: Vec<Option<f32>>,
    kinds: Vec<Vec<Kind>>,
    /// How many more clients each may give away.
    budget: Vec<u32>,
    gives: Vec<bool>,
    allowed: usize,
}

impl Model {
    fn delta(&self, step: &Step) -> f32 {
        let there = self.kinds[step.from][step.kind].load * step.count as f32;
        let back = step.back.map_or(0.0, |kind| self.kinds[step.to][kind].load);
        there - back
    }

    /// By how much the sum of squares falls.
    fn gain(&self, step: &Step) -> f32 {
        let (Some(from), Some(to)) = (self.loads[step.from], self.loads[step.to]) else {
            return f32::NEG_INFINITY;
        };
        let delta = self.delta(step);
        2.0 * delta * (from - to - delta)
    }

    fn permits(&self, step: &Step) -> bool {
        let mut gives = self.gives.iter().filter(|&&gives| gives).count();
        gives += usize::from(!self.gives[step.from]);
        let gives_back = step.back.is_some();
        gives += usize::from(gives_back && !self.gives[step.to]);
        gives <= self.allowed
            && self.budget[step.from] >= step.count
            && (!gives_back || self.budget[step.to] > 0 || self.gives[step.to])
    }

    fn steps(&self, from: usize) -> impl Iterator<Item = Step> + '_ {
        let others = (0..self.loads.len()).filter(move |&to| to != from);
        let others = others.filter(|&to| self.loads[to].is_some());
        let to = move |to: usize| {
            let kinds = self.kinds[from].iter().enumerate();
            kinds
                .filter(|(_, kind)| kind.count > 0)
                .flat_map(move |(kind, there)| {
                    let backs = self.kinds[to].iter().enumerate();
                    let backs = backs.filter(|(_, kind)| kind.count > 0);
                    let single = Step {
                        from,
                        kind,
                        count: self.how_many(from, there, to),
                        to,
                        back: None,
                        gain: 0.0,
                    };
                    let back = move |(back, _)| Step {
                        count: 1,
                        back: Some(back),
                        ..single
                    };
                    std::iter::once(single).chain(backs.map(back))
                })
        };
        others.flat_map(to).filter_map(|step| {
            let gain = self.gain(&step);
            self.permits(&step).then_some(Step { gain, ..step })
        })
    }

    /// How many of a kind go at once, where many small ones are to.
    fn how_many(&self, from: usize, kind: &Kind, to: usize) -> u32 {
        let difference = self.loads[from].unwrap_or(0.0) - self.loads[to].unwrap_or(0.0);
        let half = difference / 2.0 / kind.load.max(f32::MIN_POSITIVE);
        // Not all at once: others may need them more.
        let part = (half / 4.0)
            .min(kind.count as f32)
            .min(self.budget[from] as f32);
        (part as u32).max(1)
    }

    fn best(&self, from: usize) -> Option<Step> {
        self.steps(from).max_by(|a, b| a.gain.total_cmp(&b.gain))
    }

    fn apply(&mut self, step: &Step) {
        let delta = self.delta(step);
        self.kinds[step.from][step.kind].count -= step.count;
        self.budget[step.from] -= step.count;
        self.gives[step.from] = true;
        if let Some(back) = step.back {
            // Somebody comes instead, which the budget does not mind.
            self.kinds[step.to][back].count -= 1;
            self.gives[step.to] = true;
        }
        for (index, change) in [(step.from, -delta), (step.to, delta)] {
            if let Some(load) = &mut self.loads[index] {
                *load += change;
            }
        }
    }
}

#[allow(clippy::too_many_arguments)]
pub(super) fn make(
    settings: &AlertSettings,
    group: &Group,
    sites: &[Site],
    critical: &[bool],
    level: f32,
    places: &[Place<'_>],
    at: &[Vec<Arc<Client>>],
    strangers: &[f32],
    of_member: &[usize],
) -> Option<Plan> {
    let taking = sites.iter().filter(|site| site.takes_traffic).count();
    let kinds: Vec<Vec<Kind>> = at
        .iter()
        .zip(strangers)
        .map(|(clients, &strangers)| kinds(clients, strangers, group.state().client_load()))
        .collect();
    let budget = kinds.iter().zip(places).map(|(kinds, place)| {
        let clients: u32 = kinds.iter().map(|kind| kind.count).sum();
        match place.takes_traffic && !place.location.has_pulse() && !place.location.is_shut() {
            true => ((clients as f32 * settings.move_share) as u32).max(1),
            false => 0,
        }
    });
    let mut model = Model {
        loads: sites
            .iter()
            .map(|site| site.load.filter(|_| site.takes_traffic))
            .collect(),
        budget: budget.collect(),
        gives: vec![false; sites.len()],
        allowed: settings.allowed(sites).min(taking.saturating_sub(1)),
        kinds,
    };
    let mut steps = Vec::new();
    while steps.len() < STEPS {
        let above = (0..sites.len()).filter(|&index| {
            critical[index] && model.loads[index].is_some_and(|load| load > level)
        });
        let load = |index: &usize| model.loads[*index].unwrap_or(0.0);
        let Some(worst) = above.max_by(|a, b| load(a).total_cmp(&load(b))) else {
            break;
        };
        let mean = model.loads.iter().flatten().sum::<f32>() / taking.max(1) as f32;
        let least = model.loads.iter().flatten().copied().fold(mean, f32::min);
        let off = (load(&worst) - mean).max(mean - least);
        let worth = 0.05 * off * off;
        let one = model.best(worst).filter(|step| step.gain > worth);
        let least = one.map_or(worth, |step| 1.5 * step.gain);
        let chosen = match two(&model, worst, least) {
            Some((first, second)) => vec![first, second],
            None => one.into_iter().collect(),
        };
        if chosen.is_empty() {
            break;
        }
        for step in chosen {
            model.apply(&step);
            steps.push(step);
        }
    }
    assemble(group, &steps, sites, places, &model, of_member)
}

/// Two steps that help together.
fn two(model: &Model, worst: usize, worth: f32) -> Option<(Step, Step)> {
    let count = model.loads.iter().flatten().count();
    if count > FEW {
        return None;
    }
    let mut best: Option<(f32, Step, Step)> = None;
    for from in 0..model.loads.len() {
        if model.loads[from].is_none() {
            continue;
        }
        for first in model.steps(from) {
            let mut after = model.clone();
            after.apply(&first);
            if let Some(second) = after.best(worst) {
                let gain = first.gain + second.gain;
                if gain > worth && best.as_ref().is_none_or(|(b, ..)| gain > *b) {
                    best = Some((gain, first, second));
                }
            }
        }
    }
    best.map(|(_, first, second)| (first, second))
}

/// Orders for the hot path.
fn assemble(
    group: &Group,
    steps: &[Step],
    sites: &[Site],
    places: &[Place<'_>],
    model: &Model,
    of_member: &[usize],
) -> Option<Plan> {
    let member_at = |place: usize| member_at(group, of_member, place);
    let mut orders: Vec<Vec<Order>> = places.iter().map(|_| Vec::new()).collect();
    let mut order = |from: usize, kind: usize, to: usize, count: u32| {
        let kind = model.kinds[from][kind];
        if let Some(target) = member_at(to) {
            orders[from].push(Order {
                from: kind.from,
                to: kind.to,
                target,
                wanted: count,
                left: AtomicU32::new(0),
            });
        }
    };
    for step in steps {
        order(step.from, step.kind, step.to, step.count);
        if let Some(back) = step.back {
            order(step.to, back, step.from, 1);
        }
    }
    let departures = orders
        .into_iter()
        .enumerate()
        .filter(|(_, orders)| !orders.is_empty());
    let departures: Vec<Departures> = departures
        .map(|(index, orders)| Departures {
            location: Arc::clone(places[index].location),
            load: sites[index].load.unwrap_or(0.0),
            wanted: orders.iter().map(|order| order.wanted).sum(),
            orders,
            left: AtomicU32::new(0),
            moved_at: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            roll_call: None,
            rebinds: false,
        })
        .collect();
    (!departures.is_empty()).then_some(Plan { departures })
}

/// A member of the group at the location of number `place` that may be used.
pub(super) fn member_at(group: &Group, of_member: &[usize], place: usize) -> Option<MemberId> {
    let request = Request::at(Instant::ZERO);
    let view = group.view(&request).despite_alerts();
    let mut members = of_member.iter().enumerate();
    let index = members.find(|&(index, &at)| at == place && view.is_eligible_unless_full(index));
    index.map(|(index, _)| group.members()[index].id)
}

/// Clients in kinds by the load that they bring, and perhaps strangers.
fn kinds(clients: &[Arc<Client>], strangers: f32, typical: f32) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::new();
    if strangers > 0.0 {
        // How many these are nobody knows, either.
        let load = match typical > 0.0 {
            true => typical.min(strangers),
            false => strangers / 2.0,
        };
        kinds.push(Kind {
            from: f32::INFINITY,
            to: f32::INFINITY,
            load,
            count: ((strangers / load).round() as u32).max(1),
        });
    }
    let mut loads: Vec<f32> = clients.iter().filter_map(|client| client.load()).collect();
    loads.sort_by(f32::total_cmp);
    let largest = loads.last().copied().unwrap_or(0.0);
    for load in loads {
        match kinds.last_mut() {
            Some(kind)
                if kind.to < f32::INFINITY
                    && (load - kind.from <= 0.1 * load.max(0.1 * largest)
                        || kinds_full(kind, load, largest)) =>
            {
                kind.to = load;
                kind.load += (load - kind.load) / (kind.count + 1) as f32;
                kind.count += 1;
            }
            _ => kinds.push(Kind {
                from: load,
                to: load,
                load,
                count: 1,
            }),
        }
    }
    kinds
}

/// Kinds are at least so far from each other that there are few.
fn kinds_full(kind: &Kind, load: f32, largest: f32) -> bool {
    load - kind.from < largest / (2 * KINDS) as f32 && kind.count > 1
}
