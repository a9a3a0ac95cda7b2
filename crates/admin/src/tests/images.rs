//! Images of rules through the API.

use super::*;
use crate::wire::{Changed, Compared, Configuration, RuleImage};

const IMAGE: &str = "# Orders.\n[rule.orders]\nlisten = \"127.0.0.1:0\"\ngroup = \"pool\"\n\
                     [rule.orders.http]\nvia = \"x\"\n\n[group.pool]\nmembers = [\"127.0.0.1:3\"]\nhealth_check = false\n";

impl Balancer {
    fn text(&self) -> Configuration {
        self.client().get(&["v1", "config"], &[]).unwrap()
    }

    fn import(&self, body: Value) -> Result<Changed, ClientError> {
        let path = ["v1", "config", "import"];
        let revision = self.text().revision;
        self.client().change_config("POST", &path, &revision, &body)
    }

    fn image(&self, rule: &str) -> Result<RuleImage, ClientError> {
        let path = ["v1", "config", "export", rule];
        self.client().get(&path, &[])
    }

    fn rules(&self) -> Vec<String> {
        let status: Status = self.client().get(&["v1", "status"], &[]).unwrap();
        status.rules.into_iter().map(|rule| rule.name).collect()
    }
}

#[test]
fn a_rule_goes_out_and_comes_in_as_one_change_that_is_taken_back() {
    let balancer = Balancer::start(&two_members(), None);
    let start = balancer.text();
    let changed = balancer.import(json!({ "text": IMAGE })).unwrap();
    let outcome = changed.import.unwrap();
    assert_eq!(outcome.added, ["rule.orders", "group.pool"]);
    assert_eq!(balancer.rules(), ["web", "orders"]);
    let now = balancer.text();
    assert_eq!(now.text, format!("{}\n{IMAGE}", start.text));
    assert_eq!(
        std::fs::read_to_string(&balancer.sources.config_file).unwrap(),
        now.text
    );

    let image = balancer.image("orders").unwrap();
    assert_eq!(image.tables, ["rule.orders", "group.pool"]);
    assert_eq!(
        (image.rule.as_str(), &image.revision),
        ("orders", &now.revision)
    );
    assert!(
        image.problems.is_empty() && image.files.is_empty() && image.variables.is_empty(),
        "{image:?}"
    );
    assert!(
        image.text.contains("# Orders.\n[rule.orders]\n"),
        "{}",
        image.text
    );
    let answer = balancer.whole(
        "GET /v1/config/export/orders/file HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    );
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, image.text);
    assert!(
        head.to_ascii_lowercase()
            .contains("filename=\"orders.toml\""),
        "{head}"
    );
    assert_eq!(
        refusal(balancer.image("none")),
        (404, "unknown_rule".into())
    );

    // The same once more is no change.
    let again = balancer.import(json!({ "text": image.text })).unwrap();
    assert_eq!(again.import.unwrap().unchanged, image.tables);
    assert_eq!(
        (again.revision.as_str(), again.generation),
        (&*now.revision, 2)
    );
    assert!(
        again.notes[0].contains("nothing has changed"),
        "{:?}",
        again.notes
    );

    let undo = ["v1", "config", "undo"];
    let undone: Changed = balancer
        .client()
        .change_config("POST", &undo, &now.revision, &json!({}))
        .unwrap();
    assert_eq!(
        (undone.revision, balancer.text().text),
        (start.revision, start.text)
    );
    assert_eq!(balancer.rules(), ["web"]);
}

