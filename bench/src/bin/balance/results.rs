//! Results of the turns: kept as JSON, printed as tables, and drawn on a page.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use evenkeel_bench::report::median;
use evenkeel_sim::svg::{Line, Plot};
use serde::{Deserialize, Serialize};

use crate::load::Answer;
use crate::scenario::Row;
use crate::{Arm, Result};

/// Shares of which the latency is kept.
const SHARES: [f64; 15] = [
    0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.997, 0.998, 0.999, 1.0,
];
/// Indexes of the shares that tables show.
const P50: usize = 2;
const P90: usize = 5;
const P99: usize = 9;
const P999: usize = 13;
/// Limit of the product's ratio to the best of the others.
const LIMIT: f64 = 1.03;
/// A balancer that fails more than this is no match, however fast it fails.
const MAX_FAILED: f64 = 0.01;
/// Lateness in ms above which a turn is doubtful: 99th percentile of the time by which requests were sent too late.
const LATE: f64 = 5.0;

/// A turn of a balancer in a row.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Turn {
    requests: usize,
    failed: usize,
    /// Latencies of the answered requests, at [`SHARES`].
    latency_ms: Vec<f64>,
    /// 99th percentile of how much later than due requests were sent: what the machine adds.
    late_p99_ms: f64,
    /// Share of its workers' time that each member has spent.
    utilisation: Vec<f64>,
    /// CPU time of the balancer, as a share of one processor.
    balancer_cpu: f64,
}

/// A turn with what it was one of.
#[derive(Serialize, Deserialize)]
struct Kept {
    row: String,
    arm: String,
    /// Version of the balancer, if it is a peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    round: u32,
    /// Share of all processors that was busy, with whatever, and the load average.
    machine_busy: f64,
    load_average: f64,
    #[serde(flatten)]
    turn: Turn,
}

/// Results of a balancer in a row: medians over the rounds, with the least and the most.
struct Summary<'a> {
    arm: &'a str,
    /// At [`SHARES`].
    latency_ms: Vec<[f64; 3]>,
    failed: f64,
    /// Of the members least and most used.
    utilisation: [f64; 2],
    balancer_cpu: f64,
    /// Ratio of the balancer's 99th percentile to the product's in the same round.
    ratio: [f64; 3],
}

/// A row with the ideal queue's latencies, if the simulator knows it.
struct Asked {
    row: Row,
    ideal_ms: Option<Vec<f64>>,
}

pub(crate) struct Results {
    rows: Vec<Asked>,
    arms: Vec<String>,
    counted: Duration,
    /// True if the measured processes have the processors before all others.
    first_served: bool,
    kept: Vec<Kept>,
}

/// The machine's clocks at a moment.
pub(crate) struct Machine {
    busy: u64,
    all: u64,
}

impl Machine {
    /// Reads the machine's counters. All are zero where there is no `/proc/stat`.
    pub(crate) fn read_counters() -> Self {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        // user nice system idle iowait irq softirq steal
        let ticks: Vec<u64> = line
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .take(8)
            .collect();
        let all = ticks.iter().sum();
        Machine {
            busy: all - ticks.iter().skip(3).take(2).sum::<u64>(),
            all,
        }
    }

    fn busy_since(&self) -> f64 {
        let now = Self::read_counters();
        (now.busy - self.busy) as f64 / (now.all - self.all).max(1) as f64
    }
}

fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next().unwrap_or_default();
    first.parse().unwrap_or_default()
}

/// Values at [`SHARES`], by nearest rank.
fn ladder(values: Vec<f64>) -> Vec<f64> {
    values_at(values, &SHARES)
}

/// Values at some shares, by nearest rank; 0 if there are none.
pub(crate) fn values_at(mut values: Vec<f64>, shares: &[f64]) -> Vec<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let at = |share: &f64| {
        let rank = (values.len() as f64 * share).ceil() as usize;
        values
            .get(rank.saturating_sub(1))
            .copied()
            .unwrap_or_default()
    };
    shares.iter().map(at).collect()
}

