//! `[admin]` and `[access_log]`: how the balancer is administered and what it writes down.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::DeValue;

use super::listeners::Listeners;
use super::tls::Tls;
use crate::schema::document::{Item, quote};
use crate::schema::field::{Field, FileName, Limits, Texts, WRONG_TYPE};
use crate::schema::key::{DAY, docs, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::source::load_secret;
use crate::schema::table::Table;

section! {
    /// Where the admin API listens, and who may use it.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Admin {}
    keys ADMIN {
        /// Whether the admin API is on.
        enabled: bool = true; "false",
        /// Address to listen on. An address that is not loopback needs a token.
        listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 9900)); r#""127.0.0.1:9001""#,
        /// Bearer token that every request to the admin API must carry (`Authorization: Bearer …`).
        /// Optional on a loopback address.
        token: Option<String> [Text(TOKEN)] = None; r#""correct-horse-battery-staple""#,
        /// A file that contains the token, instead of `token`; white space around it is ignored. A
        /// relative path starts at the folder of the configuration file. The file must be readable
        /// only for its owner and group. A changed token needs no restart: it takes effect with a
        /// reload, or at most five seconds after the file has changed.
        token_file: Option<PathBuf> = None; r#""/run/secrets/evenkeel-token""#,
        /// Whether requests may come through a proxy. If not, requests with `Via`, `Forwarded`,
        /// `X-Forwarded-…` or `X-Real-IP` get 403, so that no rule of this or another proxy exposes
        /// the admin API by mistake. Needs a token.
        behind_proxy: bool = false; "true",
        /// A file with [users](admin-api.md#users) of the admin API and the console, with their roles and hashes of their
        /// passwords or tokens: `evenkeel users` writes it. A relative path starts at the folder of the configuration
        /// file. The file must be readable only for its owner and group. Changes of it need no restart, but whether there is one does.
        users_file: Option<FileName> = None; r#""/etc/evenkeel/admin-users""#,
        /// Whether requests from this machine itself, to a loopback address, need neither a token nor a login, though others do. They may do everything.
        local_access: bool = false; "true",
        /// How long a login to the console holds without a request.
        session_idle: Duration [Time(secs(60), DAY)] = secs(3600); r#""30m""#,
        /// How long a login to the console holds at most.
        session_lifetime: Duration [Time(secs(60), Duration::from_secs(30 * 86_400))] = secs(12 * 3600); r#""8h""#,
        /// A file to which every change by the admin API is appended, as a line of JSON: when, who, from
        /// where, what, and how it went. The last ones are in `GET /v1/audit`, too.
        audit_log: Option<PathBuf> = None; r#""/var/log/evenkeel/audit.log""#,
        /// Whether the admin API serves the web console, at `/console/`.
        console: bool = true; "false",
        /// TLS between clients and the admin API: a table with the keys of `[rule.NAME.tls]`. If
        /// clients must have a certificate, an address that is not loopback needs no token.
        tls: Option<Tls> = None; r#"{ certificates = "/etc/evenkeel/admin.pem" }"#,
    }
}

impl Admin {
    /// Whether clients need a certificate.
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
    if let Some(mut table) = top.table("admin", report) {
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
        table.finish(report);
    }
    if admin.enabled {
        listeners.add(&[admin.listen], "the admin API", (top, "admin"), report);
    }
    admin.enabled.then_some(admin)
}

/// Reads the token's file, and refuses to be open to the network without a token.
fn resolve_token(admin: &mut Admin, table: &Table<'_>, folder: &Path, report: &mut Report<'_>) {
    if let Some(file) = &mut admin.token_file {
        *file = folder.join(&*file);
        if admin.token.is_some() {
            let message = "there is a `token`, too: only one of them can be";
            table.problem("token_file", message, report);
        }
        match read_token(file) {
            Ok(token) => admin.token = Some(token),
            Err(message) => return table.problem("token_file", message, report),
        }
    }
    if admin.local_access && admin.behind_proxy {
        let message = "with `behind_proxy` everybody comes from the proxy's address, which is perhaps \
                       on this machine";
        table.misplaced("local_access", message, report);
    }
    let asks = admin.token.is_some() || table.given("token") || admin.users_file.is_some();
    if admin.users_file.is_some()
        && admin.tls.is_none()
        && !admin.behind_proxy
        && !admin.listen.ip().is_loopback()
    {
        let message = "passwords of users cross the network in clear: add tls in [admin]";
        table.warning(message, report);
    }
    if asks {
        return;
    }
    if admin.local_access {
        let message = "without `token` and `users_file` nobody is asked for anything anyway";
        table.misplaced("local_access", message, report);
    }
    if admin.behind_proxy {
        let message = "without `token`, `token_file` or `users_file` anybody whom the proxy lets through would \
                       administer the balancer";
        table.misplaced("behind_proxy", message, report);
    }
    if admin.enabled && !admin.listen.ip().is_loopback() && !admin.knows_clients() {
        let what =
            "is not a loopback address, so `token`, `token_file` or `users_file` is required";
        table.misplaced("listen", format!("{} {what}", admin.listen), report);
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

/// Where the access log goes.
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

/// What the reference says of the table.
pub(crate) fn tables() -> TableDoc {
    let doc = "The admin API, with metrics; by default on a loopback address. Changes need a \
               restart.";
    TableDoc::new("[admin]", doc, [docs(ADMIN, Admin::default())])
}
