//! The manual and the examples are about this program.
#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

use std::path::{Path, PathBuf};

use evenkeel_config::{self as config, reference};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Asserts that the manual's page ends with `expected`, or with `UPDATE_DOCS` set makes
/// it so.
fn ends_with_reference(page: &str, expected: &str) {
    const HEADING: &str = "\n## Reference\n\n";
    let path = root().join(page);
    let text = std::fs::read_to_string(&path).unwrap();
    let (written_by_hand, _) = text.split_once(HEADING).expect("a chapter `Reference`");
    let right = format!("{written_by_hand}{HEADING}{}\n", expected.trim_end());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, right).unwrap();
    } else if text != right {
        panic!(
            "the reference in {page} is out of date; write it anew with\n\n    \
             UPDATE_DOCS=1 cargo test -p evenkeel-config --test manual\n"
        );
    }
}

#[test]
fn the_reference_of_keys_is_up_to_date() {
    ends_with_reference("docs/configuration.md", &reference::keys());
}

#[test]
fn the_reference_of_the_agents_keys_is_up_to_date() {
    ends_with_reference("docs/agent.md", &reference::agent_keys());
}

#[test]
fn the_reference_of_the_engines_keys_is_up_to_date() {
    ends_with_reference("docs/engine.md", &reference::engine_keys());
}

#[test]
fn the_reference_of_scenarios_is_up_to_date() {
    ends_with_reference("docs/simulator.md", &reference::scenario_keys());
}

#[test]
fn the_reference_of_strategies_is_up_to_date() {
    ends_with_reference("docs/strategies.md", &reference::describe_strategies());
}

/// A strategy that nobody can find by what it is for might as well not be there.
#[test]
fn every_strategy_is_recommended_for_something_and_explained() {
    let text = std::fs::read_to_string(root().join("docs/strategies.md")).unwrap();
    let (by_hand, _) = text.split_once("\n## Reference\n").unwrap();
    for kind in evenkeel_core::strategy::REGISTRY {
        let name = format!("`{}`", kind.name);
        let is_row = |line: &str| line.starts_with('|') && line.contains(&name);
        assert!(
            by_hand.lines().any(is_row),
            "{name} is in no row of the table"
        );
        let start = format!("**{name}**");
        let explained = by_hand.lines().any(|line| line.starts_with(&start));
        assert!(explained, "no paragraph begins with {start}");
    }
}

/// The examples that are not for `evenkeel run`.
const AGENT: &str = "agent.toml";
const ENGINE: &str = "engine.toml";

fn examples() -> Vec<PathBuf> {
    let folder = std::fs::read_dir(root().join("examples")).unwrap();
    let paths = folder.map(|entry| entry.unwrap().path());
    let examples: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .filter(|path| ![AGENT, ENGINE].iter().any(|other| path.ends_with(other)))
        .collect();
    assert!(!examples.is_empty());
    examples
}

#[test]
fn every_example_is_good() {
    for path in examples() {
        let config = config::load_config(&path).unwrap_or_else(|errors| panic!("{errors}"));
        assert!(!config.rules.is_empty(), "{}", path.display());
        assert_eq!(config.warnings, [], "{}", path.display());
        let mut addresses = config.rules.iter().flat_map(|rule| &rule.listen);
        assert!(
            addresses.all(|address| address
                .socket()
                .is_none_or(|at| at.ip().is_loopback() && at.port() >= 1024)),
            "{} cannot be tried on a laptop without rights",
            path.display()
        );
    }
}

#[test]
fn the_full_example_has_every_key() {
    assert!(keys_in("full.toml", &reference::keys()) > 50);
}

#[test]
fn the_example_of_the_agent_is_good_and_has_every_key() {
    let path = root().join("examples").join(AGENT);
    let config =
        config::agent::load_agent_config(&path).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.warnings, []);
    assert!(keys_in(AGENT, &reference::agent_keys()) > 20);
}

#[test]
fn the_example_of_the_engine_is_good_and_has_every_key() {
    let path = root().join("examples").join(ENGINE);
    let config =
        config::engine::load_engine_config(&path).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.warnings, []);
    assert!(keys_in(ENGINE, &reference::engine_keys()) > 8);
}

#[test]
fn the_example_of_a_scenario_has_every_key() {
    assert!(keys_in("scenarios/full.toml", &reference::scenario_keys()) > 40);
}

/// Asserts that all keys of a reference stand in an example; answers how many there are.
fn keys_in(example: &str, keys: &str) -> usize {
    let text = std::fs::read_to_string(root().join("examples").join(example)).unwrap();
    let names = keys
        .lines()
        .filter_map(|line| line.strip_prefix("#### `")?.strip_suffix('`'));
    let mut count = 0;
    for name in names {
        count += 1;
        let key = format!("{name} = ");
        let is_key = |line: &str| line.trim_start_matches(['#', ' ']).starts_with(&key);
        let is_table = |line: &str| {
            let header = line.trim_matches(['[', ']']);
            line.starts_with('[') && header.rsplit('.').next() == Some(name)
        };
        assert!(
            text.lines().any(|line| is_key(line) || is_table(line)),
            "{name} is missing in {example}"
        );
    }
    count
}

