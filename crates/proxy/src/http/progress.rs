//! How far an exchange is, and whose turn it is: what its deadline depends on.

use std::task::{Context, Poll};

use evenkeel_manager::config::Timeouts;

use super::Request;
use super::flow::{Flow, Waits};
use crate::io::{Broken, Io};
use crate::watch::Watch;
use crate::worker::Worker;

/// Whom a time limit concerns, or who broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Member,
}

/// How far an exchange is: what its deadline depends on.
pub(super) struct Progress {
    /// The member takes no more of the request. It may still answer.
    deaf: bool,
    /// The client sends no body before the member has sent a 100 (Continue).
    pub(super) awaits_continue: bool,
    /// A call of gRPC: its streams may be silent for long.
    grpc: bool,
    /// What was sent, and whose turn it was, when something was last waited for.
    waited: Option<(u64, u64, Side)>,
}

impl Progress {
    pub(super) fn new(request: &Request) -> Self {
        Progress {
            deaf: false,
            awaits_continue: request.awaits_continue,
            grpc: request.grpc,
            waited: None,
        }
    }

    /// Sends more of the request. An error is the client's.
    pub(super) fn poll_up(
        &mut self,
        cx: &mut Context<'_>,
        up: &mut Flow,
        client: &mut Io,
        upstream: &mut Io,
        worker: &Worker,
    ) -> Result<(), Broken> {
        if self.deaf || up.is_done() {
            return Ok(());
        }
        match up.poll(cx, client, upstream, worker) {
            Poll::Ready(Err(Broken::To)) => {
                self.deaf = true;
                Ok(())
            }
            Poll::Ready(Err(broken)) => Err(broken),
            _ => Ok(()),
        }
    }

    /// Whether anything was ever waited for.
    pub(super) fn has_waited(&self) -> bool {
        self.waited.is_some()
    }

    /// Who has to do something next.
    pub(super) fn whose_turn(&self, up: &Flow, down: Option<&Flow>) -> Side {
        if down.is_some_and(|down| down.waits() == Waits::ForReceiver) {
            return Side::Client;
        }
        if !self.deaf && !up.is_done() && up.waits() == Waits::ForSender {
            // RFC 9110, section 10.1.1: a server answers an expectation at once.
            let member_first = self.awaits_continue && up.body_sent() == 0;
            return if member_first {
                Side::Member
            } else {
                Side::Client
            };
        }
        Side::Member
    }

    /// Sets the deadline anew if anything has moved, or it is somebody else's turn.
    pub(super) fn arm(
        &mut self,
        watch: &Watch,
        up: &Flow,
        down: Option<&Flow>,
        timeouts: &Timeouts,
    ) {
        let turn = self.whose_turn(up, down);
        let now = Some((up.sent(), down.map_or(0, Flow::sent), turn));
        if self.waited != now {
            self.waited = now;
            match turn {
                _ if self.grpc => watch.arm(timeouts.idle),
                Side::Client => watch.arm(timeouts.body),
                Side::Member => watch.arm_and_look(timeouts.response),
            }
        }
    }
}
