//! The balancer's own program, which the demonstration and real runs start.

use std::path::{Path, PathBuf};

use crate::search_path::find_program;

/// File name of the program.
const NAME: &str = "evenkeel";

/// Finds the program: beside the file of this process, else in PATH. The error says where it was looked for.
pub fn find() -> Result<PathBuf, String> {
    let own = std::env::current_exe().ok();
    let beside = own
        .as_deref()
        .and_then(Path::parent)
        .map(|folder| folder.join(NAME));
    find_in(beside, find_program(NAME))
}

fn find_in(beside: Option<PathBuf>, in_path: Option<PathBuf>) -> Result<PathBuf, String> {
    if let Some(file) = beside.iter().find(|file| file.is_file()) {
        return Ok(file.clone());
    }
    in_path.ok_or_else(|| {
        let looked = beside.map_or_else(String::new, |file| format!("as {} or ", file.display()));
        format!(
            "cannot find the program {NAME} {looked}in PATH: install the package evenkeel-bin, or build it with `make build` \
             and put its folder into PATH"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_beside_this_one_goes_before_the_one_in_path() {
        // Any two files that are there.
        let [one, other] = ["Cargo.toml", "src/lib.rs"]
            .map(|name| Path::new(env!("CARGO_MANIFEST_DIR")).join(name));
        let none = PathBuf::from("/none/evenkeel");
        let found = find_in(Some(one.clone()), Some(other.clone()));
        assert_eq!(found, Ok(one));
        assert_eq!(
            find_in(Some(none.clone()), Some(other.clone())),
            Ok(other.clone())
        );
        assert_eq!(find_in(None, Some(other.clone())), Ok(other));
        let error = find_in(Some(none), None).unwrap_err();
        for part in ["as /none/evenkeel or in PATH", "evenkeel-bin", "make build"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
