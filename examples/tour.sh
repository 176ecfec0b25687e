#!/usr/bin/env bash
# The main job on a real cluster: etcd, kube-apiserver 1.20, containerd and an unmodified kubelet,
# all on this machine, with the supervisor between. Walks through assign, reject, heal, reset and
# prints what to look at. As root on Debian 12; needs a Rust toolchain; removes what it started. What is
# not as it says ends it with 1, and its logs are kept; 77: this machine cannot do it.
#
#   examples/tour.sh [--modern] [--keep]
#     --modern  the API server drops spec.configSource and status.config, as those since 1.26 do:
#               the same with labels, an annotation and packaging/manifests
#     --keep    leaves the cluster up and says how to use and remove it
#
# SUPERVISOR_BINARY names a supervisor that is built already, to be taken instead of a release build.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
keep='' modern=''
for option; do
    case $option in
    --keep) keep=1 ;;
    --modern) modern=1 ;;
    *) sed -n '6,10s/^# //p' "$0" >&2 && exit 64 ;;
    esac
done
dir=$(mktemp -d /tmp/tour.XXXX)
cluster="$top/tests/real/cluster.sh"

# shellcheck source=tests/real/steps.sh
. "$top/tests/real/steps.sh"
begun=$(microseconds)

bold() {
    if [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then printf '\n\033[1m%s\033[0m\n' "$*"; else printf '\n%s\n' "$*"; fi
}
run() { printf '  $ %s\n' "${*/#$KUBECTL/kubectl}"; "$@" 2>&1 | sed 's/^/    /'; }
show_status() { echo '  $ kubelet-supervisor status' && status | sed 's/^/    /'; }
status() { "$supervisor" status --dynamic-config-dir "$dir/dynamic-config" "$@"; }
field() { status -o json | jq -r "$1"; }
ready() { [ "$(field .kubelet.ready)" = true ]; }
# Waits for a change in what the API server and the supervisor say, not for time to pass.
await() { # WHAT COMMAND...
    local step_log=$dir/supervisor.log
    step "$1" until_true "${@:2}"
}
until_true() { # COMMAND...
    local deadline=$((SECONDS + 180))
    until "$@" >/dev/null 2>&1; do
        kill -0 "$pid" 2>/dev/null || { echo "The supervisor has ended." && return 1; }
        [ $SECONDS -lt $deadline ] || { echo "It did not come in three minutes." && return 1; }
        sleep 0.2
    done
}
# What must be so by now.
expect() { # WHAT COMMAND...
    "${@:2}" >/dev/null || { echo "  FAILED: $1; the supervisor's log: $dir/supervisor.log" >&2 && exit 1; }
    echo "  ok  $1"
}
node() { "$KUBECTL" get node "$NODE_NAME" -o json | jq -e "$1"; }
# What the Node says: status.config, or where that is dropped the annotation.
if [ "$modern" ]; then
    export APISERVER_EXTRA_FLAGS="--feature-gates=DynamicKubeletConfig=false ${APISERVER_EXTRA_FLAGS:-}"
    namespace="kubelet-config"
    config() { node "(.metadata.annotations[\"kubelet-supervisor.io/config-status\"] // \"null\" | fromjson) | $1"; }
else
    namespace=kube-system
    config() { node ".status.config | $1"; }
fi
events() { "$KUBECTL" get events -o json | jq -r '.items[] | select(.reason | startswith("KubeletConfig")) | "\(.type) \(.reason): \(.message)"'; }
# Waits for an event about a ConfigMap, and shows the last ones.
await_event() { # REASON CONFIGMAP LINES
    await "an event $1" told "$1: .*/configmaps/$2,"
    events | tail -n "$3" | cut -c1-300 | sed 's/^/    /'
}
told() { events | grep " $1"; }

pid=
finish() {
    local status=$?
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    [ -z "$pid" ] || wait "$pid" 2>/dev/null || true
    [ ! -e "$dir/env" ] || "$cluster" down "$dir" || status=1
    if [ $status = 0 ] || [ $status = 77 ]; then rm -rf "$dir"; else echo "The logs are kept: $dir" >&2; fi
    exit $status
}
trap finish EXIT

[ -n "${SUPERVISOR_BINARY:-}" ] || command -v cargo >/dev/null || { echo "tour.sh: no cargo in the PATH: install Rust first, see README.md" >&2 && exit 77; }
bold "Setting up: the first time ten minutes on two cores, for packages and two builds; then none"
step_log=$dir/setup.log
"$top/tests/real/prepare.sh" >/dev/null
if [ -n "${SUPERVISOR_BINARY:-}" ]; then
    supervisor=$(realpath "$SUPERVISOR_BINARY")
else
    command -v cc >/dev/null || install_packages gcc libc6-dev # a linker
    step "building the supervisor: a release build takes two minutes the first time" env -C "$top" cargo build --locked --release --bin kubelet-supervisor
    supervisor=${CARGO_TARGET_DIR:-$top/target}/release/kubelet-supervisor
fi
echo "      the supervisor: $supervisor, $("$supervisor" --version)"

bold "Bringing up etcd, containerd and kube-apiserver"
"$cluster" up "$dir"
# shellcheck source=/dev/null
. "$dir/env"
mapfile -t kubelet < <("$cluster" kubelet-args "$dir")

bold "Starting the kubelet under the supervisor, with a trial of 15 s instead of 10 minutes"
"$supervisor" run --trial-duration 15s --spread 0s --config-namespace $namespace --dynamic-config-dir "$dir/dynamic-config" --metrics-bind-address "" -- "${kubelet[@]}" >>"$dir/supervisor.log" 2>&1 &
pid=$!
await "the Node is Ready" node '.status.conditions[] | select(.type == "Ready" and .status == "True")'
show_status
if [ "$modern" ]; then
    bold "Letting nodes read the ConfigMaps of one namespace"
    run "$KUBECTL" apply -k "$top/packaging/manifests/base"
fi

bold "1. Assign: a ConfigMap with maxPods 42"
sed '/^evictionHard/i maxPods: 42' "$KUBELET_CONFIG" >"$dir/good.yaml"
run "$KUBECTL" -n $namespace create configmap pool-a-1 --from-file=kubelet="$dir/good.yaml"
assign() {
    if [ "$modern" ]; then
        run "$KUBECTL" label --overwrite node "$NODE_NAME" "kubelet-config.node-restriction.kubernetes.io/name=$1"
    else
        "$KUBECTL" patch node "$NODE_NAME" -p "{\"spec\":{\"configSource\":{\"configMap\":{\"name\":\"$1\",\"namespace\":\"$namespace\",\"kubeletConfigKey\":\"kubelet\"}}}}" | sed 's/^/    /'
    fi
}
assign pool-a-1
await "active in the Node's status" config '.active.configMap.name == "pool-a-1"'
await "the Node offers 42 pods" node '.status.capacity.pods == "42"'
await "last known good, after 15 s of continuous health" config '.lastKnownGood.configMap.name == "pool-a-1"'

bold "2. Reject: kubeAPIQPS -1 is refused by the kubelet itself, before anything is restarted"
{ cat "$dir/good.yaml"; echo 'kubeAPIQPS: -1'; } >"$dir/bad.yaml"
run "$KUBECTL" -n $namespace create configmap pool-a-2 --from-file=kubelet="$dir/bad.yaml"
before=$(field .kubelet.pid)
same_kubelet() { [ "$(field .kubelet.pid)" = "$1" ]; }
assign pool-a-2
await "an error in the Node's status" config '.error == "failed to validate config, see Kubelet log for details"'
await_event KubeletConfigRejected pool-a-2 1
expect "the kubelet is still the same process, $before" same_kubelet "$before"

bold "3. Heal: a configuration that passes validation and then kills the kubelet"
{ cat "$dir/good.yaml"; printf 'enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /no-such-cgroup\n'; } >"$dir/killing.yaml"
run "$KUBECTL" -n $namespace create configmap pool-a-3 --from-file=kubelet="$dir/killing.yaml"
assign pool-a-3
await "refused: that field wants a drained node" config '.assigned.configMap.name == "pool-a-3" and (.error // "" | contains("validate"))'
await_event KubeletConfigRejected pool-a-3 1
expect "the kubelet is still the same process, $before" same_kubelet "$before"
run "$KUBECTL" -n $namespace annotate configmap pool-a-3 kubelet-supervisor.io/acknowledge=systemReservedCgroup
await "tried, and rolled back" config '.assigned.configMap.name == "pool-a-3" and .active.configMap.name == "pool-a-1" and (.error // "" | contains("load"))'
await "the kubelet is ready again" ready
await_event KubeletConfigRolledBack pool-a-3 2
show_status

run "$supervisor" history --dynamic-config-dir "$dir/dynamic-config" -n 2

bold "4. Reset: without an assignment the node is back on its own file"
if [ "$modern" ]; then
    run "$KUBECTL" label node "$NODE_NAME" kubelet-config.node-restriction.kubernetes.io/name-
else
    run "$KUBECTL" patch node "$NODE_NAME" --type=json -p '[{"op": "remove", "path": "/spec/configSource"}]'
fi
await "all local, no error" config '[.[]?] | length == 0'
await "the Node offers 110 pods again" node '.status.capacity.pods == "110"'
show_status

if [ "$keep" ]; then
    trap - EXIT
    bold "Still running"
    cat <<END
  . $dir/env                                      # KUBECONFIG and the rest
  kubectl describe node $NODE_NAME
  $supervisor status --dynamic-config-dir $dir/dynamic-config
  less $dir/supervisor.log
  kill $pid; $cluster down $dir && rm -rf $dir    # remove it all
END
else
    bold "Done in $(since "$begun"); removing the cluster (--keep would leave it up)"
fi
