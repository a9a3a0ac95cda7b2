//! Unix sockets as members and as listeners.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Stdio;

use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::process::{Signal, are_installed, program, report_skipped, run_curl};
use evenkeel_e2e::server::{Server, address};
use evenkeel_e2e::tls::{Key, make_certificate};
use evenkeel_e2e::wait_until;
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

const PYTHON: &str = "python3";

/// A server of Python at a Unix socket, killed when dropped, which leaves its file behind.
struct Application(std::process::Child);

impl Application {
    /// Answers every GET with `name`. It closes each connection, as simple servers do.
    fn start(folder: &Folder, socket: &Path, name: &str) -> Self {
        let program_text = format!(
            "import http.server, os, socketserver\n\
             class Answer(http.server.BaseHTTPRequestHandler):\n\
             \x20   wbufsize = -1\n\
             \x20   def do_GET(self):\n\
             \x20       self.send_response(200)\n\
             \x20       self.send_header('Content-Length', '{}')\n\
             \x20       self.end_headers()\n\
             \x20       self.wfile.write(b'{name}')\n\
             \x20   def address_string(self):\n\
             \x20       return 'unix'\n\
             class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):\n\
             \x20   request_queue_size = 64\n\
             path = {socket:?}\n\
             if os.path.exists(path): os.unlink(path)\n\
             Server(path, Answer).serve_forever()\n",
            name.len(),
        );
        let file = folder.write(&format!("{name}.py"), program_text);
        let process = program(PYTHON)
            .arg(file)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the application listens", || {
            std::os::unix::net::UnixStream::connect(socket).is_ok()
        });
        Application(process)
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the answers to `count` requests to the rule `web`, and the number of each.
fn answers(balancer: &Balancer, path: &str, count: usize) -> HashMap<String, usize> {
    let url = format!("http://{}{path}", balancer.address("web"));
    let mut seen = HashMap::new();
    for _ in 0..count {
        *seen.entry(run_curl(&["--fail", &url])).or_default() += 1;
    }
    seen
}

fn status_of(balancer: &Balancer, name: &str) -> serde_json::Value {
    let status = balancer.status();
    let members = status["groups"][0]["members"].as_array().unwrap();
    let mut found = members.iter().filter(|member| member["name"] == name);
    found.next().unwrap_or_else(|| panic!("{status}")).clone()
}

