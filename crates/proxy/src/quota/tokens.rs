//! Limits of tokens of each client of a rule.
//!
//! The tokens of a request are known when its answer is over. So an estimate is taken at the beginning, and settled at
//! the end: clients cannot send many requests at once before the first one counts. A stream that is longer than
//! estimated takes more while it flows.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_core::time::Instant;
use evenkeel_inference::group::AnswerEnd;

use super::{Over, Quotas, Requests};
use crate::message::Request;

/// Tokens that a stream takes at a time, when it is longer than estimated.
const STEP: u32 = 64;

/// Tokens that a request takes from limits.
#[derive(Debug)]
pub(crate) struct TokenHold {
    quotas: Arc<Quotas>,
    /// Place of the request's route.
    route: usize,
    /// Limits, by their places among those of the request, and the keys under which they count the request.
    keys: Box<[(usize, u64)]>,
    /// Tokens of the prompt that are held.
    prompt: Cell<u32>,
    /// Tokens of the answer that are held.
    output: Cell<u32>,
    /// Bytes of the body for which `prompt` stands, if more may have come.
    guessed_bytes: Cell<Option<u64>>,
    /// Tokens that engines have perhaps worked on, and that no answer tells.
    given_up: Cell<u32>,
}

/// Estimated tokens of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TokenEstimate {
    pub(crate) prompt: u32,
    pub(crate) output: u32,
    /// Bytes of the body for which `prompt` stands, if more may come.
    pub(crate) guessed_bytes: Option<u64>,
}

impl TokenHold {
    /// Takes the estimated tokens of a request from all limits, or, if one of them has too few left, from none. Then the
    /// limit is returned that has enough again last.
    pub(crate) fn take(&self, estimate: TokenEstimate, now: Instant) -> Option<Over> {
        let tokens = estimate.prompt.saturating_add(estimate.output);
        let over = self.limits().filter_map(|(place, of, key)| {
            let checked = of.table.check_many(key, tokens, now, &of.rate);
            Some((checked.err()?, place))
        });
        if let Some((wait, place)) = over.max() {
            return Some(Over::new(wait, place));
        }
        for (number, (place, of, key)) in self.limits().enumerate() {
            if let Err(wait) = of.table.take_many(key, tokens, now, &of.rate) {
                // Another worker was faster: this one is refused, and so has used nothing.
                for (_, of, key) in self.limits().take(number) {
                    of.table.give_back_many(key, tokens, &of.rate);
                }
                return Some(Over::new(wait, place));
            }
        }
        self.prompt.set(estimate.prompt);
        self.output.set(estimate.output);
        self.guessed_bytes.set(estimate.guessed_bytes);
        None
    }

    /// Takes more for a stream that has had this many events, if they are more than the held tokens of the answer.
    #[inline]
    pub(crate) fn charge_events(&self, events: u64, now: Instant) {
        let events = u32::try_from(events).unwrap_or(u32::MAX);
        if let Some(more @ 1..) = events.checked_sub(self.output.get()) {
            self.charge_output(more.max(STEP), now);
        }
    }

    #[cold]
    fn charge_output(&self, more: u32, now: Instant) {
        for (_, of, key) in self.limits() {
            of.table.charge(key, more, now, &of.rate);
        }
        self.output.set(self.output.get().saturating_add(more));
    }

    /// Counts the tokens that the request has used in place of those that it held.
    pub(crate) fn settle(&self, used: u32, now: Instant) {
        let held = self.all_held();
        for (_, of, key) in self.limits() {
            match used.checked_sub(held) {
                Some(0) => {}
                Some(more) => of.table.charge(key, more, now, &of.rate),
                None => of.table.give_back_many(key, held - used, &of.rate),
            }
        }
    }

    /// Notes that an engine which had this many bytes of the body's content, all of them, was given up while it may have
    /// read the prompt and written most of an answer: the client has left, or a time limit is over.
    pub(crate) fn note_given_up(&self, sent_bytes: u64) {
        let tokens = self.count_expected(sent_bytes);
        self.given_up.set(self.given_up.get().max(tokens));
    }

