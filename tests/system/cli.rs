//! The other verbs, usage errors, the environment.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use testkit::kubelet::Style;
use testkit::rig::{NAMESPACE, Rig, configuration, exit_and_output, supervisor};

fn verb(rig: &Rig, verb: &str, options: &[&str]) -> (i32, String, String) {
    let mut command = supervisor();
    command.arg(verb).args(options).arg("--").arg(&rig.program).args(&rig.args);
    exit_and_output(&command.output().unwrap())
}

fn file(rig: &Rig, text: &str) -> String {
    let path = rig.at("candidate.yaml");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn check_tells_by_its_exit_code() {
    for style in [Style::V1_20, Style::V1_36] {
        let mut rig = Rig::with(style, "1s");
        let check = |text: &str| verb(&rig, "check", &[&file(&rig, text)]);
        let (code, stdout, stderr) = check(&configuration("maxPods: 42"));
        assert_eq!((code, stdout.as_str()), (0, "valid\n"), "{stderr}");
        let (code, stdout, _) = check(&configuration("noSuchField: 1"));
        assert_eq!((code, stdout.as_str()), (0, "note: unknown field noSuchField, ignored by the kubelet\nvalid\n"));
        for (text, words) in [
            (configuration("kubeAPIQPS: -1"), "must not be a negative number"),
            (configuration("featureGates: {Nonsense: true}"), "unrecognized feature gate: Nonsense"),
            (configuration("maxPods: ten"), "maxPods"),
            ("a: [".to_owned(), ""),
            (String::new(), ""),
        ] {
            let (code, stdout, stderr) = check(&text);
            assert_eq!(code, 1, "{style:?} {text:?}: {stdout}{stderr}");
            assert!(
                stdout.starts_with("rejected: ") && stdout.to_lowercase().contains(&words.to_lowercase()),
                "{stdout}"
            );
        }
        let (code, stdout, _) = check(&configuration("standIn: {preflight: exit0}"));
        assert_eq!(code, 2, "{stdout}");
        assert!(stdout.starts_with("could not tell: "), "{stdout}");
        let (code, _, stderr) = verb(&rig, "check", &["/no/such/file"]);
        assert!(code == 2 && stderr.contains("/no/such/file: No such file or directory"), "{code} {stderr}");

        rig.args.push("--no-such-flag".to_owned());
        let (code, stdout, _) = verb(&rig, "check", &[&file(&rig, &configuration(""))]);
        assert_eq!(code, 2, "{stdout}");
        assert!(stdout.contains("unknown flag: --no-such-flag"), "{stdout}");
        assert_eq!(rig.starts(), 0);
        assert!(!rig.at("pki").exists(), "the node's own certificates are not touched");
    }
}

#[test]
fn check_and_render_tell_fields_of_no_effect() {
    let odd = "evictionhard: {memory.available: 1Gi}\nmaxPods: 41\nmaxPods: 42\nmaxParallelImagePulls: 3";
    for style in [Style::V1_20, Style::V1_36] {
        let rig = Rig::with(style, "1s");
        let path = file(&rig, &configuration(odd));
        let all = |said: &str| {
            let old = said.contains("maxParallelImagePulls: since 1.27, this kubelet is 1.20");
            assert_eq!(old, style == Style::V1_20, "{said}");
            said.contains("evictionhard: did you mean evictionHard?") && said.contains("duplicate field in the payload")
        };
        let (code, stdout, stderr) = verb(&rig, "check", &[&path]);
        assert!(code == 0 && stdout.ends_with("valid\n") && all(&stderr), "{code} {stdout}{stderr}");
        let (code, stdout, stderr) = verb(&rig, "check", &[&path, "--unknown-fields", "refuse"]);
        assert!(code == 1 && stdout.starts_with("rejected: ") && all(&stdout), "{code} {stdout}{stderr}");
        let (code, _, stderr) = verb(&rig, "render", &[&path]);
        assert!(code == 0 && all(&stderr), "{code} {stderr}");
        let good = file(&rig, &configuration("maxPods: 42"));
        assert_eq!(verb(&rig, "check", &[&good, "--unknown-fields=refuse"]).0, 0);
        assert_eq!(verb(&rig, "check", &[&good, "--unknown-fields=maybe"]).0, 64);
    }
}

#[test]
fn render_shows_what_the_kubelet_gets_and_what_flags_shadow() {
    let mut rig = Rig::long_trial();
    rig.local("maxPods: 110\nclusterDomain: x.test\nfeatureGates: {AppArmor: true}");
    rig.args.push("--max-pods=7".to_owned());
    let path = file(&rig, &configuration("maxPods: 42"));
    let (code, stdout, stderr) = verb(&rig, "render", &[&path]);
    assert_eq!(code, 0, "{stderr}");
    let value: Value = serde_json::from_str(&stdout).unwrap();
    assert!(value["maxPods"] == 42 && value["featureGates"]["AppArmor"] == true && value["clusterDomain"].is_null());
    assert!(stderr.contains("note: maxPods (--max-pods) has no effect, the command line wins"), "{stderr}");
    let overlaid = verb(&rig, "render", &[&path, "--merge=overlay"]).1;
    assert_eq!(serde_json::from_str::<Value>(&overlaid).unwrap()["clusterDomain"], "x.test");
    assert_eq!(verb(&rig, "render", &[&file(&rig, "a: [")]).0, 1);

    // Without a file: what the store holds.
    let dir = format!("--dynamic-config-dir={}", rig.at("dynamic").display());
    let (code, stdout, stderr) = verb(&rig, "render", &[&dir]);
    assert!(code == 0 && stderr.contains("the local configuration, nothing is assigned"), "{stderr}");
    assert_eq!(serde_json::from_str::<Value>(&stdout).unwrap()["maxPods"], 110);
    rig.up();
    rig.apply("a", &configuration("maxPods: 43"));
    let (code, stdout, stderr) = verb(&rig, "render", &[&dir]);
    assert!(code == 0 && stderr.contains("the assigned configuration, /api/v1/namespaces/kube-system/configmaps/a"));
    assert_eq!(serde_json::from_str::<Value>(&stdout).unwrap(), rig.last_config());
    assert_eq!(rig.status()["shadowedByFlags"], serde_json::json!(["maxPods (--max-pods)"]));
    assert!(rig.verb(&["status"]).1.contains("No effect:       maxPods (--max-pods), the command line wins"));
}

/// A unit's own line has variables, which a shell does not have.
#[test]
fn check_takes_the_command_line_of_the_running_supervisor() {
    let mut rig = Rig::long_trial();
    rig.args.push("--max-pods=9".to_owned());
    let path = file(&rig, &configuration("maxPods: 42"));
    let dir = format!("--dynamic-config-dir={}", rig.at("dynamic").display());
    let check =
        |more: &[&str]| exit_and_output(&supervisor().args(["check", &path, &dir]).args(more).output().unwrap());
    let (code, _, stderr) = check(&[]);
    assert!(code == 64 && stderr.contains("no supervisor answers"), "{code}: {stderr}");
    rig.option("--unknown-fields", "refuse");
    rig.up();
    let (code, stdout, stderr) = check(&[]);
    assert_eq!((code, stdout.as_str()), (0, "valid\n"), "{stderr}");
    assert!(stderr.contains("maxPods (--max-pods) has no effect, the command line wins"), "{stderr}");
    // Its other options as well, where no others are given.
    file(&rig, &configuration("maxpods: 42"));
    assert_eq!(check(&[]).0, 1, "refused");
    assert_eq!(check(&["--unknown-fields=warn"]).0, 0);
    // What the local file alone would be refused for counts only where it is laid under.
    rig.local("kubeAPIQPS: -1");
    file(&rig, &configuration("maxPods: 42"));
    assert_eq!(check(&[]).0, 0);
    assert_ne!(check(&["--merge=overlay"]).0, 0);
    // Its kubelet starts with the first document of it, so it is no fault.
    rig.local("podsPerCore: 7\n---\nkubeAPIQPS: [torn");
    let (code, _, stderr) = check(&["--merge=overlay"]);
    assert!(code == 0 && stderr.contains("note: the local file: a kubelet reads the first YAML document"), "{stderr}");
}

#[test]
fn render_effective_says_where_each_value_comes_from() {
    let mut rig = Rig::with(Style::V1_36, "1s");
    rig.local("maxPods: 110\nclusterDomain: x.test\nstaticPodURLHeader: {Authorization: [hush]}");
    let drop_ins = rig.at("conf.d");
    std::fs::create_dir(&drop_ins).unwrap();
    std::fs::write(drop_ins.join("10-a.conf"), configuration("kubeAPIQPS: 8\nkubeAPIBurst: 9")).unwrap();
    std::fs::write(drop_ins.join("20-b.conf"), configuration("kubeAPIQPS: 10")).unwrap();
    rig.args.extend([format!("--config-dir={}", drop_ins.display()), "--pods-per-core=3".to_owned()]);
    let path = file(&rig, &configuration("podsPerCore: 9\nregistryBurst: 7"));
    let json = ["--effective", "-o", "json", "--merge=overlay"];
    let (code, stdout, stderr) = verb(&rig, "render", &[&[path.as_str()], &json[..]].concat());
    assert_eq!(code, 0, "{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap();
    let of = |document: &Value, name: &str| {
        let fields = document["fields"].as_array().unwrap();
        let field =
            fields.iter().find(|field| field["field"] == name).unwrap_or_else(|| panic!("{name}: {document:#}"));
        (field["value"].clone(), field["from"].as_str().unwrap().to_owned(), field["name"].clone())
    };
    let at = |name: &str| Value::from(rig.at(name).display().to_string());
    for (field, value, from, name) in [
        ("maxPods", 110.into(), "localFile", at("local.yaml")),
        ("clusterDomain", "x.test".into(), "localFile", at("local.yaml")),
        ("staticPodURLHeader.Authorization", "(hidden)".into(), "localFile", at("local.yaml")),
        ("registryBurst", 7.into(), "payload", path.as_str().into()),
        ("kubeAPIBurst", 9.into(), "dropIn", at("conf.d/10-a.conf")),
        ("kubeAPIQPS", 10.into(), "dropIn", at("conf.d/20-b.conf")),
        ("podsPerCore", 3.into(), "flag", "--pods-per-core".into()),
        ("eventRecordQPS", 50.into(), "default", Value::Null),
    ] {
        assert_eq!(of(&document, field), (value, from.to_owned(), name), "{field}");
    }
    let (code, text, _) = verb(&rig, "render", &[&path, "--effective"]);
    let line =
        |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {text}"));
    assert!(code == 0 && line("podsPerCore ").ends_with("   flag --pods-per-core"), "{text}");
    assert!(line("kubeAPIQPS ").ends_with("/conf.d/20-b.conf") && line("eventRecordQPS ").ends_with("   default"));
    assert!(text.starts_with("FIELD ") && !stdout.contains("hush") && !text.contains("hush"), "{text}");
    assert_eq!(verb(&rig, "render", &[&path, "-o", "json"]).0, 64, "the configuration itself is always JSON");

    // A source's own flags are the last, and one that it takes out is gone.
    let flags = rig.at("kubelet.flags").display().to_string();
    std::fs::write(&flags, "--event-burst=0\n!--pods-per-core\n").unwrap();
    let (code, stdout, stderr) = verb(&rig, "render", &[&[path.as_str(), "--flags", &flags], &json[..]].concat());
    assert_eq!(code, 0, "{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(of(&document, "eventBurst"), (0.into(), "flagOverride".to_owned(), "--event-burst".into()));
    assert_eq!(of(&document, "podsPerCore"), (9.into(), "payload".to_owned(), path.as_str().into()));

    // Of a running supervisor: what is active, whatever is assigned, in the bytes that were given to the kubelet.
    rig.up();
    rig.prove("a", &configuration("registryBurst: 8"));
    let bad = rig.put("a", &configuration("eventRecordQPS: -1"));
    rig.wait_event("KubeletConfigRejected", &bad);
    let dir = format!("--dynamic-config-dir={}", rig.at("dynamic").display());
    let (code, stdout, stderr) = verb(&rig, "render", &[&dir, "--effective", "-o", "json"]);
    assert!(code == 0 && stderr.contains("note: the active configuration, "), "{stderr}");
    let burst = of(&serde_json::from_str(&stdout).unwrap(), "registryBurst");
    assert_eq!(burst, (8.into(), "payload".to_owned(), format!("ConfigMap {NAMESPACE}/a").into()));
    // The running supervisor's own command line will do.
    let output = supervisor().args(["render", "--effective", "-o", "json", &dir]).output().unwrap();
    let (code, own, stderr) = exit_and_output(&output);
    assert!(code == 0 && own == stdout, "{stderr}{own}");
    rig.local("featureGates: {AppArmor: false}");
    let (_, stdout, stderr) = verb(&rig, "render", &[&dir, "--effective"]);
    assert!(stderr.contains("note: shown are the bytes that the kubelet was given, "), "{stderr}");
    assert!(!stdout.contains("AppArmor") && stdout.contains("registryBurst "), "{stdout}");
    rig.stop();
    let (code, _, stderr) = exit_and_output(&supervisor().args(["render", &dir]).output().unwrap());
    assert!(code == 64 && stderr.contains("no supervisor answers (") && stderr.contains("control.sock: "), "{stderr}");
}

#[test]
fn status_with_and_without_a_supervisor() {
    let mut rig = Rig::long_trial();
    let (code, _, stderr) = rig.verb(&["status"]);
    assert!(code == 1 && stderr.contains("no supervisor answers") && stderr.contains("there is no store"), "{stderr}");
    rig.up();
    let (uid, version) = rig.apply("a", &configuration("maxPods: 42"));
    rig.wait_status("the trial runs", |status| status["trial"]["since"].is_string());
    let (code, text, _) = rig.verb(&["status"]);
    let source = format!("kube-system/a key kubelet (uid {uid}, resourceVersion {version})");
    assert_eq!(code, 0);
    for line in [
        format!("Kubelet:         v1.20.2 pid {}, ready, 1 restart", rig.last_pid()),
        format!("Assigned:        {source}"),
        "Active:          as assigned".to_owned(),
        "Last known good: local configuration".to_owned(),
        "Trial:           running, ".to_owned(),
        "Error:           none".to_owned(),
    ] {
        assert!(text.contains(&line), "{line:?} in\n{text}");
    }
    let json = rig.status();
    assert_eq!(json["trial"]["state"], "running");
    assert!(json["trial"]["remainingSeconds"].as_u64() > Some(500));

    rig.stop();
    let json = rig.status();
    assert_eq!(json["assigned"]["configMap"]["resourceVersion"], version);
    assert!(json["active"].is_null() && json["kubelet"]["pid"].is_null());
    assert!(json["error"].as_str().unwrap().starts_with("no supervisor is running: "), "{json}");
    let (code, text, _) = rig.verb(&["status", "--output=text"]);
    assert!(code == 0 && text.contains(&format!("Assigned:        {source}")), "{text}");
    assert!(text.contains("To do:           see why with systemctl status kubelet"), "{text}");
}

#[test]
fn health_is_served_and_can_be_turned_off() {
    let mut rig = Rig::new();
    rig.local("standIn: {startDelay: 300ms}");
    rig.start();
    rig.wait_starts(1);
    assert!(rig.get("/healthz").0.contains(" 200 "));
    assert!(rig.readies() == 1 || rig.get("/readyz").0.contains(" 503 "));
    rig.wait_status("ready", |status| status["kubelet"]["ready"] == true);
    assert!(rig.get("/readyz").0.contains(" 200 "));
    assert!(rig.get("/nonsense").0.contains(" 404 "));
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(rig.metric(&format!("kubelet_supervisor_build_info{{version=\"{version}\"}}")), Some(1.0));
    rig.stop();
    rig.option("--metrics-bind-address", "");
    rig.up();
    assert!(std::net::TcpStream::connect(rig.metrics.address()).is_err());
    rig.stop();
    // Taken by another process: a warning, and a kubelet.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    rig.option("--metrics-bind-address", &taken.local_addr().unwrap().to_string());
    rig.up();
    rig.wait_log("choose another --metrics-bind-address");
}

#[test]
fn usage_errors_are_64_and_say_what_is_wrong() {
    let rig = Rig::new();
    let not_executable = rig.at("local.yaml").display().to_string();
    let directory = rig.dir.path().display().to_string();
    let kubelet = rig.program.display().to_string();
    let cases: [(&[&str], &str); 22] = [
        (&[], "Usage:"),
        (&["nonsense"], "nonsense"),
        (&["run", "--no-such-option", "--", &kubelet], "--no-such-option"),
        (&["run"], "KUBELET"),
        (&["run", "--trial-duration=soon", "--", &kubelet], "--trial-duration"),
        (&["run", "--trial-duration=0s", "--", &kubelet], "more than zero"),
        (&["run", "--metrics-bind-address=here", "--", &kubelet], "is not ADDRESS:PORT"),
        (&["run", "--merge=blend", "--", &kubelet], "use replace or overlay"),
        (&["run", "--trial-boots=0", "--", &kubelet], "it must be a whole number, 1 or more"),
        (&["run", "--", "/no/such/kubelet"], "the kubelet cannot be run: /no/such/kubelet: there is no such file"),
        (&["run", "--", "no-such-kubelet"], "it is not on PATH; give its full path"),
        (&["run", "--", &not_executable], "is not an executable file"),
        (&["check", "x", "--", &directory], "is not an executable file"),
        (&["run", "--default-source=kubelet-config", "--", &kubelet], "NAMESPACE/NAME"),
        (&["rollback", "--to=yesterday"], "is not local, lkg or UID/RESOURCEVERSION"),
        (&["rollback", "--to", "a/b/c"], "is not local, lkg or UID/RESOURCEVERSION"),
        (&["pin", "/"], "is not local, lkg or UID/RESOURCEVERSION"),
        (&["confirm", "--extend", "soon"], "use Go syntax"),
        (&["confirm", "--extend=0s"], "more than zero"),
        (&["history", "-o", "yaml"], "yaml"),
        (&["history", "-n", "few"], "it must be a whole number, 1 or more"),
        (&["freeze", "now"], "now"),
    ];
    for (args, message) in cases {
        let (code, stdout, stderr) = exit_and_output(&supervisor().args(args).output().unwrap());
        assert_eq!((code, stdout.as_str()), (64, ""), "{args:?}: {stderr}");
        assert!(stderr.contains(message), "{args:?}: {stderr}");
        let said: Vec<&str> = stderr.lines().filter(|line| !line.trim().is_empty()).collect();
        assert!((1..said.len()).all(|at| !said[..at].contains(&said[at])), "said twice, {args:?}: {stderr}");
    }
    assert_eq!(rig.starts(), 0);
}

#[test]
fn help_and_version() {
    for args in [&["--help"][..], &["run", "--help"], &["status", "-h"], &["check", "--help"], &["render", "--help"]] {
        let (code, stdout, stderr) = exit_and_output(&supervisor().args(args).output().unwrap());
        assert!(code == 0 && stdout.contains("Usage:") && stderr.is_empty(), "{args:?}: {stdout}{stderr}");
    }
    let (code, stdout, _) = exit_and_output(&supervisor().arg("--version").output().unwrap());
    assert_eq!((code, stdout), (0, format!("kubelet-supervisor {}\n", env!("CARGO_PKG_VERSION"))));
}

/// Also in a pipe, where clap has no terminal to ask.
#[test]
fn help_fits_80_columns() {
    fn check(command: &clap::Command) {
        let help = command.clone().render_long_help().to_string();
        let wide: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{}: {wide:#?}", command.get_name());
        command.get_subcommands().for_each(check);
    }
    let mut command = kubelet_supervisor::cli::command();
    command.build();
    check(&command);
}

#[test]
fn every_option_is_read_from_the_environment() {
    let mut rig = Rig::new();
    let name = |option: &str| {
        format!("KUBELET_SUPERVISOR_{}", option.trim_start_matches('-').to_uppercase().replace('-', "_"))
    };
    rig.args.retain(|word| !word.starts_with("--hostname-override"));
    rig.options.extend(["--node-name=n1".to_owned(), "--log-format=json".to_owned(), "--merge=overlay".to_owned()]);
    let options = std::mem::take(&mut rig.options);
    rig.env = options.iter().filter_map(|o| o.split_once('=')).map(|(n, v)| (name(n), v.to_owned())).collect();
    rig.local("clusterDomain: x.test");
    rig.up();
    rig.prove("a", &configuration("maxPods: 42"));
    assert_eq!(rig.last_config()["clusterDomain"], "x.test", "overlay");
    assert!(rig.metric("kubelet_node_config_error").is_some());
    let log = rig.log();
    let ours: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(
        ours.iter().any(|l| l["level"] == "info" && l["msg"].as_str().unwrap().contains("this is node n1")),
        "{log}"
    );
    let dir: PathBuf = rig.at("dynamic");
    let mut status = Command::new(env!("CARGO_BIN_EXE_kubelet-supervisor"));
    let output =
        status.args(["status", "-o", "json"]).env("KUBELET_SUPERVISOR_DYNAMIC_CONFIG_DIR", dir).output().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap()["trial"]["state"], "passed");
}
