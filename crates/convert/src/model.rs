//! Rules, routes and groups that both languages are translated to.

use std::collections::HashSet;

use evenkeel_config::{FieldChanges, is_name};

use crate::note::Notes;
use crate::toml::{Table, Value, path_behind, write_key};

/// Changes of the fields of a head.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    set: Vec<(String, String)>,
    add: Vec<(String, String)>,
    remove: Vec<String>,
}

/// Head whose fields are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    Request,
    Response,
}

/// Kind of a change of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Set,
    Add,
    Remove,
}

impl Changes {
    /// Takes a change of the field `name`. A value is `None` if it has parts that Evenkeel does not know.
    ///
    /// # Errors
    ///
    /// Why a route cannot have the change.
    pub(crate) fn take(
        &mut self,
        head: Head,
        (change, name): (Change, &str),
        value: Option<String>,
    ) -> Result<(), &'static str> {
        // These are written without being asked for.
        let own = [
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-forwarded-host",
            "forwarded",
        ];
        if head == Head::Request && own.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            return Ok(());
        }
        if FieldChanges::refusal(name).is_some() {
            return Err("this field cannot be changed");
        }
        if change == Change::Remove {
            self.remove.push(name.to_owned());
            return Ok(());
        }
        let fits = |value: &String| {
            let is_plain = !value.contains(['{', '}']);
            value.is_ascii() && value.trim() == value && (is_plain || head == Head::Request)
        };
        let value = value.filter(fits).ok_or(match head {
            Head::Response => "fields of responses can have fixed values only",
            Head::Request => {
                "values of fields can use {scheme}, {host}, {path}, {query} and {client} \
                of the request only"
            }
        })?;
        match change {
            Change::Add => self.add.push((name.to_owned(), value)),
            _ => self.set.push((name.to_owned(), value)),
        }
        Ok(())
    }

    /// Adds those of another list.
    pub(crate) fn extend(&mut self, other: &Changes) {
        self.set.extend(other.set.iter().cloned());
        self.add.extend(other.add.iter().cloned());
        self.remove.extend(other.remove.iter().cloned());
    }

    /// Writes the changes to a route, if there are any.
    pub(crate) fn write_to(&self, head: Head, route: &mut Table) {
        let mut table = Table::default();
        for (key, list) in [("set", &self.set), ("add", &self.add)] {
            for (name, value) in list {
                table.ensure_table(key).set(name, value.as_str());
            }
        }
        if !self.remove.is_empty() {
            table.set("remove", self.remove.clone());
        }
        if !table.is_empty() {
            let key = match head {
                Head::Request => "request_fields",
                Head::Response => "response_fields",
            };
            route.set(key, table);
        }
    }
}

/// A configuration while it is made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    /// Keys and tables at the top: `workers`, `access_log`.
    pub(crate) top: Table,
    pub(crate) access_log: Table,
    pub(crate) rules: Vec<Rule>,
    pub(crate) groups: Vec<Group>,
    pub(crate) notes: Notes,
    /// Addresses at which something listens.
    addresses: HashSet<String>,
}

/// A rule.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rule {
    pub(crate) name: String,
    pub(crate) keys: Table,
    pub(crate) routes: Vec<Table>,
}

/// A group.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) keys: Table,
}

/// Part of a configuration that was removed from it.
#[derive(Clone, Debug)]
pub(crate) struct Removed {
    /// Path of the part.
    pub(crate) path: String,
    /// Path of the route, rule or group that it was in, or that it is: paths of problems in there hold no longer.
    pub(crate) whole: String,
    /// True if it may have restricted who gets in.
    pub(crate) restricts: bool,
}

