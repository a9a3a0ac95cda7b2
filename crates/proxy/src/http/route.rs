//! Routes of requests: the route that each request gets once its head is read, the group of the
//! route, and what the route changes.

use std::net::IpAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_control::queue::Class;
use evenkeel_core::group::{Group, InferenceSettings};
use evenkeel_manager::auth::Auth;
use evenkeel_manager::config::MemberProtocol;
use evenkeel_manager::config::routing::path::{self, Ambiguous};
use evenkeel_manager::config::routing::template::Template;
use evenkeel_manager::config::routing::{RequestView, host_of};
use evenkeel_manager::responses::ResponsePolicy;
use evenkeel_manager::routes::{Route, RouteResponse, Targets};
use evenkeel_manager::snapshot::{RuleSnapshot, Target};
use evenkeel_tls::handshake::HandshakeParameters;

use super::flow::Bounds;
use super::sticky;
use crate::access::End;
use crate::bindings::Bindings;
use crate::cors;
use crate::http1::Hop;
use crate::http1::chunked::Trailers;
use crate::http1::forward::put_template;
use crate::message::{self, BalancerCookies, Body};
use crate::quota::{Quotas, forwarded_for};
use crate::service::{LocalRule, class_of_client};
use crate::session::Session;

/// The rule of a request, and the route that it has there. What comes after the head asks this, so
/// that a reload in between changes nothing.
#[derive(Clone, Debug)]
pub(crate) struct RequestRoute {
    rule: Rc<LocalRule>,
    /// Place of the route in the rule; [`REST`] if no route matches.
    route: u32,
    /// Place of the group in the rule.
    target: u32,
}

/// Place of the route for requests that no configured route matches.
const REST: u32 = u32::MAX;

impl RequestRoute {
    /// Finds the route of a request. The request gets an answer of the balancer's own if there is
    /// one. `agreed` has the parameters of the client's TLS.
    #[inline]
    pub(crate) fn find_route(
        session: &Session,
        rule: &Rc<LocalRule>,
        bindings: &Bindings,
        request: &message::Request<'_>,
        hop: &Hop,
        agreed: Option<&HandshakeParameters>,
    ) -> (Self, Option<Box<BalancerAnswer>>) {
        let mut routed = RequestRoute {
            rule: Rc::clone(rule),
            route: REST,
            target: 0,
        };
        let is_misdirected = rule.separate_hosts.as_ref().is_some_and(|separate| {
            let asked_name = agreed.and_then(|agreed| agreed.name.as_deref());
            separate.is_misdirected(asked_name, request.authority)
        });
        let mut given = is_misdirected.then(BalancerAnswer::misdirected);
        let preflight = cors::asked_method(request);
        if given.is_none()
            && let Some(index) = rule.routes.index()
        {
            let refuses = index.by_path() && !rule.rule.http.ambiguous_paths;
            given = match request.path() {
                // `OPTIONS *` asks about the whole server: there is no path to check.
                "*" => None,
                path if refuses => path::check_path(path)
                    .err()
                    .map(BalancerAnswer::for_ambiguous),
                _ => None,
            };
            if given.is_none() {
                let client = match index.by_client() {
                    true => client_of(session, rule, request),
                    false => None,
                };
                let bound = |target: &Target| match &target.cookie {
                    Some(cookie) => sticky::find_named(cookie, request).is_some(),
                    None => bindings.has_binding(&target.group),
                };
                let mut choose = |found: Option<usize>| {
                    routed.route = found.and_then(|at| at.try_into().ok()).unwrap_or(REST);
                    routed.target = draw_target(session, rule, bound, &routed.route().targets);
                    routed.response_policy().cors().is_some()
                };
                // A preflight has the route of the request that it asks about.
                let asked = preflight.map(|method| message::Request {
                    method,
                    ..request.clone()
                });
                if !asked.is_some_and(|asked| choose(index.find_route(&asked, client))) {
                    choose(index.find_route(request, client));
                }
            }
        }
        let route = routed.route();
        if given.is_none() && !matches!(route.targets, Targets::Nowhere) {
            let cors = routed
                .response_policy()
                .cors()
                .filter(|_| preflight.is_some());
            given = cors.map(|_| BalancerAnswer::for_preflight());
        }
        if given.is_none() {
            given = match (&route.fixed_response, &route.targets, request.body) {
                (Some(instead), ..) => {
                    Some(BalancerAnswer::of_instead(instead, route, request, hop))
                }
                (None, Targets::Nowhere, _) => Some(BalancerAnswer::without_target()),
                (None, _, Body::Length(length)) => {
                    let most = route.max_body;
                    let is_larger = most.is_some_and(|most| length > most);
                    is_larger.then(BalancerAnswer::too_large)
                }
                _ => None,
            };
        }
        (routed, given.map(Box::new))
    }

