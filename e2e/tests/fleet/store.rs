//! Balancers that have their configuration from etcd: changes reach all of them, and whatever happens to the
//! store, clients notice nothing.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::etcd::{Between, Etcd};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::load::Clients;
use evenkeel_e2e::member::Member;
use evenkeel_e2e::process::are_installed;
use evenkeel_e2e::server::address;
use evenkeel_e2e::tls::write_secret;
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;

fn has_etcd() -> bool {
    are_installed(&["etcd", "etcdctl"])
}

/// A balancer's own file.
fn own(name: &str, url: &str, more: &str) -> String {
    format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[node]\nname = \"{name}\"\n\
         [store]\nendpoints = \"{url}\"\ncopy_file = \"copy\"\n{more}\n"
    )
}

/// Returns the configuration that balancers share: a rule with these members. `mark` tells texts
/// apart.
fn shared(members: &[SocketAddr], mark: &str) -> String {
    let members: Vec<_> = members.iter().map(ToString::to_string).collect();
    format!("# {mark}\nworkers = 1\n[rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = {members:?}\n")
}

/// A person at the store.
struct Person {
    folder: Folder,
}

impl Person {
    fn at(url: &str, more: &str) -> Self {
        let folder = Folder::new();
        // A store on a busy machine may take its time; that is no error here.
        let patient = match more.contains("timeout") {
            true => more.to_owned(),
            false => format!("timeout = \"30s\"\n{more}"),
        };
        folder.write("own.toml", own("person", url, &patient));
        Person { folder }
    }

    /// `evenkeel store` with these words, in which `@NAME` is a file of the folder.
    fn store(&self, words: &str) -> Result<String, String> {
        let own = self.folder.join("own.toml").display().to_string();
        let words = words.split(' ').map(|word| match word.strip_prefix('@') {
            Some(name) => self.folder.join(name).display().to_string(),
            None => word.to_owned(),
        });
        let words: Vec<String> = words.collect();
        let mut arguments = vec!["store", "--config", &own];
        arguments.extend(words.iter().map(String::as_str));
        run_evenkeel(&arguments)
    }

    /// Pushes a text, whatever is there.
    fn push(&self, text: &str, more: &str) -> Result<String, String> {
        self.folder.write("shared.toml", text);
        let words = format!("push @shared.toml --of latest {more}");
        self.store(words.trim())
    }
}

/// The revision of the store that a balancer runs.
fn revision(balancer: &Balancer) -> Option<f64> {
    balancer.read_metric("evenkeel_store_revision")
}

fn runs(balancer: &Balancer, number: u32) -> bool {
    revision(balancer) == Some(f64::from(number))
}

fn waits_for(balancer: &Balancer, number: u32) {
    wait_until(&format!("revision {number} is in force"), || {
        runs(balancer, number)
    });
}

