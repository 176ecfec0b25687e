//! `push`.

use std::process::Command;

use kubectl_plugin::fleet::configmap_name;
use serde_json::{Value, json};

use crate::{Bench, run};

const GOOD: &str = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nmaxPods: 50\n";

/// Where no kubectl is, this says so and passes: it compares with what is there. `tests/run.sh` runs it again, in CI, with
/// the kubectl that the real suite has built.
#[test]
fn a_hundred_names_as_this_kubectl_gives_them() {
    let kubectl = std::env::var_os("KUBECTL").unwrap_or_else(|| "kubectl".into());
    if Command::new(&kubectl).args(["version", "--client"]).output().is_err() {
        assert!(std::env::var_os("KUBECTL").is_none(), "KUBECTL is {kubectl:?}, which cannot be run");
        eprintln!("SKIPPED: no kubectl on this machine");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let inputs: Vec<(String, String, String)> = (0..100_u64).map(input).collect();
    let ask = |(index, (base, key, text)): (usize, &(String, String, String))| {
        let file = dir.path().join(index.to_string());
        std::fs::write(&file, text).unwrap();
        // Half of them have flags as well.
        let keys = [key.clone(), format!("{key}.flags")].into_iter().take(1 + index % 2);
        let from = keys.clone().map(|key| format!("--from-file={key}={}", file.display()));
        let data = keys.map(|key| (key, text.clone())).collect();
        let output = Command::new(&kubectl)
            .args(["create", "configmap", base, "--append-hash", "--dry-run=client", "-o", "name"])
            .args(from)
            .env("KUBECONFIG", "/dev/null")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let named = String::from_utf8(output.stdout).unwrap();
        assert_eq!(named.trim(), format!("configmap/{}", configmap_name::name(base, &data)), "{base} {key} {text:?}");
    };
    let ask = &ask;
    std::thread::scope(|scope| {
        for part in 0..4 {
            let mine = inputs.iter().enumerate().skip(part).step_by(4);
            scope.spawn(move || mine.for_each(ask));
        }
    });
}

fn name_of(base: &str, data: &[(&str, &str)]) -> String {
    let data = data.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
    configmap_name::name(base, &data.collect())
}

/// Bases, keys and texts with all that Go and others may write differently; the same in every run.
fn input(seed: u64) -> (String, String, String) {
    const WORDS: [&str; 16] = [
        "maxPods: 50\n",
        "a: \"x\"\n",
        "<b> & <c>",
        "\\u003c",
        "\u{2028}\u{2029}",
        "é🙂",
        "\t\r\n",
        "\u{7f}\u{1}\u{1f}",
        "# comment\n",
        "'quoted'",
        "/",
        "\u{feff}",
        "kind: KubeletConfiguration\n",
        " ",
        "\\",
        "{}",
    ];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below).unwrap()
    };
    let base = ["pool-a", "a", "kubelet-config.v1", "x0"][next(4)];
    let key = ["kubelet", "kubelet.yaml", "K_1"][next(3)];
    let text: String = (0..next(12)).map(|_| WORDS[next(16)]).collect();
    (format!("{base}{seed}"), key.to_owned(), text)
}

#[test]
fn the_same_file_is_the_same_config_map() {
    let bench = Bench::new();
    let file = bench.file("pool-a.yaml", GOOD);
    let name = name_of("pool-a", &[("kubelet", GOOD)]);
    assert_eq!(bench.run(&["push", &file]).ok(), format!("configmap/{name} created\n"));
    let map = bench.server.config_map("kubelet-config", &name);
    assert_eq!((&map["data"]["kubelet"], &map["immutable"]), (&json!(GOOD), &json!(true)));
    assert_eq!(map["metadata"]["annotations"], Value::Null);
    assert_eq!(bench.run(&["push", &file]).ok(), format!("configmap/{name} unchanged\n"));
    assert_eq!(bench.server.config_map("kubelet-config", &name), map);
    // Input has no name; another base, key and place.
    bench.run_with(&["push", "-"], GOOD).ends(1, &["--name BASE"]);
    let ran = bench.run_with(&["push", "-", "--name", "b", "--key", "k.yaml", "-n", "kube-system", "-o", "name"], GOOD);
    let name = name_of("b", &[("k.yaml", GOOD)]);
    assert_eq!(ran.ok(), format!("configmap/{name}\n"));
    assert_eq!(bench.server.config_map("kube-system", &name)["data"]["k.yaml"], GOOD);
}

