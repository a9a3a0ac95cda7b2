//! Decisions that a chooser outside of the process may take before the group's strategy.

use std::sync::Arc;

use super::request::{Advice, PickError, Request};
use super::view::View;
use super::{Group, Ticket};
use crate::trace::Trace;

impl Group {
    /// Binds the request to the member that the chooser names if it may be picked, and else does what
    /// [`Group::pick`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`Group::pick`].
    pub fn pick_advised(
        &self,
        request: &Request<'_>,
        advice: Advice,
        rng: &mut fastrand::Rng,
    ) -> Result<Ticket, PickError> {
        self.bind_chosen(request, || self.choose_advised(request, advice, rng))
    }

    /// Chooses the member that the chooser names if it may be picked, and else does what
    /// [`Group::choose_member`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`Group::choose_member`].
    pub fn choose_advised(
        &self,
        request: &Request<'_>,
        advice: Advice,
        rng: &mut fastrand::Rng,
    ) -> Result<usize, PickError> {
        let view = self.view_for(request);
        if self.pool.state.take_trace() {
            let (chosen, decision) = self.explain(&view, Some(advice), rng);
            self.pool.state.last.store(Some(Arc::new(decision)));
            return chosen;
        }
        self.ask_advised(&view, advice, rng, &mut Trace::off())
    }

    pub(super) fn ask_advised(
        &self,
        view: &View<'_>,
        advice: Advice,
        rng: &mut fastrand::Rng,
        trace: &mut Trace,
    ) -> Result<usize, PickError> {
        match advice {
            Advice::Member(id) => {
                let open = view.widened();
                let named = self.find(id, 0).filter(|index| open.is_eligible(*index));
                if let Some(index) = named {
                    if trace.is_on() {
                        for other in open.eligible_indices().filter(|other| *other != index) {
                            trace.note_candidate(other, None, || {
                                "not named by the custom strategy".into()
                            });
                        }
                    }
                    trace.note_candidate(index, None, || "named by the custom strategy".into());
                    trace.note_sentence(|| {
                        "the custom strategy has decided, not the group's own strategy".into()
                    });
                    return Ok(index);
                }
                trace.note_sentence(|| {
                    "the member that the custom strategy has named cannot be used any more: the group's own \
                     strategy decides".into()
                });
            }
            Advice::Nobody(why) => {
                trace.note_sentence(|| {
                    format!("the custom strategy has not decided ({why}): the group's own strategy decides")
                });
            }
        }
        self.ask_zones(view, rng, trace)
    }
}
