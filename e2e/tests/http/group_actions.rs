//! Actions of single groups of a route that draws groups by weight.

use std::collections::BTreeMap;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::member::Member;
use evenkeel_e2e::process::{are_installed, run_curl};
use evenkeel_e2e::server::{Server, address};
use evenkeel_e2e::wait_until;

/// The two protocols of clients, as options of curl.
const CLIENTS: [&str; 2] = ["--http1.1", "--http2-prior-knowledge"];

/// A member that answers with its name and what it got.
fn telling(name: &'static str) -> Member {
    Member::answering_with(move |request| {
        let text = format!(
            "{name}|{}|{}|{}|{}",
            request.second_word(),
            request.values("x-by").join(","),
            request.values("x-all").join(","),
            request.values("x-old").join(","),
        );
        format!(
            "HTTP/1.1 200 OK\r\nX-Secret: {name}\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        )
    })
}

/// Asks until both groups have answered twenty times, and returns the answers with their numbers.
fn ask_both(balancer: &Balancer, client: &str) -> BTreeMap<String, usize> {
    let mut answers = BTreeMap::new();
    let of = |answers: &BTreeMap<String, usize>, name: &str| {
        let counts = { answers.iter() }.filter(|(text, _)| text.contains(name));
        counts.map(|(_, count)| count).sum::<usize>()
    };
    while of(&answers, "old|") < 20 || of(&answers, "new|") < 20 {
        let url = format!("http://{}/a/x?y", balancer.address("web"));
        let text = run_curl(&[client, "-i", "-H", "X-Old: 1", "-d", "some body", &url]);
        let head = text.to_ascii_lowercase();
        let kept = |name: &str| head.lines().find(|line| line.starts_with(name));
        let answer = format!(
            "{} {} {}",
            text.lines().last().unwrap_or_default(),
            kept("x-answer: ").unwrap_or("-"),
            kept("x-secret: ").unwrap_or("-"),
        );
        *answers.entry(answer).or_default() += 1;
    }
    answers
}

#[test]
fn requests_and_responses_change_as_their_group_says() {
    if !are_installed(&["curl"]) {
        return;
    }
    let (old, new, copies) = (telling("old"), telling("new"), Member::echoing_targets());
    // Requests that come to the dead member are sent again, with the same changes.
    let dead = address();
    let balancer = Balancer::start(&format!(
        "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         http.retry_methods = [\"POST\"]\n[[rule.web.routes]]\npath = \"/a/*\"\n\
         request_fields.set = {{ \"X-By\" = \"route\", \"X-All\" = \"1\" }}\n\
         response_fields.set = {{ \"X-Answer\" = \"route\" }}\n[rule.web.routes.groups]\nold = 1\n\
         [rule.web.routes.groups.new]\nrewrite_prefix = \"/v2\"\nmirror = [{{ group = \"copies\" }}]\n\
         request_fields = {{ set = {{ \"x-by\" = \"new {{path}}\" }}, remove = [\"X-Old\"] }}\n\
         response_fields = {{ set = {{ \"X-Answer\" = \"new\" }}, remove = [\"X-Secret\"] }}\n\
         [group.old]\nmembers = [\"{}\"]\n[group.new]\nmembers = [\"{}\", \"{dead}\"]\n\
         [group.copies]\nmembers = [\"{}\"]\n",
        old.address(),
        new.address(),
        copies.address()
    ));
    let mut of_new = 0;
    for client in CLIENTS {
        let answers = ask_both(&balancer, client);
        let texts: Vec<&str> = answers.keys().map(String::as_str).collect();
        let wanted = [
            "new|/v2/x?y|new /a/x|1| x-answer: new -",
            "old|/a/x?y|route|1|1 x-answer: route x-secret: old",
        ];
        assert_eq!(texts, wanted, "{client}");
        of_new += answers[wanted[0]];
    }
    let count =
        |result: &str| balancer.rule_count("mirrored_total", &format!("result=\"{result}\""));
    wait_until("requests of the new group alone are copied", || {
        count("sent") == of_new as u64
    });
    for _ in 0..of_new {
        let (_, copy) = copies.next_request();
        assert_eq!(copy.second_word(), "/v2/x?y");
        assert_eq!(copy.values("x-by"), ["new /a/x"]);
        assert_eq!(copy.text(), "some body");
    }
    wait_until("copies have ended", || count("failed") == 0);
}

#[test]
fn members_with_http2_get_the_changes_of_their_group() {
    if !are_installed(&["curl", "nginx"]) {
        return;
    }
    let (old, new) = (
        Server::nginx_telling("old", "http2"),
        Server::nginx_telling("new", "http2"),
    );
    let balancer = Balancer::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         http.member_protocol = \"h2\"\n[[rule.web.routes]]\npath = \"/a/*\"\n[rule.web.routes.groups]\n\
         old = {{ request_fields = {{ set = {{ \"X-Added\" = \"1\" }}, remove = [\"X-Remove\"] }} }}\n\
         new = {{ request_fields = {{ set = {{ \"X-Added\" = \"2\", Host = \"in.example\" }} }}, rewrite_path = \"/b\", \
         response_fields = {{ remove = [\"X-From\"] }} }}\n\
         [group.old]\nmembers = [\"{}\"]\n[group.new]\nmembers = [\"{}\"]\n",
        old.address(),
        new.address()
    ));
    let at = balancer.address("web");
    for client in CLIENTS {
        let mut answers = BTreeMap::new();
        while answers.len() < 2 {
            let url = format!("http://{at}/a/x");
            let fields = ["-H", "X-Remove: yes", "-H", "Host: out.example"];
            let text = run_curl(&[&[client, "-i"], &fields[..], &[&url]].concat());
            let told = text.lines().last().unwrap_or_default().to_owned();
            let has_name = text.to_ascii_lowercase().contains("\nx-from: ");
            let name = told.split('|').next().unwrap_or_default().to_owned();
            answers.insert(name, (told, has_name));
        }
        let wanted = [
            ("new", ("new|GET|/b|in.example||yes|2", false)),
            ("old", ("old|GET|/a/x|out.example|||1", true)),
        ];
        let wanted = wanted.map(|(name, (told, has))| (name.to_owned(), (told.to_owned(), has)));
        assert_eq!(answers, BTreeMap::from(wanted), "{client}");
    }
}
