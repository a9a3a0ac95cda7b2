//! Properties: what object groups can be told, at three levels.
//!
//! Strongest first: the group's own (given at its creation, or later), those of its type
//! (the repository id of its interface), the defaults. What counts is put together anew
//! whenever it is asked for, so a changed default or type property changes the groups that
//! use it at once.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use evenkeel_config::GroupConfig;
use evenkeel_core::group::Granularity;
use evenkeel_core::load::LoadId;
use evenkeel_core::strategy::{Kind, Values};
use evenkeel_giop::any::Any;
use evenkeel_giop::ior::Ior;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::exceptions::UserException;
use crate::name::Name;
use crate::strategies::{self, Refusal};
use crate::types::{FactoryInfo, Properties, Property, StrategyInfo, value_of};

/// Membership style: the side that makes a group's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// The application adds and removes them.
    Application,
    /// The load manager makes them by factories, and replaces them.
    Infrastructure,
}

/// Number of members that a group has at first, and at least, if no property says it.
const DEFAULT_MEMBERS: u16 = 2;

/// Place at which properties are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// For all groups.
    Default,
    /// For groups of a type.
    Type,
    /// For a group that is being created.
    Creation,
    /// For a group that exists.
    Group,
}

/// A property that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PropertyId {
    MembershipStyle,
    InitialNumberMembers,
    MinimumNumberMembers,
    MaximumNumberMembers,
    Factories,
    StrategyInfo,
    Strategy,
    CustomStrategy,
    Fallback,
    GroupName,
    Granularity,
    Adaptive,
    RebindInterval,
    LoadId,
    MoveShare,
}

/// Name of the property that the load manager sets itself: a reference to the strategy
/// that StrategyInfo describes.
pub const STRATEGY: &str = "org.omg.CosLoadBalancing.Strategy";

/// Names of the properties that say how many members a group has, and who makes them.
pub const INITIAL_MEMBERS: &str = "org.omg.PortableGroup.InitialNumberMembers";
/// Name of the property for the largest number of members.
pub const MAXIMUM_MEMBERS: &str = "org.evenkeel.MaximumNumberMembers";
/// Name of the property for the factories that make members.
pub const FACTORIES: &str = "org.omg.PortableGroup.Factories";

/// Name of the property that names a group.
pub const GROUP_NAME: &str = "org.evenkeel.GroupName";

const NAMES: [(&str, PropertyId); 15] = [
    (
        "org.omg.PortableGroup.MembershipStyle",
        PropertyId::MembershipStyle,
    ),
    (INITIAL_MEMBERS, PropertyId::InitialNumberMembers),
    (
        "org.omg.PortableGroup.MinimumNumberMembers",
        PropertyId::MinimumNumberMembers,
    ),
    (MAXIMUM_MEMBERS, PropertyId::MaximumNumberMembers),
    (FACTORIES, PropertyId::Factories),
    (
        "org.omg.CosLoadBalancing.StrategyInfo",
        PropertyId::StrategyInfo,
    ),
    (STRATEGY, PropertyId::Strategy),
    (
        "org.omg.CosLoadBalancing.CustomStrategy",
        PropertyId::CustomStrategy,
    ),
    ("org.evenkeel.Fallback", PropertyId::Fallback),
    (GROUP_NAME, PropertyId::GroupName),
    ("org.evenkeel.Granularity", PropertyId::Granularity),
    ("org.evenkeel.Adaptive", PropertyId::Adaptive),
    ("org.evenkeel.RebindInterval", PropertyId::RebindInterval),
    ("org.evenkeel.LoadId", PropertyId::LoadId),
    ("org.evenkeel.MoveShare", PropertyId::MoveShare),
];

/// A property's value, as it is understood.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Membership(Membership),
    Initial(u16),
    Minimum(u16),
    Maximum(u16),
    Factories(Vec<FactoryInfo>),
    Strategy(Values),
    Custom(Ior),
    Fallback(&'static Kind),
    GroupName(String),
    Granularity(Granularity),
    Adaptive(bool),
    RebindInterval(Duration),
    LoadId(LoadId),
    MoveShare(f32),
}

/// A property that is set: as it was given, and as it is understood.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    any: Any,
    value: Value,
    /// Size of `any` in CDR, in bytes.
    size: usize,
}

