//! References as people write them: `IOR:`, `corbaloc:` and `corbaname:` (CORBA 3.3, part 2,
//! 7.6.10).

use std::str::FromStr;

use tokio::time::Instant;

use crate::client::{Call, CallError, Client};
use crate::ior::{IiopProfile, Ior, IorError};

/// The port of an address that names none.
pub const DEFAULT_PORT: u16 = 2809;

/// Object of a server that is meant when `corbaname:` names none.
const NAME_SERVICE: &[u8] = b"NameService";

/// A reference as a string says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// `IOR:` and `corbaloc:` with addresses: what is needed to call the object. The type
    /// of an object that `corbaloc:` names is not known.
    Ior(Ior),
    /// `corbaname:`: an object that a naming service knows.
    Name {
        /// The naming context.
        context: Box<Reference>,
        /// The name there, as a string of the naming service (`id.kind/id`); empty for the
        /// context itself.
        name: String,
    },
    /// `corbaloc:rir:`: an object that whoever reads the string knows by that name.
    Initial(String),
}

/// A string that is no reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The string starts with another scheme.
    #[error("a reference starts with \"IOR:\", \"corbaloc:\" or \"corbaname:\"")]
    Scheme,
    /// Error after `IOR:`.
    #[error(transparent)]
    Ior(#[from] IorError),
    /// An address that is not valid.
    #[error("{0:?} is not an address: write iiop:1.2@HOST:PORT, version and port may be left out")]
    Address(String),
    /// `rir:` and another address.
    #[error("rir: stands alone, without other addresses")]
    Alone,
    /// An object key or a name that is not valid.
    #[error("{0:?} is not valid: write other characters than those of URLs as %41")]
    Escape(String),
}

/// A name that cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// A reference of the form [`Reference::Initial`], which has no address.
    #[error(
        "\"rir:\" is not an address here: write the address of {0:?}, as in corbaloc::HOST:PORT/{0}"
    )]
    Initial(String),
    /// The naming service did not answer, or does not know the name.
    #[error("the naming service did not say where {name:?} is: {error}")]
    Name {
        /// The name.
        name: String,
        /// Error of the naming service.
        #[source]
        error: Box<CallError>,
    },
}

impl FromStr for Reference {
    type Err = ReferenceError;

    /// Reads one, with the scheme in either case, and white space around it, as in files.
    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let text = text.trim();
        let (scheme, rest) = text.split_once(':').ok_or(ReferenceError::Scheme)?;
        match scheme.to_ascii_lowercase().as_str() {
            "ior" => Ok(Reference::Ior(text.parse()?)),
            "corbaloc" => location(rest, b""),
            "corbaname" => {
                let (context, name) = rest.split_once('#').unwrap_or((rest, ""));
                let bytes = unescape(name)?;
                let name = String::from_utf8(bytes)
                    .map_err(|_| ReferenceError::Escape(name.to_owned()))?;
                Ok(Reference::Name {
                    context: Box::new(location(context, NAME_SERVICE)?),
                    name,
                })
            }
            _ => Err(ReferenceError::Scheme),
        }
    }
}

impl Reference {
    /// The object that is meant; a naming service is asked by `client`.
    pub async fn resolve(&self, client: &Client, deadline: Instant) -> Result<Ior, ResolveError> {
        let (context, name) = match self {
            Reference::Ior(ior) => return Ok(ior.clone()),
            Reference::Initial(name) => return Err(ResolveError::Initial(name.clone())),
            Reference::Name { context, name } => (context, name),
        };
        let context = match &**context {
            Reference::Ior(ior) => ior,
            Reference::Initial(name) => return Err(ResolveError::Initial(name.clone())),
            // There are no names in names: the parser makes none.
            Reference::Name { name, .. } => return Err(ResolveError::Initial(name.clone())),
        };
        if name.is_empty() {
            return Ok(context.clone());
        }
        // An operation of NamingContextExt, which is as old as `corbaname:`.
        let call = Call::new(context, "resolve_str", deadline);
        let call = call.with_arguments(|writer| writer.write_string(name));
        let answer = match client.call(&call).await {
            Ok(body) => Ior::read(&mut body.reader()).map_err(CallError::from),
            Err(error) => Err(error),
        };
        answer.map_err(|error| ResolveError::Name {
            name: name.clone(),
            error: Box::new(error),
        })
    }
}

