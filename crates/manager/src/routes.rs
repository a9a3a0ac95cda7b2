//! Routes: what a rule does with requests of HTTP.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_config::fields::{DECIDING, RequestTrailers, is_in_family, is_same_name};
use evenkeel_config::routing::Index;
use evenkeel_config::routing::template::Template;
use evenkeel_config::{GroupShare, Status};

use crate::auth::Auth;
use crate::config::{self, FieldChanges, Responses, Rule, Timeouts};
use crate::files::Files;
use crate::mirrors::{Mirror, list_mirrors};
use crate::models::Models;
use crate::responses::ResponsePolicy;
use crate::target_actions::TargetActions;

/// The routes of a rule.
#[derive(Debug)]
pub struct Routes {
    /// Routes, which other snapshots may share.
    list: Vec<Arc<Route>>,
    /// Route of the requests that no other route is for.
    rest: Route,
    /// Routes as configured, with the index that finds the route of a request.
    config: config::Routes,
}

impl Routes {
    /// Routes of `rule`, the groups of which have these places: `responses` are those of the rule and the one at a place.
    pub fn new<'t>(
        rule: &Rule,
        places: &HashMap<&str, u32>,
        responses: impl Fn(u32) -> &'t Responses,
        files: &Files,
    ) -> Self {
        Routes::next(rule, places, responses, files, None)
    }

    /// Routes of `rule` as [`Routes::new`] makes them. A route that is in `before`, too, stays the same.
    pub(crate) fn next<'t>(
        rule: &Rule,
        places: &HashMap<&str, u32>,
        responses: impl Fn(u32) -> &'t Responses,
        files: &Files,
        before: Option<RoutesBefore<'_>>,
    ) -> Self {
        let configs = rule.routes.list();
        // Most routes have those of the rest.
        let trailers = Arc::new(trailers(rule, &FieldChanges::default()));
        let make = |route: &Arc<config::Route>| {
            let mut made = Route::new(rule, route, places, files, &trailers);
            let has_own = |share: &GroupShare| !share.response_fields.is_empty();
            if !route.responses.is_empty() || route.groups.0.iter().any(has_own) {
                let policy = |place| {
                    let mut merged = route.responses.layer_over(responses(place));
                    let mut shares = route.groups.0.iter();
                    let share = shares.find(|share| places.get(&*share.name) == Some(&place));
                    if let Some(share) = share {
                        merged.response_fields =
                            share.response_fields.layer_over(&merged.response_fields);
                    }
                    (place, ResponsePolicy::new(merged, files))
                };
                let by_model = made.models.iter().flat_map(|models| models.places());
                let places = made.targets.places().chain(by_model.copied());
                made.policies = places.map(policy).collect();
            }
            Arc::new(made)
        };
        let list = match before {
            None => configs.iter().map(make).collect(),
            Some(before) => {
                let former = before.routes.config.list();
                let places = find_places(former, configs);
                let find = |(config, place): (&Arc<config::Route>, Option<usize>)| {
                    let known = before.routes.list.get(place?)?;
                    let is_same = (before.has_same_responses || known.policies.is_empty())
                        && (files.is_empty()
                            || is_of_files(config, known, rule.auth.as_ref(), files));
                    is_same.then(|| Arc::clone(known))
                };
                let pairs = configs.iter().zip(places);
                pairs
                    .map(|pair| find(pair).unwrap_or_else(|| make(pair.0)))
                    .collect()
            }
        };
        Routes {
            list,
            rest: Route::of_rest(rule, places, files, &trailers),
            config: rule.routes.clone(),
        }
    }

    /// True if the routes' files have the contents that are in `files`; `rule` is the rule of the routes.
    pub fn are_of(&self, rule: &Rule, files: &Files) -> bool {
        if files.is_empty() {
            return true;
        }
        let of_rule = rule.auth.as_ref();
        let mut pairs = self.config.list().iter().zip(&self.list);
        has_users_of(of_rule, &self.rest, files)
            && pairs.all(|(config, route)| is_of_files(config, route, of_rule, files))
    }

    /// Returns the index that finds the route of a request; `None` if there is but the route of the rest.
    #[inline]
    pub fn index(&self) -> Option<&Index> {
        self.config.index()
    }

    /// The route at a place: that of the rest if there is no other one.
    #[inline]
    pub fn route_at(&self, place: usize) -> &Route {
        self.list.get(place).map_or(&self.rest, |route| route)
    }
}

