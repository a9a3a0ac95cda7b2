//! Clients that a cookie binds to a member: over connections, balancers, reloads and restarts; and how
//! drain, failures and load alerts move them.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;

use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::{are_installed, run_curl};
use evenkeel_e2e::server::Server;
use evenkeel_e2e::tls::{Key, make_certificate, write_secret};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::{Message, Wire};

/// The protocols of clients, as options of curl.
const CLIENTS: [&str; 2] = ["--http1.1", "--http2-prior-knowledge"];

fn config(lines: &str, members: &[SocketAddr]) -> String {
    let members: Vec<_> = members.iter().map(|at| format!("\"{at}\"")).collect();
    format!(
        "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         strategy = \"round_robin\"\nslow_start = \"0s\"\nload_max_age = \"1h\"\nmembers = [{}]\n{lines}\n",
        members.join(", ")
    )
}

/// A browser: it keeps cookies from one call of curl to the next, each of which is a connection.
struct Browser {
    folder: Folder,
    client: &'static str,
}

impl Browser {
    fn new(client: &'static str) -> Self {
        let folder = Folder::new();
        Browser { folder, client }
    }

    /// Fields and body of the answer to a GET.
    fn get(&self, url: &str) -> (String, String) {
        let jar = self.folder.join("jar").display().to_string();
        let arguments = [self.client, "-k", "-D", "-", "-b", &jar, "-c", &jar, url];
        let text = run_curl(&arguments);
        let (fields, body) = text.split_once("\r\n\r\n").unwrap();
        (fields.to_lowercase(), body.to_owned())
    }

    /// Body of the answer, and whether it set a cookie.
    fn ask(&self, balancer: &Balancer, path: &str) -> (String, bool) {
        let url = format!("http://{}{path}", balancer.address("web"));
        let (fields, body) = self.get(&url);
        assert!(fields.contains(" 200"), "{fields}\n{body}");
        (body, fields.contains("\nset-cookie: "))
    }

    /// Returns the body of the answer, which sets no cookie.
    #[track_caller]
    fn stays(&self, balancer: &Balancer, path: &str) -> String {
        let (body, sets) = self.ask(balancer, path);
        assert!(!sets, "{body}");
        body
    }

    /// Returns the body of the answer, which sets a cookie.
    #[track_caller]
    fn is_bound(&self, balancer: &Balancer, path: &str) -> String {
        let (body, sets) = self.ask(balancer, path);
        assert!(sets, "{body}");
        body
    }
}

fn metric(balancer: &Balancer, result: &str) -> f64 {
    balancer.rule_count("sticky_total", &format!("result=\"{result}\"")) as f64
}

/// A member that answers with its number and the cookies that it gets.
fn echo(number: usize) -> Member {
    Member::answering_with(move |request| {
        let cookies = request.values("cookie").join("|");
        ok_response(&format!("{number}: {cookies}"))
    })
}

/// The answer to one request on a connection of its own, with these fields.
fn once(balancer: &Balancer, fields: &str) -> Message {
    let mut wire = Wire::connect(balancer.address("web"));
    wire.send(format!(
        "GET / HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n"
    ));
    wire.read_response()
}

/// The pair of the cookie that an answer sets.
fn cookie(answer: &Message) -> Option<String> {
    let values = answer.values("set-cookie");
    assert!(values.len() < 2, "{values:?}");
    let pair = values.first()?.split(';').next()?;
    Some(pair.to_owned())
}

