//! Sockets towards members, and the choice of a member for each session.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket as StdSocket};
use std::os::fd::AsRawFd;

use evenkeel_core::group::{Outcome, PickError, Request};
use evenkeel_core::member::MemberId;
use evenkeel_limits::Shortage;
use evenkeel_manager::snapshot::{RuleSnapshot, Target};
use evenkeel_wire::quic::{ConnectionId, Header};
use socket2::{Domain, SockRef, Socket, Type};

use super::client_sessions::simplify;
use super::segments::{Segments, Way, is_drop, send_message};
use super::socket::{DatagramSocket, ignore_path_mtu, set_offload};
use crate::access::{End, MemberAttempts};
use crate::bound_request::{BoundRequest, Refusal};
use crate::member_choice::insert;
use crate::session::Session;
use crate::transparent::{bind_source, source_address};

/// Members that a session has tried.
#[derive(Default)]
pub(super) struct Attempts {
    /// Member at which the client has a connection, whatever address the client has.
    pub(super) pinned: Option<MemberId>,
    pub(super) tried: Vec<MemberId>,
    pub(super) tries: Option<Box<MemberAttempts>>,
    pub(super) retries: u32,
}

/// A member that has got the first datagram.
pub(super) struct Link {
    bound: BoundRequest,
    socket: StdSocket,
}

/// End of a session of which no member has got a datagram.
pub(super) struct Unreached {
    pub(super) end: End,
    /// True if there is no member, or none takes the datagram, so that the client may as well hear that nobody has the port.
    pub(super) is_unserved: bool,
}

impl From<End> for Unreached {
    fn from(end: End) -> Self {
        let is_unserved = end == End::Member;
        Unreached { end, is_unserved }
    }
}

/// Finds a member, and sends it the first datagram of a session.
pub(super) fn reach_member(
    session: &Session,
    rule: &RuleSnapshot,
    target: &Target,
    attempts: &mut Attempts,
    bytes: &[u8],
) -> Result<Link, Unreached> {
    let metrics = &session.service.metrics;
    loop {
        let request = Request {
            client: session.peer.ip(),
            cost: rule.rule.cost,
            excluded_members: &attempts.tried,
            pinned: attempts.pinned,
            ..Request::at_time(session.worker.now())
        };
        let bound = session.try_bind(&target.group, &RefCell::default(), &request, None);
        let mut bound = bound.map_err(|error| {
            let (refusal, is_unserved) = match error {
                PickError::NoneEligible => (Refusal::NoMember, true),
                PickError::AllFull | PickError::Held | PickError::Late => {
                    (Refusal::QueueFull, false)
                }
            };
            let end = session.count_refusal(refusal);
            Unreached { end, is_unserved }
        })?;
        MemberAttempts::append_to(&mut attempts.tries, bound.tries.take());
        let source = source_address(session, target, &bound.address);
        let opened = bound.address.socket();
        let opened = opened.map(|to| open_socket(to, source, bytes));
        let error = match opened {
            Some(Ok(socket)) => {
                metrics.member_connects.add(1);
                return Ok(Link { bound, socket });
            }
            Some(Err(error)) => error,
            // The configuration refuses these.
            None => io::ErrorKind::Unsupported.into(),
        };
        let now = session.worker.now();
        if Shortage::of_error(&error).is_some() {
            target.group.finish(bound.ticket, Outcome::Cancelled, now);
            return Err(report_shortage(session, &error).into());
        }
        metrics.member_connect_failures.add(1);
        target.group.finish(bound.ticket, Outcome::Failure, now);
        if attempts.retries >= rule.rule.connect_retries {
            return Err(End::Member.into());
        }
        insert(&mut attempts.tried, bound.member);
        attempts.retries += 1;
        metrics.retries.add(1);
    }
}

/// Finds the member that has chosen the connection id in a client's header: an id of the rule's sessions, of the process before,
/// or of the kernel.
pub(super) fn find_by_id(
    session: &Session,
    listener: SocketAddr,
    target: &Target,
    header: &Header<'_>,
) -> Option<(ConnectionId, MemberId)> {
    let shared = &session.service.shared;
    shared.connection_ids.find_member(header).or_else(|| {
        let (id, address) = shared.client_sessions.find_member(listener, header)?;
        let group = target.group.current.load();
        let mut members = group.members().iter();
        let found = members.find(|one| one.address.socket().map(simplify) == Some(address));
        found.map(|member| (id, member.id))
    })
}

/// Has the runtime watch the socket towards a member.
pub(super) fn watch_socket(
    session: &Session,
    target: &Target,
    link: Link,
) -> Result<(BoundRequest, DatagramSocket), Unreached> {
    if session.service.rule().rule.udp.uses_offload() {
        set_offload(link.socket.as_raw_fd(), true);
    }
    match DatagramSocket::new(link.socket) {
        Ok(socket) => Ok((link.bound, socket)),
        Err(error) => {
            let now = session.worker.now();
            let ticket = link.bound.ticket;
            target.group.finish(ticket, Outcome::Cancelled, now);
            Err(report_shortage(session, &error).into())
        }
    }
}

/// Reports that a file or memory is missing for a session.
fn report_shortage(session: &Session, error: &io::Error) -> End {
    if let Some(shortage) = Shortage::of_error(error) {
        shortage.report_failure("send a datagram to a member");
        // A client that uses up the ports of its own address takes no connection from others.
        if shortage.is_of_files() {
            session.worker.close_idle();
        }
    }
    End::Exhausted
}

/// Opens a socket towards a member, which comes from the address `source` if there is one, and sends the member a datagram.
fn open_socket(member: SocketAddr, source: Option<IpAddr>, bytes: &[u8]) -> io::Result<StdSocket> {
    // The kernel chooses the port when it connects the socket, without a call of its own.
    let socket = Socket::new(Domain::for_address(member), Type::DGRAM, None)?;
    if let Some(from) = source {
        bind_source(&SockRef::from(&socket), from)?;
    }
    ignore_path_mtu(&socket, member)?;
    socket.connect(&member.into())?;
    match send_message(socket.as_raw_fd(), Segments::single(bytes), Way::default()) {
        Err(error) if !is_drop(&error) => Err(error),
        _ => Ok(socket.into()),
    }
}
