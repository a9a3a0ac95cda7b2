//! Limits of rules, which the program counts together with the proxy.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_config::Limits;
use evenkeel_kernel::bpf::BpfError;
use evenkeel_kernel::forward::{
    ClientLimits, ClientRate, CountedPlace, Forwarder, LimitCounts, LimitPlace, ListenerLimits,
    ReachedLimit, RuleLimits,
};
use evenkeel_net::clock::monotonic_nanos;
use evenkeel_proxy::access::Limit;
use evenkeel_proxy::shared_limits::{
    FollowedLimits, KernelCounts, KernelPlace, ListenPlace, SharedLimits,
};

use crate::failures::{EntryErrors, EntryKind};
use crate::plan::PlannedRule;

/// Counts in the kernel, while the process has the program.
#[derive(Debug)]
struct Counts {
    kernel: LimitCounts,
    /// True if the next process, or the next try of this one, counts anew.
    is_over: AtomicBool,
}

/// Way of the proxy to the counts.
#[derive(Debug)]
struct CountsOfProxy(Arc<Counts>);

/// Connection of the proxy, which counts until dropped.
#[derive(Debug)]
struct Place {
    counts: Arc<Counts>,
    place: CountedPlace,
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.counts.is_over.load(Ordering::Acquire) {
            self.counts.kernel.leave_place(&self.place);
        }
    }
}

/// Returns a listening address as the kernel has it.
fn convert_place(place: ListenPlace) -> LimitPlace {
    LimitPlace {
        address: place.address,
        is_udp: place.is_udp,
    }
}

impl KernelCounts for CountsOfProxy {
    fn count_confirmed(&self, place: ListenPlace) -> u32 {
        self.0.kernel.count_confirmed(convert_place(place))
    }

    fn take_place(&self, place: ListenPlace, client: Option<IpAddr>) -> Result<KernelPlace, Limit> {
        let taken = self.0.kernel.take_place(convert_place(place), client);
        let place = taken.map_err(|reached| match reached {
            ReachedLimit::Connections => Limit::Connections,
            ReachedLimit::Rate => Limit::NewConnections,
        })?;
        let counts = Arc::clone(&self.0);
        Ok(KernelPlace {
            counts_client: place.counts_client(),
            count: Box::new(Place { counts, place }),
        })
    }
}

/// Limits of all rules, as the program has them.
#[derive(Debug)]
pub(crate) struct LimitWriter {
    followed: FollowedLimits,
    counts: Arc<Counts>,
    written: Vec<ListenerLimits>,
    /// True if the kernel has refused some.
    lacks_some: bool,
}

impl LimitWriter {
    /// Lets the proxy count its connections in the kernel from now on.
    pub(crate) fn new(of_proxy: &SharedLimits, forwarder: &Forwarder) -> Result<Self, BpfError> {
        let counts = Arc::new(Counts {
            kernel: forwarder.limit_counts()?,
            is_over: AtomicBool::new(false),
        });
        forwarder.sweep_limited(monotonic_nanos(), true)?;
        let followed = of_proxy.follow(Arc::new(CountsOfProxy(Arc::clone(&counts))));
        Ok(LimitWriter {
            followed,
            counts,
            written: Vec::new(),
            // Limits of a process before may be there.
            lacks_some: true,
        })
    }

    /// Writes the limits of the rules where they have changed. `is_due`: those that the kernel has refused are written again,
    /// and clients that have used nothing are forgotten.
    pub(crate) fn write(
        &mut self,
        (forwarder, errors): (&Forwarder, &mut EntryErrors),
        rules: &[PlannedRule],
        is_due: bool,
    ) -> Result<(), BpfError> {
        let limited = rules.iter().filter(|rule| rule.is_limited);
        let wanted: Vec<_> = limited.flat_map(list_limits).collect();
        if wanted != self.written || (is_due && self.lacks_some) {
            let written = forwarder.set_limits(&wanted, monotonic_nanos());
            self.lacks_some = errors.take(EntryKind::Listener, written)?.is_none();
            self.written = wanted;
        }
        if self.written.is_empty() {
            return Ok(());
        }
        if is_due {
            let swept = forwarder.sweep_limited(monotonic_nanos(), false);
            errors.take(EntryKind::Listener, swept)?;
        }
        self.followed.tell_ends();
        Ok(())
    }
}

impl Drop for LimitWriter {
    fn drop(&mut self) {
        self.counts.is_over.store(true, Ordering::Release);
    }
}

/// Returns the limits of a rule's listening addresses.
fn list_limits(rule: &PlannedRule) -> impl Iterator<Item = ListenerLimits> {
    let limits = RuleLimits {
        most: rule.max_connections,
        clients: limit_clients(&rule.limits),
    };
    rule.listeners.iter().map(move |address| ListenerLimits {
        place: LimitPlace {
            address: *address,
            is_udp: rule.udp.is_some(),
        },
        rule: rule.name.to_string(),
        limits: limits.clone(),
    })
}

/// Returns the limits of each client; `None` if there are none that count connections.
fn limit_clients(limits: &Limits) -> Option<ClientLimits> {
    let rate = limits.new_connections.map(|rate| ClientRate {
        count: rate.count,
        per: rate.per,
        burst: limits.new_connections_burst(),
    });
    if limits.connections.is_none() && rate.is_none() {
        return None;
    }
    let except = limits.except.iter().flat_map(|networks| &networks.0);
    let bits = |bits: u16| u8::try_from(bits).unwrap_or(u8::MAX);
    Some(ClientLimits {
        connections: limits.connections,
        rate,
        prefixes: (bits(limits.ipv4_prefix), bits(limits.ipv6_prefix)),
        except: except.map(|network| network.address_and_prefix()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s41_limits_of_a_rule_are_those_of_its_file() {
        let text = "[rule.db]\nlisten = [\"192.0.2.1:80\", \"[2001:db8::1]:80\"]\nprotocol = \"tcp\"\n\
                    forward = \"kernel\"\nmembers = [\"192.0.2.9:80\"]\n[rule.db.limits]\nconnections = 5\n\
                    new_connections = \"120/m\"\nnew_connections_burst = 7\nipv4_prefix = 24\n\
                    except = [\"10.0.0.0/8\", \"2001:db8::7\"]\n";
        let config = evenkeel_config::parse("test.toml", text).unwrap();
        let limits = limit_clients(&config.rules[0].limits).unwrap();
        assert_eq!(limits.connections, Some(5));
        let rate = limits.rate.unwrap();
        assert_eq!((rate.count, rate.per.as_secs(), rate.burst), (120, 60, 7));
        assert_eq!(limits.prefixes, (24, 64));
        let expected = [("10.0.0.0", 8), ("2001:db8::7", 128)];
        let expected = expected.map(|(ip, bits)| (ip.parse().unwrap(), bits));
        assert_eq!(limits.except, expected);
        assert_eq!(limit_clients(&Limits::default()), None);
    }
}
