//! Advice from a log of real requests: plays the same requests with other strategies and other numbers of members, and
//! says which of them would have been better, and how sure that is.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::strategy::{Values, find};
use evenkeel_manager::config::scenario::{self, Discipline, Distribution, Model};
use evenkeel_manager::config::{
    self, Config, Errors, GroupConfig, MAX_FILE_SIZE, MemberConfig, Problem, SourcePosition,
    read_file,
};
use serde_json::{Value, json};

use super::plan::{Plan, Point, group_of};
use super::statistics::{FIGURES, Mean};
use super::study::{Learnt, WORTH, learn_group};
pub use super::study::{Question, Study};
use super::thresholds::{thresholds_of, with_threshold};
use super::{Results, Unit};
use crate::log::Log;

/// Default number of runs of each world.
pub const SEEDS: usize = 5;

/// Relative difference of response times from which a forecast is called wrong.
const WRONG: f64 = 0.25;

/// Factor by which thresholds are lowered and raised.
const FURTHER: f64 = 1.5;

/// Strategies that are tried beside the configured one: strategies that need neither load reports nor keys.
const STRATEGIES: [&str; 5] = [
    "adaptive",
    "least_request",
    "peak_ewma",
    "round_robin",
    "random",
];

/// Advice that results from the runs.
#[derive(Clone, Debug)]
pub struct Advice {
    /// Recommendations, in sentences.
    pub advice: Vec<String>,
    /// Agreement of the log with the forecast for the unchanged configuration, in a sentence.
    pub agreement: String,
    /// Index of the recommended world.
    pub best: usize,
}

/// Makes the plan of the runs for the configuration in the file at `path`.
///
/// # Errors
///
/// All faults of the configuration, or the reason for which the log says nothing about it.
pub fn make_plan(path: &Path, log: &Log, question: &Question<'_>) -> Result<(Plan, Study), Errors> {
    let file = path.display().to_string();
    let fail = |message: String| {
        let place = SourcePosition {
            file: file.clone(),
            ..SourcePosition::default()
        };
        Errors {
            file: file.clone(),
            problems: vec![place.problem(message)],
            omitted: 0,
        }
    };
    let failed = |problems: Vec<Problem>| Errors {
        file: file.clone(),
        problems,
        omitted: 0,
    };
    let text = read_file(path, MAX_FILE_SIZE).map_err(|error| fail(format!("{file}: {error}")))?;
    let mut config = config::parse_with(&file, &text, &[])?;
    let mut world = scenario::parse(&file, "config = \"x\"\n", &[])?;
    world.group = question.group.map(str::to_owned);
    check_group(question, &config).map_err(&fail)?;
    let group = group_of(&world, &mut config).map_err(failed)?.clone();
    let names: Vec<String> = group.members.iter().map(MemberConfig::shown_name).collect();
    let learnt = learn_group(log, &config, &group, &names, question).map_err(&fail)?;
    let mut study = learnt.study.clone();
    set_world(&mut world, &learnt);
    let thresholds = thresholds_of(&group, &learnt.replay, &mut study.unknown);
    study.thresholds = thresholds.iter().map(|(name, _)| *name).collect();
    world.reports = (!thresholds.is_empty()).then(scenario::Reports::default);
    let changes = list_changes(&config, &group, thresholds);
    let mut plan = Plan {
        file: file.clone(),
        keys: vec!["change".into()],
        points: Vec::new(),
        seed: u64::from(question.seed.unwrap_or(1)),
        seeds: question.seeds.unwrap_or(SEEDS),
        warnings: Vec::new(),
    };
    let replay = Arc::new(learnt.replay);
    for Change {
        name,
        config,
        count,
    } in changes
    {
        let mut world = world.clone();
        world.members.count = (count != names.len()).then_some(count);
        world.member = (names.iter().zip(&learnt.models).take(count))
            .map(|(name, model)| (name.clone(), SourcePosition::default(), Model { ..*model }))
            .map(|(name, place, mut model)| {
                model.concurrency = learnt.concurrency;
                (name, place, model)
            })
            .collect();
        let (mut point, _) = Point::new(world, config, vec![name]).map_err(failed)?;
        point.replay = Some(Arc::clone(&replay));
        plan.points.push(point);
    }
    Ok((plan, study))
}

