//! `[fleet]`: the other balancers, and where they are found.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::node::Node;
use crate::schema::address::Address;
use crate::schema::key::{docs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::Table;

section! {
    /// The other balancers, and where they are found.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Fleet {
        /// What this balancer is called; `None` is the name of the machine.
        name: Option<String> = None,
    }
    keys FLEET {
        /// UDP address to listen on for the other balancers. **Required.**
        listen: Option<SocketAddr> = None; r#""0.0.0.0:9910""#,
        /// UDP address at which the other balancers reach this one. Without it, that of `listen`; required if
        /// that is `0.0.0.0` or `[::]`, or if addresses are translated on the way.
        advertise: Option<SocketAddr> = None; r#""10.0.0.1:9910""#,
        /// Some of the other balancers: host and UDP port, one, or a list. A name stands for all its addresses, and is
        /// looked up again and again. It need not be all of them, as each tells of the others, and may be this one, too, so
        /// that all balancers can have the same list.
        join: Vec<Address> = Vec::new(); r#"["lb-1.internal:9910", "lb-2.internal:9910"]"#,
        /// File with the keys that all balancers share: one line `ID:HEX`, or two while keys are changed. The first is used
        /// to sign, a second one is accepted, too. It must be readable only for its owner and group. It is read again
        /// with the configuration; a relative path starts at the configuration's folder. **Required.**
        key_file: PathBuf = PathBuf::new(); r#""/etc/evenkeel/fleet.key""#,
        /// Whether this balancer tells the others how many of its requests are in flight at each location, and takes
        /// its own and theirs as the load `in_flight` of the location, [theirs](fleet.md#requests-in-flight) as far as requests
        /// take long there. Not where members report that load themselves.
        in_flight: bool = false; "true",
    }
}

impl Fleet {
    /// Where others reach this balancer; `None` if the configuration does not say.
    pub fn reached_at(&self) -> Option<SocketAddr> {
        let own = self.listen.filter(|address| !address.ip().is_unspecified());
        self.advertise.or(own)
    }
}

/// Whether this build has what serves the section.
const IS_SERVED: bool = cfg!(feature = "fleet");

/// Reads `[fleet]` of the file, if it is there.
pub(crate) fn read(
    top: &mut Table<'_>,
    folder: &Path,
    node: &Node,
    report: &mut Report<'_>,
) -> Option<Fleet> {
    let mut table = top.table("fleet", report)?;
    if !IS_SERVED {
        let message = "this build has no fleet: remove the table, or use a build with the feature \
                       `fleet`";
        report.problem(table.name_span(), "fleet", message, None);
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
        table.problem("advertise", message, report);
    }
    if let Some(address) = fleet.advertise
        && (address.ip().is_unspecified() || address.ip().is_multicast() || address.port() == 0)
    {
        table.problem("advertise", format!("{address} is of nobody"), report);
    }
    let mut known = HashSet::new();
    for address in &fleet.join {
        if !known.insert(address.to_string()) {
            table.problem("join", format!("{address} comes twice"), report);
        }
    }
    table.finish(report);
    Some(fleet)
}

/// What the reference says of the table.
pub(crate) fn tables() -> TableDoc {
    let doc = "Other balancers with which this one shares what it knows, over UDP: see \
               [fleet.md](fleet.md). Off unless the table is there.";
    TableDoc::new("[fleet]", doc, [docs(FLEET, Fleet::default())])
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
        assert!(nobody.contains("of nobody"), "{nobody}");
        let twice = errors("listen = \"10.0.0.1:1\"\njoin = [\"a:1\", \"a:1\"]");
        assert!(twice.contains("a:1 comes twice"), "{twice}");
        let missing = parse("f", "[fleet]\n").unwrap_err().to_string();
        assert!(missing.contains("`listen` is missing"), "{missing}");
        assert!(missing.contains("`key_file` is missing"), "{missing}");
    }
}
