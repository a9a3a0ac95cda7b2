//! Files and functions of the product stay small: a file is cut by idea before it is too long to read.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::fs;
use std::path::{Path, PathBuf};

/// Most bytes of a file, without its tests.
const MAX_FILE: usize = 25_000;

/// Most lines of a function that is short enough to read at once.
const MAX_LINES: usize = 80;

/// Most functions in a thousand that may be longer.
const MAX_LONG_SHARE: usize = 5;

/// Crates of the workbench.
const WORKBENCH: [&str; 3] = ["lab", "load", "demo"];

/// A file of the product, without its tests.
struct Source {
    path: PathBuf,
    text: String,
}

/// A function, by its place and length.
struct Function {
    place: String,
    lines: usize,
}

fn read_folder(folder: &Path, found: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let is_of_tests = name.starts_with("test") || name.ends_with("_tests");
        if path.is_dir() && !is_of_tests {
            read_folder(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") && !is_of_tests {
            let mut text = fs::read_to_string(&path).unwrap();
            text.truncate(tests_begin(&text));
            found.push(Source { path, text });
        }
    }
}

/// Offset of a file's tests, or of its end.
fn tests_begin(text: &str) -> usize {
    let modules = ["mod ", "pub(crate) mod ", "pub(super) mod "];
    let tests = text.match_indices("#[cfg(test)]\n").map(|(at, _)| at);
    let mut tests = tests.filter(|at| {
        let module = &text[at + "#[cfg(test)]\n".len()..];
        let line = module.lines().next().unwrap_or_default();
        line.ends_with('{') && modules.iter().any(|begin| line.starts_with(begin))
    });
    tests.next().unwrap_or(text.len())
}

fn product() -> Vec<Source> {
    let crates = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut found = Vec::new();
    for entry in fs::read_dir(crates).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap();
        if !WORKBENCH.contains(&name) {
            read_folder(&folder.join("src"), &mut found);
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Name of the function that begins in a line.
fn function_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    if let Some(public) = rest.strip_prefix("pub") {
        rest = match public.strip_prefix('(') {
            Some(scope) => scope.split_once(')')?.1,
            None => public,
        };
        rest = rest.strip_prefix(' ')?;
    }
    for word in ["const ", "async ", "unsafe ", "extern \"C\" "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let name = rest.strip_prefix("fn ")?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()
}

/// Functions with a body, also those within others.
fn functions(source: &Source) -> Vec<Function> {
    let lines: Vec<&str> = source.text.lines().collect();
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else {
            continue;
        };
        let indent = &line[..line.len() - line.trim_start().len()];
        let rest = &lines[number..];
        let has_end = |line: &&str| line.ends_with(['{', '}', ';']);
        let head = rest.iter().position(has_end).unwrap_or(0);
        let length = match rest[head].chars().next_back() {
            Some('{') => {
                let close = format!("{indent}}}");
                let end = rest.iter().position(|line| line.starts_with(&close));
                end.unwrap_or(0) + 1
            }
            Some('}') => head + 1,
            _ => continue,
        };
        found.push(Function {
            place: format!("{}:{}: {name}", source.path.display(), number + 1),
            lines: length,
        });
    }
    found
}

#[test]
fn no_file_is_too_long_to_read() {
    let sources = product();
    assert!(sources.len() > 500, "{}", sources.len());
    let long = sources.iter().filter(|file| file.text.len() > MAX_FILE);
    let long: Vec<String> = long
        .map(|file| format!("{}: {} bytes", file.path.display(), file.text.len()))
        .collect();
    assert!(
        long.is_empty(),
        "cut these files by idea, to at most {MAX_FILE} bytes without tests: {long:#?}"
    );
}

#[test]
fn few_functions_are_longer_than_a_screen() {
    let all: Vec<Function> = product().iter().flat_map(functions).collect();
    assert!(all.len() > 8_000, "{}", all.len());
    let mut long: Vec<&Function> = { all.iter() }
        .filter(|function| function.lines > MAX_LINES)
        .collect();
    long.sort_by_key(|function| std::cmp::Reverse(function.lines));
    let shown: Vec<String> = { long.iter() }
        .map(|function| format!("{} lines: {}", function.lines, function.place))
        .collect();
    assert!(
        long.len() * 1000 < all.len() * MAX_LONG_SHARE,
        "{} of {} functions are longer than {MAX_LINES} lines, which is {MAX_LONG_SHARE} or more in a thousand: \
         cut some into steps with names: {shown:#?}",
        long.len(),
        all.len()
    );
}

#[test]
fn lengths_are_counted_as_they_are_read() {
    let text = "fn a() {\n    1\n}\n\ntrait T {\n    fn b(\n        &self,\n    );\n\n    \
                pub(crate) async fn c(\n        x: u8,\n    )\n    where\n        u8: Copy,\n    {\n    }\n    fn d() {}\n}\n";
    let source = Source {
        path: "x.rs".into(),
        text: text.into(),
    };
    let found: Vec<_> = { functions(&source).into_iter() }
        .map(|function| (function.place, function.lines))
        .collect();
    let wanted = [("x.rs:1: a", 3), ("x.rs:10: c", 7), ("x.rs:17: d", 1)];
    assert_eq!(
        found,
        wanted.map(|(place, lines)| (place.to_owned(), lines))
    );
    assert_eq!(tests_begin("a\n#[cfg(test)]\nmod tests;\nb"), 27);
    assert_eq!(tests_begin("a\n#[cfg(test)]\npub(crate) mod tests {\n"), 2);
}
