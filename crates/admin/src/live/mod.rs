//! Samples of what goes on now, and in the last hour: one sample a second for all who watch, and news of
//! changes and alerts.
//!
//! Nothing is sampled while nobody watches, but for the history, every five seconds.

pub(crate) mod api;
mod ctl;
mod events;
mod news;
mod past;
pub(crate) mod process;
mod rounding;
mod simulate;
mod tick;
pub mod wire;

use std::collections::{HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use evenkeel_limits::files::Shares;
use evenkeel_manager::Manager;
use evenkeel_manager::sample::{Detail, RuleSample, Sample};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, watch};
use tokio::time::MissedTickBehavior;

use news::LiveEvents;
use past::HourHistory;
use process::Meter;
use rounding::round_value;
use tick::Tick;
use wire::{AlertEvent, ChangeEvent, LastHour, Process, RuleRow, Thresholds};

/// Groups that are told of.
const MOST_GROUPS: usize = 1000;

/// Streams of events at a time.
const MOST_STREAMS: usize = 64;

/// For how long rates of rules are averaged.
const RATE_TIME: Duration = Duration::from_secs(10);

/// From a change to its news: what follows at once is the same one, and who has asked for it is known.
const SETTLED: Duration = Duration::from_millis(100);

/// For how long who has asked for a change is known until its news come.
const ASKED: Duration = Duration::from_secs(1);

/// Last tick of each view.
type Ticks = Arc<HashMap<String, Arc<Tick>>>;

/// Part of the groups that a stream has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct View {
    /// Beginning of the names of the groups.
    pub(crate) prefix: String,
    /// Group whose members the stream has, too.
    pub(crate) group: Option<String>,
}

/// Samples, history and news of what goes on.
#[derive(Debug)]
pub struct Live {
    manager: Arc<Manager>,
    news: LiveEvents,
    /// Last tick of each view, by the beginning of its groups' names; none without streams.
    ticks: watch::Sender<Ticks>,
    /// Number of streams with each view.
    watched: Mutex<HashMap<View, usize>>,
    /// Places for streams that are free.
    streams: Arc<Semaphore>,
    most_streams: usize,
    past: Mutex<HourHistory>,
    meter: Meter,
    workers: usize,
    rules: Mutex<RuleRates>,
    /// User who has asked for the change that has not been announced yet.
    asked: Mutex<Option<(Instant, String)>>,
    /// The place for a simulation.
    simulating: Arc<Semaphore>,
    /// True once the process ends.
    ended: watch::Sender<bool>,
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Seconds since 1970.
fn unix_seconds() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    (since.unwrap_or_default().as_secs_f64() * 1e3).round() / 1e3
}

impl Live {
    /// Samples what goes on in the rules and groups of `manager`, for which `workers` threads forward.
    pub fn new(manager: &Arc<Manager>, workers: usize) -> Arc<Self> {
        // Others must find a place beside the streams.
        let most_streams = MOST_STREAMS.min(Shares::of_process().admin / 2).max(1);
        // Numbers of news of another process must not be taken for ours.
        let process = SystemTime::now().duration_since(UNIX_EPOCH);
        Arc::new(Live {
            manager: Arc::clone(manager),
            news: LiveEvents::new(process.unwrap_or_default().as_micros() as u64),
            ticks: watch::Sender::default(),
            watched: Mutex::default(),
            streams: Arc::new(Semaphore::new(most_streams)),
            most_streams,
            past: Mutex::default(),
            meter: Meter::new(),
            workers,
            rules: Mutex::default(),
            asked: Mutex::default(),
            simulating: Arc::new(Semaphore::new(1)),
            ended: watch::Sender::new(false),
        })
    }

    /// Samples, keeps the history and follows news, as long as it is polled.
    pub(crate) async fn run(self: Arc<Self>) -> Infallible {
        tokio::join!(
            Arc::clone(&self).sample_forever(),
            self.follow_changes(),
            self.follow_alerts()
        );
        std::future::pending().await
    }

    /// Ends all streams, as the process ends.
    pub(crate) fn end_streams(&self) {
        self.ended.send_replace(true);
    }

