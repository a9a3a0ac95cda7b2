//! View that subsystems have of a state.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::State;
use super::entry::GroupEntry;
use crate::chooser::Chooser;
use crate::config::{GroupConfig, Rule, SharedGroup, UNNAMED};
use crate::responses::ResponsePolicy;
use crate::routes::{Routes, RoutesBefore};
use crate::snapshot::{
    GroupHandle, GroupSnapshot, Names, RuleSnapshot, SeparateHosts, Snapshot, Target,
};

impl State {
    /// The snapshot of this state's rules: the old one if they are the same. With `keeps_groups` all groups are those of
    /// the old one ([`State::keeps_groups`]).
    pub(crate) fn next_snapshot(
        &self,
        old: &Arc<Snapshot>,
        generation: u64,
        keeps_groups: bool,
    ) -> Arc<Snapshot> {
        let rules = self.inputs.config.rules.iter();
        let rules: Vec<Arc<RuleSnapshot>> = rules
            .filter_map(|rule| self.next_rule(rule.clone(), old, keeps_groups))
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
    fn next_rule(
        &self,
        mut rule: Rule,
        old: &Snapshot,
        keeps_groups: bool,
    ) -> Option<Arc<RuleSnapshot>> {
        let (live, files) = (&self.inputs.live, &self.inputs.files);
        if let Some(&enabled) = live.enabled.get(&rule.name) {
            rule.enabled = enabled;
        }
        rule.responses
            .set_maintenance(live.maintenance.get(&rule.name));
        let all = rule.group_names();
        let others = all.iter().filter(|name| **name != rule.group);
        let others: Vec<&str> = others.copied().collect();
        let before = { old.rules.iter() }.find(|before| before.rule.name == rule.name);
        let kept = before.filter(|_| keeps_groups);
        let kept = kept.and_then(|before| keep_targets(before, &rule, &others));
        let (mut targets, configs) = match kept {
            Some(kept) => kept,
            None => self.next_targets(&rule, &others, before)?,
        };
        let passed_names = rule.passed_names();
        let passed = rule.passed_groups(&passed_names);
        targets.extend(self.next_passed_targets(&rule, &passed, before)?);
        let own = match rule.group.is_empty() {
            true => Target {
                policy: ResponsePolicy::new(rule.responses.clone(), files),
                ..Target::new(nobody(old, &rule.name))
            },
            false => {
                let entry = self.find_group(&rule.group)?;
                self.make_target(&rule, entry, true)
            }
        };
        let has_same_targets = before.is_some_and(|before| {
            own.is_like(&before.default_target) && same_objects(&before.other_targets, &targets)
        });
        // An unchanged rule stays the same object, which makes the data plane's
        // comparison cheap.
        if let Some(before) = before.filter(|_| has_same_targets)
            && before.rule == rule
            && before.routes.are_of(&rule, files)
        {
            before.target_configs.store(configs);
            return Some(Arc::clone(before));
        }
        let places: HashMap<&str, u32> = others
            .iter()
            .copied()
            .zip(1..)
            .chain([(&*rule.group, 0)])
            .collect();
        let first_passed = others.len() + 1;
        let place = |name: &str, group: &str| match passed_names.contains(name) {
            true => Some(passed.binary_search(&group).ok()? + first_passed),
            false => Some(*places.get(group)? as usize),
        };
        let unnamed = place(UNNAMED, &rule.group).filter(|_| !rule.group.is_empty());
        let names = rule.sni.iter();
        let names = names.map(|(name, group)| Some((name.as_str(), place(name, group)?)));
        let names = Names::new(names.collect::<Option<Vec<_>>>()?);
        let all = std::iter::once(&own).chain(targets.iter().map(Arc::as_ref));
        let cookies = all.flat_map(|target| &target.cookie);
        let cookies = cookies.filter(|cookie| !cookie.is_header());
        let cookies = cookies.map(|cookie| cookie.name().as_bytes().into());
        let cookies = cookies.collect();
        let at = |place: u32| {
            let other = (place as usize).checked_sub(1);
            let other = other.and_then(|at| targets.get(at));
            other.map_or(&own, |target| target).policy.config()
        };
        let before = before.filter(|before| {
            let known = before.target_configs.load();
            let known = known.iter().map(|of| of.name.as_str());
            known.eq(others.iter().copied()) && have_same_settings(&before.rule, &rule)
        });
        let before = before.map(|before| RoutesBefore {
            routes: &before.routes,
            has_same_responses: has_same_targets,
        });
        let first_passed = (!passed.is_empty()).then_some(first_passed);
        Some(Arc::new(RuleSnapshot {
            names,
            separate_hosts: SeparateHosts::new(&rule.http.separate_hosts),
            unnamed,
            first_passed,
            cookies,
            routes: Routes::next(&rule, &places, at, files, before),
            rule,
            default_target: own,
            other_targets: targets,
            target_configs: ArcSwap::new(configs),
        }))
    }

    /// The targets of a rule's requests to the groups `others`, whose names ascend, with the groups' configurations. A
    /// target that is as it was in the snapshot `before` stays the same object. `None` if a group does not exist.
    fn next_targets(
        &self,
        rule: &Rule,
        others: &[&str],
        before: Option<&Arc<RuleSnapshot>>,
    ) -> Option<TargetsWithConfigs> {
        let served = rule.sni.values().chain(rule.routed_groups());
        let served: HashSet<&str> = served.map(String::as_str).collect();
        let configs = before.map(|before| before.target_configs.load());
        let configs = configs
            .as_ref()
            .map_or(&[][..], |configs| configs.as_slice());
        let known = before.map_or(&[][..], |before| before.other_targets.as_slice());
        let mut known = configs.iter().zip(known).peekable();
        // Without these settings of the rule a target depends on its group only.
        let is_settled = before.is_some_and(|before| is_settled(&before.rule, rule));
        let targets = others.iter().map(|name| {
            let entry = self.find_group(name)?;
            while known.next_if(|(config, _)| *config.name < **name).is_some() {}
            let known = known.next_if(|(config, _)| *config.name == **name);
            let is_served = served.contains(name);
            let is_same = |(config, target): &(&SharedGroup, &Arc<Target>)| {
                is_settled
                    && config.is_same(&entry.config)
                    && self.is_made_of(target, rule, entry, is_served)
            };
            let target = match known {
                Some(known) if is_same(&known) => Arc::clone(known.1),
                known => {
                    let made = self.make_target(rule, entry, is_served);
                    keep_target(made, known.map(|(_, target)| target))
                }
            };
            Some((target, entry.config.clone()))
        });
        let (targets, configs): (_, Vec<_>) = targets.collect::<Option<_>>()?;
        Some((targets, Arc::new(configs)))
    }

    /// The targets for clients whose TLS passes through to the groups `passed` although the rule ends TLS of others. A
    /// target that is as it was in the snapshot `before` stays the same object. `None` if a group does not exist.
    fn next_passed_targets(
        &self,
        rule: &Rule,
        passed: &[&str],
        before: Option<&Arc<RuleSnapshot>>,
    ) -> Option<Vec<Arc<Target>>> {
        let known = before.and_then(|before| {
            let others = before.target_configs.load().len();
            before.other_targets.get(others..)
        });
        let known = known.unwrap_or_default().iter();
        let known: HashMap<*const GroupHandle, &Arc<Target>> = known
            .map(|target| (Arc::as_ptr(&target.group), target))
            .collect();
        let targets = passed.iter().map(|name| {
            let target = self.make_target(rule, self.find_group(name)?, true);
            // What passes through is encrypted already.
            let made = Target {
                tls: None,
                ..target
            };
            let before = known.get(&Arc::as_ptr(&made.group)).copied();
            Some(keep_target(made, before))
        });
        targets.collect()
    }

    /// True if a target, which was made of the configuration that the group `entry` has and of the same settings of the
    /// rule, would be made of the same other parts now.
    fn is_made_of(
        &self,
        target: &Target,
        rule: &Rule,
        entry: &GroupEntry,
        is_served: bool,
    ) -> bool {
        let tls = entry.tls.as_ref().filter(|_| !passes_tls(rule));
        let live = &self.inputs.live.group_maintenance;
        let has_own_maintenance =
            entry.config.responses.maintenance.is_some() || live.contains_key(&entry.config.name);
        Arc::ptr_eq(&target.group, &entry.handle)
            && target.serves_nobody != is_served
            && target.tls.as_ref().map(Arc::as_ptr) == tls.map(Arc::as_ptr)
            && target.cookie.as_ref().map(Arc::as_ptr) == entry.cookie.as_ref().map(Arc::as_ptr)
            && target.chooser.as_ref().map(Arc::as_ptr) == entry.chooser.as_ref().map(Arc::as_ptr)
            && !has_own_maintenance
            && target.policy.config().maintenance == rule.responses.maintenance
            && target.policy.is_of(&self.inputs.files)
    }

    /// The target of a rule's requests to a group, whose responses clients get if `is_served`.
    fn make_target(&self, rule: &Rule, entry: &GroupEntry, is_served: bool) -> Target {
        let mut responses = entry.config.responses.clone();
        let maintenance = &self.inputs.live.group_maintenance;
        responses.set_maintenance(maintenance.get(&entry.config.name));
        let responses = responses.layer_over(&rule.responses);
        Target {
            policy: ResponsePolicy::new(responses, &self.inputs.files),
            group: Arc::clone(&entry.handle),
            tls: entry.tls.clone().filter(|_| !passes_tls(rule)),
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
        }
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
            let listed = self.inputs.lists.list_members(&entry.config);
            let members = entry.config.members.iter().chain(&entry.joined).cloned();
            let members = members.chain(listed);
            let members = members.map(|member| (member.name(), member)).collect();
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

/// Targets of a rule, and the configurations of their groups.
type TargetsWithConfigs = (Vec<Arc<Target>>, Arc<Vec<SharedGroup>>);

/// True if a rule has the settings of the rule before on which targets depend.
fn is_settled(before: &Rule, rule: &Rule) -> bool {
    before.responses == rule.responses
        && before.http.member_protocol == rule.http.member_protocol
        && passes_tls(before) == passes_tls(rule)
}

/// Returns the targets of a rule before if all are as they were, given that the groups are: the rule sends requests to the
/// same groups, with the same settings. `others` are the names of its other groups.
fn keep_targets(before: &RuleSnapshot, rule: &Rule, others: &[&str]) -> Option<TargetsWithConfigs> {
    let configs = before.target_configs.load_full();
    let known = configs.iter().map(|of| of.name.as_str());
    let is_same = is_settled(&before.rule, rule)
        && before.rule.sni == rule.sni
        && before.rule.http.models == rule.http.models
        && before.rule.routes.group_names() == rule.routes.group_names()
        && known.eq(others.iter().copied());
    let targets = before.other_targets.get(..others.len());
    let targets = targets.filter(|_| is_same)?.to_vec();
    Some((targets, configs))
}

/// True if TLS of clients passes through the rule: it is encrypted already.
fn passes_tls(rule: &Rule) -> bool {
    !rule.sni.is_empty() && rule.tls.is_none()
}

/// True if two rules differ in nothing but their routes.
fn have_same_settings(one: &Rule, other: &Rule) -> bool {
    let one = Rule {
        routes: other.routes.clone(),
        ..one.clone()
    };
    one == *other
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

/// The target before if it is as the new one: clients see no difference.
fn keep_target(made: Target, before: Option<&Arc<Target>>) -> Arc<Target> {
    let same = before.filter(|target| made.is_like(target));
    same.map_or_else(|| Arc::new(made), Arc::clone)
}

#[cfg(test)]
mod tests {
    use evenkeel_core::time::Instant;

    use super::*;
    use crate::config;
    use crate::lists::Lists;
    use crate::lists::found::FoundMember;

    /// Returns a text with these routes to the groups `a`, `b` and `c`, and further lines of the rule and of the group `b`.
    fn text(routes: &[&str], of_rule: &str, of_group: &str) -> String {
        let routes = routes.iter().map(|name| {
            let group = &name[..1];
            format!("[[rule.web.routes]]\nname = \"{name}\"\nhost = \"{name}.example\"\ngroup = \"{group}\"\n")
        });
        let groups = ["a", "b", "c"].map(|name| {
            let more = if name == "b" { of_group } else { "" };
            format!("[group.{name}]\nmembers = [\"10.0.0.1:1\"]\n{more}")
        });
        let routes: String = routes.collect();
        format!(
            "[rule.web]\nlisten = \"127.0.0.1:1\"\n{of_rule}{routes}{}",
            groups.concat()
        )
    }

    fn next(state: &State, text: &str) -> State {
        let config = config::parse("x", text).unwrap();
        let now = Instant::from_nanos(1);
        let inputs = state.inputs.with_config(config, Lists::default(), now);
        let mut before = state.next(inputs.clone(), 1, now);
        before.commit(now);
        // Groups that stay as they are keep their configurations in memory.
        let mut next = before.next_keeping(inputs, 2, now);
        next.take_kept(&mut before, now);
        next
    }

    /// Changes the state as a reload does.
    fn change(state: &mut State, text: &str) {
        let config = config::parse("x", text).unwrap();
        let inputs =
            { &state.inputs }.with_config(config, Lists::default(), Instant::from_nanos(1));
        apply(state, inputs);
    }

    fn apply(state: &mut State, inputs: crate::inputs::Inputs) {
        let now = Instant::from_nanos(1);
        let mut next = state.next_keeping(inputs, 3, now);
        next.take_kept(state, now);
        *state = next;
    }

    fn rule(state: &State) -> Arc<RuleSnapshot> {
        Arc::clone(&state.snapshot.rules[0])
    }

    /// Returns true for each target that is the same object in both rules.
    fn same_targets(one: &RuleSnapshot, other: &RuleSnapshot) -> Vec<bool> {
        let pairs = one.other_targets.iter().zip(&other.other_targets);
        pairs.map(|(one, other)| Arc::ptr_eq(one, other)).collect()
    }

    #[test]
    fn a_change_of_one_route_leaves_the_others_and_all_targets_as_they_are() {
        let mut state = next(&State::empty(), &text(&["a1", "b1", "c1"], "", ""));
        let before = rule(&state);
        change(&mut state, &text(&["a1", "b2", "b1", "c1"], "", ""));
        let after = rule(&state);
        assert!(!Arc::ptr_eq(&before, &after));
        assert_eq!(same_targets(&before, &after), [true; 3]);
        assert_eq!(after.routes.route_at(1).label.as_deref(), Some("b2"));
        // A text that is read as a whole has other routes in memory, and a generated one the same.
        let again = Routes::next(
            &after.rule,
            &HashMap::from([("a", 1), ("b", 2), ("c", 3), ("", 0)]),
            |_| after.default_target.policy.config(),
            &state.inputs.files,
            Some(RoutesBefore {
                routes: &after.routes,
                has_same_responses: true,
            }),
        );
        for place in 0..4 {
            assert!(std::ptr::eq(
                again.route_at(place),
                after.routes.route_at(place)
            ));
        }
    }

    /// Sets the maintenance of a group live; `None` leaves it to the configuration.
    fn set_maintenance(state: &mut State, group: &str, on: Option<bool>) {
        let mut inputs = state.inputs.clone();
        let live = &mut inputs.live.group_maintenance;
        match on {
            Some(on) => drop(live.insert(group.into(), on)),
            None => drop(live.remove(group)),
        }
        apply(state, inputs);
    }

    #[test]
    fn a_route_with_fields_of_a_share_follows_maintenance_of_the_group() {
        let share = "[[rule.web.routes]]\nname = \"d1\"\nhost = \"d1.example\"\n\
                     groups = { b = { response_fields = { set = { X = \"1\" } } } }\n";
        let text = text(&["a1", "b1", "c1"], share, "");
        let mut state = next(&State::empty(), &text);
        for (on, closed) in [
            (Some(true), true),
            (Some(false), false),
            (Some(true), true),
            (None, false),
        ] {
            set_maintenance(&mut state, "b", on);
            let rule = rule(&state);
            let route = rule.routes.route_at(0);
            assert_eq!(route.label.as_deref(), Some("d1"));
            let policy = route.policy_at(2).unwrap();
            assert_eq!(policy.is_in_maintenance(None), closed, "{on:?}");
        }
    }

    #[test]
    fn targets_for_tls_that_passes_through_stay_as_they_are() {
        let text = |of_group: &str| {
            format!(
                "[rule.web]\nlisten = \"127.0.0.1:1\"\nprotocol = \"tcp\"\ngroup = \"b\"\n\
                 tls = {{ certificates = \"a.pem\" }}\npass_through = [\"A.example\", \"*\"]\n\
                 [rule.web.sni]\n\"a.example\" = \"a\"\n\"c.example\" = \"a\"\n\
                 [group.a]\nmembers = [\"10.0.0.1:1\"]\n\
                 [group.b]\nmembers = [\"10.0.0.1:1\"]\n{of_group}"
            )
        };
        let mut state = next(&State::empty(), &text(""));
        let first = rule(&state);
        // The group `a`, then `a` and `b` for TLS that passes through.
        assert_eq!(first.other_targets.len(), 3);
        assert!(!first.ends_all_tls());
        for (name, place, ends) in [
            (Some("a.example"), 2, false),
            (Some("c.example"), 1, true),
            (Some("d.example"), 3, false),
            (None, 3, false),
        ] {
            assert_eq!(first.find_place(name), Some(place), "{name:?}");
            assert_eq!(first.ends_tls_at(place), ends, "{name:?}");
        }
        let inputs = state.inputs.clone();
        apply(&mut state, inputs);
        assert!(Arc::ptr_eq(&first, &rule(&state)));
        change(&mut state, &text("send_proxy = \"v2\"\n"));
        let second = rule(&state);
        assert_eq!(same_targets(&first, &second), [true, true, false]);
    }

    /// Gives the list `shop/web:80` a member.
    fn find_member(state: &mut State) {
        let member = FoundMember {
            address: "10.0.0.9:80".parse().unwrap(),
            zone: None,
            drain: false,
        };
        let list = ("shop/web:80".to_owned(), Arc::new(vec![member]));
        let lists = Lists {
            found: Arc::new(HashMap::from([list])),
            ..Lists::default()
        };
        let inputs = state.inputs.with_lists(lists, Instant::from_nanos(1));
        apply(state, inputs);
    }

    #[test]
    fn targets_that_stay_are_known_by_the_present_configurations_of_their_groups() {
        let text = |of_group: &str| {
            let route = "[[rule.web.routes]]\nname = \"d1\"\nhost = \"d.example\"\ngroup = \"d\"\n";
            let group = "[group.d]\nmembers = [{ kubernetes = \"shop/web:80\" }]\n";
            let all = text(&["a1", "b1", "c1"], route, of_group);
            format!("{all}{group}[node]\nzone = \"north\"\n")
        };
        let mut state = next(&State::empty(), &text(""));
        let first = rule(&state);
        let configs = |state: &State| -> Vec<SharedGroup> {
            let now = rule(state);
            assert!(Arc::ptr_eq(&first, &now));
            let configs = now.target_configs.load_full();
            for config in configs.iter() {
                let group = state.find_group(&config.name).unwrap();
                assert!(config.is_same(&group.config), "{}", config.name);
            }
            configs.to_vec()
        };
        let changed = |before: &[SharedGroup], now: &[SharedGroup]| -> Vec<bool> {
            let pairs = before.iter().zip(now);
            pairs.map(|(one, other)| !one.is_same(other)).collect()
        };
        let before = configs(&state);
        find_member(&mut state);
        assert_eq!(state.find_group("d").unwrap().endpoints.len(), 1);
        let with_member = configs(&state);
        assert_eq!(changed(&before, &with_member), [false; 4]);
        // What targets are made of is as it was.
        change(&mut state, &text("max_queue = 7\n"));
        let now = configs(&state);
        assert_eq!(changed(&before, &now), [false, true, false, false]);
    }

    #[test]
    fn a_target_follows_the_settings_that_it_is_made_of() {
        let routes = ["a1", "b1", "c1"];
        let mut state = next(&State::empty(), &text(&routes, "", ""));
        let first = rule(&state);
        change(&mut state, &text(&routes, "", "send_proxy = \"v2\"\n"));
        let second = rule(&state);
        assert_eq!(same_targets(&first, &second), [true, false, true]);
        assert!(second.other_targets[1].send_proxy.is_some());
        change(
            &mut state,
            &text(
                &routes,
                "maintenance = { on = true }\n",
                "send_proxy = \"v2\"\n",
            ),
        );
        let third = rule(&state);
        assert_eq!(same_targets(&second, &third), [false; 3]);
        let is_closed = |rule: &RuleSnapshot| {
            let targets = rule.other_targets.iter();
            targets
                .map(|of| of.policy.is_in_maintenance(None))
                .collect::<Vec<_>>()
        };
        assert_eq!(is_closed(&third), [true; 3]);
        change(&mut state, &text(&routes, "", ""));
        assert_eq!(is_closed(&rule(&state)), [false; 3]);
        // Maintenance of a group begins and ends live.
        for (on, closed) in [
            (Some(true), true),
            (Some(false), false),
            (Some(true), true),
            (None, false),
        ] {
            set_maintenance(&mut state, "c", on);
            assert_eq!(is_closed(&rule(&state)), [false, false, closed]);
        }
        // So does that of a group whose own setting it overrides.
        change(
            &mut state,
            &text(&routes, "", "maintenance = { on = true }\n"),
        );
        assert_eq!(is_closed(&rule(&state)), [false, true, false]);
        for (on, closed) in [(Some(false), false), (None, true)] {
            set_maintenance(&mut state, "b", on);
            assert_eq!(is_closed(&rule(&state)), [false, closed, false]);
        }
        // A route that is gone takes its target away.
        change(&mut state, &text(&routes, "", ""));
        let before = rule(&state);
        change(&mut state, &text(&["a1", "c1"], "", ""));
        let names = |rule: &RuleSnapshot| -> Vec<String> {
            let configs = rule.target_configs.load();
            configs.iter().map(|of| of.name.clone()).collect()
        };
        assert_eq!(names(&rule(&state)), ["a", "c"]);
        let after = rule(&state);
        assert!(Arc::ptr_eq(
            &before.other_targets[0],
            &after.other_targets[0]
        ));
        assert!(Arc::ptr_eq(
            &before.other_targets[2],
            &after.other_targets[1]
        ));
    }
}