/// Median, least and most.
fn spread(values: Vec<f64>) -> [f64; 3] {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    [median(values).unwrap_or_default(), least, most]
}

fn ms(time: Duration) -> f64 {
    // Microseconds are enough, and readable.
    (time.as_secs_f64() * 1e6).round() / 1e3
}

impl Turn {
    pub(crate) fn new(answers: &[Answer], utilisation: Vec<f64>, balancer_cpu: f64) -> Self {
        let answered = || answers.iter().filter(|answer| answer.is_answered);
        let late = ladder(answers.iter().map(|answer| ms(answer.late)).collect());
        let rounded = |share: f64| (share * 1e4).round() / 1e4;
        Turn {
            requests: answers.len(),
            failed: answers.len() - answered().count(),
            latency_ms: ladder(answered().map(|answer| ms(answer.latency)).collect()),
            late_p99_ms: late[P99],
            utilisation: utilisation.into_iter().map(rounded).collect(),
            balancer_cpu: rounded(balancer_cpu),
        }
    }
}

impl Results {
    pub(crate) fn new(
        rows: &[Row],
        arms: impl Iterator<Item = String>,
        counted: Duration,
        first_served: bool,
    ) -> Self {
        let asked = rows.iter().map(|row| Asked {
            row: *row,
            ideal_ms: row.ideal_outcomes().map(|ideal| {
                let scale = row.mean.as_secs_f64() / 10e-3;
                let at = |share: &f64| ms(ideal.quantile(*share).mul_f64(scale));
                SHARES.iter().map(at).collect()
            }),
        });
        Results {
            rows: asked.collect(),
            arms: arms.collect(),
            counted,
            first_served,
            kept: Vec::new(),
        }
    }

    pub(crate) fn add_turn(
        &mut self,
        row: &str,
        arm: &Arm,
        round: u32,
        turn: Turn,
        machine: &Machine,
    ) {
        let doubt = match turn.late_p99_ms > LATE {
            true => " (the machine is too busy for this: requests were sent too late)",
            false => "",
        };
        println!(
            "{row:<16} {:<38} round {round}  p99 {:>7.1} ms  late {:>5.1} ms{doubt}",
            arm.name, turn.latency_ms[P99], turn.late_p99_ms
        );
        self.kept.push(Kept {
            row: row.into(),
            arm: arm.name.clone(),
            version: arm.version.clone(),
            round,
            machine_busy: (machine.busy_since() * 1e3).round() / 1e3,
            load_average: load_average(),
            turn,
        });
    }

