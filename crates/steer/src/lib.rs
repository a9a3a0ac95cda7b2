//! Other balancers that get the weights and states of a group: HAProxy over its stats socket, nginx by a
//! file and a reload.
//!
//! | module | what it has |
//! |---|---|
//! | [`wanted`] | what the members of a group should get, with their addresses |
//! | [`haproxy`] | what HAProxy says (`answers`), what is to be sent (`plan`), the conversation (`socket`) |
//! | [`nginx`] | the file, and the reload |
//! | [`command`] | programs that are run, with a time limit |
//! | [`subsystem`] | a task for each `[steer.NAME]` |
//! | [`status`] | what administrators see |
//! | [`rehearsal`] | `evenkeel steer --dry-run`: what would be sent |
//!
//! [`evenkeel_control::shares`] decides which shares these are, and when they are worth a message. The
//! state of the other balancer is asked for before anything is sent, so a restart there, or a change by
//! somebody else, is mended by the same path as a new weight.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod command;
pub mod haproxy;
pub mod nginx;
pub mod rehearsal;
pub mod status;
pub mod subsystem;
pub mod wanted;

pub use status::{SteerStatus, SteeredMember, format_tables};
pub use subsystem::Steering;
