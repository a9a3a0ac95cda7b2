//! HTTP/2 from clients, and to members.
//!
//! [`evenkeel_http2`] does frames, HPACK and flow control, without I/O. A client's connection
//! ([`connection`]) has a task ([`server`]) that moves its bytes ([`engine`], [`wire`]), and each
//! stream one more, which serves it as if it were a connection of HTTP/1 with one request:
//! [`stream`] stands in the place of the client's socket. Heads are translated as a whole
//! ([`request`], [`stream`]); bodies pass as HTTP/1 frames them ([`incoming`], [`outgoing`]), so
//! that limits, retries, the log and what is counted are the same code. Members are spoken to in
//! the same way: [`links`] has their connections, [`opening`] opens them, and a
//! [`Call`](call::Call) is a stream.

pub(crate) mod call;
pub(crate) mod connection;
mod engine;
pub(crate) mod grpc;
mod incoming;
pub(crate) mod links;
pub(crate) mod opening;
mod outgoing;
mod place;
pub(crate) mod request;
pub(crate) mod server;
pub(crate) mod stream;
pub(crate) mod websocket;
mod wire;
