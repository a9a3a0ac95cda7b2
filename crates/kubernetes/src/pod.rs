//! Pods, read from JSON: each pod is a slice with its own ports and addresses.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::list::{Bounded, BoundedVisitor, ListError, Raw, RawDetails, RawMetadata, Status};
use crate::slice::{
    Endpoint, EndpointState, RawPort, Slice, bounded_name, read_address, read_ports,
};

/// Most containers of a pod.
const MAX_CONTAINERS: usize = 256;

/// Most ports of a container, most conditions and most addresses of a pod.
const MANY: usize = 256;

/// Label with the zone of the pod's node, which clusters copy to pods.
pub(crate) const ZONE: &str = "topology.kubernetes.io/zone";

/// A pod, the object of a bookmark, or a status.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RawPod {
    metadata: RawPodMetadata,
    spec: Option<RawSpec>,
    status: RawStatus,
    code: Option<u16>,
    message: Option<String>,
    reason: Option<String>,
    details: Option<RawDetails>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawPodMetadata {
    name: Option<String>,
    resource_version: Option<String>,
    uid: Option<String>,
    deletion_timestamp: Option<String>,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawSpec {
    containers: Option<Bounded<RawContainer, MAX_CONTAINERS>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawContainer {
    ports: Option<Bounded<RawContainerPort, MANY>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawContainerPort {
    name: Option<String>,
    container_port: Option<u16>,
    protocol: Option<String>,
}

/// Status of a pod; the `status` of a failure is a text, and counts as an empty one.
#[derive(Default)]
struct RawStatus(RawPodStatus);

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawPodStatus {
    phase: Option<String>,
    conditions: Option<Bounded<RawCondition, MANY>>,
    #[serde(rename = "podIP")]
    address: Option<String>,
    #[serde(rename = "podIPs")]
    addresses: Addresses,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawCondition {
    #[serde(rename = "type")]
    kind: Option<String>,
    status: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawAddress {
    ip: Option<String>,
}

/// Addresses that can be connected to.
#[derive(Default)]
struct Addresses(Vec<IpAddr>);

impl<'de> Deserialize<'de> for Addresses {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let visitor = BoundedVisitor {
            most: MANY,
            keep: |of: RawAddress| read_address(&of.ip?),
        };
        from.deserialize_any(visitor).map(Addresses)
    }
}

/// Reads a status of a pod where it is a map.
struct StatusVisitor;

impl<'de> Visitor<'de> for StatusVisitor {
    type Value = RawPodStatus;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the status of a pod")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawPodStatus, A::Error> {
        RawPodStatus::deserialize(MapAccessDeserializer::new(map))
    }

    fn visit_str<E>(self, _: &str) -> Result<RawPodStatus, E> {
        Ok(RawPodStatus::default())
    }

    fn visit_unit<E>(self) -> Result<RawPodStatus, E> {
        Ok(RawPodStatus::default())
    }
}

impl<'de> Deserialize<'de> for RawStatus {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(StatusVisitor).map(RawStatus)
    }
}

impl RawPodStatus {
    /// Returns the state of a pod: `Ready` says that the pod serves, and a pod that terminates finishes its traffic.
    fn find_state(&self, terminates: bool) -> EndpointState {
        let ended = matches!(self.phase.as_deref(), Some("Succeeded" | "Failed"));
        let conditions = self.conditions.iter().flat_map(|all| all.iter());
        let is_ready = { conditions.map(|of| (of.kind.as_deref(), of.status.as_deref())) }
            .any(|of| of == (Some("Ready"), Some("True")));
        match (is_ready && !ended, terminates) {
            (true, false) => EndpointState::Ready,
            (true, true) => EndpointState::Serving,
            (false, _) => EndpointState::Gone,
        }
    }
}

impl RawPod {
    fn into_slice(self) -> (RawMetadata, Slice) {
        let containers = self.spec.unwrap_or_default().containers.unwrap_or_default();
        let containers = containers.into_vec().into_iter();
        let ports = containers.flat_map(|of| of.ports.unwrap_or_default().into_vec());
        let ports = read_ports(ports.map(|port| RawPort {
            name: port.name,
            port: port.container_port,
            protocol: port.protocol,
        }));
        let RawStatus(status) = self.status;
        let state = status.find_state(self.metadata.deletion_timestamp.is_some());
        let mut labels = self.metadata.labels.unwrap_or_default();
        let (pod, zone) = (bounded_name(self.metadata.uid), labels.remove(ZONE));
        let mut addresses = status.addresses.0;
        if addresses.is_empty() {
            addresses.extend(status.address.as_deref().and_then(read_address));
        }
        let zone = bounded_name(zone);
        let endpoints = addresses.into_iter().map(|address| Endpoint {
            address,
            pod: pod.clone(),
            state,
            zone: zone.clone(),
            hints: Vec::new(),
        });
        let slice = Slice {
            ports,
            endpoints: endpoints.collect(),
            has_any_port: true,
        };
        let metadata = RawMetadata::new(self.metadata.name, self.metadata.resource_version);
        (metadata, slice)
    }
}

impl Raw<'_> for RawPod {
    type Object = Slice;

    fn into_object(self) -> Result<(String, Slice, String), ListError> {
        let (metadata, slice) = self.into_slice();
        let (name, version) = metadata.into_name()?;
        Ok((name, slice, version))
    }

    fn into_version(self) -> Result<String, ListError> {
        RawMetadata::new(self.metadata.name, self.metadata.resource_version).into_version()
    }

    fn into_status(self) -> Status {
        let (message, reason) = (self.message, self.reason);
        Status::new(self.code, message, reason, self.details)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::list::{self, Event, MAX_NAME};

    fn pod(change: impl FnOnce(&mut Value)) -> Value {
        let mut pod = json!({
            "metadata": { "name": "vllm-0", "namespace": "ml", "uid": "u-1", "resourceVersion": "7",
                          "labels": { "app": "vllm", "topology.kubernetes.io/zone": "a" },
                          "managedFields": [{ "fieldsV1": { "f:metadata": {} } }] },
            "spec": { "nodeName": "n", "containers": [
                { "name": "engine", "ports": [{ "name": "http", "containerPort": 8000 }] },
                { "name": "other", "ports": [{ "containerPort": 53, "protocol": "UDP" }] }] },
            "status": { "phase": "Running", "podIP": "10.0.0.1",
                        "podIPs": [{ "ip": "10.0.0.1" }, { "ip": "2001:db8::1" }, { "ip": "0.0.0.0" }],
                        "conditions": [{ "type": "Initialized", "status": "True" },
                                       { "type": "Ready", "status": "True" }] },
        });
        change(&mut pod);
        pod
    }

    fn read(pod: &Value) -> Slice {
        let text = json!({ "type": "MODIFIED", "object": pod }).to_string();
        let event = list::parse_event::<RawPod>(text.as_bytes()).unwrap();
        let Event::Changed(name, slice, version) = event else {
            panic!("{event:?}");
        };
        assert_eq!((&*name, &*version), ("vllm-0", "7"));
        slice
    }

    #[test]
    fn a_pod_is_a_slice_of_its_addresses() {
        let slice = read(&pod(|_| ()));
        assert_eq!(slice.ports, [("http".into(), 8000), ("".into(), 53)]);
        assert!(slice.has_any_port);
        let addresses: Vec<_> = { slice.endpoints.iter() }
            .map(|of| of.address.to_string())
            .collect();
        assert_eq!(addresses, ["10.0.0.1", "2001:db8::1"]);
        for endpoint in &slice.endpoints {
            assert_eq!(endpoint.pod.as_deref(), Some("u-1"));
            assert_eq!(endpoint.zone.as_deref(), Some("a"));
            assert_eq!(endpoint.state, EndpointState::Ready);
        }
        let old = read(&pod(|pod| pod["status"]["podIPs"] = Value::Null));
        assert_eq!(old.endpoints.len(), 1);
        let pending = read(&pod(|pod| pod["status"] = json!({ "phase": "Pending" })));
        assert!(pending.endpoints.is_empty());
    }

    #[test]
    fn states_of_pods() {
        use EndpointState::{Gone, Ready, Serving};
        let time = json!("2026-11-28T00:00:00Z");
        for (ready, phase, deleted, wanted) in [
            ("True", "Running", Value::Null, Ready),
            ("True", "Running", time.clone(), Serving),
            ("False", "Running", Value::Null, Gone),
            ("Unknown", "Running", Value::Null, Gone),
            ("False", "Running", time, Gone),
            ("True", "Succeeded", Value::Null, Gone),
            ("True", "Failed", Value::Null, Gone),
        ] {
            let slice = read(&pod(|pod| {
                pod["status"]["conditions"][1]["status"] = ready.into();
                pod["status"]["phase"] = phase.into();
                pod["metadata"]["deletionTimestamp"] = deleted.clone();
            }));
            let states: Vec<_> = slice.endpoints.iter().map(|of| of.state).collect();
            assert_eq!(states, [wanted; 2], "{ready} {phase} {deleted}");
        }
    }

    #[test]
    fn bookmarks_failures_and_hostile_pods() {
        let event = |kind: &str, object: Value| {
            let text = json!({ "type": kind, "object": object }).to_string();
            list::parse_event::<RawPod>(text.as_bytes())
        };
        let bookmark = json!({ "kind": "Pod", "metadata": { "resourceVersion": "12" }, "spec": { "containers": null }, "status": {} });
        assert_eq!(
            event("BOOKMARK", bookmark).unwrap(),
            Event::Bookmark("12".into())
        );
        let gone = json!({ "metadata": {}, "status": "Failure", "code": 410, "reason": "Expired", "message": "too old" });
        let Event::Failed(status) = event("ERROR", gone).unwrap() else {
            panic!("a failure");
        };
        assert_eq!(status.code, 410);
        let whole = json!({ "type": "ADDED", "object": pod(|_| ()) }).to_string();
        for cut in 0..whole.len() {
            assert!(
                list::parse_event::<RawPod>(&whole.as_bytes()[..cut]).is_err(),
                "{cut}"
            );
        }
        let many = pod(|pod| pod["status"]["podIPs"] = vec![json!({}); MANY + 1].into());
        assert!(event("ADDED", many).is_err());
        let many = pod(|pod| pod["spec"]["containers"] = vec![json!({}); 257].into());
        assert!(event("ADDED", many).is_err());
        let long = pod(|pod| pod["metadata"]["name"] = "x".repeat(MAX_NAME + 1).into());
        assert!(event("ADDED", long).is_err());
        for (path, wrong) in [
            ("/metadata/name", json!(7)),
            ("/metadata/labels", json!([])),
            ("/status/podIPs", json!("x")),
            ("/spec/containers/0/ports/0/containerPort", json!(70_000)),
        ] {
            let wrong = pod(|pod| *pod.pointer_mut(path).unwrap() = wrong.clone());
            assert!(event("ADDED", wrong).is_err(), "{path}");
        }
    }
}