#[test]
fn a_client_stays_over_connections_balancers_reloads_and_restarts() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    let servers: Vec<_> = (0..4).map(|_| Server::start_nginx(None)).collect();
    let all: Vec<_> = servers.iter().map(Server::address).collect();
    let keyed = "sticky = { key_file = \"sticky.key\" }";
    let start = |key: &str, members: &[SocketAddr]| {
        let key = format!("{key}{}", "0".repeat(32));
        Balancer::start_with(&config(keyed, members), |folder| {
            write_secret(folder, "sticky.key", key)
        })
    };
    let first = start("a", &all[..3]);
    // Its members are others, and in another order.
    let other = start("a", &[all[3], all[2], all[1], all[0]]);
    let stranger = start("b", &all[..3]);
    let mut browsers: Vec<_> = (0..6).map(|at| Browser::new(CLIENTS[at % 2])).collect();
    let homes: Vec<_> = browsers
        .iter()
        .map(|browser| browser.is_bound(&first, "/name"))
        .collect();
    let mut different = homes.clone();
    different.sort();
    different.dedup();
    assert_eq!(different.len(), 3, "clients without a cookie are balanced");
    let all_stay = |balancer: &Balancer| {
        for (browser, home) in browsers.iter().zip(&homes) {
            assert_eq!(browser.stays(balancer, "/name"), *home);
        }
    };
    for _ in 0..3 {
        all_stay(&first);
        all_stay(&other);
    }
    assert_eq!(metric(&first, "bound"), 6.0);
    assert_eq!(
        (metric(&first, "kept"), metric(&other, "kept")),
        (18.0, 18.0)
    );

    // A new member, another one's place, and a restart.
    first.reconfigure(&config(keyed, &[all[3], all[1], all[0], all[2]]));
    all_stay(&first);
    // Off and on again.
    first.reconfigure(&config("", &all));
    assert!(!Browser::new(CLIENTS[0]).ask(&first, "/name").1);
    first.reconfigure(&config(keyed, &all));
    all_stay(&first);
    let first = first.replace(&config(keyed, &all));
    all_stay(&first);

    // Whoever has another key takes them for new, and without a file each process has its own.
    let foreign = browsers.pop().unwrap();
    foreign.is_bound(&stranger, "/name");
    assert_eq!(metric(&stranger, "unknown"), 1.0);
    foreign.is_bound(&first, "/name");
    let alone = Balancer::start(&config("sticky = true", &all));
    let browser = Browser::new(CLIENTS[0]);
    let home = browser.is_bound(&alone, "/name");
    alone.reconfigure(&config("sticky = true\nmax_queue = 7", &all));
    assert_eq!(browser.stays(&alone, "/name"), home);
    let alone = alone.replace(&config("sticky = true", &all));
    browser.is_bound(&alone, "/name");
    browser.stays(&alone, "/name");
}

#[test]
fn members_get_no_cookie_of_ours_and_all_others_as_they_are() {
    if !are_installed(&["curl"]) {
        return;
    }
    let members = [echo(0), echo(1), echo(2)];
    let all: Vec<_> = members.iter().map(Member::address).collect();
    let sticky = "sticky = { cookie = \"at\", max_age = \"1h\", same_site = \"strict\" }";
    let balancer = Balancer::start(&config(sticky, &all));
    let answer = once(&balancer, "Cookie: a=1\r\n");
    let set = answer.values("set-cookie")[0];
    assert!(
        set.ends_with("; Path=/; HttpOnly; SameSite=Strict; Max-Age=3600"),
        "{set}"
    );
    let at = cookie(&answer).unwrap();
    assert_eq!(at.len(), "at=".len() + 26);
    let home = answer.text().split(':').next().unwrap();
    for (cookies, rest) in [
        (format!("Cookie: {at}\r\n"), ""),
        (format!("Cookie: {at}; a=\"1\";  b=\r\n"), "a=\"1\";  b="),
        (
            format!("cookie: a=1;{at};at2=3\r\nX: y\r\nCookie: c\r\n"),
            "a=1;at2=3|c",
        ),
        (format!("Cookie: at=; a=1; {at}; at=x\r\n"), "a=1"),
    ] {
        let answer = once(&balancer, &cookies);
        assert_eq!(answer.text(), format!("{home}: {rest}"), "{cookies}");
        assert_eq!(cookie(&answer), None);
    }
    // Those of HTTP/2 come in pieces.
    let url = format!("http://{}/", balancer.address("web"));
    let pair = format!("Cookie: {at}; b=2");
    let pieces = [
        "-H",
        "Cookie: a=1",
        "-H",
        &pair,
        "-H",
        "Cookie: c=3",
        "-i",
        &url,
    ];
    let answer = run_curl(&[&[CLIENTS[1]], &pieces[..]].concat());
    assert!(
        answer.ends_with(&format!("\r\n\r\n{home}: a=1; b=2; c=3")),
        "{answer}"
    );
    assert!(!answer.contains("set-cookie"), "{answer}");

    // What is forged, cut or foreign is no cookie; it does not get to members either.
    let forged = [
        "at=x".to_owned(),
        format!("at={}", "A".repeat(26)),
        at[..at.len() - 1].to_owned(),
        format!("{at}A"),
        format!("at={}", "x".repeat(20_000)),
    ];
    for (count, bad) in (1u8..).zip(forged) {
        let answer = once(&balancer, &format!("Cookie: {bad}; a=1\r\n"));
        assert!(answer.text().ends_with(": a=1"), "{}", answer.text());
        assert_eq!(cookie(&answer).map(|at| at.len()), Some(29));
        assert_eq!(metric(&balancer, "unknown"), f64::from(count));
    }
    // A connection says nothing of who sends: proxies in front carry many clients in one.
    let mut wire = Wire::connect(balancer.address("web"));
    let mut homes: Vec<_> = (0..3)
        .map(|_| {
            wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            wire.read_response().text().to_owned()
        })
        .collect();
    homes.sort();
    assert_eq!(homes, ["0: ", "1: ", "2: "]);
    // Explanations say why it was chosen anew.
    let why = "the client's earlier binding has ended: its cookie names no member of the group";
    wait_until("an explanation says so", || {
        once(&balancer, "Cookie: at=x\r\n");
        let explained = balancer.admin_get("/v1/groups/web/explain");
        explained.text().contains(why)
    });
}