/// Refuses a question that does not name the group of the log.
fn check_group(question: &Question<'_>, config: &Config) -> Result<(), String> {
    let names: Vec<&str> = config.groups.iter().map(|group| &*group.name).collect();
    let all = names.join(", ");
    match question.group {
        Some(name) if !names.is_empty() && !names.contains(&name) => Err(format!(
            "--group {name}: the configuration has no such group, but {all}"
        )),
        None if names.len() > 1 => {
            let message = "the configuration has several groups: name the group of the log with --group NAME, one of";
            Err(format!("{message} {all}"))
        }
        _ => Ok(()),
    }
}

/// Sets the length, the load and the members of a world to those of the log.
fn set_world(world: &mut scenario::Scenario, learnt: &Learnt) {
    // The log's times include the way to the member.
    world.network = Duration::ZERO;
    world.duration = Duration::from_nanos(learnt.replay.length).max(Duration::from_millis(1));
    world.service.distribution = Distribution::Constant;
    world.service.mean = Duration::from_nanos(learnt.mean as u64).max(Duration::from_nanos(1));
    let seconds = world.duration.as_secs_f64();
    world.load.rate = Some((learnt.replay.arrivals.len() as f64 / seconds) as f32);
    world.load.overload = true;
    world.members.model.concurrency = learnt.concurrency;
    world.members.model.discipline = Discipline::Fifo;
}

/// A change of the configuration that is tried.
struct Change {
    name: String,
    config: Config,
    /// Number of members.
    count: usize,
}

/// Lists the changes that are tried, the unchanged configuration first.
fn list_changes(
    config: &Config,
    group: &GroupConfig,
    thresholds: Vec<(&'static str, f64)>,
) -> Vec<Change> {
    let members = group.members.len();
    let mut all = Vec::new();
    let mut add = |name: String, config: Config, count: usize| {
        all.push(Change {
            name,
            config,
            count,
        });
    };
    let with = |change: &dyn Fn(&mut GroupConfig)| {
        let mut config = config.clone();
        { config.groups.iter_mut() }
            .filter(|of| of.name == group.name)
            .for_each(|group| change(group));
        config
    };
    add("as it is".into(), config.clone(), members);
    for name in STRATEGIES {
        if let Some(kind) = find(name).filter(|_| name != group.strategy.kind().name) {
            let changed = with(&|of| {
                of.strategy = Values::defaults(kind);
                of.settings.late_binding = None;
            });
            add(format!("strategy = {name}"), changed, members);
        }
    }
    for (name, value) in thresholds {
        for value in [value / FURTHER, value * FURTHER] {
            // Two digits.
            let value: f64 = format!("{value:.1e}").parse().unwrap_or(value);
            if let Some(changed) = with_threshold(group, name, value) {
                let changed = with(&|of| *of = changed.clone());
                add(format!("{name} = {value}"), changed, members);
            }
        }
    }
    let late = group.settings.late_binding;
    let late = !late.unwrap_or(group.strategy.kind().binds_late);
    let changed = with(&|of| of.settings.late_binding = Some(late));
    add(format!("late_binding = {late}"), changed, members);
    if members > 1 {
        let fewer = members - 1;
        add(format!("{fewer} members"), config.clone(), fewer);
    }
    for count in [members + 1, members + 2] {
        add(format!("{count} members"), config.clone(), count);
    }
    all
}

/// Index of the figure with that name.
fn figure(name: &str) -> usize {
    FIGURES
        .iter()
        .position(|figure| figure.name == name)
        .unwrap_or(0)
}

/// The results, with the questions that the advice puts to them.
struct Judge<'r> {
    plan: &'r Plan,
    results: &'r [Results],
    study: &'r Study,
}

impl<'r> Judge<'r> {
    /// Values of a figure, run by run.
    fn values(&self, world: usize, figure: usize) -> Vec<f64> {
        let runs = self.results.get(world).map_or(&[][..], |of| &of.runs[..]);
        let values = runs.iter().map(|run| run.figures.get(figure).copied());
        values.flatten().collect()
    }

    fn mean(&self, world: usize, name: &str) -> f64 {
        Mean::of_values(&self.values(world, figure(name))).mean
    }

    /// Gain of a world, run by run with the same requests: logarithm of the ratio.
    fn gain(&self, world: usize) -> Mean {
        let p99 = figure("p99_ms");
        let pairs = { self.values(0, p99).into_iter() }.zip(self.values(world, p99));
        let ratios = pairs.map(|(before, after)| libm::log(before.max(1e-6) / after.max(1e-6)));
        Mean::of_values(&ratios.collect::<Vec<_>>())
    }

