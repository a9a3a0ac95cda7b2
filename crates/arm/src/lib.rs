//! Response times of a server's requests, told by the server itself.
//!
//! A server that is instrumented with the Application Response Measurement API (ARM 2.0,
//! The Open Group, C807) says when a transaction starts and when it stops. This crate is
//! both ends of that: the C library which servers link (`libarm.so`, `include/arm.h`), and
//! [`page`], with which an agent reads what the library counted.
//!
//! Between them is one file of shared memory per application, the *page*. The library
//! adds to counters in it: no system call, no lock, no allocation and no message per
//! transaction. The agent reads them whenever it likes and takes differences, so it may
//! come late, miss intervals, or restart, and a server does not notice. In the other
//! direction the agent can write a lease that says "this server is under a load alert".

mod api;
mod counting;
mod layout;
mod memory;
mod metrics;
pub mod page;
mod process;
mod transactions;
