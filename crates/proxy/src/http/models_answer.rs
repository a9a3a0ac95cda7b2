//! Answer to a client that asks for the models (`GET /v1/models`), where the name of the model chooses the group: one
//! member of each group is asked, and the lists are joined.

use std::cell::RefCell;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_core::group;
use evenkeel_inference::scanner::MAX_MODEL;
use evenkeel_limits::warn_throttled;

use super::asked_models::AskedModels;
use super::client::{After, Client};
use super::copy::{Copy, CopyPlan};
use super::engine_error::EngineError;
use super::failure::Failure;
use super::flow::{Flow, JOINED_BYTES};
use super::hedge::Held;
use super::request::Request;
use super::response::Head;
use super::route::RequestRoute;
use super::summary::Summary;
use crate::access::End;
use crate::http1::respond::{Answer, AnswerExtras};
use crate::io::{Io, Nobody};
use crate::member_choice::insert;
use crate::model_list::{MAX_ANSWER_BYTES, ModelList};
use crate::upstream::Upstream;
use crate::watch::Stop;

/// Time in which a group must have sent its list.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which the waiting client gives the groups up, if they were not given up before.
const LATER: Duration = Duration::from_secs(1);

/// Most groups that are asked at the same time for a client: each may send [`MAX_ANSWER_BYTES`].
const MAX_CONCURRENT: usize = 16;

static NO_LIST: Bytes = Bytes::from_static(
    b"{\"type\":\"error\",\"error\":{\"type\":\"server_error\",\"code\":\"service_unavailable\",\"param\":null,\
      \"message\":\"No engine has sent a list of its models. Try again later.\"}}\n",
);

static REFUSED: Bytes = Bytes::from_static(
    b"{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"code\":\"invalid_api_key\",\"param\":null,\
      \"message\":\"The engines do not accept the API key.\"}}\n",
);

/// Result of a question to a group.
enum GroupAnswer {
    /// A response with the status 200, whose body is in the copy.
    List(Copy),
    /// A response with another status.
    Status(u16),
    /// No member can be asked.
    NoMember,
    /// The members failed.
    Failed,
}

/// Question to a group.
type Question = Pin<Box<dyn Future<Output = GroupAnswer>>>;

/// Question to a group, until the group has answered.
enum Step {
    Asks(Question),
    Answered(GroupAnswer),
}

impl Step {
    /// Polls the question; true if the group has answered.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> bool {
        if let Step::Asks(question) = self
            && let Poll::Ready(answer) = question.as_mut().poll(cx)
        {
            *self = Step::Answered(answer);
        }
        matches!(self, Step::Answered(_))
    }
}

impl RequestRoute {
    /// Place of the group that is asked for the model `name`: the one that serves the model.
    fn asked_place(&self, name: &str, client: Option<IpAddr>) -> u32 {
        let models = self.route().models.as_ref();
        let found =
            models.and_then(|models| self.find_model_place(models, name.as_bytes(), client));
        found.map_or(self.target_place(), |(place, _)| place)
    }

    /// Name of the model at the engines that clients call `name`.
    fn engine_name<'a>(&'a self, name: &'a str) -> &'a str {
        let models = self.route().models.as_ref();
        let model = models.and_then(|models| models.find_alias(name.as_bytes()));
        model.map_or(name, |model| &model.name)
    }

    /// Places of the groups that are asked for models.
    fn asked_places(&self, asked: &AskedModels, client: Option<IpAddr>) -> Vec<u32> {
        match asked {
            AskedModels::All => self.listed_places().collect(),
            AskedModels::One(name) => vec![self.asked_place(self.engine_name(name), client)],
        }
    }

    /// Places of the groups whose models are listed, the group of the route or rule first.
    fn listed_places(&self) -> impl Iterator<Item = u32> {
        std::iter::once(self.target_place()).chain(self.other_targets())
    }

    /// True if requests for the model `name` may go to the group at `place`.
    fn sends_model(&self, name: &str, place: u32) -> bool {
        let models = self.route().models.as_ref();
        if models.is_some_and(|models| models.find_alias(name.as_bytes()).is_some()) {
            // Requests for the name are for another model.
            return false;
        }
        let models = models.filter(|_| name.len() <= MAX_MODEL);
        let places = models.and_then(|models| models.find_places(name.as_bytes()));
        match places.unwrap_or_default() {
            [] => self.is_to_target(place),
            places => places.contains(&place),
        }
    }
}

impl Client {
    /// True if all groups whose models are listed are in maintenance for the client.
    pub(super) fn lists_no_models(&self, routed: &RequestRoute, asked: &AskedModels) -> bool {
        let client = self.session.peer.ip();
        let places = routed.asked_places(asked, client);
        places.into_iter().all(|place| {
            let routed = routed.with_target(place);
            routed.response_policy().is_in_maintenance(client)
        })
    }

