//! A request once its head is read: the facts that are needed when the head is gone.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use evenkeel_control::queue::Class;
use evenkeel_core::cost::Cost;
use evenkeel_core::time::Instant;
use evenkeel_inference::usage::Usage;
use evenkeel_manager::config::{Coding, HttpOptions};
use evenkeel_manager::models::AliasedModel;

use super::asked_models::AskedModels;
use super::copied::{CopyReceiver, PlannedCopies};
use super::fallbacks::Fallbacks;
use super::flow::{Flow, KeepPlan};
use super::login::Login;
use super::prompt::{self, NamedModel, Prompt};
use super::route::{BalancerAnswer, RequestRoute};
use super::sticky::StickyCookie;
use super::target_facts::{OtherTargets, TargetFacts};
use crate::access::{self, Details, EngineFacts, MAX_TARGET_BYTES};
use crate::bound_request::BoundRequest;
use crate::chooser::HttpFacts;
use crate::cors::{CorsFields, CrossOrigin};
use crate::http1::content_edit::NotRewritten;
use crate::http1::forward::{RequestMarks, parent_place};
use crate::http1::{FramingFacts, RequestHead, Version};
use crate::memory::Memory;
use crate::message;
use crate::quota::Over;
use crate::quota::tokens::TokenHold;
use crate::request_id;
use crate::service::LocalRule;
use crate::session::Session;
use crate::trace::{self, Attempt, Trace};

/// Facts about a request that are needed when its head is gone.
pub(super) struct Request {
    pub(super) routed: RequestRoute,
    /// Answer of the balancer's own, in place of a member's response.
    pub(super) given: Option<Box<BalancerAnswer>>,
    /// Login of the request, where only some users may send requests.
    pub(super) login: Option<Box<Login>>,
    /// Binding that the request's cookie names, if cookies bind the clients of its group.
    pub(super) stuck: Option<Box<StickyCookie>>,
    /// Facts about the request for a chooser, if its group has one.
    pub(super) facts: Option<Box<HttpFacts>>,
    /// Permissions for the page that sends the request, if the page is one of another origin.
    pub(super) cross_origin: Option<Box<CrossOrigin>>,
    /// Time at which the head was complete.
    pub(super) at: Instant,
    /// Hash of the part of the request that the group's strategy looks at.
    pub(super) key: Option<u64>,
    /// Content coding that the response to the request may get here.
    pub(super) coding: Option<Coding>,
    /// True if the request asks for content that is newer than content with weak tags.
    pub(super) has_weak_tags: bool,
    /// Prompt of the request, until it is read, if the request is for engines.
    pub(super) prompt: Option<Box<Prompt>>,
    /// Facts for the groups that the model's name may lead to, if the groups need some.
    other_targets: Option<Box<OtherTargets>>,
    /// Groups that may get the request after the group that the request has now.
    pub(super) fallbacks: Option<Box<Fallbacks>>,
    /// True if the request is one with a body for engines.
    pub(super) is_for_engines: bool,
    /// Cost of the request for strategies.
    pub(super) cost: Cost,
    /// Urgency of the request when it waits for a member.
    pub(super) class: Class,
    pub(super) version: Version,
    /// True if the client wants its connection to go on.
    pub(super) keep_alive: bool,
    pub(super) asked: FramingFacts,
    /// True if the request's credentials are those of a connection.
    pub(super) authenticates_connection: bool,
    /// True if the request may be sent twice (RFC 9110, section 9.2.2).
    pub(super) idempotent: bool,
    /// True if the request may be sent twice as it is idempotent, or as its route says so. See
    /// [`Request::is_repeatable`].
    repeatable: bool,
    /// True if the request may be sent twice at once, as it changes nothing (section 9.2.1).
    pub(super) may_hedge: bool,
    /// The client waits for a 100 (Continue) before it sends the body.
    pub(super) awaits_continue: bool,
    /// True if the request is a call of gRPC.
    pub(super) grpc: bool,
    /// Tokens that the request takes from limits, if it counts in some.
    pub(super) tokens: Option<Rc<TokenHold>>,
    /// Models that the request asks for, if it asks for models of several groups.
    pub(super) asked_models: Option<Box<AskedModels>>,
    /// Limit that the request is above, as its client has sent too many.
    pub(super) over: Option<Over>,
    /// Mirrors that get a copy of the request, until they have it.
    pub(super) receivers: Option<Box<[CopyReceiver]>>,
    /// The request on its way to a member.
    pub(super) up: Flow,
    /// Details for the access log and for traces, with the name of the request.
    pub(super) line: Option<Box<Line>>,
}

