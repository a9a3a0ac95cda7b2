//! xDS: groups as other people's proxies and clients see them.
//!
//! An aggregated discovery service gives each group as a cluster with endpoints, whose weights follow loads,
//! health, drain and alerts: to Envoy, and to clients of gRPC, which need no proxy. The service speaks both
//! variants of the protocol, state of the world and incremental. What the clients report of their load (LRS)
//! comes back as loads of locations.
//!
//! | module | what it has |
//! |---|---|
//! | [`proto`] | the messages |
//! | [`kind`] | types of resources, and who gets them in which form |
//! | [`content`] | what a resource says, and how it is encoded |
//! | [`world`] | all resources of the moment |
//! | [`stream`] | one client's stream: what it wants, has and is to get; no I/O |
//! | [`groups`] | groups, and the shares of their members over time |
//! | [`ledger`] | load reports of clients |
//! | `holdings` | memory for what clients want by name |
//! | [`Xds`] | the subsystem: a thread with the server |

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod content;
pub mod groups;
mod holdings;
pub mod kind;
pub mod ledger;
mod metrics;
pub mod proto;
mod registry;
mod server;
mod status;
pub mod stream;
mod subsystem;
pub mod world;

pub use status::{ClientStatus, NackStatus, SubscriptionStatus, XdsStatus, format_tables};
pub use subsystem::Xds;
