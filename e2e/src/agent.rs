//! The agent as a process.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::balancer::{evenkeel_binary, keep_log};
use crate::folder::Folder;
use crate::process::{Signal, clean_environment, signal};
use crate::wait_until;

/// A key file that nobody else may read, as agents and brokers want it.
pub fn key_file(folder: &Folder) -> PathBuf {
    folder.write_private("broker.key", "1:000102030405060708090a0b0c0d0e0f\n")
}

/// A running `evenkeel agent`, killed when dropped.
///
/// The pages of its servers are in `pages` of its folder, where `agent.toml` is, too.
pub struct Agent {
    process: Option<Running>,
    log: Arc<Mutex<String>>,
    folder: Folder,
}

struct Running {
    process: Child,
    /// Kept open: the agent may say more later.
    _stdout: BufReader<ChildStdout>,
    agent_checks: HashMap<String, SocketAddr>,
}

impl Agent {
    /// Starts an agent and waits until it is ready. `config` begins with keys that stand
    /// before any table.
    pub fn start(config: &str) -> Self {
        let folder = Folder::new();
        folder.make_folder("pages");
        let mut agent = Self {
            process: None,
            log: Arc::default(),
            folder,
        };
        agent.write_config(config);
        agent.restart();
        agent
    }

    /// Kills it as `kill -9` does.
    pub fn kill(&mut self) {
        if let Some(mut running) = self.process.take() {
            // It may have ended.
            let _ = running.process.kill();
            let _ = running.process.wait();
        }
    }

    /// Starts it, again after [`Self::kill`].
    pub fn restart(&mut self) {
        self.kill();
        let mut process = clean_environment(&mut Command::new("setpriv"))
            .args(["--pdeathsig", "KILL", "--"])
            .arg(evenkeel_binary())
            .arg("agent")
            .arg(self.folder.join("agent.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the agent starts");
        let stderr = process.stderr.take().expect("it is piped");
        keep_log(stderr, Arc::clone(&self.log));
        let mut stdout = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut agent_checks = HashMap::new();
        loop {
            let mut line = String::new();
            let len = stdout.read_line(&mut line).expect("it can be read");
            assert!(
                len > 0,
                "the agent ended before it was ready: {}",
                self.log()
            );
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["ready"] => break,
                ["listening:", "agent-check", "on", at] => {
                    agent_checks.insert(String::new(), at.parse().expect("an address"));
                }
                ["listening:", "agent-check", server, "on", at] => {
                    agent_checks.insert(server.to_owned(), at.parse().expect("an address"));
                }
                _ => {}
            }
        }
        self.process = Some(Running {
            process,
            _stdout: stdout,
            agent_checks,
        });
    }

    /// Replaces the configuration file as editors do.
    pub fn write_config(&self, config: &str) {
        let pages = self.folder.join("pages");
        let pages = format!("arm_dir = {:?}\n", pages.display().to_string());
        self.folder.write("agent.toml", pages + config);
    }

    /// Replaces the configuration file, and waits until it is in effect.
    pub fn reconfigure(&self, config: &str) {
        let taken = || self.log().matches("the configuration is in effect").count();
        let before = taken();
        self.write_config(config);
        wait_until("the new configuration is in effect", || taken() > before);
    }

    /// Returns the agent's folder.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Returns the folder in which the agent's servers have their pages.
    pub fn pages_folder(&self) -> PathBuf {
        self.folder.join("pages")
    }

    /// Returns the address at which the agent answers agent-check for a server alone, or with an
    /// empty name for all.
    pub fn agent_check(&self, server: &str) -> SocketAddr {
        self.running().agent_checks[server]
    }

    /// All that it has logged until now.
    pub fn log(&self) -> String {
        self.log.lock().expect("no panic").clone()
    }

    /// Returns the agent's process id.
    pub fn id(&self) -> u32 {
        self.running().process.id()
    }

    /// Sends SIGTERM, and waits until it has ended.
    pub fn terminate(&mut self) -> ExitStatus {
        let mut running = self.process.take().expect("it runs");
        signal(running.process.id(), Signal::TERM);
        let mut ended = None;
        wait_until("the agent ends", || {
            ended = running.process.try_wait().expect("its state");
            ended.is_some()
        });
        ended.expect("it has ended")
    }

    fn running(&self) -> &Running {
        self.process.as_ref().expect("it runs")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprintln!("the agent's log:\n{}", self.log());
        }
    }
}
