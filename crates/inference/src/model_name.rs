//! Name of the model that a request asks for.

use crate::scanner::MAX_MODEL;

/// Name of a model, with its escapes decoded: as engines see the name.
#[derive(Clone, Copy, Debug)]
pub struct ModelName {
    bytes: [u8; MAX_MODEL],
    length: usize,
}

impl ModelName {
    /// Decodes a name from the text between the quotation marks of a JSON string; `None` if the text is longer than
    /// [`MAX_MODEL`], or has an escape that JSON does not know.
    pub fn decode(text: &[u8]) -> Option<Self> {
        if text.len() > MAX_MODEL {
            return None;
        }
        let mut name = ModelName {
            bytes: [0; MAX_MODEL],
            length: 0,
        };
        let mut rest = text;
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            if byte != b'\\' {
                name.push(&[byte])?;
                continue;
            }
            let (&escape, after) = rest.split_first()?;
            rest = after;
            let plain = match escape {
                b'"' | b'\\' | b'/' => escape,
                b'b' => 0x08,
                b'f' => 0x0c,
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'u' => {
                    let (character, after) = decode_character(rest)?;
                    rest = after;
                    name.push(character.encode_utf8(&mut [0; 4]).as_bytes())?;
                    continue;
                }
                _ => return None,
            };
            name.push(&[plain])?;
        }
        Some(name)
    }

    /// Bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Appends bytes. An escape is longer than the bytes that it stands for, so there is room.
    fn push(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.length.checked_add(bytes.len())?;
        self.bytes.get_mut(self.length..end)?.copy_from_slice(bytes);
        self.length = end;
        Some(())
    }
}

/// Decodes what follows `\u`: four digits, and for a pair of surrogates a second escape. Returns the character and the
/// bytes behind it.
fn decode_character(text: &[u8]) -> Option<(char, &[u8])> {
    let (first, rest) = read_unit(text)?;
    if let Some(character) = char::from_u32(u32::from(first)) {
        return Some((character, rest));
    }
    let (second, rest) = read_unit(rest.strip_prefix(b"\\u")?)?;
    let mut pair = char::decode_utf16([first, second]);
    let character = pair.next()?.ok()?;
    pair.next().is_none().then_some((character, rest))
}

/// Reads four hexadecimal digits.
fn read_unit(text: &[u8]) -> Option<(u16, &[u8])> {
    let (digits, rest) = text.split_at_checked(4)?;
    let mut unit = 0;
    for &digit in digits {
        unit = unit * 16 + char::from(digit).to_digit(16)?;
    }
    Some((u16::try_from(unit).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &str) -> Option<String> {
        let name = ModelName::decode(text.as_bytes())?;
        Some(String::from_utf8_lossy(name.as_bytes()).into_owned())
    }

    #[test]
    fn names_are_what_engines_see() {
        let same = |text: &str, name: &str| assert_eq!(decode(text).as_deref(), Some(name));
        same("gpt-4o", "gpt-4o");
        same("", "");
        same(r"meta-llama\/Llama-3", "meta-llama/Llama-3");
        same(r#"a\"\\\n\t\r\b\f"#, "a\"\\\n\t\r\u{8}\u{c}");
        same(r"\u0061\u00e4\u20AC\ud83d\ude00.", "aä€😀.");
        same("ä", "ä");
        same(&"m".repeat(MAX_MODEL), &"m".repeat(MAX_MODEL));
    }

    #[test]
    fn escapes_that_json_does_not_know_are_no_name() {
        for text in [
            "\\",
            r"\x",
            r"\u12",
            r"\u12g4",
            r"\ud83d",
            r"\ud83d\u0061",
            r"\ude00",
            r"\ud83dx",
            r"\ud83d\ud83d",
        ] {
            assert_eq!(decode(text), None, "{text}");
        }
        assert_eq!(decode(&"m".repeat(MAX_MODEL + 1)), None);
    }
}
