//! Pages of other origins, over HTTP/1.1 and HTTP/2: preflights, and what responses say.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::Member;
use evenkeel_e2e::process::{are_installed, run_curl};

/// The two protocols of clients, as options of curl.
const CLIENTS: [&str; 2] = ["--http1.1", "--http2-prior-knowledge"];

/// Response that curl gets for a path with these further options: the status, and the fields in lower case.
fn ask(
    balancer: &Balancer,
    client: &str,
    path: &str,
    more: &[&str],
) -> (u16, Vec<(String, String)>) {
    let url = format!("http://{}{path}", balancer.address("web"));
    let text = run_curl(&[&[client, "--dump-header", "-", &url], more].concat());
    let head = text.split("\r\n\r\n").next().unwrap().to_lowercase();
    let status = head.split(' ').nth(1).unwrap().trim().parse().unwrap();
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.trim().to_owned());
    (status, fields.map(owned).collect())
}

/// Values of the fields that are about other origins.
fn granted(fields: &[(String, String)]) -> Vec<(&str, &str)> {
    let is_cors = |name: &str| name.starts_with("access-control-") || name == "vary";
    let mut found: Vec<_> = fields
        .iter()
        .filter(|(name, _)| is_cors(name))
        .map(|(name, value)| (&**name, &**value))
        .collect();
    found.sort_unstable();
    found
}

const PREFLIGHT: [&str; 4] = ["-X", "OPTIONS", "-H", "Access-Control-Request-Method: PUT"];

#[test]
fn browsers_are_told_which_pages_may_read_responses() {
    if !are_installed(&["curl"]) {
        return;
    }
    // A member that would let every page read its responses.
    let member = Member::answering_with(|_| {
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nAccess-Control-Allow-Origin: *\r\nX-Key: 1\r\n\r\n"
            .into()
    });
    let gone = Member::start(|_, wire| drop(wire));
    let folder = Folder::new();
    // The user anna, with the password "secret".
    let users = folder.write(
        "users",
        "anna:$5$salt$kpa26zwgX83BPSR8d7w93OIXbFt/d3UOTZaAu5vsTM6\n",
    );
    let config = format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\ngroup = \"app\"\n\
         [rule.web.cors]\nallow_origins = [\"https://app.example\", \"https://*.shop.example\"]\n\
         allow_methods = [\"GET\", \"PUT\"]\nallow_headers = [\"X-Token\"]\nexpose_headers = [\"X-Key\"]\n\
         allow_credentials = true\nmax_age = \"10m\"\n\
         [[rule.web.routes]]\npath = \"/write/*\"\nmethod = \"PUT\"\ngroup = \"app\"\ncors = {{ allow_origins = \"*\", allow_methods = \"PUT\" }}\n\
         [[rule.web.routes]]\npath = \"/own/*\"\ngroup = \"app\"\ncors = {{}}\n\
         [[rule.web.routes]]\npath = \"/gone/*\"\ngroup = \"gone\"\n\
         [[rule.web.routes]]\npath = \"/users/*\"\ngroup = \"app\"\nauth = {{ users_file = \"{}\" }}\n\
         [group.app]\nmembers = [\"{}\"]\n[group.gone]\nmembers = [\"{}\"]\n",
        users.display(),
        member.address(),
        gone.address(),
    );
    let balancer = Balancer::start(&config);
    let of_rule = [
        ("access-control-allow-credentials", "true"),
        ("access-control-allow-origin", "https://a.shop.example"),
        ("access-control-expose-headers", "x-key"),
        ("vary", "origin"),
    ];
    let preflight_of_rule = [
        ("access-control-allow-credentials", "true"),
        ("access-control-allow-headers", "x-token"),
        ("access-control-allow-methods", "get, put"),
        ("access-control-allow-origin", "https://app.example"),
        ("access-control-expose-headers", "x-key"),
        ("access-control-max-age", "600"),
        (
            "vary",
            "origin, access-control-request-method, access-control-request-headers",
        ),
    ];
    let app = ["-H", "Origin: https://app.example"];
    let shop = ["-H", "Origin: https://a.shop.example"];
    let evil = ["-H", "Origin: https://shop.example.evil.example"];
    for client in CLIENTS {
        // In the place of what the member says.
        let (status, fields) = ask(&balancer, client, "/", &shop);
        assert_eq!(
            (status, granted(&fields)),
            (200, of_rule.to_vec()),
            "{client}"
        );
        for lines in [&evil[..], &["-H", "Origin: null"], &[]] {
            let (status, fields) = ask(&balancer, client, "/", lines);
            assert_eq!((status, granted(&fields)), (200, vec![("vary", "origin")]));
        }
        // Pages learn what went wrong.
        let (status, fields) = ask(&balancer, client, "/gone/x", &shop);
        assert_eq!((status, granted(&fields)), (502, of_rule.to_vec()));
        let (status, fields) = ask(&balancer, client, "/users/x", &shop);
        assert_eq!((status, granted(&fields)), (401, of_rule.to_vec()));

        // A preflight asks no member and no password.
        for path in ["/", "/gone/x", "/users/x"] {
            let (status, fields) = ask(&balancer, client, path, &[&PREFLIGHT[..], &app].concat());
            assert_eq!(
                (status, granted(&fields)),
                (204, preflight_of_rule.to_vec())
            );
            assert!(!fields.iter().any(|(name, _)| name == "content-length"));
        }
        let (status, fields) = ask(&balancer, client, "/", &[&PREFLIGHT[..], &evil].concat());
        assert_eq!((status, granted(&fields).len()), (204, 1), "{fields:?}");

        // Its route is that of the request that it asks about.
        let (status, fields) = ask(
            &balancer,
            client,
            "/write/x",
            &[&PREFLIGHT[..], &evil].concat(),
        );
        assert_eq!(status, 204);
        assert!(granted(&fields).contains(&("access-control-allow-origin", "*")));
        assert!(granted(&fields).contains(&("access-control-allow-methods", "put")));
        // Other requests with the method OPTIONS are the member's, and so is a route that leaves it to them.
        let (status, _) = ask(&balancer, client, "/", &["-X", "OPTIONS", app[0], app[1]]);
        assert_eq!(status, 200);
        let (status, fields) = ask(
            &balancer,
            client,
            "/own/x",
            &[&PREFLIGHT[..], &evil].concat(),
        );
        let own = [("access-control-allow-origin", "*")];
        assert_eq!((status, granted(&fields)), (200, own.to_vec()));
    }
    let count = |result: &str| {
        let name = format!("evenkeel_rule_preflights_total{{rule=\"web\",result=\"{result}\"}}");
        balancer.read_metric(&name)
    };
    assert_eq!(count("granted"), Some(8.0));
    assert_eq!(count("refused"), Some(2.0));
}
