//! The audit log: every change by the API, who made it, from where, and how it went.

use std::collections::VecDeque;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use evenkeel_net::network::network_of;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::actor::{Actor, Role};
use crate::conn::Peer;

/// Number of entries that are kept in memory.
const KEPT: usize = 500;

/// Most kept entries that have no user: they do not push out the entries of users.
const KEPT_OF_NOBODY: usize = 50;

/// Entries without a user: at most one of each network, and so many in all, in this time.
const NOBODYS_TIME: Duration = Duration::from_secs(60);
const NOBODYS_ENTRIES: usize = 20;

/// A file of this size gets no more entries without a user, in bytes.
const MAX_FILE_FOR_NOBODY: u64 = 64 << 20;

/// Most bytes of a request's body that are written down.
const MAX_WHAT: usize = 1024;

/// The path by which a session is ended, which has no body.
const LOGOUT: &str = "/v1/logout";

/// Longest path that is written down.
const MAX_PATH: usize = 512;

/// A change, or that somebody has tried one.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Time of the request, as in `2026-05-04T12:00:00Z`.
    pub(crate) at: String,
    /// Name of the user; empty if nobody was logged in.
    pub(crate) user: String,
    /// Role of the user.
    pub(crate) role: Option<Role>,
    /// From which address.
    pub(crate) from: Option<IpAddr>,
    /// The method of the request.
    pub(crate) method: String,
    /// Path of the request.
    pub(crate) path: String,
    /// Status of the answer: 200 if it was done.
    pub(crate) status: u16,
    /// Description of the change that was asked for.
    pub(crate) what: String,
}

/// Description by a handler of what it does, for the log instead of the body of the request.
#[derive(Clone, Debug)]
pub(crate) struct AuditDescription(pub(crate) String);

/// User that the request has made known, and the role.
#[derive(Clone, Debug)]
pub(crate) struct AuditUser(pub(crate) String, pub(crate) Role);

/// Entries in memory.
#[derive(Debug, Default)]
struct Last {
    entries: VecDeque<Entry>,
    sample: Sample,
}

/// Choice of entries without a user: anybody can make those, as fast as the network allows.
#[derive(Debug, Default)]
struct Sample {
    /// From which networks there was one of late, and when.
    written: Vec<(Option<IpAddr>, Instant)>,
    /// Number of entries that were left out since the last one.
    left_out: u64,
}

impl Sample {
    /// Takes an entry that comes from there; answers how many were left out before. `None` if this one is, too.
    fn take(&mut self, from: Option<IpAddr>, now: Instant) -> Option<u64> {
        let network = from.map(network_of);
        self.written
            .retain(|(_, at)| now.duration_since(*at) < NOBODYS_TIME);
        let is_known = self.written.iter().any(|(known, _)| *known == network);
        if is_known || self.written.len() >= NOBODYS_ENTRIES {
            self.left_out += 1;
            return None;
        }
        self.written.push((network, now));
        Some(std::mem::take(&mut self.left_out))
    }
}

impl Last {
    /// Keeps an entry, unless it is one of too many without a user; answers the entry as it is to be written.
    fn keep_entry(&mut self, mut entry: Entry, now: Instant) -> Option<Entry> {
        if entry.user.is_empty() {
            let left_out = self.sample.take(entry.from, now)?;
            if left_out > 0 {
                let more = format!(" ({left_out} others without a user were not written down)");
                entry.what.push_str(&more);
            }
            let nobodys = self.entries.iter().filter(|entry| entry.user.is_empty());
            if nobodys.count() >= KEPT_OF_NOBODY {
                let oldest = self.entries.iter().position(|entry| entry.user.is_empty());
                oldest.and_then(|oldest| self.entries.remove(oldest));
            }
        }
        if self.entries.len() == KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back(entry.clone());
        Some(entry)
    }
}

/// The last changes, and the file that all are written to.
#[derive(Debug)]
pub(crate) struct Audit {
    last: Mutex<Last>,
    file: Option<PathBuf>,
    /// Lock that lets one line at a time be written.
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

    /// Returns the last entries, newest first.
    pub(crate) fn last_entries(&self) -> Vec<Entry> {
        self.last.lock().entries.iter().rev().cloned().collect()
    }

    /// Writes an entry down. The client that has asked is answered after that.
    async fn add_entry(&self, entry: Entry) {
        let kept = self.last.lock().keep_entry(entry, Instant::now());
        let Some(entry) = kept else {
            return;
        };
        let (Some(file), Ok(line)) = (&self.file, serde_json::to_string(&entry)) else {
            return;
        };
        let most = match entry.user.is_empty() {
            true => MAX_FILE_FOR_NOBODY,
            false => u64::MAX,
        };
        let _one_at_a_time = self.writing.lock().await;
        let (shown, path) = (file.display(), file.clone());
        let written = tokio::task::spawn_blocking(move || append_line(&path, &line, most)).await;
        if let Ok(Err(error)) = written {
            tracing::error!(
                "the audit log {shown} cannot be written: {error}; the change has been made"
            );
        }
    }
}