    fn has_same_members(&self, world: usize) -> bool {
        self.plan.points[world].members.len() == self.study.members
    }

    fn is_sound(&self, world: usize) -> bool {
        self.mean(world, "failed_share") <= self.mean(0, "failed_share") + 0.001
    }

    fn name(&self, world: usize) -> &'r str {
        let values = &self.plan.points[world].values;
        values.first().map_or("", String::as_str)
    }

    fn show_p99(&self, world: usize) -> String {
        Unit::Millis.format_value(self.mean(world, "p99_ms"))
    }

    /// Value of a figure in the first run, which has the log's own requests.
    fn forecast(&self, name: &str) -> f64 {
        let values = self.values(0, figure(name));
        values.first().copied().unwrap_or(0.0)
    }

    /// True if the forecast for the unchanged configuration is not what the log has.
    fn disagrees(&self) -> bool {
        let is_off = |forecast: f64, log: f64| {
            libm::fabs(libm::log(forecast.max(1e-6) / log.max(1e-6))) > libm::log(1.0 + WRONG)
        };
        self.study.measured.is_some_and(|(log50, log99)| {
            is_off(self.forecast("p50_ms"), log50) || is_off(self.forecast("p99_ms"), log99)
        })
    }

    fn describe_agreement(&self) -> String {
        let Some((log50, log99)) = self.study.measured else {
            return "The log has no times to hold the forecast against.".to_owned();
        };
        let show = |value: f64| Unit::Millis.format_value(value);
        format!(
            "As it is, p50 {} and p99 {} are forecast; the log has {} and {}. {}",
            show(self.forecast("p50_ms")),
            show(self.forecast("p99_ms")),
            show(log50),
            show(log99),
            match self.disagrees() {
                true =>
                    "THEY DISAGREE by more than 25 %: the model is not your system, and the advice not to be trusted \
                     without a trial.",
                false => "They agree within 25 %.",
            }
        )
    }

    /// Recommends a strategy. Returns the world, 0 to keep the strategy, and the sentence.
    fn choose_strategy(&self) -> (usize, String) {
        let candidates = (1..self.plan.points.len())
            .filter(|world| self.has_same_members(*world) && self.is_sound(*world));
        let best = candidates
            .max_by(|a, b| self.gain(*a).mean.total_cmp(&self.gain(*b).mean))
            .unwrap_or(0);
        let found = self.gain(best);
        if best == 0 || found.mean <= WORTH {
            let sentence = format!(
                "Keep the strategy: no other one lowers the 99th percentile ({}) by {:.0} %.",
                self.show_p99(0),
                WORTH * 100.0
            );
            return (0, sentence);
        }
        let p99 = figure("p99_ms");
        let (before, after) = (self.values(0, p99), self.values(best, p99));
        let wins = before.iter().zip(after).filter(|(a, b)| **a > *b).count();
        let least = found.mean - found.within.unwrap_or(f64::INFINITY);
        let sure = match least {
            _ if self.disagrees() => {
                "That is not sure, as the forecast for what you have disagrees with the log"
            }
            _ if least > WORTH => "That is sure as far as the log goes",
            _ if least > 0.0 => "That is likely",
            _ => "That is not sure: try a longer log, or more --seeds",
        };
        let sentence = format!(
            "{}: the 99th percentile would have been {} instead of {}. {sure}: it was lower in {wins} of {} replays.",
            self.name(best),
            self.show_p99(best),
            self.show_p99(0),
            self.plan.seeds
        );
        (best, sentence)
    }

    fn is_threshold(&self, world: usize) -> bool {
        let changed = self.name(world).split(" = ").next();
        let mut names = self.study.thresholds.iter();
        names.any(|name| Some(*name) == changed)
    }

    fn judge_threshold(&self, world: usize) -> String {
        let change = self.gain(world).mean;
        let judged = match () {
            () if change < -WORTH || !self.is_sound(world) => "would be worse",
            () if change > WORTH => "would help",
            () => "would change little",
        };
        format!(
            "{} {judged}: 99th percentile {} instead of {}, {:.1} load alerts in a replay instead of {:.1}.",
            self.name(world),
            self.show_p99(world),
            self.show_p99(0),
            self.mean(world, "alerts"),
            self.mean(0, "alerts")
        )
    }

    fn judge_count(&self, world: usize) -> String {
        let change = self.gain(world).mean;
        let is_fewer = self.plan.points[world].members.len() < self.study.members;
        let judged = match () {
            () if is_fewer && (change < -WORTH || !self.is_sound(world)) => "would not do",
            () if is_fewer => "would do",
            () if change > WORTH => "would help",
            () => "would change little",
        };
        format!(
            "{} {judged}: 99th percentile {}, {} failed, {} busy.",
            self.name(world),
            self.show_p99(world),
            Unit::Share.format_value(self.mean(world, "failed_share")),
            Unit::Share.format_value(self.mean(world, "utilisation"))
        )
    }
}

