//! Types of keys: how each type is read, shown and described.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::address::Address as Listen;
use toml::de::DeValue;

use super::address::{Address, ORIGIN, Origin, UNIX, host_port, unix_path};
use super::amount::{nanos_of, parse_duration, parse_size, show_duration, show_size, split_unit};
use super::document::{Item, entries, quote};
use super::errors::SourcePosition;
pub(crate) use super::errors::WRONG_TYPE;
use super::foreign;
use super::networks::{Network, Networks, Proxies, Proxy};
use super::report::Report;
use super::similar::{similar, unknown_message};
use super::variables;

/// A place in the configuration that one key fills.
///
/// [`Field::read`] changes it only to a valid value; anything else goes to the report.
pub(crate) trait Field {
    /// Takes the value of `item`.
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>);

    /// The present value as it would stand in the file; `None` where nothing would.
    fn show(&self, _: &Limits) -> Option<String> {
        None
    }

    /// Describes the values that are allowed in the file.
    fn allowed(&self, limits: &Limits) -> String;
}

/// Limits of a type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limits {
    /// No limits.
    Any,
    /// Shortest and longest time.
    Time(Duration, Duration),
    /// Smallest and largest number, and the unit it counts.
    Number(f64, f64, &'static str),
    /// Smallest and largest size in bytes.
    Bytes(u64, u64),
    /// Texts that may be.
    Text(Texts),
    /// Check of the names in a table: the error of a name, and the allowed names.
    Names(fn(&str) -> Option<(String, String)>),
    /// An address may lack its host.
    HostOptional,
    /// An address may be a Unix socket.
    UnixToo,
}

