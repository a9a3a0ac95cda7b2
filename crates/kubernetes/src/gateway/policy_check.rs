//! Checks of the keys of EvenkeelPolicies by the parser of configurations.

use evenkeel_config::Problem;

use super::policy_keys::PolicyLine;

/// Returns what the parser of configurations finds wrong with a text. `show_key` writes the place of a problem's key in
/// the policy.
fn find_problems(text: &str, show_key: impl Fn(&Problem) -> String) -> Option<String> {
    let errors = evenkeel_config::parse_generated(text).err()?;
    let messages = errors.problems.iter().map(|problem| {
        let allowed = problem.allowed.iter();
        let allowed: String = allowed.map(|of| format!("; allowed: {of}")).collect();
        match show_key(problem) {
            place if place.is_empty() => format!("{}{allowed}", problem.message),
            place => format!("{place}: {}{allowed}", problem.message),
        }
    });
    let messages: Vec<String> = messages.collect();
    Some(messages.join("; "))
}

fn write_lines(lines: &[PolicyLine]) -> String {
    let lines = lines.iter().map(|line| format!("{}\n", line.write()));
    lines.collect()
}

/// Returns what the parser of configurations finds wrong with these keys of a group and of its members. `section` is the
/// place of the group's keys.
pub(crate) fn find_problem(
    section: &str,
    group: &[PolicyLine],
    member: &[PolicyLine],
) -> Option<String> {
    const NAME: &str = "kubernetes.policy";
    let member = member.iter().map(|line| format!(", {}", line.write()));
    let member: String = member.collect();
    let group = write_lines(group);
    let text =
        format!("[group.\"{NAME}\"]\nmembers = [{{ kubernetes = \"a/b:80\"{member} }}]\n{group}");
    find_problems(&text, |problem| {
        let (_, key) = problem.key.split_once("policy").unwrap_or_default();
        if key.contains("members") {
            let key = key.rsplit('.').next().unwrap_or_default();
            return format!("spec.member.{key}");
        }
        match key.trim_start_matches(['"', '\'', '.']) {
            "" => String::new(),
            key => format!("{section}{key}"),
        }
    })
}

/// Rule with these lines, whose group may have limits of tokens.
fn write_rule(protocol: &str, lines: &str, routes: &str) -> String {
    let strategy = match protocol {
        "http" => "strategy = \"inference\"\n",
        _ => "",
    };
    format!(
        "[rule.x]\nlisten = \"192.0.2.1:9\"\nprotocol = \"{protocol}\"\ngroup = \"x\"\n{lines}{routes}[group.x]\nmembers = [\"192.0.2.2:9\"]\n{strategy}"
    )
}

/// Returns the part of a problem's key behind the name of the rule.
fn key_in_rule(problem: &Problem) -> &str {
    let key = problem.key.strip_prefix("rule.x").unwrap_or(&problem.key);
    key.trim_start_matches('.')
}

/// Returns what the parser of configurations finds wrong with these keys of a route.
pub(crate) fn find_route_problem(lines: &[PolicyLine]) -> Option<String> {
    if lines.is_empty() {
        return None;
    }
    let route = format!(
        "[[rule.x.routes]]\nname = \"x\"\ngroup = \"x\"\n{}",
        write_lines(lines)
    );
    find_problems(&write_rule("http", "", &route), |problem| {
        let key = key_in_rule(problem).trim_start_matches("routes[0]");
        format!("spec.route.{}", key.trim_start_matches('.'))
    })
}

/// Returns what the parser of configurations finds wrong with these keys of a rule. Keys that the parser wants beside
/// them may come from another policy.
pub(crate) fn find_rule_problem(lines: &[PolicyLine]) -> Option<String> {
    let find = |key: &str| lines.iter().find(|line| line.key == key);
    let write = |key: &str, other: &str| match find(key) {
        Some(line) => format!("{}\n", line.write()),
        None => other.to_owned(),
    };
    let needs_tunnel = find("anycast").is_some_and(|line| line.value == "true");
    let return_path = match needs_tunnel {
        true => "return_path = \"tunnel\"\n",
        false => "",
    };
    let connections = [
        write("forward", "forward = \"kernel\"\n"),
        write("return_path", return_path),
        write("anycast", ""),
    ];
    let of_connections = ["forward", "return_path", "anycast", "udp"];
    let requests = lines.iter();
    let requests = requests.filter(|line| !of_connections.contains(&line.key.as_str()));
    let requests: Vec<PolicyLine> = requests.cloned().collect();
    // A policy of a gateway may have keys of all protocols.
    let protocols = [
        ("tcp", connections.concat()),
        ("udp", write("udp", "")),
        ("http", write_lines(&requests)),
    ];
    protocols.iter().find_map(|(protocol, keys)| {
        find_problems(&write_rule(protocol, keys, ""), |problem| {
            format!("spec.rule.{}", key_in_rule(problem))
        })
    })
}
