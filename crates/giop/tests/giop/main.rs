//! GIOP as clients, servers and ORBs of others speak it.

mod any_golden;
mod client;
mod golden;
mod round_trip;
mod server;
