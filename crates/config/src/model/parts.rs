//! Parts of a generated configuration: routes and groups are read from texts of their own, and kept.
//!
//! Nearly all parts of a text stand in the text before, too, at the same addresses in memory. So only the parts between the
//! first and the last one that differ are looked up, and only those that are not known are read.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use super::config::describe_tables;
use super::generated_text::{
    FirstLines, GeneratedPart, GeneratedParts, GeneratedText, is_same_part,
};
use super::group::GroupConfig;
use super::kubernetes::ServicePort;
use super::limits::RequestLimit;
use super::reach::Reach;
use super::route::{Route, Routes};
use super::routes::{LimitedRoutes, RuleFacts, list_groups, read_one_route};
use super::shared_group::SharedGroup;
use crate::difference::find_difference;
use crate::schema::document::Span;
use crate::schema::errors::Problem;
use crate::schema::table::{NAMES, Reading, document_with};

/// Parts that are kept beyond those that the last text had.
pub(super) const SPARE: usize = 256;

/// Outcome of reading a part: its value, or what is wrong with it.
type Outcome<T> = Result<T, Arc<[Problem]>>;

/// A part that was read.
#[derive(Debug)]
struct Known<T> {
    outcome: Outcome<T>,
    /// Number of times that the part stands in the last text without problems.
    uses: usize,
}

/// Part that is found by its text.
#[derive(Clone, Debug)]
struct PartKey(Arc<dyn GeneratedPart>);

impl Borrow<str> for PartKey {
    fn borrow(&self) -> &str {
        self.0.text()
    }
}

impl Hash for PartKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.text().hash(state);
    }
}

impl PartialEq for PartKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.text() == other.0.text()
    }
}

impl Eq for PartKey {}

/// Parts by their texts.
#[derive(Debug)]
struct KnownParts<T> {
    all: HashMap<PartKey, Known<T>>,
    /// Parts that were in no text at some time, the longest ago first.
    unused: VecDeque<PartKey>,
}

impl<T> Default for KnownParts<T> {
    fn default() -> Self {
        KnownParts {
            all: HashMap::new(),
            unused: VecDeque::new(),
        }
    }
}

impl<T> KnownParts<T> {
    /// Returns the outcome of reading a part, which `read` makes of a part that is not known; `None` if `read` does not want
    /// the part to be kept.
    fn find(
        &mut self,
        part: &Arc<dyn GeneratedPart>,
        read: impl FnOnce(&str) -> Option<Outcome<T>>,
    ) -> Option<&Outcome<T>> {
        if !self.all.contains_key(part.text()) {
            let outcome = read(part.text())?;
            let key = PartKey(Arc::clone(part));
            self.unused.push_back(key.clone());
            self.all.insert(key, Known { outcome, uses: 0 });
        }
        Some(&self.all.get(part.text())?.outcome)
    }

    /// Notes that a text has `new` parts in place of the parts `gone` of the text before.
    fn replace(&mut self, gone: &[Arc<dyn GeneratedPart>], new: &[Arc<dyn GeneratedPart>]) {
        for part in new {
            if let Some(known) = self.all.get_mut(part.text()) {
                known.uses += 1;
            }
        }
        for part in gone {
            let Some(known) = self.all.get_mut(part.text()) else {
                continue;
            };
            known.uses = known.uses.saturating_sub(1);
            if known.uses == 0 {
                self.unused.push_back(PartKey(Arc::clone(part)));
            }
        }
    }

    /// Forgets the parts that no text has had for the longest time, if there are more than `most` of them.
    fn forget_unused(&mut self, most: usize) {
        if self.unused.len() <= most {
            return;
        }
        let mut seen = HashSet::new();
        let all = &mut self.all;
        let is_unused = |key: &PartKey| all.get(key).is_some_and(|known| known.uses == 0);
        self.unused
            .retain(|key| is_unused(key) && seen.insert(key.clone()));
        let many = self.unused.len().saturating_sub(most);
        for key in self.unused.drain(..many) {
            all.remove(&key);
        }
    }
}

/// Parts of the last text without problems, and what they are.
#[derive(Debug, Default)]
struct PartList<T> {
    parts: GeneratedParts,
    values: T,
    /// Length of the parts in bytes.
    bytes: usize,
}

