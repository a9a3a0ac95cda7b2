//! `mirror`: copies of requests for other groups.

use std::collections::HashMap;

use toml::de::DeValue;

use super::group_name::unknown_group;
use crate::schema::document::{Item, Span};
use crate::schema::field::{Field, Limits, blank};
use crate::schema::key::{describe_keys, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

/// The field by which members tell copies of requests from requests.
pub const MIRRORED: &str = "X-Evenkeel-Mirror";

section! {
    /// Copies of requests for a second group, whose responses are thrown away.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Mirror {}
    keys MIRROR {
        /// Group which gets the copies. **Required.**
        group: String = String::new(); r#""canary""#,
        /// Share of the requests to copy, in percent, drawn at random. Set 0 for none, or a small share if your
        /// second group is small.
        percent: f32 [Number(0.0, 100.0, "")] = 100.0; "10",
        /// Maximum size of the body of a request to copy. A request with a larger body is not copied.
        max_body: usize [Bytes(0, 16 * 1024 * 1024)] = 64 * 1024; r#""1MiB""#,
        /// Maximum number of copies under way at once, for each worker, rule and group. Further requests are
        /// not copied.
        max_concurrent: u32 [Number(1.0, 10_000.0, "copies")] = 64; "16",
    }
}

impl AsTable for Mirror {
    const ALLOWED: &'static str = "a table of a mirror";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(MIRROR, self, report);
        if self.group.is_empty() {
            let message = "`group` is missing: the one that gets the copies";
            report.add_problem(&table.span_of(""), table.path(), message, None);
        }
    }
}
blank!(Mirror, Mirrors);

/// Most mirrors in a list.
pub const MAX_MIRRORS: usize = 8;

/// Mirrors: each gets copies of the requests, drawn for the mirror alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mirrors(pub Vec<Mirror>);

impl Field for Mirrors {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let items = item.one_or_each().unwrap_or_default();
        if items.len() > MAX_MIRRORS {
            let problem = format!("more than {MAX_MIRRORS} mirrors: remove some");
            return report.wrong(item, &problem, self.allowed(limits));
        }
        let mut earlier = std::mem::take(&mut self.0);
        // A table says what differs from the table of the defaults.
        let is_table = matches!(item.value, DeValue::Table(_)) && earlier.len() == 1;
        let mut base = earlier.pop().filter(|_| is_table).unwrap_or_default();
        for item in &items {
            let before = report.problem_count();
            base.read(item, &Limits::Any, report);
            let mirror = std::mem::take(&mut base);
            if report.problem_count() == before {
                self.0.push(mirror);
            }
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        format!("{}, or a list", Mirror::ALLOWED)
    }
}

impl Mirrors {
    /// Names of the groups that get copies.
    pub fn group_names(&self) -> impl Iterator<Item = &String> {
        self.0.iter().map(|mirror| &mirror.group)
    }

    /// Checks the group of each mirror: see [`Mirror::check_group`].
    pub(super) fn check_groups(
        &self,
        of_rule: (&str, Option<&str>),
        table: &Table<'_>,
        shared: &HashMap<String, Span>,
        report: &mut Report<'_>,
    ) {
        let listed = table.inner_tables("mirror");
        for (place, mirror) in self.0.iter().enumerate() {
            // A wrong mirror of the list is not here, and is reported already.
            match listed.get(place).filter(|_| listed.len() == self.0.len()) {
                Some(table) => mirror.check_group(of_rule, (table, "group"), shared, report),
                None => mirror.check_group(of_rule, (table, "mirror"), shared, report),
            }
        }
    }
}

impl Mirror {
    /// Checks that the mirror's group exists, and is not `primary`, the only group that gets the requests
    /// themselves. Problems are reported at the key of the table.
    fn check_group(
        &self,
        (rule, primary): (&str, Option<&str>),
        (table, key): (&Table<'_>, &str),
        shared: &HashMap<String, Span>,
        report: &mut Report<'_>,
    ) {
        // The group of a rule is one of its own name, too.
        if !shared.contains_key(&self.group) && self.group != rule {
            unknown_group(table, key, &self.group, shared, report);
        } else if primary == Some(self.group.as_str()) {
            let message = "`group` is the group of the requests themselves: name another group";
            table.report_problem(key, message, report);
        }
    }
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "[Copies of requests](routing.md#mirroring) for a second group, whose responses are \
               thrown away. For several groups write a list of up to 8 such tables. You can set `mirror` of a route \
               with the same keys; the route's mirrors replace the rule's.";
    let keys = [describe_keys(MIRROR, Mirror::default())];
    TableDoc::new("[rule.NAME.http.mirror]", doc, keys)
}

#[cfg(test)]
mod tests {
    fn read(mirror: &str) -> Result<Vec<(String, f32)>, String> {
        let group = |name| format!("[group.{name}]\nmembers = [\"a:1\"]\n");
        let text = format!(
            "{}{}[defaults]\nhttp.mirror = {{ group = \"a\", percent = 5 }}\n\
             [rule.x]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:1\"]\n[rule.x.http]\n{mirror}\n",
            group("a"),
            group("b")
        );
        let config = crate::parse("t", &text).map_err(|errors| errors.to_string())?;
        let mirrors = config.rules[0].http.mirror.clone().unwrap_or_default();
        let shown = mirrors.0.into_iter();
        Ok(shown.map(|of| (of.group, of.percent)).collect())
    }

    #[test]
    fn a_table_is_a_single_mirror_and_a_list_several() {
        let mirror = |group: &str, percent| (group.to_owned(), percent);
        assert_eq!(read(""), Ok(vec![mirror("a", 5.0)]));
        // What the table leaves out is that of the defaults, and a list has nothing of them.
        let table = read("mirror = { group = \"b\" }");
        assert_eq!(table, Ok(vec![mirror("b", 5.0)]));
        let list = read("mirror = [{ group = \"b\" }, { group = \"a\", percent = 1 }]");
        assert_eq!(list, Ok(vec![mirror("b", 100.0), mirror("a", 1.0)]));
        assert_eq!(read("mirror = []"), Ok(Vec::new()));
        assert_eq!(read("mirror = false"), Ok(Vec::new()));
    }

    #[test]
    fn errors_of_a_list_name_the_mirror() {
        let nine = ["{ group = \"a\" }"; 9].join(", ");
        for (mirror, part) in [
            (
                "mirror = [\n{ group = \"a\" },\n{ group = \"bb\" },\n]",
                "t:13:11: rule.x.http.mirror[1].group: unknown group, did you mean \"b\"?",
            ),
            (
                "mirror = [{ group = \"a\" }, { group = \"x\" }]",
                "rule.x.http.mirror[1].group: `group` is the group of the requests themselves",
            ),
            (
                "mirror = [{ group = \"a\", percent = 101 }]",
                "rule.x.http.mirror[0].percent",
            ),
            ("mirror = [{ percent = 1 }]", "`group` is missing"),
            (&*format!("mirror = [{nine}]"), "more than 8 mirrors"),
        ] {
            let said = read(mirror).unwrap_err();
            assert!(said.contains(part), "{mirror}: {said}");
        }
    }
}
