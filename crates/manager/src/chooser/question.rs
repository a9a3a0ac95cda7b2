//! Questions to choosers, and their answers: JSON.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use evenkeel_core::address::Address;
use evenkeel_core::group::{Group, Request};
use serde::{Deserialize, Serialize};

/// Properties of a request that a question names, beside the group.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct About<'a> {
    /// Rule that carries the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<&'a str>,
    /// Cluster of a negotiation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<&'a str>,
    /// Class of a negotiation, if the client names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<&'a str>,
    /// Method, with HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<&'a str>,
    /// Host with port, with HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<&'a str>,
    /// Path and query, with HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<&'a str>,
    /// Part of the request that `hash_key` of the group names, with HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<&'a str>,
}

#[derive(Serialize)]
struct Question<'a> {
    group: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<IpAddr>,
    #[serde(flatten)]
    about: &'a About<'a>,
    candidates: Vec<Candidate<'a>>,
}

#[derive(Serialize)]
struct Candidate<'a> {
    /// Identity for programs.
    member: &'a str,
    /// Name for people.
    name: &'a str,
    address: String,
    location: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<&'a str>,
    weight: f32,
    in_flight: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_seconds: Option<f32>,
    loads: BTreeMap<String, f32>,
}

#[derive(Deserialize)]
struct Answer {
    member: String,
}

/// Writes the question about a request: its candidates are the members that may be picked.
pub(super) fn write(group: &Group, request: &Request<'_>, about: &About<'_>) -> Vec<u8> {
    let view = group.view_for(request).widened();
    let max_age = group.settings().load_max_age;
    let now = request.now;
    let candidate = |index: usize| {
        let member = group.members().get(index)?;
        let loads = member.location.list_loads(now);
        let fresh = loads.filter(|load| !load.expired && now.since(load.at) <= max_age);
        Some(Candidate {
            member: &member.name,
            name: member.shown_name(),
            address: member.address.to_string(),
            location: member.location.name(),
            zone: member.zone.as_deref(),
            weight: view.member_weight(index),
            in_flight: view.slot(index).in_flight(),
            latency_seconds: view.latency(index),
            loads: fresh
                .map(|load| (load.id.to_string(), load.value.get()))
                .collect(),
        })
    };
    let question = Question {
        group: group.name(),
        client: request.client,
        about,
        candidates: view.eligible_indices().filter_map(candidate).collect(),
    };
    // Texts, numbers and nothing else: that does not fail. An empty question would be answered with an error.
    serde_json::to_vec(&question).unwrap_or_default()
}

/// Reads the member that an answer names. Other keys are left to the future.
pub(super) fn named_member(answer: &[u8]) -> Option<String> {
    let answer: Answer = serde_json::from_slice(answer).ok()?;
    Some(answer.member)
}

/// Finds a member by its identity, its name or its address.
pub(super) fn find(group: &Group, named: &str) -> Option<usize> {
    let members = group.members();
    let by_identity = || members.iter().position(|member| *member.name == *named);
    let by_name = || {
        let mut names = members.iter().map(|member| member.given_name.as_deref());
        names.position(|name| name == Some(named))
    };
    let by_address = || {
        let address = Address::from(named.parse::<SocketAddr>().ok()?);
        members.iter().position(|member| member.address == address)
    };
    by_identity().or_else(by_name).or_else(by_address)
}
