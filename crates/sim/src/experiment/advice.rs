//! Advice from a log of real requests: plays the same requests with other strategies and other numbers of members, and
//! says which of them would have been better, and how sure that is.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::alert::Threshold;
use evenkeel_core::group::Granularity;
use evenkeel_core::load::LoadId;
use evenkeel_core::strategy::{Values, find};
use evenkeel_manager::config::scenario::{self, Discipline, Distribution, Model};
use evenkeel_manager::config::{
    self, Config, Errors, GroupConfig, MAX_FILE_SIZE, MemberConfig, Problem, SourcePosition,
    read_file,
};
use serde_json::{Value, json};

use super::plan::{Plan, Point, group_of, index_members};
use super::replay::{Came, Replay};
use super::statistics::MEASURED;
use super::statistics::{FIGURES, Mean};
use super::{Results, Unit};
use crate::log::{Entry, Format, Log};

/// Most requests that are played again: the last ones of a log.
const MAX_PLAYED: usize = 100_000;
/// Fewest requests for a result.
const FEWEST: usize = 50;
/// Most classes of requests; the rarest share one class.
const CLASSES: usize = 8;
/// Most requests at once that are told apart.
const MOST_AT_ONCE: usize = 256;
/// Default number of runs of each world.
pub const SEEDS: usize = 5;
/// Relative difference of response times from which a change is worth it (`WORTH`), and from which a forecast is called
/// wrong (`WRONG`).
const WORTH: f64 = 0.1;
const WRONG: f64 = 0.25;
/// Factor by which thresholds are lowered and raised.
const FURTHER: f64 = 1.5;
/// Parameter of strategies: a member above it gets no new requests.
const REJECT: &str = "reject_threshold";
/// Strategies that are tried beside the configured one: strategies that need neither load reports nor keys.
const STRATEGIES: [&str; 5] = [
    "adaptive",
    "least_request",
    "peak_ewma",
    "round_robin",
    "random",
];

/// Parameters of an advice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Question<'a> {
    /// The group, where the configuration has several.
    pub group: Option<&'a str>,
    /// The mean service time where the log has none.
    pub service: Option<Duration>,
    /// The first seed.
    pub seed: Option<u32>,
    /// Number of seeds.
    pub seeds: Option<usize>,
}

/// Facts about a log, found before anything is played.
#[derive(Clone, Debug)]
pub struct Study {
    /// Properties of the log, in sentences.
    pub facts: Vec<String>,
    /// Questions that the log cannot answer, in sentences.
    pub unknown: Vec<String>,
    /// Unreadable lines, the first ones.
    pub unreadable: Vec<String>,
    /// The measured median and 99th percentile in milliseconds, if the log has times.
    pub measured: Option<(f64, f64)>,
    /// Number of members in the configuration.
    members: usize,
    /// Names of the thresholds of loads that are tried.
    thresholds: Vec<&'static str>,
}

/// Advice that results from the runs.
#[derive(Clone, Debug)]
pub struct Advice {
    /// Recommendations, in sentences.
    pub advice: Vec<String>,
    /// Agreement of the log with the forecast for the unchanged configuration, in a sentence.
    pub agreement: String,
    /// Index of the recommended world.
    pub best: usize,
}

/// Makes the plan of the runs for the configuration in the file at `path`.
///
/// # Errors
///
/// All faults of the configuration, or the reason for which the log says nothing about it.
pub fn make_plan(path: &Path, log: &Log, question: &Question<'_>) -> Result<(Plan, Study), Errors> {
    let file = path.display().to_string();
    let fail = |message: String| {
        let place = SourcePosition {
            file: file.clone(),
            ..SourcePosition::default()
        };
        Errors {
            file: file.clone(),
            problems: vec![place.problem(message)],
            omitted: 0,
        }
    };
    let failed = |problems: Vec<Problem>| Errors {
        file: file.clone(),
        problems,
        omitted: 0,
    };
    let text = read_file(path, MAX_FILE_SIZE).map_err(|error| fail(format!("{file}: {error}")))?;
    let mut config = config::parse_with(&file, &text, &[])?;
    let mut world = scenario::parse(&file, "config = \"x\"\n", &[])?;
    world.group = question.group.map(str::to_owned);
    let names: Vec<&str> = config.groups.iter().map(|group| &*group.name).collect();
    let has = |name: &str| names.contains(&name);
    match question.group {
        Some(name) if !names.is_empty() && !has(name) => {
            let all = names.join(", ");
            return Err(fail(format!(
                "--group {name}: the configuration has no such group, but {all}"
            )));
        }
        None if names.len() > 1 => {
            let all = names.join(", ");
            let message = "the configuration has several groups: name the group of the log with --group NAME, one of";
            return Err(fail(format!("{message} {all}")));
        }
        _ => {}
    }
    let group = group_of(&world, &mut config).map_err(failed)?.clone();
    let names: Vec<String> = group.members.iter().map(MemberConfig::shown_name).collect();
    let learnt = learn(log, &config, &group, &names, question).map_err(&fail)?;
    let mut study = learnt.study;
    // The log's times include the way to the member.
    world.network = Duration::ZERO;
    world.duration = Duration::from_nanos(learnt.replay.length).max(Duration::from_millis(1));
    world.service.distribution = Distribution::Constant;
    world.service.mean = Duration::from_nanos(learnt.mean as u64).max(Duration::from_nanos(1));
    let seconds = world.duration.as_secs_f64();
    world.load.rate = Some((learnt.replay.arrivals.len() as f64 / seconds) as f32);
    world.load.overload = true;
    world.members.model.concurrency = learnt.concurrency;
    world.members.model.discipline = Discipline::Fifo;
    let thresholds = thresholds_of(&group, &learnt.replay, &mut study.unknown);
    study.thresholds = thresholds.iter().map(|(name, _)| *name).collect();
    world.reports = (!thresholds.is_empty()).then(scenario::Reports::default);
    let mut plan = Plan {
        file: file.clone(),
        keys: vec!["change".into()],
        points: Vec::new(),
        seed: u64::from(question.seed.unwrap_or(1)),
        seeds: question.seeds.unwrap_or(SEEDS),
        warnings: Vec::new(),
    };
    let replay = Arc::new(learnt.replay);
    let mut add = |change: String, config: Config, count: usize| -> Result<(), Errors> {
        let mut world = world.clone();
        world.members.count = (count != names.len()).then_some(count);
        world.member = (names.iter().zip(&learnt.models).take(count))
            .map(|(name, model)| (name.clone(), SourcePosition::default(), Model { ..*model }))
            .map(|(name, place, mut model)| {
                model.concurrency = learnt.concurrency;
                (name, place, model)
            })
            .collect();
        let (mut point, _) = Point::new(world, config, vec![change]).map_err(failed)?;
        point.replay = Some(Arc::clone(&replay));
        plan.points.push(point);
        Ok(())
    };
    add("as it is".into(), config.clone(), names.len())?;
    let with = |strategy: Option<Values>, late: Option<bool>| {
        let mut config = config.clone();
        for of in config.groups.iter_mut().filter(|of| of.name == group.name) {
            if let Some(strategy) = &strategy {
                of.strategy = strategy.clone();
                of.settings.late_binding = None;
            }
            if late.is_some() {
                of.settings.late_binding = late;
            }
        }
        config
    };
    for name in STRATEGIES {
        if let Some(kind) = find(name).filter(|_| name != group.strategy.kind().name) {
            let values = Values::defaults(kind);
            add(
                format!("strategy = {name}"),
                with(Some(values), None),
                names.len(),
            )?;
        }
    }
    for (name, value) in thresholds {
        for value in [value / FURTHER, value * FURTHER] {
            // Two digits.
            let value: f64 = format!("{value:.1e}").parse().unwrap_or(value);
            let Some(changed) = with_threshold(&group, name, value) else {
                continue;
            };
            let mut config = config.clone();
            let mut groups = config.groups.iter_mut();
            if let Some(of) = groups.find(|of| of.name == group.name) {
                *of = changed;
            }
            add(format!("{name} = {value}"), config, names.len())?;
        }
    }
    let late = group.settings.late_binding;
    let late = late.unwrap_or(group.strategy.kind().binds_late);
    let change = format!("late_binding = {}", !late);
    add(change, with(None, Some(!late)), names.len())?;
    if names.len() > 1 {
        add(
            format!("{} members", names.len() - 1),
            config.clone(),
            names.len() - 1,
        )?;
    }
    for more in 1..=2 {
        let count = names.len() + more;
        add(format!("{count} members"), config.clone(), count)?;
    }
    Ok((plan, study))
}

