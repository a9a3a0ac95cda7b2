//! A group of engines: everything that is known of its members, and the steps of a request.

mod remembered;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::chain::Chain;
use crate::copies::CopyCredits;
use crate::cost::{
    Candidate, CostParts, RequestWork, choose_cheapest, price_member, unread_tokens,
};
use crate::expected::ExpectedTokens;
use crate::fleet::FleetSpeed;
use crate::index::Index;
use crate::labels::RequestLabels;
use crate::memory::{MemberMemory, Prediction, PredictionResult};
use crate::queue::{MemberQueue, QueueEntry, QueueMean, QueueMoment};
use crate::sent_prompts::SentPrompts;
use crate::speed::{LearningTime, MemberSpeed};
use crate::tokens::TokenFigures;
use crate::usage::Usage;

/// Highest number of tokens of one request that counts.
const MOST_TOKENS: f32 = 1e9;

/// Share of a prompt up to which the tokens that a member remembers do not matter for its speed of reading.
const COLD_SHARE: f32 = 0.05;

/// Events of a stream after which its pace is learnt, and those that are enough at its end.
const PACE_EVENTS: u64 = 64;
const LAST_PACE_EVENTS: u64 = 8;

/// Least seconds, and multiple of the time in which a member should have read all that is queued, after which a member
/// without any event has stood still.
const STALL_SECONDS: f32 = 2.0;
const STALL_MULTIPLE: f32 = 4.0;

/// Settings of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupSettings {
    /// Number of members.
    pub members: usize,
    /// Memory of the index, in bytes: 32 for each block of 512 bytes.
    pub index_bytes: usize,
    /// Seconds after which a sample of a speed counts for a third.
    pub decay_seconds: f32,
}

/// Group of engines. All workers share it; no method takes a lock, and none allocates but [`EngineGroup::new`] and
/// [`EngineGroup::keep_up`].
#[derive(Debug)]
pub struct EngineGroup {
    index: Index,
    memories: Box<[MemberMemory]>,
    queues: Box<[MemberQueue]>,
    speeds: Box<[MemberSpeed]>,
    fleet: FleetSpeed,
    tokens: TokenFigures,
    copies: CopyCredits,
    /// Prompts that were sent, once somebody follows them.
    sent: OnceLock<SentPrompts>,
    decay_seconds: f32,
}

/// Facts of a request that matter for the choice of its member.
#[derive(Clone, Copy, Debug)]
pub struct RequestFacts<'a> {
    /// Hashes of the prompt.
    pub chain: Chain<'a>,
    /// Hash of the model's name.
    pub model: u64,
    /// Most tokens of the answer.
    pub max_tokens: Option<u32>,
    /// True if the answer comes as a stream of events.
    pub is_stream: bool,
    /// Random number, for prompts without a full block.
    pub random: u64,
}

/// Request with what is known of it: made once for each request, and used for all its attempts.
#[derive(Debug)]
pub struct RequestPlan<'a> {
    facts: RequestFacts<'a>,
    work: RequestWork,
    expected: ExpectedTokens,
    tokens_per_byte: f32,
    /// Bits of the seconds of [`RequestPlan::queued_seconds`].
    queued_seconds: AtomicU32,
    /// Hash of the client's key.
    owner: u64,
    labels: RequestLabels,
    /// Number of answers that the member writes side by side.
    choices: u32,
}

/// Beginning of a prompt that a member holds.
#[derive(Clone, Copy, Debug)]
struct KnownBeginning {
    blocks: usize,
    /// Hash of the last block.
    link: u64,
    tokens: f32,
}

/// Request that has been sent to a member. Give it back to [`EngineGroup::finish_request`] in any case.
#[derive(Clone, Copy, Debug)]
pub struct SentRequest {
    member: usize,
    queue: QueueEntry,
    pub(crate) prediction: Prediction,
    /// Tokens of the prompt that the member was expected to remember.
    expected_tokens: f32,
    model: u64,
    /// Bytes of the prompt; 0 if they are a guess.
    prompt_bytes: u64,
    pub(crate) prompt_tokens: f32,
    /// Tokens of the answer that were expected.
    pub(crate) output_tokens: f32,
    /// Number of answers that the member writes side by side, at least 1.
    choices: u32,
}

