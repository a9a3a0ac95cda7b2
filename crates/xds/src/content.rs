//! Content of a resource, and its encoding for each audience.
//!
//! The same content is always encoded to the same bytes: a client that gets them once more sees that
//! nothing has changed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_config::XdsPolicy;
use evenkeel_control::shares::ServiceState;
use evenkeel_core::address::Address;
use prost::Message;

use crate::kind::{Audience, Dialect};
use crate::proto;

/// Content of a resource. The name of the resource is the name of the group, of whichever type the resource
/// is.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Description of how the members of a group are reached.
    Cluster(Cluster),
    /// The members of a group.
    Endpoints(Endpoints),
    /// Listener that says that clients of gRPC may ask for the group.
    Listener,
    /// Route that sends all requests of these clients to the group.
    Route,
}

/// Description of how the members of a group are reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Policy that says who decides which member gets how much.
    pub policy: XdsPolicy,
    /// True if members speak HTTP/2.
    pub http2: bool,
    /// True if members speak TLS. A client must have by itself what it needs for TLS, so Envoy gets no such
    /// cluster: Envoy would speak to the members in clear.
    pub tls: bool,
    /// True if clients are to report what they see of the cluster.
    pub reports: bool,
    /// Time limit of connections.
    pub connect_timeout: Duration,
}

/// The members of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoints {
    /// Policy that says who decides which member gets how much.
    pub policy: XdsPolicy,
    /// The zones that come after a client's own one, in this order, and before all others; `None` is that
    /// all zones are alike.
    pub order: Option<Vec<String>>,
    /// The members, in the order of the group.
    pub members: Vec<Endpoint>,
}

/// A member.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    /// Name of the member.
    pub name: Arc<str>,
    /// Host of the member, which may be a name.
    pub host: Arc<str>,
    /// Address that the member listens on.
    pub address: Address,
    /// Zone of the member, if one is configured.
    pub zone: Option<Arc<str>>,
    /// Weight of the member, if it serves.
    pub weight: u32,
    /// Standing of the member: whether it serves.
    pub standing: ServiceState,
}

impl Content {
    /// Encodes it; `None` if `audience` does not get it.
    pub fn encode_for(&self, name: &str, audience: &Audience) -> Option<Vec<u8>> {
        match self {
            Content::Cluster(cluster) => cluster.encode(name, audience.dialect),
            Content::Endpoints(endpoints) => Some(endpoints.encode(name, audience)),
            // A listener of Envoy has a socket.
            Content::Listener if audience.dialect == Dialect::Envoy => None,
            Content::Listener => Some(encode_listener(name)),
            Content::Route => Some(encode_route(name)),
        }
    }

    /// Returns members with these weights, at addresses that are for tests.
    #[cfg(test)]
    pub(crate) fn of_weights(weights: &[u32]) -> Self {
        let member = |(index, &weight): (usize, &u32)| Endpoint {
            name: format!("192.0.2.{index}:80").into(),
            host: "app.test".into(),
            address: std::net::SocketAddr::from(([192, 0, 2, index as u8], 80)).into(),
            zone: None,
            weight,
            standing: match weight {
                0 => ServiceState::Down,
                _ => ServiceState::Serving,
            },
        };
        Content::Endpoints(Endpoints {
            policy: XdsPolicy::Weights,
            order: None,
            members: weights.iter().enumerate().map(member).collect(),
        })
    }
}

/// Returns the source that stands for the stream on which the message is sent.
fn from_here() -> Option<proto::ConfigSource> {
    Some(proto::ConfigSource {
        ads: Some(proto::Empty {}),
        this_server: None,
        resource_api_version: proto::V3,
    })
}

