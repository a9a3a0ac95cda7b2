//! The view of a group and of a decision: what `evenkeel top` shows, as a pure function
//! of the status.

use std::time::Duration;

use evenkeel_core::load::LoadId;
use evenkeel_core::strategy;
use evenkeel_manager::AlertSetting;
use evenkeel_manager::status::{
    EjectionStatus, EngineStatus, Explained, GroupStatus, LoadStatus, LocationStatus, MemberStatus,
    Recent, Status,
};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Table;

use crate::columns::{Cell, Column, Listing, Row, WIDE};
pub(crate) use crate::columns::{count, duration_of_millis, latency_cell};
use crate::engine_columns::{COLUMNS as ENGINE, ENGINE_COLUMNS, engine_cells};
use crate::wire::Explain;
use evenkeel_manager::text::{self, Head, format_number, format_percent};

/// A load that is older than this is shown with its age.
const OLD: f64 = 5.0;

/// A group as it is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupView {
    /// Name of the group.
    pub name: String,
    /// Name of what has made the group; empty if the group stands in the configuration.
    pub owner: String,
    /// Strategy of the group, with parameters that are not the default's.
    pub strategy: String,
    /// True if so many members are out that health is ignored.
    pub panic: bool,
    /// True while clients of rules get its maintenance page.
    pub maintenance: bool,
    /// Requests per second.
    pub rate: f64,
    /// Members that take traffic.
    pub usable: usize,
    /// The members, in the order of the group.
    pub members: Vec<MemberView>,
}

/// A member as it is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemberView {
    /// Name of the member.
    pub name: String,
    /// Address of a member with a name, as the configuration has it; empty if the address is the name.
    pub member: String,
    /// `ready`, or why it gets no new traffic.
    pub state: String,
    /// Mood of the state: how much it is worth worrying about.
    pub mood: MemberCondition,
    /// Current weight.
    pub weight: f64,
    /// Share of the group's requests, 0 to 1.
    pub share: f64,
    /// Requests per second.
    pub rate: f64,
    /// Requests or connections that the member has now.
    pub in_flight: u64,
    /// Median of the latency.
    pub p50: Option<Duration>,
    /// 99th percentile of the latency.
    pub p99: Option<Duration>,
    /// Mean time to the first byte of streams.
    pub first_byte: Option<Duration>,
    /// Mean pace of streams in bytes per second.
    pub pace: Option<f64>,
    /// Share of the requests that failed, 0 to 1.
    pub failures: f64,
    /// The load that the group goes by, as its location reports it; empty if it does not.
    pub load: String,
    /// Load alert of the member's location, and since when; empty if there is none.
    pub alert: String,
    /// Reason why the last health check failed, or why there was no TLS with the member; empty otherwise.
    pub check: String,
    /// Time left of its ejection, and the cause; empty if it is not ejected.
    pub ejection: String,
    /// Reports of sources that say more than `up`.
    pub reports: String,
    /// Name of its location.
    pub location: String,
    /// Address of the member; empty if its name is the address, or if the address is not known.
    pub address: String,
    /// Weight of the member with reported weights and slow start applied; 0 if the member gets no new
    /// traffic.
    pub effective_weight: f64,
    /// Smoothed latency.
    pub latency: Option<Duration>,
    /// Most requests or connections of the member at once.
    pub limit: Option<u32>,
    /// Requests since it was added.
    pub requests: u64,
    /// Tokens of the member, if the group has engines.
    pub engine: Option<EngineStatus>,
}

/// Condition of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemberCondition {
    /// The member takes traffic.
    #[default]
    Good,
    /// The member takes no traffic, or less, because somebody wants it so, or the member has just come back.
    Intended,
    /// The member takes no traffic because it does not work.
    Bad,
}

