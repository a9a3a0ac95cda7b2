//! The PROXY protocol: HAProxy, nginx and curl in front say who the client is, and HAProxy and nginx as
//! members are told.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::{are_installed, program, run_curl, try_curl};
use evenkeel_e2e::server::{Server, address};
use evenkeel_e2e::tls::{Key, make_certificate};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;

/// A proxy in front, killed when dropped.
struct Front {
    process: Child,
    _folder: Folder,
}

impl Front {
    /// Starts `name` with a file of `text`, which listens on all of `addresses`.
    fn start(name: &str, arguments: &[&str], text: &str, addresses: &[SocketAddr]) -> Self {
        let folder = Folder::new();
        let text = text.replace("@FOLDER@", &folder.path().display().to_string());
        let config = folder.write("front.conf", text);
        let output = File::create(folder.join("output.log")).unwrap();
        let mut process = program(name)
            .args(arguments)
            .arg(config)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        wait_until(&format!("{name} is there"), || {
            if let Some(status) = process.try_wait().unwrap() {
                panic!("{status}: {}", folder.text("output.log"));
            }
            let mut all = addresses.iter();
            all.all(|address| TcpStream::connect(address).is_ok())
        });
        Front {
            process,
            _folder: folder,
        }
    }

    /// HAProxy, which passes connections on to `target` with `option`.
    fn haproxy(target: SocketAddr, option: &str) -> (Self, SocketAddr) {
        let own = address();
        let text = format!(
            "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 9s\n  timeout server 9s\n\
             listen web\n  bind {own}\n  server evenkeel {target} {option}\n"
        );
        (Self::start("haproxy", &["-db", "-f"], &text, &[own]), own)
    }

    /// HAProxy, which is told who the client is, and tells it `member` in fields of HTTP.
    fn haproxy_told(member: SocketAddr) -> (Self, SocketAddr) {
        let own = address();
        let text = format!(
            "defaults\n  mode http\n  timeout connect 5s\n  timeout client 9s\n  timeout server 9s\n\
             listen web\n  bind {own} accept-proxy\n  option forwardfor\n  \
             http-request set-header X-Name %[fc_pp_authority]\n  \
             http-request set-header X-Port %[src_port]\n  server app {member}\n"
        );
        (Self::start("haproxy", &["-db", "-f"], &text, &[own]), own)
    }

