//! What stands in the store. All of it is JSON, comes from the network, and is bounded before it is read.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use evenkeel_config::edit;

use crate::judge::Counts;

/// The version of these documents. A later one is not understood.
pub const FORMAT: u32 = 1;

/// Longest text of a configuration, in bytes: etcd takes requests of at most 1.5 MiB, in which it is escaped.
pub const MAX_TEXT: usize = 1 << 20;

/// Longest document, in bytes.
pub const MAX_DOCUMENT: usize = 4 << 20;

/// How many heads before it a head remembers.
pub const MAX_PAST: usize = 64;

/// Longest name, comment and so on, in bytes; what is longer is cut where it is shown.
const MAX_WORDS: usize = 4096;

/// Longest list of balancers.
const MAX_NODES: usize = 10_000;

/// Why a document is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDocument {
    /// It is too long.
    #[error("it has {0} bytes; at most {MAX_DOCUMENT} are read")]
    TooLong(usize),
    /// It is something else.
    #[error("it is none of ours: {0}")]
    Garbage(String),
    /// A later version has written it.
    #[error("a later version has written it (format {0}): upgrade this balancer")]
    Later(u32),
    /// A revision does not have the text that the head says.
    #[error("its text is not the one that was written: {found} in place of {expected}")]
    Damaged {
        /// What the head says.
        expected: String,
        /// What the text is known by.
        found: String,
    },
}

/// A revision, as heads refer to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pointer {
    /// Its number.
    pub number: u64,
    /// What its text is known by ([`edit::revision`]).
    pub id: String,
}

impl std::fmt::Display for Pointer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "revision {} ({})", self.number, self.id)
    }
}

/// Who has a revision that is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// One balancer.
    One,
    /// A share of them.
    Share,
    /// All of them.
    All,
}

/// A revision that is rolled out step by step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// Which.
    pub to: Pointer,
    /// How far it has come.
    pub step: Step,
    /// The balancers that have it, unless all have.
    #[serde(default)]
    pub nodes: Vec<String>,
}

/// A revision that was taken back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Which.
    pub to: Pointer,
    /// Why.
    pub why: String,
    /// When, in seconds since 1970.
    pub at: u64,
}

/// What balancers are to have. It changes as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// [`FORMAT`].
    pub format: u32,
    /// Counts the changes of this document, from 1.
    pub change: u64,
    /// A random text that no other version of this document has.
    pub tag: String,
    /// Those of the versions that this one comes from, the last one first.
    #[serde(default)]
    pub past: Vec<String>,
    /// Counts the changes by people, from 1.
    pub pushes: u64,
    /// The number that the next revision has.
    pub next: u64,
    /// The revision that all have, or those that do not try another one.
    pub current: Option<Pointer>,
    /// That before, for a roll-back.
    #[serde(default)]
    pub before: Option<Pointer>,
    /// The one that is rolled out.
    #[serde(default)]
    pub trial: Option<Trial>,
    /// The one that was taken back last, unless something was pushed since.
    #[serde(default)]
    pub failed: Option<Failed>,
}

impl Head {
    /// The document.
    ///
    /// # Errors
    ///
    /// Why it is none.
    pub fn read(bytes: &[u8]) -> Result<Self, BadDocument> {
        let mut head: Head = read(bytes)?;
        let words = [&head.tag].into_iter().chain(&head.past);
        let pointers = head.current.iter().chain(&head.before);
        let trial = head.trial.iter().flat_map(|trial| &trial.nodes);
        let words = words.chain(trial).chain(pointers.map(|one| &one.id));
        if words.into_iter().any(|text| text.len() > MAX_WORDS) {
            return Err(BadDocument::Garbage(
                "it has a name that is too long".into(),
            ));
        }
        let nodes = head.trial.as_ref().map_or(0, |trial| trial.nodes.len());
        if nodes > MAX_NODES {
            return Err(BadDocument::Garbage("it names too many balancers".into()));
        }
        head.past.truncate(MAX_PAST);
        Ok(head)
    }

    /// Its bytes.
    pub fn write(&self) -> Vec<u8> {
        write(self)
    }

