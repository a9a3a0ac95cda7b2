//! The types that keys can have: how each is read, shown and described.

use std::fmt::Write as _;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_core::group::Granularity;
use evenkeel_core::load::{LoadId, ParseLoadIdError};
use evenkeel_core::member::Weight;
use evenkeel_core::strategy::{self, Param, Values, least_loaded};
use toml::de::DeValue;

use super::agent::Address;
use super::document::{Entry, Item, Report, entries, quote, similar};
use super::foreign;
use super::{AccessLog, MemberConfig, Orca, OrcaService, Protocol};

/// A place in the configuration that one key fills.
///
/// [`Field::read`] changes it only to a valid value; anything else goes to the report.
pub(super) trait Field {
    /// Takes the value of `item`.
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>);

    /// The present value as it would stand in the file; `None` where nothing would.
    fn show(&self, limits: &Limits) -> Option<String>;

    /// What may stand in the file.
    fn allowed(&self, limits: &Limits) -> String;
}

/// What narrows a type down.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limits {
    /// Nothing does.
    None,
    /// Shortest and longest time.
    Time(Duration, Duration),
    /// Smallest and largest number, and the unit it counts.
    Number(f64, f64, &'static str),
    /// Smallest and largest size in bytes.
    Bytes(u64, u64),
    /// What a text must be, and whether it is.
    Text(&'static str, fn(&str) -> bool),
}

impl Field for bool {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        match item.value {
            DeValue::Boolean(flag) => *self = *flag,
            _ => report.wrong(item, WRONG_TYPE, self.allowed(limits)),
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        Some(self.to_string())
    }

    fn allowed(&self, _: &Limits) -> String {
        "true or false".into()
    }
}

pub(super) const WRONG_TYPE: &str = "wrong type";
pub(super) const OUT_OF_RANGE: &str = "out of range";

/// Units of time and how many nanoseconds they have.
const TIME_UNITS: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

impl Field for Duration {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::String(text) = item.value else {
            let message = if item.number().is_some() {
                "a time needs a unit"
            } else {
                WRONG_TYPE
            };
            return report.wrong(item, message, self.allowed(limits));
        };
        let Some(nanos) = amount(text, &TIME_UNITS) else {
            let allowed = format!("{}, with one of the units {UNITS}", self.allowed(limits));
            return report.wrong(item, &no_time(text), allowed);
        };
        let time = Duration::from_nanos(nanos);
        if let Limits::Time(min, max) = limits
            && !(*min..=*max).contains(&time)
        {
            return report.wrong(item, OUT_OF_RANGE, self.allowed(limits));
        }
        *self = time;
    }

    fn show(&self, _: &Limits) -> Option<String> {
        Some(quote(&time(*self)))
    }

    fn allowed(&self, limits: &Limits) -> String {
        let (min, max) = match limits {
            Limits::Time(min, max) => (*min, *max),
            _ => (Duration::ZERO, Duration::MAX),
        };
        format!("a time from {:?} to {:?}", time(min), time(max))
    }
}

const UNITS: &str = "ns, us, ms, s, m (minutes), h and d";

/// Why a text is no time.
fn no_time(text: &str) -> String {
    let text = text.trim();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let (has_number, unit) = (text.len() > unit.len(), unit.trim());
    let is_known = TIME_UNITS.iter().any(|(known, _)| *known == unit);
    match foreign::unit(unit) {
        _ if !has_number || is_known => "not a time".into(),
        Some(ours) => format!("unknown unit {}, did you mean {ours:?}?", quote(unit)),
        None if unit.is_empty() => "a time needs a unit".into(),
        None => format!("unknown unit {}", quote(unit)),
    }
}

/// A duration with the largest unit in which it is whole.
pub(super) fn time(duration: Duration) -> String {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    in_largest_unit(nanos, &TIME_UNITS, "0s")
}

fn in_largest_unit(amount: u64, units: &[(&str, u64)], zero: &str) -> String {
    match units.iter().find(|(_, size)| amount.is_multiple_of(*size)) {
        Some((unit, size)) if amount > 0 => format!("{}{unit}", amount / size),
        _ => zero.into(),
    }
}

