//! Members of the slices of a service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use evenkeel_config::{IpFamily, PortName};
use evenkeel_manager::lists::found::FoundMember;

use crate::slice::{Endpoint, EndpointState, Slice};

/// Most members of a service.
pub const MAX_MEMBERS: usize = 10_000;

/// Choice of members among the endpoints of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<'a> {
    /// Port that a group names.
    pub port: &'a PortName,
    /// Names and numbers of the service's ports; empty if they are not known.
    pub service_ports: &'a [(Box<str>, u16)],
    /// Family of the address of a pod that has both.
    pub prefer: IpFamily,
    /// Zone of the balancer.
    pub own_zone: Option<&'a str>,
}

impl Choice<'_> {
    /// Returns the number of the port at the endpoints of a slice; `None` if the slice has no such port.
    fn find_port(&self, slice: &Slice) -> Option<u16> {
        let named = |name: &str| slice.ports.iter().find(|(of, _)| **of == *name);
        let found = match self.port {
            PortName::Name(name) => named(name),
            PortName::Number(number) => {
                let mut of_service = self.service_ports.iter();
                match of_service.find(|(_, port)| port == number) {
                    Some((name, _)) => named(name),
                    None if slice.has_any_port => return Some(*number),
                    None => slice.ports.iter().find(|(_, port)| port == number),
                }
            }
        };
        found.map(|(_, port)| *port)
    }

    /// Returns the zone of a member: its hint for the balancer's zone, else its first hint, else its own zone.
    fn find_zone(&self, endpoint: &Endpoint) -> Option<String> {
        let own = { endpoint.hints.iter() }.find(|hint| Some(&***hint) == self.own_zone);
        let zone = own.or(endpoint.hints.first()).or(endpoint.zone.as_ref())?;
        evenkeel_config::is_name(zone).then(|| zone.to_string())
    }

    /// Returns how much an address is wanted: the smallest value first.
    fn rank_family(&self, address: IpAddr) -> bool {
        address.is_ipv4() != (self.prefer == IpFamily::Ipv4)
    }

    /// Returns the members among the endpoints of all slices of a service, in the order of their addresses.
    ///
    /// An endpoint that stands in several slices counts once, with its best state, and so does a pod with addresses
    /// of both families. If no endpoint is ready, those that terminate and still serve take the traffic.
    ///
    /// # Errors
    ///
    /// There are endpoints, but none has the port.
    pub fn choose_members<'s>(
        &self,
        slices: impl Iterator<Item = &'s Slice>,
    ) -> Result<Vec<FoundMember>, String> {
        let mut best: BTreeMap<PodKey<'s>, (bool, EndpointState, u16, &'s Endpoint)> =
            BTreeMap::new();
        let mut other_ports = BTreeSet::new();
        for slice in slices {
            let Some(port) = self.find_port(slice) else {
                if !slice.endpoints.is_empty() {
                    other_ports.extend(slice.ports.iter());
                }
                continue;
            };
            for endpoint in &slice.endpoints {
                if endpoint.state == EndpointState::Gone {
                    continue;
                }
                let key = match &endpoint.pod {
                    Some(pod) => PodKey::Pod(pod, port),
                    None => PodKey::Address(endpoint.address, port),
                };
                let family = self.rank_family(endpoint.address);
                let next = (family, endpoint.state, port, endpoint);
                let known = best.entry(key).or_insert(next);
                let rank = |one: &(bool, EndpointState, u16, &Endpoint)| (one.0, one.1);
                if rank(&next) < rank(known) {
                    *known = next;
                }
            }
        }
        if best.is_empty() && !other_ports.is_empty() {
            return Err(self.describe_ports(&other_ports));
        }
        let any_ready = best.values().any(|one| one.1 == EndpointState::Ready);
        let mut members: BTreeMap<SocketAddr, FoundMember> = BTreeMap::new();
        for (_, state, port, endpoint) in best.into_values() {
            let address = SocketAddr::new(endpoint.address, port);
            let member = FoundMember {
                address,
                zone: self.find_zone(endpoint),
                drain: any_ready && state != EndpointState::Ready,
            };
            // A new pod may have the address of one that terminates.
            let known = members.entry(address).or_insert_with(|| member.clone());
            if known.drain && !member.drain {
                *known = member;
            }
        }
        Ok(members.into_values().take(MAX_MEMBERS).collect())
    }

    fn describe_ports(&self, ports: &BTreeSet<&(Box<str>, u16)>) -> String {
        let wanted = match self.port {
            PortName::Name(name) => format!("called {name:?}"),
            PortName::Number(number) => number.to_string(),
        };
        let there = ports.iter().take(10).map(|(name, port)| match &**name {
            "" => port.to_string(),
            name => format!("{port} ({})", name.escape_debug()),
        });
        let there: Vec<_> = there.collect();
        format!(
            "the service has no port {wanted}; the ports of its endpoints are: {}",
            there.join(", ")
        )
    }
}

