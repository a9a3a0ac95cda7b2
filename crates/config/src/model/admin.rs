//! `[admin]` and `[access_log]`: administration and log of the balancer.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::DeValue;

use super::listeners::Listeners;
use super::tls::Tls;
use crate::schema::document::{Item, quote};
use crate::schema::field::{Field, FileName, Limits, Texts, WRONG_TYPE};
use crate::schema::key::{DAY, describe_keys, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::source::load_secret;
use crate::schema::table::Table;

section! {
    /// Address of the admin API, and access to the API.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Admin {}
    keys ADMIN {
        /// Turns the admin API on. Set `false` if you administer the balancer by its file alone.
        enabled: bool = true; "false",
        /// Address of the admin API. If you set an address other than loopback, a token is required.
        listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 9900)); r#""127.0.0.1:9001""#,
        /// Bearer token for the admin API: every request must carry the token (`Authorization: Bearer …`).
        /// Optional on a loopback address. Prefer `token_file` if others can read your configuration.
        token: Option<String> [Text(TOKEN)] = None; r#""correct-horse-battery-staple""#,
        /// File with the token, instead of `token`. White space around the token is ignored. A relative path
        /// starts at the folder of the configuration file. Let nobody but the file's owner and group read the
        /// file. You need no restart after changing the token: the new token takes effect with a reload, or at
        /// most five seconds after the change.
        token_file: Option<PathBuf> = None; r#""/run/secrets/evenkeel-token""#,
        /// Allows requests through a proxy. Set `true` if your admin API is behind a proxy; a token is required
        /// then. With `false`, requests with `Via`, `Forwarded`, `X-Forwarded-…` or `X-Real-IP` get 403, so
        /// that no rule of the balancer or of another proxy exposes the admin API by mistake.
        behind_proxy: bool = false; "true",
        /// File with the [users](admin-api.md#users) of the admin API and the console: roles, and hashes of
        /// passwords or tokens. Write the file with `evenkeel users`. A relative path starts at the folder of
        /// the configuration file. Let nobody but the file's owner and group read the file. Changes of users
        /// need no restart, but adding or removing the key does.
        users_file: Option<FileName> = None; r#""/etc/evenkeel/admin-users""#,
        /// Lets requests from the local machine to a loopback address do everything without a token or a login,
        /// even if other requests need one. Set `true` if you trust every user of the machine.
        local_access: bool = false; "true",
        /// Time until a login to the console ends without a request.
        session_idle: Duration [Time(secs(60), DAY)] = secs(3600); r#""30m""#,
        /// Maximum time of a login to the console. After the time you log in again.
        session_lifetime: Duration [Time(secs(60), Duration::from_secs(30 * 86_400))] = secs(12 * 3600); r#""8h""#,
        /// File for the audit log. Every change by the admin API is appended as a line of JSON: time, user,
        /// source, change and result. You can read the last entries at `GET /v1/audit`, too.
        audit_log: Option<PathBuf> = None; r#""/var/log/evenkeel/audit.log""#,
        /// Serves the web console at `/console/` of the admin API.
        console: bool = true; "false",
        /// TLS between clients and the admin API: a table with the keys of `[rule.NAME.tls]`. If you require
        /// client certificates, an address other than loopback needs no token.
        tls: Option<Tls> = None; r#"{ certificates = "/etc/evenkeel/admin.pem" }"#,
    }
}

impl Admin {
    /// True if clients need a certificate.
    pub fn knows_clients(&self) -> bool {
        let clients = self.tls.iter().flat_map(|tls| &tls.client_certificates);
        clients.into_iter().any(|clients| clients.required)
    }
}

const TOKEN: Texts = ("8 to 512 visible ASCII characters without spaces", |text| {
    (8..=512).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
});

