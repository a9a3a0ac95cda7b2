//! Fields of a message, as lines in one buffer.

/// A field: places in the text.
#[derive(Clone, Copy, Debug)]
struct Line {
    start: u32,
    name: u32,
    value: u32,
    /// True if nobody may put the field in a table of HPACK (RFC 7541, section 7.1.3).
    is_sensitive: bool,
}

/// Memory that a list keeps for other fields, in bytes.
const KEPT_BYTES: usize = 4096;

/// Bytes of a line beside its name and its value.
const LINE_BYTES: usize = ": \r\n".len();

/// Fields of a message, in order. Names are tokens in lower case, and values have no characters that a value cannot have: the
/// text is one that HTTP/1.1 has between the first line of a head and the empty one.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    text: Vec<u8>,
    lines: Vec<Line>,
}

impl Fields {
    /// Makes an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// All fields as HTTP/1.1 writes them: `name: value` with CR LF after each.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.marked().map(|(name, value, _)| (name, value))
    }

    /// Names and values, in order, and whether nobody may put the field in a table of HPACK, as its sender says
    /// (RFC 7541, section 7.1.3).
    pub fn marked(&self) -> impl Iterator<Item = (&str, &[u8], bool)> {
        self.lines.iter().filter_map(|line| {
            let (start, name) = (line.start as usize, line.name as usize);
            let name = self.text.get(start..start + name)?;
            let value = start + name.len() + ": ".len();
            let value = self.text.get(value..value + line.value as usize)?;
            Some((std::str::from_utf8(name).ok()?, value, line.is_sensitive))
        })
    }

    /// Says that nobody may put the field that was added last in a table of HPACK.
    pub fn mark_last_sensitive(&mut self) {
        if let Some(line) = self.lines.last_mut() {
            line.is_sensitive = true;
        }
    }

    /// First value of the field called `name`, which is in lower case.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let mut fields = self.iter();
        fields
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    }

    /// Adds a field, whose name may be in upper case, too. Returns false, and adds nothing, if the field is not allowed
    /// in HTTP/2: its name is no token, or its value has a character that is not allowed, or white space at an end.
    #[must_use]
    pub fn push(&mut self, name: &[u8], value: &[u8]) -> bool {
        let is_name = !name.is_empty() && name.iter().all(|byte| is_token(*byte));
        let can_be = is_name && is_value(value);
        if can_be {
            let start = self.text.len();
            self.push_checked(name, &[value]);
            if let Some(name) = self.text.get_mut(start..start + name.len()) {
                name.make_ascii_lowercase();
            }
        }
        can_be
    }

    /// Adds a field that was checked, whose name is in lower case. The value is in parts.
    pub(crate) fn push_checked(&mut self, name: &[u8], value: &[&[u8]]) {
        let length = value.iter().map(|part| part.len()).sum::<usize>();
        let whole = self.text.len() + name.len() + length + LINE_BYTES;
        // Whoever fills it has limits, which are far below.
        let (Ok(start), true) = (u32::try_from(self.text.len()), whole <= u32::MAX as usize) else {
            return;
        };
        self.text.extend_from_slice(name);
        self.text.extend_from_slice(b": ");
        for part in value {
            self.text.extend_from_slice(part);
        }
        self.text.extend_from_slice(b"\r\n");
        self.lines.push(Line {
            start,
            name: name.len() as u32,
            value: length as u32,
            is_sensitive: false,
        });
    }

    /// Takes the fields called `name` out, in any case.
    pub fn remove(&mut self, name: &str) {
        self.retain(|known| !known.eq_ignore_ascii_case(name));
    }

    /// Takes the fields out whose names `stays` does not want.
    pub fn retain(&mut self, stays: impl Fn(&str) -> bool) {
        if self.iter().all(|(name, _)| stays(name)) {
            return;
        }
        let mut others = Fields::new();
        for (name, value, is_sensitive) in self.marked().filter(|(name, ..)| stays(name)) {
            others.push_checked(name.as_bytes(), &[value]);
            if is_sensitive {
                others.mark_last_sensitive();
            }
        }
        *self = others;
    }

    /// Takes all fields out, and keeps the memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.lines.clear();
    }

    /// True if there is so little memory in it that it may be kept for other fields.
    pub fn is_worth_keeping(&self) -> bool {
        self.text.capacity() <= KEPT_BYTES
    }
}

/// Bytes that a name may have (RFC 9110, section 5.6.2).
static TOKEN: [bool; 256] = make_tokens();

#[allow(clippy::indexing_slicing)] // It runs when this is compiled.
const fn make_tokens() -> [bool; 256] {
    let mut tokens = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        tokens[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let others = b"!#$%&'*+-.^_`|~";
    let mut at = 0;
    while at < others.len() {
        tokens[others[at] as usize] = true;
        at += 1;
    }
    tokens
}

/// True if a name may have the byte.
pub(crate) fn is_token(byte: u8) -> bool {
    TOKEN.get(usize::from(byte)).copied().unwrap_or(false)
}

/// True if a field may have the value (RFC 9113, section 8.2.1; RFC 9110, section 5.5).
pub(crate) fn is_value(value: &[u8]) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let is_control = |byte: u8| (byte < b' ') & (byte != b'\t') | (byte == 0x7f);
    // All of it is looked at, many bytes at once.
    let has_control = value
        .iter()
        .fold(false, |has, &byte| has | is_control(byte));
    !has_control && !is_space(value.first()) && !is_space(value.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_lines_in_lower_case() {
        let mut fields = Fields::new();
        assert!(fields.push(b"Server", b"own") && fields.push(b"x", b""));
        assert!(fields.push(b"x-y", b"\xe9 \t z"));
        for (name, value) in [
            (&b""[..], &b"x"[..]),
            (b"a b", b""),
            (b":status", b"200"),
            (b"\xe9", b""),
            (b"a", b"x\r\ny: z"),
            (b"a", b"\0"),
            (b"a", b" x"),
            (b"a", b"x\t"),
            (b"a", b"\x7f"),
        ] {
            assert!(!fields.push(name, value), "{name:?} {value:?}");
        }
        assert_eq!(fields.text(), b"server: own\r\nx: \r\nx-y: \xe9 \t z\r\n");
        let all: Vec<_> = fields.iter().collect();
        let wanted = [("server", &b"own"[..]), ("x", b""), ("x-y", b"\xe9 \t z")];
        assert_eq!(all, wanted);
        assert_eq!(fields.get("x-y"), Some(&b"\xe9 \t z"[..]));
        fields.mark_last_sensitive();
        fields.remove("X");
        assert_eq!(fields.text(), b"server: own\r\nx-y: \xe9 \t z\r\n");
        let marks: Vec<_> = fields.marked().map(|(_, _, mark)| mark).collect();
        assert_eq!(marks, [false, true]);
    }
}
