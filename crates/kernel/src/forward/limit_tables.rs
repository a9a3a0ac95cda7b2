//! Writes limits of rules into the tables of the program, and removes what nobody uses.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::Forwarder;
use super::layout::Reader;
use super::limits::{CountedRule, ENTRY, KEY, LimitCounts, ListenerLimits};
use super::table::read_table;
use crate::bpf::{self, BpfError, FirstError, failed_to, find_map, find_program};

impl Forwarder {
    /// Makes these the limits of listening addresses. What clients have used stays where the same is counted. Connections
    /// that have begun before an address had the limits do not count.
    ///
    /// # Errors
    ///
    /// The kernel refuses an address, whose listener must not say that it is limited. All others are written.
    pub fn set_limits(&self, wanted: &[ListenerLimits], now_ns: u64) -> Result<(), BpfError> {
        let map = find_map(&self.object, "evk_limits")?;
        let mut known = HashMap::new();
        let mut here = HashMap::new();
        for key in map.keys().collect::<Vec<_>>() {
            let value = map.lookup(&key, MapFlags::ANY).ok().flatten();
            let value = value.unwrap_or_default();
            let mut bytes = Reader(&value);
            let counted = [(); 2].map(|()| CountedRule::read(&mut bytes));
            known.extend(counted.map(|one| (one.identity, one.key)));
            here.insert(key, counted);
        }
        let mut failure = FirstError::default();
        let mut used = HashSet::new();
        for one in wanted {
            let key = one.place.write();
            let old = here.remove(&key);
            let identities = one.identify();
            let [all, each] = [0, 1].map(|at: usize| {
                let old = old.and_then(|old| old.get(at).copied());
                let identity = identities.get(at).copied().unwrap_or(0);
                let next = CountedRule::find_next(identity, old, &known, now_ns);
                known.insert(identity, next.key);
                next
            });
            used.extend([all.key, each.key]);
            let written = map.update(&key, &one.write([all, each]), MapFlags::ANY);
            failure.keep(written.map_err(failed_to("write limits of a rule")));
        }
        for key in here.into_keys() {
            failure.keep(
                map.delete(&key)
                    .map_err(failed_to("remove limits of a rule")),
            );
        }
        failure.keep(self.forget_limited(&used));
        failure.finish()
    }

    /// Removes the entries of what is no longer counted.
    fn forget_limited(&self, used: &HashSet<u64>) -> Result<(), BpfError> {
        let map = find_map(&self.object, "evk_limited")?;
        let mut over = Vec::new();
        read_table::<KEY, ENTRY>(&map, |key, _| {
            if !used.contains(&Reader(key).u64()) {
                over.push(*key);
            }
        })?;
        for key in over {
            // The next call removes what the kernel keeps now.
            let _ = map.delete(&key);
        }
        Ok(())
    }

    /// Removes the entries of clients that have used nothing. `forgets_process`: connections of the process before are over.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn sweep_limited(&self, now_ns: u64, forgets_process: bool) -> Result<(), BpfError> {
        let mut order = now_ns.to_ne_bytes().to_vec();
        order.extend(
            [u32::from(forgets_process), 0]
                .map(u32::to_ne_bytes)
                .concat(),
        );
        bpf::run(&self.object, "evk_sweep_limited", Some(&mut order)).map(drop)
    }

    /// Returns the counts of limits, for connections of the process.
    ///
    /// # Errors
    ///
    /// A map or the program is missing, or the kernel refuses.
    pub fn limit_counts(&self) -> Result<LimitCounts, BpfError> {
        let open = |name| {
            let map = find_map(&self.object, name)?;
            MapHandle::try_from(&map).map_err(failed_to("open a BPF map"))
        };
        let program = find_program(&self.object, "evk_place")?;
        let program = program.as_fd().try_clone_to_owned();
        Ok(LimitCounts {
            limits: open("evk_limits")?,
            limited: open("evk_limited")?,
            program: program
                .map_err(|error| BpfError::File(format!("cannot hold a BPF program: {error}")))?,
        })
    }
}
