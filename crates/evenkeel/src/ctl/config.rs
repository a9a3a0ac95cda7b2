//! `evenkeel ctl config`: the configuration of a running balancer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use evenkeel_admin::ctl::Ctl;
use evenkeel_admin::ctl::config::{format_notes, format_outcome};
use evenkeel_admin::wire::{
    Compared, Configuration, Examined, ImportRule, PatchConfig, Proposed, PutConfig, Restore, Told,
    Undo,
};
use evenkeel_config::edit::{self, Edit, Part};
use evenkeel_config::image::{IMAGE, Import};
use evenkeel_config::{Errors, MAX_FILE_SIZE, Problem, read_file};

use crate::{Failure, check};

/// Commands of `evenkeel ctl config`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
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
    comment: String,
    /// Revision that must be in force; otherwise nothing is changed [default: the one in force]
    #[arg(long = "if", value_name = "REVISION")]
    base: Option<String>,
}

/// Reads a new name, as in `group.web=shop`.
fn new_name(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((old, new)) if !old.is_empty() && !new.is_empty() => Ok((old.into(), new.into())),
        _ => Err("expected OLD=NEW, as in group.web=shop".into()),
    }
}

/// Runs a command; answers what to print.
pub(crate) fn run(ctl: &Ctl, command: &Command) -> Result<String, Failure> {
    match command {
        Command::Show => Ok(ctl.show_configuration()?),
        Command::Download => Ok(ctl.in_force()?.text),
        Command::Schema => Ok(ctl.keys()?),
        Command::Validate { file } => {
            let here = Here::of(ctl, file)?;
            let body = here.proposed()?;
            let examined: Examined = ctl
                .client
                .post_resource(&["v1", "config", "validate"], &body)?;
            let printed = ctl.print_answer(&examined, |examined| {
                let warnings = here.warnings(&examined.warnings);
                let notes = format_notes(&examined.needs_restart);
                format!("{warnings}{}: good\n{notes}", file.display())
            })?;
            here.passed(ctl, printed, examined.problems)
        }
        Command::Diff { file } => {
            let here = Here::of(ctl, file)?;
            let proposed = here.proposed()?;
            compare(ctl, &here, &proposed)
        }
        Command::Apply {
            file,
            force,
            change,
        } => {
            let here = Here::of(ctl, file)?;
            let body = PutConfig {
                text: here.text()?,
                comment: change.comment.clone(),
                force: *force,
            };
            let base = change.base.as_deref().or(Some(&here.revision));
            let done = ctl.change_configuration("PUT", None, base, &body)?;
            done.map_err(|problems| here.refused(problems))
        }
        Command::Set {
            path,
            value,
            change,
        } => {
            let (path, value) = (path.clone(), edit::value_of(value));
            patch(ctl, Edit::Set { path, value }, change)
        }
        Command::Remove { path, change } => {
            let path = path.clone();
            patch(ctl, Edit::Remove { path }, change)
        }
        Command::Rename { path, name, change } => {
            let (path, to) = (path.clone(), name.clone());
            patch(ctl, Edit::Rename { path, to }, change)
        }
        Command::Export { rule } => Ok(ctl.show_image(rule)?),
        Command::Import {
            file,
            rename,
            replace,
            dry_run,
            change,
        } => {
            let mut here = Here::of(ctl, file)?;
            here.is_image = true;
            let mut names = BTreeMap::new();
            for (old, new) in rename {
                if names.insert(old.clone(), new.clone()).is_some() {
                    return Err(Failure::new(format!("--rename {old} is given twice")));
                }
            }
            let import = Import {
                text: here.text()?,
                rename: names,
                replace: replace.clone(),
            };
            if *dry_run {
                let proposed = Proposed {
                    import: Some(import),
                    ..Proposed::default()
                };
                return compare(ctl, &here, &proposed);
            }
            let body = ImportRule {
                text: import.text,
                rename: import.rename,
                replace: import.replace,
                comment: change.comment.clone(),
            };
            let base = change.base.as_deref().or(Some(&here.revision));
            let done = ctl.change_configuration("POST", Some("import"), base, &body)?;
            done.map_err(|problems| here.refused(problems))
        }
        Command::History => Ok(ctl.list_revisions()?),
        Command::Undo { change } => {
            let comment = change.comment.clone();
            let base = change.base.as_deref();
            let done = ctl.change_configuration("POST", Some("undo"), base, &Undo { comment })?;
            done.map_err(refused)
        }
        Command::Restore { revision, change } => {
            let (revision, comment) = (revision.clone(), change.comment.clone());
            let body = Restore { revision, comment };
            let base = change.base.as_deref();
            let done = ctl.change_configuration("POST", Some("restore"), base, &body)?;
            done.map_err(refused)
        }
    }
}

