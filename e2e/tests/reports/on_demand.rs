//! On demand over HTTP, whole: clients are bound by a redirect, talk to their Apache
//! directly, and come back when it sheds.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use arm::page::{self, Reader};
use evenkeel_e2e::agent::{Agent, key_file};
use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::httpd::{Httpd, can_run};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::{Message, Wire};

const SITE: &str = "www.example.org";

/// Fits no buffer between a server and a client that does not read.
const LARGE: usize = 24 * 1024 * 1024;

/// Requests in flight above which a location is critical, and how many of a client that
/// does not read make it so.
const CRITICAL: usize = 5;
const MANY: usize = 8;

/// Redirects after which a browser would still be patient. One leads to the negotiator, and
/// one from there to a server; while an alert is on its way to the server there may be
/// another such pair.
const FEW: usize = 4;

/// An Apache with the module, and its agent.
struct Place {
    httpd: Httpd,
    agent: Agent,
}

impl Place {
    fn start() -> Self {
        let agent = Agent::start("[host]\nscope = \"off\"\n");
        // Whoever does not read what it asked for may hold a thread.
        let lines = format!(
            "EvenkeelBalancer http://{SITE}/.well-known/evenkeel/rebind\n\
             EvenkeelShedExempt /files/large\n\
             ThreadsPerChild 64\n\
             MaxRequestWorkers 128\n\
             MaxSpareThreads 128\n"
        );
        let httpd = Httpd::start_with_pages(&agent.pages_folder(), "event", &lines);
        httpd.put_document("large", vec![b'x'; LARGE]);
        Self { httpd, agent }
    }

    fn address(&self) -> SocketAddr {
        self.httpd.address()
    }

    fn report_to(&self, broker: SocketAddr, key_file: &str) {
        let address = self.address();
        self.agent.reconfigure(&format!(
            "[broker.site]\n\
             address = \"{broker}\"\n\
             key_file = \"{key_file}\"\n\
             [host]\n\
             location = \"{address}\"\n\
             scope = \"off\"\n\
             [server.www]\n\
             address = \"{address}\"\n\
             application = \"apache.example:{}\"\n\
             service_time = \"1ms\"\n",
            address.port(),
        ));
    }

    /// Requests that ever began here. Those that were sent back are none.
    fn requests(&self) -> u64 {
        let pages = page::find_pages(&self.agent.pages_folder()).unwrap();
        let mut page = Reader::open(&pages[0]).unwrap();
        page.sample(page::monotonic_nanos()).unwrap().starts
    }

    /// Gives it something to do until the answer is dropped, alert or not.
    fn burden(&self, requests: usize) -> Vec<Wire> {
        let request = |_| {
            let mut wire = Wire::connect(self.address());
            wire.send("GET /files/large HTTP/1.1\r\nHost: a\r\n\r\n");
            // What follows is not read.
            assert_eq!(wire.read_head().second_word(), "200");
            wire
        };
        (0..requests).map(request).collect()
    }
}

/// A client as browsers are: it follows redirects, and then stays where it is.
struct Browser {
    negotiator: SocketAddr,
    /// Server where the browser is, and its connection.
    place: Option<(SocketAddr, Wire)>,
    /// Requests to the negotiator.
    negotiations: usize,
}

impl Browser {
    fn new(negotiator: SocketAddr) -> Self {
        Self {
            negotiator,
            place: None,
            negotiations: 0,
        }
    }

