//! Planner of the moves in a round of pulses.

use std::sync::Arc;

use evenkeel_core::group::Group;
use evenkeel_core::relocation::Client;

use super::departures::{Departures, Order, Plan};
use crate::analyzer::{Site, count_allowed};
use crate::place::{GroupLocations, Place};

/// Kinds of clients of one location that are told apart: by the load that they bring.
const KINDS: usize = 8;

/// Up to how many locations two moves are looked for that help only together.
const FEW: usize = 12;

/// Most single steps of a plan.
const STEPS: usize = 256;

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
    /// Number of clients that each location may still give away.
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

    /// Returns by how much the sum of squares falls.
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

    /// Returns how many clients of a kind go at once, where many small ones are to go.
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
            // A client comes in exchange; the budget limits only those that leave.
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

/// Plans who leaves the `critical` of `sites` until their load is not above `level`, given
/// the clients `at` each and the load of `strangers` there.
pub(super) fn make_plan(
    group: &Group,
    places: &GroupLocations<'_>,
    sites: &[Site],
    critical: &[bool],
    level: f32,
    at: &[Vec<Arc<Client>>],
    strangers: &[f32],
) -> Option<Plan> {
    let settings = &group.settings().alert;
    let taking = sites.iter().filter(|site| site.takes_traffic).count();
    let kinds: Vec<Vec<Kind>> = at
        .iter()
        .zip(strangers)
        .map(|(clients, &strangers)| kinds(clients, strangers, group.state().client_load()))
        .collect();
    let budget = kinds
        .iter()
        .zip(&places.all)
        .map(|(kinds, place): (_, &Place<'_>)| {
            let clients: u32 = kinds.iter().map(|kind| kind.count).sum();
            if place.takes_traffic && !place.location.has_pulse() && !place.location.is_shut() {
                ((clients as f32 * settings.move_share) as u32).max(1)
            } else {
                0
            }
        });
    let mut model = Model {
        loads: sites
            .iter()
            .map(|site| site.load.filter(|_| site.takes_traffic))
            .collect(),
        budget: budget.collect(),
        gives: vec![false; sites.len()],
        allowed: count_allowed(settings, sites).min(taking.saturating_sub(1)),
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
    assemble(group, &steps, sites, places, &model)
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
    places: &GroupLocations<'_>,
    model: &Model,
) -> Option<Plan> {
    let mut orders: Vec<Vec<Order>> = places.all.iter().map(|_| Vec::new()).collect();
    let mut order = |from: usize, kind: usize, to: usize, count: u32| {
        let kind = model.kinds[from][kind];
        if let Some(target) = places.member_at(group, to) {
            orders[from].push(Order::new(kind.from..=kind.to, target, count));
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
        .map(|(index, orders)| {
            let load = sites[index].load.unwrap_or(0.0);
            Departures::new(places.all[index].location, load, orders)
        })
        .collect();
    (!departures.is_empty()).then(|| Plan::of(departures))
}

/// Clients in kinds by the load that they bring, and perhaps strangers.
fn kinds(clients: &[Arc<Client>], strangers: f32, typical: f32) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::new();
    if strangers > 0.0 {
        // How many these are nobody knows, either.
        let load = if typical > 0.0 {
            typical.min(strangers)
        } else {
            strangers / 2.0
        };
        kinds.push(Kind {
            from: f32::INFINITY,
            to: f32::INFINITY,
            load,
            count: ((strangers / load).round() as u32).max(1),
        });
    }
    let mut loads: Vec<f32> = clients
        .iter()
        .filter_map(|client| client.estimated_load())
        .collect();
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
