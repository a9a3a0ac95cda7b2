//! `[kubernetes]`: access to the API server whose EndpointSlices name members.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::gateway::{self, GatewayController};
use crate::schema::field::{FileName, Texts, choice_field};
use crate::schema::key::{HOUR, describe_keys, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::Table;

section! {
    /// Access to the API server of Kubernetes, and the services whose endpoints are members.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Kubernetes {
        /// Ports of services that groups name, each once, in order.
        services: Arc<[ServicePort]> = Arc::default(),
    }
    keys KUBERNETES {
        /// Kubeconfig file with the address of the API server and the credentials. By default the balancer uses
        /// the service account of its pod; outside of a cluster the first file in the environment variable
        /// `KUBECONFIG`, or else `~/.kube/config`. A relative path starts at the configuration's folder.
        kubeconfig: Option<FileName> = None; r#""/etc/evenkeel/kubeconfig""#,
        /// Context of the kubeconfig file. By default the file's `current-context`. If you set a context, the
        /// balancer uses a kubeconfig file also inside of a cluster.
        context: Option<String> [Text(CONTEXT)] = None; r#""production""#,
        /// Address of a pod that has an IPv4 and an IPv6 address: such a pod is one member, with the address of
        /// this family.
        prefer: IpFamily = IpFamily::Ipv4; r#""ipv6""#,
        /// Time without a byte from the API server after which the balancer opens a new watch. The server sends a
        /// bookmark about once a minute. Shorten the time if connections to your API server die silently.
        silence: Duration [Time(secs(1), HOUR)] = secs(120); r#""90s""#,
        /// Controller of the [Gateway API](kubernetes.md#gateway-api): a table, or `true` for all defaults. By
        /// default the balancer takes members from the cluster, but serves no gateways.
        gateway: Option<GatewayController> = None; "true",
        /// File for the [last good copy](kubernetes.md#last-good-copy) of members, gateways and routes. If the API
        /// server does not answer, the balancer starts with the copy. The balancer makes the file if needed; a
        /// relative path starts at the configuration's folder. Only the owner may read the file, because it may
        /// contain private keys. By default `kubernetes.copy` in `$STATE_DIRECTORY`, which systemd sets for a
        /// service with `StateDirectory=`, as do the chart and the manifests. If you have neither, there is no copy.
        copy_file: Option<PathBuf> = None; r#""/var/lib/evenkeel/kubernetes.copy""#,
        /// Contents of the last good copy. With `without_keys` the copy has no private keys of secrets: after a start
        /// with the copy, listeners with HTTPS stay closed until the API server answers. With `nothing` there is no
        /// copy, and the balancer removes the file.
        copy_contents: CopyContents = CopyContents::All; r#""without_keys""#,
    }
}

/// Contents of the last good copy of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyContents {
    /// Members, gateways, routes and certificates with their keys.
    All,
    /// Everything but private keys.
    WithoutKeys,
    /// No copy.
    Nothing,
}

choice_field!(
    CopyContents,
    "all" => CopyContents::All,
    "without_keys" => CopyContents::WithoutKeys,
    "nothing" => CopyContents::Nothing
);

/// Family of IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpFamily {
    /// IPv4 addresses.
    Ipv4,
    /// IPv6 addresses.
    Ipv6,
}

choice_field!(IpFamily, "ipv4" => IpFamily::Ipv4, "ipv6" => IpFamily::Ipv6);

const CONTEXT: Texts = ("1 to 256 characters", |text| {
    (1..=256).contains(&text.len()) && !text.chars().any(char::is_control)
});

/// Port of a service, `namespace/service:port`, or of pods with labels, `namespace/label=value,label=value:port`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePort {
    /// Namespace of the service, or of the pods.
    pub namespace: String,
    /// Name of the service, or labels of the pods.
    pub service: String,
    /// Port of the service, or of the pods.
    pub port: PortName,
}

/// Name or number of a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortName {
    /// Name of the port.
    Name(String),
    /// Number of the port in the service; or, if the service has no such port, in its pods.
    Number(u16),
}

/// Allowed values of the key `kubernetes` of a member.
pub(super) const SERVICE_PORT: Texts = (
    "a service of Kubernetes and its port, as in \"default/web:http\" or \"default/web:80\", or labels of pods and a \
     port, as in \"default/app=web:80\"",
    |text| ServicePort::from_text(text).is_some(),
);

