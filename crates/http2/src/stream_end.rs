//! Ends of streams: in order, by a reset of either side, and by errors of the peer.

use crate::connection::{Connection, Event, Failure, IDLE_HEADS, Reading, Role, SPARE_HEADS};
use crate::flood::{CANCELLED, ERRORS, Flood};
use crate::frame;
use crate::reason::Reason;
use crate::stream::{Break, Cause, Key, StreamSide};

impl Connection {
    /// End of a stream before its time, if it has ended so.
    pub fn stream_break(&self, key: Key) -> Option<Break> {
        match self.streams.get(key) {
            Some(stream) => stream.broken,
            None => Some(Break {
                reason: Reason::CANCEL,
                cause: Cause::Local,
                unprocessed: false,
            }),
        }
    }

    /// Releases a stream that is not used any more. A stream that has not ended is reset, with `reason` if there is
    /// one.
    pub fn release_stream(&mut self, key: Key, reason: Option<Reason>) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        if stream.tail.is_some() && stream.broken.is_none() && reason.is_none() {
            stream.is_released = true;
            let unread = stream.unread_content().len();
            stream.skip_content(unread);
            self.completed = self.completed.saturating_add(1);
            self.give_back_in(key, unread);
            return;
        }
        let is_answered = stream.sending != StreamSide::Head;
        match stream.broken.map(|end| end.cause) {
            _ if is_answered => self.completed = self.completed.saturating_add(1),
            Some(Cause::Peer) => self.cancelled = self.cancelled.saturating_add(1),
            // An error of the peer, which was counted as one, must not make up for itself (CVE-2025-8671).
            Some(Cause::Local) => {}
            _ => self.completed = self.completed.saturating_add(1),
        }
        self.end_stream(key, reason);
    }

    /// Forgets a stream that is not used any more, and resets it if it has not ended.
    pub(crate) fn end_stream(&mut self, key: Key, reason: Option<Reason>) {
        let Some(stream) = self.streams.get(key) else {
            return;
        };
        if !stream.is_over() {
            let is_sent = stream.sending == StreamSide::Ended && self.config.role == Role::Server;
            let usual = match is_sent {
                // The client need not send the rest (RFC 9113, section 8.1).
                true => Reason::NO_ERROR,
                false => Reason::CANCEL,
            };
            self.put_reset(key.id, reason.unwrap_or(usual));
        } else if stream.broken.is_none() {
            self.finished.add_id(key.id);
        }
        self.remove(key);
    }

    /// Forgets a stream.
    pub(crate) fn remove(&mut self, key: Key) {
        let Some(stream) = self.streams.get(key) else {
            return;
        };
        let mut held = stream.held;
        if stream.is_reset_by_peer() {
            self.reset_there.add_id(key.id);
        }
        // The rest of a frame of its is given back when it comes.
        if let Reading::Data(frame) = &mut self.reading
            && frame.key == Some(key)
        {
            frame.key = None;
            held = held.saturating_sub(frame.bytes_left());
        }
        self.leave_queue(key);
        let spare = &mut self.spare;
        self.streams.remove(key, |head| {
            if spare.len() < SPARE_HEADS && head.is_worth_keeping() {
                spare.push(head);
            }
        });
        if self.streams.len() == 0 {
            self.spare.truncate(IDLE_HEADS);
            self.shrink_output();
        }
        self.give_back(held);
        if std::mem::replace(&mut self.is_awaited, false) {
            self.events.push_back(Event::Settled);
        }
    }

    /// Ends a stream before its time. A stream that has not been reported is forgotten.
    pub(crate) fn break_stream(&mut self, key: Key, end: Break) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        if stream.broken.is_some() {
            return;
        }
        stream.broken = Some(end);
        stream.tail = None;
        if !stream.is_seen || stream.is_released {
            return self.remove(key);
        }
        self.events.push_back(Event::Broken(key));
    }

    /// Remembers a stream that was reset here: what still comes in it is dropped.
    pub(crate) fn put_reset(&mut self, id: u32, reason: Reason) {
        frame::put_reset(id, reason, &mut self.out);
        self.reset_here.add_id(id);
    }

    /// True if a stream of this number was never opened.
    pub(crate) fn is_idle(&self, id: u32) -> bool {
        let is_own = (id % 2 == 1) == (self.config.role == Role::Client);
        if is_own {
            id >= self.next_own
        } else {
            id > self.last_peer
        }
    }

    /// A frame came for a stream that has ended.
    pub(crate) fn refuse_closed(&mut self, id: u32) -> Result<(), Failure> {
        if self.reset_here.has_id(id) {
            return Ok(());
        }
        if self.finished.has_id(id) {
            return Err(Reason::STREAM_CLOSED.into());
        }
        self.stream_error(id, Reason::STREAM_CLOSED)
    }

    /// Ends a stream with an error of the peer.
    pub(crate) fn stream_error(&mut self, id: u32, reason: Reason) -> Result<(), Failure> {
        self.put_reset(id, reason);
        if let Some(key) = self.streams.find(id) {
            let end = Break {
                reason,
                cause: Cause::Local,
                unprocessed: false,
            };
            self.break_stream(key, end);
        }
        self.errors = self.errors.saturating_add(1);
        let is_server = self.config.role == Role::Server;
        if is_server && self.errors > ERRORS.max(self.completed) {
            return Err(Failure::of_flood(Flood::Headers));
        }
        Ok(())
    }

    /// Says if the peer gives up more streams than it may.
    pub(crate) fn check_cancelled(&self) -> Result<(), Failure> {
        let is_server = self.config.role == Role::Server;
        if is_server && self.cancelled > CANCELLED.max(self.completed) {
            return Err(Failure::of_flood(Flood::Resets));
        }
        Ok(())
    }
}
