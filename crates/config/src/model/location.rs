//! `[location.NAME]`: settings of a place where members run.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use super::group::GroupConfig;
use super::monitor::Monitor;
use crate::schema::document::{Span, join_key};
use crate::schema::key::{describe_keys, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{LOCATION_NAMES, NAMES, Table};

section! {
    /// A location that the file says something of.
    #[derive(Clone, Debug, PartialEq)]
    pub struct LocationConfig {
        /// Name of the location.
        name: String = String::new(),
        /// True if the location's own table sets how its load is read.
        says_monitor: bool = false,
    }
    keys LOCATION {
        /// Reading of the load of this location from its kernel: a table with the keys of
        /// [`[group.NAME.monitor]`](#groupnamemonitor), or `false` for none. The key replaces the setting of
        /// the groups with members at the location. Set the key if one of your machines needs another way.
        monitor: Option<Monitor> = None; r#"{ type = "ulm", path = "/dev/shm/evenkeel-load" }"#,
        /// [Zone](zones.md) of members at the location without another zone: members added by agents, CORBA
        /// objects, and others without a `zone` of their own.
        zone: Option<String> [Text(NAMES)] = None; r#""north""#,
    }
}

/// A group whose table has been read, with where it stands.
pub(crate) struct Placed<'a> {
    pub span: &'a Span,
    pub group: &'a GroupConfig,
}

/// Reads the tables of locations. They start from what `[defaults]` says.
pub(crate) fn read(
    top: &mut Table<'_>,
    defaults: &GroupConfig,
    groups: &[Placed<'_>],
    agents_may_join: bool,
    report: &mut Report<'_>,
) -> Vec<LocationConfig> {
    let mut known = HashSet::new();
    for member in groups.iter().flat_map(|placed| &placed.group.members) {
        known.insert(member.location_name());
        if member.is_apart {
            // Its zone may be that of its host.
            known.insert((&*member.host).into());
        }
    }
    // The addresses of a name are locations, too, if it has several.
    let names = groups.iter().flat_map(|placed| &placed.group.members);
    let has_names = { names }.any(|member| member.is_looked_up() && member.location.is_none());
    let mut locations = Vec::new();
    for mut table in top.named_tables("location", LOCATION_NAMES, report) {
        let mut location = LocationConfig {
            name: table.name(),
            says_monitor: table.has_key("monitor"),
            monitor: defaults
                .monitor
                .clone()
                .filter(|_| table.has_key("monitor")),
            zone: None,
        };
        table.read(LOCATION, &mut location, report);
        let may_be = has_names && location.name.parse::<IpAddr>().is_ok();
        if !known.contains(&*location.name) && !may_be && !agents_may_join {
            let message = if location.name.starts_with('/') {
                "no member is at this location, which is a machine, and no path as in nginx"
            } else {
                "no member is at this location"
            };
            table.report_warning(message, report);
        }
        table.report_unread(report);
        locations.push(location);
    }
    locations
}

/// Reports groups that want the load of one location to be read in different ways, which
/// has no answer, and what of their settings makes little sense.
pub(crate) fn check_locations(
    groups: &[Placed<'_>],
    own: &[LocationConfig],
    report: &mut Report<'_>,
) {
    let own = own.iter().filter(|location| location.says_monitor);
    let own: HashSet<&str> = own.map(|location| &*location.name).collect();
    let mut first: HashMap<Cow<'_, str>, &GroupConfig> = HashMap::new();
    for Placed { span, group } in groups {
        let Some(monitor) = &group.monitor else {
            continue;
        };
        let path = join_key(&group.path(), "monitor");
        if monitor.interval > group.settings.load_max_age {
            let message = format!(
                "is asked every {:?}, but loads are unknown after `load_max_age`, {:?}: make \
                 one shorter or the other longer",
                monitor.interval, group.settings.load_max_age
            );
            report.add_warning(span, &path, message);
        }
        let mut told = HashSet::new();
        for member in &group.members {
            let location = member.location_name();
            if own.contains(&*location) {
                continue;
            }
            let other = *first.entry(location.clone()).or_insert(group);
            if other.monitor.as_ref() != Some(monitor) && told.insert(&other.name) {
                let message = format!(
                    "group {:?} has its load at location {location:?} read in another way: make \
                     both the same, or say how in [location.{}.monitor]",
                    other.name,
                    join_key("", &location)
                );
                report.add_problem(span, &path, message, None);
            }
        }
    }
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "Settings of one location: the machine where members run, by default named by the \
               host of the members; not a path as in nginx. Write a name with dots in quotes, as in \
               `[location.\"10.0.0.7\".monitor]`.";
    TableDoc::new(
        "[location.NAME]",
        doc,
        [describe_keys(LOCATION, LocationConfig::default())],
    )
}
