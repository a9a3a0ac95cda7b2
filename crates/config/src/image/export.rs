//! A rule with what it refers to, as a text.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use serde_json::Value as Json;

use super::inherit;
use super::tables::{Documents, IMAGE, SECTIONS, TableName, Texts, parts_of, path_of, text_of};
use crate::edit::{self, Edit, MAX_EDITS};
use crate::model::config::Config;
use crate::model::parse::parse;
use crate::schema::errors::{Errors, Problem};
use crate::schema::variables;

/// The image of a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// The text: a configuration with the rule, its groups, and the locations of their members.
    pub text: String,
    /// Paths of the tables in it, as in `group.pool`.
    pub tables: Vec<String>,
    /// Files that it names. They are no part of it.
    pub files: Vec<String>,
    /// Environment variables in it.
    pub variables: Vec<String>,
    /// Problems that the text has by itself: what it needs of a balancer, such as `[acme]`.
    pub problems: Vec<Problem>,
}

/// Writes the image of a rule of `config`, which the texts mean. `file` is where relative paths of files start.
/// `None` if there is no such rule in the texts.
pub fn export(file: &Path, texts: &Texts, config: &Config, rule: &str) -> Option<Image> {
    let documents = Documents::parse(texts);
    let rules = config.rules.iter();
    let found = { rules }.find(|known| known.name == rule)?;
    documents.find("rule", rule)?;
    let used = found.group_names();
    let groups = config.groups.iter();
    let groups = groups.filter(|group| used.contains(&&*group.name));
    let mut locations = HashSet::new();
    for member in groups.clone().flat_map(|group| &group.members) {
        locations.insert(member.location_name());
        if member.is_apart {
            // Its zone may be that of its host.
            locations.insert((&*member.host).into());
        }
    }
    let known = config.locations.iter();
    let locations = known.filter(|location| locations.contains(&*location.name));
    let part = Config {
        admin: None,
        rules: vec![found.clone()],
        groups: groups.clone().cloned().collect(),
        locations: locations.clone().cloned().collect(),
        ..Config::default()
    };
    let [of_rules, of_groups, of_locations] = SECTIONS;
    let mut tables: Vec<TableName> = vec![(of_rules, rule.to_owned())];
    tables.extend(used.iter().map(|name| (of_groups, (*name).to_owned())));
    tables.extend(locations.map(|location| (of_locations, location.name.clone())));
    // A rule's own group has no table.
    tables.retain(|(section, name)| documents.find(section, name).is_some());

    let body = body(file, &documents, &tables);
    let files = files(&part);
    let variables = edit::values(&body).map(|values| variables_of(&values));
    let variables = variables.unwrap_or_default();
    let text = format!("{}\n{body}", head(rule, &files, &variables));
    let problems = match parse(&file.display().to_string(), &text) {
        Ok(_) => Vec::new(),
        Err(Errors { problems, .. }) => problems,
    };
    let problems = problems.into_iter().map(|problem| Problem {
        file: IMAGE.into(),
        ..problem
    });
    Some(Image {
        problems: problems.collect(),
        text,
        tables: tables.iter().map(path_of).collect(),
        files,
        variables,
    })
}

/// The tables as they are written, with what they have from `[defaults]`.
fn body(file: &Path, documents: &Documents, tables: &[TableName]) -> String {
    let defaults = documents.defaults();
    let (mut texts, mut inherited) = (Vec::new(), Vec::new());
    for (section, name) in tables {
        let Some((_, table)) = documents.find(section, name) else {
            continue;
        };
        texts.push(text_of((section, name), table));
        let leaves = inherit::leaves(section, &edit::json_of(table), &defaults);
        inherited.extend(leaves.into_iter().map(|(path, value)| {
            let mut whole = parts_of((section, name));
            whole.extend(path.iter().map(|key| key.as_str().into()));
            Edit::Set { path: whole, value }
        }));
    }
    let plain = texts.join("\n");
    let file = file.display().to_string();
    loop {
        let text = with(&plain, &inherited);
        // What a rule of this kind cannot have itself, `[defaults]` does not say of it.
        let Err(errors) = parse(&file, &text) else {
            return text;
        };
        let before = inherited.len();
        inherited.retain(|edit| {
            let key = edit::shown(edit.path());
            let mut problems = errors.problems.iter();
            !problems.any(|problem| is_about(&problem.key, &key))
        });
        if inherited.len() == before {
            return text;
        }
    }
}

/// The text with these edits. One that is not possible is left out.
fn with(text: &str, edits: &[Edit]) -> String {
    let mut edited = text.to_owned();
    for edits in edits.chunks(MAX_EDITS) {
        match edit::apply_edits(&edited, edits) {
            Ok(text) => edited = text,
            Err(_) => {
                for edit in edits {
                    let one = edit::apply_edits(&edited, std::slice::from_ref(edit));
                    edited = one.unwrap_or(edited);
                }
            }
        }
    }
    edited
}

/// True if a problem at the path `problem` is about the key at `key`, about a part of it, or about a table below a
/// rule or group that holds it.
fn is_about(problem: &str, key: &str) -> bool {
    let holds = |outer: &str, inner: &str| {
        let rest = inner.strip_prefix(outer);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let is_named_table = edit::path_of(problem).is_ok_and(|path| path.len() <= 2);
    holds(key, problem) || !is_named_table && holds(problem, key)
}

fn files(part: &Config) -> Vec<String> {
    let files = part.files().map(|file| file.display().to_string());
    let lists = part
        .groups
        .iter()
        .flat_map(|group| group.members_files.clone());
    let sorted: BTreeSet<String> = files.chain(lists).collect();
    sorted.into_iter().collect()
}

fn variables_of(values: &Json) -> Vec<String> {
    fn collect(value: &Json, found: &mut BTreeSet<String>) {
        match value {
            Json::String(text) => found.extend(variables::names_in(text)),
            Json::Array(list) => list.iter().for_each(|value| collect(value, found)),
            Json::Object(table) => table.values().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    collect(values, &mut found);
    found.into_iter().collect()
}

/// The comment at the beginning.
fn head(rule: &str, files: &[String], variables: &[String]) -> String {
    let mut head = format!(
        "# Image of the rule {rule:?}: the rule with its groups and the locations of their members.\n\
         # Take it in with `evenkeel ctl config import FILE`.\n"
    );
    if !files.is_empty() {
        head += "# Files that the image names and does not contain:\n";
        // A name may have an end of a line in it.
        head.extend(files.iter().map(|file| format!("#   {file:?}\n")));
    }
    if !variables.is_empty() {
        let variables = variables.join(", ");
        head += &format!("# Environment variables in the image: {variables}\n");
    }
    head
}
