//! `[group.NAME.alert]`: when locations shed load, and how.

use evenkeel_core::alert::{AlertSettings, Threshold};
use evenkeel_core::load::LoadValue;
use toml::de::DeValue;

use crate::schema::document::{Item, entries};
use crate::schema::field::{Blank, Field, Limits, OUT_OF_RANGE};
use crate::schema::key::{DAY, HOUR, describe_keys, keys, millis, secs};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

keys! {
    ALERT: AlertSettings {
        /// Effective load above which a location gets an alert. A number is an absolute load; `above_minimum`
        /// is a share above the smallest load other than 0, `above_average` a share above the average (0.4 is
        /// 40 %). If you leave the key out, the strategy's parameters decide, if the strategy has a threshold.
        threshold; "{ above_average = 0.5 }",
        /// Share of the threshold (or of the excess allowed by a relative threshold). An alert ends when the
        /// load is not above this share. Lower the share if your alerts flap.
        release [Number(0.01, 1.0, "")]; "0.7",
        /// Maximum share of locations under alert at the same time, among locations with traffic; the group
        /// sends clients away from locations under alert. The least loaded location always keeps its clients.
        max_share [Number(0.0, 1.0, "")]; "0.25",
        /// Duration of one step. In each step a share of the clients (`move_share`) leaves an alerted location,
        /// so that clients do not all move at once.
        shed_time [Time(secs(0), HOUR)]; r#""30s""#,
        /// Share of the remaining clients which leaves in each step of `shed_time`, as long as the alert lasts.
        /// Set a smaller share if your loads are reported late: a smaller share overshoots less, but takes
        /// longer.
        move_share [Number(0.01, 1.0, "")]; "0.25",
        /// Lets HTTP clients with granularity `per_session` leave, too: the next request of such a client goes
        /// to another member. Set `true` only if your clients have no session on their member.
        move_sessions; "true",
        /// Time without data after which a connection is closed during an alert. The limit applies to TCP
        /// connections, and to HTTP connections switched to another protocol, if the member was the last to
        /// send. Clients connect again, and get another member. A connection waiting for an answer is never
        /// closed. Connections that the kernel forwards stay. Set a time only if your clients can handle such a
        /// close. Needs granularity `per_session` or `on_demand`. Off by default.
        close_idle [Time(millis(100), DAY)]; r#""2s""#,
    }
}

impl AsTable for AlertSettings {
    const ALLOWED: &'static str = "a table of alert settings";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(ALERT, self, report);
    }
}

/// A threshold: a number, or a table that says what the number is relative to.
impl Field for Threshold {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let one = match item.value {
            DeValue::Table(table) => match &entries(&item.path, table)[..] {
                [one] => one.item.number().map(|number| (one.name, number as f32)),
                _ => None,
            },
            _ => item.number().map(|number| ("critical", number as f32)),
        };
        let found = match one {
            Some(("critical", load)) => Threshold::Critical(load),
            Some(("above_minimum", share)) => Threshold::AboveMinimum(share),
            Some(("above_average", share)) => Threshold::AboveAverage(share),
            _ => return report.wrong(item, "not a threshold", self.allowed(limits)),
        };
        match one {
            Some((_, number)) if number > 0.0 && number <= LoadValue::MAX => *self = found,
            _ => report.wrong(item, OUT_OF_RANGE, self.allowed(limits)),
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        "a number greater than 0, or a table with one such number as `critical`, \
         `above_minimum` or `above_average`"
            .into()
    }
}

impl Blank for Threshold {
    fn blank() -> Self {
        Threshold::Critical(LoadValue::MAX)
    }
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "Load alerts of a group, which make locations shed existing clients. You need load \
               reports. Groups share locations, so an alert applies to each `adaptive` group with \
               clients bound to the location (granularity `per_session` or `on_demand`). New \
               clients go to other members as long as other members are available, and clients \
               bound with `on_demand` leave between two requests. For other clients see \
               `move_sessions` and `close_idle`.";
    TableDoc::new(
        "[group.NAME.alert]",
        doc,
        [describe_keys(ALERT, AlertSettings::default())],
    )
}
