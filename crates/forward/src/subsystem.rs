//! The thread that has the program in the kernel, and the subsystem that tells it the rules.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_config::KernelForwarding;
use evenkeel_manager::copy_queues::CopyQueues;
use evenkeel_manager::endpoint::Endpoint;
use evenkeel_manager::exposition::{Exposition, Type};
use evenkeel_manager::handover::Handover;
use evenkeel_manager::service::Service;
use evenkeel_manager::snapshot::Snapshot;
use evenkeel_manager::status::Status;
use evenkeel_manager::subsystem::{Commit, PrepareError, PrepareErrors, Subsystem};
use evenkeel_net::Clock;
use evenkeel_proxy::access::AccessLog;
use evenkeel_proxy::udp::client_sessions::ClientSessions;
use parking_lot::{Condvar, Mutex};
use tracing::{info, warn};

use crate::copy_status;
use crate::engine::Engine;
use crate::plan::{PlannedRule, plan_rules};
use crate::status::{ForwardStatus, ForwardedMember, ForwardedRule};

/// Time between two rounds: terms in the kernel are this old at most.
const ROUND: Duration = Duration::from_millis(50);

/// Time between two looks at the counts in the kernel.
const LOOK: Duration = Duration::from_millis(500);

/// Time after which the program is loaded again if that has failed.
const RETRY: Duration = Duration::from_secs(2);

/// Longest time for which the end of the process waits for the thread.
const PATIENCE: Duration = Duration::from_secs(5);

/// Forwarding of TCP connections and sessions of UDP in the kernel. Clones are the same.
#[derive(Clone, Debug)]
pub struct Forwarding {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    clock: Clock,
    state: Mutex<State>,
    changed: Condvar,
    status: Mutex<ForwardStatus>,
    /// Clients whose sessions of UDP the proxy has.
    sessions: ClientSessions,
    /// Queues of copies of connections, for the fleet.
    copies: CopyQueues,
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<PlannedRule>,
    /// Interfaces for native XDP.
    xdp_interfaces: Vec<String>,
    /// True if connections are copied to the fleet.
    copies_to_fleet: bool,
    /// True if requests within connections are learnt from.
    learns_from_requests: bool,
    mode: Mode,
    /// True while the thread runs.
    is_running: bool,
    /// True while the thread has the program.
    has_program: bool,
    log: Option<AccessLog>,
    /// Number of changes of `log`.
    log_changes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    /// The thread writes the terms.
    #[default]
    Serving,
    /// Another process does.
    HandedOver,
    /// The thread ends.
    Ended,
}

impl Forwarding {
    /// Returns a subsystem without rules. `clock` is that of the groups, and `sessions` has the clients whose sessions of UDP
    /// the proxy has.
    pub fn new(clock: Clock, sessions: ClientSessions) -> Self {
        Forwarding {
            inner: Arc::new(Inner {
                clock,
                state: Mutex::default(),
                changed: Condvar::new(),
                status: Mutex::default(),
                sessions,
                copies: CopyQueues::default(),
            }),
        }
    }

    /// Returns the queues of copies of connections, for the fleet.
    pub fn copy_queues(&self) -> CopyQueues {
        self.inner.copies.clone()
    }

    /// Sets the access log that gets records of the kernel's connections from now on.
    pub fn set_access_log(&self, log: Option<&AccessLog>) {
        let mut state = self.inner.state.lock();
        state.log = log.map(AccessLog::clone_for_worker);
        state.log_changes += 1;
        self.inner.changed.notify_all();
    }

    fn start_thread(&self) -> Result<(), PrepareErrors> {
        let mut state = self.inner.state.lock();
        if state.is_running {
            return Ok(());
        }
        let inner = Arc::clone(&self.inner);
        let whose = "rule";
        thread::Builder::new()
            .name("forward".into())
            .spawn(move || Thread::new(inner).run())
            .map_err(|error| vec![PrepareError::Thread { whose, error }])?;
        state.is_running = true;
        Ok(())
    }

    fn set_mode(&self, mode: Mode) {
        let mut state = self.inner.state.lock();
        state.mode = mode;
        self.inner.changed.notify_all();
        let end = Instant::now() + PATIENCE;
        while state.is_running && (state.has_program || mode == Mode::Ended) {
            if self.inner.changed.wait_until(&mut state, end).timed_out() {
                warn!("forwarding in the kernel does not end in time");
                return;
            }
        }
    }
}

