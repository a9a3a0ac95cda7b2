//! Copies of a request: the mirrors that are drawn for it.

use std::sync::Arc;

use evenkeel_manager::mirrors::Mirror;

use super::copy::CopyPlan;
use super::route::RequestRoute;
use crate::http1::RequestHead;
use crate::session::Session;

/// Mirror that gets a copy of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyReceiver {
    /// Place of the mirror in the route.
    mirror: usize,
    /// Hash of the part of the request that the strategy of the mirror's group looks at.
    pub(super) key: Option<u64>,
}

/// Mirrors that get a copy of a request, and how the request is copied.
pub(super) struct PlannedCopies {
    pub(super) plan: CopyPlan,
    pub(super) receivers: Box<[CopyReceiver]>,
}

impl RequestRoute {
    /// Returns the mirrors of the request's group, each with its place in the route.
    pub(super) fn mirrors(&self) -> impl Iterator<Item = (usize, &Mirror)> {
        let target = self.target_place();
        let all = self.route().mirrors.iter().enumerate();
        all.filter(move |(_, mirror)| mirror.is_for(target))
    }

    /// True if requests like this one may be copied.
    pub(super) fn is_copied(&self) -> bool {
        !self.route().mirrors.is_empty() && self.mirrors().next().is_some()
    }

    /// Returns the mirror of a receiver, and the same route with the mirror's group.
    pub(super) fn mirror_of(&self, receiver: &CopyReceiver) -> Option<(&Mirror, Self)> {
        let mirror = self.route().mirrors.get(receiver.mirror)?;
        Some((mirror, self.with_target(mirror.target)))
    }

    /// Returns what to copy of a request, if mirrors are drawn for it.
    #[inline]
    pub(super) fn plan_copies(
        &self,
        session: &Session,
        head: &RequestHead<'_>,
    ) -> Option<PlannedCopies> {
        match self.route().mirrors.is_empty() {
            true => None,
            false => self.draw_copies(session, head),
        }
    }

    #[cold]
    fn draw_copies(&self, session: &Session, head: &RequestHead<'_>) -> Option<PlannedCopies> {
        let worker = &session.worker;
        let draw = |mirror: &Mirror| worker.rng.borrow_mut().u32(..Mirror::ALL) < mirror.parts;
        let drawn: Vec<_> = self.mirrors().filter(|(_, mirror)| draw(mirror)).collect();
        // The largest body that one of them takes.
        let most = drawn.iter().map(|(_, mirror)| mirror.max_body).max()?;
        if head.framing_facts.upgrade || head.expect_continue {
            let unsuited = &session.service.metrics.mirror_unsuited;
            unsuited.add(drawn.len() as u64);
            return None;
        }
        let receiver = |(place, mirror): &(usize, &Mirror)| {
            let group = self.target_at(mirror.target as usize).group.current.load();
            let key = group.wants_key();
            CopyReceiver {
                mirror: *place,
                key: key.and_then(|key| head.request.hash_part(key)),
            }
        };
        Some(PlannedCopies {
            receivers: drawn.iter().map(receiver).collect(),
            plan: CopyPlan {
                most,
                memory: Arc::clone(&worker.memory),
            },
        })
    }
}