impl Model {
    /// Removes what is wrong at a path such as `rule.web.routes[2].answer.body` or `group.web.sticky.cookie`. A route is
    /// removed as a whole, and a rule with what it has of TLS: without it, it would listen in the clear. Everywhere
    /// else the innermost key is removed that is there.
    ///
    /// Returns `None` if nothing is there.
    pub(crate) fn remove(&mut self, path: &str) -> Option<Removed> {
        if let Some(rest) = path.strip_prefix("rule.") {
            let mut found = self.rules.iter().enumerate();
            let (place, rest) =
                found.find_map(|(place, rule)| Some((place, path_behind(rest, &rule.name)?)))?;
            let whole = path.strip_suffix(rest).unwrap_or(path).to_owned();
            let rule = self.rules.get_mut(place)?;
            let removed = |path: String, whole: String| Removed {
                path,
                whole,
                restricts: true,
            };
            if let Some(number) = rest.strip_prefix(".routes[") {
                let number = number.split(']').next()?.parse::<usize>().ok()?;
                if number >= rule.routes.len() {
                    return None;
                }
                rule.routes.remove(number);
                let route = format!("{whole}.routes[{number}]");
                return Some(removed(route.clone(), route));
            }
            let key = rest.strip_prefix('.').unwrap_or_default();
            if path_behind(key, "tls").is_none() && rule.keys.remove_at(key) {
                return Some(removed(path.to_owned(), whole));
            }
            self.rules.remove(place);
            return Some(removed(whole.clone(), whole));
        }
        let removed = |path: &str, whole: &str| Removed {
            path: path.to_owned(),
            whole: whole.to_owned(),
            restricts: false,
        };
        if let Some(rest) = path.strip_prefix("group.") {
            let mut found = self.groups.iter().enumerate();
            let (place, rest) =
                found.find_map(|(place, group)| Some((place, path_behind(rest, &group.name)?)))?;
            let whole = path.strip_suffix(rest).unwrap_or(path);
            let key = rest.strip_prefix('.').unwrap_or_default();
            if self.groups.get_mut(place)?.keys.remove_at(key) {
                return Some(removed(path, whole));
            }
            self.groups.remove(place);
            return Some(removed(whole, whole));
        }
        let is_there = match path.strip_prefix("access_log.") {
            Some(key) => self.access_log.remove_at(key),
            None => self.top.remove_at(path),
        };
        is_there.then(|| removed(path, path))
    }

    /// A name for a rule or a group that none of `taken` has.
    pub(crate) fn name(wanted: &str, taken: impl Fn(&str) -> bool) -> String {
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || "-_.".contains(c) {
                c
            } else {
                '-'
            }
        };
        let plain: String = wanted.chars().map(plain).take(50).collect();
        let plain = if is_name(&plain) {
            plain
        } else {
            "unnamed".into()
        };
        let numbers = 2..;
        let others = numbers.map(|number: u32| format!("{plain}-{number}"));
        let mut all = std::iter::once(plain.clone()).chain(others);
        all.find(|name| !taken(name)).unwrap_or(plain)
    }

    /// Keeps those of some addresses at which nothing listens yet.
    pub(crate) fn take_addresses(&mut self, wanted: Vec<String>) -> Vec<String> {
        let is_new = |address: &String| self.addresses.insert(address.clone());
        wanted.into_iter().filter(is_new).collect()
    }

    /// Adds a group, unless there is one of its name.
    pub(crate) fn add_group(&mut self, line: usize, group: Group) {
        match self.find_group(&group.name) {
            Some(_) => self
                .notes
                .add_note(line, "another group has this name: this group is left out"),
            None => self.groups.push(group),
        }
    }

    pub(crate) fn has_rule(&self, name: &str) -> bool {
        self.rules.iter().any(|rule| rule.name == name)
    }

    pub(crate) fn find_group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.name == name)
    }

    /// The text.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        self.top.write_lines(&mut out);
        if !self.access_log.is_empty() {
            begin("access_log", "", &mut out);
            self.access_log.write_lines(&mut out);
        }
        for rule in &self.rules {
            begin("rule", &rule.name, &mut out);
            rule.keys.write_lines(&mut out);
            for route in &rule.routes {
                out.push_str("\n[[rule.");
                write_key(&rule.name, &mut out);
                out.push_str(".routes]]\n");
                route.write_lines(&mut out);
            }
        }
        for group in &self.groups {
            begin("group", &group.name, &mut out);
            group.keys.write_lines(&mut out);
        }
        out
    }
}

fn begin(kind: &str, name: &str, out: &mut String) {
    if !out.is_empty() {
        out.push('\n');
    }
    out.push('[');
    out.push_str(kind);
    if !name.is_empty() {
        out.push('.');
        write_key(name, out);
    }
    out.push_str("]\n");
}

