//! Follower of objects: lists them, watches their changes, and says how long to wait in between.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::api::{Api, Collection, status_of};
use crate::list::{Fault, Store};
use crate::watcher::{Pace, Question, Watcher};

/// Shortest time after which a watch is to end, in seconds; up to as much again is added by chance.
const WATCH_SECONDS: u64 = 300;

/// Objects in a page of a list.
pub(crate) const PAGE: usize = 100;

/// End of a watch.
#[derive(Debug)]
pub(crate) enum WatchEnd {
    /// The watch ended as it should.
    Regular,
    /// The connection broke. Nobody needs to know: a list that fails is told.
    Broken(Fault),
    /// The API server refuses the watch, or sends what cannot be used.
    Failed(Fault),
}

/// Follower of the objects of a collection.
#[derive(Debug)]
pub(crate) struct Follower<S: Store> {
    /// API server.
    pub(crate) api: Arc<Api>,
    /// Objects to follow.
    pub(crate) collection: Collection,
    /// Time without a byte after which a watch has failed.
    pub(crate) silence: Duration,
    /// Objects that are known.
    pub(crate) watcher: Watcher<S>,
    pace: Pace,
    page: usize,
}

impl<S: Store> Follower<S> {
    /// A follower that knows nothing yet.
    pub(crate) fn new(
        api: Arc<Api>,
        collection: Collection,
        silence: Duration,
        watcher: Watcher<S>,
    ) -> Self {
        Follower {
            api,
            collection,
            silence,
            watcher,
            pace: Pace::default(),
            page: PAGE,
        }
    }

    /// Lists all objects, page by page.
    pub(crate) async fn list(&mut self) -> Result<(), Fault> {
        let listed = self.list_pages().await;
        self.page = match &listed {
            Ok(()) => PAGE,
            // An answer has a bound, and objects may be long: in the end each comes alone.
            Err(_) => (self.page / 10).max(1),
        };
        listed
    }

    async fn list_pages(&mut self) -> Result<(), Fault> {
        while let Question::List(next) = self.watcher.next_question() {
            let answer = self.api.list(&self.collection, self.page, next.as_deref());
            let answer = match answer.await {
                Ok(answer) if answer.code == 200 => answer,
                Ok(answer) => return Err(self.watcher.note_refusal(status_of(&answer))),
                Err(fault) => {
                    self.watcher.list_again();
                    return Err(fault);
                }
            };
            self.watcher.take_page(&answer.body)?;
        }
        Ok(())
    }

    /// Watches the objects until the watch ends. After each part that has come, `take` gets the watcher, and true if
    /// objects have changed; it returns false if the objects are to be listed again. Returns how the watch ended, and the
    /// pause before the next question.
    pub(crate) async fn watch(
        &mut self,
        version: &str,
        mut take: impl FnMut(&Watcher<S>, bool) -> bool,
    ) -> (WatchEnd, Duration) {
        let begun = Instant::now();
        let seconds = WATCH_SECONDS + fastrand::u64(..WATCH_SECONDS);
        let (mut fault, mut wants_list) = (None, false);
        let watcher = &mut self.watcher;
        let watched = self.api.watch(
            &self.collection,
            version,
            (seconds, self.silence),
            |bytes| {
                let changed = watcher.take_bytes(bytes, &mut fault);
                wants_list = !take(watcher, changed);
                fault.is_none() && !wants_list
            },
        );
        let watched = watched.await;
        let lasted = begun.elapsed();
        match (watched, fault) {
            (_, Some(fault)) => {
                self.pace.note_stable(lasted);
                let pause = self.pause_after(&fault);
                (WatchEnd::Failed(fault), pause)
            }
            (Ok(Some(answer)), None) => {
                let fault = self.watcher.note_refusal(status_of(&answer));
                let pause = self.pause_after(&fault);
                (WatchEnd::Failed(fault), pause)
            }
            // A server that ends a watch before its time stops. The next one may have been restored from a backup, and
            // would accept a version that it does not have, without a word.
            (Ok(None), None) if wants_list || lasted.as_secs() + 1 < seconds => {
                self.watcher.list_again();
                let pause = self.pace.pause_after_watch(lasted, fastrand::f32());
                (WatchEnd::Regular, pause)
            }
            (Ok(None), None) => {
                self.watcher.end_watch();
                let pause = self.pace.pause_after_watch(lasted, fastrand::f32());
                (WatchEnd::Regular, pause)
            }
            (Err(fault), None) => {
                // The next server may know less.
                self.watcher.list_again();
                self.pace.note_stable(lasted);
                let pause = self.pause_after(&fault);
                (WatchEnd::Broken(fault), pause)
            }
        }
    }

    /// Returns the pause after a failure, which grows with failures in a row.
    pub(crate) fn pause_after(&mut self, fault: &Fault) -> Duration {
        self.pace
            .pause_after_failure(fault.retry_after, fastrand::f32())
    }
}
