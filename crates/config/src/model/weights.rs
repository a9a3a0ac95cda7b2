//! `groups` of routes: groups with weights, and actions for the requests of each of them.

use toml::de::DeValue;

use super::field_changes::FieldChanges;
use super::mirror::Mirrors;
use super::route_values::PREFIX;
use crate::schema::document::{Item, entries};
use crate::schema::field::{Field, Limits, WRONG_TYPE, blank, read_one};
use crate::schema::key::section;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Group that gets a share of a route's requests, with actions for these requests.
    #[derive(Clone, Debug, PartialEq)]
    pub struct GroupShare {
        /// Name of the group.
        name: String = String::new(),
        /// Number of path segments that are rewritten.
        depth: usize = 0,
    }
    keys GROUP_SHARE {
        /// Weight of the group: its share of the requests, relative to the other groups of the route.
        weight: u32 [Number(0.0, 1_000_000.0, "parts")] = 1; "5",
        /// Changes to the fields of requests to this group: a table with the keys of
        /// [`request_fields`](#rulenameroutesrequest_fields).
        request_fields: FieldChanges = FieldChanges::default(); r#"{ set = { "X-Version" = "2" } }"#,
        /// Changes to the fields of responses of this group.
        response_fields: FieldChanges = FieldChanges::default(); r#"{ remove = ["Server"] }"#,
        /// Replacement for the prefix in the route's `path`, in requests to this group.
        rewrite_prefix: Option<String> [Text(PREFIX)] = None; r#""/v2""#,
        /// Path in requests to this group, instead of the whole path of the request. The query stays.
        rewrite_path: Option<String> [Text(PREFIX)] = None; r#""/index.html""#,
        /// Further groups which get copies of this group's requests, beside the route's and the rule's: a
        /// table, or a list of tables, as in the rule's `http`.
        mirror: Option<Mirrors> = None; r#"{ group = "canary", percent = 10 }"#,
    }
}

blank!(GroupShare);

impl AsTable for GroupShare {
    const ALLOWED: &'static str = "a table of a group with a weight";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(GROUP_SHARE, self, report);
        if !self.response_fields.is_plain() {
            let message = "fields of responses can have no parts of the request";
            table.report_problem("response_fields", message, report);
        }
        if self.rewrite_path.is_some() && self.rewrite_prefix.is_some() {
            let message =
                "is set beside `rewrite_path`, which replaces the whole path: remove a key";
            table.report_problem("rewrite_prefix", message, report);
        }
    }
}

impl GroupShare {
    /// True if something else is done with the requests than with those of the route's other groups.
    pub fn has_actions(&self) -> bool {
        let plain = GroupShare {
            name: self.name.clone(),
            weight: self.weight,
            ..GroupShare::default()
        };
        *self != plain
    }

    /// Returns the path, or the prefix, in requests to the group.
    pub fn rewrite(&self) -> Option<&str> {
        let rewrite = self.rewrite_prefix.as_deref();
        rewrite.or(self.rewrite_path.as_deref())
    }
}

/// Groups with their weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights(pub Vec<GroupShare>);

const WEIGHT: Limits = Limits::Number(0.0, 1_000_000.0, "parts");

impl Weights {
    /// Returns the names of the groups with their weights.
    pub fn list_weights(&self) -> Vec<(&str, u32)> {
        let shares = self.0.iter();
        shares.map(|share| (&*share.name, share.weight)).collect()
    }
}

impl Field for Weights {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::Table(table) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        let before = report.problem_count();
        for entry in entries(&item.path, table) {
            let share: Option<GroupShare> = match entry.item.value {
                DeValue::Table(_) => read_one(&entry.item, &Limits::Any, report),
                _ => {
                    let weight = read_one(&entry.item, &WEIGHT, report);
                    weight.map(|weight| GroupShare {
                        weight,
                        ..GroupShare::default()
                    })
                }
            };
            self.0.extend(share.map(|share| GroupShare {
                name: entry.name.to_owned(),
                ..share
            }));
        }
        if report.problem_count() == before && self.0.iter().all(|share| share.weight == 0) {
            report.wrong(item, "no group has a weight above 0", self.allowed(limits));
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        "a table of names of groups, each with a whole number from 0 to 1000000, or with a table of a group".into()
    }
}

