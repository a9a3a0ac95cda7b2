//! Tables and numbers for people.

use std::time::Duration;

/// Lays out rows under their heads, as plain text. Columns of numbers are flush right.
pub fn table(heads: &[Head], rows: &[Vec<String>]) -> String {
    let widths = widths(heads, rows);
    let mut text = String::new();
    let names: Vec<String> = heads.iter().map(|head| head.name.into()).collect();
    for row in std::iter::once(&names).chain(rows) {
        let cells = row.iter().zip(heads).zip(&widths);
        let line: Vec<String> = cells
            .map(|((cell, head), width)| head.pad(cell, *width))
            .collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// The width of each column, in characters.
pub(crate) fn widths(heads: &[Head], rows: &[Vec<String>]) -> Vec<usize> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        widest.max(heads[column].name.chars().count())
    };
    (0..heads.len()).map(width).collect()
}

/// The head of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    name: &'static str,
    right: bool,
}

impl Head {
    /// A column of words.
    pub const fn words(name: &'static str) -> Self {
        Head { name, right: false }
    }

    /// A column of numbers.
    pub const fn numbers(name: &'static str) -> Self {
        Head { name, right: true }
    }

    /// A cell of the column, `width` characters wide, fit for a terminal.
    pub(crate) fn pad(&self, cell: &str, width: usize) -> String {
        // What a name holds must not command the terminal that it is shown on.
        let clean: String = cell
            .chars()
            .map(|char| if char.is_control() { '\u{fffd}' } else { char })
            .collect();
        if self.right {
            format!("{clean:>width$}")
        } else {
            format!("{clean:<width$}")
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }
}

/// A duration with three digits: `420us`, `1.25ms`, `12.5s`; minutes from two on.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds >= 120.0 {
        format!("{:.0}min", seconds / 60.0)
    } else if seconds >= 0.9995 {
        digits(seconds) + "s"
    } else if seconds >= 0.000_999_5 {
        digits(seconds * 1e3) + "ms"
    } else {
        format!("{:.0}us", seconds * 1e6)
    }
}

/// A number with three digits, as far as it has any behind the point.
pub fn digits(number: f64) -> String {
    let decimals = match number.abs() {
        magnitude if magnitude >= 99.95 => 0,
        magnitude if magnitude >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{number:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').into(),
        false => text,
    }
}

/// A share (0 to 1) in percent.
pub fn percent(share: f64) -> String {
    digits(share * 100.0) + "%"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_harmless() {
        let heads = [Head::words("NAME"), Head::numbers("N")];
        let rows = [
            vec!["a".into(), "1000".into()],
            vec!["\u{1b}[2Jbeta".into(), "1".into()],
        ];
        let wanted = "NAME         N\n\
                      a         1000\n\
                      \u{fffd}[2Jbeta     1\n";
        assert_eq!(table(&heads, &rows), wanted);
    }

    #[test]
    fn numbers_have_three_digits() {
        let micros = |micros| duration(Duration::from_micros(micros));
        assert_eq!(micros(0), "0us");
        assert_eq!(micros(420), "420us");
        assert_eq!(micros(1_250), "1.25ms");
        assert_eq!(micros(999_600), "1s");
        assert_eq!(micros(12_340_000), "12.3s");
        assert_eq!(micros(600_000_000), "10min");
        assert_eq!(digits(0.0), "0");
        assert_eq!(digits(1234.5), "1234");
        assert_eq!(digits(99.97), "100");
        assert_eq!(percent(0.256), "25.6%");
    }
}
