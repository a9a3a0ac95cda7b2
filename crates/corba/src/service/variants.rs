//! Groups under strategies of other levels than their own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_core::group::Group;
use evenkeel_core::strategy::Values;

/// Most groups that are kept under strategies that are not theirs.
const MOST_VARIANTS: usize = 1000;

/// Groups under strategies of other levels than their own. They are kept, since strategies
/// have a memory: whose turn it is, for one.
#[derive(Debug, Default)]
pub(super) struct Variants(Mutex<HashMap<u64, Vec<Variant>>>);

#[derive(Debug)]
struct Variant {
    values: Values,
    /// The group under its own strategy: when its members change this one does.
    own: Arc<Group>,
    group: Arc<Group>,
}

impl Variants {
    /// The members of the group `own` under the strategy `values`.
    pub(super) fn under(&self, id: u64, own: &Arc<Group>, values: &Values) -> Arc<Group> {
        let mut variants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if variants.len() >= MOST_VARIANTS && !variants.contains_key(&id) {
            variants.clear();
        }
        let known = variants.entry(id).or_default();
        // What was made of members that are not the same any more is no use.
        known.retain(|variants| Arc::ptr_eq(&variants.own, own));
        if let Some(variants) = known.iter().find(|variants| variants.values == *values) {
            return Arc::clone(&variants.group);
        }
        let group = Arc::new(Group::new(
            Arc::clone(own.name()),
            own.settings().clone(),
            values,
            own.members().to_vec(),
            Arc::clone(own.state()),
        ));
        // One for each other level: of its type, and by default.
        if known.len() >= 2 {
            known.remove(0);
        }
        known.push(Variant {
            values: values.clone(),
            own: Arc::clone(own),
            group: Arc::clone(&group),
        });
        group
    }
}
