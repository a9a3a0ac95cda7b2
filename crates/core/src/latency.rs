//! The end of a latency: the moment of an answer up to which a member's time counts.
//!
//! The reasoning behind [`LatencyEnd::Auto`] is in `docs/strategies.md`, chapter *Streams*.

/// End of the latencies that a group's strategies, ejection and metrics use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LatencyEnd {
    /// Arrival of the head of the response.
    Head,
    /// Arrival of the first byte of the body; of the head, if there is no body.
    FirstByte,
    /// Arrival of the last byte, less the time in which the member waited for the client.
    LastByte,
    /// [`FirstByte`](LatencyEnd::FirstByte) for a [`Remainder::Stream`], and
    /// [`Head`](LatencyEnd::Head) for all other responses.
    #[default]
    Auto,
}

/// Part of a response that is missing when its head has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remainder {
    /// Nothing: the response has no body, or switches to another protocol.
    Nothing,
    /// The rest of a body that came with the head.
    Rest,
    /// A whole body of known length.
    Sized,
    /// A whole body of unknown length.
    Stream,
    /// A whole body of unknown length whose bytes come when there is news for the client.
    Subscription,
}

/// Moment that a latency waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    FirstByte,
    LastByte,
}

impl LatencyEnd {
    /// Returns what a latency waits for after the head; `None` if it has ended.
    #[inline]
    pub(crate) fn after_head(self, remainder: Remainder) -> Option<Awaited> {
        use Remainder::{Nothing, Rest, Sized, Stream, Subscription};
        match (self, remainder) {
            (_, Nothing)
            | (LatencyEnd::Head, _)
            | (LatencyEnd::FirstByte, Rest)
            | (LatencyEnd::Auto, Rest | Sized | Subscription) => None,
            (LatencyEnd::FirstByte, Sized | Stream | Subscription) | (LatencyEnd::Auto, Stream) => {
                Some(Awaited::FirstByte)
            }
            (LatencyEnd::LastByte, Rest | Sized | Stream | Subscription) => Some(Awaited::LastByte),
        }
    }
}

impl Remainder {
    /// True if the response is followed to its end: its first byte comes when the member has it, and
    /// not with the head.
    pub(crate) fn is_followed(self) -> bool {
        matches!(self, Remainder::Stream | Remainder::Subscription)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_awaited_only_if_it_is_still_to_come() {
        use LatencyEnd::{Auto, FirstByte, Head, LastByte};
        use Remainder::{Nothing, Rest, Sized, Stream, Subscription};
        let first = Some(Awaited::FirstByte);
        let last = Some(Awaited::LastByte);
        for (remainder, of_first, of_last, of_auto) in [
            (Nothing, None, None, None),
            (Rest, None, last, None),
            (Sized, first, last, None),
            (Stream, first, last, first),
            (Subscription, first, last, None),
        ] {
            assert_eq!(Head.after_head(remainder), None);
            assert_eq!(FirstByte.after_head(remainder), of_first, "{remainder:?}");
            assert_eq!(LastByte.after_head(remainder), of_last, "{remainder:?}");
            assert_eq!(Auto.after_head(remainder), of_auto, "{remainder:?}");
        }
    }
}
