//! The negotiator as its clients meet it: over a socket, with a real manager behind it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use evenkeel_core::load::LoadId;
use evenkeel_core::member::Reason;
use evenkeel_manager::{AdminState, Manager, config};

use super::*;
use evenkeel_wire::negotiation::{self, Binding, Refused};

const MEMBERS: &str = r#"
[group.pool]
strategy = "round_robin"
members = [
    "192.0.2.1:8080",
    { address = "192.0.2.2:8080", url = "https://www-2.example" },
]
"#;

const CLUSTER: &str = r#"
[negotiator]
listen = "127.0.0.1:0"

[cluster.shop]
group = "pool"
hosts = ["www.shop.example", "127.0.0.1"]
quantum = "42s"

[cluster.shop.class.gold]
response_time = "100ms"
quantum = "7s"
"#;

struct Broker {
    manager: Arc<Manager>,
    negotiator: Negotiator,
    runtime: tokio::runtime::Runtime,
}

impl Broker {
    fn start(text: &str) -> Broker {
        let clock = Clock::start();
        let negotiator = Negotiator::new(clock);
        let manager = Manager::new(clock, Arc::new(negotiator.clone()));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let broker = Broker {
            manager,
            negotiator,
            runtime,
        };
        broker.apply(text).unwrap();
        broker
    }

    fn shop() -> Broker {
        Broker::start(&format!("{MEMBERS}{CLUSTER}"))
    }

    fn apply(&self, text: &str) -> Result<(), String> {
        let config = config::parse("test.toml", text).unwrap();
        let applied = self.runtime.block_on(self.manager.apply_config(config));
        applied.map(drop).map_err(|error| error.to_string())
    }

    fn address(&self) -> SocketAddr {
        self.negotiator.local_addresses()[0]
    }

    /// The answer to a request on a connection of its own.
    fn ask(&self, request: &str) -> Reply {
        let mut stream = TcpStream::connect(self.address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        Reply {
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
            raw: head.to_owned(),
        }
    }

    fn get(&self, host: &str, path: &str, more: &str) -> Reply {
        self.ask(&format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n"
        ))
    }

    fn negotiate(&self, query: &str) -> Reply {
        self.get(
            "whatever.example",
            &format!("{}?{query}", negotiation::NEGOTIATE),
            "",
        )
    }

    fn count(&self, class: &str, ending: Ending) -> u64 {
        let classes = self.negotiator.metrics().classes();
        let class = classes.iter().find(|totals| totals.class == class).unwrap();
        let mut endings = class.endings.iter();
        endings.find(|(known, _)| *known == ending).unwrap().1
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.negotiator.stop();
    }
}

struct Reply {
    head: String,
    raw: String,
    body: String,
}

