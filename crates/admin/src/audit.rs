//! The audit log: every change by the API, who made it, from where, and how it went.

use std::collections::VecDeque;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::actor::{Actor, Role};
use crate::conn::Peer;

/// So many are kept in memory.
const KEPT: usize = 500;

/// Most bytes of a request's body that are written down.
const MAX_WHAT: usize = 1024;

/// Longest path that is written down.
const MAX_PATH: usize = 512;

/// A change, or that somebody has tried one.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// When, as in `2026-05-04T12:00:00Z`.
    pub(crate) at: String,
    /// Who; empty if nobody was logged in.
    pub(crate) user: String,
    /// What the user may do.
    pub(crate) role: Option<Role>,
    /// From which address.
    pub(crate) from: Option<IpAddr>,
    /// The method of the request.
    pub(crate) method: String,
    /// Its path.
    pub(crate) path: String,
    /// Status of the answer: 200 if it was done.
    pub(crate) status: u16,
    /// What was to be done.
    pub(crate) what: String,
}

/// What a handler says of what it does, instead of the body of the request.
#[derive(Clone, Debug)]
pub(crate) struct What(pub(crate) String);

/// The last changes, and the file that all are written to.
#[derive(Debug)]
pub(crate) struct Audit {
    last: Mutex<VecDeque<Entry>>,
    file: Option<PathBuf>,
    /// One line at a time.
    writing: tokio::sync::Mutex<()>,
}

impl Audit {
    pub(crate) fn new(file: Option<&Path>) -> Self {
        Audit {
            last: Mutex::default(),
            file: file.map(Path::to_owned),
            writing: tokio::sync::Mutex::default(),
        }
    }

    /// The last ones, newest first.
    pub(crate) fn last(&self) -> Vec<Entry> {
        self.last.lock().iter().rev().cloned().collect()
    }

    /// Writes one down. Whoever has asked is answered after that.
    async fn add(&self, entry: Entry) {
        let line = serde_json::to_string(&entry);
        {
            let mut last = self.last.lock();
            if last.len() == KEPT {
                last.pop_front();
            }
            last.push_back(entry);
        }
        let (Some(file), Ok(line)) = (&self.file, line) else {
            return;
        };
        let _one_at_a_time = self.writing.lock().await;
        let (shown, path) = (file.display(), file.clone());
        let written = tokio::task::spawn_blocking(move || append(&path, &line)).await;
        if let Ok(Err(error)) = written {
            tracing::error!(
                "the audit log {shown} cannot be written: {error}; the change has been made"
            );
        }
    }
}

/// Opened each time: the file may have been moved away by a program that rotates logs.
fn append(path: &Path, line: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .open(path)?;
    file.write_all(format!("{line}\n").as_bytes())
}

/// The middleware of what changes anything.
pub(crate) async fn audited(
    Extension(audit): Extension<Arc<Audit>>,
    axum::extract::ConnectInfo(peer): axum::extract::ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let actor = request.extensions().get::<Actor>().cloned();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let (head, body) = request.into_parts();
    // It is in memory already, and bounded.
    let Ok(body) = axum::body::to_bytes(body, usize::MAX).await else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let given = what_of(&path, &body);
    let response = next.run(Request::from_parts(head, body.into())).await;
    let told = response.extensions().get::<What>();
    let entry = Entry {
        at: now(),
        user: actor
            .as_ref()
            .map(|actor| actor.user.clone())
            .unwrap_or_default(),
        role: actor.as_ref().map(|actor| actor.role),
        from: Some(peer.address.ip()),
        method: method_name(&method),
        path: shortened(&path, MAX_PATH),
        status: response.status().as_u16(),
        what: told.map_or(given, |told| shortened(&told.0, MAX_WHAT)),
    };
    audit.add(entry).await;
    response
}

fn method_name(method: &Method) -> String {
    method.as_str().to_owned()
}

/// What a body says; nothing where it may hold secrets.
fn what_of(path: &str, body: &Bytes) -> String {
    let secret = path == "/v1/login" || path.starts_with("/v1/config");
    match secret {
        true => String::new(),
        false => shortened(&String::from_utf8_lossy(body), MAX_WHAT),
    }
}

fn shortened(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let ends = text.char_indices().map(|(at, _)| at);
    let end = ends.take_while(|at| *at <= most).last().unwrap_or(0);
    format!("{}…", text.get(..end).unwrap_or_default())
}

fn now() -> String {
    let now = jiff::Timestamp::now();
    now.round(jiff::Unit::Second).unwrap_or(now).to_string()
}

/// The last changes.
pub(crate) async fn show(Extension(audit): Extension<Arc<Audit>>) -> Json<Vec<Entry>> {
    Json(audit.last())
}
