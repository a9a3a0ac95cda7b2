//! Strategies by the names that CORBA clients have for them.
//!
//! Every strategy of `core`'s registry has one: that of the configuration in camel case, so
//! that `least_loaded` is `LeastLoaded`. Its parameters are properties, all `float`:
//! `org.omg.CosLoadBalancing.Strategy.LeastLoaded.RejectThreshold`.

use evenkeel_core::strategy::shaping::DAMPENING;
use evenkeel_core::strategy::{Kind, Param, REGISTRY, Values};

use crate::name::Name;
use crate::types::{Properties, Property, StrategyInfo, value_of};

/// Prefix of the names of parameters.
const PREFIX: &str = "org.omg.CosLoadBalancing.Strategy.";

/// A StrategyInfo that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such strategy.
    Unknown,
    /// A property that is given twice, has another type than `float`, is out of its range, or
    /// contradicts another one.
    Property(Box<Property>),
}

/// `snake_case` as `CamelCase`.
fn camel(name: &str) -> String {
    let words = name.split('_').map(|word| {
        let mut letters = word.chars();
        let first = letters.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    });
    words.collect()
}

/// Returns the name of a strategy for CORBA clients.
pub fn name(kind: &Kind) -> String {
    camel(kind.name)
}

/// The strategy that CORBA clients call so.
pub fn find(called: &str) -> Option<&'static Kind> {
    REGISTRY.iter().find(|kind| name(kind) == called)
}

fn property_name(kind: &Kind, param: &Param) -> String {
    format!("{PREFIX}{}.{}", name(kind), camel(param.name))
}

/// The strategy and its parameters. What is not given has the default of the
/// configuration; what is not a parameter of this strategy does not count.
pub fn values_of(info: &StrategyInfo) -> Result<Values, Refusal> {
    let kind = find(&info.name).ok_or(Refusal::Unknown)?;
    let mut values = Values::defaults(kind);
    let mut given: Vec<&Name> = Vec::new();
    for property in &info.props {
        let refusal = || Refusal::Property(Box::new(property.clone()));
        let called = property.nam.as_simple().unwrap_or_default();
        let param = kind
            .params
            .iter()
            .find(|param| property_name(kind, param) == called);
        // What means nothing to this strategy may mean something to the application.
        let Some(param) = param else { continue };
        let Some(value) = value_of::<f32>(&property.val) else {
            return Err(refusal());
        };
        if given.contains(&&property.nam) {
            return Err(refusal());
        }
        given.push(&property.nam);
        values
            .set(param.name, as_given(param, value))
            .map_err(|_| refusal())?;
    }
    match (values.check_params(), info.props.last()) {
        (Err(_), Some(last)) => Err(Refusal::Property(Box::new(last.clone()))),
        _ => Ok(values),
    }
}

/// The number that was meant: `0.9f32` is 0.9, and not 0.8999999761581421.
fn as_given(param: &Param, value: f32) -> f64 {
    let value = value.to_string().parse().unwrap_or(f64::from(value));
    // Here any dampening below 1 is valid. From the limit on, loads follow the reports so
    // slowly that it makes no difference.
    match param.name == DAMPENING.name && value < 1.0 {
        true => value.min(param.max),
        false => value,
    }
}

/// The parameters of a strategy as properties, all of them.
pub fn properties_of(values: &Values) -> Properties {
    let kind = values.kind();
    let params = kind.params.iter();
    let property = |param: &Param| {
        let value = values.get(param.name) as f32;
        Property::new(&property_name(kind, param), &value)
    };
    params.map(property).collect()
}

#[cfg(test)]
mod tests {
    use evenkeel_giop::any::{Any, Idl};
    use evenkeel_giop::typecode::TypeCode;

    use super::*;

    fn info(name: &str, props: &[(&str, f32)]) -> StrategyInfo {
        let props = props
            .iter()
            .map(|(param, value)| Property::new(&format!("{PREFIX}{name}.{param}"), value));
        StrategyInfo {
            name: name.into(),
            props: props.collect(),
        }
    }

    #[track_caller]
    fn refused(info: &StrategyInfo, index: usize) {
        let property = Box::new(info.props[index].clone());
        assert_eq!(values_of(info), Err(Refusal::Property(property)));
    }