/// Description of allowed texts, and the check of a text.
pub(crate) type Texts = (&'static str, fn(&str) -> bool);

/// A value to read into where there is none yet.
pub(crate) trait Blank {
    /// Returns the blank value.
    fn blank() -> Self;
}

/// Types whose default is a value to read into.
macro_rules! blank {
    ($($type:ty),*) => {$(
        impl $crate::schema::field::Blank for $type {
            fn blank() -> Self {
                <$type>::default()
            }
        }
    )*};
}
pub(crate) use blank;
blank!(
    u16, u32, usize, f32, String, PathBuf, FileName, Duration, Address, Networks, Proxies
);

pub(crate) const OUT_OF_RANGE: &str = "out of range";

/// Reads a value from `item` alone; `None` if it goes to the report.
pub(crate) fn read_one<F: Field + Blank>(
    item: &Item<'_>,
    limits: &Limits,
    report: &mut Report<'_>,
) -> Option<F> {
    let (before, mut value) = (report.problem_count(), F::blank());
    read_value(&mut value, item, limits, report);
    (report.problem_count() == before).then_some(value)
}

/// Takes the value of `item`. A text that is nothing but a variable is also what it says, a number or
/// true or false, where `field` takes no text like it.
pub(crate) fn read_value(
    field: &mut dyn Field,
    item: &Item<'_>,
    limits: &Limits,
    report: &mut Report<'_>,
) {
    let before = report.mark();
    field.read(item, limits, report);
    let Some(value) = variables::scalar(item, report).filter(|_| report.mark() != before) else {
        return;
    };
    report.forget_since(before);
    let item = Item {
        path: item.path.clone(),
        span: item.span.clone(),
        value: &value,
    };
    field.read(&item, limits, report);
}

/// Fills `field` with what `parse` makes of a text.
pub(crate) fn read_text<F: Field, E: Display>(
    field: &mut F,
    item: &Item<'_>,
    limits: &Limits,
    report: &mut Report<'_>,
    parse: impl FnOnce(&str) -> Result<F, E>,
) {
    match item.value {
        DeValue::String(text) => match parse(text) {
            Ok(value) => *field = value,
            Err(error) => report.wrong(item, &error.to_string(), field.allowed(limits)),
        },
        _ => report.wrong(item, WRONG_TYPE, field.allowed(limits)),
    }
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

impl Field for Duration {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let allowed = self.allowed(limits);
        let DeValue::String(text) = item.value else {
            let is_number = item.number().is_some();
            let message = if is_number { NO_UNIT } else { WRONG_TYPE };
            return report.wrong(item, message, allowed);
        };
        match (parse_duration(text), limits) {
            (None, _) => {
                let allowed = format!("{allowed}, with one of the units {UNITS}");
                report.wrong(item, &no_time(text), allowed);
            }
            (Some(time), Limits::Time(min, max)) if !(*min..=*max).contains(&time) => {
                report.wrong(item, OUT_OF_RANGE, allowed);
            }
            (Some(time), _) => *self = time,
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        Some(quote(&show_duration(*self)))
    }

    fn allowed(&self, limits: &Limits) -> String {
        let (min, max) = match limits {
            Limits::Time(min, max) => (*min, *max),
            _ => (Duration::ZERO, Duration::MAX),
        };
        let (min, max) = (show_duration(min), show_duration(max));
        format!("a time from {min:?} to {max:?}")
    }
}

const NO_UNIT: &str = "a time needs a unit";
const UNITS: &str = "ns, us, ms, s, m (minutes), h and d";

/// Reason why a text is no time.
fn no_time(text: &str) -> String {
    let (number, unit) = split_unit(text);
    match foreign::unit(unit) {
        _ if number.is_empty() || nanos_of(unit).is_some() => "not a time".into(),
        Some(ours) => format!("unknown unit {}, did you mean {ours:?}?", quote(unit)),
        None if unit.is_empty() => NO_UNIT.into(),
        None => format!("unknown unit {}", quote(unit)),
    }
}

/// Reads a whole number of things, or of bytes.
fn whole(item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) -> Option<u64> {
    let (min, max) = match limits {
        Limits::Number(min, max, _) => (*min as u64, *max as u64),
        Limits::Bytes(min, max) => (*min, *max),
        _ => (0, u64::MAX),
    };
    let is_size = matches!(limits, Limits::Bytes(..));
    let found = match item.value {
        DeValue::String(text) if is_size => parse_size(text).ok_or("not a size"),
        // Beyond 64 bits is out of range, not of the wrong type.
        DeValue::Integer(_) => {
            let number = item.integer().and_then(|number| u64::try_from(number).ok());
            Ok(number.unwrap_or(u64::MAX))
        }
        _ => Err(WRONG_TYPE),
    };
    let in_range = |number: &u64| (min..=max).contains(number);
    match found.and_then(|number| Some(number).filter(in_range).ok_or(OUT_OF_RANGE)) {
        Ok(number) => Some(number),
        Err(message) => {
            report.wrong(item, message, whole_allowed(limits));
            None
        }
    }
}

fn whole_allowed(limits: &Limits) -> String {
    match limits {
        Limits::Bytes(min, max) => {
            let (min, max) = (show_size(*min), show_size(*max));
            format!("a size from {min:?} to {max:?}, or a number of bytes")
        }
        Limits::Number(min, max, "") => format!("a whole number from {min} to {max}"),
        Limits::Number(min, max, unit) => format!("a whole number from {min} to {max} ({unit})"),
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
                match limits {
                    // What is required has no default.
                    Limits::Number(min, ..) if (*self as f64) < *min => None,
                    Limits::Bytes(..) => Some(quote(&show_size(*self as u64))),
                    _ => Some(self.to_string()),
                }
            }

            fn allowed(&self, limits: &Limits) -> String {
                whole_allowed(limits)
            }
        }
    )*};
}
whole_field!(u16, u32, usize);

