//! Where requests go: the route that each is given once its head is read, and the group of that.

use std::ops::Deref;
use std::rc::Rc;

use bytes::Bytes;
use evenkeel_manager::routes::Route;
use evenkeel_manager::snapshot::{RuleSnapshot, Target};

use crate::message;
use crate::quota::Quotas;
use crate::service::LocalRule;

/// The rule of a request, and the route that it has there. What comes after the head asks this, so
/// that a reload in between changes nothing.
#[derive(Clone, Debug)]
pub(crate) struct Routed {
    rule: Rc<LocalRule>,
    /// Its place in the rule.
    route: u32,
    /// The place of its group there.
    target: u32,
}

impl Routed {
    /// Finds the route of a request.
    #[inline]
    pub(crate) fn of(rule: &Rc<LocalRule>, _request: &message::Request<'_>) -> Self {
        Routed {
            target: rule.routes.at(0).target,
            route: 0,
            rule: Rc::clone(rule),
        }
    }

    /// What each client may have, if that is limited.
    #[inline]
    pub(crate) fn quotas(&self) -> Option<&Quotas> {
        self.rule.quotas.as_deref()
    }

    /// What clients get while the rule is in maintenance.
    pub(crate) fn page(&self) -> Option<&Bytes> {
        self.rule.page.as_ref()
    }

    /// What is done with it.
    #[inline]
    pub(crate) fn route(&self) -> &Route {
        self.rule.routes.at(self.route as usize)
    }

    /// The group that serves it.
    #[inline]
    pub(crate) fn target(&self) -> &Target {
        self.rule.target(self.target as usize)
    }
}

impl Deref for Routed {
    type Target = RuleSnapshot;

    fn deref(&self) -> &RuleSnapshot {
        &self.rule
    }
}
