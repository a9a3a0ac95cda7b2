//! Worlds drawn at random from their number.

use std::time::Duration;

use evenkeel_core::load::LoadId;
use evenkeel_sim::engine::{draw_exponential, draw_lognormal, draw_pareto};
use evenkeel_sim::work::{Arrivals, Bursts, RequestWork, Source, Visit, Work};
use evenkeel_sim::{Change, ChangeEffect, Discipline, MemberModel, Reports, Scenario, Way};

/// The most requests per second that arrive in a world: with more, runs of the same number of requests would end before
/// a strategy can learn or a world can change.
const MOST_PER_SECOND: f64 = 5_000.0;

/// A world without events is overloaded above this share of its capacity.
const OVERLOAD: f64 = 0.97;

/// A world: its scenario, and its description.
#[derive(Clone, Debug)]
pub struct World {
    /// The number from which the world is drawn.
    pub number: u64,
    /// Features of the world, by which figures are grouped.
    pub tags: Vec<&'static str>,
    /// Line that describes the world.
    pub text: String,
    /// True if the members cannot serve all that arrives.
    pub is_overloaded: bool,
    /// Mean service time at normal speed in nanoseconds.
    pub mean: f64,
    /// Members, network, events and reports.
    pub scenario: Scenario,
    arrivals: Arrivals,
    times: Times,
}

impl World {
    /// Draws the world of that number: the same one each time.
    pub fn draw(number: u64) -> World {
        let rng = fastrand::Rng::with_seed(number ^ 0x9e37_79b9_7f4a_7c15);
        Draw {
            rng,
            tags: Vec::new(),
            words: Vec::new(),
        }
        .world(number)
    }

    /// Requests of the world, from the first one.
    pub fn sources(&self) -> Vec<Source> {
        vec![Source {
            group: self.scenario.group.clone(),
            arrivals: self.arrivals,
            visit: Visit::ONE,
            work: Box::new(self.times),
        }]
    }

    /// Latency in nanoseconds up to which an answer is of use, for worlds that are overloaded.
    pub fn useful(&self) -> f64 {
        2.0 * self.scenario.network.as_nanos() as f64 + 10.0 * self.mean
    }
}

/// Service times at normal speed, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    mean: f64,
    shape: Shape,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Constant,
    Exponential,
    /// Lognormal with this sigma.
    Lognormal(f64),
    /// Pareto with this alpha, cut off at ten thousand times the mean.
    Pareto(f64),
    /// Mixture: the first number is the share of requests that cost more, the second how many times
    /// as much they cost as the others.
    Mixed(f64, f64),
}

impl Work for Times {
    fn draw(&mut self, rng: &mut fastrand::Rng) -> RequestWork {
        let cost = match self.shape {
            Shape::Constant => 1.0,
            Shape::Exponential => draw_exponential(1.0, rng),
            Shape::Lognormal(sigma) => draw_lognormal(-sigma * sigma / 2.0, sigma, rng),
            Shape::Pareto(alpha) => draw_pareto((alpha - 1.0) / alpha, alpha, rng),
            Shape::Mixed(share, factor) => {
                let usual = 1.0 / (1.0 - share + share * factor);
                usual * if rng.f64() < share { factor } else { 1.0 }
            }
        };
        RequestWork {
            cost: self.mean * cost.min(1e4),
            document: 0,
        }
    }
}

/// A world that is being drawn.
struct Draw {
    rng: fastrand::Rng,
    tags: Vec<&'static str>,
    words: Vec<String>,
}

impl Draw {
    fn world(mut self, number: u64) -> World {
        let times = self.draw_times();
        let mut scenario = Scenario::new(number.to_string(), 0);
        scenario.members = self.draw_members();
        let workers: f64 = scenario.members.iter().map(|of| of.slots as f64).sum();
        scenario.requests = (60.0 * workers).clamp(8_000.0, 30_000.0) as usize;
        scenario.drains = true;
        let utilisation = self.draw_utilisation();
        let capacity = capacity(&scenario.members);
        // The rate in requests per second, which the service time follows where it would be too high.
        let mut mean = times.mean;
        let mut rate = utilisation * capacity / (mean / 1e9);
        if rate > MOST_PER_SECOND {
            mean *= rate / MOST_PER_SECOND;
            rate = MOST_PER_SECOND;
        }
        if self.chance(0.06) {
            self.tag("idle");
            rate = self.between(1.0, 50.0).min(rate);
            scenario.requests = 2_000;
        }
        let times = Times { mean, ..times };
        self.say(format!("mean {:.3} ms", mean / 1e6));
        let seconds = scenario.requests as f64 / rate;
        scenario.network = self.draw_network();
        scenario.balancers = self.draw_balancers();
        let left = self.draw_events(&mut scenario, seconds);
        // While events last, only the share `left` of the capacity is there: the rate is reduced by it.
        rate *= left;
        self.draw_reports(&mut scenario);
        self.draw_weights(&mut scenario);
        scenario.control = self.chance(0.5);
        if scenario.control {
            self.say("control");
        }
        let arrivals = self.draw_arrivals(rate, utilisation, workers, mean);
        let is_overloaded = utilisation > OVERLOAD && !matches!(arrivals, Arrivals::Closed(_));
        World {
            number,
            tags: self.tags,
            text: self.words.join(", "),
            is_overloaded,
            mean,
            scenario,
            arrivals,
            times,
        }
    }

