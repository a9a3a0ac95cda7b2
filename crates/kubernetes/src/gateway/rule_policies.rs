//! EvenkeelPolicies: keys of rules for connections and datagrams, by route and gateway.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_config::Problem;

use super::group_policies::{GroupPolicies, Layer};
use super::group_policy_spec::PolicyLine;
use super::listeners::Class;
use super::objects::{Kind, ObjectName};
use super::text::Owner;

/// Key of a rule, and the owner of its line: the policy of a route as a whole, or the policy of a gateway in this rule only.
pub(crate) type RuleLine = (PolicyLine, Owner);

/// Keys of a rule that policies set.
pub(crate) struct RuleKeys {
    /// Group of clients without a name of their own.
    pub(crate) group: Option<String>,
    pub(crate) lines: Vec<RuleLine>,
}

/// Rule for connections or datagrams whose keys are looked for.
pub(crate) struct RulePlace<'r> {
    pub(crate) name: &'r str,
    pub(crate) class: Class,
    /// Owners that are left out.
    pub(crate) refused: &'r BTreeMap<Owner, String>,
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

    /// Returns the keys of a rule for connections or datagrams, each as the most specific policy sets the key: those of the
    /// rule's routes, by their owners, and then those of the gateways. A gateway's way of answers from the kernel is not for
    /// routes whose own policy chooses the proxy.
    pub(crate) fn list_rule_lines<'r>(
        &self,
        place: &RulePlace<'_>,
        routes: impl Iterator<Item = &'r Owner>,
        gateways: impl Iterator<Item = ObjectName>,
    ) -> Vec<RuleLine> {
        let mut lines: Vec<RuleLine> = Vec::new();
        let mut add = |line: &PolicyLine, owner: &Owner| {
            if lines.iter().all(|(known, _)| known.key != line.key) {
                lines.push((line.clone(), owner.clone()));
            }
        };
        let mut has_proxy = false;
        for layer in routes.filter_map(|route| self.find_of_route(route)) {
            let owner = Owner::Policy(layer.policy.clone());
            for line in &layer.rule {
                has_proxy |= line.key == "forward" && is_default(line);
                add(line, &owner);
            }
        }
        // Of a gateway's keys each rule has those that fit its protocol.
        let fits = |key: &str| match place.class {
            Class::Tcp => key != "udp",
            Class::Udp => true,
            _ => false,
        };
        let fits_route = |key: &str| !(has_proxy && matches!(key, "return_path" | "anycast"));
        for gateway in gateways {
            let Some(layer) = self.find(Kind::Gateway, &gateway, None) else {
                continue;
            };
            let owner = Owner::PolicyAtRule(layer.policy.clone(), place.name.to_owned());
            if place.refused.contains_key(&owner) {
                continue;
            }
            let own = layer.rule.iter();
            for line in own.filter(|line| fits(&line.key) && fits_route(&line.key)) {
                add(line, &owner);
            }
        }
        lines
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
