//! Any: a value together with its type.
//!
//! A value is kept in one form, whatever the message looked like that it came in, so that
//! it can be sent on in another byte order, at another alignment and in another version
//! of GIOP: it is walked along its TypeCode and checked when it comes in, and again walked
//! when it goes out.

use std::fmt;
use std::str::FromStr;

use crate::cdr::{CdrError, Endian, Reader, Writer};
use crate::hex;
use crate::ior::Ior;
use crate::typecode::{Kind, Node, Ref, Switch, TypeCode, end_of_aliases, resolve_alias};

/// Greatest depth to which values (structs, sequences, Anys in Anys) may be nested.
pub const MAX_DEPTH: usize = 64;

/// Most parts of a value that may take no bytes, such as empty structs in a sequence. The work for
/// the other parts is bounded by the bytes of their message ([`STEPS_PER_BYTE`]).
///
/// [`STEPS_PER_BYTE`]: crate::cdr::STEPS_PER_BYTE
pub const MAX_EMPTY: usize = 1024;

/// A type that can be put into an Any: the types that IDL describes.
pub trait Idl: Sized {
    /// Bytes that the shortest value takes, at least: bounds lengths of sequences.
    const LEAST: usize;

    /// Returns the TypeCode of the type.
    fn type_code() -> TypeCode;

    /// Reads a value.
    fn read(reader: &mut Reader<'_>) -> Result<Self, CdrError>;

    /// Writes a value.
    fn write(&self, writer: &mut Writer);
}

/// A value of any type.
#[derive(Clone, Debug)]
pub struct Any {
    type_code: TypeCode,
    /// CDR in the byte order of this machine, as it is at the start of an alignment.
    value: Vec<u8>,
}

impl Any {
    /// `value` and its type.
    pub fn new<T: Idl>(value: &T) -> Any {
        Any::of_type(T::type_code(), value)
    }

    /// `value` under another TypeCode than the type's own: with other aliases or names, or
    /// of a reference to an object with a certain interface. It must be that of such values.
    pub fn of_type<T: Idl>(type_code: TypeCode, value: &T) -> Any {
        let mut writer = Writer::new(Endian::NATIVE);
        value.write(&mut writer);
        Any {
            type_code,
            value: writer.into_bytes(),
        }
    }

    /// The type, with its aliases.
    pub fn type_code(&self) -> &TypeCode {
        &self.type_code
    }

    /// The value as CDR, in the byte order of this machine and in the form of GIOP 1.2.
    pub fn value_reader(&self) -> Reader<'_> {
        Reader::new(&self.value, Endian::NATIVE)
    }

    /// The value, if its type is `T` apart from aliases. `same_id` says which repository
    /// ids are the same, as in [`TypeCode::equivalent_if`].
    pub fn get_if<T: Idl>(&self, same_id: impl Fn(&str, &str) -> bool) -> Option<T> {
        let same = self.type_code.equivalent_if(&T::type_code(), same_id);
        same.then(|| T::read(&mut self.value_reader()).ok())
            .flatten()
    }

    /// The value, if its type is `T` apart from aliases.
    pub fn get<T: Idl>(&self) -> Option<T> {
        self.get_if(|one, other| one == other)
    }

    /// The value, if it is a reference to an object, of whatever interface.
    pub fn as_reference(&self) -> Option<Ior> {
        match self.type_code.without_aliases().kind() {
            Kind::ObjRef | Kind::Component | Kind::Home => Ior::read(&mut self.value_reader()).ok(),
            _ => None,
        }
    }

    /// Reads one. See [`TypeCode::read`] for what a TypeCode may be; of values are
    /// refused those that nest deeper than [`MAX_DEPTH`] or have more than [`MAX_EMPTY`]
    /// empty parts, those that their type does not have (an enum's unknown value, more
    /// than a bound allows), value types unless nil, since where they end is known only to
    /// who knows their class, and what takes more work than the message of `reader` may.
    pub fn read(reader: &mut Reader<'_>) -> Result<Any, CdrError> {
        let type_code = TypeCode::read(reader)?;
        let mut walk = Walk::default();
        let mut writer = Writer::new(Endian::NATIVE);
        walk.value(
            type_code.nodes(),
            type_code.root_ref(),
            reader,
            &mut writer,
            0,
        )?;
        Ok(Any {
            type_code,
            value: writer.into_bytes(),
        })
    }

