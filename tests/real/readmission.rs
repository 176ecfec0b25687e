//! Who is hurt by a restart: what is foreseen is exactly what a 1.20.2 kubelet does, killer by killer.

use serde_json::{Value, json};

use kubelet_config::preflight::PreflightResult;

use crate::cluster::{pause, until};
use crate::pods;
use crate::preflight::asked;
use crate::supervisor::{Case, signal};
use crate::trial::accepted;

/// Offered by an administrator, by no plugin.
const THING: &str = "example.com/thing";
const LABEL: &str = "readmission";
const STORAGE: &str = "OutOfephemeral-storage";

/// Pods of which each is lost for another reason: a suffix, container, fields of the Pod, and why it goes.
fn killed() -> Vec<(&'static str, Value, Value, String)> {
    let asks = |resource: &str, amount: &str| json!({ "resources": { "requests": { resource: amount } } });
    let things = json!({ "resources": { "requests": { THING: "1" }, "limits": { THING: "1" } } });
    let of = |name, container, spec, reason: &str| (name, container, spec, reason.to_owned());
    vec![
        of("cpu", asks("cpu", "600m"), json!({}), "OutOfcpu"),
        of("memory", asks("memory", "600Mi"), json!({}), "OutOfmemory"),
        of("thing", things, json!({}), &format!("OutOf{THING}")),
        of("label", json!({}), json!({ "nodeSelector": { LABEL: "before" } }), "NodeAffinity"),
    ]
}

/// Sets an extended resource of the Node, as an administrator does.
fn offer(case: &Case, things: &str) {
    let amounts = json!({ THING: things });
    let status = json!({ "status": { "capacity": amounts, "allocatable": amounts } });
    case.ask("PATCH", &format!("{}/status", case.node_path()), Some(&status));
}

fn label(case: &Case, value: &Value) {
    case.ask("PATCH", &case.node_path(), Some(&json!({ "metadata": { "labels": { LABEL: value } } })));
}

/// What is left for pods is room for what `old` asks for, and for nothing that asks for as much.
fn reserved(case: &Case) -> String {
    let capacity = &case.ask("GET", &case.node_path(), None)["status"]["capacity"];
    let amount = |resource: &str| {
        let text = capacity[resource].as_str().unwrap();
        let kibibytes: u64 = text.trim_end_matches("Ki").parse().unwrap();
        if text.ends_with("Ki") { kibibytes } else { kibibytes / 1024 }
    };
    let cpus: u64 = capacity["cpu"].as_str().unwrap().parse().unwrap();
    let (memory, storage) = (amount("memory") - (1 << 20), amount("ephemeral-storage") - (4 << 20));
    format!("kubeReserved: {{cpu: {}m, memory: {memory}Ki, ephemeral-storage: {storage}Ki}}", cpus * 1000 - 1000)
}

/// Phase and reason of a pod.
fn fate(case: &Case, name: &str) -> Result<(String, String), String> {
    let pod = case.api("GET", &pods::path(name), None)?;
    let text = |field: &str| pod["status"][field].as_str().unwrap_or_default().to_owned();
    Ok((text("phase"), text("reason")))
}

fn await_loss(case: &Case, name: &str, reason: &str) {
    let found = until(&format!("{name} to be turned away"), || {
        let (phase, found) = fate(case, name)?;
        if phase == "Failed" { Ok(found) } else { Err(phase) }
    });
    assert_eq!(found, reason, "{name}");
}

fn assert_runs(case: &Case, name: &str) {
    assert_eq!(fate(case, name), Ok(("Running".to_owned(), String::new())), "{name}");
}

