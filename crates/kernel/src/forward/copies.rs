//! Copies of connections in the table of the program.

use std::net::SocketAddr;

use super::Forwarder;
use super::layout::{ADDRESS, CONNECTION, Connection};
use super::table::read_table;
use super::table_copy::{CopyEnd, CopyResult, Entry, TableCopy};
use crate::bpf::{self, BpfError, find_map};

impl Forwarder {
    /// Calls `visit` with each connection of the table and its entry. Some that begin or end meanwhile may be missing.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn visit_entries(
        &self,
        mut visit: impl FnMut(Connection, Entry<'_>),
    ) -> Result<(), BpfError> {
        let map = find_map(&self.object, "evk_connections")?;
        read_table::<ADDRESS, CONNECTION>(&map, |key, value| {
            visit(Connection::read(key, value), Entry { key, value });
        })
    }

    /// Writes a copy of another balancer's connection into the table.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn write_copy(&self, copy: &TableCopy) -> Result<CopyResult, BpfError> {
        let mut context = copy.write();
        CopyResult::read(bpf::run(&self.object, "evk_copy", Some(&mut context))?)
    }

    /// Removes the copy of a connection that has ended at the other balancer, or ends the connection that was this
    /// balancer's.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn end_copy(
        &self,
        client: SocketAddr,
        listener: SocketAddr,
        member: SocketAddr,
    ) -> Result<CopyEnd, BpfError> {
        let mut context = TableCopy {
            client,
            listener,
            member,
            ..TableCopy::NOTHING
        }
        .write();
        match bpf::run(&self.object, "evk_end_copy", Some(&mut context))? {
            1 => Ok(CopyEnd::Removed),
            2 => Ok(CopyEnd::Ended),
            3 => Ok(CopyEnd::Fresh),
            _ => Ok(CopyEnd::Nothing),
        }
    }
}
