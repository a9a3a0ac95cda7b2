//! Text of a generated configuration, in parts that one text shares with the next.
//!
//! A controller changes a route among thousands, and the other parts stay. So nobody writes, copies or compares the whole
//! text for a change: parts are told apart by their addresses in memory, and joined only for those who read the text.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// Lines that belong together: the keys of a route, without the header of its table, or the table of a group.
pub trait GeneratedPart: Any + fmt::Debug + Send + Sync {
    /// Returns the lines, each with its end.
    fn text(&self) -> &str;
}

/// Parts in the order of the text.
pub type GeneratedParts = Arc<[Arc<dyn GeneratedPart>]>;

/// True if both are the same part in memory, or have the same text.
pub(super) fn is_same_part(one: &Arc<dyn GeneratedPart>, other: &Arc<dyn GeneratedPart>) -> bool {
    let is_same = std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other));
    is_same || one.text() == other.text()
}

/// True if both have the same parts.
pub(super) fn have_same_parts(some: &GeneratedParts, others: &GeneratedParts) -> bool {
    let mut pairs = some.iter().zip(others.iter());
    Arc::ptr_eq(some, others)
        || some.len() == others.len() && pairs.all(|(one, other)| is_same_part(one, other))
}

/// Tables of a rule, and the routes of the rule.
#[derive(Clone, Debug)]
pub struct GeneratedRule {
    /// Name of the rule.
    pub name: Arc<str>,
    /// Tables of the rule without its routes.
    pub text: Arc<str>,
    /// Header of the table of each route, with the end of the line.
    pub header: Arc<str>,
    /// Routes of the rule.
    pub routes: GeneratedParts,
}

impl GeneratedRule {
    fn is_like(&self, other: &GeneratedRule) -> bool {
        self.name == other.name
            && self.text == other.text
            && self.header == other.header
            && have_same_parts(&self.routes, &other.routes)
    }
}

/// Parts of a text.
#[derive(Default)]
struct TextParts {
    /// Rules in the order of the text.
    rules: Vec<GeneratedRule>,
    /// Groups, which stand behind the rules.
    groups: GeneratedParts,
    /// The whole text, once somebody has read it.
    whole: OnceLock<Box<str>>,
}

/// Text of a generated configuration. Copies share all parts; the whole text is put together when it is read.
#[derive(Clone, Default)]
pub struct GeneratedText(Arc<TextParts>);

impl GeneratedText {
    /// Makes a text of its parts.
    pub fn from_parts(rules: Vec<GeneratedRule>, groups: GeneratedParts) -> Self {
        GeneratedText(Arc::new(TextParts {
            rules,
            groups,
            whole: OnceLock::new(),
        }))
    }

    /// Returns the rules.
    pub fn rules(&self) -> &[GeneratedRule] {
        &self.0.rules
    }

    /// Returns the groups.
    pub fn groups(&self) -> &GeneratedParts {
        &self.0.groups
    }

    fn list_pieces(&self) -> impl Iterator<Item = &str> {
        let rules = self.0.rules.iter().flat_map(|rule| {
            let routes = rule.routes.iter();
            let routes = routes.flat_map(move |route| [&*rule.header, route.text()]);
            std::iter::once(&*rule.text).chain(routes)
        });
        rules.chain(self.0.groups.iter().map(|group| group.text()))
    }

    /// True if both are the same text in memory.
    pub fn is_same(&self, other: &GeneratedText) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns a copy of the whole text, which the text itself does not keep.
    pub fn join_pieces(&self) -> String {
        match self.0.whole.get() {
            Some(whole) => whole.to_string(),
            None => self.list_pieces().collect(),
        }
    }

    /// Returns the whole text.
    fn as_str(&self) -> &str {
        self.0.whole.get_or_init(|| self.join_pieces().into())
    }

    /// Returns the numbers of the first lines of all routes and groups, from 1. The number of a route is that of the line
    /// below the header of its table.
    pub(super) fn number_lines(&self) -> FirstLines {
        let count = |text: &str| text.bytes().filter(|byte| *byte == b'\n').count();
        let mut next = 1;
        let routes = self.0.rules.iter().map(|rule| {
            next += count(&rule.text);
            let routes = rule.routes.iter().map(|route| {
                let first = next + count(&rule.header);
                next = first + count(route.text());
                first
            });
            routes.collect()
        });
        let routes = routes.collect();
        let groups = self.0.groups.iter().map(|group| {
            let first = next;
            next += count(group.text());
            first
        });
        let groups = groups.collect();
        FirstLines { routes, groups }
    }
}

