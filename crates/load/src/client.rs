//! A client: its connections, redirects that it follows, and the server that it was bound to.

use std::rc::Rc;
use std::time::Instant;

use crate::context::{Answer, Context, MOST_CONNECTIONS, Origin};
use crate::http1::{self, Http1};
use crate::pending_request::PendingRequest;
use crate::plan::Scheme;
use crate::response::is_redirect;
use crate::socket::Stream;
use crate::stats::{Kind, Times};
use crate::{ftp, http2, tcp};

/// A client.
pub(crate) struct Client {
    context: Rc<Context>,
    /// Number among the thread's clients.
    number: usize,
    /// Number among the clients of all threads.
    pub of_all: usize,
    connections: Vec<(Rc<Origin>, Http1)>,
    ftp: Option<ftp::Session>,
    tcp: Option<Stream>,
    /// The server that it was sent to, and until when it may use it.
    bound: Option<(Rc<Origin>, Instant)>,
}

impl Client {
    pub(crate) fn new(context: &Rc<Context>, number: usize, of_all: usize) -> Self {
        Client {
            context: Rc::clone(context),
            number,
            of_all,
            connections: Vec::new(),
            ftp: None,
            tcp: None,
            bound: None,
        }
    }

    /// Begins anew, as somebody else would.
    pub(crate) fn start_anew(&mut self) {
        self.connections.clear();
        self.ftp = None;
        self.tcp = None;
        self.bound = None;
    }

    /// Asks for something that was due; tells when the answer was whole.
    pub(crate) async fn send_due_request(
        &mut self,
        number: usize,
        due: Instant,
        free: Instant,
        begun: Instant,
    ) -> Instant {
        let context = Rc::clone(&self.context);
        context.recorder.borrow_mut().begin_request(due);
        let mut sent = begun;
        let limit = begun + context.plan.timeout;
        let outcome = context
            .runtime
            .limit_until(limit, self.exchange(number, begun, &mut sent))
            .await;
        let end = Instant::now();
        let outcome = outcome.unwrap_or(Err(Kind::Timeout));
        if outcome.is_err() {
            // Who knows what else would come on them.
            self.connections.clear();
            self.ftp = None;
            self.tcp = None;
        }
        let times = Times {
            due,
            free,
            begun_at: begun,
            sent,
            end,
        };
        context
            .recorder
            .borrow_mut()
            .finish_request(&times, outcome);
        end
    }

    async fn exchange(
        &mut self,
        number: usize,
        begun: Instant,
        sent: &mut Instant,
    ) -> Result<(u16, u64), Kind> {
        let context = Rc::clone(&self.context);
        match context.plan.url.scheme {
            Scheme::Tcp => tcp::exchange(&context, &mut self.tcp, self.of_all, sent).await,
            Scheme::Ftp => self.retrieve(number, sent).await,
            Scheme::Http | Scheme::Https => self.over_http(number, begun, sent).await,
        }
    }

    async fn retrieve(&mut self, number: usize, sent: &mut Instant) -> Result<(u16, u64), Kind> {
        let context = Rc::clone(&self.context);
        let session = match self.ftp.take() {
            Some(session) => session,
            None => ftp::Session::log_in(&context, self.of_all).await?,
        };
        let session = self.ftp.insert(session);
        *sent = Instant::now();
        let path = context.plan.asks.get(number).map(|ask| ask.path.as_str());
        session.retrieve(&context, path.unwrap_or("/")).await
    }

    /// Says goodbye where that is usual.
    pub(crate) async fn say_goodbye(&mut self) {
        if let Some(session) = self.ftp.take() {
            let limit = Instant::now() + self.context.plan.timeout;
            let context = Rc::clone(&self.context);
            context
                .runtime
                .limit_until(limit, session.quit(&context))
                .await;
        }
        self.start_anew();
    }

