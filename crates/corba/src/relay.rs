//! The relay: requests to groups whose granularity is per request are passed on to a member
//! that the group's strategy picks for each of them (Balasubramanian, Schmidt, Dowdy and
//! Othman, "Evaluating the Performance of Middleware Load Balancing Strategies", 2004,
//! section 2).
//!
//! Requests are passed on unread: the request id and the object key are replaced, and the
//! arguments are copied as they stand, in the byte order in which they came. Many requests
//! of many clients are under way on few connections to each member. Where it says *sent
//! again* below, that is to another member if there is one, at most
//! [`Settings::attempts`] times in all, and only where the request was certainly not
//! carried out:
//!
//! - the member cannot be connected to, or breaks the connection before the request was
//!   written, or sends CloseConnection before it has answered: sent again;
//! - it answers TRANSIENT with COMPLETED_NO, or a forward to the group itself, as a member
//!   that sheds load does: sent again. When there is nobody else, the client gets the
//!   TRANSIENT: the forward would have it go in circles;
//! - it forwards to elsewhere: followed here, and remembered until that place fails. The
//!   client never sees the address of a member, and so stays with the balancer;
//! - it breaks the connection later: the client gets COMM_FAILURE with COMPLETED_MAYBE;
//! - it does not answer in time: the client gets TIMEOUT with COMPLETED_MAYBE, and the
//!   member a CancelRequest.
//!
//! What a member may not be told is left out: a client's offer to take requests over its
//! own connection (BiDirIIOP) would be taken for one about the relay's connection.

mod counters;
mod endpoint;
mod job;
mod member;
mod reply;
mod settings;
mod state;
mod upstream;

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::group;
use evenkeel_core::time::Instant;
use evenkeel_giop::context::{CODE_SETS, CodeSets, ISO_8859_1, UCS_2, UTF_8, UTF_16};
use evenkeel_giop::exception::{Kind, SystemException};
use evenkeel_giop::message::{Content, Message, Request};
use evenkeel_giop::server::ReplyOutput;
use evenkeel_giop::wire::Buffers;
use evenkeel_net::Clock;
use tokio::time::MissedTickBehavior;

use crate::custom::{self, Decision};
use crate::directory::Entry;
use crate::locator;
use crate::reply_to::ReplyTo;
pub use counters::Counters;
use counters::count;
use job::{Job, Kept, Tried};
pub use settings::Settings;
use state::Member;
pub use state::Relay;

/// Interval at which time limits are checked.
const TICK: Duration = Duration::from_millis(100);

/// State that the relay keeps for a client's connection. When it is dropped, members are told that
/// nobody waits for the outstanding answers.
#[derive(Debug)]
pub struct Client {
    relay: Rc<Relay>,
    id: u64,
    address: IpAddr,
    /// The code sets that the client has settled on. What its bytes mean must not change on
    /// the way, so it shares connections only with clients of the same ones.
    code_sets: Option<CodeSets>,
    /// Each of its requests that is under way has one, too.
    jobs: Rc<()>,
}

