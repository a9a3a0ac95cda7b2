//! Users who negotiate for a server, and then talk to it directly.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::surge::{Pace, Site, Step, User};
use crate::wire::Wire;

/// Broker that users ask for a server.
#[derive(Clone)]
pub struct Broker {
    /// Address at which the negotiator listens.
    pub address: SocketAddr,
    /// Host that the users' requests to the negotiator name.
    pub host: String,
}

/// An answer that a user had.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Server that answered.
    pub server: SocketAddr,
    /// Time from the request's first byte to the response's last.
    pub response_time: Duration,
}

/// Users, each a thread, until dropped.
pub struct Sessions {
    shared: Arc<Shared>,
    users: Vec<JoinHandle<()>>,
}

struct Shared {
    broker: Broker,
    site: Site,
    stop: AtomicBool,
    seen: Mutex<Seen>,
}

/// Events that users saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// All answers.
    pub samples: Vec<Sample>,
    /// Number of times that a user asked for a server.
    pub negotiations: u64,
}

impl Sessions {
    /// Starts so many users of a site. All documents are at `/site/NUMBER`.
    pub fn start(broker: Broker, site: Site, users: u64, pace: Pace, seed: u64) -> Self {
        let shared = Arc::new(Shared {
            broker,
            site,
            stop: AtomicBool::new(false),
            seen: Mutex::default(),
        });
        let users = (0..users).map(|number| {
            let shared = Arc::clone(&shared);
            let rng = Rng::with_seed(seed.wrapping_add(number << 32));
            let user = thread::Builder::new().stack_size(256 * 1024);
            user.spawn(move || shared.live(User::new(pace), rng))
                .expect("a thread")
        });
        let users = users.collect();
        Self { shared, users }
    }

    /// Returns the events that users saw since the last call.
    pub fn take(&self) -> Seen {
        let failed = self.users.iter().any(JoinHandle::is_finished);
        assert!(!failed, "a user failed; see above");
        std::mem::take(&mut self.shared.seen.lock().expect("no panic"))
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for user in self.users.drain(..) {
            user.thread().unpark();
            // Who failed has said so.
            let _ = user.join();
        }
    }
}

/// A user's place at a server.
struct Place {
    wire: Wire,
    server: SocketAddr,
    until: Instant,
}

impl Shared {
    fn live(&self, mut user: User, mut rng: Rng) {
        // Not all at once.
        self.wait(Duration::from_secs_f64(3.0 * rng.f64()));
        let mut place: Option<Place> = None;
        let mut begins = true;
        while !self.stop.load(Ordering::Relaxed) {
            match user.next(&mut rng) {
                Step::Begin => begins = true,
                Step::Wait(time) => self.wait(time),
                Step::Ask => {
                    let document = self.site.draw(&mut rng);
                    // The quantum of the last session is another session's.
                    let held = place.take();
                    let mut here = match held {
                        Some(here) if !begins && Instant::now() < here.until => here,
                        held => self.negotiate(document, held),
                    };
                    begins = false;
                    self.ask(&mut here, document);
                    place = Some(here);
                }
            }
        }
    }

    /// Asks for a server, and follows. The connection to the last one is kept if that is
    /// the answer.
    fn negotiate(&self, document: usize, held: Option<Place>) -> Place {
        let Broker { address, host } = &self.broker;
        let mut wire = Wire::connect(*address);
        wire.send(format!(
            "GET /site/{document} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        ));
        let answer = wire.read_response();
        assert_eq!(answer.second_word(), "307", "{}", answer.head);
        let ([location], [freshness]) = (
            &answer.values("location")[..],
            &answer.values("cache-control")[..],
        ) else {
            panic!("no place, or no quantum: {}", answer.head);
        };
        let authority = location.strip_prefix("http://").and_then(|rest| {
            let (authority, path) = rest.split_once('/')?;
            (path == format!("site/{document}")).then_some(authority)
        });
        let server = authority.and_then(|authority| authority.parse().ok());
        let server = server.unwrap_or_else(|| panic!("no address: {location}"));
        let mut directives = freshness.split(',').map(str::trim);
        let quantum = directives.find_map(|directive| directive.strip_prefix("max-age="));
        let quantum = quantum.and_then(|seconds| seconds.parse().ok());
        let quantum = quantum.unwrap_or_else(|| panic!("no quantum: {freshness}"));
        self.seen.lock().expect("no panic").negotiations += 1;
        let wire = match held {
            Some(held) if held.server == server => held.wire,
            _ => Wire::connect(server),
        };
        Place {
            wire,
            server,
            until: Instant::now() + Duration::from_secs(quantum),
        }
    }

    fn ask(&self, place: &mut Place, document: usize) {
        let Place { wire, server, .. } = place;
        let server = *server;
        let began = Instant::now();
        wire.send(format!(
            "GET /site/{document} HTTP/1.1\r\nHost: {server}\r\n\r\n"
        ));
        let response = wire.read_response();
        let response_time = began.elapsed();
        let length = response.body.len() as u64;
        let expected = ("200", self.site.length(document));
        assert_eq!((response.second_word(), length), expected, "from {server}");
        let sample = Sample {
            server,
            response_time,
        };
        self.seen.lock().expect("no panic").samples.push(sample);
    }

    /// Waits, unless it is all over.
    fn wait(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.stop.load(Ordering::Relaxed) {
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                return;
            };
            thread::park_timeout(left);
        }
    }
}
