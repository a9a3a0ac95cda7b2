//! A server beside the agent: its figures, and whether it serves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use evenkeel_config::agent::{ServerConfig, Wanted};
use evenkeel_wire::reporting::message::ServerState;

use crate::activity::Activity;
use crate::figures::{Figures, Meter};
use crate::learn::Learner;
use crate::owners::Owners;
use crate::pages::Pages;

/// Connections in a row that must fail until a server counts as down.
const FALL: u32 = 2;

/// Longest time that a connection may take to be established.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A server and what is known about it.
#[derive(Debug)]
pub struct Server {
    /// Configuration of the server.
    pub config: ServerConfig,
    /// Owners whose pages count for the server.
    pub owners: Owners,
    /// Learner of the server's service time.
    pub learner: Learner,
    /// The figures of the last interval; `None` without a page.
    pub figures: Option<Figures>,
    /// Condition of the server.
    pub condition: Condition,
    meter: Meter,
    port: Port,
    /// True if the last look found no process with the application open.
    deserted: bool,
    said_no_page: bool,
    said_clamped: bool,
}

/// Condition of a server: serves, or why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The server serves.
    Up,
    /// The server keeps its clients and gets no new ones, as its operator wants.
    Drain,
    /// The operator has taken the server out.
    Maint,
    /// No process has the application open.
    NoProcess,
    /// The server's address takes no connections.
    PortClosed,
}

impl Condition {
    /// Returns the condition as the reporting protocol has it.
    pub fn server_state(self) -> ServerState {
        match self {
            Condition::Up => ServerState::Up,
            Condition::Drain => ServerState::Drain,
            Condition::Maint | Condition::NoProcess | Condition::PortClosed => ServerState::Down,
        }
    }
}

impl std::fmt::Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Condition::Up => "up",
            Condition::Drain => "drain",
            Condition::Maint => "in maintenance",
            Condition::NoProcess => "down: no process has the application open",
            Condition::PortClosed => "down: its port accepts no connections",
        })
    }
}

impl Server {
    /// A server about which nothing is known but what was `learned` before.
    pub fn new(config: ServerConfig, owners: Owners, learned: Option<Learner>) -> Self {
        Server {
            owners,
            meter: Meter::new(config.service_time),
            learner: learned.unwrap_or_default(),
            figures: None,
            condition: Condition::Up,
            port: Port::default(),
            deserted: false,
            said_no_page: false,
            said_clamped: false,
            config,
        }
    }

    /// Goes on with another configuration.
    pub fn reconfigure(&mut self, config: ServerConfig, owners: Owners) {
        self.owners = owners;
        self.meter.set_source(config.service_time);
        if config.address != self.config.address {
            self.port = Port::default();
        }
        self.said_no_page &= config.applications == self.config.applications;
        self.said_clamped = false;
        self.config = config;
    }

    /// Takes in what happened in an interval of `length`. `cpus` is what the server can
    /// use where its capacity is not given.
    pub fn measure_interval(&mut self, pages: &Pages, length: Duration, cpus: Option<f64>) {
        let mut activity = Activity::empty_interval(length);
        let (mut instrumented, mut ended) = (false, false);
        for page in pages.intervals_of(&self.config.applications, &self.owners) {
            activity.add_interval(page);
            instrumented = true;
            ended |= page.ended;
        }
        if instrumented {
            self.learner.learn_from(&activity);
            let capacity = self.config.capacity.map(f64::from);
            let capacity = capacity.or(cpus).unwrap_or(1.0).max(0.01);
            let figures = self.meter.figures(&activity, &self.learner, capacity);
            self.say_if_clamped(figures.clamped, capacity);
            self.figures = Some(figures);
            self.said_no_page = false;
        } else {
            self.figures = None;
            self.say_if_no_page(pages);
        }
        let before = self.condition;
        self.condition = self.judge(instrumented, activity.processes, ended);
        if before != self.condition {
            tracing::info!(server = self.config.name, "{}", self.condition);
        }
    }

