//! Facts about a request that depend on the group, and are taken from the head.

use evenkeel_core::time::Instant;

use super::route::RequestRoute;
use super::sticky::StickyCookie;
use crate::chooser::HttpFacts;
use crate::cors::CrossOrigin;
use crate::message::Request;

/// Facts about a request that its group needs when the head is gone.
#[derive(Debug, Default)]
pub(super) struct TargetFacts {
    /// Hash of the part of the request that the group's strategy looks at.
    pub(super) key: Option<u64>,
    /// Binding that the request's cookie names, if cookies bind the clients of the group.
    pub(super) stuck: Option<Box<StickyCookie>>,
    /// Facts for a chooser, if the group has one.
    pub(super) chooser: Option<Box<HttpFacts>>,
    /// Permissions for the page that sends the request, if the page is one of another origin.
    pub(super) cross_origin: Option<Box<CrossOrigin>>,
}

impl TargetFacts {
    /// Takes the facts that the group of `routed` needs. `is_served` is false if the request gets an answer of the
    /// balancer's own.
    #[inline]
    pub(super) fn of_request(
        routed: &RequestRoute,
        request: &Request<'_>,
        is_served: bool,
        now: Instant,
    ) -> Self {
        let target = routed.target();
        let group = target.group.current.load();
        let key = group.wants_key().and_then(|key| request.hash_part(key));
        let chooser = target.chooser.as_ref().filter(|_| is_served);
        let chooser = chooser.map(|_| {
            let facts = HttpFacts::of_request(request, &group.settings().hash_key);
            Box::new(facts)
        });
        let cors = routed.response_policy().cors();
        let cookie = target.cookie.as_deref().filter(|_| is_served);
        TargetFacts {
            key,
            stuck: cookie
                .map(|cookie| Box::new(StickyCookie::new(cookie, &target.group, request, now))),
            chooser,
            cross_origin: cors.and_then(|policy| CrossOrigin::of_request(policy, request)),
        }
    }

    /// True if the group needs no facts.
    fn is_empty(&self) -> bool {
        self.key.is_none()
            && self.stuck.is_none()
            && self.chooser.is_none()
            && self.cross_origin.is_none()
    }
}

/// Facts for the groups that the name of a model may lead to, by their places in the rule.
#[derive(Debug, Default)]
pub(super) struct OtherTargets(Vec<(u32, TargetFacts)>);

impl OtherTargets {
    /// Takes the facts for the other groups that the request may go to; `None` if no group needs facts.
    #[cold]
    pub(super) fn of_request(
        routed: &RequestRoute,
        facts_of: impl Fn(&RequestRoute) -> TargetFacts,
    ) -> Option<Box<Self>> {
        let places = routed.other_targets();
        let facts = places.map(|place| (place, facts_of(&routed.with_target(place))));
        let facts: Vec<_> = facts.filter(|(_, facts)| !facts.is_empty()).collect();
        (!facts.is_empty()).then(|| Box::new(OtherTargets(facts)))
    }

    /// Puts facts back for the group at a place, from which the request goes elsewhere.
    pub(super) fn put(all: &mut Option<Box<Self>>, target: u32, facts: TargetFacts) {
        if !facts.is_empty() {
            let OtherTargets(list) = &mut **all.get_or_insert_default();
            list.push((target, facts));
        }
    }

    /// Takes out the facts for the group at a place.
    pub(super) fn take(&mut self, target: u32) -> TargetFacts {
        let found = self.0.iter().position(|(place, _)| *place == target);
        found.map_or_else(TargetFacts::default, |at| self.0.swap_remove(at).1)
    }
}