impl<T> PartList<T> {
    /// Returns the length of parts that have `gone` and `new` ones in place of each other.
    fn count_bytes(
        &self,
        gone: &[Arc<dyn GeneratedPart>],
        new: &[Arc<dyn GeneratedPart>],
    ) -> usize {
        let sum = |parts: &[Arc<dyn GeneratedPart>]| -> usize {
            parts.iter().map(|part| part.text().len()).sum()
        };
        (self.bytes + sum(new)).saturating_sub(sum(gone))
    }
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

/// Facts of a rule on which its routes depend: the name, whether clients speak TLS, and whether the rule trusts
/// `X-Forwarded-For`.
type RuleKey = (String, bool, bool);

/// Routes of a rule in the last text.
#[derive(Debug)]
struct RouteList {
    key: RuleKey,
    list: PartList<Routes>,
}

/// Parts that were read.
#[derive(Debug, Default)]
pub(super) struct PartStore {
    /// Routes of the rules of the last text, by the names of the rules.
    lists: HashMap<String, RouteList>,
    routes: HashMap<RuleKey, KnownParts<Arc<Route>>>,
    group_list: PartList<Vec<SharedGroup>>,
    groups: KnownParts<SharedGroup>,
    /// Services of the groups of `group_list`.
    services: Option<Arc<[ServicePort]>>,
    /// Groups with all defaults, by the addresses of the groups as they were read.
    chosen: HashMap<usize, ChosenDefaults>,
    round: u64,
    /// Number of parts that were read, and not known.
    #[cfg(test)]
    pub(super) read: u64,
    /// Number of parts that were looked up.
    #[cfg(test)]
    pub(super) looked_up: u64,
}

impl PartStore {
    /// Returns the number of routes that are kept.
    #[cfg(test)]
    pub(super) fn count_routes(&self) -> usize {
        self.routes.values().map(|known| known.all.len()).sum()
    }

    /// Forgets parts that the last text did not have, if there are many of them. A text with problems may be read again
    /// without some of its parts.
    pub(super) fn forget_unused(&mut self, text: &GeneratedText, is_good: bool) {
        let most = |count: usize| SPARE + if is_good { count / 2 } else { 2 * count };
        self.groups.forget_unused(most(text.groups().len()));
        if is_good {
            let names: HashSet<&str> = text.rules().iter().map(|rule| &*rule.name).collect();
            self.lists.retain(|name, _| names.contains(name.as_str()));
        }
        let lists = &self.lists;
        let is_listed = |key: &RuleKey| lists.get(&key.0).is_some_and(|of| of.key == *key);
        if is_good || self.routes.len() > lists.len() + SPARE {
            self.routes.retain(|key, _| is_listed(key));
        }
        for rule in text.rules() {
            let of_rule = self
                .routes
                .iter_mut()
                .filter(|(key, _)| *key.0 == *rule.name);
            of_rule.for_each(|(_, known)| known.forget_unused(most(rule.routes.len())));
        }
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
pub(crate) struct PartReader<'p> {
    store: &'p mut PartStore,
    text: &'p GeneratedText,
    /// Length of the tables of rules without their routes.
    rules_length: usize,
    groups: Vec<(Span, SharedGroup)>,
    /// Places of the groups, by name.
    pub(super) shared: Arc<HashMap<String, Span>>,
    first_lines: Option<FirstLines>,
    pub(super) problems: Vec<Problem>,
    /// True if the text can be judged as a whole only.
    pub(super) needs_whole: bool,
    /// Length of all parts that were read, in bytes.
    pub(super) bytes: usize,
}

impl<'p> PartReader<'p> {
    /// A reader of the parts of `text`, which knows the parts of `store`. Groups are read at once.
    pub(super) fn new(store: &'p mut PartStore, text: &'p GeneratedText) -> Self {
        store.round += 1;
        let rules_length = text.rules().iter().map(|rule| rule.text.len()).sum();
        let mut reader = PartReader {
            store,
            text,
            rules_length,
            groups: Vec::new(),
            shared: Arc::default(),
            first_lines: None,
            problems: Vec::new(),
            needs_whole: false,
            bytes: rules_length,
        };
        reader.read_groups();
        reader
    }

