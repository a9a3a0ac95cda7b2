//! UDP rules: datagrams, unread.
//!
//! A worker's [listener](listener) receives many datagrams with one system call, and gives those of a
//! client to its session, or begins a session. [Segments](segments) are sent with few calls, too. A [session](flow) has a socket of its own
//! with which the session [reaches](reach) its member, so that the kernel lets no foreign datagrams in, and the answers need no names.
//! A client whose datagram no member takes gets an [error](errors) of ICMP.

pub mod client_sessions;
pub(crate) mod connection_ids;
pub(crate) mod errors;
pub(crate) mod flow;
pub(crate) mod listener;
mod reach;
pub(crate) mod segments;
pub(crate) mod socket;