macro_rules! number_field {
    ($($type:ty),*) => {$(
        impl Field for $type {
            fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
                match (item.number(), limits) {
                    (None, _) => report.wrong(item, WRONG_TYPE, self.allowed(limits)),
                    (Some(number), Limits::Number(min, max, _)) if !(*min..=*max).contains(&number) => {
                        report.wrong(item, OUT_OF_RANGE, self.allowed(limits));
                    }
                    (Some(number), _) => *self = number as $type,
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
    )*};
}
number_field!(f32, f64);

impl Field for String {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        read_text(self, item, limits, report, |text| match limits {
            Limits::Text((_, valid)) if !valid(text) => Err("not valid here"),
            _ => Ok(text.to_owned()),
        });
    }

    fn show(&self, _: &Limits) -> Option<String> {
        (!self.is_empty()).then(|| quote(self))
    }

    fn allowed(&self, limits: &Limits) -> String {
        match limits {
            Limits::Text((what, _)) => (*what).into(),
            _ => "a text".into(),
        }
    }
}

/// Texts by names of the user's choice.
impl Field for BTreeMap<String, String> {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::Table(table) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        self.clear();
        for entry in entries(&item.path, table) {
            if let Some(text) = read_one(&entry.item, limits, report) {
                self.insert(entry.name.into(), text);
            }
        }
    }

    fn allowed(&self, limits: &Limits) -> String {
        format!(
            "a table of names, each with {}",
            String::new().allowed(limits)
        )
    }
}

impl Field for PathBuf {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        read_text(self, item, limits, report, |text| {
            let is_path = !text.is_empty() && !text.contains('\0');
            is_path.then(|| text.into()).ok_or("not a path")
        });
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

/// A file that is read when the configuration is put into effect, and the place that names it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileName {
    /// Path of the file.
    pub path: PathBuf,
    /// Place in the configuration that names the file.
    pub place: SourcePosition,
}

impl FileName {
    /// A relative path starts at `folder`.
    pub(crate) fn resolve(&mut self, folder: &Path) {
        self.path = folder.join(&self.path);
    }
}

impl From<PathBuf> for FileName {
    fn from(path: PathBuf) -> Self {
        let place = SourcePosition::default();
        FileName { path, place }
    }
}

impl Field for FileName {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        self.path.read(item, limits, report);
        self.place = report.place(item);
    }

    fn show(&self, limits: &Limits) -> Option<String> {
        self.path.show(limits)
    }

    fn allowed(&self, limits: &Limits) -> String {
        self.path.allowed(limits)
    }
}

/// Absent, or `false`, is `None`. The latter is there to take back a default.
impl<F: Field + Blank> Field for Option<F> {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        if matches!(item.value, DeValue::Boolean(false)) {
            *self = None;
            return;
        }
        let before = report.problem_count();
        let mut value = self.take().unwrap_or_else(F::blank);
        value.read(item, limits, report);
        *self = (report.problem_count() == before).then_some(value);
    }

    fn show(&self, limits: &Limits) -> Option<String> {
        self.as_ref().and_then(|value| value.show(limits))
    }

    fn allowed(&self, limits: &Limits) -> String {
        format!("{}, or false", F::blank().allowed(limits))
    }
}

/// Value that copies share.
impl<F: Field + Clone> Field for Arc<F> {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        Arc::make_mut(self).read(item, limits, report);
    }

    fn show(&self, limits: &Limits) -> Option<String> {
        (**self).show(limits)
    }

    fn allowed(&self, limits: &Limits) -> String {
        (**self).allowed(limits)
    }
}

impl<F: Blank> Blank for Arc<F> {
    fn blank() -> Self {
        Arc::new(F::blank())
    }
}

/// Type of which a file may have one value, or a list.
pub(crate) trait Element: Field + Blank {
    /// Name of the missing thing in an empty list; `None` if a list may be empty.
    const NONE: Option<&'static str>;
}

/// Single value, or a list.
impl<E: Element> Field for Vec<E> {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        match (item.one_or_each(), E::NONE) {
            (None, Some(none)) => report.wrong(item, none, self.allowed(limits)),
            (items, _) => {
                let items = items.unwrap_or_default().into_iter();
                *self = items
                    .filter_map(|item| read_one(&item, limits, report))
                    .collect();
                // Most lists have one element, and the first one takes room for four.
                self.shrink_to_fit();
            }
        }
    }

    fn show(&self, limits: &Limits) -> Option<String> {
        let texts: Vec<_> = self.iter().filter_map(|one| one.show(limits)).collect();
        (!texts.is_empty()).then(|| format!("[{}]", texts.join(", ")))
    }

    fn allowed(&self, limits: &Limits) -> String {
        format!("{}, or a list", E::blank().allowed(limits))
    }
}

