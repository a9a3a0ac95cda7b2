//! Types and values are made from random bytes; what is written by hand here is read by
//! the walker, so that neither is tested against itself only.

use proptest::prelude::*;

use super::*;
use crate::typecode::Member;

/// Random bytes, and zeros when they are used up.
struct Dice<'a>(&'a [u8]);

impl Dice<'_> {
    fn roll(&mut self, sides: usize) -> usize {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        usize::from(first) % sides
    }

    fn text(&mut self) -> String {
        ["", "a", "IDL:x/Y:1.0", "grün"][self.roll(4)].into()
    }
}

const BASIC: [Kind; 18] = [
    Kind::Octet,
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
    Kind::Any,
    Kind::TypeCode,
    Kind::Principal,
    Kind::LongLong,
    Kind::ULongLong,
    Kind::LongDouble,
    Kind::WChar,
];

const SWITCHES: [Kind; 9] = [
    Kind::Boolean,
    Kind::Short,
    Kind::Long,
    Kind::UShort,
    Kind::ULong,
    Kind::LongLong,
    Kind::ULongLong,
    Kind::Char,
    Kind::Octet,
];

/// Makes types.
struct Types<'a, 'b> {
    dice: &'a mut Dice<'b>,
    nodes: Vec<Node>,
    /// Structs around, of which there may be sequences.
    open: Vec<Ref>,
    /// Types that are complete, and may be referred to again.
    done: Vec<Ref>,
}

impl Types<'_, '_> {
    fn member(&mut self, depth: usize) -> Member {
        Member {
            name: self.dice.text(),
            of: self.make(depth),
        }
    }

    fn members(&mut self, depth: usize) -> Vec<Member> {
        (0..self.dice.roll(4)).map(|_| self.member(depth)).collect()
    }

    fn make(&mut self, depth: usize) -> Ref {
        if depth > 5 || self.dice.roll(3) == 0 {
            return Ref::Basic(BASIC[self.dice.roll(BASIC.len())]);
        }
        if self.dice.roll(8) == 0
            && let Some(&again) = self.done.get(self.dice.roll(self.done.len().max(1)))
        {
            return again;
        }
        let index = self.nodes.len();
        let reference = Ref::Node(index as u32);
        self.nodes.push(Node::Text {
            kind: Kind::String,
            bound: 0,
        });
        let (id, name) = (self.dice.text(), self.dice.text());
        let node = match self.dice.roll(12) {
            0 => Node::Text {
                kind: [Kind::String, Kind::WString][self.dice.roll(2)],
                bound: self.dice.roll(2) as u32 * 9,
            },
            1 => Node::Fixed {
                digits: 1 + self.dice.roll(31) as u16,
                scale: self.dice.roll(3) as i16 - 1,
            },
            2 => Node::Interface {
                kind: [
                    Kind::ObjRef,
                    Kind::Component,
                    Kind::Home,
                    Kind::AbstractInterface,
                ][self.dice.roll(4)],
                id,
                name,
            },
            3 | 4 => {
                self.open.push(reference);
                let members = self.members(depth + 1);
                self.open.pop();
                // Exceptions are never members: one that begins with itself is ambiguous.
                let (kind, id) = match depth == 0 && self.dice.roll(2) == 1 {
                    true => (Kind::Except, "IDL:x/E:1.0".into()),
                    false => (Kind::Struct, id),
                };
                Node::Struct {
                    kind,
                    id,
                    name,
                    members,
                }
            }
            5 => self.union(id, name, depth),
            6 => Node::Enum {
                id,
                name,
                values: (0..=self.dice.roll(4)).map(|n| format!("v{n}")).collect(),
            },
            7..=8 => {
                let around = self.dice.roll(2 * self.open.len().max(1));
                let element = match self.open.get(around) {
                    Some(&around) => around,
                    None => self.make(depth + 1),
                };
                Node::List {
                    kind: Kind::Sequence,
                    element,
                    len: 0,
                }
            }
            9 => Node::List {
                kind: Kind::Array,
                element: self.make(depth + 1),
                len: self.dice.roll(4) as u32,
            },
            10 => Node::Wrapped {
                kind: [Kind::Alias, Kind::Alias, Kind::ValueBox][self.dice.roll(3)],
                id,
                name,
                content: self.make(depth + 1),
            },
            _ => Node::Value {
                kind: [Kind::Value, Kind::Event][self.dice.roll(2)],
                id,
                name,
                modifier: self.dice.roll(4) as i16,
                base: Ref::Basic(Kind::Null),
                members: self
                    .members(depth + 1)
                    .into_iter()
                    .map(|m| (1, m))
                    .collect(),
            },
        };
        self.nodes[index] = node;
        self.done.push(reference);
        reference
    }

