//! Paths of Ingresses, and their regular expressions.

use super::super::expressions::check_regex;
use super::super::text::quote;

/// Requests that a path selects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PathMatch {
    /// Exactly this path.
    Exact(String),
    /// Prefix without a `/` at the end: the path and all paths below. The empty prefix stands for all paths.
    Prefix(String),
    /// Regular expression of whole paths.
    Regex(String),
}

impl PathMatch {
    /// Returns the line of the condition; `None` for all paths.
    pub(crate) fn condition(&self) -> Option<String> {
        match self {
            PathMatch::Exact(path) => Some(format!("path = [{}]", quote(path))),
            PathMatch::Prefix(prefix) if prefix.is_empty() => None,
            PathMatch::Prefix(prefix) => {
                Some(format!("path = [{}]", quote(&format!("{prefix}/*"))))
            }
            PathMatch::Regex(regex) => Some(format!("path_regex = [{}]", quote(regex))),
        }
    }
}

/// Path of an Ingress, as the configuration can have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadPath {
    /// Requests of the path.
    pub(crate) selected: PathMatch,
    /// Number of the group of a regular expression which has the path behind the prefix.
    pub(crate) rest: Option<u8>,
}

/// Path that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrongPath {
    /// Prefix that has all requests of the path.
    pub(crate) around: PathMatch,
    /// Reason, and what to do.
    pub(crate) message: String,
}

/// True if the configuration can have a byte in a path.
fn is_plain(byte: u8) -> bool {
    byte > b' ' && byte != 0x7f && !b"?#*;%\\".contains(&byte)
}

/// True if the configuration can have a path.
fn is_path(path: &str) -> bool {
    const MAX_SEGMENT: usize = 255;
    let Some(inner) = path.strip_prefix('/') else {
        return false;
    };
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    let is_segment = |of: &str| {
        !matches!(of, "" | "." | "..") && of.len() <= MAX_SEGMENT && of.bytes().all(is_plain)
    };
    path.len() <= 1_024 && (inner.is_empty() || inner.split('/').all(is_segment))
}

/// Returns the longest prefix of whole segments that `text`, the beginning of a path, surely has.
fn prefix_around(text: &str) -> PathMatch {
    let mut kept = match text.rfind('/') {
        Some(end) => text.get(..end).unwrap_or_default(),
        None => "",
    };
    while !kept.is_empty() && (!is_path(kept) || kept.ends_with('/')) {
        kept = match kept.rfind('/') {
            Some(end) => kept.get(..end).unwrap_or_default(),
            None => "",
        };
    }
    PathMatch::Prefix(kept.into())
}

/// Returns a prefix for a path, without a `/` at the end.
fn read_prefix(path: &str) -> Result<PathMatch, WrongPath> {
    let prefix = path.trim_end_matches('/');
    match prefix.is_empty() && path.starts_with('/') || is_path(prefix) {
        true => Ok(PathMatch::Prefix(prefix.into())),
        false => Err(wrong_path(path)),
    }
}

fn wrong_path(path: &str) -> WrongPath {
    let end = path.find(|character: char| !u8::try_from(character).is_ok_and(is_plain));
    let plain = end.and_then(|end| path.get(..end)).unwrap_or(path);
    WrongPath {
        around: prefix_around(plain),
        message: format!(
            "path {path:?} cannot be served; begin with \"/\", and leave out \"//\", \".\" and \"..\" as segments, \"*\" and \";\""
        ),
    }
}

