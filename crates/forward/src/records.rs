//! Records of the access log about connections that the kernel has forwarded.

use std::borrow::Cow;
use std::collections::HashMap;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_core::cost::Cost;
use evenkeel_kernel::forward::{self as kernel, Event, Pair, Step};
use evenkeel_net::clock::monotonic_nanos;
use evenkeel_proxy::access::{AccessLog, End, MemberAttempts, Peer, Record};

use crate::plan::PlannedRule;

/// Member of a connection, as the access log names the member.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// `None` if the group is gone.
    pub(crate) group: Option<Arc<str>>,
    pub(crate) member: Arc<str>,
    pub(crate) member_name: Option<Arc<str>>,
    pub(crate) cost: Cost,
}

impl Target {
    /// Returns the member of an event whose group is gone.
    fn of_address(address: impl ToString) -> Self {
        Target {
            group: None,
            member: address.to_string().into(),
            member_name: None,
            cost: Cost::ONE,
        }
    }
}

/// Facts about a connection that its record needs, until the end.
#[derive(Debug)]
struct Facts {
    rule: Arc<str>,
    target: Target,
    /// Members that have not accepted the connection, in order.
    before: Vec<Arc<str>>,
    client: SocketAddr,
    /// Time of the client's first SYN, in nanoseconds of the machine's clock.
    began_ns: u64,
    /// Time at which the member got the SYN, likewise.
    bound_ns: u64,
    accepted_ns: Option<u64>,
    answered_ns: Option<u64>,
    /// True if the balancer removes the connection, as no packet has come for too long.
    is_silent: bool,
    /// Number of the last look at the tables that has seen the connection.
    look: u32,
}

/// Connection that its member has not accepted. The next event may say that another member gets the connection.
#[derive(Debug)]
struct RefusedConnection {
    facts: Facts,
    ended_ns: u64,
    bytes: (u64, u64),
    /// True if a whole round has passed since.
    is_old: bool,
}

/// Addresses of a connection, and the time of the SYN to the member.
type Key = (Pair, u64);

/// Access log of the kernel's connections.
#[derive(Debug, Default)]
pub(crate) struct Records {
    log: Option<AccessLog>,
    /// Names of rules by their listening addresses; true is for UDP.
    rules: HashMap<(bool, SocketAddr), Arc<str>>,
    open: HashMap<Key, Facts>,
    /// By the client, and the time at which another member may have got the connection.
    refused: HashMap<(SocketAddr, u64), RefusedConnection>,
    lost: u64,
    /// Number of looks at the tables.
    look: u32,
}

impl Records {
    /// Sets the log that gets records from now on.
    pub(crate) fn set_log(&mut self, log: Option<AccessLog>) {
        self.log = log;
        if self.log.is_none() {
            self.open = HashMap::new();
            self.refused = HashMap::new();
        }
    }

    /// True if there is a log.
    pub(crate) fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Sets the names of rules.
    pub(crate) fn set_rules(&mut self, rules: &[PlannedRule]) {
        if self.log.is_none() {
            return;
        }
        self.rules.clear();
        for rule in rules {
            let listeners = rule.listeners.iter();
            let is_udp = rule.udp.is_some();
            let named = listeners.map(|at| ((is_udp, *at), Arc::clone(&rule.name)));
            self.rules.extend(named);
        }
    }

    /// Returns the number of connections whose record is missing.
    pub(crate) fn count_lost(&self) -> u64 {
        self.lost
    }

    /// Takes an event; `find_target` finds the member.
    pub(crate) fn take_event(
        &mut self,
        event: &Event,
        find_target: impl FnOnce() -> Option<Target>,
    ) {
        if self.log.is_none() {
            return;
        }
        let key = (event.pair, event.began_ns);
        match event.step {
            Step::Begin | Step::Adopt => {
                let Some(target) = find_target() else {
                    return;
                };
                let client = event.pair.client;
                let before = self.refused.remove(&(client, event.began_ns));
                let mut facts = self.collect_facts(event, target);
                if let Some(RefusedConnection { facts: old, .. }) = before {
                    facts.began_ns = old.began_ns;
                    facts.before = old.before;
                    facts.before.push(old.target.member);
                }
                self.open.insert(key, facts);
            }
            Step::Accept | Step::Confirm => {
                if let Some(facts) = self.open.get_mut(&key) {
                    facts.accepted_ns = Some(event.ns);
                }
            }
            Step::Answer => {
                if let Some(facts) = self.open.get_mut(&key) {
                    facts.answered_ns = Some(event.ns);
                }
            }
            Step::End(end) => {
                let facts = self.open.remove(&key).unwrap_or_else(|| {
                    let target = find_target();
                    let target = target.unwrap_or_else(|| Target::of_address(event.pair.member));
                    self.collect_facts(event, target)
                });
                self.end_connection(facts, end, event);
            }
        }
    }

