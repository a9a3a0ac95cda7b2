//! ORCA load reports (Open Request Cost Aggregation), as servers send them with their
//! responses: the protocol of `xds.data.orca.v3.OrcaLoadReport`.
//!
//! | field of the response | form |
//! |---|---|
//! | `endpoint-load-metrics: TEXT cpu_utilization=0.3, named_metrics.queue=7` | text |
//! | `endpoint-load-metrics: JSON {"cpu_utilization": 0.3, "named_metrics": {"queue": 7}}` | JSON |
//! | `endpoint-load-metrics: BIN CQAAAAAAANA/` | Protocol Buffers in Base64 |
//! | `endpoint-load-metrics-bin: CQAAAAAAANA/` | Protocol Buffers in Base64 |
//!
//! A report is taken as a whole or not at all. It is read in place, as this runs for each
//! response: nothing here locks, and nothing allocates but for names with escapes and for
//! errors in the JSON form.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use evenkeel_core::load::{LOADS_PER_LOCATION, LoadId, LoadValue, Location};
use evenkeel_core::time::Instant;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use crate::protobuf::{Fields, Value};

/// Name of the field with text or JSON.
pub const FIELD: &str = "endpoint-load-metrics";

/// Name of the field with Base64.
pub const BINARY_FIELD: &str = "endpoint-load-metrics-bin";

/// Name of the field of a request that asks for reports, in the format that it names.
pub const FORMAT_FIELD: &str = "endpoint-load-metrics-format";

/// Longest report in bytes, as it is sent.
pub const MAX_REPORT: usize = 4096;

/// Tables of numbers in a report, as the configuration calls them.
const UTILIZATION: &str = "utilization.";
const NAMED_METRICS: &str = "named_metrics.";

/// A report that changes nothing, or not all that it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The report does not say what it means, or not in a way that all understand alike.
    #[error("the load report is malformed")]
    Malformed,
    /// The report is longer than [`MAX_REPORT`].
    #[error("the load report is too long")]
    TooLong,
    /// A load is no number from 0 to 1e12.
    #[error("a load in the report is not a number from 0 to 1e12")]
    BadValue,
    /// The location keeps enough other loads.
    #[error("the report has more loads than the location can keep")]
    TooManyLoads,
    /// Nothing in it is wanted.
    #[error("the report has none of the loads that the balancer looks for")]
    Missing,
}

/// The loads of a report that somebody wants.
#[derive(Clone, Copy, Debug)]
pub struct Loads {
    values: [(LoadId, LoadValue); LOADS_PER_LOCATION],
    len: usize,
}

impl Loads {
    fn no_loads() -> Self {
        Loads {
            values: [(LoadId::CPU, LoadValue::ZERO); LOADS_PER_LOCATION],
            len: 0,
        }
    }

    /// The loads, each once.
    pub fn as_slice(&self) -> &[(LoadId, LoadValue)] {
        self.values.get(..self.len).unwrap_or_default()
    }

    /// Adds a load that is not there yet.
    ///
    /// # Errors
    ///
    /// It is there, its value is no load's, or there are as many as a location keeps.
    pub fn push(&mut self, load: LoadId, value: f64) -> Result<(), Invalid> {
        let value = LoadValue::new(value).map_err(|_| Invalid::BadValue)?;
        if self.as_slice().iter().any(|(known, _)| *known == load) {
            return Err(Invalid::Malformed);
        }
        let place = self.values.get_mut(self.len).ok_or(Invalid::TooManyLoads)?;
        *place = (load, value);
        self.len += 1;
        Ok(())
    }
}

/// Takes in the report in the fields of a response's head, if there is one: `text` are
/// the values of [`FIELD`], `binary` those of [`BINARY_FIELD`], `wanted` as for [`parse`].
#[inline]
pub fn take_in<'h>(
    text: impl Iterator<Item = &'h [u8]>,
    binary: impl Iterator<Item = &'h [u8]>,
    wanted: &impl Fn(&str, &str) -> Option<LoadId>,
    location: &Location,
    now: Instant,
) -> Option<Result<(), Invalid>> {
    let mut reports = text.map(|v| (v, false)).chain(binary.map(|v| (v, true)));
    let (report, is_binary) = reports.next()?;
    // Of two reports nobody knows which one is meant.
    if reports.next().is_some() {
        return Some(Err(Invalid::Malformed));
    }
    let loads = if is_binary {
        parse_binary(report, wanted)
    } else {
        parse(report, wanted)
    };
    let reported = loads.and_then(|loads| match location.report_each(loads.as_slice(), now) {
        0 => Ok(()),
        _ => Err(Invalid::TooManyLoads),
    });
    Some(reported)
}