/// Returns the name of the threshold of a group's alerts, and its value.
fn of_alerts(threshold: Threshold) -> (&'static str, f64) {
    let (name, value) = match threshold {
        Threshold::Critical(value) => ("alert.threshold", value),
        Threshold::AboveMinimum(value) => ("alert.threshold.above_minimum", value),
        Threshold::AboveAverage(value) => ("alert.threshold.above_average", value),
    };
    (name, f64::from(value))
}

/// Returns the group with another value of this threshold; `None` if the group has no such threshold or the value is
/// out of range.
fn with_threshold(group: &GroupConfig, name: &str, value: f64) -> Option<GroupConfig> {
    let mut group = group.clone();
    match &mut group.settings.alert.threshold {
        Some(threshold) if of_alerts(*threshold).0 == name => match threshold {
            Threshold::Critical(of) | Threshold::AboveMinimum(of) | Threshold::AboveAverage(of) => {
                *of = value as f32;
            }
        },
        _ => {
            group.strategy.set(name, value).ok()?;
            group.strategy.check_params().ok()?;
        }
    }
    Some(group)
}

/// Names and values of the thresholds that are tried with other values, and why others are not.
fn thresholds_of(
    group: &GroupConfig,
    replay: &Replay,
    unknown: &mut Vec<String>,
) -> Vec<(&'static str, f64)> {
    let settings = &group.settings;
    let of_strategy = |name: &'static str| {
        let value = group.strategy.try_get(name).filter(|value| *value > 0.0)?;
        settings.adaptive.then_some((name, value))
    };
    let rejects = of_strategy(REJECT);
    // The one of the group is stronger than the strategy's.
    let own = settings.alert.threshold.filter(|_| settings.adaptive);
    let alerts = own.map(of_alerts).or_else(|| {
        let mut names = ["critical_threshold", "critical_excess"].into_iter();
        names.find_map(of_strategy)
    });
    let is_bound = settings.granularity != Granularity::PerRequest;
    let is_told = replay.arrivals.iter().any(|came| came.connection.is_some());
    let simulated = [
        LoadId::CPU,
        LoadId::UTILIZATION,
        LoadId::IN_FLIGHT,
        LoadId::COMPOSITE,
    ];
    let mut tell = |text: &str| unknown.push(text.into());
    if is_bound && !is_told {
        tell(
            "Bound clients: the log does not say which requests came over one connection, so each is bound anew.",
        );
    }
    if rejects.is_none() && alerts.is_none() {
        return Vec::new();
    }
    if !simulated.contains(&settings.load_id) {
        tell(
            "Thresholds of loads: the log has no loads, and the load of the group is not simulated, so \
             no threshold is played.",
        );
        return Vec::new();
    }
    tell(
        "Loads: the log has none. Members are taken to report once a second the share of their workers' time that was busy with \
         these requests (or for `in_flight` their number). The log does not say what else your machines do, or how late your reports are: other thresholds are compared with yours in this simulated world, and the best values may differ on your machines.",
    );
    let moves = is_bound && is_told;
    if alerts.is_some() && !moves {
        tell(match is_bound {
            true => {
                "Thresholds of alerts: alerts move clients that are bound, so no other threshold is tried."
            }
            false => {
                "Thresholds of alerts: with granularity `per_request` no client is bound that an alert \
                 could move, so no other threshold is tried."
            }
        });
    }
    rejects
        .into_iter()
        .chain(alerts.filter(|_| moves))
        .collect()
}