/// Appends a line to the file, which is opened each time: the file may have been moved away by a program that
/// rotates logs. A file that has `most` bytes stays as it is.
fn append_line(path: &Path, line: &str, most: u64) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .open(path)?;
    if file.metadata()?.len() >= most {
        return Ok(());
    }
    file.write_all(format!("{line}\n").as_bytes())
}

/// Middleware that logs requests that change anything.
pub(crate) async fn audit_request(
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
    let told = response.extensions().get::<AuditDescription>();
    let actor = actor.map(|actor| (actor.user, actor.role));
    let who = response.extensions().get::<AuditUser>();
    let actor = who
        .map(|AuditUser(user, role)| (user.clone(), *role))
        .or(actor);
    if actor.is_none() && path == LOGOUT {
        // Nobody was logged in, so nothing has changed.
        return response;
    }
    let (user, role) = actor.unzip();
    let entry = Entry {
        at: current_time(),
        user: user.unwrap_or_default(),
        role,
        from: Some(peer.address.ip()),
        method: method_name(&method),
        path: shorten_text(&path, MAX_PATH),
        status: response.status().as_u16(),
        what: told.map_or(given, |told| shorten_text(&told.0, MAX_WHAT)),
    };
    audit.add_entry(entry).await;
    response
}

fn method_name(method: &Method) -> String {
    method.as_str().to_owned()
}

/// Returns the text of a body for the log; nothing where the body may hold secrets.
fn what_of(path: &str, body: &Bytes) -> String {
    let secret = path == "/v1/login" || path == LOGOUT || path.starts_with("/v1/config");
    match secret {
        true => String::new(),
        false => shorten_text(&String::from_utf8_lossy(body), MAX_WHAT),
    }
}

fn shorten_text(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let ends = text.char_indices().map(|(at, _)| at);
    let end = ends.take_while(|at| *at <= most).last().unwrap_or(0);
    format!("{}…", text.get(..end).unwrap_or_default())
}

fn current_time() -> String {
    let now = jiff::Timestamp::now();
    now.round(jiff::Unit::Second).unwrap_or(now).to_string()
}

/// Returns the last changes.
pub(crate) async fn show_entries(Extension(audit): Extension<Arc<Audit>>) -> Json<Vec<Entry>> {
    Json(audit.last_entries())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(user: &str, from: [u8; 4]) -> Entry {
        Entry {
            at: current_time(),
            user: user.into(),
            role: None,
            from: Some(from.into()),
            method: "POST".into(),
            path: "/v1/login".into(),
            status: 401,
            what: "login".into(),
        }
    }

    #[test]
    fn n8_entries_without_a_user_are_sampled_and_push_nobody_out() {
        let (mut last, begun) = (Last::default(), Instant::now());
        for _ in 0..KEPT - KEPT_OF_NOBODY {
            assert!(
                last.keep_entry(entry("anna", [192, 0, 2, 1]), begun)
                    .is_some()
            );
        }
        // One address: the first one of a minute, with what was left out.
        let bad = || entry("", [192, 0, 2, 66]);
        let mut written = Vec::new();
        for number in 0..6000u64 {
            let now = begun + Duration::from_millis(20 * number);
            written.extend(last.keep_entry(bad(), now));
        }
        let texts: Vec<&str> = written.iter().map(|entry| &*entry.what).collect();
        let later = "login (2999 others without a user were not written down)";
        assert_eq!(texts, ["login", later]);
        // Many addresses: a number of them a minute.
        let now = begun + Duration::from_secs(300);
        let all = (0..=255).filter(|last_byte| {
            let entry = entry("", [198, 51, 100, *last_byte]);
            last.keep_entry(entry, now).is_some()
        });
        assert_eq!(all.count(), NOBODYS_ENTRIES);
        // For days.
        for minute in 0..10_000 {
            let now = begun + Duration::from_secs(600 + 60 * minute);
            assert!(last.keep_entry(bad(), now).is_some());
        }
        let of = |user: &str| {
            let entries = last.entries.iter();
            entries.filter(|entry| entry.user == user).count()
        };
        assert_eq!(of("anna"), KEPT - KEPT_OF_NOBODY);
        assert_eq!(of(""), KEPT_OF_NOBODY);
        for _ in 0..KEPT {
            last.keep_entry(entry("bert", [192, 0, 2, 1]), begun);
        }
        assert_eq!(last.entries.len(), KEPT);
    }

    #[test]
    fn n8_a_large_file_gets_no_more_entries_without_a_user() {
        let name = format!("evenkeel-audit-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        for (most, lines) in [(u64::MAX, 1), (2, 1), (3, 2)] {
            append_line(&path, "x", most).unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text.lines().count(), lines);
        }
        std::fs::remove_file(&path).unwrap();
    }
}
