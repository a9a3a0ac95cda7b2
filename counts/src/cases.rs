//! Cases of the counts. Everything is the same each time: seeds, times, sizes.

use std::hint::black_box;
use std::time::Duration;

use evenkeel_config::HttpOptions;
use evenkeel_config::routing::{Conditions, Index};
use evenkeel_control::rate::{Rate, RateTable};
use evenkeel_corba::directory::Reference;
use evenkeel_corba::reply_to::ReplyTo;
use evenkeel_core::group::{Group, Outcome, Request, Ticket};
use evenkeel_core::key::hash;
use evenkeel_core::load::LoadId;
use evenkeel_core::strategy;
use evenkeel_core::time::Instant;
use evenkeel_counts::{group, group_in_zones};
use evenkeel_giop::cdr::Endian;
use evenkeel_giop::ior::Ior;
use evenkeel_giop::message::{self, Content, Header, Message, Target, Version as Giop};
use evenkeel_inference::chain::{ChainBuilder, HashKey};
use evenkeel_inference::group::RequestFacts;
use evenkeel_inference::scanner::Scanner;
use evenkeel_inference::usage::UsageReader;
use evenkeel_kernel::host::Host;
use evenkeel_kernel::loads::{Before, Loads};
use evenkeel_kernel::query::{Answer, ENVELOPE, Key, Query, WITH_PORTS};
use evenkeel_kernel::record::{Available, BASE, Base, Scope, Source};
use evenkeel_proxy::http1::chunked::Decoder;
use evenkeel_proxy::http1::forward::{Client, write_request, write_response};
use evenkeel_proxy::http1::{
    Fields, FramingFacts, Hop, Limits, ParseOutcome, RequestHead, ResponseHead, Version,
};
use evenkeel_wire::reporting::keys::{Key as ReportKey, Keys};
use evenkeel_wire::reporting::message::{self as report, Body, ServerState, Update};

use crate::Counter;

/// Counts all of them.
pub(crate) fn all(counter: &mut Counter) {
    decisions(counter);
    prompts(counter);
    bodies(counter);
    zones(counter);
    heads(counter);
    routes(counter);
    limits(counter);
    chunks(counter);
    giop(counter);
    report(counter);
    kernel(counter);
}

/// The choice alone, and with binding and finish, in groups of three sizes.
fn decisions(counter: &mut Counter) {
    for kind in strategy::REGISTRY {
        for members in [10, 100, 10_000] {
            let group = group(kind, members);
            // One that looks at all members takes its time with many of them.
            let times = if members > 1000 { 16 } else { 64 };
            let mut load = Load::new(&group);
            (0..128).for_each(|_| load.pick());
            counter.count(&format!("choose {} {members}", kind.name), times, || {
                load.choose();
            });
            counter.count(&format!("pick {} {members}", kind.name), times, || {
                load.pick();
            });
        }
    }
}

