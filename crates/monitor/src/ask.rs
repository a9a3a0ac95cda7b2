//! Question to one back-end, asked once in the way that the balancer asks it again and again, and its record
//! in words or JSON.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use evenkeel_kernel::host::Host;
use evenkeel_kernel::loads::{Before, Loads};
use evenkeel_kernel::query::{
    Answer, BadDatagram, DEFAULT_PORT, Key, LONGEST, Query, SHORT, WITH_PORTS,
};
use evenkeel_kernel::record::{Available, BadRecord, Base, Cpu, FIXED, MAX_CPUS, Port};
use serde_json::{Map, Value, json};

/// Questions until the answer is given up; each waits for the whole time limit.
const TRIES: u32 = 3;

/// Options of a question.
#[derive(Clone, Debug)]
pub struct Options {
    /// The key that the responder knows.
    pub key: Key,
    /// The responder's name; without it, the address that is asked.
    pub host: Option<String>,
    /// Target: 0 is the machine.
    pub target: u16,
    /// True to ask for each CPU, too.
    pub cpus: bool,
    /// The responder's ports, too.
    pub ports: bool,
    /// Time for which an answer is waited for.
    pub timeout: Duration,
}

/// Reason why there is no record.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The text names no host.
    #[error("{0:?} is not a host, with or without a port: {1}")]
    Address(String, io::Error),
    /// The system sends nothing there.
    #[error("cannot send a load query to {0}: {1}")]
    Unsent(SocketAddr, io::Error),
    /// The host says that nobody listens.
    #[error(
        "no answer to load queries at {0}: the host exists, but nothing listens on this port; run \
         `evenkeel kernel attach` there, or `evenkeel kernel serve --respond`, and check that the \
         port is the same"
    )]
    NoListener(SocketAddr),
    /// The datagram that comes back is no answer.
    #[error("{0} answers, but with {1}")]
    Refused(SocketAddr, BadDatagram),
    /// The datagram that comes back is another answer.
    #[error("the answer from {0} describes other CPUs than the query asked for")]
    OtherCpus(SocketAddr),
    /// Nothing comes back, and nobody can say why.
    #[error("{0}")]
    Silence(String),
}

/// The address that a text names: a host, with a port or without.
pub fn resolve(text: &str) -> Result<SocketAddr, AskError> {
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    if let Ok(ip) = bare.unwrap_or(text).parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, DEFAULT_PORT));
    }
    let found = if text.contains(':') {
        text.to_socket_addrs()
    } else {
        (text, DEFAULT_PORT).to_socket_addrs()
    };
    let first = found.and_then(|mut found| {
        let none = || io::Error::other("the name has no address");
        found.next().ok_or_else(none)
    });
    first.map_err(|error| AskError::Address(text.into(), error))
}

/// Reading of a back-end: the copies of one record that are needed to have all of it.
#[derive(Debug)]
pub struct Reading {
    /// The bytes of the first copy.
    datagram: Vec<u8>,
    key: Key,
    base: Base,
    ports: Vec<Port>,
    /// CPUs with their places; an entry may have been torn.
    cpus: Vec<Result<Cpu, BadRecord>>,
    round_trip: Duration,
}

/// Asks one back-end.
#[derive(Debug)]
pub struct Asker {
    socket: UdpSocket,
    to: SocketAddr,
    options: Options,
    host: Host,
    reader: u64,
    number: u64,
}

impl Asker {
    /// Opens a socket from which `to` can be asked.
    pub fn new(to: SocketAddr, options: Options) -> Result<Self, AskError> {
        let any: IpAddr = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let cannot = |error| AskError::Unsent(to, error);
        let socket = UdpSocket::bind((any, 0)).map_err(cannot)?;
        // Only from there; and the system says if nobody is.
        socket.connect(to).map_err(cannot)?;
        let random = evenkeel_net::random_bytes().map_err(cannot)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let named = options.host.as_ref().map(|name| Host::from_name(name));
        Ok(Asker {
            socket,
            to,
            host: named.unwrap_or_else(|| Host::from_address(to.ip())),
            options,
            reader: u64::from_ne_bytes(random),
            number: u64::try_from(now.unwrap_or_default().as_nanos()).unwrap_or(0),
        })
    }

