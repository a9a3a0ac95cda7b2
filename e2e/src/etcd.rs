//! etcd, a store, as one server or three.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::folder::Folder;
use crate::process::{Signal, clean_environment, program, signal};
use crate::server::address;
use crate::tls::{Key, make_certificate};
use crate::wait_until;

/// A server, killed when dropped.
pub struct Etcd {
    folder: Folder,
    name: String,
    /// All servers of its cluster, as etcd is told them.
    all: String,
    clients: SocketAddr,
    peers: SocketAddr,
    /// The folder with its data.
    data: String,
    more: Vec<String>,
    scheme: &'static str,
    /// Options of `etcdctl`.
    ctl: Vec<String>,
    process: Option<Child>,
}

impl Etcd {
    /// Starts it.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts an etcd with more options.
    pub fn start_with(more: &[&str]) -> Self {
        let mut etcd = Self::new(more);
        etcd.run();
        etcd
    }

    /// Three servers of one cluster.
    pub fn start_three() -> [Self; 3] {
        let mut three: [Self; 3] = std::array::from_fn(|number| {
            let mut etcd = Self::new(&[]);
            etcd.name = format!("etcd-{number}");
            etcd
        });
        let all = three.each_ref().map(Self::as_member).join(",");
        for etcd in &mut three {
            etcd.all.clone_from(&all);
            etcd.spawn();
        }
        // One alone does not answer.
        three.iter().for_each(Self::wait_until_ready);
        three
    }

    /// Starts an etcd with TLS: the authority of its certificate is `ca.crt` in its folder.
    pub fn start_secured() -> Self {
        let mut etcd = Self::new(&[]);
        let (folder, ip) = (&etcd.folder, etcd.clients.ip());
        make_certificate(folder, "ca", Key::Ecdsa, "DNS:ca.test", None);
        make_certificate(folder, "etcd", Key::Ecdsa, &format!("IP:{ip}"), Some("ca"));
        let file = |name: &str| folder.join(name).display().to_string();
        etcd.more = vec![
            format!("--cert-file={}", file("etcd.crt")),
            format!("--key-file={}", file("etcd.key.tmp")),
        ];
        etcd.ctl = vec![format!("--cacert={}", file("ca.crt"))];
        etcd.scheme = "https";
        etcd.run();
        etcd
    }

    /// Turns authentication on: from now on `etcdctl` is root, and the user `evenkeel` has this
    /// password and the keys behind the prefix.
    pub fn ask_for_users(&mut self, password: &str, prefix: &str) {
        self.run_etcdctl(&["user", "add", "root:secret"]);
        self.run_etcdctl(&["user", "grant-role", "root", "root"]);
        self.run_etcdctl(&["role", "add", "evenkeel"]);
        let all = [
            "role",
            "grant-permission",
            "evenkeel",
            "--prefix=true",
            "readwrite",
            prefix,
        ];
        self.run_etcdctl(&all);
        self.run_etcdctl(&["user", "add", &format!("evenkeel:{password}")]);
        self.run_etcdctl(&["user", "grant-role", "evenkeel", "evenkeel"]);
        self.run_etcdctl(&["auth", "enable"]);
        self.ctl.push("--user=root:secret".into());
    }