impl Reply {
    fn status(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }

    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.raw.split("\r\n").skip(1);
        lines.find_map(|line| {
            let (known, value) = line.split_once(':')?;
            known.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    fn binding(&self) -> Binding {
        assert_eq!(self.status(), "200", "{}", self.body);
        serde_json::from_str(&self.body).unwrap()
    }

    fn refused(&self) -> Refused {
        assert_eq!(self.status(), "503", "{}", self.body);
        let refused: Refused = serde_json::from_str(&self.body).unwrap();
        let after = refused.retry_after_seconds.to_string();
        assert_eq!(self.field("retry-after"), Some(after.as_str()));
        refused
    }
}

#[test]
fn a_site_is_answered_with_redirects_to_its_members() {
    let broker = Broker::shop();
    let mut places = Vec::new();
    for host in ["www.shop.example", "WWW.Shop.Example.:80"] {
        let reply = broker.get(host, "/a/b?c=%20d", "");
        assert_eq!(reply.status(), "307");
        assert_eq!(reply.field("cache-control"), Some("private, max-age=42"));
        assert_eq!(reply.field("content-length"), Some("0"));
        assert!(reply.field("date").is_some() && reply.field("vary").is_some());
        assert!(negotiation::is_session(
            reply.field("evenkeel-session").unwrap()
        ));
        places.push(reply.field("location").unwrap().to_owned());
    }
    places.sort();
    let wanted = [
        "http://192.0.2.1:8080/a/b?c=%20d",
        "https://www-2.example/a/b?c=%20d",
    ];
    assert_eq!(places, wanted);
    assert_eq!(broker.count("", Ending::Redirected), 2);

    let status = broker.manager.status();
    let assigned = status.groups[0].members.iter().map(|m| m.totals.assigned);
    assert_eq!(assigned.collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn every_method_and_form_goes_to_the_same_path() {
    let broker = Broker::shop();
    let location = |request: &str| {
        let reply = broker.ask(request);
        assert_eq!(reply.status(), "307", "{request}");
        let location = reply.field("location").unwrap().to_owned();
        let path = location.splitn(4, '/').nth(3).unwrap_or_default();
        assert!(reply.body.is_empty());
        format!("/{path}")
    };
    for method in ["HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"] {
        let request =
            format!("{method} /x HTTP/1.1\r\nHost: 127.0.0.1:80\r\nConnection: close\r\n\r\n");
        assert_eq!(location(&request), "/x");
    }
    let absolute =
        "GET http://www.shop.example:81/y?z HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n";
    assert_eq!(location(absolute), "/y?z");
    assert_eq!(
        location("GET /old HTTP/1.0\r\nHost: www.shop.example\r\n\r\n"),
        "/old"
    );
    let post = "POST /p HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello";
    assert_eq!(location(post), "/p");
    let waits =
        "POST /p HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    assert_eq!(location(waits), "/p");
    let other_site = "GET //evil.example/%0d%0aSet-Cookie:x HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n";
    assert_eq!(location(other_site), "//evil.example/%0d%0aSet-Cookie:x");

    let all = broker.ask("OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    assert_eq!(all.status(), "204");
    let trace = broker.ask("TRACE / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    assert_eq!(trace.status(), "405");
}

#[test]
fn those_who_were_sent_back_get_a_redirect_that_nobody_keeps() {
    let broker = Broker::shop();
    for (path, to) in [("/a?b", "/a?b"), ("", "/"), ("?b", "/?b"), ("//x", "//x")] {
        let reply = broker.get("127.0.0.1", &format!("{}{path}", negotiation::REBIND), "");
        assert_eq!(reply.field("cache-control"), Some("no-store"));
        let location = reply.field("location").unwrap();
        assert!(
            location.ends_with(&format!("8080{to}"))
                || location.ends_with(&format!("www-2.example{to}")),
            "{location}"
        );
    }
    let other = broker.get("127.0.0.1", &format!("{}er", negotiation::REBIND), "");
    assert!(other.field("location").unwrap().ends_with("/rebinder"));
}

#[test]
fn programs_get_the_same_as_json() {
    let broker = Broker::shop();
    let reply = broker.negotiate("cluster=shop&alternatives=3");
    let binding = reply.binding();
    assert_eq!(reply.field("content-type"), Some("application/json"));
    assert_eq!(reply.field("cache-control"), Some("private, max-age=42"));
    assert_eq!((binding.cluster.as_str(), binding.class), ("shop", None));
    assert_eq!(binding.quantum_seconds, 42);
    let other = &binding.alternatives[0];
    assert_eq!(binding.alternatives.len(), 1);
    assert_ne!(*other, binding.server);
    // It says that it cannot reach it, and goes on with its session.
    for _ in 0..4 {
        let avoid = binding.server.name.replace(':', "%3A");
        let query = format!("cluster=shop&avoid={avoid}&session={}", binding.session);
        let again = broker.negotiate(&query).binding();
        assert_eq!(
            (&again.server, again.session),
            (other, binding.session.clone())
        );
    }
    assert_eq!(broker.count("", Ending::Answered), 5);
    // By the site's own name.
    let by_host = broker.get("www.shop.example", negotiation::NEGOTIATE, "");
    assert_eq!(by_host.binding().cluster, "shop");
    let accept = format!("Accept: text/html;q=0.1, {}\r\n", negotiation::MEDIA_TYPE);
    let by_accept = broker.get("www.shop.example", "/any", &accept);
    assert_eq!(by_accept.binding().quantum_seconds, 42);
    // That is what clients of the site's own programs ask for.
    let json = broker.get("www.shop.example", "/any", "Accept: application/json\r\n");
    assert_eq!(json.status(), "307");
}

#[test]
fn what_nobody_can_promise_is_refused() {
    let broker = Broker::shop();
    let gold = broker.negotiate("cluster=shop&class=gold").refused();
    assert_eq!(
        (gold.error.as_str(), gold.retry_after_seconds),
        ("response_time", 5)
    );
    assert_eq!(gold.class.as_deref(), Some("gold"));
    for (location, seconds) in [("192.0.2.1", 0.3), ("192.0.2.2", 0.05)] {
        let loads = [(LoadId::RESPONSE_TIME, seconds)];
        broker.manager.report_loads(location, &loads).unwrap();
    }
    let class = "Evenkeel-Class: gold\r\n";
    for _ in 0..4 {
        let binding = broker.negotiate("cluster=shop&class=gold").binding();
        assert_eq!(binding.server.url, "https://www-2.example");
        assert_eq!(binding.quantum_seconds, 7);
        let reply = broker.get("127.0.0.1", "/", class);
        assert_eq!(reply.field("location"), Some("https://www-2.example/"));
    }
    let strict = "Evenkeel-Response-Time: 20ms\r\n";
    assert_eq!(
        broker.get("127.0.0.1", "/", strict).refused().error,
        "response_time"
    );
    // The only one that is fast enough sheds its load: whoever comes from there would only
    // be sent back again.
    let group = broker.manager.list_groups().remove(0);
    let slot = &group.members()[1].slot;
    slot.set(Reason::Shedding, true);
    let back = broker.get("127.0.0.1", &format!("{}/", negotiation::REBIND), class);
    assert_eq!(back.refused().error, "response_time");
    slot.set(Reason::Shedding, false);
    let back = broker.get("127.0.0.1", &format!("{}/", negotiation::REBIND), class);
    assert_eq!(back.field("location"), Some("https://www-2.example/"));
    let lax = broker.negotiate("cluster=shop&class=gold&response_time=1s");
    assert_eq!(lax.status(), "200");
    assert_eq!(broker.count("gold", Ending::ResponseTime), 2);
    assert_eq!(broker.count("", Ending::ResponseTime), 1);

    for member in ["192.0.2.1:8080", "192.0.2.2:8080"] {
        let drain = AdminState::Drain;
        broker
            .manager
            .set_admin_state("pool", member, drain)
            .unwrap();
    }
    let none = broker.negotiate("cluster=shop").refused();
    assert_eq!(none.error, "no_member");
    assert_eq!(
        broker.get("127.0.0.1", "/", "").refused().error,
        "no_member"
    );
}

#[test]
fn what_is_not_understood_is_not_guessed_at() {
    let broker = Broker::shop();
    for (query, status, error) in [
        ("cluster=chop", "404", "unknown_cluster"),
        ("", "400", "bad_parameter"),
        ("cluster=shop&class=silver", "400", "unknown_class"),
        ("cluster=shop&cluster=shop", "400", "bad_parameter"),
        ("cluster=shop&colour=red", "400", "bad_parameter"),
        ("cluster=shop&response_time=fast", "400", "bad_parameter"),
        ("cluster=shop&alternatives=9", "400", "bad_parameter"),
        ("cluster=shop&session=%0d%0a", "400", "bad_parameter"),
        (
            "cluster=shop&avoid=1,2,3,4,5,6,7,8,9",
            "400",
            "bad_parameter",
        ),
    ] {
        let reply = broker.negotiate(query);
        assert_eq!(reply.status(), status, "{query}");
        assert!(
            reply.body.contains(&format!("\"error\":\"{error}\"")),
            "{}",
            reply.body
        );
    }
    let unknown = broker.negotiate("cluster=shop&class=silver");
    assert!(
        unknown.body.contains("\"allowed\":[\"gold\"]"),
        "{}",
        unknown.body
    );
    for (host, more, status) in [
        ("shop.example", "", "421"),
        ("a b", "", "400"),
        ("127.0.0.1", "Host: 127.0.0.1\r\n", "400"),
        (
            "127.0.0.1",
            "Evenkeel-Class: gold\r\nEvenkeel-Class: gold\r\n",
            "400",
        ),
        ("127.0.0.1", "Evenkeel-Class: \u{e9}\r\n", "400"),
    ] {
        assert_eq!(
            broker.get(host, "/", more).status(),
            status,
            "{host} {more}"
        );
    }
    let none = broker.ask("GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
    assert_eq!(none.status(), "400");
    let nobody = broker.ask("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(nobody.status(), "421");
    let post = format!(
        "POST {}?cluster=shop HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        negotiation::NEGOTIATE
    );
    let post = broker.ask(&post);
    assert_eq!(
        (post.status(), post.field("allow")),
        ("405", Some("GET, HEAD"))
    );

    let counts: HashMap<_, _> = broker
        .negotiator
        .metrics()
        .unheard()
        .map(|(why, count)| (why.name(), count))
        .collect();
    assert_eq!(counts["unknown_cluster"], 1);
    assert_eq!(counts["unknown_class"], 2);
    assert_eq!(counts["unknown_host"], 2);
    assert_eq!(counts["malformed"], 3);
    assert_eq!(counts["method"], 1);
    assert_eq!(counts["bad_parameter"], 9);
}

#[test]
fn a_reload_changes_everything_or_nothing() {
    let broker = Broker::shop();
    let before = broker.address();
    // Somebody has the second address.
    let taken = StdListener::bind("127.0.0.1:0").unwrap();
    let two = format!(
        "listen = [\"127.0.0.1:0\", \"{}\"]",
        taken.local_addr().unwrap()
    );
    let text = format!("{MEMBERS}{CLUSTER}").replace("listen = \"127.0.0.1:0\"", &two);
    let text = text.replace("quantum = \"42s\"", "quantum = \"1s\"");
    let error = broker.apply(&text).unwrap_err();
    assert!(error.contains("negotiator: cannot listen on"), "{error}");
    assert_eq!(
        broker.negotiate("cluster=shop").binding().quantum_seconds,
        42
    );

    drop(taken);
    broker.apply(&text).unwrap();
    let addresses = broker.negotiator.local_addresses();
    assert!(
        addresses.len() == 2 && addresses.contains(&before),
        "the first one stays"
    );
    // The thread is told after the commit.
    while broker.negotiate("cluster=shop").binding().quantum_seconds != 1 {}

    // Other limits, other clusters, the same socket.
    let text = format!("{MEMBERS}{CLUSTER}")
        .replace("[cluster.shop", "[cluster.store")
        .replace("[negotiator]", "[negotiator]\nmax_connections = 5");
    broker.apply(&text).unwrap();
    while broker.negotiate("cluster=store").status() != "200" {}
    assert_eq!(broker.negotiate("cluster=shop").status(), "404");
    assert_eq!(broker.address(), before);

    broker.apply(MEMBERS).unwrap();
    assert_eq!(broker.negotiator.local_addresses(), []);
    while TcpStream::connect(before).is_ok() {}
}

#[test]
fn clusters_may_share_a_group_and_see_its_alerts() {
    let text = format!(
        "{MEMBERS}{CLUSTER}[cluster.other]\ngroup = \"pool\"\nhosts = \"other.example\"\n\
         scheme = \"https\"\nquantum = {{ min = \"2s\", max = \"20s\" }}\n"
    );
    let broker = Broker::start(&text);
    let mut urls: Vec<_> = (0..2)
        .map(|_| broker.negotiate("cluster=other").binding().server.url)
        .collect();
    urls.sort();
    assert_eq!(urls, ["https://192.0.2.1:8080", "https://www-2.example"]);
    let host = broker.get("other.example", "/", "");
    assert_eq!(host.field("cache-control"), Some("private, max-age=11"));
}