/// End of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AnswerEnd {
    /// Tokens that the engine has counted, if the answer says them.
    pub usage: Option<Usage>,
    /// Number of events with a part of the answer.
    pub events: u64,
    /// True if the answer is complete and successful. All else tells nothing of the member's speed.
    pub is_complete: bool,
}

impl RequestPlan<'_> {
    /// Sets the hash of the client's key, for shares by key.
    #[must_use]
    pub fn of_owner(mut self, owner: u64) -> Self {
        self.owner = owner;
        self
    }

    /// Hash of the client's key; 0 if none was set.
    pub fn owner(&self) -> u64 {
        self.owner
    }

    /// Sets the labels under which metrics show the request.
    #[must_use]
    pub fn with_labels(mut self, labels: RequestLabels) -> Self {
        self.labels = labels;
        self
    }

    /// Sets the number of answers that the member writes side by side. To be called once.
    #[must_use]
    pub fn with_choices(mut self, choices: u32) -> Self {
        self.choices = choices.max(1);
        self.work.output_tokens *= self.choices as f32;
        self
    }

    /// Labels under which metrics show the request.
    pub fn labels(&self) -> &RequestLabels {
        &self.labels
    }

    /// Work of the request, as the costs know it.
    pub fn request_work(&self) -> &RequestWork {
        &self.work
    }

    /// Bytes that the prompt counts as, if they are a guess: more may come.
    pub fn guessed_bytes(&self) -> Option<u64> {
        let chain = &self.facts.chain;
        (chain.measured_bytes() == 0).then(|| chain.prompt_bytes())
    }

    /// True if the answer comes as a stream of events.
    pub fn is_stream(&self) -> bool {
        self.facts.is_stream
    }

    /// Least seconds to the first token at the last choice, among members where other requests are read first; 0 if a
    /// member reads the request at once. Known if the one who chose has [noted](RequestPlan::note_queued_seconds) it.
    pub fn queued_seconds(&self) -> f32 {
        f32::from_bits(self.queued_seconds.load(Ordering::Relaxed))
    }

    /// Notes [`RequestPlan::queued_seconds`].
    pub fn note_queued_seconds(&self, seconds: f32) {
        let bits = seconds.to_bits();
        self.queued_seconds.store(bits, Ordering::Relaxed);
    }

    /// Blocks that a member holds.
    fn blocks_of(&self, member: usize) -> usize {
        self.work.matches.blocks_of(member)
    }

    /// Longest beginning of the prompt that one of the candidates holds.
    fn find_longest(&self, candidates: impl Iterator<Item = Candidate>) -> Option<KnownBeginning> {
        if self.work.matches.is_empty() {
            return None;
        }
        let blocks = candidates.map(|one| self.blocks_of(one.member)).max()?;
        let links = self.facts.chain.block_links();
        Some(KnownBeginning {
            blocks,
            link: *links.get(blocks.checked_sub(1)?)?,
            tokens: self.tokens_before(blocks),
        })
    }

    /// Tokens of the first blocks of the prompt.
    pub(crate) fn tokens_before(&self, blocks: usize) -> f32 {
        self.facts.chain.bytes_before(blocks) as f32 * self.tokens_per_byte
    }
}

impl SentRequest {
    /// Number of the member.
    pub fn member_number(&self) -> usize {
        self.member
    }

    /// Tokens of the prompt that the member was expected to remember, by what the engine has counted.
    pub fn expected_cached(&self, usage: &Usage) -> f32 {
        // The prediction was made with a guess of how many tokens the prompt has.
        self.expected_tokens * usage.prompt_tokens as f32 / self.prompt_tokens
    }

    /// Time of the first token, in nanoseconds; `None` before it, and if the answer comes as a whole.
    pub fn first_token_nanos(&self) -> Option<u64> {
        self.queue.first_token_nanos()
    }

