//! Servers and clients of JacORB, as Maven Central has it: see `e2e/corba/jacorb`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::built::built;
use crate::process::{installed, program};
use crate::script::{Script, scripted};

/// Whether what builds a program with JacORB, and runs it, is installed.
pub fn can_run() -> bool {
    installed(&["java", "javac", "mvn"])
}

/// A server with a `PeerTest::Peer` and a `PeerTest::SessionFactory`, killed when dropped.
///
/// It can join groups by our library for Java, as `Server.java` tells.
pub struct Server {
    script: Script,
    peer: String,
    sessions: String,
}

impl Server {
    /// Starts a server that calls itself `name`, and waits until it serves.
    ///
    /// `arguments` are further ones: properties (`-Djacorb.giop_minor_version=1`), and those
    /// for the ORB, such as `-ORBInitRef LoadManager=…`. It listens on a port of its own
    /// unless they say where (`-DOAPort=PORT`).
    pub fn start(name: &str, arguments: &[&str]) -> Self {
        let script = Script::start(&mut peer(&["server", name], arguments));
        let [peer, sessions] = [script.line(), script.line()];
        assert!(peer.starts_with("IOR:"), "no reference: {peer}");
        assert_eq!(script.line(), "ready");
        Self {
            script,
            peer,
            sessions,
        }
    }

    /// The reference of its `Peer`: `IOR:…`.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The reference of its `SessionFactory`.
    pub fn sessions(&self) -> &str {
        &self.sessions
    }

    /// How many requests its objects have answered.
    pub fn served(&mut self) -> u64 {
        let served = self.script.ask("served");
        served.parse().expect("a number")
    }
}

/// An application that calls the load manager (`-ORBInitRef LoadManager=…`) by the stubs of
/// its IDL, killed when dropped: `manager.ask("create_object …")` and all other operations,
/// as `Manager.java` tells.
pub struct Manager(Script);

impl Manager {
    /// Starts it, and waits until it has found the load manager.
    pub fn start(arguments: &[&str]) -> Self {
        let manager = Self(Script::start(&mut peer(&["manager"], arguments)));
        assert_eq!(manager.line(), "ready");
        manager
    }
}

/// A client, killed when dropped. It knows nothing of load balancing.
pub struct Client(Script);

impl Client {
    /// A client that makes the calls it is told to: `client.ask("who")`, and other
    /// operations as `Client.java` lists them. An exception is `error NAME MINOR COMPLETED`.
    ///
    /// `reference` may also be `corbaloc:…`, or a name given with `-ORBInitRef`.
    pub fn start(reference: &str, arguments: &[&str]) -> Self {
        let client = Self::repeat(reference, "", arguments);
        assert_eq!(client.line(), "ready");
        client
    }

    /// A client that repeats an operation, as told by `--count N`, `--rate HZ`, `--warm N`,
    /// `--each` and `--latencies`: see `Client.java` for what it prints.
    pub fn repeat(reference: &str, operation: &str, arguments: &[&str]) -> Self {
        let mut words = vec!["client", reference];
        words.extend(operation.split_whitespace());
        Self(Script::start(&mut peer(&words, arguments)))
    }
}

scripted!(Server, script);
scripted!(Client, 0);
scripted!(Manager, 0);

/// The folder of the library, its example, the test program and what they need, built once.
pub fn classes() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("jacorb", build)).join("lib")
}

/// The test program.
fn peer(words: &[&str], arguments: &[&str]) -> Command {
    let (properties, arguments): (Vec<&str>, Vec<&str>) = arguments
        .iter()
        .copied()
        .partition(|word| word.starts_with("-D"));
    let mut command = program("java");
    // Many start, and live for seconds.
    command.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
    command.args(["-DOAIAddr=127.0.0.1", "-Dfile.encoding=UTF-8"]);
    command.args(properties).arg("-classpath");
    command.arg(classes().join("*"));
    command.arg("org.evenkeel.peer.Peer");
    command.args(words).args(arguments);
    command.env_remove("JAVA_TOOL_OPTIONS");
    command
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

/// When a file was changed last.
fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|file| file.modified()).ok()
}

/// When something in a folder, or the file itself, was changed last.
fn newest(path: &Path) -> Option<SystemTime> {
    let own = modified(path);
    let Ok(entries) = fs::read_dir(path) else {
        return own;
    };
    let entries = entries.map(|entry| newest(&entry.expect("an entry").path()));
    entries.max().flatten().max(own)
}
