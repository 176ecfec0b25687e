#!/usr/bin/env bash
# A node as kubeadm sets one up, with the real kubelet, a containerd and a systemd that both keep pods in slices, and cgroup v2:
# the package comes, is enabled, changes the kubelet's configuration, is upgraded and restarted, and goes; the pods stay.
#
# It takes the machine over: units, /etc/kubernetes, /var/lib/kubelet. So it runs in a machine of its own, vm.sh's, after
#
#   packaging/build.sh deb && packaging/build.sh deb --version 99.0.0
#   tests/real/vm.sh tests/real/kubeadm.sh
set -euo pipefail
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here/../..")
dir=/root/cluster
packages=$top/target/packages
# shellcheck source=tests/real/steps.sh
. "$here/steps.sh"

unavailable() { echo "kubeadm.sh: prerequisite missing: $*" >&2; exit 77; }
grep -qw kubelet-supervisor.vm /proc/cmdline || unavailable "a machine to throw away: tests/real/vm.sh tests/real/kubeadm.sh"
the_one() { # FILE...: it is there, and alone
    [ $# = 1 ] && [ -e "$1" ] || unavailable "one package each of two versions in $packages: packaging/build.sh deb && packaging/build.sh deb --version 99.0.0"
    echo "$1"
}
first=$(the_one "$packages"/kubelet-supervisor_[!9]*.deb)
second=$(the_one "$packages"/kubelet-supervisor_99.*.deb)

# etcd and API server, and what makes them believe each other; of its containerd only the image is used.
APISERVER_EXTRA_FLAGS="--feature-gates=DynamicKubeletConfig=false" "$here/cluster.sh" up $dir
# shellcheck source=/dev/null
. $dir/env
step_log=/root/kubeadm.log named_log=/root/kubeadm.log

passed=0 failed=0
ok() { # WHAT COMMAND...
    local status
    # In a shell of its own and no condition, which would switch off `set -e` in there.
    set +e
    (step "$@")
    status=$?
    set -e
    if [ $status = 0 ]; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        journalctl -u kubelet --no-pager -n 25 | cut -c1-300 || true
    fi
}
finish() {
    [ $failed = 0 ] || cat $step_log
    echo "test result: $([ $failed = 0 ] && echo ok || echo FAILED). $passed passed; $failed failed"
    [ $failed = 0 ]
    exit
}
# Generous: here each instruction may be computed.
await() { # COMMAND...
    local deadline=$((SECONDS + 600))
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $deadline ] || { echo "not in ten minutes: $*"; "$@"; return 1; }
        sleep 0.5
    done
}
# shellcheck source=tests/systemd/node.sh
. "$top/tests/systemd/node.sh"
node() { "$KUBECTL" get node "$NODE_NAME" -o json | jq -e "$1"; }
config() { node "(.metadata.annotations[\"kubelet-supervisor.io/config-status\"] // \"null\" | fromjson) | $1"; }
capacity() { node ".status.capacity.pods == \"$1\""; }
kubelet_pid() { # of the unit's kubelets the one that nobody asks for a verdict or a version
    local pid pids=()
    for pid in $(</sys/fs/cgroup/system.slice/kubelet.service/cgroup.procs); do
        [ "$(readlink "/proc/$pid/exe")" = /usr/bin/kubelet ] || continue
        if acts_on_node "$pid"; then pids+=("$pid"); fi
    done
    [ ${#pids[@]} = 1 ] || { echo "kubelet.service has ${#pids[@]} kubelets" >&2; return 1; }
    echo "${pids[0]}"
}
processes() {
    local main kubelet
    main=$(property MainPID) && kubelet=$(kubelet_pid) && echo "$main $kubelet"
}
containers() { ctr -n k8s.io tasks ls | awk '/RUNNING/ { print $1, $2 }' | sort; }
running() { is "$("$KUBECTL" get pods "$@" -o json | jq '[.items // [.] | .[] | select(.status.phase == "Running")] | length')" $#; } # POD...
main_runs() { is "$(readlink "/proc/$(property MainPID)/exe")" "$1"; } # PROGRAM
# A Node stays Ready after its kubelet has ended: the heartbeat must be younger than the kubelet that runs.
ready() {
    local pid started
    pid=$(kubelet_pid) && started=$(($(date +%s) - $(ps -o etimes= -p "$pid"))) && curl -sSf -m 10 127.0.0.1:10248/healthz &&
        node ".status.conditions[] | select(.type == \"Ready\" and .status == \"True\" and (.lastHeartbeatTime | fromdateiso8601) >= $started)"
}
supervised() { main_runs /usr/bin/kubelet-supervisor && kubelet-supervisor status -o json | jq -e .kubelet.ready; }
config_map() { # NAME LINE...: the node's own configuration, and these lines
    cp /var/lib/kubelet/config.yaml /root/payload.yaml
    printf '%s\n' "${@:2}" >>/root/payload.yaml
    "$KUBECTL" -n kubelet-config create configmap "$1" --from-file=kubelet=/root/payload.yaml
}
assign() { "$KUBECTL" label --overwrite node "$NODE_NAME" "kubelet-config.node-restriction.kubernetes.io/name=$1"; } # NAME

# ---------------------------------------------------------------- as kubeadm join leaves it

runtime() { # as kubeadm's documents ask for it: SystemdCgroup
    mkdir -p /etc/containerd /etc/cni/net.d
    cat >/etc/containerd/config.toml <<END
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/$IMAGE"
  stream_server_address = "127.0.0.1"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = true
END
    cp $dir/cni/*.conflist /etc/cni/net.d/
    systemctl restart containerd
    ctr --address "$CONTAINERD_SOCK" -n k8s.io image export /root/image.tar "docker.io/$IMAGE"
    await ctr -n k8s.io image import /root/image.tar
    "$here/cluster.sh" stop $dir containerd
}
joined() {
    local units=/usr/lib/systemd/system
    mkdir -p /etc/kubernetes/{pki,manifests} /var/lib/kubelet $units/kubelet.service.d
    install -m 755 "$KUBELET" /usr/bin/kubelet
    cp "$top/tests/systemd/forms/package.service" $units/kubelet.service
    sed '/^Environment=/i Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"' \
        "$top/tests/systemd/forms/10-kubeadm.conf" >$units/kubelet.service.d/10-kubeadm.conf
    echo 'KUBELET_KUBEADM_ARGS="--container-runtime=remote --container-runtime-endpoint=unix:///run/containerd/containerd.sock"' >/var/lib/kubelet/kubeadm-flags.env
    echo "KUBELET_EXTRA_ARGS=--node-ip=$NODE_IP --hostname-override=$NODE_NAME" >/etc/default/kubelet
    cp $dir/pki/ca.crt /etc/kubernetes/pki/ca.crt
    cp "$NODE_KUBECONFIG" /etc/kubernetes/kubelet.conf
    cat >/var/lib/kubelet/config.yaml <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 0s, enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
healthzBindAddress: 127.0.0.1
healthzPort: 10248
rotateCertificates: true
staticPodPath: /etc/kubernetes/manifests
systemReserved: {cpu: 100m, memory: 200Mi}
END
    systemctl daemon-reload
    systemctl enable --now kubelet
    await ready
}
pod() { # NAME
    printf '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "%s", "namespace": "default"}, "spec": {"nodeName": "%s", "automountServiceAccountToken": false,
        "containers": [{"name": "c", "image": "%s", "imagePullPolicy": "Never", "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}}}]}}' \
        "$1" "$NODE_NAME" "$IMAGE"
}
pods() {
    pod static | jq 'del(.spec.nodeName)' >/etc/kubernetes/manifests/static.json
    pod other | "$KUBECTL" create -f -
    await running "static-$NODE_NAME" other
}
ok "the runtime" runtime
ok "the node joins, with the plain kubelet" joined
ok "a static pod and another run" pods
[ $failed = 0 ] || finish # all else would wait for them
containers_before=$(containers)
unchanged() { is "$(containers)" "$containers_before"; }
# A kubelet that has run another pod since its start has looked at these.
pods_stay() {
    await ready
    pod witness | "$KUBECTL" create -f -
    await running witness
    "$KUBECTL" delete pod witness --grace-period=1
    await unchanged
}
slices() {
    local scopes=(/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/*/cri-containerd-*.scope)
    is ${#scopes[@]} 4
    is "$(cut -d: -f3 "/proc/$(kubelet_pid)/cgroup")" /system.slice/kubelet.service
}
ok "cgroup v2: kubelet and pods are in systemd's slices" slices

# ---------------------------------------------------------------- the supervisor comes

installed() {
    local before
    before=$(processes)
    dpkg -i "$first"
    is "$(processes)" "$before"
}
enabled() {
    kubelet-supervisor enable -- --trial-duration 60s --spread 0s --config-namespace kubelet-config
    systemctl restart kubelet
    await supervised
    pods_stay
}
may_read() {
    "$KUBECTL" apply -k "$top/packaging/manifests/base"
    await "$KUBECTL" --kubeconfig /etc/kubernetes/kubelet.conf auth can-i get configmaps -n kubelet-config
}
ok "dpkg -i restarts nothing" installed
ok "enable, and a restart: ready, pods stay" enabled
ok "nodes may read the namespace" may_read

changed() {
    config_map pool-1 'maxPods: 42'
    assign pool-1
    await capacity 42
    await config '.lastKnownGood.configMap.name == "pool-1"'
    pods_stay
}
rejected() {
    local before
    before=$(processes)
    config_map pool-2 'kubeAPIQPS: -1'
    assign pool-2
    await config '.assigned.configMap.name == "pool-2" and .error == "failed to validate config, see Kubelet log for details"'
    pods_stay
    is "$(processes)" "$before"
}
rolled_back() {
    local before
    before=$(kubelet_pid)
    config_map pool-3 'enforceNodeAllocatable: [pods, system-reserved]' 'systemReservedCgroup: /nope'
    "$KUBECTL" -n kubelet-config annotate configmap pool-3 kubelet-supervisor.io/acknowledge=systemReservedCgroup
    assign pool-3
    await config '.assigned.configMap.name == "pool-3" and .active.configMap.name == "pool-1" and .error == "failed to load config, see Kubelet log for details"'
    kubelet-supervisor history | grep RolledBack
    await supervised
    pods_stay
    await capacity 42
    ! is "$(kubelet_pid)" "$before" || return 1
}
ok "a configuration is tried, proven, and the pods stay" changed
ok "one that the kubelet refuses restarts nothing" rejected
ok "one that kills the kubelet is rolled back" rolled_back

# ---------------------------------------------------------------- upgraded, reset, removed

upgraded() {
    local before
    before=$(processes)
    dpkg -i "$second"
    is "$(dpkg-query -W -f '${Version}' kubelet-supervisor)" 99.0.0-1
    is "$(readlink "/proc/$(property MainPID)/exe")" "/usr/bin/kubelet-supervisor (deleted)"
    is "$(processes)" "$before"
    systemctl restart kubelet
    await supervised
    pods_stay
}
unassigned() {
    "$KUBECTL" label node "$NODE_NAME" kubelet-config.node-restriction.kubernetes.io/name-
    await capacity 110
    await config '[.[]?] | length == 0'
    pods_stay
}
removed() {
    local before
    before=$(kubelet_pid)
    dpkg -r kubelet-supervisor
    is "$(kubelet_pid)" "$before"
    systemctl restart kubelet
    await main_runs /usr/bin/kubelet
    pods_stay
}
ok "dpkg -i of the next version restarts nothing; after a restart that one runs" upgraded
ok "without an assignment the node's own file is back" unassigned
ok "dpkg -r restarts nothing; after a restart the plain kubelet runs" removed
finish
