//! A proxy with scripted members. Everything is on loopback and port 0, and sockets
//! have a read limit that only a hang can meet.

#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use evenkeel_core::group::{Group, GroupSettings, GroupState};
use evenkeel_core::load::Location;
use evenkeel_core::member::{Member, MemberId, Reason, Slot, Weight};
use evenkeel_core::strategy::{self, Values};
use evenkeel_manager::config::sources::Sources;
use evenkeel_manager::config::{
    Forward, HttpOptions, MemberProtocol, Protocol, ReturnPath, Rule, Timeouts,
};
use evenkeel_manager::snapshot::{GroupHandle, RuleSnapshot, Snapshot, Target};
use evenkeel_manager::subsystem::Subsystem;
use evenkeel_net::Clock;
use evenkeel_proxy::Proxy;
use evenkeel_proxy::access::{AccessLog, Lines, Record};
use evenkeel_proxy::metrics::RuleTotals;

/// Time that only a hang takes.
pub(crate) const HANG: Duration = Duration::from_secs(100);

pub(crate) const RULE: &str = "test";

/// A proxy with one rule.
pub(crate) struct Bed {
    pub proxy: Proxy,
    pub rule: Rule,
    pub group: Arc<GroupHandle>,
    pub clock: Clock,
    sources: Sources,
    log: Receiver<Record<'static>>,
}

impl Bed {
    /// Starts a proxy with one worker, one rule that `change` changes, and members at `addresses`.
    pub(crate) fn new(
        protocol: Protocol,
        addresses: &[SocketAddr],
        change: impl FnOnce(&mut Rule),
    ) -> Bed {
        Bed::with_members(protocol, members(addresses), 16, change)
    }

    pub(crate) fn with_members(
        protocol: Protocol,
        members: Vec<Member>,
        max_queue: usize,
        change: impl FnOnce(&mut Rule),
    ) -> Bed {
        Bed::with_group(
            protocol,
            group(members, GroupSettings::default()),
            max_queue,
            change,
        )
    }

    pub(crate) fn with_group(
        protocol: Protocol,
        group: Group,
        max_queue: usize,
        change: impl FnOnce(&mut Rule),
    ) -> Bed {
        let mut bed = Bed::unused(protocol, group, max_queue);
        bed.apply_change(change);
        bed
    }

    /// Members at `addresses` whose group has load sources.
    pub(crate) fn with_sources(
        protocol: Protocol,
        addresses: &[SocketAddr],
        sources: Sources,
    ) -> Bed {
        let group = group(members(addresses), GroupSettings::default());
        let mut bed = Bed::unused(protocol, group, 16);
        bed.sources = sources;
        bed.apply_change(|_| {});
        bed
    }

    fn unused(protocol: Protocol, group: Group, max_queue: usize) -> Bed {
        let clock = Clock::start();
        let proxy = Proxy::start(clock, 1).unwrap();
        let (sender, records) = channel();
        let (log, _) = AccessLog::new_channel(Box::new(Told(sender)));
        proxy.set_access_log(Some(&log));
        let rule = rule(protocol);
        let group = GroupHandle::new(Arc::new(group), max_queue);
        Bed {
            proxy,
            rule,
            group: Arc::new(group),
            clock,
            sources: Sources::default(),
            log: records,
        }
    }

    /// Changes the rule and takes it into use.
    pub(crate) fn apply_change(&mut self, change: impl FnOnce(&mut Rule)) {
        change(&mut self.rule);
        let target = Target {
            sources: self.sources.clone(),
            ..Target::new(Arc::clone(&self.group))
        };
        let snapshot = Snapshot {
            generation: 1,
            reload: true,
            rules: vec![Arc::new(RuleSnapshot::new(self.rule.clone(), target))],
            ..Snapshot::default()
        };
        self.proxy.prepare(&Arc::new(snapshot)).unwrap()();
    }

    /// Takes the rule away.
    pub(crate) fn remove_rule(&mut self) {
        self.proxy.prepare(&Arc::new(Snapshot::default())).unwrap()();
    }

    pub(crate) fn address(&self) -> SocketAddr {
        let listen = self.rule.listen[0].socket().unwrap();
        self.proxy.local_address(RULE, listen).unwrap()
    }

    pub(crate) fn connect_client(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        set_timeouts(&stream);
        stream
    }

    pub(crate) fn rule_totals(&self) -> RuleTotals {
        self.proxy.metrics().rule_totals()[RULE]
    }

