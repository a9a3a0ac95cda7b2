//! The last hour of groups and members, in bounded memory.
//!
//! A moment is one array of numbers for all groups and members; what is where in it says a layout, which
//! moments share as long as nobody joins or leaves. When there is no room for another moment, every
//! second one is dropped, and they are taken half as often.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use evenkeel_manager::sample::{GroupSample, MemberSample, Sample};

use super::rounding::round_value;
use super::wire::{LastHour, MemberHour};

/// Seconds that are kept.
const HOUR: u64 = 3600;

/// Seconds between two moments, where there is room.
pub(super) const STEP: u64 = 5;

/// The most memory, in bytes.
const ROOM: usize = 16 << 20;

/// Members that are kept: those of the first groups. With so many, there is a moment every 40 seconds or
/// more.
pub(super) const MEMBERS: usize = 12_000;

/// Members of a group that are told of at once.
const TOLD: usize = 500;

/// Numbers of a group: rate, failures, median, 99th percentile, in flight, queue, spread.
const OF_GROUP: usize = 7;

/// Numbers of a member: load, share, in flight, weight, alert.
const OF_MEMBER: usize = 5;

/// Bytes that an array takes beside its numbers, and a name beside its letters.
const ARRAY: usize = 48;

/// The last hour.
#[derive(Debug)]
pub(super) struct HourHistory {
    moments: VecDeque<Moment>,
    step: u64,
    /// Bytes that the moments take.
    bytes: usize,
    room: usize,
}

/// Numbers that are not known are NaN.
#[derive(Debug)]
struct Moment {
    at: u64,
    layout: Arc<Layout>,
    values: Box<[f32]>,
}

/// Places where the numbers of a group, and behind them the numbers of its members, begin.
#[derive(Debug, PartialEq, Eq)]
struct Layout(HashMap<Arc<str>, (usize, Vec<Names>)>);

/// Names of a member. The address is its identity: a member that is given a name keeps its hour.
#[derive(Debug, PartialEq, Eq)]
struct Names {
    /// Name that people see.
    name: Arc<str>,
    /// Address in the configuration.
    member: Arc<str>,
}

impl Layout {
    /// Returns the layout of all groups together, whose numbers come first, and of each group.
    fn from_sample(sample: &Sample) -> Self {
        let mut at = 0;
        let groups = std::iter::once(&sample.all).chain(&sample.groups);
        let places = groups.map(|group| {
            let names = group.rows.iter().map(|row| Names {
                name: Arc::clone(&row.name),
                member: Arc::clone(&row.member),
            });
            let names: Vec<_> = names.collect();
            let start = at;
            at += OF_GROUP + names.len() * OF_MEMBER;
            (Arc::clone(&group.name), (start, names))
        });
        Layout(places.collect())
    }

    fn is_of(&self, sample: &Sample) -> bool {
        let groups = sample.groups.iter();
        let is_same = |group: &GroupSample| {
            let place = self.0.get(&group.name);
            let now = group.rows.iter().map(|row| (&row.name, &row.member));
            place.is_some_and(|(_, names)| names.iter().map(|of| (&of.name, &of.member)).eq(now))
        };
        self.0.len() == sample.groups.len() + 1 && groups.clone().all(is_same)
    }

    fn bytes(&self) -> usize {
        let name = |name: &Arc<str>| ARRAY + name.len();
        let groups = self.0.iter();
        let names = |of: &Names| match Arc::ptr_eq(&of.name, &of.member) {
            true => name(&of.name),
            false => name(&of.name) + name(&of.member),
        };
        let of = |(group, (_, members)): (&Arc<str>, &(usize, Vec<Names>))| {
            2 * name(group) + members.iter().map(names).sum::<usize>()
        };
        groups.map(of).sum()
    }
}

impl Default for HourHistory {
    fn default() -> Self {
        HourHistory {
            moments: VecDeque::new(),
            step: STEP,
            bytes: 0,
            room: ROOM,
        }
    }
}

