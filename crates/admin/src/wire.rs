//! The JSON that the API takes and gives, beside the manager's status: one definition
//! for the server and its clients.

use std::collections::BTreeMap;

use evenkeel_manager::config::Problem;
use evenkeel_manager::config::edit::{Change, Edit};
use evenkeel_manager::config::image::{Import, ImportOutcome};
use evenkeel_manager::status::Explained;
use evenkeel_manager::{AdminState, AlertSetting};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::actor::Role;

/// Reasons why a group's requests go to their members.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Explain {
    /// A decision that was taken for a real request, about one per second in which
    /// there was any; none before the first request.
    pub last: Option<Explained>,
    /// The decision that a request would get now. Nothing is bound by it, and it does
    /// not move a strategy that takes turns.
    pub next: Explained,
}

/// Name and password of a user who logs in.
#[derive(Clone, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Credentials {
    /// The name of the user.
    pub(crate) user: String,
    /// The password.
    pub(crate) password: String,
}

/// User who has logged in.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
pub(crate) struct LoggedIn {
    /// The name of the user.
    pub(crate) user: String,
    /// The user's role.
    pub(crate) role: Role,
    /// Token that requests which change anything carry as `X-Csrf-Token`.
    pub(crate) csrf: String,
}

/// State that a member shall have.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetState {
    /// `ready`, `drain` or `maintenance`.
    pub state: AdminState,
}

/// A member's new weight.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetWeight {
    /// 0 to 1000.
    pub weight: f64,
}

/// Backup setting that a member shall have.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetBackup {
    /// True if the member is a backup: it serves while no other member may.
    pub backup: bool,
}

/// Setting of a rule that says whether it shall accept clients.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetEnabled {
    /// True if the rule accepts clients.
    pub enabled: bool,
}

/// Maintenance of a rule or a group: on or off.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetMaintenance {
    /// True if maintenance is on.
    pub on: bool,
}

/// A group's new strategy.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetStrategy {
    /// Name of the strategy.
    pub name: String,
    /// Parameters of the strategy; parameters that are not named get their defaults.
    #[serde(default)]
    pub params: BTreeMap<String, f64>,
}

/// Load alert setting that a location shall have.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetAlert {
    /// `on`, `off`, or `auto`: as the load has it.
    pub alert: AlertSetting,
}

/// A load report of a location.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Loads by name (`cpu`) or number of their id.
    pub loads: BTreeMap<String, f64>,
}

/// Result of a reload.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Reloaded {
    /// Counts the configurations of this process, from 1.
    pub generation: u64,
    /// Changes in the file that need a restart to take effect.
    pub notes: Vec<String>,
}

/// The process that has taken over.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Upgraded {
    /// Process id of the new process.
    pub pid: u32,
    /// Version of the new process.
    pub version: String,
}

/// Result of a command that has nothing to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Done {
    /// Always true; a failure is another answer.
    pub ok: bool,
}

/// The configuration in force.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Configuration {
    /// File of the configuration.
    pub file: String,
    /// Revision of the text: the first 16 hexadecimal digits of its SHA-256.
    pub revision: String,
    /// Counts the configurations of this process, from 1.
    pub generation: u64,
    /// Text of the configuration. Users who may not change it see secrets as `********`.
    pub text: String,
    /// Content of the file now.
    pub on_disk: OnDisk,
    /// Values of the text, as a tree: tables, lists and values of TOML as tables, lists and values of JSON.
    pub values: serde_json::Value,
    /// Files that the configuration includes, in their order, as they are now. They are changed on disk only.
    #[serde(default)]
    pub included: Vec<Included>,
}

/// A file that the configuration includes.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Included {
    /// Name of the included file.
    pub file: String,
    /// Text of the file, with secrets as in the text of the configuration.
    pub text: String,
}

/// Content of the configuration's file, beside the configuration in force.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct OnDisk {
    /// Revision of the file's text; `null` if the file cannot be read.
    pub revision: Option<String>,
    /// True if the file's text is not the text in force.
    pub differs: bool,
    /// Reason why the file cannot be read.
    pub error: Option<String>,
    /// Reason why changes by the API cannot be written to it, and what to do; `null` if they can.
    #[serde(default)]
    pub unwritable: Option<String>,
}

/// A configuration that is to be looked at: a whole text, or edits of that in force, or that with an image.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proposed {
    /// The whole text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Edits, one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edits: Option<Vec<Edit>>,
    /// The image of a rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import: Option<Import>,
}

/// The image of a rule that is to be taken in.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportRule {
    /// The image.
    pub text: String,
    /// New names of its rule and groups, by their paths (`group.pool`), or by their names alone where only one of
    /// them is called so.
    #[serde(default)]
    pub rename: BTreeMap<String, String>,
    /// Paths of tables (`group.pool`) that take the place of those of the same name.
    #[serde(default)]
    pub replace: Vec<String>,
    /// Reason, for the history.
    #[serde(default)]
    pub comment: String,
}

