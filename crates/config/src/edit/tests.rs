use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;

fn set(path: &str, value: Json) -> Edit {
    let path = path_of(path);
    Edit::Set { path, value }
}

fn remove(path: &str) -> Edit {
    let path = path_of(path);
    Edit::Remove { path }
}

fn rename(path: &str, to: &str) -> Edit {
    let (path, to) = (path_of(path), to.into());
    Edit::Rename { path, to }
}

fn path_of(path: &str) -> Vec<Part> {
    path.split('/').map(Part::from).collect()
}

#[track_caller]
fn edited(text: &str, edit: Edit, expected: &str) {
    let found = apply_edits(text, &[edit]).unwrap();
    assert_eq!(
        found,
        expected,
        "\n{}",
        unified(("expected", expected), ("found", &found))
    );
}

#[track_caller]
fn refused(text: &str, edit: Edit, why: &str) {
    let error = apply_edits(text, &[edit]).unwrap_err();
    assert!(error.to_string().contains(why), "{error}");
}

const FILE: &str = r#"# The balancer of our shop.
# Ask Ann before you change it.

workers = 2 # as many as cores

[rule.shop]
listen = "127.0.0.1:80"   # behind the firewall
group = "web"
# idle_timeout = "5m"

# The web servers.
[group.web]
members = [
  "10.0.0.1:80", # the old one
  "10.0.0.2:80",
]
strategy = 'round_robin'

[group.web.alert]
threshold = 0.9

# Pictures.
[group.pictures]
members = ["10.0.1.1:80"]

[admin]
listen = "127.0.0.1:9901"
# The end.
"#;

/// The file with `old` replaced by `new`, once.
#[track_caller]
fn file(old: &str, new: &str) -> String {
    assert_eq!(FILE.matches(old).count(), 1, "{old:?}");
    FILE.replace(old, new)
}

#[test]
fn a_value_is_replaced_where_it_stands() {
    edited(
        FILE,
        set("workers", json!(4)),
        &file("workers = 2", "workers = 4"),
    );
    edited(
        FILE,
        set("group/web/strategy", json!("random")),
        &file("'round_robin'", "\"random\""),
    );
    // What says so already stays as it is written.
    edited(FILE, set("group/web/strategy", json!("round_robin")), FILE);
    edited("a = 1_000\n", set("a", json!(1000.0)), "a = 1_000\n");
}

#[test]
fn a_new_key_comes_after_the_others_of_its_table() {
    edited(
        FILE,
        set("rule/shop/protocol", json!("http")),
        &file(
            "group = \"web\"\n",
            "group = \"web\"\nprotocol = \"http\"\n",
        ),
    );
    edited(
        FILE,
        set("shutdown_grace", json!("1m")),
        &file(
            "# as many as cores\n",
            "# as many as cores\nshutdown_grace = \"1m\"\n",
        ),
    );
    edited(
        "[a]\n  b = 1\n  c = 2\n",
        set("a/d", json!([1, "x"])),
        "[a]\n  b = 1\n  c = 2\n  d = [1, \"x\"]\n",
    );
    edited(
        "a = { b = 1 }\n",
        set("a/c", json!(2)),
        "a = { b = 1, c = 2 }\n",
    );
    edited(
        "a = {b = 1}\n",
        set("a/c", json!(2)),
        "a = {b = 1, c = 2}\n",
    );
    edited("a = {}\n", set("a/c", json!(2)), "a = { c = 2 }\n");
    edited(
        "a.b = 1\nc = 2\n",
        set("a/d", json!(3)),
        "a.b = 1\na.d = 3\nc = 2\n",
    );
}