    /// Returns the number of bytes that the value has in CDR, with its type.
    pub fn encoded_size(&self) -> usize {
        let mut writer = Writer::new(Endian::NATIVE);
        self.write(&mut writer);
        writer.bytes().len()
    }

    /// Writes the value.
    pub fn write(&self, writer: &mut Writer) {
        self.type_code.write(writer);
        let mut walk = Walk::default();
        let mut reader = self.value_reader();
        // It was within its message's limit when it came in.
        reader.set_work(usize::MAX);
        let (nodes, root) = (self.type_code.nodes(), self.type_code.root_ref());
        let walked = walk.value(nodes, root, &mut reader, writer, 0);
        // It was walked in the same way when it came in.
        debug_assert!(walked.is_ok(), "{walked:?} in {self:?}");
    }
}

/// Writes the Any as text: an encapsulation in hexadecimal digits. [`FromStr`] reads this text,
/// however much work that is: the value was accepted once.
impl fmt::Display for Any {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut writer = Writer::new_encapsulation(Endian::NATIVE);
        self.write(&mut writer);
        hex::write(writer.bytes(), out)
    }
}

/// A text that stands for no Any.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The text is not in hexadecimal.
    #[error("character {at} is no hexadecimal digit of a whole byte")]
    NoHex {
        /// Position of the character.
        at: usize,
    },
    /// The bytes are those of no Any.
    #[error(transparent)]
    Cdr(#[from] CdrError),
}

impl FromStr for Any {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let bytes = hex::read(text).map_err(|at| TextError::NoHex { at })?;
        let mut reader = Reader::of_encapsulation(&bytes)?;
        reader.set_work(usize::MAX);
        Ok(Any::read(&mut reader)?)
    }
}

/// Both type and value are the same.
impl PartialEq for Any {
    fn eq(&self, other: &Any) -> bool {
        self.type_code == other.type_code && self.value == other.value
    }
}

impl Eq for Any {}

impl Idl for Any {
    const LEAST: usize = 4;

    fn type_code() -> TypeCode {
        TypeCode::basic(Kind::Any)
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, CdrError> {
        Any::read(reader)
    }

    fn write(&self, writer: &mut Writer) {
        Any::write(self, writer);
    }
}

macro_rules! primitives {
    ($($type:ty, $kind:ident, $least:literal, $read:ident, $write:ident;)*) => {
        $(
            impl Idl for $type {
                const LEAST: usize = $least;

                fn type_code() -> TypeCode {
                    TypeCode::basic(Kind::$kind)
                }

                fn read(reader: &mut Reader<'_>) -> Result<Self, CdrError> {
                    reader.$read()
                }

                fn write(&self, writer: &mut Writer) {
                    writer.$write(*self);
                }
            }
        )*
    };
}

primitives! {
    bool, Boolean, 1, read_bool, write_bool;
    i32, Long, 4, read_i32, write_i32;
    u16, UShort, 2, read_u16, write_u16;
    u32, ULong, 4, read_u32, write_u32;
    u64, ULongLong, 8, read_u64, write_u64;
    f32, Float, 4, read_f32, write_f32;
}

impl Idl for String {
    const LEAST: usize = 4;

    fn type_code() -> TypeCode {
        TypeCode::string()
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, CdrError> {
        Ok(reader.read_string("string")?.into_owned())
    }

    fn write(&self, writer: &mut Writer) {
        writer.write_string(self);
    }
}

/// A reference to an object of any interface.
impl Idl for Ior {
    const LEAST: usize = 8;

    fn type_code() -> TypeCode {
        TypeCode::interface("IDL:omg.org/CORBA/Object:1.0", "Object")
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, CdrError> {
        Ior::read(reader)
    }

    fn write(&self, writer: &mut Writer) {
        Ior::write(self, writer);
    }
}

/// A sequence without a bound.
impl<T: Idl> Idl for Vec<T> {
    const LEAST: usize = 4;