#[test]
fn a_change_reaches_ten_balancers_and_no_client_notices() {
    if !has_etcd() {
        return;
    }
    let etcd = Etcd::start();
    let (one, two) = (Member::echoing_targets(), Member::echoing_targets());
    let person = Person::at(&etcd.url(), "");
    // The first one needs no revision that it is a change of.
    person
        .folder
        .write("first.toml", shared(&[one.address()], "first"));
    let said = person.store("push @first.toml -m first").unwrap();
    assert!(said.starts_with("revision 1 "), "{said}");
    let names: Vec<String> = (0..10).map(|number| format!("edge-{number}")).collect();
    let balancers: Vec<Balancer> = names
        .iter()
        .map(|name| Balancer::start(&own(name, &etcd.url(), "")))
        .collect();
    let clients: Vec<Clients> = balancers
        .iter()
        .map(|balancer| Clients::start(balancer.address("web"), 1))
        .collect();
    let mut slowest = Duration::ZERO;
    for number in 2..=6 {
        let members = [one.address(), two.address()];
        let members = &members[..usize::from(number % 2 == 0) + 1];
        person
            .push(&shared(members, &format!("{number}")), "")
            .unwrap();
        let pushed = Instant::now();
        for balancer in &balancers {
            waits_for(balancer, number);
        }
        slowest = slowest.max(pushed.elapsed());
    }
    // Each look takes its time, so this is an upper bound.
    eprintln!("five changes were live on ten balancers within {slowest:?}");
    for clients in clients {
        clients.wait_for(10);
        clients.stop_and_count();
    }
    let metrics = balancers[0].admin_get("/metrics");
    let manual = include_str!("../../../docs/admin-api.md").lines();
    let documented = manual.filter_map(|line| line.strip_prefix("| `evenkeel_store_"));
    let documented: Vec<&str> = documented.filter_map(|row| row.split('`').next()).collect();
    assert!(documented.len() >= 5, "{documented:?}");
    for name in documented {
        let family = format!("# TYPE evenkeel_store_{name} ");
        assert!(metrics.text().contains(&family), "{name} does not exist");
    }
    let history = person.store("history").unwrap();
    for name in &names {
        assert!(
            history.contains(&format!("{name}: runs revision 6 (")),
            "{history}"
        );
    }
    assert!(history.contains("<- all have it"), "{history}");
    // A push of what is not there any more is refused, and one that is wrong is not sent.
    person.folder.write("shared.toml", shared(&[], "none"));
    let complaint = person.store("push @shared.toml --of 6").unwrap_err();
    assert!(complaint.contains("members"), "{complaint}");
    person
        .folder
        .write("shared.toml", shared(&[two.address()], "late"));
    let complaint = person.store("push @shared.toml --of 5").unwrap_err();
    assert!(
        complaint.contains("the store has revision 6"),
        "{complaint}"
    );
    let complaint = person.store("push @shared.toml").unwrap_err();
    assert!(complaint.contains("--of"), "{complaint}");
    assert!(balancers.iter().all(|balancer| runs(balancer, 6)));
    // What stands there can be had, compared, and gone back to.
    let text = person.store("pull 2").unwrap();
    assert_eq!(text, shared(&[one.address(), two.address()], "2"));
    let diff = person.store("diff @shared.toml").unwrap();
    assert!(diff.contains("+# late"), "{diff}");
    person.store("rollback").unwrap();
    for balancer in &balancers {
        waits_for(balancer, 5);
    }
    person.store("rollback 2").unwrap();
    for balancer in &balancers {
        waits_for(balancer, 7);
    }
}

/// A balancer with clients that must not notice anything, and somebody who changes the store.
struct Scene {
    etcd: Etcd,
    between: Between,
    person: Person,
    member: Member,
    balancer: Balancer,
    clients: Clients,
}

impl Scene {
    fn new(etcd: Etcd) -> Self {
        let between = Between::start(etcd.address());
        let member = Member::echoing_targets();
        let person = Person::at(&etcd.url(), "");
        person.push(&shared(&[member.address()], "1"), "").unwrap();
        let balancer = Balancer::start(&own("edge", &between.url(), "timeout = \"1s\""));
        let clients = Clients::start(balancer.address("web"), 2);
        clients.wait_for(10);
        Scene {
            etcd,
            between,
            person,
            member,
            balancer,
            clients,
        }
    }

    fn push(&self, mark: &str) {
        let text = shared(&[self.member.address()], mark);
        self.person.push(&text, "").unwrap();
    }

    /// All went well, to the end.
    fn end(self) {
        self.clients.wait_for(10);
        self.clients.stop_and_count();
    }
}

#[test]
fn the_store_may_be_gone_for_as_long_as_it_likes() {
    if !has_etcd() {
        return;
    }
    let mut scene = Scene::new(Etcd::start());
    scene.push("2");
    waits_for(&scene.balancer, 2);
    scene.etcd.kill();
    wait_until("it is known that the store is gone", || {
        scene.balancer.read_metric("evenkeel_store_up") == Some(0.0)
    });
    scene.clients.wait_for(100);
    let complaint = scene
        .person
        .push(&shared(&[scene.member.address()], "x"), "");
    assert!(complaint.unwrap_err().contains("does not answer"));
    let complaint = scene.balancer.run_ctl("config set workers 2").unwrap_err();
    assert!(
        complaint.contains("the store does not answer"),
        "{complaint}"
    );
    // Another process starts with the copy.
    let Scene {
        mut etcd,
        between,
        person,
        member,
        balancer,
        clients,
    } = scene;
    clients.stop_and_count();
    let balancer = balancer.replace(&own("edge", &between.url(), "timeout = \"1s\""));
    assert!(runs(&balancer, 2));
    balancer.wait_for_log("the last good copy, revision 2, is used");
    let clients = Clients::start(balancer.address("web"), 2);
    clients.wait_for(10);
    etcd.run();
    let scene = Scene {
        etcd,
        between,
        person,
        member,
        balancer,
        clients,
    };
    scene.push("3");
    waits_for(&scene.balancer, 3);
    scene.end();
}

