//! Rules of HTTPRoute: conditions, filters and targets become routes of the configuration.

use std::cmp::Reverse;

use evenkeel_config::routing::value_regex::escape_regex;

use super::backends::{Binding, Groups, Referrer, read_duration};
use super::expressions::check_regex;
use super::filters::{FilterText, escape, write_changes};
use super::grpc::BAD_METHOD;
use super::objects::{HttpMatch, HttpRule, Kind, Retry, ValueMatch};
use super::route_policies::{RouteTargets, list_route_lines, sets_route_key};
use super::target_filters::{GroupActions, read_target_filters};
use super::text::{quote, quote_table};

/// Longest time limit of the configuration, in milliseconds.
const DAY: u64 = 86_400_000;

/// Longest time until an engine of a pool begins its answer, in milliseconds, if the route has no limit: without streams
/// the answer begins when all tokens are there.
const ENGINE_TIMEOUT: u64 = 600_000;

/// Most retries of the configuration.
const MOST_RETRIES: u32 = 10;

/// Longest pause before a retry of the configuration, in milliseconds.
const LONGEST_BACKOFF: u64 = 60_000;

/// Most regular expressions of a route or an Ingress, each of which may take memory of 128 KiB.
pub(crate) const MAX_EXPRESSIONS: usize = 64;

/// Returns the number of regular expressions of a rule.
pub(crate) fn count_expressions(rule: &HttpRule) -> usize {
    let values = rule.matches.iter().flat_map(|of| {
        let values = of.headers.iter().chain(of.query_params.iter());
        values.chain(&of.path)
    });
    let is_expression = |of: &&ValueMatch| of.kind.as_deref() == Some("RegularExpression");
    values.filter(is_expression).count()
}

/// Kind of a condition on paths, in the order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PathKind {
    Exact,
    Regex,
    Prefix,
}

/// Precedence of conditions: the smallest first. Exact paths come before regular expressions, and these before prefixes,
/// long ones before short ones, then a condition on the method, then the number of conditions on fields, then on parameters.
pub(crate) type MatchRank = (
    PathKind,
    Reverse<usize>,
    bool,
    Reverse<usize>,
    Reverse<usize>,
);

/// Conditions of a route in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conditions {
    /// Precedence of the conditions.
    pub(crate) rank: MatchRank,
    /// Lines of the conditions; none for all requests.
    pub(crate) lines: Vec<String>,
    /// True if the path is the prefix of all paths, of which the lines have none.
    is_root: bool,
}

/// Translated rule of a route.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleText {
    /// Conditions, of which one must hold.
    pub(crate) conditions: Vec<Conditions>,
    /// Actions, but for a redirect.
    pub(crate) actions: FilterText,
    /// Names of the groups of the targets.
    pub(crate) groups: Vec<String>,
}

/// Writes the conditions on fields or parameters; of several of one name the first counts.
fn read_values(matches: &[ValueMatch], ignores_case: bool) -> Result<Vec<(&str, String)>, String> {
    let mut values: Vec<(&str, String)> = Vec::new();
    for of in matches {
        let name = &of.name;
        let value = of.value.as_deref().unwrap_or_default();
        let text = match of.kind.as_deref().unwrap_or("Exact") {
            // The configuration takes such a text for the beginning of a value.
            "Exact" if value.ends_with('*') => write_regex(&escape_regex(value)),
            "Exact" => quote(value),
            "RegularExpression" => {
                check_regex(value).map_err(|error| format!("the value of {name:?}: {error}"))?;
                write_regex(value)
            }
            kind => {
                return Err(format!(
                    "{kind} for {name:?} is not supported; use Exact or RegularExpression"
                ));
            }
        };
        let is_same = |known: &str| match ignores_case {
            true => known.eq_ignore_ascii_case(name),
            false => known == name,
        };
        if !values.iter().any(|(known, _)| is_same(known)) {
            values.push((name, text));
        }
    }
    Ok(values)
}

