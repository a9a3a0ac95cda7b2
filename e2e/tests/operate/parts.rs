//! A configuration of several files, with environment variables in it.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use evenkeel_e2e::balancer::{Balancer, evenkeel_binary};
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::Signal;
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::{Message, Wire};
use serde_json::{Value, json};

const MAIN: &str = "# The main file.\ninclude = [\"conf.d/*.toml\"]\nworkers = \"${PARTS_WORKERS}\"\n\n\
    [admin]\nlisten = \"127.0.0.1:0\"\n\n\
    [rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [\"${PARTS_MEMBER}\"] # from the environment\n\
    max_connections = \"${PARTS_MOST:-1000}\"\n";

fn part(name: &str) -> String {
    format!(
        "# A part.\n[rule.{name}]\nlisten = \"127.0.0.1:0\"\nmembers = [\"${{PARTS_MEMBER}}\"]\n"
    )
}

/// A balancer whose main file is [`MAIN`], with the rule `first` in a file that it includes.
fn start(member: &Member) -> Balancer {
    let member = member.address().to_string();
    Balancer::start_by(MAIN, |folder| {
        // As root the balancer takes no configuration from a folder in which everybody may write.
        let parts = folder.make_folder("conf.d");
        fs::set_permissions(parts, Permissions::from_mode(0o755)).unwrap();
        folder.write("conf.d/first.toml", part("first"));
        let mut command = Command::new(evenkeel_binary());
        command
            .env("PARTS_WORKERS", "1")
            .env("PARTS_MEMBER", &member);
        command
    })
}

fn rules(balancer: &Balancer) -> Vec<String> {
    let status = balancer.status();
    let rules = status["rules"].as_array().unwrap().iter();
    let mut names: Vec<String> = rules
        .map(|rule| rule["name"].as_str().unwrap().to_owned())
        .collect();
    names.sort_unstable();
    names
}

fn asked(balancer: &Balancer, rule: &str) -> String {
    let mut wire = Wire::connect(balancer.address(rule));
    wire.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    wire.read_response().text().to_owned()
}

fn last_error(balancer: &Balancer) -> Option<String> {
    let status = balancer.status();
    status["last_reload"]["error"].as_str().map(str::to_owned)
}

fn patch(balancer: &Balancer, edits: &Value) -> Message {
    let text = balancer.admin_get("/v1/config");
    let now: Value = serde_json::from_str(text.text()).unwrap();
    let body = json!({ "edits": edits }).to_string();
    let mut wire = Wire::connect(balancer.admin_address());
    wire.send(format!(
        "PATCH /v1/config HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         If-Match: \"{}\"\r\nContent-Length: {}\r\n\r\n{body}",
        now["revision"].as_str().unwrap(),
        body.len()
    ));
    wire.read_response()
}

#[test]
fn rules_of_included_files_serve_and_files_that_come_change_and_go_take_effect() {
    let member = Member::answering_with(|_| ok_response("served"));
    let balancer = start(&member);
    assert_eq!(rules(&balancer), ["first", "web"]);
    assert_eq!(asked(&balancer, "web"), "served");
    assert_eq!(asked(&balancer, "first"), "served");

    // A new file.
    balancer
        .folder()
        .write("conf.d/second.toml", part("second"));
    wait_until("the new file counts", || {
        rules(&balancer) == ["first", "second", "web"]
    });
    // One that changes.
    let renamed = part("other");
    balancer.folder().write("conf.d/second.toml", &renamed);
    wait_until("the changed file counts", || {
        rules(&balancer) == ["first", "other", "web"]
    });
    // One with an error: all stays as it was, and the place of the error is told.
    let broken = format!("{renamed}nonsense = 1\n");
    balancer.folder().write("conf.d/second.toml", &broken);
    wait_until("it is complained about", || {
        last_error(&balancer).is_some_and(|error| {
            error.contains("conf.d/second.toml:5:1: rule.other.nonsense: unknown key")
        })
    });
    assert_eq!(rules(&balancer), ["first", "other", "web"]);
    // The same name in two files.
    balancer.folder().write("conf.d/second.toml", part("web"));
    wait_until("both places are told", || {
        last_error(&balancer).is_some_and(|error| {
            let main = balancer.folder().join("evenkeel.toml");
            let first = format!("stands in {}, line 8, already", main.display());
            error.contains("conf.d/second.toml:2:7: rule.web: ") && error.contains(&first)
        })
    });
    // One that goes.
    std::fs::remove_file(balancer.folder().join("conf.d/second.toml")).unwrap();
    wait_until("what was in it is gone", || {
        rules(&balancer) == ["first", "web"] && last_error(&balancer).is_none()
    });
    // SIGHUP reads them as well.
    let text = part("third");
    balancer.folder().write("conf.d/third.toml", &text);
    balancer.signal(Signal::HUP);
    wait_until("all files are read", || {
        rules(&balancer) == ["first", "third", "web"]
    });
    assert_eq!(asked(&balancer, "web"), "served");
}

