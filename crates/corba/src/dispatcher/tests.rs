//! The dispatcher over TCP, with custom strategies in other processes.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_core::group::{Granularity, GroupSettings};
use evenkeel_core::load::{LoadId, LoadValue};
use evenkeel_core::member::Reason;
use evenkeel_giop::any::Idl;
use evenkeel_giop::cdr::{Endian, Reader};
use evenkeel_giop::client::{self, Call as Outgoing, CallError, Client as Orb};
use evenkeel_giop::ior::Ior;
use evenkeel_giop::message::{Header, LocateRequest, LocateStatus, ReplyStatus, Target, Version};
use evenkeel_giop::server::{DeferredReply, Server, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::task::LocalSet;

use super::*;
use crate::custom::Customs;
use crate::directory::tests::{group, group_ior, reference};
use crate::keys::MANAGER;
use crate::name::Name;
use crate::types::Load;

/// Settings of groups whose clients are sent to members, which is what the locator is for.
fn on_demand() -> GroupSettings {
    GroupSettings {
        granularity: Granularity::OnDemand,
        ..GroupSettings::default()
    }
}

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);
const MANAGER_LOAD: f32 = 0.25;

fn live<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let test = async { tokio::time::timeout(LONG, test).await.unwrap() };
    LocalSet::new().block_on(&runtime, test)
}

async fn serve(service: Rc<impl Service>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::new(Settings::default());
    tokio::task::spawn_local(async move {
        server
            .serve_clients(listener, service, std::future::pending())
            .await;
    });
    address
}

/// A load manager that knows one operation.
struct Manager;

impl Objects for Manager {
    fn manager(&self, call: Call) -> impl Future<Output = Outcome> + use<> {
        std::future::ready(match call.operation.as_str() {
            "get_loads" => {
                let mut results = call.results_writer();
                vec![Load {
                    id: 0,
                    value: MANAGER_LOAD,
                }]
                .write(&mut results);
                Outcome::Reply(results.into_bytes())
            }
            "costly" => Outcome::System(too_costly()),
            _ => Outcome::System(SystemException::new(Kind::BadOperation)),
        })
    }

    fn strategy(&self, level: Level<'_>, call: Call) -> impl Future<Output = Outcome> + use<> {
        assert_eq!((level, &*call.operation), (Level::Default, "_get_name"));
        let mut results = call.results_writer();
        results.write_string("Random");
        std::future::ready(Outcome::Reply(results.into_bytes()))
    }
}

/// A dispatcher with one group, number 1, of the members 1 to 3, which take turns.
struct House {
    address: SocketAddr,
    directory: Arc<Directory>,
    counters: Arc<Counters>,
    queues: Rc<WaitQueues>,
    clock: Clock,
    orb: Orb,
}

impl House {
    async fn new() -> Self {
        Self::under(None).await
    }

    /// Starts a balancer that serves only while it has this right.
    async fn under(tenure: Option<Arc<ServingRight>>) -> Self {
        let (clock, directory) = (Clock::start(), Arc::new(Directory::default()));
        let counters = Arc::new(Counters::default());
        let (snapshot, count) = (Arc::clone(&directory), Arc::clone(&counters));
        let relay = Relay::start(
            relay::Settings::default(),
            Arc::default(),
            clock,
            fastrand::Rng::with_seed(5),
        );
        let dispatcher = Dispatcher::new(clock, relay, snapshot, Rc::new(Manager), count);
        let dispatcher = dispatcher.with_tenure(tenure);
        let queues = Rc::clone(dispatcher.queues());
        let address = serve(Rc::new(dispatcher)).await;
        let house = House {
            address,
            directory,
            counters,
            queues,
            clock,
            orb: Orb::new(client::Settings::default()),
        };
        house.publish(None);
        house
    }

