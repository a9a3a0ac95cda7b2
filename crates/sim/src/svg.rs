//! Plots as SVG: lines over axes, without scripts, for pages and for files of their own.

use std::fmt::Write;

/// Width and height of a plot, and what axes and labels take of them.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 40.0;

/// Room that a file has above the plot, and for each row of its legend, which has this many columns at most.
const HEAD: f64 = 24.0;
const LEGEND_ROW: f64 = 17.0;
const LEGEND_COLUMNS: usize = 3;

/// Room of a line and its margins in the legend, beside the name.
const LEGEND_MARK: f64 = 30.0;

/// About how wide a character of a label is.
const CHARACTER: f64 = 6.0;

/// Colours that readers with any kind of sight can tell apart (Okabe and Ito, 2008; the last four Tol, 2021).
const COLOURS: [&str; 12] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#808080", "#b8a800",
    "#332288", "#882255", "#44aa99", "#000000",
];

/// The most lines that get a colour and a name of their own; the others are grey.
const NAMED: usize = COLOURS.len();

/// A line of a plot.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Points of the line.
    pub points: Vec<(f64, f64)>,
    /// Uncertainty of each point, drawn as bars.
    pub within: Vec<f64>,
    /// True if others have published the values: dashed, with hollow points.
    pub is_published: bool,
}

/// Division of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, from 0.
    FromZero,
    /// Evenly, from the least value.
    Even,
    /// By powers of ten.
    Powers,
}

/// A plot of lines.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Lines of the plot.
    pub lines: Vec<Line>,
    /// Label of the horizontal axis.
    pub across: &'static str,
    /// Label of the vertical axis.
    pub up: &'static str,
    /// Division of both axes.
    pub scales: (Scale, Scale),
    /// The largest value of the upright axis, if it is known.
    pub most: Option<f64>,
    /// Moments to mark.
    pub marks: Vec<f64>,
    /// Names in place of the values across, which are 0, 1 and so on.
    pub names: Vec<String>,
}

struct Axis {
    from: f64,
    to: f64,
    ticks: Vec<f64>,
    powers: bool,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64> + Clone, scale: Scale, most: Option<f64>) -> Self {
        let finite = values.filter(|value| value.is_finite());
        if scale == Scale::Powers {
            let positive = finite.filter(|value| *value > 0.0);
            let least = positive.clone().fold(f64::INFINITY, f64::min).min(1e15);
            let most = positive.fold(least, f64::max);
            let from = libm::floor(libm::log10(least) + 1e-9);
            let to = libm::ceil(libm::log10(most) - 1e-9).max(from + 1.0);
            let ticks = (0..=(to - from) as usize).map(|step| from + step as f64);
            return Axis {
                from,
                to,
                ticks: ticks.collect(),
                powers: true,
            };
        }
        let highest = finite.clone().fold(f64::NEG_INFINITY, f64::max);
        let highest = most.unwrap_or(if highest.is_finite() { highest } else { 1.0 });
        let lowest = match scale {
            Scale::FromZero => 0.0,
            _ => finite.fold(highest, f64::min),
        };
        let span = if highest > lowest {
            highest - lowest
        } else {
            1.0
        };
        let power = libm::pow(10.0, libm::floor(libm::log10(span / 5.0)));
        let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
        let step = steps.into_iter().find(|step| span / step <= 6.0);
        let step = step.unwrap_or(span);
        let from = libm::floor(lowest / step + 1e-9) * step;
        let count = libm::ceil((lowest + span - from) / step - 1e-9).clamp(1.0, 20.0);
        Axis {
            from,
            to: from + count * step,
            ticks: (0..=count as usize)
                .map(|index| from + index as f64 * step)
                .collect(),
            powers: false,
        }
    }

    /// Position of a value on the axis, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let value = match self.powers {
            true => libm::log10(value.max(1e-12)),
            false => value,
        };
        ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    fn label(&self, tick: f64) -> String {
        let value = match self.powers {
            true => libm::pow(10.0, tick),
            false => tick,
        };
        let text = match value.abs() {
            size if size >= 100.0 || size == 0.0 => format!("{value:.0}"),
            size if size >= 1.0 => format!("{value:.2}"),
            _ => format!("{value:.4}"),
        };
        match text.contains('.') {
            true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
            false => text,
        }
    }
}

