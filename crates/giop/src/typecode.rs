//! TypeCodes: the description of a type that goes before each value in an Any.
//!
//! Of all kinds, with aliases and with indirection (*Common Object Request Broker
//! Architecture*, version 3.3, part 1, 8.11, and part 2, 9.3.5.1). A TypeCode is kept as a
//! table of nodes that refer to each other, so that an indirection is a reference, too:
//! recursive types need no special case, and a TypeCode that refers to another one many
//! times is never expanded.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::cdr::{CdrError, Reader, Writer, invalid_value};

mod encoding;
mod kind;
mod node;
mod switch;

pub use encoding::MAX_NODES;
use encoding::{Decoder, Encoder};
pub use kind::Kind;
use kind::is_basic;
pub use node::MAX_DEPTH;
pub(crate) use node::{Member, Node, Ref, end_of_aliases, resolve_alias};
pub(crate) use switch::Switch;

/// Number of pairs of nodes, and of their references, that are compared before two TypeCodes are
/// taken for different.
const MAX_COMPARED: usize = 1 << 20;

/// A type.
///
/// Two are equal if they are the same in everything, names of members and aliases too
/// (CORBA's `equal`); [`TypeCode::is_equivalent`] asks for less.
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
            reader.spend_work(aliases, "TypeCode")?;
            if end.is_none() {
                return Err(invalid_value(
                    reader,
                    "TypeCode",
                    "an endless chain of aliases",
                ));
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

    /// Returns the kind of the type.
    pub fn kind(&self) -> Kind {
        match self.root {
            Ref::Basic(kind) => kind,
            Ref::Node(node) => self.nodes.get(node as usize).map_or(Kind::Null, Node::kind),
        }
    }

    /// Returns the repository id of the type, empty if it has none.
    pub fn id(&self) -> &str {
        match self.node() {
            Some(node) => node.id(),
            None => "",
        }
    }

    /// The type without the aliases around it. Those within it stay.
    #[must_use]
    pub fn without_aliases(&self) -> TypeCode {
        TypeCode {
            nodes: self.nodes.clone(),
            root: resolve_alias(&self.nodes, self.root).unwrap_or(self.root),
        }
    }

    /// Returns true if values of both types look the same on the wire and mean the same: aliases
    /// and names do not count, but repository ids do, where both have one. Unlike CORBA's operation
    /// of that name, types whose ids are the same but whose structure is not are not equivalent: a
    /// TypeCode from the network can say anything.
    pub fn is_equivalent(&self, other: &TypeCode) -> bool {
        self.equivalent_if(other, |one, other| one == other)
    }

    /// Compares like [`TypeCode::is_equivalent`], but the caller decides which repository ids (none of
    /// them empty) are the same.
    pub fn equivalent_if(&self, other: &TypeCode, same_id: impl Fn(&str, &str) -> bool) -> bool {
        let matching = |one: &Node, other: &Node| {
            let (a, b) = (one.id(), other.id());
            one.same_form(other) && (a.is_empty() || b.is_empty() || same_id(a, b))
        };
        self.all_pairs(other, resolve_alias, matching)
    }

    /// Returns true if `matching` holds for this node and `other`'s, and for all nodes that they
    /// refer to, pair by pair. A pair that is seen again holds if nothing speaks against it.
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
            let (one, two) = (one.referenced_types(), two.referenced_types());
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

    pub(crate) fn root_ref(&self) -> Ref {
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
            |one, other| one.same_form(other) && one.all_names() == other.all_names(),
        )
    }
}

impl Eq for TypeCode {}

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