impl Cluster {
    fn encode(&self, name: &str, dialect: Dialect) -> Option<Vec<u8>> {
        let is_envoy = dialect == Dialect::Envoy;
        if self.tls && is_envoy {
            return None;
        }
        let own = proto::ConfigSource {
            ads: None,
            this_server: Some(proto::Empty {}),
            resource_api_version: proto::V3,
        };
        let cluster = proto::Cluster {
            name: name.into(),
            discovery_type: proto::EDS,
            eds_cluster_config: Some(proto::EdsClusterConfig {
                eds_config: from_here(),
            }),
            connect_timeout: Some(self.connect_timeout.into()),
            lb_policy: 0,
            // Whether health is ignored has been decided here.
            common_lb_config: is_envoy.then_some(proto::CommonLbConfig {
                healthy_panic_threshold: Some(proto::Percent { value: 0.0 }),
            }),
            typed_extension_protocol_options: match self.http2 && is_envoy {
                true => vec![http2()],
                false => Vec::new(),
            },
            load_balancing_policy: match self.policy {
                XdsPolicy::Weights => None,
                XdsPolicy::ClientSide => Some(client_side(dialect)),
            },
            // Envoy is told in its own file.
            lrs_server: (self.reports && !is_envoy).then_some(own),
        };
        Some(cluster.encode_to_vec())
    }
}

/// Returns the options that say that endpoints speak HTTP/2.
fn http2() -> proto::AnyPair {
    let options = proto::HttpProtocolOptions {
        explicit_http_config: Some(proto::ExplicitHttpConfig {
            http2_protocol_options: Some(proto::Empty {}),
        }),
    };
    const NAME: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    proto::AnyPair {
        key: NAME.into(),
        value: Some(proto::Any::from_message(NAME, &options)),
    }
}

/// Returns the policy with which clients make weights of the loads that members report to them.
fn client_side(dialect: Dialect) -> proto::LoadBalancingPolicy {
    let one = |name: &str, kind: &str, config: &dyn Fn(&str) -> proto::Any| {
        let extension = proto::TypedExtensionConfig {
            name: format!("envoy.load_balancing_policies.{name}"),
            typed_config: Some(config(&format!(
                "envoy.extensions.load_balancing_policies.{name}.v3.{kind}"
            ))),
        };
        let policy = proto::Policy {
            typed_extension_config: Some(extension),
        };
        proto::LoadBalancingPolicy {
            policies: vec![policy],
        }
    };
    let own = one(
        "client_side_weighted_round_robin",
        "ClientSideWeightedRoundRobin",
        &|name| proto::Any::from_message(name, &proto::Empty {}),
    );
    match dialect {
        Dialect::Envoy => own,
        // In gRPC the policy at the top has to choose a locality.
        Dialect::Grpc => one("wrr_locality", "WrrLocality", &|name| {
            let inner = proto::WrrLocality {
                endpoint_picking_policy: Some(own.clone()),
            };
            proto::Any::from_message(name, &inner)
        }),
    }
}

impl Endpoints {
    fn encode(&self, name: &str, audience: &Audience) -> Vec<u8> {
        let endpoints = match (audience.dialect, self.policy) {
            (Dialect::Envoy, _) | (Dialect::Grpc, XdsPolicy::ClientSide) => self.by_zone(audience),
            (Dialect::Grpc, XdsPolicy::Weights) => self.each_alone(audience),
        };
        let assignment = proto::ClusterLoadAssignment {
            cluster_name: name.into(),
            endpoints,
        };
        assignment.encode_to_vec()
    }

    /// True if a member is shown to such clients. Members that do not serve are shown to Envoy, which moves
    /// away from them what they have; clients of gRPC would go to these members.
    fn is_shown(member: &Endpoint, dialect: Dialect) -> bool {
        match member.standing {
            ServiceState::Serving => true,
            // A backup that is not needed would count as one that has failed.
            ServiceState::Standby => false,
            _ => dialect == Dialect::Envoy,
        }
    }

