//! Counts what a peer asks for beside messages: a flood of frames that carry nothing.
//!
//! A frame without use costs its sender nine bytes, and the receiver an answer or a look at its
//! tables. So they are counted against a credit, which messages, bytes that the peer takes, and
//! time renew. Only the headers of frames are looked at; what is in them is the business of `h2`.

use std::time::Duration;

use evenkeel_core::time::Instant;

/// What every client connection begins with (RFC 9113, section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Most frames of no use in a row, and what there is at the start.
const BURST: u32 = 1000;

/// One more is allowed after so much time,
const RENEWAL: Duration = Duration::from_millis(100);

/// after so many bytes that the peer has taken,
const BYTES: u32 = 256;

/// and so many with each request.
const PER_REQUEST: u32 = 8;

const HEADER_BYTES: usize = 9;
const END_STREAM: u8 = 1;

/// What a peer sends too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// Streams that are opened and reset.
    Resets,
    /// PING, SETTINGS, WINDOW_UPDATE and the like.
    Control,
    /// Heads that are too large, or in too many parts.
    Headers,
    /// DATA that is empty, or next to it.
    Data,
}

/// Follows the frames that a peer gets, for what `h2` refuses by itself: streams that it resets since
/// their requests are malformed (RFC 9113, section 8.1.1), and connections whose heads are.
#[derive(Debug, Default)]
pub struct Refusals {
    /// Bytes of a frame's payload.
    skip: usize,
    frame: [u8; GOAWAY_BYTES],
    filled: usize,
}

const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
/// As far as the reason.
const RST_STREAM_BYTES: usize = HEADER_BYTES + 4;
const GOAWAY_BYTES: usize = HEADER_BYTES + 8;
const PROTOCOL_ERROR: [u8; 4] = [0, 0, 0, 1];

impl Refusals {
    /// Looks at what was sent: how many errors of the protocol it tells.
    pub fn sent(&mut self, mut bytes: &[u8]) -> u64 {
        let mut found = 0;
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = bytes.get(skipped..).unwrap_or_default();
            let [a, b, c, kind, ..] = self.frame;
            let whole = match kind {
                _ if self.filled < HEADER_BYTES => HEADER_BYTES,
                RST_STREAM => RST_STREAM_BYTES,
                _ => GOAWAY_BYTES,
            };
            let wanted = (whole - self.filled).min(bytes.len());
            let (part, rest) = bytes.split_at_checked(wanted).unwrap_or_default();
            let place = self.frame.get_mut(self.filled..self.filled + wanted);
            if let Some(place) = place {
                place.copy_from_slice(part);
            }
            self.filled += wanted;
            bytes = rest;
            if self.filled < whole {
                return found;
            }
            if whole == HEADER_BYTES {
                let [a, b, c, kind, ..] = self.frame;
                if kind != RST_STREAM && kind != GOAWAY {
                    self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
                    self.filled = 0;
                }
            } else {
                let length = u32::from_be_bytes([0, a, b, c]) as usize;
                self.skip = (HEADER_BYTES + length).saturating_sub(whole);
                let frame = self.frame.get(..whole).unwrap_or_default();
                found += u64::from(frame.ends_with(&PROTOCOL_ERROR));
                self.filled = 0;
            }
        }
        found
    }
}

/// Follows the frames of a peer.
#[derive(Debug)]
pub struct Meter {
    /// Bytes that belong to no header: of the preface, or of a frame.
    skip: usize,
    header: [u8; HEADER_BYTES],
    filled: usize,
    /// Frames of no use that are still allowed.
    credit: u32,
    /// Bytes sent that have not made up for a frame.
    sent: u32,
    renewed: Instant,
    /// What the last frame belongs to.
    last: Flood,
    /// Frames that have begun, up to two.
    begun: u8,
    /// Bytes of content that have begun to arrive.
    data: u64,
}

impl Meter {
    /// Before the first byte. `preface` bytes come before the first frame.
    pub fn new(preface: usize, now: Instant) -> Self {
        Meter {
            skip: preface,
            header: [0; HEADER_BYTES],
            filled: 0,
            credit: BURST,
            sent: 0,
            renewed: now,
            last: Flood::Control,
            begun: 0,
            data: 0,
        }
    }

    /// Bytes of content that the peer has sent, with all of a frame whose header has arrived.
    pub fn data(&self) -> u64 {
        self.data
    }

    /// Whether the first frame has arrived, which has the peer's settings (RFC 9113, section 3.4).
    pub fn has_settings(&self) -> bool {
        self.begun > 1 || self.begun == 1 && self.skip == 0
    }

