//! Tests of the configuration as its users see it: a text goes in, a [`Config`] or a
//! list of errors comes out.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use evenkeel_core::group::Granularity;
use evenkeel_core::load::LoadId;
use evenkeel_core::strategy::Values;

use super::model::config::describe_tables;
use super::model::sources::{SOURCES, Sources, UrlTemplate};
use super::schema::key::describe_keys;
use super::*;

mod parts;

const GOOD: &str = r#"
workers = 2

[admin]
listen = "127.0.0.1:9901"

[defaults]
connection_timeout = "1s"
slow_start = "3s"
health_check = { frequency = "5s", doc_path = "/up" }

[rule.web]
listen = ["127.0.0.1:8080", "[::1]:8080"]
members = ["127.0.0.1:8001", { address = "app.internal:8002", weight = 2, max_connections = 10 }]
strategy = { name = "random" }

[rule.web.http]
max_header_bytes = "16KiB"
via = false

[rule.mail]
listen = "127.0.0.1:2525"
protocol = "tcp"
group = "mail"
half_close = false

[group.mail]
members = ["[::1]:25"]
health_check = false
"#;

fn errors(text: &str) -> Vec<String> {
    match parse("test.toml", text) {
        Ok(config) => panic!("accepted: {config:?}"),
        Err(errors) => errors.to_string().lines().map(str::to_owned).collect(),
    }
}

/// Asserts that `text` has one error, which starts and goes on like this.
#[track_caller]
fn one_error(text: &str, start: &str, parts: &[&str]) {
    let errors = errors(text);
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert!(errors[0].starts_with(start), "{}", errors[0]);
    for part in parts {
        assert!(errors[0].contains(part), "no {part:?} in {}", errors[0]);
    }
}

/// A rule with `line` as its third line.
fn with(line: &str) -> String {
    format!("[rule.web]\nlisten = \"127.0.0.1:80\"\n{line}\nmembers = [\"a:1\"]\n")
}

#[test]
fn tls_of_scrapes_needs_a_url_with_tls() {
    let warnings = |url: &str| {
        let text = format!(
            "[rule.a]\nlisten = \"127.0.0.1:1\"\nmembers = [\"10.0.0.1:1\"]\n\
             prometheus = {{ url = \"{url}\", preset = \"node_exporter\", tls = true }}\n"
        );
        let config = parse("t", &text).unwrap();
        let pages = config.groups[0].sources.prometheus.as_ref().unwrap();
        let is_secure = pages.client_tls().is_some();
        let warnings = config
            .warnings
            .iter()
            .map(|warning| warning.message.clone());
        (is_secure, warnings.collect::<Vec<_>>())
    };
    assert_eq!(warnings("https://{host}/"), (true, Vec::new()));
    let (is_secure, warned) = warnings("http://{host}/");
    assert!(
        !is_secure && warned[0].contains("`url` is not `https`"),
        "{warned:?}"
    );
}

#[test]
fn a_configuration_means_what_it_says() {
    let config = parse("test.toml", GOOD).unwrap();
    assert_eq!(config.workers, Some(2));
    assert_eq!(config.admin.unwrap().listen.port(), 9901);
    assert_eq!(config.rules.len(), 2);

    let web = &config.rules[0];
    assert_eq!((web.name.as_str(), web.group.as_str()), ("web", "web"));
    assert_eq!(web.protocol, Protocol::Http);
    assert_eq!(web.listen.len(), 2);
    assert_eq!(web.timeouts.connect, Duration::from_secs(1));
    assert_eq!(web.timeouts.header, Timeouts::default().header);
    assert_eq!(web.http.max_header_bytes, 16 * 1024);
    assert_eq!(web.http.via, None);

    let mail = &config.rules[1];
    assert_eq!(mail.protocol, Protocol::Tcp);
    assert!(!mail.half_close);

    let group = &config.groups[0];
    assert_eq!(group.name, "web");
    assert_eq!(group.settings.slow_start, Duration::from_secs(3));
    assert_eq!(group.members.len(), 2);
    let first = &group.members[0];
    assert_eq!((first.host.as_str(), first.port), ("127.0.0.1", 8001));
    assert_eq!(group.members[1].weight.get(), 2.0);
    assert_eq!(group.members[1].max_connections, Some(10));
    let check = group.health_check.as_ref().unwrap();
    assert_eq!(check.interval, Duration::from_secs(5));
    let message = "a path makes it an HTTP check";
    assert_eq!(check.kind, HealthCheckKind::Http, "{message}");
    assert_eq!(check.path, "/up");
    assert_eq!((check.codes[0], check.codes.len()), (200, 200));

    let mail = &config.groups[1];
    assert_eq!(mail.name, "mail");
    assert_eq!(mail.health_check, None, "false takes the default back");
    assert_eq!(mail.members[0].host, "::1");
    assert!(config.warnings.is_empty());
}

#[test]
fn tables_of_defaults_are_merged_key_by_key() {
    let text = r#"
[defaults]
http = { retries = 5, via = "a" }
health_check = { frequency = "7s", doc_path = "/up" }
[rule.web]
listen = "127.0.0.1:80"
members = ["a:1"]
http = { via = "b" }
health_check = { fall = 9 }
[rule.raw]
listen = "127.0.0.1:81"
members = ["a:1"]
health_check = { type = "tcp" }
"#;
    let config = parse("test.toml", text).unwrap();
    let http = &config.rules[0].http;
    assert_eq!((http.retries, http.via.as_deref()), (5, Some("b")));
    let check = config.groups[0].health_check.as_ref().unwrap();
    assert_eq!((check.interval, check.fall), (Duration::from_secs(7), 9));
    assert_eq!((check.kind, &*check.path), (HealthCheckKind::Http, "/up"));
    let check = config.groups[1].health_check.as_ref().unwrap();
    assert_eq!(
        (check.interval, check.kind),
        (Duration::from_secs(7), HealthCheckKind::Tcp)
    );
}

#[test]
fn checks_speak_what_the_rules_of_their_group_do() {
    use crate::MemberProtocol::{Auto, Http1, Http2};
    let check = |line: &str, rules: &[&str]| {
        let mut text = format!("[group.app]\nmembers = [\"a:1\"]\nhealth_check = {{ {line} }}\n");
        for (number, spoken) in rules.iter().enumerate() {
            text += &format!(
                "[rule.r{number}]\nlisten = \"127.0.0.1:{}\"\ngroup = \"app\"\n{spoken}\n",
                number + 80
            );
        }
        let config = parse("test.toml", &text).unwrap();
        config.groups[0].health_check.clone().unwrap().protocol
    };
    let [h2, auto, http1, tcp] = ["h2", "auto", "http1", ""].map(|name| match name {
        "" => "protocol = \"tcp\"".to_owned(),
        name => format!("http = {{ member_protocol = \"{name}\" }}"),
    });
    let (h2, auto, http1, tcp) = (&*h2, &*auto, &*http1, &*tcp);
    for (line, rules, protocol) in [
        ("path = \"/\"", &[h2][..], Some(Http2)),
        ("path = \"/\"", &[h2, tcp, h2], Some(Http2)),
        ("path = \"/\"", &[h2, auto], None),
        ("path = \"/\"", &[auto], Some(Auto)),
        ("path = \"/\"", &[tcp], None),
        ("path = \"/\", port = 81", &[h2], None),
        ("path = \"/\", plain = true", &[h2], None),
        ("port = 81, protocol = \"h2\"", &[http1], Some(Http2)),
        ("protocol = \"http1\"", &[h2], Some(Http1)),
        ("type = \"tcp\"", &[h2], None),
    ] {
        assert_eq!(check(line, rules), protocol, "{line} {rules:?}");
    }
}

#[test]
fn u12_older_names_of_keys_are_read_and_both_at_once_are_refused() {
    let check = |line: &str| {
        let text = with(&format!("health_check = {{ {line} }}"));
        parse("test.toml", &text)
            .map(|mut config| config.groups.remove(0).into_inner().health_check)
    };
    let new = check("interval = \"5s\", path = \"/up\"").unwrap();
    let found = new.as_ref().unwrap();
    let expected = (Duration::from_secs(5), "/up", HealthCheckKind::Http);
    assert_eq!((found.interval, &*found.path, found.kind), expected);
    let old = check("frequency = \"5s\", doc_path = \"/up\"").unwrap();
    assert_eq!(old, new);
    one_error(
        &with("health_check = { doc_path = \"/a\", path = \"/b\" }"),
        "test.toml:3:18: rule.web.health_check.doc_path: an older name of `path`, which is set",
        &[],
    );
    // Messages name what stands in the file.
    one_error(
        &with("health_check = { frequency = 5 }"),
        "test.toml:3:30: rule.web.health_check.frequency: a time needs a unit",
        &[],
    );
    one_error(
        &with("path = \"/\""),
        "test.toml:3:1: rule.web.path: does not belong here, but in [rule.NAME.health_check]",
        &[],
    );
    assert!(crate::reference::keys().contains("- also read as: `frequency`\n"));
}

#[test]
fn ejection_has_its_settings_and_says_what_cannot_be() {
    let text = with("connection_failure_limit = 3\nejection = { window = \"30s\", time = \"1m\" }");
    let config = parse("test.toml", &text).unwrap();
    let ejection = &config.groups[0].settings.ejection;
    assert_eq!((ejection.failure_limit, ejection.min_requests), (3, 20));
    assert_eq!(ejection.window, Duration::from_secs(30));
    assert_eq!(
        (ejection.time.as_secs(), ejection.max_time.as_secs()),
        (60, 300)
    );
    // Only what is said differs from what all have.
    let text = format!("[defaults]\nejection = {{ excess = 0.5 }}\n{text}");
    let inherited = parse("test.toml", &text).unwrap();
    let inherited = &inherited.groups[0].settings.ejection;
    assert_eq!((inherited.excess, inherited.window), (0.5, ejection.window));
    for (line, start) in [
        (
            "ejection = { window = \"1500ms\" }",
            "ejection.window: not a number of whole seconds",
        ),
        (
            "ejection = { window = \"61s\" }",
            "ejection.window: out of range",
        ),
        (
            "ejection = { max_time = \"5s\" }",
            "ejection: `time`, 10s, is longer than `max_time`",
        ),
    ] {
        let errors = errors(&with(line));
        assert_eq!(errors.len(), 1, "{errors:#?}");
        assert!(errors[0].contains(start), "{errors:#?}");
    }
}

#[test]
fn an_empty_file_is_a_configuration_without_rules() {
    let config = parse("test.toml", "").unwrap();
    assert_eq!(config, Config::default());
}

#[test]
fn all_errors_are_reported_at_once_in_the_order_of_the_file() {
    let text = r#"
worker = 2
[rule.web]
listen = "127.0.0.1"
connection_timeout = 5
members = ["127.0.0.1:8001", "127.0.0.1:8001", { address = "a:80", weight = -1 }]
strategy = "randon"
[rule.api]
listen = "127.0.0.1:81"
group = "apo"
[group.api]
members = []
"#;
    let errors = errors(text);
    let starts = [
        "test.toml:2:1: worker: unknown key, did you mean \"workers\"?",
        "test.toml:4:10: rule.web.listen: not an address; found \"127.0.0.1\"; allowed: an IP",
        "test.toml:5:22: rule.web.connection_timeout: a time needs a unit; found 5; \
         allowed: a time from \"1ms\" to \"10m\"",
        "test.toml:6:30: rule.web.members[1]: 127.0.0.1:8001 is a member already",
        "test.toml:6:77: rule.web.members[2].weight: out of range; found -1; allowed: a number \
         from 0 to 1000",
        "test.toml:7:12: rule.web.strategy: unknown strategy, did you mean \"random\"?; found \
         \"randon\"; allowed: one of",
        "test.toml:10:9: rule.api.group: unknown group, did you mean \"api\"?; allowed: \"api\"",
        "test.toml:12:11: group.api.members: no members; found an empty list; allowed: a list",
    ];
    assert_eq!(errors.len(), starts.len(), "{errors:#?}");
    for (error, start) in errors.iter().zip(starts) {
        assert!(error.starts_with(start), "{error}\nexpected {start}");
    }
}

#[test]
fn syntax_errors_do_not_hide_the_others_nor_make_new_ones() {
    let errors = errors(
        "[rule.web]\nlisten =\nconnection_timeout = 5s\nhalf_close = 1\n\
         members = [\"a:1\" \"b:2\"]\nmax_connections \n",
    );
    let lines: Vec<_> = errors.iter().map(|error| &error[..12]).collect();
    let expected = [
        "test.toml:2:",
        "test.toml:3:",
        "test.toml:4:",
        "test.toml:5:",
        "test.toml:6:",
    ];
    assert_eq!(lines, expected, "{errors:#?}");
    assert!(
        errors[1].contains("must stand in quotes; found `5s`"),
        "{}",
        errors[1]
    );
}

#[test]
fn a_key_or_table_that_stands_twice_is_refused() {
    let text = with("half_close = true\nhalf_close = false");
    one_error(
        &text,
        "test.toml:4:1: duplicate key; found `half_close`",
        &[],
    );
    let text = with("") + "[rule.web]\n";
    one_error(&text, "test.toml:5:7: duplicate key", &[]);
}

#[test]
fn a_key_in_the_wrong_table_is_sent_home() {
    one_error(
        &with("workers = 2"),
        "test.toml:3:1: rule.web.workers: does not belong here, but at the top of the file",
        &[],
    );
    one_error(
        &with("retry_budget = 0.2"),
        "test.toml:3:1: rule.web.retry_budget: does not belong here, but in [rule.NAME.http]",
        &[],
    );
    one_error(
        &with("doc_path = \"/\""),
        "test.toml:3:1: rule.web.doc_path: does not belong here, but in \
         [rule.NAME.health_check] or [group.NAME.health_check]",
        &[],
    );
}

