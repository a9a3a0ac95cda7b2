//! `random`: every eligible member with a chance in proportion to its weight.

use super::kind::{Kind, Strategy};
use super::urn::Urn;
use crate::group::view::View;
use crate::trace::Trace;

pub(super) const KIND: Kind = Kind {
    name: "random",
    doc: "A random member, in proportion to the weights.",
    looks_at_loads: false,
    ..Kind::made_by(|_, members| {
        Box::new(Random {
            urn: Urn::new(members),
        })
    })
};

#[derive(Debug)]
struct Random {
    urn: Urn,
}

impl Strategy for Random {
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        let index = self.urn.draw(view, rng)?;
        trace.note_candidate(index, None, || {
            format!("drawn with weight {}", view.member_weight(index))
        });
        Some(index)
    }
}