    /// Tokens that engines have perhaps worked on before they were given up. A request pays once, however many they are.
    pub(crate) fn given_up_tokens(&self) -> u32 {
        self.given_up.get()
    }

    /// Tokens that the request has used, by the status and the end of its answer, and by the bytes of its body's content that
    /// were sent. An answer that does not say its tokens has used as many as it has events, or as many as were expected if it
    /// does not come in events.
    pub(crate) fn count_used(&self, status: u16, end: &AnswerEnd, sent_bytes: u64) -> u32 {
        match end.usage {
            _ if status != 200 => self.given_up.get(),
            Some(usage) => {
                // A stream that was left has perhaps told of its beginning only.
                let events = u32::try_from(end.events).unwrap_or(u32::MAX);
                let output = match end.is_complete {
                    true => usage.output_tokens,
                    false => usage.output_tokens.max(events),
                };
                usage.prompt_tokens.saturating_add(output)
            }
            None if end.events > 0 => {
                let events = u32::try_from(end.events).unwrap_or(u32::MAX);
                self.prompt_sent(sent_bytes).saturating_add(events)
            }
            None => self.count_expected(sent_bytes),
        }
    }

    /// Tokens that a request of which this many bytes were sent is expected to use.
    fn count_expected(&self, sent_bytes: u64) -> u32 {
        self.prompt_sent(sent_bytes)
            .saturating_add(self.output.get())
    }

    /// Tokens of the prompt, once it is known how long the body is.
    fn prompt_sent(&self, sent_bytes: u64) -> u32 {
        let prompt = self.prompt.get();
        match self.guessed_bytes.get() {
            Some(guessed @ 1..) if sent_bytes > guessed => {
                let tokens = u128::from(prompt) * u128::from(sent_bytes) / u128::from(guessed);
                u32::try_from(tokens).unwrap_or(u32::MAX)
            }
            _ => prompt,
        }
    }

    /// Key under which the first limit counts the request that does not count all clients together.
    pub(crate) fn client_key(&self) -> Option<u64> {
        let mut keys = self.keys.iter().map(|(_, key)| *key);
        keys.find(|key| *key != 0)
    }

    fn all_held(&self) -> u32 {
        self.prompt.get().saturating_add(self.output.get())
    }

    /// Limits with their places, and the keys under which they count the request.
    fn limits(&self) -> impl Iterator<Item = (usize, &Requests, u64)> {
        let keys = self.keys.iter();
        keys.filter_map(|&(place, key)| {
            let limit = self.quotas.limit_at(self.route, place)?;
            Some((place, limit, key))
        })
    }
}

