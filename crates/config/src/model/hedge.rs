//! `hedge`: a second member is asked when the first one takes long.

use std::time::Duration;

use crate::schema::field::blank;
use crate::schema::key::{HOUR, docs, millis, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Requests that are sent to a second member when the first one takes long.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Hedge {}
    keys HEDGE {
        /// After this time without a byte of a response the request is sent to another member, too.
        /// **Required.** What 95 % of the responses take is a good value.
        after: Option<Duration> [Time(millis(1), HOUR)] = None; r#""50ms""#,
        /// How many requests may be sent twice, in percent of those that could be. 0 is none.
        percent: f32 [Number(0.0, 100.0, "")] = 5.0; "2",
    }
}

impl AsTable for Hedge {
    const ALLOWED: &'static str = "a table of a hedge";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(HEDGE, self, report);
        if !table.given("after") && self.after.is_none() {
            let message = "`after` is missing: the time after which a second member is asked";
            report.problem(&table.span_of(""), table.path(), message, None);
        }
    }
}
blank!(Hedge);

/// What the reference says of the table.
pub(crate) fn tables() -> TableDoc {
    let doc = "[Second requests](routing.md#hedging) to another member when the first one takes long; \
               `hedge` of a route has the same keys, and is instead of the rule's.";
    let keys = [docs(HEDGE, Hedge::default())];
    TableDoc::new("[rule.NAME.http.hedge]", doc, keys)
}
