//! Groups of the targets of a rule, with their weights.

use std::collections::BTreeMap;

use super::backends::{Binding, Groups, Referrer};
use super::conditions::Refusal;
use super::objects::BackendRef;

/// Groups of the targets of a rule.
#[derive(Debug, Default)]
pub(crate) struct FoundGroups {
    /// Group and weight of each target; no group for a target that cannot be used.
    pub(crate) of_targets: Vec<(Option<String>, u32)>,
    /// Reason why some targets cannot be used.
    pub(crate) refusal: Option<Refusal>,
}

/// Largest weight.
const MOST: u32 = 1_000_000;

impl FoundGroups {
    /// Returns the groups with their weights. If there are none, all requests fail.
    pub(crate) fn sum_weights(&self, groups: &mut Groups) -> Vec<(String, u32)> {
        let mut sums: BTreeMap<&str, u32> = BTreeMap::new();
        let mut failing = 0_u32;
        for (group, weight) in &self.of_targets {
            let sum = match group {
                Some(group) => sums.entry(group).or_default(),
                None => &mut failing,
            };
            *sum = sum.saturating_add(*weight).min(MOST);
        }
        if sums.values().all(|weight| *weight == 0) {
            return Vec::new();
        }
        let nobody = (failing > 0).then(|| groups.use_nobody());
        if let Some(nobody) = &nobody {
            let sum = sums.entry(nobody).or_default();
            *sum = sum.saturating_add(failing).min(MOST);
        }
        let sums = sums.into_iter();
        sums.map(|(group, sum)| (group.to_owned(), sum)).collect()
    }
}

impl Referrer<'_> {
    /// Returns the groups of targets.
    pub(crate) fn find_groups(
        self,
        targets: &[BackendRef],
        binding: Option<&Binding>,
        groups: &mut Groups,
    ) -> FoundGroups {
        let mut all = FoundGroups::default();
        for target in targets {
            let weight = target.weight.unwrap_or(1).min(MOST);
            let binding = binding.map(|binding| match targets.len() {
                1 => binding.clone(),
                _ => binding.of_several(&target.target),
            });
            let group = self.find_group(&target.target, binding.as_ref(), groups);
            let group = match group {
                Ok(group) => Some(group),
                Err(error) => {
                    all.refusal.get_or_insert(error);
                    None
                }
            };
            all.of_targets.push((group, weight));
        }
        all
    }
}
