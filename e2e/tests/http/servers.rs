//! HTTP between real clients and real servers: curl on one side, nginx and Apache httpd
//! on the other.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use evenkeel_e2e::balancer::{Balancer, evenkeel_binary, run_evenkeel};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::load::Clients;
use evenkeel_e2e::member::Member;
use evenkeel_e2e::netns::Namespace;
use evenkeel_e2e::process::{are_installed, run_curl, try_curl};
use evenkeel_e2e::server::Server;
use evenkeel_e2e::{HANG, wait_until};

/// Sizes that fit one read, that do not, and that fit no buffer on the way.
const SIZES: [usize; 4] = [0, 1000, 64 * 1024, 20 * 1024 * 1024];

/// Bytes that repeat nowhere near, so that lost, doubled or moved parts show.
fn content(len: usize) -> Vec<u8> {
    let mut state = 1u32;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        })
        .collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a test in front of each kind of server that is installed.
fn in_front_of_each(test: impl Fn(&Server, &Balancer, &str)) {
    if !are_installed(&["curl"]) {
        return;
    }
    let mut servers = Vec::new();
    if are_installed(&["nginx"]) {
        servers.push(Server::start_nginx(None));
    }
    if are_installed(&["apache2"]) {
        servers.push(Server::start_apache());
    }
    for server in servers {
        let balancer = Balancer::start_http(&[server.address()], "");
        let url = format!("http://{}", balancer.address("web"));
        test(&server, &balancer, &url);
    }
}

#[test]
fn documents_of_any_size_arrive_as_they_are() {
    in_front_of_each(|server, _, url| {
        let folder = Folder::new();
        for len in SIZES {
            let content = content(len);
            server.put_document("document", &content);
            let got = folder.join("got");
            let url = format!("{url}/files/document");
            for version in ["--http1.1", "--http1.0"] {
                run_curl(&[version, "--fail", "--output", text(&got), &url]);
                assert!(folder.read("got") == content, "{len} bytes, {version}");
            }
            // HEAD has the length (Apache leaves out that of nothing), and no body that would
            // confuse the next request.
            let heads = run_curl(&["--head", &url, "--next", "--silent", "--head", &url]);
            let lengths: Vec<_> = heads
                .lines()
                .filter_map(|line| line.strip_prefix("Content-Length: "))
                .collect();
            if len > 0 {
                assert_eq!(lengths, [len.to_string(), len.to_string()], "{heads}");
            }
        }
    });
}

#[test]
fn uploads_of_any_size_arrive_as_they_are() {
    in_front_of_each(|server, _, url| {
        let folder = Folder::new();
        for len in SIZES {
            let content = content(len);
            let file = folder.write("content", &content);
            let ways: [&[&str]; 3] = [
                &[],
                // In one piece, without waiting for `100 Continue`.
                &["--header", "Expect:"],
                &["--header", "Transfer-Encoding: chunked"],
            ];
            // curl 7.88 sends no last chunk after nothing.
            let ways = if len == 0 { &ways[..2] } else { &ways };
            for (number, way) in ways.iter().enumerate() {
                let name = format!("{len}-{number}");
                let mut arguments = vec!["--fail", "--upload-file", text(&file)];
                arguments.extend(*way);
                let url = format!("{url}/dav/{name}");
                arguments.push(&url);
                run_curl(&arguments);
                let uploaded = server.uploaded(&name);
                assert!(uploaded == content, "{len} bytes, {way:?}");
            }
        }
    });
}

#[test]
fn posts_are_echoed_as_they_are() {
    if !are_installed(&["curl", "apache2"]) {
        return;
    }
    let server = Server::start_apache();
    let balancer = Balancer::start_http(&[server.address()], "");
    let url = format!("http://{}/cgi/echo", balancer.address("web"));
    let folder = Folder::new();
    for len in SIZES {
        let content = content(len);
        let file = folder.write("content", &content);
        let body = format!("@{}", text(&file));
        for coding in ["X-Nothing: special", "Transfer-Encoding: chunked"] {
            let got = folder.join("got");
            let arguments = ["--fail", "--header", coding, "--data-binary", &body];
            let arguments = [&arguments[..], &["--output", text(&got), &url]].concat();
            run_curl(&arguments);
            assert!(folder.read("got") == content, "{len} bytes, {coding}");
        }
    }
}