/// Routes of a rule before a change of which the rule's other settings and the places of its groups are no part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoutesBefore<'a> {
    pub(crate) routes: &'a Routes,
    /// True if the answers of the balancer's own, and changes to responses, of the rule and its groups are as they were.
    pub(crate) has_same_responses: bool,
}

/// True if a route authenticates requests by the users that are in `files`.
fn has_users_of(auth: Option<&config::Auth>, route: &Route, files: &Files) -> bool {
    let file = auth.and_then(|auth| auth.users_file.as_ref());
    let users = file.and_then(|file| files.users.get(&file.path));
    let of_route = route.auth.as_ref().and_then(|auth| auth.users());
    users.map(Arc::as_ptr) == of_route.map(Arc::as_ptr)
}

/// True if the files of a route have the contents that are in `files`; `of_rule` is the authentication of its rule.
fn is_of_files(
    config: &config::Route,
    route: &Route,
    of_rule: Option<&config::Auth>,
    files: &Files,
) -> bool {
    let file = { config.answer.as_ref() }.and_then(|answer| answer.file.as_ref());
    let body = match route.fixed_response.as_deref() {
        Some(RouteResponse::Answer { body, .. }) => Some(body),
        _ => None,
    };
    has_users_of(config.auth.or_rule(of_rule), route, files)
        && route.policies.iter().all(|(_, policy)| policy.is_of(files))
        && file.is_none_or(|file| files.answers.get(&file.path) == body)
}

/// Returns the place in `before` of each element of `now`, if it is there. Where one element comes or goes, the others
/// are found without a table.
fn find_places<T>(before: &[Arc<T>], now: &[Arc<T>]) -> Vec<Option<usize>> {
    let (between, others) = config::find_difference(before, now, Arc::ptr_eq);
    let (first, end, end_before) = (others.start, others.end, between.end);
    let known: HashMap<*const T, usize> = { before.iter().map(Arc::as_ptr).zip(0..) }
        .filter(|(_, place)| end > first && between.contains(place))
        .collect();
    let places = now.iter().enumerate().map(|(place, element)| {
        if place < first {
            Some(place)
        } else if place >= end {
            Some(place - end + end_before)
        } else {
            known.get(&Arc::as_ptr(element)).copied()
        }
    });
    places.collect()
}

/// Treatment of some of the requests of a rule.
#[derive(Debug)]
pub struct Route {
    /// Name of the route in logs; `None` for the rest.
    pub label: Option<Arc<str>>,
    /// Groups that the route's requests go to; none if the rest has no group.
    pub targets: Targets,
    /// Aliases of models, and groups by the names of models that requests name in their bodies, if there are any.
    pub models: Option<Box<Models>>,
    /// Response that requests get in place of a member's.
    pub fixed_response: Option<Box<RouteResponse>>,
    /// Authentication of requests; `None` lets everybody's requests pass.
    pub auth: Option<Box<Auth>>,
    /// Time limits.
    pub timeouts: Timeouts,
    /// Priority of the route's requests, if the route sets one.
    pub priority: Option<u16>,
    /// Maximum number of retries.
    pub retries: u32,
    /// Statuses after which another member is asked.
    pub retry_statuses: Box<[u16]>,
    /// Methods whose requests may be repeated, beside the idempotent ones.
    pub retry_methods: Box<[Box<str>]>,
    /// Most bytes of a body that are kept for a retry of such a request.
    pub retry_max_body: usize,
    /// Share of its requests that each request adds to the budget of retries.
    pub retry_budget: f32,
    /// True if retries may go to members that were tried, if no other is left.
    pub retry_same_member: bool,
    /// Shortest pause before a retry.
    pub retry_backoff: Duration,
    /// True if a client that closes its connection (FIN) ends its request.
    pub abort_on_close: bool,
    /// Rule for asking a second member, if one is asked.
    pub hedge: Option<Hedge>,
    /// Mirrors that get copies of requests.
    pub mirrors: Box<[Mirror]>,
    /// Most bytes of a body.
    pub max_body: Option<u64>,
    /// Actions for requests that go to members.
    actions: TargetActions,
    /// Actions for the requests of single groups, by the places of the groups.
    target_actions: Box<[(u32, TargetActions)]>,
    /// Answers of the balancer's own and changes to responses, by the places of its groups; none if the route says
    /// nothing of them.
    policies: Box<[(u32, ResponsePolicy)]>,
}

