//! `pass_through`: names whose TLS passes through a rule that ends TLS of other clients.

use super::name_set::NameSet;
use super::rule::Rule;
use super::tls::UNNAMED;
use crate::schema::report::Report;
use crate::schema::table::Table;

/// Looks at the names whose TLS passes through.
pub(super) fn check_pass_through(rule: &Rule, table: &Table<'_>, report: &mut Report<'_>) {
    let mut refuse = |message: String| table.report_problem("pass_through", message, report);
    if rule.pass_through.is_empty() {
        return;
    }
    if rule.sni.is_empty() {
        return refuse("only a rule with `sni` has this key".into());
    }
    if rule.tls.is_none() {
        return refuse(
            "without `tls` TLS of all clients passes through: remove this key, or add `tls`".into(),
        );
    }
    let known: NameSet = rule.sni.keys().collect();
    for name in &rule.pass_through {
        match name.as_str() {
            UNNAMED if rule.group.is_empty() => {
                refuse("\"*\" stands for clients which go to the group of the rule, and there is none: add `group`".into());
            }
            UNNAMED => {}
            _ if known.contains(name) => {}
            _ => refuse(format!(
                "{name:?} is no name of `sni`: add the name there, with its group"
            )),
        }
    }
}
