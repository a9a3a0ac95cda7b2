//! The data path between clients and members of the tests' own, in one process.

mod alerts;
mod faults;
mod ftp;
mod http;
mod http2;
mod http2_members;
mod streams;
mod support;
mod tcp;
mod time_limits;
mod trials;
mod udp;
