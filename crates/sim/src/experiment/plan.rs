//! Plan of the runs: a scenario and the configuration that it names, for each value of its sweeps, with all their
//! faults.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use evenkeel_manager::config::scenario::{self, Discipline as Works, Model, Scenario as Text};
use evenkeel_manager::config::{
    self, Config, Errors, GroupConfig, MAX_FILE_SIZE, MemberConfig, Override, Problem, read_file,
};

use super::costs::{Costs, Times};
use super::engines::EnginePoint;
use super::events::{MAX_STROKES, ResolvedEvent};
use super::replay::Replay;
use crate::engine::duration_nanos;
use crate::scenario::{MemberModel, Reports, Scenario, Way};
use crate::server::Discipline;
use crate::work::{Arrivals, Bursts, Source, Visit};

/// The most runs: more would take days.
const MAX_RUNS: usize = 20_000;

/// Most requests of a run. The response time of each is kept: 8 bytes.
const MAX_REQUESTS: f64 = 200e6;

/// Name of the central queue in place of a strategy's name.
pub(super) const IDEAL: &str = "central queue (ideal)";

/// The most workers of members that it looks at.
const MAX_IDEAL: usize = 1_000;

/// Moments of a run at which members are noted down.
const SAMPLES: u32 = 200;

/// Plan of an experiment.
#[derive(Debug)]
pub struct Plan {
    /// The scenario's file.
    pub file: String,
    /// The keys that are swept.
    pub keys: Vec<String>,
    /// The worlds, one for each pair of values.
    pub points: Vec<Point>,
    /// The first seed.
    pub seed: u64,
    /// Number of seeds.
    pub seeds: usize,
    /// Settings that are allowed but probably not meant.
    pub warnings: Vec<Problem>,
}

impl Plan {
    /// True if strategies are swept; tables then show the strategy anyway.
    pub(super) fn sweeps_strategy(&self) -> bool {
        self.keys.iter().any(|key| is_strategy(key))
    }

    /// The values of a world without the values of strategies, which the central queue does not need.
    fn values_but_strategies(&self, point: &Point) -> Vec<String> {
        let all = self.keys.iter().zip(&point.values);
        let others = all.filter(|(key, _)| !is_strategy(key));
        others.map(|(_, value)| value.clone()).collect()
    }

    /// The index of the central queue in the world of that index, if it is played.
    pub(super) fn ideal_of(&self, index: usize) -> Option<usize> {
        let wanted = self.values_but_strategies(&self.points[index]);
        let is_it = |of: &Point| of.is_ideal && self.values_but_strategies(of) == wanted;
        self.points.iter().position(is_it)
    }

    /// Adds a world with the central queue, which knows everything, for each world of the plan, at the end.
    ///
    /// # Errors
    ///
    /// The central queue cannot be played in one of the worlds.
    pub fn with_ideal(mut self) -> Result<Self, Errors> {
        let mut problems = Vec::new();
        for index in 0..self.points.len() {
            if self.ideal_of(index).is_some() {
                continue;
            }
            let point = &self.points[index];
            match point.ideal(&self.keys) {
                Ok(ideal) => self.points.push(ideal),
                Err(problem) if problems.contains(&*problem) => {}
                Err(problem) => problems.push(*problem),
            }
        }
        let runs = self.points.len() * self.seeds;
        if runs > MAX_RUNS
            && let Some(point) = self.points.first()
        {
            problems.push(point.text.group_place.problem(too_many(runs)));
        }
        match problems.is_empty() {
            true => Ok(self),
            false => Err(all_of(&self.file, problems)),
        }
    }
}

/// A world of a plan.
#[derive(Debug)]
pub struct Point {
    /// Values of the swept keys.
    pub values: Vec<String>,
    /// The group.
    pub group: String,
    /// Strategy of the group.
    pub strategy: String,
    /// The members' names.
    pub members: Vec<String>,
    /// Requests per second that are asked for, without clients that wait.
    pub offered: Option<f64>,
    /// Requests per second that the members can serve at the start, without caches.
    pub capacity: f64,
    /// True if the central queue takes the place of the balancers.
    pub(super) is_ideal: bool,
    pub(super) world: Scenario,
    pub(super) events: Vec<ResolvedEvent>,
    times: Times,
    text: Text,
    /// Engines and requests for them in place of members with workers.
    pub(super) engines: Option<EnginePoint>,
    /// Requests of a log in place of the scenario's.
    pub(super) replay: Option<Arc<Replay>>,
}