    fn judge(&mut self, instrumented: bool, processes: u32, ended: bool) -> Condition {
        let empty = instrumented && processes == 0;
        // A server that starts its processes anew may have none for a moment; one that has
        // said goodbye has not.
        let gone = empty && (ended || self.deserted);
        self.deserted = empty;
        let check_port = self.config.check_port.unwrap_or(!instrumented);
        match self.config.state {
            Wanted::Maint => Condition::Maint,
            _ if gone => Condition::NoProcess,
            _ if check_port && self.port.is_closed() => Condition::PortClosed,
            Wanted::Drain => Condition::Drain,
            Wanted::Ready => Condition::Up,
        }
    }

    /// Starts to find out whether its port takes connections, if that matters; the answer
    /// counts from the next interval on.
    pub fn check_port(&self) {
        let wanted = self.config.check_port;
        if wanted.unwrap_or(self.figures.is_none()) {
            self.port
                .check(self.config.address.host.clone(), self.config.address.port);
        }
    }

    /// Waits until it is known whether its port takes connections.
    pub async fn check_port_now(&self) {
        if self.config.check_port.unwrap_or(self.figures.is_none()) {
            let address = &self.config.address;
            for _ in 0..FALL {
                self.port
                    .clone()
                    .connect(address.host.clone(), address.port)
                    .await;
            }
        }
    }

    fn say_if_no_page(&mut self, pages: &Pages) {
        let wanted = &self.config.applications;
        if wanted.is_empty() || self.said_no_page {
            return;
        }
        self.said_no_page = true;
        tracing::warn!(
            server = self.config.name,
            "{}",
            advise_missing_page(wanted, pages)
        );
    }

    fn say_if_clamped(&mut self, clamped: bool, capacity: f64) {
        if clamped && !self.said_clamped {
            self.said_clamped = true;
            tracing::warn!(
                server = self.config.name,
                capacity,
                "the service time exceeds the interval: the utilisation is limited to 1; set \
                 `capacity` to the number of requests that the server can serve at once, or check \
                 `service_time`"
            );
        }
    }
}

/// Advises what to do if there is no page of these applications.
pub fn advise_missing_page(wanted: &[String], pages: &Pages) -> String {
    let known: Vec<_> = pages.applications().into_iter().collect();
    let known = match known[..] {
        [] => "the folder has no pages".to_owned(),
        _ if known
            .iter()
            .any(|known| wanted.iter().any(|name| name == known)) =>
        {
            "a page exists, but its user is not in page_owners".to_owned()
        }
        _ => format!("the folder has pages of {}", known.join(", ")),
    };
    let strangers: Vec<_> = pages.strangers().collect();
    let strangers = match strangers[..] {
        [] => String::new(),
        _ => format!(
            " Pages of {} are not read: if the server runs as one of these users, name the user in page_owners.",
            strangers.join(", ")
        ),
    };
    format!(
        "no page of application {} in {}; {known}.{strangers} Check that the server runs, has loaded \
         the ARM library, and uses the same folder.",
        wanted.join(", "),
        pages.dir().display()
    )
}

/// Results of the connection checks of a port. Copies share them.
#[derive(Clone, Debug, Default)]
struct Port {
    failures: Arc<AtomicU32>,
    running: Arc<AtomicU32>,
}

impl Port {
    fn is_closed(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= FALL
    }

    fn check(&self, host: String, port: u16) {
        let port_state = self.clone();
        if port_state.running.swap(1, Ordering::Relaxed) == 0 {
            tokio::spawn(async move {
                port_state.clone().connect(host, port).await;
                port_state.running.store(0, Ordering::Relaxed);
            });
        }
    }

    async fn connect(self, host: String, port: u16) {
        // Without a host it is this machine.
        let host = if host.is_empty() {
            "127.0.0.1".into()
        } else {
            host
        };
        let connect = tokio::net::TcpStream::connect((host, port));
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connect).await;
        match connected {
            Ok(Ok(_)) => self.failures.store(0, Ordering::Relaxed),
            _ => {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
