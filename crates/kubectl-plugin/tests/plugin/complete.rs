//! Completion: what kubectl and the shells ask for, and bash itself.

use std::process::Command;

use super::{Bench, NODE};

#[test]
fn kubectl_gets_words_and_names() {
    let bench = Bench::new();
    bench.server.put_config_map("kubelet-config", "pool-a", &[("kubelet", "x")]);
    bench.server.put_config_map("other", "pool-b", &[("kubelet", "x")]);
    let ask = |words: &[&str]| bench.run(&[&["__complete"], words].concat()).ok();
    assert!(ask(&["st"]).starts_with("status\t"));
    assert_eq!(ask(&["status", "-o", "w"]), "wide\tAll columns\n:4\n");
    assert_eq!(ask(&["status", ""]), format!("{NODE}\n:4\n"));
    let options = ask(&["status", "--"]);
    assert!(options.contains("--watch\t") && options.contains("--context\t"), "global ones too: {options}");
    assert!(ask(&["assign", "m", NODE, "--dry-run="]).starts_with("--dry-run=none\t"));
    assert!(!ask(&[""]).contains("__complete"));
    assert_eq!(ask(&["assign", "p"]), "pool-a\n:4\n");
    assert_eq!(ask(&["-n", "other", "assign", ""]), "pool-b\n:4\n", "with what was typed before");
    assert_eq!(ask(&["status", "--kubeconfig", ""]), ":0\n", "a file");
    assert_eq!(ask(&["--kubeconfig", "/none", "status", ""]), ":4\n", "no cluster, no names, no error");
}

/// bash, with the script that `completion bash` prints, and a command line.
fn bash(bench: &Bench, line: &str) -> Vec<String> {
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_kubectl-kubelet_config"));
    let script = "source <(kubectl-kubelet_config completion bash)
        COMP_WORDBREAKS=$' \\t\\n\"\\'><=;|&(:'
        COMP_LINE=$1 COMP_POINT=${#1}
        _kubectl_kubelet_config
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["--norc", "-c", script, "bash", line])
        .env("PATH", path)
        .env("KUBECONFIG", bench.path("kubeconfig"))
        .output()
        .unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes() {
    let bench = Bench::new();
    assert_eq!(bash(&bench, "kubectl-kubelet_config rol"), ["rollback", "rollout"]);
    assert_eq!(bash(&bench, "kubectl-kubelet_config status "), [NODE]);
    assert_eq!(bash(&bench, "kubectl-kubelet_config reset n1 --dry-run=s"), ["server"]);
    for shell in ["zsh", "fish"] {
        assert!(bench.run(&["completion", shell]).ok().contains("__complete"));
    }
    assert_eq!(bench.run(&["completion", "csh"]).code, 2);
}