/// Shows what would change.
fn compare(ctl: &Ctl, here: &Here<'_>, proposed: &Proposed) -> Result<String, Failure> {
    let compared: Compared = ctl
        .client
        .post_resource(&["v1", "config", "diff"], proposed)?;
    let printed = ctl.print_answer(&compared, |compared| {
        let warnings = here.warnings(&compared.warnings);
        let notes = format_notes(&compared.needs_restart);
        let import = compared
            .import
            .iter()
            .map(format_outcome)
            .collect::<String>();
        match compared.diff.as_str() {
            "" => format!("{} is in force\n{import}", here.file.display()),
            diff => format!("{diff}{import}{warnings}{notes}"),
        }
    })?;
    here.passed(ctl, printed, compared.problems)
}

fn patch(ctl: &Ctl, edit: Edit, change: &ChangeArgs) -> Result<String, Failure> {
    let body = PatchConfig {
        edits: vec![edit],
        comment: change.comment.clone(),
    };
    let done = ctl.change_configuration("PATCH", None, change.base.as_deref(), &body)?;
    done.map_err(refused)
}

fn refused(problems: Vec<Problem>) -> Failure {
    check::refuse_config(Errors {
        file: String::new(),
        problems,
        omitted: 0,
    })
}

/// A file on this machine that is to replace the balancer's.
struct Here<'f> {
    file: &'f Path,
    /// The balancer's file.
    theirs: String,
    /// The revision in force.
    revision: String,
    /// True if it is the image of a rule.
    is_image: bool,
}

impl<'f> Here<'f> {
    fn of(ctl: &Ctl, file: &'f Path) -> Result<Self, Failure> {
        let Configuration {
            file: theirs,
            revision,
            ..
        } = ctl.in_force()?;
        Ok(Here {
            file,
            theirs,
            revision,
            is_image: false,
        })
    }

    fn text(&self) -> Result<String, Failure> {
        let text = read_file(self.file, MAX_FILE_SIZE);
        text.map_err(|why| Failure::new(format!("{} {why}", self.file.display())))
    }

    fn proposed(&self) -> Result<Proposed, Failure> {
        Ok(Proposed {
            text: Some(self.text()?),
            ..Proposed::default()
        })
    }

    /// The problem in terms of the file here: the balancer speaks of its own file, or of an image.
    fn here(&self, mut problem: Problem) -> Problem {
        let name = match self.is_image {
            true => IMAGE,
            false => &self.theirs,
        };
        if problem.file == name {
            problem.file = self.file.display().to_string();
        }
        problem
    }

    fn warnings(&self, warnings: &[Told]) -> String {
        let all = warnings.iter().cloned().map(Problem::from);
        let all = all.map(|problem| format!("warning: {}\n", self.here(problem)));
        all.collect()
    }

    /// The problems as `evenkeel check` prints them.
    fn refused(&self, problems: Vec<Problem>) -> Failure {
        let problems = problems.into_iter().map(|problem| self.here(problem));
        refused(problems.collect())
    }

    /// Returns the text to print about a configuration, unless the configuration has problems.
    fn passed(&self, ctl: &Ctl, printed: String, problems: Vec<Told>) -> Result<String, Failure> {
        if problems.is_empty() {
            return Ok(printed);
        }
        if ctl.json {
            crate::print(printed)?;
        }
        Err(self.refused(problems.into_iter().map(Problem::from).collect()))
    }
}
