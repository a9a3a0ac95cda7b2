//! Forecast for a running group with another strategy: plays its members and its rate of requests, both as measured, in
//! virtual time.

use std::time::Duration;

use evenkeel_core::load::LoadId;
use evenkeel_core::strategy::Values;
use evenkeel_manager::config::Config;

use crate::engine::draw_exponential;
use crate::requests::{Dispatch, WARM_UP, play_watched};
use crate::scenario::{MemberModel, Reports, Scenario};
use crate::server::Discipline;
use crate::work::{Arrivals, RequestWork, Source, Visit, Work};

/// Moments of a run at which members and queues are looked at.
const SAMPLES: u32 = 200;

/// Time between two load reports of a member.
const REPORTS: Duration = Duration::from_secs(1);

/// Parameters of a forecast.
#[derive(Clone, Debug)]
pub struct Question {
    /// A configuration with the group. Its first rule for the group sets how long requests wait, and how often they are
    /// tried again.
    pub config: Config,
    /// The group's name.
    pub group: String,
    /// Mean service time and number of requests at once, for each member of the group.
    pub members: Vec<(Duration, usize)>,
    /// Requests per second.
    pub rate: f64,
    /// Number of requests.
    pub requests: u32,
    /// Load that members report once a second, if they report one.
    pub reports: Option<LoadId>,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// Result of a forecast.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Mean response time.
    pub mean: Duration,
    /// Response times below which a share (0.5, 0.9, 0.99) of the requests stayed.
    pub quantiles: [Duration; 3],
    /// Share of the requests that failed.
    pub failed: f64,
    /// The 99th percentile of the number of requests in the balancer's queue over time.
    pub queue: usize,
    /// Share of the requests and share of busy time of each member.
    pub members: Vec<(f64, f64)>,
}

/// Requests whose service times are exponential.
#[derive(Debug)]
struct Exponential(f64);

impl Work for Exponential {
    fn draw(&mut self, rng: &mut fastrand::Rng) -> RequestWork {
        RequestWork {
            cost: draw_exponential(self.0, rng).max(1.0),
            document: 0,
        }
    }
}

