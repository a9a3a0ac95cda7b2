//! Readiness: an answer to whether clients should be sent here.

use std::sync::Arc;

use evenkeel_core::group::Request;

use super::{Manager, Readiness, ReadyRules};
use crate::snapshot::{GroupHandle, RuleSnapshot};

/// Time for which an answer of [`Manager::readiness`] counts, in milliseconds.
const READY_AGE: u64 = 100;

impl Manager {
    /// Returns whether clients should be sent here: clients of `rule`, or of any rule. Everybody may ask, as often as they like:
    /// the answer takes no lock of the manager, and is found at most ten times a second, or
    /// when the configuration has changed.
    ///
    /// One rule whose members are all down is no reason to send the clients of all others elsewhere. So without `rule`
    /// the answer is [`Readiness::NoMember`] only if no enabled rule can serve.
    pub fn readiness(&self, rule: Option<&str>) -> Readiness {
        let found = self.ready_rules();
        if found.generation == 0 {
            return Readiness::NoConfig;
        }
        let is_ready = match rule {
            None => !found.some_enabled || found.rules.values().any(|is_ready| *is_ready),
            Some(name) => match found.rules.get(name) {
                Some(is_ready) => *is_ready,
                None => return Readiness::NoRule,
            },
        };
        match is_ready {
            true => Readiness::Ready,
            false => Readiness::NoMember,
        }
    }

    fn ready_rules(&self) -> Arc<ReadyRules> {
        let now = self.clock.now().as_nanos() / 1_000_000 + 1;
        let known = self.ready.load_full();
        if let Some(known) = known.filter(|known| now.saturating_sub(known.at) < READY_AGE) {
            return known;
        }
        let found = Arc::new(self.find_readiness(now));
        // Unless the configuration has changed meanwhile.
        if found.generation == self.snapshots.borrow().generation {
            self.ready.store(Some(Arc::clone(&found)));
        }
        found
    }

    fn find_readiness(&self, at: u64) -> ReadyRules {
        let snapshot = Arc::clone(&self.snapshots.borrow());
        let request = Request::at_time(self.clock.now());
        let serves = |group: &Arc<GroupHandle>| {
            let group = group.current.load();
            let view = group.view_for(&request).or_backups();
            (0..group.members().len())
                .any(|index| view.is_eligible_unless_full(index) && view.member_weight(index) > 0.0)
        };
        // One without a group answers by itself.
        let is_ready = |rule: &Arc<RuleSnapshot>| {
            let targets = rule.targets().filter(|target| !target.serves_nobody);
            let mut targets = targets.peekable();
            targets.peek().is_none() || targets.any(|target| serves(&target.group))
        };
        let rules = snapshot.rules.iter();
        let rules = rules.map(|rule| {
            let is_ready = rule.rule.enabled && is_ready(rule);
            (rule.rule.name.clone(), is_ready)
        });
        ReadyRules {
            at,
            generation: snapshot.generation,
            rules: rules.collect(),
            some_enabled: snapshot.rules.iter().any(|rule| rule.rule.enabled),
        }
    }
}
