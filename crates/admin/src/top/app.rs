//! State and commands of `evenkeel top`, apart from the terminal and the network: answers and keys come in,
//! changes go out.

use std::time::{Duration, Instant};

use evenkeel_manager::status::Status;
use evenkeel_manager::{AdminState, AlertSetting};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::overview;
use crate::client::ClientError;
use crate::columns::{Listing, Row, Sort};
use crate::command::{Command, Member};
use crate::view::GroupView;
use crate::wire::{Done, Explain};

/// All keys, for the help and for the manual.
pub(super) const KEYS: [(&str, &str); 17] = [
    ("↑ ↓ k j PgUp PgDn Home End", "choose a row"),
    ("Enter", "open the group"),
    ("Esc Backspace", "back to all groups"),
    ("← → Tab", "previous group, next group"),
    ("< >", "sort by another column"),
    ("I r", "reverse the order"),
    ("/", "filter; Enter keeps it, Esc ends it"),
    ("e", "explain the next decision"),
    ("d", "drain the member"),
    ("m", "set it to maintenance"),
    ("u", "end drain or maintenance"),
    ("x", "end its ejection"),
    ("w", "set its weight"),
    ("a", "set its location's load alert"),
    ("p Space", "pause"),
    ("+ -", "longer, shorter update interval"),
    ("q F10 Ctrl-C", "quit"),
];

/// Intervals in which the API may be asked, in milliseconds.
const INTERVALS: [u64; 9] = [100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000];

/// The longest text that can be typed, in characters.
const LONGEST: usize = 100;

/// Questions that the API shall be asked again and again.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wish {
    /// The group whose decision is to be explained.
    pub explained: Option<String>,
    /// `None`: only when something is wanted.
    pub interval: Option<Duration>,
}

/// Findings of one look at the API.
#[derive(Debug)]
pub(super) struct ApiSnapshot {
    pub status: Status,
    /// The group whose decision was to be explained, and the explanation.
    pub explained: Option<(String, Result<Explain, ClientError>)>,
}

/// News that comes from the API.
#[derive(Debug)]
pub(super) enum ApiUpdate {
    Look(Result<Box<ApiSnapshot>, ClientError>),
    Changed(Command, Result<Done, ClientError>),
}

/// The last status that is known.
#[derive(Debug)]
pub(super) struct Picture {
    pub status: Status,
    pub groups: Vec<GroupView>,
    pub at: Instant,
}

/// The state of a table on the screen.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    /// Name of the row: rows come, go and change places.
    selected: Option<String>,
    index: usize,
    /// Rows above the first one that is shown.
    pub offset: usize,
    pub sort: Option<Sort>,
    pub filter: String,
}

impl Cursor {
    /// Finds the selected row. If it is gone, the one in its place is selected.
    pub(super) fn find_selected(&mut self, rows: &[Row]) -> Option<usize> {
        let selected = self.selected.as_deref();
        let known = rows.iter().position(|row| Some(&*row.name) == selected);
        self.index = known.unwrap_or(self.index.min(rows.len().saturating_sub(1)));
        let row = rows.get(self.index)?;
        self.selected = Some(row.name.clone());
        Some(self.index)
    }

    fn step_selection(&mut self, rows: &[Row], by: isize) {
        if self.find_selected(rows).is_some() {
            let next = self.index.saturating_add_signed(by);
            self.index = next.min(rows.len().saturating_sub(1));
            self.selected = None;
            self.find_selected(rows);
        }
    }
}

/// Question that the user is asked.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Prompt {
    Filter,
    /// A weight, as far as it is typed.
    Weight(Member, String),
    /// Load alert setting of a location, as far as it is typed.
    Alert(String, String),
    Confirm(Command),
}

/// Message that the user sees until the next key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub text: String,
    pub is_error: bool,
}

