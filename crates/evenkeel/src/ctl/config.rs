//! `evenkeel ctl config`: the configuration of a running balancer.

use std::collections::BTreeMap;
use std::path::Path;

use evenkeel_admin::ctl::Ctl;
use evenkeel_admin::ctl::config::{format_notes, format_outcome};
use evenkeel_admin::wire::{
    Compared, Configuration, Examined, ImportRule, PatchConfig, Proposed, PutConfig, Restore, Told,
    Undo,
};
use evenkeel_config::edit::{self, Edit};
use evenkeel_config::image::{IMAGE, Import};
use evenkeel_config::{Errors, MAX_FILE_SIZE, Problem, read_file};

use crate::cli::config::{ChangeArgs, ConfigCommand};
use crate::failure::{Failure, refuse_config};
use crate::output::print;

/// Runs a command; answers what to print.
pub(crate) fn run(ctl: &Ctl, command: &ConfigCommand) -> Result<String, Failure> {
    match command {
        ConfigCommand::Show => Ok(ctl.show_configuration()?),
        ConfigCommand::Download => Ok(ctl.in_force()?.text),
        ConfigCommand::Schema => Ok(ctl.keys()?),
        ConfigCommand::Validate { file } => validate(ctl, file),
        ConfigCommand::Diff { file } => {
            let here = Here::of(ctl, file)?;
            let proposed = here.proposed()?;
            compare(ctl, &here, &proposed)
        }
        ConfigCommand::Apply {
            file,
            force,
            change,
        } => apply(ctl, file, *force, change),
        ConfigCommand::Set {
            path,
            value,
            change,
        } => {
            let (path, value) = (path.clone(), edit::value_of(value));
            patch(ctl, Edit::Set { path, value }, change)
        }
        ConfigCommand::Remove { path, change } => {
            let path = path.clone();
            patch(ctl, Edit::Remove { path }, change)
        }
        ConfigCommand::Rename { path, name, change } => {
            let (path, to) = (path.clone(), name.clone());
            patch(ctl, Edit::Rename { path, to }, change)
        }
        ConfigCommand::Export { rule } => Ok(ctl.show_image(rule)?),
        ConfigCommand::Import {
            file,
            rename,
            replace,
            dry_run,
            change,
        } => {
            let (import, here) = read_image(ctl, file, rename, replace)?;
            match dry_run {
                true => compare_import(ctl, &here, import),
                false => take_image(ctl, &here, import, change),
            }
        }
        ConfigCommand::History => Ok(ctl.list_revisions()?),
        ConfigCommand::Undo { change } => {
            let comment = change.comment.clone();
            let base = change.base.as_deref();
            let done = ctl.change_configuration("POST", Some("undo"), base, &Undo { comment })?;
            done.map_err(refused)
        }
        ConfigCommand::Restore { revision, change } => {
            let (revision, comment) = (revision.clone(), change.comment.clone());
            let body = Restore { revision, comment };
            let base = change.base.as_deref();
            let done = ctl.change_configuration("POST", Some("restore"), base, &body)?;
            done.map_err(refused)
        }
    }
}

/// Checks a file.
fn validate(ctl: &Ctl, file: &Path) -> Result<String, Failure> {
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

/// Replaces the balancer's file.
fn apply(ctl: &Ctl, file: &Path, force: bool, change: &ChangeArgs) -> Result<String, Failure> {
    let here = Here::of(ctl, file)?;
    let body = PutConfig {
        text: here.text()?,
        comment: change.comment.clone(),
        force,
    };
    let base = change.base.as_deref().or(Some(&here.revision));
    let done = ctl.change_configuration("PUT", None, base, &body)?;
    done.map_err(|problems| here.refused(problems))
}

/// Reads the image of a rule, with the new names and replacements that the command line gives.
fn read_image<'f>(
    ctl: &Ctl,
    file: &'f Path,
    rename: &[(String, String)],
    replace: &[String],
) -> Result<(Import, Here<'f>), Failure> {
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
        replace: replace.to_vec(),
    };
    Ok((import, here))
}

/// Shows what an import would change.
fn compare_import(ctl: &Ctl, here: &Here<'_>, import: Import) -> Result<String, Failure> {
    let proposed = Proposed {
        import: Some(import),
        ..Proposed::default()
    };
    compare(ctl, here, &proposed)
}

/// Imports an image.
fn take_image(
    ctl: &Ctl,
    here: &Here<'_>,
    import: Import,
    change: &ChangeArgs,
) -> Result<String, Failure> {
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
    refuse_config(Errors {
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
            print(printed)?;
        }
        Err(self.refused(problems.into_iter().map(Problem::from).collect()))
    }
}
