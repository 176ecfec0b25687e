#!/bin/bash
# Installs what a real local cluster needs and builds kubelet and kube-apiserver v1.20.2 from Debian's source package.
#
#   tests/real/prepare.sh        last line of stdout: the directory with the binaries
#
# KUBELET_SUPERVISOR_CACHE (default /var/cache/kubelet-supervisor) keeps them: only the first run on a machine builds,
# later ones need neither network nor time. Exit 77: this machine cannot do it (not root, not Debian 12).
# EXTRA_BINARIES names others of the same tree that are needed too: kube-controller-manager.
# Each step is said on stderr (steps.sh); what apt and the compiler say is in prepare.log in that directory.
set -euo pipefail

cache=${KUBELET_SUPERVISOR_CACHE:-/var/cache/kubelet-supervisor}
build_packages=(golang-go rsync dpkg-dev golang-github-modern-go-reflect2-dev)

# shellcheck source=tests/real/steps.sh
. "$(dirname "$(realpath "$0")")/steps.sh"
unavailable() { echo "prepare.sh: prerequisite missing: $*" >&2; exit 77; }

[ "$(id -u)" = 0 ] || unavailable "must be root"
# shellcheck source=/dev/null
. /etc/os-release
[ "${ID:-} ${VERSION_ID:-}" = "debian 12" ] || unavailable "must be Debian 12 (it has the source of Kubernetes 1.20)"

mkdir -p "$cache"
cache=$(realpath "$cache")
exec 9>"$cache/.lock"
# Two runs at once: the second waits, then finds everything done.
flock -n 9 || step "waiting for another run of prepare.sh" flock 9
step_log=$cache/prepare.log
: >"$step_log"

# The version of the source package, as far as the machine's package lists know it.
source_version() { apt-cache showsrc --only-source kubernetes 2>/dev/null | sed -n 's/^Version: //p' | grep -F 1.20.2 | sort -V | tail -n 1; }

# Asks for sources too, from wherever this machine takes Debian's binary packages.
enable_sources() {
    local to=/etc/apt/sources.list.d/kubelet-supervisor-src
    if [ -f /etc/apt/sources.list.d/debian.sources ]; then
        sed -e '/^#/d' -e 's/^Types:.*/Types: deb-src/' /etc/apt/sources.list.d/debian.sources >$to.sources
    else # the suite has to be Debian's own: third parties rarely publish sources
        sed -nE "s/^deb( +\[[^]]*\])?( +[^ ]+ +$VERSION_CODENAME)/deb-src\1\2/p" /etc/apt/sources.list >$to.list
    fi
}

# shellcheck disable=SC2206 # several words
binaries=(kubelet kube-apiserver ${EXTRA_BINARIES:-})
command -v kubectl >/dev/null || binaries+=(kubectl)

lacking() { # DIRECTORY: which binaries are not in it
    local b
    for b in "${binaries[@]}"; do [ -x "$1/$b" ] || echo "$b"; done
}
complete() { [ -z "$(lacking "$1")" ]; } # DIRECTORY

build() { # TARGET: builds whatever it lacks
    local target=$1 tree b
    mapfile -t binaries < <(lacking "$target")
    install_packages "${build_packages[@]}" 9>&-
    work=$(mktemp -d "$cache/.build.XXXXXX")
    trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
    cd "$work"
    step "fetching the source of Kubernetes $version from Debian" \
        apt-get -q -o APT::Sandbox::User=root source --only-source "kubernetes=$version"
    tree=$(echo "$work"/kubernetes-*/)
    cd "$tree"

    # The vendored reflect2 1.0.1 corrupts memory when built with Go 1.18 or later. Replace all of it: files that are
    # only in the old version would define the same functions twice.
    rm vendor/github.com/modern-go/reflect2/*.{go,s}
    cp /usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} vendor/github.com/modern-go/reflect2/

    # The path GOPATH expects the tree at, and Go's own cache inside what is deleted afterwards.
    mkdir -p .go/src/k8s.io
    ln -s "$PWD" .go/src/k8s.io/kubernetes
    export GOPATH=$PWD/.go GOCACHE=$work/go-cache GO111MODULE=off GOFLAGS="" CGO_ENABLED=0
    export KUBE_GIT_VERSION=v1.20.2 # else the binaries do not know which version they are
    step "building ${binaries[*]}: once, five minutes on two cores" make WHAT="${binaries[*]/#/cmd/}" GOFLAGS= 9>&-

    # Renames, so that a binary in the cache is always a whole one.
    mkdir -p "$target"
    for b in "${binaries[@]}"; do mv -T "_output/local/bin/linux/$(go env GOARCH)/$b" "$target/$b"; done
    cd /
}

install_packages "${run_packages[@]}" 9>&- # a daemon that is installed must not keep the lock

version=$(source_version || true)
if [ -z "$version" ]; then # nobody asked for sources yet, or the lists were thrown away
    for dir in "$cache"/kubernetes-*; do
        if complete "$dir"; then version=${dir#"$cache"/kubernetes-}; fi
    done
fi
if [ -z "$version" ]; then
    enable_sources
    updated='' && apt_update
    version=$(source_version || true)
    [ -n "$version" ] || unavailable "no source package kubernetes 1.20.2 in this machine's Debian mirror"
fi

directory=$cache/kubernetes-$version
complete "$directory" || build "$directory"
echo "$directory"
