//! Versions and statuses that objects have at the API server.
//!
//! The translation does not read them: an object of which nothing else has changed is the object that was known before,
//! and starts no translation.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::objects::{Kind, ObjectName};

/// Status of an object at the API server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReportedStatus {
    /// Version of the object (`resourceVersion`).
    pub(crate) version: String,
    /// Identity of the object.
    pub(crate) uid: Box<str>,
    /// Number of changes of the object's specification.
    pub(crate) generation: i64,
    /// Status as JSON; null if the object has none.
    status: Box<str>,
}

impl ReportedStatus {
    /// Reads the status of an object.
    pub(crate) fn read_from(object: &Value) -> Self {
        let metadata = object.get("metadata");
        let field = |key: &str| metadata.and_then(|of| of.get(key));
        let version = field("resourceVersion").and_then(Value::as_str);
        let status = object.get("status").unwrap_or(&Value::Null);
        ReportedStatus {
            version: version.unwrap_or_default().into(),
            uid: { field("uid").and_then(Value::as_str) }
                .unwrap_or_default()
                .into(),
            generation: { field("generation").and_then(Value::as_i64) }.unwrap_or_default(),
            status: status.to_string().into(),
        }
    }

    /// Returns the status as JSON.
    pub(crate) fn status(&self) -> Value {
        serde_json::from_str(&self.status).unwrap_or_default()
    }
}

/// Statuses of all objects to which the controller writes statuses.
#[derive(Debug, Default)]
pub(crate) struct ReportedStatuses {
    all: BTreeMap<Kind, BTreeMap<ObjectName, ReportedStatus>>,
    /// Objects whose version has changed since [`ReportedStatuses::take_changed`].
    changed: BTreeSet<(Kind, ObjectName)>,
}

impl ReportedStatuses {
    /// Takes the status of an object. Returns true if the object has another version than before.
    pub(crate) fn put(&mut self, kind: Kind, name: &ObjectName, status: ReportedStatus) -> bool {
        let of_kind = self.all.entry(kind).or_default();
        let version = status.version.clone();
        let before = of_kind.insert(name.clone(), status);
        let is_new = before.is_none_or(|before| before.version != version);
        if is_new {
            self.changed.insert((kind, name.clone()));
        }
        is_new
    }

    /// Forgets an object.
    pub(crate) fn remove(&mut self, kind: Kind, name: &ObjectName) {
        if let Some(of_kind) = self.all.get_mut(&kind) {
            of_kind.remove(name);
        }
        self.changed.remove(&(kind, name.clone()));
    }

    /// Returns the status of an object.
    pub(crate) fn find(&self, kind: Kind, name: &ObjectName) -> Option<&ReportedStatus> {
        self.all.get(&kind)?.get(name)
    }

    /// Returns the objects whose version has changed since the call before.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<(Kind, ObjectName)> {
        std::mem::take(&mut self.changed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object() -> Value {
        json!({ "metadata": { "namespace": "shop", "name": "a", "resourceVersion": "1", "generation": 3,
                              "labels": { "team": "a" } },
                "status": { "addresses": [{ "value": "10.0.0.1" }], "loadBalancer": { "ingress": [{ "ip": "10.0.0.2" }] },
                            "conditions": [] } })
    }

    #[test]
    fn statuses_are_those_of_the_last_version() {
        let mut all = ReportedStatuses::default();
        let name = ObjectName::new("shop", "a");
        let mut put = |version: &str| {
            let mut object = object();
            object["metadata"]["resourceVersion"] = version.into();
            let status = ReportedStatus::read_from(&object);
            all.put(Kind::HttpRoute, &name, status)
        };
        assert!(put("1") && !put("1") && put("2"));
        let found = all.find(Kind::HttpRoute, &name).unwrap();
        assert_eq!((&*found.version, found.generation), ("2", 3));
        assert_eq!(found.status(), object()["status"]);
        assert_eq!(all.take_changed().len(), 1);
        assert!(all.take_changed().is_empty());
        all.remove(Kind::HttpRoute, &name);
        assert!(all.find(Kind::HttpRoute, &name).is_none());
    }
}
