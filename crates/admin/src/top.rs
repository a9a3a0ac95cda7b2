//! `evenkeel top`: the live terminal view.
//!
//! One thread asks the API, another one draws and listens to the keyboard, so that the
//! keys work while the API does not answer.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use evenkeel_manager::status::Status;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, TableState};

use crate::client::{Client, ClientError};
use crate::view::{self, GroupView};
use crate::wire::Explain;

/// How long a key may wait for its effect.
const FRAME: Duration = Duration::from_millis(100);

/// Shows the balancer behind `client` until the user has seen enough.
///
/// The terminal is restored at the end, after an error, and after a panic.
///
/// # Errors
///
/// Standard output is no terminal, or is gone.
pub fn run(client: Client, interval: Duration) -> io::Result<()> {
    let mut app = App::new(client.address());
    let (to_app, looks) = channel();
    let (wishes, to_sampler) = channel();
    // It ends when one of the channels does, that is with this function; nobody waits
    // for it, because it may wait for an answer.
    std::thread::spawn(move || sample(&client, interval, &to_app, &to_sampler));
    let mut terminal = ratatui::try_init()?;
    let result = (|| {
        while !app.done {
            terminal.draw(|frame| app.draw(frame))?;
            if event::poll(FRAME)?
                && let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                app.key(key);
                // The sampler has ended only if it panicked; the view then stands still,
                // and its keys still work.
                let _ = wishes.send(app.wish());
            }
            looks.try_iter().for_each(|look| app.take(look));
        }
        Ok(())
    })();
    ratatui::restore();
    result
}

/// All groups once, as plain text.
///
/// # Errors
///
/// Those of the client.
pub fn once(client: &Client) -> Result<String, ClientError> {
    let status: Status = client.get(&["v1", "status"], &[])?;
    let groups: Vec<String> = GroupView::all(&status)
        .iter()
        .map(GroupView::plain)
        .collect();
    Ok(groups.join("\n"))
}

/// What one look at the API found.
type Look = Result<(Status, Option<Explain>), ClientError>;

