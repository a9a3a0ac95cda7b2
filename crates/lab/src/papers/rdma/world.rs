//! The data centre of the paper, and the arms that are compared in it.

use std::time::Duration;

use crate::worlds::monitored::{Arrivals, Background, DataCentre, Monitor, Site, play_data_centre};
use evenkeel_core::strategy::{self, Values};
use evenkeel_sim::svg::{Line, Plot, Scale};

use crate::findings::{Cell, Table};
use crate::run::Run;
use evenkeel_sim::experiment::Mean;

/// Front-ends: the paper's, and one for comparison. Claims come in this order.
pub(super) const FRONT_ENDS: [usize; 2] = [16, 1];

/// Words for a number of front-ends.
pub(super) fn front_ends_text(count: usize) -> String {
    match count {
        1 => "one front-end".into(),
        _ => format!("{count} front-ends"),
    }
}

/// Time between two readings, and two turns of ULM's process, where nothing else is said.
pub(super) const INTERVAL: Duration = Duration::from_millis(50);

/// Way in which loads are known, and the strategy that decides by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arm {
    Random,
    RoundRobin,
    Ulm,
    /// ULM on a kernel of 2003, where each task that waits has a CPU for some ten milliseconds.
    OldUlm,
    Pklm,
    /// CPU utilisation and pending interrupts.
    PaperKlm,
    Klm,
    /// KLM with the average of tasks over 100 ms in place of the tasks of the moment.
    AverageKlm,
    Adaptive,
}

impl Arm {
    /// Arms of all figures.
    pub(super) const FIVE: [Arm; 5] = [Arm::Random, Arm::RoundRobin, Arm::Ulm, Arm::Pklm, Arm::Klm];

    pub(super) fn name(self) -> &'static str {
        match self {
            Arm::Random => "random",
            Arm::RoundRobin => "round robin",
            Arm::Ulm => "ULM",
            Arm::OldUlm => "ULM, scheduler of 2003",
            Arm::Pklm => "pKLM",
            Arm::PaperKlm => "KLM of the paper",
            Arm::Klm => "KLM",
            Arm::AverageKlm => "KLM, average of tasks",
            Arm::Adaptive => "KLM, adaptive",
        }
    }

    fn strategy(self) -> &'static str {
        match self {
            Arm::Random => "random",
            Arm::RoundRobin => "round_robin",
            Arm::Adaptive => "adaptive",
            _ => "k_least_loaded",
        }
    }

    fn monitor(self, update: Duration) -> Monitor {
        let user = |wait| Monitor::User {
            update,
            wait,
            cost: Duration::from_micros(300),
        };
        match self {
            Arm::Random | Arm::RoundRobin => Monitor::None,
            Arm::Ulm => user(Duration::from_micros(500)),
            Arm::OldUlm => user(Duration::from_millis(15)),
            Arm::Pklm => Monitor::KernelCpu,
            Arm::PaperKlm => Monitor::KernelPending,
            Arm::Klm | Arm::Adaptive => Monitor::Kernel,
            Arm::AverageKlm => Monitor::KernelAverage,
        }
    }
}

/// The other work of figure 6: sixteen processes in pairs, of which one of each waits for the other one,
/// and their network work.
pub(super) const PING_PONG: Background = Background {
    backends: 0,
    tasks: 8,
    interrupts: 0.3,
    changes: None,
};

/// Returns a data centre with one web site and without other work.
pub(super) fn make_data_centre(run: &Run<'_>, front_ends: usize, alpha: f64) -> DataCentre {
    DataCentre {
        backends: 8,
        cpus: 2,
        front_ends,
        sites: vec![Site {
            alpha,
            arrivals: Arrivals::Closed(32),
        }],
        documents: 2000,
        cache: 200,
        hit: Duration::from_millis(1),
        miss: Duration::from_millis(8),
        background: Background {
            backends: 0,
            ..PING_PONG
        },
        monitor: Monitor::None,
        poll: INTERVAL,
        query: Duration::from_micros(5),
        strategy: Values::defaults(strategy::default_kind()),
        length: Duration::from_secs(run.by_scale(20, 3)),
    }
}

/// Results of a run of an arm.
#[derive(Clone, Debug)]
pub(super) struct Played {
    /// Requests per second, of each site.
    pub(super) sites: Vec<f64>,
    pub(super) p99_ms: f64,
    pub(super) variances: Vec<f64>,
    /// CPUs that the other work had.
    pub(super) others: f64,
}

impl Played {
    pub(super) fn throughput(&self) -> f64 {
        self.sites.iter().sum()
    }

    pub(super) fn mean_variance(&self) -> f64 {
        self.variances.iter().sum::<f64>() / self.variances.len().max(1) as f64
    }
}

/// Each world with each arm and each seed: by world, arm and seed.
pub(super) struct Runs {
    pub(super) arms: Vec<Arm>,
    all: Vec<Vec<Played>>,
}