#[test]
fn changes_by_the_api_keep_variables_and_leave_included_files_alone() {
    let member = Member::answering_with(|_| ok_response("served"));
    let balancer = start(&member);
    let text = || balancer.folder().text("evenkeel.toml");
    let part_before = balancer.folder().text("conf.d/first.toml");

    let answer = patch(
        &balancer,
        &json!([{ "op": "set", "path": ["rule", "web", "max_connections"], "value": 7 }]),
    );
    assert_eq!(answer.second_word(), "200", "{}", answer.text());
    let wanted = MAIN.replace("\"${PARTS_MOST:-1000}\"", "7");
    assert_eq!(text(), wanted, "all else stays as it was written");
    assert_eq!(asked(&balancer, "first"), "served");

    // What stands elsewhere is not changed here, and where it stands is told.
    for edit in [
        json!({ "op": "set", "path": ["rule", "first", "max_connections"], "value": 7 }),
        json!({ "op": "remove", "path": ["rule", "first"] }),
        json!({ "op": "rename", "path": ["rule", "first"], "to": "x" }),
    ] {
        let answer = patch(&balancer, &json!([edit]));
        assert_eq!(answer.second_word(), "422", "{}", answer.text());
        let told = "conf.d/first.toml, line 2, a file that this one includes";
        assert!(answer.text().contains(told), "{}", answer.text());
    }
    assert_eq!(text(), wanted);

    // The API shows what is included, and the text as it is written.
    let shown = balancer.admin_get("/v1/config");
    let shown: Value = serde_json::from_str(shown.text()).unwrap();
    assert_eq!(shown["text"], wanted);
    assert_eq!(shown["included"][0]["text"], part_before);
    let file = shown["included"][0]["file"].as_str().unwrap();
    assert!(file.ends_with("conf.d/first.toml"), "{file}");

    let undone = balancer.run_ctl("config undo").unwrap();
    assert_eq!(text(), MAIN, "{undone}");
    assert_eq!(balancer.folder().text("conf.d/first.toml"), part_before);
}

#[test]
fn check_covers_included_files_and_variables() {
    let folder = evenkeel_e2e::folder::Folder::new();
    let file = folder.write("evenkeel.toml", MAIN);
    folder.make_folder("conf.d");
    folder.write("conf.d/first.toml", part("first"));
    let check = |member: Option<&str>| {
        let mut command = Command::new(evenkeel_binary());
        command.arg("check").arg(&file).env("PARTS_WORKERS", "2");
        match member {
            Some(member) => command.env("PARTS_MEMBER", member),
            None => command.env_remove("PARTS_MEMBER"),
        };
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    };
    let (good, text) = check(Some("127.0.0.1:1"));
    assert!(
        good && text.contains("2 rules") && text.contains("1 included file"),
        "{text}"
    );
    let (good, text) = check(None);
    assert!(!good, "{text}");
    for place in [
        "evenkeel.toml:10:12: rule.web.members[0]: ",
        "conf.d/first.toml:4:12: rule.first.members[0]: ",
    ] {
        let told = format!("{place}the environment variable PARTS_MEMBER is not set");
        assert!(text.contains(&told), "{text}");
    }
    let (good, text) = check(Some("no address"));
    assert!(
        !good && text.contains("found the value of \"${PARTS_MEMBER}\""),
        "{text}"
    );
}