pub fn foreseen(case: &Case) {
    let supervisor = case.supervisor();
    case.await_node_ready();
    let lkg = case.assign_new(&case.id("lkg"), "syncFrequency: 1m30s");
    case.await_proven(&lkg);
    offer(case, "2");
    label(case, &json!("before"));
    let [old, critical, plain] = ["old", "critical", "plain"].map(|suffix| case.id(suffix));
    let requests = json!({ "cpu": "600m", "memory": "600Mi", "ephemeral-storage": "2500Mi", THING: "1" });
    pods::make(case, &old, &json!({ "resources": { "requests": requests, "limits": { THING: "1" } } }));
    pods::make_with(case, &critical, &json!({}), &json!({ "priorityClassName": "system-node-critical" }));
    pods::make(case, &plain, &json!({}));
    pause(1100); // the others are younger by the clock of the API server, which counts seconds
    let killed = killed();
    for (suffix, container, spec, _) in &killed {
        pods::make_with(case, &case.id(suffix), container, spec);
    }
    let storage = case.id("storage");
    pods::make(case, &storage, &json!({ "resources": { "requests": { "ephemeral-storage": "2500Mi" } } }));
    label(case, &json!("after"));
    offer(case, "1");

    case.say("foreseen");
    let lines = reserved(case);
    let answer = asked(case, &case.good(&case.id("asked"), &lines));
    assert_eq!(answer.result, PreflightResult::PodsLost, "{answer:?}");
    let told = |suffix: &str| format!("default/{}", case.id(suffix));
    assert_eq!(answer.pods, ["cpu", "label", "memory"].map(told), "{answer:?}");
    let accepts = accepted(case, "accepted", &lines);
    let also = asked(case, &accepts);
    assert_eq!(also.result, PreflightResult::Valid, "{also:?}");
    let sure = killed.iter().filter(|(suffix, ..)| *suffix != "thing");
    let sure = sure.map(|(suffix, _, _, reason)| format!("{} ({reason})", told(suffix)));
    let perhaps = [("thing", format!("OutOf{THING}")), ("storage", STORAGE.to_owned())];
    let perhaps = perhaps.map(|(suffix, reason)| format!("{} (perhaps {reason})", told(suffix)));
    for words in sure.chain(perhaps) {
        assert!([&answer, &also].iter().any(|said| said.message.contains(&words)), "{words}: {answer:?} {also:?}");
    }

    case.say("waited for");
    // By this one no field is to blame for the pod that any restart costs.
    case.assign(&case.good(&case.id("waits"), "syncFrequency: 2m"));
    supervisor.await_metric("kubelet_supervisor_change_held", "reason=\"pods-lost\"", 1.0);
    case.await_event("KubeletConfigWaiting", &[&format!("{} (NodeAffinity)", told("label"))]);
    assert_runs(case, &case.id("label"));

    case.say("and so it comes");
    case.prove(&accepts);
    // At its first start it may have admitted by what the Node had before.
    signal(supervisor.kubelet(), "TERM");
    for (suffix, _, _, reason) in &killed {
        await_loss(case, &case.id(suffix), reason);
    }
    for name in [&old, &critical, &plain] {
        assert_runs(case, name);
    }

    // Nothing of it is kept back while pods are admitted, unless the Node is late.
    let (phase, reason) = fate(case, &storage).unwrap();
    assert!(phase == "Running" || reason == STORAGE, "{phase} {reason}");
    pods::delete(case, &storage);

    case.say("a threshold that is crossed");
    let lines = format!("{lines}\nevictionHard: {{pid.available: 1G}}");
    let answer = asked(case, &case.good(&case.id("refused"), &lines));
    assert_eq!(answer.result, PreflightResult::PodsLost, "{answer:?}");
    let evicted = [&old, &plain].map(|name| format!("default/{name} (perhaps Evicted)"));
    assert!(evicted.iter().all(|words| answer.message.contains(words)), "{answer:?}");
    assert!(!answer.message.contains(&critical), "{answer:?}");
    let pressed = accepted(case, "pressed", &lines);
    case.prove(&pressed);
    until("the Node to be under pressure", || {
        let conditions = case.api("GET", &case.node_path(), None)?["status"]["conditions"].to_string();
        let pressed = r#""status":"True","type":"PIDPressure""#;
        if conditions.contains(pressed) { Ok(()) } else { Err(conditions) }
    });
    // It admits them or not, since its first look at the thresholds and the pods race in this version, and then evicts them.
    for name in [&old, &plain] {
        await_loss(case, name, "Evicted");
    }
    assert_runs(case, &critical);

    for name in killed.iter().map(|(suffix, ..)| case.id(suffix)).chain([old, critical, plain]) {
        pods::delete(case, &name);
    }
    label(case, &Value::Null);
    assert!(supervisor.stop().success());
}
