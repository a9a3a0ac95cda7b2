//! Sockets that agents send to: how they are opened and kept, and how their datagrams are answered.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use evenkeel_manager::subsystem::{PrepareError, PrepareErrors};
use evenkeel_net::Clock;
use evenkeel_net::datagram;
use evenkeel_wire::reporting::server::{Broker, Peer};
use rustix::net::sockopt;
use tracing::warn;

/// Size of the receive buffer that is asked of the system for each socket: many agents may report at the same
/// moment, and a small datagram takes up more than a kilobyte there.
const RECEIVE_BUFFER: usize = 16 * 1024 * 1024;

/// Size of a buffer below which a few thousand agents that report at the same moment may lose something.
const SMALL_BUFFER: usize = 2 * 1024 * 1024;

/// Datagrams that are taken from a socket before others have their turn. Well below a
/// millisecond's work, as the control loop may wait for it.
const BATCH: usize = 64;

/// Owner of the sockets.
pub(crate) const WHOSE: &str = "broker";

/// A socket that agents send to.
pub(crate) struct ReportSocket {
    pub(crate) id: usize,
    /// Address as configured; the port may be 0.
    pub(crate) wanted: SocketAddr,
    pub(crate) socket: UdpSocket,
    pub(crate) receive_buffer: usize,
}

impl ReportSocket {
    fn try_clone(&self) -> io::Result<ReportSocket> {
        Ok(ReportSocket {
            socket: self.socket.try_clone()?,
            ..*self
        })
    }
}

fn open(id: usize, wanted: SocketAddr) -> io::Result<ReportSocket> {
    let socket = datagram::open_socket(wanted, RECEIVE_BUFFER, WHOSE)?;
    let receive_buffer = sockopt::socket_recv_buffer_size(&socket)?;
    if receive_buffer < SMALL_BUFFER {
        warn!(
            address = %wanted,
            bytes = receive_buffer,
            "the receive buffer for agents is small: for thousands of agents raise net.core.rmem_max"
        );
    }
    Ok(ReportSocket {
        id,
        wanted,
        socket,
        receive_buffer,
    })
}

/// Opens sockets on `addresses`, with numbers above `last`; those in `old` with the same address stay. Returns the last
/// number, too.
pub(crate) fn bind_sockets(
    old: &[ReportSocket],
    last: usize,
    addresses: &[SocketAddr],
) -> Result<(Vec<ReportSocket>, usize), PrepareErrors> {
    let (mut bound, mut errors) = (Vec::new(), Vec::new());
    let mut last = last;
    let mut old: Vec<&ReportSocket> = old.iter().collect();
    for &wanted in addresses {
        let same = old.iter().position(|bound| bound.wanted == wanted);
        let socket = match same {
            // The same socket under another handle: nothing that came is lost.
            Some(index) => old.swap_remove(index).try_clone(),
            None => {
                last += 1;
                open(last, wanted)
            }
        };
        match socket {
            Ok(socket) => bound.push(socket),
            Err(error) => errors.push(PrepareError::Listen {
                whose: WHOSE,
                address: format!("UDP {wanted}"),
                error,
            }),
        }
    }
    if errors.is_empty() {
        Ok((bound, last))
    } else {
        Err(errors)
    }
}

/// Takes a batch of datagrams from a socket and answers them. Gives the number of answers
/// that could not be sent.
pub(crate) fn receive_batch(
    bound: &ReportSocket,
    broker: &mut Broker,
    buffer: &mut [u8],
    clock: Clock,
) -> u64 {
    let mut unsent = 0;
    for _ in 0..BATCH {
        let (len, address) = match bound.socket.recv_from(buffer) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // Nothing more; what else there may be is not about this socket.
            Err(_) => break,
        };
        let peer = Peer {
            socket: bound.id,
            address,
        };
        let datagram = buffer.get(..len).unwrap_or_default();
        let (_, answer) = broker.receive_datagram(peer, datagram, clock.now());
        if let Some(answer) = answer {
            unsent += u64::from(bound.socket.send_to(&answer, address).is_err());
        }
    }
    unsent
}