impl HourHistory {
    /// True if a moment is due at the time `now`.
    pub(super) fn is_due(&self, now: u64) -> bool {
        let last = self.moments.back();
        // The clock may have been set back.
        last.is_none_or(|last| now >= last.at + self.step || now < last.at)
    }

    /// Keeps a moment.
    pub(super) fn keep_sample(&mut self, sample: &Sample, now: u64) {
        let last = self.moments.back();
        let same = last.filter(|last| last.layout.is_of(sample));
        let layout = match same {
            Some(last) => Arc::clone(&last.layout),
            None => Arc::new(Layout::from_sample(sample)),
        };
        let groups = std::iter::once(&sample.all).chain(&sample.groups);
        let values: Vec<f32> = groups.flat_map(group_numbers).collect();
        let values = values.into_boxed_slice();
        if same.is_none() {
            self.bytes += layout.bytes();
        }
        self.bytes += ARRAY + size_of_val(&*values);
        self.moments.push_back(Moment {
            at: now,
            layout,
            values,
        });
        while self
            .moments
            .front()
            .is_some_and(|first| first.at + HOUR < now)
        {
            let bytes = self.bytes_without_first();
            self.moments.pop_front();
            self.bytes = bytes;
        }
        while self.bytes > self.room && self.moments.len() > 1 {
            let mut is_kept = self.moments.len().is_multiple_of(2);
            self.moments.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.step *= 2;
            self.bytes = self.count_bytes();
        }
        if self.step > STEP && self.bytes < self.room / 4 {
            self.step /= 2;
        }
    }

    fn bytes_without_first(&self) -> usize {
        let mut moments = self.moments.iter();
        let Some(first) = moments.next() else {
            return 0;
        };
        let is_last_of_it = moments
            .next()
            .is_none_or(|next| !Arc::ptr_eq(&next.layout, &first.layout));
        let layout = if is_last_of_it {
            first.layout.bytes()
        } else {
            0
        };
        self.bytes
            .saturating_sub(layout + ARRAY + size_of_val(&*first.values))
    }

    fn count_bytes(&self) -> usize {
        let mut last: Option<&Arc<Layout>> = None;
        let of = |moment: &Moment| ARRAY + size_of_val(&*moment.values);
        let mut bytes = 0;
        for moment in &self.moments {
            if last.is_none_or(|last| !Arc::ptr_eq(last, &moment.layout)) {
                bytes += moment.layout.bytes();
            }
            last = Some(&moment.layout);
            bytes += of(moment);
        }
        bytes
    }

    /// Returns what is known since a time of a group, or of all groups together if `group` is ""; of one
    /// member only, if it is named: by its name or its address.
    pub(super) fn last_hour(&self, group: &str, member: Option<&str>, since: u64) -> LastHour {
        let from = self.moments.partition_point(|moment| moment.at < since);
        let moments: Vec<&Moment> = self.moments.range(from..).collect();
        let place = |moment: &Moment| moment.layout.0.get(group).map(|(start, _)| *start);
        let column = |number: usize| {
            let value = |moment: &&Moment| known_number(moment, place(moment)? + number);
            moments.iter().map(value).collect::<Vec<_>>()
        };
        let now = moments.last().and_then(|last| last.layout.0.get(group));
        let names = now.map_or(&[][..], |(_, names)| names);
        let wanted = names.iter().enumerate();
        let is_meant =
            |of: &Names| member.is_none_or(|asked| *of.name == *asked || *of.member == *asked);
        let wanted = wanted.filter(|(_, of)| is_meant(of));
        let members = wanted.take(TOLD).map(|(index, Names { name, member })| {
            // Where it is in each moment: mostly where it is now.
            let starts = moments.iter().map(|moment| {
                let (start, names) = moment.layout.0.get(group)?;
                let index = match names.get(index) {
                    Some(there) if there.member == *member => index,
                    _ => names.iter().position(|there| there.member == *member)?,
                };
                Some(start + OF_GROUP + index * OF_MEMBER)
            });
            let starts: Vec<Option<usize>> = starts.collect();
            let column = |number: usize| {
                let value = |(moment, start): (&&Moment, &Option<usize>)| {
                    known_number(moment, (*start)? + number)
                };
                moments.iter().zip(&starts).map(value).collect::<Vec<_>>()
            };
            MemberHour {
                name: name.to_string(),
                load: column(0),
                share: column(1),
                in_flight: column(2),
                weight: column(3),
                alert: column(4).into_iter().map(|on| on == Some(1.0)).collect(),
            }
        });
        LastHour {
            step_seconds: self.step,
            t: moments.iter().map(|moment| moment.at).collect(),
            rate: column(0),
            failures: column(1),
            p50_ms: column(2),
            p99_ms: column(3),
            in_flight: column(4),
            queue: column(5),
            spread: column(6),
            members: members.collect(),
            ..LastHour::default()
        }
    }
}

