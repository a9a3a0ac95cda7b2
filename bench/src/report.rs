//! From samples to ratios, the table, and what must be reached.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::arms::Arm;

/// Name of an arm: a plain rule, beside a rule with a feature, in the same process of Evenkeel.
pub const PLAIN: &str = "plain";

/// Result of one run of one arm.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Samples of one round are compared with each other.
    pub round: usize,
    /// Name of the row.
    pub row: &'static str,
    /// Name of the arm.
    pub arm: &'static str,
    /// Figures by name; the name says the unit.
    pub metrics: BTreeMap<&'static str, f64>,
}

/// A comparison, as in `results/latest.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Name of the row.
    pub row: String,
    /// Name of the metric, which includes the unit.
    pub metric: String,
    /// Other arm; `plain` for a rule of Evenkeel's own, or `limit` for a fixed bound.
    pub peer: String,
    /// Version of the peer, as the program says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_version: Option<String>,
    /// Evenkeel's figure: the median of all rounds.
    pub ours: f64,
    /// The peer's.
    pub theirs: f64,
    /// The median of the rounds' ratios, ours to theirs.
    pub ratio: f64,
}

/// CPU time of the proxy per request.
pub const CPU_PER_REQUEST: &str = "cpu_us_per_request";
/// CPU time of the proxy per MiB.
pub const CPU_PER_MIB: &str = "cpu_us_per_mib";
/// Handshakes for a second of the proxy's CPU time.
pub const HANDSHAKES: &str = "handshakes_per_cpu_s";
/// Requests per second.
pub const REQUESTS: &str = "requests_per_s";
/// MiB per second.
pub const MEBIBYTES: &str = "mib_per_s";
/// Median latency.
pub const P50: &str = "p50_us";
/// 99th percentile of latency.
pub const P99: &str = "p99_us";
/// Resident memory per idle client connection.
pub const MEMORY: &str = "bytes_per_connection";

/// Something that must be reached.
pub struct Limit {
    row: &'static str,
    metric: &'static str,
    bound: Bound,
}

/// Bound for a metric: where less is better, the most; where more is better, the least.
enum Bound {
    /// Ratio to one peer.
    To(Arm, f64),
    /// Ratio to the plain rule.
    ToPlain(f64),
    /// Ratio to whichever peer is best.
    ToBestPeer(f64),
    /// An absolute figure.
    Absolute(f64),
}

/// Peers of which the best is looked for: the newest of each.
const PEERS: [Arm; 3] = [Arm::Haproxy, Arm::Nginx, Arm::Envoy];

/// Limits that must be reached.
pub const LIMITS: &[Limit] = &[
    limit("http-small", CPU_PER_REQUEST, Bound::To(Arm::Haproxy, 0.85)),
    limit("http-small", CPU_PER_REQUEST, Bound::To(Arm::Nginx, 1.0)),
    limit("http-small", CPU_PER_REQUEST, Bound::To(Arm::Envoy, 0.3)),
    limit("http-small", CPU_PER_REQUEST, Bound::To(Arm::Floor, 1.4)),
    limit("http-64k", CPU_PER_REQUEST, Bound::ToBestPeer(1.0)),
    limit("http-64k", REQUESTS, Bound::ToBestPeer(1.0)),
    limit("http-64k", P99, Bound::ToBestPeer(1.0)),
    limit("http-close", CPU_PER_REQUEST, Bound::ToBestPeer(1.0)),
    limit("http-close", REQUESTS, Bound::ToBestPeer(1.0)),
    limit("http-close", P99, Bound::ToBestPeer(1.0)),
    limit("http-apart", REQUESTS, Bound::ToBestPeer(1.0)),
    limit("http-apart", P99, Bound::ToBestPeer(1.0)),
    limit(
        "http-members",
        CPU_PER_REQUEST,
        Bound::To(Arm::Haproxy, 0.85),
    ),
    limit("http-members", REQUESTS, Bound::ToBestPeer(1.0)),
    limit("tcp-rr", CPU_PER_REQUEST, Bound::ToBestPeer(1.0)),
    limit("tcp-rr", REQUESTS, Bound::ToBestPeer(1.0)),
    limit("tcp-rr", P99, Bound::ToBestPeer(1.0)),
    limit("tcp-bulk", CPU_PER_MIB, Bound::ToBestPeer(1.0)),
    limit("tcp-bulk", MEBIBYTES, Bound::ToBestPeer(1.0)),
    limit("ftp-bulk", CPU_PER_MIB, Bound::ToPlain(1.1)),
    limit("http-routes", CPU_PER_REQUEST, Bound::ToPlain(1.03)),
    limit("http-limits", CPU_PER_REQUEST, Bound::ToPlain(1.03)),
    limit("https-small", CPU_PER_REQUEST, Bound::ToBestPeer(0.95)),
    limit("https-64k", CPU_PER_MIB, Bound::ToBestPeer(0.95)),
    limit("tls-full", HANDSHAKES, Bound::ToBestPeer(1.0)),
    limit("tls-resumed", HANDSHAKES, Bound::ToBestPeer(1.0)),
    limit("h2-small", CPU_PER_REQUEST, Bound::ToBestPeer(0.9)),
    limit("h2-members", CPU_PER_REQUEST, Bound::ToBestPeer(0.9)),
    limit("grpc-unary", CPU_PER_REQUEST, Bound::To(Arm::Envoy, 0.6)),
    limit("idle-https", MEMORY, Bound::ToBestPeer(1.0)),
    limit("idle-http", MEMORY, Bound::Absolute(8192.0)),
    limit("idle-tcp", MEMORY, Bound::Absolute(8192.0)),
    limit("slow-heads", MEMORY, Bound::Absolute(8192.0)),
];

