//! Answers of the balancer's own, and changes to responses: the same keys in rules, groups and routes.

use std::collections::BTreeMap;
use std::path::Path;

use toml::de::DeValue;

use super::cors::{self, Cors};
use super::field_changes::FieldChanges;
use super::maintenance::{self, Maintenance};
use crate::schema::document::{Item, entries};
use crate::schema::field::{Field, FileName, Limits, WRONG_TYPE, read_one};
use crate::schema::key::section;
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::Table;

section! {
    /// Answers of the balancer's own and changes to responses, as a rule, a group or a route says them.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Responses {}
    keys RESPONSES {
        /// [Maintenance](limits.md#maintenance): answer to clients while you do not want the service to be
        /// used: a table (`on`, `page`, `content_type`, `status`, `retry_after`, `except`). Keys missing at a
        /// route come from its group, then from the rule; you can turn on any of the three. A TCP or FTP rule
        /// has no page: new connections are reset.
        maintenance: Option<Maintenance> = None; "{ on = true }",
        /// HTTP: [pages of your own](routing.md#error-pages) instead of the balancer's one line, by status:
        /// files of at most 64 KiB, which are read at the start and at each reload. `503` is for "no server is
        /// available", too. A route's page takes precedence over its group's, and the group's over the rule's.
        /// Answers of members do not change.
        error_pages: ErrorPages = ErrorPages::default(); r#"{ 502 = "/etc/evenkeel/sorry.html", 503 = "/etc/evenkeel/sorry.html" }"#,
        /// HTTP: changes to the fields of responses, and of redirects and answers of the balancer's own: a
        /// table with the keys of [`request_fields`](#rulenameroutesrequest_fields). A route's changes are
        /// added to the group's, and the group's to the rule's. If you change one field twice, the route takes
        /// precedence, then the group.
        response_fields: FieldChanges = FieldChanges::default(); r#"{ set = { "Strict-Transport-Security" = "max-age=31536000" } }"#,
        /// HTTP: [cross-origin resource sharing](routing.md#pages-of-other-origins): a table of the pages of
        /// other origins which may read responses (`allow_origins`, `allow_methods`, `allow_headers`,
        /// `expose_headers`, `allow_credentials`, `max_age`). A route's table takes precedence over its
        /// group's, and the group's over the rule's. Set `{}` to leave CORS to your members.
        cors: Option<Cors> = None; r#"{ allow_origins = ["https://app.example"] }"#,
    }
}

/// Keys that only a rule with `protocol = "http"` may have.
pub(crate) fn http_keys() -> impl Iterator<Item = &'static str> {
    let keys = RESPONSES.iter().map(|key| key.name);
    keys.filter(|name| *name != "maintenance")
}

/// Reference of the tables.
pub(crate) fn describe_tables() -> [TableDoc; 2] {
    [maintenance::describe_table(), cors::describe_table()]
}

impl Responses {
    /// Takes what `table` says.
    pub(crate) fn read(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(RESPONSES, self, report);
        if !self.response_fields.is_plain() {
            let message = "fields of responses can have no parts of the request";
            table.report_problem("response_fields", message, report);
        }
    }

    /// Returns `base` with what `self` says in its place.
    #[must_use]
    pub fn layer_over(&self, base: &Responses) -> Responses {
        let mut merged = base.clone();
        if let Some(own) = &self.maintenance {
            let base = base.maintenance.clone().unwrap_or_default();
            merged.maintenance = Some(own.layer_over(&base));
        }
        let pages = self.error_pages.0.clone();
        merged.error_pages.0.extend(pages);
        if self.cors.is_some() {
            merged.cors.clone_from(&self.cors);
        }
        merged.response_fields = self.response_fields.layer_over(&base.response_fields);
        merged
    }

    /// True if nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == Responses::default()
    }

    /// True while in maintenance, for clients that are not excepted.
    pub fn is_in_maintenance(&self) -> bool {
        self.maintenance.as_ref().is_some_and(|own| own.on)
    }

    /// Sets whether it is in maintenance, if that is said.
    pub fn set_maintenance(&mut self, on: Option<&bool>) {
        if let Some(on) = on {
            self.maintenance.get_or_insert_default().on = *on;
        }
    }

    /// Files with pages.
    pub fn files(&self) -> impl Iterator<Item = &FileName> {
        let page = self.maintenance.iter().flat_map(|own| &own.page);
        page.chain(self.error_pages.0.values())
    }

    /// A relative path starts at `folder`.
    pub(crate) fn resolve(&mut self, folder: &Path) {
        if let Some(own) = &mut self.maintenance {
            own.resolve(folder);
        }
        for page in self.error_pages.0.values_mut() {
            page.resolve(folder);
        }
    }
}

