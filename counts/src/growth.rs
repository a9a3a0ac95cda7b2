//! Growth of the work with the length of an input from the network or a file: each case counts inputs of several
//! lengths, and is named by its length. `tests/linear.rs` compares.

use std::fmt::Write as _;
use std::hint::black_box;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use evenkeel_config::Config;
use evenkeel_core::load::LoadId;
use evenkeel_core::time::Instant;
use evenkeel_kernel::host::Host;
use evenkeel_kernel::query::{Answer, CPUS_PER_DATAGRAM, ENVELOPE, Key, Query, SHORT, WITH_PORTS};
use evenkeel_kernel::record::{
    BASE, Base, CPU, CPUS, Cpu, PORTS, Port, Record, Scope, Source, Whole,
};
use evenkeel_kernel::respond::{Responder, Settings};
use evenkeel_proxy::http1::{
    Fields, FramingFacts, Limits, ParseOutcome, RequestHead, ResponseHead,
};
use evenkeel_report::agent_check::read_line;
use evenkeel_report::prometheus::Readings;
use evenkeel_wire::agent_check;
use evenkeel_wire::exposition::Format;
use evenkeel_wire::orca;
use evenkeel_wire::reporting::client::{self, Session};
use evenkeel_wire::reporting::keys::{Key as ReportKey, Keys};
use evenkeel_wire::reporting::message::{self, Body, Cookie, Registration, Server};
use evenkeel_wire::reporting::server::{Broker, Peer, Settings as BrokerSettings};
use evenkeel_wire::response::HeadScan;
use tokio::io::{AsyncRead, ReadBuf};

use crate::Counter;

