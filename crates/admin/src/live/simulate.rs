//! Simulation of other strategies for a running group.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use evenkeel_core::strategy::Values;
use evenkeel_manager::measured::{Measured, MeasuredMember, simulated_member, strategy_of};
use evenkeel_sim::what_if::{Forecast, Question};
use tokio::sync::oneshot;

use super::rounding::round_value;
use super::wire::{
    Assumed, AssumedMember, Simulate, Simulated, SimulatedMember, SimulatedStrategy,
};
use crate::body::Body;
use crate::error::ApiError;
use crate::sources::Sources;

/// Strategies at once.
const STRATEGIES: usize = 4;

/// Requests, unless somebody says otherwise, and the fewest and most.
const REQUESTS: u32 = 20_000;
const FEWEST_REQUESTS: u32 = 100;
const MOST_REQUESTS: u32 = 200_000;

/// Most members of a simulated group.
const MEMBERS: usize = 10_000;

/// Further members that are like the others.
const MORE_MEMBERS: u32 = 100;

/// The longest time that it may take. Clients wait for ten seconds.
const LONGEST: Duration = Duration::from_secs(8);

/// Priority of the simulation's thread beside the threads that forward (nice).
const NICE: i32 = 10;

pub(super) async fn simulate_group(
    State(sources): State<Arc<Sources>>,
    Path(group): Path<String>,
    Body(body): Body<Simulate>,
) -> Result<Json<Simulated>, ApiError> {
    let strategies = body.strategies.iter().map(|strategy| {
        let params = strategy.params.iter();
        let params: Vec<_> = params.map(|(name, value)| (name.clone(), *value)).collect();
        strategy_of(&strategy.name, &params).map_err(|error| sources.explain_refusal(error))
    });
    let strategies: Vec<Values> = strategies.collect::<Result<_, _>>()?;
    if !(1..=STRATEGIES).contains(&strategies.len()) {
        let found = strategies.len();
        return Err(bad_request(format!(
            "{found} strategies; expected 1 to {STRATEGIES}"
        )));
    }
    let requests = body.requests.unwrap_or(REQUESTS);
    if !(FEWEST_REQUESTS..=MOST_REQUESTS).contains(&requests) {
        return Err(bad_request(format!(
            "{requests} requests; expected {FEWEST_REQUESTS} to {MOST_REQUESTS}"
        )));
    }
    let measured = sources.manager.measured_group(&group);
    let measured = measured.map_err(|error| sources.explain_refusal(error))?;
    let (question, assumed) = build_question(measured, &group, &body, requests)?;
    let place = Arc::clone(&sources.live.simulating).try_acquire_owned();
    let place = place.map_err(|_| {
        let detail =
            "another simulation is running, and only one runs at a time; try again in a few seconds";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail)
    })?;
    let stop = Stop::default();
    let stopped = Arc::clone(&stop.0);
    let (sender, done) = oneshot::channel();
    let started = Instant::now();
    let play = move || {
        // If it matters as much as others, it is slower than it could be: no more.
        let _ = rustix::process::setpriority_process(None, NICE);
        let mut go_on = || started.elapsed() < LONGEST && !stopped.load(Ordering::Relaxed);
        let all = strategies.iter();
        let forecasts: Option<Vec<(&'static str, Forecast)>> = all
            .map(|of| Some((of.kind().name, question.play_strategy(of, &mut go_on)?)))
            .collect();
        drop(place);
        // Whoever has asked may be gone.
        let _ = sender.send(forecasts);
    };
    let thread = std::thread::Builder::new().name("simulation".into());
    thread.spawn(play).map_err(|error| {
        let detail = format!("cannot start a thread for the simulation: {error}");
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail)
    })?;
    let forecasts = done.await.ok().flatten().ok_or_else(|| {
        ApiError::invalid(
            "too_long",
            format!("the simulation was not done within {LONGEST:?}: ask for fewer requests or strategies"),
        )
    })?;
    drop(stop);
    let results = forecasts.into_iter();
    let results =
        results.map(|(strategy, forecast)| strategy_result(strategy, forecast, &assumed.members));
    let results = results.collect();
    Ok(Json(Simulated { assumed, results }))
}

/// Stops a simulation that nobody waits for any more.
#[derive(Default)]
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn bad_request(detail: String) -> ApiError {
    ApiError::invalid("bad_simulation", detail)
}

