//! Generated configurations that are read part by part: a part that was read before is not read again.
//!
//! A controller makes a long text anew at each change, of which nearly all is as before. Routes and groups are therefore
//! read from texts of their own, and kept. The checks of what stands in several tables are those of
//! [`parse_generated`], over all rules and groups. So is the reading of a text that has a problem beyond a single part.

use super::config::{Config, describe_tables};
use super::parse::{parse_generated, read_with};
use super::parts::{GeneratedParts, PartReader, PartStore, generated};
use crate::schema::errors::{Errors, Problem};
use crate::schema::source::MAX_FILE_SIZE;
use crate::schema::table::document_with;

/// Parser of generated configurations, which keeps the parts that it has read.
#[derive(Debug, Default)]
pub struct GeneratedParser {
    known: PartStore,
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
        let mut reader = PartReader::new(&mut self.known, parts);
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
        self.known.forget_unused();
        if !problems.is_empty() {
            return Err(as_errors(problems));
        }
        match parsed {
            Ok((config, _)) if !needs_whole => Ok(config),
            _ => parse_generated(text),
        }
    }
}

fn as_errors(problems: Vec<Problem>) -> Errors {
    Errors {
        file: "generated".into(),
        problems,
        omitted: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::parts::{GeneratedPart, SPARE};
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
        if let (Ok(parsed), Ok(whole)) = (&parsed, &whole) {
            let names = |of: &Config| of.rules[0].routes.group_names().to_vec();
            assert_eq!(names(parsed), names(whole));
        }
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
        assert_eq!(parser.known.read, 4);
        routes.insert(1, route("3", "z.example", "a"));
        let config = parse(&mut parser, &routes, &groups).unwrap();
        assert_eq!(parser.known.read, 5);
        let names = { config.rules[0].routes.list().iter() }.map(|of| &*of.label);
        assert_eq!(names.collect::<Vec<_>>(), ["1", "3", "2"]);
        routes.remove(0);
        parse(&mut parser, &routes, &groups[1..]).unwrap_err();
        parse(&mut parser, &routes[1..], &groups[1..]).unwrap();
        assert_eq!(parser.known.read, 5);
    }

    #[test]
    fn routes_that_come_and_go_take_the_names_of_their_groups_with_them() {
        let mut parser = GeneratedParser::default();
        let groups = [
            group("a", "10.0.0.1:1"),
            group("b", "10.0.0.2:1"),
            group("c", "10.0.0.3:1"),
        ];
        let of = |numbers: &[usize]| -> Vec<String> {
            let name = |number: usize| ["a", "b", "c"][number % 3];
            let routes = numbers.iter().map(|number| {
                route(
                    &format!("r{number}"),
                    &format!("x{number}.example"),
                    name(*number),
                )
            });
            routes.collect()
        };
        for numbers in [
            &[0, 1, 3][..],
            &[0, 1, 2, 3],
            &[0, 2, 3],
            &[2, 3],
            &[2, 3],
            &[2],
            &[5, 2, 8],
            &[8, 4, 7, 5],
            &[3],
        ] {
            let config = parse(&mut parser, &of(numbers), &groups).unwrap();
            let again = parse(&mut parser, &of(numbers), &groups).unwrap();
            let routes = |of: &Config| of.rules[0].routes.index().map(std::ptr::from_ref);
            // The finder of routes is made once.
            assert_eq!(routes(&config), routes(&again));
        }
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
        let kept = parser.known.count_routes();
        assert!(kept <= SPARE + 2, "{kept}");
    }

    #[test]
    fn groups_that_stay_as_they_are_are_the_same_in_memory() {
        let mut parser = GeneratedParser::default();
        let routes = [route("r", "a.example", "a"), route("s", "b.example", "b")];
        let groups = |member: &str| [group("a", "10.0.0.1:1"), group("b", member)];
        let first = parse(&mut parser, &routes, &groups("10.0.0.2:1")).unwrap();
        let second = parse(&mut parser, &routes, &groups("10.0.0.3:1")).unwrap();
        let third = parse(&mut parser, &routes, &groups("10.0.0.3:1")).unwrap();
        let is_same = |one: &Config, other: &Config| {
            let pairs = one.groups.iter().zip(&other.groups);
            pairs
                .map(|(one, other)| one.is_same(other))
                .collect::<Vec<_>>()
        };
        assert_eq!(is_same(&first, &second), [true, false]);
        assert_eq!(is_same(&second, &third), [true, true]);
        // Defaults are those of a text that is read as a whole.
        let text: Vec<&str> = std::iter::once(HEAD)
            .chain(routes.iter().map(String::as_str))
            .collect();
        let text = text.concat() + &groups("10.0.0.3:1").concat();
        assert_eq!(crate::parse_generated(&text).unwrap(), third);
    }
}
