//! Locations that only a push of loads has named.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_core::time::Instant;
use evenkeel_giop::exception::Kind;

use super::raise::Raise;

/// Locations that only a push of loads has named: the most of them, and for how long
/// after the last push.
const MOST_PUSHED: usize = 10_000;
const PUSHED_FOR: Duration = Duration::from_secs(600);

/// Locations that only a push of loads has named, with the time of the last one. A server
/// may push before it has a member.
#[derive(Debug, Default)]
pub(super) struct Pushed(BTreeMap<String, Instant>);

impl Pushed {
    /// Names of the locations.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Notes another push, if the location is known by pushes only.
    pub(super) fn renew(&mut self, at: &str, now: Instant) {
        if let Some(last) = self.0.get_mut(at) {
            *last = now;
        }
    }

    /// Returns the time at which loads of a location came last.
    #[cfg(test)]
    pub(super) fn last_push(&self, at: &str) -> Option<Instant> {
        self.0.get(at).copied()
    }

    /// Returns true if there is a location of that name.
    pub(super) fn has_location(&self, at: &str) -> bool {
        self.0.contains_key(at)
    }

    /// Notes a push; answers those that are forgotten, if the location is new.
    pub(super) fn note(&mut self, at: &str, now: Instant) -> Result<Option<Vec<String>>, Raise> {
        if let Some(last) = self.0.get_mut(at) {
            *last = now;
            return Ok(None);
        }
        let mut old = Vec::new();
        self.0.retain(|name, last| {
            let stays = now.since(*last) < PUSHED_FOR;
            if !stays {
                old.push(name.clone());
            }
            stays
        });
        if self.0.len() >= MOST_PUSHED {
            return Err(Kind::NoResources.into());
        }
        self.0.insert(at.into(), now);
        Ok(Some(old))
    }
}
