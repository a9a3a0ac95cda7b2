//! Arguments of `evenkeel ctl config`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use evenkeel_config::edit::{self, Part};

/// Commands of `evenkeel ctl config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show the configuration in force, its revision, and whether its file says the same
    Show,
    /// Print the text of the configuration in force, and nothing else
    Download,
    /// Show all tables and keys that a configuration may have
    Schema,
    /// Let the balancer check a configuration
    Validate {
        /// A configuration on this machine
        file: PathBuf,
    },
    /// Show what differs between the configuration in force and another one
    Diff {
        /// A configuration on this machine
        file: PathBuf,
    },
    /// Put a configuration into force, and into the balancer's file
    Apply {
        /// A configuration on this machine
        file: PathBuf,
        /// Apply even a configuration without rules: all listeners of rules close
        #[arg(long)]
        force: bool,
        /// Revision that is changed, and a comment.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Set a key, in force and in the balancer's file
    Set {
        /// Path of the key, as in group.web.strategy; put parts with dots in quotes
        #[arg(value_parser = edit::path_of)]
        path: std::vec::Vec<Part>,
        /// Value as in the file; a value that would not be valid there is taken as a text
        #[arg(allow_hyphen_values = true)]
        value: String,
        /// Revision that is changed, and a comment.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Remove a key or a table, in force and in the balancer's file
    Remove {
        /// Path of the key or table, as in group.web
        #[arg(value_parser = edit::path_of)]
        path: std::vec::Vec<Part>,
        /// Revision that is changed, and a comment.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Give a table another name; the names of a group in rules and clusters change, too
    Rename {
        /// Path of the table, as in group.web
        #[arg(value_parser = edit::path_of)]
        path: std::vec::Vec<Part>,
        /// New name of the table
        name: String,
        /// Revision that is changed, and a comment.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Print the image of a rule: the rule with all that it refers to, for another balancer
    Export {
        /// Name of the rule
        rule: String,
    },
    /// Take the image of a rule in: into force, and into the balancer's file
    Import {
        /// An image on this machine, as `export` prints it
        file: PathBuf,
        /// Give the rule or a group of the image another name
        #[arg(long, value_name = "OLD=NEW", value_parser = new_name)]
        rename: Vec<(String, String)>,
        /// Replace a table of the balancer that differs, as in group.web
        #[arg(long, value_name = "TABLE")]
        replace: Vec<String>,
        /// Show what would change, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Revision that is changed, and a comment.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Show the configurations that are and were in force, the last one first
    History,
    /// Take the last change back
    Undo {
        /// Revision that is changed, and a comment.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Go back to an earlier configuration
    Restore {
        /// Revision, as `history` shows it
        revision: String,
        /// Revision that is changed, and a comment.
        #[command(flatten)]
        change: ChangeArgs,
    },
}

/// Base of a change, and the reason for the change.
#[derive(Clone, Debug, Args)]
pub(crate) struct ChangeArgs {
    /// Reason for the change, for the history
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub comment: String,
    /// Revision that must be in force; otherwise nothing is changed [default: the one in force]
    #[arg(long = "if", value_name = "REVISION")]
    pub base: Option<String>,
}

/// Reads a new name, as in `group.web=shop`.
fn new_name(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((old, new)) if !old.is_empty() && !new.is_empty() => Ok((old.into(), new.into())),
        _ => Err("expected OLD=NEW, as in group.web=shop".into()),
    }
}
