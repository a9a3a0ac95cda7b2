//! Members that something else than the configuration lists: SRV records, files, and subsystems.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{Config, GroupConfig, MAX_FILE_SIZE, MemberConfig, Pattern, read_file};

pub mod file;
mod follow;
pub mod found;
pub(crate) mod service;

use found::FoundMember;
use service::Service;

/// Contents of lists, as far as they are known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lists {
    /// The last records of each service; services that never had any are not there.
    pub services: HashMap<String, Vec<Service>>,
    /// Contents of files when they were last good.
    pub files: Files,
    /// Members that subsystems found last, by the names of their lists. Copies share them.
    pub found: Arc<HashMap<String, Arc<Vec<FoundMember>>>>,
}

/// Contents of files when they were last good.
pub(crate) type Files = BTreeMap<PathBuf, File>;

/// A file when it was last good.
#[derive(Clone, Debug)]
pub(crate) struct File {
    hash: u64,
    members: Arc<Vec<MemberConfig>>,
}

impl Lists {
    /// Returns the members of lists of a group, each once, without those that the group has anyway. A member whose given
    /// name another member has goes by its address.
    pub(crate) fn list_members(&self, group: &GroupConfig) -> Vec<MemberConfig> {
        if group.services.is_empty() && group.members_files.is_empty() {
            return Vec::new();
        }
        let mut names: HashSet<String> = group.members.iter().map(MemberConfig::name).collect();
        let of_services = group.services.iter().flat_map(|template| {
            let records = template.srv.as_ref().and_then(|srv| self.services.get(srv));
            service::members(template, records.map_or(&[], Vec::as_slice))
        });
        let of_subsystems = group.services.iter().flat_map(|template| {
            let found = { template.kubernetes.as_ref() }.and_then(|name| self.found.get(name));
            let found = found.map_or(&[][..], |found| &found[..]);
            let template = found::share_template(template, found);
            let found = found.iter();
            found.map(move |member| member.with_settings(&template))
        });
        let patterns = group
            .members_files
            .iter()
            .map(|text| Pattern::from_text(text));
        let of_files = patterns.flat_map(|pattern| {
            let files = self
                .files
                .iter()
                .filter(move |(path, _)| pattern.matches(path));
            files.flat_map(|(_, file)| file.members.iter().cloned())
        });
        let all = of_services.chain(of_subsystems).chain(of_files);
        let mut members: Vec<_> = all.filter(|of| names.insert(of.name())).collect();
        let in_file = group.members.iter();
        let mut given_names: HashSet<String> =
            in_file.filter_map(|of| of.given_name.clone()).collect();
        for member in &mut members {
            member.given_name = member
                .given_name
                .take()
                .filter(|name| given_names.insert(name.clone()));
        }
        members
    }

    /// Takes members that subsystems found while these lists were read.
    pub(crate) fn take_newer(&mut self, newer: &Lists) {
        if Arc::ptr_eq(&self.found, &newer.found) {
            return;
        }
        for (name, members) in Arc::make_mut(&mut self.found) {
            if let Some(newer) = newer.found.get(name) {
                *members = Arc::clone(newer);
            }
        }
    }

    /// Returns the number of members that each list of a group has, with the name of the list.
    pub(crate) fn count_members(&self, group: &GroupConfig) -> Vec<(String, usize)> {
        let services = group.services.iter().flat_map(|template| {
            if let Some(name) = &template.kubernetes {
                let found = self.found.get(name).map_or(0, |found| found.len());
                return Some((name.clone(), found));
            }
            let name = template.srv.as_ref()?;
            let records = self.services.get(name).map_or(0, Vec::len);
            Some((name.clone(), records))
        });
        let files = group.members_files.iter().map(|text| {
            let pattern = Pattern::from_text(text);
            let files = self.files.iter().filter(|(path, _)| pattern.matches(path));
            (
                text.clone(),
                files.map(|(_, file)| file.members.len()).sum(),
            )
        });
        services.chain(files).collect()
    }
}

