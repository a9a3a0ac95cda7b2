//! GRPCRoutes: a call of gRPC is a request for the path `/SERVICE/METHOD`, so a match on a method is one on a path.

use evenkeel_config::routing::value_regex::escape_regex;
use serde_json::{Value, json};

use super::expressions::check_regex;

/// Type of a path that stands for a method whose expressions cannot be used. The value says why.
pub(crate) const BAD_METHOD: &str = "MethodWithBadExpression";

/// Expression for any service, or any method of a service.
const ANY: &str = "[^/]+";

/// Returns a GRPCRoute with paths in place of the methods of its matches.
pub(crate) fn write_paths(mut route: Value) -> Value {
    let rules = route
        .pointer_mut("/spec/rules")
        .and_then(Value::as_array_mut);
    let matches = { rules.into_iter().flatten() }
        .filter_map(|rule| rule.get_mut("matches")?.as_array_mut())
        .flatten();
    for of in matches.filter_map(Value::as_object_mut) {
        let method = of.remove("method").unwrap_or_default();
        if let Some(path) = write_path(&method) {
            of.insert("path".into(), path);
        }
    }
    route
}

/// Type of a match by a regular expression.
const REGEX: &str = "RegularExpression";

/// Returns the expression of the paths for those of a service and a method; an empty one stands for all.
///
/// # Errors
///
/// The expression that is none, and why.
fn write_expression(service: &str, name: &str) -> Result<String, String> {
    let mut path = String::new();
    for text in [service, name] {
        // Alone: brackets that do not belong together would get a meaning by those around them.
        check_regex(text).map_err(|error| format!("{text:?}: {error}"))?;
        path.push_str("/(?:");
        path.push_str(if text.is_empty() { ANY } else { text });
        path.push(')');
    }
    Ok(path)
}

/// Returns the match on a path for a match on a method; `None` for all methods.
fn write_path(method: &Value) -> Option<Value> {
    let text = |key: &str| method.get(key).and_then(Value::as_str).unwrap_or_default();
    let (service, name) = (text("service"), text("method"));
    let kind = match text("type") {
        "" => "Exact",
        kind => kind,
    };
    let (kind, path) = match (kind, service, name) {
        (_, "", "") => return None,
        ("Exact", "", _) => (REGEX, format!("/{ANY}/{}", escape_regex(name))),
        ("Exact", _, "") => ("PathPrefix", format!("/{service}/")),
        ("Exact", ..) => ("Exact", format!("/{service}/{name}")),
        (REGEX, ..) => match write_expression(service, name) {
            Ok(path) => (REGEX, path),
            Err(error) => (BAD_METHOD, error),
        },
        (kind, ..) => (kind, format!("/{service}/{name}")),
    };
    Some(json!({ "type": kind, "value": path }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_become_paths() {
        for (method, path) in [
            (
                json!({ "service": "a.B", "method": "C" }),
                json!({ "type": "Exact", "value": "/a.B/C" }),
            ),
            (
                json!({ "service": "a.B", "type": "Exact" }),
                json!({ "type": "PathPrefix", "value": "/a.B/" }),
            ),
            (
                json!({ "method": "C" }),
                json!({ "type": REGEX, "value": "/[^/]+/C" }),
            ),
            (
                json!({ "service": "a|b", "method": "C.*", "type": REGEX }),
                json!({ "type": REGEX, "value": "/(?:a|b)/(?:C.*)" }),
            ),
            (
                json!({ "method": "Get.*", "type": REGEX }),
                json!({ "type": REGEX, "value": "/(?:[^/]+)/(?:Get.*)" }),
            ),
            (
                json!({ "service": "a)(b", "type": REGEX }),
                json!({ "type": BAD_METHOD, "value": "\"a)(b\": not a regular expression: unopened group" }),
            ),
            (Value::Null, Value::Null),
            (json!("x"), Value::Null),
        ] {
            let route =
                json!({ "spec": { "rules": [{ "matches": [{ "method": method }, {}] }, {}, 7] } });
            let written = write_paths(route);
            let found = &written["spec"]["rules"][0]["matches"][0];
            assert_eq!(found["path"], path);
            assert_eq!(found["method"], Value::Null);
        }
        for odd in [
            json!(null),
            json!({ "spec": 7 }),
            json!({ "spec": { "rules": {} } }),
        ] {
            assert_eq!(write_paths(odd.clone()), odd);
        }
    }
}