/// Returns a number of a moment, if it is known.
fn known_number(moment: &Moment, at: usize) -> Option<f64> {
    let value = moment.values.get(at).filter(|value| !value.is_nan())?;
    Some(round_value(f64::from(*value)))
}

/// Returns the numbers of a group and its members.
fn group_numbers(group: &GroupSample) -> impl Iterator<Item = f32> {
    let of_group: [f64; OF_GROUP] = [
        group.rate,
        group.failures.unwrap_or(f64::NAN),
        group.p50_ms.unwrap_or(f64::NAN),
        group.p99_ms.unwrap_or(f64::NAN),
        group.in_flight as f64,
        group.queue as f64,
        group.spread.unwrap_or(f64::NAN),
    ];
    let of_member = |row: &MemberSample| -> [f32; OF_MEMBER] {
        [
            row.load.unwrap_or(f32::NAN),
            row.share as f32,
            row.in_flight as f32,
            row.effective_weight,
            f32::from(u8::from(row.alert)),
        ]
    };
    let of_group = of_group.into_iter().map(|number| number as f32);
    of_group.chain(group.rows.iter().flat_map(of_member))
}

#[cfg(test)]
mod tests {
    use evenkeel_manager::AdminState;

    use super::*;

    fn row(name: &str, load: f32) -> MemberSample {
        MemberSample {
            name: name.into(),
            member: name.into(),
            state: "up",
            admin: AdminState::Ready,
            weight: 1.0,
            effective_weight: 1.0,
            share: 0.5,
            rate: 1.0,
            failures: None,
            in_flight: 2,
            p50_ms: None,
            p99_ms: None,
            load: Some(load),
            alert: load > 0.9,
        }
    }

    fn group(name: &str, rate: f64, rows: Vec<MemberSample>) -> GroupSample {
        GroupSample {
            name: name.into(),
            rate,
            failures: None,
            p50_ms: Some(1.5),
            p99_ms: Some(9.0),
            in_flight: 4,
            queue: 1,
            up: rows.len(),
            members: rows.len(),
            panic: false,
            alerts: 0,
            spread: None,
            reject: None,
            critical: None,
            rows,
        }
    }

    fn sample(groups: Vec<GroupSample>) -> Sample {
        Sample {
            generation: 1,
            rules: Vec::new(),
            all: group("", groups.iter().map(|group| group.rate).sum(), Vec::new()),
            groups,
            left_out: 0,
        }
    }

    #[test]
    fn an_hour_is_told_and_then_forgotten() {
        let mut past = HourHistory::default();
        for turn in 0..1000 {
            let now = 1_000_000 + turn * STEP;
            assert!(past.is_due(now) && (turn == 0 || !past.is_due(now - 1)));
            past.keep_sample(
                &sample(vec![group("a", turn as f64, vec![row("m", 0.5)])]),
                now,
            );
        }
        let all = past.last_hour("a", None, 0);
        assert_eq!(all.step_seconds, STEP);
        assert_eq!(all.t.len() as u64, HOUR / STEP + 1);
        assert_eq!(all.t.last(), Some(&(1_000_000 + 999 * STEP)));
        assert_eq!(all.rate.last(), Some(&Some(999.0)));
        assert_eq!(all.spread.first(), Some(&None));
        assert_eq!(all.members.len(), 1);
        assert_eq!(all.members[0].load.first(), Some(&Some(0.5)));
        let late = past.last_hour("", None, 1_000_000 + 998 * STEP);
        assert_eq!(late.rate, [Some(998.0), Some(999.0)]);
        assert!(late.members.is_empty());
        let nobody = past.last_hour("b", None, 0);
        assert!(nobody.rate.iter().all(Option::is_none));
        assert_eq!(past.bytes, past.count_bytes());
    }

