//! Metrics as text.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// The OpenMetrics text.
#[must_use]
pub fn open_metrics(registry: &Registry) -> String {
    let mut text = String::new();
    let _ = encode(&mut text, registry);
    text
}

/// The same in Prometheus' older text format, 0.0.4, which says `_total` in the name of a counter and not of its samples
/// alone.
#[must_use]
pub fn older(open_metrics: &str) -> String {
    let lines = || open_metrics.lines().filter(|line| *line != "# EOF");
    let counters: BTreeSet<&str> =
        lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let mut text = String::new();
    for line in lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(kind), Some(name), Some(rest)) if counters.contains(name) => {
                let _ = writeln!(text, "# {kind} {name}_total {rest}");
            }
            _ => {
                let _ = writeln!(text, "{line}");
            }
        }
    }
    text
}

/// True if a scraper asks for OpenMetrics by name, and not rather for the older text format, which all read
/// (RFC 9110, 12.5.1: `q` is 1 where it is not given).
#[must_use]
pub fn prefers_open_metrics(accept: &str) -> bool {
    let weight = |kind: &str| {
        let weight = |range: &str| {
            let (name, parameters) = range.split_once(';').unwrap_or((range, ""));
            let weight = parameters.split(';').find_map(|it| it.trim().strip_prefix("q="));
            name.trim().eq_ignore_ascii_case(kind).then(|| weight.map_or(1.0, |q| q.parse().unwrap_or(0.0)))
        };
        accept.split(',').filter_map(weight).fold(0.0, f64::max)
    };
    let open_metrics = weight("application/openmetrics-text");
    open_metrics > 0.0 && open_metrics >= weight("text/plain")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrapers_get_the_format_that_they_ask_for() {
        // Prometheus 2.42; one that is told `scrape_protocols: [PrometheusText0.0.4, OpenMetricsText1.0.0]`.
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let text_first = "text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.2";
        for accept in [prometheus, "application/openmetrics-text", "text/html, Application/OpenMetrics-Text; q=0.3"] {
            assert!(prefers_open_metrics(accept), "{accept}");
        }
        for accept in [text_first, "", "*/*", "text/plain", "application/openmetrics-text;q=0", "openmetrics", ";;,q=1"]
        {
            assert!(!prefers_open_metrics(accept), "{accept}");
        }
    }
}
