//! A request to a member that speaks HTTP/2: in a connection that is there, or a new one.

use std::rc::Rc;
use std::sync::Arc;

use super::client::Client;
use super::failure::Failure;
use super::route::RequestRoute;
use crate::bound_request::BoundRequest;
use crate::http2::call::Call;
use crate::http2::links::{Link, Links};
use crate::http2::opening::{Limits, Way};
use crate::io::Io;
use crate::pool::MemberConnection;
use crate::tcp::connect::open_member_connection;
use crate::tcp::failure::ConnectFailure;
use crate::upstream::Upstream;
use crate::watch::Stop;

/// Protocol that a member has chosen, with its connection.
enum Chosen {
    /// HTTP/1.1, over a connection of its own.
    Http1(MemberConnection),
    /// HTTP/2, over a connection that requests share.
    Http2(Rc<Link>),
}

impl Client {
    /// A connection to a member for one request: a stream of HTTP/2 if the member speaks one of
    /// `protocols` that is HTTP/2.
    pub(super) async fn open_upstream(
        &self,
        routed: &RequestRoute,
        bound: &mut BoundRequest,
        protocols: &[&str],
    ) -> Result<Upstream, ConnectFailure> {
        let worker = &self.session.worker;
        let chosen = match worker
            .links
            .find_link(bound.member, routed.target().tls_id())
        {
            Some(link) => {
                let metrics = &self.session.service.metrics;
                metrics.member_connections_reused.add(1);
                Chosen::Http2(link)
            }
            // In a box: a connection of HTTP/1.1 is to stay small.
            None => Box::pin(self.reach_member(routed, bound, protocols)).await?,
        };
        Ok(match chosen {
            Chosen::Http1(connection) => connection.into(),
            Chosen::Http2(link) => Upstream::of_call(Call::new(link, Rc::clone(worker))),
        })
    }

    /// Returns a connection with room for another request. A caller that comes while a connection
    /// is opened waits for that one.
    async fn reach_member(
        &self,
        routed: &RequestRoute,
        bound: &mut BoundRequest,
        protocols: &[&str],
    ) -> Result<Chosen, ConnectFailure> {
        let (session, worker) = (&self.session, &self.session.worker);
        loop {
            if protocols.len() > 1 && worker.links.has_declined(bound.member) {
                // Each request needs a connection of its own.
                return self.open_connection(routed, bound, protocols).await;
            }
            match Links::find_way(worker, bound.member, routed.target().tls_id()) {
                Way::Existing(link) => {
                    session.service.metrics.member_connections_reused.add(1);
                    return Ok(Chosen::Http2(link));
                }
                Way::Wait(opened) => {
                    session.watch.arm_deadline(routed.route().timeouts.connect);
                    let notified = opened.notified();
                    tokio::pin!(notified);
                    // Nothing else runs between the two.
                    notified.as_mut().enable();
                    let waited = session
                        .watch
                        .poll_until_stop(|cx| notified.as_mut().poll(cx))
                        .await;
                    session.watch.disarm_deadline();
                    match waited {
                        Ok(()) => {}
                        Err(Stop::Expired) => return Err(ConnectFailure::TimedOut),
                        Err(Stop::Cut) => return Err(ConnectFailure::Cut),
                    }
                }
                Way::Open(opening) => {
                    let opened = self.open_connection(routed, bound, protocols).await;
                    drop(opening);
                    return opened;
                }
            }
        }
    }

    async fn open_connection(
        &self,
        routed: &RequestRoute,
        bound: &mut BoundRequest,
        protocols: &[&str],
    ) -> Result<Chosen, ConnectFailure> {
        let worker = &self.session.worker;
        let timeouts = &routed.route().timeouts;
        let target = routed.target();
        let (connection, agreed) =
            open_member_connection(&self.session, target, timeouts, bound, protocols).await?;
        if protocols.len() > 1 {
            worker.links.note_declined(bound.member, !agreed);
            if !agreed {
                return Ok(Chosen::Http1(connection));
            }
        }
        let http = &routed.rule.http;
        let limits = Limits {
            idle: http.pool_idle_timeout,
            ping_after: http.ping_interval,
            pong_within: http.ping_timeout,
            metrics: Arc::clone(&self.session.service.metrics),
            address: bound.address.clone(),
        };
        let link = Links::open_link(worker, bound.member, connection, limits);
        Ok(Chosen::Http2(link))
    }
}

impl Failure {
    /// Returns the failure that `upstream` knows more exactly: that there is no connection after
    /// all, why there is no stream, or that the member has not processed the request.
    pub(super) fn of_call(self, upstream: &Upstream) -> Self {
        match (self, &**upstream) {
            (Failure::Silent | Failure::Garbage, io) if io.is_refused() => {
                Failure::Connect(ConnectFailure::NoTls)
            }
            (Failure::Silent | Failure::Garbage, Io::Call(call)) if call.is_refused() => {
                Failure::Refused
            }
            (Failure::Silent | Failure::Garbage, Io::Call(call)) if call.is_unfit() => {
                // It is none of the member's faults.
                let text = "The request's host or path cannot be sent over HTTP/2.";
                Failure::BadRequest(text.into())
            }
            (Failure::Silent, Io::Call(call)) if call.is_unable() => {
                Failure::Connect(ConnectFailure::NoWebSocket)
            }
            (failure, _) => failure,
        }
    }
}
