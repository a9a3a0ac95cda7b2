//! The messages of xDS that are used here, with the numbers of Envoy's public API (`envoy/…/v3`).
//!
//! They are declared by hand, each with the fields that are read or written here: all of the API would
//! be sixteen megabytes of source. What peers send beyond that is skipped.
//!
//! Two kinds of fields are not what the API says, but look the same on the wire: messages that are
//! passed on as they were encoded before are bytes here, and entries of maps are messages with `key` and
//! `value`, so that they stay in order.

use bytes::Bytes;
use prost::Message;

/// Declares messages: `number kind name: type`.
macro_rules! messages {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident {
            $($(#[doc = $field_doc:literal])+ [$($kind:tt)+] $field:ident: $type:ty,)*
        }
    )+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, PartialEq, Message)]
        pub struct $name {
            $($(#[doc = $field_doc])+ #[prost($($kind)+)] pub $field: $type,)*
        }
    )+};
}

// What clients and server say to each other.
messages! {
    /// State of the world: a subscription, and a word about the last answer.
    DiscoveryRequest {
        /// Version that is in use.
        [string, tag = "1"] version_info: String,
        /// Client that asks; in the first request of a stream.
        [message, optional, tag = "2"] node: Option<Node>,
        /// Names of the resources that are wanted.
        [string, repeated, tag = "3"] resource_names: Vec<String>,
        /// Type of these resources.
        [string, tag = "4"] type_url: String,
        /// The answer that this is about.
        [string, tag = "5"] response_nonce: String,
        /// Reason why that answer was refused.
        [message, optional, tag = "6"] error_detail: Option<Status>,
    }

    /// State of the world: an answer.
    DiscoveryResponse {
        /// Version of the answer.
        [string, tag = "1"] version_info: String,
        /// Resources, an [`Any`] each.
        [bytes = "bytes", repeated, tag = "2"] resources: Vec<Bytes>,
        /// Type of the resources.
        [string, tag = "4"] type_url: String,
        /// Nonce that a request about this answer has to carry.
        [string, tag = "5"] nonce: String,
    }

    /// Incremental: changes of a subscription, or a word about an answer, or both.
    DeltaDiscoveryRequest {
        /// Client that asks; in the first request of a stream.
        [message, optional, tag = "1"] node: Option<Node>,
        /// Type of what it is about.
        [string, tag = "2"] type_url: String,
        /// Names of the resources that are wanted from now on.
        [string, repeated, tag = "3"] resource_names_subscribe: Vec<String>,
        /// Names of the resources that are not wanted any more.
        [string, repeated, tag = "4"] resource_names_unsubscribe: Vec<String>,
        /// Resources that the client has from a stream before, with versions.
        [message, repeated, tag = "5"] initial_resource_versions: Vec<Pair>,
        /// The answer that this is about; empty if it is about none.
        [string, tag = "6"] response_nonce: String,
        /// Reason why that answer was refused.
        [message, optional, tag = "7"] error_detail: Option<Status>,
    }

    /// Incremental: what has changed.
    DeltaDiscoveryResponse {
        /// Version of it all, for people.
        [string, tag = "1"] system_version_info: String,
        /// Resources that are new or have changed.
        [message, repeated, tag = "2"] resources: Vec<Resource>,
        /// Type of the resources.
        [string, tag = "4"] type_url: String,
        /// Nonce that a request about this answer has to carry.
        [string, tag = "5"] nonce: String,
        /// Names of resources that are there no more, or are not there.
        [string, repeated, tag = "6"] removed_resources: Vec<String>,
    }

    /// A resource with its version.
    Resource {
        /// Version of the resource.
        [string, tag = "1"] version: String,
        /// An [`Any`].
        [bytes = "bytes", tag = "2"] resource: Bytes,
        /// Name of the resource.
        [string, tag = "3"] name: String,
    }

    /// A client.
    Node {
        /// Name of the client.
        [string, tag = "1"] id: String,
        /// Service that the client is part of, as a user of `[xds]` sees it: not a cluster that the client
        /// forwards to.
        [string, tag = "2"] cluster: String,
        /// Place of the client.
        [message, optional, tag = "4"] locality: Option<Locality>,
        /// Name of the client's program.
        [string, tag = "6"] user_agent_name: String,
        /// Version of the client's program.
        [string, tag = "7"] user_agent_version: String,
        /// Features that the client has.
        [string, repeated, tag = "10"] client_features: Vec<String>,
    }

    /// Reason why something was refused.
    Status {
        /// A number of gRPC.
        [int32, tag = "1"] code: i32,
        /// In words.
        [string, tag = "2"] message: String,
    }

    /// An entry of a map of texts.
    Pair {
        /// Key of the pair.
        [string, tag = "1"] key: String,
        /// Value of the pair.
        [string, tag = "2"] value: String,
    }

    /// A message with its type.
    Any {
        /// The type.
        [string, tag = "1"] type_url: String,
        /// The message.
        [bytes = "vec", tag = "2"] value: Vec<u8>,
    }

    /// Message without fields.
    Empty {}

    /// A time span.
    Duration {
        /// Whole seconds.
        [int64, tag = "1"] seconds: i64,
        /// And nanoseconds.
        [int32, tag = "2"] nanos: i32,
    }

    /// A number that may be left out.
    UInt32Value {
        /// The number.
        [uint32, tag = "1"] value: u32,
    }

    /// A share, 0 to 100.
    Percent {
        /// The share.
        [double, tag = "1"] value: f64,
    }
}

