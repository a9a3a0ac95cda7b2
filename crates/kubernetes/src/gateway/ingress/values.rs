//! Values of annotations: lists, switches, sizes, times, networks, secrets and addresses of services.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::super::objects::ObjectName;
use super::super::text::is_host;

/// Most networks in an annotation.
const MAX_NETWORKS: usize = 256;

/// Most elements of another list.
const MAX_ELEMENTS: usize = 64;

/// Most further host names of an Ingress.
pub(crate) const MAX_ALIASES: usize = 16;

/// Address of a login service in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoginService {
    /// Name of the service.
    pub(crate) service: String,
    /// Namespace of the service.
    pub(crate) namespace: String,
    /// Port of the service.
    pub(crate) port: u16,
    /// Path of questions.
    pub(crate) path: String,
}

/// Secret with users and hashes of their passwords.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PasswordSecret {
    /// Name of the secret.
    pub(crate) name: ObjectName,
    /// True if each content is the hash of a user; else one content has a line for each user.
    pub(crate) is_map: bool,
}

/// Passwords that requests of an Ingress need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Passwords {
    /// Name of the secret as the annotation has it, perhaps with a namespace.
    pub(crate) secret: String,
    /// True if each content of the secret is the hash of a user.
    pub(crate) is_map: bool,
    /// Line of the configuration with the name that browsers show.
    pub(crate) realm: Option<String>,
}

/// Returns the secret of an annotation, `NAME` or `NAMESPACE/NAME`, of an Ingress of a namespace.
pub(crate) fn find_secret(text: &str, namespace: &str) -> ObjectName {
    let (namespace, name) = text.split_once('/').unwrap_or((namespace, text));
    ObjectName::new(namespace, name)
}

impl Passwords {
    /// Returns the secret for an Ingress of a namespace.
    pub(crate) fn find_secret(&self, namespace: &str) -> PasswordSecret {
        PasswordSecret {
            name: find_secret(&self.secret, namespace),
            is_map: self.is_map,
        }
    }
}

/// True if a number lies in a range.
pub(crate) fn is_number(number: usize, range: RangeInclusive<usize>) -> bool {
    range.contains(&number)
}

/// Returns the elements of a list that commas separate.
pub(crate) fn read_list(text: &str) -> Vec<String> {
    let elements = text.split(',').map(str::trim);
    let elements = elements.filter(|element| !element.is_empty());
    elements.take(MAX_ELEMENTS).map(str::to_owned).collect()
}

/// Reads further host names of an Ingress. Returns false if some of them are left out.
pub(crate) fn read_aliases(text: &str) -> (Vec<String>, bool) {
    let (mut good, wrong): (Vec<_>, Vec<_>) =
        read_list(text).into_iter().partition(|of| is_host(of));
    let is_whole = wrong.is_empty() && good.len() <= MAX_ALIASES;
    good.truncate(MAX_ALIASES);
    (good, is_whole)
}

/// Reads a switch as ingress-nginx does.
pub(crate) fn read_switch(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" | "1" | "t" | "T" => Some(true),
        "false" | "False" | "FALSE" | "0" | "f" | "F" => Some(false),
        _ => None,
    }
}

/// Reads a number of seconds, perhaps with the unit `s`.
pub(crate) fn read_seconds(text: &str) -> Option<u64> {
    text.strip_suffix('s').unwrap_or(text).parse().ok()
}

/// Reads a size as nginx has it, such as `8m`. None stands for no limit.
///
/// # Errors
///
/// The text is no size.
pub(crate) fn read_size(text: &str) -> Result<Option<u64>, String> {
    let wrong = || format!("{text:?} is no size; write one as \"8m\"");
    let end = text.find(|character: char| !character.is_ascii_digit());
    let (digits, unit) = text.split_at(end.unwrap_or(text.len()));
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let factor = match unit {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return Err(wrong()),
    };
    // The configuration has the same bound.
    let bytes = number.saturating_mul(factor).min(1 << 40);
    Ok((bytes > 0).then_some(bytes))
}

