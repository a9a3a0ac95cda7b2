//! The texts of the configuration that are and were in force, and whose they are.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_config::edit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most texts that are kept.
pub const MAX_REVISIONS: usize = 50;

/// Most bytes of all texts that are kept together; the text in force may have more.
pub const MAX_BYTES: usize = 8 << 20;

/// Way in which a text came into force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// The process was started with it.
    Start,
    /// The file, or one that is read with it, has changed, or was read again by request.
    File,
    /// The process got SIGHUP.
    Signal,
    /// The API got it as a whole.
    Put,
    /// The API got edits.
    Patch,
    /// The last change was taken back.
    Undo,
    /// The text was in force before and was restored.
    Restore,
    /// The store that balancers share has it.
    Store,
}

impl How {
    /// Returns the name of the way in answers.
    pub fn name(self) -> &'static str {
        match self {
            How::Start => "start",
            How::File => "file",
            How::Signal => "signal",
            How::Put => "put",
            How::Patch => "patch",
            How::Undo => "undo",
            How::Restore => "restore",
            How::Store => "store",
        }
    }
}

/// Author of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Author {
    /// The user's name; empty if nobody knows, as with a change of the file.
    pub user_name: String,
    /// Address that the request came from.
    pub from: Option<IpAddr>,
    /// Reason for the change, in the user's words.
    pub comment: String,
}

/// A text of the configuration that came into force.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Revision {
    /// Identifier of the text: the first 16 hexadecimal digits of its SHA-256.
    pub revision: String,
    /// Number of the process's configuration that the text was, from 1.
    pub generation: u64,
    /// Time when the text came into force, in seconds since 1970.
    pub at: u64,
    /// The user's name; empty if nobody knows, as with a change of the file.
    pub who: String,
    /// Address that the request came from.
    #[schemars(with = "Option<String>")]
    pub from: Option<IpAddr>,
    /// Reason for the change, in the user's words.
    pub comment: String,
    /// Way in which the text came into force.
    pub how: How,
}

/// A revision with its text.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    /// Description of the revision.
    pub revision: Revision,
    /// The text.
    pub text: Arc<str>,
    /// Counts the entries of this process.
    id: u64,
    /// The entry that an undo goes back to.
    before: Option<u64>,
}

/// The texts that are and were in force, the last one at the end.
#[derive(Debug, Default)]
pub(crate) struct Revisions {
    entries: VecDeque<Arc<Entry>>,
    next_id: u64,
}

impl Revisions {
    /// Notes that a text is in force. An undo goes on to where one of `undoes` would.
    pub(crate) fn push(
        &mut self,
        text: Arc<str>,
        generation: u64,
        how: How,
        author: Author,
        undoes: Option<&Entry>,
    ) -> Arc<Entry> {
        let revision = edit::text_revision(&text);
        let last = self.entries.back();
        if let Some(last) = last.filter(|last| last.revision.revision == revision) {
            return Arc::clone(last);
        }
        let before = match undoes {
            Some(target) => target.before,
            None => last.map(|last| last.id),
        };
        let at = SystemTime::now().duration_since(UNIX_EPOCH);
        let entry = Arc::new(Entry {
            revision: Revision {
                revision,
                generation,
                at: at.map_or(0, |at| at.as_secs()),
                who: author.user_name,
                from: author.from,
                comment: author.comment,
                how,
            },
            text,
            id: self.next_id,
            before,
        });
        self.next_id += 1;
        self.entries.push_back(Arc::clone(&entry));
        let size = |entries: &VecDeque<Arc<Entry>>| {
            let sizes = entries.iter().map(|entry| entry.text.len());
            sizes.sum::<usize>()
        };
        while self.entries.len() > 1
            && (self.entries.len() > MAX_REVISIONS || size(&self.entries) > MAX_BYTES)
        {
            self.entries.pop_front();
        }
        entry
    }

    /// Returns the entry that an undo goes back to, if that entry is still there.
    pub(crate) fn undo_entry(&self) -> Option<Arc<Entry>> {
        let before = self.entries.back()?.before?;
        let mut entries = self.entries.iter();
        entries.find(|entry| entry.id == before).cloned()
    }

    /// The last entry of this revision.
    pub(crate) fn find(&self, revision: &str) -> Option<Arc<Entry>> {
        let mut entries = self.entries.iter().rev();
        let is_it = |entry: &&Arc<Entry>| entry.revision.revision == revision;
        entries.find(is_it).cloned()
    }

    /// Returns all revisions that are kept, the last one first.
    pub(crate) fn list_revisions(&self) -> Vec<Revision> {
        let entries = self.entries.iter().rev();
        entries.map(|entry| entry.revision.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(revisions: &mut Revisions, text: &str) -> Arc<Entry> {
        revisions.push(text.into(), 1, How::Put, Author::default(), None)
    }

    fn undo(revisions: &mut Revisions) -> Option<String> {
        let target = revisions.undo_entry()?;
        let text = Arc::clone(&target.text);
        let entry = revisions.push(text, 1, How::Undo, Author::default(), Some(&target));
        Some(entry.text.to_string())
    }

    #[test]
    fn an_undo_goes_back_one_step_each_time() {
        let mut all = Revisions::default();
        for text in ["a", "b", "c"] {
            push(&mut all, text);
        }
        assert_eq!(undo(&mut all).as_deref(), Some("b"));
        assert_eq!(undo(&mut all).as_deref(), Some("a"));
        assert_eq!(undo(&mut all), None);
        push(&mut all, "d");
        assert_eq!(undo(&mut all).as_deref(), Some("a"));
        assert_eq!(all.list_revisions().len(), 7);
    }

    #[test]
    fn the_same_text_again_is_no_revision() {
        let mut all = Revisions::default();
        let first = push(&mut all, "a");
        assert_eq!(push(&mut all, "a"), first);
        push(&mut all, "b");
        assert_ne!(push(&mut all, "a"), first);
        assert_eq!(all.find(&first.revision.revision).unwrap().id, 2);
        assert!(all.find("none").is_none());
    }

    #[test]
    fn old_texts_are_forgotten_and_that_in_force_is_not() {
        let mut all = Revisions::default();
        for number in 0..MAX_REVISIONS + 10 {
            push(&mut all, &number.to_string());
        }
        assert_eq!(all.list_revisions().len(), MAX_REVISIONS);
        assert_eq!(all.list_revisions()[0].revision, edit::text_revision("59"));
        push(&mut all, &"x".repeat(MAX_BYTES - 20));
        let count = all.list_revisions().len();
        assert!((2..20).contains(&count), "{count}");
        push(&mut all, &"y".repeat(MAX_BYTES + 1));
        assert_eq!(all.list_revisions().len(), 1);
        assert!(all.undo_entry().is_none());
    }
}
