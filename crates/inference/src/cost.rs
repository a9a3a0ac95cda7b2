//! Cost of a request at each member, and the choice of the member with the lowest cost.
//!
//! The cost is the delay, in seconds, that the choice adds for everybody: for the request itself and for those that the
//! member serves already. It has no weight to tune but the half of `stall` (prompts are read in chunks, which share
//! steps with streams). For member *i*, with `u` tokens to be read, `Q` tokens queued, `W` requests that wait, `D`
//! streams, `O` tokens to be written, and the [speeds](crate::speed) `a`, `b`, `c`:
//!
//! ```text
//! own    = a * (Q + u) + overdue          until the request's first token
//! evict  = a * u * found_share            tokens that reading throws out of the cache, and that are read again
//! stall  = 1/2 * a * u * (D + W)          streams wait while the prompt is read; those that wait are streams by then
//! slower = 2 * O * c * (D + W)            the request's tokens, and those of all others while it runs
//! full   = rest of the time for which a member that has refused a request counts as full
//! write  = O * b
//! ```
//!
//! The lowest sum wins. If sums are equal, the fewest streams win, then the rendezvous of the prompt's first block
//! (Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998). If nobody holds anything of the
//! prompt, all members within a tenth of the lowest sum count as equal, so that several balancers begin at the same
//! member.

use std::fmt;

use crate::index::Matches;
use crate::queue::QueueMoment;
use crate::speed::Speeds;

/// Share above the lowest cost within which members are equal for a prompt that nobody holds.
const COLD_SHARE: f32 = 0.1;

/// Share of the time of reading for which the member's streams wait.
const STALL_SHARE: f32 = 0.5;

/// Request as the costs know it.
#[derive(Clone, Copy, Debug)]
pub struct RequestWork {
    /// Tokens of the prompt.
    pub prompt_tokens: f32,
    /// Tokens that the answer is expected to have.
    pub output_tokens: f32,
    /// Share of the tokens of prompts that members remembered lately.
    pub found_share: f32,
    /// Hash of the prompt's first block, or a random number if there is none.
    pub tie_key: u64,
    /// Blocks that members hold.
    pub matches: Matches,
}

/// Member that may get the request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Number of the member.
    pub member: usize,
    /// Hash of the member's name: the same at all balancers.
    pub key: u64,
    /// Weight of the member, above 0: the cost is divided by it. Slow start lowers it.
    pub weight: f32,
    /// Seconds to add, for failures seen or another zone.
    pub extra_seconds: f32,
    /// Load that others have reported.
    pub load: ReportedLoad,
}

/// Load of a member by its metrics and by other balancers. Unknown numbers are `None`, not 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReportedLoad {
    /// Requests that wait in the engine.
    pub waiting: Option<f32>,
    /// Requests that run in the engine: read, or written to.
    pub running: Option<f32>,
    /// Tokens that other balancers have queued at the member.
    pub queued_elsewhere: f32,
    /// Requests of other balancers without a first token.
    pub waiting_elsewhere: f32,
    /// Streams that other balancers have at the member.
    pub streams_elsewhere: f32,
}

/// Cost of a request at one member, part by part; times in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CostParts {
    /// Tokens of the prompt.
    pub prompt_tokens: f32,
    /// Tokens of the prompt that the member is believed to remember.
    pub known_tokens: f32,
    /// Tokens that are queued before the request.
    pub queued_tokens: f32,
    /// Requests of the member without a first token.
    pub waiting: f32,
    /// Streams of the member.
    pub streams: f32,
    /// Usual time to a first token that needs no reading. No part of the cost, as it is mostly noise.
    pub delay: f32,
    /// Time until the request's prompt has been read.
    pub own: f32,
    /// Time to read again what the prompt throws out of the cache.
    pub evict: f32,
    /// Time for which streams wait while the prompt is read.
    pub stall: f32,
    /// Time by which the request and the others are slower while it runs.
    pub slower: f32,
    /// Rest of the time for which the member counts as full.
    pub full: f32,
    /// Time to write the answer, if the request were alone.
    pub write: f32,
    /// Seconds that the caller adds.
    pub extra: f32,
    /// Seconds that a further copy of the prompt's beginning would have spared other requests lately.
    pub credit: f32,
    /// Weight of the member.
    pub weight: f32,
}

