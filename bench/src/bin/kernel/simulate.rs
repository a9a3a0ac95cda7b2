//! The balance that each way of monitoring brings, in virtual time.

use std::fmt::Write as _;
use std::time::Duration;

use evenkeel_bench::plot::{Chart, Line};
use evenkeel_core::strategy::{self, Values};
use evenkeel_sim::monitored::{Arrivals, Background, Balance, DataCentre, Monitor, Site, play};

use super::table::{Table, Verdict};
use super::{Result, Run};

/// An arm: its name, how loads are known, and who decides.
struct Arm {
    name: &'static str,
    monitor: Monitor,
    strategy: &'static str,
}

const UPDATE: Duration = Duration::from_millis(50);

/// What a helper waits for a CPU on a kernel of today, per task that waits, too; and on one of
/// 2003, where each task had it for some ten milliseconds.
const WAITS: [Duration; 2] = [Duration::from_micros(500), Duration::from_millis(15)];

fn arms() -> [Arm; 8] {
    let arm = |name, monitor, strategy| Arm {
        name,
        monitor,
        strategy,
    };
    let user = |wait| Monitor::User {
        update: UPDATE,
        wait,
    };
    const K: &str = "k_least_loaded";
    [
        arm("random", Monitor::None, "random"),
        arm("round robin", Monitor::None, "round_robin"),
        arm("ULM", user(WAITS[0]), K),
        arm("ULM, scheduler of 2003", user(WAITS[1]), K),
        arm("pKLM", Monitor::KernelCpu, K),
        arm("KLM", Monitor::Kernel, K),
        arm("KLM, tasks of the moment", Monitor::KernelNow, K),
        arm("KLM, adaptive", Monitor::Kernel, "adaptive"),
    ]
}

/// The paper's set-up as far as it is told: eight back-ends with two CPUs.
fn centre(run: &Run) -> DataCentre {
    DataCentre {
        backends: 8,
        cpus: 2,
        sites: vec![site(0.5, Arrivals::Closed(12))],
        documents: 2000,
        cache: 200,
        hit: Duration::from_millis(1),
        miss: Duration::from_millis(8),
        background: Background {
            backends: 2,
            // Sixteen processes, of which one of each pair waits for the other one.
            tasks: 8,
            changes: Some((Duration::from_millis(500), Duration::from_millis(500))),
        },
        monitor: Monitor::None,
        poll: UPDATE,
        strategy: Values::defaults(&strategy::REGISTRY[0]),
        length: Duration::from_secs(run.scale(30, 10)),
    }
}

fn site(alpha: f64, arrivals: Arrivals) -> Site {
    Site { alpha, arrivals }
}

/// Figures of an arm: medians over seeds.
#[derive(Clone, Copy)]
struct Figures {
    throughput: f64,
    p50_ms: f64,
    p99_ms: f64,
    variance: f64,
}

fn play_arm(run: &Run, centre: &DataCentre, arm: &Arm) -> Result<Figures> {
    let kind = strategy::find(arm.strategy).ok_or("no such strategy")?;
    let centre = DataCentre {
        monitor: arm.monitor,
        strategy: Values::defaults(kind),
        ..centre.clone()
    };
    let played: Vec<Balance> = (1..=run.scale(5, 3))
        .map(|seed| play(&centre, seed))
        .collect();
    let median = |figure: &dyn Fn(&Balance) -> f64| {
        evenkeel_bench::report::median(played.iter().map(figure).collect()).unwrap_or(f64::NAN)
    };
    let ms = |share: f64| median(&|balance| balance.quantile(share).as_secs_f64() * 1e3);
    Ok(Figures {
        throughput: median(&|balance| balance.throughput.iter().sum()),
        p50_ms: ms(0.5),
        p99_ms: ms(0.99),
        variance: median(&Balance::variance),
    })
}

/// A series of worlds that differ in one thing.
struct Sweep {
    name: &'static str,
    title: &'static str,
    x: &'static str,
    worlds: Vec<(f64, DataCentre)>,
}

fn sweeps(run: &Run) -> Vec<Sweep> {
    let base = centre(run);
    let with = |change: &dyn Fn(&mut DataCentre)| {
        let mut centre = base.clone();
        change(&mut centre);
        centre
    };
    let loaded = [0, 1, 2, 4, 6, 8];
    let loaded_with = |change: &dyn Fn(&mut DataCentre)| {
        let world = |&backends: &usize| {
            let centre = with(&|centre| {
                centre.background.backends = backends;
                change(centre);
            });
            (backends as f64, centre)
        };
        loaded.iter().map(world).collect()
    };
    let alphas = [0.1, 0.25, 0.5, 0.75, 0.9];
    vec![
        Sweep {
            name: "loaded",
            title: "Back-ends with other work that comes and goes (12 clients)",
            x: "back-ends with other work",
            worlds: loaded_with(&|_| {}),
        },
        Sweep {
            name: "loaded-constant",
            title: "Back-ends with constant other work (12 clients)",
            x: "back-ends with other work",
            worlds: loaded_with(&|centre| centre.background.changes = None),
        },
        Sweep {
            name: "loaded-saturated",
            title: "Back-ends with constant other work, all saturated (48 clients)",
            x: "back-ends with other work",
            worlds: loaded_with(&|centre| {
                centre.background.changes = None;
                centre.sites[0].arrivals = Arrivals::Closed(48);
            }),
        },
        Sweep {
            name: "loaded-open",
            title: "1,000 requests per second, other work that comes and goes",
            x: "back-ends with other work",
            worlds: loaded_with(&|centre| {
                centre.sites[0].arrivals = Arrivals::Open(1000.0);
            }),
        },
        Sweep {
            name: "alpha",
            title: "Popularity of documents",
            x: "Zipf exponent",
            worlds: alphas
                .iter()
                .map(|&alpha| (alpha, with(&|centre| centre.sites[0].alpha = alpha)))
                .collect(),
        },
        Sweep {
            name: "alpha-shared",
            title: "Two web sites, one with exponent 0.9",
            x: "Zipf exponent of the other one",
            worlds: alphas
                .iter()
                .map(|&alpha| {
                    let clients = Arrivals::Closed(6);
                    let sites = vec![site(0.9, clients), site(alpha, clients)];
                    (alpha, with(&|centre| centre.sites = sites.clone()))
                })
                .collect(),
        },
        Sweep {
            name: "interval",
            title: "Polling interval; a helper writes its page as often",
            x: "log10 of milliseconds",
            worlds: [1u64, 5, 20, 50, 200, 1000]
                .iter()
                .map(|&millis| {
                    let poll = Duration::from_millis(millis);
                    let x = (millis as f64).log10();
                    (x, with(&|centre| centre.poll = poll))
                })
                .collect(),
        },
    ]
}