    fn tag(&mut self, tag: &'static str) {
        self.tags.push(tag);
    }

    fn say(&mut self, word: impl Into<String>) {
        self.words.push(word.into());
    }

    /// True in this share of all cases.
    fn chance(&mut self, share: f64) -> bool {
        self.rng.f64() < share
    }

    /// A number between two, whose logarithm is uniform.
    fn between(&mut self, low: f64, high: f64) -> f64 {
        low * libm::pow(high / low, self.rng.f64())
    }

    fn draw_times(&mut self) -> Times {
        let (shape, tag) = match self.rng.u32(..100) {
            0..15 => (Shape::Constant, "constant"),
            15..45 => (Shape::Exponential, "exponential"),
            45..68 => (
                Shape::Lognormal(0.5 * f64::from(self.rng.u32(1..=3))),
                "lognormal",
            ),
            68..80 => (Shape::Pareto(1.6 + 1.4 * self.rng.f64()), "pareto"),
            _ => {
                let share = self.between(0.02, 0.2);
                (Shape::Mixed(share, self.between(5.0, 50.0)), "mixed")
            }
        };
        self.tag(tag);
        self.say(format!("{shape:.2?}"));
        let mean = self.between(1e6, 1e8);
        Times { mean, shape }
    }

    fn draw_members(&mut self) -> Vec<MemberModel> {
        let most = if self.chance(0.7) { 16.0 } else { 300.0 };
        let count = self.between(2.0, most + 0.99) as usize;
        let slots = self.between(1.0, 64.99_f64.min(1_200.0 / count as f64).max(1.99)) as usize;
        let discipline = match self.chance(0.6) {
            true => Discipline::Fifo,
            false => Discipline::Sharing,
        };
        self.tag(match count {
            ..=3 => "2-3 members",
            4..=10 => "4-10 members",
            11..=32 => "11-32 members",
            _ => "33-300 members",
        });
        self.tag(match slots {
            1 => "1 worker",
            2..=3 => "2-3 workers",
            _ => "4-64 workers",
        });
        self.tag(match discipline {
            Discipline::Fifo => "fifo",
            Discipline::Sharing => "sharing",
        });
        self.say(format!("{count} members of {slots} {discipline:?}"));
        let model = MemberModel {
            discipline,
            slots,
            ..MemberModel::NORMAL
        };
        let mut members = vec![model; count];
        match self.rng.u32(..100) {
            0..40 => self.tag("equal"),
            40..62 => {
                let slowness = self.between(1.5, 8.0);
                members[0].slowness = slowness;
                self.tag("one slow");
                self.say(format!("one {slowness:.1} times slower"));
            }
            62..77 => {
                let shape = Shape::Lognormal(0.4);
                let mut times = Times { mean: 1.0, shape };
                for member in &mut members {
                    member.slowness = times.draw(&mut self.rng).cost.clamp(0.2, 5.0);
                }
                self.tag("all speeds");
            }
            77..88 => {
                for member in &mut members {
                    member.slots = self.rng.usize(1..=2 * slots);
                }
                self.tag("unequal workers");
            }
            _ => {
                let slowness = self.between(1.3, 4.0);
                let half = members.len() / 2;
                members[half..]
                    .iter_mut()
                    .for_each(|member| member.slowness = slowness);
                self.tag("half slow");
                self.say(format!("half of them {slowness:.1} times slower"));
            }
        }
        members
    }

    fn draw_utilisation(&mut self) -> f64 {
        let utilisation = match self.chance(0.05) {
            true => 1.0 + self.between(0.05, 0.5),
            false => 0.1 + 0.8 * self.rng.f64(),
        };
        self.tag(match utilisation {
            ..0.4 => "load below 0.4",
            ..0.7 => "load 0.4-0.7",
            ..1.0 => "load above 0.7",
            _ => "overload",
        });
        self.say(format!("load {utilisation:.2}"));
        utilisation
    }