    /// Gets the document; answers who had it, and after how many redirects.
    fn get(&mut self) -> (SocketAddr, usize) {
        const TARGET: &str = "/files/name?of=it";
        let mut target = TARGET.to_owned();
        let mut redirects = 0;
        loop {
            let response = match &mut self.place {
                Some((server, wire)) => ask(wire, &server.to_string(), &target),
                None => {
                    self.negotiations += 1;
                    ask(&mut Wire::connect(self.negotiator), SITE, &target)
                }
            };
            match (response.second_word(), &self.place) {
                ("200", Some((server, _))) => {
                    assert_eq!((response.text(), &*target), ("name", TARGET));
                    return (*server, redirects);
                }
                ("307", _) => redirects += 1,
                _ => panic!("{}", response.head),
            }
            assert!(redirects <= FEW, "it is sent around");
            let location = response.values("location")[0].to_owned();
            let rest = location.strip_prefix("http://").unwrap();
            let (authority, path) = rest.split_once('/').unwrap();
            target = format!("/{path}");
            self.place = (authority != SITE).then(|| {
                let server = authority.parse().unwrap();
                (server, Wire::connect(server))
            });
        }
    }
}

fn ask(wire: &mut Wire, host: &str, target: &str) -> Message {
    wire.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    wire.read_response()
}

/// Returns the number of browsers of each server, now that each browser has asked once more.
fn spread(browsers: &mut [Browser]) -> BTreeMap<SocketAddr, usize> {
    let mut spread = BTreeMap::new();
    for browser in browsers {
        *spread.entry(browser.get().0).or_default() += 1;
    }
    spread
}

struct Cluster {
    balancer: Balancer,
    places: Vec<Place>,
    _folder: Folder,
}

impl Cluster {
    fn start() -> Self {
        let folder = Folder::new();
        let places: Vec<_> = (0..3).map(|_| Place::start()).collect();
        let members: String = places
            .iter()
            .map(|place| place.address())
            .map(|a| format!("[[group.www.members]]\naddress = \"{a}\"\nlocation = \"{a}\"\n"))
            .collect();
        let key_file = key_file(&folder).display().to_string();
        let balancer = Balancer::start(&format!(
            "[admin]\n\
             listen = \"127.0.0.1:0\"\n\
             [broker]\n\
             listen = \"127.0.0.1:0\"\n\
             key_file = \"{key_file}\"\n\
             interval = \"100ms\"\n\
             [negotiator]\n\
             listen = \"127.0.0.1:0\"\n\
             [cluster.www]\n\
             group = \"www\"\n\
             hosts = [\"{SITE}\"]\n\
             quantum = \"1h\"\n\
             [group.www]\n\
             strategy = \"round_robin\"\n\
             granularity = \"on_demand\"\n\
             load = \"in_flight\"\n\
             slow_start = \"0s\"\n\
             alert = {{ threshold = {CRITICAL}, release = 0.5, max_share = 1 }}\n\
             {members}"
        ));
        for place in &places {
            place.report_to(balancer.broker_address(), &key_file);
        }
        let cluster = Self {
            balancer,
            places,
            _folder: folder,
        };
        cluster.eventually("all agents report", |_, load, _| load.is_some());
        cluster
    }

    /// Waits until `holds` of each place: its number, its load as reported, whether it
    /// sheds. And then until its valve is as the broker wants it.
    fn eventually(&self, what: &str, holds: impl Fn(usize, Option<f64>, bool) -> bool) {
        wait_until(what, || {
            let status = self.balancer.status();
            let members = status["groups"][0]["members"].as_array().unwrap();
            members.iter().enumerate().all(|(number, member)| {
                let reasons = member["reasons"].as_array().unwrap();
                let sheds = reasons.iter().any(|reason| reason == "shedding");
                holds(number, member["load"].as_f64(), sheds)
                    && is_shut(&self.places[number]) == sheds
            })
        });
    }

    fn number_of(&self, server: SocketAddr) -> usize {
        let mut places = self.places.iter();
        places.position(|place| place.address() == server).unwrap()
    }

    /// Returns the number of browsers of each server, by number.
    fn spread(&self, browsers: &mut [Browser]) -> [usize; 3] {
        let mut counts = [0; 3];
        for (server, count) in spread(browsers) {
            counts[self.number_of(server)] = count;
        }
        counts
    }
}

/// Returns true if the server sends new requests back.
fn is_shut(place: &Place) -> bool {
    let answer = ask(&mut Wire::connect(place.address()), "a", "/files/name");
    answer.second_word() == "307"
}

