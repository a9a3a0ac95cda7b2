//! `cors` of rules, groups and routes: which pages of other origins browsers let read responses.

use std::str::FromStr;
use std::time::Duration;

use evenkeel_core::key::is_field_name;

use crate::schema::address::Origin;
use crate::schema::document::Item;
use crate::schema::field::{Blank, Element, Field, Limits, Texts, blank, read_text};
use crate::schema::key::{DAY, describe_keys, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Cross-origin resource sharing (Fetch Standard, section 3.2) of a rule, a group or a route.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Cors {}
    keys CORS {
        /// Origins whose pages may read responses: `https://app.example`, with a port unless the port is the
        /// usual one; `https://*.app.example` for all names below the domain; `"*"` for all origins. If you
        /// name none, your members decide.
        allow_origins: Vec<OriginPattern> = Vec::new(); r#"["https://app.example", "https://*.app.example"]"#,
        /// Methods allowed for pages of these origins, `"*"` for all. `GET`, `HEAD` and `POST` need no
        /// permission.
        allow_methods: Vec<String> [Text(TOKEN)] = ["GET", "HEAD", "POST"].map(str::to_owned).into(); r#"["GET", "PUT", "DELETE"]"#,
        /// Request fields allowed for pages of these origins, `"*"` for all, in addition to fields which need
        /// no permission.
        allow_headers: Vec<String> [Text(TOKEN)] = Vec::new(); r#"["Authorization", "Content-Type"]"#,
        /// Response fields which pages of these origins may see, in addition to fields visible to every page.
        /// `"*"` stands for all, in requests without credentials.
        expose_headers: Vec<String> [Text(TOKEN)] = Vec::new(); r#"["X-Request-Id"]"#,
        /// Lets browsers send cookies and passwords with requests from these origins. Name your origins: with
        /// `allow_origins = "*"` every page opened by your users can act in their name.
        allow_credentials: bool = false; "true",
        /// Time for which browsers may keep the answer to a preflight, in whole seconds. If you leave the key
        /// out, browsers keep the answer for 5 s.
        max_age: Option<Duration> [Time(secs(0), DAY)] = None; r#""1h""#,
    }
}

/// The value that stands for all.
const ALL: &str = "*";

/// A name of a method or a field.
const TOKEN: Texts = ("a name as in \"Content-Type\", or \"*\"", |text| {
    text == ALL || is_field_name(text)
});

impl AsTable for Cors {
    const ALLOWED: &'static str = "a table about cross-origin resource sharing";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(CORS, self, report);
        let needless = CORS.iter().map(|key| key.name);
        let needless = needless.filter(|key| *key != "allow_origins" && table.has_key(key));
        if self.allow_origins.is_empty() && !table.has_key("allow_origins") {
            for key in needless {
                table.report_problem(key, "has no effect without `allow_origins`", report);
            }
        }
    }
}
blank!(Cors);

impl Cors {
    /// True if the balancer decides, and not its members.
    pub fn is_on(&self) -> bool {
        !self.allow_origins.is_empty()
    }

    /// True if pages of each origin may read responses.
    pub fn allows_all_origins(&self) -> bool {
        self.allow_origins.contains(&OriginPattern::All)
    }

    /// True if pages of this origin, as a request has it, may read responses.
    pub fn allows_origin(&self, origin: &str) -> bool {
        self.allow_origins
            .iter()
            .any(|pattern| pattern.matches(origin))
    }

    /// True if pages may use this method. Those that browsers ask nobody about are always allowed.
    pub fn allows_method(&self, method: &str) -> bool {
        let mut known = self.allow_methods.iter();
        ["GET", "HEAD", "POST"].contains(&method)
            || known.any(|known| known == ALL || known == method)
    }

    /// True if requests of pages may have a field of this name.
    pub fn allows_header(&self, name: &str) -> bool {
        let mut known = self.allow_headers.iter();
        known.any(|known| known == ALL || known.eq_ignore_ascii_case(name))
    }

    /// True if names stand for all that there are.
    pub fn has_all(names: &[String]) -> bool {
        names.iter().any(|name| name == ALL)
    }
}

/// Origins of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginPattern {
    /// Each one.
    All,
    /// The named origin.
    One(Origin),
    /// Origins with names below a domain.
    Below {
        /// Scheme, with `://`.
        scheme: Box<str>,
        /// The domain, with the dot before it, and the port unless the scheme implies it.
        domain: Box<str>,
    },
}

const PATTERN: &str =
    "an origin as in \"https://app.example\" or \"https://*.app.example:8443\", or \"*\"";

impl OriginPattern {
    /// True for an origin as browsers send it.
    fn matches(&self, origin: &str) -> bool {
        match self {
            OriginPattern::All => true,
            OriginPattern::One(one) => one.as_str().eq_ignore_ascii_case(origin),
            OriginPattern::Below { scheme, domain } => {
                let name = cut_start(origin, scheme).and_then(|rest| cut_end(rest, domain));
                let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
                name.is_some_and(|name| !name.is_empty() && name.bytes().all(fits))
            }
        }
    }
}

/// Rest of `text` after `start`, in upper or lower case.
fn cut_start<'t>(text: &'t str, start: &str) -> Option<&'t str> {
    let (front, rest) = text.split_at_checked(start.len())?;
    front.eq_ignore_ascii_case(start).then_some(rest)
}

