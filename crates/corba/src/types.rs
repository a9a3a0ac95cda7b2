//! The types of the OMG's `PortableGroup` and `CosLoadBalancing` modules.

use evenkeel_giop::any::{Any, Idl};
use evenkeel_giop::cdr::{CdrError, Reader, Writer};
use evenkeel_giop::ior::Ior;
use evenkeel_giop::typecode::{Kind, TypeCode};

use crate::interfaces;
use crate::name::Name;

/// A property: `PortableGroup::Property`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    /// Name of the property.
    pub nam: Name,
    /// Value of the property, as it was given.
    pub val: Any,
}

impl Property {
    /// The property with that id, and no kind.
    pub fn new<T: Idl>(id: &str, value: &T) -> Property {
        Property {
            nam: Name::from_id(id),
            val: Any::new(value),
        }
    }
}

/// `PortableGroup::Properties`, and `Criteria`.
pub type Properties = Vec<Property>;

/// `PortableGroup::FactoryInfo`: a factory that makes members at a location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactoryInfo {
    /// The factory.
    pub the_factory: Ior,
    /// Location of the members that the factory makes.
    pub the_location: Name,
    /// Criteria that the factory gets with each call, unchanged.
    pub the_criteria: Properties,
}

/// A load: `CosLoadBalancing::Load`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Kind of load: a `CosLoadBalancing::LoadId`.
    pub id: u32,
    /// Value of the load.
    pub value: f32,
}

/// `CosLoadBalancing::StrategyInfo`: a built-in strategy and its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrategyInfo {
    /// Name of the strategy, such as `LeastLoaded`.
    pub name: String,
    /// Parameters of the strategy.
    pub props: Properties,
}

/// The value of an Any, if its type is `T`: aliases do not count, and both prefixes of
/// `CosLoadBalancing` are the same.
pub fn value_of<T: Idl>(any: &Any) -> Option<T> {
    any.get_if(interfaces::same_id)
}

fn portable_group(name: &str, original: &TypeCode) -> TypeCode {
    TypeCode::alias(
        &format!("IDL:omg.org/PortableGroup/{name}:1.0"),
        name,
        original,
    )
}

fn load_balancing_id(name: &str) -> String {
    interfaces::load_balancing_id(interfaces::DEFAULT_PREFIX, name)
}

fn properties_type_code() -> TypeCode {
    portable_group("Properties", &TypeCode::sequence(&Property::type_code()))
}

impl Idl for Property {
    const LEAST: usize = Name::LEAST + Any::LEAST;

    fn type_code() -> TypeCode {
        TypeCode::structure(
            "IDL:omg.org/PortableGroup/Property:1.0",
            "Property",
            &[
                ("nam", portable_group("Name", &Name::type_code())),
                ("val", portable_group("Value", &TypeCode::basic(Kind::Any))),
            ],
        )
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, CdrError> {
        Ok(Property {
            nam: Name::read(reader)?,
            val: Any::read(reader)?,
        })
    }

    fn write(&self, writer: &mut Writer) {
        self.nam.write(writer);
        self.val.write(writer);
    }
}

impl Idl for FactoryInfo {
    const LEAST: usize = Ior::LEAST + Name::LEAST + 4;

    fn type_code() -> TypeCode {
        let factory = TypeCode::interface(
            "IDL:omg.org/PortableGroup/GenericFactory:1.0",
            "GenericFactory",
        );
        let name = portable_group("Name", &Name::type_code());
        TypeCode::structure(
            "IDL:omg.org/PortableGroup/FactoryInfo:1.0",
            "FactoryInfo",
            &[
                ("the_factory", factory),
                ("the_location", portable_group("Location", &name)),
                (
                    "the_criteria",
                    portable_group("Criteria", &properties_type_code()),
                ),
            ],
        )
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, CdrError> {
        Ok(FactoryInfo {
            the_factory: Ior::read(reader)?,
            the_location: Name::read(reader)?,
            the_criteria: Vec::read(reader)?,
        })
    }

    fn write(&self, writer: &mut Writer) {
        self.the_factory.write(writer);
        self.the_location.write(writer);
        self.the_criteria.write(writer);
    }
}

impl Idl for Load {
    const LEAST: usize = 8;

    fn type_code() -> TypeCode {
        let load_id = TypeCode::alias(
            &load_balancing_id("LoadId"),
            "LoadId",
            &TypeCode::basic(Kind::ULong),
        );
        TypeCode::structure(
            &load_balancing_id("Load"),
            "Load",
            &[("id", load_id), ("value", TypeCode::basic(Kind::Float))],
        )
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, CdrError> {
        Ok(Load {
            id: reader.read_u32()?,
            value: reader.read_f32()?,
        })
    }

    fn write(&self, writer: &mut Writer) {
        writer.write_u32(self.id);
        writer.write_f32(self.value);
    }
}

impl Idl for StrategyInfo {
    const LEAST: usize = 8;

    fn type_code() -> TypeCode {
        let properties = TypeCode::alias(
            &load_balancing_id("Properties"),
            "Properties",
            &properties_type_code(),
        );
        TypeCode::structure(
            &load_balancing_id("StrategyInfo"),
            "StrategyInfo",
            &[("name", TypeCode::string()), ("props", properties)],
        )
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, CdrError> {
        Ok(StrategyInfo {
            name: String::read(reader)?,
            props: Vec::read(reader)?,
        })
    }

    fn write(&self, writer: &mut Writer) {
        self.name.write(writer);
        self.props.write(writer);
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_giop::cdr::Endian;

    use super::*;

    fn info() -> StrategyInfo {
        StrategyInfo {
            name: "LeastLoaded".into(),
            props: vec![Property::new("org.omg.x.Tolerance", &2.5f32)],
        }
    }

    #[test]
    fn values_in_an_any_go_to_another_byte_order_and_come_back() {
        let factories = vec![FactoryInfo {
            the_factory: Ior::new_iiop("IDL:x/F:1.0", "host", 1, b"key"),
            the_location: Name::from_id("host1"),
            the_criteria: vec![Property::new("info", &info())],
        }];
        let loads = vec![Load { id: 7, value: 0.25 }];
        for endian in [Endian::Big, Endian::Little] {
            let mut writer = Writer::at_offset(3, endian);
            Any::new(&info()).write(&mut writer);
            Any::new(&factories).write(&mut writer);
            Any::new(&loads).write(&mut writer);
            let bytes = writer.into_bytes();
            let mut reader = Reader::at_offset(3, &bytes, endian);
            let mut next = || Any::read(&mut reader).unwrap();
            assert_eq!(value_of(&next()), Some(info()));
            assert_eq!(value_of(&next()), Some(factories.clone()));
            assert_eq!(value_of(&next()), Some(loads.clone()));
        }
    }

    #[test]
    fn a_value_of_another_type_is_none() {
        let any = Any::new(&info());
        assert_eq!(value_of::<f32>(&any), None);
        assert_eq!(value_of::<Vec<Property>>(&any), None);
        assert_eq!(value_of::<u32>(&Any::new(&1i32)), None);
        assert_eq!(
            value_of::<String>(&Any::new(&String::from("x"))),
            Some("x".into())
        );
    }
}