/// The state of the whole view.
#[derive(Debug)]
pub(super) struct App {
    pub address: String,
    pub interval: Duration,
    pub paused: bool,
    /// Picture of the balancer; none before the first answer.
    pub picture: Option<Picture>,
    /// Reason why the last look found nothing.
    pub error: Option<String>,
    /// Name of the group that is open.
    open: Option<String>,
    /// In the table of all groups, and in that of the open one.
    cursors: [Cursor; 2],
    pub explaining: bool,
    explanation: Option<(String, Result<Explain, ClientError>)>,
    /// Lines of the explanation above the first one that is shown.
    pub scrolled: usize,
    pub help: bool,
    pub prompt: Option<Prompt>,
    pub message: Option<Message>,
    /// Rows of the table that fit the screen, or lines of the explanation.
    pub page: usize,
    pub done: bool,
}

impl App {
    pub(super) fn new(address: &str, interval: Duration) -> Self {
        App {
            address: address.into(),
            interval,
            paused: false,
            picture: None,
            error: None,
            open: None,
            cursors: Default::default(),
            explaining: false,
            explanation: None,
            scrolled: 0,
            help: false,
            prompt: None,
            message: None,
            page: 1,
            done: false,
        }
    }

    pub(super) fn take_update(&mut self, news: ApiUpdate, at: Instant) {
        match news {
            ApiUpdate::Look(Ok(look)) => {
                self.picture = Some(Picture {
                    groups: GroupView::all_groups(&look.status),
                    status: look.status,
                    at,
                });
                self.explanation = look.explained;
                self.error = None;
                if self.open.is_some() && self.open_group().is_none() {
                    let gone = self.open.take().unwrap_or_default();
                    self.show_message(format!("there is no group {gone} any more"), true);
                }
            }
            ApiUpdate::Look(Err(error)) => self.error = Some(error.to_string()),
            ApiUpdate::Changed(command, Ok(Done { .. })) => {
                self.show_message(command.effect(), false)
            }
            ApiUpdate::Changed(_, Err(error)) => {
                // Who was refused here could read until now.
                let why = match &error {
                    ClientError::Refused {
                        status: 401 | 403, ..
                    } => "you may look, but not change anything: ",
                    _ => "",
                };
                self.show_message(format!("nothing was changed: {why}{error}"), true);
            }
        }
    }

    fn show_message(&mut self, text: impl Into<String>, is_error: bool) {
        let text = text.into();
        self.message = Some(Message { text, is_error });
    }

    pub(super) fn next_wish(&self) -> Wish {
        Wish {
            explained: self.explained_group().map(str::to_owned),
            interval: (!self.paused).then_some(self.interval),
        }
    }

    /// Returns the group whose decision is explained.
    pub(super) fn explained_group(&self) -> Option<&str> {
        let selected = self.cursors[0].selected.as_deref();
        let chosen = self.open.as_deref().or(selected);
        chosen.filter(|_| self.explaining)
    }

    /// Returns the explanation of the group, once there is one.
    pub(super) fn explanation(&self) -> Option<&Result<Explain, ClientError>> {
        let (group, explanation) = self.explanation.as_ref()?;
        (self.explained_group() == Some(group)).then_some(explanation)
    }

    /// Returns the group that is open.
    pub(super) fn open_group(&self) -> Option<&GroupView> {
        let open = self.open.as_ref()?;
        let mut groups = self.picture.iter().flat_map(|picture| &picture.groups);
        groups.find(|group| group.name == *open)
    }

    /// Returns the rows that are shown: those of the open group, or all groups.
    pub(super) fn shown_listing(&self) -> Option<Listing> {
        let picture = self.picture.as_ref()?;
        let mut listing = match self.open_group() {
            Some(group) => group.member_listing(),
            None => overview::group_listing(&picture.status, &picture.groups),
        };
        listing.filter_rows(&self.cursor().filter);
        if let Some(sort) = self.cursor().sort {
            listing.sort_rows(sort);
        }
        Some(listing)
    }

    pub(super) fn cursor(&self) -> &Cursor {
        &self.cursors[usize::from(self.open.is_some())]
    }

    pub(super) fn cursor_mut(&mut self) -> &mut Cursor {
        &mut self.cursors[usize::from(self.open.is_some())]
    }

