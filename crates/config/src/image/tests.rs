use std::fs;
use std::path::Path;

use super::*;
use crate::edit::MASK;
use crate::schema::errors::Problem;
use crate::tests::scratch_folder;
use crate::{Config, ErrorPages, FtpOptions, HttpOptions, Protocol, Rule, parse};

const SHOP: &str = r#"# The balancers of the shop.

[admin]
token = "quite-a-secret"

[defaults]
connection_timeout = "3s"
health_check = { path = "/up" }
http = { retries = 1, via = "shop" }

# The shop,
# as clients see it.
[rule.shop]
listen = "127.0.0.1:8080" # behind the firewall
http.retries = 0
[[rule.shop.routes]]
path = "/api/*"
groups = { api = 9, canary = 1 }
mirror = { group = "copies" }
[[rule.shop.routes]]
path = "/x/*"
group = "api"
headers = { "X-Key" = "hidden" }
auth = { group = "login", path = "/auth" }

[rule.mail]
listen = "127.0.0.1:2525"
protocol = "tcp"
members = ["127.0.0.1:25"]

# Nobody else's.
[group.api]
members = ["10.0.0.1:80", { address = "10.0.0.2:80", location = "big" }] # two
health_check = { path = "/api" }

[group.canary]
members = ["10.0.0.3:80"]
health_check = true
[group.copies]
members = ["10.0.0.4:80"]
[group.login]
members = ["10.0.0.5:80"]

[location.big]
zone = "north"
[location."10.0.0.1"]
zone = "south"
[location."127.0.0.1"]
zone = "south"
"#;

fn texts(text: &str) -> Vec<(String, String)> {
    vec![("evenkeel.toml".into(), text.into())]
}

