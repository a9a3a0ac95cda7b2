//! Listen addresses of a file: no two listeners may share one.

use std::collections::HashMap;

use evenkeel_core::address::Address;

use crate::schema::report::Report;
use crate::schema::table::Table;

/// The addresses of a file on which somebody listens.
#[derive(Default)]
pub(crate) struct Listeners(HashMap<Address, String>);

impl Listeners {
    /// Notes that `who` listens on `addresses`, as `key` of `table` says; nobody else may.
    pub(crate) fn add_addresses(
        &mut self,
        addresses: &[impl Clone + Into<Address>],
        who: &str,
        (table, key): (&Table<'_>, &str),
        report: &mut Report<'_>,
    ) {
        // Port 0 is a different port each time.
        let addresses = addresses.iter().map(|address| address.clone().into());
        let is_chosen = |address: &Address| address.socket().is_some_and(|at| at.port() == 0);
        for address in addresses.filter(|address| !is_chosen(address)) {
            if let Some(other) = self.0.get(&address) {
                let message = format!("{other} listens on {address} already");
                table.report_problem(key, message, report);
            } else {
                self.0.insert(address, who.into());
            }
        }
    }
}
