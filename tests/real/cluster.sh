#!/bin/bash
# A real cluster of one node on this machine: etcd, kube-apiserver and a containerd of its own. No kubelet: that is what
# the callers bring.
#
#   cluster.sh up DIR                              bring everything up, return when the API server is ready
#   cluster.sh kubelet-config DIR                  write DIR/kubelet/config.yaml, the node's local configuration (part of up)
#   cluster.sh kubelet-args DIR                    print the kubelet and its arguments, one a line, without --dynamic-config-dir
#   cluster.sh stop|start DIR apiserver|etcd|containerd|controller-manager
#   cluster.sh import DIR ARCHIVE                  an image for pods
#   cluster.sh down DIR                            remove everything but DIR/logs (stop your kubelet first)
#
# Environment of `up`: NODE_NAME (node1), APISERVER_EXTRA_FLAGS, KUBELET_SUPERVISOR_CACHE and EXTRA_BINARIES (see prepare.sh),
# and KUBELET_BINARY and APISERVER_BINARY, which stand for prepare.sh's (v1.20.2).
# `up` starts no controller manager; who has it built starts it: the endpoints of Services, and what becomes of Pods on a Node
# that is not Ready.
# `. DIR/env` tells everything else: KUBECONFIG, API_URL, KUBELET, CONTAINERD_SOCK, ...
#
# Several clusters can run side by side, and next to a host's own containerd: ports are picked at run time, and each
# has its own bridge, pod network, cgroup, sockets and state. Everything listens on 127.0.0.1, except the kubelet: it
# refuses a loopback address as the node's, so it gets the one of the pod bridge, which only this machine can reach.
set -euo pipefail

here=$(dirname "$(realpath "$0")")
# shellcheck source=tests/real/steps.sh
. "$here/steps.sh"
die() { echo "cluster.sh: $*" >&2; exit 1; }
usage() { sed -n '5,10s/^# *//p' "$0" >&2; exit 64; }

# ---------------------------------------------------------------- what a DIR implies

