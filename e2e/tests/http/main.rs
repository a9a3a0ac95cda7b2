//! HTTP between real clients and real members, and what may go wrong between them.

mod compression;
mod faults;
mod group_actions;
mod hedge;
mod http;
mod http2;
mod http2_members;
mod mirror;
mod repeat;
mod servers;
mod smuggling;
mod streams;
