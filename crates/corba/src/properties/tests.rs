use evenkeel_config::Reach;
use evenkeel_giop::any::Idl;
use evenkeel_giop::typecode::TypeCode;

use super::*;
use crate::name::NameComponent;

const MEMBERSHIP: &str = "org.omg.PortableGroup.MembershipStyle";
const INITIAL: &str = INITIAL_MEMBERS;
const MINIMUM: &str = "org.omg.PortableGroup.MinimumNumberMembers";
const MAXIMUM: &str = MAXIMUM_MEMBERS;
const INFO: &str = "org.omg.CosLoadBalancing.StrategyInfo";
const CUSTOM: &str = "org.omg.CosLoadBalancing.CustomStrategy";
const FALLBACK: &str = "org.evenkeel.Fallback";
const NAME: &str = "org.evenkeel.GroupName";

fn p<T: Idl>(name: &str, value: T) -> Property {
    Property::new(name, &value)
}

fn text(name: &str, value: &str) -> Property {
    p(name, String::from(value))
}

fn info(name: &str) -> Property {
    let name = name.into();
    let props = Vec::new();
    p(INFO, StrategyInfo { name, props })
}

fn reference() -> Ior {
    Ior::new_iiop("IDL:Test:1.0", "host", 1, b"key")
}

fn set(properties: Properties) -> PropertySet {
    PropertySet::read(&properties, Scope::Creation).unwrap()
}

fn none() -> PropertySet {
    PropertySet::default()
}

#[track_caller]
fn is_invalid(property: Property) {
    let read = PropertySet::read(&vec![property.clone()], Scope::Creation);
    assert_eq!(read, Err(UserException::InvalidProperty(property)));
}

#[track_caller]
fn is_unsupported(property: Property, scope: Scope) {
    let read = PropertySet::read(&vec![property.clone()], scope);
    assert_eq!(read, Err(UserException::UnsupportedProperty(property)));
}

#[track_caller]
fn is_valid(property: Property) {
    let all = [Scope::Default, Scope::Type, Scope::Creation, Scope::Group];
    for scope in all {
        let read = PropertySet::read(&vec![property.clone()], scope).unwrap();
        assert_eq!(read.properties(), std::slice::from_ref(&property));
    }
}

#[test]
fn without_properties_the_load_manager_keeps_two_members() {
    let settings = effective_settings(&none(), &none(), &none());
    assert_eq!(settings.membership, Membership::Infrastructure);
    assert_eq!(settings.initial_members, 2);
    assert_eq!(settings.minimum_members, 2);
    assert_eq!(settings.maximum_members, None);
    assert!(settings.factories.is_empty());
    let before = GroupConfig::new("g", Vec::new());
    let mut config = before.clone();
    settings.apply_to(&mut config);
    assert_eq!(config, before);
}

#[test]
fn what_is_not_known_is_kept_and_given_back_t8() {
    let mut kind = p(MEMBERSHIP, 0i32);
    kind.nam.0[0].kind = "x".into();
    let mut two = p(MEMBERSHIP, 0i32);
    two.nam.0.push(NameComponent::default());
    for property in [
        kind.clone(),
        two.clone(),
        p("MembershipStyle", 0i32),
        p("my.own.Property", 0i32),
        p("org.omg.PortableGroup.ConsistencyStyle", 7i32),
    ] {
        is_valid(property);
    }
    let mut nameless = p(MEMBERSHIP, 0i32);
    nameless.nam.0.clear();
    is_unsupported(nameless, Scope::Default);

    let own = vec![p(INITIAL, 1u16), kind.clone(), p("b", 1u32), p("a", true)];
    let mut set = set(own.clone());
    // Those that are known come first, then the others by their names.
    let mut listed = set.properties();
    assert_eq!(listed[0], own[0]);
    assert_eq!(listed.len(), own.len());
    assert!(own.iter().all(|property| listed.contains(property)));
    let json = serde_json::to_string(&set).unwrap();
    assert_eq!(serde_json::from_str::<PropertySet>(&json).unwrap(), set);
    assert_eq!(set.describe().count(), 4);
    // The strongest level counts.
    let of_type = PropertySet::read(&vec![p("a", false), p("c", 1u32)], Scope::Type).unwrap();
    let all = merge_properties(&set, &of_type, &none());
    assert!(all.contains(&p("a", true)) && all.contains(&p("c", 1u32)));
    assert_eq!(all.len(), 5);
    // Twice is ambiguous here, too.
    let twice = vec![p("a", true), p("a", false)];
    let error = UserException::InvalidProperty(p("a", false));
    assert_eq!(PropertySet::read(&twice, Scope::Default), Err(error));
    set.remove(&vec![p("a", 0u32), kind, p("unheard", 0u32)]);
    listed = set.properties();
    assert_eq!(listed, [p(INITIAL, 1u16), p("b", 1u32)]);
    assert!(set.size() > 0 && !set.is_empty());
}

