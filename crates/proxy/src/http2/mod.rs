//! HTTP/2 from clients.
//!
//! The `h2` crate does frames, HPACK and flow control. A connection ([`connection`]) has a task that
//! drives it, and each stream one more, which serves it as if it were a connection of HTTP/1 with
//! one request: [`stream`] stands in the place of the client's socket. Heads are translated as a
//! whole ([`request`], [`stream`]); bodies pass as HTTP/1 frames them ([`incoming`],
//! [`outgoing`]), so that limits, retries, the log and what is counted are the same code.
//! [`meter`] counts frames that carry nothing.

mod call;
pub(crate) mod connection;
pub(crate) mod grpc;
mod held;
mod incoming;
pub(crate) mod links;
pub mod meter;
mod outgoing;
pub(crate) mod request;
mod stream;
pub(crate) mod tasks;
pub(crate) mod websocket;
mod wire;

pub(crate) use call::Call;
pub(crate) use connection::serve;
pub(crate) use stream::Stream;
