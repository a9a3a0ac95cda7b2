//! Generated configurations that are read part by part: a part that was read before is not read again.
//!
//! A controller makes a long text anew at each change, of which nearly all is as before. Routes and groups are therefore
//! read from texts of their own, and kept. The checks of what stands in several tables are those of
//! [`parse_generated`], over all rules and groups. So is the reading of a text that has a problem beyond a single part.

use std::collections::HashMap;
use std::sync::Arc;

use super::config::{Config, describe_tables};
use super::group::GroupConfig;
use super::parse::{parse_generated, read_group, read_with};
use super::route::{Route, Routes};
use super::routes::{RuleFacts, list_groups, read_one_route};
use crate::schema::document::Span;
use crate::schema::errors::{Errors, Problem};
use crate::schema::source::MAX_FILE_SIZE;
use crate::schema::table::{NAMES, Reading, document_with};

/// Parts that are kept beyond those that the last text had.
const SPARE: usize = 256;

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

/// Parts by their texts.
type KnownParts<T> = HashMap<Box<str>, Known<T>>;

/// Facts of a rule on which its routes depend: the name, whether clients speak TLS, and whether the rule trusts
/// `X-Forwarded-For`.
type RuleKey = (String, bool, bool);

/// Parser of generated configurations, which keeps the parts that it has read.
#[derive(Debug, Default)]
pub struct GeneratedParser {
    routes: HashMap<RuleKey, KnownParts<Arc<Route>>>,
    groups: KnownParts<GroupConfig>,
    round: u64,
    /// Number of parts that were read, and not known.
    #[cfg(test)]
    read: u64,
}

impl GeneratedParser {
    /// Checks a generated configuration as [`parse_generated`] does. `parts` are those of `text`.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with single parts; if nothing is, everything that is wrong. Lines are those of `text`.
    pub fn parse(&mut self, text: &str, parts: &GeneratedParts<'_>) -> Result<Config, Errors> {
        if text.len() as u64 > MAX_FILE_SIZE {
            return parse_generated(text);
        }
        self.round += 1;
        let mut reader = PartReader {
            parser: self,
            parts,
            groups: Vec::new(),
            problems: Vec::new(),
            needs_whole: false,
        };
        reader.read_groups();
        if !reader.problems.is_empty() {
            return Err(as_errors(reader.problems));
        }
        let parsed = document_with(
            "generated",
            &parts.rules,
            generated(),
            describe_tables,
            |top, folder, report| read_with(Some(&mut reader), top, folder, report),
        );
        let PartReader {
            problems,
            needs_whole,
            ..
        } = reader;
        self.forget_unused();
        if !problems.is_empty() {
            return Err(as_errors(problems));
        }
        match parsed {
            Ok((config, _)) if !needs_whole => Ok(config),
            _ => parse_generated(text),
        }
    }

