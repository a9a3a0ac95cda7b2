//! Figures of all turns, what is made of them, and what must be reached.

use std::fmt::Write;

use evenkeel_bench::report::{median, quartiles};
use serde::Serialize;

/// Short connections: connect, 64 bytes there and back, close.
pub(crate) const CONNECTION: &str = "connection";
/// 64 bytes there and back on an open connection.
pub(crate) const EXCHANGE: &str = "exchange";
/// A MiB towards the client.
pub(crate) const BULK: &str = "mib";
/// A datagram of 64 bytes there, and one back.
pub(crate) const QUERY: &str = "udp-query";
/// Row: a member of four takes five times as long.
pub(crate) const SLOW: &str = "slow";
/// Row: a member of four is slow, and every three seconds another one.
pub(crate) const MOVING: &str = "moving";
/// Row: a member of four refuses every other connect.
pub(crate) const FAILING: &str = "failing";
/// Row: a member of four is busy with other work for 70 % of the time.
pub(crate) const ANTAGONIST: &str = "antagonist";
/// Open connections through changes of members, reloads, a kill and an upgrade.
pub(crate) const CUTS: &str = "cuts";
/// Open connections.
pub(crate) const MEMORY: &str = "memory";
/// A packet of 64 bytes in the middle of a connection.
pub(crate) const PACKET: &str = "packet";
/// The program's work for a SYN.
pub(crate) const DECISION: &str = "decision";

/// Metric of CPU time.
pub(crate) const CPU: &str = "cpu_us";
/// Metric of latency.
pub(crate) const P50: &str = "p50_ms";
/// Metric of latency.
pub(crate) const P99: &str = "p99_ms";
/// Metric of connects that no member accepted.
pub(crate) const REFUSED: &str = "failed_connections";
/// Metric of connections that do not answer after an event.
pub(crate) const CUT: &str = "cut_connections";
/// Metric of connections that were opened meanwhile.
pub(crate) const OPENED: &str = "opened_connections";
/// Metric of memory: the balancer's process and the tables of its programs.
pub(crate) const BYTES: &str = "bytes_per_connection";
/// Metric of tables: connections that the largest one can hold.
pub(crate) const ENTRIES: &str = "table_entries";
/// Metric of decisions.
pub(crate) const NANOSECONDS: &str = "ns_per_syn";

/// Metric of packets: CPU time from one interface of the balancer to the other.
pub(crate) const PACKET_NS: &str = "ns_per_packet";

/// Arm of the time that 63 further members take.
pub(crate) const CHOICE: &str = "63 more members";

/// Event: members go and come back.
pub(crate) const CHANGES: &str = "changes of members";
/// Event: reloads of the same configuration.
pub(crate) const RELOADS: &str = "reloads";
/// Event: kill -9, and a new start.
pub(crate) const KILL: &str = "kill";
/// Event: another process takes over.
pub(crate) const UPGRADE: &str = "upgrade";

const ROUTER: &str = "router";
/// Number of connections for which there must be room, and the memory for these in bytes.
const MANY: (f64, f64) = (1e6, 256.0 * 1024.0 * 1024.0);

/// A figure of a turn.
struct Sample {
    row: &'static str,
    metric: &'static str,
    arm: &'static str,
    round: usize,
    value: f64,
}

/// A line of the results.
#[derive(Serialize)]
struct Line {
    row: &'static str,
    metric: &'static str,
    arm: &'static str,
    /// Lower quartile, median, and upper quartile over all turns.
    value: [f64; 3],
    /// Quartiles and median of the part above the router's figure in the same round.
    #[serde(skip_serializing_if = "Option::is_none")]
    above_router: Option<[f64; 3]>,
}

/// Something that must be reached.
struct Target {
    what: &'static str,
    row: &'static str,
    metric: &'static str,
    ours: &'static str,
    bound: Bound,
}

