//! Any bytes at a negotiator: no panic, each answer is a well-formed response, and a client
//! is sent to nobody but a member, to the path that it asked for.
#![no_main]

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use evenkeel_broker::negotiator::Negotiator;
use evenkeel_manager::Manager;
use evenkeel_net::Clock;
use libfuzzer_sys::fuzz_target;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

/// Where clients of the members are sent.
const MEMBERS: [&str; 2] = ["http://one.example", "http://127.0.0.1:8002"];

const CONFIG: &str = r#"
[group.shop]
members = [
    { address = "127.0.0.1:8001", url = "http://one.example" },
    "127.0.0.1:8002",
]
health_check = false

[negotiator]
listen = "127.0.0.1:0"

[cluster.shop]
group = "shop"
hosts = ["www.shop.example", "[::1]"]

[cluster.shop.class.gold]
quantum = "1m"
"#;

fuzz_target!(|bytes: &[u8]| {
    let mut stream = TcpStream::connect(negotiator()).expect("it listens");
    // The other side may have closed already.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    let mut rest = &all[..];
    while !rest.is_empty() {
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut answer = httparse::Response::new(&mut fields);
        let length = match answer.parse(rest) {
            Ok(httparse::Status::Complete(length)) => length,
            // It may have been reset on the way.
            Ok(httparse::Status::Partial) => return,
            Err(error) => panic!("{error}: {}", rest.escape_ascii()),
        };
        let mut body = 0;
        for field in answer.headers.iter() {
            let value = std::str::from_utf8(field.value).expect("ASCII");
            match &*field.name.to_ascii_lowercase() {
                "content-length" => body = value.parse().expect("a number"),
                "location" => {
                    let path = MEMBERS.iter().find_map(|at| value.strip_prefix(at));
                    let path = path.unwrap_or_else(|| panic!("sent to {value:?}"));
                    assert!(path.starts_with('/'), "{value:?}");
                    let asked_for = |asked: &str| {
                        let asked = asked.as_bytes();
                        bytes.windows(asked.len()).any(|part| part == asked)
                    };
                    // A URL may leave out the path `/`, before a query, too.
                    let query = path.strip_prefix('/').filter(|rest| rest.starts_with('?'));
                    let is_asked = path == "/" || asked_for(path) || query.is_some_and(asked_for);
                    assert!(is_asked, "nobody asked for {path:?}");
                }
                _ => {}
            }
        }
        // An answer to HEAD says the length of what it does not have.
        let after = rest.get(length..).unwrap_or_default();
        rest = match after.get(body..) {
            Some(next) if !after.starts_with(b"HTTP/1.") => next,
            _ if after.starts_with(b"HTTP/1.") || after.is_empty() => after,
            _ => return,
        };
    }
});

fn negotiator() -> SocketAddr {
    static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();
    *ADDRESS.get_or_init(|| {
        let clock = Clock::start();
        let negotiator = Negotiator::new(clock);
        let manager = Manager::new(clock, Arc::new(negotiator.clone()));
        let config = evenkeel_config::parse("fuzz", CONFIG).expect("it is valid");
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(manager.apply_config(config))
            .expect("it is applied");
        let address = negotiator.local_addresses()[0];
        // They serve as long as the process lives.
        std::mem::forget((negotiator, manager));
        address
    })
}

/// Connections that still end in the negotiator's thread look like leaks between two runs.
#[unsafe(no_mangle)]
extern "C" fn __lsan_is_turned_off() -> i32 {
    1
}
