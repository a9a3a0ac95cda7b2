//! Frames (RFC 9113, sections 4 and 6): headers, and the frames that are written here.

use crate::reason::Reason;

/// First bytes of a client (RFC 9113, section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Length of the header of a frame, in bytes.
pub(crate) const HEADER_BYTES: usize = 9;

/// Largest payload that is accepted here, and the largest that is sent, in bytes.
pub(crate) const MOST_PAYLOAD: usize = 16_384;

/// Largest window (RFC 9113, section 6.9.1).
pub(crate) const MOST_WINDOW: i64 = (1 << 31) - 1;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

/// Flag of DATA and HEADERS.
pub(crate) const END_STREAM: u8 = 1;
/// Flag of SETTINGS and PING.
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;
pub(crate) const WITH_PRIORITY: u8 = 0x20;

/// Weight and dependency in a HEADERS frame, in bytes.
pub(crate) const PRIORITY_BYTES: usize = 5;

pub(crate) const SET_TABLE_SIZE: u16 = 1;
pub(crate) const SET_PUSH: u16 = 2;
pub(crate) const SET_STREAMS: u16 = 3;
pub(crate) const SET_WINDOW: u16 = 4;
pub(crate) const SET_FRAME_SIZE: u16 = 5;
pub(crate) const SET_HEAD_SIZE: u16 = 6;
pub(crate) const SET_CONNECT: u16 = 8;

/// Header of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) length: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

impl Header {
    pub(crate) fn parse(bytes: &[u8; HEADER_BYTES]) -> Self {
        let [a, b, c, kind, flags, s, t, u, v] = *bytes;
        Header {
            length: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            // The first bit means nothing.
            stream: u32::from_be_bytes([s & 0x7f, t, u, v]),
        }
    }

    pub(crate) fn has_flag(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn bytes(self) -> [u8; HEADER_BYTES] {
        let [_, a, b, c] = (self.length as u32).to_be_bytes();
        let [s, t, u, v] = self.stream.to_be_bytes();
        [a, b, c, self.kind, self.flags, s, t, u, v]
    }
}

/// Appends a frame.
pub(crate) fn put_frame(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    let header = Header {
        length: payload.len(),
        kind,
        flags,
        stream,
    };
    out.extend_from_slice(&header.bytes());
    out.extend_from_slice(payload);
}

pub(crate) fn put_reset(stream: u32, reason: Reason, out: &mut Vec<u8>) {
    put_frame(RST_STREAM, 0, stream, &reason.0.to_be_bytes(), out);
}

pub(crate) fn put_window(stream: u32, more: u32, out: &mut Vec<u8>) {
    put_frame(WINDOW_UPDATE, 0, stream, &more.to_be_bytes(), out);
}

pub(crate) fn put_goaway(last: u32, reason: Reason, out: &mut Vec<u8>) {
    let [a, b, c, d] = last.to_be_bytes();
    let [s, t, u, v] = reason.0.to_be_bytes();
    put_frame(GOAWAY, 0, 0, &[a, b, c, d, s, t, u, v], out);
}

pub(crate) fn put_settings(settings: &[(u16, u32)], out: &mut Vec<u8>) {
    let header = Header {
        length: settings.len() * 6,
        kind: SETTINGS,
        flags: 0,
        stream: 0,
    };
    out.extend_from_slice(&header.bytes());
    for (name, value) in settings {
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Cuts padding off a payload (RFC 9113, section 6.1); `None` if the padding is longer than the payload.
pub(crate) fn cut_padding(padded: bool, payload: &[u8]) -> Option<&[u8]> {
    if !padded {
        return Some(payload);
    }
    let (&padding, rest) = payload.split_first()?;
    rest.get(..rest.len().checked_sub(usize::from(padding))?)
}

/// Returns the number of 32 bits that `bytes` begin with.
pub(crate) fn read_code(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.first_chunk()?))
}

/// Returns the number of 31 bits that `bytes` begin with.
pub(crate) fn read_number(bytes: &[u8]) -> Option<u32> {
    Some(read_code(bytes)? & MOST_WINDOW as u32)
}
