//! The messages as bytes.
//!
//! A datagram is a header of [`HEADER_LEN`] bytes, a body, and an authentication code of
//! [`TAG_LEN`] bytes over both. All numbers are big-endian. What is not understood whole
//! is refused whole: a message has no byte that its receiver does not know.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use evenkeel_core::load::LoadId;
use evenkeel_core::member::Weight;
use evenkeel_core::time::Instant;

use super::keys::{Key, Keys, TAG_LEN};
use crate::input::{Input, put_text};

/// The first bytes of every message.
pub const MAGIC: [u8; 4] = *b"EvKl";

/// The version of the protocol that is spoken here.
pub const VERSION: u8 = 1;

/// Length of the header, in bytes.
pub const HEADER_LEN: usize = 32;

/// The longest message, in bytes: with the headers of UDP and IPv6 it fits into one
/// packet on every link, tunnels included.
pub const MAX_DATAGRAM: usize = 1400;

/// The shortest message, in bytes: it has no body.
pub const MIN_DATAGRAM: usize = HEADER_LEN + TAG_LEN;

/// Most servers in one registration. An agent with more of them registers several times.
pub const MAX_SERVERS: usize = 32;

/// Most loads in one Update.
pub const MAX_LOADS: usize = 16;

/// Longest name of a location, in bytes.
pub const MAX_LOCATION_LEN: usize = 255;

/// Longest name of a group or an agent, in bytes.
pub const MAX_NAME_LEN: usize = 64;

/// Longest name of a host, in bytes (RFC 1035, section 2.3.4).
pub const MAX_HOST_LEN: usize = 253;

/// Shortest interval between two Updates that a broker may ask for.
pub const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Longest interval between two Updates that a broker may ask for.
pub const MAX_INTERVAL: Duration = Duration::from_secs(3600);

/// Kind of a message. Kinds to a broker are below 0x80, kinds to an agent are not, so that no
/// message can be reflected to the side that sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::FromRepr)]
#[repr(u8)]
pub enum Kind {
    /// Agent to broker: this is who I am, and these are my servers.
    Registration = 0x01,
    /// Agent to broker: the loads of an interval, and the state of each server.
    Update = 0x02,
    /// Agent to broker: assign no more clients to my servers.
    Stop = 0x03,
    /// Broker to agent: register again with this cookie, to prove your address.
    Challenge = 0x81,
    /// Broker to agent: the identifier of the registration, and how to report.
    Acknowledgement = 0x82,
    /// Broker to agent: how to report from now on; perhaps asks for an Update.
    Query = 0x83,
    /// Broker to agent: no more clients will be assigned.
    StopAcknowledgement = 0x84,
    /// Broker to agent: the identifier is not known (any more): register again.
    RegisterAgain = 0x85,
}

impl Kind {
    /// Returns true if an agent sends messages of this kind.
    pub fn is_from_agent(self) -> bool {
        (self as u8) < 0x80
    }
}

/// Header with which every message begins, after magic and version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the message.
    pub kind: Kind,
    /// The key of its code.
    pub key: u16,
    /// The number that the agent drew for this registration; the broker repeats it.
    pub nonce: u64,
    /// The number that the broker drew for this registration, 0 where there is none yet.
    pub identifier: u64,
    /// Sequence number. From an agent: counts its messages with this nonce, from 1. In an
    /// Acknowledgement or a Query: counts the broker's messages with this identifier, from 1. In
    /// another answer: the sequence number of what is answered.
    pub sequence: u64,
}

/// A server that an agent reports for.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Name of the group that it is a member of.
    pub group: String,
    /// Host of the server: an IP address of one machine, a DNS name in lower case, or nothing for
    /// the address from which the agent's datagrams come.
    pub host: String,
    /// Port of the server.
    pub port: u16,
    /// Weight of the server if it becomes a member by registering; `None` leaves it to the broker.
    pub weight: Option<Weight>,
}

impl Server {
    /// Returns true if a broker takes the server: the names are what names may be.
    fn is_valid(&self) -> bool {
        is_name(&self.group) && is_host(&self.host) && self.port != 0
    }
}

