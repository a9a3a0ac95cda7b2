//! ACLs, and conditions that are made of them.

use std::collections::HashMap;

use crate::model::{Conditions, ValueCondition};
use crate::regex::whole_regex;
use crate::units::is_network;

/// Most alternatives of a condition.
const MAX_ALTERNATIVES: usize = 32;

/// ACLs by their names, each with the words of all lines of that name.
pub(crate) type Acls = HashMap<String, Vec<Vec<String>>>;

/// Reason why two conditions cannot stand in one route.
pub(crate) const TWICE: &str = "a route can have only one condition of each kind";

/// Conditions of which one must hold.
pub(crate) type Alternatives = Vec<Conditions>;

/// A part of a condition.
#[derive(Clone, Debug)]
struct Literal {
    is_negated: bool,
    /// Each line of an ACL: one of them must hold.
    lines: Vec<Vec<String>>,
}

/// Facts about the rule for which conditions are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// True if its clients speak TLS.
    pub(crate) has_tls: bool,
}

/// Meaning of a condition: requests that one of the alternatives matches. Without a condition that is each request,
/// and if it can never hold, there are no alternatives.
///
/// # Errors
///
/// Why it cannot be said here.
pub(crate) fn read(words: &[String], acls: &Acls, facts: Facts) -> Result<Alternatives, String> {
    let (is_unless, words) = match words {
        [] => return Ok(vec![Conditions::default()]),
        [first, rest @ ..] if first == "if" => (false, rest),
        [first, rest @ ..] if first == "unless" => (true, rest),
        [first, ..] => return Err(format!("unknown word in a condition: {first}")),
    };
    let mut terms = parse(words, acls)?;
    if is_unless {
        terms = negate(&terms)?;
    }
    let mut all: Alternatives = Vec::new();
    for term in &terms {
        let mut found = vec![Conditions::default()];
        for literal in term {
            let alternatives = meaning(literal, facts)?;
            let mut next = Vec::new();
            for one in &found {
                for other in &alternatives {
                    next.push(one.merge_with(other).ok_or(TWICE)?);
                }
                if next.len() > MAX_ALTERNATIVES {
                    return Err("the condition has too many alternatives".into());
                }
            }
            found = next;
        }
        all.extend(found);
        if all.len() > MAX_ALTERNATIVES {
            return Err("the condition has too many alternatives".into());
        }
    }
    Ok(merged(all))
}

/// Alternatives that differ in one list only are one with a longer list.
fn merged(all: Alternatives) -> Alternatives {
    let mut kept: Alternatives = Vec::new();
    for one in all {
        let lists: [fn(&mut Conditions) -> &mut Vec<String>; 5] = [
            |one| &mut one.hosts,
            |one| &mut one.paths,
            |one| &mut one.methods,
            |one| &mut one.clients,
            |one| &mut one.names,
        ];
        let is_joined = kept.iter_mut().any(|known| {
            lists.iter().any(|list| {
                let (mut without, mut known_without) = (one.clone(), known.clone());
                let own = std::mem::take(list(&mut without));
                let theirs = std::mem::take(list(&mut known_without));
                let fits = without == known_without && !own.is_empty() && !theirs.is_empty();
                if fits {
                    let into = list(known);
                    for text in own {
                        if !into.contains(&text) {
                            into.push(text);
                        }
                    }
                }
                fits
            })
        });
        if !is_joined {
            kept.push(one);
        }
    }
    kept
}

