//! Engines of language models in virtual time: engines with continuous batching and caches of prompts, workloads of
//! prompts, the balancer with its real groups, and the rules of other routers to compare with.
//!
//! | module | content |
//! |---|---|
//! | [`prompts`] | workloads: traces, prompts with shared beginnings, agents |
//! | `batching`, `cache` | an engine: steps, and the blocks that it remembers |
//! | `routers` | rules of other routers |
//! | `queue_place`, `waiting` | requests in the queue of the balancer |
//! | `world` | a run |

mod batching;
mod cache;
mod fleet_work;
pub mod prompts;
mod queue_place;
mod routers;
mod waiting;
mod world;

pub use batching::EngineModel;
pub use routers::Router;
pub use world::{EngineScenario, play_engines};