#[test]
fn a_new_table_comes_after_the_last_of_its_kind() {
    edited(
        FILE,
        set(
            "group/new",
            json!({"members": ["10.0.2.1:80"], "strategy": "random"}),
        ),
        &file(
            "\n[admin]",
            "\n[group.new]\nmembers = [\"10.0.2.1:80\"]\nstrategy = \"random\"\n\n[admin]",
        ),
    );
    edited(
        FILE,
        set("rule/new/listen", json!("127.0.0.1:81")),
        &file(
            "\n# The web servers.",
            "\n[rule.new]\nlisten = \"127.0.0.1:81\"\n\n# The web servers.",
        ),
    );
    edited(
        FILE,
        set("dns/min_ttl", json!("1s")),
        &file("# The end.\n", "# The end.\n\n[dns]\nmin_ttl = \"1s\"\n"),
    );
    edited(
        FILE,
        set(
            "group/pictures/alert",
            json!({"threshold": 0.5, "release": 0.4}),
        ),
        &file(
            "[\"10.0.1.1:80\"]\n",
            "[\"10.0.1.1:80\"]\nalert = { threshold = 0.5, release = 0.4 }\n",
        ),
    );
    edited(
        "",
        set(
            "rule/web",
            json!({"listen": "a:1", "routes": [{"path": "/a", "answer": {"status": 404}}], "http": {"retries": 1}}),
        ),
        "[rule.web]\nlisten = \"a:1\"\nhttp = { retries = 1 }\n\n[[rule.web.routes]]\npath = \"/a\"\nanswer = { status = 404 }\n",
    );
}

#[test]
fn a_first_key_goes_below_the_comment_of_the_file() {
    edited(
        "# Ours.\n\n# The API.\n[admin]\n",
        set("workers", json!(2)),
        "# Ours.\n\nworkers = 2\n\n# The API.\n[admin]\n",
    );
    edited(
        "[admin]\n",
        set("workers", json!(2)),
        "workers = 2\n\n[admin]\n",
    );
}

