//! EndpointSlices, read from JSON.
//!
//! Everything that is kept has a bound. Fields that nobody needs are skipped without being kept.

use std::net::IpAddr;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::list::{
    Bounded, BoundedVisitor, ListError, MAX_NAME, Raw, RawDetails, RawMetadata, Status,
};

/// Most endpoints of one slice; the API server allows as many.
const MAX_ENDPOINTS: usize = 1_000;

/// Most ports of one slice; the API server allows as many.
const MAX_PORTS: usize = 100;

/// Most hints of an endpoint; the API server allows eight.
const MAX_HINTS: usize = 64;

/// Most addresses of an endpoint; the API server allows as many.
const MAX_ADDRESSES: usize = 100;

/// Endpoints of a slice; elements that are no endpoints are not kept.
#[derive(Default)]
struct Endpoints(Vec<Endpoint>);

impl<'de> Deserialize<'de> for Endpoints {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let visitor = BoundedVisitor {
            most: MAX_ENDPOINTS,
            keep: RawEndpoint::into_endpoint,
        };
        from.deserialize_seq(visitor).map(Endpoints)
    }
}

/// Slice of the endpoints of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Names and numbers of the ports for TCP. The name of the only port of a service may be empty.
    pub ports: Vec<(Box<str>, u16)>,
    /// Endpoints with IP addresses.
    pub endpoints: Vec<Endpoint>,
    /// True if the endpoints may have ports that they do not declare, as pods may.
    pub has_any_port: bool,
}

/// Endpoint of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address of the endpoint.
    pub address: IpAddr,
    /// Identity of the pod; endpoints of both families of addresses have the same.
    pub pod: Option<Box<str>>,
    /// State of the endpoint.
    pub state: EndpointState,
    /// Zone in which the endpoint is.
    pub zone: Option<Box<str>>,
    /// Zones that are to use the endpoint.
    pub hints: Vec<Box<str>>,
}

/// State of an endpoint, from its conditions; the best state first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndpointState {
    /// `ready`: the endpoint takes traffic.
    Ready,
    /// `serving`, but not `ready`: the endpoint terminates, and finishes its traffic.
    Serving,
    /// Neither: the endpoint takes no traffic.
    Gone,
}

/// A slice, the object of a bookmark, or a status.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RawSlice<'a> {
    metadata: RawSliceMetadata,
    #[serde(borrow)]
    endpoints: Option<&'a RawValue>,
    #[serde(borrow)]
    ports: Option<&'a RawValue>,
    code: Option<u16>,
    message: Option<String>,
    reason: Option<String>,
    details: Option<RawDetails>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawSliceMetadata {
    name: Option<String>,
    namespace: Option<String>,
    resource_version: Option<String>,
    labels: Option<RawLabels>,
}

impl RawSliceMetadata {
    /// Returns the namespace and the name, as one text, and the version.
    fn into_key(self) -> Result<(String, String), ListError> {
        let (name, version) = RawMetadata::new(self.name, self.resource_version).into_name()?;
        let namespace = self.namespace.unwrap_or_default();
        if namespace.len() > MAX_NAME {
            return Err(ListError::Bounds("a namespace of more than 253 bytes"));
        }
        Ok((format!("{namespace}/{name}"), version))
    }

