//! The certificates of rules: shown, and warned of before they expire.

use std::time::Duration;

use evenkeel_manager::exposition::{Exposition, Type};
use evenkeel_manager::text;
use evenkeel_tls::certificate::{Details, unix_now};
use evenkeel_tls::expiry::Warnings;
use serde::{Deserialize, Serialize};

use crate::plane::Proxy;

/// How often it is looked whether a certificate is about to expire.
const LOOK: Duration = Duration::from_secs(600);

/// A certificate of a rule, as the admin API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateStatus {
    /// The rule.
    pub rule: String,
    /// The file that it is in.
    pub file: String,
    /// Names that clients get it for.
    pub names: Vec<String>,
    /// Whose it is.
    pub subject: String,
    /// Who has signed it.
    pub issuer: String,
    /// Kind of its key: `ECDSA`, `RSA` or `Ed25519`.
    pub key: String,
    /// Since when it is valid, in seconds since 1970.
    pub not_before: i64,
    /// Until when.
    pub not_after: i64,
    /// Seconds until then; negative if it has expired.
    pub expires_in: i64,
    /// SHA-256 of it, in hexadecimal digits.
    pub fingerprint: String,
}

impl CertificateStatus {
    fn of(rule: &str, details: &Details, now: i64) -> Self {
        let details = details.clone();
        CertificateStatus {
            rule: rule.into(),
            file: details.file,
            names: details.names,
            subject: details.subject,
            issuer: details.issuer,
            key: details.key.into(),
            not_before: details.not_before,
            not_after: details.not_after,
            expires_in: details.not_after - now,
            fingerprint: details.fingerprint,
        }
    }
}

/// Certificates as a table.
pub fn table(certificates: &[CertificateStatus]) -> String {
    const DAY: i64 = 24 * 3600;
    let row = |one: &CertificateStatus| {
        let left = match one.expires_in {
            ..=0 => "expired".to_owned(),
            1..DAY => format!("{}h", one.expires_in / 3600),
            left => format!("{}d", left / DAY),
        };
        let names = one.names.join(",");
        let (rule, file) = (one.rule.clone(), one.file.clone());
        vec![rule, names, one.key.clone(), left, one.issuer.clone(), file]
    };
    let names = ["RULE", "NAMES", "KEY", ">EXPIRES IN", "ISSUER", "FILE"];
    text::table(&names, certificates.iter().map(row))
}

impl Proxy {
    /// The certificates in use, in the order of rules' names.
    pub(crate) fn certificates(&self) -> Vec<CertificateStatus> {
        let now = unix_now();
        let of_rules = self.servers();
        let all = of_rules.iter().flat_map(|(rule, server)| {
            let details = server.certificates.iter();
            details.map(move |details| CertificateStatus::of(rule, details, now))
        });
        all.collect()
    }

    /// Writes when certificates expire.
    pub(crate) fn certificate_families(&self, out: &mut Exposition) {
        out.family(
            "evenkeel_certificate_expiry_timestamp_seconds",
            Type::Gauge,
            "When the certificate expires, in seconds since 1970.",
        );
        for one in self.certificates() {
            let labels = [
                ("rule", one.rule.as_str()),
                ("file", &one.file),
                ("fingerprint", &one.fingerprint),
            ];
            out.sample(&labels, one.not_after as f64);
        }
    }

    /// Warns of certificates that are about to expire, for ever.
    pub(crate) async fn watch_certificates(self) {
        let mut warnings = Warnings::default();
        loop {
            let servers = self.servers();
            let all = servers.iter().flat_map(|(rule, server)| {
                let details = server.certificates.iter();
                details.map(move |details| (&**rule, details))
            });
            for warning in warnings.next(all, unix_now()) {
                tracing::warn!("{warning}");
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
