//! Responses are compressed for clients that take that, and others pass as they are; with curl, nginx, and
//! members that send what nginx does not.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, Signal};
use evenkeel_e2e::process::{are_installed, program, run_curl, try_curl};
use evenkeel_e2e::script::Script;
use evenkeel_e2e::server::Server;

/// The two protocols of clients, as options of curl.
const CLIENTS: [&str; 2] = ["--http1.1", "--http2-prior-knowledge"];
const CODINGS: [&str; 3] = ["zstd", "br", "gzip"];

fn config(member: SocketAddr, lines: &str) -> String {
    format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         members = [\"{member}\"]\n{lines}\n"
    )
}

/// Text that no coding makes nothing of, and that is not the same anywhere.
fn text(len: usize) -> Vec<u8> {
    let lines = (0_u64..).flat_map(|number| {
        let line = format!(
            "{} of the lines is {}\n",
            number,
            number.wrapping_mul(0x9e37_79b9)
        );
        line.into_bytes()
    });
    lines.take(len).collect()
}

/// Answer that curl gets: fields in small letters, the body as it was meant, and its bytes on the
/// way.
struct Answer {
    fields: String,
    body: Vec<u8>,
    bytes: usize,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.fields.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

fn ask(balancer: &Balancer, target: &str, more: &[&str]) -> Answer {
    let folder = Folder::new();
    let (head, body) = (folder.join("head"), folder.join("body"));
    let url = format!("http://{}{target}", balancer.address("web"));
    let mut arguments = vec!["--write-out", "%{size_download}"];
    arguments.extend(["--dump-header", head.to_str().unwrap()]);
    arguments.extend(["--output", body.to_str().unwrap()]);
    arguments.extend(more);
    arguments.push(&url);
    let bytes = run_curl(&arguments).parse().unwrap();
    let fields = std::fs::read_to_string(head).unwrap().to_lowercase();
    let body = std::fs::read(body).unwrap_or_default();
    Answer {
        fields,
        body,
        bytes,
    }
}

#[test]
fn a_client_gets_the_coding_that_it_takes() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    for workers in [1, 2] {
        let server = Server::start_nginx(None);
        let sizes = [1024, 9000, 100_000, 3_000_000];
        for size in sizes {
            server.put_document(&format!("{size}.html"), text(size));
        }
        let config = config(server.address(), "compression = true");
        let config = config.replace("workers = 1", &format!("workers = {workers}"));
        let balancer = Balancer::start(&config);
        for client in CLIENTS {
            for coding in CODINGS {
                for size in sizes {
                    let accept = format!("Accept-Encoding: {coding}");
                    let target = format!("/files/{size}.html");
                    let answer = ask(
                        &balancer,
                        &target,
                        &[client, "--compressed", "--header", &accept],
                    );
                    let what = format!("{client} {coding} {size}: {}", answer.fields);
                    assert!(answer.body == text(size), "{what}");
                    assert!(answer.bytes < size / 2, "{} {what}", answer.bytes);
                    assert_eq!(answer.field("content-encoding"), Some(coding), "{what}");
                    assert_eq!(answer.field("vary"), Some("accept-encoding"), "{what}");
                    assert_eq!(answer.field("content-length"), None, "{what}");
                    assert_eq!(answer.field("accept-ranges"), None, "{what}");
                    let etag = answer.field("etag").unwrap();
                    assert!(etag.starts_with("w/\""), "{what}");
                }
            }
        }
        // Two after each other in a connection. (This curl cannot do that over HTTP/2.)
        let url = format!("http://{}/files/9000.html", balancer.address("web"));
        let twice = ["--compressed", "--write-out", "%{num_connects}", &url, &url];
        let [one, other] = ["1", "0"].map(|connects| [&text(9000), connects.as_bytes()].concat());
        assert!(run_curl(&twice).into_bytes() == [one, other].concat());
        for coding in CODINGS {
            let count = balancer.rule_count("compressed_total", &format!("coding=\"{coding}\""));
            assert!(count >= 8, "{coding} {count}");
        }
    }
}

