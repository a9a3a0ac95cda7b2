//! Certificates by themselves, from Pebble.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::pebble::Pebble;
use evenkeel_e2e::process::{are_installed, run_curl};
use evenkeel_e2e::tls::{Key, make_certificate, s_client, write_secret};
use evenkeel_e2e::wait_until;

const TOOLS: [&str; 4] = ["pebble", "pebble-challtestsrv", "openssl", "curl"];

/// Long enough to be no part of the outcome.
const YEAR: u64 = 365 * 24 * 3600;

/// A rule `plain`, and a rule `web` with certificates for `names`.
fn config(pebble: &Pebble, member: &Member, names: &str, more: &str) -> String {
    let (keys, member) = (pebble.keys(), member.address());
    format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [acme]\nagree_to_terms = true\nfolder = \"acme\"\nretry_interval = \"1s\"\n\
         contact = \"ops@example.org\"\n{keys}{more}\n\
         [rule.plain]\nlisten = \"127.0.0.1:0\"\nmembers = [\"{member}\"]\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [\"{member}\"]\n\
         [rule.web.tls]\nacme = {names}\n"
    )
}

/// Returns the answer of the rule `web` to a client that trusts only `root`.
fn get(balancer: &Balancer, root: &str, name: &str) -> String {
    let port = balancer.address("web").port();
    let to = format!("{name}:{port}:127.0.0.1:{port}");
    let url = format!("https://{name}:{port}/");
    run_curl(&["--fail", "--cacert", root, "--connect-to", &to, &url])
}

/// A counter or gauge of ACME.
fn metric(balancer: &Balancer, series: &str) -> f64 {
    let series = format!("evenkeel_acme_{series}");
    balancer.read_metric(&series).unwrap_or_default()
}

fn issued(balancer: &Balancer) -> f64 {
    metric(balancer, "orders_total{result=\"issued\"}")
}

fn failed(balancer: &Balancer) -> f64 {
    metric(balancer, "orders_total{result=\"failed\"}")
}

