//! Text of a configuration, with the owner of each line.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use evenkeel_config::{GeneratedPart, GeneratedParts};

use super::objects::{Kind, ObjectName};

/// Object, and part of the object, that lines of the text come from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// Listener of a gateway.
    Listener(ObjectName, String),
    /// Listener of a ListenerSet or XListenerSet.
    SetListener(Kind, ObjectName, String),
    /// Rule of a route, by its number.
    Rule(Kind, ObjectName, usize),
    /// Target of routes, by the name of its group.
    Group(String),
    /// EvenkeelPolicy of groups.
    Policy(ObjectName),
    /// Keys of a gateway's EvenkeelPolicy in the rule with this name only.
    PolicyAtRule(ObjectName, String),
}

/// Kind of a part of the text.
#[derive(Debug)]
enum PartKind {
    /// Lines of rules without their routes.
    Rules,
    /// Route of the rule with this name.
    Route(Arc<str>),
    /// Group of members.
    Group,
}

/// First line of a part of the text, and the offset of the line. A part ends where the next one begins.
#[derive(Debug)]
struct PartStart {
    kind: PartKind,
    line: usize,
    offset: usize,
}

/// Text that grows line by line.
#[derive(Debug, Default)]
pub(crate) struct Text {
    text: String,
    lines: usize,
    /// First lines of owners, in order. An owner's lines end where the next owner's begin.
    owners: Vec<(usize, Arc<Owner>)>,
    /// Parts in order. Lines before the first one are lines of rules.
    parts: Vec<PartStart>,
}

/// Length of a text, and numbers of its parts and owners.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TextSize {
    bytes: usize,
    parts: usize,
    owners: usize,
}

impl TextSize {
    /// Adds an eighth, so that the next text fits.
    fn with_spare(of: usize) -> usize {
        of.saturating_add(of / 8)
    }
}

impl Text {
    /// Returns an empty text with room for one like that of this size.
    pub(crate) fn with_size(size: TextSize) -> Self {
        Text {
            text: String::with_capacity(TextSize::with_spare(size.bytes)),
            lines: 0,
            owners: Vec::with_capacity(TextSize::with_spare(size.owners)),
            parts: Vec::with_capacity(TextSize::with_spare(size.parts)),
        }
    }

    /// Returns the size of the text.
    pub(crate) fn size(&self) -> TextSize {
        TextSize {
            bytes: self.text.len(),
            parts: self.parts.len(),
            owners: self.owners.len(),
        }
    }

    /// Begins the lines of an owner.
    pub(crate) fn begin(&mut self, owner: impl Into<Arc<Owner>>) {
        self.owners.push((self.lines + 1, owner.into()));
    }

    /// Begins the lines of a rule, with the first owner of these lines.
    pub(crate) fn begin_rule(&mut self, owner: Owner) {
        self.begin_part(PartKind::Rules, owner);
    }

    /// Begins the lines of a route of the rule with this name.
    pub(crate) fn begin_route(&mut self, rule: &Arc<str>, owner: impl Into<Arc<Owner>>) {
        self.begin_part(PartKind::Route(Arc::clone(rule)), owner);
    }

    /// Begins the lines of a group.
    pub(crate) fn begin_group(&mut self, owner: Owner) {
        self.begin_part(PartKind::Group, owner);
    }

    fn begin_part(&mut self, kind: PartKind, owner: impl Into<Arc<Owner>>) {
        self.parts.push(PartStart {
            kind,
            line: self.lines + 1,
            offset: self.text.len(),
        });
        self.begin(owner);
    }

    /// Returns the parts of the text.
    pub(crate) fn parts(&self) -> GeneratedParts<'_> {
        let mut parts = GeneratedParts::default();
        let first = self.parts.first().map_or(self.text.len(), |of| of.offset);
        parts
            .rules
            .push_str(self.text.get(..first).unwrap_or_default());
        let ends = self.parts.iter().skip(1).map(|of| of.offset);
        let ends = ends.chain([self.text.len()]);
        for (start, end) in self.parts.iter().zip(ends) {
            let text = self.text.get(start.offset..end).unwrap_or_default();
            let line = start.line;
            let part = GeneratedPart { line, text };
            match &start.kind {
                PartKind::Rules => parts.rules.push_str(text),
                PartKind::Group => parts.groups.push(part),
                PartKind::Route(rule) => match parts.routes.get_mut(&**rule) {
                    Some(routes) => routes.push(part),
                    None => drop(parts.routes.insert((**rule).to_owned(), vec![part])),
                },
            }
        }
        parts
    }

    /// Writes a line.
    pub(crate) fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
        self.lines += 1;
    }

    /// Writes lines, each with its end.
    pub(crate) fn lines(&mut self, lines: &str) {
        self.text.push_str(lines);
        self.lines += lines.bytes().filter(|byte| *byte == b'\n').count();
    }

    /// Returns the owner of a line, counted from 1.
    pub(crate) fn owner_of(&self, line: usize) -> Option<&Owner> {
        let after = self.owners.partition_point(|(first, _)| *first <= line);
        let (_, owner) = self.owners.get(after.checked_sub(1)?)?;
        Some(owner)
    }

    /// Returns the text.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the text.
    pub(crate) fn into_string(self) -> String {
        self.text
    }
}