// Resources.
messages! {
    /// A cluster.
    Cluster {
        /// Name of the cluster.
        [string, tag = "1"] name: String,
        /// Source of the cluster's endpoints: [`EDS`].
        [int32, tag = "2"] discovery_type: i32,
        /// Source of the endpoints.
        [message, optional, tag = "3"] eds_cluster_config: Option<EdsClusterConfig>,
        /// Time limit of connections.
        [message, optional, tag = "4"] connect_timeout: Option<Duration>,
        /// Policy that chooses an endpoint: 0 is weighted round robin.
        [int32, tag = "6"] lb_policy: i32,
        /// And more of that.
        [message, optional, tag = "27"] common_lb_config: Option<CommonLbConfig>,
        /// Protocol options, which say what the cluster's endpoints speak.
        [message, repeated, tag = "36"] typed_extension_protocol_options: Vec<AnyPair>,
        /// Policy that chooses an endpoint, if `lb_policy` does not.
        [message, optional, tag = "41"] load_balancing_policy: Option<LoadBalancingPolicy>,
        /// Server that the cluster's load is reported to.
        [message, optional, tag = "42"] lrs_server: Option<ConfigSource>,
    }

    /// An entry of a map of messages.
    AnyPair {
        /// Key of the pair.
        [string, tag = "1"] key: String,
        /// Value of the pair.
        [message, optional, tag = "2"] value: Option<Any>,
    }

    /// Source of endpoints.
    EdsClusterConfig {
        /// Source of the endpoints.
        [message, optional, tag = "1"] eds_config: Option<ConfigSource>,
    }

    /// Source of some resources.
    ConfigSource {
        /// From the aggregated stream.
        [message, optional, tag = "3"] ads: Option<Empty>,
        /// From the server that says this.
        [message, optional, tag = "5"] this_server: Option<Empty>,
        /// Version of the API: [`V3`].
        [int32, tag = "6"] resource_api_version: i32,
    }

    /// Settings that policies of Envoy have in common.
    CommonLbConfig {
        /// With fewer healthy endpoints, health is ignored; 0 is never.
        [message, optional, tag = "1"] healthy_panic_threshold: Option<Percent>,
    }

    /// Policies, of which the first is taken that a client knows.
    LoadBalancingPolicy {
        /// The policies.
        [message, repeated, tag = "1"] policies: Vec<Policy>,
    }

    /// A policy.
    Policy {
        /// Name and settings of the policy.
        [message, optional, tag = "4"] typed_extension_config: Option<TypedExtensionConfig>,
    }

    /// An extension with its settings.
    TypedExtensionConfig {
        /// Name of the extension.
        [string, tag = "1"] name: String,
        /// Settings of the extension.
        [message, optional, tag = "2"] typed_config: Option<Any>,
    }

    /// The policy that chooses a locality by weight, and then an endpoint by another policy.
    WrrLocality {
        /// The other one.
        [message, optional, tag = "1"] endpoint_picking_policy: Option<LoadBalancingPolicy>,
    }

    /// HTTP versions that endpoints speak.
    HttpProtocolOptions {
        /// Settings of one version of HTTP.
        [message, optional, tag = "3"] explicit_http_config: Option<ExplicitHttpConfig>,
    }

    /// Version of HTTP.
    ExplicitHttpConfig {
        /// Settings of HTTP/2.
        [message, optional, tag = "2"] http2_protocol_options: Option<Empty>,
    }

    /// Endpoints of a cluster.
    ClusterLoadAssignment {
        /// Name of the cluster.
        [string, tag = "1"] cluster_name: String,
        /// By locality.
        [message, repeated, tag = "2"] endpoints: Vec<LocalityLbEndpoints>,
    }

    /// Endpoints in one place.
    LocalityLbEndpoints {
        /// The place.
        [message, optional, tag = "1"] locality: Option<Locality>,
        /// The endpoints.
        [message, repeated, tag = "2"] lb_endpoints: Vec<LbEndpoint>,
        /// Weight of the place among places of its priority.
        [message, optional, tag = "3"] load_balancing_weight: Option<UInt32Value>,
        /// 0 is the highest.
        [uint32, tag = "5"] priority: u32,
    }

    /// A place.
    Locality {
        /// Name of the region.
        [string, tag = "1"] region: String,
        /// Name of the zone.
        [string, tag = "2"] zone: String,
        /// Part of the zone.
        [string, tag = "3"] sub_zone: String,
    }

    /// An endpoint.
    LbEndpoint {
        /// Endpoint with its address.
        [message, optional, tag = "1"] endpoint: Option<Endpoint>,
        /// [`UNHEALTHY`] and the like; 0 is nothing against it.
        [int32, tag = "2"] health_status: i32,
        /// Weight of the endpoint among endpoints of its place.
        [message, optional, tag = "4"] load_balancing_weight: Option<UInt32Value>,
    }

    /// Address and name of an endpoint.
    Endpoint {
        /// Address of the endpoint.
        [message, optional, tag = "1"] address: Option<Address>,
        /// Name of the endpoint, if it has one.
        [string, tag = "3"] hostname: String,
    }

    /// An address.
    Address {
        /// Of TCP.
        [message, optional, tag = "1"] socket_address: Option<SocketAddress>,
        /// A Unix socket.
        [message, optional, tag = "2"] pipe: Option<Pipe>,
    }

    /// An address of TCP.
    SocketAddress {
        /// An IP address.
        [string, tag = "2"] address: String,
        /// The port.
        [uint32, tag = "3"] port_value: u32,
    }

    /// A Unix socket.
    Pipe {
        /// Path of the socket; `@` begins a name in the abstract namespace.
        [string, tag = "1"] path: String,
    }

    /// Listener that a client of gRPC asks for by name.
    Listener {
        /// Name of the listener.
        [string, tag = "1"] name: String,
        /// Settings behind the listener.
        [message, optional, tag = "19"] api_listener: Option<ApiListener>,
    }

    /// Settings behind a listener that has no socket.
    ApiListener {
        /// An [`HttpConnectionManager`].
        [message, optional, tag = "1"] api_listener: Option<Any>,
    }

    /// Settings that say where requests go.
    HttpConnectionManager {
        /// Beginning of the names of its figures.
        [string, tag = "2"] stat_prefix: String,
        /// Source of the routes.
        [message, optional, tag = "3"] rds: Option<Rds>,
        /// Filters that handle requests; the last one forwards them.
        [message, repeated, tag = "5"] http_filters: Vec<HttpFilter>,
    }

    /// Source of routes.
    Rds {
        /// Source of the routes.
        [message, optional, tag = "1"] config_source: Option<ConfigSource>,
        /// Name of the route configuration.
        [string, tag = "2"] route_config_name: String,
    }

    /// Filter that does something with requests.
    HttpFilter {
        /// Name of the filter.
        [string, tag = "1"] name: String,
        /// Kind and settings of the filter.
        [message, optional, tag = "4"] typed_config: Option<Any>,
    }

    /// Routes of a listener.
    RouteConfiguration {
        /// Name of the routes.
        [string, tag = "1"] name: String,
        /// By host.
        [message, repeated, tag = "2"] virtual_hosts: Vec<VirtualHost>,
    }

    /// Routes of hosts.
    VirtualHost {
        /// Name of the virtual host.
        [string, tag = "1"] name: String,
        /// The hosts.
        [string, repeated, tag = "2"] domains: Vec<String>,
        /// The routes.
        [message, repeated, tag = "3"] routes: Vec<Route>,
    }

    /// A route.
    Route {
        /// Requests that the route is for.
        [message, optional, tag = "1"] matches: Option<RouteMatch>,
        /// Destination of the requests.
        [message, optional, tag = "2"] route: Option<RouteAction>,
    }

    /// Condition for the requests of a route.
    RouteMatch {
        /// Beginning of their path.
        [string, tag = "1"] prefix: String,
    }

    /// Destination of requests.
    RouteAction {
        /// Name of the cluster that gets the requests.
        [string, tag = "1"] cluster: String,
        /// For how long at most; 0 is no limit.
        [message, optional, tag = "8"] timeout: Option<Duration>,
    }
}

