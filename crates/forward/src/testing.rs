//! Groups for tests.

#![allow(clippy::expect_used)] // A test helper fails by panicking.

use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_core::address::Address;
use evenkeel_core::group::{Group, GroupSettings};
use evenkeel_core::load::Location;
use evenkeel_core::member::{Member, MemberId, Slot, Weight};
use evenkeel_core::strategy::{self, Values};

/// Returns a member with a number and an address, alone at its location.
pub(crate) fn member(number: u64, address: SocketAddr) -> Member {
    let name: Arc<str> = format!("m{number}").into();
    Member {
        id: MemberId(number),
        name: Arc::clone(&name),
        given_name: None,
        address: Address::from(address),
        host: address.ip().to_string().into(),
        max_connections: None,
        location: Arc::new(Location::new(&*name)),
        zone: None,
        slot: Arc::new(Slot::new(Weight::ONE)),
    }
}

/// Returns a group with the defaults of a strategy.
pub(crate) fn group(strategy: &str, settings: GroupSettings, members: Vec<Member>) -> Group {
    let values = Values::defaults(strategy::find(strategy).expect("a strategy"));
    Group::new("g", settings, &values, members, Arc::default())
}