#[test]
fn an_import_that_is_refused_says_all_and_changes_nothing() {
    let balancer = Balancer::start(&two_members(), None);
    let start = balancer.text();
    let told = |body: Value| match balancer.import(body) {
        Err(ClientError::Refused { status: 422, body }) => {
            assert_eq!(body.error, "bad_configuration");
            Value::Object(*body.more)
        }
        other => panic!("not refused: {other:?}"),
    };
    let other = "[rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [\"127.0.0.1:9\"]\nbogus = 1\ntls = { certificates = \"/nowhere.pem\" }\n";
    let refused = told(json!({ "text": other }));
    assert_eq!(refused["import"]["clashes"], json!(["rule.web"]));
    let places: Vec<_> = { refused["problems"].as_array().unwrap().iter() }
        .map(|problem| {
            (
                problem["file"].clone(),
                problem["line"].clone(),
                problem["key"].clone(),
            )
        })
        .collect();
    assert_eq!(places[0], (json!("image"), json!(1), json!("rule.web")));
    assert!(
        places.contains(&(json!("image"), json!(4), json!("rule.web.bogus"))),
        "{places:?}"
    );
    // Files are looked at, too.
    let without = format!("{IMAGE}[rule.orders.tls]\ncertificates = \"/nowhere.pem\"\n");
    let refused = told(json!({ "text": without }));
    assert!(refused.to_string().contains("/nowhere.pem"), "{refused}");
    for text in ["", "[rule", "[admin]\n", "feature = { masked = true }"] {
        told(json!({ "text": text }));
    }
    told(json!({ "text": IMAGE, "rename": { "none": "x" } }));
    told(
        json!({ "text": IMAGE.replace("via = \"x\"", "via = \"x\"\n[rule.orders.response_fields]\nset = { A = \"********\" }") }),
    );
    told(json!({ "text": IMAGE, "replace": ["group.none"] }));
    // An address that is taken is seen when it is listened on.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = IMAGE.replace("127.0.0.1:0", &listener.local_addr().unwrap().to_string());
    assert_eq!(
        refusal(balancer.import(json!({ "text": taken }))),
        (409, "not_applied".into())
    );
    let unknown = balancer.import(json!({ "txt": IMAGE }));
    assert_eq!(refusal(unknown), (422, "bad_body".into()));
    let path = ["v1", "config", "import"];
    let body = json!({ "text": IMAGE });
    let late = balancer
        .client()
        .change_config::<Changed>("POST", &path, "0123456789abcdef", &body);
    assert_eq!(refusal(late), (412, "changed_meanwhile".into()));
    // More than a configuration may have, in a body that is not too large.
    let large = told(json!({ "text": "#".repeat((16 << 20) + 1) }));
    assert!(large.to_string().contains("is too large"), "{large}");
    let now = balancer.text();
    assert_eq!((now.revision, now.generation), (start.revision, 1));
    assert!(!now.on_disk.differs);
    assert_eq!(balancer.rules(), ["web"]);
}

#[test]
fn an_import_is_looked_at_before_it_is_made() {
    let balancer = Balancer::start(&two_members(), None);
    let diff = |import: Value| {
        let path = ["v1", "config", "diff"];
        let body = json!({ "import": import });
        balancer
            .client()
            .post_resource::<Compared>(&path, &body)
            .unwrap()
    };
    let good = diff(json!({ "text": IMAGE, "rename": { "pool": "other" } }));
    assert!(
        good.ok && good.diff.contains("+[group.other]\n"),
        "{good:?}"
    );
    assert_eq!(good.import.unwrap().added, ["rule.orders", "group.other"]);
    let own = balancer.image("web").unwrap().text;
    let same = diff(json!({ "text": own }));
    assert_eq!((same.ok, same.diff.as_str()), (true, ""));
    let other = own.replace("\"random\"", "\"round_robin\"");
    let clash = diff(json!({ "text": other }));
    assert!(
        !clash.ok && clash.problems[0].message.contains("differs in `strategy`"),
        "{clash:?}"
    );
    let replaced = diff(json!({ "text": other, "replace": ["rule.web"] }));
    assert!(replaced.ok, "{replaced:?}");
    assert_eq!(replaced.import.unwrap().replaced, ["rule.web"]);
    assert_eq!(balancer.text().generation, 1);
}

#[test]
fn who_may_not_administer_sees_no_secrets_and_imports_nothing() {
    let (balancer, _, [_, viewer]) = with_users(|_| {});
    let [cookie, csrf] = balancer.log_in();
    let (_, _, text) = balancer.ask("GET /v1/config", &[&cookie], "");
    let config: Value = serde_json::from_str(&text).unwrap();
    let tag = format!("If-Match: {}", config["revision"]);
    let secret = IMAGE.replace(
        "via = \"x\"",
        "via = \"x\"\n[rule.orders.response_fields]\nset = { A = \"hidden\" }",
    );
    let body = json!({ "text": secret }).to_string();
    let line = "POST /v1/config/import";
    let bearer = format!("Authorization: Bearer {viewer}");
    let (status, _, answer) = balancer.ask(line, &[&bearer, JSON, &tag], &body);
    assert_eq!(status, 403, "{answer}");
    let (status, _, answer) = balancer.ask(line, &[&cookie, &csrf, JSON, &tag], &body);
    assert_eq!(status, 200, "{answer}");
    for path in ["/v1/config/export/orders", "/v1/config/export/orders/file"] {
        let line = format!("GET {path}");
        let (status, _, seen) = balancer.ask(&line, &[&cookie], "");
        assert!(status == 200 && seen.contains("hidden"), "{seen}");
        let (status, _, seen) = balancer.ask(&line, &[&bearer], "");
        assert!(
            status == 200 && seen.contains("********") && !seen.contains("hidden"),
            "{seen}"
        );
    }
}
