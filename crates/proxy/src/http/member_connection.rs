//! Connections to members for exchanges: taken from those that are idle, or opened.

use std::sync::Arc;

use evenkeel_core::member::MemberId;
use evenkeel_manager::config::MemberProtocol;

use super::client::Client;
use super::request::Request;
use super::route::RequestRoute;
use crate::bound_request::BoundRequest;
use crate::tcp::connect::open_member_connection;
use crate::tcp::failure::ConnectFailure;
use crate::upstream::Upstream;

impl Client {
    /// The member at which the client has a connection of its own, if that is one of the request's group.
    pub(super) fn pinned_member(&self, routed: &RequestRoute) -> Option<MemberId> {
        let private = self.private.as_deref()?;
        let is_here = Arc::ptr_eq(&private.group, &routed.target().group);
        is_here.then_some(private.member)
    }

    /// Returns an idle connection to a member, if the member speaks HTTP/1.1 and there is one: the
    /// client's own connection, or one that all clients share.
    pub(super) fn take_idle(
        &mut self,
        routed: &RequestRoute,
        bound: &BoundRequest,
    ) -> Option<Upstream> {
        let speaks_http2 = routed.target().member_protocol == MemberProtocol::Http2;
        // A connection that a member takes for a client's is that client's.
        if speaks_http2 || !routed.target().shares_connections() {
            return None;
        }
        if self.pinned_member(routed) == Some(bound.member)
            && let Some(mut private) = self.private.take()
            && private.upstream.tls_id() == routed.target().tls_id()
            && private.upstream.is_silent()
        {
            let metrics = &self.session.service.metrics;
            metrics.member_connections_reused.add(1);
            return Some(private.upstream);
        }
        let pool = &self.session.worker.upstreams;
        let connection = pool.take(bound.member, routed.target().tls_id())?;
        let metrics = &self.session.service.metrics;
        metrics.member_connections_reused.add(1);
        Some(connection.into())
    }

    /// A connection to a member for a request, in what it speaks.
    pub(super) async fn open_to(
        &self,
        request: &Request,
        routed: &RequestRoute,
        bound: &mut BoundRequest,
    ) -> Result<Upstream, ConnectFailure> {
        let protocol = routed.target().member_protocol;
        // What is to become another protocol needs a connection of its own.
        let may_choose = protocol == MemberProtocol::Auto
            && !request.asked.upgrade
            && !request.authenticates_connection;
        if protocol == MemberProtocol::Http2 {
            self.open_upstream(routed, bound, &["h2"]).await
        } else if may_choose && routed.target().tls.is_some() {
            self.open_upstream(routed, bound, &["h2", "http/1.1"]).await
        } else {
            let (target, timeouts) = (routed.target(), &routed.route().timeouts);
            let protocols = &["http/1.1"];
            let connected =
                open_member_connection(&self.session, target, timeouts, bound, protocols).await;
            connected.map(|(connection, _)| connection.into())
        }
    }
}