impl<E: Element> Blank for Vec<E> {
    fn blank() -> Self {
        Vec::new()
    }
}

impl Element for String {
    const NONE: Option<&'static str> = None;
}

/// An address to listen on.
impl Field for SocketAddr {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        read_text(self, item, limits, report, |text| {
            text.trim().parse().map_err(|_| "not an address")
        });
    }

    fn show(&self, _: &Limits) -> Option<String> {
        Some(quote(&self.to_string()))
    }

    fn allowed(&self, _: &Limits) -> String {
        r#"an IP address with a port, as in "127.0.0.1:8080", "0.0.0.0:8080" (all IPv4 addresses) or "[::]:8080" (all addresses)"#.into()
    }
}

impl Blank for SocketAddr {
    fn blank() -> Self {
        SocketAddr::from(([0; 4], 0))
    }
}

impl Element for SocketAddr {
    const NONE: Option<&'static str> = Some("no address");
}

/// Listen address of a rule.
impl Field for Listen {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        read_text(self, item, limits, report, |text| {
            match unix_path(text.trim()) {
                Some(path) => path.map(|path| Listen::Unix(path.into())),
                None => match text.trim().parse() {
                    Ok(address) => Ok(Listen::Ip(address)),
                    Err(_) => Err("not an address"),
                },
            }
        });
    }

    fn show(&self, _: &Limits) -> Option<String> {
        Some(quote(&self.to_string()))
    }

    fn allowed(&self, limits: &Limits) -> String {
        let address = SocketAddr::blank().allowed(limits);
        format!("{address}; or a Unix socket, as in \"unix:/run/evenkeel.sock\"")
    }
}

impl Blank for Listen {
    fn blank() -> Self {
        Listen::Ip(SocketAddr::blank())
    }
}

impl Element for Listen {
    const NONE: Option<&'static str> = SocketAddr::NONE;
}

/// Description of an address of a host and a port.
pub(crate) const ADDRESS: &str = r#"a host name or IP address with a port from 1 to 65535, as in "10.0.0.1:80", "app.example:80" or "[::1]:80""#;

impl Field for Address {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        read_text(self, item, limits, report, |text| {
            let text = text.trim();
            let (host, port) = match limits {
                Limits::HostOptional if text.starts_with(':') => {
                    let (_, port) = host_port(&format!("x{text}"))?;
                    (String::new(), port)
                }
                Limits::UnixToo => match unix_path(text) {
                    Some(path) => (format!("{UNIX}{}", path?), 0),
                    None => host_port(text)?,
                },
                _ => host_port(text)?,
            };
            Ok::<_, &str>(Address { host, port })
        });
    }

    fn allowed(&self, limits: &Limits) -> String {
        match limits {
            Limits::UnixToo => format!("{ADDRESS}; or a Unix socket, as in \"unix:/run/app.sock\""),
            _ => ADDRESS.into(),
        }
    }
}

impl Element for Address {
    const NONE: Option<&'static str> = Some("no address");
}

impl Field for Origin {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        read_text(self, item, limits, report, |text| {
            text.trim().parse().map_err(|_| "not an origin")
        });
    }

    fn allowed(&self, _: &Limits) -> String {
        ORIGIN.into()
    }
}

impl Blank for Origin {
    fn blank() -> Self {
        Origin::blank()
    }
}

impl Field for Network {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        read_text(self, item, limits, report, |text| text.trim().parse());
    }

    fn show(&self, _: &Limits) -> Option<String> {
        Some(quote(&self.to_string()))
    }

    fn allowed(&self, _: &Limits) -> String {
        r#"a network as in "10.0.0.0/8", "fd00::/8" or "192.0.2.7""#.into()
    }
}

impl Blank for Network {
    fn blank() -> Self {
        Network::ALL
    }
}