    /// What the balancer called `name` is to have.
    pub fn target(&self, name: &str) -> Option<&Pointer> {
        let tried = self
            .trial
            .as_ref()
            .filter(|trial| trial.step == Step::All || trial.nodes.iter().any(|node| node == name));
        tried.map(|trial| &trial.to).or(self.current.as_ref())
    }

    /// What it is known by, and where it comes from.
    pub fn mark(&self) -> Mark {
        Mark {
            change: self.change,
            tag: self.tag.clone(),
            past: self.past.clone(),
        }
    }

    /// Whether it comes from the head of that mark, or is it.
    pub fn follows(&self, mark: &Mark) -> bool {
        if self.tag == mark.tag || self.past.contains(&mark.tag) {
            return true;
        }
        // So much has happened since that it cannot know that one any more. An older one is no such head:
        // it would count fewer changes.
        let remembered = u64::try_from(self.past.len()).unwrap_or(u64::MAX);
        self.past.len() >= MAX_PAST && self.change > mark.change.saturating_add(remembered)
    }
}

/// What a head is known by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Its count of changes.
    pub change: u64,
    /// Its tag.
    pub tag: String,
    /// Those of the heads that it comes from, the last one first, where that matters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub past: Vec<String>,
}

impl Mark {
    /// The same without its past.
    pub fn alone(&self) -> Mark {
        Mark {
            change: self.change,
            tag: self.tag.clone(),
            past: Vec::new(),
        }
    }
}

/// A text of the configuration, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// [`FORMAT`].
    pub format: u32,
    /// Its number.
    pub number: u64,
    /// That of the one that it is a change of; 0 is none.
    pub parent: u64,
    /// Who wrote it.
    pub who: String,
    /// When, in seconds since 1970.
    pub at: u64,
    /// Why, in their words.
    pub message: String,
    /// The text.
    pub text: String,
}

impl Revision {
    /// The document, if it is the one that a head refers to.
    ///
    /// # Errors
    ///
    /// Why it is not.
    pub fn read(bytes: &[u8], expected: &Pointer) -> Result<Self, BadDocument> {
        let revision = Self::read_any(bytes)?;
        let found = revision.pointer();
        match found == *expected {
            true => Ok(revision),
            false => Err(BadDocument::Damaged {
                expected: expected.to_string(),
                found: found.to_string(),
            }),
        }
    }

    /// The document.
    ///
    /// # Errors
    ///
    /// Why it is none.
    pub fn read_any(bytes: &[u8]) -> Result<Self, BadDocument> {
        let mut revision: Revision = read(bytes)?;
        cut(&mut revision.who);
        cut(&mut revision.message);
        Ok(revision)
    }

    /// Its bytes.
    pub fn write(&self) -> Vec<u8> {
        write(self)
    }

    /// As heads refer to it.
    pub fn pointer(&self) -> Pointer {
        Pointer {
            number: self.number,
            id: edit::revision(&self.text),
        }
    }
}

/// A revision that a balancer has refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Which.
    pub to: Pointer,
    /// Why.
    pub why: String,
}

/// What a balancer says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// What it is called.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What tells this process from others of the same name.
    pub process: String,
    /// The head that it goes by.
    pub mark: Option<Mark>,
    /// What it runs.
    pub running: Option<Pointer>,
    /// What it has refused.
    pub refused: Option<Refused>,
    /// Whether it waits for a person, because the store has gone back in time.
    pub waits: bool,
    /// What it has counted since it was started.
    pub counts: Counts,
    /// What it had counted in the last minutes before it put what it runs into effect.
    #[serde(default)]
    pub before: Counts,
}

impl Report {
    /// The document.
    ///
    /// # Errors
    ///
    /// Why it is none.
    pub fn read(bytes: &[u8]) -> Result<Self, BadDocument> {
        let mut report: Report = read(bytes)?;
        report.counts.bound();
        report.before.bound();
        cut(&mut report.name);
        if let Some(refused) = &mut report.refused {
            cut(&mut refused.why);
        }
        Ok(report)
    }

    /// Its bytes.
    pub fn write(&self) -> Vec<u8> {
        write(self)
    }
}