    /// Asks for a record, with as many questions as it takes.
    pub fn ask_record(&mut self) -> Result<Reading, AskError> {
        let length = match (self.options.cpus, self.options.ports) {
            (true, _) => LONGEST,
            (false, true) => WITH_PORTS,
            (false, false) => SHORT,
        };
        let (datagram, round_trip) = self.ask(length, 0)?;
        let answer = Answer::parse(&datagram, &self.options.key);
        let record = answer.map_err(|error| self.refused(error))?.record;
        let (base, ports) = (record.base, record.ports().collect());
        let mut cpus: Vec<_> = record.cpus().collect();
        while self.options.cpus && cpus.len() < base.cpus.min(MAX_CPUS as u32) as usize {
            let first = cpus.len() as u16;
            let (more, _) = self.ask(LONGEST, first)?;
            let answer =
                Answer::parse(&more, &self.options.key).map_err(|error| self.refused(error))?;
            let record = answer.record;
            if record.base.first_cpu != first || record.base.entries == 0 {
                return Err(AskError::OtherCpus(self.to));
            }
            cpus.extend(record.cpus());
        }
        Ok(Reading {
            key: self.options.key.clone(),
            base,
            ports,
            cpus,
            datagram,
            round_trip,
        })
    }

    /// Asks until there is an answer.
    fn ask(&mut self, length: usize, first_cpu: u16) -> Result<(Vec<u8>, Duration), AskError> {
        let mut question = Vec::new();
        let mut last = None;
        for _ in 0..TRIES {
            self.number += 1;
            let query = Query {
                length: length as u16,
                target: self.options.target,
                first_cpu,
                reader: self.reader,
                number: self.number,
                host: self.host,
            };
            query.write(&self.options.key, &mut question);
            let asked = Instant::now();
            if let Err(error) = self.socket.send(&question) {
                last = Some(self.unsent(error));
                continue;
            }
            loop {
                let left = self.options.timeout.saturating_sub(asked.elapsed());
                // A time limit of 0 would be none.
                let left = left.max(Duration::from_micros(1));
                let mut datagram = vec![0; LONGEST + 1];
                let came = self.socket.set_read_timeout(Some(left));
                match came.and_then(|()| self.socket.recv(&mut datagram)) {
                    Ok(length) => datagram.truncate(length),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => {
                        last = Some(self.unsent(error));
                        break;
                    }
                }
                let round_trip = asked.elapsed();
                match Answer::parse(&datagram, &self.options.key) {
                    Ok(answer) if answer.query == query => return Ok((datagram, round_trip)),
                    // One to an earlier question.
                    Ok(_) => {}
                    Err(error) => last = Some(self.refused(error)),
                }
                if asked.elapsed() >= self.options.timeout {
                    break;
                }
            }
        }
        Err(last.unwrap_or_else(|| self.silence()))
    }

    fn unsent(&self, error: io::Error) -> AskError {
        if error.kind() == io::ErrorKind::ConnectionRefused {
            AskError::NoListener(self.to)
        } else {
            AskError::Unsent(self.to, error)
        }
    }

    fn refused(&self, error: BadDatagram) -> AskError {
        AskError::Refused(self.to, error)
    }

    /// Returns the error that nothing came back, and nobody can say why: a responder says nothing to whom it
    /// does not know.
    fn silence(&self) -> AskError {
        let to = self.to;
        let Options { target, key, .. } = &self.options;
        let mut text = format!(
            "no answer from {to} to {TRIES} queries within {:?} each. A responder does not answer \
             untrusted queries. Possible causes:\n",
            self.options.timeout
        );
        let reasons = [
            format!(
                "no responder is attached to the interface of {}, or at another port than {}",
                to.ip(),
                to.port()
            ),
            "the responder does not allow the address of this machine (--allow)".into(),
            format!(
                "the responder does not know key number {}, or has another key with that number (--key-file)",
                key.number
            ),
            "the queried name or address is not one of the responder's (--host)".into(),
            format!(
                "the responder has no target {target}, or the cgroup of the target was removed (--target)"
            ),
            "the responder's limit of queries per second is exceeded (--rate)".into(),
            "a firewall drops UDP on the way, or the host is down".into(),
        ];
        for reason in &reasons {
            let _ = writeln!(text, "  - {reason}");
        }
        text.push_str(
            "On that host, `evenkeel kernel status` counts the refused queries by reason.",
        );
        AskError::Silence(text)
    }
}