    /// Returns the limits of each client, if there are any.
    #[inline]
    pub(crate) fn client_quotas(&self) -> Option<&Arc<Quotas>> {
        self.rule.quotas.as_ref()
    }

    /// The place of the route in the rule; none is there if it is that of the rest.
    #[inline]
    pub(crate) fn route_index(&self) -> usize {
        self.route as usize
    }

    /// Answers of the balancer's own and changes to responses.
    #[inline]
    pub(crate) fn response_policy(&self) -> &ResponsePolicy {
        let of_route = self.route().policy_at(self.target);
        of_route.unwrap_or(&self.target().policy)
    }

    /// Returns the route, which says what is done with the request.
    #[inline]
    pub(crate) fn route(&self) -> &Route {
        self.rule.routes.route_at(self.route as usize)
    }

    /// The group that serves it.
    #[inline]
    pub(crate) fn target(&self) -> &Target {
        self.rule.target_at(self.target as usize)
    }

    /// Returns the urgency of `request` when it waits for a member.
    #[inline]
    pub(super) fn queue_class(
        &self,
        request: &message::Request<'_>,
        client: Option<IpAddr>,
    ) -> Class {
        let told = || {
            let field = self.rule.rule.http.priority_header.as_deref()?;
            match request.only_value(field)? {
                [digit @ b'0'..=b'7'] => Some(digit - b'0'),
                _ => None,
            }
        };
        let own = self.route().priority.map(|priority| priority as Class);
        own.or_else(told)
            .unwrap_or_else(|| class_of_client(&self.rule.rule, client))
    }

    /// Returns the same route with the group at `target`, which is asked whether requests may pass,
    /// if there is one.
    pub(super) fn to_ask(&self, target: u32) -> Option<Self> {
        let is_there = target as usize <= self.rule.other_targets.len();
        is_there.then(|| RequestRoute {
            target,
            ..self.clone()
        })
    }

