//! Worlds of the comparison: each workload with equal engines, and with one at a quarter of the speed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::group::GroupSettings;
use evenkeel_core::strategy::{self, Values};
use evenkeel_sim::config::equal_members;
use evenkeel_sim::inference::prompts::{AgentPrompts, SharedPrompts, Trace, Workload};
use evenkeel_sim::inference::{EngineModel, EngineScenario, Router};

/// Number of engines.
const ENGINES: usize = 8;

/// World of the comparison.
pub(crate) struct World {
    pub(crate) name: String,
    pub(crate) workload: Workload,
    /// Slowness of the first engine.
    pub(crate) slowness: f64,
}

/// All worlds.
pub(crate) fn list_worlds(traces: Option<&Path>) -> Result<Vec<World>, String> {
    let mut workloads = Vec::new();
    for name in ["conversation", "synthetic"] {
        let trace = match traces {
            Some(folder) => {
                let file = folder.join(format!("{name}_trace.jsonl"));
                let text = std::fs::read_to_string(&file);
                let text = text.map_err(|error| format!("{}: {error}", file.display()))?;
                Trace::parse(&text)
                    .map_err(|(line, text)| format!("{}:{line}: {text}", file.display()))?
            }
            None => made_trace(name == "conversation"),
        };
        let trace = Arc::new(trace);
        let name = match traces {
            Some(_) => name.to_owned(),
            None => format!("made {name}"),
        };
        for load in [0.7, 1.0] {
            let workload = Workload::Trace(Arc::clone(&trace), load);
            workloads.push((format!("{name}, {load}"), workload));
        }
    }
    let shared = SharedPrompts {
        rate: 15.0,
        count: 64,
        zipf: 1.1,
        shared_tokens: 8192,
        own_tokens: 1080,
        output_tokens: 250,
        seconds: 400.0,
    };
    workloads.push(("shared prompts".into(), Workload::Shared(shared)));
    let agents = AgentPrompts {
        rate: 0.5,
        shared_tokens: 4096,
        own_tokens: 4500,
        turns: 22,
        turn_tokens: 1000,
        think_seconds: 6.5,
        output_tokens: 150,
        seconds: 1000.0,
    };
    workloads.push(("agents".into(), Workload::Agents(agents)));
    let mut worlds = Vec::new();
    for (slowness, text) in [(1.0, ""), (4.0, ", one slow")] {
        for (name, workload) in &workloads {
            worlds.push(World {
                name: format!("{name}{text}"),
                workload: workload.clone(),
                slowness,
            });
        }
    }
    Ok(worlds)
}

/// Scenario of a world with a router, or several of it, which may be a fleet.
pub(crate) fn scenario(
    world: &World,
    router: Router,
    balancers: usize,
    is_fleet: bool,
) -> EngineScenario {
    let strategy = strategy::find("inference").unwrap_or(strategy::default_kind());
    let values = Values::defaults(strategy);
    let mut slowness = vec![1.0; ENGINES];
    slowness[0] = world.slowness;
    EngineScenario {
        config: equal_members("engines", ENGINES, GroupSettings::default(), values),
        group: "engines".into(),
        model: EngineModel::default(),
        slowness,
        router,
        balancers,
        is_fleet,
        network: Duration::from_micros(200),
        says_cached_tokens: true,
        says_max_tokens: false,
        changes: Vec::new(),
        length: Duration::from_secs_f64(world.workload.seconds() + 5.0),
        samples: None,
    }
}

/// Trace in Mooncake's format, with about the figures of the published ones: conversations whose prompts grow (12,000
/// tokens on average, of which a third was seen before), or long prompts about shared documents.
fn made_trace(is_conversation: bool) -> Trace {
    let mut rng = fastrand::Rng::with_seed(11);
    let mut next_id = 1;
    let mut fresh = |count: usize| {
        let ids: Vec<u64> = (next_id..next_id + count as u64).collect();
        next_id += count as u64;
        ids
    };
    let documents: Vec<Vec<u64>> = (0..60).map(|index| fresh(20 + 4 * (index % 20))).collect();
    let mut sessions: Vec<Vec<u64>> = Vec::new();
    let (mut text, mut millis) = (String::new(), 0.0);
    while millis < 1_200_000.0 {
        let mean = if is_conversation { 300.0 } else { 270.0 };
        millis += -libm::log(1.0 - rng.f64()) * mean;
        let draw =
            |mean: f64, rng: &mut fastrand::Rng| (-libm::log(1.0 - rng.f64()) * mean) as usize;
        let (blocks, output) = if is_conversation {
            let known = match rng.f64() < 0.6 && !sessions.is_empty() {
                true => sessions.swap_remove(rng.usize(..sessions.len())),
                false => vec![0],
            };
            let mut blocks = known;
            blocks.extend(fresh((1 + draw(13.0, &mut rng)).min(120)));
            sessions.push(blocks.clone());
            if sessions.len() > 400 {
                sessions.swap_remove(0);
            }
            (blocks, 20 + draw(320.0, &mut rng))
        } else {
            let document = &documents[(rng.f64() * rng.f64() * documents.len() as f64) as usize];
            let mut blocks = document.clone();
            blocks.extend(fresh((1 + draw(6.0, &mut rng)).min(120)));
            (blocks, 3 + draw(150.0, &mut rng))
        };
        let blocks = &blocks[..blocks.len().min(240)];
        text += &format!(
            "{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": {output}, \"hash_ids\": {blocks:?}}}\n",
            (millis / 3000.0).floor() * 3000.0,
            blocks.len() * 512 - 100,
        );
    }
    Trace::parse(&text).unwrap_or_else(|(line, text)| unreachable!("line {line}: {text}"))
}