#[test]
fn an_expression_that_no_path_matches_is_warned_of() {
    let list_warnings = |regexes: &str| {
        let route = format!("[[rule.web.routes]]\npath_regex = {regexes}\nanswer.status = 403\n");
        let config = parse("test.toml", &(with("") + &route)).unwrap();
        let warnings = config.warnings.iter();
        warnings.map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(list_warnings("[\"/api/.*\", \".*\"]").is_empty());
    let warnings = list_warnings("[\"/api/.*\", \"api/.*\"]");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let wanted = "test.toml:6:14: rule.web.routes[0].path_regex: \"api/.*\" matches no path";
    assert!(warnings[0].starts_with(wanted), "{warnings:?}");
}

#[test]
fn a_list_that_is_not_closed_is_one_error() {
    let text = "[rule.web]\nlisten = \"127.0.0.1\"\nmembers = [\"a:1\",\n\"b:2\"\n\n\
                [rule.b]\nlisten = \"127.0.0.1:2\"\nmembers = [\"a:1\"]\n";
    let errors = errors(text);
    assert_eq!(errors.len(), 2, "{errors:#?}");
    assert!(errors[0].starts_with("test.toml:2:10: rule.web.listen: not an address"));
    assert!(errors[1].starts_with("test.toml:3:11: the list or table that begins here is not"));
    one_error(
        "a = { b = 1,\nc = 2\n[d]\n",
        "test.toml:1:5: the list or table",
        &[],
    );
}

#[test]
fn habits_from_elsewhere_get_a_hint() {
    one_error(
        &with("timeout = \"1s\""),
        "test.toml:3:1: rule.web.timeout: unknown key, did you mean \"connection_timeout\" or",
        &["\"response_timeout\"", "\"request_timeout\""],
    );
    for (key, ours) in [
        ("rewrite", "\"rewrite_prefix\" or \"rewrite_path\""),
        ("strip_prefix", "\"rewrite_prefix\""),
        ("return", "\"redirect\""),
    ] {
        let route = format!("[[rule.web.routes]]\npath = \"/a\"\n{key} = \"/b\"\n");
        one_error(
            &(with("") + &route),
            &format!("test.toml:7:1: rule.web.routes[0].{key}: unknown key, did you mean {ours}"),
            &[],
        );
    }
    one_error(
        &with("access_log = \"stdout\""),
        "test.toml:3:1: rule.web.access_log: does not belong here, but is a table of its own",
        &[],
    );
    one_error(
        "[[rule]]\nname = \"web\"",
        "test.toml:1:1: rule: wrong type; found a list",
        &["tables with a name each: [rule.NAME]"],
    );
}

#[test]
fn wrong_values_are_refused_with_what_is_allowed() {
    let cases = [
        ("half_close = \"yes\"", "wrong type", "true or false"),
        (
            "protocol = \"htp\"",
            "did you mean \"http\"",
            "\"http\", \"tcp\"",
        ),
        ("max_connections = 0", "out of range", "from 1 to 10000000"),
        ("max_connections = 1.5", "wrong type", "a whole number"),
        (
            "max_connections = 99999999999999999999",
            "out of range",
            "a whole",
        ),
        (
            "idle_timeout = \"5 parsecs\"",
            "unknown unit \"parsecs\"",
            "a time from",
        ),
        (
            "idle_timeout = \"99999999999999999999h\"",
            "not a time",
            "a time",
        ),
        ("idle_timeout = \"2d\"", "out of range", "\"1d\""),
        ("panic_threshold = nan", "wrong type", "from 0 to 1"),
        ("panic_threshold = 1.01", "out of range", "from 0 to 1"),
        ("granularity = 3", "wrong type", "\"per_session\""),
        ("load = \"heat\"", "unknown load", "cpu"),
        (
            "hash_key = \"query:x\"",
            "no part of a request",
            "\"header:NAME\"",
        ),
        (
            "strategy = { choices = 2 }",
            "name of the strategy is missing",
            "\"random\"",
        ),
        (
            "strategy = { name = \"random\", x = 2 }",
            "unknown parameter",
            "no parameters",
        ),
        (
            "strategy = { name = \"least_loaded\", reject_threshold = 2, critical_threshold = 1 }",
            "a critical_threshold of 1 is not above",
            "2",
        ),
        (
            "http = { max_header_bytes = \"1TB\" }",
            "not a size",
            "\"1KiB\" to \"1MiB\"",
        ),
        ("http = { via = \"a b\" }", "not valid", "token"),
        ("http = 1", "wrong type", "a table"),
        (
            "alert = { threshold = 0 }",
            "out of range",
            "greater than 0",
        ),
        (
            "alert = { threshold = { above = 1 } }",
            "not a threshold",
            "`above_average`",
        ),
        (
            "alert = { threshold = {} }",
            "not a threshold",
            "one such number",
        ),
        (
            "health_check = { doc_path = \"x\" }",
            "not valid",
            "begins with",
        ),
        (
            "health_check = { response_code = 99 }",
            "not a response code",
            "100 to 599",
        ),
        (
            "health_check = { response_code = \"300-200\" }",
            "not a response",
            "100",
        ),
        (
            "health_check = { type = \"tcp\", doc_text = \"x\" }",
            "needs `type",
            "",
        ),
    ];
    for (line, message, allowed) in cases {
        one_error(&with(line), "test.toml:3:", &[message, allowed]);
    }
}

#[test]
fn members_may_be_unix_sockets() {
    let long = "x".repeat(106);
    let text = format!(
        "[rule.web]\nlisten = \"127.0.0.1:80\"\nmembers = [\"unix:/run/App.sock\", \
         {{ address = \"unix:@app\", location = \"here\" }}, \"unix:/{long}\", \"a.example:80\"]\n\
         [location.\"unix:/run/App.sock\"]\n"
    );
    let config = parse("test.toml", &text).unwrap();
    let members = &config.groups[0].members;
    let known: Vec<_> = members.iter().map(MemberConfig::unix).collect();
    let path = format!("/{long}");
    assert_eq!(
        known,
        [Some("/run/App.sock"), Some("@app"), Some(&*path), None]
    );
    assert_eq!(members[0].name(), "unix:/run/App.sock");
    let looked_up = members.iter().map(MemberConfig::is_looked_up);
    assert_eq!(looked_up.collect::<Vec<_>>(), [false, false, false, true]);
}

#[test]
fn rules_may_listen_on_unix_sockets() {
    let text = "[rule.web]\nlisten = [\"unix:/run/a.sock\", \"127.0.0.1:80\", \"unix:@a\"]\n\
                listen_mode = \"0660\"\nmembers = [\"a:1\"]\naccept_proxy = [\"unix\", \"10.0.0.0/8\"]\n";
    let config = parse("test.toml", text).unwrap();
    let rule = &config.rules[0];
    let listen: Vec<_> = rule.listen.iter().map(ToString::to_string).collect();
    assert_eq!(listen, ["unix:/run/a.sock", "127.0.0.1:80", "unix:@a"]);
    assert_eq!(rule.socket_mode(), Some(0o660));
    let proxies = rule.accept_proxy.as_ref().unwrap();
    let contains = |ip: &str| proxies.contains(Some(ip.parse().unwrap()), || true);
    let is_unix = proxies.contains(None, || false);
    assert!(is_unix && contains("10.1.2.3") && !contains("127.0.0.1"));
    // That of the admin API, and the one of the rule.
    assert_eq!(config.listens().count(), 2);
}

#[test]
fn a_rule_may_believe_processes_of_the_own_user_alone() {
    let text = "[rule.web]\nlisten = \"unix:@a\"\nmembers = [\"a:1\"]\naccept_proxy = [\"self\"]\n";
    let config = parse("test.toml", text).unwrap();
    let proxies = config.rules[0].accept_proxy.as_ref().unwrap();
    assert!(proxies.contains(None, || true) && !proxies.contains(None, || false));
    assert!(!proxies.contains(Some("127.0.0.1".parse().unwrap()), || true));
}

#[test]
fn what_is_wrong_with_a_unix_listener_is_said_where_it_stands() {
    for (lines, line, message) in [
        (
            "listen = \"127.0.0.1:80\"\naccept_proxy = [\"self\"]",
            3,
            "names no Unix socket",
        ),
        ("listen = \"unix:a.sock\"", 2, "must be absolute"),
        (
            "listen = \"unix:/a\"\nlisten_mode = \"0980\"",
            3,
            "in octal",
        ),
        (
            "listen = \"unix:/a\"\nprotocol = \"ftp\"",
            2,
            "cannot come over a Unix socket",
        ),
        (
            "listen = \"127.0.0.1:80\"\naccept_proxy = [\"unix\"]",
            3,
            "names no Unix socket",
        ),
        (
            "listen = \"unix:/a\"\naccept_proxy = [\"10.0.0.0/8\"]",
            3,
            "add \"unix\"",
        ),
    ] {
        let text = format!("[rule.web]\n{lines}\nmembers = [\"a:1\"]\n");
        one_error(&text, &format!("test.toml:{line}:"), &[message]);
    }
    let twice = "[rule.a]\nlisten = \"unix:/a\"\nmembers = [\"a:1\"]\n\
                 [rule.b]\nlisten = \"unix:/a\"\nmembers = [\"a:1\"]\n";
    one_error(
        twice,
        "test.toml:5:",
        &["rule \"a\" listens on unix:/a already"],
    );
    for listen in ["127.0.0.1:80", "unix:@a"] {
        let text = format!(
            "[rule.a]\nlisten = \"{listen}\"\nlisten_mode = \"0660\"\nmembers = [\"a:1\"]\n"
        );
        let config = parse("test.toml", &text).unwrap();
        let message = &config.warnings[0].message;
        assert!(message.contains("no Unix socket with a file"), "{message}");
    }
    let limited =
        "[rule.a]\nlisten = \"unix:/a\"\nmembers = [\"a:1\"]\nlimits = { connections = 5 }\n";
    let config = parse("test.toml", limited).unwrap();
    assert!(
        config.warnings[0].message.contains("have no address"),
        "{:?}",
        config.warnings
    );
}

#[test]
fn what_is_no_unix_socket_is_refused() {
    let long = format!("unix:/{}", "x".repeat(107));
    for (address, message) in [
        ("unix:run/app.sock", "must be absolute"),
        ("unix:", "is missing"),
        ("unix:@", "is missing"),
        ("unix:///run/app.sock", "not a URL"),
        ("unix@/run/app.sock", "is written as \"unix:/PATH\""),
        ("/run/app.sock", "needs `unix:` before its path"),
        ("unix:/run/\\u0000", "no control characters"),
        (&long, "at most 107 bytes"),
    ] {
        let text = with(&format!("members = [\"{address}\"]"));
        let text = text.replacen("members = [\"a:1\"]\n", "", 1);
        let errors = errors(&text);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].contains(message), "{errors:?}");
    }
    let errors = errors("[agent]\nbroker = \"unix:/run/app.sock\"\n");
    assert!(!errors.is_empty());
}

#[test]
fn what_needs_an_address_is_refused_with_unix_sockets() {
    for (line, message) in [
        (
            "source = \"client\"",
            "rule.web.source: member unix:/a is a Unix socket",
        ),
        (
            "health_check = { port = 81 }",
            "a socket has no other `port`",
        ),
        ("member_tls = true", "set `server_name`"),
        ("agent_check = { port = 81 }", "no agent can be asked"),
        ("orca = { out_of_band = { port = 81 } }", "rule.web.orca: "),
        (
            "prometheus = { url = \"http://{host}:1/\", preset = \"node_exporter\" }",
            "`{host}`",
        ),
        ("monitor = { key_file = \"k\" }", "cannot be asked without"),
        ("protocol = \"ftp\"", "FTP rule \"web\""),
        (
            "[negotiator]\nlisten = \"127.0.0.1:82\"\n[cluster.web]\ngroup = \"web\"",
            "to which no client can be sent",
        ),
    ] {
        let text = format!(
            "[rule.web]\nlisten = \"127.0.0.1:80\"\nmembers = [\"b:1\", \"unix:/a\"]\n{line}\n"
        );
        let errors = errors(&text);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].contains(message), "{errors:?}");
    }
    let text = "[rule.web]\nlisten = \"127.0.0.1:80\"\nmembers = [\"unix:/a\"]\n\
                member_tls = { server_name = \"app.example\" }\nhealth_check = true\n\
                prometheus = { url = \"http://127.0.0.1:1/\", preset = \"node_exporter\" }\n";
    parse("test.toml", text).unwrap();
}

#[test]
fn wrong_member_addresses_are_refused() {
    for (address, message) in [
        ("a", "the port is missing"),
        ("a:0", "not a port"),
        ("a:65536", "not a port"),
        ("a:+80", "not a port"),
        ("a:080", "not a port"),
        (":80", "not a host name"),
        ("http://a:80", "a URL"),
        ("::1:80", "needs brackets"),
        ("[::1:80", "not a host name"),
        ("[a]:80", "not an IPv6 address"),
        ("300.1.1.1:80", "not a host name"),
        ("a b:80", "not a host name"),
        ("-a:80", "not a host name"),
    ] {
        let text = format!("[group.a]\nmembers = [{address:?}]");
        one_error(&text, "test.toml:2:12: group.a.members[0]", &[message]);
    }
}

#[test]
fn rules_need_an_address_and_a_group() {
    one_error(
        "[rule.web]\nmembers = [\"a:1\"]",
        "test.toml:1:7: rule.web: `listen` is missing",
        &[],
    );
    one_error(
        "[rule.web]\nlisten = \"127.0.0.1:80\"",
        "test.toml:1:7: rule.web: names neither `members` nor a `group`",
        &["[group.NAME]"],
    );
    one_error(
        "[rule.web]\nlisten = \"127.0.0.1:80\"\n[group.web]\nmembers = [\"a:1\"]",
        "test.toml:1:7: rule.web: names neither",
        &["write group = \"web\""],
    );
    one_error(
        &(with("") + "[group.web]\nmembers = [\"a:1\"]"),
        "test.toml:5:8: group.web: a rule with members has a group of its own",
        &[],
    );
    let text = "[rule.web]\nlisten = \"127.0.0.1:80\"\ngroup = \"a\"\nslow_start = \"1s\"\n\
                [group.a]\nmembers = [\"a:1\"]";
    one_error(
        text,
        "test.toml:4:14: rule.web.slow_start: belongs in [group.a]",
        &[],
    );
}

#[test]
fn nobody_listens_on_the_address_of_another() {
    let text = with("") + "[rule.b]\nlisten = [\"127.0.0.1:80\"]\nmembers = [\"a:1\"]";
    one_error(
        &text,
        "test.toml:6:10: rule.b.listen",
        &["rule \"web\" listens on"],
    );
    let text = with("") + "[rule.b]\nlisten = \"127.0.0.1:9900\"\nmembers = [\"a:1\"]";
    one_error(
        &text,
        "test.toml:6:10: rule.b.listen",
        &["the admin API listens"],
    );
    let free = text.replace("9900", "0").replace(":80", ":0");
    assert_eq!(parse("test.toml", &free).unwrap().rules.len(), 2);
}

#[test]
fn http_keys_are_for_http_rules() {
    let text = with("protocol = \"tcp\"\nheader_timeout = \"1s\"\n[rule.web.http]\nretries = 1");
    let errors = errors(&text.replace("members = [\"a:1\"]\n", ""));
    assert!(
        errors
            .iter()
            .any(|e| e.contains("rule.web.header_timeout: only a rule with"))
    );
    assert!(
        errors
            .iter()
            .any(|e| e.contains("rule.web.http: only a rule with"))
    );
}

/// A TCP rule with `lines`, then groups by name.
fn named(lines: &str, names: &str) -> String {
    format!(
        "[rule.x]\nlisten = \"127.0.0.1:80\"\nprotocol = \"tcp\"\n{lines}\n[rule.x.sni]\n{names}\n\
         [group.a]\nmembers = [\"a:1\"]\n[group.b]\nmembers = [\"b:1\"]"
    )
}

#[test]
fn groups_may_be_chosen_by_name() {
    let names = "\"*.example.org\" = \"b\"\n\"www.example.org\" = \"a\"";
    for (lines, groups) in [
        ("", &["a", "b"][..]),
        ("group = \"b\"", &["b", "a"]),
        ("members = [\"c:1\"]", &["x", "a", "b"]),
    ] {
        let config = parse("test.toml", &named(lines, names)).unwrap();
        assert_eq!(config.rules[0].group_names(), groups);
        assert_eq!(config.warnings, []);
    }
}

#[test]
fn what_is_wrong_with_groups_by_name() {
    for (lines, names, start, part) in [
        (
            "",
            "\"a.example\" = \"c\"",
            "test.toml:6:15: rule.x.sni.\"a.example\": unknown group",
            "\"a\", \"b\"",
        ),
        (
            "",
            "\"a.example\" = \"a\"\n\"A.example\" = \"b\"",
            "test.toml:6:15: rule.x.sni.\"a.example\": the same name as \"A.example\"",
            "",
        ),
        (
            "",
            "\"a.example\" = \"a\"\n\"a.example\" = \"b\"",
            "test.toml:7:1: duplicate key",
            "",
        ),
        (
            "",
            "\"*.*.example\" = \"a\"",
            "test.toml:6:17: rule.x.sni.\"*.*.example\": the name must be a host name",
            "",
        ),
        (
            "",
            "\"a.example\" = 1",
            "test.toml:6:15: rule.x.sni.\"a.example\": wrong type",
            "the name of a group",
        ),
        ("", "", "test.toml:5:1: rule.x.sni: has no name", ""),
        (
            "strategy = \"random\"",
            "\"a.example\" = \"a\"",
            "test.toml:4:12: rule.x.strategy: belongs in the groups that `sni` names",
            "",
        ),
    ] {
        let text = named(lines, names);
        let said = errors(&text);
        assert!(said[0].starts_with(start), "{said:?}");
        assert!(said[0].contains(part), "{said:?}");
        assert_eq!(said.len(), 1, "{said:?}");
    }
    let text = named("group = \"b\"", "\"a.example\" = \"a\"");
    let text = text.replace("\"tcp\"", "\"http\"");
    one_error(
        &text,
        "test.toml:5:1: rule.x.sni: only a rule with `protocol = \"tcp\"`",
        &[],
    );
}

#[test]
fn some_names_pass_through_where_tls_of_others_ends() {
    let names = "\"A.example\" = \"a\"\n\"b.example\" = \"b\"";
    let tls = "tls = { certificates = \"a.pem\" }";
    let with = |lines: &str| named(&format!("{lines}\n{tls}"), names);
    let passed = |lines: &str| {
        let config = parse("test.toml", &with(lines)).unwrap();
        let rule = &config.rules[0];
        rule.passed_groups(&rule.passed_names())
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(passed("pass_through = []"), [""; 0]);
    assert_eq!(passed("pass_through = [\"a.example\"]"), ["a"]);
    let all = "pass_through = [\"a.example\", \"B.example\", \"*\"]";
    assert_eq!(passed(&format!("group = \"a\"\n{all}")), ["a", "b"]);
    assert_eq!(passed("members = [\"c:1\"]\npass_through = [\"*\"]"), ["x"]);

    for (text, message) in [
        (with("pass_through = [\"c.example\"]"), "\"c.example\" is no name of `sni`"),
        (with("pass_through = [\"*\"]"), "add `group`"),
        (named("pass_through = [\"b.example\"]", names), "add `tls`"),
        (with("pass_through = [\"b..example\"]"), "a name of `sni`"),
        (
            "[rule.x]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:1\"]\npass_through = [\"b.example\"]".into(),
            "only a rule with `sni`",
        ),
    ] {
        let said = errors(&text);
        assert!(said.iter().any(|one| one.starts_with("test.toml:4:") && one.contains(message)), "{said:?}");
    }
}

#[test]
fn hosts_that_clients_connect_for_need_tls() {
    let with = |tls: &str, list: &str| {
        format!(
            "[rule.x]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:1\"]\n{tls}\nhttp.separate_hosts = {list}"
        )
    };
    let tls = "tls = { certificates = \"a.pem\" }";
    let list = r#"["a.example", "*.b.example", "**.c.example", "*"]"#;
    let config = parse("test.toml", &with(tls, list)).unwrap();
    assert_eq!(config.rules[0].http.separate_hosts.len(), 4);
    let warnings = parse("test.toml", &with("", list)).unwrap().warnings;
    let warning = warnings[0].to_string();
    assert!(
        warning.starts_with("test.toml:5:") && warning.contains("add `tls`"),
        "{warning}"
    );
    one_error(
        &with(tls, r#"["a.example", "**"]"#),
        "test.toml:5:",
        &["http.separate_hosts", "all other hosts"],
    );
}

#[test]
fn bad_certificates_are_not_accepted_where_one_is_required() {
    let with = |keys: &str| {
        format!(
            "[rule.x]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:1\"]\n[rule.x.tls]\ncertificates = \"a.pem\"\n\
             client_certificates = {{ ca_file = \"ca.pem\"{keys} }}"
        )
    };
    for keys in [
        ", required = false, accept_invalid = true",
        ", accept_invalid = true",
    ] {
        let config = parse("test.toml", &with(keys)).unwrap();
        let clients = config.rules[0].tls.as_ref().unwrap();
        let clients = clients.client_certificates.as_ref().unwrap();
        assert!(clients.accept_invalid && !clients.required, "{keys}");
    }
    one_error(
        &with(", required = true, accept_invalid = true"),
        "test.toml:6:",
        &["accept_invalid", "remove `required`"],
    );
}

#[test]
fn names_of_members_certificates_are_hosts_or_uris() {
    let with = |name: &str| {
        format!(
            "[rule.x]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:1\"]\n\
             member_tls = {{ certificate_names = [\"{name}\"] }}"
        )
    };
    for name in [
        "a.example",
        "10.0.0.1",
        "fe80::1",
        "spiffe://a.example/b",
        "urn:x",
    ] {
        assert!(parse("test.toml", &with(name)).is_ok(), "{name}");
    }
    for name in ["", "a b", "://a", "1a:b", "spiffe:", "a:b c"] {
        one_error(
            &with(name),
            "test.toml:4:",
            &["certificate_names", "a URI with a scheme"],
        );
    }
}

#[test]
fn only_services_split_a_weight() {
    one_error(
        "[rule.x]\nlisten = \"127.0.0.1:80\"\nmembers = [{ address = \"127.0.0.1:1\", split_weight = true }]",
        "test.toml:3:",
        &[
            "split_weight",
            "only a member with `kubernetes` has this key",
        ],
    );
}

#[test]
fn the_admin_api_is_not_open_to_the_network_without_a_token() {
    one_error(
        "[admin]\nlisten = \"0.0.0.0:9900\"",
        "test.toml:2:10: admin.listen: 0.0.0.0:9900 is not a loopback address",
        &["`token_file`"],
    );
    let text = "[admin]\nlisten = \"0.0.0.0:9900\"\n";
    assert!(parse("t", &format!("{text}token = \"0123456789\"")).is_ok());
    let off = parse("t", &format!("{text}enabled = false")).unwrap();
    assert_eq!(off.admin, None);
    one_error(
        "[admin]\ntoken = \"short\"",
        "test.toml:2:9: admin.token: not valid",
        &[],
    );
}

/// A file that only its owner and group may read.
fn private(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o640)).unwrap();
}

