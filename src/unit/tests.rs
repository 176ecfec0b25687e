//! The units that nodes really have.

use super::command::{Command, quote};
use super::plan::Plan;
use super::service::{Service, logical_lines, span};
use super::*;
use std::time::Duration;

const PACKAGE: &str = include_str!("fixtures/package.service");

const KUBEADM: &str = include_str!("fixtures/10-kubeadm.conf");
const KUBEADM_COMMAND: &str =
    "/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS";

const OPENSHIFT: &str = include_str!("fixtures/openshift.service");

const EKS: &str = include_str!("fixtures/eks.service");

const UNIT: &str = "/usr/lib/systemd/system/kubelet.service";

fn file(path: &str, text: &str) -> UnitFile {
    UnitFile { path: path.to_owned(), text: text.to_owned() }
}

fn planned(files: &[UnitFile], options: Option<&[&str]>) -> Result<Plan, String> {
    let options: Option<Vec<String>> = options.map(|words| words.iter().map(|&word| word.to_owned()).collect());
    let properties = Properties::parse("StartLimitIntervalUSec=10s\nStartLimitBurst=5\nRestartUSec=10s\n");
    plan(&Request { options: options.as_deref(), ..request(files, &properties) })
}

fn request<'a>(files: &'a [UnitFile], properties: &'a Properties) -> Request<'a> {
    let (unit, supervisor) = ("kubelet.service", "/usr/bin/kubelet-supervisor");
    Request { unit, files, properties, supervisor, options: None, service_type: None }
}

/// The values of a key in the drop-in.
fn values(plan: &Plan, key: &str) -> Vec<String> {
    let ours = file(&plan.path, &plan.text);
    let service = Service::read([&ours]);
    service.0.iter().filter(|setting| setting.key == key).map(|setting| setting.value.clone()).collect()
}

/// The command behind `run … -- `.
fn kubelet(plan: &Plan) -> String {
    let starts = values(plan, "ExecStart");
    assert_eq!(starts.len(), 2);
    assert_eq!(starts[0], "", "what the unit had is reset");
    starts[1].split_once(" -- ").unwrap().1.to_owned()
}

#[test]
fn every_form_of_unit() {
    let openshift = "/usr/bin/hyperkube kubelet --config=/etc/kubernetes/kubelet.conf \
        --bootstrap-kubeconfig=/etc/kubernetes/kubeconfig --kubeconfig=/var/lib/kubelet/kubeconfig \
        --node-labels=node-role.kubernetes.io/worker,node.openshift.io/os_id=${ID} --node-ip=${KUBELET_NODE_IP} \
        --cloud-provider= --hostname-override= \
        --register-with-taints=\"node-role.kubernetes.io/master=:NoSchedule\" --v=${KUBELET_LOG_LEVEL}";
    let kubeadm =
        |dir: &str| vec![file(UNIT, PACKAGE), file(&format!("{dir}/kubelet.service.d/10-kubeadm.conf"), KUBEADM)];
    let forms = [
        ("package", vec![file(UNIT, PACKAGE)], "/usr/bin/kubelet"),
        ("kubeadm", kubeadm("/usr/lib/systemd/system"), KUBEADM_COMMAND),
        ("kubeadm of the old repository", kubeadm("/etc/systemd/system"), KUBEADM_COMMAND),
        ("openshift", vec![file("/etc/systemd/system/kubelet.service", OPENSHIFT)], openshift),
        ("eks", vec![file("/etc/systemd/system/kubelet.service", EKS)], "/usr/bin/kubelet $NODEADM_KUBELET_ARGS"),
    ];
    for (name, mut files, command) in forms {
        let plan = planned(&files, None).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!(kubelet(&plan), command, "{name}");
        assert_eq!(plan.path, "/etc/systemd/system/kubelet.service.d/zz-kubelet-supervisor.conf");
        assert_eq!(values(&plan, "OOMScoreAdjust"), ["-999"], "{name}");
        assert!(!plan.text.lines().any(|line| line.ends_with('\\')), "{name}");
        // With the drop-in in place, the same comes out.
        files.push(file(&plan.path, &plan.text));
        assert_eq!(planned(&files, None).as_ref(), Ok(&plan), "{name}");
    }
}

#[test]
fn what_is_shipped_is_what_kubeadm_gets() {
    let files = [file(UNIT, PACKAGE), file("/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf", KUBEADM)];
    assert_eq!(planned(&files, None).unwrap().text, include_str!("../../systemd/zz-kubelet-supervisor.conf"));
}

