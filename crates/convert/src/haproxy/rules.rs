//! Rules of frontends and backends: what is done with requests.

use super::proxy::{Action, Proxy};
use super::words::Line;
use crate::model::{Change, Head};
use crate::note::{NO_COUNTERPART, Notes, Remark};
use crate::toml::Value;

/// Place of the condition in the words of a line.
fn condition(words: &[String]) -> usize {
    let is_begin = |word: &String| word == "if" || word == "unless";
    words.iter().position(is_begin).unwrap_or(words.len())
}

/// A text with parts of the request as Evenkeel writes them; `None` if it has others.
fn template(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(&before.replace('{', "{{"));
        if let Some(plain) = after.strip_prefix('%') {
            out.push('%');
            rest = plain;
            continue;
        }
        let (name, after) = match after.strip_prefix('[') {
            Some(inner) => inner.split_once(']')?,
            None => {
                let end = after
                    .find(|c: char| !c.is_ascii_alphanumeric())
                    .unwrap_or(after.len());
                after.split_at_checked(end)?
            }
        };
        out.push_str(match name {
            "src" | "ci" => "{client}",
            "req.hdr(host)" | "hdr(host)" | "req.hdr(Host)" | "hdr(Host)" => "{host}",
            "path" | "HP" => "{path}",
            "capture.req.uri" | "url" | "pathq" | "HU" => "{path}{query}",
            _ => return None,
        });
        rest = after;
    }
    out.push_str(&rest.replace('{', "{{"));
    Some(out)
}

/// Actions that are not translated, with the remark for each.
const REMARKS: [(&[&str], Remark); 5] = [
    (
        &["auth"],
        Remark::Restriction(
            "passwords belong to the rule or a route: auth = { users_file = \"FILE\" }",
        ),
    ),
    (
        &["allow"],
        Remark::Note(
            "routes are tried in order: put a route for these requests before the routes that answer",
        ),
    ),
    (
        &["set-src"],
        Remark::Note("the client's address comes from `accept_proxy` or `trust_forwarded`"),
    ),
    (
        &["wait-for-handshake", "wait-for-body", "disable-l7-retry"],
        Remark::Needless,
    ),
    (
        &["use-service"],
        Remark::Note("metrics are at http://127.0.0.1:9900/metrics by default"),
    ),
];

/// An action with its words, and the words of its condition.
struct HttpRule<'w> {
    line: usize,
    action: &'w [String],
    when: &'w [String],
}

impl<'w> HttpRule<'w> {
    /// The word at a place, or an empty one.
    fn word_at(&self, place: usize) -> &'w str {
        self.action.get(place).map_or("", String::as_str)
    }

    fn word_after(&self, name: &str) -> Option<&'w str> {
        let place = self.action.iter().position(|word| word == name)?;
        self.action.get(place + 1).map(String::as_str)
    }

    /// The answer of `deny` and of what is like it.
    fn refusal(&self) -> Action {
        let status = self.word_after("deny_status");
        let status = status.and_then(|status| status.parse().ok());
        let status = status.filter(|status| (200..=599).contains(status));
        Action::Answer {
            status: status.unwrap_or(403),
            body: String::new(),
            file: String::new(),
            content_type: String::new(),
        }
    }

    /// The answer of `return`.
    fn answer(&self) -> Action {
        let status = self.word_after("status");
        let text = self.word_after("string").or(self.word_after("lf-string"));
        let owned = |text: Option<&str>| text.unwrap_or_default().to_owned();
        Action::Answer {
            status: status.and_then(|status| status.parse().ok()).unwrap_or(200),
            body: owned(text),
            file: owned(self.word_after("file")),
            content_type: owned(self.word_after("content-type")),
        }
    }

    /// The action of `redirect`; `None` if a route cannot have it.
    fn redirect(&self) -> Option<Action> {
        let status = self.word_after("code");
        let status = status.and_then(|code| code.parse().ok()).unwrap_or(302);
        let to = match (self.word_at(1), self.word_at(2)) {
            ("scheme", scheme @ ("http" | "https")) => {
                format!("{scheme}://{{host}}{{path}}{{query}}")
            }
            ("location", to) => template(to)?,
            ("prefix", prefix) => {
                let prefix = template(prefix)?;
                format!("{}{{path}}{{query}}", prefix.trim_end_matches('/'))
            }
            _ => return None,
        };
        let begins = ["http://", "https://", "/"];
        let fits = begins.iter().any(|begin| to.starts_with(begin))
            && !to.starts_with("//")
            && to.is_ascii()
            && !to.contains(' ')
            && matches!(status, 301 | 302 | 303 | 307 | 308);
        fits.then_some(Action::Redirect { to, status })
    }
}

