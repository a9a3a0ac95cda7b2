//! TLS between clients and a rule, and between a rule and its members.

pub(crate) mod connection;
pub(crate) mod handshake;
