//! Rules and routes that take requests of users with passwords only.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::process::Command;

use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, Seen, ok_response};
use evenkeel_e2e::process::{are_installed, run_curl};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;

/// The protocols of clients, as options of curl.
const CLIENTS: [&str; 2] = ["--http1.1", "--http2-prior-knowledge"];

/// A line of a file of users, as `htpasswd` and `openssl passwd` write them.
fn line(user: &str, password: &str, by: &str) -> String {
    let output = match by {
        "htpasswd" => Command::new("htpasswd")
            .args(["-nbB", "-C", "4", user, password])
            .output(),
        kind => Command::new("openssl")
            .args(["passwd", kind, password])
            .output(),
    };
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    match by {
        "htpasswd" => text.trim().to_owned() + "\n",
        _ => format!("{user}:{}\n", text.trim()),
    }
}

fn config(member: &Member, lines: &str) -> String {
    let at = member.address();
    format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [\"{at}\"]\n{lines}\n"
    )
}

/// A member that answers with the fields `X-User` and `Authorization`.
fn echo() -> Member {
    Member::answering_with(|request| {
        let of = |name| request.values(name).join(",");
        ok_response(&format!("{}|{}", of("x-user"), of("authorization")))
    })
}

/// Status, fields and body of what curl gets.
fn ask(balancer: &Balancer, client: &str, path: &str, more: &[&str]) -> (String, String, String) {
    let url = format!("http://{}{path}", balancer.address("web"));
    let arguments = [&[client, "-D", "-"], more, &[&url]].concat();
    let text = run_curl(&arguments);
    let (fields, body) = text.split_once("\r\n\r\n").unwrap();
    let status = fields.split(' ').nth(1).unwrap().to_owned();
    (status, fields.to_lowercase(), body.to_owned())
}

fn metric(balancer: &Balancer, result: &str) -> f64 {
    balancer.rule_count("auth_total", &format!("result=\"{result}\"")) as f64
}

#[test]
fn only_users_with_their_passwords_get_to_members() {
    if !are_installed(&["curl", "htpasswd", "openssl"]) {
        return;
    }
    let member = echo();
    let logs = Folder::new();
    let log = logs.join("access.log").display().to_string();
    let auth = "{ users_file = \"users\", realm = \"The shop\", user_field = \"X-User\" }";
    let lines = &format!("auth = {auth}\n[access_log]\noutput = {log:?}");
    let users = line("anna", "secret", "htpasswd")
        + &line("bert", "geheim", "-5")
        + &line("carl", "käse", "-6");
    let balancer = Balancer::start_with(&config(&member, lines), |folder| {
        folder.write("users", users);
    });
    for client in CLIENTS {
        for (user, password) in [("anna", "secret"), ("bert", "geheim"), ("carl", "käse")] {
            let pair = format!("{user}:{password}");
            // The second time it is remembered.
            for _ in 0..2 {
                let (status, _, body) = ask(&balancer, client, "/", &["-u", &pair]);
                assert_eq!(status, "200", "{user}");
                assert!(body.starts_with(&format!("{user}|Basic ")), "{body}");
            }
        }
        // Nobody can say that it is somebody else.
        for forged in ["X-User: carl", "x_user: carl"] {
            let more = ["-u", "anna:secret", "-H", forged];
            let (_, _, body) = ask(&balancer, client, "/", &more);
            assert!(body.starts_with("anna|"), "{body}");
        }
        let before = member.seen_events().len();
        assert!(before > 0);
        for (more, text) in [
            (&[][..], "needed"),
            (&["-H", "Authorization: Bearer x"], "needed"),
            (&["-H", "Authorization: Basic !!!!"], "needed"),
            (&["-u", "anna:"], "wrong"),
            (&["-u", "anna:geheim"], "wrong"),
            (&["-u", "Anna:secret"], "wrong"),
            (&["-u", "dora:secret"], "wrong"),
            (&["-u", "dora:secret", "-H", "X-User: anna"], "wrong"),
            (&["-u", "anna:wrong", "-d", "body=1"], "wrong"),
        ] {
            let (status, fields, body) = ask(&balancer, client, "/", more);
            assert_eq!(status, "401", "{more:?}");
            let challenge = "www-authenticate: basic realm=\"the shop\", charset=\"utf-8\"";
            assert!(fields.contains(challenge), "{fields}");
            assert!(body.contains(text), "{more:?}: {body}");
        }
        let asked = member.seen_events();
        let requests = asked
            .iter()
            .filter(|seen| matches!(seen, Seen::Request(..)));
        assert_eq!(requests.count(), 0, "{asked:?}");
    }
    assert_eq!(
        (metric(&balancer, "passed"), metric(&balancer, "wrong")),
        (16.0, 12.0)
    );
    assert_eq!(metric(&balancer, "missing"), 6.0);
    // A connection goes on after a 401, and two fields are none.
    let mut wire = Wire::connect(balancer.address("web"));
    let pair = "Authorization: Basic YW5uYTpzZWNyZXQ=\r\n";
    for (fields, status) in [
        ("", "401"),
        (pair, "200"),
        (&pair.repeat(2), "401"),
        (pair, "200"),
    ] {
        wire.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        assert_eq!(wire.read_response().second_word(), status);
    }
    // The log says who it was, but not who somebody claims to be.
    wait_until("the log has all", || {
        let log = logs.text("access.log");
        let users = log.matches("\"user\":\"anna\"").count();
        let others = log.matches("\"end\":\"unauthorized\"").count();
        assert!(!log.contains("dora"));
        users == 10 && others == 20
    });
}