impl Quotas {
    /// Returns what a request for the route at this place takes of limits of tokens; `None` if it counts in none.
    #[cold]
    pub(crate) fn find_token_limits(
        self: &Arc<Self>,
        client: Option<IpAddr>,
        request: &Request<'_>,
        route: usize,
    ) -> Option<Rc<TokenHold>> {
        let [of_rule, of_route] = self.request_limits(route);
        let limits = of_rule.iter().chain(of_route).enumerate();
        let limits = limits.filter(|(_, of)| of.limit.tokens.is_some());
        let keys = limits.filter_map(|(place, of)| {
            let key = self.limit_key(of, client, request)?;
            Some((place, key))
        });
        let keys: Box<[_]> = keys.collect();
        (!keys.is_empty()).then(|| {
            Rc::new(TokenHold {
                quotas: Arc::clone(self),
                route,
                keys,
                prompt: Cell::default(),
                output: Cell::default(),
                guessed_bytes: Cell::default(),
                given_up: Cell::default(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use evenkeel_inference::usage::Usage;
    use evenkeel_manager::config::{Config, parse};

    use super::*;
    use crate::message::tests::with_request;
    use crate::metrics::Metrics;

    const LIMITS: &str = "[rule.web]\nlisten = \"127.0.0.1:1\"\nmembers = [\"127.0.0.1:2\"]\nstrategy = \"inference\"\n\
        [rule.web.limits]\nrequests = \"2/m\"\n\
        [[rule.web.request_limits]]\nname = \"key\"\ntokens = \"100/s\"\nkey = \"header:X-Key\"\n\
        [[rule.web.routes]]\npath = \"/a\"\nrequest_limits = [{ tokens = \"1000/s\", key = \"all\" }]\n";

    const NOW: Instant = Instant::from_nanos(5_000_000_000);

    fn quotas() -> Arc<Quotas> {
        let config: Config = parse("evenkeel.toml", LIMITS).unwrap();
        Quotas::next(&config.rules[0], &Metrics::default(), None).unwrap()
    }

    fn find(quotas: &Arc<Quotas>, key: &str, route: usize) -> Rc<TokenHold> {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nX-Key: {key}\r\n\r\n");
        let client = Some("192.0.2.1".parse().unwrap());
        let found = with_request(&head, |request| {
            quotas.find_token_limits(client, request, route)
        });
        found.unwrap()
    }

    fn take(hold: &TokenHold, prompt: u32, output: u32) -> Option<Over> {
        let estimate = TokenEstimate {
            prompt,
            output,
            guessed_bytes: None,
        };
        hold.take(estimate, NOW)
    }

    #[test]
    fn tokens_are_held_settled_and_refused_by_key() {
        let quotas = quotas();
        let first = find(&quotas, "a", usize::MAX);
        assert_eq!(take(&first, 40, 20), None);
        let second = find(&quotas, "a", usize::MAX);
        let over = take(&second, 40, 20).unwrap();
        assert_eq!(
            &**quotas.limit_label(usize::MAX, over).unwrap(),
            "key",
            "60 of 100 are held"
        );
        assert_eq!(over.retry_seconds(), 1);
        // Another key has all.
        let other = find(&quotas, "b", usize::MAX);
        assert_eq!(take(&other, 100, 0), None);
        // The first one has used less.
        first.settle(40, NOW);
        assert_eq!(take(&second, 40, 20), None);
        // And the second one more: that is waited for.
        second.settle(360, NOW);
        let third = find(&quotas, "a", usize::MAX);
        let hold = |seconds| {
            let estimate = TokenEstimate {
                prompt: 1,
                ..TokenEstimate::default()
            };
            third.take(estimate, NOW.after(Duration::from_secs(seconds)))
        };
        assert_eq!(hold(2).unwrap().retry_seconds(), 2);
        assert_eq!(hold(4), None);
    }

    #[test]
    fn a_request_that_one_limit_refuses_has_used_nothing_of_the_other() {
        let quotas = quotas();
        for key in ["a", "b", "c"] {
            let hold = find(&quotas, key, 0);
            assert_eq!(hold.keys.len(), 2);
            // More than the key has at once, which is possible if it has used nothing.
            assert_eq!(take(&hold, 300, 0), None);
            let again = find(&quotas, key, 0);
            let over = take(&again, 1, 0).unwrap();
            assert_eq!(&**quotas.limit_label(0, over).unwrap(), "key");
        }
        // 100 are left of the sum.
        let hold = find(&quotas, "d", 0);
        let over = take(&hold, 50, 51).unwrap();
        assert!(quotas.limit_label(0, over).unwrap().ends_with("/1"));
        assert_eq!(take(&hold, 50, 50), None);
    }

    #[test]
    fn requests_and_tokens_do_not_count_for_each_other() {
        let quotas = quotas();
        let client = Some("192.0.2.1".parse().unwrap());
        let taken = (0..5).filter(|_| {
            let over = with_request("POST / HTTP/1.1\r\nHost: a\r\n\r\n", |request| {
                quotas.take_request(client, request, usize::MAX, NOW)
            });
            over.is_none()
        });
        assert_eq!(taken.count(), 2);
        assert_eq!(take(&find(&quotas, "a", usize::MAX), 100, 0), None);
    }

    #[test]
    fn the_largest_numbers_do_no_harm() {
        let quotas = quotas();
        let hold = find(&quotas, "a", 0);
        assert_eq!(take(&hold, u32::MAX, u32::MAX), None);
        hold.charge_events(u64::MAX, NOW);
        hold.settle(0, NOW);
        assert_eq!(take(&hold, 1, 1), None);
        hold.charge_events(u64::MAX, NOW);
        hold.settle(u32::MAX, NOW);
        assert!(take(&hold, 1, 1).is_some());
    }

    #[test]
    fn a_stream_that_goes_on_takes_more_while_it_flows() {
        let quotas = quotas();
        let stream = find(&quotas, "a", usize::MAX);
        assert_eq!(take(&stream, 10, 20), None);
        let most_left = || {
            let other = find(&quotas, "a", usize::MAX);
            let mut tokens = (0..=100).rev();
            let most = tokens.find(|tokens| take(&other, *tokens, 0).is_none());
            other.settle(0, NOW);
            most
        };
        // The estimate is enough for 20 events, and each further step for 64.
        for (events, left) in [(20, Some(70)), (21, Some(6)), (84, Some(6)), (85, None)] {
            stream.charge_events(events, NOW);
            assert_eq!(most_left(), left, "{events}");
        }
        // At the end what was used counts.
        stream.settle(96, NOW);
        assert_eq!(most_left(), Some(4));
    }

    #[test]
    fn used_tokens_are_those_that_the_engine_says_or_events() {
        let quotas = quotas();
        let hold = find(&quotas, "a", usize::MAX);
        assert_eq!(take(&hold, 100, 200), None);
        let end = |usage, events| AnswerEnd {
            usage,
            events,
            is_complete: true,
        };
        let usage = Usage {
            prompt_tokens: 90,
            cached_tokens: Some(80),
            output_tokens: 7,
        };
        assert_eq!(hold.count_used(200, &end(Some(usage), 3), 400), 97);
        assert_eq!(hold.count_used(200, &end(None, 3), 400), 103);
        assert_eq!(hold.count_used(200, &end(None, u64::MAX), 400), u32::MAX);
        assert_eq!(hold.count_used(200, &end(None, 0), 400), 300);
        assert_eq!(hold.count_used(503, &end(None, 0), 400), 0);
        // The body was longer than was guessed.
        hold.guessed_bytes.set(Some(400));
        assert_eq!(hold.count_used(200, &end(None, 3), 400), 103);
        assert_eq!(hold.count_used(200, &end(None, 3), 1000), 253);
        assert_eq!(hold.count_expected(1000), 450);
        hold.guessed_bytes.set(Some(0));
        assert_eq!(hold.count_expected(1000), 300);
    }

    #[test]
    fn a_request_pays_once_for_engines_that_were_given_up() {
        let quotas = quotas();
        let hold = find(&quotas, "a", usize::MAX);
        assert_eq!(take(&hold, 100, 200), None);
        let end = |events| AnswerEnd {
            events,
            ..AnswerEnd::default()
        };
        assert_eq!(
            (hold.given_up_tokens(), hold.count_used(503, &end(0), 400)),
            (0, 0)
        );
        // The body was longer than was guessed, and is sent once more.
        hold.guessed_bytes.set(Some(400));
        hold.note_given_up(1000);
        hold.note_given_up(400);
        assert_eq!(hold.given_up_tokens(), 450);
        assert_eq!(hold.count_used(503, &end(0), 0), 450);
        // An answer says more than a guess does.
        assert_eq!(hold.count_used(200, &end(7), 400), 107);
        hold.note_given_up(u64::MAX);
        assert_eq!(hold.given_up_tokens(), u32::MAX);
    }
}