enum Bound {
    /// Ratio to another arm's figure; of CPU time above the router's.
    To(&'static str, f64),
    /// Ratio to the lowest of these.
    ToBest([&'static str; 2], f64),
    /// Largest figure of all turns.
    AtMost(f64),
}

/// A verdict on a target.
#[derive(Serialize)]
struct Verdict {
    target: &'static str,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<[f64; 3]>,
    bound: String,
}

const fn target(
    what: &'static str,
    row: &'static str,
    metric: &'static str,
    ours: &'static str,
    bound: Bound,
) -> Target {
    Target {
        what,
        row,
        metric,
        ours,
        bound,
    }
}

const KERNEL: &str = "kernel";
const LEAST: &str = "kernel-least";
const PROXY: &str = "proxy";
const NAT: &str = "kernel-nat";

const TARGETS: &[Target] = &[
    target(
        "CPU per connection, half NAT",
        CONNECTION,
        CPU,
        KERNEL,
        Bound::To(PROXY, 0.10),
    ),
    target(
        "CPU per connection, half NAT",
        CONNECTION,
        CPU,
        KERNEL,
        Bound::To("nft", 0.5),
    ),
    target(
        "CPU per connection, full NAT",
        CONNECTION,
        CPU,
        NAT,
        Bound::To(PROXY, 0.10),
    ),
    target(
        "CPU per connection, full NAT",
        CONNECTION,
        CPU,
        NAT,
        Bound::To("nft", 0.5),
    ),
    target("CPU per MiB", BULK, CPU, KERNEL, Bound::To(PROXY, 0.10)),
    target(
        "packet in native XDP",
        PACKET,
        PACKET_NS,
        "kernel-xdp",
        Bound::To(ROUTER, 0.30),
    ),
    target(
        "UDP query in the kernel",
        QUERY,
        CPU,
        "udp-kernel",
        Bound::To("nginx", 0.2),
    ),
    target(
        "UDP query at user level",
        QUERY,
        CPU,
        "udp-rule",
        Bound::ToBest(["nginx", "envoy"], 0.8),
    ),
    target(
        "p99, one slow of four",
        SLOW,
        P99,
        KERNEL,
        Bound::To(LEAST, 0.5),
    ),
    target(
        "p99, one slow of four",
        SLOW,
        P99,
        KERNEL,
        Bound::To(PROXY, 1.05),
    ),
    target(
        "p99, the slow one moves",
        MOVING,
        P99,
        KERNEL,
        Bound::To(LEAST, 0.5),
    ),
    target(
        "p99, the slow one moves",
        MOVING,
        P99,
        KERNEL,
        Bound::To(PROXY, 1.05),
    ),
    target(
        "p99, half of connects fail",
        FAILING,
        P99,
        KERNEL,
        Bound::To(LEAST, 0.5),
    ),
    target(
        "p99, half of connects fail",
        FAILING,
        P99,
        KERNEL,
        Bound::To(PROXY, 1.05),
    ),
    target(
        "p99, an antagonist",
        ANTAGONIST,
        P99,
        KERNEL,
        Bound::To(LEAST, 0.5),
    ),
    target(
        "p99, an antagonist",
        ANTAGONIST,
        P99,
        KERNEL,
        Bound::To(PROXY, 1.05),
    ),
    target(
        "connects refused or lost",
        FAILING,
        REFUSED,
        KERNEL,
        Bound::AtMost(0.0),
    ),
    target(
        "cut by changes of members",
        CUTS,
        CUT,
        CHANGES,
        Bound::AtMost(0.0),
    ),
    target("cut by reloads", CUTS, CUT, RELOADS, Bound::AtMost(0.0)),
    target(
        "cut by kill -9 and a new start",
        CUTS,
        CUT,
        KILL,
        Bound::AtMost(0.0),
    ),
    target("cut by an upgrade", CUTS, CUT, UPGRADE, Bound::AtMost(0.0)),
    target(
        "refused or lost meanwhile",
        CUTS,
        REFUSED,
        KERNEL,
        Bound::AtMost(0.0),
    ),
    target(
        "choice among 64 members, ns",
        DECISION,
        NANOSECONDS,
        CHOICE,
        Bound::AtMost(1000.0),
    ),
];

/// All figures of a run.
#[derive(Default)]
pub(crate) struct Results {
    samples: Vec<Sample>,
}

impl Results {
    /// Keeps a figure of CPU time.
    pub(crate) fn add(&mut self, row: &'static str, arm: &'static str, round: usize, value: f64) {
        self.add_metric(row, CPU, arm, round, value);
    }

    /// Keeps a figure.
    pub(crate) fn add_metric(
        &mut self,
        row: &'static str,
        metric: &'static str,
        arm: &'static str,
        round: usize,
        value: f64,
    ) {
        self.samples.push(Sample {
            row,
            metric,
            arm,
            round,
            value,
        });
    }

    /// Figures of an arm by round, above the router's if the metric is CPU time.
    fn by_round(&self, row: &str, metric: &str, arm: &str) -> Vec<(usize, f64)> {
        let figures = |arm: &str| -> Vec<(usize, f64)> {
            self.samples
                .iter()
                .filter(|one| one.row == row && one.metric == metric && one.arm == arm)
                .map(|one| (one.round, one.value))
                .collect()
        };
        let own = figures(arm);
        if metric != CPU {
            return own;
        }
        let router = figures(ROUTER);
        own.into_iter()
            .filter_map(|(round, value)| {
                let (_, base) = router.iter().find(|(other, _)| *other == round)?;
                Some((round, value - base))
            })
            .collect()
    }

    /// Ratios of an arm's figures to another one's in the same round.
    fn ratios(&self, row: &str, metric: &str, ours: &str, other: &str) -> Option<[f64; 3]> {
        let others = self.by_round(row, metric, other);
        let ratios = self
            .by_round(row, metric, ours)
            .into_iter()
            .filter_map(|(round, value)| {
                let (_, base) = others.iter().find(|(number, _)| *number == round)?;
                Some(value / base)
            })
            .filter(|ratio| ratio.is_finite());
        quartiles(ratios.collect())
    }

    fn lines(&self) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        for one in &self.samples {
            let is_known = lines.iter().any(|line| {
                line.row == one.row && line.metric == one.metric && line.arm == one.arm
            });
            if is_known {
                continue;
            }
            let alike = self.samples.iter().filter(|other| {
                other.row == one.row && other.metric == one.metric && other.arm == one.arm
            });
            let Some(value) = quartiles(alike.map(|one| one.value).collect()) else {
                continue;
            };
            let above = || {
                let above = self.by_round(one.row, one.metric, one.arm);
                quartiles(above.into_iter().map(|(_, value)| value).collect())
            };
            let is_above = one.metric == CPU && one.arm != ROUTER;
            lines.push(Line {
                row: one.row,
                metric: one.metric,
                arm: one.arm,
                value,
                above_router: is_above.then(above).flatten(),
            });
        }
        lines
    }

    fn verdicts(&self) -> Vec<Verdict> {
        let mut verdicts: Vec<Verdict> = TARGETS.iter().map(|target| self.judge(target)).collect();
        verdicts.push(self.judge_memory());
        verdicts
    }

    fn judge(&self, target: &Target) -> Verdict {
        let ratios = |other| self.ratios(target.row, target.metric, target.ours, other);
        let (measured, bound, of) = match target.bound {
            Bound::To(other, bound) => (ratios(other), bound, format!(" of {other}'s")),
            Bound::ToBest(others, bound) => {
                let found = others
                    .iter()
                    .filter_map(|other| Some((ratios(other)?, *other)));
                // The lowest figure gives the highest ratio.
                let worst = found.max_by(|(one, _), (other, _)| one[1].total_cmp(&other[1]));
                let of = worst.map_or("the best peer", |(_, other)| other);
                (
                    worst.map(|(ratios, _)| ratios),
                    bound,
                    format!(" of {of}'s"),
                )
            }
            Bound::AtMost(bound) => {
                let all = self.by_round(target.row, target.metric, target.ours);
                let measured = quartiles(all.into_iter().map(|(_, value)| value).collect());
                (measured, bound, String::new())
            }
        };
        Verdict {
            target: target.what,
            verdict: match measured {
                None => "not measured",
                Some([_, middle, _]) if middle <= bound => "pass",
                Some(_) => "MISS",
            },
            measured,
            bound: format!("at most {bound}{of}"),
        }
    }

    /// Room for many connections, in memory and in the tables.
    fn judge_memory(&self) -> Verdict {
        let only = |metric: &str| {
            let figures = self.by_round(MEMORY, metric, KERNEL);
            median(figures.into_iter().map(|(_, value)| value).collect())
        };
        let (count, memory) = MANY;
        let (bytes, entries) = (only(BYTES), only(ENTRIES));
        let reached = bytes.zip(entries).map(|(bytes, entries)| {
            if bytes * count <= memory && entries >= count {
                "pass"
            } else {
                "MISS"
            }
        });
        let room = entries.map_or_else(String::new, |entries| {
            format!("; the tables have room for {entries}")
        });
        Verdict {
            target: "1,000,000 connections, bytes each",
            verdict: reached.unwrap_or("not measured"),
            measured: bytes.map(|bytes| [bytes; 3]),
            bound: format!("at most {:.0}{room}", memory / count),
        }
    }

    /// A table of all figures, as Markdown.
    pub(crate) fn table(&self) -> String {
        let mut text = "| row | metric | arm | median (quartiles) | above the router |\n|---|---|---|---|---|\n".to_owned();
        for line in self.lines() {
            let above = line.above_router.map(show).unwrap_or_default();
            let Line {
                row,
                metric,
                arm,
                value,
                ..
            } = line;
            let _ = writeln!(
                text,
                "| `{row}` | `{metric}` | {arm} | {} | {above} |",
                show(value)
            );
        }
        text
    }

    /// A line for each target.
    pub(crate) fn verdict_lines(&self) -> String {
        let mut text = String::new();
        for Verdict {
            target,
            verdict,
            measured,
            bound,
        } in self.verdicts()
        {
            let measured = measured.map_or_else(|| "-".into(), show);
            let _ = writeln!(text, "{verdict:<12} {target:<34} {measured}, {bound}");
        }
        text
    }

    /// The results as JSON.
    ///
    /// # Errors
    ///
    /// Returns an error if a figure is no number.
    pub(crate) fn json(&self) -> serde_json::Result<String> {
        let both = serde_json::json!({ "rows": self.lines(), "targets": self.verdicts() });
        Ok(serde_json::to_string_pretty(&both)? + "\n")
    }
}

fn show([low, middle, high]: [f64; 3]) -> String {
    if low == middle && middle == high {
        return short(middle);
    }
    format!("{} ({} to {})", short(middle), short(low), short(high))
}

/// Three digits that count.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(results: &Results, what: &str, bound: &str) -> &'static str {
        let verdicts = results.verdicts();
        let found = verdicts
            .iter()
            .find(|one| one.target == what && one.bound.contains(bound));
        found.map_or("no such target", |one| one.verdict)
    }

