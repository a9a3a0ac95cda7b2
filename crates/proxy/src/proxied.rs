//! The PROXY protocol: clients that come by way of another proxy, which says before their first byte
//! who they are, and members that are told so.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use evenkeel_manager::config::SendProxy;
use evenkeel_wire::proxy_protocol::{self, Addresses, Reader, Step};
use tokio::io::ReadBuf;

use crate::access::{End, Peer};
use crate::connection::PeerConnection;
use crate::io::Io;
use crate::peer_process::has_own_user;
use crate::session::{Local, Session};
use crate::watch::Stop;

/// Reads the header. Returns the session of the client that the header names; a connection without
/// one is closed.
pub(crate) async fn read_header(mut session: Session, mut client: Io) -> Option<(Session, Io)> {
    let timeout = {
        let rule = session.service.rule();
        let accepted = rule.rule.accept_proxy.as_ref();
        let has_own_user = || client.socket().is_some_and(|of| has_own_user(of.as_fd()));
        if !accepted.is_some_and(|of| of.contains(session.peer.ip(), has_own_user)) {
            session.service.metrics.refused_not_proxied.add(1);
            let (rule, from) = (&session.service.name, session.peer);
            tracing::debug!(%rule, %from, "a connection is refused: its sender is not in accept_proxy");
            return None;
        }
        rule.rule.timeouts.accept_proxy
    };
    session.watch.arm_deadline(timeout);
    let mut reader = Reader::default();
    let read = session
        .watch
        .poll_until_stop(|cx| poll_header(cx, &mut client, &mut reader))
        .await;
    session.watch.disarm_deadline();
    match read {
        Ok(Ok(addresses)) => {
            if let Some(Addresses {
                source,
                destination,
            }) = addresses
            {
                session.peer = Peer(Some(canonical(source)));
                session.local = Rc::new(Local::new(
                    canonical(destination).into(),
                    reader.extensions().into(),
                ));
            }
            return Some((session, client));
        }
        Ok(Err(error)) => {
            session.service.metrics.refused_proxy_header.add(1);
            let (rule, from) = (&session.service.name, session.peer);
            tracing::debug!(%rule, %from, %error, "a connection of a proxy is refused: no valid PROXY header");
        }
        Err(Stop::Expired) => session.service.metrics.refused_proxy_header.add(1),
        Err(Stop::Cut) => {
            session.count_end(End::Terminated);
            client.reset_on_drop();
        }
    }
    None
}

/// Tells a member whose client this is, in a connection that was just opened.
pub(crate) fn send_header(
    session: &Session,
    member: &PeerConnection,
    version: SendProxy,
) -> io::Result<()> {
    let client = match (session.peer, session.local.address.socket()) {
        (Peer(Some(source)), Some(destination)) => Some(Addresses {
            source,
            destination,
        }),
        _ => None,
    };
    let mut header = Vec::new();
    match version {
        SendProxy::V1 => proxy_protocol::write_line(client, &mut header),
        SendProxy::V2 => {
            proxy_protocol::write_binary(client, &session.local.extensions, &mut header);
        }
    }
    let socket = member.socket().ok_or(io::ErrorKind::NotConnected)?;
    // Without waiting to be told that it is writable, which a new connection is. Nothing is in its
    // buffer, into which more fits than a header has.
    match socket.send(&header)? {
        sent if sent == header.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Reads a header, and no byte behind it: that is for whoever serves the client, who may be the
/// kernel. So it is looked at first, and then taken.
fn poll_header(
    cx: &mut Context<'_>,
    client: &mut Io,
    reader: &mut Reader,
) -> Poll<io::Result<Option<Addresses>>> {
    let client = client.watch_socket().ok_or(io::ErrorKind::NotConnected)?;
    let mut space = [0; 512];
    loop {
        let mut space = ReadBuf::new(&mut space);
        let n = ready!(client.poll_peek(cx, &mut space))?;
        if n == 0 {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        let step = reader.take(space.filled());
        let step = step.map_err(|problem| io::Error::new(io::ErrorKind::InvalidData, problem))?;
        let used = match step {
            Step::More => n,
            Step::End { used, .. } => used,
        };
        let mut taken = [0; 512];
        let taken = taken.get_mut(..used).unwrap_or_default();
        // They are here, so this takes all of them.
        if client.try_read(taken)? != used {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        if let Step::End { addresses, .. } = step {
            return Poll::Ready(Ok(addresses));
        }
    }
}

/// An address of IPv4 in the form of IPv6 is one of IPv4: it is compared with networks, and hashed.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
