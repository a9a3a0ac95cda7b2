//! Report of a run, for people and for other programs.

use std::fmt::Write;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::stats::{Kind, Latencies, Outcome, Second};

/// The version of [`Record`].
pub const VERSION: u32 = 1;
/// Share of a core from which on the generator may be what limits.
const BUSY: f64 = 0.9;
/// Own error from which on the generator is what limits.
const LATE: Duration = Duration::from_millis(1);

/// A run as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The version of this format.
    pub version: u32,
    /// URL that the run was sent to.
    pub url: String,
    /// `open` or `closed`.
    pub loop_kind: String,
    /// Planned rate per second.
    pub planned_rate: Option<f64>,
    /// Connections, or users.
    pub connections: usize,
    /// Number of threads.
    pub threads: usize,
    /// Length of the counted time in seconds.
    pub seconds: f64,
    /// Requests begun.
    pub begun: u64,
    /// Whole answers.
    pub answered: u64,
    /// Answers with a status of 400 or more; their latencies are left out.
    pub refusals: u64,
    /// Planned requests that nobody was free to begin.
    pub never_begun: u64,
    /// Requests that were due while all connections were taken.
    pub waited_for_connection: u64,
    /// Errors by kind.
    pub errors: std::collections::BTreeMap<String, u64>,
    /// Answers by status.
    pub statuses: std::collections::BTreeMap<String, u64>,
    /// Bytes of bodies.
    pub bytes: u64,
    /// Connections made.
    pub connections_made: u64,
    /// Redirects followed.
    pub redirects: u64,
    /// Redirects that were kept for their quantum.
    pub negotiations: u64,
    /// Sessions begun.
    pub sessions: u64,
    /// Whole answers per second.
    pub rate: f64,
    /// Latencies in microseconds, from when a request was due.
    pub corrected_us: Quantiles,
    /// Latencies in microseconds, from when a request was sent.
    pub from_send_us: Quantiles,
    /// Delays with which requests were sent, in microseconds.
    pub own_error_us: Quantiles,
    /// The busiest thread's share of its core.
    pub busy: f64,
    /// Warnings: reasons to doubt these figures, in words.
    pub warnings: Vec<String>,
    /// Each second.
    pub per_second: Vec<Row>,
}

/// Quantiles in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Quantiles {
    /// Mean value.
    pub mean: f64,
    /// 50 %.
    pub p50: f64,
    /// 75 %.
    pub p75: f64,
    /// 90 %.
    pub p90: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    pub p999: f64,
    /// 99.99 %.
    pub p9999: f64,
    /// The longest.
    pub max: f64,
}

impl Quantiles {
    fn of(latencies: &Latencies) -> Self {
        let at = |share| to_micros(latencies.quantile(share));
        Quantiles {
            mean: to_micros(latencies.mean()),
            p50: at(0.5),
            p75: at(0.75),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: to_micros(latencies.max()),
        }
    }
}

/// A second.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Time when the second began, in seconds.
    pub second: f64,
    /// Length of this interval in seconds.
    pub length: f64,
    /// Requests begun.
    pub begun: u64,
    /// Whole answers.
    pub answered: u64,
    /// Answers with a status of 400 or more.
    pub refusals: u64,
    /// Number of errors.
    pub errors: u64,
    /// Bytes of bodies.
    pub bytes: u64,
    /// Requests without an answer at the end of the second.
    pub in_flight: u64,
    /// Corrected latencies, in microseconds.
    pub p50_us: f64,
    /// 90 %.
    pub p90_us: f64,
    /// 99 %.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
    /// Latencies from when requests were sent: 50 %.
    pub sent_p50_us: f64,
    /// 99 %.
    pub sent_p99_us: f64,
    /// 99 % of how late sends were.
    pub own_p99_us: f64,
}

impl Row {
    fn of(second: &Second) -> Self {
        let [p50, p90, p99, max] = second.corrected.map(to_micros);
        let [sent_p50, _, sent_p99, _] = second.from_send.map(to_micros);
        Row {
            second: second.from,
            length: second.length,
            begun: second.begun,
            answered: second.answered,
            refusals: second.refusals,
            errors: second.failed,
            bytes: second.bytes,
            in_flight: second.in_flight,
            p50_us: p50,
            p90_us: p90,
            p99_us: p99,
            max_us: max,
            sent_p50_us: sent_p50,
            sent_p99_us: sent_p99,
            own_p99_us: second.own_error.map(to_micros)[0],
        }
    }

    /// Whole answers per second.
    pub fn answers_per_second(&self) -> f64 {
        match self.length > 0.0 {
            true => self.answered as f64 / self.length,
            false => 0.0,
        }
    }
}

