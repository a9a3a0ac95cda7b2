//! `[group.NAME.cgroup]`: containers on the balancer's own machine whose load the kernel
//! knows.

use std::collections::BTreeMap;
use std::time::Duration;

use toml::de::DeValue;

use crate::schema::document::{Item, entries};
use crate::schema::field::{Field, Limits, Texts, WRONG_TYPE, blank};
use crate::schema::key::{HOUR, docs, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// The cgroups in which members run, on this machine.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Cgroup {}
    keys CGROUP {
        /// The cgroup of a location, as `/proc/PID/cgroup` calls it, or its folder below
        /// `/sys/fs/cgroup`; `{location}` stands for the name of the location. Members say with
        /// `location` where they are.
        path: Option<String> [Text(PATH)] = None; r#""/system.slice/docker-{location}.scope""#,
        /// The cgroups of single locations, in place of `path`.
        paths: CgroupPaths = CgroupPaths::default(); r#"{ app-1 = "/system.slice/app@1.service" }"#,
        /// Time between two readings. Use of the CPU and pressure are means over this time.
        interval: Duration [Time(millis(10), HOUR)] = secs(1); r#""250ms""#,
    }
}

/// What a cgroup is called.
const PATH: Texts = ("a path that begins with \"/\"", |text| {
    text.starts_with('/') && text.len() <= 4096 && !text.contains(char::is_control)
});

/// Cgroups by location.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CgroupPaths(BTreeMap<String, String>);

blank!(Cgroup);

impl Cgroup {
    /// The cgroup of a location, if the file says which it is. A location whose name could
    /// lead elsewhere has none.
    pub fn of(&self, location: &str) -> Option<String> {
        if let Some(path) = self.paths.0.get(location) {
            return Some(path.clone());
        }
        let path = self.path.as_ref()?;
        let leads_elsewhere = location.contains('/') || location == "." || location == "..";
        let is_template = path.contains(LOCATION);
        (!is_template || !leads_elsewhere).then(|| path.replace(LOCATION, location))
    }
}

const LOCATION: &str = "{location}";

impl AsTable for Cgroup {
    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(CGROUP, self, report);
        let is_said = table.given("path") || table.given("paths");
        if self.path.is_none() && self.paths.0.is_empty() && !is_said {
            table.lacks("names neither `path` nor `paths`", None, report);
        }
    }
}

impl Field for CgroupPaths {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::Table(table) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        self.0.clear();
        for entry in entries(&item.path, table) {
            let mut path = String::new();
            path.read(&entry.item, &Limits::Text(PATH), report);
            self.0.insert(entry.name.into(), path);
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        None
    }

    fn allowed(&self, _: &Limits) -> String {
        "a table of locations, each with a path".into()
    }
}

/// What the reference says of the table.
pub(crate) fn tables() -> TableDoc {
    let doc = "Loads of containers and services on the balancer's own machine, read from their \
               cgroups; off unless the table is there. See \
               [load-reports.md](load-reports.md#cgroups-of-this-machine).";
    let keys = [docs(CGROUP, Cgroup::default())];
    TableDoc::new("[group.NAME.cgroup]", doc, keys)
}

#[cfg(test)]
mod tests {
    use crate::parse;

    const WEB: &str = "[rule.web]\nlisten = \"127.0.0.1:1\"\nmembers = [\"10.0.0.1:80\"]\n";

    #[test]
    fn locations_have_cgroups() {
        let text = format!(
            "{WEB}[rule.web.cgroup]\npath = \"/a/{{location}}.service\"\n\
             paths = {{ \"b/c\" = \"/sys/fs/cgroup/x\" }}\n"
        );
        let config = parse("f", &text).unwrap();
        let cgroup = config.groups[0].sources.cgroup.clone().unwrap();
        assert_eq!(cgroup.of("web").as_deref(), Some("/a/web.service"));
        assert_eq!(cgroup.of("b/c").as_deref(), Some("/sys/fs/cgroup/x"));
        assert_eq!(cgroup.of("../b"), None);
        assert_eq!(cgroup.of(".."), None);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (keys, message) in [
            ("", "names neither `path` nor `paths`"),
            ("path = \"a\"", "a path that begins with"),
            ("paths = { a = 3 }", "a path that begins with"),
            ("path = \"/a\"\ninterval = \"1ms\"", "a time from"),
            ("path = \"/a\"\nintervall = \"1s\"", "did you mean"),
        ] {
            let text = format!("{WEB}[rule.web.cgroup]\n{keys}\n");
            let error = parse("f", &text).unwrap_err().to_string();
            assert!(error.contains(message), "{keys}: {error}");
        }
    }
}
