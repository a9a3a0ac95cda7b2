//! Versions of GIOP.

/// A version of GIOP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// GIOP 1.0.
    V1_0,
    /// GIOP 1.1.
    V1_1,
    /// GIOP 1.2.
    V1_2,
}

impl Version {
    /// The version to speak with a server whose profile says IIOP 1.`minor`.
    pub fn for_minor(minor: u8) -> Self {
        match minor {
            0 => Version::V1_0,
            1 => Version::V1_1,
            _ => Version::V1_2,
        }
    }

    /// The number behind the point.
    pub fn minor(self) -> u8 {
        match self {
            Version::V1_0 => 0,
            Version::V1_1 => 1,
            Version::V1_2 => 2,
        }
    }
}
