//! Members of a group.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use evenkeel_core::cost::Cost;
use evenkeel_core::member::Weight;
use toml::de::DeValue;

use super::kubernetes::{IS_SERVED, NOT_SERVED, SERVICE_PORT};
use crate::schema::address::{Address, Origin, UNIX, host_port, is_host_name};
use crate::schema::document::{Item, Span, join_key};
use crate::schema::field::{Blank, Field, Limits, OUT_OF_RANGE, Texts, WRONG_TYPE, read_one};
use crate::schema::key::{describe_keys, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{LOCATION_NAMES, NAMES, Table, is_name};

section! {
    /// Member as the file names it. A DNS name with several addresses becomes one member per address.
    #[derive(Clone, Debug, PartialEq)]
    pub struct MemberConfig {
        /// Host name or IP address (an IPv6 address without brackets); or `unix:` and the path of a Unix
        /// socket, which has no port.
        host: String = String::new(),
        /// Port of the member.
        port: u16 = 0,
        /// Name of a member without an address, which clients reach by a given reference, as a CORBA object.
        /// The member has no `host` and `port`: there is nothing to resolve and nothing to connect to.
        reference: Option<String> = None,
        /// Name of a service, in place of `host` and `port`: the members are those named in SRV records.
        srv: Option<String> = None,
        /// Port of a service of Kubernetes, in place of `host` and `port`, as `namespace/service:port`: the members are
        /// the service's endpoints. A member that was found so keeps the text.
        kubernetes: Option<String> = None,
        /// True if its location is its own address and port, where it has no `location`:
        /// [`GroupConfig::separate_members`](super::group::GroupConfig::separate_members).
        is_apart: bool = false,
    }
    keys MEMBER {
        /// Name of the member for people, unique in the group. `evenkeel ctl`, the admin API, the console and
        /// `top` show the name, and you can type it in place of the address; the access log has it as
        /// `member_name`. If you give no name, the address is the name. With a host name of several addresses,
        /// each address is called by the name, `/` and the IP address.
        given_name "name": Option<String> [Text(MEMBER_NAMES)] = None; r#""s1""#,
        /// Share of the traffic relative to the other members. Set 0 to send a member no traffic.
        weight: Weight = Weight::ONE; "2.5",
        /// Divides `weight` among the endpoints of the service of Kubernetes that take new traffic. Set `true` if
        /// your group has several services, and each service is to have its share whatever the number of its
        /// endpoints is.
        split_weight: bool = false; "true",
        /// Location of the member: a machine, not a path as in nginx. Members of all groups at one location
        /// share its reported load. By default the host of `address`; or the whole `address` if it is a Unix
        /// socket, or if members on the host [report their own loads](load-reports.md#which-source). Set a
        /// location if several addresses of yours are one machine.
        location: Option<String> [Text(LOCATION_NAMES)] = None; r#""rack-7""#,
        /// [Zone](zones.md) of the member, for example a data centre. Members in the balancer's own zone come
        /// first. By default the zone of the member's location, if you set one in `[location.NAME]`.
        zone: Option<String> [Text(NAMES)] = None; r#""north""#,
        /// Maximum number of requests (HTTP) or connections (TCP) at once. By default there is no limit. Set a
        /// limit if your member gets slow with more.
        max_connections: Option<u32> [Number(1.0, 10_000_000.0, "requests or connections")]
            = None; "100",
        /// Sends the member no new traffic; existing traffic may finish. Set `true` before you stop a member.
        drain: bool = false; "true",
        /// Makes the member a backup, with traffic only while no other member of the group may serve, because
        /// all are down, ejected, drained or under a load alert. If members are only at their
        /// `max_connections`, requests wait for them.
        backup: bool = false; "true",
        /// URL for clients of the negotiator: scheme, host and port. By default the cluster's `scheme` with
        /// `address`; with the IP address, if the host name has several. Set a URL if your clients reach the
        /// member at another address.
        url: Option<Origin> = None; r#""https://www-1.example.org""#,
    }
}

/// Names of files with members.
pub(super) const MEMBERS_FILES: Texts =
    ("the path of a file; its last part may contain *", |text| {
        let (folder, name) = text.rsplit_once('/').unwrap_or(("", text));
        !name.is_empty() && !text.contains('\0') && !folder.contains('*')
    });

section! {
    /// Address of a member.
    #[derive(Clone)]
    pub(crate) struct Place {}
    keys PLACE {
        /// Host name or IP address, and port; or `unix:` and the absolute path of a Unix socket, or `unix:@`
        /// and a name in the abstract namespace. **Required**, unless you set `srv` or `kubernetes`.
        address: Address [UnixToo] = Address::default(); r#""app-1.internal:8080""#,
        /// Name of a service in DNS, instead of an address. Each SRV record gives a member, with its weight and
        /// port. Records with a priority other than the lowest give backups.
        srv: Option<String> [Text(SERVICE)] = None; r#""_http._tcp.web.example.org""#,
        /// Service of Kubernetes, instead of an address: `namespace/service:port`, with the name or the number
        /// of the port. Each endpoint of the service is a member; endpoints that terminate are drained. See
        /// [kubernetes.md](kubernetes.md).
        kubernetes: Option<String> [Text(SERVICE_PORT)] = None; r#""default/web:http""#,
    }
}

/// Names that members may be given.
const MEMBER_NAMES: Texts = (
    "1 to 63 letters, digits, \"-\", \"_\" or \".\", and no IP address",
    is_member_name,
);

/// Returns true if a member may be given the name: 1 to 63 letters, digits, `-`, `_` or `.`, and no IP address.
/// Such a name is never the address of a member, which has a port.
pub fn is_member_name(name: &str) -> bool {
    is_name(name) && name.len() <= 63 && name.parse::<IpAddr>().is_err()
}

/// Name of a service.
const SERVICE: Texts = ("a DNS name, as in \"_http._tcp.web.example.org\"", |text| {
    let name = text.strip_suffix('.').unwrap_or(text);
    is_host_name(name) && name.parse::<IpAddr>().is_err()
});

/// Host (an IPv6 address without brackets, names in lower case) and port of an address as written in the file.
///
/// # Errors
///
/// The reason why the address cannot be used.
pub fn member_address(text: &str) -> Result<(String, u16), &'static str> {
    host_port(text)
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
    pub fn from_reference(name: &str) -> Self {
        MemberConfig {
            reference: Some(name.into()),
            location: Some(name.into()),
            ..MemberConfig::new("", 0)
        }
    }

    /// The identity of the member: `host:port`, or that of a reference, service or Unix socket. People may know it by
    /// its [`MemberConfig::given_name`].
    pub fn name(&self) -> String {
        if self.unix().is_some() {
            return self.host.clone();
        }
        let named = self.reference.as_ref().or(self.srv.as_ref());
        let service = self.kubernetes.as_ref().filter(|_| self.host.is_empty());
        match (named.or(service), self.ip()) {
            (Some(name), _) => name.clone(),
            (None, Some(ip)) => SocketAddr::new(ip, self.port).to_string(),
            (None, None) => format!("{}:{}", self.host, self.port),
        }
    }

    /// Returns the name that people see and type: the given one, or else the identity.
    pub fn shown_name(&self) -> String {
        self.given_name.clone().unwrap_or_else(|| self.name())
    }

    /// Returns the identity and the given name of the member at one address. If the host has several addresses, `ip`
    /// says which one, and follows behind a slash.
    pub fn names_at(&self, ip: Option<IpAddr>) -> (String, Option<String>) {
        let at = |name: String| match ip {
            Some(ip) => format!("{name}/{ip}"),
            None => name,
        };
        (at(self.name()), self.given_name.clone().map(at))
    }

    /// True if `name` is the member's given name or its identity.
    pub fn is_called(&self, name: &str) -> bool {
        self.given_name.as_deref() == Some(name) || self.name() == name
    }

    /// The address that `host` is, if it is not a name.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// The path of the Unix socket that it is, or `@` and its name in the abstract namespace.
    pub fn unix(&self) -> Option<&str> {
        self.host.strip_prefix(UNIX)
    }

    /// Name of the location of a member with one address.
    pub fn location_name(&self) -> Cow<'_, str> {
        match (&self.location, self.is_apart) {
            (Some(location), _) => location.into(),
            (None, true) => self.name().into(),
            (None, false) => (&self.host).into(),
        }
    }

    /// True if the member is a port of a host, and the file names no location for it.
    pub(crate) fn is_at_host(&self) -> bool {
        self.location.is_none() && self.reference.is_none() && self.unix().is_none()
    }

    /// True if the addresses of the member are found in DNS.
    pub fn is_looked_up(&self) -> bool {
        self.reference.is_none() && self.ip().is_none() && self.unix().is_none()
    }
}

