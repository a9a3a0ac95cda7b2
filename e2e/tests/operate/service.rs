//! The balancer as a service: as whom it runs, which rights it keeps, what is said where one is missing, and
//! its units. Needs root, as whoever starts a service has it.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};

use evenkeel_e2e::balancer::{Balancer, evenkeel_binary, run_evenkeel, run_lab};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::netns::Namespace;
use evenkeel_e2e::process::{Signal, are_installed, report_skipped};
use evenkeel_e2e::tls::{Key, make_certificate, s_client};
use evenkeel_e2e::wait_until;

/// The user that is there on every Linux.
const NOBODY: u32 = 65534;

const NET_BIND_SERVICE: u64 = 1 << 10;
const NET_RAW: u64 = 1 << 13;

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        report_skipped("only root gives up rights; run it as root");
    }
    is_root
}

/// A line of `/proc/PID/task/TID/status`.
fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {status}"));
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the rights of all threads of a process, which must be alike: the user they run as, and
/// their capabilities.
fn rights(process: u32) -> (String, u64) {
    let mut all = BTreeSet::new();
    let mut threads = 0;
    for task in fs::read_dir(format!("/proc/{process}/task")).unwrap() {
        // A thread may end in the meantime.
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else {
            continue;
        };
        threads += 1;
        let names = [
            "Uid:",
            "Gid:",
            "CapInh:",
            "CapPrm:",
            "CapEff:",
            "CapBnd:",
            "CapAmb:",
            "NoNewPrivs:",
        ];
        all.insert(names.map(|name| field(&status, name)));
    }
    assert!(threads > 3, "{threads} threads");
    assert_eq!(all.len(), 1, "threads differ: {all:#?}");
    let [
        uid,
        gid,
        inheritable,
        permitted,
        effective,
        bounding,
        ambient,
        no_new,
    ] = all.into_iter().next().unwrap();
    for other in [inheritable, effective, bounding, ambient] {
        assert_eq!(permitted, other);
    }
    assert_eq!(no_new, "1");
    (
        format!("{uid}; {gid}"),
        u64::from_str_radix(&permitted, 16).unwrap(),
    )
}

/// A configuration with rules at these ports of loopback, which answer by themselves.
fn config(folder: &Path, ports: &[u16], more: &str) -> String {
    let folder = folder.display();
    let rules = ports.iter().map(|port| {
        format!(
            "[rule.at-{port}]\nlisten = \"127.0.0.1:{port}\"\nprotocol = \"http\"\nmembers = [\"127.0.0.1:1\"]\n\
             [[rule.at-{port}.routes]]\nanswer = {{ status = 200, body = \"hello\" }}\n"
        )
    });
    let rules: String = rules.collect();
    format!(
        "workers = 2\n[process]\nuser = \"nobody\"\n[access_log]\noutput = \"{folder}/log/access.log\"\n\
         [admin]\nlisten = \"127.0.0.1:9900\"\naudit_log = \"{folder}/log/audit.log\"\n{rules}{more}"
    )
}

