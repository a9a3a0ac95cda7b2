//! Ingresses: their classes, paths, targets and certificates.
//!
//! | module | what it has |
//! |---|---|
//! | [`annotations`] | treatment of requests, as annotations of ingress-nginx say |
//! | [`client_certificates`] | certificates that clients have to show |
//! | [`listeners`] | listeners of all Ingresses, with certificates |
//! | [`passwords`] | users and hashes of their passwords in secrets |
//! | [`paths`] | paths, and regular expressions that stand for a prefix |
//! | [`values`] | values of annotations |

use std::net::IpAddr;

use serde_json::{Value, json};

use super::ingress_spec::{DEFAULT_CLASS, IngressPath, IngressSpec, OLD_CLASS, Target};
use super::objects::{Ingress, IngressClass, Kind, ObjectName, Objects};
use super::settings::IngressSettings;

pub(crate) mod annotations;
pub(crate) mod client_certificates;
pub(crate) mod listeners;
pub(crate) mod passwords;
pub(crate) mod paths;
pub(crate) mod values;

/// Most paths of an Ingress.
pub(crate) const MAX_PATHS: usize = 2_048;

/// True if a class is one of the balancer.
fn is_own_class(name: &str, class: &IngressClass, settings: &IngressSettings) -> bool {
    class.spec.controller == settings.controller
        && settings.class.as_deref().is_none_or(|own| own == name)
}

/// True if the balancer serves an Ingress, by its class.
pub(crate) fn is_own(ingress: &Ingress, objects: &Objects, settings: &IngressSettings) -> bool {
    let is_own_name = |name: &str| {
        let class = objects.ingress_classes.get(&ObjectName::new("", name));
        class.is_some_and(|class| is_own_class(name, class, settings))
    };
    // The annotation is the older one, and goes first as in ingress-nginx.
    if let Some(name) = ingress.metadata.annotations.get(OLD_CLASS) {
        return settings.class.as_ref() == Some(name) || is_own_name(name);
    }
    if let Some(name) = &ingress.spec.ingress_class_name {
        return is_own_name(name);
    }
    settings.without_class
        || objects.ingress_classes.iter().any(|(name, class)| {
            is_own_class(&name.name, class, settings)
                && class
                    .metadata
                    .annotations
                    .get(DEFAULT_CLASS)
                    .map(String::as_str)
                    == Some("true")
        })
}

/// Path of an Ingress for a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostPath<'o> {
    /// Host name; `None` stands for all.
    pub(crate) host: Option<&'o str>,
    /// Path; `None` stands for all paths that others do not have.
    pub(crate) path: Option<&'o IngressPath>,
    /// Target of the requests.
    pub(crate) target: &'o Target,
}

/// Returns all paths of an Ingress, in the order of the object: those of its rules, of its default target at each host,
/// and of its default target at all hosts.
pub(crate) fn list_paths(spec: &IngressSpec) -> Vec<HostPath<'_>> {
    let mut found = Vec::new();
    for rule in spec.rules.iter() {
        let host = rule.host.as_deref().filter(|host| !host.is_empty());
        found.extend(rule.http.paths.iter().map(|path| HostPath {
            host,
            path: Some(path),
            target: &path.backend,
        }));
        found.extend(
            spec.default_backend
                .iter()
                .filter(|_| host.is_some())
                .map(|target| HostPath {
                    host,
                    path: None,
                    target,
                }),
        );
    }
    found.extend(spec.default_backend.iter().map(|target| HostPath {
        host: None,
        path: None,
        target,
    }));
    found
}

/// True if an Ingress has TLS for a host.
pub(crate) fn has_tls(spec: &IngressSpec, host: Option<&str>) -> bool {
    spec.tls.iter().any(|tls| {
        tls.hosts.is_empty() || host.is_some_and(|host| tls.hosts.iter().any(|of| covers(of, host)))
    })
}

/// True if a host name, perhaps with `*.` in front, stands for `other`: `*` is one label.
fn covers(host: &str, other: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let other = other.to_ascii_lowercase();
    match host.strip_prefix("*.") {
        Some(domain) => {
            host == other || { other.split_once('.') }
                .is_some_and(|(label, rest)| !label.is_empty() && rest == domain)
        }
        None => host == other,
    }
}

/// Finds the port of a service to which an Ingress of a namespace refers.
///
/// # Errors
///
/// The reason why the target cannot be used.
pub(crate) fn find_port(
    target: &Target,
    namespace: &str,
    objects: &Objects,
) -> Result<(ObjectName, u16, bool), String> {
    let Some(wanted) = &target.service else {
        let message = match &target.resource {
            Some(_) => "a resource as a target is not supported; name a Service",
            None => "a path has no target; name a Service",
        };
        return Err(message.into());
    };
    let name = ObjectName::new(namespace, &wanted.name);
    let service = objects.services.get(&name);
    let service = service.ok_or_else(|| format!("there is no Service {name}; create it"))?;
    if service.spec.kind.as_deref() == Some("ExternalName") {
        return Err(format!(
            "Service {name} is of type ExternalName and has no endpoints of its own; name another Service"
        ));
    }
    let is_wanted = |number: u16, port_name: Option<&String>| match &wanted.port.name {
        Some(wanted) => port_name == Some(wanted),
        None => wanted.port.number == Some(number),
    };
    let mut ports = service.spec.ports.iter();
    let port = ports.find(|port| {
        is_wanted(port.port, port.name.as_ref())
            && port.protocol.as_deref().unwrap_or("TCP") == "TCP"
    });
    let port = port.ok_or_else(|| {
        let shown = match (&wanted.port.name, wanted.port.number) {
            (Some(name), _) => name.clone(),
            (None, number) => number.unwrap_or_default().to_string(),
        };
        format!("Service {name} has no port {shown} of TCP; choose one of its ports")
    })?;
    let is_http2 = port.app_protocol.as_deref() == Some("kubernetes.io/h2c");
    if evenkeel_config::ServicePort::from_text(&format!("{name}:{}", port.port)).is_none() {
        return Err(format!(
            "the name of Service {name} cannot be used; name another Service"
        ));
    }
    Ok((name, port.port, is_http2))
}

/// Writes the status of an Ingress with these addresses.
pub(crate) fn show_status(addresses: &[String]) -> Value {
    let entries = addresses
        .iter()
        .map(|address| match address.parse::<IpAddr>() {
            Ok(_) => json!({ "ip": address }),
            Err(_) => json!({ "hostname": address }),
        });
    json!({ "loadBalancer": { "ingress": entries.collect::<Vec<_>>() } })
}

/// Report about an Ingress for people, which becomes an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Kind of the object.
    pub kind: Kind,
    /// Name of the object.
    pub object: ObjectName,
    /// Identity of the object.
    pub uid: String,
    /// Short reason, as `Closed` or `Ignored`.
    pub reason: &'static str,
    /// Explanation for people: the problem, and the cure.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_is_one_label() {
        for (host, other, wanted) in [
            ("a.example", "A.example", true),
            ("*.example", "a.example", true),
            ("*.example", "*.example", true),
            ("*.example", "a.b.example", false),
            ("*.example", "example", false),
            ("*.example", ".example", false),
        ] {
            assert_eq!(covers(host, other), wanted, "{host} {other}");
        }
    }

    #[test]
    fn addresses_are_ips_or_names() {
        let status = show_status(&["192.0.2.1".into(), "lb.example".into()]);
        assert_eq!(
            status["loadBalancer"]["ingress"],
            json!([{ "ip": "192.0.2.1" }, { "hostname": "lb.example" }])
        );
    }
}