impl Relay {
    /// A relay without connections. Must be called within a `LocalSet`, which looks after
    /// time limits as long as the relay exists.
    pub fn start(
        settings: Settings,
        counters: Arc<Counters>,
        clock: Clock,
        rng: fastrand::Rng,
    ) -> Rc<Self> {
        let relay = Rc::new_cyclic(|myself| Relay {
            counters,
            clock,
            rng: RefCell::new(rng),
            buffers: Buffers::new(settings.max_held),
            settings,
            kept: Rc::default(),
            members: RefCell::default(),
            pools: RefCell::default(),
            next_client: Cell::new(0),
            myself: Weak::clone(myself),
        });
        let ticking = Rc::downgrade(&relay);
        tokio::task::spawn_local(async move {
            let mut ticks = tokio::time::interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                match ticking.upgrade() {
                    Some(relay) => relay.tick(),
                    None => break,
                }
            }
        });
        relay
    }

    /// A client has connected from `address`.
    pub fn add_client(self: &Rc<Self>, address: IpAddr) -> Client {
        let id = self.next_client.get();
        self.next_client.set(id.wrapping_add(1));
        Client {
            relay: Rc::clone(self),
            id,
            address,
            code_sets: None,
            jobs: Rc::default(),
        }
    }

    /// Sends a request to a member that the group's strategy picks.
    fn dispatch(&self, mut job: Job, message: &Message<'_>, request: &Request<'_>, now: Instant) {
        match self.pick(&mut job, now) {
            Some(member) => self.send(job, &member, message, request),
            None => self.refuse_for_nobody(job),
        }
    }

    /// Binds a request to a member that was not tried yet.
    fn pick(&self, job: &mut Job, now: Instant) -> Option<Rc<Member>> {
        let entry = Arc::clone(&job.entry);
        let group = entry.handle.current.load();
        loop {
            let request = group::Request {
                client: Some(job.address),
                excluded_members: job.tried.ids(),
                ..group::Request::at_time(now)
            };
            let ticket = group.pick(&request, &mut self.rng.borrow_mut()).ok()?;
            let index = ticket.member_index();
            let member = group.members().get(index)?;
            if let Some(reference) = entry.member(&group, index) {
                job.bound = Some((member.id, ticket));
                return Some(self.member_for(member.id, reference));
            }
            // It has just joined or left, and is passed over.
            if !job.tried.add(member.id) {
                return None;
            }
        }
    }

    /// Sends a request to the member that a custom strategy has chosen, or else to one that
    /// the group's strategy picks.
    fn dispatch_to(&self, mut job: Job, decision: &Decision) {
        let now = self.clock.now();
        let group = &decision.group;
        let chosen = group.members().get(decision.index);
        let bound = chosen.zip(group.bind(decision.index, now));
        let member = match bound {
            Some((member, ticket)) => {
                job.bound = Some((member.id, ticket));
                Some(self.member_for(member.id, &decision.reference))
            }
            // It is at its limit.
            None => self.pick(&mut job, now),
        };
        match member {
            Some(member) => self.resend(job, &member),
            None => self.refuse_for_nobody(job),
        }
    }

    /// Sends a request over one of the connections to `member`.
    fn send(
        &self,
        mut job: Job,
        member: &Rc<Member>,
        message: &Message<'_>,
        request: &Request<'_>,
    ) {
        let Some(route) = member.route(self, job.reply_to.version, job.code_sets) else {
            job.finish(group::Outcome::Failure, self.clock.now());
            return self.refuse_for_nobody(job);
        };
        let Some(upstream) = route.pool.connection(self, &route.endpoint) else {
            return self.refuse_for_nobody(job);
        };
        upstream.send(self, job, &route, message, request);
    }

    /// Sends a request again that was not carried out, or gives it up.
    fn send_again(&self, mut job: Job, now: Instant) {
        match self.another(&mut job, now) {
            Some(member) => self.resend(job, &member),
            None => self.refuse_for_nobody(job),
        }
    }

    /// Binds a request to a further member, if it was not sent too often.
    fn another(&self, job: &mut Job, now: Instant) -> Option<Rc<Member>> {
        job.attempts = job.attempts.saturating_add(1);
        if job.attempts >= self.settings.attempts || job.is_unwanted() {
            return None;
        }
        count(&self.counters.again);
        self.pick(job, now)
    }

    /// Sends a request of which only the message is left to `member`, to which it is bound.
    fn resend(&self, mut job: Job, member: &Rc<Member>) {
        // The job moves on while its message is read.
        let bytes = std::mem::take(&mut job.message);
        let joints = std::mem::take(&mut job.joints);
        let message = Message::from_whole(&bytes).map(|message| Message {
            joints: &joints,
            ..message
        });
        match message.and_then(|message| Ok((message, message.read_content()?))) {
            Ok((message, Content::Request(request))) => {
                job.message = self.copy(&bytes);
                job.joints = joints.clone();
                self.send(job, member, &message, &request);
            }
            _ => self.refuse_for_nobody(job),
        }
        self.buffers.give_back(bytes);
    }

    /// Answers a request that no member can take.
    fn refuse_for_nobody(&self, job: Job) {
        let exception = locator::no_member_exception(&job.entry);
        self.refuse(job, exception);
    }

    /// Answers a request with an exception.
    fn refuse(&self, mut job: Job, exception: SystemException) {
        count(&self.counters.failed);
        if let Some(later) = job.later.take() {
            later.write(|out| job.reply_to.write_exception(exception, out));
        }
        self.done(job);
    }

    /// A request has come to its end.
    fn done(&self, job: Job) {
        self.buffers.give_back(job.message);
    }

    fn copy(&self, bytes: &[u8]) -> Vec<u8> {
        let mut copy = self.buffers.take();
        copy.extend_from_slice(bytes);
        copy
    }

    fn tick(&self) {
        let now = self.clock.now();
        let pools: Vec<_> = self.pools.borrow().values().cloned().collect();
        for pool in pools {
            pool.check_time_limits(self, now);
        }
        // Whom only the relay knows has left.
        let mut members = self.members.borrow_mut();
        members.retain(|_, member| member.is_known());
        self.pools.borrow_mut().retain(|_, pool| pool.is_used());
    }

    /// Members need not go on with the requests of `client`, or with that one request.
    fn cancel(&self, client: u64, request_id: Option<u32>) {
        let pools: Vec<_> = self.pools.borrow().values().cloned().collect();
        for pool in pools {
            pool.cancel(self, client, request_id);
        }
    }
}

