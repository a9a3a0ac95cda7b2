//! EvenkeelPolicies: keys of rules for connections and datagrams, by route and gateway.

use std::sync::Arc;

use evenkeel_config::Problem;

use super::group_policies::{GroupPolicies, Layer};
use super::group_policy_spec::PolicyLine;
use super::listeners::Class;
use super::objects::{Kind, ObjectName};
use super::text::Owner;

/// Key of a rule, and the policy that sets the key.
pub(crate) type RuleLine = (PolicyLine, ObjectName);

impl GroupPolicies {
    /// Returns the keys of a rule for connections or datagrams, each as the most specific policy sets the key: those of the
    /// rule's routes, by their owners, and then those of the gateways.
    pub(crate) fn list_rule_lines<'r>(
        &self,
        class: Class,
        routes: impl Iterator<Item = &'r Owner>,
        gateways: impl Iterator<Item = ObjectName>,
    ) -> Vec<RuleLine> {
        let mut lines: Vec<RuleLine> = Vec::new();
        let mut add = |layer: &Arc<Layer>, is_wanted: &dyn Fn(&str) -> bool| {
            for line in layer.rule.iter().filter(|line| is_wanted(&line.key)) {
                if lines.iter().all(|(known, _)| known.key != line.key) {
                    lines.push((line.clone(), layer.policy.clone()));
                }
            }
        };
        for route in routes {
            if let Owner::Rule(kind, name, _) = route
                && let Some(layer) = self.find(*kind, name, None)
            {
                add(layer, &|_| true);
            }
        }
        // Of a gateway's keys each rule has those that fit its protocol.
        let fits = |key: &str| match class {
            Class::Tcp => key != "udp",
            Class::Udp => true,
            _ => false,
        };
        for gateway in gateways {
            if let Some(layer) = self.find(Kind::Gateway, &gateway, None) {
                add(layer, &fits);
            }
        }
        lines
    }
}

/// Returns the policy of a rule to which a problem of a group is due, because the kernel cannot forward to the group's
/// members. `rules` has the names of rules with the keys of their policies.
pub(crate) fn find_rule_culprit<'r>(
    rules: impl IntoIterator<Item = (&'r String, &'r Vec<RuleLine>)>,
    problem: &Problem,
) -> Option<&'r ObjectName> {
    let message = &problem.message;
    let keys = ["return_path", "forward"];
    let key = keys
        .iter()
        .find(|key| message.contains(&format!("`{key} = ")))?;
    let mut rules = rules.into_iter();
    let (_, lines) = rules.find(|(name, _)| message.contains(&format!("{name:?}")))?;
    let is_cause = |(line, _): &&RuleLine| line.key == *key;
    lines.iter().find(is_cause).map(|(_, policy)| policy)
}
