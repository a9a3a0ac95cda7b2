//! Sockets, and what is built on them for more than one part of the process.
//!
//! | module | what it has |
//! |---|---|
//! | [`listen`] | TCP listeners: opened, kept over a change of configuration |
//! | [`unix`] | Unix sockets to listen on |
//! | [`inherited`] | sockets that come from the process before, or from the service manager |
//! | [`stream`] | connections to members, over TCP or Unix sockets |
//! | [`datagram`] | a thread that serves UDP sockets, and how those are opened |
//! | [`grpc`] | a call of gRPC as a client, and messages as a server sends and reads them |
//! | [`handover`] | the conversation of a process with the one whose place it takes |
//! | [`http`] | a server and a client with limits, for what is not the data path |
//! | [`Clock`] | the time |
//! | [`key_file`] | files with secrets |
//! | [`replacement`] | files that are replaced as a whole |
//! | [`tasks`] | runtimes, threads, and tasks that follow what is wanted of them |
//!
//! The messages over the sockets are no matter of this crate.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod clock;
pub mod datagram;
pub mod grpc;
pub mod handover;
pub mod http;
pub mod http2;
pub mod inherited;
pub mod key_file;
pub mod listen;
pub mod network;
pub mod replacement;
pub mod stream;
pub mod tasks;
pub mod unix;
pub mod writable;

pub use clock::Clock;
pub use tasks::{Tasks, new_runtime, start_thread};

/// Bytes from the system's generator, which nobody can guess.
///
/// # Errors
///
/// The system gives none.
pub fn random_bytes<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if filled == N {
        Ok(bytes)
    } else {
        Err(std::io::Error::other(
            "the system returned too few random numbers",
        ))
    }
}
