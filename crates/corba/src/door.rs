//! The door: each message that clients send goes through here to whom it is for.

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
use evenkeel_giop::server::{Out, Service};
use evenkeel_net::Clock;
use tracing::warn;

use crate::call::{Call, Outcome};
use crate::custom::{self, Custom};
use crate::directory::{Answer, Directory, Entry};
use crate::keys::{Key, Level};
use crate::locator::{self, Client, Decision};
use crate::question::Question;
use crate::relay::{self, Relay};
use crate::service::raise::too_costly;
use crate::waiting::{Room, Rooms};

/// What carries out the operations of our own objects.
pub trait Objects: 'static {
    /// Carries out an operation of the load manager.
    fn manager(&self, call: Call) -> impl Future<Output = Outcome> + use<Self>;

    /// Carries out an operation of a strategy.
    fn strategy(&self, level: Level<'_>, call: Call) -> impl Future<Output = Outcome> + use<Self>;
}

/// What is counted at the door. The counters only ever grow.
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

/// A client's connection, as those behind the door know it.
#[derive(Debug)]
pub struct Visitor {
    locator: Client,
    relay: relay::Client,
}

/// Sends requests to the locator, the relay, the load manager and strategies.
#[derive(Debug)]
pub struct Door<O> {
    clock: Clock,
    relay: Rc<Relay>,
    directory: Arc<Directory>,
    objects: Rc<O>,
    counters: Arc<Counters>,
    /// When it was last said that a request was refused.
    said: Rc<Cell<Option<Instant>>>,
    /// Where clients wait.
    rooms: Rc<Rooms>,
}

/// The least time after which a client that waits is looked at again, though nothing has
/// changed.
const LEAST_WAIT: Duration = Duration::from_millis(1);

impl<O> Door<O> {
    /// The door of one worker to what all share.
    pub fn new(
        clock: Clock,
        relay: Rc<Relay>,
        directory: Arc<Directory>,
        objects: Rc<O>,
        counters: Arc<Counters>,
    ) -> Self {
        Door {
            clock,
            relay,
            directory,
            objects,
            counters,
            said: Rc::default(),
            rooms: Rc::default(),
        }
    }

    /// Where clients wait.
    pub fn rooms(&self) -> &Rc<Rooms> {
        &self.rooms
    }
}

impl<O: Objects> Service for Door<O> {
    type Connection = Visitor;

    fn connected(&self, peer: SocketAddr) -> Visitor {
        // A listener for both families gives IPv4 clients a mapped address.
        let address = peer.ip().to_canonical();
        Visitor {
            locator: Client::new(address, fastrand::Rng::new()),
            relay: self.relay.client(address),
        }
    }

    fn message(
        &self,
        visitor: &mut Visitor,
        message: Message<'_>,
        out: &Out<'_>,
    ) -> Result<(), GiopError> {
        let (version, endian) = (message.header.version, message.header.endian);
        match message.content()? {
            Content::Request(request) => {
                let question = Question::of_request(&request, version, endian);
                let Some(key) = request.target.key() else {
                    ask_for_key(question, out);
                    return Ok(());
                };
                match Key::parse(key) {
                    Some(Key::Manager) => {
                        count(&self.counters.manager);
                        let call = Call::new(&request, &message);
                        let answer = self.objects.manager(call);
                        self.answer_later(answer, question, visitor.locator.address, out);
                    }
                    Some(Key::Strategy(level)) => {
                        count(&self.counters.strategies);
                        let call = Call::new(&request, &message);
                        let answer = self.objects.strategy(level, call);
                        self.answer_later(answer, question, visitor.locator.address, out);
                    }
                    key => self.ask_group(key, Some((message, &request)), question, visitor, out),
                }
            }
            Content::LocateRequest(request) => {
                let question = Question::of_locate(&request, version, endian);
                let Some(key) = request.target.key() else {
                    ask_for_key(Some(question), out);
                    return Ok(());
                };
                match Key::parse(key) {
                    Some(Key::Manager | Key::Strategy(_)) => out.write(|out| question.here(out)),
                    key => self.ask_group(key, None, Some(question), visitor, out),
                }
            }
            // Other answers that are not wanted any more are passed over by the client.
            Content::CancelRequest { request_id } => visitor.relay.cancel(request_id),
            _ => {}
        }
        Ok(())
    }
}