/// Parses the value of [`FIELD`]. `wanted` says which load the field of a name in a table is,
/// if any: the table is `utilization.` or `named_metrics.`, or empty for a field of the report
/// itself.
///
/// # Errors
///
/// Why it does not count: [`Invalid::Missing`] if nothing in it is wanted.
pub fn parse(
    value: &[u8],
    wanted: &impl Fn(&str, &str) -> Option<LoadId>,
) -> Result<Loads, Invalid> {
    if value.len() > MAX_REPORT {
        return Err(Invalid::TooLong);
    }
    let (format, report) = match value.iter().position(|&byte| byte == b' ') {
        Some(at) => value.split_at(at),
        None => (value, &[][..]),
    };
    let loads = match format {
        b"TEXT" => parse_text(report, wanted)?,
        b"JSON" => parse_json(report, wanted)?,
        b"BIN" => return parse_binary(report.trim_ascii(), wanted),
        _ => return Err(Invalid::Malformed),
    };
    check_loads(loads)
}

/// Parses the value of [`BINARY_FIELD`].
///
/// # Errors
///
/// As [`parse`].
pub fn parse_binary(
    value: &[u8],
    wanted: &impl Fn(&str, &str) -> Option<LoadId>,
) -> Result<Loads, Invalid> {
    if value.len() > MAX_REPORT {
        return Err(Invalid::TooLong);
    }
    let mut buffer = [0; MAX_REPORT];
    let message = base64(value, &mut buffer).ok_or(Invalid::Malformed)?;
    check_loads(parse_message(message, wanted)?)
}

fn check_loads(loads: Loads) -> Result<Loads, Invalid> {
    match loads.len {
        0 => Err(Invalid::Missing),
        _ => Ok(loads),
    }
}

fn parse_text(
    text: &[u8],
    wanted: &impl Fn(&str, &str) -> Option<LoadId>,
) -> Result<Loads, Invalid> {
    let text = std::str::from_utf8(text).map_err(|_| Invalid::Malformed)?;
    let mut loads = Loads::no_loads();
    for pair in text.split(',') {
        let (field, value) = pair.split_once('=').ok_or(Invalid::Malformed)?;
        let value: f64 = value.trim().parse().map_err(|_| Invalid::Malformed)?;
        if let Some(load) = wanted("", field.trim()) {
            loads.push(load, value)?;
        }
    }
    Ok(loads)
}

fn parse_json(
    text: &[u8],
    wanted: &impl Fn(&str, &str) -> Option<LoadId>,
) -> Result<Loads, Invalid> {
    let mut reading = Reading {
        wanted,
        loads: Loads::no_loads(),
        refused: None,
    };
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let read = Numbers {
        table: Table::Report,
        reading: &mut reading,
    }
    .deserialize(&mut deserializer);
    if let Some(refused) = reading.refused {
        return Err(refused);
    }
    read.and_then(|()| deserializer.end())
        .map_err(|_| Invalid::Malformed)?;
    Ok(reading.loads)
}

/// A report in JSON while it is read.
struct Reading<'w, W> {
    wanted: &'w W,
    loads: Loads,
    /// Reason why the report does not count, which the deserializer's own error cannot say.
    refused: Option<Invalid>,
}

/// Object of the JSON that is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    Report,
    Utilization,
    NamedMetrics,
}

/// Meaning of a name in the report.
enum Name {
    Load(LoadId),
    Table(Table),
    Nothing,
}

