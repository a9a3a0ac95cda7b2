//! Requests within long connections, as a program outside of the process sums them up: the program in the kernel that
//! forwards connections.
//!
//! A connection of a pool carries thousands of requests, and its first answer tells nothing of them. So where most
//! requests are not the first ones of their connections ([`RequestRatio`]), members are compared by requests alone:
//!
//! ```text
//! service time = (sum of latencies + ages of what is under way) / (sum of places)
//! places = 1 + growth * requests under way at the member when the request began
//! ```
//!
//! as in `estimate.rs`, with requests in the place of connections. A connection that is idle is none of the places: the
//! first answer of a connection, divided by the places of all connections, would make a member with many idle ones look
//! fast.
//!
//! The choice for a new connection multiplies this service time by the *connections* of the member (`terms.rs`): a
//! connection brings its share of requests for as long as it lives, and requests under way at this moment say nothing of
//! that time. A pool that opens all of its connections at once would have all of them at one member, too, as none of them
//! has a request yet.
//!
//! Where connections have one request each, requests and first answers are the same, and first answers are used as
//! before: their latency includes the time in which the member accepts.

use std::sync::Arc;
use std::time::Duration;

pub use crate::estimate::sums::RequestSums;
use crate::estimate::sums::write_awaited;
use crate::group::Group;
use crate::member::Slot;
use crate::time::Instant;

/// Time in which the numbers of a [`RequestRatio`] fade.
const MEMORY: Duration = Duration::from_secs(10);

/// Requests for each first answer above which connections are long: every second request is not a first one.
const LONG: f32 = 2.0;

/// Fewest requests that tell something.
const FEWEST: f32 = 4.0;

/// Requests of a group's connections beside first answers of connections, over about the last ten seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestRatio {
    requests: f32,
    first_answers: f32,
    noted: Option<Instant>,
    is_long: bool,
}

impl RequestRatio {
    /// Notes requests with an answer, and first answers of connections, since the last time.
    pub fn note(&mut self, requests: u64, first_answers: u64, now: Instant) {
        let passed = self.noted.map_or(Duration::ZERO, |noted| now.since(noted));
        let keep = libm::expf(-passed.as_secs_f32() / MEMORY.as_secs_f32());
        self.requests = self.requests * keep + requests as f32;
        self.first_answers = self.first_answers * keep + first_answers as f32;
        self.noted = Some(now);
        // Without traffic it stays as it was.
        if self.requests + self.first_answers >= FEWEST {
            self.is_long = self.requests > LONG * self.first_answers;
        }
    }

    /// True if most requests are not the first ones of their connections.
    pub fn is_long(&self) -> bool {
        self.is_long
    }
}

impl Group {
    /// Learns from requests within connections of the member at `index`, of a group with long connections.
    pub fn learn_requests(&self, index: usize, sums: &RequestSums, now: Instant) {
        if let Some(member) = self.members().get(index)
            && sums.answered > 0
        {
            let digest = self.digest();
            member.slot.sample_requests(sums, now, digest);
        }
    }
}

/// Requests that wait for a member in another program: their ages count at the member as those of tickets do, until the
/// next [update](AwaitedRequests::update), or until this is dropped.
#[derive(Debug, Default)]
pub struct AwaitedRequests {
    slot: Option<Arc<Slot>>,
    /// Part in the estimate's word of unanswered requests.
    word: u64,
}

impl AwaitedRequests {
    /// Says that `count` requests wait for the member with `slot`, which together have waited for `ages` at `now`.
    pub fn update(&mut self, slot: &Arc<Slot>, count: u32, ages: Duration, now: Instant) {
        let is_same = |held: &Arc<Slot>| Arc::ptr_eq(held, slot);
        if !self.slot.as_ref().is_some_and(is_same) {
            self.release();
        }
        let word = write_awaited(count, ages, now);
        slot.replace_awaited(self.word, word);
        (self.slot, self.word) = (Some(Arc::clone(slot)), word);
    }

    /// Says that no request waits.
    pub fn release(&mut self) {
        if let Some(slot) = self.slot.take() {
            slot.replace_awaited(self.word, 0);
        }
        self.word = 0;
    }
}

impl Drop for AwaitedRequests {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn connections_are_long_if_most_requests_are_not_the_first() {
        let mut ratio = RequestRatio::default();
        ratio.note(100, 100, at(1_000));
        assert!(!ratio.is_long());
        ratio.note(1_000, 10, at(2_000));
        assert!(ratio.is_long());
        // Nothing comes, and the ratio stays.
        ratio.note(0, 0, at(200_000));
        ratio.note(1, 1, at(200_100));
        assert!(ratio.is_long());
        ratio.note(50, 50, at(200_200));
        assert!(!ratio.is_long());
    }
}
