//! Endpoints of objects, and how a request names its target there.

use std::rc::Rc;

use evenkeel_giop::ior::{IiopProfile, Ior, TAG_INTERNET_IOP};
use evenkeel_giop::message::{Target, Version};

/// An endpoint of an object: a profile of its reference.
pub(super) struct Endpoint {
    /// Hosts and ports of the endpoint, best first; never empty.
    pub(super) addresses: Vec<(String, u16)>,
    pub(super) version: Version,
    pub(super) key: Vec<u8>,
    /// The whole reference and which profile of it this is, for servers that want more than
    /// the key.
    pub(super) ior: Ior,
    pub(super) selected: usize,
}

/// All endpoints to an object, best first. Profiles that cannot be read are passed over.
pub(super) fn read_endpoints(ior: &Ior) -> Vec<Rc<Endpoint>> {
    let profiles = ior.profiles.iter().enumerate();
    let endpoints = profiles.filter_map(|(selected, profile)| {
        if profile.tag != TAG_INTERNET_IOP {
            return None;
        }
        let profile = IiopProfile::decode(&profile.data).ok()??;
        Some(Rc::new(Endpoint {
            addresses: profile.list_addresses().collect(),
            version: Version::for_minor(profile.minor),
            key: profile.object_key,
            ior: ior.clone(),
            selected,
        }))
    });
    endpoints.collect()
}

/// Way in which a server wants its objects to be named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Addressing {
    #[default]
    Key,
    Profile,
    Reference,
}

impl Addressing {
    /// Returns the addressing that the discriminator in a NEEDS_ADDRESSING_MODE stands for.
    pub(super) fn from_discriminator(discriminator: u16) -> Option<Self> {
        let all = [Addressing::Key, Addressing::Profile, Addressing::Reference];
        all.get(usize::from(discriminator)).copied()
    }
}

impl Endpoint {
    /// Returns the target of a request. Before GIOP 1.2 it can only be the key.
    pub(super) fn target(&self, addressing: Addressing) -> Target<'_> {
        match (addressing, self.ior.profiles.get(self.selected)) {
            (Addressing::Profile, Some(profile)) => Target::Profile {
                tag: profile.tag,
                data: &profile.data,
            },
            (Addressing::Reference, Some(_)) => Target::Reference {
                selected: self.selected as u32,
                ior: self.ior.clone(),
            },
            _ => Target::Key(&self.key),
        }
    }
}

/// The version in which a request goes on. Where the member's is lower than the client's it is
/// 1.0: a reply in fragments of 1.1 could not be put together for a client of 1.2, and in 1.0
/// there are none.
pub(super) fn outgoing_version(client: Version, endpoint: &Endpoint) -> Version {
    match endpoint.version < client {
        true => Version::V1_0,
        false => client,
    }
}
