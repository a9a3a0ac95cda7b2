//! The client against the server, and against servers that misbehave.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_giop::cdr::{Endian, Reader, Writer};
use evenkeel_giop::client::{Call, CallError, Client, Settings};
use evenkeel_giop::context::{CODE_SETS, CodeSetInfo, CodeSets};
use evenkeel_giop::corbaloc::{Reference, ResolveError};
use evenkeel_giop::exception::{Completion, Kind as Exception, SystemException};
use evenkeel_giop::ior::{IiopProfile, Ior, TaggedPart};
use evenkeel_giop::message::{
    Content, GiopError, Header, Message, Reply, ReplyStatus, Request, Target, Version,
};
use evenkeel_giop::server::{self, ReplyOutput, Server, Service};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::LocalSet;
use tokio::time::Instant;

/// Counts of what the test server has seen.
#[derive(Default)]
struct Seen {
    connections: AtomicU32,
    requests: AtomicU32,
    cancels: AtomicU32,
    code_sets: Mutex<Vec<Option<CodeSets>>>,
}

/// An object whose operations do what their names say.
struct Objects {
    seen: Arc<Seen>,
    elsewhere: Ior,
}

impl Service for Objects {
    type Connection = ();

    fn connected(&self, _peer: SocketAddr) {
        self.seen.connections.fetch_add(1, Ordering::SeqCst);
    }

    fn message(
        &self,
        _connection: &mut (),
        message: Message<'_>,
        out: &ReplyOutput<'_>,
    ) -> Result<(), GiopError> {
        let Content::Request(request) = message.read_content()? else {
            self.seen.cancels.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        };
        self.seen.requests.fetch_add(1, Ordering::SeqCst);
        let sets = request.contexts.get(CODE_SETS);
        let sets = sets.map(|data| CodeSets::decode(data).unwrap());
        self.seen.code_sets.lock().unwrap().push(sets);
        let endian = message.header.endian;
        let mut writer = Writer::new(endian);
        let mut body_at = 0;
        let mut body = request.body;
        let status = match request.operation {
            "echo" => {
                body_at = request.body_at;
                ReplyStatus::NoException
            }
            "transient" => {
                let exception = SystemException::new(Exception::Transient).with_minor(3);
                exception.write(&mut writer);
                body = writer.bytes();
                ReplyStatus::SystemException
            }
            "not_found" => {
                writer.write_string("IDL:test/NotFound:1.0");
                writer.write_u64(7);
                body = writer.bytes();
                ReplyStatus::UserException
            }
            "elsewhere" => {
                self.elsewhere.write(&mut writer);
                body = writer.bytes();
                ReplyStatus::LocationForward
            }
            "resolve_str" => {
                let minor = message.header.version.minor();
                let reader = Reader::at_offset(request.body_at, request.body, endian);
                let name = reader.of_minor(minor).read_string("name").unwrap();
                if name == "stock/New York.desk" {
                    self.elsewhere.write(&mut writer);
                    body = writer.bytes();
                    ReplyStatus::NoException
                } else {
                    writer.write_string("IDL:omg.org/CosNaming/NamingContext/NotFound:1.0");
                    body = writer.bytes();
                    ReplyStatus::UserException
                }
            }
            "by_reference" => match request.target {
                Target::Reference { .. } => ReplyStatus::NoException,
                _ => {
                    writer.write_u16(2);
                    body = writer.bytes();
                    ReplyStatus::NeedsAddressingMode
                }
            },
            _ => return Ok(()),
        };
        let reply = Reply {
            body_at,
            ..Reply::new(request.request_id, status, body)
        };
        out.write(|to| reply.encode(message.header.version, endian, to))
    }
}

/// A server in a thread of its own, until the test ends.
fn serve(elsewhere: impl FnOnce(SocketAddr) -> Ior) -> (SocketAddr, Arc<Seen>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(Seen::default());
    let (theirs, elsewhere) = (Arc::clone(&seen), elsewhere(address));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let objects = Rc::new(Objects {
            seen: theirs,
            elsewhere,
        });
        runtime.block_on(LocalSet::new().run_until(async {
            let listener = TcpListener::from_std(listener).unwrap();
            let server = Server::new(server::Settings::default());
            server
                .serve_clients(listener, objects, std::future::pending())
                .await;
        }));
    });
    (address, seen)
}

