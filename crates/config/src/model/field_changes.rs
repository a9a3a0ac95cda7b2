//! `request_fields` and `response_fields`: changes to the fields of a head.

use std::collections::BTreeMap;

use evenkeel_core::key;

use crate::fields::is_same_name;
use crate::routing::template::Template;
use crate::schema::field::Texts;
use crate::schema::key::section;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Changes to the fields of a head: first `remove`, then `set`, then `add`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct FieldChanges {
        /// Fields that are written, in the file's order of names.
        written: Vec<(String, Template)> = Vec::new(),
    }
    keys CHANGES {
        /// Fields and values which replace all fields of the same names. In requests you can write `{scheme}`,
        /// `{host}`, `{port}`, `{path}`, `{query}` and `{client}` in values.
        set: BTreeMap<String, String> = BTreeMap::new(); r#"{ "X-Real-IP" = "{client}" }"#,
        /// Fields and values to add, keeping existing fields. You can write the same parts in braces as in
        /// `set`.
        add: BTreeMap<String, String> = BTreeMap::new(); r#"{ Vary = "Accept" }"#,
        /// Names of fields to remove.
        remove: Vec<String> = Vec::new(); r#"["Server", "X-Powered-By"]"#,
    }
}

impl FieldChanges {
    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.written.is_empty() && self.remove.is_empty()
    }

    /// Names and values of the fields that are written.
    pub fn written_fields(&self) -> impl Iterator<Item = (&str, &Template)> {
        self.written
            .iter()
            .map(|(name, value)| (name.as_str(), value))
    }

    /// True if nothing that is written has parts of a request.
    pub(crate) fn is_plain(&self) -> bool {
        self.written.iter().all(|(_, value)| value.is_plain())
    }

    /// Returns the changes of `base` and these; where two are about one field, these count. What both add, is
    /// added twice.
    pub fn layer_over(&self, base: &FieldChanges) -> FieldChanges {
        let mut merged = base.clone();
        merged.set.retain(|name, _| !self.takes_out(name));
        merged.add.retain(|name, _| !self.takes_out(name));
        merged.written.retain(|(name, _)| !self.takes_out(name));
        merged.set.extend(self.set.clone());
        merged.add.extend(self.add.clone());
        merged.remove.extend(self.remove.iter().cloned());
        merged.written.extend(self.written.iter().cloned());
        merged
    }

    /// True if fields are taken out that some server takes for ones called `name`.
    pub fn takes_out(&self, name: &str) -> bool {
        self.taken_out().any(|known| is_same_name(known, name))
    }

    /// The names of the fields that are taken out.
    pub fn taken_out(&self) -> impl Iterator<Item = &str> {
        self.remove
            .iter()
            .chain(self.set.keys())
            .map(String::as_str)
    }

    /// Returns the reason why no route may change a field of this name; `None` if it may.
    pub fn refusal(name: &str) -> Option<&'static str> {
        const OF_HOP: [&str; 8] = [
            "connection",
            "keep-alive",
            "proxy-connection",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
            "content-length",
        ];
        const OF_BALANCER: [&str; 5] = [
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-forwarded-host",
            "forwarded",
            "via",
        ];
        let is = |known: &&str| known.eq_ignore_ascii_case(name);
        if !key::is_field_name(name) {
            Some("is not the name of a field")
        } else if OF_HOP.iter().any(&is) {
            Some("is about one connection, or frames the message: it cannot be changed")
        } else if OF_BALANCER.iter().any(is) {
            Some("is for the balancer to write: see `x_forwarded`, `forwarded` and `via` of `http`")
        } else {
            None
        }
    }
}

/// A value of a field.
pub(super) const VALUE: Texts = ("a text without control characters", |text| {
    text.bytes().all(|byte| byte >= b' ' && byte != 0x7f) && text.trim() == text
});

impl AsTable for FieldChanges {
    const ALLOWED: &'static str = "a table of `set`, `add` and `remove`";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(CHANGES, self, report);
        let mut written = Vec::new();
        for (key, fields) in [("set", &self.set), ("add", &self.add)] {
            for (name, value) in fields {
                if let Some(problem) = Self::refusal(name) {
                    table.report_problem(key, format!("{name:?} {problem}"), report);
                } else if name.eq_ignore_ascii_case("host") && key == "add" {
                    table.report_problem(key, "there can only be one \"Host\": use `set`", report);
                }
                if !(VALUE.1)(value) || !value.is_ascii() {
                    let message =
                        format!("the value of {name:?} must be ASCII without control characters");
                    table.report_problem(key, message, report);
                }
                match Template::parse(value) {
                    Ok(value) => written.push((name.clone(), value)),
                    Err(error) => table.report_problem(key, format!("{name:?}: {error}"), report),
                }
            }
        }
        for name in &self.remove {
            let problem = match Self::refusal(name) {
                None if name.eq_ignore_ascii_case("host") => {
                    Some("cannot be removed: a request needs it")
                }
                problem => problem,
            };
            if let Some(problem) = problem {
                table.report_problem("remove", format!("{name:?} {problem}"), report);
            }
        }
        self.written = written;
    }
}
