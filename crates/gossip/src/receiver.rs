//! Datagrams that come in: who has sent them, and what they say.

use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_core::time::Instant;
use evenkeel_wire::reporting::message::Invalid;
use evenkeel_wire::window::{Window, WindowError};

use crate::board::Copy;
use crate::fleet::{Fleet, GREET};
use crate::message::{Hello, NotesPart, Welcome, relay, relayed};
use crate::note::{Item, Key, Note};
use crate::outcome::Outcome;
use crate::peer::{Inbound, MAX_PENDING, Out, is_due};
use crate::reading::Heard;
use crate::seal::{self, Header, Kind, MAX_INNER};
use crate::work_report::HeardWork;

/// A balancer was heard "lately" if it was within this time.
const LATELY: Duration = Duration::from_millis(400);

/// Interval at which a balancer that counts as gone, and speaks, is told so.
const HEAL: Duration = Duration::from_millis(500);

impl Fleet {
    /// Takes in a datagram.
    pub fn receive_datagram(&mut self, datagram: &[u8], now: Instant) -> Outcome {
        self.wake(now);
        let outcome = self.take(datagram, None, now);
        self.counters.count(outcome, datagram.len());
        self.pump(now);
        if self.dirty {
            self.take_ownership(now);
        }
        // With every datagram only those are looked at for whom there is something.
        match self.board.last_change() == self.flushed {
            true => self.tell_urgent(now),
            false => self.flush(now),
        }
        outcome
    }

    fn take(&mut self, datagram: &[u8], via: Option<SocketAddr>, now: Instant) -> Outcome {
        let (header, body) = match seal::open_datagram(datagram, &self.keys) {
            Ok(opened) => opened,
            Err(invalid) => return Outcome::Invalid(invalid),
        };
        let taken = match header.kind {
            Kind::Hello => Hello::decode(body).map(|hello| self.hear_hello(hello, via, now)),
            Kind::Welcome => {
                Welcome::decode(body).map(|welcome| self.hear_welcome(welcome, via, now))
            }
            Kind::Relay | Kind::Relayed if via.is_some() => {
                return Outcome::Invalid(Invalid::Kind);
            }
            _ => match self.hear(header, via, now) {
                Err(outcome) => return outcome,
                Ok(from) => self.take_body(header, body, from, now),
            },
        };
        taken.unwrap_or(Outcome::Invalid(Invalid::Malformed))
    }

    /// Finds out who has sent a datagram.
    fn hear(
        &mut self,
        header: Header,
        via: Option<SocketAddr>,
        now: Instant,
    ) -> Result<SocketAddr, Outcome> {
        let address = *self.tokens.get(&header.token).ok_or(Outcome::Foreign)?;
        let peer = self.peers.get_mut(&address).ok_or(Outcome::Foreign)?;
        let is_it = |inbound: &Inbound| inbound.token == header.token;
        if !peer.inbound.as_ref().is_some_and(is_it) {
            let place = peer.pending.iter().position(is_it);
            let next = peer.pending.swap_remove(place.ok_or(Outcome::Foreign)?);
            // It has asked for this token, and so is not who had the one before.
            let old = peer.inbound.replace(next);
            peer.copy = Copy::default();
            peer.heard_loads = Heard::default();
            peer.heard_work = HeardWork::default();
            self.ejections.note_change();
            for old in old.into_iter().chain(peer.pending.drain(..)) {
                self.tokens.remove(&old.token);
            }
            self.dirty = true;
        }
        let inbound = peer.inbound.as_mut().ok_or(Outcome::Foreign)?;
        match inbound.window.check_sequence(header.count) {
            Ok(()) => {
                inbound.window.take(header.count);
            }
            Err(WindowError::Reordered) => {}
            Err(late) => return Err(late.into()),
        }
        peer.heard = Some(now);
        peer.asked = false;
        peer.via = via;
        Ok(address)
    }

    fn take_body(
        &mut self,
        header: Header,
        body: &[u8],
        from: SocketAddr,
        now: Instant,
    ) -> Option<Outcome> {
        match header.kind {
            Kind::Swim => {
                self.heal(from, now);
                self.swim
                    .receive_message(body, now)
                    .then_some(Outcome::Taken)
            }
            Kind::Sheet => {
                let sheet = NotesPart::decode(body, now)?;
                self.heal(from, now);
                self.hear_sheet(from, &sheet, now);
                Some(Outcome::Taken)
            }
            Kind::Loads => {
                self.hear_loads(from, body, header.count, now)?;
                Some(Outcome::Taken)
            }
            Kind::Work => {
                self.hear_work(from, body, header.count, now)?;
                Some(Outcome::Taken)
            }
            Kind::Prompts => {
                self.hear_prompts(body)?;
                Some(Outcome::Taken)
            }
            Kind::Copies => {
                self.keep_copies(from, body);
                Some(Outcome::Taken)
            }
            Kind::Relay => {
                let (to, inner) = relayed(body)?;
                let is_ours = self.peers.get(&to).is_some_and(|peer| peer.active);
                if is_ours && inner.len() <= MAX_INNER {
                    let body = relay(from, inner);
                    self.send_directly(to, Kind::Relayed, &body);
                }
                Some(Outcome::Taken)
            }
            Kind::Relayed => {
                let (_, inner) = relayed(body)?;
                Some(self.take(inner, Some(from), now))
            }
            // They have been looked at.
            Kind::Hello | Kind::Welcome => None,
        }
    }

