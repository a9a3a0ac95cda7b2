//! Both roles against the `h2` library at the other end.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::cell::RefCell;
use std::collections::HashMap;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_http2::{
    Config, Connection, Event, Fields, Head, Key, Next, NotOpened, Opening, Role,
};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use proptest::prelude::*;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

/// A message with a body.
#[derive(Clone, Debug, PartialEq)]
struct Message {
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    trailers: Vec<(String, String)>,
}

fn message() -> impl Strategy<Value = Message> {
    let field = ("x-[a-c]{1,2}|cookie|authorization|accept", "[ -~]{0,80}");
    let fields = move |most| proptest::collection::vec(field, 0..most);
    let body = prop_oneof![Just(0), 0_usize..100, 0_usize..150_000];
    (fields(8), body, any::<u8>(), fields(3)).prop_map(|(fields, length, first, trailers)| {
        let trim = |fields: Vec<(String, String)>| {
            let trim = |(name, value): (String, String)| (name, value.trim().to_owned());
            fields.into_iter().map(trim).collect::<Vec<_>>()
        };
        Message {
            fields: trim(fields),
            body: (0..length).map(|n| (n % 251) as u8 ^ first).collect(),
            trailers: trim(trailers),
        }
    })
}

fn map_of(fields: &[(String, String)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        map.append(name, HeaderValue::from_str(value).unwrap());
    }
    map
}

fn fields_of(fields: &[(String, String)]) -> Fields {
    let mut all = Fields::new();
    for (name, value) in fields {
        assert!(all.push(name.as_bytes(), value.as_bytes()));
    }
    all
}

/// In the order of names: a map has no other.
fn sorted(mut fields: Vec<(String, String)>) -> Vec<(String, String)> {
    fields.sort_by(|(one, _), (other, _)| one.cmp(other));
    fields
}

fn listed_map(map: &HeaderMap) -> Vec<(String, String)> {
    let fields = map.iter();
    sorted(
        fields
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect(),
    )
}

fn listed(fields: &Fields) -> Vec<(String, String)> {
    let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
    sorted(
        fields
            .iter()
            .map(|(name, value)| (name.to_owned(), text(value)))
            .collect(),
    )
}

/// A message that is sent or received by this end.
#[derive(Default)]
struct Half {
    out: Option<Message>,
    sent: usize,
    head: Option<Head>,
    body: Vec<u8>,
    trailers: Option<Head>,
    ended: bool,
}

impl Half {
    /// Sends what there is room for.
    fn write(&mut self, connection: &mut Connection, key: Key) {
        let Some(out) = &self.out else {
            return;
        };
        let has_trailers = !out.trailers.is_empty();
        loop {
            let rest = &out.body[self.sent..];
            if rest.is_empty() && has_trailers {
                connection
                    .send_trailers(key, &fields_of(&out.trailers))
                    .unwrap();
                break;
            }
            let n = connection.send_data(key, rest, !has_trailers).unwrap();
            self.sent += n;
            match self.sent == out.body.len() {
                true if has_trailers => {}
                true => break,
                false if n == 0 => return,
                false => {}
            }
        }
        self.out = None;
    }

    /// Reads what has come; in pieces, so that windows open late.
    fn read(&mut self, connection: &mut Connection, key: Key) {
        while let Some(head) = connection.take_head(key) {
            self.head = Some(head);
        }
        loop {
            let n = match connection.read(key) {
                Next::Data(data) => {
                    let n = data.len().min(1000);
                    self.body.extend_from_slice(&data[..n]);
                    n
                }
                Next::Wait => return,
                Next::End => break,
                Next::Broken(end) => panic!("{end:?}"),
            };
            connection.consume_body(key, n);
        }
        self.trailers = connection.take_trailers(key);
        self.ended = true;
    }
}

struct Shared {
    connection: Connection,
    halves: HashMap<Key, Half>,
    task: Option<Waker>,
}

