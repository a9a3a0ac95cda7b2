//! Contents of the files that rules, their routes and groups name: answers, pages and users.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::auth::{self, UserFiles};
use crate::config::{self, Config, Problem, Rule};

/// Contents of files with answers, by their paths.
pub type Answers = HashMap<PathBuf, Arc<[u8]>>;

/// Contents of the files that rules, their routes and groups name.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Contents of files with answers.
    pub answers: Answers,
    /// Contents of files with users.
    pub users: UserFiles,
}

impl Files {
    /// True if rules, routes and groups name no files.
    pub(crate) fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.users.is_empty()
    }
}

/// Reads the files of rules, routes and groups. Users that are `known` stay if their files have not changed.
///
/// # Errors
///
/// All that cannot be used, with the places in the configuration.
pub fn load(config: &Config, known: &Files) -> Result<Files, Vec<Problem>> {
    let (mut answers, mut errors) = (Answers::new(), Vec::new());
    let of_groups = config
        .groups
        .iter()
        .flat_map(|group| group.responses.files());
    let of_rules = config.rules.iter().flat_map(Rule::answer_files);
    for file in of_rules.chain(of_groups) {
        if !answers.contains_key(&file.path) {
            match config::content_of(file) {
                Ok(content) => {
                    answers.insert(file.path.clone(), content);
                }
                Err(error) => errors.push(*error),
            }
        }
    }
    let users = auth::load_users(&config.rules, &known.users, &mut errors);
    match errors.is_empty() {
        true => Ok(Files { answers, users }),
        false => Err(errors),
    }
}