#[test]
fn unix_sockets_and_tcp_serve_together_and_die_and_come_back() {
    if !are_installed(&["nginx", "curl", PYTHON]) {
        return;
    }
    let folder = Folder::new();
    let (nginx, python) = (folder.join("nginx.sock"), folder.join("python.sock"));
    let of_unix = Server::nginx_also(&format!(
        "listen unix:{}; location = /which {{ return 200 nginx; }}",
        nginx.display()
    ));
    let of_tcp = Server::nginx_also("location = /which { return 200 tcp; }");
    let application = Application::start(&folder, &python, "python");
    let config = |more: &str| {
        format!(
            "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
             strategy = \"round_robin\"\n\
             members = [\"unix:{}\", {{ address = \"unix:{}\", max_connections = 50 }}, \"{}\"]\n\
             health_check = {{ path = \"/which\", interval = \"100ms\", fall = 1, rise = 1 }}\n\
             slow_start = \"0s\"\n{more}",
            nginx.display(),
            python.display(),
            of_tcp.address()
        )
    };
    let balancer = Balancer::start(&config(""));
    let seen = answers(&balancer, "/which", 30);
    let names: Vec<_> = ["nginx", "python", "tcp"]
        .iter()
        .map(|name| seen.get(*name))
        .collect();
    assert!(
        names
            .iter()
            .all(|count| count.is_some_and(|count| *count >= 5)),
        "{seen:?}"
    );

    // It is called by its path everywhere.
    let name = format!("unix:{}", python.display());
    let member = status_of(&balancer, &name);
    assert_eq!(member["address"], name);
    assert_eq!(member["location"], name);
    assert_eq!(
        member["check"]["error"],
        serde_json::Value::Null,
        "{member}"
    );
    let metrics = balancer.admin_get("/metrics");
    assert!(metrics.text().contains(&format!("member=\"{name}\"")));
    balancer.run_ctl(&format!("drain web {name}")).unwrap();
    assert!(!answers(&balancer, "/which", 12).contains_key("python"));
    balancer.run_ctl(&format!("ready web {name}")).unwrap();

    // Its file stays, and nobody listens: no request fails, and it is down until it is back.
    drop(application);
    assert!(python.exists());
    assert!(!answers(&balancer, "/which", 12).contains_key("python"));
    wait_until("it is down", || {
        status_of(&balancer, &name)["state"] == "down"
    });
    let dead = status_of(&balancer, &name);
    assert_eq!(dead["reasons"], serde_json::json!(["down", "dead"]));
    // Nor is it there without its file.
    std::fs::remove_file(&python).unwrap();
    wait_until("that it is gone is noticed", || {
        let error = &status_of(&balancer, &name)["check"]["error"];
        error
            .as_str()
            .is_some_and(|error| error.contains("No such file"))
    });
    let _application = Application::start(&folder, &python, "python");
    wait_until("it is up", || status_of(&balancer, &name)["state"] == "up");
    assert!(answers(&balancer, "/which", 12).contains_key("python"));

    // A reload keeps what is known of it, and a change takes the other one out.
    let before = status_of(&balancer, &name)["totals"]["requests"].as_u64();
    balancer.reconfigure(&config("connect_retries = 5\n"));
    let after = status_of(&balancer, &name)["totals"]["requests"].as_u64();
    assert!(before > Some(0) && after == before, "{before:?} {after:?}");
    let without = config("").replace(&format!("\"unix:{}\", ", nginx.display()), "");
    balancer.reconfigure(&without);
    let seen = answers(&balancer, "/which", 12);
    assert!(!seen.contains_key("nginx") && seen.len() == 2, "{seen:?}");
    drop(of_unix);
}

#[test]
fn unix_sockets_speak_tls_and_http2() {
    if !are_installed(&["nginx", "curl", "openssl"]) {
        return;
    }
    let folder = Folder::new();
    make_certificate(&folder, "ca", Key::Ecdsa, "DNS:ca", None);
    make_certificate(&folder, "app", Key::Ecdsa, "DNS:app.example", Some("ca"));
    let socket = |name: &str| folder.join(name).display().to_string();
    let answer = "return 200 \"$scheme|$server_protocol|$ssl_server_name|$http_host\";";
    let _servers = [
        Server::nginx_also(&format!(
            "listen unix:{} ssl; listen unix:{} ssl http2; ssl_certificate {2}; \
             ssl_certificate_key {2}; location = /what {{ {answer} }}",
            socket("tls"),
            socket("tls-h2"),
            socket("app.pem"),
        )),
        Server::nginx_also(&format!(
            "listen unix:{} http2; location = /what {{ {answer} }}",
            socket("h2")
        )),
    ];
    let tls = format!(
        "member_tls = {{ server_name = \"app.example\", ca_file = \"{}\" }}\n",
        socket("ca.pem")
    );
    let rule = |name: &str, more: &str, spoken: &str| {
        format!(
            "[rule.{name}]\nlisten = \"127.0.0.1:0\"\nmembers = [\"unix:{}\"]\n{more}\
             health_check = {{ path = \"/what\", interval = \"100ms\" }}\n\
             http = {{ member_protocol = \"{spoken}\" }}\n",
            socket(name)
        )
    };
    let balancer = Balancer::start(&format!(
        "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n{}{}{}",
        rule("tls", &tls, "http1"),
        rule("tls-h2", &tls, "auto"),
        rule("h2", "", "h2")
    ));
    for (name, expected) in [
        ("tls", "https|HTTP/1.1|app.example|named.example"),
        ("tls-h2", "https|HTTP/2.0|app.example|named.example"),
        ("h2", "http|HTTP/2.0||named.example"),
    ] {
        let url = format!("http://{}/what", balancer.address(name));
        for _ in 0..4 {
            assert_eq!(
                run_curl(&["--fail", "--header", "Host: named.example", &url]),
                expected
            );
        }
        wait_until("it is checked", || {
            let status = balancer.status();
            let groups = status["groups"].as_array().unwrap().clone();
            let group = groups
                .into_iter()
                .find(|group| group["name"] == name)
                .unwrap();
            let check = &group["members"][0]["check"];
            check.is_object() && check["error"].is_null()
        });
    }
}

