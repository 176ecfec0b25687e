//! The documents say what the code does: tables and the diagram of `docs/usage`, read and compared.
#![cfg(test)]

mod advisories;
mod maps;
mod measured;
mod metrics;
mod policies;
mod readme;
mod sbom;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testkit::built::program;

use kubelet_config::duration::GoDuration;
use kubelet_config::hazard::HazardClass;
use kubelet_config::status::ConditionReason;
use kubelet_supervisor::machine::evidence::{Failure, FailureFamily, Signal, Suspension};
use kubelet_supervisor::machine::limits;

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of the table whose head begins with this cell, in a document.
fn table(document: &str, head: &str) -> Vec<Vec<String>> {
    let start = format!("| {head} |");
    let text = read(document);
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&start));
    assert!(lines.next().is_some(), "{document} has no table {head:?}");
    let row = |line: &str| {
        // A bar within code is no border.
        let line = line.replace("\\|", "/");
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    lines.skip(1).take_while(|line| line.starts_with('|')).map(row).collect()
}

/// The words in backticks.
fn code(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// First cells, out of their backticks.
fn names(rows: &[Vec<String>]) -> BTreeSet<String> {
    rows.iter().flat_map(|row| code(&row[0])).collect()
}

const TRIAL: &str = "docs/usage/trial.md";
const REFERENCE: &str = "docs/usage/reference.md";

#[test]
fn every_signal_with_its_patience() {
    let isolation = Duration::from_secs(7777);
    let expected: Vec<[String; 2]> = Signal::ALL
        .into_iter()
        .map(|signal| {
            let patience = match signal.patience(isolation) {
                patience if patience == isolation => "`--isolation-timeout`".to_owned(),
                patience => format!("{} s", patience.as_secs()),
            };
            [format!("`{}`", signal.label()), patience]
        })
        .collect();
    let rows = table(TRIAL, "signal");
    let shown: Vec<[String; 2]> = rows.iter().map(|row| [row[0].clone(), row[2].clone()]).collect();
    assert_eq!(shown, expected);
    let pace = format!("asked every {} s", limits::PROBE_TRIAL.as_secs());
    assert!(rows[0][1].contains(&pace), "{pace}");
    assert!(rows[1][1].contains(&format!("every {} s", limits::WATCHDOG_INTERVAL.as_secs() / 2)));
}

#[test]
fn every_way_to_fail_and_its_family() {
    let family = |failure: Failure| match failure.family() {
        Some(FailureFamily::Process) => "process",
        Some(FailureFamily::Contact) => "contact",
        Some(FailureFamily::Runtime) => "runtime",
        None => "no",
    };
    let expected: BTreeMap<String, &str> =
        Failure::all().map(|failure| (format!("`{}`", failure.label()), family(failure))).collect();
    let rows = table(TRIAL, "reason");
    let shown: BTreeMap<String, &str> = rows.iter().map(|row| (row[0].clone(), row[2].as_str())).collect();
    assert_eq!(shown, expected);
    assert_eq!(rows.len(), expected.len(), "each once");
    // Does not compile when one is added, which then belongs into `all` and the count below.
    for failure in Failure::all() {
        match failure {
            Failure::ExitBeforeReady | Failure::Exits | Failure::StartTimeout | Failure::Signal(_) => {}
            Failure::Boots | Failure::Unconfirmed | Failure::Operator => {}
        }
    }
    assert_eq!(Failure::all().count(), 6 + Signal::ALL.len());
}

#[test]
fn every_suspension() {
    for suspension in Suspension::ALL {
        match suspension {
            Suspension::Runtime | Suspension::ApiServer | Suspension::DiskFull | Suspension::ShuttingDown => {}
        }
    }
    let rows = table(TRIAL, "suspension");
    let shown: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(shown, Suspension::ALL.map(Suspension::message));
}

#[test]
fn every_class_of_hazards() {
    let shown: BTreeMap<String, String> =
        table(TRIAL, "class").into_iter().map(|row| (code(&row[0])[0].clone(), row[1].clone())).collect();
    let expected = HazardClass::ALL.map(|class| {
        let refused = match class {
            HazardClass::Pods => "if it would cost pods",
            class if class.is_refused() => "yes",
            _ => "no",
        };
        (class.label().to_owned(), refused.to_owned())
    });
    assert_eq!(shown, BTreeMap::from(expected));
    for row in table(TRIAL, "class") {
        for field in code(&row[2]) {
            let hazard = kubelet_config::hazard::table::find(&field).unwrap_or_else(|| panic!("{field}"));
            assert_eq!(hazard.class.label(), code(&row[0])[0], "{field}");
        }
    }
}

#[test]
fn every_class_of_hazards_is_judged_for_cluster_api() {
    let rows = table("docs/usage/gitops.md", "class of hazard");
    let shown: Vec<String> = rows.iter().flat_map(|row| code(&row[0])).collect();
    let known = HazardClass::ALL.map(|class| class.label().to_owned());
    assert_eq!((shown.iter().collect::<BTreeSet<_>>(), shown.len()), (known.iter().collect(), known.len()));
    // What a node refuses is not what an extension may promise.
    for class in HazardClass::ALL.into_iter().filter(|class| class.is_refused()) {
        let row = rows.iter().find(|row| code(&row[0]).contains(&class.label().to_owned())).unwrap();
        assert_ne!(row[1], "yes", "{}", class.label());
    }
}

#[test]
fn the_numbers() {
    let time = |duration: Duration| GoDuration(duration).to_string();
    // Go's spelling has no zeros at the end here: `10m0s` is what nobody writes.
    let plain = |text: String| {
        let text = text.strip_suffix("m0s").map_or(text.clone(), |text| format!("{text}m"));
        text.strip_suffix("h0m").map_or(text.clone(), |text| format!("{text}h"))
    };
    let expected = [
        time(limits::TRIAL_DURATION),
        time(limits::START_TIMEOUT),
        time(limits::ISOLATION),
        limits::TRIAL_BOOTS.to_string(),
        "none".to_owned(),
        limits::TRIAL_EXITS.to_string(),
        limits::TRIAL_BREAKS.to_string(),
        time(limits::ATTRIBUTION),
        time(limits::QUERY_DEADLINE),
        time(limits::SUSPENSION_GRACE),
        time(limits::CONTROL_TEST),
        time(limits::RETRY_LATER.first),
        time(limits::RETRY_LATER.most),
        time(limits::RUNTIME_GONE),
        limits::PROVEN_KEPT.to_string(),
        limits::BAD_VERSIONS.to_string(),
    ];
    let rows = table(TRIAL, "what");
    let shown: Vec<String> = rows.iter().map(|row| row[1].clone()).collect();
    assert_eq!(shown, expected.map(plain));
    let text = read(TRIAL);
    assert!(text.contains(&format!("its turn has come, {} s at the most;", limits::BASELINE.as_secs())));
    assert!(text.contains(&format!("at the node, {} s at the most.", limits::QUERY_DEADLINE.as_secs())));
}

/// Event reasons that stand in the source of `core`.
fn reasons_in_code() -> BTreeSet<String> {
    fn walk(dir: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let body = text.split("#[cfg(test)]").next().unwrap();
            found.extend(body.split('"').filter(|word| is_reason(word)).map(str::to_owned));
        }
    }
    let mut found = BTreeSet::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/machine"), &mut found);
    found.remove("KubeletConfigOk"); // a condition's type
    found
}

