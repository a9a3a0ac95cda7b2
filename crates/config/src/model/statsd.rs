//! `[group.NAME.statsd]`: gauges that applications send by StatsD, and which load each is.

use std::net::SocketAddr;

use evenkeel_core::load::LoadId;
use toml::de::DeValue;

use super::orca::check_load;
use crate::schema::document::{Item, entries};
use crate::schema::field::{Field, Limits, Texts, WRONG_TYPE, blank, read_one};
use crate::schema::key::{docs, section};
use crate::schema::networks::Networks;
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Which gauges of whom are which loads.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Statsd {}
    keys STATSD {
        /// UDP addresses at which datagrams of StatsD arrive: one, or a list. Groups may share
        /// them. **Required.**
        listen: Vec<SocketAddr> = Vec::new(); r#""10.0.0.5:8125""#,
        /// Networks from which gauges count: StatsD knows no authentication, so name those that
        /// are yours where others can reach the address. Without it, all do.
        senders: Option<Networks> = None; r#"["10.0.0.0/8"]"#,
        /// The tag (of DogStatsD) whose value is the name of the location. Without it, the gauges
        /// of an address are those of the location whose members have it.
        location_tag: Option<String> [Text(NAME)] = None; r#""host""#,
        /// A tag that a gauge must have to count, with its value if it has one.
        tag: Option<String> [Text(TAG)] = None; r#""env:production""#,
        /// Which gauge is which load, by its name or number. Others are ignored. **Required.**
        loads: Gauges = Gauges::default(); r#"{ "app.busy" = "utilization", "app.queue" = 100 }"#,
    }
}

/// A part of a line of StatsD that may not end it.
const NAME: Texts = (
    "1 to 200 characters without `:`, `|`, `,` and `#`",
    |text| is_word(text) && !text.contains(':'),
);

const TAG: Texts = ("1 to 200 characters without `|`, `,` and `#`", is_word);

fn is_word(text: &str) -> bool {
    let is_end = |c: char| c.is_control() || matches!(c, '|' | ',' | '#');
    (1..=200).contains(&text.len()) && !text.contains(is_end)
}

blank!(Statsd);

impl AsTable for Statsd {
    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(STATSD, self, report);
        if self.listen.is_empty() {
            table.require("listen", report);
        }
        if self.loads.0.is_empty() {
            table.require("loads", report);
        }
    }
}

/// Which gauge is which load. No load is there twice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gauges(Vec<(String, LoadId)>);

impl Gauges {
    /// The load that the gauge called `name` is.
    pub fn load(&self, name: &str) -> Option<LoadId> {
        let found = self.0.iter().find(|(known, _)| known == name)?;
        Some(found.1)
    }
}

impl Field for Gauges {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::Table(table) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        self.0.clear();
        for entry in entries(&item.path, table) {
            let (allowed, is_name) = NAME;
            if !is_name(entry.name) {
                let message = "not a name of a gauge";
                report.problem(
                    &entry.key_span,
                    &entry.item.path,
                    message,
                    Some(allowed.into()),
                );
                continue;
            }
            let Some(load) = read_one(&entry.item, &Limits::Any, report) else {
                continue;
            };
            let others = self.0.iter().map(|(_, load)| *load);
            if check_load(load, others, &entry, report) {
                self.0.push((entry.name.into(), load));
            }
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        None
    }

    fn allowed(&self, _: &Limits) -> String {
        "a table of gauges, each with the name or the number of a load".into()
    }
}

/// What the reference says of the table.
pub(crate) fn tables() -> TableDoc {
    let doc = "Gauges of StatsD that are loads of a group's locations; off unless the table is \
               there. See [load-reports.md](load-reports.md#statsd).";
    let keys = [docs(STATSD, Statsd::default())];
    TableDoc::new("[group.NAME.statsd]", doc, keys)
}

#[cfg(test)]
mod tests {
    use evenkeel_core::load::LoadId;

    use crate::parse;

    const WEB: &str = "[rule.web]\nlisten = \"127.0.0.1:1\"\nmembers = [\"10.0.0.1:80\"]\n";

    #[test]
    fn gauges_are_loads() {
        let text = format!(
            "{WEB}[rule.web.statsd]\nlisten = \"127.0.0.1:8125\"\nlocation_tag = \"host\"\n\
             tag = \"env:prod\"\nloads = {{ \"app.busy\" = \"utilization\", queue = 100 }}\n"
        );
        let config = parse("f", &text).unwrap();
        let statsd = config.groups[0].sources.statsd.clone().unwrap();
        assert_eq!(statsd.loads.load("app.busy"), Some(LoadId::UTILIZATION));
        assert_eq!(
            statsd
                .loads
                .load("queue")
                .map(|load| load.to_string())
                .as_deref(),
            Some("100")
        );
        assert_eq!(statsd.loads.load("other"), None);
        assert_eq!(statsd.location_tag.as_deref(), Some("host"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (keys, message) in [
            ("", "`listen` is missing"),
            ("listen = \"127.0.0.1:1\"", "`loads` is missing"),
            ("loads = { \"a:b\" = \"cpu\" }", "not a name of a gauge"),
            ("loads = { a = \"cpu\", b = 0 }", "is there already"),
            ("location_tag = \"a:b\"", "without `:`"),
            ("listne = 1", "did you mean"),
        ] {
            let text = format!("{WEB}[rule.web.statsd]\n{keys}\n");
            let error = parse("f", &text).unwrap_err().to_string();
            assert!(error.contains(message), "{keys}: {error}");
        }
    }
}
