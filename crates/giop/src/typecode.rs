//! TypeCodes: the description of a type that goes before each value in an Any.
//!
//! Of all kinds, with aliases and with indirection (*Common Object Request Broker
//! Architecture*, version 3.3, part 1, 8.11, and part 2, 9.3.5.1). A TypeCode is kept as a
//! table of nodes that refer to each other, so that an indirection is a reference, too:
//! recursive types need no special case, and a TypeCode that refers to another one many
//! times is never expanded.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::cdr::{CdrError, Reader, Writer};

/// How deep TypeCodes may be nested, and how long a chain of aliases may be.
pub const MAX_DEPTH: usize = 64;

/// How many TypeCodes with parameters one TypeCode may consist of.
pub const MAX_NODES: usize = 4096;

/// How many pairs of nodes, and of what they refer to, are compared before two TypeCodes are
/// taken for different.
const MAX_COMPARED: usize = 1 << 20;

/// Instead of a kind: an offset to a TypeCode that was there before follows.
const INDIRECTION: u32 = 0xffff_ffff;

/// What a TypeCode describes: CORBA's `TCKind`, whose numbers these are.
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
    const ALL: [Kind; 37] = [
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

/// A type, as part of a TypeCode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ref {
    /// One without parameters.
    Basic(Kind),
    /// One of the nodes.
    Node(u32),
}

/// A type with parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    /// `string` or `wstring`; a bound of 0 is none.
    Text { kind: Kind, bound: u32 },
    /// `fixed<digits, scale>`.
    Fixed { digits: u16, scale: i16 },
    /// An interface of some kind, or `native`.
    Interface {
        kind: Kind,
        id: String,
        name: String,
    },
    /// A struct or an exception.
    Struct {
        kind: Kind,
        id: String,
        name: String,
        members: Vec<Member>,
    },
    /// A union.
    Union {
        id: String,
        name: String,
        discriminator: Ref,
        /// Which of the arms is the default; its label says nothing.
        default: Option<u32>,
        arms: Vec<(Label, Member)>,
        /// Which of the arms has a label. The default has none.
        by_label: BTreeMap<Label, u32>,
    },
    /// An enum: names of its values.
    Enum {
        id: String,
        name: String,
        values: Vec<String>,
    },
    /// A sequence, whose length is its bound (0 is none), or an array.
    List { kind: Kind, element: Ref, len: u32 },
    /// An alias, or a boxed value.
    Wrapped {
        kind: Kind,
        id: String,
        name: String,
        content: Ref,
    },
    /// A value type or an event type.
    Value {
        kind: Kind,
        id: String,
        name: String,
        modifier: i16,
        base: Ref,
        /// Each with its visibility.
        members: Vec<(i16, Member)>,
    },
}

/// A member of a struct, union or value type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Member {
    pub name: String,
    pub of: Ref,
}

/// A value of a discriminator, of any integer type.
pub(crate) type Label = i128;

/// A type.
///
/// Two are equal if they are the same in everything, names of members and aliases too
/// (CORBA's `equal`); [`TypeCode::equivalent`] asks for less.
#[derive(Clone, Debug)]
pub struct TypeCode {
    nodes: Arc<[Node]>,
    root: Ref,
}

impl TypeCode {
    /// Reads one.
    ///
    /// Refused are nesting deeper than [`MAX_DEPTH`], more than [`MAX_NODES`] nodes, an
    /// indirection to anything but the start of a TypeCode within this one, an alias that
    /// is its own, and unions that are ambiguous.
    pub fn read(reader: &mut Reader<'_>) -> Result<TypeCode, CdrError> {
        let mut decoder = Decoder::default();
        let root = decoder.read(reader, 0, 0)?;
        let nodes = decoder.nodes;
        for node in 0..nodes.len() {
            // Only now are all there.
            let (end, aliases) = end_of_aliases(&nodes, Ref::Node(node as u32));
            reader.work(aliases, "TypeCode")?;
            if end.is_none() {
                return Err(invalid(reader, "TypeCode", "an endless chain of aliases"));
            }
        }
        Ok(TypeCode {
            nodes: nodes.into(),
            root,
        })
    }

