//! Advice from a log of real requests: plays the same requests with other strategies and other numbers of members, and
//! says which of them would have been better, and how sure that is.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::strategy::{Values, find};
use evenkeel_manager::config::scenario::{self, Discipline, Distribution, Model};
use evenkeel_manager::config::{
    self, Config, Errors, MAX_FILE_SIZE, MemberConfig, Problem, SourcePosition, read_file,
};
use serde_json::{Value, json};

use super::plan::{Plan, Point, group_of};
use super::statistics::{FIGURES, Mean};
pub use super::study::{Question, Study};
use super::study::{WORTH, learn_group};
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
    let names: Vec<&str> = config.groups.iter().map(|group| &*group.name).collect();
    let has = |name: &str| names.contains(&name);
    match question.group {
        Some(name) if !names.is_empty() && !has(name) => {
            let all = names.join(", ");
            return Err(fail(format!(
                "--group {name}: the configuration has no such group, but {all}"
            )));
        }
        None if names.len() > 1 => {
            let all = names.join(", ");
            let message = "the configuration has several groups: name the group of the log with --group NAME, one of";
            return Err(fail(format!("{message} {all}")));
        }
        _ => {}
    }
    let group = group_of(&world, &mut config).map_err(failed)?.clone();
    let names: Vec<String> = group.members.iter().map(MemberConfig::shown_name).collect();
    let learnt = learn_group(log, &config, &group, &names, question).map_err(&fail)?;
    let mut study = learnt.study;
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
    let thresholds = thresholds_of(&group, &learnt.replay, &mut study.unknown);
    study.thresholds = thresholds.iter().map(|(name, _)| *name).collect();
    world.reports = (!thresholds.is_empty()).then(scenario::Reports::default);
    let mut plan = Plan {
        file: file.clone(),
        keys: vec!["change".into()],
        points: Vec::new(),
        seed: u64::from(question.seed.unwrap_or(1)),
        seeds: question.seeds.unwrap_or(SEEDS),
        warnings: Vec::new(),
    };
    let replay = Arc::new(learnt.replay);
    let mut add = |change: String, config: Config, count: usize| -> Result<(), Errors> {
        let mut world = world.clone();
        world.members.count = (count != names.len()).then_some(count);
        world.member = (names.iter().zip(&learnt.models).take(count))
            .map(|(name, model)| (name.clone(), SourcePosition::default(), Model { ..*model }))
            .map(|(name, place, mut model)| {
                model.concurrency = learnt.concurrency;
                (name, place, model)
            })
            .collect();
        let (mut point, _) = Point::new(world, config, vec![change]).map_err(failed)?;
        point.replay = Some(Arc::clone(&replay));
        plan.points.push(point);
        Ok(())
    };
    add("as it is".into(), config.clone(), names.len())?;
    let with = |strategy: Option<Values>, late: Option<bool>| {
        let mut config = config.clone();
        for of in config.groups.iter_mut().filter(|of| of.name == group.name) {
            if let Some(strategy) = &strategy {
                of.strategy = strategy.clone();
                of.settings.late_binding = None;
            }
            if late.is_some() {
                of.settings.late_binding = late;
            }
        }
        config
    };
    for name in STRATEGIES {
        if let Some(kind) = find(name).filter(|_| name != group.strategy.kind().name) {
            let values = Values::defaults(kind);
            add(
                format!("strategy = {name}"),
                with(Some(values), None),
                names.len(),
            )?;
        }
    }
    for (name, value) in thresholds {
        for value in [value / FURTHER, value * FURTHER] {
            // Two digits.
            let value: f64 = format!("{value:.1e}").parse().unwrap_or(value);
            let Some(changed) = with_threshold(&group, name, value) else {
                continue;
            };
            let mut config = config.clone();
            let mut groups = config.groups.iter_mut();
            if let Some(of) = groups.find(|of| of.name == group.name) {
                *of = changed;
            }
            add(format!("{name} = {value}"), config, names.len())?;
        }
    }
    let late = group.settings.late_binding;
    let late = late.unwrap_or(group.strategy.kind().binds_late);
    let change = format!("late_binding = {}", !late);
    add(change, with(None, Some(!late)), names.len())?;
    if names.len() > 1 {
        add(
            format!("{} members", names.len() - 1),
            config.clone(),
            names.len() - 1,
        )?;
    }
    for more in 1..=2 {
        let count = names.len() + more;
        add(format!("{count} members"), config.clone(), count)?;
    }
    Ok((plan, study))
}

/// Index of the figure with that name.
fn figure(name: &str) -> usize {
    FIGURES
        .iter()
        .position(|figure| figure.name == name)
        .unwrap_or(0)
}

