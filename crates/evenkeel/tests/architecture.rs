//! The map in `ARCHITECTURE.md` says which crates each crate may touch, and is right.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The crates that each crate depends on, by the names of their folders; without tests' own.
type Dependencies = BTreeMap<String, BTreeSet<String>>;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The names in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Rooms with a manifest of their own beside `crates/`.
const WORKBENCH: [&str; 4] = ["counts", "e2e", "bench", "fuzz"];

/// Rows `| crates/NAME | what is inside | what it may touch |` of the table of rooms, and the rows of the workbench.
fn on_the_map() -> Dependencies {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut rows = Dependencies::new();
    for line in map.lines() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, folder, _, touches, _] = cells[..] else {
            continue;
        };
        let folder = quoted(folder).next().unwrap_or_default();
        let of_workbench = WORKBENCH.contains(&folder).then_some(folder);
        let Some(name) = folder.strip_prefix("crates/").or(of_workbench) else {
            continue;
        };
        rows.insert(name.into(), quoted(touches).map(str::to_owned).collect());
    }
    rows
}

/// Returns the dependencies that the manifests say.
fn in_the_manifests() -> Dependencies {
    let crates = fs::read_dir(root().join("crates")).unwrap();
    let crates = crates.map(|entry| entry.unwrap().path());
    let workbench = WORKBENCH.map(|name| root().join(name));
    crates
        .chain(workbench)
        .map(|folder| {
            let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
            let mut section = "";
            let mut touches = BTreeSet::new();
            for line in manifest.lines() {
                if line.starts_with('[') {
                    section = line;
                }
                let name = line.strip_prefix("evenkeel-").unwrap_or_default();
                let end = name.find(['.', ' ', '=']).unwrap_or(0);
                if section == "[dependencies]" && end > 0 {
                    touches.insert(name[..end].to_owned());
                }
            }
            let name = folder.file_name().unwrap().to_str().unwrap();
            (name.to_owned(), touches)
        })
        .collect()
}

#[test]
fn the_map_says_what_each_crate_touches() {
    let (map, manifests) = (on_the_map(), in_the_manifests());
    let names = |of: &Dependencies| of.keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        names(&map),
        names(&manifests),
        "rows, and folders in crates/ and of the workbench"
    );
    for (name, touches) in &manifests {
        assert_eq!(&map[name], touches, "what {name} may touch");
    }
}

#[test]
fn a_crate_depends_on_what_stands_above_it() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let position = |name: &str| {
        let room = match WORKBENCH.contains(&name) {
            true => name.to_owned(),
            false => format!("crates/{name}"),
        };
        map.find(&format!("| `{room}` |")).unwrap()
    };
    for (name, touches) in in_the_manifests() {
        for other in touches {
            assert!(
                position(&other) < position(&name),
                "{name} stands above {other}"
            );
        }
    }
}

#[test]
fn the_page_of_fuzzing_names_each_target() {
    let read = |name: &str| fs::read_to_string(root().join("fuzz").join(name)).unwrap();
    let (manifest, page) = (read("Cargo.toml"), read("README.md"));
    let targets = manifest.split("[[bin]]\nname = \"").skip(1);
    let targets: Vec<&str> = targets
        .filter_map(|table| table.split('"').next())
        .collect();
    assert!(targets.len() > 30, "{targets:?}");
    for target in targets {
        assert!(page.contains(&format!("`{target}`")), "{target}");
    }
}

/// `SECURITY.md` says which crates may index in what others send.
#[test]
fn crates_that_read_what_others_send_deny_indexing_but_for_those_that_are_named() {
    // They use no socket themselves, or are on the client's side of the workbench.
    let reads_nothing = [
        "command", "console", "demo", "evenkeel", "lab", "limits", "sim",
    ];
    let pure = ["control", "core"];
    let lacks: BTreeSet<String> = in_the_manifests()
        .into_keys()
        .filter(|name| !WORKBENCH.contains(&&**name))
        .filter(|name| ![&reads_nothing[..], &pure].concat().contains(&&**name))
        .filter(|name| {
            let code = root().join("crates").join(name).join("src/lib.rs");
            let code = fs::read_to_string(code).unwrap();
            !code.contains("deny(clippy::indexing_slicing)")
        })
        .collect();
    let page = fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let said = page
        .split("deny indexing by lint in all crates")
        .nth(1)
        .unwrap();
    let said = said.split('|').next().unwrap();
    let said: BTreeSet<String> = quoted(said).map(str::to_owned).collect();
    assert_eq!(said, lacks, "crates without the lint");
}

/// A balancer's build has nothing of the workbench in it.
#[test]
fn the_product_needs_nothing_of_the_workbench() {
    let manifests = in_the_manifests();
    let (mut needed, mut next) = (BTreeSet::new(), vec!["evenkeel".to_owned()]);
    while let Some(name) = next.pop() {
        if needed.insert(name.clone()) {
            next.extend(manifests[&name].iter().cloned());
        }
    }
    assert!(needed.contains("core") && needed.contains("proxy"));
    for name in ["lab", "load", "demo"].into_iter().chain(WORKBENCH) {
        assert!(!needed.contains(name), "evenkeel needs {name}");
    }
}

/// Manifests with `doctest = false` save the time in which an empty list of examples is made.
#[test]
fn crates_whose_examples_are_not_tested_have_none() {
    let folders = fs::read_dir(root().join("crates")).unwrap();
    let folders = folders.map(|entry| entry.unwrap().path());
    for folder in folders.chain(WORKBENCH.map(|name| root().join(name))) {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        if !manifest.contains("\ndoctest = false\n") {
            continue;
        }
        let mut waiting = vec![folder.join("src")];
        while let Some(path) = waiting.pop() {
            if path.is_dir() {
                waiting.extend(
                    fs::read_dir(&path)
                        .unwrap()
                        .map(|entry| entry.unwrap().path()),
                );
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let example = find_example(&fs::read_to_string(&path).unwrap());
                assert_eq!(
                    example,
                    None,
                    "{}: take `doctest = false` out of the manifest",
                    path.display()
                );
            }
        }
    }
}

/// The number of the line where an example begins that rustdoc would compile.
fn find_example(source: &str) -> Option<usize> {
    let mut inside = false;
    for (index, line) in source.lines().enumerate() {
        let line = line.trim_start();
        let Some(text) = line
            .strip_prefix("//")
            .and_then(|rest| rest.strip_prefix(['/', '!']))
        else {
            continue;
        };
        let Some(language) = text.trim_start().strip_prefix("```") else {
            continue;
        };
        if !inside
            && matches!(
                language,
                "" | "rust" | "no_run" | "should_panic" | "compile_fail"
            )
        {
            return Some(index + 1);
        }
        inside = !inside;
    }
    None
}

#[test]
fn examples_are_found_in_documentation() {
    let text = "/// ```text\n/// GET /\n/// ```\nfn a() {}\n";
    assert_eq!(find_example(text), None);
    assert_eq!(find_example(&format!("{text}    //! ```\n")), Some(5));
    assert_eq!(find_example("/// ```no_run\n"), Some(1));
}
