//! Results of questions and changes.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use evenkeel_core::load::{InvalidLoad, TooManyLoads};
use evenkeel_core::member::InvalidWeight;
use evenkeel_core::strategy::{self, ParamError};

use crate::config::edit::{self, Edit, EditError};
use crate::config::kept::MemoryFiles;
use crate::config::{self, Errors, GeneratedText};
use crate::revisions::Revision;
use crate::store::StoreError;
use crate::subsystem::ApplyError;

/// Readiness of this process: an answer to whether clients should be sent here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Clients are served.
    Ready,
    /// There is no configuration yet.
    NoConfig,
    /// No enabled rule has a member that may be used; or the rule that was asked for has none.
    NoMember,
    /// There is no such rule.
    NoRule,
}

/// Rules and groups that a controller has generated.
#[derive(Clone, Default, PartialEq)]
pub struct Generated {
    /// Text of a configuration that has nothing but rules and groups.
    pub text: GeneratedText,
    /// Contents of the files that the text names: the files are on no disk.
    pub files: Arc<MemoryFiles>,
}

/// Shows no secret.
impl fmt::Debug for Generated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: Vec<_> = self.files.keys().collect();
        f.debug_struct("Generated")
            .field("text", &self.text)
            .field("files", &files)
            .finish()
    }
}

/// A configuration that is in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedConfig {
    /// Number of this process's configuration, from 1.
    pub generation: u64,
    /// Notes for the user: settings that are probably not meant, and changes that need a restart.
    pub notes: Vec<String>,
}

/// A file that could not be put into effect. The old configuration goes on.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The file is wrong.
    #[error(transparent)]
    Config(#[from] config::Errors),
    /// The file is right, but it cannot be done.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The file has no rule any more.
    #[error(
        "{0} has no rules any more, so that all listeners would close; if that is meant, run `evenkeel ctl reload --force`"
    )]
    NoRules(String),
}

/// Result of the last start or reload.
#[derive(Clone, Debug)]
pub(crate) struct Reload {
    pub at: SystemTime,
    pub error: Option<String>,
}

/// A command that could not be carried out. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum ManageError {
    /// No such rule.
    #[error("there is no rule {0:?}")]
    NoRule(String),
    /// No such group.
    #[error("there is no group {0:?}")]
    NoGroup(String),
    /// No such member.
    #[error("group {group:?} has no member {member:?}")]
    NoMember {
        /// The group.
        group: String,
        /// Name that was asked for.
        member: String,
    },
    /// No such location.
    #[error("there is no member at location {0:?}")]
    NoLocation(String),
    /// No such strategy.
    #[error("there is no strategy {name:?}; there are {}", strategy_names())]
    NoStrategy {
        /// Name that was asked for.
        name: String,
    },
    /// The strategy does not take that.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// Not a weight.
    #[error(transparent)]
    Weight(#[from] InvalidWeight),
    /// Not a load.
    #[error(transparent)]
    Load(#[from] InvalidLoad),
    /// The location keeps enough loads.
    #[error(transparent)]
    TooManyLoads(#[from] TooManyLoads),
    /// The data plane cannot do it.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

impl ManageError {
    /// True if the command named something that is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self,
            ManageError::NoRule(_)
                | ManageError::NoGroup(_)
                | ManageError::NoMember { .. }
                | ManageError::NoLocation(_)
        )
    }
}

fn strategy_names() -> String {
    let names: Vec<_> = strategy::REGISTRY.iter().map(|kind| kind.name).collect();
    names.join(", ")
}

/// Configuration that is wanted.
#[derive(Clone, Debug, PartialEq)]
pub enum WantedConfig {
    /// The given text, unless it takes all rules away.
    Text(String),
    /// The given text, even if it takes all rules away.
    AnyText(String),
    /// The text in force with these edits.
    Edits(Vec<Edit>),
    /// The text before the last change.
    Undo,
    /// The text of this revision.
    Restore(String),
}

/// A configuration that is in force and in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedConfig {
    /// Revision by which the text is known.
    pub revision: String,
    /// Number of this process's configuration, from 1.
    pub generation: u64,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// False if a store has the text, from where balancers take it over when it is their turn.
    pub in_effect: bool,
}

/// A change that was not made: the configuration is what it was.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The configuration in force came from no file.
    #[error("the configuration in force did not come from a file, so it cannot be changed here")]
    NoFile,
    /// The change is one of another configuration.
    #[error("{}", changed_meanwhile(.0))]
    ChangedMeanwhile(Box<Revision>),
    /// The file says something else than what is in force.
    #[error(
        "{why}: nothing was changed. Reload the file, or write it back to what it was, and try again"
    )]
    FileChanged {
        /// Difference, as `diff -u` writes it; empty if the file cannot be read.
        diff: String,
        /// Description of how they differ.
        why: String,
    },
    /// An edit is not possible.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// A secret in the text is masked.
    #[error(
        "the text has {} in place of a secret, as shown to users who may not see secrets, so the secret is not known. Send only the changes, as edits (PATCH)",
        edit::MASK
    )]
    Masked,
    /// The text is wrong.
    #[error(transparent)]
    Config(#[from] Errors),
    /// The text is right, but it cannot be done.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The file cannot be written.
    #[error("{file} cannot be written: {why}; the configuration stays as it was. {remedy}")]
    Write {
        /// Name of the file.
        file: String,
        /// Reason why it cannot be written.
        why: String,
        /// Advice, in whole sentences.
        remedy: String,
    },
    /// The file could not be written, and what was in force before could not be put back.
    #[error(
        "the new configuration is in force, but {file} cannot be written: {why}; and the old one \
         could not be put back: {back}"
    )]
    Stuck {
        /// Name of the file.
        file: String,
        /// Reason why the file was not written.
        why: String,
        /// Error that prevented the way back.
        back: ApplyError,
    },
    /// The store that balancers share does not have it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no such revision.
    #[error("there is no revision {0:?} in the history")]
    NoRevision(String),
    /// The text says something else of whom the process is.
    #[error(
        "[process] says as which user the balancer runs: change it in the file on the balancer's machine. Nothing was changed"
    )]
    Process,
    /// The text has no rule, and there are some.
    #[error(
        "the text has no rules, so that all listeners would close: nothing was changed. If that is meant, send \
         `\"force\": true` (`evenkeel ctl config apply --force`)"
    )]
    NoRules,
    /// There is nothing to go back to.
    #[error("there is no earlier configuration to go back to")]
    NothingToUndo,
}

fn changed_meanwhile(now: &Revision) -> String {
    let who = match now.who.as_str() {
        "" => String::new(),
        who => format!(" by {who}"),
    };
    let revision = &now.revision;
    format!(
        "the configuration has changed meanwhile{who}: revision {revision} is in force. Look at it, and \
         send your change with If-Match: \"{revision}\""
    )
}
