//! Parts of a generated configuration: routes and groups are read from texts of their own, and kept.

use std::collections::HashMap;
use std::sync::Arc;

use super::config::describe_tables;
use super::group::GroupConfig;
use super::reach::Reach;
use super::route::{Route, Routes};
use super::routes::{RuleFacts, list_groups, read_one_route};
use super::shared_group::SharedGroup;
use crate::schema::document::Span;
use crate::schema::errors::Problem;
use crate::schema::table::{NAMES, Reading, document_with};

/// Parts that are kept beyond those that the last text had.
pub(super) const SPARE: usize = 256;

/// Lines of the text that belong together.
#[derive(Clone, Copy, Debug)]
pub struct GeneratedPart<'t> {
    /// Number of the first line in the whole text, from 1.
    pub line: usize,
    /// The lines, the header of the table among them.
    pub text: &'t str,
}

/// Parts of a generated text.
#[derive(Clone, Debug, Default)]
pub struct GeneratedParts<'t> {
    /// Tables of all rules, without their routes.
    pub rules: String,
    /// Routes by the names of their rules, in the order of the text.
    pub routes: HashMap<String, Vec<GeneratedPart<'t>>>,
    /// Groups in the order of the text.
    pub groups: Vec<GeneratedPart<'t>>,
}

/// Outcome of reading a part: its value, or what is wrong with it.
type Outcome<T> = Result<T, Arc<[Problem]>>;

/// A part that was read.
#[derive(Debug)]
struct Known<T> {
    outcome: Outcome<T>,
    /// Number of the last text that had the part.
    round: u64,
}

/// Group as it was read, and with all defaults.
#[derive(Debug)]
struct ChosenDefaults {
    /// Kept so that no other group has its address.
    _read: SharedGroup,
    group: SharedGroup,
    /// Number of the last text that had the group.
    round: u64,
}

/// Parts by their texts.
type KnownParts<T> = HashMap<Box<str>, Known<T>>;

/// Facts of a rule on which its routes depend: the name, whether clients speak TLS, and whether the rule trusts
/// `X-Forwarded-For`.
type RuleKey = (String, bool, bool);

/// Parts that were read.
#[derive(Debug, Default)]
pub(super) struct PartStore {
    /// Routes of the rules of the last text, by the names of the rules.
    lists: HashMap<String, Routes>,
    routes: HashMap<RuleKey, KnownParts<Arc<Route>>>,
    groups: KnownParts<SharedGroup>,
    /// Groups with all defaults, by the addresses of the groups as they were read.
    chosen: HashMap<usize, ChosenDefaults>,
    round: u64,
    /// Number of parts that were read, and not known.
    #[cfg(test)]
    pub(super) read: u64,
}

impl PartStore {
    /// Returns the number of routes that are kept.
    #[cfg(test)]
    pub(super) fn count_routes(&self) -> usize {
        self.routes.values().map(HashMap::len).sum()
    }

    /// Forgets parts that the last text did not have, if there are many of them.
    pub(super) fn forget_unused(&mut self) {
        forget_unused(&mut self.groups, self.round);
        self.chosen.retain(|_, chosen| chosen.round == self.round);
        let rules = &self.routes;
        self.lists
            .retain(|name, _| rules.keys().any(|(of, ..)| of == name));
        self.routes.retain(|_, known| {
            forget_unused(known, self.round);
            known.values().any(|known| known.round == self.round)
        });
    }
}

/// Forgets parts that the last text did not have, if there are many of them.
fn forget_unused<T>(known: &mut KnownParts<T>, round: u64) {
    let used = known.values().filter(|part| part.round == round).count();
    if known.len() > used + used / 2 + SPARE {
        known.retain(|_, part| part.round == round);
    }
}

/// Returns the settings for reading a generated text.
pub(super) fn generated<'r>() -> Reading<'r> {
    Reading {
        is_generated: true,
        ..Reading::default()
    }
}

/// Reader of the parts of a text.
pub(crate) struct PartReader<'p, 't> {
    store: &'p mut PartStore,
    parts: &'p GeneratedParts<'t>,
    groups: Vec<(Span, SharedGroup)>,
    pub(super) problems: Vec<Problem>,
    /// True if the text can be judged as a whole only.
    pub(super) needs_whole: bool,
}

impl<'p, 't> PartReader<'p, 't> {
    /// A reader of `parts`, which knows the parts of `store`. Groups are read at once.
    pub(super) fn new(store: &'p mut PartStore, parts: &'p GeneratedParts<'t>) -> Self {
        store.round += 1;
        let mut reader = PartReader {
            store,
            parts,
            groups: Vec::new(),
            problems: Vec::new(),
            needs_whole: false,
        };
        reader.read_groups();
        reader
    }