/// A case, with the name that the tests have for it.
type Case = (&'static str, fn(&mut Counter));

/// All of them.
pub(crate) const CASES: &[Case] = &[
    ("report", report),
    ("report-of-nobody", report_of_nobody),
    ("report-agents", report_agents),
    ("exposition-lines", exposition_lines),
    ("exposition-line", exposition_line),
    ("exposition-nonsense", exposition_nonsense),
    ("orca-text", orca_text),
    ("orca-json", orca_json),
    ("orca-binary", orca_binary),
    ("agent-check", agent_check_line),
    ("agent-check-drip", agent_check_drip),
    ("request-head-drip", request_head_drip),
    ("response-head-drip", response_head_drip),
    ("kernel-answer", kernel_answer),
    ("kernel-record", kernel_record),
    ("kernel-queries", kernel_queries),
    ("kernel-key", kernel_key),
    ("config-members", config_members),
    ("config-rules", config_rules),
    ("config-errors", config_errors),
    ("config-text", config_text),
];

fn at(counter: &mut Counter, length: usize, call: impl FnMut()) {
    counter.count(&length.to_string(), 1, call);
}

fn keys() -> (ReportKey, Keys) {
    let key = ReportKey::new(1, &[7; 32]).unwrap();
    (key.clone(), Keys::new(vec![key]).unwrap())
}

fn report(counter: &mut Counter) {
    let (key, keys) = keys();
    for count in [2, 8, 32] {
        let server = |number| Server {
            group: format!("group-{number:02}"),
            host: format!("10.0.0.{number:03}"),
            port: 80,
            weight: None,
        };
        let servers = (0..count).map(server).collect();
        let registration = Registration::new("rack", "agent", servers).unwrap();
        let body = Body::Registration(Cookie::NONE, registration);
        let datagram = message::seal_message(5, 6, 7, &body, &key);
        at(counter, datagram.len(), || {
            black_box(message::open_message(&datagram, &keys, true).unwrap());
        });
    }
}

/// A sender without a key makes no more work with a long datagram than by its length.
fn report_of_nobody(counter: &mut Counter) {
    let (key, keys) = keys();
    let good = message::seal_message(5, 6, 7, &Body::Stop, &key);
    for length in [150, 600, 1350] {
        let mut datagram = good.clone();
        datagram.resize(length, 0x41);
        at(counter, length, || {
            assert!(message::open_message(&datagram, &keys, true).is_err());
        });
    }
}

/// A report of an agent costs the same for any number of other agents.
fn report_agents(counter: &mut Counter) {
    let (_, keys) = keys();
    for count in [16, 64, 256] {
        let settings = BrokerSettings {
            interval: Duration::from_secs(1),
            lease: 3,
            keepalive: Duration::from_secs(10),
            forget: Duration::from_secs(60),
            max_agents: 10_000,
        };
        let rng = fastrand::Rng::with_seed(1);
        let mut broker = Broker::new(settings, keys.clone(), &[9; 32], rng).unwrap();
        let now = Instant::from_nanos(1_000_000_000);
        let mut made = 0u32;
        at(counter, count, || {
            for _ in 0..count {
                made += 1;
                let [_, a, b, c] = made.to_be_bytes();
                let peer = Peer {
                    socket: 0,
                    address: ([10, a, b, c], 5000).into(),
                };
                let registration =
                    Registration::new(format!("rack-{made}"), "agent", Vec::new()).unwrap();
                let rng = fastrand::Rng::with_seed(made.into());
                let mut session = Session::new(registration, keys.clone(), now, rng);
                session.update_loads(&[], &[], now);
                while let client::Poll::Send(datagram) = session.poll(now) {
                    if let (_, Some(answer)) = broker.receive_datagram(peer, &datagram, now) {
                        let _ = session.receive_datagram(&answer, now);
                    }
                }
            }
        });
        assert_eq!(broker.list_agents().count(), 2 * count);
    }
}

fn config(text: &str) -> Config {
    evenkeel_config::parse("t", text).unwrap_or_else(|errors| panic!("{errors}"))
}

fn exposition(counter: &mut Counter, length: usize, page: &str, is_good: bool) {
    let mut config = config(
        "[group.g]\nmembers = [\"127.0.0.1:1\"]\n[group.g.prometheus]\n\
         url = \"http://{host}:1/metrics\"\n\
         loads = { cpu = 'sum(load{a=\"b\"}) / 1000000' }\n",
    );
    let loads = config
        .groups
        .remove(0)
        .into_inner()
        .sources
        .prometheus
        .unwrap();
    at(counter, length, || {
        let readings = Readings::from_page(page, Format::Text, &loads, 0);
        assert_eq!(readings.is_ok(), is_good);
        if let Ok(readings) = readings {
            black_box(readings.loads_since(&loads, None));
        }
    });
}

fn exposition_lines(counter: &mut Counter) {
    for lines in [32, 128, 512] {
        let mut page = String::new();
        for number in 0..lines {
            writeln!(page, "load{{a=\"b\",cpu=\"{number}\"}} {number}").unwrap();
            writeln!(page, "# HELP other something\nother_{number} 1").unwrap();
        }
        exposition(counter, page.len(), &page, true);
    }
}

/// Long names, values with escapes, and blanks between everything.
fn exposition_line(counter: &mut Counter) {
    for length in [256, 1024, 4096] {
        let blank = " ".repeat(length);
        let value = "\\n\\\\".repeat(length);
        let page =
            format!("load{blank}{{{blank}a{blank}={blank}\"b\",c=\"{value}\"}}{blank}1{blank}\n");
        exposition(counter, page.len(), &page, true);
    }
}

/// Lines that are refused at their end, in each way that is possible.
fn exposition_nonsense(counter: &mut Counter) {
    for length in [256, 1024, 4096] {
        let mut page = "other{a=\"b\"} 1\n".repeat(length);
        page.push_str("load{");
        page.extend((0..length).map(|number| format!("l{number}=\"\",")));
        exposition(counter, page.len(), &page, false);
    }
}

fn orca(counter: &mut Counter, report: &[u8], is_binary: bool) {
    let text = "[group.g]\nmembers = [\"127.0.0.1:1\"]\norca = true\n";
    let group = config(text).groups.remove(0).into_inner();
    let orca = group.sources.orca.unwrap();
    let wanted = |table: &str, field: &str| orca.loads.find_load(table, field);
    assert!(report.len() <= orca::MAX_REPORT);
    at(counter, report.len(), || {
        let loads = if is_binary {
            orca::parse_message(report, &wanted)
        } else {
            orca::parse(report, &wanted)
        };
        assert_eq!(loads.unwrap().as_slice()[0].0, LoadId::CPU);
    });
}

fn orca_text(counter: &mut Counter) {
    for metrics in [12, 48, 192] {
        let mut report = "TEXT cpu_utilization=0.3".to_owned();
        (0..metrics).for_each(|number| write!(report, ",named_metrics.m{number:03}=1").unwrap());
        orca(counter, report.as_bytes(), false);
    }
}

fn orca_json(counter: &mut Counter) {
    for metrics in [16, 64, 256] {
        let named: Vec<String> = (0..metrics).map(|n| format!("\"m{n:03}\":1.5")).collect();
        let named = named.join(",");
        let report = format!("JSON {{\"cpu_utilization\":0.3,\"named_metrics\":{{{named}}}}}");
        orca(counter, report.as_bytes(), false);
    }
}

/// Protocol Buffers: field 1 is the CPU, field 8 a table of names and numbers.
fn orca_binary(counter: &mut Counter) {
    for metrics in [12, 48, 192] {
        let mut report = vec![0x09];
        report.extend(0.3f64.to_le_bytes());
        for number in 0..metrics {
            let name = format!("m{number:03}");
            report.extend([0x42, 15, 0x0a, 4]);
            report.extend(name.bytes());
            report.push(0x11);
            report.extend(1.5f64.to_le_bytes());
        }
        orca(counter, &report, true);
    }
}

fn words(length: usize) -> Vec<u8> {
    let mut line = b"up ready 75% ".repeat(length / 13 / 2);
    line.push(b'#');
    line.resize(length - 1, b'n');
    line.push(b'\n');
    line
}

const LINES: [usize; 3] = [60, 240, 960];

fn agent_check_line(counter: &mut Counter) {
    for length in LINES {
        let line = words(length);
        let line = line.trim_ascii_end();
        at(counter, length, || {
            black_box(agent_check::Answer::parse(line).unwrap());
        });
    }
}

/// A connection on which each byte comes by itself.
struct Drip<'b>(&'b [u8]);

