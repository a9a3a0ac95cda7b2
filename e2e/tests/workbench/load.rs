//! `evenkeel-lab load` against real servers: what it counts is what they have seen.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use evenkeel_e2e::balancer::{Balancer, run_lab};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::ftp::{FtpServer, Kind, can_run};
use evenkeel_e2e::process::{are_installed, program, report_skipped};
use evenkeel_e2e::server::Server;
use evenkeel_e2e::tls::{Key, make_certificate};
use evenkeel_e2e::wait_until;
use serde_json::Value;

/// Runs it with these words, and `url` first: the figures.
fn load(url: &str, words: &str) -> Value {
    try_load(url, words).unwrap_or_else(|error| panic!("{url} {words}: {error}"))
}

fn try_load(url: &str, words: &str) -> Result<Value, String> {
    let folder = Folder::new();
    let json = folder.join("out.json").display().to_string();
    let mut arguments = vec!["load", url, "--quiet", "--json", &json];
    arguments.extend(words.split_whitespace());
    if !arguments.contains(&"--timeout") {
        // Real servers take their time on a busy machine.
        arguments.extend(["--timeout", "60s"]);
    }
    run_lab(&arguments)?;
    Ok(serde_json::from_str(&folder.text("out.json")).unwrap())
}

fn count(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_else(|| panic!("{name}: {of}"))
}

/// All requests were answered with that status.
fn all_well(run: &Value, requests: u64, status: &str) {
    assert_eq!(count(run, "begun"), requests, "{run}");
    assert_eq!(count(run, "answered"), requests, "{run}");
    assert_eq!(count(&run["statuses"], status), requests, "{run}");
    assert_eq!(run["errors"], serde_json::json!({}), "{run}");
}

/// A server that does this with each connection, one after another in threads.
fn serve(each: impl Fn(std::net::TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let each = each.clone();
            thread::spawn(move || each(stream));
        }
    });
    address
}

#[test]
fn requests_are_those_that_a_server_has_seen() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let server = Server::start_nginx(None);
    let url = format!("http://{}/name", server.address());
    all_well(&load(&url, "--requests 500 --connections 7"), 500, "200");
    let open = load(
        &url,
        "--requests 300 --rate 3000 --threads 2 --connections 8",
    );
    all_well(&open, 300, "200");
    assert_eq!(open["loop_kind"], "open");
    // Latencies from when requests were due contain those from when they were sent.
    let p50 = |of: &str| open[of]["p50"].as_f64().unwrap();
    assert!(p50("corrected_us") >= p50("from_send_us"), "{open}");
    // The log is written by the time that the answer has come, or soon after.
    wait_until("all are logged", || server.access_log().len() == 800);

    let refused = load(
        &format!("http://{}/nothing", server.address()),
        "--requests 20",
    );
    assert_eq!(count(&refused, "refusals"), 20);
    assert_eq!(count(&refused["statuses"], "404"), 20);
    let head = load(&url, "--requests 20 --method HEAD");
    all_well(&head, 20, "200");
    assert_eq!(count(&head, "bytes"), 0);
    let put = load(
        &format!("http://{}/dav/x", server.address()),
        "--requests 20 --method PUT --body-size 100000",
    );
    assert_eq!(count(&put, "answered"), 20);
    assert_eq!(count(&put, "refusals"), 0);
}

#[test]
fn paths_follow_their_popularity() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let server = Server::start_nginx(None);
    let folder = Folder::new();
    let paths: String = (1..=50).map(|rank| format!("/echo/{rank}\n")).collect();
    let paths = folder.write("paths", paths).display().to_string();
    let url = format!("http://{}", server.address());
    let words = format!("--requests 4000 --paths {paths} --zipf 1");
    all_well(&load(&url, &words), 4000, "200");
    let times = |path: &str| {
        let line = format!("GET {path} HTTP");
        server
            .access_log()
            .iter()
            .filter(|seen| seen.contains(&line))
            .count()
    };
    // 4000 / 4.5 and a tenth of it.
    wait_until("the most popular one is logged", || times("/echo/1") > 700);
    assert!(
        (40..140).contains(&times("/echo/10")),
        "{}",
        times("/echo/10")
    );
}

