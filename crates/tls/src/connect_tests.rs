//! Handshakes between this client and this server, and with what is neither.

use std::sync::Arc;

use evenkeel_config::{ClientCertificates, ClientTls, Tls, TlsVersion};
use rcgen::{CertifiedIssuer, KeyPair, SanType, date_time_ymd};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::handshake::ServerHandshake;
use crate::server::Server;
use crate::testing::{Folder, Made, new_authority, new_params, self_signed, sign_certificate};
use crate::ticket::Keys;

struct Rig {
    folder: Folder,
    root: CertifiedIssuer<'static, KeyPair>,
    server: Tls,
    client: ClientTls,
    keys: Arc<Keys>,
}

impl Rig {
    fn new() -> Self {
        let (folder, root) = (Folder::new(), new_authority());
        let client = ClientTls {
            ca_file: Some(folder.write("ca.pem", root.pem())),
            ..ClientTls::default()
        };
        let mut rig = Rig {
            folder,
            root,
            server: Tls::default(),
            client,
            keys: Arc::new(Keys::new_rotating()),
        };
        rig.show(&sign_certificate(
            new_params(&["a.example", "127.0.0.1"]),
            &rig.root,
        ));
        rig
    }

    /// The server's certificate from now on.
    fn show(&mut self, made: &Made) {
        self.server.certificates = vec![self.folder.write_certificate("server.pem", made)];
        self.server.allow_expired = true;
    }

    fn client(&self) -> Arc<Client> {
        Arc::new(Client::from_config(&self.client).unwrap())
    }

    /// Returns the result of a handshake of `client` with the server, which greets with one byte.
    async fn meet(&self, client: &Arc<Client>, host: &str) -> Result<HandshakeParameters, Failure> {
        self.meet_with(client, host, &[], &["h2", "http/1.1"]).await
    }

    async fn meet_with(
        &self,
        client: &Arc<Client>,
        host: &str,
        offered: &[&str],
        known: &[&str],
    ) -> Result<HandshakeParameters, Failure> {
        let server = Server::from_config(&self.server, "web", known, &self.keys).unwrap();
        Self::meet_server(&server, client, host, offered).await
    }

    async fn meet_server(
        server: &Server,
        client: &Arc<Client>,
        host: &str,
        offered: &[&str],
    ) -> Result<HandshakeParameters, Failure> {
        let (ours, theirs) = pair().await;
        let serve = async {
            let (mut stream, _) = ServerHandshake::new(theirs, server).await.ok()?;
            let mut got = [0; 4];
            stream.read_exact(&mut got).await.ok()?;
            stream.write_all(&got).await.ok()?;
            stream.shutdown().await.ok()
        };
        let ask = async {
            let (mut stream, agreed) = client.connect(ours, host, offered).await?;
            let asked = stream.write_all(b"ping").await.and(stream.flush().await);
            let mut all = Vec::new();
            let read = stream.read_to_end(&mut all).await;
            match (asked, read) {
                (Ok(()), Ok(_)) => assert_eq!(all, b"ping"),
                (_, Err(error)) | (Err(error), _) => {
                    let text = error.to_string();
                    return Err(Failure::new(Cause::Closed, text));
                }
            }
            Ok(agreed)
        };
        tokio::join!(serve, ask).1
    }

    async fn fails(&self, host: &str) -> (Cause, String) {
        let failure = self.meet(&self.client(), host).await.unwrap_err();
        (failure.cause, failure.to_string())
    }
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    (ours, listener.accept().await.unwrap().0)
}

#[tokio::test]
async fn bytes_pass_both_ways_with_both_versions() {
    let mut rig = Rig::new();
    for host in ["a.example", "127.0.0.1"] {
        let agreed = rig.meet(&rig.client(), host).await.unwrap();
        assert_eq!((agreed.version, agreed.resumed), ("TLSv1.3", false));
    }
    rig.client.server_name = Some("a.example".into());
    assert!(rig.meet(&rig.client(), "b.example").await.is_ok());
    rig.server.min_version = TlsVersion::Tls13;
    rig.client.min_version = TlsVersion::Tls13;
    assert!(rig.meet(&rig.client(), "b.example").await.is_ok());
}

#[tokio::test]
async fn n21_messages_in_several_records_are_put_together() {
    let rig = Rig::new();
    for records in [32, 33, 45, 64, 100] {
        let mut server = Server::from_config(&rig.server, "web", &[], &rig.keys).unwrap();
        let config = Arc::make_mut(&mut server.config);
        // A record's header counts, too: a ticket is in up to a dozen records.
        config.max_fragment_size = Some(records);
        config.send_tls13_tickets = 4;
        let met = Rig::meet_server(&server, &rig.client(), "a.example", &[]).await;
        assert_eq!(met.unwrap().version, "TLSv1.3", "{records}");
    }
}