/// The choice for a prompt of 40 KB that an engine has read, and for one that nobody has read.
fn prompts(counter: &mut Counter) {
    let kind = strategy::find("inference").unwrap();
    for members in [10, 100, 10_000] {
        let group = group(kind, members);
        let mut load = Load::new(&group);
        for (name, letter) in [("known", "a"), ("new", "b")] {
            let prompt = letter.repeat(40_000);
            let body = format!(r#"{{"model":"m","prompt":"{prompt}","stream":true}}"#);
            let mut builder = ChainBuilder::new(HashKey::new([1, 2, 3]));
            let mut scanner = Scanner::new();
            scanner.feed_bytes(body.as_bytes(), &mut builder);
            let facts = RequestFacts {
                model: builder.model_hash(),
                chain: builder.link_blocks(),
                max_tokens: None,
                is_stream: true,
                random: 5,
            };
            let engines = group.engines().unwrap().group();
            let mut choose = |is_sent: bool| {
                let plan = engines.plan_request(facts);
                let request = Request {
                    plan: Some(&plan),
                    ..load.next()
                };
                match is_sent {
                    true => drop(group.pick(&request, &mut load.rng).unwrap()),
                    false => drop(black_box(group.choose_member(&request, &mut load.rng))),
                }
            };
            (0..16).for_each(|_| choose(name == "known"));
            let what = format!("choose inference {members} with a {name} prompt");
            counter.count(&what, 32, || choose(false));
        }
    }
}

/// Bodies between clients and engines: a conversation that is scanned and hashed, and a stream of events that is read.
fn bodies(counter: &mut Counter) {
    let turn = |role: &str| {
        let text = "Why do ships have a keel? ".repeat(18);
        format!(r#"{{"role":"{role}","content":"{text}"}}"#)
    };
    let turns = [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ];
    let messages = turns.map(turn).join(",");
    let body = format!(r#"{{"model":"m","messages":[{messages}],"stream":true}}"#);
    assert!((4000..4200).contains(&body.len()), "{}", body.len());
    let mut builder = ChainBuilder::new(HashKey::new([1, 2, 3]));
    counter.count("scan and hash a chat of 4 KiB", 32, || {
        builder.reset();
        let mut scanner = Scanner::new();
        scanner.feed_bytes(body.as_bytes(), &mut builder);
        black_box(builder.link_blocks().len());
    });
    let choice = r#"{"index":0,"delta":{"content":" keel"},"logprobs":null,"finish_reason":null}"#;
    let usage = r#"{"prompt_tokens":1000,"completion_tokens":100,"prompt_tokens_details":{"cached_tokens":900}}"#;
    let chunk = |choices: &str, usage: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{choices}],\"usage\":{usage}}}\n\n"
        )
    };
    let event = chunk(choice, "null");
    let end = chunk("", usage) + "data: [DONE]\n\n";
    counter.count("read 100 events of an answer, and its usage", 32, || {
        let mut reader = UsageReader::new(true);
        for _ in 0..100 {
            black_box(reader.feed_bytes(event.as_bytes()));
        }
        reader.feed_bytes(end.as_bytes());
        assert!(black_box(reader.find_usage()).is_some());
    });
}

/// The choice alone where members are in two zones.
fn zones(counter: &mut Counter) {
    for name in ["adaptive", "round_robin"] {
        let kind = strategy::find(name).unwrap();
        for members in [10, 100] {
            let group = group_in_zones(kind, members);
            let mut load = Load::new(&group);
            (0..128).for_each(|_| load.pick());
            counter.count(&format!("choose {name} {members} in zones"), 64, || {
                load.choose();
            });
        }
    }
}

/// Requests to a group, of which 64 are under way.
struct Load<'g> {
    group: &'g Group,
    rng: fastrand::Rng,
    now: Instant,
    client: u8,
    /// Hash of each client's key: making it is no part of a decision.
    keys: [u64; 256],
    flying: Vec<Option<Ticket>>,
}

impl<'g> Load<'g> {
    fn new(group: &'g Group) -> Self {
        Load {
            group,
            rng: fastrand::Rng::with_seed(1),
            now: Instant::from_nanos(60_000_000_000),
            client: 0,
            keys: std::array::from_fn(|client| hash(&[client as u8])),
            flying: (0..64).map(|_| None).collect(),
        }
    }

    fn next(&mut self) -> Request<'static> {
        self.now = self.now.after(Duration::from_micros(20));
        self.client = self.client.wrapping_add(1);
        Request {
            client: Some([192, 0, 2, self.client].into()),
            key: Some(self.keys[usize::from(self.client)]),
            ..Request::at_time(self.now)
        }
    }

    fn choose(&mut self) {
        let request = self.next();
        black_box(self.group.choose_member(&request, &mut self.rng)).unwrap();
    }

    fn pick(&mut self) {
        let request = self.next();
        let ticket = self.group.pick(&request, &mut self.rng).unwrap();
        let place = usize::from(self.client) % self.flying.len();
        if let Some(old) = self.flying[place].replace(ticket) {
            old.finish(Outcome::Success, self.now);
        }
    }
}

const LIMITS: Limits = Limits {
    max_bytes: 32 * 1024,
    max_fields: 100,
};

/// A request of a browser.
const REQUEST: &[u8] = b"GET /shop/item/4711?colour=green&size=42 HTTP/1.1\r\n\
    Host: www.example.org\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8\r\n\
    Accept-Language: en-GB,en;q=0.5\r\n\
    Accept-Encoding: gzip, deflate, br\r\n\
    Referer: https://www.example.org/shop\r\n\
    Connection: keep-alive\r\n\
    Cookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\n\
    Upgrade-Insecure-Requests: 1\r\n\
    Sec-Fetch-Dest: document\r\n\
    Sec-Fetch-Mode: navigate\r\n\
    If-None-Match: \"5f3c-61d2b0\"\r\n\r\n";

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Date: Sun, 22 Nov 2026 12:00:00 GMT\r\n\
    Server: nginx/1.22.1\r\n\
    Content-Type: text/html; charset=utf-8\r\n\
    Content-Length: 24380\r\n\
    Last-Modified: Sat, 21 Nov 2026 08:00:00 GMT\r\n\
    Connection: keep-alive\r\n\
    ETag: \"5f3c-61d2b0\"\r\n\
    Cache-Control: max-age=60\r\n\
    Vary: Accept-Encoding\r\n\
    Accept-Ranges: bytes\r\n\r\n";

