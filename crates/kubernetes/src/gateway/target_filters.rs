//! Filters of targets: those of a rule's only target become actions of the rule, and those of several targets become
//! actions of the targets' groups.

use std::collections::BTreeMap;

use super::backends::{Groups, NOBODY, Referrer};
use super::filters::{FilterText, write_changes};
use super::objects::{BackendRef, Filter, HttpRule, Reference};
use super::target_groups::FoundGroups;

impl HttpRule {
    /// Returns the targets of the rule, those of mirrors too.
    pub(crate) fn list_targets(&self) -> impl Iterator<Item = &Reference> {
        let of_targets = self.backend_refs.iter().flat_map(|of| of.filters.iter());
        let filters = self.filters.iter().chain(of_targets);
        let mirrors = filters.filter_map(|of| Some(&of.request_mirror.as_ref()?.backend_ref));
        let named = self.backend_refs.iter().map(|of| &of.target);
        named.chain(mirrors)
    }
}

/// Translates the filters of a target.
///
/// # Errors
///
/// The reason why a filter is not supported.
pub(crate) fn read_target_filters(
    filters: &[Filter],
    referrer: Referrer<'_>,
    groups: &mut Groups,
) -> Result<FilterText, String> {
    let is_unsupported = |of: &&Filter| ["RequestRedirect", "CORS"].contains(&&*of.kind);
    if let Some(filter) = filters.iter().find(is_unsupported) {
        return Err(format!(
            "a filter of type {} is not supported for a backendRef; move the filter to the rule",
            filter.kind
        ));
    }
    FilterText::read(filters, referrer, groups)
}

/// Writes actions as keys of an inline table; an empty text if there are none.
fn write_keys(actions: &FilterText) -> String {
    let edits = &actions.edits;
    let request = write_changes(&edits.request, edits.host.as_deref());
    let request = request.map(|changes| format!("request_fields = {changes}"));
    let response = write_changes(&edits.response, None);
    let response = response.map(|changes| format!("response_fields = {changes}"));
    let keys = request.into_iter().chain(response);
    let keys = keys.chain(actions.lines.iter().cloned());
    let keys: Vec<String> = keys.chain(actions.write_mirrors()).collect();
    keys.join(", ")
}

/// Actions of the groups of a rule with several targets, as keys of inline tables.
#[derive(Debug, Default)]
pub(crate) struct GroupActions(BTreeMap<String, String>);

impl GroupActions {
    /// Translates the filters of several targets, and takes what is wrong with their references, and that they rewrite
    /// prefixes, to `rule`. Targets that are the same but for their filters get groups of their own in `found`.
    ///
    /// # Errors
    ///
    /// The reason why filters are not supported.
    pub(crate) fn read(
        targets: &[BackendRef],
        found: &mut FoundGroups,
        referrer: Referrer<'_>,
        groups: &mut Groups,
        rule: &mut FilterText,
    ) -> Result<Self, String> {
        let mut actions: BTreeMap<String, String> = BTreeMap::new();
        for (target, (group, _)) in targets.iter().zip(&mut found.of_targets) {
            let filters = read_target_filters(&target.filters, referrer, groups)?;
            let Some(group) = group.as_mut().filter(|group| **group != NOBODY) else {
                continue;
            };
            let own = write_keys(&filters);
            if actions.get(group).is_some_and(|known| *known != own)
                && let Some(twin) = groups.add_twin(group, &own)
            {
                *group = twin;
            }
            actions.insert(group.clone(), own);
            rule.rewrites_prefix |= filters.rewrites_prefix;
            rule.references = rule.references.take().or(filters.references);
        }
        Ok(GroupActions(actions))
    }

    /// Writes the value of a group in `groups`: the weight, or a table with the weight and the actions.
    pub(crate) fn write_share(&self, group: &str, weight: u32) -> String {
        match self.0.get(group).map_or("", String::as_str) {
            "" => weight.to_string(),
            actions => format!("{{ weight = {weight}, {actions} }}"),
        }
    }
}
