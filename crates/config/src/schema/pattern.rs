//! Files that a path with `*` in its last part means.

use std::path::{Path, PathBuf};

/// Most files that one pattern may mean.
pub(crate) const MAX_FILES: usize = 1_000;

/// A path, whose last part may contain `*`.
#[derive(Clone, Copy, Debug)]
pub struct Pattern<'a> {
    folder: &'a Path,
    name: &'a str,
}

impl<'a> Pattern<'a> {
    /// The pattern in `text`.
    pub fn from_text(text: &'a str) -> Self {
        let (folder, name) = text.rsplit_once('/').unwrap_or((".", text));
        let folder = Path::new(if folder.is_empty() { "/" } else { folder });
        Pattern { folder, name }
    }

    /// Folder of the files.
    pub fn folder(&self) -> &'a Path {
        self.folder
    }

    /// True if the pattern may match several files.
    pub fn is_open(&self) -> bool {
        self.name.contains('*')
    }

    /// True if the pattern matches the file at `path`.
    pub fn matches(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str());
        path.parent() == Some(self.folder) && name.is_some_and(|name| self.matches_name(name))
    }

    /// True if the pattern matches a name: `*` stands for anything, but not for a first dot, as in a shell.
    fn matches_name(&self, name: &str) -> bool {
        let mut parts = self.name.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else {
            return false;
        };
        let Some(last) = parts.next_back() else {
            return rest.is_empty();
        };
        if first.is_empty() && name.starts_with('.') {
            return false;
        }
        for part in parts {
            match rest.find(part) {
                Some(at) => rest = rest.get(at + part.len()..).unwrap_or_default(),
                None => return false,
            }
        }
        rest.ends_with(last)
    }

    /// The files that are meant, in the order of their names. One without `*` is meant whether it
    /// is there or not.
    ///
    /// # Errors
    ///
    /// The folder cannot be read, or there are more than 1,000.
    pub fn paths(&self) -> Result<Vec<PathBuf>, String> {
        if !self.is_open() {
            return Ok(vec![self.folder.join(self.name)]);
        }
        let folder = self.folder.display();
        let unreadable = |error| format!("{folder}: cannot be read: {error}");
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(self.folder).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name();
            if name.to_str().is_some_and(|name| self.matches_name(name)) {
                paths.push(self.folder.join(name));
            }
            if paths.len() > MAX_FILES {
                return Err(format!("{folder}: more than {MAX_FILES} files match"));
            }
        }
        paths.sort_unstable();
        Ok(paths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_as_in_a_shell() {
        for (pattern, name, wanted) in [
            ("*.json", "a.json", true),
            ("*.json", ".json", false),
            ("*.json", ".a.json", false),
            ("*.json", "a.json.tmp", false),
            ("web-*-*.json", "web-1-2.json", true),
            ("web-*-*.json", "web-1.json", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a.json", "a.json", true),
            ("a.json", "ba.json", false),
            ("*", "x", true),
        ] {
            let text = format!("/f/{pattern}");
            let is = Pattern::from_text(&text).matches(&Path::new("/f").join(name));
            assert_eq!(is, wanted, "{pattern} {name}");
        }
        assert!(!Pattern::from_text("/f/*").matches(Path::new("/f/g/x")));
    }
}
