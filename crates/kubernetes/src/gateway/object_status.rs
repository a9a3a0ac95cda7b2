//! Objects that the controller serves, with the problems of each, for the admin API.

use std::collections::HashMap;

use serde_json::Value;

use super::conditions::Status;
use super::events::Facts;
use super::notices::read_status;
use super::objects::{Kind, ObjectName};
use crate::status::{ObjectProblem, ObjectStatus};

/// Object by kind and name.
type Key<'f> = (Kind, &'f ObjectName);

/// Returns all objects by kind and name, each with its problems: those of its conditions, and reports about it.
pub(super) fn list_objects(facts: &Facts) -> Vec<ObjectStatus> {
    let mut told: HashMap<Key<'_>, Vec<ObjectProblem>> = HashMap::new();
    for notice in &facts.notices {
        let problem = make_problem(notice.reason, notice.message.clone());
        let key = (notice.kind, &notice.object);
        told.entry(key).or_default().push(problem);
    }
    let statuses = facts.statuses.iter();
    let mut all: Vec<(Key<'_>, ObjectStatus)> = statuses
        .map(|status| {
            let key = (status.kind, &status.object);
            let mut object = read_object(status);
            object
                .problems
                .extend(told.remove(&key).unwrap_or_default());
            (key, object)
        })
        .collect();
    // An Ingress that is not served at all has no status.
    all.extend(told.into_iter().map(|(key, problems)| {
        let object = ObjectStatus {
            problems,
            ..name_object(key.0, key.1)
        };
        (key, object)
    }));
    all.sort_by_key(|(key, _)| *key);
    all.into_iter().map(|(_, object)| object).collect()
}

fn make_problem(reason: &str, message: String) -> ObjectProblem {
    ObjectProblem {
        reason: reason.into(),
        message,
    }
}

fn name_object(kind: Kind, name: &ObjectName) -> ObjectStatus {
    ObjectStatus {
        kind: kind.name().into(),
        namespace: name.namespace.clone(),
        name: name.name.clone(),
        ..ObjectStatus::default()
    }
}

/// Returns the entries of a list.
fn list_entries<'v>(of: &'v Value, pointer: &str) -> impl Iterator<Item = &'v Value> {
    let list = of.pointer(pointer).and_then(Value::as_array);
    list.into_iter().flatten()
}

