//! A sample as its readers get it: made once for all of them.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use evenkeel_manager::sample::{GroupSample, MemberSample};
use serde::Serialize;

use super::rounding::round_value;
use super::wire::{GroupRow, MemberRow, RuleRow, Usage};

/// Sample of what goes on in a second.
#[derive(Debug)]
pub(super) struct Tick {
    /// Number of the tick.
    pub(super) number: u64,
    /// JSON of all but the members of a group, without its last brace.
    common: String,
    alone: OnceLock<Bytes>,
    /// The groups that somebody watches.
    groups: HashMap<Arc<str>, Members>,
}

/// The members of a group, all and those that have changed since the tick before.
#[derive(Debug)]
struct Members {
    name: Arc<str>,
    rows: Vec<MemberRow>,
    /// Members that have changed, and names of members that have left; none if the group was not watched
    /// then.
    changed: Option<(Vec<usize>, Vec<Arc<str>>)>,
    full_text: OnceLock<Bytes>,
    changed_text: OnceLock<Bytes>,
}

#[derive(Serialize)]
struct Common<'a> {
    t: f64,
    process: Usage,
    rules: &'a [RuleRow],
    groups: Vec<GroupRow>,
    groups_left_out: usize,
}

/// Members of a group for JSON: [`GroupMembers`](super::wire::GroupMembers) without copies.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    full: bool,
    members: Vec<&'a MemberRow>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    gone: &'a [Arc<str>],
}

impl Tick {
    /// Makes the sample of the time `t`. The sample includes the members of those `watched` groups that have
    /// rows.
    pub(super) fn new(
        before: Option<&Tick>,
        t: f64,
        process: Usage,
        rules: &[RuleRow],
        groups: &[GroupSample],
        groups_left_out: usize,
        watched: impl Fn(&str) -> bool,
    ) -> Self {
        let common = Common {
            t,
            process,
            rules,
            groups: groups.iter().map(group_row).collect(),
            groups_left_out,
        };
        let mut common = to_json(&common);
        common.truncate(common.len().saturating_sub(1));
        let watched = groups.iter().filter(|group| watched(&group.name));
        let members = watched.map(|group| {
            let last = before.and_then(|before| before.groups.get(&group.name));
            let rows: Vec<MemberRow> = group.rows.iter().map(member_row).collect();
            let members = Members {
                name: Arc::clone(&group.name),
                changed: last.map(|last| list_changes(&last.rows, &rows)),
                rows,
                full_text: OnceLock::new(),
                changed_text: OnceLock::new(),
            };
            (Arc::clone(&group.name), members)
        });
        Tick {
            number: before.map_or(0, |before| before.number) + 1,
            common,
            alone: OnceLock::new(),
            groups: members.collect(),
        }
    }

    /// Returns the event, without its `id`, for whoever watches `group` and has had the tick of number
    /// `last`.
    pub(super) fn event_for(&self, group: Option<&str>, last: u64) -> Bytes {
        let group = group.and_then(|group| self.groups.get(group));
        let text = match group {
            None => self.alone.get_or_init(|| self.text(None)),
            Some(of) => match &of.changed {
                Some((changed, gone)) if last + 1 == self.number => {
                    of.changed_text.get_or_init(|| {
                        let members = changed.iter().filter_map(|&index| of.rows.get(index));
                        self.text(Some(&of.select_members(false, members.collect(), gone)))
                    })
                }
                _ => of.full_text.get_or_init(|| {
                    self.text(Some(&of.select_members(
                        true,
                        of.rows.iter().collect(),
                        &[],
                    )))
                }),
            },
        };
        text.clone()
    }

    fn text(&self, group: Option<&Shown<'_>>) -> Bytes {
        let common = &self.common;
        let event = match group {
            None => format!("event: sample\ndata: {common}}}\n\n"),
            Some(group) => {
                format!(
                    "event: sample\ndata: {common},\"group\":{}}}\n\n",
                    to_json(group)
                )
            }
        };
        event.into()
    }
}

impl Members {
    fn select_members<'a>(
        &'a self,
        full: bool,
        members: Vec<&'a MemberRow>,
        gone: &'a [Arc<str>],
    ) -> Shown<'a> {
        Shown {
            name: &self.name,
            full,
            members,
            gone,
        }
    }
}

/// Numbers and strings can always be written.
fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Returns which of `rows` are new or another than before, and which members are in them no more.
fn list_changes(before: &[MemberRow], rows: &[MemberRow]) -> (Vec<usize>, Vec<Arc<str>>) {
    let names = |rows: &[MemberRow]| {
        rows.iter()
            .map(|row| Arc::clone(&row.name))
            .collect::<Vec<_>>()
    };
    let is_same_list = before.len() == rows.len()
        && before
            .iter()
            .zip(rows)
            .all(|(before, row)| before.name == row.name);
    if is_same_list {
        let pairs = before.iter().zip(rows).enumerate();
        let changed = pairs.filter(|(_, (before, row))| before != row);
        return (changed.map(|(index, _)| index).collect(), Vec::new());
    }
    let known: HashMap<&str, &MemberRow> = before.iter().map(|row| (&*row.name, row)).collect();
    let present: HashMap<Arc<str>, ()> = names(rows).into_iter().map(|name| (name, ())).collect();
    let changed = rows.iter().enumerate();
    let changed = changed.filter(|(_, row)| known.get(&*row.name) != Some(row));
    let gone = names(before)
        .into_iter()
        .filter(|name| !present.contains_key(name));
    (changed.map(|(index, _)| index).collect(), gone.collect())
}

