//! The certificates that clients and members are shown: listed, and warned of before they expire.

use std::time::Duration;

use evenkeel_tls::certificate::{Details, unix_now};
use evenkeel_tls::expiry::Warnings;
use evenkeel_tls::listener::Listener;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kept;
use crate::exposition::{Exposition, Type};
use crate::manager::Manager;
use crate::text;

/// Interval at which certificates that are about to expire are looked for.
const LOOK: Duration = Duration::from_secs(600);

/// A certificate, as the admin API shows it.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct CertificateStatus {
    /// Part of the configuration that shows the certificate: to clients, as `rule web`; or to members, as
    /// `group web`.
    pub listener: String,
    /// The file that it is in.
    pub file: String,
    /// Names that clients get it for.
    pub names: Vec<String>,
    /// Subject of the certificate.
    pub subject: String,
    /// Issuer, which has signed the certificate.
    pub issuer: String,
    /// Kind of its key: `ECDSA`, `RSA` or `Ed25519`.
    pub key: String,
    /// Start of validity, in seconds since 1970.
    pub not_before: i64,
    /// End of the time for which clients take the certificate, in seconds since 1970: its own end, or that of
    /// an authority's certificate in its file, if that is earlier.
    pub not_after: i64,
    /// Seconds until `not_after`; negative if the certificate has expired.
    pub expires_in: i64,
    /// The authority whose certificate in the file ends earlier than the certificate itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intermediate: Option<String>,
    /// SHA-256 of it, in hexadecimal digits.
    pub fingerprint: String,
}

impl CertificateStatus {
    fn new(listener: String, details: Details, now: i64) -> Self {
        let ends = details.valid_until();
        CertificateStatus {
            listener,
            file: details.file,
            names: details.names,
            subject: details.subject,
            issuer: details.issuer,
            key: details.key.into(),
            not_before: details.not_before,
            not_after: ends,
            expires_in: ends - now,
            intermediate: details.intermediate.map(|one| one.subject),
            fingerprint: details.fingerprint,
        }
    }
}

/// Certificates as a table.
pub fn format_table(certificates: &[CertificateStatus]) -> String {
    const DAY: i64 = 24 * 3600;
    let row = |one: &CertificateStatus| {
        let left = match one.expires_in {
            ..=0 => "expired".to_owned(),
            1..DAY => format!("{}h", one.expires_in / 3600),
            left => format!("{}d", left / DAY),
        };
        let left = match &one.intermediate {
            None => left,
            // It is not the certificate itself that has to be renewed.
            Some(authority) => format!("{left} ({authority})"),
        };
        let names = one.names.join(",");
        let (listener, file) = (one.listener.clone(), one.file.clone());
        vec![
            listener,
            names,
            one.key.clone(),
            left,
            one.issuer.clone(),
            file,
        ]
    };
    let names = ["LISTENER", "NAMES", "KEY", ">EXPIRES IN", "ISSUER", "FILE"];
    text::format_table(&names, certificates.iter().map(row))
}

/// Writes how many handshakes of a listener have failed, as the family called `name`.
pub fn failures(out: &mut Exposition, name: &'static str, listener: &Listener) {
    let what = "TLS handshakes with clients that failed.";
    out.begin_family(name, Type::Counter, what);
    for (cause, count) in listener.failure_counts() {
        out.add_sample(&[("cause", cause.name())], count as f64);
    }
}

impl Manager {
    /// The certificates that clients are shown, and those that members are, each with who shows it.
    fn shown(&self) -> Vec<(String, Details)> {
        let mut all = self.subsystems().certificates();
        let clients = self.lock().state.inputs.clients.clone();
        let own = clients.iter().filter_map(|(group, client)| {
            Some((format!("group {group}"), client.client_certificate.clone()?))
        });
        let of_clients = all.len();
        all.extend(own);
        if let Some(own) = all.get_mut(of_clients..) {
            own.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        all
    }

    /// The certificates in use.
    pub fn certificates(&self) -> Vec<CertificateStatus> {
        let now = unix_now();
        let all = self.shown().into_iter();
        all.map(|(listener, details)| CertificateStatus::new(listener, details, now))
            .collect()
    }

    /// Writes when certificates expire.
    pub(crate) fn certificate_families(&self, out: &mut Exposition) {
        out.begin_family(
            "evenkeel_certificate_expiry_timestamp_seconds",
            Type::Gauge,
            "When the certificate expires, or an authority's in its file if that is earlier, in seconds since 1970.",
        );
        for one in self.certificates() {
            let labels = [
                ("listener", one.listener.as_str()),
                ("file", &one.file),
                ("fingerprint", &one.fingerprint),
            ];
            out.add_sample(&labels, one.not_after as f64);
        }
    }

    /// Writes how many followed files are not as they should be.
    pub(crate) fn file_families(&self, out: &mut Exposition) {
        out.begin_family(
            "evenkeel_file_problems",
            Type::Gauge,
            "Files of the configuration that are broken, so that their last good content is in use, and certificates in use that are not valid now.",
        );
        let config = self.file_config();
        out.add_sample(&[], kept::complaints(config.files()).len() as f64);
    }

    /// Warns of certificates that are about to expire, for ever.
    pub(crate) async fn watch_certificates(&self) {
        let mut warnings = Warnings::default();
        loop {
            let all = self.shown();
            let all = all.iter().map(|(listener, one)| (&**listener, one));
            for warning in warnings.next(all, unix_now()) {
                tracing::warn!("{warning}");
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_tls::certificate::Intermediate;

    use super::*;

    #[test]
    fn f11_the_end_of_an_intermediate_certificate_is_the_one_that_is_shown() {
        const DAY: i64 = 24 * 3600;
        let leaf = Details {
            file: "a.pem".into(),
            names: vec!["a.example".into()],
            subject: String::new(),
            issuer: "CN=between".into(),
            key: "ECDSA",
            not_before: 0,
            not_after: 90 * DAY,
            intermediate: None,
            fingerprint: "1".into(),
        };
        let with = Details {
            intermediate: Some(Intermediate {
                number: 2,
                subject: "CN=between".into(),
                not_after: 5 * DAY,
            }),
            ..leaf.clone()
        };
        let shown = [leaf, with].map(|one| CertificateStatus::new("rule web".into(), one, DAY));
        let ends = shown.each_ref().map(|one| (one.not_after, one.expires_in));
        assert_eq!(ends, [(90 * DAY, 89 * DAY), (5 * DAY, 4 * DAY)]);
        let table = format_table(&shown);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[1].contains(" 89d "), "{table}");
        assert!(lines[2].contains(" 4d (CN=between) "), "{table}");
    }
}