/// Returns an object with what its status says.
fn read_object(status: &Status) -> ObjectStatus {
    let value = status.read_status();
    let text = |of: &Value, key: &str| of.get(key).and_then(Value::as_str).map(str::to_owned);
    let mut attached_to = Vec::new();
    for (list, reference) in [("/parents", "parentRef"), ("/ancestors", "ancestorRef")] {
        for of in list_entries(&value, list).filter_map(|entry| entry.get(reference)) {
            let namespace = text(of, "namespace");
            let namespace = namespace.unwrap_or_else(|| status.object.namespace.clone());
            let name = text(of, "name").unwrap_or_default();
            let name = format!("{namespace}/{name}");
            if !attached_to.contains(&name) {
                attached_to.push(name);
            }
        }
    }
    let addresses = list_entries(&value, "/addresses").filter_map(|of| text(of, "value"));
    let of_ingress = list_entries(&value, "/loadBalancer/ingress");
    let of_ingress = of_ingress.filter_map(|of| text(of, "ip").or_else(|| text(of, "hostname")));
    let routes = |of: &Value| of.get("attachedRoutes").and_then(Value::as_u64);
    let reports = read_status(&value).into_iter();
    ObjectStatus {
        attached_to,
        addresses: addresses.chain(of_ingress).collect(),
        routes: value
            .get("listeners")
            .map(|_| list_entries(&value, "/listeners").filter_map(routes).sum()),
        problems: { reports }
            .map(|(reason, message)| make_problem(reason, message))
            .collect(),
        ..name_object(status.kind, &status.object)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::ingress::Notice;
    use super::*;

    fn status(kind: Kind, name: &str, status: &Value) -> Arc<Status> {
        Arc::new(Status::new(kind, ObjectName::new("shop", name), 1, status))
    }

    fn show(facts: &Facts) -> Value {
        serde_json::to_value(list_objects(facts)).unwrap()
    }

    #[test]
    fn objects_have_what_they_are_attached_to_and_their_problems() {
        let accepted =
            json!({ "type": "Accepted", "status": "True", "reason": "Accepted", "message": "" });
        let lost = json!({ "type": "ResolvedRefs", "status": "False", "reason": "BackendNotFound", "message": "create it" });
        let parent = |reference: Value, last: &Value| json!({ "parentRef": reference, "controllerName": "c", "conditions": [accepted, last] });
        let route = json!({ "parents": [
            parent(json!({ "name": "front" }), &accepted),
            parent(json!({ "name": "front", "sectionName": "b" }), &accepted),
            parent(json!({ "name": "edge", "namespace": "infra" }), &lost),
        ] });
        let listener = |name: &str, routes: u32, last: &Value| json!({ "name": name, "attachedRoutes": routes, "conditions": [last] });
        let gateway = json!({
            "addresses": [{ "type": "IPAddress", "value": "192.0.2.1" }],
            "conditions": [accepted],
            "listeners": [listener("a", 2, &accepted), listener("b", 3, &lost)],
        });
        let ingress = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }, { "hostname": "lb.example" }] } });
        let policy = json!({ "ancestors": [{ "ancestorRef": { "name": "web" }, "conditions": [accepted] }] });
        let notice = |name: &str| Notice {
            kind: Kind::Ingress,
            object: ObjectName::new("shop", name),
            uid: String::new(),
            reason: "Ignored",
            message: "leave it out".into(),
        };
        let facts = Facts {
            notices: vec![notice("old"), notice("gone")],
            statuses: Arc::new(vec![
                status(Kind::HttpRoute, "web", &route),
                status(Kind::Gateway, "front", &gateway),
                status(Kind::Ingress, "old", &ingress),
                status(Kind::EvenkeelPolicy, "web", &policy),
            ]),
        };
        let mut found = list_objects(&facts);
        found.sort_by_key(|of| (of.kind.clone(), of.name.clone()));
        assert_eq!(
            serde_json::to_value(found).unwrap(),
            json!([
                { "kind": "EvenkeelPolicy", "namespace": "shop", "name": "web", "attached_to": ["shop/web"], "problems": [] },
                { "kind": "Gateway", "namespace": "shop", "name": "front", "addresses": ["192.0.2.1"], "routes": 5,
                  "problems": [{ "reason": "RefsNotResolved", "message": "listener b: BackendNotFound: create it" }] },
                { "kind": "HTTPRoute", "namespace": "shop", "name": "web", "attached_to": ["shop/front", "infra/edge"],
                  "problems": [{ "reason": "RefsNotResolved", "message": "BackendNotFound: create it" }] },
                { "kind": "Ingress", "namespace": "shop", "name": "gone", "problems": [{ "reason": "Ignored", "message": "leave it out" }] },
                { "kind": "Ingress", "namespace": "shop", "name": "old", "addresses": ["192.0.2.1", "lb.example"],
                  "problems": [{ "reason": "Ignored", "message": "leave it out" }] },
            ])
        );
    }

    #[test]
    fn objects_come_by_kind_and_name() {
        let names = ["b", "a", "c"];
        let statuses = names.map(|name| status(Kind::HttpRoute, name, &Value::Null));
        let facts = Facts {
            notices: Vec::new(),
            statuses: Arc::new(statuses.into()),
        };
        let shown = show(&facts);
        let names: Vec<_> = { shown.as_array().unwrap().iter() }
            .map(|of| of["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["a", "b", "c"]);
    }
}