    fn forget_unused(&mut self) {
        forget_unused(&mut self.groups, self.round);
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

fn generated<'r>() -> Reading<'r> {
    Reading {
        is_generated: true,
        ..Reading::default()
    }
}

fn as_errors(problems: Vec<Problem>) -> Errors {
    Errors {
        file: "generated".into(),
        problems,
        omitted: 0,
    }
}

/// Reader of the parts of a text.
pub(crate) struct PartReader<'p, 't> {
    parser: &'p mut GeneratedParser,
    parts: &'p GeneratedParts<'t>,
    groups: Vec<(Span, GroupConfig)>,
    problems: Vec<Problem>,
    /// True if the text can be judged as a whole only.
    needs_whole: bool,
}

impl PartReader<'_, '_> {
    fn read_groups(&mut self) {
        let round = self.parser.round;
        for (number, part) in self.parts.groups.iter().enumerate() {
            if !self.parser.groups.contains_key(part.text) {
                #[cfg(test)]
                {
                    self.parser.read += 1;
                }
                let outcome = read_group_part(part.text);
                let known = Known { outcome, round };
                self.parser.groups.insert(part.text.into(), known);
            }
            let Some(known) = self.parser.groups.get_mut(part.text) else {
                continue;
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
    pub(super) fn take_groups(&mut self) -> Vec<(Span, GroupConfig)> {
        std::mem::take(&mut self.groups)
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
        let round = self.parser.round;
        let parser = &mut *self.parser;
        let key = (rule.name.to_owned(), rule.has_tls, rule.trusts_forwarded);
        let known = parser.routes.entry(key).or_default();
        let mut list = Vec::with_capacity(parts.len());
        for part in parts {
            if !known.contains_key(part.text) {
                #[cfg(test)]
                {
                    parser.read += 1;
                }
                let (outcome, is_known) = read_route_part(part.text, rule, shared);
                if !is_known {
                    self.needs_whole = true;
                    continue;
                }
                known.insert(part.text.into(), Known { outcome, round });
            }
            let Some(known) = known.get_mut(part.text) else {
                continue;
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
        Routes::new(list)
    }
}

/// Adds problems of a part whose first line has this number.
fn add_problems(all: &mut Vec<Problem>, problems: &[Problem], line: usize) {
    all.extend(problems.iter().map(|problem| Problem {
        line: problem.line.saturating_add(line).saturating_sub(1),
        ..problem.clone()
    }));
}

fn read_group_part(text: &str) -> Outcome<GroupConfig> {
    let read = document_with(
        "generated",
        text,
        generated(),
        describe_tables,
        |mut top, _, report| {
            let tables = top.named_tables("group", NAMES, report);
            let group = tables.into_iter().next().map(|mut table| {
                let group = read_group(&mut table, &GroupConfig::default(), report);
                table.report_unread(report);
                group
            });
            top.report_unread(report);
            group.unwrap_or_default()
        },
    );
    let (group, _) = read.map_err(|errors| Arc::from(errors.problems))?;
    Ok(group)
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

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "[rule.web]\nlisten = \"127.0.0.1:1\"\n";

    fn route(name: &str, host: &str, group: &str) -> String {
        format!("[[rule.web.routes]]\nname = \"{name}\"\nhost = \"{host}\"\ngroup = \"{group}\"\n")
    }

    fn group(name: &str, member: &str) -> String {
        format!("[group.{name}]\nmembers = [\"{member}\"]\n")
    }

    /// Reads a text of a rule with routes, and of groups.
    fn parse(
        parser: &mut GeneratedParser,
        routes: &[String],
        groups: &[String],
    ) -> Result<Config, Errors> {
        let all: Vec<&str> = std::iter::once(HEAD)
            .chain(routes.iter().chain(groups).map(String::as_str))
            .collect();
        let text = all.concat();
        let mut line = 1 + HEAD.lines().count();
        let mut part = |text: &'_ String| {
            let begin = line;
            line += text.lines().count();
            begin
        };
        let routes = routes.iter().map(|text| GeneratedPart {
            line: part(text),
            text,
        });
        let routes: Vec<_> = routes.collect();
        let groups = groups.iter().map(|text| GeneratedPart {
            line: part(text),
            text,
        });
        let parts = GeneratedParts {
            rules: HEAD.into(),
            groups: groups.collect(),
            routes: HashMap::from([("web".to_owned(), routes)]),
        };
        let whole = parse_generated(&text);
        let parsed = parser.parse(&text, &parts);
        assert_eq!(parsed.as_ref().ok(), whole.as_ref().ok());
        if let (Err(errors), Err(whole)) = (&parsed, &whole) {
            for problem in &errors.problems {
                let lines = whole.problems.iter();
                assert!(lines.map(|of| of.line).any(|line| line == problem.line));
            }
        }
        parsed
    }

    #[test]
    fn only_parts_that_have_changed_are_read() {
        let mut parser = GeneratedParser::default();
        let groups = [group("a", "10.0.0.1:1"), group("b", "10.0.0.2:1")];
        let mut routes = vec![route("1", "x.example", "a"), route("2", "y.example", "b")];
        assert!(parse(&mut parser, &routes, &groups).is_ok());
        assert_eq!(parser.read, 4);
        routes.insert(1, route("3", "z.example", "a"));
        let config = parse(&mut parser, &routes, &groups).unwrap();
        assert_eq!(parser.read, 5);
        let names = { config.rules[0].routes.list().iter() }.map(|of| &*of.label);
        assert_eq!(names.collect::<Vec<_>>(), ["1", "3", "2"]);
        routes.remove(0);
        parse(&mut parser, &routes, &groups[1..]).unwrap_err();
        parse(&mut parser, &routes[1..], &groups[1..]).unwrap();
        assert_eq!(parser.read, 5);
    }

    #[test]
    fn problems_have_the_lines_of_the_whole_text() {
        let mut parser = GeneratedParser::default();
        let groups = [group("a", "10.0.0.1:1"), group("b", "no address")];
        let routes = [route("1", "x y", "a"), route("2", "y.example", "b")];
        // Groups first, then routes.
        for (groups, line) in [
            (&groups[..], 14),
            (&[groups[0].clone(), group("b", "b:1")], 5),
        ] {
            for _ in 0..2 {
                let errors = parse(&mut parser, &routes, groups).unwrap_err();
                let lines: Vec<_> = errors.problems.iter().map(|of| of.line).collect();
                assert_eq!(lines, [line], "{errors}");
            }
        }
        // A group that is missing is found in the text as a whole, and is not remembered.
        let routes = [route("1", "x.example", "c")];
        let some = [group("a", "10.0.0.1:1")];
        parse(&mut parser, &routes, &some).unwrap_err();
        parse(&mut parser, &routes, &[group("c", "10.0.0.1:1")]).unwrap();
    }

    #[test]
    fn parts_of_former_texts_are_forgotten() {
        let mut parser = GeneratedParser::default();
        let groups = [group("a", "10.0.0.1:1")];
        for number in 0..3 * SPARE {
            let routes = [route("1", &format!("x{number}.example"), "a")];
            parse(&mut parser, &routes, &groups).unwrap();
        }
        let kept: usize = parser.routes.values().map(HashMap::len).sum();
        assert!(kept <= SPARE + 2, "{kept}");
    }
}
