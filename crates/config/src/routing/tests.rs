use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

/// A request of fixed parts.
#[derive(Clone, Debug, Default)]
struct Request {
    method: String,
    host: Option<String>,
    path: String,
    query: String,
    fields: Vec<(String, String)>,
}

impl RequestView for Request {
    fn method(&self) -> &str {
        &self.method
    }

    fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn query(&self) -> &str {
        &self.query
    }

    fn fields<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let named = move |(known, value): &'a (String, String)| {
            known.eq_ignore_ascii_case(name).then_some(value.as_bytes())
        };
        self.fields.iter().filter_map(named)
    }
}

impl Conditions {
    /// Checks all conditions without an index.
    fn are_met(&self, request: &Request, client: Option<IpAddr>) -> bool {
        let host = request
            .host
            .as_deref()
            .map(|host| host_of(host).to_lowercase());
        let is_host = |wanted: &String| {
            host.as_deref()
                .is_some_and(|host| match wanted.split_once("*.") {
                    Some(("", below)) => {
                        host.split_once('.').is_some_and(|(_, rest)| rest == below)
                    }
                    Some((_, below)) => host.ends_with(&format!(".{below}")),
                    None => host == wanted,
                })
        };
        let is_path = |wanted: &String| match wanted.strip_suffix("/*") {
            Some(prefix) => {
                request.path == prefix || request.path.starts_with(&format!("{prefix}/"))
            }
            None => request.path == *wanted,
        };
        let is_regex = |wanted: &ValueRegex| wanted.matches(request.path.as_bytes());
        (self.hosts.is_empty() || self.hosts.iter().any(is_host))
            && (self.path_regexes.is_empty() || self.path_regexes.iter().any(is_regex))
            && (self.paths.is_empty() || self.paths.iter().any(is_path))
            && self.hold_for(request, client)
    }

    /// Checks the conditions but those on hosts and paths.
    fn hold_for(&self, request: &Request, client: Option<IpAddr>) -> bool {
        self.hold(&RequestParts::new(request), client)
    }
}

fn one_of(all: &'static [&'static str]) -> impl Strategy<Value = String> {
    proptest::sample::select(all).prop_map(str::to_owned)
}

fn some(all: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec(one_of(all), 0..3)
}

const METHODS: &[&str] = &["GET", "POST"];
const HOSTS: &[&str] = &["a.x", "b.x", "x", "*.x", "*.b.x", "c.b.x", "**.x", "**.b.x"];
const PATHS: &[&str] = &["/", "/*", "/a", "/a/*", "/a/b", "/a/b/*", "/b", "/a/"];
const ASKED: &[&str] = &["/", "/a", "/a/", "/a/b", "/a/b/c", "/ab", "/b", "/b/", "*"];
const NETWORKS: &[&str] = &[
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.0.7",
    "fd00::/8",
    "0.0.0.0/0",
];
const CLIENTS: &[&str] = &[
    "10.1.0.7",
    "10.1.0.8",
    "10.9.9.9",
    "192.0.2.1",
    "fd00::1",
    "::ffff:10.1.0.7",
];

fn networks() -> impl Strategy<Value = Networks> {
    let one = one_of(NETWORKS).prop_map(|text| text.parse().unwrap());
    proptest::collection::vec(one, 0..3).prop_map(Networks)
}

fn client() -> impl Strategy<Value = Option<IpAddr>> {
    proptest::option::of(one_of(CLIENTS).prop_map(|text| text.parse().unwrap()))
}

const VALUES: &[&str] = &["1", "12", "1*", "*", "2"];
const VALUE_REGEXES: &[&str] = &["1.?", "[12]", ""];
const PATH_REGEXES: &[&str] = &["/a.*", "/[ab]", "/.*/c|/"];

fn regex(all: &'static [&'static str]) -> impl Strategy<Value = ValueRegex> {
    one_of(all).prop_map(|text| text.parse().unwrap())
}

