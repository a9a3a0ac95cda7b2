//! Configuration of a group that is shared: a copy costs a count, until one of the copies is changed.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::group::GroupConfig;

/// Configuration of a group, which copies of a [`Config`](crate::Config) share. A group that is changed becomes a
/// group of its own.
#[derive(Clone, Debug, Default)]
pub struct SharedGroup(Arc<GroupConfig>);

impl SharedGroup {
    /// True if both are the same group in memory: then they are equal.
    pub fn is_same(&self, other: &SharedGroup) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Address of the group in memory, which no other group has while this one is kept.
    pub(super) fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Returns the group by itself: a copy, if others share the group.
    pub fn into_inner(self) -> GroupConfig {
        Arc::unwrap_or_clone(self.0)
    }
}

impl From<GroupConfig> for SharedGroup {
    fn from(group: GroupConfig) -> Self {
        SharedGroup(Arc::new(group))
    }
}

impl Deref for SharedGroup {
    type Target = GroupConfig;

    fn deref(&self) -> &GroupConfig {
        &self.0
    }
}

impl DerefMut for SharedGroup {
    fn deref_mut(&mut self) -> &mut GroupConfig {
        Arc::make_mut(&mut self.0)
    }
}

impl PartialEq for SharedGroup {
    fn eq(&self, other: &SharedGroup) -> bool {
        self.is_same(other) || *self.0 == *other.0
    }
}

impl PartialEq<GroupConfig> for SharedGroup {
    fn eq(&self, other: &GroupConfig) -> bool {
        *self.0 == *other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_copied_when_it_is_changed() {
        let group = SharedGroup::from(GroupConfig::new("a", Vec::new()));
        let mut other = group.clone();
        assert!(group.is_same(&other) && group == other);
        other.max_queue += 1;
        assert!(!group.is_same(&other) && group != other);
        other.max_queue -= 1;
        assert!(!group.is_same(&other) && group == other);
        assert_eq!(group, other.into_inner());
    }
}