#[test]
fn a_store_that_was_restored_from_a_backup_changes_nothing_until_somebody_says_so() {
    if !has_etcd() {
        return;
    }
    let mut scene = Scene::new(Etcd::start());
    let backup = scene.etcd.backup("backup");
    scene.push("2");
    waits_for(&scene.balancer, 2);
    scene.etcd.restore(&backup);
    wait_until("it is seen that the store has gone back", || {
        scene.balancer.read_metric("evenkeel_store_waits") == Some(1.0)
    });
    assert!(runs(&scene.balancer, 2));
    scene.balancer.wait_for_log("gone back in time");
    wait_until("people can see it", || {
        let history = scene.person.store("history").unwrap();
        history.contains("edge: runs revision 2") && history.contains("waits:")
    });
    scene.push("3");
    waits_for(&scene.balancer, 3);
    assert_eq!(
        scene.balancer.read_metric("evenkeel_store_waits"),
        Some(0.0)
    );
    // The same, and what is there is confirmed: it is what was pushed before the backup.
    scene.etcd.restore(&backup);
    wait_until("it is seen that the store has gone back", || {
        scene.balancer.read_metric("evenkeel_store_waits") == Some(1.0)
    });
    assert!(runs(&scene.balancer, 3));
    scene.person.store("confirm").unwrap();
    waits_for(&scene.balancer, 1);
    scene.end();
}

#[test]
fn a_full_store_is_followed_and_takes_nothing() {
    if !has_etcd() {
        return;
    }
    let etcd = Etcd::start_with(&["--quota-backend-bytes=4194304"]);
    let scene = Scene::new(etcd);
    scene.push("2");
    waits_for(&scene.balancer, 2);
    let filler = "x".repeat(500_000);
    let mut complaint = String::new();
    for _ in 0..100 {
        match scene.etcd.try_ctl(&["put", "filler"], &filler) {
            Ok(_) => {}
            Err(said) => {
                complaint = said;
                break;
            }
        }
    }
    assert!(complaint.contains("space exceeded"), "{complaint}");
    let refused = scene
        .person
        .push(&shared(&[scene.member.address()], "3"), "");
    let refused = refused.unwrap_err();
    assert!(refused.contains("the store is full"), "{refused}");
    scene.clients.wait_for(50);
    assert!(runs(&scene.balancer, 2));
    // A second, its limit for an answer, may be too short on a busy machine; then it asks again.
    wait_until("it is known that the store is there", || {
        scene.balancer.read_metric("evenkeel_store_up") == Some(1.0)
    });
    let now = scene.etcd.revision().to_string();
    scene.etcd.run_etcdctl(&["compact", &now]);
    scene.etcd.run_etcdctl(&["defrag"]);
    scene.etcd.run_etcdctl(&["alarm", "disarm"]);
    scene.push("3");
    waits_for(&scene.balancer, 3);
    scene.end();
}

#[test]
fn a_slow_store_is_followed_late() {
    if !has_etcd() {
        return;
    }
    let scene = Scene::new(Etcd::start());
    scene.between.slow_down(Duration::from_millis(300));
    scene.push("2");
    waits_for(&scene.balancer, 2);
    // Slower than it may be: that is as if it were gone.
    scene.between.slow_down(Duration::from_secs(5));
    scene.push("3");
    wait_until("it is too slow", || {
        scene.balancer.read_metric("evenkeel_store_up") == Some(0.0)
    });
    scene.between.slow_down(Duration::ZERO);
    waits_for(&scene.balancer, 3);
    scene.end();
}

