//! No file of a crate imports from another one that imports from it, directly or by others: who
//! reads a file knows which others there are to read first, and that there is a first.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::Path;

/// Place of a module in its crate: `["group", "view"]`; the root is empty.
type Name = Vec<String>;

/// Names in a file that belong to other files, without its comments and tests.
struct Module {
    /// The modules that it declares.
    children: BTreeSet<String>,
    /// The paths that it names which may lead to other files of its crate.
    named: BTreeSet<Name>,
    /// Names that others can import from the module and that are not its own: each name there, and
    /// what it stands for.
    exports: BTreeMap<String, Name>,
}

/// The code of a file, in words and signs: no comments, and nothing from its tests on.
fn tokens(text: &str) -> Vec<&str> {
    let tests = ["mod tests {", "pub(crate) mod tests {"].into_iter();
    let end = tests.filter_map(|tests| text.find(&format!("#[cfg(test)]\n{tests}")));
    let end = end.min();
    let mut tokens = Vec::new();
    for line in text[..end.unwrap_or(text.len())].lines() {
        let mut rest = line.split("//").next().unwrap().trim_start();
        while let Some(first) = rest.chars().next() {
            let is_name = |c: char| c.is_alphanumeric() || c == '_';
            let length = match rest.find(|c| !is_name(c)).unwrap_or(rest.len()) {
                0 if rest.starts_with("::") => 2,
                0 => first.len_utf8(),
                length => length,
            };
            let (token, after) = rest.split_at(length);
            tokens.push(token);
            rest = after.trim_start();
        }
    }
    tokens
}

/// The paths that begin with `path` and go on with `tokens`, and the name that each has then: of
/// `a::{b, c::d as e}` these are `a::b` and `a::c::d`, which is called `e`.
fn paths(mut path: Name, tokens: &mut &[&str], found: &mut Vec<(Name, String)>) {
    while let [token, rest @ ..] = *tokens {
        *tokens = rest;
        if *token == "{" {
            while let [next, rest @ ..] = *tokens {
                match *next {
                    "}" => return *tokens = rest,
                    "," => *tokens = rest,
                    _ => paths(path.clone(), tokens, found),
                }
            }
        }
        // `self` at the end of a path is that itself.
        if *token != "self" || path.is_empty() {
            path.push((*token).to_owned());
        }
        match *tokens {
            ["::", rest @ ..] => *tokens = rest,
            ["as", name, rest @ ..] => {
                *tokens = rest;
                return found.push((path, (*name).to_owned()));
            }
            _ => break,
        }
    }
    let name = path.last().cloned().unwrap_or_default();
    found.push((path, name));
}

impl Module {
    fn new(text: &str) -> Self {
        let tokens = tokens(text);
        let declared = tokens.windows(3).filter(|w| w[0] == "mod" && w[2] == ";");
        let children: BTreeSet<String> = declared.map(|w| w[1].to_owned()).collect();
        let (mut named, mut exported) = (Vec::new(), Vec::new());
        let (mut before, mut rest) = ("", &tokens[..]);
        while let [first, next, ..] = rest[..] {
            let is_own = matches!(first, "crate" | "super" | "self") || children.contains(first);
            if first == "use" && before == "pub" {
                let mut tree = &rest[1..];
                paths(Name::new(), &mut tree, &mut exported);
            }
            before = first;
            if is_own && next == "::" {
                paths(Name::new(), &mut rest, &mut named);
            } else {
                rest = &rest[1..];
            }
        }
        Module {
            children,
            named: named.into_iter().map(|(path, _)| path).collect(),
            exports: exported
                .into_iter()
                .map(|(path, name)| (name, path))
                .collect(),
        }
    }
}

