//! `[kubernetes.gateway.ingress]`: Ingresses that the controller serves.

use super::kubernetes_names::{CONTROLLER, is_domain, is_object};
use crate::schema::field::{Texts, blank};
use crate::schema::key::{describe_keys, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Ingresses that the controller serves.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct IngressController {}
    keys INGRESS {
        /// Name of the controller. The balancer serves the Ingresses whose IngressClass has this name as
        /// `spec.controller`.
        controller: String [Text(CONTROLLER)] = "evenkeel.org/ingress".into(); r#""k8s.io/ingress-nginx""#,
        /// Name of the only IngressClass that the balancer serves. Ingresses with this name in the old annotation
        /// `kubernetes.io/ingress.class` are served even if the class does not exist. By default the balancer serves all
        /// classes with the controller's name.
        class: Option<String> [Text(CLASS)] = None; r#""nginx""#,
        /// Serves Ingresses that name no class, too. By default the balancer serves such Ingresses if one of its classes
        /// has the annotation `ingressclass.kubernetes.io/is-default-class`.
        without_class: bool = false; "true",
        /// Port for requests without TLS, at the addresses in `listen` of `[kubernetes.gateway]`.
        http_port: u16 [Number(1.0, 65535.0, "")] = 80; "8080",
        /// Port for requests with TLS, at the same addresses. The port is open once there is a certificate.
        https_port: u16 [Number(1.0, 65535.0, "")] = 443; "8443",
        /// Namespace and name of a secret of the type `kubernetes.io/tls`, whose certificate clients get if no Ingress has a
        /// certificate for the name.
        certificate: Option<String> [Text(SECRET)] = None; r#""evenkeel/default-certificate""#,
        /// Fields that Ingresses may copy from answers of login services (`auth-response-headers`). The balancer removes
        /// clients' fields with these names from requests of all rules, so only you can allow them. By default an Ingress
        /// that copies a field is closed.
        copy_fields: Vec<String> [Text(COPIED)] = Vec::new(); r#"["X-Auth-Request-User"]"#,
    }
}

blank!(IngressController);

const CLASS: Texts = ("the name of an IngressClass", is_domain);

const SECRET: Texts = (
    "the namespace and the name of a secret, as in \"evenkeel/default-certificate\"",
    is_object,
);

const COPIED: Texts = (
    "the name of a header field",
    evenkeel_core::key::is_field_name,
);

impl AsTable for IngressController {
    const ALLOWED: &'static str = "a table, or true";
    const TRUE: bool = true;

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(INGRESS, self, report);
        if self.http_port == self.https_port {
            let message = "is the port of `http_port`, too: choose another one";
            table.report_problem("https_port", message, report);
        }
    }
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "[Ingresses](ingress.md) that the balancer serves. The balancer writes the addresses in `publish` and \
               `publish_service` of `[kubernetes.gateway]` into the statuses of Ingresses.";
    let keys = [describe_keys(INGRESS, IngressController::default())];
    TableDoc::new("[kubernetes.gateway.ingress]", doc, keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn ingress(text: &str) -> Option<IngressController> {
        let config = parse("x", text).unwrap_or_else(|errors| panic!("{errors}"));
        config.kubernetes?.gateway?.ingress
    }

    #[test]
    fn ingresses_are_served_if_the_table_is_there() {
        assert_eq!(ingress("[kubernetes.gateway]\n"), None);
        let default = IngressController::default();
        for text in [
            "[kubernetes.gateway]\ningress = true\n",
            "[kubernetes.gateway.ingress]\n",
        ] {
            assert_eq!(ingress(text), Some(default.clone()), "{text}");
        }
        let set = ingress(
            "[kubernetes.gateway.ingress]\ncontroller = \"k8s.io/ingress-nginx\"\nclass = \"nginx\"\nwithout_class = true\n\
             http_port = 8080\nhttps_port = 8443\ncertificate = \"a/b\"\n\
             copy_fields = [\"X-User\"]\n",
        );
        let wanted = IngressController {
            controller: "k8s.io/ingress-nginx".into(),
            class: Some("nginx".into()),
            without_class: true,
            http_port: 8080,
            https_port: 8443,
            certificate: Some("a/b".into()),
            copy_fields: vec!["X-User".into()],
        };
        assert_eq!(set, Some(wanted));
    }

    #[test]
    fn wrong_values_are_told_with_their_lines() {
        for (line, wanted) in [
            ("controller = \"nginx\"", "a domain and a path"),
            ("class = \"A\"", "the name of an IngressClass"),
            ("http_port = 443", "choose another one"),
            ("https_port = 0", "1"),
            ("copy_fields = \"a b\"", "the name of a header field"),
            (
                "certificate = \"a\"",
                "the namespace and the name of a secret",
            ),
        ] {
            let text = format!("[kubernetes.gateway.ingress]\n{line}\n");
            let errors = parse("f.toml", &text).unwrap_err().to_string();
            assert!(
                errors.contains("f.toml:") && errors.contains(wanted),
                "{errors}"
            );
        }
        let pool = "[kubernetes.gateway]\npool = \"10.0.0.1\"\ningress = true\n";
        let errors = parse("f.toml", pool).unwrap_err().to_string();
        assert!(errors.contains("single addresses beside"), "{errors}");
        assert!(parse("f.toml", &format!("{pool}listen = \"10.0.0.2\"\n")).is_ok());
    }
}