pub(crate) fn to_micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// Returns the warnings: reasons to doubt the figures.
fn warnings(plan: &Plan, outcome: &Outcome) -> Vec<String> {
    let counted = &outcome.counted;
    let mut all = Vec::new();
    if outcome.busy > BUSY {
        all.push(format!(
            "the generator used {:.0} % of a core: the generator may be the limit, and not the server; \
             use more --threads, or a second machine",
            outcome.busy * 100.0
        ));
    }
    let late = counted.own_error.quantile(0.99);
    if plan.is_open() && late > LATE {
        all.push(format!(
            "1 % of the requests were sent more than {} late by the generator itself: latencies from \
             the due time include that delay; let nothing else run on this machine, or use more --threads",
            format_time(late)
        ));
    }
    if plan.is_open() && counted.waited * 100 > counted.begun_requests {
        all.push(format!(
            "{:.1} % of the requests were due while all connections were taken: the time that they waited \
             is in the latencies; the server does not keep up, or --connections are too few",
            100.0 * counted.waited as f64 / counted.begun_requests.max(1) as f64
        ));
    }
    if outcome.never_begun > 0 {
        all.push(format!(
            "{} planned requests were never begun, as no connection was free until the end: latencies \
             would be longer with them",
            outcome.never_begun
        ));
    }
    if counted.corrected.0.len() < 1000 {
        all.push("fewer than 1000 answers: high quantiles are those of a few requests".into());
    }
    all
}

/// All that a run has shown.
pub fn make_record(plan: &Plan, outcome: &Outcome) -> Record {
    let counted = &outcome.counted;
    let seconds = outcome.elapsed.as_secs_f64();
    let errors = Kind::ALL.into_iter().zip(counted.errors);
    let errors = errors.filter(|(_, count)| *count > 0);
    let statuses = counted.statuses.iter().enumerate();
    let statuses = statuses.filter(|(status, count)| *status > 0 && **count > 0);
    Record {
        version: VERSION,
        url: format!(
            "{}://{}{}",
            plan.url.scheme.name(),
            plan.url.authority(),
            plan.url.path
        ),
        loop_kind: if plan.is_open() { "open" } else { "closed" }.into(),
        planned_rate: plan.rate,
        connections: plan.connections,
        threads: plan.threads,
        seconds,
        begun: counted.begun_requests,
        answered: counted.answered,
        refusals: counted.refusals,
        never_begun: outcome.never_begun,
        waited_for_connection: counted.waited,
        errors: errors.map(|(kind, n)| (kind.name().into(), n)).collect(),
        statuses: statuses.map(|(s, n)| (s.to_string(), *n)).collect(),
        bytes: counted.bytes,
        connections_made: counted.connections,
        redirects: counted.redirects,
        negotiations: counted.negotiations,
        sessions: counted.sessions,
        rate: match seconds > 0.0 {
            true => counted.answered as f64 / seconds,
            false => 0.0,
        },
        corrected_us: Quantiles::of(&counted.corrected),
        from_send_us: Quantiles::of(&counted.from_send),
        own_error_us: Quantiles::of(&counted.own_error),
        busy: outcome.busy,
        warnings: warnings(plan, outcome),
        per_second: outcome.seconds.iter().map(Row::of).collect(),
    }
}

/// Returns the record as a text of JSON.
pub fn to_json(record: &Record) -> String {
    // Nothing in it can fail to be written.
    serde_json::to_string_pretty(record).unwrap_or_default() + "\n"
}

/// Reads the text that [`to_json`] has written.
///
/// # Errors
///
/// It is something else, or of another version.
pub fn read(text: &str) -> Result<Record, String> {
    let record: Record = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match record.version {
        VERSION => Ok(record),
        other => Err(format!(
            "the file has version {other}, and this program reads version {VERSION}"
        )),
    }
}

/// A row for each second.
pub fn to_csv(record: &Record) -> String {
    let mut text = String::from(
        "second,length,begun,answered,refusals,errors,bytes,in_flight,p50_us,p90_us,p99_us,max_us,\
         sent_p50_us,sent_p99_us,own_p99_us\n",
    );
    for row in &record.per_second {
        let _ = writeln!(
            text,
            "{:.3},{:.3},{},{},{},{},{},{},{:.1},{:.1},{:.1},{:.1},{:.1},{:.1},{:.1}",
            row.second,
            row.length,
            row.begun,
            row.answered,
            row.refusals,
            row.errors,
            row.bytes,
            row.in_flight,
            row.p50_us,
            row.p90_us,
            row.p99_us,
            row.max_us,
            row.sent_p50_us,
            row.sent_p99_us,
            row.own_p99_us
        );
    }
    text
}