    #[test]
    fn who_joins_or_leaves_has_columns_for_its_time() {
        let mut past = HourHistory::default();
        let mut now = 1000;
        for rows in [
            vec![row("x", 0.1), row("y", 0.95)],
            vec![row("z", 0.2), row("y", 0.3)],
            vec![row("y", 0.4)],
        ] {
            past.keep_sample(&sample(vec![group("a", 1.0, rows)]), now);
            now += STEP;
        }
        let told = past.last_hour("a", None, 0);
        let y = &told.members[0];
        assert_eq!((told.members.len(), &*y.name), (1, "y"));
        assert_eq!(y.load, [Some(0.95), Some(0.3), Some(0.4)]);
        assert_eq!(y.alert, [true, false, false]);
        past.keep_sample(&sample(vec![group("a", 1.0, vec![row("x", 0.7)])]), now);
        let x = past.last_hour("a", Some("x"), 0).members.remove(0);
        assert_eq!(x.load, [Some(0.1), None, None, Some(0.7)]);
        assert!(past.last_hour("a", Some("none"), 0).members.is_empty());
        assert_eq!(past.bytes, past.count_bytes());
    }

    #[test]
    fn g6_a_member_that_is_given_a_name_keeps_its_hour() {
        let mut past = HourHistory::default();
        let mut now = 1000;
        for (name, load) in [("x", 0.1), ("s1", 0.2), ("s2", 0.3)] {
            let named = MemberSample {
                name: name.into(),
                ..row("x", load)
            };
            past.keep_sample(
                &sample(vec![group("a", 1.0, vec![named, row("y", 0.9)])]),
                now,
            );
            now += STEP;
        }
        for asked in ["s2", "x"] {
            let mut told = past.last_hour("a", Some(asked), 0).members;
            assert_eq!(told.len(), 1, "{asked}");
            let member = told.remove(0);
            assert_eq!(member.name, "s2");
            assert_eq!(member.load, [Some(0.1), Some(0.2), Some(0.3)]);
        }
        assert!(past.last_hour("a", Some("s1"), 0).members.is_empty());
        assert_eq!(past.bytes, past.count_bytes());
    }

    #[test]
    fn memory_is_bounded_by_taking_fewer_moments() {
        let mut past = HourHistory {
            room: 40_000,
            ..HourHistory::default()
        };
        let rows = || (0..20).map(|n| row(&format!("member-{n}"), 0.5)).collect();
        let mut now = 1000;
        let mut kept = 0;
        for _ in 0..3 * HOUR {
            now += 1;
            if past.is_due(now) {
                past.keep_sample(&sample(vec![group("a", 1.0, rows())]), now);
                kept += 1;
                assert!(past.bytes <= past.room);
                assert_eq!(past.bytes, past.count_bytes());
            }
        }
        let told = past.last_hour("a", None, 0);
        assert!(
            told.step_seconds > STEP && told.step_seconds <= 16 * STEP,
            "{}",
            told.step_seconds
        );
        assert!(
            now - told.t[0] > HOUR - 2 * told.step_seconds,
            "{}",
            now - told.t[0]
        );
        assert!(kept < 3 * HOUR / STEP);
        // With few members there is room again.
        for _ in 0..3 * HOUR {
            now += 1;
            if past.is_due(now) {
                past.keep_sample(&sample(vec![group("a", 1.0, Vec::new())]), now);
            }
        }
        assert!(past.step < told.step_seconds);
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_stop_it() {
        let mut past = HourHistory::default();
        past.keep_sample(&sample(Vec::new()), 5000);
        assert!(past.is_due(10));
        past.keep_sample(&sample(Vec::new()), 10);
        assert!(!past.is_due(12) && past.is_due(15));
    }
}
