//! Worlds in virtual time that papers describe, on the simulator's engine ([`evenkeel_sim::engine`]).
//!
//! | world | what it has |
//! |---|---|
//! | [`sessions`] | clients that are bound to a member of a group and stay with it |
//! | [`advisories`] | clients that members send back, one request for each load advisory |
//! | [`negotiated`] | web users ([`evenkeel_load::surge`]) who ask for a server and use it for a quantum |
//! | [`monitored`] | a data centre whose balancers read the load of back-ends from outside |
//! | [`downloads`] | clients that fetch files one after the other |

pub mod advisories;
pub mod downloads;
pub mod monitored;
pub mod negotiated;
pub mod sessions;
