//! Configuration: what `evenkeel.toml` means, and the files of the agent and the client engine.
//!
//! Everything here is plain data that is valid because it exists: names refer to
//! something, numbers are in their ranges, durations have units. [`load`] and
//! [`parse`] are the only ways from a file to a [`Config`]; they report everything
//! that is wrong with it at once.
//!
//! `model` has a file for each section of the configuration. There a key is one row: what it means,
//! its name, type, range, default and an example. The struct, the parser and the reference in
//! `docs/` come from there. `schema` knows how rows are read, and nothing of sections.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod difference;
pub mod edit;
pub mod fields;
pub mod image;
pub mod kept;
mod model;
pub mod reference;
mod rights;
pub mod routing;
mod schema;
#[cfg(test)]
mod tests;
pub mod watch;

pub use difference::find_difference;
pub use model::acme::{Acme, AcmeChallenge};
pub use model::admin::{AccessLog, Admin};
pub use model::auth::{Auth, RouteAuth};
pub use model::broker::Broker;
pub use model::chooser::Chooser;
pub use model::compression::{Coding, Compression};
pub use model::config::Config;
pub use model::corba::{Corba, WhenEmpty};
pub use model::cors::Cors;
pub use model::dns::Dns;
pub use model::field_changes::FieldChanges;
pub use model::fixed_answer::{FixedAnswer, content_of};
pub use model::fleet::Fleet;
pub use model::ftp::{FtpOptions, FtpTls, PortRange};
pub use model::gateway::{GENERATED_PREFIX, GatewayController};
pub use model::generated::GeneratedParser;
pub use model::generated_text::{GeneratedPart, GeneratedParts, GeneratedRule, GeneratedText};
pub use model::group::{GroupConfig, Said};
pub use model::health::{HealthCheck, HealthCheckKind, QueryType, Secret};
pub use model::hedge::Hedge;
pub use model::http_options::HttpOptions;
pub use model::ingress::IngressController;
pub use model::kernel_forwarding::KernelForwarding;
pub use model::kubernetes::{CopyContents, IpFamily, Kubernetes, PortName, ServicePort};
pub use model::limits::{LimitKey, Limits, MAX_REQUEST_LIMITS, RequestLimit};
pub use model::location::LocationConfig;
pub use model::log_format::{LogField, LogFormat, LogTemplate};
pub use model::maintenance::Maintenance;
pub use model::member::{MemberConfig, is_member_name, member_address};
pub use model::mirror::{MAX_MIRRORS, MIRRORED, Mirror, Mirrors};
pub use model::model_aliases::{ModelAlias, ModelAliases};
pub use model::models::{ModelGroups, Models};
pub use model::monitor::{Monitor, MonitorAddress, MonitorHost, MonitorKind};
pub use model::name_set::NameSet;
pub use model::negotiator::{Class, Cluster, Negotiator, Quantum, Terms};
pub use model::node::Node;
pub use model::parse::{
    SharedConfigSource, load_config, parse, parse_config_source, parse_generated, parse_shared,
    parse_with,
};
pub use model::priority::{ClientPriority, PRIORITY};
pub use model::process::Process;
pub use model::protocol::{MemberProtocol, SendProxy, Source};
pub use model::reach::{Reach, carries_in_pulses, default_for};
pub use model::request_id::RequestId;
pub use model::responses::{ErrorPages, Responses};
pub use model::route::{Route, Routes};
pub use model::route_values::{MaxBody, Status};
pub use model::rule::{Forward, Protocol, ReturnPath, Rule, collect_groups};
pub use model::sections::{Section, Sections};
pub use model::shared_group::SharedGroup;
pub use model::steer::{OnStop, Steer, SteerHaproxy, SteerNginx};
pub use model::sticky::{SameSite, Sticky};
pub use model::store::{Rollout, Store};
pub use model::timeouts::Timeouts;
pub use model::tls::{
    CertificateFiles, ClientCertificates, ClientTls, Tls, TlsVersion, UNNAMED, is_uri,
};
pub use model::tracing::Tracing;
pub use model::udp::{UdpOptions, UdpSession};
pub use model::weights::{GroupShare, Weights};
pub use model::xds::{Xds, XdsGroup, XdsPolicy};
pub use model::{agent, engine, kind, negotiator, scenario, sources};
pub use rights::{check_rights, rights_of_users};
pub use schema::address::{Origin, Scheme};
pub use schema::amount::parse_duration;
pub use schema::dialect::Dialect;
pub use schema::errors::{Errors, Problem, SourcePosition, one_line};
pub use schema::field::FileName;
pub use schema::frequency::{ByteRate, Frequency};
pub use schema::include::list_included;
pub use schema::networks::{Networks, Proxies};
pub use schema::overrides::Override;
pub use schema::pattern::Pattern;
pub use schema::source::{MAX_FILE_SIZE, read_bounded as read_file, read_secret, text_of};
pub use schema::table::{is_location_name, is_name};
pub use schema::{expression, networks};
