//! Facts about groups that the rest of a rule depends on.

use super::backends::{Groups, Members};
use super::group_policies::GroupTuning;

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
}
