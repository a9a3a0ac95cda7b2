//! Engines of a group with strategy `inference`: the learnt state, which outlives snapshots, and requests at engines.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use evenkeel_inference::group::{AnswerEnd, EngineGroup, GroupSettings, RequestPlan, SentRequest};
use evenkeel_inference::handover::{self, CopiedEntries};
use evenkeel_inference::labels::RequestLabels;
use evenkeel_inference::memory::PredictionResult;

use crate::engine_counts::{AnswerTimes, EngineCounts};
use crate::engine_traffic::EngineTraffic;
use crate::engine_work::{EngineWork, WorkElsewhere};
use crate::member::MemberId;
use crate::time::Instant;

/// Version of all that is learnt of engines, for another process.
pub const PROMPTS_VERSION: u32 = evenkeel_inference::VERSION;

/// Most members whose engines are learnt. Others of a larger group are chosen only if none of these may be picked.
pub const MAX_ENGINES: usize = 1024;

/// Seconds in which all sets of the index are cleared once.
const SWEEP_SECONDS: usize = 64;

/// Engines of a group. A member keeps its number as long as the member exists.
#[derive(Debug)]
pub struct EnginePool {
    group: EngineGroup,
    numbers: Mutex<Vec<Option<MemberId>>>,
    /// Set of the index that is cleared next.
    next_set: AtomicUsize,
    counts: EngineCounts,
    /// Traffic of the engines by their numbers. It goes on when a number is given to another member: readers look at
    /// what has happened between two moments of the same member.
    traffic: Box<[OnceLock<Box<EngineTraffic>>]>,
    /// Work that other balancers of a fleet have at the engines.
    work_elsewhere: WorkElsewhere,
}

impl EnginePool {
    /// Creates a pool whose index of prompts has `index_bytes` bytes.
    pub fn new(index_bytes: usize, decay_seconds: f32) -> Self {
        EnginePool {
            group: EngineGroup::new(&GroupSettings {
                members: MAX_ENGINES,
                index_bytes,
                decay_seconds,
            }),
            numbers: Mutex::default(),
            next_set: AtomicUsize::new(0),
            counts: EngineCounts::default(),
            traffic: (0..MAX_ENGINES).map(|_| OnceLock::new()).collect(),
            work_elsewhere: WorkElsewhere::new(MAX_ENGINES),
        }
    }

    /// Traffic of the engine with this number; `None` if no member has ever had the number.
    #[inline]
    pub fn traffic(&self, number: usize) -> Option<&EngineTraffic> {
        self.traffic.get(number)?.get().map(|traffic| &**traffic)
    }

    /// Work that other balancers of a fleet have at the engines.
    #[inline]
    pub(crate) fn work_elsewhere(&self) -> &WorkElsewhere {
        &self.work_elsewhere
    }

    /// Takes the mean work of this balancer at an engine since the last call: work that has just begun may be over when
    /// others hear of it, and short requests count for their share of the time. `None` if there is no such engine.
    pub(crate) fn take_mean_work(&self, number: usize, now: Instant) -> Option<EngineWork> {
        let mean = self.group.take_mean_work(number, now.as_nanos())?;
        Some(EngineWork::of_mean(&mean))
    }

    /// Learnt state of the engines.
    #[inline]
    pub fn group(&self) -> &EngineGroup {
        &self.group
    }

    /// Counts of prompts and tokens.
    #[inline]
    pub fn counts(&self) -> &EngineCounts {
        &self.counts
    }

    /// Brings usual speeds up to date, and clears a part of the index. To be called about once per second.
    pub fn keep_up(&self, now: Instant) {
        let from = self.next_set.load(Ordering::Relaxed);
        let swept = self.group.index_sets().div_ceil(SWEEP_SECONDS);
        let next = self.group.keep_up(from, swept, now.as_nanos());
        self.next_set.store(next, Ordering::Relaxed);
    }

