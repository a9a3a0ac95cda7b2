//! Decisions of the kernel, as a group keeps the decisions of the process.

use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_core::group::{Decision, Group};
use evenkeel_core::hash_terms::{LEAST_BASE, OVER_BOUND};
use evenkeel_core::terms::HOT;
use evenkeel_core::time::Instant;
use evenkeel_core::trace::{Candidate, Explanation};
use evenkeel_kernel::forward::{self as kernel, Family};

use crate::terms::find_forwardable;

/// Lowest cost of a member for one connection, and lowest distance of turns: 1 for people.
const UNIT: f64 = 65_536.0;

/// Parts of a connection in a score.
const PARTS: f64 = 256.0;

/// Form of decisions by the time of turns.
const TURNS: u32 = 2;

/// Form of decisions by a hash of the client's address.
const BY_HASH: u32 = 3;

/// Form of decisions of `prequal`.
const PREQUAL: u32 = 4;

/// Logarithm of a chance of one half.
const LOGARITHM: f64 = 67_108_864.0;

/// Returns a decision for people. `find_address` finds the address of a seat.
pub(crate) fn describe_decision(
    told: &kernel::Decision,
    group: &Group,
    at: Instant,
    find_address: impl Fn(u32) -> Option<SocketAddr>,
) -> Decision {
    let mut members: Vec<Arc<str>> = group
        .members()
        .iter()
        .map(|member| Arc::clone(&member.name))
        .collect();
    let mut find_index = |seat: u32| {
        let address = find_address(seat)?;
        let mut known = group.members().iter();
        let known = known.position(|member| find_forwardable(&member.address) == Some(address));
        Some(known.unwrap_or_else(|| {
            // The member is no longer in the group.
            members.push(address.to_string().into());
            members.len() - 1
        }))
    };
    let mut order: Vec<&kernel::Candidate> = told.candidates.iter().collect();
    order.sort_by_key(|candidate| {
        let is_other = candidate.seat != told.chosen;
        (candidate.score.unwrap_or(u64::MAX), is_other)
    });
    let best = order.first().and_then(|best| best.score).unwrap_or(0);
    let score_of = |candidate: &kernel::Candidate| {
        let score = candidate.score?;
        Some(match told.form {
            TURNS => score.saturating_sub(best) as f64 / UNIT,
            BY_HASH => (score & !OVER_BOUND) as f64 / LOGARITHM / f64::from(LEAST_BASE),
            // Far above the costs of all others.
            PREQUAL if score >= HOT => 1e9 + (score & !HOT) as f64 / UNIT,
            _ => score as f64 / UNIT / PARTS,
        })
    };
    let mut explanation = Explanation::default();
    let mut chosen = None;
    let mut runner_up = None;
    for candidate in order {
        let Some(index) = find_index(candidate.seat) else {
            continue;
        };
        let score = score_of(candidate);
        if candidate.seat == told.chosen {
            chosen = Some((index, score));
        } else if score.is_some() && runner_up.is_none() {
            runner_up = Some((index, score));
        }
        explanation.candidates.push(Candidate {
            index,
            score,
            verdict: describe_candidate(told, candidate, find_address(candidate.seat)),
        });
    }
    let name_of = |index: usize| members.get(index).map(Arc::clone);
    explanation.notes = write_notes(told, chosen, runner_up, name_of);
    let chosen = chosen.and_then(|(index, _)| name_of(index));
    Decision {
        at,
        in_kernel: true,
        strategy: group.strategy().name,
        chosen: Ok(chosen.unwrap_or_else(|| "a member that is gone".into())),
        explanation,
        members,
    }
}

/// Member by index, with the score.
type Scored = Option<(usize, Option<f64>)>;

fn write_notes(
    told: &kernel::Decision,
    chosen: Scored,
    runner_up: Scored,
    name_of: impl Fn(usize) -> Option<Arc<str>>,
) -> Vec<String> {
    let mut notes = vec![format!(
        "the kernel decided for the client {}, by the terms that the balancer writes (forward = \"kernel\"); one decision a \
         second is kept",
        told.client
    )];
    match told.tries {
        0 => {}
        1 => notes.push("another member had not accepted the connection".into()),
        tries => notes.push(format!(
            "{tries} other members had not accepted the connection"
        )),
    }
    let next = runner_up.and_then(|(index, score)| Some((name_of(index)?, score?)));
    let best = chosen.and_then(|(_, score)| score);
    notes.push(match (next, best) {
        (Some((name, score)), Some(best)) if told.form == TURNS => {
            format!("next after it: {name}, {:.3} turns later", score - best)
        }
        (Some((name, score)), Some(best)) if told.form == PREQUAL && score >= 1e9 && best < 1e9 => {
            format!("next after it: {name}, which is hot")
        }
        (Some((name, _)), _) if told.form == BY_HASH => {
            format!("next after it for this client's address: {name}")
        }
        (Some((name, score)), Some(best)) if best > 0.0 && score > best => {
            let more = (score / best - 1.0) * 100.0;
            format!("next after it: {name}, with a cost that is {more:.1} % higher")
        }
        (Some((name, _)), _) => format!("next after it: {name}, with the same cost"),
        (None, _) => "no other member could get the connection".into(),
    });
    notes
}

fn describe_candidate(
    told: &kernel::Decision,
    candidate: &kernel::Candidate,
    address: Option<SocketAddr>,
) -> String {
    let kernel::Candidate {
        here,
        others,
        room,
        base,
        requests,
        ..
    } = candidate;
    let mut connections = format!("{here} connections in the kernel and {others} others");
    if *requests > 0 {
        connections += &format!(", {requests} requests under way");
    }
    if let Some(score) = candidate.score {
        let base = f64::from(*base) / UNIT;
        return match told.form {
            BY_HASH => {
                let weight = f64::from(LEAST_BASE) / f64::from(candidate.base);
                let over = if score >= OVER_BOUND {
                    "; over the bound"
                } else {
                    ""
                };
                format!("weight {weight:.3}; {connections}{over}")
            }
            TURNS => format!("a turn every {base:.3}; {connections}"),
            PREQUAL if score >= HOT => {
                let load = (score & !HOT) as f64 / UNIT;
                format!("hot, with a load of {load:.2} connections for the weight; {connections}")
            }
            _ => format!("cost of one connection {base:.3}; {connections}"),
        };
    }
    let is_of_family = address
        .is_some_and(|address| Family::of_address(&address) == Family::of_address(&told.client));
    match (is_of_family, room) {
        (false, _) => "not eligible: an address of another family than the client's".into(),
        (true, 0) => "not eligible: gets no new connections".into(),
        (true, room) if here >= room => {
            format!("not eligible: at its limit of connections; {connections}")
        }
        (true, _) => "not eligible: has not accepted the connection before".into(),
    }
}

#[cfg(test)]
mod tests;
