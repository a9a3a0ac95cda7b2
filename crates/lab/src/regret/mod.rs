//! Regret: distance of a strategy from the best one in worlds that are drawn at random.
//!
//! [`world`] draws worlds at random: members, workers, service times, networks, arrivals, events, load reports.
//! [`play`] plays each strategy in each world, all with the same arrivals. The *regret* of a strategy in a world is its
//! figure divided by the best figure of all strategies there. [`summary`] sums the regret up over many worlds, and
//! [`page`] shows it.
//!
//! A world is known by its number, so that it can be played again. Even numbers are for tuning, odd ones for judging:
//! authors of a strategy look at single worlds of the first kind only.

pub mod page;
pub mod play;
pub mod summary;
pub mod world;

pub use play::{Figures, Played, Settings, play_worlds};
pub use summary::Summary;
pub use world::World;