fn reference(address: SocketAddr, minor: u8) -> Ior {
    with_component(address, minor, None)
}

fn with_component(address: SocketAddr, minor: u8, component: Option<TaggedPart>) -> Ior {
    let profile = IiopProfile {
        minor,
        host: "127.0.0.1".into(),
        port: address.port(),
        object_key: b"key".to_vec(),
        components: component.into_iter().collect(),
    };
    Ior {
        type_id: "IDL:test/Object:1.0".into(),
        profiles: vec![profile.to_tagged()],
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(100)
}

fn arguments(writer: &mut Writer) {
    writer.write_u8(1);
    writer.write_f64(2.5);
    writer.write_string("grüß");
}

#[tokio::test]
async fn calls_get_their_results_in_all_versions_on_one_connection_each() {
    let (address, seen) = serve(|_| Ior::default());
    let client = Client::new(Settings::default());
    for minor in 0..3 {
        let target = reference(address, minor);
        for _ in 0..3 {
            let call = Call::new(&target, "echo", soon()).with_arguments(arguments);
            let body = client.call(&call).await.unwrap();
            assert_eq!(body.version(), Version::for_minor(minor));
            let mut reader = body.reader();
            assert_eq!(reader.read_u8(), Ok(1));
            assert_eq!(reader.read_f64(), Ok(2.5));
            assert_eq!(reader.read_string("text").unwrap(), "grüß");
            assert_eq!(reader.remaining_bytes(), 0);
        }
    }
    assert_eq!(seen.connections.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn many_calls_are_under_way_on_one_connection() {
    let (address, seen) = serve(|_| Ior::default());
    let client = Client::new(Settings {
        max_pending: 8,
        ..Settings::default()
    });
    let target = Arc::new(reference(address, 2));
    let calls: Vec<_> = (0..200u32)
        .map(|number| {
            let (client, target) = (client.clone(), Arc::clone(&target));
            tokio::spawn(async move {
                let call = Call::new(&target, "echo", soon());
                let call = call.with_arguments(|writer| writer.write_u32(number));
                let body = client.call(&call).await.unwrap();
                assert_eq!(body.reader().read_u32(), Ok(number));
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    assert_eq!(seen.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn exceptions_are_errors_that_say_whether_to_call_again() {
    let (address, _) = serve(|_| Ior::default());
    let client = Client::new(Settings::default());
    let target = reference(address, 2);
    let error = client.call(&Call::new(&target, "transient", soon())).await;
    let exception = SystemException::new(Exception::Transient).with_minor(3);
    assert_eq!(error, Err(CallError::System(exception)));
    let error = client.call(&Call::new(&target, "not_found", soon())).await;
    let Err(CallError::User { id, body }) = error else {
        panic!("{error:?}")
    };
    assert_eq!(id, "IDL:test/NotFound:1.0");
    let mut reader = body.reader();
    reader.read_string("id").unwrap();
    assert_eq!(reader.read_u64(), Ok(7));
}

#[tokio::test]
async fn forwards_are_followed_or_handed_out_and_never_for_ever() {
    let (address, seen) = serve(|own| reference(own, 2));
    let client = Client::new(Settings {
        max_forwards: 3,
        ..Settings::default()
    });
    let round = reference(address, 2);
    let error = client.call(&Call::new(&round, "elsewhere", soon())).await;
    assert_eq!(error, Err(CallError::TooManyForwards(3)));
    assert_eq!(seen.requests.load(Ordering::SeqCst), 4);
    let call = Call::new(&round, "elsewhere", soon()).do_not_follow();
    let error = client.call(&call).await;
    assert_eq!(error, Err(CallError::Forward(Box::new(round.clone()))));
    let call = Call::new(&round, "by_reference", soon());
    client.call(&call).await.unwrap();
}

#[tokio::test]
async fn a_naming_service_is_asked_for_what_corbaname_says() {
    let elsewhere = Ior::new_iiop("IDL:test/Desk:1.0", "desk", 5, b"desk");
    let found = elsewhere.clone();
    let (address, seen) = serve(move |_| elsewhere);
    let client = Client::new(Settings::default());
    let resolve = async |text: String| {
        let reference: Reference = text.parse().unwrap();
        reference.resolve(&client, soon()).await
    };
    let known = format!("corbaname::1.2@{address}/Context#stock/New%20York.desk");
    assert_eq!(resolve(known).await.unwrap(), found);
    let unknown = resolve(format!("corbaname::{address}#nothing")).await;
    let error = unknown.unwrap_err().to_string();
    assert!(
        error.contains("\"nothing\"") && error.contains("NotFound"),
        "{error}"
    );
    assert_eq!(seen.requests.load(Ordering::SeqCst), 2);
    // These need no answer.
    let context = resolve(format!("corbaname::{address}")).await.unwrap();
    let profile = context.iiop_profiles().next().unwrap();
    assert_eq!(profile.object_key, b"NameService");
    let location = resolve(format!("corbaloc::{address}/key")).await.unwrap();
    assert_eq!(location.iiop_profiles().count(), 1);
    assert_eq!(resolve(found.to_string()).await.unwrap(), found);
    let initial = resolve("corbaname:rir:#a".into()).await.unwrap_err();
    assert!(matches!(initial, ResolveError::Initial(name) if name == "NameService"));
    assert_eq!(seen.requests.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn the_next_address_is_tried_when_one_cannot_be_reached() {
    let (address, _) = serve(|_| Ior::default());
    // Nobody listens there, and nobody else gets the port.
    let nobody = TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed = nobody.local_addr().unwrap();
    let client = Client::new(Settings::default());
    // As an alternate address, and in another profile.
    let component = TaggedPart::alternate_address("127.0.0.1", address.port());
    let alternate = with_component(closed, 2, Some(component));
    let mut second = reference(closed, 2);
    second.profiles.extend(reference(address, 1).profiles);
    for target in [&alternate, &second] {
        client
            .call(&Call::new(target, "echo", soon()))
            .await
            .unwrap();
    }
    let target = reference(closed, 2);
    let error = client.call(&Call::new(&target, "echo", soon())).await;
    let error = error.unwrap_err();
    assert!(matches!(error, CallError::Unreachable { .. }), "{error}");
    assert_eq!(error.completion_status(), Completion::No);
    let none = client
        .call(&Call::new(&Ior::default(), "echo", soon()))
        .await;
    assert_eq!(none, Err(CallError::NoAddress));
}

#[tokio::test]
async fn code_sets_are_settled_once_where_the_reference_asks_for_it() {
    let (address, seen) = serve(|_| Ior::default());
    let client = Client::new(Settings::default());
    let plain = reference(address, 2);
    let component = TaggedPart::code_sets(&CodeSetInfo::default());
    let asks = with_component(address, 2, Some(component));
    for target in [&plain, &asks, &asks, &plain] {
        client
            .call(&Call::new(target, "echo", soon()))
            .await
            .unwrap();
    }
    let sets = CodeSets {
        chars: 0x0501_0001,
        wchars: 0x0001_0109,
    };
    let wanted = [None, Some(sets), None, None];
    assert_eq!(*seen.code_sets.lock().unwrap(), wanted);
}

#[tokio::test]
async fn a_deadline_cancels_the_call_and_a_oneway_waits_for_nothing() {
    let (address, seen) = serve(|_| Ior::default());
    let client = Client::new(Settings::default());
    let target = reference(address, 2);
    let call = Call::new(&target, "oneway", soon());
    client.call_oneway(&call).await.unwrap();
    client
        .call(&Call::new(&target, "echo", soon()))
        .await
        .unwrap();
    // What is not sent in time is not cancelled.
    let deadline = Instant::now() + Duration::from_secs(2);
    let call = Call::new(&target, "never", deadline);
    assert_eq!(client.call(&call).await, Err(CallError::Timeout));
    // Behind the cancel on the same connection.
    client
        .call(&Call::new(&target, "echo", soon()))
        .await
        .unwrap();
    assert_eq!(seen.cancels.load(Ordering::SeqCst), 1);
    assert_eq!(seen.connections.load(Ordering::SeqCst), 1);
}

/// Reads one whole message.
async fn receive(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = vec![0; Header::LEN];
    stream.read_exact(&mut bytes).await.unwrap();
    let header = Header::peek(&bytes, 1 << 20).unwrap().unwrap();
    bytes.resize(header.total(), 0);
    let rest = bytes.get_mut(Header::LEN..).unwrap();
    stream.read_exact(rest).await.unwrap();
    bytes
}

async fn answer(stream: &mut TcpStream, bytes: &[u8]) {
    let message = Message::from_whole(bytes).unwrap();
    let Content::Request(Request { request_id, .. }) = message.read_content().unwrap() else {
        panic!("{message:?}")
    };
    let mut out = Vec::new();
    let reply = Reply::new(request_id, ReplyStatus::NoException, &[]);
    reply.encode(Version::V1_2, Endian::Big, &mut out).unwrap();
    stream.write_all(&out).await.unwrap();
}

/// Calls a server that misbehaves: it ends a connection, on which a request is outstanding, with
/// `last_words`, and answers further connections only if `then_serve`. Returns the result of the
/// call and the number of accepted connections.
async fn after(last_words: &'static [u8], then_serve: bool) -> (Result<(), CallError>, usize) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = reference(listener.local_addr().unwrap(), 2);
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let first = count.fetch_add(1, Ordering::SeqCst) == 0;
            let request = receive(&mut stream).await;
            match first || !then_serve {
                true => stream.write_all(last_words).await.unwrap(),
                false => answer(&mut stream, &request).await,
            }
        }
    });
    let client = Client::new(Settings::default());
    let result = client.call(&Call::new(&target, "work", soon())).await;
    (result.map(|_| ()), accepted.load(Ordering::SeqCst))
}

#[tokio::test]
async fn only_what_was_certainly_not_carried_out_is_sent_again() {
    let close = b"GIOP\x01\x02\x00\x05\0\0\0\0";
    assert_eq!(after(close, true).await, (Ok(()), 2));
    // A server that never serves is not asked for ever.
    let (result, accepted) = after(close, false).await;
    assert!(
        matches!(result, Err(CallError::Unreachable { .. })),
        "{result:?}"
    );
    assert_eq!(accepted, 3);
    let (result, accepted) = after(b"", true).await;
    assert!(matches!(result, Err(CallError::Lost { .. })), "{result:?}");
    assert_eq!(result.unwrap_err().completion_status(), Completion::Maybe);
    assert_eq!(accepted, 1);
    let (result, _) = after(b"GIOP\x01\x02\x00\x06\0\0\0\0", true).await;
    assert!(
        matches!(result, Err(CallError::MessageError(_))),
        "{result:?}"
    );
    for wrong in [
        &b"HTTP/1.1 400\r\n\r\n"[..],
        b"GIOP\x01\x02\x00\x01\xff\xff\xff\xff",
    ] {
        let (result, _) = after(wrong, true).await;
        assert!(matches!(result, Err(CallError::NotValid(_))), "{result:?}");
    }
}

#[tokio::test]
async fn a_connection_that_is_not_used_is_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = reference(listener.local_addr().unwrap(), 2);
    let client = Client::new(Settings {
        idle_timeout: Duration::from_millis(20),
        ..Settings::default()
    });
    let (closed, is_closed) = tokio::sync::oneshot::channel();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let request = receive(&mut stream).await;
        answer(&mut stream, &request).await;
        assert_eq!(stream.read(&mut [0; 16]).await.unwrap(), 0);
        closed.send(()).unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let request = receive(&mut stream).await;
        answer(&mut stream, &request).await;
    });
    client
        .call(&Call::new(&target, "work", soon()))
        .await
        .unwrap();
    is_closed.await.unwrap();
    client
        .call(&Call::new(&target, "work", soon()))
        .await
        .unwrap();
    server.await.unwrap();
}

#[tokio::test]
async fn the_limit_of_replies_may_change_c4() {
    let (address, _) = serve(|_| Ior::default());
    let client = Client::new(Settings {
        max_message: 16,
        ..Settings::default()
    });
    let target = reference(address, 2);
    let call = async || {
        let call = Call::new(&target, "echo", soon()).with_arguments(arguments);
        client.call(&call).await
    };
    assert!(call().await.is_err());
    client.set_max_message(1 << 20);
    call().await.unwrap();
    client.set_max_message(16);
    assert!(call().await.is_err());
}