    /// Writes it. What has been written once is referred to.
    pub fn write(&self, writer: &mut Writer) {
        let mut encoder = Encoder {
            nodes: &self.nodes,
            written: HashMap::new(),
        };
        encoder.write(self.root, writer, 0);
    }

    /// The type of `kind`, which must be one without parameters.
    pub fn basic(kind: Kind) -> TypeCode {
        debug_assert!(is_basic(kind), "{kind:?} has parameters");
        TypeCode {
            nodes: Arc::default(),
            root: Ref::Basic(kind),
        }
    }

    /// `string`, without a bound.
    pub fn string() -> TypeCode {
        TypeCode::of(|_| Node::Text {
            kind: Kind::String,
            bound: 0,
        })
    }

    /// A reference to an object with interface `id`.
    pub fn interface(id: &str, name: &str) -> TypeCode {
        TypeCode::of(|_| Node::Interface {
            kind: Kind::ObjRef,
            id: id.into(),
            name: name.into(),
        })
    }

    /// A struct.
    pub fn structure(id: &str, name: &str, members: &[(&str, TypeCode)]) -> TypeCode {
        TypeCode::of(|builder| Node::Struct {
            kind: Kind::Struct,
            id: id.into(),
            name: name.into(),
            members: members
                .iter()
                .map(|(name, of)| Member {
                    name: (*name).into(),
                    of: builder.add(of),
                })
                .collect(),
        })
    }

    /// A sequence of `element`, without a bound.
    pub fn sequence(element: &TypeCode) -> TypeCode {
        TypeCode::of(|builder| Node::List {
            kind: Kind::Sequence,
            element: builder.add(element),
            len: 0,
        })
    }

    /// Another name for `original`.
    pub fn alias(id: &str, name: &str, original: &TypeCode) -> TypeCode {
        TypeCode::of(|builder| Node::Wrapped {
            kind: Kind::Alias,
            id: id.into(),
            name: name.into(),
            content: builder.add(original),
        })
    }

    fn of(node: impl FnOnce(&mut Builder) -> Node) -> TypeCode {
        let mut builder = Builder::default();
        let node = node(&mut builder);
        builder.nodes.push(node);
        let root = Ref::Node(builder.nodes.len() as u32 - 1);
        TypeCode {
            nodes: builder.nodes.into(),
            root,
        }
    }

    /// What kind of type it is.
    pub fn kind(&self) -> Kind {
        match self.root {
            Ref::Basic(kind) => kind,
            Ref::Node(node) => self.nodes.get(node as usize).map_or(Kind::Null, Node::kind),
        }
    }

    /// Its repository id, empty if it has none.
    pub fn id(&self) -> &str {
        match self.node() {
            Some(node) => node.id(),
            None => "",
        }
    }

    /// The type without the aliases around it. Those within it stay.
    #[must_use]
    pub fn unaliased(&self) -> TypeCode {
        TypeCode {
            nodes: self.nodes.clone(),
            root: unalias(&self.nodes, self.root).unwrap_or(self.root),
        }
    }

    /// Whether values of both look the same on the wire and mean the same: aliases and
    /// names do not count, but repository ids do, where both have one. Unlike CORBA's
    /// operation of that name, types whose ids are the same but whose structure is not
    /// are not equivalent: a TypeCode from the network can say anything.
    pub fn equivalent(&self, other: &TypeCode) -> bool {
        self.equivalent_if(other, |one, other| one == other)
    }

    /// As [`TypeCode::equivalent`], with the caller's word on which repository ids (none of
    /// them empty) are the same.
    pub fn equivalent_if(&self, other: &TypeCode, same_id: impl Fn(&str, &str) -> bool) -> bool {
        let matching = |one: &Node, other: &Node| {
            let (a, b) = (one.id(), other.id());
            one.same_form(other) && (a.is_empty() || b.is_empty() || same_id(a, b))
        };
        self.all_pairs(other, unalias, matching)
    }

