//! Machines of their own: Debian's kernel under QEMU, with Soft-RoCE.
//!
//! For what this machine's kernel lacks, as the second kernel version, and for several machines
//! with cables between them. They are emulated in software, so they run wherever QEMU does; and
//! slowly.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::folder::Folder;
use crate::process::program;

/// Time that a machine may take that [`run`] has booted; it is turned off then. Beside other work a machine that is
/// emulated takes minutes.
const LIMIT: Duration = Duration::from_secs(1800);

/// Outcome of a machine: the text on the serial console, and the exit code of the program.
pub struct Outcome {
    /// All text on the console.
    pub console: String,
    /// None if the machine went down before the program had ended.
    pub code: Option<i32>,
    /// Time from turning the machine on to its end.
    pub took: Duration,
}

/// Boots a machine in which `programs` are in `/bin`, runs `command` there, and turns it off.
///
/// # Errors
///
/// There can be no such machine here, and why: QEMU or the kernel package cannot be had.
pub fn run(programs: &[&Path], command: &[&str]) -> Result<Outcome, String> {
    let image = Image::build(programs)?;
    let mut machine = image.boot(command, 2, &[])?;
    machine.wait_for_end(Instant::now() + LIMIT);
    Ok(machine.outcome())
}

/// Image from which machines are booted. Running machines need it.
pub struct Image(Folder);

/// End of a cable between two machines.
#[derive(Clone, Debug)]
pub struct End {
    own: PathBuf,
    other: PathBuf,
    mac: String,
}

impl Image {
    /// Puts one together, with `programs` in `/bin`.
    ///
    /// # Errors
    ///
    /// There can be no such machine here, and why: QEMU or the kernel package cannot be had.
    pub fn build(programs: &[&Path]) -> Result<Self, String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("vm");
        // Under target/, so that the package is fetched once.
        let cache = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/vm");
        fs::create_dir_all(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;
        let folder = Folder::new();
        let image = Command::new("bash")
            .arg(source.join("image.sh"))
            .args([&cache, folder.path()])
            .args(programs)
            .output()
            .map_err(|error| format!("bash: {error}"))?;
        let said = String::from_utf8_lossy(&image.stderr).trim().to_owned();
        match image.status.code() {
            Some(0) => Ok(Image(folder)),
            Some(3) => Err(said),
            _ => panic!("the machine's image: {said}"),
        }
    }

    /// The ends of the cable of this number.
    pub fn cable(&self, number: u8) -> [End; 2] {
        let socket = |end: u8| self.0.join(&format!("cable{number}-{end}"));
        [(0, 1), (1, 0)].map(|(own, other)| End {
            own: socket(own),
            other: socket(other),
            mac: format!("52:54:00:00:{number:02x}:{own:02x}"),
        })
    }

    /// Boots a machine with so many processors, which runs `command` and then turns itself off. The
    /// cables are at its interfaces `eth0`, `eth1` and so on; without any, `eth0` leads nowhere.
    ///
    /// # Errors
    ///
    /// QEMU cannot be started.
    pub fn boot(&self, command: &[&str], cpus: u32, cables: &[End]) -> Result<Machine, String> {
        let append = format!(
            "console=ttyS0 quiet panic=-1 no_timer_check mitigations=off run={}",
            command.join(",")
        );
        let mut qemu = program("qemu-system-x86_64");
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max"])
            .args(["-smp", &cpus.to_string(), "-m", "1024"])
            .args(["-display", "none", "-no-reboot"])
            .args(["-serial", "stdio", "-monitor", "none"]);
        for (number, End { own, other, mac }) in cables.iter().enumerate() {
            let (own, other) = (own.display(), other.display());
            qemu.arg("-netdev").arg(format!(
                "dgram,id=net{number},local.type=unix,local.path={own},remote.type=unix,remote.path={other}"
            ));
            qemu.arg("-device").arg(format!(
                "virtio-net-pci,netdev=net{number},mac={mac},romfile="
            ));
        }
        if cables.is_empty() {
            qemu.args(["-netdev", "user,id=net,restrict=on"]);
            qemu.args(["-device", "virtio-net-pci,netdev=net,romfile="]);
        }
        let started = Instant::now();
        let mut machine = qemu
            .args(["-append", &append])
            .arg("-kernel")
            .arg(self.0.join("vmlinuz"))
            .arg("-initrd")
            .arg(self.0.join("initrd"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|error| format!("qemu-system-x86_64: {error}"))?;
        let output = machine.stdout.take().expect("its output");
        let (lines, said) = mpsc::channel();
        // It ends with the machine.
        thread::spawn(move || {
            let lossy = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim_end().to_owned();
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                // Whoever waits has gone when time was up.
                let _ = lines.send(lossy(line));
            }
        });
        Ok(Machine {
            qemu: machine,
            said,
            started,
            console: String::new(),
            code: None,
        })
    }
}

/// A machine, turned off when dropped.
pub struct Machine {
    qemu: Child,
    said: Receiver<String>,
    started: Instant,
    console: String,
    code: Option<i32>,
}

impl Machine {
    /// The next line of its console; none if it is off, or was not said until then.
    pub fn next_line(&mut self, until: Instant) -> Option<String> {
        let left = until.saturating_duration_since(Instant::now());
        match self.said.recv_timeout(left) {
            Ok(line) => {
                self.code = line
                    .strip_prefix("VM: exit code ")
                    .and_then(|code| code.parse().ok())
                    .or(self.code);
                self.console.push_str(&line);
                self.console.push('\n');
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                self.console.push_str("(its time was up)\n");
                None
            }
        }
    }

    /// Waits for its end, but not beyond that moment.
    pub fn wait_for_end(&mut self, until: Instant) {
        while self.next_line(until).is_some() {}
    }

    /// Returns the console's text so far, and the exit code if the program has ended. The machine
    /// is off then.
    pub fn outcome(mut self) -> Outcome {
        Outcome {
            console: std::mem::take(&mut self.console),
            code: self.code,
            took: self.started.elapsed(),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Returns true if this program runs in such a machine.
pub fn runs_in_vm() -> bool {
    fs::read_to_string("/proc/cmdline").is_ok_and(|line| line.contains("run=tests,"))
}
