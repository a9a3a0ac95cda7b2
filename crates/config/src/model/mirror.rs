//! `mirror`: copies of requests for a second group.

use std::collections::HashMap;

use super::group_name::unknown_group;
use crate::schema::document::Span;
use crate::schema::field::blank;
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
        /// Maximum number of copies under way at once, for each worker and rule. Further requests are not
        /// copied.
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
blank!(Mirror);

impl Mirror {
    /// Looks at whether its group exists, and is not `primary`, the only one that gets the requests
    /// themselves. `table` has the key `mirror`.
    pub(super) fn check_group(
        &self,
        (rule, primary): (&str, Option<&str>),
        table: &Table<'_>,
        shared: &HashMap<String, Span>,
        report: &mut Report<'_>,
    ) {
        // The group of a rule is one of its own name, too.
        if !shared.contains_key(&self.group) && self.group != rule {
            unknown_group(table, "mirror", &self.group, shared, report);
        } else if primary == Some(self.group.as_str()) {
            let message = "`group` is the group of the requests themselves: name another group";
            table.report_problem("mirror", message, report);
        }
    }
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "[Copies of requests](routing.md#mirroring) for a second group, whose responses are \
               thrown away. You can set `mirror` of a route with the same keys; the route's table \
               replaces the rule's.";
    let keys = [describe_keys(MIRROR, Mirror::default())];
    TableDoc::new("[rule.NAME.http.mirror]", doc, keys)
}
