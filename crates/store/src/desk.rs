//! The store's operations for a person: `evenkeel store`, and changes through the admin API.

use std::fmt::Write as _;

use evenkeel_config::edit;
use jiff::Timestamp;

use crate::change::{self, HeadInForce, Push, PushError};
use crate::etcd::{Entry, Etcd, EtcdError, Keys, Write};
use crate::model::{BadDocument, Head, Pointer, Report, Revision, Step};

/// Most revisions that a history lists.
pub const MAX_HISTORY: i64 = 1000;

/// Most revisions that are read from the store at once.
const AT_ONCE: i64 = 10;

/// Reason for which an operation failed. Nothing was written, unless the error says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum StoreAdminError {
    /// The store does not answer, or refuses.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// A document in the store cannot be read.
    #[error("{key} in the store: {error}")]
    Document {
        /// The document's key.
        key: String,
        /// The document's fault.
        error: BadDocument,
    },
    /// The push cannot be written.
    #[error(transparent)]
    Push(#[from] PushError),
    /// The store has changed: the change is based on another revision than the current one.
    #[error("{0}")]
    ChangedMeanwhile(String),
    /// The store has nothing that the operation could apply to.
    #[error("{0}")]
    Nothing(String),
}

/// The keys of a prefix.
#[derive(Clone, Debug)]
pub struct Names(pub String);

impl Names {
    /// Key of the head.
    pub fn head_key(&self) -> String {
        format!("{}head", self.0)
    }

    /// Common prefix of the keys of all revisions.
    pub fn revision_prefix(&self) -> String {
        format!("{}revisions/", self.0)
    }

    /// Key of a revision. Keys sort in the order of the revisions' numbers.
    pub fn revision_key(&self, number: u64) -> String {
        format!("{}revisions/{number:020}", self.0)
    }

    /// Common prefix of the keys of all reports.
    pub fn node_prefix(&self) -> String {
        format!("{}nodes/", self.0)
    }

    /// Key of a balancer's report.
    pub fn node_key(&self, name: &str) -> String {
        format!("{}nodes/{name}", self.0)
    }
}

/// The revision that a push must be based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base<'a> {
    /// Any revision, or none.
    Any,
    /// An empty store.
    Empty,
    /// The revision with that number.
    Number(u64),
    /// The revision whose text has this identifier.
    Id(&'a str),
}

impl Base<'_> {
    /// Checks that the current revision of all balancers is this one; the error says why not.
    fn fits(self, current: Option<&Pointer>) -> Result<(), String> {
        let fits = match (self, current) {
            (Base::Any, _) | (Base::Empty, None) => true,
            (Base::Number(number), Some(current)) => current.number == number,
            (Base::Id(id), Some(current)) => current.id == id,
            _ => false,
        };
        let has = match current {
            _ if fits => return Ok(()),
            Some(current) => current.to_string(),
            None => "nothing".into(),
        };
        let of = match self {
            Base::Number(number) => format!("not revision {number}, on which the change is based"),
            Base::Id(id) => format!("not the text {id}, on which the change is based"),
            Base::Any | Base::Empty => {
                "the revision on which the change is based is not given (--of)".into()
            }
        };
        Err(format!(
            "the store has {has}, and {of}: nothing was written. Look at the revision in the store, then \
             repeat the change"
        ))
    }
}

/// Content of the store, without revisions.
#[derive(Debug)]
pub struct Loaded {
    /// The head, if there is one.
    pub head: Option<Head>,
    /// The revision of etcd in which the head was changed last: a transaction compares it (0: there is no head).
    pub changed: i64,
    /// Reports of the balancers.
    pub nodes: Vec<Report>,
}

impl Loaded {
    fn goes_by(&self) -> Vec<HeadInForce> {
        let nodes = self.nodes.iter();
        let marks = nodes.filter_map(|node| Some((node.mark.clone()?, node.running.clone())));
        marks.collect()
    }

    fn current(&self) -> Option<&Pointer> {
        self.head.as_ref()?.current.as_ref()
    }
}

/// A change that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenChange {
    /// The revision that balancers get.
    pub to: Pointer,
    /// True if balancers get the revision step by step.
    pub staged: bool,
    /// Balancers that had waited for a person, because the store had gone back in time.
    pub waited: Vec<String>,
}

