//! The exceptions of the OMG's `PortableGroup` and `CosLoadBalancing` modules.

use evenkeel_giop::any::Idl;
use evenkeel_giop::cdr::{CdrError, Reader, Writer};

use crate::interfaces;
use crate::name::Name;
use crate::types::{Properties, Property};

/// An exception that an operation raises, as it stands in the body of a reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserException {
    /// No such interface.
    #[error("no such interface")]
    InterfaceNotFound,
    /// The reference is not of an object group that exists.
    #[error("no such object group")]
    ObjectGroupNotFound,
    /// The group has no such member.
    #[error("no such member")]
    MemberNotFound,
    /// No object was created under this id.
    #[error("no such object")]
    ObjectNotFound,
    /// The group has a member at this location.
    #[error("the group already has a member at this location")]
    MemberAlreadyPresent,
    /// A factory made nothing.
    #[error("the object was not created")]
    ObjectNotCreated,
    /// The object cannot be a member.
    #[error("the object cannot be a member of this group")]
    ObjectNotAdded,
    /// There is no such property, or not at this level.
    #[error("property {} is not supported", shown(&_0.nam))]
    UnsupportedProperty(Property),
    /// The property has a value that it cannot have.
    #[error("property {} cannot have this value", shown(&_0.nam))]
    InvalidProperty(Property),
    /// There is no factory for this type at this location.
    #[error("no factory creates {type_id:?} at {}", shown(the_location))]
    NoFactory {
        /// Location without such a factory.
        the_location: Name,
        /// Repository id of the type.
        type_id: String,
    },
    /// Criteria that mean nothing.
    #[error("criteria are not valid: {}", names(_0))]
    InvalidCriteria(Properties),
    /// Criteria that nothing can meet.
    #[error("criteria cannot be met: {}", names(_0))]
    CannotMeetCriteria(Properties),
    /// There is a monitor for this location.
    #[error("there is already a load monitor for this location")]
    MonitorAlreadyPresent,
    /// Nothing is known about this location.
    #[error("nothing is known about this location")]
    LocationNotFound,
    /// There is no load alert for this location.
    #[error("there is no load alert for this location")]
    LoadAlertNotFound,
    /// There is a load alert for this location.
    #[error("there is already a load alert for this location")]
    LoadAlertAlreadyPresent,
    /// The object cannot be a load alert.
    #[error("the load alert was not added")]
    LoadAlertNotAdded,
    /// The strategy does not look at loads.
    #[error("the strategy does not use loads")]
    StrategyNotAdaptive,
}

fn names(properties: &Properties) -> String {
    let names: Vec<_> = properties.iter().map(|p| shown(&p.nam)).collect();
    names.join(", ")
}

/// A name for logs and terminals, where it must not break a line.
fn shown(name: &Name) -> String {
    name.to_string().escape_debug().to_string()
}

impl UserException {
    /// Returns the repository id of the exception, where the ids of `CosLoadBalancing` have this
    /// prefix.
    pub fn repository_id(&self, prefix: &str) -> String {
        use UserException::*;
        let group = interfaces::portable_group_id;
        let balancing = |name| interfaces::load_balancing_id(prefix, name);
        match self {
            InterfaceNotFound => group("InterfaceNotFound"),
            ObjectGroupNotFound => group("ObjectGroupNotFound"),
            MemberNotFound => group("MemberNotFound"),
            ObjectNotFound => group("ObjectNotFound"),
            MemberAlreadyPresent => group("MemberAlreadyPresent"),
            ObjectNotCreated => group("ObjectNotCreated"),
            ObjectNotAdded => group("ObjectNotAdded"),
            UnsupportedProperty(_) => group("UnsupportedProperty"),
            InvalidProperty(_) => group("InvalidProperty"),
            NoFactory { .. } => group("NoFactory"),
            InvalidCriteria(_) => group("InvalidCriteria"),
            CannotMeetCriteria(_) => group("CannotMeetCriteria"),
            MonitorAlreadyPresent => balancing("MonitorAlreadyPresent"),
            LocationNotFound => balancing("LocationNotFound"),
            LoadAlertNotFound => balancing("LoadAlertNotFound"),
            LoadAlertAlreadyPresent => balancing("LoadAlertAlreadyPresent"),
            LoadAlertNotAdded => balancing("LoadAlertNotAdded"),
            StrategyNotAdaptive => balancing("StrategyNotAdaptive"),
        }
    }