#[test]
fn a_property_that_is_there_twice_is_ambiguous() {
    let twice = vec![p(INITIAL, 1u16), p(INITIAL, 1u16)];
    let error = UserException::InvalidProperty(p(INITIAL, 1u16));
    assert_eq!(PropertySet::read(&twice, Scope::Default), Err(error));
}

#[test]
fn aliases_do_not_count() {
    let alias = |of: &TypeCode| TypeCode::alias("IDL:omg.org/PortableGroup/X:1.0", "X", of);
    let twice = alias(&alias(&TypeCode::basic(
        evenkeel_giop::typecode::Kind::Long,
    )));
    let mut property = p(MEMBERSHIP, 0i32);
    property.val = Any::of_type(twice, &0i32);
    is_valid(property.clone());
    let settings = effective_settings(&set(vec![property]), &none(), &none());
    assert_eq!(settings.membership, Membership::Application);
}

#[test]
fn both_prefixes_of_a_strategy_info_are_understood() {
    let id = |prefix: &str| format!("IDL:{prefix}/CosLoadBalancing/StrategyInfo:1.0");
    let type_code = |prefix: &str| {
        let members = [
            ("name", TypeCode::string()),
            ("props", Vec::<Property>::type_code()),
        ];
        TypeCode::structure(&id(prefix), "StrategyInfo", &members)
    };
    let value = StrategyInfo {
        name: "Random".into(),
        props: Vec::new(),
    };
    for prefix in ["tao.lb", "omg.org"] {
        let mut property = info("Random");
        property.val = Any::of_type(type_code(prefix), &value);
        is_valid(property);
    }
    let mut property = info("Random");
    property.val = Any::of_type(type_code("example.org"), &value);
    is_invalid(property);
}

#[test]
fn membership_is_by_the_application_or_by_the_infrastructure() {
    is_valid(p(MEMBERSHIP, 0i32));
    is_valid(p(MEMBERSHIP, 1i32));
    is_invalid(p(MEMBERSHIP, 2i32));
    is_invalid(p(MEMBERSHIP, -1i32));
    is_invalid(p(MEMBERSHIP, 0u32));
    is_invalid(p(MEMBERSHIP, 0u16));
}

#[test]
fn numbers_of_members_are_unsigned_short() {
    for name in [INITIAL, MINIMUM, MAXIMUM] {
        is_valid(p(name, 1u16));
        is_valid(p(name, u16::MAX));
        is_invalid(p(name, 1i32));
        is_invalid(p(name, 1u32));
    }
    is_valid(p(INITIAL, 0u16));
    is_valid(p(MINIMUM, 0u16));
    is_invalid(p(MAXIMUM, 0u16));
}

#[test]
fn the_maximum_is_not_below_the_minimum() {
    let own = set(vec![p(MINIMUM, 3u16)]);
    let settings = effective_settings(&own, &none(), &set(vec![p(MAXIMUM, 2u16)]));
    assert_eq!(settings.maximum_members, Some(3));
}