/// Reads a list of networks, which must not be empty.
///
/// # Errors
///
/// An element is no network.
pub(crate) fn read_networks(text: &str) -> Result<Vec<String>, String> {
    let elements = text.split(',').map(str::trim);
    let mut found = Vec::new();
    for element in elements.filter(|element| !element.is_empty()) {
        let (address, bits) = match element.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (element, None),
        };
        let address: Option<IpAddr> = address.parse().ok();
        let most = match address {
            Some(IpAddr::V4(_)) => 32,
            _ => 128,
        };
        let bits = bits.map_or(Some(most), |bits| bits.parse::<u8>().ok());
        let (Some(address), Some(bits)) = (address, bits.filter(|bits| *bits <= most)) else {
            return Err(format!(
                "{element:?} is no network; write one as \"10.0.0.0/8\""
            ));
        };
        found.push(format!("{}/{bits}", mask(address, bits)));
    }
    match found.len() {
        0 => Err("no network is named; name one".into()),
        many if many > MAX_NETWORKS => Err(format!("more than {MAX_NETWORKS} networks are named")),
        _ => Ok(found),
    }
}

/// Returns the first address of a network.
fn mask(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32)));
            IpAddr::V4((u32::from(address) & mask.unwrap_or(0)).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128)));
            IpAddr::V6((u128::from(address) & mask.unwrap_or(0)).into())
        }
    }
}

/// Reads the address of a login service in the cluster: `http://SERVICE.NAMESPACE.svc.cluster.local:PORT/PATH`.
///
/// # Errors
///
/// The address is not that of a service of the cluster.
pub(crate) fn read_login_url(url: &str) -> Result<LoginService, String> {
    let wrong = || {
        format!(
            "{url:?} is not the address of a service of the cluster; write one as \
             \"http://SERVICE.NAMESPACE.svc.cluster.local/PATH\""
        )
    };
    let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, port.parse::<u16>().map_err(|_| wrong())?),
        None => (authority, 80),
    };
    let host = host.trim_end_matches('.');
    let host = host.strip_suffix(".cluster.local").unwrap_or(host);
    let (service, namespace) = { host.strip_suffix(".svc") }
        .and_then(|host| host.split_once('.'))
        .ok_or_else(wrong)?;
    let is_label = |text: &str| {
        let is_inner =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=63).contains(&text.len()) && text.bytes().all(is_inner)
    };
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"$#\"\\".contains(&byte);
    let is_path = path.len() <= 1_024 && !path.starts_with("//") && path.bytes().all(is_plain);
    if !is_label(service) || !is_label(namespace) || !is_path || port == 0 {
        return Err(wrong());
    }
    Ok(LoginService {
        service: service.into(),
        namespace: namespace.into(),
        port,
        path: path.into(),
    })
}

/// Variables of addresses of login pages, with what the configuration has in their place. A longer name comes before its
/// beginning.
const PAGE_VARIABLES: [(&str, &str); 7] = [
    ("$escaped_request_uri", "{escaped_uri}"),
    ("$pass_access_scheme", "{scheme}"),
    ("$request_uri", "{path}{query}"),
    ("$http_host", "{host}{port}"),
    ("$scheme", "{scheme}"),
    ("$host", "{host}"),
    ("$uri", "{path}"),
];

