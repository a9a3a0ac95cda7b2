//! Documents of the store. All are JSON, come from the network, and are bounded before they are parsed.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use evenkeel_config::edit;

use crate::judge::Counts;

/// Version of the documents' format. Documents with a later version are refused.
pub const FORMAT: u32 = 1;

/// Longest text of a configuration, in bytes: etcd takes requests of at most 1.5 MiB, in which the text is escaped.
pub const MAX_TEXT: usize = 1 << 20;

/// Longest document, in bytes.
pub const MAX_DOCUMENT: usize = 4 << 20;

/// Most earlier heads that a head remembers.
pub const MAX_PAST: usize = 64;

/// Longest name, comment and the like, in bytes; a longer one in a report or a revision is cut.
const MAX_WORDS: usize = 4096;

/// Longest list of balancers.
const MAX_NODES: usize = 10_000;

/// Reason for which a document is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDocument {
    /// The document is too long.
    #[error("the value has {0} bytes; at most {MAX_DOCUMENT} are read")]
    TooLong(usize),
    /// The document is not one of Evenkeel.
    #[error("the value was not written by Evenkeel: {0}")]
    Garbage(String),
    /// The document was written by a later version.
    #[error(
        "a later version of Evenkeel has written the value (format {0}): upgrade this balancer"
    )]
    Later(u32),
    /// The text of a revision is not the one that the head refers to.
    #[error("the text is not the one that was written: {found} in place of {expected}")]
    Damaged {
        /// The revision according to the head.
        expected: String,
        /// The revision according to its own text.
        found: String,
    },
}

/// Reference to a revision, in heads and reports.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pointer {
    /// Number of the revision.
    pub number: u64,
    /// Identifier of the revision's text ([`edit::revision`]).
    pub id: String,
}

impl std::fmt::Display for Pointer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "revision {} ({})", self.number, self.id)
    }
}

/// Progress of a roll-out: which balancers have the revision that is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// A single balancer.
    One,
    /// A share of the balancers.
    Share,
    /// All of the balancers.
    All,
}

/// A revision that is rolled out step by step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// The revision that is rolled out.
    pub to: Pointer,
    /// Progress of the roll-out.
    pub step: Step,
    /// The balancers that have the revision; empty if all have it.
    #[serde(default)]
    pub nodes: Vec<String>,
}

/// A revision that was taken back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// The revision that was taken back.
    pub to: Pointer,
    /// Reason for taking it back.
    pub why: String,
    /// Time of taking it back, in seconds since 1970.
    pub at: u64,
}

/// The head: the document that says which revision balancers are to have. It changes as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Version of the format ([`FORMAT`]).
    pub format: u32,
    /// Number of changes of this document, from 1.
    pub change: u64,
    /// A random text that no other version of this document has.
    pub tag: String,
    /// Tags of the heads that this one comes from, the newest first.
    #[serde(default)]
    pub past: Vec<String>,
    /// Number of changes by people, from 1.
    pub pushes: u64,
    /// Number of the next revision.
    pub next: u64,
    /// The revision of all balancers, or of the balancers that do not try another one.
    pub current: Option<Pointer>,
    /// The revision before the current one, for a roll-back.
    #[serde(default)]
    pub before: Option<Pointer>,
    /// The roll-out in progress.
    #[serde(default)]
    pub trial: Option<Trial>,
    /// The revision that was taken back last, unless something was pushed since.
    #[serde(default)]
    pub failed: Option<Failed>,
}

impl Head {
    /// Parses a head.
    ///
    /// # Errors
    ///
    /// The document is no valid head.
    pub fn read(bytes: &[u8]) -> Result<Self, BadDocument> {
        let mut head: Head = read(bytes)?;
        let words = [&head.tag].into_iter().chain(&head.past);
        let pointers = head.current.iter().chain(&head.before);
        let trial = head.trial.iter().flat_map(|trial| &trial.nodes);
        let words = words.chain(trial).chain(pointers.map(|one| &one.id));
        if words.into_iter().any(|text| text.len() > MAX_WORDS) {
            return Err(BadDocument::Garbage(
                "a name in the value is too long".into(),
            ));
        }
        let nodes = head.trial.as_ref().map_or(0, |trial| trial.nodes.len());
        if nodes > MAX_NODES {
            return Err(BadDocument::Garbage(
                "the value names too many balancers".into(),
            ));
        }
        head.past.truncate(MAX_PAST);
        Ok(head)
    }

    /// Serializes the head.
    pub fn write(&self) -> Vec<u8> {
        write(self)
    }

