//! An API server that lies. Law 1 under each lie: the kubelet goes on with what was proven; and what the lie costs is bounded.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::api_server::{Answer, ApiServer, Fault, FaultKind, Request, Then, Verb};
use testkit::rig::{NAMESPACE, NODE, Rig, Version, configuration, eventually, is};

const KUBELET: &str = "maxPods: 42";

/// A node with a proven configuration.
fn node() -> (Rig, Version) {
    let rig = Rig::new().running();
    let good = rig.prove("a", &configuration(KUBELET));
    (rig, good)
}

/// From now on every such request is answered with this. Watches that run end.
fn lie(rig: &Rig, verb: Verb, path: &str, answer: &Answer) {
    rig.server.faults().push(Fault::new(verb, path, FaultKind::Answer(answer.clone())));
    if verb == Verb::Watch {
        rig.server.end_watches();
    }
}

/// The truth again, and the node takes up what it says.
fn truth(rig: &mut Rig, number: u32) {
    rig.server.faults().clear();
    rig.server.restart(); // watches that are silent, too
    rig.prove("a", &configuration(&format!("maxPods: {number}")));
}

fn requests(rig: &Rig, is_one: impl Fn(&Request) -> bool) -> Vec<Request> {
    rig.server.requests().into_iter().filter(is_one).collect()
}

/// How often these were watched.
fn watches(rig: &Rig, resource: &str) -> usize {
    requests(rig, |request| request.is_watch() && request.path.contains(resource)).len()
}

/// The next stream says that this changed, and ends; then there is another one.
fn shown_once(rig: &Rig, what: &str, resource: &str, object: &Value) {
    let event = json!({"type": "MODIFIED", "object": object}).to_string() + "\n";
    let (before, once) = (watches(rig, resource), FaultKind::Answer(Answer::new(200, event, Then::End)));
    rig.server.faults().push(Fault::once(Verb::Watch, resource, once));
    rig.server.end_watches();
    eventually(what, || (watches(rig, resource) >= before + 2).then_some(()));
}

/// The most memory that the supervisor ever had, in MiB.
pub fn memory(rig: &Rig) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", rig.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// What was proven runs, nothing was restarted, it is still last known good, and what is said can be read.
fn goes_on(rig: &Rig, good: &Version, starts: usize, lie: &str) {
    assert_eq!((rig.starts(), &rig.last_config()["maxPods"]), (starts, &json!(42)), "{lie}");
    assert!(!testkit::rig::is_gone(rig.last_pid()), "{lie}");
    let status = rig.status();
    assert!(is(&status, "lastKnownGood", good), "{lie}: {status}");
    let said = [status.to_string(), rig.verb(&["status"]).1, rig.server.node(NODE)["status"].to_string()];
    let log = rig.log();
    let lines = log.lines().filter(|line| line.starts_with("kubelet-supervisor"));
    for text in said.iter().flat_map(|text| text.lines()).chain(lines) {
        assert!(text.len() < 16 << 10, "{lie}: {} bytes: {}", text.len(), kubelet_config::reported::text(text));
        assert!(!text.contains(char::is_control), "{lie}: {text}");
    }
    let record = std::fs::metadata(rig.at("dynamic/supervisor/state.json")).unwrap().len();
    assert!(record < 32 << 10, "{lie}: a record of {record} bytes");
    assert!(memory(rig) < 160, "{lie}: {} MiB", memory(rig));
}

/// What was seen before this is done with: the machine takes one after the other, and the record is written after what was
/// kept before.
fn settled(rig: &Rig, what: &str) {
    let mark = format!("after {what}");
    rig.annotate_node("retry", &mark);
    eventually(what, || {
        std::fs::read_to_string(rig.at("dynamic/supervisor/state.json")).ok()?.contains(&mark).then_some(())
    });
}

