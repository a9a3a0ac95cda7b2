//! Results as a page: one file, with plots, without scripts or anything from elsewhere.

use std::fmt::Write;

use super::plan::{Plan, Point};
use super::statistics::{FIGURES, Mean};
use super::{Course, Results};
use crate::requests::MemberSample;
use crate::svg::{Line, Plot, Scale, escaped};

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:1360px;margin:2em auto;padding:0 1.5em;\
color:#222;background:#fff}h1{font-size:1.5em;margin-bottom:.2em;overflow-wrap:anywhere}h2{font-size:1.2em;margin-top:2em}\
h3{font-size:1em;margin:0 0 .4em}.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(520px,100%),1fr));\
gap:1.6em 2em}figure{margin:0}figcaption{color:#555;font-size:.87em}svg{width:100%;height:auto;display:block}\
svg text{font:11px system-ui,sans-serif;fill:#444}.grid{stroke:#e6e6e6;fill:none}.line{fill:none;\
stroke-width:1.6;stroke-linejoin:round}.mark{stroke:#c00;stroke-dasharray:3 3;fill:none;opacity:.45}\
.legend{margin:.2em 0 0 3.6em;font-size:.85em}.legend span{margin-right:1.1em;white-space:nowrap}\
.legend i{display:inline-block;width:1.1em;height:.22em;margin-right:.4em;vertical-align:middle}\
table{border-collapse:collapse;font-size:.9em;display:block;overflow-x:auto}th,td{padding:.25em .8em;\
text-align:right;white-space:nowrap;border-bottom:1px solid #e6e6e6}th{color:#555;font-weight:600}\
th.l,td.l{text-align:left}.warning{background:#fff4d6;padding:.5em .8em;border-left:4px solid #e69f00}\
details{margin:1em 0}summary{cursor:pointer;font-weight:600;margin-bottom:.8em}\
:root{color-scheme:light dark}@media(prefers-color-scheme:dark){body{color:#ddd;background:#16181b}\
figcaption,th{color:#aaa}svg text{fill:#bbb}.grid{stroke:#34373b}th,td{border-color:#34373b}\
svg [stroke],svg [fill],.legend i{filter:brightness(1.3)}.mark{stroke:#f66}\
.warning{background:#3a2f10}}@media(max-width:600px){body{padding:0 .8em}.legend{margin-left:0}}";

/// The most worlds that are shown with their courses.
const COURSES: usize = 24;

/// The most events that are listed.
const EVENTS: usize = 200;

/// The page.
pub fn html_page(plan: &Plan, results: &[Results]) -> String {
    let title = escaped(&plan.file);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n"
    );
    if let Some(point) = plan.points.first() {
        let length = point.world.length.unwrap_or_default();
        let _ = writeln!(
            page,
            "<p>Group <b>{}</b>, {} members, {} of <code>evenkeel sim</code>, {length:?} of virtual time each; \
             the first tenth is not measured.</p>",
            escaped(&point.group),
            point.members.len(),
            match plan.seeds {
                1 => format!("one run (seed {})", plan.seed),
                more => format!("{more} runs (seeds from {})", plan.seed),
            },
        );
    }
    for warning in &plan.warnings {
        let warning = escaped(&warning.to_string());
        let _ = writeln!(page, "<p class=\"warning\">{warning}</p>");
    }
    let means: Vec<Vec<Mean>> = results.iter().map(|of| Mean::of_runs(&of.runs)).collect();
    page += "<h2>Results</h2>\n";
    page += &table(plan, &means);
    if plan.seeds > 1 {
        page +=
            "<p>± is the 95 % confidence interval of the mean over the seeds (Student's t).</p>\n";
    }
    if !plan.keys.is_empty() {
        page += "<h2>By parameter</h2>\n<div class=\"plots\">\n";
        page += &sweeps(plan, &means);
        page += "</div>\n";
    }
    for (index, (point, results)) in plan.points.iter().zip(results).enumerate().take(COURSES) {
        let heading = heading(plan, point);
        if plan.points.len() == 1 {
            let _ = writeln!(page, "<h2>The run with seed {}</h2>", plan.seed);
            page += &course(point, &results.first);
        } else {
            let open = if index == 0 { " open" } else { "" };
            let _ = writeln!(
                page,
                "<details{open}><summary>{heading}: the run with seed {}</summary>",
                plan.seed
            );
            page += &course(point, &results.first);
            page += "</details>\n";
        }
    }
    if plan.points.len() > COURSES {
        let more = plan.points.len() - COURSES;
        let _ = writeln!(
            page,
            "<p>{more} more are in the results of <code>--json</code>.</p>"
        );
    }
    page += "</body></html>\n";
    page
}

fn heading(plan: &Plan, point: &Point) -> String {
    let pairs = plan.keys.iter().zip(&point.values);
    let pairs = pairs.map(|(key, value)| format!("{} = {}", escaped(key), escaped(value)));
    let ideal = point.is_ideal && !plan.sweeps_strategy();
    let ideal = ideal.then(|| point.strategy.clone());
    pairs.chain(ideal).collect::<Vec<_>>().join(", ")
}

fn table(plan: &Plan, means: &[Vec<Mean>]) -> String {
    let is_shown = |index: &usize| *index < 10 || means.iter().any(|of| of[*index].mean > 0.0);
    let shown: Vec<usize> = (0..FIGURES.len()).filter(is_shown).collect();
    let mut table = "<table><tr>".to_owned();
    let strategy = !plan.sweeps_strategy();
    let more = strategy.then_some("strategy");
    for key in plan.keys.iter().map(String::as_str).chain(more) {
        let _ = write!(table, "<th class=\"l\">{}</th>", escaped(key));
    }
    for &index in &shown {
        let _ = write!(table, "<th>{}</th>", FIGURES[index].title);
    }
    table += "</tr>\n";
    for (point, means) in plan.points.iter().zip(means) {
        table += "<tr>";
        let more = strategy.then_some(&point.strategy);
        for value in point.values.iter().chain(more) {
            let _ = write!(table, "<td class=\"l\">{}</td>", escaped(value));
        }
        for &index in &shown {
            let _ = write!(
                table,
                "<td>{}</td>",
                means[index].format_with(FIGURES[index].unit)
            );
        }
        table += "</tr>\n";
    }
    table + "</table>\n"
}

fn figure(title: &str, caption: &str, plot: &Plot) -> String {
    format!(
        "<figure><h3>{}</h3>{}<figcaption>{}</figcaption></figure>\n",
        escaped(title),
        plot.svg(),
        escaped(caption)
    )
}

/// Figures over the values of the first parameter, with a line for each value of the second.
fn sweeps(plan: &Plan, means: &[Vec<Mean>]) -> String {
    let mut firsts: Vec<&String> = Vec::new();
    let mut seconds: Vec<Option<&String>> = Vec::new();
    // The central queue is a line of its own only where strategies are.
    let is_shown = |point: &Point| !point.is_ideal || plan.sweeps_strategy();
    for point in plan.points.iter().filter(|point| is_shown(point)) {
        let (first, second) = (&point.values[0], point.values.get(1));
        if !firsts.contains(&first) {
            firsts.push(first);
        }
        if !seconds.contains(&second) {
            seconds.push(second);
        }
    }
    let numbers: Option<Vec<f64>> = firsts.iter().map(|text| text.parse().ok()).collect();
    let numbers = numbers.filter(|all| all.len() > 1 && all.iter().all(|n: &f64| n.is_finite()));
    let mut plots = String::new();
    for name in [
        "p50_ms",
        "p99_ms",
        "answered_per_second",
        "failed_share",
        "unevenness",
    ] {
        let Some(index) = FIGURES.iter().position(|figure| figure.name == name) else {
            continue;
        };
        if means.iter().all(|of| of[index].mean == 0.0) {
            continue;
        }
        let line = |second: &Option<&String>| {
            let mut line = Line {
                name: second.map_or_else(String::new, |value| value.clone()),
                ..Line::default()
            };
            for (point, means) in plan.points.iter().zip(means) {
                if point.values.get(1) != *second || !is_shown(point) {
                    continue;
                }
                let at = firsts.iter().position(|first| **first == point.values[0]);
                let at = at.unwrap_or(0);
                let x = numbers.as_ref().map_or(at as f64, |numbers| numbers[at]);
                line.points.push((x, means[index].mean));
                line.within.push(means[index].within.unwrap_or(0.0));
            }
            line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
            line
        };
        let names = match numbers {
            Some(_) => Vec::new(),
            None => firsts.iter().map(|name| (*name).clone()).collect(),
        };
        let plot = Plot {
            lines: seconds.iter().map(line).collect(),
            across: "",
            scales: (Scale::Even, Scale::FromZero),
            names,
            ..Plot::over_time(FIGURES[index].unit.axis(), Vec::new())
        };
        let caption = match plan.keys.get(1) {
            Some(second) => format!("Across: {}; a line for each {second}.", plan.keys[0]),
            None => format!("Across: {}.", plan.keys[0]),
        };
        plots += &figure(FIGURES[index].title, &caption, &plot);
    }
    plots
}

/// Plots of one run, and its events.
fn course(point: &Point, course: &Course) -> String {
    let plots = CoursePlots::new(point, course);
    let mut page = "<div class=\"plots\">\n".to_owned();
    page += &distribution(course);
    page += &plots.latency();
    page += &plots.utilisation();
    page += &plots.shares();
    page += &plots.convergence();
    page += &plots.troubles();
    page += "</div>\n";
    page + &list_events(course)
}

/// Share of the requests that took longer than each time.
fn distribution(course: &Course) -> String {
    let slower = course.quantiles.iter().filter(|(share, _)| *share < 1.0);
    let slower = slower.map(|(share, time)| (time.as_secs_f64() * 1e3, 1.0 - share));
    let plot = Plot {
        lines: vec![Line {
            points: slower.filter(|point| point.0 > 0.0).collect(),
            ..Line::default()
        }],
        across: "milliseconds",
        up: "share of requests",
        scales: (Scale::Powers, Scale::Powers),
        ..Plot::over_time("", Vec::new())
    };
    figure(
        "Latency: how many requests took longer",
        "0.01 is the 99th percentile. Both axes are logarithmic.",
        &plot,
    )
}

/// Plots over the time of a run.
struct CoursePlots<'c> {
    members: &'c [String],
    samples: &'c [crate::Sample],
    marks: Vec<f64>,
}

impl<'c> CoursePlots<'c> {
    fn new(point: &'c Point, course: &'c Course) -> Self {
        let marks = course.events.iter().map(|event| event.0.as_secs_f64());
        CoursePlots {
            members: &point.members,
            samples: &course.samples,
            // Many events would be nothing but red.
            marks: match course.events.len() > EVENTS {
                true => Vec::new(),
                false => marks.collect(),
            },
        }
    }

    fn over_time(&self, up: &'static str, lines: Vec<Line>) -> Plot {
        Plot {
            marks: self.marks.clone(),
            ..Plot::over_time(up, lines)
        }
    }

    /// A line of a value of each sample.
    fn plain(&self, name: &str, value: &dyn Fn(&crate::Sample) -> f64) -> Line {
        let samples = self.samples.iter();
        Line {
            name: name.into(),
            points: samples
                .map(|sample| (sample.at.as_secs_f64(), value(sample)))
                .collect(),
            ..Line::default()
        }
    }

    /// A line for each member; `value` gets the indexes of the sample and of the member.
    fn of_members(&self, value: &dyn Fn(usize, usize, &MemberSample) -> f64) -> Vec<Line> {
        let line = |(member, name): (usize, &String)| Line {
            name: name.clone(),
            points: { self.samples.iter().enumerate() }
                .filter_map(|(at, sample)| {
                    let of = sample.members.get(member)?;
                    Some((sample.at.as_secs_f64(), value(at, member, of)))
                })
                .collect(),
            ..Line::default()
        };
        self.members.iter().enumerate().map(line).collect()
    }

    fn latency(&self) -> String {
        let millis = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        let lines = vec![
            self.plain("p50", &|sample| millis(sample.p50)),
            self.plain("p99", &|sample| millis(sample.p99)),
        ];
        figure(
            "Latency over time",
            "Of the requests that were answered since the point before.",
            &self.over_time("milliseconds", lines),
        )
    }

    fn utilisation(&self) -> String {
        let busy = Plot {
            most: Some(1.0),
            ..self.over_time(
                "share of workers",
                self.of_members(&|_, _, member| member.busy),
            )
        };
        let queue = self.of_members(&|_, _, member| f64::from(member.in_flight));
        figure("Utilisation", "How much of each member was busy.", &busy)
            + &figure(
                "Requests at members",
                "Being worked on or waiting there.",
                &self.over_time("requests", queue),
            )
    }

    fn shares(&self) -> String {
        let samples = self.samples;
        let before = |at: usize, member: usize| {
            let before = at.checked_sub(1).and_then(|at| samples.get(at));
            before.map_or(0, |sample| sample.members[member].answered)
        };
        let totals: Vec<u32> = (0..samples.len())
            .map(|at| {
                let members = samples[at].members.iter().enumerate();
                members
                    .map(|(member, of)| of.answered - before(at, member))
                    .sum()
            })
            .collect();
        let shares = self.of_members(&|at, member, of| {
            f64::from(of.answered - before(at, member)) / f64::from(totals[at].max(1))
        });
        figure(
            "Shares",
            "Which share of the answers each member gave.",
            &self.over_time("share of answers", shares),
        )
    }

    fn convergence(&self) -> String {
        let uneven = |sample: &crate::Sample| {
            let busy = sample.members.iter().map(|member| member.busy);
            busy.clone().fold(0.0, f64::max) - busy.fold(1.0, f64::min)
        };
        let lines = vec![self.plain("", &|sample| uneven(sample).max(0.0))];
        figure(
            "Convergence",
            "How far the busiest member is from the least busy one: the lower, the more even.",
            &Plot {
                most: Some(1.0),
                ..self.over_time("difference", lines)
            },
        )
    }

    /// Requests that wait at balancers, and failed ones, if there are any.
    fn troubles(&self) -> String {
        let mut page = String::new();
        if self.samples.iter().any(|sample| sample.waiting > 0) {
            let waiting = vec![self.plain("", &|sample| sample.waiting as f64)];
            page += &figure(
                "Requests that wait at balancers",
                "Because all members are at their limits.",
                &self.over_time("requests", waiting),
            );
        }
        if self.samples.iter().any(|sample| sample.failed > 0) {
            let failed = vec![self.plain("", &|sample| sample.failed as f64)];
            page += &figure(
                "Failed requests",
                "Since the beginning.",
                &self.over_time("requests", failed),
            );
        }
        page
    }
}

/// The events of a run as a table.
fn list_events(course: &Course) -> String {
    if course.events.is_empty() {
        return "<p>No alerts, ejections or failed checks.</p>\n".to_owned();
    }
    let mut page =
        "<h3>Alerts, ejections and checks</h3>\n<p>Dashed lines in the plots.</p>\n<table>\
                    <tr><th>second</th><th>balancer</th><th class=\"l\">what</th></tr>\n"
            .to_owned();
    for (at, balancer, what) in course.events.iter().take(EVENTS) {
        let _ = writeln!(
            page,
            "<tr><td>{:.1}</td><td>{}</td><td class=\"l\">{}</td></tr>",
            at.as_secs_f64(),
            balancer + 1,
            escaped(what)
        );
    }
    page += "</table>\n";
    if course.events.len() > EVENTS {
        let more = course.events.len() - EVENTS;
        let _ = writeln!(page, "<p>And {more} more: see <code>--json</code>.</p>");
    }
    page
}
