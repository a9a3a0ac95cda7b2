//! The relay behind a dispatcher, over TCP, with members that serve and members that misbehave.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::Ordering;

use evenkeel_core::group::{Granularity, GroupSettings, GroupState};
use evenkeel_core::load::Location;
use evenkeel_core::member::{Member, MemberId, Slot, Weight};
use evenkeel_core::strategy::{self, Values};
use evenkeel_giop::cdr::{Endian, Writer};
use evenkeel_giop::client::{self, Call as Outgoing, CallError, Client as Orb};
use evenkeel_giop::context::{Contexts, ServiceContext};
use evenkeel_giop::exception::{Completion, Kind, SystemException};
use evenkeel_giop::ior::{IiopProfile, Ior};
use evenkeel_giop::message::{GiopError, Header, Reply, ReplyStatus, Target, Version};
use evenkeel_giop::server::{self, DeferredReply, Server, Service};
use evenkeel_manager::snapshot::GroupHandle;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::task::LocalSet;

use super::*;
use crate::call::{Call, Outcome};
use crate::custom::Customs;
use crate::directory::{Directory, Reference};
use crate::dispatcher::{self, Dispatcher, Objects};
use crate::keys::{Key, Level};

const LONG: Duration = Duration::from_secs(60);
const KEY: &[u8] = b"the member's own";

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
    let server = Server::new(server::Settings::default());
    tokio::task::spawn_local(async move {
        let never = std::future::pending();
        server.serve_clients(listener, service, never).await;
    });
    address
}

/// Behaviour of a member when requests come.
#[derive(Clone, Default)]
enum Does {
    /// Answers with its number and the arguments.
    #[default]
    Serve,
    /// Raises this.
    Raise(SystemException),
    /// Says that the object is there.
    Forward(Ior),
    /// Wants to be named by its profile.
    WantsProfile,
    /// Does not answer until told.
    Hold,
}

#[derive(Default)]
struct Object {
    number: u32,
    does: RefCell<Does>,
    held: RefCell<Vec<DeferredReply>>,
    /// Operations, cancels as `cancel`, and ids of contexts.
    seen: RefCell<Vec<String>>,
    contexts: RefCell<Vec<Vec<u32>>>,
    connections: Cell<usize>,
    told: Notify,
}

impl Service for Object {
    type Connection = ();

    fn connected(&self, _peer: SocketAddr) {
        self.connections.set(self.connections.get() + 1);
    }

    fn message(
        &self,
        _connection: &mut (),
        message: Message<'_>,
        out: &ReplyOutput<'_>,
    ) -> Result<(), GiopError> {
        self.told.notify_waiters();
        let Content::Request(request) = message.read_content()? else {
            self.seen.borrow_mut().push("cancel".into());
            return Ok(());
        };
        self.seen.borrow_mut().push(request.operation.into());
        let ids = request.contexts.iter().map(|context| context.id).collect();
        self.contexts.borrow_mut().push(ids);
        if !request.response_expected() {
            return Ok(());
        }
        let (version, endian) = (message.header.version, message.header.endian);
        let mut writer = Writer::new(endian);
        let status = match &*self.does.borrow() {
            Does::Serve => {
                assert_eq!(request.target.object_key(), Some(KEY));
                writer.write_u32(self.number);
                writer.write_u32(0);
                writer.write_raw(request.body);
                ReplyStatus::NoException
            }
            Does::Raise(exception) => {
                exception.write(&mut writer);
                ReplyStatus::SystemException
            }
            Does::Forward(ior) => {
                ior.write(&mut writer);
                ReplyStatus::LocationForward
            }
            Does::WantsProfile => match request.target {
                Target::Profile { .. } => ReplyStatus::NoException,
                _ => {
                    writer.write_u16(1);
                    ReplyStatus::NeedsAddressingMode
                }
            },
            Does::Hold => {
                self.held.borrow_mut().push(out.defer_answer());
                return Ok(());
            }
        };
        let reply = Reply::new(request.request_id, status, writer.bytes());
        out.write(|out| reply.encode(version, endian, out))
    }
}