pub(super) struct Line {
    pub(super) at: SystemTime,
    pub(super) method: Cow<'static, str>,
    pub(super) target: Box<str>,
    pub(super) details: Option<Box<Details>>,
}

/// Facts about a request that somebody wants to know, from before its head is written for a member.
#[derive(Default)]
pub(super) struct RequestFacts {
    pub(super) details: Option<Box<Details>>,
    /// Fields of traces in its head, if something is done with them.
    pub(super) trace: Option<trace::Fields>,
}

impl RequestFacts {
    /// Returns the facts about `request` that somebody wants to know.
    #[inline]
    pub(super) fn of_request(
        session: &Session,
        rule: &LocalRule,
        scheme: &'static str,
        request: &message::Request<'_>,
    ) -> Self {
        match rule.rule.http.request_id.is_some() || session.worker.records.get() {
            true => RequestFacts::new_details(session, &rule.rule.http, scheme, request),
            false => RequestFacts::default(),
        }
    }

    fn new_details(
        session: &Session,
        http: &HttpOptions,
        scheme: &'static str,
        request: &message::Request<'_>,
    ) -> Self {
        let worker = &session.worker;
        let mut noted = RequestFacts::default();
        if let Some(log) = &*worker.log.borrow()
            && !log.wanted_fields().request.is_empty()
        {
            noted.details_mut().fields =
                access::keep_values(&log.wanted_fields().request, request.fields);
        }
        if let Some(options) = &http.request_id {
            let given = request.only_value(&options.field);
            let given = given.filter(|_| http.trust_forwarded);
            noted.details_mut().id = Some(match given.and_then(request_id::parse_id) {
                Some(given) => given.into(),
                None => request_id::new(SystemTime::now(), &mut worker.rng.borrow_mut()),
            });
        }
        if let Some(tracer) = &*worker.tracer.borrow() {
            let rng = &mut worker.rng.borrow_mut();
            let (trace, fields) = tracer.begin_trace(request, http.trust_forwarded, rng);
            noted.trace = Some(fields).filter(|fields| *fields != trace::Fields::default());
            if let Some(mut trace) = trace {
                let kept = |text: &str| access::kept_value(text.as_bytes());
                let agent = request.values("user-agent").next();
                trace.authority = request.authority.map(kept);
                trace.scheme = scheme;
                trace.user_agent = agent.map(access::kept_value);
                noted.details_mut().trace = Some(trace);
            }
        }
        noted
    }

    fn details_mut(&mut self) -> &mut Details {
        self.details.get_or_insert_default()
    }

    /// Returns the marks that the member's head gets.
    #[inline]
    pub(super) fn head_marks<'a>(&'a self, http: &'a HttpOptions) -> Option<RequestMarks<'a>> {
        if self.details.is_none() && self.trace.is_none() {
            return None;
        }
        let details = self.details.as_ref();
        let id = details.and_then(|details| details.id.as_deref());
        let id = http.request_id.as_ref().zip(id);
        Some(RequestMarks {
            id: id.map(|(options, id)| (&*options.field, id)),
            trace: self.trace.unwrap_or_default(),
        })
    }

    /// The member's head is written.
    #[inline]
    pub(super) fn note_written(&mut self, head: &[u8]) {
        if let Some(details) = &mut self.details
            && let Some(trace) = &mut details.trace
        {
            trace.place = parent_place(head);
        }
    }
}