#[test]
fn clients_are_bound_by_redirect_and_come_back_when_their_server_sheds() {
    if !can_run() {
        return;
    }
    let cluster = Cluster::start();
    let mut browsers: Vec<_> = (0..12)
        .map(|_| Browser::new(cluster.balancer.negotiator_address()))
        .collect();
    assert_eq!(cluster.spread(&mut browsers), [4; 3]);

    // Without an alert a request is one message to the server, and one back.
    let requests = || cluster.places.iter().map(Place::requests).sum::<u64>();
    let before = requests();
    for _ in 0..20 {
        for browser in &mut browsers {
            assert_eq!(browser.get().1, 0);
        }
    }
    assert_eq!(requests() - before, 20 * 12);
    assert!(browsers.iter().all(|browser| browser.negotiations == 1));

    // The agent reports what is in flight there; the alert comes back to the valve.
    let mut burden = cluster.places[0].burden(MANY);
    cluster.eventually("the busy one sheds", |number, _, sheds| {
        sheds == (number == 0)
    });
    for browser in &mut browsers {
        let was_there = browser.place.as_ref().unwrap().0 == cluster.places[0].address();
        let (server, redirects) = browser.get();
        assert_ne!(server, cluster.places[0].address());
        // Back to the negotiator, and from there to another one.
        assert_eq!(redirects, if was_there { 2 } else { 0 });
        assert_eq!(browser.get(), (server, 0), "once is enough");
    }
    let mut newcomer = Browser::new(cluster.balancer.negotiator_address());
    for _ in 0..6 {
        newcomer.place = None;
        assert_ne!(newcomer.get().0, cluster.places[0].address());
    }

    // Below the threshold, but not by enough.
    burden.truncate(CRITICAL - 1);
    cluster.eventually("the rest is reported", |number, load, sheds| {
        number != 0 || (load.is_some_and(|load| load < CRITICAL as f64) && sheds)
    });
    drop(burden);
    cluster.eventually("the alert is lifted", |_, _, sheds| !sheds);
    assert_eq!(cluster.spread(&mut browsers)[0], 0, "who is bound stays");
    let newcomers: Vec<_> = (0..3)
        .map(|_| Browser::new(cluster.balancer.negotiator_address()).get().0)
        .collect();
    assert!(newcomers.contains(&cluster.places[0].address()));
}

#[test]
fn with_all_critical_the_least_loaded_serves_and_nobody_loops() {
    if !can_run() {
        return;
    }
    let cluster = Cluster::start();
    let mut browsers: Vec<_> = (0..6)
        .map(|_| Browser::new(cluster.balancer.negotiator_address()))
        .collect();
    cluster.spread(&mut browsers);
    let mut burdens: Vec<_> = [MANY + 4, MANY, MANY + 5]
        .into_iter()
        .zip(&cluster.places)
        .map(|(requests, place)| place.burden(requests))
        .collect();
    // No browser is without its answer meanwhile, nor has to follow many redirects.
    let settled = |browsers: &mut [Browser], least: usize| {
        wait_until("all are at the least loaded one", || {
            let expected: [usize; 3] = std::array::from_fn(|n| if n == least { 6 } else { 0 });
            cluster.spread(browsers) == expected
        });
    };
    settled(&mut browsers, 1);
    let before: usize = browsers.iter().map(|browser| browser.negotiations).sum();
    for _ in 0..20 {
        assert_eq!(cluster.spread(&mut browsers), [0, 6, 0]);
    }
    let after: usize = browsers.iter().map(|browser| browser.negotiations).sum();
    assert_eq!(after, before, "nobody has to ask again");

    // Another one becomes the least loaded, though it is still critical.
    burdens[0].truncate(CRITICAL + 1);
    let more = cluster.places[1].burden(MANY);
    settled(&mut browsers, 0);
    drop(more);
    drop(burdens);
    cluster.eventually("all alerts are lifted", |_, _, sheds| !sheds);
    assert_eq!(cluster.spread(&mut browsers), [6, 0, 0]);
}
