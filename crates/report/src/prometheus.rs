//! Loads that are worked out from metrics in Prometheus' text format.
//!
//! A page is fetched once per location, however many members are there, and read as a
//! whole or not at all. Loads are worked out one by one: what one of them lacks is no
//! reason to refuse the others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_core::load::{LoadId, LoadValue, TooManyLoads};
use evenkeel_manager::config::expression::{Aggregate, Expression, Operator, Series};
use evenkeel_manager::config::sources::{MetricLoad, Prometheus, Sources, Url};
use evenkeel_manager::config::{ClientTls, one_line};
use evenkeel_manager::counts::{Origin, ReportOutcome};
use evenkeel_net::http::client::{self, AskError, Limits, Question, ServerTarget};
use evenkeel_tls::current::Current;
use evenkeel_wire::exposition::{self, Format, InvalidPage, Sample};
use tokio::time::{Instant, timeout};

use crate::poll::{self, PolledGroup, ReportLog, ReportedLocation};
use crate::source::{Context, Source, SourceTargets};

/// Longest head of an answer in bytes.
const MAX_HEAD: usize = 64 * 1024;

/// The values of the series that some loads need, from one page.
#[derive(Clone, Debug)]
pub struct Readings {
    /// For each series of each load, in order: values by labels.
    series: Vec<HashMap<String, f64>>,
}

/// Reason why a page is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The page is not in the format.
    #[error(transparent)]
    Invalid(#[from] InvalidPage),
    /// A series is there more than once.
    #[error("the page has the same series twice")]
    Twice,
}

/// Reason why a load cannot be worked out.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NoValue {
    /// There is no such metric.
    #[error("the page has no {0}")]
    Missing(String),
    /// There are several series, and it is not said what to make of them.
    #[error("the page has several series of {0}: use sum, avg, min or max")]
    Several(String),
    /// The metric grows from one page to the next, and this page is the first, or the metric was counted
    /// anew.
    #[error("the rate of {0} is not known before the next page")]
    NoRate(String),
}

impl Readings {
    /// Reads a page. Samples that were measured before `not_before` (milliseconds since
    /// 1970) are left out: an exporter may show what it has read long ago.
    pub fn from_page(
        page: &str,
        format: Format,
        loads: &Prometheus,
        not_before: i64,
    ) -> Result<Self, Refused> {
        let wanted: Vec<&Series> = series(loads);
        let mut by_metric: HashMap<&str, Vec<(usize, &Series)>> = HashMap::new();
        for (index, &series) in wanted.iter().enumerate() {
            let places = by_metric.entry(&series.metric).or_default();
            places.push((index, series));
        }
        let mut found = vec![HashMap::new(); wanted.len()];
        let mut twice = false;
        exposition::parse(page, format, |sample| {
            let is_old = sample.at_ms.is_some_and(|at| at < not_before);
            let Some(places) = by_metric.get(sample.metric).filter(|_| !is_old) else {
                return;
            };
            for &(place, series) in places {
                if matches(series, &sample)
                    && let Some(found) = found.get_mut(place)
                {
                    let labels = sample.labels.as_str().to_owned();
                    twice |= found.insert(labels, sample.value).is_some();
                }
            }
        })?;
        match twice {
            true => Err(Refused::Twice),
            false => Ok(Readings { series: found }),
        }
    }

    /// Returns the loads, given the readings `before` and how long ago those readings are.
    pub fn loads_since(
        &self,
        loads: &Prometheus,
        before: Option<(&Readings, Duration)>,
    ) -> Vec<(LoadId, Result<f64, NoValue>)> {
        let mut next = 0;
        let load = |of: &MetricLoad| {
            let mut place = next;
            next += of.expression.series().len();
            let value = self.value(&of.expression, &mut place, before);
            // Growth is measured on two clocks, so that a share of time may seem to be a
            // little more than all of it, and what is left of it less than nothing.
            let is_rate = of.expression.series().iter().any(|series| series.rate);
            let value = value.map(|v| if is_rate && v < 0.0 { 0.0 } else { v });
            (of.load, value)
        };
        loads.loads.iter().map(load).collect()
    }