/// All versions that are kept.
fn checkpoints(rig: &Rig) -> Vec<Version> {
    let names = |dir: std::path::PathBuf| -> Vec<String> {
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let root = rig.at("dynamic/store/checkpoints");
    let of = |uid: String| names(root.join(&uid)).into_iter().map(move |version| (uid.clone(), version));
    names(root.clone()).into_iter().flat_map(of).collect()
}

/// A wrong one on a stream that then says nothing more: the true one is asked for, though nobody changes it.
#[test]
fn one_wrong_config_map_and_then_silence() {
    for (what, more) in
        [("another's name", json!({"metadata": {"name": "b"}})), ("no uid", json!({"metadata": {"uid": null}}))]
    {
        let (mut rig, good) = node();
        let starts = rig.starts();
        let mut map = config_map(&rig, |map| map["metadata"]["resourceVersion"] = "8".into());
        testkit::api_server::merge(&mut map, &more);
        let event = json!({"type": "MODIFIED", "object": map}).to_string() + "\n";
        let once = FaultKind::Answer(Answer::new(200, event, Then::Silence));
        let lists = |rig: &Rig| {
            requests(rig, |request| {
                request.method == "GET" && !request.is_watch() && request.path.contains("configmaps")
            })
            .len()
        };
        let before = lists(&rig);
        rig.server.faults().push(Fault::once(Verb::Watch, "configmaps", once));
        rig.server.end_watches();
        eventually(what, || (lists(&rig) > before).then_some(()));
        settled(&rig, what);
        rig.wait_config(what, |config| config["error"].is_null() && is(config, "active", &good));
        goes_on(&rig, &good, starts, what);
        truth(&mut rig, 43);
    }
}

fn config_map(rig: &Rig, change: impl Fn(&mut Value)) -> Value {
    let mut map = rig.server.config_map(NAMESPACE, "a");
    change(&mut map);
    map
}

/// With colours and a cursor that moves.
fn evil(bytes: usize) -> String {
    "\u{1b}[2J\u{202e}evil\r\n\u{7}".repeat(bytes / 13)
}

/// From its boot on, all that a supervisor is answered is this.
#[test]
fn answers_that_are_none() {
    let (mut rig, good) = node();
    let elsewhere = ApiServer::start();
    let to = format!("{}/api/v1/nodes", elsewhere.url());
    let deep = format!("{{\"metadata\":{}", "{\"a\":".repeat(100_000));
    let status = |code: u16, message: &str| {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}).to_string()
    };
    for (what, answer) in [
        ("a page", Answer::new(200, "<html>Please log in</html>", Then::End)),
        ("nothing", Answer::new(200, "", Then::End)),
        ("another kind", Answer::new(200, "{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":7}", Then::End)),
        ("no versions", Answer::new(200, "{\"metadata\":{},\"items\":[]}", Then::End)),
        (
            "an object cut short",
            Answer::new(200, "{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[{\"m", Then::End),
        ),
        ("a depth", Answer::new(200, deep, Then::End)),
        ("no end", Answer::new(200, "x".repeat(1 << 20), Then::Again)),
        ("lines without end", Answer::new(200, "{}\n".repeat(1 << 16), Then::Again)),
        ("a refusal without end", Answer::new(500, evil(1 << 20), Then::Again)),
        ("a long refusal", Answer::new(500, status(500, &evil(2 << 20)), Then::End)),
        ("a long prohibition", Answer::new(403, status(403, &evil(2 << 20)), Then::End)),
        (
            "a long unavailability",
            Answer::new(503, evil(2 << 20), Then::End).header("retry-after", "99999999999999999999"),
        ),
        ("elsewhere", Answer::new(307, "", Then::End).header("location", &to)),
        ("elsewhere for good", Answer::new(301, "", Then::End).header("location", &to)),
    ] {
        rig.stop();
        let (starts, asked) = (rig.starts(), rig.server.requests().len());
        lie(&rig, Verb::Any, "", &answer);
        rig.up();
        eventually(what, || (rig.server.requests().len() >= asked + 4).then_some(()));
        goes_on(&rig, &good, starts + 1, what);
        rig.server.faults().clear();
    }
    assert_eq!(elsewhere.requests().len(), 0, "credentials went elsewhere");
    rig.restart();
    truth(&mut rig, 43);
}

