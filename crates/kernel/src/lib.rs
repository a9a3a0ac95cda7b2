//! The load of a back-end as its kernel knows it, read from outside.
//!
//! After Vaidyanathan, Jin, Narravula and Panda, *Accurate Load Monitoring for
//! Cluster-based Web Data-Centers over RDMA-enabled Networks* (2005): the balancer reads
//! kernel data at the moment of asking, and no process on the back-end has to be scheduled
//! for it. A [`record`] is the one layout for all ways of reading, a [`query`] how it is
//! asked for over UDP, and [`loads`] what two records say about the time between them.

#[cfg(feature = "bpf")]
pub mod attach;
#[cfg(feature = "bpf")]
pub mod bpf;
#[cfg(feature = "bpf")]
pub mod forward;
pub mod host;
pub mod keys;
pub mod loads;
pub mod netlink;
pub mod network;
pub mod page;
pub mod priority;
pub mod proc;
pub mod query;
pub mod rdma;
pub mod receive;
pub mod record;
pub mod respond;
pub mod serve;
pub mod shared;
#[cfg(test)]
mod testing;
#[cfg(feature = "bpf")]
pub mod traffic;
#[cfg(not(feature = "bpf"))]
#[path = "no_traffic.rs"]
pub mod traffic;
#[cfg(feature = "bpf")]
pub mod tunnel;
