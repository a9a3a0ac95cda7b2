//! Sessions of UDP rules in the kernel, and the clients whose sessions the proxy has.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kernel::bpf::BpfError;
use evenkeel_kernel::forward::{
    self as kernel, Forwarder, LONG_REST, NatPorts, UdpClient, UdpEnd, UdpListener, UdpSession,
};
use evenkeel_net::clock::monotonic_nanos;
use evenkeel_proxy::udp::client_sessions::{ClientSessions, FollowedSessions, SessionKey};

use self::kernel_ids::{GroupsOfListeners, LookUp};
use crate::copies::Copies;
use crate::failures::{EntryErrors, EntryKind};
use crate::nat::Nat;
use crate::plan::{PlannedRule, UdpTerms};

mod kernel_ids;

/// Time after which the proxy has begun a session with a datagram that the kernel has left to the proxy, or begins none.
const BEGINS: Duration = Duration::from_secs(1);

/// Time for answers under way in a session of a rule that is gone.
const ANSWERS: Duration = Duration::from_secs(3);

/// Time for which the connection ids of QUIC of such a session are known: the proxy asks for them when the client sends again.
const IDS: Duration = Duration::from_secs(30);

/// Time beyond `idle_timeout` after which a copy is removed whose sender is gone: the last datagram that a copy knows of may
/// be two rounds old.
const COPY_LINGER: Duration = Duration::from_secs(30);

/// Returns the listening addresses of a rule.
pub(crate) fn list_listeners(
    rule: &PlannedRule,
    terms: UdpTerms,
    group: u32,
    nat: Option<NatPorts>,
) -> impl Iterator<Item = UdpListener> {
    let answer = terms.expects_answer.then_some(terms.answer_timeout);
    rule.listeners.iter().map(move |address| UdpListener {
        address: *address,
        group,
        retries: rule.retries > 0,
        nat,
        is_direct: rule.return_path.is_direct(),
        idle: rule.idle,
        answer,
        is_quic: terms.is_quic,
        is_single: terms.is_single,
        is_limited: rule.is_limited,
    })
}

/// Limits of the sessions of a rule.
#[derive(Clone, Copy, Debug)]
struct Limits {
    idle: Duration,
    terms: UdpTerms,
}

/// State of a session at a moment.
#[derive(Clone, Copy, Debug)]
struct State {
    is_open: bool,
    is_answered: bool,
    is_copied: bool,
    is_quic: bool,
    is_single: bool,
    leaves: bool,
    /// Time since the last datagram.
    silence: Duration,
    /// Time since the first datagram.
    age: Duration,
}

impl State {
    fn of_session(session: &UdpSession, now_ns: u64) -> Self {
        State {
            is_open: session.is_open(),
            is_answered: session.is_answered(),
            is_copied: session.is_copied(),
            is_quic: session.is_quic(),
            is_single: session.is_single(),
            leaves: session.leaves(),
            silence: session.find_silence(now_ns),
            age: session.find_age(now_ns),
        }
    }
}

/// Returns the reason for which a session is removed; `None` if the session stays. A session that has ended stays for
/// `linger`; a rule that is gone has no `limits`.
fn find_end(state: State, limits: Option<Limits>, linger: Duration) -> Option<UdpEnd> {
    let silence = state.silence;
    if !state.is_open {
        let rests_long = state.is_single && !state.is_answered;
        let linger = if rests_long { LONG_REST } else { linger };
        return (silence > linger).then_some(UdpEnd::Idle);
    }
    let Some(Limits { idle, terms }) = limits else {
        let limit = if state.is_quic { IDS } else { ANSWERS };
        return (silence > limit).then_some(UdpEnd::Idle);
    };
    if state.is_copied {
        return (silence > idle.saturating_add(COPY_LINGER)).then_some(UdpEnd::Idle);
    }
    let is_unanswered = terms.expects_answer && !state.is_answered;
    let end = if is_unanswered {
        UdpEnd::Silent
    } else {
        UdpEnd::Idle
    };
    let is_over = if state.leaves {
        silence > terms.answer_timeout
    } else if is_unanswered {
        state.age > terms.answer_timeout
    } else {
        silence > idle
    };
    is_over.then_some(end)
}

