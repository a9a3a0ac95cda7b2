//! Counts of the negotiator.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_core::tally::Tally;
use evenkeel_manager::exposition::{Exposition, Type};
use strum::VariantArray;

use super::decide::Refusal;

/// Ending of a negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Ending {
    /// The client got a redirect to a member.
    Redirected,
    /// The client got an answer for programs.
    Answered,
    /// Refused: no member takes traffic.
    NoMember,
    /// Refused: no member is known to have the response time.
    ResponseTime,
    /// Refused: no member has room left for the class.
    ClassLimit,
}

impl Ending {
    /// All endings, in the order in which they are shown.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The name that metrics and the admin API use.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl From<Refusal> for Ending {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoMember => Ending::NoMember,
            Refusal::ResponseTime(_) => Ending::ResponseTime,
            Refusal::Class(_) => Ending::ClassLimit,
        }
    }
}

/// Reason why a request was no negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Unheard {
    /// `Host` or target could be understood in two ways, or not at all.
    Malformed,
    /// `Host` is no site of ours.
    UnknownHost,
    /// There is no such cluster.
    UnknownCluster,
    /// The cluster has no such class.
    UnknownClass,
    /// A parameter, or a field, is wrong.
    BadParameter,
    /// The method is not for this.
    Method,
}

impl Unheard {
    /// All reasons, in the order in which they are shown.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The name that metrics and answers use.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Counters of the negotiator. The counters only ever grow, and outlive every change of the configuration.
#[derive(Debug, Default)]
pub struct Metrics {
    unheard: Tally<{ Unheard::ALL.len() }>,
    /// Counters by cluster and class; the class of clients that name none is empty.
    classes: Mutex<BTreeMap<(String, String), Arc<ClassCounters>>>,
}

/// Counters of one class of a cluster.
#[derive(Debug, Default)]
pub(super) struct ClassCounters(Tally<{ Ending::ALL.len() }>);

impl ClassCounters {
    pub(super) fn count(&self, ending: Ending) {
        self.0.count_at(ending as usize);
    }
}

/// Negotiations of one class of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassTotals {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the class; empty for those who name none.
    pub class: String,
    /// Number of negotiations by their ending.
    pub endings: Vec<(Ending, u64)>,
}

impl Metrics {
    pub(super) fn count(&self, unheard: Unheard) {
        self.unheard.count_at(unheard as usize);
    }

    pub(super) fn class_counters(&self, cluster: &str, class: &str) -> Arc<ClassCounters> {
        let mut classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(classes.entry((cluster.into(), class.into())).or_default())
    }

    /// Requests that were no negotiation, by why.
    pub fn unheard(&self) -> impl Iterator<Item = (Unheard, u64)> {
        self.unheard.totals_by_kind(Unheard::ALL)
    }

    /// Negotiations by cluster and class, of all that ever were configured.
    pub fn classes(&self) -> Vec<ClassTotals> {
        let classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        let totals = classes
            .iter()
            .map(|((cluster, class), counters)| ClassTotals {
                cluster: cluster.clone(),
                class: class.clone(),
                endings: counters.0.totals_by_kind(Ending::ALL).collect(),
            });
        totals.collect()
    }

    /// Writes them.
    pub(super) fn write_families(&self, out: &mut Exposition) {
        out.begin_family(
            "evenkeel_negotiations_total",
            Type::Counter,
            "Clients that negotiated, by result; class is empty for clients that name none.",
        );
        for totals in self.classes() {
            for (ending, count) in totals.endings {
                let labels = [
                    ("cluster", totals.cluster.as_str()),
                    ("class", &totals.class),
                    ("result", ending.name()),
                ];
                out.add_sample(&labels, count as f64);
            }
        }
        out.begin_family(
            "evenkeel_negotiator_unheard_total",
            Type::Counter,
            "Invalid requests to the negotiator, by reason.",
        );
        for (why, count) in self.unheard() {
            out.add_sample(&[("reason", why.name())], count as f64);
        }
    }
}