/// The module that has what `path` names, as `from` says it; `None` is another crate.
fn owner(modules: &BTreeMap<Name, Module>, from: &Name, path: &Name) -> Option<Name> {
    let mut path = VecDeque::from(path.clone());
    let mut at = from.clone();
    match path.front().map(String::as_str) {
        Some("crate") => (at, _) = (Name::new(), path.pop_front()),
        Some("self") => drop(path.pop_front()),
        Some("super") => {}
        Some(first) if modules[&at].children.contains(first) => {}
        _ => return None,
    }
    while let Some(name) = path.pop_front() {
        // A module that has no file of its own stands in the file that declares it.
        let Some(module) = modules.get(&at) else {
            at.pop();
            break;
        };
        if name == "super" {
            at.pop();
        } else if module.children.contains(&name) {
            at.push(name);
        } else if let Some(stands_for) = module.exports.get(&name) {
            let whole = stands_for.iter().cloned().chain(path).collect();
            return owner(modules, &at, &whole);
        } else {
            break;
        }
    }
    while !modules.contains_key(&at) && at.pop().is_some() {}
    Some(at)
}

fn read(folder: &Path, name: &Name, modules: &mut BTreeMap<Name, Module>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let mut name = name.clone();
        let is_root = match stem {
            "lib" | "mod" => true,
            "main" => !folder.join("lib.rs").exists(),
            _ => false,
        };
        if !is_root {
            name.push(stem.to_owned());
        }
        // Programs in `bin` are crates of their own.
        if matches!(stem, "tests" | "bin") {
            continue;
        }
        if path.is_dir() {
            read(&path, &name, modules);
        } else {
            modules.insert(name, Module::new(&fs::read_to_string(&path).unwrap()));
        }
    }
}

/// A way from `start` back to it.
fn circle(imports: &BTreeMap<Name, BTreeSet<Name>>, start: &Name) -> Option<Vec<String>> {
    let mut came_from = BTreeMap::new();
    let mut next = VecDeque::from([start]);
    while let Some(at) = next.pop_front() {
        for to in &imports[at] {
            came_from.entry(to).or_insert_with(|| {
                next.push_back(to);
                at
            });
        }
    }
    let mut way = vec![start.join("::")];
    let mut at = *came_from.get(start)?;
    while at != start {
        way.push(at.join("::"));
        at = came_from[at];
    }
    way.reverse();
    Some(way)
}

#[test]
fn files_do_not_import_in_circles() {
    let mut circles = BTreeSet::new();
    let mut has_imports = false;
    for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let folder = format!("{}/../{name}/src", env!("CARGO_MANIFEST_DIR"));
        let mut modules = BTreeMap::new();
        read(Path::new(&folder), &Name::new(), &mut modules);
        let imports = |(from, module): (&Name, &Module)| {
            let to = module
                .named
                .iter()
                .filter_map(|path| owner(&modules, from, path));
            (from.clone(), to.filter(|to| to != from).collect())
        };
        let imports: BTreeMap<Name, BTreeSet<Name>> = modules.iter().map(imports).collect();
        has_imports |= imports.values().any(|to| !to.is_empty());
        for start in imports.keys() {
            if let Some(circle) = circle(&imports, start) {
                circles.insert(format!("{name}: {}", circle.join(" <- ")));
            }
        }
    }
    assert!(has_imports);
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn paths_are_read_as_they_are_meant() {
    let text = "use super::kind::{self, Kind as K, a::{B, C}};\npub use self::x::Y;\nmod x;\n\
        // crate::comment\nfn f() -> crate::z::Z { x::g() }\n#[cfg(test)]\nmod tests {\n crate::t";
    let module = Module::new(text);
    let named: BTreeSet<String> = module.named.iter().map(|path| path.join("::")).collect();
    let paths = [
        "super::kind",
        "super::kind::Kind",
        "super::kind::a::B",
        "super::kind::a::C",
        "self::x::Y",
        "crate::z::Z",
        "x::g",
    ];
    assert_eq!(named, paths.map(str::to_owned).into());
    assert_eq!(module.exports["Y"], ["self", "x", "Y"]);
}