/// Second requests to another member.
#[derive(Debug)]
pub struct Hedge {
    /// Time without a byte of a response after which the second member is asked.
    pub after: Duration,
    /// Most of them, as a share of the requests for which they may be.
    pub share: f32,
}

impl Hedge {
    fn new(hedge: &config::Hedge) -> Option<Self> {
        let after = hedge.after.filter(|_| hedge.percent > 0.0)?;
        let share = hedge.percent / 100.0;
        Some(Hedge { after, share })
    }
}

/// Response of a route with `redirect` or `answer`, whose requests go to no member.
#[derive(Debug)]
pub enum RouteResponse {
    /// Redirect to another address.
    Redirect {
        /// Status of the redirect.
        status: u16,
        /// Address to which the client is redirected.
        location: Template,
    },
    /// Fixed response: the `answer` of the route.
    Answer {
        /// Status of the answer.
        status: u16,
        /// Media type of the answer.
        content_type: Box<str>,
        /// Body of the answer.
        body: Arc<[u8]>,
    },
}

/// Places of groups in a rule.
#[derive(Debug)]
pub enum Targets {
    /// No group.
    Nowhere,
    /// The group at this place.
    One(u32),
    /// Places, each with the sum of the weights up to its own, which ascends; no place has the weight 0.
    Several(Box<[(u32, u32)]>),
}

