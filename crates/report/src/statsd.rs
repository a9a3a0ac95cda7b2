//! Gauges that applications send by StatsD, over UDP.
//!
//! A datagram has one or more lines `NAME:VALUE|g`, with sections that DogStatsD has added
//! (`|#TAG:VALUE,TAG`, `|@RATE` and others). Gauges that groups name are loads of their
//! locations; everything else is left alone. Tags may also be in the name, as InfluxDB (`NAME,TAG=VALUE:1|g`), Graphite
//! (`NAME;TAG=VALUE:1|g`) and SignalFx (`NAME[TAG=VALUE]:1|g`) have them. A gauge that is only *changed* (`NAME:+4|g`) is
//! refused: with one lost datagram, what it adds up to would be wrong for ever.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use evenkeel_core::load::{LoadValue, Location};
use evenkeel_core::tally::Tally;
use evenkeel_core::time::Instant;
use evenkeel_manager::Manager;
use evenkeel_manager::config::Config;
use evenkeel_manager::config::sources::{Sources, Statsd as Settings};
use evenkeel_manager::counts::{Origin, ReportOutcome};
use evenkeel_manager::exposition::{Exposition, Type};
use evenkeel_manager::handover::Handover;
use evenkeel_manager::service::{Service, Work};
use evenkeel_manager::snapshot::{GroupHandle, Snapshot};
use evenkeel_manager::subsystem::{Commit, Exclusive, PrepareError, PrepareErrors, Subsystem};
use evenkeel_net::Clock;
use evenkeel_net::datagram::{self, Next, SocketTask, Worker};
use evenkeel_net::inherited::InheritedSocket;

use crate::poll::PolledGroup;

/// Longest datagram in bytes: that of DogStatsD's clients.
pub const MAX_DATAGRAM: usize = 8192;

/// Receive buffer that the system is asked for, for each socket.
const RECEIVE_BUFFER: usize = 1024 * 1024;

/// Datagrams that are taken from a socket before others have their turn.
const BATCH: usize = 64;

/// The source in metrics and logs.
const ORIGIN: Origin = Origin("statsd");

/// A gauge, as a line says it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gauge<'a> {
    /// Name without tags.
    pub name: &'a str,
    /// Value of the gauge; finite.
    pub value: f64,
    /// Name with the tags that are in it.
    whole_name: &'a str,
    /// Tags in the name: `TAG=VALUE`, with commas or semicolons between them.
    name_tags: &'a str,
    /// Tags of DogStatsD: `TAG:VALUE`, with commas between them.
    tags: &'a str,
}

/// Reason why a line says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLine {
    /// The line is not UTF-8.
    #[error("the line is not text")]
    NotText,
    /// A name, a value or a type is missing.
    #[error("the line is not NAME:VALUE|TYPE")]
    Parts,
    /// The value of a gauge is no number.
    #[error("the value is not a number")]
    Number,
    /// The gauge is changed by so much, whatever it was.
    #[error("the value is relative (+ or -), but must be absolute")]
    Delta,
}