/// Derives advice from the results.
pub fn make_advice(plan: &Plan, results: &[Results], study: &Study) -> Advice {
    let judge = Judge {
        plan,
        results,
        study,
    };
    let (best, strategy) = judge.choose_strategy();
    let worlds = 1..plan.points.len();
    let thresholds = worlds.filter(|world| judge.is_threshold(*world));
    let counts = (0..plan.points.len()).filter(|world| !judge.has_same_members(*world));
    let advice = std::iter::once(strategy)
        .chain(thresholds.map(|world| judge.judge_threshold(world)))
        .chain(counts.map(|world| judge.judge_count(world)));
    Advice {
        advice: advice.collect(),
        agreement: judge.describe_agreement(),
        best,
    }
}

/// The advice as sections of titles and sentences.
fn sections<'a>(study: &'a Study, advice: &'a Advice) -> Vec<(&'static str, Vec<&'a str>)> {
    let plain = |all: &'a [String]| all.iter().map(String::as_str).collect::<Vec<_>>();
    let all = vec![
        ("Unreadable lines", plain(&study.unreadable)),
        ("The log", plain(&study.facts)),
        ("Advice", plain(&advice.advice)),
        ("Forecast and log", vec![advice.agreement.as_str()]),
        ("What this log cannot tell", plain(&study.unknown)),
    ];
    all.into_iter()
        .filter(|(_, lines)| !lines.is_empty())
        .collect()
}

/// For a terminal.
pub fn text(study: &Study, advice: &Advice) -> String {
    let section = |(title, lines): (&str, Vec<&str>)| {
        let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
        format!("\n{title}:\n{lines}")
    };
    sections(study, advice).into_iter().map(section).collect()
}

/// A page of results with the advice in front of them.
pub fn to_html(page: &str, study: &Study, advice: &Advice) -> String {
    let section = |(title, lines): (&str, Vec<&str>)| {
        let lines: String = lines
            .iter()
            .map(|line| format!("<li>{}</li>", crate::svg::escaped(line)))
            .collect();
        format!("<h2>{title}</h2>\n<ul>{lines}</ul>\n")
    };
    let all: String = sections(study, advice).into_iter().map(section).collect();
    page.replacen("<h2>Results</h2>", &format!("{all}<h2>Results</h2>"), 1)
}

/// Results for programs, with the advice.
pub fn to_json(results: &str, plan: &Plan, study: &Study, advice: &Advice) -> String {
    let mut all: Value = serde_json::from_str(results).unwrap_or_default();
    if let Some(all) = all.as_object_mut() {
        let best = plan
            .points
            .get(advice.best)
            .and_then(|point| point.values.first());
        let measured = study
            .measured
            .map(|(p50, p99)| json!({ "p50_ms": p50, "p99_ms": p99 }));
        all.insert(
            "advice".into(),
            json!({
                "best": best,
                "advice": advice.advice,
                "agreement": advice.agreement,
                "log": study.facts,
                "measured": measured,
                "cannot_tell": study.unknown,
                "unreadable": study.unreadable,
            }),
        );
    }
    format!("{all:#}\n")
}

#[cfg(test)]
mod tests {
    use evenkeel_core::alert::Threshold;

    use super::*;
    use crate::engine::draw_exponential;
    use crate::experiment::run;
    use crate::log::read;

    const CONFIG: &str = "[rule.web]\nlisten = \"127.0.0.1:8080\"\nstrategy = \"round_robin\"\n\
                          members = [\"a:1\", \"b:1\", \"c:1\"]\n";