#[test]
fn what_happened_while_nobody_watched_is_not_lost() {
    if !has_etcd() {
        return;
    }
    let scene = Scene::new(Etcd::start());
    scene.between.cut_connections();
    for mark in ["2", "3", "4"] {
        scene.push(mark);
    }
    // What a watch would have to tell is gone.
    let now = scene.etcd.revision().to_string();
    scene.etcd.run_etcdctl(&["compact", &now]);
    scene.between.accept_connections();
    waits_for(&scene.balancer, 4);
    let applied = "evenkeel_store_revisions_total{result=\"applied\"}";
    assert_eq!(
        scene.balancer.read_metric(applied),
        Some(1.0),
        "the last one, once"
    );
    scene.end();
}

#[test]
fn changes_by_the_admin_api_are_written_to_the_store() {
    if !has_etcd() {
        return;
    }
    let etcd = Etcd::start();
    let person = Person::at(&etcd.url(), "");
    let member = Member::echoing_targets();
    person.push(&shared(&[member.address()], "1"), "").unwrap();
    let start = |name| Balancer::start(&own(name, &etcd.url(), ""));
    let (one, two) = (start("one"), start("two"));
    let own_file = one.folder().text("evenkeel.toml");
    let set = "config set rule.web.strategy random --comment because";
    one.run_ctl(set).unwrap();
    assert!(runs(&one, 2), "who has asked finds it in force");
    waits_for(&two, 2);
    let text = person.store("pull").unwrap();
    assert!(
        text.starts_with("# 1\n") && text.contains("strategy = \"random\""),
        "{text}"
    );
    assert_eq!(one.folder().text("evenkeel.toml"), own_file);
    assert!(person.store("history").unwrap().contains("because"));
    // Both see it as the configuration, and its history.
    let shown = two.run_ctl("config show").unwrap();
    assert!(shown.contains("random"), "{shown}");
    two.run_ctl("config undo").unwrap();
    waits_for(&one, 3);
    assert_eq!(
        person.store("pull").unwrap(),
        shared(&[member.address()], "1")
    );
    // What is each balancer's own cannot be written there.
    let complaint = one.run_ctl("config set node.name x").unwrap_err();
    assert!(complaint.contains("own file"), "{complaint}");
    // What its own file says comes into effect with what is shared.
    let log = one.folder().join("access.log");
    let log_file = format!("[access_log]\noutput = \"{}\"\n", log.display());
    one.reconfigure(&format!("{own_file}\n{log_file}"));
    assert!(runs(&one, 3));
    let mut wire = one.connect();
    wire.send("GET /echo/1 HTTP/1.1\r\nHost: a\r\n\r\n");
    wire.read_response();
    wait_until("it logs", || {
        let log = fs::read_to_string(&log);
        log.is_ok_and(|log| !log.is_empty())
    });
    // The image of a rule goes to the store, too.
    let image = two.run_ctl("config export web").unwrap();
    let file = one.folder().write("web.image", image);
    let import = format!("config import {} --rename web=twin", file.display());
    let done = one.run_ctl(&import).unwrap();
    assert!(done.contains("added: rule.twin\n"), "{done}");
    waits_for(&two, 4);
    let text = person.store("pull").unwrap();
    assert!(text.contains("[rule.twin]\n"), "{text}");
    assert_eq!(
        two.folder().text("evenkeel.toml"),
        own("two", &etcd.url(), "")
    );
}

