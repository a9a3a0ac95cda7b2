//! Tables for a terminal: which columns are shown, how wide they are, and what is cut.

use std::cmp::Ordering;
use std::time::Duration;

use ratatui::layout::Constraint;
use ratatui::style::{Modifier, Style};
use ratatui::widgets::{self, Table};

use evenkeel_manager::text::{self, Head, ellipsis, width};

/// From this rank on a column is shown only where everything else has its full width.
pub(crate) const WIDE: u8 = 10;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub head: Head,
    /// Rank of the column. Columns with the highest rank leave a narrow terminal first; columns of rank 0
    /// stay.
    rank: u8,
    /// The least and the usual width of a column whose cells may be cut.
    cut: Option<(usize, usize)>,
}

impl Column {
    /// Makes a column of words.
    pub(crate) const fn of_words(name: &'static str, rank: u8) -> Self {
        let (head, cut) = (Head::words(name), None);
        Column { head, rank, cut }
    }

    /// Makes a column of numbers. Numbers are never cut.
    pub(crate) const fn of_numbers(name: &'static str, rank: u8) -> Self {
        let (head, cut) = (Head::numbers(name), None);
        Column { head, rank, cut }
    }

    /// Words that may be cut, to `least` characters where it must be, and to `usual` ones
    /// while other columns need the room.
    pub(crate) const fn cut_to(mut self, least: usize, usual: usize) -> Self {
        self.cut = Some((least, usual));
        self
    }
}

/// Content of a cell.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    text: String,
    /// Content of the cell in fewer characters.
    short: Option<String>,
    /// Number by which the cell is sorted; without it, the cell is sorted by its text.
    number: Option<f64>,
}

impl Cell {
    /// Makes a cell of a number with its text.
    pub(crate) fn of_number(number: f64, text: String) -> Self {
        Cell {
            text,
            short: None,
            number: Some(number),
        }
    }

    /// Returns the cell with a shorter text, which is shown where the whole text is too long.
    pub(crate) fn or_short(mut self, short: String) -> Self {
        self.short = Some(short);
        self
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Cell {
            text,
            ..Cell::default()
        }
    }
}

/// Returns a time in milliseconds as a duration.
pub(crate) fn duration_of_millis(ms: Option<f64>) -> Option<Duration> {
    Duration::try_from_secs_f64(ms? / 1e3).ok()
}

/// Returns the cell of a latency; a dash if it is not known.
pub(crate) fn latency_cell(latency: Option<Duration>) -> Cell {
    match latency {
        Some(latency) => Cell::of_number(latency.as_secs_f64(), text::format_duration(latency)),
        None => "-".to_owned().into(),
    }
}

/// Returns the cell of a count.
pub(crate) fn count(count: u64) -> Cell {
    Cell::of_number(count as f64, count.to_string())
}

/// A row of a table.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Name of the row's subject; no two rows have the same name.
    pub name: String,
    pub cells: Vec<Cell>,
    pub style: Style,
}

/// Column by which a table is sorted, and the direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sort {
    pub column: usize,
    pub descending: bool,
}

/// A table before it is laid out.
#[derive(Clone, Debug)]
pub(crate) struct Listing {
    pub columns: &'static [Column],
    pub rows: Vec<Row>,
}

/// A column that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ShownColumn {
    column: usize,
    /// Characters that it gets, those that its cells need, and those of their short forms.
    width: usize,
    whole: usize,
    short: usize,
}

impl Listing {
    /// Returns the columns in which any row says something.
    pub(crate) fn filled_columns(&self) -> Vec<usize> {
        let is_told = |&column: &usize| {
            let mut cells = self.rows.iter().filter_map(|row| row.cells.get(column));
            cells.any(|cell| !cell.text.is_empty())
        };
        (0..self.columns.len()).filter(is_told).collect()
    }

    /// Keeps the rows that hold `text` anywhere, in capitals or not.
    pub(crate) fn filter_rows(&mut self, text: &str) {
        let text = text.to_lowercase();
        let holds = |cell: &Cell| cell.text.to_lowercase().contains(&text);
        self.rows.retain(|row| row.cells.iter().any(holds));
    }

