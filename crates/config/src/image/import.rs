//! An image taken in: what becomes of each of its tables, and the new text.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use toml_edit::{Document, DocumentMut};

use super::inherit;
use super::places::{KeyPositions, line_columns};
use super::tables::{Documents, IMAGE, SECTIONS, TableName, Texts, parts_of, path_of, text_of};
use crate::edit::{self, Edit, Part};
use crate::model::config;
use crate::schema::errors::{Errors, Problem};
use crate::schema::source::MAX_FILE_SIZE;
use crate::schema::table::read_document;

/// Most keys that are named where two tables differ.
const MAX_NAMED: usize = 5;

/// An image that is to be taken in.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Import {
    /// The image.
    pub text: String,
    /// New names of its rule and groups, by their paths (`group.pool`), or by their names alone where only one of
    /// them is called so.
    #[serde(default)]
    pub rename: BTreeMap<String, String>,
    /// Paths of tables (`group.pool`) that take the place of those of the same name.
    #[serde(default)]
    pub replace: Vec<String>,
}

/// Result of an import: the paths of the tables of the image.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ImportOutcome {
    /// Tables that are new here.
    pub added: Vec<String>,
    /// Tables that take the place of one of the same name.
    pub replaced: Vec<String>,
    /// Tables that say the same as here.
    pub unchanged: Vec<String>,
    /// Tables that say something else than those of the same name: nothing is imported while there are any.
    pub clashes: Vec<String>,
}

/// Effect that an import would have.
#[derive(Debug)]
pub struct Plan {
    /// The new text. With clashes it is as if those tables were to be replaced, so that all else can be checked.
    pub text: String,
    /// Effect on each table.
    pub outcome: ImportOutcome,
    /// Problems of the import that are known before the new text is checked.
    pub problems: Vec<Problem>,
    /// Warnings of what is probably not meant.
    pub warnings: Vec<Problem>,
    places: KeyPositions,
}

impl Plan {
    /// Finds out what becomes of the tables of an image, in a configuration that these texts mean. The first of them
    /// is the one that changes.
    pub fn new(texts: &Texts, import: &Import) -> Self {
        let base = texts.first().map(|(_, text)| text.as_str());
        let mut plan = Plan {
            text: base.unwrap_or_default().to_owned(),
            outcome: ImportOutcome::default(),
            problems: Vec::new(),
            warnings: Vec::new(),
            places: KeyPositions::default(),
        };
        match renamed(import) {
            Ok(text) => plan.look(texts, &text, &import.replace),
            Err(problems) => plan.problems = problems,
        }
        plan
    }

    /// True if the new text can be checked.
    pub fn has_text(&self) -> bool {
        let ImportOutcome {
            added,
            replaced,
            unchanged,
            clashes,
        } = &self.outcome;
        let mut all = [added, replaced, unchanged, clashes].into_iter();
        all.any(|tables| !tables.is_empty())
    }

    /// Keeps of the problems with the new text those that are to be told, with the lines of the image where they are
    /// about it.
    pub fn place(&self, problems: Vec<Problem>) -> Vec<Problem> {
        let is_tentative = !self.outcome.clashes.is_empty();
        let placed = problems.into_iter().filter_map(|problem| {
            let own_group = problem.key.strip_prefix("group.");
            let own_group = own_group.map(|rest| format!("rule.{rest}"));
            let place = self.places.find(&problem.key);
            let place = place.or_else(|| self.places.find(&own_group?));
            match place {
                Some((line, column)) => Some(Problem {
                    file: IMAGE.into(),
                    line,
                    column,
                    ..problem
                }),
                None => (!is_tentative).then_some(problem),
            }
        });
        placed.collect()
    }

