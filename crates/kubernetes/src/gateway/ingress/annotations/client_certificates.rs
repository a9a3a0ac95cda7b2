//! Annotations about certificates of clients.

use super::super::super::gateway_tls::Demand;
use super::{ClientCertificates, Reader};

impl Reader<'_> {
    /// Reads the certificates that clients have to show. A demand that cannot be read closes the paths.
    pub(super) fn read_client_certificates(&mut self) {
        // Without a secret, the other annotations may have lost the one that restricts access: nobody takes them.
        let secret = self.take("auth-tls-secret");
        let Some(secret) = secret.filter(|secret| !secret.is_empty()) else {
            return;
        };
        let mode = self.take("auth-tls-verify-client").unwrap_or("on");
        let demand = match mode {
            "on" => Some(Demand::Required),
            "optional" => Some(Demand::Optional),
            "optional_no_ca" => Some(Demand::Insecure),
            "off" => None,
            other => {
                let reason = format!("{other:?} is none of on, optional, optional_no_ca and off");
                self.close("auth-tls-verify-client", &reason);
                // Other Ingresses of the host stay open.
                Some(Demand::Required)
            }
        };
        for (name, reason) in [
            (
                "auth-tls-verify-depth",
                "chains of all lengths are verified, up to an authority of the secret",
            ),
            (
                "auth-tls-error-page",
                "the handshake of a client without a good certificate fails",
            ),
        ] {
            if self.take(name).is_some() {
                self.ignore(name, reason);
            }
        }
        if self.take_switch("auth-tls-pass-certificate-to-upstream") == Some(true) {
            self.ignore(
                "auth-tls-pass-certificate-to-upstream",
                "members get X-Client-Cert-Verified, -Subject, -SAN and -Fingerprint, not the certificate",
            );
        }
        let Some(demand) = demand else {
            return;
        };
        self.treatment.restricts = true;
        self.treatment.client_certificates = Some(ClientCertificates {
            secret: secret.into(),
            demand,
        });
    }
}
