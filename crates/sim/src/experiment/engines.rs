//! Engines of a scenario, and the requests for them.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_manager::config::scenario::{
    Engines, PromptKind, Prompts, Router as Wanted, Scenario as Text,
};
use evenkeel_manager::config::{Problem, read_file};

use crate::engine::duration_nanos;
use crate::inference::prompts::{AgentPrompts, Clients, Flood, SharedPrompts, Trace, Workload};
use crate::inference::{EngineModel, EngineScenario, Router, play_engines};
use crate::requests::Outcomes;
use crate::scenario::{Change, Scenario};

/// Largest file of a trace, in bytes.
const MAX_FILE_SIZE: u64 = 64 * 1024 * 1024;

/// Most requests of a run: the blocks of each prompt are kept.
const MAX_REQUESTS: f64 = 200_000.0;

/// Engines and requests for them.
#[derive(Debug)]
pub(super) struct EnginePoint {
    scenario: EngineScenario,
    workload: Workload,
    clients: Clients,
}

impl EnginePoint {
    /// Engines of a scenario around the configuration of `world`.
    ///
    /// # Errors
    ///
    /// The trace cannot be used, or there are too many requests.
    pub(super) fn new(
        engines: &Engines,
        world: &Scenario,
        text: &Text,
    ) -> Result<Self, Vec<Problem>> {
        let length = text.duration;
        let workload = read_workload(&engines.prompts, length)?;
        let prompts = &engines.prompts;
        let turns = match prompts.kind {
            PromptKind::Agents => f64::from(prompts.turns),
            PromptKind::Shared | PromptKind::Trace => 1.0,
        };
        let requests = (prompts.rate * turns + prompts.flood_rate) * length.as_secs_f64();
        if prompts.kind != PromptKind::Trace && requests > MAX_REQUESTS {
            let message = format!(
                "about {requests:.0} requests for engines are too many: at most {MAX_REQUESTS:.0}; make `duration` \
                 shorter, or lower `rate`"
            );
            return Err(vec![text.group_place.problem(message)]);
        }
        let scenario = EngineScenario {
            config: world.config.clone().unwrap_or_default(),
            group: world.group.clone(),
            model: EngineModel {
                cache_tokens: engines.cache,
                step_tokens: engines.step_tokens,
                max_requests: engines.max_requests,
                step_nanos: duration_nanos(engines.step),
                read_nanos: duration_nanos(engines.read),
                stream_nanos: duration_nanos(engines.stream),
            },
            slowness: world.members.iter().map(|of| of.slowness).collect(),
            router: find_router(engines.router),
            balancers: text.balancers,
            is_fleet: text.fleet_in_flight,
            network: text.network,
            says_cached_tokens: engines.cached_tokens,
            says_max_tokens: engines.max_tokens,
            changes: Vec::new(),
            length,
            samples: world.samples,
        };
        let clients = Clients {
            keys: prompts.keys as u64,
            flood: (prompts.flood_rate > 0.0).then_some(Flood {
                rate: prompts.flood_rate,
                prompt_tokens: prompts.flood_tokens,
                output_tokens: prompts.output_tokens,
            }),
        };
        Ok(EnginePoint {
            scenario,
            workload,
            clients,
        })
    }

    /// Plays a run.
    pub(super) fn play(
        &self,
        changes: Vec<Change>,
        seed: u64,
        tell: &mut dyn FnMut(Duration) -> bool,
    ) -> Outcomes {
        let scenario = EngineScenario {
            changes,
            ..self.scenario.clone()
        };
        let prompts = self.workload.draw_with_clients(&self.clients, seed);
        play_engines(&scenario, &prompts, seed, tell)
    }
}

fn read_workload(prompts: &Prompts, length: Duration) -> Result<Workload, Vec<Problem>> {
    let seconds = length.as_secs_f64();
    Ok(match prompts.kind {
        PromptKind::Shared => Workload::Shared(SharedPrompts {
            rate: prompts.rate,
            count: prompts.count,
            zipf: prompts.zipf,
            shared_tokens: prompts.shared_tokens,
            own_tokens: prompts.own_tokens,
            output_tokens: prompts.output_tokens,
            seconds,
        }),
        PromptKind::Agents => Workload::Agents(AgentPrompts {
            rate: prompts.rate,
            shared_tokens: prompts.shared_tokens,
            own_tokens: prompts.own_tokens,
            turns: prompts.turns,
            turn_tokens: prompts.turn_tokens,
            think_seconds: prompts.think.as_secs_f64(),
            output_tokens: prompts.output_tokens,
            seconds,
        }),
        PromptKind::Trace => {
            let file = prompts.file.clone().unwrap_or_default();
            let path = file.path.display();
            let text = read_file(&file.path, MAX_FILE_SIZE)
                .map_err(|error| vec![file.place.problem(format!("{path}: {error}"))])?;
            let trace = Trace::parse(&text).map_err(|(line, message)| {
                vec![file.place.problem(format!("{path}:{line}: {message}"))]
            })?;
            Workload::Trace(Arc::new(trace), prompts.speed)
        }
    })
}

fn find_router(wanted: Wanted) -> Router {
    match wanted {
        Wanted::Evenkeel => Router::Evenkeel,
        Wanted::EvenkeelMetrics => Router::EvenkeelMetrics,
        Wanted::RoundRobin => Router::RoundRobin,
        Wanted::LeastRequest => Router::LeastRequest,
        Wanted::LlmD => Router::LlmD,
        Wanted::Dynamo => Router::Dynamo,
        Wanted::LMetric => Router::LMetric,
        Wanted::VllmRouter => Router::VllmRouter,
        Wanted::Smg => Router::Smg,
        Wanted::Preble => Router::Preble,
    }
}