#[test]
fn factories_are_not_nil_and_each_at_a_place_of_its_own() {
    let factory = |ior: Ior, location: Name| FactoryInfo {
        the_factory: ior,
        the_location: location,
        the_criteria: vec![p("anything", 1u32)],
    };
    let at = |location: &str| factory(reference(), Name::from_id(location));
    is_valid(p(FACTORIES, Vec::<FactoryInfo>::new()));
    is_valid(p(FACTORIES, vec![at("b"), at("a")]));
    is_invalid(p(FACTORIES, vec![at("a"), at("b"), at("a")]));
    is_invalid(p(
        FACTORIES,
        vec![factory(Ior::default(), Name::from_id("a"))],
    ));
    is_invalid(p(FACTORIES, vec![factory(reference(), Name::default())]));
    is_invalid(p(FACTORIES, at("a")));
    // In the order given, with their criteria as they are.
    let settings = effective_settings(
        &set(vec![p(FACTORIES, vec![at("b"), at("a")])]),
        &none(),
        &none(),
    );
    assert_eq!(settings.factories, [at("b"), at("a")]);
}

#[test]
fn the_load_manager_sets_the_strategy_itself() {
    is_invalid(p(STRATEGY, reference()));
}

#[test]
fn a_strategy_info_names_a_strategy_that_is_known() {
    is_valid(info("LoadAverage"));
    is_valid(info("PeakEwma"));
    is_invalid(info("Unheard"));
    is_invalid(text(INFO, "RoundRobin"));
}

#[test]
fn a_parameter_of_a_strategy_that_is_wrong_is_named() {
    let tolerance = |value: f32| {
        p(
            "org.omg.CosLoadBalancing.Strategy.LoadMinimum.Tolerance",
            value,
        )
    };
    let with = |property| StrategyInfo {
        name: "LoadMinimum".into(),
        props: vec![property],
    };
    is_valid(p(INFO, with(tolerance(1.5))));
    let wrong = vec![p(INFO, with(tolerance(0.5)))];
    let error = UserException::InvalidProperty(tolerance(0.5));
    assert_eq!(PropertySet::read(&wrong, Scope::Type), Err(error));
    is_valid(p(INFO, with(p("my.own.Parameter", 1u32))));
}

#[test]
fn a_custom_strategy_is_a_reference_and_not_nil() {
    let strategy = TypeCode::interface("IDL:omg.org/CosLoadBalancing/Strategy:1.0", "Strategy");
    let custom = "IDL:tao.lb/CosLoadBalancing/CustomStrategy:1.0";
    let alias = TypeCode::alias(custom, "CustomStrategy", &strategy);
    for type_code in [Ior::type_code(), strategy, alias] {
        let val = Any::of_type(type_code, &reference());
        let nam = Name::from_id(CUSTOM);
        is_valid(Property { nam, val });
    }
    is_invalid(p(CUSTOM, Ior::default()));
    is_invalid(text(CUSTOM, "IOR:"));
}

#[test]
fn a_fallback_is_a_strategy_that_is_known() {
    is_valid(text(FALLBACK, "RoundRobin"));
    is_invalid(text(FALLBACK, "round_robin"));
    is_invalid(p(FALLBACK, 1u32));
}

#[test]
fn a_group_is_named_when_it_is_created() {
    let named = set(vec![text(NAME, "stock")]);
    assert_eq!(
        effective_settings(&named, &none(), &none()).group_name,
        Some("stock".into())
    );
    for scope in [Scope::Default, Scope::Type, Scope::Group] {
        is_unsupported(text(NAME, "stock"), scope);
    }
    for wrong in ["", "a b", "corba-1", "ü", &"x".repeat(65)] {
        is_invalid(text(NAME, wrong));
    }
}