    fn value(
        &self,
        expression: &Expression,
        place: &mut usize,
        before: Option<(&Readings, Duration)>,
    ) -> Result<f64, NoValue> {
        match expression {
            Expression::Number(number) => Ok(*number),
            Expression::Binary(a, operator, b) => {
                let a = self.value(a, place, before);
                let b = self.value(b, place, before);
                let (a, b) = (a?, b?);
                Ok(match operator {
                    Operator::Add => a + b,
                    Operator::Subtract => a - b,
                    Operator::Multiply => a * b,
                    Operator::Divide => a / b,
                })
            }
            Expression::Series(aggregate, series) => {
                let at = *place;
                *place += 1;
                let now = self.series.get(at);
                let now = now.filter(|now| !now.is_empty());
                let now = now.ok_or_else(|| NoValue::Missing(series.to_string()))?;
                let values: Vec<f64> = match series.rate {
                    false => now.values().copied().collect(),
                    true => {
                        let before = before.and_then(|(readings, age)| {
                            Some((readings.series.get(at)?, age.as_secs_f64()))
                        });
                        before.map_or(Vec::new(), |(before, seconds)| {
                            rates(now, before, seconds.max(1e-3))
                        })
                    }
                };
                if values.is_empty() {
                    return Err(NoValue::NoRate(series.to_string()));
                }
                made_one(*aggregate, &values).ok_or_else(|| NoValue::Several(series.to_string()))
            }
        }
    }
}

/// Returns all series of all loads, in order.
fn series(loads: &Prometheus) -> Vec<&Series> {
    let loads = loads.loads.iter();
    loads.flat_map(|load| load.expression.series()).collect()
}

fn matches(series: &Series, sample: &Sample<'_>) -> bool {
    series.labels.iter().all(|label| {
        let is_it = sample.labels.get(&label.name) == label.value.as_str();
        is_it == label.equal
    })
}

/// Returns the growth per second of the series that were there before. A series that is less than it was has
/// been counted anew since, and says nothing.
fn rates(now: &HashMap<String, f64>, before: &HashMap<String, f64>, seconds: f64) -> Vec<f64> {
    let rate = |(labels, now): (&String, &f64)| {
        let before = before.get(labels).filter(|before| *before <= now)?;
        Some((now - before) / seconds)
    };
    now.iter().filter_map(rate).collect()
}

/// Makes one value of many; `None` if there are several values where one is wanted. NaN stays NaN.
fn made_one(aggregate: Aggregate, values: &[f64]) -> Option<f64> {
    let count = values.len() as f64;
    let sum: f64 = values.iter().sum();
    let extreme = |better: fn(f64, f64) -> f64| match values.iter().any(|v| v.is_nan()) {
        true => f64::NAN,
        false => values.iter().copied().reduce(better).unwrap_or(f64::NAN),
    };
    Some(match aggregate {
        Aggregate::Only if values.len() > 1 => return None,
        Aggregate::Only | Aggregate::Sum => sum,
        Aggregate::Avg => sum / count,
        Aggregate::Min => extreme(f64::min),
        Aggregate::Max => extreme(f64::max),
        Aggregate::Count => count,
    })
}

/// Reason why there is no page.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("{0}")]
    Files(String),
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("response code {0}")]
    Code(u16),
    #[error("the answer is not text")]
    NotText,
    #[error(transparent)]
    Refused(#[from] Refused),
}

impl FetchError {
    fn fate(&self) -> ReportOutcome {
        match self {
            FetchError::Ask(AskError::Connect(_) | AskError::Tls(_)) | FetchError::Files(_) => {
                ReportOutcome::Unreachable
            }
            FetchError::Timeout(_) => ReportOutcome::TimedOut,
            FetchError::Ask(AskError::TooLong(_)) => ReportOutcome::TooLong,
            FetchError::Code(_) => ReportOutcome::Failed,
            _ => ReportOutcome::Malformed,
        }
    }
}