/// `text` as a number directly followed by one of `units`, in the smallest of them;
/// `None` if it is not, or too large.
fn amount(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end)?;
    let unit = unit.trim_start();
    let (_, size) = units.iter().find(|(name, _)| *name == unit)?;
    match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(*size),
        Err(_) => {
            let amount = (number.parse::<f64>().ok()? * *size as f64).round();
            // 2^63 and more is no sensible time or size.
            (0.0..9.2e18).contains(&amount).then_some(amount as u64)
        }
    }
}

/// Units of size and how many bytes they have.
const SIZE_UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Reads a whole number of things, or of bytes.
fn whole(item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) -> Option<u64> {
    let (min, max) = match limits {
        Limits::Number(min, max, _) => (*min as u64, *max as u64),
        Limits::Bytes(min, max) => (*min, *max),
        _ => (0, u64::MAX),
    };
    let bytes = matches!(limits, Limits::Bytes(..));
    let found = match item.value {
        DeValue::String(text) if bytes => amount(text, &SIZE_UNITS),
        // Beyond 64 bits is out of range, not of the wrong type.
        DeValue::Integer(_) => Some(
            item.integer()
                .map_or(u64::MAX, |n| u64::try_from(n).unwrap_or(u64::MAX)),
        ),
        _ => None,
    };
    match found {
        Some(number) if (min..=max).contains(&number) => return Some(number),
        Some(_) => report.wrong(item, OUT_OF_RANGE, whole_allowed(limits)),
        None if bytes && matches!(item.value, DeValue::String(_)) => {
            report.wrong(item, "not a size", whole_allowed(limits));
        }
        None => report.wrong(item, WRONG_TYPE, whole_allowed(limits)),
    }
    None
}

fn whole_allowed(limits: &Limits) -> String {
    match limits {
        Limits::Bytes(min, max) => format!(
            "a size from {:?} to {:?}, or a number of bytes",
            in_largest_unit(*min, &SIZE_UNITS, "0B"),
            in_largest_unit(*max, &SIZE_UNITS, "0B")
        ),
        Limits::Number(min, max, unit) => {
            let unit = if unit.is_empty() {
                ""
            } else {
                &format!(" ({unit})")
            };
            format!("a whole number from {min} to {max}{unit}")
        }
        _ => "a whole number".into(),
    }
}

macro_rules! whole_field {
    ($($type:ty),*) => {$(
        impl Field for $type {
            fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
                if let Some(number) = whole(item, limits, report) {
                    match number.try_into() {
                        Ok(number) => *self = number,
                        Err(_) => report.wrong(item, OUT_OF_RANGE, self.allowed(limits)),
                    }
                }
            }

            fn show(&self, limits: &Limits) -> Option<String> {
                // What is required has no default.
                if matches!(limits, Limits::Number(min, ..) if (*self as f64) < *min) {
                    return None;
                }
                Some(match limits {
                    Limits::Bytes(..) => quote(&in_largest_unit(*self as u64, &SIZE_UNITS, "0B")),
                    _ => self.to_string(),
                })
            }

            fn allowed(&self, limits: &Limits) -> String {
                whole_allowed(limits)
            }
        }
    )*};
}
whole_field!(u16, u32, usize);

impl Field for f32 {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let Some(number) = item.number() else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        match limits {
            Limits::Number(min, max, _) if !(*min..=*max).contains(&number) => {
                report.wrong(item, OUT_OF_RANGE, self.allowed(limits));
            }
            _ => *self = number as f32,
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        Some(self.to_string())
    }

    fn allowed(&self, limits: &Limits) -> String {
        match limits {
            Limits::Number(min, max, _) => format!("a number from {min} to {max}"),
            _ => "a number".into(),
        }
    }
}

impl Field for Weight {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        match item.number().map(Weight::new) {
            Some(Ok(weight)) => *self = weight,
            Some(Err(_)) => report.wrong(item, OUT_OF_RANGE, self.allowed(limits)),
            None => report.wrong(item, WRONG_TYPE, self.allowed(limits)),
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        Some(self.get().to_string())
    }