#[test]
fn expectations_are_met_by_the_server_and_not_by_the_balancer() {
    in_front_of_each(|_, _, url| {
        let folder = Folder::new();
        let file = folder.write("content", content(1000));
        // curl would wait for an hour, were there no `100 Continue`, and then fail.
        let arguments = ["--expect100-timeout", "3600", "--verbose", "--fail"];
        let expect = ["--header", "Expect: 100-continue", "--upload-file"];
        let arguments = [&arguments[..], &expect, &[text(&file)]].concat();
        let good = try_curl(&[&arguments[..], &[&format!("{url}/dav/expected")]].concat());
        let said = String::from_utf8_lossy(&good.stderr);
        assert!(good.status.success(), "{said}");
        assert!(said.contains("HTTP/1.1 100"), "{said}");
        // A server that refuses does so before it has the body.
        let bad = try_curl(&[&arguments[..], &[&format!("{url}/files/name")]].concat());
        let said = String::from_utf8_lossy(&bad.stderr);
        assert!(!bad.status.success(), "{said}");
        assert!(said.contains("HTTP/1.1 405"), "{said}");
    });
}

#[test]
fn parts_and_unchanged_documents() {
    in_front_of_each(|server, _, url| {
        let content = content(64 * 1024);
        server.put_document("document", &content);
        let folder = Folder::new();
        let got = folder.join("got");
        let url = format!("{url}/files/document");
        let ask = |more: &[&str]| {
            let always = ["--output", text(&got), "--write-out", "%{http_code}"];
            run_curl(&[&always[..], more, &[&url]].concat())
        };
        assert_eq!(ask(&["--range", "1000-40999"]), "206");
        assert!(folder.read("got") == content[1000..41_000]);
        assert_eq!(ask(&["--range", "-100"]), "206");
        assert!(folder.read("got") == content[content.len() - 100..]);
        assert_eq!(ask(&["--range", "70000-"]), "416");
        let tag = folder.join("tag");
        assert_eq!(ask(&["--etag-save", text(&tag)]), "200");
        // The connection stays in step after a 304, which has a length and no body.
        let next = ["--next", "--silent", "--output", text(&got), &url];
        let always = ["--etag-compare", text(&tag), "--write-out", "%{http_code}"];
        let unchanged = ["--output", "/dev/null", &url];
        let codes = run_curl(&[&always[..], &unchanged, &next].concat());
        assert_eq!(codes, "304");
        assert!(folder.read("got") == content);
    });
}

#[test]
fn connections_are_kept_on_both_sides() {
    in_front_of_each(|server, balancer, url| {
        server.put_document("a", "first");
        server.put_document("b", "second");
        let made = ["--write-out", "%{num_connects};"];
        let urls = [&*format!("{url}/files/a"), &format!("{url}/files/b")];
        let told = run_curl(&[&made[..], &urls, &urls].concat());
        assert_eq!(told, "first1;second0;first0;second0;");
        // HTTP/1.0 ends with each response unless it is asked for more.
        let told = run_curl(&[&["--http1.0"][..], &made, &urls].concat());
        assert_eq!(told, "first1;second1;");
        let keep = ["--http1.0", "--header", "Connection: keep-alive"];
        let told = run_curl(&[&keep[..], &made, &urls].concat());
        assert_eq!(told, "first1;second0;");
        let metrics = balancer.admin_get("/metrics");
        let opened = metric(metrics.text(), "rule_member_connections_total", "opened");
        assert_eq!(opened, 1.0, "{}", metrics.text());
    });
}

/// The value of a metric with a label of that value.
fn metric(text: &str, name: &str, label: &str) -> f64 {
    let line = text
        .lines()
        .find(|line| line.contains(name) && line.contains(&format!("\"{label}\"")));
    let value = line.unwrap_or_else(|| panic!("no {name}")).rsplit(' ');
    value.into_iter().next().unwrap().parse().unwrap()
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    in_front_of_each(|server, balancer, _| {
        for number in 0..20 {
            server.put_document(&number.to_string(), format!("document {number}"));
        }
        let mut client = balancer.connect();
        let requests: String = (0..200)
            .map(|number| match number % 4 {
                3 => format!("HEAD /files/{} HTTP/1.1\r\nHost: a\r\n\r\n", number % 20),
                _ => format!("GET /files/{} HTTP/1.1\r\nHost: a\r\n\r\n", number % 20),
            })
            .collect();
        let mut writer = client.writer();
        let sender = std::thread::spawn(move || writer.send(requests));
        for number in 0..200 {
            if number % 4 == 3 {
                assert_eq!(client.read_head().second_word(), "200");
            } else {
                let response = client.read_response();
                assert_eq!(response.text(), format!("document {}", number % 20));
            }
        }
        sender.join().unwrap();
    });
}

#[test]
fn servers_learn_who_asked() {
    in_front_of_each(|server, _, url| {
        // What clients say about themselves is not believed.
        run_curl(&[
            "--header",
            "X-Forwarded-For: 192.0.2.1",
            &format!("{url}/name"),
        ]);
        wait_until("the request is logged", || {
            server
                .access_log()
                .iter()
                .any(|line| line.contains("/name"))
        });
        let log = server.access_log();
        let line = log.iter().find(|line| line.contains("/name")).unwrap();
        assert_eq!(line, "127.0.0.1|-|GET /name HTTP/1.1|200");
    });
}