    fn read_groups(&mut self) {
        let round = self.store.round;
        for (number, part) in self.parts.groups.iter().enumerate() {
            let known = match self.store.groups.get_mut(part.text) {
                Some(known) => known,
                None => {
                    #[cfg(test)]
                    {
                        self.store.read += 1;
                    }
                    let outcome = read_group_part(part.text);
                    let read = Known { outcome, round };
                    let groups = &mut self.store.groups;
                    groups.entry(part.text.into()).or_insert(read)
                }
            };
            known.round = round;
            match &known.outcome {
                Ok(group) => {
                    // Groups stand behind the rules, each at a place of its own.
                    let place = self.parts.rules.len() + number;
                    self.groups.push((place..place, group.clone()));
                }
                Err(problems) => add_problems(&mut self.problems, problems, part.line),
            }
        }
    }

    /// Returns the groups of all parts.
    pub(super) fn take_groups(&mut self) -> Vec<(Span, SharedGroup)> {
        std::mem::take(&mut self.groups)
    }

    /// Chooses the defaults for members that rules carry clients to. A group that is as it was in the text before becomes
    /// the same as then.
    pub(super) fn choose_defaults(&mut self, group: &mut SharedGroup) {
        let round = self.store.round;
        match self.store.chosen.get_mut(&group.address()) {
            Some(known) => {
                known.round = round;
                *group = known.group.clone();
            }
            None => {
                let read = group.clone();
                group.choose_defaults(Reach::Carried);
                let chosen = ChosenDefaults {
                    group: group.clone(),
                    round,
                    _read: read.clone(),
                };
                self.store.chosen.insert(read.address(), chosen);
            }
        }
    }

    /// Reads the routes of a rule. `shared` are the groups with a table of their own.
    pub(super) fn read_routes(
        &mut self,
        rule: &RuleFacts<'_>,
        shared: &HashMap<String, Span>,
    ) -> Routes {
        let Some(parts) = self.parts.routes.get(rule.name) else {
            return Routes::default();
        };
        let round = self.store.round;
        let store = &mut *self.store;
        let key = (rule.name.to_owned(), rule.has_tls, rule.trusts_forwarded);
        let known = store.routes.entry(key).or_default();
        let mut list = Vec::with_capacity(parts.len());
        for part in parts {
            // Texts are long: nearly all parts are known, and are looked up once.
            let known = match known.get_mut(part.text) {
                Some(known) => known,
                None => {
                    #[cfg(test)]
                    {
                        store.read += 1;
                    }
                    let (outcome, is_known) = read_route_part(part.text, rule, shared);
                    if !is_known {
                        self.needs_whole = true;
                        continue;
                    }
                    let read = Known { outcome, round };
                    known.entry(part.text.into()).or_insert(read)
                }
            };
            known.round = round;
            match &known.outcome {
                Ok(route) => {
                    // Depends on other parts.
                    self.needs_whole |= route.name.is_none() || !route.request_limits.is_empty();
                    self.needs_whole |= !list_groups(route).all(|name| shared.contains_key(name));
                    list.push(Arc::clone(route));
                }
                Err(problems) => add_problems(&mut self.problems, problems, part.line),
            }
        }
        let lists = &mut self.store.lists;
        let before = lists.get(rule.name).cloned().unwrap_or_default();
        let routes = Routes::next(&before, list);
        lists.insert(rule.name.to_owned(), routes.clone());
        routes
    }
}

/// Adds problems of a part whose first line has this number.
fn add_problems(all: &mut Vec<Problem>, problems: &[Problem], line: usize) {
    all.extend(problems.iter().map(|problem| Problem {
        line: problem.line.saturating_add(line).saturating_sub(1),
        ..problem.clone()
    }));
}

fn read_group_part(text: &str) -> Outcome<SharedGroup> {
    let read = document_with(
        "generated",
        text,
        generated(),
        describe_tables,
        |mut top, _, report| {
            let tables = top.named_tables("group", NAMES, report);
            let group = tables.into_iter().next().map(|mut table| {
                let group = GroupConfig::read_whole(&mut table, &GroupConfig::default(), report);
                table.report_unread(report);
                group
            });
            top.report_unread(report);
            group.unwrap_or_default()
        },
    );
    let (group, _) = read.map_err(|errors| Arc::from(errors.problems))?;
    Ok(group.into())
}

/// Reads a route, whose table begins below the first line of the text. Returns true, too, if all groups are known.
fn read_route_part(
    text: &str,
    rule: &RuleFacts<'_>,
    shared: &HashMap<String, Span>,
) -> (Outcome<Arc<Route>>, bool) {
    let mut is_known = false;
    let (_, body) = text.split_once('\n').unwrap_or_default();
    let read = document_with(
        "generated",
        body,
        generated(),
        describe_tables,
        |mut top, _, report| {
            let route = read_one_route(1, rule, &mut top, shared, report);
            top.report_unread(report);
            is_known = list_groups(&route).all(|name| shared.contains_key(name));
            route
        },
    );
    let outcome = match read {
        Ok((route, _)) => Ok(Arc::new(route)),
        Err(errors) => {
            let mut problems = Vec::new();
            add_problems(&mut problems, &errors.problems, 2);
            Err(problems.into())
        }
    };
    (outcome, is_known)
}