fn group_row(group: &GroupSample) -> GroupRow {
    GroupRow {
        name: Arc::clone(&group.name),
        rate: round_value(group.rate),
        failures: group.failures.map(round_value),
        p50_ms: group.p50_ms.map(round_value),
        p99_ms: group.p99_ms.map(round_value),
        in_flight: group.in_flight,
        queue: group.queue,
        up: group.up,
        members: group.members,
        panic: group.panic,
        alerts: group.alerts,
        spread: group.spread.map(round_value),
    }
}

fn member_row(row: &MemberSample) -> MemberRow {
    MemberRow {
        name: Arc::clone(&row.name),
        state: row.state.into(),
        admin: row.admin,
        weight: round_value(f64::from(row.weight)),
        effective_weight: round_value(f64::from(row.effective_weight)),
        share: round_value(row.share),
        rate: round_value(row.rate),
        failures: row.failures.map(round_value),
        in_flight: row.in_flight,
        p50_ms: row.p50_ms.map(round_value),
        p99_ms: row.p99_ms.map(round_value),
        load: row.load.map(|load| round_value(f64::from(load))),
        alert: row.alert,
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_manager::AdminState;

    use super::*;
    use crate::live::wire::SampleEvent;

    fn row(name: &str, in_flight: u32) -> MemberSample {
        MemberSample {
            name: name.into(),
            member: name.into(),
            state: "up",
            admin: AdminState::Ready,
            weight: 1.0,
            effective_weight: 1.0,
            share: 1.0 / 3.0,
            rate: 7.123_456,
            failures: Some(0.0),
            in_flight,
            p50_ms: Some(0.25),
            p99_ms: None,
            load: Some(0.1),
            alert: false,
        }
    }

    fn group(name: &str, rows: Vec<MemberSample>) -> GroupSample {
        GroupSample {
            name: name.into(),
            rate: 7.0,
            failures: None,
            p50_ms: None,
            p99_ms: None,
            in_flight: 1,
            queue: 2,
            up: 1,
            members: rows.len(),
            panic: false,
            alerts: 0,
            spread: Some(0.1),
            reject: None,
            critical: None,
            rows,
        }
    }

    fn tick(before: Option<&Tick>, rows: Vec<MemberSample>) -> Tick {
        let usage = Usage {
            cpu_share: None,
            resident_bytes: Some(1),
        };
        let groups = [group("a\"b", rows), group("other", Vec::new())];
        Tick::new(before, 12.5, usage, &[], &groups, 3, |name| name == "a\"b")
    }

    fn read(event: &Bytes) -> SampleEvent {
        let text = std::str::from_utf8(event).unwrap();
        let data = text.strip_prefix("event: sample\ndata: ").unwrap();
        serde_json::from_str(data.strip_suffix("\n\n").unwrap()).unwrap()
    }

    #[test]
    fn who_has_had_the_last_one_gets_only_what_has_changed() {
        let names = |event: &SampleEvent| {
            let group = event.group.as_ref().unwrap();
            let rows = group.members.iter().map(|row| row.name.to_string());
            (group.full, rows.collect::<Vec<_>>(), group.gone.len())
        };
        let first = tick(None, vec![row("x", 1), row("y", 1)]);
        let event = read(&first.event_for(Some("a\"b"), 0));
        assert_eq!(names(&event), (true, vec!["x".into(), "y".into()], 0));
        assert_eq!(
            (event.t, event.groups_left_out, event.groups.len()),
            (12.5, 3, 2)
        );
        let share = event.group.unwrap().members[0].share;
        assert_eq!(share, 0.3333);
        assert_eq!(read(&first.event_for(None, 0)).group, None);
        assert_eq!(
            read(&first.event_for(Some("other"), 0)).group,
            None,
            "nobody watches it"
        );

        let second = tick(Some(&first), vec![row("x", 2), row("y", 1)]);
        let event = |last| read(&second.event_for(Some("a\"b"), last));
        assert_eq!(names(&event(1)), (false, vec!["x".into()], 0));
        assert_eq!(names(&event(0)), (true, vec!["x".into(), "y".into()], 0));

        let third = tick(Some(&second), vec![row("z", 1), row("x", 2)]);
        let event = read(&third.event_for(Some("a\"b"), 2));
        assert_eq!(names(&event), (false, vec!["z".into()], 1));
        assert_eq!(&*event.group.unwrap().gone[0], "y");
    }
}
