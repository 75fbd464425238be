//! Plots, as SVG.
use std::path::Path;

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Where they are, seen from the page.
pub(crate) const DIRECTORY: &str = "benchmarks";

const SIZE: (u32, u32) = (980, 420);
/// Of the width, what names of series have.
const LEGEND: u32 = 200;
const FONT: &str = "sans-serif";
const GREY: RGBColor = RGBColor(90, 90, 90);

/// Colours that most people can tell apart.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 0, 0),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// What is shown.
pub(crate) struct Plot<'a> {
    /// Of the file, without its end.
    pub(crate) name: &'a str,
    pub(crate) title: &'a str,
    pub(crate) x: &'a str,
    /// Of what the series have values for.
    pub(crate) labels: Vec<String>,
    pub(crate) y: &'a str,
    pub(crate) series: Vec<Series<'a>>,
}

/// Values, one for each label; of those that are `None` nothing is shown.
pub(crate) struct Series<'a> {
    pub(crate) name: &'a str,
    pub(crate) values: Vec<Option<f64>>,
    /// From elsewhere.
    pub(crate) foreign: bool,
}

impl<'a> Series<'a> {
    /// Measured here.
    pub(crate) fn new(name: &'a str, values: impl IntoIterator<Item = f64>) -> Self {
        Self {
            name,
            values: values.into_iter().map(Some).collect(),
            foreign: false,
        }
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

impl Plot<'_> {
    /// A line for each series. Returns what the page says to show it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn lines(&self, directory: &Path) -> anyhow::Result<String> {
        self.draw(directory, |area| self.draw_lines(area))
    }

    /// Bars side by side, and a line where they reach `mark`. Returns what the page says to
    /// show it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn bars(&self, directory: &Path, mark: Option<f64>) -> anyhow::Result<String> {
        self.draw(directory, |area| self.draw_bars(area, mark))
    }

    fn draw<E: std::fmt::Display>(
        &self,
        directory: &Path,
        draw: impl FnOnce(&Area<'_>) -> Result<(), E>,
    ) -> anyhow::Result<String> {
        let file = format!("{}.svg", self.name);
        let path = directory.join(&file);
        let area = SVGBackend::new(&path, SIZE).into_drawing_area();
        area.fill(&WHITE)
            .map_err(|error| error.to_string())
            .and_then(|()| draw(&area).map_err(|error| error.to_string()))
            .and_then(|()| area.present().map_err(|error| error.to_string()))
            .map_err(|error| anyhow!("{}: {error}", path.display()))?;
        Ok(format!("![{}]({DIRECTORY}/{file})\n", self.title))
    }

    fn most(&self) -> f64 {
        let values = self.series.iter().flat_map(|series| &series.values);
        let most = values.flatten().copied().fold(0.0, f64::max);
        if most > 0.0 { most } else { 1.0 }
    }

    fn draw_lines(&self, area: &Area<'_>) -> Result<(), Error> {
        let (left, right) = area.split_horizontally(SIZE.0 - LEGEND);
        let mut chart = self.chart(&left, self.most() * 1.05)?;
        let colours = COLOURS.iter().cycle();
        for ((line, series), colour) in (0..).zip(&self.series).zip(colours) {
            let style = colour.stroke_width(if series.foreign { 1 } else { 2 });
            let inside = if series.foreign { &WHITE } else { colour };
            let points: Vec<(f64, f64)> = (0..)
                .zip(&series.values)
                .filter_map(|(x, y)| Some((f64::from(x), (*y)?)))
                .collect();
            chart.draw_series(LineSeries::new(points.clone(), style))?;
            for point in points {
                chart.draw_series([
                    Circle::new(point, 4, inside.filled()),
                    Circle::new(point, 4, style),
                ])?;
            }
            let (x, y) = legend(&right, line, series.name)?;
            right.draw(&PathElement::new([(x, y), (x + 24, y)], style))?;
            right.draw(&Circle::new((x + 12, y), 4, inside.filled()))?;
            right.draw(&Circle::new((x + 12, y), 4, style))?;
        }
        Ok(())
    }

    fn draw_bars(&self, area: &Area<'_>, mark: Option<f64>) -> Result<(), Error> {
        let (left, right) = area.split_horizontally(SIZE.0 - LEGEND);
        let mut chart = self.chart(&left, self.most().max(mark.unwrap_or(0.0)) * 1.05)?;
        let width = 0.8 / self.series.len() as f64;
        // Black is for the mark.
        let colours = COLOURS.iter().skip(1).cycle();
        for ((line, series), colour) in (0..).zip(&self.series).zip(colours) {
            let bars = (0..).zip(&series.values).filter_map(|(x, y)| {
                let left = f64::from(x) - 0.4 + f64::from(line) * width;
                let corners = [(left, 0.0), (left + width * 0.92, (*y)?)];
                Some(Rectangle::new(corners, colour.filled()))
            });
            chart.draw_series(bars)?;
            let (x, y) = legend(&right, line, series.name)?;
            right.draw(&Rectangle::new(
                [(x + 5, y - 6), (x + 19, y + 6)],
                colour.filled(),
            ))?;
        }
        if let Some(mark) = mark {
            let ends = [(-0.5, mark), (self.labels.len() as f64 - 0.5, mark)];
            chart.draw_series(LineSeries::new(ends, BLACK.stroke_width(1)))?;
        }
        Ok(())
    }

    /// Axes, from nothing to `top`.
    fn chart<'a, 'b>(&self, area: &'a Area<'b>, top: f64) -> Result<Chart<'a, 'b>, Error> {
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, (FONT, 19))
            .margin(12)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d(-0.5..self.labels.len() as f64 - 0.5, 0.0..top)?;
        let label = |x: &f64| {
            let whole = x.round();
            let near = (x - whole).abs() < 1e-6 && whole >= 0.0;
            let label = near.then(|| self.labels.get(whole as usize)).flatten();
            label.cloned().unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GREY.mix(0.25))
            .axis_style(GREY)
            .x_desc(self.x)
            .y_desc(self.y)
            .x_labels(2 * self.labels.len() + 1)
            .y_labels(6)
            .x_label_formatter(&label)
            .y_label_formatter(&|y| number(*y))
            .label_style((FONT, 12))
            .axis_desc_style((FONT, 14))
            .draw()?;
        Ok(chart)
    }
}

type Chart<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

type Error = DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>;

/// Names a series in this line, and says where its mark goes.
fn legend(area: &Area<'_>, line: i32, name: &str) -> Result<(i32, i32), Error> {
    let (x, y) = (4, 60 + 22 * line);
    let style = (FONT, 14)
        .into_text_style(area)
        .pos(Pos::new(HPos::Left, VPos::Center));
    area.draw(&Text::new(name.to_owned(), (x + 32, y), style))?;
    Ok((x, y))
}

fn number(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        large if large >= 1e6 => format!("{:.1} M", large / 1e6),
        large if large >= 1e4 => format!("{:.0} k", large / 1e3),
        large if large >= 10.0 => format!("{large:.0}"),
        small => format!("{small:.1}"),
    }
}