/// Parameters of a group, learnt from a log.
struct Learnt {
    study: Study,
    replay: Replay,
    models: Vec<Model>,
    concurrency: usize,
    /// Mean service time at a member of normal speed, in nanoseconds.
    mean: f64,
}

/// A request whose time is known.
struct Timed {
    member: usize,
    class: usize,
    start: f64,
    end: f64,
    /// Number of requests at the member when this one came.
    found: usize,
    service: f64,
}

#[allow(clippy::too_many_lines)] // One step after the other, each of which says what it found.
fn learn(
    log: &Log,
    config: &Config,
    group: &GroupConfig,
    names: &[String],
    question: &Question<'_>,
) -> Result<Learnt, String> {
    let name = |number: Option<usize>| number.and_then(|number| log.names.get(number));
    let (mut facts, mut unknown) = (Vec::new(), Vec::new());
    let is_json = log.format == Some(Format::Json);
    let ours = |entry: &&Entry| {
        if !is_json {
            return true;
        }
        let of_rule = || {
            let rule = name(entry.rule);
            let mut rules = config.rules.iter();
            rules.any(|known| Some(&known.name) == rule && known.group == group.name)
        };
        name(entry.group).map_or_else(of_rule, |of| *of == group.name)
    };
    let mut entries: Vec<&Entry> = log.entries.iter().filter(ours).collect();
    if entries.len() < FEWEST {
        return Err(format!(
            "the log has {} requests of group {:?} ({} lines, {} unreadable), which are too few: at \
             least {FEWEST} are needed; give a longer log, or name another group with --group",
            entries.len(),
            group.name,
            log.lines,
            log.unreadable
        ));
    }
    let all = entries.len();
    entries.drain(..all.saturating_sub(MAX_PLAYED));
    // Whole seconds: requests of one are spread over it, by a chance that is always the same.
    let mut rng = fastrand::Rng::with_seed(1);
    let mut at: Vec<f64> = (entries.iter())
        .map(|entry| {
            let spread = if log.whole_seconds {
                rng.f64() * 1e3
            } else {
                0.0
            };
            // Combined logs are written at the end of a request.
            let before = match log.format {
                Some(Format::Combined) => entry.waited.unwrap_or(0.0),
                _ => 0.0,
            };
            entry.at + spread - before
        })
        .collect();
    let mut order: Vec<usize> = (0..at.len()).collect();
    order.sort_by(|a, b| at[*a].total_cmp(&at[*b]));
    let entries: Vec<&Entry> = order.iter().map(|&index| entries[index]).collect();
    at.sort_by(f64::total_cmp);
    let (first, last) = (
        at.first().copied().unwrap_or(0.0),
        at.last().copied().unwrap_or(0.0),
    );
    let seconds = ((last - first) / 1e3).max(1e-3);
    facts.push(format!(
        "{} requests in {seconds:.1} s ({:.1} per second), {} format, {} unreadable lines.",
        entries.len(),
        entries.len() as f64 / seconds,
        match log.format {
            Some(Format::Json) => "Evenkeel's",
            Some(Format::Combined) => "combined",
            Some(Format::Haproxy) => "HAProxy's",
            None => "no",
        },
        log.unreadable
    ));
    let configured = &group.members;
    let members = members_of(log, &entries, (configured, names), &mut facts, &mut unknown);
    // The commonest classes.
    let mut counts: BTreeMap<Option<usize>, usize> = BTreeMap::new();
    entries
        .iter()
        .for_each(|entry| *counts.entry(entry.class).or_default() += 1);
    let mut common: Vec<_> = counts.into_iter().collect();
    common.sort_by_key(|&(class, count)| (Reverse(count), class));
    common.truncate(CLASSES - 1);
    let class = |entry: &Entry| {
        let found = common.iter().position(|&(class, _)| class == entry.class);
        found.unwrap_or(common.len())
    };
    // Each known time, by when it was at its member.
    let mut timed: Vec<Timed> = (entries.iter().zip(&at))
        .filter(|(entry, _)| !entry.failed && entry.waited.is_some_and(|waited| waited > 0.0))
        .map(|(entry, at)| {
            let waited = entry.waited.unwrap_or(0.0);
            Timed {
                member: members.of(entry.member),
                class: class(entry),
                start: at + entry.queued.unwrap_or(0.0).min(waited),
                end: at + waited,
                found: 0,
                service: waited,
            }
        })
        .collect();
    timed.sort_by(|a, b| a.start.total_cmp(&b.start));
    let measured = quantiles(&entries, &at, last - seconds * 1e3 * MEASURED);
    let mut concurrency = 1;
    let mut slowness = vec![1.0; members.count];
    let mut classes;
    if timed.len() >= FEWEST {
        concurrency = match log.whole_seconds || !members.known {
            true => {
                // Little: requests in flight are rate times time.
                let sum: f64 = timed.iter().map(|one| one.service).sum();
                let each = sum / 1e3 / seconds / names.len().max(1) as f64;
                unknown.push(
                    "Queueing in the members: times are whole seconds, or there is no member in the log, so what \
                     requests waited at members is part of their service times, and a member is taken to work on twice as many at once \
                     as it had on average. A few members more or fewer may then look better than they are."
                        .into(),
                );
                (each * 2.0).ceil().clamp(1.0, 1e4) as usize
            }
            false => unqueue(&mut timed, members.count, &mut unknown),
        };
        (slowness, classes) = speeds(&timed, members.count, common.len() + 1);
    } else if let Some(mean) = question.service {
        let mean = mean.as_nanos() as f64;
        let draws = (0..1000).map(|turn| -mean * libm::log((f64::from(turn) + 0.5) / 1000.0));
        classes = vec![draws.collect(); common.len() + 1];
        unknown.push(
            "Service times: the log has none, so the simulation uses --service-time (exponential)."
                .into(),
        );
    } else {
        return Err(
            "the log does not say how long requests took: add it (nginx: `$request_time` after the combined \
             format, Apache httpd: `%D`), or give the usual time with --service-time"
                .into(),
        );
    }
    let usual: Vec<f64> = classes.iter().flatten().copied().collect();
    let mean = usual.iter().sum::<f64>() / usual.len().max(1) as f64;
    for times in &mut classes {
        if times.is_empty() {
            times.push(mean);
        }
        times.sort_by(f64::total_cmp);
    }
    let own = own_times(&timed, &slowness, names.len(), classes.len());
    let models = models(
        &entries,
        &members,
        &slowness,
        names,
        &mut facts,
        (mean, concurrency),
    );
    cannot_tell(log, (all, entries.len(), seconds), &entries, &mut unknown);
    let replay = Replay {
        arrivals: (entries.iter().zip(&at))
            .map(|(entry, at)| Came {
                at: ((at - first) * 1e6) as u64,
                class: class(entry),
                connection: entry.connection,
            })
            .collect(),
        classes,
        own,
        length: (seconds * 1e9) as u64,
    };
    let study = Study {
        facts,
        unknown,
        unreadable: log.shown.clone(),
        measured,
        members: names.len(),
        thresholds: Vec::new(),
    };
    Ok(Learnt {
        study,
        replay,
        models,
        concurrency,
        mean,
    })
}