impl AsyncRead for Drip<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if let Some((first, rest)) = self.0.split_first() {
            buffer.put_slice(&[*first]);
            self.0 = rest;
        }
        Poll::Ready(Ok(()))
    }
}

fn agent_check_drip(counter: &mut Counter) {
    for length in LINES {
        let line = words(length);
        at(counter, length, || {
            let mut stream = Drip(&line);
            let read = std::pin::pin!(read_line(&mut stream));
            let Poll::Ready(read) = read.poll(&mut Context::from_waker(Waker::noop())) else {
                panic!("it never has to wait");
            };
            assert_eq!(read.unwrap().len(), length - 1);
        });
    }
}

/// A head that comes byte by byte is looked at as the proxy does: `parse` answers whether it is
/// whole.
fn head_drip(counter: &mut Counter, start: &str, parse: impl Fn(&[u8]) -> bool) {
    for lines in [10, 40, 160] {
        let mut head = start.to_owned();
        for line in 0..lines {
            head += &format!("X-Field-{line}: 0123456789abcdefghij\r\n");
        }
        head += "\r\n";
        let head = head.as_bytes();
        at(counter, head.len(), || {
            let mut scan = HeadScan::default();
            let read = (1..=head.len()).map(|read| &head[..read]);
            let whole = read.filter(|read| scan.is_due(read, usize::MAX) && parse(read));
            assert_eq!(whole.count(), 1);
        });
    }
}

const LIMITS: Limits = Limits {
    max_bytes: 1 << 20,
    max_fields: 200,
};

fn request_head_drip(counter: &mut Counter) {
    head_drip(counter, "GET / HTTP/1.1\r\nHost: a\r\n", |read| {
        let mut fields = Fields::new();
        let parsed = RequestHead::parse(read, LIMITS, &mut fields).unwrap();
        matches!(parsed, ParseOutcome::Head(_))
    });
}

fn response_head_drip(counter: &mut Counter) {
    let asked = FramingFacts {
        head: false,
        upgrade: false,
    };
    head_drip(counter, "HTTP/1.1 200 OK\r\n", |read| {
        let mut fields = Fields::new();
        let parsed = ResponseHead::parse(read, LIMITS, asked, &mut fields).unwrap();
        matches!(parsed, ParseOutcome::Head(_))
    });
}

fn query(length: usize, reader: u64, number: u64) -> Query {
    Query {
        length: length as u16,
        target: 0,
        first_cpu: 0,
        reader,
        number,
        host: Host::ANY,
    }
}

fn whole(cpus: usize) -> Whole {
    let mut base = Base::new(Source::Responder, Scope::Machine);
    (base.cpus, base.capacity) = (cpus as u32, 1000 * cpus as u32);
    base.ports = PORTS as u16;
    Whole {
        base,
        ports: vec![Port::default(); PORTS],
        cpus: vec![Cpu::default(); cpus],
    }
}