    fn type_code() -> TypeCode {
        TypeCode::sequence(&T::type_code())
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, CdrError> {
        let len = reader.read_len(T::LEAST, "sequence")?;
        (0..len).map(|_| T::read(reader)).collect()
    }

    fn write(&self, writer: &mut Writer) {
        writer.write_len(self.len());
        for element in self {
            element.write(writer);
        }
    }
}

/// Copies values from one form into another.
#[derive(Default)]
struct Walk {
    /// Number of parts that took no bytes.
    empty: usize,
}

impl Walk {
    /// Copies a part of a value.
    fn part(
        &mut self,
        nodes: &[Node],
        of: Ref,
        reader: &mut Reader<'_>,
        writer: &mut Writer,
        depth: usize,
    ) -> Result<(), CdrError> {
        let at = reader.position();
        self.value(nodes, of, reader, writer, depth)?;
        self.empty += usize::from(reader.position() == at);
        match self.empty > MAX_EMPTY {
            true => Err(CdrError::TooLarge {
                what: "number of empty parts of a value",
                at,
                most: MAX_EMPTY,
            }),
            false => Ok(()),
        }
    }

    fn value(
        &mut self,
        nodes: &[Node],
        of: Ref,
        reader: &mut Reader<'_>,
        writer: &mut Writer,
        depth: usize,
    ) -> Result<(), CdrError> {
        let at = reader.position();
        if depth > MAX_DEPTH {
            return Err(CdrError::TooLarge {
                what: "nesting of a value",
                at,
                most: MAX_DEPTH,
            });
        }
        let (of, aliases) = end_of_aliases(nodes, of);
        reader.spend_work(1 + aliases, "value in Any")?;
        let node = match of {
            Some(Ref::Basic(kind)) => return self.basic(kind, reader, writer, depth),
            Some(Ref::Node(node)) => nodes.get(node as usize),
            None => None,
        };
        let invalid = |what, found: String| Err(CdrError::Invalid { what, at, found });
        match node {
            Some(Node::Text { kind, bound }) => {
                let len = match kind {
                    Kind::WString => {
                        let units = reader.read_wstring("wstring")?;
                        writer.write_wstring(&units);
                        units.len()
                    }
                    _ => {
                        let bytes = reader.read_string_bytes("string")?;
                        writer.write_string_bytes(bytes);
                        bytes.len()
                    }
                };
                bounded(*bound, len, at)
            }
            Some(Node::Fixed { digits, .. }) => {
                // JacORB leaves zeros at the start out; the sign is at the end all the same.
                let most = usize::from(digits / 2) + 1;
                let mut following = reader.rest().iter().take(most);
                let end = following.position(|byte| byte & 0xf > 9);
                let len = end.map_or(most, |end| end + 1);
                let mut bytes = vec![0; most - len];
                bytes.extend(reader.take(len, "fixed")?);
                writer.write_raw(&bytes);
                match is_packed_decimal(&bytes, *digits) {
                    true => Ok(()),
                    false => invalid("fixed", format!("{bytes:02x?}")),
                }
            }
            Some(Node::Interface { kind, name, .. }) => match kind {
                Kind::ObjRef | Kind::Component | Kind::Home => reference(reader, writer),
                Kind::AbstractInterface => {
                    let is_reference = reader.read_bool()?;
                    writer.write_bool(is_reference);
                    match is_reference {
                        true => reference(reader, writer),
                        false => nil_value(reader, writer),
                    }
                }
                _ => invalid(
                    "value in Any",
                    format!("{name}, whose values cannot be sent"),
                ),
            },
            Some(Node::Struct {
                kind, id, members, ..
            }) => {
                // An exception's members follow its repository id, as in a reply. omniORB
                // leaves it out in an Any. It is kept as it came.
                if *kind == Kind::Except && !id.is_empty() && skip_id(id, reader)? {
                    writer.write_string(id);
                }
                for member in members {
                    self.part(nodes, member.of, reader, writer, depth + 1)?;
                }
                Ok(())
            }
            Some(Node::Union {
                discriminator,
                default,
                arms,
                by_label,
                ..
            }) => {
                let Some(switch) = Switch::from_type(nodes, *discriminator) else {
                    return invalid(
                        "union",
                        "a discriminator of a type that no union can have".into(),
                    );
                };
                let chosen = switch.read(reader)?;
                switch.write(chosen, writer);
                let arm = by_label.get(&chosen).copied().or(*default);
                match arm.and_then(|arm| arms.get(arm as usize)) {
                    Some((_, arm)) => self.part(nodes, arm.of, reader, writer, depth + 1),
                    None => Ok(()),
                }
            }
            Some(Node::Enum { values, .. }) => {
                let switch = Switch::Enum(values.len() as u32);
                switch.write(switch.read(reader)?, writer);
                Ok(())
            }
            Some(Node::List { kind, element, len }) => {
                let len = match kind {
                    Kind::Array => *len as usize,
                    _ => {
                        // Elements may take no bytes at all.
                        let found = reader.read_u32()?;
                        writer.write_u32(found);
                        bounded(*len, found as usize, at)?;
                        found as usize
                    }
                };
                if let Some(Ref::Basic(Kind::Octet | Kind::Char)) = resolve_alias(nodes, *element) {
                    writer.write_raw(reader.take(len, "sequence or array")?);
                    return Ok(());
                }
                for _ in 0..len {
                    self.part(nodes, *element, reader, writer, depth + 1)?;
                }
                Ok(())
            }
            Some(Node::Wrapped { .. } | Node::Value { .. }) => nil_value(reader, writer),
            None => invalid("TypeCode", "an alias of no type".into()),
        }
    }