impl Proxy {
    /// `http-request`, `http-response` and what is like them.
    pub(super) fn http_rule(&mut self, line: &Line, notes: &mut Notes) {
        let words: Vec<String> = match line.word_at(0) {
            "redirect" => line.words.clone(),
            "block" | "reqdeny" => [&["deny".to_owned()], line.from(1)].concat(),
            _ => line.from(1).to_vec(),
        };
        let place = condition(&words);
        let (action, when) = words.split_at_checked(place).unwrap_or((&words, &[]));
        let is_response = matches!(line.word_at(0), "http-response" | "http-after-response");
        let number = line.number;
        let rule = HttpRule {
            line: number,
            action,
            when,
        };
        match rule.word_at(0) {
            "deny" | "tarpit" | "reject" | "silent-drop" if !is_response => {
                if !self.is_rate_limit(when, rule.word_after("deny_status"), number, notes) {
                    self.actions
                        .push((number, rule.refusal(), when.to_vec()));
                }
            }
            "return" if !is_response => {
                self.actions.push((number, rule.answer(), when.to_vec()));
            }
            "redirect" if !is_response => match rule.redirect() {
                Some(redirect) => self.actions.push((number, redirect, when.to_vec())),
                None => notes.add_note(
                    number,
                    "a redirect can use {scheme}, {host}, {path}, {query} and {client} of the request only",
                ),
            },
            "set-header" | "add-header" | "del-header" | "replace-header" | "replace-value" => {
                self.change(is_response, &rule, notes);
            }
            "set-path" | "replace-path" | "set-uri" | "replace-uri" if !is_response => {
                match rewrite(rule.word_at(0), rule.word_at(1), rule.word_at(2)) {
                    Some((prefix, to)) => self.rewrites.push((number, prefix, to, when.to_vec())),
                    None => notes.add_note(
                        number,
                        "a route replaces the prefix of its `path`, by `rewrite_prefix`",
                    ),
                }
            }
            "allow" if is_response => notes.add_remark(number, NO_COUNTERPART),
            word if word.starts_with("track-sc") || word.starts_with("sc-") => {}
            word => {
                if !notes.remark_on(number, word, &REMARKS) {
                    notes.add_remark(number, NO_COUNTERPART);
                }
            }
        }
    }

    /// A change of fields for all requests.
    fn change(&mut self, is_response: bool, rule: &HttpRule<'_>, notes: &mut Notes) {
        let line = rule.line;
        // Members get the scheme of the client in any case, so a condition on it changes little.
        if !rule.when.is_empty() {
            return notes.add_note(
                line,
                "a route changes fields of all its requests: give the route the condition",
            );
        }
        let change = match rule.word_at(0) {
            "set-header" => Change::Set,
            "add-header" => Change::Add,
            "del-header" => Change::Remove,
            _ => {
                return notes.add_note(
                    line,
                    "routes set, add and remove fields, and do not edit them",
                );
            }
        };
        let (head, changes) = match is_response {
            true => (Head::Response, &mut self.response),
            false => (Head::Request, &mut self.request),
        };
        let (name, value) = (rule.word_at(1), template(rule.word_at(2)));
        if let Err(why) = changes.take(head, (change, name), value) {
            notes.add_note(line, why);
        }
    }