/// A folder for logs in `folder`, which is the user's; with a log that root has begun.
fn prepare(folder: &Folder) {
    let log = folder.make_folder("log");
    chown(&log, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::write(log.join("access.log"), "").unwrap();
}

fn connects(to: &str) -> bool {
    TcpStream::connect(to.parse::<SocketAddr>().unwrap()).is_ok()
}

#[test]
fn root_becomes_the_user_in_all_threads_and_everything_goes_on() {
    if !is_root() || !are_installed(&["openssl"]) {
        return;
    }
    let Some(namespace) = Namespace::with_loopback() else {
        return;
    };
    let elsewhere = Folder::new();
    let page = elsewhere.write("page.html", "closed");
    let mut folder = None;
    let balancer = Balancer::start_by("", |own| {
        prepare(own);
        let certificates = own.make_folder("certificates");
        chown(&certificates, Some(NOBODY), Some(NOBODY)).unwrap();
        make_certificate(own, "first", Key::Ecdsa, "DNS:first.example", None);
        make_certificate(own, "second", Key::Ecdsa, "DNS:second.example", None);
        give(own, "first.pem");
        folder = Some(own.path().to_owned());
        let mut command = namespace.command("sh");
        // The configuration has the path of the folder in it.
        let tls = format!(
            "[rule.at-443]\nlisten = \"127.0.0.1:443\"\nprotocol = \"http\"\nmembers = [\"127.0.0.1:1\"]\n\
             tls = {{ certificates = \"{}/certificates/site.pem\" }}\n",
            own.path().display()
        );
        own.write("started.toml", config(own.path(), &[80], &tls));
        command.args(["-c", "cat $0/started.toml > $3; exec \"$1\" \"$2\" \"$3\""]);
        command.arg(own.path()).arg(evenkeel_binary());
        command
    });
    let folder = folder.unwrap();
    namespace.run_inside(|| {
        let (who, capabilities) = rights(balancer.id());
        assert_eq!(who, format!("{0} {0} {0} {0}; {0} {0} {0} {0}", NOBODY));
        assert_eq!(capabilities, NET_BIND_SERVICE);
        wait_until("the log says so", || {
            balancer.log().contains("runs as nobody")
        });
        // What root had begun is the user's, and is written.
        let log = folder.join("log/access.log");
        assert_eq!(fs::metadata(&log).unwrap().uid(), NOBODY);
        let mut wire = evenkeel_e2e::wire::Wire::connect("127.0.0.1:80".parse().unwrap());
        wire.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert_eq!(wire.read_response().text(), "hello");
        wait_until("the request is in the log", || {
            fs::read_to_string(&log).unwrap().contains("at-80")
        });
        // A reload listens on another low port.
        let tls = fs::read_to_string(folder.join("started.toml")).unwrap();
        let tls = tls.split_once("[rule.at-443]").unwrap().1;
        let tls = format!("[rule.at-443]{tls}");
        balancer.write_config(&config(&folder, &[80, 81], &tls));
        wait_until("the new rule listens", || connects("127.0.0.1:81"));
        // Log files are opened again, and new ones belong to the user.
        fs::rename(&log, folder.join("log/access.log.1")).unwrap();
        balancer.signal(Signal::HUP);
        wait_until("there is a new log", || log.exists());
        assert_eq!(fs::metadata(&log).unwrap().uid(), NOBODY);
        // Another certificate in place of the first.
        let shown = || s_client("127.0.0.1:443".parse().unwrap(), &["-servername", "x"], "");
        assert!(shown().contains("CN = first"), "{}", shown());
        let own = folder.join("certificates");
        fs::copy(folder.join("second.pem"), own.join("new")).unwrap();
        chown(own.join("new"), Some(NOBODY), Some(NOBODY)).unwrap();
        fs::rename(own.join("new"), own.join("site.pem")).unwrap();
        wait_until("it is shown", || shown().contains("CN = second"));
        // What it counts of itself is still to be seen.
        assert!(balancer.read_metric("process_open_fds").unwrap() > 5.0);

        if balancer.log().contains("has no Landlock") {
            return report_skipped("this kernel has no Landlock");
        }
        let more = format!(
            "[rule.at-82]\nlisten = \"127.0.0.1:82\"\nprotocol = \"http\"\nmembers = [\"127.0.0.1:1\"]\n\
             maintenance = {{ page = \"{}\" }}\n",
            page.display()
        );
        balancer.write_config(&config(&folder, &[80], &more));
        wait_until("a file elsewhere is refused, and why", || {
            balancer.log().contains("was started with these limits")
        });
        assert!(connects("127.0.0.1:81") && !connects("127.0.0.1:82"));
    });
}

/// The file of a certificate moves to its folder, where the user may read it.
fn give(folder: &Folder, name: &str) {
    let target = folder.join("certificates/site.pem");
    fs::copy(folder.join(name), &target).unwrap();
    chown(&target, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(&target, Permissions::from_mode(0o600)).unwrap();
}

/// A whole configuration in a folder of its own, with which the balancer is run until it ends.
fn refused(namespace: &Namespace, text: &str, wrap: &[&str]) -> String {
    let folder = Folder::new();
    prepare(&folder);
    let file = folder.write(
        "evenkeel.toml",
        text.replace("FOLDER", &folder.path().display().to_string()),
    );
    let program = wrap
        .first()
        .map_or(evenkeel_binary().to_str().unwrap(), |first| first);
    let mut command = namespace.command(program);
    if let Some((_, rest)) = wrap.split_first() {
        command.args(rest).arg(evenkeel_binary());
    }
    let output = command.arg("run").arg(&file).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "it runs: {said}");
    said
}

#[test]
fn a_right_that_is_missing_is_named_with_how_to_give_it() {
    if !is_root() || !are_installed(&["setpriv"]) {
        return;
    }
    let Some(namespace) = Namespace::with_loopback() else {
        return;
    };
    let admin = "[admin]\nenabled = false\n";
    let low =
        format!("{admin}[rule.web]\nlisten = \"127.0.0.1:80\"\nmembers = [\"127.0.0.1:1\"]\n");
    let without = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"];
    let said = refused(&namespace, &low, &without);
    for part in [
        "127.0.0.1:80",
        "CAP_NET_BIND_SERVICE",
        "setcap cap_net_bind_service=+ep",
        "AmbientCapabilities=",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let user = format!("[process]\nuser = \"nobody\"\n{admin}");
    let said = refused(&namespace, &user, &without);
    assert!(said.contains("CAP_SETUID"), "{said}");
    let other = ["setpriv", "--reuid=1", "--regid=1", "--clear-groups"];
    // Who may not even start the program says so as well.
    if Command::new("setpriv")
        .args(&other[1..])
        .arg(evenkeel_binary())
        .arg("-V")
        .output()
        .unwrap()
        .status
        .success()
    {
        let said = refused(&namespace, &user, &other);
        assert!(said.contains("has no right to become nobody"), "{said}");
    }
    let said = refused(&namespace, &user.replace("nobody", "no-such-user"), &[]);
    assert!(said.contains("useradd --system"), "{said}");
    // All at once: what may not be read, and what may not be written.
    let secret = Folder::new();
    let key = secret.write("token", "long-enough-token");
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let logs = secret.join("logs");
    fs::create_dir(&logs).unwrap();
    fs::set_permissions(&logs, Permissions::from_mode(0o755)).unwrap();
    let said = refused(
        &namespace,
        &format!(
            "[process]\nuser = \"nobody\"\n[admin]\nlisten = \"127.0.0.1:9900\"\ntoken_file = \"{}\"\n\
             [access_log]\noutput = \"{}/access.log\"\n",
            key.display(),
            logs.display()
        ),
        &[],
    );
    assert!(
        said.contains(&format!("chmod g+r {}", key.display())),
        "{said}"
    );
    assert!(
        said.contains(&format!("chown nobody {}", logs.display())),
        "{said}"
    );
}

#[test]
fn a_file_with_two_names_or_behind_a_link_is_not_given_away() {
    if !is_root() {
        return;
    }
    let Some(namespace) = Namespace::with_loopback() else {
        return;
    };
    let outside = Folder::new();
    let (one, two) = (
        outside.write("one", "root's"),
        outside.write("two", "root's"),
    );
    let text = "[process]\nuser = \"nobody\"\n[admin]\nenabled = false\n[access_log]\noutput = \"FOLDER/log/access.log\"\n";
    for link in [true, false] {
        let folder = Folder::new();
        prepare(&folder);
        let log = folder.join("log/access.log");
        fs::remove_file(&log).unwrap();
        let target = if link { &one } else { &two };
        if link {
            std::os::unix::fs::symlink(target, &log).unwrap();
        } else {
            fs::hard_link(target, &log).unwrap();
        }
        let text = text.replace("FOLDER", &folder.path().display().to_string());
        let file = folder.write("evenkeel.toml", text);
        let mut command = namespace.command(evenkeel_binary());
        let output = command.arg("run").arg(&file).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && said.contains("access.log"),
            "{said}"
        );
        assert_eq!(fs::metadata(target).unwrap().uid(), 0, "{said}");
    }
}

#[test]
fn clients_addresses_need_one_right_more() {
    if !is_root() {
        return;
    }
    let Some(namespace) = Namespace::with_loopback() else {
        return;
    };
    for (more, wanted) in [
        ("source = \"client\"\n", NET_BIND_SERVICE | NET_RAW),
        // Errors of ICMP.
        ("protocol = \"udp\"\n", NET_BIND_SERVICE | NET_RAW),
        ("", NET_BIND_SERVICE),
    ] {
        let text = format!(
            "[process]\nuser = \"nobody\"\nlandlock = false\n[admin]\nenabled = false\n\
             [rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [\"127.0.0.1:1\"]\n{more}"
        );
        let balancer = Balancer::start_by(&text, |_| namespace.command(evenkeel_binary()));
        let (who, capabilities) = rights(balancer.id());
        assert!(who.starts_with("65534 "), "{who}");
        assert_eq!(capabilities, wanted, "{more}");
        // What comes after what would be about Landlock.
        wait_until("the configuration is applied", || {
            balancer.log().contains("configuration applied")
        });
        assert!(!balancer.log().contains("Landlock"), "{}", balancer.log());
    }
}

/// Units, and what `systemd-analyze security` may say at most of each.
const UNITS: [(&str, &str, f64); 3] = [
    ("evenkeel.service", "evenkeel.service", 2.0),
    ("evenkeel-agent.service", "evenkeel-agent.service", 2.5),
    (
        "evenkeel-responder@.service",
        "evenkeel-responder@lo.service",
        3.0,
    ),
];

#[test]
fn units_are_right_and_tight() {
    if !are_installed(&["systemd-analyze"]) {
        return;
    }
    let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd");
    let folder = Folder::new();
    let text = |output: &Output| {
        let text = [&output.stdout[..], &output.stderr].concat();
        String::from_utf8(text).unwrap()
    };
    for (unit, instance, _) in UNITS {
        let unit = fs::read_to_string(packaged.join(unit)).unwrap();
        // The program of this tree, and one that is really there.
        let unit = unit.replace("/usr/bin/evenkeel", evenkeel_binary().to_str().unwrap());
        folder.write(instance, unit);
    }
    for (_, instance, limit) in UNITS {
        let analyze = |arguments: &[&str]| {
            let mut command = Command::new("systemd-analyze");
            command
                .args(arguments)
                .arg(folder.join(instance))
                .output()
                .unwrap()
        };
        let verified = analyze(&["verify", "--man=no"]);
        let said = text(&verified);
        let about_it = said.lines().filter(|line| line.contains("evenkeel"));
        assert_eq!(about_it.count(), 0, "{instance}: {said}");
        assert!(verified.status.success(), "{instance}: {said}");
        let rated = text(&analyze(&["security", "--offline=true", "--no-pager"]));
        let (_, rating) = rated.split_once("Overall exposure level").unwrap();
        let rating = rating
            .split_whitespace()
            .find_map(|word| word.parse::<f64>().ok());
        let rating = rating.unwrap_or_else(|| panic!("{instance}: {rated}"));
        assert!(rating <= limit, "{instance}: {rating}\n{rated}");
    }
    // All of them are here.
    assert_eq!(fs::read_dir(packaged).unwrap().count(), UNITS.len());
}

#[test]
fn completions_are_scripts_of_their_shells() {
    for shell in ["bash", "zsh", "fish"] {
        if !are_installed(&[shell]) {
            continue;
        }
        let folder = Folder::new();
        let script = run_evenkeel(&["completions", shell]).unwrap();
        let file = folder.write("script", &script);
        let parsed = Command::new(shell).arg("-n").arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&parsed.stderr);
        assert!(
            parsed.status.success() && said.is_empty(),
            "{shell}: {said}"
        );
    }
}