/// Assignment of the log's names to members.
struct Members {
    /// By number of a name in the log, the index of the member.
    by_name: BTreeMap<usize, usize>,
    count: usize,
    /// True if the log names members.
    known: bool,
}

impl Members {
    fn of(&self, name: Option<usize>) -> usize {
        let found = name.and_then(|name| self.by_name.get(&name));
        // All that nobody knows are as one more.
        found.copied().unwrap_or(self.count - 1)
    }
}

fn members_of(
    log: &Log,
    entries: &[&Entry],
    (configured, names): (&[MemberConfig], &[String]),
    facts: &mut Vec<String>,
    unknown: &mut Vec<String>,
) -> Members {
    let mut seen: Vec<usize> = (entries.iter())
        .flat_map(|entry| entry.member.iter().chain(&entry.tried).copied())
        .collect();
    seen.sort_unstable();
    seen.dedup();
    let text = |number: &usize| log.names.get(*number).cloned().unwrap_or_default();
    let known_names = index_members(configured);
    let mut by_name: BTreeMap<usize, usize> = BTreeMap::new();
    for number in &seen {
        if let Some(index) = known_names.get(&text(number)) {
            by_name.insert(*number, *index);
        }
    }
    let known = !seen.is_empty();
    if !known {
        unknown.push(
            "Members: the log names none, so all are taken to be equally fast and sound.".into(),
        );
    } else if by_name.is_empty() && seen.len() <= names.len() {
        seen.sort_by_key(text);
        let pairs = seen
            .iter()
            .zip(names)
            .map(|(number, name)| format!("{} is {name}", text(number)));
        let pairs: Vec<String> = pairs.take(20).collect();
        facts.push(format!(
            "The names of members in the log differ from those in the configuration; matched in the \
             order of names: {}.",
            pairs.join(", ")
        ));
        by_name = seen
            .iter()
            .enumerate()
            .map(|(index, number)| (*number, index))
            .collect();
    } else {
        let strangers = seen
            .iter()
            .filter(|number| !by_name.contains_key(number))
            .map(text);
        let strangers: Vec<String> = strangers.take(10).collect();
        if !strangers.is_empty() {
            unknown.push(format!(
                "Members that the configuration does not have: {}. Their requests are played, but their \
                 speeds are not used.",
                strangers.join(", ")
            ));
        }
    }
    let unseen = (0..names.len()).filter(|index| !by_name.values().any(|known| known == index));
    let unseen: Vec<String> = unseen
        .filter_map(|index| names.get(index).cloned())
        .take(10)
        .collect();
    if known && !unseen.is_empty() {
        unknown.push(format!(
            "Members of the configuration that the log does not have: {}. They are taken to be of usual speed.",
            unseen.join(", ")
        ));
    }
    Members {
        by_name,
        count: names.len() + 1,
        known,
    }
}

/// Takes what requests waited at members out of their times, and answers how many a member works on at once.
fn unqueue(timed: &mut [Timed], members: usize, unknown: &mut Vec<String>) -> usize {
    // How many of our requests each found at its member.
    let mut ends: Vec<BinaryHeap<Reverse<u64>>> = vec![BinaryHeap::new(); members];
    let micros = |time: f64| (time * 1e3) as u64;
    for one in timed.iter_mut() {
        let ends = &mut ends[one.member];
        while ends
            .peek()
            .is_some_and(|Reverse(end)| *end <= micros(one.start))
        {
            ends.pop();
        }
        one.found = ends.len();
        ends.push(Reverse(micros(one.end)));
    }
    // Where more at once make answers slower, there are no more workers. The members' speeds
    // differ: times are compared with those of the same member that found it idle.
    let mut idle = vec![(0.0, 0usize); members];
    for one in timed.iter().filter(|one| one.found == 0) {
        idle[one.member].0 += one.service;
        idle[one.member].1 += 1;
    }
    let mut by_found = vec![(0.0, 0usize); MOST_AT_ONCE];
    for one in timed.iter() {
        let (sum, count) = idle[one.member];
        if count >= 10
            && let Some(of) = by_found.get_mut(one.found)
        {
            of.0 += one.service / (sum / count as f64);
            of.1 += 1;
        }
    }
    let mut concurrency = 1;
    let mut was_seen = false;
    for &(sum, count) in by_found.iter().skip(1) {
        if count < 20 {
            break;
        }
        if sum / count as f64 > 1.25 {
            was_seen = true;
            break;
        }
        concurrency += 1;
    }
    if !was_seen {
        unknown.push(format!(
            "Capacity of members: they never had more requests at once than they could work on, or too \
             seldom. They are taken to work on {concurrency} requests at once; if they can work on \
             more, fewer members would do."
        ));
    }
    // First come first served by so many workers: a request begins when one is free.
    let mut free: Vec<BinaryHeap<Reverse<u64>>> = vec![BinaryHeap::new(); members];
    for one in timed.iter_mut() {
        let free = &mut free[one.member];
        let mut start = one.start;
        if free.len() >= concurrency
            && let Some(Reverse(end)) = free.pop()
        {
            start = start.max(end as f64 / 1e3);
        }
        free.push(Reverse(micros(one.end)));
        one.service = (one.end - start).max(0.001);
    }
    concurrency
}