#[test]
fn lists_keep_what_both_have() {
    edited(
        FILE,
        set(
            "group/web/members",
            json!(["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]),
        ),
        &file(
            "  \"10.0.0.2:80\",\n",
            "  \"10.0.0.2:80\",\n  \"10.0.0.3:80\",\n",
        ),
    );
    edited(
        FILE,
        set(
            "group/web/members/2",
            json!({"address": "10.0.0.3:80", "weight": 2}),
        ),
        &file(
            "  \"10.0.0.2:80\",\n",
            "  \"10.0.0.2:80\",\n  { address = \"10.0.0.3:80\", weight = 2 },\n",
        ),
    );
    edited(
        FILE,
        set(
            "group/web/members",
            json!(["10.0.0.9:80", "10.0.0.1:80", "10.0.0.2:80"]),
        ),
        &file("  \"10.0.0.1:80\"", "  \"10.0.0.9:80\",\n  \"10.0.0.1:80\""),
    );
    edited(
        FILE,
        remove("group/web/members/0"),
        &file("  \"10.0.0.1:80\", # the old one\n", ""),
    );
    edited(
        FILE,
        remove("group/web/members/1"),
        &file("  \"10.0.0.2:80\",\n", ""),
    );
    edited("a = [1, 2, 3]\n", remove("a/0"), "a = [2, 3]\n");
    edited("a = [1, 2, 3]\n", remove("a/2"), "a = [1, 2]\n");
    edited("a = [ 1, 2 ]\n", remove("a/1"), "a = [ 1 ]\n");
    edited("a = [1]\n", remove("a/0"), "a = []\n");
    edited("a = []\n", set("a/0", json!("x")), "a = [\"x\"]\n");
    edited("a = [1]\n", set("a/1", json!(2)), "a = [1, 2]\n");
    edited("a = [ 1 ]\n", set("a/1", json!(2)), "a = [ 1, 2 ]\n");
    edited(
        "a = [1, 3]\n",
        set("a", json!([1, 2, 3])),
        "a = [1, 2, 3]\n",
    );
    edited(
        "a = [\n  1, # one\n  2 # two\n]\n",
        set("a", json!([1, 2, 3])),
        "a = [\n  1, # one\n  2, # two\n  3\n]\n",
    );
    edited(
        "a = [\n  1, # one\n  2, # two\n]\n",
        set("a", json!([1, 2, 3])),
        "a = [\n  1, # one\n  2, # two\n  3,\n]\n",
    );
}

#[test]
fn lists_of_tables_are_lists() {
    let text = "[[a]]\nb = 1 # one\n\n# second\n[[a]]\nb = 2\n\n[c]\nd = 1\n";
    edited(
        text,
        set("a/1/b", json!(3)),
        &text.replace("b = 2", "b = 3"),
    );
    edited(
        text,
        set("a/2", json!({"b": 3})),
        &text.replace("b = 2\n", "b = 2\n\n[[a]]\nb = 3\n"),
    );
    edited(text, remove("a/1"), "[[a]]\nb = 1 # one\n\n[c]\nd = 1\n");
    edited(
        text,
        set("a", json!([{"b": 1}, {"b": 7}, {"b": 2}])),
        &text.replace("# one\n", "# one\n\n[[a]]\nb = 7\n"),
    );
}

#[test]
fn what_is_removed_takes_its_own_comments_along() {
    edited(
        FILE,
        remove("workers"),
        &file("workers = 2 # as many as cores\n\n", ""),
    );
    edited(
        FILE,
        remove("group/pictures"),
        &file(
            "# Pictures.\n[group.pictures]\nmembers = [\"10.0.1.1:80\"]\n\n",
            "",
        ),
    );
    let web = FILE.find("# The web").unwrap()..FILE.find("# Pictures").unwrap();
    let mut without = FILE.to_owned();
    without.replace_range(web, "");
    edited(FILE, remove("group/web"), &without);
    edited(
        "# All.\n\n# The API.\n[admin]\nlisten = \"a\"\n[dns]\n",
        remove("admin"),
        "# All.\n\n[dns]\n",
    );
    edited("a = { b = 1, c = 2 }\n", remove("a/c"), "a = { b = 1 }\n");
    edited("a = { b = 1, c = 2 }\n", remove("a/b"), "a = { c = 2 }\n");
    edited("a = { b = 1 }\n", remove("a/b"), "a = {}\n");
    edited("# x\n\na = 1\n", remove("a"), "# x\n\n");
}

#[test]
fn a_table_that_is_set_keeps_what_is_equal() {
    edited(
        FILE,
        set(
            "group/web",
            json!({"members": ["10.0.0.1:80", "10.0.0.2:80"], "alert": {"threshold": 0.8}, "load": "cpu"}),
        ),
        &file("strategy = 'round_robin'\n", "load = \"cpu\"\n").replace("0.9", "0.8"),
    );
    edited(
        "a = 1 # x\n",
        set("a", json!({"b": 1})),
        "a = { b = 1 } # x\n",
    );
}

#[test]
fn a_name_changes_in_its_place_and_wherever_the_group_is_meant() {
    let text = file(
        "[rule.shop]\n",
        "[rule.shop]\nsni = { \"a.b\" = \"web\" }\n",
    ) + "[[rule.shop.routes]]\ngroups = { web = 1, pictures = { weight = 2, mirror = [{ group = \"web\" }], request_fields = { set = { group = \"web\" } } } }\nheaders = { group = \"web\" }\n\
           mirror = { group = \"web\" }\nmodels = { web = \"web\", \"b*\" = [\"pictures\", \"web\"] }\n\
           [rule.models]\ngroup = \"web\"\n[rule.models.http.models]\nx = \"web\"\n[cluster.c]\ngroup = \"web\"\n";
    let expected = text
        .replace("group.web", "group.shop")
        .replace("group = \"web\"\n", "group = \"shop\"\n")
        .replace("\"a.b\" = \"web\"", "\"a.b\" = \"shop\"")
        .replace("{ web = 1", "{ shop = 1")
        .replace("[{ group = \"web\" }]", "[{ group = \"shop\" }]")
        .replace("mirror = { group = \"web\"", "mirror = { group = \"shop\"")
        .replace("{ web = \"web\"", "{ web = \"shop\"")
        .replace("\"pictures\", \"web\"", "\"pictures\", \"shop\"")
        .replace("\nx = \"web\"", "\nx = \"shop\"");
    edited(&text, rename("group/web", "shop"), &expected);
    // A rule's own group has the name of the rule.
    edited(
        "[rule.a]\nmembers = [\"x:1\"]\n[rule.b]\ngroup = \"a\"\n",
        rename("rule/a", "c d"),
        "[rule.\"c d\"]\nmembers = [\"x:1\"]\n[rule.b]\ngroup = \"c d\"\n",
    );
    edited(
        "a = 1 # x\nb = 2\nc = 3\n",
        rename("b", "z"),
        "a = 1 # x\nz = 2\nc = 3\n",
    );
    edited(
        "a = { b = 1, c = 2 }\n",
        rename("a/b", "z"),
        "a = { z = 1, c = 2 }\n",
    );
    refused(FILE, rename("group/web", "pictures"), "already");
    refused(FILE, rename("group/none", "x"), "no such key");
}

#[test]
fn what_surrounds_a_text_stays() {
    for text in [
        "\u{feff}a = 1\nb = 2\n",
        "a = 1\r\n# x\r\nb = 2\r\n",
        "a = 1\nb = 2",
    ] {
        edited(text, set("a", json!(3)), &text.replace("a = 1", "a = 3"));
    }
    edited("", set("a", json!(1)), "a = 1\n");
    let apart = "a.b = 1\nc = 2\na.d = 3\n";
    refused(apart, set("c", json!(3)), "stand apart");
    refused("a = 1\r\nb = 2\n", set("a", json!(3)), "line");
}

#[test]
fn an_edit_that_is_not_possible_says_which_and_why() {
    let error = apply_edits(FILE, &[set("workers", json!(1)), remove("group/none/x")]).unwrap_err();
    assert_eq!(error.edit, Some(1));
    assert_eq!(
        error.to_string(),
        "edit 1: group.none.x: there is no group.none"
    );
    refused(FILE, set("workers/x", json!(1)), "a number has no key");
    refused(FILE, set("workers", Json::Null), "remove the key");
    refused(FILE, set("workers", json!(u64::MAX)), "too large");
    refused(
        FILE,
        set("group/web/members/9", json!("x")),
        "the list has 2",
    );
    refused(
        FILE,
        set("group/web/members/x", json!("x")),
        "number from 0",
    );
    refused(FILE, remove("group/web/members/9"), "there is no");
    refused(FILE, Edit::Remove { path: Vec::new() }, "empty");
    refused("a = ", set("a", json!(1)), "no TOML document");
    let deep = Edit::Remove {
        path: vec!["a".into(); MAX_DEPTH + 1],
    };
    refused(FILE, deep, "parts");
    refused(FILE, remove(&"x".repeat(MAX_PART + 1)), "longer than");
    let levels = (0..MAX_DEPTH).fold(json!(1), |value, _| json!([value]));
    refused(FILE, set("x", levels), "levels");
    let many = vec![set("workers", json!(1)); MAX_EDITS + 1];
    assert!(
        apply_edits(FILE, &many)
            .unwrap_err()
            .why
            .contains("too many")
    );
    let large = set("x", json!("x".repeat(17 << 20)));
    refused(FILE, large, "larger than");
}

#[test]
fn edits_are_read_as_the_api_gets_them() {
    let text = r#"[{"op": "set", "path": ["rule", "a", "routes", 0], "value": 1},
        {"op": "remove", "path": ["a"]}, {"op": "rename", "path": ["a"], "to": "b"}]"#;
    let edits: Vec<Edit> = serde_json::from_str(text).unwrap();
    assert_eq!(shown(edits[0].path()), "rule.a.routes.0");
    for bad in [
        r#"{"op": "set", "path": ["a"]}"#,
        r#"{"op": "remove", "path": ["a"], "x": 1}"#,
        r#"{"op": "remove", "path": [1.5]}"#,
    ] {
        assert!(serde_json::from_str::<Edit>(bad).is_err(), "{bad}");
    }
}

#[test]
fn paths_and_values_are_read_as_people_write_them() {
    let path = super::path_of("rule.shop.sni.'*.a.b'.0").unwrap();
    assert_eq!(path, ["rule", "shop", "sni", "*.a.b", "0"].map(Part::from));
    for bad in ["", "a..b", "a b", "a.", "*.x"] {
        assert!(
            super::path_of(bad).unwrap_err().contains("no path"),
            "{bad}"
        );
    }
    for (text, value) in [
        ("1", json!(1)),
        ("true", json!(true)),
        ("\"1\"", json!("1")),
        ("[1, 'x']", json!([1, "x"])),
        ("{ a = 1 }", json!({"a": 1})),
        ("10.0.0.1:80", json!("10.0.0.1:80")),
        ("30s", json!("30s")),
        ("", json!("")),
    ] {
        assert_eq!(value_of(text), value, "{text}");
    }
}

#[test]
fn changes_name_the_smallest_that_differs() {
    let before = values(FILE).unwrap();
    let edits = [
        set("group/web/strategy", json!("random")),
        remove("group/pictures"),
        set("dns", json!({"min_ttl": "1s"})),
    ];
    let after = values(&apply_edits(FILE, &edits).unwrap()).unwrap();
    let found = list_changes(&before, &after);
    let found: Vec<_> = found
        .iter()
        .map(|c| (shown(&c.path), &c.before, &c.after))
        .collect();
    let members = json!({"members": ["10.0.1.1:80"]});
    assert_eq!(
        found,
        [
            (
                "group.web.strategy".into(),
                &json!("round_robin"),
                &json!("random")
            ),
            ("group.pictures".into(), &members, &Json::Null),
            ("dns".into(), &Json::Null, &json!({"min_ttl": "1s"})),
        ]
    );
    assert_eq!(list_changes(&before, &before), []);
    let tables = (
        values("[[a]]\nb=1\n[[a]]\nb=2\n").unwrap(),
        values("[[a]]\nb=1\n[[a]]\nb=3\n").unwrap(),
    );
    assert_eq!(shown(&list_changes(&tables.0, &tables.1)[0].path), "a.1.b");
}

#[test]
fn a_diff_is_one_as_diff_writes_it() {
    let diff = unified(("a", "1\n2\n3\n"), ("b", "1\n3\n4\n"));
    assert_eq!(diff, "--- a\n+++ b\n@@ -1,3 +1,3 @@\n 1\n-2\n 3\n+4\n");
    assert_eq!(unified(("a", FILE), ("b", FILE)), "");
}

#[test]
fn secrets_are_masked_and_a_mask_is_no_secret() {
    let text = "[admin]\ntoken = 'a-long-secret' # ours\n[[rule.a.routes]]\nrequest_fields.set = { A = \"x\", B = \"y\" }\n\
        [[rule.a.routes]]\nrequest_fields = { add = { C = [\"z\"] }, set = {} }\n";
    let masked_text = mask_secrets(text);
    let expected = text
        .replace("'a-long-secret'", "\"********\"")
        .replace("\"x\"", "\"********\"")
        .replace("\"y\"", "\"********\"")
        .replace("\"z\"", "\"********\"");
    assert_eq!(masked_text, expected);
    assert!(has_masked_secret(&masked_text) && !has_masked_secret(text));
    assert_eq!(mask_secrets(FILE), FILE);
    assert_eq!(mask_secrets("token = "), "");
}

#[test]
fn a_revision_is_of_the_text() {
    assert_eq!(text_revision(""), "e3b0c44298fc1c14");
}

/// A small document with comments, in the ways people write.
fn documents() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        Just("1".to_owned()),
        Just("0x1F".to_owned()),
        Just("'text'".to_owned()),
        Just("\"a # b\"".to_owned()),
        Just("true".to_owned()),
        Just("0.50".to_owned()),
        Just("[1, 2]".to_owned()),
        Just("[\n  \"a\", # first\n  \"b\",\n]".to_owned()),
        Just("[\n  1 # only\n]".to_owned()),
        Just("{ a = 1, b = [2] }".to_owned()),
        Just("\"\"\"\nlines\n\"\"\"".to_owned()),
    ];
    let entry = (0..6_u8, value, any::<[bool; 3]>()).prop_map(|(key, value, [above, end, gap])| {
        let above = if above {
            format!("# above {key}\n")
        } else {
            String::new()
        };
        let end = if end { " # at the end" } else { "" };
        let gap = if gap { "\n" } else { "" };
        (key, format!("{gap}{above}k{key} = {value}{end}\n"))
    });
    let body = prop::collection::vec(entry, 0..5).prop_map(|mut entries| {
        let mut seen = [false; 6];
        entries.retain(|(key, _)| !std::mem::replace(&mut seen[usize::from(*key)], true));
        entries
            .into_iter()
            .map(|(_, text)| text)
            .collect::<String>()
    });
    let headers = prop::collection::vec((0..3_u8, 0..3_u8, body.clone(), any::<bool>()), 0..6);
    (body, headers, prop::option::of(Just("# the end\n"))).prop_map(|(top, headers, end)| {
        let mut text = format!("# the file\n\n{top}");
        let mut seen = [[false; 3]; 3];
        for (section, name, body, comment) in headers {
            let comment = if comment {
                format!("# about {section} {name}\n")
            } else {
                String::new()
            };
            let is_list = section == 2;
            let before =
                std::mem::replace(&mut seen[usize::from(section)][usize::from(name)], true);
            if before && !is_list {
                continue;
            }
            let header = match is_list {
                true => format!("[[s2.n{name}]]"),
                false => format!("[s{section}.n{name}]"),
            };
            text += &format!("\n{comment}{header}\n{body}");
        }
        text + end.unwrap_or_default()
    })
}

