//! `[dns]`: how names of members are resolved.

use std::net::SocketAddr;
use std::time::Duration;

use crate::schema::key::{DAY, docs, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::Table;

section! {
    /// How names of members are resolved.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Dns {}
    keys DNS {
        /// The DNS servers that are asked, by UDP, and by TCP for long answers. Without it, those of
        /// `/etc/resolv.conf`. `/etc/hosts` comes first in both cases.
        resolvers: Vec<SocketAddr> = Vec::new(); r#"["127.0.0.1:53"]"#,
        /// An answer counts at least this long, whatever its TTL is.
        min_ttl: Duration [Time(secs(1), DAY)] = secs(5); r#""1s""#,
        /// An answer counts at most this long, whatever its TTL is.
        max_ttl: Duration [Time(secs(1), DAY)] = secs(300); r#""1h""#,
    }
}

impl Dns {
    /// How long an answer counts that has this TTL.
    pub fn bounded(&self, ttl: Duration) -> Duration {
        ttl.min(self.max_ttl).max(self.min_ttl)
    }
}

/// Reads `[dns]` of the file, if it is there.
pub(crate) fn read(top: &mut Table<'_>, report: &mut Report<'_>) -> Dns {
    let mut dns = Dns::default();
    if let Some(mut table) = top.table("dns", report) {
        table.read(DNS, &mut dns, report);
        if dns.min_ttl > dns.max_ttl {
            table.problem("min_ttl", "is longer than `max_ttl`", report);
        }
        table.finish(report);
    }
    dns
}

/// What the reference says of the table.
pub(crate) fn tables() -> TableDoc {
    let doc = "How host names of members are resolved: see [members.md](members.md#names).";
    TableDoc::new("[dns]", doc, [docs(DNS, Dns::default())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    const RULE: &str = "[rule.x]\nlisten = \"127.0.0.1:1\"\nmembers = [\"a:1\"]\n";

    #[test]
    fn ttls_have_bounds() {
        let text = format!("[dns]\nresolvers = \"127.0.0.1:53\"\nmin_ttl = \"2s\"\n{RULE}");
        let dns = parse("x", &text).unwrap().dns;
        assert_eq!(dns.resolvers, ["127.0.0.1:53".parse().unwrap()]);
        let bounded = |seconds| dns.bounded(Duration::from_secs(seconds)).as_secs();
        assert_eq!([0, 2, 60, 86_400].map(bounded), [2, 2, 60, 300]);
        let text = format!("[dns]\nmin_ttl = \"2m\"\nmax_ttl = \"1m\"\n{RULE}");
        let error = parse("x", &text).unwrap_err().to_string();
        assert!(error.contains("longer than `max_ttl`"), "{error}");
    }
}
