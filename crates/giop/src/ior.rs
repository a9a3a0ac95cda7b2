//! Object references.

/// An interoperable object reference (IOR).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Ior {
    /// Repository id of the object's interface; empty with no profiles is nil.
    pub type_id: String,
    /// Ways to reach it, best first.
    pub profiles: Vec<Profile>,
}

/// One way to reach an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// TAG_INTERNET_IOP (0).
    Iiop(IiopProfile),
    /// Any other, kept as it is.
    Other(Tagged),
}

/// An object behind IIOP.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IiopProfile {
    /// Minor version of IIOP 1.x.
    pub minor: u8,
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// What names the object there; opaque.
    pub object_key: Vec<u8>,
    /// Tagged components (none in version 1.0).
    pub components: Vec<Tagged>,
}

/// A tagged profile or component: an encapsulation that is kept as it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tagged {
    /// The tag.
    pub tag: u32,
    /// The data.
    pub data: Vec<u8>,
}
