//! The API from the other side: what `evenkeel ctl` and `evenkeel top` ask with.

mod error;
mod session;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_manager::config::{ClientTls, one_line};
use evenkeel_net::http::client::{self, Answer, AskError, Limits, Question, ServerTarget};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use error::{ClientError, DEFAULT_ADDRESS};
use session::{Login, Session, State};

use crate::ErrorBody;
use crate::wire::LoggedIn;

/// The longest time that a question may take. The API answers from memory; what takes
/// longer hangs.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The longest answer that is read: some 100,000 members.
const MAX_ANSWER: Limits = Limits {
    head: 64 << 10,
    body: 64 << 20,
};

/// The longest time without a byte on a stream of events: there is a comment every 15 seconds.
const SILENCE: Duration = Duration::from_secs(60);

/// Longest time that the end of a session may take. A session whose end the API does not hear of ends by
/// itself.
const FAREWELL: Duration = Duration::from_secs(2);

/// A client of one admin API.
#[derive(Debug)]
pub struct Client {
    /// Host and port.
    address: String,
    host: String,
    port: u16,
    tls: Option<Arc<evenkeel_tls::client::Client>>,
    authorization: Option<String>,
    login: Option<Login>,
    patience: Duration,
}

impl Client {
    /// Makes a client of the API at `address`: `HOST:PORT`, or a URL without path. An address that begins
    /// with `https://` is asked as `tls` says.
    ///
    /// # Errors
    ///
    /// The address is none, the token cannot be sent, or a file cannot be used.
    pub fn new(address: &str, token: Option<&str>, tls: &ClientTls) -> Result<Self, ClientError> {
        let (authority, is_secure) = match address.strip_prefix("https://") {
            Some(authority) => (authority, true),
            None => (address.strip_prefix("http://").unwrap_or(address), false),
        };
        let authority = authority.trim_end_matches('/');
        let no_address = || ClientError::Address(address.into());
        let (host, port) = authority.rsplit_once(':').ok_or_else(no_address)?;
        let port = port.parse::<u16>().map_err(|_| no_address())?;
        let name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let is_name = !host.is_empty() && host.chars().all(name);
        if !is_name && authority.parse::<SocketAddr>().is_err() {
            return Err(no_address());
        }
        if token.is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(ClientError::Token);
        }
        let given = [
            ("--ca-file", tls.ca_file.is_some()),
            ("--cert", tls.certificate.is_some()),
            ("--key", tls.key.is_some()),
        ];
        let given = given.into_iter().find(|(_, given)| *given);
        let tls = match (is_secure, given) {
            (false, Some((option, _))) => return Err(ClientError::NoTls(option)),
            (false, None) => None,
            (true, _) => {
                let loaded = evenkeel_tls::client::Client::from_config(tls);
                let files = |problems: Vec<_>| ClientError::Files(one_line(&problems));
                Some(Arc::new(loaded.map_err(files)?))
            }
        };
        Ok(Client {
            address: authority.into(),
            host: host.trim_matches(['[', ']']).into(),
            port,
            tls,
            authorization: token.map(|token| format!("Bearer {token}")),
            login: None,
            patience: TIMEOUT,
        })
    }

    /// Changes the time that the client waits for an answer.
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Has the client log in as this user before it asks. The client logs out when it is dropped.
    pub fn with_login(mut self, user: &str, password: &str) -> Self {
        self.login = Some(Login::new(user, password));
        self
    }

    /// Returns the address that this client asks.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Reads the resource at `path`, whose segments need no escaping.
    pub fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<T, ClientError> {
        let target = join_path(path) + &query_of(query);
        self.ask_json("GET", &target, None, None)
    }

    /// Changes the configuration, whose revision in force must be `revision`.
    pub fn change_config<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &[&str],
        revision: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.send_json(method, path, Some(revision), body)
    }

    /// Replaces the resource at `path`.
    pub fn put_resource<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.send_json("PUT", path, None, body)
    }

    /// Has the resource at `path` do something.
    pub fn post_resource<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.send_json("POST", path, None, body)
    }

    /// Sends a body with `POST` and with a query.
    pub fn post_with<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| self.not_the_api(error.to_string()))?;
        let target = join_path(path) + &query_of(query);
        self.ask_json("POST", &target, None, Some(&body))
    }

    fn send_json<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &[&str],
        revision: Option<&str>,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| self.not_the_api(error.to_string()))?;
        self.ask_json(method, &join_path(path), revision, Some(&body))
    }

    fn ask_json<T: DeserializeOwned>(
        &self,
        method: &str,
        target: &str,
        revision: Option<&str>,
        body: Option<&[u8]>,
    ) -> Result<T, ClientError> {
        let tag = revision.map(|revision| format!("\"{revision}\""));
        let fields: Vec<_> = tag.iter().map(|tag| ("If-Match", tag.as_str())).collect();
        let ask_as = |session: Option<&Session>| {
            self.send_request(method, target, &self.proof_fields(session, &fields), body)
        };
        let (session, is_new) = self.ensure_session()?;
        let mut answer = ask_as(session.as_ref())?;
        // Sessions end with the time, and with the process; nothing was done for one that is over.
        if answer.code == 401 && !is_new && session.is_some() {
            self.forget_session();
            answer = ask_as(self.ensure_session()?.0.as_ref())?;
        }
        if (200..300).contains(&answer.code) {
            let read = serde_json::from_slice(&answer.body);
            return read.map_err(|error| self.not_the_api(error.to_string()));
        }
        Err(self.refusal_error(&answer))
    }

    /// Fields of a request: those that say who asks, and these.
    fn proof_fields<'a>(
        &'a self,
        session: Option<&'a Session>,
        fields: &[(&'a str, &'a str)],
    ) -> Vec<(&'a str, &'a str)> {
        let authorization = self.authorization.iter();
        let authorization = authorization.map(|value| ("Authorization", value.as_str()));
        let session = session.into_iter().flat_map(Session::header_fields);
        let fields = fields.iter().copied();
        authorization.chain(session).chain(fields).collect()
    }

    /// Sends a request, and reads the answer, whatever that says.
    fn send_request(
        &self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> Result<Answer, ClientError> {
        let content_type = body.map(|_| ("Content-Type", "application/json"));
        let fields: Vec<_> = fields.iter().copied().chain(content_type).collect();
        let question = Question {
            method,
            target,
            authority: &self.address,
            fields: &fields,
            body,
        };
        self.ask_api(question).map_err(|source| match source {
            AskError::Garbage | AskError::TooLong(_) => self.not_the_api(source.to_string()),
            source => ClientError::Unreachable {
                address: self.address.clone(),
                source,
            },
        })
    }

    fn refusal_error(&self, answer: &Answer) -> ClientError {
        match serde_json::from_slice::<ErrorBody>(&answer.body) {
            Ok(body) => ClientError::Refused {
                status: answer.code,
                body,
            },
            Err(_) => self.not_the_api(format!("it answers with status {}", answer.code)),
        }
    }

    /// Follows the events at `path`, for as long as `take` wants more.
    ///
    /// # Errors
    ///
    /// There is no answer, or it ends, or breaks, before `take` has enough.
    pub fn follow_events(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        mut take: impl FnMut(Event) -> bool,
    ) -> Result<(), ClientError> {
        let target = join_path(path) + &query_of(query);
        let (session, _) = self.ensure_session()?;
        let fields = self.proof_fields(session.as_ref(), &[("Accept", "text/event-stream")]);
        let question = Question {
            method: "GET",
            target: &target,
            authority: &self.address,
            fields: &fields,
            body: None,
        };
        let unreachable = |source| ClientError::Unreachable {
            address: self.address.clone(),
            source,
        };
        let runtime = runtime().map_err(|error| unreachable(error.into()))?;
        let mut events = Events::default();
        let mut is_enough = false;
        let followed =
            client::follow_answer(self.api_address(), question, MAX_ANSWER, SILENCE, |bytes| {
                is_enough = !events.push(bytes, &mut take);
                !is_enough && events.text.len() <= MAX_ANSWER.body
            });
        match runtime.block_on(followed).map_err(unreachable)? {
            Some(answer) => Err(self.refusal_error(&answer)),
            None if is_enough => Ok(()),
            None => Err(unreachable(AskError::Closed)),
        }
    }

    fn api_address(&self) -> ServerTarget<'_> {
        ServerTarget {
            host: &self.host,
            port: self.port,
            tls: self.tls.as_ref(),
        }
    }

    fn ask_api(&self, question: Question<'_>) -> Result<Answer, AskError> {
        let answer = client::ask_server(self.api_address(), question, MAX_ANSWER, |_| true);
        let answer =
            runtime()?.block_on(async { tokio::time::timeout(self.patience, answer).await });
        answer.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
    }

    pub(crate) fn not_the_api(&self, detail: String) -> ClientError {
        ClientError::NotTheApi {
            address: self.address.clone(),
            detail,
        }
    }
}