const fn limit(row: &'static str, metric: &'static str, bound: Bound) -> Limit {
    Limit { row, metric, bound }
}

/// Compares Evenkeel with every other arm, in every row and metric. `versions` are those of the peers, by their names.
pub fn compare(samples: &[Sample], versions: &BTreeMap<&'static str, String>) -> Vec<Comparison> {
    let mut comparisons = Vec::new();
    for (row, metric) in rows_and_metrics(samples) {
        for peer in Arm::ALL[1..].iter().map(|arm| arm.name()).chain([PLAIN]) {
            let ratios = ratios(samples, row, metric, Arm::Evenkeel.name(), peer);
            let ours = values(samples, row, metric, Arm::Evenkeel.name());
            let theirs = values(samples, row, metric, peer);
            if let (Some(ratio), Some(ours), Some(theirs)) =
                (median(ratios), median(ours), median(theirs))
            {
                comparisons.push(Comparison {
                    row: row.into(),
                    metric: metric.into(),
                    peer: peer.into(),
                    peer_version: versions.get(peer).cloned(),
                    ours,
                    theirs,
                    ratio,
                });
            }
        }
    }
    comparisons
}

/// The table: for each row and metric every arm's median and, in brackets, Evenkeel's
/// ratio to it.
pub fn median_table(samples: &[Sample]) -> String {
    let mut text = format!("{:<12} {:<20}", "row", "metric");
    let was_there = |arm: &Arm| samples.iter().any(|sample| sample.arm == arm.name());
    let arms = || Arm::ALL.into_iter().filter(&was_there);
    for arm in arms() {
        let _ = write!(text, " {:>16}", arm.name());
    }
    text.push('\n');
    for (row, metric) in rows_and_metrics(samples) {
        let _ = write!(text, "{row:<12} {metric:<20}");
        for arm in arms() {
            let cell = match median(values(samples, row, metric, arm.name())) {
                None => "-".into(),
                Some(value) => {
                    let ratios = ratios(samples, row, metric, Arm::Evenkeel.name(), arm.name());
                    match median(ratios).filter(|_| arm != Arm::Evenkeel) {
                        None => short(value),
                        Some(ratio) => format!("{} ({ratio:.2})", short(value)),
                    }
                }
            };
            let _ = write!(text, " {cell:>16}");
        }
        text.push('\n');
    }
    text
}

/// Ratios to `other`, which is `called` so: the median over all turns, and the quartiles, which say
/// how far it is to be trusted.
pub fn ratio_table(samples: &[Sample], other: &str, called: &str) -> String {
    let mut text = format!("Beside {called}: median (quartiles)\n");
    for (row, metric) in rows_and_metrics(samples) {
        let ratios = ratios(samples, row, metric, Arm::Evenkeel.name(), other);
        if let Some([low, middle, high]) = quartiles(ratios) {
            let _ = writeln!(
                text,
                "{row:<11} {metric:<20} {middle:.3} ({low:.3} to {high:.3})"
            );
        }
    }
    text
}

/// Cost of a strategy's decision, as in the output of `pick --json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Pick {
    strategy: String,
    members: usize,
    /// The choice alone.
    choose_ns: f64,
    /// Choice, binding to the member and end of the request.
    pick_ns: f64,
    /// Allocations over all measured picks.
    allocations: u64,
}

