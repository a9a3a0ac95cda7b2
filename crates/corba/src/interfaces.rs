//! The interfaces of the service: repository ids, and what inherits what.

/// Prefix of `CosLoadBalancing` in repository ids that clients in the field have.
pub const DEFAULT_PREFIX: &str = "tao.lb";

/// All prefixes of `CosLoadBalancing` that are taken for the same.
const PREFIXES: [&str; 2] = [DEFAULT_PREFIX, "omg.org"];

/// Repository id of every object.
pub const OBJECT_ID: &str = "IDL:omg.org/CORBA/Object:1.0";

/// An interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Interface {
    PropertyManager,
    ObjectGroupManager,
    GenericFactory,
    LoadManager,
    /// `Strategy`, and `CustomStrategy`, which is another name for it.
    Strategy,
    LoadAlert,
    LoadMonitor,
}

impl Interface {
    /// Returns the name of the interface in IDL.
    pub fn name(self) -> &'static str {
        match self {
            Interface::PropertyManager => "PropertyManager",
            Interface::ObjectGroupManager => "ObjectGroupManager",
            Interface::GenericFactory => "GenericFactory",
            Interface::LoadManager => "LoadManager",
            Interface::Strategy => "Strategy",
            Interface::LoadAlert => "LoadAlert",
            Interface::LoadMonitor => "LoadMonitor",
        }
    }

    /// Returns the repository id of the interface, where the ids of `CosLoadBalancing` have this
    /// prefix.
    pub fn id(self, prefix: &str) -> String {
        match self {
            Interface::PropertyManager
            | Interface::ObjectGroupManager
            | Interface::GenericFactory => portable_group_id(self.name()),
            _ => load_balancing_id(prefix, self.name()),
        }
    }

    /// Answers `_is_a`: whether an object with this interface has `id`, too.
    pub fn is_a(self, id: &str) -> bool {
        let own = same_id(&self.id(DEFAULT_PREFIX), id);
        let alias = self == Interface::Strategy
            && same_id(&load_balancing_id(DEFAULT_PREFIX, "CustomStrategy"), id);
        let inherited = self.bases().iter().any(|base| base.is_a(id));
        own || alias || inherited || id == OBJECT_ID
    }

    /// Returns the interfaces that this one inherits.
    fn bases(self) -> &'static [Interface] {
        match self {
            Interface::LoadManager => &[
                Interface::PropertyManager,
                Interface::ObjectGroupManager,
                Interface::GenericFactory,
            ],
            _ => &[],
        }
    }
}

/// Repository id of something in `PortableGroup`.
pub fn portable_group_id(name: &str) -> String {
    format!("IDL:omg.org/PortableGroup/{name}:1.0")
}

/// Repository id of something in `CosLoadBalancing`, with that prefix.
pub fn load_balancing_id(prefix: &str, name: &str) -> String {
    format!("IDL:{prefix}/CosLoadBalancing/{name}:1.0")
}

/// Returns true if both repository ids name the same interface: `CosLoadBalancing` goes by more
/// than one prefix.
pub fn same_id(one: &str, other: &str) -> bool {
    one == other
        || matches!((strip_id_prefix(one), strip_id_prefix(other)), (Some(one), Some(other)) if one == other)
}

/// Returns the part after the prefix in a repository id of `CosLoadBalancing`.
pub(crate) fn strip_id_prefix(id: &str) -> Option<&str> {
    let id = id.strip_prefix("IDL:")?;
    let mut ids = PREFIXES
        .iter()
        .filter_map(|&prefix| id.strip_prefix(prefix));
    ids.find_map(|id| id.strip_prefix("/CosLoadBalancing/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_prefixes_and_what_is_inherited_are_known() {
        let manager = Interface::LoadManager;
        for id in [
            "IDL:tao.lb/CosLoadBalancing/LoadManager:1.0",
            "IDL:omg.org/CosLoadBalancing/LoadManager:1.0",
            "IDL:omg.org/PortableGroup/PropertyManager:1.0",
            "IDL:omg.org/PortableGroup/ObjectGroupManager:1.0",
            "IDL:omg.org/PortableGroup/GenericFactory:1.0",
            "IDL:omg.org/CORBA/Object:1.0",
        ] {
            assert!(manager.is_a(id), "{id}");
        }
        for id in [
            "",
            "IDL:CosLoadBalancing/LoadManager:1.0",
            "IDL:tao.lb/CosLoadBalancing/LoadManager:1.1",
            "IDL:tao.lb/CosLoadBalancing/Strategy:1.0",
            "IDL:tao.lb/PortableGroup/GenericFactory:1.0",
            "IDL:omg.org/CosNaming/NamingContext:1.0",
        ] {
            assert!(!manager.is_a(id), "{id}");
        }
        let custom = "IDL:omg.org/CosLoadBalancing/CustomStrategy:1.0";
        assert!(Interface::Strategy.is_a(custom));
        assert!(!Interface::LoadAlert.is_a(custom));
        assert_eq!(
            Interface::Strategy.id("omg.org"),
            "IDL:omg.org/CosLoadBalancing/Strategy:1.0"
        );
        assert_eq!(
            Interface::GenericFactory.id("tao.lb"),
            "IDL:omg.org/PortableGroup/GenericFactory:1.0"
        );
    }
}
