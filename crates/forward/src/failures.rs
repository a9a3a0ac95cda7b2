//! Errors of the kernel for single entries: they are counted and told, and everything else goes on.

use std::time::{Duration, Instant};

use evenkeel_kernel::bpf::BpfError;
use evenkeel_manager::status::EntryErrorStatus;
use tracing::warn;

/// Least time between two warnings.
const PAUSE: Duration = Duration::from_secs(10);

/// Kinds of entries by their names in metrics, in the order of [`EntryKind`].
const NAMES: [&str; 9] = [
    "connection",
    "session",
    "connection_id",
    "copy",
    "member",
    "group",
    "listener",
    "interface",
    "layout",
];

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    /// Removal of connections.
    Connection,
    /// Removal of a session of UDP, and entry of a client whose session the proxy has.
    Session,
    /// Removal of connection ids of QUIC, and ids of the proxy's sessions.
    ConnectionId,
    /// Copy of another balancer's connection or session, or the end of one.
    Copy,
    /// Terms, counts and addresses of a member.
    Member,
    /// Terms and rows of a group.
    Group,
    /// Listening addresses.
    Listener,
    /// List of the interfaces, and the program or native XDP at an interface.
    Interface,
    /// Program of another version.
    Layout,
}

/// Errors of the kernel for single entries.
#[derive(Debug, Default)]
pub(crate) struct EntryErrors {
    counts: [u64; NAMES.len()],
    last: Option<String>,
    /// Time of the last warning.
    warned: Option<Instant>,
}

impl EntryErrors {
    /// Takes the result of a call for an entry. Counts the error of an entry, and returns `None` for it.
    ///
    /// # Errors
    ///
    /// The error is not of an entry, but of everything: a right or a map is missing.
    pub(crate) fn take<T>(
        &mut self,
        kind: EntryKind,
        result: Result<T, BpfError>,
    ) -> Result<Option<T>, BpfError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_of_entry() => {
                self.count(kind, &error, Instant::now());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Counts an error. Returns true if the log has got a warning.
    fn count(&mut self, kind: EntryKind, error: &BpfError, now: Instant) -> bool {
        let name = NAMES.get(kind as usize).copied().unwrap_or_default();
        if let Some(count) = self.counts.get_mut(kind as usize) {
            *count += 1;
        }
        self.last = Some(format!("{name}: {error}"));
        let warns = self
            .warned
            .is_none_or(|warned| now.saturating_duration_since(warned) >= PAUSE);
        if warns {
            self.warned = Some(now);
            let all: u64 = self.counts.iter().sum();
            warn!(
                entry = name,
                "forwarding in the kernel continues after an error of one entry ({all} such errors so far): {error}"
            );
        }
        warns
    }

    /// Returns the errors for administrators.
    pub(crate) fn describe(&self) -> EntryErrorStatus {
        let named = NAMES.iter().zip(self.counts);
        EntryErrorStatus {
            counts: named
                .map(|(name, count)| ((*name).to_owned(), count))
                .collect(),
            last: self.last.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