    /// Handles a key that was pressed. Returns the command to send to the API.
    pub(super) fn handle_key(&mut self, key: KeyEvent) -> Option<Command> {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            self.done = true;
        }
        // Neither Ctrl-D nor Alt-D drains anything.
        if key
            .modifiers
            .intersects(KeyModifiers::CONTROL | KeyModifiers::ALT)
        {
            return None;
        }
        self.message = None;
        if self.help {
            self.help = false;
            return None;
        }
        match self.prompt.take() {
            Some(prompt) => self.answer_prompt(prompt, key.code),
            None => {
                self.handle_command_key(key.code);
                None
            }
        }
    }

    /// Handles a key while something is asked.
    fn answer_prompt(&mut self, mut prompt: Prompt, key: KeyCode) -> Option<Command> {
        if let Prompt::Confirm(command) = prompt {
            match key {
                KeyCode::Char('y' | 'Y') => {
                    self.show_message("waiting for the answer …", false);
                    return Some(command);
                }
                KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc => {
                    self.show_message("nothing was changed", false);
                }
                _ => self.prompt = Some(Prompt::Confirm(command)),
            }
            return None;
        }
        let text = match &mut prompt {
            Prompt::Weight(_, text) | Prompt::Alert(_, text) => text,
            _ => &mut self.cursor_mut().filter,
        };
        match key {
            KeyCode::Char(char) if text.chars().count() < LONGEST => text.push(char),
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Esc => {
                text.clear();
                return None;
            }
            KeyCode::Enter => {
                match enter_text(prompt) {
                    Ok(next) => self.prompt = next,
                    Err(complaint) => self.show_message(complaint, true),
                }
                return None;
            }
            _ => {}
        }
        self.prompt = Some(prompt);
        None
    }

    /// Handles a key while nothing is asked.
    fn handle_command_key(&mut self, key: KeyCode) {
        let page = isize::try_from(self.page).unwrap_or(isize::MAX);
        match key {
            KeyCode::Char('q') | KeyCode::F(10) => self.done = true,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Esc if self.explaining => self.explaining = false,
            KeyCode::Esc if !self.cursor().filter.is_empty() => self.cursor_mut().filter.clear(),
            KeyCode::Esc | KeyCode::Backspace => self.open = None,
            KeyCode::Enter => self.open_selected(),
            KeyCode::Left | KeyCode::BackTab => self.other_group(-1),
            KeyCode::Right | KeyCode::Tab => self.other_group(1),
            KeyCode::PageUp if self.explaining => {
                self.scrolled = self.scrolled.saturating_sub(self.page);
            }
            KeyCode::PageDown if self.explaining => {
                self.scrolled = self.scrolled.saturating_add(self.page);
            }
            KeyCode::Up | KeyCode::Char('k') => self.move_cursor(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_cursor(1),
            KeyCode::PageUp => self.move_cursor(-page),
            KeyCode::PageDown => self.move_cursor(page),
            KeyCode::Home => self.move_cursor(isize::MIN),
            KeyCode::End => self.move_cursor(isize::MAX),
            KeyCode::Char('<') => self.change_sort(-1),
            KeyCode::Char('>') => self.change_sort(1),
            KeyCode::Char('I' | 'r') => {
                let sort = &mut self.cursor_mut().sort;
                let (column, descending) = sort.map_or((0, false), |s| (s.column, s.descending));
                let descending = !descending;
                *sort = Some(Sort { column, descending });
            }
            KeyCode::Char('/') => self.prompt = Some(Prompt::Filter),
            KeyCode::Char('e') => {
                self.explaining = !self.explaining;
                self.scrolled = 0;
            }
            KeyCode::Char('d') => self.ask_for_state(AdminState::Drain),
            KeyCode::Char('m') => self.ask_for_state(AdminState::Maintenance),
            KeyCode::Char('u') => self.ask_for_state(AdminState::Ready),
            KeyCode::Char('x') => {
                self.ask_about_member(|member, _| Prompt::Confirm(Command::EndEjection(member)));
            }
            KeyCode::Char('w') => {
                self.ask_about_member(|member, _| Prompt::Weight(member, String::new()));
            }
            KeyCode::Char('a') => {
                self.ask_about_member(|_, location| Prompt::Alert(location.into(), String::new()));
            }
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('+' | '=') => {
                let mut longer = INTERVALS.into_iter().map(Duration::from_millis);
                self.interval = longer.find(|&i| i > self.interval).unwrap_or(self.interval);
            }
            KeyCode::Char('-') => {
                let mut shorter = INTERVALS.into_iter().rev().map(Duration::from_millis);
                self.interval = shorter
                    .find(|&i| i < self.interval)
                    .unwrap_or(self.interval);
            }
            _ => {}
        }
    }

    fn move_cursor(&mut self, by: isize) {
        if let Some(listing) = self.shown_listing() {
            self.cursor_mut().step_selection(&listing.rows, by);
        }
    }

    fn change_sort(&mut self, step: isize) {
        if let Some(listing) = self.shown_listing() {
            let cursor = self.cursor_mut();
            cursor.sort = listing.next_sort(cursor.sort, step);
        }
    }

    /// Opens the selected group.
    fn open_selected(&mut self) {
        self.move_cursor(0);
        if self.open.is_none() && self.shown_listing().is_some_and(|all| !all.rows.is_empty()) {
            self.set_open_group(self.cursor().selected.clone());
        }
    }

    fn set_open_group(&mut self, group: Option<String>) {
        self.open = group;
        self.scrolled = 0;
        // The order of its members stays that of the group before.
        let sort = self.cursors[1].sort;
        self.cursors[1] = Cursor {
            sort,
            ..Cursor::default()
        };
    }

    /// Opens the group that comes after the open one, or before it, in the order of all
    /// groups, around the end.
    fn other_group(&mut self, step: isize) {
        if self.open.is_none() {
            return;
        }
        let before = self.open.take();
        // Without an open group these are the groups.
        let rows = self
            .shown_listing()
            .map_or_else(Vec::new, |listing| listing.rows);
        let index = rows
            .iter()
            .position(|row| Some(&row.name) == before.as_ref());
        let next = (index.unwrap_or(0) + rows.len()).saturating_add_signed(step);
        let next = next
            .checked_rem(rows.len())
            .map(|next| rows[next].name.clone());
        if next.is_some() {
            self.cursors[0].selected = next.clone();
        }
        self.set_open_group(next.or(before));
    }

    fn ask_for_state(&mut self, state: AdminState) {
        self.ask_about_member(|member, _| Prompt::Confirm(Command::State(member, state)));
    }

    /// Asks something about the selected member, or its location.
    fn ask_about_member(&mut self, prompt: impl FnOnce(Member, &str) -> Prompt) {
        self.move_cursor(0);
        let listing = self.shown_listing();
        let shown = listing.is_some_and(|listing| !listing.rows.is_empty());
        let group = self.open_group().filter(|_| shown);
        let member = group.and_then(|group| {
            let mut members = group.members.iter();
            let member = members.find(|m| Some(&m.name) == self.cursor().selected.as_ref())?;
            Some(prompt(
                Member::new(&group.name, &member.name),
                &member.location,
            ))
        });
        match member {
            Some(prompt) => self.prompt = Some(prompt),
            None => self.show_message("open a group (Enter) and choose a member first", true),
        }
    }
}

/// Returns the next question for a text that was typed.
fn enter_text(prompt: Prompt) -> Result<Option<Prompt>, String> {
    let command = match prompt {
        Prompt::Filter => return Ok(None),
        Prompt::Confirm(command) => command,
        Prompt::Weight(member, text) => match text.trim().parse() {
            Ok(weight) if f64::is_finite(weight) => Command::Weight(member, weight),
            _ => {
                return Err(format!(
                    "{text:?} is no weight; it is a number from 0 to 1000"
                ));
            }
        },
        Prompt::Alert(location, text) => {
            let alert = match text.trim() {
                "on" => AlertSetting::On,
                "off" => AlertSetting::Off,
                "auto" => AlertSetting::Auto,
                _ => return Err(format!("{text:?} is none of on, off and auto")),
            };
            Command::Alert(location, alert)
        }
    };
    Ok(Some(Prompt::Confirm(command)))
}