fn conditions() -> impl Strategy<Value = Conditions> {
    let value = one_of(VALUES).prop_map(|text| Pattern::from_text(&text));
    let value_regex = regex(VALUE_REGEXES).prop_map(|regex| Pattern::Regex(Box::new(regex)));
    let field = proptest::option::of(prop_oneof![3 => value, 1 => value_regex]);
    let path_regexes = proptest::collection::vec(regex(PATH_REGEXES), 1..3);
    (
        some(METHODS),
        some(HOSTS),
        some(PATHS),
        field,
        any::<bool>(),
        // Most routes are for all clients.
        proptest::option::weighted(0.3, (networks(), networks())),
        proptest::option::weighted(0.2, path_regexes),
    )
        .prop_map(
            |(methods, hosts, paths, field, absent, clients, path_regexes)| {
                let (clients, except_clients) = clients.unwrap_or_default();
                let pattern = field.or(absent.then_some(Pattern::Absent));
                let headers = pattern.map(|pattern| ("x".to_owned(), pattern));
                Conditions {
                    hosts,
                    paths,
                    path_regexes: path_regexes.unwrap_or_default(),
                    methods,
                    headers: headers.into_iter().collect(),
                    clients,
                    except_clients,
                    ..Conditions::default()
                }
            },
        )
}

fn request() -> impl Strategy<Value = Request> {
    let host = proptest::option::of(one_of(&[
        "A.x", "b.X:80", "x.", "c.b.x", "d.x", "*.x", "e.d.x", "e.c.b.X",
    ]));
    let field = proptest::option::of(one_of(&["1", "12", "2", ""]));
    (one_of(METHODS), host, one_of(ASKED), field).prop_map(|(method, host, path, field)| Request {
        method,
        host,
        path,
        fields: field
            .map(|value| ("X".to_owned(), value))
            .into_iter()
            .collect(),
        ..Request::default()
    })
}

proptest! {
    #[test]
    fn the_first_route_whose_conditions_hold_is_found(
        routes in proptest::collection::vec(conditions(), 0..12),
        requests in proptest::collection::vec((request(), client()), 20),
    ) {
        let index = Index::new(routes.clone());
        for (request, client) in requests {
            let wanted = routes.iter().position(|conditions| conditions.are_met(&request, client));
            prop_assert_eq!(index.find_route(&request, client), wanted, "{:?} {:?}", request, client);
        }
    }

    #[test]
    fn an_index_with_other_routes_finds_what_a_new_one_finds(
        routes in proptest::collection::vec(conditions(), 0..12),
        changes in proptest::collection::vec(
            (0..12usize, 0..6usize, proptest::collection::vec(conditions(), 0..4)),
            1..8,
        ),
        requests in proptest::collection::vec((request(), client()), 20),
    ) {
        let mut routes: Vec<_> = routes.into_iter().map(Arc::new).collect();
        let mut index = Index::of_shared(routes.clone());
        for (first, count, new) in changes {
            let before = (index.clone(), routes.clone());
            let first = first.min(routes.len());
            let gone = first..(first + count).min(routes.len());
            let new: Vec<_> = new.into_iter().map(Arc::new).collect();
            index = index.with_others(gone.clone(), &new);
            routes.splice(gone, new);
            let whole = Index::of_shared(routes.clone());
            // The index before stays as it was.
            for (index, routes) in [(&index, &routes), (&before.0, &before.1)] {
                for (request, client) in &requests {
                    let wanted = routes.iter().position(|of| of.are_met(request, *client));
                    prop_assert_eq!(index.find_route(request, *client), wanted);
                }
            }
            let covering = |index: &Index| -> Vec<_> {
                (0..routes.len()).map(|route| index.covering(route)).collect()
            };
            prop_assert_eq!(covering(&index), covering(&whole));
            prop_assert_eq!(index.by_path(), whole.by_path());
            prop_assert_eq!(index.by_client(), whole.by_client());
            prop_assert!(index.routes.len() <= 2 * routes.len());
        }
    }

    #[test]
    fn what_is_covered_is_never_found(
        routes in proptest::collection::vec(conditions(), 1..12),
        requests in proptest::collection::vec((request(), client()), 40),
    ) {
        let index = Index::new(routes.clone());
        let covered: Vec<_> = (0..routes.len()).filter(|&at| index.covering(at).is_some()).collect();
        for (request, client) in requests {
            if let Some(found) = index.find_route(&request, client) {
                prop_assert!(!covered.contains(&found), "{:?}", request);
            }
        }
    }
}