impl CostParts {
    /// Cost in seconds; the lowest wins. Never NaN.
    #[inline]
    pub fn total(&self) -> f32 {
        let sum = self.own + self.evict + self.stall + self.slower + self.full + self.write;
        let total = sum / self.weight + self.extra - self.credit;
        match self.weight > 0.0 && total < f32::MAX {
            true => total,
            false => f32::MAX,
        }
    }

    /// Expected seconds to the first token.
    pub fn first_token_seconds(&self) -> f32 {
        self.delay + self.own + self.full
    }

    /// Expected seconds to the first token if the member reads other requests first, or has no room; 0 if the member
    /// reads the request at once, however long that takes: waiting elsewhere gains nothing then. A member that should
    /// have read a request by now, and has sent no first token, still reads that request.
    pub fn queued_seconds(&self) -> f32 {
        match self.waiting > 0.0 || self.queued_tokens > 0.0 || self.full > 0.0 {
            true => self.first_token_seconds(),
            false => 0.0,
        }
    }

    /// Seconds by which the request delays others, all together.
    pub fn delay_of_others(&self) -> f32 {
        self.evict + self.stall + self.slower / 2.0
    }
}

/// Sentence for people, without the member's name: "knows 11,900 of 12,300 tokens, 8 streams, 3,100 tokens before it:
/// first token in 0.31 s, delays others by 0.09 s".
impl fmt::Display for CostParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "knows {} of {} tokens, {} streams, {} tokens before it: first token in {:.2} s, delays others by {:.2} s",
            Grouped(self.known_tokens),
            Grouped(self.prompt_tokens),
            Grouped(self.streams),
            Grouped(self.queued_tokens),
            self.first_token_seconds(),
            self.delay_of_others(),
        )?;
        if self.extra > 0.0 {
            write!(f, ", {:.2} s added", self.extra)?;
        }
        if self.credit > 0.0 {
            write!(
                f,
                ", {:.2} s less as others use the prompt, too",
                self.credit
            )?;
        }
        Ok(())
    }
}

/// Number with commas between thousands.
struct Grouped(f32);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Too large numbers become the largest one.
        let mut rest = self.0.max(0.0).round() as u64;
        let (mut groups, mut count) = ([0; 7], 0);
        while rest >= 1000
            && let Some(group) = groups.get_mut(count)
        {
            *group = rest % 1000;
            rest /= 1000;
            count += 1;
        }
        write!(f, "{rest}")?;
        for group in groups.iter().take(count).rev() {
            write!(f, ",{group:03}")?;
        }
        Ok(())
    }
}

/// Works out the cost of a request at a member which remembers `known_tokens` of its prompt.
#[inline]
pub fn price_member(
    work: &RequestWork,
    candidate: &Candidate,
    known_tokens: f32,
    speeds: &Speeds,
    queue: &QueueMoment,
) -> CostParts {
    let Speeds {
        delay,
        read,
        write,
        crowd,
    } = *speeds;
    let load = &candidate.load;
    let output = work.output_tokens;
    let unread = unread_tokens(work.prompt_tokens, known_tokens);
    // Requests that others send show in the metrics. These may be late, so the mean of both numbers counts.
    let unseen = (load.waiting.unwrap_or(0.0) - queue.waiting).max(0.0) / 2.0;
    let usual = match queue.waiting > 0.0 {
        true => queue.queued_tokens / queue.waiting,
        false => work.prompt_tokens * (1.0 - work.found_share),
    };
    // The metrics count the requests of other balancers, too: the larger of both numbers counts.
    let queued = queue.queued_tokens + (unseen * usual).max(load.queued_elsewhere);
    // Our requests without a token may run or wait.
    let unseen_streams = load.running.unwrap_or(0.0) - queue.streams - queue.waiting;
    let streams = queue.streams + (unseen_streams / 2.0).max(load.streams_elsewhere);
    let waiting = queue.waiting + unseen.max(load.waiting_elsewhere);
    CostParts {
        prompt_tokens: work.prompt_tokens,
        known_tokens,
        queued_tokens: queued,
        waiting,
        streams,
        delay,
        own: read * (queued + unread) + queue.overdue_seconds,
        evict: read * unread * work.found_share,
        stall: STALL_SHARE * read * unread * (streams + waiting),
        slower: 2.0 * output * crowd * (streams + waiting),
        full: queue.full_seconds,
        write: output * write,
        extra: candidate.extra_seconds,
        credit: 0.0,
        weight: candidate.weight,
    }
}