const COLUMNS: [Column; 23 + ENGINE_COLUMNS] = [
    Column::of_words("MEMBER", 0).cut_to(16, 32),
    Column::of_words("AT", 4).cut_to(16, 32),
    Column::of_words("STATE", 1).cut_to(10, 24),
    Column::of_numbers("WEIGHT", 6),
    Column::of_words("SHARE", 4),
    Column::of_numbers("REQ/S", 1),
    Column::of_numbers("IN FLIGHT", 7),
    Column::of_numbers("P50", 6),
    Column::of_numbers("P99", 2),
    Column::of_numbers("FIRST BYTE", 6),
    Column::of_numbers("BYTES/S", 7),
    ENGINE[0],
    ENGINE[1],
    ENGINE[2],
    ENGINE[3],
    ENGINE[4],
    ENGINE[5],
    ENGINE[6],
    ENGINE[7],
    ENGINE[8],
    Column::of_numbers("FAILED", 2),
    Column::of_words("LOAD", 4).cut_to(10, 24),
    Column::of_words("ALERT", 3),
    Column::of_words("CHECK", 3).cut_to(20, 40),
    Column::of_words("EJECTION", 3).cut_to(20, 40),
    Column::of_words("REPORTS", 5).cut_to(20, 40),
    Column::of_words("LOCATION", WIDE).cut_to(12, 24),
    Column::of_words("ADDRESS", WIDE),
    Column::of_numbers("EFFECTIVE", WIDE),
    Column::of_numbers("SMOOTHED", WIDE),
    Column::of_numbers("LIMIT", WIDE),
    Column::of_numbers("REQUESTS", WIDE),
];

/// Width of the bar that shows a share.
const BAR: usize = 10;

impl GroupView {
    /// Returns all groups of a status.
    pub fn all_groups(status: &Status) -> Vec<GroupView> {
        let view = |group| GroupView::of_group(group, &status.locations);
        status.groups.iter().map(view).collect()
    }

    /// Returns a group whose members are at some of `locations`.
    pub fn of_group(group: &GroupStatus, locations: &[LocationStatus]) -> GroupView {
        let view = |member| MemberView::from_status(member, &group.load, locations);
        GroupView {
            name: group.name.clone(),
            owner: group.owner.clone().unwrap_or_default().into_owned(),
            strategy: strategy_line(group),
            panic: group.panic,
            maintenance: group.maintenance,
            rate: request_rate(&group.recent),
            usable: {
                let members = group.members.iter();
                members
                    .filter(|member| member.effective_weight > 0.0)
                    .count()
            },
            members: group.members.iter().map(view).collect(),
        }
    }

    /// Returns the line above the table.
    pub fn title_line(&self) -> Line<'static> {
        let mut spans = vec![Span::styled(
            clean_text(&self.name),
            Style::new().add_modifier(Modifier::BOLD),
        )];
        if !self.owner.is_empty() {
            spans.push(Span::raw(format!(" ({})", clean_text(&self.owner))));
        }
        spans.push(Span::raw(format!(
            "  {}  {} req/s",
            clean_text(&self.strategy),
            format_number(self.rate)
        )));
        if self.panic {
            let loud = Style::new().fg(Color::White).bg(Color::Red);
            spans.push(Span::raw("  "));
            spans.push(Span::styled(" PANIC: health is ignored ", loud));
        }
        if self.maintenance {
            spans.push(Span::raw("  in maintenance"));
        }
        Line::from(spans)
    }

    /// Returns the members, a row each, in `room` columns of the terminal.
    pub fn draw_table(&self, room: u16) -> Table<'static> {
        self.member_listing().draw_table(room, None)
    }

    /// Returns the group as plain text.
    pub fn plain_text(&self) -> String {
        format!(
            "{}\n{}",
            self.title_line(),
            self.member_listing().plain_text()
        )
    }

    /// Returns the members, a row each.
    pub(crate) fn member_listing(&self) -> Listing {
        let columns = &COLUMNS;
        let rows = self.members.iter().map(MemberView::member_row).collect();
        Listing { columns, rows }
    }
}

/// True if a group whose load is called `load` uses this load.
fn is_meant(known: &LoadStatus, load: &str) -> bool {
    known.id == load || known.first && load == LoadId::FIRST.to_string()
}

/// Returns a reason why a member gets nothing new, with who says so if that is another balancer.
fn reason_word(member: &MemberStatus, reason: &str) -> String {
    let by = member
        .ejection
        .as_ref()
        .and_then(|ejection| ejection.by.as_ref());
    match by.filter(|_| reason == "ejected") {
        Some(by) => format!("{reason} by {by}"),
        None => reason.to_owned(),
    }
}