impl Object {
    async fn start(number: u32) -> (Rc<Self>, SocketAddr) {
        let server = Rc::new(Object {
            number,
            ..Object::default()
        });
        let address = serve(Rc::clone(&server)).await;
        (server, address)
    }

    /// Waits until it has seen so many messages.
    async fn saw(&self, count: usize) {
        loop {
            let mut told = pin!(self.told.notified());
            told.as_mut().enable();
            if self.seen.borrow().len() >= count {
                break;
            }
            told.await;
        }
    }
}

fn reference_to(address: SocketAddr, minor: u8) -> Ior {
    let profile = IiopProfile {
        minor,
        host: "127.0.0.1".into(),
        port: address.port(),
        object_key: KEY.into(),
        components: Vec::new(),
    };
    Ior {
        type_id: "IDL:Test:1.0".into(),
        profiles: vec![profile.to_tagged()],
    }
}

struct Nothing;

impl Objects for Nothing {
    fn manager(&self, _: Call) -> impl Future<Output = Outcome> + use<> {
        std::future::ready(Outcome::System(SystemException::new(Kind::NoImplement)))
    }

    fn strategy(&self, _: Level<'_>, _: Call) -> impl Future<Output = Outcome> + use<> {
        std::future::ready(Outcome::System(SystemException::new(Kind::NoImplement)))
    }
}

/// A dispatcher with one group, number 1, whose members take turns.
struct House {
    orb: Orb,
    group: Ior,
    address: SocketAddr,
    slots: Vec<Arc<Slot>>,
    counters: Arc<Counters>,
}

impl House {
    async fn new(members: &[Ior], settings: Settings) -> Self {
        House::with_strategy(members, settings, None).await
    }

    /// A group for which the object there decides, if there is one.
    async fn with_strategy(members: &[Ior], settings: Settings, custom: Option<Ior>) -> Self {
        let member = |id: usize| Member {
            id: MemberId(id as u64),
            name: format!("{id}").into(),
            given_name: None,
            address: std::net::SocketAddr::from(([192, 0, 2, 1], 1)).into(),
            host: "192.0.2.1".into(),
            max_connections: None,
            location: Arc::new(Location::new(format!("{id}"))),
            zone: None,
            slot: Arc::new(Slot::new(Weight::ONE)),
        };
        let seats: Vec<_> = (0..members.len()).map(member).collect();
        let slots = seats.iter().map(|seat| Arc::clone(&seat.slot)).collect();
        let values = Values::defaults(strategy::find("round_robin").unwrap());
        let per_request = GroupSettings {
            granularity: Granularity::PerRequest,
            slow_start: Duration::ZERO,
            ..GroupSettings::default()
        };
        let state = Arc::new(GroupState::default());
        let group = group::Group::new("g", per_request, &values, seats, state);
        let handle = Arc::new(GroupHandle::new(Arc::new(group), 0));
        let references: Vec<_> = members
            .iter()
            .map(|ior| Arc::new(Reference::new(ior.clone())))
            .collect();
        let known = |name: &str| references.get(name.parse::<usize>().ok()?).cloned();
        let key = Key::Group(1).to_bytes();
        let own = Ior::new_iiop("IDL:Test:1.0", "127.0.0.1", 1, &key);
        let clock = Clock::start();
        let orb = Orb::new(client::Settings::default());
        let customs = Customs::new(orb.clone(), clock);
        customs.configure(own.clone(), LONG);
        let custom = custom.map(|custom| customs.get(&custom));
        let entry = Entry::new(1, own, handle, known, custom, None);
        let directory = Arc::new(Directory::default());
        directory.publish_groups([Arc::new(entry)]);
        let counters = Arc::new(Counters::default());
        let rng = fastrand::Rng::with_seed(3);
        let relay = Relay::start(settings, Arc::clone(&counters), clock, rng);
        let count = Arc::new(dispatcher::Counters::default());
        let dispatcher = Dispatcher::new(clock, relay, directory, Rc::new(Nothing), count);
        let address = serve(Rc::new(dispatcher)).await;
        House {
            orb,
            group: Ior::new_iiop("IDL:Test:1.0", "127.0.0.1", address.port(), &key),
            address,
            slots,
            counters,
        }
    }

