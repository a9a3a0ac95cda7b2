//! `[group.NAME.ejection]`: when members that fail are taken out for a while.

use evenkeel_core::ejection::EjectionSettings;

use crate::schema::key::{DAY, HOUR, describe_keys, keys, secs};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

keys! {
    // Stands in the group's own table.
    LIMIT: EjectionSettings {
        /// Number of failures in a row after which a member is ejected for a while: refused or broken
        /// connections, timeouts, invalid responses. A response with a 5xx code does not count; a member with
        /// far more 5xx responses than the others is ejected for its share of failures, see
        /// [`ejection`](#groupnameejection).
        failure_limit "connection_failure_limit" [Number(1.0, 1000.0, "failures")]; "3",
    }
}

keys! {
    EJECTION: EjectionSettings {
        /// Time over which requests and failures of a member are counted, in whole seconds.
        window [Time(secs(1), secs(60))]; r#""30s""#,
        /// Minimum number of requests in the window for a member to be judged by its share of failures. Raise
        /// the number if your members are ejected by chance.
        min_requests [Number(1.0, 1_000_000.0, "requests")]; "100",
        /// Difference between the share of failed requests of a member and of the other members above which the
        /// member is ejected: 0.2 is 20 percentage points. Set 1 to never eject for the share.
        excess [Number(0.01, 1.0, "")]; "0.5",
        /// Time for which a member is ejected at first. If the member is ejected again soon, the time doubles.
        time [Time(secs(1), HOUR)]; r#""30s""#,
        /// Maximum time for which a member is ejected.
        max_time [Time(secs(1), DAY)]; r#""1h""#,
        /// Set `false` to send an ejected member no requests at all. With `true`, a few requests try the member
        /// while it is ejected, and the ejection ends as soon as the member answers well again. If the member fails
        /// such a request, another member answers it. Only requests with methods `GET`, `HEAD` and `OPTIONS` of
        /// rules with `protocol = "http"` try members, and only where each request may go to any member.
        trials; "false",
    }
}

impl AsTable for EjectionSettings {
    const ALLOWED: &'static str = "a table of ejection settings";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(EJECTION, self, report);
        if self.window.subsec_nanos() > 0 {
            table.report_problem("window", "not a number of whole seconds", report);
        }
        if self.time > self.max_time {
            let message = format!("`time`, {:?}, is longer than `max_time`", self.time);
            table.lacks(message, None, report);
        }
    }
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "Passive health: ejection of members. An ejected member gets no traffic for a while. \
               A member is ejected after `connection_failure_limit` failures in a row, or when far \
               more of its requests fail than at the other members. At most as many members are \
               ejected as `panic_threshold` allows.";
    let keys = [describe_keys(EJECTION, EjectionSettings::default())];
    TableDoc::new("[group.NAME.ejection]", doc, keys)
}