impl<'a> Gauge<'a> {
    /// Reads a line without its end; `None` is a metric of another type, an event or a check.
    ///
    /// # Errors
    ///
    /// The line is none of StatsD, or a gauge that cannot be a load.
    pub fn parse(line: &'a [u8]) -> Result<Option<Self>, InvalidLine> {
        let line = str::from_utf8(line).map_err(|_| InvalidLine::NotText)?;
        // There are clients that send the end of a text of C.
        let line = line.trim_end_matches(['\0', ' ']);
        if line.starts_with("_e{") || line.starts_with("_sc|") {
            return Ok(None);
        }
        let (whole_name, rest) = line.split_once(':').ok_or(InvalidLine::Parts)?;
        let (name, name_tags) = split_name(whole_name);
        let mut sections = rest.split('|');
        let values = sections.next().unwrap_or_default();
        let kind = sections.next().filter(|kind| !kind.is_empty());
        let kind = kind.ok_or(InvalidLine::Parts)?;
        if name.is_empty() || values.is_empty() {
            return Err(InvalidLine::Parts);
        }
        if kind != "g" {
            return Ok(None);
        }
        // Clients may pack several values of a metric; of a gauge, the last is what it is.
        let value = values.rsplit(':').next().unwrap_or_default().trim_end();
        if value.starts_with(['+', '-']) {
            return Err(InvalidLine::Delta);
        }
        // Names of numbers, as infinity has some, are none here.
        let is_part =
            |byte: u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'-' | b'+');
        if !value.bytes().all(is_part) {
            return Err(InvalidLine::Number);
        }
        let value: f64 = value.parse().map_err(|_| InvalidLine::Number)?;
        if !value.is_finite() {
            return Err(InvalidLine::Number);
        }
        let tags = sections.find_map(|section| section.strip_prefix('#'));
        Ok(Some(Gauge {
            name,
            value,
            whole_name,
            name_tags,
            tags: tags.unwrap_or_default(),
        }))
    }

    /// Tags of DogStatsD, as they stand there.
    pub fn tags(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.tags.split(',').filter(|tag| !tag.is_empty())
    }

    /// Tags in the name, with their values.
    fn name_tags(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let tags = self.name_tags.split([',', ';']);
        tags.filter_map(|tag| tag.split_once('=').filter(|(name, _)| !name.is_empty()))
    }

    /// Returns the value of the tag called `name`.
    pub fn tag(&self, name: &str) -> Option<&'a str> {
        let mut tags = self.tags();
        let found = tags.find_map(|tag| tag.strip_prefix(name)?.strip_prefix(':'));
        let mut in_name = self.name_tags();
        found.or_else(|| in_name.find_map(|(known, value)| (known == name).then_some(value)))
    }

    /// True if it has the tag `wanted`: `TAG`, or `TAG:VALUE`.
    pub fn has_tag(&self, wanted: &str) -> bool {
        let in_name = wanted.split_once(':');
        self.tags().any(|tag| tag == wanted)
            || in_name.is_some_and(|wanted| self.name_tags().any(|tag| tag == wanted))
    }
}

/// Splits a name from the tags that are in it: as InfluxDB, Graphite, SignalFx or Librato write them.
fn split_name(name: &str) -> (&str, &str) {
    let Some(at) = name.find([',', ';', '[', '#']) else {
        return (name, "");
    };
    let (before, tags) = name.split_at_checked(at).unwrap_or((name, ""));
    match tags.strip_prefix('[') {
        // Without the other bracket it is a part of the name.
        Some(tags) => tags
            .strip_suffix(']')
            .map_or((name, ""), |tags| (before, tags)),
        None => (before, tags.get(1..).unwrap_or_default()),
    }
}

/// Result for a line, whichever group it was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GaugeResult {
    /// The line was a load of some group.
    Used,
    /// A gauge that no group names, or of a sender that is none of theirs.
    Unused,
    /// A metric of another type, an event or a check.
    Other,
    /// The line could not be understood.
    Malformed,
    /// A gauge that is only changed.
    Delta,
    /// The whole datagram was longer than [`MAX_DATAGRAM`].
    TooLong,
}

impl GaugeResult {
    const ALL: [GaugeResult; 6] = [
        GaugeResult::Used,
        GaugeResult::Unused,
        GaugeResult::Other,
        GaugeResult::Malformed,
        GaugeResult::Delta,
        GaugeResult::TooLong,
    ];

    fn name(self) -> &'static str {
        match self {
            GaugeResult::Used => "used",
            GaugeResult::Unused => "unused",
            GaugeResult::Other => "other",
            GaugeResult::Malformed => "malformed",
            GaugeResult::Delta => "delta",
            GaugeResult::TooLong => "too_long",
        }
    }
}

/// Listens for gauges. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Statsd {
    clock: Clock,
    task: Arc<SocketTask<State>>,
    heard: Arc<Counts>,
}