#[test]
fn connections_come_from_several_addresses() {
    let (seen, all) = std::sync::mpsc::channel();
    let address = serve(move |mut stream| {
        let _ = seen.send(stream.peer_addr().unwrap().ip().to_string());
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 204 Fine\r\nConnection: close\r\n\r\n");
    });
    let url = format!("http://{address}/");
    let run = load(
        &url,
        "--requests 40 --connections 4 --from 127.0.0.8,127.0.0.9",
    );
    all_well(&run, 40, "204");
    assert_eq!(count(&run, "connections_made"), 40);
    let seen: HashSet<String> = all.try_iter().collect();
    assert_eq!(seen, ["127.0.0.8", "127.0.0.9"].map(str::to_owned).into());
}

#[test]
fn sessions_have_connections_of_their_own() {
    let address = serve(|mut stream| {
        let mut buffer = [0; 4096];
        while stream.read(&mut buffer).is_ok_and(|count| count > 0) {
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            if stream.write_all(answer).is_err() {
                return;
            }
        }
    });
    let run = load(
        &format!("http://{address}/"),
        "--sessions 5 --think 1ms --requests 30 --connections 4",
    );
    all_well(&run, 150, "200");
    assert_eq!(count(&run, "sessions"), 30);
    assert_eq!(count(&run, "connections_made"), 30);
}

#[test]
fn tls_and_http2_are_spoken() {
    if !are_installed(&["nginx", "openssl"]) {
        return;
    }
    let folder = Folder::new();
    make_certificate(&folder, "ca", Key::Ecdsa, "DNS:ca.example", None);
    make_certificate(&folder, "own", Key::Ecdsa, "DNS:shop.example", Some("ca"));
    let pem = folder.join("own.pem").display().to_string();
    let ca = folder.join("ca.pem").display().to_string();
    let lines = format!("ssl_certificate {pem};\nssl_certificate_key {pem};");
    let server = Server::nginx_secured("ssl http2", &lines);
    let url = format!("https://{}/name", server.address());
    let known = format!("--ca {ca} --server-name shop.example --requests 60");
    all_well(&load(&url, &known), 60, "200");
    all_well(&load(&url, "--insecure --requests 60"), 60, "200");
    let http2 = load(
        &url,
        &format!("{known} --http2 --connections 2 --streams 5"),
    );
    all_well(&http2, 60, "200");
    assert_eq!(count(&http2, "connections_made"), 2);
    let seen = server.access_log().join("\n");
    assert!(
        seen.contains("HTTP/2.0") && seen.contains("HTTP/1.1"),
        "{seen}"
    );

    // An authority that is not known ends it before it begins.
    let error = try_load(&url, "--requests 1 --server-name shop.example").unwrap_err();
    assert!(error.contains("first connection"), "{error}");

    let plain = Server::nginx_http2();
    let url = format!("http://{}/echo/a", plain.address());
    all_well(&load(&url, "--http2 --requests 60"), 60, "200");
}

#[test]
fn requests_of_http2_that_a_server_gives_back_unread_are_sent_again() {
    if !are_installed(&["nginx"]) {
        return;
    }
    // Each connection ends with the fiftieth stream (GOAWAY), whatever is behind it.
    let server = Server::nginx_secured("http2", "keepalive_requests 50;");
    let url = format!("http://{}/echo/a", server.address());
    let run = load(&url, "--http2 --connections 1 --streams 8 --requests 600");
    all_well(&run, 600, "200");
    assert!(count(&run, "connections_made") >= 12, "{run}");
}

