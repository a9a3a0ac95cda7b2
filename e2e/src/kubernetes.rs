//! API servers of Kubernetes: one that does what a test tells it (EndpointSlices, with list and watch), and `kube-apiserver`
//! itself.

use std::collections::{BTreeMap, BTreeSet};
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

/// A server with slices of services, whose port is `http`: of `shop/web`, and of others. There are no other objects.
pub struct ApiServer {
    address: SocketAddr,
    world: Arc<Mutex<World>>,
}

/// Slices of the server, and everything that it has heard.
struct World {
    version: u64,
    /// Slices by namespace and name.
    slices: BTreeMap<String, Value>,
    /// All changes, with their versions and namespaces, as events of a watch. Bookmarks have no namespace.
    events: Vec<(u64, String, String)>,
    /// Oldest version from which a watch may go on.
    oldest: u64,
    mood: Mood,
    token: Option<String>,
    /// Most slices in a page of a list.
    page: usize,
    /// Namespaces whose slices nobody may list; an empty one for a list of all namespaces.
    forbidden: BTreeSet<String>,
    watches: Vec<SliceWatch>,
    /// Watches of other objects, which never get an event.
    other_watches: Vec<Sender<Option<String>>>,
    questions: Vec<String>,
}

/// Open watch of slices.
struct SliceWatch {
    /// Namespace of the slices; empty for all namespaces.
    namespace: String,
    sender: Sender<Option<String>>,
}

/// Returns the services that a question chooses; `None` for all services.
fn selected_services(target: &str) -> Option<Vec<&str>> {
    let (_, selector) = target.split_once("labelSelector=")?;
    let (_, names) = selector.split_once("%20in%20%28").expect("a set");
    let (names, _) = names.split_once("%29").expect("a set");
    Some(names.split("%2C").collect())
}