    /// The balancers of a row, the product first.
    fn summaries(&self, row: &Row) -> Vec<Summary<'_>> {
        let name = row.name();
        let of = |arm: &str| {
            let kept = self.kept.iter();
            kept.filter(|kept| kept.row == name && kept.arm == arm)
                .collect::<Vec<_>>()
        };
        let ours = self.arms.first().map(|arm| of(arm)).unwrap_or_default();
        let summary = |arm: &'_ String| {
            let turns = of(arm);
            if turns.is_empty() {
                return None;
            }
            let at = |share: usize| {
                let all = turns.iter().map(|kept| kept.turn.latency_ms[share]);
                spread(all.collect())
            };
            let ratios = turns.iter().filter_map(|kept| {
                let our = ours.iter().find(|our| our.round == kept.round)?;
                Some(kept.turn.latency_ms[P99] / our.turn.latency_ms[P99])
            });
            let sum = |figure: fn(&Turn) -> usize| -> f64 {
                turns.iter().map(|kept| figure(&kept.turn) as f64).sum()
            };
            let members = || 0..row.members;
            let mean = |member: usize| {
                let all = turns.iter().map(|kept| kept.turn.utilisation[member]);
                all.sum::<f64>() / turns.len() as f64
            };
            let cpu = turns.iter().map(|kept| kept.turn.balancer_cpu);
            Some(Summary {
                arm: "",
                latency_ms: (0..SHARES.len()).map(at).collect(),
                failed: sum(|turn| turn.failed) / sum(|turn| turn.requests).max(1.0),
                utilisation: [
                    members().map(mean).fold(f64::INFINITY, f64::min),
                    members().map(mean).fold(0.0, f64::max),
                ],
                balancer_cpu: median(cpu.collect()).unwrap_or_default(),
                ratio: spread(ratios.collect()),
            })
        };
        let arms = self.arms.iter();
        arms.filter_map(|arm| {
            Some(Summary {
                arm,
                ..summary(arm)?
            })
        })
        .collect()
    }

    /// Compares the product with the best of the others: a text, and true if the ratio is within the limit.
    fn verdict(&self, summaries: &[Summary]) -> Option<(String, bool)> {
        let (ours, others) = summaries.split_first()?;
        let eligible = others.iter().filter(|other| other.failed <= MAX_FAILED);
        let best = eligible.min_by(|a, b| a.ratio[0].total_cmp(&b.ratio[0]))?;
        // Theirs to ours, turned round.
        let [middle, least, most] = best.ratio;
        let ratio = 1.0 / middle;
        let holds = ratio <= LIMIT && ours.failed <= MAX_FAILED;
        let words = format!(
            "{} {:.2} of the best other, {} ({:.2} to {:.2}; at most {LIMIT}): {}",
            ours.arm,
            ratio,
            best.arm,
            1.0 / most,
            1.0 / least,
            if holds { "pass" } else { "MISS" }
        );
        Some((words, holds))
    }

    /// The table of a row.
    pub(crate) fn print(&self, row: &Row) {
        println!("\n{}: {}", row.name(), describe(row));
        println!(
            "{:<38} {:>8} {:>8} {:>24} {:>9} {:>8} {:>12} {:>6}",
            "", "p50 ms", "p90", "p99", "p99.9", "failed", "utilisation", "CPU"
        );
        let summaries = self.summaries(row);
        for of in &summaries {
            let [p99, least, most] = of.latency_ms[P99];
            let [low, high] = of.utilisation;
            println!(
                "{:<38} {:>8.1} {:>8.1} {:>24} {:>9.1} {:>6.2} % {:>12} {:>4.1} %",
                of.arm,
                of.latency_ms[P50][0],
                of.latency_ms[P90][0],
                format!("{p99:.1} ({least:.1} to {most:.1})"),
                of.latency_ms[P999][0],
                100.0 * of.failed,
                format!("{:.0} to {:.0} %", 100.0 * low, 100.0 * high),
                100.0 * of.balancer_cpu,
            );
        }
        if let Some(ideal) = self.ideal(row) {
            println!(
                "{:<38} {:>8.1} {:>8.1} {:>24.1} {:>9.1}",
                "(central queue, simulated)", ideal[P50], ideal[P90], ideal[P99], ideal[P999]
            );
        }
        if let Some((words, _)) = self.verdict(&summaries) {
            println!("{words}");
        }
        println!();
    }

    fn ideal(&self, row: &Row) -> Option<&Vec<f64>> {
        let name = row.name();
        let asked = self.rows.iter().find(|asked| asked.row.name() == name);
        asked?.ideal_ms.as_ref()
    }

    /// Takes the turns that a run has written into `folder`.
    pub(crate) fn read(&mut self, folder: &Path) -> Result<()> {
        let file = folder.join("turns.json");
        let text = fs::read_to_string(&file)
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        self.kept = serde_json::from_str(&text)?;
        Ok(())
    }

    /// Writes turns, page and plots of all rows that have been measured.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        let mut lines = Vec::with_capacity(self.kept.len());
        for kept in &self.kept {
            lines.push(serde_json::to_string(kept)?);
        }
        fs::write(
            folder.join("turns.json"),
            format!("[\n{}\n]\n", lines.join(",\n")),
        )?;
        fs::write(folder.join("index.html"), self.page())?;
        Ok(())
    }

    fn page(&self) -> String {
        let loads = spread(self.kept.iter().map(|kept| kept.load_average).collect());
        let busy = spread(self.kept.iter().map(|kept| kept.machine_busy).collect());
        let late = spread(self.kept.iter().map(|kept| kept.turn.late_p99_ms).collect());
        let rounds = self
            .kept
            .iter()
            .map(|kept| kept.round + 1)
            .max()
            .unwrap_or(0);
        // All there are, not the one that this is pinned to.
        let cpus = fs::read_to_string("/proc/stat").unwrap_or_default();
        let cpus = cpus
            .lines()
            .filter(|line| line.starts_with("cpu"))
            .count()
            .saturating_sub(1);
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width\"><title>Balance</title><style>\
             body{{font:15px/1.45 system-ui,sans-serif;max-width:1360px;margin:2em auto;padding:0 1.5em;color:#222}}\
             table{{border-collapse:collapse;font-size:.9em;display:block;overflow-x:auto}}\
             th,td{{padding:.25em .8em;text-align:right;white-space:nowrap;border-bottom:1px solid #e6e6e6}}\
             th:first-child,td:first-child{{text-align:left}}.MISS{{background:#fff4d6}}.best{{font-weight:600}}\
             svg{{max-width:100%;height:auto}}.row{{display:flex;flex-wrap:wrap;gap:1.5em;align-items:flex-start}}\
             </style></head><body>\n<h1>How well balancers balance</h1>\n\
             <p>Latency of clients in ms, from the moment a request was due; medians over {rounds} rounds of {} s each, with the \
             least and the most. All balancers get requests at the same moments and of the same cost, 60 % of what members can \
             serve. “Central queue” is the simulator's ideal, which knows the speed of each member, and no balancer can reach.</p>\n\
             <p>The machine has {cpus} processors; it was busy for {:.0} % of the time (median; {:.0} to {:.0}), load average \
             {:.1} ({:.1} to {:.1}). Requests were sent up to {:.1} ms ({:.1} to {:.1}) after they were due (99th percentile \
             of a turn). What is measured {} before other programs of the machine.</p>\n<p>Versions: {}.</p>\n",
            self.counted.as_secs(),
            100.0 * busy[0],
            100.0 * busy[1],
            100.0 * busy[2],
            loads[0],
            loads[1],
            loads[2],
            late[0],
            late[1],
            late[2],
            if self.first_served {
                "came"
            } else {
                "did not come"
            },
            self.versions(),
        );
        page += &self.overview();
        for asked in &self.rows {
            let summaries = self.summaries(&asked.row);
            if !summaries.is_empty() {
                page += &self.section(asked, &summaries);
            }
        }
        page + "</body></html>\n"
    }

    /// Versions of the peers in all turns, in words.
    fn versions(&self) -> String {
        let versions: BTreeSet<String> = { self.kept.iter() }
            .filter_map(|kept| {
                let program = kept.arm.split(' ').next()?;
                Some(format!("{program} {}", kept.version.as_ref()?))
            })
            .collect();
        match versions.is_empty() {
            true => "not recorded".into(),
            false => Vec::from_iter(versions).join(", "),
        }
    }

    /// All 99th percentiles beside the product's.
    fn overview(&self) -> String {
        let mut page = "<h2>99th percentile beside Evenkeel's</h2>\n<p>Above 1: clients wait longer. Medians of the \
                        ratios within a round. In brackets: more than 1 % of the requests failed.</p>\n<table><tr><th></th>"
            .to_owned();
        for arm in &self.arms {
            let _ = write!(page, "<th>{arm}</th>");
        }
        page += "<th>the best other</th></tr>\n";
        for asked in &self.rows {
            let summaries = self.summaries(&asked.row);
            if summaries.is_empty() {
                continue;
            }
            let name = asked.row.name();
            let _ = write!(page, "<tr><td><a href=\"#{name}\">{name}</a></td>");
            for arm in &self.arms {
                let cell = summaries.iter().find(|of| of.arm == arm).map(|of| {
                    match of.failed > MAX_FAILED {
                        true => format!("({:.2})", of.ratio[0]),
                        false => format!("{:.2}", of.ratio[0]),
                    }
                });
                let _ = write!(page, "<td>{}</td>", cell.unwrap_or_default());
            }
            let (words, holds) = self.verdict(&summaries).unwrap_or_default();
            let class = if holds { "" } else { "MISS" };
            let _ = writeln!(page, "<td class=\"{class}\">{words}</td></tr>");
        }
        page + "</table>\n"
    }

    fn section(&self, asked: &Asked, summaries: &[Summary]) -> String {
        let name = asked.row.name();
        let mut page = format!(
            "<h2 id=\"{name}\">{name}</h2>\n<p>{}</p>\n<div class=\"row\"><div><table><tr><th></th>\
             <th>p50</th><th>p90</th><th>p99</th><th>p99.9</th><th>failed</th>\
             <th>members' utilisation</th><th>balancer's CPU</th></tr>\n",
            describe(&asked.row)
        );
        for of in summaries {
            let [low, high] = of.utilisation;
            let _ = write!(page, "<tr><td>{}</td>", of.arm);
            for share in [P50, P90, P99, P999] {
                let [middle, least, most] = of.latency_ms[share];
                let _ = write!(page, "<td>{middle:.1} ({least:.1} to {most:.1})</td>");
            }
            let _ = writeln!(
                page,
                "<td>{:.2} %</td><td>{:.0} to {:.0} %</td><td>{:.1} %</td></tr>",
                100.0 * of.failed,
                100.0 * low,
                100.0 * high,
                100.0 * of.balancer_cpu
            );
        }
        if let Some(ideal) = &asked.ideal_ms {
            page += "<tr><td>central queue</td>";
            for share in [P50, P90, P99, P999] {
                let _ = write!(page, "<td>{:.1}</td>", ideal[share]);
            }
            page += "<td></td><td></td><td></td></tr>\n";
        }
        page += "</table></div>\n<div>";
        // 0 is the best answer, 1 the 90th percentile, 2 the 99th and so on.
        let line = |name: &str, values: &mut dyn Iterator<Item = f64>| {
            let points = SHARES.iter().zip(values).filter(|(share, _)| **share < 1.0);
            Line::new(
                name,
                points
                    .map(|(share, value)| (-(1.0 - share).log10(), value))
                    .collect(),
            )
        };
        let mut lines: Vec<Line> = summaries
            .iter()
            .map(|of| {
                line(
                    of.arm,
                    &mut of.latency_ms.iter().map(|[middle, ..]| *middle),
                )
            })
            .collect();
        if let Some(ideal) = &asked.ideal_ms {
            lines.push(line("central queue", &mut ideal.iter().copied()));
        }
        let across = "nines: 1 is the 90th percentile, 2 the 99th, 3 the 99.9th";
        page += &Plot::from_zero(across, "latency, ms", lines).file(&name);
        page + "</div></div>\n"
    }
}

fn describe(row: &Row) -> String {
    let workers = match row.workers {
        1 => "one worker".to_owned(),
        more => format!("{more} workers"),
    };
    format!(
        "{}; {} members with {workers} each, {} ms for a request on average, {:.0} requests per second",
        row.scenario.in_words(),
        row.members,
        row.mean.as_millis(),
        row.rate()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_nearest_rank() {
        let values = ladder((1..=1000).rev().map(f64::from).collect());
        let found = [P50, P90, P99, P999].map(|share| values[share]);
        assert_eq!(found, [500.0, 900.0, 990.0, 999.0]);
        assert_eq!(ladder(vec![7.0])[P999], 7.0);
        assert_eq!(spread(vec![3.0, 1.0, 2.0]), [2.0, 1.0, 3.0]);
    }
}