#[test]
fn flags_are_a_key_beside_it() {
    let bench = Bench::new();
    let (file, flags) = (bench.file("p.yaml", GOOD), bench.file("p.flags", "# why\n--v=4\n!--cgroup-driver\n"));
    let name = name_of("p", &[("kubelet", GOOD), ("kubelet.flags", "# why\n--v=4\n!--cgroup-driver\n")]);
    assert_eq!(bench.run(&["push", &file, "--flags", &flags]).ok(), format!("configmap/{name} created\n"));
    let map = bench.server.config_map("kubelet-config", &name);
    assert_eq!(map["data"]["kubelet.flags"], "# why\n--v=4\n!--cgroup-driver\n");
    assert_eq!(bench.run(&["push", &file, "--flags", &flags]).ok(), format!("configmap/{name} unchanged\n"));
    assert_ne!(bench.run(&["push", &file, "-o", "name"]).ok(), format!("configmap/{name}\n"));
    let asked = bench.server.requests().len();
    for (text, words) in [
        ("--v 4", "line 1: a blank after --v: write --v=value"),
        ("--kubeconfig=/x", "--kubeconfig cannot be set by a source: it makes the node what it is"),
    ] {
        let flags = bench.file("bad.flags", text);
        bench.run(&["push", &file, "--flags", &flags, "--name", "bad"]).ends(1, &[&format!("{flags}: {words}")]);
    }
    bench.run(&["push", &file, "--flags", "nowhere"]).ends(1, &["nowhere: No such file"]);
    assert_eq!(bench.server.requests().len(), asked, "nothing is written");
}

#[test]
fn a_name_that_is_taken_by_something_else_is_an_error() {
    let bench = Bench::new();
    let file = bench.file("p.yaml", GOOD);
    let name = name_of("p", &[("kubelet", GOOD)]);
    bench.server.put_config_map("kubelet-config", &name, &[("kubelet", "other")]);
    let ran = bench.run(&["push", &file]);
    assert!(ran.code == 1 && ran.err.starts_with("error: ") && ran.err.contains("with other data"), "{ran:?}");
    // The same data, made by kubectl: it works, and may be edited.
    bench.server.put_config_map("kubelet-config", &name, &[("kubelet", GOOD)]);
    let ran = bench.run(&["push", &file]);
    assert!(ran.code == 0 && ran.err.contains("\"immutable\":true") && ran.out.ends_with(" unchanged\n"), "{ran:?}");
    bench.run(&["push", &file, "--overlay"]).ends(1, &["merged by \"replace\" and not by \"overlay\""]);
}

#[test]
fn an_overlay_says_so_and_may_be_short() {
    let bench = Bench::new();
    let file = bench.file("p.yaml", "maxPods: 50\n");
    bench.run(&["push", &file]).ends(1, &["kind is missing"]);
    let map: Value = bench.run(&["push", &file, "--overlay", "-o", "json"]).json();
    assert_eq!(map["metadata"]["annotations"]["kubelet-supervisor.io/merge"], "overlay");
    let ran = bench.run(&["push", &file, "--overlay"]);
    assert!(ran.ok().ends_with(" unchanged\n"));
}

#[test]
fn what_is_no_configuration_is_refused_with_its_reason() {
    let bench = Bench::new();
    let huge = format!("{GOOD}# {}", "x".repeat(1 << 20));
    for (text, words) in [
        ("", "it is empty"),
        ("- a\n", "a list, not a mapping"),
        ("kind: Pod\napiVersion: v1\n", "it must be KubeletConfiguration"),
        ("kind: KubeletConfiguration\napiVersion: v1\n", "it must be kubelet.config.k8s.io/v1beta1"),
        ("a: [1\n", "error"),
        (&format!("{GOOD}maxPods: 60\n"), "stands twice"),
        (&format!("{GOOD}---\n{GOOD}"), "more than one YAML document"),
        (&huge, "more than 1 MiB"),
    ] {
        let ran = bench.run_with(&["push", "-", "--name", "x"], text);
        assert!(
            ran.code == 1 && ran.err.contains(words) && ran.err.starts_with("error: standard input"),
            "{words}: {ran:?}"
        );
    }
    for (args, words) in [
        (["push", "nowhere.yaml", "--key", "kubelet"], "nowhere.yaml: No such file"),
        (["push", "-", "--name", "Pool_A"], "cannot begin the name"),
        (["push", "-", "--key", "a/b"], "--key"),
    ] {
        bench.run_with(&args, GOOD).ends(1, &[words]);
    }
    assert!(bench.server.requests().is_empty(), "nobody was asked");
}

