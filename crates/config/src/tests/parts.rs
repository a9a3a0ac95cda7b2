//! Configurations of several files, and with environment variables.

use std::fs;
use std::path::Path;

use super::scratch_folder;
use crate::edit::{self, Edit, Part};
use crate::model::parse::parse_reading;
use crate::schema::table::Reading;
use crate::schema::variables::tests::few_variables;
use crate::{Config, Errors, parse};

fn with_variables(text: &str) -> Result<Config, Errors> {
    let with = Reading {
        variables: &few_variables,
        ..Reading::default()
    };
    parse_reading("t", text, with)
}

fn rule(name: &str, port: u16) -> String {
    format!("[rule.{name}]\nlisten = \"127.0.0.1:{port}\"\nmembers = [\"127.0.0.1:1\"]\n")
}

/// A main file with this text, and others in `conf.d` beside it.
fn files(name: &str, main: &str, others: &[(&str, &str)]) -> (std::path::PathBuf, String) {
    let folder = scratch_folder(name);
    fs::create_dir_all(folder.join("conf.d")).unwrap();
    for (name, text) in others {
        fs::write(folder.join("conf.d").join(name), text).unwrap();
    }
    let file = folder.join("evenkeel.toml").display().to_string();
    fs::write(&file, main).unwrap();
    (folder, file)
}

const ALL: &str = "include = [\"conf.d/*.toml\"]\n";

