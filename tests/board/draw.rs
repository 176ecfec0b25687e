//! The board as a picture, from its JSON and from what Prometheus answered: layout, titles, numbers, lines. Not
//! Grafana's rendering, but nothing in it is made up.

use std::fmt::Write as _;

use serde_json::Value;

/// One of the board's 24 columns, and one of its rows, in pixels.
const UNIT: (f64, f64) = (44.0, 26.0);
const COLOURS: [&str; 8] = ["#73bf69", "#f2cc0c", "#5794f2", "#ff780a", "#e02f44", "#b877d9", "#8ab8ff", "#96d98d"];

/// A panel and the answers to its queries, in order.
pub struct Drawn {
    pub panel: Value,
    pub answers: Vec<Vec<Value>>,
}

/// The picture of these panels, as SVG.
pub fn picture(panels: &[Drawn]) -> String {
    let bottom = |drawn: &Drawn| place(&drawn.panel, "y") + place(&drawn.panel, "h");
    let rows = panels.iter().map(bottom).fold(0.0, f64::max);
    let (width, height) = (24.0 * UNIT.0, rows * UNIT.1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#111217\"/>\n"
    );
    for drawn in panels {
        panel(&mut svg, drawn);
    }
    svg + "</svg>\n"
}

fn place(panel: &Value, field: &str) -> f64 {
    panel["gridPos"][field].as_f64().unwrap()
}

fn panel<'a>(svg: &mut String, Drawn { panel, answers }: &'a Drawn) {
    let at = |field: &str, unit: f64| place(panel, field) * unit;
    let (x, y, w, h) = (at("x", UNIT.0), at("y", UNIT.1), at("w", UNIT.0), at("h", UNIT.1));
    let title = escaped(panel["title"].as_str().unwrap());
    if panel["type"] == "row" {
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" fill=\"#ccccdc\" font-weight=\"bold\">{title}</text>",
            x + 6.0,
            y + 18.0
        );
        return;
    }
    let (inner_w, inner_h) = (w - 6.0, h - 6.0);
    let _ = writeln!(svg, "<g transform=\"translate({},{})\">", x + 3.0, y + 3.0);
    let _ =
        writeln!(svg, "<rect width=\"{inner_w}\" height=\"{inner_h}\" rx=\"3\" fill=\"#181b1f\" stroke=\"#2c3235\"/>");
    let _ = writeln!(svg, "<text x=\"8\" y=\"16\" fill=\"#ccccdc\">{title}</text>");
    let legends = panel["targets"].as_array().unwrap().iter().map(|target| &target["legendFormat"]);
    let of = |(series, legend): (&'a Vec<Value>, &'a Value)| -> Vec<(&'a Value, String)> {
        series.iter().map(|it| (it, named(legend.as_str().unwrap_or_default(), it))).collect()
    };
    let series: Vec<(&Value, String)> = answers.iter().zip(legends).flat_map(of).collect();
    match panel["type"].as_str().unwrap() {
        "stat" => stat(svg, &series, &panel["fieldConfig"]["defaults"]["thresholds"]["steps"], inner_w, inner_h),
        "table" => table(svg, &series),
        _ => lines(svg, &series, inner_w, inner_h),
    }
    svg.push_str("</g>\n");
}

fn points(series: &Value) -> Vec<(f64, f64)> {
    let number = |value: &Value| value.as_str().and_then(|text| text.parse::<f64>().ok()).filter(|it| it.is_finite());
    let values = series["values"].as_array().cloned().unwrap_or_else(|| vec![series["value"].clone()]);
    values.iter().filter_map(|point| Some((point[0].as_f64()?, number(&point[1])?))).collect()
}

