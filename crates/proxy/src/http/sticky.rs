//! Clients that a cookie of the balancer's, or a header field, binds to a member.
//!
//! The cookie alone says where a client is bound, not its connection: proxies in front, and HTTP/2,
//! carry many clients in one.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::SystemTime;

use evenkeel_core::binding::Binding;
use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;
use evenkeel_manager::snapshot::{GroupHandle, Target};
use evenkeel_manager::sticky::{BindingTimes, Cookie, Named};

use crate::bindings::Bindings;
use crate::message::Request;
use crate::metrics::RuleMetrics;
use crate::worker::Worker;

/// Field of responses that sets a cookie.
const SET_COOKIE: &str = "Set-Cookie";

/// Most cookies of one name that are looked at.
const MAX_COOKIES: usize = 4;

/// Returns the values of the cookies, or of the fields in their place.
fn list_values<'a>(cookie: &Cookie, request: &Request<'a>) -> impl Iterator<Item = &'a [u8]> {
    let (field, cookies) = match cookie.is_header() {
        true => (Some(request.values(cookie.name())), None),
        false => (None, Some(request.find_cookies(cookie.name().as_bytes()))),
    };
    let fields = field.into_iter().flatten();
    fields.chain(cookies.into_iter().flatten())
}

/// Returns the seconds since 1970, if the cookie has times.
fn find_seconds(cookie: &Cookie) -> u32 {
    if !cookie.has_times() {
        return 0;
    }
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seconds = since.unwrap_or_default().as_secs();
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// The member that a cookie of the request names. Of several of that name, as of two paths, one that
/// names a member counts.
pub(super) fn find_named(cookie: &Cookie, request: &Request<'_>) -> Option<Named> {
    find_named_at(cookie, request, find_seconds(cookie))
}

fn find_named_at(cookie: &Cookie, request: &Request<'_>, seconds: u32) -> Option<Named> {
    let mut values = list_values(cookie, request).take(MAX_COOKIES);
    values.find_map(|value| cookie.find(value, seconds))
}

/// Content of the cookie of a request that binds the client.
#[derive(Debug)]
pub(super) struct StickyCookie {
    /// The client's tie to the member that its cookie names, for this request.
    pub(super) bindings: RefCell<Bindings>,
    /// Member that the cookie names.
    member: Option<MemberId>,
    /// True if the request has a cookie that names no member.
    is_unknown: bool,
    /// Random number in the cookie, and times of the binding, if the cookie names a member and its times are to be renewed.
    renewed: Option<(u16, BindingTimes)>,
    /// Time of the request, in seconds since 1970, if the cookie has times.
    seconds: u32,
}

impl StickyCookie {
    pub(super) fn new(
        cookie: &Cookie,
        group: &Arc<GroupHandle>,
        request: &Request<'_>,
        now: Instant,
    ) -> Self {
        let seconds = find_seconds(cookie);
        let named = find_named_at(cookie, request, seconds);
        let binding = named.and_then(|named| {
            let group = group.current.load();
            Binding::resume(&group, named.member, named.index, named.alert_share, now)
        });
        let mut bindings = Bindings::default();
        let member = binding.as_ref().map(Binding::member);
        bindings.set(group, binding);
        let has_one = || list_values(cookie, request).next().is_some();
        let stale = named.filter(|named| named.is_stale && member.is_some());
        let renewed = stale.map(|named| {
            let times = BindingTimes {
                used: seconds,
                ..named.times
            };
            (named.turn, times)
        });
        StickyCookie {
            renewed,
            seconds,
            bindings: RefCell::new(bindings),
            is_unknown: member.is_none() && has_one(),
            member,
        }
    }

    /// Returns the reason why the client has no member, though it has a cookie.
    pub(super) fn unbound_reason(&self) -> Option<&'static str> {
        self.is_unknown
            .then_some("its cookie names no member of the group, or is too old")
    }

    /// Returns the field of a response of `member` that binds the client, if the client is not bound to that member, or
    /// is to be told new times.
    pub(super) fn bind_client<'a>(
        &self,
        target: &'a Target,
        member: MemberId,
        secure: bool,
        worker: &Worker,
    ) -> Option<(&'a str, String)> {
        let cookie = target.cookie.as_ref()?;
        let (turn, times) = match self.member == Some(member) {
            true => self.renewed?,
            false => {
                let turn = worker.rng.borrow_mut().u16(..);
                (turn, BindingTimes::new(self.seconds))
            }
        };
        let name = match cookie.is_header() {
            true => cookie.name(),
            false => SET_COOKIE,
        };
        Some((name, cookie.set(member, secure, turn, times)?))
    }

    /// Counts a response of `member`.
    pub(super) fn count(&self, member: MemberId, metrics: &RuleMetrics) {
        metrics.sticky_unknown.add(u64::from(self.is_unknown));
        match self.member {
            Some(bound) if bound == member => metrics.sticky_kept.add(1),
            Some(_) => metrics.sticky_moved.add(1),
            None => metrics.sticky_bound.add(1),
        }
    }
}
