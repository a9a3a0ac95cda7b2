//! Reasons why a question to the API was not answered.

use evenkeel_net::http::ErrorBody;
use evenkeel_net::http::client::AskError;

/// Address of the API if nobody gives another.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:9900";

/// Reason why a question was not answered.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address makes no URL.
    #[error(
        "{0:?} is not an address of an admin API; expected HOST:PORT, such as {DEFAULT_ADDRESS}, or https://HOST:PORT"
    )]
    Address(String),
    /// A file of TLS cannot be used.
    #[error("{0}")]
    Files(String),
    /// There is something about TLS where it is not spoken.
    #[error("{0} is for an admin API with TLS; write --admin https://HOST:PORT")]
    NoTls(&'static str),
    /// The token cannot be sent.
    #[error("the token holds characters that HTTP cannot carry; only visible ASCII can be used")]
    Token,
    /// Nobody answers, or not in time.
    #[error(
        "no answer from the admin API at {address}: {source}. Is evenkeel running, and does its admin API listen there (`listen` in [admin])? --admin names another address"
    )]
    Unreachable {
        /// Address that was asked.
        address: String,
        /// Reason why no answer came.
        source: AskError,
    },
    /// Something answers, but it is no admin API of this version.
    #[error("the server at {address} is not an admin API of this version: {detail}")]
    NotTheApi {
        /// Address that was asked.
        address: String,
        /// Description of what was wrong with the answer.
        detail: String,
    },
    /// The API refuses.
    #[error("{}{}{}", .body.detail, format_allowed(.body), login_hint(.body))]
    Refused {
        /// HTTP status.
        status: u16,
        /// Body of the API's answer.
        body: ErrorBody,
    },
}

fn format_allowed(body: &ErrorBody) -> String {
    if body.allowed.is_empty() {
        return String::new();
    }
    format!("\nallowed: {}", body.allowed.join(", "))
}

/// Returns advice for a user whom the API does not know.
fn login_hint(body: &ErrorBody) -> &'static str {
    match &*body.error {
        "unauthorized" => {
            "\nLog in with --user NAME, which asks for the password; --password-file FILE and $EVENKEEL_PASSWORD spare the question. \
             A program has a token, which `evenkeel users FILE token NAME --role ROLE` makes and prints (FILE is `users_file` of \
             [admin]): give it with --token-file FILE or $EVENKEEL_TOKEN"
        }
        _ => "",
    }
}