    /// Returns the members that `audience` is shown, with what clients call them and their priority: 0 for
    /// the members in the client's own zone, to which the client goes as long as enough of them serve, then
    /// the members of the zones in `order`, and last all others. There is no gap between priorities.
    fn shown_members(&self, audience: &Audience) -> Vec<(&Endpoint, proto::Endpoint, u32)> {
        let own = audience.zone.as_deref().into_iter();
        let order = self.order.iter().flatten().map(String::as_str);
        let wanted: Vec<&str> = match self.order {
            Some(_) => own.chain(order).collect(),
            None => Vec::new(),
        };
        let place = |member: &Endpoint| {
            let zone = member.zone.as_deref();
            let place = wanted.iter().position(|wanted| zone == Some(*wanted));
            place.unwrap_or(wanted.len())
        };
        let shown = self.members.iter();
        let shown = shown.filter(|member| Self::is_shown(member, audience.dialect));
        let mut shown: Vec<(&Endpoint, proto::Endpoint, u32)> = shown
            .filter_map(|member| {
                let endpoint = member.endpoint(audience.dialect)?;
                Some((member, endpoint, place(member) as u32))
            })
            .collect();
        let mut places: Vec<u32> = shown.iter().map(|(.., place)| *place).collect();
        places.sort_unstable();
        places.dedup();
        for (.., place) in &mut shown {
            *place = places.partition_point(|other| other < place) as u32;
        }
        shown
    }

    /// Returns a locality for each zone.
    fn by_zone(&self, audience: &Audience) -> Vec<proto::LocalityLbEndpoints> {
        let mut places: BTreeMap<(u32, &str), proto::LocalityLbEndpoints> = BTreeMap::new();
        for (member, endpoint, priority) in self.shown_members(audience) {
            let zone = member.zone.as_deref().unwrap_or_default();
            let place = places.entry((priority, zone)).or_default();
            place.locality = Some(proto::Locality {
                zone: zone.into(),
                ..proto::Locality::default()
            });
            place.priority = priority;
            let serves = member.standing == ServiceState::Serving;
            if serves {
                // By as much as all its members together.
                let weight = place.load_balancing_weight.get_or_insert_default();
                weight.value = weight.value.saturating_add(member.weight.max(1));
            }
            let weight = member.weight.max(1);
            place.lb_endpoints.push(proto::LbEndpoint {
                endpoint: Some(endpoint),
                health_status: health_status(member.standing),
                load_balancing_weight: serves.then_some(proto::UInt32Value { value: weight }),
            });
        }
        places.into_values().collect()
    }

    /// Returns a locality for each member that serves, as clients of gRPC see no weights but those of
    /// localities.
    fn each_alone(&self, audience: &Audience) -> Vec<proto::LocalityLbEndpoints> {
        let shown = self.shown_members(audience).into_iter();
        let places = shown.map(|(member, endpoint, priority)| proto::LocalityLbEndpoints {
            locality: Some(proto::Locality {
                zone: member.zone.as_deref().unwrap_or_default().into(),
                sub_zone: member.name.to_string(),
                ..proto::Locality::default()
            }),
            lb_endpoints: vec![proto::LbEndpoint {
                endpoint: Some(endpoint),
                ..proto::LbEndpoint::default()
            }],
            load_balancing_weight: Some(proto::UInt32Value {
                value: member.weight.max(1),
            }),
            priority,
        });
        places.collect()
    }
}

impl Endpoint {
    /// Returns the endpoint's address; `None` if such clients cannot go there.
    fn endpoint(&self, dialect: Dialect) -> Option<proto::Endpoint> {
        let address = match &self.address {
            Address::Ip(address) => proto::Address {
                socket_address: Some(proto::SocketAddress {
                    address: address.ip().to_string(),
                    port_value: u32::from(address.port()),
                }),
                pipe: None,
            },
            Address::Unix(path) if dialect == Dialect::Envoy => proto::Address {
                socket_address: None,
                pipe: Some(proto::Pipe {
                    path: path.to_string(),
                }),
            },
            Address::Unix(_) => return None,
        };
        let is_name = self.address.ip().is_some() && self.host.parse::<IpAddr>().is_err();
        Some(proto::Endpoint {
            address: Some(address),
            hostname: match is_name {
                true => self.host.to_string(),
                false => String::new(),
            },
        })
    }
}

