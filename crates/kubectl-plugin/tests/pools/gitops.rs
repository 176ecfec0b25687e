//! Pools as Argo CD and Flux see them: the shipped health script, run by a Lua interpreter, on pools that the controller wrote the status
//! of, and the rules of kstatus on the same.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use testkit::built::given;
use testkit::pools::{Outcome, World};

use super::{POOL, condition, observed, prepared, spec, with_controller};

const SCRIPT: &str = "resource.customizations.health.kubelet-supervisor.io_KubeletConfigPool";
/// Argo CD has the first one's dialect.
const INTERPRETERS: [&str; 4] = ["lua5.1", "lua5.3", "lua5.4", "lua"];

fn shipped(name: &str) -> Value {
    let text = std::fs::read_to_string(testkit::built::file(&format!("packaging/gitops/{name}"))).unwrap();
    serde_yaml::from_str(&text).unwrap()
}

/// What Lua reads as this value.
fn lua(value: &Value) -> String {
    match value {
        Value::Null => "nil".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => {
            let bytes: Vec<String> = text.bytes().map(|byte| format!("\\{byte:03}")).collect();
            format!("\"{}\"", bytes.concat())
        }
        Value::Array(items) => format!("{{{}}}", items.iter().map(lua).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| format!("[{}]={}", lua(&json!(name)), lua(value));
            format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(","))
        }
    }
}

/// Health and message as the script has them.
fn health(interpreter: &str, pool: &Value) -> (String, String) {
    let script = shipped("argocd-cm.yaml")["data"][SCRIPT].as_str().unwrap().to_owned();
    // Argo CD opens few libraries: these are all that there is, beside the basic one.
    let program = format!(
        "io.stdout:setvbuf('no') local write = io.write io, os, debug, package, require, dofile, loadfile = nil\n\
         obj = {}\nlocal health = (function()\n{script}\nend)()\nwrite(health.status, '\\n', health.message)",
        lua(pool)
    );
    let output = given(Command::new(interpreter).arg("-"), &program);
    assert!(output.status.success(), "{}\n{pool:#}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    let (status, message) = said.split_once('\n').unwrap();
    (status.to_owned(), message.to_owned())
}

/// cli-utils, pkg/kstatus/status, for an object with these conditions.
fn kstatus(pool: &Value) -> &'static str {
    if !observed(pool) {
        return "InProgress";
    }
    match ["Reconciling", "Stalled", "Ready"].map(|it| condition(pool, it).0) {
        ["True", ..] => "InProgress",
        [_, "True", _] => "Failed",
        [.., "True"] => "Current",
        _ => "InProgress",
    }
}

/// A pool in each of its states, as the controller says them; with the name of the state.
async fn pools() -> Vec<(&'static str, Value)> {
    let mut seen = Vec::new();
    let world = World::with_trial(12, Duration::from_secs(60));
    let script = async {
        let put = |pods: u32, more: Value| world.server.put_pool(POOL, &spec(pods, &more));
        let until = |kind: &'static str, reason: &'static str| {
            world.until_pool(POOL, move |pool| observed(pool) && condition(pool, kind) == ("True", reason))
        };
        put(59, json!({"nodeSelector": {"matchLabels": {"nobody": "has"}}}));
        seen.push(("NoNodes", until("Ready", "NoNodes").await));
        prepared(&world, 60).await;
        seen.push(("Paused", world.server.pool(POOL).unwrap()));
        let rollout = json!({"canaries": 3, "maxUnavailable": 6, "pauseAfterCanaries": true});
        put(60, json!({"rollout": rollout}));
        seen.push(("new generation", world.server.pool(POOL).unwrap()));
        seen.push(("Canaries", until("Reconciling", "Canaries").await));
        seen.push(("AwaitingApproval", until("Reconciling", "AwaitingApproval").await));
        put(60, json!({"rollout": {"canaries": 3, "maxUnavailable": 4}}));
        let is_going = |pool: &Value| {
            observed(pool) && ["Waves", "MaxUnavailableReached"].contains(&condition(pool, "Reconciling").1)
        };
        seen.push(("Waves", world.until_pool(POOL, is_going).await));
        seen.push(("Complete", until("Ready", "Complete").await));
        put(60, json!({"kubeletConfiguration": {"kind": "Pod"}}));
        seen.push(("RevisionInvalid", until("Stalled", "RevisionInvalid").await));
        let bad = prepared(&world, 61).await;
        (0..12).for_each(|number| world.set_outcome_with(number, &bad, Outcome::Rejects));
        put(61, json!({}));
        seen.push(("FailuresExceeded", until("Stalled", "FailuresExceeded").await));
        world.server.put_pool("other", &spec(62, &json!({})));
        seen.push(("Conflict", until("Stalled", "Conflict").await));
    };
    with_controller(&world, script).await;
    // The API server's default, before any controller sees it.
    let mut unseen = world.server.pool(POOL).unwrap();
    unseen["status"] =
        kubectl_plugin::crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["default"]
            .clone();
    seen.push(("no controller", unseen));
    seen
}

#[tokio::test(start_paused = true)]
async fn argo_cd_and_flux_see_each_state_as_the_document_says() {
    let document = std::fs::read_to_string(testkit::built::file("docs/usage/gitops.md")).unwrap();
    let rows = document.lines().skip_while(|line| !line.starts_with("| state of the pool |")).skip(2);
    let rows: Vec<Vec<&str>> = rows
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let interpreter = INTERPRETERS.into_iter().find(|it| Command::new(it).arg("-v").output().is_ok());
    if interpreter.is_none() {
        assert!(std::env::var_os("CI").is_none(), "none of {INTERPRETERS:?}, and this is CI: apt-get install lua5.1");
        println!("SKIPPED: the health script: none of {INTERPRETERS:?}");
    }
    let pools = pools().await;
    let named = |name: &str| pools.iter().filter(|(state, _)| name.contains(&format!("`{state}`"))).collect::<Vec<_>>();
    let mut shown = 0;
    for row in &rows {
        let [name, _, argo, flux] = row[..] else { panic!("{row:?}") };
        for (state, pool) in named(name) {
            shown += 1;
            assert_eq!(kstatus(pool), flux, "{state}: {pool:#}");
            let Some(interpreter) = interpreter else { continue };
            let (health, message) = health(interpreter, pool);
            assert_eq!(health, argo, "{state}: {message}");
            assert!(message.len() > 10, "{state}: {message}");
        }
    }
    assert_eq!(shown, pools.len(), "each in one row: {rows:#?}");
}

#[tokio::test(start_paused = true)]
async fn the_pool_in_the_example_is_one() {
    let pool = shipped("pools/workers.yaml");
    assert_eq!(pool["metadata"]["annotations"]["kustomize.toolkit.fluxcd.io/substitute"], "disabled");
    assert_eq!(shipped("pools/kustomization.yaml")["resources"], json!(["workers.yaml"]));
    assert_eq!(
        (&shipped("flux.yaml")["spec"]["wait"], &shipped("flux.yaml")["spec"]["prune"]),
        (&json!(true), &json!(true))
    );
    let world = World::new(3);
    let script = async {
        world.server.put_pool("workers", &pool["spec"]);
        let seen = world.until_pool("workers", observed).await;
        assert_eq!(condition(&seen, "Ready"), ("True", "NoNodes"), "{seen:#}");
        assert!(seen["status"]["updateRevision"].as_str().unwrap().starts_with("workers-"));
    };
    with_controller(&world, script).await;
}
