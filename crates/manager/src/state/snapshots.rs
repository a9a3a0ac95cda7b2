//! View that subsystems have of a state.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::State;
use crate::chooser::Chooser;
use crate::config::{GroupConfig, Rule, UNNAMED};
use crate::responses::ResponsePolicy;
use crate::routes::Routes;
use crate::snapshot::{GroupHandle, GroupSnapshot, Names, RuleSnapshot, Snapshot, Target};

impl State {
    /// The snapshot of this state's rules: the old one if they are the same.
    pub(super) fn next_snapshot(&self, old: &Arc<Snapshot>, generation: u64) -> Arc<Snapshot> {
        let rules = self.inputs.config.rules.iter();
        let rules: Vec<Arc<RuleSnapshot>> = rules
            .filter_map(|rule| self.next_rule(rule.clone(), old))
            .collect();
        let groups = self.next_groups(old);
        let sections = self.inputs.config.sections();
        let same = same_objects(&old.rules, &rules)
            && same_objects(&old.groups, &groups)
            && old.sections == sections;
        if same && old.generation == generation {
            return Arc::clone(old);
        }
        Arc::new(Snapshot {
            generation,
            reload: old.generation != generation,
            rules,
            groups,
            sections,
        })
    }

    /// The snapshot of a rule: the old one if nothing has changed. `None` if a group of the rule does not exist.
    fn next_rule(&self, mut rule: Rule, old: &Snapshot) -> Option<Arc<RuleSnapshot>> {
        let (live, files) = (&self.inputs.live, &self.inputs.files);
        if let Some(&enabled) = live.enabled.get(&rule.name) {
            rule.enabled = enabled;
        }
        rule.responses
            .set_maintenance(live.maintenance.get(&rule.name));
        let all = rule.group_names();
        let others = all.iter().filter(|name| **name != rule.group);
        let others: Vec<&str> = others.copied().collect();
        let served = rule.sni.values().chain(rule.routed_groups());
        let served: HashSet<&str> = served.map(String::as_str).collect();
        let targets = others
            .iter()
            .map(|name| self.target_of(&rule, name, served.contains(name)));
        let passed = rule.passed_groups();
        let targets = targets.chain({ passed.iter() }.map(|name| {
            let target = self.target_of(&rule, name, true)?;
            // What passes through is encrypted already.
            Some(Target {
                tls: None,
                ..target
            })
        }));
        let targets = targets.collect::<Option<Vec<_>>>()?;
        let own = match rule.group.is_empty() {
            true => Target {
                policy: ResponsePolicy::new(rule.responses.clone(), files),
                ..Target::new(nobody(old, &rule.name))
            },
            false => self.target_of(&rule, &rule.group, true)?,
        };
        // An unchanged rule stays the same object, which makes the data plane's
        // comparison cheap.
        let same = old.rules.iter().find(|old| {
            let old_targets = &old.other_targets;
            let mut pairs = old_targets.iter().zip(&targets);
            old.rule.name == rule.name
                && own.is_like(&old.default_target)
                && old_targets.len() == targets.len()
                && pairs.all(|(a, b)| b.is_like(a))
                && old.rule == rule
                && old.routes.are_of(&rule, files)
        });
        if let Some(same) = same {
            return Some(Arc::clone(same));
        }
        let places: HashMap<&str, u32> = others
            .iter()
            .copied()
            .zip(1..)
            .chain([(&*rule.group, 0)])
            .collect();
        let first_passed = others.len() + 1;
        let place = |name: &str, group: &str| match rule.passes_through(name) {
            true => Some(passed.iter().position(|of| *of == group)? + first_passed),
            false => Some(*places.get(group)? as usize),
        };
        let unnamed = place(UNNAMED, &rule.group).filter(|_| !rule.group.is_empty());
        let names = rule.sni.iter();
        let names = names.map(|(name, group)| Some((name.as_str(), place(name, group)?)));
        let names = Names::new(names.collect::<Option<Vec<_>>>()?);
        let all = std::iter::once(&own).chain(&targets);
        let cookies = all.flat_map(|target| &target.cookie);
        let cookies = cookies.map(|cookie| cookie.name().as_bytes().into());
        let cookies = cookies.collect();
        let at = |place: u32| {
            let other = (place as usize).checked_sub(1);
            let target = other.and_then(|at| targets.get(at)).unwrap_or(&own);
            target.policy.config()
        };
        let first_passed = (!passed.is_empty()).then_some(first_passed);
        Some(Arc::new(RuleSnapshot {
            names,
            unnamed,
            first_passed,
            cookies,
            routes: Routes::new(&rule, &places, at, files),
            rule,
            default_target: own,
            other_targets: targets,
        }))
    }

