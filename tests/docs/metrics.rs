//! Metrics: what documents, rules and board say of them, and what the code has.

use std::collections::BTreeSet;

use crate::{REFERENCE, code, names, read, table};

const RULES: &str = "packaging/prometheus/rules.yaml";
const BOARD: &str = "packaging/grafana/kubelet-supervisor.json";
const ALERTS: &str = "docs/usage/alerts.md";
const OWN: &str = "kubelet_supervisor_";
const CONTROLLER: &str = "kubelet_config_";

/// Our own, as registered in `src/adapters/metrics.rs`.
fn own() -> BTreeSet<String> {
    let source = read("src/adapters/metrics.rs");
    let quoted = format!("\"{OWN}");
    let names: BTreeSet<String> =
        source.split(&quoted).skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()).collect();
    assert!(names.len() >= 12, "{names:?}");
    names
}

/// All that are registered, with what the exposition adds to each name.
fn registered() -> BTreeSet<String> {
    let own = own().into_iter().map(|name| format!("{OWN}{name}"));
    let of_controller = of_controller().into_iter().map(|name| format!("{CONTROLLER}{name}"));
    let native = ["assigned", "active", "last_known_good", "error"].map(|name| format!("kubelet_node_config_{name}"));
    let all = own.chain(native).chain(of_controller);
    all.flat_map(|name| ["", "_total", "_bucket", "_sum", "_count"].map(|end| format!("{name}{end}"))).collect()
}

/// As registered by the controller of pools.
fn of_controller() -> BTreeSet<String> {
    let source = read("crates/kubectl-plugin/src/controller/metrics.rs");
    let quoted = source.split('"').filter(|text| ["controller_", "pool_"].iter().any(|of| text.starts_with(of)));
    let names: BTreeSet<String> = quoted.map(str::to_owned).collect();
    assert!(names.len() >= 9, "{names:?}");
    names
}

/// The words of an expression that can be names of metrics of ours or of records.
fn metrics(expr: &str) -> Vec<String> {
    let words = expr.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let ours = |word: &&str| {
        word.starts_with("kubelet_node_config_")
            || word.starts_with("kubelet_supervisor")
            || ["controller_", "pool_"].iter().any(|name| word.starts_with(&format!("{CONTROLLER}{name}")))
    };
    // These are labels.
    let labels = ["source", "uid", "resource_version", "kubelet_key"].map(|end| format!("kubelet_node_config_{end}"));
    words.filter(ours).map(str::to_owned).filter(|word| !labels.contains(word)).collect()
}

fn rules() -> Vec<serde_json::Value> {
    let rules: serde_json::Value = serde_yaml::from_str(&read(RULES)).unwrap();
    rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

fn board_exprs() -> Vec<String> {
    let board: serde_json::Value = serde_json::from_str(&read(BOARD)).unwrap();
    let targets = board["panels"].as_array().unwrap().iter();
    let targets = targets.flat_map(|panel| panel["targets"].as_array().cloned().unwrap_or_default());
    let exprs: Vec<String> = targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect();
    assert!(exprs.len() > 25, "{}", exprs.len());
    exprs
}

#[test]
fn every_metric_of_rules_and_board_exists() {
    let rules = rules();
    let records: BTreeSet<String> =
        rules.iter().filter_map(|rule| rule["record"].as_str()).map(str::to_owned).collect();
    let known = registered();
    let exprs = rules.iter().map(|rule| rule["expr"].as_str().unwrap().to_owned());
    for expr in exprs.chain(board_exprs()) {
        let found = metrics(&expr);
        assert!(!found.is_empty() || expr.contains("up{"), "{expr}");
        for name in found {
            assert!(known.contains(&name) || records.contains(&name), "{name} in {expr}");
        }
    }
}

#[test]
fn every_metric_is_listed_and_exists() {
    let listed: BTreeSet<String> =
        names(&table(REFERENCE, "metric")).iter().map(|name| name.trim_end_matches("_total").to_owned()).collect();
    assert_eq!(listed, own());
    let rows = names(&table(REFERENCE, "metric of `controller`"));
    let listed: BTreeSet<String> = rows.iter().map(|name| name.trim_end_matches("_total").to_owned()).collect();
    assert_eq!(listed, of_controller());
}

#[test]
fn every_alert_has_a_test_and_a_chapter_of_the_runbook() {
    let tests = read("tests/prometheus/rules.test.yaml");
    let runbook = read(ALERTS);
    let mut alerts = BTreeSet::new();
    for rule in rules().iter().filter(|rule| rule["alert"].is_string()) {
        let name = rule["alert"].as_str().unwrap();
        alerts.insert(name.to_owned());
        let fires = format!("alertname: {name}\n    exp_alerts:\n    - exp_labels");
        assert!(tests.contains(&fires), "{name} fires in no test");
        let link = format!("{ALERTS}#{}", name.to_lowercase());
        assert_eq!(rule["annotations"]["runbook"], link, "{name}");
        assert!(runbook.contains(&format!("\n## {name}\n")), "{ALERTS} has no chapter {name}");
        let row = table(ALERTS, "alert").into_iter().find(|row| row[0].contains(&format!("[{name}]")));
        let row = row.unwrap_or_else(|| panic!("{ALERTS} does not list {name}"));
        assert_eq!(row[1], rule["labels"]["severity"], "{name}");
    }
    let chapters = runbook.lines().filter_map(|line| line.strip_prefix("## Kubelet"));
    let chapters: BTreeSet<String> = chapters.map(|rest| format!("Kubelet{rest}")).collect();
    assert_eq!(alerts, chapters);
    for name in code(&runbook).iter().flat_map(|word| metrics(word)) {
        assert!(registered().contains(&name), "{name}");
    }
}

/// Whoever is sent a token can use it.
#[test]
fn scrapers_send_their_token_to_who_was_verified() {
    for (file, name) in [("scrape.yaml", "server_name: "), ("podmonitor.yaml", "serverName: ")] {
        let text = read(&format!("packaging/prometheus/{file}"));
        assert!(text.contains(&format!("{name}kubelet-supervisor-metrics")), "{file}");
        assert!(!text.to_lowercase().replace('_', "").contains("insecureskipverify"), "{file}");
    }
    let proxy = read("packaging/prometheus/proxy.yaml");
    assert!(proxy.contains("--tls-cert-file=") && proxy.contains("secretName: kubelet-supervisor-metrics-tls"));
}
