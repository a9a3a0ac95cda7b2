//! Groups for the tests of strategies.
#![allow(dead_code, clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::group::{Group, GroupSettings, Outcome, Request};
use evenkeel_core::load::{LoadId, LoadValue, Location};
use evenkeel_core::member::{Member, MemberId, Slot, Weight};
use evenkeel_core::strategy::{self, Values};
use evenkeel_core::time::Instant;

/// Milliseconds after the origin.
pub(crate) fn at_ms(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

pub(crate) fn build_members(weights: &[f64]) -> Vec<Member> {
    let member = |(i, &weight): (usize, &f64)| Member {
        id: MemberId(i as u64),
        name: format!("m{i}").into(),
        given_name: None,
        address: std::net::SocketAddr::from(([192, 0, 2, 1], 80)).into(),
        host: "192.0.2.1".into(),
        max_connections: None,
        location: Arc::new(Location::new(format!("l{i}"))),
        zone: None,
        slot: Arc::new(Slot::new(Weight::new(weight).unwrap())),
    };
    weights.iter().enumerate().map(member).collect()
}

pub(crate) fn values(strategy: &str, params: &[(&str, f64)]) -> Values {
    let mut values = Values::defaults(strategy::find(strategy).unwrap());
    for (name, value) in params {
        values.set(name, *value).unwrap();
    }
    values
}

pub(crate) fn build_group(values: &Values, settings: GroupSettings, members: Vec<Member>) -> Group {
    Group::new("g", settings, values, members, Arc::default())
}

pub(crate) fn group_with(strategy: &str, weights: &[f64]) -> Group {
    let values = values(strategy, &[]);
    build_group(&values, GroupSettings::default(), build_members(weights))
}

pub(crate) fn report_load(group: &Group, index: usize, id: LoadId, load: f64, ms: u64) {
    let value = LoadValue::new(load).unwrap();
    let location = &group.members()[index].location;
    location.report_load(id, value, at_ms(ms)).unwrap();
}

/// Binds a request to the member, which answers after `took_ms`.
pub(crate) fn answer_request(
    group: &Group,
    index: usize,
    outcome: Outcome,
    from_ms: u64,
    took_ms: u64,
) {
    let ticket = group.bind(index, at_ms(from_ms)).unwrap();
    ticket.finish(outcome, at_ms(from_ms + took_ms));
}

/// Requests that are answered before the next one comes: how many each member got.
pub(crate) fn count_picks(group: &Group, picks: usize, ms: u64, seed: u64) -> Vec<usize> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut counts = vec![0; group.members().len()];
    for _ in 0..picks {
        let ticket = group.pick(&Request::at_time(at_ms(ms)), &mut rng).unwrap();
        counts[ticket.member_index()] += 1;
    }
    counts
}

/// Every strategy, with its default parameters.
pub(crate) fn all_strategies() -> impl Iterator<Item = &'static str> {
    strategy::REGISTRY.iter().map(|kind| kind.name)
}

pub(crate) const SECOND: Duration = Duration::from_secs(1);
