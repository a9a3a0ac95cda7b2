//! Identity of a balancer, and its encoding.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::{Buf, BufMut};
use evenkeel_core::key;
use evenkeel_wire::input::{Input, put_text, put_varint};
use evenkeel_wire::reporting::message::is_name;
use foca::{Header, Member, Message, State};

/// A balancer, as others know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Id {
    /// Address at which the balancer gets datagrams.
    pub address: SocketAddr,
    /// Name of the balancer, from which others work out what it owns: 1 to 64 letters, digits and
    /// `-_.`.
    pub name: Arc<str>,
    /// Number that tells the processes at this address apart: the one with the highest number is
    /// the latest. The number need not count anything: a process that starts with a number that is
    /// too low is told so.
    pub life: u64,
}

impl Id {
    /// The number that stands for its name.
    pub(crate) fn node(&self) -> u64 {
        key::hash(self.name.as_bytes())
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_address(out, self.address);
        put_text(out, &self.name);
        put_varint(out, self.life);
    }

    pub(crate) fn decode(input: &mut Input<'_>) -> Option<Self> {
        let address = address(input)?;
        let name = input.text().filter(|name| is_name(name))?;
        Some(Id {
            address,
            name: name.into(),
            life: input.read_varint()?,
        })
    }
}

impl foca::Identity for Id {
    type Addr = SocketAddr;

    fn renew(&self) -> Option<Self> {
        Some(Id {
            life: self.life.saturating_add(1),
            ..self.clone()
        })
    }

    fn addr(&self) -> SocketAddr {
        self.address
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        (self.life, &self.name) > (adversary.life, &adversary.name)
    }
}

/// Appends an address.
pub(crate) fn put_address(out: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            out.push(4);
            out.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(6);
            out.extend(ip.octets());
        }
    }
    out.extend(address.port().to_be_bytes());
}

/// Reads an address at which somebody can be reached.
pub(crate) fn address(input: &mut Input<'_>) -> Option<SocketAddr> {
    let ip = match input.read_u8()? {
        4 => IpAddr::from(input.read_array::<4>()?),
        6 => IpAddr::from(input.read_array::<16>()?),
        _ => return None,
    };
    let port = input.read_u16()?;
    let reachable = port != 0 && !ip.is_unspecified() && !ip.is_multicast();
    reachable.then(|| SocketAddr::new(ip, port))
}

/// Reason why something is not written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CodecError {
    /// The value does not fit into what is left of a datagram.
    #[error("the value does not fit into the rest of the datagram")]
    Full,
    /// The bytes are not what this version says.
    #[error("the datagram is malformed")]
    Malformed,
}

/// Codec of the membership library's messages.
#[derive(Debug)]
pub(crate) struct Codec;

impl Codec {
    fn put(mut buf: impl BufMut, bytes: &[u8]) -> Result<(), CodecError> {
        if buf.remaining_mut() < bytes.len() {
            return Err(CodecError::Full);
        }
        buf.put_slice(bytes);
        Ok(())
    }

    fn get<T>(
        mut buf: impl Buf,
        read: impl FnOnce(&mut Input<'_>) -> Option<T>,
    ) -> Result<T, CodecError> {
        // The library hands over a slice, which is one chunk.
        let mut input = Input(buf.chunk());
        let before = input.0.len();
        let value = read(&mut input).ok_or(CodecError::Malformed)?;
        let taken = before - input.0.len();
        buf.advance(taken);
        Ok(value)
    }
}

impl foca::Codec<Id> for Codec {
    type Error = CodecError;

    fn encode_header(&mut self, header: &Header<Id>, buf: impl BufMut) -> Result<(), CodecError> {
        let mut out = Vec::with_capacity(128);
        header.src.encode(&mut out);
        out.extend(header.src_incarnation.to_be_bytes());
        header.dst.encode(&mut out);
        put_message(&mut out, &header.message);
        Self::put(buf, &out)
    }

    fn decode_header(&mut self, buf: impl Buf) -> Result<Header<Id>, CodecError> {
        Self::get(buf, |input| {
            Some(Header {
                src: Id::decode(input)?,
                src_incarnation: input.read_u16()?,
                dst: Id::decode(input)?,
                message: message(input)?,
            })
        })
    }

    fn encode_member(&mut self, member: &Member<Id>, buf: impl BufMut) -> Result<(), CodecError> {
        let mut out = Vec::with_capacity(64);
        member.id().encode(&mut out);
        out.extend(member.incarnation().to_be_bytes());
        out.push(match member.state() {
            State::Alive => 0,
            State::Suspect => 1,
            State::Down => 2,
        });
        Self::put(buf, &out)
    }

