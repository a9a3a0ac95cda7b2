//! Clients that a cookie of the balancer's binds to a member.
//!
//! The cookie alone says where a client is bound, not its connection: proxies in front, and HTTP/2,
//! carry many clients in one.

use std::cell::RefCell;
use std::sync::Arc;

use evenkeel_core::binding::Binding;
use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;
use evenkeel_manager::snapshot::{GroupHandle, Target};
use evenkeel_manager::sticky::{Cookie, Named};

use crate::bindings::Bindings;
use crate::message::Request;
use crate::metrics::RuleMetrics;
use crate::worker::Worker;

/// Most cookies of one name that are looked at.
const MAX_COOKIES: usize = 4;

/// The member that a cookie of the request names. Of several of that name, as of two paths, one that
/// names a member counts.
pub(super) fn find_named(cookie: &Cookie, request: &Request<'_>) -> Option<Named> {
    let cookies = request.find_cookies(cookie.name().as_bytes());
    cookies
        .take(MAX_COOKIES)
        .find_map(|value| cookie.find(value))
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
}

impl StickyCookie {
    pub(super) fn new(
        cookie: &Cookie,
        group: &Arc<GroupHandle>,
        request: &Request<'_>,
        now: Instant,
    ) -> Self {
        let named = find_named(cookie, request);
        let binding = named.and_then(|named| {
            let group = group.current.load();
            Binding::resume(&group, named.member, named.index, named.alert_share, now)
        });
        let mut bindings = Bindings::default();
        let member = binding.as_ref().map(Binding::member);
        bindings.set(group, binding);
        let has_one = || {
            request
                .find_cookies(cookie.name().as_bytes())
                .next()
                .is_some()
        };
        StickyCookie {
            bindings: RefCell::new(bindings),
            is_unknown: member.is_none() && has_one(),
            member,
        }
    }

    /// Returns the reason why the client has no member, though it has a cookie.
    pub(super) fn unbound_reason(&self) -> Option<&'static str> {
        self.is_unknown
            .then_some("its cookie names no member of the group")
    }

    /// Returns the value of `Set-Cookie` of a response of `member`, if the client is not bound to
    /// that member.
    pub(super) fn set_cookie(
        &self,
        target: &Target,
        member: MemberId,
        secure: bool,
        worker: &Worker,
    ) -> Option<String> {
        let cookie = target
            .cookie
            .as_ref()
            .filter(|_| self.member != Some(member))?;
        cookie.set(member, secure, worker.rng.borrow_mut().u16(..))
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
