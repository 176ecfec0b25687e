#!/usr/bin/env bash
# Builds the packages: the supervisor, the kubectl plugin, manual, completions, documents, a bill of materials. The supervisor is in use after
# `kubelet-supervisor enable`. `krew` packs the plugin alone, with a manifest for krew.
#
#   packaging/build.sh [deb|rpm|all|krew] [--out DIR] [--version V] [--binary FILE --plugin FILE] [--examples DIR] [--url URL] [--fast]
#
#   --out DIR       where they go (default: target/packages)
#   --version V     theirs (default: Cargo.toml's)
#   --binary FILE   packs this supervisor instead of a release build, as tests do
#   --plugin FILE   the same for the plugin
#   --examples DIR  has the built examples `manual` and `sbom`, as tests do; without it, cargo runs them
#   --url URL       where the archives of krew will lie; without it there is no manifest
#   --fast          packs loosely
#
# deb needs dpkg-deb, rpm needs rpmbuild (Debian: apt-get install rpm), both need objdump and strip (binutils).
# They are for the machine's own architecture, and for its C library or a later one. With the same toolchain, tools
# and commit the same bytes come out, wherever it lies (SOURCE_DATE_EPOCH, by default the commit's time).
set -euo pipefail
umask 022
top=$(cd "$(dirname "$0")/.." && pwd)
name=kubelet-supervisor
die() { echo "build.sh: $*" >&2; exit 1; }
# shellcheck source=packaging/compile.sh
. "$top/packaging/compile.sh"
usage() { sed -n '5,13s/^#  *//p' "$0" >&2; exit 64; }

kind=all out=$top/target/packages version='' binary='' plugin='' examples='' url='' level=6
case ${1:-} in deb | rpm | all | krew) kind=$1 && shift ;; esac
while [ $# -gt 0 ]; do
    [ "$1" != --fast ] || { level=1 && shift && continue; }
    [ $# -ge 2 ] || usage
    case $1 in
    --out) mkdir -p "$2" && out=$(cd "$2" && pwd) ;;
    --version) version=$2 ;;
    --binary) binary=$2 ;;
    --plugin) plugin=$2 ;;
    --examples) examples=$(realpath "$2") ;;
    --url) url=${2%/} ;;
    *) usage ;;
    esac
    shift 2
done
tool() { command -v "$1" >/dev/null || die "$1 is missing: $2"; }
tool objdump "install binutils"
[[ $kind == rpm || $kind == krew ]] || tool dpkg-deb "this builds a .deb on Debian and its kin; try: build.sh rpm"
[[ $kind == deb || $kind == krew ]] || tool rpmbuild "install rpm (Debian) or rpm-build, or try: build.sh deb"
case $(uname -m) in
x86_64) deb_arch=amd64 ;;
aarch64) deb_arch=arm64 ;;
*) die "packages are made for x86_64 and aarch64, this is $(uname -m)" ;;
esac

