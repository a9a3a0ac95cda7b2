//! Reports about gateways, routes and policies that cannot be served as they are written: what their conditions say,
//! for events.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::conditions::Status;
use super::ingress::Notice;
use super::objects::{Kind, ObjectName};
use super::status_list::{StatusList, address_of, compare_lists};

/// Report about a status: its reason, and the explanation.
pub(super) type Report = (&'static str, String);

/// Reports of the statuses of all objects. Statuses that stay are read once.
#[derive(Debug, Default)]
pub(crate) struct StatusNotices {
    /// Statuses of the last list.
    known: StatusList,
    /// Known statuses that people are told of, with the reports.
    told: Vec<(Arc<Status>, BTreeSet<Report>)>,
}

/// True for kinds of whose objects people are told by events.
fn is_told(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Gateway
            | Kind::ListenerSet
            | Kind::XListenerSet
            | Kind::HttpRoute
            | Kind::GrpcRoute
            | Kind::TlsRoute
            | Kind::TcpRoute
            | Kind::UdpRoute
            | Kind::BackendTlsPolicy
            | Kind::EvenkeelPolicy
    )
}

/// Returns the reason of the event about a condition; `None` if all is well.
fn find_reason(condition: &Value) -> Option<&'static str> {
    let text = |key: &str| condition.get(key).and_then(Value::as_str);
    // The listeners say it themselves.
    if text("reason") == Some("ListenersNotResolved") {
        return None;
    }
    match (text("type")?, text("status")?) {
        ("Accepted", "False") => Some("NotAccepted"),
        ("ResolvedRefs", "False") => Some("RefsNotResolved"),
        ("Programmed", "False") => Some("NotProgrammed"),
        ("PartiallyInvalid", "True") => Some("PartiallyInvalid"),
        _ => None,
    }
}

