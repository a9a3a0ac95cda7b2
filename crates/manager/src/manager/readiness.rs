//! Whether clients should be sent here.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use evenkeel_core::group::Request;

use super::{Manager, Readiness};
use crate::snapshot::{GroupHandle, RuleSnapshot};

/// How long an answer of [`Manager::readiness`] counts.
const READY_AGE: u64 = 100;

impl Manager {
    /// Whether clients should be sent here. Everybody may ask, as often as they like: the
    /// answer takes no lock of the manager, and is found at most ten times a second, or
    /// when the configuration has changed.
    pub fn readiness(&self) -> Readiness {
        const ANSWERS: [Readiness; 3] =
            [Readiness::Ready, Readiness::NoConfig, Readiness::NoMember];
        let now = self.clock.now().as_nanos() / 1_000_000 + 1;
        let known = self.ready.load(Ordering::Acquire);
        if known != 0
            && now.saturating_sub(known / 4) < READY_AGE
            && let Some(answer) = ANSWERS.get((known % 4) as usize)
        {
            return *answer;
        }
        let answer = self.find_readiness();
        // Unless the configuration has changed meanwhile.
        let found = now * 4 + answer as u64;
        let _ = self
            .ready
            .compare_exchange(known, found, Ordering::AcqRel, Ordering::Relaxed);
        answer
    }

    fn find_readiness(&self) -> Readiness {
        let snapshot = Arc::clone(&self.snapshots.borrow());
        if snapshot.generation == 0 {
            return Readiness::NoConfig;
        }
        let request = Request::at(self.clock.now());
        let serves = |group: &Arc<GroupHandle>| {
            let group = group.current.load();
            let view = group.view(&request).or_backups();
            (0..group.members().len())
                .any(|index| view.is_eligible_unless_full(index) && view.weight(index) > 0.0)
        };
        let mut enabled = snapshot.rules.iter().filter(|rule| rule.rule.enabled);
        // One without a group answers by itself.
        let is_ready = |rule: &Arc<RuleSnapshot>| {
            let targets = rule.targets().filter(|target| !target.serves_nobody);
            let mut targets = targets.peekable();
            targets.peek().is_none() || targets.any(|target| serves(&target.group))
        };
        match enabled.all(is_ready) {
            true => Readiness::Ready,
            false => Readiness::NoMember,
        }
    }
}
