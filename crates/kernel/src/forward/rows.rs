//! Rows of candidates in the maps of the program.

use super::row_table::RowTable;
use super::{Family, Forwarder, GROUPS};
use crate::bpf::{self, BpfError};

impl Forwarder {
    /// Writes the rows of a group for a family of addresses.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn set_rows(&self, group: u32, family: Family, table: &RowTable) -> Result<(), BpfError> {
        let key = find_key(group, family).to_ne_bytes();
        bpf::update_map(&self.object, "evk_rows", &key, &table.write())
    }
}

/// Returns the key of a group's table.
fn find_key(group: u32, family: Family) -> u32 {
    match family {
        Family::V4 => group,
        Family::V6 => group + GROUPS,
    }
}