    fn collect_facts(&self, event: &Event, target: Target) -> Facts {
        let listener = event.listener;
        let rule = match self.rules.get(&(event.is_udp, listener)) {
            Some(rule) => Arc::clone(rule),
            // The rule is gone.
            None => listener.to_string().into(),
        };
        Facts {
            rule,
            target,
            before: Vec::new(),
            client: event.pair.client,
            began_ns: event.began_ns,
            bound_ns: event.began_ns,
            accepted_ns: None,
            answered_ns: None,
            is_silent: false,
            look: self.look,
        }
    }

    fn end_connection(&mut self, facts: Facts, end: kernel::End, event: &Event) {
        let end = match end {
            // As in the proxy: nobody knows who should have sent the next byte.
            kernel::End::Closed if facts.is_silent => End::ClientTimeout,
            kernel::End::Refused if facts.is_silent => End::MemberTimeout,
            kernel::End::Refused => {
                let refused = RefusedConnection {
                    ended_ns: event.ns,
                    bytes: event.bytes,
                    is_old: false,
                    facts,
                };
                let client = event.pair.client;
                self.refused.insert((client, event.ns), refused);
                return;
            }
            kernel::End::Closed => End::Complete,
            kernel::End::Reset | kernel::End::Unreachable => End::Member,
            kernel::End::Silent => End::MemberTimeout,
            kernel::End::ClientReset => End::Client,
        };
        self.write_record(facts, end, event.ns, event.bytes);
    }

    /// Notes that a connection is removed, as no packet has come for too long.
    pub(crate) fn note_silence(&mut self, pair: Pair, began_ns: u64) {
        if let Some(facts) = self.open.get_mut(&(pair, began_ns)) {
            facts.is_silent = true;
        }
    }

    /// Begins a look at the tables.
    pub(crate) fn begin_look(&mut self) {
        self.look = self.look.wrapping_add(1);
    }

    /// Notes an open connection of the tables.
    pub(crate) fn note(&mut self, key: &Key) {
        // Without a log the map is empty.
        if let Some(facts) = self.open.get_mut(key) {
            facts.look = self.look;
        }
    }

    /// Forgets connections that the look has not seen: there was no place for the events of their ends.
    pub(crate) fn end_look(&mut self) {
        let (look, before) = (self.look, self.open.len());
        self.open.retain(|_, facts| facts.look == look);
        self.lost += (before - self.open.len()) as u64;
    }

    /// Writes refused connections that go to no other member, and hands over what was gathered.
    pub(crate) fn finish_round(&mut self) {
        self.write_refused(|refused| mem::replace(&mut refused.is_old, true));
        if let Some(log) = &mut self.log {
            log.hand_over();
        }
    }

    /// Writes all refused connections: no further events come.
    pub(crate) fn finish(&mut self) {
        self.write_refused(|_| true);
    }

    fn write_refused(&mut self, mut is_over: impl FnMut(&mut RefusedConnection) -> bool) {
        let over: Vec<_> = self
            .refused
            .extract_if(|_, refused| is_over(refused))
            .map(|(_, refused)| refused)
            .collect();
        for refused in over {
            self.write_record(refused.facts, End::Member, refused.ended_ns, refused.bytes);
        }
    }

    fn write_record(
        &mut self,
        facts: Facts,
        end: End,
        ended_ns: u64,
        (received, sent): (u64, u64),
    ) {
        let Some(log) = &mut self.log else {
            return;
        };
        let since = |from: u64, to: u64| Duration::from_nanos(to.saturating_sub(from));
        let age = since(facts.began_ns, monotonic_nanos());
        let now = SystemTime::now();
        let retries = facts.before.len() as u32;
        let mut attempts = MemberAttempts::new(facts.target.member, facts.target.member_name);
        attempts.before = facts.before;
        attempts.connect_time = facts.accepted_ns.map(|at| since(facts.bound_ns, at));
        let record = Record {
            at: now.checked_sub(age).unwrap_or(now),
            client: Peer(Some(facts.client)),
            rule: Cow::Borrowed(&facts.rule),
            user: None,
            route: None,
            group: facts.target.group.as_deref().map(Cow::Borrowed),
            attempts: Some(attempts),
            tls: None,
            server_name: None,
            request: None,
            protocol: None,
            details: None,
            status: None,
            grpc_status: None,
            bytes_received: received,
            bytes_sent: sent,
            head_bytes_sent: 0,
            response_time: facts.answered_ns.map(|at| since(facts.bound_ns, at)),
            total_time: since(facts.began_ns, ended_ns),
            cost: facts.target.cost,
            retries,
            end,
            limit: None,
            request_limit: None,
            hedged: None,
        };
        if !log.push_record(&record) {
            self.lost += 1;
        }
    }
}

#[cfg(test)]
mod tests;
