# Every form of unit: enable, live, die, disable. Sourced.
# shellcheck disable=SC2034,SC2154 # what the topics share is named here and there

# The life of a unit under the supervisor. ARGS must be in the kubelet's command line.
walk() { # FORM ARGS
    local form=$1 args=$2 plain before type
    bare "$form"
    ok "a bare kubelet runs" eval 'systemctl start kubelet && until_true 30 one_kubelet'
    plain=$(kubelet_pids)
    type=$(property Type)
    ok "no supervisor" is "$(supervisors)" 0

    ok "enable --dry-run changes nothing" eval 'kubelet-supervisor enable --dry-run && [ ! -e $dropin ]'
    ok "enable" eval 'kubelet-supervisor enable >/tmp/enable'
    ok "enable: shows the ExecStart in force" says "^ExecStart=/usr/bin/kubelet-supervisor run -- /usr/bin/" /tmp/enable
    ok "enable: says how to put it in force" says "systemctl restart kubelet (pods keep running)" /tmp/enable
    ok "enable: the running kubelet is not touched" is "$(kubelet_pids) $(property NRestarts)" "$plain 0"
    cp $dropin /tmp/first
    ok "enable: again is harmless" eval 'kubelet-supervisor enable | grep "is up to date" && diff $dropin /tmp/first'
    ok "systemd finds no fault with it" no_fault
    ok "Type= is the unit's own" is "$(property Type)" "$type"

    ok "restart" timeout 60 systemctl restart kubelet
    [ "$type" != notify ] || ok "it returns when the kubelet is ready" ready
    ok "the kubelet is ready" until_true 30 ready
    ok "the unit is active" is "$(property ActiveState)" active
    ok "the main process is the supervisor" main_is_supervisor
    ok "there is one kubelet" one_kubelet
    ok "it has its arguments" grep -qF -- "$args" <(kubelet_args)
    ok "it stays in the unit's cgroup" is "$(cat "/proc/$(kubelet_pids)/cgroup")" "$(cat "/proc/$(property MainPID)/cgroup")"
    ok "STATUS is in words" grep -q "kubelet ready with the local configuration" <(property StatusText)
    ok "status verb works" grep -q "^Kubelet: .*ready" <(kubelet-supervisor status)

    before=$(kubelet_pids)
    kill -9 "$before"
    ok "kubelet killed: another one comes up" until_true 30 another_kubelet "$before"
    ok "kubelet killed: the unit did not restart" is "$(property NRestarts)" 0
    before=$(both) dies=$(worker)
    kill -9 "$dies"
    ok "worker killed: another one comes up" until_true 30 another_worker "$dies"
    ok "worker killed: ready" until_true 30 ready
    dies=$(worker)
    ok "reload" timeout 60 systemctl reload kubelet
    ok "reload: another worker" until_true 30 another_worker "$dies"
    ok "reload: ready" until_true 30 ready
    ok "reload: the unit is active" until_true 30 is "$(property ActiveState)" active
    ok "worker killed, reload: nothing is restarted" is "$(both)" "$before"
    ok "the OOM killer's work ends no unit" is "$(property OOMPolicy)" continue
    for mode in mixed control-group process; do
        mkdir -p /run/systemd/system/kubelet.service.d
        printf '[Service]\nKillMode=%s\n' $mode >/run/systemd/system/kubelet.service.d/zzz-mode.conf
        systemctl daemon-reload
        ok "KillMode=$mode: restart" timeout 60 systemctl restart kubelet
        ok "KillMode=$mode: ready" until_true 30 ready
        before=$(kubelet_pids)
        kill -9 "$(property MainPID)"
        ok "KillMode=$mode: supervisor killed: its kubelet goes with it" until_true 10 gone "$before"
        ok "KillMode=$mode: supervisor killed: systemd brings both back" until_true 60 another_kubelet "$before"
        ok "KillMode=$mode: supervisor killed: ready" until_true 30 ready
        ok "KillMode=$mode: supervisor killed: there is one kubelet" one_kubelet
        ok "KillMode=$mode: stop" timeout 60 systemctl stop kubelet
        ok "KillMode=$mode: no kubelet is left" no_kubelet
        ok "KillMode=$mode: the result is success" is "$(property Result)" success
    done
    rm /run/systemd/system/kubelet.service.d/zzz-mode.conf

    systemctl daemon-reload && systemctl start kubelet
    ok "ready for the last time" until_true 30 ready
    before=$(kubelet_pids)
    ok "disable" eval 'kubelet-supervisor disable >/tmp/disable'
    ok "disable: shows the kubelet's own ExecStart" says "^ExecStart=/usr/bin/[a-z]*kube" /tmp/disable
    ok "disable: the drop-in is gone" test ! -e $dropin
    ok "disable: the running kubelet is not touched" is "$(kubelet_pids)" "$before"
    ok "disable: again is harmless" kubelet-supervisor disable
    kubelet-supervisor enable >/dev/null
    rm $dropin
    ok "disable: what ended half way is brought to its end" eval 'kubelet-supervisor disable >/tmp/disable && says "^ExecStart=/usr/bin/[a-z]*kube" /tmp/disable && [ "$(property NeedDaemonReload)" = no ]'
    kubelet-supervisor enable >/dev/null
    ok "enable, disable: a terminal that is gone ends neither" eval '! kubelet-supervisor disable >/dev/full 2>/dev/null; [ ! -e $dropin ] && [ "$(property NeedDaemonReload)" = no ]'
    ok "plain again: restart" timeout 60 systemctl restart kubelet
    ok "plain again: a bare kubelet runs" until_true 30 eval 'another_kubelet "$before" && [ "$(supervisors)" = 0 ]'
    ok "plain again: with its arguments" grep -qF -- "$args" <(kubelet_args)
}

