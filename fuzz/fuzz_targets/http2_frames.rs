//! A whole exchange between two ends of HTTP/2 without I/O, with bytes of an attacker in between: no panic, bounded
//! memory, and the same outcome however the bytes are cut.
//!
//! The first byte says which role the end has that is attacked, the second one how its input is cut. The rest are bytes
//! of the peer, after its preface and settings.
#![no_main]

use std::time::Duration;

use evenkeel_http2::{
    Config, Connection, Event, Failure, Fields, Key, Next, Opening, PREFACE, Role,
};
use libfuzzer_sys::fuzz_target;

const MAX_STREAMS: u32 = 16;
const MAX_HEAD_BYTES: usize = 8 * 1024;
const WINDOW: u32 = 65_535;

/// Result of some input.
#[derive(Debug, PartialEq)]
struct Outcome {
    failure: Option<Failure>,
    /// Heads and contents of streams, as they came.
    heads: Vec<(u32, Vec<u8>)>,
    content: Vec<(u32, u8)>,
}

fn run(role: Role, input: &[u8], size: usize) -> Outcome {
    let mut end = Connection::new(Config {
        role,
        max_streams: MAX_STREAMS,
        max_head_bytes: MAX_HEAD_BYTES,
        stream_window: WINDOW,
        connection_window: WINDOW,
    });
    let mut outcome = Outcome {
        failure: None,
        heads: Vec::new(),
        content: Vec::new(),
    };
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let hello = match role {
        Role::Server => [PREFACE, &settings].concat(),
        Role::Client => settings.to_vec(),
    };
    assert_eq!(end.receive_bytes(&hello, Duration::ZERO), Ok(()));
    let mut keys: Vec<Key> = Vec::new();
    if role == Role::Client {
        for ends in [true, false] {
            let opening = Opening {
                method: b"GET",
                scheme: b"http",
                authority: Some(b"test"),
                path: b"/",
                ..Opening::default()
            };
            keys.extend(end.open_request(opening, &Fields::new(), ends));
        }
    }
    for part in input.chunks(size.max(1)) {
        if let Err(failure) = end.receive_bytes(part, Duration::ZERO) {
            outcome.failure = Some(failure);
        }
        let mut broken = Vec::new();
        while let Some(event) = end.next_event() {
            match event {
                Event::Request(key) => keys.push(key),
                Event::Broken(key) => broken.push(key),
                _ => {}
            }
        }
        assert!(end.stream_count() <= 2 * MAX_STREAMS as usize);
        assert!(end.unread_bytes() <= WINDOW as usize);
        assert!(end.is_balanced());
        for key in &keys {
            while let Some(head) = end.take_head(*key) {
                // Text that HTTP/1.1 can have, and nobody can add lines to.
                for line in head.fields.text().split(|byte| *byte == b'\n') {
                    assert!(line.is_empty() || line.ends_with(b"\r"));
                    assert!(!line.contains(&0));
                }
                assert!(head.fields.text().len() <= MAX_HEAD_BYTES);
                outcome.heads.push((key.id(), head.fields.text().to_vec()));
                end.give_head(head);
            }
            while let Next::Data(data) = end.read(*key) {
                outcome
                    .content
                    .extend(data.iter().map(|byte| (key.id(), *byte)));
                let n = data.len();
                end.consume_body(*key, n);
            }
        }
        // Whoever serves a stream lets go of it when it breaks. Others may begin then.
        keys.retain(|key| !broken.contains(key));
        for key in broken {
            end.release_stream(key, None);
        }
    }
    for key in keys {
        let _ = end.send_head(key, 200, &Fields::new(), false);
        let _ = end.send_data(key, b"content", true);
        end.release_stream(key, None);
    }
    // A frame of which some is still to come counts as a whole.
    assert!(outcome.failure.is_some() || end.unread_bytes() <= 16_384);
    // Nothing of it is larger than what came, but for answers that a credit bounds.
    assert!(end.pending_output().len() <= 64 * 1024 + 16 * input.len());
    outcome.content.sort();
    outcome.heads.sort();
    outcome
}

fuzz_target!(|input: &[u8]| {
    let [role, size, input @ ..] = input else {
        return;
    };
    let role = match role % 2 {
        0 => Role::Server,
        _ => Role::Client,
    };
    let whole = run(role, input, input.len());
    let pieces = run(role, input, usize::from(*size));
    // Streams that are reset before somebody looks are more if all comes at once.
    let is_flood = |outcome: &Outcome| outcome.failure.is_some_and(|end| end.flood.is_some());
    if is_flood(&whole) || is_flood(&pieces) {
        return;
    }
    assert_eq!(whole.failure, pieces.failure);
    if whole.failure.is_none() {
        // What was reset between two pieces may have been read before.
        for head in &whole.heads {
            assert!(pieces.heads.contains(head));
        }
    }
});
