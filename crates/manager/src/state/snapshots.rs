//! View that subsystems have of a state.

use std::collections::HashMap;
use std::sync::Arc;

use super::State;
use crate::chooser::Chooser;
use crate::responses::ResponsePolicy;
use crate::routes::Routes;
use crate::snapshot::{GroupHandle, GroupSnapshot, Names, RuleSnapshot, Snapshot, Target};

impl State {
    /// The snapshot of this state's rules: the old one if they are the same.
    pub(super) fn next_snapshot(&self, old: &Arc<Snapshot>, generation: u64) -> Arc<Snapshot> {
        let rules: Vec<Arc<RuleSnapshot>> = self
            .inputs
            .config
            .rules
            .iter()
            .filter_map(|rule| {
                let mut rule = rule.clone();
                if let Some(&enabled) = self.inputs.live.enabled.get(&rule.name) {
                    rule.enabled = enabled;
                }
                let live = &self.inputs.live;
                rule.responses
                    .set_maintenance(live.maintenance.get(&rule.name));
                // What passes through is encrypted already.
                let passes = !rule.sni.is_empty();
                let target = |name: &str| {
                    let entry = self.find_group(name)?;
                    let mut responses = entry.config.responses.clone();
                    responses.set_maintenance(live.group_maintenance.get(name));
                    let responses = responses.layer_over(&rule.responses);
                    Some(Target {
                        policy: ResponsePolicy::new(responses, &self.inputs.files),
                        group: Arc::clone(&entry.handle),
                        tls: entry.tls.clone().filter(|_| !passes),
                        send_proxy: entry.config.send_proxy,
                        source: entry.config.source,
                        serves_nobody: !rule.is_served_by(name),
                        sources: entry.config.sources.clone(),
                        cookie: entry.cookie.clone(),
                        chooser: entry.chooser.clone(),
                    })
                };
                let all = rule.group_names();
                let others = all.iter().filter(|name| **name != rule.group);
                let others: Vec<&str> = others.copied().collect();
                let targets = others.iter().copied().map(target);
                let targets = targets.collect::<Option<Vec<_>>>()?;
                let own = match rule.group.is_empty() {
                    true => Target {
                        policy: ResponsePolicy::new(rule.responses.clone(), &self.inputs.files),
                        ..Target::new(nobody(old, &rule.name))
                    },
                    false => target(&rule.group)?,
                };
                // An unchanged rule stays the same object, which makes the data plane's
                // comparison cheap.
                let same = old.rules.iter().find(|old| {
                    let same_others = old.other_targets.len() == targets.len()
                        && old
                            .other_targets
                            .iter()
                            .zip(&targets)
                            .all(|(a, b)| b.is_like(a));
                    old.rule.name == rule.name
                        && old.rule == rule
                        && own.is_like(&old.default_target)
                        && same_others
                        && old.routes.are_of(&rule, &self.inputs.files)
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
                let place = |name: &str| places.get(name).copied();
                let names = rule.sni.iter();
                let names =
                    names.map(|(name, group)| Some((name.as_str(), place(group)? as usize)));
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
                Some(Arc::new(RuleSnapshot {
                    names,
                    cookies,
                    routes: Routes::new(&rule, &places, at, &self.inputs.files),
                    rule,
                    default_target: own,
                    other_targets: targets,
                }))
            })
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
