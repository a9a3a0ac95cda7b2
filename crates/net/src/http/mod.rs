//! HTTP for what is not the data path: the negotiator, the client engine, the admin API.
//!
//! These parts answer small questions from memory, to anybody who can reach them. So what they share is
//! mostly about limits: connections are few and none waits for ever ([`BoundedListener`]), heads are small, bodies
//! are not read ([`serve`]), a request that says two different things about its site is refused ([`Target`]),
//! and a redirect leads to a configured origin and nowhere else ([`answer::redirect`]).

pub mod answer;
pub mod client;
mod conn;
mod idle;
mod serve;
mod target;

pub use answer::{Answer, ErrorBody};
pub use conn::{Activity, BoundedListener, Connection};
pub use idle::IdleConnections;
pub use serve::{Handler, Head, Phase, Settings, serve_listener};
pub use target::{BadTarget, Target};
