//! API server in memory, for tests with virtual time. The server has no sockets: virtual time goes on while a test waits for
//! a socket.

use std::collections::BTreeMap;
use std::future::pending;
use std::time::Duration;

use evenkeel_net::http::client::Answer;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::list::Fault;

/// Behaviour of the server towards questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Questions are answered.
    Well,
    /// Nobody listens.
    Away,
    /// Questions are never answered.
    Silent,
    /// Questions are answered with a code, and perhaps with a number of seconds to wait.
    Refusing(u16, Option<u32>),
}

/// Question that the server has heard.
#[derive(Clone, Debug)]
pub(crate) struct FakeQuestion {
    /// Time of the question.
    pub(crate) at: Instant,
    /// Method and path, without the query.
    pub(crate) what: String,
}

/// API server in memory.
#[derive(Debug)]
pub(crate) struct FakeServer {
    state: Mutex<FakeState>,
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct FakeState {
    version: u64,
    reads: Behaviour,
    writes: Behaviour,
    /// Part of the paths to which writes are refused with 403.
    refused_path: Option<String>,
    /// Objects by the path of each.
    objects: BTreeMap<String, Value>,
    /// Events: the version, the path of the object, and the line.
    events: Vec<(u64, String, String)>,
    questions: Vec<FakeQuestion>,
}

fn answer(code: u16, retry_after: Option<u32>, body: &Value) -> Answer {
    Answer {
        code,
        media_type: "application/json".into(),
        cookie: "".into(),
        retry_after,
        body: body.to_string().into_bytes(),
    }
}

/// Puts a merge patch (RFC 7396) upon a value.
fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = json!({});
    }
    for (key, patch) in fields {
        match patch {
            Value::Null => drop(value.as_object_mut().and_then(|of| of.remove(key))),
            _ => merge(&mut value[key], patch),
        }
    }
}

/// True if an object at a path is in the collection: directly, or in a namespace.
fn is_in(collection: &str, path: &str) -> bool {
    let Some((group, kind)) = collection.rsplit_once('/') else {
        return false;
    };
    let Some(rest) = path.strip_prefix(group) else {
        return false;
    };
    let parts: Vec<&str> = rest.split('/').skip(1).collect();
    match parts.as_slice() {
        [of, _] => *of == kind,
        ["namespaces", _, of, _] => *of == kind,
        _ => false,
    }
}

impl FakeState {
    /// Puts an object at a path, in another version.
    fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let is_known = self.objects.insert(path.to_owned(), object.clone());
        let kind = if is_known.is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        let line = format!("{}\n", json!({ "type": kind, "object": object }));
        self.events.push((self.version, path.to_owned(), line));
        object
    }

    fn take_question(&mut self, method: &str, path: &str, body: Option<&[u8]>) -> Answer {
        let body = body.map(|body| serde_json::from_slice(body).unwrap());
        let none = json!({});
        match (method, body) {
            ("GET", _) => match self.objects.get(path) {
                Some(object) => answer(200, None, object),
                None => answer(404, None, &none),
            },
            ("POST", Some(object)) => {
                let object: Value = object;
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                let path = format!("{path}/{name}");
                match self.objects.contains_key(&path) {
                    true => answer(409, None, &none),
                    false => answer(201, None, &self.put(&path, object)),
                }
            }
            ("PATCH", Some(patch)) => {
                let path = path.trim_end_matches("/status");
                let Some(object) = self.objects.get(path) else {
                    return answer(404, None, &none);
                };
                let version = &patch["metadata"]["resourceVersion"];
                if version.is_string() && object["metadata"]["resourceVersion"] != *version {
                    return answer(409, None, &none);
                }
                let mut object = object.clone();
                merge(&mut object, &patch);
                answer(200, None, &self.put(path, object))
            }
            _ => answer(405, None, &none),
        }
    }

    fn list(&self, path: &str) -> Answer {
        let items = self.objects.iter().filter(|(of, _)| is_in(path, of));
        let items: Vec<&Value> = items.map(|(_, object)| object).collect();
        let list =
            json!({ "metadata": { "resourceVersion": self.version.to_string() }, "items": items });
        answer(200, None, &list)
    }
}