#[test]
fn s24_a_token_that_everybody_may_read_is_refused() {
    let folder = scratch_folder("token-mode");
    let file = folder.join("evenkeel.toml");
    std::fs::write(&file, "[admin]\ntoken_file = \"token\"").unwrap();
    private(&folder.join("token"), "secret-secret\n");
    assert!(load_config(&file).is_ok());
    for mode in [0o644, 0o602, 0o641] {
        let token = folder.join("token");
        private(&token, "secret-secret\n");
        assert!(load_config(&file).is_ok());
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&token, permissions).unwrap();
        // The one that was good is kept; whoever starts has none.
        assert!(load_config(&file).is_ok());
        crate::kept::forget([token.as_path()], []);
        let errors = load_config(&file).unwrap_err();
        assert_eq!(errors.problems[0].line, 2, "{errors}");
        assert!(errors.to_string().contains("chmod 640"), "{errors}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_token_can_come_from_a_file_beside_the_configuration() {
    let folder = scratch_folder("token");
    private(&folder.join("token"), "  secret-secret\n");
    let file = folder.join("evenkeel.toml");
    std::fs::write(
        &file,
        "[admin]\nlisten = \"0.0.0.0:1\"\ntoken_file = \"token\"",
    )
    .unwrap();
    let config = load_config(&file).unwrap();
    assert_eq!(
        config.admin.unwrap().token.as_deref(),
        Some("secret-secret")
    );

    let token = folder.join("token");
    std::fs::write(&token, "no good\n").unwrap();
    let kept = load_config(&file).unwrap().admin.unwrap().token;
    assert_eq!(kept.as_deref(), Some("secret-secret"));
    crate::kept::forget([token.as_path()], []);
    let errors = load_config(&file).unwrap_err();
    assert_eq!(
        (errors.problems[0].line, errors.problems.len()),
        (3, 1),
        "{errors}"
    );
    std::fs::remove_file(folder.join("token")).unwrap();
    let errors = load_config(&file).unwrap_err();
    assert!(
        errors
            .to_string()
            .contains("token cannot be read: No such file"),
        "{errors}"
    );
    std::fs::remove_dir_all(folder).unwrap();
}

/// A new folder of this test.
pub(super) fn scratch_folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("evenkeel-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn a_file_that_cannot_be_read_is_an_error() {
    let folder = scratch_folder("unreadable");
    let missing = load_config(&folder.join("none.toml"))
        .unwrap_err()
        .to_string();
    assert!(
        missing.contains("none.toml: cannot be read: No such file"),
        "{missing}"
    );
    let a_folder = load_config(&folder).unwrap_err().to_string();
    assert!(a_folder.contains("not a regular file"), "{a_folder}");
    let file = folder.join("binary.toml");
    std::fs::write(&file, b"a = \xff").unwrap();
    let binary = load_config(&file).unwrap_err().to_string();
    assert!(
        binary.contains("is not UTF-8 text: the byte at offset 4"),
        "{binary}"
    );
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_group_that_no_rule_uses_is_a_warning() {
    let config = parse("test.toml", "[group.spare]\nmembers = [\"a:1\"]").unwrap();
    let warnings: Vec<_> = config.warnings.iter().map(Problem::to_string).collect();
    assert_eq!(
        warnings,
        ["test.toml:1:8: group.spare: no rule, no cluster and no [xds] uses this group"]
    );
}

#[test]
fn alerts_that_can_move_nobody_are_a_warning() {
    let warnings = |granularity: &str| {
        let text = format!(
            "[rule.x]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:1\"]\n\
             granularity = {granularity:?}\nalert = {{ close_idle = \"2s\", move_share = 0.1 }}"
        );
        let config = parse("test.toml", &text).unwrap();
        let alert = &config.groups[0].settings.alert;
        assert_eq!(alert.close_idle, Some(Duration::from_secs(2)));
        assert_eq!((alert.move_share, alert.move_sessions), (0.1, false));
        let warnings = config.warnings.iter().map(Problem::to_string);
        warnings.collect::<Vec<_>>()
    };
    assert_eq!(warnings("on_demand"), [""; 0]);
    let [warning] = &warnings("per_request")[..] else {
        panic!("one warning");
    };
    assert!(
        warning.starts_with("test.toml:5:") && warning.contains("no effect"),
        "{warning}"
    );
}

#[test]
fn a_key_that_no_request_can_have_is_a_warning() {
    let warnings = |protocol: &str, key: &str| {
        let text = format!(
            "[rule.x]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:1\"]\n\
             protocol = {protocol:?}\nstrategy = \"hash\"\nhash_key = {key:?}"
        );
        let config = parse("test.toml", &text).unwrap();
        assert_eq!(config.groups[0].settings.hash_key.to_string(), key);
        let warnings = config.warnings.iter().map(Problem::to_string);
        warnings.collect::<Vec<_>>()
    };
    assert_eq!(warnings("http", "header:X-User"), [""; 0]);
    assert_eq!(warnings("tcp", "client"), [""; 0]);
    let warning = warnings("tcp", "uri").concat();
    assert!(warning.starts_with("test.toml:5:"), "{warning}");
}

#[test]
fn costs_are_bounded() {
    let with = |line: &str, http: &str| {
        format!(
            "[rule.x]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:1\"]\n{line}\n[rule.x.http]\n{http}"
        )
    };
    let config = parse("test.toml", &with("cost = 2.5", "cost_header = \"X-Cost\"")).unwrap();
    let rule = &config.rules[0];
    assert_eq!(rule.cost.get(), 2.5);
    assert_eq!(rule.http.cost_header.as_deref(), Some("X-Cost"));
    let plain = parse("test.toml", &with("", "")).unwrap();
    assert_eq!(plain.rules[0].cost.get(), 1.0);
    assert_eq!(plain.rules[0].http.cost_header, None);
    for bad in ["0", "0.001", "1001", "-1", "nan", "inf", "\"5\""] {
        let errors = parse("test.toml", &with(&format!("cost = {bad}"), "")).unwrap_err();
        let text = errors.to_string();
        assert!(
            text.contains("test.toml:4:") && text.contains("a number from 0.01 to 1000"),
            "{text}"
        );
    }
    for bad in ["", "X Cost", "X-Cost:"] {
        let text = with("", &format!("cost_header = {bad:?}"));
        let errors = parse("test.toml", &text).unwrap_err().to_string();
        assert!(errors.contains("the name of a header field"), "{errors}");
    }
}

#[test]
fn priorities_are_of_rules_clients_fields_and_routes() {
    let with = |line: &str, http: &str, route: &str| {
        format!(
            "[rule.x]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:1\"]\n{line}\n[rule.x.http]\n{http}\n\
             [[rule.x.routes]]\npath = \"/a\"\n{route}"
        )
    };
    let text = with(
        "priority = 3\nclient_priorities = [\
         { networks = [\"10.1.0.0/16\"], priority = 7 }, { networks = [\"10.0.0.0/8\"], priority = 0 }]",
        "priority_header = \"X-Priority\"",
        "priority = 6",
    );
    let config = parse("test.toml", &text).unwrap();
    let rule = &config.rules[0];
    assert_eq!(rule.priority, 3);
    assert_eq!(rule.http.priority_header.as_deref(), Some("X-Priority"));
    assert_eq!(rule.routes.list()[0].priority, Some(6));
    let of = |client: &str| ClientPriority::find(&rule.client_priorities, client.parse().ok());
    let of = ["10.1.2.3", "10.2.2.3", "11.0.0.1", "a Unix socket"].map(of);
    assert_eq!(of, [Some(7), Some(0), None, None]);
    let plain = parse("test.toml", &with("", "", "")).unwrap();
    assert_eq!(plain.rules[0].priority, PRIORITY);
    for (line, http, route, at, wanted) in [
        ("priority = 8", "", "", 4, "from 0 to 7"),
        ("priority = -1", "", "", 4, "from 0 to 7"),
        ("priority = \"high\"", "", "", 4, "from 0 to 7"),
        (
            "",
            "priority_header = \"X Y\"",
            "",
            6,
            "the name of a header field",
        ),
        ("", "", "priority = 8", 9, "from 0 to 7"),
        ("", "", "priority = 1\nredirect = \"/b\"", 9, "priority"),
        (
            "client_priorities = [{ priority = 1 }]",
            "",
            "",
            4,
            "networks",
        ),
        (
            "client_priorities = [{ networks = [\"::/0\"] }]",
            "",
            "",
            4,
            "priority",
        ),
        (
            "client_priorities = [{ networks = [\"x\"], priority = 9 }]",
            "",
            "",
            4,
            "from 0 to 7",
        ),
        ("queue_target = \"11m\"", "", "", 4, "queue_target"),
    ] {
        let errors = parse("test.toml", &with(line, http, route)).unwrap_err();
        let text = errors.to_string();
        assert!(
            text.contains(&format!("test.toml:{at}:")),
            "{line}{http}{route}: {text}"
        );
        assert!(text.contains(wanted), "{line}{http}{route}: {text}");
    }
    // TCP has neither fields nor routes.
    let tcp = "[rule.x]\nlisten = \"127.0.0.1:80\"\nprotocol = \"tcp\"\nmembers = [\"a:1\"]\n";
    assert!(parse("test.toml", &format!("{tcp}priority = 7")).is_ok());
    let error = parse(
        "test.toml",
        &format!("{tcp}http = {{ priority_header = \"X-P\" }}"),
    );
    assert!(error.unwrap_err().to_string().contains("test.toml:5"));
}

#[test]
fn a_flood_of_errors_is_cut() {
    let text: String = (0..5000).map(|n| format!("k{n} = 1\n")).collect();
    let errors = parse("test.toml", &text).unwrap_err();
    assert_eq!(errors.problems.len(), Errors::MAX_PROBLEMS);
    assert!(errors.to_string().ends_with("and 4900 more problems"));
}

#[test]
fn sources_of_reports_are_read() {
    let group = |text: &str| {
        let text = format!("[rule.x]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:1\"]\n{text}");
        let config = parse("t", &text).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
        let warnings: Vec<_> = config.warnings.iter().map(ToString::to_string).collect();
        (config.groups[0].clone().into_inner(), warnings)
    };
    let (all, warnings) = group(
        r#"
        agent_check = { port = 8765, send = "state\n" }
        orca = { loads = { "named_metrics.queue" = 100, cpu_utilization = "utilization" } }
        prometheus = { url = "http://{host}/metrics", preset = "node_exporter", loads = { cpu = "a", 7 = "b" } }"#,
    );
    assert_eq!(warnings, [""; 0]);
    let check = all.sources.agent_check.unwrap();
    assert_eq!((check.port, check.send.as_deref()), (8765, Some("state\n")));
    let orca = all.sources.orca.unwrap();
    assert!(orca.headers && orca.strip && orca.out_of_band.is_none());
    assert_eq!(
        orca.loads.find_load("named_metrics.", "queue"),
        Some(LoadId(100))
    );
    assert_eq!(
        orca.loads.find_load("", "cpu_utilization"),
        Some(LoadId::UTILIZATION)
    );
    assert_eq!(orca.loads.find_load("utilization.", "queue"), None);
    assert_eq!(
        orca.loads.find_load("", "mem_utilization"),
        None,
        "only what is named"
    );
    let loads = &all.sources.prometheus.unwrap().loads;
    assert_eq!(
        loads.len(),
        8,
        "seven of the preset, one of them replaced, and one more"
    );
    let cpu = loads
        .iter()
        .find(|known| known.load == LoadId::CPU)
        .unwrap();
    assert_eq!(cpu.expression, expression::Expression::parse("a").unwrap());

    // Engines of language models have a usual URL.
    let (engine, _) = group("prometheus = { preset = \"vllm\" }");
    let pages = engine.sources.prometheus.unwrap();
    let usual = UrlTemplate::parse("http://{host}:{port}/metrics").unwrap();
    assert_eq!((&pages.url, pages.loads.len()), (&usual, 3));
    let (engine, _) = group("prometheus = { preset = \"triton\", url = \"http://a:1/m\" }");
    let pages = engine.sources.prometheus.unwrap();
    assert_eq!(pages.url, UrlTemplate::parse("http://a:1/m").unwrap());

    let (short, _) = group("orca = { out_of_band = true }");
    let orca = short.sources.orca.unwrap();
    assert_eq!(orca.out_of_band.as_ref().unwrap().port, None);
    let (off, _) = group("orca = false\nagent_check = false");
    assert_eq!((off.sources.orca, off.sources.agent_check), (None, None));
    // Loads that were defaults stay where only the rest is said.
    let text = r#"
        [rule.y]
        listen = "127.0.0.1:81"
        members = ["a:1"]
        prometheus = { interval = "1s" }
        [defaults]
        prometheus = { url = "http://{host}/metrics", loads = { 7 = "b" } }"#;
    let (inherited, _) = group(text);
    assert_eq!(inherited.sources.prometheus.unwrap().loads.len(), 1);
    let (_, warnings) =
        group("orca = true\nprometheus = { url = \"http://a/\", preset = \"node_exporter\" }");
    assert!(
        warnings[0].contains("load cpu comes from `orca` and from `prometheus`"),
        "{warnings:?}"
    );
}

#[test]
fn engines_have_their_settings_and_rules_that_read_requests() {
    let rule = |protocol: &str| {
        format!(
            "[rule.web]\nlisten = \"127.0.0.1:80\"\ngroup = \"engines\"\nprotocol = \"{protocol}\"\n"
        )
    };
    let group = "[group.engines]\nmembers = [\"a:1\"]\nstrategy = \"inference\"\n";
    let table = "[group.engines.inference]\nindex_memory = \"1MiB\"\nmax_prompt = \"8KiB\"\n";
    let text = format!("{}{group}{table}", rule("http"));
    let config = parse("test.toml", &text).unwrap();
    let inference = config.groups[0].settings.inference;
    assert_eq!(
        (inference.index_memory, inference.max_prompt),
        (1 << 20, 8 << 10)
    );
    assert_eq!(config.warnings, []);
    for protocol in ["tcp", "udp"] {
        one_error(
            &format!("{}{group}", rule(protocol)),
            "test.toml:5:8: group.engines: has strategy `inference`, which reads the prompts of requests, but the \
             rule \"web\" does not read requests: write protocol = \"http\" in the rule, or use another strategy",
            &[],
        );
    }
    let cluster = "[negotiator]\nlisten = \"127.0.0.1:1\"\n[cluster.c]\ngroup = \"engines\"\n";
    one_error(
        &format!("{cluster}{group}"),
        "test.toml:5:8: group.engines: has strategy `inference`, which reads the prompts of requests, but clients of \
         the cluster \"c\" send requests to the members themselves: use another strategy, or a rule with protocol = \
         \"http\"",
        &[],
    );
    one_error(
        &format!(
            "{}{group}[group.engines.inference]\nmax_prompt = \"2MiB\"",
            rule("http")
        ),
        "test.toml:9:14: group.engines.inference.max_prompt: out of range",
        &[],
    );
    let other = text.replace("strategy = \"inference\"", "strategy = \"random\"");
    let warnings = parse("test.toml", &other).unwrap().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    let warning = warnings[0].to_string();
    let expected = "group.engines.inference: has no effect: only strategy `inference`";
    assert!(warning.contains(expected), "{warning}");
    // Engines inherit the settings of all groups, without a warning for other groups.
    let all = "[defaults]\ninference = { max_prompt = \"16KiB\" }\n";
    let text = format!(
        "{all}{}{group}[group.x]\nmembers = [\"a:1\"]\n",
        rule("http")
    );
    let config = parse("test.toml", &text).unwrap();
    assert_eq!(config.groups[0].settings.inference.max_prompt, 16 << 10);
    let mut warnings = config.warnings.iter().map(ToString::to_string);
    assert!(!warnings.any(|warning| warning.contains("inference")));
}

#[test]
fn what_no_source_of_reports_can_do_is_refused() {
    for (line, expected) in [
        ("agent_check = true", "wrong type"),
        ("agent_check = {}", "`port` is missing"),
        ("agent_check = { port = 0 }", "out of range"),
        ("orca = { loads = { cpu = \"cpu\" } }", "unknown field"),
        (
            "orca = { loads = { cpu_utilisation = \"cpu\" } }",
            "did you mean \"cpu_utilization\"",
        ),
        (
            "orca = { loads = { \"utilization.\" = 1 } }",
            "unknown field",
        ),
        (
            "orca = { loads = { eps = \"cpu\", rps_fractional = 0 } }",
            "load cpu is set already",
        ),
        (
            "prometheus = { url = \"http://a/\" }",
            "neither a `preset` nor `loads`",
        ),
        (
            "prometheus = { preset = \"node_exporter\" }",
            "`url` is missing",
        ),
        (
            "prometheus = { url = \"http://a/\", loads = { cpu = \"1 -\" } }",
            "a metric is missing at character 4",
        ),
        (
            "prometheus = { url = \"http://a/\", loads = { cpus = \"1\" } }",
            "unknown load",
        ),
        (
            "prometheus = { url = \"http://a/\", loads = { cpu = \"1\", 0 = \"2\" } }",
            "load cpu is set already",
        ),
    ] {
        let text = format!("[rule.x]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:1\"]\n{line}");
        let errors = parse("t", &text).unwrap_err().to_string();
        assert!(errors.contains(expected), "{line}: {errors}");
    }
}

#[test]
fn deep_nesting_is_refused_and_not_followed() {
    for deep in [
        "a.".repeat(100_000) + "b = 1",
        "a = ".to_owned() + &"[".repeat(100_000),
    ] {
        assert!(parse("test.toml", &deep).is_err());
    }
}

/// The rows of a load source's example, with which it is valid.
fn rows_of_source(name: &str) -> Vec<String> {
    let docs = describe_keys(SOURCES, Sources::default());
    let Some(source) = docs.iter().find(|source| source.name == name) else {
        return Vec::new();
    };
    let text = format!("x = {}", source.example);
    let document = DeTable::parse(&text).unwrap();
    match document.get_ref()["x"].get_ref() {
        DeValue::Table(rows) => {
            let row = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
                format!("{} = {}", key.get_ref(), &text[value.span()])
            };
            rows.iter().map(row).collect()
        }
        _ => Vec::new(),
    }
}

/// The table `header` with `line` in it, in a document where nothing else is wrong.
fn document_with(header: &str, line: &str) -> String {
    let rule = "listen = \"127.0.0.1:80\"\nmembers = [\"a:1\"]\n";
    let header = header.replace("NAME", "x").replace("CLASS", "y");
    let cluster = |lines: &str| {
        let groups = "[group.backends]\nmembers = [\"a:1\"]\n[group.g]\nmembers = [\"a:1\"]";
        format!("{groups}\n[cluster.x]\n{lines}\n")
    };
    match header.as_str() {
        "" => line.into(),
        "[admin]" if !line.starts_with("token") => {
            format!("{header}\ntoken = \"a-long-token\"\n{line}")
        }
        "[tracing]" if !line.starts_with("endpoint") => {
            let scheme = match line.starts_with("tls") {
                true => "https",
                false => "http",
            };
            format!("{header}\nendpoint = \"{scheme}://a:4318\"\n{line}")
        }
        "[broker]" => {
            let own = ["listen = \"127.0.0.1:1\"", "key_file = \"k\""];
            let key = line.split(' ').next();
            let rest = own.into_iter().filter(|own| own.split(' ').next() != key);
            format!("{header}\n{line}\n{}", rest.collect::<Vec<_>>().join("\n"))
        }
        "[fleet]" => {
            let own = ["listen = \"127.0.0.1:1\"", "key_file = \"k\""];
            let key = line.split(' ').next();
            let rest = own.into_iter().filter(|own| own.split(' ').next() != key);
            let own = "advertise = \"127.0.0.1:1\"\n";
            let own = if line.starts_with("advertise") {
                ""
            } else {
                own
            };
            format!(
                "{header}\n{line}\n{own}{}",
                rest.collect::<Vec<_>>().join("\n")
            )
        }
        "[acme]" if line.starts_with("folder") => format!("{header}\n{line}"),
        "[acme]" if line.starts_with("eab_key_id") => {
            format!("{header}\nfolder = \"f\"\neab_key_file = \"f\"\n{line}")
        }
        "[acme]" if line.starts_with("eab_key_file") => {
            format!("{header}\nfolder = \"f\"\neab_key_id = \"k\"\n{line}")
        }
        "[acme]" => format!("{header}\nfolder = \"f\"\n{line}"),
        "[rule.x.tls]" if line.starts_with("acme") => {
            let acme = "[acme]\nfolder = \"f\"\nagree_to_terms = true";
            format!("{acme}\n[rule.x]\n{rule}{header}\n{line}")
        }
        "[steer.x]" | "[steer.x.haproxy]" | "[steer.x.nginx]" => {
            let groups = "[group.web]\nmembers = [\"a:1\"]\n[group.g]\nmembers = [\"a:1\"]";
            let is = |key: &str| line.split(' ').next() == Some(key);
            let group = if is("group") { "" } else { "group = \"g\"" };
            let needed = match header.as_str() {
                "[steer.x.haproxy]" if !is("socket") => "socket = \"unix:/h\"",
                "[steer.x.nginx]" if !is("file") => "file = \"f\"",
                "[steer.x]" if !is("haproxy") && !is("nginx") => {
                    "haproxy = { socket = \"unix:/h\" }"
                }
                _ => "",
            };
            match header == "[steer.x]" {
                true => format!("{groups}\n{header}\n{group}\n{needed}\n{line}"),
                false => format!("{groups}\n[steer.x]\n{group}\n{header}\n{needed}\n{line}"),
            }
        }
        "[store]" | "[store.rollout]" => {
            let is = |key: &str| line.split(' ').next() == Some(key);
            let mut own = Vec::new();
            if !is("endpoints") {
                own.push("endpoints = \"https://a:2379\"");
            }
            if !is("copy_file") {
                own.push("copy_file = \"c\"");
            }
            if is("user") {
                own.push("password_file = \"p\"");
            }
            let own = own.join("\n");
            match header == "[store]" {
                true => format!("{header}\n{own}\n{line}"),
                false => format!("[store]\n{own}\n{header}\n{line}"),
            }
        }
        "[xds]" => {
            let groups =
                ["pool", "grpc"].map(|name| format!("[group.{name}]\nmembers = [\"a:1\"]\n"));
            let listen = match line.starts_with("listen") {
                true => "",
                false => "listen = \"127.0.0.1:80\"\n",
            };
            format!("{}{header}\n{listen}{line}", groups.concat())
        }
        "[negotiator]" | "[corba]" if line.starts_with("listen") => format!("{header}\n{line}"),
        "[corba]" if line == "standby = true" => {
            let store = "[store]\nendpoints = \"https://a:2379\"\ncopy_file = \"c\"\n";
            format!("{store}{header}\nlisten = \"127.0.0.1:80\"\n{line}")
        }
        "[negotiator]" | "[corba]" => format!("{header}\nlisten = \"127.0.0.1:80\"\n{line}"),
        "[cluster.x]" if line.starts_with("group") => cluster(line),
        "[cluster.x]" => cluster(&format!("group = \"g\"\n{line}")),
        "[cluster.x.class.y]" => cluster(&format!("group = \"g\"\n{header}\n{line}")),
        "[rule.x]" => {
            let rest: String = rule
                .lines()
                .filter(|l| l.split(' ').next() != line.split(' ').next())
                .map(|l| format!("{l}\n"))
                .collect();
            if line.starts_with("group = ") {
                let rest = rest.replace("members = [\"a:1\"]", "");
                format!("{header}\n{rest}\n{line}\n[group.backends]\nmembers = [\"a:1\"]")
            } else if line.starts_with("sni = ") {
                let group = "[group.backends]\nmembers = [\"a:1\"]";
                format!("{header}\n{rest}\n{line}\nprotocol = \"tcp\"\n{group}")
            } else if line == "pass_through = [\"www.example.org\"]" {
                let sni =
                    "tls = { certificates = \"a.pem\" }\nsni = { \"www.example.org\" = \"b\" }";
                let group = "[group.b]\nmembers = [\"a:1\"]";
                format!("{header}\n{rest}\n{line}\nprotocol = \"tcp\"\n{sni}\n{group}")
            } else if line == "forward = \"kernel\"" {
                format!("{header}\n{rest}\n{line}\nprotocol = \"tcp\"")
            } else if line == "return_path = \"nat\"" {
                format!("{header}\n{rest}\n{line}\nprotocol = \"tcp\"\nforward = \"kernel\"")
            } else if line == "anycast = true" {
                // Members get the packets of clients unchanged.
                let rest = rest.replace("a:1", "a:80");
                format!(
                    "{header}\n{rest}\n{line}\nprotocol = \"tcp\"\nforward = \"kernel\"\nreturn_path = \"tunnel\""
                )
            } else if line.starts_with("ftp = ") {
                format!("{header}\n{rest}\n{line}\nprotocol = \"ftp\"")
            } else if line.starts_with("udp = ") {
                format!("{header}\n{rest}\n{line}\nprotocol = \"udp\"")
            } else {
                format!("{header}\n{rest}\n{line}")
            }
        }
        "[[rule.x.client_priorities]]" => {
            let other = match line.starts_with("networks") {
                true => "priority = 1",
                false => "networks = [\"::/0\"]",
            };
            format!("[rule.x]\n{rule}{header}\n{other}\n{line}")
        }
        "[rule.x.http]" => {
            let groups = ["canary", "small", "big"];
            let groups = groups.map(|name| format!("[group.{name}]\nmembers = [\"a:1\"]\n"));
            format!("[rule.x]\n{rule}{header}\n{line}\n{}", groups.concat())
        }
        "[rule.x.http.hedge]" => {
            let needed = match line.split(' ').next() {
                Some("after") => "",
                _ => "after = \"1s\"",
            };
            format!("[rule.x]\n{rule}{header}\n{needed}\n{line}")
        }
        "[[rule.x.request_limits]]" => {
            let needed = match line.split(' ').next() {
                Some("requests" | "tokens") => "",
                _ => "requests = \"2/s\"",
            };
            let strategy = match line.split(' ').next() {
                Some("tokens") => "strategy = \"inference\"\n",
                _ => "",
            };
            format!("[rule.x]\n{rule}{strategy}{header}\n{needed}\n{line}")
        }
        "[rule.x.http.mirror]" => {
            let groups = "[group.canary]\nmembers = [\"a:1\"]\n[group.other]\nmembers = [\"a:1\"]";
            let needed = match line.split(' ').next() {
                Some("group") => "",
                _ => "group = \"other\"",
            };
            format!("[rule.x]\n{rule}{header}\n{needed}\n{line}\n{groups}")
        }
        "[rule.x.compression]" | "[rule.x.http.request_id]" => {
            format!("[rule.x]\n{rule}{header}\n{line}")
        }
        "[rule.x.maintenance]" => {
            let page = match line.split(' ').next() {
                Some("page") => "",
                _ => "page = \"p\"",
            };
            format!("[rule.x]\n{rule}{header}\n{page}\n{line}")
        }
        "[rule.x.cors]" => {
            let origins = match line.split(' ').next() {
                Some("allow_origins") => "",
                _ => "allow_origins = \"*\"",
            };
            format!("[rule.x]\n{rule}{header}\n{origins}\n{line}")
        }
        "[rule.x.auth]" => {
            let of_group = ["path", "copy_fields", "login_page", "timeout"];
            let needed = match line.split(' ').next() {
                Some("users_file" | "group") => "",
                Some(key) if of_group.contains(&key) => "group = \"login\"",
                _ => "users_file = \"u\"",
            };
            let group = "[group.login]\nmembers = [\"a:1\"]";
            format!("[rule.x]\n{rule}{header}\n{needed}\n{line}\n{group}")
        }
        "[rule.x.limits]" => {
            let needed = [
                "requests = \"9/s\"",
                "new_connections = \"9/s\"",
                "min_body_rate = \"9B/s\"",
            ];
            let is_it = |needed: &&&str| line.split(' ').next() != needed.split(' ').next();
            let needed: Vec<_> = needed.iter().filter(is_it).copied().collect();
            let needed = needed.join("\n");
            format!("[rule.x]\n{rule}{header}\n{needed}\n{line}")
        }
        "[rule.x.udp]" => format!("[rule.x]\n{rule}protocol = \"udp\"\n{header}\n{line}"),
        "[rule.x.ftp]" => {
            let more = "protocol = \"ftp\"\ntls = { certificates = \"c\" }";
            format!("[rule.x]\n{rule}{more}\n{header}\n{line}")
        }
        header if header.contains("rule.x.tls") => {
            let (home, needed) = match header {
                "[rule.x.tls]" => ("", "certificates = \"c\""),
                "[[rule.x.tls.certificates]]" => ("", "certificate = \"c\""),
                _ => ("[rule.x.tls]\ncertificates = \"c\"\n", "ca_file = \"c\""),
            };
            let is_it = line.split(' ').next() == needed.split(' ').next();
            let needed = if is_it { "" } else { needed };
            format!("[rule.x]\n{rule}{home}{header}\n{needed}\n{line}")
        }
        "[[rule.x.routes]]" => {
            let needed = match line.split(' ').next() {
                Some("redirect_status") => "redirect = \"/\"",
                Some("rewrite_prefix") => "path = \"/api/*\"",
                _ => "",
            };
            let groups = "[group.api]\nmembers = [\"a:1\"]\n[group.stable]\nmembers = [\"a:1\"]\n\
                          [group.canary]\nmembers = [\"a:1\"]\n[group.big]\nmembers = [\"a:1\"]\n";
            format!(
                "{groups}[rule.x]\nlisten = \"127.0.0.1:1\"\nmembers = [\"a:1\"]\n{header}\n{needed}\n{line}"
            )
        }
        "[rule.x.routes.groups.GROUP]" => {
            let groups =
                "[group.GROUP]\nmembers = [\"a:1\"]\n[group.canary]\nmembers = [\"a:1\"]\n";
            format!(
                "{groups}[rule.x]\nlisten = \"127.0.0.1:1\"\nmembers = [\"a:1\"]\n[[rule.x.routes]]\npath = \"/a/*\"\n{header}\n{line}"
            )
        }
        inner if inner.starts_with("[rule.x.routes.") => {
            let route = "[[rule.x.routes]]";
            format!(
                "[rule.x]\nlisten = \"127.0.0.1:1\"\nmembers = [\"a:1\"]\n{route}\n{header}\n{line}"
            )
        }
        "[group.x]" if line.starts_with("inference") => {
            format!("{header}\nmembers = [\"a:1\"]\nstrategy = \"inference\"\n{line}")
        }
        "[group.x.inference]" => {
            format!("[group.x]\nmembers = [\"a:1\"]\nstrategy = \"inference\"\n{header}\n{line}")
        }
        "[group.x]" if line.starts_with("members") => format!("{header}\n{line}"),
        "[group.x]" => format!("{header}\nmembers = [\"a:1\"]\n{line}"),
        "[group.x.health_check]" => {
            // The keys of an HTTP check would make it one.
            let kind = match line {
                _ if line.starts_with("type") => "",
                _ if line.starts_with("service") => "type = \"grpc\"",
                _ if line.starts_with("user") => "type = \"ftp\"",
                _ if line.starts_with("query_type") => "query = \"example.org\"",
                _ if line.starts_with("query") => "type = \"dns\"",
                _ if line.starts_with("send") => "type = \"udp\"",
                _ if line.starts_with("expect") => "type = \"udp\"\nsend = \"a\"",
                _ => "type = \"http\"",
            };
            format!("[group.x]\nmembers = [\"a:1\"]\n{header}\n{kind}\n{line}")
        }
        "[group.x.member_tls]" if line.starts_with("key") => {
            let needed = "certificate = \"c\"";
            format!("[group.x]\nmembers = [\"a:1\"]\n{header}\n{needed}\n{line}")
        }
        "[group.x.monitor]" => {
            let needed = match line {
                _ if line.starts_with("key_file") => "",
                _ if line.starts_with("path") => "type = \"ulm\"",
                _ => "key_file = \"k\"",
            };
            format!("[group.x]\nmembers = [\"a:1\"]\n{header}\n{needed}\n{line}")
        }
        "[group.x.chooser]" if line.starts_with("timeout") => {
            let needed = "url = \"http://a/\"";
            format!("[group.x]\nmembers = [\"a:1\"]\n{header}\n{needed}\n{line}")
        }
        inner if inner.starts_with("[group.x.") => {
            let key = |line: &str| line.split(' ').next().map(str::to_owned);
            let rest = rows_of_source(inner.trim_start_matches("[group.x.").trim_end_matches(']'));
            let rest = rest.into_iter().filter(|row| key(row) != key(line));
            let rest = rest.collect::<Vec<_>>().join("\n");
            format!("[group.x]\nmembers = [\"a:1\"]\n{header}\n{rest}\n{line}")
        }
        "[[group.x.members]]"
            if ["address", "srv", "kubernetes"]
                .iter()
                .any(|key| line.starts_with(key)) =>
        {
            format!("{header}\n{line}")
        }
        "[[group.x.members]]" if line.starts_with("split_weight") => {
            format!("{header}\nkubernetes = \"a/b:1\"\n{line}")
        }
        "[[group.x.members]]" => format!("{header}\naddress = \"a:1\"\n{line}"),
        _ => format!("{header}\n{line}"),
    }
}

#[test]
fn a_cookie_binds_clients_of_http_rules_by_a_name_of_its_own() {
    let rule = |more: &str| {
        let text = format!("[rule.w]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:80\"]\n{more}");
        parse("/etc/t.toml", &text).map(|mut config| config.groups.remove(0).into_inner())
    };
    let group = rule("sticky = true").unwrap();
    assert_eq!(group.settings.granularity, Granularity::PerSession);
    let sticky = group.sticky.unwrap();
    let cookie = sticky.name_of("w");
    assert_eq!(cookie, "evenkeel-49743dfc", "balancers agree on it");
    assert_ne!(cookie, sticky.name_of("v"));
    assert_eq!(rule("sticky = false").unwrap().sticky, None);
    // Alerts move clients bit by bit, not in a pulse: nobody can count them.
    let group = rule("sticky = true\ngranularity = \"on_demand\"").unwrap();
    assert!(!group.settings.alert.pulses);
    let group = rule("sticky = { cookie = \"at\", key_file = \"k\" }").unwrap();
    let sticky = group.sticky.unwrap();
    assert_eq!(sticky.name_of("w"), "at");
    assert_eq!(sticky.key_file.unwrap().path, Path::new("/etc/k"));
    let other = |sticky| {
        let other = format!("[group.x]\nmembers = [\"b:80\"]\nsticky = {{ cookie = {sticky:?} }}");
        format!("sticky = {{ cookie = \"at\" }}\n[[rule.w.routes]]\ngroup = \"x\"\n{other}")
    };
    assert!(rule(&other("b")).is_ok());
    for (more, complaint) in [
        (other("at"), "has the same cookie, \"at\", as the group"),
        (
            "sticky = true\ngranularity = \"per_request\"".into(),
            "rule.w.sticky: clients are not bound with granularity `per_request`",
        ),
        (
            "sticky = true\ngranularity = \"on_demand\"\nadaptive = false".into(),
            "a cookie does not say since when",
        ),
        (
            "sticky = true\nprotocol = \"tcp\"".into(),
            "sees no cookies",
        ),
        ("sticky = 1".into(), "allowed: a table, or true"),
        (
            "sticky = { header = \"X-S\", max_age = \"1h\" }".into(),
            "rule.w.sticky.max_age: `header` is set, so there is no cookie",
        ),
        (
            "sticky = { header = \"X-S\", cookie_path = \"/a\" }".into(),
            "rule.w.sticky.cookie_path: `header` is set, so there is no cookie",
        ),
        (
            "sticky = { header = \"Content-Length\" }".into(),
            "the name of a header field that has no meaning of its own",
        ),
        (
            "sticky = { cookie = \"a b\" }".into(),
            "the name of a cookie",
        ),
        (
            "sticky = { cookie_path = \"shop\" }".into(),
            "allowed: a path",
        ),
        (
            "sticky = { cookie_path = \"/; Domain=a.example\" }".into(),
            "allowed: a path",
        ),
        ("sticky = { max_age = \"0s\" }".into(), "out of range"),
        ("sticky = { same_site = \"any\" }".into(), "strict"),
    ] {
        let errors = rule(&more).unwrap_err().to_string();
        assert!(errors.contains(complaint), "{more}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

#[test]
fn a_chooser_is_a_url_and_a_time_limit() {
    let rule = |more: &str| {
        let text = format!("[rule.w]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:80\"]\n{more}");
        parse("t.toml", &text).map(|mut config| config.groups.remove(0).into_inner().chooser)
    };
    let chooser = rule("chooser = { url = \"http://[::1]:9000/choose?a=b\" }").unwrap();
    let chooser = chooser.unwrap();
    let url = &chooser.url.0;
    assert_eq!(
        (&*url.host, url.port, &*url.path),
        ("::1", 9000, "/choose?a=b")
    );
    assert_eq!(chooser.timeout, Duration::from_millis(20));
    assert_eq!(rule("chooser = false").unwrap(), None);
    assert_eq!(rule("").unwrap(), None);
    // What is said for all groups a group may change, or do without.
    let all = "[defaults.chooser]\nurl = \"http://a/\"\ntimeout = \"1ms\"\n";
    let inherited = rule(all).unwrap().unwrap();
    assert_eq!(inherited.timeout, Duration::from_millis(1));
    let own = rule(&format!("chooser = {{ timeout = \"10s\" }}\n{all}"))
        .unwrap()
        .unwrap();
    assert_eq!(
        (own.url, own.timeout),
        (inherited.url, Duration::from_secs(10))
    );
    assert_eq!(rule(&format!("chooser = false\n{all}")).unwrap(), None);
    for (more, complaints) in [
        ("chooser = {}", &["t.toml:4", "`url` is missing"][..]),
        ("chooser = true", &["allowed: a table about a chooser"]),
        ("chooser = { url = 9000 }", &["allowed: a URL that begins"]),
        (
            "chooser = { url = \"127.0.0.1:9000\" }",
            &["does not begin with http://"],
        ),
        ("chooser = { url = \"https://a/\" }", &["without TLS"]),
        ("chooser = { url = \"http://a:0/\" }", &["url"]),
        ("chooser = { url = \"http://u:p@a/\" }", &["url"]),
        ("chooser = { url = \"http://a/{member}\" }", &["not a path"]),
        (
            "chooser = { url = \"http://a/\", timeout = \"0ms\" }",
            &["out of range"],
        ),
        (
            "chooser = { url = \"http://a/\", timeout = \"11s\" }",
            &["out of range"],
        ),
        (
            "chooser = { url = \"http://a/\", timeouts = \"1s\" }",
            &["did you mean \"timeout\"?"],
        ),
        // All at once.
        (
            "[rule.w.chooser]\nurl = \"ftp://a/\"\ntimeout = \"1h\"",
            &[
                "t.toml:5",
                "t.toml:6",
                "does not begin with http://",
                "out of range",
            ],
        ),
    ] {
        let errors = rule(more).unwrap_err().to_string();
        for complaint in complaints {
            assert!(errors.contains(complaint), "{more}: {errors}");
        }
    }
}

#[test]
fn a_chooser_of_a_group_without_clients_of_ours_is_warned_of() {
    let text = "[group.g]\nmembers = [\"a:80\"]\nchooser = { url = \"http://a/\" }\n\
                [steer.s]\ngroup = \"g\"\nhaproxy = { socket = \"127.0.0.1:1\" }\n";
    let config = parse("t.toml", text).unwrap();
    let warned = |config: &Config| {
        let warnings = config.warnings.iter().map(ToString::to_string);
        warnings
            .filter(|line| line.contains("`chooser` has no effect"))
            .count()
    };
    assert_eq!(warned(&config), 1, "{:?}", config.warnings);
    let served = format!("{text}[rule.r]\nlisten = \"127.0.0.1:80\"\ngroup = \"g\"\n");
    assert_eq!(warned(&parse("t.toml", &served).unwrap()), 0);
}

#[test]
fn users_are_those_of_the_route_or_else_of_the_rule() {
    let rule = |more: &str| {
        let text = format!("[rule.w]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:80\"]\n{more}");
        parse("/etc/t.toml", &text).map(|mut config| config.rules.remove(0))
    };
    let auth = "auth = { users_file = \"u\", user_field = \"X-User\" }";
    let other = "auth = { users_file = \"v\", user_field = \"X-Admin\", realm = \"a b\" }";
    let route = |path: &str, more: &str| format!("[[rule.w.routes]]\npath = \"{path}\"\n{more}\n");
    let routes = [("/a", ""), ("/b", "auth = false"), ("/c", other)];
    let routes: String = routes.map(|(path, more)| route(path, more)).concat();
    let own = rule(&format!("{auth}\n{routes}")).unwrap();
    let of = |at: usize| own.routes.list()[at].auth.or_rule(own.auth.as_ref());
    let file = |auth: Option<&Auth>| {
        let file = auth.and_then(|auth| auth.users_file.as_ref());
        file.map(|file| file.path.display().to_string())
    };
    let files = [0, 1, 2].map(|at| file(of(at)));
    assert_eq!(files, [Some("/etc/u".into()), None, Some("/etc/v".into())]);
    assert_eq!(own.http.reserved, ["X-Admin", "X-User"]);
    assert_eq!(own.auths().count(), 2);
    for (more, complaint) in [
        ("auth = {}", "`users_file` or `group` is missing"),
        ("auth = true", "wrong type"),
        (
            "auth = { users_file = \"u\", realm = \"a\\\"b\" }",
            "without quotes",
        ),
        (
            "auth = { users_file = \"u\", user_field = \"Host\" }",
            "a field of its own",
        ),
        (
            "auth = { users_file = \"u\", user_field = \"X-Forwarded-For\" }",
            "a field of its own",
        ),
        (
            "auth = { users_file = \"u\" }\nprotocol = \"tcp\"",
            "only a rule with `protocol = \"http\"`",
        ),
    ] {
        let errors = rule(more).unwrap_err().to_string();
        assert!(errors.contains(complaint), "{more}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

#[test]
fn models_have_groups_by_their_names() {
    let config = |rule: &str| {
        let groups = "[group.big]\nmembers = [\"a:1\"]\n[group.small]\nmembers = [\"a:2\"]\n";
        let text = format!(
            "[rule.w]\nlisten = \"127.0.0.1:80\"\n{}\n{groups}",
            rule.replace('\'', "\"")
        );
        parse("t", &text)
    };
    let own = "members = ['a:80']\nhttp.models = { 'llama-*' = 'big', 'a.b*' = ['small', 'big'] }\n\
               [[rule.w.routes]]\npath = '/a'\nmodels = { '*' = 'small' }\n\
               [[rule.w.routes]]\npath = '/b'\nmodels = {}\n\
               [[rule.w.routes]]\npath = '/c'\n[[rule.w.routes]]\npath = '/d'\nanswer = { status = 404 }";
    let rule = config(own).unwrap().rules.remove(0);
    assert_eq!(rule.group_names(), ["w", "big", "small"]);
    assert!(rule.is_served_by("big"));
    let routes = rule.routes.list().iter();
    let found = routes.map(|route| {
        let models = route.models_in_rule(&rule.http.models)?;
        Some(models.0.iter().map(|models| models.groups.join(" ")))
    });
    let found: Vec<_> = found.map(|groups| groups.map(Vec::from_iter)).collect();
    let of_rule = vec!["big".to_owned(), "small big".to_owned()];
    let of_route = vec!["small".to_owned()];
    assert_eq!(found, [Some(of_route), None, Some(of_rule), None]);

    let long = format!("'{}*' = 'big'", "m".repeat(129));
    for (models, complaint) in [
        ("a = 'large'", "t:4:25: rule.w.http.models.a: unknown group"),
        ("a = ['big', 'lbig']", "did you mean \"big\"?"),
        ("a = []", "names no group"),
        ("a = 1", "wrong type"),
        ("a = ['big', 'big']", "is named twice"),
        ("'a*b' = 'big'", "must be the name of a model"),
        ("'**' = 'big'", "must be the name of a model"),
        ("'' = 'big'", "must be the name of a model"),
        (&long, "must be the name of a model"),
        ("a = 'big', a = 'small'", "duplicate key"),
    ] {
        let text = format!("members = ['a:80']\nhttp = {{ models = {{ {models} }} }}");
        let errors = config(&text).unwrap_err().to_string();
        assert!(errors.contains(complaint), "{models}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    for (rule, complaint) in [
        ("members = ['a:80']\nhttp.models = 'big'", "wrong type"),
        (
            "members = ['a:80']\nprotocol = 'tcp'\nhttp.models = { a = 'big' }",
            "only a rule with `protocol = \"http\"` has this key",
        ),
        (
            "group = 'big'\n[[rule.w.routes]]\npath = '/'\nmodels = { a = 'large' }",
            "rule.w.routes[0].models.a: unknown group",
        ),
        (
            "group = 'big'\n[[rule.w.routes]]\npath = '/'\nanswer = { status = 404 }\nmodels = { a = 'big' }",
            "has no effect, as no member gets the request",
        ),
        (
            "http.models = { a = 'w' }\n[[rule.w.routes]]\ngroup = 'big'",
            "names the rule's own group in `models`",
        ),
        (
            "[[rule.w.routes]]\ngroup = 'big'\nmodels = { a = 'w' }",
            "names the rule's own group",
        ),
        (
            "http.models = { a = 'big' }",
            "names neither `members` nor a `group`",
        ),
    ] {
        let errors = config(rule).unwrap_err().to_string();
        assert!(errors.contains(complaint), "{rule}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    let defaults = "[defaults.http.models]\na = \"large\"\n";
    let text = format!("{defaults}[rule.w]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:80\"]\n");
    let errors = parse("t", &text).unwrap_err().to_string();
    assert!(errors.contains("unknown group"), "{errors}");
}

#[test]
fn a_route_replaces_the_whole_path_for_members_only() {
    let read = |lines: &str| {
        let text = format!(
            "[rule.w]\nlisten = '127.0.0.1:1'\nmembers = ['a:80']\n[[rule.w.routes]]\n{lines}\n"
        );
        parse("test.toml", &text).map_err(|errors| errors.to_string())
    };
    let config = read("path = '/a/*'\nrewrite_path = '/b/'").unwrap();
    let route = &config.rules[0].routes.list()[0];
    assert_eq!(route.rewrite_path.as_deref(), Some("/b/"));
    for (lines, complaint) in [
        (
            "path = '/a/*'\nrewrite_path = '/b'\nrewrite_prefix = '/c'",
            "is set beside `rewrite_path`",
        ),
        (
            "redirect = 'https://b.example/'\nrewrite_path = '/b'",
            "has no effect, as no member gets the request",
        ),
        (
            "answer = { status = 404 }\nrewrite_path = '/b'",
            "has no effect, as no member gets the request",
        ),
        ("rewrite_path = '/b?c'", "without a query"),
    ] {
        let errors = read(lines).unwrap_err();
        assert!(errors.contains(complaint), "{errors}");
    }
}

#[test]
fn aliases_are_names_or_beginnings_of_names_for_models_of_engines() {
    let config = |http: &str| {
        let text = format!(
            "[group.big]\nmembers = [\"a:1\"]\n[rule.w]\nlisten = \"127.0.0.1:80\"\ngroup = \"big\"\n{}\n",
            http.replace('\'', "\"")
        );
        parse("t", &text)
    };
    let own = "http.model_aliases = { gpt = 'org/Qwen', b = 'org/Qwen' }\n[[rule.w.routes]]\npath = '/a'\n\
               model_aliases = {}\n[[rule.w.routes]]\npath = '/b'\n";
    let rule = config(own).unwrap().rules.remove(0);
    let aliases = &rule.http.model_aliases;
    assert_eq!(aliases.0.len(), 2);
    let routes = rule.routes.list().iter();
    let found = routes.map(|route| route.aliases_in_rule(aliases).is_some());
    assert_eq!(found.collect::<Vec<_>>(), [false, true]);
    let long = "m".repeat(129);
    for (aliases, complaint) in [
        (
            "a = 'a'",
            "t:6:32: rule.w.http.model_aliases.a: is an alias of itself",
        ),
        ("a = 'b', b = 'c'", "\"b\" is an alias, too"),
        ("a = 'b', a = 'c'", "duplicate key"),
        ("'a*b' = 'c'", "is no alias: write the name of a model"),
        ("'a**' = 'c'", "is no alias"),
        (
            "'*' = 'b'",
            "or the beginning of names with \"*\" behind it",
        ),
        ("'b*' = 'c', a = 'bee'", "\"bee\" is an alias, too"),
        ("'b*' = 'bee', 'be*' = 'c'", "\"bee\" is an alias, too"),
        ("'' = 'b'", "is no alias"),
        ("a = 'b*'", "the name of a model"),
        ("a = ''", "the name of a model"),
        ("a = 1", "wrong type"),
        (&format!("a = '{long}'"), "the name of a model"),
        (&format!("{long} = 'a'"), "is no alias"),
    ] {
        let errors = config(&format!("http = {{ model_aliases = {{ {aliases} }} }}"));
        let errors = errors.unwrap_err().to_string();
        assert!(errors.contains(complaint), "{aliases}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    // The longest beginning counts, and a name of engines may have the beginning of an alias.
    let own = "http.model_aliases = { 'gpt-*' = 'gpt-oss', 'gpt-4*' = 'llama', 'gpt-4' = 'b' }\n\
               http.models = { 'gpt-oss' = 'big', 'gpt-o*' = 'big', llama = 'big', '*' = 'big' }";
    assert_eq!(config(own).unwrap().rules[0].http.model_aliases.0.len(), 3);
    for (models, alias) in [
        ("'gpt-4' = 'big'", "b"),
        ("'gpt-4o' = 'big'", "llama"),
        ("'gpt-4*' = 'big'", "llama"),
        ("'gpt-3.5' = 'big'", "gpt-oss"),
    ] {
        let own = own.split_once('\n').unwrap().0;
        let errors = config(&format!("{own}\nhttp.models = {{ {models} }}"));
        let errors = errors.unwrap_err().to_string();
        assert!(errors.contains("no request gets there"), "{errors}");
        assert!(
            errors.contains(&format!("\"{alias}\"")),
            "{models}: {errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    // All at once: a loop is two aliases of aliases.
    let errors = config("http.model_aliases = { a = 'b', b = 'a', c = 'c' }");
    let errors = errors.unwrap_err().to_string();
    assert_eq!(errors.lines().count(), 3, "{errors}");
    for more in [
        "http.models = { a = 'big' }\nhttp.model_aliases = { a = 'b' }",
        "[[rule.w.routes]]\npath = '/'\nmodels = { a = 'big' }\nmodel_aliases = { a = 'b' }",
    ] {
        let errors = config(more).unwrap_err().to_string();
        assert!(
            errors.contains("models.a: no request gets there"),
            "{errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    let answer =
        "[[rule.w.routes]]\npath = '/'\nanswer = { status = 404 }\nmodel_aliases = { a = 'b' }";
    let errors = config(answer).unwrap_err().to_string();
    assert!(
        errors.contains("has no effect, as no member gets the request"),
        "{errors}"
    );
}

#[test]
fn a_group_may_be_asked_in_place_of_a_file() {
    let rule = |more: &str| {
        let text = format!(
            "[group.login]\nmembers = [\"a:1\"]\n[group.sso]\nmembers = [\"a:2\"]\n\
             [rule.w]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:80\"]\n{more}"
        );
        parse("t", &text).map(|mut config| config.rules.remove(0))
    };
    let auth = |more: &str| rule(&format!("auth = {{ group = \"login\", {more} }}"));
    let plain = rule("auth = { group = \"login\" }").unwrap();
    let own = plain.auth.unwrap();
    assert_eq!(own.asked_group(), Some("login"));
    assert_eq!((&*own.path, own.timeout.as_secs()), ("/", 5));
    let all =
        "path = \"/a?b=c\", user_field = \"X-User\", copy_fields = [\"X-Mail\", \"authorization\"]";
    let mut rule_of_all = auth(all).unwrap();
    assert_eq!(rule_of_all.group_names(), ["w", "login"]);
    // Authorization is the client's to send; it is replaced in requests that pass.
    assert_eq!(rule_of_all.http.reserved, ["X-Mail", "X-User"]);
    let own = rule_of_all.auth.take().unwrap();
    assert!(own.removes_authorization());
    let copied: Vec<_> = own.copied().collect();
    assert_eq!(copied, ["X-User", "X-Mail", "authorization"]);
    // Those of routes count, too, and a group may be one that serves.
    let routes = "auth = { group = \"w\" }\n[[rule.w.routes]]\npath = \"/a\"\n\
                  auth = { group = \"sso\", copy_fields = [\"X-A\"] }";
    let of_routes = rule(routes).unwrap();
    assert_eq!(of_routes.group_names(), ["w", "sso"]);
    assert!(!of_routes.is_served_by("sso"));
    assert_eq!(of_routes.asked_groups().collect::<Vec<_>>(), ["w", "sso"]);
    assert_eq!(of_routes.http.reserved, ["X-A"]);

    let refused = |text: &str| text.replace('\'', "\"");
    for (more, complaint) in [
        ("auth = { group = 'logn' }", "unknown group"),
        ("auth = { group = '' }", "the name of a group"),
        (
            "auth = { group = 'login', users_file = 'u' }",
            "set either `users_file` or `group`",
        ),
        ("auth = { group = 'login', realm = 'a' }", "has no effect"),
        ("auth = { users_file = 'u', path = '/' }", "without `group`"),
        (
            "auth = { users_file = 'u', login_page = '/login' }",
            "without `group`",
        ),
        (
            "auth = { group = 'login', login_page = '//a.example/' }",
            "allowed: an address",
        ),
        (
            "auth = { group = 'login', login_page = '/{user}' }",
            "allowed: an address",
        ),
        (
            "auth = { users_file = 'u', copy_fields = ['X-A'] }",
            "without `group`",
        ),
        (
            "auth = { users_file = 'u', timeout = '1s' }",
            "without `group`",
        ),
        ("auth = { group = 'login', timeout = '0s' }", "timeout"),
        (
            "auth = { group = 'login', copy_fields = ['X-A', 'x-a'] }",
            "copied twice",
        ),
        (
            "auth = { group = 'login', user_field = 'X-A', copy_fields = ['X-A'] }",
            "copied twice",
        ),
        (
            "auth = { group = 'login' }\nprotocol = 'tcp'",
            "only a rule with `protocol = \"http\"`",
        ),
        (
            "[[rule.w.routes]]\npath = '/a'\nauth = { group = 'logn' }",
            "unknown group",
        ),
    ] {
        let errors = rule(&refused(more)).unwrap_err().to_string();
        assert!(errors.contains(complaint), "{more}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    for path in [
        "",
        "a",
        "//a",
        "/a b",
        "/a#b",
        "/ä",
        "/a\\r\\n",
        "http://a/",
    ] {
        let errors = auth(&format!("path = \"{path}\"")).unwrap_err();
        let errors = errors.to_string();
        assert!(errors.contains("an absolute path"), "{path}: {errors}");
    }
    for name in [
        "",
        "a b",
        "X-A:",
        "Host",
        "Cookie",
        "Set-Cookie",
        "Connection",
        "Keep-Alive",
        "TE",
        "Content-Length",
        "content_length",
        "Content-Type",
        "Transfer_Encoding",
        "Upgrade",
        "Expect",
        "Range",
        "If-None-Match",
        "Via",
        "X-Forwarded-Uri",
        "X_Forwarded_For",
        "Proxy-Authorization",
    ] {
        let errors = auth(&format!("copy_fields = [\"{name}\"]")).unwrap_err();
        let errors = errors.to_string();
        assert!(errors.contains("a field of its own"), "{name}: {errors}");
    }
    assert!(auth("user_field = \"Authorization\"").is_err());
    // A rule without members has no group of its own name.
    let lacks = "[group.login]\nmembers = [\"a:1\"]\n[rule.w]\nlisten = \"127.0.0.1:80\"\n";
    let route = "[[rule.w.routes]]\npath = \"/a\"\ngroup = \"login\"\n";
    for text in [
        format!("{lacks}auth = {{ group = \"w\" }}\n{route}"),
        format!("{lacks}{route}auth = {{ group = \"w\" }}"),
    ] {
        let errors = parse("t", &text).unwrap_err().to_string();
        assert!(errors.contains("the rule's own group"), "{errors}");
    }
}

#[test]
fn ftp_rules_have_what_they_need_and_nothing_else() {
    let rule = |more: &str| {
        let text = format!("[rule.f]\nlisten = \"127.0.0.1:21\"\nmembers = [\"a:21\"]\n{more}");
        parse("t", &text)
    };
    let ftp = |more: &str| rule(&format!("protocol = \"ftp\"\n{more}"));
    let config = ftp("ftp = { ports = \"2000-2000\" }").unwrap();
    assert_eq!(config.rules[0].ftp.ports.0, 2000..=2000);
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    for (more, complaint) in [
        ("ftp = { ports = \"3000-2000\" }", "not a range of ports"),
        ("ftp = { ports = \"21-2000\" }", "not a range of ports"),
        ("ftp = { ports = \"2000\" }", "not a range of ports"),
        ("ftp = { announce = \"::1\" }", "not the IPv4 address"),
        ("ftp = { announce = \"0.0.0.0\" }", "not the IPv4 address"),
        ("ftp = { auth_tls = \"end\" }", "needs a table `tls`"),
        ("ftp = { require_tls = true }", "needs TLS that ends here"),
        ("header_timeout = \"1s\"", "`protocol = \"http\"`"),
        ("http = { retries = 1 }", "`protocol = \"http\"`"),
        ("sni = { a = \"f\" }", "`protocol = \"tcp\"`"),
        ("member_tls = true", "are spoken to without TLS"),
    ] {
        let errors = ftp(more).unwrap_err().to_string();
        assert!(errors.contains(complaint), "{more}: {errors}");
    }
    let errors = rule("ftp = { }").unwrap_err().to_string();
    assert!(errors.contains("`protocol = \"ftp\"`"), "{errors}");
    for (more, warning) in [
        ("ftp = { auth_tls = \"pass\" }", "cannot prepare data"),
        ("send_proxy = \"v2\"", "have to accept data connections"),
        (
            "tls = { certificates = \"c\" }\nftp = { auth_tls = \"refuse\" }",
            "the certificates are not used",
        ),
    ] {
        let warnings = ftp(more).unwrap().warnings;
        let warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
        assert!(
            warnings.iter().any(|one| one.contains(warning)),
            "{more}: {warnings:?}"
        );
    }
}

#[test]
fn every_example_and_default_in_the_reference_is_valid_and_every_example_does_something() {
    // A default is the same whether or not somebody has said it.
    let unsaid = |mut config: Config| {
        let corba = config.corba.iter_mut().map(|corba| &mut corba.groups);
        let groups = config.groups.iter_mut().map(|group| &mut **group);
        for group in groups.chain(corba) {
            group.said = Said::default();
        }
        let rules = config.rules.iter_mut();
        let maintenance = rules.filter_map(|rule| rule.responses.maintenance.as_mut());
        maintenance.for_each(|of| of.said.clear());
        config
    };
    let accept = |text: &str| match parse("t", text) {
        Ok(config) => unsaid(config),
        Err(errors) => panic!("{text}\n{errors}"),
    };
    let mut compared = 0;
    for table in describe_tables() {
        for key in &table.keys {
            let header = table.header;
            let with = |value: &str| document_with(header, &format!("{} = {value}", key.name));
            let base = match key.name {
                "type" => "type = \"tcp\"",
                "redirect_status" => "redirect = \"/\"",
                "query_type" => "query = \"example.org\"",
                "split_weight" => "kubernetes = \"a/b:1\"",
                "path" | "copy_fields" | "timeout" if header.ends_with(".auth]") => {
                    "group = \"login\""
                }
                _ => "",
            };
            // Without it there may be something missing.
            let without = parse("t", &document_with(header, base)).ok().map(unsaid);
            if let (Some(default), Some(without)) = (&key.default, &without) {
                assert_eq!(accept(&with(default)), *without, "{header} {}", key.name);
            }
            // It needs its file.
            if ["token_file", "password_file"].contains(&key.name) {
                continue;
            }
            let config = accept(&with(key.example));
            if let Some(without) = &without {
                assert_ne!(config, *without, "{header} {} does nothing", key.name);
                compared += 1;
            }
        }
    }
    assert!(compared > 50, "{compared}");
}

#[test]
fn keys_of_a_health_check_say_which_it_is() {
    let check = |keys: &str| {
        let text = format!("[group.x]\nmembers = [\"a:1\"]\nhealth_check = {{ {keys} }}");
        parse("t", &text).map(|mut config| {
            config
                .groups
                .remove(0)
                .into_inner()
                .health_check
                .unwrap()
                .kind
        })
    };
    for (keys, kind) in [
        ("", HealthCheckKind::Tcp),
        ("path = \"/\"", HealthCheckKind::Http),
        ("host = \"a\"", HealthCheckKind::Http),
        ("service = \"a.B\"", HealthCheckKind::Grpc),
        ("user = \"a\"", HealthCheckKind::Ftp),
        ("service = \"a.B\", host = \"a\"", HealthCheckKind::Grpc),
        ("type = \"grpc\", host = \"a\"", HealthCheckKind::Grpc),
    ] {
        assert_eq!(check(keys), Ok(kind), "{keys}");
    }
    for (keys, needed) in [
        ("type = \"tcp\", path = \"/\"", "http"),
        ("type = \"tcp\", host = \"a\"", "http"),
        ("type = \"grpc\", path = \"/\"", "http"),
        ("type = \"http\", service = \"a.B\"", "grpc"),
        ("service = \"a.B\", path = \"/\"", "http"),
    ] {
        let error = check(keys).unwrap_err().to_string();
        assert!(
            error.contains(&format!("needs `type = {needed:?}`")),
            "{error}"
        );
    }
}

#[test]
fn tls_to_members_is_on_with_true_and_says_what_does_not_fit() {
    let tls = |line: &str| {
        let text = format!("[group.x]\nmembers = [\"a:1\"]\n{line}");
        parse("/etc/t.toml", &text).map(|mut config| {
            let tls = config.groups.remove(0).into_inner().member_tls;
            (tls, config.warnings.len())
        })
    };
    let (plain, warnings) = tls("").unwrap();
    assert_eq!(
        (plain, warnings),
        (None, 1),
        "only that nobody uses the group"
    );
    let (on, _) = tls("member_tls = true").unwrap();
    assert_eq!(on, Some(ClientTls::default()));
    assert_eq!(on.map(|tls| tls.place.line), Some(3));
    assert_eq!(tls("member_tls = false").unwrap().0, None);
    let (some, _) = tls("member_tls = { ca_file = \"ca.pem\" }").unwrap();
    let files: Vec<_> = some.iter().flat_map(ClientTls::files).collect();
    assert_eq!(files, [Path::new("/etc/ca.pem")]);
    let (_, warnings) = tls("member_tls = { verify = false }").unwrap();
    assert_eq!(warnings, 2, "nobody is verified");
    for (wrong, why) in [
        ("member_tls = 1", "a table of keys of TLS, or true"),
        ("member_tls = { key = \"k\" }", "needs the `certificate`"),
        (
            "member_tls = { verify = false, ca_file = \"c\" }",
            "has no effect",
        ),
        (
            "member_tls = { server_name = \"a b\" }",
            "a host name, or an IP address",
        ),
        ("member_tls = { min_version = \"1.1\" }", "1.2"),
    ] {
        let text = tls(wrong).unwrap_err().to_string();
        assert!(text.contains(why), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Cut, swapped and overwritten: whatever comes of it, the answer is a result, and
    /// every problem lies in the text.
    #[test]
    fn any_mutation_of_a_document_is_answered(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..40, "[ -~\\n\"é]{0,12}"), 1..8),
    ) {
        let mut text: Vec<char> = GOOD.chars().collect();
        for (at, length, new) in edits {
            let at = at.index(text.len() + 1);
            let end = (at + length).min(text.len());
            text.splice(at..end, new.chars());
        }
        let text: String = text.into_iter().collect();
        check_answer(&text)?;
    }

    #[test]
    fn any_text_is_answered(text in any::<String>()) {
        check_answer(&text)?;
    }
}

fn check_answer(text: &str) -> Result<(), TestCaseError> {
    if let Err(errors) = parse("t", text) {
        prop_assert!(!errors.problems.is_empty());
        for problem in &errors.problems {
            prop_assert!(problem.line >= 1 && problem.column >= 1);
            prop_assert!(problem.line <= text.split('\n').count(), "{problem}");
            prop_assert!(!problem.to_string().contains('\n'), "{problem:?}");
        }
    }
    Ok(())
}

fn only_group(text: &str) -> GroupConfig {
    let config = parse("t", text).unwrap();
    config.groups.into_iter().next().unwrap().into_inner()
}

const RULE: &str = "[rule.web]\nlisten = \"127.0.0.1:1\"\nmembers = [\"a:1\"]\n";
const CLUSTER: &str = "[negotiator]\nlisten = \"127.0.0.1:2\"\n[cluster.c]\ngroup = \"g\"\n\
                       [group.g]\nmembers = [\"a:1\"]\n";

#[test]
fn b2_clients_that_are_bound_have_a_default_of_their_own() {
    let name = |group: &GroupConfig| group.strategy.kind().name;
    for (more, strategy, pulses) in [
        ("", "adaptive", false),
        ("granularity = \"per_session\"", "adaptive", false),
        ("granularity = \"on_demand\"", "minimum_dispersion", true),
        (
            "granularity = \"on_demand\"\nadaptive = false",
            "adaptive",
            false,
        ),
        (
            "granularity = \"on_demand\"\nstrategy = \"adaptive\"",
            "adaptive",
            false,
        ),
        (
            "granularity = \"on_demand\"\nstrategy = \"load_minimum\"",
            "load_minimum",
            false,
        ),
        (
            "granularity = \"on_demand\"\nalert = { close_idle = \"1s\" }",
            "minimum_dispersion",
            false,
        ),
    ] {
        let group = only_group(&format!("{RULE}{more}"));
        assert_eq!(name(&group), strategy, "{more}");
        assert_eq!(group.settings.alert.pulses, pulses, "{more}");
        let inherited = format!("[defaults]\n{more}\n{RULE}");
        assert_eq!(only_group(&inherited), group, "{more}");
    }
    // Only a cluster has it: its clients stay for a quantum, or until they are sent back.
    for (more, strategy, granularity) in [
        ("", "minimum_dispersion", Granularity::OnDemand),
        ("strategy = \"random\"", "random", Granularity::OnDemand),
        (
            "granularity = \"per_request\"",
            "adaptive",
            Granularity::PerRequest,
        ),
        ("adaptive = false", "round_robin", Granularity::OnDemand),
    ] {
        let group = only_group(&format!("{CLUSTER}{more}"));
        assert_eq!(name(&group), strategy, "{more}");
        assert_eq!(group.settings.granularity, granularity, "{more}");
        assert!(!group.settings.alert.pulses);
    }
    let excess = only_group(CLUSTER).strategy.get("critical_excess");
    assert_eq!(excess, 0.25);
    // A rule and a cluster share it.
    let shared = format!("[rule.web]\nlisten = \"127.0.0.1:1\"\ngroup = \"g\"\n{CLUSTER}");
    let group = only_group(&shared);
    assert_eq!(name(&group), "adaptive");
    assert_eq!(group.settings.granularity, Granularity::PerRequest);
    // CORBA.
    for (more, strategy) in [
        ("", "minimum_dispersion"),
        (
            "groups = { granularity = \"per_session\" }",
            "minimum_dispersion",
        ),
        ("groups = { granularity = \"per_request\" }", "adaptive"),
        ("groups = { adaptive = false }", "round_robin"),
        ("groups = { strategy = \"least_loaded\" }", "least_loaded"),
    ] {
        let text = format!("[corba]\nlisten = \"127.0.0.1:2809\"\n{more}");
        let corba = parse("t", &text).unwrap().corba.unwrap();
        assert_eq!(name(&corba.groups), strategy, "{more}");
        let default = Corba::default().groups;
        assert_eq!(more.is_empty(), corba.groups == default, "{more}");
    }
}

#[test]
fn b10_least_utilization_goes_by_utilization() {
    let load = |text: &str| only_group(text).settings.load_id;
    let lu = "strategy = \"least_utilization\"";
    assert_eq!(load(RULE), LoadId::CPU);
    assert_eq!(load(&format!("{RULE}{lu}")), LoadId::UTILIZATION);
    assert_eq!(load(&format!("{CLUSTER}{lu}")), LoadId::UTILIZATION);
    assert_eq!(load(&format!("{RULE}{lu}\nload = \"cpu\"")), LoadId::CPU);
    let class = "[cluster.c.class.guest]\nmax_utilization = 0.5";
    assert_eq!(
        load(&format!("{CLUSTER}{lu}\n{class}")),
        LoadId::UTILIZATION
    );
    // Another strategy by another way, as an administrator has it.
    let mut group = only_group(RULE);
    let lu = evenkeel_core::strategy::find("least_utilization").unwrap();
    group.set_strategy(Values::defaults(lu));
    assert_eq!(group.settings.load_id, LoadId::UTILIZATION);
}

/// All that is said of a text, a line each.
fn said(text: &str) -> String {
    parse("t", text).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn u9_words_of_other_products_get_ours() {
    for (word, ours) in [
        ("bind = \"127.0.0.1:80\"", "did you mean \"listen\"?"),
        ("servers = [\"a:1\"]", "did you mean \"members\"?"),
        ("server = \"a:1\"", "did you mean \"members\"?"),
        ("proxy_pass = \"a:1\"", "did you mean \"members\"?"),
        ("upstream = \"x\"", "did you mean \"group\"?"),
        ("backend = \"x\"", "did you mean \"group\"?"),
        ("balance = \"x\"", "did you mean \"strategy\"?"),
        ("lb_policy = \"x\"", "did you mean \"strategy\"?"),
        ("least_conn = true", "did you mean \"strategy\"?"),
        ("mode = \"tcp\"", "did you mean \"protocol\"?"),
        ("maxconn = 3", "did you mean \"max_connections\"?"),
        (
            "connect_timeout = \"3s\"",
            "did you mean \"connection_timeout\"?",
        ),
        ("retry = 3", "did you mean \"retries\" in [rule.NAME.http]?"),
        (
            "strategy = \"leastconn\"",
            "did you mean \"least_connection\"?",
        ),
        (
            "strategy = \"least_conn\"",
            "did you mean \"least_connection\"?",
        ),
        ("strategy = \"roundrobin\"", "did you mean \"round_robin\"?"),
        (
            "strategy = \"ROUND_ROBIN\"",
            "did you mean \"round_robin\"?",
        ),
        ("strategy = \"ip_hash\"", "did you mean \"source_ip_hash\"?"),
        (
            "health_check = { check_path = \"/\" }",
            "did you mean \"path\"?",
        ),
        ("protocol = \"https\"", "[rule.NAME.tls]"),
        ("protocol = \"h2\"", "\"http\" speaks HTTP/2 with clients"),
    ] {
        let said = said(&format!(
            "[rule.x]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:1\"]\n{word}\n"
        ));
        assert!(
            said.contains(ours) && !said.contains("retry_budget"),
            "{word}: {said}"
        );
    }
    for (text, ours) in [
        ("[frontend]\n", "did you mean [rule.NAME]?"),
        ("[upstream]\n", "did you mean [group.NAME]?"),
        ("[stats]\n", "did you mean [admin]?"),
        ("nbthread = 3\n", "did you mean \"workers\"?"),
        ("bind = \"a\"\n", "did you mean \"listen\" in ["),
    ] {
        assert!(said(text).contains(ours), "{text}: {}", said(text));
    }
}

#[test]
fn u9_units_are_named_and_addresses_want_quotes() {
    let with = |time: &str| said(&format!("shutdown_grace = {time}\n"));
    assert!(with("\"10min\"").contains("unknown unit \"min\", did you mean \"m\"?"));
    for wrong in ["\"10min\"", "\"10\"", "\"10 fortnights\"", "\"soon\""] {
        let said = with(wrong);
        assert!(
            said.contains("ns, us, ms, s, m (minutes), h and d"),
            "{said}"
        );
    }
    assert!(with("10").contains("a time needs a unit"), "{}", with("10"));

    let rule = |line: &str| said(&format!("[rule.x]\nlisten = \"127.0.0.1:80\"\n{line}\n"));
    for (line, address) in [
        ("members = [10.0.0.1:80]", "10.0.0.1:80"),
        ("members = [\"a:1\", 10.0.0.1:80]", "10.0.0.1:80"),
        ("members = [app.example:80]", "app.example:80"),
        ("location = 10.0.0.1", "10.0.0.1"),
    ] {
        let said = rule(line);
        let wanted = format!("an address must stand in quotes: \"{address}\"");
        assert!(said.contains(&wanted), "{line}: {said}");
        assert!(!said.contains("float"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn u9_causes_come_before_consequences() {
    let said = said("[rule.x]\nbind = \"127.0.0.1:80\"\nservers = [\"a:1\"]\n");
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 4, "{said}");
    assert!(lines[0].contains("rule.x.bind"), "{said}");
    assert!(lines[1].contains("rule.x.servers"), "{said}");
    assert!(lines[2].contains("`listen` is missing"), "{said}");
}

#[test]
fn a_source_is_of_one_client() {
    let text = |rule: &str| {
        format!(
            "[rule.x]\nlisten = \"127.0.0.1:1\"\nmembers = [\"a:1\"]\nsource = \"client\"\n{rule}"
        )
    };
    let config = parse("t", &text("protocol = \"tcp\"")).unwrap();
    assert_eq!(config.groups[0].source, crate::Source::Client);
    for (rule, wanted) in [
        (
            "[rule.x.http]\nmember_protocol = \"h2\"",
            "has `source`, which is about one client",
        ),
        (
            "protocol = \"ftp\"\n[rule.x.ftp]\nports = \"20000-20999\"",
            "from the balancer's address",
        ),
        (
            "[rule.y]\nlisten = \"127.0.0.1:2\"\nmembers = [\"a:1\"]\nsource = \"me\"",
            "source",
        ),
    ] {
        let error = parse("t", &text(rule)).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn n14_files_with_logins_that_everybody_may_read_are_complained_about() {
    use std::os::unix::fs::PermissionsExt;
    let folder = scratch_folder("rights");
    let (file, part) = (folder.join("evenkeel.toml"), folder.join("part.toml"));
    std::fs::write(&file, "workers = 1\n").unwrap();
    std::fs::write(&part, "[admin]\ntoken = \"a-long-token\"\n").unwrap();
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let found = || crate::check_rights(&file, std::slice::from_ref(&part));
    mode(&file, 0o644);
    mode(&part, 0o640);
    assert_eq!(found(), [""; 0]);
    mode(&part, 0o644);
    let complaint = &found()[0];
    assert!(
        complaint.contains("part.toml: holds a token"),
        "{complaint}"
    );
    mode(&part, 0o600);
    mode(&file, 0o666);
    assert!(found()[0].contains("may write it"), "{:?}", found());
    assert_eq!(crate::rights_of_users(&part), Ok(None));
    mode(&part, 0o644);
    assert!(crate::rights_of_users(&part).unwrap().is_some());
    mode(&part, 0o602);
    assert!(crate::rights_of_users(&part).is_err());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn m2_to_m11_keys_of_newcomers_get_what_they_mean_here() {
    let tls = |text: &str| format!("tls = {text}");
    for (text, means) in [
        (
            tls(r#"{ certificates = [{ file = "a", key_file = "b" }] }"#),
            [
                r#"certificates[0].file: unknown key, did you mean "certificate"?"#,
                r#"certificates[0].key_file: unknown key, did you mean "key"?"#,
            ],
        ),
        (
            tls(r#"{ cert = "a", key = "b" }"#),
            [
                r#"tls.cert: unknown key, did you mean "certificates"?"#,
                "tls.key: a key stands beside its certificate, in the list: certificates = [{",
            ],
        ),
        (
            tls("true"),
            [
                "wrong type; found true",
                "as in { certificates = [{ certificate = ",
            ],
        ),
        (
            "members = [{ address = \"a:1\", id = \"s1\" }]".into(),
            [
                "members[0].id: the name of a member is its key `name`",
                "as in name = \"s1\"",
            ],
        ),
        (
            "stickiness = true".into(),
            ["did you mean \"sticky\"?", "stickiness"],
        ),
        (
            "gzip = true".into(),
            ["did you mean \"compression\"?", "gzip"],
        ),
        ("ssl = true".into(), ["did you mean \"tls\"?", "ssl"]),
        (
            "frobnicate = 1".into(),
            ["unknown key; allowed: ", " keys, the nearest of them "],
        ),
    ] {
        let text = format!("[rule.x]\nlisten = \"127.0.0.1:80\"\n{text}\n");
        let text = match text.contains("members") {
            true => text,
            false => format!("{text}members = [\"a:1\"]\n"),
        };
        let said = said(&text);
        for part in means {
            assert!(said.contains(part), "{text}: {said}");
        }
        for elsewhere in [
            "[fleet]",
            "[node]",
            "[rule.NAME.routes",
            "\"ticket_key_file\"",
        ] {
            assert!(!said.contains(elsewhere), "{text}: {said}");
        }
    }
}

#[test]
fn m7_m8_files_of_others_are_one_error_that_says_what_they_are() {
    for (text, says) in [
        (
            "frontend a\n  bind :80\n",
            "this is a configuration of HAProxy",
        ),
        (
            "server {\n  listen 80;\n}\n",
            "`evenkeel convert t` prints it as TOML",
        ),
        ("listen: 80\nmembers:\n  - a:1\n", "this is YAML"),
    ] {
        let said = said(text);
        assert!(said.contains(says) && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn m9_members_that_report_from_one_location_are_a_warning() {
    let warnings = |members: &str, source: &str| {
        let text =
            format!("[rule.x]\nlisten = \"127.0.0.1:80\"\nmembers = [{members}]\n{source}\n");
        parse("t", &text).unwrap().warnings
    };
    let two = r#""10.0.0.1:80", "10.0.0.2:80", "10.0.0.2:81""#;
    let apart = r#""10.0.0.1:80", { address = "10.0.0.1:81", location = "b" }"#;
    let page = |port: &str| {
        format!(
            r#"prometheus = {{ url = "http://{{host}}:{port}/m", loads = {{ utilization = "a" }} }}"#
        )
    };
    let shared = r#"{ address = "10.0.0.2:80", location = "a" }, { address = "10.0.0.2:81", location = "a" }"#;
    let is_told = |told: &[crate::Problem], at: &str| {
        let of = format!("2 members are at the location {at:?}");
        told.iter().any(|told| told.message.contains(&of))
    };
    for source in ["orca = true".to_owned(), page("{port}")] {
        for members in [two, apart] {
            let told = warnings(members, &source);
            assert!(told.is_empty(), "{members}, {source}: {told:?}");
        }
        let told = warnings(shared, &source);
        assert!(is_told(&told, "a"), "{told:?}");
        // What else is told of the host has to be that of both.
        for other in [
            "statsd = { listen = \"127.0.0.1:8125\", loads = { \"app.busy\" = \"disk\" } }",
            "cgroup = { path = \"/{location}\" }",
            "monitor = { type = \"ulm\", path = \"/run/load\" }",
        ] {
            let told = warnings(two, &format!("{source}\n{other}"));
            assert!(is_told(&told, "10.0.0.2"), "{other}: {told:?}");
        }
        let told = warnings(
            two,
            &format!("{source}\n[broker]\nlisten = \"127.0.0.1:7411\"\nkey_file = \"keys\""),
        );
        assert!(is_told(&told, "10.0.0.2"), "{told:?}");
    }
    assert!(warnings(two, &page("9100")).is_empty());
}

/// Servers on one host, each with its own report.
#[test]
fn members_that_report_themselves_have_a_location_each_unless_it_is_shared_on_purpose() {
    let locations = |text: &str| -> Vec<String> {
        let config = parse("t", text).unwrap();
        let members = config.groups.iter().flat_map(|group| &group.members);
        members
            .map(|member| member.location_name().into_owned())
            .collect()
    };
    let group = |name: &str, members: &str, source: &str| {
        format!("[group.{name}]\nmembers = [{members}]\n{source}\n")
    };
    let two = r#""10.0.0.1:80", "10.0.0.1:81", "10.0.0.2:80""#;
    let orca = "orca = true";
    let of = |text: &str| locations(text).join(" ");
    assert_eq!(
        of(&group("a", two, orca)),
        "10.0.0.1:80 10.0.0.1:81 10.0.0.2"
    );
    // An agent check is about a member's weight: it reports no load.
    let agent = "agent_check = { port = 8765 }";
    assert_eq!(of(&group("a", two, agent)), "10.0.0.1 10.0.0.1 10.0.0.2");
    // In two groups, of which one has the loads of the host.
    let (one, other) = (r#""10.0.0.1:80""#, r#""10.0.0.1:81""#);
    let text = group("a", one, orca) + &group("b", other, "");
    assert_eq!(of(&text), "10.0.0.1:80 10.0.0.1");
    // The same server twice has one load.
    let text = group("a", one, orca) + &group("b", one, orca);
    assert_eq!(of(&text), "10.0.0.1 10.0.0.1");
    let named = r#"{ address = "[::1]:80", location = "x" }, "[::1]:81", "[::1]:82""#;
    assert_eq!(of(&group("a", named, orca)), "x [::1]:81 [::1]:82");
}

#[test]
fn loads_of_one_location_from_sources_of_two_groups_are_a_warning() {
    let warnings = |one: &str, other: &str| {
        let text = format!(
            "[rule.x]\nlisten = \"127.0.0.1:80\"\n{one}\n[rule.y]\nlisten = \"127.0.0.1:81\"\n{other}\n"
        );
        let told = parse("t", &text).unwrap().warnings;
        let told = told.into_iter().map(|told| told.message);
        told.filter(|told| told.contains("of the group"))
            .collect::<Vec<_>>()
    };
    let orca = |member: &str| format!("members = [{member}]\norca = true");
    let (here, next) = (r#""10.0.0.1:80""#, r#""10.0.0.1:81""#);
    let page = |member: &str, loads: &str| {
        format!(
            "members = [{member}]\nprometheus = {{ url = \"http://{{host}}:9100/m\", loads = {{ {loads} = \"a\" }} }}"
        )
    };
    // Another source of the same server, and another server at the same location.
    let at_a = |port: u16| {
        orca(&format!(
            r#"{{ address = "10.0.0.1:{port}", location = "10.0.0.1" }}"#
        ))
    };
    for (one, other) in [
        (at_a(80), at_a(81)),
        (at_a(81), page(next, "cpu")),
        (orca(here), page(here, "cpu")),
        (page(here, "cpu"), orca(here)),
    ] {
        let told = warnings(&one, &other);
        assert!(
            matches!(&told[..], [told] if told.contains("load cpu of the location \"10.0.0.1\"")),
            "{one} {other}: {told:?}"
        );
    }
    // The same server, another location, the same page, another load.
    let apart = r#"{ address = "10.0.0.1:81", location = "b" }"#;
    for (one, other) in [
        (orca(here), orca(here)),
        (orca(here), orca(next)),
        (orca(here), orca(apart)),
        (page(here, "cpu"), page(here, "cpu")),
        (orca(here), page(here, "disk")),
    ] {
        let told = warnings(&one, &other);
        assert!(told.is_empty(), "{one} {other}: {told:?}");
    }
}

#[test]
fn m12_a_route_that_can_never_match_is_told_beside_other_errors() {
    let said = said(
        "[rule.x]\nlisten = \"127.0.0.1:80\"\nmembers = [\"a:1\"]\n[[rule.x.routes]]\npath = \"/*\"\n\
         [[rule.x.routes]]\npath = \"/a\"\n[[rule.x.routes]]\npath = \"b\"\n",
    );
    assert!(
        said.contains("t:6:1: rule.x.routes[1]: can never match"),
        "{said}"
    );
    assert!(
        said.contains("rule.x.routes[2].path") && said.lines().count() == 2,
        "{said}"
    );
}

#[test]
fn m13_a_member_that_is_the_rule_itself_is_a_warning() {
    for (listen, member, is_told) in [
        ("127.0.0.1:80", "127.0.0.1:80", true),
        ("0.0.0.0:80", "127.0.0.1:80", true),
        ("[::]:80", "localhost:80", true),
        ("[::]:80", "[::1]:80", true),
        ("unix:/run/a.sock", "unix:/run/a.sock", true),
        ("0.0.0.0:80", "127.0.0.1:81", false),
        ("0.0.0.0:80", "10.0.0.1:80", false),
        ("127.0.0.2:80", "127.0.0.1:80", false),
    ] {
        let text = format!("[rule.x]\nlisten = \"{listen}\"\nmembers = [\"{member}\"]\n");
        let warnings = parse("t", &text).unwrap().warnings;
        let told = warnings
            .iter()
            .any(|told| told.message.contains("requests would come back"));
        assert_eq!(told, is_told, "{listen} {member}");
    }
}

#[test]
fn d14_members_that_take_turns_have_no_slow_start_by_default() {
    let slow_start = |defaults: &str, of_group: &str| {
        let rule = "[rule.web]\nlisten = \"127.0.0.1:80\"\nmembers = [\"10.0.0.1:80\"]\n";
        let config = parse("test.toml", &format!("{defaults}{rule}{of_group}")).unwrap();
        config.groups[0].settings.slow_start.as_secs()
    };
    let (in_turn, three) = ("strategy = \"round_robin\"\n", "slow_start = \"3s\"\n");
    assert_eq!(slow_start("", ""), 10);
    assert_eq!(slow_start("", in_turn), 0);
    assert_eq!(slow_start("", &format!("{in_turn}{three}")), 3);
    assert_eq!(slow_start(&format!("[defaults]\n{three}"), in_turn), 3);
    assert_eq!(slow_start(&format!("[defaults]\n{in_turn}"), ""), 0);
    assert_eq!(
        slow_start(&format!("[defaults]\n{in_turn}"), "strategy = \"random\"\n"),
        10
    );
}

#[test]
fn g6_members_may_have_names() {
    let text = |members: &str| {
        format!("[rule.web]\nlisten = \"127.0.0.1:80\"\nmembers = [\n{members}\n]\n")
    };
    let long = "x".repeat(63);
    let good = text(&format!(
        "{{ address = \"app-1:80\", name = \"app-1\" }},\n{{ address = \"app-1:81\", name = \"S_1.b\" }},\n\
         {{ address = \"unix:/run/a.sock\", name = \"{long}\" }},\n\"10.0.0.4:80\""
    ));
    let config = parse("test.toml", &good).unwrap();
    let members = &config.groups[0].members;
    let names: Vec<_> = members.iter().map(|of| of.given_name.as_deref()).collect();
    assert_eq!(names, [Some("app-1"), Some("S_1.b"), Some(&*long), None]);
    // The identity is the address, with a name or without.
    assert_eq!(members[0].name(), "app-1:80");

    let allowed = "allowed: 1 to 63 letters, digits, \"-\", \"_\" or \".\", and no IP address";
    for name in [
        "",
        "a b",
        "a:80",
        "10.0.0.1",
        "a/b",
        "\u{e4}",
        &"x".repeat(64),
    ] {
        let member = format!("{{ address = \"a:80\", name = {name:?} }},\n\"z:80\"");
        let start = "test.toml:4:28: rule.web.members[0].name: ";
        one_error(&text(&member), start, &[allowed]);
    }
    one_error(
        &text(
            "\"a:80\",\n{ address = \"b:80\", name = \"s1\" },\n{ address = \"c:80\", name = \"s1\" }",
        ),
        "test.toml:6:1: rule.web.members[2].name: s1 is the name of b:80 already",
        &[],
    );
    one_error(
        &text("{ address = \"a:80\", name = \"b\" },\n\"B:80\""),
        "test.toml:4:1: rule.web.members[0].name: b is the host of another member, b:80",
        &[],
    );
    one_error(
        &text("{ srv = \"_http._tcp.web.example.org\", name = \"s1\" },\n\"z:80\""),
        "test.toml:4:",
        &["rule.web.members[0].name", "a service has several members"],
    );
}

#[test]
fn udp_rules_have_what_they_need_and_nothing_else() {
    let rule = |more: &str| {
        let text = format!("[rule.u]\nlisten = \"127.0.0.1:53\"\nmembers = [\"a:53\"]\n{more}");
        parse("t", &text)
    };
    let udp = |more: &str| rule(&format!("protocol = \"udp\"\n{more}"));
    let config = udp("udp = { session = \"datagram\" }").unwrap();
    assert_eq!(config.rules[0].udp.session, UdpSession::Datagram);
    assert_eq!(config.rules[0].timeouts.idle, Duration::from_secs(30));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let config = udp("idle_timeout = \"10m\"").unwrap();
    assert_eq!(config.rules[0].timeouts.idle, Duration::from_secs(600));
    let config = udp("source = \"client\"").unwrap();
    assert_eq!(config.groups[0].source, crate::Source::Client);
    for (more, complaint) in [
        ("tls = { certificates = \"c\" }", "no such key"),
        ("accept_proxy = [\"10.0.0.0/8\"]", "no such key"),
        ("half_close = false", "no such key"),
        ("queue_timeout = \"1s\"", "no such key"),
        ("header_timeout = \"1s\"", "`protocol = \"http\"`"),
        ("http = { retries = 1 }", "`protocol = \"http\"`"),
        ("sni = { a = \"u\" }", "`protocol = \"tcp\"`"),
        ("ftp = { }", "`protocol = \"ftp\"`"),
        ("limits = { bandwidth = \"1MB/s\" }", "no such limit"),
        ("limits = { max_lifetime = \"1h\" }", "no such limit"),
        ("member_tls = true", "cannot use"),
        ("send_proxy = \"v2\"", "cannot use"),
        ("chooser = { url = \"http://a/\" }", "cannot use"),
        ("udp = { session = \"flow\" }", "flow"),
    ] {
        let errors = udp(more).unwrap_err().to_string();
        assert!(errors.contains(complaint), "{more}: {errors}");
        assert!(errors.contains("t:"), "{more}: {errors}");
    }
    let errors = rule("udp = { }").unwrap_err().to_string();
    assert!(errors.contains("`protocol = \"udp\"`"), "{errors}");
    let unix = "[rule.u]\nlisten = \"unix:/a\"\nprotocol = \"udp\"\nmembers = [\"unix:/b\"]";
    let errors = parse("t", unix).unwrap_err().to_string();
    for complaint in ["cannot listen on a Unix socket", "sends datagrams"] {
        assert!(errors.contains(complaint), "{errors}");
    }
}

#[test]
fn a_limit_is_of_requests_or_of_tokens_which_engines_count() {
    let check = |strategy: &str, limit: &str, more: &str| {
        let text = format!(
            "[rule.web]\nlisten = \"127.0.0.1:1\"\nmembers = [\"127.0.0.1:2\"]\nstrategy = \"{strategy}\"\n\
             [[rule.web.request_limits]]\n{limit}\n{more}"
        );
        parse("test.toml", &text).map_err(|errors| errors.to_string())
    };
    let config = check("inference", "tokens = \"1000/m\"", "").unwrap();
    let limit = &config.rules[0].request_limits[0];
    assert_eq!(
        (limit.burst(), &*limit.shown_rate()),
        (1000, "1000/m tokens")
    );
    let errors = check("inference", "key = \"all\"", "").unwrap_err();
    assert!(errors.contains("`requests` is missing"), "{errors}");
    let both = "requests = \"1/s\"\ntokens = \"1000/m\"";
    let errors = check("inference", both, "").unwrap_err();
    assert!(
        errors.contains("test.toml:7:") && errors.contains("two limits"),
        "{errors}"
    );
    let errors = check("adaptive", "tokens = \"1000/m\"", "").unwrap_err();
    assert!(errors.contains("no such group"), "{errors}");
    let route = "[[rule.web.routes]]\npath = \"/a\"\nrequest_limits = [{ tokens = \"9/s\" }]";
    let errors = check("adaptive", "requests = \"1/s\"", route).unwrap_err();
    assert!(errors.contains("no such group"), "{errors}");
    let group = "group = \"engines\"\n[group.engines]\nmembers = [\"127.0.0.1:3\"]\nstrategy = \"inference\"\n";
    let more = format!("{route}\n{group}");
    check("adaptive", "requests = \"1/s\"", &more).unwrap();
}

#[test]
fn a_port_may_be_one_of_tcp_and_one_of_udp() {
    let rule = |name: &str, protocol: &str| {
        format!(
            "[rule.{name}]\nlisten = \"127.0.0.1:53\"\nprotocol = \"{protocol}\"\nmembers = [\"a:53\"]\n"
        )
    };
    parse("t", &(rule("a", "tcp") + &rule("b", "udp"))).unwrap();
    let errors = parse("t", &(rule("a", "udp") + &rule("b", "udp"))).unwrap_err();
    assert!(errors.to_string().contains("listens on"), "{errors}");
}

#[test]
fn checks_by_datagrams_say_what_to_send() {
    let check = |keys: &str| {
        let text = format!("[group.x]\nmembers = [\"a:1\"]\nhealth_check = {{ {keys} }}");
        parse("t", &text)
            .map(|mut config| config.groups.remove(0).into_inner().health_check.unwrap())
    };
    let found = check("send_hex = \"00fF\", expect = \"ok\"").unwrap();
    assert_eq!(found.kind, HealthCheckKind::Udp);
    assert_eq!(found.datagram(), [0, 255]);
    assert_eq!(found.expected_bytes(), b"ok");
    let found = check("query = \"example.org\", query_type = \"SOA\"").unwrap();
    assert_eq!(found.kind, HealthCheckKind::Dns);
    for (keys, complaint) in [
        ("type = \"udp\"", "`send` or `send_hex` is missing"),
        ("type = \"dns\"", "`query` is missing"),
        ("send = \"a\", send_hex = \"00\"", "not both"),
        (
            "send = \"a\", expect = \"a\", expect_hex = \"00\"",
            "not both",
        ),
        ("send_hex = \"0\"", "hexadecimal"),
        ("send_hex = \"0é\"", "hexadecimal"),
        ("query = \"a..b\"", "domain name"),
        ("query = \"a\", query_type = \"ANY\"", "ANY"),
        ("send = \"a\", query = \"a\"", "needs `type = \"dns\"`"),
        ("send = \"a\", plain = true", "no TLS"),
    ] {
        let errors = check(keys).unwrap_err().to_string();
        assert!(errors.contains(complaint), "{keys}: {errors}");
    }
}

#[test]
fn s41_members_that_answer_directly_have_the_port_of_the_rule() {
    let check = |listen: &str, members: &str| {
        let text = format!(
            "[rule.db]\nlisten = {listen}\nprotocol = \"tcp\"\nforward = \"kernel\"\nreturn_path = \"direct\"\n\
             group = \"pool\"\n[group.pool]\nmembers = {members}\n"
        );
        parse("test.toml", &text).map_or_else(|errors| errors.to_string(), |_| String::new())
    };
    let (one, both) = (
        "\"192.0.2.1:5432\"",
        "[\"192.0.2.1:5432\", \"[2001:db8::1]:5433\"]",
    );
    let good = "[\"192.0.2.9:5432\", \"db.example.org:5432\", { srv = \"_db._tcp.example.org\" }]";
    assert_eq!(check(one, good), "");
    let wrong = check(
        one,
        "[\"192.0.2.9:5432\", \"192.0.2.8:5433\", \"a.example.org:1\"]",
    );
    assert!(
        wrong.contains("test.toml:7:") || wrong.contains("test.toml:8:"),
        "{wrong}"
    );
    for named in [
        "192.0.2.8:5433",
        "a.example.org:1",
        "192.0.2.1:5432",
        "\"db\"",
    ] {
        assert!(wrong.contains(named), "{named}: {wrong}");
    }
    assert!(!wrong.contains("192.0.2.9"), "{wrong}");
    // No member can have two ports.
    let wrong = check(both, "[\"192.0.2.9:5432\"]");
    assert!(wrong.contains("[2001:db8::1]:5433"), "{wrong}");
}

#[test]
fn s41_members_of_udp_rules_answer_directly_in_all_kinds_of_sessions() {
    let check = |path: &str, port: u16, udp: &str| {
        let text = format!(
            "[rule.dns]\nlisten = \"192.0.2.1:53\"\nprotocol = \"udp\"\nforward = \"kernel\"\nreturn_path = \"{path}\"\n\
             members = [\"192.0.2.9:{port}\"]\nudp = {{ {udp} }}\n"
        );
        parse("test.toml", &text).map_or_else(|errors| errors.to_string(), |_| String::new())
    };
    for session in ["client", "datagram", "quic"] {
        for answers in ["", ", expect_answer = false"] {
            let udp = format!("session = \"{session}\"{answers}");
            assert_eq!(check("direct", 53, &udp), "", "{udp}");
            // Members get the datagrams of clients unchanged.
            let wrong = check("direct", 54, &udp);
            assert!(wrong.contains("192.0.2.9:54"), "{wrong}");
            let wrong = check("tunnel", 53, &udp);
            assert!(
                wrong.contains("test.toml:5:") && wrong.contains("protocol = \"tcp\""),
                "{wrong}"
            );
        }
    }
}

#[test]
fn s41_addresses_of_several_balancers_need_tunnels() {
    let check = |more: &str| {
        let text = format!(
            "[rule.db]\nlisten = \"192.0.2.1:5432\"\nprotocol = \"tcp\"\nmembers = [\"192.0.2.9:5432\"]\n{more}\n"
        );
        parse("test.toml", &text).map_or_else(|errors| errors.to_string(), |_| String::new())
    };
    let kernel = "forward = \"kernel\"\nreturn_path";
    assert_eq!(check(&format!("{kernel} = \"tunnel\"")), "");
    assert_eq!(check(&format!("{kernel} = \"tunnel\"\nanycast = true")), "");
    for wrong in [
        "",
        "forward = \"kernel\"\n",
        &format!("{kernel} = \"direct\"\n"),
    ] {
        let errors = check(&format!("{wrong}anycast = true"));
        let line = format!("test.toml:{}:", 5 + wrong.lines().count());
        assert!(
            errors.contains(&line) && errors.contains("return_path = \"tunnel\""),
            "{wrong}: {errors}"
        );
    }
    // As with direct answers, members get the packets of clients unchanged.
    let text = "[rule.db]\nlisten = \"192.0.2.1:5432\"\nprotocol = \"tcp\"\nforward = \"kernel\"\n\
                return_path = \"tunnel\"\nmembers = [\"192.0.2.9:5433\"]\n";
    let text = parse("test.toml", text).unwrap_err().to_string();
    assert!(text.contains("192.0.2.9:5433"), "{text}");
}

#[test]
fn s41_members_see_the_same_address_of_clients_from_kernel_and_proxy() {
    let check = |way: &str, source: &str| {
        let text = format!(
            "[rule.db]\nlisten = \"192.0.2.1:80\"\nprotocol = \"tcp\"\nforward = \"kernel\"\nreturn_path = \"{way}\"\n\
             members = [\"192.0.2.9:80\"]\nsource = \"{source}\"\n"
        );
        parse("test.toml", &text).map_or_else(|errors| errors.to_string(), |_| String::new())
    };
    for way in ["route", "nat", "direct", "tunnel"] {
        assert_eq!(check(way, "balancer"), "", "{way}");
        let errors = check(way, "client");
        assert_eq!(errors.is_empty(), way == "route", "{way}: {errors}");
        assert!(
            way == "route" || errors.contains("return_path = \"route\""),
            "{errors}"
        );
    }
}

#[test]
fn s41_alerts_that_move_no_connection_of_the_kernel_are_told() {
    let warnings = |forward: &str| {
        let text = format!(
            "[rule.db]\nlisten = \"192.0.2.1:80\"\nprotocol = \"tcp\"\nforward = \"{forward}\"\n\
             members = [\"192.0.2.9:80\"]\ngranularity = \"per_session\"\nalert = {{ close_idle = \"2s\" }}\n"
        );
        let config = parse("test.toml", &text).unwrap();
        let told = config.warnings.iter();
        told.filter(|warning| warning.message.contains("close_idle"))
            .count()
    };
    assert_eq!(warnings("proxy"), 0);
    assert_eq!(warnings("kernel"), 1);
}

#[test]
fn s41_a_rule_of_the_kernel_cannot_have_what_needs_the_proxy() {
    let check = |rule: &str, more: &str| {
        let text = format!(
            "[rule.db]\nlisten = \"192.0.2.1:5432\"\nforward = \"kernel\"\nmembers = [\"192.0.2.9:1\"]\n\
             {rule}\n{more}\n"
        );
        parse("test.toml", &text).map_or_else(|errors| errors.to_string(), |_| String::new())
    };
    let tcp = "protocol = \"tcp\"\n";
    assert_eq!(check(tcp, ""), "");
    assert_eq!(check(&format!("{tcp}return_path = \"nat\""), ""), "");
    let proxied = "[rule.db]\nlisten = \"192.0.2.1:5432\"\nprotocol = \"tcp\"\nmembers = [\"192.0.2.9:1\"]\n\
                   return_path = \"nat\"\n";
    for way in ["nat", "direct", "tunnel"] {
        let proxied = &proxied.replace("nat", way);
        let errors = parse("test.toml", proxied).unwrap_err().to_string();
        assert!(
            errors.contains("test.toml:5:") && errors.contains("forward = \"kernel\""),
            "{errors}"
        );
    }
    let all = check("", "");
    assert!(
        all.contains("test.toml:3:") && all.contains("only for a rule with `protocol"),
        "{all}"
    );
    let udp = "protocol = \"udp\"\n";
    assert_eq!(check(&format!("{udp}return_path = \"nat\""), ""), "");
    let of_session = |session| format!("{udp}udp = {{ session = \"{session}\" }}");
    for session in ["client", "quic"] {
        assert_eq!(check(&of_session(session), ""), "", "{session}");
    }
    // An answer to a datagram needs a port, and a message needs none.
    let of_datagrams = |keys| format!("{udp}udp = {{ session = \"datagram\"{keys} }}");
    let (answered, messages) = (of_datagrams(""), of_datagrams(", expect_answer = false"));
    for (rule, path, told) in [
        (&answered, "route", "set `return_path = \"nat\"`"),
        (&messages, "nat", "remove `return_path`"),
    ] {
        let errors = check(rule, &format!("return_path = \"{path}\""));
        assert!(
            errors.contains("test.toml:3:") && errors.contains(told),
            "{errors}"
        );
    }
    assert_eq!(check(&answered, "return_path = \"nat\""), "");
    assert_eq!(check(&messages, ""), "");
    let errors = check(&answered, "return_path = \"tunnel\"");
    assert!(errors.contains("only for `protocol = \"tcp\"`"), "{errors}");
    for rule in [tcp, udp] {
        let limits = "connections = 5, new_connections = \"9/s\", except = [\"10.0.0.0/8\"], ipv4_prefix = 24";
        let limited = format!("{rule}max_connections = 7\nlimits = {{ {limits} }}");
        assert_eq!(check(&limited, ""), "");
    }
    let networks: Vec<_> = (0..17).map(|last| format!("\"10.0.0.{last}\"")).collect();
    let networks = networks.join(", ");
    let errors = check(
        tcp,
        &format!("limits = {{ connections = 5, except = [{networks}] }}"),
    );
    assert!(errors.contains("16 networks in `except`"), "{errors}");
    for (line, named) in [
        ("accept_proxy = [\"10.0.0.0/8\"]", "`accept_proxy`"),
        (
            "limits = { max_lifetime = \"1h\" }",
            "`max_lifetime` in `limits`",
        ),
        (
            "limits = { bandwidth = \"1MiB/s\" }",
            "`bandwidth` in `limits`",
        ),
        (
            "limits = { connection_bandwidth = \"1MiB/s\" }",
            "`connection_bandwidth` in `limits`",
        ),
        ("half_close = false", "`half_close = false`"),
        ("terminate_on_disable = true", "`terminate_on_disable`"),
        ("member_tls = true", "`member_tls`"),
        ("send_proxy = \"v2\"", "`send_proxy`"),
        ("chooser = { url = \"http://127.0.0.1:1/\" }", "`chooser`"),
    ] {
        let errors = check(&format!("{tcp}{line}"), "");
        assert!(
            errors.contains(named) && errors.contains("remove one"),
            "{line}: {errors}"
        );
    }
    for (listen, why) in [
        ("0.0.0.0:80", "all addresses"),
        ("192.0.2.1:0", "has no port"),
        ("[::]:80", "all addresses"),
        ("[2001:db8::1]:0", "has no port"),
        ("unix:/run/x", "no IP address"),
    ] {
        let text = format!(
            "[rule.db]\nlisten = \"{listen}\"\nforward = \"kernel\"\nprotocol = \"tcp\"\nmembers = [\"192.0.2.9:1\"]"
        );
        let errors = parse("test.toml", &text).unwrap_err().to_string();
        assert!(errors.contains(why), "{listen}: {errors}");
    }
}