#[test]
fn bytes_and_who_sends_them_go_to_unix_sockets() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    let folder = Folder::new();
    let socket = |name: &str| folder.join(name).display().to_string();
    let server = Server::nginx_also(&format!(
        "listen unix:{}; listen unix:{} proxy_protocol; \
         location = /who {{ return 200 $proxy_protocol_addr; }}",
        socket("plain"),
        socket("told"),
    ));
    let content: Vec<u8> = (0..48_000_000u32).map(|at| (at % 253) as u8).collect();
    server.put_document("large", &content);
    let rule = |name: &str, protocol: &str, more: &str| {
        format!(
            "[rule.{name}-{protocol}]\nlisten = \"127.0.0.1:0\"\nprotocol = \"{protocol}\"\n\
             members = [\"unix:{}\"]\n{more}",
            socket(name)
        )
    };
    let mut config = "workers = 2\n".to_owned();
    for protocol in ["http", "tcp"] {
        config += &rule("plain", protocol, "");
        config += &rule("told", protocol, "send_proxy = \"v1\"\n");
    }
    config += &rule("told", "http", "send_proxy = \"v2\"\n").replace("told-http", "told2");
    let balancer = Balancer::start(&config);
    let upload = folder.write("upload", &content);
    for protocol in ["http", "tcp"] {
        let base = format!("http://{}", balancer.address(&format!("plain-{protocol}")));
        let got = folder.join("got").display().to_string();
        run_curl(&["--fail", "--output", &got, &format!("{base}/files/large")]);
        assert!(folder.read("got") == content, "{protocol}");
        let to = format!("{base}/dav/{protocol}");
        run_curl(&[
            "--fail",
            "--upload-file",
            &upload.display().to_string(),
            &to,
        ]);
        assert!(server.uploaded(protocol) == content, "{protocol}");
        let base = format!("http://{}", balancer.address(&format!("told-{protocol}")));
        assert_eq!(run_curl(&["--fail", &format!("{base}/who")]), "127.0.0.1");
    }
    let base = format!("http://{}", balancer.address("told2"));
    assert_eq!(run_curl(&["--fail", &format!("{base}/who")]), "127.0.0.1");
}

#[test]
fn who_takes_no_connections_is_left_out() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    let folder = Folder::new();
    let full = folder.join("full.sock");
    let socket = UnixListener::bind(&full).unwrap();
    // One waits, and there is no room for another one.
    rustix::net::listen(&socket, 0).unwrap();
    let _waiting = std::os::unix::net::UnixStream::connect(&full).unwrap();
    let server = Server::nginx_also(&format!(
        "listen unix:{}; location = /which {{ return 200 nginx; }}",
        folder.join("nginx.sock").display()
    ));
    let balancer = Balancer::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         strategy = \"round_robin\"\nhealth_check = false\n\
         members = [\"unix:{}\", \"unix:{}\"]\n",
        full.display(),
        folder.join("nginx.sock").display()
    ));
    let seen = answers(&balancer, "/which", 20);
    assert_eq!(seen.get("nginx"), Some(&20), "{seen:?}");
    assert!(balancer.rule_count("member_connections_total", "result=\"failed\"") > 0);
    drop(server);
}

#[test]
fn a_configuration_says_what_is_wrong_with_a_socket() {
    let folder = Folder::new();
    let file = folder.write(
        "wrong.toml",
        "[rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [\n  \"unix:run/app.sock\",\n]\n",
    );
    let complaint = run_evenkeel(&["check", file.to_str().unwrap()]).unwrap_err();
    assert!(complaint.contains("wrong.toml:4:"), "{complaint}");
    assert!(complaint.contains("must be absolute"), "{complaint}");
}

/// `curl` over a Unix socket.
fn curl_at(socket: &Path, more: &[&str]) -> String {
    let socket = socket.display().to_string();
    let mut arguments = vec!["--fail", "--unix-socket", &socket];
    arguments.extend(more);
    run_curl(&arguments)
}