/// Returns true if a watch or list of a namespace, or of all, has objects of another namespace.
fn has_namespace(namespace: &str, of: &str) -> bool {
    namespace.is_empty() || of.is_empty() || namespace == of
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
        let (namespace, _) = name.split_once('/').expect("a namespace");
        self.send_event(namespace, event);
    }

    fn send_event(&mut self, namespace: &str, event: String) {
        self.watches.retain(|watch| {
            let is_other = !has_namespace(&watch.namespace, namespace);
            is_other || watch.sender.send(Some(event.clone())).is_ok()
        });
        let event = (self.version, namespace.to_owned(), event);
        self.events.push(event);
    }

    /// Ends all watches.
    fn end_watches(&mut self) {
        for watch in self.watches.drain(..) {
            let _ = watch.sender.send(None);
        }
    }

    /// Answers a list, or the token of a page.
    fn list(&self, namespace: &str, target: &str) -> Value {
        let services = selected_services(target);
        let label = |slice: &Value| {
            let label = &slice["metadata"]["labels"]["kubernetes.io/service-name"];
            label.as_str().unwrap_or_default().to_owned()
        };
        let is_chosen = |(key, slice): &(&String, &Value)| {
            let (of, _) = key.split_once('/').expect("a namespace");
            let services = services.as_ref();
            has_namespace(namespace, of)
                && services.is_none_or(|services| services.contains(&&*label(slice)))
        };
        let slices: Vec<_> = self.slices.iter().filter(is_chosen).collect();
        let skip: usize = target
            .split_once("continue=")
            .map_or(0, |(_, rest)| rest.parse().expect("a token of ours"));
        let items = slices.iter().skip(skip).take(self.page);
        let items: Vec<_> = items.map(|(_, slice)| slice).collect();
        let next = match skip + self.page < slices.len() {
            true => (skip + self.page).to_string(),
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
            page: 1,
            forbidden: BTreeSet::new(),
            watches: Vec::new(),
            other_watches: Vec::new(),
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

    /// Sets the endpoints of a slice of `shop/web`; the slice has one port.
    pub fn set_slice(&self, name: &str, port: u16, endpoints: &[(&str, Condition)]) {
        self.set_slice_of("shop/web", name, port, endpoints);
    }

    /// Sets the endpoints of a slice of a service, `namespace/name`; the slice has one port.
    pub fn set_slice_of(
        &self,
        service: &str,
        name: &str,
        port: u16,
        endpoints: &[(&str, Condition)],
    ) {
        let (namespace, service) = service.split_once('/').expect("a namespace");
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
        let key = format!("{namespace}/{name}");
        let kind = match world.slices.contains_key(&key) {
            true => "MODIFIED",
            false => "ADDED",
        };
        let labels = json!({ "kubernetes.io/service-name": service });
        let is_v6 = endpoints
            .iter()
            .any(|one| one["addresses"].to_string().contains(':'));
        let object = json!({
            "kind": "EndpointSlice",
            "apiVersion": "discovery.k8s.io/v1",
            "metadata": { "name": name, "namespace": namespace, "labels": labels },
            "addressType": if is_v6 { "IPv6" } else { "IPv4" },
            "endpoints": endpoints,
            "ports": [{ "name": "http", "protocol": "TCP", "port": port }],
        });
        world.slices.insert(key.clone(), object);
        world.note_change(kind, &key);
    }

    /// Sets the zone of the endpoints of a slice of `shop`, and the zone that is to use them, if there is a hint.
    pub fn set_zone(&self, slice: &str, zone: &str, hint: Option<&str>) {
        let mut world = self.lock();
        let key = format!("shop/{slice}");
        let object = world.slices.get_mut(&key).expect("a slice");
        for endpoint in object["endpoints"].as_array_mut().expect("endpoints") {
            endpoint["zone"] = json!(zone);
            endpoint["hints"] =
                hint.map_or(json!({}), |hint| json!({ "forZones": [{ "name": hint }] }));
        }
        world.note_change("MODIFIED", &key);
    }

    /// Deletes a slice of `shop`.
    pub fn delete_slice(&self, name: &str) {
        let mut world = self.lock();
        let key = format!("shop/{name}");
        world.note_change("DELETED", &key);
        world.slices.remove(&key);
    }

    /// Lets lists have pages of at most `size` slices, instead of one.
    pub fn set_page(&self, size: usize) {
        self.lock().page = size;
    }

    /// Forbids the balancer to list and watch the slices of a namespace, or of all namespaces if the name is empty. All
    /// watches end.
    pub fn forbid(&self, namespace: &str) {
        let mut world = self.lock();
        world.forbidden.insert(namespace.to_owned());
        world.end_watches();
    }

    /// Lets the balancer list and watch everything again.
    pub fn allow_all(&self) {
        self.lock().forbidden.clear();
    }

    /// Sends a bookmark: the version moves on without a change.
    pub fn send_bookmark(&self) -> u64 {
        let mut world = self.lock();
        world.version += 10;
        let version = world.version;
        let metadata = json!({ "resourceVersion": version.to_string() });
        let object = json!({ "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": metadata });
        let event = json!({ "type": "BOOKMARK", "object": object }).to_string();
        world.send_event("", event);
        version
    }

    /// Forgets old versions: watches from before end with 410, and open ones are told so.
    pub fn compact(&self) {
        let mut world = self.lock();
        world.version += 1;
        world.oldest = world.version;
        let status = json!({ "kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version" });
        let event = json!({ "type": "ERROR", "object": status }).to_string();
        world.send_event("", event);
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

    /// Returns the number of open watches of slices.
    pub fn watch_count(&self) -> usize {
        self.lock().watches.len()
    }

    /// Returns the namespaces of the open watches of slices; an empty one for a watch of all namespaces.
    pub fn watched_namespaces(&self) -> Vec<String> {
        let world = self.lock();
        let watches = world.watches.iter();
        watches.map(|watch| watch.namespace.clone()).collect()
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
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let of_slices = path.strip_prefix("/apis/discovery.k8s.io/v1");
    let of_slices = of_slices.and_then(|path| path.strip_suffix("/endpointslices"));
    let Some(namespace) = of_slices else {
        return match query {
            "" => refuse(404, "", "not found"),
            _ => Some(answer_without_objects(&mut world, query)),
        };
    };
    let namespace = namespace.strip_prefix("/namespaces/").unwrap_or(namespace);
    if world.forbidden.contains(namespace) {
        return refuse(403, "", "endpointslices are forbidden");
    }
    let Some((_, version)) = query.split_once("resourceVersion=") else {
        let list = world.list(namespace, &target).to_string();
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
    let is_later = |of: &&(u64, String, String)| of.0 > version && has_namespace(namespace, &of.1);
    for (_, _, event) in world.events.iter().filter(is_later) {
        let _ = write!(head, "{:x}\r\n{event}\n\r\n", event.len() + 1);
    }
    let (sender, events) = channel();
    let namespace = namespace.to_owned();
    world.watches.push(SliceWatch { namespace, sender });
    Some((head, Some(events)))
}

/// Returns the answer to a list or a watch of a kind without objects.
fn answer_without_objects(world: &mut World, query: &str) -> (String, Option<Events>) {
    if query.contains("resourceVersion=") {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned();
        let (sender, events) = channel();
        world.other_watches.push(sender);
        return (head, Some(events));
    }
    let list = json!({ "metadata": { "resourceVersion": "1" }, "items": [] }).to_string();
    let length = list.len();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
    (head + &list, None)
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
    /// Oldest release that tests use.
    Oldest,
    /// Newest release, and that of the conformance suite.
    Newest,
}

impl GatewayRelease {
    fn version(self) -> &'static str {
        version_of(match self {
            GatewayRelease::Oldest => "gateway_api",
            GatewayRelease::Newest => "gateway_api_newest",
        })
    }
}

/// Returns the path of a program of the conformance suite of the Gateway API; `None` if the program is not there.
pub fn conformance_program(name: &str) -> Option<PathBuf> {
    let folder = format!("conformance-{}", GatewayRelease::Newest.version());
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

/// `kube-apiserver` with an etcd of its own, and perhaps `kube-controller-manager`; all killed when dropped.
pub struct RealServer {
    folder: Folder,
    programs: PathBuf,
    at: SocketAddr,
    /// Addresses of etcd: for clients, and for other servers.
    store: [SocketAddr; 2],
    etcd: Option<Child>,
    server: Option<Child>,
    controllers: Option<Child>,
}

impl RealServer {
    /// Starts the programs that `scripts/kubernetes` has built; `None` if they are not there.
    pub fn start() -> Option<Self> {
        let programs = find_programs()?;
        let is_there = |name: &str| programs.join(name).is_file();
        (is_there("kube-apiserver") && is_there("etcd")).then_some(())?;
        let folder = Folder::new();
        folder.write("tokens.csv", "secret,admin,1,\"system:masters\"\n");
        let mut server = RealServer {
            folder,
            programs,
            at: address(),
            store: [address(), address()],
            etcd: None,
            server: None,
            controllers: None,
        };
        let key = server.folder.join("account.key").display().to_string();
        let made = program("openssl")
            .args(["genrsa", "-out", &key, "2048"])
            .output();
        assert!(made.expect("openssl runs").status.success());
        server.run_etcd();
        server.run();
        Some(server)
    }

    fn run_etcd(&mut self) {
        let path = self.programs.join("etcd");
        let [clients, peers] = self.store;
        let mut etcd = program(&path.display().to_string());
        etcd.arg(format!("--data-dir={}", self.folder.join("etcd").display()))
            .arg(format!("--listen-client-urls=http://{clients}"))
            .arg(format!("--advertise-client-urls=http://{clients}"))
            .arg(format!("--listen-peer-urls=http://{peers}"));
        let log = File::create(self.folder.join("etcd.log")).expect("a log");
        let etcd = etcd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.etcd = Some(etcd.spawn().expect("etcd starts"));
    }

    fn kill_etcd(&mut self) {
        if let Some(mut etcd) = self.etcd.take() {
            let _ = etcd.kill();
            let _ = etcd.wait();
        }
    }

    /// Copies a folder with the data of etcd in place of another one, and starts everything again.
    fn copy_data(&mut self, from: &str, to: &str) {
        self.kill();
        self.kill_etcd();
        let (from, to) = (self.folder.join(from), self.folder.join(to));
        let _ = fs::remove_dir_all(&to);
        let copied = program("cp").arg("-r").args([from, to]).status();
        assert!(copied.expect("cp runs").success());
        self.run_etcd();
        self.run();
    }

    /// Keeps a copy of all objects, as a backup does. The API server is away meanwhile.
    pub fn back_up(&mut self) {
        self.copy_data("etcd", "backup");
    }

    /// Puts the backup in place of all objects: changes since then are lost.
    pub fn restore(&mut self) {
        self.copy_data("backup", "etcd");
    }

    /// Starts `kube-apiserver` again after [`RealServer::kill`], and waits until it is ready.
    pub fn run(&mut self) {
        let file = |name: &str| self.folder.join(name).display().to_string();
        let log = File::create(self.folder.join("server.log")).expect("a log");
        let path = self.programs.join("kube-apiserver");
        let mut server = program(&path.display().to_string());
        server
            .arg(format!("--etcd-servers=http://{}", self.store[0]))
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
                "--service-cluster-ip-range=10.96.0.0/16,fd96::/112",
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

    /// Starts the controllers of Deployments, EndpointSlices and service accounts of `kube-controller-manager`. Returns false
    /// if the program is not there.
    pub fn start_controllers(&mut self) -> bool {
        let path = self.programs.join("kube-controller-manager");
        if !path.is_file() {
            return false;
        }
        let log = File::create(self.folder.join("controllers.log")).expect("a log");
        let kubeconfig = self.folder.write("admin.kubeconfig", self.kubeconfig());
        let mut controllers = program(&path.display().to_string());
        controllers
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .args([
                "--controllers=deployment-controller,replicaset-controller,endpointslice-controller,serviceaccount-controller",
                "--leader-elect=false",
                "--secure-port=0",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.controllers = Some(controllers.spawn().expect("kube-controller-manager starts"));
        true
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

    /// Changes the fields of an object that a merge patch has.
    pub fn patch_object(&self, path: &str, patch: &Value) {
        let media_type = "application/merge-patch+json";
        self.send_text("PATCH", path, media_type, &patch.to_string());
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
        if let Some(mut process) = self.controllers.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        self.kill_etcd();
    }
}

/// Returns the address of this machine towards others; `None` if the machine has loopback alone.
pub fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: this only asks for the route to an address of documentation.
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback())
}