    fn publish(&self, custom: Option<Arc<Custom>>) {
        use evenkeel_manager::snapshot::GroupHandle;
        let group = group("g", "round_robin", &[1, 2, 3], on_demand());
        let handle = Arc::new(GroupHandle::new(Arc::new(group), 0));
        let known = |name: &str| Some(reference(name));
        let entry = Entry::new(1, group_ior(1), handle, known, custom, None);
        self.directory.publish_groups([Arc::new(entry)]);
    }

    /// Has a strategy at `address` decide.
    fn customize(&self, address: SocketAddr, timeout: Duration, probes: Duration) -> Arc<Custom> {
        let customs = Customs::with_probes(self.orb.clone(), self.clock, probes);
        customs.configure(self.ior(MANAGER), timeout);
        let custom = customs.get(&ior_of(address, b"strategy"));
        self.publish(Some(Arc::clone(&custom)));
        custom
    }

    fn entry(&self) -> Arc<Entry> {
        Arc::clone(self.directory.load_snapshot().group(1).unwrap())
    }

    fn ior(&self, key: &[u8]) -> Ior {
        ior_of(self.address, key)
    }

    /// The host of the member that the group sends a client to.
    async fn bound_to(&self) -> String {
        let target = self.ior(&Key::Group(1).to_bytes());
        let deadline = tokio::time::Instant::now() + LONG;
        let call = Outgoing::new(&target, "anything", deadline).do_not_follow();
        match self.orb.call(&call).await {
            Err(CallError::Forward(ior)) => ior.iiop_profiles().next().unwrap().host,
            other => panic!("{other:?}"),
        }
    }

    fn total(&self, answer: Answer) -> u64 {
        let totals = self.entry().counters.answer_totals();
        totals.into_iter().find(|(a, _)| *a == answer).unwrap().1
    }
}

fn ior_of(address: SocketAddr, key: &[u8]) -> Ior {
    Ior::new_iiop(
        "IDL:Test:1.0",
        &address.ip().to_string(),
        address.port(),
        key,
    )
}

/// The answer to one message.
async fn answer(stream: &mut TcpStream, reply_to: &[u8]) -> Vec<u8> {
    stream.write_all(reply_to).await.unwrap();
    let mut bytes = vec![0; Header::LEN];
    stream.read_exact(&mut bytes).await.unwrap();
    let header = Header::peek(&bytes, usize::MAX).unwrap().unwrap();
    bytes.resize(header.total(), 0);
    stream.read_exact(&mut bytes[Header::LEN..]).await.unwrap();
    bytes
}

fn request(target: Target<'_>, operation: &str, flags: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    let request = Request {
        response_flags: flags,
        ..Request::new(77, target, operation)
    };
    request
        .encode(Version::V1_2, Endian::Big, &mut bytes)
        .unwrap();
    bytes
}

