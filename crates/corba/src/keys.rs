//! Object keys: what the references that are given out name.
//!
//! They outlive the process: a client may have stored a reference for years. So a key
//! says everything itself, and its form may be added to, but not changed.

/// Level of a strategy: one of the three levels at which properties are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level<'a> {
    /// Level of the group with this id.
    Group(u64),
    /// Level of the groups whose interface has this repository id.
    Type(&'a str),
    /// Level of all other groups.
    Default,
}

/// An object of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key<'a> {
    /// The load manager.
    Manager,
    /// The object group with this id.
    Group(u64),
    /// The object group with this name, in references that people write
    /// (`corbaloc::host:port/group/NAME`).
    GroupName(&'a str),
    /// A strategy.
    Strategy(Level<'a>),
}

/// The key of the load manager: what `corbaloc::host:port/LoadManager` stands for.
pub const MANAGER: &[u8] = b"LoadManager";

/// Prefix before the name of a group.
const GROUP_NAME: &[u8] = b"group/";
/// Prefix before the id of a group (8 bytes, most significant first).
const GROUP: &[u8; 4] = b"EKG\x01";
/// Prefix before the level of a strategy: `g` and a group's id, `t` and a repository id, or `d`.
const STRATEGY: &[u8; 4] = b"EKS\x01";

impl<'a> Key<'a> {
    /// Reads a key; `None` if it is none of ours.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        if let Some(id) = bytes.strip_prefix(GROUP) {
            return group_id(id).map(Key::Group);
        }
        if bytes == MANAGER {
            return Some(Key::Manager);
        }
        if let Some(name) = bytes.strip_prefix(GROUP_NAME) {
            return std::str::from_utf8(name).ok().map(Key::GroupName);
        }
        let (&level, rest) = bytes.strip_prefix(STRATEGY)?.split_first()?;
        let level = match (level, rest) {
            (b'g', id) => Level::Group(group_id(id)?),
            (b't', type_id) => Level::Type(std::str::from_utf8(type_id).ok()?),
            (b'd', []) => Level::Default,
            _ => return None,
        };
        Some(Key::Strategy(level))
    }

    /// The bytes, for a reference.
    pub fn to_bytes(self) -> Vec<u8> {
        match self {
            Key::Manager => MANAGER.to_vec(),
            Key::Group(id) => [&GROUP[..], &id.to_be_bytes()].concat(),
            Key::GroupName(name) => [GROUP_NAME, name.as_bytes()].concat(),
            Key::Strategy(Level::Group(id)) => [&STRATEGY[..], b"g", &id.to_be_bytes()].concat(),
            Key::Strategy(Level::Type(type_id)) => {
                [&STRATEGY[..], b"t", type_id.as_bytes()].concat()
            }
            Key::Strategy(Level::Default) => [&STRATEGY[..], b"d"].concat(),
        }
    }
}

#[inline]
fn group_id(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_key_is_read_back() {
        for key in [
            Key::Manager,
            Key::Group(0),
            Key::Group(u64::MAX - 7),
            Key::GroupName("stock"),
            Key::GroupName(""),
            Key::Strategy(Level::Group(3)),
            Key::Strategy(Level::Type("IDL:Stock/Factory:1.0")),
            Key::Strategy(Level::Default),
        ] {
            assert_eq!(Key::parse(&key.to_bytes()), Some(key));
        }
    }

    /// References are stored by clients: these bytes must be understood for ever.
    #[test]
    fn the_form_of_keys_does_not_change() {
        assert_eq!(Key::Group(258).to_bytes(), b"EKG\x01\0\0\0\0\0\0\x01\x02");
        assert_eq!(Key::GroupName("a b").to_bytes(), b"group/a b");
        let key = Key::Strategy(Level::Group(7));
        assert_eq!(key.to_bytes(), b"EKS\x01g\0\0\0\0\0\0\0\x07");
        let key = Key::Strategy(Level::Type("IDL:A:1.0"));
        assert_eq!(key.to_bytes(), b"EKS\x01tIDL:A:1.0");
        assert_eq!(Key::Strategy(Level::Default).to_bytes(), b"EKS\x01d");
    }

    #[test]
    fn what_is_no_key_of_ours_is_none() {
        for bytes in [
            &b""[..],
            b"loadmanager",
            b"LoadManager\0",
            b"EKG\x01",
            b"EKG\x01\0\0\0\0\0\0\x01",
            b"EKG\x01\0\0\0\0\0\0\0\x01\0",
            b"EKG\x02\0\0\0\0\0\0\0\x01",
            b"group",
            b"group/\xff",
            b"EKS\x01",
            b"EKS\x01x",
            b"EKS\x01dd",
            b"EKS\x01g\0",
            b"EKS\x01t\xff",
        ] {
            assert_eq!(Key::parse(bytes), None, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn a_key_has_one_form_only(bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..16),
            prop::collection::vec(any::<u8>(), 0..12).prop_map(|rest| [&GROUP[..], &rest].concat()),
            prop::collection::vec(any::<u8>(), 0..12).prop_map(|rest| [&STRATEGY[..], &rest].concat()),
            prop::collection::vec(any::<u8>(), 0..12).prop_map(|rest| [GROUP_NAME, &rest].concat()),
        ]) {
            if let Some(key) = Key::parse(&bytes) {
                prop_assert_eq!(key.to_bytes(), bytes);
            }
        }
    }
}
