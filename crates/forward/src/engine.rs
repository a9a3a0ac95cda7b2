//! The program in the kernel as the thread keeps it: terms go there, events come back as tickets.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::group::Group;
use evenkeel_core::hash_terms::scale_bound;
use evenkeel_core::terms::{Form, scale_growth, scale_hot};
use evenkeel_core::time::Instant;
use evenkeel_kernel::bpf::BpfError;
use evenkeel_kernel::forward::{
    self as kernel, Event, Family, Forwarder, GROUPS, GroupTerms, Listener, OUTCOMES, Place, Step,
    Terms,
};
use evenkeel_limits::memory::MemoryBound;
use evenkeel_net::Clock;
use evenkeel_net::clock::monotonic_nanos;
use evenkeel_proxy::access::AccessLog;
use evenkeel_proxy::udp::client_sessions::ClientSessions;
use tracing::{info, warn};

use crate::copies::Copies;
use crate::decisions::describe_decision;
use crate::failures::{EntryErrors, EntryKind};
use crate::group_numbers::GroupNumbers;
use crate::interfaces::Interfaces;
use crate::limits::list_unforwarded;
use crate::nat::Nat;
use crate::obstacles::Obstacles;
use crate::plan::PlannedRule;
use crate::records::Records;
use crate::requests::Requests;
use crate::rows::Rows;
use crate::rule_counts::count_rule;
use crate::rule_limits::LimitWriter;
use crate::seatless::Seatless;
use crate::status::ForwardStatus;
use crate::terms::{Buffers, MemberTerms, find_terms, hash_name};
use crate::tickets::{Homes, Tickets};
use crate::udp::Sessions;
use crate::xdp::XdpInterfaces;

/// Time between two comparisons of tickets and counts with the table.
const SWEEP: Duration = Duration::from_secs(1);

/// Number of connections for which the time between two comparisons is longer by [`SWEEP`]: a table of a million takes
/// some tenths of a second.
const CONNECTIONS_PER_SWEEP: usize = 262_144;

/// Time without a packet after which a connection of a rule that is gone is removed.
pub(crate) const IDLE: Duration = Duration::from_secs(600);

/// Form of decisions by hash, and of those of `prequal`, in [`GroupTerms`].
const BY_HASH: u32 = 3;
const PREQUAL: u32 = 4;

/// Group that the kernel has the terms of.
#[derive(Clone, Debug)]
pub(crate) struct WrittenGroup {
    pub(crate) number: u32,
    pub(crate) members: Arc<[MemberTerms]>,
}

/// The program in the kernel with the balancer's part.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) forwarder: Forwarder,
    clock: Clock,
    /// Origin of the clock, in nanoseconds of the machine's clock.
    origin: u64,
    pub(crate) seats: HashMap<(u64, SocketAddr), u32>,
    pub(crate) seatless: Seatless,
    pub(crate) homes: Homes,
    /// Seats of a process before that no group has claimed yet.
    pub(crate) unclaimed: HashMap<u32, Terms>,
    /// Numbers of groups in the process before.
    numbers: GroupNumbers,
    pub(crate) groups: HashMap<Arc<str>, (u32, GroupTerms)>,
    pub(crate) listeners: Option<Vec<Listener>>,
    /// True if the kernel has refused a listening address.
    pub(crate) lacks_listeners: bool,
    pub(crate) tickets: Tickets,
    pub(crate) swept: Option<Instant>,
    pub(crate) interfaces: Interfaces,
    xdp: XdpInterfaces,
    pub(crate) connections: usize,
    pub(crate) sessions: Sessions,
    pub(crate) nat: Nat,
    pub(crate) rows: Rows,
    limits: LimitWriter,
    pub(crate) obstacles: Obstacles,
    pub(crate) errors: EntryErrors,
    /// Connections in programs of other versions.
    left_before: usize,
    buffers: Buffers,
    /// Groups that were reported as having a strategy that cannot decide in the kernel.
    reported: HashSet<Arc<str>>,
    pub(crate) records: Records,
    pub(crate) requests: Requests,
    /// Copies of connections in a fleet; `None` without them.
    pub(crate) copies: Option<Copies>,
    /// True if the program tells acceptances.
    acceptances_are_told: bool,
    /// Events of the time before this process, until the members of the seats are known.
    early: Vec<Event>,
}

impl Engine {
    /// Loads the program, or takes over the maps of the process before.
    pub(crate) fn open(
        clock: Clock,
        rules: &[PlannedRule],
        sessions: &ClientSessions,
    ) -> Result<Self, String> {
        let listeners = rules.iter().flat_map(|rule| &rule.listeners);
        let refused = list_unforwarded(listeners);
        let is_refused = |family| refused.iter().any(|(refused, _)| *refused == family);
        let mut listeners = rules.iter().flat_map(|rule| &rule.listeners);
        if listeners.all(|address| is_refused(Family::of_address(address)))
            && let Some((_, error)) = refused.into_iter().next()
        {
            return Err(error.to_string());
        }
        Self::open_maps(clock, sessions).map_err(|error| error.to_string())
    }

