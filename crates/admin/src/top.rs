//! `evenkeel top`: the live terminal view.
//!
//! One thread talks to the API, another one draws and listens to the keyboard, so that the
//! keys work while the API does not answer.

mod app;
mod overview;
mod screen;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};

use self::app::{ApiSnapshot, ApiUpdate, App, Wish};
use crate::client::{Client, ClientError};
use crate::command::Command;
use crate::ctl::member_tables;

/// Longest time that news may wait to be shown.
const FRAME: Duration = Duration::from_millis(100);

/// Interval in which an age on the screen changes.
const SECOND: Duration = Duration::from_secs(1);

/// Shows the balancer behind `client` until the user has seen enough.
///
/// The terminal is restored at the end, after an error, and after a panic.
///
/// # Errors
///
/// Standard output is no terminal, or is gone.
pub fn run(client: Client, interval: Duration) -> io::Result<()> {
    let client = Arc::new(client);
    let result = run_screen(&client, interval);
    // The thread that asks may still have it.
    client.log_out();
    result
}

fn run_screen(client: &Arc<Client>, interval: Duration) -> io::Result<()> {
    let mut app = App::new(client.address(), interval);
    let (to_app, news) = channel();
    let (asks, to_sampler) = channel();
    let mut wish = app.next_wish();
    let first = wish.clone();
    // It ends when one of the channels does, that is with this function; nobody waits
    // for it, because it may wait for an answer.
    let asking = Arc::clone(client);
    std::thread::spawn(move || sample_forever(&asking, first, &to_app, &to_sampler));
    let mut terminal = ratatui::try_init()?;
    let result = (|| {
        let mut drawn: Option<Instant> = None;
        while !app.done {
            let now = Instant::now();
            if drawn.is_none_or(|drawn| now.saturating_duration_since(drawn) >= SECOND) {
                terminal.draw(|frame| app.draw_screen(frame, now))?;
                drawn = Some(now);
            }
            let mut wait = FRAME;
            while event::poll(wait)? {
                if let Event::Key(key) = event::read()?
                    && key.kind == KeyEventKind::Press
                    && let Some(command) = app.handle_key(key)
                {
                    // The sampler has ended only if it panicked; the view then stands
                    // still, and its keys still work.
                    let _ = asks.send(Ask::Change(command));
                }
                (drawn, wait) = (None, Duration::ZERO);
            }
            for news in news.try_iter() {
                app.take_update(news, Instant::now());
                drawn = None;
            }
            if app.next_wish() != wish {
                wish = app.next_wish();
                let _ = asks.send(Ask::Watch(wish.clone()));
            }
        }
        Ok(())
    })();
    ratatui::restore();
    result
}

/// Returns all groups once, as plain text.
///
/// # Errors
///
/// Those of the client.
pub fn show_once(client: &Client) -> Result<String, ClientError> {
    Ok(member_tables(&client.get(&["v1", "status"], &[])?))
}

/// Request to the thread that talks to the API.
enum Ask {
    /// Look at something else, or as often as this from now on.
    Watch(Wish),
    /// Change something.
    Change(Command),
}

fn sample_forever(client: &Client, mut wish: Wish, news: &Sender<ApiUpdate>, asks: &Receiver<Ask>) {
    loop {
        if news
            .send(ApiUpdate::Look(take_look(client, &wish)))
            .is_err()
        {
            return;
        }
        let first = match wish.interval {
            Some(interval) => asks.recv_timeout(interval),
            None => asks.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        if let Err(RecvTimeoutError::Disconnected) = first {
            return;
        }
        // Another look shows at once what has changed.
        for ask in first.into_iter().chain(asks.try_iter()) {
            match ask {
                Ask::Watch(other) => wish = other,
                Ask::Change(command) => {
                    let answer = command.send_to(client);
                    // If nobody listens any more, the next look ends this.
                    let _ = news.send(ApiUpdate::Changed(command, answer));
                }
            }
        }
    }
}

fn take_look(client: &Client, wish: &Wish) -> Result<Box<ApiSnapshot>, ClientError> {
    let status = client.get(&["v1", "status"], &[])?;
    let explained = wish.explained.as_ref().map(|group| {
        let path = ["v1", "groups", group, "explain"];
        (group.clone(), client.get(&path, &[]))
    });
    Ok(Box::new(ApiSnapshot { status, explained }))
}
