use super::*;
use serde_json::json;

const HEAD: &str = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n";

struct Case<'a> {
    payload: Option<&'a str>,
    local: Option<&'a str>,
    merge: Merge,
    args: &'a [&'a str],
    dir: &'a str,
}

impl Default for Case<'_> {
    fn default() -> Self {
        Self { payload: None, local: None, merge: Merge::Replace, args: &[], dir: "/d/1" }
    }
}

/// A payload alone, of no keys and no flags.
fn of<'a>(payload: &'a str, args: &'a KubeletArgs, overrides: &'a FlagOverrides) -> RenderInput<'a> {
    RenderInput {
        payload: Some(Text { text: payload, dir: "/d/1" }),
        local: None,
        merge: Merge::Replace,
        keys: &|_| None,
        configs: None,
        drop_ins: &[],
        args,
        overrides,
        minor: Some(20),
    }
}

fn drop_in(text: &str) -> DropIn {
    DropIn::new("/etc/k/conf.d/10.conf", format!("{HEAD}{text}"))
}

fn run(case: &Case<'_>) -> Result<Configuration, RenderFault> {
    let with_head = |text: &str| format!("{HEAD}{text}");
    let payload = case.payload.map(with_head);
    let local = case.local.map(with_head);
    let args = KubeletArgs::parse(&case.args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
    render(&RenderInput {
        payload: payload.as_deref().map(|text| Text { text, dir: case.dir }),
        local: local.as_deref().map(|text| Text { text, dir: "/etc/k" }),
        merge: case.merge,
        keys: &|key| (key == "ca.crt").then(|| "CA".to_owned()),
        ..of("", &args, &FlagOverrides::default())
    })
}

#[test]
fn replace_keeps_only_the_local_feature_gates() {
    let out = run(&Case {
        payload: Some("maxPods: 5\nfeatureGates: {B: true}\n"),
        local: Some("readOnlyPort: 10255\nfeatureGates: {A: true, B: false}\n"),
        ..Case::default()
    })
    .unwrap();
    assert_eq!(out.value["featureGates"], json!({"A": true, "B": true}));
    assert_eq!(out.value["maxPods"], 5);
    assert!(out.value.get("readOnlyPort").is_none());
}

/// The kubelet joins and cleans (filepath.Join), so that a directory that is not there does not matter.
#[test]
fn relative_paths_are_cleaned_as_the_kubelet_does() {
    for (path, payload, local) in [
        ("a/../m", Some("/d/1/m"), "/etc/k/m"),
        ("./m//n/", Some("/d/1/m/n"), "/etc/k/m/n"),
        ("../m", None, "/etc/m"),
        ("../../../m", None, "/m"),
        ("/a/../m", Some("/a/../m"), "/a/../m"),
    ] {
        let text = format!("staticPodPath: {path}\n");
        let found = run(&Case { payload: Some(&text), ..Case::default() }).ok();
        assert_eq!(found.map(|it| it.value["staticPodPath"].clone()), payload.map(Value::from), "{path}");
        let found = run(&Case { local: Some(&text), ..Case::default() }).unwrap();
        assert_eq!(found.value["staticPodPath"], local, "{path}");
    }
}

#[test]
fn overlay_merges_and_null_deletes() {
    let out = run(&Case {
        payload: Some("maxPods: 5\nsystemReserved: null\n"),
        local: Some("readOnlyPort: 10255\nsystemReserved: {cpu: 1}\nclusterDNS: [a, b]\n"),
        merge: Merge::Overlay,
        ..Case::default()
    })
    .unwrap();
    assert_eq!(out.value["readOnlyPort"], 10255);
    assert_eq!(out.value["maxPods"], 5);
    assert!(out.value.get("systemReserved").is_none());
}

#[test]
fn relative_paths_resolve_against_the_file_they_stand_in() {
    let out = run(&Case {
        payload: Some("authentication: {x509: {clientCAFile: ca.crt}}\n"),
        local: Some("staticPodPath: manifests\nresolvConf: ''\n"),
        merge: Merge::Overlay,
        ..Case::default()
    })
    .unwrap();
    assert_eq!(out.value["authentication"]["x509"]["clientCAFile"], "/d/1/ca.crt");
    assert_eq!(out.value["staticPodPath"], "/etc/k/manifests");
    assert_eq!(out.value["resolvConf"], "");
}

#[test]
fn a_path_that_names_a_key_points_below_the_digest_however_it_is_spelt() {
    let args = KubeletArgs::parse(&[]);
    let try_render = |path: &str, ca: &str, configs| {
        let text = format!("{HEAD}authentication: {{x509: {{clientCAFile: {path:?}}}}}\ntlsCertFile: /etc/tls.crt\n");
        let keys = &|key: &str| (key == "ca.crt").then(|| ca.to_owned());
        render(&RenderInput { keys, configs, ..of(&text, &args, &FlagOverrides::default()) })
    };
    let render = |path: &str, ca: &str| try_render(path, ca, Some("/s/configs")).unwrap();
    let plain = render("ca.crt", "CA");
    for path in ["./ca.crt", ".//./ca.crt", "x/./../ca.crt", "ca.crt/"] {
        let out = render(path, "CA");
        assert_eq!((&out.digest, &out.value, &out.files), (&plain.digest, &plain.value, &plain.files), "{path}");
        assert_ne!(render(path, "another").digest, plain.digest, "{path}");
    }
    let digest = &plain.digest.0;
    assert_eq!(plain.value["authentication"]["x509"]["clientCAFile"], format!("/s/configs/{digest}/files/ca.crt"));
    assert_eq!(plain.value["tlsCertFile"], "/etc/tls.crt");
    assert_eq!(plain.files, BTreeMap::from([("ca.crt".to_owned(), "CA".to_owned())]));
    // What the digest cannot cover.
    let refused = |path: &str, configs| match try_render(path, "CA", configs) {
        Err(RenderFault::Payload(why)) => why,
        other => panic!("{path}: {other:?}"),
    };
    for path in ["../ca.crt", "..", "x/../../ca.crt", "./../1/ca.crt", "ca.crt/../../ca.crt"] {
        for configs in [Some("/s/configs"), None] {
            let why = refused(path, configs);
            assert!(
                why.starts_with(&format!("authentication.x509.clientCAFile: {path:?} is relative and leads out")),
                "{why}"
            );
        }
    }
    for path in ["tls.crt", ".", "x/..", "Ca.crt", "ca.crt/x", "ca.crt ", "..ca.crt", "...", "~/ca.crt", "%2e/ca.crt"] {
        let why = refused(path, Some("/s/configs"));
        assert!(why.contains("is relative and names no key in the payload's data: name a key"), "{why}");
        assert!(try_render(path, "CA", None).is_ok(), "a file beside the one that `check` is given: {path}");
    }
    for path in ["/etc/ca.crt", "/../etc/ca.crt", ""] {
        assert_eq!(render(path, "CA").value["authentication"]["x509"]["clientCAFile"], path, "the node's own");
    }
}

#[test]
fn the_digest_is_of_the_content_not_of_the_version_or_the_spelling() {
    let digest = |dir, text| run(&Case { payload: Some(text), dir, ..Case::default() }).unwrap().digest;
    let base = digest("/d/1", "maxPods: 5\nauthentication: {x509: {clientCAFile: ca.crt}}\n");
    let spelt = "authentication:\n  x509:\n    clientCAFile: ca.crt\nmaxPods: 5.0 # a comment\n";
    assert_eq!(base, digest("/d/2", spelt));
    assert_ne!(base, digest("/d/1", "maxPods: 6\nauthentication: {x509: {clientCAFile: ca.crt}}\n"));
}

/// Spelt otherwise it is the same content: nothing would change by a restart.
#[test]
fn the_digest_goes_by_the_types_of_fields() {
    let of = |text: &str| run(&Case { payload: Some(text), ..Case::default() }).unwrap().digest;
    for (one, other, is_same) in [
        ("syncFrequency: 60s\n", "syncFrequency: 1m\n", true),
        ("syncFrequency: 60s\n", "syncFrequency: 61s\n", false),
        ("clusterDomain: 60s\n", "clusterDomain: 1m\n", false),
        ("clusterDNS: [a, b]\n", "clusterDNS: [b, a]\n", false),
        ("allowedUnsafeSysctls: [a, b]\n", "allowedUnsafeSysctls: [b, a]\n", true),
        ("kubeReserved: {memory: 1Gi}\n", "kubeReserved: {memory: 1024Mi}\n", true),
        ("containerRuntimeEndpoint: /run/x\n", "containerRuntimeEndpoint: unix:///run/x\n", true),
        ("maxPods: 110\n", "", false), // the default is the version's
    ] {
        assert_eq!(of(one) == of(other), is_same, "{one} {other}");
    }
}

#[test]
fn a_payload_equal_to_the_local_file_has_its_digest() {
    let local = run(&Case { local: Some("maxPods: 5\n"), ..Case::default() }).unwrap();
    let both = run(&Case { local: Some("maxPods: 5\n"), payload: Some("maxPods: 5\n"), ..Case::default() }).unwrap();
    assert_eq!(local.digest, both.digest);
}

#[test]
fn kind_and_version_are_required_of_a_payload() {
    let args = KubeletArgs::parse(&[]);
    let render = |payload: &str, local: Option<&str>, merge| {
        let local = local.map(|text| Text { text, dir: "/etc" });
        render(&RenderInput { local, merge, ..of(payload, &args, &FlagOverrides::default()) })
    };
    assert!(
        matches!(render("maxPods: 5", None, Merge::Replace), Err(RenderFault::Payload(why)) if why.contains("kind"))
    );
    assert!(render("{kind: Pod, apiVersion: v1}", None, Merge::Replace).unwrap_err().to_string().contains("Pod"));
    assert!(render("maxPods: 5", Some(HEAD), Merge::Overlay).is_ok());
    assert!(matches!(render("maxPods: 5", Some("kind: X"), Merge::Overlay), Err(RenderFault::Local(_))));
}

#[test]
fn healthz_follows_flags_then_drop_ins_then_the_file() {
    let target =
        |payload: &str, args: &[&str]| run(&Case { payload: Some(payload), args, ..Case::default() }).unwrap().healthz;
    let at = |host: &str, port| Some(HealthzTarget { host: host.to_owned(), port });
    assert_eq!(target("", &[]), at("127.0.0.1", 10248));
    assert_eq!(target("healthzPort: 0", &[]), None);
    assert_eq!(target("healthzPort: 0", &["--healthz-port=99"]), at("127.0.0.1", 99));
    assert_eq!(target("healthzBindAddress: 0.0.0.0", &[]), at("127.0.0.1", 10248));
    assert_eq!(target("healthzPort: 7", &["--healthz_bind_address", "10.0.0.1"]), at("10.0.0.1", 7));

    let args = KubeletArgs::parse(&[]);
    let text = format!("{HEAD}healthzPort: 7");
    let drop_ins = &[drop_in("healthzPort: 8")];
    let out = render(&RenderInput { drop_ins, ..of(&text, &args, &FlagOverrides::default()) }).unwrap();
    assert_eq!(out.healthz, at("127.0.0.1", 8));
    assert_eq!(out.value["healthzPort"], 7, "the kubelet merges drop-ins itself");
}

#[test]
fn fields_shadowed_by_flags_are_named() {
    let out = run(&Case { payload: Some("maxPods: 5\nkubeAPIQPS: 9\n"), args: &["--max-pods=7"], ..Case::default() })
        .unwrap();
    assert_eq!(out.shadowed, ["maxPods (--max-pods)"]);
}

#[test]
fn the_effective_configuration_has_drop_ins_and_flags_over_it() {
    let args = KubeletArgs::parse(&["--max-pods=7".to_owned(), "--feature-gates=A=true".to_owned()]);
    let text = format!("{HEAD}maxPods: 5\nkubeAPIQPS: 9\nsyncFrequency: 1m\n");
    let drop_ins = &[drop_in("kubeAPIQPS: 10\nsyncFrequency: null")];
    let overrides = FlagOverrides::default();
    let ingredients = RenderInput { drop_ins, ..of(&text, &args, &overrides) };
    let mut effective = render(&ingredients).unwrap().effective;
    let fields = effective.as_object_mut().unwrap();
    fields.remove("evictionHard");
    assert!(fields.remove("kind").is_some() && fields.remove("apiVersion").is_some());
    // What depends on the version stands there, so that it can be told from another version's.
    assert_eq!(
        effective,
        json!({"maxPods": 7, "kubeAPIQPS": 10, "featureGates": {"A": true}, "kubeAPIBurst": 10, "eventRecordQPS": 5,
            "eventBurst": 10, "nodeStatusReportFrequency": "5m", "serializeImagePulls": true})
    );

    let bare = render(&RenderInput { payload: None, ..ingredients }).unwrap();
    assert_eq!(bare.value, Value::Null);
    assert_eq!(bare.effective["readOnlyPort"], 10255, "a kubelet without a file is an open one");
    assert_eq!(bare.effective["maxPods"], 7);
}

#[test]
fn the_gate_of_native_dynamic_configuration_is_left_out() {
    let gates = "featureGates: {DynamicKubeletConfig: true}";
    let note = |out: &Configuration| out.notes.iter().any(|note| note.contains("DynamicKubeletConfig"));
    for merge in [Merge::Replace, Merge::Overlay] {
        // In the payload, in the local file, beside other gates.
        let more = "featureGates: {A: true, DynamicKubeletConfig: true}";
        let local = format!("{HEAD}{gates}");
        let out = run(&Case { payload: Some(more), local: Some(&local), merge, ..Case::default() }).unwrap();
        assert_eq!(out.value["featureGates"], json!({"A": true}));
        assert!(note(&out), "{:?}", out.notes);
        let out = run(&Case { payload: Some("maxPods: 5"), local: Some(&local), merge, ..Case::default() }).unwrap();
        assert!(out.value.get("featureGates").is_none() && note(&out), "{}", out.value);
    }
    // The local file is the node's; its content counts without the gate.
    let local = |more: &str| run(&Case { local: Some(&format!("{HEAD}{more}")), ..Case::default() }).unwrap();
    let own = local(gates);
    assert_eq!(own.value["featureGates"], json!({"DynamicKubeletConfig": true}));
    assert!(note(&own), "{:?}", own.notes);
    assert_eq!(own.digest, local("").digest);
}

#[test]
fn flag_overrides_are_part_of_the_content() {
    let words = ["--cgroup-driver=cgroupfs", "--max-pods=9", "--feature-gates=A=true", "--cluster-dns=10.0.0.1"];
    let words = words.map(str::to_owned);
    let args = KubeletArgs::parse(&words);
    let text = format!("{HEAD}cgroupDriver: systemd\nmaxPods: 5\nhealthzPort: 7\n");
    let render = |flags: &str| render(&of(&text, &args, &FlagOverrides::parse(flags).unwrap())).unwrap();
    let plain = render("");
    assert_eq!(plain.shadowed, ["cgroupDriver (--cgroup-driver)", "maxPods (--max-pods)"]);
    let out = render("!--cgroup-driver\n--max-pods=6\n--healthz-port=8\n--feature-gates=B=true");
    assert_eq!(out.shadowed, ["maxPods (--max-pods)", "healthzPort (--healthz-port)"], "in the order of the flags");
    assert_eq!(
        (&out.effective["cgroupDriver"], &out.effective["maxPods"], &out.effective["featureGates"]),
        (&json!("systemd"), &json!(6), &json!({"A": true, "B": true}))
    );
    assert_eq!(out.healthz, Some(HealthzTarget { host: "127.0.0.1".to_owned(), port: 8 }));
    assert_eq!(out.value, plain.value, "flags are no fields of the file");
    assert_ne!(out.digest, plain.digest);
    assert_eq!(render("# as before\n").digest, plain.digest);
    assert!(render("!--no-such-flag").notes[0].contains("the unit has no such flag"));
    assert_eq!(render("--max-pods=6").digest, render("\n--max_pods=6 \n").digest);
    assert!(render("--cluster-dns=10.0.0.2").notes[0].contains("!--cluster-dns takes that out"));
    assert!(render("!--cluster-dns\n--cluster-dns=10.0.0.2\n--feature-gates=B=true").notes.is_empty());
}