impl Client {
    /// Opens a session, if the client has a user and none is open.
    ///
    /// # Errors
    ///
    /// The API does not answer, or does not let the user in.
    pub fn log_in(&self) -> Result<(), ClientError> {
        self.ensure_session().map(drop)
    }

    /// Returns the session, and whether it was opened just now; `None` without a user.
    fn ensure_session(&self) -> Result<(Option<Session>, bool), ClientError> {
        let Some(login) = &self.login else {
            return Ok((None, false));
        };
        let mut state = login.state.lock();
        match &*state {
            State::Open(session) => return Ok((Some(session.clone()), false)),
            State::Over => return Ok((None, false)),
            State::Refused(body) => {
                let body = body.clone();
                return Err(ClientError::Refused { status: 401, body });
            }
            State::Closed => {}
        }
        let body = serde_json::to_vec(&login.credentials);
        let body = body.map_err(|error| self.not_the_api(error.to_string()))?;
        let answer = self.send_request("POST", "/v1/login", &[], Some(&body))?;
        if answer.code != 200 {
            let refused = self.refusal_error(&answer);
            if let ClientError::Refused { status: 401, body } = &refused {
                *state = State::Refused(body.clone());
            }
            return Err(refused);
        }
        let read = serde_json::from_slice::<LoggedIn>(&answer.body);
        let read = read.map_err(|error| self.not_the_api(error.to_string()))?;
        let session = Session {
            cookie: answer.cookie.split(';').next().unwrap_or_default().into(),
            csrf: read.csrf,
        };
        let can_be_sent = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if session
            .header_fields()
            .iter()
            .any(|(_, value)| !can_be_sent(value))
        {
            return Err(self.not_the_api("the session that it gives cannot be sent back".into()));
        }
        *state = State::Open(session.clone());
        Ok((Some(session), true))
    }