impl Line {
    /// A line with a name in the legend.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Line {
            name: name.into(),
            points,
            ..Line::default()
        }
    }
}

impl Plot {
    /// Lines over time in seconds.
    pub fn over_time(up: &'static str, lines: Vec<Line>) -> Self {
        Plot::from_zero("seconds", up, lines)
    }

    /// Lines over two axes that are divided evenly, from 0.
    pub fn from_zero(across: &'static str, up: &'static str, lines: Vec<Line>) -> Self {
        Plot {
            lines,
            across,
            up,
            scales: (Scale::FromZero, Scale::FromZero),
            most: None,
            marks: Vec::new(),
            names: Vec::new(),
        }
    }

    /// The plot for a page, with a legend below if there are several lines.
    pub fn svg(&self) -> String {
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">{}</svg>",
            escaped(self.up),
            self.drawn()
        );
        if self.lines.len() > 1 {
            svg += "<p class=\"legend\">";
            for (index, line) in self.lines.iter().enumerate().take(NAMED) {
                let colour = self.colour_of(index);
                let name = escaped(&line.name);
                let _ = write!(
                    svg,
                    "<span><i style=\"background:{colour}\"></i>{name}</span> "
                );
            }
            if self.lines.len() > NAMED {
                let more = self.lines.len() - NAMED;
                let _ = write!(
                    svg,
                    "<span><i style=\"background:#bbb\"></i>{more} more</span>"
                );
            }
            svg += "</p>";
        }
        svg
    }

    /// The plot as a file of its own: with a title, and a legend below it.
    pub fn file(&self, title: &str) -> String {
        let lines = self.lines.iter().enumerate().take(NAMED);
        let columns = self.legend_columns();
        let room = (WIDTH - LEFT - RIGHT) / columns as f64;
        let rows = self.lines.len().min(NAMED).div_ceil(columns);
        let height = HEAD + HEIGHT + LEGEND_ROW * rows as f64 + 6.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" font-family=\"DejaVu Sans, sans-serif\" font-size=\"11\" fill=\"#333\">\
             <style>.grid{{stroke:#e6e6e6;fill:none}}.line{{fill:none;stroke-width:1.6;stroke-linejoin:round}}\
             .mark{{stroke:#c00;stroke-dasharray:3 3;fill:none;opacity:.45}}</style>\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\
             <text x=\"{:.1}\" y=\"17\" text-anchor=\"middle\" font-size=\"13\" font-weight=\"bold\">{}</text>\
             <g transform=\"translate(0 {HEAD})\">{}</g>",
            WIDTH / 2.0,
            escaped(title),
            self.drawn()
        );
        for (index, line) in lines {
            let left = LEFT + room * (index % columns) as f64;
            let down = HEAD + HEIGHT + LEGEND_ROW * (index / columns) as f64 + 8.0;
            let dashes = if line.is_published {
                " stroke-dasharray=\"5 4\""
            } else {
                ""
            };
            let _ = write!(
                svg,
                "<path stroke=\"{}\" stroke-width=\"2\"{dashes} d=\"M{left:.1} {down:.1}h18\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                self.colour_of(index),
                left + 24.0,
                down + 4.0,
                escaped(&shortened(&line.name, room - LEGEND_MARK))
            );
        }
        svg + "</svg>\n"
    }

    /// Colour of a line. A published line has the colour of the line that it is compared with, by its name: `X
    /// (published)`, `X, published` or `published: X`.
    fn colour_of(&self, index: usize) -> &'static str {
        let line = self.lines.get(index).filter(|line| line.is_published);
        let base = line.and_then(|line| {
            let name = line.name.as_str();
            let end = name.strip_suffix(" (published)");
            end.or_else(|| name.strip_suffix(", published"))
                .or_else(|| name.strip_prefix("published: "))
        });
        let is_base = |line: &Line| !line.is_published && Some(line.name.as_str()) == base;
        colour(self.lines.iter().position(is_base).unwrap_or(index))
    }

    /// Columns of the legend of a file: as many as leave each name its room.
    fn legend_columns(&self) -> usize {
        let names = self.lines.iter().take(NAMED);
        let longest = names.map(|line| line.name.chars().count()).max();
        let needed = longest.unwrap_or(0) as f64 * CHARACTER + LEGEND_MARK;
        let columns = (WIDTH - LEFT - RIGHT) / needed;
        (columns as usize).clamp(1, LEGEND_COLUMNS)
    }

    /// Axes, lines and labels, without the element around them.
    fn drawn(&self) -> String {
        let area = Area {
            across: self.axis_across(),
            up: self.axis_up(),
        };
        let mut svg = String::new();
        self.draw_grid(&area, &mut svg);
        let grey = self.lines.iter().enumerate().skip(NAMED);
        let order = grey.chain(self.lines.iter().enumerate().take(NAMED));
        for (index, line) in order {
            self.draw_line(line, self.colour_of(index), &area, &mut svg);
        }
        let middle = TOP + HIGH / 2.0;
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(14 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            LEFT + WIDE / 2.0,
            HEIGHT - 6.0,
            escaped(self.across),
            escaped(self.up)
        );
        svg
    }

    fn axis_up(&self) -> Axis {
        let highs = self.lines.iter().flat_map(|line| {
            let within = line.within.iter().copied().chain(std::iter::repeat(0.0));
            line.points
                .iter()
                .zip(within)
                .map(|(point, within)| point.1 + within)
        });
        Axis::new(highs, self.scales.1, self.most)
    }

    fn axis_across(&self) -> Axis {
        let count = self.names.len();
        if count > 0 {
            return Axis {
                from: -0.5,
                to: count as f64 - 0.5,
                ticks: (0..count).map(|index| index as f64).collect(),
                powers: false,
            };
        }
        let points = self.lines.iter().flat_map(|line| &line.points);
        let xs = points.map(|point| point.0);
        let mut axis = Axis::new(xs.clone(), self.scales.0, None);
        // Lines end where the time does, not at a round number after it.
        if matches!(self.scales.0, Scale::FromZero) {
            let last = xs.fold(0.0, f64::max);
            axis.to = if last > 0.0 { last } else { axis.to };
            axis.ticks.retain(|tick| *tick <= axis.to);
        }
        axis
    }

    /// Draws the grid with its labels, and the marks.
    fn draw_grid(&self, Area { across, up }: &Area, svg: &mut String) {
        let right = WIDTH - RIGHT;
        for &tick in &up.ticks {
            let at = TOP + HIGH * (1.0 - (tick - up.from) / (up.to - up.from));
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                up.label(tick)
            );
        }
        let floor = HEIGHT - BOTTOM;
        for (index, &tick) in across.ticks.iter().enumerate() {
            let at = LEFT + WIDE * (tick - across.from) / (across.to - across.from);
            let label = match self.names.get(index) {
                Some(name) => escaped(&shortened(name, WIDE / self.names.len() as f64)),
                None => across.label(tick),
            };
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{at:.1} {TOP}V{floor}\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                floor + 15.0
            );
        }
        for &mark in &self.marks {
            let at = LEFT + WIDE * across.place(mark);
            let _ = write!(svg, "<path class=\"mark\" d=\"M{at:.1} {TOP}V{floor}\"/>");
        }
    }

    /// Draws a line with its points and intervals.
    fn draw_line(&self, line: &Line, colour: &str, area: &Area, svg: &mut String) {
        let mut path = String::new();
        // Between names there is nothing that a line could go through.
        if self.names.is_empty() {
            for (index, point) in line.points.iter().enumerate() {
                let step = if index == 0 { 'M' } else { 'L' };
                let (at, high) = (area.x(point.0), area.y(point.1));
                let _ = write!(path, "{step}{at:.1} {high:.1}");
            }
        }
        let dashes = if line.is_published {
            " stroke-dasharray=\"5 4\""
        } else {
            ""
        };
        let _ = write!(
            svg,
            "<path class=\"line\" stroke=\"{colour}\"{dashes} d=\"{path}\"/>"
        );
        if line.is_published {
            for point in &line.points {
                let _ = write!(
                    svg,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"none\" stroke=\"{colour}\"/>",
                    area.x(point.0),
                    area.y(point.1)
                );
            }
        }
        for (point, within) in line.points.iter().zip(&line.within) {
            let at = area.x(point.0);
            let (low, high) = (area.y(point.1 - within), area.y(point.1 + within));
            let _ = write!(
                svg,
                "<path stroke=\"{colour}\" d=\"M{at:.1} {low:.1}V{high:.1}\"/>\
                 <circle cx=\"{at:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>",
                area.y(point.1)
            );
        }
    }
}