    fn draw_network(&mut self) -> Duration {
        let millis = match self.rng.u32(..10) {
            0..4 => 0.0,
            4..8 => self.between(0.03, 1.0),
            _ => self.between(1.0, 10.0),
        };
        self.tag(match millis {
            0.0 => "no network",
            ..1.0 => "network below 1 ms",
            _ => "network of 1-10 ms",
        });
        self.say(format!("network {millis:.2} ms"));
        Duration::from_secs_f64(millis / 1e3)
    }

    fn draw_balancers(&mut self) -> usize {
        let balancers = match self.rng.u32(..100) {
            0..75 => 1,
            75..90 => 2,
            _ => self.rng.usize(3..=5),
        };
        if balancers > 1 {
            self.tag("several balancers");
            self.say(format!("{balancers} balancers"));
        }
        balancers
    }

    /// Draws what happens; answers which share of the capacity is left.
    fn draw_events(&mut self, scenario: &mut Scenario, seconds: f64) -> f64 {
        let members = scenario.members.clone();
        let whole = capacity(&members);
        let without = |member: usize| 1.0 - speed(&members[member]) / whole;
        let changes = &mut scenario.changes;
        match self.rng.u32(..100) {
            0..15 => {
                let pause = self.between(0.1, 1.0);
                let every = pause + self.between(0.5, 5.0);
                let (mut now, mut member) = (every, 0);
                while now < seconds {
                    // The member is so slow that nothing is done before the end.
                    let speeds = [1e9, members[member].slowness].map(ChangeEffect::Slowness);
                    changes.extend(change_twice(member, [now, now + pause], speeds));
                    now += every;
                    member = (member + 1) % members.len();
                }
                self.tag("pauses");
                self.say(format!("pauses of {pause:.2} s every {every:.2} s"));
                (1.0 - pause / every / members.len() as f64).min(1.0)
            }
            15..25 => {
                let (factor, every) = (self.between(2.0, 8.0), self.between(1.0, 20.0));
                let step = (members.len() / 3).max(1) | 1;
                let (mut now, mut member) = (0.0, 0);
                while now < seconds {
                    let usual = members[member].slowness;
                    let speeds = [usual * factor, usual].map(ChangeEffect::Slowness);
                    changes.extend(change_twice(member, [now, now + every], speeds));
                    now += every;
                    member = (member + step) % members.len();
                }
                changes.sort_by_key(|change| change.at);
                self.tag("slow one moves");
                self.say(format!(
                    "one {factor:.1} times slower, moves every {every:.1} s"
                ));
                1.0 - (1.0 - 1.0 / factor) / members.len() as f64
            }
            25..33 => {
                let failing = self.between(0.05, 1.0);
                let parts = match self.chance(0.5) {
                    true => [0.0, 2.0],
                    false => [0.2, 0.7],
                };
                let moments = parts.map(|part| part * seconds);
                changes.extend(change_twice(
                    0,
                    moments,
                    [failing, 0.0].map(ChangeEffect::Failing),
                ));
                self.tag("one fails");
                self.say(format!("one fails {:.0} %", 100.0 * failing));
                1.0 - failing * (1.0 - without(0))
            }
            33..40 => {
                let moments = [0.3, 0.5].map(|part| part * seconds);
                changes.extend(change_twice(
                    0,
                    moments,
                    [true, false].map(ChangeEffect::Dead),
                ));
                self.tag("one dies");
                self.say("one dies and comes back");
                without(0).max(0.3)
            }
            40..50 if members[0].discipline == Discipline::Sharing => {
                let tasks = self.between(0.5, 3.0) * members[0].slots as f64;
                let moments = [0.2, 0.7].map(|part| part * seconds);
                changes.extend(change_twice(
                    0,
                    moments,
                    [tasks, 0.0].map(ChangeEffect::Background),
                ));
                self.tag("load of others");
                self.say(format!("{tasks:.0} tasks of others at one"));
                1.0 - 0.7 * (1.0 - without(0))
            }
            _ => {
                self.tag("no events");
                1.0
            }
        }
    }

    fn draw_reports(&mut self, scenario: &mut Scenario) {
        if !self.chance(0.25) {
            return;
        }
        let id = match self.rng.u32(..3) {
            0 => LoadId::CPU,
            1 => LoadId::COMPOSITE,
            _ => LoadId::IN_FLIGHT,
        };
        let interval = self.between(0.01, 10.0);
        let noise = self.rng.choice([0.0, 0.1, 0.3]).unwrap_or_default();
        scenario.reports = Some(Reports {
            id,
            interval: Duration::from_secs_f64(interval),
            delay: Duration::from_secs_f64(self.rng.f64() * interval / 2.0),
            noise,
        });
        scenario.way = Way {
            loss: self.rng.choice([0.0, 0.0, 0.1]).unwrap_or_default(),
            jitter: Duration::ZERO,
        };
        self.tag("reports");
        self.say(format!("{id} every {interval:.2} s, noise {noise}"));
    }