    fn open_maps(clock: Clock, sessions: &ClientSessions) -> Result<Self, BpfError> {
        let forwarder = Forwarder::open(Place::of_this_namespace(), MemoryBound::of_process().all)?;
        // Tickets come from the table: events of the time before are news for the access log only.
        let early = forwarder.take_events()?;
        let mut seats = HashMap::new();
        let mut unclaimed = HashMap::new();
        for (seat, terms) in (0..).zip(forwarder.read_terms()?) {
            if terms.owner != 0 {
                seats.insert((terms.owner, terms.address), seat);
                unclaimed.insert(seat, terms);
            }
        }
        let find_owner = |seat| unclaimed.get(&seat).map(|terms: &Terms| terms.owner);
        let numbers = GroupNumbers::of_table(forwarder.list_groups()?, find_owner);
        let limits = LimitWriter::new(sessions.shared_limits(), &forwarder)?;
        let sessions = Sessions::new(sessions, &forwarder)?;
        Ok(Engine {
            forwarder,
            numbers,
            clock,
            origin: clock.origin(),
            seats,
            seatless: Seatless::default(),
            homes: HashMap::new(),
            unclaimed,
            groups: HashMap::new(),
            listeners: None,
            lacks_listeners: false,
            tickets: Tickets::default(),
            swept: None,
            interfaces: Interfaces::default(),
            xdp: XdpInterfaces::default(),
            connections: 0,
            sessions,
            nat: Nat::default(),
            rows: Rows::default(),
            limits,
            obstacles: Obstacles::default(),
            errors: EntryErrors::default(),
            left_before: 0,
            buffers: Buffers::default(),
            reported: HashSet::new(),
            records: Records::default(),
            copies: None,
            requests: Requests::default(),
            acceptances_are_told: true,
            early,
        })
    }

    /// Sets the interfaces for native XDP.
    pub(crate) fn set_xdp_interfaces(&mut self, names: &[String]) {
        self.xdp.set_names(names);
    }

    /// Lets members be compared by requests within long connections, or no longer.
    pub(crate) fn set_learning(&mut self, learns: bool) {
        self.requests.set_learning(learns);
    }

    /// Sets the access log that gets records of connections from now on.
    pub(crate) fn set_log(&mut self, log: Option<AccessLog>) {
        self.records.set_log(log);
    }

    /// Reads what the kernel has done, and writes what has changed.
    pub(crate) fn run_round(&mut self, rules: &[PlannedRule]) -> Result<(), String> {
        self.run(rules).map_err(|error| error.to_string())
    }

    fn run(&mut self, rules: &[PlannedRule]) -> Result<(), BpfError> {
        self.records.set_rules(rules);
        self.choose_events()?;
        for event in self.forwarder.take_events()? {
            self.take_event(&event);
        }
        self.keep_decisions()?;
        self.sessions
            .follow_process(&self.forwarder, &mut self.errors)?;
        let now = self.clock.now();
        let moment = (now, monotonic_nanos());
        let tables = (&self.forwarder, &mut self.errors);
        self.requests.learn(tables, &self.homes, moment)?;
        let pause = SWEEP.saturating_mul(1 + (self.connections / CONNECTIONS_PER_SWEEP) as u32);
        let is_due = self.swept.is_none_or(|swept| now.since(swept) >= pause);
        if is_due {
            self.nat.choose_ports(rules);
            // Members behind other interfaces are left to the proxy.
            self.attach_program()?;
        }
        self.obstacles.begin_round(is_due);
        self.rows.begin_round(rules);
        let listeners = self.list_listeners(rules, now)?;
        self.obstacles.end_round();
        let members = self.homes.iter();
        let members = members.map(|(seat, home)| (*seat, home.terms.address));
        let tables = (&self.forwarder, &mut self.errors);
        self.nat.write_addresses(tables, members, is_due)?;
        self.close_unused()?;
        for event in mem::take(&mut self.early) {
            self.log_event(&event);
        }
        if is_due {
            self.sweep(rules, now)?;
            self.end_other_layouts(rules)?;
            self.swept = Some(now);
        }
        let tables = (&self.forwarder, &mut self.errors);
        self.limits.write(tables, rules, is_due)?;
        // Last: from here on connections come.
        self.write_listeners(listeners, is_due)?;
        self.exchange_copies(rules, now)?;
        self.records.finish_round();
        Ok(())
    }

