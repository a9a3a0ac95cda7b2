//! Who listens where: no two at one address.

use std::collections::HashMap;
use std::net::SocketAddr;

use crate::schema::report::Report;
use crate::schema::table::Table;

/// The addresses of a file on which somebody listens.
#[derive(Default)]
pub(crate) struct Listeners(HashMap<SocketAddr, String>);

impl Listeners {
    /// Notes that `who` listens on `addresses`, as `key` of `table` says; nobody else may.
    pub(crate) fn add(
        &mut self,
        addresses: &[SocketAddr],
        who: &str,
        (table, key): (&Table<'_>, &str),
        report: &mut Report<'_>,
    ) {
        // Port 0 is a different port each time.
        for &address in addresses.iter().filter(|address| address.port() != 0) {
            if let Some(other) = self.0.get(&address) {
                let message = format!("{other} listens on {address} already");
                table.problem(key, message, report);
            } else {
                self.0.insert(address, who.into());
            }
        }
    }
}
