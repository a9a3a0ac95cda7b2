//! Costs and keys of a scenario's requests. All arithmetic is the same on all machines: logarithms and powers come from
//! `libm`, not from the C library.

use evenkeel_manager::config::scenario::{Distribution, Keys, Service};
use evenkeel_manager::config::{Problem, parse_duration, read_file};

use crate::engine::{draw_exponential, draw_lognormal, draw_pareto, duration_nanos};
use crate::work::{Cache, Popularity, RequestWork, Work};

/// The largest file of times, in bytes.
const MAX_FILE_SIZE: u64 = 64 * 1024 * 1024;

/// Longest time in nanoseconds, about eleven days: unbounded tails would overflow clocks.
const LONGEST: f64 = 1e15;

/// Distribution of service times, in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Times {
    Constant(f64),
    Exponential(f64),
    Lognormal { mu: f64, sigma: f64 },
    Pareto { least: f64, alpha: f64 },
    Listed(Vec<f64>),
}

impl Times {
    /// Distribution of a scenario's service times.
    ///
    /// # Errors
    ///
    /// The file of service times cannot be used.
    pub(super) fn new(service: &Service) -> Result<Self, Vec<Problem>> {
        let mean = duration_nanos(service.mean);
        let (sigma, alpha) = (service.sigma, service.alpha);
        Ok(match service.distribution {
            Distribution::Constant => Times::Constant(mean),
            Distribution::Exponential => Times::Exponential(mean),
            // The mean of a lognormal is exp(mu + sigma^2 / 2), that of a Pareto distribution
            // alpha / (alpha - 1) times its least value.
            Distribution::Lognormal => Times::Lognormal {
                mu: libm::log(mean) - sigma * sigma / 2.0,
                sigma,
            },
            Distribution::Pareto => Times::Pareto {
                least: mean * (alpha - 1.0) / alpha,
                alpha,
            },
            Distribution::File => return listed(service),
        })
    }

    /// The mean.
    pub(super) fn mean(&self) -> f64 {
        match self {
            Times::Constant(mean) | Times::Exponential(mean) => *mean,
            Times::Lognormal { mu, sigma } => libm::exp(mu + sigma * sigma / 2.0),
            Times::Pareto { least, alpha } => least * alpha / (alpha - 1.0),
            Times::Listed(all) => all.iter().sum::<f64>() / all.len().max(1) as f64,
        }
    }

    fn draw(&self, rng: &mut fastrand::Rng) -> f64 {
        let time = match self {
            Times::Constant(time) => *time,
            Times::Exponential(mean) => draw_exponential(*mean, rng),
            Times::Lognormal { mu, sigma } => draw_lognormal(*mu, *sigma, rng),
            Times::Pareto { least, alpha } => draw_pareto(*least, *alpha, rng),
            Times::Listed(all) => {
                let index = (rng.f64() * all.len() as f64) as usize;
                all.get(index).copied().unwrap_or_default()
            }
        };
        time.clamp(1.0, LONGEST)
    }
}

/// The times of a file.
fn listed(service: &Service) -> Result<Times, Vec<Problem>> {
    let Some(file) = &service.file else {
        return Ok(Times::Constant(duration_nanos(service.mean)));
    };
    let text = read_file(&file.path, MAX_FILE_SIZE).map_err(|error| {
        vec![
            file.place
                .problem(format!("{}: {error}", file.path.display())),
        ]
    })?;
    let (mut times, mut problems) = (Vec::new(), Vec::new());
    let mut bad = 0;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match parse_duration(line) {
            Some(time) if !time.is_zero() => times.push(duration_nanos(time)),
            _ => {
                bad += 1;
                if problems.len() < 10 {
                    problems.push(Problem {
                        file: file.path.display().to_string(),
                        line: index + 1,
                        column: 1,
                        key: String::new(),
                        message: "not a time".into(),
                        found_value: Some(format!(
                            "{:?}",
                            line.chars().take(60).collect::<String>()
                        )),
                        allowed: Some(r#"a time with a unit, as in "12.5ms""#.into()),
                    });
                }
            }
        }
    }
    if bad > problems.len() {
        let path = file.path.display();
        let message = format!("{path}: {bad} lines are no times; the first ten are listed");
        problems.push(file.place.problem(message));
    }
    if times.is_empty() && problems.is_empty() {
        let message = format!("{}: the file has no time", file.path.display());
        problems.push(file.place.problem(message));
    }
    match problems.is_empty() {
        true => Ok(Times::Listed(times)),
        false => Err(problems),
    }
}

/// Source of service times and keys for requests.
#[derive(Debug)]
pub(super) struct Costs {
    times: Times,
    mean: f64,
    /// Popularity of keys; `None` for requests without keys.
    popularity: Option<Popularity>,
    /// Cache of each member; empty without caches.
    caches: Vec<Cache>,
    room: usize,
    hit: f64,
}

