//! The balancer as a process.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use serde_json::Value;

use crate::built::build_workspace;
use crate::folder::Folder;
use crate::process::{Signal, clean_environment, signal};
use crate::wait_until;
use crate::wire::Wire;

/// A running `evenkeel run`, killed when dropped.
pub struct Balancer {
    process: Child,
    /// The process that serves, if another one has taken over.
    successor: Option<u32>,
    /// Kept open: the balancer may say more later.
    _stdout: BufReader<ChildStdout>,
    rules: HashMap<String, SocketAddr>,
    admin: Option<SocketAddr>,
    broker: Option<SocketAddr>,
    statsd: Option<SocketAddr>,
    negotiator: Option<SocketAddr>,
    corba: Option<SocketAddr>,
    xds: Option<SocketAddr>,
    log: Arc<Mutex<String>>,
    folder: Arc<Folder>,
}

impl Balancer {
    /// Starts a balancer and waits until it is ready.
    ///
    /// Rules listen on `127.0.0.1:0`.
    pub fn start(config: &str) -> Self {
        Self::start_in(Arc::new(Folder::new()), config)
    }

    /// Starts a balancer with a folder that has been prepared.
    pub fn start_with(config: &str, prepare: impl FnOnce(&Folder)) -> Self {
        let folder = Folder::new();
        prepare(&folder);
        Self::start_in(Arc::new(folder), config)
    }

    /// Starts a balancer in a folder where there may be something already.
    fn start_in(folder: Arc<Folder>, config: &str) -> Self {
        let command = Command::new(evenkeel_binary());
        let mut balancer = Self::spawn(folder, config, command, Stdio::null());
        balancer.keep_log();
        balancer.read_addresses();
        balancer
    }

    /// Starts a balancer by a command that has `input` as its standard input.
    pub fn start_by_with_input(config: &str, command: Command, input: Stdio) -> Self {
        let mut balancer = Self::spawn(Arc::new(Folder::new()), config, command, input);
        balancer.keep_log();
        balancer.read_addresses();
        balancer
    }

    /// Starts a balancer by a command, which must become the balancer and not its parent.
    pub fn start_by(config: &str, command: impl FnOnce(&Folder) -> Command) -> Self {
        let mut balancer = Self::start_unheard_by(config, command);
        balancer.keep_log();
        balancer
    }

    /// Starts a balancer by a command; nobody reads its log until [`Balancer::keep_log`].
    pub fn start_unheard_by(config: &str, command: impl FnOnce(&Folder) -> Command) -> Self {
        let folder = Arc::new(Folder::new());
        let command = command(&folder);
        let mut balancer = Self::spawn(folder, config, command, Stdio::null());
        balancer.read_addresses();
        balancer
    }

    /// Begins to read its log.
    pub fn keep_log(&mut self) {
        if let Some(stderr) = self.process.stderr.take() {
            keep_log(stderr, Arc::clone(&self.log));
        }
    }

    fn spawn(folder: Arc<Folder>, config: &str, mut command: Command, input: Stdio) -> Self {
        let file = folder.write("evenkeel.toml", config);
        let mut process = clean_environment(&mut command)
            .args(["run".as_ref(), file.as_os_str()])
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the balancer starts");
        Self {
            _stdout: BufReader::new(process.stdout.take().expect("it is piped")),
            process,
            successor: None,
            rules: HashMap::new(),
            admin: None,
            broker: None,
            statsd: None,
            negotiator: None,
            corba: None,
            xds: None,
            log: Arc::default(),
            folder,
        }
    }

    /// Starts a balancer with one HTTP rule called `web`, whose group has the given members; `more`
    /// are further lines of the rule, tables at the end.
    pub fn start_http(members: &[SocketAddr], more: &str) -> Self {
        Self::rule("http", members, more)
    }

    /// Starts a balancer with one TCP rule called `web`, like [`Balancer::http`].
    pub fn start_tcp(members: &[SocketAddr], more: &str) -> Self {
        Self::rule("tcp", members, more)
    }

