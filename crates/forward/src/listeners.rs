//! Listening addresses of the rules that the kernel forwards for.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_config::ReturnPath;
use evenkeel_core::time::Instant;
use evenkeel_kernel::bpf::BpfError;
use evenkeel_kernel::forward::{LISTENERS, Listener, UdpListener};
use tracing::warn;

use crate::engine::{Engine, WrittenGroup};
use crate::failures::EntryKind;
use crate::limits::list_unforwarded;
use crate::plan::PlannedRule;
use crate::rows;
use crate::udp;

/// Listening addresses of a round.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    tcp: Vec<Listener>,
    udp: Vec<UdpListener>,
    /// Groups with their terms, or the reason why the proxy serves a group's rules.
    groups: HashMap<Arc<str>, Result<WrittenGroup, String>>,
}

impl Engine {
    /// Writes the groups of the rules. Returns the addresses of the rules that the kernel can forward for.
    pub(crate) fn list_listeners(
        &mut self,
        rules: &[PlannedRule],
        now: Instant,
    ) -> Result<Listeners, BpfError> {
        let mut found = Listeners::default();
        self.seatless.begin_round();
        self.homes
            .values_mut()
            .for_each(|home| home.is_used = false);
        for rule in rules {
            let group = rule.group.current.load_full();
            let written = match found.groups.get(group.name()) {
                Some(written) => written.clone(),
                None => {
                    let written = self.write_group(rule, &group, now)?;
                    let name = Arc::clone(group.name());
                    found.groups.insert(name, written.clone());
                    written
                }
            };
            let WrittenGroup { number, members } = match written {
                Ok(written) => written,
                Err(reason) => {
                    self.obstacles.refuse(rule, reason);
                    continue;
                }
            };
            let machine = (&self.nat, &self.interfaces);
            if !self.obstacles.allow(rule, (&group, &members), machine) {
                continue;
            }
            let nat = (rule.return_path == ReturnPath::Nat)
                .then_some(self.nat.ports)
                .flatten();
            let has_room = |written: usize| written + rule.listeners.len() <= LISTENERS;
            match rule.udp {
                Some(terms) if has_room(found.udp.len()) => {
                    let listeners = udp::list_listeners(rule, terms, number, nat);
                    found.udp.extend(listeners);
                }
                None if has_room(found.tcp.len()) => {
                    found.tcp.extend(rows::list_listeners(rule, number, nat));
                }
                _ => self.obstacles.refuse(
                    rule,
                    format!(
                        "the kernel has room for {LISTENERS} listening addresses of TCP rules, and as many of UDP \
                         rules. Set forward = \"proxy\" for some rules"
                    ),
                ),
            }
        }
        Ok(found)
    }

    /// Writes the addresses where they have changed, and where the kernel has refused some, with the next look at the
    /// table.
    pub(crate) fn write_listeners(
        &mut self,
        listeners: Listeners,
        is_due: bool,
    ) -> Result<(), BpfError> {
        let Listeners { tcp, udp, groups } = listeners;
        let has_changed =
            self.sessions.has_other_listeners(&udp) || self.listeners.as_ref() != Some(&tcp);
        if has_changed {
            let of_udp = udp.iter().map(|listener| &listener.address);
            let addresses = tcp.iter().map(|listener| &listener.address);
            for (_, error) in list_unforwarded(addresses.chain(of_udp)) {
                warn!("the proxy serves connections of a family of addresses: {error}");
            }
        }
        let is_again = is_due && self.lacks_listeners;
        if !has_changed && !is_again {
            return Ok(());
        }
        let written = self.forwarder.set_listeners(&tcp);
        let has_tcp = self.errors.take(EntryKind::Listener, written)?.is_some();
        let written = self.sessions.set_listeners(&self.forwarder, udp);
        let has_udp = self.errors.take(EntryKind::Listener, written)?.is_some();
        self.lacks_listeners = !(has_tcp && has_udp);
        // An address that the kernel has not removed still leads to its group, whose number is nobody else's until then.
        if !self.lacks_listeners {
            self.groups.retain(|name, _| groups.contains_key(name));
        }
        self.listeners = Some(tcp);
        Ok(())
    }
}
