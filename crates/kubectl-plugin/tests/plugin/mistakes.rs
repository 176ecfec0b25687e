//! What users are told of the mistakes they make most: the option, file or right that it is, why, and where to look.

use super::{Bench, HEAD};

const KUBECONFIG: &str = "apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: t}}]
current-context: x
";

#[test]
fn of_the_way_to_the_cluster() {
    let bench = Bench::new();
    let good = bench.file("unreachable", KUBECONFIG);
    let gone = bench.file("gone", &KUBECONFIG.replace("current-context: x", "current-context: y"));
    let nobody = bench.file("nobody", &KUBECONFIG.replace("users: [{name: u,", "users: [{name: w,"));
    let none = bench.file("none", &KUBECONFIG.replace("current-context: x", ""));
    let garbage = bench.file("garbage", "clusters: [");
    let absent = bench.path("absent").display().to_string();
    let contexts = "see `kubectl config get-contexts`";
    for (kubeconfig, more, told) in [
        (&absent, [].as_slice(), format!("kubeconfig {absent}: No such file or directory (os error 2); name another one by --kubeconfig or KUBECONFIG")),
        (&garbage, &[], "the kubeconfig: failed to parse kubeconfig YAML: error: line 1 column 11: unclosed bracket '['".to_owned()),
        (&none, &[], format!("the kubeconfig has no current-context: name one by --context, {contexts}")),
        (&gone, &[], format!("current-context: the kubeconfig has no context \"y\": {contexts}")),
        (&good, &["--context", "z"], format!("--context: the kubeconfig has no context \"z\": {contexts}")),
        (&good, &["--cluster", "z"], "--cluster: the kubeconfig has no cluster \"z\": see `kubectl config get-clusters`".to_owned()),
        (&good, &["--user", "z"], "--user: the kubeconfig has no user \"z\": see `kubectl config get-users`".to_owned()),
        (&nobody, &[], "context \"x\": the kubeconfig has no user \"u\": see `kubectl config get-users`".to_owned()),
        (&good, &[], "list nodes: the API server cannot be reached: tcp connect error: Connection refused (os error 111); `kubectl config view --minify` shows which one it is, --context chooses another".to_owned()),
    ] {
        let ran = bench.run(&[&["status", "--kubeconfig", kubeconfig], more].concat());
        assert_eq!((ran.code, ran.out.as_str(), ran.err), (1, "", format!("error: {told}\n")), "{more:?}");
    }
}

#[test]
fn of_options() {
    let bench = Bench::new();
    for (args, told) in [
        (
            ["assign", "a", "n1", "--timeout=soon"].as_slice(),
            "--timeout <DURATION>': invalid duration \"soon\": use Go syntax such as 10m, 1h30m or 90s",
        ),
        (
            &["rollout", "a", "-l", "x=y", "--canaries=many"],
            "--canaries <N>': it must be a whole number from 0 to 1000",
        ),
        (
            &["rollout", "a", "-l", "x=y", "--max-failures=0"],
            "--max-failures <N>': it must be a whole number from 1 to 1000",
        ),
        (
            &["rollout", "a", "-l", "x=y", "--max-unavailable=0"],
            "--max-unavailable <N|P%>': it must be a whole number, 1 or more, or a percentage such as 10%",
        ),
        (&["rollout", "a", "-l", "x=y", "--node-timeout=1s"], "--node-timeout <DURATION>': it must be from 1m to 24h"),
        (&["assign", "a"], "<NODE|--selector <SELECTOR>>"),
        (&["-n", "BAD", "status"], "a namespace has a-z, 0-9 and -, at most 63"),
    ] {
        let ran = bench.run(args);
        assert!(ran.code == 2 && ran.out.is_empty() && ran.err.contains(told), "{args:?}: {ran:#?}");
    }
}

#[test]
fn of_files() {
    let bench = Bench::new();
    for (text, told) in [
        (
            format!("{HEAD}maxPods: 1\nmaxPods: 2\n"),
            "a field stands twice, and the kubelet would go by the last one: maxPods, line 4, column 1",
        ),
        (
            format!("{HEAD}evictionHard:\n\tmemory.available: 1Gi\n"),
            "line 4, column 2: a tab, which YAML does not indent with: use blanks",
        ),
        (format!("{HEAD}clusterDNS: [10.0.0.1"), "line 3, column 13: '[' is never closed"),
    ] {
        let file = bench.file("pool.yaml", &text);
        let ran = bench.run(&["push", &file, "--dry-run"]);
        assert_eq!((ran.code, ran.err), (1, format!("error: {file}: {told}\n")));
    }
    let ran = bench.run(&["push", "no-such.yaml"]);
    assert_eq!((ran.code, ran.err.as_str()), (1, "error: no-such.yaml: No such file or directory (os error 2)\n"));
}

/// Also in a pipe, where clap has no terminal to ask.
#[test]
fn help_fits_80_columns() {
    fn check(command: &clap::Command, before: &str) {
        let name = format!("{before} {}", command.get_name());
        let help = command.clone().render_long_help().to_string();
        let wide: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{name}: {wide:#?}");
        for sub in command.get_subcommands() {
            check(sub, &name);
        }
    }
    let mut command = kubectl_plugin::command();
    command.build();
    check(&command, "");
}
