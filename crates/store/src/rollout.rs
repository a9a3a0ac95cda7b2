//! The next step of a staged roll-out. No I/O, and no clock: time is an argument.
//!
//! One of the reporting balancers drives the roll-out: the first one by name. If two balancers think that they drive, a
//! transaction of the store accepts the head of only one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_config::Rollout;

use crate::judge::{Counts, Verdict, judge_change};
use crate::model::{Head, Pointer, Report, Step, Trial};

/// Time within which balancers must put a revision into effect.
const TO_APPLY: Duration = Duration::from_secs(60);

/// The driver's next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing is written yet; the text says why.
    Wait(&'static str),
    /// The next step is written, with these balancers.
    Advance(Step, Vec<String>),
    /// The roll-out has gone well: the revision becomes the current one.
    Finish,
    /// The revision is taken back, for this reason.
    TakeBack(String),
}

type Reports = BTreeMap<String, Report>;

/// Drives roll-outs.
#[derive(Debug, Default)]
pub struct Driver {
    /// The step that is watched.
    watched: Option<Watched>,
}

#[derive(Debug)]
struct Watched {
    to: Pointer,
    step: Step,
    /// Time at which this step was first seen.
    since: Duration,
    /// Time at which all chosen balancers had the revision, and all reports at that time.
    began: Option<(Duration, Reports)>,
    /// Counts of the balancers without the revision in the step before. The last step, in which all have the revision,
    /// is compared with these.
    without: Counts,
}

impl Driver {
    /// Returns the next action for the head `head`, given the balancers' reports. `own` is the name of this balancer.
    pub fn next(
        &mut self,
        head: &Head,
        reports: &[Report],
        own: &str,
        rules: &Rollout,
        now: Duration,
    ) -> Next {
        let reports: Reports = reports
            .iter()
            .map(|one| (one.name.clone(), one.clone()))
            .collect();
        if reports.keys().next().map(String::as_str) != Some(own) {
            *self = Driver::default();
            return Next::Wait("another balancer drives the roll-out");
        }
        let Some(trial) = &head.trial else {
            self.watched = None;
            return Next::Wait("nothing is rolled out");
        };
        let watched = self.watch_step(trial, now);
        if let Some(why) = refusal_of(&reports, &trial.to) {
            return Next::TakeBack(why);
        }
        let chosen: BTreeSet<&String> = match trial.step {
            Step::All => reports.keys().collect(),
            Step::One | Step::Share => trial.nodes.iter().collect(),
        };
        if chosen.is_empty() {
            // Preferably not the driver: should the chosen balancer fail, the driver is still there.
            let first = reports.keys().next_back().cloned();
            return Next::Advance(Step::One, first.into_iter().collect());
        }
        if let Some(gone) = chosen.iter().find(|name| !reports.contains_key(**name)) {
            // The balancer may only have lost the store; but the change may have ended it.
            return Next::TakeBack(format!(
                "balancer {gone} has gone while it had the revision"
            ));
        }
        let has_it = |name: &&String| {
            let report = reports.get(*name);
            report.is_some_and(|report| report.running.as_ref() == Some(&trial.to))
        };
        let Some((began, then)) = &watched.began else {
            if chosen.iter().all(has_it) {
                watched.began = Some((now, reports));
                return Next::Wait("the balancers with the revision are watched");
            }
            let late = chosen.iter().find(|name| !has_it(name));
            return match late.filter(|_| now.saturating_sub(watched.since) > TO_APPLY) {
                Some(late) => Next::TakeBack(format!(
                    "balancer {late} has not put the revision into effect within {TO_APPLY:?}"
                )),
                None => Next::Wait("the chosen balancers put the revision into effect"),
            };
        };
        // A balancer that was restarted counts from zero, and may have been ended by the change.
        if let Some(anew) = chosen
            .iter()
            .find(|name| has_restarted(name, then, &reports))
        {
            return Next::TakeBack(format!(
                "balancer {anew} was restarted while it had the revision"
            ));
        }
        let counted = StepCounts::since(then, &reports, &chosen);
        let watched_for = now.saturating_sub(*began);
        let is_good = match judge_change(&counted.with, counted.compared(watched), rules) {
            Verdict::Worse(why) => return Next::TakeBack(why),
            Verdict::Good => watched_for >= rules.watch,
            Verdict::Unsure => watched_for >= rules.limit,
        };
        if !is_good {
            return Next::Wait("the balancers with the revision are watched");
        }
        if counted.without.requests > 0 {
            watched.without = counted.without;
        }
        step_after(trial, &reports, rules)
    }

