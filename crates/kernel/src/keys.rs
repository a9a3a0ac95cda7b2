//! The file of keys that balancers and back-ends share.

use std::path::Path;

use crate::query::{BadKey, Key};

/// Most keys in a file: while they are changed there are two, and each balancer may have
/// one of its own.
pub const MAX_KEYS: usize = 16;

/// Longest file, in bytes.
const MAX_LENGTH: u64 = 4096;

/// Why a file gives no keys.
#[derive(Debug, thiserror::Error)]
#[error("the key file {path} {why}")]
pub struct KeyFileError {
    path: String,
    why: Why,
}

#[derive(Debug, thiserror::Error)]
enum Why {
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    #[error("is not a regular file")]
    NoFile,
    #[error("can be read by everybody: chmod o= it")]
    Permissions,
    #[error("is longer than {MAX_LENGTH} bytes")]
    TooLong,
    #[error("is not text")]
    NoText,
    #[error("has no key: write a line NUMBER:HEX, as from echo \"1:$(openssl rand -hex 16)\"")]
    None,
    #[error("has more than {MAX_KEYS} keys: remove those that nobody uses")]
    TooMany,
    #[error("has two keys with the number {0}: give one of them another")]
    SameNumber(u16),
    #[error("is wrong in line {0}: {1}")]
    Line(usize, BadKey),
}

/// Reads the keys in the file at `path`: a line `NUMBER:HEX` or `HEX` for each, as
/// [`Key::parse`] has it; empty lines, and those that begin with `#`, are left out. There
/// is at least one, and no two have the same number. A reader asks with the first; a
/// responder takes all of them.
///
/// # Errors
///
/// It is no such file, or others than its owner and group may read it.
pub fn load(path: &Path) -> Result<Vec<Key>, KeyFileError> {
    let keys = read(path).and_then(|text| parse(&text));
    keys.map_err(|why| KeyFileError {
        path: path.display().to_string(),
        why,
    })
}

fn read(path: &Path) -> Result<String, Why> {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;
    // A FIFO would block for ever.
    if !std::fs::metadata(path)?.is_file() {
        return Err(Why::NoFile);
    }
    let file = std::fs::File::open(path)?;
    if file.metadata()?.permissions().mode() & 0o007 != 0 {
        return Err(Why::Permissions);
    }
    let mut bytes = Vec::new();
    file.take(MAX_LENGTH + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_LENGTH {
        return Err(Why::TooLong);
    }
    String::from_utf8(bytes).map_err(|_| Why::NoText)
}

fn parse(text: &str) -> Result<Vec<Key>, Why> {
    let mut keys: Vec<Key> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let key = Key::parse(line).map_err(|error| Why::Line(index + 1, error))?;
        if keys.iter().any(|other| other.number == key.number) {
            return Err(Why::SameNumber(key.number));
        }
        keys.push(key);
    }
    match keys.len() {
        0 => Err(Why::None),
        1..=MAX_KEYS => Ok(keys),
        _ => Err(Why::TooMany),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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

    #[test]
    fn a_file_that_all_may_read_holds_no_secret() {
        let name = format!("evenkeel-keys-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, SECRET).unwrap();
        let mode = |mode| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, permissions).unwrap();
            load(&path)
        };
        let open = mode(0o644).unwrap_err().to_string();
        assert!(open.contains("chmod"), "{open}");
        assert_eq!(mode(0o640).unwrap().len(), 1);
        std::fs::remove_file(&path).unwrap();
        assert!(
            load(&path)
                .unwrap_err()
                .to_string()
                .contains("cannot be read")
        );
        let folder = load(&std::env::temp_dir()).unwrap_err().to_string();
        assert!(folder.contains("not a regular file"), "{folder}");
    }
}