fn reply_status(bytes: &[u8]) -> (ReplyStatus, Vec<u8>) {
    match Message::from_whole(bytes).unwrap().read_content().unwrap() {
        Content::Reply(reply) => {
            assert_eq!(reply.request_id, 77);
            (reply.status, reply.body.to_vec())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_is_answered_by_a_balancer_that_is_not_the_load_manager_any_more() {
    live(async {
        let tenure = ServingRight::new(Instant::from_nanos(u64::MAX));
        let house = House::under(Some(Arc::clone(&tenure))).await;
        let stream = &mut TcpStream::connect(house.address).await.unwrap();
        let group = Key::Group(1).to_bytes();
        let sent = answer(stream, &request(Target::Key(&group), "op", 3)).await;
        assert_eq!(reply_status(&sent).0, ReplyStatus::LocationForward);
        tenure.end_now("another balancer has it");
        // Neither for a group, nor for the manager, nor for what it does not know: another
        // balancer may. What expects no answer gets none.
        let oneway = request(Target::Key(&group), "op", 0);
        stream.write_all(&oneway).await.unwrap();
        for key in [&group[..], MANAGER, b"group/later"] {
            let refused = answer(stream, &request(Target::Key(key), "get_loads", 3)).await;
            let (status, body) = reply_status(&refused);
            assert_eq!(status, ReplyStatus::SystemException);
            let exception = SystemException::read(&mut Reader::new(&body, Endian::Big));
            assert_eq!(exception.unwrap(), not_owner());
        }
        let counted = house.counters.manager.load(Ordering::Relaxed);
        assert_eq!(counted, 0, "nobody has carried it out");
    });
}

#[test]
fn everything_is_answered_by_whom_it_is_for() {
    live(async {
        let house = House::new().await;
        let stream = &mut TcpStream::connect(house.address).await.unwrap();
        // A strategy, the manager, and what neither knows.
        let key = Key::Strategy(Level::Default).to_bytes();
        let bytes = answer(stream, &request(Target::Key(&key), "_get_name", 3)).await;
        assert_eq!(reply_status(&bytes).1, b"\0\0\0\x07Random\0");
        let bytes = answer(stream, &request(Target::Key(MANAGER), "get_loads", 3)).await;
        assert_eq!(reply_status(&bytes).0, ReplyStatus::NoException);
        let bytes = answer(stream, &request(Target::Key(MANAGER), "nonsense", 3)).await;
        assert_eq!(reply_status(&bytes).0, ReplyStatus::SystemException);
        assert_eq!(house.counters.costly.load(Ordering::Relaxed), 0);
        answer(stream, &request(Target::Key(MANAGER), "costly", 3)).await;
        assert_eq!(house.counters.costly.load(Ordering::Relaxed), 1);
        // The group by its key, by its name, and by its profile.
        let named = answer(stream, &request(Target::Key(b"group/g"), "_is_a", 3)).await;
        assert_eq!(reply_status(&named).0, ReplyStatus::LocationForward);
        let ior = group_ior(1);
        let profile = &ior.profiles[0];
        let (tag, data) = (profile.tag, profile.data.as_slice());
        let target = Target::Profile { tag, data };
        let by_profile = answer(stream, &request(target, "_non_existent", 1)).await;
        assert_eq!(reply_status(&by_profile).0, ReplyStatus::LocationForward);
        let target = Target::Reference {
            selected: 0,
            ior: ior.clone(),
        };
        let by_reference = answer(stream, &request(target, "op", 3)).await;
        assert_eq!(reply_status(&by_reference).0, ReplyStatus::LocationForward);
        let target = Target::Profile { tag: 99, data };
        let unknown = answer(stream, &request(target, "op", 3)).await;
        assert_eq!(
            reply_status(&unknown),
            (ReplyStatus::NeedsAddressingMode, vec![0, 0])
        );
        // What is not here is gone for good; what expects no answer gets none.
        stream
            .write_all(&request(Target::Key(&Key::Group(1).to_bytes()), "op", 0))
            .await
            .unwrap();
        for key in [&b"nobody"[..], &Key::Group(2).to_bytes(), b"group/h"] {
            let (status, body) =
                reply_status(&answer(stream, &request(Target::Key(key), "op", 3)).await);
            assert_eq!(status, ReplyStatus::SystemException);
            let exception = SystemException::read(&mut Reader::new(&body, Endian::Big)).unwrap();
            assert_eq!(exception, not_here());
        }
        let locate = |key| {
            let mut bytes = Vec::new();
            let request = LocateRequest {
                request_id: 5,
                target: Target::Key(key),
            };
            request
                .encode(Version::V1_0, Endian::Little, &mut bytes)
                .unwrap();
            bytes
        };
        for (key, expected) in [
            (MANAGER, LocateStatus::ObjectHere),
            (b"nobody", LocateStatus::UnknownObject),
            (b"group/g", LocateStatus::ObjectForward),
        ] {
            let bytes = answer(stream, &locate(key)).await;
            match Message::from_whole(&bytes).unwrap().read_content().unwrap() {
                Content::LocateReply(reply) => assert_eq!(reply.status, expected),
                other => panic!("{other:?}"),
            }
        }
        let totals = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!(totals(&house.counters.manager), 3);
        assert_eq!(totals(&house.counters.strategies), 1);
        assert_eq!(totals(&house.counters.unknown), 4);
        assert_eq!(house.total(Answer::Forwarded), 4);
        assert_eq!(house.total(Answer::Oneway), 1);
    });
}

/// Behaviour of a strategy.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// Names the member with that number; 0 is nil.
    Names(u64),
    /// Does not answer.
    Silent,
    /// Raises an exception of its interface.
    Raises,
    /// Asks the load manager for loads, and names the member 2 if they are right.
    AsksBack,
    /// Answers everybody, with the member 3, as soon as so many wait.
    WaitsFor(usize),
}

/// A custom strategy.
struct Scripted {
    manner: Cell<Manner>,
    asked: Cell<usize>,
    waiting: RefCell<Vec<(DeferredReply, ReplyTo)>>,
    told: RefCell<Vec<String>>,
    news: Notify,
}

impl Scripted {
    async fn new(manner: Manner) -> (Rc<Self>, SocketAddr) {
        let strategy = Rc::new(Scripted {
            manner: Cell::new(manner),
            asked: Cell::new(0),
            waiting: RefCell::default(),
            told: RefCell::default(),
            news: Notify::new(),
        });
        let address = serve(Rc::clone(&strategy)).await;
        (strategy, address)
    }

    fn next_member(&self, manager: Ior, reply_to: ReplyTo, out: &ReplyOutput<'_>) {
        self.asked.set(self.asked.get() + 1);
        match self.manner.get() {
            Manner::Names(0) => {
                out.write(|out| reply_to.write_outcome(&named(None, reply_to), out))
            }
            Manner::Names(id) => {
                out.write(|out| reply_to.write_outcome(&named(Some(id), reply_to), out))
            }
            Manner::Raises => {
                let mut body = evenkeel_giop::cdr::Writer::new(reply_to.endian);
                body.write_string("IDL:omg.org/PortableGroup/MemberNotFound:1.0");
                let raised = Outcome::User(body.into_bytes());
                out.write(|out| reply_to.write_outcome(&raised, out));
            }
            Manner::Silent => self
                .waiting
                .borrow_mut()
                .push((out.defer_answer(), reply_to)),
            Manner::WaitsFor(many) => {
                self.waiting
                    .borrow_mut()
                    .push((out.defer_answer(), reply_to));
                if self.waiting.borrow().len() == many {
                    for (later, reply_to) in self.waiting.take() {
                        later.write(|out| reply_to.write_outcome(&named(Some(3), reply_to), out));
                    }
                }
            }
            Manner::AsksBack => {
                let later = out.defer_answer();
                tokio::task::spawn_local(async move {
                    let orb = Orb::new(client::Settings::default());
                    let deadline = tokio::time::Instant::now() + LONG;
                    let call = Outgoing::new(&manager, "get_loads", deadline);
                    let call = call.with_arguments(|writer| Name::from_id("host2").write(writer));
                    let loads = orb.call(&call).await.unwrap();
                    let loads = Vec::<Load>::read(&mut loads.reader()).unwrap();
                    assert_eq!(loads[0].value, MANAGER_LOAD);
                    later.write(|out| reply_to.write_outcome(&named(Some(2), reply_to), out));
                });
            }
        }
    }
}

/// The reply that names the member with that number.
fn named(id: Option<u64>, reply_to: ReplyTo) -> Outcome {
    let mut body = evenkeel_giop::cdr::Writer::new(reply_to.endian);
    match id {
        // With a component that the member's own reference does not have.
        Some(id) => {
            let mut ior = reference(&format!("HOST{id}")).ior().clone();
            let mut profile = ior.iiop_profiles().next().unwrap();
            profile
                .components
                .push(evenkeel_giop::ior::TaggedPart::alternate_address("h", 1));
            ior.profiles = vec![profile.to_tagged()];
            ior.write(&mut body);
        }
        None => Ior::default().write(&mut body),
    }
    Outcome::Reply(body.into_bytes())
}

impl Service for Scripted {
    type Connection = ();

    fn connected(&self, _: SocketAddr) {}

    fn message(
        &self,
        (): &mut (),
        message: Message<'_>,
        out: &ReplyOutput<'_>,
    ) -> Result<(), GiopError> {
        let Content::Request(request) = message.read_content()? else {
            return Ok(());
        };
        let (version, endian) = (message.header.version, message.header.endian);
        let reply_to = ReplyTo::of_request(&request, version, endian);
        let call = Call::new(&request, &message);
        let arguments = &mut call.arguments();
        match (request.operation, reply_to) {
            ("next_member", Some(reply_to)) => {
                let group = Ior::read(arguments)?;
                assert_eq!(group, group_ior(1));
                self.next_member(Ior::read(arguments)?, reply_to, out);
            }
            ("push_loads", Some(reply_to)) => {
                let location = Name::read(arguments)?;
                let loads = Vec::<Load>::read(arguments)?;
                let loads: Vec<_> = loads.iter().map(|load| (load.id, load.value)).collect();
                self.told.borrow_mut().push(format!("{location} {loads:?}"));
                out.write(|out| reply_to.write_outcome(&Outcome::Reply(Vec::new()), out));
            }
            ("analyze_loads", None) => {
                assert_eq!(Ior::read(arguments)?, group_ior(1));
                self.told.borrow_mut().push("analyze".into());
                self.news.notify_one();
            }
            other => panic!("{other:?}"),
        }
        Ok(())
    }
}

#[test]
fn a_custom_strategy_decides() {
    live(async {
        let house = House::new().await;
        let (strategy, address) = Scripted::new(Manner::Names(2)).await;
        house.customize(address, LONG, LONG);
        for _ in 0..3 {
            assert_eq!(house.bound_to().await, "host2");
        }
        strategy.manner.set(Manner::Names(3));
        assert_eq!(house.bound_to().await, "host3");
        assert_eq!(house.total(Answer::Custom), 4);
        let entry = house.entry();
        let group = entry.handle.current.load();
        let assigned = [0, 1, 2].map(|i| group.members()[i].slot.record().assigned());
        assert_eq!(assigned, [0, 3, 1]);
    });
}

#[test]
fn explanations_say_what_came_of_a_custom_strategy() {
    live(async {
        let house = House::new().await;
        let (strategy, address) = Scripted::new(Manner::Names(2)).await;
        house.customize(address, LONG, LONG);
        let group = house.entry().handle.current.load_full();
        for (manner, notes) in [
            (
                Manner::Names(2),
                "the custom strategy has decided, not the group's own strategy",
            ),
            (
                Manner::Names(0),
                "the custom strategy has not decided (the strategy's answer cannot be used): the group's own strategy decides",
            ),
        ] {
            strategy.manner.set(manner);
            group.state().want_trace();
            let host = house.bound_to().await;
            let decision = group.state().last_decision().unwrap();
            let chosen = decision.chosen.clone().unwrap();
            let index = decision.members.iter().position(|member| *member == chosen);
            assert_eq!(host, format!("host{}", index.unwrap() + 1));
            assert_eq!(decision.explanation.notes, [notes]);
        }
    });
}

/// Says of all members whether they send their clients back.
fn shut(house: &House, shut: bool) {
    for member in house.entry().handle.current.load().members() {
        member.location.set_shut(shut);
    }
}

#[test]
fn s16_a_client_waits_too_when_a_custom_strategy_names_a_member_that_sheds() {
    live(async {
        let house = Rc::new(House::new().await);
        let (strategy, address) = Scripted::new(Manner::Names(2)).await;
        house.customize(address, LONG, LONG);
        shut(&house, true);
        let client = {
            let house = Rc::clone(&house);
            tokio::task::spawn_local(async move { house.bound_to().await })
        };
        while house.queues.look_count() == 0 {
            assert!(!client.is_finished(), "it is sent to who sends it back");
            tokio::task::yield_now().await;
        }
        shut(&house, false);
        assert_eq!(client.await.unwrap(), "host2");
        assert!(strategy.asked.get() >= 2, "and it is asked again");
        assert_eq!(house.total(Answer::Custom), 1);

        // Waiting has an end, though nothing changes.
        shut(&house, true);
        assert_eq!(house.bound_to().await, "host2");
    });
}

#[test]
fn c8_clients_that_wait_are_looked_at_when_something_has_changed() {
    const CLIENTS: u64 = 20;
    live(async {
        let house = Rc::new(House::new().await);
        shut(&house, true);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let house = Rc::clone(&house);
                tokio::task::spawn_local(async move { house.bound_to().await })
            })
            .collect();
        while house.queues.look_count() < CLIENTS {
            tokio::task::yield_now().await;
        }
        // Time in which they would be looked at again and again if that were how.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let waiting = house.queues.look_count();
        assert!(
            waiting <= 4 * CLIENTS,
            "{waiting} looks at {CLIENTS} clients"
        );
        shut(&house, false);
        for client in clients {
            client.await.unwrap();
        }
        // Each of the three locations wakes it.
        let all = house.queues.look_count();
        assert!(all <= 12 * CLIENTS, "{all} looks at {CLIENTS} clients");
    });
}