/// The store's operations for a person.
#[derive(Debug)]
pub struct StoreAdmin<'e> {
    etcd: &'e mut Etcd,
    names: Names,
}

fn tag() -> String {
    format!("{:016x}", fastrand::u64(..))
}

fn bad(key: &str) -> impl Fn(BadDocument) -> StoreAdminError {
    move |error| StoreAdminError::Document {
        key: key.to_owned(),
        error,
    }
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or_default()
}

fn shown(at: u64) -> String {
    let at = i64::try_from(at)
        .ok()
        .and_then(|at| Timestamp::from_second(at).ok());
    at.map_or_else(|| "?".into(), |at| at.to_string())
}

impl<'e> StoreAdmin<'e> {
    /// Operations on the store behind `etcd`, at the prefix `prefix`.
    pub fn new(etcd: &'e mut Etcd, prefix: &str) -> Self {
        StoreAdmin {
            etcd,
            names: Names(prefix.to_owned()),
        }
    }

    /// Reads the head and the balancers' reports.
    ///
    /// # Errors
    ///
    /// The store does not answer, or its head cannot be read.
    pub async fn load_head(&mut self) -> Result<Loaded, StoreAdminError> {
        let key = self.names.head_key();
        let read = self.etcd.read(Keys::One(&key)).await?;
        let entry = read.entries.first();
        let head = entry.map(|entry| Head::read(&entry.value)).transpose();
        Ok(Loaded {
            head: head.map_err(bad(&key))?,
            changed: entry.map_or(0, |entry| entry.changed),
            nodes: self.list_nodes().await?,
        })
    }

    /// Reads the balancers' reports. A report that cannot be read is left out.
    ///
    /// # Errors
    ///
    /// The store does not answer, or refuses.
    pub async fn list_nodes(&mut self) -> Result<Vec<Report>, StoreAdminError> {
        let prefix = self.names.node_prefix();
        let read = self.etcd.read(Keys::Under(&prefix)).await?;
        let reports = read.entries.iter();
        Ok(reports
            .filter_map(|entry| Report::read(&entry.value).ok())
            .collect())
    }

    /// Reads the revision that a head refers to.
    ///
    /// # Errors
    ///
    /// The store does not have the revision, or has another text under its number.
    pub async fn read_revision(&mut self, to: &Pointer) -> Result<Revision, StoreAdminError> {
        let (key, entry) = self.entry(to.number).await?;
        Revision::read(&entry.value, to).map_err(bad(&key))
    }

    async fn any_revision(&mut self, number: u64) -> Result<Revision, StoreAdminError> {
        let (key, entry) = self.entry(number).await?;
        Revision::read_any(&entry.value).map_err(bad(&key))
    }

    async fn entry(&mut self, number: u64) -> Result<(String, Entry), StoreAdminError> {
        let key = self.names.revision_key(number);
        let read = self.etcd.read(Keys::One(&key)).await?;
        let entry = read.entries.into_iter().next();
        let none =
            || StoreAdminError::Nothing(format!("there is no revision {number} in the store"));
        Ok((key, entry.ok_or_else(none)?))
    }

    /// Writes a text, checked already, if `base` is the current revision. With `end_trial`, a roll-out in progress is
    /// ended.
    ///
    /// # Errors
    ///
    /// The text was not written; or the store does not answer, and it is not known whether the text was written.
    pub async fn push(
        &mut self,
        base: Base<'_>,
        push: Push,
        end_trial: bool,
    ) -> Result<WrittenChange, StoreAdminError> {
        let loaded = self.load_head().await?;
        base.fits(loaded.current())
            .map_err(StoreAdminError::ChangedMeanwhile)?;
        let nodes = loaded.goes_by();
        let ended = loaded.head.as_ref().filter(|_| end_trial);
        let why = || "another revision was pushed".to_owned();
        let ended = ended.and_then(|head| change::take_back(head, why(), push.at, tag()));
        let head = ended.as_ref().or(loaded.head.as_ref());
        let (next, revision) = change::push(head, &nodes, push, tag())?;
        let key = self.names.revision_key(revision.number);
        let more = Write::Put(key, revision.write(), 0);
        self.write(&loaded, &next, vec![more]).await?;
        Ok(WrittenChange {
            staged: next.trial.is_some(),
            to: revision.pointer(),
            waited: waiting(&loaded.nodes),
        })
    }

