//! Members that fail for a time and are well again, in virtual time: the share of the requests that they get.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::group::{Group, GroupSettings, GroupState, Outcome, Request, Ticket, Trial};
use evenkeel_core::member::{Member, Weight};
use evenkeel_core::strategy::{Values, find};
use evenkeel_core::time::Instant;

use crate::outlier::{Event, Outliers};
use crate::testing::make_member;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// Interval of rounds, in nanoseconds.
const ROUND: u64 = SECOND / 10;

/// Time without failures at the beginning, in seconds.
const WARM_UP: f64 = 8.0;

/// Time in which the share of a member must have changed, in seconds.
const SEEN: f64 = 2.0;

/// Time after the end of the failures, in seconds.
const AFTERWARDS: f64 = 10.0;

/// Way in which a member fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Failure {
    /// Answers at once with an error.
    Error,
    /// Connections are refused.
    Refused,
    /// The connection breaks where the answer should come.
    Broken,
    /// No answer within a second.
    Silent,
}

/// Group with a member that fails for a time, and requests at it.
#[derive(Clone, Copy, Debug)]
struct Plan {
    strategy: &'static str,
    members: usize,
    /// Weight of the member that fails, and of each other one.
    weights: [f64; 2],
    /// Requests in a second.
    rate: f64,
    /// Median time of a request in milliseconds, and deviation of its logarithm.
    service: f64,
    spread: f64,
    failure: Failure,
    /// Share of its requests that the member fails.
    fails: f64,
    /// Time for which the member fails, in seconds.
    lasts: f64,
    /// Share of their requests that all members fail, always.
    all_fail: f64,
    /// Share of the requests that may take trials.
    repeatable: f64,
}

/// Requests as in `make bench-gateway`: one client that sends 200 requests a second to four members.
const BENCH: Plan = Plan {
    strategy: "adaptive",
    members: 4,
    weights: [1.0, 1.0],
    rate: 200.0,
    service: 2.0,
    spread: 0.4,
    failure: Failure::Error,
    fails: 0.5,
    lasts: 8.0,
    all_fail: 0.0,
    repeatable: 1.0,
};

/// Shares of the member that fails, each divided by its share by weight, and more.
#[derive(Clone, Copy, Debug)]
struct Shares {
    /// Share from two seconds after the first failure to the last one.
    failing: f64,
    /// Share from two seconds after the last failure on.
    afterwards: f64,
    /// Requests that failed to the client, from the first failure on.
    failed: usize,
    /// Seconds from the last failure until the member gets half of its share in a second, and more; the whole time if never.
    back: f64,
    /// Ejections of the member.
    ejections: usize,
    /// Ejections of other members.
    others: usize,
}

struct Job {
    ticket: Ticket,
    outcome: Outcome,
    trial: Option<Trial>,
    /// A trial that the member has failed, if another member answers now.
    failed: Option<Trial>,
}

struct World {
    plan: Plan,
    group: Group,
    outliers: Outliers,
    rng: fastrand::Rng,
    nanos: u64,
    fails: f64,
    jobs: Vec<Option<Job>>,
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    /// Time of each request that was sent to a member, and whether it was the one that fails.
    sent: Vec<(u64, bool)>,
    failed: Vec<u64>,
    events: Vec<(u64, usize, Event)>,
}