/// Estimates each member's slowness as a multiple of the usual one, and the cost of a request of each class at a member
/// of usual speed, in nanoseconds.
fn speeds(timed: &[Timed], members: usize, classes: usize) -> (Vec<f64>, Vec<Vec<f64>>) {
    let mut slowness = vec![1.0; members];
    let mut means = vec![1.0; classes];
    // Each is estimated with the other, because members may have got different classes.
    for _ in 0..4 {
        let mut sums = vec![(0.0, 0usize); classes];
        for one in timed {
            sums[one.class].0 += one.service / slowness[one.member];
            sums[one.class].1 += 1;
        }
        for (mean, (sum, count)) in means.iter_mut().zip(sums) {
            if count > 0 && sum > 0.0 {
                *mean = sum / count as f64;
            }
        }
        let mut sums = vec![(0.0, 0usize); members];
        for one in timed {
            sums[one.member].0 += one.service / means[one.class];
            sums[one.member].1 += 1;
        }
        for (slow, (sum, count)) in slowness.iter_mut().zip(&sums) {
            if *count >= 5 {
                *slow = (sum / *count as f64).clamp(1e-3, 1e3);
            }
        }
        // The usual one is the median, so that one slow member is just that.
        let mut known: Vec<f64> = (slowness.iter().zip(&sums))
            .filter(|(_, (_, count))| *count >= 5)
            .map(|(slow, _)| *slow)
            .collect();
        known.sort_by(f64::total_cmp);
        let usual = known
            .get((known.len().saturating_sub(1)) / 2)
            .copied()
            .unwrap_or(1.0);
        slowness
            .iter_mut()
            .zip(&sums)
            .for_each(|(slow, (_, count))| {
                *slow = if *count >= 5 {
                    (*slow / usual).clamp(1e-3, 1e3)
                } else {
                    1.0
                };
            });
    }
    let mut costs = vec![Vec::new(); classes];
    for one in timed {
        costs[one.class].push((one.service * 1e6 / slowness[one.member]).max(1.0));
    }
    (slowness, costs)
}

/// Service times of each member and class at normal speed in nanoseconds, sorted.
fn own_times(
    timed: &[Timed],
    slowness: &[f64],
    members: usize,
    classes: usize,
) -> Vec<Vec<Vec<f64>>> {
    let mut own = vec![vec![Vec::new(); classes]; members];
    for one in timed {
        let of = own.get_mut(one.member);
        if let Some(times) = of.and_then(|of| of.get_mut(one.class)) {
            times.push(one.service * 1e6 / slowness.get(one.member).copied().unwrap_or(1.0));
        }
    }
    own.iter_mut()
        .flatten()
        .for_each(|times| times.sort_by(f64::total_cmp));
    own
}

fn models(
    entries: &[&Entry],
    members: &Members,
    slowness: &[f64],
    names: &[String],
    facts: &mut Vec<String>,
    (mean, concurrency): (f64, usize),
) -> Vec<Model> {
    let mut counts = vec![(0usize, 0usize); members.count];
    let tries = entries.iter().flat_map(|entry| {
        let before = entry.tried.iter().map(|name| (*name, true));
        before.chain(entry.member.map(|name| (name, entry.failed)))
    });
    for (name, has_failed) in tries {
        let of = &mut counts[members.of(Some(name))];
        of.0 += 1;
        of.1 += usize::from(has_failed);
    }
    let all = names.iter().enumerate().map(|(index, name)| {
        let (count, failed) = counts[index];
        let failing = failed as f64 / count.max(1) as f64;
        let slow = slowness.get(index).copied().unwrap_or(1.0);
        if members.known && names.len() <= 50 {
            facts.push(format!(
                "{name}: {count} tries, {} of service each, {concurrency} at once, {} failed.",
                Unit::Millis.format_value(mean * slow / 1e6),
                Unit::Share.format_value(failing)
            ));
        }
        Model {
            capacity: 1.0 / slow,
            failing,
            ..Model::default()
        }
    });
    all.collect()
}

/// The median and the 99th percentile from a time on.
fn quantiles(entries: &[&Entry], at: &[f64], from: f64) -> Option<(f64, f64)> {
    let all = entries
        .iter()
        .zip(at)
        .filter(|(entry, at)| **at >= from && !entry.failed);
    let mut all: Vec<f64> = all.filter_map(|(entry, _)| entry.waited).collect();
    all.sort_by(f64::total_cmp);
    let at = |share: f64| all.get((all.len() as f64 * share) as usize).copied();
    Some((at(0.5)?, at(0.99)?))
}

fn cannot_tell(
    log: &Log,
    (all, played, seconds): (usize, usize, f64),
    entries: &[&Entry],
    unknown: &mut Vec<String>,
) {
    let mut tell = |text: String| unknown.push(text);
    if played < all || log.left_out > 0 {
        tell(format!(
            "Earlier times: only the last {played} of {} requests are played.",
            all as u64 + log.left_out
        ));
    }
    if played < 10_000 {
        tell(format!(
            "Rare events: {played} requests in {seconds:.0} s say little about the slowest per cent."
        ));
    }
    let any = |is: &dyn Fn(&Entry) -> bool| entries.iter().any(|entry| is(entry));
    if any(&|entry| entry.retried && entry.tried.is_empty()) {
        tell("Failed tries: of a request that was tried at several members, the log has only the last \
            try.".into());
    }
    if any(&|entry| !entry.tried.is_empty()) {
        let what = match log.format {
            Some(Format::Json) => "the times of the log begin with the last try",
            _ => "their time counts for the member that answered",
        };
        tell(format!("How long failed tries took: {what}."));
    }
    let connects = entries
        .iter()
        .map(|entry| entry.connect.unwrap_or(0.0))
        .sum::<f64>();
    let all: f64 = entries.iter().filter_map(|entry| entry.waited).sum();
    if connects > all * WORTH {
        tell(format!(
            "Connections to members: {} of the time that clients waited was the opening of connections, \
             which counts as service here. Connections that stay open would save this time; no strategy \
             does.",
            Unit::Share.format_value(connects / all)
        ));
    }
    if entries
        .iter()
        .any(|entry| entry.queued.is_none() && entry.waited.is_some())
    {
        tell(
            "Queues of the balancer: the times of requests include the time that they waited in the balancer."
                .into(),
        );
    }
    if log.unreadable > 0 {
        tell(format!(
            "The contents of the {} lines that could not be read.",
            log.unreadable
        ));
    }
    tell(
        "What clients would have done: in the simulation they send the same requests at the same times, also where answers would have come \
         faster or slower. Whether the log was sampled: if so, there were more requests. How members would behave under a load that they \
         never had."
            .into(),
    );
}

