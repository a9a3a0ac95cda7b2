//! Strategies: who gets the next request.
//!
//! A strategy is one file here and one line in [`REGISTRY`]. It is then in the
//! configuration, the admin API and the simulation.

use std::fmt;

use crate::alert::Threshold;
use crate::group::{Granularity, GroupSettings, View};
use crate::load::LoadId;
use crate::member::Member;
use crate::trace::Trace;

mod adaptive;
mod by_load;
mod choose;
mod hash;
mod k_least_loaded;
pub mod key;
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
mod shares;
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

    /// What of a request it looks at: what its [`Kind`] says. What one client gets where that
    /// decides is no sample of what the member does.
    fn sees(&self) -> Sees {
        Sees::Nothing
    }

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

    /// Whether the values go together.
    pub fn check(&self) -> Result<(), ParamError> {
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
    /// Two thresholds are the wrong way round.
    #[error("a critical_threshold of {critical} is not above the reject_threshold of {reject}")]
    Thresholds {
        /// The one that is to be higher.
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

/// What of a request a strategy has to see. Nobody finds out more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sees {
    /// Nothing: all requests are alike.
    Nothing,
    /// The client's address.
    Client,
    /// The part of it that the group's [`hash_key`](GroupSettings::hash_key) names.
    Key,
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
    /// Whether loads that are reported mean anything to it.
    pub looks_at_loads: bool,
    /// What of a request it has to see.
    pub sees: Sees,
    /// What is wrong with values of which each is in its range.
    pub check: fn(&Values) -> Result<(), ParamError>,
    /// Makes an instance for a group with these members.
    pub build: fn(&Values, &[Member]) -> Box<dyn Strategy>,
}

impl Kind {
    /// What is true of most strategies. Name, parameters and how to make it are each one's own.
    const USUAL: Kind = Kind {
        name: "",
        doc: "",
        params: &[],
        looks_at_loads: true,
        sees: Sees::Nothing,
        check: |_| Ok(()),
        build: |_, _| Box::<round_robin::RoundRobin>::default(),
    };
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
    hash::SOURCE_IP_HASH,
    hash::HASH,
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

/// The strategy used when none is named and clients are not bound.
pub fn default_kind() -> &'static Kind {
    &REGISTRY[0]
}

/// How the clients of a group reach its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// We carry what they send and receive.
    Carried,
    /// They go there themselves, and come back when a load alert sends them
    /// (`LOCATION_FORWARD`).
    Forwarded,
    /// They go there themselves, for a quantum (redirects, negotiation).
    Redirected,
}

/// Above which share of the average a location is alerted by default where alerts are no
/// pulses. Nobody knows there what one client brings: they leave one after the
/// other until a report shows relief, and a smaller excess would send them on for ever. A larger
/// one would leave two clients too many where each location has two or three.
pub const EXCESS: f64 = 0.25;

/// The strategy of a group that names none.
///
/// Where the strategy is asked for every request, or we carry sessions, requests in flight and
/// the learnt service time tell most: `adaptive`. Nobody can count the requests of clients
/// that go to members themselves, and who is bound on demand is to be moved when loads drift
/// apart, for which `adaptive` has no threshold: `minimum_dispersion` goes by whatever load is
/// reported, and its threshold is relative to the average. Where loads do not count, clients
/// that go to members themselves are dealt out in turn.
pub fn default_for(settings: &GroupSettings, reach: Reach) -> Values {
    let (adaptive, granularity) = (settings.adaptive, settings.granularity);
    match (reach, granularity) {
        (_, Granularity::PerRequest) | (Reach::Carried, Granularity::PerSession) => {
            Values::defaults(default_kind())
        }
        (Reach::Carried, Granularity::OnDemand) if !adaptive => Values::defaults(default_kind()),
        (Reach::Forwarded | Reach::Redirected, _) if !adaptive => {
            Values::defaults(&round_robin::KIND)
        }
        (Reach::Forwarded | Reach::Carried, _) => Values::defaults(&minimum_dispersion::KIND),
        (Reach::Redirected, _) => {
            let mut values = Values::defaults(&minimum_dispersion::KIND);
            let set = values.set(minimum_dispersion::CRITICAL_EXCESS.name, EXCESS);
            debug_assert!(set.is_ok());
            values
        }
    }
}

/// Whether the alerts of such a group are [pulses](crate::alert::AlertSettings::pulses) where we carry what
/// its clients send: strategy `minimum_dispersion` is made for those. Connections of which
/// nothing is understood are closed when they are silent (`close_idle`), which takes longer;
/// and whoever has set a threshold means that clients leave until loads are below it.
pub fn carries_in_pulses(settings: &GroupSettings, strategy: &Kind) -> bool {
    settings.adaptive
        && settings.granularity == Granularity::OnDemand
        && settings.alert.close_idle.is_none()
        && settings.alert.threshold.is_none()
        && *strategy == minimum_dispersion::KIND
}

/// The load that a strategy goes by where a group names none. Policy LU is about the
/// utilisation that an application has measured; a location that does not report it counts with
/// its `cpu` (see [`crate::load::Location::projected`]).
pub fn default_load(kind: &Kind) -> LoadId {
    match *kind == least_utilization::KIND {
        true => LoadId::UTILIZATION,
        false => LoadId::CPU,
    }
}