/// Derives advice from the results.
pub fn make_advice(plan: &Plan, results: &[Results], study: &Study) -> Advice {
    let (p50, p99, failed) = (figure("p50_ms"), figure("p99_ms"), figure("failed_share"));
    let of = |world: usize, index: usize| -> Vec<f64> {
        let runs = results.get(world).map_or(&[][..], |of| &of.runs[..]);
        runs.iter()
            .filter_map(|run| run.figures.get(index).copied())
            .collect()
    };
    let mean = |world: usize, index: usize| Mean::of_values(&of(world, index)).mean;
    // Gain of a world, run by run with the same requests: logarithm of the ratio.
    let gain = |world: usize| {
        let pairs = of(0, p99).into_iter().zip(of(world, p99));
        let ratios = pairs.map(|(before, after)| libm::log(before.max(1e-6) / after.max(1e-6)));
        Mean::of_values(&ratios.collect::<Vec<_>>())
    };
    let is_same = |world: &usize| plan.points[*world].members.len() == study.members;
    let is_sound = |world: &usize| mean(*world, failed) <= mean(0, failed) + 0.001;
    let candidates = (1..plan.points.len()).filter(is_same).filter(is_sound);
    let best = candidates
        .max_by(|a, b| gain(*a).mean.total_cmp(&gain(*b).mean))
        .unwrap_or(0);
    let found = gain(best);
    let least = found.mean - found.within.unwrap_or(f64::INFINITY);
    let name = |world: usize| plan.points[world].values.first().map_or("", String::as_str);
    let show = |world: usize| Unit::Millis.format_value(mean(world, p99));
    // The first run has the log's own requests.
    let first = |index: usize| of(0, index).first().copied().unwrap_or(0.0);
    let is_off = |forecast: f64, log: f64| {
        libm::fabs(libm::log(forecast.max(1e-6) / log.max(1e-6))) > libm::log(1.0 + WRONG)
    };
    let disagrees = (study.measured)
        .is_some_and(|(log50, log99)| is_off(first(p50), log50) || is_off(first(p99), log99));
    let agreement = match study.measured {
        None => "The log has no times to hold the forecast against.".to_owned(),
        Some((log50, log99)) => format!(
            "As it is, p50 {} and p99 {} are forecast; the log has {} and {}. {}",
            Unit::Millis.format_value(first(p50)),
            Unit::Millis.format_value(first(p99)),
            Unit::Millis.format_value(log50),
            Unit::Millis.format_value(log99),
            match disagrees {
                true =>
                    "THEY DISAGREE by more than 25 %: the model is not your system, and the advice not to be trusted \
                     without a trial.",
                false => "They agree within 25 %.",
            }
        ),
    };
    let mut advice = Vec::new();
    let mut chosen = 0;
    if best > 0 && found.mean > WORTH {
        let wins = of(0, p99)
            .iter()
            .zip(of(best, p99))
            .filter(|(a, b)| **a > *b)
            .count();
        let sure = match least {
            _ if disagrees => {
                "That is not sure, as the forecast for what you have disagrees with the log"
            }
            _ if least > WORTH => "That is sure as far as the log goes",
            _ if least > 0.0 => "That is likely",
            _ => "That is not sure: try a longer log, or more --seeds",
        };
        advice.push(format!(
            "{}: the 99th percentile would have been {} instead of {}. {sure}: it was lower in {wins} of {} replays.",
            name(best),
            show(best),
            show(0),
            plan.seeds
        ));
        chosen = best;
    } else {
        advice.push(format!(
            "Keep the strategy: no other one lowers the 99th percentile ({}) by {:.0} %.",
            show(0),
            WORTH * 100.0
        ));
    }
    let is_threshold = |world: &usize| {
        let mut names = study.thresholds.iter();
        let changed = name(*world).split(" = ").next();
        names.any(|name| Some(*name) == changed)
    };
    let alerts = |world: usize| mean(world, figure("alerts"));
    for world in (1..plan.points.len()).filter(is_threshold) {
        let change = gain(world).mean;
        let judged = match () {
            () if change < -WORTH || !is_sound(&world) => "would be worse",
            () if change > WORTH => "would help",
            () => "would change little",
        };
        advice.push(format!(
            "{} {judged}: 99th percentile {} instead of {}, {:.1} load alerts in a replay instead of {:.1}.",
            name(world),
            show(world),
            show(0),
            alerts(world),
            alerts(0)
        ));
    }
    for (world, point) in plan
        .points
        .iter()
        .enumerate()
        .filter(|(world, _)| !is_same(world))
    {
        let change = gain(world).mean;
        let is_fewer = point.members.len() < study.members;
        let (failed, busy) = (
            mean(world, failed),
            Unit::Share.format_value(mean(world, figure("utilisation"))),
        );
        let judged = match () {
            () if is_fewer && (change < -WORTH || !is_sound(&world)) => "would not do",
            () if is_fewer => "would do",
            () if change > WORTH => "would help",
            () => "would change little",
        };
        advice.push(format!(
            "{} {judged}: 99th percentile {}, {} failed, {busy} busy.",
            name(world),
            show(world),
            Unit::Share.format_value(failed)
        ));
    }
    Advice {
        advice,
        agreement,
        best: chosen,
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