/// Sessions of UDP rules.
#[derive(Debug)]
pub(crate) struct Sessions {
    followed: FollowedSessions,
    /// Clients whose sessions the proxy has.
    kept: HashSet<UdpClient>,
    listeners: Option<Vec<UdpListener>>,
    /// Groups of the listeners, and of those whose sessions are in the table.
    groups: GroupsOfListeners,
    /// True if the kernel has refused to write or remove a listener.
    lacks_listeners: bool,
    /// Number of sessions in the table.
    count: usize,
    /// Number of connection ids of QUIC in the table.
    connection_ids: usize,
    /// True if the tables are empty and stay so: nobody begins sessions in the kernel.
    is_unused: bool,
}

impl Sessions {
    /// Follows the sessions of the proxy, which asks for the connection ids of the kernel from now on.
    pub(crate) fn new(of_proxy: &ClientSessions, forwarder: &Forwarder) -> Result<Self, BpfError> {
        let groups = GroupsOfListeners::default();
        let look_up = LookUp::new(forwarder.learnt_ids()?, groups.clone());
        Ok(Sessions {
            followed: of_proxy.follow(Arc::new(look_up)),
            kept: HashSet::new(),
            listeners: None,
            groups,
            lacks_listeners: false,
            count: 0,
            connection_ids: 0,
            is_unused: false,
        })
    }

    /// Returns the number of sessions in the table, as of the last look.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of connection ids of QUIC in the table, as of the last look.
    pub(crate) fn count_connection_ids(&self) -> usize {
        self.connection_ids
    }

    /// Tells the kernel which clients have sessions in the proxy, and the connection ids of these sessions.
    pub(crate) fn follow_process(
        &mut self,
        forwarder: &Forwarder,
        errors: &mut EntryErrors,
    ) -> Result<(), BpfError> {
        let changes = self.followed.take_changes();
        for change in changes.ids {
            let (listener, id) = (change.key.listener, change.key.id);
            if listener.ip().is_unspecified() {
                // The kernel forwards for single addresses only.
                continue;
            }
            // Without room, clients with the id whose address changes get a member by the strategy.
            let shared = forwarder.share_connection_id(listener, id.as_bytes(), change.member);
            errors.take(EntryKind::ConnectionId, shared)?;
        }
        for change in changes.sessions {
            let SessionKey { client, listener } = change.key;
            let client = UdpClient { client, listener };
            if change.has_session {
                // Without the entry the kernel may get the session.
                let kept = forwarder.keep_client(&client, monotonic_nanos());
                errors.take(EntryKind::Session, kept)?;
                self.kept.insert(client);
            } else {
                // A look at the table removes the entry if the kernel refuses now.
                errors.take(EntryKind::Session, forwarder.release_client(&client))?;
                self.kept.remove(&client);
            }
        }
        Ok(())
    }

    /// True if the kernel has other listeners.
    pub(crate) fn has_other_listeners(&self, listeners: &[UdpListener]) -> bool {
        self.listeners.as_deref() != Some(listeners)
    }

    /// Writes the listeners.
    pub(crate) fn set_listeners(
        &mut self,
        forwarder: &Forwarder,
        listeners: Vec<UdpListener>,
    ) -> Result<(), BpfError> {
        let written = forwarder.set_udp_listeners(&listeners);
        self.groups.add_listeners(&listeners);
        // Sessions may have begun since the last look, and begin still if the kernel has refused to remove an address.
        self.is_unused = false;
        self.lacks_listeners = written.is_err();
        self.listeners = Some(listeners);
        written
    }

