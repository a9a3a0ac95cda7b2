//! Datagrams between balancers: a header of [`HEADER_LEN`] bytes, a body, and an authentication code
//! of [`TAG_LEN`] bytes over both, by the keys of the reporting protocol.

use evenkeel_wire::input::Input;
use evenkeel_wire::reporting::keys::{Key, Keys, TAG_LEN};
use evenkeel_wire::reporting::message::Invalid;

/// The first bytes of every datagram.
pub const MAGIC: [u8; 4] = *b"EvFl";

/// The version of the protocol that is spoken here.
pub const VERSION: u8 = 1;

/// Length of the header, in bytes.
pub const HEADER_LEN: usize = 24;

/// The longest datagram, in bytes: with the headers of UDP and IPv6 it fits into one packet on every
/// link, tunnels included.
pub const MAX_DATAGRAM: usize = 1400;

/// The longest datagram that another balancer can pass on in one of its own.
pub const MAX_INNER: usize = MAX_DATAGRAM - HEADER_LEN - TAG_LEN - 20;

/// The longest body that is written.
pub(crate) const MAX_BODY: usize = MAX_INNER - HEADER_LEN - TAG_LEN;

/// The shortest datagram, in bytes: it has no body.
pub const MIN_DATAGRAM: usize = HEADER_LEN + TAG_LEN;

/// Kind of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::FromRepr)]
#[repr(u8)]
pub enum Kind {
    /// Greeting: the sender says who it is and asks for a token, with which it can send more.
    Hello = 1,
    /// Answer to a greeting, with the token.
    Welcome = 2,
    /// A message of the membership library.
    Swim = 3,
    /// Sheet: what the sender knows of the other balancer's notes, and some of its own.
    Sheet = 4,
    /// Datagram to be passed on to another balancer, which the sender does not reach.
    Relay = 5,
    /// Datagram of another balancer, which does not reach the receiver.
    Relayed = 6,
    /// Loads that the sender has read of back-ends, for balancers that do not ask them.
    Loads = 7,
    /// Copies of connections that the sender's kernel forwards.
    Copies = 8,
    /// Work of the sender at engines for language models.
    Work = 9,
    /// Prompts that the sender has sent to engines for language models.
    Prompts = 10,
}

/// Header with which every datagram begins, after magic and version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the datagram.
    pub kind: Kind,
    /// The number that the receiver has drawn for this sender; 0 before there is one.
    pub token: u64,
    /// Counts the datagrams with this token, from 1.
    pub count: u64,
}

/// A datagram, authenticated with `key`.
pub fn seal_datagram(header: Header, body: &[u8], key: &Key) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_LEN + body.len() + TAG_LEN);
    out.extend(MAGIC);
    out.extend([VERSION, header.kind as u8]);
    out.extend(key.id().to_be_bytes());
    out.extend(header.token.to_be_bytes());
    out.extend(header.count.to_be_bytes());
    out.extend(body);
    key.sign_message(&mut out);
    out
}

/// Authenticates a datagram and takes it apart.
///
/// # Errors
///
/// It is none, or of somebody who has no key.
pub fn open_datagram<'d>(datagram: &'d [u8], keys: &Keys) -> Result<(Header, &'d [u8]), Invalid> {
    if datagram.len() > MAX_DATAGRAM {
        return Err(Invalid::Oversized);
    }
    let (message, tag) = datagram.split_last_chunk().ok_or(Invalid::Truncated)?;
    let mut input = Input(message);
    if input.read_array().ok_or(Invalid::Truncated)? != MAGIC {
        return Err(Invalid::Magic);
    }
    if input.read_u8().ok_or(Invalid::Truncated)? != VERSION {
        return Err(Invalid::Version);
    }
    let kind = input.read_u8().ok_or(Invalid::Truncated)?;
    let mut numbers = || Some((input.read_u16()?, input.read_u64()?, input.read_u64()?));
    let (key, token, count) = numbers().ok_or(Invalid::Truncated)?;
    let key = keys.get(key).ok_or(Invalid::Key)?;
    if !key.is_tag(&[message], tag) {
        return Err(Invalid::Tag);
    }
    let kind = Kind::from_repr(kind).ok_or(Invalid::Kind)?;
    let header = Header { kind, token, count };
    Ok((header, input.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_changed_on_its_way_is_refused() {
        let key = |id| Key::new(id, &[7; 32]).unwrap();
        let keys = Keys::new(vec![key(1), Key::new(2, &[9; 32]).unwrap()]).unwrap();
        let header = Header {
            kind: Kind::Sheet,
            token: 5,
            count: 6,
        };
        let sealed = seal_datagram(header, b"body", &key(1));
        assert_eq!(open_datagram(&sealed, &keys), Ok((header, &b"body"[..])));
        let second = seal_datagram(header, b"", keys.get(2).unwrap());
        assert_eq!(
            open_datagram(&second, &keys),
            Ok((header, &b""[..])),
            "the next key"
        );
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 0x10;
            assert!(open_datagram(&changed, &keys).is_err(), "{at}");
            assert!(open_datagram(&sealed[..at], &keys).is_err(), "{at}");
        }
        let unknown = seal_datagram(header, b"", &key(3));
        assert_eq!(open_datagram(&unknown, &keys), Err(Invalid::Key));
        let mut other = sealed;
        other[5] = 99;
        assert_eq!(
            open_datagram(&other, &keys),
            Err(Invalid::Tag),
            "nobody has said so"
        );
    }
}