    #[test]
    fn cpu_time_is_compared_above_the_routers() {
        let mut results = Results::default();
        for (round, noise) in [(0, 0.0), (1, 30.0), (2, 5.0)] {
            results.add(CONNECTION, ROUTER, round, 70.0 + noise);
            results.add(CONNECTION, KERNEL, round, 73.0 + noise);
            results.add(CONNECTION, PROXY, round, 120.0 + noise);
            results.add(CONNECTION, "nft", round, 75.0 + noise);
        }
        let what = "CPU per connection, half NAT";
        assert_eq!(verdict(&results, what, "proxy"), "pass");
        assert_eq!(verdict(&results, what, "nft"), "MISS");
        assert_eq!(verdict(&results, "CPU per MiB", "proxy"), "not measured");
        // Packets are measured above the sink already.
        for round in 0..3 {
            results.add_metric(PACKET, PACKET_NS, ROUTER, round, 1000.0);
            results.add_metric(PACKET, PACKET_NS, "kernel-xdp", round, 290.0);
        }
        assert_eq!(verdict(&results, "packet in native XDP", "router"), "pass");
        assert!(results.table().contains("| kernel | 78 (73 to 103) | 3 |"));
    }

    #[test]
    fn the_best_peer_counts() {
        let mut results = Results::default();
        for (arm, value) in [
            (ROUTER, 10.0),
            ("udp-rule", 17.0),
            ("nginx", 20.0),
            ("envoy", 18.0),
        ] {
            results.add(QUERY, arm, 0, value);
        }
        assert_eq!(
            verdict(&results, "UDP query at user level", "envoy"),
            "MISS"
        );
    }

    #[test]
    fn memory_needs_room_in_the_tables() {
        let what = "1,000,000 connections, bytes each";
        for (entries, expected) in [(262_144.0, "MISS"), (1_048_576.0, "pass")] {
            let mut results = Results::default();
            results.add_metric(MEMORY, BYTES, KERNEL, 0, 200.0);
            results.add_metric(MEMORY, ENTRIES, KERNEL, 0, entries);
            assert_eq!(verdict(&results, what, "268"), expected);
        }
    }
}
