//! Counts of members, as the program has them.

use super::layout::Reader;
use super::requests::RequestCounts;

/// Counts of a member: `struct evk_counts`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections now.
    pub in_flight: i64,
    /// Time of the member's next turn.
    pub next_turn: u64,
    /// Connections that the member was chosen for.
    pub picks: u64,
    /// Connections that the member has accepted, and the sum of the times from SYN to SYN-ACK in nanoseconds.
    pub handshakes: (u64, u64),
    /// Connections with a first byte of the member, and the sum of the times from the SYN on in nanoseconds.
    pub answers: (u64, u64),
    /// Connections that the member has not accepted.
    pub refused: u64,
    /// Connections that the member has reset.
    pub resets: u64,
    /// Connections that have ended otherwise.
    pub closed: u64,
    /// Bytes from clients, and to clients, of connections that have ended.
    pub bytes: (u64, u64),
    /// Requests within connections.
    pub requests: RequestCounts,
}

impl Counts {
    pub(super) fn read(value: &[u8]) -> Self {
        let mut bytes = Reader(value);
        Counts {
            in_flight: bytes.u64().cast_signed(),
            next_turn: bytes.u64(),
            picks: bytes.u64(),
            handshakes: (bytes.u64(), bytes.u64()),
            answers: (bytes.u64(), bytes.u64()),
            refused: bytes.u64(),
            resets: bytes.u64(),
            closed: bytes.u64(),
            bytes: (bytes.u64(), bytes.u64()),
            requests: RequestCounts::read(&mut bytes),
        }
    }

    #[cfg(test)]
    pub(super) fn write(&self) -> Vec<u8> {
        let words = [
            self.in_flight.cast_unsigned(),
            self.next_turn,
            self.picks,
            self.handshakes.0,
            self.handshakes.1,
            self.answers.0,
            self.answers.1,
            self.refused,
            self.resets,
            self.closed,
            self.bytes.0,
            self.bytes.1,
        ];
        let words = words.into_iter().chain(self.requests.list_words());
        words.flat_map(u64::to_ne_bytes).collect()
    }
}
