//! A source's flags.

use serde_json::{Value, json};

use crate::assignment::ConfigMap;
use crate::bad_configurations::{LOAD, VALIDATE};
use crate::supervisor::{Case, Supervisor};

/// The arguments of the kubelet that runs.
/// The kubelet's, but for the lock of one that stood by before.
fn command_line(supervisor: &Supervisor<'_>) -> Vec<String> {
    let path = format!("/proc/{}/cmdline", supervisor.kubelet());
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let words = bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    words.filter(|word| word != "--lock-file=/proc/self/fd/0").collect()
}

/// The ConfigMap with other flags.
fn with_flags(case: &Case, map: &ConfigMap, flags: &str) -> ConfigMap {
    case.edit_map(map, &json!({ "data": { "kubelet.flags": flags } }))
}

/// The unit's own flag is taken out, others are added; all of it is tried, proven, and gone back to.
pub fn flags(case: &Case) {
    let mut args = case.kubelet_args();
    args.extend(["--max-pods=33".to_owned(), "--event-qps=7".to_owned()]);
    let supervisor = case.launch("4s", &case.dir(), args);
    supervisor.await_ready();
    case.await_configz("maxPods", &json!(33));

    // A flag shadows the field; taken out, the field counts.
    let map = case.assign_new(&case.id("map"), "maxPods: 44");
    let (source, starts) = (map.source(), supervisor.restarts());
    case.await_config(&source, &source, &source, "");
    assert_eq!(supervisor.restarts(), starts + 1);
    case.await_configz("maxPods", &json!(33));
    let good = with_flags(case, &map, "# the field counts\n!--max-pods\n--event-qps=9\n");
    let source = good.source();
    case.await_config(&source, &source, &source, "");
    case.await_configz("maxPods", &json!(44));
    case.await_configz("eventRecordQPS", &json!(9));
    let line = command_line(&supervisor);
    let place = |flag: &str| line.iter().position(|word| word == flag);
    assert!(place("--event-qps=7").is_some() && place("--event-qps=7") < place("--event-qps=9"), "{line:?}");
    assert_eq!(place("--max-pods=33"), None);
    supervisor.await_status(&[("/flagOverrides", json!(["!--max-pods", "--event-qps=9"]))]);
    let before = supervisor.process();

    // Refused, in the kubelet's words, without a restart.
    for (flags, error, words) in [
        ("--no-such-flag=1", LOAD, "unknown flag: --no-such-flag"),
        ("--max-pods=many", LOAD, "invalid argument \"many\""),
        ("--kube-api-qps=-1", VALIDATE, "-1"),
        ("--cpu-manager-policy=static", VALIDATE, "cpuManagerPolicy"),
    ] {
        let bad = with_flags(case, &map, flags);
        case.await_config(&bad.source(), &source, &source, error);
        case.await_event("KubeletConfigRejected", &[&bad.event_text(), words]);
    }
    assert_eq!(supervisor.process(), before);
    // The same flags, spelt otherwise, are the same content.
    let same = with_flags(case, &map, "--event_qps=9\n!--max_pods");
    let source = same.source();
    case.await_config(&source, &source, &source, "");
    assert_eq!(supervisor.process(), before);

    // What the preflight accepts and the kubelet does not survive is put back with the flags of before.
    let acknowledged = json!({
        "metadata": { "annotations": { "kubelet-supervisor.io/acknowledge": "reboot" } },
        "data": { "kubelet.flags": "--enforce-node-allocatable=pods,system-reserved\n--system-reserved-cgroup=/nope" },
    });
    let deadly = case.edit_map(&map, &acknowledged);
    case.await_config(&deadly.source(), &source, &source, LOAD);
    case.await_event("KubeletConfigRolledBack", &[&deadly.event_text(), &same.event_text()]);
    supervisor.await_ready();
    assert_eq!(command_line(&supervisor), line);
    case.reset();
    case.await_configz("maxPods", &json!(33));
    case.await_config(&Value::Null, &Value::Null, &Value::Null, "");
    assert!(supervisor.stop().success());
}