    /// Looks at what the peer has sent. Answers what it sends too much of, if anything.
    pub fn received(&mut self, mut bytes: &[u8], now: Instant) -> Option<Flood> {
        self.renew(now);
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = bytes.get(skipped..).unwrap_or_default();
            let wanted = (HEADER_BYTES - self.filled).min(bytes.len());
            let (part, rest) = bytes.split_at_checked(wanted).unwrap_or_default();
            let place = self.header.get_mut(self.filled..self.filled + wanted);
            if let Some(place) = place {
                place.copy_from_slice(part);
            }
            self.filled += wanted;
            bytes = rest;
            if self.filled == HEADER_BYTES {
                self.filled = 0;
                if !self.frame() {
                    return Some(self.last);
                }
            }
        }
        None
    }

    /// The peer has taken so many bytes.
    pub fn sent(&mut self, bytes: usize) {
        let sent = u64::from(self.sent) + bytes as u64;
        self.sent = (sent % u64::from(BYTES)) as u32;
        let more = u32::try_from(sent / u64::from(BYTES)).unwrap_or(u32::MAX);
        self.allow(more);
    }

    /// What a connection that is full of the wrong things is probably full of.
    pub fn suspect(&self) -> Flood {
        self.last
    }

    fn renew(&mut self, now: Instant) {
        let passed = now.since(self.renewed).as_nanos() / RENEWAL.as_nanos();
        if passed > 0 {
            self.renewed = now;
            self.allow(u32::try_from(passed).unwrap_or(u32::MAX));
        }
    }

    fn allow(&mut self, more: u32) {
        self.credit = self.credit.saturating_add(more).min(BURST);
    }

    /// Takes note of a frame; false if there were too many like it.
    fn frame(&mut self) -> bool {
        let [a, b, c, kind, flags, ..] = self.header;
        let len = u32::from_be_bytes([0, a, b, c]);
        self.skip = len as usize;
        self.begun = self.begun.saturating_add(1).min(2);
        self.last = match kind {
            0 => Flood::Data,
            1 | 9 => Flood::Headers,
            3 => Flood::Resets,
            _ => Flood::Control,
        };
        if kind == 0 {
            self.data = self.data.saturating_add(u64::from(len));
        }
        match kind {
            1 => self.allow(PER_REQUEST),
            // How small the others may be on average, `h2` knows.
            0 if len > 0 || flags & END_STREAM != 0 => {}
            _ => match self.credit.checked_sub(1) {
                Some(left) => self.credit = left,
                None => return false,
            },
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_counted_however_the_bytes_are_cut() {
        let frame = |kind: u8, payload: &[u8]| {
            let header = [0, 0, payload.len() as u8, kind, 0, 0, 0, 0, 1];
            [&header[..], payload].concat()
        };
        let malformed = frame(RST_STREAM, &PROTOCOL_ERROR);
        // What looks like such a frame within another is none.
        let sent = [
            frame(0, &malformed),
            malformed.clone(),
            frame(RST_STREAM, &[0, 0, 0, 8]),
            frame(4, &[]),
            malformed,
            frame(GOAWAY, b"\0\0\0\x05\0\0\0\x01and why"),
            frame(GOAWAY, b"\0\0\0\x01\0\0\0\x0b"),
        ]
        .concat();
        for size in 1..=sent.len() {
            let mut refusals = Refusals::default();
            let found: u64 = sent.chunks(size).map(|part| refusals.sent(part)).sum();
            assert_eq!(found, 3, "{size}");
        }
    }

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, 1];
        frame.extend_from_slice(payload);
        frame
    }

    fn meter() -> Meter {
        Meter::new(PREFACE.len(), Instant::ZERO)
    }

    #[test]
    fn what_carries_nothing_is_a_flood() {
        for (kind, payload, flood) in [
            (6, &[0; 8][..], Flood::Control),
            (4, &[], Flood::Control),
            (8, &[0, 0, 0, 1], Flood::Control),
            (2, &[0; 5], Flood::Control),
            (0xfa, b"grease", Flood::Control),
            (9, &[], Flood::Headers),
            (3, &[0; 4], Flood::Resets),
            (0, &[], Flood::Data),
        ] {
            for cut in [1, 7, 9, 4096] {
                let mut meter = meter();
                let mut all = PREFACE.to_vec();
                (0..BURST).for_each(|_| all.extend(frame(kind, 0, payload)));
                for part in all.chunks(cut) {
                    assert_eq!(meter.received(part, Instant::ZERO), None, "{kind}");
                }
                let last = meter.received(&frame(kind, 0, payload), Instant::ZERO);
                assert_eq!(last, Some(flood), "{kind}");
                assert_eq!(meter.suspect(), flood);
            }
        }
    }

    #[test]
    fn settings_are_known_when_all_of_the_first_frame_is_there() {
        let mut meter = Meter::new(0, Instant::ZERO);
        let settings = frame(4, 0, &[0, 8, 0, 0, 0, 1]);
        for (index, byte) in settings.iter().enumerate() {
            assert!(!meter.has_settings(), "{index}");
            assert_eq!(meter.received(&[*byte], Instant::ZERO), None);
        }
        assert!(meter.has_settings());
        assert_eq!(meter.received(&settings[..10], Instant::ZERO), None);
        assert!(meter.has_settings());
    }

    #[test]
    fn messages_bytes_and_time_make_up_for_frames() {
        let ping = frame(6, 0, &[0; 8]);
        let mut meter = meter();
        assert_eq!(meter.received(PREFACE, Instant::ZERO), None);
        for round in 1..100_000_u32 {
            let now = Instant::from_nanos(match round % 3 {
                0 => u64::from(round) * 200_000_000,
                _ => 0,
            });
            match round % 3 {
                1 => assert_eq!(meter.received(&frame(1, 5, b"head"), now), None),
                2 => meter.sent(300),
                _ => {}
            }
            assert_eq!(meter.received(&ping, now), None, "{round}");
        }
        // A body is none, however long it is.
        for _ in 0..10_000 {
            let data = frame(0, 0, b"0123456789");
            assert_eq!(meter.received(&data, Instant::ZERO), None);
        }
    }
}
