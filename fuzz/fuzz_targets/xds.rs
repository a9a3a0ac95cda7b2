//! Any bytes as requests of a client of xDS, in both variants, and as load reports: no panic, at most one
//! answer of each type without a word of the client, and answers that can be read.
#![no_main]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::time::Instant;
use evenkeel_xds::content::{Content, Endpoints};
use evenkeel_xds::kind::Kind;
use evenkeel_xds::ledger::Ledger;
use evenkeel_xds::proto::{DeltaDiscoveryResponse, DiscoveryResponse, LoadStatsRequest};
use evenkeel_xds::stream::{Limits, Stream, Variant};
use evenkeel_xds::world::World;
use libfuzzer_sys::fuzz_target;
use prost::Message;

/// Requests are apart by this.
const END: &[u8] = b"\xff\xffEND";

fuzz_target!(|bytes: &[u8]| {
    let mut world = World::default();
    for name in ["a", "b", "pool"] {
        let name: Arc<str> = name.into();
        world.set(Kind::Listener, &name, Content::Listener);
        world.set(Kind::Route, &name, Content::Route);
        let nobody = Endpoints {
            policy: evenkeel_config::XdsPolicy::Weights,
            order: None,
            members: Vec::new(),
        };
        world.set(Kind::Endpoints, &name, Content::Endpoints(nobody));
    }
    let limits = Limits {
        subscriptions: 16,
        response: 100,
    };
    for variant in [Variant::StateOfTheWorld, Variant::Incremental] {
        let mut stream = Stream::new(variant, "e".into(), limits);
        let mut rest = bytes;
        loop {
            let at = rest.windows(END.len()).position(|window| window == END);
            let (request, after) = rest.split_at(at.unwrap_or(rest.len()));
            if stream.request(request).is_err() {
                break;
            }
            let mut kinds = BTreeSet::new();
            while let Some(answer) = stream.next(&world) {
                assert!(kinds.insert(answer.kind), "one at a time");
                match variant {
                    Variant::StateOfTheWorld => {
                        DiscoveryResponse::decode(answer.bytes).unwrap();
                    }
                    Variant::Incremental => {
                        DeltaDiscoveryResponse::decode(answer.bytes).unwrap();
                    }
                }
            }
            for (_, of) in stream.subscriptions() {
                assert!(of.names() <= 16);
            }
            match after.strip_prefix(END) {
                Some(next) => rest = next,
                None => break,
            }
        }
    }
    if let Ok(report) = LoadStatsRequest::decode(bytes) {
        let mut ledger = Ledger::default();
        let taken = ledger.take(1, &report, Duration::from_secs(1), |_| None, Instant::ZERO);
        assert_eq!(taken.members, 0);
    }
});