#[test]
fn redirects_are_followed_and_counted_apart() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let other = Server::start_nginx(None);
    let lines = format!(
        "location /away {{ return 302 http://{}/name; }}\n\
         location /here {{ return 308 /echo/x; }}\n\
         location /loop {{ return 301 /loop; }}",
        other.address()
    );
    let server = Server::nginx_also(&lines);
    let at = |path: &str| format!("http://{}{path}", server.address());
    for path in ["/away", "/here"] {
        let run = load(&at(path), "--requests 30");
        all_well(&run, 30, "200");
        assert_eq!(count(&run, "redirects"), 30);
    }
    let taken = load(&at("/away"), "--requests 30 --max-redirects 0");
    all_well(&taken, 30, "302");
    let looping = load(&at("/loop"), "--requests 10 --max-redirects 3");
    assert_eq!(count(&looping["errors"], "redirect"), 10);
    assert_eq!(count(&looping, "redirects"), 30);
}

/// A negotiator of these servers, for ten minutes each.
fn negotiator(servers: &[Server; 2]) -> Balancer {
    let members = servers
        .each_ref()
        .map(|server| server.address().to_string());
    Balancer::start(&format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [group.pool]\nmembers = {members:?}\nstrategy = \"round_robin\"\nslow_start = \"0s\"\n\
         [negotiator]\nlisten = \"127.0.0.1:0\"\n\
         [cluster.shop]\ngroup = \"pool\"\nhosts = [\"127.0.0.1\"]\nquantum = \"600s\"\n"
    ))
}

#[test]
fn redirects_are_followed_over_http2_to_other_hosts_too() {
    if !are_installed(&["nginx"]) {
        return;
    }
    // Each gets to know what was meant for it, and nothing else.
    let with =
        |condition: &str| format!("if ($http_authorization {condition} \"\") {{ return 403; }}");
    let there = format!("location /there {{ {} return 200; }}", with("!="));
    let other = Server::nginx_secured("http2", &there);
    let lines = format!(
        "location /away {{ {with} return 307 http://{}/there; }}\n\
         location /here {{ {with} return 302 /echo/x; }}",
        other.address(),
        with = with("=")
    );
    let server = Server::nginx_secured("http2", &lines);
    let run = |path: &str, options: &[&str]| {
        let url = format!("http://{}{path}", server.address());
        let folder = Folder::new();
        let json = folder.join("out.json").display().to_string();
        let all = [
            "load",
            &url,
            "--quiet",
            "--http2",
            "--requests",
            "40",
            "--json",
            &json,
        ];
        run_lab(&[&all[..], options].concat()).unwrap();
        serde_json::from_str::<Value>(&folder.text("out.json")).unwrap()
    };
    let secret = ["--header", "Authorization: Basic eDp5"];
    for path in ["/away", "/here"] {
        let run = run(path, &secret);
        all_well(&run, 40, "200");
        assert_eq!(count(&run, "redirects"), 40);
    }
    // One connection for each of both, which all share.
    let few = run(
        "/away",
        &[&secret[..], &["--connections", "1", "--streams", "4"]].concat(),
    );
    all_well(&few, 40, "200");
    assert_eq!(count(&few, "connections_made"), 2);
    let seen = other.access_log().join("\n");
    assert!(seen.contains("/there HTTP/2.0|200"), "{seen}");
    // HTTP/1.1 has nobody there.
    let plain = Server::start_nginx(None);
    let lines = format!(
        "location /away {{ return 302 http://{}/name; }}",
        plain.address()
    );
    let server = Server::nginx_secured("http2", &lines);
    let url = format!("http://{}/away", server.address());
    let run = load(&url, "--http2 --requests 5");
    assert_eq!(count(&run, "answered"), 0, "{run}");
}