    /// Waits until a count is this: whoever is on the other end of a connection may see its end a moment
    /// before that is counted.
    #[track_caller]
    pub(crate) fn wait_for_count(&self, count: impl Fn(&RuleTotals) -> u64, wanted: u64) {
        let limit = Instant::now() + HANG;
        loop {
            let found = count(&self.rule_totals());
            if found == wanted {
                return;
            }
            assert!(Instant::now() < limit, "{found}, and not {wanted}");
            std::thread::yield_now();
        }
    }

    /// The next access record.
    pub(crate) fn next_record(&self) -> Record<'static> {
        self.log.recv_timeout(HANG).unwrap()
    }

    pub(crate) fn in_flight(&self) -> u32 {
        let group = self.group.current.load();
        group.members().iter().map(|m| m.slot.in_flight()).sum()
    }

    /// Waits until nothing is in flight: a client may have all of its answer a moment before that is counted.
    #[track_caller]
    pub(crate) fn wait_until_idle(&self) {
        self.wait_for_in_flight(|count| count == 0);
    }

    /// Waits until something is in flight.
    #[track_caller]
    pub(crate) fn wait_until_busy(&self) {
        self.wait_for_in_flight(|count| count > 0);
    }

    #[track_caller]
    fn wait_for_in_flight(&self, is_wanted: impl Fn(u32) -> bool) {
        let limit = Instant::now() + HANG;
        while !is_wanted(self.in_flight()) {
            assert!(Instant::now() < limit, "{} in flight", self.in_flight());
            std::thread::yield_now();
        }
    }
}

/// A log that has no lines, but tells records.
#[derive(Debug)]
struct Told(Sender<Record<'static>>);

impl Lines for Told {
    fn push(&mut self, record: &Record<'_>, _: &mut Vec<u8>) {
        // The test may have ended.
        let _ = self.0.send(record.clone().into_owned());
    }

    fn another(&self) -> Box<dyn Lines> {
        Box::new(Told(self.0.clone()))
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.proxy.drain(Duration::ZERO);
        self.proxy.join_workers();
    }
}

pub(crate) fn set_timeouts(stream: &TcpStream) {
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream.set_write_timeout(Some(HANG)).unwrap();
}

pub(crate) fn members(addresses: &[SocketAddr]) -> Vec<Member> {
    let member = |(index, address): (usize, &SocketAddr)| Member {
        id: MemberId(index as u64 + 1),
        name: format!("m{}", index + 1).into(),
        given_name: None,
        address: (*address).into(),
        host: "192.0.2.1".into(),
        max_connections: None,
        location: Arc::new(Location::new(address.to_string())),
        zone: None,
        slot: Arc::new(Slot::new(Weight::ONE)),
    };
    addresses.iter().enumerate().map(member).collect()
}

pub(crate) fn group(members: Vec<Member>, settings: GroupSettings) -> Group {
    let kind = strategy::find("random").unwrap();
    Group::new(
        "members",
        settings,
        &Values::defaults(kind),
        members,
        Arc::new(GroupState::default()),
    )
}

/// Takes the member at `index` out, or back in.
pub(crate) fn set_down(bed: &Bed, index: usize, down: bool) {
    bed.group.current.load().members()[index]
        .slot
        .set(Reason::Maintenance, down);
}

pub(crate) fn rule(protocol: Protocol) -> Rule {
    let long = Duration::from_secs(600);
    Rule {
        auth: None,
        limits: Default::default(),
        request_limits: Vec::new(),
        compression: None,
        responses: Default::default(),
        routes: Default::default(),
        pass_through: Vec::new(),
        name: RULE.into(),
        enabled: true,
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0)).into()],
        listen_mode: None,
        protocol,
        group: "members".into(),
        terminate_on_disable: false,
        connect_retries: 2,
        cost: Default::default(),
        priority: 4,
        client_priorities: Vec::new(),
        half_close: true,
        max_connections: 1000,
        timeouts: Timeouts {
            connect: long,
            idle: long,
            header: long,
            keep_alive: long,
            body: long,
            response: long,
            queue: long,
            sni: long,
            accept_proxy: long,
            request: None,
            attempt: None,
        },
        sni: Default::default(),
        ftp: Default::default(),
        udp: Default::default(),
        forward: Forward::Proxy,
        return_path: ReturnPath::Route,
        anycast: false,
        http: HttpOptions {
            http2: true,
            http2_streams: 128,
            member_protocol: MemberProtocol::Http1,
            max_header_bytes: 16 * 1024,
            max_header_count: 100,
            x_forwarded: true,
            forwarded: false,
            via: None,
            trust_forwarded: false,
            retries: 2,
            retry_budget: 0.2,
            pool_idle_connections: 16,
            pool_idle_timeout: long,
            ..HttpOptions::default()
        },
        tls: None,
        accept_proxy: None,
    }
}