/// Writes the condition that a value matches a regular expression.
fn write_regex(text: &str) -> String {
    format!("{{ regex = {} }}", quote(text))
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
        let write_path_regex = |text: &str| format!("path_regex = [{}]", quote(text));
        let (path_kind, length) = match kind.unwrap_or("PathPrefix") {
            "Exact" => {
                lines.push(match value.ends_with("/*") {
                    // The configuration takes such a path for a prefix.
                    true => write_path_regex(&escape_regex(value)),
                    false => format!("path = [{}]", quote(value)),
                });
                (PathKind::Exact, value.len())
            }
            "PathPrefix" => {
                let prefix = value.trim_end_matches('/');
                if !prefix.is_empty() {
                    lines.push(format!("path = [{}]", quote(&format!("{prefix}/*"))));
                }
                (PathKind::Prefix, prefix.len())
            }
            "RegularExpression" => {
                check_regex(value).map_err(|error| format!("the path {value:?}: {error}"))?;
                lines.push(write_path_regex(value));
                (PathKind::Regex, value.len())
            }
            BAD_METHOD => return Err(format!("the method {value}")),
            kind => {
                return Err(format!(
                    "type {kind} is not supported for paths and methods; use Exact or RegularExpression, or PathPrefix \
                     for paths"
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
                path_kind,
                Reverse(length),
                of.method.is_none(),
                counts.0,
                counts.1,
            ),
            lines,
            is_root: path_kind == PathKind::Prefix && length == 0,
        })
    }
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
        text.actions = FilterText::read(&rule.filters, referrer, groups)?;
        if text.actions.redirect.is_none()
            && let [only] = &*rule.backend_refs
        {
            let own = read_target_filters(&only.filters, referrer, groups)?;
            text.actions.add_actions(own)?;
        }
        let changes = write_changes(&text.actions.edits.response, None);
        let changes = changes.map(|changes| format!("response_fields = {changes}"));
        text.actions.lines.extend(changes);
        if text.actions.redirect.is_some() {
            if text.actions.edits.host.is_some() || text.actions.rewrites {
                let message = "RequestRedirect and URLRewrite exclude each other; remove a filter";
                return Err(message.into());
            }
            text.actions.read_redirect_path()?;
            text.add_policies(referrer, RouteTargets::Nobody);
            return text.check_prefix();
        }
        let edits = &text.actions.edits;
        let changes = write_changes(&edits.request, edits.host.as_deref());
        let binding = rule.session_persistence.as_ref();
        let binding = binding.map(Binding::read).transpose()?;
        let mut found = referrer.find_groups(&rule.backend_refs, binding.as_ref(), groups);
        let actions = match &*rule.backend_refs {
            [_] => GroupActions::default(),
            several => {
                GroupActions::read(several, &mut found, referrer, groups, &mut text.actions)?
            }
        };
        text.actions.references = text.actions.references.take().or(found.refusal.take());
        let targets = found.sum_weights(groups);
        text.groups = targets.iter().map(|(group, _)| group.clone()).collect();
        if targets.is_empty() {
            // A route that answers by itself has no other actions.
            text.actions.rewrites_prefix = false;
            let kept = ["response_fields", "cors"];
            text.actions
                .lines
                .retain(|line| kept.iter().any(|key| line.starts_with(key)));
            // Calls fail with UNAVAILABLE, as the specification demands.
            let status = if referrer.kind == Kind::GrpcRoute {
                503
            } else {
                500
            };
            text.actions
                .lines
                .push(format!("answer = {{ status = {status} }}"));
            text.add_policies(referrer, RouteTargets::Nobody);
            return Ok(text);
        }
        let changes = changes.map(|changes| format!("request_fields = {changes}"));
        text.actions.lines.extend(changes);
        text.actions.lines.extend(text.actions.write_mirrors());
        text.actions.lines.push(match targets.as_slice() {
            [(group, weight)] if actions.write_share(group, *weight) == weight.to_string() => {
                format!("group = {}", quote(group))
            }
            several => {
                let shares = several.iter();
                let shares =
                    shares.map(|(group, weight)| (&**group, actions.write_share(group, *weight)));
                format!("groups = {}", quote_table(shares))
            }
        });
        let has_engines = text.groups.iter().any(|name| groups.is_pool(name));
        let has_timeout = sets_route_key(referrer.inherited, "response_timeout");
        text.read_limits(rule, has_engines && !has_timeout)?;
        let has_engines = text.groups.iter().any(|name| groups.has_engines(name));
        let targets = match has_engines {
            true => RouteTargets::Engines,
            false => RouteTargets::Members,
        };
        text.add_policies(referrer, targets);
        text.check_prefix()
    }

    /// Adds the keys that policies set, and the rule does not.
    fn add_policies(&mut self, referrer: Referrer<'_>, targets: RouteTargets) {
        let is_set = |key: &str| {
            let mut lines = self.actions.lines.iter();
            lines.any(|line| line.split_once(" = ").is_some_and(|(own, _)| own == key))
        };
        let lines = list_route_lines(referrer.inherited, targets, is_set);
        self.actions.lines.extend(lines);
    }

    /// Reads the time limits and the retries.
    fn read_limits(&mut self, rule: &HttpRule, has_engines: bool) -> Result<(), String> {
        let timeouts = rule.timeouts.as_ref();
        let read = |limit: Option<&String>| {
            let millis = limit.map(|limit| read_duration(limit)).transpose()?;
            Ok::<_, String>(millis.map(|millis| millis.min(DAY)))
        };
        let request = read(timeouts.and_then(|of| of.request.as_ref()))?;
        let attempt = read(timeouts.and_then(|of| of.backend_request.as_ref()))?;
        // 0 is no limit. The time until the head of the response must not end before the others do.
        let given = [request, attempt].into_iter().flatten();
        let shortest = given.map(|millis| if millis == 0 { DAY } else { millis });
        let shortest = shortest.min().or(has_engines.then_some(ENGINE_TIMEOUT));
        let limits = [
            ("response_timeout", shortest),
            ("request_timeout", request.filter(|millis| *millis > 0)),
            ("attempt_timeout", attempt.filter(|millis| *millis > 0)),
        ];
        for (key, limit) in limits {
            let line = limit.map(|millis| format!("{key} = \"{millis}ms\""));
            self.actions.lines.extend(line);
        }
        match &rule.retry {
            Some(retry) => self.read_retry(retry),
            None => Ok(()),
        }
    }

    /// Reads the retries that a rule asks for: as many as it says, also where the service has a single endpoint.
    fn read_retry(&mut self, retry: &Retry) -> Result<(), String> {
        let lines = &mut self.actions.lines;
        lines.extend(["retry_same_member = true", "retry_budget = 1.0"].map(String::from));
        if let Some(attempts) = retry.attempts {
            lines.push(format!("retries = {}", attempts.min(MOST_RETRIES)));
        }
        if !retry.codes.is_empty() {
            let codes: Vec<String> = retry.codes.iter().map(u16::to_string).collect();
            lines.push(format!("retry_statuses = [{}]", codes.join(", ")));
        }
        if let Some(backoff) = &retry.backoff {
            let millis = read_duration(backoff)?;
            if millis > LONGEST_BACKOFF {
                return Err(format!(
                    "backoff {backoff} of retries is too long; write 60s or less"
                ));
            }
            lines.push(format!("retry_backoff = \"{millis}ms\""));
        }
        Ok(())
    }

    /// Checks that a prefix which is rewritten is the condition on the path, and puts the condition there.
    fn check_prefix(mut self) -> Result<Self, String> {
        if self.actions.rewrites_prefix {
            for of in &mut self.conditions {
                if of.rank.0 != PathKind::Prefix {
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
    pub(crate) fn write_actions(&self, scheme: &str, port: u16) -> Vec<String> {
        let mut lines = self.actions.lines.clone();
        let Some(redirect) = &self.actions.redirect else {
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