    /// The cookies that members do not get.
    #[inline]
    pub(super) fn own_cookies(&self) -> BalancerCookies<'_> {
        BalancerCookies {
            sticky: Some(&self.cookies).filter(|cookies| !cookies.is_empty()),
            sessions: !self.rule.rule.http.console_members,
        }
    }

    /// The route, and the group that served it, as the access log names them.
    pub(crate) fn log_names<'a>(&'a self, group: &'a Group) -> (Option<&'a str>, Option<&'a str>) {
        if self.rule.routes.index().is_none() && self.target == 0 {
            return (None, Some(group.name()));
        }
        let route = self.route();
        let asked = route.auth.as_deref().and_then(Auth::asked_group);
        let is_served = route.fixed_response.is_none()
            && !matches!(route.targets, Targets::Nowhere)
            || asked.is_some_and(|asked| asked.target == self.target);
        (route.label.as_deref(), is_served.then(|| &**group.name()))
    }

    /// True if streams of HTTP/2 are passed on as such: members speak HTTP/2, and no copy of the request goes elsewhere.
    pub(super) fn passes_frames(&self) -> bool {
        self.speaks_http2() && !self.is_copied() && self.max_prompt().is_none()
    }

    /// True if all members that the request, or a copy of it, may go to speak HTTP/2.
    #[inline]
    pub(super) fn speaks_http2(&self) -> bool {
        let route = self.route();
        self.target().member_protocol == MemberProtocol::Http2
            && (route.models.is_none() && route.mirrors.is_empty() || self.others_speak_http2())
    }

    fn others_speak_http2(&self) -> bool {
        let copies = self.mirrors().map(|(_, mirror)| mirror.target);
        let mut others = self.other_targets().chain(copies);
        others.all(|place| {
            let target = self.rule.target_at(place as usize);
            target.member_protocol == MemberProtocol::Http2
        })
    }

    /// True if the group's strategy reads the bodies of requests: its members serve language models.
    pub(super) fn is_for_engines(&self) -> bool {
        self.target().max_prompt.is_some()
    }

    /// True if the name of a model in the body decides on the group.
    #[inline]
    pub(super) fn chooses_by_model(&self) -> bool {
        self.route().models.is_some()
    }

    /// Places of the groups that requests go to by the name of a model, but for the group that the request has now.
    pub(super) fn other_targets(&self) -> impl Iterator<Item = u32> {
        let models = self.route().models.iter();
        let places = models.flat_map(|models| models.places().iter().copied());
        places.filter(|place| *place != self.target)
    }

    /// Place of the request's group in the rule.
    pub(super) fn target_place(&self) -> u32 {
        self.target
    }

    /// True if the request goes to the group at `target`.
    pub(super) fn is_to_target(&self, target: u32) -> bool {
        self.target == target
    }

    /// Returns the same route with the group at `target`.
    pub(super) fn with_target(&self, target: u32) -> Self {
        RequestRoute {
            target,
            ..self.clone()
        }
    }

    /// The groups that the request may go to: the group that it has now, and the groups of models.
    fn possible_targets(&self) -> impl Iterator<Item = &Target> {
        let others = self.other_targets();
        let others = others.map(|place| self.rule.target_at(place as usize));
        std::iter::once(self.target()).chain(others)
    }

    /// True if one of the groups that the request may go to is for engines.
    #[inline]
    pub(super) fn may_be_for_engines(&self) -> bool {
        self.is_for_engines()
            || self.chooses_by_model() && self.possible_targets().any(|of| of.max_prompt.is_some())
    }

    /// Most bytes of the body that are read before a member is chosen; `None` if nobody reads them.
    #[inline]
    pub(super) fn max_prompt(&self) -> Option<usize> {
        if !self.chooses_by_model() {
            return self.target().max_prompt;
        }
        let of_groups = self.possible_targets().filter_map(|of| of.max_prompt);
        let most = of_groups.max();
        Some(most.unwrap_or_else(|| InferenceSettings::default().max_prompt))
    }

    /// Format of the reports that members are asked for.
    #[inline]
    pub(super) fn report_format(&self) -> Option<&str> {
        fn format_of(target: &Target) -> Option<&str> {
            target.sources.orca.as_ref()?.request_format.as_deref()
        }
        match self.chooses_by_model() {
            false => format_of(self.target()),
            true => self.possible_targets().find_map(format_of),
        }
    }

    /// Bounds of the bodies of requests.
    #[inline]
    pub(super) fn body_bounds(&self, body: Body) -> Bounds {
        let route = self.route();
        let trailers = &route.actions_at(self.target).request_trailers;
        Bounds {
            most: route.max_body.unwrap_or(u64::MAX),
            trailers: match body {
                Body::Chunked => Trailers::Listed(Arc::clone(trailers)),
                _ => Trailers::All,
            },
        }
    }
}

/// The address of the client of a request: that of its connection, or the one that a trusted proxy in front has
/// added. `None` if there is none, or if the proxy does not say one.
fn client_of(
    session: &Session,
    rule: &LocalRule,
    request: &message::Request<'_>,
) -> Option<IpAddr> {
    let is_told =
        rule.rule.http.trust_forwarded && request.values("x-forwarded-for").next().is_some();
    match is_told {
        true => forwarded_for(request),
        false => session.peer.ip(),
    }
}

/// A prefix to which `rest` is added, without a second slash between them.
pub(super) fn join_prefix<'a>(prefix: &'a str, rest: &str) -> &'a str {
    match prefix.strip_suffix('/') {
        Some(shorter) if rest.starts_with('/') => shorter,
        _ => prefix,
    }
}

/// The place of the group: that of which the client is bound to a member, or by weight.
fn draw_target(
    session: &Session,
    rule: &LocalRule,
    is_bound: impl Fn(&Target) -> bool,
    targets: &Targets,
) -> u32 {
    if let Targets::Several(places) = targets {
        let mut places = places.iter().map(|(place, _)| *place);
        let bound = |place: &u32| is_bound(rule.target_at(*place as usize));
        if let Some(place) = places.find(bound) {
            return place;
        }
    }
    targets.draw_place(|all| session.worker.rng.borrow_mut().u32(..all))
}

impl Deref for RequestRoute {
    type Target = RuleSnapshot;

    fn deref(&self) -> &RuleSnapshot {
        &self.rule
    }
}

impl RequestView for message::Request<'_> {
    fn method(&self) -> &str {
        self.method
    }

    fn host(&self) -> Option<&str> {
        self.authority
    }

    fn path(&self) -> &str {
        self.path()
    }

    fn query(&self) -> &str {
        self.query_part().get(1..).unwrap_or_default()
    }

    fn fields<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        message::values(self.fields, name)
    }
}