/// Lines, by what became of them.
type Counts = Tally<{ GaugeResult::ALL.len() }>;

#[derive(Default)]
struct State {
    sockets: Arc<Vec<Bound>>,
    /// Routes, by the address at which the gauges arrive.
    routes: HashMap<SocketAddr, Vec<Route>>,
    /// True if the thread runs: it does from the first configuration on that wants it.
    is_served: bool,
    /// True while another process reads what comes.
    rests: bool,
    /// True once nothing is opened any more.
    stopped: bool,
}

/// A socket at which gauges arrive.
#[derive(Clone)]
struct Bound {
    /// Address as configured; the port may be 0.
    wanted: SocketAddr,
    socket: Arc<UdpSocket>,
}

/// Settings and locations of a group that wants gauges.
struct Route {
    settings: Settings,
    handle: Arc<GroupHandle>,
    by_name: HashMap<Arc<str>, Arc<Location>>,
    /// `None` where several locations have the address.
    by_address: HashMap<IpAddr, Option<Arc<Location>>>,
}

impl Route {
    fn new(group: &PolledGroup, settings: &Settings) -> Self {
        let mut route = Route {
            settings: settings.clone(),
            handle: Arc::clone(&group.handle),
            by_name: HashMap::new(),
            by_address: HashMap::new(),
        };
        for member in group.members() {
            let at = &member.location;
            route.by_name.insert(Arc::clone(at.name()), Arc::clone(at));
            let Some(ip) = member.address.ip() else {
                continue;
            };
            let known = route.by_address.entry(ip.to_canonical());
            let known = known.or_insert_with(|| Some(Arc::clone(at)));
            if known.as_ref().is_some_and(|known| !Arc::ptr_eq(known, at)) {
                *known = None;
            }
        }
        route
    }

    /// Takes a gauge, if the group wants it; answers whether it does.
    fn take(&self, gauge: &Gauge<'_>, from: IpAddr, now: Instant) -> bool {
        let loads = &self.settings.loads;
        let load = loads.find_load("", gauge.whole_name);
        let Some(load) = load.or_else(|| loads.find_load("", gauge.name)) else {
            return false;
        };
        let tag = self.settings.tag.as_deref();
        if tag.is_some_and(|wanted| !gauge.has_tag(wanted)) {
            return false;
        }
        let senders = self.settings.senders.as_ref();
        if senders.is_some_and(|senders| !senders.contains(from)) {
            return false;
        }
        let location = match &self.settings.location_tag {
            Some(tag) => gauge.tag(tag).and_then(|name| self.by_name.get(name)),
            None => match self.by_address.get(&from) {
                Some(location) => location.as_ref(),
                None => return false,
            },
        };
        let fate = match (location, LoadValue::new(gauge.value)) {
            (None, _) => ReportOutcome::Missing,
            (Some(_), Err(_)) => ReportOutcome::BadValue,
            (Some(location), Ok(value)) => match location.report_load(load, value, now) {
                Ok(()) => ReportOutcome::Taken,
                Err(_) => ReportOutcome::TooManyLoads,
            },
        };
        self.handle.reports.count(ORIGIN, fate);
        true
    }
}

impl Statsd {
    /// Makes a source without sockets. The source opens them, and its thread starts, as soon as a
    /// configuration says where.
    ///
    /// # Errors
    ///
    /// The system gives no file to wake the thread with.
    pub(crate) fn new(clock: Clock) -> io::Result<Self> {
        Ok(Statsd {
            clock,
            task: SocketTask::new(State::default())?,
            heard: Arc::default(),
        })
    }

    /// Returns the addresses that the sockets are bound to.
    fn local_addresses(&self) -> Vec<SocketAddr> {
        let sockets = Arc::clone(&self.task.lock_state().sockets);
        let addresses = sockets.iter().map(|bound| bound.socket.local_addr());
        addresses.flatten().collect()
    }