/// Corrected latencies as HdrHistogram's percentile distribution, in milliseconds: what its
/// plotter and other tools read.
pub fn to_hgrm(latencies: &Latencies) -> String {
    let mut text = String::from("       Value     Percentile TotalCount 1/(1-Percentile)\n\n");
    let all = &latencies.0;
    let mut count = 0;
    for value in all.iter_quantiles(5) {
        count += value.count_since_last_iteration();
        let share = value.quantile_iterated_to();
        let millis = value.value_iterated_to() as f64 / 1e6;
        let _ = match share < 1.0 {
            true => writeln!(
                text,
                "{millis:12.3} {share:14.12} {count:10} {:14.2}",
                1.0 / (1.0 - share)
            ),
            false => writeln!(text, "{millis:12.3} {share:14.12} {count:10}"),
        };
    }
    let _ = writeln!(
        text,
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]",
        all.mean() / 1e6,
        all.stdev() / 1e6
    );
    let _ = writeln!(
        text,
        "#[Max     = {:12.3}, Total count    = {:12}]",
        all.max() as f64 / 1e6,
        all.len()
    );
    let _ = writeln!(
        text,
        "#[Buckets = {:12}, SubBuckets     = {:12}]",
        all.buckets(),
        2048
    );
    text
}

/// A time for people.
pub fn format_time(time: Duration) -> String {
    of_micros(to_micros(time))
}

fn of_micros(micros: f64) -> String {
    match micros {
        micros if micros < 1000.0 => format!("{micros:.0} us"),
        micros if micros < 10_000.0 => format!("{:.2} ms", micros / 1e3),
        micros if micros < 1e6 => format!("{:.1} ms", micros / 1e3),
        micros => format!("{:.2} s", micros / 1e6),
    }
}

fn of_bytes(bytes: f64) -> String {
    match bytes {
        bytes if bytes < 1e4 => format!("{bytes:.0} bytes"),
        bytes if bytes < 1e7 => format!("{:.1} kB", bytes / 1e3),
        bytes if bytes < 1e10 => format!("{:.1} MB", bytes / 1e6),
        bytes => format!("{:.1} GB", bytes / 1e9),
    }
}

/// A second in a line.
pub fn format_second(second: &Second) -> String {
    let row = Row::of(second);
    format!(
        "{:6.0} s  {:9.0} answers/s  {:7} errors  {:6} in flight  p50 {:>9}  p90 {:>9}  p99 {:>9}",
        row.second + row.length,
        row.answers_per_second(),
        row.errors + row.refusals,
        row.in_flight,
        of_micros(row.p50_us),
        of_micros(row.p90_us),
        of_micros(row.p99_us)
    )
}

/// All of it in words.
pub fn text(record: &Record) -> String {
    let mut text = String::new();
    let per_second = |count: u64| count as f64 / record.seconds.max(1e-9);
    let _ = writeln!(
        text,
        "{}: {:.1} s, {} loop, {} connections, {} thread{}",
        record.url,
        record.seconds,
        record.loop_kind,
        record.connections,
        record.threads,
        if record.threads == 1 { "" } else { "s" }
    );
    if let Some(rate) = record.planned_rate {
        let _ = writeln!(text, "  planned     {rate:12.1} per second");
    }
    let _ = writeln!(
        text,
        "  begun       {:12}   {:12.1} per second",
        record.begun,
        per_second(record.begun)
    );
    let _ = writeln!(
        text,
        "  answered    {:12}   {:12.1} per second",
        record.answered, record.rate
    );
    let _ = writeln!(
        text,
        "  bodies      {:>12}   {:>12} per second",
        of_bytes(record.bytes as f64),
        of_bytes(record.bytes as f64 / record.seconds.max(1e-9))
    );
    for (what, count) in [
        ("connections", record.connections_made),
        ("redirects", record.redirects),
        ("negotiations", record.negotiations),
        ("sessions", record.sessions),
    ] {
        if count > 0 {
            let _ = writeln!(text, "  {what:<12}{count:11}");
        }
    }
    if !record.statuses.is_empty() {
        let all: Vec<_> = record
            .statuses
            .iter()
            .map(|(status, count)| format!("{status}: {count}"))
            .collect();
        let _ = writeln!(text, "  statuses    {}", all.join(", "));
    }
    for kind in Kind::ALL {
        if let Some(count) = record.errors.get(kind.name()) {
            let _ = writeln!(text, "  errors      {count:12}   {}", kind.kind_name());
        }
    }
    let _ = writeln!(
        text,
        "  latencies {:>12}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "mean", "p50", "p90", "p99", "p99.9", "max"
    );
    for (name, of) in [
        ("from due", &record.corrected_us),
        ("from send", &record.from_send_us),
        ("own error", &record.own_error_us),
    ] {
        let _ = write!(text, "  {name:<12}");
        for value in [of.mean, of.p50, of.p90, of.p99, of.p999, of.max] {
            let _ = write!(text, "{:>10}", of_micros(value));
        }
        text.push('\n');
    }
    for warning in &record.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}
