//! Plans for services: the ports that groups name, and the scope of the watch that tells of each service.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_config::{IpFamily, Kubernetes, Node, PortName, ServicePort};
use evenkeel_manager::lists::found::FoundLists;

use crate::api::Api;
use crate::endpoints::Choice;
use crate::scope::{ScopeKey, ScopeObjects};
use crate::slices::{ServiceName, Slices};
use crate::status::PortStatus;

/// Plan for a service, or for pods that labels choose.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// Ports that groups name.
    pub(crate) ports: Vec<ServicePort>,
    prefer: IpFamily,
    zone: Option<String>,
}

/// Plans for all services of a configuration.
#[derive(Clone, Debug)]
pub(crate) struct Plans {
    pub(crate) api: Arc<Api>,
    silence: Duration,
    /// True if one watch is to tell of the slices of all namespaces.
    pub(crate) is_of_cluster: bool,
    pub(crate) services: HashMap<ServiceName, Plan>,
}

impl Plan {
    /// True if a port is given by its number, which only the service itself explains.
    pub(crate) fn has_numbers(&self) -> bool {
        let mut ports = self.ports.iter();
        ports.any(|port| matches!(port.port, PortName::Number(_)) && !port.is_of_pods())
    }

    /// Returns the members of each port; `None` if the service is not known.
    pub(crate) fn choose_members(&self, name: &ServiceName, slices: &Slices) -> Option<FoundLists> {
        let service_ports = slices.ports_of(name)?;
        let mut found = FoundLists::new();
        for port in &self.ports {
            let choice = Choice {
                port: &port.port,
                service_ports,
                prefer: self.prefer,
                own_zone: self.zone.as_deref(),
            };
            found.insert(
                port.to_string(),
                choice.choose_members(slices.slices_of(name)?),
            );
        }
        Some(found)
    }

    /// Returns the status of each port, with the members that are known.
    pub(crate) fn list_ports(&self, known: &[PortStatus]) -> Vec<PortStatus> {
        let ports = self.ports.iter().map(|port| {
            let text = port.to_string();
            let text = text.rsplit(':').next().unwrap_or_default().to_owned();
            let known = known.iter().find(|of| of.port == text).cloned();
            known.unwrap_or(PortStatus {
                port: text,
                ..PortStatus::default()
            })
        });
        ports.collect()
    }

    /// Returns the same error for each port.
    pub(crate) fn list_errors(&self, error: &str) -> FoundLists {
        let ports = self.ports.iter();
        ports
            .map(|port| (port.to_string(), Err(error.to_owned())))
            .collect()
    }
}

impl Plans {
    /// Makes the plans of all services of a section.
    pub(crate) fn of_section(api: &Arc<Api>, settings: &Kubernetes, node: Option<&Node>) -> Self {
        let mut services: HashMap<ServiceName, Plan> = HashMap::new();
        for port in settings.services.iter() {
            let name = (port.namespace.clone(), port.service.clone());
            let plan = services.entry(name).or_insert_with(|| Plan {
                ports: Vec::new(),
                prefer: settings.prefer,
                zone: node.and_then(|node| node.zone.clone()),
            });
            plan.ports.push(port.clone());
        }
        Plans {
            api: Arc::clone(api),
            silence: settings.silence,
            // The controller follows objects of all namespaces anyway.
            is_of_cluster: settings.gateway.is_some(),
            services,
        }
    }

    /// Returns the key of the scope that has a service.
    pub(crate) fn scope_of(&self, name: &ServiceName, plan: &Plan) -> ScopeKey {
        let is_of_pods = plan.ports.first().is_some_and(ServicePort::is_of_pods);
        let objects = match (is_of_pods, self.is_of_cluster) {
            (true, _) => ScopeObjects::Pods(name.clone()),
            (false, true) => ScopeObjects::Cluster,
            (false, false) => ScopeObjects::Namespace(name.0.clone()),
        };
        ScopeKey {
            api: self.api.id,
            silence: self.silence,
            objects,
        }
    }

    /// Returns the services of each scope.
    pub(crate) fn group_by_scope(&self) -> HashMap<ScopeKey, Vec<ServiceName>> {
        let mut scopes: HashMap<ScopeKey, Vec<ServiceName>> = HashMap::new();
        for (name, plan) in &self.services {
            let key = self.scope_of(name, plan);
            scopes.entry(key).or_default().push(name.clone());
        }
        scopes
    }
}