/// Reads addresses and an object key.
fn location(text: &str, default_key: &[u8]) -> Result<Reference, ReferenceError> {
    // Neither address nor version has a slash.
    let (addresses, key) = text.split_once('/').unwrap_or((text, ""));
    let mut key = unescape(key)?;
    if key.is_empty() {
        key = default_key.to_vec();
    }
    if has_prefix(addresses, "rir:").is_some() {
        if !addresses.eq_ignore_ascii_case("rir:") {
            return Err(ReferenceError::Alone);
        }
        if key.is_empty() {
            key = NAME_SERVICE.to_vec();
        }
        return match String::from_utf8(key) {
            Ok(name) => Ok(Reference::Initial(name)),
            Err(_) => Err(ReferenceError::Escape(text.to_owned())),
        };
    }
    let profiles = addresses.split(',').map(|one| {
        if has_prefix(one, "rir:").is_some() {
            return Err(ReferenceError::Alone);
        }
        let (minor, host, port) =
            address(one).ok_or_else(|| ReferenceError::Address(one.to_owned()))?;
        let profile = IiopProfile {
            minor,
            host: host.into(),
            port,
            object_key: key.clone(),
            components: Vec::new(),
        };
        Ok(profile.to_tagged())
    });
    Ok(Reference::Ior(Ior {
        type_id: String::new(),
        profiles: profiles.collect::<Result<_, _>>()?,
    }))
}

fn has_prefix<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    match text.split_at_checked(prefix.len()) {
        Some((start, rest)) if start.eq_ignore_ascii_case(prefix) => Some(rest),
        _ => None,
    }
}

/// Reads `[iiop]:[1.x@]host[:port]`: minor version, host and port.
fn address(text: &str) -> Option<(u8, &str, u16)> {
    let text = has_prefix(text, "iiop:").or_else(|| has_prefix(text, ":"))?;
    let (minor, text) = match text.split_once('@') {
        None => (0, text),
        Some((version, text)) => (number(version.strip_prefix("1.")?)?, text),
    };
    let (host, port) = match text.strip_prefix('[') {
        Some(text) => {
            let (host, port) = text.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            let port = match port {
                "" => None,
                port => Some(port.strip_prefix(':')?),
            };
            (host, port)
        }
        None => match text.split_once(':') {
            None => (text, None),
            Some((host, port)) => (host, Some(port)),
        },
    };
    let port = match port {
        None | Some("") => DEFAULT_PORT,
        Some(port) => number(port).filter(|&port| port != 0)?,
    };
    let of_hosts = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    (!host.is_empty() && host.chars().all(of_hosts)).then_some((minor, host, port))
}