/// The properties that are set at one level. All of them are valid.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PropertySet {
    entries: BTreeMap<PropertyId, Entry>,
    /// Properties with no meaning for Evenkeel: the application's own, or those of other load
    /// managers. They are kept for anybody who asks for them.
    others: BTreeMap<Name, Any>,
}

impl PropertySet {
    /// Nothing is set.
    pub const EMPTY: PropertySet = PropertySet {
        entries: BTreeMap::new(),
        others: BTreeMap::new(),
    };

    /// About how many bytes were given for it.
    pub fn size(&self) -> usize {
        let others = self.others.iter();
        let others = others.map(|(name, any)| name.to_string().len() + any.encoded_size());
        let known = self.entries.values().map(|entry| entry.size);
        known.chain(others).sum()
    }

    /// Returns true if no property is set.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.others.is_empty()
    }

    /// Reads properties that are to be set at `scope`.
    ///
    /// One that is not known is kept as it is. One that is known, but not at this scope, or
    /// that has no name, is UnsupportedProperty; a value that it cannot have, and a property
    /// that is there twice, is InvalidProperty, which names the property within StrategyInfo
    /// if it is that one. Known names have one component with an empty kind. That a custom
    /// strategy is one is for the caller to find out, by a call.
    pub fn read(properties: &Properties, scope: Scope) -> Result<Self, UserException> {
        let mut set = PropertySet::default();
        for property in properties {
            let unsupported = || UserException::UnsupportedProperty(property.clone());
            if property.nam.0.is_empty() {
                return Err(unsupported());
            }
            let Some(id) = id_of(&property.nam) else {
                let (name, value) = (property.nam.clone(), property.val.clone());
                match set.others.insert(name, value) {
                    None => continue,
                    Some(_) => return Err(UserException::InvalidProperty(property.clone())),
                }
            };
            // A group keeps its name: references say it.
            if id == PropertyId::GroupName && scope != Scope::Creation {
                return Err(unsupported());
            }
            let entry = Entry {
                any: property.val.clone(),
                value: understand(id, property)?,
                size: property.val.encoded_size(),
            };
            if set.entries.insert(id, entry).is_some() {
                return Err(UserException::InvalidProperty(property.clone()));
            }
        }
        Ok(set)
    }

    /// Sets what `others` sets; what is set otherwise stays.
    pub fn set(&mut self, others: PropertySet) {
        self.entries.extend(others.entries);
        self.others.extend(others.others);
    }

    /// Unsets the properties with these names, whatever their values. One that is not set
    /// stays so.
    pub fn remove(&mut self, properties: &Properties) {
        for property in properties {
            match id_of(&property.nam) {
                Some(id) => drop(self.entries.remove(&id)),
                None => drop(self.others.remove(&property.nam)),
            }
        }
    }

    /// Returns the properties that are set, with their values as they were given.
    pub fn properties(&self) -> Properties {
        listed(self.entries.iter(), self.others.iter())
    }

    /// The strategy of StrategyInfo, if it is set at this level.
    pub fn strategy(&self) -> Option<&Values> {
        match &self.entries.get(&PropertyId::StrategyInfo)?.value {
            Value::Strategy(values) => Some(values),
            _ => None,
        }
    }

    /// Returns the membership style, if it is set at this level.
    pub fn membership(&self) -> Option<Membership> {
        match self.entries.get(&PropertyId::MembershipStyle)?.value {
            Value::Membership(membership) => Some(membership),
            _ => None,
        }
    }

    /// The custom strategy, if it is set at this level.
    pub fn custom_strategy(&self) -> Option<&Ior> {
        match &self.entries.get(&PropertyId::CustomStrategy)?.value {
            Value::Custom(ior) => Some(ior),
            _ => None,
        }
    }

    /// Each property that is set: its name, and what its value means, for people.
    pub fn describe(&self) -> impl Iterator<Item = (String, String)> {
        let entries = self.entries.iter();
        let entries = entries.map(|(&id, entry)| (name_of(id).into(), entry.value.to_string()));
        let others = self.others.keys();
        entries.chain(others.map(|name| (name.to_string(), NOT_KNOWN.into())))
    }
}

/// The properties that count for a group, as they were given at whatever level.
///
/// The property [`STRATEGY`] is not among them: which object that is only the service
/// knows.
pub fn merge_properties(
    group: &PropertySet,
    of_type: &PropertySet,
    default: &PropertySet,
) -> Properties {
    let (mut entries, mut others) = (BTreeMap::new(), BTreeMap::new());
    for set in [default, of_type, group] {
        if overrides_custom(set) {
            entries.remove(&PropertyId::CustomStrategy);
        }
        entries.extend(&set.entries);
        others.extend(&set.others);
    }
    listed(entries.into_iter(), others.into_iter())
}