#[test]
fn c8_a_client_that_waits_hears_of_new_members() {
    live(async {
        let house = Rc::new(House::new().await);
        shut(&house, true);
        let (entry, queues) = (house.entry(), &house.queues);
        let (queue, other) = (queues.queue_for(&entry), queues.queue_for(&entry));
        assert!(Rc::ptr_eq(&queue, &other));
        let seen = queue.news_count();
        let next = group("g", "round_robin", &[1, 2, 3, 4], on_demand());
        entry.handle.current.store(Arc::new(next));
        entry.handle.changed.wake();
        queue.wait_for_news(seen, LONG).await;
        let seen = queue.news_count();
        let location = Arc::clone(&entry.handle.current.load().members()[3].location);
        location.set_shut(true);
        queue.wait_for_news(seen, LONG).await;
        let seen = queue.news_count();
        location.set_shut(true);
        assert_eq!(queue.news_count(), seen, "that is no news");
    });
}

#[test]
fn it_may_call_the_manager_while_it_decides() {
    live(async {
        let house = House::new().await;
        let (_strategy, address) = Scripted::new(Manner::AsksBack).await;
        house.customize(address, LONG, LONG);
        assert_eq!(house.bound_to().await, "host2");
        assert_eq!(house.total(Answer::Custom), 1);
    });
}

