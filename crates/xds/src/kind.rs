//! Types of resources, and who gets them in which form.

use std::sync::Arc;

use strum::VariantArray;

use crate::proto::Node;

/// A type of resource.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub enum Kind {
    /// Clusters (CDS).
    Cluster,
    /// Endpoints of clusters (EDS).
    Endpoints,
    /// Listeners, which clients of gRPC ask for by name (LDS).
    Listener,
    /// Routes, which say where requests of these clients go (RDS).
    Route,
}

impl Kind {
    /// All of them, in the order in which changes are sent: what refers to something comes after it.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the type's name in the status and in metrics.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the type's name on the wire.
    pub fn type_url(self) -> &'static str {
        match self {
            Kind::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Kind::Endpoints => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Kind::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Kind::Route => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        }
    }

    /// Returns the type with that name on the wire.
    pub fn of_url(url: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|kind| kind.type_url() == url)
    }

    /// True if an answer of the state of the world has all resources of this type, and not only the resources
    /// that have changed.
    pub fn is_whole(self) -> bool {
        matches!(self, Kind::Cluster | Kind::Listener)
    }

    /// Returns the type whose resources a client needs anew when a resource of this type has changed: the
    /// client may have made what it had of them anew, too.
    pub fn dependent_kind(self) -> Option<Self> {
        match self {
            Kind::Cluster => Some(Kind::Endpoints),
            Kind::Listener => Some(Kind::Route),
            Kind::Endpoints | Kind::Route => None,
        }
    }
}

/// Program of a client, as far as that matters for what it understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Dialect {
    /// Envoy, and whatever is like it: weights of endpoints count.
    Envoy,
    /// A client of gRPC: weights of endpoints do not count, those of localities do.
    Grpc,
}

impl Dialect {
    /// Returns the dialect's name in the status.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Audience that a resource is encoded for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Audience {
    /// Program of the client.
    pub dialect: Dialect,
    /// Zone in which the client runs, if it names one.
    pub zone: Option<Arc<str>>,
}

impl Audience {
    /// Returns the audience that a client says it belongs to.
    pub fn of_node(node: &Node) -> Self {
        let name = node.user_agent_name.get(..4).unwrap_or_default();
        let dialect = match name.eq_ignore_ascii_case("grpc") {
            true => Dialect::Grpc,
            false => Dialect::Envoy,
        };
        let zone = node.locality.as_ref().map(|locality| &*locality.zone);
        Audience {
            dialect,
            zone: zone.filter(|zone| !zone.is_empty()).map(Into::into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Locality;

    #[test]
    fn clients_are_known_by_what_they_say() {
        let of = |name: &str, zone: &str| {
            let audience = Audience::of_node(&Node {
                user_agent_name: name.into(),
                locality: Some(Locality {
                    zone: zone.into(),
                    ..Locality::default()
                }),
                ..Node::default()
            });
            (
                audience.dialect,
                audience.zone.as_deref().map(str::to_owned),
            )
        };
        assert_eq!(of("gRPC C-core linux", ""), (Dialect::Grpc, None));
        assert_eq!(of("grpc-java", "a"), (Dialect::Grpc, Some("a".into())));
        assert_eq!(of("envoy", "b"), (Dialect::Envoy, Some("b".into())));
        assert_eq!(of("g\u{e9}\u{e9}", ""), (Dialect::Envoy, None));
        for &kind in Kind::ALL {
            assert_eq!(Kind::of_url(kind.type_url()), Some(kind));
        }
        assert_eq!(Kind::of_url("x"), None);
    }
}
