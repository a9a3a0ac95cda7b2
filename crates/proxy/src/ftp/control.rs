//! The control connection.

mod data_connections;
mod farewell;

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use evenkeel_core::group::Outcome;
use evenkeel_core::member::MemberId;
use evenkeel_limits::Shortage;
use evenkeel_manager::config::FtpTls;
use evenkeel_tls::server::Server;
use evenkeel_wire::ftp::{Auth, Conversation, Lines, Output, Refusal, Settings, Step, Transfer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::data::{Data, MemberNames, Stage};
use super::send::poll_send;
use crate::access::End;
use crate::bound_request::BoundRequest;
use crate::io::Io;
use crate::memory::{Charge, Memory, OutOfMemory, SMALL_BYTES};
use crate::service::LocalRule;
use crate::session::Session;
use crate::tcp::tunnel::{Traffic, Tunnel};
use crate::tls::handshake;
use crate::watch::Stop;

/// Bytes that are read at once. Between them none are held.
const READ_BYTES: usize = 1024;

/// Bytes that may wait for one side before nothing more is read from the other.
const MAX_WAITING: usize = 4096;

/// Reason why the loop of a session stops.
enum LoopExit {
    End(End),
    /// TLS begins with the client.
    Secure,
    /// Bytes are carried from now on.
    Tunnel,
    /// The client or the server has broken the protocol, or there is no data connection.
    Refuse(Problem),
}

/// Stage at which [`Control::run`] ended.
pub(super) enum ControlEnd {
    /// The session is over.
    Session(End),
    /// TLS begins with the client.
    Clear,
}

/// Reason to end a session with which both sides could go on.
enum Problem {
    /// Message of the client or the server that breaks the protocol.
    Protocol(Refusal),
    /// A line of the server's is too long.
    ServerLine,
    /// All ports of the range are taken.
    NoPort,
    /// The process, or the machine, has run out of something.
    Exhausted(Shortage),
}

/// A session of FTP.
pub(super) struct Control<'a> {
    session: &'a Session,
    rule: &'a Rc<LocalRule>,
    member: MemberId,
    server: SocketAddr,
    /// Our addresses: to the client, and to the server.
    to_client: IpAddr,
    to_server: Option<IpAddr>,
    tls: Option<Arc<Server>>,
    conversation: Conversation,
    out: Output,
    commands: Lines,
    replies: Lines,
    /// Bytes that the client has sent beyond the line that waits.
    unread: Vec<u8>,
    /// The right to the memory of lines and of what waits, where that is more than each client may have.
    charge: Option<Charge>,
    /// A line is whole that has to wait for replies.
    line_waits: bool,
    client_ended: bool,
    server_ended: bool,
    /// The client's end was passed on.
    finished: bool,
    /// Action that follows when everything is sent.
    next: Option<LoopExit>,
    /// Data connections: the last one, and earlier ones that are not over.
    data: Vec<Rc<Data>>,
    /// The data connection of the transfer that goes on.
    transfer: Option<Rc<Data>>,
    /// Waker of the session, which data connections wake.
    waker: Rc<RefCell<Option<Waker>>>,
    /// Number of open data connections at the last look.
    open: usize,
    greeting: Option<Outcome>,
    /// A look is to be taken whether a reply has [ended](Conversation::has_loose_end).
    looks: bool,
    names: Option<MemberNames>,
    moved: [u64; 2],
}