    fn draw_weights(&mut self, scenario: &mut Scenario) {
        if !self.chance(0.1) {
            return;
        }
        let is_true = self.chance(0.6);
        let usual = capacity(&scenario.members) / scenario.members.len() as f64;
        for member in &mut scenario.members {
            member.weight = match is_true {
                true => (speed(member) / usual).clamp(0.1, 10.0),
                false => f64::from(self.rng.u32(1..=4)),
            };
        }
        self.tag(if is_true {
            "true weights"
        } else {
            "random weights"
        });
        self.say(if is_true {
            "weights by speed"
        } else {
            "weights by chance"
        });
    }

    fn draw_arrivals(&mut self, rate: f64, utilisation: f64, workers: f64, mean: f64) -> Arrivals {
        match self.rng.u32(..100) {
            0..15 => {
                let clients = (workers * utilisation * self.between(0.7, 2.5)).max(1.0) as usize;
                self.tag("closed loop");
                self.say(format!("{clients} clients"));
                Arrivals::Closed(clients)
            }
            15..30 if utilisation < 0.8 => {
                let factor = 1.0 + self.between(0.5, 4.0);
                let every = self.between(2e8_f64.max(10.0 * mean), 1e10);
                // A burst's surplus makes no more than the whole capacity.
                let share = ((1.0 / utilisation - 1.0) * 0.5 / (factor - 1.0)).clamp(0.02, 0.3);
                self.tag("bursts");
                self.say(format!(
                    "bursts of {factor:.1} for {:.2} s",
                    share * every / 1e9
                ));
                Arrivals::Bursts(Bursts {
                    rate: rate / (1.0 + share * (factor - 1.0)),
                    every,
                    length: share * every,
                    factor,
                })
            }
            _ => {
                self.tag("poisson");
                Arrivals::Open(rate)
            }
        }
    }
}

/// Changes of a member at two moments, in seconds: to what it is between them, and to what it is afterwards.
fn change_twice(
    member: usize,
    moments: [f64; 2],
    to: [ChangeEffect; 2],
) -> impl Iterator<Item = Change> {
    moments.into_iter().zip(to).map(move |(at, to)| Change {
        at: Duration::from_secs_f64(at),
        member,
        to,
    })
}

/// Speed of a member: requests of the mean cost in a mean service time.
fn speed(member: &MemberModel) -> f64 {
    member.slots as f64 / member.slowness
}

/// Speed of all members together.
fn capacity(members: &[MemberModel]) -> f64 {
    members.iter().map(speed).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_is_the_same_each_time_and_no_two_are_alike() {
        let texts: Vec<String> = (0..200).map(|number| World::draw(number).text).collect();
        for (number, text) in texts.iter().enumerate() {
            assert_eq!(World::draw(number as u64).text, *text);
        }
        let mut different = texts.clone();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), texts.len());
    }

    #[test]
    fn service_times_have_the_mean_that_they_claim() {
        for shape in [
            Shape::Constant,
            Shape::Exponential,
            Shape::Lognormal(1.0),
            Shape::Pareto(2.5),
            Shape::Mixed(0.1, 20.0),
        ] {
            let mut times = Times { mean: 5e6, shape };
            let mut rng = fastrand::Rng::with_seed(1);
            let count = 200_000;
            let sum: f64 = (0..count).map(|_| times.draw(&mut rng).cost).sum();
            let mean = sum / f64::from(count);
            assert!((mean / 5e6 - 1.0).abs() < 0.03, "{shape:?}: {mean}");
        }
    }

    #[test]
    fn every_feature_is_drawn_and_few_worlds_are_overloaded() {
        let worlds: Vec<World> = (0..1_000).map(World::draw).collect();
        let overloaded = worlds.iter().filter(|world| world.is_overloaded).count();
        assert!((10..100).contains(&overloaded), "{overloaded}");
        for tag in [
            "pareto",
            "mixed",
            "33-300 members",
            "1 worker",
            "sharing",
            "half slow",
            "idle",
            "pauses",
            "slow one moves",
            "one fails",
            "one dies",
            "load of others",
            "reports",
            "true weights",
            "closed loop",
            "bursts",
            "several balancers",
        ] {
            let has = worlds
                .iter()
                .filter(|world| world.tags.contains(&tag))
                .count();
            assert!(has >= 10, "{tag}: {has}");
        }
    }
}
