//! Targets of Ingresses: services as groups, canaries, and questions to login services.

use std::sync::Arc;

use super::super::backends::{Group, Members, Protocol};
use super::super::gateway_tls::Demand;
use super::super::grants::is_granted;
use super::super::group_policies::GroupTuning;
use super::super::ingress::annotations::{Canary, Treatment};
use super::super::ingress::find_port;
use super::super::ingress_spec::{Target, TargetPort, TargetService};
use super::super::objects::{INGRESS_GROUP, Ingress, Kind, ObjectName};
use super::super::text::{Owner, quote, quote_list, quote_table};
use super::Work;

/// Route of a path, before its host is known.
pub(super) struct Piece {
    /// Conditions beside host and path.
    pub(super) conditions: Vec<String>,
    pub(super) actions: Vec<String>,
}

/// Field with which ingress-nginx tells members that a client's certificate is good.
const VERIFY_FIELD: &str = "ssl-client-verify";

/// Fields with which ingress-nginx tells members of a client's certificate.
const CERTIFICATE_FIELDS: [&str; 4] = [
    VERIFY_FIELD,
    "ssl-client-cert",
    "ssl-client-subject-dn",
    "ssl-client-issuer-dn",
];

/// Returns all spellings that servers take for the same name of a field: with `-` or `_` at each place.
fn list_spellings(name: &str) -> Vec<String> {
    let mut parts = name.split('-');
    let mut all: Vec<String> = parts.next().into_iter().map(str::to_owned).collect();
    for part in parts {
        let spell = |begin: &String| ["-", "_"].map(|between| format!("{begin}{between}{part}"));
        all = all.iter().flat_map(spell).collect();
    }
    all
}

impl Piece {
    /// A route that answers with a status.
    pub(super) fn answer(conditions: Vec<String>, status: u16) -> Self {
        Piece {
            conditions,
            actions: vec![format!("answer = {{ status = {status} }}")],
        }
    }

    /// A route that redirects.
    pub(super) fn redirect(address: &str, status: u16) -> Self {
        Piece {
            conditions: Vec::new(),
            actions: vec![
                format!("redirect = {}", quote(address)),
                format!("redirect_status = {status}"),
            ],
        }
    }
}

/// Canary of a path.
#[derive(Clone)]
pub(super) struct PathCanary<'o> {
    pub(super) canary: Canary,
    pub(super) target: &'o Target,
}

/// Targets of a path of an Ingress.
pub(super) struct Targets<'a, 'o> {
    pub(super) ingress: &'o Ingress,
    pub(super) treatment: &'a Treatment,
    pub(super) target: &'o Target,
    pub(super) canary: Option<&'a PathCanary<'o>>,
    pub(super) host: Option<&'a str>,
}

impl<'o> Work<'o> {
    /// Writes the routes to the members of a path.
    ///
    /// # Errors
    ///
    /// The reason why the target cannot be used.
    pub(super) fn write_targets(
        &mut self,
        targets: &Targets<'_, 'o>,
        owner: &Owner,
    ) -> Result<Vec<Piece>, String> {
        let treatment = targets.treatment;
        let mut common = treatment.lines.clone();
        common.extend(self.write_fields(targets));
        common.extend(self.write_passwords(targets)?);
        common.extend(self.write_login(targets)?);
        let usual = self.find_ingress_group(targets, targets.target)?;
        let route = |conditions: Vec<String>, group: String| {
            let mut actions = common.clone();
            actions.push(group);
            Piece {
                conditions,
                actions,
            }
        };
        let one = |group: &str| format!("group = {}", quote(group));
        let mut routes = Vec::new();
        let mut last = one(&usual);
        if let Some(canary) = targets.canary
            // A canary that cannot be used gets no requests.
            && let Ok(other) = self.find_ingress_group(targets, canary.target)
        {
            let of = &canary.canary;
            if let Some(header) = &of.header {
                let mut add = |value: &str, group: &str| {
                    let table = quote_table([(header.as_str(), quote(value))]);
                    routes.push(route(vec![format!("headers = {table}")], one(group)));
                };
                match &of.value {
                    Some(value) => add(value, &other),
                    None => {
                        add("always", &other);
                        add("never", &usual);
                    }
                }
            }
            if let Some(cookie) = &of.cookie {
                for (value, group) in [("always", &other), ("never", &usual)] {
                    let table = quote_table([(cookie.as_str(), quote(value))]);
                    routes.push(route(vec![format!("cookies = {table}")], one(group)));
                }
            }
            if of.weight >= of.total {
                last = one(&other);
            } else if of.weight > 0 && other != usual {
                let weights = [
                    (usual.as_str(), (of.total - of.weight).to_string()),
                    (other.as_str(), of.weight.to_string()),
                ];
                last = format!("groups = {}", quote_table(weights));
            }
        }
        routes.push(route(Vec::new(), last));
        self.groups.use_current(&Arc::new(owner.clone()));
        Ok(routes)
    }