#[cfg(test)]
mod tests {
    use crate::model::config::Config;

    fn parse(route: &str, more: &str) -> Result<Config, String> {
        let groups = "[group.old]\nmembers = [\"a:1\"]\n[group.new]\nmembers = [\"a:1\"]\n";
        let text = format!(
            "{groups}[rule.x]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:1\"]\n{more}\n[[rule.x.routes]]\n{route}\n"
        );
        crate::parse("t", &text).map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_group_has_a_weight_or_a_table_with_actions() {
        let route = "path = \"/a/b/*\"\n[rule.x.routes.groups]\nold = 3\n[rule.x.routes.groups.new]\n\
                     request_fields.set = { X-A = \"1\" }\nrewrite_prefix = \"/c\"\nmirror = { group = \"x\" }";
        let config = parse(route, "").unwrap();
        let route = &config.rules[0].routes.list()[0];
        assert_eq!(route.groups.list_weights(), [("old", 3), ("new", 1)]);
        let [old, new] = route.groups.0.as_slice() else {
            panic!("{route:?}");
        };
        assert!(new.has_actions() && !old.has_actions());
        assert_eq!((new.depth, new.rewrite()), (2, Some("/c")));
        assert!(new.request_fields.takes_out("x-a"));
        // The group of the rule gets copies.
        let named: Vec<_> = route.named_mirrors().map(|of| &*of.group).collect();
        assert_eq!(named, ["x"]);
    }

    #[test]
    fn what_is_wrong_with_actions_of_groups() {
        let models = "http.models = { a = \"old\" }";
        let aliases = "http.model_aliases = { a = \"b\" }";
        let acts = "groups = { old = 1, new = { rewrite_path = \"/c\" } }";
        for (route, more, part) in [
            (
                "groups = { old = { weigth = 1 } }",
                "",
                "rule.x.routes[0].groups.old.weigth: unknown key, did you mean \"weight\"?",
            ),
            (
                "groups = { old = { weight = 0 }, new = 0 }",
                "",
                "no group has a weight above 0",
            ),
            (
                "groups = { old = { weight = -1 } }",
                "",
                "rule.x.routes[0].groups.old.weight: ",
            ),
            (
                "groups = { odl = { weight = 1 } }",
                "",
                "unknown group, did you mean \"old\"?",
            ),
            (
                "groups = { old = 1, new = { rewrite_prefix = \"/c\" } }",
                "",
                "rule.x.routes[0].groups.new.rewrite_prefix: needs `path` with prefixes only",
            ),
            (
                "path = \"/a/*\"\ngroups = { old = { rewrite_prefix = \"/c\", rewrite_path = \"/\" } }",
                "",
                "is set beside `rewrite_path`",
            ),
            (
                "groups = { old = { response_fields = { set = { X = \"{host}\" } } } }",
                "",
                "groups.old.response_fields: fields of responses can have no parts of the request",
            ),
            (
                "groups = { old = 1, new = { mirror = { group = \"new\" } } }",
                "",
                "groups.new.mirror: `group` is the group of the requests themselves",
            ),
            (
                "groups = { old = 1, new = { mirror = [{ group = \"od\" }] } }",
                "",
                "groups.new.mirror[0].group: unknown group, did you mean \"old\"?",
            ),
            (acts, models, "\"new\" has actions, and the model"),
            (acts, aliases, "\"new\" has actions, and the model"),
        ] {
            let said = parse(route, more).unwrap_err();
            assert!(said.contains(part), "{route}: {said}");
        }
        let off = format!("{acts}\nmodels = {{}}\nmodel_aliases = {{}}");
        parse(&off, models).unwrap();
    }
}