    /// nginx, which passes connections on to `target` with version 1.
    fn nginx(target: SocketAddr) -> (Self, SocketAddr) {
        let own = address();
        let text = format!(
            "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\ndaemon off;\n\
             master_process off;\npid @FOLDER@/nginx.pid;\nerror_log @FOLDER@/error.log;\n\
             events {{ worker_connections 256; }}\nstream {{ server {{ listen {own}; \
             proxy_pass {target}; proxy_protocol on; }} }}\n"
        );
        (Self::start("nginx", &["-c"], &text, &[own]), own)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Answers with what the balancer says of the client.
fn member() -> Member {
    Member::answering_with(|request| {
        let said = ["x-forwarded-for", "x-forwarded-proto", "forwarded"];
        ok_response(&said.map(|name| request.values(name).join(",")).join("|"))
    })
}

fn config(rules: &[(&str, &str)], member: &Member) -> String {
    told(rules, member.address(), "health_check = false")
}

fn refused(balancer: &Balancer, reason: &str) -> u64 {
    let text = balancer.admin_get("/metrics");
    let line = format!("evenkeel_rule_refused_total{{rule=\"web\",reason=\"{reason}\"}} ");
    let mut lines = text.text().lines();
    let value = lines.find_map(|known| known.strip_prefix(&line));
    value.unwrap().parse().unwrap()
}

/// Sends a request behind `header`; the answer's text, if there is one.
fn ask(balancer: &Balancer, header: &[u8]) -> Option<String> {
    let mut client = balancer.connect();
    client.try_send(header);
    client.try_send("GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let head = client.try_read_head()?;
    assert_eq!(head.second_word(), "200");
    let text = client.read_to_end();
    Some(String::from_utf8(text).unwrap())
}

#[test]
fn a_client_has_the_address_that_the_proxy_in_front_says() {
    if !are_installed(&["haproxy", "nginx", "curl", "openssl"]) {
        return;
    }
    let folder = Folder::new();
    make_certificate(&folder, "a.example", Key::Ecdsa, "DNS:a.example", None);
    let pem = folder.join("a.example.pem").display().to_string();
    let accept = "accept_proxy = [\"127.0.0.0/8\", \"::1\"]";
    let secured = format!("{accept}\ntls = {{ certificates = [\"{pem}\"] }}");
    let member = member();
    let config = config(
        &[
            ("web", &format!("{accept}\nhttp = {{ forwarded = true }}")),
            ("tls", &secured),
            ("tcp", &format!("{accept}\nprotocol = \"tcp\"")),
        ],
        &member,
    );
    let balancer = Balancer::start(&config);
    let log = balancer.folder().join("access.log");
    balancer.reconfigure(&format!(
        "{config}[access_log]\noutput = \"{}\"\n",
        log.display()
    ));
    let get = |scheme: &str, front: SocketAddr, client: &str| {
        let name = format!("a.example:{}:{}", front.port(), front.ip());
        let url = format!("{scheme}://a.example:{}/x", front.port());
        let to = [
            "--fail",
            "--insecure",
            "--interface",
            client,
            "--resolve",
            &name,
        ];
        run_curl(&[&to[..], &[&url]].concat())
    };
    let fronts = |target: SocketAddr| {
        [
            Front::haproxy(target, "send-proxy"),
            Front::haproxy(target, "send-proxy-v2"),
            // With what it knows beside addresses.
            Front::haproxy(
                target,
                "send-proxy-v2 proxy-v2-options crc32c,unique-id,authority",
            ),
            Front::nginx(target),
        ]
    };
    for (number, (_front, at)) in fronts(balancer.address("web")).into_iter().enumerate() {
        let client = format!("127.77.0.{}", number + 1);
        let said = get("http", at, &client);
        assert!(
            said.starts_with(&format!("{client}|http|for={client};")),
            "{said}"
        );
    }
    for (number, (_front, at)) in fronts(balancer.address("tls")).into_iter().enumerate() {
        let client = format!("127.78.0.{}", number + 1);
        // HTTP/2 by ALPN, too.
        let said = get("https", at, &client);
        assert_eq!(said, format!("{client}|https|"));
    }
    for (number, (_front, at)) in fronts(balancer.address("tcp")).into_iter().enumerate() {
        let client = format!("127.79.0.{}", number + 1);
        assert_eq!(get("http", at, &client), "||", "nothing is added to bytes");
        wait_until(&format!("{client} is logged"), || {
            balancer.folder().text("access.log").contains(&client)
        });
    }
    let port = balancer.address("web").port();
    let url = format!("http://127.0.0.1:{port}/x");
    let said = run_curl(&["--fail", "--haproxy-protocol", &url]);
    assert!(said.starts_with("127.0.0.1|http|"), "{said}");
    // A health check of the proxy is a request of its own.
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    assert!(
        ask(&balancer, local)
            .unwrap()
            .starts_with("127.0.0.1|http|")
    );
    let six = b"PROXY TCP6 2001:db8::7 2001:db8::1 7 80\r\n";
    let said = ask(&balancer, six).unwrap();
    assert!(said.starts_with("2001:db8::7|http|"), "{said}");
    // IPv4 in the form of IPv6 is IPv4.
    let mapped = b"PROXY TCP6 ::ffff:192.0.2.7 ::ffff:192.0.2.1 7 80\r\n";
    assert!(
        ask(&balancer, mapped)
            .unwrap()
            .starts_with("192.0.2.7|http|")
    );

    let mut slow = balancer.connect();
    for byte in b"PROXY TCP4 192.0.2.9 192.0.2.1 7 80\r\nGET /a HTTP/1.1\r\nHost: a\r\n\r\n" {
        slow.send([*byte]);
    }
    let answer = slow.read_response();
    assert!(answer.text().starts_with("192.0.2.9|"), "{}", answer.text());
    assert_eq!(
        (
            refused(&balancer, "not_proxied"),
            refused(&balancer, "proxy_header")
        ),
        (0, 0)
    );
}

#[test]
fn headers_from_others_and_wrong_ones_are_refused() {
    if !are_installed(&["curl"]) {
        return;
    }
    let member = member();
    let lines = "accept_proxy = \"127.0.0.2\"\naccept_proxy_timeout = \"1s\"";
    let balancer = Balancer::start(&config(&[("web", lines)], &member));
    let header = b"PROXY TCP4 192.0.2.7 192.0.2.1 7 80\r\n";
    // From elsewhere, with a header and without one.
    assert_eq!(ask(&balancer, header), None);
    assert_eq!(ask(&balancer, b""), None);
    assert_eq!(refused(&balancer, "not_proxied"), 2);
    let url = format!("http://{}/x", balancer.address("web"));
    let trusted = ["--interface", "127.0.0.2", &url, "--haproxy-protocol"];
    assert!(run_curl(&trusted).starts_with("127.0.0.2|"));
    // The same without a header.
    assert!(!try_curl(&trusted[..3]).status.success());
    assert_eq!(refused(&balancer, "proxy_header"), 1);

    let lines = lines.replace("127.0.0.2", "127.0.0.1");
    balancer.reconfigure(&config(&[("web", &lines)], &member));
    let long = [b"PROXY UNKNOWN ".as_slice(), &[b'x'; 200], b"\r\n"].concat();
    let binary = |rest: &[u8]| [b"\r\n\r\n\0\r\nQUIT\n".as_slice(), rest].concat();
    let wrong = [
        b"\x16\x03\x01\0\0".to_vec(),
        b"PROXY TCP4 192.0.2.7 192.0.2.1 7\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.7 192.0.2.1 7 99999\r\n".to_vec(),
        long,
        // Another version, datagrams, too short, more than there may be.
        binary(b"\x11\x11\0\x0c"),
        binary(b"\x21\x12\0\x0c192019210000"),
        binary(b"\x21\x11\0\x04abcd"),
        binary(b"\x21\x11\xff\xff"),
        // It ends in the middle, and never.
        binary(b"\x21"),
        b"PROXY TCP4 192.0.2.7".to_vec(),
        Vec::new(),
    ];
    for (number, header) in wrong.iter().enumerate() {
        let mut client = balancer.connect();
        client.try_send(header);
        if number == wrong.len() - 3 {
            client.end_sending();
        }
        assert!(closes(&mut client), "{}", header.escape_ascii());
    }
    assert_eq!(refused(&balancer, "proxy_header"), 1 + wrong.len() as u64);
    assert!(ask(&balancer, header).unwrap().starts_with("192.0.2.7|"));
    assert_eq!(refused(&balancer, "not_proxied"), 2);
}

/// Returns true if the connection ends without an answer.
fn closes(client: &mut Wire) -> bool {
    client.try_read_head().is_none()
}

#[test]
fn members_are_told_who_the_client_is() {
    if !are_installed(&["haproxy", "nginx", "curl", "openssl"]) {
        return;
    }
    let nginx = Server::nginx_told();
    for version in ["v1", "v2"] {
        let lines = format!(
            "send_proxy = \"{version}\"\nhealth_check = {{ type = \"http\", path = \"/name\", \
             interval = \"100ms\" }}"
        );
        let rules = [("web", ""), ("tcp", "protocol = \"tcp\"")];
        let config = told(&rules, nginx.address(), &lines);
        let balancer = Balancer::start(&config);
        // A server that is told something else than a header answers nothing.
        balancer.wait_for_state("app", nginx.address(), &["up"]);
        for rule in ["web", "tcp"] {
            let at = balancer.address(rule);
            for client in ["127.88.0.1", "127.88.0.2"] {
                // Two requests in a connection, and the next client's.
                let url = format!("http://{at}/who");
                let ports = "50000-60999";
                let said = run_curl(&["--interface", client, "--local-port", ports, &url, &url]);
                let first = format!("{client}|");
                assert_eq!(said.matches(&first).count(), 2, "{rule} {said}");
                assert!(said.ends_with("|127.0.0.1"), "{rule} {said}");
            }
        }
        let totals = balancer.admin_get("/metrics");
        let reused = "evenkeel_rule_member_connections_total{rule=\"web\",result=\"reused\"} 0\n";
        assert!(totals.text().contains(reused), "{}", totals.text());
    }
}

#[test]
fn what_a_proxy_in_front_says_is_passed_on() {
    if !are_installed(&["haproxy", "curl", "openssl"]) {
        return;
    }
    let member = Member::answering_with(|request| {
        let said = ["x-forwarded-for", "x-name", "x-port"];
        ok_response(&said.map(|name| request.values(name).join(",")).join("|"))
    });
    let (_behind, target) = Front::haproxy_told(member.address());
    let accept = "accept_proxy = \"127.0.0.1\"\nprotocol = \"tcp\"";
    let rules = [("web", accept)];
    let check = "health_check = { type = \"tcp\", interval = \"100ms\" }";
    let config = told(&rules, target, &format!("send_proxy = \"v2\"\n{check}"));
    let balancer = Balancer::start(&config);
    let folder = Folder::new();
    make_certificate(&folder, "a.example", Key::Ecdsa, "DNS:a.example", None);
    // The front ends TLS, and says which name was asked for.
    let own = address();
    let pem = folder.join("a.example.pem").display().to_string();
    let text = format!(
        "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 9s\n  timeout server 9s\n\
         listen web\n  bind {own} ssl crt {pem}\n  server evenkeel {} send-proxy-v2 \
         proxy-v2-options authority,crc32c sni ssl_fc_sni\n",
        balancer.address("web")
    );
    let _front = Front::start("haproxy", &["-db", "-f"], &text, &[own]);
    let name = format!("a.example:{}:{}", own.port(), own.ip());
    let url = format!("https://a.example:{}/x", own.port());
    let client = ["--interface", "127.88.1.1", "--local-port", "50000-60999"];
    let to = ["--fail", "--insecure", "--resolve", &name, &url];
    let said = run_curl(&[&client[..], &to].concat());
    let port = said
        .strip_prefix("127.88.1.1|a.example|")
        .unwrap_or_default();
    let port: u16 = port.parse().unwrap_or_default();
    assert!((50_000..61_000).contains(&port), "{said}");
}

/// `rules` with a group of one member, and `lines` of that.
fn told(rules: &[(&str, &str)], member: SocketAddr, lines: &str) -> String {
    let mut text = "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    for (name, lines) in rules {
        text += &format!("[rule.{name}]\nlisten = \"127.0.0.1:0\"\ngroup = \"app\"\n{lines}\n");
    }
    text + &format!("[group.app]\nmembers = [\"{member}\"]\n{lines}\n")
}