/// Returns true if a group's reference offers these code sets, or if clients fall back to them.
/// Each pair has connections of its own, so the number of pairs must be limited.
fn are_offered(sets: &CodeSets) -> bool {
    [0, ISO_8859_1, UTF_8].contains(&sets.chars) && [0, UCS_2, UTF_16].contains(&sets.wchars)
}

impl Client {
    /// Passes a request on to a member of `entry` that its strategy picks. The answer comes
    /// over `out`, later.
    pub fn relay_request(
        &mut self,
        entry: &Arc<Entry>,
        message: Message<'_>,
        request: &Request<'_>,
        out: &ReplyOutput<'_>,
    ) {
        let relay = &self.relay;
        count(&relay.counters.requests);
        let mut settled = true;
        if self.code_sets.is_none()
            && let Some(data) = request.contexts.get(CODE_SETS)
        {
            self.code_sets = CodeSets::decode(data).ok().filter(are_offered);
            settled = self.code_sets.is_some();
        }
        let now = relay.clock.now();
        let job = self.new_job(entry, message, request, out, now);
        if !settled {
            return relay.refuse(job, SystemException::new(Kind::CodesetIncompatible));
        }
        if relay.kept.get() > relay.settings.max_held {
            return relay.refuse_for_nobody(job);
        }
        let Some(custom) = &entry.custom else {
            return relay.dispatch(job, &message, request, now);
        };
        let (relay, entry, custom) = (Rc::clone(relay), Arc::clone(entry), Arc::clone(custom));
        let rng = relay.rng.borrow_mut().fork();
        let mut client = locator::Client::new(self.address, rng);
        tokio::task::spawn_local(async move {
            match custom::decide_by_custom(&entry, &custom, &mut client).await {
                Ok(decision) => relay.dispatch_to(job, &decision),
                Err(_) => relay.refuse_for_nobody(job),
            }
        });
    }

    /// Makes the job of a request.
    fn new_job(
        &self,
        entry: &Arc<Entry>,
        message: Message<'_>,
        request: &Request<'_>,
        out: &ReplyOutput<'_>,
        now: Instant,
    ) -> Job {
        let relay = &self.relay;
        let header = message.header;
        Job {
            entry: Arc::clone(entry),
            client: self.id,
            address: self.address,
            code_sets: self.code_sets,
            reply_to: ReplyTo {
                request_id: request.request_id,
                version: header.version,
                endian: header.endian,
                locates: false,
            },
            later: request.response_expected().then(|| out.defer_answer()),
            message: relay.copy(message.bytes),
            joints: message.joints.to_vec(),
            _kept: Kept::new(&relay.kept, message.bytes.len()),
            _of_client: Rc::clone(&self.jobs),
            bound: None,
            tried: Tried::default(),
            attempts: 0,
            hops: 0,
            deadline: now.after(relay.settings.request_timeout),
        }
    }

    /// The client does not wait for the answer to this request any more.
    pub fn cancel(&self, request_id: u32) {
        self.leave(Some(request_id));
    }

    /// Looking for its requests among those of all is for those who have some: others come
    /// and go, and may send any number of cancels.
    fn leave(&self, request_id: Option<u32>) {
        if Rc::strong_count(&self.jobs) > 1 {
            self.relay.cancel(self.id, request_id);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.leave(None);
    }
}

#[cfg(test)]
mod tests;