/// State of one of its servers, as an agent reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ServerState {
    /// The server serves.
    #[default]
    Up = 0,
    /// The server goes on with the clients that it has and gets no new ones: it is exiting.
    Drain = 1,
    /// The server does not serve.
    Down = 2,
}

/// Content of a registration: a location, an agent there, and its servers.
#[derive(Clone, Debug, PartialEq)]
pub struct Registration {
    location: String,
    agent: String,
    servers: Vec<Server>,
}

impl Registration {
    /// `location` is where the loads belong, `agent` tells the agents of a location
    /// apart. The servers may be none: then only the location's load is reported.
    pub fn new(
        location: impl Into<String>,
        agent: impl Into<String>,
        servers: Vec<Server>,
    ) -> Result<Self, InvalidRegistration> {
        let registration = Registration {
            location: location.into(),
            agent: agent.into(),
            servers,
        };
        if !is_location(&registration.location) {
            return Err(InvalidRegistration::Location(registration.location));
        }
        if !is_name(&registration.agent) {
            return Err(InvalidRegistration::Agent(registration.agent));
        }
        for server in &registration.servers {
            if !server.is_valid() {
                return Err(InvalidRegistration::Server(format!("{server:?}")));
            }
        }
        let len = MIN_DATAGRAM + Cookie::LEN + registration.len();
        if registration.servers.len() > MAX_SERVERS || len > MAX_DATAGRAM {
            return Err(InvalidRegistration::TooLong);
        }
        Ok(registration)
    }

    /// Returns the location to which the loads belong.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Tells the agents of a location apart.
    pub fn agent(&self) -> &str {
        &self.agent
    }

    /// The servers, in the order in which their states and alerts are given.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    fn len(&self) -> usize {
        let server = |server: &Server| 1 + server.group.len() + 1 + server.host.len() + 2 + 4;
        let servers: usize = self.servers.iter().map(server).sum();
        1 + self.location.len() + 1 + self.agent.len() + 1 + servers
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_text(out, &self.location);
        put_text(out, &self.agent);
        out.push(self.servers.len() as u8);
        for server in &self.servers {
            put_text(out, &server.group);
            put_text(out, &server.host);
            out.extend(server.port.to_be_bytes());
            let weight = server
                .weight
                .map_or(NO_WEIGHT, |weight| weight.get().to_bits());
            out.extend(weight.to_be_bytes());
        }
    }

    fn decode(input: &mut Input<'_>) -> Option<Self> {
        let (location, agent) = (input.text()?, input.text()?);
        let mut servers = Vec::new();
        for _ in 0..input.read_u8()? {
            let (group, host, port) = (input.text()?, input.text()?, input.read_u16()?);
            let weight = match input.read_u32()? {
                NO_WEIGHT => None,
                bits => Some(Weight::new(f32::from_bits(bits).into()).ok()?),
            };
            servers.push(Server {
                group,
                host,
                port,
                weight,
            });
        }
        Registration::new(location, agent, servers).ok()
    }
}

/// The weight of a server that names none: not a number, so that it is no weight.
const NO_WEIGHT: u32 = u32::MAX;

/// Reason why something cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRegistration {
    /// Text that is not the name of a location.
    #[error("a location is 1 to {MAX_LOCATION_LEN} bytes without control characters, not {0:?}")]
    Location(String),
    /// Text that is not the name of an agent.
    #[error("an agent's name is 1 to {MAX_NAME_LEN} letters, digits, `-`, `_` or `.`, not {0:?}")]
    Agent(String),
    /// Text that is not a server.
    #[error(
        "a server has the name of a group, an IP address or a host name in lower case (or \
         none), and a port from 1: not {0}"
    )]
    Server(String),
    /// Too much for one message.
    #[error(
        "a registration has at most {MAX_SERVERS} servers and {MAX_DATAGRAM} bytes: spread the \
         servers over several agents"
    )]
    TooLong,
}

/// A stateless proof that the agent receives at its address what the broker sends there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// Time at which the broker made the cookie, on the broker's own time line.
    pub issued: Instant,
    /// The broker's code over it, the agent's address and the nonce.
    pub proof: [u8; TAG_LEN],
}

impl Cookie {
    /// Bytes in a message.
    pub const LEN: usize = 8 + TAG_LEN;

