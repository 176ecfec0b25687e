use serde_json::{Value, json};

use super::*;

fn at(windows: Value, now: &str) -> Result<Windows, String> {
    let windows: Vec<MaintenanceWindow> = serde_json::from_value(windows).unwrap();
    Windows::at(&windows, now.parse().unwrap())
}

fn open(until: &str) -> Windows {
    Windows::OpenUntil(until.parse().unwrap())
}

fn closed(until: &str) -> Windows {
    Windows::ClosedUntil(until.parse().unwrap())
}

#[test]
fn a_day_is_that_of_the_start() {
    // 2026-01-05 is a Monday.
    let night = json!([{"days": ["Mon"], "start": "22:00", "hours": 4}]);
    assert_eq!(at(night.clone(), "2026-01-05T21:59:59Z").unwrap(), closed("2026-01-05T22:00:00Z"));
    assert_eq!(at(night.clone(), "2026-01-05T22:00:00Z").unwrap(), open("2026-01-06T02:00:00Z"));
    assert_eq!(
        at(night.clone(), "2026-01-06T01:00:00Z").unwrap(),
        open("2026-01-06T02:00:00Z"),
        "Tuesday, past midnight"
    );
    assert_eq!(at(night.clone(), "2026-01-06T02:00:00Z").unwrap(), closed("2026-01-12T22:00:00Z"));
    assert_eq!(at(night, "2026-01-05T01:00:00Z").unwrap(), closed("2026-01-05T22:00:00Z"), "Monday, before it begins");
}

#[test]
fn clocks_are_those_of_the_zone() {
    let rome = json!([{"start": "02:30", "hours": 1, "timeZone": "Europe/Rome"}]);
    assert_eq!(at(rome.clone(), "2026-01-05T01:30:00Z").unwrap(), open("2026-01-05T02:30:00Z"), "CET");
    assert_eq!(at(rome.clone(), "2026-07-05T00:30:00Z").unwrap(), open("2026-07-05T01:30:00Z"), "CEST");
    // On 2026-03-29 clocks go from 02:00 to 03:00, on 2026-10-25 from 03:00 back to 02:00.
    assert_eq!(at(rome.clone(), "2026-03-29T01:15:00Z").unwrap(), closed("2026-03-29T01:30:00Z"), "02:30 is 03:30");
    assert_eq!(at(rome.clone(), "2026-10-25T00:45:00Z").unwrap(), open("2026-10-25T01:30:00Z"), "the first 02:30");
    assert_eq!(at(rome, "2026-10-25T01:45:00Z").unwrap(), closed("2026-10-26T01:30:00Z"), "and not the second");
}

#[test]
fn hours_are_hours_whatever_clocks_do() {
    let rome = json!([{"days": ["Sat"], "start": "22:00", "hours": 8, "timeZone": "Europe/Rome"}]);
    assert_eq!(
        at(rome, "2026-03-28T22:00:00Z").unwrap(),
        open("2026-03-29T05:00:00Z"),
        "07:00, and 06:00 in other weeks"
    );
}

#[test]
fn one_that_is_open_is_enough() {
    let two = json!([{"start": "01:00", "hours": 2}, {"start": "02:00", "hours": 2}]);
    assert_eq!(at(two.clone(), "2026-01-05T01:30:00Z").unwrap(), open("2026-01-05T03:00:00Z"));
    assert_eq!(at(two.clone(), "2026-01-05T02:30:00Z").unwrap(), open("2026-01-05T04:00:00Z"));
    assert_eq!(at(two, "2026-01-05T12:00:00Z").unwrap(), closed("2026-01-06T01:00:00Z"));
    assert_eq!(at(json!([]), "2026-01-05T12:00:00Z").unwrap(), Windows::None);
    let week = json!([{"days": ["Mon"], "start": "00:00", "hours": 168}]);
    assert_eq!(at(week, "2026-01-11T23:59:59Z").unwrap(), open("2026-01-12T00:00:00Z"), "always open");
}

#[test]
fn what_makes_no_sense_is_said() {
    let fault = |window: Value| at(json!([window]), "2026-01-05T12:00:00Z").unwrap_err();
    let zone = fault(json!({"start": "02:00", "hours": 1, "timeZone": "Europe/Rom"}));
    assert!(zone.starts_with("spec.rollout.windows[0].timeZone \"Europe/Rom\""), "{zone}");
    assert!(fault(json!({"start": "25:00", "hours": 1})).contains(".start \"25:00\""));
    assert!(fault(json!({"start": "02:00", "hours": 0})).contains(".hours 0"));
}