impl World {
    fn new(plan: Plan, seed: u64) -> Self {
        let members: Vec<Member> = (0..plan.members as u64).map(make_member).collect();
        for (index, member) in members.iter().enumerate() {
            let weight = Weight::new(plan.weights[usize::from(index > 0)]).unwrap();
            member.slot.set_weight(weight);
        }
        let kind = find(plan.strategy).unwrap();
        let (settings, state) = (GroupSettings::default(), Arc::<GroupState>::default());
        World {
            group: Group::new("g", settings, &Values::defaults(kind), members, state),
            outliers: Outliers::default(),
            rng: fastrand::Rng::with_seed(seed),
            nanos: 100 * SECOND + seed * 37_000_000,
            fails: 0.0,
            jobs: Vec::new(),
            ends: BinaryHeap::new(),
            sent: Vec::new(),
            failed: Vec::new(),
            events: Vec::new(),
            plan,
        }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.nanos)
    }

    /// Outcome of a request at a member, and the time until then in nanoseconds.
    fn draw_outcome(&mut self, index: usize) -> (Outcome, u64) {
        let normal: f64 = (0..12).map(|_| self.rng.f64()).sum::<f64>() - 6.0;
        let service = self.plan.service * 1e6 * libm::exp(self.plan.spread * normal);
        let fails = index == 0 && self.rng.f64() < self.fails;
        match (fails, self.plan.failure) {
            (false, _) if self.rng.f64() < self.plan.all_fail => (Outcome::Error, service as u64),
            (false, _) => (Outcome::Success, service as u64),
            (true, Failure::Error) => (Outcome::Error, 300_000),
            (true, Failure::Refused) => (Outcome::Failure, 100_000),
            (true, Failure::Broken) => (Outcome::Failure, service as u64),
            (true, Failure::Silent) => (Outcome::Failure, SECOND),
        }
    }

    fn start(&mut self, ticket: Ticket, trial: Option<(Trial, Duration)>, failed: Option<Trial>) {
        let index = ticket.member_index();
        self.sent.push((self.nanos, index == 0));
        let (mut outcome, mut after) = self.draw_outcome(index);
        if let Some((_, limit)) = &trial
            && after >= limit.as_nanos() as u64
        {
            (outcome, after) = (Outcome::Failure, limit.as_nanos() as u64);
        }
        let trial = trial.map(|(trial, _)| trial);
        let end = self.nanos + after.max(1);
        self.ends.push(Reverse((end, self.jobs.len())));
        self.jobs.push(Some(Job {
            ticket,
            outcome,
            trial,
            failed,
        }));
    }

    /// Sends a request as the proxy does.
    fn arrive(&mut self) {
        let now = self.now();
        if self.rng.f64() < self.plan.repeatable
            && let Some(bound) = self.group.take_trial(Default::default(), now)
        {
            return self.start(bound.ticket, Some((bound.trial, bound.time)), None);
        }
        let ticket = self.group.pick(&Request::at_time(now), &mut self.rng);
        self.start(ticket.unwrap(), None, None);
    }

    fn end(&mut self, id: usize) {
        let now = self.now();
        let Some(job) = self.jobs[id].take() else {
            return;
        };
        let tried = [self.group.members()[job.ticket.member_index()].id];
        job.ticket.finish(job.outcome, now);
        let is_well = job.outcome == Outcome::Success;
        match (is_well, job.trial, job.failed) {
            (true, Some(mut trial), _) => trial.succeed(),
            (true, _, Some(mut failed)) => failed.fail(),
            (false, Some(trial), _) => {
                let request = Request {
                    excluded_members: &tried,
                    ..Request::at_time(now)
                };
                let ticket = self.group.pick(&request, &mut self.rng).unwrap();
                self.start(ticket, None, Some(trial));
            }
            (false, ..) => self.failed.push(self.nanos),
            _ => {}
        }
    }

    fn run_round(&mut self) {
        for change in self.outliers.update_ejections(&self.group, self.now()) {
            self.events.push((self.nanos, change.index, change.event));
        }
    }

    /// Lets time pass, in seconds.
    fn pass(&mut self, seconds: f64) {
        let until = self.nanos + (seconds * SECOND as f64) as u64;
        let mean = SECOND as f64 / self.plan.rate;
        let mut arrival = self.nanos + (self.rng.f64() * mean) as u64;
        loop {
            let round = (self.nanos / ROUND + 1) * ROUND;
            let end = self.ends.peek().map_or(u64::MAX, |next| next.0.0);
            let next = round.min(end).min(arrival);
            if next >= until {
                self.nanos = until;
                return;
            }
            self.nanos = next;
            if next == end {
                let id = self.ends.pop().map(|next| next.0.1);
                id.into_iter().for_each(|id| self.end(id));
            } else if next == arrival {
                arrival += ((0.5 + self.rng.f64()) * mean) as u64 + 1;
                self.arrive();
            } else {
                self.run_round();
            }
        }
    }

    /// Share of the requests since a moment that the member that fails has got, divided by its share by weight.
    fn share(&self, from: u64) -> f64 {
        self.share_between(from, u64::MAX)
    }

    /// Seconds from a moment until the member gets half of its share in a second, and more.
    fn time_until_back(&self, well: u64) -> f64 {
        let mut moments = (0..(AFTERWARDS * 10.0) as u64).map(|tenth| well + tenth * SECOND / 10);
        let back = moments.find(|at| self.share_between(*at, *at + SECOND) >= 0.5);
        back.map_or(AFTERWARDS, |at| (at - well) as f64 / SECOND as f64)
    }

    fn share_between(&self, from: u64, until: u64) -> f64 {
        let first = self.sent.partition_point(|(at, _)| *at < from);
        let last = self.sent.partition_point(|(at, _)| *at < until);
        let all = self.sent[first..last].iter();
        let first = all.clone().filter(|(_, first)| *first).count();
        let [own, other] = self.plan.weights;
        let usual = own / (own + other * (self.plan.members - 1) as f64);
        first as f64 / all.count().max(1) as f64 / usual
    }
}