    fn allowed(&self, _: &Limits) -> String {
        "a number from 0 to 1000".into()
    }
}

impl Field for String {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::String(text) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        match limits {
            Limits::Text(_, valid) if !valid(text) => {
                report.wrong(item, "not valid here", self.allowed(limits));
            }
            _ => *self = text.to_string(),
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        (!self.is_empty()).then(|| quote(self))
    }

    fn allowed(&self, limits: &Limits) -> String {
        match limits {
            Limits::Text(what, _) => (*what).into(),
            _ => "a text".into(),
        }
    }
}

/// Absent, or `false`, is `None`. The latter is there to take back a default.
impl<F: Field + Blank> Field for Option<F> {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        if matches!(item.value, DeValue::Boolean(false)) {
            *self = None;
            return;
        }
        let before = report.problems();
        let mut value = self.take().unwrap_or_else(F::blank);
        value.read(item, limits, report);
        *self = (report.problems() == before).then_some(value);
    }

    fn show(&self, limits: &Limits) -> Option<String> {
        self.as_ref().and_then(|value| value.show(limits))
    }

    fn allowed(&self, limits: &Limits) -> String {
        format!("{}, or false", F::blank().allowed(limits))
    }
}

/// A value to read into where there is none yet.
pub(super) trait Blank {
    /// That value.
    fn blank() -> Self;
}

macro_rules! blank {
    ($($type:ty),*) => {$(
        impl Blank for $type {
            fn blank() -> Self {
                <$type>::default()
            }
        }
    )*};
}
blank!(
    String,
    u16,
    u32,
    usize,
    f32,
    PathBuf,
    Duration,
    Orca,
    OrcaService,
    Address
);

impl Blank for Weight {
    fn blank() -> Self {
        Weight::ONE
    }
}

impl Field for PathBuf {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        match item.value {
            DeValue::String(text) if !text.is_empty() && !text.contains('\0') => {
                *self = PathBuf::from(&**text);
            }
            DeValue::String(_) => report.wrong(item, "not a path", self.allowed(limits)),
            _ => report.wrong(item, WRONG_TYPE, self.allowed(limits)),
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        // Nothing is no path, but what stands for one that must be given.
        let is_one = !self.as_os_str().is_empty();
        is_one.then(|| quote(&self.display().to_string()))
    }

    fn allowed(&self, _: &Limits) -> String {
        "the path of a file".into()
    }
}

impl Field for Option<AccessLog> {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        match item.value {
            DeValue::String(text) if text == "off" => *self = None,
            DeValue::String(text) if text == "stdout" => *self = Some(AccessLog::Stdout),
            DeValue::String(text) if text.contains('/') && !text.contains('\0') => {
                *self = Some(AccessLog::File(PathBuf::from(&**text)));
            }
            DeValue::String(_) => report.wrong(item, "unknown name", self.allowed(limits)),
            _ => report.wrong(item, WRONG_TYPE, self.allowed(limits)),
        }
    }

    fn show(&self, limits: &Limits) -> Option<String> {
        match self {
            None => Some(quote("off")),
            Some(AccessLog::Stdout) => Some(quote("stdout")),
            Some(AccessLog::File(path)) => path.show(limits),
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        r#""off", "stdout", or the path of a file with at least one "/" in it"#.into()
    }
}

