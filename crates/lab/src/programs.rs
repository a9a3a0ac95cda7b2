//! Programs of real runs, which end with the run, their files, and meters of their CPU and memory.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid};

use crate::search_path::find_program;

/// Things that must not remain after a run: its folders, and programs that may write there, each
/// the first of a process group.
#[derive(Debug)]
struct Left {
    folders: Vec<PathBuf>,
    programs: Vec<Pid>,
}

static LEFT: Mutex<Left> = Mutex::new(Left {
    folders: Vec::new(),
    programs: Vec::new(),
});

fn left() -> MutexGuard<'static, Left> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Left {
    fn end(&mut self) {
        for program in &self.programs {
            // A program that has ended already needs no signal.
            let _ = kill_process_group(*program, Signal::TERM);
        }
        let begun = Instant::now();
        for program in self.programs.drain(..) {
            while matches!(waitpid(Some(program), WaitOptions::NOHANG), Ok(None))
                && begun.elapsed() < END
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = kill_process_group(program, Signal::KILL);
            let _ = waitpid(Some(program), WaitOptions::empty());
        }
        for folder in self.folders.drain(..) {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Ends the lab when a signal says so: the programs of a real run first, then its files, then itself.
pub fn end_on_signal(code: i32) -> ! {
    // The lock is kept, so that nothing new is begun.
    let mut left = left();
    left.end();
    std::process::exit(code)
}

/// A temporary folder, which everybody may read, and which goes with the value, or when a signal ends
/// the lab.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("evenkeel-lab-{name}-{}", std::process::id()));
        left().folders.push(path.clone());
        let folder = Folder(path);
        folder.make("")?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn told<T>(&self, name: &str, result: std::io::Result<T>) -> Result<T, String> {
        result.map_err(|error| format!("{}: {error}", self.0.join(name).display()))
    }

    pub(crate) fn make(&self, name: &str) -> Result<(), String> {
        let path = self.0.join(name);
        self.told(name, fs::create_dir_all(&path))?;
        let rights = Permissions::from_mode(0o755);
        self.told(name, fs::set_permissions(path, rights))
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf, String> {
        let path = self.0.join(name);
        self.told(name, fs::write(&path, text))?;
        Ok(path)
    }

    /// A file of this many zeros, which takes no room.
    pub(crate) fn make_sparse_file(&self, name: &str, size: u64) -> Result<(), String> {
        let made = File::create(self.0.join(name)).and_then(|file| {
            file.set_permissions(Permissions::from_mode(0o644))?;
            file.set_len(size)
        });
        self.told(name, made)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing to be done if it cannot be removed.
        let _ = fs::remove_dir_all(&self.0);
        left().folders.retain(|folder| *folder != self.0);
    }
}

/// Runs a program to its end. `what` it does is in the error, with the last that it said.
pub(crate) fn run(what: &str, command: &mut Command) -> Result<(), String> {
    let output =
        run_to_end(command).map_err(|error| format!("{what}: cannot be started: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{what}: {}: {}",
            output.status,
            last_lines(&output)
        )),
    }
}

/// Runs a program to its end, which comes when a signal ends the lab, too; answers what it has said.
pub(crate) fn run_to_end(command: &mut Command) -> std::io::Result<Output> {
    command.stdin(Stdio::null()).process_group(0);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = spawn(command)?;
    let id = pid(&child);
    let output = child.wait_with_output();
    forget(id);
    output
}

/// Starts the first program of a group.
fn spawn(command: &mut Command) -> std::io::Result<Child> {
    let mut left = left();
    let child = command.process_group(0).spawn()?;
    left.programs.extend(pid(&child));
    Ok(child)
}

fn forget(program: Option<Pid>) {
    left().programs.retain(|known| Some(*known) != program);
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// The last lines of what a program has said.
pub(crate) fn last_lines(output: &Output) -> String {
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said);
    let lines: Vec<&str> = said.lines().collect();
    let last = lines.get(lines.len().saturating_sub(LAST)..);
    last.unwrap_or_default().join("; ")
}

/// Lines of a program that has failed.
const LAST: usize = 8;

/// A program with its children, which is ended with the value, or when the lab itself ends.
pub(crate) struct Process {
    name: String,
    child: Child,
    output: PathBuf,
}

impl Process {
    pub(crate) fn start(
        folder: &Folder,
        name: &str,
        program: &Path,
        arguments: &[&OsStr],
    ) -> Result<Self, String> {
        let program = match program.is_absolute() {
            true => program.to_owned(),
            false => find_program(&program.to_string_lossy())
                .ok_or_else(|| format!("{}: is not installed", program.display()))?,
        };
        let fails = |error| format!("{name}: cannot be started: {error}");
        let output = folder.path().join(format!("{name}.log"));
        let log = File::create(&output).map_err(fails)?;
        // The program may send a signal to its group, and so has a group of its own.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "TERM", "--"])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(fails)?)
            .stderr(log);
        let child = spawn(&mut command).map_err(fails)?;
        let name = name.to_owned();
        Ok(Process {
            name,
            child,
            output,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// An error with the end of what it said, if it has ended.
    pub(crate) fn lives(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                let said = fs::read_to_string(&self.output).unwrap_or_default();
                let last = said.trim().lines().next_back().unwrap_or_default();
                Err(format!("{} has ended ({status}): {last}", self.name))
            }
            Err(error) => Err(format!("{}: {error}", self.name)),
        }
    }
}

/// Time that a program may take to end.
const END: Duration = Duration::from_secs(3);

impl Drop for Process {
    fn drop(&mut self) {
        let Some(id) = pid(&self.child) else {
            return;
        };
        // Whatever has ended already needs no signal, and nothing can be done where it is refused.
        let _ = kill_process(id, Signal::TERM);
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < END {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = kill_process_group(id, Signal::KILL);
        let _ = self.child.wait();
        forget(Some(id));
    }
}

/// Reads how much CPU a process and its children use.
pub(crate) struct Meter {
    process: u32,
    /// Time of the last reading, and the time that each process had used until then, in
    /// nanoseconds.
    at: Instant,
    used: HashMap<u32, u64>,
}

impl Meter {
    pub(crate) fn new(process: u32) -> Self {
        let mut meter = Meter {
            process,
            at: Instant::now(),
            used: HashMap::new(),
        };
        meter.cpu();
        meter
    }

    /// CPU since the last time, in % of one CPU. What a process has used that has ended since is not in
    /// it.
    pub(crate) fn cpu(&mut self) -> f64 {
        let (mut all, mut used) = (0, HashMap::new());
        for process in tree(self.process) {
            let now = used_by(process);
            all += now.saturating_sub(self.used.get(&process).copied().unwrap_or(0));
            used.insert(process, now);
        }
        let at = Instant::now();
        let elapsed = at.duration_since(self.at).as_nanos().max(1) as f64;
        (self.at, self.used) = (at, used);
        100.0 * all as f64 / elapsed
    }

    /// Anonymous memory in kB: what the processes have allocated and written. Pages of files, which other processes
    /// share, are not in it: a share of them changes whenever another process that has them starts or ends.
    pub(crate) fn memory(&self) -> f64 {
        tree(self.process).into_iter().map(memory_of).sum()
    }
}

/// The threads of a process.
fn threads(process: u32) -> impl Iterator<Item = PathBuf> {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    threads
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
}

/// A process, and all below it.
fn tree(process: u32) -> Vec<u32> {
    let (mut all, mut next) = (vec![process], 0);
    while let Some(&process) = all.get(next) {
        for thread in threads(process) {
            let children = fs::read_to_string(thread.join("children")).unwrap_or_default();
            all.extend(
                children
                    .split_whitespace()
                    .filter_map(|child| child.parse::<u32>().ok()),
            );
        }
        next += 1;
    }
    all
}

/// CPU time of all threads of a process, in nanoseconds.
fn used_by(process: u32) -> u64 {
    let used = |thread: PathBuf| {
        let text = fs::read_to_string(thread.join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    threads(process).filter_map(used).sum()
}

fn memory_of(process: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"));
    let value = line.and_then(|line| line.trim().split(' ').next()?.parse().ok());
    value.unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_measured_with_its_children_and_ends_with_its_value() {
        let folder = Folder::new("test").unwrap();
        let script = format!(
            "cd '{}'\n(while :; do :; done) &\necho $! > child\nwait",
            folder.path().display()
        );
        let arguments = [OsStr::new("-c"), OsStr::new(&script)];
        let mut process = Process::start(&folder, "sh", Path::new("sh"), &arguments).unwrap();
        let file = folder.path().join("child");
        let child = loop {
            process.lives().unwrap();
            let text = fs::read_to_string(&file).unwrap_or_default();
            if let Ok(child) = text.trim().parse::<u32>() {
                break child;
            }
            std::thread::yield_now();
        };
        assert!(tree(process.id()).contains(&child));
        let mut meter = Meter::new(process.id());
        while meter.cpu() == 0.0 {
            std::thread::yield_now();
        }
        assert!(meter.memory() > 0.0);
        drop(process);
        // Killed it is in any case; what is left of it is there until somebody has asked how it ended.
        let command = format!("/proc/{child}/cmdline");
        while fs::read(&command).is_ok_and(|command| !command.is_empty()) {
            std::thread::yield_now();
        }
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn nothing_is_left_when_a_signal_ends_the_lab() {
        let path = std::env::temp_dir().join(format!("evenkeel-lab-left-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("file"), "").unwrap();
        // A program that ends when it is asked to, and a program that has to be killed.
        let start = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).current_dir(&path);
            command.process_group(0).spawn().unwrap()
        };
        let stubborn = "trap '' TERM; touch ready; while :; do sleep 0.01; touch file; done";
        let mut children = [start("sleep 600"), start(stubborn)];
        while !path.join("ready").exists() {
            std::thread::yield_now();
        }
        let mut left = Left {
            folders: vec![path.clone()],
            programs: children.iter().filter_map(pid).collect(),
        };
        left.end();
        assert!(!path.exists());
        for child in &mut children {
            assert!(!Path::new(&format!("/proc/{}", child.id())).exists());
            // The child was waited for already.
            assert!(child.wait().is_err());
        }
        assert!(left.folders.is_empty() && left.programs.is_empty());
    }

    #[test]
    fn a_program_that_fails_is_told_with_what_it_said_last() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "for n in 1 2 3 4 5 6 7 8; do echo $n; done; echo why >&2; exit 3",
        ]);
        let error = run("counting", &mut command).unwrap_err();
        assert!(
            error.starts_with("counting: exit status: 3: 2; 3;"),
            "{error}"
        );
        assert!(error.ends_with("8; why"), "{error}");
        assert_eq!(run("nothing", &mut Command::new("true")), Ok(()));
    }

    #[test]
    fn a_program_that_ends_says_why() {
        let folder = Folder::new("ends").unwrap();
        let arguments = [OsStr::new("-c"), OsStr::new("echo because >&2; exit 3")];
        let mut process = Process::start(&folder, "sh", Path::new("sh"), &arguments).unwrap();
        let error = loop {
            if let Err(error) = process.lives() {
                break error;
            }
            std::thread::yield_now();
        };
        assert!(
            error.contains("sh has ended") && error.contains("because"),
            "{error}"
        );
    }
}
