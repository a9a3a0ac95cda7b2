//! Load pages over RDMA: a back-end offers its page, balancers read it with no part of the
//! back-end's processors.
//!
//! After connecting over RDMA CM, the back-end's [`Server`] does nothing: the network card,
//! or with Soft-RoCE the kernel, answers reads. It may even be stopped. What a connection
//! offers stands in the private data of its acceptance:
//!
//! | at | what |
//! |---|---|
//! | 0 | magic `EVKP` (4), version (2), reserved, 0 (2) |
//! | 8 | address of the page, for reads |
//! | 16 | key of the page, for reads (4); length in bytes (4) |
//! | 24 | epoch of the page: see [`record`](crate::record) |
//!
//! A request for a connection has the first 8 bytes of this. All is little-endian.
//!
//! Only the interface that all RDMA devices share is used: addresses are resolved by RDMA CM,
//! so InfiniBand, RoCE, iWARP and Soft-RoCE are the same here. Tried is Soft-RoCE.
//!
//! What protects the page: it can only be read, only as far as it is long, and only from
//! sources on the list. Who can write any packet into the network can pretend to be such a
//! source, and see the load.

mod address;
mod channel;
mod error;
mod memory;
mod offer;
mod reader;
mod serve;
mod sys;

pub use error::Error;
pub use memory::Memory;
pub use reader::{ConnectionId, Reader};
pub use serve::{Counters, Limits, Server};

/// Default port at which pages are offered.
pub const DEFAULT_PORT: u16 = 9971;

#[cfg(test)]
mod tests;