/// Which figure is where.
fn figure(name: &str) -> usize {
    FIGURES
        .iter()
        .position(|figure| figure.name == name)
        .unwrap_or(0)
}

/// Derives advice from the results.
pub fn make_advice(plan: &Plan, results: &[Results], study: &Study) -> Advice {
    let (p50, p99, failed) = (figure("p50_ms"), figure("p99_ms"), figure("failed_share"));
    let of = |world: usize, index: usize| -> Vec<f64> {
        let runs = results.get(world).map_or(&[][..], |of| &of.runs[..]);
        runs.iter()
            .filter_map(|run| run.figures.get(index).copied())
            .collect()
    };
    let mean = |world: usize, index: usize| Mean::of_values(&of(world, index)).mean;
    // Gain of a world, run by run with the same requests: logarithm of the ratio.
    let gain = |world: usize| {
        let pairs = of(0, p99).into_iter().zip(of(world, p99));
        let ratios = pairs.map(|(before, after)| libm::log(before.max(1e-6) / after.max(1e-6)));
        Mean::of_values(&ratios.collect::<Vec<_>>())
    };
    let is_same = |world: &usize| plan.points[*world].members.len() == study.members;
    let is_sound = |world: &usize| mean(*world, failed) <= mean(0, failed) + 0.001;
    let candidates = (1..plan.points.len()).filter(is_same).filter(is_sound);
    let best = candidates
        .max_by(|a, b| gain(*a).mean.total_cmp(&gain(*b).mean))
        .unwrap_or(0);
    let found = gain(best);
    let least = found.mean - found.within.unwrap_or(f64::INFINITY);
    let name = |world: usize| plan.points[world].values.first().map_or("", String::as_str);
    let show = |world: usize| Unit::Millis.format_value(mean(world, p99));
    // The first run has the log's own requests.
    let first = |index: usize| of(0, index).first().copied().unwrap_or(0.0);
    let is_off = |forecast: f64, log: f64| {
        libm::fabs(libm::log(forecast.max(1e-6) / log.max(1e-6))) > libm::log(1.0 + WRONG)
    };
    let disagrees = (study.measured)
        .is_some_and(|(log50, log99)| is_off(first(p50), log50) || is_off(first(p99), log99));
    let agreement = match study.measured {
        None => "The log has no times to hold the forecast against.".to_owned(),
        Some((log50, log99)) => format!(
            "As it is, p50 {} and p99 {} are forecast; the log has {} and {}. {}",
            Unit::Millis.format_value(first(p50)),
            Unit::Millis.format_value(first(p99)),
            Unit::Millis.format_value(log50),
            Unit::Millis.format_value(log99),
            match disagrees {
                true =>
                    "THEY DISAGREE by more than 25 %: the model is not your system, and the advice not to be trusted \
                     without a trial.",
                false => "They agree within 25 %.",
            }
        ),
    };
    let mut advice = Vec::new();
    let mut chosen = 0;
    if best > 0 && found.mean > WORTH {
        let wins = of(0, p99)
            .iter()
            .zip(of(best, p99))
            .filter(|(a, b)| **a > *b)
            .count();
        let sure = match least {
            _ if disagrees => {
                "That is not sure, as the forecast for what you have disagrees with the log"
            }
            _ if least > WORTH => "That is sure as far as the log goes",
            _ if least > 0.0 => "That is likely",
            _ => "That is not sure: try a longer log, or more --seeds",
        };
        advice.push(format!(
            "{}: the 99th percentile would have been {} instead of {}. {sure}: it was lower in {wins} of {} replays.",
            name(best),
            show(best),
            show(0),
            plan.seeds
        ));
        chosen = best;
    } else {
        advice.push(format!(
            "Keep the strategy: no other one lowers the 99th percentile ({}) by {:.0} %.",
            show(0),
            WORTH * 100.0
        ));
    }
    let is_threshold = |world: &usize| {
        let mut names = study.thresholds.iter();
        let changed = name(*world).split(" = ").next();
        names.any(|name| Some(*name) == changed)
    };
    let alerts = |world: usize| mean(world, figure("alerts"));
    for world in (1..plan.points.len()).filter(is_threshold) {
        let change = gain(world).mean;
        let judged = match () {
            () if change < -WORTH || !is_sound(&world) => "would be worse",
            () if change > WORTH => "would help",
            () => "would change little",
        };
        advice.push(format!(
            "{} {judged}: 99th percentile {} instead of {}, {:.1} load alerts in a replay instead of {:.1}.",
            name(world),
            show(world),
            show(0),
            alerts(world),
            alerts(0)
        ));
    }
    for (world, point) in plan
        .points
        .iter()
        .enumerate()
        .filter(|(world, _)| !is_same(world))
    {
        let change = gain(world).mean;
        let is_fewer = point.members.len() < study.members;
        let (failed, busy) = (
            mean(world, failed),
            Unit::Share.format_value(mean(world, figure("utilisation"))),
        );
        let judged = match () {
            () if is_fewer && (change < -WORTH || !is_sound(&world)) => "would not do",
            () if is_fewer => "would do",
            () if change > WORTH => "would help",
            () => "would change little",
        };
        advice.push(format!(
            "{} {judged}: 99th percentile {}, {} failed, {busy} busy.",
            name(world),
            show(world),
            Unit::Share.format_value(failed)
        ));
    }
    Advice {
        advice,
        agreement,
        best: chosen,
    }
}

