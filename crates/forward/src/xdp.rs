//! Interfaces at which native XDP is to forward, as the configuration names them.

use evenkeel_kernel::bpf::BpfError;
use evenkeel_kernel::forward::{Forwarder, XdpStates};
use evenkeel_manager::status::InterfaceStatus;
use tracing::{info, warn};

use crate::failures::{EntryErrors, EntryKind};

/// Interfaces that were asked for, with what has become of them.
#[derive(Debug, Default)]
pub(crate) struct XdpInterfaces {
    names: Vec<String>,
    states: XdpStates,
}

impl XdpInterfaces {
    /// Sets the names of the interfaces.
    pub(crate) fn set_names(&mut self, names: &[String]) {
        if self.names != names {
            self.names = names.to_vec();
        }
    }

    /// Puts the program on the interfaces, and says what has changed.
    pub(crate) fn attach(
        &mut self,
        forwarder: &mut Forwarder,
        errors: &mut EntryErrors,
    ) -> Result<(), BpfError> {
        let (states, attached) = forwarder.attach_xdp(&self.names);
        // Where XDP does not forward, the program of tc does.
        errors.take(EntryKind::Interface, attached)?;
        for (name, reason) in &states {
            if self.states.get(name) == Some(reason) {
                continue;
            }
            match reason {
                None => info!("native XDP forwards packets at {name}"),
                Some(reason) => {
                    warn!("no native XDP at {name}, tc forwards there: {reason}");
                }
            }
        }
        self.states = states;
        Ok(())
    }

    /// Returns the interfaces for administrators.
    pub(crate) fn describe(&self) -> Vec<InterfaceStatus> {
        let states = self.states.iter();
        let describe = |(name, reason): (&String, &Option<String>)| InterfaceStatus {
            name: name.clone(),
            program: if reason.is_none() { "xdp" } else { "tc" }.into(),
            reason: reason.clone(),
        };
        states.map(describe).collect()
    }
}