#[tokio::test]
async fn alpn_is_what_both_know() {
    let mut rig = Rig::new();
    let client = rig.client();
    let met = rig
        .meet_with(&client, "a.example", &["h2", "http/1.1"], &["http/1.1"])
        .await;
    assert_eq!(met.unwrap().protocol.as_deref(), Some(&b"http/1.1"[..]));
    let met = rig
        .meet_with(&client, "a.example", &["h2"], &["http/1.1"])
        .await;
    assert_eq!(met.unwrap_err().cause, Cause::Incompatible);
    rig.client.alpn = vec!["postgresql".into()];
    let met = rig
        .meet_with(&rig.client(), "a.example", &[], &["postgresql"])
        .await;
    assert_eq!(met.unwrap().protocol.as_deref(), Some(&b"postgresql"[..]));
}

#[tokio::test]
async fn sessions_are_resumed_with_the_same_peer_and_name_only() {
    let rig = Rig::new();
    let client = rig.client();
    // Another connection is another port: the session belongs to the address.
    let server = Server::from_config(&rig.server, "web", &[], &rig.keys).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut resumed = Vec::new();
    let stranger = rig.client();
    for (client, host) in [
        (&client, "a.example"),
        (&client, "a.example"),
        (&client, "127.0.0.1"),
        (&stranger, "a.example"),
    ] {
        let ours = TcpStream::connect(address).await.unwrap();
        let theirs = listener.accept().await.unwrap().0;
        let serve = async {
            let (mut stream, _) = ServerHandshake::new(theirs, &server).await.unwrap();
            stream.write_all(b"x").await.unwrap();
            stream.shutdown().await.unwrap();
        };
        let ask = async {
            let (mut stream, agreed) = client.connect(ours, host, &[]).await.unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            agreed.resumed
        };
        resumed.push(tokio::join!(serve, ask).1);
    }
    assert_eq!(resumed, [false, true, false, false]);
}

#[tokio::test]
async fn a_certificate_has_one_of_several_names() {
    let mut rig = Rig::new();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    // The name that the server is asked for does not count.
    rig.client.certificate_names = names(&["b.example", "a.example"]);
    assert!(rig.meet(&rig.client(), "c.example").await.is_ok());
    rig.client.certificate_names = names(&["b.example", "c.example"]);
    let (cause, text) = rig.fails("a.example").await;
    assert_eq!(cause, Cause::WrongName);
    assert!(text.contains("not for c.example"), "{text}");
    rig.client.certificate_names = names(&["a.example"]);
    rig.show(&self_signed(&["a.example"]));
    assert_eq!(rig.fails("a.example").await.0, Cause::Untrusted);
}

#[tokio::test]
async fn a_name_of_a_certificate_may_be_a_uri() {
    let mut rig = Rig::new();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let (id, other) = ("spiffe://a.example/web", "spiffe://a.example/mail");
    let with_uri = || {
        let mut params = new_params(&["a.example"]);
        let uri = SanType::URI(id.try_into().unwrap());
        params.subject_alt_names.push(uri);
        params
    };
    rig.show(&sign_certificate(with_uri(), &rig.root));
    // The host in the address does not count, whether the certificate has it or not.
    rig.client.certificate_names = names(&[other, id]);
    for host in ["a.example", "c.example"] {
        assert!(rig.meet(&rig.client(), host).await.is_ok(), "{host}");
        rig.client.certificate_names = names(&[other, "b.example"]);
        assert_eq!(rig.fails(host).await.0, Cause::WrongName, "{host}");
        rig.client.certificate_names = names(&[other, id]);
    }
    rig.client.certificate_names = names(&[other, "a.example"]);
    assert!(rig.meet(&rig.client(), "c.example").await.is_ok());
    // A URI makes no certificate of another authority good, and none that has expired.
    rig.client.certificate_names = names(&[id]);
    rig.show(&sign_certificate(with_uri(), &new_authority()));
    assert_eq!(rig.fails("c.example").await.0, Cause::Untrusted);
    let mut old = with_uri();
    old.not_after = date_time_ymd(2020, 1, 1);
    rig.show(&sign_certificate(old, &rig.root));
    assert_eq!(rig.fails("c.example").await.0, Cause::Expired);
}

