//! Open files: how many this process may have, and who gets how many of them.
//!
//! Every connection is a file, so clients could take all of them. A part is kept back for
//! what must work when they do: health checks, load reports, the admin API, and reloads.

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::memory;

/// Counts as no limit.
const UNLIMITED: usize = 1 << 20;

/// Raises the soft limit on open files to the hard one: every client takes a file or two. Returns how many
/// files the process may open now. If the limit cannot be raised, the log says so.
pub fn raise_limit() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "cannot raise the limit on open files");
        }
    }
    file_limit()
}

/// Returns the number of files that this process may open.
pub fn file_limit() -> usize {
    // No limit is `None`.
    let files = getrlimit(Resource::Nofile).current;
    files.map_or(UNLIMITED, |files| {
        usize::try_from(files).unwrap_or(UNLIMITED)
    })
}

/// Shares of the files of a process. All numbers are files, or connections, which are one file each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Number of all files that the process may open.
    pub all: usize,
    /// Connections of the admin API at a time.
    pub admin: usize,
    /// Health checks at a time.
    pub checks: usize,
    /// Load reports that are fetched at a time, for each way of fetching them.
    pub reports: usize,
    /// Connections of clients that negotiate.
    pub negotiator: usize,
    /// Connections of CORBA clients, and those to load monitors and members.
    pub corba: usize,
    /// Connections of xDS clients.
    pub xds: usize,
    /// Files of the rules: their connections, and pipes while clients leave some for these.
    pub rules: usize,
    /// Connections of the rules: those to clients and those to members together.
    pub connections: usize,
    /// Files of pipes that move bulk data, at most. Without them data is copied.
    pub pipes: usize,
}

/// Other users of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// Threads that carry the traffic of rules.
    pub workers: usize,
    /// Addresses that rules listen on; each worker has a file for each.
    pub listeners: usize,
    /// True if there is a negotiator.
    pub negotiator: bool,
    /// True if there is a CORBA service.
    pub corba: bool,
    /// True if there is a server of xDS.
    pub xds: bool,
}

/// Files that a process has without any connection: standard streams, logs, event loops,
/// watches, timers, sockets of agents, and a few to read files and look up names with.
const OWN: usize = 40;

/// Files that a worker has for itself.
const WORKER: usize = 4;

impl Shares {
    /// Shares `all` files out. Rules get what is left, and at least a few: with less than
    /// about a hundred files there is no reserve.
    pub fn new(all: usize, users: Users) -> Self {
        let share = |part: usize, most: usize| (all / part).clamp(4, most);
        let admin = share(16, 256);
        let checks = share(16, 256);
        let reports = share(64, 128);
        let negotiator = if users.negotiator {
            share(8, 1 << 16)
        } else {
            0
        };
        let corba = if users.corba { share(4, 1 << 16) } else { 0 };
        let xds = if users.xds { share(16, 1 << 14) } else { 0 };
        // Each listener may have accepted a client that waits for its turn; a reload binds
        // new ones beside the old ones.
        let listeners = users.workers.saturating_mul(users.listeners);
        let own = OWN + users.workers.saturating_mul(WORKER) + listeners.saturating_mul(3);
        // Of the ways to fetch reports not all are used at their limits at once.
        let kept = own + admin + checks + reports * 2 + negotiator + corba + xds;
        let left = all.saturating_sub(kept).max(8);
        Shares {
            all,
            admin,
            checks,
            reports,
            negotiator,
            corba,
            xds,
            rules: left,
            connections: left,
            pipes: left / 8,
        }
    }

    /// Returns the shares for the process as it is, with one worker and whatever there may be beside it: each
    /// part takes its own share from this.
    pub fn of_process() -> Self {
        Self::new(
            file_limit(),
            Users {
                workers: 1,
                negotiator: true,
                corba: true,
                xds: true,
                ..Users::default()
            },
        )
    }

    /// Returns the shares with no more connections and pipes than there is memory for.
    pub fn within_memory(self, memory: &memory::Shares) -> Self {
        Shares {
            connections: self.connections.min(memory.clients.saturating_mul(2)),
            // Two files each.
            pipes: self.pipes.min(memory.pipes.saturating_mul(2)),
            ..self
        }
    }

    /// Clients of rules at a time: each may need a connection to a member.
    pub fn client_limit(&self) -> usize {
        self.connections / 2
    }

    /// Returns the number of files that are kept back from clients.
    pub fn reserve(&self) -> usize {
        self.all.saturating_sub(self.rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(workers: usize, listeners: usize) -> Users {
        Users {
            workers,
            listeners,
            ..Users::default()
        }
    }

    #[test]
    fn s5_clients_leave_a_reserve() {
        for all in [128, 256, 1024, 4096, 20_000, UNLIMITED] {
            for users in [
                users(1, 1),
                users(2, 4),
                Users {
                    negotiator: true,
                    corba: true,
                    ..users(1, 1)
                },
            ] {
                let shares = Shares::new(all, users);
                assert_eq!(shares.reserve() + shares.rules, all, "{shares:?}");
                assert!(
                    shares.reserve() >= 40 + shares.admin + shares.checks,
                    "{shares:?}"
                );
                assert!(shares.client_limit() >= 4, "{shares:?}");
            }
        }
    }

    #[test]
    fn every_part_has_a_share_of_the_process() {
        let shares = Shares::of_process();
        assert!(shares.negotiator >= 4 && shares.corba >= 4, "{shares:?}");
        assert!(shares.admin >= 4 && shares.checks >= 4 && shares.reports >= 4);
    }

    #[test]
    fn s5_many_files_are_mostly_for_clients() {
        let shares = Shares::new(20_000, users(2, 2));
        // As many as other balancers allow, which keep back less for themselves.
        assert!(shares.client_limit() >= 9_500, "{shares:?}");
        let shares = Shares::new(256, users(1, 1));
        assert!(shares.client_limit() > 50, "{shares:?}");
    }

    #[test]
    fn s5_even_a_handful_of_files_serves_somebody() {
        let shares = Shares::new(16, users(64, 100));
        assert!(shares.client_limit() > 0, "{shares:?}");
    }
}