/// Reads a path of this type. `is_regex` is true if paths of the Ingress are regular expressions.
///
/// # Errors
///
/// The configuration cannot have the path.
pub(crate) fn read_path(
    path: Option<&str>,
    path_type: Option<&str>,
    is_regex: bool,
) -> Result<ReadPath, WrongPath> {
    let path = path.filter(|path| !path.is_empty()).unwrap_or("/");
    let plain = |selected| ReadPath {
        selected,
        rest: None,
    };
    match path_type.unwrap_or("ImplementationSpecific") {
        // The configuration takes a `*` at the end for a prefix.
        "Exact" if is_path(path) => Ok(plain(PathMatch::Exact(path.into()))),
        "Exact" => Err(wrong_path(path)),
        _ if is_regex => read_regex(path),
        "Prefix" | "ImplementationSpecific" => read_prefix(path).map(plain),
        other => Err(WrongPath {
            message: format!("pathType {other:?} is not known; use Exact or Prefix"),
            ..wrong_path(path)
        }),
    }
}

/// Ends of regular expressions behind a prefix, with the number of the group that has the rest of the path.
const ENDS: [(&str, Option<u8>); 14] = [
    ("(/|$)(.*)", Some(2)),
    ("(/|$)(.*)$", Some(2)),
    ("/?(.*)", Some(1)),
    ("/?(.*)$", Some(1)),
    ("/(.*)", Some(1)),
    ("/(.*)$", Some(1)),
    ("(/.*)?", Some(1)),
    ("(/.*)", Some(1)),
    ("(.*)", Some(1)),
    ("/.*", None),
    ("/", None),
    (".*", None),
    ("(/|$)", None),
    ("", None),
];

/// Reads a regular expression: a prefix or a path if it stands for one.
///
/// # Errors
///
/// The text is no regular expression.
fn read_regex(path: &str) -> Result<ReadPath, WrongPath> {
    let text = path.strip_prefix('^').unwrap_or(path);
    let mut literal = String::new();
    let mut rest = text;
    loop {
        let mut characters = rest.chars();
        let before = rest;
        match characters.next() {
            Some('\\') => match characters.next() {
                Some(escaped) if !escaped.is_ascii_alphanumeric() => literal.push(escaped),
                _ => break,
            },
            // A dot between letters, as in the name of a file, is most often meant as such.
            Some('.') if !before.starts_with(".*") && !before.starts_with(".+") => {
                literal.push('.')
            }
            Some(character) if !r"()[]{}*+?|^$.".contains(character) => literal.push(character),
            _ => break,
        }
        rest = characters.as_str();
    }
    let whole = text.strip_suffix('$').filter(|_| rest == "$").is_some();
    if whole && is_path(&literal) {
        return Ok(ReadPath {
            selected: PathMatch::Exact(literal),
            rest: None,
        });
    }
    // The slash in front of the rest is part of the literal.
    let slashed = literal
        .strip_suffix('/')
        .map(|inner| (inner.to_owned(), format!("/{rest}")));
    let candidates = [slashed, Some((literal.clone(), rest.to_owned()))];
    for (prefix, end) in candidates.into_iter().flatten() {
        let known = ENDS.iter().find(|(known, _)| *known == end);
        let is_prefix = prefix.is_empty() || is_path(&prefix) && !prefix.ends_with('/');
        if let Some((_, group)) = known.filter(|_| is_prefix) {
            return Ok(ReadPath {
                selected: PathMatch::Prefix(prefix),
                rest: *group,
            });
        }
    }
    // The last letter may be optional.
    let mut sure = literal;
    if rest.starts_with(['?', '*', '{']) {
        sure.pop();
    }
    // An alternative may lie outside of any prefix.
    if rest.contains('|') || !sure.starts_with('/') {
        sure.clear();
    }
    // As with nginx, in upper and lower case, and whatever follows.
    let regex = format!("{NO_CASE}{text}).*");
    match check_regex(text).and_then(|()| check_regex(&regex)) {
        Ok(()) => Ok(ReadPath {
            selected: PathMatch::Regex(regex),
            rest: None,
        }),
        Err(error) => Err(WrongPath {
            around: prefix_around(&sure),
            message: format!("path {path:?}: {error}"),
        }),
    }
}

/// Beginning of expressions in upper and lower case.
const NO_CASE: &str = "(?i:";

