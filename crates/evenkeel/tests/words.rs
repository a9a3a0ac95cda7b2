//! Plain words, as far as they can be counted: doc comments and names of functions that say what they are about,
//! and a manual that speaks to you. No doc comment leaves its noun out; the other limits below are lowered with each mend.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::fs;
use std::path::{Path, PathBuf};

/// First words of doc comments that leave the noun out.
const RIDDLES: [&str; 26] = [
    "What", "Whether", "Who", "Whom", "Whose", "Where", "When", "Why", "How", "It", "Its", "As",
    "So", "Those", "These", "This", "That", "They", "One", "Ones", "Same", "Such", "Also", "See",
    "Which", "Their",
];

/// Names of one word that need no object: conventions of the language and its libraries.
const CONVENTIONS: [&str; 48] = [
    "new", "default", "len", "get", "set", "push", "pop", "insert", "remove", "contains", "clear",
    "iter", "next", "poll", "drop", "clone", "fmt", "from", "into", "parse", "main", "run",
    "start", "stop", "take", "replace", "find", "min", "max", "sum", "name", "id", "address",
    "port", "status", "body", "text", "bytes", "entries", "keys", "values", "total", "count",
    "start_at", "write", "read", "flush", "close",
];

/// Largest share of public functions with a name of one word beside these, in per cent.
const ONE_WORD_NAMES: f64 = 20.0;

/// Pronouns in 1,000 words of the manual at most, and how often it says "you" at least.
const PRONOUNS: f64 = 20.8;
const YOU: f64 = 16.2;

/// Most words of a sentence of the manual.
const LONGEST_SENTENCE: usize = 40;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Files below a folder with this ending, in order.
fn list_files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(list_files(&path, ending));
        } else if path.extension().is_some_and(|known| known == ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Folders with code, and the files of each.
fn list_folders() -> Vec<(String, Vec<PathBuf>)> {
    let crates = fs::read_dir(root().join("crates")).unwrap();
    let crates = crates.map(|entry| entry.unwrap().path());
    let others = ["e2e", "bench", "counts"].map(|name| root().join(name));
    let mut folders: Vec<_> = crates
        .chain(others)
        .map(|folder| {
            let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
            let files = list_files(&folder, "rs");
            (name, files)
        })
        .collect();
    folders.sort();
    folders
}

/// First lines of the doc comments of a file.
fn first_lines(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut before = "";
    for line in text.lines().map(str::trim_start) {
        let kind = ["///", "//!"]
            .into_iter()
            .find(|kind| line.starts_with(kind));
        let kind = kind.unwrap_or_default();
        if !kind.is_empty() && kind != before {
            found.push(line[3..].trim());
        }
        before = kind;
    }
    found
}

/// The first word of a sentence, without the signs around it.
fn first_word(sentence: &str) -> &str {
    let word = sentence.split(' ').next().unwrap_or_default();
    word.trim_matches(|sign: char| !sign.is_alphanumeric())
}

fn is_riddle(line: &str) -> bool {
    RIDDLES.contains(&first_word(line))
        || line.starts_with("The same")
        || line.split_whitespace().count() < 2
}

#[test]
fn doc_comments_name_their_nouns() {
    let (mut riddles, mut all) = (Vec::new(), 0);
    for (_, files) in list_folders() {
        for path in files {
            let text = fs::read_to_string(&path).unwrap();
            let lines = first_lines(&text);
            all += lines.len();
            let of_file = lines.into_iter().filter(|line| is_riddle(line));
            riddles.extend(of_file.map(|line| format!("{}: {line}", path.display())));
        }
    }
    assert!(
        riddles.is_empty(),
        "doc comments begin with a noun phrase or a verb ({} of {all} do not):\n{}",
        riddles.len(),
        riddles.join("\n")
    );
}

/// Names of the public functions of a file.
fn public_functions(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let line = line.trim_start();
        let rest = line.strip_prefix("pub ").or_else(|| {
            let (scope, rest) = line.strip_prefix("pub(")?.split_once(") ")?;
            (!scope.is_empty()).then_some(rest)
        })?;
        let rest = rest
            .trim_start_matches("const ")
            .trim_start_matches("async ");
        let name = rest.trim_start_matches("unsafe ").strip_prefix("fn ")?;
        name.split(['(', '<']).next()
    })
}

#[test]
fn public_functions_say_what_they_are_about() {
    let (mut one_word, mut all) = (0, 0);
    for (_, files) in list_folders() {
        for path in files {
            let text = fs::read_to_string(&path).unwrap();
            for name in public_functions(&text) {
                all += 1;
                let is_bare = !name.contains('_') && !CONVENTIONS.contains(&name);
                one_word += usize::from(is_bare);
            }
        }
    }
    let share = one_word as f64 * 100.0 / all as f64;
    assert!(
        share <= ONE_WORD_NAMES,
        "{share:.2} % of {all} public functions have a name of one word, {ONE_WORD_NAMES} % at most: say what it is about, as in `read_route`"
    );
}