/// Reads the address of a login page. If the address has no `parameter`, the page gets the address of the request there, as
/// with ingress-nginx.
///
/// # Errors
///
/// The address cannot be used.
pub(crate) fn read_login_page(address: &str, parameter: &str) -> Result<String, String> {
    let wrong = |what: &str| format!("{address:?} {what}");
    let is_parameter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !(1..=64).contains(&parameter.len()) || !parameter.bytes().all(is_parameter) {
        return Err(format!("{parameter:?} is no name of a parameter"));
    }
    let begins = ["https://", "http://", "$scheme://", "/"];
    let is_address = begins.iter().any(|begin| address.starts_with(begin))
        && !address.starts_with("//")
        && !address.starts_with("/$");
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"\\".contains(&byte);
    if !is_address || address.len() > 1_024 || !address.bytes().all(is_plain) {
        return Err(wrong("is no address of a page"));
    }
    let (mut page, mut rest) = (String::new(), address);
    while let Some((before, after)) = rest.split_once('$') {
        page.push_str(&before.replace('{', "{{"));
        let variable = rest.get(before.len()..).unwrap_or_default();
        let mut known = PAGE_VARIABLES.iter();
        let known = known.find(|(name, _)| variable.starts_with(name));
        let Some((name, part)) = known else {
            return Err(wrong("has a variable that is not known"));
        };
        page.push_str(part);
        rest = after.get(name.len() - 1..).unwrap_or_default();
    }
    page.push_str(&rest.replace('{', "{{"));
    let query = address.split_once('?').map(|(_, query)| query);
    let mut parameters = query.into_iter().flat_map(|query| query.split('&'));
    let is_set = |of: &str| of.split('=').next() == Some(parameter);
    if !parameters.any(is_set) {
        let mark = if query.is_some() { '&' } else { '?' };
        page.push_str(&format!(
            "{mark}{parameter}={{scheme}}://{{host}}{{port}}{{escaped_uri}}"
        ));
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_units() {
        assert_eq!(read_size("8m"), Ok(Some(8 << 20)));
        assert_eq!(read_size("0"), Ok(None));
        assert_eq!(read_size("99999999999g"), Ok(Some(1 << 40)));
        for wrong in ["", "m", "1t", "-1", "1.5m", "é"] {
            assert!(read_size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            (read_seconds("60"), read_seconds("5s"), read_seconds("5m")),
            (Some(60), Some(5), None)
        );
    }

    #[test]
    fn networks_are_masked() {
        let read = |text: &str| read_networks(text).map(|all| all.join(" "));
        assert_eq!(
            read("10.1.2.3/8, 192.0.2.7"),
            Ok("10.0.0.0/8 192.0.2.7/32".into())
        );
        assert_eq!(
            read("2001:db8::1/32,0.0.0.0/0,::/0"),
            Ok("2001:db8::/32 0.0.0.0/0 ::/0".into())
        );
        for wrong in [
            "",
            ",",
            "a",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/8,x",
            "::/129",
        ] {
            assert!(read_networks(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn login_services_are_in_the_cluster() {
        let login =
            read_login_url("http://oauth2-proxy.auth.svc.cluster.local:4180/oauth2/auth").unwrap();
        let wanted = LoginService {
            service: "oauth2-proxy".into(),
            namespace: "auth".into(),
            port: 4180,
            path: "/oauth2/auth".into(),
        };
        assert_eq!(login, wanted);
        assert_eq!(read_login_url("http://a.b.svc").unwrap().path, "/");
        for wrong in [
            "https://a.b.svc/",
            "http://login.example.org/",
            "http://a.b.svc:0/",
            "http://a.b.svc:x/",
            "http://a.b.c.svc/",
            "http://$host/",
            "http://a.b.svc//x",
            "http://a.b.svc/$request_uri",
            "",
        ] {
            assert!(read_login_url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn login_pages_get_the_address_of_the_request() {
        let back = "rd={scheme}://{host}{port}{escaped_uri}";
        for (address, wanted) in [
            (
                "https://$host/oauth2/start?rd=$escaped_request_uri",
                "https://{host}/oauth2/start?rd={escaped_uri}".to_owned(),
            ),
            ("https://a.example", format!("https://a.example?{back}")),
            ("/login?x={1}", format!("/login?x={{{{1}}&{back}")),
            (
                "$scheme://$http_host/$request_uri?rdx=1",
                format!("{{scheme}}://{{host}}{{port}}/{{path}}{{query}}?rdx=1&{back}"),
            ),
        ] {
            assert_eq!(read_login_page(address, "rd"), Ok(wanted), "{address}");
        }
        for wrong in [
            "",
            "login",
            "//a.example/",
            "https://a.example/$cookie_a",
            "https://a.example/$",
            "https://a.example/ x",
            "javascript:alert(1)",
        ] {
            assert!(read_login_page(wrong, "rd").is_err(), "{wrong}");
        }
        assert!(read_login_page("/login", "a&b").is_err());
    }
}