fn is_reason(word: &str) -> bool {
    let rest = word.strip_prefix("KubeletConfig").unwrap_or_default();
    // Those that are about no configuration.
    ["KubeletHung", "WorkerReplaced"].contains(&word)
        || rest.starts_with(|c: char| c.is_ascii_uppercase()) && rest.chars().all(char::is_alphabetic)
}

#[test]
fn every_event_is_listed_and_exists() {
    let listed = names(&table(REFERENCE, "reason"));
    assert_eq!(listed, reasons_in_code());
    for reason in code(&read(TRIAL)).iter().filter(|word| is_reason(word)) {
        assert!(listed.contains(reason) || reason == "KubeletConfigOk", "{reason}");
    }
}

#[test]
fn every_reason_of_the_condition_is_listed_and_exists() {
    let source = read("src/machine/status.rs");
    let body = source.split("fn condition(").nth(1).unwrap().split("\n}\n").next().unwrap();
    let name = |text: &str| text.chars().take_while(|c| c.is_alphabetic()).collect::<String>();
    let mut used: BTreeSet<String> = body.split("ConditionReason::").skip(1).map(name).collect();
    used.insert("Local".to_owned()); // the default, of a node that was never assigned anything
    let known: BTreeSet<String> = ConditionReason::ALL.iter().map(|reason| reason.as_str().to_owned()).collect();
    assert_eq!(used, known);
    assert_eq!(names(&table(REFERENCE, "condition's reason")), known);
}

