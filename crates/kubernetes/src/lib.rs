//! Kubernetes: members from EndpointSlices, and a controller of the Gateway API.
//!
//! The balancer lists the slices of the services that groups name, and watches changes: services of a namespace, or of the
//! cluster, share a watch. While the API server is away, the last known members stay.
//!
//! | module | what it has |
//! |---|---|
//! | [`list`] | lists of objects and events, read from JSON with bounds |
//! | [`slice`] | slice of a service |
//! | `pod` | pods that labels choose, each as a slice |
//! | [`slices`] | store of the slices of wanted services, or of pods |
//! | [`watcher`] | list and watch: the next question, and pauses; no I/O, no clock, no randomness |
//! | [`endpoints`] | members among the endpoints of all slices |
//! | [`yaml`], [`kubeconfig`] | kubeconfig files |
//! | [`access`] | address and credentials of the API server, which may change |
//! | [`environment`] | where the access comes from: service account or kubeconfig file |
//! | `api` | questions over HTTP |
//! | `follow` | list and watch over HTTP, with pauses |
//! | `scope` | services that share a watch: lists, ports, status |
//! | `scope_task` | task that follows a scope |
//! | [`copy`], `last_copy` | last good copy on disk: format, and keeper |
//! | `plan` | ports that groups name, and the scope of each service |
//! | [`gateway`] | controller of the Gateway API: objects → text of a configuration, and statuses |
//! | [`node_zone`] | zone of the balancer's node |
//! | [`subsystem`] | tasks of scopes, first members, status, metrics |

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod access;
mod api;
pub mod copy;
pub mod endpoints;
pub mod environment;
#[cfg(test)]
mod fake_server;
mod follow;
pub mod gateway;
pub mod kubeconfig;
mod last_copy;
pub mod list;
pub mod node_zone;
mod plan;
mod pod;
mod read_value;
mod scope;
mod scope_task;
pub mod slice;
pub mod slices;
pub mod status;
pub mod subsystem;
pub mod watcher;
pub mod yaml;

use std::sync::Arc;

use evenkeel_manager::service::Service;

/// Makes the subsystems, in the order of their start. They share the last good copy.
pub fn list_subsystems() -> [Arc<dyn Service>; 3] {
    let copy = last_copy::LastCopy::default();
    [
        Arc::new(subsystem::Endpoints::new(copy.clone())),
        Arc::new(node_zone::NodeZone::new(copy.clone())),
        Arc::new(gateway::subsystem::Gateways::new(copy)),
    ]
}
