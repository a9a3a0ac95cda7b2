//! Rates: so many things or bytes in a time.

use std::time::Duration;

use super::amount::{parse_duration, parse_size, show_duration, show_size};
use super::document::{Item, quote};
use super::field::{Field, Limits, OUT_OF_RANGE, blank, read_text};
use super::report::Report;

/// Number in a time, as in `100/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frequency {
    /// Number of events.
    pub count: u32,
    /// In this time.
    pub per: Duration,
}

/// None at all, which stands in no file.
impl Default for Frequency {
    fn default() -> Self {
        let per = Duration::from_secs(1);
        Frequency { count: 0, per }
    }
}

/// Most per second that make sense to limit.
const MAX_PER_SECOND: u32 = 1_000_000;

/// Longest time in which things are counted.
const MAX_PER: Duration = Duration::from_secs(86_400);

impl Frequency {
    fn parse(text: &str) -> Result<Self, &'static str> {
        let (count, per) = text.split_once('/').ok_or("not a rate")?;
        let count = count.trim().parse().map_err(|_| "not a rate")?;
        let per = per.trim();
        let digits = per.starts_with(|c: char| c.is_ascii_digit());
        let per = match digits {
            true => parse_duration(per),
            false => parse_duration(&format!("1{per}")),
        };
        let per = per.ok_or("not a rate")?;
        let fits = |per: Duration| {
            let least = per.as_secs_f64() * f64::from(MAX_PER_SECOND);
            count > 0 && per <= MAX_PER && f64::from(count) <= least
        };
        let rate = Frequency { count, per };
        fits(per).then_some(rate).ok_or(OUT_OF_RANGE)
    }
}

impl std::fmt::Display for Frequency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let per = show_duration(self.per);
        let unit = per.strip_prefix('1').filter(|unit| {
            let mut chars = unit.chars();
            chars
                .next()
                .is_some_and(|first| first.is_ascii_alphabetic())
        });
        write!(f, "{}/{}", self.count, unit.unwrap_or(&per))
    }
}

impl Field for Frequency {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        read_text(self, item, limits, report, Self::parse);
    }

    fn show(&self, _: &Limits) -> Option<String> {
        (self.count > 0).then(|| quote(&self.to_string()))
    }

    fn allowed(&self, _: &Limits) -> String {
        r#"a rate as in "100/s", "10/m" or "5/10s", up to 1000000 a second, in a day at most"#
            .into()
    }
}

/// Number of bytes per second, as in `10MiB/s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteRate(pub u64);

impl Field for ByteRate {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        read_text(self, item, limits, report, |text| {
            let bytes = text.trim().strip_suffix("/s").and_then(parse_size);
            let bytes = bytes.ok_or("not a number of bytes per second")?;
            let (min, max) = bounds(limits);
            let fits = (min..=max).contains(&bytes);
            fits.then_some(ByteRate(bytes)).ok_or(OUT_OF_RANGE)
        });
    }

    fn show(&self, _: &Limits) -> Option<String> {
        Some(quote(&format!("{}/s", show_size(self.0))))
    }

    fn allowed(&self, limits: &Limits) -> String {
        let (min, max) = bounds(limits);
        let (min, max) = (show_size(min), show_size(max));
        format!(r#"bytes per second, from "{min}/s" to "{max}/s""#)
    }
}

fn bounds(limits: &Limits) -> (u64, u64) {
    match limits {
        Limits::Bytes(min, max) => (*min, *max),
        _ => (1, u64::MAX),
    }
}

blank!(Frequency, ByteRate);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_they_are_shown() {
        for (text, count, secs) in [
            ("100/s", 100, 1.0),
            ("10/m", 10, 60.0),
            ("5/10s", 5, 10.0),
            ("1/d", 1, 86_400.0),
            ("3/250ms", 3, 0.25),
            ("1000000/s", 1_000_000, 1.0),
        ] {
            let rate = Frequency::parse(text).unwrap();
            assert_eq!((rate.count, rate.per.as_secs_f64()), (count, secs));
            assert_eq!(rate.to_string(), text);
        }
        for text in [
            "",
            "100",
            "/s",
            "a/s",
            "1/",
            "1/x",
            "-1/s",
            "0/s",
            "1/2d",
            "1/0s",
            "1000001/s",
            "1.5/s",
        ] {
            Frequency::parse(text).unwrap_err();
        }
    }
}
