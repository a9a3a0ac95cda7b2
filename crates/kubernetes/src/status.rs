//! Status of the services whose endpoints are members, and of the controller of the Gateway API with its objects.

use evenkeel_manager::text;
use evenkeel_tls::certificate::unix_now;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::last_copy::format_age;

/// Service whose endpoints are members, as the admin API shows it. Counts begin with the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Namespace and name of the service.
    pub service: String,
    /// API server.
    pub server: String,
    /// True while a watch is open: changes are followed.
    pub watching: bool,
    /// Version of the known slices (`resourceVersion`); null if the slices must be listed.
    pub version: Option<String>,
    /// Number of slices.
    pub slices: usize,
    /// Ports that groups use, with their members.
    pub ports: Vec<PortStatus>,
    /// Time of the last answer or event, in seconds since 1970; null before the first one.
    pub last_success: Option<i64>,
    /// Reason why the last question failed; null if it did not.
    pub error: Option<String>,
    /// Number of failed questions.
    pub failures: u64,
    /// Number of complete lists.
    pub lists: u64,
    /// Number of opened watches.
    pub watches: u64,
    /// Number of events.
    pub events: u64,
}

/// Port of a service that groups use.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct PortStatus {
    /// Name or number of the port, as in the configuration.
    pub port: String,
    /// Number of members, with those that drain.
    pub members: usize,
    /// Number of members that drain.
    pub draining: usize,
    /// Reason why there are no members of the port, or why those that there are may be old; null without one.
    pub error: Option<String>,
    /// Time of the last good copy from which the members come, in seconds since 1970; null if the API server has told of
    /// the members.
    pub copy_of: Option<i64>,
}

/// Kind of objects that the controller of the Gateway API follows, as the admin API shows it. Counts begin with the
/// controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct KindStatus {
    /// Name of the kind.
    pub kind: String,
    /// Version of the kind's API; null before the first list, or if the cluster does not have the kind.
    pub version: Option<String>,
    /// Number of known objects.
    pub objects: usize,
    /// Time of the last answer or event, in seconds since 1970; null before the first one.
    pub last_success: Option<i64>,
    /// Reason why the last question failed; null if it did not.
    pub error: Option<String>,
    /// Number of failed questions.
    pub failures: u64,
    /// Number of complete lists.
    pub lists: u64,
    /// Time of the last good copy from which gateways and routes come, in seconds since 1970; null if they do not come from
    /// a copy.
    pub copy_of: Option<i64>,
}

/// Controller of the Gateway API, as the admin API shows it. Counts begin with the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct ControllerStatus {
    /// Name of the controller.
    pub controller: String,
    /// Namespace and name of the lease of the balancer that writes statuses; null if each balancer writes.
    pub lease: Option<String>,
    /// True if this balancer writes statuses.
    pub leads: bool,
    /// Process that holds the lease: the name of its balancer, and a number; null if no process is known to hold the lease.
    pub holder: Option<String>,
    /// Time at which the known objects were last put into effect, or found to be in effect, in seconds since 1970; null
    /// before the first time.
    pub last_success: Option<i64>,
    /// Reason why the known objects are not in effect; null if they are.
    pub error: Option<String>,
    /// Number of configurations that were put into effect.
    pub configurations: u64,
    /// Number of configurations that could not be put into effect.
    pub refusals: u64,
    /// Number of statuses that were written.
    pub status_writes: u64,
}

/// Object of Kubernetes that the controller serves, as the admin API shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct ObjectStatus {
    /// Name of the kind.
    pub kind: String,
    /// Namespace; empty for objects without one.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Gateways, ListenerSets and services to which the object is attached, each with its namespace; left out without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attached_to: Vec<String>,
    /// Addresses of a Gateway or an Ingress; left out without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Number of routes of all listeners; left out for objects without listeners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routes: Option<u64>,
    /// Problems that keep the object from being served as written; empty without any.
    pub problems: Vec<ObjectProblem>,
}

/// Problem that keeps an object from being served as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct ObjectProblem {
    /// Reason, as of the event about the object.
    pub reason: String,
    /// Explanation: the listener, the reason of the condition, the problem, and the cure.
    pub message: String,
}

/// Lays out the services for people.
pub fn format_table(services: &[ServiceStatus]) -> String {
    format_table_at(services, unix_now())
}

fn format_table_at(services: &[ServiceStatus], now: i64) -> String {
    if services.is_empty() {
        return "no group has members of Kubernetes\n".into();
    }
    let rows = services.iter().flat_map(|service| {
        service.ports.iter().map(move |port| {
            let heard = service.last_success.map_or("never".into(), |at| {
                format!("{} s ago", now.saturating_sub(at).max(0))
            });
            let errors = service.error.iter().chain(&port.error);
            let errors: Vec<String> = errors.map(|of| of.escape_debug().to_string()).collect();
            let state = match errors.is_empty() {
                false => errors.join("; "),
                true if service.watching => "watching".into(),
                true => "connecting".into(),
            };
            let state = match port.copy_of {
                Some(at) => format!("copy of {}: {state}", format_age(at, now)),
                None => state,
            };
            vec![
                format!("{}:{}", service.service, port.port),
                port.members.to_string(),
                port.draining.to_string(),
                service.version.clone().unwrap_or_else(|| "-".into()),
                heard,
                state,
            ]
        })
    });
    let names = [
        "SERVICE",
        ">MEMBERS",
        ">DRAINING",
        ">VERSION",
        ">HEARD",
        "STATE",
    ];
    text::format_table(&names, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_port() {
        let port = |port: &str, error: Option<&str>| PortStatus {
            port: port.into(),
            members: 3,
            draining: 1,
            error: error.map(Into::into),
            copy_of: None,
        };
        let copied = PortStatus {
            copy_of: Some(-86_400),
            ..port("443", Some("no answer"))
        };
        let service = ServiceStatus {
            service: "shop/web".into(),
            watching: true,
            version: Some("17".into()),
            ports: vec![port("http", None), port("80", Some("no port 80")), copied],
            last_success: Some(90),
            ..ServiceStatus::default()
        };
        assert_eq!(
            format_table_at(&[service], 100),
            "SERVICE        MEMBERS  DRAINING  VERSION     HEARD  STATE\n\
             shop/web:http        3         1       17  10 s ago  watching\n\
             shop/web:80          3         1       17  10 s ago  no port 80\n\
             shop/web:443         3         1       17  10 s ago  copy of 1969-12-31T00:00:00Z (1 day ago): no answer\n"
        );
        assert!(format_table(&[]).starts_with("no group"));
    }
}
