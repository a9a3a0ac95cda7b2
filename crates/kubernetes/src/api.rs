//! Questions to the API server over HTTP.

use std::collections::BTreeSet;
#[cfg(test)]
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_net::http::client::{
    Answer, Limits, Question, ServerTarget, ask_server, follow_answer,
};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::timeout;

use crate::access::{Access, Credentials};
#[cfg(test)]
use crate::access::{Data, Server};
#[cfg(test)]
use crate::fake_server::FakeServer;
use crate::list::{Fault, Status};
use crate::slice;

/// Time for an answer that is no watch.
const ANSWER: Duration = Duration::from_secs(10);

/// Most bytes of an answer.
const LIMITS: Limits = Limits {
    head: 64 << 10,
    body: 16 << 20,
};

/// Bytes that are encoded in a selector with names of services: with fewer, many names make a shorter target.
const IN_SELECTOR: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.');

/// Number of the next API server.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// API server, with the credentials that were read last.
#[derive(Debug)]
pub(crate) struct Api {
    /// Number that no other API server has.
    pub(crate) id: u64,
    pub(crate) access: Access,
    credentials: Mutex<Option<Credentials>>,
    /// Server in memory that answers in place of the one at the address.
    #[cfg(test)]
    fake: Option<Arc<FakeServer>>,
}

impl Api {
    pub(crate) fn new(access: Access) -> Self {
        Api {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            access,
            credentials: Mutex::new(None),
            #[cfg(test)]
            fake: None,
        }
    }

    /// An API server in memory.
    #[cfg(test)]
    pub(crate) fn with_fake(fake: Arc<FakeServer>) -> Self {
        let access = Access {
            server: Server::from_url("http://127.0.0.1:1").unwrap(),
            authorities: Data::None,
            server_name: None,
            verify: true,
            certificate: None,
            token: Data::None,
        };
        Api {
            fake: Some(fake),
            ..Api::new(access)
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

    /// Asks for a page of the objects of `collection`, with at most `size` objects.
    pub(crate) async fn list(
        &self,
        collection: &Collection,
        size: usize,
        next: Option<&str>,
    ) -> Result<Answer, Fault> {
        let mut query = format!("limit={size}");
        if let Some(next) = next {
            query += &format!("&continue={}", utf8_percent_encode(next, NON_ALPHANUMERIC));
        }
        self.get(&collection.with_query(&query)).await
    }

    /// Asks for an object.
    pub(crate) async fn get(&self, target: &str) -> Result<Answer, Fault> {
        self.ask("GET", target, None).await
    }

    /// Creates an object in the collection at `target`.
    pub(crate) async fn create(&self, target: &str, object: &str) -> Result<Answer, Fault> {
        let body = ("application/json", object.as_bytes());
        self.ask("POST", target, Some(body)).await
    }

    /// Changes an object: `patch` is a JSON merge patch (RFC 7396).
    pub(crate) async fn patch(&self, target: &str, patch: &str) -> Result<Answer, Fault> {
        let body = ("application/merge-patch+json", patch.as_bytes());
        self.ask("PATCH", target, Some(body)).await
    }

    /// Asks a question. `body` has its media type in front.
    async fn ask(
        &self,
        method: &str,
        target: &str,
        body: Option<(&str, &[u8])>,
    ) -> Result<Answer, Fault> {
        #[cfg(test)]
        if let Some(fake) = &self.fake {
            let asked = fake.ask(method, target, body.map(|(_, bytes)| bytes));
            let late = |_| Err(Fault::new("no answer within 10 s"));
            return timeout(ANSWER, asked).await.unwrap_or_else(late);
        }
        let credentials = self.credentials()?;
        let (target, authority) = self.address(target);
        let mut fields = fields_of(&credentials);
        fields.extend(body.map(|(media_type, _)| ("Content-Type", media_type)));
        let question = Question {
            method,
            target: &target,
            authority: &authority,
            fields: &fields,
            body: body.map(|(_, bytes)| bytes),
        };
        let asked = ask_server(self.server(&credentials), question, LIMITS, |_| true);
        match timeout(ANSWER, asked).await {
            Ok(answer) => answer.map_err(|error| self.unreachable(&error.to_string())),
            Err(_) => Err(self.unreachable("no answer within 10 s")),
        }
    }

    /// Watches the objects of `collection` from `version` on, for at most `seconds`. Bytes go to `take`, for as long as
    /// it wants more. Returns an answer only if it is no success.
    pub(crate) async fn watch(
        &self,
        collection: &Collection,
        version: &str,
        (seconds, silence): (u64, Duration),
        take: impl FnMut(&[u8]) -> bool,
    ) -> Result<Option<Answer>, Fault> {
        let credentials = self.credentials()?;
        let version = utf8_percent_encode(version, NON_ALPHANUMERIC);
        let query = format!(
            "watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}"
        );
        #[cfg(test)]
        if let Some(fake) = &self.fake {
            let target = collection.with_query(&query);
            return fake.watch(&target, (seconds, silence), take).await;
        }
        let (target, authority) = self.address(&collection.with_query(&query));
        let question = Question {
            method: "GET",
            target: &target,
            authority: &authority,
            fields: &fields_of(&credentials),
            body: None,
        };
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

/// Objects of a kind at the API server: of all namespaces, of one, or those that a selector chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Collection {
    /// Path of the objects.
    path: String,
    /// Selector, as a part of a query.
    selector: Option<String>,
}

impl Collection {
    /// The objects at a path, of which `selector` chooses some.
    pub(crate) fn new(path: String, selector: Option<&str>) -> Self {
        Collection {
            path,
            selector: selector.map(str::to_owned),
        }
    }

    /// The slices of a namespace, or of all namespaces.
    pub(crate) fn of_slices(namespace: Option<&str>) -> Self {
        let within = namespace.map(|of| format!("/namespaces/{of}"));
        let within = within.unwrap_or_default();
        let path = format!("/apis/discovery.k8s.io/v1{within}/endpointslices");
        Collection::new(path, None)
    }

    /// The services of a namespace, or of all namespaces.
    pub(crate) fn of_services(namespace: Option<&str>) -> Self {
        let within = namespace.map(|of| format!("/namespaces/{of}"));
        let within = within.unwrap_or_default();
        Collection::new(format!("/api/v1{within}/services"), None)
    }

    /// The slices of services with these names, in whatever namespace.
    pub(crate) fn with_services<'a>(&self, names: impl Iterator<Item = &'a str>) -> Self {
        let names: BTreeSet<&str> = names.collect();
        let names = Vec::from_iter(names).join(",");
        let selector = format!("kubernetes.io/service-name in ({names})");
        let selector = utf8_percent_encode(&selector, IN_SELECTOR);
        let selector = format!("labelSelector={selector}");
        Collection::new(self.path.clone(), Some(&selector))
    }

    /// The pods of a namespace that have `labels`.
    pub(crate) fn of_pods(namespace: &str, labels: &str) -> Self {
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let labels = utf8_percent_encode(labels, NON_ALPHANUMERIC);
        Collection::new(path, Some(&format!("labelSelector={labels}")))
    }

    fn with_query(&self, query: &str) -> String {
        match &self.selector {
            Some(selector) => format!("{}?{selector}&{query}", self.path),
            None => format!("{}?{query}", self.path),
        }
    }
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

/// Returns the meaning of an answer that is no success.
pub(crate) fn status_of(answer: &Answer) -> Status {
    let told = slice::parse_status(&answer.body);
    Status {
        code: answer.code,
        retry_after: answer.retry_after.or(told.retry_after),
        ..told
    }
}
