//! `[group.NAME.zones]`: order of the zones, and limits above which requests go to other zones.

use std::collections::HashSet;

use evenkeel_core::zone::{MOST_IN_ORDER, ZoneSettings};

use super::location::{LocationConfig, Placed};
use super::node::Node;
use crate::schema::document::join_key;
use crate::schema::field::blank;
use crate::schema::key::{describe_keys, keys};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, NAMES, Table};

keys! {
    ZONES: ZoneSettings {
        /// Zones which come after the balancer's own zone, in this order, at most six. Zones which you do not
        /// name come last, together with members without a zone.
        order [Text(NAMES)]; r#"["south", "east"]"#,
        /// Mean load of a zone's members above which a share of the zone's requests goes to the next zone. The
        /// share is as large as needed for the load to return to the limit, or to equal the load of the next
        /// zone, if that load is higher. Set the limit in the unit of `load`. By default 0.8 if `load` is a
        /// utilisation or counts tasks per CPU, and for members with an unknown load, requests in flight as a share
        /// of `max_connections` count instead; with other loads only this share counts.
        spill_above [Number(0.001, 1e12, "")]; "0.7",
        /// Share of the members of a zone, by weight, which must be able to serve for the zone to keep all its
        /// requests. With half as many the zone keeps half of the requests, and so on. Set 0 to keep all
        /// requests while one member can serve.
        min_usable [Number(0.0, 1.0, "")]; "0.5",
    }
}

blank!(ZoneSettings);

impl AsTable for ZoneSettings {
    const ALLOWED: &'static str = "a table, or true";
    const TRUE: bool = true;

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(ZONES, self, report);
        let mut seen = HashSet::new();
        if let Some(twice) = self.order.iter().find(|zone| !seen.insert(*zone)) {
            let message = format!("{twice:?} is set twice");
            table.report_problem("order", message, report);
        }
        if self.order.len() > MOST_IN_ORDER {
            let message = format!("has more than {MOST_IN_ORDER} zones");
            table.report_problem("order", message, report);
        }
    }
}

/// Warns of zones without effect. `others` is whether there are members that do not stand in the file.
pub(crate) fn check_zones(
    groups: &[Placed<'_>],
    node: &Node,
    locations: &[LocationConfig],
    others: bool,
    top: &Table<'_>,
    report: &mut Report<'_>,
) {
    let of_groups = groups.iter().flat_map(|placed| &placed.group.members);
    let of_groups = of_groups.filter_map(|member| member.zone.as_deref());
    let of_locations = locations
        .iter()
        .filter_map(|location| location.zone.as_deref());
    let zones: HashSet<&str> = of_groups.chain(of_locations).collect();
    if let Some(own) = node.zone.as_deref()
        && !others
        && !zones.is_empty()
        && !zones.contains(own)
    {
        let message = format!("no member is in the zone {own:?}, so that none comes first");
        report.add_warning(&top.span_of("node"), "node.zone", message);
    }
    for Placed { span, group } in groups {
        let Some(settings) = &group.settings.zones else {
            continue;
        };
        let is_said = *settings != ZoneSettings::default();
        if is_said && node.zone.is_none() && settings.order.is_empty() {
            let message = "no zone comes first: say in [node] in which `zone` the balancer is, or in \
                           `order` which comes first";
            report.add_warning(span, &join_key(&group.path(), "zones"), message);
        }
    }
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "Order of the [zones](zones.md) of members, and the limits above which requests go to \
               other zones. If you leave the table out, its defaults hold: if you set the \
               balancer's zone in `[node]`, and the group has members in the same zone and in \
               others, members in the same zone come first.";
    let keys = describe_keys(ZONES, ZoneSettings::default());
    TableDoc::new("[group.NAME.zones]", doc, [keys])
}

#[cfg(test)]
mod tests {
    use crate::parse;

    const RULE: &str = "[rule.web]\nlisten = \"127.0.0.1:1\"\n";

    fn warnings(text: &str) -> Vec<String> {
        let config = parse("x", text).unwrap_or_else(|errors| panic!("{errors}"));
        let warnings = config.warnings.iter();
        warnings.map(|warning| warning.message.clone()).collect()
    }

    #[test]
    fn zones_are_read_and_may_be_switched_off() {
        let members = "members = [\"10.0.0.1:80\", { address = \"10.0.0.2:80\", zone = \"b\" }]\n";
        let text = format!(
            "[node]\nzone = \"a\"\n{RULE}{members}[rule.web.zones]\norder = [\"c\", \"b\"]\nspill_above = 0.5\n\
             [location.\"10.0.0.1\"]\nzone = \"a\"\n"
        );
        assert!(warnings(&text).is_empty(), "{:?}", warnings(&text));
        let config = parse("x", &text).unwrap();
        let zones = config.groups[0].settings.zones.as_ref().unwrap();
        assert_eq!(zones.order, ["c", "b"]);
        assert_eq!((zones.spill_above, zones.min_usable), (Some(0.5), 0.7));
        let zone = |index: usize| config.groups[0].members[index].zone.as_deref();
        assert_eq!((zone(0), zone(1)), (None, Some("b")));
        assert_eq!(config.locations[0].zone.as_deref(), Some("a"));
        for (text, is_on) in [("false", false), ("true", true), ("{}", true)] {
            let config = parse("x", &format!("{RULE}{members}zones = {text}\n")).unwrap();
            assert_eq!(config.groups[0].settings.zones.is_some(), is_on);
        }
    }

    #[test]
    fn what_has_no_effect_is_told() {
        let members = |zone: &str| {
            format!("{RULE}members = [{{ address = \"10.0.0.1:80\", zone = {zone:?} }}]\n")
        };
        let typo = format!("[node]\nzone = \"north\"\n{}", members("nord"));
        assert!(warnings(&typo)[0].contains("no member is in the zone \"north\""));
        let lists = format!("{typo}members_files = [\"x/*.json\"]\n");
        assert!(warnings(&lists).is_empty(), "{:?}", warnings(&lists));
        let nobody = format!("{}zones = {{ spill_above = 0.9 }}\n", members("a"));
        assert!(warnings(&nobody)[0].contains("no zone comes first"));
        assert!(warnings(&members("a")).is_empty());
    }

    #[test]
    fn orders_name_each_zone_once_and_not_many() {
        let error = |order: &str| {
            let text = format!("{RULE}members = [\"a:1\"]\nzones = {{ order = {order} }}\n");
            parse("x", &text).unwrap_err().to_string()
        };
        assert!(error("[\"a\", \"b\", \"a\"]").contains("\"a\" is set twice"));
        let many = "[\"a\", \"b\", \"c\", \"d\", \"e\", \"f\", \"g\"]";
        assert!(error(many).contains("more than 6 zones"));
        assert!(error("[\"a b\"]").contains("not valid here"));
        assert!(error("1").contains("wrong type"));
    }
}
