//! A controller of the Gateway API: objects of the API server become rules, routes and groups, and get statuses.
//!
//! | module | what it has |
//! |---|---|
//! | [`objects`] | the objects, read from JSON: only the fields that are used, each list with a bound |
//! | `routes`, `values` | specifications of routes; names, references and lists, which objects of several kinds have |
//! | [`translate`] | objects → text of a configuration, secrets and statuses; no I/O, no clock; translations of routes are kept |
//! | `listeners` | listeners of gateways: conflicts, certificates, allowed routes |
//! | `gateway_tls`, `certificates` | certificates of clients and for members, by settings of gateways; Secrets and ConfigMaps |
//! | `listener_sets` | ListenerSets: listeners that others add to a gateway |
//! | `addresses` | addresses to listen on, and of statuses |
//! | `attach` | routes and their parents: which listeners take a route, for which host names |
//! | [`ingress`], `ingress_spec` | Ingresses, with annotations of ingress-nginx |
//! | `notices`, `events` | reports about objects that cannot be served as they are written, as events |
//! | `backends`, `target_groups`, `pools` | targets of routes: services and InferencePools |
//! | `binding` | sessions of routes: cookies or fields that bind clients to members |
//! | `groups`, `route_key` | groups of members: names, tables, and the rules that use them, the oldest route first |
//! | `policies` | BackendTLSPolicies: TLS to members |
//! | `group_policies`, `rule_policies`, `route_policies` | EvenkeelPolicies: settings of groups, of rules, and of routes of requests |
//! | `group_policy_spec`, `policy_keys`, `policy_check` | EvenkeelPolicies as objects: keys that may be set, and their checks |
//! | `service_annotations` | annotations of Services: settings of their groups |
//! | `grants` | permissions for references between namespaces |
//! | `http` | rules of HTTPRoute: conditions, actions, groups |
//! | `filters`, `field_edits`, `target_filters` | actions by filters of rules and of targets |
//! | `grpc` | GRPCRoute: methods as paths |
//! | `features` | features of the Gateway API in the status of a GatewayClass |
//! | [`conditions`] | conditions, statuses, and their comparison with the statuses that objects have |
//! | `namespaces` | namespaces whose routes and sets of listeners are allowed |
//! | `text` | writer of the configuration's text in parts, which knows the owner of each line |
//! | [`world`] | objects as far as they are known, and the store of a kind's objects for the watcher |
//! | `object_status` | objects with what keeps them from being served, for the admin API |
//! | `secret_contents` | contents of secrets and ConfigMaps that are kept |
//! | `raw_object` | objects of any kind as the API server sends them |
//! | `reported` | versions and statuses of objects at the API server, which the translation does not read |
//! | `from_copy` | gateways of the last good copy, at a start without the API server |
//! | `control` | loop: objects → translation → configuration and statuses |
//! | `writer`, `status_list` | writes statuses that differ; comparison of lists of statuses |
//! | `election`, `leader` | lease of the balancer that writes statuses |
//! | [`settings`] | settings of the controller |
//! | [`subsystem`] | life of the controller, status, metrics |

pub mod conditions;
pub mod objects;
pub mod settings;
mod shares;
pub mod subsystem;
pub mod translate;

mod addresses;
mod attach;
mod backends;
mod binding;
mod certificates;
mod control;
mod election;
mod events;
mod expressions;
mod features;
mod field_edits;
mod filters;
mod from_copy;
mod gateway_spec;
mod gateway_tls;
mod grants;
mod group_facts;
mod group_policies;
mod group_policy_spec;
mod groups;
mod grpc;
mod http;
pub mod ingress;
mod ingress_spec;
mod joined_groups;
mod leader;
mod listener_sets;
mod listeners;
mod namespaces;
mod notices;
mod object_status;
mod policies;
mod policy_check;
mod policy_keys;
mod policy_spec;
mod pools;
mod raw_object;
mod reported;
mod route_key;
mod route_policies;
mod routes;
mod rule_policies;
mod secret_contents;
mod service_annotations;
mod status_list;
mod target_filters;
mod target_groups;
#[cfg(test)]
mod tests;
mod text;
mod values;
pub mod world;
mod writer;
