//! Rules whose connections, or sessions of UDP, the kernel forwards (`forward = "kernel"`).
//!
//! [`Forwarding`] follows the configuration. Its thread has the program in the kernel (`engine`): it writes the
//! terms of decisions, and makes tickets of the connections that the kernel reports, so that estimates, limits, ejection
//! and metrics see them like those of the proxy. Without the right or the kernel for it, the proxy serves all
//! connections.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

#[cfg(feature = "bpf")]
mod copies;
mod copy_status;
#[cfg(feature = "bpf")]
mod decisions;
#[cfg(feature = "bpf")]
mod drift;
#[cfg(feature = "bpf")]
mod engine;
#[cfg(not(feature = "bpf"))]
#[path = "no_engine.rs"]
mod engine;
#[cfg(feature = "bpf")]
mod failures;
#[cfg(feature = "bpf")]
mod group_numbers;
#[cfg(feature = "bpf")]
mod home;
#[cfg(feature = "bpf")]
mod interfaces;
#[cfg(feature = "bpf")]
mod limits;
#[cfg(feature = "bpf")]
mod listeners;
#[cfg(feature = "bpf")]
mod nat;
#[cfg(feature = "bpf")]
mod obstacles;
mod plan;
#[cfg(feature = "bpf")]
mod records;
#[cfg(feature = "bpf")]
mod requests;
#[cfg(feature = "bpf")]
mod rows;
#[cfg(feature = "bpf")]
mod rule_counts;
#[cfg(feature = "bpf")]
mod rule_limits;
#[cfg(feature = "bpf")]
mod seatless;
#[cfg(feature = "bpf")]
mod seats;
mod status;
mod subsystem;
#[cfg(feature = "bpf")]
mod sweep;
#[cfg(feature = "bpf")]
mod terms;
#[cfg(all(test, feature = "bpf"))]
mod testing;
#[cfg(feature = "bpf")]
mod tickets;
#[cfg(feature = "bpf")]
mod udp;
#[cfg(feature = "bpf")]
mod xdp;

pub use copy_status::CopyStatus;
pub use status::{ForwardStatus, ForwardedMember, ForwardedRule};
pub use subsystem::Forwarding;