#[test]
fn clients_of_http2_negotiate() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let servers = [Server::nginx_http2(), Server::nginx_http2()];
    let broker = negotiator(&servers);
    let url = format!("http://{}/name", broker.negotiator_address());
    let words = "--requests 80 --connections 2 --streams 3";
    let run = load(&url, &format!("{words} --http2 --negotiate"));
    all_well(&run, 80, "200");
    // Each client asks once, over HTTP/1.1.
    assert_eq!(count(&run, "negotiations"), 6);
    assert_eq!(count(&run, "redirects"), 0);
    let seen = || servers.each_ref().map(Server::access_log);
    wait_until("all are in the logs", || {
        seen().iter().map(Vec::len).sum::<usize>() == 80
    });
    let seen = seen();
    for log in &seen {
        assert!(log.iter().all(|line| line.contains("HTTP/2.0")), "{log:?}");
        // Of its three clients each had something to ask; how much is a matter of how fast it is.
        assert!(log.len() >= 3, "{seen:?}");
    }
    // A session begins with a question.
    let sessions = "--sessions 4 --requests 5 --connections 2 --streams 1";
    let run = load(&url, &format!("{sessions} --http2 --negotiate"));
    all_well(&run, 20, "200");
    assert_eq!(count(&run, "negotiations"), 5);
}

#[test]
fn a_client_stays_with_the_server_that_it_was_sent_to() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let servers = [Server::start_nginx(None), Server::start_nginx(None)];
    let broker = negotiator(&servers);
    let url = format!("http://{}/name", broker.negotiator_address());
    let asked_once = load(&url, "--requests 80 --connections 4 --negotiate");
    all_well(&asked_once, 80, "200");
    assert_eq!(count(&asked_once, "negotiations"), 4);
    let always = load(&url, "--requests 80 --connections 4");
    all_well(&always, 80, "200");
    assert_eq!(count(&always, "redirects"), 80);
    // Both servers are used, as they take turns.
    for server in &servers {
        assert!(server.access_log().len() >= 20);
    }
}

#[test]
fn what_servers_do_wrong_is_counted_by_kind_and_ends_nothing() {
    type Bad = (&'static str, &'static [u8]);
    let kinds: [Bad; 4] = [
        ("closed", b""),
        (
            "half_body",
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
        ),
        ("malformed", b"SSH-2.0-x\r\n\r\n"),
        (
            "malformed",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx and more",
        ),
    ];
    for (kind, answer) in kinds {
        let address = serve(move |mut stream| {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer);
        });
        let run = load(&format!("http://{address}/"), "--requests 25");
        assert_eq!(count(&run["errors"], kind), 25, "{kind}: {run}");
        assert_eq!(count(&run, "answered"), 0);
    }
    let long = serve(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nA: ");
        while stream.write_all(&[b'a'; 4096]).is_ok() {}
    });
    let run = load(&format!("http://{long}/"), "--requests 5");
    assert_eq!(count(&run["errors"], "head_too_long"), 5, "{run}");
    let silent = serve(|mut stream| while stream.read(&mut [0; 64]).is_ok_and(|n| n > 0) {});
    let run = load(
        &format!("http://{silent}/"),
        "--requests 10 --timeout 200ms",
    );
    assert_eq!(count(&run["errors"], "timeout"), 10, "{run}");
    // What still waits at the end is not forgotten.
    let run = load(
        &format!("http://{silent}/"),
        "--duration 1s --connections 3",
    );
    assert_eq!(count(&run["errors"], "unfinished"), 3, "{run}");

    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let error = try_load(&format!("http://{nobody}/"), "--requests 1").unwrap_err();
    assert!(error.contains(&nobody.to_string()), "{error}");
    assert!(error.contains("refused"), "{error}");
}

#[test]
fn bytes_go_over_tcp() {
    let address = serve(|mut stream| {
        let mut buffer = [0; 6];
        while stream.read_exact(&mut buffer).is_ok() {
            if &buffer != b"hello\n" || stream.write_all(&[b'x'; 70_000]).is_err() {
                return;
            }
        }
    });
    let url = format!("tcp://{address}");
    let words = "--send hello\\n --receive 70000 --requests 40 --connections 2";
    for (more, connections) in [("", 2), ("--connect", 40)] {
        let run = load(&url, &format!("{words} {more}"));
        assert_eq!(count(&run, "answered"), 40, "{run}");
        assert_eq!(count(&run, "bytes"), 40 * 70_000);
        assert_eq!(count(&run, "connections_made"), connections);
    }
}