/// Returns the time that is left of an ejection, in whole seconds, and its cause.
pub(crate) fn ejection_line(ejection: &EjectionStatus) -> String {
    let left = Duration::try_from_secs_f64(ejection.seconds_left.ceil()).unwrap_or_default();
    let left = text::format_duration(left);
    // A balancer of another version may not say.
    let mut line = match ejection.why.as_str() {
        "" => format!("{left} left"),
        why => format!("{left} left: {why}"),
    };
    // Trials that have not ended say nothing.
    if let Some(trials) = ejection.trials.filter(|trials| trials.ended > 0) {
        line.push_str(&format!("; {trials}"));
    }
    line
}

impl MemberView {
    /// Returns the view of a member. `load` is the load that the group's strategy looks at: agents report a
    /// dozen.
    fn from_status(member: &MemberStatus, load: &str, locations: &[LocationStatus]) -> MemberView {
        let recent = &member.recent;
        let location = locations
            .iter()
            .find(|location| location.name == member.location);
        let is_bad = ["down", "reported_down", "dead", "ejected", "unresolved"];
        MemberView {
            name: member.name.clone(),
            member: match member.member == member.name {
                true => String::new(),
                false => member.member.clone(),
            },
            state: match member.reasons.as_slice() {
                [] => member.state.to_string(),
                reasons => {
                    let words = reasons.iter().map(|reason| reason_word(member, reason));
                    words.collect::<Vec<_>>().join(", ")
                }
            },
            mood: match member.reasons.first() {
                _ if member
                    .reasons
                    .iter()
                    .any(|reason| is_bad.contains(&&**reason)) =>
                {
                    MemberCondition::Bad
                }
                None if member.state == "up" => MemberCondition::Good,
                _ => MemberCondition::Intended,
            },
            weight: f64::from(member.weight),
            share: member.share,
            rate: request_rate(recent),
            in_flight: u64::from(member.in_flight),
            p50: duration_of_millis(recent.p50_ms),
            p99: duration_of_millis(recent.p99_ms),
            first_byte: duration_of_millis(recent.first_byte_ms),
            pace: recent.stream_bytes_per_second,
            failures: failure_share(recent),
            load: location
                .and_then(|location| location.loads.iter().find(|known| is_meant(known, load)))
                .map(load_word)
                .unwrap_or_default(),
            alert: location.map(alert_word).unwrap_or_default(),
            check: {
                let mut found = member.check.iter().chain(&member.tls);
                found
                    .find_map(|found| found.error.clone())
                    .unwrap_or_default()
            },
            ejection: member
                .ejection
                .as_ref()
                .map(ejection_line)
                .unwrap_or_default(),
            reports: {
                let told = member
                    .opinions
                    .iter()
                    .filter(|opinion| opinion.says != "up");
                let told = told.map(|opinion| format!("{}: {}", opinion.source, opinion.says));
                told.collect::<Vec<_>>().join("; ")
            },
            location: member.location.clone(),
            address: match &member.address {
                Some(address) if *address != member.name && *address != member.member => {
                    address.clone()
                }
                _ => String::new(),
            },
            effective_weight: f64::from(member.effective_weight),
            latency: duration_of_millis(member.latency_ms),
            limit: member.max_connections,
            requests: member.totals.requests,
            engine: member.engine,
        }
    }

    fn member_row(&self) -> Row {
        let told_apart = |text: &str, known: &str| {
            let text = if text == known { "" } else { text };
            text.to_owned().into()
        };
        let share = format!("{:>5}", format_percent(self.share));
        let traffic = [
            self.name.clone().into(),
            self.member.clone().into(),
            self.state.clone().into(),
            Cell::of_number(self.weight, format_number(self.weight)),
            Cell::of_number(
                self.share,
                format!("{} {share}", format_bar(self.share, BAR)),
            )
            .or_short(share),
            Cell::of_number(self.rate, format_number(self.rate)),
            count(self.in_flight),
            latency_cell(self.p50),
            latency_cell(self.p99),
            // Empty rather than a dash: without streams there is no such column.
            self.first_byte
                .map_or_else(Cell::default, |time| latency_cell(Some(time))),
            self.pace.map_or_else(Cell::default, |pace| {
                Cell::of_number(pace, format_number(pace))
            }),
        ];
        let condition = [
            Cell::of_number(self.failures, format_percent(self.failures)),
            self.load.clone().into(),
            self.alert.clone().into(),
            self.check.clone().into(),
            self.ejection.clone().into(),
            self.reports.clone().into(),
            told_apart(&self.location, &self.name),
            self.address.clone().into(),
            match format_number(self.effective_weight) {
                same if same == format_number(self.weight) => String::new().into(),
                other => Cell::of_number(self.effective_weight, other),
            },
            latency_cell(self.latency),
            self.limit
                .map_or_else(Cell::default, |limit| count(limit.into())),
            count(self.requests),
        ];
        let engine = engine_cells(self.engine.as_ref());
        let cells: Vec<Cell> = traffic.into_iter().chain(engine).chain(condition).collect();
        debug_assert_eq!(cells.len(), COLUMNS.len());
        Row {
            name: self.name.clone(),
            cells,
            style: self.row_style(),
        }
    }