impl Table {
    /// Returns the meaning of `name` in this table. Protocol Buffers have two names for a field in
    /// JSON, and readers know both.
    fn name(self, name: &str, wanted: &impl Fn(&str, &str) -> Option<LoadId>) -> Name {
        let (prefix, field) = match self {
            Table::Utilization => (UTILIZATION, name),
            Table::NamedMetrics => (NAMED_METRICS, name),
            Table::Report => match name {
                "utilization" => return Name::Table(Table::Utilization),
                "named_metrics" | "namedMetrics" => return Name::Table(Table::NamedMetrics),
                "cpuUtilization" => ("", "cpu_utilization"),
                "memUtilization" => ("", "mem_utilization"),
                "applicationUtilization" => ("", "application_utilization"),
                "rpsFractional" => ("", "rps_fractional"),
                // Those with a dot are in the tables.
                name if name.contains('.') => return Name::Nothing,
                name => ("", name),
            },
        };
        wanted(prefix, field).map_or(Name::Nothing, Name::Load)
    }
}

/// Reads an object of numbers.
struct Numbers<'r, 'w, W> {
    table: Table,
    reading: &'r mut Reading<'w, W>,
}

impl<'de, W: Fn(&str, &str) -> Option<LoadId>> DeserializeSeed<'de> for Numbers<'_, '_, W> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de, W: Fn(&str, &str) -> Option<LoadId>> Visitor<'de> for Numbers<'_, '_, W> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of numbers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Numbers { table, reading } = self;
        let wanted = reading.wanted;
        while let Some(name) = map.next_key_seed(NameOf { table, wanted })? {
            match name {
                Name::Load(load) => {
                    let value = map.next_value_seed(Number)?;
                    if let Err(refused) = reading.loads.push(load, value) {
                        reading.refused = Some(refused);
                        return Err(A::Error::custom("refused"));
                    }
                }
                Name::Table(table) => map.next_value_seed(Numbers {
                    table,
                    reading: &mut *reading,
                })?,
                Name::Nothing => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// Reads a name, in place.
struct NameOf<'w, W> {
    table: Table,
    wanted: &'w W,
}

impl<'de, W: Fn(&str, &str) -> Option<LoadId>> DeserializeSeed<'de> for NameOf<'_, W> {
    type Value = Name;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Name, D::Error> {
        from.deserialize_str(self)
    }
}

impl<W: Fn(&str, &str) -> Option<LoadId>> Visitor<'_> for NameOf<'_, W> {
    type Value = Name;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Name, E> {
        Ok(self.table.name(name, self.wanted))
    }
}

/// Reads a number, which Protocol Buffers allow in quotes, too.
struct Number;

impl<'de> DeserializeSeed<'de> for Number {
    type Value = f64;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<f64, D::Error> {
        from.deserialize_any(self)
    }
}

impl Visitor<'_> for Number {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_f64<E>(self, value: f64) -> Result<f64, E> {
        Ok(value)
    }

    fn visit_u64<E>(self, value: u64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_i64<E>(self, value: i64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<f64, E> {
        value.parse().map_err(|_| E::custom("not a number"))
    }
}

/// Parses a message `OrcaLoadReport`. There may be nothing in it that is wanted.
pub fn parse_message(
    message: &[u8],
    wanted: &impl Fn(&str, &str) -> Option<LoadId>,
) -> Result<Loads, Invalid> {
    let mut loads = Loads::no_loads();
    for field in Fields(message) {
        let (number, value) = field.map_err(|_| Invalid::Malformed)?;
        let (load, value) = match (number, value) {
            (1, Value::Fixed64(bits)) => (wanted("", "cpu_utilization"), bits),
            (2, Value::Fixed64(bits)) => (wanted("", "mem_utilization"), bits),
            (6, Value::Fixed64(bits)) => (wanted("", "rps_fractional"), bits),
            (7, Value::Fixed64(bits)) => (wanted("", "eps"), bits),
            (9, Value::Fixed64(bits)) => (wanted("", "application_utilization"), bits),
            (5, Value::Bytes(entry)) => map_entry(entry, UTILIZATION, wanted)?,
            (8, Value::Bytes(entry)) => map_entry(entry, NAMED_METRICS, wanted)?,
            (1 | 2 | 5..=9, _) => return Err(Invalid::Malformed),
            _ => continue,
        };
        if let Some(load) = load {
            loads.push(load, f64::from_bits(value))?;
        }
    }
    Ok(loads)
}

/// An entry of a `map<string, double>`.
fn map_entry(
    entry: &[u8],
    table: &str,
    wanted: &impl Fn(&str, &str) -> Option<LoadId>,
) -> Result<(Option<LoadId>, u64), Invalid> {
    // What is not there has its default: an empty name, 0.
    let (mut name, mut bits) = (&[][..], 0);
    for field in Fields(entry) {
        match field.map_err(|_| Invalid::Malformed)? {
            (1, Value::Bytes(bytes)) => name = bytes,
            (2, Value::Fixed64(value)) => bits = value,
            (1 | 2, _) => return Err(Invalid::Malformed),
            _ => {}
        }
    }
    let name = std::str::from_utf8(name).map_err(|_| Invalid::Malformed)?;
    Ok((wanted(table, name), bits))
}

/// Decodes Base64 (RFC 4648, section 4), with or without padding, as gRPC has it.
fn base64<'b>(text: &[u8], into: &'b mut [u8]) -> Option<&'b [u8]> {
    let end = text.iter().rposition(|&byte| byte != b'=');
    let digits = text.get(..end.map_or(0, |end| end + 1))?;
    let padding = text.len() - digits.len();
    if padding > 0 && (padding > 2 || !text.len().is_multiple_of(4)) {
        return None;
    }
    let len = STANDARD_NO_PAD.decode_slice(digits, into).ok()?;
    into.get(..len)
}

