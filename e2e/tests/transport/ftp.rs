//! FTP rules: vsftpd, ProFTPD and Pure-FTPd behind, curl, lftp, tnftp and Python's ftplib in front.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::ftp::{FtpServer, Kind, PASSWORD, USER, can_run};
use evenkeel_e2e::process::{are_installed, program, try_curl};
use evenkeel_e2e::tls::{Key, make_certificate, write_secret};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;

/// Longer than anything takes here.
const LONG: Duration = Duration::from_secs(50);

/// A balancer with the FTP rule `web` on both families.
fn balancer(members: &[SocketAddr], listen: &str, more: &str) -> Balancer {
    let members: Vec<_> = members
        .iter()
        .map(|member| format!("\"{member}\""))
        .collect();
    Balancer::start(&format!(
        "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.web]\nlisten = \"{listen}:0\"\nprotocol = \"ftp\"\nmembers = [{}]\n{more}\n",
        members.join(", ")
    ))
}

fn content() -> Vec<u8> {
    (0..5 * 1024 * 1024u32)
        .map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

/// Members of all kinds, over both families.
fn servers() -> Vec<FtpServer> {
    let v4 = Kind::ALL.into_iter().map(FtpServer::start);
    v4.chain(Kind::ALL.into_iter().map(FtpServer::start_v6))
        .collect()
}

#[test]
fn curl_downloads_uploads_and_lists_in_all_ways() {
    if !can_run() || !are_installed(&["curl"]) {
        return;
    }
    let content = content();
    let folder = Folder::new();
    let file = folder.write("file", &content).display().to_string();
    let got = folder.join("got").display().to_string();
    for server in servers() {
        server.put_file("file", &content);
        let (user, password) = server.kind.login();
        for listen in ["127.0.0.1", "[::1]"] {
            let balancer = balancer(&[server.address()], listen, "");
            let url = format!("ftp://{}", balancer.address("web"));
            let login = format!("{user}:{password}");
            let ways: &[&[&str]] = match listen {
                "127.0.0.1" => &[
                    &[],
                    &["--disable-epsv"],
                    &["-P", "-"],
                    &["-P", "-", "--disable-eprt"],
                ],
                _ => &[&[], &["-P", "-"]],
            };
            for (number, way) in ways.iter().enumerate() {
                let what = format!(
                    "{:?} at {} by {listen} {way:?}",
                    server.kind,
                    server.address()
                );
                let run = |more: &[&str]| {
                    let common = ["--fail", "-sSv", "--max-time", "50", "--user", &login];
                    let output = try_curl(&[&common[..], way, more].concat());
                    let complaint = String::from_utf8_lossy(&output.stderr);
                    assert!(output.status.success(), "{what} {more:?}: {complaint}");
                    String::from_utf8_lossy(&output.stdout).into_owned()
                };
                run(&["--output", &got, &format!("{url}/file")]);
                assert!(folder.read("got") == content, "{what}");
                run(&["--upload-file", &file, &format!("{url}/up/x{number}")]);
                assert!(server.read(&format!("up/x{number}")) == content, "{what}");
                assert!(run(&[&format!("{url}/")]).contains("file"), "{what}");
            }
            let passive = balancer.rule_count("ftp_data_connections_total", "kind=\"passive_in\"");
            let active = balancer.rule_count("ftp_data_connections_total", "kind=\"active_in\"");
            assert_eq!(passive + active, ways.len() as u64);
            assert!(active > 0);
            // A client hears of the end a moment before it is counted.
            wait_until("all bytes are counted", || {
                let data = balancer.rule_count("ftp_bytes_total", "of=\"data_in\"");
                data == (ways.len() * content.len()) as u64
            });
        }
    }
}

/// Returns the output of a client's script, which must succeed.
fn run(what: &str, mut command: Command, input: &str) -> String {
    let mut process = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    process
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = process.wait_with_output().unwrap();
    let texts =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let text = texts.concat();
    assert!(output.status.success(), "{what}: {text}");
    text
}

#[test]
fn lftp_tnftp_and_ftplib_transfer_in_both_modes() {
    if !can_run() || !are_installed(&["lftp", "tnftp", "python3"]) {
        return;
    }
    let content = content();
    for server in servers() {
        server.put_file("file", &content);
        let (user, password) = server.kind.login();
        for listen in ["127.0.0.1", "[::1]"] {
            let balancer = balancer(&[server.address()], listen, "");
            let address = balancer.address("web");
            let (host, port) = (address.ip(), address.port());
            for passive in [true, false] {
                let mode = if passive { "passive" } else { "active" };
                let what = format!("{:?} {} {listen} {mode}", server.kind, server.address());
                let folder = Folder::new();
                folder.write("file", &content);
                let is_there = |got: &str, put: &str| {
                    assert!(folder.read(got) == content, "{what} {got}");
                    assert!(server.read(&format!("up/{put}")) == content, "{what} {put}");
                };

                let mut lftp = program("lftp");
                lftp.args(["--norc", "-c"]).current_dir(folder.path());
                lftp.arg(format!(
                    "set ftp:passive-mode {passive}; set net:max-retries 1; set net:timeout 30; \
                     set ftp:ssl-allow no; set cmd:fail-exit true; \
                     open -u {user},{password} -p {port} ftp://{listen}; \
                     get file -o lftp; put file -o up/lftp-{mode}; ls; bye"
                ));
                let listed = run(&what, lftp, "");
                assert!(listed.contains("file"), "{what}: {listed}");
                is_there("lftp", &format!("lftp-{mode}"));

                let mut tnftp = program("tnftp");
                tnftp.args([if passive { "-p" } else { "-A" }, "-n", "-i", "-V"]);
                tnftp
                    .args([host.to_string(), port.to_string()])
                    .current_dir(folder.path());
                let said = run(
                    &what,
                    tnftp,
                    &format!(
                        "user {user} {password}\nbinary\nget file tnftp\nput file up/tnftp-{mode}\nbye\n"
                    ),
                );
                assert!(folder.join("tnftp").exists(), "{what}: {said}");
                is_there("tnftp", &format!("tnftp-{mode}"));

                let mut python = program("python3");
                python.args([
                    "-c",
                    FTPLIB,
                    &host.to_string(),
                    &port.to_string(),
                    user,
                    password,
                ]);
                python
                    .args([if passive { "1" } else { "" }, mode])
                    .current_dir(folder.path());
                run(&what, python, "");
                is_there("ftplib", &format!("ftplib-{mode}"));
            }
        }
    }
}

/// With an abort in the middle, after which the session goes on.
const FTPLIB: &str = r#"
import ftplib, sys
host, port, user, password, passive, mode = sys.argv[1:]
ftp = ftplib.FTP(timeout=50)
ftp.connect(host, int(port))
ftp.login(user, password)
ftp.set_pasv(bool(passive))
assert 'file' in ftp.nlst()
with open('ftplib', 'wb') as file:
    ftp.retrbinary('RETR file', file.write)
assert ftp.size('file') == 5 * 1024 * 1024
ftp.storbinary('STOR up/ftplib-' + mode, open('file', 'rb'))
try:
    ftp.retrbinary('RETR missing', print)
    raise SystemExit('there is no such file')
except ftplib.error_perm:
    pass
data = ftp.transfercmd('RETR file')
data.recv(1000)
data.close()
ftp.voidcmd('NOOP') if ftp.getmultiline()[0] in '24' else 0
assert 'file' in ftp.nlst()
ftp.quit()
"#;

/// A balancer whose rule has TLS.
fn secured(server: &FtpServer, ftp: &str) -> Balancer {
    let config = format!(
        "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"ftp\"\nmembers = [\"{}\"]\n\
         [rule.web.tls]\ncertificates = \"a.pem\"\n[rule.web.ftp]\n{ftp}\n",
        server.address()
    );
    Balancer::start_with(&config, |folder| {
        make_certificate(folder, "a", Key::Ecdsa, "DNS:localhost,IP:127.0.0.1", None);
    })
}

#[test]
fn tls_ends_here_for_commands_and_data() {
    if !can_run() || !are_installed(&["curl", "lftp", "python3"]) {
        return;
    }
    let content = content();
    for kind in Kind::ALL {
        let server = FtpServer::start(kind);
        server.put_file("file", &content);
        let (user, password) = kind.login();
        let balancer = secured(&server, "require_tls = true");
        let authority = balancer.folder().join("a.crt").display().to_string();
        let address = balancer.address("web");
        let folder = Folder::new();
        let file = folder.write("file", &content).display().to_string();
        let got = folder.join("got").display().to_string();
        let login = format!("{user}:{password}");
        let common = ["--fail", "-sSv", "--max-time", "50", "--user", &login];
        let url = format!("ftp://{address}");
        // In passive mode: this curl begins no handshake on a data connection that it accepts.
        for version in [&["--tlsv1.3"][..], &["--tls-max", "1.2"]] {
            let tls = ["--ssl-reqd", "--cacert", &authority];
            let common = [&common[..], version, &tls].concat();
            let run = |more: &[&str]| {
                let output = try_curl(&[&common[..], more].concat());
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{kind:?} {version:?}: {said}");
            };
            run(&["--output", &got, &format!("{url}/file")]);
            assert!(folder.read("got") == content);
            run(&["--upload-file", &file, &format!("{url}/up/x")]);
            assert!(server.read("up/x") == content);
        }
        // Nobody logs in without.
        let clear = try_curl(&[&common[..], &[&format!("{url}/file")]].concat());
        assert!(!clear.status.success());
        for passive in [true, false] {
            let mut lftp = program("lftp");
            lftp.args(["--norc", "-c"]).arg(format!(
                "set ssl:ca-file {authority}; set net:max-retries 1; set net:timeout 30; \
                 set ftp:ssl-force yes; set ftp:ssl-protect-data yes; set cmd:fail-exit true; \
                 set xfer:clobber yes; set ftp:passive-mode {passive}; \
                 open -u {user},{password} -p {} ftp://127.0.0.1; get file -o {got}; bye",
                address.port()
            ));
            run(&format!("{kind:?} {passive}"), lftp, "");
            assert!(folder.read("got") == content);
        }
        let mut python = program("python3");
        let port = address.port().to_string();
        python.args(["-c", FTPLIB_TLS, &port, &authority, user, password]);
        run("ftplib", python, "");
        // Data connections resume the session of the control connection.
        assert!(balancer.rule_count("tls_handshakes_total", "kind=\"resumed\"") > 0);
    }
}

const FTPLIB_TLS: &str = r#"
import ftplib, ssl, sys
port, authority, user, password = sys.argv[1:]
ftp = ftplib.FTP_TLS(context=ssl.create_default_context(cafile=authority), timeout=50)
ftp.connect('127.0.0.1', int(port))
assert 'AUTH TLS' in ftp.sendcmd('FEAT')
ftp.login(user, password)
ftp.prot_p()
parts = []
ftp.retrbinary('RETR file', parts.append)
assert len(b''.join(parts)) == 5 * 1024 * 1024
assert 'file' in ftp.nlst()
ftp.quit()
"#;

#[test]
fn without_a_table_tls_is_refused() {
    if !can_run() || !are_installed(&["curl"]) {
        return;
    }
    let server = FtpServer::start(Kind::Vsftpd);
    server.put_file("file", "content");
    let balancer = balancer(&[server.address()], "127.0.0.1", "");
    let url = format!("ftp://{}/file", balancer.address("web"));
    let refused = try_curl(&["-sS", "--max-time", "50", "--ssl-reqd", &url]);
    assert_eq!(refused.status.code(), Some(64));
    let clear = try_curl(&["-sS", "--max-time", "50", "--ssl", &url]);
    assert_eq!(clear.stdout, b"content");
}

#[test]
fn a_check_logs_in() {
    if !can_run() {
        return;
    }
    let server = FtpServer::start(Kind::Proftpd);
    let config = |password: &str| {
        format!(
            "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"ftp\"\nmembers = [\"{}\"]\n\
             [rule.web.health_check]\ninterval = \"50ms\"\ntimeout = \"20s\"\nfall = 1\nrise = 1\nuser = \"{USER}\"\n\
             password_file = \"{password}\"\n",
            server.address()
        )
    };
    let balancer = Balancer::start_with(&config("right"), |folder| {
        write_secret(folder, "right", PASSWORD);
        write_secret(folder, "wrong", "no");
    });
    wait_until("it was checked", || {
        balancer.member_status("web", server.address())["check"]["passed"].as_bool() == Some(true)
            || balancer.member_status("web", server.address())["state"] == "up"
    });
    balancer.reconfigure(&config("wrong"));
    balancer.wait_for_state("web", server.address(), &["down"]);
    let member = balancer.member_status("web", server.address()).to_string();
    assert!(member.contains("530"), "{member}");
    assert!(!balancer.status().to_string().contains(PASSWORD));
}

/// A client is told, in words that its program knows, that it is not served.
#[test]
fn who_is_not_served_gets_421() {
    if !can_run() || !are_installed(&["curl"]) {
        return;
    }
    let server = FtpServer::start(Kind::Vsftpd);
    for (more, says) in [
        ("maintenance = { on = true }", true),
        (
            "limits = { new_connections = \"1/h\", new_connections_burst = 1 }",
            false,
        ),
    ] {
        let balancer = balancer(&[server.address()], "127.0.0.1", more);
        let address = balancer.address("web");
        let greeting = || {
            let mut wire = Wire::connect(address);
            let line = wire.try_read_until(b"\r\n").unwrap();
            String::from_utf8(line).unwrap()
        };
        let first = greeting();
        assert_eq!(first.starts_with("421 "), says, "{more}: {first}");
        let second = greeting();
        assert!(second.starts_with("421 "), "{more}: {second}");
        let refused = try_curl(&[&format!("ftp://{address}/")]);
        assert!(!refused.status.success(), "{more}");
    }
}

/// A line of the access log that has all of these.
fn logged(balancer: &Balancer, parts: &[&str]) {
    wait_until(&format!("it is logged: {parts:?}"), || {
        let log = balancer.folder().text("access.log");
        let mut lines = log.lines();
        lines.any(|line| parts.iter().all(|part| line.contains(part)))
    });
}

/// A balancer with an access log in its folder.
fn start_logged(rule: &str) -> Balancer {
    let config = format!(
        "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"ftp\"\n{rule}"
    );
    let balancer = Balancer::start(&config);
    let log = balancer.folder().join("access.log");
    let log = format!("[access_log]\noutput = \"{}\"\n", log.display());
    balancer.reconfigure(&(config + &log));
    balancer
}

/// Data connections that went through the balancer.
fn data_connections(balancer: &Balancer) -> u64 {
    let kinds = ["passive_in", "passive_out", "active_in", "active_out"];
    let of = |kind| balancer.rule_count("ftp_data_connections_total", &format!("kind=\"{kind}\""));
    kinds.into_iter().map(of).sum()
}

/// TLS that is passed on is between client and member, and so is where data goes.
#[test]
fn tls_may_be_passed_on() {
    if !can_run() || !are_installed(&["python3"]) {
        return;
    }
    let server = FtpServer::start_with_tls();
    server.put_file("file", content());
    let balancer = start_logged(&format!(
        "members = [\"{}\"]\n\
         [rule.web.ftp]\nauth_tls = \"pass\"\n",
        server.address()
    ));
    let authority = server.file("tls.crt").display().to_string();
    let port = balancer.address("web").port().to_string();
    let mut python = program("python3");
    python.args(["-c", FTPLIB_PASSED, &port, &authority]);
    run("ftplib", python, "");
    assert_eq!(
        data_connections(&balancer),
        0,
        "they go to the member itself"
    );
    logged(
        &balancer,
        &["\"end\":\"complete\"", &server.address().to_string()],
    );
    // What is passed on counts when it has ended.
    wait_until("a certificate and replies are counted", || {
        balancer.rule_count("ftp_bytes_total", "of=\"control_out\"") > 500
    });
    assert_eq!(
        balancer.rule_count("tls_handshakes_total", "kind=\"full\""),
        0
    );
}

const FTPLIB_PASSED: &str = r#"
import ftplib, ssl, sys
port, authority = sys.argv[1:]
context = ssl.create_default_context(cafile=authority)
context.maximum_version = ssl.TLSVersion.TLSv1_2
ftp = ftplib.FTP_TLS(context=context, timeout=50)
ftp.trust_server_pasv_ipv4_address = True
ftp.connect('127.0.0.1', int(port))
assert 'AUTH TLS' in ftp.sendcmd('FEAT')
ftp.login('anonymous', 'a@example.org')
ftp.prot_p()
parts = []
ftp.retrbinary('RETR file', parts.append)
assert len(b''.join(parts)) == 5 * 1024 * 1024
assert 'file' in ftp.nlst()
ftp.quit()
"#;

/// The client that a proxy in front names is the one whose data connections are taken and made.
#[test]
fn clients_may_come_by_a_proxy() {
    if !can_run() || !are_installed(&["python3"]) {
        return;
    }
    let content = content();
    for server in [Kind::Vsftpd, Kind::PureFtpd].map(FtpServer::start) {
        server.put_file("file", &content);
        let balancer = start_logged(&format!(
            "members = [\"{}\"]\n\
             accept_proxy = [\"127.0.0.1\"]\n",
            server.address()
        ));
        let (user, password) = server.kind.login();
        let address = balancer.address("web");
        let port = address.port().to_string();
        let mut python = program("python3");
        python.args(["-c", FTPLIB_PROXIED, &port, user, password]);
        run(&format!("{:?}", server.kind), python, "");
        // They may be counted a moment after the client has all of it.
        wait_until("data connections of both modes are counted", || {
            data_connections(&balancer) >= 4
        });
        wait_until("the connection of somebody else is counted", || {
            balancer.rule_count("ftp_refused_total", "reason=\"foreign\"") == 1
        });
        logged(
            &balancer,
            &["\"client\":\"127.0.0.9:4711\"", "\"end\":\"complete\""],
        );
        // Without a header nobody is served.
        let mut wire = Wire::connect(address);
        wire.send("USER anonymous\r\n");
        assert!(wire.is_at_end());
    }
}

const FTPLIB_PROXIED: &str = r#"
import ftplib, socket, sys
port, user, password = sys.argv[1:]
sock = socket.create_connection(('127.0.0.1', int(port)), timeout=50)
sock.sendall(b'PROXY TCP4 127.0.0.9 127.0.0.1 4711 %d\r\n' % int(port))
ftp = ftplib.FTP(timeout=50, source_address=('127.0.0.9', 0))
ftp.host, ftp.port, ftp.sock, ftp.af = '127.0.0.1', int(port), sock, sock.family
ftp.file = sock.makefile('r', encoding='utf-8')
ftp.welcome = ftp.getresp()
ftp.login(user, password)
def whole(data):
    parts = []
    while part := data.recv(65536):
        parts.append(part)
    assert len(b''.join(parts)) == 5 * 1024 * 1024
parts = []
ftp.retrbinary('RETR file', parts.append)
assert len(b''.join(parts)) == 5 * 1024 * 1024
assert 'file' in ftp.nlst()
# Lists are text, and Pure-FTPd changes the ends of lines then.
ftp.voidcmd('TYPE I')
# Another address than the client's may not have the data, and keeps nobody from it.
host, data_port = ftplib.parse229(ftp.sendcmd('EPSV'), ('127.0.0.1', 0))
try:
    foreign = socket.create_connection((host, data_port), timeout=50)
    assert foreign.recv(1) == b''
except ConnectionError:
    pass
data = socket.create_connection((host, data_port), timeout=50, source_address=('127.0.0.9', 0))
ftp.sendcmd('RETR file')
whole(data)
ftp.voidresp()
listener = socket.create_server(('127.0.0.9', 0))
listener.settimeout(50)
ftp.sendport('127.0.0.9', listener.getsockname()[1])
ftp.sendcmd('RETR file')
data, _ = listener.accept()
data.settimeout(50)
whole(data)
ftp.voidresp()
ftp.quit()
"#;

/// In front of a server that does not know the header: takes it off each control connection, and tells it.
fn without_header(server: SocketAddr) -> (SocketAddr, Receiver<String>) {
    // At the address of the server, as data connections go there.
    let listener = TcpListener::bind((server.ip(), 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (told, headers) = channel();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, told) = (client.unwrap(), told.clone());
            std::thread::spawn(move || {
                let (mut header, mut byte) = (Vec::new(), [0]);
                while !header.ends_with(b"\r\n") && client.read_exact(&mut byte).is_ok() {
                    header.push(byte[0]);
                }
                let _ = told.send(String::from_utf8_lossy(&header).into_owned());
                let mut server = TcpStream::connect(server).unwrap();
                let mut from = server.try_clone().unwrap();
                let mut to = client.try_clone().unwrap();
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
                let _ = std::io::copy(&mut client, &mut server);
                let _ = server.shutdown(Shutdown::Write);
            });
        }
    });
    (address, headers)
}

