//! Parts of a configuration that each belong to one subsystem.
//!
//! Code between the file and a subsystem passes sections on and compares sections, without knowing their
//! contents.

use std::any::Any;
use std::fmt::Debug;
use std::net::SocketAddr;

use evenkeel_core::address::Address;
use std::sync::Arc;

use super::config::Config;
use super::sources::Sources;

/// The settings of one subsystem. It finds them by their type.
pub trait Section: Any + Debug + Send + Sync {
    /// True if `other` has the same type and the same settings.
    fn equals(&self, other: &dyn Section) -> bool;
}

impl<T: Any + Debug + PartialEq + Send + Sync> Section for T {
    fn equals(&self, other: &dyn Section) -> bool {
        let other: &dyn Any = other;
        other.downcast_ref::<T>() == Some(self)
    }
}

/// The sections of a configuration, at most one of each type. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Sections(Vec<Arc<dyn Section>>);

impl Sections {
    /// The section of that type.
    pub fn get<T: Section>(&self) -> Option<&T> {
        self.0.iter().find_map(|section| {
            let section: &dyn Any = &**section;
            section.downcast_ref()
        })
    }

    /// Puts a section in the place of the one of its type.
    pub fn set<T: Section>(&mut self, section: T) {
        self.0.retain(|known| {
            let known: &dyn Any = &**known;
            !known.is::<T>()
        });
        self.0.push(Arc::new(section));
    }

    fn with<T: Section + Clone>(mut self, section: Option<&T>) -> Self {
        if let Some(section) = section {
            self.set(section.clone());
        }
        self
    }
}

impl PartialEq for Sections {
    fn eq(&self, other: &Self) -> bool {
        let mut both = self.0.iter().zip(&other.0);
        self.0.len() == other.0.len() && both.all(|(a, b)| (**a).equals(&**b))
    }
}

impl Config {
    /// Sections for subsystems.
    pub fn sections(&self) -> Sections {
        let of_groups = self.groups.iter().filter_map(|g| g.monitor.as_ref());
        let of_locations = self.locations.iter().filter_map(|l| l.monitor.as_ref());
        let monitors: Vec<_> = of_groups.chain(of_locations).cloned().collect();
        // Few groups of thousands have any.
        let (sources, none) = (
            self.groups.iter().map(|group| &group.sources),
            Sources::default(),
        );
        let sources: Vec<_> = sources.filter(|of| **of != none).cloned().collect();
        Sections::default()
            .with(self.acme.as_ref())
            .with(self.admin.as_ref())
            .with(self.broker.as_ref())
            .with(self.fleet.as_ref())
            .with(Some(&self.kernel_forwarding))
            .with(self.kubernetes.as_ref())
            .with(self.negotiator.as_ref())
            .with(Some(&self.clusters))
            .with(self.corba.as_ref())
            .with(self.store.as_ref())
            .with(Some(&self.node))
            .with(self.xds.as_ref())
            .with(Some(&self.steer))
            .with(Some(&monitors))
            .with(Some(&sources))
    }

    /// The groups whose members subsystems look at, by name. Some may come more than once.
    pub fn groups_of_sections(&self) -> impl Iterator<Item = &str> {
        let clusters = self.clusters.iter().map(|cluster| &*cluster.group);
        clusters.chain(self.steer.iter().map(|steer| &*steer.group))
    }

    /// Addresses on which subsystems of this process accept TCP connections.
    pub fn listens(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        let rules = self.rules.iter().flat_map(|rule| &rule.listen);
        let rules = rules.filter_map(Address::socket);
        let admin = self.admin.iter().map(|admin| admin.listen);
        let negotiator = self.negotiator.iter().flat_map(|n| &n.listen);
        let corba = self.corba.iter().flat_map(|corba| &corba.listen);
        let xds = self.xds.iter().flat_map(|xds| &xds.listen);
        let others = negotiator.chain(corba).chain(xds).copied();
        rules.chain(admin).chain(others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_found_and_compared_by_type() {
        let mut sections = Sections::default();
        assert_eq!(sections.get::<u8>(), None);
        sections.set(1u8);
        sections.set("text".to_owned());
        assert_eq!(sections.get::<u8>(), Some(&1));
        assert_eq!(sections.get::<u16>(), None);
        let same = sections.clone();
        assert_eq!(sections, same);
        sections.set("text".to_owned());
        assert_eq!(sections, same, "equal, though another one");
        sections.set("other".to_owned());
        assert_ne!(sections, same);
        assert_eq!(sections.get::<String>().map(String::as_str), Some("other"));
    }
}
