//! Columns of tables about engines for language models: cells are empty where there is no engine, so that other groups
//! do not have the columns.

use evenkeel_manager::status::EngineStatus;
use evenkeel_manager::text::{format_number, format_percent};

use crate::columns::{Cell, Column, count, duration_of_millis, latency_cell};

/// Number of the columns.
pub(crate) const ENGINE_COLUMNS: usize = 9;

/// The columns. Those which tell whether clients are served well stay longest.
pub(crate) const COLUMNS: [Column; ENGINE_COLUMNS] = [
    Column::of_numbers("PROMPT TOK/S", 5),
    Column::of_numbers("OUTPUT TOK/S", 3),
    Column::of_numbers("CACHE HITS", 3),
    Column::of_numbers("1ST TOKEN P50", 6),
    Column::of_numbers("1ST TOKEN P90", 2),
    Column::of_numbers("TOKEN GAP P50", 6),
    Column::of_numbers("TOKEN GAP P90", 4),
    Column::of_numbers("QUEUED TOK", 4),
    Column::of_numbers("QUEUED ELSEWHERE", 6),
];

/// Returns the cells of a member or a group.
pub(crate) fn engine_cells(engine: Option<&EngineStatus>) -> [Cell; ENGINE_COLUMNS] {
    let Some(engine) = engine else {
        return Default::default();
    };
    let number = |value| Cell::of_number(value, format_number(value));
    let time = |millis| latency_cell(duration_of_millis(millis));
    [
        number(engine.prompt_tokens_per_second),
        number(engine.output_tokens_per_second),
        match engine.cache_hit_rate {
            Some(share) => Cell::of_number(share, format_percent(share)),
            None => "-".to_owned().into(),
        },
        time(engine.first_token_p50_ms),
        time(engine.first_token_p90_ms),
        time(engine.between_tokens_p50_ms),
        time(engine.between_tokens_p90_ms),
        count(engine.queued_tokens.round() as u64),
        // Without other balancers there is no such column.
        match engine.queued_tokens_elsewhere > 0.0 {
            true => count(engine.queued_tokens_elsewhere.round() as u64),
            false => Cell::default(),
        },
    ]
}
