//! Output about what goes on, as people and scripts read it on a terminal.

use std::collections::HashMap;
use std::fmt::Write;

use evenkeel_core::strategy;
use evenkeel_manager::text;
use serde_json::{Value, json};

use super::wire::{
    AlertEvent, AssumedMember, ChangeEvent, CheckDone, Family, GroupRow, LastHour, Process,
    SampleEvent, Simulate, Simulated, SimulatedStrategy,
};
use crate::client::{ClientError, Event};
use crate::ctl::Ctl;

impl Ctl {
    /// Has a member checked now. A check that fails is no error: it is what was asked for.
    pub fn check_member(&self, group: &str, member: &str) -> Result<String, ClientError> {
        let path = ["v1", "groups", group, "members", member, "check"];
        let answer: CheckDone = self.client.post_resource(&path, &json!({}))?;
        self.print_answer(&answer, |checked| {
            let CheckDone {
                took_ms,
                what,
                error,
                ..
            } = checked;
            match error {
                None => format!("{member} in {group} is well, after {took_ms} ms ({what})\n"),
                Some(error) => {
                    format!(
                        "{member} in {group} is not well, after {took_ms} ms: {error} ({what})\n"
                    )
                }
            }
        })
    }

    /// Returns all counters, a line each.
    pub fn list_counters(&self) -> Result<String, ClientError> {
        self.show_path(&["v1", "counters"], |families: &Vec<Family>| {
            let mut out = String::new();
            for family in families {
                for sample in &family.samples {
                    let labels = sample.labels.iter();
                    let labels: Vec<_> = labels
                        .map(|(name, value)| format!("{name}={value}"))
                        .collect();
                    let suffix = sample.suffix.as_deref().unwrap_or_default();
                    let value = sample.value.map_or("-".into(), |value| value.to_string());
                    // Writing to a string cannot fail.
                    let _ = writeln!(out, "{}{suffix} {} {value}", family.name, labels.join(" "));
                }
            }
            out
        })
    }

    /// Returns what the process uses.
    pub fn show_process(&self) -> Result<String, ClientError> {
        self.show_path(&["v1", "process"], |process: &Process| {
            let number = |value: Option<u64>| value.map_or("-".into(), |value| value.to_string());
            let share = process.cpu_share.map_or("-".into(), |share| format!("{:.1} %", share * 100.0));
            let mib = process.resident_bytes.map(|bytes| bytes >> 20);
            format!(
                "process     {}, version {}\nuptime      {:.0} s\nCPU         {share} of a core now, {:.1} s in all\n\
                 memory      {} MiB\nopen files  {}\nthreads     {}, of which {} forward\n",
                process.pid,
                process.version,
                process.uptime_seconds,
                process.cpu_seconds,
                number(mib),
                number(process.open_files.map(|files| files as u64)),
                number(process.threads),
                process.workers,
            )
        })
    }

    /// Returns the last hour of a group, or of all together: the last moment of each minute.
    pub fn show_history(&self, group: Option<&str>) -> Result<String, ClientError> {
        let query: Vec<_> = group.iter().map(|group| ("group", *group)).collect();
        let answer: LastHour = self.client.get(&["v1", "history"], &query)?;
        self.print_answer(&answer, last_hour)
    }

    /// Has strategies simulated on a group as it is.
    pub fn simulate_strategies(&self, group: &str, body: &Simulate) -> Result<String, ClientError> {
        let path = ["v1", "groups", group, "simulate"];
        let answer: Simulated = self.client.post_resource(&path, body)?;
        self.print_answer(&answer, format_simulated)
    }