impl Question {
    /// Plays the group with a strategy. `None` if there is nothing to play, or if `go_on`, which is called now and
    /// then, returns false.
    pub fn play_strategy(
        &self,
        strategy: &Values,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Option<Forecast> {
        let mut config = self.config.clone();
        let mut groups = config.groups.iter_mut();
        groups.find(|group| group.name == self.group)?.strategy = strategy.clone();
        let mut world = Scenario::for_group(config, &self.group)?;
        let means = self.members.iter().map(|(mean, _)| mean.as_nanos() as f64);
        let mean = means.clone().sum::<f64>() / self.members.len() as f64;
        let is_sound = mean >= 1.0 && self.rate.is_finite() && self.rate > 0.0;
        if !is_sound || world.members.len() != self.members.len() {
            return None;
        }
        let models = self.members.iter().zip(means);
        let models = models.map(|((_, concurrency), own)| MemberModel {
            discipline: Discipline::Fifo,
            slots: (*concurrency).max(1),
            slowness: own.max(1.0) / mean,
            ..MemberModel::NORMAL
        });
        world.members = models.collect();
        world.mean_cost = mean;
        world.reports = self.reports.map(|id| Reports {
            id,
            interval: REPORTS,
            delay: Duration::ZERO,
            noise: 0.0,
        });
        let length = Duration::try_from_secs_f64(f64::from(self.requests) / self.rate).ok()?;
        world.length = Some(length.max(Duration::from_millis(1)));
        world.samples = Some((length / SAMPLES).max(Duration::from_micros(1)));
        let source = Source {
            group: self.group.clone(),
            arrivals: Arrivals::Open(self.rate),
            visit: Visit::ONE,
            work: Box::new(Exponential(mean)),
        };
        let mut is_stopped = false;
        let played = play_watched(
            &world,
            &Dispatch::Configured,
            vec![source],
            self.seed,
            &mut |_| {
                is_stopped |= !go_on();
                !is_stopped
            },
        );
        if is_stopped {
            return None;
        }
        let first = (played.samples.len() as f64 * WARM_UP) as usize;
        let samples = played.samples.get(first..).unwrap_or_default();
        let mut waiting: Vec<usize> = samples.iter().map(|sample| sample.waiting).collect();
        waiting.sort_unstable();
        let last = waiting.len().saturating_sub(1);
        let queue = waiting.get((last as f64 * 0.99).round() as usize);
        let all = played.per_member.iter().sum::<usize>().max(1) as f64;
        let members = played.per_member.iter().enumerate().map(|(index, count)| {
            let busy = samples
                .iter()
                .filter_map(|sample| sample.members.get(index));
            let busy: f64 = busy.map(|member| member.busy).sum();
            (*count as f64 / all, busy / samples.len().max(1) as f64)
        });
        Some(Forecast {
            mean: played.mean(),
            quantiles: [0.5, 0.9, 0.99].map(|share| played.quantile(share)),
            failed: played.failed_share(),
            queue: queue.copied().unwrap_or(0),
            members: members.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_core::strategy::find;
    use evenkeel_manager::config::{GroupConfig, MemberConfig};

    use super::*;

    fn question(means: &[u64], rate: f64) -> Question {
        let members =
            (1..=means.len()).map(|number| MemberConfig::new(&format!("10.0.0.{number}"), 80));
        let config = Config {
            groups: vec![GroupConfig::new("app", members.collect()).into()],
            ..Config::default()
        };
        Question {
            config,
            group: "app".into(),
            members: means
                .iter()
                .map(|&ms| (Duration::from_millis(ms), 2))
                .collect(),
            rate,
            requests: 20_000,
            reports: None,
            seed: 1,
        }
    }

    fn strategy(name: &str) -> Values {
        Values::defaults(find(name).unwrap())
    }

    #[test]
    fn a_slow_member_hurts_who_does_not_look() {
        let question = question(&[10, 10, 40], 120.0);
        let play = |name| {
            question
                .play_strategy(&strategy(name), &mut || true)
                .unwrap()
        };
        let (blind, seeing) = (play("round_robin"), play("least_request"));
        assert!(
            seeing.quantiles[2] < blind.quantiles[2].mul_f64(0.7),
            "{seeing:?} {blind:?}"
        );
        assert!((blind.members[2].0 - 1.0 / 3.0).abs() < 0.02, "{blind:?}");
        assert!(seeing.members[2].0 < 0.3, "{seeing:?}");
        assert!(
            seeing
                .members
                .iter()
                .all(|(_, busy)| (0.1..1.0).contains(busy)),
            "{seeing:?}"
        );
        let shares: f64 = seeing.members.iter().map(|(share, _)| share).sum();
        assert!((shares - 1.0).abs() < 1e-9);
        assert_eq!(play("round_robin"), blind, "the same seed, the same course");
    }

    #[test]
    fn what_makes_no_sense_or_takes_too_long_is_not_played() {
        let good = question(&[10], 10.0);
        let plan = strategy("random");
        let play = |question: &Question| question.play_strategy(&plan, &mut || true);
        assert!(play(&good).is_some());
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-30] {
            let bad = Question {
                rate,
                ..good.clone()
            };
            assert_eq!(play(&bad), None, "{rate}");
        }
        let members = Vec::new();
        assert_eq!(
            play(&Question {
                members,
                ..good.clone()
            }),
            None
        );
        let group = "other".into();
        assert_eq!(
            play(&Question {
                group,
                ..good.clone()
            }),
            None
        );
        let mut asked = 0;
        let stopped = good.play_strategy(&plan, &mut || {
            asked += 1;
            asked < 3
        });
        assert_eq!((stopped, asked), (None, 3));
    }
}