#[test]
fn clients_come_over_unix_sockets_through_restarts_and_reloads() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    let folder = Folder::new();
    let (socket, other) = (folder.join("web.sock"), folder.join("other.sock"));
    let name = format!("@{}", folder.path().display());
    let server = Server::nginx_also(
        "location = /who { return 200 \"$http_x_forwarded_for|$http_forwarded\"; }",
    );
    let content: Vec<u8> = (0..24_000_000u32).map(|at| (at % 251) as u8).collect();
    server.put_document("large", &content);
    let log = folder.join("access.log");
    let config = |listen: &str, more: &str| {
        format!(
            "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n[access_log]\noutput = {log:?}\n\
             [rule.web]\nlisten = [{listen}]\nlisten_mode = \"0600\"\nmembers = [\"{at}\"]\n\
             http = {{ forwarded = true }}\n{more}\n\
             [rule.raw]\nprotocol = \"tcp\"\nlisten = \"unix:{name}\"\nmembers = [\"{at}\"]\n",
            at = server.address()
        )
    };
    let one = format!("\"unix:{}\", \"127.0.0.1:0\"", socket.display());
    let balancer = Balancer::start(&config(&one, ""));
    let mode = |path: &Path| {
        let file = std::fs::metadata(path).unwrap();
        std::os::unix::fs::PermissionsExt::mode(&file.permissions()) & 0o777
    };
    assert_eq!(mode(&socket), 0o600);
    for more in [&["--http1.1"][..], &["--http2-prior-knowledge"]] {
        let mut arguments = more.to_vec();
        arguments.push("http://named.example/who");
        let who = "|for=unknown;host=named.example;proto=http";
        assert_eq!(curl_at(&socket, &arguments), who);
        arguments.splice(..0, ["--header", "X-Forwarded-For: 192.0.2.9"]);
        assert_eq!(curl_at(&socket, &arguments), who, "nobody is believed");
    }
    assert_eq!(
        curl_at(
            &socket,
            &["--http1.0", "--header", "Host:", "http://x/name"]
        ),
        server.address().to_string()
    );
    let got = folder.join("got").display().to_string();
    curl_at(&socket, &["--output", &got, "http://x/files/large"]);
    assert!(folder.read("got") == content);
    let raw = [
        "--fail",
        "--abstract-unix-socket",
        name.trim_start_matches('@'),
    ];
    run_curl(&[&raw[..], &["--output", &got, "http://x/files/large"]].concat());
    assert!(folder.read("got") == content);
    wait_until("the log says so", || {
        folder.text("access.log").contains("\"client\":\"unix\"")
    });
    let status = balancer.run_ctl("status").unwrap();
    assert!(
        status.contains(&format!("unix:{}", socket.display())),
        "{status}"
    );

    // A reload keeps it open: the file is the same one. Its rights follow.
    let file = || std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&socket).unwrap());
    let before = file();
    let trusting = config(&one, "").replace(
        "forwarded = true",
        "forwarded = true, trust_forwarded = true",
    );
    balancer.reconfigure(&trusting.replace("0600", "0666"));
    assert_eq!((file(), mode(&socket)), (before, 0o666));
    let told = ["--header", "X-Forwarded-For: 192.0.2.9", "http://x/who"];
    assert_eq!(
        curl_at(&socket, &told),
        "192.0.2.9|for=unknown;host=x;proto=http"
    );
    // Another one comes, and the first one goes with its file; and back again.
    let two = format!("\"unix:{}\"", other.display());
    balancer.reconfigure(&config(&two, ""));
    assert!(!socket.exists());
    assert_eq!(
        curl_at(&other, &["http://x/name"]),
        server.address().to_string()
    );
    balancer.reconfigure(&config(&one, ""));
    assert!(!other.exists());
    curl_at(&socket, &["http://x/name"]);
    balancer.run_ctl("disable web").unwrap();
    assert!(!socket.exists());
    balancer.run_ctl("enable web").unwrap();
    curl_at(&socket, &["http://x/name"]);

    // Nobody else may have it; what a killed process leaves is replaced.
    let twin = folder.write(
        "twin.toml",
        config(&one, "").replace(&name, &format!("{name}-2")),
    );
    let complaint = run_evenkeel(&["run", twin.to_str().unwrap()]).unwrap_err();
    assert!(complaint.contains("cannot listen on unix:"), "{complaint}");
    curl_at(&socket, &["http://x/name"]);
    balancer.signal(Signal::KILL);
    let mut balancer = balancer.replace(&config(&one, ""));
    curl_at(&socket, &["http://x/name"]);
    balancer.signal(Signal::TERM);
    balancer.wait_for_end();
    assert!(!socket.exists());
}