    /// Writes the changes to request fields.
    fn write_fields(&self, targets: &Targets<'_, 'o>) -> Option<String> {
        let host = targets.host.and_then(|host| self.ingress.hosts.get(host));
        let verification = host.and_then(|host| host.as_ref());
        let mut set: Vec<(&str, &str)> = { targets.treatment.set_fields.iter() }
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let mut removed = Vec::new();
        if let Some(of) = verification {
            // Members that ingress-nginx had before trust these fields, so they are no client's.
            removed.extend(
                CERTIFICATE_FIELDS
                    .iter()
                    .flat_map(|name| list_spellings(name)),
            );
            if of.demand == Demand::Required {
                set.push((VERIFY_FIELD, "SUCCESS"));
            }
        }
        let mut keys = Vec::new();
        if !set.is_empty() {
            let set = set.into_iter();
            let set = set.map(|(name, value)| (name, quote(&value.replace('{', "{{"))));
            keys.push(format!("set = {}", quote_table(set)));
        }
        if !removed.is_empty() {
            keys.push(format!(
                "remove = {}",
                quote_list(removed.iter().map(String::as_str))
            ));
        }
        let is_changing = !keys.is_empty();
        is_changing.then(|| format!("request_fields = {{ {} }}", keys.join(", ")))
    }

    /// Returns the group of a target.
    fn find_ingress_group(
        &mut self,
        targets: &Targets<'_, 'o>,
        target: &Target,
    ) -> Result<String, String> {
        let namespace = &targets.ingress.metadata.namespace;
        let (service, port, is_http2) = find_port(target, namespace, self.objects)?;
        let mut lines = targets.treatment.group_lines.clone();
        if is_http2 && lines.iter().all(|line| !line.starts_with("member_")) {
            match lines.is_empty() && targets.treatment.affinity.is_none() {
                true => return Ok(self.add_service(service, port, Protocol::Http2)),
                false => lines.push("member_protocol = \"h2\"".into()),
            }
        }
        if let Some(affinity) = &targets.treatment.affinity {
            // A cookie of one name would bind clients of a host to one service after the other.
            let cookie = affinity.cookie.as_ref().filter(|name| {
                let key = (targets.host.map(str::to_owned), name.to_ascii_lowercase());
                let own = (service.clone(), port);
                *self
                    .ingress
                    .cookies
                    .entry(key)
                    .or_insert_with(|| own.clone())
                    == own
            });
            let cookie = cookie.map(|name| format!("cookie = {}", quote(name)));
            let keys: Vec<String> = cookie
                .into_iter()
                .chain(affinity.keys.iter().cloned())
                .collect();
            lines.push(format!("sticky = {{ {} }}", keys.join(", ")));
        }
        if lines.is_empty() {
            return Ok(self.add_service(service, port, Protocol::Plain));
        }
        let tuning = self.find_service_tuning(&service, port);
        Ok(self.groups.add(Group {
            target: service,
            members: Members::Tuned(port, lines),
            binding: None,
            tuning,
            actions: None,
        }))
    }