struct Thread {
    inner: Arc<Inner>,
    engine: Option<Engine>,
    /// Time of the last attempt to load the program.
    tried: Option<Instant>,
    looked: Option<Instant>,
    reason: Option<String>,
    /// Number of changes of the access log that the program has seen.
    log_changes: Option<u64>,
}

impl Thread {
    fn new(inner: Arc<Inner>) -> Self {
        Thread {
            inner,
            engine: None,
            tried: None,
            looked: None,
            reason: None,
            log_changes: None,
        }
    }

    fn run(mut self) {
        loop {
            let (rules, mode) = self.wait();
            match mode {
                Mode::Serving => self.serve(&rules),
                Mode::HandedOver => self.engine = None,
                Mode::Ended => {
                    if let Some(engine) = self.engine.take() {
                        engine.stop();
                    }
                }
            }
            self.note_program();
            if mode == Mode::Ended {
                return;
            }
        }
    }

    fn note_program(&self) {
        let mut state = self.inner.state.lock();
        if state.has_program != self.engine.is_some() {
            state.has_program = self.engine.is_some();
            self.inner.changed.notify_all();
        }
    }

    /// Waits for the next round, or until there is something to do.
    fn wait(&self) -> (Vec<PlannedRule>, Mode) {
        let mut state = self.inner.state.lock();
        if state.mode != Mode::Ended {
            match (state.mode, &self.engine) {
                (Mode::Serving, None) if !state.rules.is_empty() && self.tried.is_none() => {}
                (Mode::Serving, None) if !state.rules.is_empty() => {
                    self.inner.changed.wait_for(&mut state, RETRY);
                }
                (_, None) => self.inner.changed.wait(&mut state),
                (_, Some(_)) => {
                    self.inner.changed.wait_for(&mut state, ROUND);
                }
            }
        }
        (state.rules.clone(), state.mode)
    }

    fn serve(&mut self, rules: &[PlannedRule]) {
        if self.engine.is_none() && !rules.is_empty() {
            self.tried = Some(Instant::now());
            match Engine::open(self.inner.clock, rules, &self.inner.sessions) {
                Ok(engine) => {
                    self.engine = Some(engine);
                    self.log_changes = None;
                }
                Err(error) => self.fall_back(error),
            }
        }
        self.follow_state();
        if let Some(engine) = &mut self.engine {
            match engine.run_round(rules) {
                Ok(()) => {
                    if self.reason.take().is_some() {
                        info!("the kernel forwards connections now");
                    }
                }
                Err(error) => {
                    // The maps stay, and so do connections.
                    self.engine = None;
                    self.fall_back(error);
                }
            }
        }
        // Without rules the program gets no new connections, and ends with the last one.
        if rules.is_empty()
            && let Some(engine) = self.engine.take_if(|engine| !engine.has_connections())
        {
            engine.stop();
        }
        self.publish(rules);
    }

    /// Gives the program the interfaces for XDP, and the access log, if the log has changed.
    fn follow_state(&mut self) {
        let state = self.inner.state.lock();
        if let Some(engine) = &mut self.engine {
            engine.set_xdp_interfaces(&state.xdp_interfaces);
            engine.set_learning(state.learns_from_requests);
            engine.set_copies(state.copies_to_fleet.then_some(&self.inner.copies));
        }
        if let Some(engine) = &mut self.engine
            && self.log_changes != Some(state.log_changes)
        {
            engine.set_log(state.log.as_ref().map(AccessLog::clone_for_worker));
            self.log_changes = Some(state.log_changes);
        }
    }

    fn fall_back(&mut self, error: String) {
        if self.reason.as_ref() != Some(&error) {
            warn!("the kernel does not forward connections, the proxy serves them: {error}");
            self.reason = Some(error);
        }
    }

    fn publish(&mut self, rules: &[PlannedRule]) {
        let names: Vec<_> = rules.iter().map(|rule| rule.name.to_string()).collect();
        let is_due = self.looked.is_none_or(|looked| looked.elapsed() >= LOOK);
        let mut status = self.inner.status.lock();
        let is_same = status.rules == names && status.active == self.engine.is_some();
        if is_same && !is_due && status.reason == self.reason {
            return;
        }
        *status = ForwardStatus {
            rules: names,
            active: self.engine.is_some(),
            reason: self.reason.clone(),
            ..ForwardStatus::default()
        };
        if let Some(engine) = &self.engine {
            engine.fill_status(&mut status, rules);
        }
        self.looked = Some(Instant::now());
    }
}