#[test]
fn type_and_kill_mode_go_by_the_unit() {
    let simple = planned(&[file(UNIT, PACKAGE)], None).unwrap();
    assert!(values(&simple, "Type").is_empty(), "what waits for the unit goes on waiting for the same");
    assert_eq!(values(&simple, "NotifyAccess"), ["main"]);
    assert_eq!(values(&simple, "KillMode"), ["mixed"]);
    assert!(simple.notes.is_empty(), "{:?}", simple.notes);

    let notify = planned(&[file(UNIT, OPENSHIFT)], None).unwrap();
    assert!(values(&notify, "Type").is_empty());
    assert_eq!(values(&notify, "TimeoutStartSec"), ["5min"]);

    let all = planned(&[file(UNIT, &format!("{PACKAGE}\n[Service]\nNotifyAccess=all\n"))], None).unwrap();
    assert!(values(&all, "NotifyAccess").is_empty());

    let eks = planned(&[file(UNIT, EKS)], None).unwrap();
    assert!(values(&eks, "KillMode").is_empty(), "process stays");

    for (own, set) in [("10min", false), ("infinity", false), ("0", false), ("90", true), ("1min 30s", true)] {
        let unit = format!("{OPENSHIFT}\n[Service]\nTimeoutStartSec={own}\n");
        let plan = planned(&[file(UNIT, &unit)], None).unwrap();
        assert_eq!(!values(&plan, "TimeoutStartSec").is_empty(), set, "{own}");
    }
}

#[test]
fn the_type_that_was_asked_for_stays() {
    let mut files = vec![file(UNIT, PACKAGE)];
    let properties = Properties::default();
    let ask = |files: &[UnitFile], service_type| plan(&Request { service_type, ..request(files, &properties) });
    let notify = ask(&files, Some(ServiceType::Notify)).unwrap();
    assert_eq!(values(&notify, "Type"), ["notify"]);
    assert_eq!(values(&notify, "TimeoutStartSec"), ["5min"]);
    assert!(notify.notes.iter().any(|note| note.contains("cloud-init")), "{:?}", notify.notes);
    files.push(file(&notify.path, &notify.text));
    assert_eq!(ask(&files, None).unwrap().text, notify.text);
    assert!(values(&ask(&files, Some(ServiceType::Simple)).unwrap(), "Type").is_empty());
}

/// Two starts of that length and a stop fit in.
#[test]
fn the_time_to_start_follows_the_start_timeout() {
    let unit = PACKAGE.replace("[Service]", "[Service]\nType=notify");
    for (options, expected) in [
        (["--start-timeout", "10m"].as_slice(), "21min"),
        (&["--start-timeout=200s"], "460s"),
        (&["--start-timeout=1m"], "5min"),
        (&["--start-timeout=$LONG"], "5min"),
    ] {
        let plan = planned(&[file(UNIT, &unit)], Some(options)).unwrap();
        assert_eq!(values(&plan, "TimeoutStartSec"), [expected], "{options:?}");
    }
}

#[test]
fn options_are_quoted_and_kept_until_others_are_given() {
    let mut files = vec![file(UNIT, PACKAGE)];
    let first = planned(&files, Some(&["--node-name", "a b", "--dynamic-config-dir=/var/$x%i\"\\"])).unwrap();
    let start = values(&first, "ExecStart").remove(1);
    assert_eq!(
        start,
        r#"/usr/bin/kubelet-supervisor run --node-name "a b" "--dynamic-config-dir=/var/$$x%%i\"\\" -- /usr/bin/kubelet"#
    );
    files.push(file(&first.path, &first.text));
    // The unit changed meanwhile.
    files[0].text = PACKAGE.replace("/usr/bin/kubelet", "/usr/local/bin/kubelet --v=4");
    let renewed = planned(&files, None).unwrap();
    assert_eq!(renewed.options, first.options);
    assert_eq!(kubelet(&renewed), "/usr/local/bin/kubelet --v=4");
    assert_eq!(planned(&files, Some(&["--trial-duration=5m"])).unwrap().options, "--trial-duration=5m");
    assert_eq!(quote("$x", false), "\"$x\"", "with the prefix `:` nothing is expanded");
    assert_eq!(quote("", true), "\"\"");
}