    /// Takes a refusal of clients who ask too often for a limit; false if it is none.
    fn is_rate_limit(
        &mut self,
        when: &[String],
        status: Option<&str>,
        line: usize,
        notes: &mut Notes,
    ) -> bool {
        let words: Vec<&str> = when
            .iter()
            .map(String::as_str)
            .filter(|word| !matches!(*word, "if" | "{" | "}"))
            .collect();
        let [what, "gt" | "ge", most] = words[..] else {
            return false;
        };
        let what = what
            .trim_start_matches("src_")
            .trim_start_matches("sc0_")
            .trim_start_matches("sc_");
        let what = what.split('(').next().unwrap_or_default();
        let Ok(most @ 1..=1_000_000) = most.parse::<u64>() else {
            return false;
        };
        let mut period = |key: &str| match self.limits.remove(&format!("period of {key}")) {
            Some(Value::Text(period)) => Some(period),
            _ => None,
        };
        match what {
            "http_req_rate" => match period("requests") {
                Some(period) => {
                    self.limits.set("requests", format!("{most}/{period}"));
                    if let Some(Ok(status @ 400..=599)) = status.map(str::parse::<u64>) {
                        self.limits.set("status", status);
                    }
                }
                None => notes.add_restriction(line, "the period of the rate is not in the `stick-table`: `requests` of [rule.NAME.limits]"),
            },
            "conn_rate" => match period("new_connections") {
                Some(period) => self.limits.set("new_connections", format!("{most}/{period}")),
                None => notes.add_restriction(line, "the period of the rate is not in the `stick-table`: `new_connections` of [rule.NAME.limits]"),
            },
            "conn_cur" => self.limits.set("connections", most),
            _ => return false,
        }
        true
    }

    /// `tcp-request` and `tcp-response`.
    pub(super) fn tcp_rule(&mut self, line: &Line, notes: &mut Notes) {
        let number = line.number;
        let place = condition(&line.words);
        let when = line.words.get(place..).unwrap_or_default();
        let action = match line.word_at(1) {
            "connection" | "content" | "session" => line.word_at(2),
            "inspect-delay" => return,
            _ => return notes.add_remark(number, NO_COUNTERPART),
        };
        match action {
            "accept" | "capture" | "set-var" => {}
            _ if action.starts_with("track-sc") => {}
            "reject" | "silent-drop" => {
                if self.is_rate_limit(when, None, number, notes) {
                    return;
                }
                match self.is_tcp {
                    true => notes
                        .add_restriction(number, "TCP rules refuse no networks: use the firewall"),
                    false => {
                        let action = Action::Answer {
                            status: 403,
                            body: String::new(),
                            file: String::new(),
                            content_type: String::new(),
                        };
                        self.actions.push((number, action, when.to_vec()));
                    }
                }
            }
            _ => notes.add_remark(number, NO_COUNTERPART),
        }
    }
}

/// The prefix that a change of paths replaces, without a slash at its end, and by what.
fn rewrite(how: &str, first: &str, second: &str) -> Option<(String, String)> {
    let (pattern, to) = match how {
        "set-path" => {
            let inner = first.strip_prefix("%[path,regsub(")?;
            let inner = inner.strip_suffix(")]")?;
            inner.split_once(',')?
        }
        "replace-path" => (first, second),
        _ => return None,
    };
    let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
    let prefix = match how {
        "set-path" => pattern.trim_end_matches('/'),
        _ => pattern
            .strip_suffix("/(.*)")
            .or_else(|| pattern.strip_suffix("(/.*)?"))?,
    };
    let to = match how {
        "set-path" => to,
        _ => to.strip_suffix("\\1")?,
    };
    let is_plain = |text: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "/-_.~".contains(c);
        text.starts_with('/') && text.chars().all(is_part) && !text.contains("//")
    };
    let to = if to.is_empty() { "/" } else { to };
    (is_plain(prefix) && is_plain(to)).then(|| (prefix.to_owned(), to.to_owned()))
}
