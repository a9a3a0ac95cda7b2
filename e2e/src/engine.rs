//! The client engine as a process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::balancer::{evenkeel_binary, keep_log};
use crate::folder::Folder;
use crate::process::clean_environment;

/// A running `evenkeel engine` with one cluster, killed when dropped.
pub struct Engine {
    process: Child,
    /// Kept open: the engine may say more later.
    _stdout: BufReader<ChildStdout>,
    address: SocketAddr,
    log: Arc<Mutex<String>>,
    _folder: Folder,
}

impl Engine {
    /// Starts an engine for cluster `shop`, which asks these brokers, and waits until it is
    /// ready. `more` are further lines of the cluster.
    pub fn start(brokers: &[SocketAddr], more: &str) -> Self {
        let brokers: Vec<_> = brokers.iter().map(|at| format!("http://{at}")).collect();
        Self::start_with(&format!("brokers = {brokers:?}\n"), more)
    }

    /// Starts an engine with these lines before the cluster.
    pub fn start_with(brokers: &str, more: &str) -> Self {
        let folder = Folder::new();
        let config = format!("{brokers}\n[cluster.shop]\nlisten = \"127.0.0.1:0\"\n{more}\n");
        let file = folder.write("engine.toml", config);
        let mut process = clean_environment(&mut Command::new(evenkeel_binary()))
            .args(["engine".as_ref(), file.as_os_str()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the engine starts");
        let log = Arc::new(Mutex::new(String::new()));
        let stderr = process.stderr.take().expect("it is piped");
        keep_log(stderr, Arc::clone(&log));
        let mut stdout = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut address = None;
        loop {
            let mut line = String::new();
            let len = stdout.read_line(&mut line).expect("it can be read");
            assert!(len > 0, "the engine ended before it was ready");
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["ready"] => break,
                ["listening:", "cluster", "shop", "on", at] => address = at.parse().ok(),
                _ => {}
            }
        }
        Self {
            process,
            _stdout: stdout,
            address: address.expect("an address"),
            log,
            _folder: folder,
        }
    }

    /// Returns the address to which clients of the cluster come.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All that it has logged until now.
    pub fn log(&self) -> String {
        self.log.lock().expect("no panic").clone()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if thread::panicking() {
            eprintln!("the engine's log:\n{}", self.log());
        }
    }
}
