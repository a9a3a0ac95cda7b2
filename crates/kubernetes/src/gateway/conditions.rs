//! Conditions and statuses of objects.

use serde_json::{Map, Value, json};

use super::objects::{GROUP, Kind, ObjectName};

/// Reason of a condition that does not hold, and the message.
pub(crate) type Refusal = (&'static str, String);

/// Condition of an object, a listener or a parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Type: `Accepted`, `Programmed`, `ResolvedRefs` and so on.
    pub kind: &'static str,
    /// True, or false.
    pub status: bool,
    /// Reason of the specification.
    pub reason: &'static str,
    /// Explanation for people: what is wrong, and what to do.
    pub message: String,
}

impl Condition {
    /// Returns a condition that holds.
    pub fn holds(kind: &'static str, reason: &'static str) -> Self {
        Condition {
            kind,
            status: true,
            reason,
            message: String::new(),
        }
    }

    /// Returns a condition that does not hold.
    pub fn fails(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Condition {
            kind,
            status: false,
            reason,
            message: message.into(),
        }
    }
}

/// Longest message of a condition; the API server allows 32,768 characters.
const MAX_MESSAGE: usize = 4_096;

/// Types of conditions that the controller writes. Conditions of other types belong to others, and stay.
const OWN: [&str; 7] = [
    "AttachedListenerSets",
    "InsecureFrontendValidationMode",
    "Accepted",
    "Programmed",
    "ResolvedRefs",
    "Conflicted",
    "PartiallyInvalid",
];

/// Wanted status of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Kind of the object.
    pub kind: Kind,
    /// Name of the object.
    pub object: ObjectName,
    /// Generation of the object that was translated.
    pub generation: i64,
    /// Status as it is to be, as JSON: a tree of values takes several times the memory. Conditions without a time take
    /// the time of the write.
    text: Box<str>,
}

impl Status {
    /// Makes the wanted status of an object, of which this generation was translated.
    pub fn new(kind: Kind, object: ObjectName, generation: i64, status: &Value) -> Self {
        Status {
            kind,
            object,
            generation,
            text: status.to_string().into(),
        }
    }

    /// Returns the status as it is to be.
    pub fn read_status(&self) -> Value {
        // The text was written by this module.
        serde_json::from_str(&self.text).unwrap_or_default()
    }
}

/// Writes the part of a status that each of these gateways has, with the same conditions. `reference` is the field with
/// the gateway.
pub(crate) fn list_by_gateway<'a>(
    reference: &str,
    gateways: impl Iterator<Item = &'a ObjectName>,
    controller: &str,
    conditions: &Value,
) -> Vec<Value> {
    let entries = gateways.map(|gateway| {
        json!({
            reference: {
                "group": GROUP,
                "kind": Kind::Gateway.name(),
                "namespace": gateway.namespace,
                "name": gateway.name,
            },
            "controllerName": controller,
            "conditions": conditions,
        })
    });
    entries.collect()
}

/// Writes conditions as JSON, without a time.
pub(crate) fn list_conditions(conditions: &[Condition], generation: i64) -> Value {
    let list = conditions.iter().map(|condition| {
        let mut message = condition.message.clone();
        if message.len() > MAX_MESSAGE {
            let mut end = MAX_MESSAGE;
            while !message.is_char_boundary(end) {
                end -= 1;
            }
            message.truncate(end);
        }
        json!({
            "type": condition.kind,
            "status": if condition.status { "True" } else { "False" },
            "reason": condition.reason,
            "message": message,
            "observedGeneration": generation,
        })
    });
    list.collect()
}

/// Returns the conditions `wanted`, with those of others in `current`. A condition that has not changed keeps its time;
/// `None` in place of the time if nothing has changed at all is decided by [`needs_write`].
fn merge_conditions(wanted: &Value, current: &Value, now: &str) -> Value {
    let empty = Vec::new();
    let wanted = wanted.as_array().unwrap_or(&empty);
    let current = current.as_array().unwrap_or(&empty);
    let kind = |of: &Value| of.get("type").and_then(Value::as_str).map(str::to_owned);
    let merged = wanted.iter().map(|condition| {
        let before = current.iter().find(|of| kind(of) == kind(condition));
        let same = before.filter(|before| before.get("status") == condition.get("status"));
        let time = same.and_then(|before| before.get("lastTransitionTime"));
        let mut condition = condition.clone();
        if let Some(fields) = condition.as_object_mut() {
            let time = time.cloned().unwrap_or_else(|| now.into());
            fields.insert("lastTransitionTime".into(), time);
        }
        condition
    });
    let others = current.iter().filter(|of| {
        let kind = kind(of).unwrap_or_default();
        !OWN.contains(&&*kind)
    });
    merged.chain(others.cloned()).collect()
}

