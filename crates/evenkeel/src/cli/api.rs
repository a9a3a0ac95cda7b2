//! Options of the admin API.

use std::path::PathBuf;

use clap::Args;

/// Options of the admin API: where it is, and how to be let in.
#[derive(Clone, Debug, Args)]
pub(crate) struct Api {
    /// Address of the admin API [default: $EVENKEEL_ADMIN, or 127.0.0.1:9900]
    ///
    /// With TLS: https://HOST:PORT.
    #[arg(long, value_name = "HOST:PORT", global = true)]
    pub admin: Option<String>,
    /// Certificates of authorities that the admin API's certificate may come from (PEM), instead of
    /// those that the system trusts [default: $EVENKEEL_CA_FILE]
    #[arg(long, value_name = "FILE", global = true)]
    pub ca_file: Option<PathBuf>,
    /// Certificate to show to an admin API that asks for one (PEM) [default: $EVENKEEL_CERT]
    #[arg(long, value_name = "FILE", global = true)]
    pub cert: Option<PathBuf>,
    /// Private key of --cert (PEM), if it is not in the same file [default: $EVENKEEL_KEY]
    #[arg(long, value_name = "FILE", global = true)]
    pub key: Option<PathBuf>,
    /// Bearer token; others on the machine may see it in the list of processes, so prefer
    /// --token-file or $EVENKEEL_TOKEN
    #[arg(
        long,
        value_name = "TOKEN",
        global = true,
        conflicts_with = "token_file"
    )]
    pub token: Option<String>,
    /// File whose first line is the bearer token
    #[arg(long, value_name = "FILE", global = true)]
    pub token_file: Option<PathBuf>,
    /// User to log in as; the password is asked for, if there is neither --password-file nor
    /// $EVENKEEL_PASSWORD [default: $EVENKEEL_USER]
    #[arg(
        long,
        value_name = "NAME",
        global = true,
        conflicts_with_all = ["token", "token_file"]
    )]
    pub user: Option<String>,
    /// File whose first line is the user's password
    #[arg(long, value_name = "FILE", global = true)]
    pub password_file: Option<PathBuf>,
}
