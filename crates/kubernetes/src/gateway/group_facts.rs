//! Facts about groups that the rest of a rule depends on.

use super::backends::{Groups, Members};
use super::group_policies::GroupTuning;
use super::policy_keys::PolicyLine;

impl Groups {
    /// Returns the settings of a group by policies.
    pub(crate) fn tuning_of(&self, name: &str) -> Option<&GroupTuning> {
        self.find(name)?.tuning.as_deref()
    }

    /// True if the members of a group are the engines of a pool.
    pub(crate) fn is_pool(&self, name: &str) -> bool {
        let group = self.find(name);
        group.is_some_and(|group| matches!(group.members, Members::Pool(_)))
    }

    /// True if the members of a group are engines: those of a pool, or of a group whose strategy a policy sets so.
    pub(crate) fn has_engines(&self, name: &str) -> bool {
        let tuning = self.tuning_of(name);
        let mut lines = tuning.into_iter().flat_map(|of| &of.group);
        let is_of_engines =
            |line: &PolicyLine| line.key == "strategy" && line.value.contains("\"inference\"");
        self.is_pool(name) || lines.any(is_of_engines)
    }
}
