//! The test vectors of `docs/reporting-protocol.md`.

#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::time::Duration;

use evenkeel_core::load::LoadId;
use evenkeel_core::member::Weight;
use evenkeel_core::time::Instant;
use evenkeel_wire::reporting::keys::{Key, Keys};
use evenkeel_wire::reporting::message::{
    self, Body, Control, Cookie, Registration, Server, ServerControl, ServerState, Update,
};

const NONCE: u64 = 0x0102_0304_0506_0708;
const IDENTIFIER: u64 = 0x1112_1314_1516_1718;

fn key() -> Key {
    let secret: Vec<u8> = (0..32).collect();
    Key::new(1, &secret).unwrap()
}

/// Returns the vectors: name, identifier, sequence number and body.
fn vectors() -> Vec<(&'static str, u64, u64, Body)> {
    let server = |group: &str, host: &str, weight: Option<f64>| Server {
        group: group.into(),
        host: host.into(),
        port: 80,
        weight: weight.map(|weight| Weight::new(weight).unwrap()),
    };
    let servers = vec![
        server("web", "10.0.0.7", None),
        server("mail", "", Some(2.5)),
    ];
    let registration = Registration::new("rack-7", "web-1", servers).unwrap();
    let cookie = Cookie {
        issued: Instant::from_nanos(0x2122_2324_2526_2728),
        proof: *b"0123456789abcdef",
    };
    let control = Control {
        token: 0x3132_3334_3536_3738,
        interval: Duration::from_millis(1000),
        lease: 3,
        silence: Duration::from_secs(30),
        wants_update: false,
        location_unknown: false,
        servers: vec![ServerControl::default(); 2],
    };
    let query = Control {
        wants_update: true,
        servers: vec![
            ServerControl {
                alert: true,
                unknown: false,
            },
            ServerControl {
                alert: false,
                unknown: true,
            },
        ],
        ..control.clone()
    };
    let update = Update {
        token: 0x3132_3334_3536_3738,
        last_control: 2,
        measurement: 7,
        age: Duration::from_millis(250),
        servers: vec![ServerState::Up, ServerState::Drain],
        loads: vec![(LoadId::CPU, 0.5), (LoadId::REQUESTS_PER_SECOND, 120.0)],
    };
    let first = Body::Registration(Cookie::NONE, registration.clone());
    let second = Body::Registration(cookie, registration);
    vec![
        (
            "A Registration of an agent \"web-1\" at \"rack-7\" with two servers: group \"web\", \
             10.0.0.7:80, and group \"mail\", port 80 at the agent's address, weight 2.5. It has \
             no cookie yet; sequence number 1",
            0,
            1,
            first,
        ),
        ("The Challenge to it", 0, 1, Body::Challenge(cookie)),
        (
            "The Registration with the cookie, sequence number 2",
            0,
            2,
            second,
        ),
        (
            "The Acknowledgement: token 3132333435363738, an interval of 1 s, a lease of 3, a \
             silence of 30 s; sequence number 1",
            IDENTIFIER,
            1,
            Body::Acknowledgement(control),
        ),
        (
            "A Query, sequence number 2: the first server is under alert, the second is unknown, \
             and an Update is wanted",
            IDENTIFIER,
            2,
            Body::Query(query),
        ),
        (
            "The Update, sequence number 3: measurement 7, 250 ms old; the first server serves, \
             the second is exiting; CPU 0.5, 120 requests per second",
            IDENTIFIER,
            3,
            Body::Update(update),
        ),
        ("A Stop, sequence number 4", IDENTIFIER, 4, Body::Stop),
        (
            "The Acknowledgement of the Stop",
            IDENTIFIER,
            4,
            Body::StopAcknowledgement,
        ),
        (
            "Register Again, to an Update with sequence number 5",
            IDENTIFIER,
            5,
            Body::RegisterAgain,
        ),
    ]
}

/// The end of the page: run with `UPDATE_DOCS=1` to write it.
#[test]
fn the_manual_has_the_vectors() {
    let mut expected = String::new();
    for (what, identifier, sequence, body) in vectors() {
        let datagram = message::seal_message(NONCE, identifier, sequence, &body, &key());
        let _ = write!(expected, "{what}:\n\n```text\n");
        for line in datagram.chunks(32) {
            let bytes: Vec<String> = line.chunks(4).map(hex).collect();
            let _ = writeln!(expected, "{}", bytes.join(" "));
        }
        expected.push_str("```\n\n");
    }
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reporting-protocol.md"
    );
    let manual = std::fs::read_to_string(path).unwrap();
    let marker = "what the program does.\n\n";
    let (before, after) = manual.split_once(marker).unwrap();
    let expected = expected.trim_end().to_owned() + "\n";
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{marker}{expected}")).unwrap();
    } else {
        assert_eq!(after, expected);
    }
}

#[test]
fn the_vectors_are_read_as_what_they_are() {
    let keys = Keys::new(vec![key()]).unwrap();
    for (what, identifier, sequence, body) in vectors() {
        let datagram = message::seal_message(NONCE, identifier, sequence, &body, &key());
        let to_broker = body.kind().is_from_agent();
        let (header, read) = message::open_message(&datagram, &keys, to_broker).unwrap();
        assert_eq!(read, body, "{what}");
        assert_eq!((header.nonce, header.identifier), (NONCE, identifier));
        assert!(message::open_message(&datagram, &keys, !to_broker).is_err());
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
