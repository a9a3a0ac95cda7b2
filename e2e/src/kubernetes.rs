//! API servers of Kubernetes: one that does what a test tells it (EndpointSlices of one service, with list and watch), and
//! `kube-apiserver` itself.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use serde_json::{Value, json};

use crate::folder::Folder;
use crate::process::{program, run_curl, try_curl};
use crate::server::address;
use crate::wait_until;
use crate::wire::{Message, Wire};

/// Conditions of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The endpoint takes traffic.
    Ready,
    /// The endpoint ends, and still answers.
    Terminating,
    /// The endpoint does not answer.
    Unready,
}

/// Behaviour of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mood {
    /// Questions are answered.
    Well,
    /// Each connection is closed at once.
    Away,
    /// Questions are read, and never answered.
    Silent,
    /// Questions are answered with this code and these fields.
    Refusing(u16, String),
    /// Lists are answered, and watches are refused with 429.
    RefusingWatches,
}

/// A server with the slices of the service `shop/web`, whose port is `http`.
pub struct ApiServer {
    address: SocketAddr,
    world: Arc<Mutex<World>>,
}

/// Slices of the server, and everything that it has heard.
struct World {
    version: u64,
    slices: BTreeMap<String, Value>,
    /// All changes, with their versions, as events of a watch.
    events: Vec<(u64, String)>,
    /// Oldest version from which a watch may go on.
    oldest: u64,
    mood: Mood,
    token: Option<String>,
    watches: Vec<Sender<Option<String>>>,
    questions: Vec<String>,
}

impl World {
    fn note_change(&mut self, kind: &str, name: &str) {
        self.version += 1;
        let version = self.version.to_string();
        let Some(object) = self.slices.get_mut(name) else {
            return;
        };
        object["metadata"]["resourceVersion"] = json!(version);
        let event = json!({ "type": kind, "object": object }).to_string();
        self.send_event(event);
    }

    fn send_event(&mut self, event: String) {
        self.watches
            .retain(|watch| watch.send(Some(event.clone())).is_ok());
        self.events.push((self.version, event));
    }

    /// Ends all watches.
    fn end_watches(&mut self) {
        for watch in self.watches.drain(..) {
            let _ = watch.send(None);
        }
    }

    /// Answers a list, or the token of a page.
    fn list(&self, target: &str) -> Value {
        // A page has one slice.
        let skip: usize = target
            .split_once("continue=")
            .map_or(0, |(_, rest)| rest.parse().expect("a token of ours"));
        let items: Vec<_> = self.slices.values().skip(skip).take(1).collect();
        let next = match skip + 1 < self.slices.len() {
            true => (skip + 1).to_string(),
            false => String::new(),
        };
        json!({
            "kind": "EndpointSliceList",
            "apiVersion": "discovery.k8s.io/v1",
            "metadata": { "resourceVersion": self.version.to_string(), "continue": next },
            "items": items,
        })
    }
}

