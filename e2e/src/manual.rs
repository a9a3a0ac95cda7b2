//! The pages of the manual, followed command by command.
//!
//! A page has machines of its own: name spaces for network, files and processes, so that its
//! commands run as they stand, on the ports that they name. Its blocks are taken in order, as
//! a reader would. What a block is says its language; what a reader knows from the text around
//! it, a [`Mark`] says.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::HANG;
use crate::balancer::{evenkeel_binary, lab_binary};
use crate::folder::Folder;
use crate::process::{report_skipped, succeeds};
use crate::theirs::Other;

/// Time limit that only a command that hangs reaches: some of the manual's commands run for half a
/// minute.
const COMMAND_HANGS: Duration = Duration::from_secs(180);

/// Names in the manual that no test may use, and what stands for them.
const INSTEAD: [(&str, &str); 1] = [("\"/etc/evenkeel/", "\"")];

/// All pages that readers may find.
pub fn pages() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut pages = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a file of the tree") {
            let path = entry.expect("a file of the tree").path();
            let name = path
                .file_name()
                .expect("a file of the tree")
                .to_str()
                .expect("a file of the tree");
            // Pages behind a link have their place elsewhere.
            let is_ours = !name.starts_with('.')
                && !["target", "node_modules"].contains(&name)
                && !path.is_symlink();
            if path.is_dir() && is_ours {
                folders.push(path);
            } else if name.ends_with(".md") {
                let page = path.strip_prefix(&root).expect("a file of the tree");
                pages.push(page.to_str().expect("a file of the tree").to_owned());
            }
        }
    }
    pages
}

/// A fenced block of a page.
#[derive(Debug)]
pub struct Block {
    /// Line of its fence.
    pub line: usize,
    /// Language that stands behind the fence.
    pub language: String,
    /// Lines of the block, without their common indentation.
    pub text: String,
    /// The comments right before it.
    pub marks: Vec<Mark>,
}

/// An HTML comment right before a block: `<!-- not run: takes an hour -->`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// `not run: REASON`: commands that cannot run in a test.
    NotRun,
    /// `not compared: REASON`: what it prints is that of another machine.
    NotCompared,
    /// `file: NAME`: the reader saves it under that name.
    File(String),
    /// `output`: what the commands before it print.
    Output,
    /// `exit status: N`: how its commands end, if not with success.
    Status(i32),
    /// `in: TABLE`: keys of that table, of a rule or of a group.
    In(String),
    /// `of: NAME`: configuration of another balancer, in a language that several use.
    Of(Other),
    /// `ends all`: after these commands nothing of the page runs.
    EndsAll,
}

impl Mark {
    fn parse(text: &str) -> Option<Self> {
        let (word, rest) = text.split_once(": ").unwrap_or((text, ""));
        Some(match (word, rest) {
            ("not run", reason) if !reason.is_empty() => Self::NotRun,
            ("not compared", reason) if !reason.is_empty() => Self::NotCompared,
            ("file", name) if !name.is_empty() => Self::File(name.to_owned()),
            ("exit status", number) => Self::Status(number.parse().ok()?),
            ("of", name) => Self::Of(Other::from_name(name)?),
            ("in", table) if !table.is_empty() => Self::In(table.to_owned()),
            ("output", "") => Self::Output,
            ("ends all", "") => Self::EndsAll,
            _ => return None,
        })
    }

    /// Returns true if a block of that language may have the mark.
    fn fits(&self, language: &str) -> bool {
        let commands = matches!(language, "sh" | "console");
        match self {
            Self::NotRun | Self::Status(_) | Self::EndsAll | Self::NotCompared => commands,
            Self::File(_) => !commands,
            Self::Output => language == "text",
            Self::In(_) => language == "toml",
            Self::Of(_) => language == "yaml",
        }
    }
}

