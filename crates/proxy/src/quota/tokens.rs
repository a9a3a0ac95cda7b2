//! Limits of tokens of each client of a rule.
//!
//! The tokens of a request are known when its answer is over. So an estimate is taken at the beginning, and settled at
//! the end: clients cannot send many requests at once before the first one counts.

use std::net::IpAddr;

use evenkeel_core::time::Instant;
use evenkeel_inference::group::AnswerEnd;

use super::{Over, Quotas, Requests};
use crate::message::Request;

/// Tokens that a request takes from limits.
#[derive(Debug)]
pub(crate) struct TokenHold {
    /// Limits, by their places among those of the request, and the keys under which they count the request.
    keys: Box<[(usize, u64)]>,
    /// Tokens of the prompt that are held.
    prompt: u32,
    /// Tokens of the answer that are held.
    output: u32,
}

impl TokenHold {
    /// Tokens that the request has used, by the status and the end of its answer. An answer that does not say its tokens
    /// has used as many as it has events, or as many as were expected if it does not come in events.
    pub(crate) fn count_used(&self, status: u16, end: &AnswerEnd) -> u32 {
        match end.usage {
            _ if status != 200 => 0,
            Some(usage) => usage.prompt_tokens.saturating_add(usage.output_tokens),
            None if end.events > 0 => {
                let events = u32::try_from(end.events).unwrap_or(u32::MAX);
                self.prompt.saturating_add(events)
            }
            None => self.all_held(),
        }
    }

    /// Key under which the first limit counts the request that does not count all clients together.
    pub(crate) fn client_key(&self) -> Option<u64> {
        let mut keys = self.keys.iter().map(|(_, key)| *key);
        keys.find(|key| *key != 0)
    }

    fn all_held(&self) -> u32 {
        self.prompt.saturating_add(self.output)
    }
}

impl Quotas {
    /// Returns what a request for the route at this place takes of limits of tokens; `None` if it counts in none.
    #[cold]
    pub(crate) fn find_token_limits(
        &self,
        client: Option<IpAddr>,
        request: &Request<'_>,
        route: usize,
    ) -> Option<Box<TokenHold>> {
        let [of_rule, of_route] = self.request_limits(route);
        let limits = of_rule.iter().chain(of_route).enumerate();
        let limits = limits.filter(|(_, of)| of.limit.tokens.is_some());
        let keys = limits.filter_map(|(place, of)| {
            let key = self.limit_key(of, client, request)?;
            Some((place, key))
        });
        let keys: Box<[_]> = keys.collect();
        (!keys.is_empty()).then(|| {
            Box::new(TokenHold {
                keys,
                prompt: 0,
                output: 0,
            })
        })
    }

    /// Takes the estimated tokens of a request from all limits, or, if one of them has too few left, from none. Then the
    /// limit is returned that has enough again last.
    pub(crate) fn hold_tokens(
        &self,
        route: usize,
        hold: &mut TokenHold,
        (prompt, output): (u32, u32),
        now: Instant,
    ) -> Option<Over> {
        let tokens = prompt.saturating_add(output);
        let limits = || self.held_limits(route, hold);
        let over = limits().filter_map(|(place, of, key)| {
            let checked = of.table.check_many(key, tokens, now, &of.rate);
            Some((checked.err()?, place))
        });
        if let Some((wait, place)) = over.max() {
            return Some(Over::new(wait, place));
        }
        for (number, (place, of, key)) in limits().enumerate() {
            if let Err(wait) = of.table.take_many(key, tokens, now, &of.rate) {
                // Another worker was faster: this one is refused, and so has used nothing.
                for (_, of, key) in limits().take(number) {
                    of.table.give_back_many(key, tokens, &of.rate);
                }
                return Some(Over::new(wait, place));
            }
        }
        (hold.prompt, hold.output) = (prompt, output);
        None
    }

    /// Counts the tokens that a request has used in place of those that it held.
    pub(crate) fn settle_tokens(&self, route: usize, hold: &TokenHold, used: u32, now: Instant) {
        let held = hold.all_held();
        for (_, of, key) in self.held_limits(route, hold) {
            match used.checked_sub(held) {
                Some(0) => {}
                Some(more) => of.table.charge(key, more, now, &of.rate),
                None => of.table.give_back_many(key, held - used, &of.rate),
            }
        }
    }