/// Returns true if the text is a label of DNS in lower case: a name in Kubernetes.
fn is_label(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(is_inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Most labels of a selector.
const MAX_LABELS: usize = 16;

/// Returns true if the text is the name or a value of a label: letters and digits, with `-`, `_` and `.` in between.
fn is_label_part(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let ends = [text.bytes().next(), text.bytes().next_back()];
    (1..=63).contains(&text.len()) && text.bytes().all(is_inner) && { ends.into_iter().flatten() }
        .all(|byte| byte.is_ascii_alphanumeric())
}

/// Returns true if the text is a selector of pods: `label=value`, several separated by commas. A label may have a prefix,
/// as in `app.kubernetes.io/name=web`.
fn is_selector(text: &str) -> bool {
    let is_pair = |pair: &str| {
        let Some((label, value)) = pair.split_once('=') else {
            return false;
        };
        let (prefix, name) = label.split_once('/').unwrap_or(("a", label));
        prefix.len() <= 253
            && prefix.split('.').all(is_label)
            && is_label_part(name)
            && (value.is_empty() || is_label_part(value))
    };
    text.split(',').count() <= MAX_LABELS && text.split(',').all(is_pair)
}

impl ServicePort {
    /// Returns true for pods that are chosen by their labels.
    pub fn is_of_pods(&self) -> bool {
        self.service.contains('=')
    }

    /// Reads `namespace/service:port`, or labels of pods in place of the service; `None` if the text is something else.
    pub fn from_text(text: &str) -> Option<Self> {
        let (namespace, rest) = text.split_once('/')?;
        let (service, port) = rest.rsplit_once(':')?;
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = match is_number {
            true => PortName::Number(port.parse().ok().filter(|port| *port > 0)?),
            false => PortName::Name(is_label(port).then(|| port.to_owned())?),
        };
        (is_label(namespace) && (is_label(service) || is_selector(service))).then(|| ServicePort {
            namespace: namespace.into(),
            service: service.into(),
            port,
        })
    }
}

impl fmt::Display for ServicePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:", self.namespace, self.service)?;
        match &self.port {
            PortName::Name(name) => f.write_str(name),
            PortName::Number(number) => write!(f, "{number}"),
        }
    }
}

/// Returns the ports of services that groups name, each once and in order.
pub(crate) fn list_services<'a>(names: impl Iterator<Item = &'a str>) -> Arc<[ServicePort]> {
    let services: BTreeSet<ServicePort> = names.filter_map(ServicePort::from_text).collect();
    services.into_iter().collect()
}

/// True if this build can serve the section, and find members in Kubernetes.
pub(super) const IS_SERVED: bool = cfg!(feature = "kubernetes");

/// Message for what needs Kubernetes in a build that cannot serve it.
pub(super) const NOT_SERVED: &str =
    "this build has no Kubernetes: remove this, or use a build with the feature `kubernetes`";

/// Reads `[kubernetes]` of the file. `services` are those that groups name. Without the table there is a section if there
/// is such a service.
pub(crate) fn read(
    top: &mut Table<'_>,
    folder: &Path,
    services: Arc<[ServicePort]>,
    report: &mut Report<'_>,
) -> Option<Kubernetes> {
    let mut kubernetes = Kubernetes {
        services,
        ..Kubernetes::default()
    };
    let Some(mut table) = top.read_table("kubernetes", report) else {
        return (!kubernetes.services.is_empty()).then_some(kubernetes);
    };
    if !IS_SERVED {
        report.add_problem(table.name_span(), "kubernetes", NOT_SERVED, None);
        return None;
    }
    table.read(KUBERNETES, &mut kubernetes, report);
    if let Some(file) = &mut kubernetes.kubeconfig {
        file.resolve(folder);
    }
    if let Some(file) = &mut kubernetes.copy_file {
        *file = folder.join(&*file);
    }
    table.report_unread(report);
    Some(kubernetes)
}

