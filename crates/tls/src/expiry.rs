//! Warnings in time before certificates expire.

use std::collections::HashMap;

use crate::certificate::Details;

const DAY: i64 = 24 * 3600;

/// Days before the end of a certificate at which there is a warning.
const WARNINGS: [i64; 4] = [0, 1, 7, 30];

/// Warnings that were given already.
#[derive(Debug, Default)]
pub struct Warnings(HashMap<String, i64>);

impl Warnings {
    /// Returns the warnings about `certificates`, each with the name of whoever shows it, at `now`
    /// in seconds since 1970. A warning that was given before is left out.
    pub fn next<'a>(
        &mut self,
        certificates: impl Iterator<Item = (&'a str, &'a Details)>,
        now: i64,
    ) -> Vec<String> {
        let (mut warnings, mut due) = (Vec::new(), HashMap::new());
        for (listener, details) in certificates {
            let left = details.valid_until() - now;
            let Some(days) = WARNINGS.into_iter().find(|days| left <= days * DAY) else {
                continue;
            };
            let told = self.0.get(&details.fingerprint);
            if told.is_none_or(|told| days < *told) && !due.contains_key(&details.fingerprint) {
                let when = match left {
                    ..=0 => "has expired".to_owned(),
                    1..=DAY => "expires within a day".to_owned(),
                    _ => format!("expires in {} days", left / DAY),
                };
                let (file, names) = (&details.file, details.names.join(", "));
                let which = match &details.intermediate {
                    None => format!("the certificate {file} for {names}"),
                    Some(one) => format!(
                        "the certificate of the authority {} in {file} for {names}",
                        one.subject
                    ),
                };
                warnings.push(format!("{listener}: {which} {when}"));
            }
            due.insert(details.fingerprint.clone(), days);
        }
        self.0 = due;
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::Intermediate;

    #[test]
    fn each_warning_is_given_once_and_in_time() {
        let details = |file: &str, fingerprint: &str| Details {
            file: file.into(),
            names: vec!["a.example".into()],
            subject: String::new(),
            issuer: String::new(),
            key: "ECDSA",
            not_before: 0,
            not_after: 100 * DAY,
            intermediate: None,
            fingerprint: fingerprint.into(),
        };
        let (one, other) = (details("a.pem", "1"), details("b.pem", "2"));
        let mut warnings = Warnings::default();
        let mut told = Vec::new();
        for hour in (60 * 24)..(103 * 24) {
            // The second one comes when there is a week left; the first one is in two rules.
            let all = [("rule web", &one), ("rule api", &one), ("rule web", &other)];
            let count = if hour < 93 * 24 { 2 } else { 3 };
            for warning in warnings.next(all.into_iter().take(count), hour * 3600) {
                told.push(format!("{}: {warning}", hour / 24));
            }
        }
        let a = "the certificate a.pem for a.example";
        let b = "the certificate b.pem for a.example";
        assert_eq!(
            told,
            [
                format!("70: rule web: {a} expires in 30 days"),
                format!("93: rule web: {a} expires in 7 days"),
                format!("93: rule web: {b} expires in 7 days"),
                format!("99: rule web: {a} expires within a day"),
                format!("99: rule web: {b} expires within a day"),
                format!("100: rule web: {a} has expired"),
                format!("100: rule web: {b} has expired"),
            ]
        );
    }

    #[test]
    fn f11_an_intermediate_certificate_that_expires_first_is_told() {
        let details = Details {
            file: "a.pem".into(),
            names: vec!["a.example".into()],
            subject: String::new(),
            issuer: String::new(),
            key: "ECDSA",
            not_before: 0,
            not_after: 100 * DAY,
            intermediate: Some(Intermediate {
                number: 2,
                subject: "CN=between".into(),
                not_after: 10 * DAY,
            }),
            fingerprint: "1".into(),
        };
        let mut warnings = Warnings::default();
        assert_eq!(
            warnings.next([("rule web", &details)].into_iter(), 10 * DAY),
            [
                "rule web: the certificate of the authority CN=between in a.pem for a.example has expired"
            ]
        );
    }
}
