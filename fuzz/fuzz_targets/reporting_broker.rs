//! A broker, an agent, and somebody who has the key: whatever they send and whenever,
//! nobody panics, no answer is longer than what it answers, and only so many agents are
//! known.
#![no_main]

use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_core::time::Instant;
use evenkeel_wire::reporting::client::{Poll, Session};
use evenkeel_wire::reporting::keys::{Key, Keys};
use evenkeel_wire::reporting::message::{self, Registration};
use evenkeel_wire::reporting::server::{Broker, Peer, Settings};
use libfuzzer_sys::fuzz_target;

const MAX_AGENTS: usize = 3;

fn peer(last: u8) -> Peer {
    Peer {
        socket: 0,
        address: SocketAddr::from(([10, 0, 0, last], 5000)),
    }
}

fuzz_target!(|data: &[u8]| {
    let key = Key::new(1, &[7; 32]).unwrap();
    let keys = Keys::new(vec![key.clone()]).unwrap();
    let settings = Settings {
        interval: Duration::from_secs(1),
        lease: 3,
        keepalive: Duration::from_secs(10),
        forget: Duration::from_secs(60),
        max_agents: MAX_AGENTS,
    };
    let mut rng = fastrand::Rng::with_seed(1);
    let mut broker = Broker::new(settings, keys.clone(), &[9; 32], rng.fork()).unwrap();
    let mut now = Instant::from_nanos(1);
    let registration = Registration::new("rack", "agent", Vec::new()).unwrap();
    let mut session = Session::new(registration, keys, now, rng);
    // The last answer to somebody else, of whom parts are used again.
    let mut last = Vec::new();
    let mut rest = data;
    while let [what, len, tail @ ..] = rest {
        let (bytes, tail) = tail.split_at_checked((*len).into()).unwrap_or((tail, &[]));
        rest = tail;
        let mut queries = Vec::new();
        match what % 6 {
            // Time passes.
            0 => {
                now = now.after(Duration::from_millis(20) * u32::from(*len));
                broker.poll(now, &mut queries);
            }
            // The agent does what it has to.
            1 => {
                session.update_loads(&[], &[], now);
                while let Poll::Send(datagram) = session.poll(now) {
                    let (_, answer) = broker.receive_datagram(peer(1), &datagram, now);
                    if let Some(answer) = answer {
                        assert!(answer.len() <= datagram.len());
                        let _ = session.receive_datagram(&answer, now);
                    }
                }
            }
            // Somebody sends anything, to either.
            2 => {
                assert!(broker.receive_datagram(peer(2), bytes, now).1.is_none());
                assert!(session.receive_datagram(bytes, now).is_err());
            }
            // Or a message with a right code: of a registration of their own, or the
            // agent's, with the last cookie or token.
            kind => {
                let mut message = message::MAGIC.to_vec();
                message.extend([message::VERSION, kind - 2, 0, 1]);
                let (nonce, identifier) = match what & 0x80 {
                    0 => (u64::from(*what), 0),
                    _ => (session.nonce(), session.identifier().unwrap_or(0)),
                };
                message.extend(nonce.to_be_bytes());
                message.extend(identifier.to_be_bytes());
                message.extend([0, 0, 0, 0, 0, 0, 0, *len]);
                if what & 0x40 != 0 {
                    message.extend(&last);
                }
                message.extend(bytes);
                key.sign_message(&mut message);
                let _ = session.receive_datagram(&message, now);
                let (_, answer) = broker.receive_datagram(peer(what & 3), &message, now);
                if let Some(answer) = answer {
                    assert!(answer.len() <= message.len());
                    let _ = session.receive_datagram(&answer, now);
                    let body = &answer[message::HEADER_LEN..];
                    last = body[..body.len().min(24)].to_vec();
                }
            }
        }
        for (_, query) in queries {
            assert!(query.len() <= message::MAX_DATAGRAM);
            let _ = session.receive_datagram(&query, now);
        }
        assert!(broker.list_agents().count() <= MAX_AGENTS);
    }
});