    fn add_service(&mut self, target: ObjectName, port: u16, protocol: Protocol) -> String {
        let tuning = self.find_service_tuning(&target, port);
        self.groups.add(Group {
            target,
            members: Members::Service(port, protocol),
            binding: None,
            tuning,
            actions: None,
        })
    }

    /// Returns the settings of a port of a service by policies.
    fn find_service_tuning(&self, name: &ObjectName, port: u16) -> Option<Arc<GroupTuning>> {
        let service = self.objects.services.get(name)?;
        let mut ports = service.spec.ports.iter();
        let port = ports.find(|of| of.port == port)?.name.as_deref();
        let policies = &self.policies.groups;
        policies.find_tuning(Kind::Service, name, port, &[], self.objects)
    }

    /// Writes the users whose requests pass.
    fn write_passwords(&self, targets: &Targets<'_, 'o>) -> Result<Option<String>, String> {
        let Some(passwords) = &targets.treatment.passwords else {
            return Ok(None);
        };
        let namespace = &targets.ingress.metadata.namespace;
        let secret = passwords.find_secret(namespace);
        let from = (INGRESS_GROUP, Kind::Ingress.name(), namespace.as_str());
        if !is_granted(self.objects, from, ("", "Secret"), &secret.name) {
            return Err(format!(
                "auth-secret: no ReferenceGrant in namespace {} lets Ingresses of {namespace} use Secret {}; create one",
                secret.name.namespace, secret.name.name
            ));
        }
        let file = match self.ingress.passwords.get(&secret) {
            Some(Ok(path)) => path.display().to_string(),
            Some(Err(message)) => return Err(format!("auth-secret: {message}")),
            None => return Err("auth-secret: the passwords are not known".into()),
        };
        let mut keys = vec![format!("users_file = {}", quote(&file))];
        keys.extend(passwords.realm.clone());
        Ok(Some(format!("auth = {{ {} }}", keys.join(", "))))
    }

    /// Writes the question to a login service.
    fn write_login(&mut self, targets: &Targets<'_, 'o>) -> Result<Option<String>, String> {
        let Some(login) = &targets.treatment.login else {
            return Ok(None);
        };
        let namespace = &targets.ingress.metadata.namespace;
        let name = ObjectName::new(&login.namespace, &login.service);
        let from = (INGRESS_GROUP, Kind::Ingress.name(), namespace.as_str());
        if !is_granted(self.objects, from, ("", Kind::Service.name()), &name) {
            return Err(format!(
                "auth-url: no ReferenceGrant in namespace {} lets Ingresses of {namespace} ask Service {}; create one",
                login.namespace, login.service
            ));
        }
        let service = TargetService {
            name: login.service.clone(),
            port: TargetPort {
                name: None,
                number: Some(login.port),
            },
        };
        let target = Target {
            service: Some(service),
            resource: None,
        };
        let (service, port, _) = find_port(&target, &login.namespace, self.objects)
            .map_err(|message| format!("auth-url: {message}"))?;
        let group = self.add_service(service, port, Protocol::Plain);
        let mut keys = vec![
            format!("group = {}", quote(&group)),
            format!("path = {}", quote(&login.path)),
        ];
        let fields = &targets.treatment.login_fields;
        // The balancer removes clients' fields of these names from requests of all others, too.
        let allowed = self.settings.ingress.iter().flat_map(|of| &of.copy_fields);
        let allowed: Vec<&String> = allowed.collect();
        let is_allowed = |name: &String| allowed.iter().any(|of| of.eq_ignore_ascii_case(name));
        if let Some(name) = fields.iter().find(|name| !is_allowed(name)) {
            return Err(format!(
                "auth-response-headers: {name:?} is none of copy_fields in [kubernetes.gateway.ingress]; add the name there"
            ));
        }
        if !fields.is_empty() {
            let fields = quote_list(fields.iter().map(String::as_str));
            keys.push(format!("copy_fields = {fields}"));
        }
        let page = targets.treatment.login_page.as_ref();
        keys.extend(page.map(|page| format!("login_page = {}", quote(page))));
        Ok(Some(format!("auth = {{ {} }}", keys.join(", "))))
    }
}
