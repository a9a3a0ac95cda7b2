//! The tables of HPACK (RFC 7541, section 2.3): the static one, and the dynamic one of either side.

use std::collections::VecDeque;

/// Size of an entry beside its bytes (RFC 7541, section 4.1).
pub(crate) const ENTRY_BYTES: usize = 32;

/// Most bytes of a dynamic table here, in both directions: the default of the standard.
pub(crate) const MOST_BYTES: usize = 4096;

/// Bytes of evicted entries, after which the remaining entries are moved together.
const MOST_GONE: usize = 4096;

/// The static table (RFC 7541, appendix A). The first entry has the index 1.
pub(crate) const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// First index of a name in the static table.
pub(crate) fn find_static_name(name: &[u8]) -> Option<usize> {
    // By length first: few names have the same one.
    let index = match name.len() {
        3 => match name {
            b"age" => 21,
            b"via" => 60,
            _ => 0,
        },
        4 => match name {
            b"date" => 33,
            b"etag" => 34,
            b"from" => 37,
            b"host" => 38,
            b"link" => 45,
            b"vary" => 59,
            _ => 0,
        },
        5 => match name {
            b":path" => 4,
            b"allow" => 22,
            b"range" => 50,
            _ => 0,
        },
        6 => match name {
            b"accept" => 19,
            b"cookie" => 32,
            b"expect" => 35,
            b"server" => 54,
            _ => 0,
        },
        7 => match name {
            b":method" => 2,
            b":scheme" => 6,
            b":status" => 8,
            b"expires" => 36,
            b"referer" => 51,
            b"refresh" => 52,
            _ => 0,
        },
        8 => match name {
            b"if-match" => 39,
            b"if-range" => 42,
            b"location" => 46,
            _ => 0,
        },
        10 => match name {
            b":authority" => 1,
            b"set-cookie" => 55,
            b"user-agent" => 58,
            _ => 0,
        },
        11 => match name {
            b"retry-after" => 53,
            _ => 0,
        },
        12 => match name {
            b"content-type" => 31,
            b"max-forwards" => 47,
            _ => 0,
        },
        13 => match name {
            b"accept-ranges" => 18,
            b"authorization" => 23,
            b"cache-control" => 24,
            b"content-range" => 30,
            b"if-none-match" => 41,
            b"last-modified" => 44,
            _ => 0,
        },
        14 => match name {
            b"accept-charset" => 15,
            b"content-length" => 28,
            _ => 0,
        },
        15 => match name {
            b"accept-encoding" => 16,
            b"accept-language" => 17,
            _ => 0,
        },
        16 => match name {
            b"content-encoding" => 26,
            b"content-language" => 27,
            b"content-location" => 29,
            b"www-authenticate" => 61,
            _ => 0,
        },
        17 => match name {
            b"if-modified-since" => 40,
            b"transfer-encoding" => 57,
            _ => 0,
        },
        18 => match name {
            b"proxy-authenticate" => 48,
            _ => 0,
        },
        19 => match name {
            b"content-disposition" => 25,
            b"if-unmodified-since" => 43,
            b"proxy-authorization" => 49,
            _ => 0,
        },
        25 => match name {
            b"strict-transport-security" => 56,
            _ => 0,
        },
        27 => match name {
            b"access-control-allow-origin" => 20,
            _ => 0,
        },
        _ => 0,
    };
    (index > 0).then_some(index)
}

/// Index of a field in the static table, whose name is first there at `first`.
pub(crate) fn find_static(first: usize, value: &[u8]) -> Option<usize> {
    let last = match first {
        2 | 4 | 6 => first + 1,
        8 => 14,
        16 => 16,
        _ => return None,
    };
    (first..=last).find(|index| {
        let entry = STATIC.get(*index - 1);
        entry.is_some_and(|(_, known)| known.as_bytes() == value)
    })
}

/// A field in a dynamic table.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Place of its name in the bytes; the value follows.
    start: usize,
    name: usize,
    value: usize,
    /// Hashes of the name, and of both: only an encoder gives them.
    name_hash: u32,
    hash: u32,
}

