//! Answers of HAProxy: its process, and the servers of a backend. No I/O.

use std::net::{IpAddr, SocketAddr};

/// Most servers of a backend that are read.
pub const MAX_SERVERS: usize = 100_000;

/// The form of `show servers state` that is understood.
const FORM: &str = "1";

/// Longest text of HAProxy's that is repeated, in characters.
const MAX_TEXT: usize = 200;

/// A server of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Name, unique in the backend: letters, digits, `-`, `_`, `.` and `:`.
    pub name: String,
    /// Address where the server listens; `None` if that is no IP address and port, as of a Unix socket or of
    /// a name that is not resolved.
    pub address: Option<SocketAddr>,
    /// Weight of the server.
    pub weight: u32,
    /// Weight of the server in HAProxy's configuration.
    pub initial: u32,
    /// State set by administrators: see [`Server::is_maintained`].
    pub admin: u32,
}

/// Flags of `srv_admin_state`: maintenance by command, inherited from another server, by configuration.
const MAINTENANCE: u32 = 0x01 | 0x02 | 0x04;

/// Drained by command, or inherited from another server.
const DRAIN: u32 = 0x08 | 0x10;

impl Server {
    /// True if the server is in maintenance because somebody wants it, not because its name is not resolved.
    pub fn is_maintained(&self) -> bool {
        self.admin & MAINTENANCE != 0
    }

    /// True if the server is drained by command: a weight of 0 is something else.
    pub fn is_drained(&self) -> bool {
        self.admin & DRAIN != 0
    }
}

/// A process of HAProxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Version of HAProxy.
    pub version: String,
    /// Number of the process.
    pub pid: u32,
}

/// Answer that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// HAProxy says something else.
    #[error("HAProxy says: {0}")]
    Says(String),
    /// A form that is not known.
    #[error(
        "`show servers state` has form {0:?}, but only {FORM} is understood: please report this with HAProxy's version"
    )]
    Form(String),
    /// The header lacks a column.
    #[error("`show servers state` has no column {0}: please report this with HAProxy's version")]
    Column(&'static str),
    /// A line that is none of a server.
    #[error("line {0} of `show servers state` describes no server")]
    Line(usize),
    /// There are too many servers.
    #[error("the backend has more than {MAX_SERVERS} servers")]
    TooMany,
}

/// A text of HAProxy's as it may be repeated in logs.
pub fn printable_text(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let visible = words.chars().filter(|c| !c.is_control());
    visible.take(MAX_TEXT).collect()
}

/// Reads the answer to `show info`.
///
/// # Errors
///
/// The text is something else.
pub fn parse_info(text: &str) -> Result<About, Unreadable> {
    let field = |name: &str| {
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        let (_, value) = fields.find(|(known, _)| *known == name)?;
        Some(value.trim())
    };
    let pid = field("Pid").and_then(|pid| pid.parse().ok());
    match (field("Version"), pid) {
        (Some(version), Some(pid)) => Ok(About {
            version: printable_text(version),
            pid,
        }),
        _ => Err(Unreadable::Says(printable_text(text))),
    }
}

/// Places of the columns that are read.
struct Columns {
    backend: usize,
    name: usize,
    address: usize,
    port: usize,
    admin: usize,
    weight: usize,
    initial: usize,
}

impl Columns {
    fn parse_header(header: &str) -> Result<Self, Unreadable> {
        let names: Vec<&str> = header
            .trim_start_matches('#')
            .split_ascii_whitespace()
            .collect();
        let at = |name: &'static str| {
            let place = names.iter().position(|known| *known == name);
            place.ok_or(Unreadable::Column(name))
        };
        Ok(Columns {
            backend: at("be_name")?,
            name: at("srv_name")?,
            address: at("srv_addr")?,
            port: at("srv_port")?,
            admin: at("srv_admin_state")?,
            weight: at("srv_uweight")?,
            initial: at("srv_iweight")?,
        })
    }

    /// The server of a line, with its backend.
    fn server<'a>(&self, line: &'a str) -> Option<(&'a str, Server)> {
        let fields: Vec<&str> = line.split_ascii_whitespace().take(64).collect();
        let field = |place: usize| fields.get(place).copied();
        let number = |place: usize| field(place)?.parse::<u32>().ok();
        let name = field(self.name).filter(|name| is_name(name))?;
        let ip: Option<IpAddr> = field(self.address)?.parse().ok();
        // A port may be relative to that of the client ("+0"): then there is none.
        let port: Option<u16> = field(self.port)?.parse().ok();
        let address = ip.zip(port.filter(|port| *port > 0));
        let server = Server {
            name: name.into(),
            address: address.map(|(ip, port)| SocketAddr::new(ip.to_canonical(), port)),
            weight: number(self.weight)?,
            initial: number(self.initial)?,
            admin: number(self.admin)?,
        };
        Some((field(self.backend)?, server))
    }
}