#[tokio::test]
async fn what_is_wrong_with_a_certificate_is_told() {
    let mut rig = Rig::new();
    let (cause, text) = rig.fails("b.example").await;
    assert_eq!(cause, Cause::WrongName);
    assert!(
        text.contains("is for a.example, 127.0.0.1, and not for b.example"),
        "{text}"
    );
    rig.show(&sign_certificate(
        new_params(&["a.example"]),
        &new_authority(),
    ));
    let (cause, text) = rig.fails("a.example").await;
    assert_eq!(cause, Cause::Untrusted);
    assert!(text.contains("ca.pem"), "{text}");
    rig.show(&self_signed(&["a.example"]));
    assert_eq!(rig.fails("a.example").await.0, Cause::Untrusted);
    let mut old = new_params(&["a.example"]);
    old.not_after = date_time_ymd(2020, 1, 1);
    rig.show(&sign_certificate(old, &rig.root));
    let (cause, text) = rig.fails("a.example").await;
    assert_eq!(cause, Cause::Expired);
    assert!(
        text.contains("has expired, on Jan  1 00:00:00 2020"),
        "{text}"
    );
    let mut young = new_params(&["a.example"]);
    young.not_before = date_time_ymd(2120, 1, 1);
    young.not_after = date_time_ymd(2121, 1, 1);
    rig.show(&sign_certificate(young, &rig.root));
    assert!(
        rig.fails("a.example")
            .await
            .1
            .contains("is not valid before Jan  1")
    );
    // All of which is good enough for those who do not look.
    rig.client = ClientTls {
        verify: false,
        ..ClientTls::default()
    };
    assert!(rig.meet(&rig.client(), "b.example").await.is_ok());
}

#[tokio::test]
async fn who_asks_for_a_certificate_gets_it() {
    let mut rig = Rig::new();
    let clients = new_authority();
    rig.server.client_certificates = Some(ClientCertificates {
        ca_file: rig.folder.write("clients.pem", clients.pem()),
        ..ClientCertificates::default()
    });
    // With TLS 1.3 the server says so when the client is done.
    let (_, text) = rig.fails("a.example").await;
    assert!(text.contains("CertificateRequired"), "{text}");
    let own = rig
        .folder
        .write_certificate("own.pem", &sign_certificate(new_params(&["me"]), &clients));
    rig.client.certificate = Some(own.certificate);
    assert!(rig.meet(&rig.client(), "a.example").await.is_ok());
    let other = rig.folder.write_certificate(
        "other.pem",
        &sign_certificate(new_params(&["me"]), &new_authority()),
    );
    rig.client.certificate = Some(other.certificate);
    assert!(rig.meet(&rig.client(), "a.example").await.is_err());
}

/// Returns the failure of a handshake with a peer that sends `bytes` and closes.
async fn answered(bytes: &[u8]) -> Failure {
    let rig = Rig::new();
    let client = rig.client();
    let (ours, mut theirs) = pair().await;
    let answer = async {
        let mut hello = [0; 5];
        theirs.read_exact(&mut hello).await.unwrap();
        let _ = theirs.write_all(bytes).await;
        let _ = theirs.shutdown().await;
        let mut rest = Vec::new();
        let _ = theirs.read_to_end(&mut rest).await;
    };
    let ask = async { client.connect(ours, "a.example", &[]).await.unwrap_err() };
    tokio::join!(answer, ask).1
}

#[tokio::test]
async fn what_is_not_tls_is_told() {
    let failure = answered(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    assert_eq!(failure.cause, Cause::NotTls, "{failure}");
    assert!(failure.text.contains("does it speak TLS at this port?"));
    assert_eq!(answered(b"").await.cause, Cause::Closed);
    assert_eq!(
        answered(b"\x16\x03\x03\x00\x04\x02\x00\x00\x00")
            .await
            .cause,
        Cause::NotTls
    );
    let alert = answered(b"\x15\x03\x03\x00\x02\x02\x28").await;
    assert_eq!(alert.cause, Cause::Incompatible, "{alert}");
    // A message that never ends.
    let mut long = vec![0x16, 3, 3, 0x40, 0, 11, 0xff, 0xff, 0xff];
    long.resize(16 * 1024 + 5, 0);
    let record: Vec<u8> = [&[0x16, 3, 3, 0x40, 0][..], &[0; 16 * 1024]].concat();
    for _ in 0..8 {
        long.extend_from_slice(&record);
    }
    let failure = answered(&long).await;
    assert_eq!(failure.cause, Cause::Oversized, "{failure}");
}