    /// Looks at an image whose rule and groups have their new names.
    fn look(&mut self, texts: &Texts, image: &str, replace: &[String]) {
        let all = KeyPositions::parse(image);
        let problem = |key: &str, message: String| {
            let (line, column) = all.find(key).unwrap_or_default();
            Problem {
                line,
                column,
                key: key.into(),
                ..of_image(message)
            }
        };
        let document = Documents::parse(&[(IMAGE.into(), image.into())]);
        let Some(document) = document.0.first() else {
            return;
        };
        let tables = tables_of(document);
        self.problems = problems_of(document, &tables, replace, &problem);
        let masked = edit::masked_places(image);
        let masked = masked.into_iter().map(|place| place.start);
        for (line, column) in line_columns(image, masked) {
            let message = "a secret is masked: export the rule as a user who may administer, or write the secret here";
            self.problems.push(Problem {
                line,
                column,
                ..of_image(message.into())
            });
        }

        let documents = Documents::parse(texts);
        let here = Here {
            texts,
            defaults: documents.defaults(),
            documents,
            replace,
            problem: &problem,
        };
        let (mut edits, mut new) = (Vec::new(), Vec::new());
        for table in &tables {
            let (section, name) = table;
            let item = document.get(section);
            let Some(item) = item.and_then(|outer| outer.get(name.as_str())) else {
                continue;
            };
            let value = edit::json_of(item);
            let path = parts_of((section, name));
            match self.compare_table(table, &value, &here) {
                Effect::Added => new.push((path, value, text_of((section, name), item))),
                Effect::Changed => edits.push(Edit::Set { path, value }),
                Effect::None => {}
            }
        }
        let outcome = self.outcome.clone();
        let moved = [outcome.added, outcome.replaced, outcome.clashes];
        let moved: BTreeSet<String> = moved.into_iter().flatten().collect();
        let edited = match edits.is_empty() {
            true => Ok(self.text.clone()),
            false => edit::apply_edits(&self.text, &edits),
        };
        match edited.and_then(|text| appended(&text, &new)) {
            Ok(text) => self.text = text,
            Err(error) => self.problems.push(problem(&error.path, error.why)),
        }
        self.problems
            .sort_by_key(|problem| (problem.line, problem.column));
        let more = self.problems.len().saturating_sub(Errors::MAX_PROBLEMS);
        if more > 0 {
            self.problems.truncate(Errors::MAX_PROBLEMS);
            self.problems
                .push(of_image(format!("and {more} more problems")));
        }
        self.places = all;
        self.places.keep_tables(&moved);
    }

    /// Compares a table of the image with the balancer's table of that name.
    fn compare_table(&mut self, table: &TableName, value: &Json, here: &Here<'_>) -> Effect {
        let (section, name) = table;
        let path = path_of(table);
        let inherited = inherit::leaves(section, value, &here.defaults);
        let Some((index, known)) = here.documents.find(section, name) else {
            if !inherited.is_empty() {
                let message = format!(
                    "[defaults] of this balancer sets keys that the image does not set: {}",
                    named(inherited.iter().map(|(path, _)| path.join(".")))
                );
                self.warnings.push((here.problem)(&path, message));
            }
            self.outcome.added.push(path);
            return Effect::Added;
        };
        let known = edit::json_of(known);
        let of_known = inherit::leaves(section, &known, &here.defaults);
        let known = inherit::fill_table(&known, of_known);
        let wanted = inherit::fill_table(value, inherited);
        if edit::is_equal(&known, &wanted) {
            self.outcome.unchanged.push(path);
            return Effect::None;
        }
        if index > 0 {
            let file = here.texts.get(index).map(|(file, _)| file.as_str());
            let file = file.unwrap_or_default();
            let message = format!(
                "differs from the table in {file}, which is not changed from here: change the table there, or give this one another name"
            );
            self.problems.push((here.problem)(&path, message));
            self.outcome.clashes.push(path);
            return Effect::None;
        }
        if here.replace.contains(&path) {
            self.outcome.replaced.push(path);
            return Effect::Changed;
        }
        let differences = edit::list_changes(&known, &wanted);
        let differences = differences.iter().map(|change| edit::shown(&change.path));
        let rename = match *section {
            "location" => "",
            _ => ", or give it another name with `rename`",
        };
        let message = format!(
            "the balancer has another table of this name, which differs in {}: name the table in `replace` to replace it{rename}",
            named(differences)
        );
        self.problems.push((here.problem)(&path, message));
        self.outcome.clashes.push(path);
        Effect::Changed
    }
}

/// The balancer's configuration, and the request of the import.
struct Here<'a> {
    texts: &'a Texts,
    documents: Documents,
    defaults: Json,
    replace: &'a [String],
    /// Returns a problem at a key of the image.
    problem: &'a dyn Fn(&str, String) -> Problem,
}

/// Effect of a table of the image on the new text.
enum Effect {
    None,
    Added,
    Changed,
}

/// Problems with what an image is made of.
fn problems_of(
    document: &DocumentMut,
    tables: &[TableName],
    replace: &[String],
    problem: &dyn Fn(&str, String) -> Problem,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (key, _) in document.iter().filter(|(key, _)| !SECTIONS.contains(key)) {
        let message = "is no part of an image, which has only [rule.NAME], [group.NAME] and [location.NAME]: remove it here, and set it in the configuration of the balancer";
        problems.push(problem(key, message.into()));
    }
    let rules = tables.iter().filter(|(section, _)| *section == "rule");
    let count = rules.count();
    if count != 1 {
        let message = format!("an image has one rule, this text has {count}");
        problems.push(problem("rule", message));
    }
    let paths: BTreeSet<String> = tables.iter().map(path_of).collect();
    for unknown in replace.iter().filter(|path| !paths.contains(*path)) {
        problems.push(Problem {
            found_value: Some(unknown.clone()),
            allowed: Some(paths.iter().cloned().collect::<Vec<_>>().join(", ")),
            ..of_image("there is no such table to replace in the image".into())
        });
    }
    problems
}

/// A problem with an image as a whole.
fn of_image(message: String) -> Problem {
    Problem::of_file(IMAGE.into(), message)
}

