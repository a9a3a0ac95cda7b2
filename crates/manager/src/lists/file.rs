//! Files with members, in JSON as Prometheus has it for its targets (`file_sd`): a list of groups
//! of targets with labels, `[{"targets": ["10.0.0.1:80"], "labels": {"weight": "2"}}]`.

use std::collections::HashMap;
use std::fmt;

use evenkeel_core::member::Weight;
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use crate::config::{MemberConfig, is_location_name, is_member_name, is_name, member_address};

/// Most members of one file.
pub const MAX_MEMBERS: usize = 10_000;

/// Most requests or connections at once that a label may say, as in the configuration.
const MAX_CONNECTIONS: u32 = 10_000_000;

/// Error in a file, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// Line, from 1.
    pub line: usize,
    /// Column in bytes, from 1.
    pub column: usize,
    /// Description of the error.
    pub message: String,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

/// The members that the text of a file names, in its order, each address once.
///
/// Labels with names of keys of members (`weight`, `backup`, `drain`, `max_connections`, `location`,
/// `zone`, `url` and `name`) say of all targets beside them what such keys say; others are for whoever else reads the
/// file. A `name` stands beside one target, and in a file once.
///
/// # Errors
///
/// The first thing that is wrong.
pub fn parse(text: &str) -> Result<Vec<MemberConfig>, FileError> {
    let groups: Vec<Targets> = serde_json::from_str(text).map_err(|error| {
        let place = format!(" at line {} column {}", error.line(), error.column());
        let message = error.to_string();
        FileError {
            line: error.line().max(1),
            column: error.column().max(1),
            message: message.strip_suffix(&place).unwrap_or(&message).to_owned(),
        }
    })?;
    let count: usize = groups.iter().map(|group| group.targets.len()).sum();
    if count > MAX_MEMBERS {
        return Err(FileError {
            line: 1,
            column: 1,
            message: format!("the file has {count} members, but at most {MAX_MEMBERS} are allowed"),
        });
    }
    check_names(text, &groups)?;
    let mut known = std::collections::HashSet::new();
    let members = groups.into_iter().flat_map(|group| {
        let labels = group.labels.0;
        group
            .targets
            .into_iter()
            .map(move |Target(host, port)| MemberConfig {
                host,
                port,
                ..labels.clone()
            })
    });
    Ok(members
        .filter(|member| known.insert((member.host.clone(), member.port)))
        .collect())
}

/// Checks that each name that `groups` of the file `text` give is that of one member.
fn check_names(text: &str, groups: &[Targets]) -> Result<(), FileError> {
    let mut named: HashMap<&str, &Target> = HashMap::new();
    for group in groups {
        let targets = group.targets.as_slice();
        let (Some(name), Some(target)) = (group.labels.0.given_name.as_deref(), targets.first())
        else {
            continue;
        };
        let other = match targets.iter().find(|other| *other != target) {
            Some(other) => Some(other),
            None => named.insert(name, target).filter(|known| *known != target),
        };
        let Some(other) = other else {
            continue;
        };
        let address = |Target(host, port): &Target| MemberConfig::new(host, *port).name();
        // Where the name is used for the last time, which is the second time or later.
        let before = text
            .rfind(&format!("\"{name}\""))
            .and_then(|at| text.get(..at));
        let before = before.unwrap_or_default();
        return Err(FileError {
            line: before.matches('\n').count() + 1,
            column: before.len() - before.rfind('\n').map_or(0, |at| at + 1) + 1,
            message: format!(
                "label name: {name:?} is for one member, not for {} and {}",
                address(other),
                address(target)
            ),
        });
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Targets {
    targets: Vec<Target>,
    #[serde(default)]
    labels: Labels,
}

#[derive(PartialEq)]
struct Target(String, u16);

impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let (host, port) = member_address(text.trim()).map_err(|error| {
            D::Error::custom(format!("{text:?} is no address of a member: {error}"))
        })?;
        Ok(Target(host, port))
    }
}

/// Settings of members that labels give.
#[derive(Default)]
struct Labels(MemberConfig);

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(LabelsVisitor)
    }
}

struct LabelsVisitor;