#[test]
fn a_revision_that_a_balancer_cannot_have_is_refused_there_and_said() {
    if !has_etcd() {
        return;
    }
    let etcd = Etcd::start();
    let person = Person::at(&etcd.url(), "");
    let member = Member::echoing_targets();
    person.push(&shared(&[member.address()], "1"), "").unwrap();
    let balancer = Balancer::start(&own("edge", &etcd.url(), ""));
    let clients = Clients::start(balancer.address("web"), 1);
    // Good by itself, but that address is taken on this machine.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let bad = format!(
        "{}[rule.more]\nlisten = \"{}\"\nmembers = [\"{}\"]\n",
        shared(&[member.address()], "2"),
        taken.local_addr().unwrap(),
        member.address()
    );
    person.push(&bad, "").unwrap();
    wait_until("people can see that it is refused", || {
        let history = person.store("history").unwrap();
        history.contains("edge: runs revision 1") && history.contains("refuses revision 2")
    });
    // Not even a restart is in its way.
    clients.wait_for(10);
    clients.stop_and_count();
    let balancer = balancer.replace(&own("edge", &etcd.url(), ""));
    assert!(runs(&balancer, 1));
    person.store("rollback").unwrap();
    person.push(&shared(&[member.address()], "3"), "").unwrap();
    waits_for(&balancer, 3);
}

#[test]
fn a_roll_out_goes_on_by_itself_and_a_bad_one_is_taken_back() {
    if !has_etcd() {
        return;
    }
    let etcd = Etcd::start();
    let rollout =
        "[store.rollout]\nwatch = \"1s\"\nlimit = \"30s\"\nmin_requests = 20\nslower = 50.0\n";
    let person = Person::at(&etcd.url(), rollout);
    let member = Member::echoing_targets();
    person.push(&shared(&[member.address()], "1"), "").unwrap();
    let names = ["a", "b", "c", "d"];
    let start = |name: &&str| Balancer::start(&own(name, &etcd.url(), rollout));
    let balancers: Vec<Balancer> = names.iter().map(start).collect();
    let loads: Vec<_> = balancers
        .iter()
        .map(|balancer| Load::start(balancer.address("web")))
        .collect();
    let said = person.push(&shared(&[member.address()], "2"), "").unwrap();
    assert!(said.contains("step by step"), "{said}");
    let refused = person
        .push(&shared(&[member.address()], "x"), "")
        .unwrap_err();
    assert!(refused.contains("is being rolled out"), "{refused}");
    for balancer in &balancers {
        waits_for(balancer, 2);
    }
    wait_until("the roll-out is over", || {
        let history = person.store("history").unwrap();
        history
            .lines()
            .any(|line| line.trim_start().starts_with("2 ") && line.contains("all have it"))
    });
    // Nobody listens there.
    let closed = address();
    person.push(&shared(&[closed], "3"), "").unwrap();
    wait_until("it is taken back", || {
        let history = person.store("history").unwrap();
        history.contains("revision 3 (") && history.contains("was taken back")
    });
    for balancer in &balancers {
        waits_for(balancer, 2);
    }
    // It has never come to the one that drives it, which is the first by name.
    balancers[0].wait_for_log("is taken back");
    let log = balancers[0].log();
    assert!(
        !log.contains(") of the store is in force number=3"),
        "{log}"
    );
    drop(loads);
}

#[test]
fn a_store_with_tls_and_users_lets_in_who_has_the_password() {
    if !has_etcd() || !are_installed(&["openssl"]) {
        return;
    }
    let mut etcd = Etcd::start_secured();
    etcd.ask_for_users("pass-word", "/evenkeel/");
    let ca = etcd.folder().join("ca.crt").display().to_string();
    let more = format!(
        "tls = {{ ca_file = \"{ca}\" }}\nuser = \"evenkeel\"\npassword_file = \"password\"\n"
    );
    let person = Person::at(&etcd.url(), &more);
    let member = Member::echoing_targets();
    let first = shared(&[member.address()], "1");
    write_secret(&person.folder, "password", "wrong\n");
    let refused = person.push(&first, "").unwrap_err();
    assert!(refused.contains("refuses the user evenkeel"), "{refused}");
    // A balancer that has no copy yet ends, and says the same.
    let own_file = person.folder.join("own.toml").display().to_string();
    let refused = run_evenkeel(&["run", &own_file]).unwrap_err();
    assert!(refused.contains("refuses the user evenkeel"), "{refused}");
    write_secret(&person.folder, "password", "pass-word\n");
    person.push(&first, "").unwrap();
    let elsewhere = Person::at(&etcd.url(), &format!("prefix = \"/other/\"\n{more}"));
    write_secret(&elsewhere.folder, "password", "pass-word\n");
    let refused = elsewhere.push(&first, "").unwrap_err();
    assert!(refused.contains("permission denied"), "{refused}");
    let stranger = Person::at(&etcd.url(), "");
    let refused = stranger.push(&first, "").unwrap_err();
    assert!(
        refused.contains("does not answer") && refused.contains("certificate"),
        "{refused}"
    );
    let balancer = Balancer::start_with(&own("edge", &etcd.url(), &more), |folder| {
        write_secret(folder, "password", "pass-word\n");
    });
    let clients = Clients::start(balancer.address("web"), 1);
    // Its servers forget who has logged in.
    etcd.kill();
    etcd.run();
    person.push(&shared(&[member.address()], "2"), "").unwrap();
    waits_for(&balancer, 2);
    balancer.run_ctl("config set workers 2").unwrap();
    assert!(runs(&balancer, 3));
    clients.wait_for(10);
    clients.stop_and_count();
}