    /// Begins to watch the step of `trial`, unless the step is watched.
    fn watch_step(&mut self, trial: &Trial, now: Duration) -> &mut Watched {
        let before = self.watched.take();
        let before = before.filter(|watched| watched.to == trial.to);
        let watched = match before {
            Some(watched) if watched.step == trial.step => watched,
            before => Watched {
                to: trial.to.clone(),
                step: trial.step,
                since: now,
                began: None,
                without: before.map(|watched| watched.without).unwrap_or_default(),
            },
        };
        self.watched.insert(watched)
    }
}

/// Returns the reason for which a balancer refuses a revision, if one does.
fn refusal_of(reports: &Reports, to: &Pointer) -> Option<String> {
    reports.values().find_map(|report| {
        let refused = report.refused.as_ref();
        let refused = refused.filter(|refused| refused.to == *to)?;
        Some(format!(
            "balancer {} refuses the revision: {}",
            report.name, refused.why
        ))
    })
}

/// True if a balancer is another process than it was at the reports `then`.
fn has_restarted(name: &str, then: &Reports, now: &Reports) -> bool {
    let process = |all: &Reports| all.get(name).map(|report| report.process.clone());
    process(then).is_some() && process(then) != process(now)
}

/// Counts of the balancers in a step.
#[derive(Default)]
struct StepCounts {
    /// Counts of the balancers with the revision.
    with: Counts,
    /// Counts of the balancers without the revision.
    without: Counts,
    /// Counts of the balancers with the revision before they had it.
    before: Counts,
}

impl StepCounts {
    fn since(then: &Reports, reports: &Reports, chosen: &BTreeSet<&String>) -> Self {
        let mut counts = StepCounts::default();
        for (name, report) in reports {
            let Some(earlier) = then.get(name).filter(|then| then.process == report.process) else {
                continue;
            };
            let counted = report.counts.since(&earlier.counts);
            match chosen.contains(name) {
                true => {
                    counts.with.add(&counted);
                    counts.before.add(&report.before);
                }
                false => counts.without.add(&counted),
            }
        }
        counts
    }

    /// Returns the counts with which the revision is compared: those of other balancers, or else those of the chosen
    /// balancers before.
    fn compared<'c>(&'c self, watched: &'c Watched) -> &'c Counts {
        let all = [&self.without, &watched.without, &self.before];
        let compared = all.into_iter().find(|counts| counts.requests > 0);
        compared.unwrap_or(&self.without)
    }
}

