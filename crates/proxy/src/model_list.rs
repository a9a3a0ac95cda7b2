//! List of models, joined from the lists of several engines (`GET /v1/models` of OpenAI's interface).

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use serde::Deserialize;
use serde_json::value::RawValue;

/// Most bytes of an engine's list.
pub const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Most bytes of all entries.
const MAX_LIST_BYTES: usize = 8 << 20;

/// Most models.
const MAX_MODELS: usize = 10_000;

/// Deepest nesting of an entry.
const MAX_DEPTH: u32 = 32;

/// Reason why an engine's list is not joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelListError {
    /// The list is too large.
    #[error("the list is larger than 1 MiB")]
    TooLarge,
    /// The text is no JSON with an array `data`.
    #[error("the answer is no JSON object with one array \"data\"")]
    NotAList,
}

/// Answer of an engine.
#[derive(Deserialize)]
struct EngineList<'a> {
    #[serde(borrow)]
    data: Vec<&'a RawValue>,
}

/// The part of an entry that is read.
#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
}

/// Models of several engines, each model once, in the words of the first engine that has it.
#[derive(Debug, Default)]
pub struct ModelList {
    /// Entries as the engines wrote them, with commas between.
    entries: String,
    /// Places of the entries, by the names of the models.
    names: HashMap<Box<str>, Range<usize>>,
    /// Bytes of the entries that were read for aliases.
    alias_bytes: usize,
}