/// Location and settings that a task works with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    location: ReportedLocation,
    config: Arc<Prometheus>,
    /// Samples that are older are none.
    max_age: Duration,
}

/// Key of a task: the location that it asks for, and the URL. Groups may want different things of the same
/// page; then the number tells their tasks apart.
type Key = (Arc<str>, Url, usize);

/// Exporters of metrics.
pub(crate) struct Exporters;

impl Source for Exporters {
    const ORIGIN: Origin = Origin("prometheus");
    type Key = Key;
    type Target = Target;

    fn tls(sources: &Sources) -> Option<ClientTls> {
        sources.prometheus.as_ref()?.client_tls()
    }

    fn want(group: &PolledGroup, wanted: &mut SourceTargets<Key, Target>) {
        let Some(config) = &group.config.sources.prometheus else {
            return;
        };
        for member in group.members() {
            let Some(url) = config.url.expand(member.address.socket(), &member.name) else {
                continue;
            };
            let target = Target {
                location: ReportedLocation(Arc::clone(&member.location)),
                config: Arc::clone(config),
                max_age: group.config.settings.load_max_age,
            };
            for number in 0.. {
                let key = (Arc::clone(member.location.name()), url.clone(), number);
                match wanted.get(&key) {
                    Some(known) if *known != target => continue,
                    Some(_) => {}
                    None => wanted.add_target(group, key, target, url.to_string()),
                }
                break;
            }
        }
    }

    async fn ask(context: Context, (_, url, _): Key, target: Target, journal: ReportLog) {
        fetch_forever(context, url, target, journal).await;
    }
}

async fn fetch_forever(context: Context, url: Url, target: Target, mut journal: ReportLog) {
    let (clock, permits) = (context.manager.clock(), context.permits);
    let config = &target.config;
    poll::wait_to_begin(config.interval).await;
    let mut before: Option<(Readings, Instant)> = None;
    let mut tls = config.client_tls().map(Current::new);
    loop {
        let started = Instant::now();
        let fetched = {
            let _permit = permits.acquire().await;
            let fetch = fetch(&url, tls.as_mut(), config, target.max_age);
            match timeout(config.timeout, fetch).await {
                Ok(fetched) => fetched,
                Err(_) => Err(FetchError::Timeout(config.timeout)),
            }
        };
        match fetched {
            Ok((readings, at)) => {
                let earlier = before
                    .as_ref()
                    .map(|(readings, then)| (readings, at.duration_since(*then)));
                let loads = readings.loads_since(config, earlier);
                report(
                    &loads,
                    &target,
                    clock.now(),
                    earlier.is_none(),
                    &mut journal,
                );
                before = Some((readings, at));
            }
            Err(error) => journal.note_fate(error.fate(), Some(&error)),
        }
        poll::pause(config.interval, started).await;
    }
}

/// Reports the loads that have a value, and notes what is wrong with the others.
fn report(
    loads: &[(LoadId, Result<f64, NoValue>)],
    target: &Target,
    now: evenkeel_core::time::Instant,
    is_first: bool,
    journal: &mut ReportLog,
) {
    let mut values = Vec::with_capacity(loads.len());
    let mut wrong: Option<(ReportOutcome, String)> = None;
    for ((load, value), config) in loads.iter().zip(&target.config.loads) {
        let (fate, why) = match value {
            Ok(value) => match LoadValue::new(*value) {
                Ok(value) => {
                    values.push((*load, value));
                    continue;
                }
                Err(error) => (ReportOutcome::BadValue, error.to_string()),
            },
            // Nothing is wrong: a rate takes two pages, and a load that is optional may be missing.
            Err(NoValue::NoRate(_)) if is_first => continue,
            Err(NoValue::Missing(_)) if config.optional => continue,
            Err(error @ NoValue::Several(_)) => (ReportOutcome::Malformed, error.to_string()),
            Err(error) => (ReportOutcome::Missing, error.to_string()),
        };
        journal.count(fate);
        wrong.get_or_insert((fate, format!("load {load}: {why}")));
    }
    if !values.is_empty() {
        match target.location.0.report_each(&values, now) {
            0 => journal.count(ReportOutcome::Taken),
            refused => {
                journal.count(ReportOutcome::TooManyLoads);
                wrong.get_or_insert_with(|| {
                    let why =
                        format!("the location refused {refused} of the loads: {TooManyLoads}");
                    (ReportOutcome::TooManyLoads, why)
                });
            }
        }
    }
    match wrong {
        Some((fate, why)) => journal.log_fate(fate, Some(&why)),
        None => journal.log_fate(ReportOutcome::Taken, None),
    }
}