/// Settings in effect for a group, from the properties of all levels.
#[derive(Clone, Debug, PartialEq)]
pub struct EffectiveSettings {
    /// Membership style of the group.
    pub membership: Membership,
    /// Members that are made at first.
    pub initial_members: u16,
    /// Members that it is to have at least.
    pub minimum_members: u16,
    /// Members that it may have while all are overloaded, if it may have more than the
    /// minimum. Never below `minimum_members`.
    pub maximum_members: Option<u16>,
    /// Factories that make members.
    pub factories: Vec<FactoryInfo>,
    /// The name that the creator gave.
    pub group_name: Option<String>,
    /// The built-in strategy; `None` is that of the configuration. Where there is a custom
    /// strategy, this one decides while that does not answer.
    pub strategy: Option<Values>,
    /// The custom strategy.
    pub custom_strategy: Option<Ior>,
    /// Granularity at which the strategy is asked. `None` stands for the value in the
    /// configuration, here and in all fields that follow.
    pub granularity: Option<Granularity>,
    /// True if loads and alerts count.
    pub adaptive: Option<bool>,
    /// Time that a binding lasts if loads and alerts do not count.
    pub rebind_interval: Option<Duration>,
    /// Load that counts.
    pub load_id: Option<LoadId>,
    /// Share of the clients that leave in each step of an alert.
    pub move_share: Option<f32>,
}

impl EffectiveSettings {
    /// Writes into `config` what the properties say.
    pub fn apply_to(&self, config: &mut GroupConfig) {
        fn put<T: Clone>(value: &Option<T>, into: &mut T) {
            if let Some(value) = value {
                into.clone_from(value);
            }
        }
        put(&self.strategy, &mut config.strategy);
        config.said.strategy |= self.strategy.is_some();
        config.said.load |= self.load_id.is_some();
        config.said.move_share |= self.move_share.is_some();
        let settings = &mut config.settings;
        put(&self.granularity, &mut settings.granularity);
        put(&self.adaptive, &mut settings.adaptive);
        put(&self.rebind_interval, &mut settings.rebind_interval);
        put(&self.load_id, &mut settings.load_id);
        put(&self.move_share, &mut settings.alert.move_share);
    }
}

/// Returns the settings in effect for a group, from its own properties, those of its type and the
/// default properties.
///
/// Each property counts at the strongest level that has it. Which strategy is used is one
/// question: at the strongest level that answers it, a custom strategy is preferred to a
/// built-in one, which is then used while the custom one does not answer (unless
/// `org.evenkeel.Fallback` names another). So a group that names a built-in strategy does
/// not get the custom one of its type.
pub fn effective_settings(
    group: &PropertySet,
    of_type: &PropertySet,
    default: &PropertySet,
) -> EffectiveSettings {
    let mut counts = EffectiveSettings {
        membership: Membership::Infrastructure,
        initial_members: DEFAULT_MEMBERS,
        minimum_members: DEFAULT_MEMBERS,
        maximum_members: None,
        factories: Vec::new(),
        group_name: None,
        strategy: None,
        custom_strategy: None,
        granularity: None,
        adaptive: None,
        rebind_interval: None,
        load_id: None,
        move_share: None,
    };
    let mut fallback = None;
    for set in [default, of_type, group] {
        if overrides_custom(set) {
            counts.custom_strategy = None;
        }
        for entry in set.entries.values() {
            match entry.value.clone() {
                Value::Membership(membership) => counts.membership = membership,
                Value::Initial(members) => counts.initial_members = members,
                Value::Minimum(members) => counts.minimum_members = members,
                Value::Maximum(members) => counts.maximum_members = Some(members),
                Value::Factories(factories) => counts.factories = factories,
                Value::Strategy(values) => counts.strategy = Some(values),
                Value::Custom(custom) => counts.custom_strategy = Some(custom),
                Value::Fallback(kind) => fallback = Some(kind),
                Value::GroupName(name) => counts.group_name = Some(name),
                Value::Granularity(granularity) => counts.granularity = Some(granularity),
                Value::Adaptive(adaptive) => counts.adaptive = Some(adaptive),
                Value::RebindInterval(interval) => counts.rebind_interval = Some(interval),
                Value::LoadId(id) => counts.load_id = Some(id),
                Value::MoveShare(share) => counts.move_share = Some(share),
            }
        }
    }
    counts.maximum_members = counts
        .maximum_members
        .map(|most| most.max(counts.minimum_members));
    if let (Some(kind), Some(_)) = (fallback, &counts.custom_strategy) {
        let same = counts
            .strategy
            .take()
            .filter(|values| values.kind() == kind);
        counts.strategy = Some(same.unwrap_or_else(|| Values::defaults(kind)));
    }
    counts
}