/// The strategy that does the least, to compare the others with.
const CHEAPEST_STRATEGY: &str = "random";
/// Strategies that draw a few members; all others may look at each.
const DRAWING_STRATEGIES: &[&str] = &[
    "random",
    "least_request",
    "peak_ewma",
    "prequal",
    "adaptive",
];
/// At most this many ns, with this many members.
const DRAWING_LIMIT: (f64, usize) = (60.0, 10_000);
const SCANNING_LIMIT: (f64, usize) = (1000.0, 100);

impl Pick {
    /// The bound on its choice, if there is one for a group of its size.
    fn limit(&self) -> Option<f64> {
        let (limit, members) = if DRAWING_STRATEGIES.contains(&self.strategy.as_str()) {
            DRAWING_LIMIT
        } else {
            SCANNING_LIMIT
        };
        (self.members == members).then_some(limit)
    }
}

/// Compares each strategy with the cheapest one, and with its limit where it has one.
pub fn compare_picks(picks: &[Pick]) -> Vec<Comparison> {
    let mut comparisons = Vec::new();
    for pick in picks {
        let cheapest = picks
            .iter()
            .find(|other| other.strategy == CHEAPEST_STRATEGY && other.members == pick.members);
        let mut add = |metric: &str, peer: &str, ours: f64, theirs: f64| {
            comparisons.push(Comparison {
                row: format!("pick {} of {}", pick.strategy, pick.members),
                metric: metric.into(),
                peer: peer.into(),
                peer_version: None,
                ours,
                theirs,
                ratio: ours / theirs,
            });
        };
        if let Some(cheapest) = cheapest {
            let peer = CHEAPEST_STRATEGY;
            add("choose_ns", peer, pick.choose_ns, cheapest.choose_ns);
            add("pick_ns", peer, pick.pick_ns, cheapest.pick_ns);
        }
        if let Some(limit) = pick.limit() {
            add("choose_ns", "limit", pick.choose_ns, limit);
        }
    }
    comparisons
}

/// The table of strategies: ns of the choice alone, for each size of group.
pub fn pick_table(picks: &[Pick]) -> String {
    let mut sizes: Vec<usize> = picks.iter().map(|pick| pick.members).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut strategies: Vec<&str> = picks.iter().map(|pick| pick.strategy.as_str()).collect();
    strategies.dedup();
    let mut text = format!("{:<24}", "choose_ns of");
    for size in &sizes {
        let _ = write!(text, " {:>13}", format!("{size} members"));
    }
    text.push('\n');
    for strategy in strategies {
        let _ = write!(text, "{strategy:<24}");
        for pick in picks.iter().filter(|pick| pick.strategy == strategy) {
            let _ = write!(text, " {:>13}", short(pick.choose_ns));
        }
        text.push('\n');
    }
    text
}

/// A line per limit on strategies, with the strategy that comes closest to it.
pub fn pick_verdicts(picks: &[Pick]) -> String {
    let mut text = String::new();
    for (drawing, kind) in [(true, "that draw"), (false, "that scan")] {
        let (limit, members) = if drawing {
            DRAWING_LIMIT
        } else {
            SCANNING_LIMIT
        };
        let worst = picks
            .iter()
            .filter(|pick| {
                pick.limit().is_some()
                    && DRAWING_STRATEGIES.contains(&pick.strategy.as_str()) == drawing
            })
            .max_by(|one, other| one.choose_ns.total_cmp(&other.choose_ns));
        let Some(worst) = worst else {
            let _ = writeln!(text, "{:<12} pick, strategies {kind}", "not measured");
            continue;
        };
        let _ = writeln!(
            text,
            "{:<12} {:<12} {:<20} {:>7}, at most {} at {members} members, strategies {kind} (dearest: {})",
            verdict(worst.choose_ns <= limit),
            "pick",
            "choose_ns",
            short(worst.choose_ns),
            short(limit),
            worst.strategy,
        );
    }
    if !picks.is_empty() {
        let allocations: u64 = picks.iter().map(|pick| pick.allocations).sum();
        let _ = writeln!(
            text,
            "{:<12} {:<12} {:<20} {allocations:>7}, at most 0 in all",
            verdict(allocations == 0),
            "pick",
            "allocations"
        );
    }
    text
}

fn verdict(reached: bool) -> &'static str {
    if reached { "pass" } else { "MISS" }
}