/// Not for small ones, nor other types, nor those that the client wants as they are or in part.
#[test]
fn others_pass_as_they_are() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    let server = Server::start_nginx(None);
    for (name, size) in [
        ("large.html", 9000),
        ("small.html", 1023),
        ("photo.gif", 9000),
    ] {
        server.put_document(name, text(size));
    }
    let balancer = Balancer::start(&config(server.address(), "compression = true"));
    for client in CLIENTS {
        for (target, more, varies) in [
            ("/files/small.html", &["--globoff"][..], false),
            ("/files/photo.gif", &["--globoff"], false),
            (
                "/files/large.html",
                &["--header", "Accept-Encoding: identity"],
                true,
            ),
            (
                "/files/large.html",
                &["--header", "Accept-Encoding: gzip;q=0"],
                true,
            ),
            ("/files/large.html", &["--header", "Accept-Encoding:"], true),
            ("/files/large.html", &["--range", "0-8999"], false),
            ("/files/large.html", &["--head"], true),
        ] {
            let mut options = vec![client, "--compressed"];
            options.extend(more);
            let answer = ask(&balancer, target, &options);
            let what = format!("{client} {target} {more:?}: {}", answer.fields);
            assert_eq!(answer.field("content-encoding"), None, "{what}");
            assert_eq!(answer.field("vary").is_some(), varies, "{what}");
            let length: usize = answer.field("content-length").unwrap().parse().unwrap();
            if more != ["--head"] {
                assert_eq!(answer.body, text(length), "{what}");
            }
        }
    }
    // No chunks are known there.
    let answer = ask(
        &balancer,
        "/files/large.html",
        &["--http1.0", "--compressed"],
    );
    assert_eq!(answer.field("content-encoding"), None);
    assert_eq!(answer.body, text(9000));
    // What a client has stored under the weak tag is still good.
    let tag = ask(&balancer, "/files/large.html", &["--compressed"]);
    let field = format!(
        "If-None-Match: {}",
        tag.field("etag").unwrap().replace("w/", "W/")
    );
    let again = ask(
        &balancer,
        "/files/large.html",
        &["--compressed", "--header", &field],
    );
    assert!(
        again.fields.starts_with("http/1.1 304 "),
        "{}",
        again.fields
    );
}

#[test]
fn a_member_can_say_that_a_response_stays_as_it_is() {
    if !are_installed(&["curl"]) {
        return;
    }
    let body = String::from_utf8(text(5000)).unwrap();
    for (fields, coding, vary) in [
        ("Cache-Control: private, no-transform", None, None),
        ("Content-Encoding: x-odd", Some("x-odd"), None),
        (
            "Content-Encoding: identity",
            Some("gzip"),
            Some("accept-encoding"),
        ),
        ("Vary: *", Some("gzip"), Some("*")),
        (
            "Vary: Cookie, accept-encoding",
            Some("gzip"),
            Some("cookie, accept-encoding"),
        ),
        ("ETag: W/\"1\"", Some("gzip"), Some("accept-encoding")),
    ] {
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n{fields}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let member = Member::answering_with(move |_| answer.clone());
        let lines = "[rule.web.compression]\ncodings = [\"gzip\"]\ntypes = \"text/*\"";
        let balancer = Balancer::start(&config(member.address(), lines));
        for client in CLIENTS {
            let accept = ["--header", "Accept-Encoding: zstd, gzip"];
            let answer = ask(&balancer, "/", &[client, accept[0], accept[1]]);
            let what = format!("{client} {fields}: {}", answer.fields);
            assert_eq!(answer.field("content-encoding"), coding, "{what}");
            assert_eq!(answer.field("vary"), vary, "{what}");
            assert_eq!(
                answer.body == body.as_bytes(),
                coding != Some("gzip"),
                "{what}"
            );
            if fields.starts_with("ETag") {
                assert_eq!(answer.field("etag"), Some("w/\"1\""), "{what}");
            }
        }
    }
}