/// Objects that nobody asked for, or that cannot be: what runs goes on, and what is said of it is true.
#[test]
fn config_maps_that_are_others_or_cannot_be() {
    let (mut rig, good) = node();
    let starts = rig.starts();
    let hostile = |more: Value| {
        let text = configuration("maxPods: 1");
        config_map(&rig, |map| {
            map["data"]["kubelet"] = text.as_str().into();
            map["metadata"]["resourceVersion"] = "8".into();
            testkit::api_server::merge(map, &more);
        })
    };
    let megabytes = "#".repeat(5 << 20);
    let evil = evil(300 << 10);
    for (what, more) in [
        ("another's name", json!({"metadata": {"name": "b"}})),
        ("another namespace", json!({"metadata": {"namespace": "default"}})),
        ("no name", json!({"metadata": {"name": null}})),
        ("no uid", json!({"metadata": {"uid": null}})),
        ("a uid that is a path", json!({"metadata": {"uid": "../../../escaped"}})),
        ("a version that is a path", json!({"metadata": {"resourceVersion": "../../../escaped"}})),
        ("a long uid", json!({"metadata": {"uid": evil}})),
        ("files of the node", json!({"metadata": {"uid": "local-files"}})),
        ("5 MiB", json!({"data": {"kubelet": megabytes}})),
        ("5 MiB beside it", json!({"data": {"more": megabytes}})),
        ("a key that is a path", json!({"data": {"../../escaped": "x"}})),
        ("a key with a line", json!({"data": {"a\n\u{0}b": "x"}})),
        ("a long key", json!({"data": {evil.as_str(): "x"}})),
        ("a long annotation", json!({"metadata": {"annotations": {"kubelet-supervisor.io/merge": evil}}})),
        ("the same version", json!({"metadata": {"resourceVersion": good.1}})),
    ] {
        let map = hostile(more);
        shown_once(&rig, what, "configmaps", &map);
        settled(&rig, what);
        assert_eq!(checkpoints(&rig), std::slice::from_ref(&good), "{what}");
        goes_on(&rig, &good, starts, what);
        assert!(!rig.at("dynamic/escaped").exists() && !rig.at("escaped").exists(), "{what}");
    }
    truth(&mut rig, 43);
}

/// A Node that is not ours, or that asks for what cannot be.
#[test]
fn nodes_that_are_others_or_cannot_be() {
    let (mut rig, good) = node();
    rig.put("b", &configuration("maxPods: 1"));
    let starts = rig.starts();
    let source = |namespace: &str, name: &str| {
        json!({"spec": {"configSource": {"configMap":
        {"namespace": namespace, "name": name, "kubeletConfigKey": "kubelet"}}}})
    };
    let mut others = source(NAMESPACE, "b");
    others["metadata"]["name"] = "n2".into();
    let evil = evil(200 << 10);
    for (what, more) in [
        ("another node", others),
        ("a path", source("../../../../version?", "x")),
        ("a namespace with a path", source("kube-system/secrets", "x")),
        ("a long name", source(NAMESPACE, &evil)),
        ("no text", json!({"spec": {"configSource": {"configMap": {"name": evil}}}})),
    ] {
        let mut object = rig.server.node(NODE);
        testkit::api_server::merge(&mut object, &more);
        object["metadata"]["resourceVersion"] = "8".into();
        shown_once(&rig, what, "nodes", &object);
        goes_on(&rig, &good, starts, what);
        let asked = requests(&rig, |request| !request.path.contains("/n1") && request.path.contains("version"));
        assert_eq!(asked.len(), 0, "{what}: {asked:?}");
        // As it is: what was said of it is over.
        rig.annotate_node("told", what);
    }
    truth(&mut rig, 43);
}

/// Texts that are kept on record: it stays one that the next start reads.
#[test]
fn a_swollen_node() {
    let (mut rig, good) = node();
    let starts = rig.starts();
    let evil = evil(200 << 10);
    let mut object = rig.server.node(NODE);
    let swollen = json!({
        "metadata": {"resourceVersion": "8", "annotations":
            {"kubelet-supervisor.io/retry": evil, "kubelet-supervisor.io/confirm": evil, "x": evil}},
        "status": {"capacity": {"pods": evil}, "conditions": [
            {"type": "Ready", "status": "False", "reason": "x", "message": evil},
            {"type": "KubeletConfigOk", "status": "True", "message": evil}]}});
    testkit::api_server::merge(&mut object, &swollen);
    let event = json!({"type": "MODIFIED", "object": object}).to_string() + "\n";
    lie(&rig, Verb::Watch, "nodes", &Answer::new(200, event, Then::Silence));
    eventually("it is on record", || {
        std::fs::read_to_string(rig.at("dynamic/supervisor/state.json")).ok()?.contains("evil").then_some(())
    });
    goes_on(&rig, &good, starts, "swollen");
    rig.restart();
    goes_on(&rig, &good, starts + 1, "at the next start");
    truth(&mut rig, 43);
}

/// Gone and back as it was long ago: nothing is restarted for it.
#[test]
fn deleted_and_there_again() {
    let (mut rig, good) = node();
    let starts = rig.starts();
    let map = config_map(&rig, |_| {});
    let line = |kind: &str, version: &str| {
        let mut map = map.clone();
        map["metadata"]["resourceVersion"] = version.into();
        json!({"type": kind, "object": map}).to_string() + "\n"
    };
    let deleted = line("DELETED", "100");
    lie(&rig, Verb::Watch, "configmaps", &Answer::new(200, deleted.as_str(), Then::Silence));
    rig.wait_config("it is gone", |config| config["error"].as_str() == Some(testkit::rig::DOWNLOAD));
    goes_on(&rig, &good, starts, "deleted");
    rig.server.faults().clear();
    rig.server.restart();
    let again = deleted + &line("ADDED", &good.1);
    lie(&rig, Verb::Watch, "configmaps", &Answer::new(200, again, Then::Silence));
    rig.wait_config("it is there", |config| config["error"].is_null() && is(config, "active", &good));
    goes_on(&rig, &good, starts, "added again");
    truth(&mut rig, 43);
}

