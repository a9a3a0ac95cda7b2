//! Members of a group.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use evenkeel_core::cost::Cost;
use evenkeel_core::member::Weight;
use toml::de::DeValue;

use crate::schema::address::{Address, Origin};
use crate::schema::document::Item;
use crate::schema::field::{Blank, Field, Limits, OUT_OF_RANGE, WRONG_TYPE, read_one};
use crate::schema::key::{docs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{LOCATION_NAMES, Table};

section! {
    /// A member as the file names it. A DNS name with several addresses becomes one
    /// member per address.
    #[derive(Clone, Debug, PartialEq)]
    pub struct MemberConfig {
        /// Host name or IP address (an IPv6 address without brackets).
        host: String = String::new(),
        /// Port.
        port: u16 = 0,
        /// The name of a member that is no address, but something that clients reach by a
        /// reference which they are given, as a CORBA object is. It has no `host` and `port`:
        /// there is nothing to resolve and nothing to connect to.
        reference: Option<String> = None,
    }
    keys MEMBER {
        /// Share of the traffic relative to the other members; 0 gets none.
        weight: Weight = Weight::ONE; "2.5",
        /// Where it runs: a machine, not a path as in nginx. Members of all groups at one location
        /// share its reported load. By default the host of `address`.
        location: Option<String> [Text(LOCATION_NAMES)] = None; r#""rack-7""#,
        /// Maximum number of requests (HTTP) or connections (TCP) at once. By default there is no
        /// limit.
        max_connections: Option<u32> [Number(1.0, 10_000_000.0, "requests or connections")]
            = None; "100",
        /// Whether it gets no new traffic; existing traffic may finish.
        drain: bool = false; "true",
        /// Whether it is a backup: it gets traffic only while no other member of the group may
        /// serve, because all are down, ejected, drained or under a load alert. Members at their
        /// `max_connections` are waited for.
        backup: bool = false; "true",
        /// URL for clients of the negotiator: scheme, host and port. By default the cluster's
        /// `scheme` with `address`; with the IP address, if the host name has several.
        url: Option<Origin> = None; r#""https://www-1.example.org""#,
    }
}

section! {
    /// Where a member is.
    #[derive(Clone)]
    pub(crate) struct Place {}
    keys PLACE {
        /// Host name or IP address, and port. **Required.**
        address: Address = Address::default(); r#""app-1.internal:8080""#,
    }
}

impl MemberConfig {
    /// A member with all defaults.
    pub fn new(host: &str, port: u16) -> Self {
        let host = host.into();
        MemberConfig {
            host,
            port,
            ..MemberConfig::default()
        }
    }

    /// A member that is no address, with all defaults: `name` is its
    /// [`MemberConfig::reference`], and its location unless it has another one.
    pub fn referred(name: &str) -> Self {
        MemberConfig {
            reference: Some(name.into()),
            location: Some(name.into()),
            ..MemberConfig::new("", 0)
        }
    }

    /// The name of the member: `host:port`, or that of a reference.
    pub fn name(&self) -> String {
        match (&self.reference, self.ip()) {
            (Some(name), _) => name.clone(),
            (None, Some(ip)) => SocketAddr::new(ip, self.port).to_string(),
            (None, None) => format!("{}:{}", self.host, self.port),
        }
    }

    /// The address that `host` is, if it is not a name.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

/// Reads a member: its address, or a table.
fn read_member(item: &Item<'_>, report: &mut Report<'_>) -> Option<MemberConfig> {
    let before = report.problems();
    let mut member = MemberConfig::default();
    let place = match Table::open(item) {
        Some(mut table) => {
            let mut place = Place::default();
            table.read(PLACE, &mut place, report);
            table.read(MEMBER, &mut member, report);
            table.require("address", report);
            table.finish(report);
            Some(place.address)
        }
        None => read_one::<Address>(item, &Limits::Any, report),
    };
    let Address { host, port } = place?;
    (report.problems() == before).then_some(MemberConfig {
        host,
        port,
        ..member
    })
}

/// The members of a group.
impl Field for Vec<MemberConfig> {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::Array(list) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        if list.is_empty() {
            return report.wrong(item, "no members", self.allowed(limits));
        }
        let mut seen = HashSet::new();
        self.clear();
        for element in item.elements(list) {
            let Some(member) = read_member(&element, report) else {
                continue;
            };
            if seen.insert(member.name()) {
                self.push(member);
            } else {
                let message = format!("{} is a member already", member.name());
                report.problem(&element.span, &element.path, message, None);
            }
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        r#"a list of addresses as in "10.0.0.1:80", or of tables as in { address = "10.0.0.1:80", weight = 2 }"#.into()
    }
}

/// A number of a type that knows its bounds.
macro_rules! bounded_field {
    ($type:ty, $default:expr, $allowed:expr) => {
        impl Field for $type {
            fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
                match item.number().map(<$type>::new) {
                    Some(Ok(value)) => *self = value,
                    Some(Err(_)) => report.wrong(item, OUT_OF_RANGE, self.allowed(limits)),
                    None => report.wrong(item, WRONG_TYPE, self.allowed(limits)),
                }
            }

            fn show(&self, _: &Limits) -> Option<String> {
                Some(self.get().to_string())
            }

            fn allowed(&self, _: &Limits) -> String {
                $allowed.into()
            }
        }

        impl Blank for $type {
            fn blank() -> Self {
                $default
            }
        }
    };
}

bounded_field!(Weight, Weight::ONE, "a number from 0 to 1000");
bounded_field!(Cost, Cost::ONE, "a number from 0.01 to 1000");

/// What the reference says of the table.
pub(crate) fn tables() -> TableDoc {
    let doc = "A member of a group; may also be written in a list, as `members = [{ address = \
               \"10.0.0.1:80\" }]`.";
    let keys = [
        docs(PLACE, Place::default()),
        docs(MEMBER, MemberConfig::default()),
    ];
    TableDoc::new("[[group.NAME.members]]", doc, keys)
}