/// Troubles with lists, by their names. A list that never had a trouble is not there.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListProblems(BTreeMap<String, ListProblem>);

/// Trouble with a list.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListProblem {
    /// Present error, if there is one.
    pub error: Option<String>,
    /// Number of times that the list became wrong, or wrong in another way.
    pub failures: u64,
}

impl ListProblems {
    /// Notes how it went; answers whether that is news.
    fn note(&mut self, list: &str, error: Option<String>) -> bool {
        if error.is_none() && !self.0.contains_key(list) {
            return false;
        }
        let trouble = self.0.entry(list.to_owned()).or_default();
        let is_news = trouble.error != error;
        trouble.failures += u64::from(is_news && error.is_some());
        trouble.error = error;
        is_news
    }

    pub(crate) fn trouble_of(&self, list: &str) -> ListProblem {
        self.0.get(list).cloned().unwrap_or_default()
    }
}

/// The names of services of a configuration.
pub(crate) fn service_names(config: &Config) -> HashSet<String> {
    let services = config.groups.iter().flat_map(|group| &group.services);
    services
        .filter_map(|template| template.srv.clone())
        .collect()
}

/// Names of the lists of a configuration that subsystems find.
pub(crate) fn found_names(config: &Config) -> HashSet<String> {
    let services = config.groups.iter().flat_map(|group| &group.services);
    services
        .filter_map(|template| template.kubernetes.clone())
        .collect()
}

/// True if a configuration has the list `name`, which a subsystem finds.
pub(crate) fn has_found_list(config: &Config, name: &str) -> bool {
    let mut services = config.groups.iter().flat_map(|group| &group.services);
    services.any(|template| template.kubernetes.as_deref() == Some(name))
}

/// The patterns of files of a configuration.
pub(crate) fn file_patterns(config: &Config) -> BTreeSet<String> {
    let groups = config.groups.iter();
    groups
        .flat_map(|group| group.members_files.iter().cloned())
        .collect()
}

/// Returns the errors of the files that a configuration names.
pub fn check_files(config: &Config) -> Vec<String> {
    let read = read(&file_patterns(config), &Files::new());
    read.errors.into_values().collect()
}

/// Contents of files, as read, with their errors.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub files: Files,
    /// Errors with file and line, by the pattern that names the file: the first error of each.
    pub errors: BTreeMap<String, String>,
}

/// Reads the files that are meant. Of a file that is not good, or whose folder is not there, what
/// it was before is `known`, and stays; a file that one with `*` no longer names is gone.
pub(crate) fn read(patterns: &BTreeSet<String>, known: &Files) -> Read {
    let mut read = Read::default();
    for text in patterns {
        let pattern = Pattern::from_text(text);
        let mut wrong = |error: String| {
            read.errors.entry(text.clone()).or_insert(error);
        };
        let paths = match pattern.paths() {
            Ok(paths) => paths,
            Err(error) => {
                wrong(error);
                let stay = known.iter().filter(|(path, _)| pattern.matches(path));
                read.files
                    .extend(stay.map(|(path, file)| (path.clone(), file.clone())));
                continue;
            }
        };
        for path in paths {
            let before = known.get(&path);
            let file = match read_one(&path, before) {
                Ok(file) => Some(file),
                Err(error) => {
                    wrong(error);
                    before.cloned()
                }
            };
            read.files.extend(file.map(|file| (path, file)));
        }
    }
    read
}

fn read_one(path: &Path, before: Option<&File>) -> Result<File, String> {
    let name = path.display();
    let text = read_file(path, MAX_FILE_SIZE).map_err(|error| format!("{name}: {error}"))?;
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let hash = hasher.finish();
    if let Some(before) = before.filter(|before| before.hash == hash) {
        return Ok(before.clone());
    }
    let members = file::parse(&text).map_err(|error| format!("{name}:{error}"))?;
    let members = Arc::new(members);
    Ok(File { hash, members })
}

