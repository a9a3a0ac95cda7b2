//! Changes of fields by filters of rules and of their targets.

use super::objects::{HeaderModifier, Items};

/// Changes of heads.
#[derive(Clone, Debug, Default)]
pub(crate) struct FieldEdits {
    /// Changes to requests.
    pub(crate) request: HeaderModifier,
    /// Changes to responses.
    pub(crate) response: HeaderModifier,
    /// Host name in requests to members.
    pub(crate) host: Option<String>,
}

/// Makes changes after others: the outcome is that of both in turn.
fn add_changes(first: &mut HeaderModifier, then: &HeaderModifier) {
    let is_named = |name: &str, names: &[&str]| {
        let mut names = names.iter();
        names.any(|known| known.eq_ignore_ascii_case(name))
    };
    let set: Vec<&str> = then.set.iter().map(|of| of.name.as_str()).collect();
    let mut gone: Vec<&str> = then.remove.iter().map(String::as_str).collect();
    gone.extend(&set);
    let keep = |list: &Items<_>| -> Vec<_> {
        let kept = list.iter().cloned();
        kept.filter(|of: &super::objects::Header| !is_named(&of.name, &gone))
            .collect()
    };
    let (mut kept_set, mut kept_add) = (keep(&first.set), keep(&first.add));
    kept_set.extend(then.set.iter().cloned());
    kept_add.extend(then.add.iter().cloned());
    let removed = first.remove.iter().filter(|name| !is_named(name, &set));
    let mut removed: Vec<String> = removed.cloned().collect();
    removed.extend(then.remove.iter().cloned());
    first.set = Items::from_vec(kept_set);
    first.add = Items::from_vec(kept_add);
    first.remove = Items::from_vec(removed);
}

impl FieldEdits {
    /// Makes the changes of a target after these, which are those of the target's rule.
    pub(crate) fn add_edits(&mut self, then: &FieldEdits) {
        add_changes(&mut self.request, &then.request);
        add_changes(&mut self.response, &then.response);
        if then.host.is_some() {
            self.host.clone_from(&then.host);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn changes(of: Value) -> HeaderModifier {
        serde_json::from_value(of).unwrap()
    }

    #[test]
    fn later_changes_are_made_to_the_outcome_of_earlier_ones() {
        let field = |name: &str, value: &str| json!({ "name": name, "value": value });
        let mut all = changes(
            json!({ "set": [field("a", "1"), field("b", "1")], "add": [field("c", "1"), field("d", "1")],
                                      "remove": ["e", "f"] }),
        );
        add_changes(
            &mut all,
            &changes(
                json!({ "set": [field("A", "2"), field("e", "2")], "add": [field("d", "2")], "remove": ["C", "g"] }),
            ),
        );
        let wanted = changes(
            json!({ "set": [field("b", "1"), field("A", "2"), field("e", "2")],
                                     "add": [field("d", "1"), field("d", "2")], "remove": ["f", "C", "g"] }),
        );
        assert_eq!(all, wanted);
    }
}