/// Returns the simulation to play, and what of it was not measured.
fn build_question(
    measured: Measured,
    group: &str,
    body: &Simulate,
    requests: u32,
) -> Result<(Question, Assumed), ApiError> {
    let Measured {
        mut config,
        members,
        rate,
        reports,
    } = measured;
    let mut notes = vec![
        "Service times are taken to be exponential, and requests to come at random (Poisson)."
            .to_owned(),
        "Clients that wait, keys that stay with members, caches and failures are not simulated."
            .to_owned(),
    ];
    let rate = simulated_rate(body.rate, rate)?;
    let mut assumed = match &body.members {
        Some(given) => {
            replace(&mut config, &members, given)?;
            given.clone()
        }
        None => assume_members(&members, &mut notes)?,
    };
    check_counts(assumed.len(), body.more_members)?;
    if body.more_members > 0 {
        add_members(&mut config, &mut assumed, body.more_members, &mut notes);
    }
    match reports {
        Some(id) => notes.push(format!(
            "Members report the load {id} once a second, as it is in the simulation."
        )),
        None => {
            notes.push("No member reports a load: strategies that go by loads see none.".into())
        }
    }
    notes.extend(note_overload(rate, &config, &assumed));
    let of = |member: &AssumedMember| {
        (
            Duration::from_secs_f64(member.mean_ms / 1e3),
            member.concurrency as usize,
        )
    };
    let question = Question {
        config,
        group: group.into(),
        members: assumed.iter().map(of).collect(),
        rate,
        requests,
        reports,
        seed: body.seed.unwrap_or(1),
    };
    let assumed = Assumed {
        rate: round_value(rate),
        members: assumed,
        notes,
    };
    Ok((question, assumed))
}

/// Returns the requests per second to simulate: those that were given, or those that were measured.
fn simulated_rate(given: Option<f64>, measured: f64) -> Result<f64, ApiError> {
    let rate = given.unwrap_or(measured);
    if rate > 0.0 && rate <= 1e7 {
        return Ok(rate);
    }
    Err(match given {
        Some(_) => bad_request(format!(
            "rate {rate}; expected requests per second, above 0 to 10,000,000"
        )),
        None => ApiError::invalid(
            "no_traffic",
            "the group had no requests in the last ten seconds: send some, or give a rate",
        ),
    })
}

/// Refuses groups that are too small or too large to simulate.
fn check_counts(members: usize, more_members: u32) -> Result<(), ApiError> {
    if !(1..=MEMBERS).contains(&members) {
        return Err(bad_request(format!(
            "{members} members; expected 1 to {MEMBERS}"
        )));
    }
    if more_members > MORE_MEMBERS {
        return Err(bad_request(format!(
            "{more_members} more members; expected 0 to {MORE_MEMBERS}"
        )));
    }
    Ok(())
}

/// Returns a note if there are more requests than the members can serve.
fn note_overload(
    rate: f64,
    config: &evenkeel_manager::config::Config,
    assumed: &[AssumedMember],
) -> Option<String> {
    let used = config.groups.iter().flat_map(|group| &group.members);
    let used = used.zip(assumed).filter(|(member, _)| !member.drain);
    let capacity: f64 = used
        .map(|(_, of)| f64::from(of.concurrency) * 1e3 / of.mean_ms)
        .sum();
    (rate > capacity).then(|| {
        format!(
            "{rate:.1} requests per second are more than these members can serve ({capacity:.1}): queues get longer until the end."
        )
    })
}

/// Puts members that were given in the place of those of the group, which are `measured`.
fn replace(
    config: &mut evenkeel_manager::config::Config,
    measured: &[MeasuredMember],
    given: &[AssumedMember],
) -> Result<(), ApiError> {
    for member in given {
        let is_time = member.mean_ms > 0.0 && member.mean_ms <= 1e6;
        if !is_time || !(1..=100_000).contains(&member.concurrency) {
            return Err(bad_request(format!(
                "member {:?}: expected a mean_ms above 0 to 1,000,000, and a concurrency of 1 to 100,000",
                member.name
            )));
        }
    }
    for group in &mut config.groups {
        let before = std::mem::take(&mut group.members);
        let next = given.iter().enumerate().map(|(index, member)| {
            let is_own = |of: &MeasuredMember| of.name == member.name || of.member == member.name;
            let own = measured.iter().position(is_own);
            let mut next = own
                .and_then(|own| before.get(own).cloned())
                .unwrap_or_default();
            let place = simulated_member(index);
            (next.host, next.port) = (place.host, place.port);
            next
        });
        group.members = next.collect();
    }
    Ok(())
}

