//! Explanation of a decision.
//!
//! The function that picks gets a [`Trace`]. Switched off, it costs one predictable branch per candidate; switched on,
//! it keeps each candidate's score and the reason for which the candidate was or was not taken. There is no second
//! implementation of a decision, which could differ.

/// Collects the reasons of one decision, if it is to be explained.
#[derive(Debug, Default)]
pub struct Trace(Option<Box<Explanation>>);

/// Candidates and notes of one decision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// The candidates, in the order in which they were looked at. Strategies that
    /// draw list only what they drew.
    pub candidates: Vec<Candidate>,
    /// Sentences about the decision as a whole ("panic: 3 of 4 members are down").
    pub notes: Vec<String>,
}

// Out of line: decisions are seldom traced, and their loops are to stay small.
impl Explanation {
    #[cold]
    #[inline(never)]
    fn candidate(&mut self, index: usize, score: Option<f64>, verdict: impl FnOnce() -> String) {
        let candidate = Candidate {
            index,
            score,
            verdict: verdict(),
        };
        let mut before = self.candidates.iter_mut();
        match before.find(|before| before.index == index) {
            Some(before) => *before = candidate,
            None => self.candidates.push(candidate),
        }
    }

    #[cold]
    #[inline(never)]
    fn note(&mut self, text: impl FnOnce() -> String) {
        self.notes.push(text());
    }
}

/// A candidate of a decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Index of the member in the group's snapshot.
    pub index: usize,
    /// Score of the candidate; the lowest score wins. `None` if it was not scored.
    pub score: Option<f64>,
    /// Result for the candidate, with the reason ("lowest of 2 draws", "in flight 7, latency 12 ms").
    pub verdict: String,
}

impl Trace {
    /// A trace that keeps nothing.
    pub fn off() -> Self {
        Trace(None)
    }

    /// A trace that keeps everything.
    pub fn on() -> Self {
        Trace(Some(Box::default()))
    }

    /// True if the trace is switched on.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Notes a candidate; one that was looked at before keeps its place. `verdict` runs only if the
    /// trace is on.
    #[inline]
    pub fn note_candidate(
        &mut self,
        index: usize,
        score: Option<f64>,
        verdict: impl FnOnce() -> String,
    ) {
        if let Some(explanation) = &mut self.0 {
            explanation.candidate(index, score, verdict);
        }
    }

    /// Notes a sentence about the decision as a whole.
    #[inline]
    pub fn note_sentence(&mut self, text: impl FnOnce() -> String) {
        if let Some(explanation) = &mut self.0 {
            explanation.note(text);
        }
    }

    /// The explanation, if the trace was on.
    pub fn into_explanation(self) -> Option<Explanation> {
        self.0.map(|explanation| *explanation)
    }
}

/// A number for people, with at most three digits behind the point: during slow start
/// weights have many.
pub(crate) struct Short(pub(crate) f32);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", (f64::from(self.0) * 1e3).round() / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_numbers_are_short() {
        let texts = [1.0, 0.354_261_22, 2.5, 1e-6, 1000.0].map(|number| Short(number).to_string());
        assert_eq!(texts, ["1", "0.354", "2.5", "0", "1000"]);
    }
}