/// Reads a member: its address, or a table.
fn read_member(item: &Item<'_>, report: &mut Report<'_>) -> Option<MemberConfig> {
    let before = report.problem_count();
    let mut member = MemberConfig::default();
    let place = match Table::from_item(item) {
        Some(mut table) => {
            let mut place = Place::default();
            table.read(PLACE, &mut place, report);
            table.read(MEMBER, &mut member, report);
            let ways = ["kubernetes", "srv", "address"];
            let ways: Vec<&str> = ways.into_iter().filter(|key| table.has_key(key)).collect();
            if let [first, _, ..] = ways[..] {
                let message =
                    "a member has an `address`, `srv` or `kubernetes`: remove all but one";
                table.report_problem(first, message, report);
            } else if ways == ["srv"] || ways == ["kubernetes"] {
                let name = place.srv.as_deref();
                let name = name.map(|name| name.strip_suffix('.').unwrap_or(name));
                member.srv = name.map(str::to_ascii_lowercase);
                member.kubernetes.clone_from(&place.kubernetes);
                if table.has_key("url") {
                    let message = "members of a service have different addresses: remove this key";
                    table.report_problem("url", message, report);
                }
                if table.has_key("name") {
                    let message = "a service has several members, and a name is for one member: remove `name`";
                    table.report_problem("name", message, report);
                }
            } else {
                table.require("address", report);
            }
            if !IS_SERVED && table.has_key("kubernetes") {
                table.report_problem("kubernetes", NOT_SERVED, report);
            }
            if member.split_weight && !table.has_key("kubernetes") {
                let message = "only a member with `kubernetes` has this key: remove it";
                table.report_problem("split_weight", message, report);
            }
            table.report_unread(report);
            Some(place.address)
        }
        None => read_one::<Address>(item, &Limits::UnixToo, report),
    };
    let Address { host, port } = place?;
    (report.problem_count() == before).then_some(MemberConfig {
        host,
        port,
        ..member
    })
}