#[test]
fn fields_that_the_kubelet_does_not_know_are_warned_of() {
    let bench = Bench::new();
    let text = format!("{GOOD}seccompDefault: true\nmaxpods: 3\n");
    let push =
        |version: &str| bench.run_with(&["push", "-", "--name", "x", "--dry-run=client", "--kubelet", version], &text);
    let ran = push("v1.20.2");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains("warning: seccompDefault: since 1.22, this kubelet is 1.20\n"), "{ran:?}");
    assert!(ran.err.contains("warning: maxpods: did you mean maxPods?\n"), "{ran:?}");
    assert!(!push("1.29").err.contains("seccompDefault"));
    assert_eq!(push("latest").code, 2);
    assert!(bench.server.requests().is_empty(), "nobody was asked");
}

/// Without `--kubelet` the nodes are asked, and only where their version matters.
#[test]
fn fields_are_checked_for_the_versions_of_the_nodes() {
    let bench = Bench::new();
    for (name, version) in [("a", "v1.20.2"), ("b", "v1.20.15"), ("c", "v1.21.3+k3s1"), ("d", "v1.30.0")] {
        bench.server.put_node(name, json!({"status": {"nodeInfo": {"kubeletVersion": version}}}));
    }
    let text = format!("{GOOD}seccompDefault: true\n");
    let ran = bench.run_with(&["push", "-", "--name", "x"], &text);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains("warning: seccompDefault: since 1.22, this kubelet is 1.20 (2 nodes)\n"), "{ran:?}");
    assert!(ran.err.contains("warning: seccompDefault: since 1.22, this kubelet is 1.21 (1 node)\n"), "{ran:?}");
    assert_eq!(ran.err.lines().count(), 2, "{ran:?}");
}

/// Nothing is written then.
#[test]
fn fields_that_the_kubelet_does_not_know_are_refused_on_demand() {
    let bench = Bench::new();
    let push = |text: &str| bench.run_with(&["push", "-", "--name", "x", "--unknown-fields", "refuse"], text);
    let ran = push(&format!("{GOOD}evictionhard: {{}}\n"));
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(
        ran.err.contains("standard input: evictionhard: did you mean evictionHard? (refused by --unknown-fields)"),
        "{ran:?}"
    );
    assert!(bench.server.requests().is_empty(), "nobody was asked");
    assert_eq!(push(GOOD).code, 0);
}

#[test]
fn a_dry_run_changes_nothing() {
    let bench = Bench::new();
    let file = bench.file("p.yaml", GOOD);
    let name = name_of("p", &[("kubelet", GOOD)]);
    let ran = bench.run(&["push", &file, "--dry-run=server"]);
    assert_eq!(ran.ok(), format!("configmap/{name} created (server dry run)\n"));
    assert!(bench.server.requests().iter().all(|request| request.query.contains("dryRun=All")));
    assert!(bench.server.read(|state| state.config_map("kubelet-config", &name).is_none()));
    // And the client's asks nobody, who may not even be there.
    let ran = run(&bench.path("none"), bench.dir.path(), &["push", &file, "--dry-run=client", "-o", "yaml"], "");
    assert!(ran.ok().contains("immutable: true"));
}

#[test]
fn a_label_cannot_hold_every_name() {
    let bench = Bench::new();
    let base = "b".repeat(60);
    bench
        .run_with(&["push", "-", "--name", &base], GOOD)
        .ends(0, &["a label of a Node holds 63 characters and this name has 71"]);
}

/// What the nodes would refuse is refused here, as far as it can be told without their keys.
#[test]
fn a_signature_is_a_key_beside_it() {
    const SIGNED: &str = include_str!("../../../config/src/policy/fixtures/signed.yaml");
    const SIGNATURE: &str = include_str!("../../../config/src/policy/fixtures/good.minisig");
    let bench = Bench::new();
    let (file, signature) = (bench.file("p.yaml", SIGNED), bench.file("p.minisig", SIGNATURE));
    let flags = bench.file("p.flags", "--v=4\n");
    let push = |more: &[&str]| {
        let options =
            ["push", file.as_str(), "--signature", signature.as_str()].into_iter().chain(more.iter().copied());
        bench.run(&options.collect::<Vec<_>>())
    };
    let name = name_of("p", &[("kubelet", SIGNED), ("kubelet.flags", "--v=4\n"), ("kubelet.minisig", SIGNATURE)]);
    assert_eq!(push(&["--overlay", "--flags", &flags]).ok(), format!("configmap/{name} created\n"));
    for (more, why) in [
        (vec!["--overlay"], "key kubelet.flags was signed (files=), and is not there"),
        (vec!["--flags", flags.as_str()], "signed with merge=overlay"),
    ] {
        push(&more).ends(1, &["p.minisig: ", why]);
    }
    let none = bench.file("none.minisig", "x");
    bench
        .run(&["push", &file, "--overlay", "--signature", &none])
        .ends(1, &["none.minisig: it is no signature file of minisign"]);
}
