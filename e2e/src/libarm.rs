//! The ARM library, and a server that is instrumented with it and does what it is told.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use crate::built::{build_library, build_once};
use crate::process::{clean_environment, program};

/// Folder of `libarm.so`, which is built.
pub fn folder() -> &'static Path {
    build_library()
}

/// The program of the library's own tests.
fn client() -> &'static Path {
    static CLIENT: OnceLock<PathBuf> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let arm = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/arm");
        let libraries = folder();
        let built = build_once("e2e-arm-client", |place| {
            let status = program("cc")
                .args(["-std=c99", "-D_GNU_SOURCE", "-pthread"])
                .arg(arm.join("tests/client.c"))
                .arg("-I")
                .arg(arm.join("include"))
                .arg("-o")
                .arg(place.join("client"))
                .arg("-L")
                .arg(libraries)
                .arg("-larm")
                .arg(format!("-Wl,-rpath,{}", libraries.display()))
                .status()
                .expect("cc runs");
            assert!(status.success(), "cc: {status}");
        });
        built.join("client")
    })
}

/// An instrumented server, killed when dropped.
pub struct Instrumented {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    application: i64,
    class: i64,
}

impl Instrumented {
    /// Starts one whose page is in `pages`.
    pub fn start(pages: &Path, application: &str) -> Self {
        let mut process = clean_environment(&mut Command::new("setpriv"))
            .args(["--pdeathsig", "KILL", "--"])
            .arg(client())
            .env("EVENKEEL_ARM_DIR", pages)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut server = Self {
            stdin: process.stdin.take().expect("it is piped"),
            stdout: BufReader::new(process.stdout.take().expect("it is piped")),
            process,
            application: 0,
            class: 0,
        };
        server.application = server.call(&format!("init {application}"));
        server.class = server.call(&format!("getid {} request", server.application));
        assert!(server.application > 0 && server.class > 0);
        server
    }

    /// Begins a request of a client; answers its number.
    pub fn begin_request(&mut self, client: u32) -> i64 {
        let class = self.class;
        let request = self.call(&format!("start {class} {client} -1"));
        assert!(request > 0);
        request
    }

    /// Ends a request.
    pub fn end_request(&mut self, request: i64) {
        assert_eq!(self.call(&format!("stop {request} 0")), 0);
    }

    /// Returns true if the server has to send clients away.
    pub fn is_shedding(&mut self) -> bool {
        let application = self.application;
        self.call(&format!("shed {application}")) == 1
    }

    /// Says that it will serve no more, as a server does before it ends.
    pub fn close(&mut self) {
        let application = self.application;
        assert_eq!(self.call(&format!("end {application}")), 0);
    }

    /// Kills it as `kill -9` does.
    pub fn kill(mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it ends");
    }

    fn call(&mut self, line: &str) -> i64 {
        writeln!(self.stdin, "{line}").expect("it listens");
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).expect("it answers");
        answer.trim().parse().expect("a number")
    }
}

impl Drop for Instrumented {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
