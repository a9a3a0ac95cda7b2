//! `random`: every eligible member with a chance in proportion to its weight.

use super::{Kind, Strategy};
use crate::group::View;
use crate::trace::Trace;

pub(super) const KIND: Kind = Kind {
    name: "random",
    doc: "A random member, in proportion to the weights.",
    params: &[],
    build: |_, _| Box::new(Random),
};

#[derive(Debug)]
struct Random;

impl Strategy for Random {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        let eligible = |index: &usize| view.is_eligible(*index);
        let total: f32 = (0..view.members().len())
            .filter(eligible)
            .map(|index| view.weight(index))
            .sum();
        let mut rest = rng.f32() * total;
        let mut last = None;
        for index in (0..view.members().len()).filter(eligible) {
            last = Some(index);
            rest -= view.weight(index);
            if rest < 0.0 {
                break;
            }
        }
        if let Some(index) = last {
            trace.candidate(index, None, || "drawn".into());
        }
        last
    }
}