    /// Puts the program on the interfaces that are there now. If the system does not list them, those of before have it.
    fn attach_program(&mut self) -> Result<(), BpfError> {
        let listed = kernel::list_interfaces();
        let Some(listed) = self.errors.take(EntryKind::Interface, listed)? else {
            return Ok(());
        };
        let (states, attached) = self.forwarder.attach(&listed);
        self.interfaces.set_states(states);
        self.errors.take(EntryKind::Interface, attached)?;
        self.xdp.attach(&mut self.forwarder, &mut self.errors)
    }

    /// Lets the program tell acceptances only if somebody listens: the access log, or comparisons by requests.
    fn choose_events(&mut self) -> Result<(), BpfError> {
        let are_needed = self.records.has_log() || self.requests.learns();
        if self.acceptances_are_told != are_needed {
            self.forwarder.tell_acceptances(are_needed)?;
            self.acceptances_are_told = are_needed;
        }
        Ok(())
    }

    /// Writes the terms of a group, and returns them with its number. Returns the reason why the proxy serves the group's rules if
    /// there is no number for it, or the kernel refuses.
    pub(crate) fn write_group(
        &mut self,
        rule: &PlannedRule,
        group: &Arc<Group>,
        now: Instant,
    ) -> Result<Result<WrittenGroup, String>, BpfError> {
        let name = group.name();
        let number = match self.groups.get(name) {
            Some((number, _)) => *number,
            None => {
                let used = self.groups.values().map(|(number, _)| *number);
                match self.numbers.choose_number(hash_name(name), &used.collect()) {
                    Some(number) => number,
                    None => {
                        return Ok(Err(format!(
                            "the kernel has room for {GROUPS} groups, and others have taken all of it. Set forward = \
                             \"proxy\" for some rules"
                        )));
                    }
                }
            }
        };
        let found = find_terms(group, now, &mut self.buffers);
        let members = found.members;
        let mut terms = GroupTerms {
            growth: scale_growth(1.0),
            ..GroupTerms::default()
        };
        match found.form {
            Form::Score { growth } => (terms.form, terms.growth) = (1, scale_growth(growth)),
            Form::Turns => terms.form = 2,
            Form::Hash { bound } => (terms.form, terms.bound) = (BY_HASH, scale_bound(bound)),
            Form::Prequal { hot_above } => {
                terms.form = PREQUAL;
                terms.bound = scale_hot(hot_above, found.highest_weight);
            }
            Form::Own => {}
        }
        // Rows go by ports, too.
        let is_proxied = terms.form == 0 || terms.form == BY_HASH && rule.anycast;
        if is_proxied && self.reported.insert(Arc::clone(name)) {
            let what = if terms.form == 0 {
                "group"
            } else {
                "group's rules with anycast"
            };
            warn!(
                group = &**name,
                "the proxy serves all connections of the {what}: the kernel cannot decide for the strategy {}",
                group.strategy().name
            );
        }
        let owner = hash_name(name);
        if terms.form != 0 {
            for member in &members {
                let seat = self.write_seat(rule, (name, owner), member)?;
                terms.seats.extend(seat);
            }
        }
        let written = self.write_group_terms((name, number), &terms, &members, now);
        if self.errors.take(EntryKind::Group, written)?.is_some() {
            self.groups.insert(Arc::clone(name), (number, terms));
            let members = members.into();
            return Ok(Ok(WrittenGroup { number, members }));
        }
        // The group keeps the number, and is written again in the next round: no group has these terms.
        let none = GroupTerms::default();
        self.groups.insert(Arc::clone(name), (number, none));
        Ok(Err(format!(
            "the kernel refuses the terms of the group {name}, and is asked again at once; entry_errors in /v1/forward \
             has the error"
        )))
    }

    /// Writes the decisions of a group, and its rows, where they have changed.
    fn write_group_terms(
        &mut self,
        (name, number): (&Arc<str>, u32),
        terms: &GroupTerms,
        members: &[MemberTerms],
        now: Instant,
    ) -> Result<(), BpfError> {
        if terms.form != 0 && terms.form != BY_HASH {
            let owner = hash_name(name);
            let find_seat = |at| self.seats.get(&(owner, at)).copied();
            self.rows
                .write(&self.forwarder, (name, number), members, find_seat, now)?;
        }
        if self
            .groups
            .get(name)
            .is_none_or(|(_, known)| known != terms)
        {
            self.forwarder.set_group(number, terms)?;
        }
        Ok(())
    }

    /// Keeps decisions of the kernel in their groups, for administrators.
    fn keep_decisions(&self) -> Result<(), BpfError> {
        let find_address = |seat| self.homes.get(&seat).map(|home| home.terms.address);
        for told in self.forwarder.take_decisions()? {
            if let Some(home) = self.homes.get(&told.chosen) {
                let (group, at) = (home.group.current.load(), self.instant(told.ns));
                let decision = describe_decision(&told, &group, at, find_address);
                group.state().keep_decision(decision);
            }
        }
        Ok(())
    }