/// Pieces that a member sends arrive piece by piece.
#[test]
fn what_has_come_is_not_held_back() {
    if !are_installed(&["curl"]) {
        return;
    }
    for coding in CODINGS {
        for client in CLIENTS {
            let go_on = Arc::new(Signal::default());
            let may_end = Arc::clone(&go_on);
            let member = Member::start(move |script, mut wire| {
                while script.read_request(&mut wire).is_some() {
                    wire.send("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n");
                    wire.send("Transfer-Encoding: chunked\r\n\r\n6\r\nfirst\n\r\n");
                    may_end.wait_for_release();
                    wire.send("5\r\nlast\n\r\n0\r\n\r\n");
                }
            });
            let balancer = Balancer::start(&config(member.address(), "compression = true"));
            let url = format!("http://{}/", balancer.address("web"));
            let mut command = program("curl");
            command.args([
                "--disable",
                "--silent",
                "--no-buffer",
                "--compressed",
                client,
            ]);
            command.args(["--noproxy", "*", "--header"]);
            command.args([&format!("Accept-Encoding: {coding}"), &url]);
            let script = Script::start(&mut command);
            assert_eq!(script.read_line(), "first", "{client} {coding}");
            go_on.release_one();
            assert_eq!(script.read_line(), "last", "{client} {coding}");
            assert_eq!(script.next_line(), None);
        }
    }
}

/// A member without lengths, and one that dies: the end is seen, or that there was none.
#[test]
fn a_response_that_is_cut_does_not_look_whole() {
    if !are_installed(&["curl"]) {
        return;
    }
    let body = String::from_utf8(text(40_000)).unwrap();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n";
    let whole = Member::closing_after(format!("{head}\r\n{body}"));
    let cut = Member::closing_after(format!("{head}Content-Length: 50000\r\n\r\n{body}"));
    let chunks = format!("{head}Transfer-Encoding: chunked\r\n\r\n9c40\r\n{body}\r\n");
    let unended = Member::closing_after(chunks);
    for (member, is_whole) in [(&whole, true), (&cut, false), (&unended, false)] {
        let balancer = Balancer::start(&config(member.address(), "compression = true"));
        for client in CLIENTS {
            for coding in CODINGS {
                let url = format!("http://{}/", balancer.address("web"));
                let accept = format!("Accept-Encoding: {coding}");
                let got = try_curl(&[client, "--compressed", "--header", &accept, &url]);
                assert_eq!(got.status.success(), is_whole, "{client} {coding}");
                assert!(
                    got.stdout == body.as_bytes() || !is_whole,
                    "{client} {coding}"
                );
            }
        }
    }
}

#[test]
fn it_can_be_switched_on_and_off() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    let server = Server::start_nginx(None);
    server.put_document("page.html", text(9000));
    let without = config(server.address(), "");
    let with = |lines: &str| config(server.address(), lines);
    let balancer = Balancer::start(&without);
    for client in CLIENTS {
        for (config, coding) in [
            (with("compression = true"), Some("zstd")),
            (without.clone(), None),
            (
                with("compression = { codings = \"br\", level = 9 }"),
                Some("br"),
            ),
            (with("compression = { min_size = \"9KiB\" }"), None),
            (
                with("compression = { codings = [\"gzip\", \"br\"] }"),
                Some("gzip"),
            ),
            (without.clone(), None),
        ] {
            balancer.reconfigure(&config);
            let answer = ask(&balancer, "/files/page.html", &[client, "--compressed"]);
            assert_eq!(answer.field("content-encoding"), coding, "{config}");
            assert_eq!(answer.body, text(9000));
        }
    }
}