/// Types that are one of a few names.
macro_rules! choice_field {
    ($type:ty, $($name:literal => $value:pat = $make:expr),*) => {
        impl $crate::fields::Field for $type {
            fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
                use $crate::document::similar;
                use $crate::fields::{WRONG_TYPE, unknown};
                let allowed = self.allowed(limits);
                match item.value {
                    $(DeValue::String(text) if text == $name => *self = $make,)*
                    DeValue::String(text) => {
                        let names = [$($name),*];
                        // Only the names of protocols have both.
                        let theirs = match names.contains(&"tcp") && names.contains(&"http") {
                            true => $crate::foreign::protocol(text),
                            false => None,
                        };
                        let message = match theirs {
                            Some(theirs) => theirs.to_owned(),
                            None => unknown("name", similar(text, names.into_iter())),
                        };
                        report.wrong(item, &message, allowed);
                    }
                    _ => report.wrong(item, WRONG_TYPE, allowed),
                }
            }

            fn show(&self, _: &Limits) -> Option<String> {
                Some(format!("{:?}", match self { $($value => $name),* }))
            }

            fn allowed(&self, _: &Limits) -> String {
                [$(concat!("\"", $name, "\"")),*].join(", ")
            }
        }
    };
}
pub(super) use choice_field;
choice_field!(Protocol,
    "http" => Protocol::Http = Protocol::Http,
    "tcp" => Protocol::Tcp = Protocol::Tcp);
choice_field!(Granularity,
    "per_session" => Granularity::PerSession = Granularity::PerSession,
    "per_request" => Granularity::PerRequest = Granularity::PerRequest,
    "on_demand" => Granularity::OnDemand = Granularity::OnDemand);

/// "unknown key, did you mean …?"
pub(super) fn unknown(what: &str, similar: Option<String>) -> String {
    match similar {
        Some(similar) => format!("unknown {what}, did you mean {similar}?"),
        None => format!("unknown {what}"),
    }
}

impl Field for LoadId {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let id = match item.value {
            DeValue::String(text) => text.parse().ok(),
            DeValue::Integer(_) => item.integer().and_then(|id| id.try_into().ok()).map(LoadId),
            _ => return report.wrong(item, WRONG_TYPE, self.allowed(limits)),
        };
        match id {
            Some(id) => *self = id,
            None => report.wrong(item, "unknown load", self.allowed(limits)),
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        Some(quote(&self.to_string()))
    }

    fn allowed(&self, _: &Limits) -> String {
        let text = ParseLoadIdError.to_string();
        text.trim_start_matches("expected ").into()
    }
}

/// Addresses to listen on: one, or a list.
impl Field for Vec<SocketAddr> {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let mut addresses = Vec::new();
        if is_empty_list(item) {
            return report.wrong(item, "no address", self.allowed(limits));
        }
        one_or_each(item, report, |item, report| {
            addresses.extend(socket_address(item, report));
        });
        *self = addresses;
    }

    fn show(&self, _: &Limits) -> Option<String> {
        let texts: Vec<_> = self
            .iter()
            .map(|address| quote(&address.to_string()))
            .collect();
        (!texts.is_empty()).then(|| format!("[{}]", texts.join(", ")))
    }

    fn allowed(&self, _: &Limits) -> String {
        format!("{LISTEN}, or a list of such")
    }
}

impl Field for SocketAddr {
    fn read(&mut self, item: &Item<'_>, _: &Limits, report: &mut Report<'_>) {
        if let Some(address) = socket_address(item, report) {
            *self = address;
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        Some(quote(&self.to_string()))
    }

    fn allowed(&self, _: &Limits) -> String {
        LISTEN.into()
    }
}

const LISTEN: &str = r#"an IP address with a port, as in "127.0.0.1:8080", "0.0.0.0:8080" (all IPv4 addresses) or "[::]:8080" (all addresses)"#;

fn socket_address(item: &Item<'_>, report: &mut Report<'_>) -> Option<SocketAddr> {
    let message = match item.value {
        DeValue::String(text) => match text.trim().parse() {
            Ok(address) => return Some(address),
            Err(_) => "not an address",
        },
        _ => WRONG_TYPE,
    };
    report.wrong(item, message, LISTEN.into());
    None
}

/// Whether there is a list with nothing in it.
pub(super) fn is_empty_list(item: &Item<'_>) -> bool {
    matches!(item.value, DeValue::Array(list) if list.is_empty())
}

/// Gives `one` what stands there, or each element if that is a list.
pub(super) fn one_or_each(
    item: &Item<'_>,
    report: &mut Report<'_>,
    mut one: impl FnMut(&Item<'_>, &mut Report<'_>),
) {
    match item.value {
        DeValue::Array(list) => {
            for element in item.elements(list) {
                one(&element, report);
            }
        }
        _ => one(item, report),
    }
}

/// What an address of a host and a port may be.
pub(super) const ADDRESS: &str = r#"a host name or IP address with a port from 1 to 65535, as in "10.0.0.1:80", "app.example:80" or "[::1]:80""#;

/// The address of a member.
impl Field for MemberConfig {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::String(text) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        match host_port(text.trim()) {
            Ok((host, port)) => (self.host, self.port) = (host, port),
            Err(message) => report.wrong(item, message, self.allowed(limits)),
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        None
    }

