//! `[engines]` and `[prompts]` of a scenario: members that serve language models, and the requests for them.

use std::path::Path;
use std::time::Duration;

use crate::schema::field::{FileName, choices};
use crate::schema::key::{DAY, HOUR, describe_keys, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::Table;

section! {
    /// Engines of language models, in place of members with workers.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Engines {
        /// Requests for them.
        prompts: Prompts = Prompts::default(),
    }
    keys ENGINES {
        /// Number of tokens in an engine's cache of prompts, in blocks of 512. The least recently used blocks go first.
        cache: usize [Number(512.0, 1e9, "tokens")] = 512_000; "100000",
        /// Most tokens that an engine reads and writes in one step. Longer prompts are read in several steps.
        step_tokens: usize [Number(1.0, 1e6, "tokens")] = 2048; "8192",
        /// Most requests on which an engine works at once. Further requests wait in the engine.
        max_requests: usize [Number(1.0, 100_000.0, "requests")] = 256; "64",
        /// Time of a step in itself.
        step: Duration [Time(Duration::from_micros(1), HOUR)] = millis(6); r#""10ms""#,
        /// Further time of a step for each token of a prompt which the engine reads.
        read: Duration [Time(Duration::ZERO, HOUR)] = Duration::from_micros(125); r#""50us""#,
        /// Further time of a step for each stream to which the engine writes a token.
        stream: Duration [Time(Duration::ZERO, HOUR)] = Duration::from_micros(350); r#""200us""#,
        /// Makes answers say how many tokens of the prompt came from the cache (`cached_tokens`).
        cached_tokens: bool = true; "false",
        /// Makes requests say how many tokens their answers have at most (`max_tokens`): as many as the answers have.
        max_tokens: bool = false; "true",
        /// Router in front of the engines: `evenkeel`, with the strategy of the configuration, or the rule of another
        /// router to compare with.
        router: Router = Router::Evenkeel; r#""lmetric""#,
    }
}

section! {
    /// Requests for engines.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Prompts {}
    keys PROMPTS {
        /// Kind of the requests: prompts with `shared` beginnings, `agents` which take turns, or a `trace`.
        kind: PromptKind = PromptKind::Shared; r#""agents""#,
        /// File with a trace in the format of Mooncake (FAST '25): a JSON object in each line, with `timestamp`,
        /// `input_length`, `output_length` and `hash_ids`.
        file: Option<FileName> = None; r#""conversation_trace.jsonl""#,
        /// Factor by which requests come faster than in the trace.
        speed: f64 [Number(0.001, 1000.0, "")] = 1.0; "0.7",
        /// Requests per second at random (Poisson); sessions per second for `agents`.
        rate: f64 [Number(0.001, 100_000.0, "")] = 1.0; "15",
        /// Number of different beginnings.
        count: usize [Number(1.0, 100_000.0, "texts")] = 64; "8",
        /// Exponent of the popularity of beginnings: the popularity of rank i is proportional to 1 / i^zipf.
        zipf: f64 [Number(0.0, 5.0, "")] = 1.1; "0",
        /// Number of tokens of a beginning. All sessions of `agents` have the same beginning.
        shared_tokens: u32 [Number(0.0, 500_000.0, "tokens")] = 8192; "2048",
        /// Mean number of further tokens of a prompt, or of the first prompt of a session.
        own_tokens: u32 [Number(1.0, 200_000.0, "tokens")] = 1000; "5000",
        /// Mean number of turns of a session.
        turns: u32 [Number(1.0, 1000.0, "turns")] = 10; "20",
        /// Mean number of tokens by which the prompt of a session grows in each turn.
        turn_tokens: u32 [Number(1.0, 100_000.0, "tokens")] = 1000; "500",
        /// Mean time (exponential) from the end of a turn to the next one.
        think: Duration [Time(Duration::ZERO, DAY)] = secs(5); r#""20s""#,
        /// Mean number of tokens of an answer (exponential).
        output_tokens: u32 [Number(1.0, 100_000.0, "tokens")] = 250; "100",
        /// Number of clients' keys, from which requests come at random. All turns of a session have the same key. Keys
        /// have fair shares if requests wait: if the group has a `ttft_target`, or its members `max_connections`.
        keys: usize [Number(1.0, 10_000.0, "keys")] = 1; "8",
        /// Requests per second of one more key, beside all others: the key floods the engines with prompts of its own.
        /// The figure `others' p90` is about the requests of the other keys.
        flood_rate: f64 [Number(0.0, 100_000.0, "")] = 0.0; "30",
        /// Mean number of tokens of the flood's prompts.
        flood_tokens: u32 [Number(1.0, 200_000.0, "tokens")] = 4000; "8000",
    }
}

