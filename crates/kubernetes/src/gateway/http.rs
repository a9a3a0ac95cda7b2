//! Rules of HTTPRoute: conditions, filters and targets become routes of the configuration.

use std::cmp::Reverse;

use super::backends::{Binding, Groups, NOBODY, Referrer, read_duration};
use super::conditions::Refusal;
use super::field_edits::FieldEdits;
use super::grpc::NO_SERVICE;
use super::objects::{
    Cors, Filter, HeaderModifier, HttpMatch, HttpRule, Kind, PathChange, Redirect, ValueMatch,
};
use super::text::{is_host, quote, quote_list, quote_table};

/// Longest time limit of the configuration, in milliseconds.
const DAY: u64 = 86_400_000;

/// Longest time until an engine of a pool begins its answer, in milliseconds, if the route has no limit: without streams
/// the answer begins when all tokens are there.
const ENGINE_TIMEOUT: u64 = 600_000;

/// Precedence of conditions: the smallest first. Exact paths come before prefixes, long prefixes before short ones,
/// then a condition on the method, then the number of conditions on fields, then on parameters.
pub(crate) type MatchRank = (bool, Reverse<usize>, bool, Reverse<usize>, Reverse<usize>);

/// Conditions of a route in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conditions {
    /// Precedence of the conditions.
    pub(crate) rank: MatchRank,
    /// Lines of the conditions; none for all requests.
    pub(crate) lines: Vec<String>,
    /// True if the path is a prefix.
    is_prefix: bool,
    /// True if the path is the prefix of all paths, of which the lines have none.
    is_root: bool,
}

/// Translated rule of a route.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleText {
    /// Conditions, of which one must hold.
    pub(crate) conditions: Vec<Conditions>,
    /// Lines of the actions, but for a redirect.
    lines: Vec<String>,
    redirect: Option<Redirect>,
    /// True if the path is rewritten for members.
    rewrites: bool,
    /// True if the prefix of the path is rewritten.
    rewrites_prefix: bool,
    /// Reason why some targets cannot be used.
    pub(crate) references: Option<Refusal>,
    /// Names of the groups of the targets.
    pub(crate) groups: Vec<String>,
}

/// Escapes braces, so that a brace of the configuration's text is a brace.
fn escape(text: &str) -> String {
    text.replace('{', "{{")
}

/// Writes the conditions on fields or parameters; of several of one name the first counts.
fn read_values(matches: &[ValueMatch], ignores_case: bool) -> Result<Vec<(&str, String)>, String> {
    let mut values: Vec<(&str, String)> = Vec::new();
    for of in matches {
        let kind = of.kind.as_deref().unwrap_or("Exact");
        let name = &of.name;
        if kind != "Exact" {
            return Err(format!("{kind} for {name:?} is not supported; use Exact"));
        }
        let value = of.value.as_deref().unwrap_or_default();
        // The configuration takes such a text for the beginning of a value.
        if value.ends_with('*') {
            return Err(format!(
                "a value that ends in * is not supported for {name:?}"
            ));
        }
        let is_same = |known: &str| match ignores_case {
            true => known.eq_ignore_ascii_case(name),
            false => known == name,
        };
        if !values.iter().any(|(known, _)| is_same(known)) {
            values.push((name, quote(value)));
        }
    }
    Ok(values)
}

impl Conditions {
    /// Reads the conditions of a match.
    ///
    /// # Errors
    ///
    /// The reason why a condition is not supported.
    pub(crate) fn read(of: &HttpMatch) -> Result<Self, String> {
        let mut lines = Vec::new();
        let path = of.path.as_ref();
        let kind = path.and_then(|path| path.kind.as_deref());
        let value = path.and_then(|path| path.value.as_deref()).unwrap_or("/");
        let (is_prefix, length) = match kind.unwrap_or("PathPrefix") {
            // The configuration takes such a path for a prefix.
            "Exact" if value.ends_with("/*") => {
                return Err(format!(
                    "an exact path that ends in /* is not supported: {value:?}"
                ));
            }
            "Exact" => {
                lines.push(format!("path = [{}]", quote(value)));
                (false, value.len())
            }
            "PathPrefix" => {
                let prefix = value.trim_end_matches('/');
                if !prefix.is_empty() {
                    lines.push(format!("path = [{}]", quote(&format!("{prefix}/*"))));
                }
                (true, prefix.len())
            }
            NO_SERVICE => {
                return Err("a method without a service is not supported; name the service".into());
            }
            kind => {
                return Err(format!(
                    "type {kind} is not supported for paths and methods; use Exact, or PathPrefix for paths"
                ));
            }
        };
        if let Some(method) = &of.method {
            lines.push(format!("method = [{}]", quote(method)));
        }
        let headers = read_values(&of.headers, true)?;
        let query = read_values(&of.query_params, false)?;
        let counts = (Reverse(headers.len()), Reverse(query.len()));
        for (key, values) in [("headers", headers), ("query", query)] {
            if !values.is_empty() {
                lines.push(format!("{key} = {}", quote_table(values)));
            }
        }
        Ok(Conditions {
            rank: (
                is_prefix,
                Reverse(length),
                of.method.is_none(),
                counts.0,
                counts.1,
            ),
            lines,
            is_prefix,
            is_root: is_prefix && length == 0,
        })
    }
}