    /// Whether `matching` holds for this node and `other`'s, and for all that they refer
    /// to, pair by pair. What is seen again holds if nothing speaks against it.
    fn all_pairs(
        &self,
        other: &TypeCode,
        follow: impl Fn(&[Node], Ref) -> Option<Ref>,
        matching: impl Fn(&Node, &Node) -> bool,
    ) -> bool {
        let mut open = vec![(self.root, other.root)];
        let mut seen = HashSet::new();
        let mut compared = 0;
        while let Some((one, two)) = open.pop() {
            let (one, two) = match (follow(&self.nodes, one), follow(&other.nodes, two)) {
                (Some(Ref::Basic(one)), Some(Ref::Basic(two))) if one == two => continue,
                (Some(Ref::Node(one)), Some(Ref::Node(two))) => (one, two),
                _ => return false,
            };
            if !seen.insert((one, two)) {
                continue;
            }
            let nodes = (self.nodes.get(one as usize), other.nodes.get(two as usize));
            let (Some(one), Some(two)) = nodes else {
                return false;
            };
            if !matching(one, two) {
                return false;
            }
            let (one, two) = (one.refs(), two.refs());
            compared += 1 + one.len();
            if one.len() != two.len() || compared > MAX_COMPARED {
                return false;
            }
            open.extend(one.into_iter().zip(two));
        }
        true
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(crate) fn root(&self) -> Ref {
        self.root
    }

    fn node(&self) -> Option<&Node> {
        match self.root {
            Ref::Basic(_) => None,
            Ref::Node(node) => self.nodes.get(node as usize),
        }
    }
}

impl PartialEq for TypeCode {
    fn eq(&self, other: &TypeCode) -> bool {
        self.all_pairs(
            other,
            |_, of| Some(of),
            |one, other| one.same_form(other) && one.names() == other.names(),
        )
    }
}

impl Eq for TypeCode {}

/// What is left of `of` without its aliases; `None` if there is no end of them.
pub(crate) fn unalias(nodes: &[Node], of: Ref) -> Option<Ref> {
    end_of_aliases(nodes, of).0
}

/// The same, and how many aliases there are.
pub(crate) fn end_of_aliases(nodes: &[Node], mut of: Ref) -> (Option<Ref>, usize) {
    for aliases in 0..=MAX_DEPTH {
        match of {
            Ref::Basic(_) => return (Some(of), aliases),
            Ref::Node(node) => match nodes.get(node as usize) {
                Some(Node::Wrapped {
                    kind: Kind::Alias,
                    content,
                    ..
                }) => of = *content,
                Some(_) => return (Some(of), aliases),
                None => return (None, aliases),
            },
        }
    }
    (None, MAX_DEPTH)
}

impl Node {
    fn kind(&self) -> Kind {
        match self {
            Node::Text { kind, .. }
            | Node::Interface { kind, .. }
            | Node::Struct { kind, .. }
            | Node::List { kind, .. }
            | Node::Wrapped { kind, .. }
            | Node::Value { kind, .. } => *kind,
            Node::Fixed { .. } => Kind::Fixed,
            Node::Union { .. } => Kind::Union,
            Node::Enum { .. } => Kind::Enum,
        }
    }

    fn id(&self) -> &str {
        match self {
            Node::Text { .. } | Node::Fixed { .. } | Node::List { .. } => "",
            Node::Interface { id, .. }
            | Node::Struct { id, .. }
            | Node::Union { id, .. }
            | Node::Enum { id, .. }
            | Node::Wrapped { id, .. }
            | Node::Value { id, .. } => id,
        }
    }