/// Returns true if `set` names a built-in strategy, which takes precedence over custom strategies
/// of weaker levels.
fn overrides_custom(set: &PropertySet) -> bool {
    set.entries.contains_key(&PropertyId::StrategyInfo)
}

fn listed<'a>(
    entries: impl Iterator<Item = (&'a PropertyId, &'a Entry)>,
    others: impl Iterator<Item = (&'a Name, &'a Any)>,
) -> Properties {
    let entries = entries.map(|(&id, entry)| Property {
        nam: Name::from_id(name_of(id)),
        val: entry.any.clone(),
    });
    let others = others.map(|(name, any)| Property {
        nam: name.clone(),
        val: any.clone(),
    });
    entries.chain(others).collect()
}

/// Text that is shown as the value of a property with no meaning for Evenkeel.
const NOT_KNOWN: &str = "kept for the application";

fn id_of(name: &Name) -> Option<PropertyId> {
    let called = name.as_simple()?;
    let found = NAMES.iter().find(|&&(name, _)| name == called);
    found.map(|&(_, id)| id)
}

fn name_of(id: PropertyId) -> &'static str {
    let found = NAMES.iter().find(|&&(_, of)| of == id);
    found.map_or("", |&(name, _)| name)
}

/// Returns the meaning of a property's value; InvalidProperty if it has none.
fn understand(id: PropertyId, property: &Property) -> Result<Value, UserException> {
    let any = &property.val;
    let valid = match id {
        PropertyId::MembershipStyle => value_of::<i32>(any).and_then(|style| match style {
            0 => Some(Value::Membership(Membership::Application)),
            1 => Some(Value::Membership(Membership::Infrastructure)),
            _ => None,
        }),
        PropertyId::InitialNumberMembers => value_of(any).map(Value::Initial),
        PropertyId::MinimumNumberMembers => value_of(any).map(Value::Minimum),
        PropertyId::MaximumNumberMembers => {
            value_of(any).filter(|&most| most > 0).map(Value::Maximum)
        }
        PropertyId::Factories => value_of(any)
            .filter(|factories: &Vec<_>| are_factories(factories))
            .map(Value::Factories),
        PropertyId::StrategyInfo => {
            match value_of::<StrategyInfo>(any).map(|info| strategies::values_of(&info)) {
                Some(Ok(values)) => Some(Value::Strategy(values)),
                Some(Err(Refusal::Property(inner))) => {
                    return Err(UserException::InvalidProperty(*inner));
                }
                Some(Err(Refusal::Unknown)) | None => None,
            }
        }
        // The load manager's own.
        PropertyId::Strategy => None,
        PropertyId::CustomStrategy => any
            .as_reference()
            .filter(|ior| !ior.is_nil())
            .map(Value::Custom),
        PropertyId::Fallback => value_of::<String>(any)
            .and_then(|name| strategies::find(&name))
            .map(Value::Fallback),
        PropertyId::GroupName => value_of::<String>(any)
            .filter(|name| is_group_name(name))
            .map(Value::GroupName),
        PropertyId::Granularity => value_of::<String>(any)
            .and_then(|text| GRANULARITIES.iter().find(|(name, _)| *name == text))
            .map(|&(_, granularity)| Value::Granularity(granularity)),
        PropertyId::Adaptive => value_of(any).map(Value::Adaptive),
        PropertyId::RebindInterval => value_of::<f32>(any)
            .filter(|seconds| (0.001..=86_400.0).contains(seconds))
            .map(|seconds| Value::RebindInterval(Duration::from_secs_f32(seconds))),
        PropertyId::LoadId => value_of(any).map(|id| Value::LoadId(LoadId(id))),
        PropertyId::MoveShare => value_of(any)
            .filter(|share| (0.01..=1.0).contains(share))
            .map(Value::MoveShare),
    };
    valid.ok_or_else(|| UserException::InvalidProperty(property.clone()))
}

