//! `[dns]`: resolution of members' names.

use std::net::SocketAddr;
use std::time::Duration;

use crate::schema::key::{DAY, describe_keys, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::Table;

section! {
    /// Resolution of members' names.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Dns {}
    keys DNS {
        /// DNS servers to ask, by UDP, and by TCP for long answers. By default the servers in
        /// `/etc/resolv.conf`. Set this list if your members' names are known to other servers only.
        /// `/etc/hosts` comes first in both cases.
        resolvers: Vec<SocketAddr> = Vec::new(); r#"["127.0.0.1:53"]"#,
        /// Minimum time for which an answer counts, whatever its TTL. Raise the time if you want to ask less
        /// often.
        min_ttl: Duration [Time(secs(1), DAY)] = secs(5); r#""1s""#,
        /// Maximum time for which an answer counts, whatever its TTL. Lower the time if your members' addresses
        /// change faster than their TTL says.
        max_ttl: Duration [Time(secs(1), DAY)] = secs(300); r#""1h""#,
    }
}

impl Dns {
    /// Time for which an answer with this TTL counts.
    pub fn bounded(&self, ttl: Duration) -> Duration {
        ttl.min(self.max_ttl).max(self.min_ttl)
    }
}

/// Reads `[dns]` of the file, if it is there.
pub(crate) fn read(top: &mut Table<'_>, report: &mut Report<'_>) -> Dns {
    let mut dns = Dns::default();
    if let Some(mut table) = top.read_table("dns", report) {
        table.read(DNS, &mut dns, report);
        if dns.min_ttl > dns.max_ttl {
            table.report_problem("min_ttl", "is longer than `max_ttl`", report);
        }
        table.report_unread(report);
    }
    dns
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "Resolution of members' host names: see [members.md](members.md#names).";
    TableDoc::new("[dns]", doc, [describe_keys(DNS, Dns::default())])
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
