//! Strategies and loads as their callers see them, with an allocator that counts.

mod client_weights;
mod common;
mod costs;
mod field_failures;
mod loads;
mod no_alloc;
mod strategies;
mod terms;
mod zones;