fn help(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_kubelet-supervisor")).args(args).arg("--help").output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Commands in a help text; what stands further in goes on with the text of one.
fn commands(help: &str) -> BTreeSet<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty()));
    names.map(str::to_owned).collect()
}

/// Options in a help text.
fn options(help: &str) -> BTreeSet<String> {
    let line = |line: &str| {
        // What stands further in is the text of an option.
        let option = line.strip_prefix("      --").or_else(|| Some(line.strip_prefix("  -")?.split_once("--")?.1))?;
        let name: String = option.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
        Some(format!("--{name}"))
    };
    let mut found: BTreeSet<String> = help.lines().filter_map(line).collect();
    found.remove("--help");
    found
}

#[test]
fn every_option_of_run_is_listed_and_exists() {
    let listed: BTreeSet<String> =
        names(&table(REFERENCE, "option")).iter().map(|option| option.split(' ').next().unwrap().to_owned()).collect();
    let known = options(&help(&["run"]));
    assert!(known.len() >= 10, "{known:?}");
    assert_eq!(listed, known);
    for flag in table(TRIAL, "what").iter().flat_map(|row| code(&row[2])) {
        assert!(known.contains(&flag), "{flag}");
    }
}

#[test]
fn every_verb_is_listed_and_exists() {
    let known = commands(&help(&[]));
    let listed: BTreeSet<String> =
        names(&table(REFERENCE, "verb")).iter().map(|verb| verb.split(' ').next().unwrap().to_owned()).collect();
    // These have chapters of their own, or none.
    let others = ["run", "status", "check", "render", "enable", "disable", "help"].map(str::to_owned);
    let expected: BTreeSet<String> = known.difference(&others.into()).cloned().collect();
    assert_eq!(listed, expected);
    assert!(listed.len() >= 8, "{listed:?}");
    let reference = read(REFERENCE);
    for verb in &listed {
        for option in options(&help(&[verb])) {
            let (short, long) = (format!("`{verb} [{option}"), option.clone());
            assert!(
                reference.contains(&short) || reference.contains(&long) || option == "--number" || option == "--output",
                "{verb} {option}"
            );
        }
    }
}

#[test]
fn every_option_of_other_verbs_with_tables_is_listed_and_exists() {
    let install = "install option";
    let judge = "option of the verb";
    for (verb, head) in [("enable", install), ("disable", install), ("check", judge), ("render", judge)] {
        let mut rows = table(REFERENCE, head);
        rows.retain(|row| code(&row[1]).iter().any(|of| of == verb));
        let listed: BTreeSet<String> = names(&rows)
            .iter()
            .map(|option| option.split(' ').next().unwrap().to_owned())
            .filter(|it| it.len() > 2)
            .collect();
        assert_eq!(listed, options(&help(&[verb])), "{verb}");
    }
}

