//! Keys, each declared once: the parser, the defaults and the reference come from there.

use std::time::Duration;

use super::field::{Field, Limits};
use super::reference::KeyDoc;

/// A key of a table that describes a `T`. Its type and its default are those of the place that
/// it fills, so they cannot drift apart.
pub(crate) struct Key<T: 'static> {
    /// Name of the key.
    pub name: &'static str,
    /// Name of the key in older files, which is still read.
    pub alias: Option<&'static str>,
    /// Place that the key fills.
    pub field: fn(&mut T) -> &mut dyn Field,
    /// Limits within the values that the type allows.
    pub limits: Limits,
    /// Meaning of the key, in Markdown, a line each.
    pub doc: &'static [&'static str],
    /// Example of a value, as it would stand in the file.
    pub example: &'static str,
}

/// Documentation of the keys of a table, with the values of `default` as their defaults.
pub(crate) fn describe_keys<T>(keys: &'static [Key<T>], mut default: T) -> Vec<KeyDoc> {
    let doc = |key: &Key<T>| {
        let field = (key.field)(&mut default);
        let lines: Vec<_> = key.doc.iter().map(|line| line.trim()).collect();
        KeyDoc {
            name: key.name,
            alias: key.alias,
            allowed: field.allowed(&key.limits),
            default: field.show(&key.limits),
            doc: lines.join(" "),
            example: key.example,
        }
    };
    keys.iter().map(doc).collect()
}

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) const HOUR: Duration = secs(3600);
pub(crate) const DAY: Duration = secs(86_400);

/// Declares a section of the file: a struct with its defaults, and the keys that fill it.
///
/// First come the fields that no key fills, `name: Type = default`; then tables of keys. A key is
/// a row with what it means, `name: Type [limits] = default; example`. The key has the name of its
/// field unless a text behind that says another one; `| "name"` is one of older files. What stands
/// in front of the row is for the manual, in Markdown, and for who reads the code.
macro_rules! section {
    (
        $(#[$meta:meta])*
        $vis:vis struct $type:ident {
            $($(#[$plain_meta:meta])* $plain:ident: $plain_type:ty = $plain_default:expr,)*
        }
        $(keys $table:ident {
            $(
                $(#[doc = $doc:literal])*
                $field:ident $($name:literal)? $(| $alias:literal)? : $field_type:ty
                    $([$limits:expr])? = $default:expr; $example:expr,
            )*
        })*
    ) => {
        $(#[$meta])*
        $vis struct $type {
            $($(#[$plain_meta])* pub $plain: $plain_type,)*
            $($($(#[doc = $doc])* pub $field: $field_type,)*)*
        }

        impl Default for $type {
            fn default() -> Self {
                $type {
                    $($plain: $plain_default,)*
                    $($($field: $default,)*)*
                }
            }
        }

        $($crate::schema::key::keys! {
            $table: $type {
                $(
                    $(#[doc = $doc])*
                    $field $($name)? $(| $alias)? $([$limits])?; $example,
                )*
            }
        })*
    };
}
pub(crate) use section;

/// Declares the keys of a type that is defined elsewhere: `field [limits]; example`, else as in
/// [`section!`].
macro_rules! keys {
    ($table:ident: $type:ty {
        $(
            $(#[doc = $doc:literal])*
            $field:ident $($name:literal)? $(| $alias:literal)? $([$limits:expr])?; $example:expr,
        )*
    }) => {
        pub(crate) static $table: &[$crate::schema::key::Key<$type>] = {
            #[allow(unused_imports)] // not every table has limits
            use $crate::schema::field::Limits::*;
            &[$($crate::schema::key::Key {
                name: $crate::schema::key::or!($($name)?, stringify!($field)),
                alias: $crate::schema::key::or!($(Some($alias))?, None),
                field: |it| &mut it.$field,
                limits: $crate::schema::key::or!($($limits)?, Any),
                doc: &[$($doc),*],
                example: $example,
            },)*]
        };
    };
}
pub(crate) use keys;

/// The first, if there is one, or else the second.
macro_rules! or {
    (, $else:expr) => {
        $else
    };
    ($first:expr, $else:expr) => {
        $first
    };
}
pub(crate) use or;