types() {
    bare kubeadm
    kubelet-supervisor enable >/tmp/enable 2>&1
    ok "what enable writes is what is shipped" diff $dropin /suite/zz-kubelet-supervisor.conf
    ok "what enable says is what install.md shows" diff <(sed -n '/^```text/,/^```/p' /suite/install.md | grep -v '^```') /tmp/enable
    ok "Type=notify on demand" kubelet-supervisor enable --type notify
    ok "Type=notify: start returns when the kubelet is ready" eval 'timeout 60 systemctl restart kubelet && ready'
    ok "Type=notify: systemd was told" is "$(property Type) $(property ActiveState)" "notify active"
    ok "Type=notify: kept by the next enable" eval 'kubelet-supervisor enable && is "$(property Type)" notify'
    printf '[Service]\nType=simple\n' >/etc/systemd/system/kubelet.service.d/zzz-simple.conf
    ok "Type=simple set back by a drop-in" eval 'systemctl daemon-reload && systemctl restart kubelet && is "$(property Type)" simple'
    ok "Type=simple: ready, and STATUS in words" until_true 30 eval 'ready && property StatusText | grep -q "kubelet ready"'
    ok "Type=simple: stop" timeout 60 systemctl stop kubelet
    ok "Type=simple: no kubelet is left" no_kubelet
    printf '[Service]\nWatchdogSec=2\n' >/etc/systemd/system/kubelet.service.d/zzz-simple.conf
    systemctl daemon-reload
    ok "WatchdogSec: it is answered" eval 'systemctl restart kubelet && before=$(property WatchdogTimestampMonotonic) && until_true 30 eval "[ \"\$(property WatchdogTimestampMonotonic)\" != $before ]"'
    systemctl stop kubelet
}

# The README's lines, as they stand there. There is no toolchain in here: what cargo would make is there already.
readme() {
    bare kubeadm
    mkdir -p /tmp/readme/{bin,target/release}
    printf '#!/bin/sh\n' >/tmp/readme/bin/cargo && chmod 755 /tmp/readme/bin/cargo
    cp /suite/kubelet-supervisor /tmp/readme/target/release/
    sed -n '/^## Install it on a node$/,/^## /{/^```sh$/,/^```$/p}' /suite/README.md | grep -v '^```' >/tmp/readme/block
    ok "README: its lines" bash -euc 'cd /tmp/readme && grep -q systemctl block && PATH=/tmp/readme/bin:$PATH && . ./block'
    ok "README: the kubelet is ready" until_true 30 ready
    ok "README: the main process is the supervisor" main_is_supervisor
    systemctl stop kubelet
}