#[test]
fn a_route_is_covered_by_one_that_asks_for_less() {
    let conditions = |host: &[&str], path: &[&str], method: &[&str], field: Option<&str>| {
        let all = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        let field = field.map(|text| ("x".to_owned(), Pattern::from_text(text)));
        Conditions {
            hosts: all(host),
            paths: all(path),
            methods: all(method),
            headers: field.into_iter().collect(),
            ..Conditions::default()
        }
    };
    let covered = |first: Conditions, second: Conditions| {
        Index::new(vec![first, second]).covering(1).is_some()
    };
    let (any, none) = (conditions(&[], &[], &[], None), None);
    let narrow = || conditions(&["a.x"], &["/a/b"], &["GET"], Some("12"));
    assert!(covered(any.clone(), narrow()));
    assert!(!covered(narrow(), any.clone()));
    assert!(covered(any.clone(), any.clone()));
    assert!(covered(
        conditions(&["*.x"], &["/a/*"], &["PUT", "GET"], Some("1*")),
        narrow()
    ));
    assert!(!covered(
        conditions(&["*.y"], &["/a/*"], &[], none),
        narrow()
    ));
    assert!(!covered(conditions(&[], &["/a/b/c"], &[], none), narrow()));
    assert!(!covered(conditions(&[], &[], &["PUT"], none), narrow()));
    assert!(!covered(conditions(&[], &[], &[], Some("2*")), narrow()));
    assert!(!covered(
        conditions(&["a.x"], &[], &[], none),
        conditions(&["a.x", "b.x"], &[], &[], none)
    ));
    // Each part by another one.
    let index = Index::new(vec![
        conditions(&["a.x"], &[], &[], none),
        conditions(&["b.x"], &[], &[], none),
        conditions(&["a.x", "b.x"], &[], &[], none),
    ]);
    assert_eq!(index.covering(2), Some(0));
}

#[test]
fn expressions_see_decoded_values_and_paths() {
    let regex = |text: &str| text.parse::<ValueRegex>().unwrap();
    let pattern = |text: &str| Pattern::Regex(Box::new(regex(text)));
    let holds = |conditions: &Conditions, path: &str, query: &str| {
        let request = Request {
            path: path.into(),
            query: query.into(),
            ..Request::default()
        };
        conditions.hold_for(&request, None)
    };
    let by_path = Conditions {
        path_regexes: vec![regex("/x"), regex("/admin/.*")],
        ..Conditions::default()
    };
    for path in ["/x", "/admin/", "/%61dmin/x", "/admin;a=1/x;b"] {
        assert!(holds(&by_path, path, ""), "{path}");
    }
    for path in ["/xy", "/Admin/x", "/admin", "*"] {
        assert!(!holds(&by_path, path, ""), "{path}");
    }
    let by_query = Conditions {
        query: BTreeMap::from([("a".to_owned(), pattern("x y[0-9]*"))]),
        ..Conditions::default()
    };
    assert!(holds(&by_query, "/", "a=no&%61=x+y%31"));
    assert!(!holds(&by_query, "/", "a=x+yz"));
    assert!(Index::new(vec![by_path]).by_path(), "odd paths are refused");
}

#[test]
fn values_of_a_query_are_compared_as_forms_encode_them() {
    let values = |query: &str, name: &str| -> Vec<String> {
        let text = |value: &[u8]| String::from_utf8(decoded(value).collect()).unwrap();
        let find = |query: String| -> Vec<String> {
            let request = Request {
                query,
                ..Request::default()
            };
            let parts = RequestParts::new(&request);
            parts.find_parameters(name).map(text).collect()
        };
        let found = find(query.to_owned());
        // Pairs of a long one are sorted first.
        assert_eq!(find(query.to_owned() + &"&z=0&0".repeat(200)), found);
        found
    };
    assert_eq!(values("a=1&b=2&a=3", "a"), ["1", "3"]);
    assert_eq!(values("%61=x+y%2Bz&a", "a"), ["x y+z", ""]);
    assert_eq!(values("a=%zz%4", "a"), ["%zz%4"]);
    assert!(values("", "a").is_empty());
}

#[test]
fn the_first_cookie_of_a_name_counts_however_many_others_there_are() {
    let find = |cookies: &[&str], name: &str| {
        let field = |value: &&str| ("Cookie".to_owned(), (*value).to_owned());
        let request = Request {
            fields: cookies.iter().map(field).collect(),
            ..Request::default()
        };
        let value = RequestParts::new(&request).find_cookie(name)?;
        Some(String::from_utf8(value.to_vec()).unwrap())
    };
    let others = "z=0; A=0; ".repeat(200);
    for (first, second, name, value) in [
        ("a=1; b=2;a=3", "a=4", "a", Some("1")),
        ("a=1; b=2", "b=3", "b", Some("2")),
        ("aa=1; b=2", "a=x=y ", "a", Some("x=y")),
        ("a; b=2", "", "a", None),
        ("a=; b", "a=2", "a", Some("")),
    ] {
        let value = value.map(str::to_owned);
        assert_eq!(find(&[first, second], name), value, "{first}, {second}");
        let many = [first, &others, second];
        assert_eq!(find(&many, name), value, "{first}, many, {second}");
        assert_eq!(find(&[&others, first, second], name), value);
    }
}

