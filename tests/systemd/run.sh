#!/usr/bin/env bash
# The unit and its drop-in under a real systemd: boots one in a container on an overlay of this
# machine's root, with the stand-in kubelet in the place of /usr/bin/kubelet, and runs inside.sh there.
# Slow: two containers are booted.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)

skip() {
    echo "SKIPPED: systemd suite: $*"
    [ -z "${CI:-}" ] || { echo "in CI this is a failure" >&2; exit 1; }
    exit 0
}
[ "$(id -u)" = 0 ] || skip "needs root"
fetch() { # PACKAGE...
    command -v apt-get >/dev/null && apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@"
}
if ! command -v systemd-nspawn >/dev/null || [ ! -x /lib/systemd/systemd ]; then
    fetch systemd systemd-sysv systemd-container dbus || skip "systemd-nspawn is missing and cannot be installed"
fi
packages=all
if ! command -v rpmbuild >/dev/null && ! fetch rpm; then
    [ -z "${CI:-}" ] || skip "rpmbuild is missing and cannot be installed"
    packages=deb
    echo "LEFT OUT: the rpm: rpmbuild is missing and cannot be installed"
fi

target=${CARGO_TARGET_DIR:-$top/target}/debug
work=$(mktemp -d)
container=
cleanup() {
    # Only what was started here, by its process id.
    [ -z "$container" ] || kill -TERM "$container" 2>/dev/null || true
    [ -z "$container" ] || wait "$container" 2>/dev/null || true
    mountpoint -q "$work/root" && umount "$work/root"
    mountpoint -q "$work" && umount "$work"
    rmdir "$work"
}
trap cleanup EXIT
# A file system of its own: an overlay's upper layer cannot itself lie on an overlay.
mount -t tmpfs -o size=512m tmpfs "$work"
mkdir -p "$work"/{upper,workdir,root,suite}
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/workdir" "$work/root"

root=$work/root
# What a node has: the package's unit, kubeadm's drop-in, and a kubelet under both of its names.
mkdir -p "$root"/{usr/lib/systemd/system/kubelet.service.d,etc/systemd/system,var/lib/kubelet,etc/kubernetes}
cp "$here/forms/package.service" "$root/usr/lib/systemd/system/kubelet.service"
cp "$here/forms/10-kubeadm.conf" "$root/usr/lib/systemd/system/kubelet.service.d/"
cp "$here/suite.service" "$root/etc/systemd/system/"
strip -o "$root/usr/bin/kubelet" "$target/stand-in-kubelet"
ln -f "$root/usr/bin/kubelet" "$root/usr/bin/hyperkube"
cp -r "$here"/{forms,*.sh} "$top/systemd/zz-kubelet-supervisor.conf" "$top/docs/usage/install.md" "$top/README.md" "$work/suite/"
strip -o "$work/suite/kubelet-supervisor" "$target/kubelet-supervisor"
strip -o "$work/suite/kubectl-kubelet_config" "$target/kubectl-kubelet_config"
strip -o "$work/suite/stand-in-api-server" "$target/stand-in-api-server"
# Two versions, of the same binary.
"$top/packaging/build.sh" $packages --fast --binary "$work/suite/kubelet-supervisor" --out "$work/suite/packages"
"$top/packaging/build.sh" $packages --fast --binary "$work/suite/kubelet-supervisor" --out "$work/suite/packages" --version 99.0.0
echo "${SUITE_TOPICS:-}" >"$work/suite/topics"
cat >"$root/var/lib/kubelet/config.yaml" <<'END'
kind: KubeletConfiguration
apiVersion: kubelet.config.k8s.io/v1beta1
END
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
# Nothing of this machine's own services is wanted in there.
ln -sf /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
ln -sf /etc/systemd/system/suite.service "$root/etc/systemd/system/multi-user.target.wants/suite.service"

# Limits are generous: 600 s for the topics of one boot (200 on an idle machine), 180 s to power off.
soon() { # SECONDS CONDITION...
    local seconds=$1
    shift
    for ((i = 0; i < seconds; i++)); do
        if "$@" || ! kill -0 "$container" 2>/dev/null; then break; fi
        sleep 1
    done
    "$@" || { cat "$work/suite/out"; echo "the container did not get through; its console ends:"; tail -n 40 "$work/suite/console"; exit 1; }
}
is_off() { ! kill -0 "$container" 2>/dev/null; }
boot() {
    rm -f "$work"/suite/{done,again}
    # Output to a file: with a pipe, nspawn would wait for a terminal that is not there.
    systemd-nspawn --quiet --register=no --keep-unit --boot --private-network --directory="$root" \
        --bind="$work/suite:/suite" --machine="suite$$" </dev/null >>"$work/suite/console" 2>&1 &
    container=$!
    soon 600 test -e "$work/suite/done"
}
boot
if [ -e "$work/suite/again" ]; then
    # It powers itself off.
    soon 180 is_off
    touch "$work/suite/second-boot"
    boot
fi
cat "$work/suite/out"
[ -e "$work/suite/verdict" ]