impl Request {
    /// The request of a head, once it is known how it gets to a member.
    #[inline]
    pub(super) fn from_head(
        session: &Session,
        routed: RequestRoute,
        given: Option<Box<BalancerAnswer>>,
        login: Option<Box<Login>>,
        noted: RequestFacts,
        head: &RequestHead<'_>,
    ) -> impl FnOnce(Flow) -> Request + use<> {
        let worker = &session.worker;
        let details = noted.details;
        let line = (details.is_some() || worker.log.borrow().is_some()).then(|| {
            Box::new(Line {
                at: SystemTime::now(),
                method: access::kept_method(head.request.method),
                target: access::cut_text(head.target, MAX_TARGET_BYTES).into(),
                details,
            })
        });
        let at = worker.now();
        let is_served = given.is_none();
        let facts_of =
            |routed: &RequestRoute| TargetFacts::of_request(routed, &head.request, is_served, at);
        let TargetFacts {
            key,
            stuck,
            chooser: facts,
            cross_origin,
        } = facts_of(&routed);
        let told = routed.rule.http.cost_header.as_deref();
        let told = told.and_then(|field| head.request.parse_cost(field));
        let cost = told.unwrap_or(routed.rule.cost);
        let class = routed.queue_class(&head.request, session.peer.ip());
        let compression = routed.rule.compression.as_ref();
        let coding =
            compression.and_then(|options| options.choose(head.request.values("accept-encoding")));
        let has_weak_tags = coding.is_some() && has_weak_tags(&head.request);
        let mut prompt = match routed.max_prompt() {
            Some(max_bytes) if is_served => {
                let random = worker.rng.borrow_mut().u64(..);
                prompt::begin_prompt(&worker.prompts, &head.request, max_bytes, random)
            }
            _ => None,
        };
        let other_targets = match prompt.is_some() && routed.chooses_by_model() {
            true => OtherTargets::of_request(&routed, facts_of),
            false => None,
        };
        let is_for_engines = prompt.is_some() && routed.may_be_for_engines();
        let idempotent = matches!(
            head.request.method,
            "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE"
        );
        let route = routed.route();
        let is_named = route
            .retry_methods
            .iter()
            .any(|method| **method == *head.request.method);
        let repeatable = idempotent || is_named;
        let max_prompt = prompt.as_deref().map_or(0, Prompt::max_bytes);
        let most_kept = route.retry_max_body.max(max_prompt);
        let is_sent_again = route.retries > 0 || routed.chooses_by_model();
        let keeps = (is_named || is_for_engines) && given.is_none() && is_sent_again;
        let keeps = keeps.then(|| KeepPlan::new(most_kept, &worker.memory));
        let may_hedge = matches!(head.request.method, "GET" | "HEAD" | "OPTIONS")
            && !head.framing_facts.upgrade
            && !head.expect_continue
            && !head.request.authenticates_connection;
        let authenticates_connection = head.request.authenticates_connection;
        let (version, keep_alive, asked) = (head.version, head.keep_alive, head.framing_facts);
        let awaits_continue = head.expect_continue;
        let client = session.peer.ip();
        let is_final = prompt.is_none() || !routed.chooses_by_model();
        let over = match is_final && routed.response_policy().is_in_maintenance(client) {
            // Who is told to try again later has not used the limit up by then.
            true => None,
            false => routed.client_quotas().and_then(|quotas| {
                quotas.take_request(client, &head.request, routed.route_index(), at)
            }),
        };
        let tokens = match is_for_engines {
            true => routed.client_quotas().and_then(|quotas| {
                quotas.find_token_limits(client, &head.request, routed.route_index())
            }),
            false => None,
        };
        if let Some(prompt) = &mut prompt
            && is_for_engines
        {
            let limit_key = tokens.as_deref().and_then(TokenHold::client_key);
            prompt.is_measured = true;
            prompt.owner = limit_key.unwrap_or_else(|| prompt::hash_owner(&head.request, client));
        }
        let copies = match given {
            Some(_) => None,
            None => routed.plan_copies(session, head),
        };
        let asked_models = match is_served {
            true => routed.asked_models(&head.request).map(Box::new),
            false => None,
        };
        let (copies, receivers) = match copies {
            Some(PlannedCopies { plan, receivers }) => (Some(plan), Some(receivers)),
            None => (None, None),
        };
        move |up| Request {
            receivers,
            up: {
                let up = match keeps {
                    Some(keeps) => up.keep_what_is_sent(keeps),
                    None => up,
                };
                match copies {
                    Some(copies) => Flow::copy_while_read(up, copies),
                    None => up,
                }
            },
            routed,
            given,
            login,
            stuck,
            facts,
            cross_origin,
            at,
            key,
            coding,
            has_weak_tags,
            prompt,
            other_targets,
            fallbacks: None,
            is_for_engines,
            cost,
            class,
            version,
            keep_alive,
            asked,
            authenticates_connection,
            idempotent,
            repeatable,
            may_hedge,
            awaits_continue,
            grpc: false,
            tokens,
            asked_models,
            over,
            line,
        }
    }
}

