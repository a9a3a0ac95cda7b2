//! `round_robin`: smooth weighted round robin.
//!
//! Members take turns; one with twice the weight has twice the turns, evenly spaced as
//! in nginx's smooth weighted round robin, not in bursts. Members that may not be
//! picked are passed over, and their turns fall to all others alike.

use super::kind::{Kind, Strategy};
use super::stride::Stride;
use crate::group::view::View;
use crate::trace::{Short, Trace};

/// The strategy.
pub const KIND: Kind = Kind {
    name: "round_robin",
    doc: "Members take turns, evenly spaced, in proportion to the weights.",
    looks_at_loads: false,
    ..Kind::made_by(|_, members| {
        Box::new(RoundRobin {
            stride: Stride::new(members.len()),
        })
    })
};

#[derive(Debug)]
pub(super) struct RoundRobin {
    stride: Stride,
}

impl Strategy for RoundRobin {
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        let index = self
            .stride
            .next(view, rng, |index| view.member_weight(index))?;
        trace.note_candidate(index, None, || {
            format!(
                "next in turn with weight {}",
                Short(view.member_weight(index))
            )
        });
        Some(index)
    }
}