/// Defaults too, where an option has one.
#[test]
fn the_defaults_of_check_and_render() {
    for row in table(REFERENCE, "option of the verb") {
        let option = code(&row[0]).pop().unwrap().split(' ').next().unwrap().to_owned();
        for verb in code(&row[1]) {
            let text = help(&[&verb]);
            let lines = text.lines().skip_while(|line| *line != "Options:");
            let lines = lines.skip_while(|line| !line.contains(&format!("{option} ")));
            let about: Vec<&str> = lines.take(8).collect();
            for default in code(&row[2]).iter().filter(|default| !default.contains('/')) {
                assert!(about.join(" ").contains(&format!("[default: {default}]")), "{verb} {option}: {about:?}");
            }
        }
    }
}

#[test]
fn every_command_of_the_plugin_about_nodes_is_listed_with_its_options() {
    let plugin = kubectl_plugin::command();
    let rows = table(REFERENCE, "node command");
    assert_eq!(rows.len(), 8);
    for row in rows {
        let words = code(&row[0]);
        let name = words[0].split(' ').next().unwrap();
        let command = plugin.find_subcommand(name).unwrap_or_else(|| panic!("{name}"));
        let known = command.get_arguments().filter_map(|option| option.get_long()).filter(|long| *long != "help");
        let known: BTreeSet<String> = known.map(|long| format!("--{long}")).collect();
        let listed = code(&row[1]).into_iter().filter(|option| option.starts_with("--"));
        let listed: BTreeSet<String> =
            listed.map(|option| option.split([' ', '[']).next().unwrap().to_owned()).collect();
        assert_eq!(listed, known, "{name}");
    }
}

#[test]
fn every_state_of_a_node_is_listed() {
    use kubectl_plugin::fleet::node::Stage;
    let listed = names(&table(REFERENCE, "state shown"));
    for stage in [
        Stage::Local,
        Stage::Pending,
        Stage::Scheduled,
        Stage::OnTrial,
        Stage::AwaitsConfirmation,
        Stage::Proven,
        Stage::Failed,
        Stage::Held,
    ] {
        assert!(listed.iter().any(|shown| shown.starts_with(stage.label())), "{}", stage.label());
    }
}

#[test]
fn every_link_between_the_documents_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/GLOSSARY.md", "docs/security.md"];
    let mut documents = pages.map(|page| root.join(page)).to_vec();
    for dir in ["docs/usage", "docs/development"] {
        documents.extend(std::fs::read_dir(root.join(dir)).unwrap().map(|entry| entry.unwrap().path()));
    }
    // As GitHub makes them of headings; `<a id="…">` beside.
    let anchor = |text: &str, anchor: &str| {
        let slug = |heading: &str| -> String {
            let kept = heading.trim_start_matches('#').trim().to_lowercase();
            kept.chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        };
        text.contains(&format!("<a id=\"{anchor}\""))
            || text.lines().any(|line| line.starts_with('#') && slug(line) == anchor)
    };
    let mut links = 0;
    for document in documents {
        let text = std::fs::read_to_string(&document).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            links += 1;
            let (file, section) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { document.clone() } else { document.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}", document.display());
            if !section.is_empty() {
                let text = std::fs::read_to_string(&target).unwrap();
                assert!(anchor(&text, section), "{}: {link} names no heading", document.display());
            }
        }
    }
    assert!(links >= 8, "{links}");
}

#[test]
fn the_states_and_events_of_the_diagram_exist() {
    let text = read(TRIAL);
    let diagram = text.split("stateDiagram-v2\n").nth(1).unwrap().split("```").next().unwrap();
    let (mut states, mut events) = (BTreeSet::new(), BTreeSet::new());
    for line in diagram.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (arrow, label) = line.split_once(" : ").unwrap_or((line, ""));
        let (from, to) = arrow.split_once(" --> ").unwrap_or_else(|| panic!("{line}"));
        states.extend([from, to].into_iter().filter(|state| *state != "[*]"));
        let words = label.split(|c: char| !c.is_alphabetic());
        events.extend(words.filter(|word| is_reason(word)).map(str::to_owned));
    }
    let records = read("src/machine/records.rs");
    let body = records.split("pub enum Phase {").nth(1).unwrap().split('}').next().unwrap();
    let variants = body.lines().map(str::trim).filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()));
    let mut phases: BTreeSet<&str> = variants.map(|line| line.split(['(', ',']).next().unwrap()).collect();
    // These hold a phase, and are none.
    phases.extend(["Suspended", "Pinned"]);
    assert_eq!(states, phases);
    assert!(events.is_subset(&reasons_in_code()), "{events:?}");
}

