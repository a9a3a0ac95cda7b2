//! Questions to the API server over HTTP.

use std::time::Duration;

use evenkeel_net::http::client::{
    Answer, Limits, Question, ServerTarget, ask_server, follow_answer,
};
use parking_lot::Mutex;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::timeout;

use crate::access::{Access, Credentials};
use crate::slice::{self, Status};
use crate::watcher::Fault;

/// Time for an answer that is no watch.
const ANSWER: Duration = Duration::from_secs(10);

/// Most bytes of an answer.
const LIMITS: Limits = Limits {
    head: 64 << 10,
    body: 16 << 20,
};

/// Slices in a page of a list.
const PAGE: usize = 100;

/// API server, with the credentials that were read last.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) access: Access,
    credentials: Mutex<Option<Credentials>>,
}

impl Api {
    pub(crate) fn new(access: Access) -> Self {
        Api {
            access,
            credentials: Mutex::new(None),
        }
    }

    /// Reads the credentials again: tokens and certificates rotate.
    fn credentials(&self) -> Result<Credentials, Fault> {
        let mut known = self.credentials.lock();
        let read = self.access.read_credentials(known.as_ref());
        let read = read.map_err(|error| Fault::new(format!("credentials: {error}")))?;
        *known = Some(read.clone());
        Ok(read)
    }

    /// Asks for a page of the slices of a service.
    pub(crate) async fn list_slices(
        &self,
        namespace: &str,
        service: &str,
        next: Option<&str>,
    ) -> Result<Answer, Fault> {
        let mut target = slices_of(namespace, service);
        target += &format!("&limit={PAGE}");
        if let Some(next) = next {
            target += &format!("&continue={}", utf8_percent_encode(next, NON_ALPHANUMERIC));
        }
        self.ask(&target).await
    }

    /// Asks for a service.
    pub(crate) async fn get_service(
        &self,
        namespace: &str,
        service: &str,
    ) -> Result<Answer, Fault> {
        let target = format!("/api/v1/namespaces/{namespace}/services/{service}");
        self.ask(&target).await
    }

    async fn ask(&self, target: &str) -> Result<Answer, Fault> {
        let credentials = self.credentials()?;
        let (target, authority) = self.address(target);
        let fields = fields_of(&credentials);
        let question = question(&target, &authority, &fields);
        let asked = ask_server(self.server(&credentials), question, LIMITS, |_| true);
        match timeout(ANSWER, asked).await {
            Ok(answer) => answer.map_err(|error| self.unreachable(&error.to_string())),
            Err(_) => Err(self.unreachable("no answer within 10 s")),
        }
    }

    /// Watches the slices of a service from `version` on, for at most `seconds`. Bytes go to `take`, for as long as it
    /// wants more. Returns an answer only if it is no success.
    pub(crate) async fn watch_slices(
        &self,
        (namespace, service): (&str, &str),
        version: &str,
        seconds: u64,
        silence: Duration,
        take: impl FnMut(&[u8]) -> bool,
    ) -> Result<Option<Answer>, Fault> {
        let credentials = self.credentials()?;
        let version = utf8_percent_encode(version, NON_ALPHANUMERIC);
        let target = format!(
            "{}&watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}",
            slices_of(namespace, service)
        );
        let (target, authority) = self.address(&target);
        let fields = fields_of(&credentials);
        let question = question(&target, &authority, &fields);
        let server = self.server(&credentials);
        let followed = follow_answer(server, question, LIMITS, silence, take).await;
        followed.map_err(|error| self.unreachable(&error.to_string()))
    }

    fn server<'a>(&'a self, credentials: &'a Credentials) -> ServerTarget<'a> {
        ServerTarget {
            host: &self.access.server.host,
            port: self.access.server.port,
            tls: credentials.tls.as_ref(),
        }
    }

    fn address(&self, target: &str) -> (String, String) {
        let server = &self.access.server;
        (format!("{}{target}", server.prefix), server.authority())
    }

    fn unreachable(&self, error: &str) -> Fault {
        let server = self.access.server.authority();
        Fault::new(format!("the API server at {server}: {error}"))
    }
}

/// Path and query of the slices of a service.
fn slices_of(namespace: &str, service: &str) -> String {
    format!(
        "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{service}"
    )
}

fn fields_of(credentials: &Credentials) -> Vec<(&str, &str)> {
    let mut fields = vec![
        ("Accept", "application/json"),
        (
            "User-Agent",
            concat!("evenkeel/", env!("CARGO_PKG_VERSION")),
        ),
    ];
    let authorization = credentials.authorization.as_deref();
    fields.extend(authorization.map(|value| ("Authorization", value)));
    fields
}

fn question<'a>(
    target: &'a str,
    authority: &'a str,
    fields: &'a [(&'a str, &'a str)],
) -> Question<'a> {
    Question {
        method: "GET",
        target,
        authority,
        fields,
        body: None,
    }
}

/// Returns the meaning of an answer that is no success.
pub(crate) fn status_of(answer: &Answer) -> Status {
    let told = slice::parse_status(&answer.body);
    Status {
        code: answer.code,
        retry_after: answer.retry_after.or(told.retry_after),
        ..told
    }
}
