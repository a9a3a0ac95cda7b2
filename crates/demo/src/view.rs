//! The live view: all arms, one above the other, on one scale.

use std::time::{Duration, Instant};

use evenkeel_admin::view::GroupView;
use evenkeel_manager::text::format_duration;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline};

use crate::load::{self, Quantiles};
use crate::show::Show;
use crate::stage::{Arm, HAPROXY, SLOWDOWN, Stage, TURNS_SLOW};

/// The clients' figures are those of the last five seconds.
const WINDOW: Duration = Duration::from_secs(5);

/// Returns the text that tells a curious user where to find more, printed before the view starts.
pub(crate) fn where_to_look(stage: &Stage) -> String {
    format!(
        "The balancer runs with {config},\n\
         its admin API is at {admin}. In another terminal:\n\
         \n  curl http://{adaptive}/                                the default strategy\n  \
         http://{admin}/console/                       the same in a browser, and more\n  \
         evenkeel top --admin {admin}                     every member, live\n  \
         evenkeel ctl --admin {admin} explain adaptive    why a member was chosen\n  \
         curl http://{admin}/metrics                      for Prometheus\n",
        config = stage.config.display(),
        admin = stage.admin,
        adaptive = stage.arms[0].listen,
    )
}

/// Draws everything.
pub(crate) fn draw_view(show: &Show, frame: &mut Frame<'_>) {
    let arms = show.stage.arms.len();
    // Where there is no room for all of it, the members of each arm are left out last to first.
    let rest = usize::from(frame.area().height.saturating_sub(3 + 2));
    let height = (rest / arms.max(1)).clamp(4, 10);
    let mut heights = vec![Constraint::Length(3)];
    heights.extend(vec![Constraint::Length(height as u16); arms]);
    heights.push(Constraint::Min(2));
    let areas = Layout::vertical(heights).split(frame.area());
    frame.render_widget(Paragraph::new(head(show)), areas[0]);
    let groups = groups(show);
    // One scale for all arms, or the comparison would lie.
    let scale = show.history.0.iter().flatten().max().copied();
    for (index, arm) in show.stage.arms.iter().enumerate() {
        let past = show.history.0.get(index).map_or(&[][..], Vec::as_slice);
        let group = groups.iter().find(|group| group.name == arm.name);
        draw_arm(frame, areas[index + 1], arm, group, past, scale);
    }
    let admin = show.stage.admin;
    frame.render_widget(
        Paragraph::new(vec![
            Line::from(format!(
                "see also: http://{admin}/console/ in a browser; evenkeel ctl --admin {admin} explain adaptive"
            )),
            Line::from("q or Ctrl-C ends everything"),
        ])
        .style(Style::new().add_modifier(Modifier::DIM)),
        areas[arms + 1],
    );
}

fn head(show: &Show) -> Vec<Line<'static>> {
    let mut lines = vec![Line::from(vec![
        Span::styled("Evenkeel", Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(format!(
            "   the same {:.0} requests per second to four back-ends of different speed, {} times",
            show.stage.rate,
            show.stage.arms.len()
        )),
    ])];
    let loud = Style::new().fg(Color::Black).bg(Color::Yellow);
    lines.push(match show.phases.last() {
        Some(phase) if phase.slow => Line::styled(format!(" {} ", situation(show)), loud),
        _ => Line::from(situation(show)),
    });
    lines
}

/// Returns a sentence about what is going on with the back-ends.
fn situation(show: &Show) -> String {
    let Some(phase) = show.phases.last() else {
        return String::new();
    };
    let number = TURNS_SLOW + 1;
    let passed = show.started.elapsed();
    let left = phase.to.saturating_sub(passed).as_secs() + 1;
    let since = passed.saturating_sub(phase.from).as_secs();
    if phase.slow {
        format!("back-end {number} is {SLOWDOWN} times slower since {since} s, for {left} s more")
    } else {
        format!("all back-ends are as usual for {left} s more; then back-end {number} turns slow")
    }
}

fn draw_arm(
    frame: &mut Frame<'_>,
    area: Rect,
    arm: &Arm,
    group: Option<&GroupView>,
    past: &[Duration],
    scale: Option<Duration>,
) {
    let [title, clients, chart, table] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Min(0),
    ])
    .areas(area);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    match group {
        Some(group) => frame.render_widget(Paragraph::new(group.title_line()), title),
        None => frame.render_widget(Paragraph::new(Line::styled(title_of(arm), bold)), title),
    }
    frame.render_widget(
        Paragraph::new(Line::styled(clients_line(arm), bold)),
        clients,
    );
    let width = usize::from(chart.width);
    let recent = &past[past.len().saturating_sub(width)..];
    let bars = recent
        .iter()
        .map(|p99| u64::try_from(p99.as_micros()).unwrap_or(u64::MAX));
    let scale = scale.map_or(1, |scale| u64::try_from(scale.as_micros()).unwrap_or(1));
    frame.render_widget(
        Sparkline::default()
            .data(bars.collect::<Vec<_>>())
            .max(scale)
            .style(Style::new().fg(Color::Cyan)),
        chart,
    );
    if let Some(group) = group {
        frame.render_widget(group.draw_table(table.width), table);
    }
}

/// Returns the title of the balancer of an arm.
pub(crate) fn title_of(arm: &Arm) -> &'static str {
    if arm.name == HAPROXY {
        "haproxy (leastconn)"
    } else {
        arm.name
    }
}

/// Returns what the clients of an arm see, in a line.
fn clients_line(arm: &Arm) -> String {
    let seen = load::lock_seen(&arm.seen);
    let now = Instant::now();
    let Quantiles { p50, p99, .. } = now
        .checked_sub(WINDOW)
        .map(|from| seen.quantiles(from, now, now))
        .unwrap_or_default();
    format!(
        "clients: p50 {:>6}  p99 {:>6}  waiting {:>4}  failed {}  p99 by second:",
        format_duration(p50),
        format_duration(p99),
        seen.under_way(),
        seen.failed
    )
}

/// Returns the groups of the last status, with the back-ends' speed in the members' names.
fn groups(show: &Show) -> Vec<GroupView> {
    let mut groups = show
        .status
        .as_ref()
        .map(GroupView::all_groups)
        .unwrap_or_default();
    for (group, arm) in groups.iter_mut().zip(&show.stage.arms) {
        let members = group.members.iter_mut().zip(&arm.backends);
        for (index, (member, backend)) in members.enumerate() {
            let now = backend.mean().mul_f64(backend.slowdown());
            let slow = if backend.slowdown() > 1.0 {
                " SLOW"
            } else {
                ""
            };
            member.name = format!("{} ({}{slow})", index + 1, format_duration(now));
        }
    }
    groups
}

/// Returns the view for an output that is no terminal.
pub(crate) fn plain_text(show: &Show) -> String {
    let mut text = format!(
        "{:>4} s  {}\n",
        show.started.elapsed().as_secs(),
        situation(show)
    );
    let groups = groups(show);
    for arm in &show.stage.arms {
        text.push_str(&format!("{:<20} {}\n", title_of(arm), clients_line(arm)));
        if let Some(group) = groups.iter().find(|group| group.name == arm.name) {
            text.push_str(&group.plain_text());
        }
    }
    text
}
