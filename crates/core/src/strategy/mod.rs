//! Strategies: who gets the next request.
//!
//! A strategy is one file here and one line in [`REGISTRY`]. It is then in the
//! configuration, the admin API and the harness.

use std::fmt;

use crate::analyzer::Threshold;
use crate::group::View;
use crate::member::Member;
use crate::trace::Trace;

mod adaptive;
mod by_load;
mod choose;
mod k_least_loaded;
mod least_active_sessions;
mod least_connection;
pub mod least_loaded;
mod least_request;
mod least_utilization;
pub mod load_average;
pub mod load_minimum;
pub mod minimum_dispersion;
mod peak_ewma;
mod prequal;
mod random;
mod round_robin;
mod source_ip_hash;
mod stride;
mod weighted_by_load;

/// Picks the next member of a group. Called by all workers at once, on the hot path:
/// implementations take no lock and allocate nothing (unless the trace is on).
pub trait Strategy: fmt::Debug + Send + Sync {
    /// The name by which the configuration knows it.
    fn name(&self) -> &'static str;

    /// Index of the chosen member, or `None` if no member is eligible.
    ///
    /// Picks only members for which [`View::is_eligible`] holds, finds one whenever
    /// there is one, and notes in `trace` what it looked at.
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize>;

    /// Above which effective load a location is told to shed what it has, if the
    /// strategy has an opinion about that.
    fn alert_threshold(&self) -> Option<Threshold> {
        None
    }
}

/// A numeric parameter of a strategy, as configuration and documentation see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Param {
    /// Key in the configuration.
    pub name: &'static str,
    /// What it means, in a sentence.
    pub doc: &'static str,
    /// Unit ("ms", "requests", "" for a plain number).
    pub unit: &'static str,
    /// Value if none is given.
    pub default: f64,
    /// Smallest allowed value.
    pub min: f64,
    /// Largest allowed value.
    pub max: f64,
    /// Whether only whole numbers are allowed.
    pub integer: bool,
}

/// Values of a strategy's parameters, every one present and in its range.
#[derive(Clone, Debug, PartialEq)]
pub struct Values {
    kind: &'static Kind,
    values: Vec<f64>,
}

impl Values {
    /// All defaults of `kind`.
    pub fn defaults(kind: &'static Kind) -> Self {
        Values {
            kind,
            values: kind.params.iter().map(|param| param.default).collect(),
        }
    }

    /// Sets one parameter.
    pub fn set(&mut self, name: &str, value: f64) -> Result<(), ParamError> {
        let index = self.kind.params.iter().position(|param| param.name == name);
        let (Some(index), kind) = (index, self.kind) else {
            return Err(ParamError::Unknown {
                name: name.into(),
                kind: self.kind,
            });
        };
        let param = &kind.params[index];
        let whole = !param.integer || value.fract() == 0.0;
        if !(param.min..=param.max).contains(&value) || !whole {
            return Err(ParamError::OutOfRange { param, value });
        }
        self.values[index] = value;
        Ok(())
    }

    /// The value of `name`, which must be a parameter of the kind.
    pub fn get(&self, name: &str) -> f64 {
        let index = self.kind.params.iter().position(|param| param.name == name);
        debug_assert!(
            index.is_some(),
            "{} has no parameter {name}",
            self.kind.name
        );
        index.map_or(0.0, |index| self.values[index])
    }

    /// The value of `name`, if the kind has such a parameter.
    pub fn try_get(&self, name: &str) -> Option<f64> {
        let index = self
            .kind
            .params
            .iter()
            .position(|param| param.name == name)?;
        Some(self.values[index])
    }

    /// The strategy that the values belong to.
    pub fn kind(&self) -> &'static Kind {
        self.kind
    }
}

/// A parameter that a strategy does not take.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParamError {
    /// No such parameter.
    #[error("strategy {} has no parameter {name:?}; it takes {}", kind.name, names(kind.params))]
    Unknown {
        /// What was asked for.
        name: String,
        /// The strategy.
        kind: &'static Kind,
    },
    /// The value is not allowed.
    #[error("{} must be {} from {} to {}, not {value}", param.name, if param.integer { "a whole number" } else { "a number" }, param.min, param.max)]
    OutOfRange {
        /// The parameter.
        param: &'static Param,
        /// What was found.
        value: f64,
    },
}

fn names(params: &[Param]) -> String {
    if params.is_empty() {
        return "none".into();
    }
    let names: Vec<_> = params.iter().map(|param| param.name).collect();
    names.join(", ")
}

/// A strategy as the registry knows it.
#[derive(Debug)]
pub struct Kind {
    /// Name in the configuration.
    pub name: &'static str,
    /// What it does and when to use it, in a sentence.
    pub doc: &'static str,
    /// Its parameters.
    pub params: &'static [Param],
    /// Makes an instance for a group with these members.
    pub build: fn(&Values, &[Member]) -> Box<dyn Strategy>,
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// All strategies, the default first.
pub static REGISTRY: &[Kind] = &[
    adaptive::KIND,
    least_request::KIND,
    round_robin::KIND,
    random::KIND,
    least_connection::KIND,
    source_ip_hash::KIND,
    peak_ewma::KIND,
    prequal::KIND,
    least_loaded::KIND,
    load_minimum::KIND,
    load_average::KIND,
    minimum_dispersion::KIND,
    least_active_sessions::KIND,
    least_utilization::KIND,
    k_least_loaded::KIND,
    weighted_by_load::KIND,
];

/// The strategy called `name`.
pub fn find(name: &str) -> Option<&'static Kind> {
    REGISTRY.iter().find(|kind| kind.name == name)
}

/// The strategy used when none is named.
pub fn default_kind() -> &'static Kind {
    &REGISTRY[0]
}