/// Answer of the balancer to a request that goes to no member, found with the route.
///
/// The status and the body of a route's `answer` are not copied: they stay in
/// [`RouteResponse::Answer`], and `give_answer` reads them there.
#[derive(Debug)]
pub(crate) struct BalancerAnswer {
    /// Status of the answer; 0 for the `answer` of the route.
    pub(super) status: u16,
    pub(super) text: &'static str,
    pub(super) location: Option<String>,
    pub(super) end: End,
}

/// Status of the answers to preflights.
pub(super) const PREFLIGHT: u16 = 204;

/// Status of the answers to requests that must come over another connection.
pub(super) const MISDIRECTED: u16 = 421;

impl BalancerAnswer {
    fn with_text(status: u16, text: &'static str, end: End) -> Self {
        BalancerAnswer {
            status,
            text,
            location: None,
            end,
        }
    }

    /// The answer to a preflight: what its fields say.
    fn for_preflight() -> Self {
        BalancerAnswer::with_text(PREFLIGHT, "", End::Complete)
    }

    /// True if no login is asked for before the answer: browsers send preflights without credentials, and the client of a
    /// misdirected request logs in over the connection that it makes for the host.
    pub(super) fn needs_no_login(&self) -> bool {
        matches!(self.status, PREFLIGHT | MISDIRECTED)
    }

    fn without_target() -> Self {
        BalancerAnswer::with_text(404, "There is nothing here.", End::Refused)
    }

    /// The answer to a request that must come over a connection for its host (RFC 9110, section 15.5.20).
    fn misdirected() -> Self {
        let text = "This connection is for another host.";
        BalancerAnswer::with_text(MISDIRECTED, text, End::Refused)
    }

    fn too_large() -> Self {
        BalancerAnswer::with_text(413, TOO_LARGE, End::Client)
    }

    fn for_ambiguous(ambiguous: Ambiguous) -> Self {
        let text = match ambiguous {
            Ambiguous::NotAbsolute => "The path must begin with a slash.",
            Ambiguous::Dots => "The path has . or .. as a segment.",
            Ambiguous::EmptySegment => "The path has two slashes in a row.",
            Ambiguous::Backslash => "The path has a backslash.",
            Ambiguous::Encoded => {
                "The path has an encoded slash, backslash, semicolon or control character."
            }
            Ambiguous::Percent => "The path has % without two hexadecimal digits.",
        };
        BalancerAnswer::with_text(400, text, End::Client)
    }

    /// Makes the answer of a route with `redirect` or `answer`. For an `answer` the status is 0.
    fn of_instead(
        instead: &RouteResponse,
        route: &Route,
        request: &message::Request<'_>,
        hop: &Hop,
    ) -> Self {
        let RouteResponse::Redirect { status, location } = instead else {
            return BalancerAnswer::with_text(0, "", End::Complete);
        };
        let rest = |(segments, _): &(usize, _)| path::rest_after(request.path(), *segments);
        let path = route.common_actions().rewrite.as_ref().map(|rewrite| {
            let rest = rest(rewrite);
            [join_prefix(&rewrite.1, rest), rest].concat()
        });
        let path = path.as_deref().unwrap_or(request.path());
        let Some(location) = write_location(location, request, path, hop) else {
            return BalancerAnswer::with_text(
                400,
                "This request cannot be redirected.",
                End::Client,
            );
        };
        BalancerAnswer {
            location: Some(location),
            ..BalancerAnswer::with_text(*status, "See the field Location.", End::Complete)
        }
    }
}

/// Returns the address of a redirect of a request, whose path is `path`; `None` if the request cannot be redirected.
pub(super) fn write_location(
    location: &Template,
    request: &message::Request<'_>,
    path: &str,
    hop: &Hop,
) -> Option<String> {
    let mut to = Vec::new();
    put_template(location, request, path, hop, &mut to);
    // What begins so is another host to browsers.
    let is_other_host = matches!(to.get(..2), Some([b'/', b'/' | b'\\']));
    let has_host = { request.authority }.is_some_and(|host| !host_of(host).is_empty());
    String::from_utf8(to)
        .ok()
        .filter(|_| has_host && !is_other_host)
}

/// Answer to a client whose request is too large.
pub(super) const TOO_LARGE: &str = "The request's body is larger than allowed.";