    fn row_style(&self) -> Style {
        match self.mood {
            MemberCondition::Bad => Style::new().fg(Color::Red),
            _ if !self.alert.is_empty() => Style::new().fg(Color::Magenta),
            MemberCondition::Intended => Style::new().fg(Color::Yellow),
            MemberCondition::Good => Style::new(),
        }
    }
}

/// Returns the strategy, with those of its parameters that are not as usual.
fn strategy_line(group: &GroupStatus) -> String {
    let usual = strategy::find(&group.strategy);
    let params = group.params.iter().filter(|param| {
        let mut known = usual.iter().flat_map(|kind| kind.params);
        !known.any(|known| known.name == param.name && known.default == param.value)
    });
    let mut line = group.strategy.to_string();
    for param in params {
        line.push_str(&format!(" {}={}", param.name, param.value));
    }
    line
}

/// Returns the loads of a location in one line.
pub fn loads_line(location: &LocationStatus) -> String {
    let loads = location.loads.iter().map(load_word);
    loads.collect::<Vec<_>>().join(" ")
}

fn load_word(load: &LoadStatus) -> String {
    let value = format!("{}={}", load.id, digits_of(f64::from(load.value)));
    match Duration::try_from_secs_f64(load.age_seconds) {
        Ok(age) if load.expired => format!("{value} (unknown for {})", text::format_duration(age)),
        Ok(age) if load.age_seconds > OLD => {
            format!("{value} ({} old)", text::format_duration(age))
        }
        _ => value,
    }
}

/// Returns `ALERT` and for how long the location has had an alert; empty if there is none.
fn alert_word(location: &LocationStatus) -> String {
    let age = location.alerts.iter().map(|alert| alert.age_seconds);
    let age = Duration::try_from_secs_f64(age.fold(0.0, f64::max)).unwrap_or_default();
    match (location.alert, location.alert_setting) {
        (false, _) => String::new(),
        (true, AlertSetting::On) => "ALERT set".into(),
        (true, _) => format!("ALERT {}", text::format_duration(age)),
    }
}

/// Returns who has set a location's load alert, since when, and because of which load.
pub fn alert_line(location: &LocationStatus) -> String {
    let mut words: Vec<String> = match location.alert_setting {
        AlertSetting::Auto => Vec::new(),
        AlertSetting::On => vec!["ALERT set by an administrator".into()],
        AlertSetting::Off => vec!["set to off by an administrator".into()],
    };
    for alert in &location.alerts {
        let age = Duration::try_from_secs_f64(alert.age_seconds).unwrap_or_default();
        words.push(format!(
            "{}{} for {}: load {} above {}",
            if location.alert { "ALERT by " } else { "" },
            alert.group,
            text::format_duration(age),
            format_number(f64::from(alert.load)),
            format_number(f64::from(alert.threshold)),
        ));
    }
    words.join("; ")
}

/// Returns the next and the last decision of a group with their reasons, as plain text.
pub fn format_explanation(explain: &Explain) -> String {
    explain_within(explain, usize::MAX)
}

/// Returns the explanation in lines of `room` characters.
pub(crate) fn explain_within(explain: &Explain, room: usize) -> String {
    let mut text = format_decision("The next request would go to", &explain.next, room);
    match &explain.last {
        Some(last) => {
            let age = Duration::try_from_secs_f64(last.age_seconds).unwrap_or_default();
            let what = match last.in_kernel {
                true => "the kernel sent a connection to",
                false => "a request went to",
            };
            let intro = format!("\n{} ago {what}", text::format_duration(age));
            text.push_str(&format_decision(&intro, last, room));
        }
        None => text.push_str("\nThe group has had no request yet.\n"),
    }
    text
}