/// Writes changes of fields. `host` is a host name for requests to members.
fn write_changes(changes: &HeaderModifier, host: Option<&str>) -> Option<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut table = |key: &str, fields: Vec<(&str, &str)>| {
        let mut once: Vec<(&str, String)> = Vec::new();
        for (name, value) in fields {
            let mut known = once.iter();
            if !known.any(|(known, _)| known.eq_ignore_ascii_case(name)) {
                once.push((name, quote(&escape(value))));
            }
        }
        if !once.is_empty() {
            parts.push(format!("{key} = {}", quote_table(once)));
        }
    };
    let set = changes.set.iter();
    let set = set.map(|of| (of.name.as_str(), of.value.as_str()));
    let host = host.map(|host| ("Host", host));
    table("set", host.into_iter().chain(set).collect());
    let add = changes.add.iter();
    let add = add.map(|of| (of.name.as_str(), of.value.as_str()));
    table("add", add.collect());
    if !changes.remove.is_empty() {
        let names = changes.remove.iter().map(String::as_str);
        parts.push(format!("remove = {}", quote_list(names)));
    }
    (!parts.is_empty()).then(|| format!("{{ {} }}", parts.join(", ")))
}

/// Writes the permissions for pages of other origins.
fn write_cors(cors: &Cors) -> String {
    let mut parts = Vec::new();
    for (key, list) in [
        ("allow_origins", &cors.allow_origins),
        ("allow_methods", &cors.allow_methods),
        ("allow_headers", &cors.allow_headers),
        ("expose_headers", &cors.expose_headers),
    ] {
        if !list.is_empty() {
            let names = list.iter().map(String::as_str);
            parts.push(format!("{key} = {}", quote_list(names)));
        }
    }
    if cors.allow_credentials == Some(true) {
        parts.push("allow_credentials = true".into());
    }
    // The specification's default.
    parts.push(format!("max_age = \"{}s\"", cors.max_age.unwrap_or(5)));
    format!("{{ {} }}", parts.join(", "))
}

/// Returns the new prefix of a path; `None` if the whole path is replaced.
fn read_prefix(change: &PathChange) -> Result<Option<&str>, String> {
    match change.kind.as_str() {
        "ReplacePrefixMatch" => Ok(Some(change.replace_prefix_match.as_deref().unwrap_or("/"))),
        "ReplaceFullPath" => Ok(None),
        kind => Err(format!("a change of paths of type {kind} is not supported")),
    }
}

/// Writes a prefix as the configuration wants one.
fn write_prefix(prefix: &str) -> String {
    let plain = prefix.trim_end_matches('/');
    let plain = if plain.is_empty() { "/" } else { plain };
    format!("rewrite_prefix = {}", quote(plain))
}

