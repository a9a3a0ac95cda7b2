//! Study of a log: requests to play again, models of members, and questions that the log cannot answer.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_manager::config::scenario::Model;
use evenkeel_manager::config::{Config, GroupConfig, MemberConfig};

use super::Unit;
use super::plan::index_members;
use super::replay::{Came, Replay};
use super::service_times::{
    Timed, estimate_speeds, measured_quantiles, own_times, remove_queueing,
};
use super::statistics::MEASURED;
use crate::log::{Entry, Format, Log};

/// Most requests that are played again: the last ones of a log.
const MAX_PLAYED: usize = 100_000;

/// Fewest requests for a result.
const FEWEST: usize = 50;

/// Most classes of requests; the rarest share one class.
const CLASSES: usize = 8;

/// Relative difference of response times from which a change is worth it.
pub(super) const WORTH: f64 = 0.1;

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
    pub(super) members: usize,
    /// Names of the thresholds of loads that are tried.
    pub(super) thresholds: Vec<&'static str>,
}

/// Parameters of a group, learnt from a log.
pub(super) struct Learnt {
    pub(super) study: Study,
    pub(super) replay: Replay,
    pub(super) models: Vec<Model>,
    pub(super) concurrency: usize,
    /// Mean service time at a member of normal speed, in nanoseconds.
    pub(super) mean: f64,
}

/// Learns what a simulation of a group needs from a log, one step after the other, each of which says what it found.
pub(super) fn learn_group(
    log: &Log,
    config: &Config,
    group: &GroupConfig,
    names: &[String],
    question: &Question<'_>,
) -> Result<Learnt, String> {
    let (mut facts, mut unknown) = (Vec::new(), Vec::new());
    let entries = entries_of(log, config, group);
    let all = entries.len();
    if all < FEWEST {
        return Err(format!(
            "the log has {all} requests of group {:?} ({} lines, {} unreadable), which are too few: at \
             least {FEWEST} are needed; give a longer log, or name another group with --group",
            group.name, log.lines, log.unreadable
        ));
    }
    let played = Played::new(log, &entries[all.saturating_sub(MAX_PLAYED)..]);
    let (entries, seconds) = (&played.entries, played.seconds);
    facts.push(played.describe(log));
    let configured = &group.members;
    let members = members_of(log, entries, (configured, names), &mut facts, &mut unknown);
    let mut timed = played.timed(&members);
    let from = played.last - seconds * 1e3 * MEASURED;
    let measured = measured_quantiles(entries, &played.at, from);
    let mut concurrency = 1;
    let mut slowness = vec![1.0; members.count];
    let mut classes;
    if timed.len() >= FEWEST {
        concurrency = match log.whole_seconds || !members.known {
            true => taken_concurrency(&timed, seconds, names.len(), &mut unknown),
            false => remove_queueing(&mut timed, members.count, &mut unknown),
        };
        (slowness, classes) = estimate_speeds(&timed, members.count, played.class_count());
    } else if let Some(mean) = question.service {
        let mean = mean.as_nanos() as f64;
        let draws = (0..1000).map(|turn| -mean * libm::log((f64::from(turn) + 0.5) / 1000.0));
        classes = vec![draws.collect(); played.class_count()];
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
    let mean = complete_classes(&mut classes);
    let own = own_times(&timed, &slowness, names.len(), classes.len());
    let of_one = (mean, concurrency);
    let models = models(entries, &members, &slowness, names, &mut facts, of_one);
    cannot_tell(log, (all, entries.len(), seconds), entries, &mut unknown);
    let replay = Replay {
        arrivals: played.arrivals(),
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

/// Returns the requests of a group, in the order of the log.
fn entries_of<'l>(log: &'l Log, config: &Config, group: &GroupConfig) -> Vec<&'l Entry> {
    let name = |number: Option<usize>| number.and_then(|number| log.names.get(number));
    let is_json = log.format == Some(Format::Json);
    let is_of_group = |entry: &&Entry| {
        let of_rule = || {
            let rule = name(entry.rule);
            let mut rules = config.rules.iter();
            rules.any(|known| Some(&known.name) == rule && known.group == group.name)
        };
        !is_json || name(entry.group).map_or_else(of_rule, |of| *of == group.name)
    };
    log.entries.iter().filter(is_of_group).collect()
}

/// Requests that are played again, in the order of their arrival.
struct Played<'l> {
    entries: Vec<&'l Entry>,
    /// Time of arrival of each request, in milliseconds.
    at: Vec<f64>,
    first: f64,
    last: f64,
    /// Time from the first arrival to the last one.
    seconds: f64,
    /// The commonest classes; all others are one class more.
    common: Vec<Option<usize>>,
}