#[test]
fn a_host_is_without_its_port() {
    for (authority, host) in [
        ("a.example", "a.example"),
        ("a.example:80", "a.example"),
        ("a.example.:80", "a.example"),
        ("[::1]:80", "[::1]"),
        ("[::1]", "[::1]"),
        ("[::1", "[::1"),
        ("", ""),
    ] {
        assert_eq!(host_of(authority), host);
    }
}

#[test]
fn http_d7_a_port_has_its_colon() {
    for (authority, port) in [
        ("a.example", ""),
        ("a.example:8080", ":8080"),
        ("a.example:", ""),
        ("[::1]:80", ":80"),
        ("[::1]", ""),
        ("", ""),
    ] {
        assert_eq!(port_of(authority), port, "{authority}");
    }
}

#[test]
fn http_d7_addresses_of_hosts_are_compared_and_not_their_spellings() {
    let mut space = [0; MAX_HOST];
    for (host, plain) in [
        ("[0:0:0:0:0:0:0:1]", "[::1]"),
        ("[2001:DB8::0001]", "[2001:db8::1]"),
        ("[::ffff:192.0.2.1]", "[::ffff:192.0.2.1]"),
        ("[::1", "[::1"),
        ("[x]", "[x]"),
        ("A.Example", "a.example"),
    ] {
        assert_eq!(plain_host(host, &mut space), Some(plain), "{host}");
    }
    assert_eq!(plain_host(&"x".repeat(MAX_HOST + 1), &mut space), None);
    let config = |host: &str| {
        let text = format!(
            "[rule.web]\nlisten = \"127.0.0.1:1\"\nmembers = [\"a:1\"]\n[[rule.web.routes]]\nhost = {host:?}\n\
             answer = {{ status = 204 }}\n"
        );
        crate::parse("f", &text).unwrap()
    };
    for host in ["::1", "[::1]", "0:0:0:0:0:0:0:1", "[0::0:1]"] {
        let config = config(host);
        let index = config.rules[0].routes.index().unwrap();
        for asked in ["[::1]:8080", "[0:0:0:0:0:0:0:1]", "[::0001]"] {
            let request = Request {
                method: "GET".into(),
                host: Some(asked.into()),
                path: "/".into(),
                ..Request::default()
            };
            assert_eq!(index.find_route(&request, None), Some(0), "{host} {asked}");
        }
    }
}

#[test]
fn g1_clients_are_compared_by_their_networks() {
    let networks =
        |texts: &[&str]| Networks(texts.iter().map(|text| text.parse().unwrap()).collect());
    let conditions = |clients: &[&str], except: &[&str]| Conditions {
        clients: networks(clients),
        except_clients: networks(except),
        ..Conditions::default()
    };
    let inside = ["10.0.0.0/8", "fd00::/8"];
    for (client, within, outside) in [
        (Some("10.1.2.3"), true, false),
        (Some("::ffff:10.1.2.3"), true, false),
        (Some("fd00::1"), true, false),
        (Some("192.0.2.1"), false, true),
        // Over a Unix socket there is no address: it is not known to be inside.
        (None, false, true),
    ] {
        let client = client.map(|text| text.parse().unwrap());
        assert_eq!(
            conditions(&inside, &[]).hold_for(&Request::default(), client),
            within
        );
        assert_eq!(
            conditions(&[], &inside).hold_for(&Request::default(), client),
            outside
        );
    }
    let covered = |first: (&[&str], &[&str]), second: (&[&str], &[&str])| {
        let all = vec![conditions(first.0, first.1), conditions(second.0, second.1)];
        Index::new(all).covering(1).is_some()
    };
    let (any, ten, part): (&[&str], &[&str], &[&str]) = (&[], &["10.0.0.0/8"], &["10.1.0.0/16"]);
    for (first, second, is_covered) in [
        ((any, any), (ten, any), true),
        ((ten, any), (any, any), false),
        ((ten, any), (part, any), true),
        ((part, any), (ten, any), false),
        ((ten, any), (ten, any), true),
        // Who is left out by the first one is for the second.
        ((any, ten), (any, any), false),
        ((any, ten), (part, any), false),
        ((any, ten), (any, ten), true),
        ((any, part), (any, ten), true),
        ((any, ten), (any, part), false),
        ((any, ten), (&["192.0.2.0/24"], any), true),
        ((ten, part), (&["10.2.0.0/16"], any), true),
    ] {
        assert_eq!(covered(first, second), is_covered, "{first:?} {second:?}");
    }
}