    fn basic(
        &mut self,
        kind: Kind,
        reader: &mut Reader<'_>,
        writer: &mut Writer,
        depth: usize,
    ) -> Result<(), CdrError> {
        match kind {
            Kind::Short | Kind::UShort => writer.write_u16(reader.read_u16()?),
            Kind::Long | Kind::ULong | Kind::Float => writer.write_u32(reader.read_u32()?),
            Kind::LongLong | Kind::ULongLong | Kind::Double => {
                writer.write_u64(reader.read_u64()?);
            }
            Kind::LongDouble => {
                reader.align(8, "long double")?;
                let mut bytes = [0; 16];
                bytes.copy_from_slice(reader.take(16, "long double")?);
                if reader.endian() != writer.endian() {
                    bytes.reverse();
                }
                writer.align(8);
                writer.write_raw(&bytes);
            }
            Kind::Boolean => writer.write_bool(reader.read_bool()?),
            Kind::Char | Kind::Octet => writer.write_u8(reader.read_u8()?),
            Kind::WChar => writer.write_wchar(reader.read_wchar()?),
            Kind::Principal => writer.write_octets(reader.read_octets("principal")?),
            Kind::TypeCode => TypeCode::read(reader)?.write(writer),
            Kind::Any => {
                let inner = TypeCode::read(reader)?;
                inner.write(writer);
                self.value(inner.nodes(), inner.root_ref(), reader, writer, depth + 1)?;
            }
            // null and void have no bytes; the others are never basic.
            _ => {}
        }
        Ok(())
    }
}

fn bounded(bound: u32, len: usize, at: usize) -> Result<(), CdrError> {
    match bound as usize {
        bound if bound == 0 || len <= bound => Ok(()),
        bound => Err(CdrError::TooLarge {
            what: "string or sequence in Any",
            at,
            most: bound,
        }),
    }
}

/// Returns true if `bytes` are a decimal of `digits` digits: two in a byte, and last the sign. If
/// that leaves half a byte at the start, this half is zero.
fn is_packed_decimal(bytes: &[u8], digits: u16) -> bool {
    let mut halves = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    let sign = halves.next_back();
    let unused = digits.is_multiple_of(2) && halves.next() != Some(0);
    !unused && halves.all(|digit| digit <= 9) && matches!(sign, Some(0xc | 0xd))
}

/// Skips a string that is `id`, if it stands there.
fn skip_id(id: &str, reader: &mut Reader<'_>) -> Result<bool, CdrError> {
    let mut ahead = reader.clone();
    // Whatever else stands there is looked at no further than its length.
    if ahead.read_u32().ok() != u32::try_from(id.len() + 1).ok() {
        return Ok(false);
    }
    reader.spend_work(id.len(), "exception in Any")?;
    ahead.set_work(reader.work_left());
    let found = ahead.take(id.len() + 1, "id");
    let is_it = found.is_ok_and(|found| found.split_last() == Some((&0, id.as_bytes())));
    if is_it {
        *reader = ahead;
    }
    Ok(is_it)
}

fn reference(reader: &mut Reader<'_>, writer: &mut Writer) -> Result<(), CdrError> {
    Ior::read(reader)?.write(writer);
    Ok(())
}

/// Copies a value type's nil.
fn nil_value(reader: &mut Reader<'_>, writer: &mut Writer) -> Result<(), CdrError> {
    let at = reader.position();
    match reader.read_u32()? {
        0 => {
            writer.write_u32(0);
            Ok(())
        }
        _ => Err(CdrError::Invalid {
            what: "value in Any",
            at,
            found: "an object by value, which cannot be read without its class".into(),
        }),
    }
}

#[cfg(test)]
mod tests;