/// Numbers of the first lines of parts.
pub(super) struct FirstLines {
    /// First lines of the routes of each rule.
    pub(super) routes: Vec<Vec<usize>>,
    /// First lines of the groups.
    pub(super) groups: Vec<usize>,
}

/// A text that is not in parts.
impl From<String> for GeneratedText {
    fn from(text: String) -> Self {
        GeneratedText(Arc::new(TextParts {
            whole: OnceLock::from(Box::<str>::from(text)),
            ..TextParts::default()
        }))
    }
}

impl Deref for GeneratedText {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

/// Compares texts in parts by their parts, which are cut in the same way in all texts of a controller.
impl PartialEq for GeneratedText {
    fn eq(&self, other: &Self) -> bool {
        let is_in_parts = |of: &GeneratedText| !of.0.rules.is_empty() || !of.0.groups.is_empty();
        if self.is_same(other) {
            return true;
        }
        if !is_in_parts(self) || !is_in_parts(other) {
            return self.as_str() == other.as_str();
        }
        let mut pairs = self.0.rules.iter().zip(&other.0.rules);
        self.0.rules.len() == other.0.rules.len()
            && pairs.all(|(rule, other)| rule.is_like(other))
            && have_same_parts(&self.0.groups, &other.0.groups)
    }
}

impl PartialEq<str> for GeneratedText {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for GeneratedText {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl fmt::Display for GeneratedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for GeneratedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl GeneratedPart for String {
        fn text(&self) -> &str {
            self
        }
    }

    fn parts(texts: &[&str]) -> GeneratedParts {
        let parts = texts.iter().map(|text| {
            let part: Arc<dyn GeneratedPart> = Arc::new((*text).to_owned());
            part
        });
        parts.collect()
    }

    fn text(routes: &GeneratedParts, groups: &GeneratedParts) -> GeneratedText {
        let rule = GeneratedRule {
            name: "web".into(),
            text: "[rule.web]\nlisten = []\n".into(),
            header: "[[rule.web.routes]]\n".into(),
            routes: Arc::clone(routes),
        };
        GeneratedText::from_parts(vec![rule], Arc::clone(groups))
    }

    #[test]
    fn parts_are_joined_and_have_the_lines_of_the_whole() {
        let (routes, groups) = (
            parts(&["a = 1\n", "b = 1\nc = 1\n"]),
            parts(&["[g]\n", "[h]\n"]),
        );
        let whole = text(&routes, &groups);
        let wanted = "[rule.web]\nlisten = []\n[[rule.web.routes]]\na = 1\n[[rule.web.routes]]\nb = 1\nc = 1\n[g]\n[h]\n";
        assert_eq!(whole, wanted);
        let lines = whole.number_lines();
        assert_eq!(
            (&*lines.routes, &*lines.groups),
            (&[vec![4, 6]][..], &[8, 9][..])
        );
        let line = |number: usize| whole.lines().nth(number - 1).unwrap().to_owned();
        assert_eq!([4, 6, 8, 9].map(line), ["a = 1", "b = 1", "[g]", "[h]"]);
    }

    #[test]
    fn texts_are_equal_whoever_wrote_their_parts() {
        let (routes, groups) = (parts(&["a = 1\n"]), parts(&["[g]\n"]));
        let one = text(&routes, &groups);
        for (same, other) in [
            (true, text(&routes, &groups)),
            (true, text(&parts(&["a = 1\n"]), &groups)),
            (true, one.to_string().into()),
            (false, text(&parts(&["a = 2\n"]), &groups)),
            (false, text(&routes, &parts(&[]))),
            (false, text(&parts(&["a = 1\n", "a = 1\n"]), &groups)),
            (false, GeneratedText::default()),
        ] {
            assert_eq!(one == other, same, "{other}");
        }
        assert_eq!(GeneratedText::default(), GeneratedText::from(String::new()));
    }
}