options() {
    bare kubeadm
    ok "options are given to run" kubelet-supervisor enable -- --trial-duration 7m --node-name 'a $b%i'
    ok "systemd takes them" systemctl restart kubelet
    ok "in one piece" until_true 30 grep -qzx 'a $b%i' "/proc/$(property MainPID)/cmdline"
    echo 'KUBELET_EXTRA_ARGS=--max-pods=43' >/etc/default/kubelet
    sed 's/^ExecStart=..*/& --event-qps=9/' /usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf >/etc/systemd/system/kubelet.service.d/10-kubeadm.conf
    ok "a changed unit, and options, survive another enable" eval 'kubelet-supervisor enable && systemctl restart kubelet && until_true 30 one_kubelet && until_true 30 eval "kubelet_args | grep -q -- \"--max-pods=43 --event-qps=9\""'
    ok "and the options" grep -q -- '--trial-duration 7m' $dropin
    ok "bad options are told now" fails "options for .run." kubelet-supervisor enable -- --trial-duration 7x
}

policies() {
    local policy=/etc/kubelet-supervisor/policy.yaml
    bare kubeadm
    ok "policy: --dry-run shows it" eval 'kubelet-supervisor enable --dry-run --policy baseline >/tmp/enable && says "^kind: NodePolicy" /tmp/enable && [ ! -e $policy ]'
    ok "policy: enable --policy baseline" eval 'kubelet-supervisor enable --policy baseline >/tmp/enable && says "^wrote $policy" /tmp/enable'
    ok "policy: it is root's alone" is "$(stat -c '%a %U' $policy) $(stat -c '%a %U' "$(dirname $policy)")" "644 root 755 root"
    ok "policy: it can be used" eval 'kubelet-supervisor policy check >/tmp/policy && says "deniedFields: .*staticPodPath" /tmp/policy'
    ok "policy: ready" eval 'timeout 60 systemctl restart kubelet && until_true 30 ready'
    ok "policy: it is in force" eval 'kubelet-supervisor status -o json | grep "\"state\": *\"in-force\""'
    ok "policy: again is harmless" eval 'kubelet-supervisor enable --policy baseline | grep "$policy is up to date"'
    ok "policy: another is not put over it" fails "says something else" kubelet-supervisor enable --policy strict
    ok "policy: none of that name" fails "baseline, strict or the path" kubelet-supervisor enable --policy lenient
    printf 'apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nstaticPodPath: /tmp\n' >/tmp/denied
    ok "policy: check asks it" eval 'not kubelet-supervisor check /tmp/denied -- /usr/bin/kubelet --config=/var/lib/kubelet/config.yaml >/tmp/check && says "rejected: the node.s policy: deniedFields has staticPodPath" /tmp/check'
    systemctl stop kubelet
    rm -r "$(dirname $policy)"
}

