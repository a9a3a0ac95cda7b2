//! The state of `evenkeel top` on a screen of any size.

use std::time::Instant;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, TableState};

use super::app::{App, KEYS, Prompt};
use super::overview;
use crate::view;
use evenkeel_manager::text::{self, ellipsis, width};

/// The most lines that a message gets.
const MOST: usize = 3;

const LOUD: Style = Style::new().fg(Color::White).bg(Color::Red);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

impl App {
    pub(super) fn draw_screen(&mut self, frame: &mut Frame<'_>, now: Instant) {
        let area = frame.area();
        let room = usize::from(area.width);
        let status = self.status_lines(room);
        let why = self.explaining.then(|| self.explanation_lines(room));
        let listing = self.shown_listing();
        let rows = listing.as_ref().map_or(0, |listing| listing.rows.len());
        let height = |lines: usize| u16::try_from(lines).unwrap_or(u16::MAX);
        // Where both are long, the table and the explanation get half of the screen each.
        let spare = usize::from(area.height).saturating_sub(4 + status.len() + rows);
        let most = spare.max(usize::from(area.height) / 2);
        let why_height = why.as_ref().map_or(0, |lines| (lines.len() + 1).min(most));
        let [head, title, table, below, bottom, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Min(2),
            Constraint::Length(height(why_height)),
            Constraint::Length(height(status.len())),
            Constraint::Length(1),
        ])
        .areas(area);
        frame.render_widget(fit_line(self.head_line(now), room), head);
        frame.render_widget(fit_line(self.table_title(), room), title);
        if let Some(listing) = listing {
            if listing.rows.is_empty() {
                let nothing = if self.cursor().filter.is_empty() {
                    "there is nothing here"
                } else {
                    "nothing matches the filter; Esc ends it"
                };
                frame.render_widget(Line::styled(nothing, DIM), table);
            }
            let old = if self.error.is_some() {
                DIM
            } else {
                Style::new()
            };
            let cursor = self.cursor_mut();
            let mut state = TableState::new().with_offset(cursor.offset);
            state.select(cursor.find_selected(&listing.rows));
            let widget = listing.draw_table(table.width, cursor.sort).style(old);
            frame.render_stateful_widget(widget, table, &mut state);
            cursor.offset = state.offset();
        }
        self.page = usize::from(table.height).saturating_sub(1).max(1);
        if let Some(lines) = why {
            self.draw_why(frame, below, &lines);
        }
        frame.render_widget(Paragraph::new(status), bottom);
        frame.render_widget(fit_line(Line::styled(self.key_hint(), DIM), room), keys);
        if self.help {
            draw_help(frame);
        }
    }

    /// Returns the line with the address of the balancer, which also says whether the picture can be trusted.
    fn head_line(&self, now: Instant) -> Line<'static> {
        let Some(picture) = &self.picture else {
            return Line::raw(format!("asking {} …", self.address));
        };
        let mut spans = vec![Span::raw(format!("evenkeel at {}  ", self.address))];
        let mut mark = |text: String, style| {
            spans.extend([Span::styled(text, style), Span::raw("  ")]);
        };
        if self.error.is_some() {
            let age = text::format_duration(now.saturating_duration_since(picture.at));
            mark(format!(" OLD: {age} ago; asking again "), LOUD);
        }
        if self.paused {
            mark(" PAUSED ".into(), REVERSED);
        }
        let reload = picture.status.last_reload.as_ref();
        if reload.is_some_and(|reload| reload.error.is_some()) {
            mark(" the current file was refused ".into(), LOUD);
        }
        spans.push(Span::raw(format!(
            "configuration {}, every {}",
            picture.status.generation,
            text::format_duration(self.interval),
        )));
        Line::from(spans)
    }

    /// Returns the title of the table.
    fn table_title(&self) -> Line<'static> {
        let mut line = match (self.open_group(), &self.picture) {
            (Some(group), _) => group.title_line(),
            (None, Some(picture)) => {
                Line::raw(overview::totals_line(&picture.status, &picture.groups))
            }
            (None, None) => Line::default(),
        };
        let filter = &self.cursor().filter;
        if !filter.is_empty() {
            let filter = Span::styled(format!(" /{filter} "), REVERSED);
            line.spans.splice(0..0, [filter, Span::raw("  ")]);
        }
        line
    }

    fn key_hint(&self) -> &'static str {
        if self.open_group().is_some() {
            "? help  Esc back  d drain  m maintenance  u ready  w weight  < > sort  / filter  e why  q quit"
        } else {
            "? help  Enter open  < > sort  / filter  e why  p pause  q quit"
        }
    }

    /// Returns the question or message for the user: nothing, or a few lines.
    fn status_lines(&self, room: usize) -> Vec<Line<'static>> {
        let asked = Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD);
        let wrong = Style::new().fg(Color::Red);
        let (text, style) = match (&self.prompt, &self.message, &self.error) {
            (Some(Prompt::Filter), ..) => (
                format!("filter (Enter, Esc): {}█", self.cursor().filter),
                asked,
            ),
            (Some(Prompt::Weight(member, text)), ..) => (
                format!("weight of {member}, 0 to 1000 (Enter, Esc): {text}█"),
                asked,
            ),
            (Some(Prompt::Alert(location, text)), ..) => (
                format!("load alert of {location}: on, off or auto (Enter, Esc): {text}█"),
                asked,
            ),
            (Some(Prompt::Confirm(command)), ..) => {
                (format!("{} (y/n)", command.question()), asked)
            }
            (None, Some(message), _) if message.is_error => (message.text.clone(), wrong),
            (None, Some(message), _) => (message.text.clone(), Style::new()),
            (None, None, Some(error)) => (error.clone(), wrong),
            (None, None, None) => return Vec::new(),
        };
        let mut lines = text::wrap(&text, room);
        if lines.len() > MOST {
            // The end of a question says how it is answered.
            let last = lines.len() - 1;
            lines.drain(MOST - 1..last);
            lines[MOST - 2].push('…');
        }
        let lines = lines.into_iter();
        lines
            .map(|line| Line::styled(ellipsis(&line, room), style))
            .collect()
    }

    /// Returns the reasons why the next request goes to its member.
    fn explanation_lines(&self, room: usize) -> Vec<String> {
        let text = match self.explanation() {
            Some(Ok(explain)) => view::explain_within(explain, room),
            Some(Err(error)) => text::wrap(&error.to_string(), room).join("\n"),
            None => "asking …".into(),
        };
        text.lines().map(|line| ellipsis(line, room)).collect()
    }

    fn draw_why(&mut self, frame: &mut Frame<'_>, area: Rect, lines: &[String]) {
        let shown = usize::from(area.height).saturating_sub(1);
        self.page = shown.max(1);
        self.scrolled = self.scrolled.min(lines.len().saturating_sub(shown));
        let end = (self.scrolled + shown).min(lines.len());
        let mut block = Block::new().borders(Borders::TOP);
        if shown < lines.len() {
            let from = self.scrolled + 1;
            block = block.title(format!(
                " lines {from} to {end} of {}, PgUp PgDn ",
                lines.len()
            ));
        }
        let lines = lines[self.scrolled..end].iter();
        let text: Vec<Line> = lines.map(|line| Line::raw(line.clone())).collect();
        frame.render_widget(Paragraph::new(text).block(block), area);
    }
}

