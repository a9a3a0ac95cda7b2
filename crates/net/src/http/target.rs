//! Target of a request: one site, and a path in it.

use evenkeel_config::negotiator::normalize_host;
use hyper::header::HOST;
use hyper::http::request::Parts;
use hyper::{StatusCode, Version};

/// Target of a request, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The site's name or IP address: in lower case, without port, brackets and final dot.
    /// `None` in HTTP/1.0 without `Host`.
    pub host: Option<String>,
    /// Path and query: visible ASCII that begins with a slash. Or `*`.
    pub path_and_query: String,
}

/// A request that is not answered, because two readers could understand it differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTarget {
    /// No `Host` in HTTP/1.1.
    #[error("there is no Host field")]
    NoHost,
    /// More than one.
    #[error("there is more than one Host field")]
    ManyHosts,
    /// The field is no host.
    #[error("the Host field is not a host name or IP address, with or without a port")]
    Host,
    /// Neither `/path`, nor `http://host/path`, nor `*`.
    #[error("the request target is not a path of visible ASCII characters")]
    Path,
}

impl BadTarget {
    /// Returns the status with which the request is refused.
    pub fn status(self) -> StatusCode {
        StatusCode::BAD_REQUEST
    }
}

impl Target {
    /// Checks a request's head. The host of an absolute target is stronger than the `Host`
    /// field, which must be there all the same (RFC 9112, section 3.2.2).
    pub fn from_head(head: &Parts) -> Result<Target, BadTarget> {
        let mut fields = head.headers.get_all(HOST).iter();
        let field = match (fields.next(), fields.next()) {
            (_, Some(_)) => return Err(BadTarget::ManyHosts),
            (Some(field), None) => {
                let text = field.to_str().map_err(|_| BadTarget::Host)?;
                Some(host_of(text).ok_or(BadTarget::Host)?)
            }
            (None, None) if head.version == Version::HTTP_10 => None,
            (None, None) => return Err(BadTarget::NoHost),
        };
        let host = match head.uri.authority() {
            Some(authority) => Some(host_of(authority.as_str()).ok_or(BadTarget::Host)?),
            None => field,
        };
        let path = head.uri.path();
        let is_asterisk = path == "*" && head.uri.query().is_none();
        let is_visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let query = head.uri.query();
        let good = path.starts_with('/') && is_visible(path) && query.is_none_or(is_visible);
        if !good && !is_asterisk {
            return Err(BadTarget::Path);
        }
        let path_and_query = match query {
            Some(query) => format!("{path}?{query}"),
            None => path.to_owned(),
        };
        Ok(Target {
            host,
            path_and_query,
        })
    }

    /// Returns the path alone.
    pub fn path(&self) -> &str {
        let (path, _) = self.split();
        path
    }

    /// The query, without its question mark; empty if there is none.
    pub fn query(&self) -> &str {
        let (_, query) = self.split();
        query
    }

    fn split(&self) -> (&str, &str) {
        let text = &self.path_and_query;
        text.split_once('?').unwrap_or((text, ""))
    }
}

/// The host of `host[:port]`.
fn host_of(authority: &str) -> Option<String> {
    let (name, port) = match authority.rfind(']') {
        Some(end) => authority.split_at_checked(end + 1)?,
        None => {
            let end = authority.find(':').unwrap_or(authority.len());
            authority.split_at_checked(end)?
        }
    };
    // A port may be empty (RFC 3986, section 3.2.3).
    let good = match port.strip_prefix(':') {
        Some(digits) => digits.len() <= 5 && digits.bytes().all(|byte| byte.is_ascii_digit()),
        None => port.is_empty(),
    };
    if !good {
        return None;
    }
    normalize_host(name)
}

#[cfg(test)]
mod tests {
    use hyper::Request;
    use proptest::prelude::*;

    use super::*;

    fn target(uri: &str, hosts: &[&str]) -> Result<Target, BadTarget> {
        let mut request = Request::builder().uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        Target::from_head(&head)
    }

    #[test]
    fn one_site_whatever_the_form() {
        let good = |uri, host| target(uri, &[host]).unwrap();
        for host in ["www.example", "WWW.Example.:8080", "www.example:"] {
            assert_eq!(good("/x?y", host).host.as_deref(), Some("www.example"));
        }
        assert_eq!(good("/", "[::1]:80").host.as_deref(), Some("::1"));
        assert_eq!(good("/", "192.0.2.1:80").host.as_deref(), Some("192.0.2.1"));
        let absolute = good("http://b.example:1/x?y=1", "a.example");
        assert_eq!(absolute.host.as_deref(), Some("b.example"));
        assert_eq!(absolute.path_and_query, "/x?y=1");
        assert_eq!((absolute.path(), absolute.query()), ("/x", "y=1"));
        assert_eq!(good("http://b.example", "b").path_and_query, "/");
        assert_eq!(good("http://b.example?q", "b").path_and_query, "/?q");
        assert_eq!(good("*", "b").path_and_query, "*");
        assert_eq!(
            good("//evil.example/x", "b").path_and_query,
            "//evil.example/x"
        );
    }

    #[test]
    fn what_may_be_read_in_two_ways_is_refused() {
        assert_eq!(target("/", &[]), Err(BadTarget::NoHost));
        assert_eq!(target("/", &["a", "a"]), Err(BadTarget::ManyHosts));
        for host in [
            "", "a b", "user@a", "a:b", "a:1:2", "a/b", "::1", "[::1", "a:+1", "[::1]x",
            "a:123456", "é",
        ] {
            assert_eq!(target("/", &[host]), Err(BadTarget::Host), "{host}");
        }
        assert_eq!(target("http://u@a/", &["a"]), Err(BadTarget::Host));
        assert_eq!(target("/é", &["a"]), Err(BadTarget::Path));
        // The form of CONNECT.
        assert_eq!(target("a.example:443", &["a"]), Err(BadTarget::Path));
    }

    #[test]
    fn http_1_0_needs_no_host() {
        let mut request = Request::builder().uri("/").body(()).unwrap();
        *request.version_mut() = Version::HTTP_10;
        let (head, ()) = request.into_parts();
        assert_eq!(Target::from_head(&head).unwrap().host, None);
    }

    proptest! {
        /// Whatever comes: what is passed on is fit for a field, and leads into the site.
        #[test]
        fn whatever_is_accepted_is_harmless(uri in "\\PC{0,40}", host in "\\PC{0,40}") {
            let request = Request::builder().uri(uri).header(HOST, host).body(());
            if let Ok(request) = request
                && let Ok(target) = Target::from_head(&request.into_parts().0)
            {
                let text = &target.path_and_query;
                prop_assert!(text == "*" || text.starts_with('/'));
                prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }
    }
}