/// Whom one manifest lets through and others hold to its task is the ServiceAccount of the controller of pools.
#[test]
fn the_manifests_name_the_service_account_that_there_is() {
    let documents = |file: &str| -> Vec<serde_json::Value> {
        let text = read(&format!("packaging/manifests/{file}"));
        text.split("\n---\n").map(|text| serde_yaml::from_str(text).unwrap()).collect()
    };
    let of_kind =
        |file: &str, kind: &str| documents(file).into_iter().find(|document| document["kind"] == kind).unwrap();
    let metadata = &of_kind("pools/rbac.yaml", "ServiceAccount")["metadata"];
    let [namespace, name] = ["namespace", "name"].map(|field| metadata[field].as_str().unwrap());
    let account = format!("system:serviceaccount:{namespace}:{name}");
    // Of assignments and of revisions.
    for (file, expected) in [("admission/admission.yaml", 2), ("pools-policy/policy.yaml", 1)] {
        let text = read(&format!("packaging/manifests/{file}"));
        let times = text.matches(&format!("{account}'")).count() + text.matches(&format!("{account}\"")).count();
        assert_eq!(times, expected, "{file}");
        assert_eq!(text.matches("system:serviceaccount:kubelet-config").count(), expected, "{file}");
    }
    let subject = &of_kind("pools-drain/rbac.yaml", "ClusterRoleBinding")["subjects"][0];
    assert_eq!((subject["namespace"].as_str(), subject["name"].as_str()), (Some(namespace), Some(name)));
}

/// An AdmissionRequest leaves empty fields out, and an expression that reads one of those is an error, which refuses the
/// request: `subResource` of an object itself, `name` of one that is yet to be named, `groups` of who is in none.
#[test]
fn admission_policies_read_nothing_that_may_be_absent() {
    let always = ["operation", "userInfo.username"];
    for file in ["admission/admission.yaml", "pools-policy/policy.yaml"] {
        let text = read(&format!("packaging/manifests/{file}"));
        let mut seen = 0;
        for line in text.lines() {
            for after in line.split("request.").skip(1) {
                let beyond = |c: char| !c.is_ascii_alphabetic() && c != '.' && c != '?';
                let field = after.split(beyond).next().unwrap();
                let asked = field.starts_with('?') || line.contains(&format!("has(request.{field})"));
                assert!(asked || always.contains(&field), "{file}: {line}");
                seen += 1;
            }
        }
        assert!(seen > 2, "{file}");
    }
}

#[test]
fn the_manifests_grant_reading_of_config_maps_and_nothing_else() {
    let told =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/adapters/kube/decode.rs")).unwrap();
    for variant in ["base", "narrow"] {
        let file = format!("packaging/manifests/{variant}/rbac.yaml");
        assert!(told.contains(&file), "a 403 names {file}");
        let documents = read(&file);
        let documents: Vec<serde_json::Value> =
            documents.split("\n---\n").map(|text| serde_yaml::from_str(text).unwrap()).collect();
        let rules = documents.iter().flat_map(|it| it["rules"].as_array().cloned().unwrap_or_default());
        let rules: Vec<_> = rules.collect();
        assert_eq!(rules.len(), 1, "{file}");
        assert_eq!(rules[0]["resources"], serde_json::json!(["configmaps"]));
        assert_eq!(rules[0]["verbs"], serde_json::json!(["get", "list", "watch"]));
        assert_eq!(rules[0]["resourceNames"].is_array(), variant == "narrow");
        let kinds: Vec<&str> = documents.iter().filter_map(|it| it["kind"].as_str()).collect();
        assert_eq!(kinds, ["Role", "RoleBinding"], "{file}: of one namespace");
        assert_eq!(documents[1]["subjects"][0]["name"], "system:nodes");
    }
}

