//! The configuration through the API.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use evenkeel_manager::config::edit;
use evenkeel_manager::revisions::{How, Revision};

use super::*;
use crate::actor::{Actor, Role};
use crate::config_api::seen_by;
use crate::wire::{Changed, Compared, Configuration, Examined, RevisionText};

const CONFIG: &[&str] = &["v1", "config"];

impl Balancer {
    fn in_force(&self) -> Configuration {
        self.client().get(CONFIG, &[]).unwrap()
    }

    fn on_disk(&self) -> String {
        fs::read_to_string(&self.sources.config_file).unwrap()
    }

    fn edit(&self, revision: &str, edits: Value) -> Result<Changed, ClientError> {
        let body = json!({ "edits": edits, "comment": "a test" });
        self.client()
            .change_config("PATCH", CONFIG, revision, &body)
    }

    fn post(&self, act: &str, body: Value) -> Result<Changed, ClientError> {
        let revision = self.in_force().revision;
        let path = ["v1", "config", act];
        self.client().change_config("POST", &path, &revision, &body)
    }

    fn history(&self) -> Vec<Revision> {
        let path = ["v1", "config", "history"];
        self.client().get(&path, &[]).unwrap()
    }

    fn strategy(&self) -> String {
        let path = ["v1", "groups", "web"];
        let group: GroupStatus = self.client().get(&path, &[]).unwrap();
        group.strategy.to_string()
    }
}

fn strategy(name: &str) -> Value {
    json!([{ "op": "set", "path": ["rule", "web", "strategy"], "value": name }])
}

