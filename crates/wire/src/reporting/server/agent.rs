//! Broker's state of one registration: what an agent has said, and what it is told.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::load::{LoadValue, Location};
use evenkeel_core::member::{Member, Reason};
use evenkeel_core::time::Instant;

use super::outcome::{Outcome, Untaken};
use super::settings::{FIRST_RETRY, LAST_RETRY, Peer, Settings};
use crate::reporting::directory::Directory;
use crate::reporting::message::{
    Control, MAX_INTERVAL, Registration, Server, ServerControl, ServerState, Update,
};
use crate::window::Window;

/// Agent of one registration.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) registration: Registration,
    pub(super) nonce: u64,
    /// Time at which the cookie was made with which the agent registered.
    pub(super) cookie: Instant,
    /// Address of the agent, as far as it is proved.
    pub(super) peer: Peer,
    /// The key that it used last.
    pub(super) key: u16,
    pub(super) received: Window,
    pub(super) registered_at: Instant,
    pub(super) heard_at: Instant,
    /// The number of the last measurement, and when it was made.
    pub(super) measurement: Option<(u32, Instant)>,
    pub(super) stopped: bool,
    pub(super) location: Option<Arc<Location>>,
    pub(super) servers: Vec<Reported>,
    pub(super) out: Out,
}

/// A server of an agent.
#[derive(Clone, Debug, Default)]
pub(super) struct Reported {
    pub(super) state: ServerState,
    pub(super) members: Vec<Member>,
}

/// State of what an agent is told.
#[derive(Debug)]
pub(super) struct Out {
    /// Control that the agent was told last.
    pub(super) control: Control,
    /// Number of Controls that the agent was sent.
    pub(super) sent: u64,
    /// Number of the first Control that said what `control` says.
    pub(super) news: u64,
    /// Number of the last Control that the agent has confirmed.
    pub(super) confirmed: u64,
    pub(super) sent_at: Instant,
    /// Number of times that the news were sent.
    pub(super) tries: u32,
    /// True if somebody wants to know how the agent is.
    pub(super) asked: bool,
}

/// An agent as others see it.
#[derive(Clone, Debug)]
pub struct AgentView<'a> {
    /// The number of its registration.
    pub identifier: u64,
    /// Registration of the agent.
    pub registration: &'a Registration,
    /// Address of the agent.
    pub address: SocketAddr,
    /// The key that it used last.
    pub key: u16,
    /// True if the agent has signed off.
    pub stopped: bool,
    /// Time at which the agent registered.
    pub registered_at: Instant,
    /// Time at which the agent's last message came.
    pub heard_at: Instant,
    /// Time at which the loads that the agent reported last were measured.
    pub measured_at: Option<Instant>,
    /// The sequence number of its last message.
    pub sequence: u64,
    /// Messages of it that never came.
    pub lost: u64,
    /// True if the agent has confirmed what it was told last.
    pub confirmed: bool,
    /// True if some member is at the agent's location.
    pub location_known: bool,
    pub(super) servers: &'a [Reported],
    pub(super) control: &'a Control,
}

/// A server of an agent as others see it.
#[derive(Clone, Copy, Debug)]
pub struct ServerView<'a> {
    /// Server as it was registered.
    pub server: &'a Server,
    /// State of the server, as the agent says.
    pub state: ServerState,
    /// The members that it is; none, if there is no such group or member.
    pub members: &'a [Member],
    /// True if the server is under a load alert, as far as the agent was told.
    pub alert: bool,
}

impl<'a> AgentView<'a> {
    /// Returns the agent's servers, in the order of the registration.
    pub fn list_servers(&self) -> impl Iterator<Item = ServerView<'a>> {
        let reported = self.servers.iter().zip(&self.control.servers);
        let servers = self.registration.servers().iter().zip(reported);
        servers.map(|(server, (reported, control))| ServerView {
            server,
            state: reported.state,
            members: &reported.members,
            alert: control.alert,
        })
    }
}