/// Returns the length of the prefix that all paths of an expression surely have.
pub(crate) fn sure_length(regex: &str) -> usize {
    let text = regex.strip_prefix(NO_CASE).unwrap_or(regex);
    let text = text.strip_prefix('^').unwrap_or(text);
    if text.contains('|') {
        return 0;
    }
    let special = |character: char| r"()[]{}*+?^$.\".contains(character);
    let end = text.find(special).unwrap_or(text.len());
    // The last letter may be optional.
    match text
        .get(end..)
        .unwrap_or_default()
        .starts_with(['?', '*', '{'])
    {
        true => end.saturating_sub(1),
        false => end,
    }
}

/// Change of paths of requests to members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rewrite {
    /// Prefix in place of the path's prefix.
    Prefix(String),
    /// Path in place of the whole path.
    Path(String),
}

impl Rewrite {
    /// Returns the line of the action.
    pub(crate) fn action(&self) -> String {
        match self {
            Rewrite::Prefix(prefix) => format!("rewrite_prefix = {}", quote(prefix)),
            Rewrite::Path(path) => format!("rewrite_path = {}", quote(path)),
        }
    }
}

/// Returns the change that a target means: a constant replaces the whole path, and a target with the rest of the path
/// replaces the prefix.
///
/// # Errors
///
/// The target uses other parts of the path.
pub(crate) fn read_rewrite(target: &str, path: &ReadPath) -> Result<Rewrite, String> {
    let wrong = || {
        format!(
            "rewrite-target {target:?} cannot be served; use a path as \"/shop(/|$)(.*)\" with rewrite-target \"/$2\", or \
             a constant path"
        )
    };
    if is_path(target) && !target.contains('$') {
        return Ok(Rewrite::Path(target.into()));
    }
    let PathMatch::Prefix(_) = &path.selected else {
        return Err(wrong());
    };
    let group = path.rest.ok_or_else(wrong)?;
    let prefix = target
        .strip_suffix(&format!("${group}"))
        .or_else(|| target.strip_suffix(&format!("${{{group}}}")))
        .ok_or_else(wrong)?;
    if prefix.contains(['$', '?', '#']) || !prefix.is_empty() && !prefix.starts_with('/') {
        return Err(wrong());
    }
    let plain = prefix.trim_end_matches('/');
    match plain.is_empty() || is_path(plain) {
        true => Ok(Rewrite::Prefix(
            if plain.is_empty() { "/" } else { plain }.into(),
        )),
        false => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(path: &str) -> PathMatch {
        PathMatch::Prefix(path.into())
    }

    #[test]
    fn paths_have_types() {
        for (path, kind, wanted) in [
            (None, None, prefix("")),
            (Some("/"), Some("Prefix"), prefix("")),
            (Some("/a/"), Some("Prefix"), prefix("/a")),
            (Some("/a/b"), Some("ImplementationSpecific"), prefix("/a/b")),
            (Some("/a"), Some("Exact"), PathMatch::Exact("/a".into())),
            (Some("/a/"), Some("Exact"), PathMatch::Exact("/a/".into())),
        ] {
            let read = read_path(path, kind, false).unwrap();
            assert_eq!((read.selected, read.rest), (wanted, None), "{path:?}");
        }
        for (path, kind, around) in [
            ("/a/b/*", "Exact", "/a/b"),
            ("/a/b;c", "Prefix", "/a"),
            ("/a/../b", "Prefix", "/a"),
            ("a", "Prefix", ""),
            ("/a//b", "Prefix", "/a"),
            ("/a", "Regex", ""),
            ("/é/é?", "Prefix", "/é"),
        ] {
            let wrong = read_path(Some(path), Some(kind), false).unwrap_err();
            assert_eq!(wrong.around, prefix(around), "{path}");
        }
    }

    #[test]
    fn expressions_stand_for_prefixes() {
        for (path, wanted, rest) in [
            ("/shop(/|$)(.*)", "/shop", Some(2)),
            ("/shop/(.*)", "/shop", Some(1)),
            ("/shop/?(.*)", "/shop", Some(1)),
            ("/shop(/.*)?", "/shop", Some(1)),
            ("^/shop/v1\\.0/.*", "/shop/v1.0", None),
            ("/(.*)", "", Some(1)),
            ("/", "", None),
            ("/shop", "/shop", None),
            ("/shop/", "/shop", None),
            ("/.*", "", None),
        ] {
            let read = read_path(Some(path), Some("ImplementationSpecific"), true);
            let read = read.unwrap_or_else(|wrong| panic!("{path}: {wrong:?}"));
            assert_eq!((read.selected, read.rest), (prefix(wanted), rest), "{path}");
        }
        let exact = read_path(Some("/shop$"), None, true).unwrap().selected;
        assert_eq!(exact, PathMatch::Exact("/shop".into()));
        for path in [
            "/shop/[a-z]+",
            "/shop/ab?c",
            "/.*\\.php",
            "/a/b|/c",
            "(.*)\\.php",
        ] {
            let read = read_path(Some(path), None, true).unwrap();
            let regex = PathMatch::Regex(format!("(?i:{path}).*"));
            assert_eq!((read.selected, read.rest), (regex, None), "{path}");
        }
        for (regex, length) in [
            ("(?i:/shop/[a-z]+).*", 6),
            ("(?i:/shop/ab?c).*", 7),
            ("(?i:^/.*\\.php).*", 1),
            ("(?i:/a|/b).*", 0),
            ("", 0),
        ] {
            assert_eq!(sure_length(regex), length, "{regex}");
        }
        for path in [
            "/a/(x)".to_owned() + &"b".repeat(1015),
            "/a/(?x)b # c".into(),
        ] {
            assert!(read_path(Some(&path), None, true).is_err(), "{path}");
        }
        for (path, around) in [
            ("/a/(b", "/a"),
            ("/shop/(?=a)b?", "/shop"),
            ("/a/b|/(c", ""),
            ("\\", ""),
            ("/a/b\\", "/a"),
        ] {
            let wrong = read_path(Some(path), None, true).unwrap_err();
            assert_eq!(wrong.around, prefix(around), "{path}");
        }
    }

    #[test]
    fn targets_replace_prefixes() {
        let read = |path: &str| read_path(Some(path), None, true).unwrap();
        for (path, target, wanted) in [
            ("/shop(/|$)(.*)", "/$2", "/"),
            ("/shop(/|$)(.*)", "/v2/$2", "/v2"),
            ("/shop/(.*)", "/$1", "/"),
            ("/shop(/.*)?", "/v2$1", "/v2"),
            ("/(.*)", "/app/$1", "/app"),
        ] {
            assert_eq!(
                read_rewrite(target, &read(path)),
                Ok(Rewrite::Prefix(wanted.into())),
                "{target}"
            );
        }
        // A constant is the path of all requests.
        for (path, target) in [
            ("/shop", "/"),
            ("/shop/(.*)", "/"),
            ("/shop$", "/a/b/"),
            ("/shop(/|$)(.*)", "/index.html"),
        ] {
            assert_eq!(
                read_rewrite(target, &read(path)),
                Ok(Rewrite::Path(target.into())),
                "{path}"
            );
        }
        for (path, target) in [
            ("/shop", "/?a=b"),
            ("/shop", "/a//b"),
            ("/shop", "a"),
            ("/shop", ""),
            ("/shop", "/$uri"),
            ("/shop(/|$)(.*)", "/$1"),
            ("/shop/(.*)", "/x?a=$1"),
            ("/shop/(.*)", "$host/$1"),
            ("/shop/(.*)", "/../$1"),
            ("/shop$", "/$1"),
        ] {
            assert!(
                read_rewrite(target, &read(path)).is_err(),
                "{path} {target}"
            );
        }
    }
}