    fn into_version(self) -> Result<String, ListError> {
        RawMetadata::new(self.name, self.resource_version).into_version()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawLabels {
    #[serde(rename = "kubernetes.io/service-name")]
    service: Option<String>,
}

/// Slice whose service is known, and whose endpoints have not been read: most slices of a large cluster are of services
/// that nobody wants.
pub(crate) struct UnreadSlice<'a> {
    /// Name of the service; empty if the slice has none.
    pub(crate) service: String,
    endpoints: Option<&'a RawValue>,
    ports: Option<&'a RawValue>,
}

impl UnreadSlice<'_> {
    /// Reads endpoints and ports.
    pub(crate) fn read(self) -> Result<Slice, ListError> {
        let endpoints = self.endpoints.map(|text| serde_json::from_str(text.get()));
        let endpoints: Endpoints = endpoints.transpose()?.unwrap_or_default();
        let ports = self.ports.map(|text| serde_json::from_str(text.get()));
        let ports: Bounded<RawPort, MAX_PORTS> = ports.transpose()?.unwrap_or_default();
        Ok(Slice {
            ports: read_ports(ports.into_vec().into_iter()),
            endpoints: endpoints.0,
            has_any_port: false,
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RawPort {
    pub(crate) name: Option<String>,
    pub(crate) port: Option<u16>,
    pub(crate) protocol: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawEndpoint {
    addresses: Option<Bounded<String, MAX_ADDRESSES>>,
    conditions: Option<RawConditions>,
    hints: Option<RawHints>,
    target_ref: Option<RawTarget>,
    zone: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawConditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawHints {
    for_zones: Option<Bounded<RawZone, MAX_HINTS>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawZone {
    name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawTarget {
    uid: Option<String>,
}

/// A service.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawService {
    metadata: RawSliceMetadata,
    spec: Option<RawSpec>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawSpec {
    ports: Option<Bounded<RawPort, MAX_PORTS>>,
}

impl EndpointState {
    /// Without conditions an endpoint is ready, and serving is the same as ready unless it is said. A terminating
    /// endpoint is never ready, whatever is said.
    fn from_conditions(conditions: &RawConditions) -> Self {
        let terminates = conditions.terminating.unwrap_or(false);
        let ready = conditions.ready.unwrap_or(true);
        match (ready && !terminates, conditions.serving.unwrap_or(ready)) {
            (true, _) => EndpointState::Ready,
            (false, true) => EndpointState::Serving,
            (false, false) => EndpointState::Gone,
        }
    }
}

/// Returns the text if it is a name that may be kept.
pub(crate) fn bounded_name(text: Option<String>) -> Option<Box<str>> {
    let text = text.filter(|text| !text.is_empty() && text.len() <= MAX_NAME)?;
    text.bytes()
        .all(|byte| byte.is_ascii_graphic())
        .then(|| text.into())
}

/// Reads an address that can be connected to.
pub(crate) fn read_address(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.parse().ok()?;
    (!address.is_unspecified() && !address.is_multicast()).then_some(address)
}

impl RawEndpoint {
    fn into_endpoint(self) -> Option<Endpoint> {
        // All addresses of an endpoint are the same to clients; the first is enough.
        let address = read_address(self.addresses?.first()?)?;
        let zones = self.hints.unwrap_or_default().for_zones.unwrap_or_default();
        let hints = zones
            .into_vec()
            .into_iter()
            .filter_map(|zone| bounded_name(zone.name));
        Some(Endpoint {
            address,
            pod: self.target_ref.and_then(|target| bounded_name(target.uid)),
            state: EndpointState::from_conditions(&self.conditions.unwrap_or_default()),
            zone: bounded_name(self.zone),
            hints: hints.collect(),
        })
    }
}

/// Returns the names and numbers of the ports: those for TCP, then those for UDP. The first port of a number is the one
/// that the number means.
pub(crate) fn read_ports(ports: impl Iterator<Item = RawPort>) -> Vec<(Box<str>, u16)> {
    let (mut tcp, mut udp) = (Vec::new(), Vec::new());
    for port in ports {
        let of_transport = match port.protocol.as_deref().unwrap_or("TCP") {
            "TCP" => &mut tcp,
            "UDP" => &mut udp,
            _ => continue,
        };
        let name = port.name.unwrap_or_default();
        let number = port.port.filter(|number| *number > 0);
        if let Some(number) = number.filter(|_| name.len() <= MAX_NAME) {
            of_transport.push((name.into(), number));
        }
    }
    tcp.extend(udp);
    tcp
}

impl<'a> Raw<'a> for RawSlice<'a> {
    type Object = UnreadSlice<'a>;

    fn into_object(mut self) -> Result<(String, UnreadSlice<'a>, String), ListError> {
        let labels = self.metadata.labels.take().unwrap_or_default();
        let service = labels.service.unwrap_or_default();
        let (key, version) = self.metadata.into_key()?;
        let slice = UnreadSlice {
            service,
            endpoints: self.endpoints,
            ports: self.ports,
        };
        Ok((key, slice, version))
    }

    fn into_version(self) -> Result<String, ListError> {
        self.metadata.into_version()
    }

    fn into_status(self) -> Status {
        let (message, reason) = (self.message, self.reason);
        Status::new(self.code, message, reason, self.details)
    }
}

/// Services are listed, and not watched.
impl Raw<'_> for RawService {
    type Object = Vec<(Box<str>, u16)>;

    fn into_object(self) -> Result<(String, Self::Object, String), ListError> {
        let (key, version) = self.metadata.into_key()?;
        Ok((key, self.spec.unwrap_or_default().into_ports(), version))
    }

    fn into_version(self) -> Result<String, ListError> {
        self.metadata.into_version()
    }

    fn into_status(self) -> Status {
        Status::default()
    }
}

impl RawSpec {
    /// Returns the names and numbers of the ports.
    fn into_ports(self) -> Vec<(Box<str>, u16)> {
        let ports = self.ports.unwrap_or_default();
        read_ports(ports.into_vec().into_iter())
    }
}

/// Reads an answer about a failure; empty if the text is none.
pub fn parse_status(text: &[u8]) -> Status {
    let object: Result<RawSlice<'_>, _> = serde_json::from_slice(text);
    object.unwrap_or_default().into_status()
}

/// Reads the names and numbers of the ports of a service.
///
/// # Errors
///
/// The text is no service, or beyond the bounds.
pub fn parse_service(text: &[u8]) -> Result<Vec<(Box<str>, u16)>, ListError> {
    let service: RawService = serde_json::from_slice(text)?;
    Ok(service.spec.unwrap_or_default().into_ports())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::list::{self, Event, Page};

    fn parse_page(text: &[u8]) -> Result<Page<Slice>, ListError> {
        let mut error = None;
        let page = list::parse_page::<RawSlice<'_>>(text)?.keep_objects(|_, slice| {
            let read = slice.read();
            read.map_err(|why| error = Some(why)).ok()
        });
        error.map_or(Ok(page), Err)
    }

    fn parse_event(text: &[u8]) -> Result<Event<Slice>, ListError> {
        let mut error = None;
        let event = list::parse_event::<RawSlice<'_>>(text)?.keep_object(|_, slice| {
            let read = slice.read();
            read.map_err(|why| error = Some(why)).ok()
        });
        error.map_or(Ok(event), Err)
    }

    const SLICE: &str = r#"{"metadata":{"name":"web-1","namespace":"shop","resourceVersion":"7",
        "labels":{"app":"web","kubernetes.io/service-name":"web"}},"addressType":"IPv4",
        "ports":[{"name":"dns","port":53,"protocol":"UDP"},{"name":"sctp","port":9,"protocol":"SCTP"},
        {"name":"http","port":8080,"protocol":"TCP"}],
        "endpoints":[{"addresses":["10.0.0.1"],"conditions":{"ready":true},"zone":"a",
        "hints":{"forZones":[{"name":"b"}]},"targetRef":{"kind":"Pod","uid":"u-1"}},
        {"addresses":["web.example"]},{"addresses":[]},{"addresses":["0.0.0.0"]}]}"#;