impl<'de> Visitor<'de> for LabelsVisitor {
    type Value = Labels;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("labels as an object of strings")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Labels, M::Error> {
        let mut member = MemberConfig::default();
        while let Some(name) = map.next_key::<String>()? {
            let wrong = |text: &str, wanted: &str| {
                M::Error::custom(format!("label {name}: {text:?} is not {wanted}"))
            };
            match &*name {
                "weight" => {
                    let Text(text) = map.next_value()?;
                    let weight = text
                        .parse()
                        .ok()
                        .and_then(|weight| Weight::new(weight).ok());
                    member.weight =
                        weight.ok_or_else(|| wrong(&text, "a number from 0 to 1000"))?;
                }
                "backup" | "drain" => {
                    let Text(text) = map.next_value()?;
                    let flag = text.parse().map_err(|_| wrong(&text, "true or false"))?;
                    match &*name {
                        "backup" => member.backup = flag,
                        _ => member.drain = flag,
                    }
                }
                "max_connections" => {
                    let Text(text) = map.next_value()?;
                    let limit = text.parse().ok();
                    let limit = limit.filter(|limit| (1..=MAX_CONNECTIONS).contains(limit));
                    let limit = limit.ok_or_else(|| wrong(&text, "a number from 1 to 10000000"))?;
                    member.max_connections = Some(limit);
                }
                "location" => {
                    let Text(text) = map.next_value()?;
                    if !is_location_name(&text) {
                        return Err(wrong(&text, "1 to 255 characters"));
                    }
                    member.location = Some(text);
                }
                "zone" => {
                    let Text(text) = map.next_value()?;
                    if !is_name(&text) {
                        let wanted = "1 to 64 letters, digits, \"-\", \"_\" or \".\"";
                        return Err(wrong(&text, wanted));
                    }
                    member.zone = Some(text);
                }
                "name" => {
                    let Text(text) = map.next_value()?;
                    if !is_member_name(&text) {
                        let wanted =
                            "1 to 63 letters, digits, \"-\", \"_\" or \".\", and no IP address";
                        return Err(wrong(&text, wanted));
                    }
                    member.given_name = Some(text);
                }
                "url" => {
                    let Text(text) = map.next_value()?;
                    let url = text.parse();
                    member.url =
                        Some(url.map_err(|error| wrong(&text, &format!("a URL: {error}")))?);
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Labels(member))
    }
}

/// A text; or a number or `true` or `false`, which some programs write instead.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Text, E> {
        Ok(Text(text.to_owned()))
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Text, E> {
        Ok(Text(flag.to_string()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Text, E> {
        Ok(Text(number.to_string()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Text, E> {
        Ok(Text(number.to_string()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Text, E> {
        Ok(Text(number.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn targets_have_the_settings_of_their_labels() {
        let members = parse(
            r#"[
                {"targets": ["10.0.0.1:80", "App-1.example:8080", "10.0.0.1:80"]},
                {"targets": ["[::1]:81"], "labels": {
                    "weight": "2.5", "backup": "true", "location": "rack 7", "job": "web", "zone": "north",
                    "max_connections": 50, "drain": false, "__meta": {"any": ["thing"]},
                    "url": "https://www-1.example.org"
                }}
            ]"#,
        )
        .unwrap();
        let names: Vec<_> = members.iter().map(MemberConfig::name).collect();
        assert_eq!(names, ["10.0.0.1:80", "app-1.example:8080", "[::1]:81"]);
        assert_eq!(members[0], MemberConfig::new("10.0.0.1", 80));
        let last = &members[2];
        assert_eq!(
            (last.zone.as_deref(), &members[0].zone),
            (Some("north"), &None)
        );
        assert_eq!(
            (last.weight.get(), last.backup, last.drain),
            (2.5, true, false)
        );
        assert_eq!(last.location.as_deref(), Some("rack 7"));
        assert_eq!(last.max_connections, Some(50));
        assert_eq!(
            last.url.as_ref().unwrap().as_str(),
            "https://www-1.example.org"
        );
        assert_eq!(parse("[]").unwrap(), []);
    }

    #[test]
    fn g6_a_name_is_for_one_target() {
        let members = parse(
            r#"[
                {"targets": ["10.0.0.1:80"], "labels": {"name": "s1"}},
                {"targets": ["10.0.0.2:80"], "labels": {"name": 2}},
                {"targets": ["10.0.0.3:80", "10.0.0.3:80"], "labels": {"name": "s3"}},
                {"targets": ["10.0.0.1:80"], "labels": {"name": "s1"}},
                {"targets": ["10.0.0.4:80"]}
            ]"#,
        );
        let members = members.unwrap();
        let names: Vec<_> = members.iter().map(|of| of.given_name.as_deref()).collect();
        assert_eq!(names, [Some("s1"), Some("2"), Some("s3"), None]);
        for (text, line, wanted) in [
            (
                "[\n{\"targets\": [\"a:1\", \"b:1\"],\n\"labels\": {\"name\": \"s1\"}}]",
                3,
                "\"s1\" is for one member, not for b:1 and a:1",
            ),
            (
                "[\n{\"targets\": [\"a:1\"], \"labels\": {\"name\": \"s1\"}},\n\
                 {\"targets\": [\"b:1\"], \"labels\": {\"name\": \"s1\"}}]",
                3,
                "not for a:1 and b:1",
            ),
            (
                "[{\"targets\": [\"a:1\"],\n\"labels\": {\"name\": \"a b\"}}]",
                2,
                "\"a b\" is not 1 to 63 letters",
            ),
            (
                "[{\"targets\": [\"a:1\"],\n\"labels\": {\"name\": \"10.0.0.1\"}}]",
                2,
                "no IP address",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.line, line, "{text:?}: {error}");
            assert!(error.message.contains(wanted), "{text:?}: {error}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, line, wanted) in [
            ("", 1, "EOF"),
            ("{}", 1, "sequence"),
            (
                "[\n{\"targets\": [\n\"10.0.0.1\"]}]",
                3,
                "the port is missing",
            ),
            (
                "[\n{\"targets\": [\"a:80\"],\n\"labels\": {\"weight\": \"heavy\"}}]",
                3,
                "\"heavy\" is not a number from 0",
            ),
            (
                "[{\"targets\": [],\n\"labels\": {\"weight\": \"1001\"}}]",
                2,
                "0 to 1000",
            ),
            (
                "[{\"targets\": [],\n\"labels\": {\"backup\": \"yes\"}}]",
                2,
                "true or false",
            ),
            (
                "[{\"targets\": [],\n\"labels\": {\"max_connections\": \"0\"}}]",
                2,
                "from 1",
            ),
            (
                "[{\"targets\": [],\n\"labels\": {\"location\": \"\"}}]",
                2,
                "255",
            ),
            (
                "[{\"targets\": [],\n\"labels\": {\"url\": \"x\"}}]",
                2,
                "URL",
            ),
            ("[\n\n{\"target\": []}]", 3, "unknown field"),
            ("[\n{\"targets\": [\"a:80\"],}]", 2, "trailing comma"),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.line, line, "{text:?}: {error}");
            assert!(error.message.contains(wanted), "{text:?}: {error}");
            assert!(!error.message.contains(" at line"), "{error}");
        }
        let many = vec!["\"a:1\""; MAX_MEMBERS + 1].join(",");
        let error = parse(&format!("[{{\"targets\": [{many}]}}]")).unwrap_err();
        assert!(error.message.contains("at most 10000"), "{error}");
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[\\[\\]{}:,\"a-z0-9.\\\\ \n-]{0,200}") {
            if let Ok(members) = parse(&text) {
                prop_assert!(members.iter().all(|member| member.port > 0));
            }
        }

        #[test]
        fn what_is_written_is_read(ports in proptest::collection::btree_set(1u16.., 0..50), weight in 0u32..=1000) {
            let targets: Vec<_> = ports.iter().map(|port| format!("a.example:{port}")).collect();
            let labels = serde_json::json!({"weight": weight.to_string()});
            let text = serde_json::json!([{"targets": targets, "labels": labels}]).to_string();
            let members = parse(&text).unwrap();
            prop_assert_eq!(members.iter().map(|m| m.port).collect::<Vec<_>>(), ports.into_iter().collect::<Vec<_>>());
            prop_assert!(members.iter().all(|member| member.weight.get() == weight as f32));
        }
    }
}
