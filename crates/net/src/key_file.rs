//! Files with secrets: short, and readable for their owner and group only.

use std::error::Error;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use evenkeel_config::kept;

/// Longest file, in bytes.
const MAX_LENGTH: u64 = 4096;

/// A key file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("key file {path}: {why}")]
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
    #[error("everybody may access it: run chmod o= on it")]
    Permissions,
    #[error("is longer than {MAX_LENGTH} bytes")]
    TooLong,
    #[error("is not UTF-8 text")]
    NoText,
    #[error("{0}")]
    Content(Box<dyn Error + Send + Sync>),
}

/// Returns what `parse` makes of the text of the file at `path`; if the file is broken, of its last good text
/// ([`kept`]).
///
/// # Errors
///
/// The file is no regular file of at most 4096 bytes of text, others than its owner and group may access it,
/// or `parse` does not understand it.
pub fn load_parsed<T, E: Error + Send + Sync + 'static>(
    path: &Path,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<T, KeyFileError> {
    let make = |source: &kept::Source| {
        let text = source.read(path, |path| read(path).map(String::into_bytes));
        let parsed = text.and_then(|text| {
            let content = |error| Why::Content(Box::new(error));
            parse(&String::from_utf8_lossy(&text)).map_err(content)
        });
        parsed.map_err(|why| KeyFileError {
            path: path.display().to_string(),
            why,
        })
    };
    kept::load_or_keep(make, KeyFileError::to_string)
}

fn read(path: &Path) -> Result<String, Why> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_everybody_may_read_holds_no_secret() {
        let path = std::env::temp_dir().join(format!("evenkeel-keys-{}", std::process::id()));
        std::fs::write(&path, "17").unwrap();
        let load = |path: &Path| load_parsed(path, str::parse::<u8>);
        let error = |path| load(path).unwrap_err().to_string();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
        mode(0o644).unwrap();
        let open = error(&path);
        assert!(
            open.ends_with("everybody may access it: run chmod o= on it"),
            "{open}"
        );
        mode(0o640).unwrap();
        assert_eq!(load(&path).unwrap(), 17);
        // What was good is kept while the file is not.
        mode(0o644).unwrap();
        assert_eq!(load(&path).unwrap(), 17);
        mode(0o640).unwrap();
        kept::forget([path.as_path()], []);
        std::fs::write(&path, "1:2").unwrap();
        assert!(error(&path).ends_with("invalid digit found in string"));
        std::fs::write(&path, "1".repeat(5000)).unwrap();
        assert!(error(&path).contains("longer than 4096 bytes"));
        std::fs::write(&path, b"\xff").unwrap();
        assert!(error(&path).contains("not UTF-8"));
        std::fs::remove_file(&path).unwrap();
        assert!(error(&path).contains("cannot be read"));
        assert!(error(&std::env::temp_dir()).contains("not a regular file"));
    }
}