    fn read_groups(&mut self) {
        let store = &mut *self.store;
        let parts = self.text.groups();
        let before = &store.group_list;
        let (gone, new) = find_difference(&before.parts, parts, is_same_part);
        let (gone_parts, new_parts) = (slice(&before.parts, &gone), slice(parts, &new));
        let (mut groups, mut wrong) = (Vec::with_capacity(parts.len()), Vec::new());
        groups.extend(slice(&before.values, &(0..gone.start)).iter().cloned());
        for (number, part) in (new.start..).zip(new_parts) {
            #[cfg(test)]
            {
                store.looked_up += 1;
            }
            let outcome = store.groups.find(part, |text| {
                #[cfg(test)]
                {
                    store.read += 1;
                }
                Some(read_group_part(text))
            });
            match outcome {
                Some(Ok(group)) => groups.push(group.clone()),
                Some(Err(problems)) => wrong.push((number, Arc::clone(problems))),
                None => {}
            }
        }
        let behind = slice(&before.values, &(gone.end..before.values.len()));
        groups.extend(behind.iter().cloned());
        let bytes = before.count_bytes(gone_parts, new_parts);
        self.bytes += bytes;
        if wrong.is_empty() {
            if !gone.is_empty() || !new.is_empty() {
                store.services = None;
            }
            store.groups.replace(gone_parts, new_parts);
            let of_places = (self.rules_length..).zip(&groups);
            // Groups stand behind the rules, each at a place of its own.
            self.groups = of_places
                .map(|(place, group)| (place..place, group.clone()))
                .collect();
            store.group_list = PartList {
                parts: Arc::clone(parts),
                values: groups,
                bytes,
            };
        }
        for (number, problems) in wrong {
            let line = { self.first_lines().groups.get(number) }.copied();
            add_problems(&mut self.problems, &problems, line.unwrap_or_default());
        }
    }

    /// Returns the numbers of the first lines of all parts.
    fn first_lines(&mut self) -> &FirstLines {
        let text = self.text;
        self.first_lines.get_or_insert_with(|| text.number_lines())
    }

    /// Returns the groups of all parts, and notes their names.
    pub(super) fn take_groups(&mut self) -> Vec<(Span, SharedGroup)> {
        let names = self.groups.iter();
        let names = names.map(|(span, group)| (group.name.clone(), span.clone()));
        self.shared = Arc::new(names.collect());
        std::mem::take(&mut self.groups)
    }

    /// Forgets the defaults of groups that the text does not have.
    pub(super) fn keep_chosen(&mut self) {
        let round = self.store.round;
        self.store.chosen.retain(|_, chosen| chosen.round == round);
    }

