//! Real servers as members: nginx and Redis, through full NAT.

use std::fs::File;
use std::process::{Child, Stdio};

use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::process::are_installed;

use super::*;

/// Sizes that fit one segment, one buffer, and no buffer on the way.
const SIZES: [usize; 4] = [0, 1000, 64 << 10, 8 << 20];

/// Bytes that repeat nowhere near, so that lost, doubled or moved parts show.
fn make_content(length: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(length as u64 + 1);
    let mut content = vec![0; length];
    rng.fill(&mut content);
    content
}

/// A server at the members, killed when dropped.
struct Server {
    process: Child,
    folder: Folder,
}

impl Server {
    /// Starts a program at the members, and waits until it accepts.
    fn start(machines: &Machines, folder: Folder, words: &[&str]) -> Self {
        let output = || File::create(folder.join("output.log")).unwrap();
        // Killed with this thread, too.
        let mut command = machines.pair.back.command("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).args(words);
        command.stdin(Stdio::null());
        let process = command.stdout(output()).stderr(Stdio::inherit()).spawn();
        let mut server = Server {
            process: process.unwrap(),
            folder,
        };
        let at = machines.family.member(2);
        wait_until("the server accepts", || {
            if let Some(status) = server.process.try_wait().unwrap() {
                panic!("{status}: {}", server.folder.text("output.log"));
            }
            machines
                .pair
                .back
                .run_inside(|| TcpStream::connect(at))
                .is_ok()
        });
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// nginx at two members, with the documents in `docs/files` and uploads to `/dav/NAME`.
fn start_nginx(machines: &Machines) -> Server {
    let folder = Folder::new();
    let root = folder.path().display();
    for name in ["docs", "docs/files", "docs/dav"] {
        folder.make_folder(name);
    }
    let [first, second] = [2, 3].map(|last| machines.family.member(last));
    let config = format!(
        "daemon off;\nmaster_process off;\npid {root}/nginx.pid;\nerror_log {root}/error.log;\n\
         events {{ worker_connections 1024; }}\nhttp {{\n\
         log_format seen '$remote_addr $remote_port $request_method $status';\n\
         access_log {root}/access.log seen;\nclient_body_temp_path {root}/body;\n\
         proxy_temp_path {root}/proxy;\nfastcgi_temp_path {root}/fastcgi;\nuwsgi_temp_path {root}/uwsgi;\n\
         scgi_temp_path {root}/scgi;\nclient_max_body_size 100m;\nsendfile on;\n\
         server {{\nlisten {first};\nlisten {second};\nroot {root}/docs;\n\
         location /dav/ {{ dav_methods PUT; }}\n}}\n}}\n"
    );
    let path = folder.write("nginx.conf", config);
    let path = path.to_str().unwrap().to_owned();
    Server::start(machines, folder, &["nginx", "-c", &path])
}

fn check_nginx_gets_and_sends_all_bytes(family: Family) {
    if !are_installed(&["nginx", "curl", "setpriv"]) {
        return;
    }
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.remove_routes();
    let server = start_nginx(&machines);
    let more = "strategy = \"round_robin\"\n";
    let Some(balancer) = machines.start_nat_balancer(&[2, 3], more) else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let folder = Folder::new();
    let got = folder.join("got");
    let run_curl = |words: &[&str]| {
        let mut curl = machines.clients.command("curl");
        curl.args([
            "--disable",
            "--silent",
            "--show-error",
            "--fail",
            "--globoff",
        ]);
        curl.args(["--max-time", "60", "--noproxy", "*"])
            .args(words);
        let output = curl.output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {complaint}");
    };
    let rule = family.rule();
    let mut connections = 0;
    for length in SIZES {
        let content = make_content(length);
        let name = format!("of-{length}");
        let document = server.folder.write(&format!("docs/files/{name}"), &content);
        let url = format!("http://{rule}/files/{name}");
        let (got_text, document) = (got.to_str().unwrap(), document.to_str().unwrap());
        for _ in 0..2 {
            run_curl(&["--output", got_text, &url]);
            assert!(
                folder.read("got") == content,
                "a document of {length} bytes"
            );
        }
        // In one connection: a document after the other, and then an upload.
        let to = format!("http://{rule}/dav/{name}");
        run_curl(&["--output", got_text, &url, "--output", got_text, &url]);
        assert!(
            folder.read("got") == content,
            "the second of {length} bytes"
        );
        run_curl(&["--upload-file", document, &to]);
        let uploaded = server.folder.read(&format!("docs/dav/{name}"));
        assert!(uploaded == content, "an upload of {length} bytes");
        connections += 4;
    }
    let picks = || [2, 3].map(|last| machines.count(&balancer, last, "picks"));
    wait_until("the status has the connections", || {
        picks().iter().sum::<u64>() == connections
    });
    assert!(picks().iter().all(|picks| *picks > 0), "{:?}", picks());
    let now = machines.forwarded(&balancer);
    for kind in ["dropped", "proxied_ports", "proxied_route"] {
        assert_eq!(now["packets"][kind], 0, "{now}");
    }
    let requests = SIZES.len() * 5;
    wait_until("the log of nginx has the requests", || {
        let log = server.folder.text("access.log");
        let mut lines = log.lines();
        let begin = format!("{} ", family.balancer());
        assert!(lines.all(|line| line.starts_with(&begin)), "{log}");
        log.lines().count() == requests
    });
    machines.wait_for_ends(&balancer);
}

#[test]
fn s41_nginx_gets_and_sends_all_bytes_with_full_nat() {
    BOTH.into_iter()
        .for_each(check_nginx_gets_and_sends_all_bytes);
}

/// A command of Redis, as a client writes it.
fn write_command(words: &[&[u8]]) -> Vec<u8> {
    let mut command = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        command.extend(write_value(word));
    }
    command
}

/// A value of Redis with its length.
fn write_value(value: &[u8]) -> Vec<u8> {
    let mut bytes = format!("${}\r\n", value.len()).into_bytes();
    bytes.extend(value);
    bytes.extend(b"\r\n");
    bytes
}

/// Sends commands at once, and compares all bytes of the answers.
fn ask_redis(stream: &mut TcpStream, commands: &[u8], answers: &[u8]) {
    let mut got = vec![0; answers.len()];
    thread::scope(|scope| {
        let mut writer = stream.try_clone().unwrap();
        scope.spawn(move || writer.write_all(commands).unwrap());
        stream.read_exact(&mut got).unwrap();
    });
    let length = answers.len();
    assert!(got == answers, "{length} bytes come as Redis sends them");
}

/// Stores values of all sizes, and reads them.
fn check_values(stream: &mut TcpStream, prefix: &str) {
    for length in SIZES {
        let content = make_content(length);
        let key = format!("{prefix}-{length}");
        let set = write_command(&[b"SET", key.as_bytes(), &content]);
        ask_redis(stream, &set, b"+OK\r\n");
        let get = write_command(&[b"GET", key.as_bytes()]);
        ask_redis(stream, &get, &write_value(&content));
    }
}

fn check_redis_answers_all_commands(family: Family) {
    if !are_installed(&["redis-server", "setpriv"]) {
        return;
    }
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.remove_routes();
    let folder = Folder::new();
    let (ip, port) = (family.member(2).ip().to_string(), PORT.to_string());
    let dir = folder.path().to_str().unwrap().to_owned();
    let words = [
        "redis-server",
        "--bind",
        &ip,
        "--port",
        &port,
        "--dir",
        &dir,
    ];
    let words = [&words[..], &["--save", "", "--protected-mode", "no"]].concat();
    let _server = Server::start(&machines, folder, &words);
    // Nobody listens at the third: its refusals are not seen by clients.
    let more = "strategy = \"round_robin\"\n";
    let Some(mut balancer) = machines.start_nat_balancer(&[2, 3], more) else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let connect = || {
        let stream = machines
            .clients
            .run_inside(|| TcpStream::connect(family.rule()));
        let stream = stream.unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream
    };
    let mut streams: Vec<_> = (0..4).map(|_| connect()).collect();
    thread::scope(|scope| {
        for (number, stream) in streams.iter_mut().enumerate() {
            scope.spawn(move || check_values(stream, &number.to_string()));
        }
    });
    // Commands that do not wait for answers.
    let count = 10_000;
    let commands = write_command(&[b"INCR", b"counter"]).repeat(count);
    let answers: String = (1..=count).map(|number| format!(":{number}\r\n")).collect();
    ask_redis(&mut streams[0], &commands, answers.as_bytes());

    balancer.signal(Signal::KILL);
    balancer.wait_for_end();
    streams.push(connect());
    for (number, stream) in streams.iter_mut().enumerate() {
        check_values(stream, &number.to_string());
    }
    let balancer = machines.start_nat_balancer(&[2, 3], more).unwrap();
    let open = streams.len() as u64;
    wait_until("the next process counts the connections", || {
        machines.count(&balancer, 2, "in_flight") == open
    });
    for (number, stream) in streams.iter_mut().enumerate() {
        check_values(stream, &number.to_string());
    }
    assert_eq!(machines.forwarded(&balancer)["packets"]["dropped"], 0);
    // Redis ends the connection.
    let mut last = streams.pop().unwrap();
    last.write_all(&write_command(&[b"QUIT"])).unwrap();
    let mut rest = String::new();
    last.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "+OK\r\n");
    drop((last, streams));
    machines.wait_for_ends(&balancer);
}

#[test]
fn s41_redis_answers_all_commands_with_full_nat() {
    BOTH.into_iter().for_each(check_redis_answers_all_commands);
}