# A launcher's life. COMMAND and what follows it say of the kubelet's PID whether the launcher did its work.
launched() { # NAME EXECSTART COMMAND...
    local name=$1 start=$2 before
    shift 2
    proof=("$@")
    bare kubeadm
    printf '[Service]\nExecStart=\nExecStart=%s /usr/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_EXTRA_ARGS\n' "$start" >/etc/systemd/system/kubelet.service.d/30-launcher.conf
    ok "$name: a bare kubelet, which is the main process" eval 'systemctl daemon-reload && systemctl start kubelet && until_true 30 kubelet_is_main'
    ok "$name: it does its work there" works
    ok "$name: enable" eval 'kubelet-supervisor enable >/tmp/enable'
    ok "$name: stays in front of the supervisor" says "^ExecStart=${start//\"/} /usr/bin/kubelet-supervisor run -- /usr/bin/kubelet" /tmp/enable
    ok "$name: and enable says so" says "^note: $start stays in front" /tmp/enable
    ok "$name: enable again is harmless" eval 'cp $dropin /tmp/first; kubelet-supervisor enable | grep "is up to date" && diff $dropin /tmp/first'
    ok "$name: systemd finds no fault with it" no_fault
    ok "$name: ready" eval 'timeout 60 systemctl restart kubelet && until_true 30 ready'
    ok "$name: the main process is the supervisor" main_is_supervisor
    ok "$name: STATUS is in words" grep -q "kubelet ready with the local configuration" <(property StatusText)
    ok "$name: the kubelet has its arguments" grep -qF -- "--config=/var/lib/kubelet/config.yaml --max-pods=42 --v=2" <(kubelet_args)
    ok "$name: it does its work for the kubelet" works
    before=$(kubelet_pids)
    kill -9 "$before"
    ok "$name: and for the kubelet that comes after it" eval 'until_true 30 another_kubelet "$before" && works'
    ok "$name: disable" eval 'kubelet-supervisor disable >/tmp/disable && says "^ExecStart=${start//\"/} /usr/bin/kubelet " /tmp/disable'
    ok "$name: stop leaves no kubelet" eval 'timeout 60 systemctl stop kubelet && no_kubelet'
}
works() { "${proof[@]}" "$(kubelet_pids)"; }
kubelet_is_main() { one_kubelet && [ "$(property MainPID)" = "$(kubelet_pids)" ]; }
is_nice() { is "$(ps -o ni= -p "$1" | tr -d ' ')" 7; }
is_last_for_io() { is "$(ionice -p "$1")" "best-effort: prio 6"; }
is_batch() { chrt -p "$1" | grep SCHED_BATCH; }
is_on_the_first_cpu() { grep -qx 'Cpus_allowed_list:[[:space:]]0' "/proc/$1/status"; }
has_variable() { tr '\0' '\n' <"/proc/$1/environ" | grep -qx 'GREETING=good day'; }
logs_as_kubelet_cat() { until_true 10 eval 'journalctl -q -t kubelet-cat _PID='"$1 + _PID=$(property MainPID)"' | grep -q .'; }
is_in_its_namespace() { [ "$(readlink "/proc/$1/ns/mnt")" = "$(nsenter --mount=/run/kubens/mnt readlink /proc/self/ns/mnt)" ] && [ "$(readlink "/proc/$1/ns/mnt")" != "$(readlink /proc/1/ns/mnt)" ]; }
launchers() {
    launched nice "/usr/bin/nice -n 7" is_nice
    launched ionice "/usr/bin/ionice -c2 -n6" is_last_for_io
    launched chrt "/usr/bin/chrt --batch 0" is_batch
    launched taskset "/usr/bin/taskset -c 0" is_on_the_first_cpu
    launched env '/usr/bin/env "GREETING=good day"' has_variable
    launched systemd-cat "/usr/bin/systemd-cat -t kubelet-cat" logs_as_kubelet_cat
    # OpenShift's, in what it does; kubens.service makes the namespace there.
    mkdir -p /run/kubens && mount --bind --make-private /run/kubens /run/kubens && touch /run/kubens/mnt
    # On Linux 6.18 each CPU numbers namespaces on its own, and one with a lower number than ours cannot be bound here: on the CPU
    # where ours was made it is higher.
    for ((cpu = 0; cpu < $(nproc --all); cpu++)); do
        ! taskset -c $cpu unshare --mount=/run/kubens/mnt --propagation slave mount --make-rshared / || break
    done
    printf '#!/bin/bash\nexec nsenter --mount=/run/kubens/mnt "$@"\n' >/usr/local/bin/kubenswrapper && chmod 755 /usr/local/bin/kubenswrapper
    launched kubenswrapper /usr/local/bin/kubenswrapper is_in_its_namespace
    rm /usr/local/bin/kubenswrapper
    umount /run/kubens/mnt && umount /run/kubens

    bare kubeadm
    printf '[Service]\nExecStart=\nExecStart=/bin/sh -c "exec /usr/bin/kubelet --config=/var/lib/kubelet/config.yaml --v=3"\n' >/etc/systemd/system/kubelet.service.d/30-shell.conf
    ok "exec in a shell: enable leaves the shell out" eval 'kubelet-supervisor enable | grep "^ExecStart=/usr/bin/kubelet-supervisor run -- /usr/bin/kubelet --config=/var/lib/kubelet/config.yaml --v=3$"'
    ok "exec in a shell: again is harmless" eval 'kubelet-supervisor enable | grep "is up to date"'
    ok "exec in a shell: ready" eval 'timeout 60 systemctl restart kubelet && until_true 30 ready && main_is_supervisor && one_kubelet'
    ok "exec in a shell: disable" eval 'kubelet-supervisor disable | grep "^ExecStart=/bin/sh -c"'
    systemctl stop kubelet
}

distributions() {
    bare kubeadm
    for name in k3s rke2; do
        printf '#!/bin/sh\nexec sleep infinity\n' >/usr/local/bin/$name && chmod 755 /usr/local/bin/$name
        printf '[Service]\nExecStart=/usr/local/bin/%s agent\n' $name >/etc/systemd/system/$name-agent.service
        systemctl daemon-reload
        ok "$name: its unit" fails "/var/lib/rancher/$name/agent/etc/kubelet.conf.d" kubelet-supervisor enable --unit $name-agent
        mv /usr/lib/systemd/system/kubelet.service /tmp/kubelet.service && systemctl daemon-reload
        ok "$name: no unit of a kubelet" fails "there is no kubelet.service, but $name-agent.service: $name " kubelet-supervisor enable
        mv /tmp/kubelet.service /usr/lib/systemd/system/
        rm /usr/local/bin/$name /etc/systemd/system/$name-agent.service
        systemctl daemon-reload
    done
}