/// Adds members that are like those that are there.
fn add_members(
    config: &mut evenkeel_manager::config::Config,
    assumed: &mut Vec<AssumedMember>,
    count: u32,
    notes: &mut Vec<String>,
) {
    let first = assumed.len();
    let mean_ms = assumed.iter().map(|of| of.mean_ms).sum::<f64>() / first.max(1) as f64;
    let mut at_once: Vec<u32> = assumed.iter().map(|of| of.concurrency).collect();
    at_once.sort_unstable();
    let concurrency = at_once.get(first / 2).copied().unwrap_or(1);
    for group in &mut config.groups {
        let mut usual = group.members.iter();
        let usual = usual
            .find(|member| !member.drain && !member.backup)
            .cloned();
        let usual = usual.unwrap_or_default();
        group.members.extend((0..count as usize).map(|number| {
            let place = simulated_member(first + number);
            let mut member = usual.clone();
            (member.host, member.port) = (place.host, place.port);
            member
        }));
    }
    assumed.extend((1..=count).map(|number| AssumedMember {
        name: format!("more-{number}"),
        mean_ms: round_value(mean_ms).max(1e-3),
        concurrency,
    }));
    notes.push(format!(
        "{count} more members are taken to be as fast as the others are on average."
    ));
}

/// Returns the members that are assumed, by what was measured of them.
fn assume_members(
    members: &[MeasuredMember],
    notes: &mut Vec<String>,
) -> Result<Vec<AssumedMember>, ApiError> {
    let means: Vec<f64> = members
        .iter()
        .filter_map(|of| of.mean)
        .map(|mean| mean.as_secs_f64() * 1e3)
        .collect();
    if means.is_empty() {
        return Err(ApiError::invalid(
            "no_traffic",
            "no member has answered a request yet: send some, or give members with their mean_ms",
        ));
    }
    let usual = means.iter().sum::<f64>() / means.len() as f64;
    let unknown = members.len() - means.len();
    if unknown > 0 {
        notes.push(format!(
            "{unknown} members have not answered yet, and are taken to be as fast as the others."
        ));
    }
    let unlearnt = members.iter().filter(|of| of.concurrency.is_none()).count();
    if unlearnt > 0 {
        notes.push(format!(
            "It was not learnt how many requests {unlearnt} members work on at once: twice their average number of requests in flight is taken. If it is more, these members could take more than the simulation says."
        ));
    }
    let out = members.iter().filter(|of| !of.is_used).count();
    if out > 0 {
        notes.push(format!(
            "{out} members are not used now, nor in the simulation."
        ));
    }
    let assumed = members.iter().map(|member| AssumedMember {
        name: member.name.clone(),
        // To a digit behind the microsecond, and never nothing.
        mean_ms: round_value(member.mean.map_or(usual, |mean| mean.as_secs_f64() * 1e3)).max(1e-3),
        concurrency: member
            .concurrency
            .unwrap_or_else(|| (member.in_flight * 2.0).ceil() as u32)
            .clamp(1, 100_000),
    });
    Ok(assumed.collect())
}

fn strategy_result(
    strategy: &str,
    forecast: Forecast,
    members: &[AssumedMember],
) -> SimulatedStrategy {
    let ms = |time: Duration| round_value(time.as_secs_f64() * 1e3);
    let [p50, p90, p99] = forecast.quantiles;
    let shares = members.iter().zip(forecast.members);
    SimulatedStrategy {
        strategy: strategy.into(),
        p50_ms: ms(p50),
        p90_ms: ms(p90),
        p99_ms: ms(p99),
        mean_ms: ms(forecast.mean),
        failed: round_value(forecast.failed),
        queue_p99: forecast.queue,
        shares: shares
            .map(|(member, (share, busy))| SimulatedMember {
                member: member.name.clone(),
                share: round_value(share),
                utilisation: round_value(busy),
            })
            .collect(),
    }
}