/// A line per limit: the limit, the measurement, and the verdict.
pub fn limit_verdicts(samples: &[Sample]) -> String {
    let mut text = String::new();
    for limit in LIMITS {
        let more_is_better = matches!(limit.metric, REQUESTS | MEBIBYTES | HANDSHAKES);
        let to = |peer: &str| {
            let ours = Arm::Evenkeel.name();
            ratios(samples, limit.row, limit.metric, ours, peer)
        };
        let ratio_to = |peer: &str| median(to(peer));
        // Half of all turns lie between.
        let spread = |peer: &str| {
            quartiles(to(peer)).map_or_else(String::new, |[low, _, high]| {
                format!(" ({} to {})", short(low), short(high))
            })
        };
        let (measured, bound, against) = match limit.bound {
            Bound::To(peer, bound) => {
                let peer = peer.name();
                let against = format!("of {peer}'s{}", spread(peer));
                (ratio_to(peer), bound, against)
            }
            Bound::ToPlain(bound) => {
                let against = format!("of the plain rule's{}", spread(PLAIN));
                (ratio_to(PLAIN), bound, against)
            }
            Bound::Absolute(bound) => {
                let ours = values(samples, limit.row, limit.metric, Arm::Evenkeel.name());
                (median(ours), bound, "in all".into())
            }
            Bound::ToBestPeer(bound) => {
                let worst = PEERS
                    .iter()
                    .filter_map(|peer| Some((ratio_to(peer.name())?, peer.name())))
                    .max_by(|one, other| {
                        let order = one.0.total_cmp(&other.0);
                        if more_is_better {
                            order.reverse()
                        } else {
                            order
                        }
                    });
                match worst {
                    Some((ratio, peer)) => {
                        let spread = spread(peer);
                        let against = format!("of the best peer's ({peer}){spread}");
                        (Some(ratio), bound, against)
                    }
                    None => (None, bound, "of the best peer's".into()),
                }
            }
        };
        let reached = match measured {
            None => "not measured",
            Some(value) if more_is_better => verdict(value >= bound),
            Some(value) => verdict(value <= bound),
        };
        let measured = measured.map_or_else(|| "-".into(), short);
        let side = if more_is_better {
            "at least"
        } else {
            "at most"
        };
        let _ = writeln!(
            text,
            "{reached:<12} {:<12} {:<20} {measured:>7}, {side} {} {against}",
            limit.row,
            limit.metric,
            short(bound)
        );
    }
    text
}

/// The middle value, or the mean of the two in the middle.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let count = values.len();
    let upper = *values.get(count / 2)?;
    if count % 2 == 1 {
        return Some(upper);
    }
    Some((values[count / 2 - 1] + upper) / 2.0)
}

/// The value that so large a share of the values is below of, by nearest rank; not a number without values.
pub fn quantile(values: impl IntoIterator<Item = f64>, share: f64) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    let at = (last as f64 * share).round() as usize;
    values.get(at).copied().unwrap_or(f64::NAN)
}

/// The first quartile, the median, and the third.
pub fn quartiles(mut values: Vec<f64>) -> Option<[f64; 3]> {
    values.sort_by(f64::total_cmp);
    let at = |part: usize| values.get(values.len() * part / 4).copied();
    Some([at(1)?, median(values.clone())?, at(3)?])
}

/// Every row and metric once, in the order of measurement.
fn rows_and_metrics(samples: &[Sample]) -> Vec<(&'static str, &'static str)> {
    let mut found = Vec::new();
    for sample in samples {
        for metric in sample.metrics.keys() {
            if !found.contains(&(sample.row, *metric)) {
                found.push((sample.row, *metric));
            }
        }
    }
    // Rows may have been cut into rounds; keep each together.
    let rows: Vec<&str> = found.iter().map(|(row, _)| *row).collect();
    found.sort_by_key(|(row, _)| rows.iter().position(|known| known == row));
    found
}

fn values(samples: &[Sample], row: &str, metric: &str, arm: &str) -> Vec<f64> {
    samples
        .iter()
        .filter(|sample| sample.row == row && sample.arm == arm)
        .filter_map(|sample| sample.metrics.get(metric).copied())
        .collect()
}

