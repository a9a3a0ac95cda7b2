//! `[rule.NAME.ftp]`: options of FTP rules.

use std::fmt;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::schema::document::Item;
use crate::schema::field::{Field, Limits, blank, choice_field, read_text};
use crate::schema::key::{HOUR, describe_keys, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Options of FTP rules.
    #[derive(Clone, Debug, PartialEq)]
    pub struct FtpOptions {}
    keys FTP {
        /// Ports for data connections: of clients in passive mode, and of members in active mode. Open these
        /// ports in your firewall. All rules and workers share the ports; ports taken by other programs are
        /// skipped.
        ports: PortRange = PortRange::default(); r#""20000-20999""#,
        /// IPv4 address given to clients in answers to PASV. Set the public address if a router translates the
        /// balancer's address. By default the address to which the client has connected.
        announce: Option<Ipv4Addr> = None; r#""203.0.113.7""#,
        /// Handling of `AUTH TLS`. With `end`, TLS ends at the balancer, with the certificates of `tls`. With
        /// `pass`, the command goes to the member, after which no data connection can be prepared. With
        /// `refuse`, the balancer refuses the command. By default `end` if you set `tls`, and `refuse`
        /// otherwise.
        auth_tls: Option<FtpTls> = None; r#""refuse""#,
        /// Requires TLS of clients, before they log in and for data.
        require_tls: bool = false; "true",
        /// Time limit for a data connection to arrive, and for its TLS handshake.
        data_timeout: Duration [Time(millis(1), HOUR)] = secs(60); r#""20s""#,
    }
}

impl AsTable for FtpOptions {
    const ALLOWED: &'static str = "a table of FTP options";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(FTP, self, report);
    }
}

/// Handling of `AUTH TLS` (RFC 4217).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FtpTls {
    /// TLS ends at the balancer.
    #[default]
    End,
    /// TLS is between client and member.
    Pass,
    /// No TLS.
    Refuse,
}

choice_field!(FtpTls, "end" => FtpTls::End, "pass" => FtpTls::Pass, "refuse" => FtpTls::Refuse);
blank!(FtpTls);

/// Range of ports, both ends included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRange(pub RangeInclusive<u16>);

impl Default for PortRange {
    /// Ports below the range that Linux assigns by itself, which begins at 32768.
    fn default() -> Self {
        PortRange(30_000..=32_767)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0.start(), self.0.end())
    }
}

impl Field for PortRange {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        read_text(self, item, limits, report, |text| {
            let range = text.split_once('-').and_then(|(first, last)| {
                let port = |text: &str| text.trim().parse::<u16>().ok();
                Some(port(first)?..=port(last)?)
            });
            let range = range.filter(|range| *range.start() >= 1024 && !range.is_empty());
            range.map(PortRange).ok_or("not a range of ports")
        });
    }

    fn show(&self, _: &Limits) -> Option<String> {
        Some(format!("{:?}", self.to_string()))
    }

    fn allowed(&self, _: &Limits) -> String {
        r#"two ports from 1024 on, as in "30000-30999""#.into()
    }
}

impl Field for Ipv4Addr {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        read_text(self, item, limits, report, |text| {
            let ip: Option<Ipv4Addr> = text.trim().parse().ok();
            let is_one = |ip: &Ipv4Addr| !ip.is_unspecified() && !ip.is_multicast();
            ip.filter(is_one).ok_or("not the IPv4 address of a machine")
        });
    }

    fn allowed(&self, _: &Limits) -> String {
        r#"an IPv4 address, as in "203.0.113.7""#.into()
    }
}

impl crate::schema::field::Blank for Ipv4Addr {
    fn blank() -> Self {
        Ipv4Addr::UNSPECIFIED
    }
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let keys = [describe_keys(FTP, FtpOptions::default())];
    TableDoc::new(
        "[rule.NAME.ftp]",
        "Options of FTP rules: [FTP](ftp.md).",
        keys,
    )
}