    /// Tells a balancer that counts as gone, and speaks, that it does, so that it comes back.
    fn heal(&mut self, from: SocketAddr, now: Instant) {
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        if !peer.active && is_due(peer.healed, HEAL, now) {
            peer.healed = Some(now);
            let id = peer.id.clone();
            self.swim.note_alive(&id, now);
        }
    }

    fn hear_hello(&mut self, hello: Hello, via: Option<SocketAddr>, now: Instant) -> Outcome {
        let Hello {
            id,
            session,
            challenge,
            known_life,
        } = hello;
        if id.address == self.id().address || session == self.session {
            return Outcome::Own;
        }
        self.swim.outlive_process(known_life, now);
        let (address, token) = (id.address, self.rng.u64(1..));
        let Some(peer) = self.know(&id, now) else {
            return Outcome::Full;
        };
        let is_new = peer.session != session;
        let mut given = peer.inbound.iter().chain(&peer.pending);
        let given = given.find(|inbound| inbound.session == session);
        let token = match given.map(|inbound| inbound.token) {
            Some(token) => token,
            None => {
                let mut dropped = None;
                if peer.pending.len() >= MAX_PENDING {
                    dropped = Some(peer.pending.remove(0).token);
                }
                peer.pending.push(Inbound {
                    token,
                    session,
                    window: Window::new(0),
                });
                if let Some(dropped) = dropped {
                    self.tokens.remove(&dropped);
                }
                self.tokens.insert(token, address);
                token
            }
        };
        let welcome = Welcome {
            id: self.id().clone(),
            session: self.session,
            challenge,
            token,
            known_life: self.swim.life_at(address),
        };
        self.send_open(address, via, Kind::Welcome, &welcome.encode());
        if is_new && self.is_to_greet(address, GREET[0], now) {
            self.greet_one(address, via, now);
        }
        Outcome::Greeted
    }

    fn hear_welcome(&mut self, welcome: Welcome, via: Option<SocketAddr>, now: Instant) -> Outcome {
        let Welcome {
            id,
            session,
            challenge,
            token,
            known_life,
        } = welcome;
        if self.questions.remove(&challenge).is_none() {
            return Outcome::Unasked;
        }
        if id.address == self.id().address || session == self.session {
            return Outcome::Own;
        }
        self.swim.outlive_process(known_life, now);
        let (address, stream) = (id.address, self.rng.u32(1..));
        let Some(peer) = self.know(&id, now) else {
            return Outcome::Full;
        };
        if peer.session != session {
            peer.session = session;
            peer.out = None;
            (peer.stream, peer.acked, peer.sent) = (stream, 0, None);
            if id.life > peer.id.life || !peer.active {
                peer.node = id.node();
                peer.id = id.clone();
            }
        }
        if peer.out.as_ref().is_none_or(|out| out.token != token) {
            peer.out = Some(Out { token, count: 0 });
        }
        peer.via = via;
        if !peer.active {
            self.swim.note_alive(&id, now);
        }
        let queue = self.peers.get_mut(&address);
        let queue = queue.map(|peer| std::mem::take(&mut peer.queue));
        for (kind, body) in queue.unwrap_or_default() {
            self.send_to(address, kind, &body);
        }
        self.urgent.insert(address);
        Outcome::Taken
    }

    fn hear_sheet(&mut self, from: SocketAddr, sheet: &NotesPart, now: Instant) {
        let head = self.board.last_change();
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        if sheet.ack_stream == peer.stream {
            peer.acked = peer.acked.max(sheet.ack.min(head));
            if peer.sent.is_some_and(|(through, _)| through <= peer.acked) {
                peer.sent = None;
                if peer.acked < head {
                    self.urgent.insert(from);
                }
            }
        }
        if peer.groups != Some(sheet.groups) {
            peer.groups = Some(sheet.groups);
            self.dirty = true;
        }
        let was_whole = peer.copy.is_whole();
        let is_another = peer.copy.known_until().0 != sheet.stream;
        let is_news = peer.copy.hears_news(sheet);
        let is_ejection = |item: &Item| {
            matches!(
                item,
                Item::Put(Note::Ejection { .. }) | Item::Gone(Key::Ejection { .. })
            )
        };
        if is_another || is_news && sheet.items.iter().any(is_ejection) {
            self.ejections.note_change();
        }
        let agrees = !is_news || self.agrees_with(from, &sheet.items, now);
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        if is_news {
            peer.copy.take_part(sheet, agrees);
            self.urgent.insert(from);
        }
        self.dirty |= was_whole != peer.copy.is_whole();
        if is_news {
            self.heed_notes(from, &sheet.items);
        }
        for vouched in &sheet.heard {
            if let Some(peer) = self.peers.get_mut(vouched)
                && *vouched != from
                && peer.asked
            {
                peer.vouched = Some(now);
                peer.via = Some(from);
            }
        }
        let is_heard = |address: &&SocketAddr| {
            let peer = self.peers.get(*address);
            peer.is_some_and(|peer| {
                let lately = peer.heard.is_some_and(|at| now.since(at) <= LATELY);
                peer.active && lately && peer.via.is_none()
            })
        };
        let heard: Vec<SocketAddr> = sheet.silent.iter().filter(is_heard).copied().collect();
        if !heard.is_empty() {
            self.heard.insert(from, heard);
            self.urgent.insert(from);
        }
    }
}
