//! `[kubernetes.gateway]`: the controller of the Gateway API.

use std::net::{IpAddr, Ipv4Addr};

use super::ingress::{self, IngressController};
use super::kubernetes_names::{CONTROLLER, is_domain, is_object};
use crate::schema::document::Item;
use crate::schema::field::{Blank, Element, Field, Limits, Texts, blank, read_text};
use crate::schema::key::{describe_keys, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

/// Beginning of the names of rules and groups that the controller makes.
pub const GENERATED_PREFIX: &str = "kubernetes.";

section! {
    /// Controller of the Gateway API.
    #[derive(Clone, Debug, PartialEq)]
    pub struct GatewayController {}
    keys GATEWAY {
        /// Name of the controller. The balancer serves the gateways whose GatewayClass has this name as
        /// `controllerName`. Choose another name for each set of balancers in a cluster.
        controller: String [Text(CONTROLLER)] = "evenkeel.org/gateway".into(); r#""example.org/edge""#,
        /// Name of the only GatewayClass that the balancer serves. By default the balancer serves all classes with
        /// the controller's name.
        class: Option<String> [Text(CLASS)] = None; r#""evenkeel""#,
        /// Addresses of this machine or pod to listen on, with the ports of the gateways' listeners: one address or
        /// a list. Use `"::"` to listen on IPv4 and IPv6.
        listen: Vec<IpAddr> = vec![Ipv4Addr::UNSPECIFIED.into()]; r#"["10.0.0.1", "fd00::1"]"#,
        /// Addresses of this machine or pod of which each gateway gets one for itself: the balancer listens there, and
        /// writes the address into the gateway's status. A gateway may ask for an address of the pool with
        /// `spec.addresses`, and keeps its address. `listen` and `publish` hold for Ingresses only then. By default all gateways
        /// share the addresses in `listen`, and listeners of two gateways with the same port and host name conflict.
        pool: Vec<IpAddr> = Vec::new(); r#"["192.0.2.10", "192.0.2.11"]"#,
        /// Addresses at which your clients reach the gateways, such as the addresses of the load balancer or of the
        /// nodes: IP addresses or host names. The balancer writes the addresses into the status of each gateway.
        /// Without an address, gateways serve clients, but are not `Programmed`.
        publish: Vec<String> [Text(PUBLISHED)] = Vec::new(); r#"["192.0.2.10"]"#,
        /// Namespace and name of the service through which your clients reach the gateways. The balancer publishes the
        /// addresses of the service's load balancer (`status.loadBalancer`), beside those in `publish`.
        publish_service: Option<String> [Text(SERVICE)] = None; r#""evenkeel/evenkeel""#,
        /// Namespace and name of a [Lease](kubernetes.md#several-balancers): of several balancers with the same
        /// `controller`, the balancer that holds the lease writes the statuses. The balancers create the lease. By default
        /// each balancer writes statuses.
        lease: Option<String> [Text(LEASE)] = None; r#""evenkeel/evenkeel-gateway""#,
        /// [Ingresses](ingress.md) of the cluster: a table, or `true` for all defaults. By default the balancer serves no
        /// Ingress.
        ingress: Option<IngressController> = None; "true",
    }
}

blank!(GatewayController);

impl AsTable for GatewayController {
    const ALLOWED: &'static str = "a table, or true";
    const TRUE: bool = true;

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(GATEWAY, self, report);
        let message = format!("has more than {MAX_ADDRESSES} addresses");
        if self.listen.len() > MAX_ADDRESSES {
            table.report_problem("listen", message.clone(), report);
        }
        if self.publish.len() > MAX_ADDRESSES {
            table.report_problem("publish", message, report);
        }
        if self.pool.len() > MAX_POOL {
            let message = format!("has more than {MAX_POOL} addresses");
            table.report_problem("pool", message, report);
        }
        if self.pool.iter().any(IpAddr::is_unspecified) {
            let message = "has an address that stands for all addresses: name single addresses";
            table.report_problem("pool", message, report);
        }
        if self.ingress.is_some()
            && !self.pool.is_empty()
            && self.listen.iter().any(IpAddr::is_unspecified)
        {
            let message = "needs `listen` with single addresses beside those of `pool`: Ingresses are served there";
            table.report_problem("ingress", message, report);
        }
    }
}

/// Most addresses of a gateway; the API has the same bound.
const MAX_ADDRESSES: usize = 16;

/// Most addresses of which gateways get one each.
const MAX_POOL: usize = 1_024;

const CLASS: Texts = ("the name of a GatewayClass", is_domain);

const PUBLISHED: Texts = ("an IP address or a host name", |text| {
    text.parse::<IpAddr>().is_ok() || is_domain(text)
});

const SERVICE: Texts = (
    "the namespace and the name of a service, as in \"evenkeel/evenkeel\"",
    is_object,
);

const LEASE: Texts = (
    "the namespace and the name of a lease, as in \"evenkeel/evenkeel-gateway\"",
    is_object,
);

impl Field for IpAddr {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        read_text(self, item, limits, report, |text| {
            let ip: Option<IpAddr> = text.trim().parse().ok();
            ip.filter(|ip| !ip.is_multicast())
                .ok_or("not an IP address of a machine")
        });
    }

    fn show(&self, _: &Limits) -> Option<String> {
        Some(format!("\"{self}\""))
    }

    fn allowed(&self, _: &Limits) -> String {
        r#"an IP address, as in "0.0.0.0" or "::""#.into()
    }
}

