//! Generated configurations that are read part by part: a part that was read before is not read again.
//!
//! Nearly all of a text that a controller makes for a change is as before. Routes and groups are therefore read from texts
//! of their own, and kept. The checks of what stands in several tables are those of [`parse_generated`], over all rules and
//! groups. So is the reading of a text that has a problem beyond a single part.

use std::collections::HashMap;
use std::sync::Arc;

use super::config::{Config, describe_tables};
use super::generated_text::{GeneratedParts, GeneratedText, have_same_parts};
use super::parse::{parse_generated, read_with};
use super::parts::{PartReader, PartStore, generated};
use super::routes::RuleFacts;
use crate::schema::document::Span;
use crate::schema::errors::{Errors, Problem};
use crate::schema::source::MAX_FILE_SIZE;
use crate::schema::table::document_with;

/// Configuration of the last text without problems, from which the next one may differ by some routes only.
#[derive(Debug)]
struct LastConfig {
    /// Tables of rules without their routes.
    rules: String,
    groups: GeneratedParts,
    /// Places of the groups, by name.
    shared: Arc<HashMap<String, Span>>,
    config: Config,
}

/// Parser of generated configurations, which keeps the parts that it has read.
#[derive(Debug, Default)]
pub struct GeneratedParser {
    known: PartStore,
    last: Option<LastConfig>,
    /// Number of texts of which tables were read beside routes.
    #[cfg(test)]
    whole: u64,
}

impl GeneratedParser {
    /// Checks a generated configuration as [`parse_generated`] does.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with single parts; if nothing is, everything that is wrong. Lines are those of `text`.
    pub fn parse(&mut self, text: &GeneratedText) -> Result<Config, Errors> {
        let mut reader = PartReader::new(&mut self.known, text);
        if !reader.problems.is_empty() {
            return Err(as_errors(reader.problems));
        }
        let rules: Vec<&str> = text.rules().iter().map(|rule| &*rule.text).collect();
        let rules = rules.concat();
        let bytes = reader.bytes;
        let last = self.last.as_mut();
        let last =
            last.filter(|last| last.rules == rules && have_same_parts(&last.groups, text.groups()));
        if let Some(last) = last
            && let Some(parsed) = read_routes_only(last, &mut reader)
        {
            self.known.forget_unused(text, parsed.is_ok());
            if let Ok(config) = &parsed {
                last.config = config.clone();
            }
            return parsed;
        }
        (reader.problems, reader.needs_whole, reader.bytes) = (Vec::new(), false, bytes);
        #[cfg(test)]
        {
            self.whole += 1;
        }
        let parsed = document_with(
            "generated",
            &rules,
            generated(),
            describe_tables,
            |top, folder, report| read_with(Some(&mut reader), top, folder, report),
        );
        reader.keep_chosen();
        let PartReader {
            problems,
            needs_whole,
            bytes,
            shared,
            ..
        } = reader;
        let needs_whole = needs_whole || bytes as u64 > MAX_FILE_SIZE;
        self.known
            .forget_unused(text, problems.is_empty() && !needs_whole);
        if !problems.is_empty() {
            return Err(as_errors(problems));
        }
        match parsed {
            Ok((config, _)) if !needs_whole => {
                self.last = Some(LastConfig {
                    rules,
                    groups: Arc::clone(text.groups()),
                    shared,
                    config: config.clone(),
                });
                Ok(config)
            }
            _ => parse_generated(text),
        }
    }
}

