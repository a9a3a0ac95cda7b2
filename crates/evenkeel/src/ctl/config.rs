//! `evenkeel ctl config`: the configuration of a running balancer.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use evenkeel_admin::ctl::Ctl;
use evenkeel_admin::ctl::config::notes;
use evenkeel_admin::wire::{
    Compared, Configuration, Examined, PatchConfig, Proposed, PutConfig, Restore, Told, Undo,
};
use evenkeel_config::edit::{self, Edit, Part};
use evenkeel_config::{Errors, MAX_FILE_SIZE, Problem, read_file};

use crate::{Failure, check};

/// What `evenkeel ctl config` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the configuration in force, its revision, and whether its file says the same
    Show,
    /// Print the text of the configuration in force, and nothing else
    Download,
    /// Show all tables and keys that a configuration may have
    Schema,
    /// Let the balancer say what is wrong with a configuration
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
        /// Apply a configuration without rules, too: all listeners of rules close
        #[arg(long)]
        force: bool,
        /// What it is a change of, and why.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Set a key, in force and in the balancer's file
    Set {
        /// Its path, as in group.web.strategy; parts with dots in them stand in quotes
        #[arg(value_parser = edit::path_of)]
        path: std::vec::Vec<Part>,
        /// Its value as it stands in the file; what is none there is a text
        #[arg(allow_hyphen_values = true)]
        value: String,
        /// What it is a change of, and why.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Remove a key or a table, in force and in the balancer's file
    Remove {
        /// Its path, as in group.web
        #[arg(value_parser = edit::path_of)]
        path: std::vec::Vec<Part>,
        /// What it is a change of, and why.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Give a table another name; what rules and clusters call a group changes, too
    Rename {
        /// Its path, as in group.web
        #[arg(value_parser = edit::path_of)]
        path: std::vec::Vec<Part>,
        /// Its new name
        name: String,
        /// What it is a change of, and why.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Show the configurations that are and were in force, the last one first
    History,
    /// Take the last change back
    Undo {
        /// What it is a change of, and why.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Go back to an earlier configuration
    Restore {
        /// Its revision, as `history` shows it
        revision: String,
        /// What it is a change of, and why.
        #[command(flatten)]
        change: ChangeArgs,
    },
}

/// What a change is one of, and why.
#[derive(Clone, Debug, Args)]
pub(crate) struct ChangeArgs {
    /// Why, for the history
    #[arg(long, value_name = "TEXT", default_value = "")]
    comment: String,
    /// Revision that must be in force; otherwise nothing is changed [default: the one in force]
    #[arg(long = "if", value_name = "REVISION")]
    base: Option<String>,
}

/// Runs a command; answers what to print.
pub(crate) fn run(ctl: &Ctl, command: &Command) -> Result<String, Failure> {
    match command {
        Command::Show => Ok(ctl.configuration()?),
        Command::Download => Ok(ctl.in_force()?.text),
        Command::Schema => Ok(ctl.keys()?),
        Command::Validate { file } => {
            let here = Here::of(ctl, file)?;
            let body = here.proposed()?;
            let examined: Examined = ctl.client.post(&["v1", "config", "validate"], &body)?;
            let printed = ctl.print(&examined, |examined| {
                let warnings = here.warnings(&examined.warnings);
                let notes = notes(&examined.needs_restart);
                format!("{warnings}{}: good\n{notes}", file.display())
            })?;
            here.passed(ctl, printed, examined.problems)
        }
        Command::Diff { file } => {
            let here = Here::of(ctl, file)?;
            let body = here.proposed()?;
            let compared: Compared = ctl.client.post(&["v1", "config", "diff"], &body)?;
            let printed = ctl.print(&compared, |compared| {
                let warnings = here.warnings(&compared.warnings);
                let notes = notes(&compared.needs_restart);
                match compared.diff.as_str() {
                    "" => format!("{} is in force\n", file.display()),
                    diff => format!("{diff}{warnings}{notes}"),
                }
            })?;
            here.passed(ctl, printed, compared.problems)
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
            let done = ctl.configure("PUT", None, base, &body)?;
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
        Command::History => Ok(ctl.revisions()?),
        Command::Undo { change } => {
            let comment = change.comment.clone();
            let base = change.base.as_deref();
            let done = ctl.configure("POST", Some("undo"), base, &Undo { comment })?;
            done.map_err(refused)
        }
        Command::Restore { revision, change } => {
            let (revision, comment) = (revision.clone(), change.comment.clone());
            let body = Restore { revision, comment };
            let base = change.base.as_deref();
            let done = ctl.configure("POST", Some("restore"), base, &body)?;
            done.map_err(refused)
        }
    }
}

fn patch(ctl: &Ctl, edit: Edit, change: &ChangeArgs) -> Result<String, Failure> {
    let body = PatchConfig {
        edits: vec![edit],
        comment: change.comment.clone(),
    };
    let done = ctl.configure("PATCH", None, change.base.as_deref(), &body)?;
    done.map_err(refused)
}

fn refused(problems: Vec<Problem>) -> Failure {
    check::refused(Errors {
        file: String::new(),
        problems,
        omitted: 0,
    })
}

/// A file on this machine that is to be the balancer's.
struct Here<'f> {
    file: &'f Path,
    /// The balancer's file.
    theirs: String,
    /// The revision in force.
    revision: String,
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
        })
    }

    fn text(&self) -> Result<String, Failure> {
        let text = read_file(self.file, MAX_FILE_SIZE);
        text.map_err(|why| Failure::new(format!("{} {why}", self.file.display())))
    }

    fn proposed(&self) -> Result<Proposed, Failure> {
        Ok(Proposed {
            text: Some(self.text()?),
            edits: None,
        })
    }

    /// The balancer speaks of its file.
    fn here(&self, mut problem: Problem) -> Problem {
        if problem.file == self.theirs {
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

    /// What is printed of a configuration, unless something is wrong with it.
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
