//! Keeping the best of many.

/// Keeps the member with the lowest score. Among equal ones each has a chance in
/// proportion to its weight, so that idle members share by weight and no member is
/// preferred for its place in the list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Best {
    /// Scores that differ by less than this share count as equal.
    spread: f32,
    held: usize,
    score: f32,
    /// Scores from the first to the second one are equal to that.
    equal: (f32, f32),
    /// Weight of all members that are equal to the held one.
    weight: f32,
}

impl Best {
    const NOBODY: usize = usize::MAX;

    pub(super) fn new(spread: f32) -> Self {
        Best {
            spread,
            held: Best::NOBODY,
            score: f32::INFINITY,
            equal: (f32::INFINITY, f32::INFINITY),
            weight: 0.0,
        }
    }

    #[inline]
    pub(super) fn offer(&mut self, index: usize, score: f32, weight: f32, rng: &mut fastrand::Rng) {
        if score > self.equal.1 {
            return;
        }
        if score < self.equal.0 {
            self.equal = (score * (1.0 - self.spread), score * (1.0 + self.spread));
            (self.held, self.score, self.weight) = (index, score, weight);
            return;
        }
        self.weight += weight;
        if self.held == Best::NOBODY || rng.f32() * self.weight < weight {
            // The score stays, or it would creep.
            self.held = index;
        }
    }

    /// Takes over what another one kept.
    pub(super) fn merge(&mut self, other: &Best, rng: &mut fastrand::Rng) {
        if let Some(index) = other.index() {
            self.offer(index, other.score, other.weight, rng);
        }
    }

    /// The lowest score, or a score equal to it.
    pub(super) fn score(&self) -> f32 {
        self.score
    }

    pub(super) fn index(&self) -> Option<usize> {
        (self.held != Best::NOBODY).then_some(self.held)
    }
}