    /// Returns the folder of the etcd.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    fn new(more: &[&str]) -> Self {
        let mut etcd = Etcd {
            folder: Folder::new(),
            name: "one".into(),
            all: String::new(),
            clients: address(),
            peers: address(),
            data: "data".into(),
            more: more.iter().map(|&option| option.to_owned()).collect(),
            scheme: "http",
            ctl: Vec::new(),
            process: None,
        };
        etcd.all = etcd.as_member();
        etcd
    }

    fn as_member(&self) -> String {
        format!("{}=http://{}", self.name, self.peers)
    }

    fn cluster(&self) -> [String; 4] {
        [
            format!("--name={}", self.name),
            format!("--initial-cluster={}", self.all),
            format!("--initial-advertise-peer-urls=http://{}", self.peers),
            format!("--data-dir={}", self.folder.join(&self.data).display()),
        ]
    }

    /// Starts it again after [`Etcd::kill`].
    pub fn run(&mut self) {
        self.spawn();
        self.wait_until_ready();
    }

    /// Starts etcd again, like [`Etcd::run`], and does not wait until it answers.
    pub fn spawn(&mut self) {
        let log = std::fs::File::create(self.folder.join("etcd.log")).expect("a log");
        let mut etcd = program("etcd");
        etcd.args(self.cluster())
            .arg(format!("--listen-peer-urls=http://{}", self.peers))
            .arg(format!("--listen-client-urls={}", self.url()))
            .arg(format!("--advertise-client-urls={}", self.url()))
            .args(&self.more)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log);
        self.process = Some(etcd.spawn().expect("it starts"));
    }

    /// Waits until it answers.
    pub fn wait_until_ready(&self) {
        wait_until("etcd answers", || self.try_ctl(&["get", "x"], "").is_ok());
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Stops the process: it does nothing until [`Etcd::go_on`].
    pub fn stop(&self) {
        signal(self.process.as_ref().expect("it runs").id(), Signal::STOP);
    }

    /// The end of [`Etcd::stop`].
    pub fn go_on(&self) {
        signal(self.process.as_ref().expect("it runs").id(), Signal::CONT);
    }

    /// Returns the URL of the etcd.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.clients)
    }

    /// Returns the address at which the etcd listens for clients.
    pub fn address(&self) -> SocketAddr {
        self.clients
    }

    /// `etcdctl` with this on its standard input: what it prints, or its complaint.
    pub fn try_ctl(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut command = Command::new("etcdctl");
        clean_environment(&mut command)
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints={}", self.url()))
            .args(&self.ctl)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = command.spawn().expect("etcdctl starts");
        if let Some(mut stdin) = process.stdin.take() {
            // It may not want to read it.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = process.wait_with_output().expect("it ends");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr)),
        }
    }

    /// Runs etcdctl, which succeeds.
    pub fn run_etcdctl(&self, arguments: &[&str]) -> String {
        let done = self.try_ctl(arguments, "");
        done.unwrap_or_else(|complaint| panic!("etcdctl {arguments:?}: {complaint}"))
    }

    /// Keeps all that it has in a file.
    pub fn backup(&self, name: &str) -> PathBuf {
        let file = self.folder.join(name);
        self.run_etcdctl(&["snapshot", "save", &file.display().to_string()]);
        file
    }

    /// Takes it back to such a file: another cluster, as etcd's manual says.
    pub fn restore(&mut self, backup: &std::path::Path) {
        self.kill();
        self.data = format!("{}-restored", self.data);
        let mut command = Command::new("etcdctl");
        clean_environment(&mut command)
            .env("ETCDCTL_API", "3")
            .args(["snapshot", "restore"]);
        command.arg(backup).args(self.cluster());
        let output = command.output().expect("etcdctl runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        self.run();
    }

    /// The revision that it has.
    pub fn revision(&self) -> i64 {
        let status = self.run_etcdctl(&["endpoint", "status", "--write-out=json"]);
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let revision = &status[0]["Status"]["header"]["revision"];
        revision.as_i64().expect("a number")
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Relay between clients and a server: it passes bytes on, later, or not at all.
pub struct Between {
    address: SocketAddr,
    delay: Arc<AtomicU64>,
    is_open: Arc<AtomicBool>,
    refused: Arc<AtomicU64>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Between {
    /// Starts a relay in front of the server at `to`, without a delay.
    pub fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let between = Between {
            address: listener.local_addr().expect("an address"),
            delay: Arc::default(),
            is_open: Arc::new(AtomicBool::new(true)),
            refused: Arc::default(),
            connections: Arc::default(),
        };
        let (delay, is_open) = (Arc::clone(&between.delay), Arc::clone(&between.is_open));
        let refused = Arc::clone(&between.refused);
        let connections = Arc::clone(&between.connections);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(to);
                let (true, Ok(server)) = (is_open.load(Ordering::Relaxed), server) else {
                    refused.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                let both = [(&client, &server), (&server, &client)];
                for (from, to) in both {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let delay = Arc::clone(&delay);
                    thread::spawn(move || pass(from, to, &delay));
                }
                connections.lock().unwrap().extend([client, server]);
            }
        });
        between
    }

    /// Returns the URL of the relay.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All that goes by takes so much longer.
    pub fn slow_down(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).expect("a short time");
        self.delay.store(millis, Ordering::Relaxed);
    }

    /// Cuts all connections, and takes no new ones until [`Between::open`].
    pub fn cut_connections(&self) {
        self.is_open.store(false, Ordering::Relaxed);
        for connection in self.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Returns the number of connections that the relay has not taken.
    pub fn refused_count(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Takes connections again.
    pub fn accept_connections(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, delay: &AtomicU64) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        thread::sleep(Duration::from_millis(delay.load(Ordering::Relaxed)));
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}
