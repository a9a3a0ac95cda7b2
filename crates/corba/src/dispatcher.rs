//! The dispatcher: takes each message of a client, and passes it to whom it is for.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_core::group::Granularity;
use evenkeel_core::time::Instant;
use evenkeel_giop::exception::{Kind, OMG_MINOR, SystemException};
use evenkeel_giop::message::{Content, GiopError, Message, Request};
use evenkeel_giop::server::{ReplyOutput, Service};
use evenkeel_net::Clock;
use tracing::warn;

use crate::call::{Call, Outcome};
use crate::custom::{self, Custom};
use crate::directory::{Answer, Directory, Entry};
use crate::keys::{Key, Level};
use crate::locator::{self, Client, Decision};
use crate::relay::{self, Relay};
use crate::reply_to::ReplyTo;
use crate::service::raise::too_costly;
use crate::tenure::ServingRight;
use crate::waiting::{WaitQueue, WaitQueues};

/// Carries out the operations of our own objects.
pub trait Objects: 'static {
    /// Carries out an operation of the load manager.
    fn manager(&self, call: Call) -> impl Future<Output = Outcome> + use<Self>;

    /// Carries out an operation of a strategy.
    fn strategy(&self, level: Level<'_>, call: Call) -> impl Future<Output = Outcome> + use<Self>;
}

/// Counters of the dispatcher. They only ever grow.
#[derive(Debug, Default)]
pub struct Counters {
    /// Operations of the load manager.
    pub manager: AtomicU64,
    /// Operations of strategies.
    pub strategies: AtomicU64,
    /// Requests for objects that are not here, or no more.
    pub unknown: AtomicU64,
    /// Requests that were refused because reading their arguments would have taken more work
    /// than their bytes may.
    pub costly: AtomicU64,
}

/// The least time between two lines of log about requests that were refused.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A client's connection, as locator and relay know it.
#[derive(Debug)]
pub struct Session {
    locator: Client,
    relay: relay::Client,
}

/// Sends requests to the locator, the relay, the load manager and strategies.
#[derive(Debug)]
pub struct Dispatcher<O> {
    clock: Clock,
    relay: Rc<Relay>,
    directory: Arc<Directory>,
    objects: Rc<O>,
    counters: Arc<Counters>,
    /// Time of the last line of log about a refused request.
    said: Rc<Cell<Option<Instant>>>,
    /// Queues of clients that wait.
    queues: Rc<WaitQueues>,
    /// The right to serve, where several balancers share one state.
    tenure: Option<Arc<ServingRight>>,
}

/// The least time after which a client that waits is looked at again, though nothing has
/// changed.
const LEAST_WAIT: Duration = Duration::from_millis(1);

impl<O> Dispatcher<O> {
    /// The dispatcher of one worker to what all share.
    pub fn new(
        clock: Clock,
        relay: Rc<Relay>,
        directory: Arc<Directory>,
        objects: Rc<O>,
        counters: Arc<Counters>,
    ) -> Self {
        Dispatcher {
            clock,
            relay,
            directory,
            objects,
            counters,
            said: Rc::default(),
            queues: Rc::default(),
            tenure: None,
        }
    }

    /// Answers by that right only: clients get TRANSIENT when it has ended.
    pub fn with_tenure(mut self, tenure: Option<Arc<ServingRight>>) -> Self {
        self.tenure = tenure;
        self
    }

    /// Returns the queues of clients that wait.
    pub fn queues(&self) -> &Rc<WaitQueues> {
        &self.queues
    }
}

impl<O: Objects> Service for Dispatcher<O> {
    type Connection = Session;

    fn connected(&self, peer: SocketAddr) -> Session {
        // A listener for both families gives IPv4 clients a mapped address.
        let address = peer.ip().to_canonical();
        Session {
            locator: Client::new(address, fastrand::Rng::new()),
            relay: self.relay.add_client(address),
        }
    }