    /// Sorts the rows. Rows whose number is not known come last; equal rows stay in the order that they have.
    pub(crate) fn sort_rows(&mut self, sort: Sort) {
        let is_number = self.columns[sort.column].head.is_number();
        let directed = |ordering: Ordering| {
            if sort.descending {
                ordering.reverse()
            } else {
                ordering
            }
        };
        self.rows.sort_by(|a, b| {
            let (a, b) = (&a.cells[sort.column], &b.cells[sort.column]);
            match (a.number, b.number) {
                (Some(a), Some(b)) => directed(a.total_cmp(&b)),
                (None, None) if !is_number => {
                    directed(a.text.to_lowercase().cmp(&b.text.to_lowercase()))
                }
                (a, b) => b.is_some().cmp(&a.is_some()),
            }
        });
    }

    /// Returns the next column, or the one before, by which the rows can be sorted, in the direction that is
    /// usual for it: the largest numbers first, and words by the alphabet. `None` is the order of the file.
    pub(crate) fn next_sort(&self, now: Option<Sort>, step: isize) -> Option<Sort> {
        let told = self.filled_columns();
        let places = told.len() + 1;
        let place = now.and_then(|sort| told.iter().position(|&column| column == sort.column));
        let place = place.map_or(0, |place| place + 1);
        let next = (place + places).checked_add_signed(step)? % places;
        let column = *told.get(next.checked_sub(1)?)?;
        Some(Sort {
            column,
            descending: self.columns[column].head.is_number(),
        })
    }

    /// Returns the table as plain text, without the columns of wide terminals.
    pub(crate) fn plain_text(&self) -> String {
        let mut told = self.filled_columns();
        told.retain(|&column| self.columns[column].rank < WIDE);
        let heads: Vec<Head> = told.iter().map(|&c| self.columns[c].head).collect();
        let text = |row: &Row| told.iter().map(|&c| row.cells[c].text.clone()).collect();
        let rows: Vec<Vec<String>> = self.rows.iter().map(text).collect();
        text::table_within(&heads, &rows, usize::MAX)
    }