    /// Answers with the models of all groups that answer, or with a single model.
    pub(super) async fn answer_models(
        &mut self,
        request: &mut Request,
        summary: &mut Summary,
        asked: AskedModels,
    ) -> After {
        let client = self.session.peer.ip();
        let places = request.routed.asked_places(&asked, client);
        let (mut list, mut status, mut is_listed) = (ModelList::default(), 503, false);
        // Memory of the lists, which is that of the answer.
        let mut charges = Vec::new();
        for places in places.chunks(MAX_CONCURRENT) {
            let answers = match self.ask_groups(request, places).await {
                Ok(answers) => answers,
                Err(end) => {
                    summary.end = end;
                    return After::Cut;
                }
            };
            for (place, answer) in places.iter().zip(answers) {
                let routed = request.routed.with_target(*place);
                let why = match answer {
                    GroupAnswer::List(copy) => {
                        let (bytes, body_at, charge) = copy.into_parts();
                        let body = bytes.get(body_at..).unwrap_or_default();
                        let sends = |name: &str| request.routed.sends_model(name, *place);
                        match list.add_answer(body, sends) {
                            Ok(_) => {
                                charges.push(charge);
                                is_listed = true;
                                self.session.service.metrics.model_lists_joined.add(1);
                                continue;
                            }
                            Err(error) => error.to_string(),
                        }
                    }
                    GroupAnswer::Status(of_group) => {
                        if matches!(of_group, 401 | 403) {
                            status = of_group;
                        }
                        format!("the status is {of_group}")
                    }
                    GroupAnswer::Failed => "no whole answer has come in time".into(),
                    GroupAnswer::NoMember => {
                        self.session.service.metrics.model_lists_no_member.add(1);
                        continue;
                    }
                };
                self.note_no_list(&routed, &why);
            }
        }
        if !is_listed {
            if self.session.watch.is_over() {
                let failed = self.answer_failed(request, summary, Failure::DeadlineExceeded);
                return failed.await;
            }
            return self.answer_no_list(request, summary, status).await;
        }
        let routed = request.routed.clone();
        let body = match asked {
            AskedModels::All => {
                let models = routed.route().models.iter();
                for (alias, model) in models.flat_map(|models| models.aliases()) {
                    list.add_alias(alias, &model.name);
                }
                list.into_json()
            }
            AskedModels::One(name) => match list.find_entry(routed.engine_name(&name), &name) {
                Some(entry) => entry,
                None => return self.answer_no_model(request, summary, &name).await,
            },
        };
        let body = Bytes::from(body);
        let answer = Answer {
            page: Some(("application/json", &body)),
            ..Answer::new_closing(200, "")
        };
        self.give_instead(request, summary, answer).await
    }

    /// Answers that the engines have no model of this name.
    async fn answer_no_model(
        &mut self,
        request: &mut Request,
        summary: &mut Summary,
        name: &str,
    ) -> After {
        let message = format!("The model `{name}` does not exist.");
        let error = EngineError {
            kind: "invalid_request_error",
            code: "model_not_found",
            param: Some("model"),
            message: &message,
        };
        let body = error.to_body();
        let routed = request.routed.clone();
        // A page of the administrator's own comes first.
        let has_page = routed.response_policy().page(404).is_some();
        let answer = Answer {
            page: (!has_page).then_some(("application/json", &body)),
            ..Answer::new_closing(404, "The model does not exist.")
        };
        self.give_instead(request, summary, answer).await
    }

    /// Answers that there is no list, with the status with which the engines have refused, or else with 503.
    async fn answer_no_list(
        &mut self,
        request: &mut Request,
        summary: &mut Summary,
        status: u16,
    ) -> After {
        summary.end = End::Member;
        let routed = request.routed.clone();
        // A page of the administrator's own comes first.
        let has_page = routed.response_policy().page(status).is_some();
        let (body, text) = match status {
            503 => (&NO_LIST, "No engine has sent a list of its models."),
            _ => (&REFUSED, "The engines do not accept the API key."),
        };
        let answer = Answer {
            retry_after: (status == 503).then_some(1),
            page: (!has_page).then_some(("application/json", body)),
            more: AnswerExtras {
                challenge: (status == 401).then_some("Bearer"),
                ..AnswerExtras::default()
            },
            ..Answer::new_closing(status, text)
        };
        self.give_instead(request, summary, answer).await
    }

    /// Counts a group whose models are left out, and says why.
    fn note_no_list(&self, routed: &RequestRoute, why: &str) {
        let service = &self.session.service;
        service.metrics.model_lists_failed.add(1);
        let group = routed.target().group.current.load();
        warn_throttled!(rule = %service.name, group = %group.name(), why,
            "a list of models is without the models of a group, because no member of the group has sent its list");
    }