# What an earlier version took, such as a store on a data disk that its group may write to.
stores() {
    local verb
    bare kubeadm
    mkdir -m 775 /data
    for verb in "enable --dry-run" enable; do
        ok "$verb: a store that others can change" fails "chmod go-w /data" kubelet-supervisor $verb -- --dynamic-config-dir /data/store
    done
    echo 'KUBELET_EXTRA_ARGS=--dynamic-config-dir=/data/store' >/etc/default/kubelet
    ok "a store that the running kubelet's flags name" eval 'systemctl start kubelet && until_true 30 one_kubelet && fails "chmod go-w /data" kubelet-supervisor enable'
    ok "a store: nothing was written" test ! -e $dropin
    chmod g-w /data
    ok "a store: mended, it is taken" eval 'kubelet-supervisor enable && kubelet-supervisor disable'
    systemctl stop kubelet
    rmdir /data
}

refusals() {
    bare kubeadm
    ok "no such unit" fails "there is no nothing.service" kubelet-supervisor enable --unit nothing
    ok "not root" fails "run it as root" setpriv --reuid=65534 --clear-groups kubelet-supervisor enable
    ok "another's program" eval 'install -o nobody /suite/kubelet-supervisor /opt/ks && fails "by others than root" /opt/ks enable; rm /opt/ks'
    ok "a program that the next boot removes" eval 'install /suite/kubelet-supervisor /tmp/ks && fails "next boot empties" /tmp/ks enable; rm /tmp/ks'
    printf '[Service]\nExecStart=\nExecStart=/bin/sh -c "exec /usr/bin/kubelet $$(cat /etc/args)"\n' >/etc/systemd/system/kubelet.service.d/30-shell.conf
    ok "a shell with work to do" fails "runs a shell" kubelet-supervisor enable
    printf '[Service]\nExecStart=\nExecStart=/usr/bin/timeout 9 /usr/bin/kubelet --v=2\n' >/etc/systemd/system/kubelet.service.d/30-shell.conf
    ok "what does not become the kubelet: the line to write" fails "ExecStart=/usr/bin/kubelet --v=2" kubelet-supervisor enable
    printf '#!/bin/sh\nexec /usr/bin/kubelet "$@"\n' >/usr/local/bin/kubelet && chmod 755 /usr/local/bin/kubelet
    printf '[Service]\nExecStart=\nExecStart=/usr/local/bin/kubelet\n' >/etc/systemd/system/kubelet.service.d/30-shell.conf
    ok "a script" fails "is a script" kubelet-supervisor enable
    rm /usr/local/bin/kubelet
    mv /etc/systemd/system/kubelet.service.d/{30-shell,zzz-later}.conf
    ok "a later drop-in with another command" fails "zzz-later.conf sets ExecStart" kubelet-supervisor enable
    # systemd itself refuses this one, once it has seen it.
    printf '[Service]\nType=dbus\n' >/etc/systemd/system/kubelet.service.d/zzz-later.conf
    ok "a unit that systemd refuses" fails "systemctl status kubelet.service says why" kubelet-supervisor enable
    rm /etc/systemd/system/kubelet.service.d/zzz-later.conf
    ok "nothing was written" test ! -e $dropin
    systemctl daemon-reload
    rm -f /etc/systemd/system/kubelet.service
    systemctl mask kubelet 2>/dev/null
    ok "masked" fails "is masked" kubelet-supervisor enable
    systemctl unmask kubelet 2>/dev/null
    ok "after all that it works" eval 'systemctl daemon-reload; kubelet-supervisor enable && kubelet-supervisor disable'
}

walk package ""
walk kubeadm "--config=/var/lib/kubelet/config.yaml --max-pods=42 --v=2"
walk openshift "--cloud-provider= --volume-plugin-dir=/etc/kubernetes/kubelet-plugins/volume/exec --hostname-override= --register-with-taints=node-role.kubernetes.io/master=:NoSchedule"
walk eks "--config=/var/lib/kubelet/config.yaml --hostname-override=ip-10-0-0-1.ec2.internal --node-ip=10.0.0.1"
types
readme
options
policies
stores
launchers
distributions
refusals
bare kubeadm