impl FakeServer {
    /// Makes a server without objects.
    pub(crate) fn new() -> Self {
        FakeServer {
            state: Mutex::new(FakeState {
                version: 1,
                reads: Behaviour::Well,
                writes: Behaviour::Well,
                refused_path: None,
                objects: BTreeMap::new(),
                events: Vec::new(),
                questions: Vec::new(),
            }),
            changed: watch::Sender::new(()),
        }
    }

    /// Sets the behaviour towards lists, watches and other questions that change nothing. Watches end unless they are
    /// answered.
    pub(crate) fn set_reads(&self, behaviour: Behaviour) {
        self.state.lock().reads = behaviour;
        self.changed.send_replace(());
    }

    /// Sets the behaviour towards changes of objects.
    pub(crate) fn set_writes(&self, behaviour: Behaviour) {
        self.state.lock().writes = behaviour;
    }

    /// Refuses changes of objects in whose paths a text is, with 403.
    pub(crate) fn refuse_path(&self, part: Option<&str>) {
        self.state.lock().refused_path = part.map(str::to_owned);
    }

    /// Puts an object at a path.
    pub(crate) fn put(&self, path: &str, object: Value) {
        self.state.lock().put(path, object);
        self.changed.send_replace(());
    }

    /// Returns the object at a path.
    pub(crate) fn object(&self, path: &str) -> Option<Value> {
        self.state.lock().objects.get(path).cloned()
    }

    /// Returns the number of objects in whose paths a text is.
    pub(crate) fn count_objects(&self, part: &str) -> usize {
        let state = self.state.lock();
        state
            .objects
            .keys()
            .filter(|path| path.contains(part))
            .count()
    }

    /// Forgets all questions, and returns them.
    pub(crate) fn take_questions(&self) -> Vec<FakeQuestion> {
        std::mem::take(&mut self.state.lock().questions)
    }

    /// Notes a question. Returns the behaviour towards the question.
    fn hear(&self, method: &str, path: &str) -> Behaviour {
        let mut state = self.state.lock();
        let what = format!("{method} {path}");
        let at = Instant::now();
        state.questions.push(FakeQuestion { at, what });
        let is_refused = { state.refused_path.as_ref() }.is_some_and(|part| path.contains(part));
        match method {
            "GET" => state.reads,
            _ if is_refused => Behaviour::Refusing(403, None),
            _ => state.writes,
        }
    }

    /// Answers a question.
    pub(crate) async fn ask(
        &self,
        method: &str,
        target: &str,
        body: Option<&[u8]>,
    ) -> Result<Answer, Fault> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        match self.hear(method, path) {
            Behaviour::Away => Err(Fault::new("nobody listens")),
            Behaviour::Silent => pending().await,
            Behaviour::Refusing(code, retry_after) => Ok(answer(code, retry_after, &json!({}))),
            Behaviour::Well if !query.is_empty() => Ok(self.state.lock().list(path)),
            Behaviour::Well => {
                let answer = self.state.lock().take_question(method, path, body);
                self.changed.send_replace(());
                Ok(answer)
            }
        }
    }

    /// Answers a watch of at most `seconds`.
    pub(crate) async fn watch(
        &self,
        target: &str,
        (seconds, silence): (u64, Duration),
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<Option<Answer>, Fault> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        match self.hear("GET", path) {
            Behaviour::Away => return Err(Fault::new("nobody listens")),
            Behaviour::Silent => {
                sleep(silence).await;
                return Err(Fault::new("silence"));
            }
            Behaviour::Refusing(code, retry_after) => {
                return Ok(Some(answer(code, retry_after, &json!({}))));
            }
            Behaviour::Well => {}
        }
        let (_, version) = query.split_once("resourceVersion=").unwrap();
        let mut version: u64 = version.parse().unwrap();
        let mut changed = self.changed.subscribe();
        let events = async {
            loop {
                let lines = {
                    let state = self.state.lock();
                    if state.reads != Behaviour::Well {
                        return Err(Fault::new("the connection broke"));
                    }
                    let events = state.events.iter();
                    let events = events.filter(|(at, of, _)| *at > version && is_in(path, of));
                    let lines: Vec<String> = events.map(|(_, _, line)| line.clone()).collect();
                    version = state.version;
                    lines
                };
                for line in lines {
                    if !take(line.as_bytes()) {
                        return Ok(None);
                    }
                }
                // The sender is a part of the server.
                let _ = changed.changed().await;
            }
        };
        let watched = timeout(Duration::from_secs(seconds), events).await;
        watched.unwrap_or(Ok(None))
    }
}
