# shellcheck shell=bash
# Which processes are kubelets of the node.

# Not those that were started for a verdict or for their version.
acts_on_node() { # PID
    local words
    words=$({ tr '\0' ' ' <"/proc/$1/cmdline"; } 2>/dev/null) || return 1
    case $words in "" | *--exit-on-lock-contention=true* | *--cert-dir=*/supervisor/preflight* | *--version*) return 1 ;; esac
}