#[test]
fn a_supervisor_in_another_file_is_taken_over() {
    for named in ["/opt/kubelet-supervisor", "/opt/kubelet-supervisor-0.1/bin/kubelet-supervisor-0.1", "/opt/ks"] {
        let own =
            PACKAGE.replace("/usr/bin/kubelet", &format!("{named} run --merge overlay -- /usr/bin/kubelet --v=2"));
        let plan = planned(&[file(UNIT, &own)], None).unwrap();
        assert_eq!(
            values(&plan, "ExecStart")[1],
            "/usr/bin/kubelet-supervisor run --merge overlay -- /usr/bin/kubelet --v=2"
        );
    }
}

#[test]
fn commands_that_are_a_kubelets() {
    for (value, prefix, program) in [
        ("/usr/bin/kubelet", "", "/usr/bin/kubelet"),
        ("-/usr/local/bin/kubelet --v=2", "-", "/usr/local/bin/kubelet"),
        ("!!/opt/bin/kubelet-1.33 --x", "!!", "/opt/bin/kubelet-1.33"),
        (":/usr/bin/kubelet $HOME", ":", "/usr/bin/kubelet"),
        ("/usr/bin/hyperkube kubelet --v=2", "", "/usr/bin/hyperkube"),
        ("\"/opt/my kube/kubelet\" --x", "", "/opt/my kube/kubelet"),
        ("kubelet --config=%E/kubelet.yaml", "", "kubelet"),
    ] {
        let command = Command::read(value).unwrap_or_else(|why| panic!("{value}: {why}"));
        assert_eq!((command.prefix.as_str(), command.program.as_str()), (prefix, program), "{value}");
        assert_eq!(format!("{prefix}{}", command.kubelet), value, "not a letter is changed");
    }
}

/// What only executes the next program stays where it was, before the supervisor.
#[test]
fn launchers_stay_in_front() {
    for launcher in [
        "/usr/local/bin/kubenswrapper",
        "/usr/bin/nice",
        "/usr/bin/nice -n -5",
        "nice -n-5 --",
        "/usr/bin/nice --adjustment=-5",
        "/usr/bin/nice --adjustment -5",
        "/usr/bin/ionice -c2 -n 0 -t",
        "/usr/bin/chrt --rr 10",
        "/usr/bin/chrt 10",
        "/usr/bin/taskset -c 0-3,7",
        "/usr/bin/taskset $CPUS",
        "/usr/bin/env -C run",
        "/usr/bin/chrt run",
        "/usr/bin/systemd-cat -t kubelet --priority=info",
        "/usr/bin/env GODEBUG=x \"A=b c\" 'D=$E'",
        "/usr/bin/env -u LD_PRELOAD --chdir=/",
        "/usr/bin/env",
        "/usr/bin/env A=b /usr/bin/nice -n 5 /usr/bin/taskset 0x3",
    ] {
        let unit = PACKAGE.replace("ExecStart=", &format!("ExecStart=-{launcher} "));
        let mut files = vec![file(UNIT, &unit.replace("bin/kubelet", "bin/kubelet --v=$V"))];
        let plan = planned(&files, Some(&["--trial-duration=5m"])).unwrap_or_else(|why| panic!("{launcher}: {why}"));
        let start = values(&plan, "ExecStart").remove(1);
        let run = "/usr/bin/kubelet-supervisor run --trial-duration=5m -- /usr/bin/kubelet --v=$V";
        assert_eq!(start, format!("-{launcher} {run}"));
        assert_eq!(plan.program, "/usr/bin/kubelet");
        assert!(plan.notes[0].starts_with(&format!("{launcher} stays in front")), "{:?}", plan.notes);
        // Again: what it wrote is no obstacle, and the options stay.
        files.push(file(&plan.path, &plan.text));
        assert_eq!(planned(&files, None).unwrap().text, plan.text, "{launcher}");
        // Written by hand, and a launcher behind `--`: it would run the supervisor's pipes, and no preflight.
        for own in [format!("{launcher} {run}"), run.replace("-- ", &format!("-- {launcher} "))] {
            let unit = PACKAGE.replace("/usr/bin/kubelet", &format!("-{own}"));
            assert_eq!(values(&planned(&[file(UNIT, &unit)], None).unwrap(), "ExecStart")[1], start);
        }
    }
}

