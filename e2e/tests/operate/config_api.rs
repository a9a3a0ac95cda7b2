//! The configuration is changed through the admin API while it serves.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use evenkeel_e2e::balancer::{Balancer, evenkeel_binary, run_evenkeel};
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::Signal;
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;
use serde_json::{Value, json};

fn named(name: &'static str) -> Member {
    Member::answering_with(move |_| ok_response(name))
}

fn config(member: SocketAddr) -> String {
    format!(
        "# The balancer of the shop.\nworkers = 1\n\n[admin]\nlisten = \"127.0.0.1:0\"\n\n\
         # What clients see.\n[rule.web]\nlisten = \"127.0.0.1:0\" # any port\nprotocol = \"http\"\n\
         group = \"app\"\n\n# The servers.\n[group.app]\nmembers = [\n  \"{member}\", # the first one\n]\n\
         slow_start = \"0s\"\nhealth_check = false\n"
    )
}

/// Returns the name of the member that answers a client.
fn answered(balancer: &Balancer) -> String {
    let mut wire = Wire::connect(balancer.address("web"));
    wire.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    wire.read_response().text().to_owned()
}

/// A request that changes something; answers status and body.
fn send(balancer: &Balancer, head: &str, revision: &str, body: &Value) -> (u16, Value) {
    let body = body.to_string();
    let mut wire = Wire::connect(balancer.admin_address());
    wire.send(format!(
        "{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         If-Match: \"{revision}\"\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    let answer = wire.read_response();
    let body = serde_json::from_str(answer.text()).unwrap();
    (answer.second_word().parse().unwrap(), body)
}

fn in_force(balancer: &Balancer) -> Value {
    let answer = balancer.admin_get("/v1/config");
    serde_json::from_str(answer.text()).unwrap()
}

fn revision(balancer: &Balancer) -> String {
    in_force(balancer)["revision"].as_str().unwrap().into()
}

fn on_disk(balancer: &Balancer) -> String {
    balancer.folder().text("evenkeel.toml")
}

fn members(members: &[SocketAddr]) -> Value {
    let value: Vec<_> = members.iter().map(ToString::to_string).collect();
    json!({ "edits": [{ "op": "set", "path": ["group", "app", "members"], "value": value }] })
}

#[test]
fn a_change_is_seen_by_clients_and_stands_in_the_file() {
    let (one, two) = (named("one"), named("two"));
    let balancer = Balancer::start(&config(one.address()));
    assert_eq!(answered(&balancer), "one");
    let start = on_disk(&balancer);
    let mode = fs::Permissions::from_mode(0o640);
    let file = balancer.folder().join("evenkeel.toml");
    fs::set_permissions(&file, mode).unwrap();

    let second = members(&[two.address()]);
    let (status, body) = send(&balancer, "PATCH /v1/config", &revision(&balancer), &second);
    assert_eq!(status, 200, "{body}");
    assert_eq!(body["generation"], 2);
    assert_eq!(answered(&balancer), "two");
    let address = |member: &Member| member.address().to_string();
    // The comments stay where they were.
    assert_eq!(
        on_disk(&balancer),
        start.replace(&address(&one), &address(&two))
    );
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o640
    );

    // A restart takes it.
    let undone = balancer.run_ctl("config undo --comment oops").unwrap();
    assert!(
        undone.starts_with("configuration 3 is in effect, revision "),
        "{undone}"
    );
    assert_eq!(answered(&balancer), "one");
    assert_eq!(on_disk(&balancer), start);
    let history = balancer.run_ctl("config history").unwrap();
    let how: Vec<_> = history
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().nth(3).unwrap())
        .collect();
    assert_eq!(how, ["undo", "patch", "start"], "{history}");
    assert!(history.contains("oops"), "{history}");
}