/// Fetches a page; answers what was read, and when it came.
async fn fetch(
    url: &Url,
    tls: Option<&mut Current>,
    config: &Prometheus,
    max_age: Duration,
) -> Result<(Readings, Instant), FetchError> {
    let tls = tls.map(Current::reload_client).transpose();
    let tls = tls.map_err(|problems| FetchError::Files(one_line(&problems)))?;
    let authority = url.authority();
    let question = Question {
        method: "GET",
        target: &url.path,
        authority: &authority,
        fields: &[
            ("User-Agent", "evenkeel"),
            ("Accept", "text/plain;version=0.0.4"),
        ],
        body: None,
    };
    let limits = Limits {
        head: MAX_HEAD,
        body: config.max_bytes,
    };
    let whom = ServerTarget {
        host: &url.host,
        port: url.port,
        tls: tls.as_ref(),
    };
    let answer = client::ask_server(whom, question, limits, |code| code == 200).await?;
    let at = Instant::now();
    if answer.code != 200 {
        return Err(FetchError::Code(answer.code));
    }
    let format = Format::from_media_type(&answer.media_type);
    let page = String::from_utf8(answer.body).map_err(|_| FetchError::NotText)?;
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let not_before = since_1970.unwrap_or_default().saturating_sub(max_age);
    let not_before = i64::try_from(not_before.as_millis()).unwrap_or(i64::MAX);
    Ok((Readings::from_page(&page, format, config, not_before)?, at))
}

#[cfg(test)]
mod tests {
    use evenkeel_manager::{Manager, config};
    use evenkeel_net::Clock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Returns the configuration of two members at one location, and of one that is elsewhere; `port` is the
    /// port of the exporter.
    fn config_of(loads: &str, port: u16) -> config::Config {
        let text = format!(
            "[group.g]\nmembers = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\n\
             [group.g.prometheus]\nurl = \"http://{{host}}:{port}/metrics\"\ninterval = \"100ms\"\n{loads}"
        );
        config::parse("t", &text).unwrap()
    }

    fn wanted(loads: &str) -> Arc<Prometheus> {
        config_of(loads, 9)
            .groups
            .remove(0)
            .into_inner()
            .sources
            .prometheus
            .unwrap()
    }

    type Values = Vec<(LoadId, Result<f64, NoValue>)>;

    /// Returns the values of `loads` after these pages, two seconds apart.
    fn values(loads: &str, pages: &[&str]) -> Values {
        let wanted = wanted(loads);
        let mut before: Option<Readings> = None;
        let mut values = Vec::new();
        for page in pages {
            let readings = Readings::from_page(page, Format::Text, &wanted, 1000).unwrap();
            let earlier = before.as_ref().map(|then| (then, Duration::from_secs(2)));
            values = readings.loads_since(&wanted, earlier);
            before = Some(readings);
        }
        values
    }

    /// Returns the only load.
    fn value(expression: &str, pages: &[&str]) -> Result<f64, NoValue> {
        values(&format!("loads = {{ cpu = '{expression}' }}"), pages)
            .remove(0)
            .1
    }