/// Returns a line in at most `room` characters; if it is cut, it ends with an ellipsis.
fn fit_line(line: Line<'static>, room: usize) -> Line<'static> {
    let mut left = room;
    let whole: usize = line.spans.iter().map(|span| width(&span.content)).sum();
    if whole <= room {
        return line;
    }
    let mut spans = Vec::new();
    for span in line.spans {
        let len = width(&span.content);
        if len < left {
            left -= len;
            spans.push(span);
        } else {
            // Something follows, or is left out.
            let cut: String = span.content.chars().take(left.saturating_sub(1)).collect();
            spans.push(Span::styled(cut + "…", span.style));
            break;
        }
    }
    Line::from(spans).style(line.style)
}

fn draw_help(frame: &mut Frame<'_>) {
    let longest = KEYS.iter().map(|(keys, _)| width(keys)).max().unwrap_or(0);
    let lines = KEYS.map(|(keys, what)| format!(" {keys:<longest$}  {what} "));
    let inner = lines.iter().map(|line| width(line)).max().unwrap_or(0);
    let size = |size: usize| u16::try_from(size + 2).unwrap_or(u16::MAX);
    let area = frame.area().centered(
        Constraint::Length(size(inner)),
        Constraint::Length(size(lines.len())),
    );
    let text: Vec<Line> = lines.into_iter().map(Line::raw).collect();
    let block = Block::bordered()
        .title(" Keys ")
        .title_bottom(" any key ends this ");
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(text).block(block), area);
}