    /// Goes back to the revision with the number `to`. Without `to`, ends a roll-out in progress, or else goes back to
    /// the previous revision.
    ///
    /// # Errors
    ///
    /// Nothing was written; or the store does not answer, and it is not known whether the head was written.
    pub async fn roll_back(
        &mut self,
        to: Option<u64>,
        who: &str,
        message: &str,
    ) -> Result<WrittenChange, StoreAdminError> {
        let loaded = self.load_head().await?;
        let Some(head) = &loaded.head else {
            return Err(StoreAdminError::Nothing(
                "there is nothing in the store yet".into(),
            ));
        };
        if let Some(number) = to {
            let old = self.any_revision(number).await?;
            let push = Push {
                text: old.text,
                author_name: who.into(),
                message: match message {
                    "" => format!("back to revision {number}"),
                    message => message.into(),
                },
                staged: false,
                at: unix_seconds(),
            };
            return self.push(Base::Any, push, true).await;
        }
        let next = change::go_back(head, &loaded.goes_by(), tag()).ok_or_else(|| {
            let why =
                "the previous revision is not known: name a revision (see `evenkeel store history`)";
            StoreAdminError::Nothing(why.into())
        })?;
        let to = next.current.clone();
        let to = to.ok_or_else(|| {
            StoreAdminError::Nothing("there is no previous revision to go back to".into())
        })?;
        self.read_revision(&to).await?;
        self.write(&loaded, &next, Vec::new()).await?;
        Ok(WrittenChange {
            to,
            staged: false,
            waited: waiting(&loaded.nodes),
        })
    }

    /// Confirms that balancers are to have the store's content, though the store went back in time.
    ///
    /// # Errors
    ///
    /// Nothing was written; or the store does not answer, and it is not known whether the head was written.
    pub async fn confirm(&mut self) -> Result<WrittenChange, StoreAdminError> {
        let loaded = self.load_head().await?;
        let current = loaded.current().cloned();
        let (Some(head), Some(to)) = (&loaded.head, current) else {
            return Err(StoreAdminError::Nothing(
                "there is nothing in the store: write a configuration there with `evenkeel store push`".into(),
            ));
        };
        self.read_revision(&to).await?;
        let next = change::confirm(head, &loaded.goes_by(), tag());
        self.write(&loaded, &next, Vec::new()).await?;
        Ok(WrittenChange {
            to,
            staged: next.trial.is_some(),
            waited: waiting(&loaded.nodes),
        })
    }

    /// Replaces the loaded head by `next`, and makes the other writes in the same transaction.
    async fn write(
        &mut self,
        loaded: &Loaded,
        next: &Head,
        mut writes: Vec<Write>,
    ) -> Result<(), StoreAdminError> {
        let key = self.names.head_key();
        writes.push(Write::Put(key.clone(), next.write(), 0));
        let written = self.etcd.write_if((&key, loaded.changed), writes).await;
        let is_written = match written {
            Ok(is_written) => is_written,
            // The answer was lost, but the head may be written.
            Err(error @ EtcdError::Unreachable(_)) => {
                let read = self.etcd.read(Keys::One(&key)).await;
                let there = read.ok().and_then(|read| read.entries.into_iter().next());
                let there = there.and_then(|entry| Head::read(&entry.value).ok());
                match there.is_some_and(|there| there.follows(&next.mark())) {
                    true => true,
                    false => return Err(error.into()),
                }
            }
            Err(error) => return Err(error.into()),
        };
        match is_written {
            true => Ok(()),
            false => Err(StoreAdminError::ChangedMeanwhile(
                "another change of the store came first: nothing was written. Look at the revision in the \
                 store, then repeat the change".into(),
            )),
        }
    }

    /// Writes the next head of a roll-out, if the head has not changed meanwhile. Returns true if it was written.
    ///
    /// # Errors
    ///
    /// The store does not answer, or refuses.
    pub async fn go_on(&mut self, changed: i64, next: &Head) -> Result<bool, EtcdError> {
        let key = self.names.head_key();
        let writes = vec![Write::Put(key.clone(), next.write(), 0)];
        self.etcd.write_if((&key, changed), writes).await
    }

