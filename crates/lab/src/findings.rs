//! Findings of an experiment: values for its claims, tables and plots.

use std::collections::BTreeMap;
use std::fmt::Write;

use evenkeel_sim::experiment::Mean;
use evenkeel_sim::svg::Plot;

/// Findings of an experiment.
#[derive(Debug, Default)]
pub struct Findings {
    /// Values for each claim, one for each run (seed, or round of a real run).
    pub values: BTreeMap<&'static str, Vec<f64>>,
    /// Tables, each of which is a CSV file, too.
    pub tables: Vec<Table>,
    /// Plots, each of which is an SVG file and a PNG file.
    pub charts: Vec<Chart>,
    /// Further notes that a reader needs, in sentences.
    pub notes: Vec<String>,
}

impl Findings {
    /// Notes down what the runs say of a claim.
    pub fn add_measured(&mut self, claim: &'static str, values: Vec<f64>) {
        self.values.insert(claim, values);
    }
}

/// A table.
#[derive(Debug)]
pub struct Table {
    /// The name of its file: small letters and dashes.
    pub name: &'static str,
    /// Subject of the table, and the figure or table of the paper.
    pub title: String,
    /// Heads of its columns, with units.
    pub head: Vec<String>,
    /// Rows of the table.
    pub rows: Vec<Vec<Cell>>,
}

/// A cell of a table.
#[derive(Clone, Debug)]
pub enum Cell {
    /// A text.
    Text(String),
    /// A figure without a spread.
    Number(f64),
    /// The mean of several runs.
    Mean(Mean),
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Cell::Text(text.into())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Cell::Text(text)
    }
}

impl From<f64> for Cell {
    fn from(value: f64) -> Self {
        Cell::Number(value)
    }
}

impl From<&[f64]> for Cell {
    fn from(values: &[f64]) -> Self {
        Cell::Mean(Mean::of_values(values))
    }
}

/// A number with three digits that count.
pub fn format_number(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if !value.is_finite() => "-".into(),
        _ if size >= 100.0 || value == 0.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

impl Cell {
    /// Returns the cell as people read it.
    pub fn text(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Number(value) => format_number(*value),
            Cell::Mean(mean) => match mean.within {
                Some(within) => format!("{} ± {}", format_number(mean.mean), format_number(within)),
                None => format_number(mean.mean),
            },
        }
    }
}

impl Table {
    /// Returns the table as Markdown.
    pub fn to_markdown(&self) -> String {
        let mut text = format!("| {} |\n|", self.head.join(" | "));
        text += &"---|".repeat(self.head.len());
        for row in &self.rows {
            let cells: Vec<String> = row.iter().map(Cell::text).collect();
            let _ = write!(text, "\n| {} |", cells.join(" | "));
        }
        text + "\n"
    }

    /// Returns the table as CSV, with a column more for the spread of each column that has one.
    pub fn to_csv(&self) -> String {
        let spread = |column: usize| {
            let mut cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.any(|cell| matches!(cell, Cell::Mean(_)))
        };
        let quoted = |text: &str| match text.contains([',', '"', '\n']) {
            true => format!("\"{}\"", text.replace('"', "\"\"")),
            false => text.to_owned(),
        };
        let mut lines = Vec::new();
        let mut head = Vec::new();
        for (column, name) in self.head.iter().enumerate() {
            head.push(quoted(name));
            if spread(column) {
                head.push(quoted(&format!("{name} (95 % interval, +-)")));
            }
        }
        lines.push(head.join(","));
        for row in &self.rows {
            let mut cells = Vec::new();
            for (column, cell) in row.iter().enumerate() {
                let within = match cell {
                    Cell::Text(text) => {
                        cells.push(quoted(text));
                        None
                    }
                    Cell::Number(value) => {
                        cells.push(format!("{value}"));
                        None
                    }
                    Cell::Mean(mean) => {
                        cells.push(format!("{}", mean.mean));
                        mean.within
                    }
                };
                if spread(column) {
                    cells.push(within.map_or_else(String::new, |within| format!("{within}")));
                }
            }
            lines.push(cells.join(","));
        }
        lines.join("\n") + "\n"
    }
}

/// A plot.
#[derive(Debug)]
pub struct Chart {
    /// The name of its file: small letters and dashes.
    pub name: &'static str,
    /// Subject of the plot, and the figure of the paper.
    pub title: String,
    /// Our value and the published one.
    pub plot: Plot,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_markdown_and_csv() {
        let table = Table {
            name: "t",
            title: "T".into(),
            head: vec!["what, and how".into(), "ms".into()],
            rows: vec![
                vec!["a".into(), Cell::from(&[1.0, 2.0, 3.0][..])],
                vec!["b".into(), 1234.5.into()],
            ],
        };
        assert_eq!(
            table.to_markdown(),
            "| what, and how | ms |\n|---|---|\n| a | 2.00 ± 2.48 |\n| b | 1234 |\n"
        );
        let csv = table.to_csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines[0], "\"what, and how\",ms,\"ms (95 % interval, +-)\"");
        assert!(lines[1].starts_with("a,2,2.48"), "{csv}");
        assert_eq!(lines[2], "b,1234.5,");
    }
}
