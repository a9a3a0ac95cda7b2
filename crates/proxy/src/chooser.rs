//! Requests about which a chooser outside of the balancer decides: what the chooser is told of
//! them, and how a worker asks.

use std::cell::RefCell;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use evenkeel_core::binding::find_pinned;
use evenkeel_core::group::{Advice, Request};
use evenkeel_core::key::Key;
use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;
use evenkeel_manager::chooser::{About, Asker, Chooser, Failure};
use evenkeel_manager::snapshot::GroupHandle;
use evenkeel_net::http::IdleConnections;

use crate::access::{MAX_METHOD_BYTES, MAX_TARGET_BYTES, cut_text, kept_value};
use crate::bindings::Bindings;
use crate::bound_request::Refusal;
use crate::files::ConnectionFile;
use crate::io::Io;
use crate::message;
use crate::session::Session;
use crate::watch::Stop;
use crate::worker::Worker;

/// Time after the time limit of a chooser at which the request goes on in any case.
const LATER: Duration = Duration::from_secs(1);

/// Parts of an HTTP request that choosers are told, each bounded.
#[derive(Debug)]
pub(crate) struct HttpFacts {
    method: Box<str>,
    host: Option<Box<str>>,
    path: Box<str>,
    key: Option<Box<str>>,
}

impl HttpFacts {
    /// Collects them from `request`, of a group with this `hash_key`.
    pub(crate) fn of_request(request: &message::Request<'_>, key: &Key) -> Self {
        let path = match request.path_and_query {
            "" => "/",
            path => path,
        };
        HttpFacts {
            method: cut_text(request.method, MAX_METHOD_BYTES).into(),
            host: request.authority.map(|host| kept_value(host.as_bytes())),
            path: cut_text(path, MAX_TARGET_BYTES).into(),
            key: request.find_part(key).map(kept_value),
        }
    }
}

/// A chooser that was asked, with its answer.
pub(crate) type Advised<'a> = (&'a Chooser, Advice);

impl Asker for Worker {
    type Permit = ConnectionFile;

    fn idle(&self) -> &IdleConnections<ConnectionFile> {
        &self.choosers
    }

    fn permit(&self) -> Option<ConnectionFile> {
        self.files.take_connection()
    }

    fn now(&self) -> Instant {
        Worker::now(self)
    }

    fn wait_until(&self, at: Instant) -> impl Future<Output = ()> {
        self.timers.nap_until(at)
    }
}

impl Session {
    /// Asks `chooser` about a request, unless the client has a member in `group` already, or there is nothing to
    /// choose.
    pub(crate) async fn ask_chooser(
        &self,
        chooser: &Chooser,
        group: &Arc<GroupHandle>,
        bindings: &RefCell<Bindings>,
        (request, facts): (&Request<'_>, Option<&HttpFacts>),
        client: &mut Io,
    ) -> Result<Option<Advice>, Refusal> {
        if self.has_member(group, bindings, request) {
            return Ok(None);
        }
        let about = About {
            rule: Some(&self.service.name),
            method: facts.map(|facts| &*facts.method),
            host: facts.and_then(|facts| facts.host.as_deref()),
            path: facts.map(|facts| &*facts.path),
            key: facts.and_then(|facts| facts.key.as_deref()),
            ..About::default()
        };
        let asking = chooser.ask_advice(&group.current, request, &about, &*self.worker);
        tokio::pin!(asking);
        let limit = chooser.timeout().saturating_add(LATER);
        self.watch.arm_and_look(limit);
        let asked = self.watch.poll_until_stop(|cx| {
            if self.is_gone(cx, client, false) {
                return Poll::Ready(Err(Refusal::ClientGone));
            }
            asking.as_mut().poll(cx).map(Ok)
        });
        let asked = asked.await;
        self.watch.disarm_deadline();
        match asked {
            Ok(asked) => asked,
            Err(Stop::Expired) => Ok(Some(Advice::Nobody(Failure::Timeout.explain()))),
            Err(Stop::Cut) => Err(Refusal::Cut),
        }
    }

    /// True if the client has a member that this request goes to, whatever anybody chooses.
    fn has_member(
        &self,
        handle: &Arc<GroupHandle>,
        bindings: &RefCell<Bindings>,
        request: &Request<'_>,
    ) -> bool {
        let group = handle.current.load();
        let is_new = |member: &MemberId| !request.excluded_members.contains(member);
        let pinned = request.pinned.filter(is_new);
        let is_pinned = pinned.is_some_and(|member| find_pinned(&group, member).is_some());
        let mut bindings = bindings.borrow_mut();
        let goes_on = bindings.find_binding(handle).is_some_and(|binding| {
            is_new(&binding.member()) && binding.goes_on(&group, request.now)
        });
        is_pinned || goes_on
    }
}
