//! The balancer as a process.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::wire::Wire;

/// A running `evenkeel run`, killed when dropped.
pub struct Balancer {
    process: Child,
    /// Kept open: the balancer may say more later.
    _stdout: BufReader<ChildStdout>,
    rules: HashMap<String, SocketAddr>,
    folder: PathBuf,
}

impl Balancer {
    /// Starts a balancer and waits until it is ready.
    ///
    /// Rules listen on `127.0.0.1:0`.
    pub fn start(config: &str) -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("evenkeel-e2e-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder for the configuration");
        let file = folder.join("evenkeel.toml");
        fs::write(&file, config).expect("the configuration is written");
        let mut process = Command::new(binary())
            .args(["run".as_ref(), file.as_os_str()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the balancer starts");
        let mut stdout = BufReader::new(process.stdout.take().expect("it is piped"));
        let rules = listening(&mut stdout);
        Self {
            process,
            _stdout: stdout,
            rules,
            folder,
        }
    }

    /// One HTTP rule called `web`, whose group has the given members; `more` are further
    /// lines of the rule, tables at the end.
    pub fn http(members: &[SocketAddr], more: &str) -> Self {
        let members: Vec<_> = members
            .iter()
            .map(|member| format!("\"{member}\""))
            .collect();
        let members = members.join(", ");
        Self::start(&format!(
            "workers = 1\n\
             [admin]\n\
             listen = \"127.0.0.1:0\"\n\
             [rule.web]\n\
             listen = \"127.0.0.1:0\"\n\
             protocol = \"http\"\n\
             members = [{members}]\n\
             {more}\n"
        ))
    }

    /// Where a rule listens.
    pub fn address(&self, rule: &str) -> SocketAddr {
        *self.rules.get(rule).expect("a rule of the configuration")
    }

    /// A new connection to the rule `web`.
    pub fn connect(&self) -> Wire {
        Wire::connect(self.address("web"))
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Reads `listening: rule NAME on ADDRESS` lines up to `ready`.
fn listening(stdout: &mut BufReader<ChildStdout>) -> HashMap<String, SocketAddr> {
    let mut rules = HashMap::new();
    loop {
        let mut line = String::new();
        let len = stdout
            .read_line(&mut line)
            .expect("standard output can be read");
        assert!(len > 0, "the balancer ended before it was ready");
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["ready"] => return rules,
            ["listening:", "rule", name, "on", address] => {
                let address = address.parse().expect("an address");
                rules.insert(name.to_owned(), address);
            }
            _ => {}
        }
    }
}

/// The binary of the workspace, built in the profile of these tests. `$EVENKEEL_BIN` is
/// used instead where it is set.
fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(given) = std::env::var_os("EVENKEEL_BIN") {
            return given.into();
        }
        let mut build = Command::new(env!("CARGO"));
        build.args([
            "build",
            "--quiet",
            "--package",
            "evenkeel",
            "--bin",
            "evenkeel",
        ]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        let built = build.status().expect("cargo runs");
        assert!(built.success(), "the balancer cannot be built");
        // This test is target/PROFILE/deps/NAME.
        let test = std::env::current_exe().expect("the path of this test");
        let profile = test.ancestors().nth(2).expect("a target folder");
        profile.join("evenkeel")
    })
}