impl ApiServer {
    /// Starts a server without slices.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let world = Arc::new(Mutex::new(World {
            version: 100,
            slices: BTreeMap::new(),
            events: Vec::new(),
            oldest: 0,
            mood: Mood::Well,
            token: None,
            watches: Vec::new(),
            questions: Vec::new(),
        }));
        let server = ApiServer {
            address,
            world: Arc::clone(&world),
        };
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let world = Arc::clone(&world);
                thread::spawn(move || serve(&world, Wire::new(stream)));
            }
        });
        server
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("no panic")
    }

    /// Returns a kubeconfig file for the server, with a file `token` beside it.
    pub fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: shop\n\
             clusters:\n- name: here\n  cluster:\n    server: http://{}\n\
             users:\n- name: balancer\n  user:\n    tokenFile: token\n\
             contexts:\n- name: shop\n  context: {{cluster: here, user: balancer}}\n",
            self.address
        )
    }

    /// Sets the endpoints of a slice; the slice has one port.
    pub fn set_slice(&self, name: &str, port: u16, endpoints: &[(&str, Condition)]) {
        let endpoints: Vec<_> = endpoints
            .iter()
            .map(|(ip, condition)| {
                json!({
                    "addresses": [ip],
                    "conditions": {
                        "ready": *condition == Condition::Ready,
                        "serving": *condition != Condition::Unready,
                        "terminating": *condition == Condition::Terminating,
                    },
                })
            })
            .collect();
        let mut world = self.lock();
        let kind = match world.slices.contains_key(name) {
            true => "MODIFIED",
            false => "ADDED",
        };
        let labels = json!({ "kubernetes.io/service-name": "web" });
        let is_v6 = endpoints
            .iter()
            .any(|one| one["addresses"].to_string().contains(':'));
        let object = json!({
            "kind": "EndpointSlice",
            "apiVersion": "discovery.k8s.io/v1",
            "metadata": { "name": name, "namespace": "shop", "labels": labels },
            "addressType": if is_v6 { "IPv6" } else { "IPv4" },
            "endpoints": endpoints,
            "ports": [{ "name": "http", "protocol": "TCP", "port": port }],
        });
        world.slices.insert(name.to_owned(), object);
        world.note_change(kind, name);
    }

    /// Sets the zone of a slice's endpoints, and the zone that is to use them, if there is a hint.
    pub fn set_zone(&self, slice: &str, zone: &str, hint: Option<&str>) {
        let mut world = self.lock();
        let object = world.slices.get_mut(slice).expect("a slice");
        for endpoint in object["endpoints"].as_array_mut().expect("endpoints") {
            endpoint["zone"] = json!(zone);
            endpoint["hints"] =
                hint.map_or(json!({}), |hint| json!({ "forZones": [{ "name": hint }] }));
        }
        world.note_change("MODIFIED", slice);
    }

    /// Deletes a slice.
    pub fn delete_slice(&self, name: &str) {
        let mut world = self.lock();
        world.note_change("DELETED", name);
        world.slices.remove(name);
    }

    /// Sends a bookmark: the version moves on without a change.
    pub fn send_bookmark(&self) -> u64 {
        let mut world = self.lock();
        world.version += 10;
        let version = world.version;
        let metadata = json!({ "resourceVersion": version.to_string() });
        let object = json!({ "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": metadata });
        let event = json!({ "type": "BOOKMARK", "object": object }).to_string();
        world.send_event(event);
        version
    }

    /// Forgets old versions: watches from before end with 410, and open ones are told so.
    pub fn compact(&self) {
        let mut world = self.lock();
        world.version += 1;
        world.oldest = world.version;
        let status = json!({ "kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version" });
        let event = json!({ "type": "ERROR", "object": status }).to_string();
        world.send_event(event);
        world.events.clear();
        world.end_watches();
    }

    /// Goes back to a version from long ago, as after a restore from a backup, with other slices.
    pub fn restore(&self, change: impl FnOnce(&Self)) {
        {
            let mut world = self.lock();
            world.end_watches();
            world.slices.clear();
            world.events.clear();
            world.version = 7;
        }
        change(self);
    }

    /// Changes the behaviour. All watches end.
    pub fn set_mood(&self, mood: Mood) {
        let mut world = self.lock();
        world.mood = mood;
        world.end_watches();
    }

    /// Takes this token only. All watches end.
    pub fn ask_for_token(&self, token: &str) {
        let mut world = self.lock();
        world.token = Some(token.to_owned());
        world.end_watches();
    }

    /// Returns the targets of all questions.
    pub fn questions(&self) -> Vec<String> {
        self.lock().questions.clone()
    }

    /// Returns the number of open watches.
    pub fn watch_count(&self) -> usize {
        self.lock().watches.len()
    }
}

fn serve(world: &Arc<Mutex<World>>, mut wire: Wire) {
    while world.lock().expect("no panic").mood != Mood::Away {
        let Ok(question) = wire.read_request() else {
            return;
        };
        let Some((answer, watch)) = answer(world, &question) else {
            // Until the other side gives up.
            let _ = wire.read_request();
            return;
        };
        if !wire.try_send(answer) {
            return;
        }
        if let Some(watch) = watch {
            return send_events(&mut wire, &watch);
        }
    }
}

/// Sends events until the watch ends. The connection breaks in the middle of the body.
fn send_events(wire: &mut Wire, events: &Receiver<Option<String>>) {
    while let Ok(Some(event)) = events.recv() {
        if !wire.try_send(format!("{:x}\r\n{event}\n\r\n", event.len() + 1)) {
            return;
        }
    }
}

/// Events of a watch.
type Events = Receiver<Option<String>>;

/// Returns the answer to a question, and the events that follow it; nothing where the server is silent.
fn answer(world: &Mutex<World>, question: &Message) -> Option<(String, Option<Events>)> {
    let mut world = world.lock().expect("no panic");
    let target = question.second_word().to_owned();
    world.questions.push(target.clone());
    let refuse = |code: u16, fields: &str, message: &str| {
        let status = json!({ "kind": "Status", "code": code, "message": message }).to_string();
        let length = status.len();
        let head = format!("HTTP/1.1 {code} No\r\n{fields}Content-Length: {length}\r\n\r\n");
        Some((head + &status, None))
    };
    match &world.mood {
        Mood::Well | Mood::RefusingWatches => {}
        Mood::Away | Mood::Silent => return None,
        Mood::Refusing(code, fields) => return refuse(*code, fields, "not now"),
    }
    if let Some(token) = &world.token
        && question.values("authorization") != [format!("Bearer {token}")]
    {
        return refuse(401, "", "Unauthorized");
    }
    if !target.starts_with("/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices?") {
        return refuse(404, "", "not found");
    }
    let Some((_, version)) = target.split_once("resourceVersion=") else {
        let list = world.list(&target).to_string();
        let length = list.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        return Some((head + &list, None));
    };
    if world.mood == Mood::RefusingWatches {
        return refuse(429, "", "too many watches");
    }
    let version: u64 = version.split('&').next()?.parse().ok()?;
    if version < world.oldest {
        return refuse(410, "", "too old resource version");
    }
    let mut head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned();
    for (_, event) in world.events.iter().filter(|(of, _)| *of > version) {
        let _ = write!(head, "{:x}\r\n{event}\n\r\n", event.len() + 1);
    }
    let (sender, events) = channel();
    world.watches.push(sender);
    Some((head, Some(events)))
}