    /// Forgets the session, which is over.
    fn forget_session(&self) {
        if let Some(login) = &self.login {
            let mut state = login.state.lock();
            if matches!(*state, State::Open(_)) {
                *state = State::Closed;
            }
        }
    }

    /// Ends the session, if one is open. The client opens no other one.
    pub fn log_out(&self) {
        // Another thread that logs in meanwhile is not waited for.
        let state = self.login.as_ref().and_then(|login| login.state.try_lock());
        let Some(mut state) = state else {
            return;
        };
        if let State::Open(session) = std::mem::replace(&mut *state, State::Over) {
            let farewell = Client {
                address: self.address.clone(),
                host: self.host.clone(),
                port: self.port,
                tls: self.tls.clone(),
                authorization: None,
                login: None,
                patience: FAREWELL.min(self.patience),
            };
            // If that fails, the session ends with `session_idle`.
            let _ =
                farewell.send_request("POST", "/v1/logout", &session.header_fields(), Some(b"{}"));
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.log_out();
    }
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// A server-sent event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Kind of the event.
    pub kind: String,
    /// Place of the event among the others.
    pub id: String,
    /// Data of the event, as JSON.
    pub data: String,
}

/// Server-sent events as they come.
#[derive(Debug, Default)]
struct Events {
    /// Bytes that are not read yet.
    text: Vec<u8>,
    kind: String,
    id: String,
    data: String,
}

impl Events {
    /// Takes the bytes that have come next; answers whether `take` wants more events than are in them.
    fn push(&mut self, bytes: &[u8], take: &mut impl FnMut(Event) -> bool) -> bool {
        let seen = self.text.len();
        self.text.extend_from_slice(bytes);
        let Some(end) = bytes.iter().rposition(|&byte| byte == b'\n') else {
            return true;
        };
        let rest = self.text.split_off(seen + end + 1);
        let lines = std::mem::replace(&mut self.text, rest);
        for line in String::from_utf8_lossy(&lines).lines() {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match name {
                "event" => self.kind = value.into(),
                "id" => self.id = value.into(),
                "data" => self.data.push_str(value),
                "" if line.is_empty() && !self.data.is_empty() => {
                    let event = Event {
                        kind: std::mem::take(&mut self.kind),
                        id: self.id.clone(),
                        data: std::mem::take(&mut self.data),
                    };
                    if !take(event) {
                        return false;
                    }
                }
                _ => {}
            }
        }
        true
    }
}

/// RFC 3986's unreserved characters stay as they are.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

fn escape_segment(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, RESERVED)
}

