//! Interfaces with the program for all packets: at tcx, or as a filter of tc.

use evenkeel_kernel::forward::{InterfaceState, InterfaceStates, find_interface_name};
use evenkeel_manager::status::InterfaceStatus;
use tracing::{info, warn};

/// States of the interfaces.
#[derive(Debug, Default)]
pub(crate) struct Interfaces(InterfaceStates);

impl Interfaces {
    /// Takes the states of the interfaces, and says where the program is not at tcx from now on.
    pub(crate) fn set_states(&mut self, states: &InterfaceStates) {
        if self.0 == *states {
            return;
        }
        for (&interface, state) in states {
            if self.0.get(&interface) == Some(state) {
                continue;
            }
            let name = name_interface(interface);
            match state {
                InterfaceState::Tcx => {}
                InterfaceState::Tc(reason) => info!(
                    "a filter of tc forwards packets at {name}, and no program at tcx: {reason}"
                ),
                InterfaceState::Refused(error) => warn!(
                    "the proxy serves connections that come by {name}, where the kernel refuses the program: {error}"
                ),
            }
        }
        self.0.clone_from(states);
    }

    /// Returns true if an interface has the program.
    pub(crate) fn contains(&self, interface: u32) -> bool {
        { self.0.get(&interface) }.is_some_and(InterfaceState::has_program)
    }

    /// Returns the number of interfaces with the program.
    pub(crate) fn count(&self) -> usize {
        self.0.values().filter(|state| state.has_program()).count()
    }

    /// Returns the name of an interface at which the kernel refuses the program; `None` if the interface is another one.
    pub(crate) fn find_refused(&self, interface: u32) -> Option<String> {
        let state = self.0.get(&interface)?;
        (!state.has_program()).then(|| name_interface(interface))
    }

    /// Returns the interfaces without a program at tcx for administrators.
    pub(crate) fn describe_others(&self) -> Vec<InterfaceStatus> {
        let states = self.0.iter();
        let describe = |(&interface, state): (&u32, &InterfaceState)| {
            let (program, reason) = match state {
                InterfaceState::Tcx => return None,
                InterfaceState::Tc(reason) => ("tc", reason.to_string()),
                InterfaceState::Refused(error) => ("proxy", error.clone()),
            };
            Some(InterfaceStatus {
                name: name_interface(interface),
                program: program.into(),
                reason: Some(reason),
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
    use evenkeel_kernel::forward::TcReason;

    use super::*;

    #[test]
    fn interfaces_without_a_program_at_tcx_are_named_with_the_reason() {
        let mut interfaces = Interfaces::default();
        let loopback = 1;
        let states = [
            (loopback, InterfaceState::Tc(TcReason::OtherFilter(7))),
            (90_000, InterfaceState::Tcx),
            (90_001, InterfaceState::Refused("no room".into())),
        ];
        interfaces.set_states(&states.into());
        assert_eq!(interfaces.count(), 2);
        assert!(interfaces.contains(90_000) && !interfaces.contains(90_001));
        let refused = [loopback, 90_000, 90_001, 90_002].map(|one| interfaces.find_refused(one));
        assert_eq!(refused, [None, None, Some("90001".into()), None], "gone");
        let others = interfaces.describe_others();
        let shown: Vec<_> = others
            .iter()
            .map(|one| (one.name.as_str(), one.program.as_str()))
            .collect();
        assert_eq!(shown, [("lo", "tc"), ("90001", "proxy")]);
        let reasons: Vec<_> = others.iter().flat_map(|one| &one.reason).collect();
        assert!(reasons[0].contains("pref 7"), "{reasons:?}");
        assert_eq!(reasons[1], "no room");
    }
}
