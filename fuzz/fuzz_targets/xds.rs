//! Any bytes as requests of a client of xDS, in both variants, and as load reports of a group: no panic, at most one
//! answer of each type without a word of the client, and answers that can be read.
#![no_main]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::group::{Group, GroupSettings, GroupState};
use evenkeel_core::load::Location;
use evenkeel_core::member::{Member, MemberId, Slot, Weight};
use evenkeel_core::strategy::{self, Values};
use evenkeel_core::time::Instant;
use evenkeel_xds::content::{Content, Endpoints};
use evenkeel_xds::kind::Kind;
use evenkeel_xds::ledger::Ledger;
use evenkeel_xds::proto::{DeltaDiscoveryResponse, DiscoveryResponse, LoadStatsRequest};
use evenkeel_xds::stream::{Limits, Stream, Variant};
use evenkeel_xds::world::ResourceSet;
use libfuzzer_sys::fuzz_target;
use prost::Message;

/// Requests are apart by this.
const END: &[u8] = b"\xff\xffEND";

/// A group `pool` with two members, `a` and `b`.
fn group() -> Arc<Group> {
    let members = ["a", "b"].into_iter().zip(80..).map(|(name, port)| Member {
        id: MemberId(port.into()),
        name: name.into(),
        given_name: None,
        host: "10.0.0.1".into(),
        address: std::net::SocketAddr::from(([10, 0, 0, 1], port)).into(),
        max_connections: None,
        location: Arc::new(Location::new(name.to_owned())),
        zone: None,
        slot: Arc::new(Slot::new(Weight::ONE)),
    });
    let values = Values::defaults(strategy::find("round_robin").unwrap());
    let (settings, state) = (GroupSettings::default(), Arc::<GroupState>::default());
    Arc::new(Group::new(
        "pool",
        settings,
        &values,
        members.collect(),
        state,
    ))
}

fuzz_target!(|bytes: &[u8]| {
    let mut world = ResourceSet::default();
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
            if stream.take_request(request).is_err() {
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
                assert!(of.name_count() <= 16);
            }
            match after.strip_prefix(END) {
                Some(next) => rest = next,
                None => break,
            }
        }
    }
    if let Ok(report) = LoadStatsRequest::decode(bytes) {
        let mut ledger = Ledger::default();
        let group = group();
        for second in 1..3 {
            let of = |name: &str| (name == "pool").then(|| Arc::clone(&group));
            let now = Instant::ZERO.after(Duration::from_secs(second));
            let taken = ledger.take(1, &report, Duration::from_secs(1), of, now);
            let places = report.cluster_stats.iter();
            let places = places.flat_map(|stats| &stats.upstream_locality_stats);
            let entries = places.map(|place| place.upstream_endpoint_stats.len().max(1));
            let most = report.cluster_stats.len() + entries.sum::<usize>();
            assert!(taken.members + taken.unknown <= most);
        }
        ledger.forget_client(1, Instant::ZERO.after(Duration::from_secs(3)));
    }
});