/// Returns a member's standing as a health status of Envoy.
fn health_status(standing: ServiceState) -> i32 {
    match standing {
        ServiceState::Serving | ServiceState::Standby => 0,
        ServiceState::Draining | ServiceState::Shedding => proto::DRAINING,
        ServiceState::Maintenance | ServiceState::Down => proto::UNHEALTHY,
    }
}

fn encode_listener(name: &str) -> Vec<u8> {
    const FILTERS: &str = "envoy.extensions.filters";
    let router = proto::HttpFilter {
        name: "router".into(),
        typed_config: Some(proto::Any::from_message(
            &format!("{FILTERS}.http.router.v3.Router"),
            &proto::Empty {},
        )),
    };
    let manager = proto::HttpConnectionManager {
        stat_prefix: name.into(),
        rds: Some(proto::Rds {
            config_source: from_here(),
            route_config_name: name.into(),
        }),
        http_filters: vec![router],
    };
    let manager = proto::Any::from_message(
        &format!("{FILTERS}.network.http_connection_manager.v3.HttpConnectionManager"),
        &manager,
    );
    let listener = proto::Listener {
        name: name.into(),
        api_listener: Some(proto::ApiListener {
            api_listener: Some(manager),
        }),
    };
    listener.encode_to_vec()
}

