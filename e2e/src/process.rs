//! Programs from packages.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

/// Returns true if these programs are installed.
///
/// Missing programs are said on standard error, where no test's capture hides them; where `CI=true`
/// they are a failure, because there everything is installed.
pub fn are_installed(programs: &[&str]) -> bool {
    let missing: Vec<_> = programs
        .iter()
        .filter(|program| find(program).is_none())
        .collect();
    if missing.is_empty() {
        return true;
    }
    report_skipped(&format!(
        "{missing:?} not installed; scripts/setup test does that"
    ));
    false
}

/// Says that this test cannot run here, and why; a failure where `CI=true`.
pub fn report_skipped(why: &str) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let line = format!("SKIPPED: {test}: {why}");
    assert!(!std::env::var("CI").is_ok_and(|ci| ci == "true"), "{line}");
    // Nothing to be done if nobody listens.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Returns true if a command succeeds: its output is not shown.
pub fn succeeds(command: &mut Command) -> bool {
    let output = command.output();
    output.is_ok_and(|output| output.status.success())
}

/// Returns the path of a program. Servers are not on everybody's `PATH`, and programs that are
/// built for the tests alone are in a folder of their own.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<_> = std::env::split_paths(&path).collect();
    folders.push("/usr/sbin".into());
    folders.push(concat!(env!("CARGO_MANIFEST_DIR"), "/.cache").into());
    folders.push(concat!(env!("CARGO_MANIFEST_DIR"), "/.cache/ftp/usr/sbin").into());
    folders.push(concat!(env!("CARGO_MANIFEST_DIR"), "/.cache/ftp/usr/bin").into());
    folders
        .into_iter()
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

/// Variables of the environment that change what Evenkeel, or a program that the tests start, does.
const FOREIGN: &[&str] = &[
    // Evenkeel's own, and what service managers and shells say.
    "RUST_LOG",
    "EVENKEEL_ADMIN",
    "EVENKEEL_TOKEN",
    "EVENKEEL_USER",
    "EVENKEEL_PASSWORD",
    "EVENKEEL_CA_FILE",
    "EVENKEEL_CERT",
    "EVENKEEL_KEY",
    "EVENKEEL_ARM_DIR",
    "EVENKEEL_PREDECESSOR",
    "STATE_DIRECTORY",
    "NOTIFY_SOCKET",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "NO_COLOR",
    // A proxy answers in place of the peer.
    "http_proxy",
    "https_proxy",
    "grpc_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    // Settings of peers.
    "CURL_HOME",
    "OMNIORB_CONFIG",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "GODEBUG",
    "GRPC_XDS_BOOTSTRAP",
    "GRPC_XDS_BOOTSTRAP_CONFIG",
    "OPENSSL_CONF",
    "KUBECONFIG",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "LC_ALL",
    "LC_MESSAGES",
    "LANGUAGE",
];

/// True for variables of the environment that a command must not get from whoever runs the tests.
fn is_foreign(name: &str) -> bool {
    // Some programs take all of their options from variables.
    FOREIGN.contains(&name) || name.starts_with("ETCD_") || name.starts_with("ETCDCTL_")
}

/// Takes from a command what this environment says and the test does not: the command does the same on each machine.
pub fn clean_environment(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        let foreign = name.to_str().is_some_and(is_foreign);
        if foreign && !command.get_envs().any(|(set, _)| set == name) {
            command.env_remove(name);
        }
    }
    command
}

/// A command that is killed with the thread that started it, whatever ends that: no
/// server is left behind by a test that is killed.
pub fn program(program: &str) -> Command {
    ended_by("KILL", program)
}

/// Makes the command of a program that has children, which it ends itself when asked to. The
/// program may well send a signal to its whole group, so it has a group of its own.
pub fn parent_program(program: &str) -> Command {
    let mut command = ended_by("TERM", program);
    command.process_group(0);
    command
}

fn ended_by(signal: &str, program: &str) -> Command {
    let path = find(program).expect("it was asked before whether it is installed");
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", signal, "--"]).arg(path);
    clean_environment(&mut command);
    command
}

/// CPU time that a process has used, all its threads together.
pub fn cpu_time(process: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("the process lives");
    // The second field, its name in parentheses, may hold anything.
    let (_, fields) = stat.rsplit_once(") ").expect("a name");
    let mut fields = fields.split(' ').skip(11);
    let mut ticks = || fields.next().and_then(|ticks| ticks.parse::<u64>().ok());
    let (Some(user), Some(system)) = (ticks(), ticks()) else {
        panic!("no CPU time: {stat}");
    };
    let per_second = rustix::param::clock_ticks_per_second();
    Duration::from_secs_f64((user + system) as f64 / per_second as f64)
}

/// Sends a signal to a process of ours.
pub fn signal(process: u32, signal: Signal) {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    // It may have ended.
    let _ = kill_process(process.expect("a process"), signal);
}

/// Runs `curl` silently: what it prints. It must succeed, and gives up as late as
/// everything else here.
pub fn run_curl(arguments: &[&str]) -> String {
    let output = try_curl(arguments);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "curl {arguments:?}: {} {complaint}",
        output.status
    );
    String::from_utf8(output.stdout).expect("text")
}

/// Runs `curl` silently.
pub fn try_curl(arguments: &[&str]) -> Output {
    let mut curl = program("curl");
    curl.args(["--disable", "--silent", "--show-error", "--max-time", "60"]);
    // Neither a proxy nor settings of the user.
    curl.args(["--noproxy", "*"]);
    curl.args(arguments).output().expect("curl runs")
}