/// Reads the scenario in the file at `path`, and what it names. `more` changes it: the seed, and how
/// many there are.
///
/// # Errors
///
/// All faults.
pub fn load_plan(path: &Path, seed: Option<u32>, seeds: Option<usize>) -> Result<Plan, Errors> {
    let file = path.display().to_string();
    let text = scenario::load_scenario(path, &[])?;
    let found = text.config.path.display().to_string();
    let config = read_file(&text.config.path, MAX_FILE_SIZE).map_err(|error| {
        let message = format!("{found}: {error}");
        all_of(&file, vec![text.config.place.problem(message)])
    })?;
    let mut plan = Plan {
        file: file.clone(),
        keys: text.sweeps.iter().map(|sweep| sweep.key.clone()).collect(),
        points: Vec::new(),
        seed: u64::from(seed.unwrap_or(text.seed)),
        seeds: seeds.unwrap_or(text.seeds),
        warnings: Vec::new(),
    };
    let (mut problems, mut omitted) = (Vec::new(), 0);
    let mut add = |errors: Errors| {
        omitted += errors.omitted;
        for problem in errors.problems {
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
    };
    for changes in pairs(&text) {
        let of = |of_config: bool| {
            let changes = changes.iter().filter(|(of, _)| *of == of_config);
            changes
                .map(|(_, value)| value.clone())
                .collect::<Vec<Override>>()
        };
        let scenario = match changes.is_empty() {
            true => Ok(text.clone()),
            false => scenario::load_scenario(path, &of(false)),
        };
        let config = config::parse_with(&found, &config, &of(true));
        let values = changes.iter().map(|(_, change)| shown(change)).collect();
        match (scenario, config) {
            (Ok(scenario), Ok(config)) => match Point::new(scenario, config, values) {
                Ok((point, warnings)) => {
                    plan.points.push(point);
                    for warning in warnings {
                        if !plan.warnings.contains(&warning) {
                            plan.warnings.push(warning);
                        }
                    }
                }
                Err(problems) => add(all_of(&file, problems)),
            },
            (scenario, config) => {
                scenario.err().into_iter().for_each(&mut add);
                config.err().into_iter().for_each(&mut add);
            }
        }
    }
    if plan.points.len() * plan.seeds > MAX_RUNS {
        let runs = plan.points.len() * plan.seeds;
        add(all_of(
            &file,
            vec![text.group_place.problem(too_many(runs))],
        ));
    }
    match problems.is_empty() {
        true => Ok(plan),
        false => Err(Errors {
            file,
            problems,
            omitted,
        }),
    }
}

fn too_many(runs: usize) -> String {
    format!("{runs} runs are too many: at most {MAX_RUNS}; lower `seeds`")
}

/// True if the swept key is the strategy of a group or rule.
fn is_strategy(key: &str) -> bool {
    key.rsplit('.').next() == Some("strategy")
}

fn all_of(file: &str, problems: Vec<Problem>) -> Errors {
    Errors {
        file: file.into(),
        problems,
        omitted: 0,
    }
}

/// A value of a sweep as tables show it.
fn shown(change: &Override) -> String {
    change.value().trim_matches('"').to_owned()
}

/// Each value of the first sweep with each of the second: whether it is for the configuration, and
/// what it is.
fn pairs(text: &Text) -> Vec<Vec<(bool, Override)>> {
    let mut pairs = vec![Vec::new()];
    for sweep in &text.sweeps {
        let with = |before: Vec<(bool, Override)>| {
            sweep.values.iter().map(move |value| {
                let mut all = before.clone();
                all.push((sweep.of_config, value.clone()));
                all
            })
        };
        pairs = pairs.into_iter().flat_map(with).collect();
    }
    pairs
}

impl Point {
    pub(super) fn new(
        text: Text,
        mut config: Config,
        values: Vec<String>,
    ) -> Result<(Self, Vec<Problem>), Vec<Problem>> {
        let mut problems = Vec::new();
        let mut warnings = text.warnings.clone();
        let group = group_of(&text, &mut config)?;
        resize(group, &text)?;
        let group = group.clone();
        let members: Vec<String> = group.members.iter().map(MemberConfig::shown_name).collect();
        let by_name = index_members(&group.members);
        let models = member_models(&text, &group, &members, &by_name, &mut problems);
        let events = resolve_events(&text, &group, &members, &by_name, &mut problems);
        let times = match Times::new(&text.service) {
            Ok(times) => times,
            Err(more) => {
                problems.extend(more);
                return Err(problems);
            }
        };
        if !problems.is_empty() {
            return Err(problems);
        }
        let used = |index: &usize| is_used(&group.members[*index]);
        let speed = |index: usize| {
            let model = &models[index];
            (1.0 - model.failing) * model.concurrency as f64 * model.capacity
        };
        let speeds = (0..models.len()).filter(used).map(speed);
        let capacity = speeds.sum::<f64>() * 1e9 / times.mean();
        let offered = check_load(&text, capacity, &models, &times, &mut warnings)?;
        let name = group.name.clone();
        let strategy = group.strategy.kind().name.to_owned();
        let reports = text.reports.map(|reports| Reports {
            id: group.settings.load_id,
            interval: reports.interval,
            delay: reports.delay,
            noise: reports.noise,
        });
        let Some(mut world) = Scenario::for_group(config, &name) else {
            return Err(vec![text.group_place.problem("there is no such group")]);
        };
        world.members = models.iter().map(member).collect();
        set_world(&mut world, &text, times.mean());
        world.reports = reports;
        let engines = match &text.engines {
            Some(engines) => Some(EnginePoint::new(engines, &world, &text)?),
            None => None,
        };
        let point = Point {
            engines,
            values,
            group: name,
            strategy,
            members,
            offered,
            capacity,
            is_ideal: false,
            world,
            events,
            times,
            text,
            replay: None,
        };
        Ok((point, warnings))
    }

    /// Returns the same world with the central queue.
    fn ideal(&self, keys: &[String]) -> Result<Self, Box<Problem>> {
        let (load, keyed) = (&self.text.load, &self.text.keys);
        let workers: usize = self.world.members.iter().map(|member| member.slots).sum();
        let why = if self.engines.is_some() {
            Some("the central queue knows nothing of engines: leave out --ideal".to_owned())
        } else if load.level == scenario::Level::Connection {
            Some("connections stay with their members: leave out --ideal, or set `level = \"request\"`".to_owned())
        } else if keyed.cache > 0 && keyed.count > 1 {
            Some(
                "the central queue knows nothing of caches: leave out --ideal, or `cache`"
                    .to_owned(),
            )
        } else if workers > MAX_IDEAL {
            Some(format!(
                "the central queue looks at each of {workers} workers for every request, and at most at \
                 {MAX_IDEAL}: leave out --ideal, or lower `members.count` or `concurrency`"
            ))
        } else {
            None
        };
        if let Some(message) = why {
            return Err(Box::new(self.text.load_place.problem(message)));
        }
        let mut world = self.world.clone();
        let members = world.config.iter().flat_map(|config| &config.groups);
        let members = members.filter(|group| group.name == self.group);
        let members = members.flat_map(|group| &group.members);
        let unused: Vec<bool> = members.map(|member| !is_used(member)).collect();
        // The strategy avoids members that fail, as it must avoid members that get no requests.
        for (member, _) in (world.members.iter_mut().zip(unused)).filter(|(_, unused)| *unused) {
            member.failing = 1.0;
        }
        let name = |(key, value): (&String, &String)| match is_strategy(key) {
            true => IDEAL.to_owned(),
            false => value.clone(),
        };
        Ok(Point {
            values: keys.iter().zip(&self.values).map(name).collect(),
            group: self.group.clone(),
            strategy: IDEAL.into(),
            members: self.members.clone(),
            offered: self.offered,
            capacity: self.capacity,
            is_ideal: true,
            engines: None,
            // A log's data about members is not played with the central queue.
            replay: None,
            world,
            events: self.events.clone(),
            times: self.times.clone(),
            text: self.text.clone(),
        })
    }

    /// Builds the source of the requests.
    pub(super) fn source(&self, seed: u64, is_first: bool) -> Source {
        if let Some(replay) = &self.replay {
            return Source {
                group: self.group.clone(),
                arrivals: Arrivals::Listed,
                visit: Visit::ONE,
                work: Box::new(replay.work(seed, is_first)),
            };
        }
        let load = &self.text.load;
        let offered = self.text.load.utilisation * self.capacity;
        let sessions = load.rate.map_or(offered / load.requests as f64, f64::from);
        let arrivals = match (load.clients, load.burst) {
            (Some(clients), _) => Arrivals::Closed(clients),
            (None, None) => Arrivals::Open(sessions),
            (None, Some(burst)) => Arrivals::Bursts(Bursts {
                rate: sessions,
                every: duration_nanos(burst.every),
                length: duration_nanos(burst.length),
                factor: burst.factor,
            }),
        };
        Source {
            group: self.group.clone(),
            arrivals,
            visit: Visit {
                requests: load.requests,
                think: duration_nanos(load.think),
                connection: load.level == scenario::Level::Connection,
            },
            work: Box::new(Costs::new(&self.times, &self.text.keys, self.members.len())),
        }
    }
}

/// Returns the model of each member of the group.
fn member_models(
    text: &Text,
    group: &GroupConfig,
    members: &[String],
    by_name: &HashMap<String, usize>,
    problems: &mut Vec<Problem>,
) -> Vec<Model> {
    let mut models = vec![text.members.model; members.len()];
    let mut told = HashSet::new();
    for (name, place, model) in &text.member {
        match by_name.get(name) {
            Some(&index) if told.insert(index) => models[index] = *model,
            Some(&index) => {
                let message = format!(
                    "{} has a table already, under its other name",
                    members[index]
                );
                problems.push(place.problem(message));
            }
            None => problems.push(place.problem(no_member(name, &group.name, members))),
        }
    }
    models
}

/// Returns the events with the indexes of their members: all members, if an event names none.
fn resolve_events(
    text: &Text,
    group: &GroupConfig,
    members: &[String],
    by_name: &HashMap<String, usize>,
    problems: &mut Vec<Problem>,
) -> Vec<ResolvedEvent> {
    let mut events = Vec::new();
    for event in &text.events {
        let mut of = Vec::new();
        for name in &event.members {
            match by_name.get(name) {
                Some(&index) => of.push(index),
                None => {
                    let message = no_member(name, &group.name, members);
                    problems.push(event.place.problem(message));
                }
            }
        }
        if event.members.is_empty() {
            of = (0..members.len()).collect();
        }
        let event = event.clone();
        events.push(ResolvedEvent { event, members: of });
    }
    let strokes = events.iter().map(|event| event.strokes(text.duration));
    if strokes.sum::<u128>() > MAX_STROKES
        && let Some(first) = text.events.first()
    {
        let message =
            format!("the events strike members more than {MAX_STROKES} times: make `every` longer");
        problems.push(first.place.problem(message));
    }
    events
}

/// Returns the requests per second that are asked for, without clients that wait.
///
/// # Errors
///
/// There is no capacity of which to ask a share, or the run would have too many requests.
fn check_load(
    text: &Text,
    capacity: f64,
    models: &[Model],
    times: &Times,
    warnings: &mut Vec<Problem>,
) -> Result<Option<f64>, Vec<Problem>> {
    let per_session = text.load.requests as f64;
    let rate = text.load.rate.map(|rate| f64::from(rate) * per_session);
    // On average: with bursts there is more.
    let more = text.load.burst.map_or(1.0, |burst| {
        1.0 + (burst.factor - 1.0) * duration_nanos(burst.length) / duration_nanos(burst.every)
    });
    let usual = rate.unwrap_or(text.load.utilisation * capacity);
    let offered = text.load.clients.is_none().then_some(usual * more);
    let offered = offered.filter(|_| text.engines.is_none());
    let cached = text.keys.cache > 0 && text.keys.count > 1;
    if let Some(offered) = offered
        && offered > capacity
        && !text.load.overload
        && !cached
    {
        let message = format!(
            "asks for {offered:.0} requests per second of members that can serve {capacity:.0}: \
             queues get longer until the end; ask for less, or set `overload = true` if you want this"
        );
        warnings.push(text.load_place.problem(message));
    }
    if capacity <= 0.0 && rate.is_none() && text.load.clients.is_none() {
        let message = "no member can serve: a share of the capacity is nothing";
        return Err(vec![text.load_place.problem(message)]);
    }
    // Clients that wait ask for no more than members serve, and than they think about.
    let shortest = times.mean() / models.iter().map(|of| of.capacity).fold(1e-3, f64::max);
    let asked = text.load.clients.map_or(usual * more, |clients| {
        (clients as f64 * 1e9 / (shortest + duration_nanos(text.load.think))).min(capacity)
    });
    let requests = asked * text.duration.as_secs_f64();
    if requests > MAX_REQUESTS && !cached {
        let message = format!(
            "about {:.0} million requests in a run are too many: at most {:.0} million; make \
             `duration` shorter, or ask for less",
            requests / 1e6,
            MAX_REQUESTS / 1e6
        );
        return Err(vec![text.load_place.problem(message)]);
    }
    Ok(offered)
}

/// Sets what a scenario says of balancers, network and service.
fn set_world(world: &mut Scenario, text: &Text, mean_cost: f64) {
    world.announced = text.service.announced;
    world.streams = text.service.streams;
    world.mean_cost = mean_cost;
    world.balancers = text.balancers;
    world.view = text.view;
    world.fleet_in_flight = text.fleet_in_flight;
    world.network = text.network;
    world.session = text.load.linger;
    world.way = text.reports.map_or(Way::default(), |reports| Way {
        jitter: reports.jitter,
        loss: reports.loss,
    });
    world.length = Some(text.duration);
    world.samples = Some(text.duration / SAMPLES);
}

/// True if the member gets requests while others are up.
fn is_used(member: &MemberConfig) -> bool {
    member.weight.get() > 0.0 && !member.drain && !member.backup
}

fn member(model: &Model) -> MemberModel {
    MemberModel {
        discipline: match model.discipline {
            Works::Fifo => Discipline::Fifo,
            Works::Sharing => Discipline::Sharing,
        },
        slots: model.concurrency,
        slowness: 1.0 / model.capacity,
        failing: model.failing,
        weight: 1.0,
    }
}

/// The group that the scenario is about.
pub(super) fn group_of<'c>(
    text: &Text,
    config: &'c mut Config,
) -> Result<&'c mut GroupConfig, Vec<Problem>> {
    let names: Vec<String> = config
        .groups
        .iter()
        .map(|group| group.name.clone())
        .collect();
    let all = names.join(", ");
    let mut groups = config.groups.iter_mut();
    let found = match (&text.group, names.len()) {
        (Some(name), _) => groups.find(|group| group.name == *name),
        (None, 1) => groups.next(),
        (None, 0) => None,
        (None, _) => {
            let message = format!("`group` is missing: the configuration has several: {all}");
            return Err(vec![text.group_place.problem(message)]);
        }
    };
    let found = found.map(|group| &mut **group);
    found.ok_or_else(|| {
        let message = match names.is_empty() {
            true => "the configuration has no group".to_owned(),
            false => format!("the configuration has no such group, but {all}"),
        };
        vec![text.group_place.problem(message)]
    })
}