#[test]
fn files_come_over_ftp() {
    if !can_run() {
        return;
    }
    for kind in Kind::ALL {
        let server = FtpServer::start(kind);
        server.put_file("a", [b'a'; 100_000]);
        server.put_file("b", [b'b'; 7]);
        let (user, password) = kind.login();
        let url = format!("ftp://{user}:{password}@{}", server.address());
        let run = load(&url, "--file a --file b --requests 6 --connections 2");
        all_well(&run, 12, "226");
        assert_eq!(count(&run, "sessions"), 6);
        assert_eq!(count(&run, "bytes"), 6 * 100_007);
        let missing = load(&url, "--file nothing --requests 2");
        assert_eq!(missing["statuses"]["550"], 2, "{missing}");
        let error = try_load(&format!("ftp://nobody:x@{}", server.address()), "--file a");
        assert!(error.unwrap_err().contains("no login"));
    }
}

#[test]
fn a_log_is_sent_once_more() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let server = Server::start_nginx(None);
    let folder = Folder::new();
    let line = |second: u32, path: &str| {
        format!(
            "10.0.0.1 - - [25/Nov/2026:06:32:{second:02} +0000] \"GET {path} HTTP/1.1\" 200 5 \"-\" \"-\"\n"
        )
    };
    let mut log: String = (0..60)
        .map(|n| line(n / 2, &format!("/echo/{n}")))
        .collect();
    log.push_str("not a line of a log\n");
    let log = folder.write("log", log).display().to_string();
    let words = format!("--replay {log} --speed 300");
    all_well(
        &load(&format!("http://{}", server.address()), &words),
        60,
        "200",
    );
    let seen = || -> HashSet<String> { server.access_log().into_iter().collect() };
    wait_until("each request is there", || seen().len() == 60);
}

#[test]
fn users_as_in_surge_find_their_documents() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let server = Server::start_nginx(None);
    server.put_document("x", "");
    let folder = Folder::new();
    let site = folder.join("site").display().to_string();
    let said = run_lab(&["load", "site", &site, "--documents", "40", "--seed", "3"]).unwrap();
    assert!(said.contains("40 documents"), "{said}");
    for number in 0..40 {
        // The sizes do not matter here, and some are large.
        assert!(folder.join("site").join(number.to_string()).exists());
        server.put_document(&number.to_string(), "document");
    }
    let url = format!("http://{}/files", server.address());
    let run = load(
        &url,
        "--surge 40 --seed 3 --pace 0 --requests 12 --connections 3",
    );
    let answered = count(&run, "answered");
    assert!(answered >= 12, "{run}");
    all_well(&run, answered, "200");
    assert_eq!(count(&run, "sessions"), 12);
}

#[test]
fn runs_are_written_and_compared() {
    let answer = |bytes: usize| {
        serve(move |mut stream| {
            let mut buffer = [0; 4096];
            while stream.read(&mut buffer).is_ok_and(|count| count > 0) {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
                let answer = [head.as_bytes(), &vec![b'x'; bytes]].concat();
                if stream.write_all(&answer).is_err() {
                    return;
                }
            }
        })
    };
    let folder = Folder::new();
    let file = |name: &str| folder.join(name).display().to_string();
    let url = format!("http://{}/", answer(3));
    for name in ["a", "b"] {
        let (json, csv, hdr) = (
            file(&format!("{name}.json")),
            file(&format!("{name}.csv")),
            file(&format!("{name}.hgrm")),
        );
        let words = ["load", &url, "--rate", "200", "--duration", "4s", "--quiet"];
        let files = ["--json", &json, "--csv", &csv, "--hdr", &hdr];
        let text = run_lab(&[&words[..], &files].concat()).unwrap();
        assert!(
            text.contains("from due") && text.contains("own error"),
            "{text}"
        );
    }
    assert_eq!(folder.text("a.csv").lines().count(), 1 + 4);
    let hgrm = folder.text("a.hgrm");
    assert!(
        hgrm.contains("1/(1-Percentile)") && hgrm.contains("#[Max"),
        "{hgrm}"
    );
    let same = run_lab(&["load", "compare", &file("a.json"), &file("a.json")]).unwrap();
    let lines = same.matches("no difference that this run can show").count();
    let equal = same.matches("the same").count();
    assert_eq!(lines + equal, 7, "{same}");
    let wrong = folder.write("wrong", "{}").display().to_string();
    let error = run_lab(&["load", "compare", &wrong, &wrong]).unwrap_err();
    assert!(error.contains("load --json"), "{error}");
    let error = run_lab(&["load", "compare", &file("a.hgrm"), &wrong]).unwrap_err();
    assert!(error.contains("no seconds to compare"), "{error}");
}