    #[test]
    fn gauges_are_made_one() {
        let page = "a{x=\"1\"} 1\na{x=\"2\",y=\"z\"} 2\na{x=\"3\"} 6\nb 0.5\nc NaN\nc{x=\"1\"} 1\n";
        for (expression, expected) in [
            ("sum(a)", 9.0),
            ("avg(a)", 3.0),
            ("min(a)", 1.0),
            ("max(a)", 6.0),
            ("count(a)", 3.0),
            ("b", 0.5),
            ("(1 - b) * 4 / 8 + 1", 1.25),
            (r#"a{x="2"}"#, 2.0),
            (r#"sum(a{x!="2"})"#, 7.0),
            (r#"sum(a{y=""})"#, 7.0),
            (r#"a{x!="1",y!=""}"#, 2.0),
        ] {
            assert_eq!(value(expression, &[page]), Ok(expected), "{expression}");
        }
        let missing = |of: &str| Err(NoValue::Missing(of.to_owned()));
        assert_eq!(value("d", &[page]), missing("d"));
        assert_eq!(
            value(r#"1 - max(a{x="9"})"#, &[page]),
            missing(r#"a{x="9"}"#)
        );
        assert_eq!(value("a", &[page]), Err(NoValue::Several("a".into())));
        // Nothing that is not a number gets lost in a maximum.
        for expression in ["max(c)", "min(c)", "sum(c)", "b / 0 - b / 0"] {
            assert!(value(expression, &[page]).unwrap().is_nan(), "{expression}");
        }
    }

    #[test]
    fn counters_grow() {
        let first = "c{x=\"1\"} 10\nc{x=\"2\"} 20\n";
        let second = "c{x=\"1\"} 11\nc{x=\"2\"} 26\nc{x=\"3\"} 1000\n";
        assert_eq!(
            value("sum(rate(c))", &[first]),
            Err(NoValue::NoRate("c".into()))
        );
        assert_eq!(
            value("sum(rate(c))", &[first, second]),
            Ok(3.5),
            "new ones wait"
        );
        assert_eq!(value("max(rate(c))", &[first, second]), Ok(3.0));
        // One was counted anew.
        let third = "c{x=\"1\"} 13\nc{x=\"2\"} 2\n";
        assert_eq!(value("sum(rate(c))", &[first, second, third]), Ok(1.0));
        let all_anew = "c{x=\"1\"} 0\nc{x=\"2\"} 0\n";
        let unknown = Err(NoValue::NoRate("c".into()));
        assert_eq!(value("sum(rate(c))", &[first, all_anew]), unknown);
        assert_eq!(
            value("sum(rate(c))", &[first, "b 1"]),
            Err(NoValue::Missing("c".into()))
        );
        // A CPU cannot have been idle for more than all of the time.
        let idle = ["c 0", "c 2.1"];
        assert_eq!(value("1 - rate(c)", &idle), Ok(0.0));
        assert_eq!(value("1 - c", &idle), Ok(1.0 - 2.1), "that is a mistake");
    }

    #[test]
    fn old_news_and_twins_are_refused() {
        let wanted = wanted("loads = { cpu = \"max(a)\" }");
        let read = |page: &str| {
            let readings = Readings::from_page(page, Format::Text, &wanted, 1000)?;
            Ok(readings.loads_since(&wanted, None).remove(0).1)
        };
        assert_eq!(read("a{x=\"1\"} 1 999\na{x=\"2\"} 2 1000"), Ok(Ok(2.0)));
        let gone = Err(NoValue::Missing("a".into()));
        assert_eq!(read("a 1 999"), Ok(gone));
        assert_eq!(read("a 1\na 1"), Err(Refused::Twice));
        assert_eq!(read("b 1\nb 1\na 1"), Ok(Ok(1.0)), "it is not looked at");
        let half = Refused::Invalid(InvalidPage { line: 2 });
        assert_eq!(read("a 1\na{x=\"2\"} "), Err(half));
    }

    #[test]
    fn the_preset_reads_a_page_of_the_node_exporter() {
        let page = |idle: f64, io: f64| {
            format!(
                "node_cpu_seconds_total{{cpu=\"0\",mode=\"idle\"}} {idle}\n\
                 node_cpu_seconds_total{{cpu=\"1\",mode=\"idle\"}} 1e5\n\
                 node_cpu_seconds_total{{cpu=\"0\",mode=\"user\"}} 7\n\
                 node_memory_MemAvailable_bytes 2e9\nnode_memory_MemTotal_bytes 8e9\n\
                 node_procs_running 3\nnode_disk_io_time_seconds_total{{device=\"a\"}} {io}\n\
                 node_disk_io_time_seconds_total{{device=\"b\"}} 0\n"
            )
        };
        let (first, second) = (page(100.0, 5.0), page(101.0, 6.5));
        let values = values("preset = \"node_exporter\"", &[&first, &second]);
        let known = values
            .iter()
            .filter_map(|(load, value)| Some((*load, value.clone().ok()?)));
        assert_eq!(
            known.collect::<Vec<_>>(),
            [
                (LoadId::CPU, 0.75),
                (LoadId::MEMORY, 0.75),
                (LoadId::RUN_QUEUE, 1.5),
                (LoadId::DISK, 0.75)
            ]
        );
    }

    #[test]
    fn presets_read_pages_of_engines() {
        let both = |name: &str, values: [f64; 2]| {
            let [first, second] = values;
            format!("# TYPE {name} gauge\n{name}{{e=\"0\"}} {first}\n{name}{{e=\"1\"}} {second}\n")
        };
        let of_kind = |kind: &str, value: f64| {
            format!(
                "nv_trt_llm_request_metrics{{model=\"m\",request_type=\"{kind}\",version=\"1\"}} {value}\n"
            )
        };
        let block =
            "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\",model=\"m\"} 0.5\n";
        let usual = |names: [&str; 2], cache: &str| {
            let [waiting, running] = names;
            let cache = both(cache, [0.5, 0.25]);
            both(waiting, [2.0, 1.0]) + &both(running, [4.0, 0.0]) + &cache
        };
        let pages = [
            (
                "vllm",
                usual(
                    ["vllm:num_requests_waiting", "vllm:num_requests_running"],
                    "vllm:kv_cache_usage_perc",
                ),
            ),
            (
                "sglang",
                usual(
                    ["sglang:num_queue_reqs", "sglang:num_running_reqs"],
                    "sglang:token_usage",
                ),
            ),
            (
                "trtllm_serve",
                usual(
                    ["trtllm_num_requests_waiting", "trtllm_num_requests_running"],
                    "trtllm_kv_cache_utilization",
                ),
            ),
            (
                "triton",
                of_kind("waiting", 3.0)
                    + &of_kind("scheduled", 4.0)
                    + &of_kind("max", 64.0)
                    + block,
            ),
            (
                "tgi",
                "tgi_queue_size 3\ntgi_batch_current_size 4\n".to_owned(),
            ),
            (
                "llama_cpp",
                "llamacpp:requests_deferred 3\nllamacpp:requests_processing 4\n".to_owned(),
            ),
        ];
        for (preset, page) in &pages {
            let values = values(&format!("preset = \"{preset}\""), &[page]);
            let found: Vec<_> = values
                .iter()
                .filter_map(|(load, value)| Some((*load, value.clone().ok()?)))
                .collect();
            let queue = [(LoadId::WAITING_REQUESTS, 3.0), (LoadId::IN_FLIGHT, 7.0)];
            assert_eq!(found.get(..2), Some(&queue[..]), "{preset}");
            let has_cache = !matches!(*preset, "tgi" | "llama_cpp");
            let cache = has_cache.then_some((LoadId::UTILIZATION, 0.5));
            assert_eq!(found.get(2).copied(), cache, "{preset}");
        }
    }

    async fn page(bytes: &[u8], max_bytes: usize) -> Result<Vec<f64>, FetchError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut wanted = Arc::unwrap_or_clone(wanted("loads = { cpu = \"a\" }"));
        wanted.max_bytes = max_bytes;
        let url = Url {
            host: "127.0.0.1".into(),
            port: listener.local_addr().unwrap().port(),
            is_secure: false,
            path: "/m?x=1".into(),
        };
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                assert!(stream.read_buf(&mut request).await.unwrap() > 0);
            }
            assert!(request.starts_with(b"GET /m?x=1 HTTP/1.1\r\nHost: 127.0.0.1:"));
            // Whoever asks may have seen enough and be gone.
            let _ = stream.write_all(bytes).await;
        };
        let (fetched, ()) = tokio::join!(fetch(&url, None, &wanted, Duration::from_secs(1)), serve);
        let (readings, _) = fetched?;
        let loads = readings.loads_since(&wanted, None).into_iter();
        Ok(loads.filter_map(|(_, value)| value.ok()).collect())
    }

    #[tokio::test]
    async fn pages_are_fetched_whole() {
        for (answer, expected) in [
            ("Content-Length: 4\r\n\r\na 1\n", 1.0),
            ("Content-Length: 4\r\n\r\na 1\nrest", 1.0),
            (
                "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n3\r\n 2\n\r\n0\r\n\r\n",
                2.0,
            ),
            ("\r\na 3", 3.0),
        ] {
            let answer = format!("HTTP/1.1 200 OK\r\n{answer}");
            assert_eq!(
                page(answer.as_bytes(), 4).await.unwrap(),
                [expected],
                "{answer}"
            );
        }
        for (answer, fate) in [
            (
                "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
                ReportOutcome::Failed,
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na 1\n",
                ReportOutcome::Malformed,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na 1\n\r\n",
                ReportOutcome::Malformed,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na 1\nx",
                ReportOutcome::Malformed,
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\na 1 \n",
                ReportOutcome::TooLong,
            ),
            ("HTTP/1.1 200 OK\r\n\r\n<html>", ReportOutcome::TooLong),
            ("HTTP/1.1 200 OK\r\n\r\n<a>", ReportOutcome::Malformed),
            ("SSH-2.0-x\r\n", ReportOutcome::Malformed),
            ("", ReportOutcome::Malformed),
        ] {
            let refused = page(answer.as_bytes(), 4).await.unwrap_err();
            assert_eq!(refused.fate(), fate, "{answer}: {refused}");
        }
        let binary = page(b"HTTP/1.1 200 OK\r\n\r\n\xff", 4).await.unwrap_err();
        assert!(matches!(binary, FetchError::NotText));
        let endless = vec![b'x'; 2 * MAX_HEAD];
        assert!(page(&endless, 4).await.is_err());
    }

    #[tokio::test]
    async fn members_of_one_location_are_asked_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let manager = Manager::new(Clock::start(), Arc::new(()));
        let loads = "loads = { cpu = \"a\", 7 = \"b\", memory = \"nothing\" }";
        manager.apply_config(config_of(loads, port)).await.unwrap();
        let following = tokio::spawn(crate::run(Arc::clone(&manager)));
        let mut asked = 0;
        let handle = manager.handles().remove(0);
        let count = |fate| handle.reports.count_of(Exporters::ORIGIN, fate);
        while count(ReportOutcome::Taken) < 3 {
            let (mut stream, _) = listener.accept().await.unwrap();
            asked += 1;
            let answer = b"HTTP/1.1 200 OK\r\n\r\na 0.25\nb -1\n";
            stream.write_all(answer).await.unwrap();
            // It must be read, or the end of the connection is a reset.
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
        }
        // A second task would have asked as often as the first.
        assert!(asked <= 4, "{asked}");
        let loads = manager.status().locations.remove(0).loads;
        assert_eq!(
            loads.len(),
            1,
            "the others have no value that counts: {loads:?}"
        );
        assert_eq!((&*loads[0].id, loads[0].value), ("cpu", 0.25));
        assert!(count(ReportOutcome::BadValue) >= 3 && count(ReportOutcome::Missing) >= 3);
        following.abort();
    }
}
