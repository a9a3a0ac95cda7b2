//! Answer of an engine that serves a language model, read while it flows: events of its stream, and the tokens that the
//! engine has counted.

use std::rc::Rc;
use std::time::Duration;

use evenkeel_core::time::Instant;
use evenkeel_inference::group::AnswerEnd;
use evenkeel_inference::usage::UsageReader;
use evenkeel_manager::config::fields::media_type;

use crate::http1::ResponseHead;
use crate::http1::chunked::{Decoder, content_pieces};
use crate::quota::tokens::TokenHold;

/// Time for which an engine is taken for full after it has refused a request.
pub(super) const FULL_TIME: Duration = Duration::from_millis(500);

/// Reader of an answer's body.
#[derive(Debug)]
pub(super) struct EngineAnswer {
    reader: UsageReader,
    /// Decoder of the chunks, if the body flows with its framing.
    framing: Option<Decoder>,
    is_event_stream: bool,
    /// Events that were taken.
    taken: u64,
    /// Tokens that the request holds of limits, if events may take more of them.
    tokens: Option<Rc<TokenHold>>,
}

impl EngineAnswer {
    /// Creates a reader. `is_framed` says that the body flows with the framing of its chunks.
    pub(super) fn new(is_event_stream: bool, is_framed: bool) -> Self {
        EngineAnswer {
            reader: UsageReader::new(is_event_stream),
            framing: is_framed.then(Decoder::new),
            is_event_stream,
            taken: 0,
            tokens: None,
        }
    }

    /// True if the body consists of events.
    pub(super) fn is_event_stream(&self) -> bool {
        self.is_event_stream
    }

    /// Returns the same reader, whose events take tokens from limits once they are more than the request holds.
    pub(super) fn of_hold(self, tokens: Option<Rc<TokenHold>>) -> Self {
        EngineAnswer { tokens, ..self }
    }

    /// Reads the next bytes of the body, as they flow.
    pub(super) fn read_bytes(&mut self, bytes: &[u8]) {
        let reader = &mut self.reader;
        content_pieces(&mut self.framing, bytes, |content| {
            reader.feed_bytes(content);
        });
    }

    /// Number of events since the last call. An answer that is no stream of events counts as one, at its first byte.
    pub(super) fn take_events(&mut self) -> u64 {
        let events = match self.is_event_stream {
            true => self.reader.event_count(),
            false => u64::from(self.reader.total_bytes() > 0),
        };
        let before = std::mem::replace(&mut self.taken, events);
        events.saturating_sub(before)
    }

    /// Takes the tokens of the events so far from limits, if the request does not hold as many.
    pub(super) fn charge_events(&self, now: Instant) {
        if let Some(tokens) = &self.tokens {
            tokens.charge_events(self.reader.event_count(), now);
        }
    }

    /// End of the answer.
    pub(super) fn answer_end(&self, is_complete: bool) -> AnswerEnd {
        AnswerEnd {
            usage: is_complete.then(|| self.reader.find_usage()).flatten(),
            events: self.reader.event_count(),
            is_complete,
        }
    }
}

/// True if the body consists of events (WHATWG HTML, section 9.2). A client that subscribes to them sends a GET.
#[cold]
pub(super) fn is_event_stream(head: &ResponseHead<'_>) -> bool {
    let value = head.values("content-type").next().unwrap_or_default();
    media_type(value).eq_ignore_ascii_case(b"text/event-stream")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n\
                        data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n\
                        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\
                        \"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";

    #[test]
    fn events_and_usage_are_found_with_and_without_framing_wherever_the_answer_is_cut() {
        let framed: String = BODY
            .as_bytes()
            .chunks(7)
            .map(|part| format!("{:x}\r\n{}\r\n", part.len(), String::from_utf8_lossy(part)))
            .collect();
        let framed = framed + "0\r\n\r\n";
        for (text, is_framed) in [(BODY, false), (&*framed, true)] {
            for size in [1, 3, 50, text.len()] {
                let mut answer = EngineAnswer::new(true, is_framed);
                let mut events = 0;
                for part in text.as_bytes().chunks(size) {
                    answer.read_bytes(part);
                    events += answer.take_events();
                }
                let end = answer.answer_end(true);
                assert_eq!(events, end.events, "{size}");
                assert!(events >= 2, "{events}");
                let usage = end.usage.unwrap();
                assert_eq!((usage.prompt_tokens, usage.cached_tokens), (9, Some(4)));
                assert_eq!(answer.answer_end(false).usage, None);
            }
        }
    }

    #[test]
    fn an_answer_that_is_no_stream_counts_as_one_event() {
        let mut answer = EngineAnswer::new(false, false);
        assert_eq!(answer.take_events(), 0);
        answer.read_bytes(b"{\"usage\":{\"prompt_tokens\":5}}");
        assert_eq!((answer.take_events(), answer.take_events()), (1, 0));
        assert!(answer.answer_end(true).usage.is_some());
    }
}