impl<'a> Control<'a> {
    pub(super) fn new(
        session: &'a Session,
        rule: &'a Rc<LocalRule>,
        bound: &BoundRequest,
        client: &Io,
        server: &Io,
        names: Option<MemberNames>,
    ) -> Self {
        let tls = session.service.tls_server();
        let auth = match rule.rule.ftp.auth_tls {
            Some(FtpTls::Refuse) => Auth::Refuse,
            Some(FtpTls::Pass) => Auth::Pass,
            Some(FtpTls::End) | None if tls.is_some() => Auth::End,
            Some(FtpTls::End) | None => Auth::Refuse,
        };
        // A configuration with an FTP rule of Unix sockets is refused.
        let nobody = IpAddr::from(Ipv4Addr::UNSPECIFIED);
        let peer = session.peer.ip().unwrap_or(nobody).to_canonical();
        // Behind another proxy data comes from the client itself, and so to another address perhaps.
        let any: IpAddr = match peer {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let server_at = bound.address.socket().unwrap_or((nobody, 0).into());
        let to_client = client
            .local_addr()
            .filter(|_| rule.rule.accept_proxy.is_none());
        Control {
            session,
            rule,
            member: bound.member,
            server: server_at,
            to_client: to_client.map_or(any, |address| address.ip()),
            to_server: server.local_addr().map(|address| address.ip()),
            tls,
            conversation: Conversation::new(Settings {
                client: peer,
                server_is_v6: server_at.is_ipv6(),
                auth,
                require_tls: rule.rule.ftp.require_tls,
            }),
            out: Output::default(),
            commands: Lines::of_client(),
            replies: Lines::of_server(),
            unread: Vec::new(),
            charge: None,
            line_waits: false,
            client_ended: false,
            server_ended: false,
            finished: false,
            next: None,
            data: Vec::new(),
            transfer: None,
            waker: Rc::default(),
            open: 0,
            greeting: None,
            looks: false,
            names,
            moved: [0; 2],
        }
    }

    /// Returns the outcome of the server's greeting, if it came.
    pub(super) fn greeting_outcome(&self) -> Option<Outcome> {
        self.greeting
    }

    /// Bytes from the client, and to it.
    pub(super) fn moved_bytes(&self) -> [u64; 2] {
        self.moved
    }

    /// Serves the session to its end, or to the end of what is in the clear. `greeted` is called
    /// when the server has greeted, with whether it wants clients.
    pub(super) async fn run(
        &mut self,
        client: &mut Io,
        server: &mut Io,
        greeted: &mut impl FnMut(bool) -> Outcome,
    ) -> ControlEnd {
        let jitter = self.session.worker.rng.borrow_mut().f32();
        self.session.watch.tie_to_member(self.member, jitter);
        self.session
            .watch
            .arm_deadline(self.rule.rule.timeouts.idle);
        let turn = std::future::poll_fn(|cx| self.poll(cx, client, server, greeted)).await;
        ControlEnd::Session(match turn {
            LoopExit::End(end) => self.send_last_words(client, end).await,
            LoopExit::Secure => return ControlEnd::Clear,
            LoopExit::Tunnel => self.run_tunnel(client, server).await,
            LoopExit::Refuse(problem) => self.refuse_session(client, problem).await,
        })
    }

    /// Does all that can be done.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Io,
        server: &mut Io,
        greeted: &mut impl FnMut(bool) -> Outcome,
    ) -> Poll<LoopExit> {
        let before = self.moved;
        let mut server_said = false;
        loop {
            match self.poll_once(cx, client, server, &mut server_said) {
                Ok(true) => {}
                Ok(false) => break,
                Err(turn) => return Poll::Ready(turn),
            }
            if self.greeting.is_none()
                && let Some(code) = self.conversation.greeting_code()
            {
                self.greeting = Some(greeted((200..300).contains(&code)));
            }
        }
        if let Err(OutOfMemory) = self.charge_held() {
            return Poll::Ready(LoopExit::Refuse(Problem::Exhausted(Shortage::Memory)));
        }
        self.check_limits(cx, before != self.moved || server_said)
    }

    /// Counts the memory that is held while the session waits.
    fn charge_held(&mut self) -> Result<(), OutOfMemory> {
        let lines = self.commands.capacity() + self.replies.capacity();
        let waiting = self.out.client.capacity() + self.out.server.capacity();
        let held = lines + waiting + self.unread.capacity();
        charge_excess(&self.session.worker.memory, &mut self.charge, held)
    }

