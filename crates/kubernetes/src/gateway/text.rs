//! Text of a configuration in parts, with the owner of each line.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use evenkeel_config::{GeneratedPart, GeneratedRule, GeneratedText};

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
    /// Keys of a gateway's EvenkeelPolicy for one route only.
    PolicyAtRoute(ObjectName, Kind, ObjectName),
}

/// Lines that are written one by one.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    text: String,
    count: usize,
}

impl Lines {
    /// Writes a line.
    pub(crate) fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
        self.count += 1;
    }

    /// Returns the lines, each with its end.
    pub(crate) fn into_string(self) -> String {
        self.text
    }
}

/// Route, or group, that an owner has.
#[derive(Debug)]
pub(crate) struct OwnedPart {
    /// Owner of all lines.
    pub(crate) owner: Owner,
    /// Lines, each with its end.
    pub(crate) lines: String,
}

impl OwnedPart {
    /// Returns a part with these lines.
    pub(crate) fn new(owner: Owner, lines: Lines) -> Arc<Self> {
        let lines = lines.text;
        Arc::new(OwnedPart { owner, lines })
    }
}

impl GeneratedPart for OwnedPart {
    fn text(&self) -> &str {
        &self.lines
    }
}

/// Tables of a rule, and the rule's routes.
#[derive(Debug)]
struct Rule {
    name: String,
    lines: Lines,
    /// First lines of owners among the lines of the rule, in order. An owner's lines end where the next owner's begin.
    owners: Vec<(usize, Arc<Owner>)>,
    routes: Vec<Arc<dyn GeneratedPart>>,
}

/// Origin of a line.
pub(crate) enum LineOrigin<'t> {
    /// Lines of a rule that belong to an owner.
    Owner(&'t Arc<Owner>),
    /// Route, or group.
    Part(&'t dyn GeneratedPart),
}

/// Text of rules with their routes, and of groups.
#[derive(Debug, Default)]
pub(crate) struct Text {
    rules: Vec<Rule>,
    groups: Vec<Arc<dyn GeneratedPart>>,
}

impl Text {
    /// Begins a rule, with the first owner of its lines.
    pub(crate) fn begin_rule(&mut self, name: &str, owner: impl Into<Arc<Owner>>) {
        self.rules.push(Rule {
            name: name.to_owned(),
            lines: Lines::default(),
            owners: vec![(1, owner.into())],
            routes: Vec::new(),
        });
    }

    /// Begins the lines of an owner in the last rule.
    pub(crate) fn begin(&mut self, owner: impl Into<Arc<Owner>>) {
        if let Some(rule) = self.rules.last_mut() {
            rule.owners.push((rule.lines.count + 1, owner.into()));
        }
    }

    /// Writes a line of the last rule.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(rule) = self.rules.last_mut() {
            rule.lines.line(line);
        }
    }

    /// Returns the routes of the last rule.
    pub(crate) fn routes_mut(&mut self) -> Option<&mut Vec<Arc<dyn GeneratedPart>>> {
        self.rules.last_mut().map(|rule| &mut rule.routes)
    }

    /// Returns the groups.
    pub(crate) fn groups_mut(&mut self) -> &mut Vec<Arc<dyn GeneratedPart>> {
        &mut self.groups
    }

    /// Takes the parts out of this text. The owners of its lines stay.
    pub(crate) fn take_parts(&mut self) -> GeneratedText {
        let rules = self.rules.iter_mut().map(|rule| GeneratedRule {
            name: rule.name.as_str().into(),
            text: std::mem::take(&mut rule.lines.text).into(),
            header: format!("[[rule.{}.routes]]\n", quote(&rule.name)).into(),
            routes: std::mem::take(&mut rule.routes).into(),
        });
        let rules = rules.collect();
        GeneratedText::from_parts(rules, std::mem::take(&mut self.groups).into())
    }

    /// Returns the first lines of all origins in `text`, which was taken out of this text, with the origins: an origin's
    /// lines end where the next one's begin. Lines are counted from 1.
    pub(crate) fn list_origins<'t>(&'t self, text: &'t GeneratedText) -> LineOrigins<'t> {
        let (mut all, mut next) = (Vec::new(), 1);
        for (rule, of_rule) in self.rules.iter().zip(text.rules()) {
            let owners = rule.owners.iter();
            all.extend(owners.map(|(first, owner)| (next + first - 1, LineOrigin::Owner(owner))));
            next += rule.lines.count;
            for route in of_rule.routes.iter() {
                all.push((next, LineOrigin::Part(&**route)));
                // The header of the table is a line of the route, too.
                next += 1 + count_lines(route.text());
            }
        }
        for group in text.groups().iter() {
            all.push((next, LineOrigin::Part(&**group)));
            next += count_lines(group.text());
        }
        LineOrigins(all)
    }
}

