#!/usr/bin/env bash
# Puts kubelet-supervisor between systemd and the kubelet of this node, or takes it out again.
#
#   packaging/install.sh BINARY          install BINARY and the drop-in; the kubelet is not restarted
#   packaging/install.sh --uninstall     remove both; the kubelet is not restarted
#
# The drop-in prepends the supervisor to whatever ExecStart kubelet.service has now, so it fits
# kubeadm's unit as well as any other. DESTDIR is honoured for the files it writes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dropin=${DESTDIR:-}/etc/systemd/system/kubelet.service.d/90-kubelet-supervisor.conf
program=${DESTDIR:-}/usr/bin/kubelet-supervisor
die() { echo "install.sh: $*" >&2; exit 1; }
usage() { sed -n '4,5s/^#  *//p' "$0" >&2; exit 64; }

# The command that is in force: the last ExecStart= that is not empty, continued lines joined.
current_command() {
    systemctl cat kubelet.service 2>/dev/null | sed -e ':join' -e '/\\$/{N;s/\\\n/ /;b join' -e '}' | sed -n 's/^ExecStart=\(..*\)/\1/p' | tail -n 1
}

[ $# = 1 ] || usage
case $1 in
--uninstall)
    rm -f "$dropin" "$program"
    systemctl daemon-reload
    echo "removed; the kubelet runs as before after: systemctl restart kubelet"
    ;;
-*) usage ;;
*)
    [ -x "$1" ] || die "$1 is not an executable file: build it with cargo build --release"
    command=$(current_command)
    [ -n "$command" ] || die "there is no kubelet.service with an ExecStart here (systemctl cat kubelet)"
    case $command in
    *kubelet-supervisor*) command=${command#*-- } ;; # installed before: renew it
    [-@:+!\|]*) die "ExecStart has a prefix that must be dealt with by hand: $command" ;;
    esac
    install -D -m 755 "$1" "$program"
    mkdir -p "$(dirname "$dropin")"
    # Not by sed: a command may hold any character.
    while IFS= read -r line; do
        case $line in
        ExecStart=/*) printf 'ExecStart=/usr/bin/kubelet-supervisor run -- %s\n' "$command" ;;
        *) printf '%s\n' "$line" ;;
        esac
    done <"$here/../systemd/90-kubelet-supervisor.conf" >"$dropin.tmp"
    mv "$dropin.tmp" "$dropin"
    systemctl daemon-reload
    echo "installed $dropin:"
    grep '^ExecStart=/' "$dropin"
    echo "in force after: systemctl restart kubelet (pods keep running)"
    ;;
esac