    /// Placeholder for the cookie in a Registration without one.
    pub const NONE: Cookie = Cookie {
        issued: Instant::ZERO,
        proof: [0; TAG_LEN],
    };

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.issued.as_nanos().to_be_bytes());
        out.extend(self.proof);
    }

    fn decode(input: &mut Input<'_>) -> Option<Self> {
        Some(Cookie {
            issued: Instant::from_nanos(input.read_u64()?),
            proof: input.read_array()?,
        })
    }
}

/// Instructions on how to report: everything that the broker has to say to an agent, in full each
/// time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// Token to be repeated in every Update: proves that the agent receives at its address.
    pub token: u64,
    /// Time between two Updates, [`MIN_INTERVAL`] to [`MAX_INTERVAL`], in milliseconds.
    pub interval: Duration,
    /// Number of intervals without a further Control after which an alert ends by itself, from 1.
    pub lease: u8,
    /// Time without any message after which the broker is gone, in whole seconds from 1.
    pub silence: Duration,
    /// True if the agent is to send an Update at once.
    pub wants_update: bool,
    /// True if no member is at the location, so that the loads are of no use.
    pub location_unknown: bool,
    /// Controls of the servers, one for each, in the order of the Registration.
    pub servers: Vec<ServerControl>,
}

/// Instructions of the broker about one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerControl {
    /// True if the server is under a load alert: it should send its clients back to the broker.
    pub alert: bool,
    /// True if there is no such group or member: what the agent says of the server is of no use.
    pub unknown: bool,
}

const WANTS_UPDATE: u8 = 1;
const LOCATION_UNKNOWN: u8 = 2;
const ALERT: u8 = 1;
const UNKNOWN: u8 = 2;

impl Control {
    /// Returns the time that an alert lasts without a further Control.
    pub fn lease_time(&self) -> Duration {
        self.interval * u32::from(self.lease)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        out.extend(self.token.to_be_bytes());
        out.extend((self.interval.as_millis() as u32).to_be_bytes());
        out.push(self.lease);
        out.extend((self.silence.as_secs() as u16).to_be_bytes());
        let wants_update = bit(self.wants_update, WANTS_UPDATE);
        out.push(wants_update | bit(self.location_unknown, LOCATION_UNKNOWN));
        out.push(self.servers.len() as u8);
        let server =
            |server: &ServerControl| bit(server.alert, ALERT) | bit(server.unknown, UNKNOWN);
        out.extend(self.servers.iter().map(server));
    }

    fn decode(input: &mut Input<'_>) -> Option<Self> {
        let token = input.read_u64()?;
        let interval = Duration::from_millis(input.read_u32()?.into());
        let lease = input.read_u8()?;
        let silence = Duration::from_secs(input.read_u16()?.into());
        let flags = input.read_u8()?;
        let server = |byte: &u8| {
            (byte & !(ALERT | UNKNOWN) == 0).then_some(ServerControl {
                alert: byte & ALERT != 0,
                unknown: byte & UNKNOWN != 0,
            })
        };
        let servers: Vec<_> = input.bytes()?.iter().map(server).collect::<Option<_>>()?;
        let is_valid = (MIN_INTERVAL..=MAX_INTERVAL).contains(&interval)
            && lease > 0
            && !silence.is_zero()
            && flags & !(WANTS_UPDATE | LOCATION_UNKNOWN) == 0
            && servers.len() <= MAX_SERVERS;
        is_valid.then_some(Control {
            token,
            interval,
            lease,
            silence,
            wants_update: flags & WANTS_UPDATE != 0,
            location_unknown: flags & LOCATION_UNKNOWN != 0,
            servers,
        })
    }
}

/// Report of an agent: full state in every message.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The token of the last Control.
    pub token: u64,
    /// The sequence number of the last Control: everything in it is known.
    pub last_control: u64,
    /// Number of the measurement that the loads are from, counted from 1; the same one may be sent
    /// twice.
    pub measurement: u32,
    /// Time since the interval of the measurement ended, in milliseconds.
    pub age: Duration,
    /// States of the servers, one for each, in the order of the Registration.
    pub servers: Vec<ServerState>,
    /// At most [`MAX_LOADS`], each id once. The numbers are as they were sent:
    /// whoever stores them must refuse those that no load may have.
    pub loads: Vec<(LoadId, f32)>,
}