/// Moves bytes between a connection and a pipe, and does what `on_event` says.
async fn drive(
    shared: Rc<RefCell<Shared>>,
    mut io: DuplexStream,
    mut on_event: impl FnMut(&mut Shared, Event),
) {
    std::future::poll_fn(move |cx: &mut Context<'_>| {
        let mut shared = shared.borrow_mut();
        let shared = &mut *shared;
        shared.task = Some(cx.waker().clone());
        loop {
            let mut moved = false;
            let mut space = [0; 5000];
            let mut space = ReadBuf::new(&mut space);
            if let Poll::Ready(read) = Pin::new(&mut io).poll_read(cx, &mut space) {
                read.unwrap();
                if space.filled().is_empty() {
                    return Poll::Ready(());
                }
                shared
                    .connection
                    .receive_bytes(space.filled(), Duration::ZERO)
                    .unwrap();
                moved = true;
            }
            while let Some(event) = shared.connection.next_event() {
                on_event(shared, event);
                moved = true;
            }
            let output = shared.connection.pending_output();
            if !output.is_empty()
                && let Poll::Ready(sent) = Pin::new(&mut io).poll_write(cx, output)
            {
                shared.connection.consume_output(sent.unwrap());
                moved = true;
            }
            if !moved {
                return Poll::Pending;
            }
        }
    })
    .await;
}

fn connection(role: Role) -> Rc<RefCell<Shared>> {
    Rc::new(RefCell::new(Shared {
        connection: Connection::new(Config {
            role,
            max_streams: 20,
            max_head_bytes: 20_000,
            stream_window: 65_536,
            connection_window: 65_535,
        }),
        halves: HashMap::new(),
        task: None,
    }))
}

fn on<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    // Limit that only a hang reaches: a pipe of a few bytes takes seconds in a debug build on a busy machine.
    let limit = Duration::from_secs(100);
    tokio::task::LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(limit, test).await.unwrap()
    })
}

async fn body(mut stream: h2::RecvStream) -> (Vec<u8>, HeaderMap) {
    let mut all = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data.unwrap();
        all.extend_from_slice(&data);
        stream.flow_control().release_capacity(data.len()).unwrap();
    }
    (all, stream.trailers().await.unwrap().unwrap_or_default())
}

fn send(mut stream: h2::SendStream<Bytes>, message: &Message) {
    let body = Bytes::from(message.body.clone());
    if message.trailers.is_empty() {
        stream.send_data(body, true).unwrap();
    } else {
        stream.send_data(body, false).unwrap();
        stream.send_trailers(map_of(&message.trailers)).unwrap();
    }
}

/// A server of this crate that sends back what it gets.
fn echo(shared: &mut Shared, event: Event) {
    let (Event::Request(key) | Event::Readable(key) | Event::Writable(key)) = event else {
        return;
    };
    if matches!(event, Event::Request(_)) {
        shared.halves.insert(key, Half::default());
    }
    let Some(mut half) = shared.halves.remove(&key) else {
        return;
    };
    let was_ended = half.ended;
    if !was_ended {
        half.read(&mut shared.connection, key);
    }
    if half.ended && !was_ended {
        let head = half.head.take().unwrap();
        let trailers = half.trailers.take();
        let out = Message {
            fields: listed(&head.fields),
            body: std::mem::take(&mut half.body),
            trailers: trailers.map_or_else(Vec::new, |head| listed(&head.fields)),
        };
        let interim = Fields::new();
        shared
            .connection
            .send_head(key, 103, &interim, false)
            .unwrap();
        let fields = fields_of(&out.fields);
        shared
            .connection
            .send_head(key, 200, &fields, false)
            .unwrap();
        half.out = Some(out);
    }
    half.write(&mut shared.connection, key);
    if half.ended && half.out.is_none() {
        shared.connection.release_stream(key, None);
    } else {
        shared.halves.insert(key, half);
    }
}