    /// Removes sessions that are over, and calls `note` with each open one. Lets the kernel have the clients again with whose
    /// datagrams the proxy has begun no session.
    pub(crate) fn sweep(
        &mut self,
        forwarder: &Forwarder,
        rules: &[PlannedRule],
        (nat, copies, errors): (&mut Nat, &mut Option<Copies>, &mut EntryErrors),
        mut note: impl FnMut(&UdpSession),
    ) -> Result<(), BpfError> {
        let no_rule = rules.iter().all(|rule| rule.udp.is_none()) && copies.is_none();
        let is_closed = !self.lacks_listeners && self.listeners.as_ref().is_some_and(Vec::is_empty);
        let may_rest = no_rule && is_closed && self.kept.is_empty();
        if may_rest && self.is_unused {
            // A look at empty tables takes a millisecond and more.
            return Ok(());
        }
        let now_ns = monotonic_nanos();
        let mut limits: HashMap<SocketAddr, Limits> = HashMap::new();
        for rule in rules {
            let Some(terms) = rule.udp else { continue };
            let idle = rule.idle;
            let limit = Limits { idle, terms };
            limits.extend(rule.listeners.iter().map(|listener| (*listener, limit)));
        }
        let linger = kernel::choose_linger(self.count, forwarder.read_udp_capacity()?);
        let (mut over, mut count) = (Vec::new(), 0);
        let mut used: HashSet<_> = limits.keys().copied().collect();
        forwarder.visit_udp_sessions(|session| {
            count += 1;
            if session.is_quic() {
                used.insert(session.of.listener);
            }
            nat.note_seat(session.seat, session.holds_port());
            let linger = nat.choose_linger_of(session.seat, session.holds_port(), linger);
            let limits = limits.get(&session.of.listener).copied();
            let is_over = copies
                .as_mut()
                .is_some_and(|one| one.is_session_over(&session));
            let end = find_end(State::of_session(&session, now_ns), limits, linger);
            match end.or(is_over.then_some(UdpEnd::Idle)) {
                Some(end) => over.push((session, end)),
                None if session.is_open() => {
                    note(&session);
                    if let Some(copies) = copies {
                        copies.note_session(&session, now_ns);
                    }
                }
                None => {}
            }
        })?;
        for (session, end) in over {
            let removed = forwarder.remove_udp_session(&session, end);
            if errors.take(EntryKind::Session, removed)? == Some(true) {
                count -= usize::from(!session.rests_at_end());
            } else if session.is_open() {
                note(&session);
            }
        }
        self.count = count;
        self.groups.retain_listeners(&used);
        // Sessions of a rule that is gone may have left ids.
        let is_quic = |rule: &PlannedRule| rule.udp.is_some_and(|terms| terms.is_quic);
        if self.connection_ids > 0 || rules.iter().any(is_quic) {
            let left = errors.take(EntryKind::ConnectionId, forwarder.sweep_connection_ids())?;
            self.connection_ids = left.unwrap_or(self.connection_ids);
        }
        let kept = self.release_clients(forwarder, errors, now_ns)?;
        self.is_unused = may_rest && self.count + self.connection_ids + kept == 0;
        Ok(())
    }

    /// Lets the kernel have clients again. Returns the number of clients that were left to the proxy.
    fn release_clients(
        &self,
        forwarder: &Forwarder,
        errors: &mut EntryErrors,
        now_ns: u64,
    ) -> Result<usize, BpfError> {
        let (mut free, mut kept) = (Vec::new(), 0);
        forwarder.visit_kept_clients(|client, since_ns| {
            kept += 1;
            let age = Duration::from_nanos(now_ns.saturating_sub(since_ns));
            if age > BEGINS && !self.kept.contains(&client) {
                free.push(client);
            }
        })?;
        for client in free {
            errors.take(EntryKind::Session, forwarder.release_client(&client))?;
        }
        Ok(kept)
    }
}

#[cfg(test)]
mod tests;