#[test]
fn members_may_be_told_the_client() {
    if !can_run() || !are_installed(&["curl"]) {
        return;
    }
    let content = content();
    for kind in Kind::ALL {
        let server = FtpServer::start(kind);
        server.put_file("file", &content);
        let (member, headers) = without_header(server.address());
        let more = "send_proxy = \"v1\"\nhealth_check = false\n";
        let balancer = balancer(&[member], "127.0.0.1", more);
        let (user, password) = kind.login();
        let login = format!("{user}:{password}");
        let url = format!("ftp://{}/file", balancer.address("web"));
        for mode in [&[][..], &["--disable-epsv"], &["-P", "127.0.0.9"]] {
            let common = ["--fail", "-sSv", "--max-time", "50", "--user", &login];
            let common = [&common[..], &["--interface", "127.0.0.9", &url]].concat();
            let output = try_curl(&[&common[..], mode].concat());
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert!(output.stdout == content, "{kind:?} {mode:?}: {complaint}");
            let header = headers.recv_timeout(LONG).unwrap();
            assert!(
                header.starts_with("PROXY TCP4 127.0.0.9 127.0.0.1 "),
                "{header}"
            );
        }
    }
}

/// A session goes on with its member while the configuration changes, in the middle of a transfer, too.
#[test]
fn sessions_survive_reloads() {
    if !can_run() {
        return;
    }
    let content = content();
    for kind in Kind::ALL {
        let servers = [FtpServer::start(kind), FtpServer::start(kind)];
        servers[0].put_file("file", &content);
        servers[1].put_file("other", "content");
        let config = |member: usize, ports: &str| {
            format!(
                "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n\
                 [rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"ftp\"\nmembers = [\"{}\"]\n\
                 [rule.web.ftp]\nports = \"{ports}\"\n",
                servers[member].address()
            )
        };
        let balancer = Balancer::start(&config(0, "30000-32767"));
        let mut control = Wire::connect(balancer.address("web"));
        let (user, password) = kind.login();
        reply(&mut control, "", "220");
        reply(&mut control, &format!("USER {user}"), "331");
        reply(&mut control, &format!("PASS {password}"), "230");
        reply(&mut control, "TYPE I", "200");
        let mut data = open_data(&mut control, &balancer);
        control.send("RETR file\r\n");
        reply(&mut control, "", "150");
        let mut got = data.try_read_exact(1000).unwrap();
        // Another member, and other ports: for sessions from now on.
        balancer.reconfigure(&config(1, "29000-29999"));
        got.extend(data.read_to_end());
        drop(data);
        assert!(got == content, "{kind:?}: {} bytes", got.len());
        reply(&mut control, "", "226");
        let mut data = open_data(&mut control, &balancer);
        control.send("RETR file\r\n");
        reply(&mut control, "", "150");
        assert!(data.read_to_end() == content, "{kind:?}");
        drop(data);
        reply(&mut control, "", "226");
        let mut next = Wire::connect(balancer.address("web"));
        reply(&mut next, "", "220");
        reply(&mut next, &format!("USER {user}"), "331");
        reply(&mut next, &format!("PASS {password}"), "230");
        reply(&mut next, "SIZE file", "550");
        let mut data = open_data(&mut next, &balancer);
        next.send("RETR other\r\n");
        reply(&mut next, "", "150");
        assert_eq!(data.read_to_end(), b"content");
        drop(data);
        reply(&mut next, "", "226");
        reply(&mut control, "QUIT", "221");
        assert!(control.is_at_end());
    }
}

/// Sends a command, unless it is empty, and reads the whole reply, which must have this code.
fn reply(control: &mut Wire, command: &str, code: &str) -> String {
    if !command.is_empty() {
        control.send(format!("{command}\r\n"));
    }
    let last = format!("{code} ");
    let mut all = String::new();
    loop {
        let line = control.try_read_until(b"\r\n").unwrap_or_default();
        let line = String::from_utf8(line).unwrap();
        all += &line;
        if line.starts_with(&last) {
            return all;
        }
        let goes_on = line.starts_with(&format!("{code}-")) || all.starts_with(&format!("{code}-"));
        assert!(goes_on, "{command} {code}: {all}");
    }
}

/// A data connection, by EPSV.
fn open_data(control: &mut Wire, balancer: &Balancer) -> Wire {
    let said = reply(control, "EPSV", "229");
    let port = said.split('|').nth(3).unwrap().parse().unwrap();
    Wire::connect((balancer.address("web").ip(), port).into())
}