/// The sentences of a page, without code, tables, titles and comments.
fn sentences(page: &str) -> Vec<String> {
    let (mut is_code, mut paragraph, mut found) = (false, String::new(), Vec::new());
    for line in page.lines().chain([""]) {
        let line = line.trim();
        if line.starts_with("```") {
            is_code = !is_code;
        }
        let is_text = !is_code
            && !line.is_empty()
            && !line.starts_with(['|', '#', '!'])
            && !line.starts_with("```")
            && !line.starts_with("<!--");
        if is_text && !line.starts_with("- ") {
            paragraph += line;
            paragraph.push(' ');
            continue;
        }
        let ends = |text: &str| {
            text.split_inclusive([':', '.', ';', '?'])
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        found.extend(ends(&std::mem::take(&mut paragraph)));
        if is_text {
            paragraph = line[2..].to_owned() + " ";
        }
    }
    found
}

fn words(sentence: &str) -> impl Iterator<Item = String> + '_ {
    sentence
        .split_whitespace()
        .filter(|word| !word.contains('`'))
        .map(|word| {
            word.trim_matches(|sign: char| !sign.is_alphanumeric())
                .to_lowercase()
        })
        .filter(|word| word.chars().next().is_some_and(char::is_alphabetic))
}

#[test]
fn the_manual_speaks_to_you() {
    const PRONOUN: [&str; 17] = [
        "it", "its", "they", "them", "their", "this", "that", "these", "those", "one", "ones",
        "who", "whom", "whose", "what", "such", "itself",
    ];
    let docs = list_files(&root().join("docs"), "md");
    // Notes for those who work here.
    let docs = docs.into_iter().filter(|path| {
        let path = path.to_str().unwrap();
        !path.ends_with("roadmap.md") && !path.contains("/design/")
    });
    let (mut all, mut pronouns, mut you, mut long) = (0.0, 0.0, 0.0, Vec::new());
    for path in docs {
        for sentence in sentences(&fs::read_to_string(&path).unwrap()) {
            let mut length = 0;
            for word in words(&sentence) {
                length += 1;
                all += 1.0;
                pronouns += f64::from(u8::from(PRONOUN.contains(&word.as_str())));
                you += f64::from(u8::from(["you", "your", "yours"].contains(&word.as_str())));
            }
            if length > LONGEST_SENTENCE {
                long.push(format!("{}: {sentence}", path.display()));
            }
        }
    }
    let (pronouns, you) = (pronouns * 1000.0 / all, you * 1000.0 / all);
    assert!(
        pronouns <= PRONOUNS,
        "{pronouns:.2} pronouns in 1,000 words of the manual, {PRONOUNS} at most: repeat the noun"
    );
    assert!(
        you >= YOU,
        "the manual says \"you\" {you:.2} times in 1,000 words, {YOU} at least"
    );
    assert!(
        long.is_empty(),
        "these sentences have more than {LONGEST_SENTENCE} words:\n{}",
        long.join("\n")
    );
}

#[test]
fn riddles_and_sentences_are_found() {
    let text = "/// Whether it is.\n/// More.\nfn a() {}\n\n    /// Number of bytes.\n    pub fn len() {}\n//! What.\n";
    assert_eq!(
        first_lines(text),
        ["Whether it is.", "Number of bytes.", "What."]
    );
    assert!(is_riddle("Whether it is.") && is_riddle("Name") && is_riddle("`What` is"));
    assert!(is_riddle("See there.") && is_riddle("See [`Queue`].") && is_riddle("The same of it."));
    assert!(!is_riddle("Number of bytes.") && !is_riddle("Iterator over members."));
    let names =
        "pub fn a() {}\n  pub(crate) async fn b_c<T>() {}\nfn d() {}\npub const fn e() {}\n";
    let found: Vec<_> = public_functions(names).collect();
    assert_eq!(found, ["a", "b_c", "e"]);
    let page = "# Title of it\n\nA group has members. Set\n`weight` of a member.\n\n- One. Two.\n\n| it | it |\n\n```sh\nit\n```\n";
    let found: Vec<Vec<String>> = sentences(page)
        .iter()
        .map(|sentence| words(sentence).collect())
        .collect();
    let found: Vec<_> = found
        .into_iter()
        .filter(|words| !words.is_empty())
        .collect();
    assert_eq!(
        found,
        [
            vec!["a", "group", "has", "members"],
            vec!["set", "of", "a", "member"],
            vec!["one"],
            vec!["two"]
        ]
    );
}
