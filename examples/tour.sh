#!/usr/bin/env bash
# The main job on a real cluster: etcd, kube-apiserver 1.20, containerd and an unmodified kubelet,
# all on this machine, with the supervisor between. Walks through assign, reject, heal, reset and
# prints what to look at. As root on Debian 12; needs a Rust toolchain; removes what it started.
#
#   examples/tour.sh [--modern] [--keep]
#     --modern  the API server drops spec.configSource and status.config, as those since 1.26 do:
#               the same with labels, an annotation and packaging/manifests
#     --keep    leaves the cluster up and says how to use and remove it
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
keep='' modern=''
for option; do
    case $option in
    --keep) keep=1 ;;
    --modern) modern=1 ;;
    *) sed -n '5,9s/^# //p' "$0" >&2 && exit 64 ;;
    esac
done
dir=$(mktemp -d /tmp/tour.XXXX)
cluster="$top/tests/real/cluster.sh"

bold() { if [ -t 1 ]; then printf '\n\033[1m%s\033[0m\n' "$*"; else printf '\n%s\n' "$*"; fi; }
run() { printf '  $ %s\n' "${*/#$KUBECTL/kubectl}"; "$@" 2>&1 | sed 's/^/    /'; }
show_status() { echo '  $ kubelet-supervisor status' && status | sed 's/^/    /'; }
status() { "$supervisor" status --dynamic-config-dir "$dir/dynamic-config" "$@"; }
field() { status -o json | jq -r "$1"; }
# Waits for a change in what the API server and the supervisor say, not for time to pass.
await() { # WHAT COMMAND...
    local what=$1 deadline=$((SECONDS + 180))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $deadline ] || { echo "  gave up waiting for: $what (log: $dir/supervisor.log)"; exit 1; }
        sleep 0.2
    done
    echo "  -> $what"
}
node() { "$KUBECTL" get node "$NODE_NAME" -o json | jq -e "$1"; }
# What the Node says: status.config, or where that is dropped the annotation.
if [ "$modern" ]; then
    export APISERVER_EXTRA_FLAGS="--feature-gates=DynamicKubeletConfig=false ${APISERVER_EXTRA_FLAGS:-}"
    namespace=kubelet-config
    config() { node "(.metadata.annotations[\"kubelet-supervisor.io/config-status\"] // \"null\" | fromjson) | $1"; }
else
    namespace=kube-system
    config() { node ".status.config | $1"; }
fi
events() { "$KUBECTL" get events -o json | jq -r '.items[] | select(.reason | startswith("KubeletConfig")) | "\(.type) \(.reason): \(.message)"' | tail -n "$1" | cut -c1-300 | sed 's/^/    /'; }

pid=
finish() {
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    [ -z "$pid" ] || wait "$pid" 2>/dev/null || true
    "$cluster" down "$dir" && rm -rf "$dir"
}

bold "Building (a release build takes two minutes the first time)"
(cd "$top" && cargo build --locked --release --quiet --bin kubelet-supervisor)
supervisor=${CARGO_TARGET_DIR:-$top/target}/release/kubelet-supervisor

bold "Bringing up etcd, kube-apiserver and containerd (the first time: building Kubernetes 1.20 from Debian's source, five minutes)"
trap finish EXIT
"$cluster" up "$dir"
# shellcheck source=/dev/null
. "$dir/env"
mapfile -t kubelet < <("$cluster" kubelet-args "$dir")

bold "Starting the kubelet under the supervisor, with a trial of 15 s instead of 10 minutes"
"$supervisor" run --trial-duration 15s --spread 0s --config-namespace $namespace --dynamic-config-dir "$dir/dynamic-config" --metrics-bind-address "" -- "${kubelet[@]}" >"$dir/supervisor.log" 2>&1 &
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
begun=$(date +%s%N)
assign pool-a-1
await "active in the Node's status" config '.active.configMap.name == "pool-a-1"'
echo "     $((($(date +%s%N) - begun) / 1000000)) ms after the write began"
await "the Node offers 42 pods" node '.status.capacity.pods == "42"'
await "last known good, after 15 s of continuous health" config '.lastKnownGood.configMap.name == "pool-a-1"'

bold "2. Reject: kubeAPIQPS -1 is refused by the kubelet itself, before anything is restarted"
{ cat "$dir/good.yaml"; echo 'kubeAPIQPS: -1'; } >"$dir/bad.yaml"
run "$KUBECTL" -n $namespace create configmap pool-a-2 --from-file=kubelet="$dir/bad.yaml"
before=$(field .kubelet.pid)
assign pool-a-2
await "an error in the Node's status" config '.error == "failed to validate config, see Kubelet log for details"'
events 1
echo "  kubelet pid before and after: $before $(field .kubelet.pid)"

bold "3. Heal: a configuration that passes validation and then kills the kubelet"
{ cat "$dir/good.yaml"; printf 'enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /no-such-cgroup\n'; } >"$dir/killing.yaml"
run "$KUBECTL" -n $namespace create configmap pool-a-3 --from-file=kubelet="$dir/killing.yaml"
assign pool-a-3
await "refused: that field wants a drained node" config '.assigned.configMap.name == "pool-a-3" and (.error // "" | contains("validate"))'
events 1
run "$KUBECTL" -n $namespace annotate configmap pool-a-3 kubelet-supervisor.io/acknowledge=systemReservedCgroup
await "tried, and rolled back" config '.assigned.configMap.name == "pool-a-3" and .active.configMap.name == "pool-a-1" and (.error // "" | contains("load"))'
await "the kubelet is ready again" bash -c "[ \"\$('$supervisor' status --dynamic-config-dir '$dir/dynamic-config' -o json | jq .kubelet.ready)\" = true ]"
events 2
show_status

run "$supervisor" history --dynamic-config-dir "$dir/dynamic-config" -n 2

bold "4. Reset: without an assignment the node is back on its own file"
if [ "$modern" ]; then
    run "$KUBECTL" label node "$NODE_NAME" kubelet-config.node-restriction.kubernetes.io/name-
else
    run "$KUBECTL" patch node "$NODE_NAME" --type=json -p '[{"op": "remove", "path": "/spec/configSource"}]'
fi
await "all local, no error" config '[.[]?] | length == 0'
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
    bold "Done; removing the cluster (--keep would leave it up)"
fi
