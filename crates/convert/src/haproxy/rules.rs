//! Rules of frontends and backends: what is done with requests.

use super::proxy::{Action, Proxy};
use super::words::Line;
use crate::model::{Change, Head};
use crate::note::Notes;
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

impl Proxy {
    /// `http-request`, `http-response` and what is like them.
    pub(super) fn http_rule(&mut self, line: &Line, notes: &mut Notes) {
        let is_response = matches!(line.word_at(0), "http-response" | "http-after-response");
        let words: Vec<String> = match line.word_at(0) {
            "redirect" => line.words.clone(),
            "block" | "reqdeny" => [&["deny".to_owned()], line.from(1)].concat(),
            _ => line.from(1).to_vec(),
        };
        let place = condition(&words);
        let (action, when) = words.split_at_checked(place).unwrap_or((&words, &[]));
        let word = |place: usize| action.get(place).map_or("", String::as_str);
        let after = |name: &str| {
            let place = action.iter().position(|word| word == name)?;
            action.get(place + 1).map(String::as_str)
        };
        let number = line.number;
        match word(0) {
            "deny" | "tarpit" | "reject" | "silent-drop" if !is_response => {
                if self.is_rate_limit(when, after("deny_status"), number, notes) {
                    return;
                }
                let status = after("deny_status").and_then(|status| status.parse().ok());
                let status = status
                    .filter(|status| (200..=599).contains(status))
                    .unwrap_or(403);
                let action = Action::Answer {
                    status,
                    body: String::new(),
                    file: String::new(),
                    content_type: String::new(),
                };
                self.actions.push((number, action, when.to_vec()));
            }
            "return" if !is_response => {
                let status = after("status")
                    .and_then(|status| status.parse().ok())
                    .unwrap_or(200);
                let text = after("string").or(after("lf-string")).unwrap_or_default();
                let action = Action::Answer {
                    status,
                    body: text.to_owned(),
                    file: after("file").unwrap_or_default().to_owned(),
                    content_type: after("content-type").unwrap_or_default().to_owned(),
                };
                self.actions.push((number, action, when.to_vec()));
            }
            "redirect" if !is_response => {
                let status = after("code")
                    .and_then(|code| code.parse().ok())
                    .unwrap_or(302);
                let to = match (word(1), word(2)) {
                    ("scheme", scheme @ ("http" | "https")) => {
                        Some(format!("{scheme}://{{host}}{{path}}{{query}}"))
                    }
                    ("location", to) => template(to),
                    ("prefix", prefix) => template(prefix)
                        .map(|prefix| format!("{}{{path}}{{query}}", prefix.trim_end_matches('/'))),
                    _ => None,
                };
                let fits = |to: &String| {
                    let begins = ["http://", "https://", "/"]
                        .iter()
                        .any(|begin| to.starts_with(begin));
                    begins && !to.starts_with("//") && to.is_ascii() && !to.contains(' ')
                };
                match to
                    .filter(fits)
                    .filter(|_| matches!(status, 301 | 302 | 303 | 307 | 308))
                {
                    Some(to) => {
                        self.actions
                            .push((number, Action::Redirect { to, status }, when.to_vec()))
                    }
                    None => notes.add_note(
                        number,
                        "a redirect can use {scheme}, {host}, {path}, \
                        {query} and {client} of the request only",
                    ),
                }
            }
            "set-header" | "add-header" | "del-header" | "replace-header" | "replace-value" => {
                self.change(
                    is_response,
                    (word(0), word(1), word(2)),
                    when,
                    number,
                    notes,
                );
            }
            "set-path" | "replace-path" | "set-uri" | "replace-uri" if !is_response => {
                match rewrite(word(0), word(1), word(2)) {
                    Some((prefix, to)) => self.rewrites.push((number, prefix, to, when.to_vec())),
                    None => notes.add_note(
                        number,
                        "a route replaces the prefix of its `path`, by `rewrite_prefix`",
                    ),
                }
            }
            "auth" => notes.add_restriction(
                number,
                "passwords belong to the rule or a route: auth = { users_file = \"FILE\" }",
            ),
            "allow" if !is_response => {
                notes.add_note(number, "routes are tried in order: put a route for these requests before the routes that answer");
            }
            word if word.starts_with("track-sc") || word.starts_with("sc-") => {}
            "set-src" => notes.add_note(
                number,
                "the client's address comes from `accept_proxy` or `trust_forwarded`",
            ),
            "wait-for-handshake" | "wait-for-body" | "disable-l7-retry" => {}
            "use-service" => notes.add_note(
                number,
                "metrics are at http://127.0.0.1:9900/metrics by default",
            ),
            _ => notes.add_note(number, "Evenkeel has no counterpart"),
        }
    }

    /// A change of fields for all requests.
    fn change(
        &mut self,
        is_response: bool,
        (how, name, value): (&str, &str, &str),
        when: &[String],
        line: usize,
        notes: &mut Notes,
    ) {
        // Members get the scheme of the client in any case, so a condition on it changes little.
        if !when.is_empty() {
            return notes.add_note(
                line,
                "a route changes fields of all its requests: give the route the condition",
            );
        }
        let change = match how {
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
        if let Err(why) = changes.take(head, (change, name), template(value)) {
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
            _ => return notes.add_note(number, "Evenkeel has no counterpart"),
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
            _ => notes.add_note(number, "Evenkeel has no counterpart"),
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