impl<'l> Played<'l> {
    fn new(log: &Log, entries: &[&'l Entry]) -> Self {
        // Whole seconds: requests of one are spread over it, by a chance that is always the same.
        let mut rng = fastrand::Rng::with_seed(1);
        let arrival = |entry: &&'l Entry| {
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
            (entry.at + spread - before, *entry)
        };
        let mut arrivals: Vec<(f64, &Entry)> = entries.iter().map(arrival).collect();
        arrivals.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (at, entries): (Vec<f64>, Vec<&Entry>) = arrivals.into_iter().unzip();
        let (first, last) = (
            at.first().copied().unwrap_or(0.0),
            at.last().copied().unwrap_or(0.0),
        );
        let mut counts: BTreeMap<Option<usize>, usize> = BTreeMap::new();
        entries
            .iter()
            .for_each(|entry| *counts.entry(entry.class).or_default() += 1);
        let mut common: Vec<_> = counts.into_iter().collect();
        common.sort_by_key(|&(class, count)| (Reverse(count), class));
        common.truncate(CLASSES - 1);
        Played {
            entries,
            at,
            first,
            last,
            seconds: ((last - first) / 1e3).max(1e-3),
            common: common.into_iter().map(|(class, _)| class).collect(),
        }
    }

    fn class(&self, entry: &Entry) -> usize {
        let found = self.common.iter().position(|class| *class == entry.class);
        found.unwrap_or(self.common.len())
    }

    fn class_count(&self) -> usize {
        self.common.len() + 1
    }

    fn describe(&self, log: &Log) -> String {
        let (count, seconds) = (self.entries.len(), self.seconds);
        let format = match log.format {
            Some(Format::Json) => "Evenkeel's",
            Some(Format::Combined) => "combined",
            Some(Format::Haproxy) => "HAProxy's",
            None => "no",
        };
        format!(
            "{count} requests in {seconds:.1} s ({:.1} per second), {format} format, {} unreadable lines.",
            count as f64 / seconds,
            log.unreadable
        )
    }

    /// Returns each known time, by its beginning at the member.
    fn timed(&self, members: &Members) -> Vec<Timed> {
        let mut timed: Vec<Timed> = (self.entries.iter().zip(&self.at))
            .filter(|(entry, _)| !entry.failed && entry.waited.is_some_and(|waited| waited > 0.0))
            .map(|(entry, at)| {
                let waited = entry.waited.unwrap_or(0.0);
                Timed {
                    member: members.of(entry.member),
                    class: self.class(entry),
                    start: at + entry.queued.unwrap_or(0.0).min(waited),
                    end: at + waited,
                    found: 0,
                    service: waited,
                }
            })
            .collect();
        timed.sort_by(|a, b| a.start.total_cmp(&b.start));
        timed
    }

    fn arrivals(&self) -> Vec<Came> {
        let arrivals = self.entries.iter().zip(&self.at);
        arrivals
            .map(|(entry, at)| Came {
                at: ((at - self.first) * 1e6) as u64,
                class: self.class(entry),
                connection: entry.connection,
            })
            .collect()
    }
}

/// Returns the number of requests that a member is taken to work on at once, where the log cannot tell.
fn taken_concurrency(
    timed: &[Timed],
    seconds: f64,
    members: usize,
    unknown: &mut Vec<String>,
) -> usize {
    // Little: requests in flight are rate times time.
    let sum: f64 = timed.iter().map(|one| one.service).sum();
    let each = sum / 1e3 / seconds / members.max(1) as f64;
    unknown.push(
        "Queueing in the members: times are whole seconds, or there is no member in the log, so what \
         requests waited at members is part of their service times, and a member is taken to work on twice as many at once \
         as it had on average. A few members more or fewer may then look better than they are."
            .into(),
    );
    (each * 2.0).ceil().clamp(1.0, 1e4) as usize
}

/// Sorts the service times of each class, gives classes without any the mean, and returns the mean.
fn complete_classes(classes: &mut [Vec<f64>]) -> f64 {
    let usual: Vec<f64> = classes.iter().flatten().copied().collect();
    let mean = usual.iter().sum::<f64>() / usual.len().max(1) as f64;
    for times in classes {
        if times.is_empty() {
            times.push(mean);
        }
        times.sort_by(f64::total_cmp);
    }
    mean
}

/// Assignment of the log's names to members.
pub(super) struct Members {
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