    /// Writes it as the body of a reply.
    pub fn write(&self, prefix: &str, writer: &mut Writer) {
        writer.write_string(&self.repository_id(prefix));
        match self {
            UserException::UnsupportedProperty(property)
            | UserException::InvalidProperty(property) => property.write(writer),
            UserException::NoFactory {
                the_location,
                type_id,
            } => {
                the_location.write(writer);
                type_id.write(writer);
            }
            UserException::InvalidCriteria(criteria)
            | UserException::CannotMeetCriteria(criteria) => criteria.write(writer),
            _ => {}
        }
    }

    /// Reads the body of a reply; `None` if it is of no exception that is known here.
    pub fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, CdrError> {
        use UserException::*;
        let id = reader.read_string("repository id of an exception")?;
        let name = match interfaces::strip_id_prefix(&id) {
            Some(name) => name,
            None => id
                .strip_prefix("IDL:omg.org/PortableGroup/")
                .unwrap_or_default(),
        };
        Ok(Some(match name.strip_suffix(":1.0").unwrap_or_default() {
            "InterfaceNotFound" => InterfaceNotFound,
            "ObjectGroupNotFound" => ObjectGroupNotFound,
            "MemberNotFound" => MemberNotFound,
            "ObjectNotFound" => ObjectNotFound,
            "MemberAlreadyPresent" => MemberAlreadyPresent,
            "ObjectNotCreated" => ObjectNotCreated,
            "ObjectNotAdded" => ObjectNotAdded,
            "UnsupportedProperty" => UnsupportedProperty(Property::read(reader)?),
            "InvalidProperty" => InvalidProperty(Property::read(reader)?),
            "NoFactory" => NoFactory {
                the_location: Name::read(reader)?,
                type_id: String::read(reader)?,
            },
            "InvalidCriteria" => InvalidCriteria(Vec::read(reader)?),
            "CannotMeetCriteria" => CannotMeetCriteria(Vec::read(reader)?),
            "MonitorAlreadyPresent" => MonitorAlreadyPresent,
            "LocationNotFound" => LocationNotFound,
            "LoadAlertNotFound" => LoadAlertNotFound,
            "LoadAlertAlreadyPresent" => LoadAlertAlreadyPresent,
            "LoadAlertNotAdded" => LoadAlertNotAdded,
            "StrategyNotAdaptive" => StrategyNotAdaptive,
            _ => return Ok(None),
        }))
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_giop::cdr::Endian;

    use super::*;

    #[test]
    fn what_is_raised_here_is_understood_there() {
        use UserException::*;
        let property = Property::new("p", &1.5f32);
        let all = [
            InterfaceNotFound,
            ObjectGroupNotFound,
            MemberNotFound,
            ObjectNotFound,
            MemberAlreadyPresent,
            ObjectNotCreated,
            ObjectNotAdded,
            UnsupportedProperty(property.clone()),
            InvalidProperty(property.clone()),
            NoFactory {
                the_location: Name::from_id("host1"),
                type_id: "IDL:Stock:1.0".into(),
            },
            InvalidCriteria(vec![property.clone()]),
            CannotMeetCriteria(vec![property]),
            MonitorAlreadyPresent,
            LocationNotFound,
            LoadAlertNotFound,
            LoadAlertAlreadyPresent,
            LoadAlertNotAdded,
            StrategyNotAdaptive,
        ];
        let idl = [
            include_str!("../idl/PortableGroup.idl"),
            include_str!("../idl/CosLoadBalancing.idl"),
        ]
        .concat();
        assert_eq!(idl.matches("  exception ").count(), all.len());
        for exception in all {
            for prefix in ["tao.lb", "omg.org"] {
                let mut writer = Writer::new(Endian::Big);
                exception.write(prefix, &mut writer);
                let bytes = writer.into_bytes();
                let mut reader = Reader::new(&bytes, Endian::Big);
                let read = UserException::read(&mut reader).unwrap();
                assert_eq!(read.as_ref(), Some(&exception));
                assert_eq!(reader.remaining_bytes(), 0);
            }
        }
        let mut writer = Writer::new(Endian::Big);
        writer.write_string("IDL:omg.org/PortableGroup/Unheard:1.0");
        let read = UserException::read(&mut Reader::new(writer.bytes(), Endian::Big));
        assert_eq!(read, Ok(None));
    }

    #[test]
    fn ids_have_the_prefix_of_their_module() {
        assert_eq!(
            UserException::MemberNotFound.repository_id("tao.lb"),
            "IDL:omg.org/PortableGroup/MemberNotFound:1.0"
        );
        assert_eq!(
            UserException::LocationNotFound.repository_id("tao.lb"),
            "IDL:tao.lb/CosLoadBalancing/LocationNotFound:1.0"
        );
    }
}
