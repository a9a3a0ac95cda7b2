//! Any records, and any messages in them, from a client after a real handshake over loopback: no panic, no more is
//! held than a message and some records, and what is read is what was sent, from its beginning and in order.
//!
//! The input is a script of lines that end with `0xFF`; the first byte says what it is:
//!
//! - `>`: a record with the rest of the line as data of the connection;
//! - `h`, `a`: one with messages of the handshake, with an alert;
//! - `!`: the rest of the line as it is, in no record;
//! - `x`: a record whose last byte was changed on its way;
//! - `.`: what was written so far is sent by itself.
//!
//! The first byte of the input says by which version of TLS, and how much is read at once.
#![no_main]

use std::io::Write;
use std::net::TcpListener;
use std::sync::{Arc, OnceLock};

use evenkeel_config::{CertificateFiles, FileName, SourcePosition, Tls};
use evenkeel_tls::handshake::ServerHandshake;
use evenkeel_tls::record::{Kind, Parts, Sealer};
use evenkeel_tls::server::Server;
use evenkeel_tls::ticket::Keys;
use libfuzzer_sys::fuzz_target;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tokio::io::AsyncReadExt;
use tokio::runtime::Runtime;

/// Most bytes that a connection holds: a message of 64 KiB, a record and what the buffers grow by.
const MOST_HELD: usize = 256 * 1024;

struct System {
    runtime: Runtime,
    listener: TcpListener,
    server: Server,
    /// With TLS 1.2 and with TLS 1.3.
    clients: [Arc<ClientConfig>; 2],
}

fn system() -> &'static System {
    static SYSTEM: OnceLock<System> = OnceLock::new();
    SYSTEM.get_or_init(|| {
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]);
        let made = made.expect("a certificate");
        let path = std::env::temp_dir().join(format!("evenkeel-fuzz-{}.pem", std::process::id()));
        let pem = made.cert.pem() + &made.signing_key.serialize_pem();
        let mut file = std::fs::File::create(&path).expect("a file");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        file.set_permissions(mode).expect("its mode");
        file.write_all(pem.as_bytes()).expect("it is written");
        let tls = Tls {
            certificates: vec![CertificateFiles {
                certificate: FileName {
                    path: path.clone(),
                    place: SourcePosition::default(),
                },
                ..CertificateFiles::default()
            }],
            ..Tls::default()
        };
        let server =
            Server::from_config(&tls, "fuzz", &["http/1.1"], &Arc::new(Keys::new_rotating()));
        let server = server.expect("it is loaded");
        let _ = std::fs::remove_file(path);
        let mut roots = RootCertStore::empty();
        let der = CertificateDer::from(made.cert.der().to_vec());
        roots.add(der).expect("a root");
        let roots = Arc::new(roots);
        let client = |version| {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let config = ClientConfig::builder_with_provider(provider);
            let config = config
                .with_protocol_versions(&[version])
                .expect("a version");
            let config = config.with_root_certificates(Arc::clone(&roots));
            let mut config = config.with_no_client_auth();
            config.enable_secret_extraction = true;
            config.resumption = rustls::client::Resumption::disabled();
            Arc::new(config)
        };
        let runtime = tokio::runtime::Builder::new_current_thread();
        System {
            runtime: { runtime }.enable_all().build().expect("a runtime"),
            listener: TcpListener::bind("127.0.0.1:0").expect("a port"),
            server,
            clients: [
                client(&rustls::version::TLS12),
                client(&rustls::version::TLS13),
            ],
        }
    })
}

fuzz_target!(|input: &[u8]| {
    let Some((&first, script)) = input.split_first() else {
        return;
    };
    let system = system();
    let is_tls13 = first & 1 != 0;
    let config = Arc::clone(&system.clients[usize::from(is_tls13)]);
    let mut socket =
        std::net::TcpStream::connect(system.listener.local_addr().expect("its address"))
            .expect("it listens");
    let accepted = system.listener.accept().expect("a connection").0;
    let script = script.to_vec();
    let client = std::thread::spawn(move || {
        let name = ServerName::try_from("a.example").expect("a name");
        let mut connection = ClientConnection::new(config, name).expect("a client");
        while connection.is_handshaking() {
            connection.complete_io(&mut socket).expect("a handshake");
        }
        while connection.wants_write() {
            connection.write_tls(&mut socket).expect("it is sent");
        }
        let secrets = connection.dangerous_extract_secrets().expect("secrets");
        let sealer = Sealer::new(secrets.tx, is_tls13).expect("a suite");
        let sent = write_script(sealer, &script, &mut socket);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        // What is answered is not looked at, but taken.
        let _ = std::io::copy(&mut socket, &mut std::io::sink());
        sent
    });
    accepted.set_nonblocking(true).expect("a socket");
    let got = system.runtime.block_on(async {
        let socket = tokio::net::TcpStream::from_std(accepted).expect("a socket");
        let accepting = ServerHandshake::new(socket, &system.server).await;
        let (mut stream, _) = accepting.expect("a handshake");
        let mut got = Vec::new();
        let mut piece = vec![0; 1 + usize::from(first >> 1) * 300];
        // An error is an end, too.
        while let Ok(n @ 1..) = stream.read(&mut piece).await {
            got.extend_from_slice(&piece[..n]);
            assert!(
                stream.held_bytes() <= MOST_HELD,
                "{} bytes are held",
                stream.held_bytes()
            );
        }
        got
    });
    let (data, is_plain) = client.join().expect("the client");
    assert!(data.starts_with(&got), "what was read is not what was sent");
    assert!(!is_plain || data == got, "some of what was sent is missing");
});

/// Writes what a script says. Returns the data in it, and whether there was nothing else.
fn write_script(mut sealer: Sealer, script: &[u8], socket: &mut impl Write) -> (Vec<u8>, bool) {
    let (mut data, mut is_plain, mut bytes) = (Vec::new(), true, Vec::new());
    for line in script.split(|&byte| byte == 0xFF).take(64) {
        let [kind, content @ ..] = line else { continue };
        let record = match kind {
            b'>' | b'x' => Kind::Data,
            b'h' => Kind::Handshake,
            b'a' => Kind::Alert,
            b'!' => {
                is_plain = false;
                bytes.extend_from_slice(content);
                continue;
            }
            b'.' => {
                // The other side may have ended it.
                let _ = socket.write_all(&std::mem::take(&mut bytes));
                continue;
            }
            _ => continue,
        };
        let parts = [content];
        let mut parts = Parts::new(&parts);
        if sealer.seal_record(record, &mut parts, &mut bytes).is_err() {
            break;
        }
        is_plain &= *kind == b'>';
        match kind {
            b'>' if is_plain || record == Kind::Data => data.extend_from_slice(content),
            b'x' => {
                if let Some(last) = bytes.last_mut() {
                    *last ^= 1;
                }
                // Nothing behind it can be read.
                break;
            }
            _ => {}
        }
    }
    let _ = socket.write_all(&bytes);
    (data, is_plain)
}