impl RuleText {
    /// Translates a rule.
    ///
    /// # Errors
    ///
    /// The reason why the rule cannot be served: something in it is not supported.
    pub(crate) fn read(
        rule: &HttpRule,
        referrer: Referrer<'_>,
        groups: &mut Groups,
    ) -> Result<Self, String> {
        let mut text = RuleText::default();
        let any = [HttpMatch::default()];
        let matches: &[HttpMatch] = match rule.matches.is_empty() {
            true => &any,
            false => &rule.matches,
        };
        for of in matches {
            text.conditions.push(Conditions::read(of)?);
        }
        let mut edits = FieldEdits::default();
        for filter in rule.filters.iter() {
            text.read_filter(filter, referrer, groups, &mut edits)?;
        }
        if text.redirect.is_none() {
            edits.add_filters(&rule.backend_refs)?;
        }
        let changes = write_changes(&edits.response, None);
        let changes = changes.map(|changes| format!("response_fields = {changes}"));
        text.lines.extend(changes);
        if text.redirect.is_some() {
            if edits.host.is_some() || text.rewrites {
                let message = "RequestRedirect and URLRewrite exclude each other; remove a filter";
                return Err(message.into());
            }
            text.read_redirect_path()?;
            return text.check_prefix();
        }
        let changes = write_changes(&edits.request, edits.host.as_deref());
        let binding = rule.session_persistence.as_ref();
        let binding = binding.map(Binding::read).transpose()?;
        let (targets, references) =
            referrer.find_groups(&rule.backend_refs, binding.as_ref(), groups);
        text.references = text.references.take().or(references);
        text.groups = targets.iter().map(|(group, _)| group.clone()).collect();
        if targets.is_empty() {
            // A route that answers by itself has no other actions.
            text.rewrites_prefix = false;
            let kept = ["response_fields", "cors"];
            text.lines
                .retain(|line| kept.iter().any(|key| line.starts_with(key)));
            // Calls fail with UNAVAILABLE, as the specification demands.
            let status = if referrer.kind == Kind::GrpcRoute {
                503
            } else {
                500
            };
            text.lines.push(format!("answer = {{ status = {status} }}"));
            return Ok(text);
        }
        let changes = changes.map(|changes| format!("request_fields = {changes}"));
        text.lines.extend(changes);
        text.lines.push(match targets.as_slice() {
            [(group, _)] => format!("group = {}", quote(group)),
            several => {
                let weights = several.iter();
                let weights = weights.map(|(group, weight)| (group.as_str(), weight.to_string()));
                format!("groups = {}", quote_table(weights))
            }
        });
        let has_engines = text.groups.iter().any(|name| groups.is_pool(name));
        text.read_limits(rule, has_engines)?;
        text.check_prefix()
    }

    fn read_filter(
        &mut self,
        filter: &Filter,
        referrer: Referrer<'_>,
        groups: &mut Groups,
        edits: &mut FieldEdits,
    ) -> Result<(), String> {
        match filter.kind.as_str() {
            "RequestHeaderModifier" => {
                edits.request = filter.request_header_modifier.clone().unwrap_or_default();
            }
            "ResponseHeaderModifier" => {
                edits.response = filter.response_header_modifier.clone().unwrap_or_default();
            }
            "RequestRedirect" => {
                self.redirect = Some(filter.request_redirect.clone().unwrap_or_default());
            }
            "URLRewrite" => {
                let rewrite = filter.url_rewrite.clone().unwrap_or_default();
                edits.host = rewrite.hostname;
                if let Some(wrong) = edits.host.as_deref().filter(|host| !is_host(host)) {
                    return Err(format!("hostname {wrong:?} is no host name; change it"));
                }
                if let Some(path) = &rewrite.path {
                    self.rewrites = true;
                    let line = match read_prefix(path)? {
                        Some(prefix) => {
                            self.rewrites_prefix = true;
                            write_prefix(prefix)
                        }
                        None => {
                            let path = path.replace_full_path.as_deref();
                            format!("rewrite_path = {}", quote(path.unwrap_or("/")))
                        }
                    };
                    self.lines.push(line);
                }
            }
            "RequestMirror" => self.read_mirror(filter, referrer, groups)?,
            "CORS" => {
                let cors = filter.cors.clone().unwrap_or_default();
                self.lines.push(format!("cors = {}", write_cors(&cors)));
            }
            kind => {
                return Err(format!(
                    "a filter of type {kind} is not supported; remove the filter"
                ));
            }
        }
        Ok(())
    }