cd "$top"
target=${CARGO_TARGET_DIR:-$top/target}
[ -n "$version" ] || version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
[[ $version =~ ^[0-9][A-Za-z0-9.+~-]*$ ]] || die "--version $version: it must begin with a digit, and hold letters, digits and .+~- only"
version=${version//-/\~} # 1.0.0-rc.1 is before 1.0.0
[ -n "${SOURCE_DATE_EPOCH:-}" ] || SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
kubectl="kubectl-kubelet_config"
if [ -z "$binary" ]; then
    # A directory of its own: with other flags all of `cargo build --release` would begin anew.
    compile -- --target-dir "$target/packaged" --bin $name --bin $kubectl
    binary=$target/packaged/release/$name
    without_paths "$binary"
    without_paths "$target/packaged/release/$kubectl"
fi
[ -n "$plugin" ] || plugin=$(dirname "$binary")/$kubectl
[ -f "$binary" ] || die "--binary $binary: no such file"
[ -f "$plugin" ] || die "--plugin $plugin: no such file"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ "$kind" = krew ]; then
    tool sha256sum "install coreutils"
    mkdir -p "$out" "$work/krew"
    install -m 755 "$plugin" "$work/krew/$kubectl"
    strip "$work/krew/$kubectl"
    install -m 755 packaging/plugin/kubectl_complete-kubelet_config "$work/krew/"
    install -m 644 LICENSE "$work/krew/"
    plain=${version//\~/-}
    archive=$kubectl-$plain-linux-$deb_arch.tar
    tar -C "$work/krew" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf "$out/$archive" .
    gzip -$((level == 1 ? 1 : 9)) -nf "$out/$archive" && echo "$out/$archive.gz"
    (cd "$out" && sha256sum "$archive.gz" >"$archive.gz.sha256")
    [ -n "$url" ] || exit 0
    # One platform for each archive of this version that lies there, also of other machines.
    template=packaging/plugin/krew/kubelet-config.yaml
    {
        sed -e '/^#/d' -e '/^  platforms:/q' $template
        for archive in "$out/$kubectl-$plain"-linux-*.tar.gz; do
            archive=${archive##*/} arch=${archive##*-linux-}
            sum=$(sha256sum <"$out/$archive")
            sed -e "1,/^  platforms:/d" -e "s|@ARCHIVE@|$archive|" -e "s|@ARCH@|${arch%.tar.gz}|" -e "s|@SHA256@|${sum%% *}|" $template
        done
    } | sed -e "s|@URL@|$url|" -e "s|@VERSION@|$plain|" >"$out/kubelet-config.yaml"
    echo "$out/kubelet-config.yaml"
    exit 0
fi
example() { # NAME ARGUMENT...
    if [ -n "$examples" ]; then "$examples/$1" "${@:2}"; else cargo run --locked --quiet --example "$1" -- "${@:2}"; fi
}
example manual "$work/generated"
host=$(rustc -vV | sed -n 's/^host: //p')
cargo tree --locked --edges normal,build --prefix none --target "$host" -p $name -p kubectl-plugin >"$work/linked"
cargo metadata --locked --format-version 1 --filter-platform "$host" | example sbom Cargo.lock "$work/linked" >"$work/sbom.cdx.json"

# The tree that both hold. Where zsh looks for completions is the one difference.
stage() { # DIR ZSH_DIR
    local stage=$1 zsh=$2 page shared=$1/usr/share
    install -D -m 755 "$binary" "$stage/usr/bin/$name"
    install -m 755 "$plugin" "$stage/usr/bin/$kubectl"
    strip "$stage/usr/bin/$name" "$stage/usr/bin/$kubectl"
    install -m 755 packaging/plugin/kubectl_complete-kubelet_config "$stage/usr/bin/"
    for page in "$work"/generated/*.1; do
        install -d "$shared/man/man1"
        gzip -9n <"$page" >"$shared/man/man1/${page##*/}.gz"
    done
    install -D -m 644 "$work/generated/$name.bash" "$shared/bash-completion/completions/$name"
    install -D -m 644 "$work/generated/_$name" "$shared/zsh/$zsh/_$name"
    install -D -m 644 "$work/generated/$name.fish" "$shared/fish/vendor_completions.d/$name.fish"
    # The plugin brings its own, for those who call it by its own name.
    "$plugin" completion bash >"$shared/bash-completion/completions/$kubectl"
    "$plugin" completion zsh >"$shared/zsh/$zsh/_$kubectl"
    "$plugin" completion fish >"$shared/fish/vendor_completions.d/$kubectl.fish"
    # As in the repository, so that links between documents work.
    local doc=$shared/doc/$name file
    for file in README.md LICENSE CHANGELOG.md SECURITY.md docs/usage docs/security.md docs/GLOSSARY.md systemd packaging/manifests packaging/gitops packaging/policy packaging/prometheus packaging/grafana; do
        [ ! -e "$file" ] || { install -d "$doc/$(dirname "$file")" && cp -r "$file" "$doc/$file"; }
    done
    install -m 644 "$work/sbom.cdx.json" "$doc/"
    find "$stage" -type d -exec chmod 755 {} + -o ! -path '*/bin/*' -type f -exec chmod 644 {} +
    find "$stage" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
}

# The C library must know the newest symbol that the binaries ask for.
glibc() { objdump -T "$binary" "$plugin" | sed -n 's/.*(GLIBC_\([0-9.]*\)).*/\1/p' | sort -Vu | tail -n 1; }

deb() {
    local stage=$work/deb script
    stage "$stage" vendor-completions
    cat >"$stage/usr/share/doc/$name/copyright" <<COPYRIGHT
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: $name

Files: *
Copyright: the $name authors
License: Apache-2.0
 See LICENSE beside this file, or /usr/share/common-licenses/Apache-2.0.
COPYRIGHT
    # Ubuntu's needrestart would restart the kubelet with the next libc: a kubelet alone is static, a supervisor is not.
    install -d "$stage/etc/needrestart/conf.d"
    printf '%s\n' '# No package restarts the kubelet: that is for whoever runs the node.' \
        '$nrconf{override_rc}{qr(^kubelet(\.service)?$)} = 0;' >"$stage/etc/needrestart/conf.d/kubelet-supervisor.conf"
    local size
    # As dpkg-gencontrol counts it: what du says depends on the file system.
    size=$(find "$stage" -type f -printf '%s\n' -o -printf '1\n' | awk '{ kib += int(($1 + 1023) / 1024) } END { print kib }')
    mkdir "$stage/DEBIAN"
    cat >"$stage/DEBIAN/control" <<CONTROL
Package: $name
Version: $version-1
Architecture: $deb_arch
Maintainer: ${DEBEMAIL:-the $name authors <root@localhost>}
Installed-Size: $size
Depends: libc6 (>= $(glibc)), libgcc-s1
Recommends: systemd
Enhances: kubelet
Section: admin
Priority: optional
Description: dynamic kubelet configuration around an unmodified kubelet
 Puts a supervisor between systemd and the kubelet. An administrator points a
 Node at a ConfigMap; the supervisor has it judged by the kubelet itself,
 restarts the kubelet into it, and rolls back what does not stay healthy.
 .
 With it comes the administrator's side: kubectl kubelet-config.
 .
 It is in use after: kubelet-supervisor enable.
CONTROL
    echo /etc/needrestart/conf.d/kubelet-supervisor.conf >"$stage/DEBIAN/conffiles"
    for script in postinst prerm postrm; do
        { printf '#!/bin/sh\nset -e\n' && cat packaging/scripts/{common,deb-$script}.sh; } >"$stage/DEBIAN/$script"
        chmod 755 "$stage/DEBIAN/$script"
    done
    (cd "$stage" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    find "$stage" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
    # xz: dpkg of Debian 11 and before knows no zstd.
    dpkg-deb --root-owner-group -Zxz -z$level --build "$stage" "$out/${name}_$version-1_$deb_arch.deb" >/dev/null
    echo "$out/${name}_$version-1_$deb_arch.deb"
}

rpm() {
    local stage=$work/rpm spec=$work/$name.spec
    stage "$stage" site-functions
    {
        cat packaging/rpm.spec
        printf '\n%%files\n%%defattr(-,root,root,-)\n'
        # What this package alone has: its files, and directories of its name.
        (cd "$stage" && find usr \( -type f -o -type d -path '*/kubelet-supervisor*' \) | LC_ALL=C sort |
            sed -e 's,^,/,' -e "/\/doc\//s,^,%dir ,") | while read -r dir path; do
            case $dir in
            %dir) if [ -d "$stage$path" ]; then echo "%dir $path"; else echo "%doc $path"; fi ;;
            *) echo "$dir" ;;
            esac
        done
        # $1: how many of this package there are afterwards.
        printf '\n%%post\nset -e\n' && escaped packaging/scripts/common.sh && printf 'if [ "$1" = 1 ]; then installed; else upgraded; fi\n'
        printf '\n%%preun\nset -e\n' && escaped packaging/scripts/common.sh && printf '[ "$1" != 0 ] || give_back\n'
    } >"$spec"
    rpmbuild -bb --quiet --define "_topdir $work/rpmbuild" --define "stage $stage" --define "package_version $version" --define "level $level" \
        --buildroot "$work/buildroot" --target "$(uname -m)" "$spec" >"$work/rpm.log" 2>&1 || { cat "$work/rpm.log" >&2; die "rpmbuild failed"; }
    cp "$work/rpmbuild/RPMS/$(uname -m)/$name-$version-1.$(uname -m).rpm" "$out/"
    echo "$out/$name-$version-1.$(uname -m).rpm"
}
escaped() { sed 's/%/%%/g' "$1"; } # % is rpmbuild's

mkdir -p "$out"
[ "$kind" = rpm ] || deb
[ "$kind" = deb ] || rpm
