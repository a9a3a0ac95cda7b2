//! Annotations of Services: settings of their groups, which count where no policy sets the key.

use serde_json::Value;

use super::group_policy_spec::read_line;
use super::ingress::Notice;
use super::objects::{Kind, Objects, Service};
use super::policy_check::find_problem;
use super::policy_keys::PolicyLine;
use super::values::ORCA_ANNOTATION;

/// Reads the keys of a service's groups: `orca`, as `true`, `false`, or a table in JSON.
///
/// # Errors
///
/// The reason why the annotation cannot be used.
pub(crate) fn read_service_lines(service: &Service) -> Result<Vec<PolicyLine>, String> {
    let Some(text) = service.metadata.annotations.get(ORCA_ANNOTATION) else {
        return Ok(Vec::new());
    };
    let value = serde_json::from_str::<Value>(text).ok();
    let value = value.filter(|value| value.is_boolean() || value.is_object());
    let value = value.ok_or_else(|| {
        format!(
            "{ORCA_ANNOTATION}: {text:?} is neither true nor false nor a table in JSON; write one of them"
        )
    })?;
    let lines = vec![read_line(ORCA_ANNOTATION, "orca", &value)?];
    let is_plain = value.is_boolean();
    let problem = match is_plain {
        true => None,
        false => find_problem(&format!("{ORCA_ANNOTATION}: "), &lines, &[]),
    };
    problem.map_or(Ok(lines), Err)
}

/// Returns reports about annotations of services that cannot be used.
pub(crate) fn list_service_notices(objects: &Objects) -> impl Iterator<Item = Notice> {
    let services = objects.services.iter();
    services.filter_map(|(name, service)| {
        let message = read_service_lines(service).err()?;
        Some(Notice {
            kind: Kind::Service,
            object: name.clone(),
            uid: service.metadata.uid.clone(),
            reason: "Ignored",
            message,
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Vec<String>, String> {
        let service =
            json!({ "metadata": { "name": "a", "annotations": { ORCA_ANNOTATION: text } } });
        let service: Service = serde_json::from_value(service).unwrap();
        let lines = read_service_lines(&service)?;
        Ok(lines.iter().map(PolicyLine::write).collect())
    }

    #[test]
    fn an_annotation_is_a_switch_or_a_table() {
        for (text, line) in [
            ("true", "orca = true"),
            ("false", "orca = false"),
            (
                r#"{"out_of_band": true}"#,
                r#"orca = { "out_of_band" = true }"#,
            ),
        ] {
            assert_eq!(read(text), Ok(vec![line.to_owned()]), "{text}");
        }
        for (text, told) in [
            ("", "neither true nor false"),
            ("yes", "neither true nor false"),
            ("[true]", "neither true nor false"),
            (r#"{"header": true}"#, "evenkeel.org/orca: orca.header"),
            (
                r#"{"out_of_band": {"port": 22}}"#,
                "evenkeel.org/orca.out_of_band.port cannot be set",
            ),
            (r#"{"strip": null}"#, "has no value"),
        ] {
            let message = read(text).unwrap_err();
            assert!(message.contains(told), "{text}: {message}");
        }
    }
}