    /// Sends, understands, reads; answers whether anything was done.
    fn poll_once(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Io,
        server: &mut Io,
        server_said: &mut bool,
    ) -> Result<bool, LoopExit> {
        let mut done = self.send_pending(cx, client, server)?;
        if self.next.is_some() {
            let all_sent = self.out.client.is_empty() && self.out.server.is_empty();
            return match all_sent {
                true => Err(self.next.take().unwrap_or(LoopExit::End(End::Complete))),
                false => Ok(false),
            };
        }
        if self.server_ended {
            if !self.out.client.is_empty() {
                return Ok(done);
            }
            // The last code says that the server ends the session.
            let is_closing = matches!(self.conversation.last_code(), Some(221 | 421));
            let is_orderly = self.conversation.has_quit()
                || is_closing
                || self.conversation.is_at_rest() && !self.line_waits;
            return Err(LoopExit::End(match is_orderly {
                true => End::Complete,
                false => End::Member,
            }));
        }
        done |= self.take_commands()?;
        if self.next.is_some() {
            return Ok(true);
        }
        let mut bytes = [0; READ_BYTES];
        if self.wants_commands() {
            let mut bytes = ReadBuf::new(&mut bytes);
            match Pin::new(&mut *client).poll_read(cx, &mut bytes) {
                Poll::Ready(Ok(())) => {
                    done = true;
                    self.client_ended = bytes.filled().is_empty();
                    self.unread.extend_from_slice(bytes.filled());
                    let n = bytes.filled().len() as u64;
                    self.moved[0] += n;
                    self.session.service.metrics.bytes_from_clients.add(n);
                    self.session.service.metrics.ftp_control_bytes_in.add(n);
                }
                Poll::Ready(Err(_)) => return Err(LoopExit::End(End::Client)),
                Poll::Pending => {}
            }
        }
        if self.out.client.len() < MAX_WAITING {
            let mut bytes = ReadBuf::new(&mut bytes);
            match Pin::new(&mut *server).poll_read(cx, &mut bytes) {
                Poll::Ready(Ok(())) => {
                    done = true;
                    *server_said = true;
                    self.server_ended = bytes.filled().is_empty();
                    self.take_replies(bytes.filled())?;
                }
                // What it has said before is still good.
                Poll::Ready(Err(_)) => {
                    done = true;
                    self.server_ended = true;
                }
                // Nothing has followed what may be the end of a reply.
                Poll::Pending if !done && self.looks && self.session.watch.take_look() => {
                    let step = self.conversation.end_loosely(&mut self.out);
                    self.apply_step(step.map_err(refusal_turn)?)?;
                    done = true;
                    *server_said = true;
                }
                Poll::Pending => {}
            }
        }
        Ok(done)
    }

    fn wants_commands(&self) -> bool {
        let room = self.out.server.len() < MAX_WAITING && self.out.client.len() < MAX_WAITING;
        let open = !self.client_ended && !self.conversation.has_quit();
        self.unread.is_empty() && !self.line_waits && open && room
    }

    /// Sends what is to be sent; answers whether anything was.
    fn send_pending(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Io,
        server: &mut Io,
    ) -> Result<bool, LoopExit> {
        let mut done = false;
        if !self.out.client.is_empty() {
            let before = self.out.client.len();
            let sent = poll_send(cx, client, &mut self.out.client, &mut None);
            let n = (before - self.out.client.len()) as u64;
            self.moved[1] += n;
            self.session.service.metrics.bytes_to_clients.add(n);
            self.session.service.metrics.ftp_control_bytes_out.add(n);
            match sent {
                Poll::Ready(Ok(())) => done = true,
                Poll::Ready(Err(_)) => return Err(LoopExit::End(End::Client)),
                Poll::Pending => {}
            }
        }
        if !self.out.server.is_empty() {
            match poll_send(cx, server, &mut self.out.server, &mut self.out.urgent) {
                Poll::Ready(Ok(())) => done = true,
                // Perhaps it has said why.
                Poll::Ready(Err(_)) => {
                    self.out.server.clear();
                    done = true;
                }
                Poll::Pending => {}
            }
        }
        let is_last = self.client_ended && self.unread.is_empty() && !self.line_waits;
        if is_last && self.out.server.is_empty() && !self.finished {
            if !self.rule.rule.half_close {
                return Err(LoopExit::End(End::Complete));
            }
            if Pin::new(server).poll_shutdown(cx).is_ready() {
                self.finished = true;
            }
        }
        Ok(done)
    }