    /// Returns the table in `room` columns of the terminal.
    ///
    /// Where that is too narrow, first the columns of wide terminals go, then the gaps shrink,
    /// then cells take their short forms, then words are cut, with a mark, and then columns go.
    pub(crate) fn draw_table(&self, room: u16, sort: Option<Sort>) -> Table<'static> {
        let (gap, shown) = self.layout(usize::from(room), sort);
        let line = |texts: Vec<String>| {
            let cells = texts.iter().zip(&shown).map(|(text, shown)| {
                let text = ellipsis(text, shown.width);
                widgets::Cell::new(self.columns[shown.column].head.pad(&text, shown.width))
            });
            widgets::Row::new(cells)
        };
        let body = self.rows.iter().map(|row| {
            let texts = shown.iter().map(|shown| {
                let cell = &row.cells[shown.column];
                match &cell.short {
                    Some(short) if width(&cell.text) > shown.width => short.clone(),
                    _ => cell.text.clone(),
                }
            });
            line(texts.collect()).style(row.style)
        });
        let names = shown.iter().map(|shown| self.head(shown.column, sort));
        let header = line(names.collect()).style(Style::new().add_modifier(Modifier::DIM));
        let narrow = |width: usize| u16::try_from(width).unwrap_or(u16::MAX);
        let widths = shown
            .iter()
            .map(|shown| Constraint::Length(narrow(shown.width)));
        Table::new(body, widths)
            .column_spacing(narrow(gap))
            .header(header)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
    }

    fn head(&self, column: usize, sort: Option<Sort>) -> String {
        let name = self.columns[column].head.name();
        match sort {
            Some(sort) if sort.column == column => {
                format!("{name}{}", if sort.descending { "▼" } else { "▲" })
            }
            _ => name.into(),
        }
    }

    /// Returns the gap between columns, and the columns that are shown.
    fn layout(&self, room: usize, sort: Option<Sort>) -> (usize, Vec<ShownColumn>) {
        let mut shown: Vec<ShownColumn> = self
            .filled_columns()
            .into_iter()
            .map(|column| {
                let head = width(&self.head(column, sort));
                let (mut whole, mut short) = (head, head);
                for row in &self.rows {
                    let cell = &row.cells[column];
                    whole = whole.max(width(&cell.text));
                    short = short.max(width(cell.short.as_ref().unwrap_or(&cell.text)));
                }
                let usual = self.columns[column].cut.map_or(whole, |(_, usual)| usual);
                let width = whole.min(usual.max(head));
                let short = short.min(width);
                ShownColumn {
                    column,
                    width,
                    whole,
                    short,
                }
            })
            .collect();
        let missing = |shown: &[ShownColumn], gap: usize| {
            let widths: usize = shown.iter().map(|shown| shown.width).sum();
            (widths + gap * shown.len().saturating_sub(1)).saturating_sub(room)
        };
        let drop_one = |shown: &mut Vec<ShownColumn>, from: u8| {
            let rank = |shown: &ShownColumn| self.columns[shown.column].rank;
            let is_sorted =
                |shown: &ShownColumn| sort.is_some_and(|sort| sort.column == shown.column);
            let last = (0..shown.len())
                .filter(|&index| rank(&shown[index]) >= from && !is_sorted(&shown[index]))
                .max_by_key(|&index| (rank(&shown[index]), index));
            last.map(|index| shown.remove(index)).is_some()
        };
        let mut gap = 2;
        while missing(&shown, gap) > 0 && drop_one(&mut shown, WIDE) {}
        if missing(&shown, gap) > 0 {
            gap = 1;
        }
        if missing(&shown, gap) > 0 {
            for shown in &mut shown {
                shown.width = shown.short;
            }
        }
        // The widest ones have the most to give.
        while missing(&shown, gap) > 0 {
            let more = missing(&shown, gap);
            let spare = |shown: &ShownColumn| match self.columns[shown.column].cut {
                Some((least, _)) => shown.width.saturating_sub(least),
                None => 0,
            };
            match shown.iter_mut().max_by_key(|shown| spare(shown)) {
                Some(widest) if spare(widest) > 0 => widest.width -= spare(widest).min(more),
                _ => break,
            }
        }
        while missing(&shown, gap) > 0 && drop_one(&mut shown, 1) {}
        let widths: usize = shown.iter().map(|shown| shown.width).sum();
        let mut left = room.saturating_sub(widths + gap * shown.len().saturating_sub(1));
        for shown in &mut shown {
            if self.columns[shown.column].cut.is_some() {
                let more = left.min(shown.whole - shown.width);
                shown.width += more;
                left -= more;
            }
            shown.width = shown.width.min(room);
        }
        (gap, shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 5] = [
        Column::of_words("NAME", 0).cut_to(6, 10),
        Column::of_numbers("N", 2),
        Column::of_words("BAR", 1),
        Column::of_words("WHY", 1).cut_to(8, 12),
        Column::of_words("ALSO", WIDE),
    ];

    fn listing() -> Listing {
        let row = |name: &str, number: Option<f64>, why: &str| Row {
            name: name.into(),
            cells: vec![
                name.to_owned().into(),
                match number {
                    Some(number) => Cell::of_number(number, number.to_string()),
                    None => "-".to_owned().into(),
                },
                Cell::from("#######".to_owned()).or_short("##".into()),
                why.to_owned().into(),
                "there is more".to_owned().into(),
            ],
            style: Style::new(),
        };
        let rows = vec![
            row("a-long-member", Some(2.0), ""),
            row("b", None, "connection refused by the peer"),
            row("C", Some(10.0), ""),
        ];
        let columns = &COLUMNS;
        Listing { columns, rows }
    }

    fn widths(room: usize) -> (usize, Vec<(&'static str, usize)>) {
        let (gap, shown) = listing().layout(room, None);
        let shown = shown.iter();
        let named = shown.map(|shown| (COLUMNS[shown.column].head.name(), shown.width));
        (gap, named.collect())
    }

    #[test]
    fn columns_take_the_room_that_there_is_and_give_it_back_in_order() {
        let all = ("NAME", 13);
        let more = ("ALSO", 13);
        let why = ("WHY", 30);
        let wide = (2, vec![all, ("N", 2), ("BAR", 7), why, more]);
        assert_eq!(widths(100), wide);
        // What is left goes to the words that were cut.
        let cut = ("WHY", 16);
        assert_eq!(widths(59), (2, vec![all, ("N", 2), ("BAR", 7), cut, more]));
        // Columns of wide terminals go first, then the gaps, then the long forms.
        let (gap, shown) = widths(50);
        assert_eq!((gap, shown.len()), (2, 4));
        assert_eq!(shown[3], ("WHY", 22));
        let name = ("NAME", 10);
        let why = ("WHY", 12);
        assert_eq!(widths(34), (1, vec![name, ("N", 2), ("BAR", 7), why]));
        let name = ("NAME", 12);
        assert_eq!(widths(32), (1, vec![name, ("N", 2), ("BAR", 3), why]));
        // Then words are cut, and only then columns go.
        let cut = ("WHY", 8);
        let least = [("NAME", 7), ("N", 2), ("BAR", 3), cut];
        assert_eq!(widths(23), (1, least.to_vec()));
        assert_eq!(widths(19).1, [("NAME", 6), ("BAR", 3), cut]);
        assert_eq!(widths(5), (1, vec![("NAME", 5)]));
        assert_eq!(widths(0), (1, vec![("NAME", 0)]));
    }

    #[test]
    fn the_column_of_the_order_stays() {
        let sort = Some(Sort {
            column: 1,
            descending: true,
        });
        let (_, shown) = listing().layout(10, sort);
        let shown: Vec<_> = shown.iter().map(|shown| shown.column).collect();
        assert_eq!(shown, [0, 1]);
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let names = |change: fn(&mut Listing)| {
            let mut listing = listing();
            change(&mut listing);
            let names = listing.rows.into_iter().map(|row| row.name);
            names.collect::<Vec<_>>().join(" ")
        };
        let sorted: [fn(&mut Listing); 4] = [
            |all| {
                all.sort_rows(Sort {
                    column: 0,
                    descending: false,
                })
            },
            |all| {
                all.sort_rows(Sort {
                    column: 0,
                    descending: true,
                })
            },
            |all| {
                all.sort_rows(Sort {
                    column: 1,
                    descending: false,
                })
            },
            |all| {
                all.sort_rows(Sort {
                    column: 1,
                    descending: true,
                })
            },
        ];
        assert_eq!(names(sorted[0]), "a-long-member b C");
        assert_eq!(names(sorted[1]), "C b a-long-member");
        // What is not known is at the end in both directions.
        assert_eq!(names(sorted[2]), "a-long-member C b");
        assert_eq!(names(sorted[3]), "C a-long-member b");
        assert_eq!(names(|all| all.filter_rows("REFUSED")), "b");
        assert_eq!(names(|all| all.filter_rows("c")), "b C");
        assert_eq!(names(|all| all.filter_rows("")), "a-long-member b C");
        assert_eq!(names(|all| all.filter_rows("nothing")), "");
    }

    #[test]
    fn orders_go_round_the_columns() {
        let listing = listing();
        let mut sort = None;
        let mut seen = Vec::new();
        for _ in 0..6 {
            sort = listing.next_sort(sort, 1);
            seen.push(sort.map(|sort| (sort.column, sort.descending)));
        }
        let columns = [(0, false), (1, true), (2, false), (3, false), (4, false)];
        let wanted: Vec<_> = columns.into_iter().map(Some).chain([None]).collect();
        assert_eq!(seen, wanted);
        let before = listing.next_sort(None, -1);
        assert_eq!(before.map(|sort| sort.column), Some(4));
        assert_eq!(listing.next_sort(listing.next_sort(None, 1), -1), None);
    }
}