impl Element for Network {
    const NONE: Option<&'static str> = Some("no network");
}

impl Field for Proxy {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        read_text(self, item, limits, report, |text| match text.trim() {
            "unix" => Ok(Proxy::Unix),
            "self" => Ok(Proxy::OwnUser),
            text => text.parse().map(Proxy::In),
        });
    }

    fn show(&self, limits: &Limits) -> Option<String> {
        match self {
            Proxy::Unix => Some(quote("unix")),
            Proxy::OwnUser => Some(quote("self")),
            Proxy::In(network) => network.show(limits),
        }
    }

    fn allowed(&self, limits: &Limits) -> String {
        let network = Network::blank().allowed(limits);
        format!(
            "{network}; or \"unix\" for whoever connects to Unix sockets of the rule; or \"self\" for processes of the \
             balancer's user there"
        )
    }
}

impl Blank for Proxy {
    fn blank() -> Self {
        Proxy::In(Network::blank())
    }
}

impl Element for Proxy {
    const NONE: Option<&'static str> = Network::NONE;
}

impl Field for Proxies {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        self.0.read(item, limits, report);
    }

    fn show(&self, limits: &Limits) -> Option<String> {
        self.0.show(limits)
    }

    fn allowed(&self, limits: &Limits) -> String {
        self.0.allowed(limits)
    }
}

impl Field for Networks {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        self.0.read(item, limits, report);
    }

    fn show(&self, limits: &Limits) -> Option<String> {
        self.0.show(limits)
    }

    fn allowed(&self, limits: &Limits) -> String {
        self.0.allowed(limits)
    }
}

/// Reads one of a few names; `meant` describes other names.
pub(crate) fn choose<T: Copy>(
    item: &Item<'_>,
    choices: &[(&str, T)],
    meant: fn(&str) -> Option<&'static str>,
    report: &mut Report<'_>,
) -> Option<T> {
    let names = choices.iter().map(|(name, _)| *name);
    let message = match item.value {
        DeValue::String(text) => match choices.iter().find(|(name, _)| name == text) {
            Some((_, value)) => return Some(*value),
            None => match meant(text) {
                Some(message) => message.to_owned(),
                None => unknown_message("name", similar(text, names)),
            },
        },
        _ => WRONG_TYPE.to_owned(),
    };
    report.wrong(item, &message, choose_allowed(choices));
    None
}

pub(crate) fn choose_allowed<T>(choices: &[(&str, T)]) -> String {
    let names: Vec<_> = choices.iter().map(|(name, _)| quote(name)).collect();
    names.join(", ")
}

/// Types that are one of a few names, perhaps with what other names mean.
macro_rules! choice_field {
    ($type:ty, $($name:literal => $value:path),+ $(; $meant:expr)?) => {
        impl $crate::schema::field::Field for $type {
            fn read(
                &mut self,
                item: &$crate::schema::document::Item<'_>,
                _: &$crate::schema::field::Limits,
                report: &mut $crate::schema::report::Report<'_>,
            ) {
                let meant: fn(&str) -> Option<&'static str> = |_| None;
                $(let meant = { let _ = meant; $meant };)?
                let choices = [$(($name, $value)),+];
                if let Some(value) = $crate::schema::field::choose(item, &choices, meant, report) {
                    *self = value;
                }
            }

            fn show(&self, _: &$crate::schema::field::Limits) -> Option<String> {
                Some(format!("{:?}", match self { $($value => $name),+ }))
            }

            fn allowed(&self, _: &$crate::schema::field::Limits) -> String {
                $crate::schema::field::choose_allowed(&[$(($name, $value)),+])
            }
        }
    };
}
pub(crate) use choice_field;

/// Enumerations whose values are chosen by name.
macro_rules! choices {
    ($($(#[$meta:meta])* $type:ident { $($(#[$doc:meta])* $name:literal => $value:ident,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $($(#[$doc])* $value,)*
        }
        $crate::schema::field::choice_field!($type, $($name => $type::$value),*);
    )*};
}
pub(crate) use choices;
