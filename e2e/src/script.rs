//! Programs that do what the lines on their standard input say, and answer with lines.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::balancer::keep_log;
use crate::process::{Signal, clean_environment, signal};
use crate::{HANG, wait_until};

/// A program that runs, killed when dropped.
pub struct Script {
    process: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    log: Arc<Mutex<String>>,
}

impl Script {
    /// Starts it.
    pub fn start(command: &mut Command) -> Self {
        let mut process = clean_environment(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let log = Arc::new(Mutex::new(String::new()));
        let stderr = process.stderr.take().expect("it is piped");
        keep_log(stderr, Arc::clone(&log));
        let stdout = BufReader::new(process.stdout.take().expect("it is piped"));
        let (send, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            stdin: process.stdin.take(),
            process,
            lines,
            log,
        }
    }

    /// The next line that it says; none when it has ended.
    pub fn next_line(&self) -> Option<String> {
        match self.lines.recv_timeout(HANG) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the program hangs; it said: {}", self.log()),
        }
    }

    /// The next line that it says.
    pub fn read_line(&self) -> String {
        let log = || panic!("the program has ended; it said: {}", self.log());
        self.next_line().unwrap_or_else(log)
    }

    /// All that it has said and nobody has read yet.
    pub fn unread(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// Reads up to a line; answers those before it.
    pub fn read_until(&self, last: &str) -> Vec<String> {
        let mut before = Vec::new();
        loop {
            match self.read_line() {
                line if line == last => return before,
                line => before.push(line),
            }
        }
    }

    /// Says a line to it, and does not wait.
    pub fn send_line(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("it has not been closed");
        writeln!(stdin, "{line}").expect("the program listens");
    }

    /// Says a line to it, and waits for its answer.
    pub fn ask_line(&mut self, line: &str) -> String {
        self.send_line(line);
        self.read_line()
    }

    /// Says a line to it that it answers with the name of the command alone.
    pub fn run_command(&mut self, line: &str) {
        let answer = self.ask_line(line);
        let mut words = line.split(' ');
        let command = match words.next() {
            Some("at") => words.nth(1),
            command => command,
        };
        assert_eq!(Some(answer.as_str()), command, "{line}");
    }

    /// Ends its standard input, and so the program; answers what it still had to say.
    pub fn end_input(&mut self) -> Vec<String> {
        self.stdin = None;
        self.finish_by_itself()
    }

    /// Waits until it ends by itself; answers what it still had to say.
    pub fn finish_by_itself(&self) -> Vec<String> {
        std::iter::from_fn(|| self.next_line()).collect()
    }

    /// Returns the id of the script's process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal.
    pub fn signal(&self, which: Signal) {
        signal(self.id(), which);
    }

    /// Stops it, as when it hangs, and waits until no thread of it runs.
    pub fn pause_process(&self) {
        self.signal(Signal::STOP);
        wait_until("the program is stopped", || {
            let threads = fs::read_dir(format!("/proc/{}/task", self.id()));
            threads.expect("the process lives").all(|thread| {
                let stat = thread.expect("a thread").path().join("stat");
                let stat = fs::read_to_string(stat).unwrap_or_default();
                // Its state is behind its name in parentheses.
                stat.rsplit_once(") ")
                    .is_none_or(|(_, rest)| rest.starts_with('T'))
            })
        });
    }

    /// Kills it, as a fault does, and waits until it is gone.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// All that it has said on standard error.
    pub fn log(&self) -> String {
        self.log.lock().expect("no panic").clone()
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprintln!("a program's log:\n{}", self.log());
        }
    }
}