    /// Keeps what groups want, for ever.
    async fn follow(self, manager: Arc<Manager>) {
        let mut changes = manager.subscribe_changes();
        loop {
            changes.borrow_and_update();
            let mut routes: HashMap<SocketAddr, Vec<Route>> = HashMap::new();
            for group in PolledGroup::all_groups(&manager) {
                let Some(settings) = &group.config.sources.statsd else {
                    continue;
                };
                for address in &settings.listen {
                    let routes = routes.entry(*address).or_default();
                    routes.push(Route::new(&group, settings));
                }
            }
            self.task.lock_state().routes = routes;
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Parts that the thread works with.
struct Receiver {
    clock: Clock,
    sockets: Arc<Vec<Bound>>,
    buffer: Vec<u8>,
    heard: Arc<Counts>,
}

impl Worker<State> for Receiver {
    fn turn(&mut self, state: &mut State) -> Next {
        if state.rests {
            self.sockets = Arc::default();
            return Next::Never;
        }
        self.sockets = Arc::clone(&state.sockets);
        for bound in self.sockets.iter() {
            let routes = state.routes.get(&bound.wanted);
            let routes = routes.map_or(&[][..], Vec::as_slice);
            for _ in 0..BATCH {
                let (length, from) = match bound.socket.recv_from(&mut self.buffer) {
                    Ok(received) => received,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    // Nothing more, for now.
                    Err(_) => break,
                };
                let datagram = self.buffer.get(..length).unwrap_or_default();
                let from = from.ip().to_canonical();
                take(datagram, from, routes, self.clock.now(), &self.heard);
            }
        }
        Next::Never
    }

    fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(|bound| bound.socket.as_fd())
    }
}

/// Takes the gauges of a datagram.
fn take(datagram: &[u8], from: IpAddr, routes: &[Route], now: Instant, heard: &Counts) {
    let count = |what: GaugeResult| heard.count_at(what as usize);
    if datagram.len() > MAX_DATAGRAM {
        count(GaugeResult::TooLong);
        return;
    }
    let lines = datagram
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii);
    for line in lines.filter(|line| !line.is_empty()) {
        count(match Gauge::parse(line) {
            Ok(None) => GaugeResult::Other,
            Err(InvalidLine::Delta) => GaugeResult::Delta,
            Err(_) => GaugeResult::Malformed,
            Ok(Some(gauge)) => {
                let takers = routes.iter().filter(|route| route.take(&gauge, from, now));
                if takers.count() > 0 {
                    GaugeResult::Used
                } else {
                    GaugeResult::Unused
                }
            }
        });
    }
}

/// Returns the addresses at which groups with these sources want gauges to arrive.
fn wanted<'a>(sources: impl Iterator<Item = &'a Sources>) -> BTreeSet<SocketAddr> {
    let settings = sources.filter_map(|sources| sources.statsd.as_ref());
    settings.flat_map(|s| &s.listen).copied().collect()
}

/// Owner of the sockets.
const WHOSE: &str = "statsd";

fn open(wanted: SocketAddr) -> io::Result<Bound> {
    let socket = Arc::new(datagram::open_socket(wanted, RECEIVE_BUFFER, WHOSE)?);
    Ok(Bound { wanted, socket })
}

