//! Members and moments for tests of this crate.

use std::sync::Arc;

use crate::load::Location;
use crate::member::{Member, MemberId, Slot, Weight};
use crate::time::Instant;

/// Makes a member with a weight of 1, alone at its location.
pub(crate) fn make_member(id: u64) -> Member {
    Member {
        id: MemberId(id),
        name: format!("m{id}").into(),
        given_name: None,
        address: std::net::SocketAddr::from(([192, 0, 2, 1], 80)).into(),
        host: "192.0.2.1".into(),
        max_connections: None,
        location: Arc::new(Location::new(format!("l{id}"))),
        zone: None,
        slot: Arc::new(Slot::new(Weight::ONE)),
    }
}

/// Returns a moment, in milliseconds of the clock.
pub(crate) fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}
