//! Places of requests in traces, and the fields that say them.

use std::sync::Arc;
use std::time::Duration;

/// Length of a `traceparent` of version 00.
const PARENT_BYTES: usize = 55;

/// Flag of a trace that is recorded.
pub(super) const SAMPLED: u8 = 1;

/// Place of a request in a trace, as `traceparent` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The trace.
    pub trace: [u8; 16],
    /// The span that is the parent of what comes.
    pub span: [u8; 8],
    /// Flags; the first bit is set if it is recorded.
    pub flags: u8,
}

impl Context {
    /// Reads a `traceparent`; `None` if the text is none. Parts that later versions add are left
    /// out.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (head, rest) = text.split_at_checked(PARENT_BYTES)?;
        let part = |from: usize, len: usize| head.get(from..from + len);
        let [version] = hex(part(0, 2)?)?;
        let dashes = [2, 35, 52].map(|at| head.get(at) == Some(&b'-'));
        let follows = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => matches!(rest.first(), None | Some(b'-')),
        };
        if dashes != [true; 3] || !follows {
            return None;
        }
        let (trace, span) = (hex(part(3, 32)?)?, hex(part(36, 16)?)?);
        let [flags] = hex(part(53, 2)?)?;
        (trace != [0; 16] && span != [0; 8]).then_some(Context { trace, span, flags })
    }

    /// Returns the context as a `traceparent`.
    pub fn to_bytes(self) -> [u8; PARENT_BYTES] {
        let mut text = [b'-'; PARENT_BYTES];
        put_hex(&[0], &mut text, 0);
        put_hex(&self.trace, &mut text, 3);
        put_hex(&self.span, &mut text, 36);
        put_hex(&[self.flags], &mut text, 53);
        text
    }
}

/// Bytes from lower-case hexadecimal digits.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    (text.len() == 2 * N).then_some(bytes)
}

fn put_hex(bytes: &[u8], out: &mut [u8], at: usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let places = out.iter_mut().skip(at);
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    for (place, digit) in places.zip(digits) {
        *place = DIGITS.get(usize::from(digit)).copied().unwrap_or(b'0');
    }
}

/// A traced request.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The trace.
    pub id: [u8; 16],
    /// The span of the client, if it is in the trace.
    pub parent: Option<[u8; 8]>,
    /// The span of the request here.
    pub span: [u8; 8],
    /// Flags of the trace.
    pub flags: u8,
    /// The client's `tracestate`.
    pub state: Option<Box<str>>,
    /// Authority that the request was for: `host[:port]`.
    pub authority: Option<Box<str>>,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// The field `User-Agent` (at most 256 bytes).
    pub user_agent: Option<Box<str>>,
    /// Tries at members.
    pub attempts: Vec<Attempt>,
    /// The span of what is being tried.
    pub(crate) current: [u8; 8],
    /// Offset of the parent in the member's head.
    pub(crate) place: usize,
}

/// A try at a member.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Span of the try.
    pub span: [u8; 8],
    /// The member.
    pub member: Arc<str>,
    /// Name that the configuration gives the member.
    pub member_name: Option<Arc<str>>,
    /// The group.
    pub group: Arc<str>,
    /// Strategy by which the member was chosen.
    pub strategy: &'static str,
    /// Time at which the try began, after the request's head was complete.
    pub began: Duration,
    /// Time at which the try was over; `None` if that was the end of the request.
    pub end_time: Option<Duration>,
    /// Time for which the request had waited for the member in the group's queue.
    pub queued: Duration,
    /// Time that connecting took, if no connection was used again.
    pub connect_time: Option<Duration>,
    /// The status of the response, if there was one.
    pub status: Option<u16>,
    /// Reason why the try has failed, if it has.
    pub failure: Option<&'static str>,
    /// True if the try was the second request of a hedge.
    pub hedge: bool,
}

/// Changes of the fields of traces in a request's head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// True if `traceparent` is left out.
    pub(crate) drops_parent: bool,
    /// True if `tracestate` is left out.
    pub(crate) drops_state: bool,
    /// The `traceparent` that is said.
    pub(crate) parent: Option<[u8; PARENT_BYTES]>,
}

/// Fields of traces.
pub(crate) const PARENT: &str = "traceparent";
pub(crate) const STATE: &str = "tracestate";

impl Trace {
    /// Returns the context that a member is told.
    pub(crate) fn member_context(&self) -> Context {
        Context {
            trace: self.id,
            span: self.current,
            flags: self.flags,
        }
    }
}

/// A new name for a span.
pub(crate) fn new_span(rng: &mut fastrand::Rng) -> [u8; 8] {
    // 0 is none.
    rng.u64(1..).to_be_bytes()
}

/// A span as it stands in a `traceparent`.
pub(crate) fn span_text(span: [u8; 8]) -> [u8; 16] {
    let mut text = [0; 16];
    put_hex(&span, &mut text, 0);
    text
}

/// Digits of a trace, as logs show it.
pub fn trace_text(id: [u8; 16]) -> String {
    let mut text = [0; 32];
    put_hex(&id, &mut text, 0);
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_and_written() {
        let context = Context::parse(GOOD.as_bytes()).unwrap();
        assert_eq!(context.flags, 1);
        assert_eq!(context.to_bytes(), GOOD.as_bytes());
        assert_eq!(trace_text(context.trace), GOOD[3..35]);
        assert_eq!(span_text(context.span), GOOD.as_bytes()[36..52]);
        // A later version may add something.
        let later = format!("01{}-what-comes", &GOOD[2..]);
        assert_eq!(Context::parse(later.as_bytes()), Some(context));
    }

    #[test]
    fn what_is_no_traceparent_is_none() {
        let replaced = |from: usize, with: &str| {
            let mut text = GOOD.to_owned();
            text.replace_range(from..from + with.len(), with);
            text
        };
        for bad in [
            String::new(),
            GOOD[..54].into(),
            format!("{GOOD}-"),
            format!("01{}x", &GOOD[2..]),
            replaced(0, "ff"),
            replaced(2, "_"),
            replaced(35, "0"),
            replaced(52, "0"),
            replaced(3, "4BF9"),
            replaced(3, &"0".repeat(32)),
            replaced(36, &"0".repeat(16)),
            replaced(53, "0g"),
            replaced(0, "é"),
        ] {
            assert_eq!(Context::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn anything_is_read_without_a_panic(text in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some(context) = Context::parse(&text) {
                let written = context.to_bytes();
                prop_assert_eq!(Context::parse(&written), Some(context));
            }
        }
    }
}