    fn outgoing<'a>(&'a self, operation: &'a str) -> Outgoing<'a> {
        let deadline = tokio::time::Instant::now() + LONG;
        Outgoing::new(&self.group, operation, deadline)
    }

    /// The number of the member that has served, and what came of the number that was sent.
    async fn ask(&self, number: f64) -> Result<(u32, f64), CallError> {
        let call = self
            .outgoing("ask")
            .with_arguments(|to| to.write_f64(number));
        let body = self.orb.call(&call).await?;
        let mut reader = body.reader();
        Ok((reader.read_u32()?, reader.read_f64()?))
    }

    fn in_flight(&self) -> u32 {
        self.slots.iter().map(|slot| slot.in_flight()).sum()
    }
}

fn raised(result: Result<(u32, f64), CallError>) -> SystemException {
    match result {
        Err(CallError::System(exception)) => exception,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_request_goes_to_the_member_of_its_turn_and_back() {
    live(async {
        let (one, first) = Object::start(1).await;
        let (two, second) = Object::start(2).await;
        let members = [reference_to(first, 2), reference_to(second, 2)];
        let house = House::new(&members, Settings::default()).await;
        let mut served = [0, 0];
        for turn in 0..10 {
            let (number, back) = house.ask(f64::from(turn)).await.unwrap();
            assert_eq!(back, f64::from(turn));
            served[number as usize - 1] += 1;
        }
        assert_eq!(served, [5, 5]);
        // An operation of every object is one like all others.
        let body = house.orb.call(&house.outgoing("_is_a")).await.unwrap();
        assert!(body.reader().read_u32().is_ok());
        house
            .orb
            .call_oneway(&house.outgoing("hint"))
            .await
            .unwrap();
        house
            .orb
            .call_oneway(&house.outgoing("hint"))
            .await
            .unwrap();
        one.saw(6).await;
        two.saw(6).await;
        let seen = one.seen.borrow();
        assert!(seen.iter().any(|operation| operation == "hint"), "{seen:?}");
        assert_eq!(house.in_flight(), 0);
        assert_eq!(one.connections.get(), 1);
        assert_eq!(house.counters.requests.load(Ordering::Relaxed), 13);
    });
}

#[test]
fn requests_of_many_clients_share_few_connections() {
    live(async {
        let (one, first) = Object::start(1).await;
        let house = Rc::new(House::new(&[reference_to(first, 2)], Settings::default()).await);
        let calls: Vec<_> = (0..300)
            .map(|number| {
                let house = Rc::clone(&house);
                tokio::task::spawn_local(async move {
                    let orb = Orb::new(client::Settings::default());
                    let call = house.outgoing("ask");
                    let call = call.with_arguments(|to| to.write_f64(f64::from(number)));
                    let body = orb.call(&call).await.unwrap();
                    let mut reader = body.reader();
                    reader.read_u32().unwrap();
                    assert_eq!(reader.read_f64(), Ok(f64::from(number)));
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
        let most = Settings::default().connections;
        assert!((1..=most).contains(&one.connections.get()));
        assert_eq!(one.seen.borrow().len(), 300);
    });
}

#[test]
fn old_members_and_clients_get_what_they_understand() {
    live(async {
        let (_one, first) = Object::start(1).await;
        for members in 0..3 {
            let house = House::new(&[reference_to(first, members)], Settings::default()).await;
            for minor in 0..3 {
                let mut group = house.group.iiop_profiles().next().unwrap();
                group.minor = minor;
                let target = Ior {
                    profiles: vec![group.to_tagged()],
                    ..house.group.clone()
                };
                let deadline = tokio::time::Instant::now() + LONG;
                let call = Outgoing::new(&target, "ask", deadline);
                let call = call.with_arguments(|to| to.write_f64(0.5));
                let body = house.orb.call(&call).await.unwrap();
                assert_eq!(body.version(), Version::for_minor(minor));
                let mut reader = body.reader();
                reader.read_u32().unwrap();
                assert_eq!(reader.read_f64(), Ok(0.5), "{minor} over {members}");
            }
        }
    });
}

#[test]
fn what_a_member_turns_away_goes_to_another_one() {
    live(async {
        let (one, first) = Object::start(1).await;
        let (two, second) = Object::start(2).await;
        let members = [reference_to(first, 2), reference_to(second, 2)];
        let house = House::new(&members, Settings::default()).await;
        let transient = SystemException::new(Kind::Transient).with_completion(Completion::No);
        let back_to_the_group = house.group.clone();
        for sheds in [Does::Raise(transient), Does::Forward(back_to_the_group)] {
            one.does.replace(sheds.clone());
            for _ in 0..4 {
                assert_eq!(house.ask(1.0).await.unwrap().0, 2);
            }
            // Nobody is left: the client may try again, and does not go in circles.
            two.does.replace(sheds);
            assert_eq!(raised(house.ask(1.0).await), transient);
            two.does.replace(Does::Serve);
        }
        // What may have been carried out is not done twice.
        let maybe = transient.with_completion(Completion::Maybe);
        one.does.replace(Does::Raise(maybe));
        two.does.replace(Does::Raise(maybe));
        let before = one.seen.borrow().len() + two.seen.borrow().len();
        assert_eq!(raised(house.ask(1.0).await), maybe);
        let after = one.seen.borrow().len() + two.seen.borrow().len();
        assert_eq!(after, before + 1);
        assert_eq!(house.in_flight(), 0);
    });
}

#[test]
fn a_member_that_is_elsewhere_is_followed_there() {
    live(async {
        let (one, first) = Object::start(1).await;
        let (three, third) = Object::start(3).await;
        one.does.replace(Does::Forward(reference_to(third, 2)));
        let house = House::new(&[reference_to(first, 2)], Settings::default()).await;
        for _ in 0..3 {
            assert_eq!(house.ask(1.0).await.unwrap().0, 3);
        }
        // It is remembered.
        assert_eq!(one.seen.borrow().len(), 1);
        // Two that send each other's clients to and fro get nobody into a loop.
        three.does.replace(Does::Forward(reference_to(first, 2)));
        let nobody = SystemException::new(Kind::Transient);
        assert_eq!(raised(house.ask(1.0).await), nobody);
        assert!(one.seen.borrow().len() < 10);
        assert_eq!(house.in_flight(), 0);
    });
}

#[test]
fn a_member_may_want_more_than_a_key() {
    live(async {
        let (one, first) = Object::start(1).await;
        one.does.replace(Does::WantsProfile);
        let house = House::new(&[reference_to(first, 2)], Settings::default()).await;
        for _ in 0..2 {
            house.orb.call(&house.outgoing("ask")).await.unwrap();
        }
        assert_eq!(one.seen.borrow().len(), 3);
    });
}

/// A custom strategy to which there is only one member.
struct Favours(Ior);

impl Service for Favours {
    type Connection = ();

    fn connected(&self, _peer: SocketAddr) {}

    fn message(
        &self,
        _connection: &mut (),
        message: Message<'_>,
        out: &ReplyOutput<'_>,
    ) -> Result<(), GiopError> {
        let (version, endian) = (message.header.version, message.header.endian);
        if let Content::Request(request) = message.read_content()?
            && request.response_expected()
        {
            let mut writer = Writer::new(endian);
            self.0.write(&mut writer);
            let status = ReplyStatus::NoException;
            let reply = Reply::new(request.request_id, status, writer.bytes());
            out.write(|out| reply.encode(version, endian, out))?;
        }
        Ok(())
    }
}

#[test]
fn a_custom_strategy_decides_about_each_request() {
    live(async {
        let (one, first) = Object::start(1).await;
        let (_two, second) = Object::start(2).await;
        let members = [reference_to(first, 2), reference_to(second, 2)];
        let favours = serve(Rc::new(Favours(members[0].clone()))).await;
        let strategy = Some(reference_to(favours, 2));
        let house = House::with_strategy(&members, Settings::default(), strategy).await;
        for _ in 0..4 {
            assert_eq!(house.ask(1.0).await.unwrap().0, 1);
        }
        // Where its choice does not want a request, the group's own strategy is next.
        let transient = SystemException::new(Kind::Transient).with_completion(Completion::No);
        one.does.replace(Does::Raise(transient));
        assert_eq!(house.ask(1.0).await.unwrap().0, 2);
        one.does.replace(Does::Serve);
        // One that is not there is done without.
        let nobody = taken();
        let closed = nobody.local_addr().unwrap();
        let strategy = Some(reference_to(closed, 2));
        let house = House::with_strategy(&members, Settings::default(), strategy).await;
        let mut served = [
            house.ask(1.0).await.unwrap().0,
            house.ask(1.0).await.unwrap().0,
        ];
        served.sort_unstable();
        assert_eq!(served, [1, 2]);
        assert_eq!(house.in_flight(), 0);
    });
}

/// A port at which nobody listens, and which nobody else gets as long as this is kept.
fn taken() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket
}

/// A member that does `then` with each connection after one message has come.
async fn odd<F>(then: impl Fn(TcpStream, usize) -> F + 'static) -> SocketAddr
where
    F: Future<Output = ()> + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        for number in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; Header::LEN];
            stream.read_exact(&mut head).await.unwrap();
            let size = Header::peek(&head, 1 << 20).unwrap().unwrap().size;
            stream
                .read_exact(&mut vec![0; size as usize])
                .await
                .unwrap();
            then(stream, number).await;
        }
    });
    address
}

#[test]
fn what_was_certainly_not_carried_out_is_sent_again_and_nothing_else() {
    live(async {
        let (_two, second) = Object::start(2).await;
        let refuses = taken();
        let closed = refuses.local_addr().unwrap();
        let closes = odd(|mut stream, _| async move {
            let word = b"GIOP\x01\x02\x00\x05\0\0\0\0";
            stream.write_all(word).await.unwrap();
        })
        .await;
        for gone in [closed, closes] {
            let members = [reference_to(gone, 2), reference_to(second, 2)];
            let house = House::new(&members, Settings::default()).await;
            for _ in 0..4 {
                assert_eq!(house.ask(1.0).await.unwrap().0, 2);
            }
            let failures = house.slots[0].consecutive_failures();
            assert_eq!(failures > 0, gone == closed);
            assert_eq!(house.in_flight(), 0);
            let alone = House::new(&members[..1], Settings::default()).await;
            let nobody = SystemException::new(Kind::Transient);
            assert_eq!(raised(alone.ask(1.0).await), nobody);
        }
        // In the middle of a request.
        let dies = odd(|_, _| async {}).await;
        let garbage = odd(|mut stream, _| async move {
            stream.write_all(b"HTTP/1.1 400\r\n\r\n").await.unwrap();
        })
        .await;
        let error = odd(|mut stream, _| async move {
            let word = b"GIOP\x01\x02\x00\x06\0\0\0\0";
            stream.write_all(word).await.unwrap();
        })
        .await;
        for lost in [dies, garbage, error] {
            let members = [reference_to(lost, 2), reference_to(second, 2)];
            let house = House::new(&members, Settings::default()).await;
            let results = [house.ask(1.0).await, house.ask(1.0).await];
            let [Err(CallError::System(exception)), Ok((2, 1.0))] = results else {
                panic!("{results:?}")
            };
            assert_eq!(exception.kind, Kind::CommFailure);
            assert_eq!(exception.completed, Completion::Maybe);
            assert_eq!(house.slots[0].consecutive_failures(), 1);
        }
    });
}

#[test]
fn a_member_that_does_not_answer_in_time_is_given_up() {
    live(async {
        let (one, first) = Object::start(1).await;
        one.does.replace(Does::Hold);
        let settings = Settings {
            request_timeout: Duration::from_secs(2),
            ..Settings::default()
        };
        let house = House::new(&[reference_to(first, 2)], settings).await;
        let exception = raised(house.ask(1.0).await);
        assert_eq!(exception.kind, Kind::Timeout);
        assert_eq!(exception.completed, Completion::Maybe);
        one.saw(2).await;
        assert_eq!(*one.seen.borrow(), ["ask", "cancel"]);
        assert_eq!(house.in_flight(), 0);
        assert_eq!(house.slots[0].consecutive_failures(), 1);
    });
}

#[test]
fn requests_that_nobody_answers_are_not_kept_in_any_number() {
    live(async {
        let (one, first) = Object::start(1).await;
        one.does.replace(Does::Hold);
        let settings = Settings {
            max_held: 4000,
            ..Settings::default()
        };
        let house = House::new(&[reference_to(first, 2)], settings).await;
        let key = Key::Group(1).to_bytes();
        let body = [7; 1000];
        let hang = async |stream: &mut TcpStream, id| {
            let request = Request {
                body: &body,
                ..Request::new(id, Target::Key(&key), "hang")
            };
            let mut out = Vec::new();
            request
                .encode(Version::V1_2, Endian::Big, &mut out)
                .unwrap();
            stream.write_all(&out).await.unwrap();
        };
        let mut stream = TcpStream::connect(house.address).await.unwrap();
        for id in 0..3 {
            hang(&mut stream, id).await;
        }
        one.saw(3).await;
        // One more is over the limit, whoever sends it.
        let full = house
            .outgoing("ask")
            .with_arguments(|to| to.write_raw(&body));
        let refused = house.orb.call(&full).await;
        let transient = SystemException::new(Kind::Transient);
        assert_eq!(refused, Err(CallError::System(transient)));
        assert_eq!(one.seen.borrow().len(), 3);
        drop(stream);
        one.saw(6).await;
        one.does.replace(Does::Serve);
        assert_eq!(house.ask(2.0).await, Ok((1, 2.0)));
    });
}

#[test]
fn cancelled_requests_are_cancelled_and_those_of_clients_that_go_too() {
    live(async {
        let (one, first) = Object::start(1).await;
        one.does.replace(Does::Hold);
        let house = House::new(&[reference_to(first, 2)], Settings::default()).await;
        let call = Outgoing {
            deadline: tokio::time::Instant::now() + Duration::from_secs(2),
            ..house.outgoing("ask")
        };
        assert_eq!(house.orb.call(&call).await, Err(CallError::Timeout));
        one.saw(2).await;
        assert_eq!(*one.seen.borrow(), ["ask", "cancel"]);
        let mut stream = TcpStream::connect(house.address).await.unwrap();
        let key = Key::Group(1).to_bytes();
        let mut out = Vec::new();
        let request = Request::new(77, Target::Key(&key), "bye");
        request
            .encode(Version::V1_1, Endian::Big, &mut out)
            .unwrap();
        stream.write_all(&out).await.unwrap();
        one.saw(3).await;
        assert_eq!(house.in_flight(), 1);
        drop(stream);
        one.saw(4).await;
        assert_eq!(one.seen.borrow()[2..], ["bye", "cancel"]);
        assert_eq!(house.in_flight(), 0);
    });
}

#[test]
fn nobody_cancels_the_requests_of_others() {
    live(async {
        let (one, first) = Object::start(1).await;
        one.does.replace(Does::Hold);
        let house = House::new(&[reference_to(first, 2)], Settings::default()).await;
        let key = Key::Group(1).to_bytes();
        let request = |id, operation| {
            let request = Request::new(id, Target::Key(&key), operation);
            let mut out = Vec::new();
            request
                .encode(Version::V1_2, Endian::Big, &mut out)
                .unwrap();
            out
        };
        let mut other = Vec::new();
        let cancel = Content::CancelRequest { request_id: 77 };
        cancel
            .encode(Version::V1_2, Endian::Big, &mut other)
            .unwrap();
        let mut mine = TcpStream::connect(house.address).await.unwrap();
        let mut theirs = TcpStream::connect(house.address).await.unwrap();
        mine.write_all(&request(77, "mine")).await.unwrap();
        one.saw(1).await;
        // With none of its own, and with one.
        theirs.write_all(&other).await.unwrap();
        theirs.write_all(&request(78, "theirs")).await.unwrap();
        theirs.write_all(&other).await.unwrap();
        theirs.write_all(&request(79, "again")).await.unwrap();
        one.saw(3).await;
        assert_eq!(*one.seen.borrow(), ["mine", "theirs", "again"]);
        assert_eq!(house.in_flight(), 3);
        drop(theirs);
        one.saw(5).await;
        assert_eq!(house.in_flight(), 1);
        mine.write_all(&other).await.unwrap();
        one.saw(6).await;
        assert_eq!(one.seen.borrow()[3..], ["cancel", "cancel", "cancel"]);
        assert_eq!(house.in_flight(), 0);
    });
}

/// Sends a request with these contexts and waits for the reply, which must have its id.
async fn send(stream: &mut TcpStream, id: u32, contexts: &[ServiceContext<'_>]) -> ReplyStatus {
    send_in(Version::V1_2, stream, id, contexts).await
}

/// Sends a request in this version of GIOP.
async fn send_in(
    version: Version,
    stream: &mut TcpStream,
    id: u32,
    contexts: &[ServiceContext<'_>],
) -> ReplyStatus {
    let key = Key::Group(1).to_bytes();
    let mut out = Vec::new();
    let request = Request {
        contexts: Contexts::from_list(contexts),
        ..Request::new(id, Target::Key(&key), "ask")
    };
    request.encode(version, Endian::Big, &mut out).unwrap();
    stream.write_all(&out).await.unwrap();
    let mut reply = vec![0; Header::LEN];
    stream.read_exact(&mut reply).await.unwrap();
    let header = Header::peek(&reply, 1 << 20).unwrap().unwrap();
    reply.resize(header.total(), 0);
    stream.read_exact(&mut reply[Header::LEN..]).await.unwrap();
    let message = Message::from_whole(&reply).unwrap();
    let Content::Reply(reply) = message.read_content().unwrap() else {
        panic!("{message:?}")
    };
    assert_eq!(reply.request_id, id);
    assert_eq!(message.header.endian, Endian::Big);
    reply.status
}

#[test]
fn code_sets_are_settled_with_members_too_and_connections_are_not_lent() {
    live(async {
        let (one, first) = Object::start(1).await;
        let house = House::new(&[reference_to(first, 2)], Settings::default()).await;
        let sets = |chars| {
            let wchars = 0x0001_0109;
            CodeSets { chars, wchars }.encode(Endian::Big)
        };
        let (utf8, latin) = (sets(0x0501_0001), sets(0x0001_0001));
        let context = |id, data| ServiceContext { id, data };
        let mut a = TcpStream::connect(house.address).await.unwrap();
        let mut b = TcpStream::connect(house.address).await.unwrap();
        let mut c = TcpStream::connect(house.address).await.unwrap();
        // BiDirIIOP is about the client's connection, and nothing for a member.
        send(
            &mut a,
            1,
            &[context(1, &utf8), context(5, b"\0"), context(9, b"x")],
        )
        .await;
        send(&mut a, 2, &[context(9, b"y")]).await;
        send(&mut b, 1, &[context(1, &utf8)]).await;
        send(&mut b, 2, &[]).await;
        assert_eq!(one.connections.get(), 1);
        send(&mut c, 8, &[context(1, &latin)]).await;
        assert_eq!(one.connections.get(), 2);
        // Who settles nothing shares neither connection.
        let mut d = TcpStream::connect(house.address).await.unwrap();
        send(&mut d, 9, &[]).await;
        assert_eq!(one.connections.get(), 3);
        // Of what nobody offers there could be any number.
        let odd = sets(0x0001_0020);
        let mut e = TcpStream::connect(house.address).await.unwrap();
        let status = send(&mut e, 1, &[context(1, &odd)]).await;
        assert_eq!(status, ReplyStatus::SystemException);
        assert_eq!(one.connections.get(), 3);
        let wanted = [vec![1, 9], vec![9], vec![], vec![], vec![1], vec![]];
        assert_eq!(*one.contexts.borrow(), wanted);
    });
}

/// A server keeps what is settled for the version in which it came: each version has
/// connections of its own, on which its code sets are settled, in whatever order clients come.
#[test]
fn fronts_d1_clients_of_another_version_share_no_connection() {
    live(async {
        let (one, first) = Object::start(1).await;
        // One with an old reference gets all requests in GIOP 1.0.
        let (old, second) = Object::start(2).await;
        for (member, at, connections) in [
            (&one, reference_to(first, 2), 3),
            (&old, reference_to(second, 0), 1),
        ] {
            let house = House::new(&[at], Settings::default()).await;
            let sets = CodeSets {
                chars: 0x0501_0001,
                wchars: 0x0001_0109,
            };
            let sets = sets.encode(Endian::Big);
            let settles = [ServiceContext { id: 1, data: &sets }];
            let minors = [1, 0, 2, 1, 2];
            for minor in minors {
                let mut client = TcpStream::connect(house.address).await.unwrap();
                let version = Version::for_minor(minor);
                send_in(version, &mut client, 1, &settles).await;
                send_in(version, &mut client, 2, &[]).await;
            }
            assert_eq!(member.connections.get(), connections);
            let settled = member.contexts.borrow();
            let settled = settled.iter().filter(|contexts| contexts.contains(&1));
            assert_eq!(settled.count(), connections, "on each connection once");
        }
    });
}

#[test]
fn connections_that_nobody_uses_are_closed() {
    live(async {
        let (one, first) = Object::start(1).await;
        let settings = Settings {
            idle_timeout: Duration::from_millis(10),
            ..Settings::default()
        };
        let house = House::new(&[reference_to(first, 2)], settings).await;
        house.ask(1.0).await.unwrap();
        while house.counters.open.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        house.ask(1.0).await.unwrap();
        assert_eq!(one.connections.get(), 2);
    });
}

#[test]
fn large_arguments_come_in_fragments_and_go_whole() {
    live(async {
        let (one, first) = Object::start(1).await;
        let house = House::new(&[reference_to(first, 2)], Settings::default()).await;
        let key = Key::Group(1).to_bytes();
        let body = vec![7; 300_000];
        for version in [Version::V1_1, Version::V1_2] {
            let mut stream = TcpStream::connect(house.address).await.unwrap();
            let request = Request {
                body: &body,
                ..Request::new(5, Target::Key(&key), "large")
            };
            let mut whole = Vec::new();
            request.encode(version, Endian::Little, &mut whole).unwrap();
            let mut rest = &whole[..];
            let mut first = true;
            while !rest.is_empty() {
                let head = if first { 0 } else { Header::LEN };
                let id = !first && version == Version::V1_2;
                let (piece, tail) = rest.split_at(rest.len().min(64_000));
                let header = Header {
                    version,
                    endian: Endian::Little,
                    more: !tail.is_empty(),
                    kind: match first {
                        true => evenkeel_giop::message::Kind::Request,
                        false => evenkeel_giop::message::Kind::Fragment,
                    },
                    size: (piece.len() + head + if id { 4 } else { 0 } - Header::LEN) as u32,
                };
                stream.write_all(&header.encode()).await.unwrap();
                if id {
                    stream.write_all(&5u32.to_le_bytes()).await.unwrap();
                }
                let piece = if first { &piece[Header::LEN..] } else { piece };
                stream.write_all(piece).await.unwrap();
                (rest, first) = (tail, false);
            }
            let mut head = [0; Header::LEN];
            stream.read_exact(&mut head).await.unwrap();
            let header = Header::peek(&head, 1 << 20).unwrap().unwrap();
            let mut reply = vec![0; header.size as usize];
            stream.read_exact(&mut reply).await.unwrap();
            assert!(reply.ends_with(&body), "{version:?}");
        }
        assert_eq!(*one.seen.borrow(), ["large", "large"]);
    });
}
