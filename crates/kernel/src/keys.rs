//! The file of keys that balancers and back-ends share.

use crate::query::{BadKey, Key};

/// Most keys in a file: while they are changed there are two, and each balancer may have
/// one of its own.
pub const MAX_KEYS: usize = 16;

/// Error in a text with keys.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// No key at all.
    #[error(
        "the file has no key: write a line NUMBER:HEX, as from echo \"1:$(openssl rand -hex 16)\""
    )]
    None,
    /// More than [`MAX_KEYS`].
    #[error("there are more than {MAX_KEYS} keys: remove those that are no longer in use")]
    TooMany,
    /// Two keys have one number.
    #[error("two keys have the number {0}: give one of the keys another number")]
    SameNumber(u16),
    /// A line, from 1, is no key.
    #[error("line {0} is wrong: {1}")]
    Line(usize, BadKey),
}

/// Reads the text of a key file: a line `NUMBER:HEX` or `HEX` for each key, as [`Key::parse`]
/// has it; empty lines, and those that begin with `#`, are left out. There is at least one,
/// and no two have the same number. A reader asks with the first; a responder takes all of
/// them.
///
/// # Errors
///
/// The text is no such file's.
pub fn parse(text: &str) -> Result<Vec<Key>, KeysError> {
    let mut keys: Vec<Key> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let key = Key::parse(line).map_err(|error| KeysError::Line(index + 1, error))?;
        if keys.iter().any(|other| other.number == key.number) {
            return Err(KeysError::SameNumber(key.number));
        }
        keys.push(key);
    }
    match keys.len() {
        0 => Err(KeysError::None),
        1..=MAX_KEYS => Ok(keys),
        _ => Err(KeysError::TooMany),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "000102030405060708090a0b0c0d0e0f";

    #[test]
    fn keys_stand_on_a_line_each() {
        let text = format!("# old\n 7:{SECRET}\n\n{SECRET}\n");
        let keys = parse(&text).unwrap();
        let numbers: Vec<u16> = keys.iter().map(|key| key.number).collect();
        assert_eq!(numbers, [7, 0]);
        assert_eq!(keys[0].secret(), keys[1].secret());
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = |text: &str| parse(text).unwrap_err().to_string();
        assert!(error("# none\n").contains("openssl rand"));
        assert!(error(&format!("{SECRET}\n1:2")).contains("line 2"));
        assert!(error(&format!("3:{SECRET}\n3:{SECRET}")).contains("the number 3"));
        let many = (0..=MAX_KEYS).map(|number| format!("{number}:{SECRET}\n"));
        assert!(error(&many.collect::<String>()).contains("more than 16"));
    }
}