/// A dynamic table. The bytes of all entries are in one buffer, in the order in which they came.
#[derive(Debug)]
pub(crate) struct Table {
    bytes: Vec<u8>,
    /// The newest one is the first.
    entries: VecDeque<Entry>,
    size: usize,
    most: usize,
}

impl Table {
    /// Makes a table of at most `most` bytes, which are allocated when they are needed.
    pub(crate) fn new(most: usize) -> Self {
        Table {
            bytes: Vec::new(),
            entries: VecDeque::new(),
            size: 0,
            most,
        }
    }

    /// Number of entries.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Size as the standard counts.
    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn max_size(&self) -> usize {
        self.most
    }

    /// Sets the largest size, and evicts what does not fit any more.
    pub(crate) fn set_most(&mut self, most: usize) {
        self.most = most;
        self.evict(0);
    }

    /// Name and value of an entry; 0 is the newest one.
    pub(crate) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let entry = self.entries.get(index)?;
        let name = entry.start..entry.start + entry.name;
        let value = name.end..name.end + entry.value;
        Some((self.bytes.get(name)?, self.bytes.get(value)?))
    }

    /// Index of an entry whose name is `name`, with this hash.
    pub(crate) fn find_name(&self, hash: u32, name: &[u8]) -> Option<usize> {
        let mut entries = self.entries.iter().enumerate();
        entries.find_map(|(index, entry)| {
            let same = entry.name_hash == hash && self.get(index)?.0 == name;
            same.then_some(index)
        })
    }

    /// Index of an entry with this name and value, and their hash.
    pub(crate) fn find(&self, hash: u32, name: &[u8], value: &[u8]) -> Option<usize> {
        let mut entries = self.entries.iter().enumerate();
        entries.find_map(|(index, entry)| {
            let same = entry.hash == hash && self.get(index)? == (name, value);
            same.then_some(index)
        })
    }

    /// Adds a field, and evicts as many as need be. A field larger than the table empties the table.
    pub(crate) fn insert(&mut self, name: &[u8], value: &[u8], hashes: (u32, u32)) {
        let needed = name.len() + value.len() + ENTRY_BYTES;
        self.evict(needed);
        if needed > self.most {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.size += needed;
        self.entries.push_front(Entry {
            start,
            name: name.len(),
            value: value.len(),
            name_hash: hashes.0,
            hash: hashes.1,
        });
    }

    /// Evicts the oldest entries until there is room for `needed` bytes.
    fn evict(&mut self, needed: usize) {
        while self.size + needed > self.most
            && let Some(entry) = self.entries.pop_back()
        {
            self.size -= entry.name + entry.value + ENTRY_BYTES;
        }
        let gone = self
            .entries
            .back()
            .map_or(self.bytes.len(), |oldest| oldest.start);
        if self.entries.is_empty() {
            self.bytes.clear();
        } else if gone >= MOST_GONE {
            self.bytes.drain(..gone);
            for entry in &mut self.entries {
                entry.start -= gone;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_where_the_static_table_has_them() {
        for (at, (name, value)) in STATIC.iter().enumerate() {
            let first = find_static_name(name.as_bytes()).unwrap();
            assert_eq!(STATIC[first - 1].0, *name);
            assert!(at == 0 || STATIC[at - 1].0 == *name || first == at + 1);
            if !value.is_empty() {
                assert_eq!(find_static(first, value.as_bytes()), Some(at + 1));
            }
        }
        assert_eq!(find_static_name(b"x"), None);
        assert_eq!(find_static(8, b"201"), None);
    }

    #[test]
    fn the_oldest_entries_make_room_however_often() {
        let mut table = Table::new(200);
        for round in 0..5000_u32 {
            let value = format!("{round:010}");
            table.insert(b"name", value.as_bytes(), (0, round));
            assert!(table.size() <= 200 && table.len() <= 4);
            for back in 0..table.len() {
                let expected = format!("{:010}", round - back as u32);
                assert_eq!(table.get(back), Some((&b"name"[..], expected.as_bytes())));
            }
            assert!(table.bytes.len() <= MOST_GONE + 200);
        }
        table.set_most(60);
        assert_eq!(table.len(), 1);
        table.insert(b"name", &[b'x'; 100], (0, 0));
        assert_eq!((table.len(), table.size()), (0, 0), "one that is too large");
    }
}