    fn allowed(&self, _: &Limits) -> String {
        ADDRESS.into()
    }
}

/// Host and port of an address.
pub(super) fn host_port(text: &str) -> Result<(String, u16), &'static str> {
    if text.contains("://") {
        return Err("a URL, not an address: only host and port are wanted");
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err("an IPv6 address needs brackets and a port");
    }
    let (host, port) = text.rsplit_once(':').ok_or("the port is missing")?;
    let port = match port.parse::<u16>() {
        Ok(port) if port > 0 && port.to_string().len() == text.len() - host.len() - 1 => port,
        _ => return Err("not a port"),
    };
    let host = match host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        Some(inner) if inner.parse::<Ipv6Addr>().is_ok() => inner,
        Some(_) => return Err("not an IPv6 address between the brackets"),
        None if is_host_name(host) => host,
        None => return Err("not a host name"),
    };
    Ok((host.to_ascii_lowercase(), port))
}

/// Whether `host` is an IPv4 address or a DNS name (RFC 1123, section 2.1; with the
/// underscores that container platforms use).
pub(super) fn is_host_name(host: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let name = host.strip_suffix('.').unwrap_or(host);
    if name.len() > 253 || !name.split('.').all(label) {
        return false;
    }
    // A name whose last label is a number is meant as an IPv4 address.
    let last = name.rsplit('.').next().unwrap_or_default();
    !last.bytes().all(|byte| byte.is_ascii_digit()) || name.parse::<std::net::Ipv4Addr>().is_ok()
}

/// Response codes: a code, a range, or a list of both.
impl Field for Vec<u16> {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let mut codes = Vec::new();
        let one = |item: &Item<'_>, report: &mut Report<'_>| {
            let range = match item.value {
                DeValue::Integer(_) => item.integer().map(|code| (code, code)),
                DeValue::String(text) => match text.split_once('-') {
                    Some((from, to)) => from.trim().parse().ok().zip(to.trim().parse().ok()),
                    None => text.trim().parse().ok().map(|code: i64| (code, code)),
                },
                _ => return report.wrong(item, WRONG_TYPE, CODES.into()),
            };
            match range {
                Some((from, to)) if 100 <= from && from <= to && to <= 599 => {
                    codes.extend((from..=to).filter_map(|code| u16::try_from(code).ok()));
                }
                _ => report.wrong(item, "not a response code", CODES.into()),
            }
        };
        if is_empty_list(item) {
            return report.wrong(item, "no response code", self.allowed(limits));
        }
        one_or_each(item, report, one);
        codes.sort_unstable();
        codes.dedup();
        *self = codes;
    }

    fn show(&self, _: &Limits) -> Option<String> {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for &code in self {
            match ranges.last_mut() {
                Some((_, to)) if *to + 1 == code => *to = code,
                _ => ranges.push((code, code)),
            }
        }
        let texts: Vec<_> = ranges
            .iter()
            .map(|(from, to)| {
                if from == to {
                    from.to_string()
                } else {
                    format!("\"{from}-{to}\"")
                }
            })
            .collect();
        match &texts[..] {
            [] => None,
            [one] => Some(one.clone()),
            more => Some(format!("[{}]", more.join(", "))),
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        format!("{CODES}, or a list of such")
    }
}

const CODES: &str = r#"a response code from 100 to 599, or a range of them as in "200-399""#;

