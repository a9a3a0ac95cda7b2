//! Regret over many worlds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::play::{Figures, Played};
use super::world::World;

/// Regret of one strategy in one world.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Regret {
    /// Mean latency to the best strategy's.
    pub mean: f64,
    /// 99th percentile to the best strategy's.
    pub p99: f64,
    /// Share of failed requests above the least one's.
    pub failed: f64,
}

/// Spread of a figure of a strategy over all worlds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Geometric mean.
    pub geometric_mean: f64,
    /// 95th percentile of the worlds.
    pub p95: f64,
    /// The worst world.
    pub worst: f64,
    /// Share of the worlds above 1.1.
    pub above: f64,
}

impl Spread {
    /// Spread of these values, of which there should be one at least.
    pub fn new(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let count = values.len().max(1) as f64;
        let logs: f64 = values.iter().map(|&value| libm::log(value)).sum();
        let last = values.len().saturating_sub(1);
        let p95 = (0.95 * last as f64).round() as usize;
        Spread {
            geometric_mean: libm::exp(logs / count),
            p95: values.get(p95).copied().unwrap_or_default(),
            worst: values.last().copied().unwrap_or_default(),
            above: values.iter().filter(|&&value| value > 1.1).count() as f64 / count,
        }
    }
}

/// Regret of all strategies in all worlds.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Regrets by strategy, in worlds that are not overloaded: number and regret.
    pub regrets: BTreeMap<String, Vec<(u64, Regret)>>,
    /// Best share of useful answers to the strategy's own, in worlds that are overloaded.
    pub overloaded: BTreeMap<String, Vec<(u64, f64)>>,
    /// Features of the worlds that are not overloaded.
    tags: BTreeMap<u64, Vec<&'static str>>,
}

impl Summary {
    /// Compares the strategies in each world.
    pub fn new(played: &[Played]) -> Summary {
        let mut summary = Summary::default();
        for world in played {
            let all = || world.figures.values();
            let least = |figure: fn(&Figures) -> f64| all().map(figure).fold(f64::MAX, f64::min);
            let drawn = World::draw(world.world);
            if drawn.is_overloaded {
                let best = all().map(|of| of.useful).fold(0.0, f64::max);
                for (name, figures) in &world.figures {
                    let regrets = summary.overloaded.entry(name.clone()).or_default();
                    regrets.push((world.world, best.max(1e-3) / figures.useful.max(1e-3)));
                }
                continue;
            }
            summary.tags.insert(world.world, drawn.tags);
            let (mean, p99) = (least(|of| of.mean), least(|of| of.p99));
            let failed = least(|of| of.failed);
            for (name, figures) in &world.figures {
                let regret = Regret {
                    mean: figures.mean / mean.max(1e-6),
                    p99: figures.p99 / p99.max(1e-6),
                    failed: figures.failed - failed,
                };
                let regrets = summary.regrets.entry(name.clone()).or_default();
                regrets.push((world.world, regret));
            }
        }
        summary
    }

    /// Spreads of a strategy's mean and 99th percentile over the worlds that `is_one` takes.
    pub fn spreads(&self, strategy: &str, is_one: impl Fn(u64) -> bool) -> (Spread, Spread, usize) {
        let regrets = self
            .regrets
            .get(strategy)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let these = || regrets.iter().filter(|(world, _)| is_one(*world));
        let mean = these().map(|(_, regret)| regret.mean).collect();
        let p99 = these().map(|(_, regret)| regret.p99).collect();
        (Spread::new(mean), Spread::new(p99), these().count())
    }

    /// Worlds in which a strategy's regret is worst, by the larger one of its two figures.
    pub fn worst(&self, strategy: &str, count: usize) -> Vec<(u64, Regret)> {
        let mut regrets = self.regrets.get(strategy).cloned().unwrap_or_default();
        let larger = |regret: &Regret| regret.mean.max(regret.p99);
        regrets.sort_by(|a, b| larger(&b.1).total_cmp(&larger(&a.1)));
        regrets.truncate(count);
        regrets
    }

    /// Strategies in the order of the geometric mean of their mean's regret.
    pub fn strategies(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.regrets.keys().map(String::as_str).collect();
        let of = |name: &str| self.spreads(name, |_| true).0.geometric_mean;
        names.sort_by(|a, b| of(a).total_cmp(&of(b)));
        names
    }

