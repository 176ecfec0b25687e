#!/bin/bash
# Runs inside the container, as a service of its systemd.
set -uo pipefail
passed=0 failed=0
dropin=/etc/systemd/system/kubelet.service.d/90-kubelet-supervisor.conf

ok() { # NAME COMMAND...
    local name=$1
    shift
    if "$@" >/tmp/why 2>&1; then
        passed=$((passed + 1)) && echo "test $name ... ok"
    else
        failed=$((failed + 1)) && echo "test $name ... FAILED: $*" && cat /tmp/why && systemctl status kubelet --no-pager -n 20
    fi
}
until_true() { # SECONDS COMMAND...
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do [ $SECONDS -lt $deadline ] || return 1; sleep 0.1; done
}
property() { systemctl show kubelet -p "$1" --value; }
kubelets() { pgrep -cx kubelet; }
one_kubelet() { [ "$(kubelets)" = 1 ]; }
no_kubelet() { [ "$(kubelets)" = 0 ]; }
is() { [ "$1" = "$2" ] || { echo "'$1' is not '$2'"; return 1; }; }
kubelet_args() { tr '\0' ' ' <"/proc/$(pgrep -x kubelet)/cmdline"; }

echo 'KUBELET_EXTRA_ARGS=--max-pods=42 --v=2' >/etc/default/kubelet
systemctl start kubelet
ok "plain unit: a bare kubelet runs" until_true 30 one_kubelet
plain=$(pgrep -x kubelet)
ok "plain unit: no supervisor" is "$(pgrep -c kubelet-superv)" 0

ok "install: one command" /suite/packaging/install.sh /suite/kubelet-supervisor
ok "install: the drop-in for kubeadm is the one we ship" diff $dropin /suite/systemd/90-kubelet-supervisor.conf
ok "install: the running kubelet is not touched" is "$(pgrep -x kubelet)" "$plain"
ok "install: again is harmless" /suite/packaging/install.sh /suite/kubelet-supervisor
ok "install: and gives the same" diff $dropin /suite/systemd/90-kubelet-supervisor.conf
ok "drop-in: systemd finds no fault with it" bash -c '! systemd-analyze verify kubelet.service 2>&1 | grep -i kubelet'
ok "drop-in: restart returns when the kubelet is ready" timeout 60 systemctl restart kubelet
ok "drop-in: the unit is active" is "$(property ActiveState)" active
ok "drop-in: the main process is the supervisor" is "$(cat "/proc/$(property MainPID)/comm")" kubelet-supervi
ok "drop-in: there is one kubelet" one_kubelet
ok "drop-in: it has kubeadm's arguments" grep -q -- "--config=/var/lib/kubelet/config.yaml --max-pods=42 --v=2" <(kubelet_args)
ok "drop-in: it stays in the unit's cgroup" grep -q "kubelet.service" "/proc/$(pgrep -x kubelet)/cgroup"
ok "drop-in: STATUS is in words" grep -q "kubelet ready with the local configuration" <(property StatusText)
ok "status verb works" grep -q "^Kubelet: .*ready" <(kubelet-supervisor status)

before=$(pgrep -x kubelet)
kill -9 "$before"
ok "kubelet killed: another one comes up" until_true 30 bash -c '[ "$(pgrep -x kubelet)" ] && [ "$(pgrep -x kubelet)" != '"$before"' ]'
ok "kubelet killed: the unit did not restart" is "$(property NRestarts)" 0

before=$(pgrep -x kubelet)
kill -9 "$(property MainPID)"
ok "supervisor killed: its kubelet goes with it" until_true 10 bash -c '! kill -0 '"$before"' 2>/dev/null'
ok "supervisor killed: systemd brings both back" until_true 60 bash -c '[ "$(systemctl is-active kubelet)" = active ] && pgrep -x kubelet'
ok "supervisor killed: there is one kubelet" one_kubelet

ok "stop: returns" timeout 60 systemctl stop kubelet
ok "stop: no kubelet is left" until_true 5 no_kubelet
ok "stop: the result is success" is "$(property Result)" success

for mode in control-group process; do
    mkdir -p /run/systemd/system/kubelet.service.d
    printf '[Service]\nKillMode=%s\n' $mode >/run/systemd/system/kubelet.service.d/99-mode.conf
    systemctl daemon-reload
    ok "KillMode=$mode: start" timeout 60 systemctl start kubelet
    ok "KillMode=$mode: stop" timeout 60 systemctl stop kubelet
    ok "KillMode=$mode: no kubelet is left" until_true 5 no_kubelet
done
rm /run/systemd/system/kubelet.service.d/99-mode.conf

ok "uninstall: one command" /suite/packaging/install.sh --uninstall
ok "uninstall: nothing is left" bash -c '[ ! -e /usr/bin/kubelet-supervisor ] && [ ! -e '$dropin' ]'
ok "drop-in removed: start" systemctl start kubelet
ok "drop-in removed: a bare kubelet runs" until_true 30 one_kubelet
ok "drop-in removed: no supervisor" is "$(pgrep -c kubelet-superv)" 0

echo "test result: $([ $failed = 0 ] && echo ok || echo FAILED). $passed passed; $failed failed"
[ $failed = 0 ]