[ $# -ge 2 ] || usage
verb=$1 DIR=$(realpath -m "$2") daemon=${3:-}
[[ $DIR =~ ^/[A-Za-z0-9._/-]+$ ]] || die "DIR must be a plain path (letters, digits, . _ -): $DIR"
longest=$DIR/kubelet/pod-resources/kubelet.sock
[ ${#longest} -lt 108 ] || die "DIR is too long: $longest does not fit into a Unix socket address (107 bytes)"

hash=$(printf %s "$DIR" | sha256sum | cut -c1-8)
net=ks$hash # names the bridge, the CNI network and the cgroup
subnet=10.$((0x${hash:0:2} % 100 + 100)).$((0x${hash:2:2}))
node_ip=$subnet.1
sock=$DIR/containerd/c.sock
image=docker.io/local/busybox:1 # `local/busybox:1` in a pod

# shellcheck source=/dev/null
[ ! -f "$DIR/env" ] || . "$DIR/env"
need_up() { [ -f "$DIR/env" ] || die "no cluster in $DIR (cluster.sh up $DIR)"; }

free_port() { # below the ports the kernel hands out to clients, never the same twice, and none of a cluster beside this one
    local p
    while p=$((RANDOM % 20000 + 11000)); do
        [[ " ${taken:-} " != *" $p "* ]] && ! (: <>"/dev/tcp/127.0.0.1/$p") 2>/dev/null &&
            ! grep -qsE "[:=]$p\$" "$DIR"/../*/env && break
    done
    taken="${taken:-} $p"
    port=$p
}

# ---------------------------------------------------------------- daemons

ours() { # DAEMON: prints its pid if it runs and really is ours
    local pid
    pid=$(cat "$DIR/pids/$1" 2>/dev/null) && grep -qsF "$DIR/" "/proc/$pid/cmdline" && echo "$pid"
}

launch() { # DAEMON COMMAND...: in a session of its own, holding nothing of the caller's
    local name=$1
    shift
    setsid "$@" </dev/null >>"$DIR/logs/$name.log" 2>&1 &
    echo $! >"$DIR/pids/$name"
}

await() { # DAEMON COMMAND...: until the command succeeds
    local name=$1 deadline=$((SECONDS + 120))
    shift
    until sleep 0.1 && "$@" >/dev/null 2>&1; do
        if [ $SECONDS -ge $deadline ] || ! ours "$name" >/dev/null; then
            echo "cluster.sh: $name does not come up, $DIR/logs/$name.log ends:" >&2
            tail -n 30 "$DIR/logs/$name.log" >&2
            exit 1
        fi
    done
}

api() { curl -sSf -m 10 --cacert "$DIR/pki/ca.crt" --cert "$DIR/pki/admin.crt" --key "$DIR/pki/admin.key" "$API_URL$1"; }

start() { # DAEMON
    ! ours "$1" >/dev/null || return 0
    case $1 in
    etcd)
        launch etcd etcd --data-dir "$DIR/etcd" --unsafe-no-fsync \
            --listen-client-urls "$ETCD_URL" --advertise-client-urls "$ETCD_URL" \
            --listen-peer-urls "$ETCD_PEER_URL" --initial-advertise-peer-urls "$ETCD_PEER_URL" \
            --initial-cluster "default=$ETCD_PEER_URL"
        await etcd curl -sSf -m 10 "$ETCD_URL/health"
        ;;
    apiserver)
        # The reconciler is off because it publishes an address for pods, and a loopback one is refused.
        # shellcheck disable=SC2086 # the extra flags are several words
        launch apiserver "$KUBE_APISERVER" --bind-address=127.0.0.1 --secure-port="${API_URL##*:}" \
            --advertise-address="$node_ip" --endpoint-reconciler-type=none --etcd-servers="$ETCD_URL" \
            --cert-dir="$DIR/pki" --client-ca-file="$DIR/pki/ca.crt" \
            --tls-cert-file="$DIR/pki/apiserver.crt" --tls-private-key-file="$DIR/pki/apiserver.key" \
            --kubelet-client-certificate="$DIR/pki/kubelet-client.crt" --kubelet-client-key="$DIR/pki/kubelet-client.key" \
            --kubelet-preferred-address-types=InternalIP --service-cluster-ip-range=10.96.0.0/24 \
            --service-account-issuer=https://kubernetes.default.svc \
            --service-account-key-file="$DIR/pki/ca.crt" --service-account-signing-key-file="$DIR/pki/ca.key" \
            --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
            --disable-admission-plugins=ServiceAccount --v=1 $APISERVER_FLAGS
        await apiserver api /readyz
        # Some moments after it says that it is ready: what it makes by itself, and what kubectl validates by.
        await apiserver api /api/v1/namespaces/default
        await apiserver api /openapi/v2
        ;;
    containerd)
        launch containerd containerd --config "$DIR/containerd/config.toml"
        await containerd ctr --connect-timeout 10s --address "$sock" plugins ls
        ;;
    controller-manager)
        launch controller-manager "$KUBE_CONTROLLER_MANAGER" --kubeconfig="$DIR/admin.kubeconfig" --leader-elect=false \
            --controllers=endpoint,endpointslice,nodelifecycle --port=0 --secure-port=0 --v=1
        ;;
    *) usage ;;
    esac
}

stop() { # DAEMON
    local pid i
    pid=$(ours "$1") || return 0
    # Asked politely, the API server serves the watches it has for another ten seconds. It keeps nothing: pull the plug.
    if [ "$1" = apiserver ]; then kill -9 "$pid"; else kill "$pid"; fi
    for ((i = 0; i < 200; i++)); do
        ours "$1" >/dev/null || break
        sleep 0.1
    done
    ! ours "$1" >/dev/null || kill -9 "$pid"
    rm -f "$DIR/pids/$1"
}

# ---------------------------------------------------------------- files

certificate() { # NAME SUBJECT USAGE [SAN]
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "$2" -keyout "$1.key" -out "$1.csr" 2>/dev/null
    # Without an extension openssl makes version 1 certificates, and Kubernetes' clients do not take those.
    { echo "extendedKeyUsage=$3" && echo "${4:+subjectAltName=$4}"; } >"$1.ext"
    openssl x509 -req -in "$1.csr" -extfile "$1.ext" -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -out "$1.crt" 2>/dev/null
    rm "$1.csr" "$1.ext"
}

write_pki() {
    cd "$DIR/pki"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=ca -days 3650 -keyout ca.key -out ca.crt 2>/dev/null
    certificate apiserver /CN=kube-apiserver serverAuth IP:127.0.0.1,DNS:localhost
    certificate admin /O=system:masters/CN=admin clientAuth
    certificate node "/O=system:nodes/CN=system:node:$NODE_NAME" clientAuth
    certificate kubelet "/CN=$NODE_NAME" serverAuth "IP:$node_ip,DNS:$NODE_NAME"
    certificate kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client clientAuth
    cd - >/dev/null
}

write_kubeconfig() { # USER
    cat >"$DIR/$1.kubeconfig" <<END
apiVersion: v1
kind: Config
clusters: [{name: local, cluster: {server: "$API_URL", certificate-authority: $DIR/pki/ca.crt}}]
users: [{name: $1, user: {client-certificate: $DIR/pki/$1.crt, client-key: $DIR/pki/$1.key}}]
contexts: [{name: local, context: {cluster: local, user: $1}}]
current-context: local
END
}

write_containerd_config() {
    local snapshotter=overlayfs
    [ "$(stat -f -c %T "$DIR")" != overlayfs ] || snapshotter=native # overlays do not stack
    cat >"$DIR/containerd/config.toml" <<END
version = 2
root = "$DIR/containerd/root"
state = "$DIR/containerd/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "$sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$image"
  stream_server_address = "127.0.0.1"
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true # a root without CAP_SYS_RESOURCE, as in many a CI, may not lower it
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$DIR/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "$snapshotter"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = "$DIR/containerd/runc"
END
    cat >"$DIR/cni/10-$net.conflist" <<END
{"cniVersion": "0.4.0", "name": "$net", "plugins": [{"type": "bridge", "bridge": "$net", "isGateway": true,
 "ipam": {"type": "host-local", "dataDir": "$DIR/cni/leases", "ranges": [[{"subnet": "$subnet.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
}

import_image() { # one layer of busybox, for pods and as the pause container: it sleeps, and leaves at once when asked to
    local d=$DIR/containerd/image applet
    mkdir -p "$d"/layer/{bin,etc,tmp,root}
    cp /bin/busybox "$d/layer/bin/"
    for applet in $(/bin/busybox --list); do [ "$applet" = busybox ] || ln -s busybox "$d/layer/bin/$applet"; done
    echo root:x:0:0:root:/root:/bin/sh >"$d/layer/etc/passwd"
    tar -C "$d/layer" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$d/layer.tar" .
    cat >"$d/config.json" <<END
{"architecture": "$(dpkg --print-architecture)", "os": "linux",
 "config": {"Env": ["PATH=/bin"], "Cmd": ["sh", "-c", "trap exit TERM; while :; do sleep 3600 & wait; done"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$(sha256sum "$d/layer.tar" | cut -d' ' -f1)"]}}
END
    echo "[{\"Config\": \"config.json\", \"RepoTags\": [\"$image\"], \"Layers\": [\"layer.tar\"]}]" >"$d/manifest.json"
    tar -C "$d" -cf "$d/image.tar" manifest.json config.json layer.tar
    import_archive "$d/image.tar"
    rm -r "$d"
}

import_archive() { # FILE
    ctr --address "$sock" -n k8s.io image import --snapshotter "$(sed -n 's/^ *snapshotter = "\(.*\)"/\1/p' "$DIR/containerd/config.toml")" "$1" >/dev/null
}

cgroups() { ls -d /sys/fs/cgroup/*/"$net" /sys/fs/cgroup/"$net" 2>/dev/null || true; }

make_cgroups() { # the kubelet wants the root of its cgroups to exist, in every hierarchy
    local h
    if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
        # The kubelet takes a cgroup that lacks a controller for absent (cgroup_manager_linux.go, v1.20.2, Exists). They stay on.
        for h in $(</sys/fs/cgroup/cgroup.controllers); do
            echo "+$h" >/sys/fs/cgroup/cgroup.subtree_control || die "/sys/fs/cgroup/cgroup.subtree_control: the controller $h cannot be turned on; is this the machine's root cgroup?"
        done
        mkdir -p "/sys/fs/cgroup/$net"
        return
    fi
    for h in /sys/fs/cgroup/*/; do
        [ -L "${h%/}" ] || [ ! -f "$h/cgroup.procs" ] || mkdir -p "$h$net"
        # An empty cpuset admits no process.
        [ ! -f "$h$net/cpuset.cpus" ] || for f in cpus mems; do cat "${h}cpuset.$f" >"$h$net/cpuset.$f"; done
    done
}

# ---------------------------------------------------------------- verbs

kubelet_config() {
    need_up
    # Thresholds so low that a nearly full disk of the machine at hand is nobody's problem.
    cat >"$DIR/kubelet/config.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $node_ip
port: $KUBELET_PORT
readOnlyPort: 0
healthzBindAddress: 127.0.0.1
healthzPort: $KUBELET_HEALTHZ_PORT
tlsCertFile: $DIR/pki/kubelet.crt
tlsPrivateKeyFile: $DIR/pki/kubelet.key
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $DIR/pki/ca.crt}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
failSwapOn: false
makeIPTablesUtilChains: false
staticPodPath: $DIR/kubelet/manifests
volumePluginDir: $DIR/kubelet/volumeplugins
resolvConf: ""
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 10Mi, nodefs.available: 0.1%, nodefs.inodesFree: 0.1%, imagefs.available: 0.1%}
END
    # The field is of 1.31, and true since 1.35: such a kubelet does not start on cgroup version 1.
    [ "$KUBELET_MINOR" -lt 31 ] || echo "failCgroupV1: false" >>"$DIR/kubelet/config.yaml"
}

kubelet_args() {
    need_up
    # The address and the cgroup are flags, which win over any configuration file: whatever a test configures, this
    # kubelet stays reachable and never touches another cluster's pods.
    printf '%s\n' "$KUBELET" --config="$KUBELET_CONFIG" --kubeconfig="$DIR/node.kubeconfig" --hostname-override="$NODE_NAME" \
        --node-ip="$node_ip" --container-runtime-endpoint="unix://$sock" \
        --root-dir="$DIR/kubelet" --cert-dir="$DIR/kubelet/pki" --cgroup-root="/$net" --v=2
    [ "$KUBELET_MINOR" -ge 24 ] || printf '%s\n' --container-runtime=remote # the only one since
    # Device plugins are off while they can be (to 1.25), since their directory, /var/lib/kubelet/device-plugins, has no
    # setting: two kubelets that start at once would empty it under each other. Later ones take out sockets alone.
    [ "$KUBELET_MINOR" -ge 26 ] || printf '%s\n' --feature-gates=DevicePlugins=false
}

up() {
    local binaries kubelet port api etcd peer healthz
    [ ! -f "$DIR/env" ] || die "there is a cluster in $DIR already"
    binaries=$("$here/prepare.sh")
    kubelet=${KUBELET_BINARY:-$binaries/kubelet}
    mkdir -p "$DIR"/{pids,logs,pki,cni,containerd,kubelet/manifests}
    rm -f "$DIR"/logs/{etcd,containerd,apiserver,controller-manager,up}.log # an earlier cluster's
    free_port && api=$port
    free_port && etcd=$port
    free_port && peer=$port
    free_port && healthz=$port
    free_port
    cat >"$DIR/env" <<END
export KUBECONFIG=$DIR/admin.kubeconfig
export NODE_KUBECONFIG=$DIR/node.kubeconfig
export NODE_NAME=${NODE_NAME:-node1}
export NODE_IP=$node_ip
export API_URL=https://127.0.0.1:$api
export ETCD_URL=http://127.0.0.1:$etcd
export ETCD_PEER_URL=http://127.0.0.1:$peer
export CA_CERT=$DIR/pki/ca.crt
export ADMIN_CERT=$DIR/pki/admin.crt
export ADMIN_KEY=$DIR/pki/admin.key
export NODE_CERT=$DIR/pki/node.crt
export NODE_KEY=$DIR/pki/node.key
export KUBE_APISERVER=${APISERVER_BINARY:-$binaries/kube-apiserver}
export APISERVER_FLAGS="${APISERVER_EXTRA_FLAGS:-}"
export KUBE_CONTROLLER_MANAGER=$binaries/kube-controller-manager
export KUBELET=$kubelet
export KUBELET_MINOR=$("$kubelet" --version | sed 's/^Kubernetes v1\.\([0-9]*\).*/\1/')
export KUBELET_CONFIG=$DIR/kubelet/config.yaml
export KUBELET_ROOT=$DIR/kubelet
export KUBELET_PORT=$port
export KUBELET_HEALTHZ_PORT=$healthz
export KUBECTL=$(command -v kubectl || echo "$binaries/kubectl")
export CONTAINERD_SOCK=$sock
export CGROUP_ROOT=/$net
export BRIDGE=$net
export IMAGE=local/busybox:1
END
    trap '[ $? = 0 ] || down' EXIT # half a cluster is of no use; the logs stay
    # shellcheck source=/dev/null
    . "$DIR/env"
    write_pki
    write_kubeconfig admin
    write_kubeconfig node
    write_containerd_config
    kubelet_config
    ip link add "$net" type bridge
    ip addr add "$node_ip/24" dev "$net"
    ip link set "$net" up
    make_cgroups
    step_log=$DIR/logs/up.log
    step "starting etcd" start etcd
    step "starting containerd" start containerd
    step "importing an image for Pods" import_image
    step "starting the API server" start apiserver
}

# The processes of this cluster's containers: those in its cgroup.
container_pids() { for c in $(cgroups); do find "$c" -name cgroup.procs -exec cat {} + 2>/dev/null; done | sort -u; }

down() {
    local f d i
    stop controller-manager
    stop apiserver
    stop etcd
    # Containers first, while their containerd can still say goodbye to them properly.
    if ours containerd >/dev/null; then
        for d in $(timeout 10 ctr --address "$sock" -n k8s.io tasks ls -q); do
            timeout 10 ctr --address "$sock" -n k8s.io tasks rm -f "$d" >/dev/null 2>&1 || true
        done
    fi
    stop containerd
    # What is still there had no containerd to end it (the shims' sockets are in a place that has no setting).
    for f in "$DIR"/containerd/state/io.containerd.runtime.v2.task/k8s.io/*/address; do
        [ ! -f "$f" ] || rm -f "$(sed 's,^unix://,,' "$f")"
    done
    # shellcheck disable=SC2046 # pids
    kill -9 $(container_pids) $(pgrep -f "^[^ ]*containerd-shim[^ ]* .*-address $sock( |\$)") 2>/dev/null || true

    # Mounts, innermost first; they linger for the moment a process takes to die.
    for ((i = 0; i < 50; i++)); do
        awk -v d="$DIR/" 'index($5, d) == 1 {print $5}' /proc/self/mountinfo | sort -r | while read -r f; do umount "$f" 2>/dev/null || true; done
        for d in $(cgroups); do find "$d" -depth -type d -exec rmdir {} + 2>/dev/null || true; done
        ! grep -qF " $DIR/" /proc/self/mountinfo && [ -z "$(cgroups)" ] && break
        sleep 0.1
    done
    ! grep -qF " $DIR/" /proc/self/mountinfo || die "still mounted below $DIR, is a kubelet running?: $(grep -F " $DIR/" /proc/self/mountinfo)"

    ip link del "$net" 2>/dev/null || true
    # Places that have no setting: CNI's results, and the kubelet's links to its pods' logs.
    for f in /var/lib/cni/results/"$net"-*-eth0; do
        d=${f##*/"$net"-}
        rm -f "$f" "/var/lib/cni/results/cni-loopback-${d%-eth0}-lo"
    done
    for d in "$DIR"/kubelet/pods/*-*/; do [ ! -d "$d" ] || rm -rf /var/log/pods/*_"$(basename "$d")"; done
    find /var/log/containers -xtype l -lname "/var/log/pods/*" -delete 2>/dev/null || true
    rm -rf --one-file-system "$DIR"/{pids,pki,cni,etcd,containerd,kubelet,admin.kubeconfig,node.kubeconfig,env}
}

case $verb in
up) up ;;
down) down ;;
kubelet-config) kubelet_config ;;
kubelet-args) kubelet_args ;;
import)
    need_up
    import_archive "$daemon"
    ;;
start | stop)
    need_up
    case $daemon in apiserver | etcd | containerd | controller-manager) "$verb" "$daemon" ;; *) usage ;; esac
    ;;
*) usage ;;
esac
