//! Configurations that are proposed: what is wrong with them, and what they would change.

use evenkeel_manager::ChangeError;
use evenkeel_manager::config::edit;
use evenkeel_manager::config::image::{Import, ImportOutcome, Plan};
use evenkeel_manager::config::{self, Config, Problem, kept};
use evenkeel_manager::subsystem::PrepareError;

use crate::config_errors::problems_of;
use crate::error::ApiError;
use crate::sources::Sources;
use crate::wire::{Proposed, Told};

/// Findings about a configuration that was proposed.
pub(crate) struct ProposalFindings {
    pub(crate) text: String,
    pub(crate) problems: Vec<Told>,
    pub(crate) warnings: Vec<Told>,
    pub(crate) needs_restart: Vec<String>,
    pub(crate) import: Option<ImportOutcome>,
    /// Warnings about the import itself, which the new text does not give.
    pub(crate) notes: Vec<String>,
}

impl ProposalFindings {
    /// Returns the findings about a text of which nothing is known yet.
    fn of_text(text: &str) -> Self {
        ProposalFindings {
            text: text.to_owned(),
            problems: Vec::new(),
            warnings: Vec::new(),
            needs_restart: Vec::new(),
            import: None,
            notes: Vec::new(),
        }
    }
}

/// Returns the texts that the configuration with the text `in_force` is made of. The text `in_force` is the
/// first.
pub(crate) fn texts_of(sources: &Sources, in_force: &str) -> Vec<(String, String)> {
    let file = &sources.config_file;
    let own = file.display().to_string();
    let (mut texts, of) = match sources.manager.store() {
        None => (vec![(own, in_force.to_owned())], in_force.to_owned()),
        Some(store) => {
            let text = config::text_of(file).unwrap_or_default();
            let texts = vec![(store.name(), in_force.to_owned()), (own, text.clone())];
            (texts, text)
        }
    };
    let included = config::list_included(file, &of).into_iter();
    texts.extend(included.map(|(file, text)| (file.display().to_string(), text)));
    texts
}

/// Looks at an import of an image into the configuration with the text `old`.
pub(crate) fn look_at_import(sources: &Sources, old: &str, import: &Import) -> ProposalFindings {
    let plan = Plan::new(&texts_of(sources, old), import);
    let told = |problems: Vec<Problem>| problems.into_iter().map(Told::from);
    let mut looked = ProposalFindings {
        problems: told(plan.problems.clone()).collect(),
        warnings: told(plan.warnings.clone()).collect(),
        notes: plan.warnings.iter().map(Problem::to_string).collect(),
        ..ProposalFindings::of_text(&plan.text)
    };
    if plan.has_text() {
        let mut whole = ProposalFindings::of_text(&plan.text);
        find_problems(sources, &mut whole);
        let placed = |all: Vec<Told>| {
            let problems = all.into_iter().map(Problem::from).collect();
            told(plan.place(problems))
        };
        looked.problems.extend(placed(whole.problems));
        looked.warnings.extend(placed(whole.warnings));
        looked.needs_restart = whole.needs_restart;
    }
    let place = |told: &Told| (told.file.clone(), told.line, told.column);
    looked.problems.sort_by_key(place);
    looked.import = Some(plan.outcome);
    looked
}

/// Looks at a configuration as `evenkeel check` does.
pub(crate) fn examine_proposed(
    sources: &Sources,
    old: &str,
    proposed: Proposed,
) -> Result<ProposalFindings, ApiError> {
    let mut looked = ProposalFindings::of_text(old);
    match (proposed.text, proposed.edits, proposed.import) {
        (Some(text), None, None) => looked.text = text,
        (None, None, Some(import)) => return Ok(look_at_import(sources, old, &import)),
        (None, Some(edits), None) => match apply_edits(sources, old, &edits) {
            Ok(text) => looked.text = text,
            Err(error) => {
                looked.problems = problems_of(&ChangeError::Edit(error));
                return Ok(looked);
            }
        },
        _ => {
            let detail = "the body must have either a text, or edits, or an import";
            return Err(ApiError::invalid("bad_body", detail));
        }
    }
    if edit::has_masked_secret(&looked.text) {
        looked.problems = problems_of(&ChangeError::Masked);
        return Ok(looked);
    }
    find_problems(sources, &mut looked);
    Ok(looked)
}

/// Finds what is wrong with a text.
fn find_problems(sources: &Sources, looked: &mut ProposalFindings) {
    let name = sources.config_file.display().to_string();
    match sources.manager.parse(&sources.config_file, &looked.text) {
        Ok(config) => {
            looked.problems = in_files(sources, &name, &config);
            looked.needs_restart = sources.manager.would_need_restart(&config);
            let of_files = kept::complaints(config.files()).into_iter();
            let of_files: Vec<_> = of_files
                .map(|complaint| Told::of_file(&name, complaint))
                .collect();
            let warnings = config.warnings.into_iter().map(Told::from);
            looked.warnings = warnings.chain(of_files).collect();
        }
        Err(errors) => looked.problems = problems_of(&ChangeError::Config(errors)),
    }
}

/// Applies the edits to a text; a text that is shared includes nothing.
fn apply_edits(
    sources: &Sources,
    old: &str,
    edits: &[edit::Edit],
) -> Result<String, edit::EditError> {
    match sources.manager.store() {
        None => edit::apply_in(&sources.config_file, old, edits),
        Some(_) => edit::apply_edits(old, edits),
    }
}

/// Returns the problems of files that a configuration names.
fn in_files(sources: &Sources, name: &str, config: &Config) -> Vec<Told> {
    let lists = evenkeel_manager::lists::check_files(config);
    let of_lists = lists
        .into_iter()
        .map(|problem| Told::of_file(name, problem));
    let proxy = evenkeel_proxy::check_files(config);
    let others = sources.manager.subsystems().check(config);
    let all = proxy.into_iter().chain(others).map(|error| match error {
        PrepareError::File(problem) => Told::from(*problem),
        error => Told::of_file(name, error.to_string()),
    });
    of_lists.chain(all).collect()
}