    fn union(&mut self, id: String, name: String, depth: usize) -> Node {
        let kind = SWITCHES[self.dice.roll(SWITCHES.len())];
        let most = if kind == Kind::Boolean { 2 } else { 4 };
        let mut arms = Vec::new();
        for label in 0..self.dice.roll(most + 1) {
            arms.push((label as i128, self.member(depth + 1)));
        }
        let default = Some(self.dice.roll(2) as u32);
        let default = default.filter(|&default| (default as usize) < arms.len());
        let labels = (0..arms.len() as u32).filter(|&arm| Some(arm) != default);
        Node::Union {
            id,
            name,
            discriminator: Ref::Basic(kind),
            default,
            by_label: labels.map(|arm| (arm.into(), arm)).collect(),
            arms,
        }
    }
}

fn a_type(dice: &mut Dice<'_>) -> TypeCode {
    let mut types = Types {
        dice,
        nodes: Vec::new(),
        open: Vec::new(),
        done: Vec::new(),
    };
    let root = types.make(0);
    TypeCode::of_nodes(types.nodes, root)
}

/// Writes some value of a type.
fn a_value(types: &TypeCode, of: Ref, dice: &mut Dice<'_>, writer: &mut Writer, depth: usize) {
    let nodes = types.nodes();
    let node = match of {
        Ref::Basic(kind) => {
            let number = (dice.roll(256) as u64).wrapping_mul(0x0123_4567_89ab_cdef);
            return match kind {
                Kind::Short | Kind::UShort => writer.write_u16(number as u16),
                Kind::Long | Kind::ULong => writer.write_u32(number as u32),
                Kind::LongLong | Kind::ULongLong => writer.write_u64(number),
                Kind::Float => writer.write_f32(number as f32),
                Kind::Double => writer.write_f64(number as f64),
                Kind::Boolean => writer.write_bool(number & 1 == 1),
                Kind::Char | Kind::Octet => writer.write_u8(number as u8),
                Kind::WChar => writer.write_wchar(number as u16),
                Kind::LongDouble => {
                    writer.align(8);
                    let number = u128::from(number) * 0x1_0000_0001;
                    writer.write_raw(&match writer.endian() {
                        Endian::Big => number.to_be_bytes(),
                        Endian::Little => number.to_le_bytes(),
                    });
                }
                Kind::Principal => writer.write_octets(b"me"),
                Kind::TypeCode => a_type(dice).write(writer),
                Kind::Any => {
                    let inner = match depth > 5 {
                        true => TypeCode::basic(Kind::Double),
                        false => a_type(dice),
                    };
                    inner.write(writer);
                    a_value(&inner, inner.root_ref(), dice, writer, depth + 1);
                }
                _ => {}
            };
        }
        Ref::Node(node) => &nodes[node as usize],
    };
    match node {
        Node::Text { kind, .. } => match kind {
            Kind::WString => writer.write_wstring(&[0x20ac, 0x61][dice.roll(3).min(2)..]),
            _ => writer.write_string(["", "load", "\u{fc}"][dice.roll(3)]),
        },
        Node::Fixed { digits, .. } => {
            let mut halves = vec![0; usize::from(digits.is_multiple_of(2))];
            halves.extend((0..*digits).map(|_| dice.roll(10) as u8));
            halves.push(0xc + dice.roll(2) as u8);
            for pair in halves.chunks(2) {
                writer.write_u8(pair[0] << 4 | pair[1]);
            }
        }
        Node::Interface { kind, .. } => {
            let is_reference = *kind != Kind::AbstractInterface || dice.roll(2) == 1;
            if *kind == Kind::AbstractInterface {
                writer.write_bool(is_reference);
            }
            match is_reference {
                true => Ior::new_iiop("IDL:x/Z:1.0", "host", 4711, b"key").write(writer),
                false => writer.write_u32(0),
            }
        }
        Node::Struct {
            kind, id, members, ..
        } => {
            if *kind == Kind::Except && dice.roll(2) == 0 {
                writer.write_string(id);
            }
            for member in members {
                a_value(types, member.of, dice, writer, depth + 1);
            }
        }
        Node::Union {
            discriminator: Ref::Basic(kind),
            default,
            arms,
            ..
        } => {
            let most = if *kind == Kind::Boolean { 2 } else { 7 };
            let label = dice.roll(most);
            match kind {
                Kind::Short | Kind::UShort => writer.write_u16(label as u16),
                Kind::Long | Kind::ULong => writer.write_u32(label as u32),
                Kind::LongLong | Kind::ULongLong => writer.write_u64(label as u64),
                _ => writer.write_u8(label as u8),
            }
            // Labels are the numbers of the arms; the default's does not count.
            let default = default.map(|default| default as usize);
            let arm = Some(label).filter(|&label| label < arms.len()).or(default);
            if let Some(arm) = arm {
                a_value(types, arms[arm].1.of, dice, writer, depth + 1);
            }
        }
        Node::Union { .. } => unreachable!("made above"),
        Node::Enum { values, .. } => writer.write_u32(dice.roll(values.len()) as u32),
        Node::List { kind, element, len } => {
            let mut len = *len as usize;
            if *kind == Kind::Sequence {
                len = if depth > 5 { 0 } else { dice.roll(4) };
                writer.write_u32(len as u32);
            }
            for _ in 0..len {
                a_value(types, *element, dice, writer, depth + 1);
            }
        }
        Node::Wrapped {
            kind: Kind::Alias,
            content,
            ..
        } => a_value(types, *content, dice, writer, depth),
        Node::Wrapped { .. } | Node::Value { .. } => writer.write_u32(0),
    }
}

