//! Set of names of hosts.

use std::collections::HashSet;

/// Names that are the same in upper and lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameSet {
    /// The names in lower case.
    names: HashSet<String>,
}

impl NameSet {
    /// True if a name is one of them.
    pub fn contains(&self, name: &str) -> bool {
        // Most rules have none.
        !self.names.is_empty() && self.names.contains(&name.to_ascii_lowercase())
    }
}

impl<'a> FromIterator<&'a String> for NameSet {
    fn from_iter<I: IntoIterator<Item = &'a String>>(names: I) -> Self {
        let names = names.into_iter().map(|name| name.to_ascii_lowercase());
        NameSet {
            names: names.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_in_upper_and_lower_case() {
        let names = ["A.example".to_owned(), "*.b.example".to_owned()];
        let names: NameSet = names.iter().collect();
        for name in ["a.example", "A.EXAMPLE", "*.B.example"] {
            assert!(names.contains(name), "{name}");
        }
        for name in ["b.example", "x.b.example", "*", ""] {
            assert!(!names.contains(name), "{name}");
        }
        assert!(!NameSet::default().contains(""));
    }
}