/// Returns the text of a field.
fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the status to write for `wanted`, if that differs from `current`. `now` is the time (RFC 3339) of
/// conditions that change, and `controller` the name by which this controller knows its entries.
pub fn merge_status(wanted: &Value, current: &Value, controller: &str, now: &str) -> Option<Value> {
    let mut merged = Map::new();
    let none = Value::Null;
    if let Some(conditions) = wanted.get("conditions") {
        let current = current.get("conditions").unwrap_or(&none);
        merged.insert(
            "conditions".into(),
            merge_conditions(conditions, current, now),
        );
    }
    let empty = Vec::new();
    let list = |value: &'_ Value, key: &str| -> Vec<Value> {
        let list = value.get(key).and_then(Value::as_array);
        list.unwrap_or(&empty).clone()
    };
    if wanted.get("listeners").is_some() {
        let before = list(current, "listeners");
        let listeners = list(wanted, "listeners").into_iter().map(|mut listener| {
            let known = before
                .iter()
                .find(|of| text(of, "name") == text(&listener, "name"));
            let known = known.and_then(|known| known.get("conditions"));
            merge_inside(&mut listener, known.unwrap_or(&none), now);
            listener
        });
        merged.insert("listeners".into(), listeners.collect());
    }
    if let Some(addresses) = wanted.get("addresses") {
        merged.insert("addresses".into(), addresses.clone());
    }
    // Older versions of the API have no such field: nothing is written where there is nothing to count.
    if let Some(count) = wanted.get("attachedListenerSets")
        && (*count != 0 || current.get("attachedListenerSets").is_some())
    {
        merged.insert("attachedListenerSets".into(), count.clone());
    }
    if let Some(features) = wanted.get("supportedFeatures") {
        merged.insert("supportedFeatures".into(), features.clone());
    }
    if let Some(balancer) = wanted.get("loadBalancer") {
        merged.insert("loadBalancer".into(), balancer.clone());
    }
    for (key, reference) in [("parents", "parentRef"), ("ancestors", "ancestorRef")] {
        if wanted.get(key).is_some() {
            let (before, own) = (list(current, key), list(wanted, key));
            let entries = merge_entries(own, before, reference, controller, now);
            merged.insert(key.into(), entries.into());
        }
    }
    let is_same = merged.iter().all(|(key, value)| {
        current.get(key).unwrap_or(&none) == value || is_empty(value, current.get(key))
    });
    (!is_same).then(|| merged.into())
}

/// Returns the entries of a status: those of this controller become `own`, and those of others in `before` stay. The
/// field `key` of an entry has the object that the entry is about.
fn merge_entries(
    mut own: Vec<Value>,
    before: Vec<Value>,
    key: &str,
    controller: &str,
    now: &str,
) -> Vec<Value> {
    // Older InferencePools have no `controllerName`: the reference is enough.
    let references: Vec<_> = own.iter().map(|of| of.get(key).cloned()).collect();
    let is_own = |of: &Value| match of.get("controllerName") {
        Some(name) => name == controller,
        None => references.contains(&of.get(key).cloned()),
    };
    for entry in &mut own {
        let reference = entry.get(key);
        let known = { before.iter() }
            .find(|of| is_own(of) && of.get(key) == reference)
            .and_then(|known| known.get("conditions"));
        let known = known.unwrap_or(&Value::Null).clone();
        merge_inside(entry, &known, now);
    }
    // Entries stay where they are, so that two controllers do not move each other's.
    let mut merged: Vec<Value> = Vec::new();
    for known in before {
        if !is_own(&known) {
            merged.push(known);
            continue;
        }
        let same = { own.iter() }.position(|of| of.get(key) == known.get(key));
        merged.extend(same.map(|at| own.remove(at)));
    }
    merged.extend(own);
    merged
}

