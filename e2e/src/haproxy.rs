//! HAProxy with a stats socket.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use crate::folder::Folder;
use crate::process::program;
use crate::wait_until;

/// A running HAProxy, killed when dropped.
pub struct Haproxy {
    folder: Folder,
    process: Child,
}

impl Haproxy {
    /// Starts it with these sections, and waits until its stats socket is there, at `level admin`.
    pub fn start(sections: &str) -> Self {
        Self::start_at("admin", sections)
    }

    /// Starts HAProxy with another level.
    pub fn start_at(level: &str, sections: &str) -> Self {
        let folder = Folder::new();
        folder.write(
            "haproxy.cfg",
            format!(
                "global\n  stats socket {} mode 600 level {level}\n  maxconn 100\n\
                 defaults\n  mode http\n  timeout connect 5s\n  timeout client 5s\n  \
                 timeout server 5s\n{sections}",
                folder.join("socket").display()
            ),
        );
        let process = Self::spawn(&folder);
        let mut haproxy = Self { folder, process };
        haproxy.wait();
        haproxy
    }

    fn spawn(folder: &Folder) -> Child {
        let output = File::create(folder.join("output.log")).expect("a file");
        program("haproxy")
            .args(["-db", "-f"])
            .arg(folder.join("haproxy.cfg"))
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a handle"))
            .stderr(output)
            .spawn()
            .expect("HAProxy starts")
    }

    fn wait(&mut self) {
        wait_until("HAProxy is there", || {
            if let Some(status) = self.process.try_wait().expect("its state") {
                panic!("{status}: {}", self.folder.text("output.log"));
            }
            UnixStream::connect(self.socket()).is_ok()
        });
    }

    /// Kills it, and starts another process with the same configuration.
    pub fn restart(&mut self) {
        self.kill();
        self.process = Self::spawn(&self.folder);
        self.wait();
    }

    /// Kills it.
    pub fn kill(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Returns the path of HAProxy's stats socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// Returns HAProxy's answer to a command.
    pub fn run_command(&self, command: &str) -> String {
        let mut socket = UnixStream::connect(self.socket()).expect("it listens");
        let line = format!("{command}\n");
        socket.write_all(line.as_bytes()).expect("it reads");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("it answers");
        answer
    }

    /// Columns of `show servers state` for a server of the backend `web`: operational state (2 is up), weight,
    /// and administrative state (flags: 1 maintenance, 8 drain).
    pub fn server_state(&self, server: &str) -> (u32, u32, u32) {
        let answer = self.run_command("show servers state web");
        let lines = answer
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>());
        let line = lines.clone().find(|line| line.get(3) == Some(&server));
        let line = line.unwrap_or_else(|| panic!("{answer}"));
        let number = |column: usize| line[column].parse().expect("a number");
        (number(5), number(7), number(6))
    }

    /// Waits until a server has this state.
    pub fn wait_for(&self, server: &str, wanted: (u32, u32, u32)) {
        let mut last = None;
        wait_until(&format!("{server} becomes {wanted:?}"), || {
            let state = self.server_state(server);
            if last.replace(state) != Some(state) {
                eprintln!("{server}: {state:?}");
            }
            state == wanted
        });
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        self.kill();
    }
}