/// Reads a text that differs from the last one by routes to the same groups only: then all checks that look at other tables
/// have the same outcome. `None` if the text differs by more.
fn read_routes_only(
    last: &LastConfig,
    reader: &mut PartReader<'_>,
) -> Option<Result<Config, Errors>> {
    let (mut config, mut are_like) = (last.config.clone(), true);
    for rule in &mut config.rules {
        let facts = RuleFacts {
            name: &rule.name,
            has_tls: rule.tls.is_some(),
            trusts_forwarded: rule.http.trust_forwarded,
            group: match rule.group.is_empty() {
                true => &rule.name,
                false => &rule.group,
            },
            models: &rule.http.models,
            model_aliases: &rule.http.model_aliases,
        };
        let routes = reader.read_routes(&facts, &last.shared);
        are_like &= routes.are_like(&rule.routes);
        rule.routes = routes;
    }
    if !reader.problems.is_empty() {
        return Some(Err(as_errors(std::mem::take(&mut reader.problems))));
    }
    let is_short = reader.bytes as u64 <= MAX_FILE_SIZE;
    (are_like && is_short && !reader.needs_whole).then_some(Ok(config))
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
    use super::super::generated_text::{GeneratedPart, GeneratedRule};
    use super::super::parts::SPARE;
    use super::*;

    const HEAD: &str = "[rule.web]\nlisten = \"127.0.0.1:1\"\n";

    type Part = Arc<dyn GeneratedPart>;

    fn route(name: &str, host: &str, group: &str) -> Part {
        Arc::new(format!(
            "name = \"{name}\"\nhost = \"{host}\"\ngroup = \"{group}\"\n"
        ))
    }

    fn group(name: &str, member: &str) -> Part {
        Arc::new(format!("[group.{name}]\nmembers = [\"{member}\"]\n"))
    }

    /// Returns the text of a rule with routes, and of groups.
    fn text(routes: &[Part], groups: &[Part]) -> GeneratedText {
        let rule = GeneratedRule {
            name: "web".into(),
            text: HEAD.into(),
            header: "[[rule.web.routes]]\n".into(),
            routes: GeneratedParts::from(routes),
        };
        GeneratedText::from_parts(vec![rule], groups.into())
    }

    /// Reads a text of a rule with routes, and of groups.
    fn parse(
        parser: &mut GeneratedParser,
        routes: &[Part],
        groups: &[Part],
    ) -> Result<Config, Errors> {
        let text = text(routes, groups);
        let whole = parse_generated(&text);
        let parsed = parser.parse(&text);
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
        assert_eq!((parser.known.read, parser.known.looked_up), (4, 4));
        routes.insert(1, route("3", "z.example", "a"));
        let config = parse(&mut parser, &routes, &groups).unwrap();
        // Parts in front of the new one and behind it are not even looked up.
        assert_eq!((parser.known.read, parser.known.looked_up), (5, 5));
        let names = { config.rules[0].routes.list().iter() }.map(|of| &*of.label);
        assert_eq!(names.collect::<Vec<_>>(), ["1", "3", "2"]);
        routes.remove(0);
        parse(&mut parser, &routes, &groups[1..]).unwrap_err();
        parse(&mut parser, &routes[1..], &groups[1..]).unwrap();
        assert_eq!(parser.known.read, 5);
        // What has gone comes again, written by somebody else.
        let again = [route("1", "x.example", "a"), route("2", "y.example", "b")];
        let groups = [group("a", "10.0.0.1:1"), group("b", "10.0.0.2:1")];
        let config = parse(&mut parser, &again, &groups).unwrap();
        assert_eq!(parser.known.read, 5);
        let second = parse(&mut parser, &again, &groups).unwrap();
        let list = |of: &Config| of.rules[0].routes.list().to_vec();
        assert!(Arc::ptr_eq(&list(&config)[1], &list(&second)[1]));
    }

    #[test]
    fn a_bad_route_among_good_ones_leaves_them_as_they_were_read() {
        let mut parser = GeneratedParser::default();
        let groups = [group("a", "10.0.0.1:1")];
        let good: Vec<Part> = (0..5)
            .map(|number| route(&format!("r{number}"), &format!("x{number}.example"), "a"))
            .collect();
        let first = parse(&mut parser, &good, &groups).unwrap();
        let mut mixed = good.clone();
        mixed.insert(2, route("bad", "x y", "a"));
        for _ in 0..2 {
            let errors = parse(&mut parser, &mixed, &groups).unwrap_err();
            let lines: Vec<_> = errors.problems.iter().map(|of| of.line).collect();
            assert_eq!(lines, [13]);
        }
        let second = parse(&mut parser, &good, &groups).unwrap();
        assert_eq!(parser.known.read, 7);
        let list = |of: &Config| of.rules[0].routes.list().to_vec();
        let (first, second) = (list(&first), list(&second));
        assert!({ first.iter().zip(&second) }.all(|(one, other)| Arc::ptr_eq(one, other)));
    }

    #[test]
    fn routes_are_read_again_for_a_rule_with_other_settings() {
        let mut parser = GeneratedParser::default();
        let groups: GeneratedParts = Arc::new([group("a", "10.0.0.1:1")]);
        let routes: GeneratedParts = Arc::new([route("r", "a.example", "a")]);
        for (more, read) in [("", 2), ("http = { trust_forwarded = true }\n", 3), ("", 4)] {
            let rule = GeneratedRule {
                name: "web".into(),
                text: format!("{HEAD}{more}").into(),
                header: "[[rule.web.routes]]\n".into(),
                routes: Arc::clone(&routes),
            };
            let text = GeneratedText::from_parts(vec![rule], Arc::clone(&groups));
            let parsed = parser.parse(&text).unwrap();
            assert_eq!(parsed, parse_generated(&text).unwrap());
            assert_eq!(parser.known.read, read, "{more}");
        }
    }

    #[test]
    fn tables_beside_routes_are_read_if_routes_have_other_groups_or_say_more() {
        let mut parser = GeneratedParser::default();
        let groups = [group("a", "10.0.0.1:1"), group("b", "10.0.0.2:1")];
        let (one, two) = (route("1", "x.example", "a"), route("2", "y.example", "b"));
        let plain = route("3", "z.example", "a");
        let bad = route("bad", "x y", "a");
        let own: Part = Arc::new("name = \"own\"\nhost = \"o.example\"\n".to_owned());
        let answer: Part = Arc::new("name = \"answer\"\nanswer = { status = 404 }\n".to_owned());
        let limit = |name: &str, host: &str, key: &str| -> Part {
            let limits = format!("request_limits = [{{ requests = \"5/m\", key = \"{key}\" }}]\n");
            Arc::new(route(name, host, "a").text().to_owned() + &limits)
        };
        let limited = limit("limited", "l.example", "client");
        // Both would have a limit of the same name, which is not the same.
        let twin = limit("limited", "m.example", "all");
        let same = limit("limited", "n.example", "client");
        let forged = limit("forged", "f.example", "forwarded_for");
        for (routes, whole, is_good) in [
            (vec![&one, &two], 1, true),
            (vec![&one, &two], 1, true),
            (vec![&one, &plain, &two], 1, true),
            (vec![&one, &plain, &bad, &two], 1, false),
            (vec![&one, &two], 1, true),
            // No rule uses the group `b`.
            (vec![&one], 2, true),
            (vec![&one, &plain], 2, true),
            (vec![&one, &plain, &answer], 3, true),
            (vec![&one, &answer], 3, true),
            // The rule has no group of its own.
            (vec![&one, &own, &answer], 4, false),
            (vec![&one, &answer], 4, true),
            (vec![&one, &answer, &limited], 5, true),
            (vec![&one, &plain, &answer, &limited], 5, true),
            (vec![&one, &plain, &forged, &limited], 5, false),
            (vec![&one, &plain, &limited, &twin], 6, false),
            (vec![&one, &answer, &limited], 6, true),
            (vec![&one, &answer, &twin], 7, true),
            (vec![&one, &answer, &limited, &same], 8, true),
        ] {
            let routes: Vec<Part> = routes.into_iter().cloned().collect();
            // The result is compared with that of the whole text.
            let parsed = parse(&mut parser, &routes, &groups);
            assert_eq!((parsed.is_ok(), parser.whole), (is_good, whole));
        }
        // Other groups, and other tables of the rule.
        let routes = [one, two];
        parse(&mut parser, &routes, &groups).unwrap();
        assert_eq!(parser.whole, 9);
        let others = [group("a", "10.0.0.1:1"), group("b", "10.0.0.3:1")];
        parse(&mut parser, &routes, &others).unwrap();
        assert_eq!(parser.whole, 10);
    }

    #[test]
    fn routes_that_come_and_go_take_the_names_of_their_groups_with_them() {
        let mut parser = GeneratedParser::default();
        let groups = [
            group("a", "10.0.0.1:1"),
            group("b", "10.0.0.2:1"),
            group("c", "10.0.0.3:1"),
        ];
        let of = |numbers: &[usize]| -> Vec<Part> {
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
        let text = text(&routes, &groups("10.0.0.3:1"));
        assert_eq!(crate::parse_generated(&text).unwrap(), third);
    }
}