    /// Returns the services of groups, which `list` makes unless the groups are those of the text before.
    pub(super) fn find_services(
        &mut self,
        groups: &[(Span, SharedGroup)],
        list: impl FnOnce(&[(Span, SharedGroup)]) -> Arc<[ServicePort]>,
    ) -> Arc<[ServicePort]> {
        // Rules may have groups of their own.
        if groups.len() != self.text.groups().len() {
            return list(groups);
        }
        let known = &mut self.store.services;
        Arc::clone(known.get_or_insert_with(|| list(groups)))
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
                let mut with_defaults = GroupConfig::clone(group);
                with_defaults.choose_defaults(Reach::Carried);
                // Most groups have all of them, and stay one in memory.
                if *group != with_defaults {
                    *group = with_defaults.into();
                }
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
        let mut rules = self.text.rules().iter().enumerate();
        let Some((place, of_rule)) = rules.find(|(_, of)| *of.name == *rule.name) else {
            return Routes::default();
        };
        let parts = &of_rule.routes;
        self.bytes += parts.len() * of_rule.header.len();
        let store = &mut *self.store;
        let key = (rule.name.to_owned(), rule.has_tls, rule.trusts_forwarded);
        let none = PartList::default();
        let before = { store.lists.get(rule.name) }.filter(|of| of.key == key);
        let before = before.map_or(&none, |of| &of.list);
        let (gone, new) = find_difference(&before.parts, parts, is_same_part);
        let (gone_parts, new_parts) = (slice(&before.parts, &gone), slice(parts, &new));
        let known = store.routes.entry(key.clone()).or_default();
        let (mut list, mut wrong) = (Vec::with_capacity(parts.len()), Vec::new());
        let routes_before = before.values.list();
        list.extend_from_slice(slice(routes_before, &(0..gone.start)));
        for (number, part) in (new.start..).zip(new_parts) {
            #[cfg(test)]
            {
                store.looked_up += 1;
            }
            let outcome = known.find(part, |text| {
                #[cfg(test)]
                {
                    store.read += 1;
                }
                let (outcome, is_known) = read_route_part(text, rule, shared);
                is_known.then_some(outcome)
            });
            match outcome {
                Some(Ok(route)) => {
                    // The label is a number, which depends on other parts.
                    self.needs_whole |= route.name.is_none();
                    list.push(Arc::clone(route));
                }
                Some(Err(problems)) => wrong.push((number, Arc::clone(problems))),
                None => self.needs_whole = true,
            }
        }
        list.extend_from_slice(slice(routes_before, &(gone.end..routes_before.len())));
        let routes = Routes::next(&before.values, list);
        self.needs_whole |= !names_known_groups(&routes, shared);
        let has_same_limits = routes.has_same_special(&before.values);
        self.needs_whole |= !has_same_limits && has_limits_twice(&routes);
        let bytes = before.count_bytes(gone_parts, new_parts);
        self.bytes += bytes;
        if wrong.is_empty() && !self.needs_whole {
            known.replace(gone_parts, new_parts);
            let list = PartList {
                parts: Arc::clone(parts),
                values: routes.clone(),
                bytes,
            };
            store
                .lists
                .insert(rule.name.to_owned(), RouteList { key, list });
        }
        for (number, problems) in wrong {
            let lines = self.first_lines().routes.get(place);
            let line = lines.and_then(|lines| lines.get(number)).copied();
            add_problems(&mut self.problems, &problems, line.unwrap_or_default());
        }
        routes
    }
}

/// Returns the elements of a list at these places.
fn slice<'l, T>(list: &'l [T], places: &Range<usize>) -> &'l [T] {
    list.get(places.clone()).unwrap_or_default()
}

/// True if all groups that routes name are in `shared`.
fn names_known_groups(routes: &Routes, shared: &HashMap<String, Span>) -> bool {
    let mut special = routes.list_special().iter();
    routes.group_names().iter().all(|name| shared.contains_key(name))
        // Mirrors, authentication and models name groups, too.
        && special.all(|route| list_groups(route).all(|name| shared.contains_key(name)))
}

/// True if two routes have limits of requests of the same name that do not count together. Nobody else than a route of the
/// same name has such a limit.
fn has_limits_twice(routes: &Routes) -> bool {
    let (mut seen, mut known) = (HashSet::new(), LimitedRoutes::default());
    let mut limited = { routes.list_special().iter() }.filter(|of| !of.request_limits.is_empty());
    limited.any(|route| {
        if known.has_twin(route) {
            return false;
        }
        known.add(route);
        let mut limits = route.request_limits.iter().enumerate();
        limits.any(|(place, limit)| !seen.insert(limit.label(place, Some(&route.label))))
    })
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
                let none = GroupConfig::default();
                let mut group = GroupConfig::read_whole(&mut table, &none, report);
                table.report_unread(report);
                // A choice that is made again changes nothing: the group stays one in memory.
                group.choose_defaults(Reach::Carried);
                group
            });
            top.report_unread(report);
            group.unwrap_or_default()
        },
    );
    let (group, _) = read.map_err(|errors| Arc::from(errors.problems))?;
    Ok(group.into())
}

/// Reads the keys of a route. Returns true, too, if all groups are known.
fn read_route_part(
    text: &str,
    rule: &RuleFacts<'_>,
    shared: &HashMap<String, Span>,
) -> (Outcome<Arc<Route>>, bool) {
    let mut is_known = false;
    let read = document_with(
        "generated",
        text,
        generated(),
        describe_tables,
        |mut top, _, report| {
            let route = read_one_route(1, rule, &mut top, shared, report);
            let of = (Some(&*route.label), rule.trusts_forwarded);
            let labels = &mut HashSet::new();
            RequestLimit::check_list(&route.request_limits, of, labels, &top, report);
            top.report_unread(report);
            is_known = list_groups(&route).all(|name| shared.contains_key(name));
            route
        },
    );
    let outcome = read.map(|(route, _)| Arc::new(route));
    let outcome = outcome.map_err(|errors| Arc::from(errors.problems));
    (outcome, is_known)
}