    /// Reads the current revision, or the revision with this number.
    ///
    /// # Errors
    ///
    /// The store has no such revision, or does not answer.
    pub async fn pull_text(&mut self, number: Option<u64>) -> Result<Revision, StoreAdminError> {
        match number {
            Some(number) => self.any_revision(number).await,
            None => {
                let loaded = self.load_head().await?;
                let current = loaded.current().cloned();
                let current = current.ok_or_else(|| {
                    StoreAdminError::Nothing("there is nothing in the store yet".into())
                })?;
                self.read_revision(&current).await
            }
        }
    }

    /// Returns the difference between two revisions, or between a revision and a text, in the format of `diff -u`.
    /// Without `from`, the current revision is compared.
    ///
    /// # Errors
    ///
    /// The store has no such revision, or does not answer.
    pub async fn diff(
        &mut self,
        from: Option<u64>,
        to: Other<'_>,
    ) -> Result<String, StoreAdminError> {
        let from = self.pull_text(from).await?;
        let name = |number: u64| format!("revision {number}");
        let (other, text) = match to {
            Other::Revision(number) => (name(number), self.any_revision(number).await?.text),
            Other::Text(name, text) => (name.to_owned(), text.to_owned()),
        };
        Ok(edit::unified(
            (&name(from.number), &from.text),
            (&other, &text),
        ))
    }

    /// Lists the last revisions, one a line, the newest first; then what each balancer runs.
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn history(&mut self, limit: i64) -> Result<String, StoreAdminError> {
        let loaded = self.load_head().await?;
        let mut out = String::new();
        let prefix = self.names.revision_prefix();
        let mut left = limit.clamp(1, MAX_HISTORY);
        let mut before: Option<String> = None;
        while left > 0 {
            let keys = Keys::Last(&prefix, left.min(AT_ONCE), before.as_deref());
            let read = self.etcd.read(keys).await?;
            let Some(last) = read.entries.last() else {
                break;
            };
            before = Some(String::from_utf8_lossy(&last.key).into_owned());
            left -= AT_ONCE;
            for entry in &read.entries {
                // Writing to a string cannot fail.
                let _ = match Revision::read_any(&entry.value) {
                    Ok(revision) => writeln!(out, "{}", line(&revision, loaded.head.as_ref())),
                    Err(error) => {
                        let key = String::from_utf8_lossy(&entry.key);
                        writeln!(out, "{}: {error}", key.escape_debug())
                    }
                };
            }
        }
        if let Some(failed) = loaded.head.as_ref().and_then(|head| head.failed.as_ref()) {
            let (at, why) = (shown(failed.at), plain(&failed.why));
            let _ = writeln!(out, "\n{} was taken back at {at}: {why}", failed.to);
        }
        out.push('\n');
        for node in &loaded.nodes {
            out.push_str(&of_node(node));
        }
        if loaded.nodes.is_empty() {
            out.push_str("no balancer reports which revision it runs\n");
        }
        Ok(out)
    }
}

/// The second text of a comparison.
#[derive(Clone, Copy, Debug)]
pub enum Other<'a> {
    /// The revision with this number.
    Revision(u64),
    /// Name and text.
    Text(&'a str, &'a str),
}

/// Puts a text written by others on one line of at most 300 characters, without control characters.
fn plain(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(plain).take(300).collect()
}

fn line(revision: &Revision, head: Option<&Head>) -> String {
    let to = revision.pointer();
    let under_trial = head.and_then(|head| head.trial.as_ref());
    let trial = under_trial.filter(|trial| trial.to == to);
    let failed = head.and_then(|head| head.failed.as_ref());
    let is_current = head.is_some_and(|head| head.current.as_ref() == Some(&to));
    let mark = match (is_current, trial.map(|trial| trial.step)) {
        (true, _) if under_trial.is_some() => "  <- the others have it",
        (true, _) => "  <- all have it",
        (_, Some(Step::One)) => "  <- is tried by one",
        (_, Some(Step::Share)) => "  <- is tried by some",
        (_, Some(Step::All)) => "  <- is tried by all",
        _ if failed.is_some_and(|failed| failed.to == to) => "  <- was taken back",
        _ => "",
    };
    let who = match revision.who.as_str() {
        "" => "-".into(),
        who => plain(who),
    };
    format!(
        "{:>5}  {}  {}  {who}  {}{mark}",
        revision.number,
        to.id,
        shown(revision.at),
        plain(&revision.message)
    )
}