fn write_line(out: &mut String, name: &str, value: String) {
    let _ = writeln!(out, "{name:<18} {value}");
}

impl Reading {
    /// Returns the totals with which the next record is compared.
    pub fn before(&self) -> Before {
        Before::new(&self.base)
    }

    /// The loads since another reading.
    pub fn loads_since(&self, before: &Before) -> Loads {
        match Answer::parse(&self.datagram, &self.key) {
            Ok(answer) => Loads::since_last(Some(before), &answer.record),
            // It has been parsed before.
            Err(_) => Loads::default(),
        }
    }

    /// A line for each thing that is known.
    pub fn text(&self, to: SocketAddr, loads: &Loads) -> String {
        let base = &self.base;
        let mut out = String::new();
        let mut line = |name: &str, value| write_line(&mut out, name, value);
        let scope = base.scope.name();
        let source = base.source.name();
        let micros = self.round_trip.as_secs_f64() * 1e6;
        line(
            "back-end",
            format!(
                "{to}, target {} ({scope}), answered by {source} in {micros:.0} us",
                base.target
            ),
        );
        let capacity = f64::from(base.capacity) / 1e3;
        line(
            "CPUs",
            format!("{}, of which {capacity} may be used", base.cpus),
        );
        for (id, value) in loads.iter() {
            let name = id.to_string();
            let unit = if id.is_utilization() {
                format!("{:.1} %", value * 100.0)
            } else {
                format!("{value:.3} tasks per CPU")
            };
            line(&name, unit);
        }
        self.write_totals(&mut line);
        self.write_parts(&mut line);
        out.push('\n');
        out
    }

    /// Writes the totals that are available.
    fn write_totals(&self, line: &mut dyn FnMut(&str, String)) {
        let base = &self.base;
        let totals = &base.totals;
        let has = |part| base.available.has_all(part);
        if has(Available::RUNNING) {
            let average = if has(Available::RUNNING_AVERAGE) {
                format!(
                    ", {:.2} on average over 100 ms",
                    f64::from(base.running_average) / FIXED
                )
            } else {
                String::new()
            };
            line("running", format!("{} tasks{average}", totals.running));
        }
        if has(Available::BLOCKED) {
            line(
                "blocked",
                format!("{} tasks wait for a disk", totals.blocked),
            );
        }
        if has(Available::LOAD_AVERAGES) {
            let averages = base
                .load_averages
                .map(|load| format!("{:.2}", f64::from(load) / FIXED));
            line("load averages", averages.join(" "));
        }
        if has(Available::MEMORY) {
            let mib = |bytes: u64| bytes >> 20;
            let memory = &base.memory;
            line(
                "memory",
                format!(
                    "{} MiB, {} MiB available, {} MiB swapped",
                    mib(memory.total),
                    mib(memory.available),
                    mib(memory.swap_used)
                ),
            );
        }
        if has(Available::SWITCHES) {
            line("context switches", totals.switches.to_string());
        }
        if has(Available::BACKLOG) {
            line(
                "packet backlog",
                format!(
                    "{} wait, {} dropped, {} times deferred",
                    totals.backlog, totals.dropped, totals.squeezed
                ),
            );
        }
        if has(Available::TIMES) {
            let times = &totals.times;
            let seconds = |ns: u64| ns as f64 / 1e9;
            line(
                "CPU time",
                format!(
                    "user {:.1} s, nice {:.1} s, system {:.1} s, irq {:.1} s, softirq {:.1} s, steal {:.1} s, iowait {:.1} s",
                    seconds(times.user),
                    seconds(times.nice),
                    seconds(times.system),
                    seconds(times.irq),
                    seconds(times.softirq),
                    seconds(times.steal),
                    seconds(times.iowait)
                ),
            );
        }
    }

