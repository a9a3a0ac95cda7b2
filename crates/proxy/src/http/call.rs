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

impl Client {
    /// Sends the request to a member, and reads the head of its response.
    pub(super) async fn call(
        &mut self,
        request: &mut Request,
        rule: &RuleSnapshot,
        bound: &mut Bound,
    ) -> Result<(Head, Upstream), Failure> {
        let link = self.link(rule, bound).await.map_err(Failure::Connect)?;
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

    /// A connection with room for another request. Who comes while one is opened waits for it.
    async fn link(&self, rule: &RuleSnapshot, bound: &Bound) -> Result<Rc<Link>, ConnectFailure> {
        let (session, worker) = (&self.session, &self.session.worker);
        let limit = rule.rule.timeouts.connect;
        let metrics = &session.service.metrics;
        loop {
            match Links::way(worker, bound.member) {
                Way::Here(link) => {
                    metrics.member_connections_reused.add(1);
                    return Ok(link);
                }
                Way::Wait(opened) => {
                    session.watch.arm(limit);
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
                    let upstream = connect(session, bound.address, limit).await?;
                    let idle = rule.rule.http.pool_idle_timeout;
                    let link = Links::begin(worker, bound.member, upstream, idle).await;
                    drop(opening);
                    return link.ok_or(ConnectFailure::Refused);
                }
            }
        }
    }
}