/// The blocks of a page, or what is wrong with it.
///
/// # Errors
///
/// A line for each block without a language, each comment that is no mark or not of this kind
/// of block, and all commands that stand where no test would find them.
pub fn parse_blocks(page: &str, text: &str) -> Result<Vec<Block>, String> {
    let mut wrong = String::new();
    let mut blocks: Vec<Block> = Vec::new();
    let mut marks: Vec<(usize, &str)> = Vec::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let content = line.trim_start();
        if let Some(comment) = content.strip_prefix("<!--") {
            marks.push((number, comment.trim_end_matches("-->").trim()));
            continue;
        }
        let Some(language) = content.strip_prefix("```") else {
            for (at, mark) in marks.drain(..) {
                if Mark::parse(mark).is_some() {
                    let _ = writeln!(wrong, "{page}:{at}: {mark:?} is not right before a block");
                }
            }
            if line.starts_with("    ") && is_command(content) {
                let _ = writeln!(wrong, "{page}:{number}: put commands into a fenced block");
            }
            continue;
        };
        let indent = line.len() - content.len();
        let mut block = Block {
            line: number,
            language: language.trim().to_owned(),
            text: String::new(),
            marks: Vec::new(),
        };
        for (_, line) in lines.by_ref() {
            if line.trim_start().starts_with("```") {
                break;
            }
            block.text += line.get(indent..).unwrap_or("");
            block.text.push('\n');
        }
        for (at, mark) in marks.drain(..) {
            match Mark::parse(mark) {
                Some(mark) if mark.fits(&block.language) => block.marks.push(mark),
                _ => {
                    let _ = writeln!(wrong, "{page}:{at}: no mark of such a block: {mark:?}");
                }
            }
        }
        let prompted = block.text.lines().any(|line| prompted(line).is_some());
        let hint = match block.language.as_str() {
            "" => "say what it is: sh, console, toml, text …",
            "sh" | "toml" | "text" if prompted => "commands with a prompt are a console block",
            "text" if block.text.lines().any(is_command) && block.marks.is_empty() => {
                "commands are an sh block"
            }
            "bash" | "shell" => "call it sh",
            _ => "",
        };
        if !hint.is_empty() {
            let _ = writeln!(wrong, "{page}:{number}: {hint}");
        }
        blocks.push(block);
    }
    if wrong.is_empty() {
        Ok(blocks)
    } else {
        Err(wrong)
    }
}

/// The command behind a prompt; `#` is that of root.
fn prompted(line: &str) -> Option<&str> {
    let command = line.strip_prefix("$ ");
    command.or_else(|| line.strip_prefix("# ").filter(|line| is_command(line)))
}

/// Returns true if a line looks like a command of ours.
fn is_command(line: &str) -> bool {
    const STARTS: [&str; 8] = [
        "evenkeel ",
        "curl ",
        "make ",
        "cargo ",
        "sudo ",
        "python3 ",
        "hey ",
        "export ",
    ];
    // A list of commands, as `evenkeel help` prints it.
    let is_usage = line.contains("  ") || line.contains('…');
    !is_usage && STARTS.iter().any(|start| line.starts_with(start))
}

/// Follows a page from its first block to its last.
///
/// `set_up` are commands for what the page takes as given: servers, names, a balancer.
pub fn follow_page(page: &str, set_up: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(page);
    let text = fs::read_to_string(path).expect("the page");
    let blocks = parse_blocks(page, &text).unwrap_or_else(|wrong| panic!("{wrong}"));
    let Some(mut session) = Session::start(page) else {
        return;
    };
    session.set_up(set_up);
    for block in &blocks {
        session.take(block);
    }
    session.check_pieces();
}

/// A reader at a shell.
struct Session {
    page: String,
    shell: Child,
    stdin: ChildStdin,
    answers: Receiver<String>,
    /// Folder in which commands and their outputs are kept.
    notes: Folder,
    /// The root of the project, as the reader has it.
    project: Folder,
    commands: usize,
    /// Outputs of the commands of the last block.
    printed: Vec<Printed>,
    /// Configurations that have not been checked yet, by the line of their block.
    pieces: Vec<(usize, PathBuf)>,
    listeners: usize,
}

/// A command, and what it has printed.
struct Printed {
    command: String,
    output: String,
    status: i32,
}

