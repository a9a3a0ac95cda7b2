//! Numbers on hot paths: two of them in a word, logarithms from the bits of a float, comparisons by one instruction.

/// Two numbers in a word.
#[inline]
pub(crate) fn pack(high: f32, low: f32) -> u64 {
    (u64::from(high.to_bits()) << 32) | u64::from(low.to_bits())
}

#[inline]
pub(crate) fn unpack(word: u64) -> (f32, f32) {
    (
        f32::from_bits((word >> 32) as u32),
        f32::from_bits(word as u32),
    )
}

/// The logarithm of a positive number to the base of 2, plus 127: the bits of a float are nearly
/// that. Off by less than 0.09, and by nothing for powers of two; 0 for 0.
#[inline]
pub(crate) fn log2(value: f32) -> f32 {
    value.to_bits() as f32 / (1 << 23) as f32
}

/// The number of which [`log2`] makes `log`.
#[inline]
pub(crate) fn exp2(log: f32) -> f32 {
    f32::from_bits((log * (1 << 23) as f32) as u32)
}

/// The lower of two numbers, neither of which is NaN: one instruction, unlike [`f32::min`].
#[inline]
pub(crate) fn lower(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

/// The higher of two numbers, neither of which is NaN.
#[inline]
pub(crate) fn higher(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}