/// Alternatives of parts that must all hold.
fn parse(words: &[String], acls: &Acls) -> Result<Vec<Vec<Literal>>, String> {
    let mut terms = vec![Vec::new()];
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "||" || word == "or" {
            terms.push(Vec::new());
            continue;
        }
        let bare = word.trim_start_matches('!');
        let mut is_negated = (word.len() - bare.len()) % 2 == 1;
        let mut name = bare;
        if name.is_empty() {
            name = words.next().map(String::as_str).unwrap_or_default();
            let inner = name.trim_start_matches('!');
            is_negated ^= (name.len() - inner.len()) % 2 == 1;
            name = inner;
        }
        let lines = if name == "{" {
            let inner: Vec<String> = words
                .by_ref()
                .take_while(|word| *word != "}")
                .cloned()
                .collect();
            vec![inner]
        } else {
            match acls.get(name) {
                Some(lines) => lines.clone(),
                None => vec![named(name).ok_or_else(|| format!("there is no ACL {name:?}"))?],
            }
        };
        if let Some(term) = terms.last_mut() {
            term.push(Literal { is_negated, lines });
        }
        if terms.len() > MAX_ALTERNATIVES {
            return Err("the condition has too many alternatives".into());
        }
    }
    Ok(terms)
}

/// ACLs that are there without a line.
fn named(name: &str) -> Option<Vec<String>> {
    let words = match name {
        "TRUE" => "always_true",
        "FALSE" => "always_false",
        "METH_GET" => "method GET HEAD",
        "METH_POST" => "method POST",
        "METH_PUT" => "method PUT",
        "METH_DELETE" => "method DELETE",
        "METH_HEAD" => "method HEAD",
        "METH_OPTIONS" => "method OPTIONS",
        "METH_CONNECT" => "method CONNECT",
        "LOCALHOST" => "src 127.0.0.1/8",
        "HTTP" => "always_true",
        _ => return None,
    };
    Some(words.split(' ').map(str::to_owned).collect())
}

/// Alternatives that hold where none of the terms does.
fn negate(terms: &[Vec<Literal>]) -> Result<Vec<Vec<Literal>>, String> {
    let mut all = vec![Vec::new()];
    for term in terms {
        let mut next = Vec::new();
        for one in &all {
            for literal in term {
                let mut one: Vec<Literal> = one.clone();
                let is_negated = !literal.is_negated;
                one.push(Literal {
                    is_negated,
                    ..literal.clone()
                });
                next.push(one);
            }
        }
        if next.len() > MAX_ALTERNATIVES {
            return Err("the condition has too many alternatives".into());
        }
        all = next;
    }
    Ok(all)
}

/// Alternatives for a literal.
fn meaning(literal: &Literal, facts: Facts) -> Result<Alternatives, String> {
    let mut all = Vec::new();
    if !literal.is_negated {
        for line in &literal.lines {
            all.extend(criterion(line, facts)?);
        }
        return Ok(all);
    }
    // None of the lines may hold.
    let mut found = Conditions::default();
    for line in &literal.lines {
        match criterion(line, facts)?.as_slice() {
            [] => {}
            [one] => match negated(one)? {
                Some(one) => match found.merge_with(&one) {
                    Some(both) => found = both,
                    None => return Err(TWICE.into()),
                },
                None => return Ok(Vec::new()),
            },
            _ => return Err("routes cannot negate several values".into()),
        }
    }
    Ok(vec![found])
}

/// Alternatives that hold where `one` does not; `None` if that is never.
fn negated(one: &Conditions) -> Result<Option<Conditions>, String> {
    if one.is_any() {
        return Ok(None);
    }
    let mut rest = one.clone();
    let mut none = Conditions::default();
    let clients = std::mem::take(&mut rest.clients);
    if rest.is_any() {
        none.except_clients = clients;
        return Ok(Some(none));
    }
    type Named = fn(&mut Conditions) -> &mut Vec<(String, ValueCondition)>;
    let lists: [Named; 3] = [
        |one| &mut one.headers,
        |one| &mut one.query,
        |one| &mut one.cookies,
    ];
    for list in lists {
        let mut rest = one.clone();
        let values = std::mem::take(list(&mut rest));
        if let ([(name, wanted)], true) = (values.as_slice(), rest.is_any()) {
            match wanted {
                ValueCondition::Like(text) if text == "*" => {
                    list(&mut none).push((name.clone(), ValueCondition::Absent));
                    return Ok(Some(none));
                }
                ValueCondition::Absent => {
                    list(&mut none).push((name.clone(), ValueCondition::Like("*".into())));
                    return Ok(Some(none));
                }
                ValueCondition::Like(_) | ValueCondition::Regex(_) => {}
            }
        }
    }
    Err("routes cannot negate hosts, paths, methods and values: put a route for the excluded requests \
        first".into())
}

