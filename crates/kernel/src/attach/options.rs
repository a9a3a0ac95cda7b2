//! Options of a responder.

use std::path::PathBuf;

use crate::host::Host;
use crate::network::Network;
use crate::query::Key;

/// Way in which the responder receives packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[repr(u32)]
pub enum Mode {
    /// XDP in the driver.
    Native = 1,
    /// XDP in front of the network stack.
    Generic = 2,
    /// Traffic control, at ingress.
    Tc = 3,
}

impl Mode {
    /// Returns the name of the mode.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Options of a responder.
#[derive(Clone, Debug)]
pub struct Options {
    /// The network interface.
    pub interface: String,
    /// The folder of its pins; without one, [`default_pin_folder`](super::default_pin_folder).
    pub folder: Option<PathBuf>,
    /// The UDP port.
    pub port: u16,
    /// Keys of balancers.
    pub keys: Vec<Key>,
    /// Networks whose queries the responder answers.
    pub allow: Vec<Network>,
    /// Names of the responder: see [`crate::host::list_own_hosts`].
    pub hosts: Vec<Host>,
    /// TCP ports whose backlogs the responder tells.
    pub ports: Vec<u16>,
    /// Cgroups that can be asked for, with their numbers.
    pub cgroups: Vec<(u16, PathBuf)>,
    /// Most answers per second and source; 0 is any number.
    pub rate: u32,
    /// Way in which the responder receives packets; without one, the first way that works.
    pub mode: Option<Mode>,
}