/// Returns the step after a good one.
fn step_after(trial: &Trial, reports: &Reports, rules: &Rollout) -> Next {
    let share = f64::from(rules.percent) / 100.0 * reports.len() as f64;
    let share = (share.ceil() as usize).max(2);
    match trial.step {
        Step::All => Next::Finish,
        Step::One if share < reports.len() => {
            let mut nodes = trial.nodes.clone();
            let others = reports.keys().rev().filter(|name| !nodes.contains(name));
            let others: Vec<String> = others.cloned().collect();
            nodes.extend(others);
            nodes.truncate(share);
            Next::Advance(Step::Share, nodes)
        }
        Step::One | Step::Share => Next::Advance(Step::All, Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{self, Push};
    use crate::model::{FORMAT, Refused};

    const SECOND: Duration = Duration::from_secs(1);

    /// Balancers that each have a hundred requests a second, and share a head.
    struct Fleet {
        head: Head,
        reports: Vec<Report>,
        driver: Driver,
        now: Duration,
        tags: u32,
        rules: Rollout,
        /// Requests out of a hundred that fail with the new revision.
        failing: u64,
        /// The interval of its latencies with the new revision.
        slow: u16,
        rate: u64,
    }

    impl Fleet {
        fn new(names: &[&str]) -> Self {
            let push = |text: &str, staged| Push {
                text: text.into(),
                author_name: String::new(),
                message: String::new(),
                staged,
                at: 0,
            };
            let (head, _) = change::push(None, &[], push("old", false), "a".into()).unwrap();
            let (trial, _) = change::push(Some(&head), &[], push("new", true), "b".into()).unwrap();
            let report = |name: &&str| Report {
                format: FORMAT,
                name: (*name).into(),
                version: String::new(),
                process: "1".into(),
                mark: None,
                running: head.current.clone(),
                refused: None,
                waits: false,
                counts: Counts::default(),
                before: Counts::default(),
            };
            let mut fleet = Fleet {
                reports: names.iter().map(report).collect(),
                head: head.clone(),
                driver: Driver::default(),
                now: SECOND,
                tags: 0,
                rules: Rollout::default(),
                failing: 0,
                slow: 20,
                rate: 100,
            };
            fleet.go_on(60);
            fleet.head = trial;
            fleet
        }

        /// Lets a second pass.
        fn second(&mut self) -> Next {
            self.now += SECOND;
            let new = self.head.trial.as_ref().map(|trial| trial.to.clone());
            for report in &mut self.reports {
                let target = self.head.target_of(&report.name).cloned();
                if report.running != target {
                    report.before = report.counts.clone();
                }
                report.running = target;
                let has_it = new.is_some() && report.running == new;
                report.counts.add(&Counts {
                    requests: self.rate,
                    failed: if has_it { self.failing } else { 0 },
                    latencies: vec![(if has_it { self.slow } else { 20 }, self.rate)],
                });
            }
            let first = self.reports.first().map(|first| first.name.clone());
            let own = first.unwrap_or_default();
            let next = self
                .driver
                .next(&self.head, &self.reports, &own, &self.rules, self.now);
            self.tags += 1;
            let tag = format!("t{}", self.tags);
            let head = match &next {
                Next::Wait(_) => None,
                Next::Advance(step, nodes) => {
                    change::advance(&self.head, *step, nodes.clone(), tag)
                }
                Next::Finish => change::finish_rollout(&self.head, tag),
                Next::TakeBack(why) => change::take_back(&self.head, why.clone(), 0, tag),
            };
            self.head = head.unwrap_or_else(|| self.head.clone());
            next
        }

        /// Runs the fleet for that many seconds, and returns all actions but the waits.
        fn go_on(&mut self, seconds: u32) -> Vec<Next> {
            let all = (0..seconds).map(|_| self.second());
            all.filter(|next| !matches!(next, Next::Wait(_))).collect()
        }
    }

    fn names(nodes: &[&str]) -> Vec<String> {
        nodes.iter().map(|name| (*name).to_owned()).collect()
    }

    const TEN: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

    #[test]
    fn one_then_a_share_then_all() {
        let mut fleet = Fleet::new(&TEN);
        assert_eq!(
            fleet.go_on(200),
            [
                Next::Advance(Step::One, names(&["j"])),
                Next::Advance(Step::Share, names(&["j", "i", "h"])),
                Next::Advance(Step::All, Vec::new()),
                Next::Finish,
            ]
        );
        assert_eq!(fleet.head.current.unwrap().number, 2);
    }

    #[test]
    fn steps_are_watched_for_as_long_as_it_is_said() {
        let mut fleet = Fleet::new(&TEN);
        fleet.rules.watch = Duration::from_secs(100);
        assert_eq!(fleet.go_on(100).len(), 1);
        assert_eq!(fleet.go_on(20).len(), 1);
    }

    #[test]
    fn failures_take_it_back_from_the_first() {
        let mut fleet = Fleet::new(&TEN);
        fleet.failing = 30;
        let written = fleet.go_on(60);
        assert_eq!(written[0], Next::Advance(Step::One, names(&["j"])));
        assert!(
            matches!(&written[1], Next::TakeBack(why) if why.contains("failed with the revision"))
        );
        assert_eq!(written.len(), 2);
        assert_eq!(fleet.head.current.as_ref().unwrap().number, 1);
        assert_eq!(fleet.head.failed.as_ref().unwrap().to.number, 2);
    }

    #[test]
    fn it_is_taken_back_when_it_is_slower() {
        let mut fleet = Fleet::new(&TEN);
        fleet.slow = 30;
        let written = fleet.go_on(60);
        assert!(matches!(&written[1], Next::TakeBack(why) if why.contains("latency")));
    }

    #[test]
    fn what_goes_wrong_with_all_is_compared_with_before() {
        let mut fleet = Fleet::new(&TEN);
        let mut written = Vec::new();
        while !written.contains(&Next::Advance(Step::All, Vec::new())) {
            written.push(fleet.second());
        }
        fleet.failing = 30;
        assert!(matches!(&fleet.go_on(60)[..], [Next::TakeBack(_)]));
    }

    #[test]
    fn a_fleet_of_one_is_compared_with_itself() {
        let mut fleet = Fleet::new(&["a"]);
        let good = fleet.go_on(200);
        assert_eq!(good.len(), 3, "{good:?}");
        assert_eq!(good[2], Next::Finish);
        let mut fleet = Fleet::new(&["a"]);
        fleet.failing = 30;
        assert!(matches!(fleet.go_on(60)[1], Next::TakeBack(_)));
    }

    #[test]
    fn with_few_requests_it_waits_but_not_for_ever() {
        let mut fleet = Fleet::new(&TEN);
        fleet.rate = 1;
        fleet.rules.limit = Duration::from_secs(300);
        assert_eq!(fleet.go_on(290).len(), 1);
        assert_eq!(
            fleet.go_on(20),
            [Next::Advance(Step::Share, names(&["j", "i", "h"]))]
        );
    }

    #[test]
    fn who_refuses_it_goes_or_starts_anew_ends_it() {
        let after = |spoil: fn(&mut Fleet)| {
            let mut fleet = Fleet::new(&TEN);
            fleet.go_on(5);
            spoil(&mut fleet);
            let written = fleet.go_on(2);
            assert_eq!(written.len(), 1, "{written:?}");
            match &written[0] {
                Next::TakeBack(why) => why.clone(),
                other => panic!("{other:?}"),
            }
        };
        let refused = after(|fleet| {
            let to = fleet.head.trial.as_ref().unwrap().to.clone();
            let last = fleet.reports.last_mut().unwrap();
            last.refused = Some(Refused {
                to,
                why: "no such file".into(),
            });
        });
        assert_eq!(refused, "balancer j refuses the revision: no such file");
        let gone = after(|fleet| drop(fleet.reports.pop()));
        assert_eq!(gone, "balancer j has gone while it had the revision");
        let anew = after(|fleet| {
            let last = fleet.reports.last_mut().unwrap();
            last.process = "2".into();
            last.counts = Counts::default();
        });
        assert_eq!(anew, "balancer j was restarted while it had the revision");
    }

    #[test]
    fn one_that_does_not_get_it_into_effect_ends_it() {
        let mut fleet = Fleet::new(&TEN);
        fleet.go_on(1);
        let first = fleet.head.current.clone();
        let mut written = Vec::new();
        for _ in 0..70 {
            fleet.now += SECOND;
            for report in &mut fleet.reports {
                report.running.clone_from(&first);
            }
            let next = fleet
                .driver
                .next(&fleet.head, &fleet.reports, "a", &fleet.rules, fleet.now);
            written.push(next);
        }
        assert!(matches!(written.last(), Some(Next::TakeBack(why)) if why.contains("within 60s")));
    }

    #[test]
    fn only_the_first_one_drives() {
        let mut fleet = Fleet::new(&TEN);
        let next = fleet
            .driver
            .next(&fleet.head, &fleet.reports, "b", &fleet.rules, fleet.now);
        assert_eq!(next, Next::Wait("another balancer drives the roll-out"));
    }
}