#[test]
fn the_properties_of_evenkeel_have_types_and_ranges() {
    for granularity in ["per_session", "per_request", "on_demand"] {
        is_valid(text("org.evenkeel.Granularity", granularity));
    }
    is_invalid(text("org.evenkeel.Granularity", "PerSession"));
    is_invalid(p("org.evenkeel.Granularity", 1u32));
    is_valid(p("org.evenkeel.Adaptive", true));
    is_invalid(text("org.evenkeel.Adaptive", "true"));
    is_valid(p("org.evenkeel.LoadId", 77u32));
    is_invalid(p("org.evenkeel.LoadId", 0i32));
    for (name, least, most) in [
        ("org.evenkeel.RebindInterval", 0.001f32, 86_400f32),
        ("org.evenkeel.MoveShare", 0.01, 1.0),
    ] {
        is_valid(p(name, least));
        is_valid(p(name, most));
        is_invalid(p(name, least * 0.99));
        is_invalid(p(name, most * 1.01));
        is_invalid(p(name, f32::NAN));
        is_invalid(p(name, 1u32));
    }
}

#[test]
fn what_counts_is_the_groups_own_then_its_types_then_the_default() {
    let members = |n: u16| set(vec![p(MINIMUM, n)]);
    let least = |group: &PropertySet, of_type: &PropertySet, default: &PropertySet| {
        let merged = merge_properties(group, of_type, default);
        let settings = effective_settings(group, of_type, default);
        if settings.minimum_members != 2 {
            assert_eq!(merged, [p(MINIMUM, settings.minimum_members)]);
        }
        settings.minimum_members
    };
    assert_eq!(least(&members(3), &members(4), &members(5)), 3);
    assert_eq!(least(&none(), &members(4), &members(5)), 4);
    assert_eq!(least(&none(), &none(), &members(5)), 5);
    assert_eq!(least(&none(), &none(), &none()), 2);
    // Each property by itself.
    let own = set(vec![p(INITIAL, 1u16)]);
    let settings = effective_settings(&own, &members(4), &none());
    assert_eq!((settings.initial_members, settings.minimum_members), (1, 4));
}

#[test]
fn a_custom_strategy_is_preferred() {
    let own = set(vec![p(CUSTOM, reference()), info("LeastLoaded")]);
    let settings = effective_settings(&own, &none(), &none());
    assert_eq!(settings.custom_strategy, Some(reference()));
    // Which is used while it does not answer.
    assert_eq!(settings.strategy.unwrap().kind().name, "least_loaded");
    // One of the type does so over a built-in default.
    let custom = set(vec![p(CUSTOM, reference())]);
    let settings = effective_settings(&none(), &custom, &set(vec![info("Random")]));
    assert_eq!(settings.custom_strategy, Some(reference()));
    assert_eq!(settings.strategy.unwrap().kind().name, "random");
}

#[test]
fn a_built_in_strategy_of_a_stronger_level_counts_more_than_a_custom_one() {
    let custom = set(vec![p(CUSTOM, reference())]);
    let own = set(vec![info("Random")]);
    let settings = effective_settings(&own, &custom, &none());
    assert_eq!(settings.custom_strategy, None);
    assert_eq!(settings.strategy.unwrap().kind().name, "random");
    assert_eq!(merge_properties(&own, &custom, &none()), [info("Random")]);
    // And what a group says itself counts again.
    let settings = effective_settings(&custom, &own, &none());
    assert_eq!(settings.custom_strategy, Some(reference()));
}

#[test]
fn a_fallback_stands_in_for_a_custom_strategy_only() {
    let default = set(vec![text(FALLBACK, "RoundRobin")]);
    let custom = set(vec![p(CUSTOM, reference())]);
    let settings = effective_settings(&custom, &none(), &default);
    assert_eq!(settings.strategy.unwrap().kind().name, "round_robin");
    let settings = effective_settings(&none(), &none(), &default);
    assert_eq!(settings.strategy, None);
    let settings = effective_settings(&set(vec![info("Random")]), &none(), &default);
    assert_eq!(settings.strategy.unwrap().kind().name, "random");
    // With the parameters that are given for it.
    let parameter = p(
        "org.omg.CosLoadBalancing.Strategy.LeastLoaded.RejectThreshold",
        3f32,
    );
    let given = StrategyInfo {
        name: "LeastLoaded".into(),
        props: vec![parameter],
    };
    let own = set(vec![
        p(CUSTOM, reference()),
        p(INFO, given),
        text(FALLBACK, "LeastLoaded"),
    ]);
    let settings = effective_settings(&own, &none(), &none());
    assert_eq!(settings.strategy.unwrap().get("reject_threshold"), 3.0);
}