fn kernel_answer(counter: &mut Counter) {
    let key = Key::new(1, [7; 16]);
    let record = whole(64);
    for length in [SHORT, WITH_PORTS, WITH_PORTS + CPUS_PER_DATAGRAM * CPU] {
        let mut datagram = vec![0; length];
        record.copy(0, &mut datagram[ENVELOPE..]);
        query(length, 1, 1).answer(&key, &mut datagram);
        at(counter, length, || {
            let answer = Answer::parse(&datagram, &key).unwrap();
            black_box(answer.record.ports().count());
            black_box(answer.record.cpus().count());
        });
    }
}

fn kernel_record(counter: &mut Counter) {
    for cpus in [8, 32, 128, 512] {
        let mut bytes = vec![0; CPUS + cpus * CPU];
        whole(cpus).copy(0, &mut bytes);
        assert!(bytes.len() > BASE);
        at(counter, bytes.len(), || {
            let record = Record::parse(&bytes).unwrap();
            let read = record.cpus().filter(Result::is_ok).count();
            assert_eq!(read, cpus);
        });
    }
}

/// Each of another reader and address, and half of them sent again.
fn kernel_queries(counter: &mut Counter) {
    let key = Key::new(1, [7; 16]);
    let record = whole(2);
    for count in [256, 1024, 5120] {
        let mut responder = Responder::new(Settings {
            keys: vec![key.clone()],
            allow: vec!["10.0.0.0/8".parse().unwrap()],
            hosts: Vec::new(),
            rate: 100,
        });
        let (mut datagram, mut number) = (Vec::new(), 0);
        at(counter, count, || {
            for reader in 0..count as u32 {
                number += 1;
                query(SHORT, reader.into(), number).write(&key, &mut datagram);
                let mut again = datagram.clone();
                let [_, a, b, c] = reader.to_be_bytes();
                for datagram in [&mut datagram, &mut again] {
                    let from = [10, a, b, c].into();
                    black_box(
                        responder.answer_query(from, datagram, Duration::ZERO, |_| Ok(&record)),
                    );
                }
            }
        });
    }
}

/// Any length of nonsense ends where it is seen to be.
fn kernel_key(counter: &mut Counter) {
    for length in [1000, 4000, 16_000] {
        let text = format!("1:{}", "0".repeat(length));
        at(counter, length, || {
            assert!(Key::parse(&text).is_err());
        });
    }
}

fn config_members(counter: &mut Counter) {
    for members in [64, 256, 1024] {
        let list: Vec<String> = (0..members)
            .map(|n| format!("\"10.0.{}.{}:80\"", n / 250, n % 250))
            .collect();
        let text = format!(
            "[rule.web]\nlisten = \"127.0.0.1:1\"\nmembers = [{}]\n",
            list.join(",\n")
        );
        at(counter, members, || {
            black_box(config(&text));
        });
    }
}

fn config_rules(counter: &mut Counter) {
    for rules in [16, 64, 256] {
        let mut text = String::new();
        for rule in 0..rules {
            let (port, last) = (1 + rule, 1 + rule % 250);
            let _ = write!(
                text,
                "[rule.r{rule}]\nlisten = \"127.0.0.1:{port}\"\nmembers = [\"10.0.0.{last}:80\", \
                 \"10.0.1.{last}:80\"]\nmonitor = {{ key_file = \"/k\" }}\n\
                 [location.\"10.0.0.{rule}\"]\nmonitor = false\n"
            );
        }
        at(counter, rules, || {
            black_box(config(&text));
        });
    }
}

/// All errors are reported, each with its line and column.
fn config_errors(counter: &mut Counter) {
    for errors in [8, 32, 128] {
        let mut text =
            "[rule.web]\nlisten = \"127.0.0.1:1\"\nmembers = [\"10.0.0.1:80\"]\n".to_owned();
        (0..errors).for_each(|number| writeln!(text, "key{number} = 1").unwrap());
        at(counter, errors, || {
            let errors = evenkeel_config::parse("t", &text).unwrap_err();
            black_box(errors.to_string());
        });
    }
}

/// A text that is no configuration at all.
fn config_text(counter: &mut Counter) {
    for length in [1000, 4000, 16_000] {
        let text = "[[".repeat(length);
        at(counter, length, || {
            black_box(evenkeel_config::parse("t", &text).unwrap_err().to_string());
        });
    }
}
