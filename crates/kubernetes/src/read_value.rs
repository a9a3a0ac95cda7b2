//! Reads typed objects from values of JSON.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, Error as _, IntoDeserializer, Unexpected, Visitor};
use serde_json::{Error, Value};

/// Value that a type is read from, as by the deserializer of [`Value`], but objects with known fields are objects only.
///
/// `serde_json` also takes a list of the fields' values for such an object, which no API server sends: the code for
/// that would be a tenth of the crate.
pub(crate) struct ReadValue(pub(crate) Value);

impl ReadValue {
    /// Error that the value is not what a visitor expects.
    fn refuse<'de, V: Visitor<'de>>(&self, visitor: &V) -> Error {
        let found = match &self.0 {
            Value::Null => Unexpected::Unit,
            Value::Bool(value) => Unexpected::Bool(*value),
            Value::Number(_) => Unexpected::Other("number"),
            Value::String(text) => Unexpected::Str(text),
            Value::Array(_) => Unexpected::Seq,
            Value::Object(_) => Unexpected::Map,
        };
        Error::invalid_type(found, visitor)
    }
}

impl<'de> IntoDeserializer<'de, Error> for ReadValue {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Methods that read what the value itself reads as well.
macro_rules! read_as_value {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.0.$method(visitor)
        })*
    };
}

impl<'de> Deserializer<'de> for ReadValue {
    type Error = Error;

    read_as_value! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_f32 deserialize_f64
        deserialize_char deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf
        deserialize_unit deserialize_identifier deserialize_ignored_any
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.deserialize_unit_struct(name, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Value::Array(items) = self.0 else {
            return Err(self.refuse(&visitor));
        };
        let mut items = SeqDeserializer::new(items.into_iter().map(ReadValue));
        let read = visitor.visit_seq(&mut items)?;
        items.end().map(|()| read)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Value::Object(fields) = self.0 else {
            return Err(self.refuse(&visitor));
        };
        let fields = fields.into_iter();
        let mut fields = MapDeserializer::new(fields.map(|(name, value)| (name, ReadValue(value))));
        let read = visitor.visit_map(&mut fields)?;
        fields.end().map(|()| read)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    enum Color {
        #[default]
        Red,
        Blue,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    struct Name(String);

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Inner {
        port: Option<u16>,
        share: f64,
        color: Color,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Outer {
        name: Name,
        inner: Option<Inner>,
        many: Vec<Inner>,
        by_name: BTreeMap<String, i32>,
        pair: (bool, char),
        any: Value,
    }

    fn read(value: Value) -> Result<Outer, String> {
        Outer::deserialize(ReadValue(value)).map_err(|error| error.to_string())
    }

    #[test]
    fn values_are_read_as_serde_json_reads_them() {
        for value in [
            json!({}),
            json!({
                "name": "a",
                "inner": { "port": 80, "share": 0.5, "color": "Blue", "else": [1, { "x": null }] },
                "many": [{ "port": null }, {}],
                "by_name": { "a": 1, "b": -2 },
                "pair": [true, "x"],
                "any": { "deep": [1, "2", null] },
            }),
            json!({ "inner": null }),
            json!({ "name": 1 }),
            json!({ "name": null }),
            json!({ "inner": { "port": 65_536 } }),
            json!({ "inner": { "port": -1 } }),
            json!({ "inner": { "color": "Green" } }),
            json!({ "inner": "x" }),
            json!({ "many": {} }),
            json!({ "many": [1] }),
            json!({ "by_name": { "a": 1.5 } }),
            json!({ "by_name": [] }),
            json!({ "pair": [true] }),
            json!({ "pair": [true, "x", 1] }),
            json!("x"),
            json!(null),
        ] {
            let known = serde_json::from_value::<Outer>(value.clone());
            assert_eq!(read(value.clone()).ok(), known.ok(), "{value}");
        }
    }

    #[test]
    fn lists_are_no_objects() {
        for value in [
            json!([]),
            json!({ "inner": [80, 0.5, "Red"] }),
            json!({ "many": [[80]] }),
        ] {
            let error = read(value).unwrap_err();
            assert!(error.contains("invalid type: sequence"), "{error}");
        }
    }
}
