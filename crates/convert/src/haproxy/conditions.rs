//! ACLs, and conditions that are made of them.

use std::collections::HashMap;

use super::words::Line;
use crate::model::{Conditions, ValueCondition};
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
                ValueCondition::Like(_) => {}
            }
        }
    }
    Err("routes cannot negate hosts, paths, methods and values: put a route for the excluded requests \
        first".into())
}

/// Alternatives for the words of an ACL: what is looked at, flags and values.
fn criterion(words: &[String], facts: Facts) -> Result<Alternatives, String> {
    let line = Line {
        number: 0,
        words: words.to_vec(),
    };
    let what = line.word_at(0);
    let (fetch, argument) = match what.split_once('(') {
        Some((fetch, rest)) => (fetch, rest.trim_end_matches(')')),
        None => (what, ""),
    };
    let mut method = "str";
    let mut values: Vec<&str> = Vec::new();
    let mut rest = line.from(1).iter();
    let mut ignores_case = false;
    while let Some(word) = rest.next() {
        match word.as_str() {
            "-i" => ignores_case = true,
            "-n" | "--" => {}
            "-m" => method = rest.next().map(String::as_str).unwrap_or_default(),
            "-f" | "-M" => {
                return Err(
                    "routes read no values from files: write the values into the route".into(),
                );
            }
            value => values.push(value),
        }
    }
    let owned = |values: &[&str]| {
        values
            .iter()
            .map(|value| (*value).to_owned())
            .collect::<Vec<_>>()
    };
    let one = |conditions: Conditions| Ok(vec![conditions]);
    let no_such = || Err(format!("routes have no condition like {what}"));
    let (fetch, suffix) = suffix_of(fetch);
    let is_host = argument.eq_ignore_ascii_case("host");
    let method = suffix.unwrap_or(method);
    match fetch {
        "always_true" => one(Conditions::default()),
        "always_false" => Ok(Vec::new()),
        "ssl_fc" => match facts.has_tls {
            true => one(Conditions::default()),
            false => Ok(Vec::new()),
        },
        "method" if values.is_empty() || !values.iter().all(|value| is_method(value)) => no_such(),
        "method" => one(Conditions {
            methods: owned(&values),
            ..Conditions::default()
        }),
        "src" | "hdr" | "req.hdr" | "req.fhdr" | "fhdr" | "req_ssl_sni" | "req.ssl_sni"
        | "ssl_fc_sni"
            if values.is_empty() && (fetch == "src" || fetch.contains("sni") || is_host) =>
        {
            no_such()
        }
        "src"
            if values
                .iter()
                .all(|value| is_network(value) || value.parse::<std::net::IpAddr>().is_ok()) =>
        {
            one(Conditions {
                clients: owned(&values),
                ..Conditions::default()
            })
        }
        "src" => {
            // Bits beyond the prefix are set: HAProxy ignores them.
            let networks: Option<Vec<String>> = values.iter().map(|value| masked(value)).collect();
            match networks {
                Some(clients) => one(Conditions {
                    clients,
                    ..Conditions::default()
                }),
                None => Err("not a network".into()),
            }
        }
        "path" | "path_sub" | "url" => {
            let paths: Result<Vec<String>, String> =
                values.iter().map(|value| path(value, method)).collect();
            let paths = paths?;
            // A prefix ends at a slash here, and upper and lower case differ.
            let is_open = |value: &&str| !value.ends_with('/');
            let is_narrower = ignores_case || method == "beg" && values.iter().any(is_open);
            match paths.as_slice() {
                [] => no_such(),
                // Each path begins so.
                paths if paths.iter().any(|path| path == "/*") => one(Conditions::default()),
                _ => one(Conditions {
                    paths,
                    is_narrower,
                    ..Conditions::default()
                }),
            }
        }
        "hdr" | "req.hdr" | "req.fhdr" | "fhdr" if is_host => {
            let hosts: Result<Vec<Vec<String>>, String> =
                values.iter().map(|value| host(value, method)).collect();
            one(Conditions {
                hosts: hosts?.concat(),
                ..Conditions::default()
            })
        }
        "req.hdr_cnt" | "hdr_cnt" | "req.ssl_hello_type" | "req_ssl_hello_type" => no_such(),
        "hdr" | "req.hdr" | "req.fhdr" | "fhdr" | "url_param" | "urlp" | "cook" | "req.cook"
            if !is_token(argument) || argument.eq_ignore_ascii_case("cookie") =>
        {
            no_such()
        }
        "hdr" | "req.hdr" | "req.fhdr" | "fhdr" => {
            named_values(&values, method, |wanted| Conditions {
                headers: vec![(argument.to_owned(), wanted)],
                ..Conditions::default()
            })
        }
        "url_param" | "urlp" => named_values(&values, method, |wanted| Conditions {
            query: vec![(argument.to_owned(), wanted)],
            ..Conditions::default()
        }),
        "cook" | "req.cook" => named_values(&values, method, |wanted| Conditions {
            cookies: vec![(argument.to_owned(), wanted)],
            ..Conditions::default()
        }),
        "req_ssl_sni" | "req.ssl_sni" | "ssl_fc_sni" => {
            let names: Result<Vec<Vec<String>>, String> =
                values.iter().map(|value| host(value, method)).collect();
            let names = names?.concat();
            match fetch {
                // The name that a client asks for and the host of its requests are the same, but for odd clients.
                "ssl_fc_sni" => one(Conditions {
                    hosts: names,
                    ..Conditions::default()
                }),
                _ => one(Conditions {
                    names,
                    ..Conditions::default()
                }),
            }
        }
        "rand" => match (argument.parse::<u64>(), values.as_slice()) {
            (Ok(100), ["lt", share]) if share.parse::<u64>().is_ok_and(|share| share <= 100) => {
                one(Conditions {
                    share: share.parse().ok(),
                    ..Conditions::default()
                })
            }
            _ => no_such(),
        },
        "nbsrv" | "srv_is_up" => Err(
            "routes have no condition on the number of members that are up: groups take members out by \
             themselves".into(),
        ),
        "http_auth" | "http_auth_group" => {
            Err("users belong to the rule: auth = { users_file = \"FILE\" }".into())
        }
        _ => no_such(),
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
        "reg" => Err("routes have no regular expressions".into()),
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
        return Err("routes have no regular expressions".into());
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
    method: &str,
    make: impl Fn(ValueCondition) -> Conditions,
) -> Result<Alternatives, String> {
    let wanted = |value: &&str| match method {
        _ if value.trim() != *value || value.contains(char::is_control) => {
            Err("not a value that a route can have".into())
        }
        "str" | "beg" if value.contains('*') => Err(format!("{value} has a * in it")),
        "str" => Ok(make(ValueCondition::Like((*value).to_owned()))),
        "beg" => Ok(make(ValueCondition::Like(format!("{value}*")))),
        "reg" => Err("routes have no regular expressions".into()),
        _ => Err("routes compare a value as a whole or by its beginning".into()),
    };
    match method {
        "found" => Ok(vec![make(ValueCondition::Like("*".into()))]),
        _ if values.is_empty() => Ok(vec![make(ValueCondition::Like("*".into()))]),
        _ => values.iter().map(wanted).collect(),
    }
}