fn sample(
    client: &Client,
    interval: Duration,
    looks: &Sender<Look>,
    wishes: &Receiver<Option<String>>,
) {
    let mut explained = None;
    loop {
        if looks.send(look(client, explained.as_deref())).is_err() {
            return;
        }
        // A wish is answered at once, and the last one counts.
        match wishes.recv_timeout(interval) {
            Ok(wish) => explained = wishes.try_iter().last().unwrap_or(wish),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn look(client: &Client, explained: Option<&str>) -> Look {
    let status = client.get(&["v1", "status"], &[])?;
    let explain = match explained {
        Some(group) => client.get(&["v1", "groups", group, "explain"], &[])?,
        None => None,
    };
    Ok((status, explain))
}

/// What is on the screen.
#[derive(Debug)]
struct App {
    address: String,
    /// Unknown before the first answer.
    generation: Option<u64>,
    /// The file has changed since, and was refused.
    refused: bool,
    groups: Vec<GroupView>,
    /// Name of the group that is shown: groups come and go.
    selected: Option<String>,
    /// Rows of the table above the first one that is shown.
    scrolled: usize,
    explaining: bool,
    explain: Option<Explain>,
    error: Option<String>,
    done: bool,
}

impl App {
    fn new(address: &str) -> Self {
        App {
            address: address.into(),
            generation: None,
            refused: false,
            groups: Vec::new(),
            selected: None,
            scrolled: 0,
            explaining: false,
            explain: None,
            error: None,
            done: false,
        }
    }

    fn take(&mut self, look: Look) {
        match look {
            Ok((status, explain)) => {
                self.generation = Some(status.generation);
                let reload = status.last_reload.as_ref();
                self.refused = reload.is_some_and(|reload| reload.error.is_some());
                self.groups = GroupView::all(&status);
                self.explain = explain;
                self.error = None;
            }
            Err(error) => self.error = Some(error.to_string()),
        }
    }

    /// Index of the group that is shown: the first one if the selected one is gone.
    fn index(&self) -> usize {
        let selected = self.selected.as_deref();
        let mut names = self.groups.iter().map(|group| Some(group.name.as_str()));
        names.position(|name| name == selected).unwrap_or(0)
    }

    /// The group whose decision is to be explained.
    fn wish(&self) -> Option<String> {
        let group = self.groups.get(self.index())?;
        self.explaining.then(|| group.name.clone())
    }

    fn key(&mut self, key: KeyEvent) {
        let members = self
            .groups
            .get(self.index())
            .map_or(0, |group| group.members.len());
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => self.done = true,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                self.done = true;
            }
            KeyCode::Char('e') => {
                self.explaining = !self.explaining;
                self.explain = None;
            }
            KeyCode::Left => self.select(self.groups.len().saturating_sub(1)),
            KeyCode::Right | KeyCode::Tab => self.select(1),
            KeyCode::Up => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::Down => self.scrolled = (self.scrolled + 1).min(members.saturating_sub(1)),
            _ => {}
        }
    }

    /// Selects the group that comes `step` groups later, around the end.
    fn select(&mut self, step: usize) {
        if let Some(next) = (self.index() + step).checked_rem(self.groups.len()) {
            self.selected = Some(self.groups[next].name.clone());
            self.scrolled = 0;
            self.explain = None;
        }
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let explain = self.explaining.then(|| self.explanation());
        let explain_height = explain.as_ref().map_or(0, |text| text.lines().count() + 1);
        let [head, title, table, below, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Min(3),
            Constraint::Max(u16::try_from(explain_height).unwrap_or(u16::MAX)),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.head(), head);
        if let Some(group) = self.groups.get(self.index()) {
            frame.render_widget(group.title(), title);
            let mut state = TableState::new().with_offset(self.scrolled);
            frame.render_stateful_widget(group.table(table.width), table, &mut state);
        }
        if let Some(text) = explain {
            let block = Block::new().borders(ratatui::widgets::Borders::TOP);
            frame.render_widget(Paragraph::new(text).block(block), below);
        }
        let dim = Style::new().add_modifier(Modifier::DIM);
        let help = "←/→ group   ↑/↓ scroll   e explain   q quit";
        frame.render_widget(Line::styled(help, dim), keys);
    }

    fn head(&self) -> Line<'static> {
        if let Some(error) = &self.error {
            return Line::styled(error.clone(), Style::new().fg(Color::Red));
        }
        let Some(generation) = self.generation else {
            return Line::raw(format!("asking {} …", self.address));
        };
        let mut spans = vec![Span::raw(format!(
            "evenkeel at {}, configuration {generation}  ",
            self.address
        ))];
        if self.refused {
            let loud = Style::new().fg(Color::White).bg(Color::Red);
            spans.push(Span::styled(" the file as it is now was refused ", loud));
            spans.push(Span::raw("  "));
        }
        for (index, group) in self.groups.iter().enumerate() {
            let style = match index == self.index() {
                true => Style::new().add_modifier(Modifier::REVERSED),
                false => Style::new(),
            };
            spans.push(Span::styled(format!(" {} ", group.name), style));
        }
        Line::from(spans)
    }

    fn explanation(&self) -> String {
        match &self.explain {
            Some(explain) => view::explain(explain),
            None => "asking …".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_manager::status::{CandidateStatus, Explained, GroupStatus, Recent};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::client::DEFAULT_ADDRESS;

    fn group(name: &str) -> GroupStatus {
        GroupStatus {
            name: name.into(),
            owner: None,
            strategy: "random".into(),
            params: Vec::new(),
            granularity: "per_request".into(),
            load: "cpu".into(),
            adaptive: true,
            panic: false,
            alerts: 0,
            alerts_raised: 0,
            recent: Recent::default(),
            refused: Vec::new(),
            members: Vec::new(),
        }
    }

    fn look(groups: &[&str], explain: Option<Explain>) -> Look {
        let status = Status {
            generation: 7,
            last_reload: None,
            needs_restart: Vec::new(),
            rules: Vec::new(),
            groups: groups.iter().map(|name| group(name)).collect(),
            locations: Vec::new(),
            negotiator: Vec::new(),
            clusters: Vec::new(),
            limits: None,
        };
        Ok((status, explain))
    }

    fn explain() -> Explain {
        let decision = Explained {
            group: "web".into(),
            strategy: "random".into(),
            age_seconds: 0.0,
            chosen: Some("a:80".into()),
            error: None,
            notes: vec!["panic: that is ignored".into()],
            candidates: vec![CandidateStatus {
                member: "a:80".into(),
                score: Some(0.125),
                verdict: "drawn".into(),
            }],
        };
        Explain {
            last: None,
            next: decision,
        }
    }

    fn press(app: &mut App, code: KeyCode) {
        app.key(KeyEvent::from(code));
    }

    fn screen(app: &App) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(70, 14)).unwrap();
        terminal.draw(|frame| app.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..70).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..14).map(|y| line(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn arrows_go_round_the_groups_by_name() {
        let mut app = App::new(DEFAULT_ADDRESS);
        press(&mut app, KeyCode::Right);
        app.take(look(&["web", "api", "db"], None));
        assert_eq!(app.index(), 0);
        press(&mut app, KeyCode::Left);
        assert_eq!(app.index(), 2);
        // The group stays selected when others come and go.
        app.take(look(&["db", "web"], None));
        assert_eq!(app.index(), 0);
        press(&mut app, KeyCode::Right);
        assert_eq!(app.index(), 1);
        app.take(look(&["db"], None));
        assert_eq!(app.index(), 0);
        assert!(
            screen(&app)[1].starts_with("db  random"),
            "{:?}",
            screen(&app)
        );
    }

    #[test]
    fn explanations_are_asked_for_and_shown() {
        let mut app = App::new(DEFAULT_ADDRESS);
        app.take(look(&["web"], None));
        assert_eq!(app.wish(), None);
        press(&mut app, KeyCode::Char('e'));
        assert_eq!(app.wish().as_deref(), Some("web"));
        assert!(screen(&app).contains(&"asking …".to_owned()));
        app.take(look(&["web"], Some(explain())));
        let screen = screen(&app).join("\n");
        for wanted in [
            "The next request would go to a:80",
            "> a:80    0.125  drawn",
            "panic: that",
        ] {
            assert!(screen.contains(wanted), "no {wanted:?} in\n{screen}");
        }
        press(&mut app, KeyCode::Char('e'));
        assert_eq!(app.wish(), None);
    }

    #[test]
    fn an_error_is_shown_and_forgotten() {
        let mut app = App::new(DEFAULT_ADDRESS);
        app.take(Err(ClientError::Address("nowhere".into())));
        assert!(screen(&app)[0].contains("nowhere"));
        app.take(look(&["web"], None));
        assert_eq!(
            screen(&app)[0],
            "evenkeel at 127.0.0.1:9900, configuration 7   web"
        );
    }

    #[test]
    fn three_keys_end_it() {
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for key in [KeyCode::Char('q').into(), KeyCode::Esc.into(), control_c] {
            let mut app = App::new(DEFAULT_ADDRESS);
            app.key(KeyCode::Char('c').into());
            assert!(!app.done);
            app.key(key);
            assert!(app.done, "{key:?}");
        }
    }
}
