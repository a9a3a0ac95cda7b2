//! Servers and clients of JacORB, as Maven Central has it: see `e2e/corba/jacorb`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::built::build_once;
use crate::orb::{self, Location, Orb};
use crate::process::{are_installed, program};
use crate::script::Script;

/// The adapter of JacORB.
pub struct JacOrb;

/// A server of JacORB.
pub type Server = orb::Server<JacOrb>;

/// A client of JacORB.
pub type Client = orb::Client<JacOrb>;

/// Returns true if the tools that build a program with JacORB, and run it, are installed.
pub fn can_run() -> bool {
    JacOrb::can_run()
}

impl Orb for JacOrb {
    const WIDE: u8 = 1;
    const IMPATIENT: &'static [&'static str] =
        &["-Djacorb.connection.client.pending_reply_timeout=2000"];
    const TIMEOUT: &'static str = "error TIMEOUT ";

    fn can_run() -> bool {
        are_installed(&["java", "javac", "mvn"])
    }

    /// Options may be properties (`-Djacorb.giop_minor_version=1`), too.
    fn program(words: &[&str], options: &[&str]) -> Command {
        let options = options.iter().copied();
        let (properties, options): (Vec<&str>, Vec<&str>) =
            options.partition(|word| word.starts_with("-D"));
        let mut command = program("java");
        // Many start, and live for seconds. One that looks after files of others' performance data may lock that of
        // another one, which says so where its first answer should be.
        command.args([
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
        ]);
        command.args(["-DOAIAddr=127.0.0.1", "-Dfile.encoding=UTF-8"]);
        command.args(properties).arg("-classpath");
        command.arg(classes().join("*"));
        command.arg("org.evenkeel.peer.Peer");
        command.args(words).args(options);
        command.env_remove("JAVA_TOOL_OPTIONS");
        command
    }

    fn version(minor: u8) -> Vec<String> {
        vec![format!("-Djacorb.giop_minor_version={minor}")]
    }

    fn manager(options: &[&str]) -> Script {
        let manager = Script::start(&mut Self::program(&["manager"], options));
        assert_eq!(manager.read_line(), "ready");
        manager
    }

    fn open(server: &mut Server, at: &str, how: &Location) {
        let push = match how.push {
            0 => String::new(),
            push => format!("push {push}"),
        };
        let Location { loads, check, .. } = how;
        server.run_command(&format!("location {at} rejoin {check} {push} {loads}"));
    }

    /// Does nothing: the library of the server waits by itself.
    fn registered(_: &mut Server, _: &str) {}

    fn is_refused(server: &mut Server, at: &str, _: &str) {
        let refused = server.ask_line(&format!("location {at}"));
        let why = format!("another process has the alert of {at}");
        assert!(refused.contains(&why), "{refused}");
    }

    fn take_over(server: &mut Server, at: &str, group: &str) {
        let measured = Location {
            loads: "requests",
            ..Location::default()
        };
        server.join_with(at, group, &measured);
    }
}

/// The folder of the library, its example, the test program and what they need, built once.
pub fn classes() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| build_once("jacorb", build))
        .join("lib")
}

/// Builds it, the library that it uses, and that library's example.
fn build(folder: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let sources = [
        "modules/java/pom.xml",
        "modules/java/library",
        "modules/java/trading",
        "modules/omniorb/example/stock.idl",
        "crates/corba/idl",
        "e2e/corba/test.idl",
        "e2e/corba/jacorb",
    ];
    let changed = sources.map(|source| newest(&root.join(source)));
    let stamp = folder.join("built");
    if modified(&stamp) > changed.into_iter().max().flatten() {
        return;
    }
    let begun = SystemTime::now();
    let mut maven = program("mvn");
    maven.args(["--quiet", "--batch-mode", "--activate-profiles", "e2e"]);
    maven.arg("--file").arg(root.join("modules/java/pom.xml"));
    maven.arg(format!("-Dbuild.folder={}", folder.display()));
    let made = maven.arg("package").output().expect("maven runs");
    let said = String::from_utf8_lossy(&made.stdout);
    assert!(made.status.success(), "it cannot be built: {said}");
    let written = fs::File::create(&stamp).and_then(|stamp| stamp.set_modified(begun));
    written.expect("a file");
}

/// Returns the time when a file was changed last.
fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|file| file.modified()).ok()
}

/// Returns the time when something in a folder, or the file itself, was changed last.
fn newest(path: &Path) -> Option<SystemTime> {
    let own = modified(path);
    let Ok(entries) = fs::read_dir(path) else {
        return own;
    };
    let entries = entries.map(|entry| newest(&entry.expect("an entry").path()));
    entries.max().flatten().max(own)
}
