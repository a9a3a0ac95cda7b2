//! Members that speak HTTP/2, from packages: hypercorn, nginx.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::process::{are_installed, program, run_curl};
use evenkeel_e2e::script::Script;
use evenkeel_e2e::server::Server;
use evenkeel_e2e::tls::{Key, make_certificate};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;

const PYTHON: &str = "/usr/bin/python3";

/// A server of WebSocket: it says over which version of HTTP, and sends back what it gets.
const SERVER: &str = r#"
import asyncio, socket
from hypercorn.asyncio import serve
from hypercorn.config import Config
async def app(scope, receive, send):
    assert scope["type"] == "websocket", scope["type"]
    await receive()
    await send({"type": "websocket.accept", "subprotocol": "chat"})
    await send({"type": "websocket.send", "text": scope["http_version"] + scope["path"]})
    while (event := await receive())["type"] == "websocket.receive" and event["bytes"] != b"bye":
        await send({"type": "websocket.send", "bytes": event["bytes"]})
    # It ends its stream only when it closes first.
    await send({"type": "websocket.close"})
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
config = Config()
config.bind = [f"fd://{listener.fileno()}"]
config.accesslog = config.errorlog = None
asyncio.run(serve(app, config))
"#;

/// A client over HTTP/1.1 (`1 PATH`) and one over HTTP/2 (`2 PATH`).
const CLIENT: &str = r#"
import asyncio, socket, sys
import h2.config, h2.connection, h2.events, h2.settings, websockets, wsproto.frame_protocol as frames
host, port = sys.argv[1].split(":")
sent = bytes(range(256)) * 2000
async def over_http1(path):
    url = f"ws://{host}:{port}{path}"
    options = dict(subprotocols=["chat"], max_size=None, close_timeout=0.1)
    async with websockets.connect(url, **options) as socket:
        said = await socket.recv()
        await socket.send(sent)
        back = await socket.recv() == sent
        await socket.send(b"bye")
        await socket.wait_closed()
        return f"{said} {socket.subprotocol} {back} {socket.close_code}"
def over_http2(path):
    link = socket.create_connection((host, int(port)))
    state = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    state.initiate_connection()
    parser = frames.FrameProtocol(client=True, extensions=[])
    allowed, answer, content, fields, to_send, wanted = False, None, [], {}, b"", None
    link.sendall(state.data_to_send())
    while True:
        for event in state.receive_data(link.recv(65536)):
            if isinstance(event, h2.events.RemoteSettingsChanged) and not allowed:
                allowed = state.remote_settings.enable_connect_protocol == 1
                state.send_headers(1, [(":method", "CONNECT"), (":protocol", "websocket"),
                    (":scheme", "http"), (":path", path), (":authority", "test"),
                    ("sec-websocket-version", "13"), ("sec-websocket-protocol", "chat")])
            if isinstance(event, h2.events.ResponseReceived):
                fields = dict(event.headers)
                if fields[":status"] != "200":
                    return "refused " + fields[":status"]
                to_send = parser.send_data(sent)
            if isinstance(event, h2.events.DataReceived):
                state.acknowledge_received_data(event.flow_controlled_length, 1)
                parser.receive_bytes(event.data)
                content += parser.received_frames()
        while to_send and (room := min(state.local_flow_control_window(1), 16384)):
            state.send_data(1, bytes(to_send[:room]))
            to_send = to_send[room:]
        if data := state.data_to_send():
            link.sendall(data)
        text = "".join(f.payload for f in content if isinstance(f.payload, str))
        back = b"".join(f.payload for f in content if not isinstance(f.payload, str))
        if len(back) == len(sent):
            return f"{text} {fields['sec-websocket-protocol']} {back == sent}"
for line in sys.stdin:
    version, path = line.split()
    try:
        print(asyncio.run(over_http1(path)) if version == "1" else over_http2(path), flush=True)
    except websockets.InvalidStatusCode as error:
        print("refused", error.status_code, flush=True)