impl Agent {
    /// Finds its location and members.
    pub(super) fn resolve_members(&mut self, directory: &Directory) {
        self.location = directory
            .find_location(self.registration.location())
            .cloned();
        let source = self.peer.address.ip();
        for (reported, server) in self.servers.iter_mut().zip(self.registration.servers()) {
            reported.members = directory.find_members(server, source);
        }
    }

    /// Moves the agent to another address, which it has proved.
    pub(super) fn move_to(&mut self, peer: Peer, token: u64, directory: &Directory) {
        self.peer = peer;
        self.out.control.token = token;
        self.resolve_members(directory);
    }

    /// Takes in the loads of an Update: each that can be a load and for which its location
    /// has room. Answers one that was not taken.
    pub(super) fn report_loads(&mut self, update: &Update, now: Instant) -> Option<Untaken> {
        // The same measurement comes again in answer to a Query. It must not count twice:
        // what requests add to a load is estimated from one report to the next.
        let is_known = self
            .measurement
            .is_some_and(|(number, _)| number == update.measurement);
        if update.measurement == 0 || is_known || update.age > MAX_INTERVAL {
            return None;
        }
        let age = u64::try_from(update.age.as_nanos()).unwrap_or(u64::MAX);
        let at = Instant::from_nanos(now.as_nanos().saturating_sub(age));
        // Once there is one, the agent is told, and its answer brings the loads again.
        let location = self.location.as_ref()?;
        self.measurement = Some((update.measurement, at));
        let mut untaken = None;
        for &(load, value) in &update.loads {
            let stored = match LoadValue::new(value.into()) {
                Ok(value) => location
                    .report_load(load, value, at)
                    .map_err(|_| Outcome::TooManyLoads),
                Err(_) => Err(Outcome::Load),
            };
            if let Err(why) = stored {
                untaken.get_or_insert_with(|| Untaken {
                    location: self.registration.location().to_owned(),
                    load,
                    outcome: why,
                });
            }
        }
        untaken
    }

    /// Works out what the agent is to be told now.
    pub(super) fn refresh_control(&mut self, settings: &Settings) {
        let out = &mut self.out;
        let control = &mut out.control;
        let mut is_news = false;
        let mut set = |is_new: bool| is_news |= is_new;
        for (control, reported) in control.servers.iter_mut().zip(&self.servers) {
            let is = ServerControl {
                alert: reported.members.iter().any(is_alerted),
                unknown: reported.members.is_empty(),
            };
            set(std::mem::replace(control, is) != is);
        }
        let unknown = self.location.is_none();
        set(std::mem::replace(&mut control.location_unknown, unknown) != unknown);
        set(std::mem::replace(&mut control.interval, settings.interval) != settings.interval);
        set(std::mem::replace(&mut control.lease, settings.lease) != settings.lease);
        let silence = settings.silence_limit();
        set(std::mem::replace(&mut control.silence, silence) != silence);
        if is_news {
            out.news = out.sent + 1;
            out.tries = 0;
        }
    }

    /// Returns true if it is time for a Query.
    pub(super) fn is_due(&self, settings: &Settings, now: Instant) -> bool {
        let out = &self.out;
        let wait = match out.is_confirmed() {
            _ if out.asked => Duration::ZERO,
            false if out.tries == 0 => Duration::ZERO,
            false => {
                let wait = FIRST_RETRY * (1 << (out.tries - 1).min(8));
                wait.min(LAST_RETRY.max(settings.interval))
            }
            // A lease is renewed at each interval, so that it survives losses.
            true if out.control.servers.iter().any(|server| server.alert) => settings.interval,
            true => settings.keepalive,
        };
        now.since(out.sent_at) >= wait.min(settings.keepalive)
    }

    /// Returns true if nothing is to be kept of the agent. An agent that has signed off is
    /// remembered for as long as there are members that get no clients because of it.
    pub(super) fn is_over(&self, now: Instant, forget: Duration) -> bool {
        let is_needed = self.stopped && self.servers.iter().any(|s| !s.members.is_empty());
        !is_needed && now.since(self.heard_at) > forget
    }
}

/// Returns true if a member should send its clients back.
fn is_alerted(member: &Member) -> bool {
    member.slot.has_reason(Reason::Shedding)
}

impl Out {
    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed >= self.news
    }
}
