//! Weights that the members of a group should get, with their addresses.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_control::shares::{ServiceState, Share};
use evenkeel_core::address::Address;
use evenkeel_core::group::Group;
use evenkeel_core::member::{Member, MemberId};

/// A member and its share.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberShare {
    /// Address of the member in the configuration.
    pub member: Arc<str>,
    /// Name of the member that people see.
    pub name: Arc<str>,
    /// Address where the member listens: by this the other balancer's servers are found.
    pub address: Address,
    /// 0 if it does not serve.
    pub weight: u32,
    /// Standing, which says whether the member may serve.
    pub standing: ServiceState,
}

/// Returns what the members of `group` should get by `shares`. A member that has left since is left out.
pub(crate) fn from_shares(group: &Group, shares: &[Share]) -> Vec<MemberShare> {
    let members = group.members().iter();
    let members: HashMap<MemberId, &Member> = members.map(|member| (member.id, member)).collect();
    let known = shares.iter().filter_map(|share| {
        let member = members.get(&share.id)?;
        Some(MemberShare {
            member: Arc::clone(&member.name),
            name: Arc::clone(member.shown_name()),
            address: member.address.clone(),
            weight: share.weight,
            standing: share.standing,
        })
    });
    known.collect()
}