#[test]
fn over_tls_browsers_keep_the_cookie_there() {
    if !are_installed(&["curl", "openssl"]) {
        return;
    }
    let member = echo(0);
    let lines = "sticky = { cookie = \"at\" }\ntls = { certificates = \"a.pem\" }";
    let balancer = Balancer::start_with(&config(lines, &[member.address()]), |folder| {
        make_certificate(folder, "a", Key::Ecdsa, "DNS:localhost", None);
    });
    for client in ["--http1.1", "--http2"] {
        let browser = Browser::new(client);
        let url = format!("https://{}/", balancer.address("web"));
        let (fields, _) = browser.get(&url);
        assert!(
            fields.contains("; path=/; httponly; samesite=lax; secure"),
            "{fields}"
        );
        let (fields, body) = browser.get(&url);
        assert!(!fields.contains("set-cookie"), "{fields}");
        assert_eq!(body, "0: ");
    }
}

#[test]
fn drained_members_keep_their_clients_and_dead_ones_lose_them() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    let mut servers: Vec<_> = (0..3).map(|_| Server::start_nginx(None)).collect();
    let all: Vec<_> = servers.iter().map(Server::address).collect();
    let lines = "sticky = true\nhealth_check = false";
    let balancer = Balancer::start(&config(lines, &all));
    for client in CLIENTS {
        let browser = Browser::new(client);
        let home = browser.is_bound(&balancer, "/name");
        let at = *all
            .iter()
            .find(|at| home.contains(&at.to_string()))
            .unwrap();
        balancer.run_ctl(&format!("drain web {at}")).unwrap();
        assert_eq!(
            browser.stays(&balancer, "/name"),
            home,
            "what is bound stays"
        );
        for _ in 0..6 {
            let (other, _) = Browser::new(client).ask(&balancer, "/name");
            assert_ne!(other, home, "nobody new comes");
        }
        // Off for good: its clients move, once.
        let moved = metric(&balancer, "moved");
        balancer.run_ctl(&format!("maintenance web {at}")).unwrap();
        let next = browser.is_bound(&balancer, "/name");
        assert_ne!(next, home);
        balancer.run_ctl(&format!("ready web {at}")).unwrap();
        assert_eq!(browser.stays(&balancer, "/name"), next);
        assert_eq!(metric(&balancer, "moved"), moved + 1.0);
        // It dies, and another one answers: that is the one to stay with.
        let dead = all
            .iter()
            .position(|at| next.contains(&at.to_string()))
            .unwrap();
        servers[dead].kill();
        let last = browser.is_bound(&balancer, "/name");
        assert_ne!(last, next);
        assert_eq!(browser.stays(&balancer, "/name"), last);
        assert_eq!(metric(&balancer, "moved"), moved + 2.0);
        servers[dead].restart();
        assert_eq!(browser.stays(&balancer, "/name"), last);
        balancer.wait_for_state("web", all[dead], &["up"]);
        // One that is no member any more is as unknown as any other value.
        let gone = *all
            .iter()
            .find(|at| last.contains(&at.to_string()))
            .unwrap();
        let others: Vec<_> = all.iter().copied().filter(|at| *at != gone).collect();
        balancer.reconfigure(&config(lines, &others));
        assert_ne!(browser.is_bound(&balancer, "/name"), last);
        browser.stays(&balancer, "/name");
        balancer.reconfigure(&config(lines, &all));
    }
}

