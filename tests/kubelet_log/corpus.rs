//! Ends of kubelets 1.20 to 1.37, written in the shapes of public reports: `tests/fixtures/kubelet-log/`. The table beside them,
//! `reasons.tsv`, has the exit code, the verdict of a preflight and the reason of each.

use std::collections::BTreeSet;
use std::fs;

use kubelet_supervisor::adapters::preflight::classify;
use kubelet_supervisor::adapters::process::ProgramOutput;
use kubelet_supervisor::machine::model::{Exit, Verdict};

use super::{reason, reason_by_the_tail};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/kubelet-log");

struct Case {
    name: String,
    log: String,
    code: i32,
    verdict: Option<String>,
    reason: Option<String>,
}

fn corpus() -> Vec<Case> {
    let table = fs::read_to_string(format!("{FIXTURES}/reasons.tsv")).unwrap();
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    let cases: Vec<Case> = rows
        .map(|row| {
            let cells: Vec<&str> = row.split('\t').collect();
            let [name, code, verdict, reason] = cells[..] else { panic!("{row}") };
            let told = |cell: &str| Some(cell.to_owned()).filter(|cell| cell != "-");
            let log = fs::read_to_string(format!("{FIXTURES}/{name}.log")).unwrap();
            let (verdict, reason) = (told(verdict), told(reason));
            Case { name: name.to_owned(), log, code: code.parse().unwrap(), verdict, reason }
        })
        .collect();
    let named: BTreeSet<String> = cases.iter().map(|case| format!("{}.log", case.name)).collect();
    let files = fs::read_dir(FIXTURES).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let there: BTreeSet<String> = files.filter(|name| name != "reasons.tsv").collect();
    assert_eq!(named, there, "each log has a row");
    assert!(cases.len() >= 40);
    cases
}

/// All of them, before the first failure is told.
fn check(what: &str, found: impl Fn(&Case) -> Option<String>) {
    let wrong: Vec<String> = corpus()
        .iter()
        .filter_map(|case| {
            let found = found(case);
            (found != case.reason).then(|| format!("{}:\n  {found:?}\n  {:?} is right", case.name, case.reason))
        })
        .collect();
    assert!(wrong.is_empty(), "{what}: {} of the corpus\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn each_log_says_why() {
    check("the whole log", |case| reason(&case.log));
}

#[test]
fn the_lines_that_are_kept_say_why() {
    check("the tail", |case| reason_by_the_tail(case.log.as_bytes()));
    // Stacks, and hours of work before them.
    let work = |n| format!("I1126 {:02}:00:00.000000     373 reconciler.go:26] \"Synced\" round=\"{n}\"\n", n / 10);
    let before: String = (0..200).map(work).collect();
    check("the tail after work", |case| reason_by_the_tail(format!("{before}{}", case.log).as_bytes()));
}

#[test]
fn what_stands_before_each_line_changes_nothing() {
    let each = |log: &str, change: &dyn Fn(&str) -> String| log.lines().map(change).collect::<String>();
    check("carriage returns", |case| reason(&each(&case.log, &|line| format!("{line}\r\n"))));
    check("the journal", |case| reason(&each(&case.log, &|line| format!("Nov 26 22:20:24 n1 kubelet[373]: {line}\n"))));
    check("the journal, with systemd", |case| {
        let log = each(&case.log, &|line| format!("2026-11-26T22:20:24+0000 n1 kubelet[373]: {line}\n"));
        let end = "Main process exited, code=exited, status=1/FAILURE";
        reason(&format!("{log}2026-11-26T22:20:24+0000 n1 systemd[1]: kubelet.service: {end}\n"))
    });
    check("a container's log", |case| {
        reason(&each(&case.log, &|line| format!("2026-11-26T22:20:24.123456789Z stderr F {line}\n")))
    });
    check("colours", |case| {
        reason(&each(&case.log, &|line| {
            if line.starts_with(['\t', ' ']) { format!("{line}\n") } else { format!("\u{1b}[31;1m{line}\u{1b}[0m\n") }
        }))
    });
    check("a vendor's word", |case| {
        let is_klog = |line: &str| line.get(1..5).is_some_and(|date| date == "1126");
        reason(&each(&case.log, &|line| if is_klog(line) { format!("??? {line}\n") } else { format!("{line}\n") }))
    });
}

#[test]
fn a_log_cut_anywhere_gives_no_number_for_a_reason() {
    for case in corpus() {
        let ends = case.log.char_indices().map(|(at, _)| at).step_by(7);
        for end in ends {
            let found = reason(case.log.get(..end).unwrap()).unwrap_or_default();
            let words = ["0x", "0000000000", "goroutine 1", "goroutine 3", "s3cret", ".go:", "sigcode"];
            assert!(words.iter().all(|word| !found.contains(word)), "{}, cut at {end}: {found}", case.name);
        }
    }
}

#[test]
fn a_preflight_reads_the_same_reasons() {
    let mut wrong = Vec::new();
    for case in corpus() {
        let Some(expected) = &case.verdict else { continue };
        let run = ProgramOutput { exit: Some(Exit::Code(case.code)), output: case.log.clone().into_bytes() };
        let (verdict, message) = match classify(&run) {
            Err(message) => ("flags", message),
            Ok(Verdict::Valid(remarks)) => ("valid", remarks.join("; ")),
            Ok(verdict @ (Verdict::Load(_) | Verdict::Validate(_) | Verdict::Inconclusive(_))) => {
                let kind = verdict.result().as_str();
                let (Verdict::Load(message) | Verdict::Validate(message) | Verdict::Inconclusive(message)) = verdict
                else {
                    continue;
                };
                (kind, message)
            }
            Ok(Verdict::NotItsFault(message)) => ("not its fault", message),
        };
        let reason = case.reason.clone().unwrap_or_default();
        let reason = ["panic: ", "Error: "].iter().find_map(|label| reason.strip_prefix(label)).unwrap_or(&reason);
        if verdict != expected || verdict != "valid" && message != reason {
            wrong
                .push(format!("{}: {verdict} instead of {expected}:\n  {message:?}\n  {reason:?} is right", case.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