    /// All that are called something, in order.
    fn names(&self) -> Vec<&str> {
        fn of<'a>(members: impl Iterator<Item = &'a Member>) -> Vec<&'a str> {
            members.map(|member| member.name.as_str()).collect()
        }
        let (name, mut names) = match self {
            Node::Text { .. } | Node::Fixed { .. } | Node::List { .. } => return Vec::new(),
            Node::Interface { name, .. } | Node::Wrapped { name, .. } => (name, Vec::new()),
            Node::Struct { name, members, .. } => (name, of(members.iter())),
            Node::Union { name, arms, .. } => (name, of(arms.iter().map(|(_, arm)| arm))),
            Node::Enum { name, values, .. } => (name, values.iter().map(String::as_str).collect()),
            Node::Value { name, members, .. } => (name, of(members.iter().map(|(_, m)| m))),
        };
        names.extend([self.id(), name.as_str()]);
        names
    }

    /// The types that it refers to.
    fn refs(&self) -> Vec<Ref> {
        match self {
            Node::Text { .. } | Node::Fixed { .. } | Node::Interface { .. } | Node::Enum { .. } => {
                Vec::new()
            }
            Node::Struct { members, .. } => members.iter().map(|member| member.of).collect(),
            Node::Union {
                discriminator,
                arms,
                ..
            } => {
                let arms = arms.iter().map(|(_, arm)| arm.of);
                std::iter::once(*discriminator).chain(arms).collect()
            }
            Node::List { element, .. } => vec![*element],
            Node::Wrapped { content, .. } => vec![*content],
            Node::Value { base, members, .. } => {
                let members = members.iter().map(|(_, member)| member.of);
                std::iter::once(*base).chain(members).collect()
            }
        }
    }

    /// Whether both are the same apart from names and from what they refer to.
    fn same_form(&self, other: &Node) -> bool {
        if self.kind() != other.kind() {
            return false;
        }
        match (self, other) {
            (Node::Text { bound: one, .. }, Node::Text { bound: two, .. }) => one == two,
            (Node::List { len: one, .. }, Node::List { len: two, .. }) => one == two,
            (Node::Fixed { .. }, Node::Fixed { .. }) => self == other,
            (Node::Enum { values: one, .. }, Node::Enum { values: two, .. }) => {
                one.len() == two.len()
            }
            (
                Node::Union {
                    default: one,
                    by_label: labels_one,
                    ..
                },
                Node::Union {
                    default: two,
                    by_label: labels_two,
                    ..
                },
            ) => one == two && labels_one == labels_two,
            (
                Node::Value {
                    modifier: one,
                    members: members_one,
                    ..
                },
                Node::Value {
                    modifier: two,
                    members: members_two,
                    ..
                },
            ) => {
                let visible = |members: &[(i16, Member)]| {
                    members.iter().map(|&(seen, _)| seen).collect::<Vec<_>>()
                };
                one == two && visible(members_one) == visible(members_two)
            }
            _ => true,
        }
    }
}

/// The values that a union is switched by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Switch {
    Basic(Kind),
    /// An enum with so many values.
    Enum(u32),
}

