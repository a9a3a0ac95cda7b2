//! Tables and numbers for people.

use std::time::Duration;

/// Lays out rows under the names of their columns, as plain text. A name with `>` before it is
/// of a column of numbers, which is flush right.
pub fn format_table(names: &[&'static str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let head = |name: &&'static str| match name.strip_prefix('>') {
        Some(name) => Head::numbers(name),
        None => Head::words(name),
    };
    let heads: Vec<Head> = names.iter().map(head).collect();
    let rows: Vec<_> = rows.into_iter().collect();
    table_within(&heads, &rows, usize::MAX)
}

/// Lays out rows under their heads. The words of the last column go on in the next line if a line
/// would be longer than `room` characters.
pub fn table_within(heads: &[Head], rows: &[Vec<String>], room: usize) -> String {
    let widths = widths(heads, rows);
    let before: usize = widths.iter().rev().skip(1).map(|width| width + 2).sum();
    // Less says nothing: such a line is too long.
    let last = room.saturating_sub(before).max(20);
    let mut text = String::new();
    let names: Vec<String> = heads.iter().map(|head| head.name.into()).collect();
    for row in std::iter::once(&names).chain(rows) {
        let cells = row.iter().zip(heads).zip(&widths);
        let line: Vec<String> = cells
            .map(|((cell, head), width)| head.pad(cell, *width))
            .collect();
        let line = line.join("  ");
        let line = line.trim_end();
        if width(line) <= before + last {
            text.push_str(line);
            text.push('\n');
            continue;
        }
        let split = line.char_indices().nth(before);
        let (first, rest) = line.split_at(split.map_or(line.len(), |(at, _)| at));
        for (index, part) in wrap(rest, last).iter().enumerate() {
            let first = if index == 0 { first } else { "" };
            text.push_str(format!("{first:<before$}{part}").trim_end());
            text.push('\n');
        }
    }
    text
}

/// The width of each column, in characters.
fn widths(heads: &[Head], rows: &[Vec<String>]) -> Vec<usize> {
    let width_of = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| width(cell)).max().unwrap_or(0);
        widest.max(width(heads[column].name))
    };
    (0..heads.len()).map(width_of).collect()
}

/// The width of a text, in characters.
pub fn width(text: &str) -> usize {
    text.chars().count()
}

/// A text in at most `room` characters; one that is cut ends with an ellipsis.
pub fn ellipsis(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.into();
    }
    let kept = text.chars().take(room.saturating_sub(1));
    kept.chain((room > 0).then_some('…')).collect()
}

/// A text in lines of at most `room` characters, broken between words where that is possible.
pub fn wrap(text: &str, room: usize) -> Vec<String> {
    let room = room.max(1);
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            if !line.is_empty() && width(&line) + 1 + width(word) > room {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            for char in word.chars() {
                if width(&line) == room {
                    lines.push(std::mem::take(&mut line));
                }
                line.push(char);
            }
        }
        lines.push(line);
    }
    lines
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
    pub fn pad(&self, cell: &str, width: usize) -> String {
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

    /// Returns the name of the column.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// True for a column of numbers.
    pub fn is_number(&self) -> bool {
        self.right
    }
}

/// A duration with three digits: `420us`, `1.25ms`, `12.5s`; minutes from two on.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds >= 120.0 {
        format!("{:.0}min", seconds / 60.0)
    } else if seconds >= 0.9995 {
        format_number(seconds) + "s"
    } else if seconds >= 0.000_999_5 {
        format_number(seconds * 1e3) + "ms"
    } else {
        format!("{:.0}us", seconds * 1e6)
    }
}

/// A number with three digits, as far as it has any behind the point.
pub fn format_number(number: f64) -> String {
    let decimals = match number.abs() {
        magnitude if magnitude >= 99.95 => 0,
        magnitude if magnitude >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{number:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').into()
    } else {
        text
    }
}

/// A share (0 to 1) in percent.
pub fn format_percent(share: f64) -> String {
    format_number(share * 100.0) + "%"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_harmless() {
        let rows = [
            vec!["a".into(), "1000".into()],
            vec!["\u{1b}[2Jbeta".into(), "1".into()],
        ];
        let wanted = "NAME         N\n\
                      a         1000\n\
                      \u{fffd}[2Jbeta     1\n";
        assert_eq!(format_table(&["NAME", ">N"], rows), wanted);
    }

    #[test]
    fn the_last_column_goes_on_below_itself() {
        let heads = [Head::words("NAME"), Head::words("WHY")];
        let rows = [
            vec!["a".into(), "it is the one with the smallest load".into()],
            vec!["b".into(), "no".into()],
        ];
        let wanted = "NAME  WHY\n\
                      a     it is the one with\n      the smallest load\n\
                      b     no\n";
        assert_eq!(table_within(&heads, &rows, 26), wanted);
        // It keeps 20 characters, however little room there is.
        assert_eq!(table_within(&heads, &rows, 0), wanted);
    }

    #[test]
    fn what_is_cut_is_marked_and_what_is_wrapped_is_whole() {
        let cut = |room| ellipsis("größer", room);
        assert_eq!(
            [cut(6), cut(5), cut(1), cut(0)],
            ["größer", "größ…", "…", ""]
        );
        assert_eq!(
            wrap("one two  three\nfour", 7),
            ["one two", "three", "four"]
        );
        assert_eq!(wrap("a longish word", 4), ["a", "long", "ish", "word"]);
        assert_eq!(wrap("", 4), [""; 0]);
        assert_eq!(wrap("ab", 0), ["a", "b"]);
    }

    #[test]
    fn numbers_have_three_digits() {
        let micros = |micros| format_duration(Duration::from_micros(micros));
        assert_eq!(micros(0), "0us");
        assert_eq!(micros(420), "420us");
        assert_eq!(micros(1_250), "1.25ms");
        assert_eq!(micros(999_600), "1s");
        assert_eq!(micros(12_340_000), "12.3s");
        assert_eq!(micros(600_000_000), "10min");
        assert_eq!(format_number(0.0), "0");
        assert_eq!(format_number(1234.5), "1234");
        assert_eq!(format_number(99.97), "100");
        assert_eq!(format_percent(0.256), "25.6%");
    }
}