    /// Prints what goes on as it comes, of one group or of all, at most `count` events. `print` answers
    /// whether there is anybody to read more.
    pub fn watch_events(
        &self,
        group: Option<&str>,
        count: Option<u64>,
        mut print: impl FnMut(&str) -> bool,
    ) -> Result<(), ClientError> {
        let query: Vec<_> = group.iter().map(|group| ("group", *group)).collect();
        let mut states = HashMap::new();
        let mut left = count;
        let mut wrong = None;
        self.client
            .follow_events(&["v1", "events"], &query, |event| {
                let text = match self.json {
                    true => as_json(&event),
                    false => in_words(&event, group, &mut states),
                };
                let text = match text {
                    Ok(text) => text,
                    Err(error) => {
                        wrong = Some(self.client.not_the_api(format!("{}: {error}", event.kind)));
                        return false;
                    }
                };
                left = left.map(|left| left.saturating_sub(1));
                print(&text) && left != Some(0)
            })?;
        match wrong {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

fn last_hour(hour: &LastHour) -> String {
    let minute = |index: usize| hour.t.get(index).map(|t| t / 60);
    let rows = (0..hour.t.len()).filter(|&index| minute(index) != minute(index + 1));
    let rows = rows.map(|index| {
        let cell = |column: &[Option<f64>]| {
            let value = column.get(index).copied().flatten();
            value.map_or("-".into(), |value| value.to_string())
        };
        let columns = [
            &hour.rate,
            &hour.failures,
            &hour.p50_ms,
            &hour.p99_ms,
            &hour.in_flight,
            &hour.queue,
            &hour.spread,
        ];
        let at = hour.t.get(index).map(|t| format_time(*t as f64));
        let cells = columns.into_iter().map(|column| cell(column));
        at.into_iter().chain(cells).collect()
    });
    let names = [
        "TIME",
        ">RATE",
        ">FAILED",
        ">P50 MS",
        ">P99 MS",
        ">IN FLIGHT",
        ">QUEUE",
        ">SPREAD",
    ];
    text::format_table(&names, rows)
}

fn format_simulated(simulated: &Simulated) -> String {
    let assumed = &simulated.assumed;
    let row = |of: &SimulatedStrategy| {
        let ms = |value: f64| format!("{value:.1}");
        vec![
            of.strategy.clone(),
            ms(of.p50_ms),
            ms(of.p90_ms),
            ms(of.p99_ms),
            ms(of.mean_ms),
            format!("{:.1} %", of.failed * 100.0),
            of.queue_p99.to_string(),
        ]
    };
    let names = [
        "STRATEGY", ">P50 MS", ">P90 MS", ">P99 MS", ">MEAN MS", ">FAILED", ">QUEUE",
    ];
    let mut out = text::format_table(&names, simulated.results.iter().map(row));
    let row = |(index, of): (usize, &AssumedMember)| {
        let mut row = vec![
            of.name.clone(),
            of.mean_ms.to_string(),
            of.concurrency.to_string(),
        ];
        row.extend(simulated.results.iter().map(|result| {
            let of = result.shares.get(index);
            of.map_or("-".into(), |of| format!("{:.1} %", of.share * 100.0))
        }));
        row
    };
    let shares = simulated.results.iter();
    let shares = shares.map(|of| strategy::find(&of.strategy).map_or("?", |kind| kind.name));
    let names = ["MEMBER", ">TIME MS", ">AT ONCE"].into_iter();
    let names: Vec<&'static str> = names.chain(shares).collect();
    let _ = write!(
        out,
        "\n{}\nat {:.1} requests per second\n",
        text::format_table(&names, assumed.members.iter().enumerate().map(row)),
        assumed.rate
    );
    for note in &assumed.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

fn as_json(event: &Event) -> Result<String, serde_json::Error> {
    let data: Value = serde_json::from_str(&event.data)?;
    Ok(json!({ "event": event.kind, "id": event.id, "data": data }).to_string() + "\n")
}

/// Returns an event in lines. `states` are those of members before.
fn in_words(
    event: &Event,
    group: Option<&str>,
    states: &mut HashMap<String, String>,
) -> Result<String, serde_json::Error> {
    Ok(match &*event.kind {
        "sample" => format_sample(&serde_json::from_str(&event.data)?, group, states),
        "change" => {
            let change: ChangeEvent = serde_json::from_str(&event.data)?;
            let who = change
                .who
                .map(|who| format!(", by {who}"))
                .unwrap_or_default();
            let what = match &*change.how {
                "live" => format!(
                    "a live change is in effect (configuration {})",
                    change.generation
                ),
                how => format!("configuration {} is in effect ({how})", change.generation),
            };
            format!("{} change: {what}{who}\n", format_time(change.at))
        }
        "alert" => {
            let alert: AlertEvent = serde_json::from_str(&event.data)?;
            let is = if alert.on {
                "is under a load alert"
            } else {
                "is under no load alert any more"
            };
            format!(
                "{} alert: {} {is} of {}\n",
                format_time(alert.t),
                alert.location,
                alert.group
            )
        }
        other => format!("{other}: {}\n", event.data),
    })
}

fn format_sample(
    sample: &SampleEvent,
    group: Option<&str>,
    states: &mut HashMap<String, String>,
) -> String {
    let at = format_time(sample.t);
    let mut out = String::new();
    let groups = sample.groups.iter();
    for row in groups.filter(|row| group.is_none_or(|group| *row.name == *group)) {
        let _ = writeln!(out, "{at} {}", group_line(row));
    }
    for member in sample.group.iter().flat_map(|group| &group.members) {
        let alert = if member.alert { ", load alert" } else { "" };
        let state = format!("{}{alert}", member.state);
        let before = states.insert(member.name.to_string(), state.clone());
        if before.is_some_and(|before| before != state) {
            let _ = writeln!(out, "{at}   {} is {state}", member.name);
        }
    }
    out
}

fn group_line(row: &GroupRow) -> String {
    let ms = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.1}"));
    let failures = row
        .failures
        .map_or("-".into(), |share| format!("{:.1} %", share * 100.0));
    let mut line = format!(
        "{}: {:.1}/s, {failures} failed, p50 {} ms, p99 {} ms, {} in flight, {} waiting, {} of {} up",
        row.name,
        row.rate,
        ms(row.p50_ms),
        ms(row.p99_ms),
        row.in_flight,
        row.queue,
        row.up,
        row.members
    );
    if let Some(spread) = row.spread {
        let _ = write!(line, ", spread {spread:.3}");
    }
    if row.alerts > 0 {
        let _ = write!(line, ", {} load alerts", row.alerts);
    }
    if row.panic {
        line.push_str(", panic");
    }
    line
}

/// Returns the time of day, UTC.
fn format_time(seconds: f64) -> String {
    let time = jiff::Timestamp::from_second(seconds as i64);
    time.map_or_else(
        |_| seconds.to_string(),
        |time| time.strftime("%H:%M:%SZ").to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, data: Value) -> Event {
        Event {
            kind: kind.into(),
            id: "ab-1".into(),
            data: data.to_string(),
        }
    }

    #[test]
    fn an_hour_is_a_line_for_each_minute() {
        let hour = LastHour {
            t: vec![50, 55, 60, 65, 3600],
            rate: vec![Some(1.0), Some(2.5), Some(3.0), Some(4.0), None],
            spread: vec![None, Some(0.25)],
            ..LastHour::default()
        };
        let table = last_hour(&hour);
        let rows = table
            .lines()
            .map(|line| line.split_whitespace().take(2).collect::<Vec<_>>());
        let rows: Vec<_> = rows.collect();
        let expected = [
            ["TIME", "RATE"],
            ["00:00:55Z", "2.5"],
            ["00:01:05Z", "4"],
            ["01:00:00Z", "-"],
        ];
        assert_eq!(rows, expected, "{table}");
    }

    #[test]
    fn events_are_lines() {
        let mut states = HashMap::new();
        let mut words =
            |kind: &str, data| in_words(&event(kind, data), Some("web"), &mut states).unwrap();
        let change =
            json!({"generation": 3, "at": 0.5, "revision": "x", "who": "ann", "how": "live"});
        assert_eq!(
            words("change", change),
            "00:00:00Z change: a live change is in effect (configuration 3), by ann\n"
        );
        let change =
            json!({"generation": 4, "at": 61, "revision": null, "who": null, "how": "file"});
        assert_eq!(
            words("change", change),
            "00:01:01Z change: configuration 4 is in effect (file)\n"
        );
        let alert = json!({"t": 1, "location": "node-1", "group": "web", "on": true});
        assert_eq!(
            words("alert", alert),
            "00:00:01Z alert: node-1 is under a load alert of web\n"
        );
        let sample = |state| {
            json!({"t": 2, "process": {"cpu_share": null, "resident_bytes": 1}, "rules": [],
                "groups": [
                    {"name": "web", "rate": 1.25, "failures": 0.5, "p50_ms": 1, "p99_ms": null, "in_flight": 2,
                     "queue": 0, "up": 1, "members": 2, "panic": false, "alerts": 1, "spread": 0.25},
                    {"name": "other", "rate": 1, "failures": null, "p50_ms": 1, "p99_ms": null, "in_flight": 2,
                     "queue": 0, "up": 1, "members": 2, "panic": false, "alerts": 0, "spread": null},
                ],
                "group": {"name": "web", "full": true, "members": [
                    {"name": "m", "state": state, "admin": "ready", "weight": 1, "effective_weight": 1, "share": 1,
                     "rate": 1, "failures": null, "in_flight": 1, "p50_ms": null, "p99_ms": null, "load": null,
                     "alert": false}]}})
        };
        let line = "00:00:02Z web: 1.2/s, 50.0 % failed, p50 1.0 ms, p99 - ms, 2 in flight, 0 waiting, \
                    1 of 2 up, spread 0.250, 1 load alerts\n";
        assert_eq!(words("sample", sample("up")), line);
        let down = format!("{line}00:00:02Z   m is down\n");
        assert_eq!(words("sample", sample("down")), down);
        assert_eq!(words("sample", sample("down")), line);
        assert_eq!(
            words("lost", json!({"detail": "x"})),
            "lost: {\"detail\":\"x\"}\n"
        );
        let json = as_json(&event("alert", json!({"t": 1}))).unwrap();
        let parsed: serde_json::Value = serde_json::from_str(json.trim_end()).unwrap();
        assert_eq!(
            parsed,
            json!({"event": "alert", "id": "ab-1", "data": {"t": 1}})
        );
    }
}
