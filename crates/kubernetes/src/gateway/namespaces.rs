//! Namespaces whose routes may attach to a listener, or whose sets a gateway takes.

use super::gateway_spec::RouteNamespaces;
use super::objects::{ObjectName, Objects};

impl RouteNamespaces {
    /// True if objects of `namespace` are chosen. `home` is the namespace of the object with the choice, and `unset` is the
    /// choice if there is none.
    pub(crate) fn choose(
        &self,
        unset: &str,
        home: &str,
        namespace: &str,
        objects: &Objects,
    ) -> bool {
        match self.from.as_deref().unwrap_or(unset) {
            "All" => true,
            "Same" => home == namespace,
            "Selector" => {
                let of = objects.namespaces.get(&ObjectName::new("", namespace));
                let selector = self.selector.as_ref();
                { selector.zip(of) }
                    .is_some_and(|(selector, of)| selector.selects(&of.metadata.labels))
            }
            _ => false,
        }
    }
}
