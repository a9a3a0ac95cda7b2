//! Cross-origin resource sharing (Fetch Standard, section 3.2): what browsers are told of pages of other origins.

use evenkeel_core::key::is_field_name;
use evenkeel_manager::config::FieldChanges;
use evenkeel_manager::cors::CorsPolicy;

use crate::message::Request;

/// Longest origin that is looked at, in bytes: of a scheme, the longest name and a port.
const MAX_ORIGIN: usize = 300;

/// Fields of members' responses that are replaced by fields of the balancer.
pub(crate) const TAKEN_OUT: [&str; 6] = [
    "access-control-allow-origin",
    "access-control-allow-credentials",
    "access-control-allow-methods",
    "access-control-allow-headers",
    "access-control-expose-headers",
    "access-control-max-age",
];

/// Permissions for the page that sends a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CrossOrigin {
    /// Origin of the page, if it may read the response.
    origin: Option<Box<str>>,
    preflight: Option<Preflight>,
}

/// The request that a browser asks about.
#[derive(Debug, PartialEq, Eq)]
struct Preflight {
    method: Box<str>,
    /// Names of its fields, separated by commas.
    headers: Option<Box<str>>,
}

/// Returns the method of the request that a browser asks about with this request; `None` if this
/// request is no preflight.
pub(crate) fn asked_method<'a>(request: &Request<'a>) -> Option<&'a str> {
    if request.method != "OPTIONS" {
        return None;
    }
    only_text(request, "origin")?;
    only_text(request, "access-control-request-method").filter(|method| is_field_name(method))
}

/// Text of the only field called `name`.
fn only_text<'a>(request: &Request<'a>, name: &str) -> Option<&'a str> {
    std::str::from_utf8(request.only_value(name)?).ok()
}

impl CrossOrigin {
    /// Returns the permissions that `policy` grants the page that sends `request`; `None` if there
    /// is nothing to remember.
    pub(crate) fn of_request(policy: &CorsPolicy, request: &Request<'_>) -> Option<Box<Self>> {
        let origin = only_text(request, "origin")?;
        let is_granted = origin.len() <= MAX_ORIGIN
            && origin.bytes().all(|byte| byte.is_ascii_graphic())
            && policy.grants(origin);
        let preflight = asked_method(request).map(|method| Preflight {
            method: method.into(),
            headers: only_text(request, "access-control-request-headers")
                .filter(|names| are_names(names))
                .map(Into::into),
        });
        (is_granted || preflight.is_some()).then(|| {
            Box::new(CrossOrigin {
                origin: is_granted.then(|| origin.into()),
                preflight,
            })
        })
    }

    /// True if the request that a browser asks about is granted as a whole.
    pub(crate) fn grants_all(&self, policy: &CorsPolicy) -> bool {
        let config = policy.config();
        let Some(preflight) = &self.preflight else {
            return false;
        };
        let names = preflight.headers.iter().flat_map(|names| names.split(','));
        self.origin.is_some() && config.allows_method(&preflight.method) && { names }
            .all(|name| config.allows_header(name.trim()))
    }
}

/// True if these are names of fields, separated by commas.
fn are_names(text: &str) -> bool {
    text.split(',').all(|name| is_field_name(name.trim()))
}

/// Fields of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorsFields<'a> {
    policy: &'a CorsPolicy,
    request: Option<&'a CrossOrigin>,
}

impl<'a> CorsFields<'a> {
    /// Fields that `policy` adds to the response to a request.
    pub(crate) fn new(policy: &'a CorsPolicy, request: Option<&'a CrossOrigin>) -> Self {
        CorsFields { policy, request }
    }