    /// Members by their numbers.
    pub fn list_numbers(&self) -> Vec<Option<MemberId>> {
        let numbers = self.numbers.lock();
        numbers.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes the index of prompts for another process, while `has_time` says so.
    ///
    /// # Errors
    ///
    /// The writer's.
    pub fn write_index(
        &self,
        to: &mut impl Write,
        has_time: impl FnMut() -> bool,
    ) -> io::Result<CopiedEntries> {
        handover::write_index(self.group.block_index(), to, has_time)
    }

    /// Reads the index of prompts of another process, while `has_time` says so. `numbers` has the new number of each
    /// member.
    ///
    /// # Errors
    ///
    /// The reader's, or the bytes are no index.
    pub fn read_index(
        &self,
        from: &mut impl Read,
        numbers: &[Option<u16>],
        has_time: impl FnMut() -> bool,
    ) -> io::Result<CopiedEntries> {
        handover::read_index(self.group.block_index(), from, numbers, has_time)
    }

    /// Assigns a number to each member, in their order; `None` if there are too many. A number whose member has gone
    /// is used again, and all that was learnt under it is forgotten.
    pub(crate) fn assign_numbers(&self, members: &[MemberId]) -> Vec<Option<usize>> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        for place in numbers.iter_mut() {
            if place.is_some_and(|id| !members.contains(&id)) {
                *place = None;
            }
        }
        let mut assign = |id: &MemberId| {
            if let Some(number) = numbers.iter().position(|place| *place == Some(*id)) {
                return Some(number);
            }
            let free = numbers.iter().position(Option::is_none);
            let number = free.unwrap_or(numbers.len());
            if number >= MAX_ENGINES {
                return None;
            }
            match numbers.get_mut(number) {
                Some(place) => *place = Some(*id),
                None => numbers.push(Some(*id)),
            }
            self.group.forget_member(number);
            self.work_elsewhere.forget_engine(number);
            if let Some(traffic) = self.traffic.get(number) {
                traffic.get_or_init(Box::default);
            }
            Some(number)
        };
        members.iter().map(&mut assign).collect()
    }
}

/// Tokens that a request has taken from the share of its key, among requests that wait for engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareCharge {
    /// Hash of the client's key.
    pub key: u64,
    /// Tokens that were expected when the request began to wait.
    pub tokens: u32,
    /// Number of the time in which requests have waited without a pause.
    pub period: u64,
}

/// Request at an engine. It is ended in any case: when it is dropped, as one that tells nothing of the engine.
pub struct EngineRequest {
    pool: Arc<EnginePool>,
    sent: SentRequest,
    charge: Option<ShareCharge>,
    labels: RequestLabels,
    is_stream: bool,
    is_over: bool,
}

impl EngineRequest {
    /// Counts a request that is sent to the engine with this number; `None` if there is no such engine.
    pub(crate) fn begin(
        pool: &Arc<EnginePool>,
        plan: &RequestPlan<'_>,
        number: usize,
        now: Instant,
    ) -> Option<Box<Self>> {
        let sent = pool.group.begin_request(plan, number, now.as_nanos())?;
        Some(Box::new(EngineRequest {
            pool: Arc::clone(pool),
            sent,
            charge: None,
            labels: *plan.labels(),
            is_stream: plan.is_stream(),
            is_over: false,
        }))
    }

    /// True if the answer comes as a stream of events. The first token of any other answer cannot be seen.
    pub fn is_stream(&self) -> bool {
        self.is_stream
    }

    /// Notes that the answer is a stream of events, also if the request was not known to ask for one.
    pub fn begin_stream(&mut self, now: Instant) {
        self.is_stream = true;
        let group = &self.pool.group;
        group.begin_stream(&mut self.sent, now.as_nanos());
    }

    /// Takes events with parts of the answer.
    pub fn take_events(&mut self, events: u64, now: Instant) {
        let group = &self.pool.group;
        group.take_events(&mut self.sent, events, now.as_nanos());
        if let Some(traffic) = self.traffic().filter(|_| self.is_stream) {
            traffic.count_events(events);
        }
    }

