//! Removal of connections that are over.

use super::Forwarder;
use super::layout::{ADDRESS, Connection, write_address};
use crate::bpf::{self, BpfError, FirstError};

/// Connections that a run of the program removes: `REMOVALS`.
pub(super) const REMOVALS: usize = 32;

/// Bytes of `struct evk_removal`.
const REMOVAL: usize = ADDRESS + 8;
/// Bytes of `struct evk_removals` behind the removals.
const NOTE: usize = 8;

impl Forwarder {
    /// Removes those of the connections of which no packet has come since they were read. Calls `note` with each of the
    /// others.
    ///
    /// # Errors
    ///
    /// The kernel refuses to remove some: `note` was called with these, too.
    pub fn remove_connections(
        &self,
        connections: &[Connection],
        mut note: impl FnMut(&Connection),
    ) -> Result<(), BpfError> {
        let mut failure = FirstError::default();
        for part in connections.chunks(REMOVALS) {
            let removed = failure.keep(self.remove_part(part)).unwrap_or(0);
            let left = (0..).zip(part).filter(|(bit, _)| removed >> bit & 1 == 0);
            left.for_each(|(_, connection)| note(connection));
        }
        failure.finish()
    }

    /// Removes at most [`REMOVALS`] connections, likewise. Returns a bit for each that was removed.
    fn remove_part(&self, part: &[Connection]) -> Result<i32, BpfError> {
        let removals = write_removals(part);
        bpf::update_map(&self.object, "evk_removals", &0u32.to_ne_bytes(), &removals)?;
        let mut order = [part.len() as u32, 0].map(u32::to_ne_bytes).concat();
        bpf::run(&self.object, "evk_remove", Some(&mut order))
    }

    /// Removes a connection. Returns false if a packet has come since the connection was read.
    #[cfg(test)]
    pub(super) fn remove_connection(&self, connection: &Connection) -> Result<bool, BpfError> {
        let mut is_removed = true;
        self.remove_connections(&[*connection], |_| is_removed = false)?;
        Ok(is_removed)
    }
}

/// Returns `struct evk_removals` with these connections.
fn write_removals(connections: &[Connection]) -> Vec<u8> {
    let mut out = Vec::with_capacity(REMOVALS * REMOVAL + NOTE);
    for connection in connections {
        out.extend(write_address(connection.pair.client));
        out.extend(connection.age.seen.to_ne_bytes());
        out.extend([0; 4]);
    }
    // The program notes there what it has removed.
    out.resize(REMOVALS * REMOVAL + NOTE, 0);
    out
}
