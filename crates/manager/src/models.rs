//! Groups for requests by the names of models.

use std::collections::HashMap;

use crate::config;

/// Beginning of names, and the places of the groups for it.
type Beginning = (Box<[u8]>, Box<[u32]>);

/// Places of the groups for models in a rule.
#[derive(Debug)]
pub struct Models {
    exact: HashMap<Box<[u8]>, Box<[u32]>>,
    /// Beginnings of names, the longest first.
    beginnings: Box<[Beginning]>,
    /// All places, each once.
    places: Box<[u32]>,
}

impl Models {
    /// Takes the groups from the configuration of a rule whose groups have these places; `None` if no model has a group.
    pub(crate) fn new(models: &config::Models, places: &HashMap<&str, u32>) -> Option<Box<Self>> {
        if models.is_empty() {
            return None;
        }
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
        let found = Models::new(&models, &places).unwrap();
        let find = |name: &str| found.find_places(name.as_bytes()).unwrap();
        assert_eq!(find("llama-3"), [4]);
        assert_eq!(find("llama-3.1"), [2, 1]);
        assert_eq!(find("llama-2"), [3]);
        assert_eq!(find("llama-"), [3]);
        assert_eq!(find("Llama-2"), [1]);
        assert_eq!(find(""), [1]);
        assert_eq!(found.places(), [1, 2, 3, 4]);
        let some = config::Models(models.0.get(1..).unwrap().to_vec());
        let found = Models::new(&some, &places).unwrap();
        assert_eq!(found.find_places(b"gpt"), None);
        assert!(Models::new(&config::Models::default(), &places).is_none());
    }
}
