//! `load_average`: a random member; the analyzer alerts those far above the average.
//!
//! Source: the `LoadAverage` strategy of the OMG's `CosLoadBalancing` service. Binding
//! by chance cannot herd, and moving load away from overloaded locations does the rest.
//! Chances are in proportion to the weights; members that fail are drawn less often.

use super::by_load::sits_out;
use super::kind::{Kind, Param, Strategy};
use super::shaping::{DAMPENING, PER_BALANCE_LOAD, TOLERANCE, shaping};
use super::urn::Urn;
use crate::alert::Threshold;
use crate::effective::Shaping;
use crate::group::view::View;
use crate::trace::Trace;

/// Parameter: see its `doc`.
pub const CRITICAL_EXCESS: Param = Param {
    name: "critical_excess",
    doc: "A location gets a load alert when its effective load exceeds the average by more than this share.",
    default: 0.8,
    max: 1e6,
    ..Param::NUMBER
};

pub(super) const KIND: Kind = Kind {
    name: "load_average",
    doc: "A random member; locations whose effective reported load is far above the average get a load alert.",
    params: &[CRITICAL_EXCESS, DAMPENING, TOLERANCE, PER_BALANCE_LOAD],
    ..Kind::made_by(|values, members| {
        Box::new(LoadAverage {
            urn: Urn::new(members),
            shaping: shaping(values),
            excess: values.get(CRITICAL_EXCESS.name) as f32,
        })
    })
};

#[derive(Debug)]
struct LoadAverage {
    urn: Urn,
    shaping: Shaping,
    excess: f32,
}

impl Strategy for LoadAverage {
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        let mut index = self.urn.draw(view, rng)?;
        // Twice: where all members fail, one is picked all the same.
        for _ in 0..2 {
            if !sits_out(view, index, rng) {
                break;
            }
            trace.note_candidate(index, None, || "drawn, left out because it fails".into());
            index = self.urn.draw(view, rng)?;
        }
        trace.note_candidate(index, None, || {
            match view.effective_load(index, self.shaping.if_any()) {
                Some(load) => format!("drawn, load {load:.3}"),
                None => "drawn, load unknown".into(),
            }
        });
        Some(index)
    }

    fn alert_threshold(&self) -> Option<Threshold> {
        Some(Threshold::AboveAverage(self.excess))
    }
}