/// Fingerprints of the certificates in use.
fn fingerprints(balancer: &Balancer) -> Vec<String> {
    let shown = balancer.admin_get("/v1/certificates");
    let shown: serde_json::Value = serde_json::from_str(shown.text()).unwrap();
    let all = shown.as_array().unwrap().iter();
    all.map(|one| one["fingerprint"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn names_get_certificates_once_the_authority_is_there_and_keep_them() {
    if !are_installed(&TOOLS) {
        return;
    }
    let member = Member::answering_with(|_| ok_response("hello"));
    let mut pebble = Pebble::new();
    let names = "[\"a.example\", \"B.example\"]";
    let config = config(&pebble, &member, names, "");
    let balancer = Balancer::start(&config);
    let web = balancer.address("web");
    wait_until("it is tried again", || failed(&balancer) >= 2.0);
    let said = s_client(web, &["-servername", "a.example"], "");
    assert!(said.contains("no peer certificate available"), "{said}");
    balancer.wait_for_log("no certificate by ACME");
    pebble.start(balancer.address("plain"), web, YEAR);
    wait_until("both are in use", || fingerprints(&balancer).len() == 2);
    let root = pebble.root();
    for name in ["a.example", "b.example"] {
        assert_eq!(get(&balancer, &root, name), "hello");
        let file = balancer.folder().join(&format!("acme/{name}.pem"));
        let mode = fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let shown = balancer.run_ctl("certs").unwrap();
    assert!(shown.contains("acme/a.example.pem"), "{shown}");
    // Members were asked for nothing of it, and are asked for tokens that are not ours.
    let plain = balancer.address("plain");
    let other = format!("http://{plain}/.well-known/acme-challenge/x");
    assert_eq!(run_curl(&["--fail", &other]), "hello");
    assert_eq!(failed_now(&balancer), 0.0);
    // What was had is used after a restart, without the authority.
    let before = fingerprints(&balancer);
    pebble.kill();
    let balancer = balancer.replace(&config);
    assert_eq!(fingerprints(&balancer), before);
    assert_eq!(get(&balancer, &root, "a.example"), "hello");
    assert_eq!((issued(&balancer), failed(&balancer)), (0.0, 0.0));
}

#[test]
fn an_authority_may_want_accounts_that_are_bound() {
    if !are_installed(&TOOLS) {
        return;
    }
    const KEY: &str = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let member = Member::answering_with(|_| ok_response("hello"));
    let mut pebble = Pebble::new();
    pebble.require_binding("kid-1", KEY);
    let unbound = config(&pebble, &member, "[\"a.example\"]", "");
    let balancer = Balancer::start(&unbound);
    let (plain, web) = (balancer.address("plain"), balancer.address("web"));
    pebble.start(plain, web, YEAR);
    wait_until("it is refused", || {
        let log = balancer.log();
        log.contains("externalAccountRequired") || log.contains("external account binding")
    });
    let shown = balancer.run_ctl("certs").unwrap();
    assert!(
        shown.contains("a.example has no certificate yet ("),
        "{shown}"
    );
    // Nobody listens at port 80 here.
    balancer.wait_for_log("the authority asks at port 80");
    let more = "eab_key_id = \"kid-1\"\neab_key_file = \"eab.key\"";
    let bound = config(&pebble, &member, "[\"a.example\"]", more);
    write_secret(balancer.folder(), "eab.key", KEY);
    balancer.reconfigure(&bound);
    wait_until("there is one", || fingerprints(&balancer).len() == 1);
    let shown = balancer.run_ctl("certs").unwrap();
    assert!(!shown.contains("has no certificate yet"), "{shown}");
}

/// Failures in a row.
fn failed_now(balancer: &Balancer) -> f64 {
    metric(balancer, "failures{name=\"a.example\"}")
}

#[test]
fn certificates_are_renewed_and_the_old_one_is_kept_when_that_fails() {
    if !are_installed(&TOOLS) {
        return;
    }
    let member = Member::answering_with(|_| ok_response("hello"));
    let mut pebble = Pebble::new();
    let more = "challenge = \"tls-alpn-01\"";
    let config = config(&pebble, &member, "\"a.example\"", more);
    let balancer = Balancer::start(&config);
    let web = balancer.address("web");
    pebble.start(balancer.address("plain"), web, 9);
    wait_until("there is one", || fingerprints(&balancer).len() == 1);
    let first = fingerprints(&balancer);
    wait_until("there is another one", || {
        let now = fingerprints(&balancer);
        now.len() == 1 && now != first
    });
    assert!(issued(&balancer) >= 2.0);
    // Whoever only wants the handshake of an authority gets none.
    let said = s_client(
        web,
        &["-servername", "a.example", "-alpn", "acme-tls/1"],
        "",
    );
    assert!(said.contains("no peer certificate available"), "{said}");
    pebble.kill();
    wait_until("renewals fail", || failed_now(&balancer) >= 2.0);
    let kept = fingerprints(&balancer);
    assert_eq!(kept.len(), 1);
    // Its time may be over: what is left of it is better than nothing.
    let said = s_client(web, &["-servername", "a.example"], "");
    assert!(said.contains("Pebble Intermediate"), "{said}");
    // Somebody breaks the folder, too.
    let folder = balancer.folder().join("acme");
    fs::rename(&folder, balancer.folder().join("elsewhere")).unwrap();
    fs::write(&folder, "no folder").unwrap();
    pebble.start(balancer.address("plain"), web, YEAR);
    wait_until("the reason is said", || {
        balancer
            .admin_get("/v1/acme")
            .text()
            .contains("Not a directory")
    });
    assert_eq!(fingerprints(&balancer), kept);
    fs::remove_file(&folder).unwrap();
    fs::rename(balancer.folder().join("elsewhere"), &folder).unwrap();
    wait_until("all is well again", || failed_now(&balancer) == 0.0);
    wait_until("there is a third one", || fingerprints(&balancer) != kept);
    assert_eq!(get(&balancer, &pebble.root(), "a.example"), "hello");
}

#[test]
fn a_live_change_does_not_depend_on_files() {
    if !are_installed(&["openssl"]) {
        return;
    }
    let member = Member::answering_with(|_| ok_response("hello"));
    let at = member.address();
    let config = format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [acme]\nagree_to_terms = true\nfolder = \"acme\"\ndirectory = \"https://{at}/dir\"\n\
         [broker]\nlisten = \"127.0.0.1:0\"\nkey_file = \"agents.keys\"\n\
         [rule.plain]\nlisten = \"127.0.0.1:0\"\nmembers = [\"{at}\"]\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [\"{at}\"]\n\
         [rule.web.tls]\nacme = [\"a.example\"]\ncertificates = \"own.pem\"\n"
    );
    let balancer = Balancer::start_with(&config, |folder| {
        make_certificate(folder, "own", Key::Ecdsa, "DNS:b.example", None);
        write_secret(
            folder,
            "agents.keys",
            "1:0123456789abcdef0123456789abcdef\n",
        );
    });
    let folder = balancer.folder();
    fs::remove_dir_all(folder.join("acme")).unwrap();
    fs::write(folder.join("acme"), "no folder").unwrap();
    for file in ["own.pem", "agents.keys"] {
        fs::remove_file(folder.join(file)).unwrap();
    }
    let refused = balancer.run_ctl("reload").unwrap_err();
    assert!(refused.contains("acme.folder"), "{refused}");
    // Certificates and keys that cannot be read are kept, and no reason to refuse.
    for file in ["own.pem", "agents.keys"] {
        assert!(!refused.contains(file), "{refused}");
    }
    balancer.run_ctl("disable plain").unwrap();
    balancer.run_ctl("enable plain").unwrap();
    // What was read stays.
    let said = s_client(balancer.address("web"), &["-servername", "b.example"], "");
    assert!(!said.contains("no peer certificate available"), "{said}");
    assert_eq!(fingerprints(&balancer).len(), 1);
}

#[test]
fn a_folder_that_is_none_is_an_error_that_names_it() {
    let folder = Folder::new();
    folder.write("acme", "no folder");
    let config =
        "[acme]\nagree_to_terms = true\nfolder = \"acme\"\n[admin]\nlisten = \"127.0.0.1:0\"";
    let file = folder.write("evenkeel.toml", config);
    let said = run_evenkeel(&["run", file.to_str().unwrap()]).unwrap_err();
    assert!(said.contains("acme.folder: cannot write in"), "{said}");
}