impl Subsystem for Statsd {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        let wanted = wanted(next.section::<Vec<Sources>>().into_iter().flatten());
        let mut state = self.task.lock_state();
        if state.stopped || wanted.is_empty() && state.sockets.is_empty() {
            return Ok(Box::new(|| ()));
        }
        if !state.is_served {
            let receiver = Receiver {
                clock: self.clock,
                sockets: Arc::default(),
                // A byte more than the longest datagram, which shows that one is longer.
                buffer: vec![0; MAX_DATAGRAM + 1],
                heard: Arc::clone(&self.heard),
            };
            let whose = "statsd";
            self.task
                .start(whose, receiver)
                .map_err(|error| vec![PrepareError::Thread { whose, error }])?;
            state.is_served = true;
        }
        let (mut sockets, mut errors) = (Vec::new(), PrepareErrors::new());
        for wanted in wanted {
            let known = state.sockets.iter().find(|bound| bound.wanted == wanted);
            match known.map_or_else(|| open(wanted), |known| Ok(known.clone())) {
                Ok(bound) => sockets.push(bound),
                Err(error) => errors.push(PrepareError::Listen {
                    whose: "group.NAME.statsd",
                    address: format!("UDP {wanted}"),
                    error,
                }),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let task = Arc::clone(&self.task);
        Ok(Box::new(move || {
            task.lock_state().sockets = Arc::new(sockets);
            task.wake_thread();
        }))
    }

    fn sockets(&self) -> io::Result<Vec<InheritedSocket>> {
        let sockets = Arc::clone(&self.task.lock_state().sockets);
        let handed = |bound: &Bound| datagram::share_socket(&bound.socket, bound.wanted, WHOSE);
        sockets.iter().map(handed).collect()
    }

    fn hand_over(&self, _: &mut Handover) {
        // With the lock the thread is between two turns.
        self.task.lock_state().rests = true;
        self.task.wake_thread();
    }

    fn resume(&self) {
        self.task.lock_state().rests = false;
        self.task.wake_thread();
    }

    fn exclusive(&self, config: &Config) -> Vec<Exclusive> {
        let wanted = wanted(config.groups.iter().map(|group| &group.sources));
        Exclusive::udp(&Vec::from_iter(wanted))
    }

    fn stop(&self) {
        let mut state = self.task.lock_state();
        state.stopped = true;
        state.sockets = Arc::default();
        drop(state);
        self.task.wake_thread();
    }

    fn announce(&self, _: &Snapshot) -> Vec<String> {
        let addresses = self.local_addresses().into_iter();
        addresses.map(|at| format!("statsd on UDP {at}")).collect()
    }

    fn metrics(&self, out: &mut Exposition) {
        out.begin_family(
            "evenkeel_statsd_lines_total",
            Type::Counter,
            "Lines of StatsD that arrived, by result; too_long counts whole datagrams.",
        );
        for (heard, count) in self.heard.totals_by_kind(&GaugeResult::ALL) {
            out.add_sample(&[("result", heard.name())], count as f64);
        }
    }
}

impl Service for Statsd {
    fn run(&self, manager: Arc<Manager>) -> Work<()> {
        Box::pin(self.clone().follow(manager))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use evenkeel_core::load::LoadId;
    use evenkeel_manager::config;
    use proptest::prelude::*;

    use super::*;

    fn parse(line: &str) -> Result<Option<Gauge<'_>>, InvalidLine> {
        Gauge::parse(line.as_bytes())
    }

    #[test]
    fn gauges_are_read() {
        for (line, name, value, tags) in [
            ("a.b:0.5|g", "a.b", 0.5, &[][..]),
            ("a:1e3|g|@0.1", "a", 1000.0, &[]),
            (
                "a:3|g|#host:x,env:prod,fast",
                "a",
                3.0,
                &["host:x", "env:prod", "fast"],
            ),
            ("a:3|g|@1|#h:1:2|c:ci-7|T1656581400", "a", 3.0, &["h:1:2"]),
            ("a:1:2:3|g|#", "a", 3.0, &[]),
        ] {
            let gauge = parse(line).unwrap().unwrap();
            assert_eq!((gauge.name, gauge.value), (name, value), "{line}");
            assert_eq!(gauge.tags().collect::<Vec<_>>(), tags, "{line}");
        }
        let gauge = parse("a:3|g|#hosts:y,host:1:2").unwrap().unwrap();
        assert_eq!((gauge.tag("host"), gauge.tag("h")), (Some("1:2"), None));
        for other in [
            "a:1|c",
            "a:320|ms|@0.1",
            "a:x|s",
            "_e{1,1}:a|b",
            "_sc|name|0",
            "a:1|d|#x",
        ] {
            assert_eq!(parse(other), Ok(None), "{other}");
        }
    }