    /// Leaves out the time to the next event: the client takes nothing, so that the member cannot write.
    pub fn skip_gap(&mut self) {
        self.queue.skip_gap();
    }
}

impl EngineGroup {
    /// Creates a group of which nothing is known.
    pub fn new(settings: &GroupSettings) -> Self {
        fn make<T: Default>(count: usize) -> Box<[T]> {
            (0..count).map(|_| T::default()).collect()
        }
        EngineGroup {
            index: Index::new(settings.index_bytes),
            memories: make(settings.members),
            queues: make(settings.members),
            speeds: make(settings.members),
            fleet: FleetSpeed::default(),
            tokens: TokenFigures::default(),
            copies: CopyCredits::default(),
            sent: OnceLock::new(),
            decay_seconds: settings.decay_seconds,
        }
    }

    /// Prepares the choice for a request: looks up which members hold the beginning of its prompt.
    pub fn plan_request<'a>(&self, facts: RequestFacts<'a>) -> RequestPlan<'a> {
        let tokens_per_byte = self.tokens.tokens_per_byte(facts.model);
        let prompt = facts.chain.prompt_bytes() as f32 * tokens_per_byte;
        let links = facts.chain.block_links();
        let matches = self.index.find_matches(links, &self.memories);
        let before = |blocks| facts.chain.bytes_before(blocks) as f32 * tokens_per_byte;
        let memories = &self.memories;
        let expected = ExpectedTokens::of_members(&self.index, links, &matches, memories, before);
        RequestPlan {
            facts,
            work: RequestWork {
                prompt_tokens: prompt.clamp(1.0, MOST_TOKENS),
                output_tokens: self.tokens.expected_output(facts.model, facts.max_tokens),
                found_share: self.tokens.found_share(),
                tie_key: links.first().copied().unwrap_or(facts.random),
                matches,
            },
            expected,
            tokens_per_byte,
            queued_seconds: AtomicU32::new(0),
            owner: 0,
            labels: RequestLabels::default(),
            choices: 1,
        }
    }

    /// Chooses the member at which the request adds the least delay for all. `candidates` are the members that may get
    /// it, and `explain` gets each of them with its cost. Returns the chosen candidate; `None` if there are none.
    pub fn choose_member(
        &self,
        plan: &RequestPlan<'_>,
        candidates: impl Iterator<Item = Candidate> + Clone,
        now_nanos: u64,
        explain: impl FnMut(&Candidate, &CostParts),
    ) -> Option<Candidate> {
        let longest = plan.find_longest(candidates.clone());
        let credit = longest.map_or(0.0, |known| self.copies.read_credit(known.link, now_nanos));
        let price = |candidate: &Candidate| {
            let mut parts = self.price_request(plan, candidate, now_nanos);
            if let Some(known) = longest
                && credit > 0.0
                && plan.blocks_of(candidate.member) < known.blocks
            {
                let holder = self.price_known(plan, candidate, known.tokens, now_nanos);
                // Reading costs something: no member is better than if it held the beginning.
                parts.credit = credit.min(parts.total() - holder.total()).max(0.0);
            }
            parts
        };
        choose_cheapest(&plan.work, candidates, price, explain)
    }

    /// Learns from a choice whether a further copy of the prompt's beginning would pay. To be called after
    /// [`EngineGroup::choose_member`] with the same candidates, if the request is sent to the chosen member.
    pub fn learn_choice(
        &self,
        plan: &RequestPlan<'_>,
        candidates: impl Iterator<Item = Candidate> + Clone,
        chosen: &Candidate,
        now_nanos: u64,
    ) {
        let Some(known) = plan.find_longest(candidates.clone()) else {
            return;
        };
        if plan.blocks_of(chosen.member) < known.blocks {
            self.copies.spend_credit(known.link, now_nanos);
            return;
        }
        let price = |one: &Candidate| self.price_known(plan, one, known.tokens, now_nanos).total();
        let cost = price(chosen);
        let (mut saved, mut others) = (0.0, 0.0);
        for other in candidates.filter(|one| plan.blocks_of(one.member) < known.blocks) {
            saved += (cost - price(&other)).max(0.0);
            others += 1.0;
        }
        if saved > 0.0 {
            self.copies
                .add_credit(known.link, saved / others, now_nanos);
        }
    }

    /// Works out the cost of a request at one member. Members that the group does not have count as idle.
    pub fn price_request(
        &self,
        plan: &RequestPlan<'_>,
        candidate: &Candidate,
        now_nanos: u64,
    ) -> CostParts {
        let known = plan.expected.tokens_of(candidate.member);
        self.price_known(plan, candidate, known, now_nanos)
    }

    /// Works out the cost of a request at a member as if the member remembered this many tokens of the prompt.
    fn price_known(
        &self,
        plan: &RequestPlan<'_>,
        candidate: &Candidate,
        known_tokens: f32,
        now_nanos: u64,
    ) -> CostParts {
        let speeds = self.speeds.get(candidate.member).map(MemberSpeed::get);
        let speeds = speeds.unwrap_or_else(|| self.fleet.get());
        let queue = self.queues.get(candidate.member);
        let queue = queue.map(|queue| queue.read_moment(speeds.delay, speeds.read, now_nanos));
        price_member(
            &plan.work,
            candidate,
            known_tokens,
            &speeds,
            &queue.unwrap_or_default(),
        )
    }

    /// Counts a request that is sent to a member, which from now on is believed to hold its prompt. `None` if the group
    /// has no such member.
    pub fn begin_request(
        &self,
        plan: &RequestPlan<'_>,
        member: usize,
        now_nanos: u64,
    ) -> Option<SentRequest> {
        let memory = self.memories.get(member)?;
        let queue = self.queues.get(member)?;
        let speeds = self.speeds.get(member)?.get();
        let links = plan.facts.chain.block_links();
        let prediction = self
            .index
            .predict_memory(links, member, &self.memories, |blocks| {
                plan.tokens_before(blocks)
            });
        let expected_tokens = memory.expect_tokens(&prediction);
        let unread = unread_tokens(plan.work.prompt_tokens, expected_tokens);
        let stamp = memory.advance_clock(unread as u64);
        self.index
            .record_chain(links, member, stamp, &self.memories);
        if let Some(sent) = self.sent.get() {
            sent.note_prompt(links, member, unread as u32);
        }
        let queued = queue
            .read_moment(speeds.delay, speeds.read, now_nanos)
            .queued_tokens;
        let queue = match plan.facts.is_stream {
            true => queue.begin_request(unread as u64, queued, now_nanos),
            false => {
                let reading = speeds.read * (queued + unread);
                let first_token = speeds.delay + reading;
                queue.begin_whole(unread as u64, queued, first_token, now_nanos)
            }
        };
        Some(SentRequest {
            member,
            queue,
            prediction: Prediction {
                queued_tokens: queued as u64,
                ..prediction
            },
            expected_tokens,
            model: plan.facts.model,
            prompt_bytes: plan.facts.chain.measured_bytes(),
            prompt_tokens: plan.work.prompt_tokens,
            output_tokens: plan.work.output_tokens,
            choices: plan.choices,
        })
    }

    /// Prompts that are sent to members, which are noted from the first call on.
    pub fn follow_prompts(&self) -> &SentPrompts {
        self.sent.get_or_init(SentPrompts::default)
    }

    /// Forgets prompts that were not taken, and notes no others until somebody follows them again.
    pub fn stop_following_prompts(&self) {
        if let Some(sent) = self.sent.get() {
            sent.stop_following();
        }
    }

    /// Records that another balancer has sent a prompt to a member, which has read this many tokens of the prompt and holds all
    /// of its blocks.
    pub fn record_elsewhere(&self, links: &[u64], member: usize, unread_tokens: u32) {
        if let Some(memory) = self.memories.get(member) {
            let stamp = memory.advance_clock(u64::from(unread_tokens));
            self.index
                .record_chain(links, member, stamp, &self.memories);
        }
    }

    /// Notes that the answer is a stream of events, also if the request was not known to ask for one.
    pub fn begin_stream(&self, request: &mut SentRequest, now_nanos: u64) {
        if let Some(queue) = self.queues.get(request.member) {
            queue.begin_stream(&mut request.queue, now_nanos);
        }
    }

    /// Takes events with parts of the answer; the first ones are the first token.
    pub fn take_events(&self, request: &mut SentRequest, events: u64, now_nanos: u64) {
        let Some(queue) = self.queues.get(request.member) else {
            return;
        };
        if events == 0 {
            return;
        }
        let silence = queue.end_silence(now_nanos);
        if silence > STALL_SECONDS {
            self.check_stall(request.member, silence, now_nanos);
        }
        let first_token = queue.take_first_token(&mut request.queue, now_nanos);
        queue.note_events(&mut request.queue, events, now_nanos);
        self.learn_pace(request, PACE_EVENTS, now_nanos);
        // What the member remembered of the prompt is known at the end; if it is nothing, its speed is known now.
        if first_token.is_some() && request.is_cold() {
            self.learn_first_token(request, request.queue.tokens_to_first(), now_nanos);
        }
    }

    /// Judges a time in which no stream of a member had an event: if the member should have read all that is queued
    /// several times meanwhile, it has stood still, and is not slow.
    fn check_stall(&self, member: usize, silence: f32, now_nanos: u64) {
        let (Some(queue), Some(speed)) = (self.queues.get(member), self.speeds.get(member)) else {
            return;
        };
        let speeds = speed.get();
        let moment = queue.read_moment(speeds.delay, speeds.read, now_nanos);
        let reading = speeds.delay + speeds.read * moment.queued_tokens;
        let expected = reading + speeds.write + speeds.crowd * moment.streams;
        if silence > STALL_MULTIPLE * expected {
            queue.note_stall(silence - expected, now_nanos);
        }
    }

    /// Ends a request, however it has ended: also one that was refused, that lost its connection, or whose client gave
    /// up. Returns whether the prediction of what the member remembers was right, if the answer says it.
    pub fn finish_request(
        &self,
        request: &mut SentRequest,
        end: &AnswerEnd,
        now_nanos: u64,
    ) -> Option<PredictionResult> {
        let queue = self.queues.get(request.member)?;
        let memory = self.memories.get(request.member)?;
        if !end.is_complete || request.queue.is_over() {
            queue.end_request(&mut request.queue, now_nanos);
            return None;
        }
        // Several answers are written at the same time.
        let each = |usage: Usage| Usage {
            output_tokens: usage.output_tokens / request.choices,
            ..usage
        };
        let each = end.usage.map(each);
        let output = each.map_or(0, |usage| usage.output_tokens);
        let whole = queue.measure_whole(&request.queue, output, now_nanos);
        if let (Some(speed), Some((others, seconds))) = (self.speeds.get(request.member), whole) {
            speed.learn_pace(others, seconds, &self.fleet.get(), self.time_at(now_nanos));
        }
        self.learn_pace(request, LAST_PACE_EVENTS, now_nanos);
        queue.end_request(&mut request.queue, now_nanos);
        if let Some(usage) = end.usage {
            memory.advance_clock(u64::from(usage.output_tokens));
            self.tokens
                .learn_usage(request.model, request.prompt_bytes, &each.unwrap_or(usage));
            self.tokens.learn_events(end.events, &usage);
            if let Some(cached) = usage.cached_tokens {
                return Some(self.learn_cached(request, memory, &usage, cached as f32, now_nanos));
            }
        }
        self.guess_cached(request, memory, now_nanos)
    }

    /// Learns the pace of a stream, if its gaps have at least this many events.
    fn learn_pace(&self, request: &mut SentRequest, least_events: u64, now_nanos: u64) {
        let Some(speed) = self.speeds.get(request.member) else {
            return;
        };
        if let Some((others, seconds)) = request.queue.take_pace(least_events) {
            let seconds = seconds * request.choices as f32 / self.tokens.tokens_per_event();
            speed.learn_pace(others, seconds, &self.fleet.get(), self.time_at(now_nanos));
        }
    }

    /// Takes a member for full until this time: it has refused a request because of its queue (429 or 503).
    pub fn mark_full(&self, member: usize, until_nanos: u64) {
        if let Some(queue) = self.queues.get(member) {
            queue.mark_full(until_nanos);
        }
    }

    /// Forgets what a member remembers: it was down.
    pub fn forget_memory(&self, member: usize) {
        if let Some(memory) = self.memories.get(member) {
            memory.forget_all();
        }
    }

    /// Forgets all about a member: its place has another one now.
    pub fn forget_member(&self, member: usize) {
        self.forget_memory(member);
        if let Some(memory) = self.memories.get(member) {
            memory.forget_span();
        }
        if let Some(speed) = self.speeds.get(member) {
            speed.forget_samples(&self.fleet.get());
        }
    }

    /// Number of sets of the index.
    pub fn index_sets(&self) -> usize {
        self.index.set_count()
    }

    /// Brings usual speeds up to date, and clears `sets` sets of the index of what nobody can hold any more, from set
    /// `from` on. Call it about once per second, with the number that it returned last.
    pub fn keep_up(&self, from: usize, sets: usize, now_nanos: u64) -> usize {
        let time = self.time_at(now_nanos);
        self.fleet.update_usual(self.speeds.iter(), time);
        let fleet = self.fleet.get();
        self.speeds
            .iter()
            .for_each(|speed| speed.refresh_speeds(&fleet, time));
        self.index.sweep_sets(from, sets, &self.memories)
    }

    fn time_at(&self, now_nanos: u64) -> LearningTime {
        LearningTime {
            now_nanos,
            decay_seconds: self.decay_seconds,
        }
    }

    /// Index of the group, to hand it over to another process.
    pub fn block_index(&self) -> &Index {
        &self.index
    }

    /// Memories of the members.
    pub fn member_memories(&self) -> &[MemberMemory] {
        &self.memories
    }

    /// Usual speeds of the members.
    pub(crate) fn usual_speed(&self) -> &FleetSpeed {
        &self.fleet
    }

    /// Returns the work of a member at this moment; `None` if the group has no such member.
    pub fn read_queue(&self, member: usize, now_nanos: u64) -> Option<QueueMoment> {
        let speeds = self.speeds.get(member)?.get();
        let queue = self.queues.get(member)?;
        Some(queue.read_moment(speeds.delay, speeds.read, now_nanos))
    }

    /// Takes the mean work of a member since the last call; `None` if the group has no such member. For one caller.
    pub fn take_mean_work(&self, member: usize, now_nanos: u64) -> Option<QueueMean> {
        let moment = self.read_queue(member, now_nanos)?;
        let queue = self.queues.get(member)?;
        Some(queue.take_mean(&moment, now_nanos))
    }

    /// Queues of the members.
    pub fn member_queues(&self) -> &[MemberQueue] {
        &self.queues
    }

    /// Speeds of the members.
    pub fn member_speeds(&self) -> &[MemberSpeed] {
        &self.speeds
    }

    /// Figures of the tokens of requests.
    pub fn token_figures(&self) -> &TokenFigures {
        &self.tokens
    }

    fn learn_first_token(&self, request: &SentRequest, tokens: f32, now_nanos: u64) {
        let seconds = request.queue.first_token_seconds();
        if let (Some(speed), Some(seconds)) = (self.speeds.get(request.member), seconds) {
            speed.learn_first_token(tokens, seconds, &self.fleet.get(), self.time_at(now_nanos));
        }
    }
}

impl SentRequest {
    /// True if the member has hardly ever seen the beginning of the prompt.
    fn is_cold(&self) -> bool {
        self.prediction.recorded_tokens <= COLD_SHARE * self.prompt_tokens
    }
}

#[cfg(test)]
mod tests;