fn query_of(query: &[(&str, &str)]) -> String {
    let pairs = query.iter().enumerate().map(|(index, (name, value))| {
        let before = if index == 0 { '?' } else { '&' };
        format!("{before}{}={}", escape_segment(name), escape_segment(value))
    });
    pairs.collect()
}

fn join_path(path: &[&str]) -> String {
    let segments = path
        .iter()
        .map(|segment| format!("/{}", escape_segment(segment)));
    segments.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts_with_ports() {
        let tls = ClientTls {
            verify: false,
            ..ClientTls::default()
        };
        for good in [
            "127.0.0.1:1",
            "[::1]:9900",
            "localhost:9900",
            "http://lb-1.example:80/",
            "https://[::1]:9900",
        ] {
            assert!(Client::new(good, None, &tls).is_ok(), "{good}");
        }
        for bad in [
            "",
            "localhost",
            ":1",
            "::1:99999",
            "a b:1",
            "h:1/x",
            "u@h:1",
            "https://h",
            "ftp://h:1",
        ] {
            assert!(Client::new(bad, None, &tls).is_err(), "{bad}");
        }
        assert!(Client::new("h:1", Some("a\r\nb: c"), &tls).is_err());
    }

    #[test]
    fn what_is_for_tls_needs_it() {
        let tls = ClientTls {
            ca_file: Some(std::path::PathBuf::from("none.pem").into()),
            ..ClientTls::default()
        };
        let error = |address| Client::new(address, None, &tls).unwrap_err().to_string();
        assert!(
            error("h:1").starts_with("--ca-file is for"),
            "{}",
            error("h:1")
        );
        assert!(
            error("https://h:1").contains("none.pem"),
            "{}",
            error("https://h:1")
        );
    }

    #[test]
    fn events_are_read_whatever_pieces_they_come_in() {
        let text = "retry: 2000\n\nevent: change\nid: a-1\ndata: {\"x\":\"é\"}\n\n: comment\n\nid: a-1\n\
                    event: sample\ndata:{}\n\nid: b\ndata: {";
        for size in 1..text.len() {
            let mut events = Events::default();
            let mut seen = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                assert!(events.push(piece, &mut |event: Event| {
                    seen.push(event);
                    true
                }));
            }
            let event = |kind: &str, data: &str| Event {
                kind: kind.into(),
                id: "a-1".into(),
                data: data.into(),
            };
            let expected = [event("change", "{\"x\":\"é\"}"), event("sample", "{}")];
            assert_eq!(seen, expected, "in pieces of {size}");
        }
        let mut count = 0;
        let more = Events::default().push(text.as_bytes(), &mut |_| {
            count += 1;
            false
        });
        assert_eq!((more, count), (false, 1));
    }

    #[test]
    fn segments_of_a_path_are_escaped() {
        let target = join_path(&["v1", "groups", "a/b ?é", "members", "10.0.0.1:80"]);
        assert_eq!(target, "/v1/groups/a%2Fb%20%3F%C3%A9/members/10.0.0.1%3A80");
    }
}