// Load reports.
messages! {
    /// Figures that a client has seen since its last report.
    LoadStatsRequest {
        /// Client that reports; in the first request of a stream.
        [message, optional, tag = "1"] node: Option<Node>,
        /// By cluster.
        [message, repeated, tag = "2"] cluster_stats: Vec<ClusterStats>,
    }

    /// Order that says what a client is to report.
    LoadStatsResponse {
        /// Names of the clusters that the client is to report on.
        [string, repeated, tag = "1"] clusters: Vec<String>,
        /// Interval between reports.
        [message, optional, tag = "2"] load_reporting_interval: Option<Duration>,
        /// Of each endpoint.
        [bool, tag = "3"] report_endpoint_granularity: bool,
        /// Of all clusters.
        [bool, tag = "4"] send_all_clusters: bool,
    }

    /// Figures of a cluster.
    ClusterStats {
        /// Name of the cluster.
        [string, tag = "1"] cluster_name: String,
        /// By locality.
        [message, repeated, tag = "2"] upstream_locality_stats: Vec<UpstreamLocalityStats>,
        /// Time since the last report.
        [message, optional, tag = "4"] load_report_interval: Option<Duration>,
    }

    /// Figures of a locality.
    UpstreamLocalityStats {
        /// Locality that the figures are of.
        [message, optional, tag = "1"] locality: Option<Locality>,
        /// Requests under way.
        [uint64, tag = "3"] total_requests_in_progress: u64,
        /// Requests that have failed.
        [uint64, tag = "4"] total_error_requests: u64,
        /// By endpoint.
        [message, repeated, tag = "7"] upstream_endpoint_stats: Vec<UpstreamEndpointStats>,
        /// Requests that have begun.
        [uint64, tag = "8"] total_issued_requests: u64,
    }

    /// Figures of an endpoint.
    UpstreamEndpointStats {
        /// Address of the endpoint.
        [message, optional, tag = "1"] address: Option<Address>,
        /// Requests under way.
        [uint64, tag = "3"] total_requests_in_progress: u64,
        /// Requests that have failed.
        [uint64, tag = "4"] total_error_requests: u64,
        /// Requests that have begun.
        [uint64, tag = "7"] total_issued_requests: u64,
    }
}

