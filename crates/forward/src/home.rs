//! Members as the program in the kernel has them.

use std::sync::Arc;

use evenkeel_core::cost::Cost;
use evenkeel_kernel::forward::{Pair, Terms};
use evenkeel_manager::snapshot::GroupHandle;

use crate::records::Target;
use crate::terms::find_forwardable;

/// Seat of a member.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) group: Arc<GroupHandle>,
    pub(crate) group_name: Arc<str>,
    pub(crate) cost: Cost,
    pub(crate) terms: Terms,
    /// Tickets of the member's connections.
    pub(crate) tickets: u32,
    /// Difference between the kernel's count and the table in the last sweep.
    pub(crate) drift: i64,
    /// True if a group of now has the member.
    pub(crate) is_used: bool,
}

impl Home {
    /// Returns the member of a connection, as the access log names the member.
    pub(crate) fn find_target(&self, pair: Pair) -> Target {
        let group = self.group.current.load();
        let mut members = group.members().iter();
        let member = members.find(|member| find_forwardable(&member.address) == Some(pair.member));
        Target {
            group: Some(Arc::clone(&self.group_name)),
            member: match member {
                Some(member) => Arc::clone(&member.name),
                // The member is no longer in the group.
                None => pair.member.to_string().into(),
            },
            member_name: member.and_then(|member| member.given_name.clone()),
            cost: self.cost,
        }
    }
}
