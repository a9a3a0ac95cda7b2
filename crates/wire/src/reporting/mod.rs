//! The reporting protocol over UDP: agents register, report, and sign off.
//!
//! The messages are those of Mohamed-Salem, Chen, Bochmann and Wong, "An Experimental
//! Prototype for Scalable Server Selection" (2003), section 2.3, with what an open network
//! needs on top: they are authenticated, they survive loss, reordering, duplication and
//! replay, and a broker that restarts gets its agents back.
//! `docs/reporting-protocol.md` specifies them byte by byte.
//!
//! Nothing here does I/O or looks at a clock: [`client`] is the agent's side of a
//! registration, [`server`] the broker's side of all of them, [`message`] the messages, and
//! [`keys`] what authenticates them.

pub mod client;
pub mod directory;
pub mod keys;
pub mod message;
pub mod server;