#[test]
fn websockets_pass_through_nginx() {
    if !are_installed(&["nginx"]) {
        return;
    }
    // The handshake of RFC 6455, section 1.3, and then bytes in both directions.
    let member = Member::start(|script, mut wire| {
        let Some(request) = script.read_request(&mut wire) else {
            return;
        };
        assert_eq!(request.values("upgrade"), ["websocket"]);
        assert_eq!(
            request.values("sec-websocket-key"),
            ["dGhlIHNhbXBsZSBub25jZQ=="]
        );
        wire.send(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
        );
        while let Some(bytes) = wire.try_read_exact(8) {
            wire.send(bytes);
        }
    });
    let server = Server::start_nginx(Some(member.address()));
    let balancer = Balancer::start_http(&[server.address()], "");
    let mut client = balancer.connect();
    client.send(
        "GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    );
    let answer = client.read_head();
    assert_eq!(answer.second_word(), "101");
    assert_eq!(
        answer.values("sec-websocket-accept"),
        ["s3pPLMBiTxaQ9kYGzzhZRbK+xOo="]
    );
    for number in 0..1000u64 {
        client.send(number.to_be_bytes());
        let back = client.try_read_exact(8).unwrap();
        assert_eq!(back, number.to_be_bytes());
    }
    client.end_sending();
    assert!(client.is_at_end());
}

#[test]
fn every_strategy_serves() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let servers = [
        Server::start_nginx(None),
        Server::start_nginx(None),
        Server::start_nginx(None),
    ];
    let members = servers.each_ref().map(Server::address);
    let balancer = Balancer::start_http(&members, "slow_start = \"0s\"");
    // Names stand at the start of a line.
    let list = run_evenkeel(&["strategies"]).unwrap();
    let names: Vec<_> = list
        .lines()
        .filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(names.contains(&"round_robin") && names.len() > 10, "{list}");
    let clients = Clients::start(balancer.address("web"), 4);
    for name in names {
        balancer.run_ctl(&format!("strategy web {name}")).unwrap();
        clients.wait_for(50);
        assert_eq!(balancer.status()["groups"][0]["strategy"], name);
        let explained = balancer.run_ctl("explain web").unwrap();
        assert!(explained.contains(name), "{explained}");
    }
    clients.stop_and_count();
}

/// A server that writes the head of an answer and its body apart, with Nagle's algorithm, as many small ones do.
fn serve_head_and_body_apart(listener: &TcpListener) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        thread::spawn(move || {
            let (mut space, mut read) = ([0; 4096], Vec::new());
            while let Ok(n @ 1..) = stream.read(&mut space) {
                read.extend_from_slice(&space[..n]);
                // A request may come in several parts, too.
                if !read.ends_with(b"ok") {
                    continue;
                }
                read.clear();
                for part in ["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", "\r\n", "ok"] {
                    stream.write_all(part.as_bytes()).unwrap();
                }
            }
        });
    }
}

/// Acknowledgements that the kernel has delayed until their time was up, in this network namespace.
fn delayed_acknowledgements() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut all = names.split(' ').zip(values.split(' '));
    let (_, count) = all.find(|(name, _)| *name == "DelayedACKs").unwrap();
    count.parse().unwrap()
}

/// Neither a server nor a client that writes a message in parts waits until a delayed acknowledgement is sent
/// (newcomer D7): 40 ms for each message.
#[test]
fn messages_that_are_written_in_parts_are_acknowledged_at_once() {
    const REQUESTS: usize = 50;
    let Some(namespace) = Namespace::with_loopback() else {
        return;
    };
    let listener = namespace.run_inside(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let config = format!(
        "workers = 1\n[rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"http\"\nmembers = [\"{}\"]\n",
        listener.local_addr().unwrap()
    );
    thread::spawn(move || serve_head_and_body_apart(&listener));
    let balancer = Balancer::start_by(&config, |_| namespace.command(evenkeel_binary()));
    let delayed = namespace.run_inside(|| {
        let mut client = TcpStream::connect(balancer.address("web")).unwrap();
        client.set_read_timeout(Some(HANG)).unwrap();
        let before = delayed_acknowledgements();
        for _ in 0..REQUESTS {
            for part in [
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n",
                "o",
                "k",
            ] {
                client.write_all(part.as_bytes()).unwrap();
            }
            let mut read = Vec::new();
            while !read.ends_with(b"\r\n\r\nok") {
                let mut space = [0; 4096];
                let n = client.read(&mut space).unwrap();
                assert!(n > 0, "{:?}", String::from_utf8_lossy(&read));
                read.extend_from_slice(&space[..n]);
            }
        }
        delayed_acknowledgements() - before
    });
    // A machine that is busy with other things may be late for some.
    assert!(
        delayed < REQUESTS as u64 / 2,
        "{delayed} delayed acknowledgements in {REQUESTS} requests"
    );
}
