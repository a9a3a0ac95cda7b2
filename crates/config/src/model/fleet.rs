//! `[fleet]`: the other balancers, and their addresses.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::node::Node;
use crate::schema::address::Address;
use crate::schema::key::{describe_keys, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::Table;

section! {
    /// Addresses and keys of the other balancers.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Fleet {
        /// Name of this balancer; `None` is the name of the machine.
        name: Option<String> = None,
    }
    keys FLEET {
        /// UDP address to listen on for the other balancers. **Required.**
        listen: Option<SocketAddr> = None; r#""0.0.0.0:9910""#,
        /// UDP address at which the other balancers reach this balancer. By default the address of `listen`.
        /// Set this address if `listen` is `0.0.0.0` or `[::]`, or if addresses are translated on the way.
        advertise: Option<SocketAddr> = None; r#""10.0.0.1:9910""#,
        /// Addresses of some of the other balancers: host and UDP port, one, or a list. A name stands for all
        /// its addresses, and is looked up again and again. You need not list all balancers, because each
        /// balancer tells the others. You may list this balancer, too, so that you can use one list everywhere.
        join: Vec<Address> = Vec::new(); r#"["lb-1.internal:9910", "lb-2.internal:9910"]"#,
        /// File with the keys shared by all balancers: one line `ID:HEX`, or two lines while you change keys.
        /// The first key signs messages; a second key is accepted, too. Let nobody but the file's owner and
        /// group read the file. The file is read again with the configuration; a relative path starts at the
        /// configuration's folder. **Required.**
        key_file: PathBuf = PathBuf::new(); r#""/etc/evenkeel/fleet.key""#,
        /// Shares the number of requests in flight at each location with the other balancers. The balancer then
        /// takes its own number and the numbers of the others as the load `in_flight` of the location; numbers
        /// of the others count [as far as requests take long there](fleet.md#requests-in-flight). Leave the key
        /// `false` if your members report this load. Balancers before engines of language models tell each other
        /// [work](fleet.md#work-at-engines) and [prompts](fleet.md#prompts-at-engines) in any case.
        in_flight: bool = false; "true",
    }
}

impl Fleet {
    /// Address at which others reach this balancer; `None` if the configuration does not say.
    pub fn reached_at(&self) -> Option<SocketAddr> {
        let own = self.listen.filter(|address| !address.ip().is_unspecified());
        self.advertise.or(own)
    }
}

/// True if this build can serve the section.
const IS_SERVED: bool = cfg!(feature = "fleet");

/// Reads `[fleet]` of the file, if it is there.
pub(crate) fn read(
    top: &mut Table<'_>,
    folder: &Path,
    node: &Node,
    report: &mut Report<'_>,
) -> Option<Fleet> {
    let mut table = top.read_table("fleet", report)?;
    if !IS_SERVED {
        let message = "this build has no fleet: remove the table, or use a build with the feature \
                       `fleet`";
        report.add_problem(table.name_span(), "fleet", message, None);
        return None;
    }
    let mut fleet = Fleet {
        name: node.name.clone(),
        ..Fleet::default()
    };
    table.read(FLEET, &mut fleet, report);
    table.require("listen", report);
    table.require("key_file", report);
    fleet.key_file = folder.join(&fleet.key_file);
    if fleet.listen.is_some() && fleet.reached_at().is_none() {
        let message =
            "is missing: `listen` is all addresses of this machine, and the others need one";
        table.report_problem("advertise", message, report);
    }
    if let Some(address) = fleet.advertise
        && (address.ip().is_unspecified() || address.ip().is_multicast() || address.port() == 0)
    {
        table.report_problem(
            "advertise",
            format!("{address} cannot be the address of a balancer"),
            report,
        );
    }
    let mut known = HashSet::new();
    for address in &fleet.join {
        if !known.insert(address.to_string()) {
            table.report_problem("join", format!("{address} comes twice"), report);
        }
    }
    table.report_unread(report);
    Some(fleet)
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "Exchange of load alerts, ejections and observed response times with your other balancers, \
               over UDP: see [fleet.md](fleet.md). Off unless you add the table.";
    TableDoc::new("[fleet]", doc, [describe_keys(FLEET, Fleet::default())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, parse};

    fn config(text: &str) -> Config {
        parse("/etc/evenkeel/evenkeel.toml", text).unwrap()
    }

    #[test]
    fn a_fleet_has_addresses_and_keys() {
        let text = "[node]\nname = \"lb-1\"\n[fleet]\nlisten = \"10.0.0.1:9910\"\nkey_file = \"keys\"\n\
                    join = [\"lb.internal:9910\", \"[::1]:9910\"]\n";
        let fleet = config(text).fleet.unwrap();
        assert_eq!(fleet.name.as_deref(), Some("lb-1"));
        assert_eq!(fleet.reached_at(), Some("10.0.0.1:9910".parse().unwrap()));
        assert_eq!(fleet.key_file, Path::new("/etc/evenkeel/keys"));
        assert_eq!(fleet.join.len(), 2);
        assert_eq!(config("").fleet, None);
    }

    #[test]
    fn what_others_cannot_reach_is_said() {
        let errors = |text: &str| {
            let text = format!("[fleet]\nkey_file = \"k\"\n{text}");
            parse("f", &text).unwrap_err().to_string()
        };
        let all = errors("listen = \"0.0.0.0:9910\"");
        assert!(all.contains("`listen` is all addresses"), "{all}");
        let nobody = errors("listen = \"0.0.0.0:9910\"\nadvertise = \"224.0.0.1:9910\"");
        assert!(
            nobody.contains("cannot be the address of a balancer"),
            "{nobody}"
        );
        let twice = errors("listen = \"10.0.0.1:1\"\njoin = [\"a:1\", \"a:1\"]");
        assert!(twice.contains("a:1 comes twice"), "{twice}");
        let missing = parse("f", "[fleet]\n").unwrap_err().to_string();
        assert!(missing.contains("`listen` is missing"), "{missing}");
        assert!(missing.contains("`key_file` is missing"), "{missing}");
    }
}
