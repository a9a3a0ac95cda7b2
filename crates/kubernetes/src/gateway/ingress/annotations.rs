//! Annotations of ingress-nginx: how the requests of an Ingress are served.
//!
//! An annotation that restricts access and cannot be used closes the paths of the Ingress. Other annotations that cannot be
//! used are told, and have no effect.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::super::ingress_spec::PREFIX;
use super::super::text::{is_host, quote, quote_list};
use super::values::{
    LoginService, is_number, read_list, read_login_url, read_networks, read_seconds, read_size,
    read_switch,
};

/// Most further host names of an Ingress.
const MAX_ALIASES: usize = 16;

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

/// Treatment of the requests of an Ingress.
#[derive(Clone, Debug, Default)]
pub(crate) struct Treatment {
    /// Reasons why the paths of the Ingress answer 503.
    pub(crate) closed: Vec<String>,
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
    /// Login service to ask about requests.
    pub(crate) login: Option<LoginService>,
    /// Fields that members get from the login service.
    pub(crate) login_fields: Vec<String>,
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

    /// Reads who may send requests: as a login service decides. Passwords are not supported.
    fn read_login(&mut self) {
        if let Some(kind) = self.take("auth-type") {
            for name in ["auth-secret", "auth-secret-type", "auth-realm"] {
                self.take(name);
            }
            let reason = format!(
                "authentication of type {kind:?} is not supported for Ingresses; use auth-url, or a rule with users_file \
                 in the balancer's file"
            );
            self.close("auth-type", &reason);
        }
        let fields = self.take("auth-response-headers").unwrap_or_default();
        if let Some(url) = self.take("auth-url") {
            self.treatment.restricts = true;
            match read_login_url(url) {
                Ok(login) => self.treatment.login = Some(login),
                Err(reason) => self.close("auth-url", &reason),
            }
            self.treatment.login_fields = read_list(fields);
            // Nobody gets in without the answer that lets the request pass.
            for name in [
                "auth-signin",
                "auth-signin-redirect-param",
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

    /// Reads limits of requests. A limit that cannot be read closes the paths.
    fn read_limits(&mut self) {
        let mut limits = Vec::new();
        let burst = self.take("limit-burst-multiplier");
        let burst: u32 = burst.and_then(|of| of.parse().ok()).unwrap_or(5);
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
                "{{ name = {}, requests = \"{count}/{unit}\", burst = {}, status = 503",
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
            let reason = "connections are limited by rule, not by path; use limit-rps";
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
            let (good, wrong): (Vec<_>, Vec<_>) =
                read_list(aliases).into_iter().partition(|of| is_host(of));
            if !wrong.is_empty() || good.len() > MAX_ALIASES {
                let reason = format!(
                    "of {aliases:?} only the first {MAX_ALIASES} host names, without regular expressions, are served"
                );
                self.treatment
                    .ignored
                    .push(format!("server-alias: {reason}"));
            }
            self.treatment.aliases = good.into_iter().take(MAX_ALIASES).collect();
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

    fn read_members(&mut self) {
        let protocol = self
            .take("backend-protocol")
            .unwrap_or("HTTP")
            .to_ascii_uppercase();
        let (is_tls, is_http2) = match protocol.as_str() {
            "" | "HTTP" | "AUTO_HTTP" => (false, false),
            "HTTPS" => (true, false),
            "GRPC" => (false, true),
            "GRPCS" => (true, true),
            other => {
                let told = format!(
                    "backend-protocol {other} is not supported; use HTTP, HTTPS, GRPC or GRPCS"
                );
                self.treatment.closed.push(told);
                (false, false)
            }
        };
        let verifies = matches!(self.take("proxy-ssl-verify"), Some("on" | "true"));
        let name = self.take("proxy-ssl-name").filter(|name| is_host(name));
        if is_tls {
            let mut keys = vec![format!("verify = {verifies}")];
            keys.extend(name.map(|name| format!("server_name = {}", quote(name))));
            let line = format!("member_tls = {{ {} }}", keys.join(", "));
            self.treatment.group_lines.push(line);
        }
        if is_http2 {
            self.treatment
                .group_lines
                .push("member_protocol = \"h2\"".into());
        }
        if let Some(host) = self.take("upstream-vhost") {
            match is_host(host) || host.parse::<IpAddr>().is_ok() {
                true => self.treatment.set_fields.push(("Host", host.into())),
                false => self.ignore("upstream-vhost", &format!("{host:?} is no host name")),
            }
        }
        if let Some(prefix) = self.take("x-forwarded-prefix") {
            match is_location(prefix) {
                true => self
                    .treatment
                    .set_fields
                    .push(("X-Forwarded-Prefix", prefix.into())),
                false => self.ignore("x-forwarded-prefix", &format!("{prefix:?} is no path")),
            }
        }
        self.read_strategy();
    }

    fn read_strategy(&mut self) {
        let strategy = match self.take("load-balance") {
            None => None,
            Some("round_robin") => Some("round_robin"),
            Some("ewma") => Some("peak_ewma"),
            Some(other) => {
                self.ignore("load-balance", &format!("{other:?} is no known strategy"));
                None
            }
        };
        let hash = self.take("upstream-hash-by");
        for name in ["upstream-hash-by-subset", "upstream-hash-by-subset-size"] {
            self.take(name);
        }
        let key = hash.and_then(|variable| match variable.trim_matches(['{', '}']) {
            "$request_uri" => Some("uri".to_owned()),
            "$uri" | "$document_uri" => Some("path".into()),
            "$remote_addr" | "$binary_remote_addr" => Some("client".into()),
            "$host" | "$http_host" => Some("header:Host".into()),
            other => {
                let is_name = |name: &&str| {
                    !name.is_empty()
                        && name
                            .bytes()
                            .all(|of| of.is_ascii_alphanumeric() || of == b'_')
                };
                let header = other.strip_prefix("$http_").filter(is_name);
                let cookie = other.strip_prefix("$cookie_").filter(is_name);
                let header = header.map(|name| format!("header:{}", name.replace('_', "-")));
                header.or_else(|| cookie.map(|name| format!("cookie:{name}")))
            }
        });
        match (hash, key, strategy) {
            (Some(_), Some(key), _) => {
                let lines = [
                    "strategy = \"hash\"".to_owned(),
                    format!("hash_key = {}", quote(&key)),
                ];
                self.treatment.group_lines.extend(lines);
            }
            (Some(variable), None, _) => {
                let reason = format!("{variable:?} is none of the variables that are known");
                self.ignore("upstream-hash-by", &reason);
            }
            (None, _, Some(strategy)) => {
                self.treatment
                    .group_lines
                    .push(format!("strategy = {}", quote(strategy)));
            }
            (None, _, None) => {}
        }
    }

    fn read_affinity(&mut self) {
        let kind = self.take("affinity");
        let name = self.take("session-cookie-name");
        let age = self.take("session-cookie-max-age");
        let age = age.or(self.values.get("session-cookie-expires").copied());
        self.take("session-cookie-expires");
        let path = self.take("session-cookie-path").unwrap_or("/");
        let same_site = self.take("session-cookie-samesite");
        let secure = self.take_switch("session-cookie-secure") == Some(true);
        let mode = self.take("affinity-mode");
        for name in [
            "affinity-canary-behavior",
            "session-cookie-change-on-failure",
            "session-cookie-conditional-samesite-none",
        ] {
            self.take(name);
        }
        match kind {
            None => return,
            Some("cookie") => {}
            Some(other) => {
                return self.ignore(
                    "affinity",
                    &format!("{other:?} is not supported; use cookie"),
                );
            }
        }
        if path != "/" {
            self.ignore("session-cookie-path", "the cookie holds for all paths");
        }
        if mode.is_some_and(|mode| mode != "balanced" && mode != "persistent") {
            self.ignore("affinity-mode", "clients stay at their members");
        }
        let mut keys = Vec::new();
        if let Some(age) = age {
            match read_seconds(age).filter(|age| *age > 0) {
                Some(age) => keys.push(format!("max_age = \"{}s\"", age.min(400 * 86_400))),
                None => self.ignore(
                    "session-cookie-max-age",
                    &format!("{age:?} is no number of seconds"),
                ),
            }
        }
        match same_site.map(str::to_ascii_lowercase).as_deref() {
            None => {}
            Some(known @ ("strict" | "lax" | "none")) => {
                keys.push(format!("same_site = {}", quote(known)))
            }
            Some(_) => self.ignore("session-cookie-samesite", "use Strict, Lax or None"),
        }
        if secure {
            keys.push("secure = true".into());
        }
        let is_name = |name: &&str| {
            (1..=64).contains(&name.len())
                && name
                    .bytes()
                    .all(|of| of.is_ascii_alphanumeric() || b"-_.".contains(&of))
        };
        let cookie = name.filter(is_name).map(str::to_owned);
        if cookie.is_none() && name.is_some() {
            self.ignore("session-cookie-name", "the text is no name of a cookie");
        }
        self.treatment.affinity = Some(Affinity { cookie, keys });
    }

    fn read_canary(&mut self) {
        let is_on = self.take_switch("canary") == Some(true);
        let mut number = |name: &str, usual: u32| {
            let value = self.values.remove(name);
            value.map_or(Ok(usual), |value| {
                value.parse::<u32>().map_err(|_| name.to_owned())
            })
        };
        let weight = number("canary-weight", 0);
        let total = number("canary-weight-total", 100);
        let header = self.take("canary-by-header").map(str::to_owned);
        let value = self.take("canary-by-header-value").map(str::to_owned);
        let cookie = self.take("canary-by-cookie").map(str::to_owned);
        if let Some(pattern) = self.take("canary-by-header-pattern") {
            self.ignore(
                "canary-by-header-pattern",
                &format!("{pattern:?}: use canary-by-header-value"),
            );
        }
        if !is_on {
            return;
        }
        for wrong in [&weight, &total]
            .into_iter()
            .filter_map(|of| of.as_ref().err())
        {
            let told = format!("{wrong} has no effect: the text is no number");
            self.treatment.ignored.push(told);
        }
        let total = total.unwrap_or(100).clamp(1, 1_000_000);
        self.treatment.canary = Some(Canary {
            weight: weight.unwrap_or(0).min(total),
            total,
            header: header.filter(|name| is_field(name)),
            value: value.filter(|value| !value.ends_with('*')),
            cookie: cookie.filter(|name| is_field(name)),
        });
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

/// True if a text can be the name of a field or a cookie.
fn is_field(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    is_number(text.len(), 1..=128) && text.bytes().all(is_inner)
}