/// A member that gives each connection, with its number from 0, to `script`.
pub(crate) fn member(script: impl Fn(usize, TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let script = Arc::new(script);
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (stream, script) = (stream.unwrap(), Arc::clone(&script));
            set_timeouts(&stream);
            std::thread::spawn(move || script(number, stream));
        }
    });
    address
}

/// An address at which nobody listens, as long as this process lives: its port is taken.
pub(crate) fn closed_address() -> SocketAddr {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    std::mem::forget(socket);
    address
}

/// Sends back what it gets, and ends when the other side has.
pub(crate) fn echo_bytes(mut stream: TcpStream) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..n]).is_err() {
            return;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
}

/// All bytes until the end.
pub(crate) fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    all
}

/// True if the stream was cut, rather than ended.
pub(crate) fn is_cut(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    matches!(
        stream.read_to_end(&mut rest),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset
    )
}

/// Reads exactly what is expected.
pub(crate) fn expect(stream: &mut TcpStream, expected: &[u8]) {
    let mut found = vec![0; expected.len()];
    stream.read_exact(&mut found).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&found),
        String::from_utf8_lossy(expected)
    );
}

/// Makes the peer see a reset.
pub(crate) fn reset_stream(stream: TcpStream) {
    socket2::SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
}

/// Bytes that no offset error leaves unnoticed.
pub(crate) fn byte_pattern(len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(len as u64);
    (0..len).map(|_| rng.u8(..)).collect()
}

/// A head, up to the empty line; empty at the end of the stream.
pub(crate) fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1..) => head.push(byte[0]),
            Ok(0) | Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

/// A member that answers every request (without a body) with `answer(head)`.
pub(crate) fn http_member(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> SocketAddr {
    member(move |_, mut stream| {
        loop {
            let head = read_head(&mut stream);
            if head.is_empty() || stream.write_all(&answer(&head)).is_err() {
                return;
            }
        }
    })
}

/// A response with a length.
pub(crate) fn ok(body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut response = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    let mut response = std::mem::take(&mut response).into_bytes();
    response.extend_from_slice(body);
    response
}

/// Sends `request` and reads one response head.
pub(crate) fn send_request(client: &mut TcpStream, request: &str) -> String {
    client.write_all(request.as_bytes()).unwrap();
    read_head(client)
}

pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n")
}

/// Sends a GET and expects `body`, with a length.
pub(crate) fn expect_get(client: &mut TcpStream, path: &str, body: &str) {
    let head = send_request(client, &get(path));
    assert!(head.starts_with("HTTP/1.1 200 "), "{head:?}");
    assert!(
        head.contains(&format!("Content-Length: {}\r\n", body.len())),
        "{head}"
    );
    expect(client, body.as_bytes());
}

// Frames as bytes.

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Fields, each a literal without a name in a table.
pub(crate) fn fields<N: AsRef<[u8]>, V: AsRef<[u8]>>(fields: &[(N, V)]) -> Vec<u8> {
    literal_fields(0, fields)
}

/// Returns fields whose representations begin with `first`: 0x40 puts them into the dynamic table.
pub(crate) fn literal_fields<N: AsRef<[u8]>, V: AsRef<[u8]>>(
    first: u8,
    fields: &[(N, V)],
) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(first);
        for text in [name.as_ref(), value.as_ref()] {
            block.push(text.len() as u8);
            block.extend_from_slice(text);
        }
    }
    block
}

pub(crate) const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "test"),
];

pub(crate) fn get_frame(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &fields(&GET))
}

/// A connection that has sent its preface and empty settings.
pub(crate) fn connect_raw(bed: &Bed) -> TcpStream {
    let mut client = bed.connect_client();
    client.write_all(PREFACE).unwrap();
    client.write_all(&frame(4, 0, 0, &[])).unwrap();
    client
}

/// The next frame: kind, stream, payload. None at the end of the connection.
pub(crate) fn next_frame(client: &mut TcpStream) -> Option<(u8, u32, Vec<u8>)> {
    let mut header = [0; 9];
    client.read_exact(&mut header).ok()?;
    let len = u32::from_be_bytes([0, header[0], header[1], header[2]]);
    let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
    let mut payload = vec![0; len as usize];
    client.read_exact(&mut payload).ok()?;
    Some((header[3], stream, payload))
}

/// Reads until a frame of this kind.
pub(crate) fn until_frame(client: &mut TcpStream, kinds: &[u8]) -> Option<(u8, u32, Vec<u8>)> {
    loop {
        let next = next_frame(client)?;
        if kinds.contains(&next.0) {
            return Some(next);
        }
    }
}