impl ModelList {
    /// Adds the models of an engine's answer whose names `is_wanted` accepts. Entries without a name, too deep ones and
    /// those above the bounds of the list are left out. Returns the number of models that were added.
    pub fn add_answer(
        &mut self,
        body: &[u8],
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<usize, ModelListError> {
        if body.len() > MAX_ANSWER_BYTES {
            return Err(ModelListError::TooLarge);
        }
        // Serde takes an array for an object, too.
        if !body.trim_ascii_start().starts_with(b"{") {
            return Err(ModelListError::NotAList);
        }
        let list: Result<EngineList<'_>, _> = serde_json::from_slice(body);
        let list = list.map_err(|_| ModelListError::NotAList)?;
        let before = self.names.len();
        for entry in list.data {
            let text = entry.get();
            let Ok(Entry { id }) = serde_json::from_str(text) else {
                continue;
            };
            if !text.starts_with('{')
                || !self.has_room(text.len())
                || self.names.contains_key(&*id)
                || !is_wanted(&id)
                || !is_shallow(text)
            {
                continue;
            }
            self.push_entry(&id, text);
        }
        Ok(self.names.len().saturating_sub(before))
    }

    /// Adds `alias` as another name of `model`, if the model is there and the alias is not. The entry is otherwise that of
    /// the model.
    pub fn add_alias(&mut self, alias: &str, model: &str) {
        let place = self.names.get(model).cloned();
        let Some(entry) = place.and_then(|place| self.entries.get(place)) else {
            return;
        };
        // An entry of a megabyte may have a thousand aliases, and become short each time.
        let bytes = self.alias_bytes.saturating_add(entry.len());
        if self.names.contains_key(alias) || bytes > MAX_LIST_BYTES {
            return;
        }
        self.alias_bytes = bytes;
        if let Some(text) = with_id(entry, alias)
            && self.has_room(text.len())
        {
            self.push_entry(alias, &text);
        }
    }

    /// True if there is room for another entry of this length.
    fn has_room(&self, length: usize) -> bool {
        let length = self.entries.len().saturating_add(length);
        self.names.len() < MAX_MODELS && length < MAX_LIST_BYTES
    }

    /// Returns the entry of `model` as the body of an answer, with `id` as its name.
    pub fn find_entry(&self, model: &str, id: &str) -> Option<String> {
        let entry = self.entries.get(self.names.get(model)?.clone())?;
        let entry = match id == model {
            true => entry.to_owned(),
            false => with_id(entry, id)?,
        };
        Some(entry + "\n")
    }

    fn push_entry(&mut self, name: &str, text: &str) {
        if !self.entries.is_empty() {
            self.entries.push(',');
        }
        let start = self.entries.len();
        self.entries.push_str(text);
        self.names.insert(name.into(), start..self.entries.len());
    }

    /// Returns the list as the body of an answer.
    pub fn into_json(self) -> String {
        ["{\"object\":\"list\",\"data\":[", &self.entries, "]}\n"].concat()
    }
}

/// Returns an entry with another name, which comes first; `None` if the entry cannot be read.
fn with_id(entry: &str, id: &str) -> Option<String> {
    let mut fields: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_str(entry).ok()?;
    fields.remove("id");
    let mut text = format!("{{\"id\":{}", serde_json::Value::from(id));
    for (name, value) in fields {
        let name = serde_json::Value::from(&*name);
        text += &format!(",{name}:{}", value.get());
    }
    Some(text + "}")
}

/// True if a JSON text nests no deeper than allowed.
fn is_shallow(text: &str) -> bool {
    let (mut depth, mut in_string, mut is_escaped) = (0_u32, false, false);
    text.bytes().all(|byte| {
        match byte {
            _ if std::mem::take(&mut is_escaped) => {}
            b'\\' => is_escaped = in_string,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => depth = depth.saturating_add(1),
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth <= MAX_DEPTH
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Names in a list of models.
    fn names(list: ModelList) -> Vec<String> {
        let list: Value = serde_json::from_str(&list.into_json()).unwrap();
        assert_eq!(list["object"], "list");
        let entries = list["data"].as_array().unwrap().iter();
        entries
            .map(|entry| entry["id"].as_str().unwrap().to_owned())
            .collect()
    }

    fn add(list: &mut ModelList, answer: &Value) -> Result<usize, ModelListError> {
        list.add_answer(answer.to_string().as_bytes(), |_| true)
    }

    #[test]
    fn lists_are_joined_in_order_and_the_first_entry_of_a_name_stays() {
        let mut list = ModelList::default();
        let first = br#" {"object":"list","data":[{"id":"b","max_model_len":1.50,"id2":[]}, {"id":"a"}],"x":{}} "#;
        assert_eq!(list.add_answer(first, |_| true), Ok(2));
        let second = json!({"data": [{"id": "a", "owned_by": "me"}, {"id": "c"}, {"id": "x"}]});
        let second = second.to_string();
        assert_eq!(
            list.add_answer(second.as_bytes(), |name| name != "x"),
            Ok(1)
        );
        // An escape is another spelling of the same name.
        assert_eq!(
            list.add_answer(br#"{"data":[{"id":"\u0061"}]}"#, |_| true),
            Ok(0)
        );
        let text = list.into_json();
        // Entries are as the engines wrote them.
        let wanted = r#"{"object":"list","data":[{"id":"b","max_model_len":1.50,"id2":[]},{"id":"a"},{"id":"c"}]}"#;
        assert_eq!(text.trim_end(), wanted);
        assert_eq!(names(ModelList::default()), Vec::<String>::new());
    }

    #[test]
    fn s5_answers_that_are_no_lists_change_nothing() {
        let mut list = ModelList::default();
        add(&mut list, &json!({"data": [{"id": "a"}]})).unwrap();
        let deep = "[".repeat(500_000);
        let deep_list = format!("{{\"data\":{deep}");
        for bad in [
            &b""[..],
            b"not found",
            b"null",
            br#"[[{"id":"b"}]]"#,
            b"7",
            b"{}",
            br#"{"data":{"id":"b"}}"#,
            br#"{"data":"b"}"#,
            br#"{"data":[{"id":"b"}]"#,
            br#"{"data":[{"id":"b"}]} {}"#,
            br#"{"data":[{"id":"b"}],"data":[{"id":"c"}]}"#,
            br#"{"data":[{"id":"b",}]}"#,
            b"{\"data\":[{\"id\":\"\xff\"}]}",
            deep.as_bytes(),
            deep_list.as_bytes(),
        ] {
            let added = list.add_answer(bad, |_| true);
            let shown = String::from_utf8_lossy(bad.get(..40).unwrap_or(bad));
            assert_eq!(added, Err(ModelListError::NotAList), "{shown}");
        }
        let huge = json!({"data": [{"id": "b", "text": "x".repeat(MAX_ANSWER_BYTES)}]});
        assert_eq!(add(&mut list, &huge), Err(ModelListError::TooLarge));
        assert_eq!(names(list), ["a"]);
    }

    #[test]
    fn s5_entries_without_a_name_and_deep_ones_are_left_out() {
        let nested = |depth: usize| [&*"[".repeat(depth), &*"]".repeat(depth)].concat();
        let depth = MAX_DEPTH as usize;
        let fits = format!(r#"{{"id":"fits","x":{}}}"#, nested(depth - 1));
        let deep = format!(r#"{{"id":"deep","x":{}}}"#, nested(depth));
        let deeper = format!(r#"{{"id":"deeper","x":{}}}"#, nested(100_000));
        let quoted = r#"{"id":"quoted","x":"\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\"}"#;
        let body = format!(
            r#"{{"data":[null,7,"a",[],["a"],{{}},{{"id":7}},{{"id":null}},{{"id":"a","id":"b"}},
            {{"id":"\ud800"}},{deep},{deeper},{quoted},{fits}]}}"#
        );
        let mut list = ModelList::default();
        assert_eq!(list.add_answer(body.as_bytes(), |_| true), Ok(2));
        assert_eq!(names(list), ["quoted", "fits"]);
    }

    #[test]
    fn s5_the_list_is_bounded_in_models_and_bytes() {
        let mut list = ModelList::default();
        let each: Vec<_> = (0..MAX_MODELS - 1)
            .map(|number| json!({"id": number.to_string()}))
            .collect();
        assert_eq!(add(&mut list, &json!({ "data": each })), Ok(MAX_MODELS - 1));
        let more = json!({"data": [{"id": "a"}, {"id": "b"}]});
        assert_eq!(add(&mut list, &more), Ok(1));
        assert_eq!(add(&mut list, &more), Ok(0));
        let mut list = ModelList::default();
        let text = "x".repeat(MAX_ANSWER_BYTES - 100);
        let added: usize = (0..20)
            .map(|number| json!({"data": [{"id": number.to_string(), "text": text}]}))
            .map(|answer| add(&mut list, &answer).unwrap())
            .sum();
        assert_eq!(added, 8);
        assert!(list.into_json().len() <= MAX_LIST_BYTES + 100);
        // Of two fields with a name, the last one stays: entries for aliases are short, and reading them takes as long.
        let mut list = ModelList::default();
        let text = "x".repeat(MAX_ANSWER_BYTES - 100);
        let twice = format!(r#"{{"data":[{{"id":"a","x":"{text}","x":1}}]}}"#);
        assert_eq!(list.add_answer(twice.as_bytes(), |_| true), Ok(1));
        for number in 0..1000 {
            list.add_alias(&number.to_string(), "a");
        }
        assert_eq!(names(list).len(), 1 + 8);
    }
}