/// Alternatives for the words of an ACL: what is looked at, flags and values.
fn criterion(words: &[String], facts: Facts) -> Result<Alternatives, String> {
    let sample = Sample::read(words)?;
    match sample.fetch {
        "always_true" => Ok(vec![Conditions::default()]),
        "always_false" => Ok(Vec::new()),
        "ssl_fc" => match facts.has_tls {
            true => Ok(vec![Conditions::default()]),
            false => Ok(Vec::new()),
        },
        "method" => sample.methods(),
        "src" => sample.clients(),
        "path" | "path_sub" | "url" => sample.paths(),
        "hdr" | "req.hdr" | "req.fhdr" | "fhdr" if sample.argument.eq_ignore_ascii_case("host") => {
            sample.hosts()
        }
        "hdr" | "req.hdr" | "req.fhdr" | "fhdr" => sample.named_values(|one| &mut one.headers),
        "url_param" | "urlp" => sample.named_values(|one| &mut one.query),
        "cook" | "req.cook" => sample.named_values(|one| &mut one.cookies),
        // The name that a client asks for and the host of its requests are the same, but for odd clients.
        "ssl_fc_sni" => sample.hosts(),
        "req_ssl_sni" | "req.ssl_sni" => sample.server_names(),
        "rand" => sample.share(),
        "nbsrv" | "srv_is_up" => Err(
            "routes have no condition on the number of members that are up: groups take members out by \
             themselves".into(),
        ),
        "http_auth" | "http_auth_group" => {
            Err("users belong to the rule: auth = { users_file = \"FILE\" }".into())
        }
        _ => Err(sample.refusal()),
    }
}

/// A sample of an ACL, and the values that it is compared with.
struct Sample<'w> {
    /// The first word, as the file has it.
    text: &'w str,
    fetch: &'w str,
    argument: &'w str,
    /// Comparison of the values: `str`, `beg` and so on.
    method: &'w str,
    values: Vec<&'w str>,
    ignores_case: bool,
}

impl<'w> Sample<'w> {
    /// # Errors
    ///
    /// Values are in a file.
    fn read(words: &'w [String]) -> Result<Self, String> {
        let mut rest = words.iter().map(String::as_str);
        let text = rest.next().unwrap_or_default();
        let (fetch, argument) = match text.split_once('(') {
            Some((fetch, rest)) => (fetch, rest.trim_end_matches(')')),
            None => (text, ""),
        };
        let (fetch, suffix) = suffix_of(fetch);
        let mut sample = Sample {
            text,
            fetch,
            argument,
            method: "str",
            values: Vec::new(),
            ignores_case: false,
        };
        while let Some(word) = rest.next() {
            match word {
                "-i" => sample.ignores_case = true,
                "-n" | "--" => {}
                "-m" => sample.method = rest.next().unwrap_or_default(),
                "-f" | "-M" => {
                    let why = "routes read no values from files: write the values into the route";
                    return Err(why.into());
                }
                value => sample.values.push(value),
            }
        }
        sample.method = suffix.unwrap_or(sample.method);
        Ok(sample)
    }

    fn refusal(&self) -> String {
        format!("routes have no condition like {}", self.text)
    }

    fn owned_values(&self) -> Vec<String> {
        self.values.iter().copied().map(str::to_owned).collect()
    }

    fn methods(&self) -> Result<Alternatives, String> {
        if self.values.is_empty() || !self.values.iter().all(|value| is_method(value)) {
            return Err(self.refusal());
        }
        Ok(vec![Conditions {
            methods: self.owned_values(),
            ..Conditions::default()
        }])
    }

