#!/usr/bin/env bash
# Builds the image of the controller of pools, an OCI archive with the static plugin in it and nothing else, without a container engine.
# Its digest, which a manifest names, comes out last.
#
#   packaging/image.sh [--out FILE] [--name NAME] [--version V] [--binary FILE]
#
#   --out FILE      where it goes (default: target/packages/kubectl-kubelet_config-V.oci.tar)
#   --name NAME     its repository (default: localhost/kubectl-kubelet-config), which containerd gives it at an import; the tag is the version
#   --version V     its version (default: Cargo.toml's)
#   --binary FILE   packs this static plugin, of the machine's own architecture, instead of a release build, as tests do
#
# It holds linux/amd64 and linux/arm64 where both can be built: the other one's takes a linker (Debian: gcc-aarch64-linux-gnu) and
# Rust's standard library (rustup target add). With the same toolchain and commit the same bytes come out, wherever it lies
# (SOURCE_DATE_EPOCH, by default the commit's time).
set -euo pipefail
umask 022
top=$(cd "$(dirname "$0")/.." && pwd)
plugin=kubectl-kubelet_config
die() { echo "image.sh: $*" >&2; exit 1; }
# shellcheck source=packaging/compile.sh
. "$top/packaging/compile.sh"
usage() { sed -n '5,10s/^#  *//p' "$0" >&2; exit 64; }

out='' name=localhost/kubectl-kubelet-config version='' binary=''
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || usage
    case $1 in
    --out) mkdir -p "$(dirname "$2")" && out=$(cd "$(dirname "$2")" && pwd)/$(basename "$2") ;;
    --name) name=$2 ;;
    --version) version=$2 ;;
    --binary) binary=$(realpath "$2") ;;
    *) usage ;;
    esac
    shift 2
done
for tool in readelf strip sha256sum tar; do
    command -v $tool >/dev/null || die "$tool is missing: install binutils, coreutils and tar"
done
cd "$top"
target=${CARGO_TARGET_DIR:-$top/target}
[ -n "$version" ] || version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
[[ $version =~ ^[0-9][A-Za-z0-9._-]*$ ]] || die "--version $version: it must begin with a digit, and hold letters, digits and ._- only"
[[ $name =~ ^[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)+$ ]] || die "--name $name: it must be HOST/PATH, in lower case"
[ -n "$out" ] || out=$target/packages/$plugin-$version.oci.tar
[ -n "${SOURCE_DATE_EPOCH:-}" ] || SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
revision=$(git rev-parse HEAD 2>/dev/null || true)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$(dirname "$out")" "$work/image/blobs/sha256"

# Moves a file among the blobs, and describes it as others name it.
blob() { # FILE MEDIA-TYPE [MORE]
    local sum size
    sum=$(sha256sum <"$1") size=$(stat -c %s "$1")
    mv "$1" "$work/image/blobs/sha256/${sum%% *}"
    printf '{"mediaType":"application/vnd.oci.image.%s","digest":"sha256:%s","size":%d%s}' "$2" "${sum%% *}" "$size" "${3:-}"
}
archive() { # DIRECTORY FILE: the same bytes of the same files
    tar -C "$1" --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf "$2" .
}

built=
build() { # RUST-TARGET: the static binary is $built
    # A directory of its own: with other flags all of the packages' build would begin anew.
    compile -C target-feature=+crt-static -- --target "$1" --target-dir "$target/image" --package kubectl-plugin --bin $plugin
    built=$target/image/$1/release/$plugin
    without_paths "$built"
}

host=$(uname -m) manifests=
add() { # MACHINE ARCHITECTURE
    local triple=$1-unknown-linux-gnu cross=$1-linux-gnu- layer config manifest
    if [ "$1" = "$host" ]; then
        cross=
        if [ -n "$binary" ]; then built=$binary; else build "$triple"; fi
    else
        [ -z "$binary" ] || return 0
        local missing=
        command -v "${cross}gcc" >/dev/null || missing="no ${cross}gcc"
        [ -d "$(rustc --print sysroot)/lib/rustlib/$triple" ] || missing+="${missing:+ and }no Rust standard library for $triple"
        [ -z "$missing" ] || { echo "image.sh: linux/$2 is left out: $missing" >&2; return 0; }
        local underscored=${triple//-/_}
        export "CARGO_TARGET_${underscored^^}_LINKER=${cross}gcc" "CC_$underscored=${cross}gcc"
        build "$triple"
    fi
    readelf -lW "$built" >"$work/headers" 2>/dev/null || die "$built is no program"
    ! grep -q INTERP "$work/headers" || die "$built is not static: in an image without a C library it does not start"

    rm -rf "$work/root" && mkdir "$work/root"
    install -m 755 "$built" "$work/root/$plugin"
    "${cross}strip" "$work/root/$plugin"
    archive "$work/root" "$work/layer.tar"
    layer=$(blob "$work/layer.tar" layer.v1.tar) # not compressed: what gzip makes of it differs from version to version
    cat >"$work/config.json" <<END
{"created":"$created","architecture":"$2","os":"linux","config":{"User":"65534:65534","Entrypoint":["/$plugin"],"WorkingDir":"/","Labels":$labels},"rootfs":{"type":"layers","diff_ids":["$(sed 's/.*"digest":"\([^"]*\)".*/\1/' <<<"$layer")"]},"history":[{"created":"$created","created_by":"packaging/image.sh"}]}
END
    config=$(blob "$work/config.json" config.v1+json)
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":%s,"layers":[%s]}' "$config" "$layer" >"$work/manifest.json"
    manifest=$(blob "$work/manifest.json" manifest.v1+json ",\"platform\":{\"architecture\":\"$2\",\"os\":\"linux\"}")
    manifests+=${manifests:+,}$manifest
}

labels=$(printf '{"org.opencontainers.image.created":"%s","org.opencontainers.image.description":"%s","org.opencontainers.image.licenses":"Apache-2.0",%s"org.opencontainers.image.title":"kubectl-kubelet-config","org.opencontainers.image.version":"%s"}' \
    "$created" "Carries out KubeletConfigPools: kubectl kubelet-config controller" "${revision:+\"org.opencontainers.image.revision\":\"$revision\",}" "$version")
add x86_64 amd64
add aarch64 arm64
[ -n "$manifests" ] || die "images are made for x86_64 and aarch64, this is $host"

printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s]}' "$manifests" >"$work/index.json"
index=$(blob "$work/index.json" index.v1+json ",\"annotations\":{\"io.containerd.image.name\":\"$name:$version\",\"org.opencontainers.image.ref.name\":\"$version\"}")
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s]}\n' "$index" >"$work/image/index.json"
printf '{"imageLayoutVersion":"1.0.0"}\n' >"$work/image/oci-layout"
archive "$work/image" "$work/image.tar"
mv "$work/image.tar" "$out"
echo "$out"
sed 's/.*"digest":"\([^"]*\)".*/\1/' <<<"$index"