    /// Writes the ports and the CPUs.
    fn write_parts(&self, line: &mut dyn FnMut(&str, String)) {
        for port in &self.ports {
            let backlog = if port.listening {
                format!("{} of {} connections wait", port.backlog, port.limit)
            } else {
                "nobody listens".into()
            };
            line(&format!("port {}", port.port), backlog);
        }
        for cpu in &self.cpus {
            match cpu {
                Ok(cpu) => line(
                    &format!("CPU {}", cpu.number),
                    format!(
                        "busy {:.3} s, {} running, {} switches, {} packets wait",
                        cpu.busy_ns as f64 / 1e9,
                        cpu.running,
                        cpu.switches,
                        cpu.backlog
                    ),
                ),
                Err(error) => line("CPU", error.to_string()),
            }
        }
    }

    /// Returns the reading as JSON. Values that are not available are not there.
    #[expect(
        clippy::indexing_slicing,
        reason = "keys that are added to an object of our own: it cannot be anything else"
    )]
    pub fn json(&self, loads: &Loads) -> Value {
        let base = &self.base;
        let has = |part| base.available.has_all(part);
        let loads: Map<String, Value> = loads
            .iter()
            .map(|(id, value)| (id.to_string(), json!(value)))
            .collect();
        let mut out = json!({
            "target": base.target,
            "scope": base.scope.name(),
            "source": base.source.name(),
            "round_trip_us": self.round_trip.as_secs_f64() * 1e6,
            "time_ns": base.time_ns,
            "epoch": base.epoch.to_string(),
            "updates": base.updates,
            "cpus": base.cpus,
            "capacity": f64::from(base.capacity) / 1e3,
            "loads": loads,
            "totals": cpu_json(&base.totals, base.available),
        });
        if has(Available::RUNNING_AVERAGE) {
            out["running_average"] = json!(f64::from(base.running_average) / FIXED);
        }
        if has(Available::LOAD_AVERAGES) {
            out["load_averages"] = json!(base.load_averages.map(|load| f64::from(load) / FIXED));
        }
        if has(Available::MEMORY) {
            let memory = &base.memory;
            out["memory"] = json!({
                "total_bytes": memory.total,
                "available_bytes": memory.available,
                "swap_used_bytes": memory.swap_used,
            });
        }
        if has(Available::PRESSURE) {
            let pressure = &base.pressure;
            out["pressure_ns"] = json!({
                "cpu_some": pressure.cpu_some.total_ns,
                "memory_some": pressure.memory_some.total_ns,
                "memory_full": pressure.memory_full.total_ns,
                "io_some": pressure.io_some.total_ns,
                "io_full": pressure.io_full.total_ns,
            });
        }
        let port = |port: &Port| {
            json!({
                "port": port.port,
                "listening": port.listening,
                "backlog": port.backlog,
                "limit": port.limit,
            })
        };
        if !self.ports.is_empty() {
            out["ports"] = self.ports.iter().map(port).collect();
        }
        if !self.cpus.is_empty() {
            let whole = self.cpus.iter().flatten();
            out["each_cpu"] = whole.map(|cpu| cpu_json(cpu, base.available)).collect();
        }
        out
    }
}