/// True if two readings found the same.
pub(crate) fn same_files(a: &Files, b: &Files) -> bool {
    let same = |((path, file), (other_path, other)): (_, (&PathBuf, &File))| {
        let (path, file): (&PathBuf, &File) = (path, file);
        path == other_path && file.hash == other.hash
    };
    a.len() == b.len() && a.iter().zip(b).all(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_leaves_what_was() {
        let folder = std::env::temp_dir().join(format!("evenkeel-lists-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        let patterns = BTreeSet::from([folder.join("*.json").display().to_string()]);
        let names = |files: &Files| -> Vec<String> {
            let members = files.values().flat_map(|file| file.members.iter());
            members.map(MemberConfig::name).collect()
        };
        write("a.json", r#"[{"targets": ["a.example:1"]}]"#);
        write("b.json", r#"[{"targets": ["b.example:1"]}]"#);
        let first = read(&patterns, &Files::new());
        assert_eq!(names(&first.files), ["a.example:1", "b.example:1"]);
        assert!(first.errors.is_empty());

        write("a.json", "[\n{\"targets\": [\"a.example\"]}]");
        let second = read(&patterns, &first.files);
        assert_eq!(names(&second.files), ["a.example:1", "b.example:1"]);
        assert!(same_files(&first.files, &second.files));
        let error = second.errors.values().next().unwrap();
        assert!(error.contains("a.json:2:"), "{error}");

        // A file that is taken away takes its members with it; a folder does not.
        std::fs::remove_file(folder.join("b.json")).unwrap();
        let third = read(&patterns, &second.files);
        assert_eq!(names(&third.files), ["a.example:1"]);
        std::fs::remove_dir_all(&folder).unwrap();
        let fourth = read(&patterns, &third.files);
        assert_eq!(names(&fourth.files), ["a.example:1"]);
        assert!(
            fourth
                .errors
                .values()
                .all(|error| error.contains("cannot be read"))
        );
        assert_eq!(fourth.errors.len(), 1);

        // Nor does a file that is named as it is.
        let named = BTreeSet::from([folder.join("a.json").display().to_string()]);
        let fifth = read(&named, &fourth.files);
        assert_eq!((names(&fifth.files).len(), fifth.errors.len()), (1, 1));
    }

    #[test]
    fn g6_a_name_that_is_taken_leaves_the_member_with_its_address() {
        let text = "[group.web]\nmembers = [{ address = \"a:1\", name = \"s1\" }]\nmembers_files = [\"/x/*.json\"]\n";
        let config = crate::config::parse("x", text).unwrap();
        let file = |json: &str| File {
            hash: 0,
            members: Arc::new(file::parse(json).unwrap()),
        };
        let named = |address: &str, name: &str| {
            format!(r#"{{"targets": ["{address}"], "labels": {{"name": "{name}"}}}}"#)
        };
        let first = format!("[{}, {}]", named("b:1", "s1"), named("c:1", "s2"));
        let second = format!("[{}, {}]", named("d:1", "s2"), named("e:1", "s3"));
        let files = [("/x/1.json", first), ("/x/2.json", second)];
        let files = files.map(|(path, json)| (PathBuf::from(path), file(&json)));
        let lists = Lists {
            files: files.into(),
            ..Lists::default()
        };
        let members = lists.list_members(&config.groups[0]);
        let names: Vec<_> = members
            .iter()
            .map(|of| (&*of.host, of.given_name.as_deref()))
            .collect();
        let wanted = [
            ("b", None),
            ("c", Some("s2")),
            ("d", None),
            ("e", Some("s3")),
        ];
        assert_eq!(names, wanted);
    }

    #[test]
    fn trouble_is_news_when_it_changes() {
        let mut troubles = ListProblems::default();
        assert!(!troubles.note("x", None));
        assert!(troubles.note("x", Some("a".into())));
        assert!(!troubles.note("x", Some("a".into())));
        assert!(troubles.note("x", Some("b".into())));
        assert!(troubles.note("x", None));
        assert_eq!(troubles.trouble_of("x").failures, 2);
        assert_eq!(troubles.trouble_of("y").failures, 0);
    }
}
