//! Datagrams that go out: sheets for the balancers that are to get one, and the ways to a balancer.

use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_core::time::Instant;

use crate::fleet::{BEAT, Fleet};
use crate::message::{MAX_ASKED, NotesPart, relay};
use crate::peer::MAX_QUEUE;
use crate::seal::{self, Header, Kind, MAX_BODY};

/// Notes that are not confirmed are sent again after so long.
const RESEND: Duration = Duration::from_millis(100);

impl Fleet {
    /// Sends a body to a balancer, or with `None` to all. A balancer that is not there, or has given no token yet, gets none.
    pub(crate) fn send_body(&mut self, kind: Kind, to: Option<SocketAddr>, body: &[u8]) {
        let there = self.peers.iter();
        let there = there.filter(|(_, peer)| peer.active && peer.out.is_some());
        let there = there.map(|(address, _)| *address);
        let receivers: Vec<_> = there
            .filter(|address| to.is_none_or(|to| to == *address))
            .collect();
        for address in receivers {
            self.send_to(address, kind, body);
        }
    }

    /// Sends sheets to all who are to get one now.
    pub(crate) fn flush(&mut self, now: Instant) {
        let (head, mut known) = (self.board.last_change(), u64::MAX);
        for (&address, peer) in &self.peers {
            known = known.min(peer.acked);
            if !peer.active {
                continue;
            }
            let has_news = match peer.sent {
                Some((_, at)) => now.since(at) >= RESEND,
                None => peer.acked < head,
            };
            if has_news || now.since(peer.told) >= BEAT {
                self.urgent.insert(address);
            }
        }
        self.flushed = head;
        self.tell_urgent(now);
        // One that is gone may come back, and must hear it, too.
        self.board.forget(known);
    }

    pub(crate) fn tell_urgent(&mut self, now: Instant) {
        if self.urgent.is_empty() {
            return;
        }
        let asked = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.active && peer.asked);
        let silent: Vec<SocketAddr> = asked.map(|(address, _)| *address).take(MAX_ASKED).collect();
        for address in std::mem::take(&mut self.urgent) {
            self.tell(address, &silent, now);
        }
    }

    fn tell(&mut self, address: SocketAddr, silent: &[SocketAddr], now: Instant) {
        let head = self.board.last_change();
        let heard = self.heard.remove(&address).unwrap_or_default();
        let Some(peer) = self.peers.get_mut(&address) else {
            return;
        };
        if !peer.active || peer.out.is_none() {
            return;
        }
        let (ack_stream, ack) = peer.copy.known_until();
        let is_on_its_way = peer.sent.is_some_and(|(_, at)| now.since(at) < RESEND);
        let sheet = NotesPart {
            ack_stream,
            ack,
            stream: peer.stream,
            head,
            groups: self.digest,
            silent: silent.to_vec(),
            heard,
            from: peer.acked,
            ..NotesPart::default()
        };
        let mut body = Vec::with_capacity(128);
        sheet.encode_head(&mut body);
        let room = match is_on_its_way {
            true => 0,
            false => MAX_BODY.saturating_sub(body.len()),
        };
        let through = self.board.write(peer.acked, room, now, &mut body);
        if through > peer.acked {
            peer.sent = Some((through, now));
        }
        peer.told = now;
        self.send_to(address, Kind::Sheet, &body);
    }

    /// Sends something to a peer, through another one if it is not reached; or keeps it until it
    /// has given a token.
    pub(crate) fn send_to(&mut self, address: SocketAddr, kind: Kind, body: &[u8]) {
        let Some(peer) = self.peers.get_mut(&address) else {
            return;
        };
        let Some(out) = &mut peer.out else {
            if peer.queue.len() < MAX_QUEUE {
                peer.queue.push((kind, body.to_vec()));
            }
            return;
        };
        out.count += 1;
        let header = Header {
            kind,
            token: out.token,
            count: out.count,
        };
        let datagram = seal::seal_datagram(header, body, self.keys.signing_key());
        if let Some(via) = peer.via {
            self.send_directly(via, Kind::Relay, &relay(address, &datagram));
        }
        self.push(address, datagram);
    }

    /// Sends a datagram of a kind that needs no token.
    pub(crate) fn send_open(
        &mut self,
        address: SocketAddr,
        via: Option<SocketAddr>,
        kind: Kind,
        body: &[u8],
    ) {
        let header = Header {
            kind,
            token: 0,
            count: 0,
        };
        let datagram = seal::seal_datagram(header, body, self.keys.signing_key());
        if let Some(via) = via {
            self.send_directly(via, Kind::Relay, &relay(address, &datagram));
        }
        self.push(address, datagram);
    }

    /// Sends something to a peer, or not.
    pub(crate) fn send_directly(&mut self, address: SocketAddr, kind: Kind, body: &[u8]) {
        let peer = self.peers.get_mut(&address);
        let Some(out) = peer.and_then(|peer| peer.out.as_mut()) else {
            return;
        };
        out.count += 1;
        let header = Header {
            kind,
            token: out.token,
            count: out.count,
        };
        let datagram = seal::seal_datagram(header, body, self.keys.signing_key());
        self.push(address, datagram);
    }

    fn push(&mut self, address: SocketAddr, datagram: Vec<u8>) {
        self.counters.count_sent(datagram.len());
        self.out.push((address, datagram));
    }
}