impl Costs {
    pub(super) fn new(times: &Times, keys: &Keys, members: usize) -> Self {
        let cached = keys.count > 1 && keys.cache > 0;
        let caches = if cached { members } else { 0 };
        Costs {
            times: times.clone(),
            mean: times.mean(),
            popularity: (keys.count > 1).then(|| Popularity::new(keys.count, keys.zipf)),
            caches: (0..caches).map(|_| Cache::new(keys.cache)).collect(),
            room: keys.cache,
            hit: duration_nanos(keys.hit),
        }
    }
}

impl Work for Costs {
    fn draw(&mut self, rng: &mut fastrand::Rng) -> RequestWork {
        let keys = self.popularity.as_ref();
        let document = keys.map_or(0, |keys| keys.draw_rank(rng));
        RequestWork {
            cost: self.times.draw(rng),
            document,
        }
    }

    fn announced(&self, ask: RequestWork) -> f64 {
        ask.cost / self.mean
    }

    fn cost(&mut self, ask: RequestWork, member: usize) -> f64 {
        let cache = self.caches.get_mut(member);
        match cache.is_some_and(|cache| cache.check_and_insert((0, ask.document))) {
            true => self.hit.min(ask.cost).max(1.0),
            false => ask.cost,
        }
    }

    fn key(&self, ask: RequestWork) -> Option<u64> {
        self.popularity.as_ref()?;
        // The finalizer of SplitMix64: near ranks get hashes that are not near.
        let mut hash = (ask.document as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(hash ^ (hash >> 31))
    }

    fn forget(&mut self, member: usize) {
        if let Some(cache) = self.caches.get_mut(member) {
            *cache = Cache::new(self.room);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mean and the 99th percentile of a million draws, in units of the mean.
    fn drawn(times: &Times) -> (f64, f64) {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut all: Vec<f64> = (0..1_000_000).map(|_| times.draw(&mut rng)).collect();
        all.sort_unstable_by(f64::total_cmp);
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        (mean / times.mean(), all[990_000] / times.mean())
    }

    #[test]
    fn times_are_distributed_as_they_are_called() {
        let times = |distribution| {
            let service = Service {
                distribution,
                ..Service::default()
            };
            Times::new(&service).unwrap()
        };
        // The 99th percentiles: ln 100; exp(2.3263 - 1/2); 0.6 * 100^(1/2.5).
        for (distribution, p99) in [
            (Distribution::Constant, 1.0),
            (Distribution::Exponential, 4.605),
            (Distribution::Lognormal, 6.21),
            (Distribution::Pareto, 3.786),
        ] {
            let (mean, found) = drawn(&times(distribution));
            assert!((mean - 1.0).abs() < 0.02, "{distribution:?}: {mean}");
            assert!(
                (found / p99 - 1.0).abs() < 0.03,
                "{distribution:?}: {found}"
            );
        }
        let listed = Times::Listed(vec![1e6, 3e6]);
        assert_eq!(listed.mean(), 2e6);
        assert_eq!(drawn(&listed).1, 1.5);
    }

    #[test]
    fn a_popular_key_is_asked_for_as_often_as_zipf_says() {
        let keys = Keys {
            count: 100,
            zipf: 1.0,
            ..Keys::default()
        };
        let mut costs = Costs::new(&Times::Constant(1.0), &keys, 1);
        let mut rng = fastrand::Rng::with_seed(1);
        let mut counts = [0u32; 100];
        (0..100_000).for_each(|_| counts[costs.draw(&mut rng).document] += 1);
        // 1 / (1 + 1/2 + ... + 1/100) = 0.1928, and half of that.
        assert!((f64::from(counts[0]) / 1e5 - 0.1928).abs() < 0.005);
        assert!((f64::from(counts[1]) / 1e5 - 0.0964).abs() < 0.005);
        let of = |document| {
            costs.key(RequestWork {
                cost: 1.0,
                document,
            })
        };
        assert!(of(1).is_some() && of(1) != of(2));
    }

    #[test]
    fn what_is_at_hand_is_cheap_until_the_member_dies() {
        let keys = Keys {
            count: 10,
            cache: 5,
            ..Keys::default()
        };
        let mut costs = Costs::new(&Times::Constant(1e7), &keys, 2);
        let ask = RequestWork {
            cost: 1e7,
            document: 3,
        };
        assert_eq!(costs.cost(ask, 0), 1e7);
        assert_eq!(costs.cost(ask, 0), 1e6);
        assert_eq!(costs.cost(ask, 1), 1e7, "it has a cache of its own");
        costs.forget(0);
        assert_eq!(costs.cost(ask, 0), 1e7);
    }
}
