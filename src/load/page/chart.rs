//! One chart: its lines, drawn as SVG in each of the widths that the page has use for.

use maud::{Markup, PreEscaped, html};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::series::AreaSeries;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::{Axis, text_width};
use super::ink::Ink;

/// The library draws on whole pixels: drawn this much larger and shown smaller, lines are smooth.
const FINE: u32 = 4;

/// Text, in pixels as shown. The library writes 1 / 1.24 of the size it is told.
const TEXT: f64 = 12.0;

/// The sizes a chart is drawn in, as shown, with the class that the style sheet chooses by. Text keeps its size, so
/// that it can be read on a phone.
const SIZES: [(&str, u32, u32); 3] = [("wide", 1_098, 270), ("half", 522, 230), ("phone", 332, 200)];

/// One chart.
pub(super) struct Chart {
    /// Its heading.
    pub title: &'static str,
    /// What its axes are, for those who cannot see them too.
    pub about: String,
    /// Whether it takes the whole width of a large screen.
    pub is_wide: bool,
    /// The axis along.
    pub x: Axis,
    /// The axis up.
    pub y: Axis,
    /// What the axis along shows.
    pub x_name: &'static str,
    /// What is drawn, the first on top.
    pub lines: Vec<Line>,
    /// A limit, drawn across, and what it is.
    pub limit: Option<(f64, String)>,
}

/// One line of a chart.
pub(super) struct Line {
    /// Its name in the legend.
    pub name: &'static str,
    /// Its most telling figure, beside the name.
    pub figure: String,
    /// Its colour.
    pub ink: Ink,
    /// Whether what is below is tinted.
    pub is_filled: bool,
    /// Its points; a new run begins where there is nothing to show in between.
    pub runs: Vec<Vec<(f64, f64)>>,
}

impl Chart {
    /// The chart as a figure of the page, `number` telling it from the others.
    pub(super) fn figure(&self, number: usize) -> Markup {
        html! {
            figure.wide[self.is_wide] {
                h3 { (self.title) }
                ul.legend {
                    @for line in &self.lines {
                        li class=(line.ink.class()) { (line.name) " " b { (line.figure) } }
                    }
                    @if let Some((_, name)) = &self.limit { li.bad.limit { (name) } }
                }
                @for (class, width, height) in SIZES {
                    @if self.is_wide || class != "wide" { (self.svg(number, class, width, height)) }
                }
            }
        }
    }

    /// The chart in one size. Its title and description are what a screen reader reads.
    fn svg(&self, number: usize, class: &str, width: u32, height: u32) -> Markup {
        let mut drawn = String::new();
        let is_drawn = self.draw(&mut drawn, width, height).is_ok();
        // The library opens its document with a size of its own; what is inside is all that is wanted of it.
        let inside = drawn.split_once("<svg").and_then(|(_, rest)| rest.split_once('>')).map(|(_, inside)| inside);
        let inside = inside.and_then(|inside| inside.rsplit_once("</svg>")).map(|(inside, _)| inside);
        let (title, about) = (format!("{class}-{number}-title"), format!("{class}-{number}-about"));
        html! {
            @if let (true, Some(inside)) = (is_drawn, inside) {
                svg class=(class) viewBox=(format!("0 0 {} {}", width * FINE, height * FINE)) role="img"
                    aria-labelledby=(format!("{title} {about}")) {
                    title id=(title) { (self.title) }
                    desc id=(about) { (self.about) }
                    (PreEscaped(inside))
                }
            } @else {
                p.none { "This chart could not be drawn." }
            }
        }
    }

    fn draw(&self, into: &mut String, width: u32, height: u32) -> Drawn {
        let area = SVGBackend::with_string(into, (width * FINE, height * FINE)).into_drawing_area();
        let left = self.y.ticks.iter().map(|(_, told)| text_width(told)).fold(0.0, f64::max) + 14.0;
        // Half of the last tick's text stands beyond the axis.
        let right = self.x.ticks.last().map_or(8.0, |(_, told)| text_width(told) / 2.0 + 2.0);
        let mut chart = ChartBuilder::on(&area)
            .margin_top(8 * FINE)
            .margin_right(fine(right))
            .x_label_area_size(40 * FINE)
            .y_label_area_size(fine(left))
            .build_cartesian_2d(self.x.clone().thinned(f64::from(width) - left - right), self.y.clone())?;
        let text = ("sans-serif", TEXT * 1.24 * f64::from(FINE)).into_font().color(&Ink::Label.drawn());
        let thin = ShapeStyle::from(&Ink::Grid.drawn()).stroke_width(FINE);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(thin)
            .light_line_style(TRANSPARENT)
            .axis_style(thin)
            .set_all_tick_mark_size(4 * FINE)
            .label_style(text.clone())
            .draw()?;
        let (along, up) = ((left + f64::from(width) - right) / 2.0, f64::from(height) - 2.0);
        let name = text.pos(Pos::new(HPos::Center, VPos::Bottom));
        area.draw_text(self.x_name, &name, (fine(along), fine(up)))?;
        self.draw_lines(&mut chart)?;
        self.draw_limit(&mut chart)?;
        drop(chart);
        area.present()?;
        Ok(())
    }

    fn draw_lines(&self, chart: &mut Canvas) -> Drawn {
        for line in self.lines.iter().rev() {
            let ink = line.ink.drawn();
            for run in &line.runs {
                if line.is_filled {
                    let below = self.y.range.start;
                    chart.draw_series(AreaSeries::new(run.iter().copied(), below, ink.mix(0.14)))?;
                }
                if let [single] = run.as_slice() {
                    chart.draw_series([Circle::new(*single, 2 * FINE, ink.filled())])?;
                } else {
                    let stroke = ShapeStyle::from(&ink).stroke_width(FINE * 7 / 4);
                    chart.draw_series(LineSeries::new(run.iter().copied(), stroke))?;
                }
            }
        }
        Ok(())
    }

    fn draw_limit(&self, chart: &mut Canvas) -> Drawn {
        let Some((limit, _)) = self.limit.as_ref().filter(|(limit, _)| self.y.range.contains(limit)) else {
            return Ok(());
        };
        let ends = [(self.x.range.start, *limit), (self.x.range.end, *limit)];
        let stroke = ShapeStyle::from(&Ink::Bad.drawn()).stroke_width(FINE * 3 / 2);
        chart.draw_series(DashedLineSeries::new(ends, fine(6.0), fine(4.0), stroke))?;
        Ok(())
    }
}

type Drawn = Result<(), Box<dyn std::error::Error>>;
type Canvas<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        // What is beyond the axis stays at its end: no figure draws over the page.
        from + (share.clamp(0.0, 1.0) * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.ticks.iter().map(|(at, _)| *at).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        self.ticks.iter().find(|(at, _)| at == value).map(|(_, told)| told.clone()).unwrap_or_default()
    }
}

/// Pixels as shown, in pixels as drawn.
fn fine(pixels: f64) -> i32 {
    (pixels * f64::from(FINE)).round() as i32
}