    fn clients(&self) -> Result<Alternatives, String> {
        if self.values.is_empty() {
            return Err(self.refusal());
        }
        let is_client =
            |value: &&str| is_network(value) || value.parse::<std::net::IpAddr>().is_ok();
        let clients = match self.values.iter().all(is_client) {
            true => Some(self.owned_values()),
            // Bits beyond the prefix are set: HAProxy ignores them.
            false => self.values.iter().map(|value| masked(value)).collect(),
        };
        Ok(vec![Conditions {
            clients: clients.ok_or("not a network")?,
            ..Conditions::default()
        }])
    }

    fn paths(&self) -> Result<Alternatives, String> {
        if self.method == "reg" && self.fetch == "url" {
            let why = "routes compare paths without the query: use path_reg, or url_param";
            return Err(why.into());
        }
        if self.method == "reg" && !self.values.is_empty() {
            let regexes = self.values.iter();
            let regexes = regexes.map(|value| whole_regex(value, self.ignores_case));
            return Ok(vec![Conditions {
                path_regexes: regexes.collect::<Result<_, _>>()?,
                ..Conditions::default()
            }]);
        }
        let paths = self.values.iter().map(|value| path(value, self.method));
        let paths = paths.collect::<Result<Vec<String>, String>>()?;
        // A prefix ends at a slash here, and upper and lower case differ.
        let is_open = |value: &&str| !value.ends_with('/');
        let is_narrower =
            self.ignores_case || self.method == "beg" && self.values.iter().any(is_open);
        match paths.as_slice() {
            [] => Err(self.refusal()),
            // Each path begins so.
            paths if paths.iter().any(|path| path == "/*") => Ok(vec![Conditions::default()]),
            _ => Ok(vec![Conditions {
                paths,
                is_narrower,
                ..Conditions::default()
            }]),
        }
    }

    fn host_values(&self) -> Result<Vec<String>, String> {
        if self.values.is_empty() {
            return Err(self.refusal());
        }
        let hosts = self.values.iter().map(|value| host(value, self.method));
        Ok(hosts.collect::<Result<Vec<_>, String>>()?.concat())
    }

    fn hosts(&self) -> Result<Alternatives, String> {
        Ok(vec![Conditions {
            hosts: self.host_values()?,
            ..Conditions::default()
        }])
    }

    fn server_names(&self) -> Result<Alternatives, String> {
        Ok(vec![Conditions {
            names: self.host_values()?,
            ..Conditions::default()
        }])
    }

    /// Alternatives for values of a field, a parameter or a cookie.
    fn named_values(
        &self,
        list: fn(&mut Conditions) -> &mut Vec<(String, ValueCondition)>,
    ) -> Result<Alternatives, String> {
        let name = self.argument;
        if !is_token(name) || name.eq_ignore_ascii_case("cookie") {
            return Err(self.refusal());
        }
        named_values(&self.values, (self.method, self.ignores_case), |wanted| {
            let mut one = Conditions::default();
            list(&mut one).push((name.to_owned(), wanted));
            one
        })
    }

    /// A share of requests: `rand(100) lt SHARE`.
    fn share(&self) -> Result<Alternatives, String> {
        match (self.argument.parse::<u64>(), self.values.as_slice()) {
            (Ok(100), ["lt", share]) if share.parse::<u64>().is_ok_and(|share| share <= 100) => {
                Ok(vec![Conditions {
                    share: share.parse().ok(),
                    ..Conditions::default()
                }])
            }
            _ => Err(self.refusal()),
        }
    }
}

