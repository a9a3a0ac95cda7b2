//! Full NAT: ports towards members, and the addresses of the balancer that they see.

use std::collections::HashMap;
use std::mem;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use evenkeel_config::ReturnPath;
use evenkeel_kernel::bpf::BpfError;
use evenkeel_kernel::forward::{self as kernel, Connection, Forwarder, NatPorts};

use crate::failures::{EntryErrors, EntryKind};
use crate::plan::PlannedRule;

/// State of full NAT.
#[derive(Debug, Default)]
pub(crate) struct Nat {
    /// Ports towards members; `None` if the system leaves none, or no rule wants one.
    pub(crate) ports: Option<NatPorts>,
    /// True if a rule has tunnels, which begin at these addresses, too.
    has_tunnels: bool,
    /// Reason why the system leaves no ports.
    pub(crate) obstacle: Option<String>,
    /// Member of each seat, and the address that the member sees; an address of nobody without a route.
    addresses: HashMap<u32, (SocketAddr, IpAddr)>,
    /// Number of connections of each seat, in this look at the table and in the last one.
    connections: HashMap<u32, usize>,
    connections_before: HashMap<u32, usize>,
}

impl Nat {
    /// Finds the ports towards members, if a rule wants some.
    pub(crate) fn choose_ports(&mut self, rules: &[PlannedRule]) {
        (self.ports, self.obstacle) = (None, None);
        let is_tunnel = |rule: &PlannedRule| rule.return_path == ReturnPath::Tunnel;
        self.has_tunnels = rules.iter().any(is_tunnel);
        if !rules.iter().any(|rule| rule.return_path == ReturnPath::Nat) {
            return;
        }
        match kernel::find_nat_ports() {
            Ok(ports) => self.ports = Some(ports),
            Err(error) => self.obstacle = Some(error.to_string()),
        }
    }

    /// Writes the address of the balancer that each member sees, where it is not known or, if `is_due`, has changed.
    pub(crate) fn write_addresses(
        &mut self,
        (forwarder, errors): (&Forwarder, &mut EntryErrors),
        members: impl Iterator<Item = (u32, SocketAddr)>,
        is_due: bool,
    ) -> Result<(), BpfError> {
        if self.ports.is_none() && !self.has_tunnels {
            return Ok(());
        }
        for (seat, member) in members {
            let known = self.addresses.get(&seat).copied();
            if !is_due && known.is_some_and(|(known, _)| known == member) {
                continue;
            }
            // Without a route the proxy serves.
            let source = kernel::find_source(member).unwrap_or(Ipv6Addr::UNSPECIFIED.into());
            if known.map(|(_, source)| source) != Some(source) {
                let written = forwarder.set_nat_address(seat, source);
                if errors.take(EntryKind::Member, written)?.is_none() {
                    // The next round tries again.
                    self.addresses.remove(&seat);
                    continue;
                }
            }
            self.addresses.insert(seat, (member, source));
        }
        Ok(())
    }

    /// Begins a look at the table.
    pub(crate) fn begin_sweep(&mut self) {
        self.connections_before = mem::take(&mut self.connections);
    }

    /// Counts a connection of the table.
    pub(crate) fn note(&mut self, connection: &Connection) {
        self.note_seat(connection.seat, connection.has_nat);
    }

    /// Counts a connection or a session at a member's seat.
    pub(crate) fn note_seat(&mut self, seat: u32, has_nat: bool) {
        if has_nat {
            *self.connections.entry(seat).or_default() += 1;
        }
    }

    /// Returns the time for which a connection that is over stays: less if more than half of the ports towards its
    /// member are in use.
    pub(crate) fn choose_linger(&self, connection: &Connection, linger: Duration) -> Duration {
        self.choose_linger_of(connection.seat, connection.has_nat, linger)
    }

    /// Returns the `linger` of a seat, likewise.
    pub(crate) fn choose_linger_of(&self, seat: u32, has_nat: bool, linger: Duration) -> Duration {
        let Some(ports) = self.ports.filter(|_| has_nat) else {
            return linger;
        };
        let used = self.connections_before.get(&seat).copied();
        linger.min(kernel::choose_linger(used.unwrap_or(0), ports.count.into()))
    }
}