/// Returns the version of a part that `scripts/kubernetes` builds or fetches.
fn version_of(part: &str) -> &'static str {
    let script = include_str!("../../scripts/kubernetes");
    let mut lines = script.lines();
    let version = lines.find_map(|line| line.strip_prefix(part)?.strip_prefix('='));
    version.expect("the script names the version")
}

/// Returns the folder into which `scripts/kubernetes` builds.
fn find_programs() -> Option<PathBuf> {
    let given = std::env::var_os("EVENKEEL_KUBERNETES").map(PathBuf::from);
    let in_cache = || {
        let home = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
        Some(home?.join(format!("evenkeel/kubernetes-{}", version_of("kubernetes"))))
    };
    given.or_else(in_cache)
}

/// Release of the Gateway API, with its conformance suite.
#[derive(Clone, Copy, Debug)]
pub enum GatewayRelease {
    /// Release for all tests, and for the suite of requests.
    Main,
    /// Release for the suite of connections and datagrams.
    Streams,
}

impl GatewayRelease {
    fn version(self) -> &'static str {
        version_of(match self {
            GatewayRelease::Main => "gateway_api",
            GatewayRelease::Streams => "gateway_api_streams",
        })
    }
}

/// Returns the path of a program of the conformance suite of the Gateway API; `None` if the program is not there.
pub fn conformance_program(release: GatewayRelease, name: &str) -> Option<PathBuf> {
    let folder = format!("conformance-{}", release.version());
    let path = find_programs()?.join(folder).join(name);
    path.is_file().then_some(path)
}

/// Returns the texts of the CRDs of the Gateway API; `None` if they are not there.
pub fn gateway_crds(release: GatewayRelease) -> Option<Vec<String>> {
    let folder = format!("gateway-api-{}", release.version());
    let files = fs::read_dir(find_programs()?.join(folder)).ok()?;
    let texts = files.map(|file| fs::read_to_string(file.ok()?.path()).ok());
    texts.collect()
}

/// Runs a program with a text on its standard input.
fn run_with_input(command: &mut Command, input: &str) -> Output {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().expect("a program");
    let (mut stdin, input) = (child.stdin.take().expect("a pipe"), input.to_owned());
    // The program may answer before it has read everything.
    let writer = thread::spawn(move || {
        let _ = stdin.write_all(input.as_bytes());
    });
    let output = child.wait_with_output().expect("an end");
    let _ = writer.join();
    output
}

/// `kube-apiserver` with an etcd of its own, both killed when dropped.
pub struct RealServer {
    folder: Folder,
    programs: PathBuf,
    at: SocketAddr,
    store: SocketAddr,
    etcd: Child,
    server: Option<Child>,
}

impl RealServer {
    /// Starts the programs that `scripts/kubernetes` has built; `None` if they are not there.
    pub fn start() -> Option<Self> {
        let programs = find_programs()?;
        let is_there = |name: &str| programs.join(name).is_file();
        (is_there("kube-apiserver") && is_there("etcd")).then_some(())?;
        let (folder, store, peers) = (Folder::new(), address(), address());
        let path = |name: &str| programs.join(name).display().to_string();
        let mut etcd = program(&path("etcd"));
        etcd.arg(format!("--data-dir={}", folder.join("etcd").display()))
            .arg(format!("--listen-client-urls=http://{store}"))
            .arg(format!("--advertise-client-urls=http://{store}"))
            .arg(format!("--listen-peer-urls=http://{peers}"));
        let log = File::create(folder.join("etcd.log")).expect("a log");
        let etcd = etcd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let etcd = etcd.spawn().expect("etcd starts");
        folder.write("tokens.csv", "secret,admin,1,\"system:masters\"\n");
        let mut server = RealServer {
            folder,
            programs,
            at: address(),
            store,
            etcd,
            server: None,
        };
        let key = server.folder.join("account.key").display().to_string();
        let made = program("openssl")
            .args(["genrsa", "-out", &key, "2048"])
            .output();
        assert!(made.expect("openssl runs").status.success());
        server.run();
        Some(server)
    }

