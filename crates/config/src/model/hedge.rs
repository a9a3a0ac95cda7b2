//! `hedge`: a second request when the first member takes long.

use std::time::Duration;

use crate::schema::field::blank;
use crate::schema::key::{HOUR, describe_keys, millis, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Requests sent to a second member when the first takes long.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Hedge {}
    keys HEDGE {
        /// Time without a byte of a response after which the request is sent to another member, too. Set the
        /// latency within which 95 % of your responses arrive. **Required.**
        after: Option<Duration> [Time(millis(1), HOUR)] = None; r#""50ms""#,
        /// Maximum share of requests sent twice, in percent of the requests which could be sent twice. Set 0
        /// for none. Keep the share small: second requests are additional load for your members.
        percent: f32 [Number(0.0, 100.0, "")] = 5.0; "2",
    }
}

impl AsTable for Hedge {
    const ALLOWED: &'static str = "a table of a hedge";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(HEDGE, self, report);
        if !table.has_key("after") && self.after.is_none() {
            let message = "`after` is missing: the time after which a second member is asked";
            report.add_problem(&table.span_of(""), table.path(), message, None);
        }
    }
}
blank!(Hedge);

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "[Second requests](routing.md#hedging) to another member when the first takes long. \
               You can set `hedge` of a route with the same keys; the route's table replaces the \
               rule's.";
    let keys = [describe_keys(HEDGE, Hedge::default())];
    TableDoc::new("[rule.NAME.http.hedge]", doc, keys)
}
