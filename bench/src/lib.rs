//! Library of the measuring programs.
//!
//! `bin/bench.rs` is the way in: it starts every proxy in front of `bin/backend.rs`,
//! drives each in turn with [`load`], and compares. `bin/floor.rs` is the least that any
//! proxy could do.

pub mod arms;
pub mod balancers;
pub mod epoll;
pub mod giop;
pub mod h2load;
pub mod httpd;
pub mod load;
pub mod report;
pub mod server;
pub mod tls;
