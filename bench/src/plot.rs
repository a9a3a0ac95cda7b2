//! Line charts of results.

use std::error::Error;
use std::fs;
use std::path::Path;

use plotters::prelude::*;

/// A chart: what it says, and its lines.
pub struct Chart<'a> {
    /// Above it.
    pub title: &'a str,
    /// What goes to the right.
    pub x: &'a str,
    /// What goes up, from 0.
    pub y: &'a str,
    /// What it shows.
    pub lines: Vec<Line>,
}

/// One line of a chart.
pub struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

impl Line {
    /// A line with a name in the legend.
    pub fn new(name: &str, points: Vec<(f64, f64)>) -> Self {
        Line {
            name: name.into(),
            points,
        }
    }
}

impl Chart<'_> {
    /// Draws it into an SVG file.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn draw(&self, file: &Path) -> Result<(), Box<dyn Error>> {
        Ok(fs::write(file, self.svg()?)?)
    }

    /// The same as text, for a page.
    ///
    /// # Errors
    ///
    /// When there is nothing that could be drawn.
    pub fn svg(&self) -> Result<String, Box<dyn Error>> {
        let mut text = String::new();
        self.draw_on(SVGBackend::with_string(&mut text, (720, 440)))?;
        Ok(text)
    }

    fn draw_on(&self, backend: SVGBackend) -> Result<(), Box<dyn Error>> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let most = |figure: fn(&(f64, f64)) -> f64| points().map(figure).fold(0.0, f64::max);
        let (right, top) = (most(|p| p.0).max(1e-9), most(|p| p.1).max(1e-9) * 1.1);
        let area = backend.into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..right, 0.0..top)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(self.x)
            .y_desc(self.y)
            .light_line_style(WHITE)
            .draw()?;
        for (index, line) in self.lines.iter().enumerate() {
            let color = Palette99::pick(index).to_rgba();
            let points = || line.points.iter().copied();
            chart
                .draw_series(LineSeries::new(points(), &color))?
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color));
            let dots = points().map(|point| Circle::new(point, 2, color.filled()));
            chart.draw_series(dots)?;
        }
        let mut legend = chart.configure_series_labels();
        // Lines mostly rise to the right.
        legend
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
        Ok(area.present()?)
    }
}
