//! The nodes of a TypeCode: types with parameters, which refer to each other.

use std::collections::BTreeMap;

use super::kind::Kind;

/// Greatest depth to which TypeCodes may be nested, and greatest length of a chain of aliases.
pub const MAX_DEPTH: usize = 64;

/// A type, as part of a TypeCode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ref {
    /// Type without parameters.
    Basic(Kind),
    /// Number of a node: a type with parameters.
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
        /// Index of the default arm; its label says nothing.
        default: Option<u32>,
        arms: Vec<(Label, Member)>,
        /// Index of the arm of each label. The default has none.
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

impl Node {
    pub(super) fn kind(&self) -> Kind {
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

    pub(super) fn id(&self) -> &str {
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
    pub(super) fn all_names(&self) -> Vec<&str> {
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
    pub(super) fn referenced_types(&self) -> Vec<Ref> {
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

    /// Returns true if both nodes are the same apart from names and from the nodes that they refer
    /// to.
    pub(super) fn same_form(&self, other: &Node) -> bool {
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

/// Returns `of` without its aliases; `None` if there is no end of them.
pub(crate) fn resolve_alias(nodes: &[Node], of: Ref) -> Option<Ref> {
    end_of_aliases(nodes, of).0
}

/// Returns `of` without its aliases, as [`resolve_alias`] does, and the number of aliases.
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