#[test]
fn a_shell_that_only_executes_is_left_out() {
    for shell in ["/bin/sh -c 'exec {}'", "/usr/bin/bash -c \"exec  {} \"", "nice sh -c ' exec {}'"] {
        let kubelet = "/usr/bin/kubelet --config=/etc/k.yaml --node-labels=a.b/c=d,e=f --v=2";
        let unit = PACKAGE.replace("/usr/bin/kubelet", &shell.replace("{}", kubelet));
        let mut files = vec![file(UNIT, &unit)];
        let plan = planned(&files, None).unwrap_or_else(|why| panic!("{shell}: {why}"));
        let front = if shell.starts_with("nice") { "nice " } else { "" };
        let start = values(&plan, "ExecStart").remove(1);
        assert_eq!(start, format!("{front}/usr/bin/kubelet-supervisor run -- {kubelet}"));
        files.push(file(&plan.path, &plan.text));
        assert_eq!(planned(&files, None).unwrap().text, plan.text);
    }
}

#[test]
fn distributions_without_a_kubelet_of_their_own() {
    for name in ["k3s", "k3s-agent.service", "rke2", "rke2-server.service"] {
        assert!(distribution(name).is_some_and(|instead| instead.contains("kubelet-arg")), "{name}");
    }
    for (name, word) in [
        ("k0s", "workerProfiles"),
        ("k0sworker.service", "workerProfiles"),
        ("microshift", "/etc/microshift/config.yaml"),
        ("snap.microk8s.daemon-kubelite.service", "args/kubelet"),
        ("kubelite", "args/kubelet"),
        ("snap.k8s.kubelet.service", "snap set"),
    ] {
        assert!(distribution(name).is_some_and(|instead| instead.contains(word)), "{name}");
    }
    assert_eq!(distribution("kubelet.service"), None);
}

#[test]
fn commands_that_are_not() {
    for (value, word) in [
        ("/bin/sh -c 'exec /usr/bin/kubelet $(cat /etc/args)'", "then `ExecStart=/usr/bin/kubelet $KUBELET_ARGS`"),
        ("/bin/sh -c 'exec /usr/bin/kubelet $KUBELET_ARGS'", "shell"),
        ("/bin/sh -c 'exec /usr/bin/kubelet --node-name=%H'", "shell"),
        (r"/bin/sh -c 'exec /usr/bin/kubelet\x20--v=2'", "shell"),
        ("/bin/sh -c 'exec /usr/bin/kubelet' kubelet", "shell"),
        ("/bin/sh -c '/usr/bin/kubelet --v=2'", "shell"),
        ("/bin/sh -ec 'exec /usr/bin/kubelet'", "shell"),
        ("/bin/sh -c 'exec /usr/bin/kubelet --v=2; true'", "shell"),
        ("/bin/sh -c 'exec sudo /usr/bin/kubelet'", "by way of sudo"),
        ("/usr/bin/env -i /usr/bin/kubelet", "by way of env with -i"),
        ("/usr/bin/env -S 'kubelet --v=2'", "by way of env with -S"),
        ("/usr/bin/chrt -R -f 10 /usr/bin/kubelet", "by way of chrt with -R"),
        ("/usr/bin/chrt -d 10 /usr/bin/kubelet", "by way of chrt with -d"),
        ("/usr/bin/taskset -p 1 /usr/bin/kubelet", "by way of taskset with -p"),
        ("/usr/bin/nice -n", "no kubelet follows"),
        ("/usr/bin/nice", "no kubelet follows"),
        ("/usr/bin/sudo -u root /usr/bin/kubelet --v=$V", "then `ExecStart=/usr/bin/kubelet --v=$V`"),
        ("/usr/bin/nice timeout 5 kubelet", "by way of timeout"),
        ("/usr/bin/systemd-run --scope kubelet", "by way of systemd-run"),
        ("/usr/bin/tini kubelet --v=2", "by way of tini"),
        ("/usr/bin/doas kubelet", "by way of doas"),
        ("/usr/bin/kubensenter /usr/bin/kubelet", "by way of kubensenter"),
        ("/usr/bin/nice kubelet-supervisor status", "without `run"),
        ("/usr/bin/docker run kubelet", "container"),
        ("/usr/lib/coreos/kubelet-wrapper --x", "kubelet-wrapper"),
        ("/usr/local/bin/k3s agent", "within its own process"),
        ("/usr/local/bin/rke2 server", "rke2 starts the kubelet itself"),
        ("/usr/bin/nice /opt/rke2/bin/rke2 server", "rke2 starts the kubelet itself"),
        ("/usr/local/bin/something agent", "does not look like a kubelet"),
        ("@/usr/bin/kubelet kubelet", "prefix '@'"),
        ("|/usr/bin/kubelet", "prefix '|'"),
        ("/usr/bin/kubelet ; /bin/true", "several"),
        ("/usr/bin/kubelet-supervisor status", "without `run"),
    ] {
        let why = Command::read(value).unwrap_err();
        assert!(why.contains(word), "{value}: {why}");
    }
}