/// Plays a plan: all is well, the member fails, all is well.
fn play(plan: Plan, seed: u64) -> Shares {
    let mut world = World::new(plan, seed);
    world.pass(WARM_UP);
    let began = world.nanos;
    world.fails = plan.fails;
    world.pass(SEEN);
    let from = world.nanos;
    world.pass(plan.lasts - SEEN);
    let failing = world.share(from);
    world.fails = 0.0;
    let well = world.nanos;
    world.pass(SEEN);
    let from = world.nanos;
    world.pass(AFTERWARDS - SEEN);
    let ejections = |others: bool| {
        let ejected = world.events.iter().filter(|(_, index, event)| {
            (*index > 0) == others && matches!(event, Event::Ejected { .. })
        });
        ejected.count()
    };
    Shares {
        failing,
        afterwards: world.share(from),
        back: world.time_until_back(well),
        failed: world.failed.iter().filter(|at| **at >= began).count(),
        ejections: ejections(false),
        others: ejections(true),
    }
}

/// Mean of a figure of many runs.
fn mean(played: &[Shares], figure: impl Fn(&Shares) -> f64) -> f64 {
    played.iter().map(figure).sum::<f64>() / played.len() as f64
}

/// The figure of many runs below which a share `q` of them is.
fn quantile(played: &[Shares], q: f64, figure: impl Fn(&Shares) -> f64) -> f64 {
    let mut figures: Vec<f64> = played.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    figures[((figures.len() - 1) as f64 * q).round() as usize]
}

fn play_many(plan: Plan, seeds: u64) -> Vec<Shares> {
    (0..seeds).map(|seed| play(plan, seed)).collect()
}

#[test]
fn a_member_that_fails_gets_hardly_any_requests_and_is_back_soon_afterwards() {
    let longer = Plan {
        lasts: 15.0,
        ..BENCH
    };
    let all = Plan {
        fails: 1.0,
        ..BENCH
    };
    for plan in [
        BENCH,
        all,
        Plan {
            members: 2,
            ..longer
        },
        Plan {
            service: 6.0,
            ..longer
        },
        Plan {
            rate: 400.0,
            ..longer
        },
        Plan {
            failure: Failure::Refused,
            ..longer
        },
        Plan {
            failure: Failure::Broken,
            ..longer
        },
        Plan {
            failure: Failure::Silent,
            ..all
        },
        Plan {
            strategy: "peak_ewma",
            ..longer
        },
    ] {
        let played = play_many(plan, 10);
        let failing = mean(&played, |shares| shares.failing);
        assert!(failing < 0.025, "{plan:?}: {played:?}");
        assert!(
            mean(&played, |shares| shares.afterwards) > 0.75,
            "{plan:?}: {played:?}"
        );
        assert!(
            quantile(&played, 0.5, |shares| shares.back) <= 3.0,
            "{plan:?}: {played:?}"
        );
        // Some have had trials shortly before that their budget pays afterwards.
        assert!(
            played.iter().all(|shares| shares.back < AFTERWARDS),
            "{plan:?}: {played:?}"
        );
        assert!(
            played.iter().all(|shares| shares.others == 0),
            "{plan:?}: {played:?}"
        );
    }
}

/// Here nobody has enough requests to be ejected.
#[test]
fn a_member_of_a_group_with_few_requests_is_back_as_well() {
    let plan = Plan {
        rate: 40.0,
        fails: 1.0,
        lasts: 15.0,
        ..BENCH
    };
    let played = play_many(plan, 16);
    assert!(
        mean(&played, |shares| shares.afterwards) > 0.4,
        "{played:?}"
    );
}

#[test]
fn a_member_is_back_where_all_members_fail_now_and_then() {
    let plan = Plan {
        all_fail: 0.002,
        ..BENCH
    };
    let played = play_many(plan, 16);
    assert!(
        mean(&played, |shares| shares.afterwards) > 0.75,
        "{played:?}"
    );
    assert!(
        played.iter().map(|shares| shares.others).sum::<usize>() <= 2,
        "{played:?}"
    );
}

#[test]
fn a_single_failure_costs_a_member_its_share_for_seconds_and_ejects_nobody() {
    for seed in 0..16 {
        let mut world = World::new(BENCH, seed);
        world.pass(WARM_UP);
        world.fails = 1.0;
        while world.failed.is_empty() {
            world.pass(0.001);
        }
        world.fails = 0.0;
        let failed = world.nanos;
        world.pass(AFTERWARDS);
        assert!(world.time_until_back(failed) < 6.0, "{seed}");
        assert_eq!(world.events, [], "{seed}");
    }
}

/// Trials take nothing from clients, and patience grows with each failure.
#[test]
fn clients_see_few_failures_of_a_member_that_goes_on_to_fail_seldom() {
    let plan = Plan {
        fails: 0.05,
        lasts: 60.0,
        ..BENCH
    };
    let played = play_many(plan, 8);
    // With its share by weight it would be 150.
    assert!(
        mean(&played, |shares| shares.failed as f64) < 15.0,
        "{played:?}"
    );
    assert!(
        mean(&played, |shares| shares.ejections as f64) < 3.0,
        "{played:?}"
    );
}