/// The advice as sections of titles and sentences.
fn sections<'a>(study: &'a Study, advice: &'a Advice) -> Vec<(&'static str, Vec<&'a str>)> {
    let plain = |all: &'a [String]| all.iter().map(String::as_str).collect::<Vec<_>>();
    let all = vec![
        ("Unreadable lines", plain(&study.unreadable)),
        ("The log", plain(&study.facts)),
        ("Advice", plain(&advice.advice)),
        ("Forecast and log", vec![advice.agreement.as_str()]),
        ("What this log cannot tell", plain(&study.unknown)),
    ];
    all.into_iter()
        .filter(|(_, lines)| !lines.is_empty())
        .collect()
}

/// For a terminal.
pub fn text(study: &Study, advice: &Advice) -> String {
    let section = |(title, lines): (&str, Vec<&str>)| {
        let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
        format!("\n{title}:\n{lines}")
    };
    sections(study, advice).into_iter().map(section).collect()
}

/// A page of results with the advice in front of them.
pub fn to_html(page: &str, study: &Study, advice: &Advice) -> String {
    let section = |(title, lines): (&str, Vec<&str>)| {
        let lines: String = lines
            .iter()
            .map(|line| format!("<li>{}</li>", crate::svg::escaped(line)))
            .collect();
        format!("<h2>{title}</h2>\n<ul>{lines}</ul>\n")
    };
    let all: String = sections(study, advice).into_iter().map(section).collect();
    page.replacen("<h2>Results</h2>", &format!("{all}<h2>Results</h2>"), 1)
}

