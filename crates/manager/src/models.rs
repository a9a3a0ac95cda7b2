//! Groups for requests by the names of models.

use std::collections::{BTreeMap, HashMap};

use crate::config;

/// Beginning of names, and the places of the groups for it.
type Beginning = (Box<[u8]>, Box<[u32]>);

/// Model of an alias.
#[derive(Debug)]
pub struct AliasedModel {
    /// Name of the model at the engines.
    pub name: Box<str>,
    /// The name as a JSON string, without the quotation marks.
    pub json: Box<str>,
}

impl AliasedModel {
    fn new(name: &str) -> Self {
        let json = serde_json::Value::from(name).to_string();
        let json = json
            .strip_prefix('"')
            .and_then(|json| json.strip_suffix('"'));
        AliasedModel {
            name: name.into(),
            json: json.unwrap_or(name).into(),
        }
    }
}

/// Aliases of models, and places of the groups for models in a rule.
#[derive(Debug)]
pub struct Models {
    aliases: BTreeMap<Box<str>, AliasedModel>,
    /// Beginnings of aliases, the longest first.
    alias_beginnings: Box<[(Box<[u8]>, AliasedModel)]>,
    exact: HashMap<Box<[u8]>, Box<[u32]>>,
    /// Beginnings of names, the longest first.
    beginnings: Box<[Beginning]>,
    /// All places, each once.
    places: Box<[u32]>,
}

impl Models {
    /// Takes aliases and groups from the configuration of a rule whose groups have these places; `None` if there is no
    /// alias, and no model has a group.
    pub(crate) fn new(
        models: Option<&config::Models>,
        aliases: Option<&config::ModelAliases>,
        places: &HashMap<&str, u32>,
    ) -> Option<Box<Self>> {
        let no_models = config::Models::default();
        let models = models.unwrap_or(&no_models);
        let aliases = aliases.map_or(&[][..], |aliases| &aliases.0);
        if models.is_empty() && aliases.is_empty() {
            return None;
        }
        let (mut whole, mut alias_beginnings) = (BTreeMap::new(), Vec::new());
        for known in aliases {
            let model = AliasedModel::new(&known.model);
            match known.alias.strip_suffix('*') {
                Some(beginning) => alias_beginnings.push((beginning.as_bytes().into(), model)),
                None => {
                    whole.insert(known.alias.as_str().into(), model);
                }
            }
        }
        alias_beginnings
            .sort_by_key(|(beginning, _): &(Box<[u8]>, _)| std::cmp::Reverse(beginning.len()));
        let (mut exact, mut beginnings) = (HashMap::new(), Vec::new());
        for models in &models.0 {
            let groups = models.groups.iter();
            let groups = groups.filter_map(|group| places.get(group.as_str()).copied());
            let groups: Box<[u32]> = groups.collect();
            match models.name.strip_suffix('*') {
                Some(beginning) => beginnings.push((beginning.as_bytes().into(), groups)),
                None => {
                    exact.insert(models.name.as_bytes().into(), groups);
                }
            }
        }
        beginnings.sort_by_key(|(beginning, _): &Beginning| std::cmp::Reverse(beginning.len()));
        let used = models.group_names();
        let used = used.filter_map(|group| places.get(group.as_str()).copied());
        let mut used: Vec<u32> = used.collect();
        used.sort_unstable();
        used.dedup();
        Some(Box::new(Models {
            aliases: whole,
            alias_beginnings: alias_beginnings.into(),
            exact,
            beginnings: beginnings.into(),
            places: used.into(),
        }))
    }

    /// Finds the places of the groups for a model, in the order of preference: those of the name itself, or else of the
    /// longest beginning.
    pub fn find_places(&self, name: &[u8]) -> Option<&[u32]> {
        let beginnings = self.beginnings.iter();
        let mut fitting = beginnings.filter(|(beginning, _)| name.starts_with(beginning));
        let found = self.exact.get(name);
        let found = found.or_else(|| fitting.next().map(|(_, places)| places));
        found.map(|places| &**places)
    }

    /// Finds the model of an alias: that of the name itself, or else of the longest beginning. A model is no alias of
    /// itself.
    pub fn find_alias(&self, name: &[u8]) -> Option<&AliasedModel> {
        if !self.has_aliases() {
            return None;
        }
        let whole = std::str::from_utf8(name).ok();
        let beginnings = self.alias_beginnings.iter();
        let mut fitting = beginnings.filter(|(beginning, _)| name.starts_with(beginning));
        let found = whole.and_then(|name| self.aliases.get(name));
        let found = found.or_else(|| fitting.next().map(|(_, model)| model));
        found.filter(|model| model.name.as_bytes() != name)
    }

