//! Kinds of types.

/// Kind of type that a TypeCode describes: CORBA's `TCKind`, with the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Kind {
    Null = 0,
    Void,
    Short,
    Long,
    UShort,
    ULong,
    Float,
    Double,
    Boolean,
    Char,
    Octet,
    Any,
    TypeCode,
    Principal,
    ObjRef,
    Struct,
    Union,
    Enum,
    String,
    Sequence,
    Array,
    Alias,
    Except,
    LongLong,
    ULongLong,
    LongDouble,
    WChar,
    WString,
    Fixed,
    Value,
    ValueBox,
    Native,
    AbstractInterface,
    LocalInterface,
    Component,
    Home,
    Event,
}

impl Kind {
    /// All, by number.
    pub(super) const ALL: [Kind; 37] = [
        Kind::Null,
        Kind::Void,
        Kind::Short,
        Kind::Long,
        Kind::UShort,
        Kind::ULong,
        Kind::Float,
        Kind::Double,
        Kind::Boolean,
        Kind::Char,
        Kind::Octet,
        Kind::Any,
        Kind::TypeCode,
        Kind::Principal,
        Kind::ObjRef,
        Kind::Struct,
        Kind::Union,
        Kind::Enum,
        Kind::String,
        Kind::Sequence,
        Kind::Array,
        Kind::Alias,
        Kind::Except,
        Kind::LongLong,
        Kind::ULongLong,
        Kind::LongDouble,
        Kind::WChar,
        Kind::WString,
        Kind::Fixed,
        Kind::Value,
        Kind::ValueBox,
        Kind::Native,
        Kind::AbstractInterface,
        Kind::LocalInterface,
        Kind::Component,
        Kind::Home,
        Kind::Event,
    ];
}

pub(super) fn is_basic(kind: Kind) -> bool {
    use Kind::*;
    matches!(
        kind,
        Null | Void
            | Short
            | Long
            | UShort
            | ULong
            | Float
            | Double
            | Boolean
            | Char
            | Octet
            | Any
            | TypeCode
            | Principal
            | LongLong
            | ULongLong
            | LongDouble
            | WChar
    )
}