/// The watcher of the file does not apply what the API has put into force.
#[test]
fn a_change_counts_once() {
    let (one, two) = (named("one"), named("two"));
    let balancer = Balancer::start_by(&config(one.address()), |_| {
        let mut command = Command::new(evenkeel_binary());
        command.env("RUST_LOG", "info,evenkeel_config=debug");
        command
    });
    for round in 0..4 {
        let (member, name) = if round % 2 == 0 {
            (&two, "two")
        } else {
            (&one, "one")
        };
        let change = members(&[member.address()]);
        let (status, body) = send(&balancer, "PATCH /v1/config", &revision(&balancer), &change);
        assert_eq!((status, &body["generation"]), (200, &json!(round + 2)));
        assert_eq!(answered(&balancer), name);
        wait_until("the watcher has seen the file", || {
            let log = balancer.log();
            let since = log.rsplit("the admin API changed the configuration").next();
            since
                .unwrap()
                .contains("looked at the configuration's files")
        });
        assert_eq!(in_force(&balancer)["generation"], round + 2);
    }
    // What others write is still noticed, and counts once, too.
    balancer.reconfigure(&config(two.address()));
    assert_eq!(in_force(&balancer)["generation"], 6);
    assert_eq!(answered(&balancer), "two");
    let history = balancer.run_ctl("config history").unwrap();
    let newest = history.lines().nth(1).unwrap();
    assert_eq!(newest.split_whitespace().nth(3), Some("file"), "{history}");
    // And an undo of it is written back.
    balancer.run_ctl("config undo").unwrap();
    assert_eq!(answered(&balancer), "one");
    balancer.signal(Signal::HUP);
    wait_until("it is read again", || {
        in_force(&balancer)["generation"] == 8
    });
    assert_eq!(answered(&balancer), "one");
}

#[test]
fn a_file_that_somebody_else_changes_and_a_second_administrator_are_told_of() {
    let (one, two) = (named("one"), named("two"));
    let balancer = Balancer::start(&config(one.address()));
    let first = revision(&balancer);
    let change = members(&[two.address()]);
    // A file that is wrong does not come into force, and is not overwritten.
    let theirs = format!("{}bogus = 1\n", on_disk(&balancer));
    balancer.write_config(&theirs);
    wait_until("the file is refused", || {
        !balancer.status()["last_reload"]["error"].is_null()
    });
    assert_eq!(in_force(&balancer)["on_disk"]["differs"], true);
    let (status, body) = send(&balancer, "PATCH /v1/config", &first, &change);
    assert_eq!(
        (status, &body["error"]),
        (409, &json!("file_changed")),
        "{body}"
    );
    assert!(
        body["diff"].as_str().unwrap().contains("+bogus = 1"),
        "{body}"
    );
    assert_eq!(on_disk(&balancer), theirs);
    let complaint = balancer.run_ctl("config set workers 2").unwrap_err();
    assert!(complaint.contains("+bogus = 1"), "{complaint}");
    balancer.write_config(&config(one.address()));
    wait_until("the file is taken", || {
        balancer.status()["last_reload"]["error"].is_null()
    });

    let (status, body) = send(&balancer, "PATCH /v1/config", &first, &change);
    assert_eq!(status, 200, "{body}");
    let late = members(&[one.address(), two.address()]);
    let (status, body) = send(&balancer, "PATCH /v1/config", &first, &late);
    assert_eq!((status, &body["error"]), (412, &json!("changed_meanwhile")));
    assert_eq!(body["who"], "local");
    assert_eq!(answered(&balancer), "two");
}

#[test]
fn what_is_wrong_leaves_everything_as_it_was() {
    let one = named("one");
    let balancer = Balancer::start(&config(one.address()));
    let (start, text) = (revision(&balancer), on_disk(&balancer));
    let set = |path: &[&str], value: Value| json!({ "edits": [{ "op": "set", "path": path, "value": value }] });
    for (change, status) in [
        (
            set(&["group", "app", "slow_start"], json!("5 parsecs")),
            422,
        ),
        (set(&["group", "app", "strategy"], json!("astrology")), 422),
        (set(&["rule", "web", "group"], json!("none")), 422),
        (set(&["rule", "web", "listen"], json!("192.0.2.1:80")), 409),
        (
            json!({ "edits": [{ "op": "remove", "path": ["group", "none"] }] }),
            422,
        ),
        (json!({ "edits": "all" }), 422),
    ] {
        let answer = send(&balancer, "PATCH /v1/config", &start, &change);
        assert_eq!(answer.0, status, "{change} {}", answer.1);
    }
    let (status, body) = send(
        &balancer,
        "PUT /v1/config",
        &start,
        &json!({ "text": "[rule.web]\n" }),
    );
    assert_eq!((status, &body["error"]), (422, &json!("bad_configuration")));
    assert!(!body["problems"].as_array().unwrap().is_empty());
    assert_eq!(on_disk(&balancer), text);
    assert_eq!(in_force(&balancer)["generation"], 1);
    assert_eq!(revision(&balancer), start);
    assert_eq!(answered(&balancer), "one");
}