    /// Limits with their places, and the keys under which they count the request.
    fn held_limits<'a>(
        &'a self,
        route: usize,
        hold: &'a TokenHold,
    ) -> impl Iterator<Item = (usize, &'a Requests, u64)> {
        let keys = hold.keys.iter();
        keys.filter_map(move |&(place, key)| Some((place, self.limit_at(route, place)?, key)))
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

    fn find(quotas: &Quotas, key: &str, route: usize) -> Box<TokenHold> {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nX-Key: {key}\r\n\r\n");
        let client = Some("192.0.2.1".parse().unwrap());
        let found = with_request(&head, |request| {
            quotas.find_token_limits(client, request, route)
        });
        found.unwrap()
    }

    #[test]
    fn tokens_are_held_settled_and_refused_by_key() {
        let quotas = quotas();
        let mut first = find(&quotas, "a", usize::MAX);
        assert_eq!(
            quotas.hold_tokens(usize::MAX, &mut first, (40, 20), NOW),
            None
        );
        let mut second = find(&quotas, "a", usize::MAX);
        let over = quotas.hold_tokens(usize::MAX, &mut second, (40, 20), NOW);
        let over = over.unwrap();
        assert_eq!(
            &**quotas.limit_label(usize::MAX, over).unwrap(),
            "key",
            "60 of 100 are held"
        );
        assert_eq!(over.retry_seconds(), 1);
        // Another key has all.
        let mut other = find(&quotas, "b", usize::MAX);
        assert_eq!(
            quotas.hold_tokens(usize::MAX, &mut other, (100, 0), NOW),
            None
        );
        // The first one has used less.
        quotas.settle_tokens(usize::MAX, &first, 40, NOW);
        assert_eq!(
            quotas.hold_tokens(usize::MAX, &mut second, (40, 20), NOW),
            None
        );
        // And the second one more: that is waited for.
        quotas.settle_tokens(usize::MAX, &second, 360, NOW);
        let mut third = find(&quotas, "a", usize::MAX);
        let hold = |third: &mut TokenHold, seconds| {
            let now = NOW.after(Duration::from_secs(seconds));
            quotas.hold_tokens(usize::MAX, third, (1, 0), now)
        };
        assert_eq!(hold(&mut third, 2).unwrap().retry_seconds(), 2);
        assert_eq!(hold(&mut third, 4), None);
    }

    #[test]
    fn a_request_that_one_limit_refuses_has_used_nothing_of_the_other() {
        let quotas = quotas();
        for key in ["a", "b", "c"] {
            let mut hold = find(&quotas, key, 0);
            assert_eq!(hold.keys.len(), 2);
            // More than the key has at once, which is possible if it has used nothing.
            assert_eq!(quotas.hold_tokens(0, &mut hold, (300, 0), NOW), None);
            let mut again = find(&quotas, key, 0);
            let over = quotas.hold_tokens(0, &mut again, (1, 0), NOW).unwrap();
            assert_eq!(&**quotas.limit_label(0, over).unwrap(), "key");
        }
        // 100 are left of the sum.
        let mut hold = find(&quotas, "d", 0);
        let over = quotas.hold_tokens(0, &mut hold, (50, 51), NOW).unwrap();
        assert!(quotas.limit_label(0, over).unwrap().ends_with("/1"));
        assert_eq!(quotas.hold_tokens(0, &mut hold, (50, 50), NOW), None);
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
        let mut hold = find(&quotas, "a", usize::MAX);
        assert_eq!(
            quotas.hold_tokens(usize::MAX, &mut hold, (100, 0), NOW),
            None
        );
    }

    #[test]
    fn the_largest_numbers_do_no_harm() {
        let quotas = quotas();
        let mut hold = find(&quotas, "a", 0);
        let all = (u32::MAX, u32::MAX);
        assert_eq!(quotas.hold_tokens(0, &mut hold, all, NOW), None);
        quotas.settle_tokens(0, &hold, 0, NOW);
        assert_eq!(quotas.hold_tokens(0, &mut hold, (1, 1), NOW), None);
        quotas.settle_tokens(0, &hold, u32::MAX, NOW);
        assert!(quotas.hold_tokens(0, &mut hold, (1, 1), NOW).is_some());
    }

    #[test]
    fn used_tokens_are_those_that_the_engine_says_or_events() {
        let hold = TokenHold {
            keys: Box::default(),
            prompt: 100,
            output: 200,
        };
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
        assert_eq!(hold.count_used(200, &end(Some(usage), 3)), 97);
        assert_eq!(hold.count_used(200, &end(None, 3)), 103);
        assert_eq!(hold.count_used(200, &end(None, u64::MAX)), u32::MAX);
        assert_eq!(hold.count_used(200, &end(None, 0)), 300);
        assert_eq!(hold.count_used(503, &end(None, 0)), 0);
    }
}