/// A version that an honest server has had: it tells what came after it, once it is asked.
const BOOKMARK: &str = "{\"type\":\"BOOKMARK\",\"object\":{\"kind\":\"Node\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"1\",\"annotations\":{}}}}\n";

/// The time between the first of so many requests and the last.
fn span(rig: &Rig, asked: usize, count: usize) -> Duration {
    let all = eventually(&format!("{count} requests"), || {
        let all = rig.server.requests().split_off(asked);
        (all.len() >= count).then_some(all)
    });
    all[count - 1].at - all[0].at
}

/// A burst of 100, and then five in a second, whatever they ask for.
#[test]
fn an_api_server_that_wants_to_be_asked_without_end() {
    let node_list =
        |more: &str| json!({"metadata": {"resourceVersion": "1", "continue": more}, "items": []}).to_string();
    for (what, verb, answer) in [
        ("one page more", Verb::List, Answer::new(200, node_list("more"), Then::End)),
        ("watches that end", Verb::Watch, Answer::new(200, "", Then::End)),
        ("bookmarks", Verb::Watch, Answer::new(200, BOOKMARK, Then::End)),
    ] {
        let (mut rig, good) = node();
        rig.stop();
        let (starts, asked) = (rig.starts(), rig.server.requests().len());
        lie(&rig, verb, "", &answer);
        rig.up();
        let span = span(&rig, asked, 125);
        assert!(span >= Duration::from_secs(4), "{what}: 125 requests in {span:?}");
        goes_on(&rig, &good, starts + 1, what);
        truth(&mut rig, 43);
    }
}

/// Each list is answered and each watch is gone: the pauses become longer all the same.
#[test]
fn a_storm_of_410() {
    for in_stream in [false, true] {
        let (mut rig, good) = node();
        let (starts, asked) = (rig.starts(), rig.server.requests().len());
        let kind = if in_stream { FaultKind::GoneInStream } else { FaultKind::Status(410) };
        rig.server.faults().push(Fault::new(Verb::Watch, "nodes", kind));
        rig.server.end_watches();
        eventually("gone six times", || (watches(&rig, "nodes") >= 7 + asked_watches(&rig, asked)).then_some(()));
        let gone: Vec<Request> = rig.server.requests().split_off(asked);
        let at: Vec<Instant> =
            gone.iter().filter(|it| it.is_watch() && it.path.contains("nodes")).map(|it| it.at).collect();
        // 50 ms, doubled each time, at least half of it.
        let pause = at[6] - at[5];
        assert!(pause >= Duration::from_millis(50 * 32 / 2), "{pause:?} after six");
        goes_on(&rig, &good, starts, "410");
        truth(&mut rig, 43);
    }
}

fn asked_watches(rig: &Rig, asked: usize) -> usize {
    let before = rig.server.requests();
    before[..asked].iter().filter(|it| it.is_watch() && it.path.contains("nodes")).count()
}

/// What the API server sends without end waits on its side.
#[test]
fn a_flood_of_changes() {
    let (mut rig, good) = node();
    let starts = rig.starts();
    let mut object = rig.server.node(NODE);
    object["metadata"]["resourceVersion"] = "8".into();
    object["metadata"]["annotations"]["x"] = "x".repeat(64 << 10).into();
    let event = json!({"type": "MODIFIED", "object": object}).to_string() + "\n";
    let answer = Answer::new(200, event, Then::Again);
    lie(&rig, Verb::Watch, "nodes", &answer);
    eventually("the flood", || (answer.sent.load(Ordering::Relaxed) > 100).then_some(()));
    // 10 MiB for the buffers on the way; ten a second, however long the answers below take.
    let (sent, began) = (answer.sent.load(Ordering::Relaxed), Instant::now());
    for _ in 0..20 {
        rig.status();
    }
    let allowed = 160 + 100 + usize::try_from(began.elapsed().as_millis() / 100).unwrap();
    let more = answer.sent.load(Ordering::Relaxed) - sent;
    assert!(more <= allowed, "{more} changes were read in {:?}", began.elapsed());
    goes_on(&rig, &good, starts, "a flood");
    truth(&mut rig, 43);
}