/// Returns the fields that the API sends beside the error.
fn more<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Value {
    match result {
        Err(ClientError::Refused { body, .. }) => Value::Object(*body.more),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn the_configuration_in_force_is_shown() {
    let balancer = Balancer::start(&two_members(), None);
    let shown = balancer.in_force();
    let text = balancer.on_disk();
    assert!(text.contains(&configuration(&two_members())));
    assert_eq!(shown.text, text);
    assert_eq!(shown.revision, edit::text_revision(&text));
    assert_eq!(shown.generation, 1);
    assert_eq!(shown.values["rule"]["web"]["members"][1], "127.0.0.1:2");
    assert!(!shown.on_disk.differs);
    let answer = balancer
        .whole("GET /v1/config/file HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, text);
    let head = head.to_ascii_lowercase();
    assert!(head.contains("content-type: text/plain"), "{head}");
    assert!(
        head.contains("content-disposition: attachment; filename=\"evenkeel-admin-"),
        "{head}"
    );
    assert!(
        head.contains(&format!("etag: \"{}\"", shown.revision)),
        "{head}"
    );
    fs::write(&balancer.sources.config_file, "# other\n").unwrap();
    let disk = balancer.in_force().on_disk;
    assert_eq!(
        (disk.differs, disk.revision),
        (true, Some(edit::text_revision("# other\n")))
    );
    fs::remove_file(&balancer.sources.config_file).unwrap();
    let disk = balancer.in_force().on_disk;
    assert!(disk.differs && disk.error.unwrap().contains("cannot be read"));
}

#[test]
fn a_change_is_live_and_in_the_file_and_can_be_taken_back() {
    let balancer = Balancer::start(&two_members(), None);
    let start = balancer.in_force();
    let mode = fs::Permissions::from_mode(0o640);
    fs::set_permissions(&balancer.sources.config_file, mode).unwrap();
    let changed = balancer
        .edit(&start.revision, strategy("round_robin"))
        .unwrap();
    assert_eq!(changed.generation, 2);
    assert_eq!(balancer.strategy(), "round_robin");
    let expected = start.text.replace("\"random\"", "\"round_robin\"");
    assert_eq!(balancer.on_disk(), expected);
    assert_eq!(changed.revision, edit::text_revision(&expected));
    let rights = fs::metadata(&balancer.sources.config_file)
        .unwrap()
        .permissions();
    assert_eq!(rights.mode() & 0o777, 0o640);
    let now = balancer.in_force();
    assert_eq!(
        (now.revision, now.generation),
        (changed.revision.clone(), 2)
    );
    assert!(!now.on_disk.differs);

    // The one before is known by its text, and whose it was.
    let history = balancer.history();
    let told: Vec<_> = history
        .iter()
        .map(|one| {
            (
                one.how,
                one.generation,
                one.who.as_str(),
                one.comment.as_str(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [(How::Patch, 2, "local", "a test"), (How::Start, 1, "", "")]
    );
    assert_eq!(history[0].from, Some("127.0.0.1".parse().unwrap()));
    let path = ["v1", "config", "history", &start.revision];
    let old: RevisionText = balancer.client().get(&path, &[]).unwrap();
    assert_eq!(old.text, start.text);
    assert!(
        old.diff
            .contains("-strategy = \"random\"\n+strategy = \"round_robin\"\n"),
        "{}",
        old.diff
    );
    let unknown = balancer
        .client()
        .get::<RevisionText>(&["v1", "config", "history", "x"], &[]);
    assert_eq!(refusal(unknown), (404, "unknown_revision".into()));

    let undone = balancer.post("undo", json!({})).unwrap();
    assert_eq!(
        (undone.revision.as_str(), undone.generation),
        (&*start.revision, 3)
    );
    assert_eq!(balancer.on_disk(), start.text);
    assert_eq!(balancer.strategy(), "random");
    assert_eq!(
        refusal(balancer.post("undo", json!({}))),
        (409, "nothing_to_undo".into())
    );
    balancer
        .post("restore", json!({ "revision": changed.revision }))
        .unwrap();
    assert_eq!(balancer.strategy(), "round_robin");
    assert_eq!(balancer.history()[0].how, How::Restore);
    let unknown = balancer.post("restore", json!({ "revision": "0123456789abcdef" }));
    assert_eq!(refusal(unknown), (404, "unknown_revision".into()));
}

#[test]
fn a_whole_text_is_put() {
    let balancer = Balancer::start(&two_members(), None);
    let start = balancer.in_force();
    let text = format!(
        "# Ours.\n{}",
        configuration(&[address(1), address(2), address(3)])
    );
    let put = |revision: &str, text: &str| {
        let body = json!({ "text": text });
        let client = balancer.client();
        client.change_config::<Changed>("PUT", CONFIG, revision, &body)
    };
    let changed = put(&start.revision, &text).unwrap();
    assert_eq!(balancer.on_disk(), text);
    // Once more is no change.
    let same = put(&changed.revision, &text).unwrap();
    assert_eq!((same.generation, same.notes.len()), (2, 1));
    assert_eq!(balancer.history().len(), 2);
}

#[test]
fn the_second_of_two_administrators_is_told() {
    let balancer = Balancer::start(&two_members(), None);
    let start = balancer.in_force();
    let first = balancer
        .edit(&start.revision, strategy("round_robin"))
        .unwrap();
    let second = balancer.edit(&start.revision, strategy("least_connections"));
    let told = more(second);
    assert_eq!(told["revision"], first.revision);
    assert_eq!(
        (&told["who"], &told["how"]),
        (&json!("local"), &json!("patch"))
    );
    let second = balancer.edit(&start.revision, strategy("least_connections"));
    assert_eq!(refusal(second), (412, "changed_meanwhile".into()));
    assert_eq!(balancer.strategy(), "round_robin");

    // Both at once: one of them.
    let balancer = Arc::new(balancer);
    let threads = ["random", "least_connections", "weighted_random"].map(|name| {
        let (balancer, revision) = (Arc::clone(&balancer), first.revision.clone());
        std::thread::spawn(move || balancer.edit(&revision, strategy(name)).is_ok())
    });
    let done = threads.map(|thread| thread.join().unwrap());
    assert_eq!(done.iter().filter(|done| **done).count(), 1, "{done:?}");
    assert_eq!(balancer.in_force().generation, 3);
}

#[test]
fn a_change_of_another_configuration_than_that_in_force_is_none() {
    let balancer = Balancer::start(&two_members(), None);
    let patch = |fields: &str| {
        let body = json!({ "edits": strategy("round_robin") }).to_string();
        balancer.raw(&format!(
            "PATCH /v1/config HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n{fields}\r\n{body}",
            body.len()
        ))
    };
    for fields in ["", "If-Match: *\r\n", "If-Match: \"x\"\r\n"] {
        let (status, body) = patch(fields);
        assert_eq!(status, 428, "{fields} {body}");
        assert!(body.contains("no_revision"), "{body}");
    }
    assert_eq!(balancer.strategy(), "random");
    let revision = balancer.in_force().revision;
    assert_eq!(patch(&format!("If-Match: \"{revision}\"\r\n")).0, 200);
    assert_eq!(balancer.strategy(), "round_robin");
}

#[test]
fn a_file_that_was_changed_meanwhile_is_not_overwritten() {
    let balancer = Balancer::start(&two_members(), None);
    let start = balancer.in_force();
    let theirs = format!("# Ann was here.\n{}", start.text);
    fs::write(&balancer.sources.config_file, &theirs).unwrap();
    let refused = balancer.edit(&start.revision, strategy("round_robin"));
    let diff = more(refused)["diff"].as_str().unwrap().to_owned();
    assert!(diff.contains("+# Ann was here.\n"), "{diff}");
    let refused = balancer.edit(&start.revision, strategy("round_robin"));
    assert_eq!(refusal(refused), (409, "file_changed".into()));
    assert_eq!(balancer.on_disk(), theirs);
    assert_eq!(
        (balancer.strategy().as_str(), balancer.in_force().generation),
        ("random", 1)
    );
    fs::remove_file(&balancer.sources.config_file).unwrap();
    let refused = balancer.edit(&start.revision, strategy("round_robin"));
    assert_eq!(refusal(refused), (409, "file_changed".into()));
}

#[test]
fn what_is_wrong_has_its_place_and_changes_nothing() {
    let balancer = Balancer::start(&two_members(), None);
    let start = balancer.in_force();
    let told = more(balancer.edit(&start.revision, strategy("rond_robin")));
    let problem = &told["problems"][0];
    assert_eq!(problem["key"], "rule.web.strategy");
    let line = start
        .text
        .lines()
        .position(|line| line.starts_with("strategy"));
    let line = line.unwrap() + 1;
    assert_eq!(
        (&problem["line"], &problem["column"]),
        (&json!(line), &json!(12))
    );
    assert!(
        problem["allowed"].is_string()
            || problem["message"]
                .as_str()
                .unwrap()
                .contains("did you mean"),
        "{problem}"
    );
    let no_edit = json!([{ "op": "remove", "path": ["group", "none"] }]);
    let told = more(balancer.edit(&start.revision, no_edit.clone()));
    assert_eq!(told["problems"][0]["key"], "group.none");
    assert_eq!(
        refusal(balancer.edit(&start.revision, no_edit)),
        (422, "bad_configuration".into())
    );
    // Right, but it cannot be done.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    let edits = json!([{ "op": "set", "path": ["rule", "web", "listen"], "value": taken }]);
    assert_eq!(
        refusal(balancer.edit(&start.revision, edits)),
        (409, "not_applied".into())
    );
    drop(listener);
    for comment in ["x".repeat(1001), "\u{7}".into()] {
        let body = json!({ "edits": strategy("round_robin"), "comment": comment });
        let client = balancer.client();
        let refused = client.change_config::<Changed>("PATCH", CONFIG, &start.revision, &body);
        assert_eq!(refusal(refused), (422, "bad_comment".into()));
    }
    assert_eq!(balancer.on_disk(), start.text);
    assert_eq!(balancer.in_force().generation, 1);
    assert_eq!(balancer.strategy(), "random");
    let folder = balancer.sources.config_file.parent().unwrap();
    let name = balancer
        .sources
        .config_file
        .file_name()
        .unwrap()
        .to_string_lossy()
        .into_owned();
    let left = fs::read_dir(folder).unwrap().filter_map(Result::ok);
    let left = left.filter(|entry| {
        entry
            .file_name()
            .to_string_lossy()
            .starts_with(&format!(".{name}"))
    });
    assert_eq!(left.count(), 0);
}

#[test]
fn a_change_is_looked_at_before_it_is_made() {
    let balancer = Balancer::start(&two_members(), None);
    let client = balancer.client();
    let validate = |body: Value| {
        let path = ["v1", "config", "validate"];
        client.post_resource::<Examined>(&path, &body)
    };
    let good = validate(json!({ "edits": strategy("round_robin") })).unwrap();
    assert!(
        good.ok && good.problems.is_empty() && good.needs_restart.is_empty(),
        "{good:?}"
    );
    let restart = json!([{ "op": "set", "path": ["workers"], "value": 7 }]);
    let good = validate(json!({ "edits": restart })).unwrap();
    assert!(good.needs_restart[0].contains("workers"), "{good:?}");
    let unused = json!([{ "op": "set", "path": ["group", "x"], "value": { "members": ["a:1"] } }]);
    let good = validate(json!({ "edits": unused })).unwrap();
    assert!(
        good.ok && good.warnings[0].message.contains("uses this group"),
        "{good:?}"
    );
    let bad = validate(json!({ "text": "workers = 0\n[rule.web]\n" })).unwrap();
    assert!(!bad.ok && bad.problems.len() > 1, "{bad:?}");
    assert_eq!((bad.problems[0].line, bad.problems[0].column), (1, 11));
    // Files that it names are looked at, too.
    let tls = json!([{ "op": "set", "path": ["rule", "web", "tls"], "value": { "certificates": "/nowhere.pem" } }]);
    let bad = validate(json!({ "edits": tls })).unwrap();
    assert!(
        bad.problems[0].message.contains("/nowhere.pem")
            || bad.problems[0].file.contains("nowhere"),
        "{bad:?}"
    );
    for body in [
        json!({}),
        json!({ "text": "", "edits": [] }),
        json!({ "txt": "" }),
    ] {
        assert_eq!(refusal(validate(body)), (422, "bad_body".into()));
    }

    let path = ["v1", "config", "diff"];
    let compared: Compared = client
        .post_resource(&path, &json!({ "edits": strategy("round_robin") }))
        .unwrap();
    assert!(
        compared.ok && compared.diff.contains("+strategy = \"round_robin\""),
        "{compared:?}"
    );
    let [change] = &compared.changes[..] else {
        panic!("{compared:?}");
    };
    assert_eq!(edit::shown(&change.path), "rule.web.strategy");
    assert_eq!(
        (&change.before, &change.after),
        (&json!("random"), &json!("round_robin"))
    );
    assert_eq!(compared.revision, balancer.in_force().revision);
    assert_eq!(balancer.in_force().generation, 1);
    assert_eq!(balancer.strategy(), "random");
}

#[test]
fn a_large_configuration_fits_and_other_bodies_stay_small() {
    let balancer = Balancer::start(&two_members(), None);
    let start = balancer.in_force();
    let comment = "# a line of a long comment\n".repeat(10_000);
    let text = format!("{comment}{}", start.text);
    let body = json!({ "text": text });
    let client = balancer.client();
    let changed: Changed = client
        .change_config("PUT", CONFIG, &start.revision, &body)
        .unwrap();
    assert_eq!(changed.revision, edit::text_revision(&text));
    let large = client.put_resource::<Done>(&["v1", "rules", "web", "enabled"], &body);
    assert_eq!(refusal(large), (413, "too_large".into()));
}

#[test]
fn secrets_are_for_administrators() {
    let balancer = Balancer::start(&two_members(), None);
    let start = balancer.in_force();
    let token = json!([{ "op": "set", "path": ["admin", "token"], "value": "quite-a-secret" }]);
    balancer.edit(&start.revision, token).unwrap();
    let now = balancer.in_force();
    assert!(now.text.contains("quite-a-secret"));
    // What others see cannot be sent back.
    let actor = |role| Actor {
        user: "ann".into(),
        role,
        from: None,
        csrf: None,
    };
    assert_eq!(seen_by(&actor(Role::Administer), &now.text), now.text);
    assert!(!seen_by(&actor(Role::Operate), &now.text).contains("quite-a-secret"));
    let seen = seen_by(&actor(Role::View), &now.text);
    assert!(!seen.contains("quite-a-secret"));
    let body = json!({ "text": seen });
    let refused = balancer
        .client()
        .change_config::<Changed>("PUT", CONFIG, &now.revision, &body);
    let told = more(refused);
    assert!(
        told["problems"][0]["message"]
            .as_str()
            .unwrap()
            .contains("PATCH"),
        "{told}"
    );
    let examined: Examined = balancer
        .client()
        .post_resource(&["v1", "config", "validate"], &body)
        .unwrap();
    assert!(!examined.ok);
    assert_eq!(balancer.on_disk(), now.text);
}

/// Whoever breaks into the process, and so has its API, must not become root at the next start.
#[test]
fn n9_whom_the_process_is_says_the_file_alone() {
    let balancer = Balancer::start(&two_members(), None);
    let start = balancer.in_force();
    let user = json!([{ "op": "set", "path": ["process", "user"], "value": "root" }]);
    let refused = balancer.edit(&start.revision, user);
    assert_eq!(refusal(refused), (403, "own_file_only".into()));
    assert_eq!(balancer.on_disk(), start.text);
}

#[test]
fn f2_a_text_without_rules_must_be_meant() {
    let balancer = Balancer::start(&two_members(), None);
    let start = balancer.in_force();
    let client = balancer.client();
    let put = |body| client.change_config::<Changed>("PUT", CONFIG, &start.revision, &body);
    let refused = put(json!({ "text": "# nothing\n" }));
    assert_eq!(refusal(refused), (409, "no_rules".into()));
    assert_eq!(balancer.on_disk(), start.text);
    put(json!({ "text": "# nothing\n", "force": true })).unwrap();
    assert_eq!(balancer.on_disk(), "# nothing\n");
}