    #[test]
    fn fronts_d8_tags_may_be_in_the_name() {
        for line in [
            "a.b,host=x,env=prod:0.5|g",
            "a.b;host=x;env=prod:0.5|g",
            "a.b[host=x,env=prod]:0.5|g",
            "a.b#host=x,env=prod:0.5|g",
            "a.b,env=prod:0.5|g|#host:x",
            "a.b:0.5|g|#host:x,env:prod",
            "a.b,host=x,env=prod:0.5 |g ",
            "a.b,host=x,env=prod:0.5|g\0",
        ] {
            let gauge = parse(line).unwrap().unwrap();
            assert_eq!((gauge.name, gauge.value), ("a.b", 0.5), "{line}");
            assert_eq!((gauge.tag("host"), gauge.tag("hos")), (Some("x"), None));
            assert!(gauge.has_tag("env:prod") && !gauge.has_tag("env"), "{line}");
            assert!(!gauge.has_tag("env:pro") && !gauge.has_tag("host"));
        }
        for (line, name) in [("a[b:1|g", "a[b"), ("a,:1|g", "a"), ("a[]:1|g", "a")] {
            let gauge = parse(line).unwrap().unwrap();
            assert_eq!((gauge.name, gauge.name_tags().count()), (name, 0), "{line}");
        }
        for line in [",a=b:1|g", "[a=b]:1|g", ";:1|g", "\0"] {
            assert_eq!(parse(line), Err(InvalidLine::Parts), "{line}");
        }
    }

    #[test]
    fn what_is_no_gauge_is_refused() {
        for (line, error) in [
            ("a", InvalidLine::Parts),
            (":1|g", InvalidLine::Parts),
            ("a:|g", InvalidLine::Parts),
            ("a:1", InvalidLine::Parts),
            ("a:1|", InvalidLine::Parts),
            ("a:+1|g", InvalidLine::Delta),
            ("a:-1|g", InvalidLine::Delta),
            ("a:inf|g", InvalidLine::Number),
            ("a:NaN|g", InvalidLine::Number),
            ("a:1e999|g", InvalidLine::Number),
            ("a:1.2.3|g", InvalidLine::Number),
            ("a: 1|g", InvalidLine::Number),
        ] {
            assert_eq!(parse(line), Err(error), "{line}");
        }
        assert_eq!(Gauge::parse(b"a\xff:1|g"), Err(InvalidLine::NotText));
    }

    proptest! {
        #[test]
        fn no_line_breaks_it(line in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Some(gauge)) = Gauge::parse(&line) {
                prop_assert!(gauge.value.is_finite());
                prop_assert_eq!(gauge.tag(""), gauge.tags().find_map(|t| t.strip_prefix(':')));
            }
        }
    }

    /// Starts a group of three members at two locations, and returns where its gauges go.
    async fn started(keys: &str) -> (Arc<Manager>, Statsd, SocketAddr) {
        let text = format!(
            "[group.g]\nmembers = [\"127.0.0.1:1\", \"127.0.0.1:2\", \
             {{ address = \"127.0.0.2:3\", location = \"far\" }}]\n\
             [group.g.statsd]\nlisten = \"127.0.0.1:0\"\nloads = {{ busy = \"cpu\" }}\n{keys}"
        );
        let clock = Clock::start();
        let statsd = Statsd::new(clock).unwrap();
        let manager = Manager::new(clock, Arc::new(statsd.clone()));
        manager
            .apply_config(config::parse("t", &text).unwrap())
            .await
            .unwrap();
        let address = statsd.local_addresses()[0];
        (manager, statsd, address)
    }

    fn cpu(manager: &Manager, location: &str) -> Option<f32> {
        let now = manager.clock().now();
        let load = manager
            .find_location(location)?
            .last_load(LoadId::CPU, now)?;
        Some(load.value.get())
    }