#[test]
fn what_is_a_balancers_own_and_what_it_shares_are_one_configuration() {
    if !has_etcd() {
        return;
    }
    let etcd = Etcd::start();
    let rule = "[rule.web]\nlisten = \"127.0.0.1:0\"\ngroup = \"all\"\n";
    let person = Person::at(&etcd.url(), rule);
    let member = Member::echoing_targets();
    let push = |text: &str| {
        person.folder.write("shared.toml", text);
        person.store("push @shared.toml")
    };
    // All that is wrong is told at once, with its place.
    let members = format!("members = [\"{}\"]\n", member.address());
    let bad = format!("[group.all]\n{members}strategy = \"randm\"\n[group.b]\nmember = []\n");
    let complaint = push(&bad).unwrap_err();
    assert!(
        complaint.contains("shared.toml:3:12: group.all.strategy")
            && complaint.contains("shared.toml:5:1: group.b.member"),
        "{complaint}"
    );
    // It is good by itself, but not beside what this balancer has.
    let complaint = push(&format!("[group.other]\n{members}")).unwrap_err();
    assert!(
        complaint.contains("own.toml:") && complaint.contains("rule.web.group"),
        "{complaint}"
    );
    let complaint = push(&format!("[group.all]\n{members}[node]\nname = \"x\"\n")).unwrap_err();
    assert!(complaint.contains("own file"), "{complaint}");
    let complaint = person.store("pull").unwrap_err();
    assert!(
        complaint.contains("nothing in the store yet"),
        "{complaint}"
    );
    // What stands in the store cannot be looked up while there is no copy of it.
    let own_file = person.folder.join("own.toml").display().to_string();
    let complaint = run_evenkeel(&["check", &own_file]).unwrap_err();
    assert!(complaint.contains("no last good copy"), "{complaint}");
    let complaint = run_evenkeel(&["run", &own_file]).unwrap_err();
    assert!(complaint.contains("`evenkeel store push`"), "{complaint}");
    push(&format!("[group.all]\n{members}")).unwrap();
    let balancer = Balancer::start(&own("edge", &etcd.url(), rule));
    let clients = Clients::start(balancer.address("web"), 1);
    clients.wait_for(10);
    clients.stop_and_count();
    let own_file = balancer
        .folder()
        .join("evenkeel.toml")
        .display()
        .to_string();
    // It serves a little sooner than its copy is written.
    wait_until("the copy is there", || {
        run_evenkeel(&["check", &own_file])
            .is_ok_and(|said| said.contains("revision 1 of the store"))
    });
}

#[test]
fn a_balancer_without_a_copy_waits_for_the_store() {
    if !has_etcd() {
        return;
    }
    let etcd = Etcd::start();
    let between = Between::start(etcd.address());
    between.cut_connections();
    let member = Member::echoing_targets();
    let person = Person::at(&etcd.url(), "");
    person.push(&shared(&[member.address()], "1"), "").unwrap();
    let balancer = std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_until("it asks in vain", || between.refused_count() > 0);
            between.accept_connections();
        });
        Balancer::start(&own("edge", &between.url(), ""))
    });
    assert!(runs(&balancer, 1));
    balancer.wait_for_log("waiting for the store");
}