    /// A log of members with one worker, of which the last is this many times slower, and the most that any
    /// of its requests waited.
    fn log(slowness: f64, count: usize) -> String {
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut at, mut free) = (0.0_f64, [0.0_f64; 3]);
        let mut text = String::new();
        for turn in 0..count {
            at += draw_exponential(20.0, &mut rng);
            let member = turn % 3;
            let slow = if member == 2 { slowness } else { 1.0 };
            let arrived = at.round();
            free[member] = free[member].max(arrived) + draw_exponential(5.0, &mut rng) * slow;
            let (second, milli) = (arrived as u64 / 1000, arrived as u64 % 1000);
            text += &format!(
                "{{\"time\":\"2026-11-21T00:{:02}:{:02}.{milli:03}Z\",\"rule\":\"web\",\"member\":\"{}:1\",\
                 \"method\":\"GET\",\"target\":\"/a\",\"status\":200,\"response_ms\":{},\"end\":\"complete\"}}\n",
                second / 60,
                second % 60,
                ["a", "b", "c"][member],
                free[member] - arrived,
            );
        }
        text
    }

    fn asked(text: &str) -> Result<(Plan, Study), String> {
        asked_of(CONFIG, text)
    }

    fn asked_of(config: &str, text: &str) -> Result<(Plan, Study), String> {
        use std::sync::atomic::{AtomicU64, Ordering};
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("evenkeel-advice-{}-{count}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, config).unwrap();
        let log = read(text.as_bytes(), None).unwrap();
        let question = Question::default();
        let answer = make_plan(&path, &log, &question).map_err(|errors| errors.to_string());
        std::fs::remove_file(path).unwrap();
        answer
    }

    #[test]
    fn a_slow_member_is_found_and_another_strategy_advised() {
        let (plan, study) = asked(&log(8.0, 8000)).unwrap();
        let results = run(&plan, &|_| ());
        let advice = make_advice(&plan, &results, &study);
        let told = text(&study, &advice);
        let best = &plan.points[advice.best].values[0];
        assert!(best.starts_with("strategy = "), "{told}");
        assert!(advice.advice[0].contains("in 5 of 5 replays"), "{told}");
        assert!(advice.agreement.contains("They agree"), "{told}");
        // Queues taken out: the slow member's service time is 40 ms, and its answers took longer.
        let slow = study
            .facts
            .iter()
            .find(|fact| fact.starts_with("c:1: "))
            .unwrap();
        let millis = slow.split(", ").nth(1).unwrap().split(' ').next().unwrap();
        assert!(
            (millis.parse::<f64>().unwrap() / 40.0 - 1.0).abs() < 0.1,
            "{told}"
        );
        assert!(slow.contains(" 1 at once"), "{told}");
    }

    #[test]
    fn g6_logs_call_members_by_address_or_by_name() {
        let named = CONFIG.replace("\"c:1\"", "{ address = \"c:1\", name = \"s3\" }");
        assert_ne!(named, CONFIG);
        // Evenkeel's log has addresses, HAProxy's the names of its servers.
        let by_address = log(1.0, 3000);
        let by_name = by_address.replace(r#""member":"c:1""#, r#""member":"s3""#);
        for lines in [by_address, by_name] {
            let (plan, study) = asked_of(&named, &lines).unwrap();
            assert_eq!(plan.points[0].members[2], "s3");
            let mut facts = study.facts.iter();
            assert!(
                facts.any(|fact| fact.starts_with("s3: 1000 tries")),
                "{:?}",
                study.facts
            );
        }
    }

    #[test]
    fn failed_tries_count_for_their_members_and_connecting_is_told() {
        let tried = log(1.0, 3000).replace(
            r#""member":"c:1""#,
            r#""member":"a:1","tried":["c:1"],"retries":1,"connect_ms":4.5"#,
        );
        let (plan, study) = asked(&tried).unwrap();
        let told = text(&study, &make_advice(&plan, &run(&plan, &|_| ()), &study));
        let of_member = |name: &str| {
            let mut facts = study.facts.iter();
            facts.find(|fact| fact.starts_with(name)).unwrap().clone()
        };
        let (bad, good) = (of_member("c:1: "), of_member("a:1: "));
        assert!(
            bad.starts_with("c:1: 1000 tries") && bad.ends_with("100.00 % failed."),
            "{told}"
        );
        assert!(
            good.starts_with("a:1: 2000 tries") && good.ends_with(" 0.00 % failed."),
            "{told}"
        );
        assert!(
            told.contains("How long failed tries took: the times of the log begin"),
            "{told}"
        );
        assert!(told.contains("was the opening of connections"), "{told}");
    }

    #[test]
    fn thresholds_are_tried_where_clients_are_bound() {
        let bound = |more: &str| {
            let name =
                "name = \"least_loaded\", reject_threshold = 0.09, critical_threshold = 0.18";
            let rule = CONFIG.replace("\"round_robin\"", &format!("{{ {name} }}"));
            format!("{rule}{more}\n")
        };
        let on_demand = bound("granularity = \"on_demand\"");
        let plain = log(1.0, 3000);
        let mut turn = 0;
        let lines = plain.lines().map(|line| {
            turn += 1;
            let client = format!("{{\"client\":\"192.0.2.1:{}\",", 1000 + turn % 7);
            line.replacen('{', &client, 1) + "\n"
        });
        let connected: String = lines.collect();
        let tried = |config: &str, text: &str| {
            let (plan, study) = asked_of(config, text).unwrap();
            let changes = plan.points.iter().map(|point| point.values[0].clone());
            let changes: Vec<String> = changes.filter(|of| of.contains("threshold")).collect();
            (changes.join(", "), plan, study)
        };
        let (changes, plan, study) = tried(&on_demand, &connected);
        let all = "reject_threshold = 0.06, reject_threshold = 0.14, critical_threshold = 0.12, critical_threshold = 0.27";
        assert_eq!(changes, all);
        let told = text(&study, &make_advice(&plan, &run(&plan, &|_| ()), &study));
        let alerts = |change: &str| {
            let (_, line) = told.split_once(&format!("  {change} ")).unwrap();
            let (_, count) = line.split_once("instead of ").unwrap();
            let (_, count) = count.split_once(", ").unwrap();
            count.split(' ').next().unwrap().parse::<f64>().unwrap()
        };
        let [low, high] = ["critical_threshold = 0.12", "critical_threshold = 0.27"].map(alerts);
        assert!(low > high, "{told}");
        assert!(told.contains("  Loads: the log has none."), "{told}");

        let of_strategy = "reject_threshold = 0.06, reject_threshold = 0.14";
        let (changes, _, study) = tried(&bound(""), &connected);
        assert_eq!(changes, of_strategy);
        assert!(
            study
                .unknown
                .iter()
                .any(|of| of.contains("granularity `per_request`"))
        );
        let (changes, _, study) = tried(&on_demand, &plain);
        assert_eq!(changes, of_strategy);
        assert!(
            study
                .unknown
                .iter()
                .any(|of| of.starts_with("Bound clients: "))
        );
        let relative =
            "granularity = \"on_demand\"\nalert = { threshold = { above_average = 0.5 } }";
        let (changes, plan, _) = tried(&bound(relative), &connected);
        let of_group = "alert.threshold.above_average = 0.33, alert.threshold.above_average = 0.75";
        assert_eq!(changes, format!("{of_strategy}, {of_group}"));
        let changed = |point: &&Point| point.values[0].starts_with("alert.");
        let used = plan.points.iter().filter(changed).map(|point| {
            let config = point.world.config.as_ref().unwrap();
            config.groups[0].settings.alert.threshold
        });
        assert!(used.eq([0.33, 0.75].map(|of| Some(Threshold::AboveAverage(of)))));
        let (changes, _, study) = tried(&bound("load = \"disk\""), &connected);
        assert_eq!(changes, "");
        assert!(
            study
                .unknown
                .iter()
                .any(|of| of.starts_with("Thresholds of loads: "))
        );
    }

    #[test]
    fn equal_members_are_left_as_they_are() {
        let (plan, study) = asked(&log(1.0, 3000)).unwrap();
        let results = run(&plan, &|_| ());
        let told = text(&study, &make_advice(&plan, &results, &study));
        assert!(told.contains("2 members would"), "{told}");
        assert!(told.contains("They agree"), "{told}");
        assert!(
            told.contains("say little about the slowest per cent"),
            "{told}"
        );
    }

    #[test]
    fn a_log_that_says_nothing_is_refused_with_what_to_do() {
        let short = asked(&log(1.0, 20)).unwrap_err();
        assert!(
            short.contains("the log has 20 requests of group \"web\""),
            "{short}"
        );
        let plain =
            "1.1.1.1 - - [29/Feb/2024:12:34:56 +0000] \"GET / HTTP/1.1\" 200 5\n".repeat(60);
        let plain = asked(&plain).unwrap_err();
        assert!(plain.contains("$request_time"), "{plain}");
    }
}