impl Targets {
    /// The places.
    fn places(&self) -> impl Iterator<Item = u32> {
        let (one, several) = match self {
            Targets::Nowhere => (Some(0), None),
            Targets::One(place) => (Some(*place), None),
            Targets::Several(places) => (None, Some(places.iter().map(|(place, _)| *place))),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// True if all requests go to the group at `place`.
    fn is_only(&self, place: u32) -> bool {
        matches!(self, Targets::One(only) if *only == place)
    }

    /// Draws one of the places, by weight. `below` draws a number below another one.
    pub fn draw_place(&self, below: impl FnOnce(u32) -> u32) -> u32 {
        match self {
            Targets::Nowhere => 0,
            Targets::One(place) => *place,
            Targets::Several(places) => {
                let all = places.last().map_or(1, |(_, sum)| *sum);
                let drawn = below(all);
                let at = places.partition_point(|(_, sum)| *sum <= drawn);
                places.get(at).map_or(0, |(place, _)| *place)
            }
        }
    }
}

impl Route {
    /// Answers of the balancer's own and changes to responses for requests that go to the group at `place`, if the
    /// route says something of them: otherwise those of the group count.
    #[inline]
    pub fn policy_at(&self, place: u32) -> Option<&ResponsePolicy> {
        let mut policies = self.policies.iter();
        let found = policies.find(|(of, _)| *of == place);
        // Another group is one that is asked, or gets copies.
        let (_, policy) = found.or_else(|| self.policies.first())?;
        Some(policy)
    }

    /// Returns the actions for requests that go to the group at `place`.
    #[inline]
    pub fn actions_at(&self, place: u32) -> &TargetActions {
        if self.target_actions.is_empty() {
            return &self.actions;
        }
        let mut own = self.target_actions.iter();
        let found = own.find(|(of, _)| *of == place);
        found.map_or(&self.actions, |(_, actions)| actions)
    }

    /// Returns the actions for the requests of no group in particular.
    pub fn common_actions(&self) -> &TargetActions {
        &self.actions
    }

    fn of_rest(
        rule: &Rule,
        places: &HashMap<&str, u32>,
        files: &Files,
        request_trailers: &Arc<RequestTrailers>,
    ) -> Self {
        let targets = match rule.group.is_empty() {
            true => Targets::Nowhere,
            false => Targets::One(0),
        };
        let mirrors = rule.http.mirror.as_ref();
        let mirrors = mirrors.map_or(&[][..], |mirrors| &mirrors.0);
        Route {
            auth: of_auth(rule.auth.as_ref(), places, files),
            label: None,
            hedge: rule.http.hedge.as_ref().and_then(Hedge::new),
            mirrors: list_mirrors(mirrors, &[], places, |place| targets.is_only(place)),
            targets,
            models: Models::new(
                Some(&rule.http.models),
                Some(&rule.http.model_aliases),
                places,
            ),
            fixed_response: None,
            timeouts: rule.timeouts.clone(),
            priority: None,
            retries: rule.http.retries,
            retry_statuses: statuses(&rule.http.retry_statuses),
            retry_methods: methods(&rule.http.retry_methods),
            retry_max_body: rule.http.retry_max_body,
            retry_budget: rule.http.retry_budget,
            retry_same_member: rule.http.retry_same_member,
            retry_backoff: rule.http.retry_backoff,
            abort_on_close: rule.http.abort_on_close,
            max_body: rule.http.max_body.map(|most| most.0),
            actions: TargetActions::without_changes(request_trailers),
            target_actions: Box::default(),
            policies: Box::default(),
        }
    }

    fn new(
        rule: &Rule,
        route: &config::Route,
        places: &HashMap<&str, u32>,
        files: &Files,
        request_trailers: &Arc<RequestTrailers>,
    ) -> Self {
        let rest = Route::of_rest(rule, places, files, request_trailers);
        let place = |name: &str| places.get(name).copied().unwrap_or_default();
        let mut sum = 0;
        let shares = route.groups.0.iter().filter(|share| share.weight > 0);
        let several: Box<[_]> = shares
            .map(|share| {
                sum = u32::saturating_add(sum, share.weight);
                (place(&share.name), sum)
            })
            .collect();
        let targets = match (route.group.as_str(), several.is_empty()) {
            ("", true) => rest.targets,
            ("", false) => Targets::Several(several),
            (name, _) => Targets::One(place(name)),
        };
        let redirect = route
            .location
            .clone()
            .map(|location| RouteResponse::Redirect {
                status: route.redirect_status,
                location,
            });
        let answer = route.answer.as_ref().map(|answer| {
            let file = answer.file.as_ref();
            let content = file.and_then(|file| files.answers.get(&file.path)).cloned();
            RouteResponse::Answer {
                status: answer.status,
                content_type: answer.content_type.as_str().into(),
                body: content.unwrap_or_else(|| answer.body.as_bytes().into()),
            }
        });
        let trailers = |changes: &FieldChanges| Arc::new(trailers(rule, changes));
        let actions = TargetActions::of_route(route, request_trailers, trailers);
        let shares = { route.groups.0.iter() }.filter(|share| share.has_actions());
        let target_actions = shares.map(|share| {
            let own = actions.with_share(&route.request_fields, share, trailers);
            (place(&share.name), own)
        });
        let target_actions = target_actions.collect();
        let mirrors = route.mirrors_in_rule(rule.http.mirror.as_ref());
        Route {
            auth: of_auth(route.auth.or_rule(rule.auth.as_ref()), places, files),
            label: Some(Arc::clone(&route.label)),
            hedge: match &route.hedge {
                Some(hedge) => Hedge::new(hedge),
                None => rest.hedge,
            },
            mirrors: list_mirrors(mirrors, &route.groups.0, places, |place| {
                targets.is_only(place)
            }),
            targets,
            models: Models::new(
                route.models_in_rule(&rule.http.models),
                route.aliases_in_rule(&rule.http.model_aliases),
                places,
            ),
            fixed_response: redirect.or(answer).map(Box::new),
            timeouts: route.timeouts_in_rule(&rule.timeouts),
            priority: route.priority,
            retries: route.retries.unwrap_or(rest.retries),
            retry_statuses: route
                .retry_statuses
                .as_deref()
                .map_or(rest.retry_statuses, statuses),
            retry_methods: route
                .retry_methods
                .as_deref()
                .map_or(rest.retry_methods, methods),
            retry_max_body: route.retry_max_body.unwrap_or(rest.retry_max_body),
            retry_budget: route.retry_budget.unwrap_or(rest.retry_budget),
            retry_same_member: route.retry_same_member.unwrap_or(rest.retry_same_member),
            retry_backoff: route.retry_backoff.unwrap_or(rest.retry_backoff),
            abort_on_close: route.abort_on_close.unwrap_or(rest.abort_on_close),
            max_body: route.max_body.map_or(rest.max_body, |most| Some(most.0)),
            actions,
            target_actions,
            policies: Box::default(),
        }
    }
}

fn statuses(all: &[Status]) -> Box<[u16]> {
    all.iter().map(|status| status.0).collect()
}

fn methods(names: &[String]) -> Box<[Box<str>]> {
    names.iter().map(|name| name.as_str().into()).collect()
}

/// The trailers of requests that pass where `changes` are made to heads: none that a head would not bring.
fn trailers(rule: &Rule, changes: &FieldChanges) -> RequestTrailers {
    let id = rule.http.request_id.as_ref();
    RequestTrailers::new(&rule.http.request_trailers, |name| {
        let reserved = &rule.http.reserved;
        reserved.iter().any(|family| is_in_family(name, family))
            || changes.takes_out(name)
            || id.is_some_and(|id| is_same_name(name, &id.field))
            || DECIDING.iter().any(|family| is_in_family(name, family))
            || ["traceparent", "tracestate"]
                .iter()
                .any(|own| is_same_name(name, own))
    })
}

fn of_auth(
    auth: Option<&config::Auth>,
    places: &HashMap<&str, u32>,
    files: &Files,
) -> Option<Box<Auth>> {
    auth.map(|auth| Box::new(Auth::new(auth, places, &files.users)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn places_are_those_of_the_same_elements(
            before in proptest::sample::subsequence((0..12).collect::<Vec<usize>>(), 0..=12).prop_shuffle(),
            now in proptest::sample::subsequence((0..12).collect::<Vec<usize>>(), 0..=12),
        ) {
            let all: Vec<Arc<usize>> = (0..12).map(Arc::new).collect();
            let of = |numbers: &[usize]| -> Vec<Arc<usize>> {
                numbers.iter().map(|number| Arc::clone(&all[*number])).collect()
            };
            let places = find_places(&of(&before), &of(&now));
            let expected: Vec<Option<usize>> =
                now.iter().map(|number| before.iter().position(|of| of == number)).collect();
            prop_assert_eq!(places, expected);
        }
    }

    #[test]
    fn groups_are_drawn_by_weight() {
        let several = Targets::Several([(3, 95), (1, 100)].into());
        let drawn = |number| {
            several.draw_place(|all| {
                assert_eq!(all, 100);
                number
            })
        };
        assert_eq!([0, 94, 95, 99].map(drawn), [3, 3, 1, 1]);
        assert_eq!(Targets::One(7).draw_place(|_| unreachable!()), 7);
    }
}