fn new_values() -> impl Strategy<Value = Json> {
    prop_oneof![
        any::<i64>().prop_map(|n| json!(n)),
        (-1e9..1e9_f64).prop_map(|n| json!(n)),
        "\\PC{0,8}".prop_map(|text| json!(text)),
        Just(json!("two\nlines")),
        any::<bool>().prop_map(|flag| json!(flag)),
        prop::collection::vec(0..5_i32, 0..4).prop_map(|list| json!(list)),
        Just(json!([{"address": "a", "weight": 1}, {"address": "b"}])),
        Just(json!({"x": 1, "y": {"z": [1]}})),
        Just(json!({})),
    ]
}

fn comments(text: &str) -> Vec<&str> {
    let mut comments: Vec<_> = text
        .lines()
        .filter_map(|line| {
            line.rfind(" # ")
                .map(|at| &line[at + 1..])
                .or(line.strip_prefix("# "))
        })
        .filter(|comment| !comment.contains('"'))
        .collect();
    comments.sort_unstable();
    comments
}

/// The lines of the table with a header, or of the top.
fn without(text: &str, is_touched: impl Fn(&str) -> bool) -> Vec<&str> {
    let mut touched = is_touched("");
    let mut left = Vec::new();
    for line in text.lines() {
        if line.starts_with('[') {
            touched = is_touched(line);
        }
        if !touched {
            left.push(line);
        }
    }
    left
}