impl Request {
    /// True if the request ends when the client closes its side of the connection: always for engines, which would
    /// work for nobody.
    pub(super) fn ends_with_fin(&self, routed: &RequestRoute) -> bool {
        self.is_for_engines || routed.route().abort_on_close
    }

    /// True if the request may be sent twice: it is idempotent, its route says so, or it is for engines.
    pub(super) fn is_repeatable(&self) -> bool {
        self.repeatable || self.is_for_engines
    }

    /// Moves the request to the group of its route at `target`, if it is not there.
    pub(super) fn move_to_target(&mut self, target: u32) {
        if self.routed.is_to_target(target) {
            return;
        }
        let others = self.other_targets.as_mut();
        let facts = others.map_or_else(TargetFacts::default, |others| others.take(target));
        let facts_before = TargetFacts {
            key: self.key.take(),
            stuck: self.stuck.take(),
            chooser: self.facts.take(),
            cross_origin: self.cross_origin.take(),
        };
        OtherTargets::put(
            &mut self.other_targets,
            self.routed.target_place(),
            facts_before,
        );
        self.routed = self.routed.with_target(target);
        self.is_for_engines = self.routed.is_for_engines();
        self.key = facts.key;
        self.stuck = facts.stuck;
        self.facts = facts.chooser;
        self.cross_origin = facts.cross_origin;
    }

    /// Number of retries at the group that the request has now, of all of its `retries`.
    #[inline]
    pub(super) fn group_retries(&self, retries: u32) -> u32 {
        let others = self.fallbacks.as_deref();
        others.map_or(retries, |others| others.count_retries(retries))
    }

    /// Notes that the request has been given to another group, after this many retries.
    pub(super) fn begin_group(&mut self, retries: u32) {
        if let Some(others) = &mut self.fallbacks {
            others.begin_group(retries);
        }
    }

    /// Facts about the request at an engine, if the log or a trace has them.
    fn engine_facts(&mut self) -> Option<&mut EngineFacts> {
        let details = self.line.as_mut()?.details.get_or_insert_default();
        Some(details.engine.get_or_insert_default())
    }

    /// Writes the name of the engines' model into the body, in place of the alias that `prompt` has found there.
    pub(super) fn write_model(
        &mut self,
        prompt: &mut Prompt,
        model: &AliasedModel,
        memory: &Arc<Memory>,
    ) -> Result<(), NotRewritten> {
        let place = prompt.model_place().ok_or(NotRewritten::NotHere)?;
        let (is_chunked, name) = (prompt.is_chunked(), model.json.as_bytes());
        let changed = self.up.rewrite_content(is_chunked, place, name, memory)?;
        if let Some(trace) = self.trace_mut() {
            trace.place = changed.move_offset(trace.place);
        }
        prompt.replace_model(&model.json);
        Ok(())
    }

    /// Notes the model that the request names in its body, for the log.
    #[cold]
    pub(super) fn note_model(&mut self, prompt: &Prompt) {
        if let Some(facts) = self.engine_facts()
            && let NamedModel::Name(name) = prompt.named_model()
        {
            facts.model = Some(String::from_utf8_lossy(name.as_bytes()).into());
        }
    }

    /// Notes for the log that another group gets the request than that of `routed`.
    #[cold]
    pub(super) fn note_fallback(&mut self, routed: &RequestRoute) {
        let group = Arc::clone(routed.target().group.current.load().name());
        if let Some(facts) = self.engine_facts() {
            facts.fallback_from.get_or_insert(group);
        }
    }

    /// Notes the tokens of the answer, whose first one has come at `first_token`, for the log.
    #[cold]
    pub(super) fn note_tokens(&mut self, usage: Option<Usage>, first_token: Option<Instant>) {
        let at = self.at;
        if let Some(facts) = self.engine_facts() {
            facts.usage = usage;
            facts.first_token = first_token.map(|first| first.since(at));
        }
    }