/// Adds the reports of a list of conditions. `about` says what the conditions are about. That an object which is not
/// accepted is not in effect either needs no words.
fn read_conditions(of: &Value, about: &str, reports: &mut BTreeSet<Report>) {
    let list = of.get("conditions").and_then(Value::as_array);
    let list = list.map(Vec::as_slice).unwrap_or_default();
    let mut all = list.iter().filter_map(|of| Some((find_reason(of)?, of)));
    let is_refused = all.clone().any(|(reason, _)| reason == "NotAccepted");
    let has_cause = is_refused || all.any(|(reason, _)| reason == "RefsNotResolved");
    for condition in list {
        let Some(reason) = find_reason(condition) else {
            continue;
        };
        if reason == "NotProgrammed" && has_cause {
            continue;
        }
        let text = |key: &str| {
            condition
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let (cause, message) = (text("reason"), text("message"));
        reports.insert((reason, format!("{about}{cause}: {message}")));
    }
}

/// Returns the reports of a status.
pub(super) fn read_status(status: &Value) -> BTreeSet<Report> {
    let mut reports = BTreeSet::new();
    read_conditions(status, "", &mut reports);
    for (key, has_name) in [
        ("listeners", true),
        ("parents", false),
        ("ancestors", false),
    ] {
        let list = status.get(key).and_then(Value::as_array);
        for of in list.into_iter().flatten() {
            let name = of.get("name").and_then(Value::as_str).unwrap_or_default();
            let about = match has_name {
                true => format!("listener {name}: "),
                false => String::new(),
            };
            read_conditions(of, &about, &mut reports);
        }
    }
    reports
}

impl StatusNotices {
    /// Returns the reports of all statuses. `find_uid` has the identities of objects.
    pub(crate) fn list(
        &mut self,
        statuses: &StatusList,
        find_uid: impl Fn(Kind, &ObjectName) -> Option<String>,
    ) -> Vec<Notice> {
        let (gone, new) = compare_lists(&self.known, statuses);
        self.known = Arc::clone(statuses);
        self.told.retain(|(of, _)| !gone.contains(&address_of(of)));
        for status in new.into_iter().filter(|of| is_told(of.kind)) {
            let reports = read_status(&status.read_status());
            if !reports.is_empty() {
                self.told.push((status, reports));
            }
        }
        let mut notices = Vec::new();
        for (status, reports) in &self.told {
            let Some(uid) = find_uid(status.kind, &status.object) else {
                continue;
            };
            notices.extend(reports.iter().map(|(reason, message)| Notice {
                kind: status.kind,
                object: status.object.clone(),
                uid: uid.clone(),
                reason,
                message: message.clone(),
            }));
        }
        notices
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn condition(kind: &str, status: &str, reason: &str) -> Value {
        json!({ "type": kind, "status": status, "reason": reason, "message": "why" })
    }

    fn list(status: Value) -> Vec<(&'static str, String)> {
        read_status(&status).into_iter().collect()
    }

    #[test]
    fn what_is_well_is_not_told() {
        let good = [
            condition("Accepted", "True", "Accepted"),
            condition("Conflicted", "False", "NoConflicts"),
            condition("ResolvedRefs", "True", "ResolvedRefs"),
            condition("Programmed", "True", "Programmed"),
        ];
        let status = json!({ "conditions": good, "listeners": [{ "name": "a", "conditions": good }],
                             "parents": [{ "conditions": good }], "ancestors": [{ "conditions": good }] });
        assert_eq!(list(status), []);
        assert_eq!(list(Value::Null), []);
        assert_eq!(list(json!({ "conditions": 7, "parents": [3] })), []);
    }

    #[test]
    fn reports_say_the_reason_once() {
        let bad = [
            condition("Accepted", "False", "UnsupportedValue"),
            condition("Programmed", "False", "Invalid"),
        ];
        let accepted = (
            "NotAccepted",
            "listener a: UnsupportedValue: why".to_owned(),
        );
        assert_eq!(
            list(json!({ "listeners": [{ "name": "a", "conditions": bad }] })),
            [accepted]
        );
        // All parents have the same reason.
        let parent = json!({ "conditions": [condition("PartiallyInvalid", "True", "UnsupportedValue"),
                                            condition("ResolvedRefs", "False", "BackendNotFound")] });
        assert_eq!(
            list(json!({ "parents": [parent, parent] })),
            [
                ("PartiallyInvalid", "UnsupportedValue: why".to_owned()),
                ("RefsNotResolved", "BackendNotFound: why".to_owned()),
            ]
        );
        let address =
            json!({ "conditions": [condition("Programmed", "False", "AddressNotAssigned")] });
        assert_eq!(
            list(address),
            [("NotProgrammed", "AddressNotAssigned: why".to_owned())]
        );
    }

    #[test]
    fn objects_have_their_identity_and_kind() {
        let status = |kind, name: &str| {
            let conditions = [condition("Accepted", "False", "Invalid")];
            let status =
                json!({ "conditions": conditions, "parents": [{ "conditions": conditions }] });
            Arc::new(Status::new(kind, ObjectName::new("shop", name), 1, &status))
        };
        let all = [
            status(Kind::HttpRoute, "a"),
            status(Kind::HttpRoute, "gone"),
            status(Kind::GatewayClass, "a"),
        ];
        let mut notices = StatusNotices::default();
        let find = |kind, name: &ObjectName| {
            assert_eq!(kind, Kind::HttpRoute);
            (name.name != "gone").then(|| "u".to_owned())
        };
        let list: StatusList = Arc::new(all.to_vec());
        for _ in 0..2 {
            let found = notices.list(&list, find);
            let [notice] = &found[..] else {
                panic!("{found:?}");
            };
            assert_eq!((notice.kind, &*notice.uid), (Kind::HttpRoute, "u"));
            assert_eq!(notice.message, "Invalid: why");
        }
        assert_eq!(notices.told.len(), 2);
        let list: StatusList = Arc::new(all[1..].to_vec());
        assert!(notices.list(&list, find).is_empty());
        assert_eq!(notices.told.len(), 1);
    }
}