const GRANULARITIES: [(&str, Granularity); 3] = [
    ("per_session", Granularity::PerSession),
    ("per_request", Granularity::PerRequest),
    ("on_demand", Granularity::OnDemand),
];

/// Prefix of the names of groups that were created without a name.
pub const GROUP_PREFIX: &str = "corba-";

fn is_group_name(name: &str) -> bool {
    evenkeel_config::is_name(name) && !name.starts_with(GROUP_PREFIX)
}

/// Returns true if each factory has a reference and a location, and no two have the same location:
/// a group has at most one member at each.
fn are_factories(factories: &[FactoryInfo]) -> bool {
    let mut locations: Vec<_> = factories.iter().map(|info| &info.the_location).collect();
    locations.sort_unstable();
    let distinct = locations.windows(2).all(|two| two.first() != two.last());
    let complete =
        |info: &FactoryInfo| !info.the_factory.is_nil() && !info.the_location.0.is_empty();
    distinct && factories.iter().all(complete)
}

/// A property in the state file.
#[derive(Deserialize, Serialize)]
struct Stored {
    name: String,
    /// True if the property has no meaning for Evenkeel; `name` is then a path of the naming
    /// service.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    other: bool,
    /// Meaning of the value, for people. Written, but never read.
    #[serde(skip_deserializing)]
    means: String,
    /// The value: an Any, as [`Any`] writes itself as text.
    any: String,
}

/// Writes a list of properties, each with its value as it was given.
impl Serialize for PropertySet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let stored = self.entries.iter().map(|(&id, entry)| Stored {
            name: name_of(id).into(),
            other: false,
            means: entry.value.to_string(),
            any: entry.any.to_string(),
        });
        let others = self.others.iter().map(|(name, any)| Stored {
            name: name.to_string(),
            other: true,
            means: NOT_KNOWN.into(),
            any: any.to_string(),
        });
        serializer.collect_seq(stored.chain(others))
    }
}

/// Checked in the same way as what clients send.
impl<'de> Deserialize<'de> for PropertySet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stored = Vec::<Stored>::deserialize(deserializer)?;
        let properties = stored.into_iter().map(|stored| {
            let Stored {
                name, other, any, ..
            } = stored;
            let val = any.parse().map_err(|error| {
                D::Error::custom(format!(
                    "the value of property {name} is not a valid Any: {error}"
                ))
            })?;
            let nam = match other {
                true => name.parse().map_err(D::Error::custom)?,
                false => Name::from_id(&name),
            };
            if !other && id_of(&nam).is_none() {
                return Err(D::Error::custom(format!("property {name} is not known")));
            }
            Ok(Property { nam, val })
        });
        let properties = properties.collect::<Result<_, D::Error>>()?;
        PropertySet::read(&properties, Scope::Creation).map_err(D::Error::custom)
    }
}

/// For people.
impl fmt::Display for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Membership(Membership::Application) => out.write_str("application"),
            Value::Membership(Membership::Infrastructure) => out.write_str("infrastructure"),
            Value::Initial(members) | Value::Minimum(members) | Value::Maximum(members) => {
                write!(out, "{members}")
            }
            Value::Factories(factories) => {
                let at: Vec<_> = factories
                    .iter()
                    .map(|f| f.the_location.to_string())
                    .collect();
                out.write_str(&at.join(", "))
            }
            Value::Strategy(values) => {
                out.write_str(&strategies::name(values.kind()))?;
                for param in values.kind().params {
                    write!(out, " {}={}", param.name, values.get(param.name))?;
                }
                Ok(())
            }
            Value::Custom(ior) => write!(out, "{ior}"),
            Value::Fallback(kind) => out.write_str(&strategies::name(kind)),
            Value::GroupName(name) => out.write_str(name),
            Value::Granularity(granularity) => {
                let name = GRANULARITIES.iter().find(|(_, of)| of == granularity);
                out.write_str(name.map_or("", |(name, _)| name))
            }
            Value::Adaptive(adaptive) => write!(out, "{adaptive}"),
            Value::RebindInterval(interval) => write!(out, "{interval:?}"),
            Value::LoadId(id) => write!(out, "{}", id.0),
            Value::MoveShare(share) => write!(out, "{share}"),
        }
    }
}

#[cfg(test)]
mod tests;
