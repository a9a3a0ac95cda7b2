//! Machines that are none: network namespaces with a cable between them.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Two namespaces with a veth pair; gone when dropped.
///
/// The front has the interface [`FRONT`] with the addresses 10.77.0.1 and fd77::1, the back
/// [`BACK`] with 10.77.0.2 and fd77::2. Both have a loopback interface.
pub struct Pair {
    /// Namespace of a balancer.
    pub front: Namespace,
    /// Namespace of the balancer's back-end.
    pub back: Namespace,
}

/// The interface of the front.
pub const FRONT: &str = "front0";
/// The interface of the back.
pub const BACK: &str = "back0";
/// The addresses of the back.
pub const BACK4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
/// Address of the back in IPv6.
pub const BACK6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2));

/// A network namespace; gone when dropped, with all that is in it.
pub struct Namespace(String);

impl Pair {
    /// None if this machine does not let us, which is said.
    pub fn new() -> Option<Self> {
        if !crate::process::are_installed(&["ip", "nsenter", "ethtool"]) {
            return None;
        }
        let (Some(front), Some(back)) = (Namespace::new("front"), Namespace::new("back")) else {
            crate::process::report_skipped("no right to make network namespaces; run it as root");
            return None;
        };
        let (a, b) = (&front.0, &back.0);
        run_ip(&format!(
            "link add {FRONT} netns {a} type veth peer name {BACK} netns {b}"
        ));
        for (namespace, interface, last) in [(a, FRONT, 1), (b, BACK, 2)] {
            let address = "addr add";
            run_ip(&format!(
                "-n {namespace} {address} 10.77.0.{last}/24 dev {interface}"
            ));
            // Nobody else has it, which duplicate address detection takes a second to find.
            run_ip(&format!(
                "-n {namespace} {address} fd77::{last}/64 dev {interface} nodad"
            ));
            run_ip(&format!("-n {namespace} link set lo up"));
            run_ip(&format!("-n {namespace} link set {interface} up"));
        }
        // Without it, what an XDP program at the other end sends back is dropped.
        let gro = front
            .command("ethtool")
            .args(["-K", FRONT, "gro", "on"])
            .status();
        assert!(gro.expect("ethtool runs").success());
        Some(Pair { front, back })
    }
}

impl Namespace {
    /// Makes a namespace with nothing but a loopback interface; none if this machine does not let
    /// us, which is said.
    pub fn with_loopback() -> Option<Self> {
        if !crate::process::are_installed(&["ip", "nsenter"]) {
            return None;
        }
        let namespace = Namespace::new("alone");
        match &namespace {
            Some(namespace) => run_ip(&format!("-n {} link set lo up", namespace.0)),
            None => crate::process::report_skipped(
                "no right to make network namespaces; run it as root",
            ),
        }
        namespace
    }

    fn new(role: &str) -> Option<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("evk-{}-{number}-{role}", process::id());
        if Path::new("/run/netns").join(&name).exists() {
            // A process that was killed has left it, and had the number of this one.
            run_ip(&format!("netns del {name}"));
        }
        let mut made = Command::new("ip");
        made.args(["netns", "add", &name]).stderr(Stdio::null());
        let namespace = made
            .status()
            .is_ok_and(|status| status.success())
            .then_some(Self(name))?;
        namespace.use_addresses_at_once();
        Some(namespace)
    }

    /// Switches off the detection of duplicate addresses: for a second after an interface is up its link-local
    /// address cannot be used, and who is to be asked for a neighbour's address from there waits as long.
    fn use_addresses_at_once(&self) {
        self.run_inside(|| {
            for which in ["all", "default"] {
                // Without IPv6 there is no such file, and nothing to detect.
                let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{which}/accept_dad"), "0");
            }
        });
    }

    /// The file that stands for it.
    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.0)
    }

    /// A command that runs in it. It sees the same files: `ip netns exec` would hide
    /// `/sys/fs/bpf`.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        crate::process::clean_environment(&mut command)
            .arg(format!("--net={}", self.path().display()))
            .arg("--")
            .arg(program);
        command
    }

    /// Does something in it. Sockets that are made there stay in it.
    pub fn run_inside<T: Send>(&self, something: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(self.path()).expect("the namespace is there");
        thread::scope(|scope| {
            let inside = scope.spawn(move || {
                move_into_link_name_space(
                    std::os::fd::AsFd::as_fd(&namespace),
                    Some(LinkNameSpaceType::Network),
                )
                .expect("the thread moves into it");
                something()
            });
            inside.join().expect("it succeeds inside")
        })
    }

    /// Processes that are in it.
    pub fn processes(&self) -> String {
        let mut pids = Command::new("ip");
        let output = pids
            .args(["netns", "pids", &self.0])
            .output()
            .expect("ip runs");
        String::from_utf8(output.stdout)
            .expect("text")
            .trim()
            .to_owned()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Interfaces and filters go with the namespace, pins do not.
        remove_pins(&self.path());
        // What is left of an empty one hurts nobody.
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Removes what balancers in a namespace have left of forwarding in the kernel.
fn remove_pins(namespace: &Path) {
    let (Ok(about), Ok(pins)) = (
        fs::metadata(namespace),
        fs::read_dir("/sys/fs/bpf/evenkeel"),
    ) else {
        return;
    };
    let end = format!("-{}", about.ino());
    for pin in pins.flatten() {
        let name = pin.file_name().to_string_lossy().into_owned();
        let is_ours = ["forward-", "tunnel-"]
            .iter()
            .any(|kind| name.starts_with(kind));
        if is_ours && name.ends_with(&end) {
            let _ = fs::remove_dir_all(pin.path());
        }
    }
}

/// Runs `ip` with these words.
pub fn run_ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status();
    assert!(status.expect("ip runs").success(), "ip {words}");
}
