//! Connection ids in headers of QUIC packets, as far as they are the same in all versions (RFC 8999). Nothing
//! else of a packet is read: the rest is encrypted.

/// Length of the longest connection id of QUIC version 1, in bytes. Longer ids of other versions are not
/// told apart.
pub const MAX_ID: usize = 20;

/// Length of the shortest connection id that tells connections apart: shorter ids are the same by chance.
pub const MIN_ID: usize = 4;

/// Header of the first packet in a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header<'a> {
    /// Long header, as packets have until the connection is established.
    Long {
        /// Version of QUIC; zero in a Version Negotiation packet.
        version: u32,
        /// Connection id that the receiver has chosen, or the client for the server's first packets.
        destination: &'a [u8],
        /// Connection id that the sender has chosen.
        source: &'a [u8],
    },
    /// Short header. Only the receiver knows the length of its connection id.
    Short {
        /// Bytes from the connection id on.
        rest: &'a [u8],
    },
}

impl<'a> Header<'a> {
    /// Reads the header of the first packet in a datagram; `None` if the datagram is too short for it.
    pub fn read(datagram: &'a [u8]) -> Option<Self> {
        let (first, rest) = datagram.split_first()?;
        if first & 0x80 == 0 {
            return Some(Header::Short { rest });
        }
        let (version, rest) = rest.split_first_chunk()?;
        let (destination, rest) = read_id(rest)?;
        let (source, _) = read_id(rest)?;
        Some(Header::Long {
            version: u32::from_be_bytes(*version),
            destination,
            source,
        })
    }

    /// First bytes of the destination's connection id, by which two ids are told apart in most cases. An id
    /// that is shorter has none.
    pub fn destination_prefix(&self) -> Option<[u8; MIN_ID]> {
        let bytes = match self {
            Header::Long { destination, .. } => destination,
            Header::Short { rest } => rest,
        };
        bytes.first_chunk().copied()
    }
}

/// Reads a length of one byte and an id of this length, and returns the bytes behind.
fn read_id(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*len))
}

/// A connection id that tells connections apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    len: u8,
    /// The id, and zeros behind it.
    bytes: [u8; MAX_ID],
}

impl ConnectionId {
    /// Returns an id of [`MIN_ID`] to [`MAX_ID`] bytes; `None` for another length.
    pub fn new(id: &[u8]) -> Option<Self> {
        if id.len() < MIN_ID {
            return None;
        }
        let mut bytes = [0; MAX_ID];
        bytes.get_mut(..id.len())?.copy_from_slice(id);
        Some(ConnectionId {
            len: u8::try_from(id.len()).ok()?,
            bytes,
        })
    }

    /// Length of the id in bytes.
    pub fn id_len(&self) -> usize {
        usize::from(self.len)
    }

    /// Returns the bytes of the id.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.id_len()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_header_has_both_ids() {
        let datagram = [0xc3, 0, 0, 0, 1, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9];
        let header = Header::read(&datagram).unwrap();
        assert_eq!(
            header,
            Header::Long {
                version: 1,
                destination: &[1, 2, 3],
                source: &[5, 6, 7, 8],
            }
        );
        assert_eq!(header.destination_prefix(), None);
    }

    #[test]
    fn a_short_header_leaves_the_length_open() {
        let header = Header::read(&[0x43, 1, 2, 3, 4, 5]).unwrap();
        assert_eq!(
            header,
            Header::Short {
                rest: &[1, 2, 3, 4, 5]
            }
        );
        assert_eq!(header.destination_prefix(), Some([1, 2, 3, 4]));
        assert_eq!(Header::read(&[0x43]).unwrap().destination_prefix(), None);
    }

    #[test]
    fn headers_that_are_cut_off_are_none() {
        let whole = [0x80, 1, 2, 3, 4, 2, 8, 9, 1, 7];
        for len in 0..whole.len() {
            assert_eq!(Header::read(&whole[..len]), None, "{len} bytes");
        }
        assert!(Header::read(&whole).is_some());
        // A length beyond the end.
        assert_eq!(Header::read(&[0xff, 0, 0, 0, 0, 255, 1, 2, 3]), None);
    }

    #[test]
    fn ids_differ_by_length_and_have_bounds() {
        assert_eq!(ConnectionId::new(&[1, 2, 3]), None);
        assert_eq!(ConnectionId::new(&[1; MAX_ID + 1]), None);
        assert_eq!(ConnectionId::new(&[1; 255]), None);
        let (short, long) = (ConnectionId::new(&[0; 4]), ConnectionId::new(&[0; 5]));
        assert_ne!(short, long);
        assert_eq!(long.unwrap().id_len(), 5);
        assert_eq!(ConnectionId::new(&[1; MAX_ID]).unwrap().id_len(), MAX_ID);
    }
}