/// Files with pages, by the status that they are for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorPages(pub BTreeMap<u16, FileName>);

impl ErrorPages {
    /// The media type of a page, by the ending of its file.
    pub fn media_type(path: &Path) -> &'static str {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("json") => "application/json",
            Some("txt") => "text/plain; charset=utf-8",
            _ => "text/html; charset=utf-8",
        }
    }
}

impl Field for ErrorPages {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::Table(table) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        for entry in entries(&item.path, table) {
            let status = entry
                .name
                .parse::<u16>()
                .ok()
                .filter(|status| (400..=599).contains(status));
            let Some(status) = status else {
                let message = "not a status from 400 to 599, as in 503";
                report.add_problem(&entry.key_span, &entry.item.path, message, None);
                continue;
            };
            if let Some(page) = read_one(&entry.item, &Limits::Any, report) {
                self.0.insert(status, page);
            }
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        "a table of statuses from 400 to 599, each with the path of a file; `.json` and `.txt` at its end say what is in it, \
         others are HTML"
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::template::Template;

    fn responses(keys: &str) -> Responses {
        let text = format!("[rule.x]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:1\"]\n{keys}\n");
        let mut config = crate::parse("x.toml", &text).unwrap();
        config.rules.remove(0).responses
    }

    #[test]
    fn what_is_more_specific_counts_key_by_key() {
        let rule = responses(
            "maintenance = { page = \"rule.html\", status = 500, except = \"10.0.0.0/8\" }\n\
             error_pages = { 502 = \"a\", 503 = \"b\" }",
        );
        let group =
            responses("maintenance = { page = \"group.html\" }\nerror_pages = { 503 = \"c\" }");
        let mut on = Responses::default();
        on.maintenance.get_or_insert_default().on = true;
        let merged = on.layer_over(&group.layer_over(&rule));
        let maintenance = merged.maintenance.clone().unwrap();
        let page = maintenance.page.as_ref().unwrap();
        assert!(page.path.ends_with("group.html"));
        assert!(maintenance.on && maintenance.status == 500);
        assert!(!maintenance.is_for(Some([10, 0, 0, 1].into())));
        assert!(maintenance.is_for(Some([192, 0, 2, 1].into())) && maintenance.is_for(None));
        let pages = merged.error_pages.0.iter();
        let pages: Vec<_> = pages
            .map(|(status, page)| (*status, page.path.to_str().unwrap()))
            .collect();
        assert_eq!(pages, [(502, "a"), (503, "c")]);
        assert_eq!(merged.files().count(), 3);
        // What says nothing changes nothing.
        assert_eq!(Responses::default().layer_over(&rule), rule);
    }

    #[test]
    fn changes_of_fields_add_up_and_the_nearest_counts() {
        let rule = responses(
            "response_fields = { set = { A = \"rule\", B = \"rule\" }, add = { C = \"rule\", D = \"rule\" }, remove = [\"E\"] }",
        );
        let route = responses(
            "response_fields = { set = { a = \"route\" }, add = { C = \"route\" }, remove = [\"b\", \"d\"] }",
        );
        let merged = route.layer_over(&rule).response_fields;
        let written = merged.written_fields();
        let text = |value: &Template| {
            value
                .pieces()
                .map(|(text, _)| text.to_owned())
                .collect::<String>()
        };
        let written: Vec<_> = written
            .map(|(name, value)| format!("{name}={}", text(value)))
            .collect();
        assert_eq!(written, ["C=rule", "a=route", "C=route"]);
        let mut taken: Vec<_> = merged.taken_out().collect();
        taken.sort_unstable();
        assert_eq!(taken, ["E", "a", "b", "d"]);
    }

    #[test]
    fn pages_are_for_statuses_of_errors() {
        let bad = |keys: &str| {
            let text =
                format!("[rule.x]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:1\"]\n{keys}\n");
            crate::parse("x.toml", &text).unwrap_err().to_string()
        };
        assert!(bad("error_pages = { 200 = \"a\" }").contains("not a status from 400 to 599"));
        assert!(bad("error_pages = { \"5xx\" = \"a\" }").contains("not a status"));
        assert!(bad("error_pages = \"a\"").contains("a table of statuses"));
        let error = bad("response_fields = { set = { A = \"{host}\" } }");
        assert!(error.contains("no parts of the request"), "{error}");
        let is = |path: &str, media_type: &str| {
            let found = ErrorPages::media_type(Path::new(path));
            assert!(found.starts_with(media_type), "{path}: {found}");
        };
        is("sorry.html", "text/html");
        is("sorry.json", "application/json");
        is("sorry.txt", "text/plain");
        is("sorry", "text/html");
    }
}
