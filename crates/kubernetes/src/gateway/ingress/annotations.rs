//! Annotations of ingress-nginx: how the requests of an Ingress are served.
//!
//! An annotation that restricts access and cannot be used closes the paths of the Ingress. Other annotations that cannot be
//! used are told, and have no effect.

use std::collections::BTreeMap;

use super::super::gateway_tls::Demand;
use super::super::ingress_spec::PREFIX;
use super::super::text::{quote, quote_list};
use super::values::{
    LoginService, MAX_ALIASES, Passwords, is_number, read_aliases, read_list, read_login_page,
    read_login_url, read_networks, read_seconds, read_size, read_switch,
};

mod client_certificates;
mod members;

/// Number of clients that a limit remembers, with 16 bytes each.
const LIMITED_CLIENTS: &str = "table_size = 8192";

/// Requests that go to a canary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Canary {
    /// Share of the requests.
    pub(crate) weight: u32,
    /// Number of all parts of the share.
    pub(crate) total: u32,
    /// Request field which decides.
    pub(crate) header: Option<String>,
    /// Value of the field for the canary; `always`, if there is none.
    pub(crate) value: Option<String>,
    /// Cookie which decides.
    pub(crate) cookie: Option<String>,
}

/// Binding of clients to members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Affinity {
    /// Name of the cookie; a name of the balancer's, if there is none.
    pub(crate) cookie: Option<String>,
    /// Further keys of the cookie.
    pub(crate) keys: Vec<String>,
}

/// Certificates that clients of the hosts of an Ingress have to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientCertificates {
    /// Name of the secret with the authorities as the annotation has it, perhaps with a namespace.
    pub(crate) secret: String,
    /// Demand for certificates.
    pub(crate) demand: Demand,
}

/// Treatment of the requests of an Ingress.
#[derive(Clone, Debug, Default)]
pub(crate) struct Treatment {
    /// Reasons why the paths of the Ingress answer 503.
    pub(crate) closed: Vec<String>,
    /// True if all paths of the hosts of the Ingress answer 503.
    pub(crate) closes_hosts: bool,
    /// True if an annotation restricts access.
    pub(crate) restricts: bool,
    /// Annotations without an effect, with the reasons.
    pub(crate) ignored: Vec<String>,
    /// Redirect to TLS where the host has TLS; true, if nothing is said.
    pub(crate) ssl_redirect: Option<bool>,
    /// Redirect to TLS of all hosts.
    pub(crate) force_ssl_redirect: bool,
    /// True if paths are regular expressions.
    pub(crate) use_regex: bool,
    /// Target of rewritten paths.
    pub(crate) rewrite_target: Option<String>,
    /// Path to which requests for `/` are redirected.
    pub(crate) app_root: Option<String>,
    /// Address and status of a redirect of all requests.
    pub(crate) redirect: Option<(String, u16)>,
    /// Networks of clients that are let in; all, if there are none.
    pub(crate) allowed: Vec<String>,
    /// Networks of clients that are refused.
    pub(crate) denied: Vec<String>,
    /// Certificates that clients have to show.
    pub(crate) client_certificates: Option<ClientCertificates>,
    /// Passwords that requests need.
    pub(crate) passwords: Option<Passwords>,
    /// Login service to ask about requests.
    pub(crate) login: Option<LoginService>,
    /// Fields that members get from the login service.
    pub(crate) login_fields: Vec<String>,
    /// Address to which clients without a login are redirected.
    pub(crate) login_page: Option<String>,
    /// Further lines of routes to members.
    pub(crate) lines: Vec<String>,
    /// Changes to request fields: names and values.
    pub(crate) set_fields: Vec<(&'static str, String)>,
    /// Lines of the groups of members.
    pub(crate) group_lines: Vec<String>,
    /// Binding of clients to members.
    pub(crate) affinity: Option<Affinity>,
    /// Share of requests for the targets of this Ingress, which is a canary.
    pub(crate) canary: Option<Canary>,
    /// Further host names.
    pub(crate) aliases: Vec<String>,
}

/// Annotations by their names without the prefix.
struct Reader<'a> {
    values: BTreeMap<&'a str, &'a str>,
    treatment: Treatment,
}