    /// Asks the groups at `places` at the same time. The error says how the client's request ends.
    async fn ask_groups(
        &mut self,
        request: &Request,
        places: &[u32],
    ) -> Result<Vec<GroupAnswer>, End> {
        let steps = places
            .iter()
            .map(|place| self.plan_question(request, *place));
        let mut steps: Vec<Step> = steps.collect();
        let ends_with_fin = request.ends_with_fin(&request.routed);
        let Client {
            session, stream, ..
        } = self;
        session
            .watch
            .arm_and_look(LIST_TIMEOUT.saturating_add(LATER));
        let waited = session.watch.poll_until_stop(|cx| {
            if session.is_gone(cx, stream, ends_with_fin) {
                return Poll::Ready(false);
            }
            let open = steps.iter_mut().filter_map(|step| {
                let is_open = !step.poll_answer(cx);
                is_open.then_some(())
            });
            match open.count() {
                0 => Poll::Ready(true),
                _ => Poll::Pending,
            }
        });
        let waited = waited.await;
        session.watch.disarm_deadline();
        match waited {
            Ok(false) => return Err(End::Client),
            Err(Stop::Cut) => return Err(End::Terminated),
            Ok(true) | Err(Stop::Expired) => {}
        }
        let answers = steps.into_iter().map(|step| match step {
            Step::Answered(answer) => answer,
            Step::Asks(_) => GroupAnswer::Failed,
        });
        Ok(answers.collect())
    }

    /// Returns the question to the group at `place`: the same request, for nobody.
    fn plan_question(&self, request: &Request, place: u32) -> Step {
        let worker = &self.session.worker;
        let routed = request.routed.with_target(place);
        let policy = routed.response_policy();
        if policy.is_in_maintenance(self.session.peer.ip()) {
            return Step::Answered(GroupAnswer::NoMember);
        }
        let copies = CopyPlan {
            most: JOINED_BYTES,
            memory: Arc::clone(&worker.memory),
        };
        let Some(copy) = request.up.copy_message(copies) else {
            return Step::Answered(GroupAnswer::Failed);
        };
        let asking = request.once_more(routed, None, Flow::of_copy(copy), worker.now());
        let session = self.session.for_own_request();
        let client = Client::new(session, Io::Nobody(Nobody), Rc::default());
        Step::Asks(Box::pin(client.fetch_list(asking)))
    }

    /// Asks one member after the other until one answers.
    async fn fetch_list(mut self, mut asking: Request) -> GroupAnswer {
        self.session.watch.set_total_limit(LIST_TIMEOUT);
        let worker = Rc::clone(&self.session.worker);
        let routed = asking.routed.clone();
        let handle = &routed.target().group;
        // Nobody's ties: the client is not bound to members that list models.
        let bindings = RefCell::default();
        let (mut tried, mut retries) = (Vec::new(), 0);
        let answer = loop {
            let asks = group::Request {
                client: self.session.peer.ip(),
                cost: asking.cost,
                excluded_members: &tried,
                ..group::Request::at_time(worker.now())
            };
            let bound = self.session.bind_request(
                routed.target(),
                &bindings,
                (&asks, None),
                &routed.route().timeouts,
                asking.class,
                &mut self.stream,
            );
            let Ok(bound) = bound.await else {
                break match retries {
                    0 => GroupAnswer::NoMember,
                    _ => GroupAnswer::Failed,
                };
            };
            let mut held = Held {
                group: Arc::clone(handle),
                bound: Some(bound),
            };
            let Some(bound) = &mut held.bound else {
                break GroupAnswer::NoMember;
            };
            let member = bound.member;
            let failure = match self.attempt_request(&mut asking, &routed, bound).await {
                Ok((head, upstream)) if matches!(head.status, 429 | 500..) => {
                    upstream.reset_on_drop();
                    Failure::Status(head.outcome)
                }
                Ok((head, upstream)) => {
                    let taken = self.take_list(&mut asking, &routed, held, head, upstream);
                    break taken.await;
                }
                Err(failure) => failure,
            };
            let again = !self.session.watch.is_over()
                && self.may_retry(&mut asking, &routed, &failure, retries);
            held.finish_bound(failure.member_outcome(), worker.now());
            if !again {
                break GroupAnswer::Failed;
            }
            retries += 1;
            self.session.service.metrics.retries.add(1);
            insert(&mut tried, member);
        };
        if let Some(rest) = asking.up.end_flow(&worker) {
            worker.buffers.give_back(rest);
        }
        answer
    }

    /// Takes a response to its end, so that its connection can be used again, and keeps the body.
    async fn take_list(
        &mut self,
        asking: &mut Request,
        routed: &RequestRoute,
        mut held: Held,
        mut head: Head,
        mut upstream: Upstream,
    ) -> GroupAnswer {
        let status = head.status;
        if status == 200 {
            let copies = CopyPlan {
                most: MAX_ANSWER_BYTES,
                memory: Arc::clone(&self.session.worker.memory),
            };
            head.down.begin_copying(copies, "");
        }
        let Some(bound) = &mut held.bound else {
            return GroupAnswer::Failed;
        };
        let discarded = self.discard_response(asking, routed, bound, &mut head, &mut upstream);
        let delivered = discarded.await;
        let copy = head.down.take_copy(true);
        if let Some(bound) = held.bound.take() {
            self.settle_connections(asking, routed, bound, head, upstream, &delivered);
        }
        match (copy, delivered.end) {
            (Some(Ok(copy)), End::Complete) => GroupAnswer::List(copy),
            (None, End::Complete) => GroupAnswer::Status(status),
            _ => GroupAnswer::Failed,
        }
    }
}