/// Room between the axes.
const WIDE: f64 = WIDTH - LEFT - RIGHT;
const HIGH: f64 = HEIGHT - TOP - BOTTOM;

/// The axes of a plot.
struct Area {
    across: Axis,
    up: Axis,
}

impl Area {
    fn x(&self, value: f64) -> f64 {
        LEFT + WIDE * self.across.place(value)
    }

    fn y(&self, value: f64) -> f64 {
        TOP + HIGH * (1.0 - self.up.place(value))
    }
}

fn colour(index: usize) -> &'static str {
    COLOURS.get(index).copied().unwrap_or("#bbb")
}

/// A name that is cut to fit into this many units of the plot.
fn shortened(name: &str, room: f64) -> String {
    let count = (room / CHARACTER).clamp(6.0, 80.0) as usize;
    match name.char_indices().nth(count) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// A text within HTML.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_a_few_round_ticks_around_all_values() {
        for (most, ticks) in [
            (0.93, 6),
            (1.0, 6),
            (7.0, 5),
            (60.0, 7),
            (1234.0, 4),
            (0.0, 6),
        ] {
            let axis = Axis::new([0.0, most].into_iter(), Scale::FromZero, None);
            assert!(axis.to >= most, "{most}: {}", axis.to);
            assert_eq!(axis.ticks.len(), ticks, "{most}: {:?}", axis.ticks);
        }
        let powers = Axis::new([0.3, 42.0].into_iter(), Scale::Powers, None);
        let labels: Vec<String> = powers
            .ticks
            .iter()
            .map(|&tick| powers.label(tick))
            .collect();
        assert_eq!(labels, ["0.1", "1", "10", "100"]);
        assert!((powers.place(1.0) - 1.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn names_in_the_legend_of_a_file_are_whole() {
        let plot = |name: &str| {
            let lines = vec![Line::new(name, vec![(0.0, 1.0)]); 4];
            Plot::over_time("up", lines)
        };
        for (name, columns) in [
            ("round robin", 3),
            ("on demand, no pulses, dampening 0.95", 2),
            (
                "KLM, CPU load since the last reading, which a front-end makes every 50 ms",
                1,
            ),
        ] {
            let plot = plot(name);
            assert_eq!(plot.legend_columns(), columns, "{name}");
            assert_eq!(plot.file("title").matches(name).count(), 4, "{name}");
        }
        let long = "a".repeat(100);
        assert!(!plot(&long).file("title").contains(&long));
    }

    #[test]
    fn what_was_published_has_the_colour_of_what_it_stands_beside() {
        let line = |name: &str, is_published| Line {
            is_published,
            ..Line::new(name, vec![(0.0, 1.0)])
        };
        let lines = vec![
            line("a", false),
            line("b", false),
            line("b (published)", true),
            line("a, published", true),
            line("published: b", true),
            line("published", true),
        ];
        let plot = Plot::over_time("up", lines);
        let colours: Vec<&str> = (0..6).map(|index| plot.colour_of(index)).collect();
        let wanted = [0, 1, 1, 0, 1, 5].map(colour);
        assert_eq!(colours, wanted);
    }

    #[test]
    fn names_of_users_are_no_markup() {
        let line = |name: &str| Line {
            name: name.into(),
            points: vec![(0.0, 1.0), (1.0, f64::INFINITY)],
            ..Line::default()
        };
        let plot = Plot::over_time("up", vec![line("<script>"), line("b")]);
        let svg = plot.svg();
        assert!(svg.contains("&lt;script&gt;") && !svg.contains("<script"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
