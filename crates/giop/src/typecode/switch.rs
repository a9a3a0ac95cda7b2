//! The values that a union is switched by: what tells its arms apart.

use crate::cdr::{CdrError, Reader, Writer, invalid_value};

use super::kind::Kind;
use super::node::{Label, Node, Ref, resolve_alias};

/// The values that a union is switched by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Switch {
    Basic(Kind),
    /// An enum with so many values.
    Enum(u32),
}

impl Switch {
    /// `of`, a union's discriminator; `None` if unions cannot have it.
    pub(crate) fn from_type(nodes: &[Node], of: Ref) -> Option<Switch> {
        match resolve_alias(nodes, of)? {
            Ref::Basic(
                kind @ (Kind::Short
                | Kind::Long
                | Kind::UShort
                | Kind::ULong
                | Kind::LongLong
                | Kind::ULongLong
                | Kind::Boolean
                | Kind::Char
                | Kind::Octet),
            ) => Some(Switch::Basic(kind)),
            Ref::Basic(_) => None,
            Ref::Node(node) => match nodes.get(node as usize)? {
                Node::Enum { values, .. } => Some(Switch::Enum(values.len() as u32)),
                _ => None,
            },
        }
    }

    pub(crate) fn read(self, reader: &mut Reader<'_>) -> Result<Label, CdrError> {
        Ok(match self {
            Switch::Basic(Kind::Short) => reader.read_i16()?.into(),
            Switch::Basic(Kind::Long) => reader.read_i32()?.into(),
            Switch::Basic(Kind::UShort) => reader.read_u16()?.into(),
            Switch::Basic(Kind::ULong) => reader.read_u32()?.into(),
            Switch::Basic(Kind::LongLong) => reader.read_i64()?.into(),
            Switch::Basic(Kind::ULongLong) => reader.read_u64()?.into(),
            Switch::Basic(Kind::Boolean) => reader.read_bool()?.into(),
            Switch::Basic(_) => reader.read_u8()?.into(),
            Switch::Enum(values) => {
                let value = reader.read_u32()?;
                if value >= values {
                    return Err(invalid_value(reader, "enum", &value.to_string()));
                }
                value.into()
            }
        })
    }

    /// Writes a label that was read by the same switch, so it fits.
    pub(crate) fn write(self, label: Label, writer: &mut Writer) {
        match self {
            Switch::Basic(Kind::Short) => writer.write_i16(label as i16),
            Switch::Basic(Kind::UShort) => writer.write_u16(label as u16),
            Switch::Basic(Kind::Long) => writer.write_i32(label as i32),
            Switch::Basic(Kind::LongLong) => writer.write_i64(label as i64),
            Switch::Basic(Kind::ULongLong) => writer.write_u64(label as u64),
            Switch::Basic(Kind::Boolean | Kind::Char | Kind::Octet) => {
                writer.write_u8(label as u8);
            }
            Switch::Basic(_) | Switch::Enum(_) => writer.write_u32(label as u32),
        }
    }
}