proptest! {
    #[test]
    fn what_is_set_is_read_back_and_the_rest_stays(
        text in documents(),
        section in 0..4_u8,
        name in 0..4_u8,
        key in 0..7_u8,
        value in new_values(),
    ) {
        // A list of tables is entered at its first element.
        let mut path: Vec<Part> = match section {
            3 => Vec::new(),
            2 => vec![Part::from("s2"), Part::Key(format!("n{name}")), Part::Index(0)],
            _ => vec![Part::Key(format!("s{section}")), Part::Key(format!("n{name}"))],
        };
        let tree = values(&text).unwrap();
        // Nothing is at such a place otherwise.
        let is_list = section == 2 && tree.pointer(&format!("/s2/n{name}")).is_some();
        if section == 2 && !is_list {
            path.pop();
        }
        path.push(Part::Key(format!("k{key}")));
        let edit = Edit::Set { path: path.clone(), value: value.clone() };
        let edited = apply_edits(&text, &[edit]).unwrap();
        let after = values(&edited).unwrap();
        let found = path.iter().fold(&after, |at, part| match part {
            Part::Key(key) => &at[key.as_str()],
            Part::Index(index) => &at[*index],
        });
        prop_assert_eq!(found, &value);
        // Nothing else says anything else.
        let changes = list_changes(&tree, &after);
        let inside = |change: &Change| {
            let common = change.path.len().min(path.len());
            change.path[..common] == path[..common]
        };
        prop_assert!(changes.iter().all(inside), "{:?}", changes);
        // A comment of a list that is another now is gone with it.
        let lost = |comment: &str| ["# first", "# only"].contains(&comment) || comment.starts_with("\"");
        let before: Vec<_> = comments(&text).into_iter().filter(|c| !lost(c)).collect();
        let now: Vec<_> = comments(&edited).into_iter().filter(|c| !lost(c)).collect();
        prop_assert_eq!(before, now);
        // Lines of other tables are the same, byte for byte.
        let header = match section {
            3 => String::new(),
            _ => format!("[s{section}.n{name}"),
        };
        let touched = |line: &str| match header.is_empty() {
            true => line.is_empty(),
            false => line.trim_start_matches("[[").trim_start_matches('[').starts_with(header.trim_start_matches('[')),
        };
        let blank = |line: &&str| !line.is_empty();
        let before: Vec<_> = without(&text, touched).into_iter().filter(blank).collect();
        let now: Vec<_> = without(&edited, touched).into_iter().filter(blank).collect();
        if section != 3 || !edited.contains("[k") {
            // A comment above the next header is in the lines of the table before it.
            let own = |lines: Vec<&str>| lines.into_iter().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
            prop_assert_eq!(own(before), own(now));
        }
    }

    #[test]
    fn whatever_is_edited_a_document_comes_out(
        text in documents(),
        path in prop::collection::vec(prop_oneof![
            (0..3_u8).prop_map(|n| Part::Key(format!("s{n}"))),
            (0..3_u8).prop_map(|n| Part::Key(format!("n{n}"))),
            (0..6_u8).prop_map(|n| Part::Key(format!("k{n}"))),
            (0..3_usize).prop_map(Part::Index),
        ], 0..4),
        value in new_values(),
        op in 0..3_u8,
    ) {
        let edit = match op {
            0 => Edit::Set { path, value },
            1 => Edit::Remove { path },
            _ => Edit::Rename { path, to: "n9".into() },
        };
        match apply_edits(&text, &[edit]) {
            Ok(edited) => prop_assert!(values(&edited).is_ok()),
            Err(error) => prop_assert!(error.edit.is_some(), "{}", error),
        }
    }
}

#[test]
fn n15_what_may_be_a_secret_in_routes_and_checks_is_masked() {
    let text = r#"
[rule.web]
listen = "127.0.0.1:1"
members = ["10.0.0.1:1"]
health_check = { path = "/up?key=SECRET" }

[[rule.web.routes]]
headers = ["X-Api-Key = SECRET"]
query = ["key = SECRET"]
cookies = ["id = SECRET"]
group = "web"
response_fields = { set = { "X-Key" = "SECRET" }, add = { "X-Other" = "SECRET" } }

[group.app.health_check]
path = "/up"

[group.other]
members = ["10.0.0.1:1"]
health_check.path = "/up?token=SECRET"
"#;
    let seen = mask_secrets(text);
    assert!(!seen.contains("SECRET"), "{seen}");
    assert!(
        seen.contains("path = \"/up\"") && seen.contains("group = \"web\""),
        "{seen}"
    );
    assert!(!holds_login(text));
    assert!(holds_login("[admin]\ntoken = \"a-long-token\"\n"));
    assert!(holds_login(
        "[tracing]\nheaders = { Authorization = \"x\" }\n"
    ));
    assert!(!holds_login("[admin]\ntoken_file = \"x\"\n"));
}