/// True if an unknown annotation may restrict access, by its name.
fn may_restrict(name: &str) -> bool {
    let parts = [
        "auth",
        "snippet",
        "whitelist",
        "allowlist",
        "denylist",
        "blacklist",
        "modsecurity",
        "owasp",
        "satisfy",
        "deny",
        "jwt",
        "oauth",
        "secret",
    ];
    parts.iter().any(|part| name.contains(part))
}

/// Reads the annotations of an Ingress.
pub(crate) fn read_annotations(annotations: &BTreeMap<String, String>) -> Treatment {
    let own = annotations.iter();
    let own = own.filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?, value.trim())));
    let mut reader = Reader {
        values: own.collect(),
        treatment: Treatment::default(),
    };
    reader.read_access();
    reader.read_client_certificates();
    reader.read_login();
    reader.read_limits();
    reader.read_paths();
    reader.read_redirects();
    reader.read_times();
    reader.read_cors();
    reader.read_members();
    reader.read_affinity();
    reader.read_canary();
    reader.read_rest();
    reader.treatment
}

impl<'a> Reader<'a> {
    /// Takes the value of an annotation.
    fn take(&mut self, name: &str) -> Option<&'a str> {
        self.values.remove(name)
    }

    /// Takes a switch. A text that is neither `true` nor `false` is told.
    fn take_switch(&mut self, name: &str) -> Option<bool> {
        let value = self.take(name)?;
        let switch = read_switch(value);
        if switch.is_none() {
            self.ignore(name, &format!("{value:?} is neither true nor false"));
        }
        switch
    }

    fn ignore(&mut self, name: &str, reason: &str) {
        let told = format!("{name} has no effect: {reason}");
        self.treatment.ignored.push(told);
    }

    fn close(&mut self, name: &str, reason: &str) {
        self.treatment.restricts = true;
        let told = format!("{name} may restrict access and cannot be used: {reason}");
        self.treatment.closed.push(told);
    }

    /// Reads networks of clients that are let in, or refused.
    fn read_access(&mut self) {
        for (name, is_allowed) in [
            ("whitelist-source-range", true),
            ("allowlist-source-range", true),
            ("denylist-source-range", false),
        ] {
            let Some(value) = self.take(name) else {
                continue;
            };
            self.treatment.restricts = true;
            match read_networks(value) {
                Ok(networks) if is_allowed => self.treatment.allowed.extend(networks),
                Ok(networks) => self.treatment.denied.extend(networks),
                Err(reason) => self.close(name, &reason),
            }
        }
    }

    /// Reads who may send requests: users with passwords, or as a login service decides.
    fn read_login(&mut self) {
        self.read_passwords();
        if let Some(url) = self.take("auth-url") {
            let fields = self.take("auth-response-headers").unwrap_or_default();
            self.treatment.restricts = true;
            match read_login_url(url) {
                Ok(login) => self.treatment.login = Some(login),
                Err(reason) => self.close("auth-url", &reason),
            }
            self.treatment.login_fields = read_list(fields);
            if self.treatment.passwords.is_some() {
                let reason =
                    "auth-type is set, too, and a request has one login; remove one of the two";
                self.close("auth-url", reason);
            }
            let parameter = self.take("auth-signin-redirect-param").unwrap_or("rd");
            if let Some(page) = self.take("auth-signin") {
                match read_login_page(page, parameter) {
                    Ok(page) => self.treatment.login_page = Some(page),
                    Err(reason) => self.ignore("auth-signin", &reason),
                }
            }
            // Nobody gets in without the answer that lets the request pass.
            for name in [
                "auth-always-set-cookie",
                "auth-cache-key",
                "auth-cache-duration",
                "auth-keepalive",
                "auth-keepalive-requests",
                "auth-keepalive-timeout",
                "auth-keepalive-share-vars",
            ] {
                if self.take(name).is_some() {
                    self.ignore(name, "clients get the answer of the login service");
                }
            }
            let method = self.take("auth-method").unwrap_or("GET");
            if method != "GET" {
                self.ignore("auth-method", "the question is a GET");
            }
        }
        // Nobody asks a login service of all Ingresses, so nothing is to be switched off.
        if self.values.get("enable-global-auth") == Some(&"false") {
            self.take("enable-global-auth");
        }
    }

    /// Reads the users whose requests pass. Passwords that cannot be read close the paths.
    fn read_passwords(&mut self) {
        let Some(kind) = self.take("auth-type") else {
            return;
        };
        self.treatment.restricts = true;
        let secret = self.take("auth-secret").unwrap_or_default();
        let form = self.take("auth-secret-type").unwrap_or("auth-file");
        let realm = self.take("auth-realm").filter(|realm| !realm.is_empty());
        if kind != "basic" {
            let reason = format!("authentication of type {kind:?} is not supported; use basic");
            return self.close("auth-type", &reason);
        }
        if !matches!(form, "auth-file" | "auth-map") {
            let reason = format!("{form:?} is neither auth-file nor auth-map");
            return self.close("auth-secret-type", &reason);
        }
        if secret.is_empty() {
            return self.close("auth-type", "auth-secret names no Secret; name one");
        }
        let is_inner = |byte: u8| (b' '..=b'~').contains(&byte) && !b"\"\\".contains(&byte);
        let is_realm = |realm: &&str| realm.len() <= 128 && realm.bytes().all(is_inner);
        let shown = realm.filter(is_realm);
        if shown.is_none() && realm.is_some() {
            let reason = "it is not 1 to 128 printable characters without quotes and backslashes";
            self.ignore("auth-realm", reason);
        }
        self.treatment.passwords = Some(Passwords {
            secret: secret.into(),
            is_map: form == "auth-map",
            realm: shown.map(|realm| format!("realm = {}", quote(realm))),
        });
    }

    /// Reads limits of requests. A limit that cannot be read closes the paths.
    fn read_limits(&mut self) {
        let mut limits = Vec::new();
        let mut burst: u32 = 5;
        if let Some(value) = self.take("limit-burst-multiplier") {
            match value.parse() {
                Ok(number) => burst = number,
                Err(_) => {
                    let reason = format!("{value:?} is no number");
                    self.ignore("limit-burst-multiplier", &reason);
                }
            }
        }
        let exempt = self.take("limit-whitelist").map(read_networks);
        for (name, unit) in [("limit-rps", "s"), ("limit-rpm", "m")] {
            let Some(value) = self.take(name) else {
                continue;
            };
            let Some(count) = { value.parse::<u32>().ok() }.filter(|of| *of <= 1_000_000) else {
                self.close(name, &format!("{value:?} is no number of requests"));
                continue;
            };
            if count == 0 {
                continue;
            }
            let mut limit = format!(
                "{{ name = {}, requests = \"{count}/{unit}\", burst = {}, status = 503, {LIMITED_CLIENTS}",
                quote(name),
                count.saturating_mul(burst.clamp(1, 1_000)).min(10_000_000)
            );
            match &exempt {
                Some(Ok(networks)) if !networks.is_empty() => {
                    let networks = quote_list(networks.iter().map(String::as_str));
                    limit.push_str(&format!(", except = {networks}"));
                }
                _ => {}
            }
            limits.push(format!("{limit} }}"));
        }
        if let Some(Err(reason)) = &exempt {
            self.ignore("limit-whitelist", reason);
        }
        if !limits.is_empty() {
            let line = format!("request_limits = [{}]", limits.join(", "));
            self.treatment.lines.push(line);
        }
        if let Some(value) = self.take("limit-connections")
            && value != "0"
        {
            let reason = "requests of a client at the same time are not limited; use limit-rps";
            self.ignore("limit-connections", reason);
        }
        if let Some(value) = self.take("proxy-body-size") {
            match read_size(value) {
                Ok(Some(bytes)) => self.treatment.lines.push(format!("max_body = {bytes}")),
                Ok(None) => {}
                Err(reason) => self.close("proxy-body-size", &reason),
            }
        }
    }

    fn read_paths(&mut self) {
        let target = self.take("rewrite-target");
        let target = target.filter(|target| !target.is_empty());
        self.treatment.rewrite_target = target.map(str::to_owned);
        let use_regex = self.take_switch("use-regex").unwrap_or(false);
        self.treatment.use_regex = use_regex || target.is_some_and(|target| target.contains('$'));
        if let Some(root) = self.take("app-root") {
            match root.starts_with('/') && !root.starts_with("//") && is_location(root) {
                true => self.treatment.app_root = Some(root.into()),
                false => self.ignore("app-root", &format!("{root:?} is no path")),
            }
        }
        if let Some(aliases) = self.take("server-alias") {
            let (good, is_whole) = read_aliases(aliases);
            if !is_whole {
                let reason = format!(
                    "of {aliases:?} only the first {MAX_ALIASES} host names, without regular expressions, are served"
                );
                self.treatment
                    .ignored
                    .push(format!("server-alias: {reason}"));
            }
            self.treatment.aliases = good;
        }
    }

    fn read_redirects(&mut self) {
        self.treatment.ssl_redirect = self.take_switch("ssl-redirect");
        let force = self.take_switch("force-ssl-redirect");
        self.treatment.force_ssl_redirect = force.unwrap_or(false);
        for (name, usual) in [("permanent-redirect", 301), ("temporal-redirect", 302)] {
            let code_name = format!("{name}-code");
            let code = self.take(&code_name);
            let Some(address) = self.take(name) else {
                continue;
            };
            let read = code.map(|code| {
                code.parse::<u16>()
                    .ok()
                    .filter(|of| (301..=308).contains(of))
            });
            if let Some(None) = read {
                self.ignore(&code_name, "it is none of 301 to 308");
            }
            // Without the redirect members would get requests that they must not get.
            match is_location(address) {
                true => {
                    let status = read.flatten().unwrap_or(usual);
                    self.treatment
                        .redirect
                        .get_or_insert((address.into(), status));
                }
                false => {
                    let told =
                        format!("{name}: {address:?} is no address without variables; write one");
                    self.treatment.closed.push(told);
                }
            }
        }
    }

    fn read_times(&mut self) {
        for (name, keys, most) in [
            ("proxy-connect-timeout", &["connection_timeout"][..], 600),
            (
                "proxy-read-timeout",
                &["response_timeout", "idle_timeout"],
                86_400,
            ),
            ("proxy-send-timeout", &["body_timeout"], 86_400),
        ] {
            let Some(value) = self.take(name) else {
                continue;
            };
            match read_seconds(value) {
                Some(seconds) => {
                    let seconds = seconds.clamp(1, most);
                    let lines = keys.iter().map(|key| format!("{key} = \"{seconds}s\""));
                    self.treatment.lines.extend(lines);
                }
                None => self.ignore(name, &format!("{value:?} is no number of seconds")),
            }
        }
    }

    fn read_cors(&mut self) {
        let is_on = self.take_switch("enable-cors") == Some(true);
        let mut list = |name: &str, usual: &str| -> Vec<String> {
            read_list(self.values.remove(name).unwrap_or(usual))
        };
        let origins = list("cors-allow-origin", "*");
        let methods = list(
            "cors-allow-methods",
            "GET, PUT, POST, DELETE, PATCH, OPTIONS",
        );
        let usual = "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization";
        let fields = list("cors-allow-headers", usual);
        let exposed = list("cors-expose-headers", "");
        let credentials = self.take_switch("cors-allow-credentials").unwrap_or(true);
        let age = self.take("cors-max-age").and_then(read_seconds);
        if !is_on {
            return;
        }
        let is_any = origins.iter().any(|origin| origin == "*");
        let mut parts = Vec::new();
        for (key, list) in [
            ("allow_origins", &origins),
            ("allow_methods", &methods),
            ("allow_headers", &fields),
            ("expose_headers", &exposed),
        ] {
            if !list.is_empty() {
                parts.push(format!(
                    "{key} = {}",
                    quote_list(list.iter().map(String::as_str))
                ));
            }
        }
        // With all origins, browsers refuse credentials of ingress-nginx, too.
        if credentials && !is_any {
            parts.push("allow_credentials = true".into());
        }
        let age = age.unwrap_or(1_728_000).min(86_400);
        parts.push(format!("max_age = \"{age}s\""));
        self.treatment
            .lines
            .push(format!("cors = {{ {} }}", parts.join(", ")));
    }

    /// Reads the annotations that nothing has read.
    fn read_rest(&mut self) {
        for (name, value) in std::mem::take(&mut self.values) {
            let is_off = matches!(value, "" | "false" | "off" | "0");
            if is_off {
                continue;
            }
            if name.ends_with("-snippet") {
                self.close(name, "snippets are never executed; remove the annotation if nobody needs what it restricts");
            } else if may_restrict(name) {
                self.close(
                    name,
                    "it is not supported; remove the annotation if nobody needs what it restricts",
                );
            } else {
                self.ignore(name, "it is not supported");
            }
        }
    }
}

/// True if a text can be an address of a redirect, or a path, without variables.
fn is_location(text: &str) -> bool {
    is_number(text.len(), 1..=2_048)
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"$\"\\".contains(&byte))
}