impl<O: Objects> Door<O> {
    /// Gives an answer when a call has ended. What has begun is finished even if the client
    /// goes away.
    fn answer_later(
        &self,
        call: impl Future<Output = Outcome> + 'static,
        question: Option<Question>,
        client: IpAddr,
        out: &Out<'_>,
    ) {
        let later = out.later();
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
            if let Some(question) = question {
                later.write(|out| question.answer(&outcome, out));
            }
        });
    }

    /// Answers a client that has to wait until the load alerts that are on let it go.
    #[cold]
    fn lead_later(
        &self,
        entry: &Arc<Entry>,
        question: Question,
        mut client: Client,
        out: &Out<'_>,
    ) {
        let (entry, later) = (Arc::clone(entry), out.later());
        let (clock, rooms) = (self.clock, Rc::clone(&self.rooms));
        tokio::task::spawn_local(async move {
            let room = rooms.enter(&entry);
            // Waiting has an end: see `Advice::LONGEST`.
            while !later.is_gone() {
                let (seen, now) = (room.news(), clock.now());
                rooms.look();
                let answered =
                    later.write(|out| locator::answer(&entry, &mut client, now, question, out));
                if answered != Some(false) {
                    return;
                }
                let most = client.trails.longest_wait(entry.id, now);
                room.wait(seen, most.max(LEAST_WAIT)).await;
            }
        });
    }

    /// Has a custom strategy choose who a client is sent to, unless load alerts have.
    fn ask_custom(
        &self,
        entry: &Arc<Entry>,
        custom: &Arc<Custom>,
        question: Question,
        client: &mut Client,
        out: &Out<'_>,
    ) {
        let (entry, custom, later) = (Arc::clone(entry), Arc::clone(custom), out.later());
        let (clock, rooms) = (self.clock, Rc::clone(&self.rooms));
        let mut client = client.fork();
        tokio::task::spawn_local(async move {
            // Where it waits, once it has to.
            let mut room: Option<Rc<Room>> = None;
            while !later.is_gone() {
                let seen = room.as_ref().map(|room| room.news());
                let group = entry.handle.current.load_full();
                let waits = match locator::advised(&entry, &group, &client, clock.now()) {
                    Some(Decision::Wait) => true,
                    Some(Decision::Go(chosen)) => {
                        let by = Answer::Forwarded;
                        later.write(|out| {
                            locator::send(&entry, &group, chosen, by, &client, question, out);
                        });
                        return;
                    }
                    Some(Decision::Back(chosen)) => {
                        later.write(|out| locator::send_back(&entry, chosen, question, out));
                        return;
                    }
                    None => false,
                };
                if !waits {
                    let decided = custom::decide(&entry, &custom, &mut client).await;
                    let knocks = decided.as_ref().is_ok_and(|decision| {
                        let (group, chosen) = (&decision.group, decision.chosen());
                        locator::knocks(&entry, group, chosen, &client, clock.now())
                    });
                    if !knocks {
                        later.write(|out| match decided {
                            Ok(decision) => {
                                let (group, chosen) = (&decision.group, decision.chosen());
                                let by = decision.by;
                                locator::send(&entry, group, chosen, by, &client, question, out);
                            }
                            Err(_) => locator::refuse(&entry, question, out),
                        });
                        return;
                    }
                }
                rooms.look();
                match (&room, seen) {
                    (Some(room), Some(seen)) => {
                        let most = client.trails.longest_wait(entry.id, clock.now());
                        room.wait(seen, most.max(LEAST_WAIT)).await;
                    }
                    // Something may have changed before one could hear of it.
                    _ => room = Some(rooms.enter(&entry)),
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
        question: Option<Question>,
        visitor: &mut Visitor,
        out: &Out<'_>,
    ) {
        let book = self.directory.load();
        let Some(entry) = key.and_then(|key| book.find(key)) else {
            count(&self.counters.unknown);
            if let Some(question) = question {
                out.write(|out| question.refuse(not_here(), out));
            }
            return;
        };
        let group = entry.handle.current.load();
        let per_request = group.settings().granularity == Granularity::PerRequest;
        let Some(question) = question.filter(|_| !per_request) else {
            if !per_request {
                // What expects no answer cannot be answered with a forward.
                entry.counters.count(Answer::Oneway);
            }
            return match (request, question) {
                (Some((message, request)), _) => {
                    visitor.relay.request(entry, message, request, out);
                }
                (None, Some(question)) => out.write(|out| question.here(out)),
                (None, None) => {}
            };
        };
        match &entry.custom {
            None => {
                let now = self.clock.now();
                let client = &mut visitor.locator;
                if !out.write(|out| locator::answer(entry, client, now, question, out)) {
                    self.lead_later(entry, question, client.fork(), out);
                }
            }
            Some(custom) => {
                self.ask_custom(entry, custom, question, &mut visitor.locator, out);
            }
        }
    }
}

fn ask_for_key(question: Option<Question>, out: &Out<'_>) {
    if let Some(question) = question {
        out.write(|out| question.ask_for_key(out));
    }
}

/// What is said of keys that name nothing: the client may forget the reference. The minor
/// code is the OMG's for an object adapter that is not there.
fn not_here() -> SystemException {
    SystemException::new(Kind::ObjectNotExist).minor(OMG_MINOR | 2)
}

#[cfg(test)]
mod tests;
