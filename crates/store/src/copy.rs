//! The last good copy: the revision that was last in effect, on disk. A balancer starts with it while the store does
//! not answer.

use std::io;
use std::path::Path;

use evenkeel_config::read_secret;
use evenkeel_net::replacement::Replacement;
use serde::{Deserialize, Serialize};

use crate::model::{FORMAT, MAX_DOCUMENT, Mark, Revision};

/// Content of the file of the last good copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    /// Version of the format ([`FORMAT`]).
    pub format: u32,
    /// The store's prefix from which the copy was made.
    pub prefix: String,
    /// The head that the balancer went by.
    pub mark: Option<Mark>,
    /// The revision that was in effect.
    pub revision: Revision,
}

/// Reads the copy; `None` if the file does not exist or belongs to another prefix.
///
/// # Errors
///
/// The file cannot be read, or is no copy.
pub fn load_copy(path: &Path, prefix: &str) -> Result<Option<Copy>, String> {
    if !path.try_exists().map_err(|error| error.to_string())? {
        return Ok(None);
    }
    let limit = u64::try_from(MAX_DOCUMENT).unwrap_or(u64::MAX);
    let text = read_secret(path, limit)?;
    let copy = read(&text)?;
    Ok((copy.prefix == prefix).then_some(copy))
}

/// Parses the text of a copy's file.
///
/// # Errors
///
/// The text is no copy, or has a later format.
pub fn read(text: &str) -> Result<Copy, String> {
    let copy: Copy = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match copy.format <= FORMAT {
        true => Ok(copy),
        false => Err(format!(
            "a later version of Evenkeel has written the copy (format {})",
            copy.format
        )),
    }
}

/// Writes the copy in one step. Only the owner of a new file may read it.
///
/// # Errors
///
/// The file cannot be written.
pub fn save(path: &Path, copy: &Copy) -> io::Result<()> {
    let text = serde_json::to_string(copy)?;
    Replacement::write_or_create(path, &text)?.commit()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_copy_is_read_as_it_was_written_by_those_of_the_same_prefix() {
        let folder = std::env::temp_dir().join(format!("evenkeel-copy-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("copy");
        assert_eq!(load_copy(&path, "/a/"), Ok(None));
        let copy = Copy {
            format: FORMAT,
            prefix: "/a/".into(),
            mark: Some(Mark {
                change: 3,
                tag: "t".into(),
                past: vec!["s".into()],
            }),
            revision: Revision {
                format: FORMAT,
                number: 2,
                parent: 1,
                who: "anna".into(),
                at: 7,
                message: "why".into(),
                text: "# a text\n".into(),
            },
        };
        save(&path, &copy).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(load_copy(&path, "/a/"), Ok(Some(copy.clone())));
        assert_eq!(load_copy(&path, "/b/"), Ok(None));
        save(&path, &copy).unwrap();
        fs::write(&path, "{\"format\": 1").unwrap();
        assert!(load_copy(&path, "/a/").is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(load_copy(&path, "/a/").unwrap_err().contains("chmod"));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_later_version_is_not_understood() {
        let text = r#"{"format": 9, "prefix": "/", "mark": null, "revision": {"format": 1, "number": 1, "parent": 0, "who": "", "at": 0, "message": "", "text": ""}}"#;
        assert!(read(text).unwrap_err().contains("later version"));
        assert!(read(&text.replace('9', "1")).is_ok());
    }
}