#[test]
fn an_alert_moves_clients_at_its_pace_though_each_request_is_a_new_connection() {
    let members = [echo(0), echo(1), echo(2)];
    let all: Vec<_> = members.iter().map(Member::address).collect();
    let configured = |shed_time: &str| {
        let alert = format!("{{ threshold = 0.8, shed_time = \"{shed_time}\", max_share = 1 }}");
        let lines = "sticky = { cookie = \"at\" }\ngranularity = \"on_demand\"\nalert = ";
        let mut text = config(&format!("{lines}{alert}"), &all);
        for (number, at) in all.iter().enumerate() {
            let table = format!("{{ address = \"{at}\", location = \"l{number}\" }}");
            text = text.replacen(&format!("\"{at}\""), &table, 1);
        }
        text
    };
    let balancer = Balancer::start(&configured("1h"));
    let report = |member: usize, cpu: f32| {
        let words = format!("loads push l{member} cpu={cpu}");
        balancer.run_ctl(&words).unwrap();
    };
    (0..3).for_each(|member| report(member, 0.5));
    let mut clients: Vec<String> = (0..60)
        .map(|_| cookie(&once(&balancer, "")).unwrap())
        .collect();
    // Where each is now; it takes the cookie that it is given.
    let mut ask = || -> Vec<String> {
        let ask = |client: &mut String| {
            let answer = once(&balancer, &format!("Cookie: {client}\r\n"));
            if let Some(at) = cookie(&answer) {
                *client = at;
            }
            answer.text()[..1].to_owned()
        };
        clients.iter_mut().map(ask).collect()
    };
    let homes = ask();
    let at_first = homes.iter().filter(|home| *home == "0").count();
    assert_eq!(at_first, 20);
    report(0, 0.95);
    balancer.wait_for_state("web", all[0], &["shedding"]);
    // In the first moments of an hour hardly anybody leaves.
    let soon = ask();
    let left = soon.iter().filter(|home| *home == "0").count();
    assert!(left > 15, "{left}");
    for (home, now) in homes.iter().zip(&soon).filter(|(home, _)| *home != "0") {
        assert_eq!(home, now, "others stay");
    }
    // When its time is over all have left, and they stay where they have gone.
    balancer.reconfigure(&configured("0s"));
    let then = ask();
    assert!(then.iter().all(|home| home != "0"), "{then:?}");
    for (home, now) in soon.iter().zip(&then).filter(|(home, _)| *home != "0") {
        assert_eq!(home, now, "others stay");
    }
    assert_eq!(ask(), then);
    assert_eq!(metric(&balancer, "moved"), 20.0);
    report(0, 0.1);
    wait_until("the alert is lifted", || {
        balancer.member_status("web", all[0])["state"] == "up"
    });
    assert_eq!(ask(), then, "nobody is called back");
}

#[test]
fn groups_have_cookies_of_their_own() {
    if !are_installed(&["curl"]) {
        return;
    }
    let members: Vec<_> = (0..6).map(echo).collect();
    let pair = |at: usize| {
        format!(
            "[\"{}\", \"{}\"]",
            members[at].address(),
            members[at + 1].address()
        )
    };
    let config = format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[defaults]\nsticky = true\nslow_start = \"0s\"\n\
         strategy = \"round_robin\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = {}\n\
         [[rule.web.routes]]\npath = \"/a/*\"\ngroup = \"a\"\n\
         [[rule.web.routes]]\npath = \"/split\"\ngroups = {{ a = 50, b = 50 }}\n\
         [group.a]\nmembers = {}\n[group.b]\nmembers = {}\n",
        pair(0),
        pair(2),
        pair(4)
    );
    let balancer = Balancer::start(&config);
    for client in CLIENTS {
        let browser = Browser::new(client);
        let of_rule = browser.is_bound(&balancer, "/");
        let of_a = browser.is_bound(&balancer, "/a/x");
        for _ in 0..3 {
            // Neither cookie replaces the other, and no member gets any.
            assert_eq!(browser.stays(&balancer, "/"), of_rule);
            assert_eq!(browser.stays(&balancer, "/a/y"), of_a);
            // Where the group is drawn it is the one that has the client.
            assert_eq!(browser.stays(&balancer, "/split"), of_a);
        }
        assert!(of_rule.ends_with(": ") && of_a.ends_with(": "));
        let fresh = Browser::new(client);
        let home = fresh.is_bound(&balancer, "/split");
        for _ in 0..6 {
            assert_eq!(fresh.stays(&balancer, "/split"), home);
        }
    }
    // One name for two groups is refused.
    let folder = Folder::new();
    let twice = config.replace("sticky = true", "sticky = { cookie = \"at\" }");
    let file = folder.write("evenkeel.toml", twice).display().to_string();
    let complaint = run_evenkeel(&["check", &file]).unwrap_err();
    assert!(
        complaint.contains("has the same cookie, \"at\", as the group"),
        "{complaint}"
    );
    let missing = config.replace("sticky = true", "sticky = { key_file = \"none.key\" }");
    let file = folder.write("evenkeel.toml", missing).display().to_string();
    let complaint = run_evenkeel(&["check", &file]).unwrap_err();
    assert!(
        complaint.contains("sticky.key_file: key file"),
        "{complaint}"
    );
}