pub(crate) fn measure(run: &Run) -> Result<Vec<Verdict>> {
    let arms = arms();
    let mut csv = String::from("sweep,x,arm,requests_per_s,p50_ms,p99_ms,variance\n");
    let mut text = String::new();
    let mut verdicts = Vec::new();
    for sweep in sweeps(run) {
        let mut rows: Vec<Vec<Figures>> = vec![Vec::new(); arms.len()];
        for (x, world) in &sweep.worlds {
            for (arm, row) in arms.iter().zip(&mut rows) {
                let mut world = world.clone();
                let mut arm = Arm { ..*arm };
                if let Monitor::User { update, .. } = &mut arm.monitor {
                    *update = world.poll.max(Duration::from_millis(1));
                }
                if sweep.name != "interval" {
                    world.poll = UPDATE;
                }
                let figures = play_arm(run, &world, &arm)?;
                let Figures {
                    throughput,
                    p50_ms,
                    p99_ms,
                    variance,
                } = figures;
                writeln!(
                    csv,
                    "{},{x:.2},\"{}\",{throughput:.0},{p50_ms:.2},{p99_ms:.2},{variance:.5}",
                    sweep.name, arm.name
                )?;
                row.push(figures);
            }
        }
        text += &describe(run, &sweep, &arms, &rows)?;
        if ["loaded", "loaded-constant"].contains(&sweep.name) {
            verdicts.push(judge(&sweep, &arms, &rows));
        }
    }
    run.write("simulate.csv", &csv)?;
    run.write("simulate.md", &text)?;
    println!("{text}");
    Ok(verdicts)
}

/// Tables and plots of a sweep.
fn describe(run: &Run, sweep: &Sweep, arms: &[Arm], rows: &[Vec<Figures>]) -> Result<String> {
    let mut text = String::new();
    type Figure = fn(&Figures) -> f64;
    let kinds: [(&str, &str, Figure, usize); 3] = [
        ("throughput", "requests per second", |f| f.throughput, 0),
        ("p99", "p99, ms", |f| f.p99_ms, 1),
        ("variance", "variance between back-ends", |f| f.variance, 4),
    ];
    for (kind, unit, figure, digits) in kinds {
        let open = sweep.name == "loaded-open";
        if open && kind == "throughput" {
            continue;
        }
        let heads = sweep.worlds.iter().map(|(x, _)| format!("{x:.2}"));
        let heads: Vec<String> = std::iter::once(unit.to_owned()).chain(heads).collect();
        let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
        let mut table = Table::new(&heads);
        let mut lines = Vec::new();
        for (arm, row) in arms.iter().zip(rows) {
            let cells = row.iter().map(|f| format!("{:.*}", digits, figure(f)));
            table.row(std::iter::once(arm.name.to_owned()).chain(cells));
            let points = sweep.worlds.iter().zip(row);
            let points = points.map(|((x, _), f)| (*x, figure(f))).collect();
            lines.push(Line::new(arm.name, points));
        }
        writeln!(text, "{} ({}):\n\n{}", sweep.title, sweep.x, table.text())?;
        let chart = Chart {
            title: sweep.title,
            x: sweep.x,
            y: unit,
            lines,
        };
        chart.draw(&run.file(&format!("simulate-{}-{kind}.svg", sweep.name)))?;
    }
    Ok(text)
}

/// Whether the order is as published, where one, two or four back-ends have other work.
fn judge(sweep: &Sweep, arms: &[Arm], rows: &[Vec<Figures>]) -> Verdict {
    let mean = |name: &str| {
        let found = arms.iter().position(|arm| arm.name == name);
        let row = found.and_then(|at| rows.get(at)).map(Vec::as_slice);
        let some = row.unwrap_or_default().get(1..4).unwrap_or_default();
        some.iter().map(|f| f.throughput).sum::<f64>() / some.len().max(1) as f64
    };
    let names = ["KLM", "pKLM", "ULM", "round robin", "random"];
    let means = names.map(mean);
    let reached = means[1..].iter().all(|other| means[0] > *other);
    let random = means[4];
    let seen = names.iter().zip(means);
    let seen: Vec<String> = seen
        .map(|(name, mean)| format!("{name} {mean:.0} ({:+.0} %)", (mean / random - 1.0) * 100.0))
        .collect();
    let what = format!(
        "KLM's throughput above all others', simulated: {}",
        sweep.title
    );
    Verdict::new("simulate", &what, seen.join(", "), reached)
}