/// Reference of the tables.
pub(crate) fn describe_tables() -> [TableDoc; 3] {
    let doc = "Access to the API server of Kubernetes, for members with the key `kubernetes`: see \
               [kubernetes.md](kubernetes.md). You need no table if the defaults suit you.";
    let keys = [describe_keys(KUBERNETES, Kubernetes::default())];
    let table = TableDoc::new("[kubernetes]", doc, keys);
    let [gateway, ingress] = gateway::describe_tables();
    [table, gateway, ingress]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn rule(members: &str) -> String {
        format!("[rule.x]\nlisten = \"127.0.0.1:1\"\nmembers = [{members}]\n")
    }

    #[test]
    fn the_copy_is_beside_the_configuration_unless_its_path_is_absolute() {
        let read = |text: &str| {
            let config = parse("/etc/evenkeel/x.toml", text).unwrap();
            config.kubernetes.unwrap()
        };
        let default = read("[kubernetes]\n");
        assert_eq!(
            (default.copy_file, default.copy_contents),
            (None, CopyContents::All)
        );
        let text = "[kubernetes]\ncopy_file = \"a.copy\"\ncopy_contents = \"without_keys\"\n";
        let set = read(text);
        assert_eq!(
            set.copy_file.as_deref(),
            Some(Path::new("/etc/evenkeel/a.copy"))
        );
        assert_eq!(set.copy_contents, CopyContents::WithoutKeys);
        let config = parse("/etc/evenkeel/x.toml", text).unwrap();
        assert!({ config.written_files() }.any(|(key, _)| key == "kubernetes.copy_file"));
    }

    #[test]
    fn services_of_all_groups_are_known_once() {
        let text = format!(
            "{}[group.y]\nmembers = [{{ kubernetes = \"shop/web:80\" }}, \"10.0.0.1:80\"]\n",
            rule(
                "{ kubernetes = \"shop/web:http\", max_connections = 7 }, { kubernetes = \"shop/web:80\" }"
            )
        );
        let config = parse("/etc/evenkeel/x.toml", &text).unwrap();
        let kubernetes = config.kubernetes.as_ref().unwrap();
        let services: Vec<_> = kubernetes
            .services
            .iter()
            .map(|of| of.to_string())
            .collect();
        assert_eq!(services, ["shop/web:http", "shop/web:80"]);
        assert_eq!(config.groups[0].services[0].max_connections, Some(7));
        assert!(config.groups[0].members.is_empty());
        assert_eq!(parse("x", &rule("\"a:1\"")).unwrap().kubernetes, None);
        let text = format!("[kubernetes]\nkubeconfig = \"k\"\n{}", rule("\"a:1\""));
        let config = parse("/etc/evenkeel/x.toml", &text).unwrap();
        let files: Vec<_> = config.files().collect();
        assert_eq!(files, [Path::new("/etc/evenkeel/k")]);
    }

    #[test]
    fn pods_are_chosen_by_labels() {
        for good in [
            "ml/app=vllm:8000",
            "ml/app.kubernetes.io/name=vllm,tier=:http",
            "ml/A_b.c=1:8000",
        ] {
            let pods = ServicePort::from_text(good).unwrap();
            assert!(pods.is_of_pods() && pods.namespace == "ml", "{pods:?}");
            assert_eq!(pods.to_string(), good);
            let config = parse("x", &rule(&format!("{{ kubernetes = {good:?} }}"))).unwrap();
            assert_eq!(*config.kubernetes.unwrap().services, [pods]);
        }
        let many = |count| format!("ml/{}:1", vec!["a=b"; count].join(","));
        assert!(ServicePort::from_text(&many(MAX_LABELS)).is_some());
        assert_eq!(ServicePort::from_text(&many(MAX_LABELS + 1)), None);
        assert!(!ServicePort::from_text("ml/app:80").unwrap().is_of_pods());
    }

    #[test]
    fn names_of_services_are_checked() {
        for bad in [
            "web:80",
            "shop/web",
            "shop/web:",
            "shop/web:0",
            "shop/web:65536",
            "Shop/web:80",
            "shop/-web:80",
            "shop/web:http:1",
            "a/b/c:80",
            "shop/web:é",
            "/web:80",
            "shop/:80",
            "shop/=:80",
            "shop/app=a,:80",
            "shop/app=-a:80",
            "shop/app=a b:80",
            "shop/a/b/c=d:80",
            "shop/é=d:80",
            "shop/app in (a):80",
            "shop/app=a&watch=b:80",
            "shop/app=a",
        ] {
            assert_eq!(ServicePort::from_text(bad), None, "{bad}");
            let text = rule(&format!("{{ kubernetes = {bad:?} }}"));
            let errors = parse("f.toml", &text).unwrap_err().to_string();
            assert!(
                errors.contains("f.toml:3:") && errors.contains("default/web:http"),
                "{errors}"
            );
        }
        for (more, wanted) in [
            ("address = \"a:1\"", "an `address`, `srv` or `kubernetes`"),
            ("srv = \"_a._b.c\"", "an `address`, `srv` or `kubernetes`"),
            ("name = \"x\"", "remove `name`"),
            ("url = \"http://a\"", "remove this key"),
        ] {
            let text = rule(&format!("{{ kubernetes = \"shop/web:80\", {more} }}"));
            let errors = parse("f.toml", &text).unwrap_err().to_string();
            assert!(
                errors.contains("f.toml:3:") && errors.contains(wanted),
                "{errors}"
            );
        }
    }
}