fn heads(counter: &mut Counter) {
    let mut many = b"GET / HTTP/1.1\r\nHost: a\r\n".to_vec();
    for number in 0..80 {
        many.extend(format!("X-Field-{number}: some value or other {number}\r\n").bytes());
    }
    many.extend(b"\r\n");
    let options = HttpOptions::default();
    let hop = Hop::new(
        &options,
        std::net::IpAddr::from([192, 0, 2, 7]),
        "http",
        "192.0.2.1:80",
    );
    let mut out = Vec::with_capacity(16 * 1024);
    for (name, head) in [("browser", REQUEST), ("80 fields", &many)] {
        counter.count(&format!("http request head {name}"), 32, || {
            let mut fields = Fields::new();
            black_box(request(head, &mut fields));
        });
        counter.count(&format!("http request head {name}, rewritten"), 32, || {
            let mut fields = Fields::new();
            let head = request(head, &mut fields);
            out.clear();
            write_request(&head.request, &hop, &mut out);
            black_box(&out);
        });
    }
    let client = Client {
        version: Version::Http11,
        keep_alive: true,
    };
    counter.count("http response head, rewritten", 32, || {
        let mut fields = Fields::new();
        let asked = FramingFacts {
            head: false,
            upgrade: false,
        };
        let parsed = ResponseHead::parse(RESPONSE, LIMITS, asked, &mut fields);
        let Ok(ParseOutcome::Head(head)) = parsed else {
            panic!("{parsed:?}");
        };
        out.clear();
        black_box(write_response(&head, client, &mut out));
        black_box(&out);
    });
}

fn request<'a>(head: &'a [u8], fields: &'a mut Fields<'a>) -> RequestHead<'a> {
    match RequestHead::parse(head, LIMITS, fields) {
        Ok(ParseOutcome::Head(head)) => head,
        other => panic!("{other:?}"),
    }
}

/// Finding the route of a request.
fn routes(counter: &mut Counter) {
    let conditions = |host: &str, path: &str| Conditions {
        hosts: vec![host.to_owned()],
        paths: vec![path.to_owned()],
        ..Conditions::default()
    };
    // The routes of the request's host and path, and all the others.
    let wanted = conditions("www.example.org", "/shop/item/*");
    let others = (0..1000).flat_map(|host| {
        (0..10).map(move |path| {
            let host = format!("host-{host}.example.org");
            conditions(&host, &format!("/part-{path}/*"))
        })
    });
    let many: Vec<Conditions> = { others.take(9999) }.chain([wanted.clone()]).collect();
    let mut fields = Fields::new();
    let head = request(REQUEST, &mut fields);
    for (name, conditions) in [("1", vec![wanted]), ("10,000", many)] {
        let last = conditions.len() - 1;
        let index = Index::new(conditions);
        counter.count(&format!("route among {name}"), 64, || {
            assert_eq!(black_box(index.find_route(&head.request, None)), Some(last));
        });
    }
}

/// Taking a request from the limit of its client.
fn limits(counter: &mut Counter) {
    let rate = Rate::new(1_000_000, Duration::from_secs(1), 1000);
    let table = RateTable::new(65_536);
    let keys: [u64; 256] = std::array::from_fn(|client| hash(&[client as u8]));
    let mut now = Instant::from_nanos(60_000_000_000);
    // After this all clients have a place.
    for key in keys {
        table.take(key, now, &rate).unwrap();
    }
    let mut keys = keys.into_iter().cycle();
    counter.count("limit taken", 256, || {
        now = now.after(Duration::from_micros(20));
        let key = keys.next().unwrap();
        black_box(table.take(key, now, &rate)).unwrap();
    });
}

fn chunks(counter: &mut Counter) {
    for (name, size, count) in [("of 4 KiB", 4096, 16), ("of a byte", 1, 1000)] {
        let mut body = Vec::new();
        for _ in 0..count {
            body.extend(format!("{size:x}\r\n").bytes());
            body.resize(body.len() + size, b'x');
            body.extend(b"\r\n");
        }
        body.extend(b"0\r\n\r\n");
        counter.count(&format!("http chunks {name}, {count} scanned"), 8, || {
            let scanned = Decoder::new().scan_input(&body).unwrap();
            assert!(scanned.end);
        });
    }
}