    fn rule(protocol: &str, members: &[SocketAddr], more: &str) -> Self {
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
             protocol = \"{protocol}\"\n\
             members = [{members}]\n\
             {more}\n"
        ))
    }

    /// Returns the address at which a rule listens.
    pub fn address(&self, rule: &str) -> SocketAddr {
        *self.rules.get(rule).expect("a rule of the configuration")
    }

    /// A new connection to the rule `web`.
    pub fn connect(&self) -> Wire {
        Wire::connect(self.address("web"))
    }

    /// Returns the address at which clients negotiate; with several addresses, the last one.
    pub fn negotiator_address(&self) -> SocketAddr {
        self.negotiator.expect("a negotiator")
    }

    /// Returns the address at which agents report.
    pub fn broker_address(&self) -> SocketAddr {
        self.broker.expect("a broker")
    }

    /// Returns the address at which gauges arrive.
    pub fn statsd_address(&self) -> SocketAddr {
        self.statsd.expect("a group with statsd")
    }

    /// Returns the address at which CORBA clients find the load manager.
    pub fn corba_address(&self) -> SocketAddr {
        self.corba.expect("a CORBA service")
    }

    /// Returns the address at which clients of xDS connect.
    pub fn xds_address(&self) -> SocketAddr {
        self.xds.expect("a server of xDS")
    }

    /// Returns the address of the admin API.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin.expect("an admin API")
    }

    /// Returns the balancer's folder, where the configuration is `evenkeel.toml`.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Replaces the configuration file as editors do.
    pub fn write_config(&self, config: &str) {
        self.folder.write("evenkeel.toml", config);
    }

    /// Replaces the configuration file, and waits until it is in effect.
    pub fn reconfigure(&self, config: &str) {
        let before = self.status()["generation"].as_u64();
        self.write_config(config);
        wait_until("the new configuration is in effect", || {
            self.status()["generation"].as_u64() > before
        });
    }

    /// `evenkeel ctl` with these words: what it prints, or its complaint.
    pub fn run_ctl(&self, words: &str) -> Result<String, String> {
        let admin = self.admin_address().to_string();
        let mut command = vec!["ctl", "--admin", &admin];
        command.extend(words.split(' '));
        run_evenkeel(&command)
    }

    /// Returns the output of `evenkeel ctl status`, as JSON.
    pub fn status(&self) -> Value {
        let status = self
            .run_ctl("status --json")
            .expect("the admin API answers");
        serde_json::from_str(&status).expect("JSON")
    }

    /// A member's status.
    pub fn member_status(&self, group: &str, member: SocketAddr) -> Value {
        let status = self.status();
        let groups = status["groups"].as_array().expect("groups");
        let group = groups.iter().find(|known| known["name"] == group);
        let members = group.expect("the group")["members"].as_array();
        let name = member.to_string();
        let mut members = members.expect("members").iter();
        let member = members.find(|known| known["name"] == *name);
        member.expect("the member").clone()
    }

    /// Waits until a member is in one of these states.
    pub fn wait_for_state(&self, group: &str, member: SocketAddr, states: &[&str]) {
        wait_until(&format!("{member} becomes {states:?}"), || {
            let state = &self.member_status(group, member)["state"];
            states.iter().any(|wanted| state == wanted)
        });
    }

    /// The value of a metric, named with its labels as `/metrics` writes it; `None` if there is no such one.
    pub fn read_metric(&self, series: &str) -> Option<f64> {
        let page = self.admin_get("/metrics");
        let value = page
            .text()
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map(|value| value.parse().expect("a number"))
    }

    /// Returns the count of a counter of the rule `web` with one more label, as in `result="sent"`.
    #[track_caller]
    pub fn rule_count(&self, family: &str, label: &str) -> u64 {
        let series = format!("evenkeel_rule_{family}{{rule=\"web\",{label}}}");
        let count = self.read_metric(&series);
        count.unwrap_or_else(|| panic!("there is no {series}")) as u64
    }

    /// The answer of the admin API to a GET.
    pub fn admin_get(&self, path: &str) -> crate::wire::Message {
        let mut wire = Wire::connect(self.admin_address());
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        wire.send(request);
        wire.read_response()
    }

    /// Returns the answer of the admin API, as JSON.
    pub fn admin_json(&self, path: &str) -> Value {
        serde_json::from_str(self.admin_get(path).text()).expect("JSON")
    }

    /// Reports a load of a location, which the balancer sees from now on.
    pub fn report_load(&self, location: &str, cpu: f64) {
        report_load(self.admin_address(), location, cpu);
    }

    /// All that it has logged until now and that has come here: a thread of its own writes the log, and
    /// another one reads it here, so what it has just logged comes a little later. See
    /// [`Balancer::wait_for_log`].
    pub fn log(&self) -> String {
        self.log.lock().expect("no panic").clone()
    }

    /// Waits until its log says this.
    pub fn wait_for_log(&self, text: &str) {
        wait_until(&format!("the log says {text:?}"), || {
            self.log().contains(text)
        });
    }

    /// Returns the id of the balancer's process.
    pub fn id(&self) -> u32 {
        self.successor.unwrap_or(self.process.id())
    }

    /// Sends a signal.
    pub fn signal(&self, which: Signal) {
        signal(self.id(), which);
    }

    /// `evenkeel upgrade`: another process takes its place, or not, and why. The one before ends when
    /// its clients let it.
    pub fn upgrade(&mut self) -> Result<(), String> {
        let admin = self.admin_address().to_string();
        let answer = run_evenkeel(&["upgrade", "--json", "--admin", &admin])?;
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        let pid = answer["pid"].as_u64().and_then(|pid| pid.try_into().ok());
        self.succeeded_by(pid.expect("a process"));
        Ok(())
    }

    /// Another process has taken over.
    pub fn succeeded_by(&mut self, process: u32) {
        self.successor = Some(process);
        let before = (self.rules.clone(), self.admin, self.broker, self.corba);
        self.read_addresses();
        // One that has become CORBA's load manager since it started has not said where.
        let corba = self.corba.filter(|_| before.3.is_some());
        let after = (self.rules.clone(), self.admin, self.broker, corba);
        assert_eq!(before, after, "it listens where the one before did");
    }

    /// Waits until it ends by itself.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        let mut ended = None;
        wait_until("the balancer ends", || {
            ended = self.process.try_wait().expect("its state");
            ended.is_some()
        });
        ended.expect("it has ended")
    }

    /// Kills it, and starts another one in its place: with the same folder, and so with
    /// the state that it has kept there.
    pub fn replace(self, config: &str) -> Self {
        let folder = Arc::clone(&self.folder);
        drop(self);
        Self::start_in(folder, config)
    }

    /// Reads `listening: rule NAME on ADDRESS` and the like, up to `ready`.
    fn read_addresses(&mut self) {
        loop {
            let mut line = String::new();
            let len = self._stdout.read_line(&mut line);
            let len = len.expect("standard output can be read");
            assert!(len > 0, "the balancer ended before it was ready");
            let words: Vec<_> = line.split_whitespace().collect();
            let address = |text: &str| text.parse().expect("an address");
            match words[..] {
                ["ready"] => return,
                ["listening:", "rule", _, "on", at] if at.starts_with("unix:") => {}
                ["listening:", "rule", name, "on", at] => {
                    self.rules.insert(name.to_owned(), address(at));
                }
                ["listening:", "negotiator", "on", at] => self.negotiator = Some(address(at)),
                ["listening:", "broker", "on", "UDP", at] => self.broker = Some(address(at)),
                ["listening:", "statsd", "on", "UDP", at] => self.statsd = Some(address(at)),
                ["listening:", "corba", "on", at] => self.corba = Some(address(at)),
                ["listening:", "xds", "on", at] => self.xds = Some(address(at)),
                ["listening:", "admin", "API", "on", at] => self.admin = Some(address(at)),
                _ => {}
            }
        }
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if let Some(successor) = self.successor {
            signal(successor, Signal::KILL);
        }
        if thread::panicking() {
            eprintln!("the balancer's log:\n{}", self.log());
        }
    }
}

