# shellcheck shell=bash
# What is asked of a node with a kubelet.service, here and in tests/real/kubeadm.sh.

is() { [ "$1" = "$2" ] || { echo "'$1' is not '$2'"; return 1; }; }
property() { systemctl show kubelet -p "$1" --value; }
# Not kubelets that were started for a verdict or for their version.
acts_on_node() { # PID
    local words
    words=$({ tr '\0' ' ' <"/proc/$1/cmdline"; } 2>/dev/null) || return 1
    case $words in "" | *--exit-on-lock-contention=true* | *--cert-dir=*/supervisor/preflight* | *--version*) return 1 ;; esac
}
