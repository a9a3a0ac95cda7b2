//! Terms of a group's decisions at a moment, as the kernel gets them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use evenkeel_control::shares::{self, ServiceState, TargetShare};
use evenkeel_core::address::Address;
use evenkeel_core::group::{Group, Request};
use evenkeel_core::hash_terms::{self, weigh_base};
use evenkeel_core::key;
use evenkeel_core::member::{Member, Reason};
use evenkeel_core::terms::{Form, scale_costs, scale_costs_to};
use evenkeel_core::time::Instant;
use evenkeel_kernel::forward::Terms;

/// Member of a group that the kernel can forward to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberTerms {
    /// Index of the member in the group.
    pub(crate) index: usize,
    pub(crate) address: SocketAddr,
    /// Cost of the first connection, or distance of turns.
    pub(crate) base: u32,
    /// Connections of all kinds that this process knows at the member.
    pub(crate) in_flight: u32,
    /// Limit of them; 0 if the member gets no new ones.
    pub(crate) limit: u32,
    /// True if clients with sessions of UDP go to other members.
    pub(crate) must_leave: bool,
    /// Hash of the member's name, and the member's weight, for decisions by hash; else 0. For `prequal` the weight is the load
    /// of a connection.
    pub(crate) name_hash: u64,
    pub(crate) weight: u32,
}

/// Returns the address of a member or a listener that the kernel can forward for.
pub(crate) fn find_forwardable(address: &Address) -> Option<SocketAddr> {
    let Address::Ip(at) = address else {
        return None;
    };
    let ip = at.ip().to_canonical();
    let is_of_link = match ip {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let is_elsewhere = !ip.is_loopback() && !ip.is_unspecified() && !is_of_link;
    is_elsewhere.then(|| SocketAddr::new(ip, at.port()))
}

/// Buffers that are used again.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    shares: Vec<TargetShare>,
    costs: Vec<f32>,
    bases: Vec<u32>,
    /// Reciprocals of weights, for `prequal`, and the loads of a connection.
    shares_of_one: Vec<f32>,
    loads: Vec<u32>,
}

/// Terms of a group at a moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FoundTerms {
    pub(crate) form: Form,
    pub(crate) members: Vec<MemberTerms>,
    /// Highest weight of the members that may serve; 0 without these.
    pub(crate) highest_weight: f32,
}

/// Finds the terms of `group` at `now`. Members that may serve are those that a decision would find.
pub(crate) fn find_terms(group: &Group, now: Instant, buffers: &mut Buffers) -> FoundTerms {
    let Buffers {
        shares: seen,
        costs,
        bases,
        shares_of_one,
        loads,
    } = buffers;
    shares::observe_members(group, now, seen);
    let request = Request::at_time(now);
    let mut form = group.fill_costs(&group.view_for(&request), costs);
    let is_hashed = matches!(form, Form::Hash { .. });
    if group.ranks().is_some() && form != Form::Own && !is_hashed {
        // The share of each zone is in the weights.
        form = Form::Turns;
    }
    let is_prequal = matches!(form, Form::Prequal { .. });
    if !matches!(form, Form::Score { .. }) && !is_prequal {
        costs.clear();
        costs.extend(seen.iter().map(|share| 1.0 / share.weight));
    }
    let overridden = if group.state().is_panicking() {
        Reason::OVERRIDDEN_BY_PANIC
    } else {
        0
    };
    // If no member may serve, shares are those of members that may have come back unnoticed: decisions find none of them.
    let serves = |member: &Member, share: &TargetShare| {
        let against = member.slot.reason_bits() & !(Reason::SOFT | overridden);
        share.standing == ServiceState::Serving && against == 0
    };
    // The scale goes by the members that serve.
    let members = group.members().iter().zip(&*seen);
    shares_of_one.clear();
    shares_of_one.extend(seen.iter().map(|share| 1.0 / share.weight));
    let all = costs.iter_mut().zip(&mut *shares_of_one);
    for ((cost, one), (member, share)) in all.zip(members.clone()) {
        if !serves(member, share) {
            (*cost, *one) = (f32::INFINITY, f32::INFINITY);
        }
    }
    let lowest = shares_of_one.iter().copied().fold(f32::INFINITY, f32::min);
    scale_costs(shares_of_one, loads);
    match is_hashed {
        true => scale_costs_to(costs, hash_terms::LEAST_BASE, bases),
        false => scale_costs(costs, bases),
    }
    let ends_sessions = Reason::ENDS_SESSIONS & !overridden;
    let members = members.zip(bases.iter().zip(&*loads)).enumerate();
    let members = members.filter_map(|(index, ((member, share), (base, load)))| {
        let limit = member.max_connections.unwrap_or(u32::MAX);
        let limit = limit.min(member.slot.reported_limit());
        Some(MemberTerms {
            index,
            address: find_forwardable(&member.address)?,
            base: *base,
            in_flight: member.slot.in_flight(),
            limit: if serves(member, share) { limit } else { 0 },
            must_leave: member.slot.reason_bits() & ends_sessions != 0,
            name_hash: if is_hashed {
                key::hash(member.name.as_bytes())
            } else {
                0
            },
            weight: match form {
                Form::Hash { .. } => weigh_base(*base),
                Form::Prequal { .. } => *load,
                _ => 0,
            },
        })
    });
    FoundTerms {
        form,
        members: members.collect(),
        highest_weight: 1.0 / lowest,
    }
}

/// Returns the terms of a seat without a member.
pub(crate) fn free_terms() -> Terms {
    Terms {
        owner: 0,
        address: (Ipv4Addr::UNSPECIFIED, 0).into(),
        base: u32::MAX,
        others: 0,
        room: 0,
        must_leave: false,
        name_hash: 0,
        weight: 0,
    }
}

/// Returns the number that stands for a group in the maps, the same in the next process; never 0.
pub(crate) fn hash_name(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish().max(1)
}

#[cfg(test)]
mod tests;