/// Returns the output of HdrHistogram's own program for an interval log: Debian's
/// libhdrhistogram-java.
fn processed(log: &str, options: &[&str]) -> Option<String> {
    const JAR: &str = "/usr/share/java/hdrhistogram.jar";
    if !std::path::Path::new(JAR).exists() {
        report_skipped("libhdrhistogram-java is not installed; scripts/setup test does that");
        return None;
    }
    let mut java = program("java");
    java.args([
        "-XX:-UsePerfData",
        "-cp",
        JAR,
        "org.HdrHistogram.HistogramLogProcessor",
        "-i",
        log,
    ]);
    let output = java.args(options).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    Some(text)
}

#[test]
fn interval_logs_are_read_by_others_and_compared() {
    if !are_installed(&["nginx", "java"]) {
        return;
    }
    let server = Server::start_nginx(None);
    let url = format!("http://{}/name", server.address());
    let folder = Folder::new();
    let file = |name: &str| folder.join(name).display().to_string();
    let (log, json) = (file("a.hlog"), file("a.json"));
    let words = ["load", &url, "--rate", "300", "--duration", "4s", "--quiet"];
    let files = ["--json", &json, "--hdr", &log, "--hdr", &file("a.hgrm")];
    run_lab(&[&words[..], &files].concat()).unwrap();
    let run: Value = serde_json::from_str(&folder.text("a.json")).unwrap();
    let Some(due) = processed(&log, &[]) else {
        return;
    };
    // Its last line but one: "#[Max     =       1.234, Total count    =         1200]".
    let figure = |text: &str, name: &str| {
        let (_, after) = text.rsplit_once(name).unwrap_or_else(|| panic!("{text}"));
        let after = after.trim_start_matches([' ', '=']);
        let end = after.find([',', ']']).unwrap();
        after[..end].parse::<f64>().unwrap()
    };
    assert_eq!(figure(&due, "Total count") as u64, count(&run, "answered"));
    let longest = run["corrected_us"]["max"].as_f64().unwrap() / 1e3;
    let found = figure(&due, "#[Max");
    assert!((found / longest - 1.0).abs() < 0.01, "{found} {longest}");
    let send = processed(&log, &["-tag", "send"]).unwrap();
    assert_eq!(figure(&send, "Total count") as u64, count(&run, "answered"));
    // The percentile distribution has the same, and so has what is written beside it.
    let hgrm = folder.text("a.hgrm");
    assert_eq!(figure(&hgrm, "Total count") as u64, count(&run, "answered"));

    let lines = |a: &str, b: &str| {
        let text = run_lab(&["load", "compare", a, b]).unwrap();
        assert!(!text.contains("B is "), "{text}");
        let of = |line: &&str| line.contains(" us  ") || line.contains(" per s");
        text.lines().filter(of).count()
    };
    assert_eq!(lines(&log, &log), 6);
    // Errors are not in histograms.
    assert_eq!(lines(&log, &json), 6);
    assert_eq!(lines(&json, &json), 7);
}