/// Splits the name of a sample from the suffix that says how it is compared.
fn suffix_of(fetch: &str) -> (&str, Option<&'static str>) {
    let suffixes = ["beg", "end", "dir", "dom", "len", "reg", "sub"];
    for suffix in suffixes {
        if let Some(plain) = fetch
            .strip_suffix(suffix)
            .and_then(|fetch| fetch.strip_suffix('_'))
            && matches!(
                plain,
                "path" | "hdr" | "req.hdr" | "url" | "cook" | "url_param" | "urlp" | "req.cook"
            )
        {
            return (plain, Some(suffix));
        }
    }
    (fetch, None)
}

fn is_method(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte == b'-')
}

/// True if a field, a cookie or a parameter may be called so.
fn is_token(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=100).contains(&text.len()) && text.chars().all(is_part)
}

/// A network whose bits beyond the prefix are zero.
fn masked(text: &str) -> Option<String> {
    match text.parse::<evenkeel_config::networks::Network>() {
        Ok(_) => Some(text.to_owned()),
        Err(evenkeel_config::networks::ParseNetworkError::HostBits(begin)) => {
            let (_, prefix) = text.split_once('/')?;
            Some(format!("{begin}/{prefix}"))
        }
        Err(_) => None,
    }
}

/// A path of a route.
fn path(value: &str, method: &str) -> Result<String, String> {
    let is_plain = value.starts_with('/')
        && value.bytes().all(|byte| byte.is_ascii_graphic())
        && !value.contains(['*', '?', '#', ';', '%', '\\'])
        && !value.contains("//");
    let dots = value
        .split('/')
        .any(|segment| segment == "." || segment == "..");
    let is_short = value.len() <= 1000 && value.split('/').all(|segment| segment.len() <= 200);
    match method {
        _ if !is_plain || dots || !is_short => {
            Err(format!("{value} is not a path that a route can have"))
        }
        "str" => Ok(value.to_owned()),
        "beg" => Ok(format!("{}/*", value.trim_end_matches('/'))),
        _ => Err("routes compare a path as a whole or by its beginning".into()),
    }
}

/// Hosts of a route.
fn host(value: &str, method: &str) -> Result<Vec<String>, String> {
    let lower = value.to_ascii_lowercase();
    let plain = lower
        .split(':')
        .next()
        .unwrap_or_default()
        .trim_start_matches('.');
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if method == "reg" {
        return Err("routes have no regular expressions for hosts".into());
    }
    if plain.is_empty()
        || plain.len() > 250
        || !plain.chars().all(is_name)
        || plain
            .split('.')
            .any(|label| label.is_empty() || label.len() > 63)
    {
        return Err(format!("{value} is not a host that a route can have"));
    }
    match method {
        "str" => Ok(vec![plain.to_owned()]),
        "dom" => Ok(vec![plain.to_owned(), format!("*.{plain}")]),
        "end" if lower.starts_with('.') => Ok(vec![format!("*.{plain}")]),
        "end" => Ok(vec![plain.to_owned(), format!("*.{plain}")]),
        _ => Err("routes compare a host as a whole, or all names right below it".into()),
    }
}

/// Alternatives for values of something that has a name.
fn named_values(
    values: &[&str],
    (method, ignores_case): (&str, bool),
    make: impl Fn(ValueCondition) -> Conditions,
) -> Result<Alternatives, String> {
    let wanted = |value: &&str| match method {
        _ if value.trim() != *value || value.contains(char::is_control) => {
            Err("not a value that a route can have".into())
        }
        "str" | "beg" if value.contains('*') => Err(format!("{value} has a * in it")),
        "str" => Ok(make(ValueCondition::Like((*value).to_owned()))),
        "beg" => Ok(make(ValueCondition::Like(format!("{value}*")))),
        "reg" => Ok(make(ValueCondition::Regex(whole_regex(
            value,
            ignores_case,
        )?))),
        _ => Err("routes compare a value as a whole, by its beginning or by an expression".into()),
    };
    match method {
        "found" => Ok(vec![make(ValueCondition::Like("*".into()))]),
        _ if values.is_empty() => Ok(vec![make(ValueCondition::Like("*".into()))]),
        _ => values.iter().map(wanted).collect(),
    }
}
