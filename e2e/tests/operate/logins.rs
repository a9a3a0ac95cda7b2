//! `evenkeel ctl` and `evenkeel top` with an admin API whose users have passwords.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::process::{Command, Stdio};

use evenkeel_e2e::balancer::{Balancer, add_user, evenkeel_binary};
use evenkeel_e2e::process::clean_environment;
use evenkeel_e2e::terminal::Terminal;

const PASSWORD: &str = " correct horse: battery ";

const CONFIGURATION: &str = "[admin]\nlisten = \"127.0.0.1:0\"\nusers_file = \"users\"\n\n\
    [rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"http\"\nmembers = [\"127.0.0.1:1\"]\nhealth_check = false\n";

/// A balancer with the user anna, and her password in the file `password` of its folder.
fn start() -> (Balancer, String) {
    let balancer = Balancer::start_with(CONFIGURATION, |folder| {
        add_user(&folder.join("users"), "anna", PASSWORD);
        folder.write_private("password", &format!("{PASSWORD}\nnotes\n"));
    });
    let admin = balancer.admin_address().to_string();
    (balancer, admin)
}

#[test]
fn m10_ctl_logs_in_with_a_password_from_a_file_the_environment_or_standard_input() {
    let (balancer, admin) = start();
    let run = |words: &str, variables: &[(&str, &str)], input: Option<&str>| {
        let mut command = Command::new(evenkeel_binary());
        clean_environment(&mut command).args(["ctl", "--admin", &admin]);
        command
            .args(words.split(' '))
            .envs(variables.iter().copied());
        let stdin = match input {
            Some(file) => std::fs::File::open(balancer.folder().join(file))
                .unwrap()
                .into(),
            None => Stdio::null(),
        };
        let output = command.stdin(stdin).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.success(),
            text(output.stdout) + &text(output.stderr),
        )
    };
    let file = balancer.folder().join("password");
    let file = file.to_str().unwrap();
    let environment = [("EVENKEEL_USER", "anna"), ("EVENKEEL_PASSWORD", PASSWORD)];
    let member = "web 127.0.0.1:1";
    for (words, variables, input) in [
        (
            format!("--user anna --password-file {file} drain {member}"),
            &[][..],
            None,
        ),
        (format!("weight {member} 3"), &environment[..], None),
        (
            format!("ready {member} --user anna"),
            &environment[1..],
            None,
        ),
        (format!("--user anna drain {member}"), &[], Some("password")),
    ] {
        let (is_done, told) = run(&words, variables, input);
        assert!(is_done, "{words}: {told}");
        assert!(told.contains("127.0.0.1:1 in web"), "{words}: {told}");
    }
    for (words, variables, complaint) in [
        ("status", &[][..], "Log in with --user NAME"),
        (
            "--user bert status",
            &environment[1..],
            "the name or the password is wrong",
        ),
        ("--user anna status", &[], "no password of anna: type it"),
        (
            "--password-file x status",
            &[],
            "--password-file needs --user",
        ),
        (
            "--user anna --password-file none status",
            &[],
            "cannot read the password in none",
        ),
        ("--user anna --token x status", &[], "cannot be used with"),
        // An option goes before the environment.
        (
            "--token x status",
            &environment[..],
            "the token is not the configured one",
        ),
    ] {
        let (is_done, told) = run(words, variables, None);
        assert!(!is_done && told.contains(complaint), "{words}: {told}");
    }
}

#[test]
fn m10_ctl_and_top_ask_for_the_password_in_a_terminal_and_do_not_show_it() {
    let (_balancer, admin) = start();
    let is_shown = |terminal: &Terminal| terminal.lines().join("\n").contains("horse");
    let mut ctl = Terminal::start(
        &["ctl", "--admin", &admin, "--user", "anna", "groups"],
        100,
        30,
    );
    ctl.wait_for("Password of anna:");
    ctl.press(&format!("{PASSWORD}\n"));
    assert!(ctl.wait_for_end().success());
    ctl.wait_for("STRATEGY");
    assert!(!is_shown(&ctl));

    let top = ["top", "--admin", &admin, "--user", "anna"];
    let mut wrong = Terminal::start(&top, 100, 30);
    wrong.wait_for("Password of anna:");
    wrong.press("guess\n");
    wrong.wait_for("the name or the password is wrong");
    assert!(!wrong.wait_for_end().success());

    let mut top = Terminal::start(&top, 100, 30);
    top.wait_for("Password of anna:");
    top.press(&format!("{PASSWORD}\n"));
    top.wait_for("1 group  0 req/s");
    assert!(!is_shown(&top));
    top.press("q");
    assert!(top.wait_for_end().success());
}