/// Reports names that are given to two members, or that are the host of another member. `places` are the indexes of the
/// members with names, with their places in the file.
fn check_names(
    members: &[MemberConfig],
    places: &[(usize, Span, String)],
    report: &mut Report<'_>,
) {
    let hosts: HashMap<&str, &MemberConfig> = members.iter().map(|of| (&*of.host, of)).collect();
    let mut known: HashMap<&str, &MemberConfig> = HashMap::new();
    for (index, span, path) in places {
        let member = members.get(*index);
        let Some((member, name)) = member.and_then(|of| Some((of, of.given_name.as_deref()?)))
        else {
            continue;
        };
        let host = name.to_ascii_lowercase();
        let message = match (known.insert(name, member), hosts.get(&*host)) {
            (Some(other), _) => format!("{name} is the name of {} already", other.name()),
            (None, Some(other)) if member.host != host => {
                format!("{name} is the host of another member, {}", other.name())
            }
            (None, _) => continue,
        };
        report.add_problem(span, path, message, None);
    }
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
        let mut named = Vec::new();
        self.clear();
        for element in item.elements(list) {
            let Some(member) = read_member(&element, report) else {
                continue;
            };
            if seen.insert(member.name()) {
                if member.given_name.is_some() {
                    named.push((self.len(), element.span, join_key(&element.path, "name")));
                }
                self.push(member);
            } else {
                let message = format!("{} is a member already", member.name());
                report.add_problem(&element.span, &element.path, message, None);
            }
        }
        check_names(self, &named, report);
    }

    fn allowed(&self, _: &Limits) -> String {
        r#"a list of addresses as in "10.0.0.1:80" or "unix:/run/app.sock", or of tables as in { address = "10.0.0.1:80", weight = 2 }"#.into()
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

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "A member of a group. You may also write a list, as in `members = [{ address = \
               \"10.0.0.1:80\" }]`.";
    let keys = [
        describe_keys(PLACE, Place::default()),
        describe_keys(MEMBER, MemberConfig::default()),
    ];
    TableDoc::new("[[group.NAME.members]]", doc, keys)
}