impl Runs {
    pub(super) fn play_worlds(
        run: &Run<'_>,
        worlds: &[DataCentre],
        arms: &[Arm],
        seeds: u64,
    ) -> Self {
        let pairs: Vec<(&DataCentre, Arm)> = (worlds.iter())
            .flat_map(|world| arms.iter().map(move |&arm| (world, arm)))
            .collect();
        let all = run.run_grid(&pairs, &run.seeds(seeds), |(world, arm), seed| {
            let Some(kind) = strategy::find(arm.strategy()) else {
                unreachable!("the registry has the strategies of the paper");
            };
            let centre = DataCentre {
                monitor: arm.monitor(world.poll),
                strategy: Values::defaults(kind),
                ..(*world).clone()
            };
            let balance = play_data_centre(&centre, seed);
            Played {
                p99_ms: balance.quantile(0.99).as_secs_f64() * 1e3,
                variances: balance.variances().to_vec(),
                others: balance.others,
                sites: balance.throughput,
            }
        });
        Runs {
            arms: arms.to_vec(),
            all,
        }
    }

    /// The runs of an arm in the world of that index, by seed.
    pub(super) fn runs_of(&self, world: usize, arm: Arm) -> &[Played] {
        let at = self.arms.iter().position(|&of| of == arm);
        at.and_then(|at| self.all.get(world * self.arms.len() + at))
            .map_or(&[], Vec::as_slice)
    }

    /// A figure of each run of an arm.
    pub(super) fn figures(
        &self,
        world: usize,
        arm: Arm,
        figure: impl Fn(&Played) -> f64,
    ) -> Vec<f64> {
        self.runs_of(world, arm).iter().map(figure).collect()
    }

    /// The ratio of a figure of two arms, paired by seed: the mean over worlds.
    pub(super) fn ratios(
        &self,
        worlds: &[usize],
        (arm, to): (Arm, Arm),
        figure: impl Fn(&Played) -> f64,
    ) -> Vec<f64> {
        let mut sums: Vec<f64> = Vec::new();
        for &world in worlds {
            let pairs = self.runs_of(world, arm).iter().zip(self.runs_of(world, to));
            let ratios = pairs.map(|(one, other)| figure(one) / figure(other));
            match sums.is_empty() {
                true => sums = ratios.collect(),
                false => sums
                    .iter_mut()
                    .zip(ratios)
                    .for_each(|(sum, ratio)| *sum += ratio),
            }
        }
        let count = worlds.len().max(1) as f64;
        sums.iter().map(|sum| sum / count).collect()
    }

    /// Returns the excess of an arm's figure over the figure of random, in per cent, by seed.
    pub(super) fn gains(
        &self,
        world: usize,
        arm: Arm,
        figure: impl Fn(&Played) -> f64,
    ) -> Vec<f64> {
        let ratios = self.ratios(&[world], (arm, Arm::Random), figure);
        ratios.iter().map(|ratio| (ratio - 1.0) * 100.0).collect()
    }

    /// A table with a row for each arm, and a column for each world.
    pub(super) fn table(
        &self,
        (name, title, corner): (&'static str, String, &str),
        worlds: &[(String, usize)],
        figure: impl Fn(&Runs, usize, Arm) -> Vec<f64>,
    ) -> Table {
        let heads = worlds.iter().map(|(head, _)| head.clone());
        let row = |&arm: &Arm| {
            let cells =
                (worlds.iter()).map(|&(_, world)| Cell::from(&figure(self, world, arm)[..]));
            std::iter::once(Cell::from(arm.name()))
                .chain(cells)
                .collect()
        };
        Table {
            name,
            title,
            head: std::iter::once(corner.to_owned()).chain(heads).collect(),
            rows: self.arms.iter().map(row).collect(),
        }
    }

    /// Lines of arms over worlds.
    pub(super) fn lines(
        &self,
        arms: &[Arm],
        worlds: &[(f64, usize)],
        figure: impl Fn(&Runs, usize, Arm) -> Vec<f64>,
    ) -> Vec<Line> {
        let line = |&arm: &Arm| {
            let means = worlds
                .iter()
                .map(|&(x, world)| (x, Mean::of_values(&figure(self, world, arm))));
            let means: Vec<(f64, Mean)> = means.collect();
            Line {
                name: arm.name().into(),
                points: means.iter().map(|(x, mean)| (*x, mean.mean)).collect(),
                within: means
                    .iter()
                    .map(|(_, mean)| mean.within.unwrap_or(0.0))
                    .collect(),
                is_published: false,
            }
        };
        arms.iter().map(line).collect()
    }
}

/// A point that was published.
pub(super) fn published(name: &str, at: (f64, f64)) -> Line {
    Line {
        name: format!("{name} (published)"),
        points: vec![at],
        within: Vec::new(),
        is_published: true,
    }
}

/// A plot of lines with evenly divided axes.
pub(super) fn plot(across: &'static str, up: &'static str, scale: Scale, lines: Vec<Line>) -> Plot {
    Plot {
        lines,
        across,
        up,
        scales: (Scale::Even, scale),
        most: None,
        marks: Vec::new(),
        names: Vec::new(),
    }
}