    /// The trace that it is in.
    pub(super) fn trace_mut(&mut self) -> Option<&mut Trace> {
        self.line.as_mut()?.details.as_mut()?.trace.as_mut()
    }

    /// The field with its name in the response, if there is to be one.
    pub(super) fn answered_id<'a>(
        &'a self,
        routed: &'a RequestRoute,
    ) -> Option<(&'a str, &'a str)> {
        let options = routed.rule.http.request_id.as_ref()?;
        let id = self.line.as_ref()?.details.as_ref()?.id.as_deref()?;
        options.answer.then_some((&*options.field, id))
    }

    /// Permissions for pages of other origins that the response has, if the balancer gives them.
    pub(super) fn cors_fields<'a>(&'a self, routed: &'a RequestRoute) -> Option<CorsFields<'a>> {
        let policy = routed.response_policy().cors()?;
        Some(CorsFields::new(policy, self.cross_origin.as_deref()))
    }

    /// True if a browser that asks with it is granted what it asks for.
    pub(super) fn is_granted(&self) -> bool {
        let policy = self.routed.response_policy().cors();
        let request = self.cross_origin.as_ref();
        policy.is_some_and(|policy| request.is_some_and(|request| request.grants_all(policy)))
    }

    /// Notes in the trace what has come of a try at a member.
    pub(super) fn note_attempt(
        &mut self,
        routed: &RequestRoute,
        bound: &BoundRequest,
        answered: Result<u16, &'static str>,
        hedge: bool,
    ) {
        let at = self.at;
        let Some(trace) = self.trace_mut() else {
            return;
        };
        let Some(tries) = &bound.tries else {
            return;
        };
        let group = routed.target().group.current.load();
        trace.attempts.push(Attempt {
            span: trace.current,
            member: Arc::clone(&tries.member),
            member_name: tries.member_name.clone(),
            group: Arc::clone(group.name()),
            strategy: group.strategy().name,
            began: bound.ticket.started().since(at),
            end_time: None,
            queued: tries.queued,
            connect_time: tries.connect_time,
            status: answered.ok(),
            failure: answered.err(),
            hedge,
        });
    }

    /// The last try is over, and has failed.
    pub(super) fn end_attempt(&mut self, failure: &'static str, now: Instant) {
        let at = self.at;
        if let Some(attempt) = self.trace_mut().and_then(|trace| trace.attempts.last_mut()) {
            attempt.failure = Some(failure);
            attempt.end_time = Some(now.since(at));
        }
    }

    /// Gives what is tried next a span of its own, of which the member is told.
    pub(super) fn next_span(&mut self, span: impl FnOnce() -> [u8; 8]) {
        let Some(trace) = self.trace_mut() else {
            return;
        };
        trace.current = span();
        let (place, text) = (trace.place, trace::span_text(trace.current));
        self.up.overwrite_head(place, &text);
    }

    /// Returns another request for which this request is the cause, in the name of nobody: `up`, of
    /// which the group's strategy sees `key`.
    pub(super) fn once_more(
        &self,
        routed: RequestRoute,
        key: Option<u64>,
        up: Flow,
        at: Instant,
    ) -> Self {
        Request {
            routed,
            given: None,
            login: None,
            stuck: None,
            facts: None,
            cross_origin: None,
            at,
            key,
            coding: None,
            has_weak_tags: false,
            prompt: None,
            other_targets: None,
            fallbacks: None,
            is_for_engines: false,
            cost: self.cost,
            class: self.class,
            // One that gets no interim responses.
            version: Version::Http10,
            keep_alive: false,
            asked: self.asked,
            authenticates_connection: self.authenticates_connection,
            idempotent: self.idempotent,
            repeatable: self.idempotent,
            may_hedge: false,
            awaits_continue: false,
            grpc: false,
            tokens: None,
            asked_models: None,
            over: None,
            up,
            line: None,
            receivers: None,
        }
    }
}

/// True if the tags of `If-None-Match` are weak ones.
fn has_weak_tags(request: &message::Request<'_>) -> bool {
    let mut tags = request.values("if-none-match").peekable();
    tags.peek().is_some() && tags.all(|tags| tags.trim_ascii_start().starts_with(b"W/"))
}
