//! HTTP/1.x as bytes: a codec without I/O and without allocation.
//!
//! A proxy that reads a message differently from its neighbours can be made to smuggle
//! one request inside another. So this codec reads strictly: what RFC 9112 calls invalid
//! or ambiguous is an error and never repaired, and what is forwarded says its framing
//! exactly once, in the one way that everybody reads alike.
//!
//! The order of use, which is the order of the files:
//!
//! 1. [`head`], [`request`] and [`response`]: bytes to a [`RequestHead`] or a
//!    [`ResponseHead`], or the reason why not ([`error`]).
//! 2. [`framing`]: how long the body is, and whether the connection may go on.
//! 3. [`chunked`]: follows a chunked body, so that it can be passed on as it came.
//! 4. [`forward`]: writes the head for the other side, a request's from the
//!    [model](crate::message::Request) that other fronts could make, too; [`hop`]: what it says of
//!    the client.
//! 5. [`respond`]: the balancer's own answers.
//!
//! Heads borrow from the read buffer. Parse and write the outgoing head in one go, keep
//! the small `Copy` facts (body, connection, what was asked), and the buffer is free.

pub mod chunked;
pub mod content_edit;
pub mod error;
pub mod forward;
pub mod framing;
pub mod head;
pub mod hop;
pub mod request;
pub mod respond;
pub mod response;

pub use crate::message::Body;
pub use error::HeadError;
pub use framing::{FramingFacts, Version};
pub use head::{Fields, Limits, ParseOutcome};
pub use hop::Hop;
pub use request::RequestHead;
pub use response::ResponseHead;