#[cfg(test)]
mod tests {
    use evenkeel_config as config;
    use evenkeel_core::load::UNNAMED_LOADS;
    use proptest::prelude::*;

    use super::*;

    fn wanted(loads: &str) -> impl Fn(&str, &str) -> Option<LoadId> {
        let text = format!("[group.g]\nmembers = [\"a:1\"]\norca = {{ {loads} }}");
        let config = config::parse("t", &text).unwrap();
        let orca = config.groups[0].sources.orca.clone().unwrap();
        move |table, field| orca.loads.find_load(table, field)
    }

    fn usual() -> impl Fn(&str, &str) -> Option<LoadId> {
        wanted("")
    }

    fn read(
        value: &str,
        wanted: &impl Fn(&str, &str) -> Option<LoadId>,
    ) -> Result<Vec<(u32, f32)>, Invalid> {
        let loads = parse(value.as_bytes(), wanted)?;
        let loads = loads.as_slice().iter();
        Ok(loads.map(|(id, value)| (id.0, value.get())).collect())
    }

    #[test]
    fn text_and_json_say_the_same() {
        let wanted = wanted(
            r#"loads = { cpu_utilization = "cpu", "utilization.db" = 100, "named_metrics.q" = 101, eps = 102 }"#,
        );
        let expected = Ok(vec![(0, 0.5), (100, 0.25), (101, 7.0), (102, 0.0)]);
        for value in [
            "TEXT cpu_utilization=0.5,utilization.db=0.25,named_metrics.q=7,eps=0",
            "TEXT  cpu_utilization = 5e-1 , utilization.db=.25, x=9, named_metrics.q=7,eps=0",
            r#"JSON {"cpu_utilization":0.5,"utilization":{"db":0.25,"x":1},"named_metrics":{"q":7},"eps":0}"#,
            r#"JSON  {"cpuUtilization": "0.5", "request_cost": {"q": [1, {}]}, "utilization": {"db": 0.25},
               "namedMetrics":{"\u0071":7}, "rps": null, "eps": -0.0} "#,
        ] {
            assert_eq!(read(value, &wanted), expected, "{value}");
        }
    }

    #[test]
    fn what_client_weighted_round_robin_goes_by_is_read_unless_told_otherwise() {
        let report = "TEXT application_utilization=0.5,rps_fractional=120,eps=3";
        let expected = [
            (LoadId::UTILIZATION.0, 0.5),
            (LoadId::REQUESTS_PER_SECOND.0, 120.0),
            (LoadId::ERRORS_PER_SECOND.0, 3.0),
        ];
        assert_eq!(read(report, &usual()), Ok(expected.to_vec()));
    }

    #[test]
    fn what_is_ambiguous_or_no_load_changes_nothing() {
        use Invalid::*;
        let wanted = usual();
        for (value, fate) in [
            ("", Malformed),
            ("TEXT", Malformed),
            ("TEXT ", Malformed),
            ("text cpu_utilization=1", Malformed),
            ("cpu_utilization=1", Malformed),
            ("TEXT cpu_utilization:0.3", Malformed),
            ("TEXT cpu_utilization=0.3,", Malformed),
            ("TEXT cpu_utilization=0.3 mem_utilization=1", Malformed),
            ("TEXT cpu_utilization=", Malformed),
            ("TEXT cpu_utilization=0,3", Malformed),
            ("TEXT cpu_utilization=1,cpu_utilization=1", Malformed),
            ("TEXT cpu_utilization=NaN", BadValue),
            ("TEXT cpu_utilization=inf", BadValue),
            ("TEXT cpu_utilization=-0.1", BadValue),
            ("TEXT mem_utilization=0.1,cpu_utilization=1e13", BadValue),
            ("TEXT request_cost=1", Missing),
            ("TEXT named_metrics.cpu_utilization=1", Missing),
            ("JSON", Malformed),
            ("JSON []", Malformed),
            ("JSON {}", Missing),
            (r#"JSON {"cpu_utilization":0.3"#, Malformed),
            (r#"JSON {"cpu_utilization":0.3}}"#, Malformed),
            (r#"JSON {"cpu_utilization":{}}"#, Malformed),
            (r#"JSON {"cpu_utilization":1e999}"#, Malformed),
            (r#"JSON {"cpu_utilization":"NaN"}"#, BadValue),
            (r#"JSON {"cpu_utilization":"x"}"#, Malformed),
            (r#"JSON {"cpu_utilization":-1}"#, BadValue),
            (
                r#"JSON {"cpu_utilization":1,"cpuUtilization":1}"#,
                Malformed,
            ),
            (r#"JSON {"utilization.x":1}"#, Missing),
            ("BIN AAAA", Malformed),
        ] {
            assert_eq!(read(value, &wanted), Err(fate), "{value}");
        }
        let long = format!("TEXT cpu_utilization=0.{}", "1".repeat(MAX_REPORT));
        assert_eq!(read(&long, &wanted), Err(TooLong));
        let deep = format!("JSON {{\"x\":{}", "[".repeat(4000));
        assert_eq!(read(&deep, &wanted), Err(Malformed));
    }

    fn double(number: u8, value: f64) -> Vec<u8> {
        let mut field = vec![number << 3 | 1];
        field.extend(value.to_le_bytes());
        field
    }

    fn bytes(number: u8, value: &[u8]) -> Vec<u8> {
        let mut field = vec![number << 3 | 2, value.len() as u8];
        field.extend(value);
        field
    }

    #[test]
    fn messages_say_the_same() {
        let wanted = wanted(
            r#"loads = { cpu_utilization = "cpu", "utilization.db" = 100, "named_metrics.q" = 101 }"#,
        );
        let entry = |name: &str, value: f64| [bytes(1, name.as_bytes()), double(2, value)].concat();
        let message = [
            double(1, 0.5),
            bytes(4, &entry("db", 9.0)),
            bytes(5, &entry("db", 0.25)),
            bytes(5, &entry("x", -1.0)),
            // A value that is 0 is not written.
            bytes(8, &bytes(1, b"q")),
            vec![3 << 3, 5],
        ]
        .concat();
        let loads = parse_message(&message, &wanted).unwrap();
        let loads: Vec<_> = loads
            .as_slice()
            .iter()
            .map(|(id, v)| (id.0, v.get()))
            .collect();
        assert_eq!(loads, [(0, 0.5), (100, 0.25), (101, 0.0)]);

        for (message, fate) in [
            (double(1, f64::NAN), Invalid::BadValue),
            (double(1, -1.0), Invalid::BadValue),
            (bytes(1, b"x"), Invalid::Malformed),
            (vec![1 << 3, 1], Invalid::Malformed),
            (bytes(5, &bytes(2, b"x")), Invalid::Malformed),
            (bytes(5, &bytes(1, b"\xff")), Invalid::Malformed),
            (
                [double(1, 0.1), double(1, 0.1)].concat(),
                Invalid::Malformed,
            ),
            (vec![9, 0], Invalid::Malformed),
        ] {
            let refused = parse_message(&message, &wanted).unwrap_err();
            assert_eq!(refused, fate, "{message:?}");
        }
    }

    #[test]
    fn fronts_d6_binary_reports_in_the_field_of_text_say_the_same() {
        let message = double(1, 0.25);
        let base64 = base64::engine::general_purpose::STANDARD.encode(&message);
        let wanted = [(LoadId::CPU, LoadValue::new(0.25).unwrap())];
        for value in [format!("BIN {base64}"), format!("BIN  {base64} ")] {
            let loads = parse(value.as_bytes(), &usual()).unwrap();
            assert_eq!(loads.as_slice(), wanted, "{value}");
        }
        for value in [
            "BIN",
            "BIN ",
            "BIN =",
            "bin AAAA",
            "BIN CQAAAAAAANA/,CQAAAAAAANA/",
        ] {
            assert!(parse(value.as_bytes(), &usual()).is_err(), "{value}");
        }
    }

    #[test]
    fn base64_is_strict() {
        let decode = |text: &[u8]| base64(text, &mut [0; 16]).map(<[u8]>::to_vec);
        // RFC 4648, section 10.
        for (text, expected) in [
            (&b""[..], &b""[..]),
            (b"Zg==", b"f"),
            (b"Zg", b"f"),
            (b"Zm8=", b"fo"),
            (b"Zm9vYmE", b"fooba"),
            (b"Zm9vYmFy", b"foobar"),
            (b"+/+/", b"\xfb\xff\xbf"),
        ] {
            assert_eq!(decode(text).as_deref(), Some(expected), "{text:?}");
        }
        for text in [
            &b"Z"[..],
            b"Zg=",
            b"Zg===",
            b"Zm9v====",
            b"Zh==",
            b"Z g=",
            b"Zg=g",
            b"Zm-_",
            b"=",
        ] {
            assert_eq!(decode(text), None, "{text:?}");
        }
        assert_eq!(decode(&[b'A'; 24]), None, "longer than the room");
        let report = parse_binary(b"CQAAAAAAANA/", &usual()).unwrap();
        assert_eq!(report.as_slice()[0].1.get(), 0.25);
    }

    #[test]
    fn one_report_is_taken_two_are_not() {
        let location = Location::new("a");
        let usual = usual();
        let now = Instant::from_nanos(1);
        let report = &b"TEXT cpu_utilization=0.5"[..];
        let take = |text: &[&'static [u8]], binary: &[&'static [u8]]| {
            let (text, binary) = (text.iter().copied(), binary.iter().copied());
            take_in(text, binary, &usual, &location, now)
        };
        assert_eq!(take(&[], &[]), None);
        assert_eq!(take(&[report, report], &[]), Some(Err(Invalid::Malformed)));
        assert_eq!(take(&[report], &[b""]), Some(Err(Invalid::Malformed)));
        assert_eq!(location.list_loads(now).count(), 0);
        assert_eq!(take(&[report], &[]), Some(Ok(())));
        assert_eq!(take(&[], &[b"CQAAAAAAANA/"]), Some(Ok(())));
        assert_eq!(
            location.last_load(LoadId::CPU, now).unwrap().value.get(),
            0.25
        );
        for id in 100..100 + UNNAMED_LOADS as u32 {
            location
                .report_load(LoadId(id), LoadValue::ZERO, now)
                .unwrap();
        }
        // What has a name has room, beside one that has none and no room.
        let loads = wanted(r#"loads = { mem_utilization = "memory", "named_metrics.x" = 99 }"#);
        let another = &b"TEXT named_metrics.x=1,mem_utilization=0.5"[..];
        let fate = take_in(
            [another].into_iter(),
            std::iter::empty(),
            &loads,
            &location,
            now,
        );
        assert_eq!(fate, Some(Err(Invalid::TooManyLoads)));
        let memory = location.last_load(LoadId::MEMORY, now).unwrap();
        assert_eq!(memory.value.get(), 0.5);
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let wanted = usual();
            for format in [&b""[..], b"TEXT ", b"JSON "] {
                let _ = parse(&[format, &bytes].concat(), &wanted);
            }
            let _ = parse_binary(&bytes, &wanted);
            let _ = parse_message(&bytes, &wanted);
        }

        #[test]
        fn what_is_a_number_is_read(value in 0.0f32..1e12, name in "[a-z_.]{1,20}") {
            let wanted = usual();
            let expected = Ok(vec![(0, value)]);
            let text = format!("TEXT x{name}=1,cpu_utilization={value}");
            prop_assert_eq!(read(&text, &wanted), expected.clone());
            let json = format!("JSON {{\"x{name}\":{{\"cpu_utilization\":3}},\"cpu_utilization\":{value}}}");
            prop_assert_eq!(read(&json, &wanted), expected);
        }
    }
}
