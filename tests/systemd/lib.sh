# What the topics share; sourced inside the container.
# shellcheck disable=SC2034,SC2154 # what the topics share is named here and there
passed=0 failed=0
dropin=/etc/systemd/system/kubelet.service.d/zz-kubelet-supervisor.conf
topic=
# The file of kubeadm's drop-in that is the administrator's.
settings=/etc/default/kubelet

ok() { # NAME COMMAND...
    local name=$1
    shift
    if "$@" >/tmp/why 2>&1; then
        passed=$((passed + 1)) && echo "test $topic: $name ... ok"
    else
        failed=$((failed + 1)) && echo "test $topic: $name ... FAILED: $*" | tee -a /suite/failures && cat /tmp/why && systemctl status kubelet --no-pager -n 20
    fi
}
not() { if "$@"; then return 1; fi; }
left_out() { echo "LEFT OUT: $topic: $*"; }
until_true() { # SECONDS COMMAND...
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do [ $SECONDS -lt $deadline ] || return 1; sleep 0.05; done
}
says() { grep -q -- "$1" "$2" || { echo "no '$1' in:"; cat "$2"; return 1; }; } # PATTERN FILE
fails() { # PATTERN COMMAND...: it fails, and says that
    local pattern=$1
    shift
    if "$@" >/tmp/said 2>&1; then echo "it did not fail: $*"; return 1; fi
    says "$pattern" /tmp/said
}
# shellcheck source=tests/systemd/node.sh
. ./node.sh
kubelet_pids() {
    local pid
    for pid in $(pgrep -x 'kubelet|hyperkube'); do
        if acts_on_node "$pid"; then echo "$pid"; fi
    done
}
kubelets() { kubelet_pids | grep -c .; }
one_kubelet() { [ "$(kubelets)" = 1 ]; }
no_kubelet() { [ "$(kubelets)" = 0 ]; }
another_kubelet() { one_kubelet && [ "$(kubelet_pids)" != "$1" ]; }
kubelet_args() { tr '\0' ' ' <"/proc/$(kubelet_pids)/cmdline"; }
# Supervisor and kubelet, neither started anew.
both() { echo "$(property MainPID) $(kubelet_pids) $(property NRestarts)"; }
supervisors() { pgrep -c -f '^[^ ]*kubelet-supervisor run '; }
worker() { pgrep -P "$(property MainPID)" -f 'kubelet-supervisor.* worker '; }
another_worker() { [ -n "$(worker)" ] && [ "$(worker)" != "$1" ]; }
gone() { ! kill -0 "$1" 2>/dev/null; }
# grep reads to the end: with -q a writer that is not done yet would see a broken pipe.
ready() { kubelet-supervisor status -o json 2>/dev/null | grep '"ready": *true' >/dev/null; }
shows() { kubelet-supervisor status 2>/dev/null | grep "$1" >/dev/null; }
on_trial() { shows "^Trial: *running" && ready; }
# What must not be in the history of a configuration that nothing was wrong with.
no_blame() { ! kubelet-supervisor history | grep -E 'RolledBack|NotBlamed|Rejected'; }
main_is_supervisor() { is "$(cat "/proc/$(property MainPID)/comm")" kubelet-supervi; }
no_fault() { ! systemd-analyze verify kubelet.service 2>&1 | grep -i 'kubelet.*:'; }
# Starts the stand-in API server, stopped before the kubelet and after what is named; the next start of the unit kubelet
# makes it one of its nodes.
api_server() { # [UNIT]
    rm -f /etc/kubernetes/kubelet.conf /etc/kubernetes/pool.yaml
    cat >/etc/systemd/system/api-server.service <<UNIT
[Unit]
After=kubelet.service ${1:-}
[Service]
ExecStart=/suite/stand-in-api-server 6443 node-1 /etc/kubernetes/kubelet.conf /etc/kubernetes/pool.yaml
UNIT
    echo "KUBELET_EXTRA_ARGS=--kubeconfig=/etc/kubernetes/kubelet.conf --hostname-override=node-1" >$settings
    systemctl daemon-reload
    systemctl restart api-server && until_true 30 test -s /etc/kubernetes/kubelet.conf
}
assign() { # LINE: a configuration with it
    printf 'kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n%s\n' "$1" >/etc/kubernetes/pool.new
    mv /etc/kubernetes/pool.{new,yaml}
}
# The unit as an installer left it: FORM, as one of the functions below puts it there.
bare() {
    systemctl stop kubelet 2>/dev/null
    systemctl unmask kubelet 2>/dev/null
    rm -rf /etc/systemd/system/kubelet.service /etc/systemd/system/kubelet.service.d /run/systemd/system/kubelet.service.d
    rm -rf $settings /etc/eks /var/lib/kubelet/dynamic-config /etc/kubernetes/kubelet.conf /var/lib/kubelet/kubeconfig
    mkdir -p /etc/systemd/system/kubelet.service.d /var/lib/kubelet
    # Quicker than units really are; not in the kubelet's own files.
    printf '[Service]\nRestartSec=1\n' >/etc/systemd/system/kubelet.service.d/20-quick.conf
    "form_$1"
    systemctl daemon-reload
    systemctl reset-failed kubelet 2>/dev/null
    topic=$1
}
form_package() { ln -sf /dev/null /etc/systemd/system/kubelet.service.d/10-kubeadm.conf; }
form_kubeadm() { echo 'KUBELET_EXTRA_ARGS=--max-pods=42 --v=2' >$settings; }
form_openshift() {
    mkdir -p /etc/kubernetes
    cp /var/lib/kubelet/config.yaml /etc/kubernetes/kubelet.conf
    cp /suite/forms/openshift.service /etc/systemd/system/kubelet.service
    form_package
}
form_eks() {
    mkdir -p /etc/eks/kubelet
    echo "NODEADM_KUBELET_ARGS=--config=/var/lib/kubelet/config.yaml --hostname-override=ip-10-0-0-1.ec2.internal --node-ip=10.0.0.1" >/etc/eks/kubelet/environment
    cp /suite/forms/eks.service /etc/systemd/system/kubelet.service
    form_package
}
