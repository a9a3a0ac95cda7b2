//! Decisions of the strategy `inference`, which balances engines that serve language models.
//!
//! Requests to such engines differ by a factor of 10,000 in their cost, take seconds to minutes, and are answered ten
//! times faster by a member that has read the prompt's beginning before. This crate learns from the answers what a token
//! costs at each member and how much of a prompt each member remembers, and sends each request where it delays everybody
//! least. It needs no tokenizer, no metrics and no settings.
//!
//! | module | content |
//! |---|---|
//! | [`scanner`] | model, prompt and settings in the JSON body of a request, wherever it is split |
//! | [`media`] | pictures, sounds and files in the messages of a request |
//! | [`chain`] | hashes of the prompt's blocks, each of which depends on all before |
//! | [`usage`] | events of an answer, and the tokens that the engine has counted |
//! | [`memory`], `kept` | how long a member remembers what it has read, and how surely |
//! | [`index`], `expected` | which members are believed to hold which blocks, and how much of a prompt that is |
//! | [`queue`] | tokens and streams that are at a member now |
//! | [`speed`], [`fleet`], `regression` | seconds that a member takes to read and write a token, and those that are usual |
//! | [`tokens`] | tokens of a byte and of an answer, for each model |
//! | [`cost`] | cost of a request at a member, and the choice |
//! | [`share`] | tokens of a request in the share of its key |
//! | [`labels`] | model and operation of a request in metrics |
//! | [`group`] | all that is known of a group, and the steps of a request |
//! | [`handover`] | all that is learnt, for a new process |
//!
//! Nothing here does I/O, reads a clock or draws a random number: times (nanoseconds since any origin) and random
//! numbers are arguments. State that workers share is in atomic words, without locks. Decisions allocate nothing. All
//! input is hostile: nothing panics, work is linear in the bytes that come, and everything that is kept has a bound.
//!
//! # Who calls what when
//!
//! The crate depends on no other crate of the product, so that `core` can depend on it: `core` has a strategy
//! `inference`, whose `pick` calls [`EngineGroup::price_request`](group::EngineGroup::price_request) or
//! [`EngineGroup::choose_member`](group::EngineGroup::choose_member), and everything around it (exclusion, weights, zones,
//! caps, ejection, late binding, explanations) stays as it is. The proxy only brings bytes and times.
//!
//! | moment | caller | call |
//! |---|---|---|
//! | the configuration is prepared | `manager` | [`EngineGroup::new`](group::EngineGroup::new) for each group with this strategy, and one [`HashKey`](chain::HashKey) for the process: random, or from the fleet's key file. The group belongs to the pool (`core::group`), so that it survives changes of members; a member's number is its slot |
//! | a worker starts | `proxy` | some [`ChainBuilder`](chain::ChainBuilder)s, which it reuses |
//! | a request's head is here, and its group has the strategy | `proxy` | [`ChainBuilder::reset`](chain::ChainBuilder::reset), [`Scanner::new`](scanner::Scanner::new); the body is kept (shares of memory, back-pressure) up to `max_prompt` |
//! | a part of the body is here | `proxy` | [`Scanner::feed_bytes`](scanner::Scanner::feed_bytes) |
//! | [`Progress`](scanner::Progress) is not `Running`, or the body has ended, or no more of it is kept | `proxy` | [`ChainBuilder::link_blocks`](chain::ChainBuilder::link_blocks), [`counted_as`](chain::Chain::counted_as) the bytes of the whole body, or [`Chain::unknown`](chain::Chain::unknown) with them if no prompt was found or engines may see another one; [`EngineGroup::plan_request`](group::EngineGroup::plan_request), once. The plan goes to `core` as a new field of `core::group::Request` |
//! | a member is chosen, also for a retry | `core` | a [`Candidate`](cost::Candidate) for each member that may be picked (weight with slow start, failures as extra seconds, loads by the engine's metrics and by the fleet), [`EngineGroup::choose_member`](group::EngineGroup::choose_member); a closure gives each cost to `core::trace`. The cost is in seconds, so that late binding can compare a member that is full with one that is not. Then [`EngineGroup::learn_choice`](group::EngineGroup::learn_choice), unless the decision is only explained |
//! | the request is sent | `core`, where the ticket is made | [`EngineGroup::begin_request`](group::EngineGroup::begin_request); the ticket keeps the [`SentRequest`](group::SentRequest) |
//! | the head of the answer is here | `proxy` | [`UsageReader::new`](usage::UsageReader::new), with true if the media type is `text/event-stream`, and then [`EngineGroup::begin_stream`](group::EngineGroup::begin_stream): the scanner does not see `stream` in every body |
//! | a part of the answer is here | `proxy` | [`UsageReader::feed_bytes`](usage::UsageReader::feed_bytes) and, if it counts events, [`EngineGroup::take_events`](group::EngineGroup::take_events) by the ticket. An answer to a request for a stream that is no event stream: one event at its first byte. [`SentRequest::skip_gap`](group::SentRequest::skip_gap) while the client takes nothing |
//! | the answer has ended, or broken off | `core`, where the ticket ends | [`UsageReader::find_usage`](usage::UsageReader::find_usage), [`EngineGroup::finish_request`](group::EngineGroup::finish_request), always: also if the client has given up and if the ticket is dropped. [`AnswerEnd::is_complete`](group::AnswerEnd::is_complete) is false for anything but a whole answer with status 200. If the request has waited in a queue with shares by key, the proxy tells the queue [`SentRequest::share_tokens`](group::SentRequest::share_tokens) |
//! | status 429 or 503, before the first token | `proxy` | [`EngineGroup::mark_full`](group::EngineGroup::mark_full) for half a second, then a retry at another member |
//! | a health check fails, a member is ejected, or a slot gets another member | `control` | [`EngineGroup::forget_memory`](group::EngineGroup::forget_memory), [`EngineGroup::forget_member`](group::EngineGroup::forget_member) |
//! | once per second | `control` | [`EngineGroup::keep_up`](group::EngineGroup::keep_up) |
//! | hand-over to a new process | `manager` | [`write_index`](handover::write_index) and [`EngineGroup::export_member`](group::EngineGroup::export_member); in the new process [`read_index`](handover::read_index) and [`EngineGroup::import_member`](group::EngineGroup::import_member), if [`VERSION`] and the [`HashKey`](chain::HashKey) are the same |
//! | ten times a second in a fleet | `fleet` | [`EngineGroup::take_mean_work`](group::EngineGroup::take_mean_work), told to the other balancers, who count the sums in [`ReportedLoad`](cost::ReportedLoad) |
//!
//! Routes by `model` use [`Scanner::model_name`](scanner::Scanner::model_name) before the group is known; a request that is
//! [ambiguous](scanner::Scanner::is_ambiguous) must not get a right by its model's name.
//!
//! `docs/design/inference.md` has figures of what was tried in virtual time.
//!
//! # Limits
//!
//! - A picture, a sound or a file counts as a text of 4 KiB, whatever its size in pixels or seconds is; the learnt tokens
//!   of a byte are a mean of texts and of these.
//! - A compressed body is an unknown prompt. A compressed answer says neither events nor usage: do not offer
//!   `Accept-Encoding` to members of such groups.
//! - The first token of an answer that comes as a whole cannot be seen. Its prompt is in the queue
//!   of its member until the member should have read it.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod chain;
mod copies;
pub mod cost;
mod expected;
pub mod fleet;
pub mod group;
pub mod handover;
pub mod index;
mod kept;
pub mod labels;
pub mod media;
pub mod memory;
pub mod model_name;
pub mod queue;
mod regression;
mod request_count;
pub mod scanner;
pub mod sent_prompts;
pub mod share;
mod short_text;
pub mod speed;
pub mod tokens;
pub mod usage;

/// Version of the hashes and of the meaning of all that is learnt. A new process takes over what the old one has learnt
/// if both have the same version.
pub const VERSION: u32 = 3;