fn giop(counter: &mut Counter) {
    let group_key = b"evenkeel/group/0000000000000007";
    let mut request = Vec::new();
    let mut asked = message::Request::new(7, Target::Key(group_key), "quote");
    asked.body = &[7; 64];
    asked
        .encode(Giop::V1_2, Endian::Little, &mut request)
        .unwrap();
    let reference = Ior::new_iiop(
        "IDL:Bench/Quoter:1.0",
        "host-17.example.org",
        2809,
        &[9; 40],
    );
    let reference = Reference::new(reference);
    let mut out = Vec::with_capacity(4096);
    counter.count("giop request read and forwarded", 32, || {
        let header = Header::peek(&request, 1 << 20).unwrap().unwrap();
        let content = Message::new(header, &request).read_content();
        let Ok(Content::Request(request)) = content else {
            panic!("{content:?}");
        };
        let reply_to = ReplyTo::of_request(&request, header.version, header.endian).unwrap();
        out.clear();
        reply_to.write_forward(reference.bytes(header.endian), &mut out);
        black_box(&out);
    });
    counter.count(
        "giop request passed on under another id and key",
        32,
        || {
            let header = Header::peek(&request, 1 << 20).unwrap().unwrap();
            let content = Message::new(header, &request).read_content();
            let Ok(Content::Request(request)) = content else {
                panic!("{content:?}");
            };
            let onward = message::Request {
                request_id: 99,
                target: Target::Key(b"the member's own key"),
                ..request
            };
            out.clear();
            onward
                .encode(header.version, header.endian, &mut out)
                .unwrap();
            black_box(&out);
        },
    );
}

fn report(counter: &mut Counter) {
    let key = ReportKey::new(1, &[7; 32]).unwrap();
    let keys = Keys::new(vec![key.clone()]).unwrap();
    let loads = [
        LoadId::CPU,
        LoadId::RUN_QUEUE,
        LoadId::MEMORY,
        LoadId::DISK,
        LoadId::NETWORK,
        LoadId::UTILIZATION,
        LoadId::REQUESTS_PER_SECOND,
        LoadId::RESPONSE_TIME,
    ];
    let update = Update {
        token: 1,
        last_control: 2,
        measurement: 3,
        age: Duration::from_millis(4),
        servers: vec![ServerState::Up; 2],
        loads: { loads.into_iter() }.map(|id| (id, 0.5)).collect(),
    };
    let datagram = report::seal_message(5, 6, 7, &Body::Update(update), &key);
    counter.count("report of 8 loads decoded", 32, || {
        black_box(report::open_message(&datagram, &keys, true).unwrap());
    });
}

fn kernel(counter: &mut Counter) {
    let key = Key::new(1, [7; 16]);
    let query = |number| Query {
        length: WITH_PORTS as u16,
        target: 0,
        first_cpu: 0,
        reader: 1,
        number,
        host: Host::from_name("web-1"),
    };
    let answer = |number: u64| {
        let mut base = Base::new(Source::Responder, Scope::Machine);
        base.available = Available::BUSY
            .with_parts(Available::RUNNING)
            .with_parts(Available::BACKLOG)
            .with_parts(Available::MEMORY);
        (base.cpus, base.capacity) = (2, 2000);
        base.time_ns = number * 1_000_000_000;
        base.totals.busy_ns = number * 700_000_000;
        (base.memory.total, base.memory.available) = (8 << 30, 4 << 30);
        let mut datagram = vec![0; WITH_PORTS];
        base.write(datagram[ENVELOPE..].first_chunk_mut::<BASE>().unwrap());
        query(number).answer(&key, &mut datagram);
        datagram
    };
    let (first, second) = (answer(1), answer(2));
    let before = Before::new(&Answer::parse(&first, &key).unwrap().record.base);
    counter.count("kernel answer checked and read", 32, || {
        let answer = Answer::parse(&second, &key).unwrap();
        black_box(Loads::since_last(Some(&before), &answer.record));
    });
    let mut out = Vec::with_capacity(WITH_PORTS);
    counter.count("kernel query written", 32, || {
        query(3).write(&key, &mut out);
        black_box(&out);
    });
}
