//! The data plane: listeners, forwarding of TCP, HTTP and FTP.
//!
//! A [`Proxy`] runs one single-threaded runtime per worker. Every worker has its own
//! listeners (`SO_REUSEPORT`), connections, pools, buffers and counters; what workers
//! share, the groups of the manager, is lock-free. A request walks through four rooms:
//! `listen` accepts, `http` (or `tcp`) understands it, `member_choice` binds it to a member,
//! and the flows of `tcp` and `http` carry the bytes.
//!
//! Files import only from files below them. From the lowest floor to the highest: `transport`,
//! `socket` and `tls::connection`; `connection` (plain or with TLS); `pool` and `worker` (clock,
//! buffers, memory); `session`; `http2`; `io` (a connection, or a stream of HTTP/2);
//! `member_choice`; `tcp`; `ftp` and `http`; `listen`; `dispatcher`; `plane`. The codec of HTTP/1
//! (`http1`) and `message` are below all of these.

pub mod access;
mod age;
mod bandwidth;
mod bindings;
mod bound_request;
mod buffer;
mod chooser;
mod connection;
mod cors;
mod date;
mod dispatcher;
mod families;
mod files;
mod ftp;
mod http;
pub mod http1;
pub mod http2;
mod io;
mod listen;
mod member_choice;
mod memory;
pub mod message;
pub mod metrics;
pub mod model_list;
mod passwords;
mod peer_process;
mod pipe;
mod plane;
mod pool;
mod presence;
mod proxied;
mod quota;
mod request_id;
mod service;
mod session;
pub mod shared_limits;
mod sni;
mod socket;
mod spare;
mod tcp;
mod timers;
mod tls;
pub mod trace;
mod transparent;
mod transport;
pub mod udp;
mod upstream;
mod watch;
mod worker;

pub use plane::{Proxy, StartError, check_files};
