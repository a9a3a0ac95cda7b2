//! Bodies of datagrams, after their header. A body that is not understood whole is refused whole.

use std::net::SocketAddr;

use evenkeel_core::time::Instant;
use evenkeel_wire::input::{Input, put_varint};

use crate::id::{Id, address, put_address};
use crate::note::Item;

/// Most balancers that a sheet asks for, or vouches for.
pub(crate) const MAX_ASKED: usize = 8;

/// Greeting of a balancer that wants to send more, with its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Identity of the balancer.
    pub id: Id,
    /// The number that its process has drawn when it started.
    pub session: u64,
    /// The number that it has drawn for this message, to know the answer by.
    pub challenge: u64,
    /// Highest life of a process at the receiver's address that the sender knows; 0 is none.
    pub known_life: u64,
}

impl Hello {
    /// Encodes the greeting as the body of a datagram.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        self.id.encode(&mut out);
        out.extend(self.session.to_be_bytes());
        out.extend(self.challenge.to_be_bytes());
        put_varint(&mut out, self.known_life);
        out
    }

    /// Decodes the body of a datagram.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut input = Input(body);
        let hello = Hello {
            id: Id::decode(&mut input)?,
            session: input.read_u64()?,
            challenge: input.read_u64()?,
            known_life: input.read_varint()?,
        };
        input.0.is_empty().then_some(hello)
    }
}

/// The answer to a [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Identity of the balancer that answers.
    pub id: Id,
    /// The number that its process has drawn when it started.
    pub session: u64,
    /// The challenge of the Hello.
    pub challenge: u64,
    /// The number by which it knows what comes from whoever said Hello.
    pub token: u64,
    /// Highest life of a process at the receiver's address, as in a [`Hello`].
    pub known_life: u64,
}

impl Welcome {
    /// Encodes the answer as the body of a datagram.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        self.id.encode(&mut out);
        out.extend(self.session.to_be_bytes());
        out.extend(self.challenge.to_be_bytes());
        out.extend(self.token.to_be_bytes());
        put_varint(&mut out, self.known_life);
        out
    }

    /// Decodes the body of a datagram.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut input = Input(body);
        let welcome = Welcome {
            id: Id::decode(&mut input)?,
            session: input.read_u64()?,
            challenge: input.read_u64()?,
            token: input.read_u64()?,
            known_life: input.read_varint()?,
        };
        input.0.is_empty().then_some(welcome)
    }
}

/// A part of the sender's notes, and what it knows of those of the receiver. Without any part it is
/// a sign of life.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NotesPart {
    /// Row of sheets of the receiver that is confirmed.
    pub ack_stream: u32,
    /// Number up to which the receiver's notes are known.
    pub ack: u64,
    /// The row of sheets that this one belongs to.
    pub stream: u32,
    /// The number of the sender's last note.
    pub head: u64,
    /// Stands for the names of the sender's groups.
    pub groups: u32,
    /// Balancers that the sender does not hear.
    pub silent: Vec<SocketAddr>,
    /// Balancers that the sender has heard lately, of those for which it was asked.
    pub heard: Vec<SocketAddr>,
    /// The number after which `items` begin.
    pub from: u64,
    /// The number of the last one of them.
    pub through: u64,
    /// All that have changed in between.
    pub items: Vec<Item>,
}

impl NotesPart {
    /// Writes all but the items, which whoever has them appends.
    pub(crate) fn encode_head(&self, out: &mut Vec<u8>) {
        out.extend(self.ack_stream.to_be_bytes());
        put_varint(out, self.ack);
        out.extend(self.stream.to_be_bytes());
        put_varint(out, self.head);
        out.extend(self.groups.to_be_bytes());
        for all in [&self.silent, &self.heard] {
            let some = all.get(..MAX_ASKED).unwrap_or(all);
            out.push(some.len() as u8);
            some.iter().for_each(|&address| put_address(out, address));
        }
        put_varint(out, self.from);
    }

