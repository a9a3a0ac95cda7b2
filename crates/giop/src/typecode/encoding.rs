//! TypeCodes as they are sent: with indirections to what was there before.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

use crate::cdr::{CdrError, Reader, Writer, invalid_value};

use super::kind::{Kind, is_basic};
use super::node::{MAX_DEPTH, Member, Node, Ref};
use super::switch::Switch;

/// Most TypeCodes with parameters of which one TypeCode may consist.
pub const MAX_NODES: usize = 4096;

/// Instead of a kind: an offset to a TypeCode that was there before follows.
const INDIRECTION: u32 = 0xffff_ffff;

/// Reads a TypeCode with all that are in it.
#[derive(Default)]
pub(super) struct Decoder {
    /// While what is in it is being read, a node is an alias of itself: of no type yet.
    pub(super) nodes: Vec<Node>,
    /// Positions at which the TypeCodes begin, in order: offsets in the outermost stream.
    starts: Vec<(usize, Ref)>,
}

impl Decoder {
    /// Reads the next TypeCode. `base` is where position 0 of `reader` is in the outermost stream,
    /// in which indirections count.
    pub(super) fn read(
        &mut self,
        reader: &mut Reader<'_>,
        base: usize,
        depth: usize,
    ) -> Result<Ref, CdrError> {
        reader.spend_work(1, "TypeCode")?;
        reader.align(4, "TypeCode")?;
        let start = base + reader.position();
        let kind = reader.read_u32()?;
        if kind == INDIRECTION {
            return self.read_indirection(reader, base);
        }
        let Some(&kind) = Kind::ALL.get(kind as usize) else {
            return Err(invalid_value(reader, "kind of TypeCode", &kind.to_string()));
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
                if inner.remaining_bytes() > 0 {
                    return Err(invalid_value(&inner, "TypeCode", "bytes after its end"));
                }
                node
            }
        };
        if let Some(place) = self.nodes.get_mut(index) {
            *place = node;
        }
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
            None => Err(invalid_value(
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
            _ => Err(invalid_value(
                reader,
                "digits of fixed",
                &digits.to_string(),
            )),
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
        let Some(switch) = Switch::from_type(&self.nodes, discriminator) else {
            return Err(invalid_value(
                reader,
                "union",
                "a discriminator of a type that no union can have",
            ));
        };
        let default = reader.read_i32()?;
        let count = reader.read_len(9, "arms in TypeCode")?;
        let default = match default {
            -1 => None,
            index => match usize::try_from(index) {
                Ok(position) if position < count => Some(index as u32),
                _ => {
                    return Err(invalid_value(
                        reader,
                        "default of a union",
                        &index.to_string(),
                    ));
                }
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
                        return Err(invalid_value(
                            reader,
                            "union",
                            "two arms with the same label",
                        ));
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

/// Writes a TypeCode with all TypeCodes that are in it.
pub(super) struct Encoder<'a> {
    pub(super) nodes: &'a [Node],
    /// Position at which each node was written: offset in the outermost stream.
    pub(super) written: HashMap<u32, usize>,
}

impl Encoder<'_> {
    pub(super) fn write(&mut self, of: Ref, writer: &mut Writer, base: usize) {
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
                let mut inner = Writer::new_encapsulation(writer.endian());
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
                let switch = Switch::from_type(self.nodes, *discriminator);
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