    fn decode_member(&mut self, buf: impl Buf) -> Result<Member<Id>, CodecError> {
        Self::get(buf, |input| {
            let (id, incarnation) = (Id::decode(input)?, input.read_u16()?);
            let state = match input.read_u8()? {
                0 => State::Alive,
                1 => State::Suspect,
                2 => State::Down,
                _ => return None,
            };
            Some(Member::new(id, incarnation, state))
        })
    }
}

fn put_message(out: &mut Vec<u8>, message: &Message<Id>) {
    let mut with = |tag: u8, id: &Id, number: u8| {
        out.extend([tag, number]);
        id.encode(out);
    };
    match message {
        Message::Ping(number) => out.extend([1, *number]),
        Message::Ack(number) => out.extend([2, *number]),
        Message::PingReq {
            target,
            probe_number,
        } => with(3, target, *probe_number),
        Message::IndirectPing {
            origin,
            probe_number,
        } => with(4, origin, *probe_number),
        Message::IndirectAck {
            target,
            probe_number,
        } => with(5, target, *probe_number),
        Message::ForwardedAck {
            origin,
            probe_number,
        } => with(6, origin, *probe_number),
        Message::Announce => out.push(7),
        Message::Feed => out.push(8),
        Message::Gossip => out.push(9),
        Message::Broadcast => out.push(10),
        Message::TurnUndead => out.push(11),
    }
}

fn message(input: &mut Input<'_>) -> Option<Message<Id>> {
    Some(match input.read_u8()? {
        1 => Message::Ping(input.read_u8()?),
        2 => Message::Ack(input.read_u8()?),
        tag @ 3..=6 => {
            let probe_number = input.read_u8()?;
            let id = Id::decode(input)?;
            match tag {
                3 => Message::PingReq {
                    target: id,
                    probe_number,
                },
                4 => Message::IndirectPing {
                    origin: id,
                    probe_number,
                },
                5 => Message::IndirectAck {
                    target: id,
                    probe_number,
                },
                _ => Message::ForwardedAck {
                    origin: id,
                    probe_number,
                },
            }
        }
        7 => Message::Announce,
        8 => Message::Feed,
        9 => Message::Gossip,
        10 => Message::Broadcast,
        11 => Message::TurnUndead,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use foca::Codec as _;

    use super::*;

    fn id(last: u8) -> Id {
        Id {
            address: SocketAddr::from(([192, 0, 2, last], 7000)),
            name: format!("lb-{last}").into(),
            life: 1 << last,
        }
    }

    #[test]
    fn messages_of_the_library_are_read_as_they_are_written() {
        let (target, origin, probe_number) = (id(3), id(4), 200);
        let indirect = [
            Message::PingReq {
                target: target.clone(),
                probe_number,
            },
            Message::IndirectPing {
                origin: origin.clone(),
                probe_number,
            },
            Message::IndirectAck {
                target,
                probe_number,
            },
            Message::ForwardedAck {
                origin,
                probe_number,
            },
        ];
        let others = [
            Message::Ping(7),
            Message::Ack(8),
            Message::Announce,
            Message::Feed,
            Message::Gossip,
            Message::Broadcast,
            Message::TurnUndead,
        ];
        for message in indirect.into_iter().chain(others) {
            let header = Header {
                src: id(1),
                src_incarnation: 513,
                dst: id(2),
                message,
            };
            let mut bytes = Vec::new();
            Codec.encode_header(&header, &mut bytes).unwrap();
            bytes.push(99);
            let mut rest = &bytes[..];
            assert_eq!(Codec.decode_header(&mut rest).unwrap(), header);
            assert_eq!(rest, [99]);
        }
        for state in [State::Alive, State::Suspect, State::Down] {
            let member = Member::new(id(5), 9, state);
            let mut bytes = Vec::new();
            Codec.encode_member(&member, &mut bytes).unwrap();
            assert_eq!(Codec.decode_member(&bytes[..]).unwrap(), member);
            let mut room = [0; 10];
            let full = Codec.encode_member(&member, &mut room[..]);
            assert_eq!((full, room), (Err(CodecError::Full), [0; 10]));
        }
    }

    #[test]
    fn nobody_can_be_reached_everywhere() {
        for (bytes, is_one) in [
            (&[4, 192, 0, 2, 1, 0, 80][..], true),
            (&[4, 0, 0, 0, 0, 0, 80], false),
            (&[4, 224, 0, 0, 1, 0, 80], false),
            (&[4, 192, 0, 2, 1, 0, 0], false),
            (&[5, 192, 0, 2, 1, 0, 80], false),
            (&[4, 192, 0, 2, 1, 0], false),
        ] {
            assert_eq!(address(&mut Input(bytes)).is_some(), is_one, "{bytes:?}");
        }
    }
}