#[test]
fn a_file_behind_a_link_stays_behind_it() {
    let (one, two) = (named("one"), named("two"));
    let balancer = Balancer::start(&config(one.address()));
    let folder = balancer.folder();
    let real = folder.make_folder("real");
    let link = folder.join("evenkeel.toml");
    fs::copy(&link, real.join("shop.toml")).unwrap();
    symlink("real/shop.toml", folder.join("link")).unwrap();
    fs::rename(folder.join("link"), &link).unwrap();
    let change = members(&[two.address()]);
    let (status, body) = send(&balancer, "PATCH /v1/config", &revision(&balancer), &change);
    assert_eq!(status, 200, "{body}");
    assert_eq!(answered(&balancer), "two");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let text = fs::read_to_string(real.join("shop.toml")).unwrap();
    assert!(text.contains(&two.address().to_string()), "{text}");
    assert_eq!(fs::read_dir(&real).unwrap().count(), 1);
}

#[test]
fn everything_can_be_done_by_command() {
    let (one, two) = (named("one"), named("two"));
    let balancer = Balancer::start(&config(one.address()));
    let start = balancer.run_ctl("config download").unwrap();
    assert_eq!(start, on_disk(&balancer));
    let shown = balancer.run_ctl("config show").unwrap();
    assert!(
        shown.ends_with(&start) && shown.contains("revision "),
        "{shown}"
    );
    let keys = balancer.run_ctl("config schema").unwrap();
    assert!(
        keys.contains("[group.NAME]") && keys.contains("slow_start"),
        "{keys}"
    );

    let member = two.address();
    let changed = balancer
        .run_ctl(&format!("config set group.app.members [\"{member}\"]"))
        .unwrap();
    assert!(
        changed.starts_with("configuration 2 is in effect"),
        "{changed}"
    );
    assert_eq!(answered(&balancer), "two");
    balancer
        .run_ctl("config set group.app.strategy random")
        .unwrap();
    assert!(on_disk(&balancer).contains("strategy = \"random\"\n"));
    balancer
        .run_ctl("config remove group.app.strategy")
        .unwrap();
    balancer.run_ctl("config rename group.app pool").unwrap();
    let text = on_disk(&balancer);
    assert!(
        text.contains("[group.pool]") && text.contains("group = \"pool\""),
        "{text}"
    );
    assert_eq!(answered(&balancer), "two");
    let note = balancer.run_ctl("config set workers 2").unwrap();
    assert!(note.contains("note: the number of workers"), "{note}");

    // A file on the administrator's machine.
    let folder = balancer.folder();
    let good = folder.write("good.toml", &start);
    let good = good.display();
    let checked = balancer
        .run_ctl(&format!("config validate {good}"))
        .unwrap();
    assert_eq!(checked, format!("{good}: good\n"));
    let diff = balancer.run_ctl(&format!("config diff {good}")).unwrap();
    assert!(diff.contains("-[group.pool]\n+[group.app]\n"), "{diff}");
    balancer
        .run_ctl(&format!("config apply {good} --comment back"))
        .unwrap();
    assert_eq!(on_disk(&balancer), start);
    assert_eq!(answered(&balancer), "one");
    let same = balancer.run_ctl(&format!("config diff {good}")).unwrap();
    assert_eq!(same, format!("{good} is in force\n"));

    let bad = folder.write("bad.toml", format!("{start}strategy = \"astrology\"\n"));
    let bad = bad.display();
    let expected = run_evenkeel(&["check", &bad.to_string()]).unwrap_err();
    for command in ["validate", "diff", "apply"] {
        let complaint = balancer
            .run_ctl(&format!("config {command} {bad}"))
            .unwrap_err();
        assert_eq!(complaint, expected, "{command}");
    }
    let json = balancer
        .run_ctl(&format!("config validate {bad} --json"))
        .unwrap_err();
    assert_eq!(json, expected);
    let complaint = balancer
        .run_ctl("config set group.app.slow_start soon")
        .unwrap_err();
    assert!(complaint.contains("group.app.slow_start: "), "{complaint}");
    let complaint = balancer
        .run_ctl("config undo --if 0123456789abcdef")
        .unwrap_err();
    assert!(
        complaint.contains("changed meanwhile by local"),
        "{complaint}"
    );
    let oldest = balancer.run_ctl("config history").unwrap();
    let oldest = oldest
        .lines()
        .last()
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .to_owned();
    let same = balancer
        .run_ctl(&format!("config restore {oldest}"))
        .unwrap();
    assert!(same.contains("nothing has changed"), "{same}");
    balancer.run_ctl("config undo").unwrap();
    assert_eq!(answered(&balancer), "two");
    balancer
        .run_ctl(&format!("config restore {oldest}"))
        .unwrap();
    assert_eq!(answered(&balancer), "one");
}
