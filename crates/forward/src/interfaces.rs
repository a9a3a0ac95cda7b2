//! Interfaces with the program for all packets: at tcx, or as a filter of tc.

use std::collections::BTreeMap;

use evenkeel_kernel::forward::{TcReason, find_interface_name};
use evenkeel_manager::status::InterfaceStatus;
use tracing::info;

/// Interfaces with the program, by number, and the reason why the program is a filter of tc there and not at tcx.
#[derive(Debug, Default)]
pub(crate) struct Interfaces(BTreeMap<u32, Option<TcReason>>);

impl Interfaces {
    /// Takes the state of the interfaces, and says where the program is a filter of tc from now on.
    pub(crate) fn set_states(&mut self, states: &BTreeMap<u32, Option<TcReason>>) {
        if self.0 == *states {
            return;
        }
        for (&interface, reason) in states {
            if let Some(reason) = reason
                && self.0.get(&interface).and_then(Option::as_ref) != Some(reason)
            {
                info!(
                    "a filter of tc forwards packets at {}, and no program at tcx: {reason}",
                    name_interface(interface)
                );
            }
        }
        self.0.clone_from(states);
    }

    /// Returns true if an interface has the program.
    pub(crate) fn contains(&self, interface: u32) -> bool {
        self.0.contains_key(&interface)
    }

    /// Returns the number of interfaces with the program.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the interfaces with a filter of tc for administrators.
    pub(crate) fn describe_filters(&self) -> Vec<InterfaceStatus> {
        let states = self.0.iter();
        let describe = |(&interface, reason): (&u32, &Option<TcReason>)| {
            let reason = reason.as_ref()?;
            Some(InterfaceStatus {
                name: name_interface(interface),
                program: "tc".into(),
                reason: Some(reason.to_string()),
            })
        };
        states.filter_map(describe).collect()
    }
}

/// Returns the name of an interface, or the number of one that is gone.
pub(crate) fn name_interface(interface: u32) -> String {
    find_interface_name(interface).unwrap_or_else(|| interface.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_of_tc_are_named_with_the_reason() {
        let mut interfaces = Interfaces::default();
        let loopback = 1;
        let reason = TcReason::OtherFilter(7);
        interfaces.set_states(&BTreeMap::from([(loopback, Some(reason)), (90_000, None)]));
        assert_eq!(interfaces.count(), 2);
        assert_eq!(name_interface(90_000), "90000", "gone");
        let filters = interfaces.describe_filters();
        let shown: Vec<_> = filters
            .iter()
            .map(|one| (one.name.as_str(), one.program.as_str()))
            .collect();
        assert_eq!(shown, [("lo", "tc")]);
        let reason = filters.first().and_then(|one| one.reason.as_deref());
        assert!(reason.is_some_and(|reason| reason.contains("pref 7")));
    }
}
