//! Answers of the balancer's own and changes to responses by rule, group and route, over HTTP/1.1 and HTTP/2.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::Member;
use evenkeel_e2e::process::{are_installed, run_curl};
use evenkeel_e2e::wait_until;

/// The two protocols of clients, as options of curl.
const CLIENTS: [&str; 2] = ["--http1.1", "--http2-prior-knowledge"];

/// Response that curl gets for a host: the head in lower case, and the body.
fn ask(balancer: &Balancer, client: &str, host: &str) -> (String, String) {
    let url = format!("http://{}/x", balancer.address("web"));
    let host = format!("Host: {host}");
    let text = run_curl(&[client, "--dump-header", "-", "-H", &host, &url]);
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.to_owned())
}

fn status(head: &str) -> &str {
    head.split(' ').nth(1).unwrap().trim()
}

fn values<'h>(head: &'h str, name: &str) -> Vec<&'h str> {
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    let found = fields.filter(|(known, _)| *known == name);
    found.map(|(_, value)| value.trim()).collect()
}

#[test]
fn one_of_two_applications_behind_a_rule_is_in_maintenance() {
    if !are_installed(&["curl"]) {
        return;
    }
    let (shop, site) = (Member::echoing_targets(), Member::echoing_targets());
    let folder = Folder::new();
    let page = folder.write("rule.html", "<p>All of it.</p>");
    let of_shop = folder.write("shop.html", "<p>The shop.</p>");
    let config = format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         maintenance = {{ page = \"{}\", retry_after = \"10m\" }}\n\
         [rule.web.limits]\nrequests = \"3/h\"\n\
         [[rule.web.routes]]\nhost = \"shop.example\"\ngroup = \"shop\"\n\
         [[rule.web.routes]]\ngroup = \"site\"\n\
         [group.shop]\nmembers = [\"{}\"]\nmaintenance = {{ page = \"{}\" }}\n\
         [group.site]\nmembers = [\"{}\"]\n",
        page.display(),
        shop.address(),
        of_shop.display(),
        site.address(),
    );
    let balancer = Balancer::start(&config);
    let said = balancer.run_ctl("maintain shop on").unwrap();
    assert_eq!(said, "group shop is in maintenance\n");
    for client in CLIENTS {
        // Who is told to come again later has not used up the limit by then.
        for _ in 0..4 {
            wait_until("the worker knows", || {
                let (head, body) = ask(&balancer, client, "shop.example");
                let is_page = status(&head) == "503" && body == "<p>The shop.</p>";
                is_page && values(&head, "retry-after") == ["600"]
            });
        }
    }
    assert_eq!(status(&ask(&balancer, CLIENTS[0], "site.example").0), "200");
    assert_eq!(
        balancer.read_metric("evenkeel_group_maintenance{group=\"shop\"}"),
        Some(1.0)
    );
    assert_eq!(
        balancer.read_metric("evenkeel_rule_maintenance{rule=\"web\"}"),
        Some(0.0)
    );
    assert!(balancer.run_ctl("groups").unwrap().contains("maintenance"));
    balancer.run_ctl("maintain --group nothing on").unwrap_err();

    // The whole rule: each application has its own page, or the rule's.
    balancer.run_ctl("maintain web on").unwrap();
    let (_, body) = ask(&balancer, CLIENTS[0], "shop.example");
    assert_eq!(body, "<p>The shop.</p>");
    wait_until("the worker knows", || {
        ask(&balancer, CLIENTS[1], "site.example").1 == "<p>All of it.</p>"
    });
    balancer.run_ctl("maintain web off").unwrap();
    balancer.run_ctl("maintain shop off").unwrap();
    wait_until("the worker knows", || {
        status(&ask(&balancer, CLIENTS[0], "shop.example").0) != "503"
    });
}

#[test]
fn pages_and_fields_are_of_the_route_then_the_group_then_the_rule() {
    if !are_installed(&["curl"]) {
        return;
    }
    let gone = Member::start(|_, wire| drop(wire));
    let member = Member::echoing_targets();
    let folder = Folder::new();
    let of_rule = folder.write("rule.html", "<p>Sorry.</p>");
    let of_group = folder.write("group.json", "{\"sorry\":true}");
    let of_route = folder.write("route.txt", "sorry");
    let config = format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         error_pages = {{ 404 = \"{rule}\", 502 = \"{rule}\", 503 = \"{rule}\" }}\n\
         response_fields = {{ set = {{ X-From = \"rule\", Strict-Transport-Security = \"max-age=1\" }} }}\n\
         [[rule.web.routes]]\nhost = \"route.example\"\ngroup = \"gone\"\n\
         error_pages = {{ 502 = \"{route}\", 503 = \"{route}\" }}\nresponse_fields = {{ set = {{ x-from = \"route\" }} }}\n\
         [[rule.web.routes]]\nhost = \"group.example\"\ngroup = \"gone\"\n\
         [[rule.web.routes]]\nhost = \"rule.example\"\ngroup = \"bare\"\n\
         [[rule.web.routes]]\nhost = \"fixed.example\"\nanswer = {{ status = 503, body = \"fixed\" }}\n\
         [[rule.web.routes]]\nhost = \"up.example\"\ngroup = \"up\"\n\
         [group.gone]\nmembers = [\"{gone}\"]\n\
         error_pages = {{ 502 = \"{group}\", 503 = \"{group}\" }}\nresponse_fields = {{ add = {{ X-Also = \"group\" }} }}\n\
         [group.bare]\nmembers = [\"{gone}\"]\n\
         [group.up]\nmembers = [\"{up}\"]\nresponse_fields = {{ remove = [\"X-From\"] }}\n",
        rule = of_rule.display(),
        group = of_group.display(),
        route = of_route.display(),
        gone = gone.address(),
        up = member.address(),
    );
    let balancer = Balancer::start(&config);
    for client in CLIENTS {
        let is = |host: &str, statuses: &[&str], media_type: &str, body: &str, from: &[&str]| {
            let (head, found) = ask(&balancer, client, host);
            assert!(statuses.contains(&status(&head)), "{client} {host}: {head}");
            assert_eq!(found, body, "{client} {host}: {head}");
            assert!(
                values(&head, "content-type")
                    .concat()
                    .starts_with(media_type),
                "{head}"
            );
            assert_eq!(values(&head, "x-from"), from, "{client} {host}: {head}");
            assert_eq!(
                values(&head, "strict-transport-security"),
                ["max-age=1"],
                "{head}"
            );
            head
        };
        // 502 from a member that says nothing, 503 once it is known.
        let failed = ["502", "503"];
        let head = is("route.example", &failed, "text/plain", "sorry", &["route"]);
        assert_eq!(values(&head, "x-also"), ["group"]);
        // RFC 9110, section 6.6.1.
        assert!(values(&head, "date").concat().ends_with(" gmt"), "{head}");
        let json = "{\"sorry\":true}";
        is(
            "group.example",
            &failed,
            "application/json",
            json,
            &["rule"],
        );
        is(
            "rule.example",
            &failed,
            "text/html",
            "<p>Sorry.</p>",
            &["rule"],
        );
        is(
            "none.example",
            &["404"],
            "text/html",
            "<p>Sorry.</p>",
            &["rule"],
        );
        is("fixed.example", &["503"], "text/plain", "fixed", &["rule"]);
        is("up.example", &["200"], "", "/x", &[]);
    }
    // Pages are read at reloads, and a page that cannot be read at a start is an error.
    folder.write("rule.html", "<p>So sorry.</p>");
    balancer.reconfigure(&(config.clone() + "[group.more]\nmembers = [\"127.0.0.1:9\"]\n"));
    wait_until("the new page is there", || {
        ask(&balancer, CLIENTS[0], "none.example").1 == "<p>So sorry.</p>"
    });
}