fn cpu_json(cpu: &Cpu, available: Available) -> Value {
    let times = &cpu.times;
    let parts = [
        (Available::BUSY, "busy_ns", json!(cpu.busy_ns)),
        (Available::RUNNING, "running", json!(cpu.running)),
        (Available::BLOCKED, "blocked", json!(cpu.blocked)),
        (Available::SWITCHES, "switches", json!(cpu.switches)),
        (Available::BACKLOG, "backlog", json!(cpu.backlog)),
        (Available::BACKLOG, "dropped", json!(cpu.dropped)),
        (Available::BACKLOG, "squeezed", json!(cpu.squeezed)),
        (Available::SOFTIRQS, "softirqs", json!(cpu.softirqs)),
        (
            Available::SOFTIRQ_THREADS,
            "softirq_threads",
            json!(cpu.softirq_threads),
        ),
        (
            Available::TIMES,
            "times_ns",
            json!({
                "user": times.user,
                "nice": times.nice,
                "system": times.system,
                "irq": times.irq,
                "softirq": times.softirq,
                "steal": times.steal,
                "idle": times.idle,
                "iowait": times.iowait,
            }),
        ),
    ];
    let mut out = Map::new();
    out.insert("number".into(), json!(cpu.number));
    let parts = parts
        .into_iter()
        .filter(|(part, ..)| available.has_all(*part));
    out.extend(parts.map(|(_, name, value)| (name.into(), value)));
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use evenkeel_kernel::query::ENVELOPE;
    use evenkeel_kernel::record::{Scope, Source, Whole};

    use super::*;

    const SECRET: &str = "000102030405060708090a0b0c0d0e0f";

    /// A back-end with seven CPUs, that answers until the test is over.
    fn backend() -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let keys = [Key::parse(SECRET).unwrap()];
            let mut bytes = [0; LONGEST];
            let mut time_ns = 0;
            while let Ok((length, from)) = socket.recv_from(&mut bytes) {
                let Ok((question, key)) = Query::parse(&bytes[..length], &keys) else {
                    continue;
                };
                time_ns += 1_000_000_000;
                let mut base = Base::new(Source::Responder, Scope::Machine);
                base.available = Available::BUSY
                    .with_parts(Available::RUNNING)
                    .with_parts(Available::PORTS);
                (base.time_ns, base.cpus, base.capacity) = (time_ns, 7, 7000);
                base.totals.busy_ns = 7 * time_ns / 4;
                let cpu = |number| Cpu {
                    number,
                    ..Cpu::default()
                };
                let port = Port {
                    port: 80,
                    listening: true,
                    backlog: 3,
                    limit: 128,
                };
                let whole = Whole {
                    base,
                    ports: vec![port],
                    cpus: (0..7).map(cpu).collect(),
                };
                whole.copy(question.first_cpu, &mut bytes[ENVELOPE..length]);
                question.answer(key, &mut bytes[..length]);
                let _ = socket.send_to(&bytes[..length], from);
            }
        });
        address
    }

    fn asker(to: SocketAddr, secret: &str, cpus: bool) -> Asker {
        let options = Options {
            key: Key::parse(secret).unwrap(),
            host: None,
            target: 0,
            cpus,
            ports: cpus,
            // Who answers does so in time, even on a machine that has much else to do.
            timeout: Duration::from_millis(if cpus { 60_000 } else { 20 }),
        };
        Asker::new(to, options).unwrap()
    }

    #[test]
    fn a_record_is_shown_with_all_its_parts() {
        let to = backend();
        let mut asker = asker(to, SECRET, true);
        let before = asker.ask_record().unwrap().before();
        let reading = asker.ask_record().unwrap();
        let loads = reading.loads_since(&before);
        let text = reading.text(to, &loads);
        for part in [
            "answered by responder",
            "cpu                25.0 %",
            "port 80            3 of 128",
            "CPU 6 ",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert!(!text.contains("memory"), "it is not available:\n{text}");
        let json = reading.json(&loads);
        assert_eq!(json["loads"]["cpu"], 0.25);
        // It takes two datagrams.
        assert_eq!(json["each_cpu"].as_array().map(Vec::len), Some(7));
        assert_eq!(json["ports"][0]["limit"], 128);
        assert!(json.get("memory").is_none());
    }

    #[test]
    fn without_an_answer_the_reasons_are_said() {
        let other = SECRET.replace('0', "1");
        let silent = asker(backend(), &other, false).ask_record().unwrap_err();
        let silent = silent.to_string();
        for part in [
            "no answer from 127.0.0.1",
            "--allow",
            "--key-file",
            "--target",
            "kernel status",
        ] {
            assert!(silent.contains(part), "{part}: {silent}");
        }
        let nobody = UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let refused = asker(nobody, SECRET, false).ask_record().unwrap_err();
        assert!(refused.to_string().contains("kernel attach"), "{refused}");
    }

    #[test]
    fn addresses_have_a_port_or_not() {
        for (text, address) in [
            ("127.0.0.1", "127.0.0.1:9970"),
            ("127.0.0.1:7", "127.0.0.1:7"),
            ("::1", "[::1]:9970"),
            ("[::1]", "[::1]:9970"),
            ("[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(resolve(text).unwrap(), address.parse().unwrap(), "{text}");
        }
        assert!(resolve("127.0.0.1:70000").is_err());
        assert!(resolve("").is_err());
    }
}
