//! Messages between clients and negotiator: one definition for both sides.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The path at which programs ask, whatever the host.
pub const NEGOTIATE: &str = "/.well-known/evenkeel/negotiate";

/// Before a path of a site: the answer is a redirect that nobody keeps. It is for those
/// who come back from a member that sheds load: a browser that had kept the redirect to
/// that member would only be sent there again.
pub const REBIND: &str = "/.well-known/evenkeel/rebind";

/// Value of `Accept` from a program that wants a [`Binding`] from a site's own URL. The value is
/// not `application/json`: that is what clients of the site itself ask for.
pub const MEDIA_TYPE: &str = "application/vnd.evenkeel.binding+json";

/// Field of a request: the client class.
pub const CLASS: &str = "evenkeel-class";

/// Field of a request: the mean response time that is wanted, as in `200ms`.
pub const RESPONSE_TIME: &str = "evenkeel-response-time";

/// Field of an answer, and of a request that goes on with a session: its id.
pub const SESSION: &str = "evenkeel-session";

/// Most members that a client may avoid, or ask for beside its own.
pub const MOST_MEMBERS: usize = 8;

/// A client is bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// The cluster.
    pub cluster: String,
    /// The class, if the client named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The server to use.
    pub server: Server,
    /// Length of the quantum, in seconds; 0 is for one request.
    pub quantum_seconds: u64,
    /// Names the session in logs, and when it goes on.
    pub session: String,
    /// Others that would do should the server fail, if the client asked for some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Server>,
}

/// A member, as its clients see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Name of the server, by which a client avoids it.
    pub name: String,
    /// Address at which the server listens.
    pub address: SocketAddr,
    /// Scheme, host and port for its clients.
    pub url: String,
}

/// Refusal: nobody is bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Reason: `no_member`, `response_time` or `class_limit`.
    pub error: String,
    /// Reason as a text for people.
    pub detail: String,
    /// The cluster.
    pub cluster: String,
    /// The class, if the client named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Time after which to ask again, in seconds.
    pub retry_after_seconds: u64,
}

/// Returns true if a text can be the id of a session.
pub fn is_session(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// A time as in `200ms`, `0.2s` or `200us`: above 0, and at most an hour.
pub fn parse_time(text: &str) -> Option<Duration> {
    let end = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at_checked(end)?;
    let seconds = match unit {
        "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        _ => return None,
    };
    // What a float may look like beyond digits and a point is no time.
    let plain = number.len() <= 16 && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number: f64 = number.parse().ok().filter(|_| plain)?;
    let time = Duration::try_from_secs_f64(number * seconds).ok()?;
    (Duration::ZERO < time && time <= Duration::from_secs(3600)).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("200ms"), Some(Duration::from_millis(200)));
        assert_eq!(parse_time("0.25s"), Some(Duration::from_millis(250)));
        assert_eq!(parse_time("1500us"), Some(Duration::from_micros(1500)));
        for bad in [
            "",
            "200",
            "ms",
            "-1s",
            "+1s",
            "1e9s",
            "infs",
            "nans",
            "0s",
            "3601s",
            "1 s",
            "1.1.1s",
            "99999999999999999999s",
            "1m",
            "é",
        ] {
            assert_eq!(parse_time(bad), None, "{bad}");
        }
    }
}