    async fn sample_forever(self: Arc<Self>) {
        let mut seconds = tokio::time::interval(Duration::from_secs(1));
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            seconds.tick().await;
            let is_watched = self.streams.available_permits() < self.most_streams;
            if !is_watched && !self.ticks.borrow().is_empty() {
                // Nobody will ask what has changed since.
                self.ticks.send_replace(Ticks::default());
            }
            if !is_watched && !lock_mutex(&self.past).is_due(unix_seconds() as u64) {
                continue;
            }
            // With many members it takes a few milliseconds, in which others go on.
            let live = Arc::clone(&self);
            let sampled = tokio::task::spawn_blocking(move || live.sample_once(is_watched)).await;
            if let Err(error) = sampled {
                tracing::error!(%error, "sampling has failed; please report this, with the earlier lines of the log");
            }
        }
    }

    fn sample_once(&self, is_watched: bool) {
        let at = unix_seconds();
        let is_due = lock_mutex(&self.past).is_due(at as u64);
        let watched: Vec<View> = lock_mutex(&self.watched).keys().cloned().collect();
        let is_group_watched = |prefix: &str, name: &str| {
            let mut groups = watched.iter().filter(|view| view.prefix == prefix);
            is_watched && groups.any(|view| view.group.as_deref() == Some(name))
        };
        let mut room = Room::default();
        let sample = self.manager.sample("", MOST_GROUPS, |name, members| {
            let is_kept = is_due && room.take_room(members);
            match (is_group_watched("", name), is_kept) {
                (true, _) => Detail::Latencies,
                (false, true) => Detail::Members,
                (false, false) => Detail::Group,
            }
        });
        let process = self.meter.usage();
        let rules = lock_mutex(&self.rules).rates_by_rule(&sample.rules, Instant::now());
        if is_watched {
            let before = self.ticks.borrow().clone();
            let make_tick = |prefix: &str, sample: &Sample| {
                let tick = Tick::new(
                    before.get(prefix).map(|tick| &**tick),
                    at,
                    process,
                    &rules,
                    &sample.groups,
                    sample.left_out,
                    |name| is_group_watched(prefix, name),
                );
                (prefix.to_owned(), Arc::new(tick))
            };
            let prefixes: HashSet<&str> = watched.iter().map(|view| &*view.prefix).collect();
            let others = prefixes.into_iter().filter(|prefix| !prefix.is_empty());
            let others = others.map(|prefix| {
                let sample = self.manager.sample(prefix, MOST_GROUPS, |name, _| {
                    match is_group_watched(prefix, name) {
                        true => Detail::Latencies,
                        false => Detail::Group,
                    }
                });
                make_tick(prefix, &sample)
            });
            let ticks: HashMap<_, _> = others.chain([make_tick("", &sample)]).collect();
            self.ticks.send_replace(Arc::new(ticks));
        }
        if is_due {
            lock_mutex(&self.past).keep_sample(&reduce_sample(sample), at as u64);
        }
    }

    async fn follow_changes(&self) {
        let mut changes = self.manager.subscribe_changes();
        let mut snapshots = self.manager.snapshots();
        let mut revisions = self.manager.in_force_changes();
        let mut before = revisions.borrow_and_update().clone();
        loop {
            let more = tokio::select! {
                more = changes.changed() => more,
                more = snapshots.changed() => more,
                more = revisions.changed() => more,
            };
            if more.is_err() {
                return;
            }
            tokio::time::sleep(SETTLED).await;
            changes.borrow_and_update();
            let generation = snapshots.borrow_and_update().generation;
            let revision = revisions.borrow_and_update().clone();
            let asked = lock_mutex(&self.asked).take();
            let asked = asked.filter(|(at, _)| at.elapsed() < ASKED);
            let news = revision
                .as_ref()
                .filter(|now| Some(*now) != before.as_ref());
            let (who, how) = match news.map(|news| &news.revision) {
                Some(news) => (Some(news.who.clone()), news.how.name()),
                None => (asked.map(|(_, who)| who), "live"),
            };
            let event = ChangeEvent {
                generation,
                revision: revision.as_ref().map(|now| now.revision.revision.clone()),
                at: unix_seconds(),
                who: who.filter(|who| !who.is_empty()),
                how: how.into(),
            };
            self.news.add_event("change", &event);
            before = revision;
        }
    }

    /// Notes that a request of the user has changed something.
    pub(crate) fn note_change_by(&self, user: &str) {
        *lock_mutex(&self.asked) = Some((Instant::now(), user.into()));
    }

    async fn follow_alerts(&self) {
        let mut alerts = self.manager.alert_news();
        loop {
            let news = match alerts.recv().await {
                Ok(news) => news,
                // The next sample says how many alerts there are.
                Err(RecvError::Lagged(_)) => continue,
                Err(RecvError::Closed) => return,
            };
            let event = AlertEvent {
                t: unix_seconds(),
                location: news.location,
                group: news.group,
                on: news.on,
            };
            self.news.add_event("alert", &event);
        }
    }

    /// Returns what the process uses.
    pub(crate) fn process_usage(&self) -> Process {
        self.meter.process_usage(self.workers)
    }

    /// Returns the last hour of a group, or of all together if it is "".
    pub(crate) fn last_hour(&self, group: &str, member: Option<&str>, since: u64) -> LastHour {
        let mut hour = lock_mutex(&self.past).last_hour(group, member, since);
        if group.is_empty() {
            return hour;
        }
        if let Some(now) = self.manager.sample_group(group) {
            hour.thresholds = Thresholds {
                reject: now.reject,
                critical: now.critical,
            };
            if member.is_none() {
                hour.members_left_out = now.members.saturating_sub(hour.members.len());
            }
        }
        hour
    }
}