fn compare(message: &Message, fields: &HeaderMap, body: &[u8], trailers: &HeaderMap) {
    assert_eq!(listed_map(fields), sorted(message.fields.clone()));
    assert!(body == message.body);
    assert_eq!(listed_map(trailers), sorted(message.trailers.clone()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_server_answers_the_other_librarys_client(
        messages in proptest::collection::vec(message(), 1..12),
        pipe in 10_usize..100_000,
        table in 0_u32..8000,
    ) {
        on(async {
            let (ours, theirs) = tokio::io::duplex(pipe);
            let shared = connection(Role::Server);
            tokio::task::spawn_local(drive(Rc::clone(&shared), ours, echo));
            let mut builder = h2::client::Builder::new();
            builder.header_table_size(table);
            let (client, connection) = builder.handshake(theirs).await.unwrap();
            tokio::task::spawn_local(connection);
            // Twice, so that tables are used.
            for _ in 0..2 {
                let mut waiting = Vec::new();
                for message in &messages {
                    let mut client = client.clone().ready().await.unwrap();
                    let mut request = Request::post("http://test/path?q").body(()).unwrap();
                    *request.headers_mut() = map_of(&message.fields);
                    let (response, stream) = client.send_request(request, false).unwrap();
                    send(stream, message);
                    let message = message.clone();
                    // At once, as they share a window.
                    waiting.push(tokio::task::spawn_local(async move {
                        let (parts, stream) = response.await.unwrap().into_parts();
                        assert_eq!(parts.status, 200);
                        let (body, trailers) = body(stream).await;
                        compare(&message, &parts.headers, &body, &trailers);
                    }));
                }
                for reading in waiting {
                    reading.await.unwrap();
                }
            }
            assert_eq!(shared.borrow().connection.stream_count(), 0);
            assert_eq!(shared.borrow().connection.unread_bytes(), 0);
        });
    }

    #[test]
    fn a_client_is_answered_by_the_other_librarys_server(
        messages in proptest::collection::vec(message(), 1..12),
        pipe in 10_usize..100_000,
        streams in 1_u32..10,
        // Windows of fewer bytes are a flood.
        window in 150_u32..100_000,
    ) {
        on(async {
            let (ours, theirs) = tokio::io::duplex(pipe);
            tokio::task::spawn_local(async move {
                let mut builder = h2::server::Builder::new();
                builder.max_concurrent_streams(streams).initial_window_size(window);
                let mut connection = builder.handshake(theirs).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    tokio::task::spawn_local(async move {
                        let (parts, stream) = request.into_parts();
                        assert_eq!(parts.uri, "http://test/path?q");
                        let (body, trailers) = body(stream).await;
                        let mut response = Response::new(());
                        *response.headers_mut() = parts.headers;
                        let stream = respond.send_response(response, false).unwrap();
                        let message = Message {
                            fields: Vec::new(),
                            body,
                            trailers: listed_map(&trailers),
                        };
                        send(stream, &message);
                    });
                }
            });
            let shared = connection(Role::Client);
            let mut todo: Vec<Message> = [messages.clone(), messages].concat();
            let mut asked = HashMap::new();
            let (tell, done) = tokio::sync::oneshot::channel();
            let mut tell = Some(tell);
            let driven = Rc::clone(&shared);
            tokio::task::spawn_local(drive(driven, ours, move |shared, event| {
                while shared.connection.has_settings()
                    && let Some(message) = todo.pop()
                {
                    let opening = Opening {
                        method: b"POST",
                        scheme: b"http",
                        authority: Some(b"test"),
                        path: b"/path?q",
                        ..Opening::default()
                    };
                    let fields = fields_of(&message.fields);
                    match shared.connection.open_request(opening, &fields, false) {
                        Ok(key) => {
                            let mut half = Half {
                                out: Some(message.clone()),
                                ..Half::default()
                            };
                            half.write(&mut shared.connection, key);
                            shared.halves.insert(key, half);
                            asked.insert(key, message);
                        }
                        Err(NotOpened::Full) => {
                            todo.push(message);
                            break;
                        }
                        Err(NotOpened::Closing) => panic!(),
                    }
                }
                if let Event::Readable(key) | Event::Writable(key) = event
                    && let Some(half) = shared.halves.get_mut(&key)
                {
                    half.write(&mut shared.connection, key);
                    half.read(&mut shared.connection, key);
                    if half.ended {
                        let half = shared.halves.remove(&key).unwrap();
                        let message = asked.remove(&key).unwrap();
                        let head = half.head.unwrap();
                        assert_eq!(head.status(), 200);
                        assert_eq!(listed(&head.fields), sorted(message.fields));
                        assert!(half.body == message.body);
                        let trailers = half.trailers.map_or_else(Vec::new, |head| listed(&head.fields));
                        assert_eq!(trailers, sorted(message.trailers));
                        shared.connection.release_stream(key, None);
                    }
                }
                if todo.is_empty() && asked.is_empty()
                    && let Some(tell) = tell.take()
                {
                    tell.send(()).unwrap();
                }
            }));
            done.await.unwrap();
            assert_eq!(shared.borrow().connection.unread_bytes(), 0);
        });
    }
}
