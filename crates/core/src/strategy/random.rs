//! `random`: every eligible member with a chance in proportion to its weight.

use super::choose::Urn;
use super::{Kind, Strategy};
use crate::group::View;
use crate::trace::Trace;

pub(super) const KIND: Kind = Kind {
    name: "random",
    doc: "A random member, in proportion to the weights.",
    params: &[],
    looks_at_loads: false,
    build: |_, members| {
        Box::new(Random {
            urn: Urn::new(members),
        })
    },
    ..Kind::USUAL
};

#[derive(Debug)]
struct Random {
    urn: Urn,
}

impl Strategy for Random {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        let index = self.urn.draw(view, rng)?;
        trace.candidate(index, None, || {
            format!("drawn with weight {}", view.weight(index))
        });
        Some(index)
    }
}