fn encode_route(name: &str) -> Vec<u8> {
    let all = proto::Route {
        matches: Some(proto::RouteMatch { prefix: "/".into() }),
        route: Some(proto::RouteAction {
            cluster: name.into(),
            // Without it Envoy ends requests after 15 seconds.
            timeout: Some(proto::Duration::default()),
        }),
    };
    let routes = proto::RouteConfiguration {
        name: name.into(),
        virtual_hosts: vec![proto::VirtualHost {
            name: name.into(),
            domains: vec!["*".into()],
            routes: vec![all],
        }],
    };
    routes.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn audience(dialect: Dialect, zone: Option<&str>) -> Audience {
        Audience {
            dialect,
            zone: zone.map(Into::into),
        }
    }

    /// Returns members of a weight in a zone each.
    fn members(of: &[(u32, ServiceState, Option<&str>)]) -> Endpoints {
        let members = of.iter().enumerate();
        let members = members.map(|(index, &(weight, standing, zone))| Endpoint {
            name: format!("m{index}").into(),
            host: format!("192.0.2.{index}").into(),
            address: std::net::SocketAddr::from(([192, 0, 2, index as u8], 80)).into(),
            zone: zone.map(Into::into),
            weight,
            standing,
        });
        Endpoints {
            policy: XdsPolicy::Weights,
            order: Some(Vec::new()),
            members: members.collect(),
        }
    }

    /// Priority, zone, sub-zone, weight, and the members with their weights and health.
    type Place = (u32, String, String, u32, Vec<(u32, i32)>);

    fn encoded(endpoints: &Endpoints, audience: &Audience) -> Vec<Place> {
        let bytes = endpoints.encode("pool", audience);
        let read = proto::ClusterLoadAssignment::decode(&*bytes).unwrap();
        assert_eq!(read.cluster_name, "pool");
        let value = |weight: &Option<proto::UInt32Value>| weight.as_ref().map_or(0, |w| w.value);
        let places = read.endpoints.iter().map(|place| {
            let locality = place.locality.clone().unwrap();
            let members = place.lb_endpoints.iter();
            let members = members.map(|one| (value(&one.load_balancing_weight), one.health_status));
            let weight = value(&place.load_balancing_weight);
            let members = members.collect();
            (
                place.priority,
                locality.zone,
                locality.sub_zone,
                weight,
                members,
            )
        });
        places.collect()
    }

    #[test]
    fn envoy_gets_weights_and_health_by_zone() {
        use ServiceState::{Down, Draining, Maintenance, Serving, Shedding, Standby};
        let all = members(&[
            (100, Serving, Some("a")),
            (10, Serving, Some("b")),
            (0, Down, Some("a")),
            (0, Draining, None),
            (0, Shedding, Some("a")),
            (0, Maintenance, Some("a")),
            (0, Standby, Some("a")),
        ]);
        let a = vec![
            (100, 0),
            (0, proto::UNHEALTHY),
            (0, proto::DRAINING),
            (0, proto::UNHEALTHY),
        ];
        let place = |priority: u32, zone: &str, weight: u32, members: &[(u32, i32)]| -> Place {
            (
                priority,
                zone.to_owned(),
                String::new(),
                weight,
                members.to_vec(),
            )
        };
        let drained = [(0, proto::DRAINING)];
        assert_eq!(
            encoded(&all, &audience(Dialect::Envoy, None)),
            [
                place(0, "", 0, &drained),
                place(0, "a", 100, &a),
                place(0, "b", 10, &[(10, 0)]),
            ]
        );
        // Whoever is in a zone prefers it, if anybody serves there.
        assert_eq!(
            encoded(&all, &audience(Dialect::Envoy, Some("a"))),
            [
                place(0, "a", 100, &a),
                place(1, "", 0, &drained),
                place(1, "b", 10, &[(10, 0)]),
            ]
        );
        let priorities = |of: &Endpoints, zone| {
            let places = encoded(of, &audience(Dialect::Envoy, zone));
            places
                .into_iter()
                .map(|(priority, zone, ..)| (zone, priority))
                .collect::<Vec<_>>()
        };
        let zones = |of: [u32; 3]| {
            ["", "a", "b"]
                .map(str::to_owned)
                .into_iter()
                .zip(of)
                .collect()
        };
        let sorted = |mut of: Vec<(String, u32)>| {
            of.sort();
            of
        };
        let same: Vec<_> = zones([0, 0, 0]);
        assert_eq!(priorities(&all, Some("c")), same);
        // Then come those of the group's order; one where nobody is leaves no gap.
        let ordered = Endpoints {
            order: Some(vec!["x".into(), "b".into(), "a".into()]),
            ..all.clone()
        };
        for (own, expected) in [("a", [2, 0, 1]), ("b", [2, 1, 0]), ("c", [2, 1, 0])] {
            assert_eq!(
                sorted(priorities(&ordered, Some(own))),
                zones(expected),
                "{own}"
            );
        }
        assert_eq!(sorted(priorities(&ordered, None)), zones([2, 1, 0]));
        let alike = Endpoints { order: None, ..all };
        assert_eq!(priorities(&alike, Some("a")), same);
    }

    #[test]
    fn grpc_gets_a_locality_of_its_own_for_each_that_serves() {
        use ServiceState::{Down, Serving};
        let mut all = members(&[
            (100, Serving, Some("a")),
            (10, Serving, Some("b")),
            (0, Down, Some("b")),
        ]);
        let place = |priority: u32, zone: &str, name: &str, weight: u32| -> Place {
            let (zone, name) = (zone.to_owned(), name.to_owned());
            (priority, zone, name, weight, vec![(0, 0)])
        };
        assert_eq!(
            encoded(&all, &audience(Dialect::Grpc, None)),
            [place(0, "a", "m0", 100), place(0, "b", "m1", 10)]
        );
        assert_eq!(
            encoded(&all, &audience(Dialect::Grpc, Some("b"))),
            [place(1, "a", "m0", 100), place(0, "b", "m1", 10)]
        );
        // The only one of its zone cannot be had by clients of gRPC: no gap in priorities.
        all.members[1].address = Address::Unix("/run/app".into());
        assert_eq!(
            encoded(&all, &audience(Dialect::Grpc, Some("b"))),
            [place(0, "a", "m0", 100)]
        );
        // Who goes by what members report needs no weights, but zones.
        all.policy = XdsPolicy::ClientSide;
        let by_zone = encoded(&all, &audience(Dialect::Grpc, None));
        let expected: Place = (0, "a".into(), String::new(), 100, vec![(100, 0)]);
        assert_eq!(by_zone, [expected]);
    }

    #[test]
    fn a_cluster_is_what_each_kind_of_client_understands() {
        let mut cluster = Cluster {
            policy: XdsPolicy::Weights,
            http2: true,
            tls: false,
            reports: true,
            connect_timeout: Duration::from_millis(2500),
        };
        let read = |cluster: &Cluster, dialect| {
            let bytes = cluster.encode("pool", dialect)?;
            Some(proto::Cluster::decode(&*bytes).unwrap())
        };
        let envoy = read(&cluster, Dialect::Envoy).unwrap();
        assert_eq!(envoy.discovery_type, proto::EDS);
        let timeout = proto::Duration {
            seconds: 2,
            nanos: 500_000_000,
        };
        assert_eq!(envoy.connect_timeout, Some(timeout));
        assert!(
            envoy
                .common_lb_config
                .unwrap()
                .healthy_panic_threshold
                .is_some()
        );
        assert_eq!(envoy.typed_extension_protocol_options.len(), 1);
        assert_eq!(
            (envoy.lrs_server, envoy.load_balancing_policy),
            (None, None)
        );
        let grpc = read(&cluster, Dialect::Grpc).unwrap();
        assert!(grpc.typed_extension_protocol_options.is_empty());
        assert!(grpc.lrs_server.unwrap().this_server.is_some());
        assert_eq!(grpc.common_lb_config, None);
        cluster.policy = XdsPolicy::ClientSide;
        let name = |dialect| {
            let policy = read(&cluster, dialect)
                .unwrap()
                .load_balancing_policy
                .unwrap();
            let extension = policy.policies[0].typed_extension_config.clone().unwrap();
            extension.typed_config.unwrap().type_url
        };
        assert!(name(Dialect::Envoy).ends_with("v3.ClientSideWeightedRoundRobin"));
        assert!(name(Dialect::Grpc).ends_with("v3.WrrLocality"));
        // Nobody is led to speak to members in clear that speak TLS.
        cluster.tls = true;
        assert_eq!(read(&cluster, Dialect::Envoy), None);
        assert!(read(&cluster, Dialect::Grpc).is_some());
    }

    #[test]
    fn a_listener_leads_to_the_cluster_of_its_name() {
        let grpc = audience(Dialect::Grpc, None);
        assert_eq!(
            Content::Listener.encode_for("pool", &audience(Dialect::Envoy, None)),
            None
        );
        let bytes = Content::Listener.encode_for("pool", &grpc).unwrap();
        let listener = proto::Listener::decode(&*bytes).unwrap();
        let manager = listener.api_listener.unwrap().api_listener.unwrap();
        assert!(manager.type_url.ends_with(".v3.HttpConnectionManager"));
        let manager = proto::HttpConnectionManager::decode(&*manager.value).unwrap();
        assert_eq!(manager.rds.unwrap().route_config_name, "pool");
        let router = manager.http_filters[0].typed_config.clone().unwrap();
        assert!(router.type_url.ends_with(".router.v3.Router"));
        let bytes = Content::Route.encode_for("pool", &grpc).unwrap();
        let routes = proto::RouteConfiguration::decode(&*bytes).unwrap();
        let host = &routes.virtual_hosts[0];
        assert_eq!(host.domains, ["*"]);
        assert_eq!(host.routes[0].route.as_ref().unwrap().cluster, "pool");
    }
}
