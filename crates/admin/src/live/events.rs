//! Streams of server-sent events (WHATWG HTML, section 9.2).
//!
//! A stream holds at most one event that is not sent: who reads slowly misses samples, and gets the newest
//! one.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use evenkeel_net::http::Activity;
use http_body_util::channel::{Channel, SendError, Sender};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::MissedTickBehavior;

use super::news::Id;
use super::{Live, View, lock_mutex};

/// Time between two comments, so that nobody takes a quiet connection for a dead one.
const COMMENT: Duration = Duration::from_secs(15);

/// Field that says how soon a client that was cut off shall come back, in milliseconds.
const RETRY: &[u8] = b"retry: 2000\n\n";

/// Reason why there is no stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoStream {
    /// There are as many streams as there may be.
    TooMany(usize),
    /// The process ends.
    Ending,
}

/// Watch of a view by a client.
struct Watched {
    live: Arc<Live>,
    view: View,
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut watched = lock_mutex(&self.live.watched);
        if let Some(count) = watched.get_mut(&self.view) {
            *count -= 1;
            if *count == 0 {
                watched.remove(&self.view);
            }
        }
    }
}

impl Live {
    /// Starts a stream of events, with the groups of `view`; of what has happened since the place `last`,
    /// if that is given. `activity` is of its connection; `may_stay` is asked now and then whether the client
    /// may still see all that.
    pub(crate) fn open_stream(
        self: &Arc<Self>,
        view: View,
        last: Option<&str>,
        activity: Activity,
        may_stay: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<Body, NoStream> {
        if *self.ended.borrow() {
            return Err(NoStream::Ending);
        }
        let place = Arc::clone(&self.streams).try_acquire_owned();
        let place = place.map_err(|_| NoStream::TooMany(self.most_streams))?;
        *lock_mutex(&self.watched).entry(view.clone()).or_default() += 1;
        let watched = Watched {
            live: Arc::clone(self),
            view,
        };
        let (sender, body) = Channel::new(1);
        let since = match last {
            None => Ok(self.news.current_id()),
            Some(last) => Id::parse(last).ok_or(()),
        };
        let may_stay = Box::new(may_stay);
        let events = Events {
            sender,
            activity,
            may_stay,
        };
        tokio::spawn(feed_stream(watched, since, events, place));
        Ok(Body::new(body))
    }
}

/// Stream that events are sent to.
struct Events {
    sender: Sender<Bytes>,
    activity: Activity,
    /// True as long as the client may still see the events: its session may have ended.
    may_stay: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Events {
    async fn send_event(&mut self, event: impl Into<Bytes>) -> Result<(), SendError> {
        // As long as its events are taken it is not silent, and makes way for nobody.
        self.activity.mark_complete();
        self.sender.send_data(event.into()).await
    }
}

/// Feeds a stream until its client, or the process, ends.
async fn feed_stream(
    watched: Watched,
    since: Result<Id, ()>,
    mut events: Events,
    _place: OwnedSemaphorePermit,
) {
    let mut ended = watched.live.ended.subscribe();
    tokio::select! {
        // Whether the client has gone, or can be told nothing more, is the same.
        _ = follow_news(&watched, since, &mut events) => {}
        _ = ended.wait_for(|ended| *ended) => {}
    }
}

async fn follow_news(
    watched: &Watched,
    since: Result<Id, ()>,
    events: &mut Events,
) -> Result<(), SendError> {
    let live = &watched.live;
    let mut ticks = live.ticks.subscribe();
    let mut news = live.news.subscribe_events();
    let mut comments = tokio::time::interval(COMMENT);
    comments.set_missed_tick_behavior(MissedTickBehavior::Delay);
    comments.reset();
    // It must not begin with a sample of the time before.
    ticks.borrow_and_update();
    events.send_event(RETRY).await?;
    let mut lost = since.is_err();
    let mut since = since.unwrap_or_else(|()| live.news.current_id());
    let mut last = 0;
    loop {
        news.borrow_and_update();
        let missed = live.news.events_since(since);
        since = missed.id;
        lost |= missed.lost;
        if std::mem::take(&mut lost) {
            let detail = "events were lost: read the whole state anew";
            let event = format!("event: lost\nid: {since}\ndata: {{\"detail\":\"{detail}\"}}\n\n");
            events.send_event(event).await?;
        }
        for event in missed.events {
            events.send_event(event).await?;
        }
        tokio::select! {
            // If the sender is gone, so is the process.
            more = news.changed() => if more.is_err() { return Ok(()) },
            more = ticks.changed() => {
                // A view that is new comes with the next sample.
                let tick = ticks.borrow_and_update().get(&watched.view.prefix).cloned();
                if more.is_err() {
                    return Ok(());
                }
                if let Some(tick) = tick {
                    let text = tick.event_for(watched.view.group.as_deref(), last);
                    last = tick.number;
                    events.send_event(format!("id: {since}\n")).await?;
                    events.send_event(text).await?;
                }
            }
            _ = comments.tick() => {
                if !(events.may_stay)() {
                    return Ok(());
                }
                events.send_event(": still here\n\n").await?;
            }
        }
    }
}