/// However the thread ends, nobody waits for it.
impl Drop for Thread {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        (state.is_running, state.has_program) = (false, false);
        self.inner.changed.notify_all();
    }
}

impl Subsystem for Forwarding {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        let rules = plan_rules(next);
        if !rules.is_empty() {
            self.start_thread()?;
        }
        let settings = next.section::<KernelForwarding>();
        let xdp_interfaces = settings.map_or_else(Vec::new, |all| all.xdp_interfaces.clone());
        let copies_to_fleet = settings.is_some_and(|all| all.copy_to_fleet);
        let learns_from_requests = settings.is_some_and(|all| all.learn_from_requests);
        let inner = Arc::clone(&self.inner);
        Ok(Box::new(move || {
            let mut state = inner.state.lock();
            (state.rules, state.xdp_interfaces) = (rules, xdp_interfaces);
            state.copies_to_fleet = copies_to_fleet;
            state.learns_from_requests = learns_from_requests;
            drop(state);
            inner.changed.notify_all();
        }))
    }

    fn stop(&self) {
        // The log's writer ends when nobody has the log.
        self.set_access_log(None);
        self.set_mode(Mode::Ended);
    }

    fn hand_over(&self, _to: &mut Handover) {
        self.set_mode(Mode::HandedOver);
    }

    fn resume(&self) {
        let mut state = self.inner.state.lock();
        state.mode = Mode::Serving;
        self.inner.changed.notify_all();
    }

    fn status(&self, status: &mut Status) {
        let own = self.inner.status.lock();
        status.xdp_interfaces.clone_from(&own.xdp_interfaces);
        status.tc_interfaces.clone_from(&own.tc_interfaces);
        if own.entry_errors.last.is_some() {
            status.forward_errors = Some(own.entry_errors.clone());
        }
        for rule in &mut status.rules {
            if own.rules.contains(&rule.name) {
                let reason = own.reason.as_ref().or(own.proxied.get(&rule.name));
                rule.forward = Some(match reason {
                    None if own.active => "kernel".into(),
                    None => "proxy".into(),
                    Some(reason) => format!("proxy ({reason})"),
                });
            }
        }
    }

    fn metrics(&self, out: &mut Exposition) {
        let status = self.inner.status.lock();
        out.begin_family(
            "evenkeel_forward_active",
            Type::Gauge,
            "1 if the kernel forwards connections of rules with forward = \"kernel\", 0 if the proxy serves all.",
        );
        out.add_sample(&[], f64::from(u8::from(status.active)));
        out.begin_family(
            "evenkeel_forward_packets_total",
            Type::Counter,
            "Packets of TCP and UDP that the program in the kernel has seen, by result.",
        );
        for (result, count) in &status.packets {
            out.add_sample(&[("result", result)], *count as f64);
        }
        out.begin_family(
            "evenkeel_forward_lost_records_total",
            Type::Counter,
            "Connections of the kernel that have ended without a record in the access log.",
        );
        out.add_sample(&[], status.lost_records as f64);
        out.begin_family(
            "evenkeel_forward_entry_errors_total",
            Type::Counter,
            "Errors of the kernel for single entries, which leave everything else alone, by kind of entry.",
        );
        for (entry, count) in &status.entry_errors.counts {
            out.add_sample(&[("entry", entry)], *count as f64);
        }
        write_tables(out, &status);
        copy_status::write_families(out, status.copies.as_ref());
        let mut rule_family = |name, kind, help, read: fn(&ForwardedRule) -> u64| {
            out.begin_family(name, kind, help);
            for rule in &status.rule_counts {
                out.add_sample(&[("rule", &*rule.rule)], read(rule) as f64);
            }
        };
        rule_family(
            "evenkeel_forward_rule_connections",
            Type::Gauge,
            "Connections of a rule that the kernel forwards now.",
            |rule| rule.open,
        );
        rule_family(
            "evenkeel_forward_rule_connections_total",
            Type::Counter,
            "Connections of a rule that have begun in the kernel.",
            |rule| rule.begun,
        );
        rule_family(
            "evenkeel_forward_rule_received_bytes_total",
            Type::Counter,
            "Bytes from clients of a rule in connections of the kernel that have ended.",
            |rule| rule.bytes_in,
        );
        rule_family(
            "evenkeel_forward_rule_sent_bytes_total",
            Type::Counter,
            "Bytes to clients of a rule in connections of the kernel that have ended.",
            |rule| rule.bytes_out,
        );
        rule_family(
            "evenkeel_forward_rule_received_datagrams_total",
            Type::Counter,
            "Datagrams from clients of a UDP rule in sessions of the kernel that have ended.",
            |rule| rule.datagrams_in,
        );
        rule_family(
            "evenkeel_forward_rule_sent_datagrams_total",
            Type::Counter,
            "Datagrams to clients of a UDP rule in sessions of the kernel that have ended.",
            |rule| rule.datagrams_out,
        );
        let mut family = |name, kind, help, read: fn(&ForwardedMember) -> f64| {
            out.begin_family(name, kind, help);
            for member in &status.members {
                let labels = [("group", &*member.group), ("member", &*member.member)];
                out.add_sample(&labels, read(member));
            }
        };
        family(
            "evenkeel_forward_connections",
            Type::Gauge,
            "Connections that the kernel forwards to a member now.",
            |member| member.in_flight as f64,
        );
        family(
            "evenkeel_forward_connections_total",
            Type::Counter,
            "Connections for which the kernel has chosen a member.",
            |member| member.picks as f64,
        );
        family(
            "evenkeel_forward_connects_total",
            Type::Counter,
            "Connections of the kernel that a member has accepted.",
            |member| member.connects as f64,
        );
        family(
            "evenkeel_forward_connect_seconds_total",
            Type::Counter,
            "Time until a member has accepted connections of the kernel.",
            |member| member.connect_seconds,
        );
        family(
            "evenkeel_forward_first_bytes_total",
            Type::Counter,
            "Connections of the kernel with a first byte of a member.",
            |member| member.first_bytes as f64,
        );
        family(
            "evenkeel_forward_first_byte_seconds_total",
            Type::Counter,
            "Time until the first byte of a member, from the beginning of connections of the kernel.",
            |member| member.first_byte_seconds,
        );
        family(
            "evenkeel_forward_requests",
            Type::Gauge,
            "Requests within connections of the kernel that wait for a member's answer.",
            |member| member.requests_under_way.into(),
        );
        family(
            "evenkeel_forward_requests_total",
            Type::Counter,
            "Requests within connections of the kernel that a member has answered.",
            |member| member.requests as f64,
        );
        family(
            "evenkeel_forward_request_seconds_total",
            Type::Counter,
            "Time until a member's answers to requests within connections of the kernel began.",
            |member| member.request_seconds,
        );
        family(
            "evenkeel_forward_refused_total",
            Type::Counter,
            "Connections of the kernel that a member has not accepted.",
            |member| member.refused as f64,
        );
        family(
            "evenkeel_forward_resets_total",
            Type::Counter,
            "Connections of the kernel that a member has reset.",
            |member| member.resets as f64,
        );
        family(
            "evenkeel_forward_received_bytes_total",
            Type::Counter,
            "Bytes from clients in connections of the kernel that have ended.",
            |member| member.bytes_in as f64,
        );
        family(
            "evenkeel_forward_sent_bytes_total",
            Type::Counter,
            "Bytes to clients in connections of the kernel that have ended.",
            |member| member.bytes_out as f64,
        );
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        let this = self.clone();
        vec![Endpoint::with_value(
            "/v1/forward",
            "Forwarding of connections in the kernel",
            move || this.inner.status.lock().clone(),
        )]
    }
}

/// Writes how full the tables of the kernel are.
fn write_tables(out: &mut Exposition, status: &ForwardStatus) {
    let (connections, sessions) = (status.table_size, status.session_table_size);
    let tables = [
        ("connections", status.connections, connections),
        ("sessions", status.sessions, sessions),
        ("connection_ids", status.connection_ids, sessions),
    ];
    out.begin_family(
        "evenkeel_forward_table_entries",
        Type::Gauge,
        "Entries in a table of the kernel, with those that have ended lately.",
    );
    for (table, entries, _) in tables {
        out.add_sample(&[("table", table)], entries as f64);
    }
    out.begin_family(
        "evenkeel_forward_table_size",
        Type::Gauge,
        "Entries that a table of the kernel has room for.",
    );
    for (table, _, size) in tables {
        out.add_sample(&[("table", table)], f64::from(size));
    }
}

impl Service for Forwarding {}
