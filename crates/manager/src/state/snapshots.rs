//! What subsystems see of a state.

use std::sync::Arc;

use super::State;
use crate::config::SendProxy;
use crate::snapshot::{GroupHandle, GroupSnapshot, Names, RuleSnapshot, Snapshot};

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
                let of_name = |(name, group): (_, &String)| {
                    let entry = self.group(group)?;
                    Some((name, Arc::clone(&entry.handle)))
                };
                let names = rule.sni.iter().map(|(name, group)| (name.as_str(), group));
                let names = names.map(of_name).collect::<Option<Vec<_>>>()?;
                let names = Names::new(names);
                let entry = match rule.group.is_empty() {
                    true => None,
                    false => Some(self.group(&rule.group)?),
                };
                let group = entry.map(|entry| Arc::clone(&entry.handle));
                let sources = entry.map(|entry| entry.config.sources.clone());
                let sources = sources.unwrap_or_default();
                // What passes through is encrypted already.
                let tls = entry.filter(|_| names.is_empty());
                let tls = tls.and_then(|entry| entry.tls.clone());
                let all = rule
                    .groups()
                    .into_iter()
                    .filter_map(|name| self.group(name));
                let told: Vec<_> = all
                    .filter_map(|entry| {
                        let version = entry.config.send_proxy?;
                        Some((Arc::clone(&entry.handle), version))
                    })
                    .collect();
                // An unchanged rule stays the same object, which makes the data plane's
                // comparison cheap.
                let same = old.rules.iter().find(|old| {
                    let is_same = old.rule == rule && old.sources == sources;
                    let same_group = |group| Arc::ptr_eq(&old.group, group);
                    is_same
                        && old.tls == tls
                        && same_told(&old.told, &told)
                        && group.as_ref().is_none_or(same_group)
                        && same_objects(old.names.groups(), names.groups())
                });
                Some(match same {
                    Some(same) => Arc::clone(same),
                    None => Arc::new(RuleSnapshot {
                        rule,
                        group: group.unwrap_or_else(|| Arc::new(GroupHandle::nobody())),
                        names,
                        tls,
                        told,
                        sources,
                    }),
                })
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
            let Some(entry) = self.group(name) else {
                continue;
            };
            if next.iter().any(|known| known.name == name) {
                continue;
            }
            let members = entry.config.members.iter();
            let members = members
                .map(|member| (member.name(), member.clone()))
                .collect();
            let same = old
                .group(name)
                .filter(|old| Arc::ptr_eq(&old.group, &entry.handle) && old.members == members);
            next.push(match same {
                Some(same) => Arc::clone(same),
                None => Arc::new(GroupSnapshot {
                    name: name.to_owned(),
                    group: Arc::clone(&entry.handle),
                    members,
                }),
            });
        }
        next
    }
}

type Told = [(Arc<GroupHandle>, SendProxy)];

fn same_told(old: &Told, new: &Told) -> bool {
    let same =
        |((old, a), (new, b)): (&(_, SendProxy), &(_, SendProxy))| Arc::ptr_eq(old, new) && a == b;
    old.len() == new.len() && old.iter().zip(new).all(same)
}

fn same_objects<T>(a: &[Arc<T>], b: &[Arc<T>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}