/// True if an empty list stands where there is nothing.
fn is_empty(value: &Value, current: Option<&Value>) -> bool {
    value.as_array().is_some_and(Vec::is_empty) && current.is_none_or(Value::is_null)
}

/// Merges the conditions of a listener or of a parent.
fn merge_inside(of: &mut Value, current: &Value, now: &str) {
    let wanted = of.get("conditions").cloned().unwrap_or_default();
    if let Some(fields) = of.as_object_mut() {
        fields.insert("conditions".into(), merge_conditions(&wanted, current, now));
    }
}

/// Writes a time in seconds since 1970 as RFC 3339 in UTC.
pub fn format_time(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", section civil_from_days.
    let shifted = days.saturating_add(719_468);
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_of_rfc_3339() {
        assert_eq!(format_time(0), "1970-01-01T00:00:00Z");
        assert_eq!(format_time(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(format_time(1_795_843_199), "2026-11-28T05:19:59Z");
    }

    fn accepted(status: bool) -> Value {
        let condition = match status {
            true => Condition::holds("Accepted", "Accepted"),
            false => Condition::fails("Accepted", "Invalid", "why"),
        };
        list_conditions(&[condition], 3)
    }

    #[test]
    fn a_condition_that_stays_keeps_its_time_and_needs_no_write() {
        let wanted = json!({ "conditions": accepted(true) });
        let written = merge_status(&wanted, &Value::Null, "c", "T1").unwrap();
        assert_eq!(written["conditions"][0]["lastTransitionTime"], "T1");
        assert_eq!(merge_status(&wanted, &written, "c", "T2"), None);
        let other = json!({ "conditions": accepted(false) });
        let changed = merge_status(&other, &written, "c", "T2").unwrap();
        assert_eq!(changed["conditions"][0]["lastTransitionTime"], "T2");
    }

    #[test]
    fn a_count_of_sets_is_written_if_there_are_any_or_were_some() {
        let count = |count: u32| json!({ "attachedListenerSets": count });
        assert_eq!(merge_status(&count(0), &json!({}), "c", "T"), None);
        let written = merge_status(&count(2), &json!({}), "c", "T").unwrap();
        assert_eq!(written, count(2));
        assert_eq!(merge_status(&count(2), &written, "c", "T"), None);
        assert_eq!(merge_status(&count(0), &written, "c", "T"), Some(count(0)));
    }

    #[test]
    fn what_others_wrote_stays() {
        let current = json!({
            "conditions": [{ "type": "Theirs", "status": "True" }, { "type": "Programmed", "status": "True" }],
            "parents": [
                { "controllerName": "other", "parentRef": { "name": "g" }, "conditions": [] },
                { "controllerName": "c", "parentRef": { "name": "gone" }, "conditions": [] },
            ],
        });
        let parent = json!({ "controllerName": "c", "parentRef": { "name": "g" }, "conditions": accepted(true) });
        let wanted = json!({ "conditions": accepted(true), "parents": [parent] });
        let merged = merge_status(&wanted, &current, "c", "T").unwrap();
        let kinds: Vec<_> = merged["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|of| text(of, "type"))
            .collect();
        assert_eq!(kinds, ["Accepted", "Theirs"]);
        let parents = merged["parents"].as_array().unwrap();
        assert_eq!(parents.len(), 2);
        assert_eq!(parents[0]["controllerName"], "other");
        assert_eq!(parents[1]["conditions"][0]["lastTransitionTime"], "T");
        let none = json!({ "parents": [] });
        assert_eq!(merge_status(&none, &Value::Null, "c", "T"), None);
    }

    #[test]
    fn entries_without_a_controller_are_known_by_their_references() {
        let parent = |reference: &str| json!({ "parentRef": { "name": reference }, "conditions": accepted(true) });
        let mut own = parent("g");
        own["controllerName"] = "c".into();
        let wanted = json!({ "parents": [own] });
        let current = json!({ "parents": [parent("default"), parent("g")] });
        let merged = merge_status(&wanted, &current, "c", "T").unwrap();
        let names: Vec<_> = { merged["parents"].as_array().unwrap().iter() }
            .map(|of| of["parentRef"]["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["default", "g"]);
    }
}