/// Results for programs, with the advice.
pub fn to_json(results: &str, plan: &Plan, study: &Study, advice: &Advice) -> String {
    let mut all: Value = serde_json::from_str(results).unwrap_or_default();
    if let Some(all) = all.as_object_mut() {
        let best = plan
            .points
            .get(advice.best)
            .and_then(|point| point.values.first());
        let measured = study
            .measured
            .map(|(p50, p99)| json!({ "p50_ms": p50, "p99_ms": p99 }));
        all.insert(
            "advice".into(),
            json!({
                "best": best,
                "advice": advice.advice,
                "agreement": advice.agreement,
                "log": study.facts,
                "measured": measured,
                "cannot_tell": study.unknown,
                "unreadable": study.unreadable,
            }),
        );
    }
    format!("{all:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::draw_exponential;
    use crate::experiment::run;
    use crate::log::read;

    const CONFIG: &str = "[rule.web]\nlisten = \"127.0.0.1:8080\"\nstrategy = \"round_robin\"\n\
                          members = [\"a:1\", \"b:1\", \"c:1\"]\n";

    /// A log of members with one worker, of which the last is this many times slower, and the most that any
    /// of its requests waited.
    fn log(slowness: f64, count: usize) -> String {
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut at, mut free) = (0.0_f64, [0.0_f64; 3]);
        let mut text = String::new();
        for turn in 0..count {
            at += draw_exponential(20.0, &mut rng);
            let member = turn % 3;
            let slow = if member == 2 { slowness } else { 1.0 };
            let arrived = at.round();
            free[member] = free[member].max(arrived) + draw_exponential(5.0, &mut rng) * slow;
            let (second, milli) = (arrived as u64 / 1000, arrived as u64 % 1000);
            text += &format!(
                "{{\"time\":\"2026-11-21T00:{:02}:{:02}.{milli:03}Z\",\"rule\":\"web\",\"member\":\"{}:1\",\
                 \"method\":\"GET\",\"target\":\"/a\",\"status\":200,\"response_ms\":{},\"end\":\"complete\"}}\n",
                second / 60,
                second % 60,
                ["a", "b", "c"][member],
                free[member] - arrived,
            );
        }
        text
    }

    fn asked(text: &str) -> Result<(Plan, Study), String> {
        asked_of(CONFIG, text)
    }

    fn asked_of(config: &str, text: &str) -> Result<(Plan, Study), String> {
        use std::sync::atomic::{AtomicU64, Ordering};
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("evenkeel-advice-{}-{count}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, config).unwrap();
        let log = read(text.as_bytes(), None).unwrap();
        let question = Question::default();
        let answer = make_plan(&path, &log, &question).map_err(|errors| errors.to_string());
        std::fs::remove_file(path).unwrap();
        answer
    }

    #[test]
    fn a_slow_member_is_found_and_another_strategy_advised() {
        let (plan, study) = asked(&log(8.0, 8000)).unwrap();
        let results = run(&plan, &|_| ());
        let advice = make_advice(&plan, &results, &study);
        let told = text(&study, &advice);
        let best = &plan.points[advice.best].values[0];
        assert!(best.starts_with("strategy = "), "{told}");
        assert!(advice.advice[0].contains("in 5 of 5 replays"), "{told}");
        assert!(advice.agreement.contains("They agree"), "{told}");
        // Queues taken out: the slow member's service time is 40 ms, and its answers took longer.
        let slow = study
            .facts
            .iter()
            .find(|fact| fact.starts_with("c:1: "))
            .unwrap();
        let millis = slow.split(", ").nth(1).unwrap().split(' ').next().unwrap();
        assert!(
            (millis.parse::<f64>().unwrap() / 40.0 - 1.0).abs() < 0.1,
            "{told}"
        );
        assert!(slow.contains(" 1 at once"), "{told}");
    }

    #[test]
    fn g6_logs_call_members_by_address_or_by_name() {
        let named = CONFIG.replace("\"c:1\"", "{ address = \"c:1\", name = \"s3\" }");
        assert_ne!(named, CONFIG);
        // Evenkeel's log has addresses, HAProxy's the names of its servers.
        let by_address = log(1.0, 3000);
        let by_name = by_address.replace(r#""member":"c:1""#, r#""member":"s3""#);
        for lines in [by_address, by_name] {
            let (plan, study) = asked_of(&named, &lines).unwrap();
            assert_eq!(plan.points[0].members[2], "s3");
            let mut facts = study.facts.iter();
            assert!(
                facts.any(|fact| fact.starts_with("s3: 1000 tries")),
                "{:?}",
                study.facts
            );
        }
    }

    #[test]
    fn failed_tries_count_for_their_members_and_connecting_is_told() {
        let tried = log(1.0, 3000).replace(
            r#""member":"c:1""#,
            r#""member":"a:1","tried":["c:1"],"retries":1,"connect_ms":4.5"#,
        );
        let (plan, study) = asked(&tried).unwrap();
        let told = text(&study, &make_advice(&plan, &run(&plan, &|_| ()), &study));
        let of_member = |name: &str| {
            let mut facts = study.facts.iter();
            facts.find(|fact| fact.starts_with(name)).unwrap().clone()
        };
        let (bad, good) = (of_member("c:1: "), of_member("a:1: "));
        assert!(
            bad.starts_with("c:1: 1000 tries") && bad.ends_with("100.00 % failed."),
            "{told}"
        );
        assert!(
            good.starts_with("a:1: 2000 tries") && good.ends_with(" 0.00 % failed."),
            "{told}"
        );
        assert!(
            told.contains("How long failed tries took: the times of the log begin"),
            "{told}"
        );
        assert!(told.contains("was the opening of connections"), "{told}");
    }

    #[test]
    fn thresholds_are_tried_where_clients_are_bound() {
        let bound = |more: &str| {
            let name =
                "name = \"least_loaded\", reject_threshold = 0.09, critical_threshold = 0.18";
            let rule = CONFIG.replace("\"round_robin\"", &format!("{{ {name} }}"));
            format!("{rule}{more}\n")
        };
        let on_demand = bound("granularity = \"on_demand\"");
        let plain = log(1.0, 3000);
        let mut turn = 0;
        let lines = plain.lines().map(|line| {
            turn += 1;
            let client = format!("{{\"client\":\"192.0.2.1:{}\",", 1000 + turn % 7);
            line.replacen('{', &client, 1) + "\n"
        });
        let connected: String = lines.collect();
        let tried = |config: &str, text: &str| {
            let (plan, study) = asked_of(config, text).unwrap();
            let changes = plan.points.iter().map(|point| point.values[0].clone());
            let changes: Vec<String> = changes.filter(|of| of.contains("threshold")).collect();
            (changes.join(", "), plan, study)
        };
        let (changes, plan, study) = tried(&on_demand, &connected);
        let all = "reject_threshold = 0.06, reject_threshold = 0.14, critical_threshold = 0.12, critical_threshold = 0.27";
        assert_eq!(changes, all);
        let told = text(&study, &make_advice(&plan, &run(&plan, &|_| ()), &study));
        let alerts = |change: &str| {
            let (_, line) = told.split_once(&format!("  {change} ")).unwrap();
            let (_, count) = line.split_once("instead of ").unwrap();
            let (_, count) = count.split_once(", ").unwrap();
            count.split(' ').next().unwrap().parse::<f64>().unwrap()
        };
        let [low, high] = ["critical_threshold = 0.12", "critical_threshold = 0.27"].map(alerts);
        assert!(low > high, "{told}");
        assert!(told.contains("  Loads: the log has none."), "{told}");

        let of_strategy = "reject_threshold = 0.06, reject_threshold = 0.14";
        let (changes, _, study) = tried(&bound(""), &connected);
        assert_eq!(changes, of_strategy);
        assert!(
            study
                .unknown
                .iter()
                .any(|of| of.contains("granularity `per_request`"))
        );
        let (changes, _, study) = tried(&on_demand, &plain);
        assert_eq!(changes, of_strategy);
        assert!(
            study
                .unknown
                .iter()
                .any(|of| of.starts_with("Bound clients: "))
        );
        let relative =
            "granularity = \"on_demand\"\nalert = { threshold = { above_average = 0.5 } }";
        let (changes, plan, _) = tried(&bound(relative), &connected);
        let of_group = "alert.threshold.above_average = 0.33, alert.threshold.above_average = 0.75";
        assert_eq!(changes, format!("{of_strategy}, {of_group}"));
        let changed = |point: &&Point| point.values[0].starts_with("alert.");
        let used = plan.points.iter().filter(changed).map(|point| {
            let config = point.world.config.as_ref().unwrap();
            config.groups[0].settings.alert.threshold
        });
        assert!(used.eq([0.33, 0.75].map(|of| Some(Threshold::AboveAverage(of)))));
        let (changes, _, study) = tried(&bound("load = \"disk\""), &connected);
        assert_eq!(changes, "");
        assert!(
            study
                .unknown
                .iter()
                .any(|of| of.starts_with("Thresholds of loads: "))
        );
    }

    #[test]
    fn equal_members_are_left_as_they_are() {
        let (plan, study) = asked(&log(1.0, 3000)).unwrap();
        let results = run(&plan, &|_| ());
        let told = text(&study, &make_advice(&plan, &results, &study));
        assert!(told.contains("2 members would"), "{told}");
        assert!(told.contains("They agree"), "{told}");
        assert!(
            told.contains("say little about the slowest per cent"),
            "{told}"
        );
    }

    #[test]
    fn a_log_that_says_nothing_is_refused_with_what_to_do() {
        let short = asked(&log(1.0, 20)).unwrap_err();
        assert!(
            short.contains("the log has 20 requests of group \"web\""),
            "{short}"
        );
        let plain =
            "1.1.1.1 - - [29/Feb/2024:12:34:56 +0000] \"GET / HTTP/1.1\" 200 5\n".repeat(60);
        let plain = asked(&plain).unwrap_err();
        assert!(plain.contains("$request_time"), "{plain}");
    }
}
