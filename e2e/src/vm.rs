//! A machine of its own: Debian's kernel under QEMU, with Soft-RoCE.
//!
//! For what this machine's kernel lacks, and as the second kernel version. It is emulated in
//! software, so it runs wherever QEMU does; and slowly.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::folder::Folder;
use crate::process::program;

/// How long it may take. The machine is turned off then.
const LIMIT: Duration = Duration::from_secs(300);

/// What was said on the serial console, and with what code the program ended.
pub struct Outcome {
    /// Everything.
    pub console: String,
    /// None if the machine went down before the program had ended.
    pub code: Option<i32>,
    /// From turning it on to its end.
    pub took: Duration,
}

/// Boots a machine in which `programs` are in `/bin`, runs `command` there, and turns it off.
///
/// # Errors
///
/// There can be no such machine here, and why: QEMU or the kernel package cannot be had.
pub fn run(programs: &[&Path], command: &[&str]) -> Result<Outcome, String> {
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
        Some(0) => {}
        Some(3) => return Err(said),
        _ => panic!("the machine's image: {said}"),
    }
    let append = format!(
        "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check run={}",
        command.join(",")
    );
    let started = Instant::now();
    let mut machine = program("qemu-system-x86_64")
        .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"])
        .args(["-m", "1024", "-display", "none", "-no-reboot"])
        .args(["-serial", "stdio", "-monitor", "none"])
        .args([
            "-netdev",
            "user,id=net,restrict=on",
            "-device",
            "virtio-net-pci,netdev=net,romfile=",
        ])
        .args(["-append", &append])
        .arg("-kernel")
        .arg(folder.join("vmlinuz"))
        .arg("-initrd")
        .arg(folder.join("initrd"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|error| format!("qemu-system-x86_64: {error}"))?;
    let output = machine.stdout.take().expect("its output");
    let (lines, said) = mpsc::channel();
    let reader = thread::spawn(move || {
        let lossy = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            // Whoever waits has gone when time was up.
            let _ = lines.send(lossy(line));
        }
    });
    let (mut console, mut code) = (String::new(), None);
    loop {
        let left = LIMIT.saturating_sub(started.elapsed());
        match said.recv_timeout(left) {
            Ok(line) => {
                let line = line.trim_end();
                code = line
                    .strip_prefix("VM: exit code ")
                    .and_then(|code| code.parse().ok())
                    .or(code);
                console.push_str(line);
                console.push('\n');
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                console.push_str("(its time was up)\n");
                // It may have ended by itself.
                let _ = machine.kill();
                break;
            }
        }
    }
    // It has ended, or was killed.
    let _ = machine.wait();
    let _ = reader.join();
    Ok(Outcome {
        console,
        code,
        took: started.elapsed(),
    })
}

/// Whether this program runs in such a machine.
pub fn inside() -> bool {
    fs::read_to_string("/proc/cmdline").is_ok_and(|line| line.contains("run=tests,"))
}