#[test]
fn balancers_of_one_name_are_told() {
    if !has_etcd() {
        return;
    }
    let etcd = Etcd::start();
    let person = Person::at(&etcd.url(), "");
    let member = Member::echoing_targets();
    person.push(&shared(&[member.address()], "1"), "").unwrap();
    let first = Balancer::start(&own("edge", &etcd.url(), ""));
    wait_until("it reports", || {
        person.store("history").unwrap().contains("edge: runs")
    });
    let second = Balancer::start(&own("edge", &etcd.url(), ""));
    wait_until("the first one says that there are two", || {
        first.log().contains("another balancer is called \"edge\"")
    });
    // Both go on all the same.
    person.push(&shared(&[member.address()], "2"), "").unwrap();
    waits_for(&first, 2);
    waits_for(&second, 2);
}

#[test]
fn an_upgrade_takes_what_the_store_has_along() {
    if !has_etcd() {
        return;
    }
    let mut scene = Scene::new(Etcd::start());
    scene.push("2");
    waits_for(&scene.balancer, 2);
    // Even while it does not answer.
    scene.between.cut_connections();
    wait_until("it is known that the store is gone", || {
        scene.balancer.read_metric("evenkeel_store_up") == Some(0.0)
    });
    scene.balancer.upgrade().unwrap();
    assert!(runs(&scene.balancer, 2));
    scene.push("3");
    scene.between.accept_connections();
    waits_for(&scene.balancer, 3);
    wait_until("people can see it", || {
        let history = scene.person.store("history").unwrap();
        history.contains("edge: runs revision 3")
    });
    let log = scene.balancer.log();
    assert!(!log.contains("another balancer is called"), "{log}");
    scene.end();
}

#[test]
fn servers_of_the_store_may_go_one_at_a_time() {
    if !has_etcd() {
        return;
    }
    let mut etcds = Etcd::start_three();
    let urls: Vec<String> = etcds.iter().map(Etcd::url).collect();
    let all = |text: &str| text.replace("\"URLS\"", &format!("{urls:?}"));
    let person = Person::at("URLS", "");
    let own_file = all(&person.folder.text("own.toml"));
    person.folder.write("own.toml", own_file);
    let member = Member::echoing_targets();
    // While another server becomes the leader there may be no answer; then somebody tries again.
    let push = |mark: &str| {
        let text = shared(&[member.address()], mark);
        let mut said = String::new();
        wait_until("it is pushed", || match person.push(&text, "") {
            Ok(done) => {
                said = done;
                true
            }
            Err(_) => false,
        });
        let number = said.split(' ').nth(1).unwrap();
        number.parse::<u32>().unwrap()
    };
    push("first");
    let balancer = Balancer::start(&all(&own("edge", "URLS", "")));
    let clients = Clients::start(balancer.address("web"), 2);
    for (number, etcd) in etcds.iter_mut().enumerate() {
        etcd.kill();
        let pushed = push(&format!("without {number}"));
        waits_for(&balancer, pushed);
        etcd.run();
    }
    // The last one may answer, but does not know what the others know.
    etcds[0].kill();
    etcds[1].kill();
    wait_until("it is known that the store is gone", || {
        balancer.read_metric("evenkeel_store_up") == Some(0.0)
    });
    let refused = person.push(&shared(&[member.address()], "x"), "");
    let refused = refused.unwrap_err();
    assert!(refused.contains("does not answer"), "{refused}");
    clients.wait_for(50);
    etcds[0].run();
    let pushed = push("at last");
    waits_for(&balancer, pushed);
    clients.wait_for(10);
    clients.stop_and_count();
}

/// Requests whose answers do not matter.
struct Load {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(address: SocketAddr) -> Self {
        let stop = std::sync::Arc::<std::sync::atomic::AtomicBool>::default();
        let ends = std::sync::Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                let mut wire = Wire::connect(address);
                wire.send("GET /echo/1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
                wire.read_response();
            }
        });
        Load {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