    /// The revision that the balancer called `name` is to have.
    pub fn target_of(&self, name: &str) -> Option<&Pointer> {
        let tried = self
            .trial
            .as_ref()
            .filter(|trial| trial.step == Step::All || trial.nodes.iter().any(|node| node == name));
        tried.map(|trial| &trial.to).or(self.current.as_ref())
    }

    /// The head's mark, with the tags of the heads that it comes from.
    pub fn mark(&self) -> Mark {
        Mark {
            change: self.change,
            tag: self.tag.clone(),
            past: self.past.clone(),
        }
    }

    /// True if this head comes from the head with that mark, or is that head.
    pub fn follows(&self, mark: &Mark) -> bool {
        if self.tag == mark.tag || self.past.contains(&mark.tag) {
            return true;
        }
        // More heads have followed than this head remembers. An older head is no successor: it would count fewer
        // changes.
        let remembered = u64::try_from(self.past.len()).unwrap_or(u64::MAX);
        self.past.len() >= MAX_PAST && self.change > mark.change.saturating_add(remembered)
    }
}

/// Identity of a head, without its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Number of changes of the head.
    pub change: u64,
    /// Tag of the head.
    pub tag: String,
    /// Tags of the heads that this head comes from, the newest first; empty where they do not matter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub past: Vec<String>,
}

impl Mark {
    /// A copy of this mark without `past`.
    pub fn without_past(&self) -> Mark {
        Mark {
            change: self.change,
            tag: self.tag.clone(),
            past: Vec::new(),
        }
    }
}

/// A text of the configuration, and its author.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// Version of the format ([`FORMAT`]).
    pub format: u32,
    /// Number of the revision.
    pub number: u64,
    /// Number of the revision that this one is a change of; 0 if there is none.
    pub parent: u64,
    /// Author of the revision.
    pub who: String,
    /// Time of the push, in seconds since 1970.
    pub at: u64,
    /// The author's reason for the change, in their words.
    pub message: String,
    /// The text of the configuration.
    pub text: String,
}

impl Revision {
    /// Parses a revision, and checks that it is the one that a head refers to.
    ///
    /// # Errors
    ///
    /// The document is no revision, or another one.
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

    /// Parses a revision.
    ///
    /// # Errors
    ///
    /// The document is no revision.
    pub fn read_any(bytes: &[u8]) -> Result<Self, BadDocument> {
        let mut revision: Revision = read(bytes)?;
        cut(&mut revision.who);
        cut(&mut revision.message);
        Ok(revision)
    }

    /// Serializes the revision.
    pub fn write(&self) -> Vec<u8> {
        write(self)
    }

    /// Reference to this revision.
    pub fn pointer(&self) -> Pointer {
        Pointer {
            number: self.number,
            id: edit::text_revision(&self.text),
        }
    }
}

/// A revision that a balancer has refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The refused revision.
    pub to: Pointer,
    /// Reason for the refusal.
    pub why: String,
}

/// A balancer's report about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the format ([`FORMAT`]).
    pub format: u32,
    /// Name of the balancer.
    pub name: String,
    /// Version of the balancer's program.
    pub version: String,
    /// Random text that tells this process from others with the same name.
    pub process: String,
    /// The head that the balancer goes by.
    pub mark: Option<Mark>,
    /// The running revision.
    pub running: Option<Pointer>,
    /// The revision that the balancer has refused.
    pub refused: Option<Refused>,
    /// True while the balancer waits for a person, because the store has gone back in time.
    pub waits: bool,
    /// Counts since the process was started.
    pub counts: Counts,
    /// Counts of the last minutes before the running revision was put into effect.
    #[serde(default)]
    pub before: Counts,
}

impl Report {
    /// Parses a report.
    ///
    /// # Errors
    ///
    /// The document is no report.
    pub fn read(bytes: &[u8]) -> Result<Self, BadDocument> {
        let mut report: Report = read(bytes)?;
        report.counts.limit_counts();
        report.before.limit_counts();
        cut(&mut report.name);
        if let Some(refused) = &mut report.refused {
            cut(&mut refused.why);
        }
        Ok(report)
    }

    /// Serializes the report.
    pub fn write(&self) -> Vec<u8> {
        write(self)
    }
}

/// The version of the format, which each document has.
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
    // Structs of texts and numbers: JSON can express all of them.
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
            id: edit::text_revision(text),
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
        let number = |head: &Head, name: &str| head.target_of(name).unwrap().number;
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
