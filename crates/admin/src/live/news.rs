//! Changes and alerts, numbered and kept for a while, so that who was away for a moment misses none.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use serde::Serialize;
use tokio::sync::watch;

/// Number of events that are kept.
const KEPT: usize = 1024;

/// A place in the news: the process that they are of, and how many there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id {
    process: u64,
    number: u64,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{}", self.process, self.number)
    }
}

impl Id {
    /// Reads a place as a client writes it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (process, number) = text.split_once('-')?;
        Some(Id {
            process: u64::from_str_radix(process, 16).ok()?,
            number: number.parse().ok()?,
        })
    }
}

/// The news.
#[derive(Debug)]
pub(super) struct LiveEvents {
    process: u64,
    kept: Mutex<Kept>,
    /// The number of the last one.
    last: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Number of events before the first of `events`.
    before: u64,
    events: VecDeque<Bytes>,
}

/// Events since a place.
pub(super) struct Since {
    /// True if some of the events are not known any more.
    pub(super) lost: bool,
    /// Events that are still known.
    pub(super) events: Vec<Bytes>,
    /// The place behind it.
    pub(super) id: Id,
}

impl LiveEvents {
    /// Makes empty news. `process` is a number that no other process has.
    pub(super) fn new(process: u64) -> Self {
        LiveEvents {
            process,
            kept: Mutex::default(),
            last: watch::Sender::new(0),
        }
    }

    fn lock_kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a receiver that is told when there is more.
    pub(super) fn subscribe_events(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// Returns the place of now.
    pub(super) fn current_id(&self) -> Id {
        self.id(self.lock_kept().last_number())
    }

    fn id(&self, number: u64) -> Id {
        Id {
            process: self.process,
            number,
        }
    }

    /// Adds an event.
    pub(super) fn add_event(&self, kind: &str, data: &impl Serialize) {
        // Numbers and strings can always be written.
        let data = serde_json::to_string(data).unwrap_or_default();
        let mut kept = self.lock_kept();
        let number = kept.last_number() + 1;
        let id = self.id(number);
        let event = format!("event: {kind}\nid: {id}\ndata: {data}\n\n");
        if kept.events.len() >= KEPT {
            kept.events.pop_front();
            kept.before += 1;
        }
        kept.events.push_back(event.into());
        drop(kept);
        self.last.send_replace(number);
    }

    /// Returns the events since `id`.
    pub(super) fn events_since(&self, id: Id) -> Since {
        let kept = self.lock_kept();
        let last = kept.last_number();
        let known = kept.before..=last;
        let lost = id.process != self.process || !known.contains(&id.number);
        let skipped = match lost {
            true => last - kept.before,
            false => id.number - kept.before,
        };
        let events = kept.events.iter().skip(skipped as usize);
        Since {
            lost,
            events: events.cloned().collect(),
            id: self.id(last),
        }
    }
}

impl Kept {
    fn last_number(&self) -> u64 {
        self.before + self.events.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_away_gets_what_was_missed_or_hears_that_it_is_lost() {
        let news = LiveEvents::new(0xab);
        let start = news.current_id();
        assert_eq!(start.to_string(), "ab-0");
        assert!(!news.events_since(start).lost);
        for number in 1..=3 {
            news.add_event("change", &number);
        }
        let since = news.events_since(start);
        assert!(!since.lost);
        assert_eq!(since.events.len(), 3);
        assert_eq!(since.events[2], "event: change\nid: ab-3\ndata: 3\n\n");
        assert_eq!(since.id.to_string(), "ab-3");
        let two = Id::parse("ab-2").unwrap();
        assert_eq!(news.events_since(two).events.len(), 1);

        for number in 4..=KEPT + 2 {
            news.add_event("alert", &number);
        }
        // The first two are forgotten.
        assert!(!news.events_since(two).lost);
        assert_eq!(news.events_since(two).events.len(), KEPT);
        for (id, why) in [
            ("ab-1", "too old"),
            ("ab-99999", "of the future"),
            ("ac-2", "of another process"),
        ] {
            let since = news.events_since(Id::parse(id).unwrap());
            assert!(since.lost, "{why}");
            assert!(since.events.is_empty(), "{why}");
            assert_eq!(since.id, news.current_id(), "{why}");
        }
        for bad in ["", "ab", "ab-", "-1", "zz-1", "ab--1", "ab-1-2"] {
            assert_eq!(Id::parse(bad), None, "{bad}");
        }
    }
}