/// `discovery_type` of clusters whose endpoints come by EDS.
pub const EDS: i32 = 3;

/// Version 3 of the API.
pub const V3: i32 = 2;

/// `health_status` of an endpoint that does not work.
pub const UNHEALTHY: i32 = 2;

/// `health_status` of an endpoint that is to get nothing new.
pub const DRAINING: i32 = 3;

impl From<std::time::Duration> for Duration {
    fn from(time: std::time::Duration) -> Self {
        Duration {
            seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            nanos: time.subsec_nanos() as i32,
        }
    }
}

impl Any {
    /// Encodes `message`, which is of the type `name`.
    pub fn from_message(name: &str, message: &impl Message) -> Self {
        Any {
            type_url: format!("type.googleapis.com/{name}"),
            value: message.encode_to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The API declares as messages what goes over the wire as bytes.
    #[test]
    fn bytes_look_like_the_messages_that_they_are() {
        #[derive(Clone, PartialEq, Message)]
        struct Declared {
            #[prost(string, tag = "1")]
            version: String,
            #[prost(message, optional, tag = "2")]
            resource: Option<Any>,
            #[prost(string, tag = "3")]
            name: String,
        }
        let any = Any::from_message("a.B", &UInt32Value { value: 300 });
        assert_eq!(any.value, b"\x08\xac\x02");
        let resource = Resource {
            version: "1".into(),
            resource: any.encode_to_vec().into(),
            name: "n".into(),
        };
        let declared = Declared::decode(&*resource.encode_to_vec()).unwrap();
        assert_eq!(declared.resource.as_ref(), Some(&any));
        assert_eq!(declared.encode_to_vec(), resource.encode_to_vec());
    }

    /// The numbers of fields, as the API's own compiler writes them: taken from its text format.
    #[test]
    fn messages_are_those_of_the_api() {
        let request = b"\x0a\x01v\x12\x08\x0a\x01n\x12\x03app\x1a\x03web\x22\x01t\x2a\x017\x32\x05\x08\x03\x12\x01x";
        let read = DiscoveryRequest::decode(&request[..]).unwrap();
        assert_eq!(read.version_info, "v");
        let node = read.node.unwrap();
        assert_eq!((node.id.as_str(), node.cluster.as_str()), ("n", "app"));
        assert_eq!(read.resource_names, ["web"]);
        assert_eq!(read.type_url, "t");
        assert_eq!(read.response_nonce, "7");
        assert_eq!(read.error_detail.unwrap().message, "x");
        let endpoint = LbEndpoint {
            endpoint: Some(Endpoint {
                address: Some(Address {
                    socket_address: Some(SocketAddress {
                        address: "::1".into(),
                        port_value: 80,
                    }),
                    pipe: None,
                }),
                hostname: String::new(),
            }),
            health_status: DRAINING,
            load_balancing_weight: Some(UInt32Value { value: 5 }),
        };
        let expected = b"\x0a\x0b\x0a\x09\x0a\x07\x12\x03::1\x18\x50\x10\x03\x22\x02\x08\x05";
        assert_eq!(endpoint.encode_to_vec(), expected);
    }
}