/// Every document says which format it has.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BadDocument> {
    if bytes.len() > MAX_DOCUMENT {
        return Err(BadDocument::TooLong(bytes.len()));
    }
    let garbage = |error: serde_json::Error| BadDocument::Garbage(error.to_string());
    let version: Version = serde_json::from_slice(bytes).map_err(garbage)?;
    if version.format > FORMAT {
        return Err(BadDocument::Later(version.format));
    }
    serde_json::from_slice(bytes).map_err(garbage)
}

fn write<T: Serialize>(document: &T) -> Vec<u8> {
    // Structs of texts and numbers: there is nothing in them that JSON does not know.
    serde_json::to_vec(document).unwrap_or_default()
}

fn cut(text: &mut String) {
    if text.len() > MAX_WORDS {
        let end = text.char_indices().map(|(at, _)| at);
        let end = end.take_while(|at| *at <= MAX_WORDS).last();
        text.truncate(end.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer(number: u64, text: &str) -> Pointer {
        Pointer {
            number,
            id: edit::revision(text),
        }
    }

    fn head() -> Head {
        Head {
            format: FORMAT,
            change: 7,
            tag: "g".into(),
            past: vec!["f".into(), "e".into()],
            pushes: 3,
            next: 5,
            current: Some(pointer(3, "three")),
            before: Some(pointer(2, "two")),
            trial: Some(Trial {
                to: pointer(4, "four"),
                step: Step::One,
                nodes: vec!["a".into()],
            }),
            failed: None,
        }
    }

    #[test]
    fn who_tries_a_revision_has_it_and_others_do_not() {
        let mut head = head();
        let number = |head: &Head, name: &str| head.target(name).unwrap().number;
        assert_eq!((number(&head, "a"), number(&head, "b")), (4, 3));
        if let Some(trial) = &mut head.trial {
            trial.step = Step::All;
        }
        assert_eq!((number(&head, "a"), number(&head, "b")), (4, 4));
        head.trial = None;
        assert_eq!((number(&head, "a"), number(&head, "b")), (3, 3));
    }

    #[test]
    fn a_head_knows_where_it_comes_from() {
        let head = head();
        let mark = |change, tag: &str| Mark {
            change,
            tag: tag.into(),
            past: Vec::new(),
        };
        assert!(head.follows(&mark(7, "g")));
        assert!(head.follows(&mark(5, "e")));
        assert!(!head.follows(&mark(8, "h")), "one that was lost");
        assert!(!head.follows(&mark(1, "x")), "one of another store");
        let mut old = head.clone();
        old.past = (0..MAX_PAST).map(|n| n.to_string()).collect();
        old.change = 100;
        assert!(old.follows(&mark(1, "x")), "too long ago to be known");
        assert!(!old.follows(&mark(50, "x")));
    }

    #[test]
    fn documents_are_read_as_they_were_written() {
        let head = head();
        assert_eq!(Head::read(&head.write()), Ok(head.clone()));
        let revision = Revision {
            format: FORMAT,
            number: 3,
            parent: 2,
            who: "anna".into(),
            at: 1,
            message: "more".into(),
            text: "three".into(),
        };
        let bytes = revision.write();
        let expected = pointer(3, "three");
        assert_eq!(Revision::read(&bytes, &expected), Ok(revision));
        let other = Revision::read(&bytes, &pointer(3, "other"));
        assert!(matches!(other, Err(BadDocument::Damaged { .. })));
    }

    #[test]
    fn what_is_no_document_is_refused() {
        assert!(matches!(
            Head::read(b"{\"format\": 2}"),
            Err(BadDocument::Later(2))
        ));
        for garbage in [&b""[..], b"[]", b"{\"format\": 1}", b"\xff"] {
            assert!(matches!(Head::read(garbage), Err(BadDocument::Garbage(_))));
        }
        let long = vec![b' '; MAX_DOCUMENT + 1];
        assert!(matches!(Head::read(&long), Err(BadDocument::TooLong(_))));
        let mut words = "ä".repeat(MAX_WORDS);
        cut(&mut words);
        assert!(words.len() <= MAX_WORDS && !words.is_empty());
    }
}