    pub(crate) fn instant(&self, ns: u64) -> Instant {
        Instant::from_nanos(ns.saturating_sub(self.origin).max(1))
    }

    /// Takes an event for the access log.
    fn log_event(&mut self, event: &Event) {
        let home = self.homes.get(&event.seat);
        let find_target = || home.map(|home| home.find_target(event.pair));
        self.records.take_event(event, find_target);
    }

    pub(crate) fn take_event(&mut self, event: &Event) {
        self.log_event(event);
        let key = (event.pair, event.began_ns);
        let (at, began) = (self.instant(event.ns), self.instant(event.began_ns));
        let (tickets, homes) = (&mut self.tickets, &mut self.homes);
        if event.is_message() {
            tickets.hold(homes, key, event.seat, began);
        }
        match event.step {
            Step::Begin if event.is_direct => tickets.hold_unseen(homes, key, event.seat, began),
            Step::Begin => tickets.hold(homes, key, event.seat, began),
            Step::Adopt => self.adopt(key, event, at),
            Step::Accept => self.requests.accept(homes, tickets.find_ticket(&key)),
            Step::Confirm => tickets.record_acceptance(homes, &key, at),
            Step::Answer => tickets.record_answer(homes, &key, at),
            Step::End(end) => {
                if let Some(copies) = &mut self.copies {
                    copies.note_end(event);
                }
                tickets.end(homes, (&key, event.is_direct), event.seat, end, at);
            }
        }
    }

    /// Ends what a process with another version of the maps has left.
    fn end_other_layouts(&mut self, rules: &[PlannedRule]) -> Result<(), BpfError> {
        let idle = rules.iter().map(|rule| rule.idle).chain([IDLE]).max();
        let limit = idle.unwrap_or(IDLE);
        let now_ns = monotonic_nanos();
        let linger = kernel::choose_linger(0, 1);
        let (mut left, ended) = self.forwarder.end_other_layouts(now_ns, limit, linger);
        if self.errors.take(EntryKind::Layout, ended)?.is_none() {
            // Connections of a program with an error are not counted.
            left = left.max(self.left_before);
        }
        if left != self.left_before {
            info!("{left} connections continue in the program of an earlier version");
            self.left_before = left;
        }
        Ok(())
    }

    /// Fills in what the kernel does.
    pub(crate) fn fill_status(&self, status: &mut ForwardStatus, rules: &[PlannedRule]) {
        status.interfaces = self.interfaces.count();
        status.tc_interfaces = self.interfaces.describe_others();
        status.xdp_interfaces = self.xdp.describe();
        status.connections = self.connections;
        status.table_size = self.forwarder.read_capacity().unwrap_or(0);
        status.sessions = self.sessions.count();
        status.copies = self.copies.as_ref().map(Copies::describe);
        status.connection_ids = self.sessions.count_connection_ids();
        status.session_table_size = self.forwarder.read_udp_capacity().unwrap_or(0);
        status.lost_records = self.records.count_lost();
        status.proxied.clone_from(self.obstacles.list_reasons());
        status.entry_errors = self.errors.describe();
        let count = |rule| count_rule(&self.forwarder, rule);
        status.rule_counts = rules.iter().map(count).collect();
        if let Ok(outcomes) = self.forwarder.read_outcomes() {
            let named = OUTCOMES.iter().zip(outcomes);
            status.packets = named
                .map(|((name, _), count)| ((*name).to_owned(), count))
                .collect();
        }
        status.members = self.requests.list_members(&self.forwarder, &self.homes);
    }

    /// True if the program has connections of rules that are gone, as of the last look at the table.
    pub(crate) fn has_connections(&self) -> bool {
        !self.tickets.is_empty()
            || self.connections > 0
            || self.sessions.count() > 0
            || self.left_before > 0
    }

    /// Ends: new connections go to nobody any more. The program stays as long as there are connections.
    pub(crate) fn stop(mut self) {
        let ended = self.forwarder.set_listeners(&[]);
        let ended = ended.and(self.forwarder.set_udp_listeners(&[]));
        if let Ok(events) = self.forwarder.take_events() {
            events.iter().for_each(|event| self.take_event(event));
        }
        self.records.finish();
        let mut open = 0;
        let counted = self
            .forwarder
            .visit_connections(|one| open += usize::from(one.is_open() && !one.is_copied()));
        let counted = counted.and(
            self.forwarder
                .visit_udp_sessions(|one| open += usize::from(one.is_open() && !one.is_copied())),
        );
        if open > 0 {
            info!(
                "{open} connections and sessions stay in the kernel; a balancer that starts here again looks after them"
            );
            return;
        }
        if let Err(error) = ended.and(counted).and_then(|()| self.forwarder.detach()) {
            warn!("cannot end forwarding in the kernel: {error}");
        }
    }
}