impl Switch {
    /// `of`, a union's discriminator; `None` if unions cannot have it.
    pub(crate) fn of(nodes: &[Node], of: Ref) -> Option<Switch> {
        match unalias(nodes, of)? {
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
                    return Err(invalid(reader, "enum", &value.to_string()));
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

/// Puts nodes of others into one table.
#[derive(Default)]
struct Builder {
    nodes: Vec<Node>,
}

impl Builder {
    fn add(&mut self, other: &TypeCode) -> Ref {
        let first = self.nodes.len() as u32;
        let moved = |of: Ref| match of {
            Ref::Basic(_) => of,
            Ref::Node(node) => Ref::Node(first + node),
        };
        self.nodes
            .extend(other.nodes.iter().cloned().map(|mut node| {
                match &mut node {
                    Node::Text { .. }
                    | Node::Fixed { .. }
                    | Node::Interface { .. }
                    | Node::Enum { .. } => {}
                    Node::Struct { members, .. } => {
                        members.iter_mut().for_each(|m| m.of = moved(m.of));
                    }
                    Node::Union {
                        discriminator,
                        arms,
                        ..
                    } => {
                        *discriminator = moved(*discriminator);
                        arms.iter_mut().for_each(|(_, m)| m.of = moved(m.of));
                    }
                    Node::List { element: of, .. } | Node::Wrapped { content: of, .. } => {
                        *of = moved(*of);
                    }
                    Node::Value { base, members, .. } => {
                        *base = moved(*base);
                        members.iter_mut().for_each(|(_, m)| m.of = moved(m.of));
                    }
                }
                node
            }));
        moved(other.root)
    }
}

fn is_basic(kind: Kind) -> bool {
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

fn invalid(reader: &Reader<'_>, what: &'static str, found: &str) -> CdrError {
    CdrError::Invalid {
        what,
        at: reader.position(),
        found: found.into(),
    }
}

/// Reads a TypeCode with all that are in it.
#[derive(Default)]
struct Decoder {
    /// While what is in it is being read, a node is an alias of itself: of no type yet.
    nodes: Vec<Node>,
    /// Where each TypeCode begins, in order: offsets in the outermost stream.
    starts: Vec<(usize, Ref)>,
}

impl Decoder {
    /// Reads the next one. `base` is where position 0 of `reader` is in the outermost
    /// stream, in which indirections count.
    fn read(
        &mut self,
        reader: &mut Reader<'_>,
        base: usize,
        depth: usize,
    ) -> Result<Ref, CdrError> {
        reader.work(1, "TypeCode")?;
        reader.align(4, "TypeCode")?;
        let start = base + reader.position();
        let kind = reader.read_u32()?;
        if kind == INDIRECTION {
            return self.read_indirection(reader, base);
        }
        let Some(&kind) = Kind::ALL.get(kind as usize) else {
            return Err(invalid(reader, "kind of TypeCode", &kind.to_string()));
        };
        if is_basic(kind) {
            self.starts.push((start, Ref::Basic(kind)));
            return Ok(Ref::Basic(kind));
        }
        let too_large = |what, most| CdrError::TooLarge {
            what,
            at: reader.position(),
            most,
        };
        if depth >= MAX_DEPTH {
            return Err(too_large("nesting of a TypeCode", MAX_DEPTH));
        }
        if self.nodes.len() >= MAX_NODES {
            return Err(too_large("TypeCode", MAX_NODES));
        }
        let index = self.nodes.len();
        let reference = Ref::Node(index as u32);
        self.nodes.push(Node::Wrapped {
            kind: Kind::Alias,
            id: String::new(),
            name: String::new(),
            content: reference,
        });
        self.starts.push((start, reference));
        let node = match kind {
            Kind::String | Kind::WString => Node::Text {
                kind,
                bound: reader.read_u32()?,
            },
            Kind::Fixed => self.read_fixed(reader)?,
            _ => {
                let bytes = reader.read_octets("TypeCode")?;
                let base = base + reader.position() - bytes.len();
                let mut inner = Reader::of_encapsulation(bytes)?;
                inner.set_work(reader.work_left());
                let node = self.read_parameters(kind, &mut inner, base, depth + 1)?;
                reader.set_work(inner.work_left());
                if inner.remaining() > 0 {
                    return Err(invalid(&inner, "TypeCode", "bytes behind its end"));
                }
                node
            }
        };
        self.nodes[index] = node;
        Ok(reference)
    }

    fn read_indirection(&self, reader: &mut Reader<'_>, base: usize) -> Result<Ref, CdrError> {
        let from = base + reader.position();
        let offset = reader.read_i32()?;
        // The offset counts from where it stands, so anything above -4 leads forwards.
        let target = usize::try_from(offset.unsigned_abs())
            .ok()
            .filter(|_| offset < -4)
            .and_then(|back| from.checked_sub(back));
        let found = target.and_then(|target| {
            let found = self.starts.binary_search_by_key(&target, |&(at, _)| at);
            found.ok().and_then(|found| self.starts.get(found))
        });
        match found {
            Some(&(_, reference)) => Ok(reference),
            None => Err(invalid(
                reader,
                "indirection",
                &format!("{offset}, where no TypeCode begins"),
            )),
        }
    }

    fn read_fixed(&self, reader: &mut Reader<'_>) -> Result<Node, CdrError> {
        let (digits, scale) = (reader.read_u16()?, reader.read_i16()?);
        match digits {
            1..=31 => Ok(Node::Fixed { digits, scale }),
            _ => Err(invalid(reader, "digits of fixed", &digits.to_string())),
        }
    }

    fn read_parameters(
        &mut self,
        kind: Kind,
        reader: &mut Reader<'_>,
        base: usize,
        depth: usize,
    ) -> Result<Node, CdrError> {
        if let Kind::Sequence | Kind::Array = kind {
            return Ok(Node::List {
                kind,
                element: self.read(reader, base, depth)?,
                len: reader.read_u32()?,
            });
        }
        let id = text(reader, "repository id in TypeCode")?;
        let name = text(reader, "name in TypeCode")?;
        Ok(match kind {
            Kind::Struct | Kind::Except => {
                let mut members = Vec::new();
                for _ in 0..reader.read_len(8, "members in TypeCode")? {
                    members.push(self.read_member(reader, base, depth)?);
                }
                Node::Struct {
                    kind,
                    id,
                    name,
                    members,
                }
            }
            Kind::Union => self.read_union(id, name, reader, base, depth)?,
            Kind::Enum => {
                let mut values = Vec::new();
                for _ in 0..reader.read_len(4, "values in TypeCode")? {
                    values.push(text(reader, "name in TypeCode")?);
                }
                Node::Enum { id, name, values }
            }
            Kind::Alias | Kind::ValueBox => Node::Wrapped {
                kind,
                id,
                name,
                content: self.read(reader, base, depth)?,
            },
            Kind::Value | Kind::Event => {
                let modifier = reader.read_i16()?;
                let value_base = self.read(reader, base, depth)?;
                let mut members = Vec::new();
                for _ in 0..reader.read_len(10, "members in TypeCode")? {
                    let member = self.read_member(reader, base, depth)?;
                    members.push((reader.read_i16()?, member));
                }
                Node::Value {
                    kind,
                    id,
                    name,
                    modifier,
                    base: value_base,
                    members,
                }
            }
            _ => Node::Interface { kind, id, name },
        })
    }

    fn read_union(
        &mut self,
        id: String,
        name: String,
        reader: &mut Reader<'_>,
        base: usize,
        depth: usize,
    ) -> Result<Node, CdrError> {
        let discriminator = self.read(reader, base, depth)?;
        let Some(switch) = Switch::of(&self.nodes, discriminator) else {
            return Err(invalid(
                reader,
                "union",
                "a discriminator that it cannot have",
            ));
        };
        let default = reader.read_i32()?;
        let count = reader.read_len(9, "arms in TypeCode")?;
        let default = match default {
            -1 => None,
            index => match usize::try_from(index) {
                Ok(position) if position < count => Some(index as u32),
                _ => return Err(invalid(reader, "default of a union", &index.to_string())),
            },
        };
        let mut arms = Vec::new();
        let mut by_label = BTreeMap::new();
        for index in 0..count as u32 {
            let is_default = default == Some(index);
            // The default's label is any value, even one that an enum does not have.
            let label = match switch {
                Switch::Enum(_) if is_default => reader.read_u32()?.into(),
                Switch::Basic(Kind::Boolean) if is_default => reader.read_u8()?.into(),
                _ => switch.read(reader)?,
            };
            if !is_default {
                match by_label.entry(label) {
                    Entry::Vacant(free) => free.insert(index),
                    Entry::Occupied(_) => {
                        return Err(invalid(reader, "union", "two arms with the same label"));
                    }
                };
            }
            arms.push((label, self.read_member(reader, base, depth)?));
        }
        Ok(Node::Union {
            id,
            name,
            discriminator,
            default,
            arms,
            by_label,
        })
    }

    fn read_member(
        &mut self,
        reader: &mut Reader<'_>,
        base: usize,
        depth: usize,
    ) -> Result<Member, CdrError> {
        Ok(Member {
            name: text(reader, "name in TypeCode")?,
            of: self.read(reader, base, depth)?,
        })
    }
}

fn text(reader: &mut Reader<'_>, what: &'static str) -> Result<String, CdrError> {
    Ok(reader.read_string(what)?.into_owned())
}

/// Writes a TypeCode with all that are in it.
struct Encoder<'a> {
    nodes: &'a [Node],
    /// Where each node was written: offset in the outermost stream.
    written: HashMap<u32, usize>,
}

impl Encoder<'_> {
    fn write(&mut self, of: Ref, writer: &mut Writer, base: usize) {
        writer.align(4);
        let start = base + writer.position();
        let node = match of {
            Ref::Basic(kind) => return writer.write_u32(kind as u32),
            Ref::Node(node) => node,
        };
        if let Some(&before) = self.written.get(&node) {
            writer.write_u32(INDIRECTION);
            // From the offset itself. Messages are shorter than what an i32 counts.
            let back = start + 4 - before;
            return writer.write_i32(-(back as i32));
        }
        self.written.insert(node, start);
        let Some(node) = self.nodes.get(node as usize) else {
            return writer.write_u32(Kind::Null as u32);
        };
        writer.write_u32(node.kind() as u32);
        match node {
            Node::Text { bound, .. } => writer.write_u32(*bound),
            Node::Fixed { digits, scale } => {
                writer.write_u16(*digits);
                writer.write_i16(*scale);
            }
            _ => {
                // Its length stands before it, in four bytes.
                let base = base + writer.position() + 4;
                let mut inner = Writer::encapsulation(writer.endian());
                self.write_parameters(node, &mut inner, base);
                writer.write_octets(inner.bytes());
            }
        }
    }

    fn write_parameters(&mut self, node: &Node, writer: &mut Writer, base: usize) {
        let head = |writer: &mut Writer, id: &str, name: &str| {
            writer.write_string(id);
            writer.write_string(name);
        };
        match node {
            // Written by the caller: they are no encapsulations.
            Node::Text { .. } | Node::Fixed { .. } => {}
            Node::Interface { id, name, .. } => head(writer, id, name),
            Node::Struct {
                id, name, members, ..
            } => {
                head(writer, id, name);
                writer.write_len(members.len());
                for member in members {
                    self.write_member(member, writer, base);
                }
            }
            Node::Union {
                id,
                name,
                discriminator,
                default,
                arms,
                ..
            } => {
                head(writer, id, name);
                self.write(*discriminator, writer, base);
                writer.write_i32(default.map_or(-1, |index| index as i32));
                writer.write_len(arms.len());
                let switch = Switch::of(self.nodes, *discriminator);
                for (label, arm) in arms {
                    if let Some(switch) = switch {
                        switch.write(*label, writer);
                    }
                    self.write_member(arm, writer, base);
                }
            }
            Node::Enum { id, name, values } => {
                head(writer, id, name);
                writer.write_len(values.len());
                values.iter().for_each(|value| writer.write_string(value));
            }
            Node::List { element, len, .. } => {
                self.write(*element, writer, base);
                writer.write_u32(*len);
            }
            Node::Wrapped {
                id, name, content, ..
            } => {
                head(writer, id, name);
                self.write(*content, writer, base);
            }
            Node::Value {
                id,
                name,
                modifier,
                base: value_base,
                members,
                ..
            } => {
                head(writer, id, name);
                writer.write_i16(*modifier);
                self.write(*value_base, writer, base);
                writer.write_len(members.len());
                for (visibility, member) in members {
                    self.write_member(member, writer, base);
                    writer.write_i16(*visibility);
                }
            }
        }
    }

    fn write_member(&mut self, member: &Member, writer: &mut Writer, base: usize) {
        writer.write_string(&member.name);
        self.write(member.of, writer, base);
    }
}

#[cfg(test)]
impl TypeCode {
    /// A type of these nodes.
    pub(crate) fn of_nodes(nodes: Vec<Node>, root: Ref) -> TypeCode {
        TypeCode {
            nodes: nodes.into(),
            root,
        }
    }
}