/// Gives a group as many members as the scenario wants.
fn resize(group: &mut GroupConfig, text: &Text) -> Result<(), Vec<Problem>> {
    if let (Some(count), Some(last)) = (text.members.count, group.members.last().cloned()) {
        group.members.truncate(count);
        for index in group.members.len()..count {
            let host = std::net::Ipv4Addr::from_bits(0x0afe_0000 + index as u32);
            let mut member = MemberConfig::new(&host.to_string(), last.port.max(1));
            member.weight = last.weight;
            member.max_connections = last.max_connections;
            member.zone.clone_from(&last.zone);
            group.members.push(member);
        }
    }
    if group.members.is_empty() {
        let message = format!(
            "group {:?} has no members of its own: those of services, files and agents are not \
             known here. Name some in the configuration",
            group.name
        );
        return Err(vec![text.group_place.problem(message)]);
    }
    Ok(())
}

/// Indexes of members by their addresses and by the names that they were given.
pub(super) fn index_members(members: &[MemberConfig]) -> HashMap<String, usize> {
    let all = members.iter().enumerate();
    let names = all.flat_map(|(index, of)| {
        let names = std::iter::once(of.name()).chain(of.given_name.clone());
        names.map(move |name| (name, index))
    });
    names.collect()
}

fn no_member(name: &str, group: &str, members: &[String]) -> String {
    let shown = members.iter().take(10).cloned().collect::<Vec<_>>();
    let rest = if members.len() > 10 { ", …" } else { "" };
    format!(
        "group {group:?} has no member {name:?}, but {}{rest}",
        shown.join(", ")
    )
}