/// True for a name that a server, or a backend, may have. Nothing else is put into commands.
fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    (1..=256).contains(&name.len()) && name.bytes().all(is_part)
}

/// Reads the servers of `backend` that `show servers state` tells.
///
/// # Errors
///
/// The text is something else, such as that there is no such backend.
pub fn parse_servers(text: &str, backend: &str) -> Result<Vec<Server>, Unreadable> {
    let mut lines = text.lines().enumerate();
    let mut next = || lines.find(|(_, line)| !line.trim().is_empty());
    let form = next().map_or("", |(_, line)| line.trim());
    if form != FORM {
        let is_number = !form.is_empty() && form.bytes().all(|byte| byte.is_ascii_digit());
        return Err(match is_number {
            true => Unreadable::Form(printable_text(form)),
            false => Unreadable::Says(printable_text(text)),
        });
    }
    let header = next().map_or("", |(_, line)| line);
    if !header.starts_with('#') {
        return Err(Unreadable::Says(printable_text(header)));
    }
    let columns = Columns::parse_header(header)?;
    let mut servers = Vec::new();
    while let Some((place, line)) = next() {
        let Some((of, server)) = columns.server(line) else {
            return Err(Unreadable::Line(place + 1));
        };
        if of != backend {
            continue;
        }
        if servers.len() >= MAX_SERVERS {
            return Err(Unreadable::TooMany);
        }
        servers.push(server);
    }
    Ok(servers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: &str = "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight \
                          srv_iweight srv_time_since_last_change srv_check_status srv_check_result srv_check_health \
                          srv_check_state srv_agent_state bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord \
                          srv_use_ssl srv_check_port srv_check_addr srv_agent_addr srv_agent_port\n";

    #[test]
    fn servers_are_read_by_the_names_of_columns() {
        let text = format!(
            "{HEADER}3 web 1 a 127.0.0.1 2 0 100 1 15 1 0 0 0 0 0 0 - 8001 - 0 0 - - 0\n\
             3 web 2 b 2001:db8::1 0 1 0 50 15 1 0 0 0 0 0 0 - 80 - 0 0 - - 0\n\
             3 web 3 c - 2 32 1 1 15 1 0 0 0 0 0 0 app.example 80 - 0 0 - - 0\n\
             4 other 1 a 127.0.0.1 2 8 1 1 15 1 0 0 0 0 0 0 - 8001 - 0 0 - - 0\n\n"
        );
        let found = parse_servers(&text, "web").unwrap();
        let names: Vec<_> = found.iter().map(|server| &*server.name).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(found[0].address, Some("127.0.0.1:8001".parse().unwrap()));
        assert_eq!((found[0].weight, found[0].initial), (100, 1));
        assert_eq!(found[1].address, Some("[2001:db8::1]:80".parse().unwrap()));
        assert!(found[1].is_maintained() && !found[1].is_drained());
        assert_eq!(found[2].address, None);
        assert!(!found[2].is_maintained(), "its name is not resolved");
        assert!(parse_servers(&text, "other").unwrap()[0].is_drained());
        assert_eq!(parse_servers(&text, "nobody"), Ok(Vec::new()));
    }

    #[test]
    fn what_is_something_else_is_told() {
        for (text, wanted) in [
            (
                "Can't find backend.\n\n",
                "HAProxy says: Can't find backend.",
            ),
            ("", "HAProxy says: "),
            ("2\n# x\n", "has form \"2\""),
            ("1\n# be_id be_name\n", "no column srv_name"),
            ("1\nbe_id\n", "HAProxy says: be_id"),
        ] {
            let error = parse_servers(text, "web").unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
        let line = format!("{HEADER}3 web 1 a;b 127.0.0.1 2 0 1 1 15 1 0 0 0 0 0 0 - 80 -\n");
        assert_eq!(parse_servers(&line, "web"), Err(Unreadable::Line(3)));
    }

    #[test]
    fn the_process_is_read() {
        let text = "Name: HAProxy\nVersion: 2.6.12-1+deb12u2\nPid: 4711\nUptime_sec: 12\n\n";
        let about = parse_info(text).unwrap();
        assert_eq!((&*about.version, about.pid), ("2.6.12-1+deb12u2", 4711));
        assert!(super::parse_info("Unknown command: 'show info'").is_err());
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in "\\PC{0,200}", lines in prop::collection::vec("[-0-9a-z .:+]{0,60}", 0..8)) {
            let _ = (parse_servers(&text, "web"), parse_info(&text));
            let text = format!("{HEADER}{}", lines.join("\n"));
            if let Ok(found) = parse_servers(&text, "web") {
                prop_assert!(found.iter().all(|server| is_name(&server.name)));
            }
        }
    }
}