"#;

#[test]
fn websocket_passes_to_members_over_http2() {
    let modules = ["hypercorn", "websockets"];
    let modules = modules.map(|name| format!("/usr/lib/python3/dist-packages/{name}/__init__.py"));
    if !are_installed(&[PYTHON, &modules[0], &modules[1]]) {
        return;
    }
    let folder = Folder::new();
    let server = folder.write("server.py", SERVER);
    let server = Script::start(program(PYTHON).arg(server));
    let address: SocketAddr = format!("127.0.0.1:{}", server.read_line()).parse().unwrap();
    let balancer = Balancer::start_http(&[address], "http = { member_protocol = \"h2\" }");
    let client = folder.write("client.py", CLIENT);
    let target = balancer.address("web").to_string();
    let mut client = Script::start(program(PYTHON).arg(client).arg(target));
    for version in ["1", "2", "1", "2"] {
        let said = client.ask_line(&format!("{version} /some/where"));
        let closed = if version == "1" { " 1000" } else { "" };
        assert_eq!(said, format!("2/some/where chat True{closed}"));
    }
    // A server that speaks HTTP/2, but takes no WebSocket over it.
    let plain = Server::nginx_http2();
    let balancer = Balancer::start_http(&[plain.address()], "http = { member_protocol = \"h2\" }");
    let target = balancer.address("web").to_string();
    let file = folder.write("client.py", CLIENT);
    let mut client = Script::start(program(PYTHON).arg(file).arg(target));
    for version in ["1", "2"] {
        let said = client.ask_line(&format!("{version} /name"));
        assert_eq!(said, "refused 501", "{version}");
    }
    wait_until("the log says why", || {
        balancer.log().contains("ENABLE_CONNECT_PROTOCOL")
    });
    let metrics = balancer.admin_get("/metrics");
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let refused = "evenkeel_rule_refused_total{rule=\"web\",reason=\"no_websocket\"} 2\n";
    assert!(metrics.contains(refused), "{metrics}");
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let header = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&header[..], payload].concat()
}

