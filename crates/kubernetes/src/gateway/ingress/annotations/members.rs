//! Annotations about members: protocol, strategy, binding of clients, and canaries.

use std::net::IpAddr;

use super::super::super::text::{is_exact_host, quote};
use super::super::values::{is_number, read_seconds};
use super::{Affinity, Canary, Reader, is_location};

impl Reader<'_> {
    pub(super) fn read_members(&mut self) {
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
        let mut name = self.take("proxy-ssl-name");
        if let Some(wrong) = name.take_if(|name| !is_exact_host(name)) {
            self.ignore("proxy-ssl-name", &format!("{wrong:?} is no host name"));
        }
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
            match is_exact_host(host) || host.parse::<IpAddr>().is_ok() {
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

    pub(super) fn read_affinity(&mut self) {
        let kind = self.take("affinity");
        let name = self.take("session-cookie-name");
        let age = self.take("session-cookie-max-age");
        let age = age.or(self.values.get("session-cookie-expires").copied());
        self.take("session-cookie-expires");
        let path = self.take("session-cookie-path");
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
        let is_path = |path: &&str| {
            let is_short = path.len() <= 256 && path.starts_with('/');
            is_short && is_location(path) && !path.contains(';')
        };
        match path.filter(is_path) {
            Some("/") => {}
            Some(path) => keys.push(format!("cookie_path = {}", quote(path))),
            None if path.is_some() => {
                self.ignore("session-cookie-path", "it is no path without variables");
            }
            None => {}
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

    pub(super) fn read_canary(&mut self) {
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
}

/// True if a text can be the name of a field or a cookie.
fn is_field(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    is_number(text.len(), 1..=128) && text.bytes().all(is_inner)
}
