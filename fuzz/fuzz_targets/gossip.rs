//! A balancer of a fleet, another one, and somebody who has the key: whatever is sent and whenever,
//! nobody panics, and what is understood is written again to the same bytes.
#![no_main]

use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_core::load::LoadValue;
use evenkeel_core::time::Instant;
use evenkeel_gossip::message::{Hello, NotesPart, Welcome};
use evenkeel_gossip::reading::{LOADS, Reading};
use evenkeel_gossip::seal::{self, Header, Kind};
use evenkeel_gossip::work_report::WorkReport;
use evenkeel_gossip::{Fleet, Id, Settings};
use evenkeel_wire::reporting::keys::{Key, Keys};
use libfuzzer_sys::fuzz_target;

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 7000))
}

fn fleet(last: u8, keys: &Keys, now: Instant) -> Fleet {
    let settings = Settings {
        id: Id {
            address: address(last),
            name: format!("lb-{last}").into(),
            life: 1,
        },
        session: last.into(),
        keys: keys.clone(),
        seeds: vec![address(1), address(2)],
    };
    let mut fleet = Fleet::new(settings, fastrand::Rng::with_seed(last.into()), now);
    fleet.set_groups(["a", "b"], now);
    fleet
}

fuzz_target!(|data: &[u8]| {
    let key = Key::new(1, &[7; 32]).unwrap();
    let keys = Keys::new(vec![key.clone()]).unwrap();
    // Two years: what may be said to have lasted for a year did so, and is written again as it was.
    let mut now = Instant::from_nanos(2 * 366 * 24 * 3600 * 1_000_000_000);
    let mut both = [fleet(1, &keys, now), fleet(2, &keys, now)];
    // The token that the first has given the second.
    let mut token = 0;
    for part in data.split(|byte| *byte == 0xff) {
        let Some((&what, body)) = part.split_first() else {
            continue;
        };
        now = now.after(Duration::from_millis(u64::from(what) * 10));
        if let Some(hello) = Hello::decode(body) {
            assert_eq!(hello.encode(), body);
        }
        if let Some(welcome) = Welcome::decode(body) {
            assert_eq!(welcome.encode(), body);
        }
        if let Some(sheet) = NotesPart::decode(body, now) {
            assert_eq!(sheet.encode(now), body);
        }
        if let Some(said) = Reading::decode(body) {
            let mut bytes = Vec::new();
            for (location, reading) in &said {
                assert_eq!(
                    reading.loads().count() + reading.unknown().count(),
                    LOADS.len()
                );
                reading.encode(*location, &mut bytes);
            }
            assert_eq!(bytes, body);
        }
        if let Some(report) = WorkReport::decode(body) {
            assert_eq!(WorkReport::decode(&report.encode()).as_ref(), Some(&report));
        }
        for fleet in &mut both {
            fleet.poll(now);
            let own = |_| Reading::new(|_| LoadValue::new(f64::from(what)).ok());
            fleet.share_loads("b", &[1, u64::from(what)], own, now);
            if let Some(report) = WorkReport::decode(body) {
                fleet.announce_work("b", report.members.into_iter());
            }
            fleet.work_of_others("b", now);
            fleet.decide_alerts("a", &[u64::from(what), 1], 1, now);
        }
        for from in [0, 1] {
            for (to, datagram) in both[from].take_out() {
                if to == address(2 - from as u8)
                    && let Ok((header, body)) = seal::open_datagram(&datagram, &keys)
                {
                    if header.kind == Kind::Welcome && from == 0 {
                        token = Welcome::decode(body).unwrap().token;
                    }
                    both[1 - from].receive_datagram(&datagram, now);
                }
            }
        }
        let _ = both[0].receive_datagram(body, now);
        let Some(kind) = Kind::from_repr(what % 10) else {
            continue;
        };
        for token in [0, token] {
            let count = 1000 + u64::from(what);
            let header = Header { kind, token, count };
            let _ = both[0].receive_datagram(&seal::seal_datagram(header, body, &key), now);
        }
    }
});
