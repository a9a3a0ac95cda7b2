//! Commands that wait for their replies, and what these replies may be.

use super::Verb;
use super::address::{read_epsv_reply, read_pasv_reply};
use super::reply::parse_code;

/// A command that has not got its last reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    Greeting,
    /// The server is to listen; which command was sent, and which the client has sent. The port
    /// that the reply has named so far.
    Passive {
        sent: Verb,
        asked: Verb,
        port: Option<u16>,
    },
    /// The server listens and has said where; which command the client has sent.
    Listening {
        asked: Verb,
    },
    /// The server was told where to connect to.
    Active,
    Auth,
    Feat,
    Rein,
    Transfer,
    Quit,
    Other,
}

/// Command to which a reply belongs that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Nobody,
    Pending,
    Late,
}

pub(super) fn is_success(code: u16) -> bool {
    matches!(code, 200..=299)
}

/// Returns true if a reply names an address, or begins TLS, for which nobody has asked.
pub(super) fn is_unasked(pending: Option<Pending>, code: u16) -> bool {
    match code {
        227..=229 => !matches!(pending, Some(Pending::Passive { .. })),
        234 => pending != Some(Pending::Auth),
        _ => false,
    }
}

/// Returns true if a line of an answer to PASV or EPSV with this code may name the server's address,
/// so that it must not be passed on.
pub(super) fn names_address(code: u16, line: &[u8]) -> bool {
    is_success(code) || parse_code(line).is_some_and(|(own, _)| matches!(own, 227..=229))
}

/// Reads the port in a line of the answer to PASV or EPSV, as that which was sent has it.
pub(super) fn read_address(sent: Verb, line: &[u8]) -> Option<u16> {
    let text = match parse_code(line) {
        Some(_) => line.get(4..).unwrap_or_default(),
        None => line,
    };
    match sent {
        Verb::Pasv => read_pasv_reply(text),
        _ => read_epsv_reply(text),
    }
}
