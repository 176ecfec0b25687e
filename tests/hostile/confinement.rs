//! What the supervisor's children see of it, and what they may do.

use serde_json::{Value, json};
use testkit::built::{program, write_script};
use testkit::rig::{Rig, configuration};

use super::strangers::{as_root, begin_with};

/// The numbers of a child's open files.
fn open(child: &Value) -> Vec<&str> {
    let files = child["files"].as_array().unwrap().iter();
    files.map(|file| file.as_str().unwrap().split(' ').next().unwrap()).collect()
}

/// A kubelet that looks around when it is only asked for its verdict: it is alone there and may do nothing to the node, is as
/// good a judge as before, and may when it runs.
#[test]
fn a_preflight_judges_and_does_nothing_else() {
    let Some(mut rig) = as_root(Rig::new) else { return };
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
        for (attempt, error) in
            [("unmount", "EPERM"), ("unshare", "EPERM"), ("setns", "EPERM"), ("memory", "EACCES"), ("port", "EACCES")]
        {
            assert_eq!(judge["attempts"][attempt], error, "{attempt}: {judge:#}");
        }
        for namespace in ["network", "mounts"] {
            assert_ne!(judge[namespace], kubelets[0][namespace], "{judge:#}");
        }
        let read_search = "0000000000000004";
        assert_eq!(
            (&judge["noNewPrivileges"], &judge["capabilities"]),
            (&"1".into(), &read_search.into()),
            "{judge:#}"
        );
        assert_eq!((&judge["core"], &judge["cpu"]), (&0.into(), &30.into()));
        // systemd stops the whole unit when one of its processes is killed for want of memory: none is offered.
        assert_eq!(judge["oomScoreAdj"], kubelets[0]["oomScoreAdj"], "{judge:#}");
    }
    // The kubelet's pods inherit what it is: nothing of this.
    let own = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap().display().to_string();
    for kubelet in &kubelets {
        for (attempt, result) in [("unmount", "EINVAL"), ("memory", "done"), ("port", "done")] {
            assert_eq!(kubelet["attempts"][attempt], result, "{attempt}: {kubelet:#}");
        }
        assert_eq!((&kubelet["network"], &kubelet["mounts"]), (&own("net").into(), &own("mnt").into()), "{kubelet:#}");
        assert_eq!(kubelet["noNewPrivileges"], "0", "{kubelet:#}");
        assert_ne!(kubelet["core"], 0, "{kubelet:#}");
    }
    rig.stop();
}

/// What a credential plugin notes: its open files, a namespace with a name of its own, and what it is.
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
{{ unshare --uts sh -c 'hostname apart && hostname' 2>&1; ulimit -c; grep NoNewPrivs /proc/self/status; }} >may
printf '{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {{"token": "t"}}}}'"#
    );
    write_script(&rig.at("plugin"), &commands);
    rig
}

/// It has what it needs, and nothing of ours.
#[test]
fn a_credential_plugin_sees_nothing_of_the_supervisor() {
    let Some(mut rig) = as_root(with_plugin) else { return };
    begin_with(&mut rig, "exec 5</etc/hostname 7>>\"$0.left-open\"\nulimit -c 1024");
    rig.up();
    rig.apply("a", &configuration("maxPods: 50"));
    let read = |name: &str| std::fs::read_to_string(rig.at(name)).unwrap();
    // 1 is the file of the list, 3 the directory that is listed.
    let files = read("files");
    let arrows = files.lines().filter_map(|line| line.split_once(" -> ")?.0.rsplit(' ').next());
    assert_eq!(arrows.collect::<Vec<_>>(), ["0", "1", "2", "3"], "{files}");
    let may = read("may");
    assert_eq!(may.lines().collect::<Vec<_>>(), ["apart", "0", "NoNewPrivs:\t0"]);
    rig.stop();
}

/// Where nobody may make namespaces, here for want of a capability, a change is judged all the same.
#[test]
fn a_confinement_that_is_refused_costs_a_line_in_the_journal() {
    let Some(mut rig) = as_root(Rig::new) else { return };
    let supervisor = program("kubelet-supervisor").display().to_string();
    begin_with(&mut rig, &format!("exec setpriv --bounding-set=-sys_admin --inh-caps=-all {supervisor} \"$@\""));
    rig.up();
    rig.prove("a", &configuration("maxPods: 50"));
    rig.prove("b", &configuration("maxPods: 60"));
    assert_eq!(rig.log().matches("confined they cannot be started").count(), 1, "{}", rig.log());
    rig.stop();
}