    /// True if some models have aliases.
    pub fn has_aliases(&self) -> bool {
        !self.aliases.is_empty() || !self.alias_beginnings.is_empty()
    }

    /// Aliases that are whole names, and their models, in the order of the alphabet.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, &AliasedModel)> {
        self.aliases.iter().map(|(alias, model)| (&**alias, model))
    }

    /// All places, each once.
    pub fn places(&self) -> &[u32] {
        &self.places
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelGroups;

    #[test]
    fn names_come_before_beginnings_and_longer_ones_before_shorter_ones() {
        let models = [
            ("*", &["rest"][..]),
            ("llama-3*", &["three", "rest"]),
            ("llama-*", &["llama"]),
            ("llama-3", &["one"]),
        ];
        let models = models.map(|(name, groups)| ModelGroups {
            name: name.into(),
            groups: groups.iter().map(|group| (*group).into()).collect(),
        });
        let places = [("rest", 1), ("three", 2), ("llama", 3), ("one", 4)];
        let places = HashMap::from(places);
        let models = config::Models(models.into());
        let found = Models::new(Some(&models), None, &places).unwrap();
        let find = |name: &str| found.find_places(name.as_bytes()).unwrap();
        assert_eq!(find("llama-3"), [4]);
        assert_eq!(find("llama-3.1"), [2, 1]);
        assert_eq!(find("llama-2"), [3]);
        assert_eq!(find("llama-"), [3]);
        assert_eq!(find("Llama-2"), [1]);
        assert_eq!(find(""), [1]);
        assert_eq!(found.places(), [1, 2, 3, 4]);
        let some = config::Models(models.0.get(1..).unwrap().to_vec());
        let found = Models::new(Some(&some), None, &places).unwrap();
        assert_eq!(found.find_places(b"gpt"), None);
        let (none, no_alias) = (config::Models::default(), config::ModelAliases::default());
        assert!(Models::new(Some(&none), Some(&no_alias), &places).is_none());
    }

    #[test]
    fn an_alias_comes_before_beginnings_and_longer_ones_before_shorter_ones() {
        let aliases = [
            ("gpt-*", "gpt-oss"),
            ("gpt-4o*", "llama-70b"),
            ("gpt-4o", "qwen"),
        ];
        let aliases = aliases.map(|(alias, model)| config::ModelAlias {
            alias: alias.into(),
            model: model.into(),
        });
        let aliases = config::ModelAliases(aliases.into());
        let found = Models::new(None, Some(&aliases), &HashMap::new()).unwrap();
        let find = |name: &[u8]| found.find_alias(name).map(|model| &*model.name);
        assert_eq!(find(b"gpt-4o"), Some("qwen"));
        assert_eq!(find(b"gpt-4o-mini"), Some("llama-70b"));
        assert_eq!(find(b"gpt-4"), Some("gpt-oss"));
        assert_eq!(find(b"gpt-\xff"), Some("gpt-oss"));
        for name in ["gpt-oss", "gpt", "Gpt-4o", ""] {
            assert_eq!(find(name.as_bytes()), None, "{name}");
        }
        assert!(found.has_aliases());
        let listed: Vec<_> = found.aliases().map(|(alias, _)| alias).collect();
        assert_eq!(listed, ["gpt-4o"]);
        // A rule with beginnings alone has aliases, too.
        let only = config::ModelAliases(aliases.0.get(..1).unwrap().to_vec());
        let found = Models::new(None, Some(&only), &HashMap::new()).unwrap();
        assert!(found.has_aliases() && found.find_alias(b"gpt-4").is_some());
    }

    #[test]
    fn aliases_have_models_whose_names_are_written_as_json() {
        let aliases = [("gpt", "org/Qwen"), ("b", "say \"\\ä")];
        let aliases = aliases.map(|(alias, model)| config::ModelAlias {
            alias: alias.into(),
            model: model.into(),
        });
        let aliases = config::ModelAliases(aliases.into());
        let found = Models::new(None, Some(&aliases), &HashMap::new()).unwrap();
        assert!(found.has_aliases() && found.places().is_empty());
        let model = found.find_alias(b"b").unwrap();
        assert_eq!((&*model.name, &*model.json), ("say \"\\ä", r#"say \"\\ä"#));
        assert!(found.find_alias(b"org/Qwen").is_none() && found.find_alias(b"\xff").is_none());
        let listed: Vec<_> = found
            .aliases()
            .map(|(alias, model)| (alias, &*model.name))
            .collect();
        assert_eq!(listed, [("b", "say \"\\ä"), ("gpt", "org/Qwen")]);
    }
}
