//! Whole-system tests: the real binary with scripted clients and members around it.
//!
//! Everything is on loopback. The balancer listens on port 0 and says on standard output
//! where that is, so no port is ever chosen here. What must happen is awaited by reading
//! from a socket; the only clock is a limit that nothing but a hang can meet.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test helper fails by panicking.

pub mod agent;
pub mod apxs;
pub mod balancer;
pub mod built;
pub mod cgroup;
pub mod corba;
pub mod engine;
pub mod envoy;
pub mod etcd;
pub mod folder;
pub mod ftp;
pub mod haproxy;
pub mod httpd;
pub mod jacorb;
pub mod kubernetes;
pub mod language_model;
pub mod libarm;
pub mod load;
pub mod manual;
pub mod member;
pub mod netns;
pub mod nsd;
pub mod omniorb;
pub mod orb;
pub mod pebble;
pub mod process;
pub mod python;
pub mod quic;
pub mod script;
pub mod server;
pub mod sessions;
pub mod simulated_engine;
pub mod surge;
pub mod terminal;
pub mod theirs;
pub mod tls;
pub mod vm;
pub mod wire;

use std::thread;
use std::time::{Duration, Instant};

/// Time limit that only a hang reaches.
pub const HANG: Duration = Duration::from_secs(60);

/// True if the experiments of papers are to run as a whole (`make test-papers`), and not in their quick form.
pub fn runs_whole_papers() -> bool {
    std::env::var_os("EVENKEEL_PAPERS").is_some_and(|form| form == "whole")
}

/// Asks until the answer is yes.
pub fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    // A machine that is emulated beside other work is many times slower.
    let factor = if vm::runs_in_vm() { 10 } else { 1 };
    let limit = Instant::now() + factor * HANG;
    while !happened() {
        assert!(Instant::now() < limit, "it never happens that {what}");
        thread::sleep(Duration::from_millis(20));
    }
}
