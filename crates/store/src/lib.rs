//! The configuration that several balancers share, in a store (etcd): how it gets from there into effect, and
//! how changes get there.
//!
//! | module | what it has |
//! |---|---|
//! | [`model`] | what stands in the store: the head, revisions, reports of balancers |
//! | [`follower`] | what a balancer does when it sees a head; no I/O |
//! | [`change`] | heads that come of changes; no I/O |
//! | [`rollout`] | the next step of a staged roll-out; no I/O, no clock |
//! | [`judge`] | whether balancers with a change do worse than others; no I/O |
//! | [`etcd`] | a client of etcd: the few calls that are needed |
//! | [`copy`] | the last good copy on disk |
//! | [`subsystem`] | a balancer's end: follows the store, reports, drives roll-outs |
//! | [`desk`] | what a person does with the store: `evenkeel store` |
//!
//! In etcd, behind the prefix, there are `head` (a small document that says which revision balancers are to have; each
//! change of it is a transaction that compares the head on which the change is based), `revisions/N` (a text with its
//! author; never changed), and `nodes/NAME` (what a balancer runs, under a lease).

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod change;
pub mod copy;
pub mod desk;
pub mod etcd;
pub mod follower;
pub mod judge;
mod metrics;
pub mod model;
mod reporter;
pub mod rollout;
mod start;
mod status;
pub mod subsystem;
mod totals;

pub use subsystem::Fleet;
