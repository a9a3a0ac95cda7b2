//! EvenkeelPolicies: keys of rules, by route and gateway.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_config::Problem;

use super::group_policies::{GroupPolicies, Layer};
use super::listeners::Class;
use super::objects::{Kind, ObjectName};
use super::policy_keys::PolicyLine;
use super::text::Owner;

/// Key of a rule, and the owner of its line: the policy of a route as a whole, or the policy of a gateway in this rule only.
pub(crate) type RuleLine = (PolicyLine, Owner);

/// Keys of a rule that policies set.
pub(crate) struct RuleKeys {
    /// Group of clients without a name of their own.
    pub(crate) group: Option<String>,
    pub(crate) lines: Vec<RuleLine>,
}

/// Rule whose keys are looked for.
pub(crate) struct RulePlace<'r> {
    pub(crate) name: &'r str,
    pub(crate) class: Class,
    /// Oldest gateway with a listener at the port. Policies of gateways in other namespaces do not hold for the port.
    pub(crate) oldest: ObjectName,
    /// Owners that are left out.
    pub(crate) refused: &'r BTreeMap<Owner, String>,
}

/// Keys of a rule by policies, and policies that are left out.
#[derive(Default)]
pub(crate) struct FoundRuleLines {
    pub(crate) lines: Vec<RuleLine>,
    /// Policies whose keys the rule cannot have, with the reasons.
    pub(crate) refusals: Vec<(Owner, String)>,
}

impl RulePlace<'_> {
    fn is_of_requests(&self) -> bool {
        matches!(self.class, Class::Http | Class::Https)
    }

    /// True if rules of the class have a key: of a gateway's keys each rule has those that fit its protocol.
    fn has_key(&self, key: &str) -> bool {
        match key {
            "limits" | "max_connections" => true,
            "request_limits" => self.is_of_requests(),
            key if key.starts_with("http.") => self.is_of_requests(),
            "udp" => self.class == Class::Udp,
            _ => matches!(self.class, Class::Tcp | Class::Udp),
        }
    }

    /// Returns the reason why a policy of a namespace does not hold for the whole port.
    fn refuse_namespace(&self, namespace: &str) -> Option<String> {
        let oldest = &self.oldest;
        (oldest.namespace != namespace).then(|| {
            format!(
                "Gateway {oldest} is older and has the port, too, and keys of rules hold for whole ports; choose another port, or set spec.route"
            )
        })
    }
}

/// True if the key is a limit of rules.
fn is_limit(key: &str) -> bool {
    matches!(key, "limits" | "max_connections")
}

/// True if the proxy alone can do what the line says: limits of times and bytes.
fn needs_proxy(line: &PolicyLine) -> bool {
    let needs = |key| line.value.contains(key);
    line.key == "limits" && ["max_lifetime", "bandwidth"].into_iter().any(needs)
}

/// True if a rule without the key is the same.
fn is_default(line: &PolicyLine) -> bool {
    matches!(
        (line.key.as_str(), line.value.as_str()),
        ("forward", "\"proxy\"") | ("return_path", "\"route\"") | ("anycast", "false")
    )
}

fn is_for_kernel(line: &PolicyLine) -> bool {
    line.key == "forward" && !is_default(line)
}

impl GroupPolicies {
    /// Returns the policy of the route that owns a target.
    fn find_of_route(&self, route: &Owner) -> Option<&Arc<Layer>> {
        match route {
            Owner::Rule(kind, name, _) => self.find(*kind, name, None),
            _ => None,
        }
    }

