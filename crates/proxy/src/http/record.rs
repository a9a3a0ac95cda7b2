//! Record of a request for the access log and traces.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use super::client::Client;
use super::request::Request;
use super::summary::Summary;
use crate::access::Record;
use crate::http1::Version;
use crate::io::Io;

impl Client {
    /// Counts how a request ended, and logs it. `None` stands for one that was not
    /// understood, which is counted where that is found.
    pub(super) fn conclude_request(&self, mut request: Option<&mut Request>, summary: Summary) {
        if let Some(request) = &request {
            self.session.count_end(summary.end);
            if let Io::Stream(stream) = &self.stream
                && let Some(status) = stream.call_status()
            {
                self.session.service.metrics.calls.count(status);
            }
            // An answer of the proxy's own has been sent just now.
            if summary.status.is_some() {
                let answered = summary
                    .answered
                    .unwrap_or_else(|| self.session.worker.now());
                let waits = &self.session.service.metrics.waits;
                waits.add_wait(answered.since(request.at));
            }
        }
        let line = request.as_ref().and_then(|request| request.line.as_ref());
        let details = line.and_then(|line| line.details.as_ref());
        let traced = details.is_some_and(|details| details.trace.is_some());
        if !self.session.wants_record(traced) {
            return;
        }
        let line = request.as_mut().and_then(|request| request.line.take());
        let request = request.as_deref();
        let routed = request.map(|request| &request.routed);
        let group = routed.map(|routed| routed.target().group.current.load());
        let (route, group) = match (routed, &group) {
            (Some(routed), Some(group)) => routed.log_names(group),
            _ => (None, None),
        };
        let over = routed.zip(request.and_then(|request| request.over));
        let over = over.and_then(|(routed, over)| {
            routed
                .client_quotas()?
                .limit_label(routed.route_index(), over)
        });
        let login = request.and_then(|request| request.login.as_ref());
        let user = login.and_then(|login| login.passed_user());
        let version = request.map(|request| request.version);
        let (protocol, head_bytes_sent) = match (&self.stream, version) {
            (Io::Stream(stream), _) => (Some("HTTP/2.0"), stream.head_bytes()),
            (_, version) => {
                let protocol = version.map(|version| match version {
                    Version::Http10 => "HTTP/1.0",
                    Version::Http11 => "HTTP/1.1",
                    Version::Http2 => "HTTP/2.0",
                });
                let tries = summary.tries.as_ref();
                (protocol, tries.map_or(0, |tries| tries.head_bytes))
            }
        };
        let grpc_status = match &self.stream {
            Io::Stream(stream) => stream.call_status().flatten(),
            _ => None,
        };
        let (at, asked, details) = match line.map(|line| *line) {
            Some(line) => {
                let target = Cow::Owned(line.target.into());
                (line.at, Some((line.method, target)), line.details)
            }
            None => (SystemTime::now(), None, None),
        };
        let now = self.session.worker.now();
        let record = Record {
            at,
            client: self.session.peer,
            rule: Cow::Borrowed(&self.session.service.name),
            user: user.map(|user| Cow::Borrowed(&**user)),
            route: route.map(Cow::Borrowed),
            group: group.map(Cow::Borrowed),
            attempts: summary.tries,
            tls: self.stream.agreed_parameters().cloned(),
            server_name: None,
            request: asked,
            protocol,
            details,
            status: summary.status,
            grpc_status,
            bytes_received: summary.received,
            bytes_sent: summary.sent,
            head_bytes_sent,
            response_time: summary.response_time,
            total_time: request.map_or(Duration::ZERO, |request| now.since(request.at)),
            cost: request.map(|request| request.cost).unwrap_or_default(),
            retries: summary.retries,
            end: summary.end,
            limit: summary.limit,
            request_limit: over.map(|label| Cow::Borrowed(&**label)),
            hedged: summary.hedged,
        };
        self.session.log_record(traced, record);
    }
}