fn of_node(node: &Report) -> String {
    let name = plain(&node.name);
    let runs = match &node.running {
        Some(running) => format!("runs {running}"),
        None => "runs no revision of the store".into(),
    };
    let refused = node.refused.as_ref().map_or_else(String::new, |refused| {
        format!("; refuses {}: {}", refused.to, plain(&refused.why))
    });
    let waits = match node.waits {
        true => {
            "; waits: the store has gone back in time. Push a configuration, or run `evenkeel store confirm`"
        }
        false => "",
    };
    format!("{name}: {runs}{refused}{waits}\n")
}

fn waiting(nodes: &[Report]) -> Vec<String> {
    let waiting = nodes.iter().filter(|node| node.waits);
    waiting.map(|node| node.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::Counts;
    use crate::model::{FORMAT, Failed, Refused};

    #[test]
    fn revisions_are_sorted_by_their_keys_as_by_their_numbers() {
        let names = Names("/evenkeel/".into());
        assert_eq!(names.head_key(), "/evenkeel/head");
        assert!(names.revision_key(9) < names.revision_key(10));
        assert!(names.revision_key(10) < names.revision_key(u64::MAX));
        assert_eq!(names.node_key("a"), "/evenkeel/nodes/a");
    }

    #[test]
    fn a_push_is_one_of_what_is_there() {
        let current = Pointer {
            number: 3,
            id: "abc".into(),
        };
        for base in [Base::Any, Base::Number(3), Base::Id("abc")] {
            assert_eq!(base.fits(Some(&current)), Ok(()));
        }
        for base in [Base::Empty, Base::Number(2), Base::Id("abd")] {
            let why = base.fits(Some(&current)).unwrap_err();
            assert!(why.starts_with("the store has revision 3 (abc)"), "{why}");
        }
        assert_eq!(Base::Empty.fits(None), Ok(()));
        let why = Base::Number(2).fits(None).unwrap_err();
        assert!(why.starts_with("the store has nothing"), "{why}");
    }

    #[test]
    fn lines_say_who_wrote_what_and_who_has_it() {
        let push = |text: &str, staged| Push {
            text: text.into(),
            author_name: "anna".into(),
            message: "one\nmore".into(),
            staged,
            at: 0,
        };
        let (head, one) = change::push(None, &[], push("1", false), tag()).unwrap();
        let said = line(&one, Some(&head));
        assert!(said.contains("anna  one more  <- all have it"), "{said}");
        assert!(said.contains("1970-01-01T00:00:00Z"), "{said}");
        let (head, two) = change::push(Some(&head), &[], push("2", true), tag()).unwrap();
        assert!(line(&two, Some(&head)).ends_with("<- is tried by one"));
        assert!(line(&one, Some(&head)).ends_with("<- the others have it"));
        let failed = Failed {
            to: two.pointer(),
            why: "502".into(),
            at: 1,
        };
        let taken_back = Head {
            trial: None,
            failed: Some(failed),
            ..head.clone()
        };
        assert!(line(&two, Some(&taken_back)).ends_with("<- was taken back"));
        assert!(line(&one, Some(&taken_back)).ends_with("<- all have it"));
        assert!(line(&two, None).ends_with("one more"));
        let mut node = Report {
            format: FORMAT,
            name: "edge-1".into(),
            version: String::new(),
            process: String::new(),
            mark: None,
            running: Some(one.pointer()),
            refused: None,
            waits: false,
            counts: Counts::default(),
            before: Counts::default(),
        };
        assert_eq!(
            of_node(&node),
            format!("edge-1: runs revision 1 ({})\n", one.pointer().id)
        );
        node.refused = Some(Refused {
            to: two.pointer(),
            why: "no".into(),
        });
        node.waits = true;
        let said = of_node(&node);
        assert!(
            said.contains("; refuses revision 2 (") && said.contains("confirm"),
            "{said}"
        );
    }
}