fn config(text: &str) -> Config {
    parse("evenkeel.toml", text).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

fn image(text: &str, rule: &str) -> Image {
    let config = config(text);
    export(Path::new("evenkeel.toml"), &texts(text), &config, rule).unwrap()
}

fn import(text: &str) -> Import {
    Import {
        text: text.into(),
        ..Import::default()
    }
}

fn plan(text: &str, import: &Import) -> Plan {
    Plan::new(&texts(text), import)
}

/// The problems of an import, in the words that users read.
fn problems(text: &str, import: &Import) -> Vec<String> {
    let plan = plan(text, import);
    let mut problems = plan.problems.clone();
    if plan.has_text()
        && let Err(errors) = parse("evenkeel.toml", &plan.text)
    {
        problems.extend(plan.place(errors.problems));
    }
    problems.iter().map(Problem::to_string).collect()
}

/// The new text of an import that is possible.
fn imported(text: &str, import: &Import) -> String {
    let problems = problems(text, import);
    assert!(problems.is_empty(), "{problems:?}");
    plan(text, import).text
}

/// Asserts that a rule and its groups mean the same in both.
fn assert_same(one: &Config, other: &Config, rule: &str) {
    let rule_of = |config: &Config| {
        let mut rules = config.rules.iter();
        let mut rule = rules.find(|known| known.name == rule).unwrap().clone();
        // What clients of other rules may not say, either.
        rule.http.reserved.clear();
        // Keys of [defaults] that a rule of another protocol cannot have.
        if rule.protocol != Protocol::Ftp {
            rule.ftp = FtpOptions::default();
        } else {
            rule.limits.max_lifetime = None;
        }
        if rule.protocol != Protocol::Http {
            rule.http = HttpOptions::default();
            rule.limits.requests = None;
            rule.responses.error_pages = ErrorPages::default();
        }
        rule
    };
    let (rule, mut same) = (rule_of(one), rule_of(other));
    let routes = |rule: &Rule| {
        let mut routes = rule.routes.list().to_vec();
        routes
            .iter_mut()
            .for_each(|route| std::sync::Arc::make_mut(route).line = 0);
        routes
    };
    assert_eq!(routes(&rule), routes(&same));
    // What else they are is made of their list.
    same.routes = rule.routes.clone();
    assert_eq!(rule, same);
    for name in rule.group_names() {
        let group = |config: &Config| {
            let mut groups = config.groups.iter();
            groups.find(|group| group.name == name).unwrap().clone()
        };
        assert_eq!(group(one), group(other), "{name}");
    }
}

#[test]
fn an_image_is_a_configuration_with_all_that_the_rule_refers_to() {
    let image = image(SHOP, "shop");
    assert_eq!(
        image.tables,
        [
            "rule.shop",
            "group.api",
            "group.canary",
            "group.copies",
            "group.login",
            "location.big",
            "location.\"10.0.0.1\""
        ]
    );
    assert!(image.problems.is_empty(), "{:?}", image.problems);
    assert_same(&config(SHOP), &config(&image.text), "shop");
    // As it is written, and without what is about others.
    for line in [
        "# as clients see it.\n[rule.shop]\n",
        "# behind the firewall\n",
        "# Nobody else's.\n[group.api]\n",
        "location = \"big\" }] # two\n",
    ] {
        assert!(image.text.contains(line), "{line}\n{}", image.text);
    }
    for other in ["balancers of the shop", "admin", "defaults", "mail"] {
        assert!(!image.text.contains(other), "{other}\n{}", image.text);
    }
    let none = export(Path::new("x"), &texts(SHOP), &config(SHOP), "none");
    assert_eq!(none, None);
}

#[test]
fn the_rules_of_the_example_mean_the_same_in_their_images() {
    let text = fs::read_to_string("../../examples/full.toml").unwrap();
    let whole = config(&text);
    for rule in &whole.rules {
        let image = image(&text, &rule.name);
        if rule.name == "secure" {
            // The account with the authority is the balancer's.
            assert!(image.problems[0].message.contains("[acme]"), "{image:?}");
            continue;
        }
        assert!(image.problems.is_empty(), "{:?}", image.problems);
        let of_image = config(&image.text);
        assert_same(&whole, &of_image, &rule.name);
        let other = imported("[admin]\nenabled = false\n", &import(&image.text));
        assert_same(&whole, &config(&other), &rule.name);
    }
}

#[test]
fn what_defaults_say_goes_along_for_each_kind_of_rule() {
    let defaults = "[defaults]\nconnection_timeout = \"9s\"\nlimits = { connections = 7, requests = \"9/s\", max_lifetime = \"1h\" }\n\
                    http = { retries = 1, hedge = { after = \"2s\", percent = 1 } }\nftp = { data_timeout = \"5s\" }\n\
                    error_pages = { 502 = \"/502\", 503 = \"/503\" }\nhealth_check = false\nstrategy = \"random\"\n\
                    maintenance = { status = 504 }\nejection = { excess = 0.5 }\nmonitor = { key_file = \"/k\", target = 3 }\n";
    let rules = "[rule.http]\nlisten = \"127.0.0.1:1\"\ngroup = \"g\"\nhttp.hedge.after = \"1s\"\nerror_pages = { 502 = \"/own\" }\n\
                 [rule.tcp]\nlisten = \"127.0.0.1:2\"\nprotocol = \"tcp\"\nmembers = [\"10.0.0.1:1\"]\nmonitor = false\n\
                 [rule.ftp]\nlisten = \"127.0.0.1:3\"\nprotocol = \"ftp\"\nmembers = [\"10.0.0.2:1\"]\n\
                 [rule.sni]\nlisten = \"127.0.0.1:4\"\nprotocol = \"tcp\"\n[rule.sni.sni]\n\"a.example\" = \"g\"\n\
                 [group.g]\nmembers = [\"10.0.0.3:1\"]\nejection = { window = \"3s\" }\n\
                 [location.\"10.0.0.3\"]\nmonitor = { target = 4 }\n";
    let text = format!("{defaults}{rules}");
    let whole = config(&text);
    for rule in ["http", "tcp", "ftp", "sni"] {
        let image = image(&text, rule);
        assert!(
            image.problems.is_empty(),
            "{:?}\n{}",
            image.problems,
            image.text
        );
        let of_image = config(&image.text);
        assert_same(&whole, &of_image, rule);
        if rule == "http" {
            assert_eq!(whole.locations, of_image.locations);
        }
        // Where it is from, and where the same was said, nothing changes.
        for file in [&text, &format!("{defaults}{}", image.text)] {
            assert_eq!(&imported(file, &import(&image.text)), file);
        }
    }
}

#[test]
fn files_and_variables_are_listed() {
    let text = "[rule.web]\nlisten = \"127.0.0.1:1\"\nmembers = [\"${HOST:-a}:1\"]\nmembers_files = [\"m/*.json\"]\n\
                error_pages = { 503 = \"/x\\n[admin]\" }\nvia = 1\n";
    let text = text.replace("via = 1\n", "http.via = \"$${NO}\"\n");
    let text = text.replace("\"$${NO}\"", "\"no\"");
    let image = image(&text, "web");
    assert_eq!(image.variables, ["HOST"]);
    assert_eq!(image.files, ["/x\n[admin]", "m/*.json"]);
    // A name of a file is no line of the text.
    assert!(
        image.text.contains("#   \"/x\\n[admin]\"\n"),
        "{}",
        image.text
    );
    config(&image.text);
}

#[test]
fn an_image_is_added_with_its_comments_and_once() {
    let image = image(SHOP, "shop");
    for base in [
        "",
        "[admin]\nenabled = false",
        "# Ours.\r\n[admin]\r\nenabled = false\r\n",
        "[rule.own]\nlisten = \"127.0.0.1:9\"\nmembers = [\"a:1\"]\n# other = 1\n",
        "rule = { own = { listen = \"127.0.0.1:9\", members = [\"a:1\"] } }\n",
        "rule.own.listen = \"127.0.0.1:9\"\nrule.own.members = [\"a:1\"]\n",
    ] {
        let first = plan(base, &import(&image.text));
        assert_eq!(first.outcome.added, image.tables, "{base}");
        let text = imported(base, &import(&image.text));
        // In a section that is one value, tables are parts of it.
        let is_value = base.starts_with("rule = ");
        assert_eq!(text.starts_with(base), !is_value, "{base}\n{text}");
        assert_eq!(text.contains("# Nobody else's."), !is_value, "{text}");
        assert_same(&config(SHOP), &config(&text), "shop");
        let ends = if base.contains("\r\n") {
            text.lines().count()
        } else {
            0
        };
        assert_eq!(text.matches("\r\n").count(), ends);
        let again = plan(&text, &import(&image.text));
        assert_eq!(again.outcome.unchanged, image.tables);
        assert_eq!(imported(&text, &import(&image.text)), text);
    }
}

#[test]
fn another_table_of_the_same_name_is_told_replaced_or_avoided() {
    let here = "[rule.old]\nlisten = \"127.0.0.1:7\"\ngroup = \"api\"\n[group.api] # ours\nmembers = [\"10.9.9.9:80\"]\n";
    let image = image(SHOP, "shop").text;
    let line = image
        .lines()
        .position(|line| line == "[group.api]")
        .unwrap()
        + 1;
    let told = problems(here, &import(&image));
    assert_eq!(
        told,
        [format!(
            "image:{line}:8: group.api: the balancer has another table of this name, which differs in `members`, `health_check`: name the table in `replace` to replace it, or give it another name with `rename`"
        )]
    );
    assert_eq!(plan(here, &import(&image)).outcome.clashes, ["group.api"]);

    let replace = Import {
        replace: vec!["group.api".into()],
        ..import(&image)
    };
    let text = imported(here, &replace);
    assert!(text.contains("[group.api] # ours\n"), "{text}");
    assert_same(&config(SHOP), &config(&text), "shop");
    assert_eq!(imported(&text, &replace), text);

    for old in ["api", "group.api"] {
        let rename = Import {
            rename: [(old.to_owned(), "api2".to_owned())].into(),
            ..import(&image)
        };
        let text = imported(here, &rename);
        let config = config(&text);
        let rule = config
            .rules
            .iter()
            .find(|rule| rule.name == "shop")
            .unwrap();
        assert_eq!(rule.group_names(), ["api2", "canary", "copies", "login"]);
        assert!(config.groups.iter().any(|group| group.name == "api"));
        assert_eq!(imported(&text, &rename), text);
    }
}

#[test]
fn all_that_is_wrong_is_told_at_once_with_the_lines_of_the_image() {
    let here = "[rule.a]\nlisten = \"127.0.0.1:1\"\ngroup = \"g\"\n[group.g]\nmembers = [\"10.0.0.1:1\"]\n";
    let image = "[admin]\nenabled = false\n[rule.b]\nlisten = \"127.0.0.1:1\"\ngroup = \"none\"\n\
                 [[rule.b.routes]]\npath = \"/\"\ngroup = \"nobody\"\nheaders = { A = \"********\" }\nbogus = 1\n\
                 [group.g]\nmembers = [\"10.0.0.2:1\", { address = \"10.0.0.3:1\", weight = -1 }]\n";
    assert!(image.contains(MASK));
    let told = problems(here, &import(image));
    let begins = [
        "image:1:2: admin: is no part of an image",
        "image:9:17: a secret is masked",
        "image:11:8: group.g: the balancer has another table of this name",
        "image:4:1: rule.b.listen: ",
        "image:5:1: rule.b.group: ",
        "image:8:1: rule.b.routes[0].group: ",
        "image:10:1: rule.b.routes[0].bogus: unknown key",
        "image:12:52: group.g.members[1].weight: out of range",
    ];
    for begin in begins {
        let found = told.iter().filter(|problem| problem.starts_with(begin));
        assert_eq!(found.count(), 1, "{begin}\n{told:#?}");
    }
    assert_eq!(told.len(), begins.len(), "{told:#?}");
}

#[test]
fn what_is_no_image_is_refused() {
    let one = |text: &str| {
        let problems = problems("", &import(text));
        problems.into_iter().next().unwrap()
    };
    assert!(one("").contains("has one rule, this text has 0"));
    let two = "[rule.a]\nlisten = \"127.0.0.1:1\"\nmembers = [\"a:1\"]\n[rule.b]\nlisten = \"127.0.0.1:2\"\nmembers = [\"a:1\"]\n";
    assert!(one(two).contains("has one rule, this text has 2"));
    assert!(one("[rule.a\n").starts_with("image:1:"));
    let syntax = problems("", &import("[rule.a]\nlisten = \nmembers = [\n"));
    assert!(syntax.len() > 1, "{syntax:?}");
    assert!(
        one("frontend web\n  bind :80\n").contains("HAProxy"),
        "{}",
        one("frontend web\n  bind :80\n")
    );
    assert!(one("rule = 1\n").contains("has one rule"));
    assert!(
        one("[rule]\na = 1\n").starts_with("image:2:1: rule.a: "),
        "{}",
        one("[rule]\na = 1\n")
    );
    let large = "#".repeat(MAX + 1);
    assert!(one(&large).contains("too large"));
    let include =
        "include = [\"/etc/*.toml\"]\n[rule.a]\nlisten = \"127.0.0.1:1\"\nmembers = [\"a:1\"]\n";
    assert!(one(include).starts_with("image:1:1: include: is no part"));
    let many: String = (0..200).map(|index| format!("x{index} = 1\n")).collect();
    assert_eq!(problems("", &import(&many)).len(), 101);
}

const MAX: usize = crate::MAX_FILE_SIZE as usize;

#[test]
fn names_that_are_not_there_are_told() {
    let image = image(SHOP, "shop").text;
    let told = |rename: &[(&str, &str)], replace: &[&str]| {
        let rename = rename
            .iter()
            .map(|(old, new)| ((*old).to_owned(), (*new).to_owned()));
        let import = Import {
            rename: rename.collect(),
            replace: replace.iter().map(|name| (*name).to_owned()).collect(),
            ..import(&image)
        };
        problems("", &import).join("\n")
    };
    let none = told(&[("none", "x")], &[]);
    assert!(none.contains("has rule.shop, group.api"), "{none}");
    assert!(told(&[("api", "canary")], &[]).contains("there is a \"canary\" already"));
    assert!(told(&[("location.big", "x")], &[]).contains("a location cannot be renamed"));
    assert!(told(&[("api", "a b")], &[]).contains("not a name"));
    assert!(told(&[], &["group.x"]).contains("no such table to replace"));
    let both =
        "[rule.a]\nlisten = \"127.0.0.1:1\"\ngroup = \"a\"\n[group.a]\nmembers = [\"a:1\"]\n";
    let ambiguous = Import {
        rename: [("a".to_owned(), "b".to_owned())].into(),
        ..import(both)
    };
    assert!(problems("", &ambiguous)[0].contains("the image has rule.a and group.a"));
    // A rule's own group has its name.
    let own = "[rule.a]\nlisten = \"127.0.0.1:1\"\nmembers = [\"a:1\"]\nhttp.mirror = { group = \"g\" }\n[group.g]\nmembers = [\"b:1\"]\n";
    let rename = Import {
        rename: [("a".to_owned(), "b".to_owned())].into(),
        ..import(own)
    };
    let text = imported(
        "[rule.a]\nlisten = \"127.0.0.1:2\"\nmembers = [\"c:1\"]\n",
        &rename,
    );
    assert_eq!(config(&text).rules[1].group_names(), ["b", "g"]);
}

#[test]
fn tables_in_files_that_are_included_are_known_and_not_changed() {
    let folder = scratch_folder("image-included");
    let file = folder.join("evenkeel.toml");
    let part = folder.join("part.toml");
    let main = "include = [\"part.toml\"]\n[defaults]\nhealth_check = false\n";
    fs::write(
        &part,
        "[rule.a]\nlisten = \"127.0.0.1:1\"\ngroup = \"g\"\n[group.g]\nmembers = [\"a:1\"]\n",
    )
    .unwrap();
    let texts = || {
        let mut texts = vec![(file.display().to_string(), main.to_owned())];
        let included = crate::list_included(&file, main).into_iter();
        texts.extend(included.map(|(file, text)| (file.display().to_string(), text)));
        texts
    };
    let config = parse(&file.display().to_string(), main).unwrap();
    let image = export(&file, &texts(), &config, "a").unwrap();
    assert!(
        image.text.contains("health_check = false"),
        "{}",
        image.text
    );
    let same = Plan::new(&texts(), &import(&image.text));
    assert_eq!((same.text.as_str(), same.problems.len()), (main, 0));
    let other = import(&image.text.replace("\"a:1\"", "\"b:1\""));
    let refused = Plan::new(&texts(), &other);
    let message = &refused.problems[0].message;
    assert!(message.contains("part.toml"), "{message}");
    assert_eq!(refused.outcome.clashes, ["group.g"]);
    assert_eq!(refused.text, main);
}

#[test]
fn defaults_of_the_other_balancer_are_told() {
    let image = image(
        "[rule.a]\nlisten = \"127.0.0.1:1\"\nmembers = [\"a:1\"]\n",
        "a",
    );
    let there = plan(
        "[defaults]\nidle_timeout = \"1s\"\nslow_start = \"3s\"\n",
        &import(&image.text),
    );
    let warning = &there.warnings[0];
    assert_eq!(warning.key, "rule.a");
    assert!(
        warning.message.ends_with(": `idle_timeout`, `slow_start`"),
        "{warning}"
    );
    assert!(plan("", &import(&image.text)).warnings.is_empty());
}
