//! The API from the other side: what `evenkeel ctl` and `evenkeel top` ask with.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_net::http::client::{self, Answer, AskError, Limits, Question};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ErrorBody;

/// Where the API is if nobody says otherwise.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:9900";

/// The longest time that a question may take. The API answers from memory; what takes
/// longer hangs.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The longest answer that is read: some 100,000 members.
const MAX_ANSWER: Limits = Limits {
    head: 64 << 10,
    body: 64 << 20,
};

/// Why a question was not answered.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address makes no URL.
    #[error(
        "{0:?} is not an address of an admin API; expected HOST:PORT, such as {DEFAULT_ADDRESS}"
    )]
    Address(String),
    /// The token cannot be sent.
    #[error("the token holds characters that HTTP cannot carry; only visible ASCII can be used")]
    Token,
    /// Nobody answers, or not in time.
    #[error(
        "no answer from the admin API at {address}: {source}. Is evenkeel running, with [admin] in its configuration? --admin names another address"
    )]
    Unreachable {
        /// Where.
        address: String,
        /// Why.
        source: AskError,
    },
    /// Something answers, but it is no admin API of this version.
    #[error("the server at {address} is not an admin API of this version: {detail}")]
    NotTheApi {
        /// Where.
        address: String,
        /// What was wrong with the answer.
        detail: String,
    },
    /// The API refuses.
    #[error("{}{}", .body.detail, allowed(.body))]
    Refused {
        /// HTTP status.
        status: u16,
        /// What the API says.
        body: ErrorBody,
    },
}

fn allowed(body: &ErrorBody) -> String {
    if body.allowed.is_empty() {
        return String::new();
    }
    format!("\nallowed: {}", body.allowed.join(", "))
}

/// A client of one admin API.
#[derive(Debug)]
pub struct Client {
    address: String,
    authorization: Option<String>,
}

impl Client {
    /// A client of the API at `address` (`host:port`, or a URL without path).
    pub fn new(address: &str, token: Option<&str>) -> Result<Self, ClientError> {
        let authority = address.strip_prefix("http://").unwrap_or(address);
        let authority = authority.trim_end_matches('/');
        let is_authority = authority.parse::<SocketAddr>().is_ok()
            || authority.rsplit_once(':').is_some_and(|(host, port)| {
                let name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
                !host.is_empty() && host.chars().all(name) && port.parse::<u16>().is_ok()
            });
        if !is_authority {
            return Err(ClientError::Address(address.into()));
        }
        if token.is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(ClientError::Token);
        }
        Ok(Client {
            address: authority.into(),
            authorization: token.map(|token| format!("Bearer {token}")),
        })
    }

    /// Where this client asks.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Reads the resource at `path`, whose segments need no escaping.
    pub fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<T, ClientError> {
        let mut target = target(path);
        for (index, (name, value)) in query.iter().enumerate() {
            target.push(if index == 0 { '?' } else { '&' });
            target.push_str(&format!("{}={}", escaped(name), escaped(value)));
        }
        self.ask("GET", &target, None)
    }

    /// Replaces the resource at `path`.
    pub fn put<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.send("PUT", path, body)
    }

    /// Has the resource at `path` do something.
    pub fn post<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.send("POST", path, body)
    }

    fn send<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &[&str],
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| self.not_the_api(error.to_string()))?;
        self.ask(method, &target(path), Some(&body))
    }

    fn ask<T: DeserializeOwned>(
        &self,
        method: &str,
        target: &str,
        body: Option<&[u8]>,
    ) -> Result<T, ClientError> {
        let authorization = self.authorization.iter();
        let authorization = authorization.map(|value| ("Authorization", value.as_str()));
        let content_type = body.map(|_| ("Content-Type", "application/json"));
        let fields: Vec<(&str, &str)> = authorization.chain(content_type).collect();
        let question = Question {
            method,
            target,
            authority: &self.address,
            fields: &fields,
            body,
        };
        let answer = self.exchange(question).map_err(|source| match source {
            AskError::Garbage | AskError::TooLong(_) => self.not_the_api(source.to_string()),
            source => ClientError::Unreachable {
                address: self.address.clone(),
                source,
            },
        })?;
        if (200..300).contains(&answer.code) {
            let read = serde_json::from_slice(&answer.body);
            return read.map_err(|error| self.not_the_api(error.to_string()));
        }
        match serde_json::from_slice::<ErrorBody>(&answer.body) {
            Ok(body) => Err(ClientError::Refused {
                status: answer.code,
                body,
            }),
            Err(_) => Err(self.not_the_api(format!("it says {}", answer.code))),
        }
    }

    fn exchange(&self, question: Question<'_>) -> Result<Answer, AskError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let answer = client::ask(&*self.address, question, MAX_ANSWER, |_| true);
        let answer = runtime.block_on(async { tokio::time::timeout(TIMEOUT, answer).await });
        answer.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
    }

    pub(crate) fn not_the_api(&self, detail: String) -> ClientError {
        ClientError::NotTheApi {
            address: self.address.clone(),
            detail,
        }
    }
}

/// RFC 3986's unreserved characters stay as they are.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

fn escaped(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, RESERVED)
}

fn target(path: &[&str]) -> String {
    let segments = path.iter().map(|segment| format!("/{}", escaped(segment)));
    segments.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts_with_ports() {
        for good in [
            "127.0.0.1:1",
            "[::1]:9900",
            "localhost:9900",
            "http://lb-1.example:80/",
        ] {
            assert!(Client::new(good, None).is_ok(), "{good}");
        }
        for bad in [
            "",
            "localhost",
            ":1",
            "::1:99999",
            "a b:1",
            "h:1/x",
            "u@h:1",
            "https://h:1",
        ] {
            assert!(Client::new(bad, None).is_err(), "{bad}");
        }
        assert!(Client::new("h:1", Some("a\r\nb: c")).is_err());
    }

    #[test]
    fn segments_of_a_path_are_escaped() {
        let target = target(&["v1", "groups", "a/b ?é", "members", "10.0.0.1:80"]);
        assert_eq!(target, "/v1/groups/a%2Fb%20%3F%C3%A9/members/10.0.0.1%3A80");
    }
}
