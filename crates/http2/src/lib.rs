//! HTTP/2 (RFC 9113) without I/O, for both roles.
//!
//! A [`Connection`] takes the bytes that a peer has sent ([`Connection::receive_bytes`]), reports events
//! ([`Connection::next_event`]), and appends the bytes to send to a buffer ([`Connection::pending_output`]). Streams are known
//! by a [`Key`]; their heads and bodies are taken from the connection when the caller wants them, so that the windows
//! of flow control hold up a peer that sends more than is read. Content to send goes into the buffer as far as the
//! peer's windows and the buffer's room allow: there is no queue behind the buffer.
//!
//! | module | content |
//! |---|---|
//! | [`connection`] | settings, streams, windows of a connection; its end |
//! | `receive`, `send` | frames that come, and those that go |
//! | [`head`], [`fields`] | messages' heads and what makes them malformed; lines of fields in one buffer |
//! | `stream` | the streams of a connection, in a slab |
//! | `hpack` | compression of fields (RFC 7541) |
//! | [`flood`] | frames that carry nothing, counted against a credit |
//! | [`frame`], [`reason`] | headers of frames; reasons for the end of something |
//!
//! A malformed message is an error of its stream (RFC 9113, section 8.1.1): its field block is decoded, so that
//! the tables of both sides stay the same, and the stream is reset. Errors of framing, compression and connection-wide
//! flow control end the connection.
//!
//! All input is hostile: nothing panics, work is linear in the bytes that come, and everything that is kept has a bound.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod connection;
mod content;
mod field_block;
pub mod fields;
pub mod flood;
pub mod frame;
pub mod head;
mod hpack;
pub mod reason;
mod receive;
mod send;
mod stream;
mod stream_end;

pub use connection::{Config, Connection, Event, Failure, Role};
pub use fields::Fields;
pub use flood::Flood;
pub use frame::PREFACE;
pub use head::{Head, SensitiveParts};
pub use reason::Reason;
pub use send::{NotOpened, Opening};
pub use stream::{Break, Cause, Key, Next};

#[cfg(test)]
mod tests;
