//! What happens to groups between decisions: health, ejection, panic, slow start and load
//! alerts; and who may be served: the queue and the retry budget.
//!
//! Pure, as `core` is: results of checks and the time come in as arguments, what changes is
//! said in the slots that decisions look at, and what others have to do about it, such as a
//! line in the log or waking those who wait, is the answer. So hours can be tested in
//! milliseconds.

#![forbid(unsafe_code)]

pub mod alerts;
pub mod analyzer;
pub mod budget;
pub mod event;
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
pub mod round;
pub mod shares;
pub mod zones;
