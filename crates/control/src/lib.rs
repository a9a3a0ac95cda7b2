//! Control of groups between decisions: health, ejection, panic, slow start and load alerts; and
//! admission: the queue and the retry budget.
//!
//! This crate is pure, as `core` is: results of checks and the time come in as arguments. Changes
//! are written to the slots that decisions look at. The answer says what others have to do, such as
//! write a line to the log or wake waiting requests. Hours can therefore be tested in milliseconds.

#![forbid(unsafe_code)]

pub mod alerts;
pub mod analyzer;
pub mod budget;
pub mod event;
mod failures;
pub mod flights;
pub mod forward;
pub mod group;
pub mod health;
pub mod opinion;
pub mod outlier;
pub mod pace;
mod place;
pub mod pulse;
pub mod queue;
pub mod rate;
#[cfg(test)]
mod returns;
pub mod round;
pub mod shares;
pub mod shares_by_key;
#[cfg(test)]
mod testing;
pub mod trial;
mod usual_rates;
pub mod zones;
