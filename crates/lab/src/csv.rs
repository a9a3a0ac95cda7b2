//! Tables that programs of real runs write.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::findings::{Cell, Table};

/// A table that a program has written: its head and its rows.
#[derive(Debug, Default)]
pub(crate) struct Csv {
    /// Names of its columns.
    pub head: Vec<String>,
    /// Lines after the head.
    pub rows: Vec<Vec<String>>,
}

impl Csv {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path)
            .map_err(|error| format!("{}: cannot be read: {error}", path.display()))?;
        Ok(Csv::parse(&text))
    }

    /// Reads a text.
    pub(crate) fn parse(text: &str) -> Self {
        let mut lines = text.lines().map(cells);
        Csv {
            head: lines.next().unwrap_or_default(),
            rows: lines.collect(),
        }
    }

    /// The rows, each a map of what it says by column.
    fn named(&self) -> impl Iterator<Item = BTreeMap<&str, &str>> {
        self.rows.iter().map(|row| {
            let cells = self.head.iter().map(String::as_str);
            cells.zip(row.iter().map(String::as_str)).collect()
        })
    }

    /// The sum of the numbers in a cell, one for each web site, by key; only of rows that `is_meant`.
    pub(crate) fn sum_by_key(
        &self,
        figure: &str,
        keys: &[&str],
        is_meant: impl Fn(&BTreeMap<&str, &str>) -> bool,
    ) -> Result<BTreeMap<Vec<String>, f64>, String> {
        for name in keys.iter().chain([&figure]) {
            if !self.head.iter().any(|head| head == name) {
                return Err(format!("the table of the measurement has no column {name}"));
            }
        }
        let of = |row: BTreeMap<&str, &str>| {
            let key = keys
                .iter()
                .map(|key| row.get(key).copied().unwrap_or_default());
            let text = row.get(figure).copied().unwrap_or_default();
            let numbers = text.split_whitespace().map(str::parse::<f64>);
            let sum = numbers.sum::<Result<f64, _>>();
            let sum =
                sum.map_err(|_| format!("{figure} of the measurement is no number: {text}"))?;
            Ok((key.map(str::to_owned).collect(), sum))
        };
        self.named().filter(is_meant).map(of).collect()
    }

    /// Converts the file to a table of the lab.
    pub(crate) fn table(&self, name: &'static str, title: &str) -> Table {
        let cell = |text: &String| match text.parse::<f64>() {
            Ok(number) => Cell::Number(number),
            Err(_) => Cell::from(text.as_str()),
        };
        Table {
            name,
            title: title.into(),
            head: self.head.clone(),
            rows: (self.rows.iter())
                .map(|row| row.iter().map(cell).collect())
                .collect(),
        }
    }
}

/// Cells of a line; those in quotes may have commas.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut is_quoted = false;
    for character in line.chars() {
        match character {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(String::new()),
            _ => cells
                .iter_mut()
                .next_back()
                .into_iter()
                .for_each(|cell| cell.push(character)),
        }
    }
    cells
}

/// A cell as a number; NaN if the cell is none.
pub(crate) fn cell_number(row: &[String], column: usize) -> f64 {
    row.get(column)
        .and_then(|cell| cell.parse().ok())
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_may_be_quoted() {
        let csv = Csv::parse("x,y,z\na,\"b, c\",1.5\n");
        assert_eq!(csv.head, ["x", "y", "z"]);
        assert_eq!(csv.rows, [["a", "b, c", "1.5"]]);
        assert_eq!(cell_number(&csv.rows[0], 2), 1.5);
        assert!(cell_number(&csv.rows[0], 1).is_nan() && cell_number(&csv.rows[0], 3).is_nan());
    }
}