    /// Takes the client's lines as far as that may be.
    fn take_commands(&mut self) -> Result<bool, LoopExit> {
        let mut done = false;
        loop {
            if !self.line_waits {
                if self.unread.is_empty() || self.out.client.len() >= MAX_WAITING {
                    return Ok(done);
                }
                let taken = self.commands.take(&self.unread).map_err(refusal_turn)?;
                self.unread.drain(..taken.used);
                if self.unread.is_empty() {
                    self.unread = Vec::new();
                }
                self.line_waits = taken.line_ended;
                if !taken.line_ended {
                    return Ok(true);
                }
            }
            if !self.conversation.may_take(self.commands.current_line()) {
                return Ok(done);
            }
            done = true;
            self.line_waits = false;
            let interrupted = self.commands.is_interrupted();
            let (line, out) = (self.commands.current_line(), &mut self.out);
            let step = self.conversation.take_command(line, interrupted, out);
            self.apply_step(step.map_err(refusal_turn)?)?;
            if self.next.is_some() {
                return Ok(true);
            }
        }
    }

    /// Takes bytes of the server.
    fn take_replies(&mut self, mut bytes: &[u8]) -> Result<(), LoopExit> {
        while !bytes.is_empty() {
            let taken = self.replies.take(bytes);
            let taken = taken.map_err(|_| LoopExit::Refuse(Problem::ServerLine))?;
            bytes = bytes.get(taken.used..).unwrap_or_default();
            if taken.line_ended {
                // A look is taken at what came last.
                self.session.watch.take_look();
                let line = self.replies.current_line();
                let step = self.conversation.take_reply(line, &mut self.out);
                self.apply_step(step.map_err(refusal_turn)?)?;
            }
        }
        Ok(())
    }

    fn apply_step(&mut self, step: Step) -> Result<(), LoopExit> {
        match step {
            Step::Nothing => {}
            Step::Open(opening) => self.open_data(opening).map_err(LoopExit::Refuse)?,
            Step::Close => self.close_waiting(),
            Step::Secure => {
                // What came in the clear is not of the encrypted session.
                if !self.unread.is_empty() {
                    return Err(LoopExit::Refuse(Problem::Protocol(Refusal::Malformed)));
                }
                self.next = Some(LoopExit::Secure);
            }
            Step::Tunnel => self.next = Some(LoopExit::Tunnel),
            Step::Transfer(Transfer::Begun) => {
                self.transfer = self.data.last().map(Rc::clone);
                if let Some(data) = &self.transfer
                    && self.session.worker.log.borrow().is_some()
                {
                    data.begin_command(self.commands.current_line(), self.names.clone());
                }
            }
            Step::Transfer(Transfer::Ended(code)) => {
                if let Some(data) = self.transfer.take() {
                    data.finish_command(Some(code), self.session);
                }
            }
            Step::Refused(refusal) => {
                self.count_refusal(refusal);
                let (rule, client_address) = (&self.session.service.name, self.session.peer);
                tracing::debug!(%rule, client = %client_address, reason = %refusal, "FTP: a command or a reply is refused");
            }
        }
        Ok(())
    }

