//! Groups of the targets of a rule, with their weights.

use std::collections::BTreeMap;

use super::backends::{Binding, Groups, Referrer};
use super::conditions::Refusal;
use super::objects::BackendRef;

/// Groups of the targets of a rule.
#[derive(Debug, Default)]
pub(crate) struct FoundGroups {
    /// Groups with their weights. If there are none, all requests fail.
    pub(crate) weights: Vec<(String, u32)>,
    /// Group of each target; `None` for a target that cannot be used.
    pub(crate) of_targets: Vec<Option<String>>,
    /// Reason why some targets cannot be used.
    pub(crate) refusal: Option<Refusal>,
}

impl Referrer<'_> {
    /// Returns the groups of targets. Without a group that has a weight all requests fail.
    pub(crate) fn find_groups(
        self,
        targets: &[BackendRef],
        binding: Option<&Binding>,
        groups: &mut Groups,
    ) -> FoundGroups {
        const MOST: u32 = 1_000_000;
        let mut found: BTreeMap<String, u32> = BTreeMap::new();
        let mut all = FoundGroups::default();
        let mut failing = 0_u32;
        for target in targets {
            let weight = target.weight.unwrap_or(1).min(MOST);
            let binding = binding.map(|binding| match targets.len() {
                1 => binding.clone(),
                _ => binding.of_several(&target.target),
            });
            let group = self.find_group(&target.target, binding.as_ref(), groups);
            let group = match group {
                Ok(group) => {
                    let sum = found.entry(group.clone()).or_default();
                    *sum = sum.saturating_add(weight).min(MOST);
                    Some(group)
                }
                Err(error) => {
                    failing = failing.saturating_add(weight).min(MOST);
                    all.refusal.get_or_insert(error);
                    None
                }
            };
            all.of_targets.push(group);
        }
        if found.values().all(|weight| *weight == 0) {
            return all;
        }
        if failing > 0 {
            let sum = found.entry(groups.use_nobody()).or_default();
            *sum = sum.saturating_add(failing).min(MOST);
        }
        all.weights = found.into_iter().collect();
        all
    }
}