/// Tokens that a member has to read.
pub fn unread_tokens(prompt_tokens: f32, known_tokens: f32) -> f32 {
    (prompt_tokens - known_tokens).max(1.0)
}

/// Chooses the member with the lowest cost. `price` works out the cost of a candidate, and `explain` gets each
/// candidate with its cost, once. Returns the chosen candidate; `None` if there are no candidates.
#[inline]
pub fn choose_cheapest(
    work: &RequestWork,
    candidates: impl Iterator<Item = Candidate> + Clone,
    mut price: impl FnMut(&Candidate) -> CostParts,
    mut explain: impl FnMut(&Candidate, &CostParts),
) -> Option<Candidate> {
    let mut best: Option<(Candidate, f32, f32)> = None;
    for candidate in candidates.clone() {
        let parts = price(&candidate);
        explain(&candidate, &parts);
        let (cost, streams) = (parts.total(), parts.streams);
        let is_better = best.is_none_or(|(other, lowest, fewest)| {
            let is_equal = cost == lowest;
            let is_preferred = streams < fewest
                || (streams == fewest && is_home(work.tie_key, candidate.key, other.key));
            cost < lowest || (is_equal && is_preferred)
        });
        if is_better {
            best = Some((candidate, cost, streams));
        }
    }
    let (mut chosen, lowest, _) = best?;
    if work.matches.is_empty() {
        let limit = lowest * (1.0 + COLD_SHARE);
        for candidate in candidates {
            if is_home(work.tie_key, candidate.key, chosen.key)
                && price(&candidate).total() <= limit
            {
                chosen = candidate;
            }
        }
    }
    Some(chosen)
}

/// True if the rendezvous of a key prefers one member to another one.
fn is_home(tie_key: u64, one: u64, other: u64) -> bool {
    mix(tie_key ^ one) > mix(tie_key ^ other)
}