    fn read_mirror(
        &mut self,
        filter: &Filter,
        referrer: Referrer<'_>,
        groups: &mut Groups,
    ) -> Result<(), String> {
        if self.lines.iter().any(|line| line.starts_with("mirror")) {
            return Err("more than one RequestMirror is not supported; remove a filter".into());
        }
        let mirror = filter.request_mirror.clone().unwrap_or_default();
        let percent = match (&mirror.percent, &mirror.fraction) {
            (Some(percent), _) => f64::from(*percent),
            (None, Some(of)) => {
                let all = of.denominator.unwrap_or(100).max(1);
                f64::from(of.numerator) * 100.0 / f64::from(all)
            }
            (None, None) => 100.0,
        };
        match referrer.find_group(&mirror.backend_ref, None, groups) {
            // Certificates of the members cannot be verified.
            Ok(group) if group == NOBODY => {}
            Ok(group) => self.lines.push(format!(
                "mirror = {{ group = {}, percent = {:?} }}",
                quote(&group),
                percent.clamp(0.0, 100.0)
            )),
            Err(refusal) => self.references = Some(refusal),
        }
        Ok(())
    }

    fn read_limits(&mut self, rule: &HttpRule, has_engines: bool) -> Result<(), String> {
        let timeouts = rule.timeouts.clone().unwrap_or_default();
        let mut shortest: Option<u64> = None;
        let limits = [timeouts.request, timeouts.backend_request];
        for limit in limits.into_iter().flatten() {
            let millis = match read_duration(&limit)? {
                0 => DAY,
                millis => millis.min(DAY),
            };
            shortest = Some(shortest.map_or(millis, |known| known.min(millis)));
        }
        let shortest = shortest.or(has_engines.then_some(ENGINE_TIMEOUT));
        let limit = shortest.map(|millis| format!("response_timeout = \"{millis}ms\""));
        self.lines.extend(limit);
        let Some(retry) = &rule.retry else {
            return Ok(());
        };
        if retry.backoff.is_some() {
            return Err("backoff of retries is not supported; remove it".into());
        }
        let attempts = retry.attempts.map(|attempts| attempts.min(10));
        let attempts = attempts.map(|attempts| format!("retries = {attempts}"));
        self.lines.extend(attempts);
        if !retry.codes.is_empty() {
            let codes: Vec<String> = retry.codes.iter().map(u16::to_string).collect();
            let codes = codes.join(", ");
            self.lines.push(format!("retry_statuses = [{codes}]"));
        }
        Ok(())
    }

    /// Reads the change of the path of a redirect.
    fn read_redirect_path(&mut self) -> Result<(), String> {
        let path = self.redirect.as_ref().and_then(|of| of.path.as_ref());
        if let Some(prefix) = path.map(read_prefix).transpose()?.flatten() {
            let line = write_prefix(prefix);
            self.lines.push(line);
            self.rewrites_prefix = true;
        }
        self.lines.retain(|line| !line.starts_with("mirror"));
        Ok(())
    }

    /// Checks that a prefix which is rewritten is the condition on the path, and puts the condition there.
    fn check_prefix(mut self) -> Result<Self, String> {
        if self.rewrites_prefix {
            for of in &mut self.conditions {
                if !of.is_prefix {
                    let message =
                        "ReplacePrefixMatch needs a path of type PathPrefix in each match";
                    return Err(message.into());
                }
                if of.is_root {
                    of.lines.insert(0, "path = [\"/*\"]".into());
                }
            }
        }
        Ok(self)
    }

    /// Returns the lines of the actions at a listener with this scheme and port.
    pub(crate) fn actions(&self, scheme: &str, port: u16) -> Vec<String> {
        let mut lines = self.lines.clone();
        let Some(redirect) = &self.redirect else {
            return lines;
        };
        let to_scheme = redirect.scheme.as_deref().unwrap_or(scheme);
        let usual = if to_scheme == "https" { 443 } else { 80 };
        let to_port = redirect.port.unwrap_or(match redirect.scheme {
            Some(_) => usual,
            None => port,
        });
        let host = redirect.hostname.as_deref();
        let host = host.map_or_else(|| "{host}".into(), escape);
        let port = match to_port == usual {
            true => String::new(),
            false => format!(":{to_port}"),
        };
        let path = redirect.path.as_ref();
        let path = path.and_then(|path| path.replace_full_path.as_deref());
        let path = path.map_or_else(|| "{path}".into(), escape);
        let location = format!("{to_scheme}://{host}{port}{path}{{query}}");
        lines.push(format!("redirect = {}", quote(&location)));
        let status = redirect.status_code.unwrap_or(302);
        lines.push(format!("redirect_status = {status}"));
        lines
    }
}
