//! A request to a member that speaks HTTP/2: in a connection that is there, or a new one.

use std::rc::Rc;

use evenkeel_manager::snapshot::RuleSnapshot;

use super::failure::Failure;
use super::response::Head;
use super::{Client, Request};
use crate::http2::Call;
use crate::http2::links::{Link, Links, Way};
use crate::io::Io;
use crate::pool::Upstream;
use crate::service::Bound;
use crate::tcp::{ConnectFailure, connect};
use crate::watch::Stop;

/// What a member has chosen.
pub(super) enum Chosen {
    /// HTTP/1.1, over a connection of its own.
    Http1(Upstream),
    /// HTTP/2.
    Http2(Rc<Link>),
}

impl Client {
    /// Sends the request to a member, and reads the head of its response.
    pub(super) async fn call(
        &mut self,
        request: &mut Request,
        rule: &RuleSnapshot,
        bound: &mut Bound,
    ) -> Result<(Head, Upstream), Failure> {
        let link = self.link(rule, bound).await.map_err(Failure::Connect)?;
        self.call_over(link, request, rule, bound).await
    }

    /// The same in a connection that has room for it.
    pub(super) async fn call_over(
        &mut self,
        link: Rc<Link>,
        request: &mut Request,
        rule: &RuleSnapshot,
        bound: &mut Bound,
    ) -> Result<(Head, Upstream), Failure> {
        let call = Call::new(link, Rc::clone(&self.session.worker));
        let mut upstream = Upstream::of_call(call);
        match self
            .response_head(request, rule, bound, &mut upstream)
            .await
        {
            Ok(head) => Ok((head, upstream)),
            Err(failure) => {
                upstream.reset();
                let refused = matches!(&*upstream, Io::Call(call) if call.is_refused());
                Err(match failure {
                    Failure::Silent | Failure::Garbage if refused => Failure::Refused,
                    failure => failure,
                })
            }
        }
    }

    /// A connection of HTTP/2 with room for another request.
    async fn link(&self, rule: &RuleSnapshot, bound: &Bound) -> Result<Rc<Link>, ConnectFailure> {
        match self.reach(rule, bound, &["h2"]).await? {
            Chosen::Http2(link) => Ok(link),
            Chosen::Http1(_) => Err(ConnectFailure::Refused),
        }
    }

    /// A connection of the protocol that the member chooses.
    pub(super) async fn choose(
        &self,
        rule: &RuleSnapshot,
        bound: &Bound,
    ) -> Result<Chosen, ConnectFailure> {
        self.reach(rule, bound, &["h2", "http/1.1"]).await
    }

    /// A connection with room for another request. Who comes while one is opened waits for it.
    async fn reach(
        &self,
        rule: &RuleSnapshot,
        bound: &Bound,
        protocols: &[&str],
    ) -> Result<Chosen, ConnectFailure> {
        let (session, worker) = (&self.session, &self.session.worker);
        loop {
            if protocols.len() > 1 && worker.links.has_declined(bound.member) {
                // Each request needs a connection of its own.
                return self.open(rule, bound, protocols).await;
            }
            match Links::way(worker, bound.member, rule.tls_id()) {
                Way::Here(link) => {
                    session.service.metrics.member_connections_reused.add(1);
                    return Ok(Chosen::Http2(link));
                }
                Way::Wait(opened) => {
                    session.watch.arm(rule.rule.timeouts.connect);
                    let notified = opened.notified();
                    tokio::pin!(notified);
                    // Nothing else runs between the two.
                    notified.as_mut().enable();
                    let waited = session.watch.until(|cx| notified.as_mut().poll(cx)).await;
                    session.watch.disarm();
                    match waited {
                        Ok(()) => {}
                        Err(Stop::Expired) => return Err(ConnectFailure::TimedOut),
                        Err(Stop::Cut) => return Err(ConnectFailure::Cut),
                    }
                }
                Way::Open(opening) => {
                    let opened = self.open(rule, bound, protocols).await;
                    drop(opening);
                    return opened;
                }
            }
        }
    }

    async fn open(
        &self,
        rule: &RuleSnapshot,
        bound: &Bound,
        protocols: &[&str],
    ) -> Result<Chosen, ConnectFailure> {
        let worker = &self.session.worker;
        let (upstream, agreed) = connect(&self.session, rule, bound, protocols).await?;
        if protocols.len() > 1 {
            worker.links.note(bound.member, !agreed);
            if !agreed {
                return Ok(Chosen::Http1(upstream));
            }
        }
        let idle = rule.rule.http.pool_idle_timeout;
        let link = Links::begin(worker, bound.member, upstream, idle).await;
        link.map(Chosen::Http2).ok_or(ConnectFailure::Refused)
    }
}