    /// Starts `kube-apiserver` again after [`RealServer::kill`], and waits until it is ready.
    pub fn run(&mut self) {
        let file = |name: &str| self.folder.join(name).display().to_string();
        let log = File::create(self.folder.join("server.log")).expect("a log");
        let path = self.programs.join("kube-apiserver");
        let mut server = program(&path.display().to_string());
        server
            .arg(format!("--etcd-servers=http://{}", self.store))
            .arg(format!("--bind-address={}", self.at.ip()))
            .arg(format!("--secure-port={}", self.at.port()))
            .arg(format!("--cert-dir={}", file("certificates")))
            .arg(format!("--token-auth-file={}", file("tokens.csv")))
            .arg(format!(
                "--service-account-key-file={}",
                file("account.key")
            ))
            .arg(format!(
                "--service-account-signing-key-file={}",
                file("account.key")
            ))
            .args([
                "--service-account-issuer=https://kubernetes.default.svc",
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.96.0.0/16",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.server = Some(server.spawn().expect("kube-apiserver starts"));
        wait_until("kube-apiserver is ready", || {
            let url = format!("https://{}/readyz", self.at);
            let answer = try_curl(&["-sk", "-H", "Authorization: Bearer secret", &url]);
            answer.stdout == b"ok"
        });
    }

    /// Kills `kube-apiserver`.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    /// Returns a kubeconfig file for the server, with the server's certificate as authority.
    pub fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: shop\n\
             clusters:\n- name: here\n  cluster:\n    server: https://{}\n    \
             certificate-authority: {}\n\
             users:\n- name: balancer\n  user: {{token: secret}}\n\
             contexts:\n- name: shop\n  context: {{cluster: here, user: balancer}}\n",
            self.at,
            self.folder.join("certificates/apiserver.crt").display()
        )
    }

    /// Sends an object to a path of the API. Returns the answer.
    pub fn send_object(&self, method: &str, path: &str, object: &Value) -> Value {
        let answer = self.send_text(method, path, "application/json", &object.to_string());
        serde_json::from_str(&answer).expect("JSON")
    }

    /// Creates an object that is written as YAML.
    pub fn create_from_yaml(&self, path: &str, text: &str) {
        self.send_text("POST", path, "application/yaml", text);
    }

    fn send_text(&self, method: &str, path: &str, media_type: &str, text: &str) -> String {
        // It may be longer than a command may be.
        let file = self.folder.write("request", text);
        run_curl(&[
            "-k",
            "--fail-with-body",
            "-X",
            method,
            "-H",
            "Authorization: Bearer secret",
            "-H",
            &format!("Content-Type: {media_type}"),
            "--data-binary",
            &format!("@{}", file.display()),
            &format!("https://{}{path}", self.at),
        ])
    }

    /// Returns an object of the API, or a list; `None` if there is no such object or kind.
    pub fn get_object(&self, path: &str) -> Option<Value> {
        let url = format!("https://{}{path}", self.at);
        let answer = try_curl(&["-kf", "-H", "Authorization: Bearer secret", &url]);
        serde_json::from_slice(&answer.stdout).ok()
    }

    /// Runs kubectl as the administrator, with `input` on its standard input. Returns the output.
    pub fn run_kubectl(&self, arguments: &[&str], input: &str) -> Output {
        let file = self.folder.write("admin.kubeconfig", self.kubeconfig());
        let mut kubectl = program("kubectl");
        kubectl
            .arg(format!("--kubeconfig={}", file.display()))
            .arg(format!(
                "--cache-dir={}",
                self.folder.join("kubectl").display()
            ))
            .args(arguments);
        run_with_input(&mut kubectl, input)
    }

    /// Renders a chart with helm; `None` if helm is not there.
    pub fn render_chart(&self, chart: &str, arguments: &[&str]) -> Option<Output> {
        let path = self.programs.join("helm");
        path.is_file().then_some(())?;
        let mut helm = program(&path.display().to_string());
        helm.env("HOME", self.folder.path())
            .args(["template", "evenkeel", chart, "--namespace=evenkeel"])
            .arg(format!("--kube-version={}", version_of("kubernetes")))
            .args(arguments);
        Some(run_with_input(&mut helm, ""))
    }

    /// Returns a kubeconfig file with the token of a service account.
    pub fn kubeconfig_of(&self, namespace: &str, account: &str) -> String {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let request =
            json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
        let answer = self.send_object("POST", &path, &request);
        let token = answer["status"]["token"].as_str().expect("a token");
        self.kubeconfig()
            .replace("token: secret", &format!("token: {token}"))
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        self.kill();
        let _ = self.etcd.kill();
        let _ = self.etcd.wait();
    }
}

/// Returns the address of this machine towards others; `None` if the machine has loopback alone.
pub fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: this only asks for the route to an address of documentation.
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback())
}