choices! {
    /// Kind of the requests for engines.
    PromptKind {
        /// Prompts that begin with one of several texts.
        "shared" => Shared,
        /// Sessions whose prompts grow.
        "agents" => Agents,
        /// Requests of a file.
        "trace" => Trace,
    }
    /// Router in front of engines.
    Router {
        /// The balancer.
        "evenkeel" => Evenkeel,
        /// The balancer, which also reads the metrics of the engines once a second.
        "evenkeel-metrics" => EvenkeelMetrics,
        /// Engines in turn.
        "round-robin" => RoundRobin,
        /// The fewest requests.
        "least-request" => LeastRequest,
        /// llm-d's weighted scores.
        "llm-d" => LlmD,
        /// NVIDIA Dynamo's cost.
        "dynamo" => Dynamo,
        /// LMetric's product.
        "lmetric" => LMetric,
        /// The routers of SGLang and vLLM.
        "vllm-router" => VllmRouter,
        /// SGLang's Model Gateway.
        "smg" => Smg,
        /// Preble's E2.
        "preble" => Preble,
    }
}

/// Tables and keys that say nothing of engines.
const OTHER_TABLES: [&str; 4] = ["load", "service", "keys", "reports"];
const OTHER_MEMBER_KEYS: [&str; 3] = ["concurrency", "discipline", "failing"];
const OTHER_EVENT_KEYS: [&str; 3] = ["dead", "failing", "tasks"];

/// Reads both tables. `None` if the members are no engines.
pub(super) fn read_engines(
    top: &mut Table<'_>,
    folder: &Path,
    report: &mut Report<'_>,
) -> Option<Engines> {
    let engines = top.read_table("engines", report).map(|mut table| {
        let mut engines = Engines::default();
        table.read(ENGINES, &mut engines, report);
        table.report_unread(report);
        engines
    });
    let prompts = top.read_table("prompts", report).map(|mut table| {
        let prompts = read_prompts(&mut table, folder, report);
        table.report_unread(report);
        prompts
    });
    match (engines, prompts) {
        (Some(engines), prompts) => {
            for name in OTHER_TABLES.iter().filter(|name| top.has_key(name)) {
                let message = "has no effect with `[engines]`: set `[prompts]`";
                top.report_problem(name, message, report);
            }
            let prompts = prompts.unwrap_or_default();
            Some(Engines { prompts, ..engines })
        }
        (None, Some(_)) => {
            let message = "are for engines: set `[engines]`, at least as an empty table";
            top.report_problem("prompts", message, report);
            None
        }
        (None, None) => None,
    }
}

/// Reports keys of members that say nothing of engines.
pub(super) fn check_member(table: &Table<'_>, report: &mut Report<'_>) {
    check_keys(table, &OTHER_MEMBER_KEYS, report);
}

/// Reports keys of events that say nothing of engines.
pub(super) fn check_event(table: &Table<'_>, report: &mut Report<'_>) {
    check_keys(table, &OTHER_EVENT_KEYS, report);
}

fn check_keys(table: &Table<'_>, keys: &[&str], report: &mut Report<'_>) {
    for key in keys.iter().filter(|key| table.has_key(key)) {
        table.report_problem(key, "has no effect with `[engines]`", report);
    }
}

fn read_prompts(table: &mut Table<'_>, folder: &Path, report: &mut Report<'_>) -> Prompts {
    use PromptKind::{Agents, Shared, Trace};
    let mut prompts = Prompts::default();
    table.read(PROMPTS, &mut prompts, report);
    if let Some(file) = &mut prompts.file {
        file.resolve(folder);
    }
    if prompts.kind == Trace {
        table.require("file", report);
    }
    let kinds: [(&str, &[PromptKind]); 11] = [
        ("file", &[Trace]),
        ("speed", &[Trace]),
        ("rate", &[Shared, Agents]),
        ("count", &[Shared]),
        ("zipf", &[Shared]),
        ("shared_tokens", &[Shared, Agents]),
        ("own_tokens", &[Shared, Agents]),
        ("turns", &[Agents]),
        ("turn_tokens", &[Agents]),
        ("think", &[Agents]),
        ("output_tokens", &[Shared, Agents]),
    ];
    for (key, allowed) in kinds {
        if table.has_key(key) && !allowed.contains(&prompts.kind) {
            table.report_problem(key, "has no effect with this `kind`", report);
        }
    }
    prompts
}

/// Both tables, for the reference and the hints.
pub(super) fn describe_tables() -> [TableDoc; 2] {
    let engines = "Engines of language models, in place of members with workers: each engine reads prompts in \
                   parts, writes a token of each stream in a step (continuous batching), and remembers prompts. \
                   Write the table, empty if you like, to make all members engines. `capacity` of a member is the \
                   engine's speed.";
    let prompts = "Requests for engines. Requests come until `duration`, and all are answered.";
    [
        TableDoc::new(
            "[engines]",
            engines,
            [describe_keys(ENGINES, Engines::default())],
        ),
        TableDoc::new(
            "[prompts]",
            prompts,
            [describe_keys(PROMPTS, Prompts::default())],
        ),
    ]
}