    /// Traffic of the engine.
    fn traffic(&self) -> Option<&EngineTraffic> {
        self.pool.traffic(self.sent.member_number())
    }

    /// Sets the tokens that the request has taken from the share of its key.
    pub fn set_charge(&mut self, charge: Option<ShareCharge>) {
        self.charge = charge;
    }

    /// Tokens that the request has taken from the share of its key, and the tokens by the engine's count, if the answer
    /// says them.
    pub fn count_share(&self, end: &AnswerEnd) -> Option<(ShareCharge, u32)> {
        Some((self.charge?, self.sent.share_tokens(&end.usage?)?))
    }

    /// Leaves out the time to the next event, as the client takes nothing.
    pub fn skip_gap(&mut self) {
        self.sent.skip_gap();
    }

    /// Takes the engine for full until this time, as it has refused the request.
    pub fn mark_full(&self, until: Instant) {
        let number = self.sent.member_number();
        self.pool.group.mark_full(number, until.as_nanos());
    }

    /// Time of the first token; `None` before it, and if the answer does not come as a stream of events.
    pub fn first_token(&self) -> Option<Instant> {
        self.sent.first_token_nanos().map(Instant::from_nanos)
    }

    /// Counts the time of a complete answer that has ended `now`, for a request that has arrived at `asked`, and those of
    /// the tokens of a stream. If the engine does not say the number of tokens, events count as tokens.
    pub fn count_times(&self, end: &AnswerEnd, asked: Instant, now: Instant) {
        if !end.is_complete {
            return;
        }
        let to_first = self.first_token().map(|first| first.since(asked));
        let said = end.usage.map(|usage| u64::from(usage.output_tokens));
        let tokens = said.filter(|tokens| *tokens > 0).unwrap_or(end.events);
        let later = u32::try_from(tokens.saturating_sub(1)).unwrap_or(u32::MAX);
        let writing = self.first_token().map(|first| now.since(first));
        let for_each = writing.and_then(|time| time.checked_div(later));
        let times = AnswerTimes {
            request: now.since(asked),
            first_token: to_first,
            later_token: for_each,
        };
        self.pool.counts.count_times(&self.labels, &times);
        if let (Some(traffic), Some(to_first)) = (self.traffic(), to_first) {
            traffic.add_times(to_first, for_each);
        }
    }

    /// Ends the request. Only the first call counts. Returns the result of the prediction of what the engine remembers.
    pub fn finish(&mut self, end: &AnswerEnd, now: Instant) -> Option<PredictionResult> {
        if std::mem::replace(&mut self.is_over, true) {
            return None;
        }
        if let Some(usage) = &end.usage {
            let expected = self.sent.expected_cached(usage);
            self.pool.counts.count_usage(&self.labels, usage, expected);
            if let Some(traffic) = self.traffic() {
                traffic.count_usage(usage, self.is_stream);
            }
        }
        let group = &self.pool.group;
        group.finish_request(&mut self.sent, end, now.as_nanos())
    }
}

impl Drop for EngineRequest {
    fn drop(&mut self) {
        // An incomplete answer needs no time.
        self.finish(&AnswerEnd::default(), Instant::ZERO);
    }
}

impl fmt::Debug for EngineRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineRequest")
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_keeps_its_number_and_a_gone_one_gives_it_back() {
        let pool = EnginePool::new(1 << 16, 10.0);
        let ids = |ids: &[u64]| ids.iter().copied().map(MemberId).collect::<Vec<_>>();
        let assign = |of: &[u64]| pool.assign_numbers(&ids(of));
        assert_eq!(assign(&[7, 8, 9]), [Some(0), Some(1), Some(2)]);
        assert_eq!(assign(&[9, 7]), [Some(2), Some(0)]);
        assert_eq!(assign(&[9, 7, 10]), [Some(2), Some(0), Some(1)]);
        let many: Vec<u64> = (0..=MAX_ENGINES as u64).collect();
        let numbers = assign(&many);
        assert_eq!(numbers.iter().filter(|number| number.is_none()).count(), 1);
    }
}