/// A strategy: its name, or a table of its name and parameters.
impl Field for Values {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let (name, params): (Item<'_>, Vec<Entry<'_>>) = match item.value {
            DeValue::String(_) => {
                let (path, span) = (item.path.clone(), item.span.clone());
                let value = item.value;
                (Item { path, span, value }, Vec::new())
            }
            DeValue::Table(table) => {
                let (names, params): (Vec<_>, Vec<_>) = entries(&item.path, table)
                    .into_iter()
                    .partition(|entry| entry.name == "name");
                match names.into_iter().next() {
                    Some(entry) => (entry.item, params),
                    None => {
                        let message = "the name of the strategy is missing".into();
                        let allowed = Some(self.allowed(limits));
                        return report.misplaced(&item.span, &item.path, message, allowed);
                    }
                }
            }
            _ => return report.wrong(item, WRONG_TYPE, self.allowed(limits)),
        };
        let DeValue::String(text) = name.value else {
            return report.wrong(&name, WRONG_TYPE, self.allowed(limits));
        };
        let Some(kind) = strategy::find(text) else {
            let names = strategy::REGISTRY.iter().map(|kind| kind.name);
            let theirs = foreign::strategy(text).map(quote);
            let message = unknown("strategy", theirs.or_else(|| similar(text, names)));
            return report.wrong(&name, &message, self.allowed(limits));
        };
        let mut values = Values::defaults(kind);
        for entry in params {
            let Some(param) = kind.params.iter().find(|param| param.name == entry.name) else {
                let names = || kind.params.iter().map(|param| param.name);
                let what = format!("parameter of strategy {:?}", kind.name);
                let message = unknown(&what, similar(entry.name, names()));
                let allowed = match names().collect::<Vec<_>>().join(", ") {
                    none if none.is_empty() => "no parameters".into(),
                    names => names,
                };
                let path = &entry.item.path;
                report.misplaced(&entry.key_span, path, message, Some(allowed));
                continue;
            };
            match param_value(param, &entry.item).map(|value| values.set(param.name, value)) {
                Some(Ok(())) => {}
                Some(Err(_)) => report.wrong(&entry.item, OUT_OF_RANGE, param_allowed(param)),
                None => report.wrong(&entry.item, WRONG_TYPE, param_allowed(param)),
            }
        }
        if let Err(error) = least_loaded::check(&values) {
            report.problem(&item.span, &item.path, error.to_string(), None);
        }
        *self = values;
    }

    fn show(&self, _: &Limits) -> Option<String> {
        let kind = self.kind();
        let mut params = String::new();
        for param in kind.params {
            let value = self.get(param.name);
            if value != param.default {
                // Writing to a string cannot fail.
                let _ = write!(params, ", {} = {value}", param.name);
            }
        }
        Some(if params.is_empty() {
            quote(kind.name)
        } else {
            format!("{{ name = {:?}{params} }}", kind.name)
        })
    }

    fn allowed(&self, _: &Limits) -> String {
        let names: Vec<_> = strategy::REGISTRY
            .iter()
            .map(|kind| quote(kind.name))
            .collect();
        let names = names.join(", ");
        format!("one of {names}, or a table with one of these as `name` and its parameters")
    }
}

/// A parameter's number, or a time in the parameter's unit.
fn param_value(param: &Param, item: &Item<'_>) -> Option<f64> {
    let DeValue::String(text) = item.value else {
        return item.number();
    };
    let (_, size) = TIME_UNITS.iter().find(|(unit, _)| *unit == param.unit)?;
    Some(amount(text, &TIME_UNITS)? as f64 / *size as f64)
}

/// What a parameter of a strategy may be.
pub(super) fn param_allowed(param: &Param) -> String {
    let what = if param.integer {
        "a whole number"
    } else {
        "a number"
    };
    let unit = if param.unit.is_empty() {
        String::new()
    } else {
        format!(" ({})", param.unit)
    };
    format!("{what} from {} to {}{unit}", param.min, param.max)
}