    /// Encodes the sheet as the body of a datagram, if it is not too long for one.
    pub fn encode(&self, now: Instant) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        self.encode_head(&mut out);
        put_varint(&mut out, self.through);
        self.items
            .iter()
            .for_each(|item| item.encode(now, &mut out));
        out
    }

    /// Decodes the body of a datagram.
    pub fn decode(body: &[u8], now: Instant) -> Option<Self> {
        let mut input = Input(body);
        let (ack_stream, ack) = (input.read_u32()?, input.read_varint()?);
        let (stream, head) = (input.read_u32()?, input.read_varint()?);
        let groups = input.read_u32()?;
        let (silent, heard) = (addresses(&mut input)?, addresses(&mut input)?);
        let (from, through) = (input.read_varint()?, input.read_varint()?);
        if from > through || through > head {
            return None;
        }
        let mut items = Vec::new();
        while !input.0.is_empty() {
            items.push(Item::decode(now, &mut input)?);
        }
        // Numbers are of items: there are not more than of these.
        let many = u64::try_from(items.len()).unwrap_or(u64::MAX) > through - from;
        (!many).then_some(NotesPart {
            ack_stream,
            ack,
            stream,
            head,
            groups,
            silent,
            heard,
            from,
            through,
            items,
        })
    }
}

fn addresses(input: &mut Input<'_>) -> Option<Vec<SocketAddr>> {
    let count = usize::from(input.read_u8()?);
    if count > MAX_ASKED {
        return None;
    }
    (0..count).map(|_| address(input)).collect()
}

/// A datagram that another balancer is to get, and its address.
pub(crate) fn relay(to: SocketAddr, datagram: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(datagram.len() + 20);
    put_address(&mut out, to);
    out.extend(datagram);
    out
}

/// Decodes a datagram that is passed on: its address and its bytes.
pub(crate) fn relayed(body: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let mut input = Input(body);
    let to = address(&mut input)?;
    Some((to, input.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::note::{Key, Note};

    #[test]
    fn messages_are_read_as_they_are_written() {
        let id = Id {
            address: "[2001:db8::1]:7000".parse().unwrap(),
            name: "lb-1".into(),
            life: 77,
        };
        let hello = Hello {
            id: id.clone(),
            session: 1,
            challenge: 2,
            known_life: 7,
        };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        let welcome = Welcome {
            id: id.clone(),
            session: 1,
            challenge: 2,
            token: 3,
            known_life: 4,
        };
        assert_eq!(Welcome::decode(&welcome.encode()), Some(welcome));
        let sheet = NotesPart {
            ack_stream: 1,
            ack: 2,
            stream: 3,
            head: 400,
            groups: 5,
            silent: vec![id.address],
            heard: vec!["192.0.2.1:80".parse().unwrap(); MAX_ASKED],
            from: 300,
            through: 302,
            items: vec![
                Item::Put(Note::Claim { group: 6, epoch: 7 }),
                Item::Gone(Key::Claim { group: 8 }),
            ],
        };
        let bytes = sheet.encode(Instant::ZERO);
        assert_eq!(
            NotesPart::decode(&bytes, Instant::ZERO),
            Some(sheet.clone())
        );
        for len in 0..bytes.len() {
            let part = NotesPart::decode(&bytes[..len], Instant::ZERO);
            assert!(part.is_none_or(|part| part.items.len() < sheet.items.len()));
        }
        for wrong in [
            NotesPart {
                head: 301,
                ..sheet.clone()
            },
            NotesPart {
                from: 301,
                ..sheet.clone()
            },
            NotesPart {
                from: 303,
                ..sheet.clone()
            },
        ] {
            let bytes = wrong.encode(Instant::ZERO);
            assert_eq!(NotesPart::decode(&bytes, Instant::ZERO), None);
        }
    }
}
