//! What the supervisor's children see of it, and what they may do.

use serde_json::{Value, json};
use testkit::built::{program, write_script};
use testkit::rig::{Rig, configuration};

use super::strangers::{begin_with, is_root};

/// The numbers of a child's open files.
fn open(child: &Value) -> Vec<&str> {
    let files = child["files"].as_array().unwrap().iter();
    files.map(|file| file.as_str().unwrap().split(' ').next().unwrap()).collect()
}

/// A kubelet that tries to mount, trace and leave its namespaces when it is only asked for its verdict: it may not, is as
/// good a judge as before, and may when it runs.
#[test]
fn a_preflight_judges_and_does_nothing_else() {
    if !is_root() {
        return;
    }
    let mut rig = Rig::new();
    rig.kubelet.set("STAND_IN_CONFINEMENT=1");
    // Whoever started the supervisor left files open, none of them to be closed by an exec.
    begin_with(&mut rig, "exec 5</etc/hostname 7>>\"$0.left-open\"\nulimit -c 1024");
    rig.up();
    rig.prove("a", &configuration("maxPods: 50"));
    let entries = rig.kubelet.entries();
    let starts = rig.kubelet.starts();
    let (kubelets, preflights): (Vec<&Value>, Vec<&Value>) = entries
        .iter()
        .filter(|entry| entry["event"] == "confinement")
        .partition(|entry| starts.iter().any(|start| start["pid"] == entry["pid"]));
    assert!(kubelets.len() >= 2 && preflights.len() >= 3, "{entries:#?}");
    for child in kubelets.iter().chain(&preflights) {
        assert_eq!(open(child), ["0", "1", "2"], "{child:#}");
    }
    for judge in &preflights {
        for attempt in ["mount", "ptrace", "unshare", "setns"] {
            assert_eq!(judge["attempts"][attempt], "EPERM", "{judge:#}");
        }
        assert_eq!((&judge["noNewPrivileges"], &judge["seccomp"]), (&"1".into(), &"2".into()), "{judge:#}");
        assert_eq!((&judge["core"], &judge["cpu"]), (&0.into(), &30.into()));
        // systemd stops the whole unit when one of its processes is killed for want of memory: none is offered.
        assert_eq!(judge["oomScoreAdj"], kubelets[0]["oomScoreAdj"], "{judge:#}");
    }
    // The kubelet's pods inherit what it is: nothing of this.
    for kubelet in &kubelets {
        let attempts = &kubelet["attempts"];
        assert_eq!((&attempts["mount"], &attempts["ptrace"]), (&"ENOENT".into(), &"ESRCH".into()), "{kubelet:#}");
        assert_eq!((&kubelet["noNewPrivileges"], &kubelet["seccomp"]), (&"0".into(), &"0".into()), "{kubelet:#}");
        assert_ne!(kubelet["core"], 0, "{kubelet:#}");
    }
    rig.stop();
}

/// What a credential plugin notes: its open files, swap (none), a namespace with a name of its own, and what it is.
fn with_plugin() -> Rig {
    let rig = Rig::new();
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": rig.server.url()}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "users": [{"name": "c", "user": {"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin", "interactiveMode": "Never",
        }}}],
    });
    std::fs::write(rig.at("kubeconfig"), kubeconfig.to_string()).unwrap();
    let dir = rig.dir.path().display();
    let commands = format!(
        r#"cd {dir}
ls -l /proc/self/fd >files
{{ swapoff /no/such/swap 2>&1
unshare --uts sh -c 'hostname apart && hostname' 2>&1; ulimit -c; grep -E 'NoNewPrivs|Seccomp:' /proc/self/status; }} >may
printf '{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {{"token": "t"}}}}'"#
    );
    write_script(&rig.at("plugin"), &commands);
    rig
}

/// It has what it needs, and no way to change the machine.
#[test]
fn a_credential_plugin_sees_nothing_of_the_supervisor() {
    if !is_root() {
        return;
    }
    let mut rig = with_plugin();
    begin_with(&mut rig, "exec 5</etc/hostname 7>>\"$0.left-open\"\nulimit -c 1024");
    rig.up();
    rig.apply("a", &configuration("maxPods: 50"));
    let read = |name: &str| std::fs::read_to_string(rig.at(name)).unwrap();
    // 1 is the file of the list, 3 the directory that is listed.
    let files = read("files");
    let arrows = files.lines().filter_map(|line| line.split_once(" -> ")?.0.rsplit(' ').next());
    assert_eq!(arrows.collect::<Vec<_>>(), ["0", "1", "2", "3"], "{files}");
    let may = read("may");
    let lines: Vec<&str> = may.lines().collect();
    assert!(lines[0].contains("superuser") && lines[1..] == ["apart", "0", "NoNewPrivs:\t0", "Seccomp:\t2"], "{may}");
    rig.stop();
}

/// Where the kernel takes no filter, here for want of a capability, the node has its credentials all the same.
#[test]
fn a_filter_that_is_refused_costs_a_line_in_the_journal() {
    if !is_root() {
        return;
    }
    let mut rig = with_plugin();
    let supervisor = program("kubelet-supervisor").display().to_string();
    begin_with(&mut rig, &format!("exec setpriv --bounding-set=-sys_admin --inh-caps=-all {supervisor} \"$@\""));
    rig.up();
    rig.apply("a", &configuration("maxPods: 50"));
    let may = std::fs::read_to_string(rig.at("may")).unwrap();
    assert!(may.ends_with("Seccomp:\t0\n"), "{may}");
    rig.wait_log("run without a seccomp filter: Permission denied");
    rig.prove("b", &configuration("maxPods: 60"));
    assert_eq!(rig.log().matches("without a seccomp filter").count(), 1, "{}", rig.log());
    rig.stop();
}