    /// Gives names and values to `put`, but for what `changes` write or take out.
    pub(crate) fn for_each_field(
        self,
        changes: Option<&FieldChanges>,
        mut put: impl FnMut(&str, &str),
    ) {
        let policy = self.policy;
        let mut put = |name: &str, value: &str| {
            if !value.is_empty() && !changes.is_some_and(|changes| changes.takes_out(name)) {
                put(name, value);
            }
        };
        let preflight = self.request.and_then(|request| request.preflight.as_ref());
        if let Some(origin) = self.request.and_then(|request| request.origin.as_deref()) {
            let is_same = policy.is_same_for_all();
            put(
                "access-control-allow-origin",
                if is_same { "*" } else { origin },
            );
            if policy.config().allow_credentials {
                put("access-control-allow-credentials", "true");
            }
            // Browsers read them from the response to the request itself, and the Gateway API asks for them in both.
            put("access-control-expose-headers", policy.exposed());
            if let Some(asked) = preflight {
                let methods = policy.methods().unwrap_or(&asked.method);
                let headers = asked.headers.as_deref().unwrap_or_default();
                put("access-control-allow-methods", methods);
                put(
                    "access-control-allow-headers",
                    policy.headers().unwrap_or(headers),
                );
                put(
                    "access-control-max-age",
                    policy.max_age().unwrap_or_default(),
                );
            }
        }
        // A cache that has the answer to one origin must not give it to another.
        let varies = match (preflight.is_some(), policy.is_same_for_all()) {
            (true, _) => "Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
            (false, true) => "",
            (false, false) => "Origin",
        };
        put("vary", varies);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use evenkeel_manager::config;

    use super::*;
    use crate::message::tests::with_request;

    fn policy(keys: &str) -> CorsPolicy {
        let text = format!(
            "[rule.x]\nlisten = \"127.0.0.1:80\"\nprotocol = \"http\"\nmembers = [\"a:1\"]\n[rule.x.cors]\n{keys}\n"
        );
        let mut config = config::parse("x.toml", &text).unwrap();
        let responses = config.rules.remove(0).responses;
        CorsPolicy::new(responses.cors.as_ref()).unwrap()
    }

    /// Fields of the response to a request with these lines, and whether all of it is granted.
    fn answered(
        policy: &CorsPolicy,
        method: &str,
        lines: &str,
    ) -> (BTreeMap<String, String>, bool) {
        let head = format!("{method} / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let of = |request: &Request<'_>| CrossOrigin::of_request(policy, request);
        let request = with_request(&head, of);
        let mut fields = BTreeMap::new();
        CorsFields::new(policy, request.as_deref()).for_each_field(None, |name, value| {
            let before = fields.insert(name.to_owned(), value.to_owned());
            assert_eq!(before, None, "{name} twice");
        });
        let is_granted = request.is_some_and(|request| request.grants_all(policy));
        (fields, is_granted)
    }

    fn map(fields: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        fields.iter().map(owned).collect()
    }

    #[test]
    fn a_page_of_a_named_origin_may_read_responses() {
        let policy = policy(
            "allow_origins = [\"https://app.example\"]\nallow_credentials = true\nexpose_headers = [\"X-A\", \"X-B\"]",
        );
        let (fields, _) = answered(&policy, "GET", "Origin: https://app.example\r\n");
        let expected = map(&[
            ("access-control-allow-origin", "https://app.example"),
            ("access-control-allow-credentials", "true"),
            ("access-control-expose-headers", "X-A, X-B"),
            ("vary", "Origin"),
        ]);
        assert_eq!(fields, expected);
        let long = format!("Origin: https://{}.example\r\n", "a".repeat(400));
        for lines in [
            "",
            "Origin: https://other.example\r\n",
            "Origin: null\r\n",
            "Origin: https://app.example\r\nOrigin: https://app.example\r\n",
            "Origin: https://app.example https://other.example\r\n",
            &long,
        ] {
            let (fields, _) = answered(&policy, "GET", lines);
            assert_eq!(fields, map(&[("vary", "Origin")]), "{lines}");
        }
    }

    #[test]
    fn all_origins_get_the_same_unless_credentials_are_sent() {
        let (fields, _) = answered(&policy("allow_origins = \"*\""), "GET", "Origin: null\r\n");
        assert_eq!(fields, map(&[("access-control-allow-origin", "*")]));
        let policy = policy("allow_origins = \"*\"\nallow_credentials = true");
        let (fields, _) = answered(&policy, "GET", "Origin: https://b.example\r\n");
        assert_eq!(fields["access-control-allow-origin"], "https://b.example");
        let (fields, _) = answered(&policy, "GET", "Origin: null\r\n");
        assert_eq!(
            fields,
            map(&[("vary", "Origin")]),
            "anybody can make such a page"
        );
    }

    #[test]
    fn a_preflight_is_answered_with_what_is_allowed() {
        let policy = policy(
            "allow_origins = [\"https://app.example\"]\nallow_methods = [\"PUT\"]\nallow_headers = [\"X-Key\"]\nmax_age = \"10m\"\n\
             expose_headers = [\"X-Id\"]",
        );
        let vary = "Origin, Access-Control-Request-Method, Access-Control-Request-Headers";
        let ask = |origin: &str, method: &str, headers: &str| {
            let lines = format!(
                "Origin: {origin}\r\nAccess-Control-Request-Method: {method}\r\nAccess-Control-Request-Headers: {headers}\r\n"
            );
            answered(&policy, "OPTIONS", &lines)
        };
        let expected = map(&[
            ("access-control-allow-origin", "https://app.example"),
            ("access-control-expose-headers", "X-Id"),
            ("access-control-allow-methods", "PUT"),
            ("access-control-allow-headers", "X-Key"),
            ("access-control-max-age", "600"),
            ("vary", vary),
        ]);
        for (method, headers, is_granted) in [
            ("PUT", "x-key", true),
            ("GET", "x-key", true),
            ("DELETE", "x-key", false),
            ("PUT", "x-key,x-other", false),
        ] {
            let (fields, granted) = ask("https://app.example", method, headers);
            assert_eq!(
                (fields, granted),
                (expected.clone(), is_granted),
                "{method} {headers}"
            );
        }
        let (fields, granted) = ask("https://other.example", "PUT", "x-key");
        assert_eq!((fields, granted), (map(&[("vary", vary)]), false));
    }

    #[test]
    fn all_methods_and_fields_are_those_that_were_asked_for() {
        let policy = policy("allow_origins = \"*\"\nallow_methods = \"*\"\nallow_headers = \"*\"");
        let ask = |headers: &str| {
            let lines = format!(
                "Origin: https://a.example\r\nAccess-Control-Request-Method: PURGE\r\nAccess-Control-Request-Headers: {headers}\r\n"
            );
            answered(&policy, "OPTIONS", &lines).0
        };
        let fields = ask("authorization, x-a");
        assert_eq!(fields["access-control-allow-methods"], "PURGE");
        assert_eq!(fields["access-control-allow-headers"], "authorization, x-a");
        for bad in ["a b", "a:b", "", "a,"] {
            let fields = ask(bad);
            assert_eq!(fields.get("access-control-allow-headers"), None, "{bad}");
        }
    }

    #[test]
    fn only_options_with_an_origin_and_a_method_is_a_preflight() {
        let asked = |method: &str, lines: &str| {
            let head = format!("{method} / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
            with_request(&head, |request| asked_method(request).map(str::to_owned))
        };
        let both = "Origin: https://a.example\r\nAccess-Control-Request-Method: PUT\r\n";
        assert_eq!(asked("OPTIONS", both).as_deref(), Some("PUT"));
        for (method, lines) in [
            ("GET", both),
            ("OPTIONS", "Origin: https://a.example\r\n"),
            ("OPTIONS", "Access-Control-Request-Method: PUT\r\n"),
            (
                "OPTIONS",
                "Origin: https://a.example\r\nAccess-Control-Request-Method: a b\r\n",
            ),
            (
                "OPTIONS",
                "Origin: https://a.example\r\nAccess-Control-Request-Method: PUT\r\nAccess-Control-Request-Method: GET\r\n",
            ),
        ] {
            assert_eq!(asked(method, lines), None, "{method} {lines}");
        }
    }
}