    fn event(kind: &str, object: &str) -> String {
        format!(r#"{{"type":"{kind}","object":{object}}}"#)
    }

    #[test]
    fn slices_are_read_and_what_is_no_member_is_left_out() {
        let text = event("ADDED", SLICE);
        let Event::Changed(name, slice, version) = parse_event(text.as_bytes()).unwrap() else {
            panic!("a change");
        };
        assert_eq!((&*name, &*version), ("shop/web-1", "7"));
        assert_eq!(slice.ports, [("http".into(), 8080), ("dns".into(), 53)]);
        let [endpoint] = &slice.endpoints[..] else {
            panic!("{:?}", slice.endpoints);
        };
        assert_eq!(endpoint.address, IpAddr::from([10, 0, 0, 1]));
        assert_eq!(endpoint.pod.as_deref(), Some("u-1"));
        assert_eq!(endpoint.zone.as_deref(), Some("a"));
        assert_eq!(endpoint.hints, ["b".into()]);
        let deleted = parse_event(event("DELETED", SLICE).as_bytes()).unwrap();
        assert_eq!(deleted, Event::Deleted("shop/web-1".into(), "7".into()));
        let unread = list::parse_event::<RawSlice<'_>>(text.as_bytes()).unwrap();
        let Event::Changed(_, unread, _) = unread else {
            panic!("a change");
        };
        assert_eq!(unread.service, "web");
        let list = format!(
            r#"{{"kind":"EndpointSliceList","metadata":{{"resourceVersion":"9","continue":"t"}},"items":[{SLICE}]}}"#
        );
        let page = parse_page(list.as_bytes()).unwrap();
        assert_eq!(
            (page.objects.len(), &*page.version, &*page.next),
            (1, "9", "t")
        );
        let empty = br#"{"metadata":{"resourceVersion":"9"},"items":null}"#;
        assert!(parse_page(empty).unwrap().objects.is_empty());
    }

    #[test]
    fn conditions_say_what_an_endpoint_does() {
        use EndpointState::{Gone, Ready, Serving};
        for (ready, serving, terminating, state) in [
            (None, None, None, Ready),
            (Some(true), None, None, Ready),
            (Some(true), Some(true), Some(false), Ready),
            (Some(false), Some(true), Some(true), Serving),
            (Some(false), Some(false), Some(true), Gone),
            (Some(false), None, None, Gone),
            (Some(true), Some(true), Some(true), Serving),
        ] {
            let conditions = RawConditions {
                ready,
                serving,
                terminating,
            };
            let found = EndpointState::from_conditions(&conditions);
            assert_eq!(found, state, "{ready:?} {serving:?} {terminating:?}");
        }
    }

    #[test]
    fn bookmarks_and_failures_are_events() {
        let bookmark = r#"{"metadata":{"resourceVersion":"12"}}"#;
        let bookmark = parse_event(event("BOOKMARK", bookmark).as_bytes()).unwrap();
        assert_eq!(bookmark, Event::Bookmark("12".into()));
        let status = r#"{"metadata":{},"code":410,"reason":"Expired","message":"too old","details":{"retryAfterSeconds":3}}"#;
        let Event::Failed(status) = parse_event(event("ERROR", status).as_bytes()).unwrap() else {
            panic!("a failure");
        };
        assert_eq!((status.code, status.retry_after), (410, Some(3)));
        assert_eq!(
            parse_event(event("NEW", "{}").as_bytes()).unwrap(),
            Event::Other
        );
        assert_eq!(parse_status(b"<html>"), Status::default());
    }

    #[test]
    fn hostile_json_is_an_error() {
        let whole = event("ADDED", SLICE);
        for cut in 0..whole.len() {
            assert!(parse_event(&whole.as_bytes()[..cut]).is_err(), "{cut}");
        }
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        let many = format!(
            r#"{{"metadata":{{"name":"a","resourceVersion":"1"}},"endpoints":[{}]}}"#,
            vec!["{}"; MAX_ENDPOINTS + 1].join(",")
        );
        let ports = format!(
            r#"{{"metadata":{{"name":"a","resourceVersion":"1"}},"ports":[{}]}}"#,
            vec!["{}"; MAX_PORTS + 1].join(",")
        );
        for (object, wanted) in [
            ("[]", "without a name"),
            ("null", "cannot be read"),
            (r#"{"metadata":{"name":7}}"#, "cannot be read"),
            (r#"{"metadata":{"name":"a","name":"b"}}"#, "duplicate field"),
            (
                r#"{"endpoints":{},"metadata":{"name":"a","resourceVersion":"1"}}"#,
                "cannot be read",
            ),
            (
                r#"{"endpoints":[{"addresses":"10.0.0.1"}],"metadata":{"name":"a","resourceVersion":"1"}}"#,
                "cannot be read",
            ),
            (
                r#"{"ports":[{"port":65536}],"metadata":{"name":"a","resourceVersion":"1"}}"#,
                "cannot be read",
            ),
            (
                r#"{"ports":[{"port":-1}],"metadata":{"name":"a","resourceVersion":"1"}}"#,
                "cannot be read",
            ),
            (r#"{"metadata":{"labels":7}}"#, "cannot be read"),
            (
                r#"{"metadata":{"labels":{"kubernetes.io/service-name":7}}}"#,
                "cannot be read",
            ),
            ("{}", "without a name"),
            (r#"{"metadata":{"name":"a"}}"#, "no usable resourceVersion"),
            (
                r#"{"metadata":{"name":"a","resourceVersion":"1 2"}}"#,
                "no usable resourceVersion",
            ),
            (&*format!(r#"{{"x":{deep}}}"#), "without a name"),
            (&many, "at most 1000 elements"),
            (&ports, "at most 100 elements"),
        ] {
            let error = parse_event(event("ADDED", object).as_bytes()).unwrap_err();
            assert!(error.to_string().contains(wanted), "{error} {wanted}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (parse_event(&bytes).is_ok(), parse_page(&bytes).is_ok(), parse_service(&bytes).is_ok());
            parse_status(&bytes);
        }
    }
}