impl Update {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.token.to_be_bytes());
        out.extend(self.last_control.to_be_bytes());
        out.extend(self.measurement.to_be_bytes());
        let age = u32::try_from(self.age.as_millis()).unwrap_or(u32::MAX);
        out.extend(age.to_be_bytes());
        out.push(self.servers.len() as u8);
        out.extend(self.servers.iter().map(|&state| state as u8));
        out.push(self.loads.len() as u8);
        for (id, value) in &self.loads {
            out.extend(id.0.to_be_bytes());
            out.extend(value.to_bits().to_be_bytes());
        }
    }

    fn decode(input: &mut Input<'_>) -> Option<Self> {
        let (token, heard, measurement) = (input.read_u64()?, input.read_u64()?, input.read_u32()?);
        let age = Duration::from_millis(input.read_u32()?.into());
        let state = |byte: &u8| match byte {
            0 => Some(ServerState::Up),
            1 => Some(ServerState::Drain),
            2 => Some(ServerState::Down),
            _ => None,
        };
        let servers: Vec<_> = input.bytes()?.iter().map(state).collect::<Option<_>>()?;
        let count = usize::from(input.read_u8()?);
        if servers.len() > MAX_SERVERS || count > MAX_LOADS {
            return None;
        }
        let mut loads: Vec<(LoadId, f32)> = Vec::with_capacity(count);
        for _ in 0..count {
            let (id, value) = (LoadId(input.read_u32()?), f32::from_bits(input.read_u32()?));
            if loads.iter().any(|(known, _)| *known == id) {
                return None;
            }
            loads.push((id, value));
        }
        Some(Update {
            token,
            last_control: heard,
            measurement,
            age,
            servers,
            loads,
        })
    }
}

/// Body of a message, after its header.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Registration with the cookie of the last Challenge, or [`Cookie::NONE`].
    Registration(Cookie, Registration),
    /// A report.
    Update(Update),
    /// Sign off.
    Stop,
    /// Prove the address.
    Challenge(Cookie),
    /// The registration is accepted.
    Acknowledgement(Control),
    /// Instructions on how to report from now on.
    Query(Control),
    /// The registration has ended.
    StopAcknowledgement,
    /// The registration is not known.
    RegisterAgain,
}

impl Body {
    /// Returns the kind of the message that has this body.
    pub fn kind(&self) -> Kind {
        match self {
            Body::Registration(..) => Kind::Registration,
            Body::Update(_) => Kind::Update,
            Body::Stop => Kind::Stop,
            Body::Challenge(_) => Kind::Challenge,
            Body::Acknowledgement(_) => Kind::Acknowledgement,
            Body::Query(_) => Kind::Query,
            Body::StopAcknowledgement => Kind::StopAcknowledgement,
            Body::RegisterAgain => Kind::RegisterAgain,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Body::Registration(cookie, registration) => {
                cookie.encode(out);
                registration.encode(out);
            }
            Body::Update(update) => update.encode(out),
            Body::Challenge(cookie) => cookie.encode(out),
            Body::Acknowledgement(control) | Body::Query(control) => control.encode(out),
            Body::Stop | Body::StopAcknowledgement | Body::RegisterAgain => {}
        }
    }

    fn decode(kind: Kind, bytes: &[u8]) -> Option<Self> {
        let mut input = Input(bytes);
        let body = match kind {
            Kind::Registration => {
                let cookie = Cookie::decode(&mut input)?;
                Body::Registration(cookie, Registration::decode(&mut input)?)
            }
            Kind::Update => Body::Update(Update::decode(&mut input)?),
            Kind::Stop => Body::Stop,
            Kind::Challenge => Body::Challenge(Cookie::decode(&mut input)?),
            Kind::Acknowledgement => Body::Acknowledgement(Control::decode(&mut input)?),
            Kind::Query => Body::Query(Control::decode(&mut input)?),
            Kind::StopAcknowledgement => Body::StopAcknowledgement,
            Kind::RegisterAgain => Body::RegisterAgain,
        };
        input.0.is_empty().then_some(body)
    }
}