impl Session {
    /// None if this machine does not let us, which is said.
    fn start(page: &str) -> Option<Self> {
        let mut spaces = vec!["--net", "--mount", "--pid", "--fork", "--kill-child"];
        spaces.push("--mount-proc");
        if !succeeds(Command::new("unshare").args(&spaces).arg("true")) {
            report_skipped("no right to make name spaces; run it as root");
            return None;
        }
        let (notes, project) = (Folder::new(), Folder::new());
        // Nobody else may write there: root reads no configuration below a folder that others may write.
        let dist = project.path().join("target/dist");
        fs::create_dir_all(&dist).expect("a folder");
        for (program, name) in [
            (evenkeel_binary(), "evenkeel"),
            (lab_binary(), "evenkeel-lab"),
        ] {
            std::os::unix::fs::symlink(program, dist.join(name)).expect("a link");
        }
        // As at a terminal.
        project.write(".curlrc", "silent\nshow-error\n");
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--", "unshare"])
            .args(&spaces)
            .args(["bash", "--noprofile", "--norc"])
            .current_dir(project.path())
            .env_clear()
            .env("HOME", project.path())
            .env("LANG", "C.UTF-8")
            .env("TERM", "xterm")
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut shell = command.spawn().expect("a shell");
        let stdin = shell.stdin.take().expect("it is piped");
        let stdout = BufReader::new(shell.stdout.take().expect("it is piped"));
        let (answered, answers) = channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // The test may have ended.
                let _ = answered.send(line);
            }
        });
        Some(Self {
            page: page.to_owned(),
            shell,
            stdin,
            answers,
            notes,
            project,
            commands: 0,
            printed: Vec::new(),
            pieces: Vec::new(),
            listeners: 0,
        })
    }

    fn set_up(&mut self, more: &str) {
        // Nothing of the machine's own but its programs. An interface whose driver has XDP.
        const MACHINE: &str = r#"set -e -m
            mount -t tmpfs -o mode=755 none /run
            mount -t tmpfs -o mode=1777 none /dev/shm
            mkdir /run/evenkeel-test
            ip link set lo up
            names() { printf '127.0.0.1 %s\n' localhost "$@" > /run/evenkeel-test/hosts
                      mount --bind /run/evenkeel-test/hosts /etc/hosts; }
            names
            listening() { until (: < "/dev/tcp/${1%:*}/${1##*:}") 2> /dev/null; do sleep 0.05; done; }
            serve() { mkdir -p /run/evenkeel-test/www
                      for at in "$@"; do
                        (python3 -m http.server --bind "${at%:*}" --directory /run/evenkeel-test/www \
                           "${at##*:}" > /dev/null 2>&1 &)
                      done
                      for at in "$@"; do listening "$at"; done; }
            balance() { (evenkeel run "$1" > "$1.log" 2>&1 &)
                        until grep -qx ready "$1.log"; do sleep 0.05; done; }
        "#;
        let done = self.run(&format!("{MACHINE}\n{more}\nset +e"));
        assert_eq!(done.status, 0, "{}: its set-up fails:\n{more}", self.page);
        self.listeners = self.listening();
    }

    /// Returns the number of TCP sockets that listen.
    fn listening(&mut self) -> usize {
        let all = self.run("cat /proc/net/tcp /proc/net/tcp6").output;
        let state = |line: &str| line.split_whitespace().nth(3) == Some("0A");
        all.lines().filter(|line| state(line)).count()
    }

    fn take(&mut self, block: &Block) {
        let file = block.marks.iter().find_map(|mark| match mark {
            Mark::File(name) => Some(name.as_str()),
            _ => None,
        });
        if let Some(name) = file {
            self.write(name, &block.text);
        }
        match block.language.as_str() {
            "sh" | "console" => self.execute(block),
            "toml" => {
                let whole = block.marks.iter().find_map(|mark| match mark {
                    Mark::In(table) => Some(format!("{}{}", frame(table), block.text)),
                    _ => None,
                });
                let name = format!("block-{}.toml", block.line);
                let path = self.write(&name, whole.as_ref().unwrap_or(&block.text));
                self.pieces.push((block.line, path));
            }
            "python" => {
                let name = format!("block-{}.py", block.line);
                let path = self.write(&name, &block.text);
                let compiled = self.run(&format!("python3 -m py_compile {}", path.display()));
                assert_eq!(compiled.status, 0, "{}:{}", self.page, block.line);
            }
            "haproxy" => self.check_other(block, Other::Haproxy),
            "nginx" => self.check_other(block, Other::Nginx),
            "yaml" => {
                for mark in &block.marks {
                    if let Mark::Of(other) = mark {
                        self.check_other(block, *other);
                    }
                }
            }
            "text" if block.marks == [Mark::Output] => self.compare(block.line, 0, &block.text),
            _ => {}
        }
    }

    /// Writes a file where the reader is.
    fn write(&mut self, name: &str, text: &str) -> PathBuf {
        let mut text = text.to_owned();
        for (name, instead) in INSTEAD {
            text = text.replace(name, instead);
        }
        let folder = self.run("pwd").output;
        let path = Path::new(folder.trim_end()).join(name);
        fs::write(&path, text).expect("the file is written");
        path
    }

    /// Has another balancer check what the page shows of it.
    fn check_other(&mut self, block: &Block, other: Other) {
        let folder = self.run("pwd").output;
        let name = format!("block-{}", block.line);
        let path = Path::new(folder.trim_end()).join(name);
        if let Some(command) = other.check(&block.text, &path) {
            let checked = self.run(&command);
            let (page, line, said) = (&self.page, block.line, &checked.output);
            assert_eq!(checked.status, 0, "{page}:{line}: {other:?} says: {said}");
        }
    }

    /// Has the configurations checked that the page has shown until now. The files that they
    /// name are made by the commands after them.
    fn check_pieces(&mut self) {
        for (line, path) in std::mem::take(&mut self.pieces) {
            let checked = self.run(&format!(
                "{} check {}",
                evenkeel_binary().display(),
                path.display()
            ));
            let (page, said) = (&self.page, &checked.output);
            assert_eq!(checked.status, 0, "{page}:{line}: evenkeel check: {said}");
            assert!(said.contains(": good: "), "{page}:{line}: {said}");
        }
    }

    fn execute(&mut self, block: &Block) {
        if block.marks.contains(&Mark::NotRun) {
            return;
        }
        self.printed.clear();
        let wanted = block.marks.iter().find_map(|mark| match mark {
            Mark::Status(status) => Some(*status),
            _ => None,
        });
        let wanted = wanted.unwrap_or(0);
        for (line, command, expected) in commands(block) {
            self.command(line, &command, wanted);
            if !expected.is_empty() && !block.marks.contains(&Mark::NotCompared) {
                let own = self.printed.len() - 1;
                self.compare(line, own, &expected);
            }
        }
        self.check_pieces();
        if block.marks.contains(&Mark::EndsAll) {
            let limit = Instant::now() + HANG;
            while self.listening() > self.listeners {
                let (page, line) = (&self.page, block.line);
                assert!(
                    Instant::now() < limit,
                    "{page}:{line}: something still listens"
                );
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Runs a command as a reader does: what serves in the foreground gets a terminal of its
    /// own, and what asks is asked again.
    fn command(&mut self, line: usize, command: &str, wanted: i32) {
        let bare = command.split(" #").next().unwrap_or(command).trim();
        let service = service(bare);
        let mut done = match service {
            Some(kind) if !bare.ends_with('&') => self.serve(line, kind, bare),
            _ if bare == "evenkeel top" => {
                self.run("printf q | script --quiet --return --command 'evenkeel top' /dev/null")
            }
            _ => self.run(command),
        };
        if service.is_some() && bare.ends_with('&') {
            let log = bare
                .split("> ")
                .nth(1)
                .and_then(|rest| rest.split(' ').next());
            let log = log.map_or_else(|| self.stdout().display().to_string(), str::to_owned);
            self.await_ready(line, &log);
        }
        if asks(bare) {
            let limit = Instant::now() + HANG;
            while done.status != wanted && Instant::now() < limit {
                thread::sleep(Duration::from_millis(100));
                done = self.run(command);
            }
        }
        let (page, status) = (&self.page, done.status);
        assert_eq!(
            status, wanted,
            "{page}:{line}: {command}: exit status {status}, not {wanted}: {}",
            done.output
        );
        done.command = command.to_owned();
        self.printed.push(done);
    }

    /// Starts something in another terminal; what ran there is ended as by Ctrl-C.
    fn serve(&mut self, line: usize, kind: &str, command: &str) -> Printed {
        let ended = self.run(&format!(
            "if [ -e /run/evenkeel-test/{kind} ]; then
               kill -INT $(cat /run/evenkeel-test/{kind})
               while kill -0 $(cat /run/evenkeel-test/{kind}); do sleep 0.05; done
             fi"
        ));
        assert_eq!(ended.status, 0, "{}:{line}", self.page);
        let log = self.notes.join(&format!("{line}.{kind}"));
        let log = log.display();
        self.run(&format!(
            "({command} > {log} 2>&1 & echo $! > /run/evenkeel-test/{kind})"
        ));
        self.await_ready(line, &log.to_string());
        self.run(&format!("cat {log}"))
    }

    /// Waits until a log has the line `ready`.
    fn await_ready(&mut self, line: usize, log: &str) {
        let limit = Instant::now() + HANG;
        while self.run(&format!("grep -qx ready {log}")).status != 0 {
            let said = self.run(&format!("cat {log}")).output;
            let page = &self.page;
            assert!(Instant::now() < limit, "{page}:{line}: never ready: {said}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Compares what the commands from `first` on have printed with what the page shows.
    /// Those that ask are asked again until they say so.
    fn compare(&mut self, line: usize, first: usize, expected: &str) {
        let limit = Instant::now() + HANG;
        loop {
            let printed = self.printed[first..].iter();
            let printed: String = printed.map(|done| done.output.as_str()).collect();
            let Err(missing) = shows(expected, &printed) else {
                return;
            };
            let page = &self.page;
            assert!(
                Instant::now() < limit,
                "{page}:{line}: the page shows\n{missing}\nwhere the commands print\n{printed}"
            );
            thread::sleep(Duration::from_millis(200));
            for number in first..self.printed.len() {
                let done = &self.printed[number];
                if asks(&done.command) {
                    let (command, wanted) = (done.command.clone(), done.status);
                    let again = self.run(&command);
                    if again.status == wanted {
                        self.printed[number].output = again.output;
                    }
                }
            }
        }
    }

    /// Returns the path of the last command's output.
    fn stdout(&self) -> PathBuf {
        self.notes.join(&format!("{}.out", self.commands))
    }

    /// Returns the output and the errors of the last command.
    fn said(&self) -> String {
        let read = |kind| fs::read(self.notes.join(&format!("{}.{kind}", self.commands)));
        let text = |kind| String::from_utf8_lossy(&read(kind).unwrap_or_default()).into_owned();
        format!("{}\n{}", text("out"), text("err"))
    }

    /// Runs commands in the shell itself: they may change its folder, variables and jobs.
    fn run(&mut self, commands: &str) -> Printed {
        self.commands += 1;
        let number = self.commands;
        let script = self.notes.write(&format!("{number}.sh"), commands);
        let stderr = self.notes.join(&format!("{number}.err"));
        let (script, stdout, stderr) = (script.display(), self.stdout(), stderr.display());
        writeln!(
            self.stdin,
            "jobs > /dev/null; exec 3>&1; . {script} > {} 2> {stderr} < /dev/null 3>&-; echo $? >&3",
            stdout.display()
        )
        .expect("the shell listens");
        match self.answers.recv_timeout(COMMAND_HANGS) {
            Ok(status) => Printed {
                command: String::new(),
                output: self.said(),
                status: status.parse().expect("an exit status"),
            },
            Err(RecvTimeoutError::Timeout) => {
                panic!("{}: it never ends: {commands}\n{}", self.page, self.said())
            }
            Err(RecvTimeoutError::Disconnected) => {
                panic!(
                    "{}: the shell ended: {commands}\n{}",
                    self.page,
                    self.said()
                )
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}:", self.page);
            let logs = Command::new("sh")
                .args(["-c", "tail -n 20 $(find . -name '*.log')"])
                .current_dir(self.project.path())
                .stdin(Stdio::null())
                .output();
            if let Ok(logs) = logs {
                eprintln!("{}", String::from_utf8_lossy(&logs.stdout));
            }
        }
        // All that it has started dies with it.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// The commands of a block, each with its line and what the page shows of its output.
fn commands(block: &Block) -> Vec<(usize, String, String)> {
    let mut commands: Vec<(usize, String, String)> = Vec::new();
    let mut goes_on = false;
    for (number, line) in (block.line + 1..).zip(block.text.lines()) {
        if goes_on {
            let (_, command, _) = commands.last_mut().expect("one that goes on");
            command.push('\n');
            command.push_str(line);
        } else if block.language == "console" {
            match (prompted(line), commands.last_mut()) {
                (Some(command), _) => commands.push((number, command.to_owned(), String::new())),
                (None, Some((_, _, output))) => {
                    output.push_str(line);
                    output.push('\n');
                    continue;
                }
                (None, None) => panic!("line {number}: output without a command"),
            }
        } else if line.trim().is_empty() || line.starts_with('#') {
            continue;
        } else {
            commands.push((number, line.to_owned(), String::new()));
        }
        goes_on = line.ends_with('\\');
    }
    commands
}

/// Returns the kind of a command that serves until it is ended.
fn service(command: &str) -> Option<&'static str> {
    let kinds = ["run", "engine", "agent"];
    let words = command.strip_prefix("evenkeel ")?;
    let kind = kinds
        .into_iter()
        .find(|kind| words.split(' ').next() == Some(kind))?;
    (!words.contains("--once")).then_some(kind)
}

/// Returns true if a command only asks, so that it may be repeated.
fn asks(command: &str) -> bool {
    let starts = |start: &str| command.starts_with(start);
    let ctl = [
        "status", "groups", "members", "loads", "agents", "monitor", "corba", "explain",
    ];
    let is_curl = starts("curl ") && !command.contains(" -X ");
    let changes = ["push", "remove", "query", "forget"];
    let changes = changes
        .iter()
        .any(|word| command.contains(&format!(" {word} ")));
    let is_ctl = ctl
        .iter()
        .any(|word| starts(&format!("evenkeel ctl {word}")))
        && !changes;
    // Clients of the examples open sessions, and close them.
    let is_client = starts("./client ") || command.contains(".trading.Client ");
    is_curl || is_ctl || is_client || starts("evenkeel top --once")
}

/// A small whole around keys of a table.
fn frame(table: &str) -> String {
    assert!(table.starts_with("[rule."), "no frame is known for {table}");
    format!("{table}\nlisten = \"127.0.0.1:8080\"\nmembers = [\"127.0.0.1:8001\"]\n")
}

/// Checks that a page shows what was printed, but for figures: the lines stand there one after the
/// other, and anything may stand where the page says `...`. If not, the error is what is missing.
fn shows(expected: &str, printed: &str) -> Result<(), String> {
    let lines = |text: &str| -> Vec<Vec<String>> {
        let lines = text.lines().map(shape);
        lines.filter(|words| !words.is_empty()).collect()
    };
    let (expected, printed) = (lines(expected), lines(printed));
    let mut from = 0;
    for piece in expected.split(|line| matches!(&line[..], [only] if only == "..." || only == "…"))
    {
        if piece.is_empty() {
            continue;
        }
        let mut windows = printed[from..].windows(piece.len());
        let found = windows.position(|window| piece.iter().zip(window).all(|(a, b)| alike(a, b)));
        let Some(at) = found else {
            let piece: Vec<_> = piece.iter().map(|words| words.join(" ")).collect();
            return Err(piece.join("\n"));
        };
        from += at + piece.len();
    }
    Ok(())
}

/// Returns true if words are the words of the page, in which `…` stands for any, and at the end for
/// all that follow.
fn alike(expected: &[String], printed: &[String]) -> bool {
    let word = |(expected, printed): (&String, &String)| {
        let (start, rest) = expected.split_once('…').unwrap_or((expected, ""));
        let Some(printed) = printed.strip_prefix(start) else {
            return false;
        };
        let mut parts: Vec<_> = rest.split('…').collect();
        let end = parts.pop().unwrap_or_default();
        let Some(mut printed) = printed.strip_suffix(end) else {
            return false;
        };
        let in_order = parts.iter().all(|part| match printed.split_once(part) {
            Some((_, after)) => {
                printed = after;
                true
            }
            None => false,
        });
        in_order && (expected.contains('…') || printed.is_empty())
    };
    let open = expected.last().is_some_and(|last| last.ends_with('…'));
    let enough = printed.len() == expected.len() || open && printed.len() > expected.len();
    enough && expected.iter().zip(printed).all(word)
}

/// The words of a line without what differs from run to run and from machine to machine.
fn shape(line: &str) -> Vec<String> {
    const DATES: &str =
        "Mon Tue Wed Thu Fri Sat Sun Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec";
    // Not every kernel has them.
    const OPTIONAL: [&str; 5] = [
        "disk=",
        "network=",
        "cpu_pressure=",
        "memory_pressure=",
        "io_pressure=",
    ];
    let words = line.split_whitespace().filter(|word| {
        let is_bar = word.chars().all(|c| "█▉▊▋▌▍▎▏·".contains(c));
        !is_bar && !OPTIONAL.iter().any(|start| word.starts_with(start))
    });
    let words = words.map(|word| match word {
        // Not known yet; and a member that has come a moment ago.
        "-" => "#".to_owned(),
        "warming" => "up".to_owned(),
        _ if DATES
            .split(' ')
            .any(|date| date == word.trim_end_matches(',')) =>
        {
            "#".to_owned()
        }
        _ => without_figures(&without_start(word)),
    });
    // Loads are listed in the order in which they came.
    let (mut loads, mut words): (Vec<_>, Vec<_>) = words.partition(|word| word.ends_with("=#"));
    loads.sort();
    words.append(&mut loads);
    words
}

/// A word without what stands right before its `…`, the start of an id.
fn without_start(word: &str) -> String {
    let mut parts: Vec<_> = word.split('…').collect();
    let last = parts.pop().unwrap_or_default();
    let id = |c: char| c.is_ascii_alphanumeric();
    let starts = parts.iter().map(|part| part.trim_end_matches(id));
    starts.map(|start| format!("{start}…")).collect::<String>() + last
}

/// A word with `#` for each number and its unit.
fn without_figures(word: &str) -> String {
    const UNITS: [&str; 8] = ["us", "ms", "s", "m", "h", "%", "k", "M"];
    let mut shape = String::new();
    let mut rest = word;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        shape += &rest[..at];
        shape.push('#');
        rest = rest[at..].trim_start_matches(|c: char| c.is_ascii_digit());
        // A point within a number, of an address as well.
        while let Some(more) = rest.strip_prefix('.') {
            let after = more.trim_start_matches(|c: char| c.is_ascii_digit());
            if after.len() == more.len() {
                break;
            }
            rest = after;
        }
        let unit = UNITS.iter().find_map(|unit| {
            let rest = rest.strip_prefix(unit)?;
            (!rest.starts_with(|c: char| c.is_alphanumeric())).then_some(rest)
        });
        rest = unit.unwrap_or(rest);
    }
    shape + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u10_what_a_page_leaves_out_is_found() {
        let page = "a\n```\nx\n```\n\n<!-- not run -->\n```sh\ny\n```\n\n    cargo x\n\n\
                    <!-- file: x -->\ntext\n\n```text\n$ evenkeel top\n```\n";
        let wrong = parse_blocks("p", page).unwrap_err();
        let lines: Vec<_> = wrong.lines().collect();
        assert_eq!(lines.len(), 5, "{wrong}");
        for (line, start) in lines
            .iter()
            .zip(["p:2: ", "p:6: ", "p:11: ", "p:13: ", "p:16: "])
        {
            assert!(line.starts_with(start), "{wrong}");
        }
    }

    #[test]
    fn u10_blocks_have_languages_marks_and_commands() {
        let page = "1. x\n\n   <!-- exit status: 3 -->\n   ```console\n   $ a \\\n     b\n   c\n   # evenkeel d\n   ```\n";
        let blocks = parse_blocks("p", page).unwrap();
        let [block] = &blocks[..] else {
            panic!("{blocks:?}");
        };
        assert_eq!((block.line, &block.marks[..]), (4, &[Mark::Status(3)][..]));
        let expected = [
            (5, "a \\\n  b".to_owned(), "c\n".to_owned()),
            (8, "evenkeel d".to_owned(), String::new()),
        ];
        assert_eq!(commands(block), expected);
    }

    #[test]
    fn u10_figures_may_differ_and_words_may_not() {
        let page = "LOCATION  LOADS\none  cpu=0.5 disk=1\n...\nMEMBER  P50\n10.0.0.1:80  warming  █▌·  1.2ms";
        let printed = "x\nLOCATION LOADS\none cpu=1\nand\nMEMBER  P50\n10.0.0.2:8080 up 17us\n";
        assert_eq!(shows(page, printed), Ok(()));
        assert!(shows(page, &printed.replace("up", "down")).is_err());
        assert!(shows(page, &printed.replace("cpu", "memory")).is_err());
        assert!(shows(page, &printed.replace("P50", "P99 REPORTS")).is_err());
        assert_eq!(shows("a b1c…\nd: …", "a xyz e\nd: e f\n"), Ok(()));
        assert!(shows("a: b…", "a; c\n").is_err());
        let json = r#"{"id":"2f1c…","ior":"IOR:01…","n":1}"#;
        assert_eq!(shows(json, r#"{"id":"ab9","ior":"IOR:7f","n":27}"#), Ok(()));
        assert!(shows(json, r#"{"id":"ab9","ref":"IOR:7f","n":27}"#).is_err());
        assert!(shows(json, r#"{"id":"ab9","ior":"IOR:7f","m":27}"#).is_err());
    }
}