/// Part of `text` before `end`, in upper or lower case.
fn cut_end<'t>(text: &'t str, end: &str) -> Option<&'t str> {
    let (rest, back) = text.split_at_checked(text.len().checked_sub(end.len())?)?;
    back.eq_ignore_ascii_case(end).then_some(rest)
}

impl FromStr for OriginPattern {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const NOT: &str = "not an origin";
        if text == ALL {
            return Ok(OriginPattern::All);
        }
        if text.eq_ignore_ascii_case("null") {
            return Err("\"null\" is the origin of pages that anybody can make");
        }
        let Some((scheme, below)) = text.split_once("://*.") else {
            return text.parse().map(OriginPattern::One).map_err(|_| NOT);
        };
        let of_domain: Origin = format!("{scheme}://{below}").parse().map_err(|_| NOT)?;
        let is_name = of_domain
            .host()
            .bytes()
            .any(|byte| byte.is_ascii_alphabetic());
        let (scheme, domain) = of_domain.as_str().split_once("://").ok_or(NOT)?;
        match is_name && !of_domain.host().contains(':') {
            true => Ok(OriginPattern::Below {
                scheme: format!("{scheme}://").into(),
                domain: format!(".{domain}").into(),
            }),
            false => Err(NOT),
        }
    }
}

impl Field for OriginPattern {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        read_text(self, item, limits, report, |text| text.trim().parse());
    }

    fn allowed(&self, _: &Limits) -> String {
        PATTERN.into()
    }
}

impl Blank for OriginPattern {
    fn blank() -> Self {
        OriginPattern::All
    }
}

impl Element for OriginPattern {
    const NONE: Option<&'static str> = None;
}

/// Documentation of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "[Cross-origin resource sharing](routing.md#pages-of-other-origins) of a rule: pages \
               of other origins which may read the rule's responses. You can set `cors` of a group \
               and of a route with the same keys; the more specific table replaces the rule's as a \
               whole.";
    TableDoc::new(
        "[rule.NAME.cors]",
        doc,
        [describe_keys(CORS, Cors::default())],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(keys: &str) -> Result<Cors, String> {
        let text = format!(
            "[rule.x]\nlisten = \"127.0.0.1:80\"\nprotocol = \"http\"\nmembers = [\"a:1\"]\n[rule.x.cors]\n{keys}\n"
        );
        let mut config = crate::parse("x.toml", &text).map_err(|errors| errors.to_string())?;
        let responses = config.rules.remove(0).responses;
        Ok(responses.cors.unwrap_or_default())
    }

    #[test]
    fn origins_are_compared_as_browsers_send_them() {
        let cors = read(
            "allow_origins = [\"https://App.example:443\", \"http://localhost:3000\", \"https://*.shop.example\", \
             \"http://*.dev.example:8080\"]",
        )
        .unwrap();
        for origin in [
            "https://app.example",
            "http://localhost:3000",
            "https://a.shop.example",
            "https://a.b.shop.example",
            "http://x.dev.example:8080",
        ] {
            assert!(cors.allows_origin(origin), "{origin}");
        }
        for origin in [
            "http://app.example",
            "https://app.example:8443",
            "https://app.example.evil.example",
            "https://evilapp.example",
            "https://shop.example",
            "https://.shop.example",
            "https://evil.example/.shop.example",
            "https://evil.example#a.shop.example",
            "https://user@evil.example?.shop.example",
            "https://a.shop.example:8443",
            "http://x.dev.example",
            "http://localhost",
            "null",
            "",
        ] {
            assert!(!cors.allows_origin(origin), "{origin}");
        }
        let all = read("allow_origins = \"*\"").unwrap();
        assert!(all.allows_all_origins() && all.allows_origin("null"));
    }

    #[test]
    fn what_is_no_origin_is_told() {
        for (text, wanted) in [
            ("\"app.example\"", "not an origin"),
            ("\"https://app.example/path\"", "not an origin"),
            ("\"https://*\"", "not an origin"),
            ("\"https://*.127.0.0.1\"", "not an origin"),
            ("\"https://a.*.example\"", "not an origin"),
            ("\"ftp://*.example\"", "not an origin"),
            ("\"null\"", "that anybody can make"),
        ] {
            let problem = read(&format!("allow_origins = {text}")).unwrap_err();
            assert!(problem.contains(wanted), "{text}: {problem}");
        }
        let problem = read("allow_methods = [\"PUT\"]").unwrap_err();
        assert!(
            problem.contains("has no effect without `allow_origins`"),
            "{problem}"
        );
        let problem = read("allow_origins = \"*\"\nallow_headers = [\"A: b\"]").unwrap_err();
        assert!(problem.contains("Content-Type"), "{problem}");
    }

    #[test]
    fn methods_and_fields_are_those_that_are_named() {
        let cors =
            read("allow_origins = \"*\"\nallow_methods = [\"PUT\"]\nallow_headers = [\"X-Key\"]")
                .unwrap();
        assert_eq!(
            ["PUT", "GET", "POST", "DELETE", "put"].map(|method| cors.allows_method(method)),
            [true, true, true, false, false]
        );
        assert!(cors.allows_header("x-KEY") && !cors.allows_header("x-other"));
        let all =
            read("allow_origins = \"*\"\nallow_methods = \"*\"\nallow_headers = \"*\"").unwrap();
        assert!(all.allows_method("PURGE") && all.allows_header("x-other"));
        assert!(!Cors::default().is_on());
    }
}
