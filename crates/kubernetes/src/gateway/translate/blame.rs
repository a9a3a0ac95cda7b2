//! Policies to which a problem of a rule or a route is due.

use std::any::Any;
use std::collections::BTreeSet;

use evenkeel_config::{GeneratedText, Problem};

use super::super::objects::Kind;
use super::super::policy_keys::LIMITS;
use super::super::text::{Owner, quote};
use super::Work;
use super::entry::Entry;

impl Work<'_> {
    /// Returns the most specific policy that sets a key of the routes of an owner.
    fn find_route_policy(&self, owner: &Owner, is_key: impl Fn(&str) -> bool) -> Option<Owner> {
        let Owner::Rule(kind, object, _) = owner else {
            return None;
        };
        let routes = match kind {
            Kind::HttpRoute => &self.objects.http_routes,
            Kind::GrpcRoute => &self.objects.grpc_routes,
            _ => return None,
        };
        let parents = &routes.get(object)?.spec.parent_refs;
        let groups = &self.policies.groups;
        let inherited = groups.list_inherited(*kind, object, parents, self.objects);
        let mut layers = inherited.iter();
        let found = layers.find(|layer| layer.route.iter().any(|line| is_key(&line.key)))?;
        let policy = found.policy.clone();
        Some(match found.is_of_gateway {
            // Other routes have the keys all the same.
            true => Owner::PolicyAtRoute(policy, *kind, object.clone()),
            false => Owner::Policy(policy),
        })
    }

    /// Returns the policies to which a problem of the lines of `owner` is due, or else the owner, with the reason for people,
    /// which is `message` for the owner. `text` is the text with the problem.
    pub(super) fn list_culprits(
        &self,
        owner: &Owner,
        problem: &Problem,
        message: String,
        text: &GeneratedText,
    ) -> Vec<(Owner, String)> {
        let is_named = |key: &str| problem.key.split(['.', '[']).any(|part| part == key);
        if let Some(policy) = self.find_route_policy(owner, is_named) {
            return vec![(policy, message)];
        }
        let culprits = self.list_token_limits(problem, text);
        if culprits.is_empty() {
            return vec![(owner.clone(), message)];
        }
        let message = format!("{LIMITS}: the rule {}", problem.message);
        let culprits = culprits.into_iter();
        culprits.map(|policy| (policy, message.clone())).collect()
    }

    /// Returns the policies with limits of tokens in a rule that has no engines, if that is the problem.
    fn list_token_limits(&self, problem: &Problem, text: &GeneratedText) -> BTreeSet<Owner> {
        let mut rules = text.rules().iter();
        let is_meant = |name: &str| {
            let key = problem.key.strip_prefix("rule.");
            key.is_some_and(|key| key == name || key == quote(name))
        };
        let rule = rules.find(|rule| is_meant(&rule.name));
        let Some(rule) = rule.filter(|_| problem.message.contains("limit of `tokens`")) else {
            return BTreeSet::new();
        };
        let is_limit = |line: &str| line.contains("\"tokens\" = ");
        let keys = self.rule_lines.get(&*rule.name);
        let lines = keys.into_iter().flat_map(|keys| &keys.lines);
        let lines = lines.filter(|(line, _)| line.key == LIMITS && is_limit(&line.value));
        let mut culprits: BTreeSet<Owner> = lines.map(|(_, owner)| owner.clone()).collect();
        for part in rule.routes.iter() {
            let part: &dyn Any = &**part;
            let entry = part.downcast_ref::<Entry>();
            let entry = entry.filter(|entry| is_limit(&entry.lines));
            let policy =
                entry.and_then(|entry| self.find_route_policy(&entry.owner, |key| key == LIMITS));
            culprits.extend(policy);
        }
        culprits
    }
}