#[test]
fn it_is_asked_for_many_clients_at_once() {
    live(async {
        let house = House::new().await;
        let (_strategy, address) = Scripted::new(Manner::WaitsFor(20)).await;
        house.customize(address, LONG, LONG);
        let house = Rc::new(house);
        let clients = (0..20).map(|_| {
            let house = Rc::clone(&house);
            tokio::task::spawn_local(async move { house.bound_to().await })
        });
        for client in clients.collect::<Vec<_>>() {
            assert_eq!(client.await.unwrap(), "host3");
        }
    });
}

#[test]
fn nobody_waits_for_a_silent_one_twice() {
    live(async {
        let house = House::new().await;
        let (strategy, address) = Scripted::new(Manner::Silent).await;
        let custom = house.customize(address, Duration::from_millis(50), LONG);
        assert!(custom.is_answering());
        let hosts = [
            house.bound_to().await,
            house.bound_to().await,
            house.bound_to().await,
        ];
        let mut sorted = hosts.clone();
        sorted.sort();
        assert_eq!(
            sorted,
            ["host1", "host2", "host3"],
            "the fallback takes turns"
        );
        assert_eq!((strategy.asked.get(), custom.failures()), (1, (1, 0)));
        assert!(!custom.is_answering());
        assert_eq!(house.total(Answer::Fallback), 3);
    });
}

