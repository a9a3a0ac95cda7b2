//! Frames that carry nothing, counted against a credit.
//!
//! A frame without use costs its sender nine bytes, and the receiver an answer or a look at its
//! tables. So they are counted against a credit, which messages, content and bytes that the peer is sent, and
//! time renew.

use std::time::Duration;

/// Most frames of no use in a row, and the credit at the start.
pub(crate) const BURST: u32 = 1000;

/// Time after which one more is allowed.
const RENEWAL: Duration = Duration::from_millis(100);

/// Bytes that the peer has to take for one more.
const BYTES: u64 = 256;

/// Frames that are allowed with each request.
const PER_REQUEST: u32 = 8;

/// Frames that are allowed with content that went as a whole, however little it was: many peers answer each message of a
/// stream with WINDOW_UPDATE for the stream and the connection, and a PING.
const PER_CONTENT: u32 = 3;

/// Frames that are allowed with content that went in part, because of the peer's window, unless the part is very small:
/// a peer that opens its window byte by byte would be paid for it (CVE-2019-9511).
const PER_PART: u32 = 2;

/// Fewest bytes of such a part.
const PART: usize = 64;

/// Streams that a client may reset before they were looked at, until they are.
pub(crate) const UNSEEN_RESETS: u32 = 20;

/// Streams with errors of the peer that a connection may have, if they are not fewer than those without.
pub(crate) const ERRORS: u32 = 100;

/// Streams that a client may give up before they are answered, if at least as many of its streams are answered.
pub(crate) const CANCELLED: u32 = 100;

/// Kind of frames that a peer sends too many of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// Streams that are opened and reset.
    Resets,
    /// PING, SETTINGS, WINDOW_UPDATE and the like.
    Control,
    /// Heads that are too large, or in too many parts, and malformed messages.
    Headers,
    /// Empty DATA frames.
    Data,
}

/// Credit of a peer.
#[derive(Debug)]
pub(crate) struct Credit {
    /// Frames that are allowed whatever was sent, for messages and for time.
    left: u32,
    /// Frames that are allowed for content that was sent. All of the content may be under way before the peer sends a
    /// frame, as large as windows are, so that this has no limit: it costs less than the content that the peer has
    /// taken.
    earned: u64,
    /// Bytes sent that have not made up for a frame.
    sent: u64,
    renewed: Option<Duration>,
}

impl Credit {
    pub(crate) fn new() -> Self {
        Credit {
            left: BURST,
            earned: 0,
            sent: 0,
            renewed: None,
        }
    }

    /// Notes the time, since any fixed moment.
    pub(crate) fn renew_until(&mut self, now: Duration) {
        let renewed = *self.renewed.get_or_insert(now);
        let passed = now.saturating_sub(renewed).as_nanos() / RENEWAL.as_nanos();
        if passed > 0 {
            self.renewed = Some(now);
            self.add_credit(u32::try_from(passed).unwrap_or(u32::MAX));
        }
    }

    /// Takes note of bytes that the peer has taken.
    pub(crate) fn take_sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
        self.earned = self.earned.saturating_add(self.sent / BYTES);
        self.sent %= BYTES;
    }

    /// Takes note of a request or a response that a stream has taken.
    pub(crate) fn take_message(&mut self) {
        self.add_credit(PER_REQUEST);
    }

    /// Notes that `bytes` of content go to the peer. The peer gets the rest later, unless `bytes` is all.
    pub(crate) fn take_content(&mut self, bytes: usize, is_whole: bool) {
        let frames = match is_whole {
            true => PER_CONTENT,
            false if bytes >= PART => PER_PART,
            false => 0,
        };
        self.earned = self.earned.saturating_add(u64::from(frames));
    }

    /// Takes note of a frame that carries nothing; false if there were too many.
    pub(crate) fn spend_frame(&mut self) -> bool {
        if let Some(earned) = self.earned.checked_sub(1) {
            self.earned = earned;
            return true;
        }
        let left = self.left.checked_sub(1);
        self.left = left.unwrap_or(0);
        left.is_some()
    }

    fn add_credit(&mut self, more: u32) {
        self.left = self.left.saturating_add(more).min(BURST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_bytes_and_time_make_up_for_frames() {
        let mut credit = Credit::new();
        for _ in 0..BURST {
            assert!(credit.spend_frame());
        }
        assert!(!credit.spend_frame());
        credit.take_message();
        (0..PER_REQUEST).for_each(|_| assert!(credit.spend_frame()));
        assert!(!credit.spend_frame());
        credit.take_content(PART - 1, false);
        assert!(!credit.spend_frame());
        credit.take_content(PART, false);
        (0..PER_PART).for_each(|_| assert!(credit.spend_frame()));
        assert!(!credit.spend_frame());
        credit.take_content(1, true);
        (0..PER_CONTENT).for_each(|_| assert!(credit.spend_frame()));
        assert!(!credit.spend_frame());
        credit.take_sent(255);
        assert!(!credit.spend_frame());
        credit.take_sent(1);
        assert!(credit.spend_frame() && !credit.spend_frame());
        credit.renew_until(Duration::from_secs(5));
        assert!(!credit.spend_frame(), "time begins now");
        credit.renew_until(Duration::from_millis(5199));
        assert!(credit.spend_frame() && !credit.spend_frame());
        credit.renew_until(Duration::from_secs(100_000));
        (0..BURST).for_each(|_| assert!(credit.spend_frame()));
        assert!(!credit.spend_frame());
    }
}