fn format_decision(intro: &str, explained: &Explained, room: usize) -> String {
    let heads = [
        Head::words("  MEMBER"),
        Head::numbers("SCORE"),
        Head::words("VERDICT"),
    ];
    let chosen = match (&explained.chosen, &explained.error) {
        (Some(member), _) => clean_text(member),
        (None, error) => format!(
            "nobody: {}",
            clean_text(error.as_deref().unwrap_or("unknown"))
        ),
    };
    let mut text = format!("{intro} {chosen} ({})\n", clean_text(&explained.strategy));
    for note in &explained.notes {
        for line in text::wrap(&clean_text(note), room.saturating_sub(2)) {
            text.push_str(&format!("  {line}\n"));
        }
    }
    let rows: Vec<_> = explained
        .candidates
        .iter()
        .map(|candidate| {
            let chosen = explained.chosen.as_ref() == Some(&candidate.member);
            vec![
                format!("{} {}", if chosen { ">" } else { " " }, candidate.member),
                candidate.score.map_or("-".into(), format_score),
                candidate.verdict.clone(),
            ]
        })
        .collect();
    if !rows.is_empty() {
        text.push_str(&text::table_within(&heads, &rows, room));
    }
    text
}

/// Writes a score as it is, if it can be read; scores differ by orders of magnitude.
fn format_score(score: f64) -> String {
    match score.abs() {
        0.0 => "0".into(),
        magnitude if (1e-3..1e6).contains(&magnitude) => digits_of(score),
        _ => format!("{score:.3e}"),
    }
}

/// Returns a number with three digits that say something, as far as it has any behind the point, down to a
/// millionth: response times are loads, too.
fn digits_of(number: f64) -> String {
    // Of zero it is minus infinity.
    let magnitude = number.abs().log10().floor().clamp(-4.0, 2.0) as i32;
    let decimals = (2 - magnitude) as usize;
    let text = format!("{number:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').into()
    } else {
        text
    }
}

/// Returns the requests per second.
pub(crate) fn request_rate(recent: &Recent) -> f64 {
    if recent.seconds > 0.0 {
        recent.picks as f64 / recent.seconds
    } else {
        0.0
    }
}

/// Returns the share of requests that failed.
pub(crate) fn failure_share(recent: &Recent) -> f64 {
    match recent.picks.max(recent.failures) {
        0 => 0.0,
        all => recent.failures as f64 / all as f64,
    }
}

fn format_bar(share: f64, width: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * (width * 8) as f64).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    if let Some(part) = ["▏", "▎", "▍", "▌", "▋", "▊", "▉"].get((eighths % 8).wrapping_sub(1))
    {
        bar.push_str(part);
    }
    format!("{bar:·<width$}")
}

