//! Bounds of single objects.

use super::*;

#[test]
fn a_route_has_few_expressions() {
    let mut cluster = plain();
    let rule = |number: usize| {
        let value = format!("/{number}/[a-z]+");
        let header = json!({ "type": "RegularExpression", "name": "x", "value": "[0-9]+" });
        json!({ "backendRefs": web(),
                "matches": [{ "path": { "type": "RegularExpression", "value": value }, "headers": [header] }] })
    };
    let rules: Vec<Value> = (0..33).map(rule).collect();
    cluster.route("r", json!([]), json!(rules));
    cluster.route("s", json!(["s.example"]), json!([{ "backendRefs": web() }]));
    let translation = cluster.translate();
    let route = status_of(&translation, Kind::HttpRoute, "r");
    let conditions = &route["parents"][0]["conditions"];
    assert!(
        show(conditions).contains(&"PartiallyInvalid=True/UnsupportedValue".to_owned()),
        "{conditions}"
    );
    let text = translation.text.to_string();
    assert_eq!(text.matches("path_regex").count(), 32, "{text}");
    assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "s"), GOOD);
}
