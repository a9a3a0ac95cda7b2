//! Service contexts, which ride on requests and replies, and code sets, which they settle.

use std::fmt;

use crate::cdr::{CdrError, Endian, Reader, Writer};

/// Id of the [`CodeSets`] context.
pub const CODE_SETS: u32 = 1;

/// ISO 8859-1, for `char`.
pub const ISO_8859_1: u32 = 0x0001_0001;
/// UTF-8, for `char`.
pub const UTF_8: u32 = 0x0501_0001;
/// UTF-16, for `wchar`.
pub const UTF_16: u32 = 0x0001_0109;
/// UCS-2 level 1, for `wchar`.
pub const UCS_2: u32 = 0x0001_0100;

/// A service context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceContext<'a> {
    /// Id of the context, which tells its kind.
    pub id: u32,
    /// An encapsulation, by convention.
    pub data: &'a [u8],
}

/// The service contexts of a message: as they came, or given.
#[derive(Clone)]
pub struct Contexts<'a>(List<'a>);

#[derive(Clone)]
enum List<'a> {
    /// Contexts on the wire: their number, whole and in order, because they have been read once.
    Wire(Reader<'a>, usize),
    Given(&'a [ServiceContext<'a>]),
}

impl<'a> Contexts<'a> {
    /// No service contexts.
    pub const NONE: Contexts<'static> = Contexts(List::Given(&[]));

    /// Makes a list of the given contexts.
    pub fn from_list(contexts: &'a [ServiceContext<'a>]) -> Self {
        Contexts(List::Given(contexts))
    }

    /// Reads a list. It is looked through, not copied.
    pub fn read(reader: &mut Reader<'a>) -> Result<Self, CdrError> {
        let count = reader.read_len(8, "service contexts")?;
        let start = reader.clone();
        for _ in 0..count {
            read_one(reader)?;
        }
        Ok(Contexts(List::Wire(start, count)))
    }

    /// Writes the list.
    pub fn write(&self, writer: &mut Writer) {
        writer.write_len(self.len());
        for context in self {
            write_one(writer, context);
        }
    }

    /// Writes the list and one more.
    pub(crate) fn write_with(&self, more: ServiceContext<'_>, writer: &mut Writer) {
        writer.write_len(self.len() + 1);
        for context in self {
            write_one(writer, context);
        }
        write_one(writer, more);
    }

    /// Returns the number of contexts.
    pub fn len(&self) -> usize {
        match &self.0 {
            List::Wire(_, count) => *count,
            List::Given(contexts) => contexts.len(),
        }
    }

    /// Returns true if there are no contexts.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the contexts, in order.
    pub fn iter(&self) -> ContextIter<'a> {
        ContextIter(self.0.clone())
    }

    /// Returns the data of the first context with that id.
    pub fn get(&self, id: u32) -> Option<&'a [u8]> {
        self.iter().find(|c| c.id == id).map(|c| c.data)
    }
}

fn read_one<'a>(reader: &mut Reader<'a>) -> Result<ServiceContext<'a>, CdrError> {
    Ok(ServiceContext {
        id: reader.read_u32()?,
        data: reader.read_octets("service context")?,
    })
}

fn write_one(writer: &mut Writer, context: ServiceContext<'_>) {
    writer.write_u32(context.id);
    writer.write_octets(context.data);
}

/// Goes through [`Contexts`].
#[derive(Clone)]
pub struct ContextIter<'a>(List<'a>);

impl<'a> Iterator for ContextIter<'a> {
    type Item = ServiceContext<'a>;

    fn next(&mut self) -> Option<ServiceContext<'a>> {
        match &mut self.0 {
            List::Wire(reader, left) => {
                *left = left.checked_sub(1)?;
                read_one(reader).ok()
            }
            List::Given(contexts) => {
                let (first, rest) = contexts.split_first()?;
                *contexts = rest;
                Some(*first)
            }
        }
    }
}

impl<'a> IntoIterator for &Contexts<'a> {
    type Item = ServiceContext<'a>;
    type IntoIter = ContextIter<'a>;

    fn into_iter(self) -> ContextIter<'a> {
        self.iter()
    }
}

impl PartialEq for Contexts<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for Contexts<'_> {}

impl fmt::Debug for Contexts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The code sets that a client uses on a connection: the [`CODE_SETS`] context of its
/// first request there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeSets {
    /// Code set for `char` and `string`.
    pub chars: u32,
    /// Code set for `wchar` and `wstring`; 0 if there is none.
    pub wchars: u32,
}

impl CodeSets {
    /// Reads the context's data.
    pub fn decode(data: &[u8]) -> Result<Self, CdrError> {
        let mut reader = Reader::of_encapsulation(data)?;
        Ok(CodeSets {
            chars: reader.read_u32()?,
            wchars: reader.read_u32()?,
        })
    }

    /// The context's data.
    pub fn encode(&self, endian: Endian) -> Vec<u8> {
        let mut writer = Writer::new_encapsulation(endian);
        writer.write_u32(self.chars);
        writer.write_u32(self.wchars);
        writer.into_bytes()
    }
}

/// Code sets of a server, as it names them in a reference: component
/// [`ior::TAG_CODE_SETS`](crate::ior::TAG_CODE_SETS).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeSetInfo {
    /// Code sets for `char` and `string`.
    pub chars: CodeSetChoice,
    /// Code sets for `wchar` and `wstring`.
    pub wchars: CodeSetChoice,
}

/// The code sets of a server for narrow or for wide characters.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CodeSetChoice {
    /// Native code set of the server; 0 if there is none.
    pub native: u32,
    /// Code sets that the server converts, best first.
    pub conversion: Vec<u32>,
}

impl Default for CodeSetInfo {
    /// Returns the code sets of a server here: UTF-8 or ISO 8859-1, and UTF-16.
    fn default() -> Self {
        CodeSetInfo {
            chars: CodeSetChoice {
                native: UTF_8,
                conversion: vec![ISO_8859_1],
            },
            wchars: CodeSetChoice {
                native: UTF_16,
                conversion: Vec::new(),
            },
        }
    }
}

impl CodeSetInfo {
    /// Reads the component's data.
    pub fn decode(data: &[u8]) -> Result<Self, CdrError> {
        let mut reader = Reader::of_encapsulation(data)?;
        let mut choice = || -> Result<_, CdrError> {
            let native = reader.read_u32()?;
            let count = reader.read_len(4, "code sets")?;
            let conversion = (0..count).map(|_| reader.read_u32());
            Ok(CodeSetChoice {
                native,
                conversion: conversion.collect::<Result<_, _>>()?,
            })
        };
        Ok(CodeSetInfo {
            chars: choice()?,
            wchars: choice()?,
        })
    }

    /// The component's data.
    pub fn encode(&self, endian: Endian) -> Vec<u8> {
        let mut writer = Writer::new_encapsulation(endian);
        for choice in [&self.chars, &self.wchars] {
            writer.write_u32(choice.native);
            writer.write_len(choice.conversion.len());
            for &set in &choice.conversion {
                writer.write_u32(set);
            }
        }
        writer.into_bytes()
    }
}