/// Reduces a sample to the members of as many groups as the history keeps.
fn reduce_sample(mut sample: Sample) -> Sample {
    let mut room = Room::default();
    for group in &mut sample.groups {
        if !room.take_room(group.members) {
            group.rows = Vec::new();
        }
    }
    sample
}

/// Number of further members that the history can keep.
struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Room(past::MEMBERS)
    }
}

impl Room {
    /// True if there is room for a group of `members` members, which then takes it.
    fn take_room(&mut self, members: usize) -> bool {
        let left = self.0.checked_sub(members);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }
}

/// Counts of rules a few seconds ago.
#[derive(Debug, Default)]
struct RuleRates(VecDeque<(Instant, HashMap<String, [u64; 3]>)>);

impl RuleRates {
    /// Returns the rates of the rules per second, given what was counted until `now`.
    fn rates_by_rule(&mut self, rules: &[RuleSample], now: Instant) -> Vec<RuleRow> {
        let is_old = |at: &Instant| now.duration_since(*at) >= RATE_TIME;
        // The last one that is old enough is what the others are compared with.
        while self.0.get(1).is_some_and(|(at, _)| is_old(at)) {
            self.0.pop_front();
        }
        let then = self.0.front();
        let row = |rule: &RuleSample| {
            let before = then.and_then(|(at, counts)| Some((at, counts.get(&rule.name)?)));
            let since = before.map(|(at, [asked, ended, failed])| {
                let seconds = now.duration_since(*at).as_secs_f64();
                let more = |count: u64, before: &u64| count.saturating_sub(*before) as f64;
                (
                    more(rule.request_count, asked) / seconds.max(1e-3),
                    more(rule.ended_count, ended),
                    more(rule.failed, failed),
                )
            });
            RuleRow {
                name: rule.name.clone(),
                enabled: rule.enabled,
                maintenance: rule.maintenance,
                rate: since.map(|(rate, ..)| round_value(rate)),
                failures: since
                    .filter(|(_, ended, _)| *ended > 0.0)
                    .map(|(_, ended, failed)| round_value((failed / ended).min(1.0))),
                group: rule.group.clone(),
            }
        };
        let rows = rules.iter().map(row).collect();
        let counts = rules.iter().map(|rule| {
            let counts = [rule.request_count, rule.ended_count, rule.failed];
            (rule.name.clone(), counts)
        });
        self.0.push_back((now, counts.collect()));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_rules_are_those_of_the_last_seconds() {
        let mut rates = RuleRates::default();
        let start = Instant::now();
        let rule = |asked, failed| RuleSample {
            name: "web".into(),
            enabled: true,
            maintenance: false,
            group: "app".into(),
            request_count: asked,
            ended_count: asked,
            failed,
        };
        let mut row = |seconds, asked, failed| {
            let now = start + Duration::from_secs(seconds);
            let row = rates.rates_by_rule(&[rule(asked, failed)], now).remove(0);
            (row.rate, row.failures)
        };
        assert_eq!(row(0, 1000, 10), (None, None));
        assert_eq!(row(1, 1100, 60), (Some(100.0), Some(0.5)));
        for second in 2..=11 {
            row(second, 1100, 60);
        }
        assert_eq!(row(12, 1100, 60), (Some(0.0), None));
        // After a pause the last count before it is what counts.
        assert_eq!(row(112, 2100, 60), (Some(10.0), Some(0.0)));
        assert!(rates.0.len() < 4);
    }
}