/// Identity of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PodKey<'a> {
    /// A port of a pod.
    Pod(&'a str, u16),
    /// A port at an address.
    Address(IpAddr, u16),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(address: &str, state: EndpointState) -> Endpoint {
        Endpoint {
            address: address.parse().unwrap(),
            pod: None,
            state,
            zone: None,
            hints: Vec::new(),
        }
    }

    fn slice(port: (&str, u16), endpoints: &[Endpoint]) -> Slice {
        Slice {
            ports: vec![(port.0.into(), port.1)],
            endpoints: endpoints.to_vec(),
            has_any_port: false,
        }
    }

    const HTTP: (&str, u16) = ("http", 8080);

    fn choice(port: &PortName) -> Choice<'_> {
        Choice {
            port,
            service_ports: &[],
            prefer: IpFamily::Ipv4,
            own_zone: None,
        }
    }

    #[test]
    fn pods_have_ports_that_they_do_not_declare() {
        let pods = [Slice {
            has_any_port: true,
            ..slice(HTTP, &[endpoint("10.0.0.1", EndpointState::Ready)])
        }];
        let find = |port: &PortName| choice(port).choose_members(pods.iter());
        for (port, wanted) in [
            (PortName::Number(9000), "10.0.0.1:9000"),
            (PortName::Number(8080), "10.0.0.1:8080"),
            (named(), "10.0.0.1:8080"),
        ] {
            assert_eq!(seen(&find(&port).unwrap()), [(wanted.into(), false)]);
        }
        assert!(find(&PortName::Name("grpc".into())).is_err());
    }

    fn named() -> PortName {
        PortName::Name("http".into())
    }

    fn seen(members: &[FoundMember]) -> Vec<(String, bool)> {
        let seen = members.iter();
        seen.map(|member| (member.address.to_string(), member.drain))
            .collect()
    }

    #[test]
    fn slices_are_merged_and_duplicates_count_once() {
        use EndpointState::{Gone, Ready, Serving};
        let slices = [
            slice(
                HTTP,
                &[endpoint("10.0.0.2", Ready), endpoint("10.0.0.1", Serving)],
            ),
            slice(
                ("http", 9090),
                &[endpoint("10.0.0.3", Ready), endpoint("10.0.0.4", Gone)],
            ),
            slice(
                HTTP,
                &[endpoint("10.0.0.1", Ready), endpoint("10.0.0.5", Serving)],
            ),
            slice(("other", 1), &[endpoint("10.0.0.6", Ready)]),
        ];
        let port = named();
        let members = choice(&port).choose_members(slices.iter()).unwrap();
        assert_eq!(
            seen(&members),
            [
                ("10.0.0.1:8080".to_owned(), false),
                ("10.0.0.2:8080".to_owned(), false),
                ("10.0.0.3:9090".to_owned(), false),
                ("10.0.0.5:8080".to_owned(), true),
            ]
        );
        // If all terminate, those that serve go on.
        let slices = [slice(
            HTTP,
            &[endpoint("10.0.0.1", Serving), endpoint("10.0.0.2", Gone)],
        )];
        let members = choice(&port).choose_members(slices.iter()).unwrap();
        assert_eq!(seen(&members), [("10.0.0.1:8080".to_owned(), false)]);
    }

    #[test]
    fn a_pod_with_two_addresses_is_one_member() {
        let pod = |address: &str, state| Endpoint {
            pod: Some("u".into()),
            ..endpoint(address, state)
        };
        let slices = [
            slice(
                HTTP,
                &[
                    pod("fd00::1", EndpointState::Ready),
                    endpoint("fd00::2", EndpointState::Ready),
                ],
            ),
            slice(HTTP, &[pod("10.0.0.1", EndpointState::Ready)]),
        ];
        let port = named();
        let of = |prefer| {
            let choice = Choice {
                prefer,
                ..choice(&port)
            };
            let members = choice.choose_members(slices.iter()).unwrap();
            members
                .iter()
                .map(|member| member.address.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(of(IpFamily::Ipv4), ["10.0.0.1:8080", "[fd00::2]:8080"]);
        assert_eq!(of(IpFamily::Ipv6), ["[fd00::1]:8080", "[fd00::2]:8080"]);
    }

    #[test]
    fn a_number_is_the_service_s_port_or_else_the_endpoints() {
        let ready = [endpoint("10.0.0.1", EndpointState::Ready)];
        let slices = [slice(HTTP, &ready)];
        let service = [("http".into(), 80)];
        let of = |number, service_ports: &[(Box<str>, u16)]| {
            let port = PortName::Number(number);
            let choice = Choice {
                service_ports,
                ..choice(&port)
            };
            let members = choice.choose_members(slices.iter())?;
            Ok::<_, String>(seen(&members)[0].0.clone())
        };
        assert_eq!(of(80, &service).unwrap(), "10.0.0.1:8080");
        assert_eq!(of(8080, &service).unwrap(), "10.0.0.1:8080");
        assert_eq!(of(8080, &[]).unwrap(), "10.0.0.1:8080");
        let error = of(80, &[]).unwrap_err();
        assert_eq!(
            error,
            "the service has no port 80; the ports of its endpoints are: 8080 (http)"
        );
        // A service without endpoints is no error.
        let port = named();
        let none = [slice(("", 1), &[]), Slice::default()];
        assert!(
            choice(&port)
                .choose_members(none.iter())
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn hints_take_the_place_of_zones() {
        let with = |zone: Option<&str>, hints: &[&str]| Endpoint {
            zone: zone.map(Into::into),
            hints: hints.iter().map(|&hint| hint.into()).collect(),
            ..endpoint("10.0.0.1", EndpointState::Ready)
        };
        let port = named();
        let choice = Choice {
            own_zone: Some("here"),
            ..choice(&port)
        };
        for (endpoint, wanted) in [
            (with(None, &[]), None),
            (with(Some("a"), &[]), Some("a")),
            (with(Some("a"), &["b"]), Some("b")),
            (with(Some("a"), &["b", "here"]), Some("here")),
            (with(Some("no/zone"), &[]), None),
        ] {
            let slices = [slice(HTTP, &[endpoint])];
            let members = choice.choose_members(slices.iter()).unwrap();
            assert_eq!(members[0].zone.as_deref(), wanted);
        }
    }
}