/// The image of a rule: the rule with the groups and locations that it refers to.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct RuleImage {
    /// The name of the rule.
    pub rule: String,
    /// The image: a configuration. Users who may not change the configuration see secrets as `********`.
    pub text: String,
    /// Paths of the tables in it, as in `group.pool`.
    pub tables: Vec<String>,
    /// Files that it names, which are no part of it.
    pub files: Vec<String>,
    /// Environment variables in it.
    pub variables: Vec<String>,
    /// Problems of the image by itself: what the balancer that takes it in must have, such as `[acme]`.
    pub problems: Vec<Told>,
    /// Revision of the configuration from which it was taken.
    pub revision: String,
}

/// A configuration as a whole.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PutConfig {
    /// Text of the new configuration.
    pub text: String,
    /// Reason for the change.
    #[serde(default)]
    pub comment: String,
    /// True if a text that takes all rules away is meant.
    #[serde(default)]
    pub force: bool,
}

/// Edits of the configuration.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatchConfig {
    /// The edits, one after the other: all of them or none.
    pub edits: Vec<Edit>,
    /// Reason for the change.
    #[serde(default)]
    pub comment: String,
}

/// The last change is to be taken back.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Undo {
    /// Reason for the change.
    #[serde(default)]
    pub comment: String,
}

/// An earlier configuration is to be in force.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restore {
    /// Revision that is restored.
    pub revision: String,
    /// Reason for the change.
    #[serde(default)]
    pub comment: String,
}

/// Problem of a configuration, or something that is probably not meant.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Told {
    /// The file; empty if it is about an edit.
    pub file: String,
    /// Line, from 1; 0 if it is about no line.
    pub line: usize,
    /// Column in characters, from 1; 0 if it is about no line.
    pub column: usize,
    /// Path of the key (`rule.web.members[1].weight`); empty if it is about none.
    pub key: String,
    /// Description of what is wrong.
    pub message: String,
    /// Text that was found, as it stands in the file.
    pub found: Option<String>,
    /// Values that would be allowed.
    pub allowed: Option<String>,
}

impl From<Problem> for Told {
    fn from(problem: Problem) -> Self {
        Told {
            file: problem.file,
            line: problem.line,
            column: problem.column,
            key: problem.key,
            message: problem.message,
            found: problem.found_value,
            allowed: problem.allowed,
        }
    }
}

impl From<Told> for Problem {
    fn from(told: Told) -> Self {
        Problem {
            file: told.file,
            line: told.line,
            column: told.column,
            key: told.key,
            message: told.message,
            found_value: told.found,
            allowed: told.allowed,
        }
    }
}

/// Problems of a configuration.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Examined {
    /// True if the configuration could be applied, as far as can be seen without applying it.
    pub ok: bool,
    /// Problems, in the order of the file.
    pub problems: Vec<Told>,
    /// Warnings: things that are allowed, but probably not meant.
    pub warnings: Vec<Told>,
    /// Changes that would have no effect until the process is restarted.
    pub needs_restart: Vec<String>,
}

/// Changes that a configuration would make.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Compared {
    /// True if the configuration could be applied, as far as can be seen without applying it.
    pub ok: bool,
    /// Problems, in the order of the file.
    pub problems: Vec<Told>,
    /// Warnings: things that are allowed, but probably not meant.
    pub warnings: Vec<Told>,
    /// The lines that differ, as `diff -u` writes them.
    pub diff: String,
    /// The values that differ.
    pub changes: Vec<Change>,
    /// Changes that would have no effect until the process is restarted.
    pub needs_restart: Vec<String>,
    /// Revision of the text that is in force, which the configuration is compared with.
    pub revision: String,
    /// Result of the import, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import: Option<ImportOutcome>,
}

/// Result of a change of the configuration.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Changed {
    /// Revision of the text in force.
    pub revision: String,
    /// Counts the configurations of this process, from 1.
    pub generation: u64,
    /// Notes about things that are probably not meant, and changes that need a restart to take effect.
    pub notes: Vec<String>,
    /// False if the text is in the store that balancers share: each puts it into effect when it is its turn.
    #[serde(default = "yes")]
    pub in_effect: bool,
    /// Result of the import, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import: Option<ImportOutcome>,
}

fn yes() -> bool {
    true
}

/// The text of a configuration that is or was in force.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct RevisionText {
    /// Revision of the text.
    pub revision: String,
    /// Text of the revision. Users who may not change it see secrets as `********`.
    pub text: String,
    /// Differences between this text and the text in force, as `diff -u` writes them.
    pub diff: String,
}