/// Writes a text as a basic string of TOML.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// Writes a list of texts.
pub(crate) fn quote_list<'t>(texts: impl IntoIterator<Item = &'t str>) -> String {
    let quoted: Vec<String> = texts.into_iter().map(quote).collect();
    format!("[{}]", quoted.join(", "))
}

/// Writes a table of texts.
pub(crate) fn quote_table<'t>(entries: impl IntoIterator<Item = (&'t str, String)>) -> String {
    let entries = entries.into_iter();
    let entries: Vec<String> = entries
        .map(|(key, value)| format!("{} = {value}", quote(key)))
        .collect();
    format!("{{ {} }}", entries.join(", "))
}

/// Returns a name of at most 64 characters for `parts`: their own text if it fits, else the beginning with a hash.
pub(crate) fn short_name(parts: &[&str]) -> String {
    const MOST: usize = 64;
    let name = parts.join(".");
    if name.len() <= MOST && name.is_ascii() {
        return name;
    }
    let hash = hash_of(&name);
    let kept: String = name
        .chars()
        .filter(char::is_ascii)
        .take(MOST - 17)
        .collect();
    format!("{kept}.{hash:016x}")
}

/// Returns a number that stands for a value in names, the same in each process.
pub(crate) fn hash_of(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// True if a text is a host name, perhaps with `*.` in front.
pub(crate) fn is_host(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_label = |label: &str| {
        let is_edge_good = !label.starts_with('-') && !label.ends_with('-');
        is_edge_good && (1..=63).contains(&label.len()) && label.bytes().all(is_inner)
    };
    let name = text.strip_prefix("*.").unwrap_or(text);
    // A name whose last label is a number is meant as an IPv4 address.
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
    text.len() <= 253 && !is_number && name.split('.').all(is_label)
}

/// True if a text is a host name without `*.` in front.
pub(crate) fn is_exact_host(text: &str) -> bool {
    !text.starts_with("*.") && is_host(text)
}

/// Writes a host name as the configuration has it: `*.` stands for any number of labels in the Gateway API, and for
/// one in the configuration.
pub(crate) fn write_host(host: &str) -> String {
    match host.strip_prefix("*.") {
        Some(domain) => format!("**.{domain}"),
        None => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_labels() {
        let long = format!("{}.example", "a".repeat(64));
        for (text, is) in [
            ("a.example", true),
            ("*.example", true),
            ("", false),
            ("*", false),
            ("*.", false),
            ("a..example", false),
            ("*.*.example", false),
            ("a_b", false),
            ("a b", false),
            ("-a.example", false),
            ("a-.example", false),
            ("a-b.1-2.example", true),
            ("a.12", false),
            ("*.12", false),
            ("192.0.2.1", false),
            (&long, false),
        ] {
            assert_eq!(is_host(text), is, "{text}");
        }
        assert!(is_exact_host("a.example") && !is_exact_host("*.example"));
        assert_eq!(write_host("*.example"), "**.example");
        assert_eq!(write_host("a.example"), "a.example");
    }

    #[test]
    fn lines_have_owners() {
        let mut text = Text::default();
        text.line("first");
        let listener = Owner::Listener(ObjectName::new("a", "b"), "http".into());
        text.begin(listener.clone());
        text.line("second");
        text.line("third");
        let group = Owner::Group("g".into());
        text.begin(group.clone());
        text.line("fourth");
        let owners: Vec<_> = (1..=5).map(|line| text.owner_of(line)).collect();
        let (listener, group) = (Some(&listener), Some(&group));
        assert_eq!(owners, [None, listener, listener, group, group]);
        assert_eq!(text.as_str().lines().count(), 4);
        assert!(text.into_string().ends_with("fourth\n"));
    }

    #[test]
    fn texts_cannot_leave_their_quotes() {
        let hostile = "a\"b\\c\nd\u{7f}é${HOME}";
        let quoted = quote(hostile);
        assert_eq!(quoted, r#""a\"b\\c\u000Ad\u007Fé${HOME}""#);
        assert_eq!(quote_list(["x", "y"]), r#"["x", "y"]"#);
        assert_eq!(quote_table([("x.y", "1".into())]), r#"{ "x.y" = 1 }"#);
    }

    #[test]
    fn names_that_are_too_long_are_shortened_without_clashes() {
        assert_eq!(short_name(&["a", "b"]), "a.b");
        let long = "x".repeat(63);
        let (one, two) = (short_name(&[&long, "a"]), short_name(&[&long, "b"]));
        assert!(one != two && one.len() <= 64 && two.len() <= 64);
    }
}
