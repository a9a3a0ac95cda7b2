//! Kinds of strategies: their parameters, and their behaviour.

use std::fmt;

use crate::alert::Threshold;
use crate::group::view::View;
use crate::member::Member;
use crate::terms::Form;
use crate::trace::Trace;

/// Picks the next member of a group. Called by all workers at once, on the hot path:
/// implementations take no lock and allocate nothing (unless the trace is on).
pub trait Strategy: fmt::Debug + Send + Sync {
    /// Index of the chosen member, or `None` if no member is eligible.
    ///
    /// Picks only members for which [`View::is_eligible`] holds, finds one whenever
    /// there is one, and notes in `trace` what it looked at.
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize>;

    /// Multiplies `weights`, one for each member, by the strategy's factors according to loads, after the step that is
    /// due: for [`Group::fill_weights`](crate::group::Group::fill_weights). Returns true if the strategy has such factors.
    fn weigh(&self, _view: &View<'_>, _weights: &mut [f32]) -> bool {
        false
    }

    /// Fills in the cost of a connection to each member when it is idle, for [`Group::fill_costs`](crate::group::Group::fill_costs)
    /// and a program that makes the strategy's decisions by [`terms`](crate::terms). Returns the form of these decisions;
    /// with forms other than [`Form::Score`] and [`Form::Prequal`] no cost is filled in.
    fn fill_costs(&self, _view: &View<'_>, _costs: &mut Vec<f32>) -> Form {
        Form::Turns
    }

    /// Effective load above which a location is told to shed its clients, if the strategy has such a threshold.
    fn alert_threshold(&self) -> Option<Threshold> {
        None
    }
}

/// A numeric parameter of a strategy, as configuration and documentation see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Param {
    /// Key in the configuration.
    pub name: &'static str,
    /// Meaning of the parameter, in a sentence.
    pub doc: &'static str,
    /// Unit ("ms", "requests", "" for a plain number).
    pub unit: &'static str,
    /// Value if none is given.
    pub default: f64,
    /// Smallest allowed value.
    pub min: f64,
    /// Largest allowed value.
    pub max: f64,
    /// True if only whole numbers are allowed.
    pub integer: bool,
}

impl Param {
    /// A parameter for any number that is not negative, 0 if it is not set. The caller adds the name and the `doc`.
    pub(super) const NUMBER: Param = Param {
        name: "",
        doc: "",
        unit: "",
        default: 0.0,
        min: 0.0,
        max: 1e12,
        integer: false,
    };
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
        let kind = self.kind;
        let Some(index) = self.place(name) else {
            return Err(ParamError::Unknown {
                name: name.into(),
                kind,
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
        let value = self.try_get(name);
        debug_assert!(
            value.is_some(),
            "{} has no parameter {name}",
            self.kind.name
        );
        value.unwrap_or_default()
    }

    /// The value of `name`, if the kind has such a parameter.
    pub fn try_get(&self, name: &str) -> Option<f64> {
        self.place(name).map(|index| self.values[index])
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.kind.params.iter().position(|param| param.name == name)
    }

    /// Checks that the values go together.
    pub fn check_params(&self) -> Result<(), ParamError> {
        (self.kind.check)(self)
    }

    /// The strategy that the values belong to.
    pub fn kind(&self) -> &'static Kind {
        self.kind
    }
}

/// A parameter that a strategy does not take.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParamError {
    /// The strategy has no such parameter.
    #[error("strategy {} has no parameter {name:?}; it takes {}", kind.name, names(kind.params))]
    Unknown {
        /// Name that was asked for.
        name: String,
        /// The strategy.
        kind: &'static Kind,
    },
    /// The value is not allowed.
    #[error("{} must be {} from {} to {}, not {value}", param.name, if param.integer { "a whole number" } else { "a number" }, param.min, param.max)]
    OutOfRange {
        /// The parameter.
        param: &'static Param,
        /// Value that was given.
        value: f64,
    },
    /// Two thresholds are the wrong way round.
    #[error("a critical_threshold of {critical} is not above the reject_threshold of {reject}")]
    Thresholds {
        /// The threshold that must be higher.
        critical: f64,
        /// The other one.
        reject: f64,
    },
}

fn names(params: &[Param]) -> String {
    if params.is_empty() {
        return "none".into();
    }
    let names: Vec<_> = params.iter().map(|param| param.name).collect();
    names.join(", ")
}

/// Part of a request that a strategy has to see. No other part is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestNeeds {
    /// No part: all requests are alike.
    Nothing,
    /// The client's address.
    Client,
    /// The part of the request that the group's [`hash_key`](crate::group::GroupSettings::hash_key) names.
    Key,
    /// The body, of which a plan is made before the decision ([`Request::plan`](crate::group::Request::plan)).
    Body,
}

/// A strategy as the registry knows it.
#[derive(Debug)]
pub struct Kind {
    /// Name in the configuration.
    pub name: &'static str,
    /// Behaviour and use of the strategy, in a sentence.
    pub doc: &'static str,
    /// Parameters of the strategy.
    pub params: &'static [Param],
    /// True if the strategy uses reported loads.
    pub looks_at_loads: bool,
    /// True if requests wait for the member that will have them done first, where the group has no such setting.
    pub binds_late: bool,
    /// Part of a request that the strategy has to see.
    pub request_needs: RequestNeeds,
    /// Check of values that are each within their range.
    pub check: fn(&Values) -> Result<(), ParamError>,
    /// Makes an instance for a group with these members.
    pub build: fn(&Values, &[Member]) -> Box<dyn Strategy>,
}

impl Kind {
    /// Kind with the properties of most strategies, for a strategy that `build` makes. The caller adds the name and the
    /// `doc`.
    pub(super) const fn made_by(build: fn(&Values, &[Member]) -> Box<dyn Strategy>) -> Kind {
        Kind {
            name: "",
            doc: "",
            params: &[],
            looks_at_loads: true,
            binds_late: false,
            request_needs: RequestNeeds::Nothing,
            check: |_| Ok(()),
            build,
        }
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}