#[test]
fn d1_clients_that_read_nothing_stop_nobody_else() {
    const STREAMS: u32 = 40;
    if !are_installed(&["nginx"]) {
        return;
    }
    let member = Server::nginx_http2();
    member.put_document("large", vec![b'x'; 4_000_000]);
    member.put_document("small", vec![b'y'; 200_000]);
    let balancer = Balancer::start_http(&[member.address()], "http = { member_protocol = \"h2\" }");
    // One connection whose windows are never opened: GET, http, the path, the host.
    let mut stuck = Wire::connect(balancer.address("web"));
    let path = b"/files/large";
    let fields = [
        &[0x82, 0x86, 0x04, path.len() as u8][..],
        path,
        &[0x01, 1, b'a'],
    ]
    .concat();
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(frame(4, 0, 0, &[]));
    for number in 0..STREAMS {
        sent.extend(frame(1, 5, 2 * number + 1, &fields));
    }
    stuck.send(sent);
    let in_flight = || balancer.member_status("web", member.address())["in_flight"].as_u64();
    wait_until("all are under way", || in_flight() == Some(STREAMS.into()));
    // More than the window of the shared connection.
    let mut other = Wire::connect(balancer.address("web"));
    for number in 0..20 {
        other.send("GET /files/small HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = other.read_response();
        assert_eq!(answer.second_word(), "200", "{number}");
        assert_eq!(answer.body.len(), 200_000, "{number}");
    }
    wait_until("the others are stuck", || {
        in_flight() == Some(STREAMS.into())
    });
    let connections = member.access_log();
    assert!(connections.iter().all(|line| line.contains("small")));
    drop(stuck);
    wait_until("they are given up", || in_flight() == Some(0));
    other.send("GET /files/small HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(other.read_response().body.len(), 200_000);
}

#[test]
fn groups_of_a_rule_have_members_with_different_protocols() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let (new, old) = (
        Server::nginx_telling("new", "http2"),
        Server::nginx_telling("old", ""),
    );
    let balancer = Balancer::start(&format!(
        "[rule.web]\nlisten = \"127.0.0.1:0\"\ngroup = \"old\"\n\
         [[rule.web.routes]]\npath = \"/new/*\"\ngroup = \"new\"\n\
         [[rule.web.routes]]\npath = \"/both/*\"\ngroups = {{ old = 1, new = 1 }}\n\
         [[rule.web.routes]]\npath = \"/copied/*\"\ngroup = \"new\"\nmirror = {{ group = \"old\" }}\n\
         [[rule.web.routes]]\npath = \"/copied-back/*\"\ngroup = \"old\"\nmirror = {{ group = \"new\" }}\n\
         [group.old]\nmembers = [\"{}\"]\n\
         [group.new]\nmembers = [\"{}\"]\nmember_protocol = \"h2\"\nhealth_check = {{ path = \"/\" }}\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n",
        old.address(),
        new.address()
    ));
    let at = balancer.address("web");
    let ask = |options: &[&str], path: &str| {
        let url = format!("http://{at}{path}");
        run_curl(&[options, &[&*url]].concat())
    };
    // As long as the first window: curl 7.88 hangs if the answer comes before the end of a longer body.
    let body = "x".repeat(60_000);
    for client in ["--http1.1", "--http2-prior-knowledge"] {
        for (method, options) in [("GET", vec![client]), ("POST", vec![client, "-d", &body])] {
            for (path, name) in [
                ("/", "old"),
                ("/new/a", "new"),
                ("/copied/a", "new"),
                ("/copied-back/a", "old"),
            ] {
                let told = ask(&options, path);
                let wanted = format!("{name}|{method}|{path}|");
                assert!(told.starts_with(&wanted), "{client} {told}");
            }
            let both: BTreeSet<String> = (0..20)
                .map(|_| {
                    ask(&options, "/both/a")
                        .split('|')
                        .next()
                        .unwrap()
                        .to_owned()
                })
                .collect();
            assert_eq!(both.len(), 2, "{both:?}");
        }
    }
    let requests = |server: &Server, path: &str, protocol: &str| {
        let mut lines = server.access_log();
        // A body that is not all there when the answer comes is not copied.
        lines.retain(|line| line.contains(&format!("|GET {path} {protocol}|200")));
        lines.len()
    };
    for (server, protocol) in [(&new, "HTTP/2.0"), (&old, "HTTP/1.1")] {
        for path in ["/copied/a", "/copied-back/a"] {
            let what = format!("{protocol} has all requests and copies of {path}");
            wait_until(&what, || requests(server, path, protocol) == 2);
        }
    }
}

#[test]
fn http_checks_speak_http2() {
    let folder = Folder::new();
    make_certificate(&folder, "authority", Key::Ecdsa, "DNS:authority", None);
    make_certificate(
        &folder,
        "member",
        Key::Ecdsa,
        "DNS:localhost",
        Some("authority"),
    );
    let member = folder.join("member.pem");
    let lines = format!(
        "ssl_certificate {0};\nssl_certificate_key {0};",
        member.display()
    );
    let plain = Server::nginx_http2();
    let secured = Server::nginx_secured("ssl http2", &lines);
    let old = Server::nginx_secured("ssl", &lines);
    let tls = format!(
        "member_tls = {{ ca_file = {:?}, server_name = \"localhost\" }}\n",
        folder.join("authority.crt")
    );
    let check = |server: &Server, path: &str, more: &str| {
        let text = server.address();
        format!(
            "health_check = {{ interval = \"50ms\", timeout = \"20s\", path = {path:?}, doc_text = \"{text}\"{more} }}\n"
        )
    };
    let h2 = "http = { member_protocol = \"h2\" }\n";
    let auto = "http = { member_protocol = \"auto\" }\n";
    let http1 = ", protocol = \"http1\"";
    for (server, lines, error) in [
        (&plain, check(&plain, "/name", "") + h2, None),
        (&plain, check(&plain, "/files/name", "") + h2, None),
        (
            &plain,
            check(&plain, "/none", "") + h2,
            Some("response code 404"),
        ),
        (
            &plain,
            check(&plain, "/echo/", "") + h2,
            Some("the text was not found"),
        ),
        (
            &plain,
            check(&plain, "/name", http1) + h2,
            Some("not HTTP/1.x"),
        ),
        (&secured, check(&secured, "/name", "") + h2 + &tls, None),
        (&secured, check(&secured, "/name", "") + auto + &tls, None),
        (&old, check(&old, "/name", "") + auto + &tls, None),
        (
            &old,
            check(&old, "/name", "") + h2 + &tls,
            Some("NoApplicationProtocol"),
        ),
    ] {
        let balancer = Balancer::start_http(&[server.address()], &lines);
        let mut said = String::new();
        wait_until("there is a check", || {
            let check = &balancer.member_status("web", server.address())["check"];
            said = check["error"].as_str().unwrap_or_default().to_owned();
            check.is_object()
        });
        match error {
            Some(error) => assert!(said.contains(error), "{said:?} instead of {error:?}"),
            None => assert_eq!(said, "", "{lines}"),
        }
    }
    // The fields that nginx saw.
    assert!(
        plain
            .access_log()
            .iter()
            .any(|line| line.contains("GET /name HTTP/2.0|200"))
    );
}

#[test]
fn a_member_that_gives_no_sign_of_life_loses_its_connection() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let (stuck, other) = (Server::nginx_http2(), Server::nginx_http2());
    // Long before any other time limit, and long enough for an answer on a busy machine.
    let http =
        "http = { member_protocol = \"h2\", ping_interval = \"100ms\", ping_timeout = \"1500ms\" }";
    let balancer = Balancer::start_http(&[stuck.address()], http);
    let silent = || {
        let metrics = balancer.admin_get("/metrics");
        let name = "evenkeel_rule_http2_silent_members_total{rule=\"web\"} ";
        let value = metrics
            .text()
            .lines()
            .find_map(|line| line.strip_prefix(name));
        value.unwrap().parse::<u32>().unwrap()
    };
    let ask = |method: &str| {
        let mut wire = Wire::connect(balancer.address("web"));
        wire.send(format!(
            "{method} /name HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
        ));
        let answer = wire.read_response();
        (answer.second_word().to_owned(), answer.text().to_owned())
    };
    let of = |server: &Server| ("200".to_owned(), server.address().to_string());
    assert_eq!(ask("GET"), of(&stuck));
    stuck.stop();
    let (status, text) = ask("POST");
    assert_eq!(
        (&*status, &*text),
        (
            "502",
            "The server ended the connection without an answer.\n"
        )
    );
    assert_eq!(silent(), 1);
    wait_until("the log names it", || {
        let log = balancer.log();
        let name = format!("address={}", stuck.address());
        log.lines()
            .any(|line| line.contains("sent nothing after a PING") && line.contains(&name))
    });
    stuck.go_on();
    wait_until("it is used again", || ask("GET") == of(&stuck));
    assert_eq!(silent(), 1);
    // What may be sent twice goes elsewhere.
    let members = [stuck.address(), other.address()];
    let members = members.map(|address| format!("\"{address}\"")).join(", ");
    balancer.reconfigure(&format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"{}\"\n\
         strategy = \"round_robin\"\nmembers = [{members}]\n{http}\n",
        balancer.address("web")
    ));
    let mut seen = std::collections::HashSet::new();
    wait_until("both are used", || {
        seen.insert(ask("GET"));
        seen.len() == 2
    });
    stuck.stop();
    for _ in 0..4 {
        assert_eq!(ask("GET"), of(&other));
    }
    assert!(silent() > 1);
    stuck.go_on();
}