/// Examples of the manual are valid: each block of TOML, with the parts that it leaves out.
#[test]
fn every_piece_of_toml_in_the_manual_is_good() {
    let pages = [
        ("README.md", 1),
        ("docs/configuration.md", 6),
        ("docs/negotiation.md", 1),
        ("docs/load-reports.md", 6),
    ];
    for (page, at_least) in pages {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        let mut blocks = 0;
        for block in text.split("```toml\n").skip(1) {
            let (block, _) = block.split_once("```").unwrap();
            blocks += 1;
            let is_whole = block.starts_with("[rule") || block.starts_with("[defaults]");
            let rule = match is_whole {
                true => "",
                false => "[rule.x]\nlisten = \"127.0.0.1:1\"\nmembers = [\"a:1\"]\n",
            };
            let whole = format!("{rule}{block}");
            config::parse(page, &whole).unwrap_or_else(|errors| panic!("{whole}\n{errors}"));
        }
        assert!(blocks >= at_least, "{page}");
    }
}

#[test]
fn every_piece_of_toml_in_the_agents_and_the_engines_manual_is_good() {
    pieces("docs/agent.md", |page, block| {
        config::agent::parse(page, block).err()
    });
    pieces("docs/engine.md", |page, block| {
        config::engine::parse(page, block).err()
    });
}

/// Files that are copied from the page, each whole: the agent's have servers.
#[test]
fn every_file_in_the_tutorial_is_good() {
    let mut agents = 0;
    pieces("docs/tutorial-load-reports.md", |page, block| {
        let warnings = if block.contains("[server.") {
            agents += 1;
            config::agent::parse(page, block).map(|config| config.warnings)
        } else {
            config::parse(page, block).map(|config| config.warnings)
        };
        match warnings {
            Ok(warnings) => {
                assert_eq!(warnings, [], "{block}");
                None
            }
            Err(errors) => Some(errors),
        }
    });
    assert_eq!(agents, 2);
}

/// Asserts that there is TOML in a page of the manual, and that it is good.
fn pieces(page: &str, mut parse: impl FnMut(&str, &str) -> Option<config::Errors>) {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    let blocks = text.split("```toml\n").skip(1);
    let mut blocks = blocks
        .map(|block| block.split_once("```").unwrap().0)
        .peekable();
    assert!(blocks.peek().is_some());
    for block in blocks {
        if let Some(errors) = parse(page, block) {
            panic!("{block}\n{errors}");
        }
    }
}

#[test]
fn the_errors_in_the_manual_are_those_of_its_file() {
    let text = std::fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let between = |start: &str| {
        text.split_once(start)
            .unwrap()
            .1
            .split_once("```")
            .unwrap()
            .0
    };
    let file = between("```text\n");
    let shown = between("in the configuration\n");
    let errors = config::parse("evenkeel.toml", file)
        .unwrap_err()
        .to_string();
    assert_eq!(errors.lines().count(), shown.lines().count());
    for (error, shown) in errors.lines().zip(shown.lines()) {
        let start = shown.trim_end_matches('…');
        assert!(error.starts_with(start), "{error}\nshown as\n{shown}");
    }
}

/// A `&` in an address that is not quoted ends the command for a shell.
#[test]
fn u10_addresses_in_commands_are_quoted() {
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("docs")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        for line in text.lines().filter(|line| line.contains("curl ")) {
            seen += 1;
            for word in line.split(' ').filter(|word| word.starts_with("http")) {
                assert!(!word.contains('&'), "{}: {line}", path.display());
            }
        }
    }
    assert!(seen > 5, "{seen}");
}

/// The page of the command line has every command.
#[test]
fn u10_the_page_of_the_command_line_has_every_command() {
    let page = std::fs::read_to_string(root().join("docs/cli.md")).unwrap();
    for (file, of, form) in [
        ("cli.rs", "enum Command ", "evenkeel "),
        ("cli/ctl.rs", "enum CtlCommand ", "| `"),
    ] {
        let file = root().join("crates/evenkeel/src").join(file);
        let cli = std::fs::read_to_string(file).unwrap();
        let (_, body) = cli.split_once(of).unwrap();
        let (body, _) = body.split_once("\n}\n").unwrap();
        let variants = body.lines().filter_map(|line| {
            let line = line.strip_prefix("    ")?;
            let is_variant = line.starts_with(|c: char| c.is_ascii_uppercase());
            is_variant.then(|| line.split(|c: char| !c.is_ascii_alphanumeric()).next())?
        });
        let mut count = 0;
        for variant in variants {
            count += 1;
            let name = variant.to_ascii_lowercase();
            let also = format!(", `{name}");
            let is_there = page.contains(&format!("{form}{name}")) || page.contains(&also);
            assert!(
                is_there,
                "{variant}: docs/cli.md does not have {form}{name}"
            );
        }
        assert!(count > 7, "{of}: {count}");
    }
}