/// Digits and nothing else.
fn number<T: FromStr>(text: &str) -> Option<T> {
    let digits = text.bytes().all(|c| c.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

/// Replaces `%41` by the byte that it stands for.
fn unescape(text: &str) -> Result<Vec<u8>, ReferenceError> {
    let mut out = Vec::with_capacity(text.len());
    let error = || ReferenceError::Escape(text.to_owned());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            if !byte.is_ascii_graphic() {
                return Err(error());
            }
            out.push(byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2).ok_or_else(error)?;
        let value = digits.iter().try_fold(0u8, |value, &digit| {
            let digit = u8::try_from(char::from(digit).to_digit(16)?).ok()?;
            Some(value << 4 | digit)
        });
        out.push(value.ok_or_else(error)?);
        rest = after;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Reference {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    /// Minor version, host and port of each address, and the key of all of them.
    fn location(text: &str) -> (Vec<(u8, String, u16)>, Vec<u8>) {
        let Reference::Ior(ior) = read(text) else {
            panic!("{text}");
        };
        let key = ior.iiop_profiles().next().unwrap().object_key.clone();
        let addresses = ior.iiop_profiles().map(|profile| {
            assert_eq!(profile.object_key, key);
            (profile.minor, profile.host, profile.port)
        });
        (addresses.collect(), key)
    }

    #[test]
    fn corbaloc_says_addresses_and_a_key() {
        let one = |minor, host: &str, port| (minor, host.to_owned(), port);
        let (addresses, key) = location("corbaloc::manager/LoadManager");
        assert_eq!(addresses, [one(0, "manager", 2809)]);
        assert_eq!(key, b"LoadManager");
        let (addresses, key) = location(
            "\tCORBALOC:IIOP:1.2@host-1.example:1234,:1.1@10.0.0.1,iiop:[::1]:99/a%2fb/c%00\n",
        );
        assert_eq!(
            addresses,
            [
                one(2, "host-1.example", 1234),
                one(1, "10.0.0.1", 2809),
                one(0, "::1", 99)
            ]
        );
        assert_eq!(key, b"a/b/c\0");
        let (addresses, key) = location("corbaloc::1.2@[fe80::1]");
        assert_eq!(addresses, [one(2, "fe80::1", 2809)]);
        assert_eq!(key, b"");
        assert_eq!(location("corbaloc::h:/k").0, [one(0, "h", 2809)]);
    }

    #[test]
    fn rir_is_a_name_of_the_reader() {
        let initial = |name: &str| Reference::Initial(name.into());
        assert_eq!(read("corbaloc:rir:/LoadManager"), initial("LoadManager"));
        assert_eq!(read("corbaloc:rir:"), initial("NameService"));
        let Reference::Name { context, name } = read("corbaname:rir:#a/b.c") else {
            panic!("a name");
        };
        assert_eq!((*context, name.as_str()), (initial("NameService"), "a/b.c"));
    }

    #[test]
    fn corbaname_says_a_name_in_a_context() {
        let text = "corbaname::h:5/Other%20Key#stock/New%20York.city\\.of";
        let Reference::Name { context, name } = read(text) else {
            panic!("a name");
        };
        assert_eq!(name, "stock/New York.city\\.of");
        assert_eq!(*context, read("corbaloc::h:5/Other%20Key"));
        let Reference::Name { context, name } = read("corbaname::h") else {
            panic!("a name");
        };
        assert_eq!(name, "");
        assert_eq!(*context, read("corbaloc::h/NameService"));
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        let says = |text: &str, what: &str| {
            let error = text.parse::<Reference>().unwrap_err().to_string();
            assert!(error.contains(what), "{text}: {error}");
        };
        for text in ["", "manager", "http://manager/", ":"] {
            says(text, "starts with");
        }
        for text in [
            "corbaloc:",
            "corbaloc:manager",
            "corbaloc::",
            "corbaloc::/key",
            "corbaloc::host:0",
            "corbaloc::host:65536",
            "corbaloc::host:+5",
            "corbaloc::2.0@host",
            "corbaloc::1.@host",
            "corbaloc::1.300@host",
            "corbaloc::[host]",
            "corbaloc::[::1",
            "corbaloc::[::1]5",
            "corbaloc::::1",
            "corbaloc::a b",
            "corbaloc::a,,:b",
            "corbaloc:ssliop:host",
        ] {
            says(text, "is not an address");
        }
        says("corbaloc:rir:,:host/k", "alone");
        says("corbaloc::host,rir:/k", "alone");
        for text in [
            "corbaloc::h/%4",
            "corbaloc::h/%4g",
            "corbaloc::h/a b",
            "corbaloc::h/ä",
        ] {
            says(text, "is not valid");
        }
        says("corbaname::h#%ff", "is not valid");
        says("IOR:0", "hexadecimal");
    }
}
