//! `[group.NAME.alert]`: when locations shed load, and how.

use evenkeel_core::alert::{AlertSettings, Threshold};
use evenkeel_core::load::LoadValue;
use toml::de::DeValue;

use crate::schema::document::{Item, entries};
use crate::schema::field::{Blank, Field, Limits, OUT_OF_RANGE};
use crate::schema::key::{DAY, HOUR, docs, keys, millis, secs};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

keys! {
    ALERT: AlertSettings {
        /// Effective load above which a location gets an alert: a number is that load itself;
        /// `above_minimum` is a share above the smallest load that is not 0, `above_average` one
        /// above the average (0.4 is 40 %). Without it the strategy's parameters decide, if it has
        /// a threshold.
        threshold; "{ above_average = 0.5 }",
        /// An alert ends when the load is not above this share of the threshold (or of the excess
        /// that a relative threshold allows), so that it does not flap.
        release [Number(0.01, 1.0, "")]; "0.7",
        /// Maximum share of locations under alert at the same time, among those that take traffic;
        /// the group sends clients away from them. The least loaded location always keeps its
        /// clients.
        max_share [Number(0.0, 1.0, "")]; "0.25",
        /// Duration of one step, in which a share of the clients (`move_share`) leaves an alerted
        /// location, so that they do not all move at once.
        shed_time [Time(secs(0), HOUR)]; r#""30s""#,
        /// Share of the remaining clients that leaves in each step of `shed_time`, as long as the
        /// alert lasts. A smaller share overshoots less where loads are reported late, and takes
        /// longer.
        move_share [Number(0.01, 1.0, "")]; "0.25",
        /// Whether HTTP clients that are bound with granularity `per_session` leave, too: their
        /// next request goes to another member. Off by default, because such clients may have a
        /// session on their member.
        move_sessions; "true",
        /// During an alert, TCP connections, and HTTP connections that switched to another
        /// protocol, are closed when nothing was sent for this long and the member sent last: their
        /// clients connect again, and get another member. A connection that waits for an answer is
        /// never closed. Off by default, because a client may not expect it. Needs granularity
        /// `per_session` or `on_demand`.
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

/// What the reference says of the table.
pub(crate) fn tables() -> TableDoc {
    let doc = "Load alerts of a group, which make locations shed existing clients. They need load \
               reports. Groups share locations, so an alert applies to each `adaptive` group that \
               binds clients there (granularity `per_session` or `on_demand`): new clients go to \
               other members as long as there are any, and clients that are bound with `on_demand` \
               leave between two requests; see `move_sessions` and `close_idle` for the others.";
    TableDoc::new(
        "[group.NAME.alert]",
        doc,
        [docs(ALERT, AlertSettings::default())],
    )
}