/// Mixes the bits of a number (splitmix64, by Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
/// 2014).
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::index::Index;
    use crate::memory::MemberMemory;

    fn work(prompt_tokens: f32) -> RequestWork {
        RequestWork {
            prompt_tokens,
            output_tokens: 200.0,
            found_share: 0.5,
            tie_key: 7,
            matches: Matches::NONE,
        }
    }

    fn candidate(member: usize) -> Candidate {
        Candidate {
            member,
            key: mix(member as u64 + 1),
            weight: 1.0,
            ..Candidate::default()
        }
    }

    const SPEEDS: Speeds = Speeds {
        delay: 0.01,
        read: 1e-4,
        write: 0.01,
        crowd: 5e-4,
    };

    /// Matches in which somebody holds something.
    fn warm() -> Matches {
        let (index, members) = (Index::new(0), [MemberMemory::default()]);
        index.record_chain(&[1], 0, members[0].advance_clock(100), &members);
        index.find_matches(&[1], &members)
    }

    #[test]
    fn the_parts_follow_the_formulas() {
        let queue = QueueMoment {
            queued_tokens: 2000.0,
            waiting: 2.0,
            streams: 4.0,
            overdue_seconds: 0.5,
            full_seconds: 0.25,
        };
        let parts = price_member(&work(1000.0), &candidate(0), 600.0, &SPEEDS, &queue);
        let expected = [0.24 + 0.5, 0.02, 0.12, 1.2, 0.25, 2.0];
        let found = [
            parts.own,
            parts.evict,
            parts.stall,
            parts.slower,
            parts.full,
            parts.write,
        ];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-4, "{parts:?}");
        }
        assert!((parts.total() - 4.33).abs() < 1e-4);
        let text = "knows 600 of 1,000 tokens, 4 streams, 2,000 tokens before it: first token in 1.00 s, delays others by 0.74 s";
        assert_eq!(parts.to_string(), text);
        let heavy = Candidate {
            weight: 2.0,
            extra_seconds: 1.0,
            ..candidate(0)
        };
        let parts = price_member(&work(1000.0), &heavy, 600.0, &SPEEDS, &queue);
        assert!((parts.total() - 3.165).abs() < 1e-4);
        assert!(parts.to_string().ends_with(", 1.00 s added"));
        let copy = CostParts {
            credit: 0.5,
            ..parts
        };
        assert!((copy.total() - 2.665).abs() < 1e-4);
        let text = copy.to_string();
        assert!(text.ends_with(", 0.50 s less as others use the prompt, too"));
    }

    #[test]
    fn reports_of_others_count() {
        let load = ReportedLoad {
            waiting: Some(5.0),
            running: Some(7.0),
            ..ReportedLoad::default()
        };
        let loaded = Candidate {
            load,
            ..candidate(0)
        };
        let queue = QueueMoment {
            queued_tokens: 1000.0,
            waiting: 1.0,
            streams: 2.0,
            ..QueueMoment::default()
        };
        let parts = price_member(&work(1800.0), &loaded, 0.0, &SPEEDS, &queue);
        // Two of the four that we do not know of, a thousand tokens each.
        assert_eq!(parts.queued_tokens, 1000.0 + 2000.0);
        // Two streams of ours, and half of the four that run besides ours.
        assert_eq!(parts.streams, 4.0);
    }

    #[test]
    fn work_of_other_balancers_counts_once_beside_metrics() {
        let queue = QueueMoment {
            queued_tokens: 1000.0,
            waiting: 1.0,
            streams: 2.0,
            ..QueueMoment::default()
        };
        let price = |waiting: Option<f32>, running: Option<f32>, tokens: f32, requests: f32| {
            let load = ReportedLoad {
                waiting,
                running,
                queued_elsewhere: tokens,
                waiting_elsewhere: requests,
                streams_elsewhere: requests,
            };
            let loaded = Candidate {
                load,
                ..candidate(0)
            };
            let parts = price_member(&work(1800.0), &loaded, 0.0, &SPEEDS, &queue);
            (parts.queued_tokens, parts.waiting, parts.streams)
        };
        // Without metrics, what other balancers tell is all that is known of them.
        assert_eq!(price(None, None, 300.0, 3.0), (1300.0, 4.0, 5.0));
        // By metrics two more requests wait and two more run. What other balancers tell is part of these.
        let metrics = |tokens, requests| price(Some(5.0), Some(7.0), tokens, requests);
        assert_eq!(metrics(0.0, 0.0), (3000.0, 3.0, 4.0));
        assert_eq!(metrics(300.0, 1.0), metrics(0.0, 0.0));
        // Metrics are late: other balancers tell more.
        assert_eq!(metrics(5000.0, 4.0), (6000.0, 5.0, 6.0));
    }

    /// Chooses among members with these costs (as times to write) and streams.
    fn choose(members: &[(f32, f32)], work: &RequestWork) -> Option<usize> {
        let candidates = (0..members.len()).map(candidate);
        let price = |candidate: &Candidate| CostParts {
            write: members[candidate.member].0,
            streams: members[candidate.member].1,
            weight: 1.0,
            ..CostParts::default()
        };
        let mut seen = 0;
        let chosen = choose_cheapest(work, candidates, price, |_, _| seen += 1);
        assert_eq!(seen, members.len());
        chosen.map(|chosen| chosen.member)
    }

    #[test]
    fn the_cheapest_wins_then_the_fewest_streams_then_the_home() {
        let warm = RequestWork {
            matches: warm(),
            ..work(100.0)
        };
        assert_eq!(choose(&[], &warm), None);
        assert_eq!(
            choose(&[(3.0, 0.0), (1.0, 9.0), (2.0, 0.0)], &warm),
            Some(1)
        );
        assert_eq!(
            choose(&[(1.0, 3.0), (1.0, 1.0), (1.0, 2.0)], &warm),
            Some(1)
        );
        let homes = |work: &RequestWork, members: &[(f32, f32)]| {
            let mut found = [0; 4];
            for key in 0..1000 {
                let work = RequestWork {
                    tie_key: mix(key + 1),
                    ..*work
                };
                found[choose(members, &work).unwrap()] += 1;
            }
            found
        };
        let equal = homes(&warm, &[(1.0, 1.0); 4]);
        assert!(equal.iter().all(|count| *count > 200), "{equal:?}");
        // Prompts that nobody knows spread over all that cost about the same.
        let members = [(1.0, 0.0), (1.09, 5.0), (1.2, 0.0), (1.05, 0.0)];
        let cold = homes(&work(100.0), &members);
        assert!(cold[2] == 0 && cold[0] > 250 && cold[1] > 250, "{cold:?}");
        assert_eq!(homes(&warm, &members), [1000, 0, 0, 0]);
    }

    #[test]
    fn a_member_that_leaves_moves_only_its_own_prompts() {
        for key in 0..200 {
            let work = RequestWork {
                tie_key: mix(key),
                ..work(100.0)
            };
            let all = choose(&[(1.0, 0.0); 5], &work).unwrap();
            let fewer = choose(&[(1.0, 0.0); 4], &work).unwrap();
            assert!(all == fewer || all == 4);
        }
    }

    #[test]
    fn numbers_are_grouped() {
        let texts = [0.0, 999.4, 1000.0, 1_234_567.0, -5.0].map(|one| Grouped(one).to_string());
        assert_eq!(texts, ["0", "999", "1,000", "1,234,567", "0"]);
        assert!(Grouped(f32::INFINITY).to_string().starts_with("18,446,"));
    }

    proptest! {
        #[test]
        fn costs_are_numbers_whatever_comes_in(
            numbers in prop::array::uniform15(any::<f32>()),
            weights in prop::collection::vec(any::<f32>(), 1..4),
        ) {
            let work = RequestWork {
                prompt_tokens: numbers[0],
                output_tokens: numbers[1],
                found_share: numbers[2],
                ..work(0.0)
            };
            let speeds = Speeds { delay: numbers[3], read: numbers[4], write: numbers[5], crowd: numbers[6] };
            let queue = QueueMoment {
                queued_tokens: numbers[7],
                waiting: numbers[8],
                streams: numbers[9],
                overdue_seconds: numbers[10],
                full_seconds: numbers[11],
            };
            let load = ReportedLoad {
                waiting: Some(numbers[12]),
                running: Some(numbers[9]),
                queued_elsewhere: numbers[14],
                waiting_elsewhere: numbers[8],
                streams_elsewhere: numbers[13],
            };
            let candidates = weights.iter().enumerate().map(|(member, weight)| Candidate {
                weight: *weight,
                load,
                ..candidate(member)
            });
            let price = |candidate: &Candidate| price_member(&work, candidate, 10.0, &speeds, &queue);
            let chosen = choose_cheapest(&work, candidates, price, |_, parts| {
                assert!(!parts.total().is_nan());
                let _ = parts.to_string();
            });
            prop_assert!(chosen.is_some());
        }

        /// More work at a member never makes it cheaper, and a longer known prefix never dearer.
        #[test]
        fn costs_are_monotone(
            prompt in 1.0f32..100_000.0,
            known in 0.0f32..1.0,
            queued in 0.0f32..100_000.0,
            streams in 0.0f32..200.0,
            more in 0.0f32..100.0,
        ) {
            let price = |known: f32, queued: f32, streams: f32| {
                let queue = QueueMoment { queued_tokens: queued, streams, ..QueueMoment::default() };
                price_member(&work(prompt), &candidate(0), known * prompt, &SPEEDS, &queue).total()
            };
            let base = price(known, queued, streams);
            prop_assert!(price(known, queued + more, streams) >= base);
            prop_assert!(price(known, queued, streams + more) >= base);
            prop_assert!(price(1.0, queued, streams) <= base);
        }
    }
}