    fn message(
        &self,
        session: &mut Session,
        message: Message<'_>,
        out: &ReplyOutput<'_>,
    ) -> Result<(), GiopError> {
        let (version, endian) = (message.header.version, message.header.endian);
        match message.read_content()? {
            Content::Request(request) => {
                let reply_to = ReplyTo::of_request(&request, version, endian);
                if !may_serve(&self.tenure, self.clock) {
                    if let Some(reply_to) = reply_to {
                        out.write(|out| reply_to.write_exception(not_owner(), out));
                    }
                    return Ok(());
                }
                let Some(key) = request.target.object_key() else {
                    ask_for_key(reply_to, out);
                    return Ok(());
                };
                match Key::parse(key) {
                    Some(Key::Manager) => {
                        count(&self.counters.manager);
                        let call = Call::new(&request, &message);
                        let answer = self.objects.manager(call);
                        self.answer_later(answer, reply_to, session.locator.address, out);
                    }
                    Some(Key::Strategy(level)) => {
                        count(&self.counters.strategies);
                        let call = Call::new(&request, &message);
                        let answer = self.objects.strategy(level, call);
                        self.answer_later(answer, reply_to, session.locator.address, out);
                    }
                    key => self.ask_group(key, Some((message, &request)), reply_to, session, out),
                }
            }
            Content::LocateRequest(request) => {
                let reply_to = ReplyTo::of_locate(&request, version, endian);
                if !may_serve(&self.tenure, self.clock) {
                    out.write(|out| reply_to.write_exception(not_owner(), out));
                    return Ok(());
                }
                let Some(key) = request.target.object_key() else {
                    ask_for_key(Some(reply_to), out);
                    return Ok(());
                };
                match Key::parse(key) {
                    Some(Key::Manager | Key::Strategy(_)) => {
                        out.write(|out| reply_to.write_object_here(out))
                    }
                    key => self.ask_group(key, None, Some(reply_to), session, out),
                }
            }
            // Other answers that are not wanted any more are passed over by the client.
            Content::CancelRequest { request_id } => session.relay.cancel(request_id),
            _ => {}
        }
        Ok(())
    }
}

impl<O: Objects> Dispatcher<O> {
    /// Gives an answer when a call has ended. What has begun is finished even if the client
    /// goes away.
    fn answer_later(
        &self,
        call: impl Future<Output = Outcome> + 'static,
        reply_to: Option<ReplyTo>,
        client: IpAddr,
        out: &ReplyOutput<'_>,
    ) {
        let later = out.defer_answer();
        let (clock, said) = (self.clock, Rc::clone(&self.said));
        let counters = Arc::clone(&self.counters);
        tokio::task::spawn_local(async move {
            let outcome = call.await;
            if outcome == Outcome::System(too_costly()) {
                count(&counters.costly);
                let now = clock.now();
                if said.get().is_none_or(|at| now.since(at) >= BETWEEN_LINES) {
                    said.set(Some(now));
                    warn!(
                        %client,
                        "requests are refused because decoding their arguments would take too many steps"
                    );
                }
            }
            if let Some(reply_to) = reply_to {
                later.write(|out| reply_to.write_outcome(&outcome, out));
            }
        });
    }

    /// Answers a client that has to wait until the load alerts that are on let it go.
    #[cold]
    fn lead_later(
        &self,
        entry: &Arc<Entry>,
        reply_to: ReplyTo,
        mut client: Client,
        out: &ReplyOutput<'_>,
    ) {
        let (entry, later) = (Arc::clone(entry), out.defer_answer());
        let (clock, queues) = (self.clock, Rc::clone(&self.queues));
        let tenure = self.tenure.clone();
        tokio::task::spawn_local(async move {
            let queue = queues.queue_for(&entry);
            // Waiting has an end: see `Advice::LONGEST`.
            while !later.is_gone() {
                if !may_serve(&tenure, clock) {
                    later.write(|out| reply_to.write_exception(not_owner(), out));
                    return;
                }
                let (seen, now) = (queue.news_count(), clock.now());
                queues.count_look();
                let answered = later
                    .write(|out| locator::answer_request(&entry, &mut client, now, reply_to, out));
                if answered != Some(false) {
                    return;
                }
                let most = client.trails.longest_wait(entry.id, now);
                queue.wait_for_news(seen, most.max(LEAST_WAIT)).await;
            }
        });
    }