/// Whoever does what a refusal says has a unit that `enable` takes: `systemctl edit` writes `override.conf`.
#[test]
fn advice_that_is_carried_out_leads_to_a_unit_that_is_taken() {
    for (value, line) in [
        (
            r#"/bin/bash -c "source /etc/env; exec /usr/bin/kubelet --config=/var/lib/kubelet/config.yaml $EXTRA""#,
            "/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml $EXTRA",
        ),
        // systemd splits `$NAME` alone, and has `${NAME}` within a word.
        (
            r#"/bin/sh -c '. /etc/e; exec /usr/bin/kubelet --node-ip=$IP --root-dir="$ROOT" ${EXTRA} $MORE'"#,
            r#"/usr/bin/kubelet --node-ip=${IP} --root-dir="${ROOT}" $EXTRA $MORE"#,
        ),
        ("/bin/sh -c '. /e; exec /usr/bin/kubelet --v=${V:-2}'", "/usr/bin/kubelet $KUBELET_ARGS"),
        ("/bin/sh -c '. /e; exec /usr/bin/kubelet $1'", "/usr/bin/kubelet $KUBELET_ARGS"),
        (r#"/bin/sh -c ". /e; exec /usr/bin/kubelet '$X'""#, "/usr/bin/kubelet $KUBELET_ARGS"),
        ("/bin/sh -c 'exec /usr/bin/kubelet $(cat /etc/args)'", "/usr/bin/kubelet $KUBELET_ARGS"),
        ("/bin/sh -c '/usr/bin/kubelet --v=2; true'", "/usr/bin/kubelet $KUBELET_ARGS"),
        ("/bin/sh -c '. /etc/a && exec nice -n 5 /opt/bin/kubelet --v=2'", "/opt/bin/kubelet --v=2"),
        ("/usr/bin/sudo -u root /usr/bin/kubelet --v=$V", "/usr/bin/kubelet --v=$V"),
        ("/usr/bin/env -S 'kubelet --v=2'", "kubelet --v=2"),
        ("/usr/lib/coreos/kubelet-wrapper --x", "/usr/bin/kubelet $KUBELET_ARGS"),
    ] {
        let unit = PACKAGE.replace("ExecStart=/usr/bin/kubelet", &format!("ExecStart={value}"));
        let why = planned(&[file(UNIT, &unit)], None).unwrap_err();
        let told = why.split("then `ExecStart=").nth(1).and_then(|rest| rest.split('`').next());
        assert_eq!(told, Some(line), "{why}");
        let edited = format!("[Service]\nExecStart=\nExecStart={line}\n");
        let mut files = vec![file(UNIT, &unit), file("/etc/systemd/system/kubelet.service.d/override.conf", &edited)];
        let plan = planned(&files, None).unwrap_or_else(|why| panic!("{value}: {why}"));
        assert_eq!(values(&plan, "ExecStart")[1], format!("/usr/bin/kubelet-supervisor run -- {line}"));
        // Ours comes after it, now and at the next `enable`.
        files.push(file(&plan.path, &plan.text));
        assert!(files.is_sorted_by(|one, other| one.path == UNIT || one.path < other.path), "{files:?}");
        assert_eq!(planned(&files, None).unwrap().text, plan.text);
    }
}

#[test]
fn units_that_are_refused() {
    let conf = |name: &str, text: &str| file(&format!("/etc/systemd/system/kubelet.service.d/{name}"), text);
    for (files, word) in [
        (vec![], "no ExecStart="),
        (vec![file(UNIT, "[Service]\nType=simple\n")], "no ExecStart="),
        (vec![file(UNIT, "[Unit]\nExecStart=/usr/bin/kubelet\n")], "no ExecStart="),
        (vec![file(UNIT, PACKAGE), conf("10-x.conf", "[Service]\nExecStart=/usr/bin/kubelet --v=2\n")], "2 ExecStart="),
        (
            vec![file(UNIT, PACKAGE), conf("zzz.conf", "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet\n")],
            "zzz.conf sets ExecStart=",
        ),
        (vec![file(UNIT, &PACKAGE.replace("[Service]", "[Service]\nType=forking"))], "Type=forking"),
    ] {
        let why = planned(&files, None).unwrap_err();
        assert!(why.contains(word), "{why}");
    }
    // Another file may come later as long as the command is not in there.
    assert!(planned(&[file(UNIT, PACKAGE), conf("zzz.conf", "[Service]\nCPUWeight=200\n")], None).is_ok());
}

#[test]
fn what_an_operator_is_told() {
    let notes = |text: &str| planned(&[file(UNIT, text)], None).unwrap().notes.join("\n");
    assert!(notes(&PACKAGE.replace("Restart=always", "")).contains("Restart=no"));
    assert!(notes(&PACKAGE.replace("[Service]", "[Service]\nWatchdogSec=30")).contains("WatchdogSec=30"));
    let openshift = notes(OPENSHIFT);
    assert!(openshift.contains("removes the kubelet's state files"));
    assert!(notes(EKS).contains("there is an ExecStartPre="));
    let hit = Properties::parse("StartLimitIntervalUSec=10s\nStartLimitBurst=5\nRestartUSec=100ms\n");
    let files = [file(UNIT, PACKAGE)];
    assert!(plan(&request(&files, &hit)).unwrap().notes[0].contains("start limit can be hit"));
}

#[test]
fn what_systemd_says() {
    let said = Properties::parse(
        "LoadState=loaded\nFragmentPath=/a/kubelet.service\nDropInPaths=/a/10-x.conf /b/20-y.conf\nExecStart={ \
         path=/usr/bin/kubelet ; argv[]=/usr/bin/kubelet $A --b=c ; ignore_errors=no ; start_time=[n/a] ; pid=0 }\n",
    );
    assert_eq!(said.paths(), ["/a/kubelet.service", "/a/10-x.conf", "/b/20-y.conf"]);
    assert_eq!(said.exec_start(), Some(("/usr/bin/kubelet", "/usr/bin/kubelet $A --b=c")));
    assert_eq!((said.get("LoadState"), said.get("Other")), ("loaded", ""));
    let supervised = |argv: &str| {
        let text = format!("ExecStart={{ path=/usr/bin/x ; argv[]={argv} ; ignore_errors=no ; pid=0 }}");
        Properties::parse(&text).starts("/usr/bin/kubelet-supervisor")
    };
    assert!(supervised("/usr/bin/kubelet-supervisor run -- /usr/bin/kubelet"));
    assert!(supervised("/usr/bin/nice -n 5 /usr/bin/kubelet-supervisor run -- /usr/bin/kubelet"));
    assert!(
        !supervised("/usr/bin/kubelet --v=2") && !supervised("/usr/bin/kubelet-supervisor2 run -- /usr/bin/kubelet")
    );
    for (text, expected) in [
        ("1min 30s", Some(90_000)),
        ("100ms", Some(100)),
        ("5", Some(5_000)),
        ("0", Some(0)),
        ("1h 2m", Some(3_720_000)),
        ("infinity", None),
        ("", None),
        ("3 parsecs", None),
    ] {
        assert_eq!(span(text), expected.map(Duration::from_millis), "{text}");
    }
}

#[test]
fn names_of_units() {
    assert_eq!(unit_name("kubelet").unwrap(), "kubelet.service");
    assert_eq!(unit_name("snap.kubelet.daemon.service").unwrap(), "snap.kubelet.daemon.service");
    for name in ["../x", "a/b", "", ".hidden", "a b"] {
        assert!(unit_name(name).is_err(), "{name:?}");
    }
}

#[test]
fn lines_that_go_on() {
    let lines = logical_lines("a=1 \\\n   b \\\n# no\n;no\n  c\n\n d=2\\\\\ne=3\\");
    assert_eq!(lines, ["a=1 b c", "d=2\\\\", "e=3 "]);
}

proptest::proptest! {
    #[test]
    fn no_text_is_a_panic(text in "\\PC*", unit in "[\\[\\]=ESxecStart\\\\ \n\"'#-]*") {
        let files = [file(UNIT, &format!("[Service]\nExecStart={text}\n{unit}"))];
        let _ = planned(&files, None);
        let _ = span(&text);
        let _ = Properties::parse(&text).exec_start();
    }
}
