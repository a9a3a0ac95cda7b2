//! Ties of a client to members.

use std::sync::Arc;

use evenkeel_core::binding::Binding;
use evenkeel_manager::snapshot::GroupHandle;

/// Most groups for which it is kept to which member a client is bound. A rule may have more groups,
/// but few clients use so many: then the binding that is the oldest is forgotten.
const MAX_BINDINGS: usize = 64;

/// The members that a client is bound to, in groups that bind for longer than a request.
#[derive(Debug, Default)]
pub(crate) struct Bindings(Vec<(Arc<GroupHandle>, Binding)>);

impl Bindings {
    /// The client's tie to a member of `group`.
    pub(crate) fn find_binding(&mut self, group: &Arc<GroupHandle>) -> Option<&mut Binding> {
        let mut all = self.0.iter_mut();
        let found = all.find(|(of, _)| Arc::ptr_eq(of, group));
        found.map(|(_, binding)| binding)
    }

    /// True if the client is bound in `group`.
    pub(crate) fn has_binding(&self, group: &Arc<GroupHandle>) -> bool {
        self.0.iter().any(|(of, _)| Arc::ptr_eq(of, group))
    }

    pub(crate) fn set(&mut self, group: &Arc<GroupHandle>, binding: Option<Binding>) {
        self.0.retain(|(of, _)| !Arc::ptr_eq(of, group));
        if self.0.len() >= MAX_BINDINGS {
            self.0.remove(0);
        }
        self.0
            .extend(binding.map(|binding| (Arc::clone(group), binding)));
    }
}