    #[test]
    fn the_omgs_five_strategies_have_their_names() {
        for (theirs, ours) in [
            ("RoundRobin", "round_robin"),
            ("Random", "random"),
            ("LeastLoaded", "least_loaded"),
            ("LoadMinimum", "load_minimum"),
            ("LoadAverage", "load_average"),
        ] {
            assert_eq!(values_of(&info(theirs, &[])).unwrap().kind().name, ours);
        }
        for wrong in ["", "round_robin", "roundrobin", "Nearest"] {
            assert_eq!(values_of(&info(wrong, &[])), Err(Refusal::Unknown));
        }
    }

    #[test]
    fn every_strategy_and_every_parameter_can_be_said_and_read_back() {
        for kind in REGISTRY {
            let values = Values::defaults(kind);
            let said = StrategyInfo {
                name: name(kind),
                props: properties_of(&values),
            };
            assert_eq!(said.props.len(), kind.params.len());
            assert_eq!(values_of(&said).unwrap(), values);
        }
    }

    #[test]
    fn parameters_arrive_as_they_were_meant() {
        let given = [
            ("CriticalThreshold", 0.9),
            ("RejectThreshold", 0.7),
            ("Tolerance", 1.2),
            ("Dampening", 0.1),
            ("PerBalanceLoad", 0.05),
        ];
        let values = values_of(&info("LeastLoaded", &given)).unwrap();
        assert_eq!(values.get("critical_threshold"), 0.9);
        assert_eq!(values.get("reject_threshold"), 0.7);
        assert_eq!(values.get("tolerance"), 1.2);
        assert_eq!(values.get("dampening"), 0.1);
        assert_eq!(values.get("per_balance_load"), 0.05);
    }

    #[test]
    fn a_float_behind_aliases_is_a_float() {
        let mut info = info("LoadMinimum", &[("Tolerance", 2.0)]);
        let alias = TypeCode::alias("IDL:a:1.0", "a", &f32::type_code());
        info.props[0].val = Any::of_type(alias, &2.0f32);
        assert_eq!(values_of(&info).unwrap().get("tolerance"), 2.0);
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for (param, value) in [
            ("Tolerance", 0.99),
            ("Tolerance", f32::NAN),
            ("Tolerance", f32::INFINITY),
            ("Dampening", 1.0),
            ("Dampening", -0.1),
            ("PerBalanceLoad", -1.0),
            ("RejectThreshold", -1.0),
            ("CriticalThreshold", -1.0),
        ] {
            refused(&info("LeastLoaded", &[(param, value)]), 0);
        }
        for (param, value) in [
            ("Tolerance", 1.0),
            ("Dampening", 0.0),
            ("Dampening", 0.99),
            ("Dampening", 0.999),
            ("RejectThreshold", 0.0),
        ] {
            assert!(values_of(&info("LeastLoaded", &[(param, value)])).is_ok());
        }
    }

    #[test]
    fn the_critical_threshold_is_above_the_reject_threshold() {
        let thresholds = |critical, reject| {
            let given = [("CriticalThreshold", critical), ("RejectThreshold", reject)];
            info("LeastLoaded", &given)
        };
        assert!(values_of(&thresholds(2.0, 1.0)).is_ok());
        assert!(values_of(&thresholds(0.0, 1.0)).is_ok());
        assert!(values_of(&thresholds(1.0, 0.0)).is_ok());
        refused(&thresholds(1.0, 1.0), 1);
        refused(&thresholds(1.0, 2.0), 1);
    }

    #[test]
    fn only_the_strategys_own_parameters_count_each_once() {
        let twice = info("LoadMinimum", &[("Tolerance", 1.0), ("Tolerance", 2.0)]);
        refused(&twice, 1);
        let mut double = info("LoadMinimum", &[("Tolerance", 1.0)]);
        double.props[0].val = Any::new(&1u32);
        refused(&double, 0);
    }

    #[test]
    fn what_means_nothing_to_a_strategy_does_not_count_t8() {
        let mut other = info("LoadMinimum", &[("Tolerance", 2.0)]);
        other.name = "LoadAverage".into();
        let mut kind = info("LoadMinimum", &[("Tolerance", 2.0)]);
        kind.props[0].nam.0[0].kind = "float".into();
        let mut own = info("RoundRobin", &[("Tolerance", 1.0)]);
        own.props.push(Property::new("my.own.Parameter", &true));
        for info in [
            info("LoadMinimum", &[("RejectThreshold", 1.0)]),
            other,
            kind,
            own,
        ] {
            let values = values_of(&info).unwrap();
            assert_eq!(values, Values::defaults(values.kind()));
        }
    }
}
