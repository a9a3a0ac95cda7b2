//! Names of the OMG's naming service: what locations and properties are called.

use std::fmt;
use std::str::FromStr;

use evenkeel_giop::any::Idl;
use evenkeel_giop::cdr::{CdrError, Reader, Writer};
use evenkeel_giop::typecode::TypeCode;

/// `CosNaming::Name`: two are equal if all their components are.
///
/// As a string it has the form of the naming service (OMG, *Naming Service Specification*,
/// version 1.3, 2.4): components are joined by `/`, a kind follows its id after `.`, and `\`
/// stands before each of these three where it is meant. So a location with the id `host1`
/// and no kind is the location `host1` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Name(pub Vec<NameComponent>);

/// A component of a name: `CosNaming::NameComponent`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct NameComponent {
    /// Id of the component.
    pub id: String,
    /// Kind of the component; mostly empty.
    pub kind: String,
}

/// A string that is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a name: write id.kind/id.kind, with optional kinds, and \\ goes before / . and \\ that are part of a word"
)]
pub struct NameError(pub String);

impl Name {
    /// A name of one component without a kind.
    pub fn from_id(id: &str) -> Name {
        Name(vec![NameComponent {
            id: id.into(),
            kind: String::new(),
        }])
    }

    /// The id, if it is the only component and has no kind: properties are called so.
    pub fn as_simple(&self) -> Option<&str> {
        match self.0.as_slice() {
            [only] if only.kind.is_empty() => Some(&only.id),
            _ => None,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn word(out: &mut fmt::Formatter<'_>, word: &str) -> fmt::Result {
            for letter in word.chars() {
                if matches!(letter, '/' | '.' | '\\') {
                    out.write_str("\\")?;
                }
                write!(out, "{letter}")?;
            }
            Ok(())
        }
        for (index, component) in self.0.iter().enumerate() {
            if index > 0 {
                out.write_str("/")?;
            }
            word(out, &component.id)?;
            if !component.kind.is_empty() || component.id.is_empty() {
                out.write_str(".")?;
                word(out, &component.kind)?;
            }
        }
        Ok(())
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let error = || NameError(text.into());
        let mut components = Vec::new();
        let mut letters = text.chars();
        let mut at_end = false;
        while !at_end {
            let mut words = vec![String::new()];
            at_end = loop {
                let word = words.last_mut().ok_or_else(error)?;
                match letters.next() {
                    None => break true,
                    Some('/') => break false,
                    Some('.') => words.push(String::new()),
                    Some('\\') => match letters.next() {
                        Some(letter @ ('/' | '.' | '\\')) => word.push(letter),
                        _ => return Err(error()),
                    },
                    Some(letter) => word.push(letter),
                }
            };
            let mut words = words.into_iter();
            let (id, kind) = (words.next().unwrap_or_default(), words.next());
            // The only way to say that both are empty is a lone point.
            let valid = match &kind {
                None => !id.is_empty(),
                Some(kind) => id.is_empty() || !kind.is_empty(),
            };
            if !valid || words.next().is_some() {
                return Err(error());
            }
            let kind = kind.unwrap_or_default();
            components.push(NameComponent { id, kind });
        }
        Ok(Name(components))
    }
}

impl Idl for NameComponent {
    const LEAST: usize = 8;

    fn type_code() -> TypeCode {
        let string = TypeCode::alias(
            "IDL:omg.org/CosNaming/Istring:1.0",
            "Istring",
            &TypeCode::string(),
        );
        let members = [("id", string.clone()), ("kind", string)];
        TypeCode::structure(
            "IDL:omg.org/CosNaming/NameComponent:1.0",
            "NameComponent",
            &members,
        )
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, CdrError> {
        Ok(NameComponent {
            id: String::read(reader)?,
            kind: String::read(reader)?,
        })
    }

    fn write(&self, writer: &mut Writer) {
        self.id.write(writer);
        self.kind.write(writer);
    }
}

impl Idl for Name {
    const LEAST: usize = 4;

    fn type_code() -> TypeCode {
        let sequence = TypeCode::sequence(&NameComponent::type_code());
        TypeCode::alias("IDL:omg.org/CosNaming/Name:1.0", "Name", &sequence)
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, CdrError> {
        Ok(Name(Vec::read(reader)?))
    }

    fn write(&self, writer: &mut Writer) {
        self.0.write(writer);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(components: &[(&str, &str)]) -> Name {
        let components = components.iter().map(|(id, kind)| NameComponent {
            id: (*id).into(),
            kind: (*kind).into(),
        });
        Name(components.collect())
    }

    #[test]
    fn the_form_of_the_naming_service() {
        let pairs = [
            ("host1", name(&[("host1", "")])),
            ("a/b.c/.", name(&[("a", ""), ("b", "c"), ("", "")])),
            ("a.b/c.d/.e", name(&[("a", "b"), ("c", "d"), ("", "e")])),
            (r"www\.x\.y", name(&[("www.x.y", "")])),
            (r"a\/b.c\\d", name(&[("a/b", "c\\d")])),
        ];
        for (text, name) in pairs {
            assert_eq!(name.to_string(), text);
            assert_eq!(text.parse(), Ok(name));
        }
        for wrong in [
            "", "/", "a/", "/a", "a//b", "a.", "a.b.c", "\\", "a\\b", "a./b",
        ] {
            assert_eq!(wrong.parse::<Name>(), Err(NameError(wrong.into())));
        }
    }

    proptest! {
        #[test]
        fn any_name_can_be_said(
            components in proptest::collection::vec(("[a./\\\\é]{0,4}", "[b./\\\\]{0,3}"), 1..4),
        ) {
            let components = components.into_iter().map(|(id, kind)| NameComponent { id, kind });
            let name = Name(components.collect());
            prop_assert_eq!(name.to_string().parse(), Ok(name));
        }

        #[test]
        fn what_can_be_read_is_what_was_said(text in "[a./\\\\é]{0,8}") {
            if let Ok(name) = text.parse::<Name>() {
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }
}