/// A few of these, for a message.
fn named(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    let first = all.iter().take(MAX_NAMED).map(|one| format!("`{one}`"));
    let first = first.collect::<Vec<_>>().join(", ");
    match all.len().checked_sub(MAX_NAMED) {
        None | Some(0) => first,
        Some(more) => format!("{first} and {more} more"),
    }
}

/// The tables of an image, in the order of [`SECTIONS`].
fn tables_of(document: &DocumentMut) -> Vec<TableName> {
    let of_section = |section: &'static str| {
        let table = document
            .get(section)
            .and_then(|outer| outer.as_table_like());
        let names = table.into_iter().flat_map(|table| table.iter());
        names.map(move |(name, _)| (section, name.to_owned()))
    };
    SECTIONS.into_iter().flat_map(of_section).collect()
}

/// The text of an image with the new names, in the lines of the old ones.
fn renamed(import: &Import) -> Result<String, Vec<Problem>> {
    if import.text.len() as u64 > MAX_FILE_SIZE {
        let message = format!("is too large: more than {MAX_FILE_SIZE} bytes");
        return Err(vec![of_image(message)]);
    }
    if let Err(error) = Document::parse(import.text.as_str()) {
        // The parser of configurations tells all mistakes, and knows files of other products.
        let told = read_document(IMAGE, &import.text, config::describe_tables, |_, _, _| ());
        let told = told.err().map(|errors| errors.problems);
        return Err(told.unwrap_or_else(|| vec![of_image(error.to_string())]));
    }
    let documents = Documents::parse(&[(IMAGE.into(), import.text.clone())]);
    let named = documents.0.first().map(tables_of).unwrap_or_default();
    let (mut problems, mut edits) = (Vec::new(), Vec::new());
    for (old, new) in &import.rename {
        match meant(&named, old) {
            Ok(path) => edits.push(Edit::Rename {
                path,
                to: new.clone(),
            }),
            Err(message) => problems.push(Problem {
                found_value: Some(old.clone()),
                ..of_image(message)
            }),
        }
    }
    let mut text = import.text.clone();
    for edit in edits {
        match edit::apply_edits(&text, std::slice::from_ref(&edit)) {
            Ok(renamed) => text = renamed,
            Err(error) => problems.push(Problem {
                key: error.path,
                ..of_image(format!("cannot be renamed: {}", error.why))
            }),
        }
    }
    match problems.is_empty() {
        true => Ok(text),
        false => Err(problems),
    }
}

/// The path of the rule or group that is called so.
fn meant(tables: &[TableName], called: &str) -> Result<Vec<Part>, String> {
    let is_it = |table: &&TableName| path_of(table) == called;
    let by_name = tables.iter().filter(|(_, name)| name == called);
    let found: Vec<_> = match tables.iter().find(is_it) {
        Some(table) => vec![table],
        None => by_name.collect(),
    };
    match found[..] {
        [] => {
            let names: Vec<_> = tables.iter().map(path_of).collect();
            let names = names.join(", ");
            Err(format!("there is no such table to rename in the image, which has {names}"))
        }
        [("location", _)] => Err(
            "a location cannot be renamed, since members are there: replace the one here, or change the image".into(),
        ),
        [(section, name)] => Ok(parts_of((section, name))),
        _ => {
            let paths: Vec<_> = found.into_iter().map(path_of).collect();
            let paths = paths.join(" and ");
            Err(format!("the image has {paths}: say which of them is meant"))
        }
    }
}

/// The text with new tables at its end: their paths, values and texts.
fn appended(text: &str, tables: &[(Vec<Part>, Json, String)]) -> Result<String, edit::EditError> {
    if tables.is_empty() {
        return Ok(text.to_owned());
    }
    let lines = text.matches('\n').count();
    let end = match lines > 0 && text.matches("\r\n").count() == lines {
        true => "\r\n",
        false => "\n",
    };
    let mut longer = text.to_owned();
    if !longer.is_empty() && !longer.ends_with('\n') {
        longer.push_str(end);
    }
    for (_, _, table) in tables {
        if !longer.is_empty() {
            longer.push_str(end);
        }
        longer.push_str(&table.replace('\n', end));
    }
    let says_it = edit::values(&longer).is_ok_and(|values| {
        tables.iter().all(|(path, value, _)| {
            let mut parts = path.iter();
            let found = parts.try_fold(&values, |at, part| match part {
                Part::Key(key) => at.get(key),
                Part::Index(index) => at.get(index),
            });
            found.is_some_and(|found| edit::is_equal(found, value))
        })
    });
    if says_it {
        return Ok(longer);
    }
    // The section is one value, as in `rule = { … }`.
    let set = tables.iter().map(|(path, value, _)| Edit::Set {
        path: path.clone(),
        value: value.clone(),
    });
    edit::apply_edits(text, &set.collect::<Vec<_>>())
}