    /// Has a custom strategy choose who a client is sent to, unless load alerts have.
    fn ask_custom(
        &self,
        entry: &Arc<Entry>,
        custom: &Arc<Custom>,
        reply_to: ReplyTo,
        client: &mut Client,
        out: &ReplyOutput<'_>,
    ) {
        let (entry, custom, later) = (Arc::clone(entry), Arc::clone(custom), out.defer_answer());
        let (clock, queues) = (self.clock, Rc::clone(&self.queues));
        let mut client = client.fork();
        let tenure = self.tenure.clone();
        tokio::task::spawn_local(async move {
            // Where it waits, once it has to.
            let mut queue: Option<Rc<WaitQueue>> = None;
            while !later.is_gone() {
                if !may_serve(&tenure, clock) {
                    later.write(|out| reply_to.write_exception(not_owner(), out));
                    return;
                }
                let seen = queue.as_ref().map(|queue| queue.news_count());
                let group = entry.handle.current.load_full();
                let waits = match locator::decide_by_alerts(&entry, &group, &client, clock.now()) {
                    Some(Decision::Wait) => true,
                    Some(Decision::Go(chosen)) => {
                        let now = clock.now();
                        later.write(|out| {
                            locator::forward_client(
                                &entry, &group, chosen, &client, now, reply_to, out,
                            );
                            entry.counters.count(Answer::Forwarded);
                        });
                        return;
                    }
                    Some(Decision::Back(chosen)) => {
                        later.write(|out| locator::send_back(&entry, chosen, reply_to, out));
                        return;
                    }
                    None => false,
                };
                if !waits {
                    let decided = custom::decide_by_custom(&entry, &custom, &mut client).await;
                    let must_wait = decided.as_ref().is_ok_and(|decision| {
                        let (group, chosen) = (&decision.group, decision.chosen());
                        locator::must_wait(&entry, group, chosen, &client, clock.now())
                    });
                    if !must_wait {
                        later.write(|out| match decided {
                            Ok(decision) => {
                                let (group, chosen) = (&decision.group, decision.chosen());
                                let now = clock.now();
                                locator::forward_client(
                                    &entry, group, chosen, &client, now, reply_to, out,
                                );
                                entry.counters.count(decision.by);
                            }
                            Err(_) => locator::refuse_client(&entry, reply_to, out),
                        });
                        return;
                    }
                }
                queues.count_look();
                match (&queue, seen) {
                    (Some(queue), Some(seen)) => {
                        let most = client.trails.longest_wait(entry.id, clock.now());
                        queue.wait_for_news(seen, most.max(LEAST_WAIT)).await;
                    }
                    // Something may have changed before one could hear of it.
                    _ => queue = Some(queues.queue_for(&entry)),
                }
            }
        });
    }

    /// Answers what is asked of a group: a Request, or a LocateRequest if there is none.
    #[inline]
    fn ask_group(
        &self,
        key: Option<Key<'_>>,
        request: Option<(Message<'_>, &Request<'_>)>,
        reply_to: Option<ReplyTo>,
        session: &mut Session,
        out: &ReplyOutput<'_>,
    ) {
        let snapshot = self.directory.load_snapshot();
        let Some(entry) = key.and_then(|key| snapshot.find(key)) else {
            count(&self.counters.unknown);
            if let Some(reply_to) = reply_to {
                out.write(|out| reply_to.write_exception(not_here(), out));
            }
            return;
        };
        let group = entry.handle.current.load();
        let per_request = group.settings().granularity == Granularity::PerRequest;
        let Some(reply_to) = reply_to.filter(|_| !per_request) else {
            if !per_request {
                // What expects no answer cannot be answered with a forward.
                entry.counters.count(Answer::Oneway);
            }
            return match (request, reply_to) {
                (Some((message, request)), _) => {
                    session.relay.relay_request(entry, message, request, out);
                }
                (None, Some(reply_to)) => out.write(|out| reply_to.write_object_here(out)),
                (None, None) => {}
            };
        };
        match &entry.custom {
            None => {
                let now = self.clock.now();
                let client = &mut session.locator;
                if !out.write(|out| locator::answer_request(entry, client, now, reply_to, out)) {
                    self.lead_later(entry, reply_to, client.fork(), out);
                }
            }
            Some(custom) => {
                self.ask_custom(entry, custom, reply_to, &mut session.locator, out);
            }
        }
    }
}

/// Returns true if this balancer is the load manager, as it always is where it has no standby.
#[inline]
fn may_serve(tenure: &Option<Arc<ServingRight>>, clock: Clock) -> bool {
    tenure
        .as_ref()
        .is_none_or(|tenure| tenure.holds_at(clock.now()))
}

/// The exception of a balancer that is not the load manager any more: another one is, or will be.
fn not_owner() -> SystemException {
    SystemException::new(Kind::Transient)
}

fn ask_for_key(reply_to: Option<ReplyTo>, out: &ReplyOutput<'_>) {
    if let Some(reply_to) = reply_to {
        out.write(|out| reply_to.ask_for_key(out));
    }
}

/// Returns the exception for keys that name nothing: the client may forget the reference. The minor
/// code is the OMG's for an object adapter that is not there.
fn not_here() -> SystemException {
    SystemException::new(Kind::ObjectNotExist).with_minor(OMG_MINOR | 2)
}

#[cfg(test)]
mod tests;