/// A message, authenticated with `key`.
pub fn seal_message(nonce: u64, identifier: u64, sequence: u64, body: &Body, key: &Key) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    out.extend(MAGIC);
    out.extend([VERSION, body.kind() as u8]);
    out.extend(key.id().to_be_bytes());
    out.extend(nonce.to_be_bytes());
    out.extend(identifier.to_be_bytes());
    out.extend(sequence.to_be_bytes());
    body.encode(&mut out);
    key.sign_message(&mut out);
    out
}

/// Reason why bytes are not a message. No such bytes change anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Invalid {
    /// Shorter than any message.
    #[error("the datagram is truncated")]
    Truncated,
    /// Longer than any message.
    #[error("the datagram is too long")]
    Oversized,
    /// Bytes that do not begin like a message.
    #[error("the datagram is not a message of this protocol")]
    Magic,
    /// Message of another version.
    #[error("the datagram has another version of the protocol")]
    Version,
    /// The kind is unknown, or goes the other way.
    #[error("the datagram is of a kind that is not accepted from this side")]
    Kind,
    /// Authenticated by a key that is not known here.
    #[error("the datagram has an unknown key")]
    Key,
    /// Changed on its way, or made with another secret.
    #[error("the datagram has a wrong authentication code")]
    #[strum(to_string = "mac")]
    Tag,
    /// Authentic, but its body is not what this version says.
    #[error("the datagram is malformed")]
    Malformed,
}

/// The header of a message, not authenticated yet: enough to find out whose it is.
pub fn peek_header(datagram: &[u8]) -> Result<Header, Invalid> {
    if datagram.len() > MAX_DATAGRAM {
        return Err(Invalid::Oversized);
    }
    if datagram.first_chunk().is_some_and(|magic| *magic != MAGIC) {
        return Err(Invalid::Magic);
    }
    // Another version may have another shortest message.
    if datagram
        .get(MAGIC.len())
        .is_some_and(|&version| version != VERSION)
    {
        return Err(Invalid::Version);
    }
    if datagram.len() < MIN_DATAGRAM {
        return Err(Invalid::Truncated);
    }
    let mut input = Input(datagram.get(MAGIC.len() + 1..).unwrap_or_default());
    let mut header = || {
        let kind = input.read_u8()?;
        let known = Kind::from_repr(kind);
        let (key, nonce) = (input.read_u16()?, input.read_u64()?);
        let (identifier, sequence) = (input.read_u64()?, input.read_u64()?);
        Some(known.map(|kind| Header {
            kind,
            key,
            nonce,
            identifier,
            sequence,
        }))
    };
    header().ok_or(Invalid::Truncated)?.ok_or(Invalid::Kind)
}

/// Authenticates and decodes a message. `to_broker` is the way that it came.
pub fn open_message(
    datagram: &[u8],
    keys: &Keys,
    to_broker: bool,
) -> Result<(Header, Body), Invalid> {
    let header = peek_header(datagram)?;
    if header.kind.is_from_agent() != to_broker {
        return Err(Invalid::Kind);
    }
    let key = keys.get(header.key).ok_or(Invalid::Key)?;
    let (message, tag) = datagram.split_last_chunk().ok_or(Invalid::Truncated)?;
    if !key.is_tag(&[message], tag) {
        return Err(Invalid::Tag);
    }
    let body = message.get(HEADER_LEN..).ok_or(Invalid::Truncated)?;
    let body = Body::decode(header.kind, body).ok_or(Invalid::Malformed)?;
    Ok((header, body))
}

fn is_location(name: &str) -> bool {
    (1..=MAX_LOCATION_LEN).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// Returns true if a text may be a name, as in the configuration: names end up in metrics and logs.
pub fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=MAX_NAME_LEN).contains(&name.len()) && name.bytes().all(is_allowed)
}

fn is_host(host: &str) -> bool {
    let in_name =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    match host.parse::<IpAddr>() {
        Ok(ip) => is_of_one(ip),
        Err(_) => host.len() <= MAX_HOST_LEN && host.bytes().all(in_name),
    }
}

/// Returns true if an address can be a server's: `0.0.0.0` would be whoever connects to it.
fn is_of_one(ip: IpAddr) -> bool {
    let is_broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(ip.is_unspecified() || ip.is_multicast() || is_broadcast)
}
