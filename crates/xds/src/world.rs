//! All resources of the moment, and which of them have changed since when.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::Hasher;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use siphasher::sip::SipHasher13;

use crate::content::Content;
use crate::kind::{Audience, Kind};
use crate::proto::Any;

/// Most forms of a resource that are kept: clients of more zones than this have theirs encoded anew each
/// time.
const MOST_FORMS: usize = 16;

/// A resource as somebody gets it.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodedResource {
    /// Version that tells this form from other forms and older contents: it depends on nothing but the bytes,
    /// so that another process, or one that was started again, knows what a client has.
    pub version: u64,
    /// An [`Any`].
    pub any: Bytes,
}

#[derive(Debug)]
struct Resource {
    content: Content,
    /// The change that made it what it is.
    changed: u64,
    /// Forms of the resource, by audience; `None` is that the audience does not get the resource.
    forms: RefCell<Vec<(Audience, Option<EncodedResource>)>>,
}

/// The resources of one type.
#[derive(Debug, Default)]
struct Shelf {
    resources: BTreeMap<Arc<str>, Resource>,
    /// Names of the resources by the change that made the resources what they are.
    changes: BTreeMap<u64, Arc<str>>,
    /// The last change that has taken one away.
    removed: u64,
}

/// All resources of the moment.
#[derive(Debug, Default)]
pub struct ResourceSet {
    shelves: [Shelf; Kind::ALL.len()],
    /// Number of changes.
    changes: u64,
}

impl ResourceSet {
    /// Returns the number of changes.
    pub fn version(&self) -> u64 {
        self.changes
    }

    fn shelf(&self, kind: Kind) -> Option<&Shelf> {
        self.shelves.get(kind as usize)
    }

    /// Says what a resource is; answers whether that is news.
    pub fn set(&mut self, kind: Kind, name: &Arc<str>, content: Content) -> bool {
        let Some(shelf) = self.shelves.get_mut(kind as usize) else {
            return false;
        };
        if let Some(known) = shelf.resources.get(name) {
            if known.content == content {
                return false;
            }
            shelf.changes.remove(&known.changed);
        }
        self.changes += 1;
        let changed = self.changes;
        shelf.changes.insert(changed, Arc::clone(name));
        let resource = Resource {
            content,
            changed,
            forms: RefCell::default(),
        };
        shelf.resources.insert(Arc::clone(name), resource);
        true
    }

    /// Takes a resource away; answers whether it was there.
    pub fn remove(&mut self, kind: Kind, name: &str) -> bool {
        let Some(shelf) = self.shelves.get_mut(kind as usize) else {
            return false;
        };
        let Some(known) = shelf.resources.remove(name) else {
            return false;
        };
        shelf.changes.remove(&known.changed);
        self.changes += 1;
        shelf.removed = self.changes;
        true
    }

    /// True if there is a resource of that name, whoever gets it.
    pub fn has_resource(&self, kind: Kind, name: &str) -> bool {
        self.shelf(kind)
            .is_some_and(|shelf| shelf.resources.contains_key(name))
    }

    /// Returns the names of all resources of a type, in their order.
    pub fn resource_names(&self, kind: Kind) -> impl Iterator<Item = &Arc<str>> {
        let shelf = self.shelf(kind).into_iter();
        shelf.flat_map(|shelf| shelf.resources.keys())
    }

    /// Returns the names of the resources that have changed after the change `seen`, and are there.
    pub fn changed_since(&self, kind: Kind, seen: u64) -> impl Iterator<Item = &Arc<str>> {
        let shelf = self.shelf(kind).into_iter();
        let after = (Bound::Excluded(seen), Bound::Unbounded);
        shelf.flat_map(move |shelf| shelf.changes.range(after).map(|(_, name)| name))
    }

    /// True if a resource of that type was taken away after the change `seen`.
    pub fn removed_since(&self, kind: Kind, seen: u64) -> bool {
        self.shelf(kind).is_some_and(|shelf| shelf.removed > seen)
    }

    /// Returns a resource as `audience` gets it; `None` if there is no such resource for the audience.
    pub fn find_resource(
        &self,
        kind: Kind,
        name: &str,
        audience: &Audience,
    ) -> Option<EncodedResource> {
        let resource = self.shelf(kind)?.resources.get(name)?;
        let mut forms = resource.forms.borrow_mut();
        if let Some((_, form)) = forms.iter().find(|(known, _)| known == audience) {
            return form.clone();
        }
        let form = resource.content.encode_for(name, audience).map(|value| {
            let type_url = kind.type_url().to_owned();
            let any = Any { type_url, value }.encode_to_vec();
            // The keys are no secret: nobody gains by two contents with one version.
            let mut hasher = SipHasher13::new_with_keys(0x6b65_656c, 0x7864_7376);
            hasher.write(&any);
            EncodedResource {
                version: hasher.finish(),
                any: any.into(),
            }
        });
        if forms.len() < MOST_FORMS {
            forms.push((audience.clone(), form.clone()));
        }
        form
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Dialect;

    const ENVOY: Audience = Audience {
        dialect: Dialect::Envoy,
        zone: None,
    };

    #[test]
    fn changes_are_told_in_order_and_each_resource_once() {
        let mut world = ResourceSet::default();
        let [a, b]: [Arc<str>; 2] = ["a".into(), "b".into()];
        let endpoints = |weight| Content::of_weights(&[weight]);
        assert!(world.set(Kind::Endpoints, &a, endpoints(1)));
        assert!(world.set(Kind::Endpoints, &b, endpoints(1)));
        let seen = world.version();
        assert!(!world.set(Kind::Endpoints, &a, endpoints(1)), "no news");
        let since = |world: &ResourceSet, seen| -> Vec<String> {
            let changed = world.changed_since(Kind::Endpoints, seen);
            changed.map(ToString::to_string).collect()
        };
        assert_eq!(since(&world, 0), ["a", "b"]);
        assert!(since(&world, seen).is_empty());
        let before = world.find_resource(Kind::Endpoints, "a", &ENVOY);
        assert_eq!(
            before,
            world.find_resource(Kind::Endpoints, "a", &ENVOY),
            "stable"
        );
        assert_eq!(before.as_ref().map(|form| form.any.len() > 60), Some(true));
        assert!(world.set(Kind::Endpoints, &a, endpoints(2)));
        assert_eq!(since(&world, 0), ["b", "a"]);
        assert_eq!(since(&world, seen), ["a"]);
        assert_ne!(before, world.find_resource(Kind::Endpoints, "a", &ENVOY));
        // As it was before, and so is its version.
        assert!(world.set(Kind::Endpoints, &a, endpoints(1)));
        assert_eq!(before, world.find_resource(Kind::Endpoints, "a", &ENVOY));
        let seen = world.version();
        assert!(!world.removed_since(Kind::Endpoints, seen));
        assert!(world.remove(Kind::Endpoints, "a") && !world.remove(Kind::Endpoints, "a"));
        assert!(world.removed_since(Kind::Endpoints, seen));
        assert!(!world.removed_since(Kind::Cluster, seen));
        assert!(since(&world, seen).is_empty());
        assert_eq!(world.find_resource(Kind::Endpoints, "a", &ENVOY), None);
        assert!(
            !world.has_resource(Kind::Endpoints, "a") && world.has_resource(Kind::Endpoints, "b")
        );
        assert_eq!(world.resource_names(Kind::Endpoints).count(), 1);
    }
}