    /// The target of a rule's requests to a group, whose responses clients get if `is_served`; `None` if the group does
    /// not exist.
    fn target_of(&self, rule: &Rule, name: &str, is_served: bool) -> Option<Target> {
        let entry = self.find_group(name)?;
        let mut responses = entry.config.responses.clone();
        responses.set_maintenance(self.inputs.live.group_maintenance.get(name));
        let responses = responses.layer_over(&rule.responses);
        // What passes through is encrypted already.
        let passes = !rule.sni.is_empty() && rule.tls.is_none();
        Some(Target {
            policy: ResponsePolicy::new(responses, &self.inputs.files),
            group: Arc::clone(&entry.handle),
            tls: entry.tls.clone().filter(|_| !passes),
            member_protocol: { entry.config.member_protocol }.unwrap_or(rule.http.member_protocol),
            send_proxy: entry.config.send_proxy,
            source: entry.config.source,
            serves_nobody: !is_served,
            sources: entry.config.sources.clone(),
            cookie: entry.cookie.clone(),
            chooser: entry.chooser.clone(),
            max_prompt: max_prompt(&entry.config),
            has_first_token_target: entry.config.reads_bodies()
                && entry.config.settings.inference.ttft_target.is_some(),
        })
    }

    /// The groups that subsystems name: the old objects where nothing has changed.
    fn next_groups(&self, old: &Snapshot) -> Vec<Arc<GroupSnapshot>> {
        let mut next: Vec<Arc<GroupSnapshot>> = Vec::new();
        for name in self.inputs.config.groups_of_sections() {
            let Some(entry) = self.find_group(name) else {
                continue;
            };
            if next.iter().any(|known| known.name == name) {
                continue;
            }
            let members = entry.config.members.iter();
            let members = members
                .map(|member| (member.name(), member.clone()))
                .collect();
            let chooser = |of: &Option<Arc<Chooser>>| of.as_ref().map(Arc::as_ptr);
            let same = old.find_group(name).filter(|old| {
                Arc::ptr_eq(&old.group, &entry.handle)
                    && old.members == members
                    && chooser(&old.chooser) == chooser(&entry.chooser)
            });
            next.push(match same {
                Some(same) => Arc::clone(same),
                None => Arc::new(GroupSnapshot {
                    name: name.to_owned(),
                    group: Arc::clone(&entry.handle),
                    members,
                    chooser: entry.chooser.clone(),
                }),
            });
        }
        next
    }
}

/// Most bytes of a request's body that are read before a member is chosen, if the group's strategy reads them.
fn max_prompt(group: &GroupConfig) -> Option<usize> {
    group
        .reads_bodies()
        .then_some(group.settings.inference.max_prompt)
}

/// The group without members of a rule that has none of its own: the same one over all snapshots.
fn nobody(old: &Snapshot, rule: &str) -> Arc<GroupHandle> {
    let mut rules = old.rules.iter();
    let known = rules.find(|known| known.rule.name == rule && known.rule.group.is_empty());
    known.map_or_else(
        || Arc::new(GroupHandle::without_members()),
        |known| Arc::clone(&known.default_target.group),
    )
}

fn same_objects<T>(a: &[Arc<T>], b: &[Arc<T>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}