/// Checks the completions that bash offers after some words.
#[test]
fn bash_completes_commands_and_options() {
    if !are_installed(&["bash"]) {
        return;
    }
    let folder = Folder::new();
    folder.write("evenkeel", run_evenkeel(&["completions", "bash"]).unwrap());
    folder.write("evenkeel-lab", run_lab(&["completions", "bash"]).unwrap());
    let ask = r#". "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
        f=$(complete -p "$1"); f=${f#*-F }
        "${f%% *}" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"; printf '%s\n' "${COMPREPLY[@]}""#;
    for (words, offered) in [
        (&["evenkeel", "r"][..], "run"),
        (&["evenkeel", "ctl", "dr"], "drain"),
        (&["evenkeel", "sim", "--from"], "--from-log"),
        (&["evenkeel-lab", "load", "--rat"], "--rate"),
    ] {
        let mut bash = Command::new("bash");
        let output = bash
            .args(["-c", ask])
            .arg(folder.join(words[0]))
            .args(words)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(
            said.lines().any(|line| line == offered),
            "{words:?}: {said}"
        );
    }
}

#[test]
fn d2_what_the_api_cannot_write_is_told_before_somebody_tries_and_its_remedy_works() {
    if !is_root() {
        return;
    }
    let config = "[process]\nuser = \"nobody\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
                  [rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [\"127.0.0.1:1\"]\n";
    let balancer = Balancer::start(config);
    let shown = || -> serde_json::Value {
        serde_json::from_str(balancer.admin_get("/v1/config").text()).unwrap()
    };
    let save = || {
        let body = r#"{"edits":[{"op":"set","path":["rule","web","max_connections"],"value":77}]}"#;
        let mut wire = evenkeel_e2e::wire::Wire::connect(balancer.admin_address());
        wire.send(format!(
            "PATCH /v1/config HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nIf-Match: {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            shown()["revision"],
            body.len()
        ));
        let answer = wire.read_response();
        (answer.second_word().to_owned(), answer.text().to_owned())
    };
    let told = shown()["on_disk"]["unwritable"]
        .as_str()
        .unwrap()
        .to_owned();
    let steps: Vec<&str> = told.split('`').collect();
    let [_, command, _] = steps[..] else {
        panic!("{told}");
    };
    assert!(command.starts_with("chown nobody: "), "{told}");
    let (status, body) = save();
    assert_eq!(status, "500", "{body}");
    assert!(body.contains(command), "{body}");
    let done = Command::new("sh").args(["-c", command]).status().unwrap();
    assert!(done.success(), "{command}");
    assert_eq!(shown()["on_disk"]["unwritable"], serde_json::Value::Null);
    let (status, body) = save();
    assert_eq!(status, "200", "{body}");
    let text = shown()["text"].as_str().unwrap().to_owned();
    assert!(text.contains("max_connections = 77"), "{text}");
}

#[test]
fn d5_d6_check_refuses_what_a_start_would_and_its_commands_can_be_pasted() {
    if !is_root() {
        return;
    }
    let folder = Folder::new();
    let closed = folder.join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
    let token = folder.write("closed/it's a token", "long-enough-token");
    fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    for name in ["access", "audit"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    // What root has begun is given to the user at a start: nothing is wrong with it.
    fs::write(folder.join("audit/audit.log"), "").unwrap();
    let path = folder.path().display();
    let text = format!(
        "[process]\nuser = \"nobody\"\n[admin]\nlisten = \"127.0.0.1:0\"\ntoken_file = \"{}\"\n\
         audit_log = \"{path}/audit/audit.log\"\n[access_log]\noutput = \"{path}/access/access.log\"\n",
        token.display()
    );
    let file = folder.write("evenkeel.toml", text);
    let said = |command: &str| {
        let output = Command::new(evenkeel_binary())
            .arg(command)
            .arg(&file)
            .output()
            .unwrap();
        let text = [&output.stdout[..], &output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    };
    let (good, checked) = said("check");
    assert!(!good && checked.contains("2 errors"), "{checked}");
    let (_, refused) = said("run");
    let commands: Vec<&str> = checked.split('`').skip(1).step_by(2).collect();
    assert_eq!(commands.len(), 2, "{checked}");
    for command in commands {
        assert!(refused.contains(command), "{command}: {refused}");
        assert!(!command.contains("65534"), "{command}");
        let done = Command::new("sh").args(["-c", command]).status().unwrap();
        assert!(done.success(), "{command}");
    }
    let (good, checked) = said("check");
    assert!(good, "{checked}");
    // A log in a folder that is not there.
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("audit/audit.log", "none/audit.log")).unwrap();
    for command in ["check", "run"] {
        let (good, said) = said(command);
        assert!(
            !good && said.contains("admin.audit_log: cannot make"),
            "{said}"
        );
    }
}
