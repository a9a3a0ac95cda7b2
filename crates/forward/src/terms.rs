//! Terms of a group's decisions at a moment, as the kernel gets them.

use std::net::{SocketAddr, SocketAddrV4};

use evenkeel_control::shares::{self, ServiceState, TargetShare};
use evenkeel_core::address::Address;
use evenkeel_core::group::{Group, Request};
use evenkeel_core::terms::{Form, scale_costs};
use evenkeel_core::time::Instant;

/// Member of a group that the kernel can forward to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberTerms {
    /// Index of the member in the group.
    pub(crate) index: usize,
    pub(crate) address: SocketAddrV4,
    /// Cost of the first connection, or distance of turns.
    pub(crate) base: u32,
    /// Connections of all kinds that this process knows at the member.
    pub(crate) in_flight: u32,
    /// Limit of them; 0 if the member gets no new ones.
    pub(crate) limit: u32,
}

/// Returns the address of a member that the kernel can forward to.
pub(crate) fn forwardable(address: &Address) -> Option<SocketAddrV4> {
    match address {
        Address::Ip(SocketAddr::V4(at)) if !at.ip().is_loopback() && !at.ip().is_unspecified() => {
            Some(*at)
        }
        _ => None,
    }
}

/// Buffers that are used again.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    shares: Vec<TargetShare>,
    costs: Vec<f32>,
    bases: Vec<u32>,
}

/// Finds the terms of `group` at `now`. Members that may serve are those that a decision would find.
pub(crate) fn find_terms(
    group: &Group,
    now: Instant,
    buffers: &mut Buffers,
) -> (Form, Vec<MemberTerms>) {
    let Buffers {
        shares: seen,
        costs,
        bases,
    } = buffers;
    shares::observe_members(group, now, seen);
    let request = Request::at_time(now);
    let mut form = group.fill_costs(&group.view_for(&request), costs);
    if group.ranks().is_some() && form != Form::Own {
        // The share of each zone is in the weights.
        form = Form::Turns;
    }
    if !matches!(form, Form::Score { .. }) {
        costs.clear();
        costs.extend(seen.iter().map(|share| 1.0 / share.weight));
    }
    // The scale goes by the members that serve.
    for (cost, share) in costs.iter_mut().zip(&*seen) {
        if share.standing != ServiceState::Serving {
            *cost = f32::INFINITY;
        }
    }
    scale_costs(costs, bases);
    let members = group.members().iter().zip(&*seen).zip(&*bases).enumerate();
    let members = members.filter_map(|(index, ((member, share), base))| {
        let limit = member.max_connections.unwrap_or(u32::MAX);
        let limit = limit.min(member.slot.reported_limit());
        Some(MemberTerms {
            index,
            address: forwardable(&member.address)?,
            base: *base,
            in_flight: member.slot.in_flight(),
            limit: match share.standing {
                ServiceState::Serving => limit,
                _ => 0,
            },
        })
    });
    (form, members.collect())
}