/// Per round, the ratio of one arm's figure to the other's.
fn ratios(samples: &[Sample], row: &str, metric: &str, ours: &str, theirs: &str) -> Vec<f64> {
    let figure = |round: usize, arm: &str| {
        samples
            .iter()
            .find(|sample| sample.round == round && sample.row == row && sample.arm == arm)
            .and_then(|sample| sample.metrics.get(metric).copied())
    };
    let rounds = samples.iter().map(|sample| sample.round).max().unwrap_or(0);
    (0..=rounds)
        .filter_map(|round| Some(figure(round, ours)? / figure(round, theirs)?))
        .filter(|ratio| ratio.is_finite())
        .collect()
}

/// Three digits that count.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(round: usize, arm: Arm, cpu: f64) -> Sample {
        Sample {
            round,
            row: "http-small",
            arm: arm.name(),
            metrics: BTreeMap::from([(CPU_PER_REQUEST, cpu)]),
        }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The second round ran on a machine half as fast: the ratio does not move.
        let samples = [
            sample(0, Arm::Evenkeel, 8.0),
            sample(0, Arm::Haproxy, 10.0),
            sample(1, Arm::Evenkeel, 16.0),
            sample(1, Arm::Haproxy, 20.0),
        ];
        let versions = BTreeMap::from([("haproxy", "3.4.7".to_owned())]);
        let comparisons = compare(&samples, &versions);
        assert_eq!(comparisons.len(), 1);
        assert_eq!(comparisons[0].peer_version.as_deref(), Some("3.4.7"));
        assert_eq!(comparisons[0].ratio, 0.8);
        assert_eq!(comparisons[0].ours, 12.0);
        assert_eq!(comparisons[0].theirs, 15.0);
    }

    #[test]
    fn limits_are_judged_one_by_one() {
        let samples = [
            sample(0, Arm::Evenkeel, 8.0),
            sample(0, Arm::Haproxy, 10.0),
            sample(0, Arm::Nginx, 7.0),
        ];
        let verdicts = limit_verdicts(&samples);
        let lines: Vec<&str> = verdicts.lines().collect();
        assert!(lines[0].starts_with("pass"), "{}", lines[0]);
        assert!(lines[1].starts_with("MISS"), "{}", lines[1]);
        assert!(lines[2].starts_with("not measured"), "{}", lines[2]);
    }

    #[test]
    fn features_are_held_against_the_plain_rule() {
        let sample = |round, arm, cpu| Sample {
            row: "http-routes",
            arm,
            ..sample(round, Arm::Evenkeel, cpu)
        };
        // In the middle 1.02, and one turn in which the machine did something else.
        let samples: Vec<Sample> = [(0, 10.2, 10.0), (1, 20.2, 20.0), (2, 15.0, 10.0)]
            .into_iter()
            .flat_map(|(round, featured, plain)| {
                let featured = sample(round, Arm::Evenkeel.name(), featured);
                [featured, sample(round, PLAIN, plain)]
            })
            .collect();
        let verdicts = limit_verdicts(&samples);
        let line = { verdicts.lines() }.find(|line| line.contains("http-routes"));
        assert!(line.unwrap().starts_with("pass"), "{line:?}");
        let beside = ratio_table(&samples, PLAIN, "a plain rule");
        assert!(beside.contains("1.020 (1.010 to 1.500)"), "{beside}");
        assert_eq!(compare(&samples, &BTreeMap::new())[0].peer, PLAIN);
    }

    #[test]
    fn picks_are_held_to_the_limit_of_their_kind() {
        let picks: Vec<Pick> = serde_json::from_str(
            r#"[
                {"strategy":"random","members":10000,"choose_ns":10,"pick_ns":50,"allocations":0},
                {"strategy":"prequal","members":10000,"choose_ns":61,"pick_ns":100,"allocations":0},
                {"strategy":"least_loaded","members":100,"choose_ns":900,"pick_ns":950,"allocations":1},
                {"strategy":"least_loaded","members":10000,"choose_ns":90000,"pick_ns":90050,"allocations":0}
            ]"#,
        )
        .unwrap();
        let text = pick_verdicts(&picks);
        let starts: Vec<&str> = text.lines().map(|line| &line[..4]).collect();
        assert_eq!(starts, ["MISS", "pass", "MISS"], "{text}");
        let to_limit: Vec<f64> = compare_picks(&picks)
            .iter()
            .filter(|comparison| comparison.peer == "limit")
            .map(|comparison| comparison.theirs)
            .collect();
        assert_eq!(to_limit, [60.0, 60.0, 1000.0]);
    }

    #[test]
    fn median_of_none_one_and_two() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0]), Some(3.0));
        assert_eq!(median(vec![3.0, 1.0]), Some(2.0));
    }
}