#[test]
fn included_files_add_rules_groups_and_sections() {
    let main = format!("{ALL}{}", rule("main", 1000));
    let b = format!("workers = 3\n[dns]\nmin_ttl = \"9s\"\n{}", rule("b", 1002));
    let (folder, file) = files(
        "parts-add",
        &main,
        &[
            ("b.toml", &b),
            ("a.toml", &rule("a", 1001)),
            (".hidden.toml", "nonsense"),
            ("a.toml~", "nonsense"),
        ],
    );
    let config = parse(&file, &main).unwrap_or_else(|errors| panic!("{errors}"));
    let names: Vec<&str> = config.rules.iter().map(|rule| &*rule.name).collect();
    assert_eq!(names, ["main", "a", "b"], "in the order of the files");
    assert_eq!(config.workers, Some(3));
    let parts = ["conf.d/a.toml", "conf.d/b.toml"].map(|name| folder.join(name));
    assert_eq!(config.included, parts);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_is_wrong_names_the_file_and_line_where_it_stands() {
    let main = format!("workers = 0\n{ALL}{}", rule("main", 1000));
    let a = "# one\n\n[rule.a]\nlisten = 80\nmembers = [\"127.0.0.1:1\"]\n";
    let b = "[rule.b]\nlisten = \"127.0.0.1:1002\"\nmembers = [\"127.0.0.1:1\"\n";
    let c = "\n[rule.c]\nlisten = \"127.0.0.1:1003\"\nmembers = [\"127.0.0.1:1\"]\nnonsense = 1\n";
    let (folder, file) = files(
        "parts-wrong",
        &main,
        &[("a.toml", a), ("b.toml", b), ("c.toml", c)],
    );
    let errors = parse(&file, &main).unwrap_err();
    let found: Vec<(String, usize, usize, String)> = errors
        .problems
        .iter()
        .map(|problem| {
            let name = Path::new(&problem.file).file_name().unwrap();
            let name = name.to_string_lossy().into_owned();
            (name, problem.line, problem.column, problem.key.clone())
        })
        .collect();
    let wanted = [
        ("evenkeel.toml", 1, 11, "workers"),
        ("a.toml", 4, 10, "rule.a.listen"),
        ("b.toml", 3, 11, ""),
    ];
    let wanted = wanted.map(|(name, line, column, key)| (name.into(), line, column, key.into()));
    assert_eq!(found, wanted, "{errors}");
    // Once the list is closed, what follows is read.
    fs::write(folder.join("conf.d/b.toml"), format!("{}]\n", b.trim_end())).unwrap();
    let errors = parse(&file, &main).unwrap_err().to_string();
    assert!(errors.contains("c.toml:5:1: rule.c.nonsense"), "{errors}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_stands_twice_is_told_with_both_places() {
    let main = format!("{ALL}[dns]\n\n{}", rule("web", 1000));
    let a = format!("\n{}[dns]\n", rule("web", 1001));
    let b = rule("web", 1002);
    let (folder, file) = files("parts-twice", &main, &[("a.toml", &a), ("b.toml", &b)]);
    let errors = parse(&file, &main).unwrap_err();
    let texts: Vec<String> = errors.problems.iter().map(ToString::to_string).collect();
    let place = |name: &str| folder.join(name).display().to_string();
    let first = |line| format!("stands in {file}, line {line}, already: keep one of the two");
    let wanted = [
        format!("{}:2:7: rule.web: {}", place("conf.d/a.toml"), first(4)),
        format!("{}:5:2: dns: {}", place("conf.d/a.toml"), first(2)),
        format!("{}:1:7: rule.web: {}", place("conf.d/b.toml"), first(4)),
    ];
    assert_eq!(texts, wanted);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_cannot_be_included_is_told_where_it_is_asked_for() {
    let main =
        "include = [\"nowhere/*.toml\", \"conf.d/none.toml\", \"*.toml\", 7, \"conf.d/*.toml\"]\n";
    let (folder, file) = files(
        "parts-none",
        main,
        &[("deeper.toml", "include = \"x\"\n"), ("bad.toml", "a = \n")],
    );
    let errors = parse(&file, main).unwrap_err();
    let texts: Vec<String> = errors.problems.iter().map(ToString::to_string).collect();
    for (text, words) in texts.iter().zip([
        [
            "evenkeel.toml:1:30: include[1]: ",
            "none.toml: cannot be read",
        ],
        ["include[2]: ", "cannot include itself"],
        ["include[3]: ", "wrong type"],
        ["bad.toml:1:5: ", "missing"],
        ["deeper.toml:1:1: include: ", "cannot include others"],
    ]) {
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }
    assert_eq!(texts.len(), 5, "{errors}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn edits_of_what_an_included_file_says_are_refused_with_its_place() {
    let main = format!("{ALL}# kept\n[admin]\nenabled = true\n");
    let a = format!("\n{}[dns]\n", rule("web", 1001));
    let (folder, file) = files("parts-edit", &main, &[("a.toml", &a)]);
    let path = |names: &[&str]| {
        names
            .iter()
            .map(|name| Part::from(*name))
            .collect::<Vec<_>>()
    };
    let set = |names: &[&str], value: serde_json::Value| Edit::Set {
        path: path(names),
        value,
    };
    let file = Path::new(&file);
    for edit in [
        set(&["rule", "web", "listen"], "127.0.0.1:1".into()),
        set(&["dns", "min_ttl"], "1s".into()),
        Edit::Remove {
            path: path(&["rule", "web"]),
        },
        Edit::Rename {
            path: path(&["rule", "web"]),
            to: "other".into(),
        },
    ] {
        let error = edit::apply_in(file, &main, &[edit]).unwrap_err();
        assert!(error.why.contains("conf.d/a.toml, line "), "{error}");
    }
    let new = [set(&["rule", "new", "listen"], "127.0.0.1:2".into())];
    let text = edit::apply_in(file, &main, &new).unwrap();
    assert!(
        text.contains("# kept") && text.contains("[rule.new]"),
        "{text}"
    );
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn variables_fill_texts_numbers_times_and_truth_values() {
    let config = with_variables(
        "workers = \"${NONE:-2}\"\nshutdown_grace = \"${NONE:-9}s\"\n[admin]\nenabled = \"${OFF}\"\n\
         token = \"a-token-with-${PORT}\"\n\
         [group.app]\nmembers = [\"${HOST}:${PORT}\", { address = \"b:1\", weight = \"${NONE:-2.5}\" }]\n\
         strategy = { name = \"peak_ewma\", choices = \"${NONE:-3}\" }\nhealth_check = \"${OFF}\"\n\
         [rule.web]\nlisten = \"127.0.0.1:${PORT}\"\ngroup = \"app\"\n",
    );
    let config = config.unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.workers, Some(2));
    assert_eq!(config.shutdown_grace.as_secs(), 9);
    assert!(config.admin.is_none());
    let members = &config.groups[0].members;
    assert_eq!(members[0].name(), "10.0.0.1:8080");
    assert_eq!(members[1].weight.get(), 2.5);
    assert!(config.groups[0].health_check.is_none());
}

/// A text stays one where the key takes texts, though it looks like a number.
#[test]
fn the_key_decides_what_a_variable_is() {
    let text = "[admin]\ntoken = \"${PORT}${PORT}\"\n";
    let config = with_variables(text).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.admin.unwrap().token.as_deref(), Some("80808080"));
    let text = "[admin]\ntoken = \"${NONE:-80808080}\"\n";
    let config = with_variables(text).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.admin.unwrap().token.as_deref(), Some("80808080"));
}

#[test]
fn what_a_variable_says_is_not_told_in_errors() {
    let text = "workers = \"${HOST}\"\n[admin]\ntoken = \"${NONE:-short}\"\nlisten = \"${NONE}\"\n";
    let errors = with_variables(text).unwrap_err().to_string();
    for words in [
        "t:1:11: workers: wrong type; found the value of \"${HOST}\"",
        "t:3:9: admin.token: not valid here; found the value of \"${NONE:-short}\"",
        "t:4:10: admin.listen: the environment variable NONE is not set",
    ] {
        assert!(errors.contains(words), "{errors}");
    }
    assert!(!errors.contains("10.0.0.1"), "{errors}");
}