    async fn over_http(
        &mut self,
        number: usize,
        begun: Instant,
        sent: &mut Instant,
    ) -> Result<(u16, u64), Kind> {
        let context = Rc::clone(&self.context);
        let plan = &*context.plan;
        let ask = plan.asks.get(number).ok_or(Kind::Redirect)?;
        let mut pending = PendingRequest {
            ready: context.requests.get(number).map(Vec::as_slice),
            method: &ask.method,
            has_body: true,
            path: String::new(),
            elsewhere: false,
            sent: None,
        };
        let mut origin = Rc::clone(&context.first);
        if let Some((bound, until)) = &self.bound {
            if begun < *until {
                origin = Rc::clone(bound);
                pending.ready = None;
            } else {
                self.bound = None;
            }
        }
        if pending.ready.is_none() {
            pending.path.clone_from(&ask.path);
        }
        let mut redirects = 0;
        loop {
            let answer = match context.is_http2(&origin) {
                true => {
                    let client = (self.number, self.of_all);
                    http2::exchange(&context, client, &origin, &mut pending, begun).await?
                }
                false => {
                    self.over_http1(&context, &origin, &mut pending, begun)
                        .await?
                }
            };
            *sent = pending.sent.unwrap_or(begun);
            let location = answer.location.filter(|_| plan.max_redirects > 0);
            let Some(location) = location else {
                return Ok((answer.status, answer.bytes));
            };
            redirects += 1;
            if redirects > plan.max_redirects {
                return Err(Kind::Redirect);
            }
            let mut from = origin.url.clone();
            from.path.clone_from(match pending.ready {
                Some(_) => &ask.path,
                None => &pending.path,
            });
            let to = from.join_location(&location).map_err(|_| Kind::Redirect)?;
            let next = context.find_origin(&to)?;
            let is_binding = plan.negotiate && Rc::ptr_eq(&origin, &context.first);
            if is_binding {
                let until = answer.max_age.filter(|time| !time.is_zero());
                let until = until.map(|time| Instant::now() + time);
                self.bound = until.map(|until| (Rc::clone(&next), until));
            } else if plan.negotiate {
                // Sent away by its server.
                self.bound = None;
            }
            context.recorder.borrow_mut().count(|counted| {
                counted.redirects += u64::from(!is_binding);
                counted.negotiations += u64::from(is_binding);
            });
            (pending.method, pending.has_body) =
                after_redirect(answer.status, pending.method, pending.has_body);
            pending.elsewhere |= !Rc::ptr_eq(&origin, &next);
            pending.ready = None;
            pending.path = to.path;
            origin = next;
        }
    }

    /// Sends a request and takes its response; the request's connection is the last one after it.
    async fn over_http1(
        &mut self,
        context: &Context,
        origin: &Rc<Origin>,
        pending: &mut PendingRequest<'_>,
        begun: Instant,
    ) -> Result<Answer, Kind> {
        let known = self
            .connections
            .iter()
            .position(|(of, _)| Rc::ptr_eq(of, origin));
        let last = self.connections.len().saturating_sub(1);
        match known {
            Some(at) if !self.connections.get(at).is_some_and(|(_, c)| c.is_usable()) => {
                self.connections.remove(at);
                self.open(context, origin).await?;
            }
            Some(at) if at < last => {
                let found = self.connections.remove(at);
                self.connections.push(found);
            }
            Some(_) => {
                pending.sent.get_or_insert(begun);
            }
            None => self.open(context, origin).await?,
        }
        pending.sent.get_or_insert_with(Instant::now);
        let (_, connection) = self.connections.last_mut().ok_or(Kind::Connect)?;
        let is_head = pending.method == "HEAD";
        match pending.ready {
            Some(bytes) => {
                connection
                    .exchange(&context.runtime, bytes, is_head)
                    .await?
            }
            None => {
                let plan = &context.plan;
                let headers: Vec<_> = pending.allowed_headers(plan).cloned().collect();
                let body = if pending.has_body {
                    &plan.body[..]
                } else {
                    &[]
                };
                let host = origin.url.authority();
                let bytes =
                    http1::encode_request(pending.method, &pending.path, &host, &headers, body);
                connection
                    .exchange(&context.runtime, &bytes, is_head)
                    .await?;
            }
        }
        let response = &connection.response;
        let status = response.status().unwrap_or(0);
        let location = response.location().filter(|_| is_redirect(status));
        Ok(Answer {
            status,
            bytes: response.body(),
            location: location.map(str::to_owned),
            max_age: response.max_age(),
        })
    }

    async fn open(&mut self, context: &Context, origin: &Rc<Origin>) -> Result<(), Kind> {
        let stream = context.connect(origin, self.of_all).await?;
        if self.connections.len() >= MOST_CONNECTIONS {
            self.connections.remove(0);
        }
        self.connections
            .push((Rc::clone(origin), Http1::new(stream)));
        Ok(())
    }
}

/// Method after a redirect, and whether the body is sent again (RFC 9110, 15.4).
pub(crate) fn after_redirect(status: u16, method: &str, has_body: bool) -> (&str, bool) {
    match (status, method) {
        (307 | 308, _) => (method, has_body),
        (_, "HEAD") => ("HEAD", false),
        (303, _) | (_, "POST") => ("GET", false),
        _ => (method, has_body),
    }
}

#[cfg(test)]
mod tests {
    use super::after_redirect;

    #[test]
    fn methods_after_redirects_are_those_of_the_standard() {
        for (status, method, expected) in [
            (301, "GET", ("GET", true)),
            (302, "POST", ("GET", false)),
            (301, "PUT", ("PUT", true)),
            (303, "PUT", ("GET", false)),
            (303, "HEAD", ("HEAD", false)),
            (307, "POST", ("POST", true)),
            (308, "PUT", ("PUT", true)),
        ] {
            assert_eq!(after_redirect(status, method, true), expected, "{status}");
        }
    }
}