    /// Looks at time limits, alerts and data connections.
    fn check_limits(&mut self, cx: &mut Context<'_>, moved: bool) -> Poll<LoopExit> {
        let watch = &self.session.watch;
        let idle = self.rule.rule.timeouts.idle;
        self.waker.replace(Some(cx.waker().clone()));
        self.data.retain(|data| data.current_stage() != Stage::Done);
        let has_changed = self.open != self.data.len();
        self.open = self.data.len();
        let is_calm = self.data.is_empty() && self.conversation.is_at_rest() && !self.line_waits;
        if moved || has_changed {
            watch.arm_after_traffic(idle, is_calm);
            let looks = self.conversation.has_loose_end();
            if looks {
                watch.arm_and_look(idle);
            } else if self.looks {
                watch.arm_deadline(idle);
            }
            self.looks = looks;
        } else if watch.take_call() && is_calm {
            return Poll::Ready(LoopExit::End(End::Alert));
        }
        let stop = ready!(watch.poll_stop(cx));
        let is_open = self
            .data
            .iter()
            .any(|data| data.current_stage() == Stage::Open);
        match stop {
            Stop::Cut => Poll::Ready(LoopExit::End(End::Terminated)),
            // It has a limit of its own, for bytes.
            Stop::Expired if is_open => {
                watch.arm_after_traffic(idle, false);
                watch.poll_stop(cx).map(|_| LoopExit::End(End::Terminated))
            }
            Stop::Expired if self.conversation.is_at_rest() => {
                Poll::Ready(LoopExit::End(End::ClientTimeout))
            }
            Stop::Expired => Poll::Ready(LoopExit::End(End::MemberTimeout)),
        }
    }

    /// Does the handshake with the client.
    pub(super) async fn secure_client(&mut self, client: Io) -> Option<Io> {
        let server = self.tls.clone()?;
        let limit = server.handshake_timeout;
        let secured = handshake::accept_tls(self.session, client, &[], &server, limit);
        let secured = Box::pin(secured).await.ok()?;
        self.conversation.mark_secured();
        Some(Io::from(secured))
    }

    /// Carries what nobody here understands.
    async fn run_tunnel(&mut self, client: &mut Io, server: &mut Io) -> End {
        let mut traffic = Traffic::default();
        let tunnel = Tunnel {
            session: self.session,
            idle: self.rule.rule.timeouts.idle,
            member: Some(self.member),
            half_close: self.rule.rule.half_close,
        };
        // It did not wait until the server agreed to TLS.
        if self.line_waits || !self.unread.is_empty() {
            return End::Client;
        }
        let end = tunnel.run(client, server, &mut traffic, || {}).await;
        let metrics = &self.session.service.metrics;
        metrics.ftp_control_bytes_in.add(traffic.up.moved);
        metrics.ftp_control_bytes_out.add(traffic.down.moved);
        self.moved[0] += traffic.up.moved;
        self.moved[1] += traffic.down.moved;
        end
    }
}

/// Charges what is beyond what each client may have.
fn charge_excess(
    memory: &Arc<Memory>,
    charge: &mut Option<Charge>,
    held: usize,
) -> Result<(), OutOfMemory> {
    match charge {
        _ if held <= SMALL_BYTES => *charge = None,
        Some(charge) => charge.grow_to(held)?,
        None => *charge = Some(memory.take(held)?),
    }
    Ok(())
}

fn refusal_turn(refusal: Refusal) -> LoopExit {
    LoopExit::Refuse(Problem::Protocol(refusal))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tests::new_memory;

    #[test]
    fn long_lines_count_as_memory_while_they_are_held() {
        let memory = new_memory(20_000);
        let (mut one, mut other) = (None, None);
        charge_excess(&memory, &mut one, SMALL_BYTES).unwrap();
        assert!(one.is_none(), "so much every client may have");
        charge_excess(&memory, &mut one, 6000).unwrap();
        charge_excess(&memory, &mut one, 12_000).unwrap();
        charge_excess(&memory, &mut other, 8001).unwrap_err();
        charge_excess(&memory, &mut other, 8000).unwrap();
        charge_excess(&memory, &mut one, 12_001).unwrap_err();
        charge_excess(&memory, &mut one, 100).unwrap();
        charge_excess(&memory, &mut other, 20_000).unwrap();
    }
}