#[test]
fn every_check_and_right_of_doctor_is_listed_and_exists() {
    const DOCTOR: &str = "docs/usage/doctor.md";
    let sources = [
        "crates/kubectl-plugin/src/fleet/doctor/mod.rs",
        "crates/kubectl-plugin/src/fleet/doctor/pools.rs",
        "crates/kubectl-plugin/src/fleet/doctor/rights.rs",
        "crates/kubectl-plugin/src/commands/doctor.rs",
    ]
    .map(read);
    let mut known = BTreeSet::new();
    for source in &sources {
        let body = source.split("#[cfg(test)]").next().unwrap();
        for made in body.split("Finding::of_").skip(1) {
            let call: String = made.split('(').nth(1).unwrap().split(',').next().unwrap().to_owned();
            known.extend(call.split('"').nth(1).map(str::to_owned));
        }
    }
    assert!(known.len() > 10, "{known:?}");
    assert_eq!(names(&table(DOCTOR, "check")), known);
    let rights = kubectl_plugin::fleet::doctor::rights::RIGHTS;
    let rights: Vec<[String; 2]> =
        rights.iter().map(|it| [format!("`{} {}`", it.verb, it.resource), it.commands.to_owned()]).collect();
    let listed: Vec<[String; 2]> = table(DOCTOR, "right").iter().map(|row| [row[0].clone(), row[2].clone()]).collect();
    assert_eq!(listed, rights);
}

#[test]
fn every_command_of_the_plugin_about_configurations_is_listed_with_its_options() {
    let plugin = kubectl_plugin::command();
    let rows = table(REFERENCE, "configuration command");
    assert_eq!(rows.len(), 6);
    for row in rows {
        let words = code(&row[0]);
        let name = words[0].split(' ').next().unwrap();
        let command = plugin.find_subcommand(name).unwrap_or_else(|| panic!("{name}"));
        let known: BTreeSet<String> = command
            .get_arguments()
            .filter_map(|option| option.get_long())
            .filter(|long| !["help", "version"].contains(long))
            .map(|long| format!("--{long}"))
            .collect();
        let long =
            |option: &String| option.split([' ', '[']).next().filter(|it| it.starts_with("--")).map(str::to_owned);
        let listed: BTreeSet<String> = code(&row[1]).iter().filter_map(long).collect();
        assert_eq!(listed, known, "{name}");
        let usage: Vec<&str> = words[0].split(' ').skip(1).collect();
        let positionals = command.get_positionals().map(|arg| arg.get_value_names().unwrap()[0].as_str());
        assert_eq!(
            usage.iter().map(|word| word.trim_matches(['[', ']'])).collect::<Vec<_>>(),
            positionals.collect::<Vec<_>>()
        );
    }
    let reference = read(REFERENCE);
    for hazard in kubelet_config::hazard::table::HAZARDS {
        assert!(reference.contains(&format!("`{}`", hazard.asks.label())), "{}", hazard.asks.label());
    }
}

#[test]
fn every_option_and_verb_of_rollout_is_listed_and_exists() {
    let help = |args: &[&str]| {
        let output = Command::new(program("kubectl-kubelet_config")).arg("rollout").args(args).arg("--help").output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let text = help(&[]);
    let bare = |word: &str| word.split('[').next().unwrap().to_owned();
    let mut known = options(&text);
    // Those of every command.
    for common in ["--kubeconfig", "--context", "--cluster", "--user", "--as", "--namespace"] {
        assert!(known.remove(common), "{common}");
    }
    let option =
        |cell: &str| code(cell).iter().find_map(|it| it.split(' ').next().filter(|it| it.starts_with("--")).map(bare));
    let listed: BTreeSet<String> =
        table(REFERENCE, "rollout option").iter().filter_map(|row| option(&row[0])).collect();
    assert_eq!(listed, known);
    let mut known = commands(&text);
    known.remove("help");
    let verbs = names(&table(REFERENCE, "rollout verb"));
    assert_eq!(verbs.iter().map(|verb| verb.split(' ').next().unwrap().to_owned()).collect::<BTreeSet<_>>(), known);
}
