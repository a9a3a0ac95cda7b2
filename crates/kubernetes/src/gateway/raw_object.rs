//! Objects of any kind as the API server sends them.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::ingress_spec::is_used_annotation;
use super::objects::ObjectName;
use crate::list::{self, ListError, Raw, RawDetails, RawMetadata, Status};

/// Object of any kind, as the API server sends it: text, so that an object that cannot be read is a fault of its own.
#[derive(Deserialize)]
#[serde(transparent)]
pub(crate) struct RawAny<'a>(#[serde(borrow)] &'a RawValue);

/// Object of which only the names are read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedObject {
    metadata: RawMetadata,
}

/// Fields of a status.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RawStatus {
    code: Option<u16>,
    message: Option<String>,
    reason: Option<String>,
    details: Option<RawDetails>,
}

impl RawAny<'_> {
    /// Reads the object. Of one that is nested too deeply only the names are left, with a specification that no kind has:
    /// nobody uses it, and others are not touched.
    fn read(&self) -> Result<Value, ListError> {
        let text = self.0.get();
        Ok(match serde_json::from_str(text) {
            Ok(object) => object,
            Err(_) => {
                let metadata = serde_json::from_str::<NamedObject>(text)?.metadata;
                json!({ "metadata": metadata, "spec": "too deep" })
            }
        })
    }

    fn read_metadata(object: &mut Value) -> Result<RawMetadata, ListError> {
        let Some(metadata) = object.get_mut("metadata") else {
            return Ok(RawMetadata::default());
        };
        // Nobody needs them, and they are long.
        if let Some(fields) = metadata.as_object_mut() {
            fields.remove("managedFields");
            if let Some(annotations) = fields.get_mut("annotations").and_then(Value::as_object_mut)
            {
                annotations.retain(|name, _| is_used_annotation(name));
            }
        }
        Ok(RawMetadata::deserialize(&*metadata)?)
    }
}

/// Returns true if a text may stand in a path: names of objects have letters, digits, `-` and `.`.
fn is_object_name(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    text.len() <= list::MAX_NAME && text.bytes().all(is_inner) && !text.starts_with('.')
}

impl<'a> Raw<'a> for RawAny<'a> {
    type Object = Value;

    fn into_object(self) -> Result<(String, Value, String), ListError> {
        let mut object = self.read()?;
        let mut metadata = Self::read_metadata(&mut object)?;
        let namespace = metadata.namespace.take().unwrap_or_default();
        let (name, version) = metadata.into_name()?;
        if !is_object_name(&name) || !is_object_name(&namespace) {
            return Err(ListError::Bounds("an object whose name cannot be used"));
        }
        let key = ObjectName::new(&namespace, &name).to_string();
        Ok((key, object, version))
    }

    fn into_version(self) -> Result<String, ListError> {
        Self::read_metadata(&mut self.read()?)?.into_version()
    }

    fn into_status(self) -> Status {
        let status = serde_json::from_str::<RawStatus>(self.0.get()).unwrap_or_default();
        Status::new(status.code, status.message, status.reason, status.details)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_is_nested_too_deeply_is_a_fault_of_its_own() {
        let deep = format!("{}1{}", "[".repeat(300), "]".repeat(300));
        let metadata =
            |name: &str| format!(r#"{{"name":"{name}","namespace":"shop","resourceVersion":"7"}}"#);
        let good = format!(r#"{{"metadata":{},"spec":{{"a":1}}}}"#, metadata("good"));
        let bad = format!(
            r#"{{"metadata":{},"spec":{{"a":{deep}}}}}"#,
            metadata("bad")
        );
        let page = format!(r#"{{"metadata":{{"resourceVersion":"9"}},"items":[{bad},{good}]}}"#);
        let page = list::parse_page::<RawAny<'_>>(page.as_bytes()).unwrap();
        let names: Vec<_> = page.objects.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["shop/bad", "shop/good"]);
        assert_eq!(page.objects[0].1["spec"], "too deep");
        assert_eq!(page.objects[1].1["spec"]["a"], 1);
        let event = format!(r#"{{"type":"MODIFIED","object":{bad}}}"#);
        let event = list::parse_event::<RawAny<'_>>(event.as_bytes()).unwrap();
        assert!(
            matches!(event, list::Event::Changed(name, _, version) if name == "shop/bad" && version == "7")
        );
    }
}