/// Keeps what the balancer says on standard error.
pub(crate) fn keep_log(stderr: ChildStderr, log: Arc<Mutex<String>>) {
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let mut log = log.lock().expect("no panic");
            log.push_str(&line);
            log.push('\n');
        }
    });
}

/// The beginning of the configuration of one that is among others: tables up to `[fleet]`, to which
/// keys can be appended. Without `join` it is the first one.
pub fn among_others(host: &str, name: &str, join: Option<SocketAddr>, keys: &Path) -> String {
    let join: String = join.iter().map(|at| format!("join = \"{at}\"\n")).collect();
    format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[node]\nname = \"{name}\"\n\
         [fleet]\nlisten = \"{host}:0\"\n{join}key_file = {keys:?}\n"
    )
}

/// Tells a balancer by its admin API what load a location has.
pub fn report_load(admin: SocketAddr, location: &str, cpu: f64) {
    let body = format!("{{\"loads\":{{\"cpu\":{cpu}}}}}");
    let mut wire = Wire::connect(admin);
    wire.send(format!(
        "POST /v1/locations/{location}/loads HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    let answer = wire.read_response();
    assert_eq!(answer.second_word(), "200", "{}", answer.text());
}

/// Adds a user to a file with users of the admin API, who may do everything.
pub fn add_user(file: &Path, name: &str, password: &str) {
    let mut command = Command::new(evenkeel_binary());
    let mut add = clean_environment(&mut command)
        .arg("users")
        .arg(file)
        .args(["add", name, "--role", "administer"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the program runs");
    let mut input = add.stdin.take().expect("a pipe");
    input.write_all(password.as_bytes()).expect("it reads");
    drop(input);
    assert!(add.wait().expect("its end").success());
}

/// Runs `evenkeel` to its end: its output, or its complaint if it fails.
pub fn run_evenkeel(arguments: &[&str]) -> Result<String, String> {
    outcome(evenkeel_binary(), arguments)
}

/// Runs `evenkeel-lab` to its end, likewise.
pub fn run_lab(arguments: &[&str]) -> Result<String, String> {
    outcome(lab_binary(), arguments)
}

fn outcome(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = clean_environment(&mut Command::new(program))
        .args(arguments)
        .output();
    let output = output.expect("the program runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    if output.status.success() {
        Ok(text(output.stdout))
    } else {
        Err(text(output.stderr))
    }
}

/// Binary of the balancer in the workspace, built in the profile of these tests. `$EVENKEEL_BIN` is
/// used instead where it is set.
pub fn evenkeel_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| given_or_built("EVENKEEL_BIN", "evenkeel"))
}

/// Binary of the workbench (`evenkeel-lab`), likewise. `$EVENKEEL_LAB_BIN` is used instead where it is
/// set.
pub fn lab_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| given_or_built("EVENKEEL_LAB_BIN", "evenkeel-lab"))
}

fn given_or_built(variable: &str, name: &str) -> PathBuf {
    match std::env::var_os(variable) {
        Some(given) => given.into(),
        None => build_workspace().join(name),
    }
}