#[test]
fn settings_go_into_the_groups_configuration() {
    let own = set(vec![
        info("LoadMinimum"),
        text("org.evenkeel.Granularity", "per_session"),
        p("org.evenkeel.Adaptive", false),
        p("org.evenkeel.RebindInterval", 2.5f32),
        p("org.evenkeel.LoadId", 4u32),
        p("org.evenkeel.MoveShare", 0.25f32),
    ]);
    let mut config = GroupConfig::new("g", Vec::new());
    effective_settings(&own, &none(), &none()).apply_to(&mut config);
    assert_eq!(config.strategy.kind().name, "load_minimum");
    assert_eq!(config.settings.granularity, Granularity::PerSession);
    assert!(!config.settings.adaptive);
    assert_eq!(config.settings.rebind_interval, Duration::from_millis(2500));
    assert_eq!(config.settings.load_id, LoadId::REQUESTS_PER_SECOND);
    assert_eq!(config.settings.alert.move_share, 0.25);
    config.choose_defaults(Reach::Forwarded);
    assert_eq!(config.settings.alert.move_share, 0.25);
}

#[test]
fn properties_are_set_and_removed_by_name() {
    let mut default = set(vec![p(INITIAL, 1u16), p(MINIMUM, 1u16)]);
    default.set(set(vec![p(INITIAL, 3u16)]));
    assert_eq!(default.properties(), [p(INITIAL, 3u16), p(MINIMUM, 1u16)]);
    // The value does not count, and one that is not set is no error.
    default.remove(&vec![p(INITIAL, 0u32), p(MAXIMUM, 0u16)]);
    assert_eq!(default.properties(), [p(MINIMUM, 1u16)]);
}

#[test]
fn the_state_file_keeps_what_was_given_and_says_what_it_means() {
    let factories = vec![FactoryInfo {
        the_factory: reference(),
        the_location: Name::from_id("www.x"),
        the_criteria: vec![p("anything", 1u32)],
    }];
    let own = set(vec![
        p(MEMBERSHIP, 1i32),
        p(FACTORIES, factories),
        info("RoundRobin"),
        p(CUSTOM, reference()),
        text(NAME, "stock"),
        p("org.evenkeel.RebindInterval", 2.5f32),
    ]);
    let json = serde_json::to_string(&own).unwrap();
    assert_eq!(serde_json::from_str::<PropertySet>(&json).unwrap(), own);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["name"], MEMBERSHIP);
    assert_eq!(json[0]["means"], "infrastructure");
    assert_eq!(json[1]["means"], r"www\.x");
    let means: Vec<_> = own.describe().map(|(_, means)| means).collect();
    assert_eq!(means[2], "RoundRobin");
    assert_eq!(means[5], "2.5s");
}

#[test]
fn a_state_file_that_is_damaged_is_refused() {
    let refused = |json: &str| {
        serde_json::from_str::<PropertySet>(json)
            .unwrap_err()
            .to_string()
    };
    let of = |any: &str| format!(r#"[{{"name":"{MEMBERSHIP}","any":"{any}"}}]"#);
    assert!(refused(&of("0x")).contains("no hexadecimal digit"));
    assert!(refused(&of("00")).contains("is not a valid Any"));
    let seven = Any::new(&7i32).to_string();
    assert!(refused(&of(&seven)).contains("cannot have this value"));
    assert!(refused(&of(&seven).replace("Style", "Fashion")).contains("is not known"));
}

#[test]
fn the_manual_knows_every_property_and_its_values() {
    let manual = include_str!("../../../../docs/corba.md");
    for (name, _) in NAMES {
        assert!(manual.contains(&format!("| `{name}` |")), "{name}");
    }
    for (name, _) in GRANULARITIES {
        assert!(manual.contains(&format!("`{name}`")), "{name}");
    }
}