#[test]
fn one_that_is_dead_is_probed_and_comes_back() {
    live(async {
        let house = House::new().await;
        let (strategy, address) = Scripted::new(Manner::Silent).await;
        // Long enough for an answer on a machine that has much else to do.
        let custom = house.customize(address, Duration::from_secs(2), Duration::ZERO);
        house.bound_to().await;
        assert!(!custom.is_answering());
        strategy.manner.set(Manner::Names(2));
        while house.total(Answer::Custom) == 0 {
            house.bound_to().await;
        }
        assert!(custom.is_answering());
        assert_eq!(house.bound_to().await, "host2");
        // Nobody listens there, and nobody else gets the port.
        let closed = TcpSocket::new_v4().unwrap();
        closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = closed.local_addr().unwrap();
        let custom = house.customize(address, LONG, LONG);
        house.bound_to().await;
        assert_eq!(custom.failures(), (1, 0));
        assert_eq!(house.total(Answer::Fallback), 1);
    });
}

#[test]
fn answers_that_cannot_be_used_are_not_but_it_is_asked_again() {
    live(async {
        let house = House::new().await;
        let (strategy, address) = Scripted::new(Manner::Names(9)).await;
        let custom = house.customize(address, LONG, LONG);
        let entry = house.entry();
        let group = entry.handle.current.load();
        group.members()[1].slot.set(Reason::Draining, true);
        for manner in [
            Manner::Names(9),
            Manner::Names(0),
            Manner::Raises,
            Manner::Names(2),
        ] {
            strategy.manner.set(manner);
            let host = house.bound_to().await;
            assert!(host == "host1" || host == "host3", "{host}");
        }
        assert_eq!((strategy.asked.get(), custom.failures()), (4, (0, 4)));
        assert!(custom.is_answering());
        group.members()[1].slot.set(Reason::Draining, false);
        assert_eq!(house.bound_to().await, "host2");
        // With nobody left the client may try again.
        for member in group.members() {
            member.slot.set(Reason::Maintenance, true);
        }
        let stream = &mut TcpStream::connect(house.address).await.unwrap();
        let key = Key::Group(1).to_bytes();
        let bytes = answer(stream, &request(Target::Key(&key), "op", 3)).await;
        let (_, body) = reply_status(&bytes);
        let exception = SystemException::read(&mut Reader::new(&body, Endian::Big));
        assert_eq!(exception, Ok(SystemException::new(Kind::Transient)));
        assert_eq!(house.total(Answer::Transient), 1);
    });
}

#[test]
fn loads_are_handed_on_and_to_be_analyzed() {
    live(async {
        let house = House::new().await;
        let (strategy, address) = Scripted::new(Manner::Names(1)).await;
        house.customize(address, LONG, LONG);
        tokio::task::spawn_local(custom::follow_loads(
            Arc::clone(&house.directory),
            house.clock,
        ));
        let entry = house.entry();
        let group = entry.handle.current.load();
        let report = |index: usize, value| {
            let (id, value) = (LoadId::CPU, LoadValue::new(value).unwrap());
            let location = &group.members()[index].location;
            location.report_load(id, value, house.clock.now()).unwrap();
        };
        report(1, 0.5);
        strategy.news.notified().await;
        assert_eq!(strategy.told.take(), ["host2 [(0, 0.5)]", "analyze"]);
        report(0, 0.25);
        report(2, 0.75);
        strategy.news.notified().await;
        let mut told = strategy.told.take();
        assert_eq!(told.pop().unwrap(), "analyze");
        told.sort();
        assert_eq!(told, ["host1 [(0, 0.25)]", "host3 [(0, 0.75)]"]);
    });
}
