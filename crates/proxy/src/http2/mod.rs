//! HTTP/2 from clients.
//!
//! [`evenkeel_http2`] does frames, HPACK and flow control, without I/O. A connection ([`connection`]) has a task that
//! moves its bytes ([`engine`]), and each stream one more, which serves it as if it were a connection of HTTP/1 with
//! one request: [`stream`] stands in the place of the client's socket. Heads are translated as a
//! whole ([`request`], [`stream`]); bodies pass as HTTP/1 frames them ([`incoming`],
//! [`outgoing`]), so that limits, retries, the log and what is counted are the same code.
//! Members are spoken to in the same way: [`links`] has their connections, and a [`Call`](call::Call) is a stream.

pub(crate) mod call;
pub(crate) mod connection;
mod engine;
pub(crate) mod grpc;
mod incoming;
pub(crate) mod links;
mod outgoing;
pub(crate) mod request;
pub(crate) mod stream;
pub(crate) mod tasks;
pub(crate) mod websocket;
mod wire;