/// The field that binds the client of an answer, as a line of a request.
fn session(answer: &Message) -> Option<String> {
    let values = answer.values("x-session");
    assert!(values.len() < 2, "{values:?}");
    Some(format!("X-Session: {}\r\n", values.first()?))
}

#[test]
fn a_field_binds_clients_that_keep_no_cookies() {
    // Members that have a field of the name do not confuse anybody.
    let members: Vec<_> = (0..3)
        .map(|number| {
            Member::answering_with(move |request| {
                let got = request.values("x-session").len();
                format!("HTTP/1.1 200 OK\r\nX-Session: {number}\r\nContent-Length: 3\r\n\r\n{number} {got}")
            })
        })
        .collect();
    let all: Vec<_> = members.iter().map(Member::address).collect();
    let config = config("sticky = { header = \"X-Session\" }", &all);
    let balancer = Balancer::start(&config);
    let mut bound = Vec::new();
    for _ in 0..3 {
        let answer = once(&balancer, "");
        assert!(answer.values("set-cookie").is_empty());
        let line = session(&answer).unwrap();
        assert!(line.len() > 26, "{line}");
        let (number, got) = answer.text().split_once(' ').unwrap();
        assert_eq!(got, "0");
        bound.push((line, number.to_owned()));
    }
    for (line, number) in bound.iter().chain(&bound) {
        let answer = once(&balancer, line);
        assert_eq!(answer.text(), format!("{number} 1"));
        // The client would take over the member's own value, and no longer be bound.
        assert!(answer.values("x-session").is_empty(), "{number}");
    }
    assert_eq!(metric(&balancer, "bound"), 3.0);
    assert_eq!(metric(&balancer, "kept"), 6.0);
    // A field that is none of the balancer's binds nobody.
    let answer = once(&balancer, "X-Session: x\r\n");
    assert!(session(&answer).unwrap().len() > 26);
    assert_eq!(metric(&balancer, "unknown"), 1.0);
}

#[test]
fn bindings_end_with_their_lives_and_last_while_their_clients_are_there() {
    let members: Vec<_> = (0..3).map(echo).collect();
    let all: Vec<_> = members.iter().map(Member::address).collect();
    let lines = |time: &str| format!("sticky = {{ cookie = \"c\", {time} }}");
    let ask = |balancer: &Balancer, pair: &str| once(balancer, &format!("Cookie: {pair}\r\n"));

    let balancer = Balancer::start(&config(&lines("max_life = \"2s\""), &all));
    let first = cookie(&once(&balancer, "")).unwrap();
    wait_until("the client is bound anew", || {
        cookie(&ask(&balancer, &first)).is_some()
    });
    assert_eq!(metric(&balancer, "unknown"), 1.0);

    let balancer = Balancer::start(&config(&lines("max_idle = \"1h\""), &all));
    let answer = once(&balancer, "");
    let (member, first) = (answer.text(), cookie(&answer).unwrap());
    let mut next = None;
    wait_until("the client gets the time of its last request", || {
        let answer = ask(&balancer, &first);
        assert_eq!(answer.text(), member);
        next = cookie(&answer);
        next.is_some()
    });
    let next = next.unwrap();
    // The same code, and another time.
    assert_eq!((next.len(), &next[..28]), (first.len(), &first[..28]));
    assert_ne!(next, first);
    assert_eq!(ask(&balancer, &next).text(), member);
    assert_eq!(metric(&balancer, "unknown"), 0.0);
}
