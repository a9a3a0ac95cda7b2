//! A service goes from one balancer to another.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::fs;
use std::net::SocketAddr;

use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::process::{are_installed, run_curl};
use evenkeel_e2e::server::Server;

const ADMIN: &str = "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n";

/// An nginx that answers `/files/name` and `/files/api/name` with this.
fn server(name: &str) -> Server {
    let server = Server::start_nginx(None);
    server.put_document("name", name);
    server
}

/// Answer that curl gets from a rule, which may have come after the start.
fn fetch(balancer: &Balancer, rule: &str, path: &str) -> String {
    let status = balancer.status();
    let mut rules = status["rules"].as_array().unwrap().iter();
    let rule = rules.find(|known| known["name"] == rule).unwrap();
    let listen = rule["listen"][0].as_str().unwrap();
    run_curl(&[&format!("http://{listen}{path}")])
}

fn members(servers: &[&Server]) -> String {
    let members = servers.iter().map(|server| server.address().to_string());
    let members: Vec<_> = members.map(|member| format!("{member:?}")).collect();
    members.join(", ")
}

#[test]
fn a_rule_with_its_groups_serves_behind_another_balancer() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    let (site, api, own) = (server("site"), server("api"), server("own"));
    let first = Balancer::start(&format!(
        "{ADMIN}[defaults]\nhealth_check = false\nhttp = {{ via = \"shop\" }}\n\
         # The shop.\n[rule.shop]\nlisten = \"127.0.0.1:0\"\ngroup = \"site\"\n\
         [[rule.shop.routes]]\npath = \"/api/*\"\ngroup = \"api\"\nrewrite_prefix = \"/files\"\n\
         [group.site]\nmembers = [{}]\n[group.api] # for machines\nmembers = [{}]\n\
         [rule.other]\nlisten = \"127.0.0.1:0\"\nmembers = [{}]\n",
        members(&[&site]),
        members(&[&api]),
        members(&[&own]),
    ));
    let served = |balancer: &Balancer, rule: &str| {
        let paths = ["/files/name", "/api/name"];
        paths.map(|path| fetch(balancer, rule, path))
    };
    assert_eq!(served(&first, "shop"), ["site", "api"]);
    let image = first.run_ctl("config export shop").unwrap();

    let config = format!(
        "{ADMIN}[rule.own]\nlisten = \"127.0.0.1:0\"\ngroup = \"api\"\n[group.api]\nmembers = [{}]\nhealth_check = false\n",
        members(&[&own]),
    );
    let second = Balancer::start(&config);
    let file = second.folder().write("shop.toml", &image);
    let file = file.display();
    let checked = run_evenkeel(&["check", &file.to_string()]).unwrap();
    assert!(
        checked.contains("good") || checked.contains("ok"),
        "{checked}"
    );

    // The other balancer has a group of that name.
    let line = image
        .lines()
        .position(|line| line.starts_with("[group.api]"));
    let line = line.unwrap() + 1;
    let refused = second
        .run_ctl(&format!("config import {file}"))
        .unwrap_err();
    let begin = format!("{file}:{line}:8: group.api: the balancer has another table of this name");
    assert!(refused.contains(&begin), "{refused}");
    assert_eq!(second.folder().text("evenkeel.toml"), config);
    assert_eq!(fetch(&second, "own", "/files/name"), "own");
    assert_eq!(second.status()["rules"].as_array().unwrap().len(), 1);

    let import = format!("config import {file} --rename api=shop-api");
    let shown = second.run_ctl(&format!("{import} --dry-run")).unwrap();
    assert!(
        shown.contains("+[group.shop-api] # for machines\n"),
        "{shown}"
    );
    assert_eq!(second.folder().text("evenkeel.toml"), config);
    let done = second
        .run_ctl(&format!("{import} --comment moved"))
        .unwrap();
    for table in ["rule.shop", "group.site", "group.shop-api"] {
        assert!(done.contains(&format!("added: {table}\n")), "{done}");
    }
    assert_eq!(served(&second, "shop"), ["site", "api"]);
    assert_eq!(fetch(&second, "own", "/files/name"), "own");
    let text = second.folder().text("evenkeel.toml");
    assert!(
        text.starts_with(&config) && text.contains("# The shop.\n[rule.shop]\n"),
        "{text}"
    );

    // Once more changes nothing; and what it is there is what it was here.
    let again = second.run_ctl(&import).unwrap();
    assert!(again.contains("nothing has changed"), "{again}");
    assert_eq!(second.folder().text("evenkeel.toml"), text);
    let there = second.run_ctl("config export shop").unwrap();
    assert_eq!(there.replace("shop-api", "api"), image);
    assert_eq!(second.status()["generation"], 2);

    // The group of the other balancer is replaced, for its own rule, too.
    let replace = format!("config import {file} --replace group.api --replace rule.shop");
    let done = second.run_ctl(&replace).unwrap();
    assert!(done.contains("replaced: group.api\n"), "{done}");
    assert_eq!(served(&second, "shop"), ["site", "api"]);
    assert_eq!(fetch(&second, "own", "/files/name"), "api");

    second.run_ctl("config undo").unwrap();
    assert_eq!(second.folder().text("evenkeel.toml"), text);
    second.run_ctl("config undo").unwrap();
    assert_eq!(second.folder().text("evenkeel.toml"), config);
    assert_eq!(fetch(&second, "own", "/files/name"), "own");
    assert_eq!(second.status()["rules"].as_array().unwrap().len(), 1);
    let none = second.run_ctl("config export shop").unwrap_err();
    assert!(none.contains("there is no rule \"shop\""), "{none}");
}

/// A balancer whose rules stand in files that it includes gives and takes images, too.
#[test]
fn a_rule_in_an_included_file_goes_out_and_another_comes_in() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    let (one, two) = (server("one"), server("two"));
    let rule = |name: &str, server: &Server| {
        let address: SocketAddr = server.address();
        format!(
            "[rule.{name}]\nlisten = \"127.0.0.1:0\"\nmembers = [\"{address}\"]\nhealth_check = false\n"
        )
    };
    let config = format!("include = [\"parts/*.toml\"]\n{ADMIN}");
    let balancer = Balancer::start_with(&config, |folder| {
        fs::create_dir(folder.join("parts")).unwrap();
        folder.write("parts/one.toml", rule("one", &one));
    });
    let image = balancer.run_ctl("config export one").unwrap();
    assert!(image.contains(&rule("one", &one)), "{image}");
    let file = balancer.folder().write("one.image", &image);
    let same = balancer
        .run_ctl(&format!("config import {}", file.display()))
        .unwrap();
    assert!(same.contains("unchanged: rule.one\n"), "{same}");
    let file = balancer.folder().write("other.image", rule("one", &two));
    let refused = balancer.run_ctl(&format!(
        "config import {} --replace rule.one",
        file.display()
    ));
    assert!(refused.unwrap_err().contains("parts/one.toml"));
    let renamed = format!("config import {} --rename one=two", file.display());
    balancer.run_ctl(&renamed).unwrap();
    assert_eq!(fetch(&balancer, "one", "/files/name"), "one");
    assert_eq!(fetch(&balancer, "two", "/files/name"), "two");
    assert_eq!(balancer.folder().text("parts/one.toml"), rule("one", &one));
}