    #[tokio::test]
    async fn gauges_that_arrive_are_loads() {
        let (manager, statsd, address) = started("").await;
        let running = tokio::spawn(statsd.run(Arc::clone(&manager)));
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        let datagram = b"busy:+1|g\nbusy:9|c\n\nbusy:0.25|g|#host:far\r\nidle:0.5|g\nbad\n";
        let arrived = async {
            while cpu(&manager, "127.0.0.1").is_none() {
                client.send_to(datagram, address).unwrap();
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within(arrived).await;
        assert_eq!(cpu(&manager, "127.0.0.1"), Some(0.25));
        assert_eq!(cpu(&manager, "far"), None, "not by the sender's address");
        let handle = manager.handles().remove(0);
        assert!(handle.reports.count_of(ORIGIN, ReportOutcome::Taken) > 0);
        let heard = |heard: GaugeResult| statsd.heard.totals()[heard as usize];
        for kind in [GaugeResult::Used, GaugeResult::Other, GaugeResult::Delta] {
            assert!(heard(kind) > 0, "{kind:?}");
        }
        running.abort();
        // The address is given up.
        statsd.stop();
        assert_eq!(statsd.local_addresses(), []);
        let free = async {
            while datagram::is_taken(address) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within(free).await;
    }

    async fn within(done: impl Future<Output = ()>) {
        let limit = Duration::from_secs(30);
        tokio::time::timeout(limit, done).await.unwrap();
    }

    #[tokio::test]
    async fn a_tag_says_whose_load_it_is() {
        let (manager, statsd, _) =
            started("location_tag = \"host\"\ntag = \"env:prod\"\nsenders = [\"10.0.0.0/8\"]\n")
                .await;
        let group = PolledGroup::all_groups(&manager).remove(0);
        let settings = group.config.sources.statsd.clone().unwrap();
        let route = Route::new(&group, &settings);
        let now = manager.clock().now();
        let take = |line: &str, from: &str| {
            let gauge = parse(line).unwrap().unwrap();
            route.take(&gauge, from.parse().unwrap(), now)
        };
        assert!(
            !take("busy:1|g|#host:far", "10.0.0.1"),
            "another environment"
        );
        assert!(
            !take("busy:1|g|#host:far,env:prod", "11.0.0.1"),
            "a stranger"
        );
        assert!(!take("other:1|g|#host:far,env:prod", "10.0.0.1"));
        assert_eq!(cpu(&manager, "far"), None);
        assert!(take("busy:0.75|g|#env:prod,host:far", "10.0.0.1"));
        assert_eq!(cpu(&manager, "far"), Some(0.75));
        let count = |fate| group.handle.reports.count_of(ORIGIN, fate);
        assert!(take("busy:1|g|#env:prod,host:x", "10.0.0.1"));
        assert!(take("busy:1e13|g|#env:prod,host:far", "10.0.0.1"));
        assert_eq!(
            (
                count(ReportOutcome::Missing),
                count(ReportOutcome::BadValue)
            ),
            (1, 1)
        );
        assert!(take("busy,env=prod,host=far:0.5|g", "10.0.0.1"));
        assert_eq!(cpu(&manager, "far"), Some(0.5));
        drop(statsd);
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_an_error() {
        let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = taken.local_addr().unwrap();
        let clock = Clock::start();
        let statsd = Statsd::new(clock).unwrap();
        let manager = Manager::new(clock, Arc::new(statsd.clone()));
        let text = format!(
            "[group.g]\nmembers = [\"127.0.0.1:1\"]\n[group.g.statsd]\nlisten = \"{at}\"\n\
             loads = {{ a = \"cpu\" }}\n"
        );
        let applied = manager
            .apply_config(config::parse("t", &text).unwrap())
            .await;
        let error = applied.unwrap_err().to_string();
        assert!(error.contains("cannot listen on UDP"), "{error}");
    }
}
