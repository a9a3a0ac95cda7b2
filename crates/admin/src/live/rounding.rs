//! Rounding of values that are shown.

/// Rounds a value to as many digits as a picture shows.
pub(super) fn round_value(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
