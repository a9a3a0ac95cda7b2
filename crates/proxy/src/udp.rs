//! UDP rules: datagrams, unread.
//!
//! A worker's [listener](listener) receives many datagrams with one system call, and gives each to
//! the session of its client, or begins a session. A [session](flow) has a socket of its own towards
//! its member, so that the kernel lets no foreign datagrams in, and the answers need no names.

pub(crate) mod flow;
pub(crate) mod listener;
pub(crate) mod socket;
