//! The table of all groups.

use evenkeel_manager::status::{GroupStatus, Status};
use ratatui::style::{Color, Style};

use crate::columns::{Cell, Column, Listing, Row, WIDE};
use crate::engine_columns::{COLUMNS as ENGINE, ENGINE_COLUMNS, engine_cells};
use crate::view::{GroupView, count, duration_of_millis, failure_share, latency_cell};
use evenkeel_manager::text::{format_number, format_percent};

const COLUMNS: [Column; 15 + ENGINE_COLUMNS] = [
    Column::of_words("GROUP", 0).cut_to(16, 32),
    Column::of_numbers("UP", 1),
    Column::of_words("STATE", 1),
    Column::of_numbers("REQ/S", 1),
    Column::of_numbers("P50", 4),
    Column::of_numbers("P99", 2),
    ENGINE[0],
    ENGINE[1],
    ENGINE[2],
    ENGINE[3],
    ENGINE[4],
    ENGINE[5],
    ENGINE[6],
    ENGINE[7],
    ENGINE[8],
    Column::of_numbers("FAILED", 2),
    Column::of_numbers("ALERTS", 3),
    Column::of_numbers("IN FLIGHT", 6),
    Column::of_words("STRATEGY", 5).cut_to(8, 32),
    Column::of_words("OWNER", 7),
    Column::of_words("RULES", WIDE).cut_to(8, 24),
    Column::of_words("LISTEN", WIDE).cut_to(16, 40),
    Column::of_words("BOUND", WIDE),
    Column::of_words("LOAD", WIDE),
];

/// Returns all groups, a row each. `views` are those of the status.
pub(super) fn group_listing(status: &Status, views: &[GroupView]) -> Listing {
    let groups = status.groups.iter().zip(views);
    Listing {
        columns: &COLUMNS,
        rows: groups
            .map(|(group, view)| group_row(status, group, view))
            .collect(),
    }
}

/// Returns all groups in a line.
pub(super) fn totals_line(status: &Status, views: &[GroupView]) -> String {
    let rate: f64 = views.iter().map(|view| view.rate).sum();
    let usable: usize = views.iter().map(|view| view.usable).sum();
    let members: usize = views.iter().map(|view| view.members.len()).sum();
    let alerts: usize = status.groups.iter().map(count_alerts).sum();
    let groups = views.len();
    let plural = if groups == 1 { "" } else { "s" };
    format!(
        "{groups} group{plural}  {} req/s  {usable} of {members} members up  {alerts} under alert",
        format_number(rate),
    )
}

/// Counts the members whose location is under a load alert.
fn count_alerts(group: &GroupStatus) -> usize {
    group.members.iter().filter(|member| member.alert).count()
}

fn group_row(status: &Status, group: &GroupStatus, view: &GroupView) -> Row {
    let (recent, members) = (&group.recent, view.members.len());
    let (usable, alerts) = (view.usable, count_alerts(group));
    let in_flight = view.members.iter().map(|member| member.in_flight).sum();
    let failed = failure_share(recent);
    let rules = || {
        status
            .rules
            .iter()
            .filter(|rule| rule.group_names().contains(&&*group.name))
    };
    let clusters = status.clusters.iter();
    let clusters = clusters.filter(|cluster| cluster.group == group.name);
    let names = rules().map(|rule| &rule.name);
    let names = names.chain(clusters.map(|cluster| &cluster.name));
    let names = names.filter(|name| **name != group.name).cloned();
    let listen = rules().flat_map(|rule| {
        let off = match (rule.enabled, rule.maintenance) {
            (false, _) => " (disabled)",
            (true, true) => " (maintenance)",
            (true, false) => "",
        };
        // The rate and the connections of the group have those of the kernel in them.
        let by = match rule.forward.as_deref() {
            Some("kernel") => ", kernel",
            Some(_) => ", proxy",
            None => "",
        };
        let addresses = rule.listen.iter();
        addresses.map(move |address| format!("{}{by} {address}{off}", rule.protocol))
    });
    let states = [
        group.panic.then(|| "PANIC".to_owned()),
        (usable == 0 && members > 0).then(|| "no member is up".to_owned()),
        (!group.refused.is_empty()).then(|| format!("{} refused", group.refused.len())),
    ];
    let traffic: [Cell; 6] = [
        group.name.clone().into(),
        Cell::of_number(
            usable as f64 / members.max(1) as f64,
            format!("{usable}/{members}"),
        ),
        states
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(", ")
            .into(),
        Cell::of_number(view.rate, format_number(view.rate)),
        latency_cell(duration_of_millis(recent.p50_ms)),
        latency_cell(duration_of_millis(recent.p99_ms)),
    ];
    let condition: [Cell; 9] = [
        Cell::of_number(failed, format_percent(failed)),
        count(alerts as u64),
        count(in_flight),
        view.strategy.clone().into(),
        view.owner.clone().into(),
        names.collect::<Vec<_>>().join(" ").into(),
        listen.collect::<Vec<_>>().join(", ").into(),
        group.granularity.to_string().into(),
        group.load.clone().into(),
    ];
    let engines = engine_cells(group.engines.as_ref());
    let cells: Vec<Cell> = traffic
        .into_iter()
        .chain(engines)
        .chain(condition)
        .collect();
    debug_assert_eq!(cells.len(), COLUMNS.len());
    let style = Style::new();
    Row {
        name: group.name.clone(),
        cells,
        style: if group.panic || usable == 0 && members > 0 {
            style.fg(Color::Red)
        } else if alerts > 0 {
            style.fg(Color::Magenta)
        } else if usable < members {
            style.fg(Color::Yellow)
        } else {
            style
        },
    }
}