    /// Features that some world has.
    pub fn tags(&self) -> Vec<&'static str> {
        let tags: BTreeSet<&'static str> = self.tags.values().flatten().copied().collect();
        tags.into_iter().collect()
    }

    /// Tables as text: all strategies, and the strategy called `own` by feature. Single worlds are
    /// named if `names_worst` says so.
    pub fn text(&self, own: &str, names_worst: usize) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{:<20} {:>6}  {:^27}  {:^27}  {:>7}",
            "strategy",
            "worlds",
            "mean: g.mean p95 worst >1.1",
            "p99: g.mean p95 worst >1.1",
            "failed"
        );
        for name in self.strategies() {
            let (mean, p99, count) = self.spreads(name, |_| true);
            let _ = writeln!(
                text,
                "{name:<20} {count:>6}  {}  {}  {:>6.2} %",
                columns(&mean),
                columns(&p99),
                100.0 * self.mean_failures(name)
            );
        }
        if !self.overloaded.is_empty() {
            let _ = writeln!(
                text,
                "\noverloaded worlds: best share of useful answers to the strategy's"
            );
            for (name, regrets) in &self.overloaded {
                let spread = Spread::new(regrets.iter().map(|(_, regret)| *regret).collect());
                let _ = writeln!(
                    text,
                    "{name:<20} {:>6}  {}",
                    regrets.len(),
                    columns(&spread)
                );
            }
        }
        let _ = writeln!(
            text,
            "\n{own} by feature, and the best other strategy there"
        );
        for tag in self.tags() {
            let has = |world: u64| {
                self.tags
                    .get(&world)
                    .is_some_and(|tags| tags.contains(&tag))
            };
            let (mean, p99, count) = self.spreads(own, has);
            let others = self.strategies().into_iter().filter(|name| *name != own);
            let best = others
                .map(|name| (self.spreads(name, has), name))
                .filter(|((_, _, of), _)| *of == count)
                .min_by(|a, b| a.0.0.geometric_mean.total_cmp(&b.0.0.geometric_mean));
            let best = best.map(|((mean, p99, _), name)| {
                format!(
                    "{name} {:.3} {:.3}",
                    mean.geometric_mean, p99.geometric_mean
                )
            });
            let _ = writeln!(
                text,
                "{tag:<20} {count:>6}  {}  {}  {}",
                columns(&mean),
                columns(&p99),
                best.unwrap_or_default()
            );
        }
        for (number, regret) in self.worst(own, names_worst) {
            let world = World::draw(number);
            let _ = writeln!(
                text,
                "world {number}: mean {:.2} p99 {:.2}: {}",
                regret.mean, regret.p99, world.text
            );
        }
        text
    }

    fn mean_failures(&self, strategy: &str) -> f64 {
        let regrets = self
            .regrets
            .get(strategy)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let sum: f64 = regrets.iter().map(|(_, regret)| regret.failed).sum();
        sum / regrets.len().max(1) as f64
    }
}

fn columns(spread: &Spread) -> String {
    let Spread {
        geometric_mean,
        p95,
        worst,
        above,
    } = spread;
    format!(
        "{geometric_mean:>6.3} {p95:>6.2} {worst:>7.2} {:>4.0} %",
        100.0 * above
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(number: u64, figures: &[(&str, f64)]) -> Played {
        let figures = figures.iter().map(|&(name, mean)| {
            let figures = Figures {
                mean,
                p99: 2.0 * mean,
                ..Figures::default()
            };
            (name.to_owned(), figures)
        });
        Played {
            world: number,
            figures: figures.collect(),
        }
    }

    /// Numbers of the first worlds that are not overloaded.
    fn calm() -> impl Iterator<Item = u64> {
        (0..).filter(|&number| !World::draw(number).is_overloaded)
    }

    #[test]
    fn regret_is_the_figure_to_the_best_one_of_each_world() {
        let mut numbers = calm();
        let mut next = || numbers.next().unwrap();
        let played = [
            world(next(), &[("a", 10.0), ("b", 20.0)]),
            world(next(), &[("a", 40.0), ("b", 10.0)]),
        ];
        let summary = Summary::new(&played);
        let (a, _, count) = summary.spreads("a", |_| true);
        assert_eq!(count, 2);
        assert!((a.geometric_mean - 2.0).abs() < 1e-9);
        assert_eq!((a.worst, a.above), (4.0, 0.5));
        let (b, p99, _) = summary.spreads("b", |_| true);
        assert!((b.geometric_mean - 2f64.sqrt()).abs() < 1e-9);
        assert_eq!(b, p99);
        assert_eq!(summary.strategies(), ["b", "a"]);
        assert_eq!(summary.worst("a", 1)[0].0, played[1].world);
    }
}
