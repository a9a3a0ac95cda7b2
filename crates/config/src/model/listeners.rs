//! Listen addresses of a file: no two listeners may share one.

use std::collections::HashMap;

use evenkeel_core::address::Address;

use crate::schema::report::Report;
use crate::schema::table::Table;

/// The addresses of a file on which somebody listens.
#[derive(Default)]
pub(crate) struct Listeners {
    /// Listeners for connections, by address.
    connections: HashMap<Address, String>,
    /// Rules that receive datagrams, by address: a port of TCP is another one than that of UDP.
    datagrams: HashMap<Address, String>,
}

impl Listeners {
    /// Notes that `who` listens on `addresses`, as `key` of `table` says; nobody else may.
    pub(crate) fn add_addresses(
        &mut self,
        addresses: &[impl Clone + Into<Address>],
        who: &str,
        (table, key): (&Table<'_>, &str),
        report: &mut Report<'_>,
    ) {
        add_all(&mut self.connections, addresses, who, (table, key), report);
    }

    /// Notes that `who` receives datagrams at `addresses`, as [`Listeners::add_addresses`] does for
    /// connections.
    pub(crate) fn add_datagrams(
        &mut self,
        addresses: &[impl Clone + Into<Address>],
        who: &str,
        (table, key): (&Table<'_>, &str),
        report: &mut Report<'_>,
    ) {
        add_all(&mut self.datagrams, addresses, who, (table, key), report);
    }
}

/// Adds `addresses` of `who` to the addresses that are known, and reports those of others.
fn add_all(
    known: &mut HashMap<Address, String>,
    addresses: &[impl Clone + Into<Address>],
    who: &str,
    (table, key): (&Table<'_>, &str),
    report: &mut Report<'_>,
) {
    // Port 0 is a different port each time.
    let addresses = addresses.iter().map(|address| address.clone().into());
    let is_chosen = |address: &Address| address.socket().is_some_and(|at| at.port() == 0);
    for address in addresses.filter(|address| !is_chosen(address)) {
        if let Some(other) = known.get(&address) {
            let message = format!("{other} listens on {address} already");
            table.report_problem(key, message, report);
        } else {
            known.insert(address, who.into());
        }
    }
}