#[test]
fn routes_have_other_users_or_none_and_files_are_read_again() {
    if !are_installed(&["curl", "htpasswd", "openssl"]) {
        return;
    }
    let member = echo();
    let routes = "[[rule.web.routes]]\npath = \"/open/*\"\nauth = false\n\
        [[rule.web.routes]]\npath = \"/admin/*\"\n\
        auth = { users_file = \"admins\", user_field = \"X-User\", remove_authorization = true }\n\
        [[rule.web.routes]]\npath = \"/told\"\nanswer = { body = \"told\" }\n";
    let lines = format!("auth = {{ users_file = \"users\" }}\n{routes}");
    let configured = config(&member, &lines);
    let balancer = Balancer::start_with(&configured, |folder| {
        folder.write("users", line("anna", "secret", "htpasswd"));
        folder.write("admins", line("root", "toor", "-6"));
    });
    let status = |path: &str, pair: &str| {
        let [one, two] = CLIENTS.map(|client| ask(&balancer, client, path, &["-u", pair]).0);
        assert_eq!(one, two);
        one
    };
    for (path, of_anna, of_root) in [
        ("/", "200", "401"),
        ("/admin/x", "401", "200"),
        ("/open/x", "200", "200"),
        // What the balancer answers by itself is not for everybody, either.
        ("/told", "200", "401"),
    ] {
        assert_eq!(status(path, "anna:secret"), of_anna, "{path}");
        assert_eq!(status(path, "root:toor"), of_root, "{path}");
    }
    // The field cannot be forged on the routes that do not set it, either.
    let more = ["-H", "X-User: root"];
    assert_eq!(ask(&balancer, CLIENTS[0], "/open/x", &more).2, "|");
    let more = ["-u", "root:toor"];
    assert_eq!(ask(&balancer, CLIENTS[1], "/admin/x", &more).2, "root|");

    // Another password is noticed without a reload, and the one that was right is forgotten.
    balancer
        .folder()
        .write("users", line("anna", "other", "htpasswd"));
    wait_until("the other password is right", || {
        ask(&balancer, CLIENTS[0], "/", &["-u", "anna:other"]).0 == "200"
    });
    assert_eq!(status("/", "anna:secret"), "401");
    assert_eq!(status("/", "anna:other"), "200");
    assert_eq!(status("/admin/x", "root:toor"), "200");
    // A file with errors changes nothing, and all of them are said.
    let bad = "anna:secret\n".to_owned() + &line("bert", "x", "-apr1");
    let file = balancer.folder().write("users", bad);
    wait_until("the reload fails", || {
        balancer
            .log()
            .contains("stays in use until the file is right")
    });
    assert_eq!(status("/", "anna:other"), "200");
    let checked = balancer
        .folder()
        .join("evenkeel.toml")
        .display()
        .to_string();
    let complaint = run_evenkeel(&["check", &checked]).unwrap_err();
    let file = file.display();
    for wanted in [
        format!("rule.web.auth.users_file: {file}:1: the hash is not of Argon2"),
        format!("{file}:2: the hash is MD5 ($apr1$)"),
    ] {
        assert!(complaint.contains(&wanted), "{complaint}");
    }
    // Off and on again.
    balancer.reconfigure(&config(&member, ""));
    assert_eq!(ask(&balancer, CLIENTS[0], "/", &[]).0, "200");
    balancer
        .folder()
        .write("users", line("anna", "third", "htpasswd"));
    balancer.reconfigure(&configured);
    assert_eq!(status("/", "anna:other"), "401");
    assert_eq!(status("/", "anna:third"), "200");
}

#[test]
fn guesses_of_passwords_hold_up_nobody_who_is_known() {
    if !are_installed(&["htpasswd"]) {
        return;
    }
    let member = echo();
    let lines = "auth = { users_file = \"users\" }";
    let balancer = Balancer::start_with(&config(&member, lines), |folder| {
        // A cost at which the guesses below take a while.
        let mut htpasswd = Command::new("htpasswd");
        htpasswd.args(["-cbB", "-C", "9", "users", "anna", "secret"]);
        let output = htpasswd.current_dir(folder.path()).output().unwrap();
        assert!(output.status.success());
    });
    let known = "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic YW5uYTpzZWNyZXQ=\r\n\r\n";
    let mut anna = balancer.connect();
    anna.send(known);
    assert_eq!(anna.read_response().second_word(), "200");
    // More at once than are compared and may wait: the rest is told to come again.
    let guess = "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic YW5uYTpndWVzcw==\r\n\r\n";
    let mut guessers: Vec<Wire> = (0..150).map(|_| balancer.connect()).collect();
    guessers.iter_mut().for_each(|guesser| guesser.send(guess));
    for _ in 0..20 {
        anna.send(known);
        assert_eq!(anna.read_response().second_word(), "200");
    }
    let mut told: Vec<String> = Vec::new();
    for guesser in &mut guessers {
        told.push(guesser.read_response().second_word().to_owned());
    }
    let of = |status: &str| told.iter().filter(|told| *told == status).count();
    assert!(
        of("401") >= 64 && of("503") > 0 && of("401") + of("503") == 150,
        "{told:?}"
    );
    assert_eq!(metric(&balancer, "busy"), of("503") as f64);
    // One more can be compared when the others are done.
    let mut late = balancer.connect();
    late.send(guess);
    assert_eq!(late.read_response().second_word(), "401");
    let folder = Folder::new();
    let missing = folder
        .write("evenkeel.toml", config(&member, lines))
        .display()
        .to_string();
    let complaint = run_evenkeel(&["check", &missing]).unwrap_err();
    assert!(complaint.contains("users: cannot be read"), "{complaint}");
}
