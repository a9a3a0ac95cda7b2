//! Weights of members.

/// Share of the traffic that a member should get relative to the others.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Weight(f32);

/// The number is not a weight.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("a weight must be a number from 0 to 1000, not {0}")]
pub struct InvalidWeight(pub f64);

impl Weight {
    /// The weight of a member that names none.
    pub const ONE: Weight = Weight(1.0);

    /// The largest weight.
    pub const MAX: f64 = 1000.0;

    /// Parses a weight: 0 (no new traffic) to 1000.
    pub fn new(value: f64) -> Result<Self, InvalidWeight> {
        if (0.0..=Self::MAX).contains(&value) {
            Ok(Weight(value as f32))
        } else {
            Err(InvalidWeight(value))
        }
    }

    /// The number.
    pub fn get(self) -> f32 {
        self.0
    }
}