fn clean_text(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn view() -> GroupView {
        let member = |name: &str, share| MemberView {
            name: name.into(),
            state: "ready".into(),
            weight: 1.0,
            share,
            rate: 100.0 * share,
            in_flight: 3,
            p50: Some(Duration::from_micros(900)),
            p99: Some(Duration::from_millis(12)),
            ..MemberView::default()
        };
        GroupView {
            name: "web".into(),
            owner: String::new(),
            strategy: "adaptive".into(),
            panic: true,
            maintenance: false,
            rate: 100.0,
            usable: 2,
            members: vec![
                MemberView {
                    load: "cpu 0.4".into(),
                    alert: "ALERT".into(),
                    ..member("a:80", 0.75)
                },
                MemberView {
                    state: "down".into(),
                    mood: MemberCondition::Bad,
                    p50: None,
                    p99: None,
                    failures: 1.0,
                    ..member("b:80", 0.25)
                },
            ],
        }
    }

    #[test]
    fn loads_have_three_digits_however_small_they_are() {
        let texts = [0.0, 0.000_871_6, 0.25, 1.0, 12.345, 1234.5].map(digits_of);
        assert_eq!(texts, ["0", "0.000872", "0.25", "1", "12.3", "1234"]);
    }

    #[test]
    fn g6_a_name_stands_beside_the_address() {
        let mut view = view();
        view.members[0].name = "s1".into();
        view.members[0].member = "a:80".into();
        let plain = view.plain_text();
        let cells = |line: &str| -> Vec<String> {
            line.split_whitespace().take(3).map(str::to_owned).collect()
        };
        let rows: Vec<_> = plain.lines().skip(1).map(cells).collect();
        assert_eq!(rows[0], ["MEMBER", "AT", "STATE"], "{plain}");
        assert_eq!(rows[1], ["s1", "a:80", "ready"], "{plain}");
        assert_eq!(rows[2][..2], ["b:80", "down"], "{plain}");
    }

    #[test]
    fn plain_text_lines_up() {
        let wanted = "\
web  adaptive  100 req/s   PANIC: health is ignored \n\
MEMBER  STATE  WEIGHT  SHARE             REQ/S  IN FLIGHT    P50   P99  FAILED  LOAD     ALERT\n\
a:80    ready       1  ███████▌··   75%     75          3  900us  12ms      0%  cpu 0.4  ALERT\n\
b:80    down        1  ██▌·······   25%     25          3      -     -    100%\n";
        assert_eq!(view().plain_text(), wanted);
        let in_maintenance = GroupView {
            panic: false,
            maintenance: true,
            ..view()
        };
        let title = "web  adaptive  100 req/s  in maintenance\n";
        assert!(in_maintenance.plain_text().starts_with(title));
        let mut owned = view();
        owned.owner = "corba".into();
        assert!(
            owned
                .plain_text()
                .starts_with("web (corba)  adaptive  100 req/s")
        );
    }

    #[test]
    fn a_terminal_shows_the_same_table_with_colours() {
        let mut terminal = Terminal::new(TestBackend::new(100, 3)).unwrap();
        terminal
            .draw(|frame| frame.render_widget(view().draw_table(100), frame.area()))
            .unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y: u16| -> String {
            (0..100)
                .map(|x| buffer[(x, y)].symbol())
                .collect::<String>()
                .trim_end()
                .into()
        };
        let plain = view().plain_text();
        let wanted: Vec<&str> = plain.lines().skip(1).collect();
        assert_eq!([line(0), line(1), line(2)], wanted[..]);
        assert_eq!(buffer[(0, 1)].fg, Color::Magenta);
        assert_eq!(buffer[(0, 2)].fg, Color::Red);
    }

    #[test]
    fn a_narrow_terminal_loses_gaps_and_bars_before_it_loses_news() {
        let line = |room: u16| {
            let mut terminal = Terminal::new(TestBackend::new(room, 2)).unwrap();
            terminal
                .draw(|frame| frame.render_widget(view().draw_table(room), frame.area()))
                .unwrap();
            let buffer = terminal.backend().buffer();
            let line = (0..room).map(|x| buffer[(x, 1)].symbol());
            line.collect::<String>().trim_end().to_owned()
        };
        assert_eq!(
            line(85),
            "a:80   ready      1 ███████▌··   75%    75         3 900us 12ms     0% cpu 0.4 ALERT"
        );
        assert_eq!(
            line(75),
            "a:80   ready      1   75%    75         3 900us 12ms     0% cpu 0.4 ALERT"
        );
        // What says least goes next, and never a part of a word without a mark.
        assert_eq!(
            line(64),
            "a:80   ready      1   75%    75 900us 12ms     0% cpu 0.4 ALERT"
        );
        assert_eq!(line(40), "a:80   ready    75 12ms     0% ALERT");
    }

    #[test]
    fn columns_without_news_are_left_out() {
        let mut view = view();
        assert!(!view.plain_text().contains("CHECK"));
        view.members[1].check = "connection refused".into();
        view.members[0].alert.clear();
        view.members[0].load = String::new();
        let plain = view.plain_text();
        assert!(plain.contains("FAILED  CHECK\n"), "{plain}");
        assert!(plain.contains("100%  connection refused\n"), "{plain}");
    }

    #[test]
    fn bars_are_always_as_wide() {
        for share in [-1.0, 0.0, 0.01, 0.5, 0.99, 1.0, 7.0, f64::NAN] {
            assert_eq!(format_bar(share, BAR).chars().count(), BAR, "{share}");
        }
    }
}