fn shown(value: f64) -> String {
    if value.fract().abs() < 0.005 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// The colour of a value, as the panel's steps have it.
fn coloured(steps: &Value, value: f64) -> &'static str {
    let steps = steps.as_array().unwrap().iter().rev();
    let step = steps
        .map(|step| (step["value"].as_f64(), step["color"].as_str()))
        .find(|(from, _)| from.is_none_or(|from| value >= from));
    match step.and_then(|(_, name)| name) {
        Some("red") => "#e02f44",
        Some("yellow") => "#f2cc0c",
        Some("green") => "#73bf69",
        _ => "#5794f2",
    }
}

fn stat(svg: &mut String, series: &[(&Value, String)], steps: &Value, w: f64, h: f64) {
    let Some((_, value)) = series.first().and_then(|(it, _)| points(it).last().copied()) else { return };
    let colour = coloured(steps, value);
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" fill=\"{colour}\" font-size=\"34\" text-anchor=\"middle\">{}</text>",
        w / 2.0,
        h / 2.0 + 16.0,
        shown(value)
    );
}

fn table(svg: &mut String, series: &[(&Value, String)]) {
    for (line, (it, _)) in series.iter().take(6).enumerate() {
        let labels = ["node", "reason", "is", "node_config_source", "node_config_resource_version"];
        let words: Vec<&str> = labels.iter().filter_map(|label| it["metric"][label].as_str()).collect();
        let y = 36.0 + 17.0 * f64::from(u32::try_from(line).unwrap());
        let _ = writeln!(svg, "<text x=\"8\" y=\"{y}\" fill=\"#9fa7b3\">{}</text>", escaped(&words.join("   ")));
    }
}

fn lines(svg: &mut String, series: &[(&Value, String)], w: f64, h: f64) {
    let all: Vec<(f64, f64)> = series.iter().flat_map(|(it, _)| points(it)).collect();
    let span = |pick: fn(&(f64, f64)) -> f64| {
        all.iter().map(pick).fold((f64::MAX, f64::MIN), |(low, high), it| (low.min(it), high.max(it)))
    };
    let (from, to) = span(|point| point.0);
    let top = span(|point| point.1).1.max(1e-9);
    let (left, right, low, high) = (34.0, w - 10.0, h - 40.0, 28.0);
    let x = |time: f64| left + (time - from) / (to - from).max(1.0) * (right - left);
    let y = |value: f64| low - value / top * (low - high);
    for (value, at) in [(0.0, low), (top, high)] {
        let _ = writeln!(svg, "<path d=\"M{left} {at}H{right}\" stroke=\"#2c3235\"/>");
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" fill=\"#9fa7b3\" text-anchor=\"end\">{}</text>",
            left - 4.0,
            at + 4.0,
            shown(value)
        );
    }
    let mut key = left;
    for ((it, name), colour) in series.iter().zip(COLOURS.iter().cycle()) {
        let mut path = String::new();
        let mut before: Option<f64> = None;
        for (time, value) in points(it) {
            // A gap is a gap.
            let verb = if before.is_some_and(|before| time - before < 2.0) { 'L' } else { 'M' };
            let _ = write!(path, "{verb}{:.1} {:.1}", x(time), y(value));
            before = Some(time);
        }
        let _ = writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>");
        let name = escaped(name);
        let length = 24.0 + 6.4 * f64::from(u32::try_from(name.chars().count()).unwrap());
        if key + length < right {
            let _ = writeln!(svg, "<rect x=\"{key}\" y=\"{}\" width=\"9\" height=\"3\" fill=\"{colour}\"/>", h - 17.0);
            let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\" fill=\"#9fa7b3\">{name}</text>", key + 12.0, h - 12.0);
        }
        key += length;
    }
}

/// Grafana's `{{label}}`.
fn named(legend: &str, series: &Value) -> String {
    let mut name = String::new();
    for (index, part) in legend.split("{{").enumerate() {
        let (label, rest) = if index == 0 { ("", part) } else { part.split_once("}}").unwrap_or((part, "")) };
        name += series["metric"][label].as_str().unwrap_or_default();
        name += rest;
    }
    name.replace("/api/v1/namespaces/", "").replace("/configmaps/", "/")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
