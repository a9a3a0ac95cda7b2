//! Engines for language models, as strategies see them.

use super::View;

impl View<'_> {
    /// Bound of the engines' numbers.
    #[inline]
    pub(crate) fn engine_numbers(&self) -> usize {
        self.pool.engine_members.len()
    }

    /// Hash of a member's name, by which balancers with the same members choose the same one for a new prompt.
    #[inline]
    pub(crate) fn name_hash(&self, index: usize) -> u64 {
        self.pool.name_hashes.get(index).copied().unwrap_or(0)
    }

    /// Index of an engine's member, if the member may be picked.
    #[inline]
    pub(crate) fn eligible_engine(&self, number: usize) -> Option<usize> {
        let index = (*self.pool.engine_members.get(number)?)? as usize;
        self.is_eligible(index).then_some(index)
    }
}