fn an_any(entropy: &[u8], mut writer: Writer) -> Vec<u8> {
    let mut dice = Dice(entropy);
    let type_code = a_type(&mut dice);
    type_code.write(&mut writer);
    a_value(&type_code, type_code.root_ref(), &mut dice, &mut writer, 0);
    writer.into_bytes()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_form_of_a_message_does_not_matter(
        entropy in proptest::collection::vec(any::<u8>(), 0..200),
        before in 0usize..8,
    ) {
        let first = an_any(&entropy, Writer::new(Endian::NATIVE));
        let expected = Any::read(&mut Reader::new(&first, Endian::NATIVE)).unwrap();
        for endian in [Endian::Big, Endian::Little] {
            for minor in 0..3 {
                let bytes = an_any(&entropy, Writer::at_offset(before, endian).of_minor(minor));
                let mut reader = Reader::at_offset(before, &bytes, endian).of_minor(minor);
                let read = Any::read(&mut reader).unwrap();
                prop_assert_eq!(reader.remaining_bytes(), 0);
                prop_assert_eq!(&read, &expected);
                prop_assert!(read.type_code().is_equivalent(expected.type_code()));
                let mut writer = Writer::at_offset(before, endian).of_minor(minor);
                read.write(&mut writer);
                prop_assert_eq!(writer.into_bytes(), bytes);
            }
        }
        prop_assert_eq!(expected.to_string().parse(), Ok(expected));
    }

    #[test]
    fn aliases_do_not_count(entropy in proptest::collection::vec(any::<u8>(), 0..200)) {
        let plain = a_type(&mut Dice(&entropy));
        let alias = TypeCode::alias("IDL:A:1.0", "A", &TypeCode::alias("", "B", &plain));
        prop_assert_eq!(alias.without_aliases(), plain.without_aliases());
        prop_assert!(alias.is_equivalent(&plain) && plain.is_equivalent(&alias));
        prop_assert_ne!(&alias, &plain);
        let (one, other) = (TypeCode::sequence(&alias), TypeCode::sequence(&plain));
        prop_assert!(one.is_equivalent(&other));
        prop_assert!(!one.is_equivalent(&alias) || plain.without_aliases().kind() == Kind::Sequence);
    }

    #[test]
    fn changed_bytes_do_no_harm(
        entropy in proptest::collection::vec(any::<u8>(), 0..200),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<proptest::sample::Index>(),
    ) {
        let mut bytes = an_any(&entropy, Writer::new(Endian::Big));
        for (at, to) in changes {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        if let Ok(read) = Any::read(&mut Reader::new(&bytes, Endian::Big)) {
            let mut writer = Writer::new(Endian::Little);
            read.write(&mut writer);
            let again = writer.into_bytes();
            prop_assert_eq!(Any::read(&mut Reader::new(&again, Endian::Little)), Ok(read));
        }
    }

    #[test]
    fn no_bytes_do_harm(bytes in proptest::collection::vec(prop_oneof![0u8..40, any::<u8>()], 0..100)) {
        let _ = Any::read(&mut Reader::new(&bytes, Endian::Little));
    }
}

/// A TypeCode made by hand: a kind and, if there are any, its parameters in an encapsulation.
fn complex(kind: u32, parameters: impl FnOnce(&mut Writer)) -> Writer {
    let mut inner = Writer::new_encapsulation(Endian::Big);
    parameters(&mut inner);
    let mut writer = Writer::new(Endian::Big);
    writer.write_u32(kind);
    writer.write_octets(inner.bytes());
    writer
}

fn read(bytes: &[u8]) -> Result<Any, CdrError> {
    Any::read(&mut Reader::new(bytes, Endian::Big))
}

#[track_caller]
fn refused(bytes: &[u8], why: &str) {
    let error = read(bytes).unwrap_err().to_string();
    assert!(error.contains(why), "{error}");
}

#[test]
fn indirections_lead_to_a_typecode_that_has_begun() {
    let sequence_of = |offset: i32| {
        complex(19, |inner| {
            inner.write_u32(0xffff_ffff);
            inner.write_i32(offset);
            inner.write_u32(0);
        })
    };
    // From the offset back: itself, the byte order, the length, and the kind before it.
    let mut bytes = sequence_of(-16);
    bytes.write_u32(2);
    bytes.write_u32(0);
    bytes.write_u32(1);
    bytes.write_u32(0);
    let recursive = read(bytes.bytes()).unwrap();
    assert_eq!(recursive.type_code().kind(), Kind::Sequence);
    for offset in [-20, -15, -12, -8, -4, 0, 4, 8, i32::MIN, i32::MAX] {
        refused(sequence_of(offset).bytes(), "where no TypeCode begins");
    }
}

#[test]
fn an_alias_of_itself_is_refused() {
    let alias = complex(21, |inner| {
        inner.write_string("");
        inner.write_string("");
        inner.write_u32(0xffff_ffff);
        inner.write_i32(-32);
    });
    refused(alias.bytes(), "endless chain of aliases");
}

#[test]
fn an_indirection_bomb_is_not_expanded() {
    // Each struct has the one before it twice: written out that were 2^60 members.
    fn level(inner: &mut Writer, base: usize, depth: usize) {
        inner.write_string("");
        inner.write_string("");
        inner.write_u32(2);
        inner.write_string("");
        inner.align(4);
        let start = base + inner.position();
        match depth {
            0 => {
                inner.write_u32(18);
                inner.write_u32(0);
            }
            _ => {
                inner.write_u32(15);
                let mut next = Writer::new_encapsulation(Endian::Big);
                level(&mut next, base + inner.position() + 4, depth - 1);
                inner.write_octets(next.bytes());
            }
        }
        inner.write_string("");
        inner.align(4);
        inner.write_u32(0xffff_ffff);
        let back = base + inner.position() - start;
        inner.write_i32(-(back as i32));
    }
    let bomb = complex(15, |inner| level(inner, 8, 60));
    let type_code = TypeCode::read(&mut Reader::new(bomb.bytes(), Endian::Big)).unwrap();
    assert!(type_code.is_equivalent(&type_code.clone()));
    let mut writer = Writer::new(Endian::Big);
    type_code.write(&mut writer);
    assert!(writer.bytes() == bomb.bytes());
    // The bytes of a value would have to be there.
    refused(bomb.bytes(), "4 more bytes are needed");
}

#[test]
fn nesting_is_bounded() {
    let mut bytes = Vec::new();
    for _ in 0..100 {
        let mut outer = Writer::new_encapsulation(Endian::Big);
        outer.align(4);
        match bytes.is_empty() {
            true => outer.write_u32(10),
            false => outer.write_raw(&bytes),
        }
        outer.write_u32(0);
        let mut writer = Writer::new(Endian::Big);
        writer.write_u32(19);
        writer.write_octets(outer.bytes());
        bytes = writer.into_bytes();
    }
    refused(&bytes, "nesting of a TypeCode");
    // Anys in Anys.
    let anys = [0, 0, 0, 11].repeat(1000);
    refused(&anys, "nesting of a value");
    // A struct that has itself as a member has no end.
    let endless = complex(15, |inner| {
        inner.write_string("");
        inner.write_string("");
        inner.write_u32(1);
        inner.write_string("");
        inner.write_u32(0xffff_ffff);
        inner.write_i32(-44);
    });
    refused(endless.bytes(), "nesting of a value");
}

#[test]
fn elements_without_bytes_are_counted() {
    let empty = TypeCode::structure("", "", &[]);
    let sequence = |len: u32| {
        let mut writer = Writer::new(Endian::Big);
        TypeCode::sequence(&empty).write(&mut writer);
        writer.write_u32(len);
        writer.into_bytes()
    };
    assert!(read(&sequence(1000)).is_ok());
    refused(&sequence(u32::MAX), "empty parts");
    let array = complex(20, |inner| {
        inner.write_u32(1);
        inner.write_u32(u32::MAX);
    });
    refused(array.bytes(), "empty parts");
    // Anys that are empty have bytes all the same: their TypeCodes.
    let mut writer = Writer::new(Endian::Big);
    Vec::<Any>::type_code().write(&mut writer);
    writer.write_u32(5000);
    (0..5000).for_each(|_| writer.write_u32(0));
    assert!(read(writer.bytes()).is_ok());
}

/// Steps of work that reading took, for each byte.
fn steps_per_byte(bytes: &[u8]) -> f64 {
    let mut reader = Reader::new(bytes, Endian::Big);
    let before = reader.work_left();
    Any::read(&mut reader).unwrap();
    (before - reader.work_left()) as f64 / bytes.len() as f64
}

#[test]
fn s2_unions_with_many_arms_are_read_in_a_step_each() {
    // With the arms searched one by one these are 7e9 comparisons: minutes.
    const ARMS: u32 = 87_000;
    let mut writer = complex(19, |inner| {
        inner.align(4);
        let mut union = complex(16, |inner| {
            inner.write_string("");
            inner.write_string("");
            inner.write_u32(5);
            inner.write_i32(-1);
            inner.write_u32(ARMS);
            for label in 0..ARMS {
                inner.write_u32(label);
                inner.write_string("");
                inner.write_u32(10);
            }
        });
        union.align(4);
        inner.write_raw(union.bytes());
        inner.write_u32(0);
    });
    writer.write_u32(80_000);
    for value in 0..80_000 {
        writer.write_u32(ARMS - 1 - value);
        writer.write_u8(1);
    }
    let bytes = writer.into_bytes();
    assert!(steps_per_byte(&bytes) < 0.5);
}

#[test]
fn s2_work_is_bounded_by_the_bytes_of_the_message() {
    let nested = |depth: usize, len: usize| {
        let id = |depth: usize| format!("IDL:S{depth}:1.0");
        let mut of = TypeCode::basic(Kind::Octet);
        for level in 0..depth {
            of = TypeCode::structure("", "", &[("", of)]);
            of = TypeCode::alias(&id(level), "", &of);
        }
        let mut writer = Writer::new(Endian::Big);
        TypeCode::sequence(&of).write(&mut writer);
        writer.write_len(len);
        (0..len).for_each(|_| writer.write_u8(1));
        writer.into_bytes()
    };
    // What types in use look like, however much there is of it.
    assert!(steps_per_byte(&nested(1, 100_000)) < 4.0);
    refused(&nested(30, 100_000), "takes more work");
    // Little work is nobody's harm.
    assert!(read(&nested(30, 50)).is_ok());

    // The limit is that of the message: not of each Any in it.
    let any = nested(30, 400);
    let bytes = any.repeat(40);
    let mut reader = Reader::new(&bytes, Endian::Big);
    let read = (0..40).map(|_| Any::read(&mut reader)).collect::<Vec<_>>();
    assert!(read[0].is_ok(), "{:?}", read[0]);
    assert!(matches!(read[39], Err(CdrError::TooCostly { .. })));

    // What was read once is read again from where it is kept.
    let any = read[0].clone().unwrap();
    assert_eq!(any.to_string().parse(), Ok(any));
}

#[test]
fn unions_are_not_ambiguous() {
    let union = |default: i32, labels: &[u32]| {
        let mut writer = complex(16, |inner| {
            inner.write_string("");
            inner.write_string("");
            inner.write_u32(5);
            inner.write_i32(default);
            inner.write_u32(labels.len() as u32);
            for &label in labels {
                inner.write_u32(label);
                inner.write_string("");
                inner.write_u32(10);
            }
        });
        writer.write_u32(7);
        writer.write_u8(1);
        writer.into_bytes()
    };
    assert!(read(&union(-1, &[6, 7])).is_ok());
    assert!(read(&union(0, &[6, 5])).is_ok());
    assert!(read(&union(1, &[6, 6])).is_ok());
    refused(&union(-1, &[6, 6]), "two arms with the same label");
    refused(&union(2, &[6, 7]), "default of a union");
    refused(&union(-2, &[6, 7]), "default of a union");
}

#[test]
fn values_that_their_type_does_not_have_are_refused() {
    let text = |length: u32, text: &str| {
        let mut writer = Writer::new(Endian::Big);
        writer.write_u32(18);
        writer.write_u32(length);
        writer.write_string(text);
        writer.into_bytes()
    };
    assert!(read(&text(3, "abc")).is_ok());
    refused(&text(2, "abc"), "more than 2");
    let fixed = |bytes: &[u8]| [&[0, 0, 0, 28, 0, 4, 0, 2], bytes].concat();
    assert!(read(&fixed(&[0x01, 0x23, 0x4c])).is_ok());
    assert_eq!(read(&fixed(&[0x4c])), read(&fixed(&[0, 0, 0x4c])));
    refused(&fixed(&[0x11, 0x23, 0x4c]), "fixed");
    refused(&fixed(&[0, 0, 0x01, 0x4c]), "fixed");
    refused(&fixed(&[0x01, 0x2a, 0x4c]), "fixed");
    refused(&fixed(&[0x01, 0x23, 0x4f]), "fixed");
    let local = complex(33, |inner| {
        inner.write_string("IDL:x/L:1.0");
        inner.write_string("L");
    });
    refused(local.bytes(), "whose values cannot be sent");
    let mut value = complex(29, |inner| {
        inner.write_string("IDL:x/V:1.0");
        inner.write_string("V");
        inner.write_i16(0);
        inner.write_u32(0);
        inner.write_u32(0);
    });
    value.write_u32(0x7fff_ff02);
    refused(value.bytes(), "without its class");
}

#[test]
fn equivalence_needs_the_same_structure() {
    let number = TypeCode::basic(Kind::Float);
    let load =
        |id: &str, member: &str| TypeCode::structure(id, "Load", &[(member, number.clone())]);
    assert!(load("IDL:a:1.0", "x").is_equivalent(&load("IDL:a:1.0", "y")));
    assert!(load("IDL:a:1.0", "x").is_equivalent(&load("", "x")));
    assert!(!load("IDL:a:1.0", "x").is_equivalent(&load("IDL:b:1.0", "x")));
    assert!(load("IDL:a:1.0", "x").equivalent_if(&load("IDL:b:1.0", "x"), |_, _| true));
    assert_ne!(load("IDL:a:1.0", "x"), load("IDL:a:1.0", "y"));
    let liar = TypeCode::structure("IDL:a:1.0", "Load", &[("x", TypeCode::string())]);
    assert!(!load("IDL:a:1.0", "x").is_equivalent(&liar));
    let longer = TypeCode::structure("IDL:a:1.0", "Load", &[]);
    assert!(!load("IDL:a:1.0", "x").is_equivalent(&longer));
}