/// Names a client to an abstract socket as this user, asks who the client is, and returns the answer; `None` if the test has
/// no right to become the user.
fn ask_as(user: Uid, name: &str) -> Option<String> {
    let ask = || {
        // The user of this thread alone.
        set_thread_res_uid(user, user, user).ok()?;
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        let mut client = UnixStream::connect_addr(&address).unwrap();
        let request = "PROXY TCP4 192.0.2.7 192.0.2.8 1024 80\r\n\
                       GET /who HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let mut answer = Vec::new();
        // The balancer may close the connection before it has read all.
        let _ = client.write_all(request.as_bytes());
        let _ = client.read_to_end(&mut answer);
        Some(String::from_utf8_lossy(&answer).into_owned())
    };
    std::thread::scope(|scope| scope.spawn(ask).join().unwrap())
}

#[test]
fn only_processes_of_the_own_user_say_who_clients_are() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let folder = Folder::new();
    let name = folder.join("told").display().to_string();
    let server = Server::nginx_also("location = /who { return 200 client=$http_x_forwarded_for; }");
    let balancer = Balancer::start(&format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.told]\nlisten = \"unix:@{name}\"\nmembers = [\"{}\"]\naccept_proxy = [\"self\"]\n",
        server.address()
    ));
    let answer = ask_as(geteuid(), &name).unwrap();
    assert!(answer.ends_with("client=192.0.2.7"), "{answer}");
    match ask_as(Uid::from_raw(65_534), &name) {
        Some(answer) => assert_eq!(answer, "", "{}", balancer.log()),
        None => report_skipped("only root may connect as another user"),
    }
}

#[test]
fn haproxy_in_front_says_who_clients_are() {
    if !are_installed(&["nginx", "haproxy", "curl"]) {
        return;
    }
    let folder = Folder::new();
    let server = Server::nginx_also("location = /who { return 200 $http_x_forwarded_for; }");
    let socket = |name: &str| folder.join(name).display().to_string();
    let balancer = Balancer::start(&format!(
        "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.told]\nlisten = \"unix:{}\"\nmembers = [\"{at}\"]\naccept_proxy = [\"unix\"]\n\
         [rule.plain]\nlisten = \"unix:{}\"\nmembers = [\"{at}\"]\n",
        socket("told"),
        socket("plain"),
        at = server.address()
    ));
    let (told, old, plain) = (address(), address(), address());
    let front = |at: SocketAddr, name: &str, option: &str| {
        format!(
            "listen {name}{option}\n  bind {at}\n  server evenkeel unix@{} {option}\n",
            socket(name)
        )
    };
    let text = format!(
        "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 9s\n  timeout server 9s\n{}{}{}",
        front(told, "told", "send-proxy-v2"),
        front(old, "told", "send-proxy"),
        front(plain, "plain", "")
    );
    let file = folder.write("haproxy.cfg", text);
    let mut haproxy = program("haproxy")
        .args(["-db", "-f"])
        .arg(file)
        .spawn()
        .unwrap();
    wait_until("HAProxy listens", || {
        [told, old, plain]
            .iter()
            .all(|at| std::net::TcpStream::connect(at).is_ok())
    });
    for (at, client) in [(told, "127.0.0.1"), (old, "127.0.0.1"), (plain, "")] {
        assert_eq!(run_curl(&["--fail", &format!("http://{at}/who")]), client);
    }
    let _ = haproxy.kill();
    let _ = haproxy.wait();
    drop(balancer);
}