/// First lines of all origins in a text.
pub(crate) struct LineOrigins<'t>(Vec<(usize, LineOrigin<'t>)>);

impl LineOrigins<'_> {
    /// Returns the origin of a line, counted from 1.
    pub(crate) fn find(&self, line: usize) -> Option<&LineOrigin<'_>> {
        let after = self.0.partition_point(|(first, _)| *first <= line);
        let (_, origin) = self.0.get(after.checked_sub(1)?)?;
        Some(origin)
    }
}

fn count_lines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
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

/// True if a host name, perhaps with `*.` in front, stands for all names that `other` stands for.
pub(crate) fn covers_host(host: &str, other: &str) -> bool {
    match host.strip_prefix("*.") {
        None => host == other,
        Some(domain) => {
            let inside = other.strip_prefix("*.").unwrap_or(other);
            let is_below = |name: &str| {
                { name.strip_suffix(domain) }
                    .is_some_and(|before| before.ends_with('.') && before.len() > 1)
            };
            is_below(inside) || (inside == domain && other.starts_with("*."))
        }
    }
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
    fn hosts_cover_others_at_any_depth() {
        for (host, other, covers) in [
            ("a.example", "a.example", true),
            ("a.example", "b.example", false),
            ("*.example", "a.example", true),
            ("*.example", "a.b.example", true),
            ("*.example", "example", false),
            ("*.example", ".example", false),
            ("*.example", "aexample", false),
            ("*.example", "*.example", true),
            ("*.example", "*.a.example", true),
            ("*.a.example", "*.example", false),
            ("a.example", "*.example", false),
        ] {
            assert_eq!(covers_host(host, other), covers, "{host} {other}");
        }
    }

    /// Part of a text.
    #[derive(Debug)]
    struct Part(&'static str);

    impl GeneratedPart for Part {
        fn text(&self) -> &str {
            self.0
        }
    }

    #[test]
    fn lines_have_owners() {
        let mut text = Text::default();
        let gateway = ObjectName::new("a", "b");
        let listener = |name: &str| Arc::new(Owner::Listener(gateway.clone(), name.into()));
        let (one, two) = (listener("one"), listener("two"));
        text.begin_rule("x", Arc::clone(&one));
        text.line("[rule.x]");
        text.line("second");
        text.begin(Arc::clone(&two));
        text.line("third");
        text.routes_mut()
            .unwrap()
            .push(Arc::new(Part("a = 1\nb = 1\n")));
        text.begin_rule("y", Arc::clone(&two));
        text.line("[rule.y]");
        text.groups_mut()
            .push(Arc::new(Part("[group.g]\nmembers = []\n")));
        let whole = text.take_parts();
        let lines: Vec<&str> = whole.lines().collect();
        assert_eq!(
            lines[3..7],
            ["[[rule.\"x\".routes]]", "a = 1", "b = 1", "[rule.y]"]
        );
        let origins = text.list_origins(&whole);
        let find = |line: usize| match origins.find(line)? {
            LineOrigin::Owner(owner) => Some(format!("{owner:?}")),
            LineOrigin::Part(part) => Some(part.text().to_owned()),
        };
        let (one, two) = (Some(format!("{one:?}")), Some(format!("{two:?}")));
        let route = Some("a = 1\nb = 1\n".to_owned());
        let group = Some("[group.g]\nmembers = []\n".to_owned());
        for (lines, wanted) in [
            (0..1, None),
            (1..3, one),
            (3..4, two.clone()),
            (4..7, route),
            (7..8, two),
            (8..10, group),
        ] {
            for line in lines {
                assert_eq!(find(line), wanted, "{line}");
            }
        }
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