/// A condition on a value by its name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ValueCondition {
    /// There must be none.
    Absent,
    /// A value, or the beginning of one with `*` behind it.
    Like(String),
    /// A regular expression that the whole value matches.
    Regex(String),
}

/// Conditions of a route, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Conditions {
    pub(crate) hosts: Vec<String>,
    pub(crate) paths: Vec<String>,
    /// Regular expressions that whole paths match.
    pub(crate) path_regexes: Vec<String>,
    pub(crate) methods: Vec<String>,
    pub(crate) clients: Vec<String>,
    pub(crate) except_clients: Vec<String>,
    pub(crate) headers: Vec<(String, ValueCondition)>,
    pub(crate) query: Vec<(String, ValueCondition)>,
    pub(crate) cookies: Vec<(String, ValueCondition)>,
    /// Names of servers that clients of TLS ask for, where it is passed through.
    pub(crate) names: Vec<String>,
    /// Percentage of the requests.
    pub(crate) share: Option<u64>,
    /// True if the original matches more requests.
    pub(crate) is_narrower: bool,
}

impl Conditions {
    /// Conditions that hold where these and `other` do; `None` if one route cannot say that.
    pub(crate) fn merge_with(&self, other: &Self) -> Option<Self> {
        let both = |one: &[String], other: &[String]| match (one, other) {
            ([], all) | (all, []) => Some(all.to_vec()),
            (one, other) => {
                let common: Vec<String> = one
                    .iter()
                    .filter(|text| other.contains(text))
                    .cloned()
                    .collect();
                (!common.is_empty()).then_some(common)
            }
        };
        let named = |one: &[(String, ValueCondition)], other: &[(String, ValueCondition)]| {
            let mut all = one.to_vec();
            for (name, wanted) in other {
                match all
                    .iter()
                    .find(|(known, _)| known.eq_ignore_ascii_case(name))
                {
                    Some((_, known)) if known == wanted => {}
                    Some(_) => return None,
                    None => all.push((name.clone(), wanted.clone())),
                }
            }
            Some(all)
        };
        // One list of a route has one expression that must match.
        let path_regexes = match (&*self.path_regexes, &*other.path_regexes) {
            ([], all) | (all, []) => all.to_vec(),
            (one, other) if one == other => one.to_vec(),
            _ => return None,
        };
        let mut except_clients = self.except_clients.clone();
        let more = other
            .except_clients
            .iter()
            .filter(|network| !self.except_clients.contains(network));
        except_clients.extend(more.cloned());
        Some(Conditions {
            hosts: both(&self.hosts, &other.hosts)?,
            paths: both(&self.paths, &other.paths)?,
            path_regexes,
            methods: both(&self.methods, &other.methods)?,
            clients: both(&self.clients, &other.clients)?,
            except_clients,
            headers: named(&self.headers, &other.headers)?,
            query: named(&self.query, &other.query)?,
            cookies: named(&self.cookies, &other.cookies)?,
            names: both(&self.names, &other.names)?,
            is_narrower: self.is_narrower || other.is_narrower,
            share: match (self.share, other.share) {
                (Some(_), Some(_)) => return None,
                (one, other) => one.or(other),
            },
        })
    }

    /// True if all requests are meant.
    pub(crate) fn is_any(&self) -> bool {
        *self == Conditions::default()
    }

    /// The keys of a route with these conditions.
    pub(crate) fn to_route(&self) -> Table {
        let mut route = Table::default();
        let lists = [
            ("host", &self.hosts),
            ("path", &self.paths),
            ("path_regex", &self.path_regexes),
            ("method", &self.methods),
            ("client", &self.clients),
            ("except_client", &self.except_clients),
        ];
        for (key, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            route.set(key, Value::one_or_list(list));
        }
        for (key, list) in [
            ("headers", &self.headers),
            ("query", &self.query),
            ("cookies", &self.cookies),
        ] {
            for (name, wanted) in list {
                let value = match wanted {
                    ValueCondition::Absent => Value::Flag(false),
                    ValueCondition::Like(text) => text.as_str().into(),
                    ValueCondition::Regex(text) => {
                        let mut table = Table::default();
                        table.set("regex", text.as_str());
                        table.into()
                    }
                };
                route.ensure_table(key).set(name, value);
            }
        }
        route
    }
}