impl Blank for IpAddr {
    fn blank() -> Self {
        Ipv4Addr::UNSPECIFIED.into()
    }
}

impl Element for IpAddr {
    const NONE: Option<&'static str> = Some("names no address");
}

/// Reference of the tables.
pub(crate) fn describe_tables() -> [TableDoc; 2] {
    let doc = "Controller of the [Gateway API](kubernetes.md#gateway-api): the balancer serves the gateways of a \
               cluster of Kubernetes. Names of your own rules and groups must not begin with `kubernetes.`.";
    let keys = [describe_keys(GATEWAY, GatewayController::default())];
    let gateway = TableDoc::new("[kubernetes.gateway]", doc, keys);
    [gateway, ingress::describe_table()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn gateway(text: &str) -> Option<GatewayController> {
        let config = parse("x", text).unwrap_or_else(|errors| panic!("{errors}"));
        config.kubernetes.and_then(|kubernetes| kubernetes.gateway)
    }

    #[test]
    fn the_controller_is_on_if_its_table_is_there() {
        assert_eq!(gateway("[kubernetes]\n"), None);
        let default = GatewayController::default();
        assert_eq!(gateway("[kubernetes.gateway]\n"), Some(default.clone()));
        assert_eq!(gateway("[kubernetes]\ngateway = true\n"), Some(default));
        assert_eq!(gateway("[kubernetes]\ngateway = false\n"), None);
        let text = "[kubernetes.gateway]\ncontroller = \"a.example/b\"\nclass = \"edge\"\nlisten = [\"::\", \"10.0.0.1\"]\n\
                    publish = [\"192.0.2.1\", \"gw.example\"]\npool = [\"10.0.0.2\"]\n";
        let set = gateway(text).unwrap();
        assert_eq!(
            (&*set.controller, set.class.as_deref()),
            ("a.example/b", Some("edge"))
        );
        assert_eq!(
            set.listen,
            ["::", "10.0.0.1"].map(|ip| ip.parse::<IpAddr>().unwrap())
        );
        assert_eq!(set.publish, ["192.0.2.1", "gw.example"]);
        assert_eq!(set.pool, [IpAddr::from([10, 0, 0, 2])]);
    }

    #[test]
    fn wrong_values_are_told_with_their_lines() {
        for (line, wanted) in [
            ("controller = \"evenkeel\"", "a domain and a path"),
            ("controller = \"a/b c\"", "a domain and a path"),
            ("class = \"A\"", "GatewayClass"),
            ("listen = \"10.0.0.1:80\"", "an IP address"),
            ("listen = []", "names no address"),
            ("pool = [\"0.0.0.0\"]", "single addresses"),
            ("pool = \"10.0.0.0/8\"", "an IP address"),
            ("publish = \"a_b\"", "an IP address or a host name"),
            (
                "publish_service = \"web\"",
                "the namespace and the name of a service",
            ),
            (
                "publish_service = \"a/b/c\"",
                "the namespace and the name of a service",
            ),
            ("publish = \"http://a\"", "an IP address or a host name"),
            ("lease = \"a\"", "the namespace and the name of a lease"),
            ("lease = \"a/b?c\"", "the namespace and the name of a lease"),
        ] {
            let text = format!("[kubernetes.gateway]\n{line}\n");
            let errors = parse("f.toml", &text).unwrap_err().to_string();
            assert!(
                errors.contains("f.toml:2:") && errors.contains(wanted),
                "{errors}"
            );
        }
    }

    #[test]
    fn names_of_the_controller_are_reserved() {
        let rules = "[rule.\"kubernetes.80\"]\nlisten = \"127.0.0.1:1\"\nmembers = [\"a:1\"]\n\
                     [group.\"kubernetes.x\"]\nmembers = [\"a:1\"]\n";
        assert!(parse("f.toml", rules).is_ok());
        let errors = parse("f.toml", &format!("{rules}[kubernetes.gateway]\n")).unwrap_err();
        let mut lines: Vec<usize> = errors.problems.iter().map(|problem| problem.line).collect();
        lines.sort_unstable();
        assert_eq!(lines, [1, 4], "{errors}");
        assert!(errors.to_string().contains("another name"), "{errors}");
    }

    #[test]
    fn generated_rules_and_groups_are_added_with_their_services() {
        let own = "[rule.a]\nlisten = \"127.0.0.1:1\"\nmembers = [{ kubernetes = \"s/b:80\" }]\n[kubernetes.gateway]\n";
        let generated = "[rule.\"kubernetes.80\"]\nlisten = \"127.0.0.1:2\"\ngroup = \"kubernetes.s.a.80\"\n\
                         [group.\"kubernetes.s.a.80\"]\nmembers = [{ kubernetes = \"s/a:80\" }]\n";
        let generated = crate::parse_generated(generated).unwrap();
        let mut config = parse("x", own).unwrap();
        config.add_generated(&generated);
        let rules: Vec<&str> = config.rules.iter().map(|rule| &*rule.name).collect();
        assert_eq!(rules, ["a", "kubernetes.80"]);
        assert_eq!(config.groups.len(), 2);
        let services = config.kubernetes.as_ref().unwrap().services.iter();
        let services: Vec<String> = services.map(ToString::to_string).collect();
        assert_eq!(services, ["s/a:80", "s/b:80"]);
        // Without the table nothing is added.
        let mut config = parse("x", &own.replace("[kubernetes.gateway]\n", "")).unwrap();
        config.add_generated(&generated);
        assert_eq!(config.rules.len(), 1);
    }
}