    /// Returns the keys of a rule, each as the most specific policy sets the key: those of the rule's routes for connections
    /// or datagrams, by their owners, and then those of the gateways. A gateway's way of answers from the kernel is not for
    /// routes whose own policy chooses the proxy, and a gateway's limits of times and bytes are not for routes whose own
    /// policy chooses the kernel.
    pub(crate) fn list_rule_lines<'r>(
        &self,
        place: &RulePlace<'_>,
        routes: impl Iterator<Item = &'r Owner>,
        gateways: impl Iterator<Item = ObjectName>,
    ) -> FoundRuleLines {
        let mut found = FoundRuleLines::default();
        let mut add = |line: &PolicyLine, owner: &Owner| {
            if found.lines.iter().all(|(known, _)| known.key != line.key) {
                found.lines.push((line.clone(), owner.clone()));
            }
        };
        let (mut has_proxy, mut has_kernel) = (false, false);
        for layer in routes.filter_map(|route| self.find_of_route(route)) {
            let owner = Owner::Policy(layer.policy.clone());
            for line in &layer.rule {
                has_proxy |= line.key == "forward" && is_default(line);
                has_kernel |= is_for_kernel(line);
                add(line, &owner);
            }
        }
        let fits_routes = |line: &PolicyLine| {
            let is_of_kernel = matches!(line.key.as_str(), "return_path" | "anycast");
            !(has_proxy && is_of_kernel || has_kernel && needs_proxy(line))
        };
        for gateway in gateways {
            let Some(layer) = self.find(Kind::Gateway, &gateway, None) else {
                continue;
            };
            let owner = Owner::PolicyAtRule(layer.policy.clone(), place.name.to_owned());
            let own = layer.rule.iter();
            let mut own = own
                .filter(|line| place.has_key(&line.key) && fits_routes(line))
                .peekable();
            if own.peek().is_none() || place.refused.contains_key(&owner) {
                continue;
            }
            match place.refuse_namespace(&layer.policy.namespace) {
                Some(message) => found.refusals.push((owner, message)),
                None => own.for_each(|line| add(line, &owner)),
            }
        }
        found
    }

    /// Returns the policies of routes with keys that a rule which needs the proxy cannot have, each with the reason. `key` is
    /// the rule's key that needs the proxy.
    pub(crate) fn list_unfit_policies<'r>(
        &self,
        key: &str,
        routes: impl Iterator<Item = &'r Owner>,
    ) -> Vec<(Owner, String)> {
        let (mut unfit, mut seen) = (Vec::new(), BTreeSet::new());
        for layer in routes.filter_map(|route| self.find_of_route(route)) {
            let mut lines = layer.rule.iter().filter(|line| !is_default(line));
            let Some(first) = lines.next().filter(|_| seen.insert(&layer.policy)) else {
                continue;
            };
            let message = match layer.rule.iter().any(is_for_kernel) {
                true => format!(
                    "forward: with \"kernel\" the rule cannot have `{key}`, which needs the proxy: remove one of the two"
                ),
                false if is_limit(&first.key) => format!(
                    "{}: holds for all routes of the port with `{key}`: set it in the policy of the Gateway",
                    first.key
                ),
                false => format!(
                    "{}: a rule with `{key}` cannot have this key: remove it",
                    first.key
                ),
            };
            unfit.push((Owner::Policy(layer.policy.clone()), message));
        }
        unfit
    }

    /// Returns what a gateway's policy does not hold for: rules that cannot have its keys. `None` without such rules.
    pub(crate) fn show_rule_refusals(
        policy: &ObjectName,
        refused: &BTreeMap<Owner, String>,
    ) -> Option<String> {
        let first = Owner::PolicyAtRule(policy.clone(), String::new());
        let own = refused.range(first..).map_while(|(owner, message)| {
            let Owner::PolicyAtRule(of, rule) = owner else {
                return None;
            };
            (of == policy).then_some((rule, message))
        });
        let mut own = own.peekable();
        let (rule, message) = *own.peek()?;
        let others = match own.count() - 1 {
            0 => String::new(),
            count => format!(", and for {count} other rules"),
        };
        Some(format!(
            "spec.rule does not hold for the rule {rule}{others}: {message}"
        ))
    }
}

/// Returns the owners of keys of rules to which a problem of a group is due, because the kernel cannot forward to the group's
/// members. `rules` has the names of rules with the keys of their policies.
pub(crate) fn find_rule_culprits<'r>(
    rules: impl IntoIterator<Item = (&'r String, &'r RuleKeys)>,
    group: &str,
    problem: &Problem,
) -> Vec<&'r Owner> {
    let message = &problem.message;
    let has = |key: &str| message.contains(&format!("`{key} = "));
    let is_of_way = has("return_path");
    if !is_of_way && !has("forward") {
        return Vec::new();
    }
    let rules = rules.into_iter().filter(|(name, keys)| match is_of_way {
        true => message.contains(&format!("{name:?}")),
        // The message has the first rule only, and is true of all rules of the group.
        false => keys.group.as_deref() == Some(group),
    });
    let is_cause = |line: &PolicyLine| match is_of_way {
        true => line.key == "return_path",
        false => is_for_kernel(line),
    };
    let lines = rules.flat_map(|(_, keys)| keys.lines.iter());
    let causes = lines.filter(|(line, _)| is_cause(line));
    causes.map(|(_, owner)| owner).collect()
}
