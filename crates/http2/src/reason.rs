//! Reasons for the end of a stream or a connection (RFC 9113, section 7).

use std::fmt;

/// A reason, as RST_STREAM and GOAWAY have it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Reason(pub u32);

impl Reason {
    /// No error.
    pub const NO_ERROR: Reason = Reason(0);
    /// The peer broke the protocol.
    pub const PROTOCOL_ERROR: Reason = Reason(1);
    /// An error of the sender's own.
    pub const INTERNAL_ERROR: Reason = Reason(2);
    /// The peer has sent more than the windows allow.
    pub const FLOW_CONTROL_ERROR: Reason = Reason(3);
    /// A frame came for a stream that had ended.
    pub const STREAM_CLOSED: Reason = Reason(5);
    /// A frame has a size that it cannot have.
    pub const FRAME_SIZE_ERROR: Reason = Reason(6);
    /// The stream was not processed at all.
    pub const REFUSED_STREAM: Reason = Reason(7);
    /// The stream is needed no more.
    pub const CANCEL: Reason = Reason(8);
    /// A field block cannot be decoded.
    pub const COMPRESSION_ERROR: Reason = Reason(9);
    /// The peer sends too much of what carries nothing.
    pub const ENHANCE_YOUR_CALM: Reason = Reason(11);

    /// Name in the standard, if the reason is one that it has.
    fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0 => "NO_ERROR",
            1 => "PROTOCOL_ERROR",
            2 => "INTERNAL_ERROR",
            3 => "FLOW_CONTROL_ERROR",
            4 => "SETTINGS_TIMEOUT",
            5 => "STREAM_CLOSED",
            6 => "FRAME_SIZE_ERROR",
            7 => "REFUSED_STREAM",
            8 => "CANCEL",
            9 => "COMPRESSION_ERROR",
            10 => "CONNECT_ERROR",
            11 => "ENHANCE_YOUR_CALM",
            12 => "INADEQUATE_SECURITY",
            13 => "HTTP_1_1_REQUIRED",
            _ => return None,
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "reason {}", self.0),
        }
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
