//! ReferenceGrants: permissions for references between namespaces.

use super::objects::{ObjectName, Objects};

/// True if objects of a kind in a namespace may refer to an object. Within a namespace every object may.
pub(crate) fn is_granted(
    objects: &Objects,
    (group, kind, namespace): (&str, &str, &str),
    (to_group, to_kind): (&str, &str),
    to: &ObjectName,
) -> bool {
    if namespace == to.namespace {
        return true;
    }
    let all = objects.grants.range(ObjectName::new(&to.namespace, "")..);
    let mut own = all.take_while(|(name, _)| name.namespace == to.namespace);
    own.any(|(_, grant)| {
        { grant.spec.from.iter() }
            .any(|from| from.group == group && from.kind == kind && from.namespace == namespace)
            && grant.spec.to.iter().any(|of| {
                of.group == to_group
                    && of.kind == to_kind
                    && of
                        .name
                        .as_ref()
                        .filter(|name| !name.is_empty())
                        .is_none_or(|name| *name == to.name)
            })
    })
}