/// Reads `[admin]`; `None` if there is to be no admin API.
pub(crate) fn read(
    top: &mut Table<'_>,
    folder: &Path,
    listeners: &mut Listeners,
    report: &mut Report<'_>,
) -> Option<Admin> {
    let mut admin = Admin::default();
    if let Some(mut table) = top.read_table("admin", report) {
        table.read(ADMIN, &mut admin, report);
        if let Some(tls) = &mut admin.tls {
            tls.resolve(folder);
        }
        if let Some(file) = &mut admin.users_file {
            file.resolve(folder);
        }
        if let Some(file) = &mut admin.audit_log {
            *file = folder.join(&*file);
        }
        resolve_token(&mut admin, &table, folder, report);
        table.report_unread(report);
    }
    if admin.enabled {
        listeners.add_addresses(&[admin.listen], "the admin API", (top, "admin"), report);
    }
    admin.enabled.then_some(admin)
}

/// Reads the token's file, and refuses to be open to the network without a token.
fn resolve_token(admin: &mut Admin, table: &Table<'_>, folder: &Path, report: &mut Report<'_>) {
    if let Some(file) = &mut admin.token_file {
        *file = folder.join(&*file);
        if admin.token.is_some() {
            let message = "`token` is set, too: set only one of them";
            table.report_problem("token_file", message, report);
        }
        match read_token(file) {
            Ok(token) => admin.token = Some(token),
            Err(message) => return table.report_problem("token_file", message, report),
        }
    }
    if admin.local_access && admin.behind_proxy {
        let message = "with `behind_proxy` all clients have the address of the proxy, which may run on this machine: remove `local_access`";
        table.report_misplaced("local_access", message, report);
    }
    let asks = admin.token.is_some() || table.has_key("token") || admin.users_file.is_some();
    if admin.users_file.is_some()
        && admin.tls.is_none()
        && !admin.behind_proxy
        && !admin.listen.ip().is_loopback()
    {
        let message = "passwords of users cross the network in clear: add tls in [admin]";
        table.report_warning(message, report);
    }
    if asks {
        return;
    }
    if admin.local_access {
        let message =
            "has no effect: without `token` and `users_file` the API asks no client for a login";
        table.report_misplaced("local_access", message, report);
    }
    if admin.behind_proxy {
        let message = "without `token`, `token_file` or `users_file` anybody whom the proxy lets through would \
                       administer the balancer";
        table.report_misplaced("behind_proxy", message, report);
    }
    if admin.enabled && !admin.listen.ip().is_loopback() && !admin.knows_clients() {
        let what =
            "is not a loopback address, so `token`, `token_file` or `users_file` is required";
        table.report_misplaced("listen", format!("{} {what}", admin.listen), report);
    }
}

fn read_token(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let (what, is_token) = TOKEN;
    let parse = |text: &str| {
        let token = Some(text.trim()).filter(|token| is_token(token));
        token
            .map(str::to_owned)
            .ok_or_else(|| format!("does not hold a token: {what}"))
    };
    load_secret(path, 4096, parse).map_err(|reason| format!("{shown} {reason}"))
}

/// Destination of the access log.
#[derive(Clone, Debug, PartialEq)]
pub enum AccessLog {
    /// Standard output.
    Stdout,
    /// A file, appended to, reopened on SIGHUP.
    File(PathBuf),
}

impl Field for Option<AccessLog> {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        match item.value {
            DeValue::String(text) if text == "off" => *self = None,
            DeValue::String(text) if text == "stdout" => *self = Some(AccessLog::Stdout),
            DeValue::String(text) if text.contains('/') && !text.contains('\0') => {
                *self = Some(AccessLog::File(PathBuf::from(&**text)));
            }
            DeValue::String(_) => report.wrong(item, "unknown name", self.allowed(limits)),
            _ => report.wrong(item, WRONG_TYPE, self.allowed(limits)),
        }
    }

    fn show(&self, limits: &Limits) -> Option<String> {
        match self {
            None => Some(quote("off")),
            Some(AccessLog::Stdout) => Some(quote("stdout")),
            Some(AccessLog::File(path)) => path.show(limits),
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        r#""off", "stdout", or the path of a file with at least one "/" in it"#.into()
    }
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "The admin API, with metrics; by default on a loopback address. Changes need a \
               restart.";
    TableDoc::new("[admin]", doc, [describe_keys(ADMIN, Admin::default())])
}
