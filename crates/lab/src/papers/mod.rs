//! The papers, a file each.

mod corba;
pub mod cygnus;
pub mod java_slb;
pub mod qos_broker;
pub mod rdma;
pub mod strategies;
